//! `planish tune --kernel`: kernels named one by one, on any device, without a model.

use std::time::Instant;

use anyhow::{Result, anyhow};
use planish_device::Backend;
use planish_engine::identity::Identities;
use planish_engine::probes::{self, Effort};
use planish_engine::tuning::{self, Ceilings, Setting, Work};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::peak::{self, Peak};
use planish_kernels::op::{Machine, Shape};
use planish_kernels::subject;
use planish_tune::{Policy, WallClock};

use super::bought::Bought;
use super::watch::Progress;
use super::{CEILING_TIME, PEAK_TIME, Request, Talk, quarantine, worker};
use crate::device::{self, Device};
use crate::hint::WithHint;
use crate::session::{self, SessionArgs};
use crate::{Outcome, interrupt};

/// How much faster a right kernel may be than the probe of the matrix unit: instructions of whole groups of warps reach
/// more than those of one, and less than this.
const MATRIX_HEADROOM: f64 = 2.0;
/// How much more the matrix unit does on bytes than on halves.
const BYTES_OVER_HALVES: f64 = 2.0;

/// An op at a shape, by name.
#[derive(Clone, Debug)]
pub struct Named {
    op: String,
    shape: Shape,
}

/// Reads `OP:NAME=VALUE,...`.
pub fn parse(text: &str) -> Result<Named, String> {
    let (op, shape) = text.split_once(':').ok_or_else(|| format!("`{text}` is not OP:NAME=VALUE,..."))?;
    Ok(Named { op: op.to_owned(), shape: shape.parse()? })
}

/// Tunes the kernels in order, each with the same share of the time.
pub fn run(kernels: &[Named], args: &SessionArgs, request: &Request) -> Result<Outcome> {
    let (start, device) = (Instant::now(), args.place().device());
    let (cpu, isa) = match device {
        Device::Cpu => args.hardware().map(|(cpu, isa)| (Some(cpu), isa))?,
        _ => (None, Isa::detect()),
    };
    let threads = cpu.as_ref().map(|cpu| cpu.threads().to_string());
    let (read, rates, backend): (_, _, Box<dyn Backend>) = match cpu {
        Some(cpu) => {
            let read = planish_device::cpu::bandwidth::read_gb_s(&cpu, cpu.threads(), CEILING_TIME)?.best;
            let rates = peak::measure(&Machine { backend: &cpu, isa }, cpu.threads(), PEAK_TIME)?;
            (read, rates, Box::new(cpu))
        }
        None => {
            let backend = device::open(device)?;
            let (read, rates) = gpu_ceilings(&Machine { backend: &*backend, isa })?;
            (read, rates, backend)
        }
    };
    let machine = Machine { backend: &*backend, isa };
    let ceilings = Ceilings { read_gb_s: read, peak: rates };
    let works = kernels.iter().map(|k| work(k, &machine, kernels.len())).collect::<Result<Vec<Work>>>()?;
    let identities = Identities::new(&machine, &Policy::default());
    let mut store = session::open_store(request.ui);
    let mut progress = Progress::new(request.ui, request.talk == Talk::Lines, works.len(), request.budget);
    progress.roof(&ceilings);
    let mut flags = vec!["--isa", isa.name()];
    flags.extend(threads.iter().flat_map(|n| ["--threads", n.as_str()]));
    let (worker, clock) = (worker(&flags)?, WallClock::start());
    let setting = Setting {
        machine,
        device: device.to_string(),
        identities: &identities,
        worker: &worker,
        quarantine: quarantine(),
        budget: request.budget.saturating_sub(start.elapsed()),
        clock: &clock,
        policy: Policy::default(),
        ceilings: Some(ceilings),
        rotate_bytes: if device == Device::Host { 0 } else { 2 * backend.limits().llc_bytes },
        force: request.force,
        cancel: interrupt::flag(),
    };
    let done = tuning::run(&works, &setting, &mut store, &mut progress)?;
    progress.finish();
    let mut bought = Bought::new(done, machine, &identities, &store).named(&backend.identity().label);
    bought.seconds = start.elapsed().as_secs_f64();
    if interrupt::requested() {
        request.ui.note(&bought.interrupted());
        interrupt::check()?;
    }
    bought.print(request.ui)?;
    Ok(Outcome::Done)
}

fn work(named: &Named, machine: &Machine<'_>, of: usize) -> Result<Work> {
    let device = &machine.backend.limits().backend;
    let op = subject::find(device, &named.op)
        .ok_or_else(|| anyhow!("no op of {device} is called {}", named.op))
        .hint("docs/ops.md lists the ops of GPUs, `planish tune --list` those of a model on a processor")?;
    (op.check)(&named.shape).map_err(|why| anyhow!("{}: {why}", op.name)).hint("docs/ops.md has shapes of every op")?;
    Ok(Work { op, shape: named.shape.clone(), share: 1.0 / of as f64, uses: 1, step: None })
}

/// Read bandwidth, and arithmetic that no right kernel exceeds.
fn gpu_ceilings(machine: &Machine<'_>) -> Result<(f64, Peak)> {
    let effort = Effort::on(machine.backend.limits());
    let rates = probes::matrix(machine, &effort)?;
    let best_gflop_s = rates.iter().map(|r| r.best_tflop_s * 1e3).fold(0.0, f64::max) * MATRIX_HEADROOM;
    let threads = machine.backend.limits().max_threads;
    let peak = Peak { f32_gflop_s: best_gflop_s, int8_gop_s: BYTES_OVER_HALVES * best_gflop_s, threads };
    // A card measures its memory when it is opened.
    let read = match machine.backend.limits().read_gb_s {
        Some(gb_s) => gb_s,
        None => probes::read(machine, &effort)?.best_gb_s,
    };
    Ok((read, peak))
}
