//! Quantised matrices in planes, as `include/planes.k` reads them: in segments of 32 tiles of a row all codes, their high
//! bits, the scales of tiles and of blocks.
//!
//! The values are those of the file, bit for bit; a weight takes the file's bytes, at most four percent more, and a row of
//! the file up to 32 bytes more.

use crate::quant::{Min, SubScale, Tile, WeightType, codec, read_tile};

/// The text of planes; it needs that of GGUF's types before it.
pub const PLANES: (&str, &str) = ("planes.k", include_str!("include/planes.k"));
/// The text of eight weights at a time; it needs that of planes before it.
pub const EIGHT: (&str, &str) = ("eight.k", include_str!("include/eight.k"));

/// Columns of a tile.
pub const TILE: usize = 32;
/// Tiles of a segment: what a SIMD group takes at a time, a lane a tile.
pub const SEGMENT: usize = 32;
/// What rows and segments start on, in bytes.
pub const ALIGN: usize = 16;

/// A matrix and where its parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// How elements are stored; float types lie row after row, as in the file.
    pub ty: WeightType,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// Bytes of one tile in the planes of codes, high bits and scales, and of one block in the last plane.
fn sizes(ty: WeightType) -> [usize; 4] {
    let codec = codec(ty);
    let codes = if codec.bits == 8 { 32 } else { (4 * codec.bits.min(4) as usize) & !7 };
    let high = if codec.bits == 8 { 0 } else { 4 * (codec.bits as usize - codes / 4) };
    match codec.sub_scale {
        SubScale::None => [codes, high, if codec.min == Min::Add { 4 } else { 2 }, 0],
        SubScale::Bytes => [codes, high, 2, 0],
        SubScale::Nibbles => [codes, high, 2, 4],
        SubScale::Signed => [codes, high, codec.subs, 2],
    }
}

impl Planes {
    /// A matrix of whole blocks, or of whole quads of floats; an error names what is wrong.
    pub fn new(ty: WeightType, rows: usize, cols: usize) -> Result<Planes, String> {
        let planes = Planes { ty, rows, cols };
        let whole = if ty.is_float() { cols.is_multiple_of(4) } else { ty.row_bytes(cols).is_some() };
        if !whole || rows == 0 || cols == 0 {
            let unit = if ty.is_float() { 4 } else { ty.record().block_elements };
            return Err(format!("{rows} rows of {cols} {ty} elements: rows of whole {unit} are needed"));
        }
        match rows.checked_mul(cols).and_then(|n| n.checked_mul(4)) {
            // Kernels count tiles, and the bytes of a plane, in 32 bits.
            Some(n) if n / 4 <= u32::MAX as usize => Ok(planes),
            _ => Err(format!("{rows} rows of {cols} {ty} elements: more than 2^32 elements")),
        }
    }

    /// Bytes of a row in the file.
    pub fn file_row(&self) -> usize {
        self.ty.row_bytes(self.cols).expect("rows are whole blocks")
    }

    /// Bytes of the matrix, a multiple of `ALIGN`.
    pub fn bytes(&self) -> usize {
        (self.rows * self.row_bytes()).next_multiple_of(ALIGN)
    }

    /// Bytes of one row, a multiple of `ALIGN` for quantised types: row i of the matrix begins at i times as many.
    pub fn row_bytes(&self) -> usize {
        if self.ty.is_float() {
            return self.file_row();
        }
        let tiles = self.cols / TILE;
        tiles / SEGMENT * segment_bytes(self.ty, SEGMENT) + segment_bytes(self.ty, tiles % SEGMENT)
    }

    /// The bytes of some rows of the file, of which row i becomes row `place(i)`, into `out`, the whole matrix.
    ///
    /// Panics when sizes disagree.
    pub fn pack(&self, file: &[u8], place: impl Fn(usize) -> usize, out: &mut [u8]) {
        let width = self.file_row();
        assert!(out.len() == self.bytes() && file.len().is_multiple_of(width), "{} bytes, {self:?}", out.len());
        for (i, row) in file.chunks_exact(width).enumerate() {
            let to = place(i);
            assert!(to < self.rows, "row {to} of {}", self.rows);
            self.pack_row(row, &mut out[to * self.row_bytes()..][..self.row_bytes()]);
        }
    }

