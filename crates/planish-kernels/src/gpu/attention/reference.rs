//! Attention of one head and its gradients, by the definition: an explicit mask over all pairs, softmax, weighted sums.

use crate::reference::Real;

/// Sizes of a head's attention, which keys a query sees, and how scores are formed.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// Query rows.
    pub queries: usize,
    /// Key rows; the last query is aligned with the last key.
    pub keys: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Whether a query sees no key past its own position.
    pub causal: bool,
    /// Keys up to its own position that a query sees; 0 where all.
    pub window: usize,
    /// Factor of the dot products.
    pub scale: f64,
    /// c = cap tanh(s / cap), unless 0.
    pub softcap: f64,
}

impl Mask {
    /// Whether query `i` sees key `j`.
    pub fn sees(&self, i: usize, j: usize) -> bool {
        let position = i as i64 + self.keys as i64 - self.queries as i64;
        let j = j as i64;
        (!self.causal || j <= position) && (self.window == 0 || j > position - self.window as i64)
    }

    /// Visible pairs of a query and a key.
    pub fn pairs(&self) -> u64 {
        let count = |i: usize| {
            let position = i as i64 + self.keys as i64 - self.queries as i64;
            let end = if self.causal { (position + 1).min(self.keys as i64) } else { self.keys as i64 };
            let begin = if self.window == 0 { 0 } else { (position - self.window as i64 + 1).max(0) };
            (end - begin).max(0) as u64
        };
        (0..self.queries).map(count).sum()
    }
}

/// dc/ds and c of a scaled dot product s.
fn capped<T: Real>(mask: &Mask, a: &[T], b: &[T]) -> (T, T) {
    let mut dot = T::of(0.0);
    for (x, y) in a.iter().zip(b) {
        dot += *x * *y;
    }
    let s = T::of(mask.scale) * dot;
    if mask.softcap == 0.0 {
        return (T::of(1.0), s);
    }
    let x = s / T::of(mask.softcap);
    (x.tanh_slope(), T::of(mask.softcap) * x.tanh())
}

/// Output `[queries][dim]` and log-sum-exp `[queries]`; zeros and negative infinity for a query that sees no key.
pub fn forward<T: Real>(mask: &Mask, q: &[T], k: &[T], v: &[T]) -> (Vec<T>, Vec<T>) {
    forward_weighed(mask, [q, k, v], |weight| weight)
}

/// The same with `round` of each weight before it multiplies a row of v, and before the division by their sum, which
/// counts what was not rounded: where the product with v takes operands of 16 bits, weights are of 16 bits too.
pub fn forward_weighed<T: Real>(mask: &Mask, [q, k, v]: [&[T]; 3], round: impl Fn(T) -> T) -> (Vec<T>, Vec<T>) {
    let d = mask.dim;
    let mut out = vec![T::of(0.0); mask.queries * d];
    let mut lse = vec![T::of(f64::NEG_INFINITY); mask.queries];
    for i in 0..mask.queries {
        let seen: Vec<usize> = (0..mask.keys).filter(|j| mask.sees(i, *j)).collect();
        let c: Vec<T> = seen.iter().map(|j| capped(mask, &q[i * d..][..d], &k[j * d..][..d]).1).collect();
        let Some(largest) = c.iter().copied().reduce(|a, b| if b > a { b } else { a }) else { continue };
        let mut total = T::of(0.0);
        for c in &c {
            total += (*c - largest).exp();
        }
        lse[i] = largest + total.ln();
        for (j, c) in seen.iter().zip(&c) {
            let p = round((*c - largest).exp()) / total;
            for e in 0..d {
                out[i * d + e] += p * v[j * d + e];
            }
        }
    }
    (out, lse)
}

