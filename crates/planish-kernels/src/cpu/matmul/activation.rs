//! The int8 class's activation quantiser: blocks of 32 columns, one f32 scale each, whatever the weight type.
//!
//! d = max|x| / 127, q = x · (127 / max|x|) rounded half to even.
//! A block whose largest magnitude is under 2^-100 is zero; one with an infinity or NaN has q = 0 and a scale that
//! makes every output it reaches NaN.

use crate::cpu::isa::Isa;

/// Columns of an activation block.
pub const BLOCK: usize = 32;

/// What the kernels need to know about a block of 32 quantised activations besides the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[repr(C)]
pub struct BlockMeta {
    /// The scale: x ≈ d · q.
    pub d: f32,
    /// `d · sum`, for weight types with a minimum.
    pub scaled_sum: f32,
    /// The sum of the 32 bytes, for weight types with an offset.
    pub sum: f32,
    /// The sums of the first and of the last sixteen bytes.
    pub halves: [i16; 2],
}

impl BlockMeta {
    /// The sum over sub-block `sub` of `subs`.
    #[inline(always)]
    pub(crate) fn sum_of(&self, subs: usize, sub: usize) -> f32 {
        if subs == 1 { self.sum } else { self.halves[sub].into() }
    }

    /// The same times the scale.
    #[inline(always)]
    pub(crate) fn scaled_sum_of(&self, subs: usize, sub: usize) -> f32 {
        if subs == 1 { self.scaled_sum } else { self.d * f32::from(self.halves[sub]) }
    }
}

/// Adding this to a number under 2^22 leaves its nearest integer (ties to even) in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// Below this a block counts as zero: 127 / max|x| must stay finite.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], q: &mut [i8; BLOCK]) -> BlockMeta {
    // As integers, magnitudes order like the floats they are, with infinity and then NaN on top.
    let largest = f32::from_bits(x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff)));
    if !largest.is_finite() || largest < SMALLEST {
        q.fill(0);
        let d = if largest < SMALLEST { 0.0 } else { f32::NAN };
        return BlockMeta { d, scaled_sum: d, ..BlockMeta::default() };
    }
    let inverse = 127.0 / largest;
    for (q, v) in q.iter_mut().zip(x) {
        *q = (v * inverse + ROUNDER).to_bits() as i8;
    }
    let half = |from: usize| q[from..from + 16].iter().fold(0i16, |s, &v| s + i16::from(v));
    let halves = [half(0), half(16)];
    let sum = f32::from(halves[0] + halves[1]);
    let d = largest / 127.0;
    BlockMeta { d, scaled_sum: d * sum, sum, halves }
}

#[inline(always)]
fn quantize_blocks(x: &[f32], q: &mut [i8], meta: &mut [BlockMeta]) {
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(q.as_chunks_mut::<BLOCK>().0);
    for ((x, q), meta) in blocks.zip(meta) {
        *meta = quantize_block(x, q);
    }
}

/// Quantises whole blocks: `x` and `q` have the same length, 32 for each entry of `meta`.
///
/// Panics when the lengths disagree or the processor lacks `isa`.
/// The result does not depend on `isa`.
pub fn quantize(isa: Isa, x: &[f32], q: &mut [i8], meta: &mut [BlockMeta]) {
    assert!(
        x.len() == q.len() && x.len() == meta.len() * BLOCK,
        "quantise: {} values into {} bytes and {} blocks of {BLOCK}",
        x.len(),
        q.len(),
        meta.len()
    );
    assert!(isa.is_supported(), "quantise: this processor has no {isa}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Vnni | Isa::Amx => {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2(x: &[f32], q: &mut [i8], meta: &mut [BlockMeta]) {
                quantize_blocks(x, q, meta);
            }
            // SAFETY: `is_supported` found AVX2, FMA and F16C.
            unsafe { avx2(x, q, meta) }
        }
        _ => quantize_blocks(x, q, meta),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(x: [f32; BLOCK], d: f32, q: [i8; BLOCK]) {
        for isa in Isa::ALL.into_iter().filter(|i| i.is_supported()) {
            let (mut got, mut meta) = ([99i8; BLOCK], [BlockMeta::default(); 1]);
            quantize(isa, &x, &mut got, &mut meta);
            assert_eq!(got, q, "{isa}");
            assert_eq!(meta[0].d.to_bits(), d.to_bits(), "{isa}: {} for {d}", meta[0].d);
            let halves = [0, 16].map(|h| q[h..h + 16].iter().map(|&v| i16::from(v)).sum::<i16>());
            assert_eq!(meta[0].halves, halves);
            if d.is_finite() {
                assert_eq!(meta[0].sum, f32::from(halves[0] + halves[1]));
                assert_eq!(meta[0].scaled_sum, d * meta[0].sum);
            }
        }
    }

    #[test]
    fn blocks_round_half_to_even_and_keep_extremes() {
        let ramp: [f32; BLOCK] = std::array::from_fn(|i| if i == 0 { -127.0 } else { i as f32 - 16.5 });
        let even: [i8; BLOCK] =
            std::array::from_fn(|i| if i == 0 { -127 } else { (i as f32 - 16.5).round_ties_even() as i8 });
        check(ramp, 1.0, even);
        check([0.0; BLOCK], 0.0, [0; BLOCK]);
        check([-3.0e38; BLOCK], 3.0e38 / 127.0, [-127; BLOCK]);
        check([1.0e-38; BLOCK], 0.0, [0; BLOCK]);
        let mut bad = [1.0; BLOCK];
        bad[31] = f32::NAN;
        check(bad, f32::NAN, [0; BLOCK]);
        bad[31] = f32::NEG_INFINITY;
        check(bad, f32::NAN, [0; BLOCK]);
    }
}
