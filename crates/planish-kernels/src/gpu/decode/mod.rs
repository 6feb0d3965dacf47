//! `decode`: one token through a whole decoder-only model, as a launch a phase, a layer or a token; bound by memory.

mod launch;
pub mod model;
mod phases;
pub(crate) mod problem;
pub(crate) mod reference;
pub mod stamped;

use planish_tune::{Config, Constraint, Param, Rejection, Space, Value};

use crate::gpu::planes::{self, ALIGN, PLANES, Planes, TILE};
use crate::gpu::text::{GATE, QUANT, REDUCE, Text, ints, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Machine, Op, OpCall};
pub use launch::{Draw, Sampler, head, step};
use model::{At, GROUPS_MAX, Model, ModelAt, ROWS_MAX, SPLITS_MAX};

/// Arguments: arena, table, step, rope angles, keys, values, work, logits, a word for the barrier, as `model::Memory` says.
///
/// The shape's fields are a small model's; `a+b` for a type is a in even layers and b in odd ones.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "decode",
        about: "embedding, decoder layers and head for one token, one launch a phase, a layer or a token; bound by memory",
        check: problem::check,
        space: |s, machine| space((&problem::model(s), &problem::places(s)), machine),
        cost: problem::cost,
        cases: |s| vec![s.clone()],
        problem: problem::problem,
        steps: |call: &OpCall, config, machine| problem::steps(call, config, machine),
        rotated: &[0, 4, 5],
        reduces: &["THREADS", "SPLITS", "CROSS"],
    },
    text: Text(&[
        QUANT,
        PLANES,
        REDUCE,
        GATE,
        BEST,
        DECODE,
        PRODUCTS,
        STEPS,
        ATTEND,
        ("decode_kernels.k", phases::TEXT),
    ]),
    shapes: problem::SHAPES,
};

/// The same phases in a grid that leaves times; its kernels are in no path and no store.
pub(crate) const STAMPED: Text =
    Text(&[QUANT, PLANES, REDUCE, GATE, BEST, DECODE, PRODUCTS, STEPS, ATTEND, ("decode_stamped.k", phases::STAMPED)]);

/// Constants and stages, products, and the functions of phases, those of attention among them.
const DECODE: (&str, &str) = ("decode.k", include_str!("decode.k"));
const PRODUCTS: (&str, &str) = ("products.k", include_str!("products.k"));
const STEPS: (&str, &str) = ("steps.k", include_str!("steps.k"));
const ATTEND: (&str, &str) = ("attend.k", include_str!("attend.k"));
/// What the head and the drawing of a token share.
const BEST: (&str, &str) = ("best.k", include_str!("best.k"));
/// The text that draws a token, apart from the other: it is the same for every model and configuration.
pub(crate) const DRAW: Text = Text(&[BEST, PICK]);

const PICK: (&str, &str) = ("draw.k", include_str!("draw.k"));

/// Threads that the host executor keeps resident here: each has a stack.
const HOST_RESIDENT: usize = 2048;
/// Who makes the copies of weights, as the text numbers them.
const COPIES: [&str; 2] = ["engine", "lanes"];

/// How what a phase leaves crosses a barrier of the grid, as the text numbers it.
const CROSS: [&str; 2] = ["fence", "marks"];
/// What marks do not do.
const FENCED: &str = "norms behind blocks, and windows of some layers, need CROSS=fence";

/// Whether what crosses a barrier must be fenced: a norm behind a block keeps a sum that carries no marks, and where layers
/// see different keys, a group that has the newest one in a layer may not have had it in the one before.
fn needs_fence(model: &Model, at: &ModelAt) -> bool {
    model.post_norms || at.layers.iter().any(|l| l.window != at.layers[0].window)
}

/// Groups of a grid, by tier.
const BLOCKS: [usize; 4] = [2, 16, 64, 132];
/// Bytes of a line of memory.
const LINE: usize = 128;
/// Segments of a copy, at most.
const SEGMENTS_MAX: usize = 4;
/// Query heads that share a reading of the keys, at most.
const SHARED_HEADS: usize = 4;

/// How many query heads may share a reading of the keys: one alone, or equal parts of a group, as few as there may be.
pub(crate) fn shared_heads(model: &Model) -> Vec<usize> {
    let mut all = vec![1, model.group().div_ceil(model.group().div_ceil(SHARED_HEADS))];
    all.dedup();
    all
}

