//! Tuning one subject: list, admit in waves, time in interleaved rounds with elimination, then hand over to the finals.

use std::collections::HashSet;
use std::time::Duration;

use crate::config::Config;
use crate::distort::Distorted;
use crate::error::Error;
use crate::event::{Event, Resume};
use crate::finals::{Finalist, Judged, judge};
use crate::guard::Tuning;
use crate::measure::{Bench, Halt, Miss, Task, default_failed};
use crate::outcome::{Counts, Outcome, Ranked, Times, Verdict};
use crate::policy::Timings;
use crate::space::Space;
use crate::stats::{median, spread};
use crate::subject::{Admitted, Rejection, Subject};

/// A candidate this many times slower than the default just before and just after it is dropped on the spot.
const HOPELESS: f64 = 3.0;

/// Most candidates that are timed past round two.
const SURVIVORS: usize = 24;

/// Candidates with wrong results, nine in ten of all that were admitted or wrong, that put the reference in doubt; all
/// of a space that has fewer, but for the smallest.
const FLOOD: usize = 24;
const FLOOD_LEAST: usize = 4;
const FLOOD_SHARE: usize = 10;

/// Finds the configuration to use for `subject` within the task's budget.
///
/// Nothing is timed before it is admitted, and nothing is promoted that was not re-timed in pairs with the default.
/// Stops early, with the best proven so far, when the budget is spent or the cancel flag is set.
/// Errors when the subject has no point, when its default is illegal or refused, when it reports itself broken, when
/// nearly every candidate is wrong, or when this thread is tuning already.
pub fn tune(subject: &mut dyn Subject, task: Task<'_>) -> Result<Outcome, Error> {
    let _tuning = Tuning::begin()?;
    match task.policy.timings {
        Timings::Measured => tune_by_time(subject, task),
        timings => tune_by_time(&mut Distorted::new(subject, timings), task),
    }
}

fn tune_by_time(subject: &mut dyn Subject, task: Task<'_>) -> Result<Outcome, Error> {
    if subject.points().is_empty() {
        return Err(Error::new("the subject has no point to time at"));
    }
    let default = subject.space().default.clone();
    if let Some(constraint) = subject.space().violated(&default) {
        return Err(Error::new(format!("the default config ({default}) violates its own space: {constraint}")));
    }
    let start = task.budget.spent();
    let admitted = match subject.admit(&default) {
        Ok(admitted) => admitted,
        Err(r) => return Err(subject.broken().unwrap_or_else(|| default_failed(&default, &r))),
    };
    let mut search = Search::list(subject.space(), subject.points().len());
    search.admit_cost = task.budget.spent() - start;
    if search.admit_cost > task.budget.limit() / 20 {
        // Inputs, references and what compilers keep were made for the first admission alone; others cost what a second does.
        let start = task.budget.spent();
        subject.admit(&default).map_err(|r| default_failed(&default, &r))?;
        search.admit_cost = task.budget.spent() - start;
    }
    search.order_by_risk(&*subject);
    let mut bench = Bench::new(subject, task, admitted);
    let resume = std::mem::take(&mut bench.task.resume);
    search.take_in(&resume);
    let (candidates, legal) = (search.counts.candidates, search.entries.len() + 1);
    bench.emit(&Event::Listed { candidates, legal });
    let judged = run(&mut bench, &mut search, &resume)?;
    let outcome = search.outcome(bench, judged);
    Ok(outcome)
}

/// Warm-up, search and finals; the only errors are fatal ones.
fn run(bench: &mut Bench<'_, '_>, search: &mut Search, resume: &Resume) -> Result<Judged, Error> {
    let stopped = match search_phase(bench, search) {
        Ok(()) | Err(Halt::Budget) => None,
        Err(Halt::Cancelled) => Some("cancelled"),
        Err(Halt::Fatal(error)) => return Err(error),
    };
    let mut judged = match stopped {
        Some(why) => undecided(&format!("{why} while searching"), Some(Halt::Cancelled)),
        None => final_phase(bench, search, resume)?,
    };
    if let Some(Halt::Fatal(error)) = judged.halt {
        return Err(error);
    }
    let noise = bench.noise();
    if judged.verdict == Verdict::KeptDefault && noise > bench.task.policy.drift && search.compared() {
        let why = format!("the default's own time scatters by {:.0}%", 100.0 * noise);
        judged.verdict = Verdict::Undecided(why);
    }
    let choice = judged.choice.clone().unwrap_or_else(|| bench.default.config().clone());
    bench.emit(&Event::Decided { choice, verdict: judged.verdict.clone() });
    Ok(judged)
}

