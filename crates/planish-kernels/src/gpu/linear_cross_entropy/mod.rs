//! `linear_cross_entropy`: loss of the logits h W^T + bias without ever storing them; bound by arithmetic.

pub mod reference;
pub(super) mod shared;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use crate::data::Rng;
use crate::gpu::GpuOp;
use crate::gpu::cross_entropy::shared::{self as loss, loss_of, reduce, words};
use crate::gpu::text::{IO, KernelLaunch, LINEAR_LOSS, LOSS, REDUCE, TANH, Text, io};
use crate::op::{Arg, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;
use shared::{LEAST_CHUNK, PLAIN_THREADS, Tiles};

/// Arguments: h `[tokens][hidden]`, w `[vocab][hidden]`, bias `[vocab]` where the field `bias` is 1, targets u32
/// `[tokens]`, loss and lse f32 `[tokens]`, total f32 `[2]` (the reduced loss, and how many tokens count), scratch u32
/// `[tokens + 1]`, scratch f32 `[chunks][tokens][4]`. Attributes in `cross_entropy::shared`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "linear_cross_entropy",
        about: "loss = lse - c_t of h W^T, logits never stored; bound by arithmetic",
        check: |s| loss::check(s, &["tokens", "hidden", "vocab", "bias"]),
        space: shared::space,
        cost: |s| {
            let [tokens, hidden, vocab] = ["tokens", "hidden", "vocab"].map(|n| s.size(n) as u64);
            Cost {
                flops: 2 * tokens * hidden * vocab,
                read_bytes: (tokens + vocab) * hidden * io(s).bytes(),
                write_bytes: 8 * tokens,
                ..Cost::default()
            }
        },
        cases: shared::cases,
        problem,
        steps,
        rotated: &[0, 1],
        reduces: &["THREADS", "TILE_M", "CHUNK"],
    },
    text: TEXT,
    shapes: &[
        "tokens=1,hidden=1,vocab=1,bias=0,softcap=0,smooth=0,reduction=none,type=f32",
        "tokens=3,hidden=9,vocab=1063,bias=0,softcap=0,smooth=0,reduction=mean,type=f32",
        "tokens=37,hidden=17,vocab=131,bias=1,softcap=1,smooth=1,reduction=sum,type=f32",
        "tokens=2,hidden=33,vocab=65,bias=0,softcap=0,smooth=1,reduction=mean,type=f16",
        "tokens=70,hidden=16,vocab=67,bias=1,softcap=0,smooth=0,reduction=mean,type=bf16",
    ],
};

const TEXT: Text =
    Text(&[IO, REDUCE, TANH, LOSS, LINEAR_LOSS, ("linear_cross_entropy.k", include_str!("linear_cross_entropy.k"))]);

/// The launch that orders tokens; its arguments are targets and order.
pub(super) fn order<'a>(text: &'a Text, s: &Shape, ignore: u32) -> KernelLaunch<'a> {
    shared::plain((text, "order_tokens"), vec![s.size("tokens") as u32, s.size("vocab") as u32, ignore], 1)
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (s, o, tiles) = (&call.shape, loss_of(&call.shape, &call.attrs), Tiles::of(config)?);
    let [tokens, vocab] = ["tokens", "vocab"].map(|n| s.size(n));
    let mut args = call.args.clone();
    if s.size("bias") == 0 {
        args.insert(2, args[1].clone());
    }
    let [h, w, bias, targets, loss, lse, total, places, parts] = &args[..] else {
        unreachable!("the op has nine arguments, or eight without a bias")
    };
    let chunks = vocab.div_ceil(tiles.chunk);
    if parts.len < 16 * chunks * tokens {
        return Err(Rejection::Constraint(format!("scratch holds {chunks} chunks")));
    }
    let [scale, cap, smooth, z] = words(&o);
    let of = |name| s.size(name) as u32;
    let chunk = vec![of("tokens"), of("hidden"), of("vocab"), tiles.chunk as u32, of("bias"), scale, cap];
    let merge = vec![of("tokens"), of("vocab"), chunks as u32, smooth, z];
    let copy = |args: &[&planish_device::Slice]| args.iter().map(|a| (*a).clone()).collect::<Vec<_>>();
    let groups = tokens.div_ceil(tiles.rows) * chunks;
    let text = &OP.text;
    let constants = shared::plain((text, ""), Vec::new(), 0).constants;
    Ok(vec![
        order(text, s, o.ignore).on(machine, copy(&[targets, places]))?,
        tiles
            .launch((text, "chunk_loss"), s, chunk, groups)
            .on(machine, copy(&[h, w, bias, targets, places, parts]))?,
        shared::plain((text, "merge_loss"), merge, tokens.div_ceil(PLAIN_THREADS))
            .on(machine, copy(&[parts, places, loss, lse]))?,
        reduce(text, constants, tokens, &o).on(machine, copy(&[loss, targets, total]))?,
    ])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let tokens = shape.size("tokens");
    let attrs = loss::attrs(shape, fill);
    let o = loss_of(shape, &attrs);
    let mut i = shared::inputs(&mut Rng::new(seed), shape, &o, fill);
    let mut args = std::mem::take(&mut i.args);
    args.extend(loss::outputs(fill, tokens, (2e-5, o.reduction), || {
        let bias = i.bias.as_deref();
        let (h, w, bias64) = (lift::<f64>(&i.h), lift::<f64>(&i.w), bias.map(lift::<f64>));
        (
            reference::linear_cross_entropy(&h, &w, bias64.as_deref(), &i.targets, &o),
            reference::linear_cross_entropy(&i.h, &i.w, bias, &i.targets, &o),
        )
    }));
    args.push(Arg::Scratch(4 * (tokens + 1)));
    args.push(Arg::Scratch(16 * tokens * o.vocab.div_ceil(LEAST_CHUNK)));
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
