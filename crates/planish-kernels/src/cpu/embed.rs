//! Embedding gather: one row of an F32, F16 or BF16 table a token, times a factor. Bound by the latency of the row.
//!
//! Rows of block formats are unpacked by the format's own row function and scaled with `act::scale`.

use crate::cpu::simd::{self, LANES, Shared, Simd, isa_kernel};
use std::ops::Range;

/// A row-major table of unquantised rows.
#[derive(Clone, Copy)]
pub enum Table<'a> {
    /// f32 values.
    F32(&'a [f32]),
    /// IEEE half bits.
    F16(&'a [u16]),
    /// bfloat16 bits.
    Bf16(&'a [u16]),
}

/// out[t] = factor * table[tokens[t]].
pub struct Gather<'a> {
    /// `[vocabulary][columns]`.
    pub table: Table<'a>,
    /// Row of each token; each is below the vocabulary (a kernel panics otherwise).
    pub tokens: &'a [u32],
    /// `[tokens][columns]`.
    pub out: Shared<'a, f32>,
    /// Elements of a row.
    pub columns: usize,
    /// 1, or gemma's square root of the hidden size.
    pub factor: f32,
}

isa_kernel! {
    /// Rows `range` of the output.
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint ranges, and nothing else touches those rows of `out`.
    pub fn gather(args: &Gather, range: Range<usize>) = body
}

#[inline(always)]
unsafe fn body<S: Simd>(_: S, args: &Gather, range: Range<usize>) {
    let n = args.columns;
    for t in range {
        let from = args.tokens[t] as usize * n;
        let out = args.out.at(t * n, n);
        // SAFETY: slices and `at` check both rows; the caller keeps rows of `out` apart.
        unsafe {
            match args.table {
                Table::F32(x) => row::<S, f32>(x[from..from + n].as_ptr(), out, n, args.factor),
                Table::F16(x) => row::<S, Half>(x[from..from + n].as_ptr().cast(), out, n, args.factor),
                Table::Bf16(x) => row::<S, Brain>(x[from..from + n].as_ptr().cast(), out, n, args.factor),
            }
        }
    }
}

/// An element type that 16 lanes load from.
///
/// # Safety
/// Any bit pattern is a value, and `load` reads exactly sixteen of them.
pub(crate) unsafe trait Element: Copy + Default + 'static {
    /// Whether loading changes nothing.
    const IS_F32: bool = false;

    /// # Safety
    /// As [`Simd`]; `p[0..16]` is readable.
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
}

/// IEEE half bits.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Half(pub u16);

/// bfloat16 bits.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Brain(pub u16);

// SAFETY: any bits are an f32, and sixteen are read.
unsafe impl Element for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: the caller vouches for p.
        unsafe { S::load(p) }
    }
}

// SAFETY: any bits are a half, and sixteen are read.
unsafe impl Element for Half {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Half) -> S::V {
        // SAFETY: the caller vouches for p; the wrapper is transparent.
        unsafe { S::load_f16(p.cast()) }
    }
}

// SAFETY: any bits are a bfloat16, and sixteen are read.
unsafe impl Element for Brain {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Brain) -> S::V {
        // SAFETY: the caller vouches for p; the wrapper is transparent.
        unsafe { S::load_bf16(p.cast()) }
    }
}

#[inline(always)]
unsafe fn row<S: Simd, E: Element>(x: *const E, out: *mut f32, n: usize, factor: f32) {
    // SAFETY: n elements are readable at x and writable at out.
    unsafe {
        let mut i = 0;
        while i + LANES <= n {
            S::store(out.add(i), S::mul(E::load::<S>(x.add(i)), S::splat(factor)));
            i += LANES;
        }
        if i < n {
            let mut tail = [E::default(); LANES];
            std::ptr::copy_nonoverlapping(x.add(i), tail.as_mut_ptr(), n - i);
            simd::store_part::<S>(out.add(i), S::mul(E::load::<S>(tail.as_ptr()), S::splat(factor)), n - i);
        }
    }
}

#[cfg(test)]
#[path = "embed_tests.rs"]
mod tests;
