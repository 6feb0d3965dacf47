//! Promotion: finalists re-timed in pairs with the default, judged by confidence bounds, ties to the default.
//!
//! First it is settled who beats the default, then which of those to take: the first in the fixed order that is proven
//! to be no more than the margin behind the fastest, so that equals are decided by order and not by luck.

use crate::config::Config;
use crate::event::Event;
use crate::measure::{Bench, Halt, Miss};
use crate::outcome::{Final, Interval, Verdict};
use crate::policy::Policy;
use crate::stats::{center_bounds, chance_of_bound, median, median_bounds, trimmed_mean};
use crate::subject::{Admitted, Rejection, busy};

/// Share of a candidate's slowest and fastest runs that are strays; more of them are a speed of its own.
const STRAYS: f64 = 0.05;

/// Disagreement of finals and search, as a log ratio, that is no matter of luck however noisy the machine.
const MISMATCH: f64 = 0.1;

/// Chance of clearing the margin by the last look under which a finalist is timed no further.
const FUTILE: f64 = 0.03;

/// Level of one comparison between winners; it decides a tie and no promotion.
const TIE_ALPHA: f64 = 0.01;

/// Paired rounds between two looks at a tie.
const TIE_STEP: usize = 8;

/// One finalist and its paired log speedups.
pub(crate) struct Finalist {
    pub admitted: Admitted,
    /// Logarithm of the default's time over the finalist's: per point, one per round.
    pub logs: Vec<Vec<f64>>,
    /// Log speedups of the search, per point; they only guard the mean.
    search_logs: Vec<Vec<f64>>,
    /// Raw times per point.
    pub ns: Vec<Vec<f64>>,
    /// Set when it failed while being timed, or when its own times disagree.
    pub refused: Option<Rejection>,
    standing: Standing,
    /// The bounds by which it cleared the margin; later pairs only tell winners apart.
    proof: Vec<Interval>,
    /// Is timed no further because another is ahead by more than the margin; that one may still be refused.
    rests: bool,
}

/// How steady the default's own time is: what the machine does to everybody is held against nobody.
#[derive(Clone, Copy, Debug)]
struct Steadiness {
    noise: f64,
    /// Above 1 where some of its runs are slow.
    mean_over_median: f64,
}

fn steadiness(bench: &Bench<'_, '_>) -> Steadiness {
    let one = |ns: &Vec<f64>| Some(trimmed_mean(ns, STRAYS)? / median(ns)?);
    let mean_over_median = bench.anchors_ns.iter().filter_map(one).fold(f64::INFINITY, f64::min);
    let mean_over_median = if mean_over_median.is_finite() { mean_over_median.max(1.0) } else { 1.0 };
    Steadiness { noise: bench.noise(), mean_over_median }
}

/// How a finalist stands against the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Open,
    /// Cleared the margin at every point at some look.
    Cleared,
    /// Cannot clear the margin any more.
    Out,
    /// Will hardly clear the margin by the last look, whether it gains something or not.
    Futile,
}

/// Level of the bound under which a gain is called none where no more than that can be found out.
const NONE_ALPHA: f64 = 0.05;

/// Fewest pairs after which a gain that may be there is given up because the noise will hide it.
const HIDDEN_PAIRS: usize = 64;

impl Finalist {
    /// A finalist whose times over the default's in the search were `rel`, per point.
    pub fn new(admitted: Admitted, rel: &[Vec<f64>]) -> Self {
        let empty = vec![Vec::new(); rel.len()];
        let search_logs = rel.iter().map(|r| r.iter().map(|ratio| -ratio.ln()).collect()).collect();
        let (logs, ns) = (empty.clone(), empty);
        let (standing, proof) = (Standing::Open, Vec::new());
        Finalist { admitted, logs, search_logs, ns, refused: None, standing, proof, rests: false }
    }

    fn config(&self) -> &Config {
        self.admitted.config()
    }

