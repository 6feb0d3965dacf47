//! What a processor does at best: submissions, wakes and barriers of its pool, bandwidth of memory, arithmetic.

use std::time::Duration;

use planish_device::Cpu;
use planish_device::cpu::bandwidth::{self, Bandwidth};
use planish_device::cpu::residency::{self, Cold};
use planish_kernels::cpu::peak::{self, Peak};
use planish_kernels::op::Machine;
use serde::Serialize;

use super::Roof;
use crate::error::Result;

/// What it costs to hand a sequence to the pool, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PoolLaunch {
    /// Submitting one empty task and having waited for it.
    pub submission_ns: f64,
    /// Threads of the pool.
    pub threads: u32,
    /// Until all of them work, when they spin as between two tokens.
    pub spinning_ns: f64,
    /// Until all of them work, when they sleep.
    pub sleeping_ns: f64,
}

/// What a barrier of the pool costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PoolBarrier {
    /// Threads that wait for each other.
    pub threads: u32,
    /// Nanoseconds a round.
    pub round_ns: f64,
}

/// A pause in which the threads of the pool go on spinning, and one after which they sleep.
const PAUSES: [Duration; 2] = [Duration::from_micros(5), Duration::from_micros(500)];
/// Wakes, of which the median counts.
const WAKES: u32 = 101;

/// Cost of handing over.
pub fn launch(cpu: &Cpu, budget: Duration) -> Result<PoolLaunch> {
    let threads = cpu.threads();
    let wake = |pause| bandwidth::wake_ns(cpu, threads, pause, WAKES);
    Ok(PoolLaunch {
        submission_ns: bandwidth::null_ns(cpu, budget)?,
        threads,
        spinning_ns: wake(PAUSES[0])?,
        sleeping_ns: wake(PAUSES[1])?,
    })
}

/// Cost of a barrier by threads: one, powers of two, all. `budget` is for each.
pub fn barrier(cpu: &Cpu, budget: Duration) -> Result<Vec<PoolBarrier>> {
    let all = cpu.threads();
    let mut widths: Vec<u32> = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < all).collect();
    widths.push(all);
    widths.into_iter().map(|threads| barrier_of(cpu, threads, budget)).collect()
}

/// The same at one width.
pub fn barrier_of(cpu: &Cpu, threads: u32, budget: Duration) -> Result<PoolBarrier> {
    Ok(PoolBarrier { threads, round_ns: bandwidth::barrier_ns(cpu, threads, budget)? })
}

/// Bandwidth of reading memory with `threads` threads.
pub fn read(cpu: &Cpu, threads: u32, budget: Duration) -> Result<Bandwidth> {
    Ok(bandwidth::read_gb_s(cpu, threads, budget)?)
}

/// What rotated buffers have to exceed to be cold.
pub fn cold(cpu: &Cpu) -> Result<Cold> {
    Ok(residency::measure(cpu)?)
}

/// Bandwidth of reading far more than that.
pub fn cold_read(cpu: &Cpu, cold: &Cold, budget: Duration) -> Result<Bandwidth> {
    let bytes = bandwidth::cold_bytes(cpu).max((4 * cold.bytes).min(cold.looked_at_bytes) as usize);
    Ok(bandwidth::read_of_gb_s(cpu, cpu.threads(), bytes, budget)?)
}

/// Bandwidth of copying memory with `threads` threads, reads and writes counted.
pub fn copy(cpu: &Cpu, threads: u32, budget: Duration) -> Result<Bandwidth> {
    Ok(bandwidth::copy_gb_s(cpu, threads, budget)?)
}

/// Rates of arithmetic in f32 and of bytes with `threads` threads.
pub fn arithmetic(machine: &Machine<'_>, threads: u32, budget: Duration) -> Result<Peak> {
    Ok(peak::measure(machine, threads, budget)?)
}

/// The ceilings of a token that reads `token_bytes` bytes; `budget` is for each of five probes. `machine` is `cpu`.
///
/// Of bandwidths the best pass counts: other work on the machine must not lower a ceiling.
pub fn roof(machine: &Machine<'_>, cpu: &Cpu, token_bytes: u64, budget: Duration) -> Result<Roof> {
    let threads = cpu.threads();
    let token = bandwidth::read_of_gb_s(cpu, threads, token_bytes as usize, budget)?;
    let arithmetic = arithmetic(machine, threads, budget)?;
    Ok(Roof {
        memory_gb_s: read(cpu, threads, budget)?.best,
        token_gb_s: Some(token.best),
        token_bytes: token.bytes,
        copy_gb_s: Some(copy(cpu, threads, budget)?.best),
        f32_gflop_s: Some(arithmetic.f32_gflop_s),
        int8_gop_s: Some(arithmetic.int8_gop_s),
        matrix_gflop_s: None,
        launch_ns: Some(bandwidth::null_ns(cpu, budget)?),
        barrier_ns: Some(barrier_of(cpu, threads, budget)?.round_ns),
        cache_bytes: machine.backend.limits().llc_bytes,
    })
}
