//! The op table: specification, reference, space, cost, cases and kernels of every op; quantised block formats.

pub mod cpu;
mod error;
pub mod quant;
pub mod reference;

pub use error::Error;