fn undecided(why: &str, halt: Option<Halt>) -> Judged {
    Judged { choice: None, verdict: Verdict::Undecided(why.to_owned()), finals: Vec::new(), halt }
}

fn search_phase(bench: &mut Bench<'_, '_>, search: &mut Search) -> Result<(), Halt> {
    let share = 1.0 - bench.task.policy.finals_share;
    bench.phase_end = bench.task.budget.limit().mul_f64(share);
    bench.warm()?;
    let default_ns: Vec<f64> = bench.anchors_ns.iter().filter_map(|a| median(a)).collect();
    if bench.at_roof(&default_ns, bench.task.policy.margin) {
        search.finished = true;
        return Ok(());
    }
    search.waves(bench)?;
    search.survivors(bench)?;
    search.finished = true;
    Ok(())
}

fn final_phase(bench: &mut Bench<'_, '_>, search: &mut Search, resume: &Resume) -> Result<Judged, Error> {
    bench.phase_end = bench.task.budget.limit();
    if bench.anchors_ns[0].is_empty() {
        return Ok(undecided("budget spent before the default was timed", Some(Halt::Budget)));
    }
    let picks = search.finalists(bench);
    let mut finalists = Vec::new();
    for i in picks {
        match search.proof(bench, i) {
            Ok(admitted) => finalists.push(Finalist::new(admitted, &search.entries[i].rel)),
            Err(Miss::Refused(rejection)) => search.refuse(bench, i, rejection),
            Err(Miss::Halt(Halt::Fatal(error))) => return Err(error),
            Err(Miss::Halt(halt)) => return Ok(undecided("stopped before the finals", Some(halt))),
        }
    }
    if finalists.is_empty() {
        return Ok(search.nothing_to_judge(bench.drifts));
    }
    let configs: Vec<Config> = finalists.iter().map(|f| f.admitted.config().clone()).collect();
    bench.emit(&Event::Finalists { configs });
    take_in_pairs(&mut finalists, resume);
    for f in &finalists {
        for round in 0..f.logs[0].len() {
            let speedups = f.logs.iter().map(|logs| logs[round].exp()).collect();
            bench.emit(&Event::Paired { config: f.admitted.config().clone(), speedups });
        }
    }
    let judged = judge(bench, &mut finalists);
    for f in finalists {
        search.back_from_finals(f);
    }
    Ok(judged)
}

