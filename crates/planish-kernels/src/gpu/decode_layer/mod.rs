//! `decode_layer`: a whole decoder layer for one token, as five launches or in one; bound by memory.

mod phases;
mod reference;

use std::sync::Arc;

use planish_device::Launch;
use planish_tune::{Config, Constraint, Rejection, Space, Value};

use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, REDUCE, Text, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::rope::Pairs;
use reference::{Layer, Weights};

/// Arguments: vectors, rope, W_qkv, W_o, W_up, W_down, h, key cache, value cache, scratch of `scratch_bytes`, a word for
/// the barrier; layouts as the kernel's first lines say. The token's slot is `keys - 1`. Attribute `eps`.
///
/// `window` and `softcap` are 0 for none, `norm` is none or head, `bias` none or qkv, `pairs` halves or neighbours;
/// `type` is that of matrices and cache.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "decode_layer",
        about: "norm, q k v, rotation, attention, o, norm, gated MLP with both residuals, one token; bound by memory",
        check,
        space,
        cost,
        cases: |s| vec![s.clone().with("keys", 1), s.clone()],
        problem,
        steps,
        rotated: &[2, 3, 4, 5, 7, 8],
    },
    text: Text(&[
        IO,
        REDUCE,
        ("decode_layer.k", include_str!("decode_layer.k")),
        ("decode_layer_phases.k", phases::TEXT),
    ]),
    shapes: &[
        "hidden=1,heads=1,kv_heads=1,head_dim=2,rotary=2,ffn=1,keys=1,capacity=1,window=0,softcap=0,\
         norm=none,bias=none,pairs=halves,type=f32",
        "hidden=36,heads=4,kv_heads=2,head_dim=10,rotary=6,ffn=50,keys=23,capacity=30,window=0,softcap=0,\
         norm=head,bias=none,pairs=neighbours,type=f32",
        "hidden=64,heads=6,kv_heads=2,head_dim=16,rotary=16,ffn=97,keys=37,capacity=37,window=9,softcap=0,\
         norm=none,bias=qkv,pairs=halves,type=f16",
        "hidden=67,heads=3,kv_heads=3,head_dim=32,rotary=32,ffn=40,keys=6,capacity=9,window=0,softcap=5,\
         norm=head,bias=qkv,pairs=halves,type=bf16",
    ],
};

/// Fields of a shape, and what its names may be.
const SIZES: [&str; 10] =
    ["hidden", "heads", "kv_heads", "head_dim", "rotary", "ffn", "keys", "capacity", "window", "softcap"];
const NAMES: [(&str, &[&str]); 4] = [
    ("norm", &["none", "head"]),
    ("bias", &["none", "qkv"]),
    ("pairs", &["halves", "neighbours"]),
    ("type", &["f32", "f16", "bf16"]),
];
/// Most parts of the keys.
const SPLITS_MAX: usize = 16;
/// Largest head, as the kernel's threadgroup memory holds it.
const HEAD_MAX: usize = 256;
/// Threads that the host executor keeps resident here: each has a stack.
const HOST_RESIDENT: usize = 4096;

fn check(s: &Shape) -> Result<(), String> {
    s.check(&SIZES, &NAMES.map(|(name, _)| name))?;
    for (name, values) in NAMES {
        if !values.contains(&s.name(name)) {
            return Err(format!("{s}: {name} is one of {}", values.join(", ")));
        }
    }
    let size = |name: &str| s.size(name);
    if SIZES[..8].iter().any(|n| size(n) == 0) || size("head_dim") > HEAD_MAX || size("heads") % size("kv_heads") != 0 {
        return Err(format!("{s}: sizes are from 1, heads a multiple of kv_heads, head_dim up to {HEAD_MAX}"));
    }
    if size("rotary") % 2 != 0 || size("rotary") > size("head_dim") || size("keys") > size("capacity") {
        return Err(format!("{s}: rotary is even and up to head_dim, keys up to capacity"));
    }
    let largest = [matrix_sizes(s).as_slice(), &[size("capacity") * size("kv_heads") * size("head_dim")]].concat();
    if largest.iter().any(|n| *n >= 1 << 32) {
        return Err(format!("{s}: tensors have under 2^32 elements"));
    }
    Ok(())
}

fn qkv_rows(s: &Shape) -> usize {
    (s.size("heads") + 2 * s.size("kv_heads")) * s.size("head_dim")
}

/// Elements of the four matrices.
fn matrix_sizes(s: &Shape) -> [usize; 4] {
    let (hidden, ffn) = (s.size("hidden"), s.size("ffn"));
    [qkv_rows(s) * hidden, hidden * s.size("heads") * s.size("head_dim"), 2 * ffn * hidden, hidden * ffn]
}

