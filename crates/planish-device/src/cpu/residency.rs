//! How much memory has to be read in turn so that a cache brings nothing: measured, since the system's word may be wrong.
//!
//! A virtual machine may be told any cache, one level may be taken for another, and a cache behind the last one that is
//! listed is seen by no instruction. Timings over buffers that such a cache holds favour what is slow from memory.

use serde::{Deserialize, Serialize};

use super::Cpu;
use super::bandwidth::{Stream, TASK_BYTES};
use crate::backend::Backend;
use crate::error::Error;
use crate::system::available_bytes;

/// How much faster than memory a buffer may be read again and still count as cold: caches that replace what they hold at
/// random keep some of a buffer of twice their size.
pub const WARM: f64 = 1.25;

/// Most bytes that are read for it, and the part of the memory available that they may take.
const BYTES_MOST: u64 = 512 << 20;
const MEMORY_PART: u64 = 8;

/// Passes over each of the two buffers, of which the median counts.
const PASSES: usize = 3;

/// What rotated buffers have to exceed so that a timing starts cold, and how that was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cold {
    /// Bytes that are read in turn.
    pub bytes: u64,
    /// The last-level cache as the system tells it; 0 where it does not.
    pub told_bytes: u64,
    /// How much faster so many bytes are read again than memory is.
    pub speedup: f64,
    /// Bytes that stand for memory here: nothing larger was looked at.
    pub looked_at_bytes: u64,
}

impl Cold {
    /// Whether no buffer that could be looked at was read as slowly as memory: timings may be partly warm.
    pub fn is_warm(&self) -> bool {
        self.speedup > WARM
    }

    /// What a user should know of it; nothing where the system told the truth.
    pub fn told(&self) -> Option<String> {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let (bytes, most) = (mib(self.bytes), mib(self.looked_at_bytes));
        let told = match self.told_bytes {
            0 => "the system does not tell the size of the last-level cache".to_owned(),
            told => format!("the system tells of a last-level cache of {}", mib(told)),
        };
        if self.is_warm() {
            let faster = self.speedup;
            return Some(format!(
                "{told}, yet {bytes} are read again {faster:.1} times as fast as {most}: timings may be partly from a cache"
            ));
        }
        let doubted = self.told_bytes == 0 || self.bytes > 2 * self.told_bytes.max(1 << 20);
        doubted.then(|| format!("{told}; by measurement buffers are rotated over {bytes}"))
    }
}

/// Twice the cache that is assumed, doubled up to half of `most` until it is not read faster than memory.
///
/// `speedup` says how much faster than `most` bytes so many are read again.
pub fn cold<E>(
    (told_bytes, assumed_bytes, most): (u64, u64, u64),
    speedup: &mut dyn FnMut(u64) -> Result<f64, E>,
) -> Result<Cold, E> {
    let mut bytes = (2 * assumed_bytes).max(1);
    loop {
        // There is nothing to compare it with, and the system's word is the safe one.
        if bytes > most / 2 {
            return Ok(Cold { bytes, told_bytes, speedup: 1.0, looked_at_bytes: most });
        }
        let faster = speedup(bytes)?;
        if faster <= WARM || 2 * bytes > most / 2 {
            return Ok(Cold { bytes, told_bytes, speedup: faster, looked_at_bytes: most });
        }
        bytes *= 2;
    }
}

