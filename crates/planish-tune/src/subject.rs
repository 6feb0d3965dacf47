//! The contract between the tuner and the thing being tuned, and why a candidate may be refused.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::Error;
use crate::space::Space;

/// One sampled member of a shape bucket, by position in `Subject::points`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point(pub u32);

/// One timing: the duration of a single execution, averaged over a batch long enough for the clock to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time of one execution, in nanoseconds of the device's own clock where it has one.
    pub ns: f64,
    /// Executions in the batch that was timed.
    pub reps: u32,
}

/// How an output differed from the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wrong {
    /// Which check refused it: `tolerance`, `non-finite`, `coverage`, `canary`, `nondeterministic`, `input modified`.
    pub check: String,
    /// The case, such as `rows=7 cols=576 seed=3 huge`.
    pub case: String,
    /// Worst absolute error over its bound; above 1 is a refusal; not a number when the output is not.
    #[serde(deserialize_with = "number_or_nan")]
    pub error_over_bound: f64,
    /// First offending element index, and what was found against what was wanted.
    pub detail: String,
}

/// JSON has no NaN or infinity and writes null for both.
fn number_or_nan<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(d)?.unwrap_or(f64::NAN))
}

/// Why a configuration may not be used. Data: counted, stored, shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// A named constraint does not hold.
    Constraint(String),
    /// The kernel did not build; the log.
    Compile(String),
    /// The launch failed; the device's code or message.
    Launch(String),
    /// The output is wrong.
    Wrong(Wrong),
    /// Slower than the bound at which it was dropped, in nanoseconds.
    Slow(f64),
    /// Faster than the roofline allows, in nanoseconds: it cannot have done the work.
    TooFast(f64),
    /// No answer within the deadline, in seconds.
    Timeout(f64),
    /// The worker process died; its signal or exit code.
    Crashed(String),
    /// Its own times disagree, by this factor: between the search and the finals, or between the median and the mean.
    Unstable(f64),
    /// It uses fewer processors than the default, and other work took this share of all of them meanwhile.
    Busy(f64),
}

impl Rejection {
    /// Short name of the kind, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Rejection::Constraint(_) => "constraint",
            Rejection::Compile(_) => "compile",
            Rejection::Launch(_) => "launch",
            Rejection::Wrong(_) => "wrong",
            Rejection::Slow(_) => "slow",
            Rejection::TooFast(_) => "too fast",
            Rejection::Timeout(_) => "timeout",
            Rejection::Crashed(_) => "crashed",
            Rejection::Unstable(_) => "unstable",
            Rejection::Busy(_) => "busy",
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::Constraint(name) => write!(f, "constraint: {name}"),
            Rejection::Compile(log) => write!(f, "compile: {log}"),
            Rejection::Launch(code) => write!(f, "launch: {code}"),
            Rejection::Wrong(w) => {
                write!(f, "wrong ({}): {}: {} ({:.3} x bound)", w.check, w.case, w.detail, w.error_over_bound)
            }
            Rejection::Slow(ns) => write!(f, "slow: behind at {:.2} us", ns / 1e3),
            Rejection::TooFast(ns) => write!(f, "too fast: {:.3} us is under the roofline or the timer", ns / 1e3),
            Rejection::Timeout(s) => write!(f, "timeout: no answer in {s:.1} s"),
            Rejection::Crashed(how) => write!(f, "crashed: {how}"),
            Rejection::Unstable(factor) => write!(f, "unstable: its own times disagree by a factor of {factor:.2}"),
            Rejection::Busy(share) => write!(f, "busy: {}", busy(*share)),
        }
    }
}

/// Why a win on fewer processors does not count, in words.
pub(crate) fn busy(share: f64) -> String {
    let percent = 100.0 * share;
    format!(
        "other work took {percent:.0}% of the processors, beside which a win on fewer threads says nothing of a quiet \
         machine"
    )
}

/// Processor time since some fixed moment, in seconds, summed over the machine's processors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// All that there was.
    pub all_s: f64,
    /// What other programs than the tuner and its workers used of it.
    pub others_s: f64,
}

