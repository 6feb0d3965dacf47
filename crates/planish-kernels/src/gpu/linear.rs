//! What the ops on weight matrices in GGUF's types share: the typed view of a shape, activations in 8 bits, and the oracle.

use planish_tune::Rejection;

use crate::cpu::isa::Isa;
use crate::cpu::matmul::{self, BlockMeta};
use crate::data::{self, Rng};
use crate::gpu::matvec::reference::products;
use crate::op::{Arg, Attrs, Dtype, Expected, Fill, OpCall, Problem, Shape};
use crate::ops::matmul::block_bytes;
use crate::quant::{Real, WeightType, dequantize};
use crate::reference::lift;

/// A matrix as its file stores it, row after row.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// How elements are stored.
    pub ty: WeightType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row, whole blocks.
    pub cols: usize,
}

impl Matrix {
    /// The fields `type`, `rows` and `cols` of a shape.
    pub fn of(shape: &Shape) -> Result<Matrix, String> {
        let ty = WeightType::from_name(shape.name("type")).ok_or_else(|| format!("{shape}: unknown type"))?;
        let matrix = Matrix { ty, rows: shape.size("rows"), cols: shape.size("cols") };
        let bytes = ty.row_bytes(matrix.cols).and_then(|b| b.checked_mul(matrix.rows));
        let bytes = bytes.ok_or_else(|| format!("{shape}: a row of {ty} is whole blocks"))?;
        // Kernels count pairs of bytes in 32 bits.
        match bytes {
            0 => Err(format!("{shape}: no size may be zero")),
            b if b / 2 > u32::MAX as usize => Err(format!("{shape}: a matrix of {b} bytes")),
            _ => Ok(matrix),
        }
    }

    /// The same of a shape that was checked.
    pub fn checked(shape: &Shape) -> Matrix {
        Matrix::of(shape).expect("shape was checked")
    }

    /// The number by which kernel text tells types apart, in constant `TYPE`.
    pub fn code(&self) -> i64 {
        self.ty as i64
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> usize {
        self.rows * self.ty.row_bytes(self.cols).expect("columns are whole blocks")
    }

    /// The elements of the matrix in `file`, row after row.
    pub fn elements<R: Real>(&self, file: &[u8]) -> Vec<R> {
        let mut all = vec![R::default(); self.rows * self.cols];
        dequantize(self.ty, file, &mut all);
        all
    }

    /// Rows that a test checks: all, or of a large matrix about four million elements with the same rest by 256.
    pub fn gated_rows(&self) -> i64 {
        let most = ((4 << 20) / self.cols).max(1024);
        if self.rows <= most { self.rows as i64 } else { (most / 256 * 256 - 256 + self.rows % 256) as i64 }
    }
}

/// Activations as the int8 class rounds them: codes and block records for the kernel; `x` becomes what they stand for.
pub fn quantized(x: &mut [f32]) -> Vec<Arg> {
    let mut codes = vec![0i8; x.len()];
    let mut meta = vec![BlockMeta::default(); x.len() / matmul::BLOCK];
    matmul::quantize(Isa::Portable, x, &mut codes, &mut meta);
    for (i, x) in x.iter_mut().enumerate() {
        *x = meta[i / matmul::BLOCK].d * f32::from(codes[i]);
    }
    vec![Arg::In(codes.iter().map(|c| *c as u8).collect()), Arg::In(block_bytes(&meta))]
}

/// What a product adds to its sums: a bias for each output, and what the outputs held.
pub struct Extras {
    bias: Vec<f32>,
    residual: Vec<f32>,
    residual_bytes: Vec<u8>,
}

impl Extras {
    /// Extras for `rows` outputs of each of `tokens` tokens; extreme problems have them, others do not.
    pub fn of(rng: &mut Rng, sizes: (usize, usize), io: Dtype, fill: Fill) -> Option<Extras> {
        if fill != Fill::Extreme {
            return None;
        }
        let (rows, tokens) = sizes;
        let mut floats = |n| data::floats(rng, n, Fill::Random);
        let (bias, mut residual) = (floats(rows), floats(rows * tokens));
        let residual_bytes = data::rounded(&mut residual, io);
        Some(Extras { bias, residual, residual_bytes })
    }
}

/// Weights in both precisions and the activations that meet them.
pub struct Operands<'a> {
    /// `[rows][cols]`, of the oracle.
    pub w64: &'a [f64],
    /// The same as plain f32 arithmetic has them.
    pub w32: &'a [f32],
    /// `[tokens][cols]`.
    pub x: &'a [f32],
    /// Columns.
    pub cols: usize,
}

impl Operands<'_> {
    /// What y must hold, of type `io`.
    pub fn expected(&self, io: Dtype, extras: Option<&Extras>) -> Expected {
        let x64 = lift::<f64>(self.x);
        let absolute = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<f64>>();
        let mut y64 = products(self.w64, &x64, self.cols);
        let mut y32 = products(self.w32, self.x, self.cols);
        let mut magnitudes = products(&absolute(self.w64), &absolute(&x64), self.cols);
        if let Some(e) = extras {
            for (i, residual) in e.residual.iter().enumerate() {
                let bias = e.bias[i % e.bias.len()];
                y64[i] += f64::from(bias) + f64::from(*residual);
                y32[i] += bias + residual;
                magnitudes[i] += f64::from(bias.abs()) + f64::from(residual.abs());
            }
        }
        Expected::sums(io, y64, &y32, &magnitudes)
    }
}

/// What a problem is made of, beside its shape: weights, activations and what must come out.
pub struct Parts {
    /// Arguments that hold the weights.
    pub weights: Vec<Arg>,
    /// Arguments that hold the activations.
    pub x: Vec<Arg>,
    /// The outputs.
    pub expected: Expected,
    /// What is added.
    pub extras: Option<Extras>,
}

impl Parts {
    /// The problem: weights, y, activations, and a bias where there is one, with the attributes that say so.
    pub fn problem(self, shape: &Shape, label: String) -> Problem {
        let (mut attrs, mut args) = (Attrs::new(), self.weights);
        match self.extras {
            None => {
                args.push(Arg::Out(self.expected));
                args.extend(self.x);
            }
            Some(e) => {
                args.push(Arg::InOut(e.residual_bytes, self.expected));
                args.extend(self.x);
                args.push(Arg::In(data::bytes(&e.bias)));
                attrs = attrs.with("bias", 1.0).with("add", 1.0);
            }
        }
        Problem { shape: shape.clone(), attrs, args, label }
    }
}

/// Whether a call has a bias behind its `fixed` arguments, and whether it adds, as the kernels' flags.
pub fn flags(call: &OpCall, fixed: usize) -> Result<[u32; 2], Rejection> {
    let [bias, add] = ["bias", "add"].map(|flag| u32::from(call.attrs.is(flag)));
    let wanted = fixed + bias as usize;
    match call.args.len() == wanted {
        true => Ok([bias, add]),
        false => Err(Rejection::Constraint(format!("{}: {} arguments, not {wanted}", call.op.name, call.args.len()))),
    }
}
