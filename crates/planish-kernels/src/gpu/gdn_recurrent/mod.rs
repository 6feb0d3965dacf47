//! `gdn_recurrent`: the gated delta rule, a token at a time; bound by memory at one step, by latency at many.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{Shaken, lift};
use reference::{Gdn, Sizes};

/// Arguments: q and k `[batch][steps][key_heads][key_dim]`, v `[batch][steps][heads][value_dim]`, g and beta f32
/// `[batch][steps][heads]` with g the logarithm of the decay, mask u32 `[batch][steps]` with `mask=1`, first state f32
/// `[batch][heads][value_dim][key_dim]` with `init=1` (else zero), y like v, last state f32.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "gdn_recurrent",
        about: "s = e^g s + beta (v - e^g s k) k^T, y = s q; bound by memory at one step, by latency at many",
        check,
        space: |_, machine| {
            let most = i64::from(machine.backend.limits().max_threads);
            let threads: Vec<i64> = [32, 64, 128, 256, 512].into_iter().filter(|t| *t <= most).collect();
            Space {
                params: vec![
                    ints("THREADS", "rows that share cached keys against groups in flight", &threads),
                    ints("ROWS", "reuse of keys against registers", &[1, 2, 4]),
                ],
                constraints: Vec::new(),
                default: Config::new().with("THREADS", Tier::on(machine).pick([64, 128, 128, 128])).with("ROWS", 2),
            }
        },
        cost,
        cases,
        problem,
        steps,
        rotated: &[0, 1, 2, 6, 7, 8],
        reduces: &["THREADS", "ROWS"],
    },
    text: TEXT,
    shapes: SHAPES,
};

const TEXT: Text = Text(&[IO, ("gdn_recurrent.k", include_str!("gdn_recurrent.k"))]);

/// The shapes that prove the rule in either form.
pub(super) const SHAPES: &[&str] = &[
    "batch=1,steps=1,heads=1,key_heads=1,key_dim=1,value_dim=1,mask=0,init=0,type=f32",
    "batch=2,steps=0,heads=2,key_heads=1,key_dim=8,value_dim=5,mask=0,init=1,type=f32",
    "batch=1,steps=65,heads=2,key_heads=1,key_dim=24,value_dim=7,mask=1,init=1,type=f32",
    "batch=1,steps=63,heads=2,key_heads=2,key_dim=32,value_dim=16,mask=0,init=0,type=f32",
    "batch=2,steps=64,heads=2,key_heads=1,key_dim=9,value_dim=3,mask=0,init=1,type=f32",
    "batch=1,steps=13,heads=2,key_heads=2,key_dim=32,value_dim=6,mask=1,init=0,type=f16",
    "batch=1,steps=15,heads=2,key_heads=1,key_dim=33,value_dim=9,mask=0,init=1,type=bf16",
];

/// Checks a shape of the rule.
pub(super) fn check(s: &Shape) -> Result<(), String> {
    s.check(&["batch", "steps", "heads", "key_heads", "key_dim", "value_dim", "mask", "init"], &["type"])?;
    let z = sizes(s);
    if z.batch == 0 || z.key_heads == 0 || z.heads == 0 || !z.heads.is_multiple_of(z.key_heads) || z.value_dim == 0 {
        return Err(format!("{s}: batch and value_dim are at least 1, heads a multiple of key_heads"));
    }
    if !(1..=256).contains(&z.key_dim) {
        return Err(format!("{s}: key_dim is 1 to 256"));
    }
    check_io(s)
}

/// The sizes of a shape.
pub(super) fn sizes(s: &Shape) -> Sizes {
    Sizes {
        batch: s.size("batch"),
        steps: s.size("steps"),
        heads: s.size("heads"),
        key_heads: s.size("key_heads"),
        key_dim: s.size("key_dim"),
        value_dim: s.size("value_dim"),
    }
}

/// The parameter block of the rule's kernels.
pub(super) fn params(s: &Shape) -> Vec<u32> {
    let names = ["batch", "steps", "heads", "key_heads", "key_dim", "value_dim", "mask", "init"];
    names.iter().map(|name| s.size(name) as u32).collect()
}

/// Work of the rule, as the recurrence needs it.
pub(super) fn cost(s: &Shape) -> Cost {
    let (z, e) = (sizes(s), io(s).bytes());
    let (heads, tokens) = ((z.batch * z.heads) as u64, (z.batch * z.steps) as u64);
    let (cells, values) = ((z.value_dim * z.key_dim) as u64, tokens * (z.heads * z.value_dim) as u64);
    let keys = tokens * (z.key_heads * z.key_dim) as u64;
    Cost {
        flops: 7 * cells * tokens * z.heads as u64,
        int8_ops: 0,
        read_bytes: e * (2 * keys + values) + 8 * tokens * z.heads as u64 + 4 * heads * cells * s.size("init") as u64,
        write_bytes: e * values + 4 * heads * cells,
    }
}

