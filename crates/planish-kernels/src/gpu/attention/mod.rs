//! `attention`: softmax(mask(softcap(scale Q K^T))) V of dense sequences; bound by arithmetic.

pub mod inputs;
pub mod reference;
pub mod space;
mod wgmma;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::text::{IO, KernelLaunch, Text, io, knob};
use crate::gpu::wgmma::native;
use crate::op::{Arg, Attrs, Cost, Dtype, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::Shaken;
use inputs::{Both, Heads};
use reference::Mask;

/// Arguments: q `[sequences][heads][queries][head_dim]`, k and v `[sequences][kv_heads][keys][head_dim]`, o like q, all of
/// the shape's type, and the log-sum-exp, f32 `[sequences][heads][queries]`; attributes `scale` and, where the shape's
/// `softcap` is 1, `softcap`.
///
/// The last query is aligned with the last key; `causal` is 0 or 1, and `window` is 0 or the keys that a query sees.
/// A query that sees no key gives zeros and negative infinity.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "attention",
        about: "O = softmax(mask(softcap(scale Q K^T))) V, L its log-sum-exp; bound by arithmetic",
        check,
        space: |s, machine| wgmma::with(space::forward(s, machine), s, machine),
        cost,
        cases,
        problem,
        steps,
        rotated: &[0, 1, 2, 3],
        reduces: &["VARIANT", "BLOCK_K"],
    },
    text: TEXT,
    shapes: &[
        "causal=0,head_dim=64,heads=1,keys=1,kv_heads=1,queries=1,sequences=1,softcap=0,type=f32,window=0",
        "causal=1,head_dim=64,heads=2,keys=33,kv_heads=2,queries=33,sequences=1,softcap=0,type=f32,window=5",
        "causal=1,head_dim=64,heads=4,keys=19,kv_heads=1,queries=45,sequences=1,softcap=0,type=f32,window=0",
        "causal=0,head_dim=64,heads=2,keys=0,kv_heads=1,queries=3,sequences=1,softcap=0,type=f32,window=0",
        "causal=1,head_dim=80,heads=8,keys=67,kv_heads=1,queries=5,sequences=1,softcap=1,type=f16,window=32",
        "causal=0,head_dim=96,heads=2,keys=31,kv_heads=1,queries=17,sequences=2,softcap=0,type=bf16,window=9",
        "causal=1,head_dim=128,heads=1,keys=70,kv_heads=1,queries=33,sequences=1,softcap=0,type=f16,window=100",
        "causal=1,head_dim=64,heads=3,keys=150,kv_heads=1,queries=140,sequences=2,softcap=0,type=bf16,window=0",
        "causal=0,head_dim=256,heads=2,keys=23,kv_heads=2,queries=9,sequences=1,softcap=1,type=f32,window=0",
        "causal=1,head_dim=256,heads=2,keys=99,kv_heads=1,queries=21,sequences=1,softcap=1,type=f16,window=0",
    ],
};

const TEXT: Text = Text(&[
    IO,
    space::FORWARD_SIZES,
    ("attention_shared.k", include_str!("../include/attention.k")),
    ("attention_forward.k", include_str!("../include/attention_forward.k")),
    ("attention.k", include_str!("attention.k")),
]);

/// Sizes of a shape of dense attention.
pub const SIZES: [&str; 9] =
    ["causal", "head_dim", "heads", "keys", "kv_heads", "queries", "sequences", "softcap", "window"];

fn check(s: &Shape) -> Result<(), String> {
    s.check(&SIZES, &["type"])?;
    inputs::check(s, &["keys", "queries", "window"])
}

/// What a query sees in a dense shape.
pub fn mask(shape: &Shape, attrs: &Attrs) -> Mask {
    Mask { queries: shape.size("queries"), keys: shape.size("keys"), ..options(shape, attrs) }
}

/// The same without rows.
pub fn options(shape: &Shape, attrs: &Attrs) -> Mask {
    Mask {
        queries: 0,
        keys: 0,
        dim: shape.size("head_dim"),
        causal: shape.size("causal") != 0,
        window: shape.size("window"),
        scale: attrs.get("scale"),
        softcap: attrs.get("softcap"),
    }
}

