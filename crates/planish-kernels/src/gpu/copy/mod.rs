//! `copy`: y = x, word by word; bound by memory, the ceiling of ops that read as much as they write.

mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{KernelLaunch, Text, ints, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};

/// Arguments: x `[words]`, y `[words]`, both of 32-bit words that begin at 16 bytes.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "copy",
        about: "y = x; bound by memory",
        check: |s| match s.check(&["words"], &[]) {
            Ok(()) if !(1..=u32::MAX as usize / 2).contains(&s.size("words")) => Err(format!("{s}: 1 to 2^31 words")),
            checked => checked,
        },
        space: |_, machine| Space {
            params: vec![
                ints("THREADS", "occupancy against the cost of a group", &[32, 64, 128, 256, 512, 1024]),
                ints("ELEMS", "loads in flight against threads in flight", &[1, 2, 4, 8]),
            ],
            constraints: Vec::new(),
            default: Config::new().with("THREADS", Tier::on(machine).pick([128, 256, 512, 512])).with("ELEMS", 4),
        },
        cost: |s| {
            let bytes = 4 * s.size("words") as u64;
            Cost { flops: 0, int8_ops: 0, read_bytes: bytes, write_bytes: bytes }
        },
        cases: |s| vec![s.clone().with("words", 4099), s.clone().with("words", 1)],
        problem,
        steps,
        rotated: &[0, 1],
        reduces: &[],
    },
    text: Text(&[("copy.k", include_str!("copy.k"))]),
    shapes: &["words=1", "words=4", "words=1031", "words=32768"],
};

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let words = call.shape.size("words");
    let (threads, elems) = (knob(config, "THREADS")?, knob(config, "ELEMS")?);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "copy_words",
        constants: vec![("THREADS", threads as i64), ("ELEMS", elems as i64)],
        params: vec![words as u32],
        groups: (words / 4).div_ceil(threads * elems).max(1),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let mut rng = Rng::new(seed);
    let x: Vec<u32> = (0..shape.size("words")).map(|_| rng.bits() as u32).collect();
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new(),
        args: vec![Arg::In(data::bytes_u32(&x)), Arg::Out(Expected::exact(Dtype::U32, reference::copy(&x)))],
        label: format!("{fill:?} seed={seed}"),
    }
}
