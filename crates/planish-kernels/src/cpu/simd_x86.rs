//! The vector type on x86-64: two AVX2 registers, or one AVX-512 register.
#![allow(clippy::undocumented_unsafe_blocks)] // every block is one intrinsic of the set that the trait's contract names

use super::{Job, LANES, Registers, Simd};
use std::arch::x86_64::*;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2;

/// AVX-512 F, BW, VL, DQ.
#[derive(Clone, Copy)]
pub struct Avx512;

macro_rules! both {
    ($f:ident($($v:expr),*)) => { unsafe { ($f($($v.0),*), $f($($v.1),*)) } };
}

impl Simd for Avx2 {
    type V = (__m256, __m256);

    #[inline(always)]
    unsafe fn call<J: Job>(job: J) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn compiled<J: Job>(job: J) {
            unsafe { job.run::<Avx2>() }
        }
        unsafe { compiled(job) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        let v = unsafe { _mm256_set1_ps(x) };
        (v, v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(LANES / 2))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(LANES / 2), v.1);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        unsafe {
            (_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(LANES / 2).cast())))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::V) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(p.add(LANES / 2).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        unsafe {
            let widen = |p: *const u16| {
                let h = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(h))
            };
            (widen(p), widen(p.add(LANES / 2)))
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        both!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            (_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        }
    }
    #[inline(always)]
    unsafe fn copysign(a: Self::V, s: Self::V) -> Self::V {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            let a = (_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1));
            (_mm256_or_ps(a.0, _mm256_and_ps(sign, s.0)), _mm256_or_ps(a.1, _mm256_and_ps(sign, s.1)))
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        unsafe {
            (
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn ldexp(p: Self::V, n: Self::V) -> Self::V {
        unsafe { (ldexp8(p.0, n.0), ldexp8(p.1, n.1)) }
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: Self::V) -> Self::V {
        unsafe { (_mm256_permute_ps::<0b10_11_00_01>(a.0), _mm256_permute_ps::<0b10_11_00_01>(a.1)) }
    }
}

/// p * 2^n as two factors that are both normal, so that the product rounds once even when it is subnormal.
#[inline(always)]
unsafe fn ldexp8(p: __m256, n: __m256) -> __m256 {
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let (first, bias) = (_mm256_srai_epi32::<1>(n), _mm256_set1_epi32(127));
        let second = _mm256_sub_epi32(n, first);
        let factor = |e| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(e, bias)));
        _mm256_mul_ps(_mm256_mul_ps(p, factor(first)), factor(second))
    }
}

impl Simd for Avx512 {
    type V = __m512;
    const REGISTERS: Registers = Registers::Many;

    #[inline(always)]
    unsafe fn call<J: Job>(job: J) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        unsafe fn compiled<J: Job>(job: J) {
            unsafe { job.run::<Avx512>() }
        }
        unsafe { compiled(job) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::V) {
        unsafe {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        unsafe {
            let h = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(h))
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn copysign(a: Self::V, s: Self::V) -> Self::V {
        unsafe {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, s))
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    unsafe fn ldexp(p: Self::V, n: Self::V) -> Self::V {
        unsafe { _mm512_scalef_ps(p, n) }
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: Self::V) -> Self::V {
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(a) }
    }
}