/// Parts of the keys that give each of `groups` groups one, where `shared` heads share keys; 0 where groups are too few.
fn fill(model: &Model, groups: usize, shared: usize) -> usize {
    groups / (model.kv_heads * model.group().div_ceil(shared))
}

/// Parts of the keys that may be tried: some, and those that give each of `groups` groups one for a way to share heads.
fn splits(model: &Model, groups: usize) -> Vec<i64> {
    let fills = shared_heads(model).into_iter().map(|n| fill(model, groups, n));
    let mut all: Vec<_> = [1, 4, 8, 16].into_iter().chain(fills.map(|n| n.clamp(1, SPLITS_MAX))).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|n| n as i64).collect()
}

/// Tiles and quads of the widest input, in the forms that are staged.
fn stage(model: &Model, forms: Forms) -> (usize, usize) {
    let widest = model.hidden.max(model.ffn).max(model.wide());
    (if forms.int8 { widest.div_ceil(TILE) } else { 1 }, if forms.float { widest.div_ceil(4) } else { 1 })
}

/// Which forms of the input a phase's matrices meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forms {
    /// Bytes.
    pub int8: bool,
    /// Floats.
    pub float: bool,
}

impl Forms {
    /// Of the matrices of a model.
    pub fn of(model: &Model, at: &ModelAt) -> Forms {
        let layers = at.layers.iter().flat_map(|l| l.qkv.into_iter().chain([l.out, l.gate_up, l.down]));
        let mut forms = Forms { int8: false, float: false };
        for matrix in layers.chain([at.head]) {
            let int8 = model.int8 && !matrix.ty.is_float();
            forms.int8 |= int8;
            forms.float |= !int8;
        }
        forms
    }
}

/// Words of what copies know of the phases, behind those of the model.
const PLAN_WORDS: usize = 30;

/// Threadgroup bytes of a kernel of `threads` threads in which `shared` heads share keys, but for the copies under way.
fn group_bytes(model: &Model, forms: Forms, (threads, shared): (usize, usize)) -> usize {
    let (tiles, quads) = stage(model, forms);
    let simds = threads / 32;
    let heads = shared * (model.head_dim + 2 * simds) + 2 * model.head_dim;
    44 * tiles + 16 * quads + 4 * heads + 16 * 32 + 4 * (model::table_words(model) + PLAN_WORDS) + 48 * simds
}

/// Bytes for the sums of the SIMD groups of a group, which attention puts together.
pub(crate) fn merge_bytes(model: &Model, config: &Config) -> Result<usize, Rejection> {
    Ok(4 * knob(config, "SHARED")? * (knob(config, "THREADS")? / 32) * model.head_dim)
}

/// Bytes of the copies under way in a group.
pub(crate) fn ring_bytes(model: &Model, at: &ModelAt, config: &Config) -> Result<usize, Rejection> {
    Ok(slot_bytes(model, at, config)? * knob(config, "SLOTS")? * (knob(config, "THREADS")? / 32))
}

/// Bytes between two rows of a copy of `bytes` each, which lie in lines as they do in memory.
fn pitch(bytes: usize) -> usize {
    (bytes + LINE - ALIGN).next_multiple_of(LINE)
}

/// Bytes of a copy of `rows` rows of `cols` columns each, `segments` of them.
fn copy_bytes(m: At, cols: usize, rows: usize, segments: usize) -> usize {
    let row = Planes { ty: m.ty, rows: 1, cols }.row_bytes();
    rows * pitch(row.min(segments * planes::most_segment_bytes(m.ty, cols)))
}

/// Bytes of the largest copy of weights but q, k and v: of the rows that a phase takes at a time, some segments.
fn other_bytes(model: &Model, at: &ModelAt, config: &Config) -> Result<usize, Rejection> {
    let segments = knob(config, "SEGMENTS")?;
    let [out, up, down, head] = ["ROWS", "ROWS_UP", "ROWS_DOWN", "ROWS_HEAD"].map(|name| knob(config, name));
    let (out, up, down) = (out?, up?, down?);
    let mut most = LINE.max(copy_bytes(at.head, model.hidden, head?, segments));
    for l in &at.layers {
        most = most.max(copy_bytes(l.out, model.wide(), out, segments));
        most = most.max(copy_bytes(l.gate_up, model.hidden, up, segments));
        most = most.max(copy_bytes(l.down, model.ffn, down, segments));
    }
    Ok(most)
}

