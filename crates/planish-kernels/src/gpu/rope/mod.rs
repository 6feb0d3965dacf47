//! `rope`: rotates queries and keys in place by position, normed by head where the model asks; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{lift, rope::Pairs};
use crate::rope_table::{Scaling, rope_table};
use reference::Turn;

/// Arguments: q `[tokens][heads][head_dim]` and k `[tokens][kv_heads][head_dim]` of the shape's type, positions u32
/// `[tokens]`, frequencies f32 `[dims / 2]` (of a `RopeTable`), then norm weights f32 `[head_dim]` of queries and of
/// keys where the field `norm` is 1. Attributes: `magnitude`, the factor of sine and cosine, and `eps` of the norm.
///
/// With `backward` 1 gradients are rotated back; behind a norm the gradient goes through `rms_norm_backward` next.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "rope",
        about: "rotates q and k by position, normed by head where the model asks; bound by memory",
        check,
        space,
        cost: |s| {
            let n = (s.size("tokens") * (s.size("heads") + s.size("kv_heads")) * s.size("head_dim")) as u64;
            Cost { flops: 3 * n, read_bytes: n * io(s).bytes(), write_bytes: n * io(s).bytes(), ..Cost::default() }
        },
        cases: |s| vec![s.clone().with("tokens", 3), s.clone().with("tokens", 1)],
        problem,
        steps,
        rotated: &[0, 1],
        reduces: &["THREADS", "HEADS"],
    },
    text: TEXT,
    shapes: &[
        "tokens=1,heads=1,kv_heads=1,head_dim=2,dims=2,norm=0,backward=0,pairs=halves,type=f32",
        "tokens=3,heads=5,kv_heads=1,head_dim=64,dims=64,norm=0,backward=0,pairs=halves,type=f32",
        "tokens=5,heads=3,kv_heads=3,head_dim=50,dims=26,norm=0,backward=1,pairs=neighbours,type=f32",
        "tokens=2,heads=4,kv_heads=2,head_dim=128,dims=128,norm=1,backward=0,pairs=halves,type=bf16",
        "tokens=3,heads=2,kv_heads=1,head_dim=256,dims=64,norm=1,backward=0,pairs=neighbours,type=f16",
        "tokens=2,heads=9,kv_heads=2,head_dim=80,dims=80,norm=0,backward=1,pairs=halves,type=f16",
    ],
};

const TEXT: Text = Text(&[IO, ("rope.k", include_str!("rope.k"))]);
/// Pairs for which the kernel has room.
const MOST_PAIRS: usize = 512;

fn pairs(s: &Shape) -> Option<Pairs> {
    match s.name("pairs") {
        "halves" => Some(Pairs::Halves),
        "neighbours" => Some(Pairs::Neighbours),
        _ => None,
    }
}

fn check(s: &Shape) -> Result<(), String> {
    s.check(&["tokens", "heads", "kv_heads", "head_dim", "dims", "norm", "backward"], &["pairs", "type"])?;
    let dims = s.size("dims");
    if dims == 0 || dims > s.size("head_dim") || !dims.is_multiple_of(2) || dims / 2 > MOST_PAIRS {
        return Err(format!("{s}: {dims} rotating elements are not even, in a head, and at most {}", 2 * MOST_PAIRS));
    }
    if s.size("norm") + s.size("backward") > 1 {
        return Err(format!("{s}: norm and backward are 0 or 1, and a gradient passes the norm in rms_norm_backward"));
    }
    pairs(s).ok_or_else(|| format!("{s}: pairs is halves or neighbours"))?;
    check_io(s)
}

fn space(_: &Shape, machine: &Machine<'_>) -> Space {
    Space {
        params: vec![
            ints("THREADS", "heads at once against the cost of a group", &[32, 64, 128, 256, 512]),
            ints("HEADS", "fewer sines against fewer groups", &[1, 4, 8, 16, 32, 128]),
        ],
        constraints: Vec::new(),
        default: Config::new().with("THREADS", Tier::on(machine).pick([128, 256, 256, 256])).with("HEADS", 16),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let s = &call.shape;
    let (threads, heads) = (knob(config, "THREADS")?, knob(config, "HEADS")?);
    let blocks = (s.size("heads") + s.size("kv_heads")).div_ceil(heads);
    let float = |v: f64| (v as f32).to_bits();
    let mut params: Vec<u32> = ["heads", "kv_heads", "head_dim"].map(|n| s.size(n) as u32).to_vec();
    params.push(s.size("dims") as u32 / 2);
    let turn = if s.size("backward") == 1 { -1.0 } else { 1.0 };
    params.extend([float(call.attrs.get("magnitude")), float(turn), float(call.attrs.get("eps"))]);
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "rope",
        constants: vec![
            ("THREADS", threads as i64),
            ("HEADS", heads as i64),
            ("PAIRS", i64::from(s.name("pairs") == "neighbours")),
            ("NORM", s.size("norm") as i64),
            ("IO", io_code(io(s))),
        ],
        params,
        groups: s.size("tokens") * blocks,
        threads,
        shared_bytes: 0,
    };
    let mut args = call.args.clone();
    // Without a norm nobody reads its weights.
    args.resize(6, args[3].clone());
    Ok(vec![launch.on(machine, args)?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (tokens, dim, io) = (shape.size("tokens"), shape.size("head_dim"), io(shape));
    let mut rng = Rng::new(seed);
    let pairs = pairs(shape).expect("shape was checked");
    let table = rope_table(shape.size("dims"), 10_000.0, None, Scaling::None, pairs).expect("dims were checked");
    let frequencies = table.frequencies_f32();
    // Ordinary positions count on from an offset; extreme ones restart, go back and end far out.
    let far = |t: usize| if t.is_multiple_of(3) { 131_071 - t as u32 } else { t as u32 % 3 };
    let positions: Vec<u32> = (0..tokens).map(|t| if fill == Fill::Extreme { far(t) } else { 11 + t as u32 }).collect();
    let (magnitude, eps) = (f64::from(1.2f32), f64::from(1e-6f32));
    let backward = shape.size("backward") == 1;
    let turn = Turn { head_dim: dim, frequencies: &frequencies, magnitude, pairs, backward };
    let norm = shape.size("norm") == 1;
    let (mut tensors, mut weights) = (Vec::new(), Vec::new());
    for heads in ["heads", "kv_heads"] {
        let mut x = data::floats(&mut rng, tokens * shape.size(heads) * dim, fill);
        let w = data::floats(&mut rng, dim, Fill::Random);
        let bytes = data::rounded(&mut x, io);
        let want = if fill == Fill::Unjudged {
            Expected::exact(io, vec![0.0; x.len()])
        } else {
            let (x64, w64) = (lift::<f64>(&x), lift::<f64>(&w));
            let y64 = reference::rope(&x64, &positions, norm.then_some((&w64[..], eps)), &turn);
            Expected::float(io, y64, &reference::rope(&x, &positions, norm.then_some((&w[..], eps)), &turn))
        };
        tensors.push(Arg::InOut(bytes, want));
        weights.extend(norm.then(|| Arg::In(data::bytes(&w))));
    }
    let mut args = tensors;
    args.extend([Arg::In(data::bytes_u32(&positions)), Arg::In(data::bytes(&frequencies))]);
    args.extend(weights);
    let attrs = Attrs::new().with("magnitude", magnitude).with("eps", eps);
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
