//! `barrier`: rounds of a grid barrier, each with a message between groups; bound by the barrier's latency.

mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::gpu::GpuOp;
use crate::gpu::text::{KernelLaunch, Text, ints, knob};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};

/// Arguments: the barrier's counter, one word; scratch of `2 groups` words; y `[groups]`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "barrier",
        about: "rounds of a barrier over a grid; bound by the barrier's latency",
        check: |s| {
            s.check(&["groups", "rounds"], &[])?;
            let whole = s.size("groups") > 0 && s.size("rounds") > 0;
            whole.then_some(()).ok_or_else(|| format!("{s}: at least one group and one round"))
        },
        space: |_, _| Space {
            params: vec![ints("THREADS", "threads that wait against groups that fit", &[32, 64, 128, 256, 512, 1024])],
            constraints: Vec::new(),
            default: Config::new().with("THREADS", 256),
        },
        cost: |s| {
            let words = (s.size("groups") * s.size("rounds")) as u64;
            Cost { flops: 0, int8_ops: 0, read_bytes: 4 * words, write_bytes: 4 * words }
        },
        cases: |s| vec![s.clone()],
        problem,
        steps,
        rotated: &[],
        reduces: &[],
    },
    text: Text(&[("barrier.k", include_str!("barrier.k"))]),
    shapes: &["groups=1,rounds=1", "groups=2,rounds=9", "groups=7,rounds=32"],
};

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (threads, rounds) = (knob(config, "THREADS")?, call.shape.size("rounds"));
    let launch = |entry, groups, threads| KernelLaunch {
        text: &OP.text,
        entry,
        constants: Vec::new(),
        params: vec![rounds as u32],
        groups,
        threads,
        shared_bytes: 0,
    };
    let reset = launch("barrier_reset", 1, 32).on(machine, vec![call.args[0].clone()])?;
    let grid = launch("barrier_rounds", call.shape.size("groups"), threads);
    Ok(vec![reset, grid.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (groups, rounds) = (shape.size("groups"), shape.size("rounds"));
    let values = reference::values(groups, rounds);
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new(),
        args: vec![Arg::Scratch(4), Arg::Scratch(8 * groups), Arg::Out(Expected::exact(Dtype::U32, values))],
        label: format!("{fill:?} seed={seed}"),
    }
}
