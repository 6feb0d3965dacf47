//! Int8 matmul for many tokens on AVX-512: sixteen rows are taken apart once and then meet every token.
//!
//! A panel is two groups of eight rows in records of 32 columns: eight quads (64 bytes, four columns of each row), the f32
//! scales of the sub-blocks, and their minima where the type has any.
//! One lane is one row, and every output gets its blocks in column order with the roundings of `body`: the bits are the
//! same for any number of tokens.

use super::drive::{Int8, walk};
use super::formats::{Format, codes, scales};
use super::lanes::unroll8;
use super::vnni::VnniLanes;
use super::{BLOCK, BlockMeta, GROUP, Knobs, Layout, MatmulArgs, Store, X};
use crate::quant::{Codec, Min, codec};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows of a panel.
const ROWS: usize = 2 * GROUP;

/// Bytes of the codes of a record.
const CODES: usize = BLOCK * ROWS;

/// Bytes of one f32 a row.
const VECTOR: usize = 4 * ROWS;

/// With fewer tokens the taking apart costs more than it saves.
const TOKENS_MIN: usize = 5;

const fn has_min(c: &Codec) -> bool {
    !matches!(c.min, Min::None)
}

const fn record_bytes(subs: usize, min: bool) -> usize {
    CODES + VECTOR * subs * (1 + min as usize)
}

fn panel_bytes(layout: &Layout) -> usize {
    let c = codec(layout.weight());
    layout.cols() / BLOCK * record_bytes(c.subs, has_min(&c))
}

/// Bytes of the panels of `rows` rows, or of one block of rows when that is less.
pub(super) fn scratch_bytes(layout: &Layout, knobs: &Knobs, rows: usize) -> usize {
    rows.min(knobs.row_block).div_ceil(ROWS).max(1) * panel_bytes(layout)
}

/// How panels meet tokens.
pub(super) trait Kernel: 'static {
    /// Tokens of a whole tile.
    const TOKENS: usize;

    /// Whether weight bytes are signed levels; else they are codes made unsigned.
    const SIGNED: bool;

    /// Every token against every panel of `pass`; `SUBS` sub-blocks a record, `MIN` whether there are minima.
    ///
    /// # Safety
    /// The processor has what the kernel is made of, and the panels of `pass` were filled for it.
    unsafe fn run<const SUBS: usize, const MIN: bool>(pass: &Pass);
}

/// What is added to the sum of products, times the sum of activations: the part of a level that the bytes leave out.
const fn correction(c: &Codec, signed: bool) -> i32 {
    match (signed, c.signed()) {
        (true, _) => 0,
        (false, true) => -128,
        (false, false) => -c.offset,
    }
}

/// All of `rows` for all tokens.
///
/// # Safety
/// See [`super::MatmulFn`].
pub(super) unsafe fn panels<K: Kernel, F: Format>(args: &MatmulArgs, rows: Range<usize>, scratch: &mut [u8]) {
    if args.tokens < TOKENS_MIN || args.layout.cols() == 0 {
        // SAFETY: forwarded; the sets with panels have the lanes.
        return unsafe { walk::<Int8<VnniLanes, F>, 4, 1>(args, rows, scratch) };
    }
    let X::Int8 { q, meta } = args.x else { unreachable!("an int8 kernel was given f32 activations") };
    let size = panel_bytes(&args.layout);
    let fit = (args.knobs.row_block / ROWS).max(1).min(scratch.len() / size);
    assert!(fit > 0, "scratch of {} bytes for a panel of {size}", scratch.len());
    let base = scratch.as_mut_ptr();
    assert!(base.addr().is_multiple_of(64), "scratch at {base:p}");
    let end = rows.end.div_ceil(GROUP);
    for group in (rows.start / GROUP..end).step_by(2 * fit) {
        let count = fit.min((end - group).div_ceil(2));
        // SAFETY: `count` panels fit the scratch and start in groups of the matrix; the rest is the caller's contract.
        unsafe {
            for panel in 0..count {
                let first = group + 2 * panel;
                // A panel without a second group has the first one twice, and stores only one.
                unpack::<F>(args, [first, (first + 1).min(end - 1)], base.add(panel * size), K::SIGNED);
            }
            let pass = Pass {
                args,
                rows: &rows,
                group,
                panels: count,
                base,
                size,
                q: q.as_ptr(),
                meta: meta.as_ptr(),
                correction: const { correction(&F::CODEC, K::SIGNED) as f32 },
            };
            match const { (F::CODEC.subs, has_min(&F::CODEC)) } {
                (1, false) => K::run::<1, false>(&pass),
                (1, true) => K::run::<1, true>(&pass),
                (_, false) => K::run::<2, false>(&pass),
                (_, true) => K::run::<2, true>(&pass),
            }
        }
    }
}

