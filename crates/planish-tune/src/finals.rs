//! Promotion: finalists re-timed in pairs with the default, judged by confidence bounds, ties to the default.

use crate::config::Config;
use crate::event::Event;
use crate::measure::{Bench, Halt, Miss};
use crate::outcome::{Final, Interval, Verdict};
use crate::policy::Policy;
use crate::stats::{clipped_mean, median, median_bounds};
use crate::subject::{Admitted, Rejection};

/// Farthest that one log speedup may lie from the median in the mean: a stray sample counts as 1.6 times, not as ten.
const REACH: f64 = 0.5;

/// One finalist and its paired log speedups.
pub(crate) struct Finalist {
    pub admitted: Admitted,
    /// Logarithm of the default's time over the finalist's: per point, one per round.
    pub logs: Vec<Vec<f64>>,
    /// Log speedups of the search, per point; they only guard the mean.
    search_logs: Vec<Vec<f64>>,
    /// Raw times per point.
    pub ns: Vec<Vec<f64>>,
    /// Set when it failed while being timed.
    pub refused: Option<Rejection>,
    /// Cleared the margin at every point at some look.
    cleared: bool,
    /// Cannot clear the margin any more.
    out: bool,
}

impl Finalist {
    /// A finalist whose times over the default's in the search were `rel`, per point.
    pub fn new(admitted: Admitted, rel: &[Vec<f64>]) -> Self {
        let empty = vec![Vec::new(); rel.len()];
        let search_logs = rel.iter().map(|r| r.iter().map(|ratio| -ratio.ln()).collect()).collect();
        let (logs, ns) = (empty.clone(), empty);
        Finalist { admitted, logs, search_logs, ns, refused: None, cleared: false, out: false }
    }

    fn config(&self) -> &Config {
        self.admitted.config()
    }

    pub fn pairs(&self) -> usize {
        self.logs[0].len()
    }

    fn running(&self) -> bool {
        !self.out && self.refused.is_none()
    }

    fn intervals(&self, alpha: f64) -> Option<Vec<Interval>> {
        let one = |logs: &Vec<f64>| {
            let (lo, hi) = median_bounds(logs, alpha)?;
            Some(Interval { ratio: median(logs)?.exp(), lo: lo.exp(), hi: hi.exp() })
        };
        self.logs.iter().map(one).collect()
    }

    /// Judges the pairs so far: the bound must clear the margin at every point, and so must the mean
    /// of these pairs and the search together, because a candidate with two speeds can have a fast median.
    fn look(&mut self, policy: &Policy) {
        let Some(intervals) = self.intervals(policy.alpha_per_look()) else { return };
        let bar = 1.0 + policy.margin;
        let mut all = self.logs.iter().zip(&self.search_logs).map(|(now, before)| [&now[..], before].concat());
        let mean_clears = |logs: Vec<f64>| clipped_mean(&logs, REACH).is_some_and(|m| m.exp() >= bar);
        if intervals.iter().all(|i| i.lo >= bar) && all.all(mean_clears) {
            self.cleared = true;
        } else if !self.cleared && intervals.iter().any(|i| i.hi < bar) {
            self.out = true;
        }
    }
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
    let halt = run_rounds(bench, finalists).err();
    let policy = bench.task.policy.clone();
    // Stopped by time or by request: the look that was due next is taken at what there is.
    for f in finalists.iter_mut().filter(|f| f.running() && halt.is_some()) {
        f.look(&policy);
    }
    let (winner, halt) = confirmed(bench, finalists, halt);
    let finals: Vec<Final> = finalists.iter().map(|f| record(f, &policy)).collect();
    let verdict = match winner {
        Some(i) => promoted(&finals[i]),
        None => unproven(finalists, &policy, halt.as_ref()),
    };
    Judged { choice: winner.map(|i| finalists[i].config().clone()), verdict, finals, halt }
}

/// The winner's index, after a second opinion; one that is refused now makes way for the next.
fn confirmed(
    bench: &mut Bench<'_, '_>,
    finalists: &mut [Finalist],
    halt: Option<Halt>,
) -> (Option<usize>, Option<Halt>) {
    while let Some(i) = choose(finalists, &bench.task.policy) {
        match bench.confirm(&finalists[i].admitted) {
            Ok(admitted) => {
                finalists[i].admitted = admitted;
                return (Some(i), halt);
            }
            Err(Miss::Halt(fatal)) => return (None, Some(fatal)),
            Err(Miss::Refused(rejection)) => {
                let config = finalists[i].config().clone();
                bench.emit(&Event::Rejected { config, rejection: rejection.clone() });
                finalists[i].refused = Some(rejection);
            }
        }
    }
    (None, halt)
}

fn record(f: &Finalist, policy: &Policy) -> Final {
    let points = f.intervals(policy.alpha_per_look()).unwrap_or_default();
    let cleared = f.cleared && f.refused.is_none();
    Final { config: f.config().clone(), pairs: f.pairs(), points, cleared }
}

