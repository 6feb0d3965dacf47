//! `lora`: y = x w^T (+ bias) + scale (x a^T) b^T, one adapter or one of several a row; bound by compute.

pub mod reference;

use planish_device::{Launch, Slice};
use planish_tune::{Config, Constraint, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;
use reference::Lora;

/// Arguments: x `[rows][cols]`, w `[outs][cols]`, bias `[outs]`, a `[adapters][rank][cols]`, b `[adapters][outs][rank]`,
/// adapter u32 `[rows]`, hr f32 `[rows][rank]`, y `[rows][outs]`; attribute `scale`.
/// With `adapters=0` there is one for all rows and no list; with `bias=0` no bias; `rank=0` is the base alone.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "lora",
        about: "y = x w^T (+ bias) + scale (x a^T) b^T; bound by compute",
        check: |s| {
            s.check(&["rows", "cols", "outs", "rank", "adapters", "bias"], &["type"])?;
            let sizes = s.size("cols") > 0 && s.size("outs") > 0 && s.size("bias") < 2;
            if !sizes {
                return Err(format!("{s}: cols and outs are at least 1, bias is 0 or 1"));
            }
            check_io(s)
        },
        space: |s, machine| tiles([s.size("rows"), s.size("outs")], machine),
        cost,
        cases,
        problem,
        steps,
        rotated: &[0, 1, 3, 4, 6, 7],
        reduces: &["TILE_M", "TILE_N", "TILE_K"],
    },
    text: TEXT,
    shapes: &[
        "rows=1,cols=1,outs=1,rank=1,adapters=0,bias=0,type=f32",
        "rows=0,cols=8,outs=8,rank=4,adapters=0,bias=0,type=f32",
        "rows=15,cols=67,outs=31,rank=5,adapters=3,bias=1,type=f32",
        "rows=33,cols=40,outs=65,rank=0,adapters=0,bias=1,type=f32",
        "rows=9,cols=33,outs=23,rank=16,adapters=0,bias=0,type=f16",
        "rows=3,cols=129,outs=5,rank=37,adapters=2,bias=0,type=bf16",
    ],
};

/// The same with fewer rows, columns and outputs.
pub(super) fn cases(s: &Shape) -> Vec<Shape> {
    let least = |s: Shape, name, most| {
        let n = s.size(name).min(most) as i64;
        s.with(name, n)
    };
    let small = least(least(least(s.clone(), "rows", 33), "cols", 257), "outs", 97);
    vec![small.clone(), small.with("rows", 1)]
}

/// The text of tiles of a product.
pub(super) const TILE: (&str, &str) = ("lora_tile.k", include_str!("../include/lora_tile.k"));
/// The text of thin products.
pub(super) const SKINNY: (&str, &str) = ("skinny.k", include_str!("../include/skinny.k"));
/// Dot products that a SIMD group makes at once in it.
pub(super) const SKINNY_DOTS: usize = 4;

const TEXT: Text = Text(&[IO, TILE, SKINNY, ("lora.k", include_str!("lora.k"))]);

/// The tiles to try for a result of `rows` by `cols`: none is twice as large as the result.
pub(super) fn tiles([rows, cols]: [usize; 2], machine: &Machine<'_>) -> Space {
    let limits = machine.backend.limits();
    let upto = |n: usize, values: &[i64]| -> Vec<i64> {
        let most = (n.next_power_of_two() as i64).max(values[0]);
        values.iter().copied().filter(|v| *v <= most).collect()
    };
    let (rows, cols) = (upto(rows, &[16, 32, 64, 128]), upto(cols, &[32, 64]));
    let least = |seed: i64, values: &[i64]| seed.min(values[values.len() - 1]);
    let tier = Tier::on(machine);
    let default = Config::new()
        .with("TILE_M", least(tier.pick([32, 64, 64, 64]), &rows))
        .with("TILE_N", least(tier.pick([32, 32, 64, 64]), &cols))
        .with("TILE_K", 32);
    let (shared, threads) = (u64::from(limits.shared_bytes), u64::from(limits.max_threads));
    let holds = move |c: &Config, test: fn([u64; 3]) -> u64, most: u64| {
        let size = |name| c.int(name).map_or(u64::MAX, |v| v as u64);
        test([size("TILE_M"), size("TILE_N"), size("TILE_K")]) <= most
    };
    Space {
        params: vec![
            ints("TILE_M", "reuse of the right operand against threadgroup memory and idle last rows", &rows),
            ints("TILE_N", "reuse of the left operand against threadgroup memory and idle last columns", &cols),
            ints("TILE_K", "fewer barriers against threadgroup memory", &[16, 32]),
        ],
        constraints: vec![
            Constraint::new(format!("shared_bytes <= {shared}"), move |c| {
                holds(c, |[m, n, k]| 4 * k * (m + n + 2), shared)
            }),
            Constraint::new(format!("threads <= {threads}"), move |c| holds(c, |[m, n, _]| m * n / 16, threads)),
        ],
        default,
    }
}

/// A tile of a configuration, and the launches made of it.
pub(super) struct Tile {
    m: usize,
    n: usize,
    k: usize,
    io: Dtype,
}

impl Tile {
    /// The tile of `config` for values of type `io`.
    pub(super) fn of(config: &Config, io: Dtype) -> Result<Tile, Rejection> {
        Ok(Tile { m: knob(config, "TILE_M")?, n: knob(config, "TILE_N")?, k: knob(config, "TILE_K")?, io })
    }

