//! n = x rsqrt(mean(x^2) + eps) gamma.

use crate::reference::Real;

/// The norm of each row of `x`.
pub fn norm<T: Real>(x: &[T], gamma: &[T], eps: f64) -> Vec<T> {
    let mean = |row: &[T]| {
        let mut sum = T::of(0.0);
        for v in row {
            sum += *v * *v;
        }
        sum / T::of(gamma.len() as f64)
    };
    let rows = x.chunks(gamma.len()).map(|row| (row, T::of(1.0) / (mean(row) + T::of(eps)).sqrt()));
    rows.flat_map(|(row, r)| row.iter().zip(gamma).map(move |(v, g)| *v * r * *g)).collect()
}
