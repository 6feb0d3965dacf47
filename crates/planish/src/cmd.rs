//! One file per command, each with the command's flags and a `run`; what several commands take stands here.

pub mod ab;
pub mod bench;
pub mod chat;
pub mod compile;
pub mod completions;
pub mod dev;
pub mod explain;
pub mod info;
pub mod input;
pub mod probe;
pub mod pull;
pub mod run;
pub mod sampling;
pub mod store;
pub mod sweep;
pub mod tune;
pub mod verify;
pub mod verify_kernels;
pub mod worker;

use clap::Args;
use planish_device::cpu::MAX_THREADS;
use planish_device::{Cpu, CpuOptions};

use crate::hint::WithHint;

/// How many threads compute.
#[derive(Args)]
pub struct Threads {
    /// Threads that compute; by default one for each physical core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_THREADS)))]
    pub threads: Option<u32>,
}

impl Threads {
    /// The processor with that many threads.
    pub fn cpu(&self) -> anyhow::Result<Cpu> {
        Cpu::new(CpuOptions { threads: self.threads }).or_hint("without --threads there is one for each physical core")
    }
}

/// Reads a positive number of seconds, `60` or `60s`.
pub fn seconds(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(s),
        _ => Err(format!("`{text}` is no number of seconds above 0 and up to 86400")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("60s"), Ok(60.0));
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["", "s", "0", "-1", "nan", "inf", "1e9", "1m"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
