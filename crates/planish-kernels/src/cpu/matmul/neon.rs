//! The matmul lanes in Arm Advanced SIMD with the int8 dot product; a vector is a pair of 128-bit registers.

use super::lanes::{Lanes, lane_ops};
use std::arch::aarch64::*;

/// Two registers a vector, lanes 0..4 and 4..8.
#[derive(Clone, Copy)]
pub(crate) struct NeonLanes;

type Bytes = uint8x16x2_t;
type Floats = float32x4x2_t;
type Words = int32x4x2_t;

#[inline(always)]
fn bytes(a: uint8x16_t, b: uint8x16_t) -> Bytes {
    uint8x16x2_t(a, b)
}

/// Applies an intrinsic to both registers of a vector (or of two).
macro_rules! both {
    ($out:ident: $f:expr; $a:expr) => {
        $out($f($a.0), $f($a.1))
    };
    ($out:ident: $f:expr; $a:expr, $b:expr) => {
        $out($f($a.0, $b.0), $f($a.1, $b.1))
    };
}

macro_rules! words {
    ($f:ident, $a:expr, $n:expr) => {
        $f(vreinterpretq_u32_u8($a), vdupq_n_s32($n))
    };
}

#[inline(always)]
unsafe fn shift(a: uint8x16_t, n: i32) -> uint8x16_t {
    // SAFETY: the caller has Advanced SIMD.
    unsafe { vreinterpretq_u8_u32(words!(vshlq_u32, a, n)) }
}

#[inline(always)]
unsafe fn widen(a: uint8x16_t, b: u32, signed: bool) -> uint8x16_t {
    // SAFETY: the caller has Advanced SIMD.
    unsafe {
        let top = vshlq_u32(vreinterpretq_u32_u8(a), vdupq_n_s32(24 - 8 * b as i32));
        if signed {
            vreinterpretq_u8_s32(vshrq_n_s32::<24>(vreinterpretq_s32_u32(top)))
        } else {
            vreinterpretq_u8_u32(vshrq_n_u32::<24>(top))
        }
    }
}

/// `acc + dot(w, a)` by lane: the instruction itself, since its intrinsic is not stable.
#[inline(always)]
unsafe fn sdot(acc: int32x4_t, w: uint8x16_t, a: uint8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: the caller has the dot product; the instruction touches registers only.
    unsafe {
        std::arch::asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {w:v}.16b, {a:v}.16b",
            acc = inout(vreg) acc,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// Four f16 bit patterns as f32, exactly, subnormals included, without the half-precision extension.
#[inline(always)]
unsafe fn half4(bits: uint16x4_t) -> float32x4_t {
    // SAFETY: the caller has Advanced SIMD.
    unsafe {
        let wide = vmovl_u16(bits);
        let sign = vshlq_n_u32::<16>(vandq_u32(wide, vdupq_n_u32(0x8000)));
        let magnitude = vshlq_n_u32::<13>(vandq_u32(wide, vdupq_n_u32(0x7fff)));
        // Scaling by 2^112 puts the exponent bias right for normal and subnormal numbers alike.
        let scaled = vmulq_f32(vreinterpretq_f32_u32(magnitude), vdupq_n_f32(f32::from_bits(0x7780_0000)));
        let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00 << 13));
        let infinite = vorrq_u32(magnitude, vdupq_n_u32(0x7f80_0000));
        let value = vbslq_u32(special, infinite, vreinterpretq_u32_f32(scaled));
        vreinterpretq_f32_u32(vorrq_u32(value, sign))
    }
}

impl Lanes for NeonLanes {
    type I = Bytes;
    type F = Floats;
    type W = Bytes;
    type R = Words;

    const R_LIMIT: i64 = i32::MAX as i64;

