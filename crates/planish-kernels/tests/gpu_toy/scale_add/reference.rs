//! y = a x + y.

use planish_kernels::reference::Real;

/// `a x + y`, element by element.
pub fn scale_add<T: Real>(a: T, x: &[T], y: &[T]) -> Vec<T> {
    x.iter().zip(y).map(|(x, y)| a * *x + *y).collect()
}
