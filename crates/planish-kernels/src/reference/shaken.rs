//! f32 arithmetic of which every operation rounds up or down at random: other draws of the error that plain f32 makes.
//!
//! A result by f32 errs by one draw of many roundings. Where few numbers decide how large it is (one logit, one row that
//! outweighs the rest), the draw of plain arithmetic may be small by luck, and says little of how far another order of the
//! same operations comes; draws of their own say it. What f32 holds exactly stays exact, and whatever cancels or is
//! amplified on the way does so in every draw.
//! The method is stochastic arithmetic (Parker, "Monte Carlo arithmetic", 1997).

use std::cell::Cell;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use super::Real;
use crate::op::Dtype;

thread_local! {
    static DICE: Cell<u64> = const { Cell::new(1) };
}

/// A value of f32.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Shaken(f32);

impl Shaken {
    /// Runs `f` as many times as make a fair sample of the errors of its `n` outputs of type `io`; the same at every call.
    ///
    /// Outputs of 16 bits need none: their one rounding to that type is far coarser.
    pub fn draws<R>(io: Dtype, n: usize, f: impl Fn() -> R) -> Vec<R> {
        if io != Dtype::F32 {
            return Vec::new();
        }
        let draw = |seed| {
            DICE.set(1 + seed as u64);
            f()
        };
        (0..(OUTPUTS / n.max(1)).min(MOST)).map(draw).collect()
    }

    /// How far `draw` is from `exact`, counted as an error of rounding to the nearest: those have half the variance.
    pub fn error(self, exact: f64) -> f64 {
        (f64::from(self.0) - exact).abs() * std::f64::consts::FRAC_1_SQRT_2
    }
}

/// Outputs of all draws together, which bounds what they cost: a tensor of as many shows by itself how large errors get.
const OUTPUTS: usize = 1 << 15;
/// Of 33 draws of a single number, plain arithmetic's with them, twice the largest is exceeded once in tens of thousands.
const MOST: usize = 32;

/// `x` as one of its two neighbours in f32, each as likely as the other is far.
fn shake(x: f64) -> Shaken {
    let near = x as f32;
    let rest = x - f64::from(near);
    if rest == 0.0 || !near.is_finite() {
        return Shaken(near);
    }
    let other = if rest > 0.0 { near.next_up() } else { near.next_down() };
    let step = f64::from(other) - f64::from(near);
    Shaken(if roll() * step.abs() < rest.abs() { other } else { near })
}

/// Uniform in 0..1: a multiplicative generator, since far more numbers are drawn here than for any inputs.
fn roll() -> f64 {
    let dice = DICE.get().wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x9e37_79b9_7f4a_7c15);
    DICE.set(dice);
    (dice >> 11) as f64 * f64::exp2(-53.0)
}

macro_rules! operator {
    ($($op:ident $f:ident),*) => {$(
        impl $op for Shaken {
            type Output = Self;
            fn $f(self, other: Self) -> Self {
                shake(f64::from(self.0).$f(f64::from(other.0)))
            }
        }
    )*};
}
operator!(Add add, Sub sub, Mul mul, Div div);

impl Neg for Shaken {
    type Output = Self;
    fn neg(self) -> Self {
        Shaken(-self.0)
    }
}

impl AddAssign for Shaken {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

macro_rules! functions {
    ($($f:ident),*) => {$(
        fn $f(self) -> Self {
            shake(self.f64().$f())
        }
    )*};
}

impl Real for Shaken {
    fn of(x: f64) -> Self {
        Shaken(x as f32)
    }
    fn f64(self) -> f64 {
        f64::from(self.0)
    }
    functions!(exp, tanh, sqrt, ln, sin, cos);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand additions of 0.1 in f32, whose every rounding goes the same way when it goes to the nearest.
    fn sum<T: Real>() -> T {
        let mut sum = T::of(0.0);
        (0..1000).for_each(|_| sum += T::of(f64::from(0.1f32)));
        sum
    }

    #[test]
    fn errors_are_those_of_roundings_without_a_bias() {
        let exact = 1000.0 * f64::from(0.1f32);
        let draws = Shaken::draws(Dtype::F32, 1, sum::<Shaken>);
        let errors: Vec<f64> = draws.iter().map(|s| s.f64() - exact).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let rms = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
        // Half of the sums are over 50, where f32 steps by 2^-18: 1000 roundings of at most that.
        assert!(rms > f64::exp2(-18.0) && rms < f64::exp2(-18.0) * 1000f64.sqrt(), "{rms:e}");
        assert!(mean.abs() < 4.0 * rms / (errors.len() as f64).sqrt(), "{mean:e} of {rms:e}");
        assert_eq!(draws, Shaken::draws(Dtype::F32, 1, sum::<Shaken>), "the same draws at every call");
    }

    #[test]
    fn what_f32_holds_stays() {
        let whole =
            || Shaken::of(3.0) * Shaken::of(0.5) - Shaken::of(1024.0) / Shaken::of(64.0) + Shaken::of(9.0).sqrt();
        assert!(Shaken::draws(Dtype::F32, 1, whole).iter().all(|s| *s == Shaken::of(-11.5)));
        assert_eq!(Shaken::draws(Dtype::F32, 1 << 14, whole).len(), 2);
        assert!(Shaken::draws(Dtype::F16, 1, whole).is_empty());
    }
}
