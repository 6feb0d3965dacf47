//! Every op of the dialect compiles for NVIDIA cards, old and new, with no spilled register in a default configuration.
//!
//! NVRTC needs no card: where its library is found, this runs; the table on standard output is what the assembler says.

#![allow(clippy::print_stdout)]

mod processes;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use planish_device::cuda::nvrtc::{Nvrtc, Resources};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::record::{self, Recorded};
use planish_kernels::gpu::{self, GpuOp, tier};
use planish_kernels::op::Machine;
use support::tell;

/// The oldest architecture that the dialect names, and one whose own instructions need the `a`; with the most programs of
/// an op that are compiled for it in default configurations, and off them.
const ARCHS: [(&str, usize, usize); 2] = [("sm_80", 6, 2), ("sm_90a", 12, 4)];

/// A program to compile and the entry points that are launched from it.
struct Job {
    op: &'static str,
    launch: Recorded,
    entries: BTreeSet<String>,
    default: bool,
}

/// The distinct programs of `op` for `arch` over its shapes: of default configurations, then of the corners of its space.
fn programs(op: &'static GpuOp, arch: &str) -> [Vec<Job>; 2] {
    let card = record::card(arch);
    let machine = Machine { backend: &card, isa: Isa::Portable };
    let mut jobs: Vec<Job> = Vec::new();
    let mut add = |launch: Recorded, default: bool| {
        let same = |j: &&mut Job| {
            let l = &j.launch;
            l.text == launch.text && l.constants == launch.constants && l.threads == launch.threads
        };
        if let Some(job) = jobs.iter_mut().find(same) {
            job.entries.insert(launch.entry.clone());
            job.default |= default;
        } else {
            let entries = BTreeSet::from([launch.entry.clone()]);
            jobs.push(Job { op: op.op.name, launch, entries, default });
        }
    };
    for shape in op.shapes() {
        let configs = tier::corners(&op.text, &(op.op.space)(&shape, &machine), tier::Depth::Corners);
        for (i, config) in configs.iter().enumerate() {
            let launches = record::launches(op, &shape, config, &card);
            let launches = launches.unwrap_or_else(|e| panic!("{} at {shape}, {config}: {e}", op.op.name));
            launches.into_iter().for_each(|l| add(l, i == 0));
        }
    }
    let (defaults, corners) = jobs.into_iter().partition(|j| j.default);
    [defaults, corners]
}

/// At most `most` of `all`, spread over them.
fn spread<T>(all: &[T], most: usize) -> impl Iterator<Item = &T> {
    all.iter().step_by(all.len().div_ceil(most).max(1))
}

/// What all compilations of an entry point came to.
#[derive(Default)]
struct Row {
    default: Resources,
    most: Resources,
    programs: usize,
}

fn worst(of: &mut Resources, with: &Resources) {
    of.registers = of.registers.max(with.registers);
    of.shared_bytes = of.shared_bytes.max(with.shared_bytes);
    of.spill_bytes = of.spill_bytes.max(with.spill_bytes);
    of.stack_bytes = of.stack_bytes.max(with.stack_bytes);
}

type Rows = BTreeMap<(&'static str, String, &'static str), Row>;

fn compile(nvrtc: &Nvrtc, job: &Job, arch: &'static str, rows: &mut Rows) -> Vec<String> {
    let at = format!("{} {} {:?} x{}", job.op, job.launch.entry, job.launch.constants, job.launch.threads);
    let cubin = match nvrtc.compile(arch, &job.launch.source()) {
        Ok(cubin) => cubin,
        Err(e) => return vec![format!("{at} for {arch}: {e}")],
    };
    let mut failures = Vec::new();
    for entry in &job.entries {
        let Some(kernel) = cubin.kernel(entry) else {
            failures.push(format!("{at}: there is no kernel {entry}"));
            continue;
        };
        let row = rows.entry((job.op, entry.clone(), arch)).or_default();
        row.programs += 1;
        worst(&mut row.most, kernel);
        if job.default {
            worst(&mut row.default, kernel);
            if kernel.spill_bytes > 0 {
                failures.push(format!("{at} for {arch}: {entry} spills {} bytes by default", kernel.spill_bytes));
            }
        }
    }
    failures
}

fn table(rows: &Rows) {
    println!(
        "{:28} {:32} {:7} {:>8} {:>13} {:>15} {:>12} {:>12}",
        "op", "entry", "arch", "programs", "registers", "shared bytes", "spills", "stack"
    );
    println!("{:78} {:>13} {:>15} {:>12} {:>12}", "", "default most", "default most", "default most", "default most");
    for ((op, entry, arch), row) in rows {
        let (d, m) = (&row.default, &row.most);
        let pair = |a: u32, b: u32| format!("{a} {b}");
        println!(
            "{op:28} {entry:32} {arch:7} {:8} {:>13} {:>15} {:>12} {:>12}",
            row.programs,
            pair(d.registers, m.registers),
            pair(d.shared_bytes, m.shared_bytes),
            pair(d.spill_bytes, m.spill_bytes),
            pair(d.stack_bytes, m.stack_bytes)
        );
    }
}

#[test]
fn every_op_compiles_for_every_architecture() {
    let nvrtc = match Nvrtc::find(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nvrtc")) {
        Ok(nvrtc) => nvrtc,
        Err(e) => return tell(&format!("tier: NVRTC compile: skipped: {e}")),
    };
    let wanted = std::env::var("PLANISH_OP").unwrap_or_default();
    let ops: Vec<_> = gpu::OPS.iter().filter(|o| wanted.is_empty() || o.op.name == wanted).collect();
    assert!(!ops.is_empty(), "no op is called {wanted}");
    let programs = ARCHS.map(|(arch, ..)| ops.iter().map(|op| programs(op, arch)).collect::<Vec<_>>());
    let mut jobs: Vec<(&'static str, &Job)> = Vec::new();
    for ((arch, defaults, corners), programs) in ARCHS.into_iter().zip(&programs) {
        for [d, c] in programs {
            jobs.extend(spread(d, defaults).chain(spread(c, corners)).map(|job| (arch, job)));
        }
    }
    let start = std::time::Instant::now();
    if let Some((share, of)) = processes::share() {
        // Only to fill the cache; what fails here fails again in the test itself.
        jobs.iter().skip(share).step_by(of).for_each(|(arch, job)| drop(nvrtc.compile(arch, &job.launch.source())));
        return;
    }
    processes::run("every_op_compiles_for_every_architecture");
    let mut rows = Rows::new();
    let failures: Vec<String> = jobs.iter().flat_map(|(arch, job)| compile(&nvrtc, job, arch, &mut rows)).collect();
    table(&rows);
    assert!(failures.is_empty(), "{} refused:\n{}", failures.len(), failures.join("\n"));
    let ((major, minor), seconds) = (nvrtc.version(), start.elapsed().as_secs_f64());
    let (ops, programs, archs) = (ops.len(), jobs.len(), ARCHS.map(|a| a.0).join(" and "));
    tell(&format!(
        "tier: NVRTC compile: ran: {ops} ops, {programs} programs for {archs} by NVRTC {major}.{minor} in {seconds:.0} s"
    ));
}
