//! `swiglu_linear`: h = silu(x wg^T) (x wu^T), each product with an adapter or none; bound by memory at few rows.

pub mod reference;

use planish_device::{Launch, Slice};
use planish_tune::{Config, Constraint, Rejection, Space};

use super::lora::reference::Lora;
use super::lora::weights;
use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, Text, at_most, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{Shaken, lift};

/// Arguments: x `[rows][cols]`, wg and wu `[outs][cols]`, ag `[rank][cols]`, bg `[outs][rank]`, au and bu alike, scratch
/// f32 `[2][rows][rank]`, h `[rows][outs]`; attribute `scale`; `rank=0` is without adapters.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "swiglu_linear",
        about: "h = silu(x wg^T) (x wu^T), adapters on both; bound by memory at few rows",
        check: |s| {
            s.check(&["rows", "cols", "outs", "rank"], &["type"])?;
            if s.size("cols") == 0 || s.size("outs") == 0 {
                return Err(format!("{s}: cols and outs are at least 1"));
            }
            check_io(s)
        },
        space: |s, machine| space([s.size("rows"), s.size("cols"), s.size("outs")], machine),
        cost: |s| {
            let [m, k, n, r] = ["rows", "cols", "outs", "rank"].map(|name| s.size(name) as u64);
            let e = io(s).bytes();
            Cost {
                flops: 4 * m * n * k + 4 * m * r * (k + n),
                int8_ops: 0,
                read_bytes: e * (m * k + 2 * n * k + 2 * r * (k + n)),
                write_bytes: e * m * n,
            }
        },
        cases: |s| {
            let small = at_most(s, &[("rows", 5), ("cols", 260), ("outs", 97)]);
            vec![small.clone(), small.with("rows", 1)]
        },
        problem,
        steps,
        rotated: &[0, 1, 2, 8],
        reduces: &["THREADS_PER_TOKEN", "CHUNK"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,outs=1,rank=0,type=f32",
        "rows=0,cols=4,outs=4,rank=0,type=f32",
        "rows=5,cols=300,outs=11,rank=5,type=f32",
        "rows=2,cols=67,outs=37,rank=16,type=f16",
        "rows=1,cols=524,outs=5,rank=0,type=f32",
        "rows=1,cols=8,outs=65,rank=3,type=bf16",
    ],
};

/// The text of rows times rows.
pub(super) const LINEAR: (&str, &str) = ("linear.k", include_str!("../include/linear.k"));
/// The text of this op.
pub(super) const GATED: (&str, &str) = ("swiglu_linear.k", include_str!("swiglu_linear.k"));
const TEXT: Text = Text(&[IO, LINEAR, GATED]);

/// What may be tried for `rows` rows of at most `cols` columns and `inter` gated values.
pub(super) fn space([rows, cols, inter]: [usize; 3], machine: &Machine<'_>) -> Space {
    let limits = machine.backend.limits();
    let shared = i64::from(limits.shared_bytes);
    let upto = |most: usize, values: &[i64]| -> Vec<i64> {
        let most = (most as i64).max(values[0]);
        values.iter().copied().filter(|v| *v <= most).collect()
    };
    let threads = upto(limits.max_threads as usize, &[32, 64, 128, 256, 512, 1024]);
    let (chunks, tokens) = (upto(cols.next_power_of_two(), &[256, 512, 1024, 2048, 4096]), upto(rows, &[1, 2, 4]));
    let seed = Tier::on(machine).pick(if inter < 2048 { [1024, 2048, 2048, 2048] } else { [2048, 4096, 4096, 4096] });
    let chunk = seed.min(chunks[chunks.len() - 1]);
    let held = tokens.iter().rev().find(|t| **t * chunk * 4 <= shared).copied();
    let narrow = Tier::on(machine).pick(if inter < 2048 { [128, 256, 512, 512] } else { [256, 256, 512, 512] });
    Space {
        params: vec![
            ints("THREADS_PER_TOKEN", "outputs that share staged rows against groups in flight", &threads),
            ints("CHUNK", "fewer barriers against threadgroup memory", &chunks),
            ints("TOKENS", "reuse of weights against registers and threadgroup memory", &tokens),
        ],
        constraints: vec![Constraint::new(format!("shared_bytes <= {shared}"), move |c| {
            c.int("CHUNK").zip(c.int("TOKENS")).is_some_and(|(chunk, tokens)| 4 * chunk * tokens <= shared)
        })],
        default: Config::new().with("THREADS_PER_TOKEN", narrow).with("CHUNK", chunk).with("TOKENS", held.unwrap_or(1)),
    }
}

/// A linear map of rows: its sizes, and the scale of its adapter.
pub(super) struct Linear {
    /// Rows of x.
    pub rows: usize,
    /// Columns of x.
    pub cols: usize,
    /// Columns of the result.
    pub outs: usize,
    /// Rank of the adapter, or 0.
    pub rank: usize,
    /// Factor of the adapter.
    pub scale: f64,
    /// Type of tensors.
    pub io: Dtype,
}