/// What others may seem to use because systems count in ticks of ten milliseconds: user and kernel time of a worker and
/// of the machine are each cut down to whole ones.
const TICKS_S: f64 = 0.04;

impl Usage {
    /// Share that others used of what there was since `before`; none of no time.
    pub fn by_others(&self, before: &Usage) -> Option<f64> {
        let (all_s, others_s) = (self.all_s - before.all_s, self.others_s - before.others_s - TICKS_S);
        (all_s > 0.0).then(|| (others_s / all_s).clamp(0.0, 1.0))
    }
}

/// Proof that a configuration passed the numerics gate: its config cannot be changed and its error is within bounds.
#[derive(Clone, Debug)]
pub struct Admitted {
    config: Config,
    error_over_bound: f64,
}

impl Admitted {
    /// The proof for `config`, whose worst error over its bound the gate measured; refused above 1 or when not a number.
    ///
    /// Only an implementation of `Subject::admit` has a reason to call this.
    pub fn new(config: Config, error_over_bound: f64) -> Result<Self, Rejection> {
        if (0.0..=1.0).contains(&error_over_bound) {
            return Ok(Admitted { config, error_over_bound });
        }
        Err(Rejection::Wrong(Wrong {
            check: "tolerance".to_owned(),
            case: "worst of all".to_owned(),
            error_over_bound,
            detail: format!("error over bound is {error_over_bound}"),
        }))
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Worst error over its bound seen by the gate, from 0 to 1.
    pub fn error_over_bound(&self) -> f64 {
        self.error_over_bound
    }
}

/// One (op, shape bucket, device) being tuned.
pub trait Subject {
    /// Parameters, constraints and the default.
    fn space(&self) -> &Space;
    /// Sampled shapes of the bucket: its edges and its most common member. Never empty.
    fn points(&self) -> Vec<Point>;
    /// Legality, build, run at every point and the numerics gate.
    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection>;
    /// One timing of an admitted configuration at a point, caches cold.
    fn time(&mut self, admitted: &Admitted, point: Point) -> Result<Sample, Rejection>;
    /// The least time that physics allows at a point, from measured ceilings; `None` when unknown.
    fn floor(&self, point: Point) -> Option<Duration>;

    /// The same with the ceilings measured again: what else ran meanwhile lowers a ceiling and nothing raises it.
    ///
    /// Asked when something is faster than `floor` allows. `None` when there is nothing to measure again.
    fn floor_again(&mut self, _point: Point) -> Option<Duration> {
        None
    }

    /// A second opinion on a configuration that is about to be promoted: by default the gate again.
    ///
    /// Override it to look with other inputs than `admit` did, and at the very shape that is launched.
    fn confirm(&mut self, admitted: &Admitted) -> Result<Admitted, Rejection> {
        self.admit(admitted.config())
    }

    /// Resolution of the clock behind `time`, in nanoseconds: a sample under fifty of them is not believed; 0 when the
    /// subject answers for that itself.
    fn tick_ns(&self) -> f64 {
        0.0
    }

    /// Told which candidates will be admitted next, so that what takes long can be done for all of them at once.
    fn prepare(&mut self, _configs: &[Config]) {}

    /// How likely the candidate is to hurt the device; candidates are tried in rising order of it.
    fn risk(&self, _config: &Config) -> u32 {
        0
    }

    /// Processor time until now; `None` where it cannot be told, or does not bear on this subject.
    fn usage(&mut self) -> Option<Usage> {
        None
    }

    /// Whether the candidate uses fewer of the machine's processors than the default.
    fn uses_fewer(&self, _config: &Config) -> bool {
        false
    }

    /// Checks that the device still works after a candidate ran; an error blames that candidate.
    ///
    /// By default the gate and one timing of the default config; override it with something cheaper.
    fn sentinel(&mut self) -> Result<(), Rejection> {
        let default = self.space().default.clone();
        let admitted = self.admit(&default)?;
        let first = self.points()[0];
        self.time(&admitted, first).map(|_| ())
    }

    /// Why nothing can be run any more, such as a worker that cannot be kept alive; tuning stops with this error.
    fn broken(&self) -> Option<Error> {
        None
    }
}
