//! Honest single measurements: budget and cancel checks, confirmation of surprises, anchors, drift and cooling.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::budget::Budget;
use crate::company::Company;
use crate::config::Config;
use crate::error::Error;
use crate::event::{Event, Observer, Resume};
use crate::finals::Judged;
use crate::outcome::{Anchor, Counts, Outcome, Ranked};
use crate::policy::Policy;
use crate::stats::{median, spread};
use crate::subject::{Admitted, Point, Rejection, Sample, Subject};

/// Clock ticks that a batch must last so that the tick is at most 2% of it.
const TICKS_MIN: f64 = 50.0;

/// How often an item may have its floors measured again: what beats them for good is refused without more ado.
const FLOORS_AGAIN: u32 = 4;

/// Change of the default's time, as a log ratio, that is drift on any machine.
const DRIFT_LIMIT_MAX: f64 = 1.0;

/// Most executions in one batch.
const REPS_MAX: u32 = 1 << 20;

/// Everything a tuning run is given besides its subject.
pub struct Task<'a> {
    /// What may be spent; building, gating, warming, timing and cooling all charge it.
    pub budget: Budget<'a>,
    /// Set it to stop after at most one more measurement.
    pub cancel: &'a AtomicBool,
    /// Hears every event as it happens.
    pub observer: &'a mut dyn Observer,
    /// What an interrupted run already knows; `Resume::default()` for a fresh one.
    pub resume: Resume,
    /// The rules.
    pub policy: Policy,
}

/// Runs `run(reps)` with growing `reps` until the batch lasts at least fifty ticks of the clock.
///
/// `run` returns the nanoseconds that the whole batch took; `tick_ns` is the clock's resolution.
/// A batch of a million executions that still does not reach fifty ticks is refused.
pub fn batched(tick_ns: f64, mut run: impl FnMut(u32) -> Result<f64, Rejection>) -> Result<Sample, Rejection> {
    let mut reps = 1u32;
    loop {
        let total = run(reps)?;
        if total >= TICKS_MIN * tick_ns && total > 0.0 {
            return Ok(Sample { ns: total / f64::from(reps), reps });
        }
        if reps >= REPS_MAX {
            return Err(Rejection::TooFast(total / f64::from(reps)));
        }
        let grow = (1.25 * TICKS_MIN * tick_ns / total.max(tick_ns)).clamp(2.0, 64.0);
        reps = ((f64::from(reps) * grow).ceil() as u32).min(REPS_MAX);
    }
}

/// Why nothing more may be measured.
pub(crate) enum Halt {
    /// The cancel flag is set.
    Cancelled,
    /// The budget, or the phase's part of it, is spent.
    Budget,
    /// The subject or its default no longer works.
    Fatal(Error),
}

/// Why one measurement did not come about.
pub(crate) enum Miss {
    Halt(Halt),
    Refused(Rejection),
}

impl From<Halt> for Miss {
    fn from(h: Halt) -> Self {
        Miss::Halt(h)
    }
}

/// A subject with its admitted default on a warmed machine.
pub(crate) struct Bench<'a, 's> {
    pub subject: &'s mut dyn Subject,
    pub task: Task<'a>,
    pub points: Vec<Point>,
    pub floor_ns: Vec<Option<f64>>,
    /// How often a floor may still be measured again.
    floors_again: u32,
    /// Whether the default beat a floor, which is gone since.
    pub roof_beaten: bool,
    /// The default, once it has been admitted.
    pub default: Admitted,
    /// The default's time per point at the current clock level.
    baseline_ns: Vec<f64>,
    /// Every accepted time of the default, per point.
    pub anchors_ns: Vec<Vec<f64>>,
    /// Logarithms of accepted default times over the baseline.
    jitter: Vec<f64>,
    /// The time on the budget at which the present phase ends.
    pub phase_end: Duration,
    /// What the last measurement cost, everything included.
    pub sample_cost: Duration,
    /// When the last measurement ended, on the budget.
    last_end: Option<Duration>,
    pub samples: u64,
    pub drifts: u32,
    /// Measurements taken back.
    pub discarded: u64,
    /// Every anchor, also those that were not accepted.
    pub trail: Vec<Anchor>,
    /// Finals of other candidates in earlier runs that were cut off.
    pub finals_before: u32,
    company: Company,
}