fn space(_: &Shape, machine: &Machine<'_>) -> Space {
    let (tier, host) = (Tier::on(machine), machine.backend.limits().backend == "host");
    let resident = if host { HOST_RESIDENT } else { usize::MAX };
    let path = ["fused", "phases"].map(|v| Value::Name(v.into())).to_vec();
    Space {
        params: vec![
            planish_tune::Param { name: "PATH", trades: "one launch against barriers of a grid", values: path },
            ints(
                "BLOCKS",
                "groups that share the rows against groups that a barrier waits for",
                &[1, 4, 16, 64, 132, 264],
            ),
            ints("THREADS", "rows in flight against groups that fit", &[32, 128, 256, 512]),
            ints("SPLITS", "groups that share a head against parts to put together", &[1, 2, 4, 8, 16]),
            ints("ROWS", "products for one reading of the input against registers", &[1, 2, 4]),
        ],
        constraints: vec![Constraint {
            name: format!("blocks of a grid are resident: {resident} threads"),
            holds: Arc::new(move |c| {
                let threads = knob(c, "BLOCKS").and_then(|b| Ok(b * knob(c, "THREADS")?));
                c.name("PATH") == Some("phases") || threads.is_ok_and(|n| n <= resident)
            }),
        }],
        default: Config::new()
            .with("PATH", "fused")
            .with("BLOCKS", tier.pick([16, 16, 64, 132]))
            .with("THREADS", tier.pick([128, 256, 256, 256]))
            .with("SPLITS", tier.pick([2, 4, 4, 8]))
            .with("ROWS", 2),
    }
}

fn cost(s: &Shape) -> Cost {
    let weights = matrix_sizes(s).iter().sum::<usize>() as u64;
    let row = (s.size("kv_heads") * s.size("head_dim")) as u64;
    let seen = if s.size("window") > 0 { s.size("window").min(s.size("keys")) } else { s.size("keys") } as u64;
    Cost {
        flops: 2 * weights + 4 * seen * (s.size("heads") * s.size("head_dim")) as u64,
        int8_ops: 0,
        read_bytes: (weights + 2 * seen * row) * io(s).bytes(),
        write_bytes: 2 * row * io(s).bytes() + 4 * s.size("hidden") as u64,
    }
}

/// Scratch of a layer, whatever its configuration.
pub fn scratch_bytes(s: &Shape) -> usize {
    let parts = s.size("heads") * SPLITS_MAX * (s.size("head_dim") + 2);
    4 * (qkv_rows(s) + parts + s.size("hidden") + 2 * s.size("ffn"))
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let s = &call.shape;
    let (blocks, threads) = (knob(config, "BLOCKS")?, knob(config, "THREADS")?);
    let constants = vec![
        ("THREADS", threads as i64),
        ("SPLITS", knob(config, "SPLITS")? as i64),
        ("ROWS", knob(config, "ROWS")? as i64),
        ("IO", io_code(io(s))),
    ];
    let sizes = ["hidden", "heads", "kv_heads", "head_dim", "rotary", "ffn", "keys", "window"];
    let mut params: Vec<u32> = sizes.iter().map(|n| s.size(n) as u32).collect();
    let flags = [("norm", "head"), ("bias", "qkv"), ("pairs", "neighbours")];
    params.extend(flags.map(|(name, on)| u32::from(s.name(name) == on)));
    let scale = (s.size("head_dim") as f32).sqrt().recip();
    params.extend([call.attrs.get("eps") as f32, scale, s.size("softcap") as f32].map(f32::to_bits));
    let launch = |entry, groups, args| {
        let (constants, params) = (constants.clone(), params.clone());
        KernelLaunch { text: &OP.text, entry, constants, params, groups, threads, shared_bytes: 0 }.on(machine, args)
    };
    match config.name("PATH") {
        Some("phases") => phases::PHASES.iter().map(|entry| launch(entry, blocks, call.args.clone())).collect(),
        _ => {
            let sync = call.args.last().cloned().into_iter().collect();
            Ok(vec![launch("layer_reset", 1, sync)?, launch("layer_fused", blocks, call.args.clone())?])
        }
    }
}

fn layer(s: &Shape, eps: f64) -> Layer {
    Layer {
        hidden: s.size("hidden"),
        heads: s.size("heads"),
        kv_heads: s.size("kv_heads"),
        head_dim: s.size("head_dim"),
        rotary: s.size("rotary"),
        ffn: s.size("ffn"),
        keys: s.size("keys"),
        window: s.size("window"),
        softcap: s.size("softcap") as f64,
        pairs: if s.name("pairs") == "halves" { Pairs::Halves } else { Pairs::Neighbours },
        io: io(s),
        eps,
    }
}

