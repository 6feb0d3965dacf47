//! The matmul lanes in AVX2 with FMA and F16C.

use super::lanes::{Lanes, lane_ops};
use std::arch::x86_64::*;

/// 256-bit lanes; sums of byte products stay in i16 as long as they cannot overflow.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Lanes;

/// The sixteen levels of IQ4, twice, for a byte shuffle.
pub(super) static IQ4_SHUFFLE: [i8; 32] = {
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        table[i] = crate::quant::IQ4_LEVELS[i % 16];
        i += 1;
    }
    table
};

macro_rules! by_count {
    ($f:ident, $a:expr, $n:expr) => {
        match $n {
            0 => $a,
            1 => $f::<1>($a),
            2 => $f::<2>($a),
            3 => $f::<3>($a),
            4 => $f::<4>($a),
            5 => $f::<5>($a),
            6 => $f::<6>($a),
            7 => $f::<7>($a),
            n => unreachable!("shift by {n}"),
        }
    };
}
pub(super) use by_count;

/// Operations that are the same with and without VNNI.
macro_rules! shared_x86_ops {
    () => {
        lane_ops! {
            fn zero_i() -> __m256i = _mm256_setzero_si256();
            fn zero_r() -> __m256i = _mm256_setzero_si256();
            fn zero_w() -> (__m256i, __m256i) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            fn zero_f() -> __m256 = _mm256_setzero_ps();
            fn load_i(p: *const u8) -> __m256i = _mm256_loadu_si256(p.cast());
            fn splat_u8(x: u8) -> __m256i = _mm256_set1_epi8(x as i8);
            fn and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
            fn or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
            fn shr(a: __m256i, n: u32) -> __m256i = by_count!(_mm256_srli_epi16, a, n);
            fn shl(a: __m256i, n: u32) -> __m256i = by_count!(_mm256_slli_epi16, a, n);
            fn widen(a: __m256i, b: u32, signed: bool) -> __m256i = match (b, signed) {
                (0, false) => _mm256_and_si256(a, _mm256_set1_epi32(255)),
                (1, false) => _mm256_and_si256(_mm256_srli_epi32::<8>(a), _mm256_set1_epi32(255)),
                (2, false) => _mm256_and_si256(_mm256_srli_epi32::<16>(a), _mm256_set1_epi32(255)),
                (_, false) => _mm256_srli_epi32::<24>(a),
                (0, true) => _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(a)),
                (1, true) => _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(a)),
                (2, true) => _mm256_srai_epi32::<24>(_mm256_slli_epi32::<8>(a)),
                (_, true) => _mm256_srai_epi32::<24>(a),
            };
            fn iq4_levels(codes: __m256i) -> __m256i =
                _mm256_shuffle_epi8(_mm256_loadu_si256(IQ4_SHUFFLE.as_ptr().cast()), codes);
            fn splat_quad(p: *const i8) -> __m256i = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            fn add_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
            fn to_f32(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
            fn load_f(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
            fn store_f(p: *mut f32, a: __m256) -> () = _mm256_storeu_ps(p, a);
            fn splat_f(x: f32) -> __m256 = _mm256_set1_ps(x);
            fn load_f16(p: *const u8) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
            fn load_bf16(p: *const u8) -> __m256 =
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
            fn load_bytes(p: *const u8, signed: bool) -> __m256i = {
                let b = _mm_loadl_epi64(p.cast());
                if signed { _mm256_cvtepi8_epi32(b) } else { _mm256_cvtepu8_epi32(b) }
            };
            fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
            fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
            fn neg(a: __m256) -> __m256 = _mm256_xor_ps(a, _mm256_set1_ps(-0.0));
            fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
            fn prefetch(p: *const u8) -> () = planish_device::prefetch(p);
        }
    };
}

pub(super) use shared_x86_ops;

impl Lanes for Avx2Lanes {
    type I = __m256i;
    type F = __m256;
    /// Magnitudes for the unsigned side of `vpmaddubsw`, and the signs when the weights have any.
    type W = (__m256i, __m256i);
    /// Sixteen i16.
    type R = __m256i;

    const R_LIMIT: i64 = i16::MAX as i64;

    shared_x86_ops!();

    lane_ops! {
        fn prepare(w: __m256i, signed: bool) -> (__m256i, __m256i) =
            if signed { (_mm256_abs_epi8(w), w) } else { (w, w) };
        fn dot(w: (__m256i, __m256i), a: __m256i, signed: bool) -> __m256i =
            _mm256_maddubs_epi16(w.0, if signed { _mm256_sign_epi8(a, w.1) } else { a });
        fn dot_add(r: __m256i, w: (__m256i, __m256i), a: __m256i, signed: bool) -> __m256i =
            _mm256_add_epi16(r, Self::dot(w, a, signed));
        fn finish(r: __m256i) -> __m256i = _mm256_madd_epi16(r, _mm256_set1_epi16(1));
    }
}
