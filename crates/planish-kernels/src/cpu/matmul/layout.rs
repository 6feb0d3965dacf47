//! Packed weights: eight rows interleaved so that one vector lane is one row, written once at load.
//!
//! Rows go in groups of eight (the last one padded with zeros).
//! A group holds its blocks in column order; a block is a head (eight f16 `d`, then eight f16 minima where there are any)
//! and its tiles of 32 columns; a tile is the sub-block scales (eight bytes each) and the code planes.
//! A plane vector is 32 bytes, four for each row:
//! * byte plane (8-bit codes): vector `k` is columns `4k..4k+4`;
//! * nibble plane: vector `k` has columns `4k..` low and `16+4k..` high, which is a GGUF nibble byte unchanged;
//! * two-bit plane: vector `v` has columns `16v + 4s..` at bits `2s`;
//! * one-bit plane: the one vector has columns `4j..` at bit `j`.
//!
//! Packed bytes equal the file's for Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q2_K and Q6_K;
//! Q3_K is 3.6% larger, Q4_K 2.8%, Q5_K 2.3% and IQ4_XS 1.5%, because their sub-scales become whole bytes.
//! Float types are not packed: rows stay as in the file.

use super::lanes::unroll8;
use crate::Error;
use crate::quant::{Codec, SubScale, Tile, WeightType, codec, read_tile, tile_levels};

/// Rows of a group, one a vector lane.
pub const GROUP: usize = 8;

/// Where every byte of a weight matrix lies in its kernel form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    weight: WeightType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    group_bytes: usize,
}

impl Layout {
    /// The layout of a `rows` × `cols` matrix; an error when a row is not a whole number of blocks or the size overflows.
    pub fn of(weight: WeightType, rows: usize, cols: usize) -> Result<Layout, Error> {
        let unit = weight.record().block_elements;
        let row_bytes = weight.row_bytes(cols).ok_or_else(|| {
            Error::new(format!("{weight} weights: {cols} columns are not a multiple of the block of {unit}"))
        })?;
        let group_bytes = if weight.is_float() {
            GROUP.saturating_mul(row_bytes)
        } else {
            (cols / unit).saturating_mul(codec(weight).packed_block_bytes())
        };
        let layout = Layout { weight, rows, cols, row_bytes, group_bytes };
        let fits =
            rows.checked_next_multiple_of(GROUP).and_then(|r| r.checked_mul(row_bytes.saturating_add(row_bytes / 16)));
        fits.filter(|&b| b <= isize::MAX as usize)
            .ok_or_else(|| Error::new(format!("{weight} weights: {rows} × {cols} overflow memory")))?;
        Ok(layout)
    }

