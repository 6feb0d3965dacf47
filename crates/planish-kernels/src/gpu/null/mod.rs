//! `null`: a launch that does nothing; bound by the cost of a launch, the floor of every op's time.

mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::gpu::GpuOp;
use crate::gpu::text::{KernelLaunch, Text, ints, knob};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};

/// Argument: y, one word; the grid has the shape's `groups`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "null",
        about: "one word written by one of `groups` groups; bound by the cost of a launch",
        check: |s| match s.check(&["groups"], &[]) {
            Ok(()) if s.size("groups") == 0 => Err(format!("{s}: a grid has at least one group")),
            checked => checked,
        },
        space: |_, _| Space {
            params: vec![ints("THREADS", "the cost of a launch against its width", &[32, 64, 128, 256, 512, 1024])],
            constraints: Vec::new(),
            default: Config::new().with("THREADS", 32),
        },
        cost: |_| Cost { flops: 0, int8_ops: 0, read_bytes: 0, write_bytes: 4 },
        cases: |s| vec![s.clone()],
        problem,
        steps,
        rotated: &[],
        reduces: &[],
    },
    text: Text(&[("null.k", include_str!("null.k"))]),
    shapes: &["groups=1", "groups=133"],
};

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "null_launch",
        constants: Vec::new(),
        params: vec![reference::WORD],
        groups: call.shape.size("groups"),
        threads: knob(config, "THREADS")?,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new(),
        args: vec![Arg::Out(Expected::exact(Dtype::U32, vec![f64::from(reference::WORD)]))],
        label: format!("{fill:?} seed={seed}"),
    }
}