impl Linear {
    /// The launch of `entry`, in which a SIMD group takes an output of TOKENS rows.
    pub(super) fn launch<'a>(
        &self,
        text: &'a Text,
        entry: &'a str,
        config: &Config,
    ) -> Result<KernelLaunch<'a>, Rejection> {
        let sizes = ["THREADS_PER_TOKEN", "CHUNK", "TOKENS"];
        let mut constants = Vec::new();
        for name in sizes {
            constants.push((name, knob(config, name)? as i64));
        }
        constants.push(("IO", io_code(self.io)));
        let (threads, tokens) = (knob(config, sizes[0])?, knob(config, sizes[2])?);
        let mut params = [self.rows, self.cols, self.outs, self.rank].map(|v| v as u32).to_vec();
        params.push((self.scale as f32).to_bits());
        let groups = self.outs.div_ceil(threads / 32) * self.rows.div_ceil(tokens);
        Ok(KernelLaunch { text, entry, constants, params, groups, threads, shared_bytes: 0 })
    }
}

/// Part `i` of `n` equal ones.
pub(super) fn part(slice: &Slice, i: usize, n: usize) -> Slice {
    let len = slice.len / n;
    Slice { buffer: slice.buffer.clone(), offset: slice.offset + i * len, len }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let [x, wg, wu, ag, bg, au, bu, hr, h] = call.args.as_slice() else {
        return Err(Rejection::Constraint(format!("swiglu_linear takes 9 arguments, not {}", call.args.len())));
    };
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| call.shape.size(name));
    let base = Linear { rows, cols, outs, rank, scale: call.attrs.get("scale"), io: io(&call.shape) };
    gated(&OP.text, &base, [x, wg, wu, ag, bg, au, bu], [hr, h], config, machine)
}

/// The launches that make `h`: with adapters, first those of their inner products in `hr`.
pub(super) fn gated(
    text: &Text,
    linear: &Linear,
    [x, wg, wu, ag, bg, au, bu]: [&Slice; 7],
    [hr, h]: [&Slice; 2],
    config: &Config,
    machine: &Machine<'_>,
) -> Result<Vec<Launch>, Rejection> {
    let mut launches = Vec::new();
    if linear.rows == 0 {
        return Ok(launches);
    }
    let hrs = [part(hr, 0, 2), part(hr, 1, 2)];
    if linear.rank > 0 {
        let inner = Linear { outs: linear.rank, rank: 0, ..*linear };
        for (a, hr) in [ag, au].into_iter().zip(&hrs) {
            let args = vec![x.clone(), a.clone(), hr.clone()];
            launches.push(inner.launch(text, "linear_hr", config)?.on(machine, args)?);
        }
    }
    let [hg, hu] = &hrs;
    let args = [x, wg, wu, bg, bu, hg, hu, h].map(Slice::clone).to_vec();
    launches.push(linear.launch(text, "swiglu_linear", config)?.on(machine, args)?);
    Ok(launches)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| shape.size(name));
    let (io, dims, scale) = (io(shape), [cols, outs, rank], 0.75);
    let mut rng = Rng::new(seed);
    // A gate and a value a thousand times too large would leave f16 when multiplied.
    let mut x: Vec<f32> = data::floats(&mut rng, rows * cols, fill).iter().map(|v| v.clamp(-60.0, 60.0)).collect();
    let mut tensors = vec![weights(&mut rng, outs * cols, cols), weights(&mut rng, outs * cols, cols)];
    for _ in 0..2 {
        tensors.extend([weights(&mut rng, rank * cols, cols), weights(&mut rng, outs * rank, rank)]);
    }
    let mut args = vec![Arg::In(data::rounded(&mut x, io))];
    args.extend(tensors.iter_mut().map(|v| Arg::In(data::rounded(v, io))));
    let h = if fill == Fill::Unjudged {
        Expected::float(io, vec![0.0; rows * outs], &vec![0.0; rows * outs])
    } else {
        let wide: Vec<Vec<f64>> = tensors.iter().map(|v| lift(v)).collect();
        let h64 = both(&lift(&x), &wide, dims, scale);
        let (shaken, narrow) = (lift::<Shaken>(&x), tensors.iter().map(|v| lift(v)).collect::<Vec<_>>());
        let draws = Shaken::draws(io, h64.len(), || both(&shaken, &narrow, dims, scale));
        Expected::drawn(io, h64, &both(&x, &tensors, dims, scale), &draws)
    };
    args.extend([Arg::Scratch(2 * rows * rank * 4), Arg::Out(h)]);
    let attrs = Attrs::new().with("scale", scale);
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}

/// The reference on wg, wu, ag, bg, au and bu.
pub(super) fn both<T: crate::reference::Real>(x: &[T], tensors: &[Vec<T>], dims: [usize; 3], scale: f64) -> Vec<T> {
    let map = |w: usize, a: usize, b: usize| {
        let (w, a, b) = (&tensors[w], &tensors[a], &tensors[b]);
        Lora { x, w, bias: &[], a, b, adapter: &[], dims, scale }
    };
    reference::swiglu_linear(&map(0, 2, 3), &map(1, 4, 5))
}
