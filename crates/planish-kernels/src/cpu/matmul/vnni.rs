//! The matmul lanes in AVX2 with the 256-bit AVX-512 VNNI byte dot product.

use super::avx2::{IQ4_SHUFFLE, by_count, shared_x86_ops};
use super::lanes::{Lanes, lane_ops};
use std::arch::x86_64::*;

/// 256-bit lanes whose byte dot products add up in i32 at once.
#[derive(Clone, Copy)]
pub(crate) struct VnniLanes;

impl Lanes for VnniLanes {
    type I = __m256i;
    type F = __m256;
    /// Magnitudes for the unsigned side of `vpdpbusd`, and the signs when the weights have any.
    type W = (__m256i, __m256i);
    /// Eight i32.
    type R = __m256i;

    const R_LIMIT: i64 = i32::MAX as i64;

    shared_x86_ops!();

    lane_ops! {
        fn prepare(w: __m256i, signed: bool) -> (__m256i, __m256i) =
            if signed { (_mm256_abs_epi8(w), w) } else { (w, w) };
        fn dot(w: (__m256i, __m256i), a: __m256i, signed: bool) -> __m256i =
            Self::dot_add(_mm256_setzero_si256(), w, a, signed);
        fn dot_add(r: __m256i, w: (__m256i, __m256i), a: __m256i, signed: bool) -> __m256i =
            _mm256_dpbusd_epi32(r, w.0, if signed { _mm256_sign_epi8(a, w.1) } else { a });
        fn finish(r: __m256i) -> __m256i = r;
    }
}
