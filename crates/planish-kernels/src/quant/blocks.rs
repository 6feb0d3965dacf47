//! Reads GGUF blocks (little endian, f16 scales) into tiles of 32 codes, and dequantises.

use super::WeightType;
use super::codec::{Codec, Min, SubScale, codec, codes_level};
use half::{bf16, f16};

/// The precision that a reference is computed in: f32 rounds as the format's definition does, f64 hardly at all.
pub trait Real:
    Copy + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> + std::ops::AddAssign + Default + PartialOrd
{
    /// The nearest value to an f32; exact for both implementors.
    fn from_f32(x: f32) -> Self;
}

impl Real for f32 {
    fn from_f32(x: f32) -> f32 {
        x
    }
}

impl Real for f64 {
    fn from_f32(x: f32) -> f64 {
        f64::from(x)
    }
}

/// 32 consecutive elements of one row: four codes a word in column order, and the raw scale fields.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tile {
    /// Codes: word `k` holds columns `4k..4k+4`, lowest byte first.
    pub codes: [u32; 8],
    /// Bits of the block's f16 scale.
    pub d: u16,
    /// Bits of the block's f16 minimum (or `dmin`), zero when the type has none.
    pub m: u16,
    /// Integer scale of each sub-block; two's complement where the type has signed ones.
    pub scale: [u8; 2],
    /// Integer minimum of each sub-block.
    pub min: [u8; 2],
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn half_bits(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

const LOW4: u32 = 0x0f0f_0f0f;
const LOW2: u32 = 0x0303_0303;
const LOW1: u32 = 0x0101_0101;

/// Bit `i` of the low four bits of `n` to the lowest bit of byte `i`.
#[inline(always)]
fn spread4(n: u32) -> u32 {
    (n & 15).wrapping_mul(0x0020_4081) & LOW1
}

/// Sixteen bytes whose low nibbles are columns 0..16 and whose high nibbles are columns 16..32.
#[inline(always)]
fn nibbles(b: &[u8], at: usize) -> [u32; 8] {
    let mut codes = [0; 8];
    for k in 0..4 {
        let w = word(b, at + 4 * k);
        codes[k] = w & LOW4;
        codes[k + 4] = (w >> 4) & LOW4;
    }
    codes
}

/// The scale and the minimum of sub-block `s` in the twelve bytes that Q4_K and Q5_K keep them in.
#[inline(always)]
fn six_bit(s: usize, b: &[u8]) -> (u8, u8) {
    if s < 4 {
        (b[s] & 63, b[s + 4] & 63)
    } else {
        ((b[s + 4] & 15) | (b[s - 4] >> 6) << 4, (b[s + 4] >> 4) | (b[s] >> 6) << 4)
    }
}

/// Reads tile `t` (columns `32 t ..` of the block) of one block of a quantised type.
#[inline(always)]
pub(crate) fn read_tile(weight: WeightType, b: &[u8], t: usize) -> Tile {
    match weight {
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => unreachable!("a float type has no tiles"),
        WeightType::Q8_0 => {
            Tile { codes: std::array::from_fn(|k| word(b, 2 + 4 * k)), d: half_bits(b, 0), ..Tile::default() }
        }
        WeightType::Q4_0 | WeightType::IQ4_NL => Tile { codes: nibbles(b, 2), d: half_bits(b, 0), ..Tile::default() },
        WeightType::Q4_1 => Tile { codes: nibbles(b, 4), d: half_bits(b, 0), m: half_bits(b, 2), ..Tile::default() },
        WeightType::Q5_0 => {
            let codes = fifth_bits(nibbles(b, 6), word(b, 2));
            Tile { codes, d: half_bits(b, 0), ..Tile::default() }
        }
        WeightType::Q5_1 => {
            let codes = fifth_bits(nibbles(b, 8), word(b, 4));
            Tile { codes, d: half_bits(b, 0), m: half_bits(b, 2), ..Tile::default() }
        }
        WeightType::Q2_K => q2_k(b, t),
        WeightType::Q3_K => q3_k(b, t),
        WeightType::Q4_K | WeightType::Q5_K => q45_k(weight, b, t),
        WeightType::Q6_K => q6_k(b, t),
        WeightType::IQ4_XS => {
            let low = (b[4 + t / 2] >> (4 * (t % 2))) & 15;
            let high = ((half_bits(b, 2) >> (2 * t)) & 3) as u8;
            let scale = (low | high << 4).wrapping_sub(32);
            Tile { codes: nibbles(b, 8 + 16 * t), d: half_bits(b, 0), scale: [scale; 2], ..Tile::default() }
        }
    }
}

#[inline(always)]
fn fifth_bits(mut codes: [u32; 8], high: u32) -> [u32; 8] {
    for (k, c) in codes.iter_mut().enumerate() {
        *c |= spread4(high >> (4 * k)) << 4;
    }
    codes
}

#[inline(always)]
fn q2_k(b: &[u8], t: usize) -> Tile {
    let codes = std::array::from_fn(|k| (word(b, 16 + 32 * (t / 4) + 4 * k) >> (2 * (t % 4))) & LOW2);
    let s = [b[2 * t], b[2 * t + 1]];
    Tile { codes, d: half_bits(b, 80), m: half_bits(b, 82), scale: s.map(|x| x & 15), min: s.map(|x| x >> 4) }
}

#[inline(always)]
fn q3_k(b: &[u8], t: usize) -> Tile {
    let codes = std::array::from_fn(|k| {
        let low = (word(b, 32 + 32 * (t / 4) + 4 * k) >> (2 * (t % 4))) & LOW2;
        let high = (word(b, 4 * k) >> t) & LOW1;
        low | high << 2
    });
    let scales = &b[96..108];
    let scale = [2 * t, 2 * t + 1].map(|g| {
        let low = (scales[g % 8] >> (4 * (g / 8))) & 15;
        let high = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
        (low | high << 4).wrapping_sub(32)
    });
    Tile { codes, d: half_bits(b, 108), scale, ..Tile::default() }
}

#[inline(always)]
fn q45_k(weight: WeightType, b: &[u8], t: usize) -> Tile {
    let five = weight == WeightType::Q5_K;
    let at = if five { 48 } else { 16 };
    let codes = std::array::from_fn(|k| {
        let low = (word(b, at + 32 * (t / 2) + 4 * k) >> (4 * (t % 2))) & LOW4;
        if five { low | ((word(b, 16 + 4 * k) >> t) & LOW1) << 4 } else { low }
    });
    let (scale, min) = six_bit(t, &b[4..16]);
    Tile { codes, d: half_bits(b, 0), m: half_bits(b, 2), scale: [scale; 2], min: [min; 2] }
}

#[inline(always)]
fn q6_k(b: &[u8], t: usize) -> Tile {
    let (h, c) = (t / 4, t % 4);
    let codes = std::array::from_fn(|k| {
        let low = (word(b, 64 * h + 32 * (c & 1) + 4 * k) >> (4 * (c >> 1))) & LOW4;
        let high = (word(b, 128 + 32 * h + 4 * k) >> (2 * c)) & LOW2;
        low | high << 4
    });
    Tile { codes, d: half_bits(b, 208), scale: [b[192 + 2 * t], b[192 + 2 * t + 1]], ..Tile::default() }
}

/// The 32 weights of a tile, in the arithmetic of `R` and the order that the format defines.
pub(crate) fn tile_levels<R: Real>(c: &Codec, tile: &Tile, out: &mut [R]) {
    let d = R::from_f32(f16::from_bits(tile.d).to_f32());
    let m = f16::from_bits(tile.m).to_f32();
    let m = R::from_f32(if c.min == Min::Subtract { -m } else { m });
    for sub in 0..c.subs {
        let (raw, raw_min) = (tile.scale[sub], f32::from(tile.min[sub]));
        let (scale, min) = match c.sub_scale {
            SubScale::None => (d, m),
            SubScale::Signed => (d * R::from_f32(f32::from(raw as i8)), m),
            SubScale::Bytes | SubScale::Nibbles => (d * R::from_f32(f32::from(raw)), m * R::from_f32(raw_min)),
        };
        let columns = 32 / c.subs;
        for (e, y) in out.iter_mut().enumerate().skip(sub * columns).take(columns) {
            let code = (tile.codes[e / 4] >> (8 * (e % 4))) as u8;
            let level = scale * R::from_f32(codes_level(c, code) as f32);
            *y = if c.min == Min::None { level } else { level + min };
        }
    }
}

/// Expands whole blocks of `bytes` into `out`, one value an element.
///
/// In f32 the result has the bits of `gguf.quants.dequantize`; in f64 no operation rounds except the sum with a minimum.
/// Panics when the lengths disagree.
pub fn dequantize<R: Real>(weight: WeightType, bytes: &[u8], out: &mut [R]) {
    assert_eq!(
        weight.row_bytes(out.len()),
        Some(bytes.len()),
        "{weight}: {} bytes do not hold {} elements",
        bytes.len(),
        out.len()
    );
    let pairs = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match weight {
        WeightType::F32 => {
            for (y, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *y = R::from_f32(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            }
        }
        WeightType::F16 => {
            for (y, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *y = R::from_f32(f16::from_bits(pairs(b)).to_f32());
            }
        }
        WeightType::BF16 => {
            for (y, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *y = R::from_f32(bf16::from_bits(pairs(b)).to_f32());
            }
        }
        _ => {
            let (r, c) = (weight.record(), codec(weight));
            let blocks = bytes.chunks_exact(r.block_bytes);
            for (b, y) in blocks.zip(out.chunks_exact_mut(r.block_elements)) {
                for (t, y) in y.chunks_exact_mut(32).enumerate() {
                    tile_levels(&c, &read_tile(weight, b, t), y);
                }
            }
        }
    }
}
