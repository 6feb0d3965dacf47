//! `rope`: rotates queries and keys, after a norm of every head where the model has one, and stores keys and values.
//!
//! Bound by latency at one token, by memory at many.

use planish_device::{Call, Launch, Plain, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::cpu::isa::Isa;
use crate::cpu::kv::{KvCache, KvLayout, KvStore, kv_store};
use crate::cpu::norm::{RmsNorm, rms_norm};
use crate::cpu::rope::{Pairs, Rope as Rotate, RopeTable, Scaling, rope as rotate, rope_table};
use crate::cpu::simd::Shared;
use crate::data;
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::ops::NativeLaunch;
use crate::ops::attention::{self, Heads};
use crate::reference;
use crate::step::{self, Step};

/// Arguments: q f32 `[batch][heads][head_dim]`, k, v, cos, sin (rows of `RopeTable::fill`), step, keys, values, then the
/// norm weights of a query head and of a key head where the field `norm` is 1.
pub static ROPE: Op = Op {
    name: "rope",
    about: "rotates q and k by position, normed by head where the model asks, and stores k and v; bound by latency",
    check,
    space: |_, _| Space::fixed(Config::new()),
    cost: |s| {
        let row = (s.size("heads") + 2 * s.size("kv_heads")) * s.size("head_dim") * s.size("batch");
        Cost { flops: 3 * row as u64, int8_ops: 0, read_bytes: 4 * row as u64, write_bytes: 4 * row as u64 }
    },
    cases: |s| vec![s.clone().with("batch", 3).with("context", 32), s.clone().with("batch", 1).with("context", 17)],
    problem,
    steps,
    rotated: &[],
    reduces: &[],
};

/// What the rotation needs beside data.
pub struct Rope<'a> {
    /// Sizes.
    pub heads: &'a Heads,
    /// Elements of a head that rotate.
    pub dims: usize,
    /// How they pair up.
    pub pairs: Pairs,
    /// Added to the mean square of a head's norm.
    pub eps: f32,
    /// Norm weights of a query head and of a key head.
    pub norms: Option<[&'a Slice; 2]>,
    /// Rows of cos and of sin for the step's positions.
    pub table: [&'a Slice; 2],
}

/// Rotates the step's queries and keys and stores keys and values.
pub fn call(rope: &Rope<'_>, qkv: [&Slice; 3], cache: [&Slice; 2], step: &Slice) -> OpCall {
    let h = rope.heads;
    let mut args: Vec<Slice> = qkv.into_iter().chain(rope.table).cloned().collect();
    args.push(step.clone());
    args.extend(cache.into_iter().cloned());
    args.extend(rope.norms.into_iter().flatten().cloned());
    OpCall {
        op: &ROPE,
        shape: Shape::new()
            .with("heads", h.heads as i64)
            .with("kv_heads", h.kv_heads as i64)
            .with("head_dim", h.head_dim as i64)
            .with("dims", rope.dims as i64)
            .with("pairs", if rope.pairs == Pairs::Halves { "halves" } else { "neighbours" })
            .with("norm", i64::from(rope.norms.is_some()))
            .with("kv", h.kv)
            .with("context", h.context as i64)
            .with("batch", h.batch as i64),
        attrs: Attrs::new().with("eps", f64::from(rope.eps)),
        args,
    }
}

fn check(shape: &Shape) -> Result<(), String> {
    let sizes = ["heads", "kv_heads", "head_dim", "dims", "norm", "context", "batch"];
    shape.check(&sizes, &["pairs", "kv"])?;
    if !matches!(shape.name("pairs"), "halves" | "neighbours") || !matches!(shape.name("kv"), "f16" | "f32") {
        return Err(format!("{shape}: pairs or kv is not a known name"));
    }
    let dims = shape.size("dims");
    if dims > shape.size("head_dim") || dims == 0 || !dims.is_multiple_of(2) {
        return Err(format!("{shape}: {dims} rotating elements do not fit a head"));
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct P {
    isa: Isa,
    heads: usize,
    layout: KvLayout,
    f32: bool,
    dims: usize,
    pairs: Pairs,
    norm: bool,
    eps: f32,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

fn pairs(shape: &Shape) -> Pairs {
    if shape.name("pairs") == "halves" { Pairs::Halves } else { Pairs::Neighbours }
}

fn steps(call: &OpCall, _: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let s = &call.shape;
    let params = P {
        isa: machine.isa,
        heads: s.size("heads"),
        layout: KvLayout::new(s.size("kv_heads"), s.size("head_dim"), s.size("context")),
        f32: s.name("kv") == "f32",
        dims: s.size("dims"),
        pairs: pairs(s),
        norm: s.size("norm") == 1,
        eps: call.attrs.get("eps") as f32,
    };
    let tasks = s.size("batch");
    let launch = NativeLaunch { name: "rope", run, params, tasks, threads: u32::MAX, scratch_bytes: 0 };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `ROPE`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    let (dim, kv_heads) = (p.layout.head_dim, p.layout.kv_heads);
    // SAFETY: the contract of the op; tasks are tokens, so rows and cache positions are disjoint.
    unsafe {
        let step = Step::of(call, 5);
        for t in call.tasks.start as usize..(call.tasks.end as usize).min(step.n) {
            head_rows(call, p, t, 0, p.heads);
            head_rows(call, p, t, 1, kv_heads);
            let row = kv_heads * dim;
            let of = |i: usize| &call.args[i].read::<f32>()[t * row..(t + 1) * row];
            let cache = KvCache { layout: p.layout, data: attention::cache(call, 6, p.f32) };
            let store = KvStore { k: of(1), v: of(2), stride: row, first: step.pos + t, cache };
            kv_store(p.isa)(&store, 0..kv_heads);
        }
    }
}

/// Norms (where there is a norm) and rotates the heads of token `t` in argument `arg`: 0 for queries, 1 for keys.
///
/// # Safety
/// As `run`; the token's rows are this thread's alone.
unsafe fn head_rows(call: &Call<'_>, p: &P, t: usize, arg: usize, heads: usize) {
    let dim = p.layout.head_dim;
    let row = heads * dim;
    // SAFETY: forwarded.
    unsafe {
        let x = Shared::new(call.args[arg].write::<f32>(t * row, row));
        if p.norm {
            let weight = call.args[8 + arg].read();
            let norm = RmsNorm { x, residual: None, weight, out: x, heads, x_stride: row, out_stride: row, eps: p.eps };
            rms_norm(p.isa)(&norm, 0..heads);
        }
        let len = if p.pairs == Pairs::Halves { p.dims / 2 } else { p.dims };
        let of = |i: usize| &call.args[i].read::<f32>()[t * len..(t + 1) * len];
        let (cos, sin) = (of(3), of(4));
        let args = Rotate { x, cos, sin, pairs: p.pairs, rotary_dim: p.dims, heads, head_dim: dim, stride: row };
        rotate(p.isa)(&args, 0..heads);
    }
}

const EPS: f32 = 1e-6;

/// The rows of `x` after norm and rotation, by the formula.
fn expected<T: reference::Real>(
    x: &[T],
    norm: Option<&[T]>,
    table: &RopeTable,
    dim: usize,
    heads: usize,
    pos: usize,
) -> Vec<T> {
    let head = |(i, x): (usize, &[T])| {
        let normed = norm.map_or(x.to_vec(), |w| reference::norm::rms_norm(x, w, f64::from(EPS)));
        let angles: Vec<f64> = table.frequencies().iter().map(|w| (pos + i / heads) as f64 * w).collect();
        reference::rope::rope(&normed, &angles, table.magnitude(), table.pairs())
    };
    x.chunks_exact(dim).enumerate().flat_map(head).collect()
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (heads, kv_heads, dim) = (shape.size("heads"), shape.size("kv_heads"), shape.size("head_dim"));
    let (batch, context) = (shape.size("batch"), shape.size("context"));
    let mut rng = data::Rng::new(seed);
    let q = data::floats(&mut rng, batch * heads * dim, fill);
    let k = data::floats(&mut rng, batch * kv_heads * dim, Fill::Random);
    let v = data::floats(&mut rng, batch * kv_heads * dim, Fill::Random);
    let weights = [data::floats(&mut rng, dim, Fill::Random), data::floats(&mut rng, dim, Fill::Random)];
    let norm = shape.size("norm") == 1;
    let table = rope_table(shape.size("dims"), 10000.0, None, Scaling::None, pairs(shape)).expect("dims were checked");
    let pos = context - batch;
    let (mut cos, mut sin) = (vec![0f32; batch * table.row_len()], vec![0f32; batch * table.row_len()]);
    table.fill(pos, &mut cos, &mut sin);
    let want = |x: &[f32], heads: usize, w: &[f32]| {
        let lift = reference::lift::<f64>;
        let (x64, w64) = (lift(x), lift(w));
        let y64 = expected(&x64, norm.then_some(&w64[..]), &table, dim, heads, pos);
        (y64, expected(x, norm.then_some(w), &table, dim, heads, pos))
    };
    let (q64, q32) = want(&q, heads, &weights[0]);
    let (k64, k32) = want(&k, kv_heads, &weights[1]);
    let f32 = shape.name("kv") == "f32";
    let layout = KvLayout::new(kv_heads, dim, context);
    let k_bounds = Expected::f32(k64.clone(), &k32).bounds;
    let [keys, values] = cache_args(layout, f32, pos, (&k64, &k_bounds), &v);
    let mut args = vec![
        Arg::InOut(data::bytes(&q), Expected::f32(q64, &q32)),
        Arg::InOut(data::bytes(&k), Expected::f32(k64, &k32)),
        Arg::In(data::bytes(&v)),
        Arg::In(data::bytes(&cos)),
        Arg::In(data::bytes(&sin)),
        Arg::In(step::encode(&vec![0; batch], pos as u32)),
        keys,
        values,
    ];
    if norm {
        args.extend(weights.iter().map(|w| Arg::In(data::bytes(w))));
    }
    let attrs = Attrs::new().with("eps", f64::from(EPS));
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed} pos={pos}") }
}

/// A cache of ones that must hold `k` and `v` from position `pos` on, and ones elsewhere.
fn cache_args(layout: KvLayout, f32: bool, pos: usize, k: (&[f64], &[f64]), v: &[f32]) -> [Arg; 2] {
    let (dim, heads) = (layout.head_dim, layout.kv_heads);
    let dtype = if f32 { Dtype::F32 } else { Dtype::F16 };
    let ones = |n: usize| if f32 { data::bytes(&vec![1.0; n]) } else { data::bytes_f16(&vec![1.0; n]) };
    let blank = |n: usize| Expected { dtype, values: vec![1.0; n], bounds: vec![0.0; n], untouched: 0 };
    let (mut keys, mut values) = (blank(layout.k_len()), blank(layout.v_len()));
    let half_ulp = |y: f64| if f32 { 0.0 } else { y.abs() / 2048.0 + 3e-8 };
    for (i, y) in k.0.iter().enumerate() {
        let (token, head, d) = (i / (heads * dim), i / dim % heads, i % dim);
        let at = layout.k_at(head, pos + token) + 16 * d;
        (keys.values[at], keys.bounds[at]) = (*y, k.1[i] + half_ulp(*y));
    }
    for token in 0..v.len() / (heads * dim) {
        for head in 0..heads {
            let at = layout.v_at(head, pos + token);
            for d in 0..layout.v_row() {
                let y = if d < dim { f64::from(v[(token * heads + head) * dim + d]) } else { 0.0 };
                (values.values[at + d], values.bounds[at + d]) = (y, half_ulp(y));
            }
        }
    }
    [Arg::InOut(ones(layout.k_len()), keys), Arg::InOut(ones(layout.v_len()), values)]
}
