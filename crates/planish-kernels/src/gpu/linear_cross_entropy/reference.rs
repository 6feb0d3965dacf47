//! Cross entropy of the logits of a linear layer.

use crate::gpu::cross_entropy::reference::{Loss, cross_entropy};
use crate::reference::Real;

/// h `[tokens][hidden]` times the transpose of w `[vocab][hidden]`, plus the bias where there is one.
pub fn logits<T: Real>(h: &[T], w: &[T], bias: Option<&[T]>, vocab: usize) -> Vec<T> {
    let hidden = w.len() / vocab;
    let mut x = Vec::new();
    for h in h.chunks(hidden) {
        for v in 0..vocab {
            let mut sum = T::of(0.0);
            for k in 0..hidden {
                sum += h[k] * w[v * hidden + k];
            }
            x.push(bias.map_or(sum, |b| sum + b[v]));
        }
    }
    x
}

/// As [`cross_entropy`], of those logits.
pub fn linear_cross_entropy<T: Real>(h: &[T], w: &[T], bias: Option<&[T]>, targets: &[u32], o: &Loss) -> [Vec<T>; 3] {
    cross_entropy(&logits(h, w, bias, o.vocab), targets, o)
}
