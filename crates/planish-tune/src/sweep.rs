//! A few configurations side by side: each is gated, then all are timed in rounds beside the default, and none is dropped.
//!
//! Tuning drops what is behind and asks for one winner; a sweep shows the whole curve, with intervals.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::Error;
use crate::event::Event;
use crate::finals::{Finalist, rounds_until};
use crate::measure::{Bench, Halt, Miss, Task, default_failed};
use crate::outcome::{Interval, Times};
use crate::stats::{median, median_bounds};
use crate::subject::{Admitted, Rejection, Subject};

/// One configuration of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swept {
    /// The configuration.
    pub config: Config,
    /// Worst error over its bound that the gate saw; none where it was refused before.
    pub error_over_bound: Option<f64>,
    /// Why it was not timed, or not to the end.
    pub rejection: Option<Rejection>,
    /// Times per point, in the order of `Subject::points`; the default's are those between which the others were taken.
    pub times: Vec<Times>,
    /// The default's time over this one's per point; bounds that hold for all configurations of the sweep together.
    /// Empty where there were too few rounds for bounds.
    pub ratios: Vec<Interval>,
    /// Logarithms of the paired ratios, per point and round.
    pub logs: Vec<Vec<f64>>,
}

impl Swept {
    /// Whether it was gated and timed in every round.
    pub fn timed(&self) -> bool {
        self.rejection.is_none() && self.logs.iter().all(|l| !l.is_empty()) && !self.logs.is_empty()
    }
}

/// What a sweep found, which is also its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// What all are held against.
    pub default: Config,
    /// The configurations, in the order asked for; the default is among them, and first where nobody asked for it.
    pub swept: Vec<Swept>,
    /// Rounds that count.
    pub rounds: usize,
    /// Chance that any bound of the sweep is off.
    pub alpha: f64,
    /// Roofline floor per point in nanoseconds; `None` when unknown or refuted by the default.
    pub floor_ns: Vec<Option<f64>>,
    /// Relative spread of the default's own time.
    pub noise: f64,
    /// Times that a round was discarded because the machine drifted.
    pub drifts: u32,
    /// Timings taken.
    pub samples: u64,
    /// Seconds spent.
    pub spent_s: f64,
    /// Whether budget, drift or a request ended it before all rounds were taken.
    pub partial: bool,
}

impl Sweep {
    /// Time of `b` over that of `a`, over all points and paired by round; none where either has too few rounds.
    pub fn versus(&self, a: usize, b: usize) -> Option<Interval> {
        let (a, b) = (&self.swept[a], &self.swept[b]);
        let rounds = a.logs.iter().chain(&b.logs).map(Vec::len).min()?;
        let points = a.logs.len() as f64;
        let gain = |r: usize| a.logs.iter().zip(&b.logs).map(|(a, b)| a[r] - b[r]).sum::<f64>() / points;
        interval(&(0..rounds).map(gain).collect::<Vec<_>>(), self.level())
    }

    /// Place of the fastest by the median of paired ratios; the default where all are equal.
    pub fn best(&self) -> Option<usize> {
        let default = self.swept.iter().position(|s| s.config == self.default)?;
        let gain = |i: usize| {
            let medians: Option<Vec<f64>> = self.swept[i].logs.iter().map(|l| median(l)).collect();
            medians.map(|m| m.iter().sum::<f64>())
        };
        let timed = (0..self.swept.len()).filter(|i| self.swept[*i].timed());
        let faster = |best: usize, i: usize| if gain(i) > gain(best) { i } else { best };
        self.swept[default].timed().then(|| timed.fold(default, faster))
    }

    /// Whether `i` is as fast as the fastest within `margin`, as far as these rounds can tell.
    pub fn as_good_as_best(&self, i: usize, margin: f64) -> Option<bool> {
        let best = self.best()?;
        if !self.swept[i].timed() {
            return Some(false);
        }
        Some(i == best || self.versus(best, i)?.lo < 1.0 + margin)
    }

    /// Level of one bound, so that all of them hold with `1 - alpha` together.
    fn level(&self) -> f64 {
        level(self.alpha, self.swept.len())
    }
}

/// Two bounds for each configuration that is not the default.
fn level(alpha: f64, configs: usize) -> f64 {
    alpha / (2 * configs.saturating_sub(1).max(1)) as f64
}

/// Fewest rounds that give bounds at `level`.
fn rounds_min(level: f64) -> usize {
    (1..64).find(|n| median_bounds(&vec![0.0; *n], level).is_some()).unwrap_or(64)
}

fn interval(logs: &[f64], level: f64) -> Option<Interval> {
    let (lo, hi) = median_bounds(logs, level)?;
    Some(Interval { ratio: median(logs)?.exp(), lo: lo.exp(), hi: hi.exp() })
}

