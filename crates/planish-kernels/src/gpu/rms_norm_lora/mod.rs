//! `rms_norm_lora`: y = n w^T + scale (n a^T) b^T with n the norm of x, never stored; bound by memory at few rows.

pub mod reference;

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection, Space};

use super::lora::reference::Lora;
use super::lora::weights;
use super::swiglu_linear::LINEAR;
use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, REDUCE, Text, at_most, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;

/// Arguments: x `[rows][cols]`, gamma f32 `[cols]`, w `[outs][cols]`, a `[rank][cols]`, b `[outs][rank]`, hr f32
/// `[rows][rank]`, y `[rows][outs]`; attributes `eps` and `scale`; `rank=0` is the base alone.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "rms_norm_lora",
        about: "y = n w^T + scale (n a^T) b^T, n = x rsqrt(mean(x^2) + eps) gamma; bound by memory at few rows",
        check: |s| {
            s.check(&["rows", "cols", "outs", "rank"], &["type"])?;
            if s.size("cols") == 0 || s.size("outs") == 0 {
                return Err(format!("{s}: cols and outs are at least 1"));
            }
            check_io(s)
        },
        space,
        cost: |s| {
            let [m, k, n, r] = ["rows", "cols", "outs", "rank"].map(|name| s.size(name) as u64);
            let e = io(s).bytes();
            Cost {
                flops: 4 * m * k + 2 * m * n * k + 2 * m * r * (k + n),
                int8_ops: 0,
                read_bytes: e * (m * k + n * k + r * (k + n)) + 4 * k,
                write_bytes: e * m * n + 4 * m * r,
            }
        },
        cases: |s| {
            let small = at_most(s, &[("rows", 5), ("cols", 260), ("outs", 97)]);
            vec![small.clone(), small.with("rows", 1)]
        },
        problem,
        steps,
        rotated: &[0, 2, 6],
        reduces: &["THREADS_PER_TOKEN", "TILED"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,outs=1,rank=1,type=f32",
        "rows=0,cols=4,outs=4,rank=0,type=f32",
        "rows=5,cols=1030,outs=7,rank=5,type=f32",
        "rows=2,cols=37,outs=67,rank=0,type=f32",
        "rows=6,cols=67,outs=35,rank=33,type=f16",
        "rows=1,cols=1024,outs=33,rank=4,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, REDUCE, LINEAR, ("rms_norm_lora.k", include_str!("rms_norm_lora.k"))]);

/// Columns staged at a time.
const CHUNK: usize = 1024;

/// Rows that share each read of a weight.
fn tokens(rows: usize) -> usize {
    if rows < 4 { 1 } else { 4 }
}

fn space(shape: &Shape, machine: &Machine<'_>) -> Space {
    let most = i64::from(machine.backend.limits().max_threads);
    let threads: Vec<i64> = [32, 64, 128, 256, 512, 1024].into_iter().filter(|t| *t <= most).collect();
    Space {
        params: vec![
            ints("THREADS_PER_TOKEN", "outputs that share staged rows against groups in flight", &threads),
            ints("TILED", "groups in flight against norms made anew", &[0, 1]),
        ],
        constraints: Vec::new(),
        default: Config::new()
            .with("THREADS_PER_TOKEN", Tier::on(machine).pick([128, 256, 512, 512]))
            .with("TILED", i64::from(shape.size("outs") > 256)),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let [x, gamma, w, a, b, hr, y] = call.args.as_slice() else {
        return Err(Rejection::Constraint(format!("rms_norm_lora takes 7 arguments, not {}", call.args.len())));
    };
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| call.shape.size(name));
    let (threads, tiled) = (knob(config, "THREADS_PER_TOKEN")?, knob(config, "TILED")?);
    let tokens = tokens(rows);
    let mut params = [rows, cols, outs, rank].map(|v| v as u32).to_vec();
    params.extend(["eps", "scale"].map(|name| (call.attrs.get(name) as f32).to_bits()));
    let sizes = [("THREADS_PER_TOKEN", threads), ("TILED", tiled), ("CHUNK", CHUNK), ("TOKENS", tokens)];
    let mut constants = sizes.map(|(name, v)| (name, v as i64)).to_vec();
    constants.push(("IO", io_code(io(&call.shape))));
    let launch = |entry, groups, args: &[&Slice]| {
        let (constants, params) = (constants.clone(), params.clone());
        let launch = KernelLaunch { text: &OP.text, entry, constants, params, groups, threads, shared_bytes: 0 };
        launch.on(machine, args.iter().map(|a| (*a).clone()).collect())
    };
    let blocks = rows.div_ceil(tokens);
    let mut launches = Vec::new();
    if rank > 0 && rows > 0 {
        launches.push(launch("rms_norm_lora_hr", blocks, &[x, gamma, a, hr])?);
    }
    if rows > 0 {
        let groups = blocks * if tiled > 0 { outs.div_ceil(threads / 32) } else { 1 };
        launches.push(launch("rms_norm_lora", groups, &[x, gamma, w, b, hr, y])?);
    }
    Ok(launches)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| shape.size(name));
    let (io, dims, scale, eps) = (io(shape), [cols, outs, rank], 0.75, f64::from(1e-5f32));
    let mut rng = Rng::new(seed);
    let mut x = data::floats(&mut rng, rows * cols, fill);
    if fill == Fill::Extreme {
        // A row of zeros has a finite norm.
        x.iter_mut().take(cols).for_each(|v| *v = 0.0);
    }
    let gamma = data::floats(&mut rng, cols, Fill::Random);
    let mut w = weights(&mut rng, outs * cols, cols);
    let mut a = weights(&mut rng, rank * cols, cols);
    let mut b = weights(&mut rng, outs * rank, rank);
    let mut args = vec![Arg::In(data::rounded(&mut x, io)), Arg::In(data::bytes(&gamma))];
    args.extend([&mut w, &mut a, &mut b].map(|v| Arg::In(data::rounded(v, io))));
    let [hr, y] = if fill == Fill::Unjudged {
        let zeros = |dtype, n: usize| Expected::float(dtype, vec![0.0; n], &vec![0.0; n]);
        [zeros(Dtype::F32, rows * rank), zeros(io, rows * outs)]
    } else {
        let n32 = reference::norm::<f32>(&x, &gamma, eps);
        let n64 = reference::norm::<f64>(&lift(&x), &lift(&gamma), eps);
        let [w64, a64, b64] = [&w, &a, &b].map(|v| lift::<f64>(v));
        let exact = Lora { x: &n64, w: &w64, bias: &[], a: &a64, b: &b64, adapter: &[], dims, scale };
        let plain = Lora { x: &n32, w: &w, bias: &[], a: &a, b: &b, adapter: &[], dims, scale };
        [Expected::f32(exact.hr(), &plain.hr()), Expected::float(io, exact.y(), &plain.y())]
    };
    args.extend([Arg::Out(hr), Arg::Out(y)]);
    let attrs = Attrs::new().with("eps", eps).with("scale", scale);
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
