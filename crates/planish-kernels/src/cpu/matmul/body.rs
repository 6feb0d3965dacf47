//! The register tiles of quantised matmul: `TOKENS` activations against `GROUPS` groups of eight rows.
//!
//! y = W x, one output in one lane.
//! Every tile shape adds the blocks of an output in column order with one fused multiply-add each,
//! so all variants of a type and class give the same bits.
//! A matvec reads each weight once and is bound by memory; a matmul is bound by the byte products.

// Indices count lanes of several arrays at once; iterators over them hide which register is meant.
#![allow(clippy::needless_range_loop)]

use super::formats::{Format, codes, scales};
use super::lanes::{Lanes, unroll8};
use super::{BlockMeta, MatmulArgs, Store, X};
use crate::quant::Min;

/// Which outputs a tile computes.
#[derive(Clone, Copy)]
pub(crate) struct TileAt {
    /// The first group of eight rows.
    pub group: usize,
    /// The first token.
    pub token: usize,
    /// The first row that may be written.
    pub row_start: usize,
    /// One past the last row that may be written.
    pub row_end: usize,
}

/// Int8 class: `acc = fma(Σ (code − offset) · q, scale · d, acc)`, then `acc = fma(min, d · Σ q, acc)`, by sub-block.
///
/// # Safety
/// `args` has passed its check, `at` lies inside it, and the processor has the instruction set of `S`.
#[inline(always)]
pub(crate) unsafe fn int8_tile<S: Lanes, F: Format, const TOKENS: usize, const GROUPS: usize>(
    args: &MatmulArgs,
    at: TileAt,
) {
    let X::Int8 { q, meta } = args.x else { unreachable!("an int8 kernel was given f32 activations") };
    let c = const { F::CODEC };
    let blocks = args.layout.cols() / 32;
    // SAFETY: the check of `args` proved that weights, activations and outputs cover every index formed here.
    unsafe {
        let weights = args.weights.as_ptr().add(at.group * args.layout.group_bytes());
        let mut place = Place {
            head: weights,
            tile: weights,
            q: q.as_ptr().add(at.token * 32 * blocks),
            meta: meta.as_ptr().add(at.token * blocks),
            group_bytes: args.layout.group_bytes(),
            blocks,
        };
        let mut acc = [[S::zero_f(); GROUPS]; TOKENS];
        for _ in 0..blocks / c.tiles {
            place.tile = place.head.add(c.head_bytes());
            for _ in 0..c.tiles {
                if TOKENS == 1 {
                    for g in 0..GROUPS {
                        let ahead = place.tile.wrapping_add(g * place.group_bytes + args.knobs.prefetch);
                        for line in 0..c.tile_bytes().div_ceil(64) {
                            S::prefetch(ahead.wrapping_add(64 * line));
                        }
                    }
                }
                sub_block::<S, F, TOKENS, GROUPS>(&place, 0, &mut acc);
                if c.subs == 2 {
                    sub_block::<S, F, TOKENS, GROUPS>(&place, 1, &mut acc);
                }
                place.q = place.q.add(32);
                place.meta = place.meta.add(1);
                place.tile = place.tile.add(c.tile_bytes());
            }
            place.head = place.head.add(c.packed_block_bytes());
        }
        store_tile::<S, TOKENS, GROUPS>(args, at, &acc);
    }
}

/// Where one packed tile and its activations are, for the first group and the first token.
struct Place {
    head: *const u8,
    tile: *const u8,
    q: *const i8,
    meta: *const BlockMeta,
    /// From one group's weights to the next.
    group_bytes: usize,
    /// From one token's activations to the next, in blocks of 32 columns.
    blocks: usize,
}

/// The order of the quads of a sub-block: both nibbles of one load follow each other where a tile is one sub-block.
const fn quad(subs: usize, i: usize) -> usize {
    if subs == 1 { (i >> 1) + 4 * (i & 1) } else { i }
}

/// How many of `count` products of codes up to `largest` times 127 fit one accumulator under `limit`; a power of two.
const fn run_length(limit: i64, largest: i64, count: usize) -> usize {
    let mut run = count;
    while run > 1 && run as i64 * 2 * 127 * largest > limit {
        run /= 2;
    }
    run
}

/// Adds one sub-block to the accumulators: exact integer sums, then one scaled addition an output.
#[inline(always)]
unsafe fn sub_block<S: Lanes, F: Format, const TOKENS: usize, const GROUPS: usize>(
    place: &Place,
    sub: usize,
    acc: &mut [[S::F; GROUPS]; TOKENS],
) {
    let c = const { F::CODEC };
    let signed = c.signed();
    let run = const { run_length(S::R_LIMIT, F::LARGEST_CODE as i64, F::QUADS) };
    // SAFETY: the caller's pointers cover one packed tile a group and 32 activations a token.
    unsafe {
        let mut sums = [[S::zero_i(); GROUPS]; TOKENS];
        let mut r = [[S::zero_r(); GROUPS]; TOKENS];
        unroll8!(I => {
            if I < F::QUADS {
                let j = sub * F::QUADS + quad(c.subs, I);
                let mut quads = [S::zero_w(); GROUPS];
                for g in 0..GROUPS {
                    quads[g] = S::prepare(codes::<S, F>(place.tile.add(g * place.group_bytes), j), signed);
                }
                for t in 0..TOKENS {
                    let a = S::splat_quad(place.q.add(t * 32 * place.blocks + 4 * j));
                    for g in 0..GROUPS {
                        r[t][g] = if I.is_multiple_of(run) {
                            S::dot(quads[g], a, signed)
                        } else {
                            S::dot_add(r[t][g], quads[g], a, signed)
                        };
                        if I % run == run - 1 {
                            let part = S::finish(r[t][g]);
                            sums[t][g] = if I < run { part } else { S::add_i32(sums[t][g], part) };
                        }
                    }
                }
            }
        });
        for g in 0..GROUPS {
            let (scale, min) =
                scales::<S, F>(place.head.add(g * place.group_bytes), place.tile.add(g * place.group_bytes), sub);
            for t in 0..TOKENS {
                let m = place.meta.add(t * place.blocks);
                let mut level = S::to_f32(sums[t][g]);
                if c.offset != 0 {
                    // Both operands are integers under 2^24, so this is exact.
                    level = S::fma(S::splat_f(-c.offset as f32), S::splat_f((*m).sum_of(c.subs, sub)), level);
                }
                acc[t][g] = S::fma(level, S::mul(scale, S::splat_f((*m).d)), acc[t][g]);
                if c.min != Min::None {
                    acc[t][g] = S::fma(min, S::splat_f((*m).scaled_sum_of(c.subs, sub)), acc[t][g]);
                }
            }
        }
    }
}

