//! `rms_norm_backward`: gradients of x and w of `rms_norm`; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::expect::outputs_of_sums;
use crate::gpu::text::{IO, KernelLaunch, REDUCE, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: x `[rows][cols]`, w f32 `[cols]`, dy and dx `[rows][cols]`, dw f32 `[cols]`, scratch f32 `[rows][cols]`
/// or as much of it as the rows a group leave parts; attribute `eps`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "rms_norm_backward",
        about: "dx = r (dy w - n mean(dy w n)), dw = sum of dy n; bound by memory",
        check: |s| {
            s.check(&["rows", "cols"], &["type"])?;
            check_io(s)
        },
        space: |s, machine| Space {
            params: vec![
                ints("THREADS", "loads in flight against a longer reduction", &[32, 64, 128, 256, 512, 1024]),
                ints("ROWS", "fewer parts of dw against fewer groups", &[1, 2, 4, 8, 16, 32, 64]),
            ],
            constraints: Vec::new(),
            default: Config::new()
                .with("THREADS", Tier::on(machine).pick([128, 256, 512, 512]))
                .with("ROWS", if s.size("rows") < 1024 { 4 } else { 16 }),
        },
        cost: |s| {
            let n = (s.size("rows") * s.size("cols")) as u64;
            Cost { flops: 12 * n, read_bytes: 2 * n * io(s).bytes(), write_bytes: n * io(s).bytes(), ..Cost::default() }
        },
        cases: |s| vec![s.clone().with("rows", 19), s.clone().with("rows", 1)],
        problem,
        steps,
        rotated: &[0, 2, 3],
        reduces: &["THREADS", "ROWS"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,type=f32",
        "rows=1,cols=577,type=f16",
        "rows=67,cols=31,type=f32",
        "rows=5,cols=1031,type=f32",
        "rows=17,cols=97,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, REDUCE, ("rms_norm_backward.k", include_str!("rms_norm_backward.k"))]);

/// Threads that add the parts of dw: SIMD groups enough to keep loads in flight for 32 columns.
const SUM_THREADS: usize = 256;

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (rows, cols) = (call.shape.size("rows"), call.shape.size("cols"));
    let (threads, per_group) = (knob(config, "THREADS")?, knob(config, "ROWS")?);
    let parts = rows.div_ceil(per_group);
    if call.args[5].len < 4 * parts * cols {
        return Err(Rejection::Constraint(format!("scratch holds {parts} parts of dw")));
    }
    let launch = |entry, params, groups, threads: usize| KernelLaunch {
        text: &OP.text,
        entry,
        constants: vec![("THREADS", threads as i64), ("ROWS", per_group as i64), ("IO", io_code(io(&call.shape)))],
        params,
        groups,
        threads,
        shared_bytes: 0,
    };
    let eps = (call.attrs.get("eps") as f32).to_bits();
    let [x, w, dy, dx, dw, scratch] = &call.args[..] else { unreachable!("the op has six arguments") };
    let args = [x, w, dy, dx, scratch].map(Clone::clone).to_vec();
    let sum = launch("sum_parts", vec![parts as u32, cols as u32], cols.div_ceil(32), SUM_THREADS);
    Ok(vec![
        launch("rms_norm_backward", vec![rows as u32, cols as u32, eps], parts, threads).on(machine, args)?,
        sum.on(machine, vec![scratch.clone(), dw.clone()])?,
    ])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (rows, cols, io) = (shape.size("rows"), shape.size("cols"), io(shape));
    let mut rng = Rng::new(seed);
    let mut x = data::floats(&mut rng, rows * cols, fill);
    let mut dy = data::floats(&mut rng, rows * cols, Fill::Random);
    let w = data::floats(&mut rng, cols, Fill::Random);
    if fill == Fill::Extreme && rows > 1 {
        x[..cols].fill(0.0);
    }
    let (bytes_x, bytes_dy) = (data::rounded(&mut x, io), data::rounded(&mut dy, io));
    let eps = f64::from(1e-5f32);
    let mut args = vec![Arg::In(bytes_x), Arg::In(data::bytes(&w)), Arg::In(bytes_dy)];
    args.extend(outputs_of_sums(fill, [(io, rows * cols), (Dtype::F32, cols)], || {
        let [x64, w64, dy64] = [&x, &w, &dy].map(|v| lift::<f64>(v));
        (
            reference::rms_norm_backward::<f64>(&x64, &w64, &dy64, eps),
            reference::rms_norm_backward::<f32>(&x, &w, &dy, eps),
            reference::magnitudes(&x64, &w64, &dy64, eps),
        )
    }));
    args.push(Arg::Scratch(4 * rows * cols));
    Problem { shape: shape.clone(), attrs: Attrs::new().with("eps", eps), args, label: format!("{fill:?} seed={seed}") }
}
