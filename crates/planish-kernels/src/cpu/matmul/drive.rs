//! Walks a row range and all tokens with one register tile, inside one instruction set.

use super::MatmulArgs;
use super::body::{TileAt, f32_tile, int8_tile};
use super::dense::{Float, dense_tile};
use super::formats::Format;
use super::lanes::{Lanes, PortableLanes};
use super::rate::{self, Operands};
use std::ops::Range;

/// Lanes whose tiles are compiled with their instruction set switched on.
///
/// # Safety
/// As for the tiles in `body` and `dense`.
pub(crate) trait Machine: Lanes {
    unsafe fn int8<F: Format, const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt);
    unsafe fn f32<F: Format, const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt);
    unsafe fn dense<E: Float, const TOKENS: usize, const ROWS: usize>(args: &MatmulArgs, at: TileAt, groups: usize);
    unsafe fn dots<const TOKENS: usize>(operands: &Operands, rounds: usize) -> i32;
}

/// Implements [`Machine`]: each tile becomes a function of its own with the features enabled.
macro_rules! machine {
    ($lanes:ty $(, $features:literal)?) => {
        impl Machine for $lanes {
            unsafe fn int8<F: Format, const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt) {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<F: Format, const T: usize, const G: usize>(args: &MatmulArgs, at: TileAt) {
                    // SAFETY: the contract of `Machine`.
                    unsafe { int8_tile::<$lanes, F, T, G>(args, at) }
                }
                // SAFETY: the contract of `Machine`.
                unsafe { run::<F, TOKENS, GROUPS>(args, at) }
            }
            unsafe fn f32<F: Format, const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt) {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<F: Format, const T: usize, const G: usize>(args: &MatmulArgs, at: TileAt) {
                    // SAFETY: the contract of `Machine`.
                    unsafe { f32_tile::<$lanes, F, T, G>(args, at) }
                }
                // SAFETY: the contract of `Machine`.
                unsafe { run::<F, TOKENS, GROUPS>(args, at) }
            }
            unsafe fn dense<E: Float, const TOKENS: usize, const ROWS: usize>(
                args: &MatmulArgs,
                at: TileAt,
                groups: usize,
            ) {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<E: Float, const T: usize, const R: usize>(args: &MatmulArgs, at: TileAt, groups: usize) {
                    // SAFETY: the contract of `Machine`.
                    unsafe { dense_tile::<$lanes, E, T, R>(args, at, groups) }
                }
                // SAFETY: the contract of `Machine`.
                unsafe { run::<E, TOKENS, ROWS>(args, at, groups) }
            }
            unsafe fn dots<const TOKENS: usize>(operands: &Operands, rounds: usize) -> i32 {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<const T: usize>(operands: &Operands, rounds: usize) -> i32 {
                    // SAFETY: the contract of `Machine`.
                    unsafe { rate::rounds::<$lanes, T>(operands, rounds) }
                }
                // SAFETY: the contract of `Machine`.
                unsafe { run::<TOKENS>(operands, rounds) }
            }
        }
    };
}

machine!(PortableLanes);
#[cfg(target_arch = "x86_64")]
machine!(super::avx2::Avx2Lanes, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
machine!(super::vnni::VnniLanes, "avx2,fma,f16c,avx512vnni,avx512vl");
#[cfg(target_arch = "aarch64")]
machine!(super::neon::NeonLanes, "neon,dotprod");

/// Something that computes tiles of any of the shapes that a walk needs.
pub(crate) trait Tiles {
    /// Computes `TOKENS` tokens and `GROUPS` groups.
    unsafe fn tile<const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt);
}

/// Quantised weights, int8 activations.
pub(crate) struct Int8<M, F>(std::marker::PhantomData<(M, F)>);
/// Quantised weights, f32 activations.
pub(crate) struct Float32<M, F>(std::marker::PhantomData<(M, F)>);
/// Float weights, f32 activations.
pub(crate) struct Dense<M, E>(std::marker::PhantomData<(M, E)>);

impl<M: Machine, F: Format> Tiles for Int8<M, F> {
    unsafe fn tile<const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt) {
        // SAFETY: the caller's contract.
        unsafe { M::int8::<F, TOKENS, GROUPS>(args, at) }
    }
}

impl<M: Machine, F: Format> Tiles for Float32<M, F> {
    unsafe fn tile<const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt) {
        // SAFETY: the caller's contract.
        unsafe { M::f32::<F, TOKENS, GROUPS>(args, at) }
    }
}

impl<M: Machine, E: Float> Tiles for Dense<M, E> {
    unsafe fn tile<const TOKENS: usize, const GROUPS: usize>(args: &MatmulArgs, at: TileAt) {
        // SAFETY: the caller's contract. Rows in flight are chosen so that the partial sums stay in registers.
        unsafe {
            match TOKENS {
                1 => M::dense::<E, TOKENS, 4>(args, at, GROUPS),
                _ => M::dense::<E, TOKENS, 2>(args, at, GROUPS),
            }
        }
    }
}

/// All of `rows` for all tokens, in tiles of `TOKENS` × `GROUPS`; smaller tiles finish both edges.
///
/// Rows go in blocks of `row_block` so that their weights are still cached when the next tokens pass by.
///
/// # Safety
/// See [`super::MatmulFn`].
pub(crate) unsafe fn walk<K: Tiles, const TOKENS: usize, const GROUPS: usize>(
    args: &MatmulArgs,
    rows: Range<usize>,
    _scratch: &mut [u8],
) {
    let end = rows.end.div_ceil(8);
    let step = (args.knobs.row_block / 8).max(GROUPS);
    let mut first = rows.start / 8;
    while first < end {
        let groups = first..end.min(first + step);
        let mut token = 0;
        // SAFETY: tiles stay inside the groups of `rows` and the tokens of `args`.
        unsafe {
            while token + TOKENS <= args.tokens {
                strip::<K, TOKENS, GROUPS>(args, &rows, groups.clone(), token);
                token += TOKENS;
            }
            while token < args.tokens {
                strip::<K, 1, 1>(args, &rows, groups.clone(), token);
                token += 1;
            }
        }
        first = groups.end;
    }
}

/// The groups of one block for `TOKENS` tokens.
unsafe fn strip<K: Tiles, const TOKENS: usize, const GROUPS: usize>(
    args: &MatmulArgs,
    rows: &Range<usize>,
    groups: Range<usize>,
    token: usize,
) {
    let mut at = TileAt { group: groups.start, token, row_start: rows.start, row_end: rows.end };
    // SAFETY: the caller's contract.
    unsafe {
        while at.group + GROUPS <= groups.end {
            K::tile::<TOKENS, GROUPS>(args, at);
            at.group += GROUPS;
        }
        while at.group < groups.end {
            K::tile::<TOKENS, 1>(args, at);
            at.group += 1;
        }
    }
}