/// What a gradient needs beside the mask: rows of `dim` elements, but `lse` a value a query.
#[derive(Clone, Copy)]
pub struct Saved<'a, T> {
    /// Queries.
    pub q: &'a [T],
    /// Keys.
    pub k: &'a [T],
    /// Values.
    pub v: &'a [T],
    /// Outputs of the forward pass.
    pub o: &'a [T],
    /// Gradient of the outputs.
    pub d_o: &'a [T],
    /// Log-sum-exp of the forward pass.
    pub lse: &'a [T],
}

/// Gradients of the queries, keys and values of one head.
pub fn backward<T: Real>(mask: &Mask, s: &Saved<'_, T>) -> [Vec<T>; 3] {
    let d = mask.dim;
    let dot = |a: &[T], b: &[T]| {
        let mut sum = T::of(0.0);
        a.iter().zip(b).for_each(|(x, y)| sum += *x * *y);
        sum
    };
    let mut d_q = vec![T::of(0.0); mask.queries * d];
    let [mut d_k, mut d_v] = [(); 2].map(|()| vec![T::of(0.0); mask.keys * d]);
    for i in 0..mask.queries {
        let [q, o, d_o] = [s.q, s.o, s.d_o].map(|x| &x[i * d..][..d]);
        let delta = dot(d_o, o);
        for j in (0..mask.keys).filter(|j| mask.sees(i, *j)) {
            let [k, v] = [s.k, s.v].map(|x| &x[j * d..][..d]);
            let (slope, c) = capped(mask, q, k);
            let p = (c - s.lse[i]).exp();
            let d_s = T::of(mask.scale) * (p * (dot(d_o, v) - delta) * slope);
            for e in 0..d {
                d_q[i * d + e] += d_s * k[e];
                d_k[j * d + e] += d_s * q[e];
                d_v[j * d + e] += p * d_o[e];
            }
        }
    }
    [d_q, d_k, d_v]
}

#[cfg(test)]
mod tests {
    use super::{Mask, Saved, backward, forward};
    use crate::data::{Rng, floats};
    use crate::op::Fill;
    use crate::reference::lift;

    /// Compares every gradient with central differences of the sum of the outputs, each weighted by its `d_o`.
    #[track_caller]
    fn check(mask: Mask) {
        let mut rng = Rng::new(3);
        let mut rows = |n: usize| lift::<f64>(&floats(&mut rng, n * mask.dim, Fill::Random));
        let inputs = [rows(mask.queries), rows(mask.keys), rows(mask.keys)];
        let d_o = rows(mask.queries);
        let (o, lse) = forward(&mask, &inputs[0], &inputs[1], &inputs[2]);
        let [q, k, v] = [0, 1, 2].map(|n| &inputs[n][..]);
        let gradients = backward(&mask, &Saved { q, k, v, o: &o, d_o: &d_o, lse: &lse });
        let loss = |x: &[Vec<f64>; 3]| -> f64 {
            forward(&mask, &x[0], &x[1], &x[2]).0.iter().zip(&d_o).map(|(o, g)| o * g).sum()
        };
        for (n, gradient) in gradients.iter().enumerate() {
            for (e, g) in gradient.iter().enumerate() {
                let step = 1e-5;
                let moved = |by: f64| {
                    let mut x = inputs.clone();
                    x[n][e] += by;
                    loss(&x)
                };
                let slope = (moved(step) - moved(-step)) / (2.0 * step);
                assert!(
                    (slope - g).abs() < 1e-7 * (1.0 + g.abs()),
                    "{mask:?}: input {n}, element {e}: {g}, not {slope}"
                );
            }
        }
    }

    const PLAIN: Mask = Mask { queries: 5, keys: 5, dim: 3, causal: false, window: 0, scale: 0.6, softcap: 0.0 };

    #[test]
    fn gradients_are_slopes() {
        check(PLAIN);
        check(Mask { keys: 7, causal: true, ..PLAIN });
        check(Mask { keys: 3, causal: true, softcap: 1.5, ..PLAIN });
        check(Mask { window: 2, softcap: 0.7, ..PLAIN });
        check(Mask { queries: 1, keys: 6, causal: true, window: 4, ..PLAIN });
    }
}
