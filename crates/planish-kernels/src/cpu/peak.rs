//! Arithmetic ceilings measured on this machine: fused multiply-adds in f32, and byte products summed in integers.
//!
//! A probe does what the kernels of an instruction set do in their innermost loop, on operands in registers and the first
//! cache and with enough sums in flight to hide latency: no kernel of the set can be faster, so a time under the
//! ceiling's is not believed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use planish_device::{Call, Error, Launch, Params, Plain, Source};
use serde::{Deserialize, Serialize};

use crate::cpu::isa::Isa;
use crate::cpu::matmul::rate;
use crate::cpu::simd::{self, LANES, Registers, Simd, isa_kernel};
use crate::op::Machine;

/// Vectors that a task multiplies and adds, and rounds of byte products it does: a fraction of a millisecond.
const VECTORS: usize = 480_000;
/// See `VECTORS`.
const ROUNDS: usize = 5_000;
/// How much less of it the portable code is given.
const PORTABLE_SHARE: usize = 48;
/// Fewest runs of a probe.
const RUNS_MIN: u32 = 5;

/// The best rates seen, in 1e9 additions and multiplications a second; a fused one counts as two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// f32.
    pub f32_gflop_s: f64,
    /// Products of bytes.
    pub int8_gop_s: f64,
    /// Threads that took part.
    pub threads: u32,
}

/// Measures for about `budget` with `threads` threads.
///
/// Other work on the machine must not lower a ceiling: where one thread alone did more than its part of all, that counts.
pub fn measure(machine: &Machine<'_>, threads: u32, budget: Duration) -> Result<Peak, Error> {
    let threads = threads.min(machine.backend.limits().max_threads);
    let best = |probe| -> Result<f64, Error> {
        let alone = f64::from(threads) * best_gop_s(machine, probe, 1, budget / 6)?;
        Ok(alone.max(best_gop_s(machine, probe, threads, budget / 6)?))
    };
    // Which shape keeps an instruction set busy depends on its registers.
    let mut int8_gop_s = best(Probe::Dots2)?.max(best(Probe::Dots3)?);
    if rate::panel_ops_per_round(machine.isa).is_some() {
        int8_gop_s = int8_gop_s.max(best(Probe::Panels)?);
    }
    Ok(Peak { f32_gflop_s: best(Probe::Fma)?, int8_gop_s, threads })
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    Fma,
    /// Byte products for two tokens at once.
    Dots2,
    /// For three.
    Dots3,
    /// As the kernels on panels do, where the set has such.
    Panels,
}

#[derive(Clone, Copy)]
struct P {
    isa: Isa,
    probe: Probe,
    /// Vectors or rounds of a task.
    work: usize,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

fn best_gop_s(machine: &Machine<'_>, probe: Probe, threads: u32, budget: Duration) -> Result<f64, Error> {
    let share = if machine.isa == Isa::Portable { PORTABLE_SHARE } else { 1 };
    let (work, ops_each) = match probe {
        Probe::Fma => (VECTORS / share, 2 * LANES as u64),
        Probe::Dots2 | Probe::Dots3 => (ROUNDS / share, rate::OPS_PER_ROUND),
        Probe::Panels => (ROUNDS, rate::panel_ops_per_round(machine.isa).expect("the set has kernels on panels")),
    };
    let launch = Launch {
        program: machine.backend.load(&Source::Native { name: "peak", run })?,
        args: Vec::new(),
        params: Params::new(P { isa: machine.isa, probe, work }),
        tasks: threads,
        threads,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    };
    let sequence = [machine.backend.record(&[launch])?];
    let (start, mut best_ns, mut runs) = (Instant::now(), f64::INFINITY, 0);
    while runs < RUNS_MIN || start.elapsed() < budget {
        best_ns = machine.backend.time(&sequence, 1)?.ns.min(best_ns);
        runs += 1;
    }
    Ok((work as u64 * ops_each * u64::from(threads)) as f64 / best_ns)
}

/// # Safety
/// Takes no arguments; the processor has the instruction set of the parameters.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    for _ in call.tasks.clone() {
        // SAFETY: forwarded.
        unsafe {
            match p.probe {
                Probe::Fma => drop(black_box(multiply_add(p.isa)(p.work, black_box(0.5)))),
                Probe::Dots2 => drop(black_box(rate::dots::<2>(p.isa, &rate::Operands::ONES, p.work))),
                Probe::Dots3 => drop(black_box(rate::dots::<3>(p.isa, &rate::Operands::ONES, p.work))),
                Probe::Panels => drop(black_box(rate::panels(p.isa, p.work))),
            }
        }
    }
}

