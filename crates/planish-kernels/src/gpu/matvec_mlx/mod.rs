//! `matvec_mlx`: y = W x for one token, W in MLX's affine groups; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::linear::{self, Extras, Operands, Parts};
use crate::gpu::teams::{self, TEAMS};
use crate::gpu::text::{IO, KernelLaunch, Text, check_io, ints, io, io_code, knob};
use crate::op::{Arg, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;
use reference::Affine;

/// Arguments: codes u32 `[rows][cols bits / 32]`, scales and offsets `[rows][cols / group]` of the shape's type, y f32
/// `[rows]`, x f32 `[cols]`, then a bias f32 `[rows]` where there is one; x begins on sixteen bytes.
///
/// With the attribute `bias` there is a bias, with `add` the result is added to y.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "matvec_mlx",
        about: "y = W x for one token, W in affine groups; reads every weight once, so memory bandwidth is the limit",
        check,
        space: |_, machine| {
            let vec = ints("VEC", "scales shared by neighbours against a longer stride through x", &[1, 2, 4, 8]);
            teams::space(machine, vec![vec], Config::new().with("VEC", 2))
        },
        cost: |s| {
            let (rows, cols) = (s.size("rows") as u64, s.size("cols") as u64);
            let groups = rows * cols / s.size("group") as u64;
            let weights = rows * cols * s.size("bits") as u64 / 8 + 2 * groups * io(s).bytes();
            Cost { flops: 2 * rows * cols, read_bytes: weights + 4 * cols, write_bytes: 4 * rows, ..Cost::default() }
        },
        cases: |s| {
            let (cols, group) = (s.size("cols"), s.size("group") as i64);
            let most = ((4 << 20) / cols).max(1024);
            let rows = s.size("rows");
            let rows = if rows <= most { rows } else { most / 256 * 256 - 256 + rows % 256 };
            let with = |rows: i64, cols: i64| s.clone().with("rows", rows).with("cols", cols);
            vec![with(rows as i64, cols as i64), with(1, group), with(37, 3 * group)]
        },
        problem,
        steps,
        rotated: &[0],
        reduces: &["THREADS", "REDUCE", "VEC"],
    },
    text: Text(&[IO, TEAMS, ("matvec_mlx.k", include_str!("matvec_mlx.k"))]),
    shapes: &[
        "bits=2,group=32,type=f32,rows=1,cols=32",
        "bits=2,group=128,type=f16,rows=7,cols=384",
        "bits=3,group=64,type=bf16,rows=5,cols=320",
        "bits=3,group=32,type=f32,rows=17,cols=96",
        "bits=4,group=64,type=f16,rows=11,cols=704",
        "bits=4,group=128,type=bf16,rows=3,cols=128",
        "bits=5,group=32,type=f16,rows=9,cols=224",
        "bits=6,group=64,type=f16,rows=3,cols=192",
        "bits=6,group=128,type=f32,rows=5,cols=640",
        "bits=8,group=32,type=bf16,rows=4,cols=160",
    ],
};

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["rows", "cols", "bits", "group"], &["type"])?;
    check_io(shape)?;
    let [rows, cols, bits, group] = ["rows", "cols", "bits", "group"].map(|n| shape.size(n));
    if ![2, 3, 4, 5, 6, 8].contains(&bits) || ![32, 64, 128].contains(&group) {
        return Err(format!("{shape}: codes have 2 to 6 or 8 bits, groups 32, 64 or 128 elements"));
    }
    // Kernels count elements, and the bits of a row, in 32 bits.
    let most = u32::MAX as usize;
    let fits = rows.checked_mul(cols).is_some_and(|n| n > 0 && n <= most) && cols <= most / 8;
    match fits && cols.is_multiple_of(group) {
        true => Ok(()),
        false => Err(format!("{shape}: rows are whole groups, and a matrix under 2^32 elements")),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (rows, cols) = (call.shape.size("rows"), call.shape.size("cols"));
    let flags = linear::flags(call, 5)?;
    let spread = teams::spread(config, rows)?;
    let mut constants = spread.constants;
    constants.extend([
        ("BITS", call.shape.size("bits") as i64),
        ("GROUP", call.shape.size("group") as i64),
        ("VEC", knob(config, "VEC")? as i64),
        ("IO", io_code(io(&call.shape))),
    ]);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "matvec_mlx",
        constants,
        params: [&[rows as u32, cols as u32], &flags[..]].concat(),
        groups: spread.groups,
        threads: spread.threads,
        shared_bytes: 0,
    };
    // A bias that there is none of is bound to x, and not read.
    let [w, scales, offsets, y, x] = [0, 1, 2, 3, 4].map(|i| call.args[i].clone());
    let bias = call.args.last().filter(|_| flags[0] == 1).unwrap_or(&x).clone();
    Ok(vec![launch.on(machine, vec![w, scales, offsets, x, bias, y])?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let [rows, cols, bits, group] = ["rows", "cols", "bits", "group"].map(|n| shape.size(n));
    let (mut rng, io) = (Rng::new(seed), io(shape));
    let codes: Vec<u8> = (0..rows * cols * bits / 8).map(|_| rng.bits() as u8).collect();
    let (mut scales, mut offsets) = groups(&mut rng, rows * cols / group, bits, fill);
    let (bytes_scales, bytes_offsets) = (data::rounded(&mut scales, io), data::rounded(&mut offsets, io));
    let x = data::floats(&mut rng, cols, fill);
    let extras = Extras::of(&mut rng, (rows, 1), Dtype::F32, fill);
    let expected = if fill == Fill::Unjudged {
        Expected::exact(Dtype::F32, vec![0.0; rows])
    } else {
        let (scales64, offsets64) = (lift::<f64>(&scales), lift::<f64>(&offsets));
        let w64 = Affine { bits, group, codes: &codes, scales: &scales64, offsets: &offsets64 }.weights();
        let w32 = Affine { bits, group, codes: &codes, scales: &scales, offsets: &offsets }.weights();
        Operands { w64: &w64, w32: &w32, x: &x, cols }.expected(Dtype::F32, extras.as_ref())
    };
    let weights = vec![Arg::In(codes), Arg::In(bytes_scales), Arg::In(bytes_offsets)];
    let parts = Parts { weights, x: vec![Arg::In(data::bytes(&x))], expected, extras };
    parts.problem(shape, format!("{fill:?} seed={seed}"))
}

/// Scales and offsets as the quantiser leaves them: scales of both signs, and offsets opposite to most of their group.
fn groups(rng: &mut Rng, n: usize, bits: usize, fill: Fill) -> (Vec<f32>, Vec<f32>) {
    let one = |rng: &mut Rng| {
        let scale = match (fill, rng.below(8)) {
            (Fill::Extreme, 0) => 0.5 * rng.unit(),
            (Fill::Extreme, 1) => 0.0,
            _ => 0.01 * rng.unit(),
        };
        (scale, -scale * rng.unit().abs() * (1 << bits) as f32)
    };
    (0..n).map(|_| one(rng)).unzip()
}
