//! `planish info`: what a machine is, what it does at best, and where planish keeps its files.

use std::time::Duration;

use clap::Args;
use planish_device::cpu::bandwidth::Bandwidth;
use planish_device::cpu::topology::Topology;
use planish_device::{Backend, Cpu, Identity, Limits, system};
use planish_engine::probes::{self, Ceilings, Effort};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::peak::Peak;
use planish_kernels::op::Machine;
use planish_tune::counted;
use serde::Serialize;

use super::{Threads, probe};
use crate::device::{self, Device};
use crate::home::Home;
use crate::ui::Ui;
use crate::{Outcome, interrupt, report};

/// Show a machine: what it is, its caches, measured bandwidth and rates, tier
#[derive(Args)]
pub struct InfoArgs {
    /// The machine
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    #[command(flatten)]
    threads: Threads,
    /// Seconds to spend on measuring a processor
    #[arg(long, value_name = "SECONDS", default_value = "2s", value_parser = super::seconds)]
    budget: f64,
}

/// What was measured, and on what.
#[derive(Serialize)]
struct Info<'a> {
    topology: &'a Topology,
    pool_threads: u32,
    read_gb_s: Bandwidth,
    read_gb_s_1_thread: Bandwidth,
    copy_gb_s: Bandwidth,
    isa: &'static str,
    peak: Peak,
    peak_1_thread: Peak,
    launch_ns: f64,
    submission_ns: f64,
    tier: &'static str,
    governor: system::Governor,
    load_average: Option<[f64; 3]>,
    home: Option<String>,
    devices: Vec<Found>,
}

/// A device that `--device` takes, or why there is none.
#[derive(Serialize)]
struct Found {
    device: String,
    label: Option<String>,
    read_gb_s: Option<f64>,
    missing: Option<String>,
}

/// The host executor and the cards; where there is no first card, why.
fn devices() -> Vec<Found> {
    let found = |device: Device| {
        let name = device.to_string();
        match device::find(device) {
            Ok(b) => Found {
                device: name,
                label: Some(b.identity().label.clone()),
                read_gb_s: b.limits().read_gb_s,
                missing: None,
            },
            Err(e) => Found { device: name, label: None, read_gb_s: None, missing: Some(format!("{e:#}")) },
        }
    };
    let mut all = vec![found(Device::Host)];
    for ordinal in 0.. {
        let card = found(Device::Cuda(ordinal));
        let there = card.missing.is_none();
        if there || ordinal == 0 {
            all.push(card);
        }
        if !there {
            break;
        }
    }
    all
}

/// Tiers by read bandwidth: the exclusive upper bound in GB/s, and the name.
const TIERS: &[(f64, &str)] = &[(150.0, "base"), (350.0, "pro"), (700.0, "max"), (f64::INFINITY, "ultra")];

/// The tier of a machine that reads memory at `gb_s`.
fn tier(gb_s: f64) -> &'static str {
    TIERS.iter().find(|(limit, _)| gb_s < *limit).map_or("ultra", |(_, name)| name)
}

/// Measures within the budget and prints the report.
pub fn run(args: &InfoArgs, ui: Ui) -> anyhow::Result<Outcome> {
    match args.device {
        Device::Cpu => on_cpu(args, ui),
        gpu => on_gpu(&*device::open(gpu)?, ui),
    }
}

/// What a GPU is and does.
#[derive(Serialize)]
struct GpuInfo<'a> {
    identity: &'a Identity,
    limits: &'a Limits,
    library: Library,
    ceilings: Ceilings,
    tier: &'static str,
    home: Option<String>,
}

/// The vendor's library that products of matrices may come from, or why there is none.
#[derive(Serialize)]
struct Library {
    version: Option<String>,
    missing: Option<String>,
}

impl Library {
    fn of(backend: &dyn Backend) -> Library {
        match backend.library() {
            Ok(version) => Library { version: Some(version), missing: None },
            Err(e) => {
                let hint = e.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                Library { version: None, missing: Some(format!("{e}{hint}")) }
            }
        }
    }
}

fn on_gpu(backend: &dyn Backend, ui: Ui) -> anyhow::Result<Outcome> {
    let machine = Machine { backend, isa: Isa::detect() };
    let spinner = ui.spinner("measuring launches, barriers, memory and the matrix unit");
    let ceilings = probes::all(&machine, &Effort::on(backend.limits()))?;
    spinner.finish_and_clear();
    let info = GpuInfo {
        identity: backend.identity(),
        limits: backend.limits(),
        library: Library::of(backend),
        tier: tier(ceilings.read.median_gb_s),
        ceilings,
        home: Home::from_env().ok().map(|h| h.to_string()),
    };
    if ui.json {
        report::print_json(&info)?;
    } else {
        report::print(&gpu_text(&info))?;
    }
    Ok(Outcome::Done)
}

