//! `mlp`: y = (silu(x wg^T) (x wu^T)) wd^T, each product with an adapter or none; bound by memory at few rows.

pub mod reference;

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection};

use super::lora::reference::Lora;
use super::lora::weights;
use super::swiglu_linear::{GATED, LINEAR, Linear, both, gated, part, space};
use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::text::{IO, Text, at_most, check_io, io};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{Real, Shaken, lift};

/// Arguments: x `[rows][cols]`, wg and wu `[inter][cols]`, ag `[rank][cols]`, bg `[inter][rank]`, au and bu alike,
/// wd `[cols][inter]`, ad `[rank][inter]`, bd `[cols][rank]`, scratch f32 `[3][rows][rank]`, scratch of the tensors'
/// type `[rows][inter]`, y `[rows][cols]`; attribute `scale`; `rank=0` is without adapters.
/// The hidden values between the halves are rounded to the type of tensors.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "mlp",
        about: "y = (silu(x wg^T) (x wu^T)) wd^T, adapters on all three; bound by memory at few rows",
        check: |s| {
            s.check(&["rows", "cols", "inter", "rank"], &["type"])?;
            if s.size("cols") == 0 || s.size("inter") == 0 {
                return Err(format!("{s}: cols and inter are at least 1"));
            }
            check_io(s)
        },
        space: |s, machine| {
            let (cols, inter) = (s.size("cols"), s.size("inter"));
            space([s.size("rows"), cols.max(inter), inter], machine)
        },
        cost: |s| {
            let [m, k, n, r] = ["rows", "cols", "inter", "rank"].map(|name| s.size(name) as u64);
            let e = io(s).bytes();
            Cost {
                flops: 6 * m * n * k + 6 * m * r * (k + n),
                int8_ops: 0,
                read_bytes: e * (m * k + 3 * n * k + 3 * r * (k + n)),
                write_bytes: e * m * k,
            }
        },
        cases: |s| {
            let small = at_most(s, &[("rows", 5), ("cols", 260), ("inter", 97)]);
            vec![small.clone(), small.with("rows", 1)]
        },
        problem,
        steps,
        rotated: &[0, 1, 2, 7, 12],
        reduces: &["THREADS_PER_TOKEN", "CHUNK"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,inter=1,rank=0,type=f32",
        "rows=0,cols=4,inter=4,rank=0,type=f32",
        "rows=5,cols=20,inter=300,rank=5,type=f32",
        "rows=2,cols=67,inter=37,rank=4,type=f16",
        "rows=1,cols=36,inter=33,rank=0,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, LINEAR, GATED, ("mlp.k", include_str!("mlp.k"))]);

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let [x, wg, wu, ag, bg, au, bu, wd, ad, bd, hr, h, y] = call.args.as_slice() else {
        return Err(Rejection::Constraint(format!("mlp takes 13 arguments, not {}", call.args.len())));
    };
    let [rows, cols, inter, rank] = ["rows", "cols", "inter", "rank"].map(|name| call.shape.size(name));
    let first = Linear { rows, cols, outs: inter, rank, scale: call.attrs.get("scale"), io: io(&call.shape) };
    let third = part(hr, 2, 3);
    let pair = Slice { len: 2 * third.len, ..hr.clone() };
    let mut launches = gated(&OP.text, &first, [x, wg, wu, ag, bg, au, bu], [&pair, h], config, machine)?;
    if rows == 0 {
        return Ok(launches);
    }
    if rank > 0 {
        let inner = Linear { cols: inter, outs: rank, rank: 0, ..first };
        let args = [h, ad, &third].map(Slice::clone).to_vec();
        launches.push(inner.launch(&OP.text, "linear_hr", config)?.on(machine, args)?);
    }
    let last = Linear { cols: inter, outs: cols, ..first };
    let args = [h, wd, bd, &third, y].map(Slice::clone).to_vec();
    launches.push(last.launch(&OP.text, "mlp_down", config)?.on(machine, args)?);
    Ok(launches)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let [rows, cols, inter, rank] = ["rows", "cols", "inter", "rank"].map(|name| shape.size(name));
    let (io, scale) = (io(shape), 0.75);
    let mut rng = Rng::new(seed);
    // A gate and a value a thousand times too large would leave f16 when multiplied.
    let mut x: Vec<f32> = data::floats(&mut rng, rows * cols, fill).iter().map(|v| v.clamp(-60.0, 60.0)).collect();
    let mut tensors = vec![weights(&mut rng, inter * cols, cols), weights(&mut rng, inter * cols, cols)];
    for _ in 0..2 {
        tensors.extend([weights(&mut rng, rank * cols, cols), weights(&mut rng, inter * rank, rank)]);
    }
    tensors.push(weights(&mut rng, cols * inter, inter));
    tensors.extend([weights(&mut rng, rank * inter, inter), weights(&mut rng, cols * rank, rank)]);
    let mut args = vec![Arg::In(data::rounded(&mut x, io))];
    args.extend(tensors.iter_mut().map(|v| Arg::In(data::rounded(v, io))));
    let y = if fill == Fill::Unjudged {
        Expected::float(io, vec![0.0; rows * cols], &vec![0.0; rows * cols])
    } else {
        let wide: Vec<Vec<f64>> = tensors.iter().map(|v| lift(v)).collect();
        let sizes = Sizes { cols, inter, rank, io, scale };
        let (shaken, narrow) = (lift::<Shaken>(&x), tensors.iter().map(|v| lift(v)).collect::<Vec<_>>());
        let draws = Shaken::draws(io, x.len(), || whole(&shaken, &narrow, &sizes));
        Expected::drawn(io, whole(&lift(&x), &wide, &sizes), &whole(&x, &tensors, &sizes), &draws)
    };
    args.extend([Arg::Scratch(3 * rows * rank * 4), Arg::Scratch(rows * inter * io.bytes() as usize), Arg::Out(y)]);
    let attrs = Attrs::new().with("scale", scale);
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}

struct Sizes {
    cols: usize,
    inter: usize,
    rank: usize,
    io: Dtype,
    scale: f64,
}

/// The reference on wg, wu, ag, bg, au, bu, wd, ad and bd.
fn whole<T: Real>(x: &[T], tensors: &[Vec<T>], s: &Sizes) -> Vec<T> {
    let h = both(x, tensors, [s.cols, s.inter, s.rank], s.scale);
    let h = reference::stored(&h, s.io);
    let (w, a, b) = (&tensors[6], &tensors[7], &tensors[8]);
    Lora { x: &h, w, bias: &[], a, b, adapter: &[], dims: [s.inter, s.cols, s.rank], scale: s.scale }.y()
}
