//! Attention of one query a sequence, by the definition of attention over the keys that are stored.

use crate::gpu::attention::inputs::Heads;
use crate::gpu::attention::reference::{Mask, forward};
use crate::reference::Real;

/// Output `[sequence][heads][dim]`; `mask` has the options and in `keys` the capacity of a sequence's cache.
pub fn decode<T: Real>(mask: &Mask, heads: Heads, [q, k, v]: [&[T]; 3], lengths: &[u32]) -> Vec<T> {
    let (dim, capacity) = (mask.dim, mask.keys);
    let mut out = Vec::with_capacity(q.len());
    for (s, length) in lengths.iter().enumerate() {
        let mask = Mask { queries: 1, keys: *length as usize, causal: true, ..*mask };
        for h in 0..heads.q {
            let cache = (s * heads.kv + heads.kv_of(h)) * capacity * dim..;
            let q = &q[(s * heads.q + h) * dim..][..dim];
            let stored = mask.keys * dim;
            out.extend(forward(&mask, q, &k[cache.clone()][..stored], &v[cache][..stored]).0);
        }
    }
    out
}
