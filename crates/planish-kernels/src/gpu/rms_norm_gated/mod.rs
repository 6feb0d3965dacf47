//! `rms_norm_gated`: y = x rsqrt(mean(x^2) + eps) w silu(z), one row a group; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::expect::outputs;
use crate::gpu::text::{GATE, IO, REDUCE, Text, io};
use crate::gpu::{GpuOp, rms_norm};
use crate::op::{Arg, Attrs, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: x and z `[rows][cols]`, w f32 `[cols]`, y `[rows][cols]`; attribute `eps`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "rms_norm_gated",
        about: "y = x rsqrt(mean(x^2) + eps) w silu(z); bound by memory",
        check: rms_norm::check,
        space: rms_norm::space,
        cost: |s| {
            let n = (s.size("rows") * s.size("cols")) as u64;
            let bytes = n * io(s).bytes();
            Cost { flops: 9 * n, read_bytes: 2 * bytes, write_bytes: bytes, ..Cost::default() }
        },
        cases: |s| vec![s.clone().with("rows", 3), s.clone().with("rows", 1)],
        problem,
        steps,
        rotated: &[0, 1, 3],
        reduces: &["THREADS"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,type=f32",
        "rows=3,cols=577,type=f32",
        "rows=2,cols=128,type=f16",
        "rows=5,cols=97,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, REDUCE, GATE, ("rms_norm_gated.k", include_str!("rms_norm_gated.k"))]);

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    rms_norm::launch(&OP.text, call, config, machine)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (rows, cols, io) = (shape.size("rows"), shape.size("cols"), io(shape));
    let mut rng = Rng::new(seed);
    let mut x = data::floats(&mut rng, rows * cols, fill);
    let mut z = data::floats(&mut rng, rows * cols, Fill::Random);
    if fill == Fill::Extreme {
        z.iter_mut().zip([0.0, -0.0, 90.0, -90.0]).for_each(|(z, v)| *z = v);
    }
    let w = data::floats(&mut rng, cols, Fill::Random);
    let (bytes_x, bytes_z) = (data::rounded(&mut x, io), data::rounded(&mut z, io));
    let eps = f64::from(1e-5f32);
    let mut args = vec![Arg::In(bytes_x), Arg::In(bytes_z), Arg::In(data::bytes(&w))];
    args.extend(outputs(fill, [(io, rows * cols)], || {
        (
            [reference::rms_norm_gated::<f64>(&lift(&x), &lift(&z), &lift(&w), eps)],
            [reference::rms_norm_gated::<f32>(&x, &z, &w, eps)],
        )
    }));
    let label = format!("{fill:?} seed={seed}");
    Problem { shape: shape.clone(), attrs: Attrs::new().with("eps", eps), args, label }
}