/// The same for this machine, with all threads of its pool; takes less than a second.
pub fn measure(cpu: &Cpu) -> Result<Cold, Error> {
    let memory = available_bytes().map_or(BYTES_MOST, |bytes| bytes / MEMORY_PART);
    let (told, assumed) = (cpu.topology().llc_bytes, cpu.limits().llc_bytes);
    let most = BYTES_MOST.min(memory).max(2 * TASK_BYTES as u64);
    let all = Stream::new(cpu, most as usize)?;
    cold((told, assumed, all.bytes()), &mut |bytes| {
        let part = all.part(cpu, bytes as usize)?;
        let (mut of_all, mut of_part) = (Vec::new(), Vec::new());
        for _ in 0..PASSES {
            of_all.push(all.ns_a_byte(cpu)?);
            // The first pass brings in what a cache can hold, the second is as one of many in turn.
            part.ns_a_byte(cpu)?;
            of_part.push(part.ns_a_byte(cpu)?);
        }
        let [all, part] = [of_all, of_part].map(|mut ns| {
            ns.sort_by(f64::total_cmp);
            ns[PASSES / 2]
        });
        Ok(all / part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine whose cache of `real` bytes gives `fast` times what memory gives, and keeps a random part of more.
    #[track_caller]
    fn check(told: u64, real: u64, fast: f64) -> Cold {
        let speedup = |bytes: u64| {
            let kept = (real as f64 / bytes as f64).min(1.0).powi(2);
            1.0 / (1.0 - kept + kept / fast)
        };
        let most = 512 * MIB;
        let assumed = if told == 0 { 8 * MIB } else { told };
        let mut ask = |bytes: u64| Ok::<f64, ()>(speedup(bytes) / speedup(most));
        let found = cold((told, assumed, most), &mut ask).expect("no errors here");
        let cold_enough = speedup(found.bytes) <= 1.5;
        assert!(cold_enough || found.told().is_some_and(|t| t.contains("may be partly from a cache")), "{found:?}");
        found
    }

    #[test]
    fn a_cache_that_is_told_rightly_is_believed_and_nothing_is_said() {
        for told in [4 * MIB, 16 * MIB, 64 * MIB] {
            let found = check(told, told, 4.0);
            assert!(found.bytes <= 4 * told && !found.is_warm(), "{found:?}");
        }
        assert_eq!(check(32 * MIB, 32 * MIB, 1.3).told(), None);
    }

    /// A level of 4 MiB for one of 96 behind it, as where the cache of one die is taken for that of all.
    #[test]
    fn a_cache_that_is_larger_than_told_is_found_and_said() {
        for (told, real) in [(4, 96), (16, 96), (8, 64), (1, 48)] {
            let found = check(told * MIB, real * MIB, 4.0);
            assert!(found.bytes >= real * MIB, "{found:?}");
            let said = found.told().expect("it is said");
            assert!(said.contains(&format!("of {told} MiB")), "{said}");
        }
    }

    #[test]
    fn a_cache_that_is_smaller_than_told_costs_memory_alone() {
        let found = check(64 * MIB, 8 * MIB, 4.0);
        assert_eq!((found.bytes, found.told()), (128 * MIB, None));
    }

    #[test]
    fn a_cache_that_nothing_is_told_of_is_measured() {
        for real in [2, 8, 60] {
            let found = check(0, real * MIB, 3.0);
            let said = found.told().expect("it is said");
            assert!(said.contains("does not tell") && !found.is_warm() && found.bytes >= real * MIB, "{said}");
        }
    }

    /// More cache than could be looked past: what is cold cannot be known, and that is said.
    #[test]
    fn a_cache_beyond_what_can_be_looked_at_is_said() {
        let found = check(16 * MIB, 400 * MIB, 6.0);
        assert!(found.is_warm() && found.bytes >= 128 * MIB, "{found:?}");
        let small = cold((480 * MIB, 480 * MIB, 512 * MIB), &mut |_| Err("nothing to compare")).expect("not asked");
        assert_eq!((small.bytes, small.told()), (960 * MIB, None), "what is told is never gone under");
    }

    #[test]
    fn this_machine_is_measured() {
        let cpu = Cpu::new(crate::cpu::CpuOptions { threads: Some(1) }).expect("a CPU");
        let found = measure(&cpu).expect("memory is read");
        assert!(found.bytes >= TASK_BYTES as u64 && found.speedup > 0.05, "{found:?}");
        assert!(found.bytes >= 2 * found.told_bytes, "{found:?}");
    }
}
