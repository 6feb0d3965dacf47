//! A decoder layer by its formula, one token, from the references of its parts.

use crate::op::Dtype;
use crate::reference::attention::{self, attention};
use crate::reference::norm::rms_norm;
use crate::reference::rope::{Pairs, rope};
use crate::reference::{Real, lift};

/// What a layer is.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Residual width.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements that rotate.
    pub rotary: usize,
    /// Width between the projections of the MLP.
    pub ffn: usize,
    /// Keys that the token sees, itself included.
    pub keys: usize,
    /// Most keys that it sees, 0 for all.
    pub window: usize,
    /// Bound of the scores, 0 for none.
    pub softcap: f64,
    /// How rotated elements pair up.
    pub pairs: Pairs,
    /// Type of matrices and cache.
    pub io: Dtype,
    /// Added to mean squares.
    pub eps: f64,
}

/// Weights of a layer, as rounded.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Norms of both halves.
    pub norms: [Vec<f32>; 2],
    /// Norms of query and key heads, if any.
    pub head_norms: Option<[Vec<f32>; 2]>,
    /// Added to q, k, v, if anything.
    pub bias: Option<Vec<f32>>,
    /// Stacked q, k, v.
    pub qkv: Vec<f32>,
    /// Output projection.
    pub o: Vec<f32>,
    /// Stacked gate, up.
    pub up: Vec<f32>,
    /// Down projection.
    pub down: Vec<f32>,
}

/// The new residual, key and value. `cache` holds the keys and the values before the token's own.
pub fn layer<T: Real>(l: &Layer, w: &Weights, h: &[f32], angle: &[f64], cache: [&[f32]; 2]) -> [Vec<T>; 3] {
    let (h, dim, kv_row) = (lift::<T>(h), l.head_dim, l.kv_heads * l.head_dim);
    let mut qkv = times(&w.qkv, &rms_norm(&h, &lift::<T>(&w.norms[0]), l.eps));
    if let Some(bias) = &w.bias {
        qkv.iter_mut().zip(bias).for_each(|(x, b)| *x += T::of(f64::from(*b)));
    }
    let head = |x: &[T], which: usize| {
        let x = w.head_norms.as_ref().map_or(x.to_vec(), |n| rms_norm(x, &lift::<T>(&n[which]), l.eps));
        rope(&x, angle, 1.0, l.pairs)
    };
    let heads = |x: &[T], which: usize| x.chunks(dim).flat_map(|x| head(x, which)).collect::<Vec<T>>();
    let q = heads(&qkv[..l.heads * dim], 0);
    let (k, v) = qkv[l.heads * dim..].split_at(kv_row);
    let round = |x: &[T]| x.iter().map(|x| T::of(rounded(l.io, x.f64()))).collect::<Vec<T>>();
    let (k, v) = (heads(k, 1), v.to_vec());
    let all = |cache: &[f32], new: &[T]| [lift::<T>(&cache[..(l.keys - 1) * kv_row]), round(new)].concat();
    let shape = attention::Shape {
        queries: 1,
        keys: l.keys,
        heads: l.heads,
        kv_heads: l.kv_heads,
        head_dim: dim,
        scale: f64::from((dim as f32).sqrt().recip()),
        softcap: (l.softcap > 0.0).then_some(l.softcap),
        window: (l.window > 0).then_some(l.window),
    };
    let o = attention(&shape, &q, &all(cache[0], &k), &all(cache[1], &v));
    let add = |a: &[T], b: Vec<T>| a.iter().zip(b).map(|(a, b)| *a + b).collect::<Vec<T>>();
    let h = add(&h, times(&w.o, &o));
    let up = times(&w.up, &rms_norm(&h, &lift::<T>(&w.norms[1]), l.eps));
    let (g, u) = up.split_at(l.ffn);
    let one = T::of(1.0);
    let u: Vec<T> = g.iter().zip(u).map(|(g, u)| *g / (one + (-*g).exp()) * *u).collect();
    [add(&h, times(&w.down, &u)), k, v]
}

/// As the cache holds it.
fn rounded(io: Dtype, x: f64) -> f64 {
    match io {
        Dtype::F16 => half::f16::from_f64(x).to_f64(),
        Dtype::Bf16 => half::bf16::from_f64(x).to_f64(),
        _ => f64::from(x as f32),
    }
}

/// A matrix times `x`.
fn times<T: Real>(w: &[f32], x: &[T]) -> Vec<T> {
    let row = |row: &[f32]| row.iter().zip(x).fold(T::of(0.0), |sum, (w, x)| sum + T::of(f64::from(*w)) * *x);
    w.chunks(x.len()).map(row).collect()
}
