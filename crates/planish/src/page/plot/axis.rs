//! Ranges of values on a line of pixels, and the ticks on them.

use super::Scale;
use crate::page::number;

/// Values from `lo` to `hi` laid out from pixel `from` to pixel `to`.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    lo: f64,
    hi: f64,
    scale: Scale,
    from: f64,
    to: f64,
}

/// Nothing that is measured is further from zero, or nearer to it on a logarithmic axis: what a file says beyond is drawn
/// at the end, and leaves the steps between ticks countable.
const LARGEST: f64 = 1e30;

/// Whether an axis must begin at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// It must: lengths are compared.
    Zero,
    /// It need not: places are compared.
    Free,
}

impl Range {
    /// A range that holds `values` (those that can be measured, and on a logarithmic axis are above zero) with some room.
    pub fn around(values: impl IntoIterator<Item = f64>, scale: Scale, base: Base, (from, to): (f64, f64)) -> Self {
        let usable = |v: &f64| v.abs() < LARGEST && (scale == Scale::Linear || *v > 1.0 / LARGEST);
        let (mut lo, mut hi) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.into_iter().filter(usable) {
            (lo, hi) = (lo.min(v), hi.max(v));
        }
        if lo > hi {
            // Nothing to show is shown around 1.
            (lo, hi) = (1.0, 1.0);
        }
        match scale {
            Scale::Log | Scale::Log2 => {
                let room = (hi / lo).powf(0.04).max(1.05);
                (lo, hi) = (lo / room, hi * room);
            }
            Scale::Linear => {
                // Zero is shown where it is near; a plot of ratios from 0.99 to 1.02 needs none.
                let near = base == Base::Zero || lo < 0.3 * hi;
                let room = if hi > lo { 0.05 * (hi - lo) } else { 0.05 * hi.abs().max(1e-9) };
                (lo, hi) = (if near && lo >= 0.0 { 0.0 } else { lo - room }, hi + room);
            }
        }
        Range { lo, hi, scale, from, to }
    }

    /// Its ends.
    pub fn ends(&self) -> (f64, f64) {
        (self.lo, self.hi)
    }

    /// The pixel of `v`, which is drawn at the nearer end when it lies outside.
    pub fn at(&self, v: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (v - self.lo) / (self.hi - self.lo),
            Scale::Log | Scale::Log2 => (v.max(f64::MIN_POSITIVE) / self.lo).ln() / (self.hi / self.lo).ln(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Whether `v` lies inside.
    pub fn holds(&self, v: f64) -> bool {
        (self.lo..=self.hi).contains(&v)
    }

    /// Round values inside, at most about `most`, with their labels.
    pub fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => self.linear_ticks(most.max(2)),
            Scale::Log => self.log_ticks(most.max(2)),
            Scale::Log2 => self.binary_ticks(most.max(2)),
        }
    }

    fn linear_ticks(&self, most: usize) -> Vec<(f64, String)> {
        let rough = (self.hi - self.lo) / most as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(10.0 * power);
        let first = (self.lo / step - 1e-9).ceil() as i64;
        let values = (first..).map(|i| i as f64 * step).take_while(|v| *v <= self.hi + 1e-9 * step);
        values.take(64).map(|v| (v, number::tick(v, step))).collect()
    }

    fn log_ticks(&self, most: usize) -> Vec<(f64, String)> {
        let (first, last) = (self.lo.log10().floor() as i32, self.hi.log10().ceil() as i32);
        let of = |digits: &[f64], every: i32| -> Vec<f64> {
            let decades = (first..=last).filter(|e| e.rem_euclid(every) == 0);
            decades.flat_map(|e| digits.iter().map(move |d| d * 10f64.powi(e))).filter(|v| self.holds(*v)).collect()
        };
        let choices = [
            of(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 1),
            of(&[1.0, 2.0, 3.0, 5.0], 1),
            of(&[1.0, 2.0, 5.0], 1),
            of(&[1.0, 3.0], 1),
            of(&[1.0], 1),
            of(&[1.0], 2),
            of(&[1.0], 3),
        ];
        let fits = choices.iter().find(|c| c.len() <= most);
        let values = fits.filter(|c| c.len() >= 2).cloned().unwrap_or_else(|| self.linear_values(most));
        values.into_iter().map(|v| (v, number::tick(v, significant(v)))).collect()
    }

