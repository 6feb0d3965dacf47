//! `rms_norm`: y = x rsqrt(mean(x^2) + eps) w, one row a group; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::expect::outputs;
use crate::gpu::text::{IO, KernelLaunch, REDUCE, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: x `[rows][cols]`, w f32 `[cols]`, y `[rows][cols]`; attribute `eps`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "rms_norm",
        about: "y = x rsqrt(mean(x^2) + eps) w; bound by memory",
        check,
        space,
        cost: |s| {
            let n = (s.size("rows") * s.size("cols")) as u64;
            Cost { flops: 4 * n, int8_ops: 0, read_bytes: n * io(s).bytes(), write_bytes: n * io(s).bytes() }
        },
        cases: |s| vec![s.clone().with("rows", 3), s.clone().with("rows", 1)],
        problem,
        steps,
        rotated: &[0, 2],
        reduces: &["THREADS"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,type=f32",
        "rows=3,cols=577,type=f32",
        "rows=2,cols=2048,type=f16",
        "rows=5,cols=97,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, REDUCE, ("rms_norm.k", include_str!("rms_norm.k"))]);

/// The check of every norm of rows.
pub(super) fn check(s: &Shape) -> Result<(), String> {
    s.check(&["rows", "cols"], &["type"])?;
    check_io(s)
}

/// The parameters of every norm of rows.
pub(super) fn space(_: &Shape, machine: &Machine<'_>) -> Space {
    Space {
        params: vec![ints("THREADS", "loads in flight against a longer reduction", &[32, 64, 128, 256, 512, 1024])],
        constraints: Vec::new(),
        default: Config::new().with("THREADS", Tier::on(machine).pick([128, 256, 512, 512])),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    launch(&OP.text, call, config, machine)
}

/// The launch of a norm of rows, whose entry point has the op's name.
pub(super) fn launch(
    text: &Text,
    call: &OpCall,
    config: &Config,
    machine: &Machine<'_>,
) -> Result<Vec<Launch>, Rejection> {
    let threads = knob(config, "THREADS")?;
    let launch = KernelLaunch {
        text,
        entry: call.op.name,
        constants: vec![("THREADS", threads as i64), ("IO", io_code(io(&call.shape)))],
        params: vec![call.shape.size("cols") as u32, (call.attrs.get("eps") as f32).to_bits()],
        groups: call.shape.size("rows"),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (rows, cols, io) = (shape.size("rows"), shape.size("cols"), io(shape));
    let mut rng = Rng::new(seed);
    let mut x = data::floats(&mut rng, rows * cols, fill);
    let w = data::floats(&mut rng, cols, Fill::Random);
    let bytes = data::rounded(&mut x, io);
    let eps = f64::from(1e-5f32);
    let mut args = vec![Arg::In(bytes), Arg::In(data::bytes(&w))];
    args.extend(outputs(fill, [(io, rows * cols)], || {
        ([reference::rms_norm::<f64>(&lift(&x), &lift(&w), eps)], [reference::rms_norm::<f32>(&x, &w, eps)])
    }));
    let label = format!("{fill:?} seed={seed}");
    Problem { shape: shape.clone(), attrs: Attrs::new().with("eps", eps), args, label }
}
