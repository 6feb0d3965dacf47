//! `cross_entropy`: loss and log-sum-exp of given logits, a token a group; bound by memory.

pub mod reference;
pub(super) mod shared;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::Rng;
use crate::gpu::text::{IO, KernelLaunch, LOSS, REDUCE, TANH, Text, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;
use shared::{Targets, loss_of, reduce, words};

/// Arguments: x `[tokens][vocab]`, targets u32 `[tokens]`, loss and lse f32 `[tokens]`, total f32 `[2]` (the reduced
/// loss, and how many tokens count). Attributes in `shared`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "cross_entropy",
        about: "loss = lse - c_t of given logits; bound by memory",
        check: |s| shared::check(s, &["tokens", "vocab"]),
        space,
        cost: |s| {
            let n = (s.size("tokens") * s.size("vocab")) as u64;
            Cost {
                flops: 5 * n,
                read_bytes: n * io(s).bytes(),
                write_bytes: 8 * s.size("tokens") as u64,
                ..Cost::default()
            }
        },
        cases: |s| vec![s.clone().with("tokens", 3), s.clone().with("tokens", 1)],
        problem,
        steps,
        rotated: &[0],
        reduces: &["THREADS", "ELEMS"],
    },
    text: TEXT,
    shapes: &[
        "tokens=1,vocab=1,softcap=0,smooth=0,reduction=none,type=f32",
        "tokens=7,vocab=1031,softcap=0,smooth=0,reduction=mean,type=f32",
        "tokens=5,vocab=257,softcap=1,smooth=1,reduction=sum,type=f32",
        "tokens=2,vocab=33,softcap=0,smooth=1,reduction=mean,type=f16",
        "tokens=9,vocab=513,softcap=1,smooth=0,reduction=mean,type=bf16",
        "tokens=3,vocab=2049,softcap=0,smooth=0,reduction=none,type=f16",
    ],
};

const TEXT: Text = Text(&[IO, REDUCE, TANH, LOSS, ("cross_entropy.k", include_str!("cross_entropy.k"))]);

fn space(s: &Shape, machine: &Machine<'_>) -> Space {
    let limit = machine.backend.limits().max_threads as i64;
    Space {
        params: vec![
            ints("THREADS", "loads in flight against a longer reduction", &[32, 64, 128, 256, 512, 1024]),
            ints("ELEMS", "fewer rescalings and more loads in flight against registers", &[1, 2, 4, 8]),
        ],
        constraints: vec![shared::threads_within(limit)],
        default: Config::new().with("THREADS", shared::seed_threads(s, Tier::on(machine)).min(limit)).with("ELEMS", 4),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (s, o) = (&call.shape, loss_of(&call.shape, &call.attrs));
    let (threads, elems) = (knob(config, "THREADS")?, knob(config, "ELEMS")?);
    let [x, targets, loss, lse, total] = &call.args[..] else { unreachable!("the op has five arguments") };
    let constants = vec![("THREADS", threads as i64), ("ELEMS", elems as i64), ("IO", io_code(io(s)))];
    let mut params = vec![o.vocab as u32, o.ignore];
    params.extend(words(&o));
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "cross_entropy",
        constants: constants.clone(),
        params,
        groups: s.size("tokens"),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![
        launch.on(machine, [x, targets, loss, lse].map(Clone::clone).to_vec())?,
        reduce(&OP.text, constants, s.size("tokens"), &o)
            .on(machine, [loss, targets, total].map(Clone::clone).to_vec())?,
    ])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let tokens = shape.size("tokens");
    let attrs = shared::attrs(shape, fill);
    let o = loss_of(shape, &attrs);
    let mut rng = Rng::new(seed);
    let Targets { values, bytes } = shared::targets(&mut rng, tokens, &o, fill);
    let (x, bytes_x) = shared::logits(&mut rng, &values, &o, (io(shape), fill));
    let mut args = vec![Arg::In(bytes_x), Arg::In(bytes)];
    args.extend(shared::outputs(fill, tokens, (1e-5, o.reduction), || {
        (reference::cross_entropy::<f64>(&lift(&x), &values, &o), reference::cross_entropy::<f32>(&x, &values, &o))
    }));
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
