//! `rms_norm`: y = x / sqrt(mean x^2 + eps) * w by rows, in the forms that the next op reads; bound by latency at one row.
//! `rms_norm_add`: x += the same of y, for architectures with a norm behind the block.

use planish_device::{Call, Launch, Plain, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::cpu::act;
use crate::cpu::isa::Isa;
use crate::cpu::norm::{RmsNorm, rms_norm};
use crate::cpu::simd::Shared;
use crate::data;
use crate::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::ops::{NativeLaunch, forms};
use crate::reference;
use crate::step::{self, Step};
use crate::weight::Activation;

/// y = x / sqrt(mean x^2 + eps) * w; arguments: x f32 `[batch][cols]`, w f32, step, then the forms of y.
///
/// With the attribute `last` only the last token of the step is normed, into row 0.
pub static RMS_NORM: Op = Op {
    name: "rms_norm",
    about: "y = x / sqrt(mean x^2 + eps) * w; bound by latency at one row, by memory at many",
    check: |s| s.check(&["cols", "batch"], &["forms"]).and_then(|()| forms::check(s)),
    space: |_, _| Space::fixed(Config::new()),
    cost,
    cases: |s| vec![s.clone().with("batch", 3), s.clone().with("batch", 1)],
    problem,
    steps,
    rotated: &[],
    reduces: &[],
};

/// x += y / sqrt(mean y^2 + eps) * w; arguments: y f32 `[batch][cols]`, w f32, step, x f32.
pub static RMS_NORM_ADD: Op = Op {
    name: "rms_norm_add",
    about: "x += y / sqrt(mean y^2 + eps) * w; bound by latency at one row, by memory at many",
    check: |s| s.check(&["cols", "batch"], &[]),
    space: |_, _| Space::fixed(Config::new()),
    cost,
    cases: |s| vec![s.clone().with("batch", 3), s.clone().with("cols", 131).with("batch", 2)],
    problem: problem_add,
    steps: steps_add,
    rotated: &[],
    reduces: &[],
};

/// What a norm needs beside its input and output.
pub struct Norm<'a> {
    /// Weights, one a column.
    pub weight: &'a Slice,
    /// Added to the mean square.
    pub eps: f32,
    /// Most tokens of a step.
    pub batch: usize,
    /// Only the last token of the step.
    pub last: bool,
}

/// `out = norm(x)`.
pub fn call(norm: &Norm<'_>, x: &Slice, out: &Activation, step: &Slice) -> OpCall {
    let batch = if norm.last { 1 } else { norm.batch };
    let mut args = vec![x.clone(), norm.weight.clone(), step.clone()];
    args.extend(out.slices());
    OpCall {
        op: &RMS_NORM,
        shape: Shape::new().with("cols", out.cols as i64).with("batch", batch as i64).with("forms", out.forms()),
        attrs: Attrs::new().with("eps", f64::from(norm.eps)).with("last", f64::from(u8::from(norm.last))),
        args,
    }
}

/// `x += norm(y)`.
pub fn add_call(weight: &Slice, eps: f32, batch: usize, [y, x]: [&Slice; 2], step: &Slice) -> OpCall {
    let cols = weight.len / 4;
    OpCall {
        op: &RMS_NORM_ADD,
        shape: Shape::new().with("cols", cols as i64).with("batch", batch as i64),
        attrs: Attrs::new().with("eps", f64::from(eps)),
        args: vec![y.clone(), weight.clone(), step.clone(), x.clone()],
    }
}

fn cost(shape: &Shape) -> Cost {
    let n = (shape.size("batch") * shape.size("cols")) as u64;
    Cost { flops: 4 * n, int8_ops: 0, read_bytes: 4 * n, write_bytes: 4 * n }
}