    fn pack_row(&self, file: &[u8], out: &mut [u8]) {
        if self.ty.is_float() {
            out.copy_from_slice(file);
            return;
        }
        let (codec, record, tiles) = (codec(self.ty), self.ty.record(), self.cols / TILE);
        for first in (0..tiles).step_by(SEGMENT) {
            let n = SEGMENT.min(tiles - first);
            let start = first / SEGMENT * segment_bytes(self.ty, SEGMENT);
            let segment = &mut out[start..start + segment_bytes(self.ty, n)];
            segment.fill(0);
            for t in 0..n {
                let at = first + t;
                let block = &file[at / codec.tiles * record.block_bytes..][..record.block_bytes];
                put_tile(self.ty, &read_tile(self.ty, block, at % codec.tiles), (t, n), segment);
            }
        }
    }
}

/// Bytes of the largest segment of a row of `cols` columns; 0 for floats, which have none.
pub fn most_segment_bytes(ty: WeightType, cols: usize) -> usize {
    if ty.is_float() { 0 } else { segment_bytes(ty, SEGMENT.min(cols / TILE)) }
}

/// Bytes of a segment of `n` tiles.
fn segment_bytes(ty: WeightType, n: usize) -> usize {
    let [codes, high, scales, blocks] = sizes(ty);
    (n * (codes + high + scales) + n / 8 * blocks).next_multiple_of(ALIGN)
}

