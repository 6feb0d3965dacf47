//! Loss of a linear layer's logits and its gradient by the layer's input.

use crate::gpu::cross_entropy::reference::{Loss, cross_entropy};
use crate::gpu::cross_entropy_backward::reference::cross_entropy_backward;
use crate::gpu::linear_cross_entropy::reference::logits;
use crate::gpu::linear_cross_entropy_backward::reference::Linear;
use crate::reference::Real;

/// dh; the layer's `lse` is not looked at.
///
/// `round` is of each logit's slope, counted in the token's upstream gradient, before it multiplies a row of w: where that
/// product takes operands of 16 bits, slopes are of 16 bits too.
pub fn gradient<T: Real>(l: &Linear<'_, T>, o: &Loss, round: impl Fn(T) -> T) -> Vec<T> {
    let hidden = l.w.len() / o.vocab;
    let x = logits(l.h, l.w, l.bias, o.vocab);
    let [_, lse, _] = cross_entropy(&x, l.targets, o);
    let [dx] = cross_entropy_backward(&x, l.targets, &lse, l.up, o);
    let upstream = o.upstream(l.targets, l.up);
    let mut dh = vec![T::of(0.0); l.h.len()];
    for (t, dx) in dx.chunks(o.vocab).enumerate() {
        let unit = upstream[t] * T::of(o.scale);
        for (v, d) in dx.iter().enumerate().filter(|(_, d)| **d != T::of(0.0)) {
            let d = round(*d / unit) * unit;
            for k in 0..hidden {
                dh[t * hidden + k] += d * l.w[v * hidden + k];
            }
        }
    }
    dh
}
