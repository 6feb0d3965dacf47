//! The vector type on AArch64: four NEON registers.
#![allow(clippy::undocumented_unsafe_blocks)] // every block is intrinsics of the set that the trait's contract names

use super::{Job, LANES, Simd, f32_to_f16};
use std::arch::aarch64::*;

/// Advanced SIMD.
#[derive(Clone, Copy)]
pub struct Neon;

type V4 = float32x4x4_t;

macro_rules! each {
    ($f:ident($a:expr)) => {
        unsafe { float32x4x4_t($f($a.0), $f($a.1), $f($a.2), $f($a.3)) }
    };
    ($f:ident($a:expr, $b:expr)) => {
        unsafe { float32x4x4_t($f($a.0, $b.0), $f($a.1, $b.1), $f($a.2, $b.2), $f($a.3, $b.3)) }
    };
    ($f:ident($a:expr, $b:expr, $c:expr)) => {
        unsafe { float32x4x4_t($f($a.0, $b.0, $c.0), $f($a.1, $b.1, $c.1), $f($a.2, $b.2, $c.2), $f($a.3, $b.3, $c.3)) }
    };
}

impl Simd for Neon {
    type V = V4;

    #[inline(always)]
    unsafe fn call<J: Job>(job: J) {
        #[inline(never)]
        #[target_feature(enable = "neon")]
        unsafe fn compiled<J: Job>(job: J) {
            unsafe { job.run::<Neon>() }
        }
        unsafe { compiled(job) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> V4 {
        let v = unsafe { vdupq_n_f32(x) };
        float32x4x4_t(v, v, v, v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V4 {
        unsafe { float32x4x4_t(vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V4) {
        unsafe {
            vst1q_f32(p, v.0);
            vst1q_f32(p.add(4), v.1);
            vst1q_f32(p.add(8), v.2);
            vst1q_f32(p.add(12), v.3);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> V4 {
        unsafe { float32x4x4_t(widen_f16(p), widen_f16(p.add(4)), widen_f16(p.add(8)), widen_f16(p.add(12))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: V4) {
        // Not a hot path (one row a token), and the vector conversion needs a type that is not stable yet.
        let mut lanes = [0.0; LANES];
        unsafe {
            Self::store(lanes.as_mut_ptr(), v);
            p.cast::<[u16; LANES]>().write_unaligned(lanes.map(f32_to_f16));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> V4 {
        unsafe { float32x4x4_t(widen_bf16(p), widen_bf16(p.add(4)), widen_bf16(p.add(8)), widen_bf16(p.add(12))) }
    }
    #[inline(always)]
    unsafe fn add(a: V4, b: V4) -> V4 {
        each!(vaddq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: V4, b: V4) -> V4 {
        each!(vsubq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: V4, b: V4) -> V4 {
        each!(vmulq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: V4, b: V4) -> V4 {
        each!(vdivq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: V4, b: V4, c: V4) -> V4 {
        each!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    unsafe fn max(a: V4, b: V4) -> V4 {
        each!(greater(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: V4, b: V4) -> V4 {
        each!(lesser(a, b))
    }
    #[inline(always)]
    unsafe fn abs(a: V4) -> V4 {
        each!(vabsq_f32(a))
    }
    #[inline(always)]
    unsafe fn copysign(a: V4, s: V4) -> V4 {
        each!(signed_as(a, s))
    }
    #[inline(always)]
    unsafe fn select_lt(a: V4, b: V4, x: V4, y: V4) -> V4 {
        unsafe {
            float32x4x4_t(
                vbslq_f32(vcltq_f32(a.0, b.0), x.0, y.0),
                vbslq_f32(vcltq_f32(a.1, b.1), x.1, y.1),
                vbslq_f32(vcltq_f32(a.2, b.2), x.2, y.2),
                vbslq_f32(vcltq_f32(a.3, b.3), x.3, y.3),
            )
        }
    }
    #[inline(always)]
    unsafe fn ldexp(p: V4, n: V4) -> V4 {
        each!(ldexp4(p, n))
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: V4) -> V4 {
        each!(vrev64q_f32(a))
    }
}

#[inline(always)]
unsafe fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn lesser(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn signed_as(a: float32x4_t, s: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vdupq_n_u32(0x8000_0000), s, a) }
}

/// p * 2^n as two factors that are both normal, so that the product rounds once even when it is subnormal.
#[inline(always)]
unsafe fn ldexp4(p: float32x4_t, n: float32x4_t) -> float32x4_t {
    unsafe {
        let n = vcvtq_s32_f32(n);
        let (first, bias) = (vshrq_n_s32::<1>(n), vdupq_n_s32(127));
        let second = vsubq_s32(n, first);
        let low = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(first, bias)));
        let high = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(second, bias)));
        vmulq_f32(vmulq_f32(p, low), high)
    }
}

/// As `f16_to_f32`, on four lanes.
#[inline(always)]
unsafe fn widen_f16(p: *const u16) -> float32x4_t {
    unsafe {
        let h = vmovl_u16(vld1_u16(p));
        let magnitude = vshlq_n_u32::<13>(vandq_u32(h, vdupq_n_u32(0x7fff)));
        let sign = vshlq_n_u32::<16>(vandq_u32(h, vdupq_n_u32(0x8000)));
        let scaled = vmulq_f32(vreinterpretq_f32_u32(magnitude), vreinterpretq_f32_u32(vdupq_n_u32(0x7780_0000)));
        let top = vcgeq_u32(magnitude, vdupq_n_u32(0x0f80_0000));
        let special = vandq_u32(top, vdupq_n_u32(0x7f80_0000));
        vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(scaled), vorrq_u32(special, sign)))
    }
}

#[inline(always)]
unsafe fn widen_bf16(p: *const u16) -> float32x4_t {
    unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p)))) }
}
