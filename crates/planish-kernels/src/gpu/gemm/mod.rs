//! `gemm`: C = α A Bᵀ + β C; bound by arithmetic, or by memory where a side is short.

pub mod reference;
mod vendor;
mod wgmma;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::text::{IO, KernelLaunch, Text, check_io, io_code};
use crate::gpu::tiles::{self, Product, TILE, WALK};
use crate::gpu::wgmma::NAME;
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use reference::Gemm;

/// Arguments: A and B of the shape's type, C `[m][n]` of its field `out`, which is the same or f32; attributes `alpha` and
/// `beta`.
///
/// `layout` is `nt` for A `[m][k]` and B `[n][k]`, `nn` for B `[k][n]`, `tn` for A `[k][m]` and B `[k][n]`: the products
/// A Bᵀ, A B and Aᵀ B of the matrices as stored.
/// With `beta` zero, C is written only.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "gemm",
        about: "C = alpha A B^T + beta C; bound by arithmetic, or by memory where a side is short",
        check,
        space: |s, machine| vendor::with(own(s, machine), s, machine),
        cost: |s| {
            let (m, n, k, bytes) = (s.size("m") as u64, s.size("n") as u64, s.size("k") as u64, product(s).io.bytes());
            Cost {
                flops: 2 * m * n * k,
                read_bytes: bytes * k * (m + n),
                write_bytes: types(s).out.bytes() * m * n,
                ..Cost::default()
            }
        },
        cases,
        problem,
        steps,
        rotated: &[0, 1, 2],
        reduces: &["VARIANT"],
    },
    text: Text(&[IO, TILE, WALK, ("gemm.k", include_str!("gemm.k"))]),
    shapes: &[
        "m=1,n=1,k=1,layout=nt,out=f32,type=f32",
        "m=7,n=65,k=31,layout=nt,out=f32,type=f32",
        "m=300,n=37,k=12,layout=nn,out=f32,type=f32",
        "m=64,n=128,k=64,layout=nt,out=f32,type=f32",
        "m=33,n=34,k=37,layout=tn,out=f32,type=f32",
        "m=128,n=64,k=32,layout=nt,out=f16,type=f16",
        "m=65,n=33,k=99,layout=nn,out=f16,type=f16",
        "m=64,n=64,k=64,layout=tn,out=f16,type=f16",
        "m=2,n=257,k=40,layout=nt,out=bf16,type=bf16",
        "m=70,n=264,k=136,layout=nt,out=f32,type=f16",
        "m=139,n=72,k=88,layout=nn,out=bf16,type=bf16",
        "m=5,n=3,k=0,layout=nt,out=f32,type=f32",
    ],
};

/// What may be tried of kernels of our own.
pub fn own(shape: &Shape, machine: &Machine<'_>) -> Space {
    wgmma::with(tiles::space(product(shape), machine), shape, machine)
}

/// Types of a checked shape.
struct GemmTypes {
    /// Of A and B.
    io: Dtype,
    /// Of C.
    out: Dtype,
}

fn types(shape: &Shape) -> GemmTypes {
    let [io, out] = ["type", "out"].map(|name| Dtype::float(shape.name(name)).expect("shape was checked"));
    GemmTypes { io, out }
}

fn product(shape: &Shape) -> Product {
    let io = types(shape).io;
    let matrix_unit = io != Dtype::F32;
    Product { m: shape.size("m"), n: shape.size("n"), k: shape.size("k"), io, matrix_unit }
}

/// Whether A, and whether B, is stored by columns.
fn turned(shape: &Shape) -> [bool; 2] {
    let layout = shape.name("layout");
    [layout == "tn", layout != "nt"]
}

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["m", "n", "k"], &["type", "out", "layout"])?;
    if !["nt", "nn", "tn"].contains(&shape.name("layout")) {
        return Err(format!("{shape}: layout is nt, nn or tn"));
    }
    check_io(shape)?;
    if !["f32", shape.name("type")].contains(&shape.name("out")) {
        return Err(format!("{shape}: out is f32 or the type"));
    }
    let [m, n, k] = ["m", "n", "k"].map(|n| shape.size(n));
    // Kernels count elements in 32 bits.
    match [m * n, m * k, n * k].iter().max() {
        Some(most) if *most <= u32::MAX as usize && m > 0 && n > 0 => Ok(()),
        _ => Err(format!("{shape}: outputs are empty, or a matrix has 2^32 elements")),
    }
}

