//! `embed`: out[t] = scale * table[token[t]]; bound by the latency of one row.

use planish_device::{Call, Launch, Plain, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::cpu::act;
use crate::cpu::isa::Isa;
use crate::cpu::matmul::Layout;
use crate::cpu::simd::Shared;
use crate::data;
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::ops::NativeLaunch;
use crate::quant::{WeightType, dequantize};
use crate::step::{self, Step};
use crate::weight::Weight;

/// The op; arguments: table, step, out f32 `[batch][cols]`.
pub static EMBED: Op = Op {
    name: "embed",
    about: "out[t] = scale * table[token[t]]; bound by the latency of one row",
    check: |s| s.check(&["rows", "cols", "batch"], &["type"]).and_then(|()| layout(s).map(drop)),
    space: |_, _| Space::fixed(Config::new()),
    cost: |s| {
        let row = layout(s).map_or(0, |l| l.row_bytes()) as u64;
        let n = s.size("batch") as u64;
        Cost {
            flops: n * s.size("cols") as u64,
            int8_ops: 0,
            read_bytes: n * row,
            write_bytes: 4 * n * s.size("cols") as u64,
        }
    },
    cases: |s| vec![s.clone().with("rows", 37).with("batch", 3), s.clone().with("rows", 1).with("batch", 1)],
    problem,
    steps,
    rotated: &[],
    reduces: &[],
};

/// Rows of `table` for the tokens of the step, times `scale`.
pub fn call(table: &Weight, step: &Slice, out: &Slice, batch: usize, scale: f32) -> OpCall {
    OpCall {
        op: &EMBED,
        shape: Shape::new()
            .with("type", table.ty.name())
            .with("rows", table.rows as i64)
            .with("cols", table.cols as i64)
            .with("batch", batch as i64),
        attrs: Attrs::new().with("scale", f64::from(scale)),
        args: vec![table.data.clone(), step.clone(), out.clone()],
    }
}

fn layout(shape: &Shape) -> Result<Layout, String> {
    let ty = WeightType::from_name(shape.name("type")).ok_or_else(|| format!("{shape}: unknown type"))?;
    Layout::of(ty, shape.size("rows"), shape.size("cols")).map_err(|e| e.to_string())
}

#[derive(Clone, Copy)]
struct P {
    isa: Isa,
    layout: Layout,
    scale: f32,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

fn steps(call: &OpCall, _: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let layout = layout(&call.shape).map_err(Rejection::Constraint)?;
    let params = P { isa: machine.isa, layout, scale: call.attrs.get("scale") as f32 };
    let tasks = call.shape.size("batch");
    let launch = NativeLaunch { name: "embed", run, params, tasks, threads: u32::MAX, scratch_bytes: 0 };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `EMBED`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    let cols = p.layout.cols();
    // SAFETY: the contract of the op; tasks are tokens, so rows of `out` are disjoint.
    unsafe {
        let step = Step::of(call, 1);
        for t in call.tasks.start as usize..(call.tasks.end as usize).min(step.n) {
            let out = call.args[2].write::<f32>(t * cols, cols);
            p.layout.unpack_row(call.args[0].read(), step.ids[t] as usize, out);
            if p.scale != 1.0 {
                let x = Shared::new(out);
                act::scale(p.isa)(&act::Unary { x, parameter: p.scale }, 0..cols);
            }
        }
    }
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let layout = layout(shape).expect("shape was checked");
    let (ty, rows, cols, batch) = (layout.weight(), layout.rows(), layout.cols(), shape.size("batch"));
    let mut rng = data::Rng::new(seed);
    let file = data::weights(&mut rng, ty, rows, cols, fill);
    let ids: Vec<u32> = (0..batch).map(|_| rng.below(rows as u64) as u32).collect();
    let scale = 2.5f32;
    let mut values = Vec::new();
    for id in &ids {
        let mut row = vec![0f32; cols];
        dequantize(ty, &file[*id as usize * layout.row_bytes()..][..layout.row_bytes()], &mut row);
        values.extend(row.iter().map(|v| f64::from(*v * scale)));
    }
    let bounds = vec![0.0; values.len()];
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("scale", f64::from(scale)),
        args: vec![
            Arg::In(data::pack(&layout, &file)),
            Arg::In(step::encode(&ids, 0)),
            Arg::Out(Expected { dtype: Dtype::F32, values, bounds, untouched: 0 }),
        ],
        label: format!("{fill:?} seed={seed}"),
    }
}
