//! The measurement policy: every number that decides what is timed, kept and promoted; part of a record's identity.

use serde::{Deserialize, Serialize};

/// How to search and when to believe; equal policies give comparable evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Raised when the meaning of a field or of the procedure changes.
    pub version: u32,
    /// Gain over the default that the lower confidence bound must clear, as a fraction.
    pub margin: f64,
    /// Chance per tuned subject of promoting a candidate whose true median gain is at most `margin`.
    pub alpha: f64,
    /// Candidates re-timed against the default.
    pub finalists: usize,
    /// Numbers of pairs after which the finalists are judged; the last is the most that are taken.
    pub looks: Vec<usize>,
    /// Rounds in which survivors are timed before the finals.
    pub search_rounds: usize,
    /// Share behind the best at which a candidate is dropped after round two; a quarter of it after round four.
    pub drop_gap: f64,
    /// Candidates timed between two anchors.
    pub block: usize,
    /// Change of the default's time, as a fraction, beyond which measurements are discarded.
    pub drift: f64,
    /// Repeats of a block (or of finals rounds in a row) that drifted before it is given up.
    pub drift_retries: u32,
    /// First pause after a drift in milliseconds; doubles with each retry.
    pub cool_ms: u64,
    /// Distance to the roofline, as a fraction, at which the search is over.
    pub roof: f64,
    /// Share under the roofline at which a time is not believed.
    pub too_fast: f64,
    /// Candidates admitted before the next look at where the best one is.
    pub wave: usize,
    /// Spaces up to this size are searched to the end; larger ones until a wave brings nothing.
    pub exhaust: usize,
    /// Share of the budget kept for the finals.
    pub finals_share: f64,
    /// Most timings of the default at one point before the search starts.
    pub warm_max: usize,
    /// Where times come from; anything but the clock is for tests, and no record of it is ever used otherwise.
    #[serde(skip_serializing_if = "Timings::are_measured")]
    pub timings: Timings,
}

/// Where the times come from that a search decides by.
///
/// With times that mean nothing any admitted candidate may win, and whatever runs the winners must still be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timings {
    /// The clock.
    #[default]
    Measured,
    /// The clock turned upside down: the slowest wins.
    Inverted,
    /// Drawn for each configuration from this seed.
    Random(u64),
}

impl Timings {
    fn are_measured(&self) -> bool {
        *self == Timings::Measured
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            version: 1,
            margin: 0.01,
            alpha: 0.05,
            finalists: 3,
            looks: vec![8, 16, 24, 32],
            search_rounds: 8,
            drop_gap: 0.25,
            block: 8,
            drift: 0.10,
            drift_retries: 4,
            cool_ms: 100,
            roof: 0.03,
            too_fast: 0.10,
            wave: 32,
            exhaust: 256,
            finals_share: 0.35,
            warm_max: 24,
            timings: Timings::Measured,
        }
    }
}

impl Policy {
    /// The level of one look at one finalist: `alpha` shared over all looks and finalists (Bonferroni).
    pub fn alpha_per_look(&self) -> f64 {
        self.alpha / (self.looks.len() * self.finalists).max(1) as f64
    }

    /// The policy as text, for the identity of a record.
    pub fn identity(&self) -> String {
        serde_json::to_string(self).expect("a policy is plain numbers")
    }
}
