//! The decoder on a GPU: weights in planes, steps recorded at load, tokens that follow each other on the device.
//!
//! The same kernels run on a card and, slowly, on the host executor.

pub mod chunk;
pub mod decoder;
pub mod generate;
pub mod layout;
pub mod parts;
pub mod weights;

/// Names of the whole step and of a chunk of a prompt in stores, pins and locks.
pub const OPS: [&str; 2] = [DECODE, PREFILL];
/// The step.
pub const DECODE: &str = planish_kernels::gpu::decode::OP.op.name;
/// The chunk.
pub const PREFILL: &str = planish_kernels::gpu::prefill::OP.op.name;

pub use decoder::{AHEAD, By, GpuDecoder, Options, Route, Spent, Window};
pub use parts::{Part, parts};
pub use weights::Weights;
