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

/// What the roundings on the way to dh are relative to, so that each error is some of them times this.
///
/// A logit x = h w is within roundings of a = sum |h w|, and the capped one c within those of slope a and of c. The weight
/// p = exp(c - lse) turns an absolute error of c and lse into a relative one, where lse is as far off as the logits that
/// make it and its own rounding; the slope of a cap, whose logarithm changes by at most 2 / cap a unit of x, does so too.
/// With large logits this is more than the terms G w that dh is the sum of.
pub fn magnitudes(l: &Linear<'_, f64>, o: &Loss) -> Vec<f64> {
    let hidden = l.w.len() / o.vocab;
    let absolute = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<f64>>();
    let bias = l.bias.map(absolute);
    let x = logits(l.h, l.w, l.bias, o.vocab);
    let all = logits(&absolute(l.h), &absolute(l.w), bias.as_deref(), o.vocab);
    let [_, lse, _] = cross_entropy(&x, l.targets, o);
    let upstream = o.upstream(l.targets, l.up);
    let mut magnitudes = vec![0.0; l.h.len()];
    for (t, target) in l.targets.iter().enumerate().filter(|(_, target)| o.live(**target)) {
        let of = |v: usize| (o.scale * x[t * o.vocab + v], o.scale * all[t * o.vocab + v]);
        let slope = |x: f64| if o.cap > 0.0 { (x / o.cap).tanh_slope() } else { 1.0 };
        // The weight of v, and what its logit is off by.
        let weight = |v: usize| (o.logit(x[t * o.vocab + v]) - lse[t]).exp();
        let off = |v: usize| slope(of(v).0) * of(v).1 + o.logit(x[t * o.vocab + v]).abs();
        let off_lse = lse[t].abs() + (0..o.vocab).map(|v| weight(v) * off(v)).sum::<f64>();
        for v in 0..o.vocab {
            let turn = if o.cap > 0.0 { 1.0 + 2.0 * of(v).1 / o.cap } else { 1.0 };
            let grown = (1.0 + 2.0 * o.z * lse[t]).abs() * (1.0 + off(v) + off_lse) + 2.0 * o.z * off_lse;
            let still = o.smooth / o.vocab as f64 + if v == *target as usize { 1.0 - o.smooth } else { 0.0 };
            let term = upstream[t].abs() * o.scale.abs() * slope(of(v).0) * turn * (weight(v) * grown + still);
            for k in 0..hidden {
                magnitudes[t * hidden + k] += term * l.w[v * hidden + k].abs();
            }
        }
    }
    magnitudes
}
