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
        return zero_block(largest, q);
    }
    let inverse = 127.0 / largest;
    for (q, v) in q.iter_mut().zip(x) {
        *q = (v * inverse + ROUNDER).to_bits() as i8;
    }
    let half = |from: usize| q[from..from + 16].iter().fold(0i16, |s, &v| s + i16::from(v));
    block_meta(largest, [half(0), half(16)])
}

/// A block that counts as zero, or that poisons what it reaches.
#[inline(always)]
fn zero_block(largest: f32, q: &mut [i8; BLOCK]) -> BlockMeta {
    q.fill(0);
    let d = if largest < SMALLEST { 0.0 } else { f32::NAN };
    BlockMeta { d, scaled_sum: d, ..BlockMeta::default() }
}

#[inline(always)]
fn block_meta(largest: f32, halves: [i16; 2]) -> BlockMeta {
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
        // SAFETY: `is_supported` found AVX-512 and AVX2.
        Isa::Vnni | Isa::Amx => unsafe { avx512(x, q, meta) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
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

/// [`quantize_blocks`] with a block in two registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2")]
fn avx512(x: &[f32], q: &mut [i8], meta: &mut [BlockMeta]) {
    use std::arch::x86_64::*;
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let rounder = _mm512_set1_ps(ROUNDER);
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(q.as_chunks_mut::<BLOCK>().0);
    for ((x, q), meta) in blocks.zip(meta) {
        // SAFETY: a block is two vectors of f32, and its bytes one of 256 bits.
        unsafe {
            let x = [0, 16].map(|i| _mm512_loadu_ps(x[i..].as_ptr()));
            let bits = x.map(|x| _mm512_and_si512(_mm512_castps_si512(x), magnitude));
            let largest = f32::from_bits(_mm512_reduce_max_epu32(_mm512_max_epu32(bits[0], bits[1])));
            if !largest.is_finite() || largest < SMALLEST {
                *meta = zero_block(largest, q);
                continue;
            }
            let inverse = _mm512_set1_ps(127.0 / largest);
            let bytes = x.map(|x| {
                let rounded = _mm512_add_ps(_mm512_mul_ps(x, inverse), rounder);
                _mm512_cvtepi32_epi8(_mm512_castps_si512(rounded))
            });
            let bytes = _mm256_set_m128i(bytes[1], bytes[0]);
            _mm256_storeu_si256(q.as_mut_ptr().cast(), bytes);
            // Unsigned sums of eight bytes; each is 128 too large.
            let shifted = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
            let sums = _mm256_sad_epu8(shifted, _mm256_setzero_si256());
            let half = |low, high| (low + high) as i16 - 16 * 128;
            let halves = [
                half(_mm256_extract_epi16::<0>(sums), _mm256_extract_epi16::<4>(sums)),
                half(_mm256_extract_epi16::<8>(sums), _mm256_extract_epi16::<12>(sums)),
            ];
            *meta = block_meta(largest, halves);
        }
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
    fn every_set_gives_the_bits_of_the_portable_one() {
        let mut rng = crate::data::Rng::new(7);
        let mut x: Vec<f32> = (0..64 * BLOCK).map(|i| rng.unit() * 2f32.powi((i / BLOCK) as i32 * 4 - 128)).collect();
        x[5 * BLOCK] = f32::INFINITY;
        let of = |isa| {
            let (mut q, mut meta) = (vec![99i8; x.len()], vec![BlockMeta::default(); x.len() / BLOCK]);
            quantize(isa, &x, &mut q, &mut meta);
            let words =
                meta.iter().map(|m| ([m.d, m.scaled_sum, m.sum].map(f32::to_bits), m.halves)).collect::<Vec<_>>();
            (q, words)
        };
        for isa in Isa::ALL.into_iter().filter(|i| i.is_supported()) {
            assert!(of(isa) == of(Isa::Portable), "{isa}");
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
