//! Kernels in Rust SIMD for the machine's own processor.

pub mod act;
pub mod attention;
mod attention_rows;
pub mod embed;
pub mod isa;
pub mod kv;
pub mod matmul;
pub mod norm;
pub mod peak;
pub mod rope;
pub mod sample;
pub mod simd;

#[cfg(test)]
mod testing;