fn cost(shape: &Shape) -> Cost {
    let (heads, mask) = (Heads::of(shape), mask(shape, &Attrs::new()));
    let (sequences, dim) = (shape.size("sequences") as u64, mask.dim as u64);
    let q = sequences * (heads.q * mask.queries) as u64;
    let kv = sequences * (heads.kv * mask.keys) as u64;
    Cost {
        flops: (4 * dim + 5) * mask.pairs() * sequences * heads.q as u64,
        int8_ops: 0,
        read_bytes: io(shape).bytes() * dim * (q + 2 * kv),
        write_bytes: io(shape).bytes() * dim * q + 4 * q,
    }
}

/// The same heads over few rows: more keys than queries, fewer, and a single query.
pub fn cases(shape: &Shape) -> Vec<Shape> {
    let heads = Heads::of(shape);
    let kv_heads = heads.kv.min(2);
    let window = shape.size("window").min(21);
    let small = shape
        .clone()
        .with("sequences", 1)
        .with("kv_heads", kv_heads as i64)
        .with("heads", (kv_heads * heads.group()) as i64)
        .with("window", window as i64);
    let sized = |queries: i64, keys: i64| small.clone().with("queries", queries).with("keys", keys);
    vec![sized(67, 131), sized(41, 23), sized(1, 97)]
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (shape, heads) = (&call.shape, Heads::of(&call.shape));
    let blocks = shape.size("queries").div_ceil(knob(config, "BLOCK_Q")?);
    let groups = shape.size("sequences") * heads.q * blocks;
    if groups == 0 {
        return Ok(Vec::new());
    }
    let [scale, softcap] = ["scale", "softcap"].map(|name| (call.attrs.get(name) as f32).to_bits());
    let [queries, keys, causal, window] = ["queries", "keys", "causal", "window"].map(|name| shape.size(name) as u32);
    let params = vec![heads.q as u32, heads.kv as u32, queries, keys, causal, window, scale, softcap];
    if native(config) {
        return wgmma::steps(call, config, params, machine);
    }
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "attention",
        constants: space::forward_constants(config, shape)?,
        params,
        groups,
        threads: 32 * knob(config, "SIMDGROUPS")?,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (heads, io) = (Heads::of(shape), io(shape));
    let attrs = inputs::attrs(shape, fill);
    let mask = mask(shape, &attrs);
    let sequences = shape.size("sequences");
    let (q_len, kv_len) = (mask.queries * mask.dim, mask.keys * mask.dim);
    let mut rng = Rng::new(seed);
    let mut q = inputs::queries(&mut rng, sequences * heads.q * mask.queries, mask.dim, fill);
    let mut k = inputs::keys(&mut rng, sequences * heads.kv * kv_len, fill);
    let mut v = data::floats(&mut rng, sequences * heads.kv * kv_len, fill);
    let ins = [&mut q, &mut k, &mut v].map(|x| Arg::In(data::rounded(x, io)));
    let (mut o, mut lse) = (Both::default(), Both::default());
    if fill == Fill::Unjudged {
        (o, lse) = (Both::zeros(q.len()), Both::zeros(q.len() / mask.dim));
    } else {
        let heads_of = |with: &mut dyn FnMut([&[f32]; 3])| {
            for head in 0..sequences * heads.q {
                let kv = head / heads.q * heads.kv + heads.kv_of(head % heads.q);
                with([&q[head * q_len..][..q_len], &k[kv * kv_len..][..kv_len], &v[kv * kv_len..][..kv_len]]);
            }
        };
        heads_of(&mut |rows| inputs::forward(&mask, io, rows, &mut o, &mut lse));
        let draws = Shaken::draws(io, q.len(), || {
            let (mut o, mut lse) = (Vec::new(), Vec::new());
            heads_of(&mut |rows| inputs::forward_drawn(&mask, rows, (&mut o, &mut lse)));
            (o, lse)
        });
        (o.draws, lse.draws) = draws.into_iter().unzip();
    }
    let outs = [Arg::Out(o.expected(io)), Arg::Out(lse.expected(Dtype::F32))];
    Problem {
        shape: shape.clone(),
        attrs,
        args: ins.into_iter().chain(outs).collect(),
        label: format!("{fill:?} seed={seed}"),
    }
}
