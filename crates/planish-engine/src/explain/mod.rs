//! Where a token's time goes: what was measured, by which method, against which ceilings, and what is left over.
//!
//! A part's figure comes from timing that part: by stamps inside a run, or alone after a whole token, so that caches hold
//! what they hold in decode. Differences of growing prefixes of a step stand beside those figures and are never used alone.

pub mod cpu;
mod direct;
pub mod fit;
pub mod gpu;
mod inside;
mod position;
mod step;
pub mod verdict;

use planish_tune::stats;
use serde::{Deserialize, Serialize};

use crate::probes::Roof;
use fit::Line;
pub use step::{Demand, Piece, Step};
pub use verdict::Verdict;

/// A median with a 95% interval by the sign test, which asks nothing of the distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Median.
    pub median: f64,
    /// Lower end of the interval.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
    /// Values.
    pub samples: usize,
}

/// Fewest rounds of any measurement: with fewer values the sign test knows no 95% interval.
pub const ROUNDS_MIN: usize = 6;

impl Bounds {
    /// Of `values`; all zero where there are none.
    pub fn of(values: &[f64]) -> Bounds {
        let Some(median) = stats::median(values) else { return Bounds::default() };
        let ends = stats::median_bounds(values, 0.025).unwrap_or_else(|| {
            let end = |pick: fn(f64, f64) -> f64| values.iter().copied().fold(median, pick);
            (end(f64::min), end(f64::max))
        });
        Bounds { median, lo: ends.0, hi: ends.1, samples: values.len() }
    }
}

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Tokens in the cache before the one that is taken apart.
    pub position: usize,
    /// Tokens measured whole and, where the machine stamps, as many with stamps, in turns.
    pub tokens: usize,
    /// Rounds in which each part is timed alone, and each prefix.
    pub rounds: usize,
    /// Further positions at which attention is timed.
    pub positions: Vec<usize>,
    /// Tokens that a GPU draws in a row for one sample of a whole one: steps run ahead of the host, as in production.
    pub drawn: usize,
}

/// What stamps say of a part within whole tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InPlace {
    /// From the end of the part before to its own end, nanoseconds a token.
    pub wall_ns: Bounds,
    /// Of those, work, shared among the threads that take part.
    pub work_ns: Bounds,
    /// And the rest: threads that begin late, or wait for the last one.
    pub waiting_ns: Bounds,
}

/// A part of a step: the launches between two barriers in every layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What it is for.
    pub name: String,
    /// Ops and shapes.
    pub about: String,
    /// Launches of a token.
    pub launches: usize,
    /// Barriers of a token that end it.
    pub barriers: usize,
    /// The figure that counts, nanoseconds a token: in place where there are stamps, else alone.
    pub time_ns: Bounds,
    /// By stamps.
    pub in_place: Option<InPlace>,
    /// Alone over all layers, each time after a whole token.
    pub alone_ns: Bounds,
    /// Difference between the prefixes of the step with and without it, to be shown beside the others.
    pub prefix_ns: Bounds,
    /// What it must do at least.
    pub demand: Demand,
    /// Bytes read a nanosecond.
    pub gb_s: f64,
    /// Of the rate at which a token's bytes can be read.
    pub percent_of_read: Option<f64>,
    /// Of the time that its arithmetic takes at the measured rates.
    pub percent_of_arithmetic: Option<f64>,
    /// Whether it grows with the position.
    pub grows: bool,
}

/// A part of a token outside of the launches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// What it is.
    pub name: String,
    /// How it was measured.
    pub by: String,
    /// Nanoseconds a token.
    pub time_ns: Bounds,
}

/// Handing a token over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launches {
    /// Launches of a token as the machine is handed them.
    pub count: usize,
    /// The host's time to hand them over, nanoseconds a token.
    pub queue_ns: Bounds,
    /// The host's time waiting for the end.
    pub wait_ns: Bounds,
    /// What one costs that does nothing, by the probe; none where nothing was probed.
    pub probed_ns: Option<f64>,
    /// From the end of each to the begin of the next by stamps, nanoseconds a token; none without stamps in launches.
    #[serde(default)]
    pub stamped_ns: Option<Bounds>,
}

/// Barriers of a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Barriers {
    /// Of a token.
    pub count: usize,
    /// What waits for each other: threads of the pool, or groups of the grid.
    pub width: usize,
    /// Threads of a group; 1 on a CPU.
    pub threads: usize,
    /// One round at that width by the probe, nanoseconds; none where nothing was probed.
    pub probed_ns: Option<f64>,
    /// All waiting at the borders of parts by stamps, nanoseconds a token: barriers and the unevenness of the work.
    pub stamped_ns: Option<Bounds>,
}

/// A position and what was measured there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct At {
    /// Tokens in the cache before.
    pub position: usize,
    /// The whole token, nanoseconds.
    pub token_ns: Bounds,
    /// The parts that grow with the position.
    pub attention_ns: Bounds,
}

/// How time depends on the position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Context {
    /// In order.
    pub points: Vec<At>,
    /// Nanoseconds of attention by position; none with fewer than three positions.
    pub line: Option<Line>,
    /// Bytes of keys and values that a position adds to a token.
    pub bytes_a_position: f64,
}

