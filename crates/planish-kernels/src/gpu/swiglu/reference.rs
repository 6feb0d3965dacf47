//! y = silu(a) b.

use crate::reference::Real;

/// `silu(a) b` for each pair.
pub fn swiglu<T: Real>(a: &[T], b: &[T]) -> Vec<T> {
    a.iter().zip(b).map(|(a, b)| *a / (T::of(1.0) + (-*a).exp()) * *b).collect()
}
