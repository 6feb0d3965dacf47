//! `attention_backward`: gradients of attention by its saved log-sum-exp, in a fixed order; bound by arithmetic.

mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::attention::inputs::{self, Both, Heads};
use crate::gpu::attention::space::{constraint, row_sets, static_bytes};
use crate::gpu::attention::{self, SIZES};
use crate::gpu::text::{IO, KernelLaunch, TANH, Text, ints, io, io_code, knob};
use crate::op::{Arg, Attrs, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::Shaken;
use reference::Dense;

/// Arguments: q, k, v, o and the log-sum-exp as in `attention`, the gradient of o, then the gradients of q, k and v, each like
/// what it is of, and scratch; attributes as in `attention`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "attention_backward",
        about: "dQ, dK and dV of softmax(mask(softcap(scale Q K^T))) V; bound by arithmetic",
        check: |s| {
            s.check(&SIZES, &["type"])?;
            inputs::check(s, &["keys", "queries", "window"])
        },
        space,
        cost,
        cases: attention::cases,
        problem,
        steps,
        rotated: &[0, 1, 2, 3, 5, 6, 7, 8],
        reduces: &["BLOCK", "STEP", "SIMDGROUPS"],
    },
    text: TEXT,
    shapes: &[
        "causal=0,head_dim=64,heads=1,keys=1,kv_heads=1,queries=1,sequences=1,softcap=0,type=f32,window=0",
        "causal=1,head_dim=64,heads=2,keys=33,kv_heads=1,queries=33,sequences=1,softcap=0,type=f32,window=5",
        "causal=1,head_dim=64,heads=2,keys=9,kv_heads=2,queries=35,sequences=1,softcap=1,type=f32,window=0",
        "causal=1,head_dim=80,heads=4,keys=34,kv_heads=1,queries=5,sequences=1,softcap=1,type=f16,window=16",
        "causal=0,head_dim=96,heads=2,keys=31,kv_heads=1,queries=17,sequences=1,softcap=0,type=bf16,window=9",
        "causal=1,head_dim=128,heads=1,keys=19,kv_heads=1,queries=17,sequences=1,softcap=0,type=f16,window=0",
        "causal=0,head_dim=64,heads=1,keys=0,kv_heads=1,queries=3,sequences=1,softcap=0,type=f32,window=0",
        "causal=0,head_dim=256,heads=1,keys=11,kv_heads=1,queries=9,sequences=1,softcap=0,type=f32,window=0",
    ],
};

/// Rows that a group owns, and those of the tiles that it walks: queries and keys, or the other way round.
const SIZES_TEXT: (&str, &str) = ("attention_sizes.k", "#define OWN SHAPE_BLOCK\n#define STREAM SHAPE_STEP\n");

const TEXT: Text = Text(&[
    IO,
    TANH,
    SIZES_TEXT,
    ("attention_shared.k", include_str!("../include/attention.k")),
    ("attention_backward.k", include_str!("attention_backward.k")),
]);

/// Threadgroup memory of a default configuration, which leaves room for a second group.
const DEFAULT_BYTES: usize = 32 << 10;
/// Accumulators and scores of a lane that stay in registers.
const LANE_FLOATS: usize = 136;

fn group_bytes(shape: &Shape, block: usize, step: usize) -> usize {
    2 * step * shape.size("head_dim") * io(shape).bytes() as usize + 4 * block * step
}

fn lane_floats(head_dim: usize, step: usize, rows: usize) -> usize {
    2 * rows * (head_dim + step) / 32
}