    /// The weight type.
    pub fn weight(&self) -> WeightType {
        self.weight
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of one row in the file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Whether the kernels read the file's own bytes, so that there is nothing to pack.
    pub fn is_borrowed(&self) -> bool {
        self.weight.is_float()
    }

    /// Bytes of a group of eight rows.
    pub fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// Bytes that the kernels read: the packed size, or the file's for float types.
    pub fn packed_bytes(&self) -> usize {
        if self.is_borrowed() { self.rows * self.row_bytes } else { self.rows.div_ceil(GROUP) * self.group_bytes() }
    }

    /// Packs consecutive whole rows of the file into their groups of `packed` (the whole matrix, `packed_bytes` long).
    ///
    /// `first_row` is a multiple of eight, and so is the number of rows unless the matrix ends with them,
    /// so a loader can pack in chunks and release file pages as it goes.
    /// Every byte of the groups is written. Panics when these lengths disagree.
    pub fn pack_rows(&self, source: &[u8], first_row: usize, packed: &mut [u8]) {
        let count = source.len() / self.row_bytes.max(1);
        assert_eq!(source.len(), count * self.row_bytes, "pack: source is not whole rows of {} bytes", self.row_bytes);
        assert_eq!(packed.len(), self.packed_bytes(), "pack: destination of {} × {}", self.rows, self.cols);
        assert!(first_row.is_multiple_of(GROUP), "pack: first row {first_row} is not a multiple of {GROUP}");
        let end = first_row + count;
        assert!(
            end <= self.rows && (end == self.rows || count.is_multiple_of(GROUP)),
            "pack: rows {first_row}..{end} of {} do not fill groups",
            self.rows
        );
        if self.is_borrowed() {
            packed[first_row * self.row_bytes..end * self.row_bytes].copy_from_slice(source);
            return;
        }
        if self.row_bytes == 0 {
            return;
        }
        let group_bytes = self.group_bytes();
        let groups = packed[first_row / GROUP * group_bytes..].chunks_exact_mut(group_bytes);
        for (rows, group) in source.chunks(GROUP * self.row_bytes).zip(groups) {
            pack_group(self.weight, rows, self.row_bytes, group);
        }
    }

    /// Expands one row of the packed matrix into `out` (`cols` values) with the bits of `dequantize` on the file's row.
    ///
    /// Panics when `row`, `packed` or `out` does not match the layout.
    pub fn unpack_row(&self, packed: &[u8], row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "unpack: row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "unpack: output of {} values for {} columns", out.len(), self.cols);
        assert_eq!(packed.len(), self.packed_bytes(), "unpack: packed bytes of {} × {}", self.rows, self.cols);
        if self.is_borrowed() {
            crate::quant::dequantize(self.weight, &packed[row * self.row_bytes..][..self.row_bytes], out);
            return;
        }
        if self.row_bytes == 0 {
            return;
        }
        let c = codec(self.weight);
        let group = &packed[row / GROUP * self.group_bytes()..][..self.group_bytes()];
        let blocks = group.chunks_exact(c.packed_block_bytes());
        for (block, out) in blocks.zip(out.chunks_exact_mut(32 * c.tiles)) {
            for (t, out) in out.chunks_exact_mut(32).enumerate() {
                tile_levels(&c, &load_tile(&c, block, t, row % GROUP), out);
            }
        }
    }
}

/// Calls the packer with the type as a constant, so that each has its own straight loop.
fn pack_group(weight: WeightType, rows: &[u8], row_bytes: usize, group: &mut [u8]) {
    macro_rules! by_type {
        ($($name:ident)*) => {
            match weight {
                $(WeightType::$name => pack_group_of::<{ WeightType::$name as usize }>(rows, row_bytes, group),)*
                WeightType::F32 | WeightType::F16 | WeightType::BF16 => unreachable!("a float type is not packed"),
            }
        };
    }
    by_type!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS)
}

fn pack_group_of<const TYPE: usize>(rows: &[u8], row_bytes: usize, group: &mut [u8]) {
    let weight = const { crate::quant::BY_INDEX[TYPE] };
    let c = const { codec(crate::quant::BY_INDEX[TYPE]) };
    let block_bytes = const { crate::quant::TYPES[TYPE].block_bytes };
    let count = rows.len() / row_bytes;
    if count < GROUP {
        group.fill(0);
    }
    for (b, block) in group.chunks_exact_mut(c.packed_block_bytes()).enumerate() {
        for lane in 0..count {
            let source = &rows[lane * row_bytes + b * block_bytes..][..block_bytes];
            unroll8!(T => {
                if T < c.tiles {
                    store_tile(&c, block, T, lane, &read_tile(weight, source, T));
                }
            });
        }
    }
}

fn put_word(block: &mut [u8], at: usize, lane: usize, w: u32) {
    block[at + 4 * lane..][..4].copy_from_slice(&w.to_le_bytes());
}

