//! `matvec`: y = W x for one token, W in the types of GGUF files; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::linear::{self, Extras, Matrix, Operands, Parts};
use crate::gpu::teams::{self, TEAMS};
use crate::gpu::text::{KernelLaunch, QUANT, Text, ints, knob};
use crate::op::{Arg, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: W as in the file, y f32 `[rows]`, x f32 `[cols]` (or codes and block records where `act` is int8), then a
/// bias f32 `[rows]` where there is one; W and x begin on sixteen bytes.
///
/// With the attribute `bias` there is a bias, with `add` the result is added to y.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "matvec",
        about: "y = W x for one token; reads every weight once, so memory bandwidth is the limit",
        check,
        space: |_, machine| {
            let vec = ints("VEC", "scales shared by neighbours against a longer stride through x", &[1, 2, 4, 8]);
            teams::space(machine, vec![vec], Config::new().with("VEC", 4))
        },
        cost: |s| {
            let m = Matrix::checked(s);
            let (rows, cols) = (m.rows as u64, m.cols as u64);
            // In class int8 the products are of bytes.
            let products = 2 * rows * cols;
            let (flops, int8_ops) = if s.name("act") == "int8" { (0, products) } else { (products, 0) };
            Cost { flops, int8_ops, read_bytes: m.bytes() as u64 + 4 * cols, write_bytes: 4 * rows }
        },
        cases,
        problem,
        steps,
        rotated: &[0],
        reduces: &["THREADS", "REDUCE", "VEC"],
    },
    text: Text(&[QUANT, TEAMS, ("matvec.k", include_str!("matvec.k"))]),
    shapes: &[
        "type=f32,act=f32,rows=1,cols=1",
        "type=f32,act=f32,rows=7,cols=516",
        "type=f16,act=f32,rows=13,cols=577",
        "type=bf16,act=f32,rows=9,cols=320",
        "type=q8_0,act=f32,rows=5,cols=96",
        "type=q8_0,act=int8,rows=9,cols=160",
        "type=q4_0,act=f32,rows=1,cols=32",
        "type=q4_0,act=int8,rows=17,cols=544",
        "type=q4_1,act=f32,rows=3,cols=96",
        "type=q4_1,act=int8,rows=3,cols=96",
        "type=q5_0,act=f32,rows=5,cols=224",
        "type=q5_0,act=int8,rows=5,cols=224",
        "type=q5_1,act=f32,rows=2,cols=64",
        "type=q5_1,act=int8,rows=2,cols=64",
        "type=q2_k,act=f32,rows=3,cols=512",
        "type=q2_k,act=int8,rows=3,cols=512",
        "type=q3_k,act=f32,rows=3,cols=768",
        "type=q3_k,act=int8,rows=3,cols=768",
        "type=q4_k,act=f32,rows=11,cols=256",
        "type=q4_k,act=int8,rows=11,cols=256",
        "type=q5_k,act=f32,rows=2,cols=512",
        "type=q5_k,act=int8,rows=2,cols=512",
        "type=q6_k,act=f32,rows=3,cols=768",
        "type=q6_k,act=int8,rows=3,cols=768",
        "type=iq4_nl,act=f32,rows=4,cols=160",
        "type=iq4_nl,act=int8,rows=4,cols=160",
        "type=iq4_xs,act=f32,rows=5,cols=256",
        "type=iq4_xs,act=int8,rows=5,cols=512",
    ],
};

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["rows", "cols"], &["type", "act"])?;
    let matrix = Matrix::of(shape)?;
    match shape.name("act") {
        "f32" => Ok(()),
        "int8" if !matrix.ty.is_float() => Ok(()),
        other => Err(format!("{shape}: {} weights have no activation class {other}", matrix.ty)),
    }
}

/// The shape itself (fewer rows when there are many), one row of one block, and rows off every team.
fn cases(shape: &Shape) -> Vec<Shape> {
    let matrix = Matrix::checked(shape);
    let block = matrix.ty.record().block_elements as i64;
    let with = |rows: i64, cols: i64| shape.clone().with("rows", rows).with("cols", cols);
    vec![with(matrix.gated_rows(), matrix.cols as i64), with(1, block), with(37, 3 * block)]
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let matrix = Matrix::of(&call.shape).map_err(Rejection::Constraint)?;
    let int8 = call.shape.name("act") == "int8";
    let flags = linear::flags(call, 3 + usize::from(int8))?;
    let spread = teams::spread(config, matrix.rows)?;
    let mut constants = spread.constants;
    constants.extend([("TYPE", matrix.code()), ("ACT", i64::from(int8)), ("VEC", knob(config, "VEC")? as i64)]);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "matvec",
        constants,
        params: [&[matrix.rows as u32, matrix.cols as u32], &flags[..]].concat(),
        groups: spread.groups,
        threads: spread.threads,
        shared_bytes: 0,
    };
    // What there is none of is bound to x, and not read.
    let (w, y, x) = (&call.args[0], &call.args[1], &call.args[2]);
    let meta = if int8 { &call.args[3] } else { x };
    let bias = call.args.last().filter(|_| flags[0] == 1).unwrap_or(x);
    Ok(vec![launch.on(machine, [w, x, meta, bias, y].map(Clone::clone).to_vec())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let matrix = Matrix::checked(shape);
    let mut rng = Rng::new(seed);
    let file = data::weights(&mut rng, matrix.ty, matrix.rows, matrix.cols, fill);
    let mut x = data::floats(&mut rng, matrix.cols, fill);
    let extras = Extras::of(&mut rng, (matrix.rows, 1), Dtype::F32, fill);
    let activations = match shape.name("act") {
        "int8" => linear::quantized(&mut x),
        _ => vec![Arg::In(data::bytes(&x))],
    };
    let expected = if fill == Fill::Unjudged {
        Expected::exact(Dtype::F32, vec![0.0; matrix.rows])
    } else {
        let w = matrix.elements::<f32>(&file);
        let operands = Operands { w64: &lift(&w), w32: &w, x: &x, cols: matrix.cols };
        operands.expected(Dtype::F32, extras.as_ref())
    };
    let parts = Parts { weights: vec![Arg::In(file)], x: activations, expected, extras };
    parts.problem(shape, format!("{fill:?} seed={seed}"))
}
