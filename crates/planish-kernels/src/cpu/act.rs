//! Elementwise ops: gated activations, residual sum, scaling and logit softcap. Bound by memory, but for their exponentials.

use crate::cpu::simd::{self, LANES, Shared, Simd, isa_kernel};
use std::ops::Range;

/// One op of two inputs: out_i = f(a_i, b_i).
///
/// Element (row, i) is at `row * stride + i`, for `columns` elements a row: a gate and an up projection that a fused
/// matrix writes side by side are `a = all`, `b = &all[columns..]` with `stride = 2 * columns`.
pub struct Binary<'a> {
    /// First input (the gate).
    pub a: &'a [f32],
    /// Second input.
    pub b: &'a [f32],
    /// Output, `[rows][columns]` without gaps.
    pub out: Shared<'a, f32>,
    /// Elements of a row.
    pub columns: usize,
    /// Elements from one row to the next in `a` and `b`.
    pub stride: usize,
}

/// One op in place: x_i <- f(x_i).
pub struct Unary<'a> {
    /// Values.
    pub x: Shared<'a, f32>,
    /// Factor of `scale`, cap of `softcap`.
    pub parameter: f32,
}

isa_kernel! {
    /// a / (1 + e^-a) * b on elements `range` of the output.
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint ranges, and nothing else touches them in `out`.
    pub fn swiglu(args: &Binary, range: Range<usize>) = swiglu_body
}

isa_kernel! {
    /// tanh-GELU(a) * b on elements `range` of the output.
    ///
    /// # Safety
    /// As [`swiglu`].
    pub fn geglu(args: &Binary, range: Range<usize>) = geglu_body
}

isa_kernel! {
    /// a + b on elements `range` of the output.
    ///
    /// # Safety
    /// As [`swiglu`].
    pub fn add(args: &Binary, range: Range<usize>) = add_body
}

isa_kernel! {
    /// x <- parameter * x on elements `range`.
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint ranges, and nothing else touches them in `x`.
    pub fn scale(args: &Unary, range: Range<usize>) = scale_body
}

isa_kernel! {
    /// x <- cap tanh(x / cap) on elements `range`.
    ///
    /// # Safety
    /// As [`scale`].
    pub fn softcap(args: &Unary, range: Range<usize>) = softcap_body
}

isa_kernel! {
    /// x <- x + b in place on elements `range`.
    ///
    /// # Safety
    /// As [`scale`].
    pub fn add_assign(x: &Shared<f32>, b: &[f32], range: Range<usize>) = add_assign_body
}

/// A function of two vectors, as a type, so that loops over it stay one inlined body.
trait Gate {
    /// # Safety
    /// As [`Simd`].
    unsafe fn apply<S: Simd>(a: S::V, b: S::V) -> S::V;
}

struct Silu;
struct Gelu;
struct Sum;

impl Gate for Silu {
    #[inline(always)]
    unsafe fn apply<S: Simd>(a: S::V, b: S::V) -> S::V {
        // SAFETY: registers only, inside code compiled for S.
        unsafe { S::mul(sigmoid_times::<S>(a, a), b) }
    }
}

impl Gate for Gelu {
    /// 0.5 (1 + tanh u) is the logistic function of 2u, which loses nothing where tanh u is near -1.
    #[inline(always)]
    unsafe fn apply<S: Simd>(a: S::V, b: S::V) -> S::V {
        const CUBIC: f32 = 0.044_715;
        const TWICE_ROOT: f32 = 1.595_769; // 2 sqrt(2 / pi)
        // SAFETY: registers only, inside code compiled for S.
        unsafe {
            let inner = S::fma(S::mul(S::splat(CUBIC), S::mul(a, a)), a, a);
            S::mul(sigmoid_times::<S>(S::mul(S::splat(TWICE_ROOT), inner), a), b)
        }
    }
}

impl Gate for Sum {
    #[inline(always)]
    unsafe fn apply<S: Simd>(a: S::V, b: S::V) -> S::V {
        // SAFETY: registers only, inside code compiled for S.
        unsafe { S::add(a, b) }
    }
}

