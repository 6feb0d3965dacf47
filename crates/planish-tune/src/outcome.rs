//! What a tuning run found: the choice, why, and the evidence for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::policy::Policy;
use crate::stats::{median, spread};
use crate::subject::{Admitted, Rejection};
use crate::words::counted;

/// Whether the default was beaten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The choice is faster than the default; numbers of the point at which it gains least.
    Promoted {
        /// Median of the default's time over the choice's.
        ratio: f64,
        /// Lower confidence bound of the ratio.
        lo: f64,
        /// Upper confidence bound of the ratio.
        hi: f64,
    },
    /// No candidate cleared the margin: the default stays.
    KeptDefault,
    /// Too little clean data to say; the default stays.
    Undecided(String),
}

/// Times of one candidate at one point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Raw samples in nanoseconds, in the order taken.
    pub samples_ns: Vec<f64>,
    /// Median of the samples.
    pub median_ns: f64,
    /// Spread of the samples, as a standard deviation.
    pub spread_ns: f64,
    /// The default's time at the surrounding anchors over each sample; empty for the default and in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub speedups: Vec<f64>,
}

impl Times {
    /// Of samples in the order taken, each `speedups` of the default's at its anchors where those are told.
    pub(crate) fn of(samples_ns: &[f64], speedups: Vec<f64>) -> Times {
        let (median_ns, spread_ns) = (median(samples_ns).unwrap_or(0.0), spread(samples_ns).unwrap_or(0.0));
        Times { samples_ns: samples_ns.to_vec(), median_ns, spread_ns, speedups }
    }
}

/// The default timed again, to see whether the machine is still what it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Anchor {
    /// When, in seconds of the run.
    pub at_s: f64,
    /// Its time per point, in nanoseconds.
    pub ns: Vec<f64>,
    /// Whether the measurements around it count; false where the machine drifted or the run was cut short.
    pub kept: bool,
}

/// One timed candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// The candidate.
    pub config: Config,
    /// The default's time over the candidate's, by medians of anchored ratios, geometric mean over points.
    pub speedup: f64,
    /// Times per point, in the order of `Subject::points`.
    pub times: Vec<Times>,
    /// Worst error over its bound that the gate saw; `None` in older records.
    #[serde(default)]
    pub error_over_bound: Option<f64>,
}

impl Ranked {
    pub(crate) fn of(admitted: &Admitted, speedup: f64, times: Vec<Times>) -> Ranked {
        let (config, error_over_bound) = (admitted.config().clone(), Some(admitted.error_over_bound()));
        Ranked { config, speedup, times, error_over_bound }
    }
}

/// A ratio to the default and its confidence bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Median of the default's time over the finalist's.
    pub ratio: f64,
    /// Lower bound.
    pub lo: f64,
    /// Upper bound.
    pub hi: f64,
}

/// One finalist's paired comparison with the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Final {
    /// The finalist.
    pub config: Config,
    /// Paired rounds.
    pub pairs: usize,
    /// Interval per point; empty when there were too few pairs for one.
    pub points: Vec<Interval>,
    /// Whether the lower bound cleared the margin at every point.
    pub cleared: bool,
}

/// How many candidates went where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Combinations of parameter values that were looked at.
    pub candidates: usize,
    /// Combinations beside those: a space too large to look at each is sampled. Zero, too, in older records.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u64,
    /// Passed the gate, the default included.
    pub admitted: usize,
    /// Timed, the default included.
    pub timed: usize,
    /// Right but far behind, so not timed further.
    pub dropped: usize,
    /// Legal and never tried.
    pub untried: usize,
    /// Refused, by kind; candidates that were merely slow are in `dropped`.
    pub rejected: BTreeMap<String, usize>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Counts {
    /// Configurations that no constraint forbids, the default included.
    pub fn legal(&self) -> usize {
        self.candidates - self.rejected.get("constraint").copied().unwrap_or(0)
    }

    /// Legal configurations that were handed to the gate, the default included.
    pub fn tried(&self) -> usize {
        self.legal() - self.untried
    }
}

