//! Weight types: the element and block formats that GGUF stores, their sizes, and exact dequantisation.

mod blocks;
mod codec;

pub use blocks::{Real, dequantize};
pub(crate) use blocks::{Tile, read_tile, tile_levels};
pub(crate) use codec::{Codec, IQ4_LEVELS, Min, SubScale, codec};

/// How the elements of a weight matrix are stored; names and sizes are in [`TYPES`].
#[allow(missing_docs, non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

/// What there is to know about a [`WeightType`] without looking inside a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeRecord {
    /// The type that this record describes.
    pub weight: WeightType,
    /// Lower-case name as in GGUF tools, for example `q4_k`.
    pub name: &'static str,
    /// The type's number in a GGUF file.
    pub gguf_id: u32,
    /// Consecutive elements of a row that share one block.
    pub block_elements: usize,
    /// Bytes of one block.
    pub block_bytes: usize,
}

const fn record(weight: WeightType, name: &'static str, gguf_id: u32, elements: usize, bytes: usize) -> TypeRecord {
    TypeRecord { weight, name, gguf_id, block_elements: elements, block_bytes: bytes }
}

/// Every supported weight type, in the order of the enum.
pub static TYPES: [TypeRecord; 15] = [
    record(WeightType::F32, "f32", 0, 1, 4),
    record(WeightType::F16, "f16", 1, 1, 2),
    record(WeightType::BF16, "bf16", 30, 1, 2),
    record(WeightType::Q8_0, "q8_0", 8, 32, 34),
    record(WeightType::Q4_0, "q4_0", 2, 32, 18),
    record(WeightType::Q4_1, "q4_1", 3, 32, 20),
    record(WeightType::Q5_0, "q5_0", 6, 32, 22),
    record(WeightType::Q5_1, "q5_1", 7, 32, 24),
    record(WeightType::Q2_K, "q2_k", 10, 256, 84),
    record(WeightType::Q3_K, "q3_k", 11, 256, 110),
    record(WeightType::Q4_K, "q4_k", 12, 256, 144),
    record(WeightType::Q5_K, "q5_k", 13, 256, 176),
    record(WeightType::Q6_K, "q6_k", 14, 256, 210),
    record(WeightType::IQ4_NL, "iq4_nl", 20, 32, 18),
    record(WeightType::IQ4_XS, "iq4_xs", 23, 256, 136),
];

/// The types by their place in the enum, for code that takes one as a constant.
pub(crate) const BY_INDEX: [WeightType; 15] = {
    let mut all = [WeightType::F32; 15];
    let mut i = 0;
    while i < all.len() {
        all[i] = TYPES[i].weight;
        i += 1;
    }
    all
};

impl WeightType {
    /// The type's record.
    pub fn record(self) -> &'static TypeRecord {
        &TYPES[self as usize]
    }

    /// Lower-case name, for example `q4_k`.
    pub fn name(self) -> &'static str {
        self.record().name
    }

    /// The type of this name, as in `q4_k`.
    pub fn from_name(name: &str) -> Option<WeightType> {
        TYPES.iter().find(|r| r.name == name).map(|r| r.weight)
    }

    /// The type that a GGUF file means by this number, if it is one that planish reads.
    pub fn from_gguf(id: u32) -> Option<WeightType> {
        TYPES.iter().find(|r| r.gguf_id == id).map(|r| r.weight)
    }

    /// Bytes of one row of `cols` elements, or `None` when `cols` is not a whole number of blocks.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let r = self.record();
        if !cols.is_multiple_of(r.block_elements) {
            return None;
        }
        (cols / r.block_elements).checked_mul(r.block_bytes)
    }

    /// Whether elements are stored one by one as floats rather than in quantised blocks.
    pub fn is_float(self) -> bool {
        matches!(self, WeightType::F32 | WeightType::F16 | WeightType::BF16)
    }
}

impl std::fmt::Display for WeightType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks and the values that the reference package expands them to; made by `quant.py` beside the file.
    const GOLDENS: &[u8] = include_bytes!("../../tests/goldens/quant.bin");

    fn word(b: &[u8]) -> u32 {
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    #[test]
    fn dequantisation_has_the_bits_of_the_reference_package() {
        let (mut rest, mut seen) = (GOLDENS, 0);
        while !rest.is_empty() {
            let [id, bytes, count] = [0, 4, 8].map(|at| word(&rest[at..]));
            let weight = WeightType::from_gguf(id).expect("a known type");
            let (blocks, values) = rest[12..].split_at(bytes as usize);
            let (values, next) = values.split_at(4 * count as usize);
            let (mut single, mut double) = (vec![0f32; count as usize], vec![0f64; count as usize]);
            dequantize(weight, blocks, &mut single);
            dequantize(weight, blocks, &mut double);
            for (i, b) in values.chunks_exact(4).enumerate() {
                let expected = f32::from_bits(word(b));
                let same = single[i].to_bits() == word(b) || (single[i].is_nan() && expected.is_nan());
                assert!(same, "{weight} element {i}: {:e} for {expected:e}", single[i]);
                // Three f32 roundings of terms that are at most 63 · 63 · 65504 apart from their difference.
                let error = (double[i] - f64::from(single[i])).abs();
                assert!(single[i].is_nan() || error <= 32.0, "{weight} element {i} in double: {}", double[i]);
            }
            (rest, seen) = (next, seen + 1);
        }
        assert_eq!(seen, TYPES.len() - 1, "every type but f32");
    }

    #[test]
    fn records_follow_the_enum_and_sizes_are_checked() {
        for (i, r) in TYPES.iter().enumerate() {
            assert_eq!(r.weight as usize, i, "{}", r.name);
            assert_eq!(WeightType::from_gguf(r.gguf_id), Some(r.weight));
            assert_eq!(r.weight.row_bytes(r.block_elements * 3), Some(r.block_bytes * 3));
            let partial = r.weight.row_bytes(r.block_elements + 1);
            assert_eq!(partial.is_some(), r.block_elements == 1, "{}", r.name);
        }
        assert_eq!(WeightType::from_gguf(9), None);
        assert_eq!(WeightType::F32.row_bytes(usize::MAX), None, "the product overflows");
    }
}
