//! `rms_norm`: y = x rsqrt(mean(x^2) + eps) w, one row a group; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, REDUCE, Text, ints, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: x `[rows][cols]`, w f32 `[cols]`, y `[rows][cols]`; attribute `eps`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "rms_norm",
        about: "y = x rsqrt(mean(x^2) + eps) w; bound by memory",
        check: |s| {
            s.check(&["rows", "cols"], &["type"])?;
            Dtype::float(s.name("type")).map(drop).ok_or_else(|| format!("{s}: type is f32, f16 or bf16"))
        },
        space: |_, machine| Space {
            params: vec![ints("THREADS", "loads in flight against a longer reduction", &[32, 64, 128, 256, 512, 1024])],
            constraints: Vec::new(),
            default: Config::new().with("THREADS", Tier::on(machine).pick([128, 256, 512, 512])),
        },
        cost: |s| {
            let n = (s.size("rows") * s.size("cols")) as u64;
            Cost { flops: 4 * n, int8_ops: 0, read_bytes: n * io(s).bytes(), write_bytes: n * io(s).bytes() }
        },
        cases: |s| vec![s.clone().with("rows", 3), s.clone().with("rows", 1)],
        problem,
        steps,
        rotated: &[0, 2],
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

fn io(shape: &Shape) -> Dtype {
    Dtype::float(shape.name("type")).expect("shape was checked")
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let threads = knob(config, "THREADS")?;
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "rms_norm",
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
    let y64 = reference::rms_norm::<f64>(&lift(&x), &lift(&w), eps);
    let y32 = reference::rms_norm::<f32>(&x, &w, eps);
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("eps", eps),
        args: vec![Arg::In(bytes), Arg::In(data::bytes(&w)), Arg::Out(Expected::float(io, y64, &y32))],
        label: format!("{fill:?} seed={seed}"),
    }
}
