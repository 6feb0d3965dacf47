//! Every op of the dialect passes its gate on the host executor, plainly and under the sanitizers.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use planish_device::host::Mode;
use planish_device::{Host, HostOptions};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::{self, tier};
use planish_kernels::op::Machine;

/// The host executor, or none where there is no C++ compiler.
fn host(mode: Mode) -> Option<Host> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    match Host::new(HostOptions { cache, mode }) {
        Ok(host) => Some(host),
        Err(e) => {
            tell(&format!("tier: host executor, {}: skipped: {e}", mode.name()));
            None
        }
    }
}

/// Past the test harness's capture, for the table of tiers.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Proves every op, some at a time.
fn prove_all(mode: Mode, depth: tier::Depth) {
    let Some(host) = host(mode) else { return };
    let wanted = std::env::var("PLANISH_OP").unwrap_or_default();
    let ops: Vec<_> = gpu::OPS.iter().filter(|o| wanted.is_empty() || o.op.name == wanted).collect();
    assert!(!ops.is_empty(), "no op is called {wanted}");
    let (next, failures, passed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let work = || {
        while let Some(op) = ops.get(next.fetch_add(1, Ordering::Relaxed)) {
            let proof = tier::prove(op, &Machine { backend: &host, isa: Isa::Portable }, depth);
            let (name, time) = (op.op.name, proof.time.as_secs_f64());
            println!(
                "{name:24} {:4} runs {:3} configs worst {:.2} {time:6.2} s",
                proof.passed, proof.configs, proof.worst
            );
            passed.fetch_add(proof.passed, Ordering::Relaxed);
            let refused = proof.refused.iter().map(|r| format!("{name} {r}"));
            failures.lock().expect("no thread panicked").extend(refused);
        }
    };
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
            s.spawn(work);
        }
    });
    let failures = failures.into_inner().expect("no thread panicked");
    assert!(failures.is_empty(), "{} refused:\n{}", failures.len(), failures.join("\n"));
    let passed = passed.into_inner();
    tell(&format!("tier: host executor, {}: ran: {} ops, {passed} runs", mode.name(), ops.len()));
}

#[test]
fn every_op_at_the_corners_of_its_space() {
    prove_all(Mode::Checked, tier::Depth::Corners);
}

#[test]
fn every_op_under_the_address_sanitizer() {
    prove_all(Mode::Address, tier::Depth::Few);
}

#[test]
fn every_op_under_the_thread_sanitizer() {
    prove_all(Mode::Thread, tier::Depth::Few);
}