    /// A launch of `entry` in `groups` groups.
    fn launch<'a>(&self, text: &'a Text, entry: &'a str, params: &[u32], groups: usize) -> KernelLaunch<'a> {
        let threads = self.m * self.n / 16;
        let sizes = [("TILE_M", self.m), ("TILE_N", self.n), ("TILE_K", self.k), ("THREADS", threads)];
        let constants = sizes.into_iter().map(|(name, v)| (name, v as i64)).chain([("IO", io_code(self.io))]).collect();
        KernelLaunch { text, entry, constants, params: params.to_vec(), groups, threads, shared_bytes: 0 }
    }

    /// The launch of `entry` on tiles of a result of `rows` by `cols`.
    pub(super) fn over<'a>(
        &self,
        text: &'a Text,
        entry: &'a str,
        params: &[u32],
        size: [usize; 2],
    ) -> KernelLaunch<'a> {
        self.launch(text, entry, params, size[0].div_ceil(self.m) * size[1].div_ceil(self.n))
    }

    /// The launch of `entry` on a thin result, SKINNY values of a row a SIMD group.
    pub(super) fn thin<'a>(
        &self,
        text: &'a Text,
        entry: &'a str,
        params: &[u32],
        size: [usize; 2],
    ) -> KernelLaunch<'a> {
        let tasks = size[0] * size[1].div_ceil(SKINNY_DOTS);
        self.launch(text, entry, params, (tasks * 32).div_ceil(self.m * self.n / 16))
    }
}

fn cost(s: &Shape) -> Cost {
    let [m, k, n, r] = ["rows", "cols", "outs", "rank"].map(|name| s.size(name) as u64);
    let adapters = if r == 0 { 0 } else { (s.size("adapters") as u64).max(1) };
    let e = io(s).bytes();
    Cost {
        flops: 2 * m * n * k + 2 * m * r * (k + n),
        int8_ops: 0,
        read_bytes: e * (m * k + n * k + adapters * r * (k + n)),
        write_bytes: e * m * n + 4 * m * r,
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let s = &call.shape;
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| s.size(name));
    if rows == 0 {
        return Ok(Vec::new());
    }
    let tile = Tile::of(config, io(s))?;
    let mut params = [rows, cols, outs, rank, s.size("adapters"), s.size("bias")].map(|v| v as u32).to_vec();
    params.push((call.attrs.get("scale") as f32).to_bits());
    let args = |which: &[usize]| -> Vec<Slice> { which.iter().map(|i| call.args[*i].clone()).collect() };
    let mut launches = Vec::new();
    if rank > 0 {
        launches.push(tile.thin(&OP.text, "lora_hr", &params, [rows, rank]).on(machine, args(&[0, 3, 5, 6]))?);
    }
    launches.push(tile.over(&OP.text, "lora", &params, [rows, outs]).on(machine, args(&[0, 1, 2, 4, 5, 6, 7]))?);
    Ok(launches)
}

/// Normal values scaled so that a sum of `n` products with values of unit variance has unit variance.
pub(super) fn weights(rng: &mut Rng, count: usize, n: usize) -> Vec<f32> {
    let scale = 1.0 / (n.max(1) as f32).sqrt();
    data::floats(rng, count, Fill::Random).iter().map(|v| v * scale).collect()
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let [rows, cols, outs, rank] = ["rows", "cols", "outs", "rank"].map(|name| shape.size(name));
    let (io, adapters) = (io(shape), shape.size("adapters"));
    let mut rng = Rng::new(seed);
    let sets = adapters.max(1);
    let mut x = data::floats(&mut rng, rows * cols, fill);
    let mut w = weights(&mut rng, outs * cols, cols);
    let mut bias = data::floats(&mut rng, outs * shape.size("bias"), Fill::Random);
    let mut a = weights(&mut rng, sets * rank * cols, cols);
    let mut b = weights(&mut rng, sets * outs * rank, rank);
    // Every third row or so has no adapter, in either of the numbers that say so.
    let pick = |rng: &mut Rng| match rng.below(sets as u64 + 2) as usize {
        n if n < sets => n as u32,
        n if n == sets => u32::MAX,
        _ => sets as u32,
    };
    let adapter: Vec<u32> = (0..if adapters > 0 { rows } else { 0 }).map(|_| pick(&mut rng)).collect();
    let ins = [&mut x, &mut w, &mut bias, &mut a, &mut b].map(|v| Arg::In(data::rounded(v, io)));
    let attrs = Attrs::new().with("scale", 0.75);
    let dims = [cols, outs, rank];
    let [hr, y] = if fill == Fill::Unjudged {
        let zeros = |dtype, n: usize| Expected::float(dtype, vec![0.0; n], &vec![0.0; n]);
        [zeros(Dtype::F32, rows * rank), zeros(io, rows * outs)]
    } else {
        let wide: [Vec<f64>; 5] = [&x, &w, &bias, &a, &b].map(|v| lift(v));
        let [x64, w64, bias64, a64, b64] = wide.each_ref().map(|v| v.as_slice());
        let exact = Lora { x: x64, w: w64, bias: bias64, a: a64, b: b64, adapter: &adapter, dims, scale: 0.75 };
        let plain = Lora { x: &x, w: &w, bias: &bias, a: &a, b: &b, adapter: &adapter, dims, scale: 0.75 };
        [Expected::f32(exact.hr(), &plain.hr()), Expected::float(io, exact.y(), &plain.y())]
    };
    let mut args = Vec::from(ins);
    args.extend([Arg::In(data::bytes_u32(&adapter)), Arg::Out(hr), Arg::Out(y)]);
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