/// Gates `configs` and times all that pass for `rounds` rounds, each beside the default, within the task's budget.
///
/// Fewer rounds than bounds for so many configurations need are raised to those.
///
/// Errors when the subject has no point, when its default is refused, or when it reports itself broken.
pub fn sweep(subject: &mut dyn Subject, configs: &[Config], rounds: usize, task: Task<'_>) -> Result<Sweep, Error> {
    let points = subject.points().len();
    if points == 0 {
        return Err(Error::new("the subject has no point to time at"));
    }
    let default = subject.space().default.clone();
    let admitted = match subject.admit(&default) {
        Ok(admitted) => admitted,
        Err(r) => return Err(subject.broken().unwrap_or_else(|| default_failed(&default, &r))),
    };
    let others: Vec<Config> = configs.iter().filter(|c| **c != default).cloned().collect();
    subject.prepare(&others);
    let mut bench = Bench::new(subject, task, admitted.clone());
    let mut gated = Vec::new();
    let mut halted = None;
    for config in &others {
        let result = match halted {
            None => gate(&mut bench, config),
            Some(_) => Ok(Err(Rejection::Timeout(bench.task.budget.limit().as_secs_f64()))),
        };
        match result {
            Ok(result) => gated.push((config.clone(), result)),
            Err(Halt::Fatal(error)) => return Err(error),
            Err(halt) => {
                halted = Some(halt);
                let left = bench.task.budget.limit().as_secs_f64();
                gated.push((config.clone(), Err(Rejection::Timeout(left))));
            }
        }
    }
    let rounds = rounds.max(rounds_min(level(bench.task.policy.alpha, gated.len() + 1)));
    let fresh = vec![Vec::new(); points];
    let mut finalists: Vec<Finalist> =
        gated.iter().filter_map(|(_, r)| Some(Finalist::new(r.as_ref().ok()?.clone(), &fresh))).collect();
    let whole = match halted {
        None => match timed(&mut bench, &mut finalists, rounds) {
            Ok(whole) => whole,
            Err(Halt::Fatal(error)) => return Err(error),
            Err(Halt::Budget | Halt::Cancelled) => false,
        },
        Some(_) => false,
    };
    Ok(conclude(&bench, (&admitted, configs), gated, &finalists, !whole))
}

/// The gate for one configuration.
fn gate(bench: &mut Bench<'_, '_>, config: &Config) -> Result<Result<Admitted, Rejection>, Halt> {
    let result = match bench.subject.space().violated(config) {
        Some(name) => Err(Rejection::Constraint(name)),
        None => match bench.admit(config, std::time::Duration::ZERO) {
            Ok(admitted) => Ok(admitted),
            Err(Miss::Refused(rejection)) => Err(rejection),
            Err(Miss::Halt(halt)) => return Err(halt),
        },
    };
    bench.emit(&match &result {
        Ok(a) => Event::Admitted { config: config.clone(), error_over_bound: a.error_over_bound() },
        Err(rejection) => Event::Rejected { config: config.clone(), rejection: rejection.clone() },
    });
    Ok(result)
}

/// All rounds; false where the machine drifts too much for that.
fn timed(bench: &mut Bench<'_, '_>, finalists: &mut [Finalist], rounds: usize) -> Result<bool, Halt> {
    bench.warm()?;
    if finalists.is_empty() {
        // The default alone: as many times of it as a round would have taken.
        for _ in 0..rounds {
            let anchor = bench.anchor()?;
            bench.accept_anchor(&anchor);
        }
        return Ok(true);
    }
    rounds_until(bench, finalists, rounds, &mut 0)
}

fn conclude(
    bench: &Bench<'_, '_>,
    (default, asked): (&Admitted, &[Config]),
    gated: Vec<(Config, Result<Admitted, Rejection>)>,
    finalists: &[Finalist],
    partial: bool,
) -> Sweep {
    let alpha = bench.task.policy.alpha;
    let level = level(alpha, gated.len() + 1);
    let running = finalists.iter().filter(|f| f.refused.is_none());
    let rounds = running.map(Finalist::pairs).min().unwrap_or_else(|| bench.anchors_ns[0].len());
    let one = Interval { ratio: 1.0, lo: 1.0, hi: 1.0 };
    let points = bench.points.len();
    let itself = Swept {
        config: default.config().clone(),
        error_over_bound: Some(default.error_over_bound()),
        rejection: None,
        times: bench.anchors_ns.iter().map(|ns| Times::of(ns, Vec::new())).collect(),
        ratios: vec![one; points],
        logs: vec![vec![0.0; rounds]; points],
    };
    let of = |(config, result): (Config, Result<Admitted, Rejection>)| {
        let timed = finalists.iter().find(|f| *f.admitted.config() == config);
        let empty = || vec![Vec::new(); points];
        let (ns, logs) = timed.map_or_else(|| (empty(), empty()), |f| (f.ns.clone(), f.logs.clone()));
        Swept {
            error_over_bound: result.as_ref().ok().map(Admitted::error_over_bound),
            rejection: result.err().or_else(|| timed.and_then(|f| f.refused.clone())),
            times: ns.iter().map(|ns| Times::of(ns, Vec::new())).collect(),
            ratios: logs.iter().map(|l| interval(l, level)).collect::<Option<_>>().unwrap_or_default(),
            logs,
            config,
        }
    };
    let mut swept: Vec<Swept> = gated.into_iter().map(of).collect();
    let place = asked.iter().position(|c| c == default.config()).unwrap_or(0);
    swept.insert(place.min(swept.len()), itself);
    Sweep {
        default: default.config().clone(),
        swept,
        rounds,
        alpha,
        floor_ns: bench.floor_ns.clone(),
        noise: bench.noise(),
        drifts: bench.drifts,
        samples: bench.samples,
        spent_s: bench.task.budget.spent().as_secs_f64(),
        partial,
    }
}
