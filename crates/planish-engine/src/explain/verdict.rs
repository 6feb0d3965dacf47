//! One plain sentence: what a token waits for, and what would move it by how much at most.

use serde::{Deserialize, Serialize};

use super::{Measured, Row};
use crate::probes::Roof;

/// What bounds a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Handing launches over.
    Launch,
    /// Reading bytes.
    Bandwidth,
    /// Arithmetic.
    Compute,
    /// None of them: parts wait for each other, or for bytes that come late.
    Latency,
}

impl Bound {
    /// As in `bandwidth-bound`.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Launch => "launch",
            Bound::Bandwidth => "bandwidth",
            Bound::Compute => "compute",
            Bound::Latency => "latency",
        }
    }
}

/// The verdict and the numbers behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What bounds the token.
    pub bound: Bound,
    /// In words.
    pub sentence: String,
    /// The least time of reading its bytes, of the token's.
    pub read_share: f64,
    /// The least time of its arithmetic.
    pub arithmetic_share: f64,
    /// Handing over: what the host does beside the step, and launches by stamps, else as many that do nothing by the probe.
    pub launch_share: f64,
    /// Waiting at barriers: by stamps, else count times probe.
    pub waiting_share: f64,
    /// How many times as fast a token would be if what bounds it took no time beyond its roof.
    pub at_most: f64,
}

/// What takes this share of a token bounds it: for most of the time nothing else is waited for.
const MOST: f64 = 0.5;
/// Parts that add up to a token up to this share of it are told without a word.
const OFF_MOST: f64 = 0.1;

/// The verdict on a token against ceilings.
pub fn verdict(m: &Measured, roof: &Roof) -> Verdict {
    let whole = m.token_ns.median.max(1.0);
    let demand = m.demand();
    let read_ns = demand.read_bytes / roof.read_gb_s();
    let arithmetic_ns = roof.arithmetic_ns(&demand).unwrap_or(0.0);
    let beside: f64 = m.beside.iter().map(|b| b.time_ns.median).sum();
    // What stamps say of launches is among what lies beside.
    let probed = m.launches.probed_ns.filter(|_| m.launches.stamped_ns.is_none()).unwrap_or(0.0);
    let launch_ns = beside + probed * m.launches.count.saturating_sub(1) as f64;
    let probed = m.barriers.probed_ns.map_or(0.0, |ns| ns * m.barriers.count as f64);
    let waiting_ns = m.barriers.stamped_ns.map_or(probed, |b| b.median);
    let shares = [launch_ns, read_ns, arithmetic_ns, waiting_ns].map(|ns| ns / whole);
    let [launch_share, read_share, arithmetic_share, waiting_share] = shares;
    let floor_ns = read_ns.max(arithmetic_ns);
    let bound_of = |whole: f64| bound(launch_ns / whole, read_ns / whole, arithmetic_ns / whole);
    let bound = bound_of(whole);
    let left_ns = if bound == Bound::Launch { whole - launch_ns } else { floor_ns };
    // A part that beat its ceiling leaves nothing to gain, and says that the ceiling was measured too low.
    let at_most = (whole / left_ns.max(1.0)).max(1.0);
    let numbers = Numbers { whole, launch_ns, read_ns, arithmetic_ns, waiting_ns, at_most };
    let ends = [m.token_ns.lo, m.token_ns.hi].map(|ns| (ns, bound_of(ns.max(1.0))));
    let sentence = numbers.sentence(bound, m, roof) + &doubt(bound, ends);
    Verdict { bound, sentence, read_share, arithmetic_share, launch_share, waiting_share, at_most }
}

/// What takes most of a token, by shares of it.
fn bound(launch: f64, read: f64, arithmetic: f64) -> Bound {
    match () {
        () if launch >= MOST => Bound::Launch,
        () if read >= MOST && read >= arithmetic => Bound::Bandwidth,
        () if arithmetic >= MOST => Bound::Compute,
        () => Bound::Latency,
    }
}