/// Puts tile `t` of `n` into its segment.
fn put_tile(ty: WeightType, tile: &Tile, (t, n): (usize, usize), out: &mut [u8]) {
    let [codes, high, scales, blocks] = sizes(ty);
    let (low_bits, high_bits) = split(ty, &tile.codes);
    if ty == WeightType::Q8_0 {
        put(out, 16 * t, &low_bits[..16]);
        put(out, 16 * (n + t), &low_bits[16..]);
    } else {
        put(out, t * codes, &low_bits[..codes]);
    }
    put(out, n * codes + t * high, &high_bits[..high]);
    let at = n * (codes + high);
    match codec(ty).sub_scale {
        SubScale::Bytes => six_bits(tile, t % 8, &mut out[at + t / 8 * 16..][..16]),
        _ => put(out, at + t * scales, &scale_bytes(ty, tile)[..scales]),
    }
    put(out, at + n * scales + t / 8 * blocks, &block_bytes(ty, tile)[..blocks]);
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The codes of a tile as the first plane has them, and the bits that are left for the second.
fn split(ty: WeightType, words: &[u32; 8]) -> ([u8; 32], [u8; 8]) {
    let codec = codec(ty);
    let (mut low, mut high) = ([0u8; 32], [0u8; 8]);
    // A code of a type with an offset becomes a signed number of as many bits: its top bit turns.
    let turned = if codec.offset > 0 { 1 << (codec.bits - 1) } else { 0 };
    for column in 0..TILE {
        let (word, byte) = (column / 4, column % 4);
        let code = words[word].to_le_bytes()[byte] ^ turned;
        match codec.bits {
            8 => low[column] = code,
            2 | 3 => low[word / 4 * 4 + byte] |= (code & 3) << (2 * (word % 4)),
            _ => low[word % 4 * 4 + byte] |= (code & 15) << (4 * (word / 4)),
        }
        match codec.bits {
            3 => high[byte] |= (code >> 2) << word,
            5 => high[byte] |= (code >> 4) << word,
            6 => high[word / 4 * 4 + byte] |= (code >> 4) << (2 * (word % 4)),
            _ => {}
        }
    }
    (low, high)
}

/// What the third plane has of a tile, but for the types with scales of six bits.
fn scale_bytes(ty: WeightType, tile: &Tile) -> [u8; 4] {
    let ([d0, d1], [m0, m1]) = (tile.d.to_le_bytes(), tile.m.to_le_bytes());
    match codec(ty).sub_scale {
        SubScale::None => [d0, d1, m0, m1],
        SubScale::Nibbles => [tile.scale[0] | tile.min[0] << 4, tile.scale[1] | tile.min[1] << 4, 0, 0],
        SubScale::Signed | SubScale::Bytes => [tile.scale[0], tile.scale[1], 0, 0],
    }
}

fn block_bytes(ty: WeightType, tile: &Tile) -> [u8; 4] {
    let ([d0, d1], [m0, m1]) = (tile.d.to_le_bytes(), tile.m.to_le_bytes());
    match codec(ty).sub_scale {
        SubScale::Nibbles => [d0, d1, m0, m1],
        SubScale::Signed => [d0, d1, 0, 0],
        SubScale::None | SubScale::Bytes => [0; 4],
    }
}

/// Puts tile `s` of a block into its record: the two scales of the block, a byte for each tile with six bits of scale and
/// two of minimum, then four bits for each tile with the rest of the minimum.
fn six_bits(tile: &Tile, s: usize, record: &mut [u8]) {
    record[..2].copy_from_slice(&tile.d.to_le_bytes());
    record[2..4].copy_from_slice(&tile.m.to_le_bytes());
    record[4 + s] = tile.scale[0] | (tile.min[0] & 3) << 6;
    let rest = &mut record[12 + s / 2];
    *rest = *rest & (0xf0 >> (4 * (s % 2))) | (tile.min[0] >> 2) << (4 * (s % 2));
}

#[cfg(test)]
mod tests {
    use super::{Planes, sizes};
    use crate::data::Rng;
    use crate::quant::{TYPES, WeightType};

    #[test]
    fn planes_take_the_bytes_of_the_file_or_little_more() {
        for record in TYPES.iter().filter(|r| !r.weight.is_float()) {
            let [codes, high, scales, blocks] = sizes(record.weight);
            let mine = 8 * (codes + high + scales) + blocks;
            let file = 256 / record.block_elements * record.block_bytes;
            assert!(mine >= file && mine * 100 <= file * 104, "{}: {mine} bytes for {file}", record.name);
        }
    }

    #[test]
    fn rows_packed_in_parts_are_the_matrix() {
        for record in &TYPES {
            let whole = Planes::new(record.weight, 7, 512).expect("whole blocks");
            let mut rng = Rng::new(record.gguf_id.into());
            let file: Vec<u8> = (0..7 * whole.file_row()).map(|_| rng.below(256) as u8).collect();
            let mut wanted = vec![0; whole.bytes()];
            whole.pack(&file, |i| i, &mut wanted);
            let mut got = vec![0; whole.bytes()];
            for (first, rows) in [(3, 4), (0, 1), (1, 2)] {
                let part = Planes::new(record.weight, rows, 512).expect("whole blocks");
                let mut bytes = vec![0; part.bytes()];
                part.pack(&file[first * whole.file_row()..(first + rows) * whole.file_row()], |i| i, &mut bytes);
                let (to, len) = (first * whole.row_bytes(), rows * whole.row_bytes());
                got[to..to + len].copy_from_slice(&bytes[..len]);
            }
            assert!(got == wanted, "{}", record.name);
        }
    }

    #[test]
    fn matrices_that_no_kernel_reads_are_refused() {
        assert!(Planes::new(WeightType::Q4_K, 2, 128).unwrap_err().contains("whole 256"));
        assert!(Planes::new(WeightType::F16, 2, 6).unwrap_err().contains("whole 4"));
        assert!(Planes::new(WeightType::F32, 1 << 20, 1 << 20).unwrap_err().contains("2^32"));
        assert_eq!(Planes::new(WeightType::Q4_1, 3, 64).map(|p| p.bytes()), Ok(3 * 48));
    }
}
