//! Weights of a GPU: every tensor repacked into planes, streamed into one arena of the device.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use planish_device::{Backend, Buffer, Init};
use planish_kernels::gpu::decode::model::ModelAt;
use planish_kernels::gpu::planes::Planes;
use planish_kernels::rope_table::RopeTable;

use super::layout::{Layout, Matrix};
use crate::arch::Hyper;
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::weights::{bytes_per_token, floats, tables};

/// Bytes behind the last tensor that kernels may read, since they read whole lines.
const SPARE: usize = 256;
/// Bytes of the file that are repacked and written at a time, about. The host holds a few such pieces, never the model.
const PIECE_BYTES: usize = 16 << 20;

/// The tensors of a model on a GPU.
pub struct Weights {
    /// Everything.
    pub arena: Buffer,
    /// Where each tensor lies in it.
    pub at: ModelAt,
    /// Rotary frequencies, one table for each base in use.
    pub tables: Vec<RopeTable>,
    /// Bytes of weights that one decode step reads, in the file's own formats.
    pub bytes_per_token: u64,
}

/// Bytes and where they go in the arena.
struct Piece {
    bytes: Vec<u8>,
    offset: usize,
}

/// Rows of a matrix that are repacked together.
struct Job<'l, 'g> {
    matrix: &'l Matrix<'g>,
    first: usize,
    rows: usize,
}

impl Weights {
    /// Puts the tensors of `gguf` on `backend`; `threads` host threads repack while this one writes.
    pub fn load(gguf: &Gguf, hyper: &Hyper, backend: &dyn Backend, threads: usize) -> Result<Weights> {
        let (layout, weights) = Weights::place(gguf, hyper, backend)?;
        let arena = &weights.arena;
        for vector in &layout.vectors {
            let bytes: Vec<u8> = floats(gguf, vector.tensor)?.iter().flat_map(|v| v.to_le_bytes()).collect();
            backend.write(&arena.slice(vector.offset, bytes.len())?, &bytes)?;
        }
        stream(gguf, &layout, threads, &mut |piece| {
            Ok(backend.write(&arena.slice(piece.offset, piece.bytes.len())?, &piece.bytes)?)
        })?;
        Ok(weights)
    }

    /// The same with zeros for all tensors, for questions about a step that is not run.
    pub fn empty(gguf: &Gguf, hyper: &Hyper, backend: &dyn Backend) -> Result<Weights> {
        Ok(Weights::place(gguf, hyper, backend)?.1)
    }

    /// The same tensors for a model of the first `layers` blocks, to see where a fault begins.
    pub fn first(&self, layers: usize) -> Weights {
        let mut at = self.at.clone();
        at.layers.truncate(layers);
        Weights { arena: self.arena.clone(), at, tables: self.tables.clone(), bytes_per_token: self.bytes_per_token }
    }

    fn place<'g>(gguf: &'g Gguf, hyper: &Hyper, backend: &dyn Backend) -> Result<(Layout<'g>, Weights)> {
        let (layout, at) = Layout::new(gguf, hyper)?;
        let arena = backend.alloc(layout.bytes + SPARE, Init::Zero)?;
        let bytes_per_token = bytes_per_token(gguf, gguf.find("output.weight").is_none());
        Ok((layout, Weights { arena, at, tables: tables(gguf, hyper)?, bytes_per_token }))
    }
}

/// Repacks all matrices on `threads` threads and hands the pieces to `write` as they come, in any order.
fn stream(gguf: &Gguf, layout: &Layout<'_>, threads: usize, write: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
    let jobs = Mutex::new(layout.matrices.iter().flat_map(jobs));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let (send, pieces) = sync_channel::<Result<Piece>>(1);
        let work = |send: SyncSender<Result<Piece>>| {
            while let Some(job) = next() {
                // Nobody listens any more once a write has failed.
                if send.send(job.pack(gguf)).is_err() {
                    break;
                }
            }
        };
        for _ in 0..threads.max(1) {
            let send = send.clone();
            scope.spawn(move || work(send));
        }
        drop(send);
        pieces.into_iter().try_for_each(|piece| write(piece?))
    })
}

/// The rows of a matrix in pieces; each holds as many rows of every tensor.
fn jobs<'l, 'g>(matrix: &'l Matrix<'g>) -> impl Iterator<Item = Job<'l, 'g>> {
    let step = (PIECE_BYTES / matrix.planes.file_row()).max(1).next_multiple_of(matrix.tensors.len());
    let of = move |first| Job { matrix, first, rows: step.min(matrix.planes.rows - first) };
    (0..matrix.planes.rows).step_by(step).map(of)
}

impl Job<'_, '_> {
    fn pack(&self, gguf: &Gguf) -> Result<Piece> {
        let (whole, turns) = (&self.matrix.planes, self.matrix.tensors.len());
        let part = Planes::new(whole.ty, self.rows, whole.cols).map_err(Error::model)?;
        let mut bytes = vec![0; part.bytes()];
        let width = whole.file_row();
        for (turn, tensor) in self.matrix.tensors.iter().enumerate() {
            let start = tensor.bytes.start + self.first / turns * width;
            let rows = start..start + self.rows / turns * width;
            part.pack(&gguf.bytes()[rows.clone()], |i| i * turns + turn, &mut bytes);
            gguf.release(rows);
        }
        bytes.truncate(self.rows * whole.row_bytes());
        Ok(Piece { bytes, offset: self.matrix.offset + self.first * whole.row_bytes() })
    }
}
