//! y = W x.

use crate::reference::Real;

/// `[tokens][rows]`: the products of each token of `x` with the rows of `w`, all of `cols` values.
pub fn products<T: Real>(w: &[T], x: &[T], cols: usize) -> Vec<T> {
    let mut y = Vec::new();
    for token in x.chunks(cols) {
        for row in w.chunks(cols) {
            let mut sum = T::of(0.0);
            for (w, x) in row.iter().zip(token) {
                sum += *w * *x;
            }
            y.push(sum);
        }
    }
    y
}
