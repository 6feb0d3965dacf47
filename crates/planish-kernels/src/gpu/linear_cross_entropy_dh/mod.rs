//! `linear_cross_entropy_dh`: loss of the logits h W^T + bias and its gradient by h in one go; bound by arithmetic.
//!
//! The portable variant is the launches of `linear_cross_entropy` and of `linear_cross_entropy_backward` with a frozen W,
//! which makes the logits twice; the one on warpgroups makes them once.

pub mod reference;
mod wgmma;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::cross_entropy::reference::{Loss, Reduction};
use crate::gpu::cross_entropy::shared::{self as loss, loss_of};
use crate::gpu::expect::judged;
use crate::gpu::linear_cross_entropy::reference::linear_cross_entropy;
use crate::gpu::linear_cross_entropy::shared::{self, LEAST_CHUNK, MOST_CHUNK};
use crate::gpu::linear_cross_entropy_backward::reference::Linear;
use crate::gpu::text::io;
use crate::gpu::wgmma::native;
use crate::gpu::{linear_cross_entropy, linear_cross_entropy_backward};
use crate::op::{Arg, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{Shaken, lift};

/// Arguments: h `[tokens][hidden]`, w `[vocab][hidden]`, bias `[vocab]` where the field `bias` is 1, targets u32
/// `[tokens]`, up f32 (`[tokens]` for reduction none, else `[1]`), loss and lse f32 `[tokens]`, total f32 `[2]` (the reduced
/// loss, and how many tokens count), dh `[tokens][hidden]`, then scratch: u32 `[tokens + 1]`, f32 `[chunks][tokens][4]`,
/// f32 `[tokens][chunk]`, f32 `[tokens][hidden]`, f32 `[3][tokens]`. Attributes in `cross_entropy::shared`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "linear_cross_entropy_dh",
        about: "loss = lse - c_t of h W^T and dh = G W in one go, logits never stored; bound by arithmetic",
        check: |s| loss::check(s, &["tokens", "hidden", "vocab", "bias"]),
        space: |s, machine| wgmma::with(shared::space(s, machine), s, machine),
        cost: |s| {
            let [tokens, hidden, vocab] = ["tokens", "hidden", "vocab"].map(|n| s.size(n) as u64);
            let rows = tokens * hidden * io(s).bytes();
            Cost {
                flops: 4 * tokens * hidden * vocab,
                read_bytes: rows + vocab * hidden * io(s).bytes(),
                write_bytes: rows + 8 * tokens,
                ..Cost::default()
            }
        },
        cases: shared::cases,
        problem,
        steps,
        rotated: &[0, 1],
        reduces: &["VARIANT", "THREADS", "TILE_M", "CHUNK"],
    },
    text: linear_cross_entropy_backward::TEXT,
    shapes: &[
        "tokens=3,hidden=9,vocab=1063,bias=0,softcap=0,smooth=0,reduction=mean,type=f32",
        "tokens=37,hidden=17,vocab=131,bias=1,softcap=1,smooth=1,reduction=sum,type=f32",
        "tokens=35,hidden=72,vocab=300,bias=0,softcap=0,smooth=0,reduction=mean,type=bf16",
        "tokens=6,hidden=24,vocab=1031,bias=0,softcap=0,smooth=0,reduction=none,type=f16",
    ],
};

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    if native(config) {
        return wgmma::steps(call, config, machine);
    }
    let config =
        &config.iter().filter(|(name, _)| *name != "VARIANT").fold(Config::new(), |c, (n, v)| c.with(n, v.clone()));
    let (inputs, rest) = call.args.split_at(3 + call.shape.size("bias"));
    let [up, loss, lse, total, dh, order, parts, slopes, sums, _] = rest else {
        unreachable!("the op has ten arguments beside its inputs")
    };
    let of = |op, shape: Shape, more: &[&planish_device::Slice]| {
        let args = inputs.iter().chain(more.iter().copied()).cloned().collect();
        OpCall { op, shape, attrs: call.attrs.clone(), args }.steps(config, machine)
    };
    let mut launches = of(&linear_cross_entropy::OP.op, call.shape.clone(), &[loss, lse, total, order, parts])?;
    launches.extend(of(
        &linear_cross_entropy_backward::OP.op,
        call.shape.clone().with("frozen", 1),
        &[lse, up, total, dh, order, slopes, sums],
    )?);
    Ok(launches)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let ([tokens, hidden], io) = (["tokens", "hidden"].map(|n| shape.size(n)), io(shape));
    let attrs = loss::attrs(shape, fill);
    let o = loss_of(shape, &attrs);
    let mut rng = Rng::new(seed);
    let mut i = shared::inputs(&mut rng, shape, &o, fill);
    let n = if o.reduction == Reduction::None { tokens } else { 1 };
    let up: Vec<f32> = (0..n).map(|_| 1.0 + 0.5 * rng.unit()).collect();
    let mut args = std::mem::take(&mut i.args);
    args.push(Arg::In(data::bytes(&up)));
    let bias = i.bias.as_deref();
    let (h, w, bias64, up64) = (lift::<f64>(&i.h), lift::<f64>(&i.w), bias.map(lift::<f64>), lift::<f64>(&up));
    let exact = Linear { h: &h, w: &w, bias: bias64.as_deref(), targets: &i.targets, lse: &[], up: &up64 };
    let plain = Linear { h: &i.h, w: &i.w, bias, targets: &i.targets, lse: &[], up: &up };
    args.extend(loss::outputs(fill, tokens, (2e-5, o.reduction), || {
        let of = |o: &Loss| linear_cross_entropy(&h, &w, bias64.as_deref(), &i.targets, o);
        (of(&o), linear_cross_entropy(&i.h, &i.w, bias, &i.targets, &o))
    }));
    args.extend(judged(fill, [(io, tokens * hidden)], || {
        let (dh, rounded) = (reference::gradient(&exact, &o, |slope| slope), |slope| data::nearest(slope, io));
        let (h, w, bias, up) = (lift(&i.h), lift(&i.w), bias.map(lift), lift(&up));
        let shaken = Linear { h: &h, w: &w, bias: bias.as_deref(), targets: &i.targets, lse: &[], up: &up };
        let draws = Shaken::draws(io, dh.len(), || reference::gradient::<Shaken>(&shaken, &o, |slope| slope));
        let ceilings: Vec<f64> = reference::magnitudes(&exact, &o).iter().map(|m| 1e-5 * m).collect();
        [Expected::drawn_below(io, dh, (&reference::gradient(&plain, &o, rounded), &draws), &ceilings)]
    }));
    args.push(Arg::Scratch(4 * (tokens + 1)));
    args.push(Arg::Scratch(16 * tokens * o.vocab.div_ceil(LEAST_CHUNK)));
    args.push(Arg::Scratch((4 * tokens * o.vocab.min(MOST_CHUNK)).max(wgmma::chunk_bytes(tokens, o.vocab))));
    args.push(Arg::Scratch(4 * tokens * hidden));
    args.push(Arg::Scratch(12 * tokens));
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