isa_kernel! {
    /// `vectors` fused multiply-adds of vectors, in as many chains as the registers hold; `factor` is under 1.
    ///
    /// # Safety
    /// Of the returned function: none beyond the instruction set, which has been checked.
    fn multiply_add(vectors: usize, factor: f32) -> f32 = multiply_add_body
}

#[inline(always)]
unsafe fn multiply_add_body<S: Simd>(_: S, vectors: usize, factor: f32) -> f32 {
    // SAFETY: register operations only.
    unsafe {
        match S::REGISTERS {
            Registers::One => chains::<S, 1>(vectors, factor),
            Registers::Six => chains::<S, 6>(vectors, factor),
            Registers::Many => chains::<S, 12>(vectors, factor),
        }
    }
}

#[inline(always)]
unsafe fn chains<S: Simd, const N: usize>(vectors: usize, factor: f32) -> f32 {
    // SAFETY: register operations only.
    unsafe {
        let (factor, term) = (S::splat(factor), S::splat(1.0));
        let mut x = [term; N];
        for (i, x) in x.iter_mut().enumerate() {
            // All different, or the compiler would keep one of them.
            *x = S::splat(i as f32);
        }
        for _ in 0..vectors / N {
            for x in &mut x {
                *x = S::fma(*x, factor, term);
            }
        }
        let mut total = term;
        for x in x {
            total = S::add(total, x);
        }
        simd::sum::<S>(total)
    }
}

#[cfg(test)]
mod tests {
    use planish_device::cpu::{Cpu, CpuOptions};

    use super::*;

    #[test]
    fn probes_give_plausible_numbers() {
        let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("two threads");
        let peak = |isa, threads| {
            let machine = Machine { backend: &cpu, isa };
            measure(&machine, threads, Duration::from_millis(6)).expect("measured")
        };
        for isa in Isa::ALL.into_iter().filter(|i| i.is_supported()) {
            let Peak { f32_gflop_s, int8_gop_s, threads } = peak(isa, 1);
            assert!(
                threads == 1 && f32_gflop_s < 10_000.0 && int8_gop_s < 100_000.0,
                "{isa} {f32_gflop_s} {int8_gop_s}"
            );
            // A processor of this century, and work that the compiler has not taken away.
            assert!(f32_gflop_s > 0.02 && int8_gop_s > 0.02, "{isa} {f32_gflop_s} {int8_gop_s}");
        }
        assert_eq!(peak(Isa::detect(), 99).threads, 2);
    }

    #[test]
    fn every_product_is_counted() {
        for isa in Isa::ALL.into_iter().filter(|i| i.is_supported()) {
            // SAFETY: the set was just found.
            let sums = unsafe {
                [rate::dots::<2>(isa, &rate::Operands::ONES, 3), rate::dots::<3>(isa, &rate::Operands::ONES, 3)]
            };
            assert_eq!(sums.map(i64::from), [(3 * rate::OPS_PER_ROUND / 2) as i64; 2], "{isa}");
            if let Some(ops) = rate::panel_ops_per_round(isa) {
                // SAFETY: the set was just found, and has kernels on panels.
                assert_eq!(i64::from(unsafe { rate::panels(isa, 3) }), (3 * ops / 2) as i64, "{isa}");
            }
        }
    }
}