impl<'a, 's> Bench<'a, 's> {
    pub fn new(subject: &'s mut dyn Subject, task: Task<'a>, default: Admitted) -> Self {
        let points = subject.points();
        let floor_ns = points.iter().map(|p| subject.floor(*p).map(|d| d.as_nanos() as f64)).collect();
        let phase_end = task.budget.limit();
        let n = points.len();
        let company = Company::new(subject.usage(), task.resume.by_others);
        Bench {
            subject,
            task,
            points,
            floor_ns,
            floors_again: FLOORS_AGAIN,
            roof_beaten: false,
            default,
            baseline_ns: Vec::new(),
            anchors_ns: vec![Vec::new(); n],
            jitter: Vec::new(),
            phase_end,
            sample_cost: Duration::ZERO,
            last_end: None,
            samples: 0,
            drifts: 0,
            discarded: 0,
            trail: Vec::new(),
            finals_before: 0,
            company,
        }
    }

    /// The level of one look at one finalist.
    pub fn alpha_per_look(&self) -> f64 {
        self.task.policy.alpha_per_look(self.finals_before)
    }

    /// Whether something that costs about `cost` may start now.
    pub fn may(&self, cost: Duration) -> Result<(), Halt> {
        if self.task.cancel.load(Ordering::Relaxed) {
            return Err(Halt::Cancelled);
        }
        if let Some(error) = self.subject.broken() {
            return Err(Halt::Fatal(error));
        }
        let spent = self.task.budget.spent();
        if spent >= self.phase_end || spent + cost > self.phase_end {
            return Err(Halt::Budget);
        }
        Ok(())
    }

    /// The gate for one candidate, charged to the budget, which must afford `cost`.
    pub fn admit(&mut self, config: &Config, cost: Duration) -> Result<Admitted, Miss> {
        self.may(cost)?;
        let result = self.subject.admit(config);
        self.alive()?;
        result.map_err(Miss::Refused)
    }

    /// Share of the processors that other work takes, where it is told; too much of it is told to whoever goes on.
    pub fn by_others(&mut self) -> Option<f64> {
        let share = self.company.share(self.subject.usage())?;
        if share > self.task.policy.others {
            self.emit(&Event::Busy { share });
        }
        Some(share)
    }

    /// The outcome as `judged`, with what is known of the measuring; counts and refusals are for the caller to add.
    pub fn outcome(mut self, judged: Judged, ranking: Vec<Ranked>) -> Outcome {
        let by_others = self.by_others();
        let default = self.default.config().clone();
        Outcome {
            choice: judged.choice.unwrap_or_else(|| default.clone()),
            default,
            verdict: judged.verdict,
            ranking,
            finals: judged.finals,
            rejected: Vec::new(),
            counts: Counts::default(),
            samples: self.samples,
            noise: self.noise(),
            drifts: self.drifts,
            discarded: self.discarded,
            by_others,
            spent_s: self.task.budget.spent().as_secs_f64(),
            budget_s: Some(self.task.budget.limit().as_secs_f64()),
            partial: false,
            floor_ns: self.floor_ns,
            roof_beaten: self.roof_beaten,
            anchors: self.trail,
            policy: self.task.policy,
        }
    }

    /// The finals begin: other work is counted from here, too.
    pub fn finals_begin(&mut self) {
        self.company.finals_begin(self.subject.usage());
        self.by_others();
    }

    /// A second opinion on a winner: not charged beforehand, since without it everything before was for nothing.
    pub fn confirm(&mut self, admitted: &Admitted) -> Result<Admitted, Miss> {
        if self.subject.uses_fewer(admitted.config())
            && let Some(share) = self.by_others().filter(|share| *share > self.task.policy.others)
        {
            return Err(Miss::Refused(Rejection::Busy(share)));
        }
        let result = self.subject.confirm(admitted);
        self.alive()?;
        result.map_err(Miss::Refused)
    }

