//! Gated activations and softcap, element by element.

use super::Real;

/// a / (1 + e^-a) * b.
pub fn swiglu<T: Real>(a: T, b: T) -> T {
    a / (T::of(1.0) + (-a).exp()) * b
}

/// 0.5 a (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3))) * b.
pub fn geglu<T: Real>(a: T, b: T) -> T {
    let u = T::of((2.0 / std::f64::consts::PI).sqrt()) * (a + T::of(0.044715) * a * a * a);
    T::of(0.5) * a * (T::of(1.0) + u.tanh()) * b
}

/// cap tanh(x / cap).
pub fn softcap<T: Real>(x: T, cap: f64) -> T {
    T::of(cap) * (x / T::of(cap)).tanh()
}
