//! `get_rows`: y[t] = scale W[ids[t]], the embedding of tokens; bound by memory, by latency at one token.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::linear::Matrix;
use crate::gpu::text::{IO, KernelLaunch, QUANT, Text, ints, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};

/// Arguments: W as in the file, ids u32 `[tokens]`, y `[tokens][cols]` of type `io`; attribute `scale`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "get_rows",
        about: "y[t] = scale W[ids[t]]; bound by memory, by latency at one token",
        check,
        space: |_, machine| Space {
            params: vec![
                ints("THREADS", "occupancy against the cost of a group", &[32, 64, 128, 256, 512]),
                ints("ELEMS", "fewer groups against fewer threads in flight", &[1, 2, 4]),
            ],
            constraints: Vec::new(),
            default: Config::new().with("THREADS", Tier::on(machine).pick([128, 128, 256, 256])).with("ELEMS", 1),
        },
        cost: |s| {
            let (m, tokens) = (Matrix::checked(s), s.size("tokens") as u64);
            let values = tokens * m.cols as u64;
            let read_bytes = tokens * (m.bytes() / m.rows) as u64;
            Cost { flops: 2 * values, read_bytes, write_bytes: values * io(s).bytes(), ..Cost::default() }
        },
        cases: |s| {
            let block = Matrix::checked(s).ty.record().block_elements as i64;
            let with = |rows: i64, cols: i64, tokens: i64| {
                s.clone().with("rows", rows).with("cols", cols).with("tokens", tokens)
            };
            vec![with(37, s.size("cols") as i64, 5), with(1, block, 1), with(5, 3 * block, 9)]
        },
        problem,
        steps,
        rotated: &[0],
        reduces: &[],
    },
    text: Text(&[IO, QUANT, ("get_rows.k", include_str!("get_rows.k"))]),
    shapes: &[
        "type=f32,io=f32,rows=7,cols=31,tokens=3",
        "type=f16,io=f32,rows=1,cols=1,tokens=1",
        "type=bf16,io=bf16,rows=9,cols=100,tokens=5",
        "type=q8_0,io=f16,rows=9,cols=96,tokens=7",
        "type=q4_0,io=f32,rows=5,cols=64,tokens=2",
        "type=q4_1,io=f32,rows=5,cols=160,tokens=3",
        "type=q5_0,io=f32,rows=5,cols=160,tokens=3",
        "type=q5_1,io=bf16,rows=5,cols=160,tokens=3",
        "type=q2_k,io=f32,rows=5,cols=256,tokens=3",
        "type=q3_k,io=f32,rows=5,cols=512,tokens=3",
        "type=q4_k,io=f16,rows=5,cols=512,tokens=3",
        "type=q5_k,io=f32,rows=5,cols=768,tokens=3",
        "type=q6_k,io=f32,rows=5,cols=256,tokens=4",
        "type=iq4_nl,io=f32,rows=5,cols=32,tokens=3",
        "type=iq4_xs,io=f32,rows=5,cols=256,tokens=3",
    ],
};

fn io(shape: &Shape) -> Dtype {
    Dtype::float(shape.name("io")).expect("shape was checked")
}

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["rows", "cols", "tokens"], &["type", "io"])?;
    let matrix = Matrix::of(shape)?;
    Dtype::float(shape.name("io")).ok_or_else(|| format!("{shape}: io is f32, f16 or bf16"))?;
    // Kernels count elements in 32 bits.
    match shape.size("tokens").checked_mul(matrix.cols) {
        Some(n) if n > 0 && n <= u32::MAX as usize => Ok(()),
        _ => Err(format!("{shape}: no tokens, or more than 2^32 values of them")),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let matrix = Matrix::of(&call.shape).map_err(Rejection::Constraint)?;
    let (tokens, threads, elems) = (call.shape.size("tokens"), knob(config, "THREADS")?, knob(config, "ELEMS")?);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "get_rows",
        constants: vec![
            ("THREADS", threads as i64),
            ("ELEMS", elems as i64),
            ("TYPE", matrix.code()),
            ("IO", io_code(io(&call.shape))),
        ],
        params: vec![matrix.rows as u32, matrix.cols as u32, tokens as u32, (call.attrs.get("scale") as f32).to_bits()],
        groups: (tokens * matrix.cols.div_ceil(4)).div_ceil(threads * elems),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (matrix, tokens, io) = (Matrix::checked(shape), shape.size("tokens"), io(shape));
    let mut rng = Rng::new(seed);
    let file = data::weights(&mut rng, matrix.ty, matrix.rows, matrix.cols, fill);
    // The last row is always among them.
    let last = matrix.rows as u32 - 1;
    let ids: Vec<u32> = (0..tokens).map(|t| if t == 0 { last } else { rng.below(matrix.rows as u64) as u32 }).collect();
    let scale = if fill == Fill::Extreme { 22.627417f32 } else { 1.0 };
    let expected = if fill == Fill::Unjudged {
        Expected::exact(io, vec![0.0; tokens * matrix.cols])
    } else {
        let (w64, w32) = (matrix.elements::<f64>(&file), matrix.elements::<f32>(&file));
        let y64 = reference::get_rows(&w64, matrix.cols, &ids, f64::from(scale));
        let y32 = reference::get_rows(&w32, matrix.cols, &ids, scale);
        Expected::float(io, y64, &y32)
    };
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("scale", f64::from(scale)),
        args: vec![Arg::In(file), Arg::In(data::bytes_u32(&ids)), Arg::Out(expected)],
        label: format!("{fill:?} seed={seed}"),
    }
}
