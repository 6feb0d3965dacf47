//! `prefill`: a chunk of tokens through a whole decoder-only model, products on the matrix unit; bound by arithmetic.

mod launch;
mod problem;

use planish_tune::{Config, Constraint, Space, Value};

use crate::gpu::GpuOp;
use crate::gpu::decode::model::{LayerAt, Model, ModelAt};
use crate::gpu::planes::{EIGHT, PLANES};
use crate::gpu::text::{GATE, IO, QUANT, REDUCE, Text, ints};
use crate::op::{Dtype, Machine, Op, OpCall};
use crate::quant::WeightType;
pub use launch::{PrefillMemory, launches};

/// Arguments: those of `decode`, then words, weights and rows, as `PrefillMemory` says.
///
/// The shape's fields are those of `decode`, but for the keys: `past` positions are in the cache before, `count` tokens
/// come, and launches are for `chunk` of them.
/// Products take f16 or f32 on both sides, as `io` says; sums and the residual are of f32.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "prefill",
        about: "embedding, decoder layers and, for the last, head for a chunk of tokens; bound by arithmetic",
        check: problem::check,
        space: |s, machine| space((&problem::model(s), &problem::places(s)), machine),
        cost: problem::cost,
        cases: |s| vec![s.clone()],
        problem: problem::problem,
        steps: |call: &OpCall, config, machine| problem::steps(call, config, machine),
        rotated: &[0],
        reduces: &["THREADS", "ATTEND", "BLOCK_K"],
    },
    text: Text(&[
        IO,
        QUANT,
        PLANES,
        EIGHT,
        REDUCE,
        GATE,
        ("prefill.k", include_str!("prefill.k")),
        ("attend.k", include_str!("attend.k")),
    ]),
    shapes: problem::SHAPES,
};

/// Rows of a tile of the matrix unit; chunks are whole ones.
pub const ROWS: usize = 16;
/// Threads of a group of attention.
const ATTEND_THREADS: usize = 128;

/// Type of rows and weights in a chunk.
///
/// It is f16 in the class of bytes, whose error is larger, where no weights are of f32.
/// Else it is f32, so that a chunk is as exact as its steps: products are then without the matrix unit.
pub fn io((model, at): (&Model, &ModelAt)) -> Dtype {
    let exact = |l: &LayerAt| l.qkv.iter().chain([&l.out, &l.gate_up, &l.down]).any(|m| m.ty == WeightType::F32);
    if model.int8 && !at.layers.iter().any(exact) { Dtype::F16 } else { Dtype::F32 }
}

/// Elements of a head in whole tiles of the matrix unit.
fn head_size(model: &Model) -> usize {
    model.head_dim.next_multiple_of(ROWS)
}

/// Threadgroup bytes of attention on the matrix unit with tiles of `keys` keys.
fn attend_bytes(model: &Model, keys: usize) -> usize {
    2 * 2 * keys * (head_size(model) + 8) + 4 * ROWS * (4 * (keys + 2) + 2 * (keys + 8) + 4)
}

/// What may be tried for `model` on `machine`; products follow the space of `gemm`.
pub fn space((model, at): (&Model, &ModelAt), machine: &Machine<'_>) -> Space {
    let limits = machine.backend.limits();
    let (most, bytes, m) = (i64::from(limits.max_threads), limits.shared_bytes as usize, *model);
    let attends: &[&str] = if io((model, at)) == Dtype::F16 { &["tiles", "plain"] } else { &["plain"] };
    let fits = move |keys: usize| attend_bytes(&m, keys) <= bytes;
    // Sixteen are a little faster in small models, and too far from the expected logits of one of the golden ones.
    let keys: &[i64] = if fits(32) { &[32, 64] } else { &[16] };
    Space {
        params: vec![
            ints("THREADS", "threads of a norm's row against a longer reduction", &[128, 256, 512]),
            planish_tune::Param {
                name: "ATTEND",
                trades: "the matrix unit against sums in f32",
                values: attends.iter().map(|v| Value::from(*v)).collect(),
            },
            ints("BLOCK_K", "keys of a step: barriers against threadgroup memory", keys),
        ],
        constraints: vec![
            Constraint::new(format!("THREADS <= {most}"), move |c| c.int("THREADS").is_some_and(|n| n <= most)),
            Constraint::new(format!("threadgroup bytes of attention <= {bytes}"), move |c| {
                c.int("BLOCK_K").is_some_and(|n| fits(n as usize))
            }),
        ],
        default: Config::new().with("THREADS", 128).with("ATTEND", attends[0]).with("BLOCK_K", keys[0]),
    }
}
