//! Time: a clock that tests can replace, the one budget that everything charges, and its split over a worklist.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary fixed start; never goes back.
    fn now(&self) -> Duration;
    /// Lets `d` pass.
    fn sleep(&self, d: Duration);
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct WallClock(Instant);

impl WallClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        WallClock(Instant::now())
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, d: Duration) {
        std::thread::sleep(d);
    }
}

/// A clock that moves only when told to; clones share the time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock on by `ns` nanoseconds.
    pub fn advance_ns(&self, ns: f64) {
        self.0.fetch_add(ns.max(0.0).round() as u64, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, d: Duration) {
        self.0.fetch_add(d.as_nanos() as u64, Ordering::SeqCst);
    }
}

/// The one allowance that building, gating, warming, timing and cooling all charge.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    clock: &'a dyn Clock,
    start: Duration,
    limit: Duration,
}

impl<'a> Budget<'a> {
    /// `limit` of `clock`'s time, starting now.
    pub fn new(clock: &'a dyn Clock, limit: Duration) -> Self {
        Budget { clock, start: clock.now(), limit }
    }

    /// The clock that is charged.
    pub fn clock(&self) -> &'a dyn Clock {
        self.clock
    }

    /// The whole allowance.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Time gone since the start.
    pub fn spent(&self) -> Duration {
        self.clock.now().saturating_sub(self.start)
    }

    /// Time left; zero when exhausted.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.spent())
    }

    /// Whether something that takes about `d` still fits.
    pub fn affords(&self, d: Duration) -> bool {
        !self.left().is_zero() && d <= self.left()
    }
}

/// The allowance of the first of `weights` when `left` remains for all of them, heaviest first.
///
/// Every item that fits gets at least `floor`; what is above the floors is split by weight.
/// Call it again after each item with the time that is really left, and unspent time flows on.
/// `None` when not even one floor is left, or no item is: the item keeps its default untried.
pub fn allot(left: Duration, weights: &[f64], floor: Duration) -> Option<Duration> {
    let (first, sum) = (weights.first()?.max(0.0), weights.iter().map(|w| w.max(0.0)).sum::<f64>());
    if left < floor || left.is_zero() {
        return None;
    }
    let floors = floor.saturating_mul(u32::try_from(weights.len()).unwrap_or(u32::MAX));
    let above = left.saturating_sub(floors);
    let part = if sum > 0.0 { first / sum } else { 1.0 / weights.len() as f64 };
    Some((floor + above.mul_f64(part)).min(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    /// Runs a worklist in which each item spends `spend` of its allowance; returns the allowances.
    fn run(total: Duration, weights: &[f64], floor: Duration, spend: f64) -> Vec<Option<Duration>> {
        let mut left = total;
        (0..weights.len())
            .map(|i| {
                let got = allot(left, &weights[i..], floor);
                left = left.saturating_sub(got.unwrap_or_default().mul_f64(spend));
                got
            })
            .collect()
    }

    #[test]
    fn a_full_split_spends_everything_by_weight() {
        let got = run(S(60), &[0.5, 0.3, 0.2], S(2), 1.0);
        let want = [2.0 + 27.0, 2.0 + 16.2, 2.0 + 10.8];
        for (g, w) in got.iter().zip(want) {
            assert!((g.expect("fits").as_secs_f64() - w).abs() < 1e-6, "{got:?}");
        }
    }

    #[test]
    fn unspent_time_flows_on() {
        let got = run(S(60), &[0.5, 0.3, 0.2], S(2), 0.5);
        let whole: Duration = got[2].expect("fits");
        assert!(whole > S(30), "the last item gets all that the others left: {whole:?}");
        let spent: f64 = got.iter().map(|g| g.expect("fits").as_secs_f64() * 0.5).sum();
        assert!(spent <= 60.0);
    }

    #[test]
    fn too_many_floors_serve_the_heaviest_first() {
        assert_eq!(run(S(5), &[3.0, 2.0, 1.0], S(2), 1.0), [Some(S(2)), Some(S(2)), None]);
        assert_eq!(allot(S(5), &[], S(1)), None);
        assert_eq!(allot(S(6), &[0.0, 0.0], S(1)), Some(S(3)));
    }

    #[test]
    fn a_budget_charges_whatever_passes() {
        let clock = VirtualClock::new();
        clock.sleep(S(3));
        let budget = Budget::new(&clock, S(2));
        assert_eq!(budget.left(), S(2));
        clock.advance_ns(1.5e9);
        assert!(budget.affords(Duration::from_millis(500)));
        assert!(!budget.affords(Duration::from_millis(501)));
        clock.sleep(S(9));
        assert!(budget.left().is_zero() && !budget.affords(Duration::ZERO));
    }
}
