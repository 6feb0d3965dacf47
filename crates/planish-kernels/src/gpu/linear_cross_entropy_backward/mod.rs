//! `linear_cross_entropy_backward`: gradients of h, W and bias, a chunk of logits at a time; bound by arithmetic.

pub mod reference;

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection};

use crate::data::{self, Rng};
use crate::gpu::GpuOp;
use crate::gpu::cross_entropy::reference::Loss;
use crate::gpu::cross_entropy::shared::{self as loss, loss_of, words};
use crate::gpu::cross_entropy_backward::saved;
use crate::gpu::expect::outputs_drawn;
use crate::gpu::linear_cross_entropy::order;
use crate::gpu::linear_cross_entropy::shared::{self, Inputs, MOST_CHUNK, Tiles};
use crate::gpu::text::{IO, LINEAR_LOSS, LOSS, REDUCE, TANH, Text, io};
use crate::op::{Arg, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::{Real, Shaken, lift};
use reference::{Linear, linear_cross_entropy_backward};

/// Arguments: h `[tokens][hidden]`, w `[vocab][hidden]`, bias `[vocab]` where the field `bias` is 1, targets u32
/// `[tokens]`, lse f32 `[tokens]`, up f32 (`[tokens]` for reduction none, else `[1]`), total f32 `[2]` of the forward
/// pass, dh, then without the field `frozen` dw and with a bias dbias, then scratch: u32 `[tokens + 1]`, f32
/// `[tokens][chunk]`, f32 `[tokens][hidden]`. Attributes in `cross_entropy::shared`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "linear_cross_entropy_backward",
        about: "dh = G W, dW = G^T h with G of a chunk of logits at a time; bound by arithmetic",
        check: |s| loss::check(s, &["tokens", "hidden", "vocab", "bias", "frozen"]),
        space: shared::space,
        cost: |s| {
            let [tokens, hidden, vocab] = ["tokens", "hidden", "vocab"].map(|n| s.size(n) as u64);
            let (layer, live) = (vocab * hidden * io(s).bytes(), 1 - s.size("frozen") as u64);
            let rows = tokens * hidden * io(s).bytes();
            Cost {
                flops: (4 + 2 * live) * tokens * hidden * vocab,
                read_bytes: rows + layer,
                write_bytes: rows + live * layer,
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
        "tokens=1,hidden=1,vocab=1,bias=0,frozen=0,softcap=0,smooth=0,reduction=none,type=f32",
        "tokens=3,hidden=9,vocab=1063,bias=0,frozen=0,softcap=0,smooth=0,reduction=mean,type=f32",
        "tokens=37,hidden=17,vocab=131,bias=1,frozen=0,softcap=1,smooth=1,reduction=sum,type=f32",
        "tokens=2,hidden=33,vocab=65,bias=1,frozen=1,softcap=0,smooth=1,reduction=mean,type=f16",
        "tokens=70,hidden=16,vocab=67,bias=1,frozen=0,softcap=0,smooth=0,reduction=none,type=bf16",
    ],
};

pub(super) const TEXT: Text = Text(&[
    IO,
    REDUCE,
    TANH,
    LOSS,
    LINEAR_LOSS,
    ("linear_cross_entropy_backward.k", include_str!("linear_cross_entropy_backward.k")),
]);

/// The arguments by name; what a shape has not stands for an argument that nobody touches.
struct Args {
    h: Slice,
    w: Slice,
    bias: Slice,
    /// Targets, lse, up and total.
    saved: [Slice; 4],
    dh: Slice,
    dw: Slice,
    dbias: Slice,
    order: Slice,
    slopes: Slice,
    sums: Slice,
}

impl Args {
    fn of(call: &OpCall) -> Args {
        let (bias, live) = (call.shape.size("bias") == 1, call.shape.size("frozen") == 0);
        let mut next = call.args.iter().cloned();
        let mut take = || next.next().expect("a call has the arguments of its shape");
        let (h, w) = (take(), take());
        let bias_arg = if bias { take() } else { w.clone() };
        let saved = [take(), take(), take(), take()];
        let dh = take();
        let dw = if live { take() } else { dh.clone() };
        let dbias = if live && bias { take() } else { dh.clone() };
        Args { h, w, bias: bias_arg, saved, dh, dw, dbias, order: take(), slopes: take(), sums: take() }
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (s, o, tiles) = (&call.shape, loss_of(&call.shape, &call.attrs), Tiles::of(config)?);
    let [tokens, hidden, vocab] = ["tokens", "hidden", "vocab"].map(|n| s.size(n));
    let a = Args::of(call);
    if a.slopes.len < 4 * tokens * tiles.chunk.min(vocab) {
        return Err(Rejection::Constraint(format!("scratch holds a chunk of {}", tiles.chunk)));
    }
    let [targets, lse, up, total] = a.saved;
    let mut launches = vec![order(&OP.text, s, o.ignore).on(machine, vec![targets.clone(), a.order.clone()])?];
    for begin in (0..vocab).step_by(tiles.chunk) {
        let width = tiles.chunk.min(vocab - begin);
        let params = chunk_params(s, &o, (begin, width));
        let over = |entry, rows: usize, columns: usize| {
            let groups = rows.div_ceil(tiles.rows) * columns.div_ceil(tiles.columns);
            tiles.launch((&OP.text, entry), s, params.clone(), groups)
        };
        let copy = |args: &[&Slice]| args.iter().map(|a| (*a).clone()).collect::<Vec<_>>();
        let inputs = copy(&[&a.h, &a.w, &a.bias, &targets, &lse, &up, &total, &a.order, &a.slopes]);
        launches.push(over("chunk_slopes", tokens, width).on(machine, inputs)?);
        let inputs = copy(&[&a.slopes, &a.w, &a.order, &a.sums, &a.dh]);
        launches.push(over("chunk_dh", tokens, hidden).on(machine, inputs)?);
        if s.size("frozen") == 0 {
            let inputs = copy(&[&a.slopes, &a.h, &a.order, &a.dw, &a.dbias]);
            launches.push(over("chunk_dw", width, hidden).on(machine, inputs)?);
        }
    }
    Ok(launches)
}

fn chunk_params(s: &Shape, o: &Loss, (begin, width): (usize, usize)) -> Vec<u32> {
    let of = |name| s.size(name) as u32;
    let last = u32::from(begin + width == o.vocab);
    let mut params = vec![of("tokens"), of("hidden"), of("vocab"), begin as u32, width as u32, of("bias")];
    params.extend([o.reduction as u32, last]);
    params.extend(words(o));
    params
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let [tokens, hidden] = ["tokens", "hidden"].map(|n| shape.size(n));
    let (io, attrs) = (io(shape), loss::attrs(shape, fill));
    let o = loss_of(shape, &attrs);
    let mut rng = Rng::new(seed);
    let mut i = shared::inputs(&mut rng, shape, &o, fill);
    let back = saved(&mut rng, || i.logits(&o), &i.targets, (&o, fill));
    let mut args = std::mem::take(&mut i.args);
    args.extend(back.iter().map(|v| Arg::In(data::bytes(v))));
    let kinds = [(io, tokens * hidden), (io, o.vocab * hidden), (io, o.vocab)];
    let mut wanted = outputs_drawn(fill, kinds, || {
        let draws = Shaken::draws(io, tokens * hidden, || gradients(&i, &back, &o));
        (gradients(&i, &back, &o), gradients(&i, &back, &o), draws)
    });
    wanted.truncate(1 + (1 - shape.size("frozen")) * (1 + shape.size("bias")));
    args.extend(wanted);
    args.push(Arg::Scratch(4 * (tokens + 1)));
    args.push(Arg::Scratch(4 * tokens * o.vocab.min(MOST_CHUNK)));
    args.push(Arg::Scratch(4 * tokens * hidden));
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}

fn gradients<T: Real>(i: &Inputs, [lse, up, _]: &[Vec<f32>; 3], o: &Loss) -> [Vec<T>; 3] {
    let bias = i.bias.as_deref().map(lift::<T>);
    let (h, w, lse, up) = (lift(&i.h), lift(&i.w), lift(lse), lift(up));
    let targets = &i.targets;
    let linear = Linear { h: &h, w: &w, bias: bias.as_deref(), targets, lse: &lse, up: &up };
    linear_cross_entropy_backward(&linear, o)
}
