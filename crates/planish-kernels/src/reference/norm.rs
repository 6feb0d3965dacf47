//! RMS norm of a row: y = x w / sqrt(mean x^2 + eps).

use super::Real;

/// One row of `x` times the weights `w` of the same length.
pub fn rms_norm<T: Real>(x: &[T], w: &[T], eps: f64) -> Vec<T> {
    let mut squares = T::of(0.0);
    for &v in x {
        squares += v * v;
    }
    let r = T::of(1.0) / (squares / T::of(x.len() as f64) + T::of(eps)).sqrt();
    x.iter().zip(w).map(|(&v, &g)| v * r * g).collect()
}
