//! The op table: specification, reference, space, cost, cases and kernels of every op; quantised block formats.

pub mod cpu;
pub mod data;
mod error;
pub mod gate;
pub mod gpu;
pub mod op;
pub mod ops;
pub mod quant;
pub mod reference;
pub mod rope_table;
pub mod step;
pub mod subject;
pub mod telling;
pub mod weight;
mod whole;

pub use error::Error;
pub use op::{Cost, Op};

/// Hash of the sources of the CPU kernels.
pub const KERNEL_HASH: &str = env!("PLANISH_KERNEL_HASH");
/// Hash of the sources of the GPU kernels and of the dialect's forms.
pub const GPU_HASH: &str = env!("PLANISH_GPU_HASH");
/// The compiler that built them.
pub const KERNEL_TOOLCHAIN: &str = env!("PLANISH_KERNEL_TOOLCHAIN");
