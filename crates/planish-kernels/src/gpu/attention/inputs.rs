//! What the ops of attention share: their heads, inputs, and expected outputs.

use crate::data::{self, Rng};
use crate::gpu::text::check_io;
use crate::op::{Attrs, Dtype, Expected, Fill, Shape};
use crate::reference::{Shaken, lift};

use super::reference::{self, Mask};

/// Sizes of a head that kernels are written for.
pub const HEAD_DIMS: [usize; 5] = [64, 80, 96, 128, 256];

/// Most rows of a sequence, so that positions and windows are signed 32-bit numbers.
const MOST_ROWS: usize = 1 << 29;

/// Heads of the queries, and of the keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Of queries.
    pub q: usize,
    /// Of keys and values; divides `q`.
    pub kv: usize,
}

impl Heads {
    /// Those of a checked shape.
    pub fn of(shape: &Shape) -> Heads {
        Heads { q: shape.size("heads"), kv: shape.size("kv_heads") }
    }

    /// Query heads that share keys and values.
    pub fn group(&self) -> usize {
        self.q / self.kv
    }

    /// The key head of query head `h`.
    pub fn kv_of(&self, h: usize) -> usize {
        h / self.group()
    }
}

/// Checks what every shape of attention has, and that the sizes `rows` are not too large.
pub fn check(s: &Shape, rows: &[&str]) -> Result<(), String> {
    check_io(s)?;
    let (heads, kv_heads) = (s.size("heads"), s.size("kv_heads"));
    if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(format!("{s}: {kv_heads} key heads do not divide {heads} heads"));
    }
    if !HEAD_DIMS.contains(&s.size("head_dim")) {
        return Err(format!("{s}: head_dim is one of {HEAD_DIMS:?}"));
    }
    for flag in ["causal", "softcap"] {
        if s.size(flag) > 1 {
            return Err(format!("{s}: {flag} is 0 or 1"));
        }
    }
    match rows.iter().find(|r| s.size(r) > MOST_ROWS) {
        Some(r) => Err(format!("{s}: {r} is over {MOST_ROWS}")),
        None => Ok(()),
    }
}

/// Scale and soft cap of a problem; extreme ones have a power of two, so that their scores are exact.
pub fn attrs(shape: &Shape, fill: Fill) -> Attrs {
    let extreme = fill == Fill::Extreme;
    let scale = if extreme { 0.125 } else { (shape.size("head_dim") as f32).sqrt().recip() };
    let attrs = Attrs::new().with("scale", f64::from(scale));
    match shape.size("softcap") {
        0 => attrs,
        _ => attrs.with("softcap", if extreme { 30.0 } else { 2.0 }),
    }
}

/// `rows` queries of `dim` elements.
///
/// Extreme ones are small whole numbers with a factor a row: tiny (all keys weigh alike), one, or so large that scores
/// reach 10000 and one key takes all; these scores have no rounding error, which a softmax would blow up.
pub fn queries(rng: &mut Rng, rows: usize, dim: usize, fill: Fill) -> Vec<f32> {
    if fill != Fill::Extreme {
        return data::floats(rng, rows * dim, Fill::Random);
    }
    let factors = [1.0 / 4096.0, 1.0, 1.0, 1024.0];
    let mut row = |_| {
        let factor = factors[rng.below(4) as usize];
        whole(rng, dim).into_iter().map(|v| v * factor).collect::<Vec<_>>()
    };
    (0..rows).flat_map(&mut row).collect()
}

/// `n` elements of keys; extreme ones are small whole numbers.
pub fn keys(rng: &mut Rng, n: usize, fill: Fill) -> Vec<f32> {
    if fill == Fill::Extreme { whole(rng, n) } else { data::floats(rng, n, Fill::Random) }
}

fn whole(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.below(5) as f32 - 2.0).collect()
}

/// An output in f64, in plain f32, and in draws of it.
#[derive(Clone, Debug, Default)]
pub struct Both {
    /// In f64.
    pub exact: Vec<f64>,
    /// In f32.
    pub plain: Vec<f32>,
    /// In f32 with other roundings; none where one of another type is far coarser.
    pub draws: Vec<Vec<Shaken>>,
}

impl Both {
    /// `n` zeros.
    pub fn zeros(n: usize) -> Both {
        Both { exact: vec![0.0; n], plain: vec![0.0; n], draws: Vec::new() }
    }

    /// Appends an output at both precisions.
    pub fn extend(&mut self, exact: Vec<f64>, plain: Vec<f32>) {
        self.exact.extend(exact);
        self.plain.extend(plain);
    }

    /// What a tensor of type `io` must hold.
    pub fn expected(self, io: Dtype) -> Expected {
        Expected::drawn(io, self.exact, &self.plain, &self.draws)
    }
}

/// Appends output and log-sum-exp of the head whose q, k and v are `rows`, of type `io`.
///
/// What plain arithmetic of that type gives rounds the weights to it before they multiply v, as matrix units take them.
pub fn forward(mask: &Mask, io: Dtype, rows: [&[f32]; 3], o: &mut Both, lse: &mut Both) {
    let [q, k, v] = rows.map(lift::<f64>);
    let exact = reference::forward(mask, &q, &k, &v);
    let plain = reference::forward_weighed(mask, rows, |weight| data::nearest(weight, io));
    o.extend(exact.0, plain.0);
    lse.extend(exact.1, plain.1);
}

/// The same in draws.
pub fn forward_drawn(mask: &Mask, rows: [&[f32]; 3], (o, lse): (&mut Vec<Shaken>, &mut Vec<Shaken>)) {
    let [q, k, v] = rows.map(lift::<Shaken>);
    let draw = reference::forward(mask, &q, &k, &v);
    o.extend(draw.0);
    lse.extend(draw.1);
}
