//! Gradient of a cross entropy by its logits.

use crate::gpu::cross_entropy::reference::Loss;
use crate::reference::Real;

/// dx from the forward pass's `lse` and the gradient `up`, one value or one a token as the reduction asks.
pub fn cross_entropy_backward<T: Real>(x: &[T], targets: &[u32], lse: &[T], up: &[T], o: &Loss) -> [Vec<T>; 1] {
    let up = o.upstream(targets, up);
    let mut dx = vec![T::of(0.0); x.len()];
    for (t, target) in targets.iter().enumerate().filter(|(_, target)| o.live(**target)) {
        for v in 0..o.vocab {
            let c = o.logit(x[t * o.vocab + v]);
            let mut d = (T::of(1.0) + T::of(2.0 * o.z) * lse[t]) * (c - lse[t]).exp();
            d += -T::of(o.smooth / o.vocab as f64);
            if v == *target as usize {
                d += -T::of(1.0 - o.smooth);
            }
            if o.cap > 0.0 {
                d = d * (x[t * o.vocab + v] * T::of(o.scale) / T::of(o.cap)).tanh_slope();
            }
            dx[t * o.vocab + v] = up[t] * d * T::of(o.scale);
        }
    }
    [dx]
}

#[cfg(test)]
mod tests {
    use super::cross_entropy_backward;
    use crate::gpu::cross_entropy::reference::{Loss, Reduction, cross_entropy};

    #[test]
    fn gradients_are_the_slopes_of_the_forward_pass() {
        let x: Vec<f64> = (0..20).map(|i| 3.0 * (f64::from(i) * 1.3).sin()).collect();
        let targets = [4, 99, 2, 0];
        for (cap, smooth, z, reduction) in [
            (0.0, 0.0, 0.0, Reduction::Sum),
            (2.0, 0.0, 0.0, Reduction::Mean),
            (0.0, 0.2, 0.0, Reduction::None),
            (4.0, 0.1, 0.01, Reduction::Mean),
        ] {
            let o = Loss { vocab: 5, ignore: 2, scale: 1.5, cap, smooth, z, reduction };
            let up = if reduction == Reduction::None { vec![0.7, 0.8, 0.9, -0.5] } else { vec![0.7] };
            let lse = &cross_entropy(&x, &targets, &o)[1];
            let [dx] = cross_entropy_backward(&x, &targets, lse, &up, &o);
            let loss = |i: usize, h: f64| {
                let mut x = x.clone();
                x[i] += h;
                let [losses, _, total] = cross_entropy(&x, &targets, &o);
                match reduction {
                    Reduction::None => losses.iter().zip(&up).map(|(l, u)| l * u).sum::<f64>(),
                    _ => total[0] * up[0],
                }
            };
            for (i, d) in dx.iter().enumerate() {
                let slope = (loss(i, 1e-5) - loss(i, -1e-5)) / 2e-5;
                assert!((d - slope).abs() < 1e-9, "{o:?} dx[{i}] {d} {slope}");
            }
        }
    }
}
