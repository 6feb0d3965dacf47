//! `planish worker`: the process in which candidates run, so that one that crashes or hangs hurts nobody else.

use clap::Args;
use planish_device::{Backend, Cpu, CpuOptions};
use planish_engine::tuning::serve_worker;
use planish_kernels::op::Machine;

use super::Threads;
use crate::Outcome;
use crate::device::{self, Device};
use crate::session::IsaArgs;

/// Run candidates for `tune`, told what to do on standard input
#[derive(Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    isa: IsaArgs,
}

/// Serves until standard input ends; standard output carries replies only.
pub fn run(args: &WorkerArgs) -> anyhow::Result<Outcome> {
    let isa = args.isa.checked()?;
    let open = |name: &str| -> anyhow::Result<Box<dyn Backend>> {
        match name.parse().map_err(anyhow::Error::msg)? {
            Device::Cpu => Ok(Box::new(Cpu::new(CpuOptions { threads: args.threads.threads })?)),
            gpu => device::open(gpu),
        }
    };
    serve_worker(&mut |name| {
        let backend: &'static dyn Backend = Box::leak(open(name).map_err(|e| format!("{e:#}"))?);
        Ok(Machine { backend, isa })
    })?;
    Ok(Outcome::Done)
}