    pub fn pairs(&self) -> usize {
        self.logs[0].len()
    }

    /// Whether it may still be chosen.
    fn in_question(&self) -> bool {
        self.refused.is_none() && matches!(self.standing, Standing::Open | Standing::Cleared)
    }

    /// Whether it is timed on; who has cleared is, since winners are compared over the same rounds.
    fn running(&self) -> bool {
        self.in_question() && !self.rests
    }

    fn is(&self, standing: Standing) -> bool {
        self.standing == standing && self.refused.is_none()
    }

    fn intervals(&self, alpha: f64) -> Option<Vec<Interval>> {
        intervals(self.logs.iter().map(Vec::as_slice), alpha)
    }

    /// Judges the first `pairs` pairs at level `alpha`: the bound must clear the margin at every point, and so must the mean
    /// of the pairs and the search together, because a candidate with two speeds can have a fast median.
    ///
    /// Later pairs, where an earlier run took some, wait for their own look: one more would be one more chance of luck.
    fn look(&mut self, pairs: usize, alpha: f64, policy: &Policy, default: Steadiness) {
        let first = self.logs.iter().map(|logs| &logs[..logs.len().min(pairs)]);
        let Some(intervals) = intervals(first, alpha) else { return };
        let bar = 1.0 + policy.margin;
        if intervals.iter().all(|i| i.lo >= bar) {
            match self.own_disagreement(bar, default) {
                None => (self.standing, self.proof) = (Standing::Cleared, intervals),
                Some(factor) if pairs >= policy.looks.last().copied().unwrap_or(0) => {
                    self.refused = Some(Rejection::Unstable(factor));
                }
                Some(_) => {}
            }
        } else if self.standing == Standing::Open && intervals.iter().any(|i| i.hi < bar) {
            self.standing = Standing::Out;
        } else if self.standing == Standing::Open
            && self.chance(pairs, alpha, policy) < FUTILE
            && (pairs >= HIDDEN_PAIRS || !self.may_gain(pairs, bar))
        {
            self.standing = Standing::Futile;
        }
    }

    /// Whether the first `pairs` pairs allow a gain past `bar` at every point.
    fn may_gain(&self, pairs: usize, bar: f64) -> bool {
        let most = |logs: &Vec<f64>| center_bounds(&logs[..logs.len().min(pairs)], NONE_ALPHA).map(|c| c.2.exp());
        self.logs.iter().all(|logs| most(logs).is_none_or(|most| most >= bar))
    }

    /// Chance of clearing the margin by the last look, at the point where it is least; less than one look gives none.
    fn chance(&self, pairs: usize, alpha: f64, policy: &Policy) -> f64 {
        let (bar, all) = ((1.0 + policy.margin).ln(), policy.looks.last().copied().unwrap_or(0));
        let one = |logs: &Vec<f64>| chance_of_bound(&logs[..logs.len().min(pairs)], bar, alpha, all);
        self.logs.iter().map(one).fold(1.0, f64::min)
    }

    /// By how much its own times disagree, if that is more than the gain is worth.
    fn own_disagreement(&self, bar: f64, default: Steadiness) -> Option<f64> {
        self.logs.iter().zip(&self.search_logs).find_map(|(now, before)| {
            let (all, fast) = ([&now[..], before].concat(), median(now)?);
            // The mean of times, not of their logarithms: that is what a user waits for.
            let times: Vec<f64> = all.iter().map(|log| (-log).exp()).collect();
            let slowness = trimmed_mean(&times, STRAYS)? / default.mean_over_median;
            let apart = median(before).map_or(0.0, |b| (b - fast).abs());
            let two_speeds = (slowness > 1.0 / bar).then(|| fast + slowness.ln());
            let moved = (apart > MISMATCH.max(6.0 * default.noise)).then_some(apart);
            two_speeds.or(moved).map(f64::exp)
        })
    }

