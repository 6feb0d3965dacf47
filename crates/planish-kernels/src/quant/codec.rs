//! The quantised types as records: how a 32-element tile of one row turns codes into weights.
//!
//! Every quantised type is `weight = (d · sub_scale) · level(code) + min`, tile by tile; the records say which parts exist.

use super::WeightType;

/// Where the additive term of a weight comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Min {
    /// There is none.
    None,
    /// One f16 a block, added.
    Add,
    /// An f16 `dmin` a block times an integer a sub-block, subtracted.
    Subtract,
}

/// How a sub-block's integer scale (and minimum) is kept in the packed form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubScale {
    /// No sub-blocks: the block's `d` is the scale.
    None,
    /// One byte of scale and one of minimum a tile.
    Bytes,
    /// One byte a sub-block: scale in the low nibble, minimum in the high one.
    Nibbles,
    /// One signed byte a sub-block.
    Signed,
}

/// The shape of one quantised type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    /// Bits of a code: 2 to 6, or 8 for signed bytes.
    pub bits: u32,
    /// Subtracted from a code to give its level.
    pub offset: i32,
    /// Whether a code is an index into [`IQ4_LEVELS`].
    pub table: bool,
    /// Tiles of 32 columns in a block.
    pub tiles: usize,
    /// Sub-blocks with their own scale in one tile: 1 or 2.
    pub subs: usize,
    /// The additive term.
    pub min: Min,
    /// The sub-block scales.
    pub sub_scale: SubScale,
}

/// Levels of the IQ4 formats, by code.
pub(crate) const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

const PLAIN: Codec =
    Codec { bits: 4, offset: 0, table: false, tiles: 1, subs: 1, min: Min::None, sub_scale: SubScale::None };

/// The record of a quantised type.
///
/// Panics for the float types, which have no codes.
pub(crate) const fn codec(weight: WeightType) -> Codec {
    match weight {
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => panic!("a float type has no codes"),
        WeightType::Q8_0 => Codec { bits: 8, ..PLAIN },
        WeightType::Q4_0 => Codec { offset: 8, ..PLAIN },
        WeightType::Q4_1 => Codec { min: Min::Add, ..PLAIN },
        WeightType::Q5_0 => Codec { bits: 5, offset: 16, ..PLAIN },
        WeightType::Q5_1 => Codec { bits: 5, min: Min::Add, ..PLAIN },
        WeightType::Q2_K => {
            Codec { bits: 2, tiles: 8, subs: 2, min: Min::Subtract, sub_scale: SubScale::Nibbles, ..PLAIN }
        }
        WeightType::Q3_K => Codec { bits: 3, offset: 4, tiles: 8, subs: 2, sub_scale: SubScale::Signed, ..PLAIN },
        WeightType::Q4_K => Codec { tiles: 8, min: Min::Subtract, sub_scale: SubScale::Bytes, ..PLAIN },
        WeightType::Q5_K => Codec { bits: 5, tiles: 8, min: Min::Subtract, sub_scale: SubScale::Bytes, ..PLAIN },
        WeightType::Q6_K => Codec { bits: 6, offset: 32, tiles: 8, subs: 2, sub_scale: SubScale::Signed, ..PLAIN },
        WeightType::IQ4_NL => Codec { table: true, ..PLAIN },
        WeightType::IQ4_XS => Codec { table: true, tiles: 8, sub_scale: SubScale::Signed, ..PLAIN },
    }
}

impl Codec {
    /// Whether levels are signed bytes rather than small unsigned codes with an offset.
    pub const fn signed(&self) -> bool {
        self.bits == 8 || self.table
    }

    /// Packed bytes of a block's head for 8 rows: f16 `d`, then f16 minimum where there is one.
    pub const fn head_bytes(&self) -> usize {
        match self.min {
            Min::None => 16,
            Min::Add | Min::Subtract => 32,
        }
    }

    /// Packed bytes of a tile's sub-scales for 8 rows.
    pub const fn sub_scale_bytes(&self) -> usize {
        match self.sub_scale {
            SubScale::None => 0,
            SubScale::Bytes => 16,
            SubScale::Nibbles | SubScale::Signed => 8 * self.subs,
        }
    }

    /// Packed bytes of one tile for 8 rows: sub-scales, then the code planes.
    pub const fn tile_bytes(&self) -> usize {
        self.sub_scale_bytes() + 32 * self.bits as usize
    }

    /// Packed bytes of one block for 8 rows.
    pub const fn packed_block_bytes(&self) -> usize {
        self.head_bytes() + self.tiles * self.tile_bytes()
    }
}

/// The integer level of a code.
pub(crate) fn codes_level(codec: &Codec, code: u8) -> i32 {
    if codec.table {
        IQ4_LEVELS[usize::from(code & 15)].into()
    } else if codec.bits == 8 {
        (code as i8).into()
    } else {
        i32::from(code) - codec.offset
    }
}