/// Stand-ins for a shape, small enough to check.
pub(super) fn cases(s: &Shape) -> Vec<Shape> {
    let most = [("batch", 2), ("steps", 130), ("value_dim", 24)];
    let small = most.iter().fold(s.clone(), |s, (name, most)| {
        let n = s.size(name).min(*most) as i64;
        s.with(name, n)
    });
    let groups = (s.size("heads") / s.size("key_heads")) as i64;
    let small = small.with("key_heads", 1).with("heads", groups);
    vec![small.clone(), small.with("steps", 1)]
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let z = sizes(&call.shape);
    let (threads, rows) = (knob(config, "THREADS")?, knob(config, "ROWS")?);
    let per_lane = z.key_dim.div_ceil(32);
    let sizes = [("THREADS", threads), ("ROWS", rows), ("PER_LANE", per_lane)];
    let mut constants = sizes.map(|(name, v)| (name, v as i64)).to_vec();
    constants.push(("IO", io_code(io(&call.shape))));
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "gdn_recurrent",
        constants,
        params: params(&call.shape),
        groups: (z.batch * z.heads * z.value_dim.div_ceil(rows)).div_ceil(threads / 32),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

/// Inputs of the rule as they come from a model, or with the ends of their ranges: decays of nothing and of all, gates
/// that are shut and open, values a thousand times too large.
pub(super) struct Inputs {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) g: Vec<f32>,
    pub(super) beta: Vec<f32>,
    pub(super) mask: Vec<u32>,
    pub(super) init: Vec<f32>,
}

impl Inputs {
    /// Inputs of `shape`, rounded, and the arguments that hold them.
    pub(super) fn new(shape: &Shape, seed: u64, fill: Fill) -> (Inputs, Vec<Arg>) {
        let (z, io) = (sizes(shape), io(shape));
        let mut rng = Rng::new(seed);
        let tokens = z.batch * z.steps;
        let mut unit = |n: usize, scale: f32| -> Vec<f32> {
            let mut x = data::floats(&mut rng, n * z.key_dim, Fill::Random);
            for row in x.chunks_mut(z.key_dim) {
                let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-3);
                row.iter_mut().for_each(|v| *v *= scale / norm);
            }
            x
        };
        let mut q = unit(tokens * z.key_heads, 1.0 / (z.key_dim as f32).sqrt());
        let mut k = unit(tokens * z.key_heads, 1.0);
        let mut v = data::floats(&mut rng, tokens * z.heads * z.value_dim, fill);
        let mut gate = |ends: [f32; 3], one: fn(f32) -> f32| -> Vec<f32> {
            let draw = |rng: &mut Rng| match (fill, rng.below(12)) {
                (Fill::Extreme, i @ 0..=2) => ends[i as usize],
                _ => one(rng.unit()),
            };
            (0..tokens * z.heads).map(|_| draw(&mut rng)).collect()
        };
        let g = gate([0.0, -60.0, -1000.0], |u| -0.3 * (1.0 + u));
        let beta = gate([0.0, 1.0, 1e-3], |u| 0.5 + 0.49 * u);
        let masked = if shape.size("mask") > 0 { tokens } else { 0 };
        // Tokens in the middle and at the end are masked.
        let mask: Vec<u32> = (0..masked).map(|t| u32::from(t % 7 != 3 && t % z.steps + 3 < z.steps)).collect();
        let cells = if shape.size("init") > 0 { z.batch * z.heads * z.value_dim * z.key_dim } else { 0 };
        let init = data::floats(&mut rng, cells, Fill::Random);
        let mut args = Vec::from([&mut q, &mut k, &mut v].map(|x| Arg::In(data::rounded(x, io))));
        args.extend([&g, &beta].map(|x| Arg::In(data::bytes(x))));
        args.extend([Arg::In(data::bytes_u32(&mask)), Arg::In(data::bytes(&init))]);
        (Inputs { q, k, v, g, beta, mask, init }, args)
    }
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (inputs, mut args) = Inputs::new(shape, seed, fill);
    args.extend(outputs(shape, &inputs, fill).map(Arg::Out));
    Problem { shape: shape.clone(), attrs: Attrs::new(), args, label: format!("{fill:?} seed={seed}") }
}

/// What y and the last state must hold.
pub(super) fn outputs(shape: &Shape, x: &Inputs, fill: Fill) -> [Expected; 2] {
    let (sizes, io) = (sizes(shape), io(shape));
    if fill == Fill::Unjudged {
        let cells = sizes.batch * sizes.heads * sizes.value_dim * sizes.key_dim;
        let zeros = |dtype, n: usize| Expected::float(dtype, vec![0.0; n], &vec![0.0; n]);
        return [zeros(io, x.v.len()), zeros(Dtype::F32, cells)];
    }
    let [q, k, v] = [&x.q, &x.k, &x.v].map(|x| lift::<f64>(x));
    let [g, beta, init] = [&x.g, &x.beta, &x.init].map(|x| lift::<f64>(x));
    let exact = Gdn { q: &q, k: &k, v: &v, g: &g, beta: &beta, mask: &x.mask, init: &init, sizes };
    let plain = Gdn { q: &x.q, k: &x.k, v: &x.v, g: &x.g, beta: &x.beta, mask: &x.mask, init: &x.init, sizes };
    let ((y64, s64), (y32, s32)) = (exact.run(), plain.run());
    let [q, k, v] = [&x.q, &x.k, &x.v].map(|x| lift::<Shaken>(x));
    let [g, beta, init] = [&x.g, &x.beta, &x.init].map(|x| lift::<Shaken>(x));
    let shaken = Gdn { q: &q, k: &k, v: &v, g: &g, beta: &beta, mask: &x.mask, init: &init, sizes };
    let (y, s): (Vec<_>, Vec<_>) = Shaken::draws(Dtype::F32, y64.len(), || shaken.run()).into_iter().unzip();
    [Expected::drawn(io, y64, &y32, &y), Expected::drawn(Dtype::F32, s64, &s32, &s)]
}
