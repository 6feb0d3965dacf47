//! `gemm_quant`: y = W x for many tokens, W in the types of GGUF files; weights are taken apart once for a tile of tokens.

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::linear::{self, Extras, Matrix, Operands, Parts};
use crate::gpu::text::{IO, KernelLaunch, QUANT, Text};
use crate::gpu::tiles::{self, Product, TILE, WALK};
use crate::op::{Arg, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: W as in the file, y `[tokens][rows]`, x `[tokens][cols]`, both of type `io`, then a bias f32 `[rows]` where
/// there is one; W and x begin on sixteen bytes.
///
/// With the attribute `bias` there is a bias, with `add` the result is added to y.
/// Where `weights` is `rounded`, weights are rounded to `io` before they are multiplied, and the matrix unit may be used.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "gemm_quant",
        about: "y = W x for many tokens; bound by arithmetic, so weights are taken apart once for a tile of tokens",
        check,
        space: |s, machine| tiles::space(product(s), machine),
        cost: |s| {
            let (m, p) = (Matrix::checked(s), product(s));
            let (tokens, rows, cols) = (p.m as u64, p.n as u64, p.k as u64);
            Cost {
                flops: 2 * tokens * rows * cols,
                read_bytes: m.bytes() as u64 + tokens * cols * p.io.bytes(),
                write_bytes: tokens * rows * p.io.bytes(),
                ..Cost::default()
            }
        },
        cases,
        problem,
        steps,
        rotated: &[0],
        reduces: &["VARIANT"],
    },
    text: Text(&[IO, QUANT, TILE, WALK, ("gemm_quant.k", include_str!("gemm_quant.k"))]),
    shapes: &[
        "type=f32,io=f32,weights=exact,rows=9,cols=33,tokens=5",
        "type=f16,io=f16,weights=rounded,rows=33,cols=70,tokens=2",
        "type=bf16,io=f32,weights=exact,rows=32,cols=32,tokens=64",
        "type=q8_0,io=f16,weights=rounded,rows=65,cols=64,tokens=33",
        "type=q4_0,io=f32,weights=exact,rows=1,cols=32,tokens=1",
        "type=q4_1,io=f16,weights=exact,rows=33,cols=96,tokens=16",
        "type=q5_0,io=bf16,weights=rounded,rows=17,cols=64,tokens=5",
        "type=q5_1,io=f32,weights=exact,rows=20,cols=32,tokens=3",
        "type=q2_k,io=f32,weights=exact,rows=3,cols=256,tokens=2",
        "type=q3_k,io=f16,weights=rounded,rows=5,cols=256,tokens=7",
        "type=q4_k,io=bf16,weights=rounded,rows=64,cols=256,tokens=32",
        "type=q5_k,io=f32,weights=exact,rows=2,cols=512,tokens=3",
        "type=q6_k,io=f16,weights=rounded,rows=7,cols=256,tokens=3",
        "type=iq4_nl,io=f32,weights=exact,rows=5,cols=64,tokens=2",
        "type=iq4_xs,io=f16,weights=exact,rows=3,cols=256,tokens=4",
    ],
};

fn io(shape: &Shape) -> Dtype {
    Dtype::float(shape.name("io")).expect("shape was checked")
}

fn rounded(shape: &Shape) -> bool {
    shape.name("weights") == "rounded"
}

fn product(shape: &Shape) -> Product {
    let m = Matrix::checked(shape);
    Product { m: shape.size("tokens"), n: m.rows, k: m.cols, io: io(shape), matrix_unit: rounded(shape) }
}

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["rows", "cols", "tokens"], &["type", "io", "weights"])?;
    let matrix = Matrix::of(shape)?;
    let io = Dtype::float(shape.name("io")).ok_or_else(|| format!("{shape}: io is f32, f16 or bf16"))?;
    match (shape.name("weights"), io) {
        ("exact", _) | ("rounded", Dtype::F16 | Dtype::Bf16) => {}
        _ => return Err(format!("{shape}: weights are exact, or rounded to f16 or bf16")),
    }
    let tokens = shape.size("tokens");
    // Kernels count elements in 32 bits.
    match tokens.checked_mul(matrix.rows.max(matrix.cols)) {
        Some(n) if n > 0 && n <= u32::MAX as usize => Ok(()),
        _ => Err(format!("{shape}: no tokens, or more than 2^32 values of them")),
    }
}

/// The shape itself (fewer rows and tokens where there are many, with the same rests by the tiles), one block of columns,
/// and tails of rows and tokens.
fn cases(shape: &Shape) -> Vec<Shape> {
    let matrix = Matrix::checked(shape);
    let block = matrix.ty.record().block_elements as i64;
    let with =
        |rows: i64, cols: i64, tokens: i64| shape.clone().with("rows", rows).with("cols", cols).with("tokens", tokens);
    let few = |n: usize, most: usize| (if n <= most { n } else { most - 128 + n % 128 }) as i64;
    vec![
        with(few(matrix.rows, 384), matrix.cols as i64, few(shape.size("tokens"), 256)),
        with(1, block, 2),
        with(131, 2 * block, 37),
    ]
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let matrix = Matrix::of(&call.shape).map_err(Rejection::Constraint)?;
    let product = product(&call.shape);
    let flags = linear::flags(call, 3)?;
    let spread = tiles::spread(config, &product)?;
    let mut constants = spread.constants;
    constants.extend([("TYPE", matrix.code()), ("ROUND", i64::from(rounded(&call.shape)))]);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "gemm_quant",
        constants,
        params: [&[product.m as u32, product.n as u32, product.k as u32], &flags[..]].concat(),
        groups: spread.groups,
        threads: spread.threads,
        shared_bytes: 0,
    };
    // A bias that there is none of is bound to W, and not read.
    let (w, y, x) = (&call.args[0], &call.args[1], &call.args[2]);
    let bias = call.args.last().filter(|_| flags[0] == 1).unwrap_or(w);
    Ok(vec![launch.on(machine, [w, x, bias, y].map(Clone::clone).to_vec())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (matrix, tokens, io) = (Matrix::checked(shape), shape.size("tokens"), io(shape));
    let mut rng = Rng::new(seed);
    let file = data::weights(&mut rng, matrix.ty, matrix.rows, matrix.cols, fill);
    let mut x = data::floats(&mut rng, matrix.cols * tokens, fill);
    if fill == Fill::Extreme && io == Dtype::F16 {
        // Products of extremes stay in range; the smallest activations become subnormal.
        x.iter_mut().for_each(|v| *v /= 1024.0);
    }
    let bytes_x = data::rounded(&mut x, io);
    let extras = Extras::of(&mut rng, (matrix.rows, tokens), io, fill);
    let expected = if fill == Fill::Unjudged {
        Expected::exact(io, vec![0.0; matrix.rows * tokens])
    } else {
        let mut w = matrix.elements::<f32>(&file);
        if rounded(shape) {
            data::rounded(&mut w, io);
        }
        let operands = Operands { w64: &lift(&w), w32: &w, x: &x, cols: matrix.cols };
        operands.expected(io, extras.as_ref())
    };
    let parts = Parts { weights: vec![Arg::In(file)], x: vec![Arg::In(bytes_x)], expected, extras };
    parts.problem(shape, format!("{fill:?} seed={seed}"))
}