/// x / (1 + e^-u).
#[inline(always)]
unsafe fn sigmoid_times<S: Simd>(u: S::V, x: S::V) -> S::V {
    // SAFETY: registers only, inside code compiled for S.
    unsafe {
        let e = simd::exp::<S>(S::sub(S::splat(0.0), u));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

#[inline(always)]
unsafe fn swiglu_body<S: Simd>(_: S, args: &Binary, range: Range<usize>) {
    // SAFETY: the caller keeps ranges apart.
    unsafe { binary::<S, Silu>(args, range) }
}

#[inline(always)]
unsafe fn geglu_body<S: Simd>(_: S, args: &Binary, range: Range<usize>) {
    // SAFETY: the caller keeps ranges apart.
    unsafe { binary::<S, Gelu>(args, range) }
}

#[inline(always)]
unsafe fn add_body<S: Simd>(_: S, args: &Binary, range: Range<usize>) {
    // SAFETY: the caller keeps ranges apart.
    unsafe { binary::<S, Sum>(args, range) }
}

#[inline(always)]
unsafe fn binary<S: Simd, G: Gate>(args: &Binary, range: Range<usize>) {
    let mut at = range.start;
    while at < range.end {
        let (row, column) = (at / args.columns, at % args.columns);
        let n = (args.columns - column).min(range.end - at);
        let from = row * args.stride + column;
        let (a, b) = (&args.a[from..from + n], &args.b[from..from + n]);
        // SAFETY: `at` checked out[at..at + n], the slices are checked; the caller keeps ranges apart.
        unsafe { stretch::<S, G>(a.as_ptr(), b.as_ptr(), args.out.at(at, n), n) }
        at += n;
    }
}

#[inline(always)]
unsafe fn stretch<S: Simd, G: Gate>(a: *const f32, b: *const f32, out: *mut f32, n: usize) {
    // SAFETY: n elements are readable at a and b and writable at out; out is an input itself or apart from both.
    unsafe {
        let mut i = 0;
        while i + LANES <= n {
            S::store(out.add(i), G::apply::<S>(S::load(a.add(i)), S::load(b.add(i))));
            i += LANES;
        }
        if i < n {
            let (va, vb) = (simd::load_part::<S>(a.add(i), n - i, 0.0), simd::load_part::<S>(b.add(i), n - i, 0.0));
            simd::store_part::<S>(out.add(i), G::apply::<S>(va, vb), n - i);
        }
    }
}

#[inline(always)]
unsafe fn add_assign_body<S: Simd>(_: S, x: &Shared<f32>, b: &[f32], range: Range<usize>) {
    let n = range.len();
    let (x, b) = (x.at(range.start, n), &b[range]);
    // SAFETY: both stretches are checked; the caller keeps ranges apart.
    unsafe { stretch::<S, Sum>(x, b.as_ptr(), x, n) }
}

#[inline(always)]
unsafe fn scale_body<S: Simd>(_: S, args: &Unary, range: Range<usize>) {
    let x = args.x.at(range.start, range.len());
    for i in (0..range.len()).step_by(LANES) {
        let n = (range.len() - i).min(LANES);
        // SAFETY: x[i..i + n] is inside the checked range; the caller keeps ranges apart.
        unsafe {
            let v = simd::load_part::<S>(x.add(i), n, 0.0);
            simd::store_part::<S>(x.add(i), S::mul(v, S::splat(args.parameter)), n);
        }
    }
}

#[inline(always)]
unsafe fn softcap_body<S: Simd>(_: S, args: &Unary, range: Range<usize>) {
    let x = args.x.at(range.start, range.len());
    for i in (0..range.len()).step_by(LANES) {
        let n = (range.len() - i).min(LANES);
        // SAFETY: x[i..i + n] is inside the checked range; the caller keeps ranges apart.
        unsafe {
            let v = simd::load_part::<S>(x.add(i), n, 0.0);
            simd::store_part::<S>(x.add(i), cap::<S>(v, args.parameter), n);
        }
    }
}

/// cap tanh(x / cap).
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub(crate) unsafe fn cap<S: Simd>(x: S::V, cap: f32) -> S::V {
    // SAFETY: registers only, inside code compiled for S.
    unsafe { S::mul(S::splat(cap), simd::tanh::<S>(S::div(x, S::splat(cap)))) }
}

#[cfg(test)]
#[path = "act_tests.rs"]
mod tests;
