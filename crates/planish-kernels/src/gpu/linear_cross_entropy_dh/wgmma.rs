//! The variant of `linear_cross_entropy_dh` on warpgroups: its chunks beside the portable ones, and its launches.

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::gpu::cross_entropy::shared::{self as loss, loss_of};
use crate::gpu::linear_cross_entropy::{self, shared::plain};
use crate::gpu::text::{IO, KernelLaunch, Text, io, io_code, knob};
use crate::gpu::wgmma::{self, ALIGN, NAME, ROW, WGMMA, WGMMA_GEMM};
use crate::op::{Machine, OpCall, Shape};

static PRODUCTS: Text = Text(&[IO, WGMMA, WGMMA_GEMM, ("products_wgmma.k", include_str!("products_wgmma.k"))]);
static ROWS: Text = Text(&[IO, WGMMA, ("rows_wgmma.k", include_str!("rows_wgmma.k"))]);

/// Rows and columns of a tile, slots of shared memory, and threads: two warpgroups that multiply and one that fetches.
const TILE_M: usize = 128;
const TILE_N: usize = 256;
const STAGES: usize = 4;
const THREADS: usize = 384;
/// Threads of launches a token, and the tokens that those with a warp a token take.
const ROW_THREADS: usize = 256;
const ROW_TOKENS: usize = ROW_THREADS / 32;
/// Vocabulary of a chunk: tiles that fill a large card's processors evenly, or powers of two.
const CHUNKS: [i64; 5] = [512, 2048, 4096, 8192, 11520];

/// Bytes that the largest chunk takes of the slopes' scratch.
pub fn chunk_bytes(tokens: usize, vocab: usize) -> usize {
    2 * tokens * (CHUNKS[CHUNKS.len() - 1] as usize).min(vocab.next_multiple_of(TILE_N))
}

/// Whether `machine` has the variant for `shape`: neither bias, cap nor smoothing, and rows of whole 16 bytes.
fn fits(shape: &Shape, machine: &Machine<'_>) -> bool {
    let plain = ["bias", "softcap", "smooth"].iter().all(|name| shape.size(name) == 0);
    let sized = shape.size("tokens") > 0 && shape.size("hidden") > 0 && shape.size("hidden").is_multiple_of(8);
    let shared = STAGES * 2 * ROW * (TILE_M + TILE_N) <= wgmma::tile_bytes(machine, 16 * STAGES);
    plain && sized && shared && wgmma::has_of(machine, io(shape))
}

/// `portable` with the variant's chunks beside it where `machine` has them for `shape`; they are the default then.
pub fn with(portable: Space, shape: &Shape, machine: &Machine<'_>) -> Space {
    if !fits(shape, machine) {
        return portable;
    }
    let more = |param: &str| -> &'static [i64] {
        match param {
            "THREADS" => &[THREADS as i64],
            "TILE_M" => &[TILE_M as i64],
            _ => &CHUNKS,
        }
    };
    let vocab = shape.size("vocab") as i64;
    // Two chunks that both hold the whole vocabulary are one configuration.
    let distinct = move |chunk: i64| {
        let at = CHUNKS.iter().position(|c| *c == chunk);
        at.is_some_and(|at| at == 0 || CHUNKS[at - 1] < vocab)
    };
    let mine = move |c: &Config| {
        let tile = c.int("THREADS") == Some(THREADS as i64) && c.int("TILE_M") == Some(TILE_M as i64);
        tile && c.int("CHUNK").is_some_and(distinct)
    };
    let mut space = wgmma::beside(portable, more, ("threads, tile and chunk are of the variant", mine));
    let chunk = CHUNKS.into_iter().rfind(|c| distinct(*c)).unwrap_or(CHUNKS[0]);
    space.default = Config::new()
        .with("VARIANT", NAME)
        .with("THREADS", THREADS as i64)
        .with("TILE_M", TILE_M as i64)
        .with("CHUNK", chunk);
    space
}

/// The arguments by name.
struct Args<'a> {
    h: &'a Slice,
    w: &'a Slice,
    targets: &'a Slice,
    up: &'a Slice,
    /// loss, lse, total and dh.
    out: [&'a Slice; 4],
    parts: &'a Slice,
    e: &'a Slice,
    sums: &'a Slice,
    /// What logits are counted from, the target's logit, and the sum of the others' exponentials: each a value a token.
    refs: Slice,
    hits: Slice,
    totals: Slice,
}

impl Args<'_> {
    fn of(call: &OpCall) -> Args<'_> {
        let [h, w, targets, up, loss, lse, total, dh, _, parts, e, sums, rows] = &call.args[..] else {
            unreachable!("the op without a bias has thirteen arguments")
        };
        let len = 4 * call.shape.size("tokens");
        let row = |i: usize| Slice { buffer: rows.buffer.clone(), offset: rows.offset + i * len, len };
        let out = [loss, lse, total, dh];
        Args { h, w, targets, up, out, parts, e, sums, refs: row(0), hits: row(1), totals: row(2) }
    }
}

