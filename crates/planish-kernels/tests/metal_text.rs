//! The Metal text of every op type-checks, address spaces included, with clang and a stand-in for Metal's library.
//!
//! No compiler for Metal exists for Linux: what clang accepts here Apple's may still refuse, and only a Mac can tell.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use planish_device::dialect;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::record;
use planish_kernels::gpu::{self, GpuOp, tier};
use planish_kernels::op::Machine;
use support::tell;

/// Compilers whose vector types and address spaces the stand-in is written for.
const CLANGS: [&str; 3] = ["clang++-19", "clang++-20", "clang++-21"];
/// What Metal's compiler refuses and clang's C++ would not.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-fsyntax-only",
    "-nostdinc",
    "-nostdinc++",
    "-Wall",
    "-Wextra",
    "-Wno-unused",
    "-Wno-unused-parameter",
    "-Wno-unknown-attributes",
    "-Wno-duplicate-decl-specifier",
    "-Wno-missing-braces",
    "-Wno-undefined-internal",
    "-Wno-undefined-inline",
    "-Werror=vla",
    "-Werror=implicit-int-float-conversion",
    "-fno-exceptions",
    "-fno-rtti",
];

/// The first compiler that runs.
fn clang() -> Option<&'static str> {
    CLANGS.into_iter().find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()))
}

/// The compiler's complaints about Metal source, as told under `name`; none when it accepts.
fn complaints(clang: &str, name: &str, source: &str, defines: &[String]) -> Option<String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("metal");
    fs::create_dir_all(&folder).expect("the build folder can be written");
    let path = folder.join(format!("{name}.{}.metal.cpp", std::process::id()));
    fs::write(&path, source).expect("the build folder can be written");
    let stand_in = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metal");
    let mut command = Command::new(clang);
    command.args(FLAGS).args(["-isystem", stand_in, "-x", "c++"]).args(defines).arg(&path);
    let output = command.output().expect("the compiler ran before");
    let _ = fs::remove_file(&path);
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().filter(|l| l.contains("error:") || l.contains("warning:")).take(6).collect();
    (!output.status.success()).then(|| lines.join("\n    "))
}

/// The distinct Metal sources of an op over its shapes and the corners of its space, with an entry point of each.
fn sources(op: &'static GpuOp) -> BTreeSet<(String, String)> {
    let card = record::card("none");
    let machine = Machine { backend: &card, isa: Isa::Portable };
    let mut sources = BTreeMap::new();
    for shape in op.shapes() {
        for config in tier::corners(&op.text, &(op.op.space)(&shape, &machine), tier::Depth::Corners) {
            let launches = record::launches(op, &shape, &config, &card);
            for launch in launches.unwrap_or_else(|e| panic!("{} at {shape}, {config}: {e}", op.op.name)) {
                let grid = launch.text.contains("KERNEL_GRID(");
                let asked = if grid { "#define METAL_GRID_BARRIER\n" } else { "" };
                let source = format!("{asked}{}", dialect::metal(&launch.text, &launch.constants));
                sources.entry(source).or_insert(launch.entry);
            }
        }
    }
    sources.into_iter().map(|(source, entry)| (entry, source)).collect()
}

#[test]
fn every_op_type_checks_as_metal() {
    let Some(clang) = clang() else {
        return tell(&format!("tier: Metal text: skipped: none of {} runs", CLANGS.join(", ")));
    };
    let wanted = std::env::var("PLANISH_OP").unwrap_or_default();
    let ops: Vec<_> = gpu::OPS.iter().filter(|o| wanted.is_empty() || o.op.name == wanted).collect();
    assert!(!ops.is_empty(), "no op is called {wanted}");
    let jobs: Vec<(&str, String, String)> =
        ops.iter().flat_map(|op| sources(op).into_iter().map(|(e, s)| (op.op.name, e, s))).collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some((op, entry, source)) = jobs.get(i) else { return };
            if let Some(said) = complaints(clang, &format!("{entry}-{i}"), source, &[]) {
                failures.lock().expect("no thread panicked").insert(format!("{op} {entry}: {said}"));
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
            s.spawn(work);
        }
    });
    let failures = failures.into_inner().expect("no thread panicked");
    let listed: Vec<String> = failures.iter().cloned().collect();
    assert!(listed.is_empty(), "{} refused:\n{}", listed.len(), listed.join("\n"));
    tell(&format!("tier: Metal text: ran: {} ops, {} texts type-checked by {clang}", ops.len(), jobs.len()));
}

#[test]
fn faults_that_only_metal_has_are_refused() {
    let Some(clang) = clang() else { return };
    let text = include_str!("metal/faults.k");
    let source = dialect::metal(text, &BTreeMap::new());
    assert_eq!(complaints(clang, "faults", &source, &[]), None, "without a fault the kernel is right");
    let faults: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("#ifdef ")).collect();
    assert!(faults.len() >= 14, "{} faults", faults.len());
    for fault in faults {
        let said = complaints(clang, fault, &source, &[format!("-D{fault}")]);
        assert!(said.is_some(), "{fault} is not refused");
    }
}