    /// By how much it leads `other`, as a log ratio over all points, with bounds; rounds that both took part in count.
    fn lead(&self, other: &Finalist) -> Option<(f64, f64, f64)> {
        let n = self.pairs().min(other.pairs());
        let one = |r: usize| self.logs.iter().zip(&other.logs).map(|(a, b)| a[r] - b[r]).sum::<f64>();
        let leads: Vec<f64> = (0..n).map(|r| one(r) / self.logs.len() as f64).collect();
        center_bounds(&leads, TIE_ALPHA)
    }
}

/// Interval of the speedup at every point.
fn intervals<'l>(points: impl Iterator<Item = &'l [f64]>, alpha: f64) -> Option<Vec<Interval>> {
    let one = |logs: &[f64]| {
        let (lo, hi) = median_bounds(logs, alpha)?;
        Some(Interval { ratio: median(logs)?.exp(), lo: lo.exp(), hi: hi.exp() })
    };
    points.map(one).collect()
}

/// What the finals came to.
pub(crate) struct Judged {
    pub choice: Option<Config>,
    pub verdict: Verdict,
    pub finals: Vec<Final>,
    /// What stopped them early, if anything did.
    pub halt: Option<Halt>,
}

/// Times `finalists` (in their fixed order) against the default and judges them.
pub(crate) fn judge(bench: &mut Bench<'_, '_>, finalists: &mut [Finalist]) -> Judged {
    let (policy, alpha) = (bench.task.policy.clone(), bench.alpha_per_look());
    let mut halt = clear(bench, finalists).err();
    if halt.is_none() {
        // Whoever is taken is proven; that time did not suffice for the order among winners leaves nothing undone.
        halt = settle_ties(bench, finalists).err().filter(|h| !matches!(h, Halt::Budget));
    }
    for f in finalists.iter() {
        if let Some(rejection @ Rejection::Unstable(_)) = &f.refused {
            bench.emit(&Event::Rejected { config: f.config().clone(), rejection: rejection.clone() });
        }
    }
    let (winner, halt) = confirmed(bench, finalists, halt);
    let finals: Vec<Final> = finalists.iter().map(|f| record(f, alpha)).collect();
    let verdict = match winner {
        Some(i) => promoted(&finals[i]),
        None => unproven(finalists, &policy, alpha, halt.as_ref()),
    };
    Judged { choice: winner.map(|i| finalists[i].config().clone()), verdict, finals, halt }
}

/// The winner's index, after a second opinion; one that is refused now makes way for the next.
fn confirmed(
    bench: &mut Bench<'_, '_>,
    finalists: &mut [Finalist],
    mut halt: Option<Halt>,
) -> (Option<usize>, Option<Halt>) {
    while let Some(i) = choose(finalists, bench.task.policy.margin) {
        match bench.confirm(&finalists[i].admitted) {
            Ok(admitted) => {
                finalists[i].admitted = admitted;
                return (Some(i), halt);
            }
            Err(Miss::Halt(fatal)) => return (None, Some(fatal)),
            Err(Miss::Refused(rejection)) => {
                refuse(bench, finalists, i, rejection);
                // Those whom it had beaten are in again.
                finalists.iter_mut().for_each(|f| f.rests = false);
                if halt.is_none() {
                    halt = clear(bench, finalists).err();
                }
            }
        }
    }
    (None, halt)
}

/// Refuses finalist `i`; what it is refused for beside other work holds for all that use fewer processors.
fn refuse(bench: &mut Bench<'_, '_>, finalists: &mut [Finalist], i: usize, rejection: Rejection) {
    let busy = matches!(rejection, Rejection::Busy(_));
    for (k, f) in finalists.iter_mut().enumerate() {
        let alike = busy && f.in_question() && bench.subject.uses_fewer(f.config());
        if k == i || alike {
            bench.emit(&Event::Rejected { config: f.config().clone(), rejection: rejection.clone() });
            f.refused = Some(rejection.clone());
        }
    }
}

