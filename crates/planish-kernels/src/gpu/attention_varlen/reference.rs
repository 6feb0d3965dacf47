//! Attention of packed sequences: each one cut out, its heads taken apart, and attended by itself.

use crate::gpu::attention::inputs::Heads;
use crate::gpu::attention::reference::{Mask, forward};
use crate::reference::Real;

/// Rows `rows` of head `head` of a tensor `[token][heads][dim]`.
fn cut<T: Real>(x: &[T], rows: std::ops::Range<usize>, (heads, head): (usize, usize), dim: usize) -> Vec<T> {
    rows.flat_map(|r| x[(r * heads + head) * dim..][..dim].to_vec()).collect()
}

/// Output `[token][heads][dim]` and log-sum-exp `[token][heads]`; `mask` has the options, its rows are set by sequence.
pub fn packed<T: Real>(mask: &Mask, heads: Heads, [q, k, v]: [&[T]; 3], cu: [&[u32]; 2]) -> (Vec<T>, Vec<T>) {
    let dim = mask.dim;
    let mut out = vec![T::of(0.0); q.len()];
    let mut lse = vec![T::of(0.0); q.len() / dim];
    for s in 0..cu[0].len() - 1 {
        let [queries, keys] = cu.map(|c| c[s] as usize..c[s + 1] as usize);
        let mask = Mask { queries: queries.len(), keys: keys.len(), ..*mask };
        for h in 0..heads.q {
            let kv = (heads.kv, heads.kv_of(h));
            let q = cut(q, queries.clone(), (heads.q, h), dim);
            let (o, l) = forward(&mask, &q, &cut(k, keys.clone(), kv, dim), &cut(v, keys.clone(), kv, dim));
            for (i, row) in queries.clone().enumerate() {
                let at = row * heads.q + h;
                out[at * dim..][..dim].copy_from_slice(&o[i * dim..][..dim]);
                lse[at] = l[i];
            }
        }
    }
    (out, lse)
}