/// Fills the panel at `to` from two groups of eight rows.
///
/// # Safety
/// The groups are in the matrix, `to` has room for a panel, and the processor has AVX2 and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<F: Format>(args: &MatmulArgs, groups: [usize; 2], to: *mut u8, signed: bool) {
    let c = const { F::CODEC };
    let min = const { has_min(&F::CODEC) };
    // What makes `code - left_out` the byte: see `correction`.
    let left_out = _mm256_set1_epi8((c.offset + correction(&c, signed)) as i8);
    let lanes = size_of::<__m256i>();
    // SAFETY: heads and tiles are walked as they were packed; records lie one after another in the panel.
    unsafe {
        for (half, group) in groups.into_iter().enumerate() {
            let mut head = args.weights.as_ptr().add(group * args.layout.group_bytes());
            let mut record = to.add(half * lanes);
            for _ in 0..args.layout.cols() / (BLOCK * c.tiles) {
                let mut tile = head.add(c.head_bytes());
                for _ in 0..c.tiles {
                    unroll8!(J => {
                        let quad = _mm256_sub_epi8(codes::<VnniLanes, F>(tile, J), left_out);
                        _mm256_storeu_si256(record.add(2 * lanes * J).cast(), quad);
                    });
                    for sub in 0..c.subs {
                        let (scale, least) = scales::<VnniLanes, F>(head, tile, sub);
                        let at = record.add(CODES + VECTOR * sub);
                        _mm256_storeu_ps(at.cast(), scale);
                        if min {
                            _mm256_storeu_ps(at.add(VECTOR * c.subs).cast(), least);
                        }
                    }
                    record = record.add(record_bytes(c.subs, min));
                    tile = tile.add(c.tile_bytes());
                }
                head = head.add(c.packed_block_bytes());
            }
        }
    }
}

/// Panels that are filled, and what they are multiplied with.
pub(super) struct Pass<'a> {
    args: &'a MatmulArgs<'a>,
    /// Rows that may be written.
    rows: &'a Range<usize>,
    /// First group of the first panel.
    group: usize,
    /// How many there are.
    pub panels: usize,
    base: *const u8,
    size: usize,
    q: *const i8,
    meta: *const BlockMeta,
    /// See [`correction`].
    pub correction: f32,
}

impl Pass<'_> {
    /// Tokens to multiply with.
    pub fn tokens(&self) -> usize {
        self.args.tokens
    }

    /// Where a panel and the activations from `token` on are.
    #[inline(always)]
    pub fn place(&self, panel: usize, token: usize) -> Place {
        let blocks = self.args.layout.cols() / BLOCK;
        Place {
            record: self.base.wrapping_add(panel * self.size),
            q: self.q.wrapping_add(token * BLOCK * blocks),
            meta: self.meta.wrapping_add(token * blocks),
            blocks,
        }
    }

    /// Where the sums of a panel go.
    #[inline(always)]
    pub fn outputs(&self, panel: usize) -> Outputs<'_> {
        let first = GROUP * (self.group + 2 * panel);
        let below = |row: usize| (1u32 << row.saturating_sub(first).min(ROWS)) - 1;
        let asked = (below(self.rows.end) & !below(self.rows.start)) as __mmask16;
        Outputs { args: self.args, first, asked }
    }
}

