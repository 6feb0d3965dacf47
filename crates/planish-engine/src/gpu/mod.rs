//! The decoder on a GPU: weights in planes, steps recorded at load, tokens that follow each other on the device.
//!
//! The same kernels run on a card and, slowly, on the host executor.

pub mod chunk;
pub mod decoder;
pub mod generate;
pub mod layout;
pub mod weights;

/// Name of the whole step in stores, pins and locks.
pub const OP: &str = planish_kernels::gpu::decode::OP.op.name;

pub use decoder::{AHEAD, By, GpuDecoder, Options, Route, Spent, Window};
pub use weights::Weights;
