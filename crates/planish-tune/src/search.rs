//! Tuning one subject: list, admit in waves, time in interleaved rounds with elimination, then hand over to the finals.

use std::collections::HashSet;
use std::time::Duration;

use crate::config::Config;
use crate::distort::Distorted;
use crate::entry::{Entry, State, harsh, kind, middle};
use crate::error::Error;
use crate::event::{Event, Resume};
use crate::finals::{Finalist, Judged, judge};
use crate::guard::Tuning;
use crate::listing::{Listed, Scale, number_at, places};
use crate::measure::{Bench, Halt, Miss, Task, default_failed};
use crate::model::Axis;
use crate::outcome::{Counts, Outcome, Ranked, Times, Verdict};
use crate::policy::Timings;
use crate::space::Space;
use crate::stats::median;
use crate::subject::{Admitted, Rejection, Subject};

/// Candidates that stay in however far behind the best they are.
const SPARE: usize = 3;

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
    let mut search = Search::list(subject.space(), subject.points().len());
    let (mut bench, cost) = open(subject, task, &search)?;
    search.admit_cost = cost;
    let resume = std::mem::take(&mut bench.task.resume);
    search.take_in(&resume);
    search.order_by_risk(&*bench.subject);
    let judged = run(&mut bench, &mut search, &resume)?;
    let outcome = search.outcome(bench, judged);
    Ok(outcome)
}

/// Admits the default; also what that cost. Whoever listens knows the size of the search and its end before that.
pub(crate) fn open<'a, 's>(
    subject: &'s mut dyn Subject,
    task: Task<'a>,
    search: &Search,
) -> Result<(Bench<'a, 's>, Duration), Error> {
    let default = subject.space().default.clone();
    let (candidates, legal) = (search.counts.candidates, search.legal());
    task.observer.event(&Event::Listed { candidates, legal });
    let (start, left) = (task.budget.spent(), task.budget.left());
    task.observer.event(&Event::Progress { spent_s: start.as_secs_f64(), left_s: left.as_secs_f64() });
    let admitted = match subject.admit(&default) {
        Ok(admitted) => admitted,
        Err(r) => return Err(subject.broken().unwrap_or_else(|| default_failed(&default, &r))),
    };
    let mut cost = task.budget.spent() - start;
    if cost > task.budget.limit() / 20 {
        // Inputs, references and what compilers keep were made for the first admission alone; others cost what a second does.
        let start = task.budget.spent();
        subject.admit(&default).map_err(|r| default_failed(&default, &r))?;
        cost = task.budget.spent() - start;
    }
    Ok((Bench::new(subject, task, admitted), cost))
}

