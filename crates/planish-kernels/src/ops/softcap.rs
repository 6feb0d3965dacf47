//! `softcap`: x = cap * tanh(x / cap) in place, on the logits; bound by memory.

use planish_device::{Call, Launch, Plain, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::cpu::act::{Unary, softcap};
use crate::cpu::isa::Isa;
use crate::cpu::simd::Shared;
use crate::data;
use crate::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::ops::NativeLaunch;
use crate::reference;
use crate::step::{self, Step};

/// Arguments: x f32 `[batch][cols]`, step.
pub static SOFTCAP: Op = Op {
    name: "softcap",
    about: "x = cap * tanh(x / cap) in place; bound by memory",
    check: |s| s.check(&["cols", "batch"], &[]),
    space: |_, _| Space::fixed(Config::new()),
    cost: |s| {
        let n = (s.size("batch") * s.size("cols")) as u64;
        Cost { flops: 6 * n, int8_ops: 0, read_bytes: 4 * n, write_bytes: 4 * n }
    },
    cases: |s| vec![s.clone().with("batch", 2), s.clone().with("cols", 37).with("batch", 1)],
    problem,
    steps,
    rotated: &[],
    reduces: &[],
};

const CHUNK: usize = 4096;

/// Caps the logits of the step's tokens.
pub fn call(x: &Slice, step: &Slice, batch: usize, cols: usize, cap: f32) -> OpCall {
    OpCall {
        op: &SOFTCAP,
        shape: Shape::new().with("cols", cols as i64).with("batch", batch as i64),
        attrs: Attrs::new().with("cap", f64::from(cap)),
        args: vec![x.clone(), step.clone()],
    }
}

#[derive(Clone, Copy)]
struct P {
    isa: Isa,
    batch: usize,
    cols: usize,
    cap: f32,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

fn steps(call: &OpCall, _: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (batch, cols) = (call.shape.size("batch"), call.shape.size("cols"));
    let params = P { isa: machine.isa, batch, cols, cap: call.attrs.get("cap") as f32 };
    let tasks = (batch * cols).div_ceil(CHUNK);
    let launch = NativeLaunch { name: "softcap", run, params, tasks, threads: u32::MAX, scratch_bytes: 0 };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `SOFTCAP`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; tasks are runs of values.
    unsafe {
        // A head that computes the last token only leaves one row, however many tokens the step has.
        let n = Step::of(call, 1).n.min(p.batch) * p.cols;
        for task in call.tasks.clone() {
            let from = task as usize * CHUNK;
            let end = (from + CHUNK).min(n);
            if from < end {
                let x = Shared::new(call.args[0].write::<f32>(from, end - from));
                softcap(p.isa)(&Unary { x, parameter: p.cap }, 0..end - from);
            }
        }
    }
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let n = shape.size("cols") * shape.size("batch");
    let x = data::floats(&mut data::Rng::new(seed), n, fill);
    let cap = 30.0;
    let y64: Vec<f64> = x.iter().map(|x| reference::act::softcap(f64::from(*x), cap)).collect();
    let y32: Vec<f32> = x.iter().map(|x| reference::act::softcap(*x, cap)).collect();
    let step = step::encode(&vec![0; shape.size("batch")], 0);
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("cap", cap),
        args: vec![Arg::InOut(data::bytes(&x), Expected::f32(y64, &y32)), Arg::In(step)],
        label: format!("{fill:?} seed={seed}"),
    }
}