fn space(shape: &Shape, machine: &Machine<'_>) -> Space {
    let (limit, most) = (static_bytes(machine), machine.backend.limits().max_threads as usize);
    let head_dim = shape.size("head_dim");
    let sized = shape.clone();
    let mut step = 32;
    while group_bytes(shape, 32, step) > limit.min(DEFAULT_BYTES) {
        step /= 2;
    }
    // As few rows a SIMD group as fill its lanes: both sums and both products of each are in registers.
    let simdgroups = if row_sets(head_dim, step) > 4 { 4 } else { 8 };
    Space {
        params: vec![
            ints("BLOCK", "reuse of the other side against threadgroup memory and registers", &[16, 32, 64]),
            ints("STEP", "fewer barriers against threadgroup memory", &[8, 16, 32, 64]),
            ints("SIMDGROUPS", "fewer registers a lane against more reads of the same tile", &[2, 4, 8]),
        ],
        constraints: vec![
            constraint(format!("threadgroup bytes <= {limit}"), ["BLOCK", "STEP"], move |[block, step]| {
                group_bytes(&sized, block, step) <= limit
            }),
            constraint(format!("threads <= {most}"), ["SIMDGROUPS"], move |[s]| 32 * s <= most),
            constraint(
                "rows of a SIMD group fill its lanes".to_owned(),
                ["BLOCK", "STEP", "SIMDGROUPS"],
                move |[block, step, s]| (block / s).is_multiple_of(row_sets(head_dim, step)) && block / s > 0,
            ),
            constraint(
                format!("floats of a lane <= {LANE_FLOATS}"),
                ["BLOCK", "STEP", "SIMDGROUPS"],
                move |[block, step, s]| lane_floats(head_dim, step, block / s) <= LANE_FLOATS,
            ),
        ],
        default: Config::new().with("BLOCK", 32).with("STEP", step as i64).with("SIMDGROUPS", simdgroups),
    }
}

