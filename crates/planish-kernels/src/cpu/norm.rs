//! y = x w / sqrt(mean x^2 + eps) by rows, with an optional residual sum first. Bound by reading x (and by latency at one row).

use crate::Error;
use crate::cpu::simd::{self, LANES, Shared, Simd, isa_kernel};
use std::ops::Range;

/// RMS norm of `tokens * heads` rows of `weight.len()` elements.
///
/// Row (t, h) starts at element `t * stride + h * columns` of its buffer, so `heads = 1` is the norm of a hidden state
/// and `heads = query heads` the norm of each head of qwen3 or gemma3 inside a fused projection.
/// Gemma's 1 + w is folded into `weight` by the loader.
pub struct RmsNorm<'a> {
    /// Input; with `residual`, also the sum's destination.
    pub x: Shared<'a, f32>,
    /// x <- x + residual before the norm, laid out as `x`.
    pub residual: Option<&'a [f32]>,
    /// Weights, one a column.
    pub weight: &'a [f32],
    /// Output; may be the buffer of `x` with the same stride.
    pub out: Shared<'a, f32>,
    /// Rows a token.
    pub heads: usize,
    /// Elements from one token to the next in `x` and `residual`.
    pub x_stride: usize,
    /// Elements from one token to the next in `out`.
    pub out_stride: usize,
    /// Added to the mean square.
    pub eps: f32,
}

isa_kernel! {
    /// The kernel for rows `rows` (token-major, `heads` a token).
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint rows, and nothing else touches those rows of `x` and `out`.
    pub fn rms_norm(args: &RmsNorm, rows: Range<usize>) = body
}

#[inline(always)]
unsafe fn body<S: Simd>(_: S, args: &RmsNorm, rows: Range<usize>) {
    let columns = args.weight.len();
    for row in rows {
        let (token, head) = (row / args.heads, row % args.heads);
        let (from, to) = (token * args.x_stride + head * columns, token * args.out_stride + head * columns);
        let x = args.x.at(from, columns);
        let out = args.out.at(to, columns);
        // SAFETY: `at` checked both rows, the slice is checked here; the caller keeps rows apart.
        unsafe {
            let squares = match args.residual {
                Some(r) => add_squares::<S>(x, r[from..from + columns].as_ptr(), columns),
                None => squares::<S>(x, columns),
            };
            let r = 1.0 / (squares / columns as f32 + args.eps).sqrt();
            scale_rows::<S>(x, args.weight.as_ptr(), out, columns, r);
        }
    }
}

/// Sum of squares: four chains of 16 lanes, added in a fixed order.
#[inline(always)]
unsafe fn squares<S: Simd>(x: *const f32, n: usize) -> f32 {
    // SAFETY: x[0..n] is readable.
    unsafe {
        let mut chains = [S::splat(0.0); 4];
        let mut i = 0;
        while i + 4 * LANES <= n {
            for (c, chain) in chains.iter_mut().enumerate() {
                let v = S::load(x.add(i + c * LANES));
                *chain = S::fma(v, v, *chain);
            }
            i += 4 * LANES;
        }
        while i < n {
            let v = simd::load_part::<S>(x.add(i), (n - i).min(LANES), 0.0);
            chains[0] = S::fma(v, v, chains[0]);
            i += LANES;
        }
        simd::sum::<S>(S::add(S::add(chains[0], chains[1]), S::add(chains[2], chains[3])))
    }
}

/// x <- x + r, then the sum of squares in the order of `squares`.
#[inline(always)]
unsafe fn add_squares<S: Simd>(x: *mut f32, r: *const f32, n: usize) -> f32 {
    // SAFETY: x[0..n] is readable and writable, r[0..n] readable.
    unsafe {
        let mut i = 0;
        while i + LANES <= n {
            S::store(x.add(i), S::add(S::load(x.add(i)), S::load(r.add(i))));
            i += LANES;
        }
        while i < n {
            *x.add(i) += *r.add(i);
            i += 1;
        }
        squares::<S>(x, n)
    }
}

#[inline(always)]
unsafe fn scale_rows<S: Simd>(x: *const f32, w: *const f32, out: *mut f32, n: usize, r: f32) {
    // SAFETY: x[0..n] and w[0..n] are readable, out[0..n] is writable and is x itself or apart from it.
    unsafe {
        let rs = S::splat(r);
        let mut i = 0;
        while i + LANES <= n {
            S::store(out.add(i), S::mul(S::mul(S::load(x.add(i)), rs), S::load(w.add(i))));
            i += LANES;
        }
        while i < n {
            *out.add(i) = *x.add(i) * r * *w.add(i);
            i += 1;
        }
    }
}

/// Whether every row of the arguments is inside its buffer; said once, before the launch.
///
/// # Errors
/// The sentence that names the buffer and its numbers.
pub fn check(args: &RmsNorm, tokens: usize) -> Result<(), Error> {
    let columns = args.weight.len();
    let need = |stride: usize| if tokens == 0 { 0 } else { (tokens - 1) * stride + args.heads * columns };
    let buffers = [
        ("x", args.x.len(), need(args.x_stride)),
        ("residual", args.residual.map_or(usize::MAX, <[f32]>::len), need(args.x_stride)),
        ("out", args.out.len(), need(args.out_stride)),
    ];
    match buffers.iter().find(|b| b.1 < b.2) {
        Some((name, have, need)) => {
            Err(Error::new(format!("rms_norm: {name} has {have} elements, {tokens} tokens need {need}")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "norm_tests.rs"]
mod tests;