/// Everything that was measured of a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// How the step is handed over: `pool` on a CPU.
    pub path: String,
    /// What the figures of rows are.
    pub method: String,
    /// Tokens in the cache before.
    pub position: usize,
    /// The whole token as it runs in production, nanoseconds of the host's clock.
    pub token_ns: Bounds,
    /// Each of them.
    pub token_samples_ns: Vec<f64>,
    /// A stamped token over a plain one beside it; none without stamps.
    pub stamped_ratio: Option<Bounds>,
    /// Parts of the step.
    pub rows: Vec<Row>,
    /// Parts of the token outside of it.
    pub beside: Vec<Beside>,
    /// The figures of all parts over the whole's.
    pub attributed: Bounds,
    /// The whole's less those of all parts, nanoseconds.
    pub unattributed_ns: Bounds,
    /// Handing over.
    pub launches: Launches,
    /// Barriers.
    pub barriers: Barriers,
    /// Dependence on the position.
    pub context: Context,
}

impl Measured {
    /// What all rows must do.
    pub fn demand(&self) -> Demand {
        self.rows.iter().fold(Demand::default(), |sum, row| sum + row.demand)
    }

    /// Holds rates and costs against the ceilings.
    pub fn against(&mut self, roof: &Roof) {
        for row in &mut self.rows {
            let ns = row.time_ns.median;
            row.percent_of_read = percent(row.demand.read_bytes / roof.read_gb_s(), ns);
            row.percent_of_arithmetic = roof.arithmetic_ns(&row.demand).and_then(|least| percent(least, ns));
        }
        self.launches.probed_ns = roof.launch_ns;
        self.barriers.probed_ns = roof.barrier_ns;
    }
}

/// Token number `i` of a text in which neighbours differ, so that the embedding is read all over.
pub fn token(i: usize, vocab: usize) -> u32 {
    ((i * 7919 + 11) % vocab) as u32
}

/// `part` of `whole` in percent; none where there is no whole, or no part.
fn percent(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0 && part > 0.0 && part.is_finite()).then(|| 100.0 * part / whole)
}

/// Times that the samples are drawn again for the interval of a sum of medians.
const REDRAWS: usize = 400;

/// The medians of all parts over the median of the wholes, and the latter less the former, with 95% intervals.
///
/// A reader who adds the figures of the table up gets this sum. Samples are drawn again with replacement (bootstrap,
/// percentiles), those of one round together, always with the same draws.
fn left_over(wholes: &[f64], parts: &[Vec<f64>]) -> (Bounds, Bounds) {
    let one = |pick: &dyn Fn(&[f64]) -> f64| {
        let (whole, sum) = (pick(wholes), parts.iter().map(|p| pick(p)).sum::<f64>());
        (sum / whole, whole - sum)
    };
    let median = |values: &[f64]| stats::median(values).unwrap_or(0.0);
    let (ratio, left) = one(&median);
    let mut rng = planish_kernels::data::Rng::new(1);
    let redrawn = (0..REDRAWS).map(|_| {
        let draws: Vec<usize> = wholes.iter().map(|_| rng.index(1 << 20)).collect();
        let pick = |values: &[f64]| -> f64 {
            let again: Vec<f64> = draws.iter().map(|d| values[(d * values.len()) >> 20]).collect();
            median(&again)
        };
        if parts.iter().any(Vec::is_empty) { (ratio, left) } else { one(&pick) }
    });
    let (mut ratios, mut lefts): (Vec<f64>, Vec<f64>) = redrawn.unzip();
    let ends = |values: &mut Vec<f64>, median: f64| {
        values.sort_by(f64::total_cmp);
        let (lo, hi) = (values[REDRAWS / 40], values[REDRAWS - 1 - REDRAWS / 40]);
        Bounds { median, lo: lo.min(median), hi: hi.max(median), samples: wholes.len() }
    };
    (ends(&mut ratios, ratio), ends(&mut lefts, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_the_whole_less_the_figures_of_the_parts() {
        let around = |mid: f64| (0..41).map(|i| mid + f64::from(i - 20)).collect::<Vec<f64>>();
        let (ratio, left) = left_over(&around(1000.0), &[around(600.0), around(300.0), vec![50.0; 41]]);
        assert_eq!((ratio.median, left.median), (0.95, 50.0));
        assert!(left.lo < 50.0 && left.hi > 50.0 && left.lo > 20.0 && left.hi < 80.0, "{left:?}");
        assert!(ratio.lo > 0.92 && ratio.hi < 0.98, "{ratio:?}");
        // Constant times leave no doubt.
        let (ratio, left) = left_over(&[8.0; 6], &[vec![2.0; 6], vec![5.0; 9]]);
        assert_eq!((ratio.lo, ratio.hi, left.lo, left.hi), (0.875, 0.875, 1.0, 1.0));
    }

    #[test]
    fn six_values_are_the_fewest_with_an_interval() {
        let b = Bounds::of(&[5.0, 1.0, 3.0, 2.0, 4.0, 6.0]);
        assert_eq!(b, Bounds { median: 3.5, lo: 1.0, hi: 6.0, samples: ROUNDS_MIN });
        assert_eq!(Bounds::of(&[]), Bounds::default());
        let many: Vec<f64> = (1..=101).map(f64::from).collect();
        let b = Bounds::of(&many);
        assert!((b.lo, b.hi) == (41.0, 61.0), "ranks 41 and 61 of 101: {b:?}");
    }
}
