//! Attention by its definition: an explicit mask over all scores, softmax, weighted sum.

use super::Real;

/// Sizes and options of one attention.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Query tokens.
    pub queries: usize,
    /// Keys; the last query sees the last key.
    pub keys: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// c = cap tanh(s / cap), if any.
    pub softcap: Option<f64>,
    /// Keys that a query sees, its own included, if limited.
    pub window: Option<usize>,
}

/// `q` is `[queries][heads][head_dim]`, `k` and `v` are `[keys][kv_heads][head_dim]`; the result is like `q`.
///
/// A query that sees no key gives zeros.
pub fn attention<T: Real>(shape: &Shape, q: &[T], k: &[T], v: &[T]) -> Vec<T> {
    let Shape { queries, keys, heads, kv_heads, head_dim: dim, .. } = *shape;
    let mask: Vec<Vec<bool>> =
        (0..queries).map(|i| (0..keys).map(|j| visible(shape, i as i64, j as i64)).collect()).collect();
    let mut out = vec![T::of(0.0); queries * heads * dim];
    for h in 0..heads {
        let kv_head = h / (heads / kv_heads);
        for i in 0..queries {
            let qi = &q[(i * heads + h) * dim..][..dim];
            let row = |x: &'_ [T], j: usize| x[(j * kv_heads + kv_head) * dim..][..dim].to_vec();
            let scores: Vec<Option<T>> = (0..keys).map(|j| mask[i][j].then(|| score(shape, qi, &row(k, j)))).collect();
            let Some(weights) = softmax(&scores) else { continue };
            for (j, w) in weights.iter().enumerate() {
                let Some(w) = *w else { continue };
                for (o, &x) in out[(i * heads + h) * dim..][..dim].iter_mut().zip(&row(v, j)) {
                    *o += w * x;
                }
            }
        }
    }
    out
}

fn visible(shape: &Shape, i: i64, j: i64) -> bool {
    let position = i + shape.keys as i64 - shape.queries as i64;
    j <= position && shape.window.is_none_or(|w| j > position - w as i64)
}

fn score<T: Real>(shape: &Shape, q: &[T], k: &[T]) -> T {
    let mut dot = T::of(0.0);
    for (&a, &b) in q.iter().zip(k) {
        dot += a * b;
    }
    let s = T::of(shape.scale) * dot;
    match shape.softcap {
        Some(cap) => T::of(cap) * (s / T::of(cap)).tanh(),
        None => s,
    }
}

fn softmax<T: Real>(scores: &[Option<T>]) -> Option<Vec<Option<T>>> {
    let visible: Vec<T> = scores.iter().flatten().copied().collect();
    let &first = visible.first()?;
    let largest = visible.iter().fold(first, |m, &s| if s > m { s } else { m });
    let mut total = T::of(0.0);
    for &s in &visible {
        total += (s - largest).exp();
    }
    Some(scores.iter().map(|s| s.map(|s| (s - largest).exp() / total)).collect())
}
