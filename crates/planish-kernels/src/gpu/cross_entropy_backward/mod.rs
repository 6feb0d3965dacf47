//! `cross_entropy_backward`: gradient of a cross entropy by its logits; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::cross_entropy::reference::{Loss, Reduction, cross_entropy};
use crate::gpu::cross_entropy::shared::{self, Targets, loss_of, words};
use crate::gpu::expect::outputs;
use crate::gpu::text::{IO, KernelLaunch, LOSS, REDUCE, TANH, Text, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: x `[tokens][vocab]`, targets u32 `[tokens]`, lse f32 `[tokens]`, up f32 `[tokens]` for reduction none and
/// `[1]` else, total f32 `[2]` of the forward pass, dx `[tokens][vocab]`. Attributes in `cross_entropy::shared`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "cross_entropy_backward",
        about: "dx = u (softmax(c) - target) of given logits; bound by memory",
        check: |s| shared::check(s, &["tokens", "vocab"]),
        space,
        cost: |s| {
            let n = (s.size("tokens") * s.size("vocab")) as u64;
            Cost { flops: 5 * n, read_bytes: n * io(s).bytes(), write_bytes: n * io(s).bytes(), ..Cost::default() }
        },
        cases: |s| vec![s.clone().with("tokens", 3), s.clone().with("tokens", 1)],
        problem,
        steps,
        rotated: &[0, 5],
        reduces: &["THREADS", "ELEMS"],
    },
    text: TEXT,
    shapes: &[
        "tokens=1,vocab=1,softcap=0,smooth=0,reduction=none,type=f32",
        "tokens=7,vocab=1031,softcap=0,smooth=0,reduction=mean,type=f32",
        "tokens=5,vocab=257,softcap=1,smooth=1,reduction=sum,type=f32",
        "tokens=2,vocab=33,softcap=0,smooth=1,reduction=mean,type=f16",
        "tokens=9,vocab=513,softcap=1,smooth=0,reduction=none,type=bf16",
        "tokens=3,vocab=1025,softcap=0,smooth=0,reduction=none,type=f16",
    ],
};

const TEXT: Text =
    Text(&[IO, REDUCE, TANH, LOSS, ("cross_entropy_backward.k", include_str!("cross_entropy_backward.k"))]);

fn space(s: &Shape, machine: &Machine<'_>) -> Space {
    let limit = machine.backend.limits().max_threads as i64;
    Space {
        params: vec![
            ints("THREADS", "occupancy against the cost of a group", &[32, 64, 128, 256, 512, 1024]),
            ints("ELEMS", "fewer groups against fewer threads in flight", &[1, 2, 4, 8]),
        ],
        constraints: vec![shared::threads_within(limit)],
        default: Config::new().with("THREADS", shared::seed_threads(s, Tier::on(machine)).min(limit)).with("ELEMS", 4),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (s, o) = (&call.shape, loss_of(&call.shape, &call.attrs));
    let (threads, elems) = (knob(config, "THREADS")?, knob(config, "ELEMS")?);
    let mut params = vec![o.vocab as u32, o.ignore, o.reduction as u32];
    params.extend(words(&o));
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "cross_entropy_backward",
        constants: vec![("THREADS", threads as i64), ("ELEMS", elems as i64), ("IO", io_code(io(s)))],
        params,
        groups: s.size("tokens") * o.vocab.div_ceil(threads * elems),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

/// What a backward pass gets from the forward pass of logits `x` and from behind: lse, up and total.
pub(super) fn saved(
    rng: &mut Rng,
    x: impl FnOnce() -> Vec<f64>,
    targets: &[u32],
    (o, fill): (&Loss, Fill),
) -> [Vec<f32>; 3] {
    let [_, lse, total] = match fill {
        // About what random logits give, for a pass that nobody checks.
        Fill::Unjudged => [vec![], vec![(o.vocab as f64).ln(); targets.len()], vec![1.0; 2]],
        _ => cross_entropy::<f64>(&x(), targets, o),
    };
    let n = if o.reduction == Reduction::None { targets.len() } else { 1 };
    let up = (0..n).map(|_| 1.0 + 0.5 * rng.unit()).collect();
    let narrow = |v: Vec<f64>| v.into_iter().map(|v| v as f32).collect();
    [narrow(lse), up, narrow(total)]
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (tokens, io) = (shape.size("tokens"), io(shape));
    let attrs = shared::attrs(shape, fill);
    let o = loss_of(shape, &attrs);
    let mut rng = Rng::new(seed);
    let Targets { values, bytes } = shared::targets(&mut rng, tokens, &o, fill);
    let (x, bytes_x) = shared::logits(&mut rng, &values, &o, (io, fill));
    let [lse, up, total] = saved(&mut rng, || lift(&x), &values, (&o, fill));
    let mut args = vec![Arg::In(bytes_x), Arg::In(bytes)];
    args.extend([&lse, &up, &total].map(|v| Arg::In(data::bytes(v))));
    args.extend(outputs(fill, [(io, tokens * o.vocab)], || {
        (
            reference::cross_entropy_backward::<f64>(&lift(&x), &values, &lift(&lse), &lift(&up), &o),
            reference::cross_entropy_backward::<f32>(&x, &values, &lse, &up, &o),
        )
    }));
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
