//! Reference of every CPU op, generic over precision: in f64 the oracle, in f32 the yardstick of the error rule.
//!
//! They are written from the formula alone, one loop an index, and share no structure with the kernels.

pub mod act;
pub mod attention;
pub mod compare;
pub mod norm;
pub mod rope;
pub mod sample;
mod shaken;

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

pub use shaken::Shaken;

/// The arithmetic that a reference needs, at one precision.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// Rounds to this precision.
    fn of(x: f64) -> Self;
    /// The value, exactly.
    fn f64(self) -> f64;
    /// e^x.
    fn exp(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Slope of the hyperbolic tangent, 1 - tanh^2 x, to as many digits where the tangent is nearly 1.
    fn tanh_slope(self) -> Self {
        let e = (Self::of(-2.0) * if self < Self::of(0.0) { -self } else { self }).exp();
        Self::of(4.0) * e / ((Self::of(1.0) + e) * (Self::of(1.0) + e))
    }
    /// Square root.
    fn sqrt(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn f64(self) -> f64 {
                self as f64
            }
            fn exp(self) -> Self {
                self.exp()
            }
            fn tanh(self) -> Self {
                self.tanh()
            }
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            fn ln(self) -> Self {
                self.ln()
            }
            fn sin(self) -> Self {
                self.sin()
            }
            fn cos(self) -> Self {
                self.cos()
            }
        }
    };
}
real!(f32);
real!(f64);

/// `x` at precision `T`.
pub fn lift<T: Real>(x: &[f32]) -> Vec<T> {
    x.iter().map(|&v| T::of(v as f64)).collect()
}