    /// One believable time at point number `p`, in nanoseconds; a suspiciously fast one is taken thrice, and the floor
    /// that makes it one is measured again.
    pub fn time(&mut self, admitted: &Admitted, p: usize) -> Result<Sample, Miss> {
        let first = self.time_once(admitted, p)?;
        let Some(floor) = self.floor_ns[p] else { return Ok(first) };
        let least = floor * (1.0 - self.task.policy.too_fast);
        if first.ns >= least {
            return Ok(first);
        }
        let again = [first.ns, self.time_once(admitted, p)?.ns, self.time_once(admitted, p)?.ns];
        let ns = median(&again).expect("three numbers");
        if ns < least && ns < self.lower_floor(p, floor) * (1.0 - self.task.policy.too_fast) {
            return Err(Miss::Refused(Rejection::TooFast(ns)));
        }
        Ok(Sample { ns, ..first })
    }

    /// The floor at point number `p`, which is `floor`, or lower where the ceilings prove to be higher.
    fn lower_floor(&mut self, p: usize, floor: f64) -> f64 {
        if self.floors_again == 0 {
            return floor;
        }
        self.floors_again -= 1;
        let again = self.subject.floor_again(self.points[p]).map_or(floor, |d| d.as_nanos() as f64);
        *self.floor_ns[p].insert(again.min(floor))
    }

    fn time_once(&mut self, admitted: &Admitted, p: usize) -> Result<Sample, Miss> {
        self.may(self.sample_cost)?;
        let before = self.task.budget.spent();
        let result = self.subject.time(admitted, self.points[p]);
        let after = self.task.budget.spent();
        (self.sample_cost, self.last_end) = (after - before, Some(after));
        self.samples += 1;
        self.alive()?;
        let believable = |s: &Sample| s.ns * f64::from(s.reps) >= TICKS_MIN * self.subject.tick_ns();
        match result {
            Ok(s) if s.ns.is_finite() && s.ns > 0.0 && s.reps > 0 && !believable(&s) => {
                Err(Miss::Refused(Rejection::TooFast(s.ns)))
            }
            Ok(s) if s.ns.is_finite() && s.ns > 0.0 && s.reps > 0 => Ok(s),
            Ok(s) => Err(Miss::Refused(Rejection::TooFast(if s.ns.is_finite() { s.ns } else { 0.0 }))),
            Err(rejection) => Err(Miss::Refused(rejection)),
        }
    }

    fn alive(&self) -> Result<(), Halt> {
        self.subject.broken().map_or(Ok(()), |e| Err(Halt::Fatal(e)))
    }

    /// One time of the default; it is trusted, so when it beats the floor, the floor is what is wrong.
    pub fn time_default(&mut self, p: usize) -> Result<f64, Halt> {
        let default = self.default.clone();
        loop {
            match self.time(&default, p) {
                Ok(sample) => return Ok(sample.ns),
                Err(Miss::Halt(h)) => return Err(h),
                Err(Miss::Refused(Rejection::TooFast(ns))) if ns > 0.0 && self.floor_ns[p].is_some() => {
                    (self.floor_ns[p], self.roof_beaten) = (None, true);
                }
                Err(Miss::Refused(r)) => return Err(Halt::Fatal(default_failed(default.config(), &r))),
            }
        }
    }

    /// Times the default at every point; a time far from the baseline is taken thrice.
    ///
    /// A machine that has idled is brought back to speed first: it may have lowered its clock meanwhile.
    pub fn anchor(&mut self) -> Result<Vec<f64>, Halt> {
        let idle = Duration::from_millis(self.task.policy.idle_ms);
        if self.last_end.is_some_and(|end| self.task.budget.spent() - end > idle) {
            self.settle(self.task.policy.warm_max / 2)?;
        }
        let limit = self.drift_limit();
        let mut now = Vec::with_capacity(self.points.len());
        for p in 0..self.points.len() {
            let first = self.time_default(p)?;
            let settled = (first / self.baseline_ns[p]).ln().abs() <= limit;
            now.push(if settled {
                first
            } else {
                median(&[first, self.time_default(p)?, self.time_default(p)?]).expect("three numbers")
            });
        }
        self.note_anchor(&now, false);
        Ok(now)
    }

    fn note_anchor(&mut self, ns: &[f64], kept: bool) {
        let at_s = self.task.budget.spent().as_secs_f64();
        self.trail.push(Anchor { at_s, ns: ns.to_vec(), kept });
    }

