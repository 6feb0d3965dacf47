//! y[t] = scale W[ids[t]].

use crate::reference::Real;

/// The rows of `w`, of `cols` values, that `ids` name, times `scale`.
pub fn get_rows<T: Real>(w: &[T], cols: usize, ids: &[u32], scale: T) -> Vec<T> {
    let mut y = Vec::with_capacity(ids.len() * cols);
    for id in ids {
        let first = *id as usize * cols;
        y.extend(w[first..first + cols].iter().map(|v| *v * scale));
    }
    y
}
