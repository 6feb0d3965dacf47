//! Every op of the dialect passes its gate on the host executor, plainly and under the sanitizers.

#![allow(clippy::print_stdout)]

mod admitted;
mod fused;
mod page;
mod seeds;
#[path = "../support/mod.rs"]
mod support;
mod walk;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use planish_device::Host;
use planish_device::host::Mode;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::{self, GpuOp, tier, tier::Proof};
use planish_kernels::op::Machine;
use support::tell;

/// The host executor, or none where there is no C++ compiler.
fn host(mode: Mode) -> Option<Host> {
    let skipped = |e| tell(&format!("tier: host executor, {}: skipped: {e}", mode.name()));
    support::host(mode).map_err(skipped).ok()
}

/// Does `work` on every op that is asked for, some at a time.
fn on_all<T: Send>(work: impl Fn(&'static GpuOp) -> T + Sync) -> Vec<T> {
    let wanted = std::env::var("PLANISH_OP").unwrap_or_default();
    let ops: Vec<_> = gpu::OPS.iter().filter(|o| wanted.is_empty() || o.op.name == wanted).collect();
    assert!(!ops.is_empty(), "no op is called {wanted}");
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let some = || {
        while let Some(op) = ops.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = work(op);
            done.lock().expect("no thread panicked").push(one);
        }
    };
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
            s.spawn(some);
        }
    });
    done.into_inner().expect("no thread panicked")
}

/// Proves every op; what was found, by op.
fn prove_all(host: &Host, mode: Mode, depth: tier::Depth) -> Vec<(&'static str, Proof)> {
    let proofs = on_all(|op| {
        let proof = tier::prove(op, &Machine { backend: host, isa: Isa::Portable }, depth);
        let (name, time) = (op.op.name, proof.time.as_secs_f64());
        println!("{name:24} {:4} runs {:3} configs worst {:.2} {time:6.2} s", proof.passed, proof.configs, proof.worst);
        (name, proof)
    });
    let all = |p: &Proof| [&p.refused[..], &p.other_bits].concat();
    let refused = proofs.iter().flat_map(|(name, p)| all(p).into_iter().map(move |r| format!("{name} {r}")));
    let refused: Vec<String> = refused.collect();
    assert!(refused.is_empty(), "{} refused:\n{}", refused.len(), refused.join("\n"));
    let passed: usize = proofs.iter().map(|(_, p)| p.passed).sum();
    tell(&format!("tier: host executor, {}: ran: {} ops, {passed} runs", mode.name(), proofs.len()));
    proofs
}

#[test]
fn every_op_at_the_corners_of_its_space_as_docs_say() {
    let Some(host) = host(Mode::Checked) else { return };
    let proofs = prove_all(&host, Mode::Checked, tier::Depth::Corners);
    if proofs.len() < gpu::OPS.len() {
        return;
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/ops.md");
    let made = page::page(&host, &proofs);
    if std::env::var("PLANISH_BLESS").is_ok() {
        std::fs::write(&path, &made).expect("the page can be written");
    }
    let Ok(kept) = std::fs::read_to_string(&path) else { return };
    assert_eq!(page::fixed(&kept), page::fixed(&made), "docs/ops.md is old; PLANISH_BLESS=1 makes it anew");
}

#[test]
fn every_default_at_several_seeds() {
    let Some(host) = host(Mode::Checked) else { return };
    let refused = on_all(|op| seeds::refusals(op, &host)).concat();
    assert!(refused.is_empty(), "{} refused:\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn every_op_under_the_address_sanitizer() {
    let Some(host) = host(Mode::Address) else { return };
    prove_all(&host, Mode::Address, tier::Depth::Few);
}

#[test]
fn every_op_under_the_thread_sanitizer() {
    let Some(host) = host(Mode::Thread) else { return };
    prove_all(&host, Mode::Thread, tier::Depth::Few);
}

#[test]
fn a_fused_layer_gives_the_bits_of_its_phases() {
    let Some(host) = host(Mode::Checked) else { return };
    fused::same_bits(&host, &gpu::decode::OP);
}

#[test]
fn defaults_are_admitted_where_the_gate_has_other_shapes() {
    let Some(host) = host(Mode::Checked) else { return };
    admitted::all(&host);
}
