//! `attention_decode`: attention of one query a sequence against its cache; bound by memory.

mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::attention::inputs::{self, Both, Heads};
use crate::gpu::attention::reference::Mask;
use crate::gpu::attention::space::{constraint, static_bytes};
use crate::gpu::text::{IO, KernelLaunch, Text, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Cost, Dtype, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{Shaken, lift};

/// Arguments: q `[sequences][heads][head_dim]` of the shape's type, k and v `[sequences][kv_heads][capacity][head_dim]` of
/// type `kv`, the positions stored in each sequence, u32 `[sequences]`, o like q, and scratch; attributes as in `attention`.
///
/// The query is at the last stored position; a sequence without any gives zeros.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "attention_decode",
        about: "o = softmax(softcap(scale q K^T)) V of one query a sequence; bound by memory",
        check,
        space,
        cost,
        cases: |s| {
            let heads = Heads::of(s);
            let kv_heads = heads.kv.min(2);
            let small = s.clone().with("kv_heads", kv_heads as i64).with("heads", (kv_heads * heads.group()) as i64);
            let small = small.with("window", s.size("window").min(21) as i64);
            vec![
                small.clone().with("sequences", 4).with("capacity", 301),
                small.with("sequences", 1).with("capacity", 1),
            ]
        },
        problem,
        steps,
        rotated: &[0, 1, 2, 4],
        reduces: &["THREADS", "TILE", "SPLITS"],
    },
    text: TEXT,
    shapes: &[
        "capacity=1,head_dim=64,heads=1,kv=f32,kv_heads=1,sequences=1,softcap=0,type=f32,window=0",
        "capacity=150,head_dim=64,heads=4,kv=f32,kv_heads=1,sequences=4,softcap=0,type=f32,window=0",
        "capacity=70,head_dim=80,heads=8,kv=f16,kv_heads=1,sequences=1,softcap=1,type=f16,window=33",
        "capacity=37,head_dim=96,heads=3,kv=bf16,kv_heads=1,sequences=3,softcap=0,type=bf16,window=0",
        "capacity=300,head_dim=128,heads=2,kv=f16,kv_heads=1,sequences=1,softcap=0,type=f32,window=0",
        "capacity=65,head_dim=256,heads=2,kv=f32,kv_heads=2,sequences=1,softcap=0,type=f16,window=5",
    ],
};

const TEXT: Text = Text(&[IO, ("attention_decode.k", include_str!("attention_decode.k"))]);