/// Bytes of the largest copy of q, k and v of `segments`.
fn qkv_bytes(model: &Model, at: &ModelAt, config: &Config, segments: usize) -> Result<usize, Rejection> {
    let rows = knob(config, "ROWS_QKV")?;
    let each = at.layers.iter().flat_map(|l| l.qkv).map(|m| copy_bytes(m, model.hidden, rows, segments));
    Ok(each.max().unwrap_or(LINE))
}

/// Segments of a copy of q, k and v: as many as the other phases take, but for those that would need larger slots.
pub(crate) fn qkv_segments(model: &Model, at: &ModelAt, config: &Config) -> Result<usize, Rejection> {
    let other = other_bytes(model, at, config)?;
    let mut segments = knob(config, "SEGMENTS")?;
    while segments > 1 && qkv_bytes(model, at, config, segments)? > other {
        segments -= 1;
    }
    Ok(segments)
}

/// Bytes of the largest copy of weights.
pub(crate) fn slot_bytes(model: &Model, at: &ModelAt, config: &Config) -> Result<usize, Rejection> {
    let qkv = qkv_bytes(model, at, config, qkv_segments(model, at, config)?)?;
    Ok(qkv.max(other_bytes(model, at, config)?))
}

/// Parameters, with their values for a model on a machine of `tier`.
fn params(model: &Model, tier: Tier) -> Vec<Param> {
    let names = |values: &[&str]| values.iter().map(|v| Value::Name((*v).into())).collect();
    let shared: Vec<_> = shared_heads(model).into_iter().map(|n| n as i64).collect();
    let splits = splits(model, tier.pick(BLOCKS));
    vec![
        Param {
            name: "PATH",
            trades: "launches against barriers of a grid",
            values: names(&["token", "layer", "graph", "launches"]),
        },
        ints(
            "BLOCKS",
            "groups that share the rows against groups that a barrier waits for",
            &tier.pick([[2, 16], [2, 16], [16, 64], [64, 132]]),
        ),
        ints("THREADS", "rows in flight against registers and stages that repeat", &[128, 256, 384, 448, 512]),
        ints("SPLITS", "groups that share a head against parts to put together", &splits),
        ints("SHARED", "reads of the keys against groups that have a head's part", &shared),
        ints("ROWS_QKV", "rows of q, k and v at a time: loads in flight against idle SIMD groups", &[1, 2, 3]),
        ints("ROWS", "rows of out at a time", &[1, 2]),
        ints("ROWS_UP", "rows of gate and up at a time", &[2, 4]),
        ints("ROWS_DOWN", "rows of down at a time", &[1, 2]),
        ints("ROWS_HEAD", "rows of the head at a time", &[2, 4]),
        ints("SLOTS", "copies of weights under way against threadgroup memory", &[1, 2, 3, 4]),
        ints("SEGMENTS", "instructions that start a copy against threadgroup memory", &[1, 2]),
        ints("DENSE", "groups that read a phase's input against SIMD groups that share a processor", &[0, 4, 6, 8]),
        Param {
            name: "COPIES",
            trades: "the copy engine's rate against the lanes' fewer instructions",
            values: names(&COPIES),
        },
        Param {
            name: "CROSS",
            trades: "waiting until writes are seen against a mark to look at in every value",
            values: names(&CROSS),
        },
    ]
}

/// What may be tried for a model on `machine`.
pub fn space((model, at): (&Model, &ModelAt), machine: &Machine<'_>) -> Space {
    let (tier, limits) = (Tier::on(machine), machine.backend.limits());
    let host = limits.backend == "host";
    let resident = if host { HOST_RESIDENT } else { usize::MAX };
    let (most, bytes) = (limits.max_threads as usize, limits.shared_bytes as usize);
    let (forms, m, at, fence) = (Forms::of(model, at), *model, at.clone(), needs_fence(model, at));
    let whole = limits.dynamic_shared_bytes.max(limits.shared_bytes) as usize;
    let fits = move |c: &Config| {
        let own = knob(c, "THREADS").and_then(|n| Ok((n, knob(c, "SHARED")?)));
        let group = own.map(|own| group_bytes(&m, forms, own));
        let dynamic = ring_bytes(&m, &at, c).and_then(|r| Ok(r + merge_bytes(&m, c)?));
        matches!((group, dynamic), (Ok(g), Ok(d)) if g <= bytes && g + d <= whole)
    };
    // Timed with CUDA alone, where attention looks for what it needs without a barrier.
    let default = default(model, tier, fence || limits.backend != "cuda", &fits);
    Space {
        params: params(model, tier),
        constraints: vec![
            Constraint::new(format!("blocks of a grid are resident: {resident} threads"), move |c| {
                let threads = knob(c, "BLOCKS").and_then(|b| Ok(b * knob(c, "THREADS")?));
                matches!(c.name("PATH"), Some("graph" | "launches")) || threads.is_ok_and(|n| n <= resident)
            }),
            Constraint::new("DENSE <= THREADS / 32", |c| {
                let simds = knob(c, "THREADS").map(|n| n / 32);
                matches!((knob(c, "DENSE"), simds), (Ok(dense), Ok(simds)) if dense <= simds)
            }),
            Constraint::new(FENCED, move |c| !fence || c.name("CROSS") == Some("fence")),
            Constraint::new(format!("THREADS <= {most}"), move |c| knob(c, "THREADS").is_ok_and(|n| n <= most)),
            Constraint::new(format!("threadgroup bytes <= {bytes}, with copies <= {whole}"), fits),
        ],
        default,
    }
}