fn promoted(winner: &Final) -> Verdict {
    let least = winner.points.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio)).expect("a winner has points");
    Verdict::Promoted { ratio: least.ratio, lo: least.lo, hi: least.hi }
}

fn unproven(finalists: &[Finalist], policy: &Policy, halt: Option<&Halt>) -> Verdict {
    let open: Vec<&Finalist> = finalists.iter().filter(|f| f.running()).collect();
    let most = policy.looks.last().copied().unwrap_or(0);
    match open.iter().map(|f| f.pairs()).min() {
        None => Verdict::KeptDefault,
        Some(pairs) if pairs >= most => Verdict::KeptDefault,
        Some(pairs) => {
            let why = match halt {
                Some(Halt::Cancelled) => "cancelled",
                Some(_) => "budget spent",
                None => "the machine drifts",
            };
            Verdict::Undecided(format!("{why} after {pairs} of {most} paired rounds"))
        }
    }
}

/// The winner's index: the first cleared finalist in fixed order, unless a later one is faster beyond doubt.
fn choose(finalists: &[Finalist], policy: &Policy) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (i, f) in finalists.iter().enumerate().filter(|(_, f)| f.cleared && f.refused.is_none()) {
        best = match best {
            Some(b) if !beats(f, &finalists[b], policy) => Some(b),
            _ => Some(i),
        };
    }
    best
}

/// Whether `a` is faster than `b` by the margin, summed over points, with confidence.
fn beats(a: &Finalist, b: &Finalist, policy: &Policy) -> bool {
    let n = a.pairs().min(b.pairs());
    let gain = |r: usize| a.logs.iter().zip(&b.logs).map(|(x, y)| x[r] - y[r]).sum::<f64>() / a.logs.len() as f64;
    let gains: Vec<f64> = (0..n).map(gain).collect();
    median_bounds(&gains, policy.alpha_per_look()).is_some_and(|(lo, _)| lo.exp() >= 1.0 + policy.margin)
}

fn run_rounds(bench: &mut Bench<'_, '_>, finalists: &mut [Finalist]) -> Result<(), Halt> {
    let policy = bench.task.policy.clone();
    let mut bad_in_a_row = 0;
    for &look in &policy.looks {
        if !rounds_until(bench, finalists, look, &mut bad_in_a_row)? {
            return Ok(());
        }
        for f in finalists.iter_mut().filter(|f| f.running()) {
            f.look(&policy);
        }
        if finalists.iter().all(|f| f.cleared || !f.running()) {
            break;
        }
    }
    Ok(())
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
    let policy = bench.task.policy.clone();
    while let Some(round) = finalists.iter().filter(|f| f.running()).map(Finalist::pairs).min() {
        if round >= pairs {
            break;
        }
        match paired_round(bench, finalists, round)? {
            None => *bad_in_a_row = 0,
            Some(_) if *bad_in_a_row >= 2 * policy.drift_retries => return Ok(false),
            Some(drift) => {
                // A clock that stays at a new level is as good as the old one: both sides of a pair feel it.
                if drift.settled && *bad_in_a_row >= policy.drift_retries {
                    bench.adopt(&drift.level);
                }
                bench.cool(drift.change, 0, *bad_in_a_row)?;
                *bad_in_a_row += 1;
            }
        }
    }
    Ok(true)
}

/// A round that does not count.
struct Drift {
    change: f64,
    level: Vec<f64>,
    /// Whether the level was the same before and after the round.
    settled: bool,
}

/// Default, finalists, default; the finalists' order turns round every time. `Some` when the machine drifted.
fn paired_round(bench: &mut Bench<'_, '_>, finalists: &mut [Finalist], round: usize) -> Result<Option<Drift>, Halt> {
    let before = bench.anchor()?;
    let mut order: Vec<usize> = (0..finalists.len()).filter(|i| finalists[*i].running()).collect();
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
    for (i, ns) in times {
        let f = &mut finalists[i];
        let logs = ns.iter().enumerate().map(|(p, t)| 0.5 * (before[p].ln() + after[p].ln()) - t.ln());
        let logs: Vec<f64> = logs.collect();
        for (p, (log, t)) in logs.iter().zip(&ns).enumerate() {
            f.logs[p].push(*log);
            f.ns[p].push(*t);
        }
        let speedups = logs.iter().map(|l| l.exp()).collect();
        bench.emit(&Event::Paired { config: f.config().clone(), speedups });
    }
    Ok(None)
}

fn times_at_points(bench: &mut Bench<'_, '_>, admitted: &Admitted) -> Result<Vec<f64>, Miss> {
    (0..bench.points.len()).map(|p| bench.time(admitted, p).map(|s| s.ns)).collect()
}