#[derive(Clone, Copy)]
struct P {
    isa: Isa,
    cols: usize,
    eps: f32,
    last: bool,
    forms: forms::Forms,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

fn steps(call: &OpCall, _: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (tasks, cols) = (call.shape.size("batch"), call.shape.size("cols"));
    let params = P {
        isa: machine.isa,
        cols,
        eps: call.attrs.get("eps") as f32,
        last: call.attrs.is("last"),
        forms: forms::of(&call.shape),
    };
    let launch = NativeLaunch { name: "rms_norm", run, params, tasks, threads: u32::MAX, scratch_bytes: 4 * cols };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `RMS_NORM`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; tasks are output rows, and scratch belongs to this thread.
    unsafe {
        let step = Step::of(call, 2);
        let rows = if p.last { 1 } else { step.n };
        for row in call.tasks.start as usize..(call.tasks.end as usize).min(rows) {
            let from = if p.last { step.n - 1 } else { row };
            let x = call.args[0].write::<f32>(from * p.cols, p.cols);
            let out = forms::target(call, 3, p.forms, row, p.cols);
            norm_row(p, x, call.args[1].read(), out);
            forms::finish(call, 3, p.forms, p.isa, row, p.cols);
        }
    }
}

/// # Safety
/// Nobody writes `x`, nobody else touches `out`.
unsafe fn norm_row(p: &P, x: &mut [f32], weight: &[f32], out: &mut [f32]) {
    let cols = p.cols;
    let (x, out) = (Shared::new(x), Shared::new(out));
    let norm = RmsNorm { x, residual: None, weight, out, heads: 1, x_stride: cols, out_stride: cols, eps: p.eps };
    // SAFETY: forwarded; one row of its own.
    unsafe { rms_norm(p.isa)(&norm, 0..1) }
}

fn steps_add(call: &OpCall, _: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (tasks, cols) = (call.shape.size("batch"), call.shape.size("cols"));
    let forms = forms::Forms { f32: true, int8: false };
    let params = P { isa: machine.isa, cols, eps: call.attrs.get("eps") as f32, last: false, forms };
    let scratch_bytes = 4 * cols;
    let launch = NativeLaunch { name: "rms_norm_add", run: run_add, params, tasks, threads: u32::MAX, scratch_bytes };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `RMS_NORM_ADD`.
unsafe fn run_add(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; tasks are rows, and scratch belongs to this thread.
    unsafe {
        let step = Step::of(call, 2);
        for row in call.tasks.start as usize..(call.tasks.end as usize).min(step.n) {
            let y = call.args[0].write::<f32>(row * p.cols, p.cols);
            let normed = call.scratch.write::<f32>(0, p.cols);
            norm_row(p, y, call.args[1].read(), normed);
            let x = Shared::new(call.args[3].write::<f32>(row * p.cols, p.cols));
            act::add_assign(p.isa)(&x, normed, 0..p.cols);
        }
    }
}

const EPS: f32 = 1e-5;

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (cols, batch) = (shape.size("cols"), shape.size("batch"));
    let mut rng = data::Rng::new(seed);
    let (x, w) = (data::floats(&mut rng, batch * cols, fill), data::floats(&mut rng, cols, Fill::Random));
    let (mut y64, mut y32) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(cols) {
        y64.extend(reference::norm::rms_norm(
            &reference::lift::<f64>(row),
            &reference::lift::<f64>(&w),
            f64::from(EPS),
        ));
        y32.extend(reference::norm::rms_norm(row, &w, f64::from(EPS)));
    }
    let mut args = vec![Arg::In(data::bytes(&x)), Arg::In(data::bytes(&w)), Arg::In(step::encode(&vec![0; batch], 0))];
    args.extend(forms::expected(forms::of(shape), &y64, (&y32, &[])));
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("eps", f64::from(EPS)),
        args,
        label: format!("{fill:?} seed={seed}"),
    }
}

fn problem_add(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (cols, batch) = (shape.size("cols"), shape.size("batch"));
    let mut rng = data::Rng::new(seed);
    let (y, w) = (data::floats(&mut rng, batch * cols, fill), data::floats(&mut rng, cols, Fill::Random));
    let x = data::floats(&mut rng, batch * cols, Fill::Random);
    let (mut want, mut plain) = (Vec::new(), Vec::new());
    for (y, x) in y.chunks_exact(cols).zip(x.chunks_exact(cols)) {
        let n64 = reference::norm::rms_norm(&reference::lift::<f64>(y), &reference::lift::<f64>(&w), f64::from(EPS));
        let n32 = reference::norm::rms_norm(y, &w, f64::from(EPS));
        want.extend(n64.iter().zip(x).map(|(n, x)| f64::from(*x) + n));
        plain.extend(n32.iter().zip(x).map(|(n, x)| x + n));
    }
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("eps", f64::from(EPS)),
        args: vec![
            Arg::In(data::bytes(&y)),
            Arg::In(data::bytes(&w)),
            Arg::In(step::encode(&vec![0; batch], 0)),
            Arg::InOut(data::bytes(&x), Expected::f32(want, &plain)),
        ],
        label: format!("{fill:?} seed={seed}"),
    }
}
