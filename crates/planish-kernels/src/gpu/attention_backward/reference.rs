//! Gradients of dense attention: those of each head, summed over the query heads that share keys and values.

use crate::gpu::attention::inputs::Heads;
use crate::gpu::attention::reference::{Mask, Saved, backward, forward};
use crate::reference::{Real, lift};

/// Heads of sequences of one size, tensors being `[sequence][head][row][dim]`.
#[derive(Clone, Copy)]
pub struct Dense {
    /// Sizes and options of a head.
    pub mask: Mask,
    /// Heads of a sequence.
    pub heads: Heads,
    /// Sequences.
    pub sequences: usize,
}

impl Dense {
    /// For each query head, itself and its key head, of all sequences.
    fn pairs(self) -> impl Iterator<Item = (usize, usize)> {
        let Heads { q, kv } = self.heads;
        (0..self.sequences * q).map(move |h| (h, h / q * kv + self.heads.kv_of(h % q)))
    }

    /// Outputs and log-sum-exps in f64, rounded once to what a forward pass would have saved.
    pub fn forward(self, [q, k, v]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        let (q_len, kv_len) = (self.mask.queries * self.mask.dim, self.mask.keys * self.mask.dim);
        let (mut outs, mut lses) = (Vec::new(), Vec::new());
        for (h, kv) in self.pairs() {
            let (k, v) = (lift(&k[kv * kv_len..][..kv_len]), lift(&v[kv * kv_len..][..kv_len]));
            let (o, lse) = forward::<f64>(&self.mask, &lift(&q[h * q_len..][..q_len]), &k, &v);
            outs.extend(o.iter().map(|x| *x as f32));
            lses.extend(lse.iter().map(|x| *x as f32));
        }
        (outs, lses)
    }

    /// Gradients of q, k and v from q, k, v, o, the gradient of o, and the log-sum-exp.
    pub fn backward<T: Real>(self, [q, k, v, o, d_o, lse]: [&[f32]; 6]) -> [Vec<T>; 3] {
        let (q_len, kv_len) = (self.mask.queries * self.mask.dim, self.mask.keys * self.mask.dim);
        let mut d_q = Vec::with_capacity(q.len());
        let [mut d_k, mut d_v] = [k, v].map(|x| vec![T::of(0.0); x.len()]);
        for (h, kv) in self.pairs() {
            let [q, o, d_o] = [q, o, d_o].map(|x| lift::<T>(&x[h * q_len..][..q_len]));
            let [k, v] = [k, v].map(|x| lift::<T>(&x[kv * kv_len..][..kv_len]));
            let lse = lift::<T>(&lse[h * self.mask.queries..][..self.mask.queries]);
            let [one_q, one_k, one_v] =
                backward(&self.mask, &Saved { q: &q, k: &k, v: &v, o: &o, d_o: &d_o, lse: &lse });
            d_q.extend(one_q);
            for (all, one) in [(&mut d_k, one_k), (&mut d_v, one_v)] {
                all[kv * kv_len..][..kv_len].iter_mut().zip(one).for_each(|(a, b)| *a += b);
            }
        }
        [d_q, d_k, d_v]
    }
}
