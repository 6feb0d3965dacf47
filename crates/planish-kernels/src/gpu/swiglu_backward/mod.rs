//! `swiglu_backward`: da = dy b gate'(a), db = dy gate(a), elementwise; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::expect::outputs;
use crate::gpu::swiglu::{arguments, check, gate, launch, space};
use crate::gpu::text::{GATE, IO, Text, io};
use crate::op::{Arg, Attrs, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: a, b, dy, da, db, each `[n]` of the shape's type.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "swiglu_backward",
        about: "da = dy b gate'(a), db = dy gate(a); bound by memory",
        check,
        space,
        cost: |s| {
            let n = s.size("n") as u64;
            Cost {
                flops: 10 * n,
                read_bytes: 3 * n * io(s).bytes(),
                write_bytes: 2 * n * io(s).bytes(),
                ..Cost::default()
            }
        },
        cases: |s| vec![s.clone().with("n", 4097), s.clone().with("n", 1)],
        problem,
        steps,
        rotated: &[0, 1, 2, 3, 4],
        reduces: &[],
    },
    text: TEXT,
    shapes: &[
        "n=1,gate=silu,type=f32",
        "n=1031,gate=silu,type=f32",
        "n=1031,gate=gelu,type=f32",
        "n=8192,gate=silu,type=f16",
        "n=997,gate=gelu,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, GATE, ("swiglu_backward.k", include_str!("swiglu_backward.k"))]);

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    launch(&OP.text, call, config, machine)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (n, io) = (shape.size("n"), io(shape));
    let mut rng = Rng::new(seed);
    let (mut a, mut b) = (arguments(&mut rng, n, fill), data::floats(&mut rng, n, Fill::Random));
    let mut dy = data::floats(&mut rng, n, Fill::Random);
    let inputs = [&mut a, &mut b, &mut dy].map(|v| Arg::In(data::rounded(v, io)));
    let outputs = outputs(fill, [(io, n); 2], || {
        (
            reference::swiglu_backward::<f64>(&lift(&a), &lift(&b), &lift(&dy), gate(shape)),
            reference::swiglu_backward::<f32>(&a, &b, &dy, gate(shape)),
        )
    });
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new(),
        args: inputs.into_iter().chain(outputs).collect(),
        label: format!("{fill:?} seed={seed}"),
    }
}
