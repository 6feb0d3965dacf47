//! `planish worker`: the process in which candidates run, so that one that crashes or hangs hurts nobody else.

use clap::Args;
use planish_device::Cpu;
use planish_engine::tuning::serve_worker;
use planish_kernels::op::Machine;

use super::Threads;
use crate::Outcome;
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
    let cpu: &'static Cpu = Box::leak(Box::new(args.threads.cpu()?));
    serve_worker(Machine { backend: cpu, isa: args.isa.checked()? })?;
    Ok(Outcome::Done)
}