/// What a token at an end of its interval would be called, where that is something else.
fn doubt(bound: Bound, ends: [(f64, Bound); 2]) -> String {
    let other = ends.into_iter().find(|(_, of)| *of != bound);
    other.map_or(String::new(), |(ns, of)| {
        let us = ns / 1e3;
        format!("; in doubt: at {us:.1} us, an end of a token's interval, it would be {}-bound", of.name())
    })
}

/// How far parts that add up to `attributed` of a token are from it, where that matters.
fn apart(attributed: f64) -> String {
    match attributed - 1.0 {
        off if off < -OFF_MOST => format!("; {:.0}% of it is in no part", -100.0 * off),
        off if off > OFF_MOST => {
            format!("; its parts, timed in other tokens, add up to {:.0}% of it", 100.0 * attributed)
        }
        _ => String::new(),
    }
}

/// Nanoseconds of a token, and the gain at its roof.
struct Numbers {
    whole: f64,
    launch_ns: f64,
    read_ns: f64,
    arithmetic_ns: f64,
    waiting_ns: f64,
    at_most: f64,
}

impl Numbers {
    fn sentence(&self, bound: Bound, m: &Measured, roof: &Roof) -> String {
        let us = |ns: f64| format!("{:.1}", ns / 1e3);
        let percent = |ns: f64| format!("{:.0}%", 100.0 * ns / self.whole);
        let (whole, at_most) = (us(self.whole), self.at_most);
        let mb = m.demand().read_bytes / 1e6;
        let reading = format!(
            "its {mb:.1} MB at the {:.1} GB/s measured for as many bytes take {} of its {whole} us ({})",
            roof.read_gb_s(),
            us(self.read_ns),
            percent(self.read_ns)
        );
        let waiting = format!("waiting at barriers takes {}", percent(self.waiting_ns));
        let largest = m.rows.iter().max_by(|a, b| a.time_ns.median.total_cmp(&b.time_ns.median));
        let largest = largest.map_or(String::new(), |row| self.largest(row));
        let rest = match bound {
            Bound::Launch => format!(
                "handing over takes {} of its {whole} us ({}); without it a token would be {at_most:.2} times as fast at most",
                us(self.launch_ns),
                percent(self.launch_ns)
            ),
            Bound::Bandwidth => format!(
                "{reading}; reading without a pause would make it {at_most:.2} times as fast at most, beyond that only \
                 fewer bytes help; {waiting}; {largest}"
            ),
            Bound::Compute => format!(
                "its arithmetic at the rates measured takes {} of its {whole} us ({}); arithmetic without a pause would \
                 make it {at_most:.2} times as fast at most; {largest}",
                us(self.arithmetic_ns),
                percent(self.arithmetic_ns)
            ),
            Bound::Latency => format!(
                "nothing is in use for half of the time: {reading}, arithmetic {}, handing over {}; {waiting}; at its \
                 roof a token would be {at_most:.2} times as fast at most; {largest}",
                percent(self.arithmetic_ns),
                percent(self.launch_ns)
            ),
        };
        let doubt = if self.read_ns > self.whole {
            "; it reads faster than the ceiling beside it, which other work on the machine lowered: measure again when it \
             is quiet"
        } else {
            ""
        };
        let rest = rest + &apart(m.attributed.median);
        format!("{}-bound: {rest}{doubt}", bound.name())
    }

    fn largest(&self, row: &Row) -> String {
        let of = |name: &str, p: Option<f64>| p.map(|p| format!("{p:.0}% of {name}"));
        let roofs: Vec<String> = [of("reading", row.percent_of_read), of("arithmetic", row.percent_of_arithmetic)]
            .into_iter()
            .flatten()
            .collect();
        let share = 100.0 * row.time_ns.median / self.whole;
        format!("the largest part is {} ({share:.0}%), at {}", row.name, roofs.join(" and "))
    }
}
