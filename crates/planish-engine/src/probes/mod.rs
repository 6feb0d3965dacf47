//! What a machine does at best, measured on it: the one place of every ceiling that a percentage refers to.

pub mod cpu;
mod gpu;

use serde::{Deserialize, Serialize};

use crate::explain::Demand;
pub use gpu::{
    BarrierCost, Ceilings, Effort, Handed, LaunchCost, MatrixRate, Rate, all, barrier, barrier_of, copy, launch,
    launch_of, matrix, read, read_of, roof,
};

/// The ceilings that a token is held against.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// Reading memory far larger than every cache, GB/s.
    pub memory_gb_s: f64,
    /// Reading as many bytes as a token does, again and again, GB/s: caches may hold some of them.
    pub token_gb_s: Option<f64>,
    /// Those bytes.
    pub token_bytes: u64,
    /// Copying memory, reads and writes counted, GB/s.
    pub copy_gb_s: Option<f64>,
    /// Additions and multiplications in f32, 1e9 a second.
    pub f32_gflop_s: Option<f64>,
    /// Additions and multiplications of bytes, 1e9 a second.
    pub int8_gop_s: Option<f64>,
    /// Additions and multiplications of the matrix unit, 1e9 a second.
    pub matrix_gflop_s: Option<f64>,
    /// A launch that does nothing, handed over as a token's are, nanoseconds.
    pub launch_ns: Option<f64>,
    /// A barrier at the width of a token's, nanoseconds.
    pub barrier_ns: Option<f64>,
    /// Last-level cache, bytes.
    pub cache_bytes: u64,
}

impl Roof {
    /// The rate at which a token's bytes can be read.
    pub fn read_gb_s(&self) -> f64 {
        self.token_gb_s.unwrap_or(self.memory_gb_s)
    }

    /// The least time of the arithmetic, nanoseconds; none where its rate is unknown.
    ///
    /// Arithmetic in f32 and of bytes may overlap. The matrix unit stands in where nothing else was measured: no other
    /// unit is faster.
    pub fn arithmetic_ns(&self, demand: &Demand) -> Option<f64> {
        let matrix = self.matrix_gflop_s;
        let time = |ops: f64, rate: Option<f64>| rate.or(matrix).filter(|_| ops > 0.0).map(|r| ops / r);
        let (floats, bytes) = (time(demand.flops, self.f32_gflop_s), time(demand.int8_ops, self.int8_gop_s));
        match (floats, bytes) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (one, other) => one.or(other),
        }
    }
}
