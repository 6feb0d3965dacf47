//! y = x rsqrt(mean(x^2) + eps) w.

use crate::reference::Real;

/// The norm of each row of `x`, which has `w.len()` columns.
pub fn rms_norm<T: Real>(x: &[T], w: &[T], eps: f64) -> Vec<T> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks(w.len()) {
        let mut sum = T::of(0.0);
        for v in row {
            sum += *v * *v;
        }
        let r = T::of(1.0) / (sum / T::of(w.len() as f64) + T::of(eps)).sqrt();
        y.extend(row.iter().zip(w).map(|(v, w)| *v * r * *w));
    }
    y
}
