//! `attention_varlen`: attention of packed sequences of any lengths; bound by arithmetic.

mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::attention::inputs::{self, Both, Heads};
use crate::gpu::attention::reference::Mask;
use crate::gpu::attention::{options, space};
use crate::gpu::text::{IO, KernelLaunch, Text, io, knob};
use crate::op::{Arg, Attrs, Cost, Dtype, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{Shaken, lift};

/// Arguments: q `[tokens][heads][head_dim]`, k and v `[keys][kv_heads][head_dim]`, the first query and the first key of each
/// sequence and the end of the last, u32 `[sequences + 1]` each, o like q, log-sum-exp f32 `[tokens][heads]`; attributes
/// and options as in `attention`, by sequence.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "attention_varlen",
        about: "O = softmax(mask(softcap(scale Q K^T))) V by packed sequence; bound by arithmetic",
        check,
        space: |s, machine| space::forward(s, machine),
        cost,
        cases: |s| {
            let heads = Heads::of(s);
            let kv_heads = heads.kv.min(2);
            let small = s.clone().with("kv_heads", kv_heads as i64).with("heads", (kv_heads * heads.group()) as i64);
            let small = small.with("window", s.size("window").min(21) as i64);
            let sized = |n: i64, tokens: i64, keys: i64| {
                small.clone().with("sequences", n).with("tokens", tokens).with("keys", keys)
            };
            vec![sized(5, 131, 190), sized(4, 70, 40), sized(1, 1, 33)]
        },
        problem,
        steps,
        rotated: &[0, 1, 2, 5],
        reduces: &["BLOCK_K"],
    },
    text: TEXT,
    shapes: &[
        "causal=1,head_dim=64,heads=2,keys=62,kv_heads=1,sequences=5,softcap=0,tokens=50,type=f32,window=0",
        "causal=0,head_dim=64,heads=1,keys=40,kv_heads=1,sequences=1,softcap=0,tokens=17,type=f32,window=0",
        "causal=1,head_dim=80,heads=4,keys=30,kv_heads=2,sequences=3,softcap=1,tokens=34,type=f16,window=7",
        "causal=0,head_dim=96,heads=2,keys=45,kv_heads=2,sequences=6,softcap=0,tokens=12,type=bf16,window=3",
    ],
};

const TEXT: Text = Text(&[
    IO,
    space::FORWARD_SIZES,
    ("attention_shared.k", include_str!("../include/attention.k")),
    ("attention_forward.k", include_str!("../include/attention_forward.k")),
    ("attention_varlen.k", include_str!("attention_varlen.k")),
]);

fn check(s: &Shape) -> Result<(), String> {
    let sizes = ["causal", "head_dim", "heads", "keys", "kv_heads", "sequences", "softcap", "tokens", "window"];
    s.check(&sizes, &["type"])?;
    inputs::check(s, &["keys", "tokens", "window", "sequences"])?;
    if s.size("sequences") == 0 { Err(format!("{s}: no sequence")) } else { Ok(()) }
}

/// Work of sequences of equal lengths.
fn cost(shape: &Shape) -> Cost {
    let (heads, mask) = (Heads::of(shape), options(shape, &Attrs::new()));
    let [sequences, tokens, keys] = ["sequences", "tokens", "keys"].map(|name| shape.size(name));
    let one = Mask { queries: tokens.div_ceil(sequences), keys: keys.div_ceil(sequences), ..mask };
    let (dim, q, kv) = (one.dim as u64, (tokens * heads.q) as u64, (keys * heads.kv) as u64);
    Cost {
        flops: (4 * dim + 5) * one.pairs() * (sequences * heads.q) as u64,
        int8_ops: 0,
        read_bytes: io(shape).bytes() * dim * (q + 2 * kv) + 8 * (sequences as u64 + 1),
        write_bytes: io(shape).bytes() * dim * q + 4 * q,
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (shape, heads) = (&call.shape, Heads::of(&call.shape));
    let blocks = shape.size("tokens") / knob(config, "BLOCK_Q")? + shape.size("sequences");
    let [scale, softcap] = ["scale", "softcap"].map(|name| (call.attrs.get(name) as f32).to_bits());
    let [sequences, causal, window] = ["sequences", "causal", "window"].map(|name| shape.size(name) as u32);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "attention_varlen",
        constants: space::forward_constants(config, shape)?,
        params: vec![heads.q as u32, heads.kv as u32, sequences, blocks as u32, causal, window, scale, softcap],
        groups: heads.q * blocks,
        threads: 32 * knob(config, "SIMDGROUPS")?,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

/// The starts of `sequences` sequences of `total` rows, and their end.
///
/// Of several, sequence `empty` has no row and the one after it a single row; the others share the rest unevenly.
fn starts(rng: &mut Rng, sequences: usize, total: usize, empty: usize) -> Vec<u32> {
    let mut lengths = vec![0; sequences];
    let single = (empty + 1) % sequences;
    let mut left = total;
    if sequences > 2 && left > 0 {
        lengths[single] = 1;
        left -= 1;
    }
    let open: Vec<usize> = (0..sequences).filter(|s| sequences <= 2 || (*s != empty && *s != single)).collect();
    for (n, s) in open.iter().enumerate() {
        let share = if n + 1 == open.len() { left } else { rng.below(left as u64 + 1) as usize };
        lengths[*s] = share;
        left -= share;
    }
    let mut sum = 0;
    let ends = lengths.iter().map(|n| {
        sum += *n as u32;
        sum
    });
    std::iter::once(0).chain(ends).collect()
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (heads, io) = (Heads::of(shape), io(shape));
    let attrs = inputs::attrs(shape, fill);
    let mask = options(shape, &attrs);
    let [sequences, tokens, keys] = ["sequences", "tokens", "keys"].map(|name| shape.size(name));
    let mut rng = Rng::new(seed);
    let cu = [starts(&mut rng, sequences, tokens, 0), starts(&mut rng, sequences, keys, sequences / 2)];
    let mut q = inputs::queries(&mut rng, tokens * heads.q, mask.dim, fill);
    let mut k = inputs::keys(&mut rng, keys * heads.kv * mask.dim, fill);
    let mut v = data::floats(&mut rng, keys * heads.kv * mask.dim, fill);
    let ins = [&mut q, &mut k, &mut v].map(|x| Arg::In(data::rounded(x, io)));
    let (mut o, mut lse) = (Both::default(), Both::default());
    if fill == Fill::Unjudged {
        (o, lse) = (Both::zeros(q.len()), Both::zeros(q.len() / mask.dim));
    } else {
        let cu = [&cu[0][..], &cu[1][..]];
        let exact = reference::packed::<f64>(&mask, heads, [&lift(&q), &lift(&k), &lift(&v)], cu);
        let plain = reference::packed::<f32>(&mask, heads, [&q, &k, &v], cu);
        o.extend(exact.0, plain.0);
        lse.extend(exact.1, plain.1);
        let [q, k, v] = [&q, &k, &v].map(|x| lift::<Shaken>(x));
        let draws = Shaken::draws(io, q.len(), || reference::packed(&mask, heads, [&q, &k, &v], cu));
        (o.draws, lse.draws) = draws.into_iter().unzip();
    }
    let starts = cu.map(|c| Arg::In(data::bytes_u32(&c)));
    let outs = [Arg::Out(o.expected(io)), Arg::Out(lse.expected(Dtype::F32))];
    Problem {
        shape: shape.clone(),
        attrs,
        args: ins.into_iter().chain(starts).chain(outs).collect(),
        label: format!("{fill:?} seed={seed}"),
    }
}
