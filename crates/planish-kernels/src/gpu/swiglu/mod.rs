//! `swiglu`: y = gate(a) b, elementwise, the gate being silu or the tanh form of gelu; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::expect::outputs;
use crate::gpu::text::{GATE, IO, KernelLaunch, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;
use reference::Gate;

/// Arguments: a `[n]`, b `[n]`, y `[n]`, all of the shape's type.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "swiglu",
        about: "y = gate(a) b; bound by memory",
        check,
        space,
        cost: |s| {
            let n = s.size("n") as u64;
            Cost { flops: 5 * n, int8_ops: 0, read_bytes: 2 * n * io(s).bytes(), write_bytes: n * io(s).bytes() }
        },
        cases: |s| vec![s.clone().with("n", 4097), s.clone().with("n", 1)],
        problem,
        steps,
        rotated: &[0, 1, 2],
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

const TEXT: Text = Text(&[IO, GATE, ("swiglu.k", include_str!("swiglu.k"))]);

/// Also the check of the backward pass, which has the same fields.
pub(super) fn check(s: &Shape) -> Result<(), String> {
    s.check(&["n"], &["gate", "type"])?;
    Gate::of(s.name("gate")).ok_or_else(|| format!("{s}: gate is silu or gelu"))?;
    check_io(s)
}

pub(super) fn gate(shape: &Shape) -> Gate {
    Gate::of(shape.name("gate")).expect("shape was checked")
}

/// The parameters of both passes.
pub(super) fn space(_: &Shape, machine: &Machine<'_>) -> Space {
    Space {
        params: vec![
            ints("THREADS", "occupancy against the cost of a group", &[32, 64, 128, 256, 512]),
            ints("ELEMS", "fewer groups against fewer threads in flight", &[1, 2, 4, 8]),
        ],
        constraints: Vec::new(),
        default: Config::new().with("THREADS", Tier::on(machine).pick([128, 256, 512, 512])).with("ELEMS", 4),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    launch(&OP.text, call, config, machine)
}

/// The launch of either pass, whose entry point has the op's name.
pub(super) fn launch(
    text: &Text,
    call: &OpCall,
    config: &Config,
    machine: &Machine<'_>,
) -> Result<Vec<Launch>, Rejection> {
    let n = call.shape.size("n");
    let (threads, elems) = (knob(config, "THREADS")?, knob(config, "ELEMS")?);
    let launch = KernelLaunch {
        text,
        entry: call.op.name,
        constants: vec![
            ("THREADS", threads as i64),
            ("ELEMS", elems as i64),
            ("GATE", gate(&call.shape) as i64),
            ("IO", io_code(io(&call.shape))),
        ],
        params: vec![n as u32],
        groups: n.div_ceil(threads * elems),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (n, io) = (shape.size("n"), io(shape));
    let mut rng = Rng::new(seed);
    let (mut a, mut b) = (arguments(&mut rng, n, fill), data::floats(&mut rng, n, Fill::Random));
    let (bytes_a, bytes_b) = (data::rounded(&mut a, io), data::rounded(&mut b, io));
    let mut args = vec![Arg::In(bytes_a), Arg::In(bytes_b)];
    args.extend(outputs(fill, [(io, n)], || {
        let gate = gate(shape);
        ([reference::swiglu::<f64>(&lift(&a), &lift(&b), gate)], [reference::swiglu::<f32>(&a, &b, gate)])
    }));
    Problem { shape: shape.clone(), attrs: Attrs::new(), args, label: format!("{fill:?} seed={seed}") }
}

/// Arguments of a gate; extreme ones begin with zeros of both signs and go up to 1e4 either way.
pub(super) fn arguments(rng: &mut Rng, n: usize, fill: Fill) -> Vec<f32> {
    let mut a = data::floats(rng, n, fill);
    if fill == Fill::Extreme {
        a.iter_mut().zip([0.0, -0.0, 1e4, -1e4]).for_each(|(a, v)| *a = v);
    }
    a
}
