//! `lora_backward`: gradients of `lora` with one adapter, that of x and sums into those of a and b; bound by compute.

pub mod reference;

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection};

use super::lora::{SKINNY, TILE, Tile, cases, tiles, weights};
use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::text::{IO, Text, check_io, io};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;
use reference::Backward;

/// Arguments: dy `[rows][outs]`, x `[rows][cols]`, w `[outs][cols]`, a `[rank][cols]`, b `[outs][rank]`, hr f32
/// `[rows][rank]`, dx `[rows][cols]`, da f32 `[rank][cols]` and db f32 `[outs][rank]`, both added to, scratch f32
/// `[rows][rank]`; attribute `scale`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "lora_backward",
        about: "dx = dy w + scale (dy b) a, da += scale (dy b)^T x, db += scale dy^T hr; bound by compute",
        check: |s| {
            s.check(&["rows", "cols", "outs", "rank"], &["type"])?;
            if s.size("cols") == 0 || s.size("outs") == 0 {
                return Err(format!("{s}: cols and outs are at least 1"));
            }
            check_io(s)
        },
        space: |s, machine| tiles([s.size("rows"), s.size("cols")], machine),
        cost: |s| {
            let [m, k, n, r] = ["rows", "cols", "outs", "rank"].map(|name| s.size(name) as u64);
            let e = io(s).bytes();
            Cost {
                flops: 2 * m * n * k + 4 * m * r * (n + k),
                int8_ops: 0,
                read_bytes: e * (m * n + m * k + n * k + r * (n + k)) + 4 * r * (m + n + k),
                write_bytes: e * m * k + 4 * r * (n + k),
            }
        },
        cases,
        problem,
        steps,
        rotated: &[0, 1, 2, 3, 4, 5, 6],
        reduces: &["TILE_M", "TILE_N", "TILE_K"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,outs=1,rank=1,type=f32",
        "rows=0,cols=8,outs=8,rank=4,type=f32",
        "rows=33,cols=65,outs=31,rank=5,type=f32",
        "rows=5,cols=16,outs=7,rank=0,type=f32",
        "rows=13,cols=31,outs=17,rank=37,type=f16",
        "rows=7,cols=29,outs=3,rank=8,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, TILE, SKINNY, ("lora_backward.k", include_str!("lora_backward.k"))]);

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let s = &call.shape;
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| s.size(name));
    if rows == 0 {
        return Ok(Vec::new());
    }
    let tile = Tile::of(config, io(s))?;
    let mut params = [rows, cols, outs, rank].map(|v| v as u32).to_vec();
    params.push((call.attrs.get("scale") as f32).to_bits());
    let text = &OP.text;
    let args = |which: &[usize]| -> Vec<Slice> { which.iter().map(|i| call.args[*i].clone()).collect() };
    let mut launches = Vec::new();
    if rank > 0 {
        launches.push(tile.thin(text, "lora_e", &params, [rows, rank]).on(machine, args(&[0, 4, 9]))?);
    }
    launches.push(tile.over(text, "lora_dx", &params, [rows, cols]).on(machine, args(&[0, 2, 3, 9, 6]))?);
    if rank > 0 {
        launches.push(tile.over(text, "lora_da", &params, [rank, cols]).on(machine, args(&[9, 1, 7]))?);
        launches.push(tile.over(text, "lora_db", &params, [outs, rank]).on(machine, args(&[0, 5, 8]))?);
    }
    Ok(launches)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| shape.size(name));
    let (io, dims, scale) = (io(shape), [cols, outs, rank], 0.75);
    let mut rng = Rng::new(seed);
    let mut dy = data::floats(&mut rng, rows * outs, fill);
    let mut x = data::floats(&mut rng, rows * cols, Fill::Random);
    let mut w = weights(&mut rng, outs * cols, outs);
    let mut a = weights(&mut rng, rank * cols, cols);
    let mut b = weights(&mut rng, outs * rank, outs);
    let hr = data::floats(&mut rng, rows * rank, Fill::Random);
    let (da, db) =
        (data::floats(&mut rng, rank * cols, Fill::Random), data::floats(&mut rng, outs * rank, Fill::Random));
    let mut args = Vec::from([&mut dy, &mut x, &mut w, &mut a, &mut b].map(|v| Arg::In(data::rounded(v, io))));
    args.push(Arg::In(data::bytes(&hr)));
    let [dx, da_sum, db_sum] = if fill == Fill::Unjudged {
        let zeros = |dtype, n: usize| Expected::float(dtype, vec![0.0; n], &vec![0.0; n]);
        [zeros(io, rows * cols), zeros(Dtype::F32, da.len()), zeros(Dtype::F32, db.len())]
    } else {
        let wide: [Vec<f64>; 8] = [&dy, &x, &w, &a, &b, &hr, &da, &db].map(|v| lift(v));
        let [dy64, x64, w64, a64, b64, hr64, da64, db64] = wide.each_ref().map(|v| v.as_slice());
        let exact = Backward { dy: dy64, x: x64, w: w64, a: a64, b: b64, hr: hr64, dims, scale };
        let plain = Backward { dy: &dy, x: &x, w: &w, a: &a, b: &b, hr: &hr, dims, scale };
        let dx = Expected::float(io, exact.dx(), &plain.dx());
        [dx, Expected::f32(exact.da(da64), &plain.da(&da)), Expected::f32(exact.db(db64), &plain.db(&db))]
    };
    args.extend([Arg::Out(dx), Arg::InOut(data::bytes(&da), da_sum), Arg::InOut(data::bytes(&db), db_sum)]);
    args.push(Arg::Scratch(rows * rank * 4));
    let attrs = Attrs::new().with("scale", scale);
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
