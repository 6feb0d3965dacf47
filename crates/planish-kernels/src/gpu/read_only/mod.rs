//! `read_only`: sums of chunks of 4096 words; bound by read bandwidth, the ceiling of ops that read.

mod reference;

pub use reference::CHUNK;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{KernelLaunch, REDUCE, Text, ints, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};

/// Arguments: x `[words]`, 32-bit words that begin at 16 bytes, and y, the sum of each chunk of 4096.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "read_only",
        about: "sums of chunks of 4096 words; bound by read bandwidth",
        check: |s| match s.check(&["words"], &[]) {
            Ok(()) if !(1..=u32::MAX as usize / 2).contains(&s.size("words")) => Err(format!("{s}: 1 to 2^31 words")),
            checked => checked,
        },
        space: |_, machine| Space {
            params: vec![
                ints("THREADS", "occupancy against the cost of a group", &[32, 64, 128, 256, 512, 1024]),
                ints("ELEMS", "loads in flight against registers", &[1, 2, 4, 8]),
                ints("CHUNKS", "fewer groups to start against fewer to balance", &[1, 2, 4, 16]),
            ],
            constraints: Vec::new(),
            default: Config::new()
                .with("THREADS", Tier::on(machine).pick([128, 256, 256, 256]))
                .with("ELEMS", 4)
                .with("CHUNKS", 1),
        },
        cost: |s| {
            let bytes = 4 * s.size("words") as u64;
            Cost { flops: 0, int8_ops: 0, read_bytes: bytes, write_bytes: bytes.div_ceil(CHUNK as u64) }
        },
        cases: |s| vec![s.clone().with("words", 12_289), s.clone().with("words", 1)],
        problem,
        steps,
        rotated: &[0],
        reduces: &["THREADS", "ELEMS", "CHUNKS"],
    },
    text: Text(&[REDUCE, ("read_only.k", include_str!("read_only.k"))]),
    shapes: &["words=1", "words=4096", "words=4099", "words=20000"],
};

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let words = call.shape.size("words");
    let (threads, chunks) = (knob(config, "THREADS")?, knob(config, "CHUNKS")?);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "read_only",
        constants: vec![
            ("THREADS", threads as i64),
            ("ELEMS", knob(config, "ELEMS")? as i64),
            ("CHUNKS", chunks as i64),
        ],
        params: vec![words as u32],
        groups: words.div_ceil(CHUNK).div_ceil(chunks),
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
        args: vec![Arg::In(data::bytes_u32(&x)), Arg::Out(Expected::exact(Dtype::U32, reference::sums(&x)))],
        label: format!("{fill:?} seed={seed}"),
    }
}