/// Uses an earlier run's pairs when it had the same finalists; whole rounds only.
fn take_in_pairs(finalists: &mut [Finalist], resume: &Resume) {
    let of = |config: &Config| -> Vec<&Vec<f64>> {
        resume.paired.iter().filter(|(c, _)| c == config).map(|(_, speedups)| speedups).collect()
    };
    let whole = finalists.iter().map(|f| of(f.admitted.config()).len()).min().unwrap_or(0);
    for f in finalists {
        let points = f.logs.len();
        for speedups in of(f.admitted.config()).into_iter().take(whole).filter(|s| s.len() == points) {
            for (logs, speedup) in f.logs.iter_mut().zip(speedups) {
                logs.push(speedup.ln());
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untried,
    Live,
    Dropped,
    Refused,
}

/// A legal candidate other than the default.
struct Entry {
    config: Config,
    state: State,
    risk: u32,
    admitted: Option<Admitted>,
    /// Raw times per point.
    ns: Vec<Vec<f64>>,
    /// Times over the default's at the surrounding anchors, per point.
    rel: Vec<Vec<f64>>,
}

impl Entry {
    fn rounds(&self) -> usize {
        self.rel.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// One number per point by `pick`, then their geometric mean; `None` before the first round.
    fn over_points(&self, pick: impl Fn(&[f64]) -> f64) -> Option<f64> {
        (self.rounds() > 0).then(|| (self.rel.iter().map(|r| pick(r).ln()).sum::<f64>() / self.rel.len() as f64).exp())
    }

    /// Estimated time over the default's.
    fn estimate(&self) -> Option<f64> {
        self.over_points(middle)
    }

    /// The estimate that is kindest to the candidate while it has few samples.
    fn optimistic(&self) -> Option<f64> {
        self.over_points(kind)
    }

    /// The estimate that is harshest to the candidate while it has few samples.
    fn pessimistic(&self) -> Option<f64> {
        self.over_points(harsh)
    }

    /// Time over the default's at the point where that is largest.
    fn worst_point(&self, pick: impl Fn(&[f64]) -> f64) -> f64 {
        self.rel.iter().filter(|r| !r.is_empty()).map(|r| pick(r)).fold(0.0, f64::max)
    }
}

fn middle(r: &[f64]) -> f64 {
    median(r).expect("a timed point has samples")
}

fn kind(r: &[f64]) -> f64 {
    if r.len() < 4 { r.iter().copied().fold(f64::INFINITY, f64::min) } else { middle(r) }
}

fn harsh(r: &[f64]) -> f64 {
    if r.len() < 4 { r.iter().copied().fold(0.0, f64::max) } else { middle(r) }
}

struct Search {
    space: Space,
    /// In the order of `Space::candidates`: the fixed order that ties go by.
    entries: Vec<Entry>,
    /// Positions in `entries`, least risky first.
    order: Vec<usize>,
    rejected: Vec<(Config, Rejection)>,
    counts: Counts,
    admit_cost: Duration,
    finished: bool,
}

impl Search {
    /// Lists the space and prunes it by named constraints.
    fn list(space: &Space, points: usize) -> Self {
        let all = space.candidates();
        let counts = Counts { candidates: all.len(), ..Counts::default() };
        let mut rejected = Vec::new();
        let mut entries = Vec::new();
        for config in all.into_iter().skip(1) {
            match space.violated(&config) {
                Some(name) => rejected.push((config, Rejection::Constraint(name))),
                None => entries.push(Entry {
                    config,
                    state: State::Untried,
                    risk: 0,
                    admitted: None,
                    ns: vec![Vec::new(); points],
                    rel: vec![Vec::new(); points],
                }),
            }
        }
        let order = (0..entries.len()).collect();
        let space = space.clone();
        Search { space, entries, order, rejected, counts, admit_cost: Duration::ZERO, finished: false }
    }

    fn order_by_risk(&mut self, subject: &dyn Subject) {
        for e in &mut self.entries {
            e.risk = subject.risk(&e.config);
        }
        self.sort_by_distance_to(&self.space.default.clone());
    }

    fn sort_by_distance_to(&mut self, center: &Config) {
        let keys: Vec<_> = self.entries.iter().map(|e| (e.risk, distance(&self.space, &e.config, center))).collect();
        self.order.sort_by_key(|&i| (keys[i], i));
    }

    /// Takes in what an earlier run knows.
    fn take_in(&mut self, resume: &Resume) {
        for (config, rejection) in &resume.rejected {
            if let Some(e) = self.entries.iter_mut().find(|e| e.config == *config && e.state == State::Untried) {
                let slow = matches!(rejection, Rejection::Slow(_));
                e.state = if slow { State::Dropped } else { State::Refused };
                self.rejected.push((config.clone(), rejection.clone()));
            }
        }
        for (config, point, ns, ratio) in &resume.measured {
            let p = point.0 as usize;
            let usable = ns.is_finite() && *ns > 0.0 && ratio.is_finite() && *ratio > 0.0;
            if let Some(e) = self.entries.iter_mut().find(|e| e.config == *config && p < e.ns.len() && usable) {
                e.ns[p].push(*ns);
                e.rel[p].push(*ratio);
            }
        }
        for e in self.entries.iter_mut().filter(|e| e.state == State::Untried && e.rounds() > 0) {
            e.state = State::Live;
        }
    }

    /// Waves of admission, two rounds each, until all are tried, the roof is reached or a wave brings nothing.
    fn waves(&mut self, bench: &mut Bench<'_, '_>) -> Result<(), Halt> {
        let large = self.entries.len() > bench.task.policy.exhaust;
        let mut best = 1.0f64;
        loop {
            let wave = self.next_wave(bench.task.policy.wave);
            let more = !wave.is_empty();
            let configs: Vec<Config> = wave.iter().map(|&i| self.entries[i].config.clone()).collect();
            bench.subject.prepare(&configs);
            let cut_short = self.admit_all(bench, &wave)?;
            for round in 0..2 {
                self.round(bench, round)?;
            }
            self.eliminate(bench);
            let (now, center) = self.best().unwrap_or((1.0, self.space.default.clone()));
            if !more || cut_short {
                return if cut_short { Err(Halt::Budget) } else { Ok(()) };
            }
            if self.roof_reached(bench) {
                return Ok(());
            }
            let gained = now < best * (1.0 - bench.task.policy.margin);
            self.sort_by_distance_to(&center);
            if large && !gained && !self.untried_neighbours(&center) {
                return Ok(());
            }
            best = best.min(now);
        }
    }

    /// The rest of the rounds for those still in.
    fn survivors(&mut self, bench: &mut Bench<'_, '_>) -> Result<(), Halt> {
        for round in 2..bench.task.policy.search_rounds {
            if self.live().is_empty() || self.roof_reached(bench) {
                break;
            }
            self.round(bench, round)?;
            self.eliminate(bench);
        }
        Ok(())
    }

    fn live(&self) -> Vec<usize> {
        self.order.iter().copied().filter(|&i| self.entries[i].state == State::Live).collect()
    }

    /// The next candidates to admit: near the best so far, and in the first wave of a large space also spread over it.
    fn next_wave(&self, size: usize) -> Vec<usize> {
        let left: Vec<usize> =
            self.order.iter().copied().filter(|&i| self.entries[i].state == State::Untried).collect();
        if left.len() <= size || left.len() < self.entries.len() {
            return left.into_iter().take(size).collect();
        }
        let near = size / 2;
        let far = &left[near..];
        let spread = (0..size - near).map(|k| far[k * far.len() / (size - near)]);
        left[..near].iter().copied().chain(spread).collect()
    }

    fn untried_neighbours(&self, center: &Config) -> bool {
        let is_near = |e: &Entry| e.state == State::Untried && distance(&self.space, &e.config, center).0 <= 1;
        self.entries.iter().any(is_near)
    }

    /// Admits `wave`; true when time ran short, leaving enough for two rounds of what was admitted.
    fn admit_all(&mut self, bench: &mut Bench<'_, '_>, wave: &[usize]) -> Result<bool, Halt> {
        for (done, &i) in wave.iter().enumerate() {
            let rounds = u32::try_from(3 * bench.points.len() * (self.live().len() + 2)).unwrap_or(u32::MAX);
            let reserve = bench.sample_cost.saturating_mul(rounds);
            match self.proof_within(bench, i, reserve) {
                Ok(admitted) => {
                    self.entries[i].state = State::Live;
                    let (config, error_over_bound) = (admitted.config().clone(), admitted.error_over_bound());
                    bench.emit(&Event::Admitted { config, error_over_bound });
                }
                Err(Miss::Refused(rejection)) => {
                    self.refuse(bench, i, rejection);
                    self.doubt()?;
                }
                Err(Miss::Halt(Halt::Budget)) => return Ok(true),
                Err(Miss::Halt(halt)) => return Err(halt),
            }
            let rest = u32::try_from(wave.len() - done).unwrap_or(u32::MAX);
            bench.progress(self.admit_cost.saturating_mul(rest) + reserve.saturating_mul(2));
        }
        Ok(false)
    }

    /// The candidate's admission, made now if this process has none yet.
    fn proof(&mut self, bench: &mut Bench<'_, '_>, i: usize) -> Result<Admitted, Miss> {
        self.proof_within(bench, i, Duration::ZERO)
    }

    fn proof_within(&mut self, bench: &mut Bench<'_, '_>, i: usize, reserve: Duration) -> Result<Admitted, Miss> {
        if let Some(admitted) = &self.entries[i].admitted {
            return Ok(admitted.clone());
        }
        let before = bench.task.budget.spent();
        let admitted = bench.admit(&self.entries[i].config, self.admit_cost + reserve)?;
        self.admit_cost = self.admit_cost.max(bench.task.budget.spent() - before);
        assert_eq!(*admitted.config(), self.entries[i].config, "admit must answer for the config it was asked about");
        self.entries[i].admitted = Some(admitted.clone());
        Ok(admitted)
    }

    fn refuse(&mut self, bench: &mut Bench<'_, '_>, i: usize, rejection: Rejection) {
        let e = &mut self.entries[i];
        e.state = if matches!(rejection, Rejection::Slow(_)) { State::Dropped } else { State::Refused };
        self.rejected.push((e.config.clone(), rejection.clone()));
        bench.emit(&Event::Rejected { config: e.config.clone(), rejection });
    }

    /// Stops where so many candidates are wrong that it is rather the reference, or the default that it agrees with.
    fn doubt(&self) -> Result<(), Halt> {
        let wrong = self.rejected.iter().filter(|(_, r)| matches!(r, Rejection::Wrong(_))).count();
        let right = self.entries.iter().filter(|e| e.admitted.is_some()).count();
        let most = self.entries.len() * (FLOOD_SHARE - 1) / FLOOD_SHARE;
        let flood = FLOOD.min(most.max(FLOOD_LEAST));
        if wrong < flood || wrong * FLOOD_SHARE < (wrong + right) * (FLOOD_SHARE - 1) {
            return Ok(());
        }
        let last = self.rejected.iter().rev().find(|(_, r)| matches!(r, Rejection::Wrong(_)));
        let last = last.map(|(config, r)| format!("; the last is ({config}): {r}")).unwrap_or_default();
        let tried = wrong + right;
        let message = format!("{wrong} of {tried} candidates give wrong results: the reference may be wrong{last}");
        Err(Halt::Fatal(
            Error::new(message).hint("run the op's tests; the default, which the reference agrees with, stays"),
        ))
    }

    /// Brings every live candidate to `round + 1` rounds, in blocks between anchors; odd rounds go backwards.
    fn round(&mut self, bench: &mut Bench<'_, '_>, round: usize) -> Result<(), Halt> {
        let mut ids: Vec<usize> = self.live().into_iter().filter(|&i| self.entries[i].rounds() <= round).collect();
        if round % 2 == 1 {
            ids.reverse();
        }
        let blocks: Vec<&[usize]> = ids.chunks(bench.task.policy.block.max(1)).collect();
        for (done, ids) in blocks.iter().enumerate() {
            self.block(bench, ids)?;
            let samples = (blocks.len() - done) * ids.len() * bench.points.len();
            bench.progress(bench.sample_cost.saturating_mul(u32::try_from(samples).unwrap_or(u32::MAX)));
        }
        Ok(())
    }

    /// Times `ids` once each between two anchors; taken back and repeated while the anchors say the machine drifted.
    fn block(&mut self, bench: &mut Bench<'_, '_>, ids: &[usize]) -> Result<(), Halt> {
        for attempt in 0..=bench.task.policy.drift_retries {
            let before = bench.anchor()?;
            let marks: Vec<Vec<usize>> = ids.iter().map(|&i| self.lengths(i)).collect();
            for &i in ids {
                self.time_all_points(bench, i, &before)?;
            }
            let after = bench.anchor()?;
            let within = Bench::change(&after, &before);
            let from_base = bench.change_from_baseline(&after);
            let limit = bench.drift_limit();
            let last = attempt == bench.task.policy.drift_retries;
            if within.abs() <= limit && (from_base.abs() <= limit || last) {
                if from_base.abs() > limit {
                    // It stays at the new level: ratios to the default are as good there.
                    bench.adopt(&after);
                }
                bench.accept_anchor(&before);
                bench.accept_anchor(&after);
                self.refine(ids, &marks, &before, &after);
                return Ok(());
            }
            let discarded = self.take_back(ids, &marks);
            let change = if within.abs() > limit { within } else { from_base };
            bench.cool(change, discarded, attempt)?;
        }
        Ok(())
    }

    fn lengths(&self, i: usize) -> Vec<usize> {
        self.entries[i].rel.iter().map(Vec::len).collect()
    }

    fn time_all_points(&mut self, bench: &mut Bench<'_, '_>, i: usize, anchor: &[f64]) -> Result<(), Halt> {
        for (p, base) in anchor.iter().enumerate() {
            if self.entries[i].state != State::Live {
                return Ok(());
            }
            match self.time_point(bench, i, p, *base) {
                Ok(()) => {}
                Err(Miss::Halt(halt)) => return Err(halt),
                Err(Miss::Refused(rejection)) => self.refuse(bench, i, rejection),
            }
        }
        Ok(())
    }

    fn time_point(&mut self, bench: &mut Bench<'_, '_>, i: usize, p: usize, base: f64) -> Result<(), Miss> {
        let admitted = self.proof(bench, i)?;
        let mut sample = bench.time(&admitted, p)?;
        if sample.ns > HOPELESS * base {
            let again = bench.time(&admitted, p)?;
            if again.ns > HOPELESS * bench.time_default(p)?.max(base) {
                return Err(Miss::Refused(Rejection::Slow(again.ns)));
            }
            sample = again;
        }
        let ratio = sample.ns / base;
        self.entries[i].ns[p].push(sample.ns);
        self.entries[i].rel[p].push(ratio);
        let config = admitted.config().clone();
        bench.emit(&Event::Measured { config, point: bench.points[p], ns: sample.ns, reps: sample.reps, ratio });
        Ok(())
    }

    /// Judges the block's times by both anchors instead of the first alone.
    fn refine(&mut self, ids: &[usize], marks: &[Vec<usize>], before: &[f64], after: &[f64]) {
        for (&i, mark) in ids.iter().zip(marks) {
            for (p, &from) in mark.iter().enumerate() {
                let shift = (before[p] / after[p]).sqrt();
                self.entries[i].rel[p][from..].iter_mut().for_each(|r| *r *= shift);
            }
        }
    }

    fn take_back(&mut self, ids: &[usize], marks: &[Vec<usize>]) -> usize {
        let mut discarded = 0;
        for (&i, mark) in ids.iter().zip(marks) {
            for (p, &from) in mark.iter().enumerate() {
                discarded += self.entries[i].rel[p].len() - from;
                self.entries[i].rel[p].truncate(from);
                self.entries[i].ns[p].truncate(from);
            }
        }
        discarded
    }

    /// Drops whoever is too far behind the best, or behind the default at some point.
    fn eliminate(&mut self, bench: &mut Bench<'_, '_>) {
        // A candidate that loses to the default somewhere cannot be promoted, so it sets no mark for others.
        let sound = self.live().into_iter().filter(|&i| self.entries[i].worst_point(harsh) <= 1.0);
        let best = sound.filter_map(|i| self.entries[i].pessimistic()).fold(1.0, f64::min);
        let policy = bench.task.policy.clone();
        let late = (policy.drop_gap / 4.0).max(3.0 * bench.noise());
        for i in self.live() {
            let e = &self.entries[i];
            let Some(mine) = e.optimistic() else { continue };
            let gap = if e.rounds() >= 4 { late } else { policy.drop_gap };
            if e.rounds() >= 2 && (mine > best * (1.0 + gap) || e.worst_point(kind) > 1.0 + gap) {
                let slowest = e.ns.iter().filter_map(|ns| median(ns)).fold(0.0, f64::max);
                self.refuse(bench, i, Rejection::Slow(slowest));
            }
        }
        let mut ranked: Vec<usize> = self.live().into_iter().filter(|&i| self.entries[i].rounds() >= 2).collect();
        ranked.sort_by(|&a, &b| self.by_estimate(a, b));
        for &i in ranked.iter().skip(SURVIVORS) {
            let slowest = self.entries[i].ns.iter().filter_map(|ns| median(ns)).fold(0.0, f64::max);
            self.refuse(bench, i, Rejection::Slow(slowest));
        }
    }

    fn by_estimate(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let estimate = |i: usize| self.entries[i].estimate().unwrap_or(f64::INFINITY);
        estimate(a).total_cmp(&estimate(b)).then(a.cmp(&b))
    }

    /// The fastest live candidate, if it is faster than the default.
    fn best(&self) -> Option<(f64, Config)> {
        let i = self.live().into_iter().min_by(|&a, &b| self.by_estimate(a, b))?;
        let estimate = self.entries[i].estimate()?;
        (estimate < 1.0).then(|| (estimate, self.entries[i].config.clone()))
    }

    fn roof_reached(&self, bench: &Bench<'_, '_>) -> bool {
        let reached = |i: usize| {
            let e = &self.entries[i];
            let ns: Vec<f64> = e.ns.iter().filter_map(|ns| median(ns)).collect();
            e.rounds() >= 2 && bench.at_roof(&ns, bench.task.policy.roof)
        };
        self.live().into_iter().any(reached)
    }

    /// Who is re-timed, in the fixed order: the fastest, then those tied with it, then the next fastest.
    ///
    /// Whoever loses to the default somewhere cannot be promoted, so it is left out.
    fn finalists(&self, bench: &Bench<'_, '_>) -> Vec<usize> {
        let (most, tie) = (bench.task.policy.finalists, bench.task.policy.margin);
        let faster = |i: &usize| {
            let e = &self.entries[*i];
            e.estimate().is_some_and(|e| e < 1.0) && e.worst_point(middle) <= 1.0 + bench.noise()
        };
        let mut ranked: Vec<usize> = self.live().into_iter().filter(faster).collect();
        ranked.sort_by(|&a, &b| self.by_estimate(a, b));
        let Some(&first) = ranked.first() else { return Vec::new() };
        let bound = self.entries[first].estimate().map_or(0.0, |e| e * (1.0 + tie));
        let is_tied = |i: &usize| self.entries[*i].estimate().is_some_and(|e| e <= bound);
        let mut tied: Vec<usize> = ranked.iter().copied().filter(is_tied).collect();
        tied.sort_unstable();
        let mut seen = HashSet::new();
        let wanted = std::iter::once(first).chain(tied).chain(ranked);
        let mut picks: Vec<usize> = wanted.filter(|i| seen.insert(*i)).take(most).collect();
        picks.sort_unstable();
        picks
    }

    /// Whether any candidate was compared with the default by time.
    fn compared(&self) -> bool {
        self.entries.iter().any(|e| matches!(e.state, State::Live | State::Dropped))
    }

    fn nothing_to_judge(&self, drifts: u32) -> Judged {
        let timed = self.entries.iter().any(|e| e.rounds() > 0);
        let nobody_left = self.entries.iter().all(|e| matches!(e.state, State::Refused | State::Dropped));
        if self.finished || timed || nobody_left {
            let untimed_live = self.entries.iter().any(|e| e.state == State::Live && e.rounds() == 0);
            if !untimed_live {
                return Judged { choice: None, verdict: Verdict::KeptDefault, finals: Vec::new(), halt: None };
            }
            // None of those that were timed beats the default; the others may.
            let why = match drifts {
                0 => {
                    "budget spent before every admitted candidate was timed, and none that was timed beats the default"
                }
                _ => "the machine drifts too much to time anything",
            };
            return undecided(why, None);
        }
        undecided("budget spent before any candidate was timed", Some(Halt::Budget))
    }

    fn back_from_finals(&mut self, f: Finalist) {
        let Some(e) = self.entries.iter_mut().find(|e| e.config == *f.admitted.config()) else { return };
        for (mine, theirs) in e.ns.iter_mut().zip(&f.ns) {
            mine.extend_from_slice(theirs);
        }
        for (rel, logs) in e.rel.iter_mut().zip(&f.logs) {
            rel.extend(logs.iter().map(|l| (-l).exp()));
        }
        if let Some(rejection) = f.refused {
            e.state = State::Refused;
            self.rejected.push((e.config.clone(), rejection));
        }
    }

    fn outcome(mut self, bench: Bench<'_, '_>, judged: Judged) -> Outcome {
        let default = bench.default.config().clone();
        let ranking = self.ranking(&bench.default, &bench.anchors_ns);
        let in_state = |s: State| self.entries.iter().filter(|e| e.state == s).count();
        self.counts.untried = in_state(State::Untried);
        self.counts.dropped = in_state(State::Dropped);
        self.counts.admitted = 1 + self.entries.iter().filter(|e| e.admitted.is_some()).count();
        self.counts.timed = ranking.len();
        for (_, r) in self.rejected.iter().filter(|(_, r)| !matches!(r, Rejection::Slow(_))) {
            *self.counts.rejected.entry(r.kind().to_owned()).or_insert(0) += 1;
        }
        Outcome {
            choice: judged.choice.unwrap_or_else(|| default.clone()),
            default,
            verdict: judged.verdict,
            ranking,
            finals: judged.finals,
            rejected: self.rejected,
            floor_ns: bench.floor_ns.clone(),
            counts: self.counts,
            samples: bench.samples,
            noise: bench.noise(),
            drifts: bench.drifts,
            discarded: bench.discarded,
            anchors: bench.trail,
            spent_s: bench.task.budget.spent().as_secs_f64(),
            budget_s: Some(bench.task.budget.limit().as_secs_f64()),
            partial: judged.halt.is_some() || !self.finished,
            policy: bench.task.policy,
        }
    }

    fn ranking(&self, default: &Admitted, anchors_ns: &[Vec<f64>]) -> Vec<Ranked> {
        let mut ranking: Vec<Ranked> = Vec::new();
        if anchors_ns.iter().all(|a| !a.is_empty()) {
            let times = anchors_ns.iter().map(|a| times(a, &[])).collect();
            let error_over_bound = Some(default.error_over_bound());
            ranking.push(Ranked { config: default.config().clone(), speedup: 1.0, times, error_over_bound });
        }
        for e in &self.entries {
            if let Some(estimate) = e.estimate() {
                let times = e.ns.iter().zip(&e.rel).map(|(ns, rel)| times(ns, rel)).collect();
                let error_over_bound = e.admitted.as_ref().map(Admitted::error_over_bound);
                let (config, speedup) = (e.config.clone(), 1.0 / estimate);
                ranking.push(Ranked { config, speedup, times, error_over_bound });
            }
        }
        ranking.sort_by(|a, b| b.speedup.total_cmp(&a.speedup));
        ranking
    }
}

fn times(ns: &[f64], rel: &[f64]) -> Times {
    let (median_ns, spread_ns) = (median(ns).unwrap_or(0.0), spread(ns).unwrap_or(0.0));
    Times { samples_ns: ns.to_vec(), median_ns, spread_ns, speedups: rel.iter().map(|r| 1.0 / r).collect() }
}

/// How far `a` is from `b`: parameters that differ, then steps between their values.
fn distance(space: &Space, a: &Config, b: &Config) -> (usize, usize) {
    let mut d = (0, 0);
    for p in &space.params {
        if a.get(p.name) != b.get(p.name) {
            let at = |c: &Config| p.values.iter().position(|v| Some(v) == c.get(p.name)).unwrap_or(0);
            d = (d.0 + 1, d.1 + at(a).abs_diff(at(b)));
        }
    }
    d
}
