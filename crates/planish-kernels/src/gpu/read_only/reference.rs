//! Sums of chunks.

/// Words a chunk.
pub const CHUNK: usize = 4096;

/// The sum modulo 2^32 of each chunk of `x`.
pub fn sums(x: &[u32]) -> Vec<f64> {
    let sum = |chunk: &[u32]| chunk.iter().fold(0u32, |a, b| a.wrapping_add(*b));
    x.chunks(CHUNK).map(|chunk| f64::from(sum(chunk))).collect()
}
