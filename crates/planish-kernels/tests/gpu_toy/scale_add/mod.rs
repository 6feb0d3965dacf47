//! `scale_add`: y = a x + y.

mod reference;

use planish_device::Launch;
use planish_kernels::data::{self, Rng};
use planish_kernels::gpu::GpuOp;
use planish_kernels::gpu::text::{KernelLaunch, Text, ints, knob};
use planish_kernels::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use planish_kernels::reference::lift;
use planish_tune::{Config, Rejection, Space};

/// Arguments: x `[n]`, y `[n]`; attribute `a`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "scale_add",
        about: "y = a x + y; bound by memory",
        check: |s| s.check(&["n"], &[]),
        space: |_, _| Space {
            params: vec![ints("THREADS", "occupancy against the cost of a group", &[32, 128, 1024])],
            constraints: Vec::new(),
            default: Config::new().with("THREADS", 128),
        },
        cost: |s| Cost {
            flops: 2 * s.size("n") as u64,
            int8_ops: 0,
            read_bytes: 8 * s.size("n") as u64,
            write_bytes: 4,
        },
        cases: |s| vec![s.clone()],
        problem,
        steps,
        rotated: &[0, 1],
        reduces: &[],
    },
    text: Text(&[("scale_add.k", include_str!("scale_add.k"))]),
    shapes: &["n=1", "n=1031"],
};

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (n, threads) = (call.shape.size("n"), knob(config, "THREADS")?);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "scale_add",
        constants: vec![("THREADS", threads as i64)],
        params: vec![n as u32, (call.attrs.get("a") as f32).to_bits()],
        groups: n.div_ceil(threads),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let mut rng = Rng::new(seed);
    let n = shape.size("n");
    let (x, y) = (data::floats(&mut rng, n, fill), data::floats(&mut rng, n, Fill::Random));
    let a = f64::from(1.7f32);
    let y64 = reference::scale_add::<f64>(a, &lift(&x), &lift(&y));
    let y32 = reference::scale_add::<f32>(a as f32, &x, &y);
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("a", a),
        args: vec![Arg::In(data::bytes(&x)), Arg::InOut(data::bytes(&y), Expected::f32(y64, &y32))],
        label: format!("{fill:?} seed={seed}"),
    }
}
