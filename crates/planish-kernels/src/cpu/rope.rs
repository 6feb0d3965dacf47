//! Rotary position embedding, with angles from a `RopeTable`. Bound by reading and writing x.
//!
//! x1' = x1 cos - x2 sin, x2' = x1 sin + x2 cos, over pairs of rotary elements; the rest of a head passes.
//! Angles are not tabled for the whole context: a step fills one row a token and all layers use it.

use crate::cpu::simd::{self, LANES, Shared, Simd, isa_kernel};
pub use crate::reference::rope::Pairs;
pub use crate::rope_table::{RopeTable, Scaling, Yarn, rope_table};
use std::ops::Range;

/// Rotates `heads` heads of each token in place.
///
/// Head h of token t starts at element `t * stride + h * head_dim` of `x`.
pub struct Rope<'a> {
    /// Queries or keys.
    pub x: Shared<'a, f32>,
    /// Rows of [`RopeTable::fill`], one a token.
    pub cos: &'a [f32],
    /// As `cos`.
    pub sin: &'a [f32],
    /// How elements pair up; the same as in the table that filled the rows.
    pub pairs: Pairs,
    /// Elements that rotate; at most `head_dim`.
    pub rotary_dim: usize,
    /// Heads a token.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements from one token to the next.
    pub stride: usize,
}

isa_kernel! {
    /// Rotates heads `range` (token-major, `heads` a token).
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint ranges, and nothing else touches those heads.
    pub fn rope(args: &Rope, range: Range<usize>) = body
}

#[inline(always)]
unsafe fn body<S: Simd>(_: S, args: &Rope, range: Range<usize>) {
    let n = args.rotary_dim;
    assert!(n <= args.head_dim, "{n} rotary elements of {}", args.head_dim);
    let row = if args.pairs == Pairs::Halves { n / 2 } else { n };
    for i in range {
        let (token, head) = (i / args.heads, i % args.heads);
        let x = args.x.at(token * args.stride + head * args.head_dim, args.head_dim);
        let cos = &args.cos[token * row..(token + 1) * row];
        let sin = &args.sin[token * row..(token + 1) * row];
        // SAFETY: x holds head_dim >= n elements, cos and sin one row; the caller keeps heads apart.
        unsafe {
            match args.pairs {
                Pairs::Halves => halves::<S>(x, cos, sin),
                Pairs::Neighbours => neighbours::<S>(x, cos, sin),
            }
        }
    }
}

#[inline(always)]
unsafe fn halves<S: Simd>(x: *mut f32, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for i in (0..half).step_by(LANES) {
        let n = (half - i).min(LANES);
        // SAFETY: x holds 2 * half elements, cos and sin half; n stays inside both halves.
        unsafe {
            let (low, high) = (x.add(i), x.add(half + i));
            let (a, b) = (simd::load_part::<S>(low, n, 0.0), simd::load_part::<S>(high, n, 0.0));
            let c = simd::load_part::<S>(cos.as_ptr().add(i), n, 0.0);
            let s = simd::load_part::<S>(sin.as_ptr().add(i), n, 0.0);
            simd::store_part::<S>(low, S::sub(S::mul(a, c), S::mul(b, s)), n);
            simd::store_part::<S>(high, S::fma(a, s, S::mul(b, c)), n);
        }
    }
}

#[inline(always)]
unsafe fn neighbours<S: Simd>(x: *mut f32, cos: &[f32], sin: &[f32]) {
    for i in (0..cos.len()).step_by(LANES) {
        let n = (cos.len() - i).min(LANES);
        // SAFETY: x, cos and sin hold cos.len() elements.
        unsafe {
            let v = simd::load_part::<S>(x.add(i), n, 0.0);
            let c = simd::load_part::<S>(cos.as_ptr().add(i), n, 0.0);
            let s = simd::load_part::<S>(sin.as_ptr().add(i), n, 0.0);
            simd::store_part::<S>(x.add(i), S::fma(S::swap_pairs(v), s, S::mul(v, c)), n);
        }
    }
}

#[cfg(test)]
#[path = "rope_tests.rs"]
mod tests;
