//! `glu`: y = f(gate) * up with f = SiLU or tanh-GELU, in the forms that the next op reads; bound by memory.

use planish_device::{Call, Launch, Plain, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::cpu::act::{Binary, geglu, swiglu};
use crate::cpu::isa::Isa;
use crate::cpu::simd::Shared;
use crate::data;
use crate::op::{Arg, Attrs, Cost, Dtype, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::ops::{NativeLaunch, forms};
use crate::reference::{self, Real, Shaken, lift};
use crate::step::{self, Step};
use crate::weight::Activation;

/// Arguments: gate f32 `[batch][cols]`, up, step, then the forms of y.
pub static GLU: Op = Op {
    name: "glu",
    about: "y = f(gate) * up, f SiLU or tanh-GELU; bound by memory",
    check,
    space: |_, _| Space::fixed(Config::new()),
    cost: |s| {
        let n = (s.size("batch") * s.size("cols")) as u64;
        Cost { flops: 6 * n, int8_ops: 0, read_bytes: 8 * n, write_bytes: 4 * n }
    },
    cases: |s| vec![s.clone().with("batch", 3), s.clone().with("batch", 1)],
    problem,
    steps,
    rotated: &[],
    reduces: &[],
};

/// The function on the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// a / (1 + e^-a).
    Silu,
    /// The tanh form of GELU.
    Gelu,
}

impl Gate {
    fn name(self) -> &'static str {
        match self {
            Gate::Silu => "silu",
            Gate::Gelu => "gelu",
        }
    }
}

/// Columns of one task; a whole number of 8-bit blocks.
const CHUNK: usize = 512;

/// `out = f(gate) * up`.
pub fn call(f: Gate, batch: usize, [gate, up]: [&Slice; 2], out: &Activation, step: &Slice) -> OpCall {
    let mut args = vec![gate.clone(), up.clone(), step.clone()];
    args.extend(out.slices());
    OpCall {
        op: &GLU,
        shape: Shape::new()
            .with("gate", f.name())
            .with("cols", out.cols as i64)
            .with("batch", batch as i64)
            .with("forms", out.forms()),
        attrs: Attrs::new(),
        args,
    }
}

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["cols", "batch"], &["gate", "forms"])?;
    if !matches!(shape.name("gate"), "silu" | "gelu") {
        return Err(format!("{shape}: gate is neither silu nor gelu"));
    }
    forms::check(shape)
}

#[derive(Clone, Copy)]
struct P {
    isa: Isa,
    gelu: bool,
    cols: usize,
    forms: forms::Forms,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

fn steps(call: &OpCall, _: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (batch, cols) = (call.shape.size("batch"), call.shape.size("cols"));
    let params = P { isa: machine.isa, gelu: call.shape.name("gate") == "gelu", cols, forms: forms::of(&call.shape) };
    let tasks = batch * cols.div_ceil(CHUNK);
    let launch = NativeLaunch { name: "glu", run, params, tasks, threads: u32::MAX, scratch_bytes: 4 * CHUNK };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `GLU`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    let chunks = p.cols.div_ceil(CHUNK);
    // SAFETY: the contract of the op; tasks are runs of columns of a row, and scratch belongs to this thread.
    unsafe {
        let step = Step::of(call, 2);
        for task in call.tasks.start as usize..(call.tasks.end as usize).min(step.n * chunks) {
            let from = task % chunks * CHUNK;
            let n = CHUNK.min(p.cols - from);
            let at = task / chunks * p.cols + from;
            let out = if p.forms.f32 { call.args[3].write::<f32>(at, n) } else { call.scratch.write::<f32>(0, n) };
            let (gate, up) = (&call.args[0].read::<f32>()[at..at + n], &call.args[1].read::<f32>()[at..at + n]);
            let args = Binary { a: gate, b: up, out: Shared::new(out), columns: n, stride: n };
            if p.gelu {
                geglu(p.isa)(&args, 0..n)
            } else {
                swiglu(p.isa)(&args, 0..n)
            }
            if p.forms.int8 {
                forms::round_at(call, if p.forms.f32 { 4 } else { 3 }, p.isa, at, out);
            }
        }
    }
}

fn gated<T: Real>(a: &[f32], b: &[f32], gelu: bool) -> Vec<T> {
    let f = if gelu { reference::act::geglu::<T> } else { reference::act::swiglu };
    lift(a).into_iter().zip(lift(b)).map(|(a, b)| f(a, b)).collect()
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let n = shape.size("cols") * shape.size("batch");
    let mut rng = data::Rng::new(seed);
    let (a, b) = (data::floats(&mut rng, n, fill), data::floats(&mut rng, n, Fill::Random));
    let gelu = shape.name("gate") == "gelu";
    let draws = Shaken::draws(Dtype::F32, n, || gated(&a, &b, gelu));
    let mut args = vec![
        Arg::In(data::bytes(&a)),
        Arg::In(data::bytes(&b)),
        Arg::In(step::encode(&vec![0; shape.size("batch")], 0)),
    ];
    args.extend(forms::expected(forms::of(shape), &gated(&a, &b, gelu), (&gated(&a, &b, gelu), &draws)));
    Problem { shape: shape.clone(), attrs: Attrs::new(), args, label: format!("{fill:?} seed={seed}") }
}
