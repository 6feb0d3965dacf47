//! Gradients of a linear cross entropy.

use crate::gpu::cross_entropy::reference::Loss;
use crate::gpu::cross_entropy_backward::reference::cross_entropy_backward;
use crate::gpu::linear_cross_entropy::reference::logits;
use crate::reference::Real;

/// The layer and what the forward pass saved.
pub struct Linear<'a, T> {
    /// `[tokens][hidden]`.
    pub h: &'a [T],
    /// `[vocab][hidden]`.
    pub w: &'a [T],
    /// `[vocab]`.
    pub bias: Option<&'a [T]>,
    /// `[tokens]`.
    pub targets: &'a [u32],
    /// `[tokens]`.
    pub lse: &'a [T],
    /// One value, or one a token, as the reduction asks.
    pub up: &'a [T],
}

/// dh, dw and dbias.
pub fn linear_cross_entropy_backward<T: Real>(l: &Linear<'_, T>, o: &Loss) -> [Vec<T>; 3] {
    let hidden = l.w.len() / o.vocab;
    let x = logits(l.h, l.w, l.bias, o.vocab);
    let [dx] = cross_entropy_backward(&x, l.targets, l.lse, l.up, o);
    let zeros = |n: usize| vec![T::of(0.0); n];
    let (mut dh, mut dw, mut dbias) = (zeros(l.h.len()), zeros(l.w.len()), zeros(o.vocab));
    for (t, dx) in dx.chunks(o.vocab).enumerate() {
        for (v, d) in dx.iter().enumerate() {
            dbias[v] += *d;
            for k in 0..hidden {
                dh[t * hidden + k] += *d * l.w[v * hidden + k];
                dw[v * hidden + k] += *d * l.h[t * hidden + k];
            }
        }
    }
    [dh, dw, dbias]
}

#[cfg(test)]
mod tests {
    use super::{Linear, linear_cross_entropy_backward};
    use crate::gpu::cross_entropy::reference::{Loss, Reduction};
    use crate::gpu::linear_cross_entropy::reference::linear_cross_entropy;

    #[test]
    fn gradients_are_the_slopes_of_the_forward_pass() {
        let wave = |n: usize, f: f64| (0..n).map(|i| (i as f64 * f).sin()).collect::<Vec<f64>>();
        let (h, w, bias) = (wave(12, 1.3), wave(15, 0.7), wave(5, 2.1));
        let (targets, up) = ([4, 99, 2, 0], [0.7]);
        let o = Loss { vocab: 5, ignore: 2, scale: 1.5, cap: 3.0, smooth: 0.1, z: 0.01, reduction: Reduction::Mean };
        let loss = |p: &[f64]| {
            let (h, rest) = p.split_at(12);
            linear_cross_entropy(h, &rest[..15], Some(&rest[15..]), &targets, &o)[2][0] * up[0]
        };
        let lse = &linear_cross_entropy(&h, &w, Some(&bias), &targets, &o)[1];
        let linear = Linear { h: &h, w: &w, bias: Some(&bias), targets: &targets, lse, up: &up };
        let gradients = linear_cross_entropy_backward(&linear, &o).concat();
        let at = [h, w, bias].concat();
        for (i, g) in gradients.iter().enumerate() {
            let (mut up, mut down) = (at.clone(), at.clone());
            up[i] += 1e-5;
            down[i] -= 1e-5;
            let slope = (loss(&up) - loss(&down)) / 2e-5;
            assert!((g - slope).abs() < 1e-9, "gradient {i}: {g} {slope}");
        }
    }
}