/// The outputs of a panel's rows.
pub(super) struct Outputs<'a> {
    args: &'a MatmulArgs<'a>,
    first: usize,
    /// The rows that may be written.
    asked: __mmask16,
}

impl Outputs<'_> {
    /// Stores one token's sums.
    ///
    /// # Safety
    /// The processor has AVX-512, and `token` is one of the pass.
    #[inline(always)]
    pub unsafe fn store(&self, token: usize, mut y: __m512) {
        let Outputs { args, first, asked } = *self;
        let out = args.out.wrapping_add(token * args.out_stride + first);
        // SAFETY: asked rows are inside `out` and `bias` by the check of `args`; a masked lane is not accessed.
        unsafe {
            if let Some(bias) = args.bias {
                y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(asked, bias.as_ptr().wrapping_add(first)));
            }
            if args.store == Store::Add {
                y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(asked, out));
            }
            _mm512_mask_storeu_ps(out, asked, y);
        }
    }
}

/// The first record of a panel and the first block of a token's activations.
pub(super) struct Place {
    record: *const u8,
    q: *const i8,
    meta: *const BlockMeta,
    /// Blocks of 32 columns; also from one token's activations to the next.
    pub blocks: usize,
}

impl Place {
    /// The quads of sub-block `sub` of a block, 64 bytes each.
    #[inline(always)]
    pub fn quads<const SUBS: usize, const MIN: bool>(&self, block: usize, sub: usize) -> *const u8 {
        self.record.wrapping_add(block * const { record_bytes(SUBS, MIN) } + CODES / SUBS * sub)
    }

    /// The first token's activations of a sub-block; the next token's are [`Place::stride`] bytes on.
    #[inline(always)]
    pub fn activations<const SUBS: usize>(&self, block: usize, sub: usize) -> *const i8 {
        self.q.wrapping_add(BLOCK * block + BLOCK / SUBS * sub)
    }

    /// Bytes from one token's activations to the next.
    #[inline(always)]
    pub fn stride(&self) -> usize {
        BLOCK * self.blocks
    }

    /// The f32 scales of a sub-block, and its minima or zeros.
    ///
    /// # Safety
    /// The processor has AVX-512; the block is one of the panel.
    #[inline(always)]
    pub unsafe fn scales<const SUBS: usize, const MIN: bool>(&self, block: usize, sub: usize) -> (__m512, __m512) {
        let at = self.record.wrapping_add(block * const { record_bytes(SUBS, MIN) } + CODES + VECTOR * sub);
        // SAFETY: the vectors follow the codes of the record.
        unsafe {
            let scale = _mm512_load_ps(at.cast());
            (scale, if MIN { _mm512_load_ps(at.add(VECTOR * SUBS).cast()) } else { _mm512_setzero_ps() })
        }
    }

    /// What there is to know about token `t`'s activations of a block.
    ///
    /// # Safety
    /// Token and block are among the activations.
    #[inline(always)]
    pub unsafe fn meta(&self, t: usize, block: usize) -> BlockMeta {
        // SAFETY: the caller's contract.
        unsafe { *self.meta.add(t * self.blocks + block) }
    }
}

/// Adds one sub-block of one token to its sums: exact integers in, the additions of `body::sub_block`.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
pub(super) unsafe fn accumulate<const SUBS: usize, const MIN: bool>(
    acc: __m512,
    level: __m512,
    (scale, min): (__m512, __m512),
    meta: &BlockMeta,
    sub: usize,
) -> __m512 {
    // SAFETY: register operations only.
    unsafe {
        let acc = _mm512_fmadd_ps(level, _mm512_mul_ps(scale, _mm512_set1_ps(meta.d)), acc);
        if MIN { _mm512_fmadd_ps(min, _mm512_set1_ps(meta.scaled_sum_of(SUBS, sub)), acc) } else { acc }
    }
}