/// Warm-up, search and finals; the only errors are fatal ones.
fn run(bench: &mut Bench<'_, '_>, search: &mut Search, resume: &Resume) -> Result<Judged, Error> {
    let stopped = match search_phase(bench, search, resume.searched) {
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

/// Waves and rounds, within the search's part of the time; `searched` leaves out the waves.
fn search_phase(bench: &mut Bench<'_, '_>, search: &mut Search, searched: bool) -> Result<(), Halt> {
    let share = 1.0 - bench.task.policy.finals_share;
    bench.phase_end = bench.task.budget.limit().mul_f64(share);
    bench.warm()?;
    let default_ns: Vec<f64> = bench.anchors_ns.iter().filter_map(|a| median(a)).collect();
    if bench.at_roof(&default_ns, bench.task.policy.margin) {
        search.finished = true;
        return Ok(());
    }
    search.foretell(bench);
    if searched {
        search.compare(bench)?;
    } else {
        search.waves(bench)?;
    }
    search.survivors(bench)?;
    let tried = search.legal() - search.in_state(State::Untried).len();
    bench.emit(&Event::Searched { tried });
    search.finished = true;
    Ok(())
}

fn final_phase(bench: &mut Bench<'_, '_>, search: &mut Search, resume: &Resume) -> Result<Judged, Error> {
    bench.phase_end = bench.task.budget.limit();
    if bench.anchors_ns[0].is_empty() {
        return Ok(undecided("budget spent before the default was timed", Some(Halt::Budget)));
    }
    let picks = search.finalists_of(resume).unwrap_or_else(|| search.finalists(bench));
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
    bench.finals_before = resume.finals_before_those_of(&configs);
    bench.emit(&Event::Finalists { configs: configs.clone() });
    bench.finals_begin();
    if resume.finalists == configs {
        take_in_pairs(&mut finalists, resume);
    }
    for f in &finalists {
        for round in 0..f.logs[0].len() {
            let speedups = f.logs.iter().map(|logs| logs[round].exp()).collect();
            bench.emit(&Event::Paired { config: f.admitted.config().clone(), speedups, ends_round: true });
        }
    }
    let judged = judge(bench, &mut finalists);
    for f in finalists {
        search.back_from_finals(f);
    }
    Ok(judged)
}

/// Uses the pairs that an earlier run with the same finalists took.
fn take_in_pairs(finalists: &mut [Finalist], resume: &Resume) {
    for f in finalists {
        let points = f.logs.len();
        let mine = resume.paired.iter().filter(|(c, s)| c == f.admitted.config() && s.len() == points);
        for (_, speedups) in mine {
            for (logs, speedup) in f.logs.iter_mut().zip(speedups) {
                logs.push(speedup.ln());
            }
        }
    }
}

pub(crate) struct Search {
    space: Space,
    points: usize,
    /// How the values of each parameter lie.
    pub scales: Vec<Scale>,
    /// The default's values on them.
    pub default_at: Vec<usize>,
    /// In the order of `Space::candidates`: the fixed order that ties go by; what a sample grew by is behind.
    pub entries: Vec<Entry>,
    /// Positions in `entries`, least risky first, then nearest to the default.
    order: Vec<usize>,
    /// Whether the entries are a sample of the legal candidates.
    pub sampled: bool,
    pub rejected: Vec<(Config, Rejection)>,
    counts: Counts,
    pub admit_cost: Duration,
    finished: bool,
}

impl Search {
    /// Lists the space, or a sample of a huge one, and prunes it by named constraints.
    pub fn list(space: &Space, points: usize) -> Self {
        let listed = Listed::of(space);
        let candidates = 1 + listed.legal.len() + listed.forbidden_count;
        let unlisted = space.size().saturating_sub(candidates as u128);
        let unlisted = if listed.sampled { u64::try_from(unlisted).unwrap_or(u64::MAX) } else { 0 };
        let mut counts = Counts { candidates, unlisted, ..Counts::default() };
        if listed.forbidden.len() < listed.forbidden_count {
            counts.rejected.insert("constraint".to_owned(), listed.forbidden_count);
        }
        let rejected = listed.forbidden.into_iter().map(|(config, name)| (config, Rejection::Constraint(name)));
        let entries: Vec<Entry> = listed.legal.into_iter().map(Entry::new).collect();
        let scales: Vec<Scale> = space.params.iter().map(Scale::of).collect();
        let number = space.number(&space.default).expect("the default is a combination of its space's values");
        Search {
            space: space.clone(),
            points,
            default_at: places(&scales, number),
            scales,
            order: (0..entries.len()).collect(),
            entries,
            sampled: listed.sampled,
            rejected: rejected.collect(),
            counts,
            admit_cost: Duration::ZERO,
            finished: false,
        }
    }

    /// Makes the default a candidate like the others, the first of them.
    pub fn with_default(mut self) -> Self {
        self.entries.insert(0, Entry::new(number_at(&self.scales, &self.default_at)));
        self.order = (0..self.entries.len()).collect();
        self
    }

    /// Whether every combination is an entry, or among the rejected with the constraint that forbids it.
    pub fn names_all(&self) -> bool {
        !self.sampled && self.counts.rejected.is_empty()
    }

    pub fn config(&self, i: usize) -> Config {
        self.space.combination(self.entries[i].number)
    }

    /// Places of the entry's values on the scales.
    pub fn at(&self, i: usize) -> Vec<usize> {
        places(&self.scales, self.entries[i].number)
    }

    /// The entry of `config`.
    fn entry(&self, config: &Config) -> Option<usize> {
        let number = self.space.number(config)?;
        self.entries.iter().position(|e| e.number == number)
    }

    /// The entry of `config`, which a sample grows by where it is legal.
    fn entry_or_more(&mut self, config: &Config) -> Option<usize> {
        let known = self.entry(config);
        if known.is_some() || !self.sampled || *config == self.space.default || self.space.violated(config).is_some() {
            return known;
        }
        self.entries.push(Entry::new(self.space.number(config)?));
        self.counts.candidates += 1;
        self.counts.unlisted = self.counts.unlisted.saturating_sub(1);
        Some(self.entries.len() - 1)
    }

    /// Lets a sample grow by the combinations at `centers` and their neighbours, where those are legal.
    pub fn grow(&mut self, subject: &dyn Subject, centers: &[Vec<usize>]) {
        let before = self.entries.len();
        for center in centers {
            for at in self.around(center) {
                self.entry_or_more(&self.space.combination(number_at(&self.scales, &at)));
            }
        }
        for i in before..self.entries.len() {
            self.entries[i].risk = subject.risk(&self.config(i));
        }
        if self.entries.len() > before {
            self.sort();
        }
    }

    /// `center`, and whatever differs from it in one value, by one rank where it is a size.
    fn around(&self, center: &[usize]) -> Vec<Vec<usize>> {
        let mut all = vec![center.to_vec()];
        for (p, scale) in self.scales.iter().enumerate() {
            let near = |at: &usize| *at != center[p] && (scale.axis == Axis::Names || at.abs_diff(center[p]) == 1);
            for place in (0..scale.len()).filter(near) {
                let mut at = center.to_vec();
                at[p] = place;
                all.push(at);
            }
        }
        all
    }

    /// Tells when the whole run will end, about: as many candidates as are planned, each with half of the rounds, and
    /// finals of as many as may take part.
    fn foretell(&self, bench: &mut Bench<'_, '_>) {
        let policy = bench.task.policy.clone();
        let planned = self.planned(&policy);
        let searched = planned * (2 + policy.search_rounds / 2);
        let paired = (policy.finalists.min(planned) + 2) * policy.looks.last().copied().unwrap_or(0) / 4;
        let times = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let timing = bench.sample_cost.saturating_mul(times((searched + paired) * bench.points.len()));
        bench.progress(self.admit_cost.saturating_mul(times(planned)) + timing);
    }

    /// Legal configurations, the default included.
    pub fn legal(&self) -> usize {
        let default = number_at(&self.scales, &self.default_at);
        self.entries.len() + usize::from(self.entries.first().is_none_or(|e| e.number != default))
    }

    fn order_by_risk(&mut self, subject: &dyn Subject) {
        for i in 0..self.entries.len() {
            self.entries[i].risk = subject.risk(&self.config(i));
        }
        self.sort();
    }

    fn sort(&mut self) {
        let steps = |at: &[usize]| at.iter().zip(&self.default_at).map(|(a, b)| a.abs_diff(*b)).collect::<Vec<_>>();
        let far = |at: &[usize]| (steps(at).iter().filter(|d| **d > 0).count(), steps(at).iter().sum::<usize>());
        let keys: Vec<_> = (0..self.entries.len()).map(|i| (self.entries[i].risk, far(&self.at(i)))).collect();
        self.order = (0..keys.len()).collect();
        self.order.sort_by_key(|&i| (keys[i], i));
    }

    /// Takes in what an earlier run knows.
    fn take_in(&mut self, resume: &Resume) {
        for (config, rejection) in &resume.rejected {
            let place = self.entry_or_more(config).filter(|&i| self.entries[i].state == State::Untried);
            if let Some(e) = place.map(|i| &mut self.entries[i]) {
                let slow = matches!(rejection, Rejection::Slow(_));
                e.state = if slow { State::Dropped } else { State::Refused };
                self.rejected.push((config.clone(), rejection.clone()));
            }
        }
        for (config, point, ns, ratio) in &resume.measured {
            let p = point.0 as usize;
            let usable = ns.is_finite() && *ns > 0.0 && ratio.is_finite() && *ratio > 0.0;
            if let Some(i) = self.entry_or_more(config).filter(|_| p < self.points && usable) {
                self.push(i, p, (*ns, *ratio));
            }
        }
        for e in self.entries.iter_mut().filter(|e| e.state == State::Untried && e.rounds() > 0) {
            e.state = State::Live;
        }
    }

    /// Notes a time of entry `i` at point `p`, and the same over the default's.
    fn push(&mut self, i: usize, p: usize, (ns, ratio): (f64, f64)) {
        let e = &mut self.entries[i];
        e.make_room(self.points);
        e.ns[p].push(ns);
        e.rel[p].push(ratio);
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
        self.in_state(State::Live)
    }

    /// Entries in this state, least risky first.
    pub fn in_state(&self, state: State) -> Vec<usize> {
        self.order.iter().copied().filter(|&i| self.entries[i].state == state).collect()
    }

    /// Admits `wave`; true when time ran short, leaving enough for two rounds of what was admitted.
    pub fn admit_all(&mut self, bench: &mut Bench<'_, '_>, wave: &[usize]) -> Result<bool, Halt> {
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
        let config = self.config(i);
        let admitted = bench.admit(&config, self.admit_cost + reserve)?;
        self.admit_cost = self.admit_cost.max(bench.task.budget.spent() - before);
        assert_eq!(*admitted.config(), config, "admit must answer for the config it was asked about");
        self.entries[i].admitted = Some(admitted.clone());
        Ok(admitted)
    }

    fn refuse(&mut self, bench: &mut Bench<'_, '_>, i: usize, rejection: Rejection) {
        let (config, e) = (self.config(i), &mut self.entries[i]);
        e.state = if matches!(rejection, Rejection::Slow(_)) { State::Dropped } else { State::Refused };
        self.rejected.push((config.clone(), rejection.clone()));
        bench.emit(&Event::Rejected { config, rejection });
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
    pub fn round(&mut self, bench: &mut Bench<'_, '_>, round: usize) -> Result<(), Halt> {
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
        ids.iter().for_each(|&i| self.entries[i].make_room(self.points));
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
        let hopeless = bench.task.policy.hopeless;
        if sample.ns > hopeless * base {
            let again = bench.time(&admitted, p)?;
            if again.ns > hopeless * bench.time_default(p)?.max(base) {
                return Err(Miss::Refused(Rejection::Slow(again.ns)));
            }
            sample = again;
        }
        let ratio = sample.ns / base;
        self.push(i, p, (sample.ns, ratio));
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
    pub fn eliminate(&mut self, bench: &mut Bench<'_, '_>) {
        // A candidate that loses to the default somewhere cannot be promoted, so it sets no mark for others.
        let sound = self.live().into_iter().filter(|&i| self.entries[i].worst_point(harsh) <= 1.0);
        let best = sound.filter_map(|i| self.entries[i].pessimistic()).fold(1.0, f64::min);
        let policy = bench.task.policy.clone();
        let late = (policy.drop_gap / 4.0).max(3.0 * bench.noise());
        // The best may yet be refused, so some that are behind it and ahead of the default stay.
        let mut spare: Vec<usize> = self.live();
        spare.sort_by(|&a, &b| self.by_estimate(a, b));
        spare.truncate(SPARE);
        for i in self.live() {
            let e = &self.entries[i];
            let Some(mine) = e.optimistic() else { continue };
            let gap = if e.rounds() >= 4 { late } else { policy.drop_gap };
            let behind = mine > best * (1.0 + gap) && (mine > 1.0 || !spare.contains(&i));
            if e.rounds() >= 2 && (behind || e.worst_point(kind) > 1.0 + gap) {
                let slowest = e.ns.iter().filter_map(|ns| median(ns)).fold(0.0, f64::max);
                self.refuse(bench, i, Rejection::Slow(slowest));
            }
        }
        let mut ranked: Vec<usize> = self.live().into_iter().filter(|&i| self.entries[i].rounds() >= 2).collect();
        ranked.sort_by(|&a, &b| self.by_estimate(a, b));
        for &i in ranked.iter().skip(policy.survivors) {
            let slowest = self.entries[i].ns.iter().filter_map(|ns| median(ns)).fold(0.0, f64::max);
            self.refuse(bench, i, Rejection::Slow(slowest));
        }
    }

    fn by_estimate(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let estimate = |i: usize| self.entries[i].estimate().unwrap_or(f64::INFINITY);
        estimate(a).total_cmp(&estimate(b)).then(a.cmp(&b))
    }

    /// The fastest live candidate's estimate and position, if it is faster than the default.
    pub fn best(&self) -> Option<(f64, usize)> {
        let i = self.live().into_iter().min_by(|&a, &b| self.by_estimate(a, b))?;
        let estimate = self.entries[i].estimate()?;
        (estimate < 1.0).then_some((estimate, i))
    }

    pub fn roof_reached(&self, bench: &mut Bench<'_, '_>) -> bool {
        let within = bench.task.policy.roof;
        self.live().into_iter().any(|i| {
            let e = &self.entries[i];
            let ns: Vec<f64> = e.ns.iter().filter_map(|ns| median(ns)).collect();
            e.rounds() >= 2 && bench.at_roof(&ns, within)
        })
    }

    /// The finalists of an earlier run, when its search had ended and they are all still in.
    fn finalists_of(&self, resume: &Resume) -> Option<Vec<usize>> {
        let of = |c: &Config| self.entry(c).filter(|&i| self.entries[i].state == State::Live);
        let mut picks = resume.finalists.iter().map(of).collect::<Option<Vec<usize>>>()?;
        picks.sort_unstable();
        (resume.searched && !picks.is_empty()).then_some(picks)
    }

    /// Who is re-timed, in the fixed order: half of the places go to the fastest, the others to the first in order of
    /// those that may be as fast, and of the rest only so many that three take part.
    ///
    /// Whoever loses to the default somewhere cannot be promoted, so it is left out.
    /// There are no more than can be judged in the time that is left.
    fn finalists(&self, bench: &Bench<'_, '_>) -> Vec<usize> {
        let policy = &bench.task.policy;
        let faster = |i: &usize| {
            let e = &self.entries[*i];
            e.estimate().is_some_and(|e| e < 1.0) && e.worst_point(middle) <= 1.0 + bench.noise()
        };
        let mut ranked: Vec<usize> = self.live().into_iter().filter(faster).collect();
        ranked.sort_by(|&a, &b| self.by_estimate(a, b));
        let Some(&first) = ranked.first() else { return Vec::new() };
        let most = bench.finalists_affordable().min(policy.finalists);
        let rounds = self.entries[first].rounds().max(1) as f64;
        // Deviation of the difference of two medians of `rounds` ratios, each of two times.
        let doubt = 2.5 * bench.noise() / rounds.sqrt();
        let bound = self.entries[first].estimate().map_or(0.0, |e| e * (1.0 + policy.margin + 3.0 * doubt));
        let close = |i: &usize| self.entries[*i].estimate().is_some_and(|e| e <= bound);
        let fastest: Vec<usize> = ranked.iter().copied().filter(close).take(most.div_ceil(2)).collect();
        let mut tied: Vec<usize> = ranked.iter().copied().filter(close).collect();
        tied.sort_unstable();
        let mut seen = HashSet::new();
        let mut picks: Vec<usize> = fastest.into_iter().chain(tied).filter(|i| seen.insert(*i)).take(most).collect();
        let fill = ranked.into_iter().filter(|i| seen.insert(*i));
        picks.extend(fill.take(most.min(3).saturating_sub(picks.len())));
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
        let Some(e) = self.entry(f.admitted.config()).map(|i| &mut self.entries[i]) else { return };
        for (mine, theirs) in e.ns.iter_mut().zip(&f.ns) {
            mine.extend_from_slice(theirs);
        }
        for (rel, logs) in e.rel.iter_mut().zip(&f.logs) {
            rel.extend(logs.iter().map(|l| (-l).exp()));
        }
        if let Some(rejection) = f.refused {
            e.state = State::Refused;
            self.rejected.push((f.admitted.config().clone(), rejection));
        }
    }

    fn outcome(mut self, bench: Bench<'_, '_>, judged: Judged) -> Outcome {
        let ranking = self.ranking(&bench.default, &bench.anchors_ns);
        let in_state = |s: State| self.entries.iter().filter(|e| e.state == s).count();
        self.counts.untried = in_state(State::Untried);
        self.counts.dropped = in_state(State::Dropped);
        self.counts.admitted = 1 + self.entries.iter().filter(|e| e.admitted.is_some()).count();
        self.counts.timed = ranking.len();
        for (_, r) in self.rejected.iter().filter(|(_, r)| !matches!(r, Rejection::Slow(_))) {
            *self.counts.rejected.entry(r.kind().to_owned()).or_insert(0) += 1;
        }
        let partial = judged.halt.is_some() || !self.finished;
        Outcome { rejected: self.rejected, counts: self.counts, partial, ..bench.outcome(judged, ranking) }
    }

    fn ranking(&self, default: &Admitted, anchors_ns: &[Vec<f64>]) -> Vec<Ranked> {
        let mut ranking: Vec<Ranked> = Vec::new();
        if anchors_ns.iter().all(|a| !a.is_empty()) {
            let times = anchors_ns.iter().map(|a| Times::of(a, Vec::new())).collect();
            ranking.push(Ranked::of(default, 1.0, times));
        }
        for (i, e) in self.entries.iter().enumerate() {
            if let Some(estimate) = e.estimate() {
                let times = |(ns, rel): (&Vec<f64>, &Vec<f64>)| Times::of(ns, rel.iter().map(|r| 1.0 / r).collect());
                let times = e.ns.iter().zip(&e.rel).map(times).collect();
                let error_over_bound = e.admitted.as_ref().map(Admitted::error_over_bound);
                let (config, speedup) = (self.config(i), 1.0 / estimate);
                ranking.push(Ranked { config, speedup, times, error_over_bound });
            }
        }
        ranking.sort_by(|a, b| b.speedup.total_cmp(&a.speedup));
        ranking
    }
}