    fn binary_ticks(&self, most: usize) -> Vec<(f64, String)> {
        let exponents = self.lo.log2().ceil() as i32..=self.hi.log2().floor() as i32;
        let every = (exponents.clone().count().div_ceil(most)).max(1);
        let values = exponents.step_by(every).map(|e| 2f64.powi(e));
        values.map(|v| (v, number::tick(v, v.min(1.0)))).collect()
    }

    /// Where a logarithmic axis is so short that powers of ten say nothing.
    fn linear_values(&self, most: usize) -> Vec<f64> {
        self.linear_ticks(most).into_iter().map(|t| t.0).filter(|v| *v > 0.0).collect()
    }
}

/// The place of the last digit that `v` needs, as a step: 0.1 for 2.5, 100 for 300.
fn significant(v: f64) -> f64 {
    let power = 10f64.powf(v.abs().log10().floor());
    let exact = |step: &f64| (v / step - (v / step).round()).abs() < 1e-6;
    [power, power / 10.0, power / 100.0].into_iter().find(exact).unwrap_or(power / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[f64], scale: Scale, most: usize, want: &[&str]) {
        let range = Range::around(values.iter().copied(), scale, Base::Free, (0.0, 100.0));
        let ticks = range.ticks(most);
        assert_eq!(ticks.iter().map(|t| t.1.as_str()).collect::<Vec<_>>(), want);
        assert!(ticks.iter().all(|t| range.holds(t.0) && (0.0..=100.0).contains(&range.at(t.0))));
    }

    #[test]
    fn ticks_are_round() {
        check(&[0.99, 1.62], Scale::Linear, 5, &["1.0", "1.2", "1.4", "1.6"]);
        check(&[1.0, 9.0], Scale::Linear, 6, &["0", "2", "4", "6", "8"]);
        check(&[0.1, 1000.0], Scale::Log, 5, &["0.1", "1", "10", "100", "1000"]);
        check(&[3.0, 700.0], Scale::Log, 6, &["3", "10", "30", "100", "300"]);
        check(&[1.0, 100_000.0], Scale::Log, 3, &["1", "100", "10,000"]);
        check(&[16.0, 256.0], Scale::Log2, 9, &["16", "32", "64", "128", "256"]);
        check(&[16.0, 256.0], Scale::Log2, 3, &["16", "64", "256"]);
        check(&[], Scale::Linear, 4, &["0.95", "1.00", "1.05"]);
    }

    /// They come from a file, and one wrong number must not take all memory.
    #[test]
    fn numbers_that_nothing_measures_have_no_ticks() {
        for scale in [Scale::Linear, Scale::Log, Scale::Log2] {
            for values in [[1e-308, 1e308], [-1e308, 1e308], [f64::NAN, f64::INFINITY]] {
                let ticks = Range::around(values, scale, Base::Free, (0.0, 100.0)).ticks(5);
                assert!(ticks.len() < 20 && ticks.iter().all(|t| t.0.is_finite()), "{scale:?} {values:?}: {ticks:?}");
            }
        }
        check(&[2.0, 8.0, 1e308], Scale::Log2, 9, &["2", "4", "8"]);
    }

    #[test]
    fn values_outside_are_drawn_at_the_end() {
        let range = Range::around([1.0, 2.0], Scale::Linear, Base::Free, (10.0, 20.0));
        assert_eq!((range.at(-5.0), range.at(99.0)), (10.0, 20.0));
        assert!(range.holds(1.5) && !range.holds(0.5));
    }
}
