//! A step of a decoder-only model by its formulas, from the references of its parts.

use super::model::Model;
use crate::op::Dtype;
use crate::reference::act::{geglu, softcap, swiglu};
use crate::reference::attention::{self, attention};
use crate::reference::norm::rms_norm;
use crate::reference::rope::{Pairs, rope};
use crate::reference::{Real, lift};

/// A matrix as its file means it, row after row.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Elements.
    pub values: Vec<f32>,
    /// Whether its inputs are quantised to bytes.
    pub int8: bool,
}

/// Tensors of a block.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Before attention, before the MLP.
    pub norms: [Vec<f32>; 2],
    /// Of every query head, of every key head.
    pub head_norms: Option<[Vec<f32>; 2]>,
    /// Of q, k and v.
    pub biases: Option<[Vec<f32>; 3]>,
    /// Behind attention, behind the MLP.
    pub post_norms: Option<[Vec<f32>; 2]>,
    /// Projections to q, k and v.
    pub qkv: [Matrix; 3],
    /// Output projection.
    pub out: Matrix,
    /// Gate, up.
    pub gate_up: [Matrix; 2],
    /// Down projection.
    pub down: Matrix,
    /// Keys that are seen, 0 for all.
    pub window: usize,
}

/// A model, and what a step finds.
#[derive(Clone, Debug)]
pub struct Given {
    /// Row of the embedding.
    pub embedding: Vec<f32>,
    /// Blocks.
    pub layers: Vec<Layer>,
    /// Before the head.
    pub output_norm: Vec<f32>,
    /// Output projection.
    pub head: Matrix,
    /// Of the position.
    pub angles: Vec<f64>,
    /// For each layer keys and values of the positions before, `[positions][kv_heads][head_dim]`.
    pub caches: Vec<[Vec<f32>; 2]>,
}

/// What a step gives.
#[derive(Clone, Debug)]
pub struct Gives<T> {
    /// `[vocab]`.
    pub logits: Vec<T>,
    /// What the head is given, `[hidden]`.
    pub last: Vec<T>,
    /// For each layer the new key and the new value, `[kv_heads][head_dim]`.
    pub new: Vec<[Vec<T>; 2]>,
}

/// The step; inputs of the first layer are moved by `nudge`, relatively and by turns up and down.
pub fn step<T: Real>(m: &Model, given: &Given, nudge: f64) -> Gives<T> {
    step_stored(m, given, nudge, &|x| x)
}

/// The same where whatever is stored between two operations of a block, but for the residual, goes through `stored`.
pub fn step_stored<T: Real>(m: &Model, given: &Given, nudge: f64, stored: &dyn Fn(T) -> T) -> Gives<T> {
    let mut h = lift::<T>(&given.embedding);
    for (i, x) in h.iter_mut().enumerate() {
        let moved = if i % 3 == 0 { 1.0 + nudge } else { 1.0 - nudge };
        *x = T::of(x.f64() * f64::from(m.embedding_scale) * moved);
    }
    let mut new = Vec::new();
    for (layer, cache) in given.layers.iter().zip(&given.caches) {
        let (after, kv) = one(m, layer, (&h, &given.angles), cache, stored);
        h = after;
        new.push(kv);
    }
    let x = rms_norm(&h, &lift::<T>(&given.output_norm), f64::from(m.eps));
    let mut logits = times(&given.head, &x);
    if m.logit_softcap > 0.0 {
        logits.iter_mut().for_each(|v| *v = softcap(*v, f64::from(m.logit_softcap)));
    }
    Gives { logits, last: x, new }
}

fn one<T: Real>(
    m: &Model,
    l: &Layer,
    (h, angles): (&[T], &[f64]),
    cache: &[Vec<f32>; 2],
    stored: &dyn Fn(T) -> T,
) -> (Vec<T>, [Vec<T>; 2]) {
    let (dim, eps) = (m.head_dim, f64::from(m.eps));
    let kept = |x: Vec<T>| x.into_iter().map(stored).collect::<Vec<T>>();
    let x = kept(rms_norm(h, &lift::<T>(&l.norms[0]), eps));
    let mut qkv = l.qkv.each_ref().map(|w| kept(times(w, &x)));
    if let Some(biases) = &l.biases {
        for (y, bias) in qkv.iter_mut().zip(biases) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += T::of(f64::from(*b)));
        }
    }
    let pairs = if m.neighbours { Pairs::Neighbours } else { Pairs::Halves };
    let heads = |x: &[T], which: usize| -> Vec<T> {
        let head = |x: &[T]| {
            let x = l.head_norms.as_ref().map_or(x.to_vec(), |n| rms_norm(x, &lift::<T>(&n[which]), eps));
            rope(&x, angles, 1.0, pairs)
        };
        x.chunks(dim).flat_map(head).collect()
    };
    let [q, k, v] = qkv;
    let (q, k) = (kept(heads(&q, 0)), heads(&k, 1));
    let f16 = |x: &[T]| x.iter().map(|x| T::of(half::f16::from_f64(x.f64()).to_f64())).collect::<Vec<T>>();
    let all = |cache: &[f32], new: &[T]| [lift::<T>(cache), f16(new)].concat();
    let keys = cache[0].len() / m.kv_wide() + 1;
    let shape = attention::Shape {
        queries: 1,
        keys,
        heads: m.heads,
        kv_heads: m.kv_heads,
        head_dim: dim,
        scale: f64::from(m.scale),
        softcap: (m.softcap > 0.0).then_some(f64::from(m.softcap)),
        window: (l.window > 0).then_some(l.window),
    };
    let o = kept(attention(&shape, &q, &all(&cache[0], &k), &all(&cache[1], &v)));
    let add = |a: &[T], b: Vec<T>, which: usize| -> Vec<T> {
        let b = l.post_norms.as_ref().map_or(b.clone(), |n| rms_norm(&b, &lift::<T>(&n[which]), eps));
        a.iter().zip(b).map(|(a, b)| *a + b).collect()
    };
    let h = add(h, kept(times(&l.out, &o)), 0);
    let x = kept(rms_norm(&h, &lift::<T>(&l.norms[1]), eps));
    let [gate, up] = l.gate_up.each_ref().map(|w| kept(times(w, &x)));
    let gated = |(g, u): (&T, &T)| if m.gelu { geglu(*g, *u) } else { swiglu(*g, *u) };
    let gated = kept(gate.iter().zip(&up).map(gated).collect());
    (add(&h, kept(times(&l.down, &gated)), 1), [k, v])
}

/// A matrix times `x`, or times what bytes hold of it.
fn times<T: Real>(w: &Matrix, x: &[T]) -> Vec<T> {
    let x = if w.int8 { in_bytes(x) } else { x.to_vec() };
    let row = |row: &[f32]| row.iter().zip(&x).fold(T::of(0.0), |sum, (w, x)| sum + T::of(f64::from(*w)) * *x);
    w.values.chunks(x.len()).map(row).collect()
}

/// Blocks of 32 as signed bytes times a scale, the largest magnitude over 127.
fn in_bytes<T: Real>(x: &[T]) -> Vec<T> {
    let block = |x: &[T]| {
        let most = x.iter().fold(0.0, |m: f64, x| m.max(x.f64().abs()));
        let code = |x: &T| if most < f64::exp2(-100.0) { 0.0 } else { (x.f64() * 127.0 / most).round_ties_even() };
        x.iter().map(|x| T::of(code(x) * (most / 127.0))).collect::<Vec<T>>()
    };
    x.chunks(32).flat_map(block).collect()
}

/// As the cache holds it.
pub const CACHE: Dtype = Dtype::F16;