const SPLITS: [i64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Threads that the kernel's sums of values have room for.
const MOST_THREADS: usize = 256;
/// Keys that its weights have room for.
const MOST_TILE: usize = 256;
/// Most query heads that a group takes together.
const MOST_HEADS: usize = 16;
/// Threadgroup memory of a default configuration.
const DEFAULT_BYTES: usize = 24 << 10;

fn check(s: &Shape) -> Result<(), String> {
    let sizes = ["capacity", "head_dim", "heads", "kv_heads", "sequences", "softcap", "window"];
    s.check(&sizes, &["kv", "type"])?;
    Dtype::float(s.name("kv")).ok_or_else(|| format!("{s}: kv is f32, f16 or bf16"))?;
    inputs::check(&s.clone().with("causal", 1), &["capacity", "window", "sequences"])
}

fn kv(shape: &Shape) -> Dtype {
    Dtype::float(shape.name("kv")).expect("shape was checked")
}

fn group_bytes(head_dim: usize, heads: usize) -> usize {
    4 * heads * (head_dim + MOST_TILE + 3) + 16 * MOST_THREADS
}

fn space(shape: &Shape, machine: &Machine<'_>) -> Space {
    let (limit, most) = (static_bytes(machine), machine.backend.limits().max_threads as usize);
    let (head_dim, group) = (shape.size("head_dim"), Heads::of(shape).group());
    let shared: Vec<i64> = (1..=group.min(MOST_HEADS)).filter(|h| group.is_multiple_of(*h)).map(|h| h as i64).collect();
    let fits = |heads: usize| heads <= 8 && group_bytes(head_dim, heads) <= limit.min(DEFAULT_BYTES);
    let heads = shared.iter().copied().filter(|h| fits(*h as usize)).max().unwrap_or(1);
    // Groups that keep a machine of this class busy, as splits of what the sequences and heads give; a split has 64 keys.
    let groups = (shape.size("sequences") * Heads::of(shape).q / heads as usize).max(1);
    let wanted = Tier::on(machine).pick([32, 64, 128, 512]) / groups;
    let most_splits = wanted.min(shape.size("capacity").div_ceil(64)).max(1) as i64;
    let splits = SPLITS.into_iter().filter(|s| *s <= most_splits).max().unwrap_or(1);
    Space {
        params: vec![
            ints("THREADS", "loads in flight against more partial sums", &[64, 128, 256]),
            ints("TILE", "fewer barriers against sums that wait for scores", &[32, 64, 128, 256]),
            ints("HEADS", "query heads that share a read of the keys, against registers", &shared),
            ints("SPLITS", "groups in flight against partial results", &SPLITS),
        ],
        constraints: vec![
            constraint(format!("threadgroup bytes <= {limit}"), ["HEADS"], move |[heads]| {
                group_bytes(head_dim, heads) <= limit
            }),
            constraint(format!("threads <= {most}"), ["THREADS"], move |[threads]| threads <= most),
        ],
        default: Config::new().with("THREADS", 128).with("TILE", 64).with("HEADS", heads).with("SPLITS", splits),
    }
}

/// Work of sequences that are full.
fn cost(shape: &Shape) -> Cost {
    let heads = Heads::of(shape);
    let (sequences, dim, capacity) =
        (shape.size("sequences") as u64, shape.size("head_dim") as u64, shape.size("capacity"));
    let seen = if shape.size("window") == 0 { capacity } else { capacity.min(shape.size("window")) } as u64;
    let rows = sequences * heads.q as u64;
    Cost {
        flops: (4 * dim + 5) * rows * seen,
        int8_ops: 0,
        read_bytes: io(shape).bytes() * dim * rows
            + 2 * kv(shape).bytes() * dim * sequences * heads.kv as u64 * seen
            + 4 * sequences,
        write_bytes: io(shape).bytes() * dim * rows,
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (shape, heads) = (&call.shape, Heads::of(&call.shape));
    let [threads, tile, together, splits] =
        [knob(config, "THREADS")?, knob(config, "TILE")?, knob(config, "HEADS")?, knob(config, "SPLITS")?];
    let rows = shape.size("sequences") * heads.q;
    let [scale, softcap] = ["scale", "softcap"].map(|name| (call.attrs.get(name) as f32).to_bits());
    let [capacity, window] = ["capacity", "window"].map(|name| shape.size(name) as u32);
    let step = |entry, groups, args: &[usize]| {
        let constants = vec![
            ("THREADS", threads as i64),
            ("TILE", tile as i64),
            ("HEADS", together as i64),
            ("SPLITS", splits as i64),
            ("HEAD_DIM", shape.size("head_dim") as i64),
            ("KV", io_code(kv(shape))),
            ("IO", io_code(io(shape))),
        ];
        let params = vec![heads.q as u32, heads.kv as u32, capacity, window, scale, softcap];
        let launch = KernelLaunch { text: &OP.text, entry, constants, params, groups, threads, shared_bytes: 0 };
        launch.on(machine, args.iter().map(|a| call.args[*a].clone()).collect())
    };
    Ok(vec![
        step("attention_decode_split", rows / together * splits, &[0, 1, 2, 3, 5])?,
        step("attention_decode_merge", rows, &[5, 4])?,
    ])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (heads, io) = (Heads::of(shape), io(shape));
    let attrs = inputs::attrs(shape, fill);
    let [sequences, capacity, dim] = ["sequences", "capacity", "head_dim"].map(|name| shape.size(name));
    let mask = Mask {
        queries: 1,
        keys: capacity,
        dim,
        causal: true,
        window: shape.size("window"),
        scale: attrs.get("scale"),
        softcap: attrs.get("softcap"),
    };
    let mut rng = Rng::new(seed);
    // A full cache, then one of a single position, an empty one, and any.
    let length = |s: usize, rng: &mut Rng| match s {
        0 => capacity,
        1 => capacity.min(1),
        2 => 0,
        _ => rng.below(capacity as u64 + 1) as usize,
    };
    let lengths: Vec<u32> = (0..sequences).map(|s| length(s, &mut rng) as u32).collect();
    let cached = sequences * heads.kv * capacity * dim;
    let mut q = inputs::queries(&mut rng, sequences * heads.q, dim, fill);
    let mut k = inputs::keys(&mut rng, cached, fill);
    let mut v = data::floats(&mut rng, cached, fill);
    let ins = [(&mut q, io), (&mut k, kv(shape)), (&mut v, kv(shape))].map(|(x, ty)| Arg::In(data::rounded(x, ty)));
    let o = if fill == Fill::Unjudged {
        Both::zeros(q.len())
    } else {
        let draw = || reference::decode::<Shaken>(&mask, heads, [&lift(&q), &lift(&k), &lift(&v)], &lengths);
        Both {
            exact: reference::decode::<f64>(&mask, heads, [&lift(&q), &lift(&k), &lift(&v)], &lengths),
            plain: reference::decode::<f32>(&mask, heads, [&q, &k, &v], &lengths),
            draws: Shaken::draws(io, q.len(), draw),
        }
    };
    let most_splits = SPLITS[SPLITS.len() - 1] as usize;
    let rest = [
        Arg::In(data::bytes_u32(&lengths)),
        Arg::Out(o.expected(io)),
        Arg::Scratch(4 * sequences * heads.q * most_splits * (dim + 2)),
    ];
    Problem {
        shape: shape.clone(),
        attrs,
        args: ins.into_iter().chain(rest).collect(),
        label: format!("{fill:?} seed={seed}"),
    }
}
