//! `unpack`: the weights of some matrices out of planes, as rows of floats; bound by memory.

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::decode::model::At;
use crate::gpu::planes::{EIGHT, PLANES, Planes};
use crate::gpu::text::{IO, KernelLaunch, QUANT, Text, ints, io_code, knob};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::quant::{WeightType, dequantize};

/// Arguments: the bytes of matrices in planes, one after the other, and their weights, of type `io`, by rows.
///
/// `types` are those of the matrices, joined by `+`; each has `rows` rows of `cols` columns, a multiple of eight.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "unpack",
        about: "weights of some matrices from planes to rows of floats; bound by memory",
        check,
        space,
        cost,
        cases: |s| vec![s.clone().with("rows", s.size("rows").min(300) as i64)],
        problem,
        steps,
        rotated: &[0, 1],
        reduces: &[],
    },
    text: Text(&[IO, QUANT, PLANES, EIGHT, ("unpack.k", include_str!("unpack.k"))]),
    shapes: &[
        "rows=1,cols=8,types=f32+f16+bf16,io=f32",
        "rows=7,cols=72,types=bf16+f16+f32,io=f16",
        "rows=37,cols=96,types=q8_0+q4_0+q4_1,io=f32",
        "rows=5,cols=160,types=q5_0+q5_1+iq4_nl+q8_0,io=f16",
        "rows=3,cols=512,types=q4_k+q6_k+q5_k+q4_k+f16+q6_k,io=f16",
        "rows=9,cols=256,types=q2_k+q3_k+iq4_xs,io=f32",
        "rows=2,cols=768,types=q4_k+q5_k+q6_k,io=f32",
        "rows=4,cols=256,types=q2_k+q3_k+iq4_xs,io=f16",
    ],
};

/// Matrices that one launch takes apart, at most.
pub const MOST: usize = 6;
/// Columns of a thread.
const PIECE: usize = 8;

/// A matrix to take apart.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Type and place.
    pub at: At,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// The launch that writes the weights of `parts`, one after the other, to `out` as f16 or f32; `all` are the types of
/// whatever is taken apart in the course of a sequence, so that it has one program.
pub fn launch(
    parts: &[Part],
    all: impl Iterator<Item = WeightType>,
    (arena, out, io): (&Slice, &Slice, Dtype),
    config: &Config,
    machine: &Machine<'_>,
) -> Result<Launch, Rejection> {
    let threads = knob(config, "THREADS")?;
    let mut words = vec![parts.len() as u32];
    let mut pieces = 0usize;
    for part in parts {
        pieces += part.rows * part.cols / PIECE;
        let fits = part.cols.is_multiple_of(PIECE) && part.at.offset.is_multiple_of(16) && parts.len() <= MOST;
        match (u32::try_from(pieces), u32::try_from(part.at.offset / 16)) {
            (Ok(end), Ok(at)) if fits => {
                words.extend([at, part.at.ty as u32, part.cols as u32, end]);
            }
            _ => {
                return Err(Rejection::Constraint(format!(
                    "{} matrices, one of {} columns at byte {}: at most {MOST} of whole {PIECE} columns, within 64 GB",
                    parts.len(),
                    part.cols,
                    part.at.offset
                )));
            }
        }
    }
    words.resize(1 + 4 * MOST, 0);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "unpack",
        constants: vec![
            ("IO", io_code(io)),
            ("THREADS", threads as i64),
            ("TYPES", all.fold(0, |bits, ty| bits | 1 << (ty as i64))),
        ],
        params: words,
        groups: pieces.div_ceil(threads),
        threads,
        shared_bytes: 0,
    };
    launch.on(machine, vec![arena.clone(), out.clone()])
}

/// What may be tried.
pub fn space(_: &Shape, _: &Machine<'_>) -> Space {
    Space {
        params: vec![ints("THREADS", "loads in flight against groups that start late", &[128, 256, 512])],
        constraints: Vec::new(),
        default: Config::new().with("THREADS", 256),
    }
}

fn io(shape: &Shape) -> Dtype {
    Dtype::float(shape.name("io")).expect("shape was checked")
}

fn types(shape: &Shape) -> Option<Vec<WeightType>> {
    shape.name("types").split('+').map(WeightType::from_name).collect()
}

/// The matrices of a checked shape, and the bytes of all.
fn parts(shape: &Shape) -> (Vec<Part>, usize) {
    let (rows, cols) = (shape.size("rows"), shape.size("cols"));
    let mut end = 0;
    let mut part = |ty| {
        let at = At { ty, offset: end };
        end += Planes { ty, rows, cols }.bytes();
        Part { at, rows, cols }
    };
    let parts = types(shape).expect("shape was checked").into_iter().map(&mut part).collect();
    (parts, end)
}

fn check(s: &Shape) -> Result<(), String> {
    s.check(&["rows", "cols"], &["types", "io"])?;
    if !["f32", "f16"].contains(&s.name("io")) {
        return Err(format!("{s}: io is f32 or f16"));
    }
    let types = types(s).ok_or_else(|| format!("{s}: types are joined by +"))?;
    if types.len() > MOST || !s.size("cols").is_multiple_of(PIECE) {
        return Err(format!("{s}: at most {MOST} matrices of whole {PIECE} columns"));
    }
    types.iter().try_for_each(|ty| Planes::new(*ty, s.size("rows"), s.size("cols")).map(drop))
}

fn cost(s: &Shape) -> Cost {
    let (parts, bytes) = parts(s);
    let written = parts.iter().map(|p| (p.rows * p.cols) as u64 * io(s).bytes()).sum();
    Cost { read_bytes: bytes as u64, write_bytes: written, ..Cost::default() }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (parts, _) = parts(&call.shape);
    let [arena, out] = &call.args[..] else {
        return Err(Rejection::Constraint(format!("unpack takes 2 arguments, not {}", call.args.len())));
    };
    let all = parts.iter().map(|p| p.at.ty);
    Ok(vec![launch(&parts, all, (arena, out, io(&call.shape)), config, machine)?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (parts, end) = parts(shape);
    let (mut rng, mut arena, mut values) = (Rng::new(seed), vec![0; end], Vec::new());
    for part in &parts {
        let planes = Planes { ty: part.at.ty, rows: part.rows, cols: part.cols };
        let file = data::weights(&mut rng, planes.ty, planes.rows, planes.cols, fill);
        planes.pack(&file, |row| row, &mut arena[part.at.offset..part.at.offset + planes.bytes()]);
        let mut own = vec![0f32; planes.rows * planes.cols];
        dequantize(planes.ty, &file, &mut own);
        values.extend(own);
    }
    // Kernels may read whole lines.
    arena.resize(end + 256, 0);
    let expected = Expected::float(io(shape), values.iter().map(|v| f64::from(*v)).collect(), &values);
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new(),
        args: vec![Arg::In(arena), Arg::Out(expected)],
        label: format!("{fill:?} seed={seed}"),
    }
}