fn record(f: &Finalist, alpha: f64) -> Final {
    let points = if f.proof.is_empty() { f.intervals(alpha).unwrap_or_default() } else { f.proof.clone() };
    Final { config: f.config().clone(), pairs: f.pairs(), points, cleared: f.is(Standing::Cleared) }
}

fn least(points: &[Interval]) -> Option<&Interval> {
    points.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio))
}

fn promoted(winner: &Final) -> Verdict {
    let least = least(&winner.points).expect("a winner has points");
    Verdict::Promoted { ratio: least.ratio, lo: least.lo, hi: least.hi }
}

/// Why nobody is promoted: no difference, or not enough clean data to see one.
fn unproven(finalists: &[Finalist], policy: &Policy, alpha: f64, halt: Option<&Halt>) -> Verdict {
    let alone = |f: &Finalist| match f.refused {
        Some(Rejection::Busy(share)) if f.standing == Standing::Cleared => Some(share),
        _ => None,
    };
    if let Some(share) = finalists.iter().find_map(alone) {
        return Verdict::Undecided(busy(share));
    }
    let stand = |s: Standing| finalists.iter().filter(move |f| f.is(s) && !f.rests);
    let most = policy.looks.last().copied().unwrap_or(0);
    if let Some(pairs) = stand(Standing::Open).map(Finalist::pairs).min().filter(|pairs| *pairs < most) {
        let why = match halt {
            Some(Halt::Cancelled) => "cancelled",
            Some(_) => "budget spent",
            None => "the machine drifts",
        };
        return Verdict::Undecided(format!("{why} after {pairs} of {most} paired rounds"));
    }
    let hidden = stand(Standing::Open).chain(stand(Standing::Futile));
    let told = hidden.filter_map(|f| Some((least(&f.intervals(alpha)?).copied()?, f.pairs())));
    match told.max_by(|a, b| a.0.ratio.total_cmp(&b.0.ratio)) {
        // Its own middle is a gain, and its bounds reach down to none: saying "no difference" would be a guess too.
        Some((Interval { ratio, lo, hi }, pairs)) if ratio >= 1.0 + policy.margin => {
            let [gain, lo, hi] = [ratio, lo, hi].map(|r| 100.0 * (r - 1.0));
            Verdict::Undecided(format!(
                "a gain of {gain:.1}% is within the noise of {pairs} pairs: {lo:+.1}% to {hi:+.1}%"
            ))
        }
        _ => Verdict::KeptDefault,
    }
}

/// The cleared finalists, in their fixed order.
fn cleared(finalists: &[Finalist]) -> Vec<usize> {
    (0..finalists.len()).filter(|i| finalists[*i].is(Standing::Cleared)).collect()
}

/// The fastest of `among` by its centre, summed over points.
fn fastest(finalists: &[Finalist], among: &[usize]) -> Option<usize> {
    let center = |i: usize| finalists[i].logs.iter().map(|l| middle(l)).sum::<f64>();
    among.iter().copied().max_by(|a, b| center(*a).total_cmp(&center(*b)).then(b.cmp(a)))
}

/// Centre of log speedups; the median where there are too few for better.
fn middle(logs: &[f64]) -> f64 {
    center_bounds(logs, TIE_ALPHA).map(|c| c.1).or_else(|| median(logs)).unwrap_or(f64::NEG_INFINITY)
}

/// The winner's index: the first cleared one in fixed order that is proven to be within the margin of the fastest.
fn choose(finalists: &[Finalist], margin: f64) -> Option<usize> {
    let among = cleared(finalists);
    let best = fastest(finalists, &among)?;
    among.into_iter().find(|i| *i == best || relation(finalists, best, *i, margin) == Relation::Tied)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// Proven to be within the margin.
    Tied,
    /// Proven to be behind by more than the margin.
    Behind,
    Unclear,
}