/// The result of tuning one subject, which is also its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What ran before.
    pub default: Config,
    /// What to run now; the default unless promoted.
    pub choice: Config,
    /// Why.
    pub verdict: Verdict,
    /// Timed candidates, fastest first.
    pub ranking: Vec<Ranked>,
    /// The paired comparisons behind the verdict.
    pub finals: Vec<Final>,
    /// Refused candidates with the reason. Of a large space, those that a constraint forbids are only counted.
    pub rejected: Vec<(Config, Rejection)>,
    /// Roofline floor per point in nanoseconds; `None` when unknown or refuted by the default.
    pub floor_ns: Vec<Option<f64>>,
    /// Whether the default was faster than a floor allows, so that it was measured too high; not told in older records.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub roof_beaten: bool,
    /// Tallies.
    pub counts: Counts,
    /// Timings taken in this run, anchors and discarded ones included.
    pub samples: u64,
    /// Relative spread of the default's own time while tuning.
    pub noise: f64,
    /// Times that measurements were discarded because the machine drifted.
    pub drifts: u32,
    /// Measurements of candidates that were taken back because the machine drifted.
    #[serde(default)]
    pub discarded: u64,
    /// Every anchor in the order taken; empty in older records.
    #[serde(default)]
    pub anchors: Vec<Anchor>,
    /// Share of the processors that other work took meanwhile; `None` where that is not told or does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_others: Option<f64>,
    /// Seconds spent.
    pub spent_s: f64,
    /// Seconds that it was given; `None` in older records.
    #[serde(default)]
    pub budget_s: Option<f64>,
    /// Whether the run ended early, by budget or by request.
    pub partial: bool,
    /// The rules it was measured by.
    pub policy: Policy,
}

impl Outcome {
    /// Share of other work beside which a candidate won that was not promoted for it: to be measured again.
    pub fn busy(&self) -> Option<f64> {
        let share = |r: &Rejection| if let Rejection::Busy(share) = r { Some(*share) } else { None };
        self.rejected.iter().find_map(|(_, r)| share(r))
    }

    /// Share of the roofline that the choice reaches at the heaviest point with a known floor.
    pub fn share_of_roof(&self) -> Option<f64> {
        let chosen = self.ranking.iter().find(|r| r.config == self.choice)?;
        let heaviest = self.floor_ns.iter().zip(&chosen.times).filter_map(|(f, t)| Some((f.as_ref()?, t.median_ns)));
        heaviest.max_by(|a, b| a.0.total_cmp(b.0)).map(|(floor, median)| floor / median)
    }

    /// One line that a person can repeat, about the subject called `name`.
    pub fn sentence(&self, name: &str) -> String {
        let verdict = match &self.verdict {
            Verdict::Promoted { ratio, lo, hi } => {
                format!("{ratio:.2} \u{b1} {:.2} \u{d7} faster than default", 0.5 * (hi - lo))
            }
            Verdict::KeptDefault => "default kept".to_owned(),
            Verdict::Undecided(why) => format!("undecided, default kept ({why})"),
        };
        let roof = self.share_of_roof().map(|s| format!(", {:.0}% of roofline", 100.0 * s)).unwrap_or_default();
        let kinds: Vec<String> = self.counts.rejected.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        let refused = match self.counts.rejected.values().sum::<usize>() {
            0 => "0 rejected".to_owned(),
            n => format!("{n} rejected ({})", kinds.join(", ")),
        };
        let untried =
            if self.counts.untried > 0 { format!(", {} untried", self.counts.untried) } else { String::new() };
        let partial = if self.partial { "; stopped early" } else { "" };
        let configs = counted(self.counts.candidates, "config");
        let listed = match self.counts.unlisted {
            0 => configs,
            others => format!("{configs} sampled of {}", others.saturating_add(self.counts.candidates as u64)),
        };
        format!("{name}: {verdict}{roof}; {listed}, {refused}{untried}{partial}")
    }
}