    /// Takes the default's times into the evidence and the noise estimate.
    pub fn accept_anchor(&mut self, anchor: &[f64]) {
        // Those of the warm-up are accepted without having been taken as anchors.
        match self.trail.iter_mut().rev().find(|a| a.ns == anchor) {
            Some(noted) => noted.kept = true,
            None => self.note_anchor(anchor, true),
        }
        for (p, ns) in anchor.iter().enumerate() {
            self.anchors_ns[p].push(*ns);
            self.jitter.push((ns / self.baseline_ns[p]).ln());
        }
        let old = self.jitter.len().saturating_sub(64);
        self.jitter.drain(..old);
    }

    /// Relative spread of the default's own time.
    pub fn noise(&self) -> f64 {
        spread(&self.jitter).unwrap_or(0.0)
    }

    /// Change of the default's time that counts as drift: the policy's, or four times the noise where that is more.
    ///
    /// Where the noise is as large as a throttled clock's step, steps are left to pairing, which does not mind them.
    pub fn drift_limit(&self) -> f64 {
        self.task.policy.drift.max(4.0 * self.noise()).min(DRIFT_LIMIT_MAX)
    }

    /// Largest change between two anchors, signed: above 0 when `now` is slower.
    pub fn change(now: &[f64], then: &[f64]) -> f64 {
        let changes = now.iter().zip(then).map(|(n, t)| (n / t).ln());
        changes.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0)
    }

    /// Change from the baseline.
    pub fn change_from_baseline(&self, now: &[f64]) -> f64 {
        Self::change(now, &self.baseline_ns)
    }

    /// Makes `anchor` the level from which drift is judged.
    pub fn adopt(&mut self, anchor: &[f64]) {
        self.baseline_ns = anchor.to_vec();
    }

    /// Discards `discarded` measurements, tells so, and pauses; the pause doubles with `attempt`.
    ///
    /// Where the default is back at its level by now, stray runs of it are all that there was, and nothing to wait for.
    pub fn cool(&mut self, change: f64, discarded: usize, attempt: u32) -> Result<(), Halt> {
        self.drifts += 1;
        self.discarded += discarded as u64;
        self.emit(&Event::Drifted { change: change.exp() - 1.0, discarded });
        if attempt == 0 && self.is_back()? {
            return Ok(());
        }
        let pause = Duration::from_millis(self.task.policy.cool_ms << attempt.min(10));
        self.may(pause)?;
        self.task.budget.clock().sleep(pause);
        self.settle(self.task.policy.warm_max / 2)
    }

    /// Whether the default, timed thrice at every point, is at its level.
    fn is_back(&mut self) -> Result<bool, Halt> {
        let limit = self.drift_limit();
        for p in 0..self.points.len() {
            let three = [self.time_default(p)?, self.time_default(p)?, self.time_default(p)?];
            let now = median(&three).expect("three numbers");
            if (now / self.baseline_ns[p]).ln().abs() > limit {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Times the default until it is steady, for the first time or after a pause, and adopts that level the first time.
    pub fn warm(&mut self) -> Result<(), Halt> {
        self.settle(self.task.policy.warm_max)
    }

    fn settle(&mut self, most: usize) -> Result<(), Halt> {
        let share = self.task.policy.warm_share;
        let (start, allowance) = (self.task.budget.spent(), self.task.budget.limit().mul_f64(share));
        let mut seen: Vec<Vec<f64>> = vec![Vec::new(); self.points.len()];
        for n in 1..=most.max(3) {
            for (p, times) in seen.iter_mut().enumerate() {
                times.push(self.time_default(p)?);
            }
            let late = n >= 3 && self.task.budget.spent() - start > allowance;
            if late || (n >= 6 && seen.iter().all(|times| is_steady(&times[n - 6..]))) {
                break;
            }
        }
        if self.baseline_ns.is_empty() {
            let tails: Vec<&[f64]> = seen.iter().map(|t| &t[t.len().saturating_sub(6)..]).collect();
            self.baseline_ns = tails.iter().map(|t| median(t).expect("timed at least thrice")).collect();
            for i in 0..tails[0].len() {
                let anchor: Vec<f64> = tails.iter().map(|t| t[i]).collect();
                self.accept_anchor(&anchor);
            }
        }
        Ok(())
    }

    /// How many finalists can be judged once in the time that is left, at least one.
    pub fn finalists_affordable(&self) -> usize {
        let pairs = self.task.policy.looks.first().copied().unwrap_or(1) * self.points.len();
        let round = self.sample_cost.as_secs_f64() * pairs.max(1) as f64;
        // Two more are for the default on both sides.
        let fit = if round > 0.0 { self.task.budget.left().as_secs_f64() / round } else { f64::MAX };
        (fit as usize).saturating_sub(2).max(1)
    }

    /// Whether `ns` at every point is so close to the floor that there is nothing left to gain.
    ///
    /// A ceiling that is reached may have been measured low, so it is measured again; one that is beaten is none.
    pub fn at_roof(&mut self, ns: &[f64], within: f64) -> bool {
        let close = |floors: &[Option<f64>]| {
            floors.iter().zip(ns).all(|(floor, ns)| floor.is_some_and(|f| *ns <= f * (1.0 + within)))
        };
        if !close(&self.floor_ns) {
            return false;
        }
        for p in 0..ns.len() {
            if let Some(floor) = self.floor_ns[p] {
                self.lower_floor(p, floor);
            }
        }
        let beaten = self.floor_ns.iter().zip(ns).any(|(floor, ns)| floor.is_some_and(|f| *ns < f));
        !beaten && close(&self.floor_ns)
    }

    pub fn emit(&mut self, event: &Event) {
        self.task.observer.event(event);
    }

    /// Tells how far the run is, when the rest of the search is expected to take `rest`.
    pub fn progress(&mut self, rest: Duration) {
        let left = rest.min(self.task.budget.left());
        let spent_s = self.task.budget.spent().as_secs_f64();
        self.emit(&Event::Progress { spent_s, left_s: left.as_secs_f64() });
    }
}

/// Whether the later three of six times agree with the earlier three: within 2%, or within their own spread.
fn is_steady(six: &[f64]) -> bool {
    let logs: Vec<f64> = six.iter().map(|v| v.ln()).collect();
    let (early, late) = (median(&logs[..3]), median(&logs[3..]));
    let (Some(early), Some(late), Some(noise)) = (early, late, spread(&logs)) else { return false };
    (late - early).abs() <= noise.max(0.02)
}

/// The error for a default that does not work: nothing can be compared without it.
pub(crate) fn default_failed(config: &Config, rejection: &Rejection) -> Error {
    let hint = match rejection {
        // What Rust says when it is given no memory; a signal 9 that nobody sent is the system's for the same reason.
        Rejection::Crashed(how) if how.contains("memory allocation of") || how.contains("signal 9") => {
            "memory ran out: choose smaller sizes, or free memory; nothing was tuned"
        }
        _ => "the kernel or its reference is wrong, or the device is: run the op's tests; nothing was tuned",
    };
    Error::new(format!("the default config ({config}) is refused: {rejection}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_until_the_clock_resolves_them() {
        let mut launches = 0;
        let s = batched(1000.0, |reps| {
            launches += 1;
            Ok((f64::from(reps) * 30.0 / 1000.0).floor() * 1000.0)
        })
        .expect("30 ns are measurable with a 1 us clock");
        assert!((s.ns - 30.0).abs() < 0.6 && s.reps >= 1667 && launches <= 4, "{s:?} after {launches}");
    }

    #[test]
    fn memory_that_ran_out_is_blamed_on_no_kernel() {
        let hint = |how: &str| {
            let error = default_failed(&Config::new(), &Rejection::Crashed(how.into()));
            error.next_step().unwrap_or_default().to_owned()
        };
        assert!(hint("signal 6 (aborted): memory allocation of 799999992 bytes failed").starts_with("memory ran out"));
        assert!(hint("signal 9 (killed)").starts_with("memory ran out"));
        assert!(hint("signal 11 (segmentation fault)").starts_with("the kernel or its reference is wrong"));
    }

    #[test]
    fn a_batch_of_nothing_is_refused() {
        assert_eq!(batched(1.0, |_| Ok(0.0)), Err(Rejection::TooFast(0.0)));
        assert_eq!(batched(1.0, |_| Err(Rejection::Launch("7".into()))), Err(Rejection::Launch("7".into())));
    }
}
