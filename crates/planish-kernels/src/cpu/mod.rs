//! Kernels in Rust SIMD for the machine's own processor.

pub mod isa;
pub mod matmul;
