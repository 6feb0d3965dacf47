//! Rotary embedding of whole tensors, with the angle rounded to f32 as every implementation does.

use crate::gpu::rms_norm::reference::rms_norm;
use crate::reference::{Real, rope::Pairs};

/// How heads are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// Elements of a head.
    pub head_dim: usize,
    /// Radians a position, one a pair.
    pub frequencies: &'a [f32],
    /// Factor of sine and cosine.
    pub magnitude: f64,
    /// How rotary elements pair up.
    pub pairs: Pairs,
    /// Whether gradients are rotated, which is by the negative angle.
    pub backward: bool,
}

/// Rotates `x`, which holds the same number of heads for each of `positions`; `norm` holds weights and eps.
pub fn rope<T: Real>(x: &[T], positions: &[u32], norm: Option<(&[T], f64)>, turn: &Turn<'_>) -> Vec<T> {
    let mut y = match norm {
        Some((w, eps)) => rms_norm(x, w, eps),
        None => x.to_vec(),
    };
    let n = turn.frequencies.len();
    for (token, position) in y.chunks_mut(x.len() / positions.len()).zip(positions) {
        for head in token.chunks_mut(turn.head_dim) {
            for (i, f) in turn.frequencies.iter().enumerate() {
                let angle = T::of(f64::from(*position as f32 * *f));
                let sin = if turn.backward { -angle.sin() } else { angle.sin() };
                let (cos, sin) = (T::of(turn.magnitude) * angle.cos(), T::of(turn.magnitude) * sin);
                let (a, b) = if turn.pairs == Pairs::Halves { (i, i + n) } else { (2 * i, 2 * i + 1) };
                let (x1, x2) = (head[a], head[b]);
                head[a] = x1 * cos - x2 * sin;
                head[b] = x1 * sin + x2 * cos;
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::{Turn, rope};
    use crate::reference::rope::Pairs;

    #[test]
    fn the_backward_rotation_is_the_slope_of_the_forward_one() {
        let x: Vec<f64> = (0..20).map(|i| (f64::from(i) * 1.1).sin()).collect();
        let dy: Vec<f64> = (0..20).map(|i| (f64::from(i) * 0.7).cos()).collect();
        for pairs in [Pairs::Halves, Pairs::Neighbours] {
            let turn = |backward| Turn { head_dim: 5, frequencies: &[1.0, 0.3], magnitude: 1.2, pairs, backward };
            let dx = rope(&dy, &[3, 40], None, &turn(true));
            for i in 0..x.len() {
                // The rotation is linear, so a step of 1 is exact.
                let mut stepped = x.clone();
                stepped[i] += 1.0;
                let loss = |x: &[f64]| {
                    let y = rope(x, &[3, 40], None, &turn(false));
                    y.iter().zip(&dy).map(|(y, d)| y * d).sum::<f64>()
                };
                let slope = loss(&stepped) - loss(&x);
                assert!((dx[i] - slope).abs() < 1e-12, "{pairs:?} dx[{i}] {} {slope}", dx[i]);
            }
        }
    }
}