#[inline(always)]
fn store_tile(c: &Codec, block: &mut [u8], t: usize, lane: usize, tile: &Tile) {
    block[2 * lane..][..2].copy_from_slice(&tile.d.to_le_bytes());
    if c.head_bytes() == 32 {
        block[16 + 2 * lane..][..2].copy_from_slice(&tile.m.to_le_bytes());
    }
    let mut at = c.head_bytes() + t * c.tile_bytes();
    match c.sub_scale {
        SubScale::None => {}
        SubScale::Bytes => {
            block[at + lane] = tile.scale[0];
            block[at + 8 + lane] = tile.min[0];
        }
        SubScale::Nibbles => {
            for s in 0..c.subs {
                block[at + 8 * s + lane] = tile.scale[s] | tile.min[s] << 4;
            }
        }
        SubScale::Signed => {
            for s in 0..c.subs {
                block[at + 8 * s + lane] = tile.scale[s];
            }
        }
    }
    at += c.sub_scale_bytes();
    let (q, mut shift) = (&tile.codes, 0);
    if c.bits == 8 {
        for (k, &w) in q.iter().enumerate() {
            put_word(block, at + 32 * k, lane, w);
        }
        return;
    }
    if c.bits & 4 != 0 {
        for k in 0..4 {
            put_word(block, at + 32 * k, lane, (q[k] & 0x0f0f_0f0f) | (q[k + 4] & 0x0f0f_0f0f) << 4);
        }
        (at, shift) = (at + 128, 4);
    }
    if c.bits & 2 != 0 {
        for v in 0..2 {
            let w = (0..4).fold(0, |w, s| w | ((q[4 * v + s] >> shift) & 0x0303_0303) << (2 * s));
            put_word(block, at + 32 * v, lane, w);
        }
        (at, shift) = (at + 64, shift + 2);
    }
    if c.bits & 1 != 0 {
        let w = (0..8).fold(0, |w, j| w | ((q[j] >> shift) & 0x0101_0101) << j);
        put_word(block, at, lane, w);
    }
}

/// The inverse of [`store_tile`].
fn load_tile(c: &Codec, block: &[u8], t: usize, lane: usize) -> Tile {
    let get_half = |at: usize| u16::from_le_bytes([block[at + 2 * lane], block[at + 2 * lane + 1]]);
    let get_word = |at: usize| {
        let b = &block[at + 4 * lane..][..4];
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    };
    let mut tile = Tile { d: get_half(0), ..Tile::default() };
    if c.head_bytes() == 32 {
        tile.m = get_half(16);
    }
    let mut at = c.head_bytes() + t * c.tile_bytes();
    for s in 0..c.subs {
        match c.sub_scale {
            SubScale::None => {}
            SubScale::Bytes => (tile.scale[s], tile.min[s]) = (block[at + lane], block[at + 8 + lane]),
            SubScale::Nibbles => {
                let b = block[at + 8 * s + lane];
                (tile.scale[s], tile.min[s]) = (b & 15, b >> 4);
            }
            SubScale::Signed => tile.scale[s] = block[at + 8 * s + lane],
        }
    }
    at += c.sub_scale_bytes();
    let mut shift = 0;
    if c.bits == 8 {
        tile.codes = std::array::from_fn(|k| get_word(at + 32 * k));
        return tile;
    }
    if c.bits & 4 != 0 {
        tile.codes = std::array::from_fn(|j| (get_word(at + 32 * (j & 3)) >> (4 * (j >> 2))) & 0x0f0f_0f0f);
        (at, shift) = (at + 128, 4);
    }
    if c.bits & 2 != 0 {
        for (j, code) in tile.codes.iter_mut().enumerate() {
            *code |= ((get_word(at + 32 * (j >> 2)) >> (2 * (j & 3))) & 0x0303_0303) << shift;
        }
        (at, shift) = (at + 64, shift + 2);
    }
    if c.bits & 1 != 0 {
        for (j, code) in tile.codes.iter_mut().enumerate() {
            *code |= ((get_word(at) >> j) & 0x0101_0101) << shift;
        }
    }
    tile
}