/// F32 class: weights dequantised with the format's own rounding, `part = fma(w, x, part)` column by column in a tile of
/// 32, then `acc += part`.
///
/// # Safety
/// As for [`int8_tile`].
#[inline(always)]
pub(crate) unsafe fn f32_tile<S: Lanes, F: Format, const TOKENS: usize, const GROUPS: usize>(
    args: &MatmulArgs,
    at: TileAt,
) {
    let X::F32(x) = args.x else { unreachable!("an f32 kernel was given int8 activations") };
    let c = const { F::CODEC };
    let cols = args.layout.cols();
    let group = args.layout.group_bytes();
    // SAFETY: the check of `args` proved that weights, activations and outputs cover every index formed here.
    unsafe {
        let mut head = args.weights.as_ptr().add(at.group * group);
        let mut x = x.as_ptr().add(at.token * cols);
        let mut acc = [[S::zero_f(); GROUPS]; TOKENS];
        for _ in 0..cols / (32 * c.tiles) {
            let mut tile = head.add(c.head_bytes());
            for _ in 0..c.tiles {
                for g in 0..GROUPS {
                    let (head, tile) = (head.add(g * group), tile.add(g * group));
                    let scale = [scales::<S, F>(head, tile, 0), scales::<S, F>(head, tile, c.subs - 1)];
                    // One running sum over a whole row gathers rounding errors of one sign.
                    let mut part = [S::zero_f(); TOKENS];
                    unroll8!(J => {
                        let quad = codes::<S, F>(tile, J);
                        for b in 0..4 {
                            let w = weight::<S, F>(quad, b, scale[J / 4]);
                            for t in 0..TOKENS {
                                let x = S::splat_f(*x.add(t * cols + 4 * J + b));
                                part[t] = S::fma(w, x, part[t]);
                            }
                        }
                    });
                    for t in 0..TOKENS {
                        acc[t][g] = S::add(acc[t][g], part[t]);
                    }
                }
                (x, tile) = (x.add(32), tile.add(c.tile_bytes()));
            }
            head = head.add(c.packed_block_bytes());
        }
        store_tile::<S, TOKENS, GROUPS>(args, at, &acc);
    }
}

/// Byte `b` of every lane as dequantised weights, with the roundings of the format's definition.
#[inline(always)]
unsafe fn weight<S: Lanes, F: Format>(quad: S::I, b: usize, (scale, min): (S::F, S::F)) -> S::F {
    let c = const { F::CODEC };
    // SAFETY: register operations only; see `Lanes`.
    unsafe {
        let mut w = S::to_f32(S::widen(quad, b as u32, c.signed()));
        if c.offset != 0 {
            w = S::add(w, S::splat_f(-c.offset as f32));
        }
        w = S::mul(scale, w);
        if c.min == Min::None { w } else { S::add(w, min) }
    }
}

/// Writes a tile's outputs, only those between `row_start` and `row_end`.
#[inline(always)]
unsafe fn store_tile<S: Lanes, const TOKENS: usize, const GROUPS: usize>(
    args: &MatmulArgs,
    at: TileAt,
    acc: &[[S::F; GROUPS]; TOKENS],
) {
    for g in 0..GROUPS {
        let row = 8 * (at.group + g);
        let whole = row >= at.row_start && row + 8 <= at.row_end;
        for t in 0..TOKENS {
            // SAFETY: rows between `row_start` and `row_end` are inside `out`, `bias` and `residual` by the check.
            unsafe {
                let out = args.out.add((at.token + t) * args.out_stride);
                if whole {
                    let mut y = acc[t][g];
                    if let Some(bias) = args.bias {
                        y = S::add(y, S::load_f(bias.as_ptr().add(row)));
                    }
                    if args.store == Store::Add {
                        y = S::add(y, S::load_f(out.add(row)));
                    }
                    S::store_f(out.add(row), y);
                } else {
                    let mut lanes = [0.0f32; 8];
                    S::store_f(lanes.as_mut_ptr(), acc[t][g]);
                    store_rows(args, at, row, &lanes, out);
                }
            }
        }
    }
}

/// The slow store of a group that is only partly asked for.
///
/// # Safety
/// `out` is the token's row of outputs; see [`store_tile`].
#[cold]
pub(crate) unsafe fn store_rows(args: &MatmulArgs, at: TileAt, first: usize, lanes: &[f32], out: *mut f32) {
    for (row, &lane) in (first..).zip(lanes).filter(|(r, _)| (at.row_start..at.row_end).contains(r)) {
        let biased = args.bias.map_or(lane, |bias| lane + bias[row]);
        // SAFETY: `row` is in the asked range, which the check of `args` put inside every token's outputs.
        unsafe {
            let y = out.add(row);
            *y = if args.store == Store::Add { biased + *y } else { biased };
        }
    }
}