/// Least work: scores and the product of dO and V made once.
fn cost(shape: &Shape) -> Cost {
    let (heads, mask) = (Heads::of(shape), attention::mask(shape, &Attrs::new()));
    let (sequences, dim) = (shape.size("sequences") as u64, mask.dim as u64);
    let q = sequences * (heads.q * mask.queries) as u64;
    let kv = sequences * (heads.kv * mask.keys) as u64;
    Cost {
        flops: (10 * dim + 8) * mask.pairs() * sequences * heads.q as u64,
        int8_ops: 0,
        read_bytes: io(shape).bytes() * dim * (3 * q + 2 * kv) + 4 * q,
        write_bytes: io(shape).bytes() * dim * (q + 2 * kv),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (shape, heads) = (&call.shape, Heads::of(&call.shape));
    let [block, step, simdgroups] = [knob(config, "BLOCK")?, knob(config, "STEP")?, knob(config, "SIMDGROUPS")?];
    let [sequences, queries, keys] = ["sequences", "queries", "keys"].map(|name| shape.size(name));
    let [scale, softcap] = ["scale", "softcap"].map(|name| (call.attrs.get(name) as f32).to_bits());
    let [causal, window] = ["causal", "window"].map(|name| shape.size(name) as u32);
    let (rows, chunks) = (sequences * heads.q * queries, shape.size("head_dim") / 4);
    let params = vec![
        chunks as u32,
        heads.q as u32,
        heads.kv as u32,
        queries as u32,
        keys as u32,
        causal,
        window,
        scale,
        softcap,
    ];
    let step = |entry, groups, params: Vec<u32>, args: &[usize]| {
        let constants = vec![
            ("BLOCK", block as i64),
            ("STEP", step as i64),
            ("SIMDGROUPS", simdgroups as i64),
            ("HEAD_DIM", shape.size("head_dim") as i64),
            ("IO", io_code(io(shape))),
        ];
        let threads = 32 * simdgroups;
        let launch = KernelLaunch { text: &OP.text, entry, constants, params, groups, threads, shared_bytes: 0 };
        launch.on(machine, args.iter().map(|a| call.args[*a].clone()).collect())
    };
    let (q_groups, kv_groups) =
        (sequences * heads.q * queries.div_ceil(block), sequences * heads.kv * keys.div_ceil(block));
    let launches = [
        ("attention_backward_delta", rows.div_ceil(32 * simdgroups), vec![rows as u32, chunks as u32], &[3, 5, 9][..]),
        ("attention_backward_q", q_groups, params.clone(), &[0, 1, 2, 5, 4, 9, 6]),
        ("attention_backward_kv", kv_groups, params, &[0, 1, 2, 5, 4, 9, 7, 8]),
    ];
    let some = launches.into_iter().filter(|(_, groups, ..)| *groups > 0);
    some.map(|(entry, groups, params, args)| step(entry, groups, params, args)).collect()
}

/// Values and gradients of outputs; extreme ones are whole numbers with a factor a row, so that their products are exact.
fn rows(rng: &mut Rng, rows: usize, dim: usize, fill: Fill) -> Vec<f32> {
    let mut x = inputs::keys(rng, rows * dim, fill);
    if fill == Fill::Extreme {
        for row in x.chunks_mut(dim) {
            let factor = [1.0, 16.0, 1.0 / 1024.0][rng.below(3) as usize];
            row.iter_mut().for_each(|v| *v *= factor);
        }
    }
    x
}

/// What gradients lose where P is under the least normal f32, which may be flushed to zero, and large factors follow: the
/// product of dO and V, which are summed over the elements of a head, and Q or K, summed over rows; `factor` has the rest.
fn lost(tensors: [&[f32]; 4], factor: f64) -> f64 {
    let [q, k, v, d_o] = tensors.map(|x| x.iter().fold(1.0, |most: f64, x| most.max(f64::from(x.abs()))));
    f64::from(f32::MIN_POSITIVE) * 2.0 * d_o * v * q.max(k) * factor
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (heads, io) = (Heads::of(shape), io(shape));
    let attrs = inputs::attrs(shape, fill);
    let mask = attention::mask(shape, &attrs);
    let sequences = shape.size("sequences");
    let (q_rows, kv_rows) = (sequences * heads.q * mask.queries, sequences * heads.kv * mask.keys);
    let mut rng = Rng::new(seed);
    let mut q = inputs::queries(&mut rng, q_rows, mask.dim, fill);
    let mut k = inputs::keys(&mut rng, kv_rows * mask.dim, fill);
    let mut v = rows(&mut rng, kv_rows, mask.dim, fill);
    let mut d_o = rows(&mut rng, q_rows, mask.dim, fill);
    let [q_in, k_in, v_in, d_o_in] = [&mut q, &mut k, &mut v, &mut d_o].map(|x| Arg::In(data::rounded(x, io)));
    let judged = fill != Fill::Unjudged;
    let dense = Dense { mask, heads, sequences };
    let (mut o, lse) = if judged { dense.forward([&q, &k, &v]) } else { (vec![0.0; q.len()], vec![0.0; q_rows]) };
    let o_in = Arg::In(data::rounded(&mut o, io));
    let outs = if judged {
        let exact = dense.backward::<f64>([&q, &k, &v, &o, &d_o, &lse]);
        let plain = dense.backward::<f32>([&q, &k, &v, &o, &d_o, &lse]);
        let draws = Shaken::draws(io, q.len(), || dense.backward::<Shaken>([&q, &k, &v, &o, &d_o, &lse]));
        let drawn = |n: usize| draws.iter().map(|draw| draw[n].clone()).collect();
        let both = |(n, (exact, plain))| Both { exact, plain, draws: drawn(n) };
        let mut all = exact.into_iter().zip(plain).enumerate().map(both);
        [(); 3].map(|()| all.next().unwrap_or_default())
    } else {
        [q.len(), k.len(), v.len()].map(Both::zeros)
    };
    let lost = lost([&q, &k, &v, &d_o], mask.scale * mask.dim as f64 * (mask.queries + mask.keys) as f64);
    let outs = outs.map(|x| {
        let mut expected = x.expected(io);
        expected.bounds.iter_mut().for_each(|bound| *bound += lost);
        Arg::Out(expected)
    });
    Problem {
        shape: shape.clone(),
        attrs,
        args: [q_in, k_in, v_in, o_in, Arg::In(data::bytes(&lse)), d_o_in]
            .into_iter()
            .chain(outs)
            .chain([Arg::Scratch(4 * q_rows)])
            .collect(),
        label: format!("{fill:?} seed={seed}"),
    }
}