    lane_ops! {
        fn zero_i() -> Bytes = bytes(vdupq_n_u8(0), vdupq_n_u8(0));
        fn zero_r() -> Words = int32x4x2_t(vdupq_n_s32(0), vdupq_n_s32(0));
        fn zero_w() -> Bytes = Self::zero_i();
        fn zero_f() -> Floats = Self::splat_f(0.0);
        fn load_i(p: *const u8) -> Bytes = bytes(vld1q_u8(p), vld1q_u8(p.add(16)));
        fn splat_u8(x: u8) -> Bytes = bytes(vdupq_n_u8(x), vdupq_n_u8(x));
        fn and(a: Bytes, b: Bytes) -> Bytes = both!(uint8x16x2_t: vandq_u8; a, b);
        fn or(a: Bytes, b: Bytes) -> Bytes = both!(uint8x16x2_t: vorrq_u8; a, b);
        fn shr(a: Bytes, n: u32) -> Bytes = bytes(shift(a.0, -(n as i32)), shift(a.1, -(n as i32)));
        fn shl(a: Bytes, n: u32) -> Bytes = bytes(shift(a.0, n as i32), shift(a.1, n as i32));
        fn widen(a: Bytes, b: u32, signed: bool) -> Bytes = bytes(widen(a.0, b, signed), widen(a.1, b, signed));
        fn iq4_levels(codes: Bytes) -> Bytes = {
            let table = vld1q_u8(crate::quant::IQ4_LEVELS.as_ptr().cast());
            bytes(vqtbl1q_u8(table, codes.0), vqtbl1q_u8(table, codes.1))
        };
        fn splat_quad(p: *const i8) -> Bytes = {
            let quad = vreinterpretq_u8_u32(vdupq_n_u32(p.cast::<u32>().read_unaligned()));
            bytes(quad, quad)
        };
        fn prepare(w: Bytes, _signed: bool) -> Bytes = w;
        fn dot(w: Bytes, a: Bytes, signed: bool) -> Words = Self::dot_add(Self::zero_r(), w, a, signed);
        // Unsigned codes are at most 63, so they are the same as signed bytes.
        fn dot_add(r: Words, w: Bytes, a: Bytes, _signed: bool) -> Words =
            int32x4x2_t(sdot(r.0, w.0, a.0), sdot(r.1, w.1, a.1));
        fn finish(r: Words) -> Bytes = both!(uint8x16x2_t: vreinterpretq_u8_s32; r);
        fn add_i32(a: Bytes, b: Bytes) -> Bytes = bytes(
            vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(a.0), vreinterpretq_u32_u8(b.0))),
            vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(a.1), vreinterpretq_u32_u8(b.1)))
        );
        fn to_f32(a: Bytes) -> Floats = float32x4x2_t(
            vcvtq_f32_s32(vreinterpretq_s32_u8(a.0)),
            vcvtq_f32_s32(vreinterpretq_s32_u8(a.1))
        );
        fn load_f(p: *const f32) -> Floats = float32x4x2_t(vld1q_f32(p), vld1q_f32(p.add(4)));
        fn store_f(p: *mut f32, a: Floats) -> () = {
            vst1q_f32(p, a.0);
            vst1q_f32(p.add(4), a.1);
        };
        fn splat_f(x: f32) -> Floats = float32x4x2_t(vdupq_n_f32(x), vdupq_n_f32(x));
        fn load_f16(p: *const u8) -> Floats =
            float32x4x2_t(half4(vld1_u16(p.cast())), half4(vld1_u16(p.add(8).cast())));
        fn load_bf16(p: *const u8) -> Floats = float32x4x2_t(
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.cast()))),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(8).cast())))
        );
        fn load_bytes(p: *const u8, signed: bool) -> Bytes = if signed {
            let wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
            bytes(
                vreinterpretq_u8_s32(vmovl_s16(vget_low_s16(wide))),
                vreinterpretq_u8_s32(vmovl_s16(vget_high_s16(wide)))
            )
        } else {
            let wide = vmovl_u8(vld1_u8(p));
            bytes(
                vreinterpretq_u8_u32(vmovl_u16(vget_low_u16(wide))),
                vreinterpretq_u8_u32(vmovl_u16(vget_high_u16(wide)))
            )
        };
        fn mul(a: Floats, b: Floats) -> Floats = both!(float32x4x2_t: vmulq_f32; a, b);
        fn add(a: Floats, b: Floats) -> Floats = both!(float32x4x2_t: vaddq_f32; a, b);
        fn neg(a: Floats) -> Floats = both!(float32x4x2_t: vnegq_f32; a);
        fn fma(a: Floats, b: Floats, c: Floats) -> Floats =
            float32x4x2_t(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1));
        fn prefetch(p: *const u8) -> () = planish_device::prefetch(p);
    }
}
