//! A machine opened for kernels alone: its backend, the ceilings measured on it, and the workers that run candidates.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use planish_device::cpu::residency::Cold;
use planish_device::{Backend, Cpu};
use planish_engine::identity::Identities;
use planish_engine::probes::{self, Effort};
use planish_engine::tuning::{CeilingProbe, Ceilings, Setting};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::peak::Peak;
use planish_kernels::op::Machine;
use planish_tune::{Clock, Policy};

use crate::device::{self, Device};
use crate::home::Home;
use crate::interrupt;
use crate::session::SessionArgs;

/// Time in which read bandwidth is measured.
const CEILING_TIME: Duration = Duration::from_millis(400);
/// Time in which arithmetic rates are measured.
const PEAK_TIME: Duration = Duration::from_millis(100);
/// How much faster a right kernel may be than the probe of the matrix unit: instructions of whole groups of warps reach
/// more than those of one, and less than this.
const MATRIX_HEADROOM: f64 = 2.0;
/// How much more the matrix unit does on bytes than on halves.
const BYTES_OVER_HALVES: f64 = 2.0;

/// A machine and what it can do.
pub struct Workbench {
    /// The device by its name.
    pub device: Device,
    /// Instruction set of the CPU kernels.
    pub isa: Isa,
    /// What it reached at best when it was opened.
    pub ceilings: Ceilings,
    opened: Opened,
}

enum Opened {
    /// With what rotated buffers have to exceed to be cold.
    Cpu(Box<Cpu>, Cold),
    Gpu(Box<dyn Backend>),
}

impl Workbench {
    /// Opens the device that `args` names and measures its ceilings.
    pub fn open(args: &SessionArgs) -> Result<Workbench> {
        let device = args.place().device();
        if device == Device::Cpu {
            let (cpu, isa) = args.hardware()?;
            let cold = probes::cpu::cold(&cpu)?;
            let ceilings = ceilings(&cpu, isa, &cold)?;
            return Ok(Workbench { device, isa, ceilings, opened: Opened::Cpu(Box::new(cpu), cold) });
        }
        let (backend, isa) = (device::open(device)?, Isa::detect());
        let ceilings = gpu_ceilings(&Machine { backend: &*backend, isa })?;
        Ok(Workbench { device, isa, ceilings, opened: Opened::Gpu(backend) })
    }

    /// The device.
    pub fn backend(&self) -> &dyn Backend {
        match &self.opened {
            Opened::Cpu(cpu, _) => &**cpu,
            Opened::Gpu(backend) => &**backend,
        }
    }

    /// What rotated buffers have to exceed to be cold, where it was measured.
    pub fn cold(&self) -> Option<Cold> {
        match &self.opened {
            Opened::Cpu(_, cold) => Some(*cold),
            Opened::Gpu(_) => None,
        }
    }

    /// The machine that kernels are launched on.
    pub fn machine(&self) -> Machine<'_> {
        Machine { backend: self.backend(), isa: self.isa }
    }

    /// Makes commands of workers for this machine.
    pub fn worker(&self) -> Result<impl Fn() -> Command + use<>> {
        let threads = match &self.opened {
            Opened::Cpu(cpu, _) => Some(cpu.threads().to_string()),
            Opened::Gpu(_) => None,
        };
        let mut flags = vec!["--isa", self.isa.name()];
        flags.extend(threads.iter().flat_map(|n| ["--threads", n.as_str()]));
        worker(&flags)
    }

    /// What kernels are tuned and timed with: cold, in workers, within `budget`.
    pub fn setting<'a>(
        &'a self,
        identities: &'a Identities,
        worker: &'a dyn Fn() -> Command,
        clock: &'a dyn Clock,
        budget: Duration,
    ) -> Setting<'a> {
        // A card's driver tells all of its cache, and the host executor proves and does not measure.
        let told = if self.device == Device::Host { 0 } else { 2 * self.backend().limits().llc_bytes };
        let probe = match &self.opened {
            Opened::Cpu(cpu, cold) => ceiling_probe(self.ceilings, cpu, self.isa, *cold),
            Opened::Gpu(_) => CeilingProbe::fixed(self.ceilings),
        };
        Setting {
            budget,
            ceilings: Some(probe),
            rotate_bytes: self.cold().map_or(told, |cold| cold.bytes),
            cold: self.cold(),
            ..setting(self.machine(), self.device, (identities, worker, clock))
        }
    }
}

/// What items are checked with on `machine`: against no ceiling, with nothing rotated, in no time; who tunes says more.
pub fn setting<'a>(
    machine: Machine<'a>,
    device: Device,
    (identities, worker, clock): (&'a Identities, &'a dyn Fn() -> Command, &'a dyn Clock),
) -> Setting<'a> {
    Setting {
        machine,
        device: device.to_string(),
        identities,
        worker,
        quarantine: quarantine(),
        budget: Duration::ZERO,
        clock,
        policy: Policy::default(),
        ceilings: None,
        rotate_bytes: 0,
        cold: None,
        force: false,
        cancel: interrupt::flag(),
    }
}

/// What a processor reaches at best with its threads; buffers that exceed `cold` come from memory.
pub fn ceilings(cpu: &Cpu, isa: Isa, cold: &Cold) -> planish_engine::Result<Ceilings> {
    let read_gb_s = probes::cpu::cold_read(cpu, cold, CEILING_TIME)?.best;
    let peak = probes::cpu::arithmetic(&Machine { backend: cpu, isa }, cpu.threads(), PEAK_TIME)?;
    Ok(Ceilings { read_gb_s, peak })
}

/// The same, to be measured again on doubt.
pub fn ceiling_probe(first: Ceilings, cpu: &Cpu, isa: Isa, cold: Cold) -> CeilingProbe<'_> {
    CeilingProbe::measured(first, move || ceilings(cpu, isa, &cold))
}

/// Read bandwidth, and arithmetic that no right kernel exceeds.
fn gpu_ceilings(machine: &Machine<'_>) -> Result<Ceilings> {
    let effort = Effort::on(machine.backend.limits());
    let rates = probes::matrix(machine, &effort)?;
    let best_gflop_s = rates.iter().map(|r| r.best_tflop_s * 1e3).fold(0.0, f64::max) * MATRIX_HEADROOM;
    let threads = machine.backend.limits().max_threads;
    let peak = Peak { f32_gflop_s: best_gflop_s, int8_gop_s: BYTES_OVER_HALVES * best_gflop_s, threads };
    // A card measures its memory when it is opened.
    let read_gb_s = match machine.backend.limits().read_gb_s {
        Some(gb_s) => gb_s,
        None => probes::read(machine, &effort)?.best_gb_s,
    };
    Ok(Ceilings { read_gb_s, peak })
}

/// Makes commands of workers with `flags`.
pub fn worker(flags: &[&str]) -> Result<impl Fn() -> Command + use<>> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
    Ok(move || {
        let mut command = Command::new(&program);
        command.arg("worker").args(&flags);
        command
    })
}

/// Where candidates that hurt are kept, if anything can be written there; the store says it when not.
pub fn quarantine() -> Option<PathBuf> {
    let folder = Home::from_env().ok()?.store().join("quarantine");
    planish_tune::store::create_private_dir(&folder).ok()?;
    tempfile::tempfile_in(&folder).ok()?;
    Some(folder)
}