/// How `other` stands to `best`.
fn relation(finalists: &[Finalist], best: usize, other: usize, margin: f64) -> Relation {
    let tie = (1.0 + margin).ln();
    match finalists[best].lead(&finalists[other]) {
        Some((_, _, most)) if most <= tie => Relation::Tied,
        Some((least, _, _)) if least > tie => Relation::Behind,
        _ => Relation::Unclear,
    }
}

/// Whether `other` could be proven tied with `best` after `most` pairs, if they scatter on as they did.
fn could_tie(finalists: &[Finalist], best: usize, other: usize, margin: f64, most: usize) -> bool {
    let Some((_, lead, highest)) = finalists[best].lead(&finalists[other]) else { return true };
    let pairs = finalists[best].pairs().min(finalists[other].pairs());
    let (tie, now) = ((1.0 + margin).ln(), highest - lead);
    let then = now * (pairs as f64 / most.max(pairs) as f64).sqrt();
    // The middle may move as far as its bound is from it, though not below none; the scatter is read a little kindly.
    0.8 * then <= tie && lead - now + then <= tie
}

/// Rounds until everybody has cleared the margin or cannot any more, at most to the last look.
fn clear(bench: &mut Bench<'_, '_>, finalists: &mut [Finalist]) -> Result<(), Halt> {
    let (policy, mut bad_in_a_row) = (bench.task.policy.clone(), 0);
    for &look in &policy.looks {
        if !rounds_until(bench, finalists, look, &mut bad_in_a_row)? {
            return Ok(());
        }
        bench.by_others();
        let (default, alpha) = (steadiness(bench), bench.alpha_per_look());
        for f in finalists.iter_mut().filter(|f| f.is(Standing::Open)) {
            f.look(look, alpha, &policy, default);
        }
        drop_the_beaten(finalists, policy.margin);
        if !finalists.iter().any(|f| f.is(Standing::Open) && !f.rests) {
            break;
        }
    }
    Ok(())
}

/// Whoever is behind a cleared finalist by more than the margin cannot be chosen, so it need not be timed on.
fn drop_the_beaten(finalists: &mut [Finalist], margin: f64) {
    let Some(best) = fastest(finalists, &cleared(finalists)) else { return };
    let beaten = |i: &usize| {
        *i != best && finalists[*i].is(Standing::Open) && relation(finalists, best, *i, margin) == Relation::Behind
    };
    for i in (0..finalists.len()).filter(beaten).collect::<Vec<_>>() {
        finalists[i].rests = true;
    }
}

/// More rounds among the winners until it is clear who is tied with the fastest, where that could change the choice.
fn settle_ties(bench: &mut Bench<'_, '_>, finalists: &mut [Finalist]) -> Result<(), Halt> {
    let (margin, most, mut bad_in_a_row) = (bench.task.policy.margin, bench.task.policy.tie_rounds, 0);
    loop {
        let among = cleared(finalists);
        let Some(best) = fastest(finalists, &among) else { return Ok(()) };
        let to_best: Vec<Relation> = among.iter().map(|i| relation(finalists, best, *i, margin)).collect();
        let chosen = (0..among.len()).find(|k| among[*k] == best || to_best[*k] == Relation::Tied);
        let before = among.iter().zip(&to_best).take(chosen.expect("the best is there"));
        let ties = |i: usize| could_tie(finalists, best, i, margin, most);
        let unclear = before.into_iter().any(|(i, relation)| *relation == Relation::Unclear && ties(*i));
        for (i, relation) in among.iter().zip(&to_best) {
            finalists[*i].rests = *i != best && *relation == Relation::Behind;
        }
        let pairs = finalists.iter().filter(|f| f.running()).map(Finalist::pairs).min().unwrap_or(most);
        let target = (pairs + TIE_STEP).min(most);
        if !unclear || target <= pairs || !rounds_until(bench, finalists, target, &mut bad_in_a_row)? {
            return Ok(());
        }
    }
}

