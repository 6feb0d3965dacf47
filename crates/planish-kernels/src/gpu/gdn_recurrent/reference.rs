//! The gated delta rule, a token at a time.

use crate::reference::Real;

/// Sizes of a call.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub steps: usize,
    /// Heads of v.
    pub heads: usize,
    /// Heads of q and k, a divisor of `heads`.
    pub key_heads: usize,
    /// Columns of q and k.
    pub key_dim: usize,
    /// Columns of v.
    pub value_dim: usize,
}

/// The operands, last index fastest.
pub struct Gdn<'a, T> {
    /// `[batch][steps][key_heads][key_dim]`, scaled.
    pub q: &'a [T],
    /// Like q.
    pub k: &'a [T],
    /// `[batch][steps][heads][value_dim]`.
    pub v: &'a [T],
    /// Logarithms of the decays, `[batch][steps][heads]`.
    pub g: &'a [T],
    /// Like g.
    pub beta: &'a [T],
    /// `[batch][steps]`, zero for tokens that leave the state alone, or empty.
    pub mask: &'a [u32],
    /// `[batch][heads][value_dim][key_dim]`, or empty.
    pub init: &'a [T],
    /// Sizes.
    pub sizes: Sizes,
}

impl<T: Real> Gdn<'_, T> {
    /// The outputs like v, and the final state.
    pub fn run(&self) -> (Vec<T>, Vec<T>) {
        let z = self.sizes;
        let cells = z.value_dim * z.key_dim;
        let mut states = self.init.to_vec();
        states.resize(z.batch * z.heads * cells, T::of(0.0));
        let mut y = vec![T::of(0.0); self.v.len()];
        for b in 0..z.batch {
            for h in 0..z.heads {
                let state = &mut states[(b * z.heads + h) * cells..][..cells];
                for t in 0..z.steps {
                    let token = b * z.steps + t;
                    let out = self.step(state, token, h);
                    y[(token * z.heads + h) * z.value_dim..][..z.value_dim].copy_from_slice(&out);
                }
            }
        }
        (y, states)
    }

    /// One token of head `h`: updates its state and gives its output.
    pub fn step(&self, state: &mut [T], token: usize, h: usize) -> Vec<T> {
        let z = self.sizes;
        let key = token * z.key_heads + h / (z.heads / z.key_heads);
        let [q, k] = [self.q, self.k].map(|x| &x[key * z.key_dim..][..z.key_dim]);
        let gate = token * z.heads + h;
        let on = self.mask.get(token).is_none_or(|m| *m != 0);
        let (alpha, beta) = if on { (self.g[gate].exp(), self.beta[gate]) } else { (T::of(1.0), T::of(0.0)) };
        let dot = |row: &[T], x: &[T]| {
            let mut sum = T::of(0.0);
            for (a, b) in row.iter().zip(x) {
                sum += *a * *b;
            }
            sum
        };
        let mut out = Vec::new();
        for (d, row) in state.chunks_mut(z.key_dim).enumerate() {
            row.iter_mut().for_each(|s| *s = alpha * *s);
            let delta = beta * (self.v[gate * z.value_dim + d] - dot(row, k));
            row.iter_mut().zip(k).for_each(|(s, k)| *s += delta * *k);
            out.push(dot(row, q));
        }
        out
    }
}