fn gpu_text(info: &GpuInfo<'_>) -> String {
    let GpuInfo { identity, limits, ceilings, .. } = info;
    let facts = |map: &std::collections::BTreeMap<String, String>| {
        map.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let shared = [limits.shared_bytes, limits.dynamic_shared_bytes].map(|n| report::binary(n.into()));
    let Library { version, missing } = &info.library;
    let mut rows = vec![
        ("device", identity.label.clone()),
        ("silicon", facts(&identity.silicon)),
        ("toolchain", facts(&identity.toolchain)),
        ("library", version.clone().unwrap_or_else(|| format!("none: {}", missing.as_deref().unwrap_or_default()))),
        ("processors", format!("{}, groups of up to {} threads", limits.processors, limits.max_threads)),
        ("shared", format!("{} in fixed arrays, {} in all", shared[0], shared[1])),
        ("caches", format!("L1 {}, L2 {}", report::binary(limits.l1_bytes), report::binary(limits.l2_bytes))),
        ("read", probe::bandwidth_text(&ceilings.read)),
        ("copy", probe::bandwidth_text(&ceilings.copy)),
    ];
    rows.extend(ceilings.matrix.iter().map(|m| ("matrix", probe::matrix_text(m))));
    rows.push(("tier", format!("{}, by read bandwidth", info.tier)));
    rows.extend(info.home.iter().map(|home| ("files", home.clone())));
    format!("{}\n{}\n{}", report::pairs(&rows), probe::launches(&ceilings.launch), probe::barriers(&ceilings.barrier))
}

fn on_cpu(args: &InfoArgs, ui: Ui) -> anyhow::Result<Outcome> {
    let cpu = args.threads.cpu()?;
    let part = Duration::from_secs_f64(args.budget / 7.0);
    let threads = cpu.threads();
    let machine = Machine { backend: &cpu, isa: Isa::detect() };
    let spinner = ui.spinner("measuring memory and launches");
    let read_gb_s = probes::cpu::read(&cpu, threads, part)?;
    interrupt::check()?;
    let read_gb_s_1_thread = probes::cpu::read(&cpu, 1, part)?;
    interrupt::check()?;
    let info = Info {
        topology: cpu.topology(),
        pool_threads: threads,
        tier: tier(read_gb_s.median),
        read_gb_s,
        read_gb_s_1_thread,
        copy_gb_s: probes::cpu::copy(&cpu, threads, part)?,
        isa: machine.isa.name(),
        peak: probes::cpu::arithmetic(&machine, threads, part)?,
        peak_1_thread: probes::cpu::arithmetic(&machine, 1, part)?,
        launch_ns: probes::cpu::barrier_of(&cpu, threads, part)?.round_ns,
        submission_ns: probes::cpu::launch(&cpu, part)?.submission_ns,
        governor: system::governor(),
        load_average: system::load_average(),
        home: Home::from_env().ok().map(|h| h.to_string()),
        devices: devices(),
    };
    spinner.finish_and_clear();
    if ui.json {
        report::print_json(&info)?;
    } else {
        report::print(&text(&info, &cpu))?;
    }
    Ok(Outcome::Done)
}

fn text(info: &Info, cpu: &Cpu) -> String {
    let t = cpu.topology();
    let host = if t.hypervisor == Some(true) { " (in a virtual machine)" } else { "" };
    let quota = t.quota.map_or(String::new(), |q| format!(", limited to {q:.1} processors of time"));
    let cache = |bytes| if bytes == 0 { "unknown".into() } else { report::binary(bytes) };
    let load = info.load_average.map_or("unknown".into(), |l| format!("{:.2} {:.2} {:.2}", l[0], l[1], l[2]));
    let mut rows = vec![
        ("processor", format!("{}{host}", t.label)),
        (
            "cores",
            format!(
                "{}, {}, pool of {}{quota}",
                counted(t.cores, "core"),
                counted(t.threads, "thread"),
                info.pool_threads
            ),
        ),
        ("instructions", t.isa.join(" ")),
        ("caches", format!("L1 {}, L2 {}, last {}", cache(t.l1_bytes), cache(t.l2_bytes), cache(t.llc_bytes))),
        ("read", gb_s(&info.read_gb_s)),
        ("", gb_s(&info.read_gb_s_1_thread)),
        ("copy", gb_s(&info.copy_gb_s)),
        ("arithmetic", rates(&info.peak)),
        ("", rates(&info.peak_1_thread)),
        ("launch", format!("{} each, {} a submission", report::time(info.launch_ns), report::time(info.submission_ns))),
        ("tier", format!("{}, by read bandwidth", info.tier)),
        ("load", load),
    ];
    if !t.classes.is_empty() {
        let kinds: Vec<String> = t.classes.iter().map(|(kind, n)| format!("{n} of {kind}")).collect();
        rows.insert(2, ("kinds", kinds.join(", ")));
    }
    rows.extend(info.governor.name.iter().map(|name| ("governor", name.clone())));
    rows.extend(info.home.iter().map(|home| ("files", home.clone())));
    rows.extend(info.devices.iter().map(|d| ("device", device_text(d))));
    report::pairs(&rows)
}

fn device_text(d: &Found) -> String {
    match (&d.missing, &d.label, d.read_gb_s) {
        (Some(why), ..) => format!("{}: not here: {why}", d.device),
        (None, label, Some(gb_s)) => {
            format!("{}: {}, reads {gb_s:.0} GB/s", d.device, label.clone().unwrap_or_default())
        }
        (None, label, None) => format!("{}: {}", d.device, label.clone().unwrap_or_default()),
    }
}

fn rates(p: &Peak) -> String {
    format!("{:.0} GFLOP/s in f32, {:.0} GOP/s in int8, {}", p.f32_gflop_s, p.int8_gop_s, counted(p.threads, "thread"))
}

fn gb_s(b: &Bandwidth) -> String {
    format!("{:.1} GB/s median, {:.1} best of {} passes, {}", b.median, b.best, b.samples, counted(b.threads, "thread"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_begin_at_their_lower_bound() {
        assert_eq!(
            [0.0, 149.9, 150.0, 350.0, 700.0, 4000.0].map(tier),
            ["base", "base", "pro", "max", "ultra", "ultra"]
        );
    }
}