/// Rounds until everybody who is still running has `pairs` of them; false where the machine drifts too much for that.
///
/// `bad_in_a_row` counts rounds that drifted, from one call to the next.
pub(crate) fn rounds_until(
    bench: &mut Bench<'_, '_>,
    finalists: &mut [Finalist],
    pairs: usize,
    bad_in_a_row: &mut u32,
) -> Result<bool, Halt> {
    let retries = bench.task.policy.drift_retries;
    loop {
        let ids: Vec<usize> = (0..finalists.len()).filter(|i| finalists[*i].running()).collect();
        let Some(round) = ids.iter().map(|i| finalists[*i].pairs()).min().filter(|n| *n < pairs) else {
            return Ok(true);
        };
        match paired_round(bench, finalists, &ids, round)? {
            None => *bad_in_a_row = 0,
            Some(_) if *bad_in_a_row >= 2 * retries => return Ok(false),
            Some(drift) => {
                // A clock that stays at a new level is as good as the old one: both sides of a pair feel it.
                if drift.settled && *bad_in_a_row >= retries {
                    bench.adopt(&drift.level);
                }
                bench.cool(drift.change, 0, *bad_in_a_row)?;
                *bad_in_a_row += 1;
            }
        }
        let (left, each) = (pairs - round, ids.len() + 2);
        let samples = u32::try_from(left * each * bench.points.len()).unwrap_or(u32::MAX);
        bench.progress(bench.sample_cost.saturating_mul(samples));
    }
}

/// A round that does not count.
struct Drift {
    change: f64,
    level: Vec<f64>,
    /// Whether the level was the same before and after the round.
    settled: bool,
}

/// Default, finalists `ids`, default; the finalists' order turns round every time. `Some` when the machine drifted.
fn paired_round(
    bench: &mut Bench<'_, '_>,
    finalists: &mut [Finalist],
    ids: &[usize],
    round: usize,
) -> Result<Option<Drift>, Halt> {
    let before = bench.anchor()?;
    let mut order = ids.to_vec();
    if round % 2 == 1 {
        order.reverse();
    }
    let mut times: Vec<(usize, Vec<f64>)> = Vec::new();
    for i in order {
        match times_at_points(bench, &finalists[i].admitted) {
            Ok(ns) => times.push((i, ns)),
            Err(Miss::Halt(h)) => return Err(h),
            Err(Miss::Refused(rejection)) => {
                let config = finalists[i].config().clone();
                bench.emit(&Event::Rejected { config, rejection: rejection.clone() });
                finalists[i].refused = Some(rejection);
            }
        }
    }
    let after = bench.anchor()?;
    let within = Bench::change(&after, &before);
    let from_base = bench.change_from_baseline(&after);
    let limit = bench.drift_limit();
    if within.abs() > limit || from_base.abs() > limit {
        let change = if within.abs() > limit { within } else { from_base };
        return Ok(Some(Drift { change, settled: within.abs() <= limit, level: after }));
    }
    bench.accept_anchor(&before);
    bench.accept_anchor(&after);
    let last = times.len();
    for (at, (i, ns)) in times.into_iter().enumerate() {
        let f = &mut finalists[i];
        let logs = ns.iter().enumerate().map(|(p, t)| 0.5 * (before[p].ln() + after[p].ln()) - t.ln());
        let logs: Vec<f64> = logs.collect();
        for (p, (log, t)) in logs.iter().zip(&ns).enumerate() {
            f.logs[p].push(*log);
            f.ns[p].push(*t);
        }
        let speedups = logs.iter().map(|l| l.exp()).collect();
        bench.emit(&Event::Paired { config: f.config().clone(), speedups, ends_round: at + 1 == last });
    }
    Ok(None)
}

fn times_at_points(bench: &mut Bench<'_, '_>, admitted: &Admitted) -> Result<Vec<f64>, Miss> {
    (0..bench.points.len()).map(|p| bench.time(admitted, p).map(|s| s.ns)).collect()
}
