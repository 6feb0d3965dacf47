//! Reads packed tiles into lanes: the codes of four columns at a time, and the scales of a sub-block.

use super::lanes::Lanes;
use crate::quant::{Codec, Min, SubScale, WeightType, codec};

/// A quantised type as a compile-time constant.
pub(crate) trait Format: 'static {
    const WEIGHT: WeightType;
    const CODEC: Codec = codec(Self::WEIGHT);
    /// Column quads of a sub-block.
    const QUADS: usize = 8 / Self::CODEC.subs;
    /// The largest unsigned operand of a dot product.
    const LARGEST_CODE: u32 = if Self::CODEC.signed() { 128 } else { (1 << Self::CODEC.bits) - 1 };
}

macro_rules! formats {
    ($($name:ident)*) => {
        $(
            #[allow(non_camel_case_types)]
            pub(crate) struct $name;
            impl Format for $name {
                const WEIGHT: WeightType = WeightType::$name;
            }
        )*
    };
}
formats!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS);

/// The codes of column quad `j` (0..8) of the tile at `tile`; levels already for the signed types.
///
/// # Safety
/// `tile` points at a packed tile of `F`; see [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn codes<S: Lanes, F: Format>(tile: *const u8, j: usize) -> S::I {
    let c = F::CODEC;
    // SAFETY: every offset below lies in the tile, whose planes follow one another as `layout` says.
    unsafe {
        let mut plane = tile.add(c.sub_scale_bytes());
        if c.bits == 8 {
            return S::load_i(plane.add(32 * j));
        }
        let mut codes = None;
        let mut width = 0u32;
        if c.bits & 4 != 0 {
            let v = S::load_i(plane.add(32 * (j & 3)));
            codes = Some(S::and(if j >= 4 { S::shr(v, 4) } else { v }, S::splat_u8(0x0f)));
            (plane, width) = (plane.add(128), 4);
        }
        if c.bits & 2 != 0 {
            let v = S::load_i(plane.add(32 * (j >> 2)));
            let bits = S::and(shift::<S>(v, 2 * (j as u32 & 3), width), S::splat_u8(3 << width));
            codes = Some(codes.map_or(bits, |low| S::or(low, bits)));
            (plane, width) = (plane.add(64), width + 2);
        }
        if c.bits & 1 != 0 {
            let bits = S::and(shift::<S>(S::load_i(plane), j as u32, width), S::splat_u8(1 << width));
            codes = Some(codes.map_or(bits, |low| S::or(low, bits)));
        }
        let codes = codes.expect("a code has at least one plane");
        if c.table { S::iq4_levels(codes) } else { codes }
    }
}

/// Moves bit `from` of every byte to bit `to`.
#[inline(always)]
unsafe fn shift<S: Lanes>(v: S::I, from: u32, to: u32) -> S::I {
    // SAFETY: register operations only; see `Lanes`.
    unsafe { if to >= from { S::shl(v, to - from) } else { S::shr(v, from - to) } }
}

/// The f32 scale of sub-block `sub`, rounded as dequantisation rounds it, and the f32 minimum (zero where there is none).
///
/// # Safety
/// `block` and `tile` point at a packed block of `F` and a tile in it; see [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn scales<S: Lanes, F: Format>(block: *const u8, tile: *const u8, sub: usize) -> (S::F, S::F) {
    let c = F::CODEC;
    // SAFETY: the head and the sub-scale bytes lie at the start of the block and of the tile.
    unsafe {
        let d = S::load_f16(block);
        let m = match c.min {
            Min::None => S::zero_f(),
            Min::Add => S::load_f16(block.add(16)),
            Min::Subtract => S::neg(S::load_f16(block.add(16))),
        };
        match c.sub_scale {
            SubScale::None => (d, m),
            SubScale::Signed => (S::mul(d, S::to_f32(S::load_bytes(tile.add(8 * sub), true))), m),
            SubScale::Bytes => (
                S::mul(d, S::to_f32(S::load_bytes(tile, false))),
                S::mul(m, S::to_f32(S::load_bytes(tile.add(8), false))),
            ),
            SubScale::Nibbles => {
                let pair = S::load_bytes(tile.add(8 * sub), false);
                let low = S::splat_u8(0x0f);
                (S::mul(d, S::to_f32(S::and(pair, low))), S::mul(m, S::to_f32(S::and(S::shr(pair, 4), low))))
            }
        }
    }
}
