//! Prompts in chunks: many tokens in one recorded sequence, which only a prompt's last few go without.

use std::time::Duration;

use planish_device::{Init, Sequence, Slice};
use planish_kernels::gpu::decode::model::{Memory, Model, ModelAt};
use planish_kernels::gpu::prefill::{self, PrefillMemory};
use planish_kernels::op::Machine;
use planish_tune::Config;

use crate::error::{Error, Result};

/// A prompt shorter than this is fed token by token: a chunk takes as long as a few steps, however few tokens it has.
pub const LEAST: usize = 4;

/// Tokens of a chunk on a card: enough that arithmetic is the limit, at rows of a few megabytes.
pub const TOKENS: usize = 512;

/// A recorded chunk.
pub struct Chunks {
    size: usize,
    bytes: usize,
    words: Slice,
    sequence: Sequence,
}

impl Chunks {
    /// Allocates the memory of chunks of up to `size` tokens and records one under `config`.
    pub fn new(
        machine: Machine<'_>,
        model: (&Model, &ModelAt),
        memory: &Memory,
        (size, config): (usize, &Config),
    ) -> Result<Chunks> {
        let size = size.next_multiple_of(prefill::ROWS);
        let backend = machine.backend;
        let zeros = |bytes: usize| -> Result<Slice> { Ok(backend.alloc(bytes, Init::Zero)?.all()) };
        let own = PrefillMemory {
            words: zeros(PrefillMemory::words_bytes(size))?,
            weights: zeros(PrefillMemory::weights_bytes(model))?,
            rows: zeros(PrefillMemory::rows_bytes(model, size))?,
        };
        let launches = prefill::launches(model, memory, &own, size, config, &machine);
        let refused = |r| Error::request(format!("chunks of {size} tokens with {config}: {r}"));
        let sequence = backend.record_graph(&launches.map_err(refused)?)?;
        Ok(Chunks { size, bytes: own.weights.len + own.rows.len, words: own.words, sequence })
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is submitted for each chunk.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Feeds the first of `ids`, as many as a chunk takes, from `position` on, and returns how many.
    pub fn feed(&self, machine: Machine<'_>, position: usize, ids: &[u32], deadline: Duration) -> Result<usize> {
        let ids = &ids[..ids.len().min(self.size)];
        let words = PrefillMemory::words(position, ids);
        let backend = machine.backend;
        backend.write(&self.words.buffer.slice(self.words.offset, words.len())?, &words)?;
        let token = backend.submit(&self.sequence)?;
        backend.wait(token, deadline)?;
        Ok(ids.len())
    }
}