/// The shape itself (smaller where it is large, with the same rests by the tiles), one row, and tails everywhere.
///
/// Of a shape in 16 bits whose rows are whole 16 bytes, rows of the cases are too: a variant is for such alone.
fn cases(shape: &Shape) -> Vec<Shape> {
    let gated = |name: &str, most: usize| {
        let n = shape.size(name);
        if n <= most { n } else { most - 128 + n % 128 }
    };
    let with = |m: usize, n: usize, k: usize| wgmma::resized(shape, [("m", m), ("n", n), ("k", k)]);
    vec![with(gated("m", 384), gated("n", 384), gated("k", 2048)), with(1, 130, 31), with(67, 33, 65)]
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let product = product(&call.shape);
    let float = |name: &str| (call.attrs.get(name) as f32).to_bits();
    let [alpha, beta] = ["alpha", "beta"].map(float);
    let params = vec![product.m as u32, product.n as u32, product.k as u32, alpha, beta];
    match config.name("VARIANT") {
        Some(NAME) => return wgmma::steps(call, config, params, machine),
        Some(vendor::NAME) => return vendor::steps(call, [alpha, beta], machine),
        _ => {}
    }
    let spread = tiles::spread(config, &product)?;
    let [a, b] = turned(&call.shape).map(i64::from);
    let mut constants = spread.constants;
    constants.extend([("TURN_A", a), ("TURN_B", b), ("OUT", io_code(types(&call.shape).out))]);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "gemm",
        constants,
        params,
        groups: spread.groups,
        threads: spread.threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (p, out) = (product(shape), types(shape).out);
    let mut rng = Rng::new(seed);
    let mut a = data::floats(&mut rng, p.m * p.k, fill);
    let mut b = data::floats(&mut rng, p.n * p.k, Fill::Random);
    let mut c = data::floats(&mut rng, p.m * p.n, Fill::Random);
    let [bytes_a, bytes_b] = [&mut a, &mut b].map(|v| data::rounded(v, p.io));
    let bytes_c = data::rounded(&mut c, out);
    // Extreme products update C, others must not look at it; alpha keeps f16 in range.
    let (alpha, beta) = if fill == Fill::Extreme { (-0.125, 1.5) } else { (1.0, 0.0) };
    let expected = if fill == Fill::Unjudged {
        Expected::exact(out, vec![0.0; p.m * p.n])
    } else {
        let (sizes, turned) = ([p.m, p.n, p.k], turned(shape));
        let exact = |v: &[f32], of: fn(f32) -> f32| v.iter().map(|v| f64::from(of(*v))).collect::<Vec<f64>>();
        let in_f64 = |of: fn(f32) -> f32| {
            let (a, b, c) = (exact(&a, of), exact(&b, of), exact(&c, of));
            let scale = |v: f64| f64::from(of(v as f32));
            reference::gemm(&Gemm { sizes, turned, alpha: scale(alpha), beta: scale(beta), a: &a, b: &b, c: &c })
        };
        let plain = Gemm { sizes, turned, alpha: alpha as f32, beta: beta as f32, a: &a, b: &b, c: &c };
        Expected::sums(out, in_f64(|v| v), &reference::gemm(&plain), &in_f64(f32::abs))
    };
    let out = if beta == 0.0 { Arg::Out(expected) } else { Arg::InOut(bytes_c, expected) };
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("alpha", alpha).with("beta", beta),
        args: vec![Arg::In(bytes_a), Arg::In(bytes_b), out],
        label: format!("{fill:?} seed={seed}"),
    }
}
