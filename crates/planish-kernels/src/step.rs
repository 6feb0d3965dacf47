//! The values that change from step to step, in a device buffer that recorded launches read.
//!
//! A recorded sequence would freeze by-value parameters, so the token ids, the position and the number of tokens of a
//! step live here.

use planish_device::{Call, RawSlice};

/// Words before the token ids.
pub const HEADER: usize = 16;

/// Bytes of the step buffer for at most `batch` tokens a step.
pub fn bytes(batch: usize) -> usize {
    (HEADER + batch) * 4
}

/// The step of `ids` starting at position `pos`, as the bytes to write into the step buffer.
pub fn encode(ids: &[u32], pos: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes(ids.len()));
    encode_into(ids, pos, &mut out);
    out
}

/// The same in place of what `out` holds; allocates nothing where `out` has room.
pub fn encode_into(ids: &[u32], pos: u32, out: &mut Vec<u8>) {
    let mut header = [0u32; HEADER];
    header[0] = ids.len() as u32;
    header[1] = pos;
    out.clear();
    out.extend(header.iter().chain(ids).flat_map(|w| w.to_le_bytes()));
}

/// What a kernel reads of the step.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Tokens in this step.
    pub n: usize,
    /// Position of the first.
    pub pos: usize,
    /// Their ids; may be longer than `n`.
    pub ids: &'a [u32],
}

impl<'a> Step<'a> {
    /// The step in argument `index` of a launch.
    ///
    /// # Safety
    /// The argument must be a step buffer that nobody writes during the launch.
    pub unsafe fn of(call: &Call<'a>, index: usize) -> Self {
        // SAFETY: forwarded.
        unsafe { Self::read(call.args[index]) }
    }

    /// The step in a raw slice.
    ///
    /// # Safety
    /// As for `of`.
    pub unsafe fn read(slice: RawSlice) -> Self {
        // SAFETY: the caller says it is a step buffer, which holds u32 words.
        let words: &'a [u32] = unsafe { slice.read() };
        Step { n: words[0] as usize, pos: words[1] as usize, ids: &words[HEADER..] }
    }
}