/// A product of two matrices by tiles: sizes, and whether the right one lies by columns.
fn product(
    shape: &Shape,
    entry: &'static str,
    params: Vec<u32>,
    [m, n]: [usize; 2],
    machine: &Machine<'_>,
) -> KernelLaunch<'static> {
    let turned = entry == "lce_sum";
    let tiles = m.div_ceil(TILE_M) * n.div_ceil(TILE_N);
    KernelLaunch {
        text: &PRODUCTS,
        entry,
        constants: vec![
            ("IO", io_code(io(shape))),
            ("ROWS", 1),
            ("CONSUMERS", 2),
            ("TILE_N", TILE_N as i64),
            ("STAGES", STAGES as i64),
            // W is read once a band, and h, which is small, stays in the cache.
            ("BAND", if turned { 8 } else { 32 }),
            ("TURN_A", 0),
            ("TURN_B", i64::from(turned)),
        ],
        params,
        groups: tiles.min(machine.backend.limits().processors as usize),
        threads: THREADS,
        shared_bytes: STAGES * 2 * ROW * (TILE_M + TILE_N) + ALIGN,
    }
}

/// The launches of `call`.
pub fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (s, o, chunk) = (&call.shape, loss_of(&call.shape, &call.attrs), knob(config, "CHUNK")?);
    if !fits(s, machine) {
        return Err(Rejection::Constraint(format!("{NAME} is for sm_90a, 16-bit types, no bias, cap or smoothing")));
    }
    let [tokens, hidden, vocab] = ["tokens", "hidden", "vocab"].map(|n| s.size(n));
    let a = Args::of(call);
    let widest = chunk.min(vocab.next_multiple_of(TILE_N));
    if a.e.len < 2 * tokens * widest || a.parts.len < 8 * tokens * widest.div_ceil(TILE_N) {
        return Err(Rejection::Constraint(format!("scratch holds a chunk of {chunk}")));
    }
    wgmma::aligned(&call.args[..2])?;
    wgmma::aligned(&[a.out[3].clone(), a.e.clone(), a.sums.clone(), a.parts.clone()])?;
    let copy = |args: &[&Slice]| args.iter().map(|a| (*a).clone()).collect::<Vec<_>>();
    let [scale, z] = [o.scale, o.z].map(|v| (v as f32).to_bits());
    let (t, k, v) = (tokens as u32, hidden as u32, vocab as u32);
    let row = |entry, params, each: usize| KernelLaunch {
        text: &ROWS,
        entry,
        constants: vec![("IO", io_code(io(s)))],
        params,
        groups: tokens.div_ceil(each),
        threads: ROW_THREADS,
        shared_bytes: 0,
    };
    let start = row("lce_start", vec![t, k, v, o.ignore, scale], ROW_TOKENS);
    let mut launches = vec![start.on(machine, copy(&[a.h, a.w, a.targets, &a.refs, &a.hits, &a.totals]))?];
    for begin in (0..vocab).step_by(chunk) {
        let width = chunk.min((vocab - begin).next_multiple_of(TILE_N));
        let (b, n) = (begin as u32, width as u32);
        let exp = product(s, "lce_exp", vec![t, k, v, b, n, scale], [tokens, width], machine);
        let mut exp = exp.on(machine, copy(&[a.h, a.w, a.e, a.parts, &a.refs, a.targets]))?;
        exp.views = vec![wgmma::view(0, [0, tokens, hidden], TILE_M), wgmma::view(1, [0, vocab, hidden], TILE_N)];
        let settle = row("lce_settle", vec![t, k, b, n, TILE_N as u32], ROW_TOKENS);
        let settle = settle.on(machine, copy(&[a.e, a.parts, &a.refs, &a.totals, a.sums]))?;
        let sum = product(s, "lce_sum", vec![t, k, b, n], [tokens, hidden], machine);
        let mut sum = sum.on(machine, copy(&[a.e, a.w, a.sums]))?;
        sum.views = vec![wgmma::view(0, [0, tokens, width], TILE_M), wgmma::view(1, [0, vocab, hidden], ROW)];
        launches.extend([exp, settle, sum]);
    }
    let [loss, lse, total, dh] = a.out;
    let last = row("lce_loss", vec![t, v, o.ignore, z], ROW_THREADS);
    launches.push(last.on(machine, copy(&[a.targets, &a.refs, &a.hits, &a.totals, loss, lse]))?);
    let text = &linear_cross_entropy::OP.text;
    let constants = plain((text, ""), Vec::new(), 0).constants;
    launches.push(loss::reduce(text, constants, tokens, &o).on(machine, copy(&[loss, a.targets, total]))?);
    let gradient = row("lce_gradient", vec![t, k, v, o.ignore, o.reduction as u32, scale, z], ROW_TOKENS);
    let args = copy(&[a.sums, a.w, a.targets, &a.refs, &a.hits, &a.totals, lse, a.up, total, dh]);
    launches.push(gradient.on(machine, args)?);
    Ok(launches)
}