/// Tokens of a cache up to which query heads do not share the reading of their keys: with more, reading is what counts.
const SHORT: usize = 4096;
/// Width from which a phase of a large card has enough rows for all its SIMD groups, and reading them is what counts.
const WIDE: usize = 2048;

/// The configuration of a machine of `tier` without a choice, of those that `fits` lets pass where there is one; `fence` says
/// whether what crosses a barrier must be fenced.
fn default(model: &Model, tier: Tier, fence: bool, fits: &dyn Fn(&Config) -> bool) -> Config {
    let (all, blocks) = (shared_heads(model), tier.pick(BLOCKS));
    let large = tier.pick([false, false, false, true]);
    let most = *all.last().unwrap_or(&1);
    let shared = if large && model.capacity <= SHORT { 1 } else { most };
    let fill = fill(model, blocks, shared).clamp(1, if shared == 1 { 8 } else { 16 });
    let wide = model.hidden >= WIDE;
    // Wide models have no registers left for looking at marks where heads share keys.
    let marks = large && !fence && (shared == 1 || !wide);
    let threads = tier.pick([128, 256, 256, if wide { 512 } else { 384 }]);
    let of = |[threads, slots, segments]: [i64; 3]| {
        Config::new()
            .with("PATH", "token")
            .with("BLOCKS", blocks as i64)
            .with("THREADS", threads)
            .with("SPLITS", tier.pick([4, 4, 8, fill as i64]))
            .with("SHARED", shared as i64)
            .with("ROWS_QKV", if large && wide { 2 } else { 1 })
            .with("ROWS", tier.pick([1, 1, 1, 2]))
            .with("ROWS_UP", if large && 2 * model.ffn <= 4 * blocks * threads as usize / 32 { 4 } else { 2 })
            .with("ROWS_DOWN", if large && wide { 2 } else { 1 })
            .with("ROWS_HEAD", tier.pick([2, 4, 4, if wide { 2 } else { 4 }]))
            .with("SLOTS", slots)
            .with("SEGMENTS", segments)
            .with("DENSE", if large && !wide { 6.min(threads / 32) } else { 0 })
            .with("COPIES", if large { "lanes" } else { "engine" })
            .with("CROSS", if marks { "marks" } else { "fence" })
    };
    let tries = [[threads, 3, 2], [threads, 2, 2], [threads, 2, 1], [threads, 1, 1], [128, 2, 1]];
    let mut tries = tries.into_iter().skip(if large { 0 } else { 2 }).map(of);
    tries.find(|c| fits(c)).unwrap_or_else(|| of([128, 1, 1]))
}

/// Refuses what neither space nor model says.
fn limits(config: &Config) -> Result<(), Rejection> {
    const LIMITS: [(&str, usize); 9] = [
        ("BLOCKS", GROUPS_MAX),
        ("SPLITS", SPLITS_MAX),
        ("SHARED", SHARED_HEADS),
        ("SEGMENTS", SEGMENTS_MAX),
        ("ROWS_QKV", ROWS_MAX),
        ("ROWS", ROWS_MAX),
        ("ROWS_UP", ROWS_MAX),
        ("ROWS_DOWN", ROWS_MAX),
        ("ROWS_HEAD", ROWS_MAX),
    ];
    for (name, most) in LIMITS {
        let n = knob(config, name)?;
        if n == 0 || n > most {
            return Err(Rejection::Constraint(format!("{name} is {n}, at most {most}")));
        }
    }
    match knob(config, "ROWS_UP")? {
        n if n % 2 == 1 => Err(Rejection::Constraint(format!("ROWS_UP is {n}: rows of gate and up come in pairs"))),
        _ => Ok(()),
    }
}