fn weights(rng: &mut Rng, l: &Layer, s: &Shape) -> (Weights, [Vec<u8>; 4]) {
    let (mut bytes, sizes) = ([const { Vec::new() }; 4], matrix_sizes(s));
    let mut next = 0;
    let mut matrix = |rng: &mut Rng, cols: usize| {
        let scale = (cols as f32).sqrt().recip();
        let mut w: Vec<f32> = (0..sizes[next]).map(|_| scale * rng.normal()).collect();
        bytes[next] = data::rounded(&mut w, l.io);
        next += 1;
        w
    };
    let (qkv, o) = (matrix(rng, l.hidden), matrix(rng, l.heads * l.head_dim));
    let (up, down) = (matrix(rng, l.hidden), matrix(rng, l.ffn));
    let mut norm = |n: usize| (0..n).map(|_| 1.0 + 0.3 * rng.unit()).collect::<Vec<f32>>();
    let norms = [norm(l.hidden), norm(l.hidden)];
    let head_norms = (s.name("norm") == "head").then(|| [norm(l.head_dim), norm(l.head_dim)]);
    let bias = (s.name("bias") == "qkv").then(|| (0..qkv_rows(s)).map(|_| 0.5 * rng.normal()).collect());
    (Weights { norms, head_norms, bias, qkv, o, up, down }, bytes)
}

/// The vectors in the kernel's order; those that the layer lacks are NaN, so that a use shows.
fn vectors(w: &Weights, s: &Shape) -> Vec<f32> {
    let none = |n: usize| vec![f32::NAN; n];
    let [q, k] = w.head_norms.clone().unwrap_or([none(s.size("head_dim")), none(s.size("head_dim"))]);
    let bias = w.bias.clone().unwrap_or(none(qkv_rows(s)));
    [w.norms[0].clone(), w.norms[1].clone(), q, k, bias].concat()
}

/// A cache whose slots outside the window and from the new token on are NaN, so that a read of them shows.
fn cache(rng: &mut Rng, l: &Layer, capacity: usize) -> (Vec<f32>, Vec<u8>) {
    let (row, newest) = (l.kv_heads * l.head_dim, l.keys - 1);
    let oldest = if l.window > 0 { l.keys.saturating_sub(l.window) } else { 0 };
    let one = |slot: usize, v: f32| if (oldest..newest).contains(&slot) { v } else { f32::NAN };
    let mut x: Vec<f32> = (0..capacity * row).map(|i| one(i / row, rng.normal())).collect();
    let bytes = data::rounded(&mut x, l.io);
    (x, bytes)
}

/// The cache after: all as before, but for the slot of the new token.
fn cache_after(l: &Layer, before: &[f32], y64: Vec<f64>, y32: &[f32]) -> Expected {
    let at = (l.keys - 1) * y64.len();
    let slot = Expected::float(l.io, y64, y32);
    let mut values: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
    let mut bounds = vec![0.0; values.len()];
    values[at..at + slot.values.len()].copy_from_slice(&slot.values);
    bounds[at..at + slot.bounds.len()].copy_from_slice(&slot.bounds);
    Expected { dtype: l.io, values, bounds, untouched: 0 }
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (mut rng, eps) = (Rng::new(seed), f64::from(1e-5f32));
    let l = layer(shape, eps);
    let (w, matrices) = weights(&mut rng, &l, shape);
    let h = data::floats(&mut rng, l.hidden, fill);
    let (keys, key_bytes) = cache(&mut rng, &l, shape.size("capacity"));
    let (values, value_bytes) = cache(&mut rng, &l, shape.size("capacity"));
    let turn = |i: usize| (l.keys - 1) as f64 * 10_000f64.powf(-2.0 * i as f64 / l.rotary as f64);
    let angle: Vec<f64> = (0..l.rotary / 2).map(turn).collect();
    let table = angle.iter().map(|a| a.cos() as f32).chain(angle.iter().map(|a| a.sin() as f32)).collect::<Vec<f32>>();
    let (y64, y32) = if fill == Fill::Unjudged {
        let row = l.kv_heads * l.head_dim;
        ([vec![0.0; l.hidden], vec![0.0; row], vec![0.0; row]], [vec![0.0; l.hidden], vec![0.0; row], vec![0.0; row]])
    } else {
        // The definition never looks outside the window, where NaN lie; a product with zero weight would.
        let clean = |x: &[f32]| x.iter().map(|v| if v.is_nan() { 0.0 } else { *v }).collect::<Vec<f32>>();
        let (keys, values) = (clean(&keys), clean(&values));
        let exact = reference::layer::<f64>(&l, &w, &h, &angle, [&keys, &values]);
        (exact, reference::layer::<f32>(&l, &w, &h, &angle, [&keys, &values]))
    };
    let ([h64, k64, v64], [h32, k32, v32]) = (y64, y32);
    let [w_qkv, w_o, w_up, w_down] = matrices.map(Arg::In);
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("eps", eps),
        args: vec![
            Arg::In(data::bytes(&vectors(&w, shape))),
            Arg::In(data::bytes(&table)),
            w_qkv,
            w_o,
            w_up,
            w_down,
            Arg::InOut(data::bytes(&h), Expected::f32(h64, &h32)),
            Arg::InOut(key_bytes, cache_after(&l, &keys, k64, &k32)),
            Arg::InOut(value_bytes, cache_after(&l, &values, v64, &v32)),
            Arg::Scratch(scratch_bytes(shape)),
            Arg::Scratch(4),
        ],
        label: format!("{fill:?} seed={seed}"),
    }
}
