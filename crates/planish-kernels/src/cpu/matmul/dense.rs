//! Float weights (f32, f16, bf16), row-major as in the file: `TOKENS` activations against `ROWS` rows.
//!
//! An output is the sum of sixteen partial sums (column modulo 16), each in column order, reduced by one fixed tree:
//! the same bits for every tile shape and instruction set.

// Indices count lanes of several arrays at once; iterators over them hide which register is meant.
#![allow(clippy::needless_range_loop)]

use super::body::{TileAt, store_rows};
use super::lanes::Lanes;
use super::{MatmulArgs, X};

/// A float type as a compile-time constant.
pub(crate) trait Float: 'static {
    const BYTES: usize;
    /// Eight elements at `p`; see [`Lanes`].
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F;
}

macro_rules! floats {
    ($($name:ident $bytes:literal $p:ident => $load:expr;)*) => {
        $(
            pub(crate) struct $name;
            impl Float for $name {
                const BYTES: usize = $bytes;
                #[inline(always)]
                unsafe fn load<S: Lanes>($p: *const u8) -> S::F {
                    // SAFETY: the contract of `Lanes`.
                    unsafe { $load }
                }
            }
        )*
    };
}
floats! {
    F32 4 p => S::load_f(p.cast());
    F16 2 p => S::load_f16(p);
    BF16 2 p => S::load_bf16(p);
}

/// The tree that adds sixteen partial sums.
fn reduce(p: &[f32; 16]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| p[i] + p[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// One tile of outputs; `at.group` counts groups of eight rows and the tile covers `GROUPS` of them, `ROWS` at a time.
///
/// # Safety
/// `args` has passed its check, `at` lies inside it, and the processor has the instruction set of `S`.
#[inline(always)]
pub(crate) unsafe fn dense_tile<S: Lanes, E: Float, const TOKENS: usize, const ROWS: usize>(
    args: &MatmulArgs,
    at: TileAt,
    groups: usize,
) {
    let X::F32(x) = args.x else { unreachable!("a float kernel was given int8 activations") };
    let cols = args.layout.cols();
    let first = (8 * at.group).max(at.row_start);
    let end = (8 * (at.group + groups)).min(at.row_end);
    let mut row = first;
    while row < end {
        let rows = ROWS.min(end - row);
        // SAFETY: rows `row..row + rows` are in the weights; lanes past `rows` read the last of them again.
        unsafe {
            let w: [*const u8; ROWS] =
                std::array::from_fn(|r| args.weights.as_ptr().add((row + r.min(rows - 1)) * cols * E::BYTES));
            let x: [*const f32; TOKENS] = std::array::from_fn(|t| x.as_ptr().add((at.token + t) * cols));
            let sums = dots::<S, E, TOKENS, ROWS>(&w, &x, cols, args.knobs.prefetch);
            for (t, sums) in sums.iter().enumerate() {
                store_rows(args, at, row, &sums[..rows], args.out.add((at.token + t) * args.out_stride));
            }
        }
        row += rows;
    }
}

#[inline(always)]
unsafe fn dots<S: Lanes, E: Float, const TOKENS: usize, const ROWS: usize>(
    w: &[*const u8; ROWS],
    x: &[*const f32; TOKENS],
    cols: usize,
    prefetch: usize,
) -> [[f32; ROWS]; TOKENS] {
    // SAFETY: the caller's pointers cover `cols` elements; the tail is copied into whole vectors first.
    unsafe {
        let mut acc = [[[S::zero_f(); 2]; ROWS]; TOKENS];
        let mut c = 0;
        while c + 16 <= cols {
            if TOKENS == 1 {
                for r in 0..ROWS {
                    S::prefetch(w[r].wrapping_add(c * E::BYTES + prefetch));
                }
            }
            for half in 0..2 {
                let at = c + 8 * half;
                let mut weights = [S::zero_f(); ROWS];
                for r in 0..ROWS {
                    weights[r] = E::load::<S>(w[r].add(at * E::BYTES));
                }
                for t in 0..TOKENS {
                    let x = S::load_f(x[t].add(at));
                    for r in 0..ROWS {
                        acc[t][r][half] = S::fma(weights[r], x, acc[t][r][half]);
                    }
                }
            }
            c += 16;
        }
        if c < cols {
            for t in 0..TOKENS {
                let mut tail = [0.0f32; 16];
                std::ptr::copy_nonoverlapping(x[t].add(c), tail.as_mut_ptr(), cols - c);
                for r in 0..ROWS {
                    let mut bytes = [0u8; 64];
                    std::ptr::copy_nonoverlapping(w[r].add(c * E::BYTES), bytes.as_mut_ptr(), (cols - c) * E::BYTES);
                    for half in 0..2 {
                        let weights = E::load::<S>(bytes.as_ptr().add(8 * half * E::BYTES));
                        acc[t][r][half] = S::fma(weights, S::load_f(tail.as_ptr().add(8 * half)), acc[t][r][half]);
                    }
                }
            }
        }
        let mut out = [[0.0; ROWS]; TOKENS];
        for t in 0..TOKENS {
            for r in 0..ROWS {
                let mut parts = [0.0f32; 16];
                S::store_f(parts.as_mut_ptr(), acc[t][r][0]);
                S::store_f(parts.as_mut_ptr().add(8), acc[t][r][1]);
                out[t][r] = reduce(&parts);
            }
        }
        out
    }
}
