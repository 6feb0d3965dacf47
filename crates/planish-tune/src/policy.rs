//! The measurement policy: every number that decides what is timed, kept and promoted; part of a record's identity.

use serde::{Deserialize, Serialize};

/// How to search and when to believe; equal policies give comparable evidence.
///
/// `alpha` is the stated rate of false promotions: the chance, per tuned subject, that a candidate is promoted whose true
/// median gain over the default is at most `margin`.
/// It holds whatever the noise looks like as long as paired rounds are independent, because every bound is a sign test
/// and `alpha` is shared over all finalists and all looks, and over all finals where a run that was cut off goes on;
/// candidates that equal the default are promoted far less often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Raised when the meaning of a field or of the procedure changes.
    pub version: u32,
    /// Gain over the default that the lower confidence bound must clear, as a fraction; less than it is a tie.
    pub margin: f64,
    /// Chance per tuned subject of promoting a candidate whose true median gain is at most `margin`.
    pub alpha: f64,
    /// Candidates re-timed against the default, at most.
    pub finalists: usize,
    /// Numbers of pairs after which the finalists are judged; the last is the most that are taken for that.
    pub looks: Vec<usize>,
    /// Most paired rounds, those of the looks included, until it is clear which of several winners are tied.
    pub tie_rounds: usize,
    /// Rounds in which survivors are timed before the finals.
    pub search_rounds: usize,
    /// Share behind the best at which a candidate is dropped after round two; a quarter of it after round four.
    pub drop_gap: f64,
    /// Times slower than the default at which a candidate is dropped on the spot.
    pub hopeless: f64,
    /// Most candidates that are timed past round two.
    pub survivors: usize,
    /// Candidates timed between two anchors.
    pub block: usize,
    /// Change of the default's time, as a fraction, beyond which measurements are discarded.
    pub drift: f64,
    /// Repeats of a block (or of finals rounds in a row) that drifted before it is given up.
    pub drift_retries: u32,
    /// First pause after a drift in milliseconds; doubles with each retry.
    pub cool_ms: u64,
    /// Milliseconds without a timing after which the machine is warmed up again.
    pub idle_ms: u64,
    /// Share of the processors that other work may take before what wins on fewer of them is not promoted.
    pub others: f64,
    /// Distance to the roofline, as a fraction, at which the search is over.
    pub roof: f64,
    /// Share under the roofline at which a time is not believed.
    pub too_fast: f64,
    /// Spaces with up to this many legal candidates are tried to the end.
    pub exhaust: usize,
    /// Share of a larger space after which the first wave without a gain ends its search.
    pub enough: f64,
    /// Waves in a row without a gain that end the search of a larger space in any case.
    pub stale: usize,
    /// Candidates spread over a larger space, where its share has room for them, that are tried first.
    pub spread: usize,
    /// Share of the budget kept for the finals.
    pub finals_share: f64,
    /// Most timings of the default at one point before the search starts.
    pub warm_max: usize,
    /// Share of the budget that one warm-up may take, beyond three timings.
    pub warm_share: f64,
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
            version: 3,
            margin: 0.01,
            alpha: 0.01,
            finalists: 8,
            looks: vec![12, 20, 32, 64, 128],
            tie_rounds: 128,
            search_rounds: 8,
            drop_gap: 0.25,
            hopeless: 3.0,
            survivors: 24,
            block: 8,
            drift: 0.10,
            drift_retries: 4,
            cool_ms: 100,
            idle_ms: 20,
            others: 0.10,
            roof: 0.03,
            too_fast: 0.10,
            exhaust: 32,
            enough: 0.08,
            stale: 2,
            spread: 4,
            finals_share: 0.35,
            warm_max: 24,
            warm_share: 0.1,
            timings: Timings::Measured,
        }
    }
}

impl Policy {
    /// A policy that gives up on no candidate: how a space is recorded, `rounds` timings of each.
    pub fn exhaustive(rounds: usize) -> Self {
        Policy { search_rounds: rounds, hopeless: f64::MAX, ..Policy::default() }
    }

    /// The level of one look at one finalist: `alpha` shared over all looks and finalists (Bonferroni).
    ///
    /// A subject has further finals where a search was cut off and finds other finalists when it is gone on with: the
    /// first, after which `before` is 0, get 63/64 of `alpha`, and all others share the rest by halves.
    pub fn alpha_per_look(&self, before: u32) -> f64 {
        let part = if before == 0 { 63.0 / 64.0 } else { 0.5f64.powi(6 + before.min(900) as i32) };
        part * self.alpha / (self.looks.len() * self.finalists).max(1) as f64
    }

    /// What a promotion takes, as a sentence that a person can repeat.
    pub fn promise(&self) -> String {
        format!(
            "promoted is only what is more than {:.0}% faster than the default beyond doubt: a promotion of less than \
             that happens to at most {:.0} in 100 kernels",
            100.0 * self.margin,
            100.0 * self.alpha
        )
    }

    /// The policy as text, for the identity of a record.
    pub fn identity(&self) -> String {
        serde_json::to_string(self).expect("a policy is plain numbers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_looks_of_all_finals_share_the_stated_rate() {
        let policy = Policy::default();
        let all: f64 = (0..60).map(|before| policy.alpha_per_look(before)).sum();
        let spent = all * (policy.looks.len() * policy.finalists) as f64;
        assert!(spent <= policy.alpha * (1.0 + 1e-12) && spent > 0.999 * policy.alpha, "{spent}");
        // Twelve pairs are enough for the first look: they all favour one side with this probability.
        assert!(0.5f64.powi(12) <= policy.alpha_per_look(0));
    }
}
