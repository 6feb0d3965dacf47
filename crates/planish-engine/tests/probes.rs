//! The probes of a GPU run on the host executor and check what they are credited with.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use std::path::PathBuf;

use planish_device::host::{Host, HostOptions, Mode};
use planish_device::{Backend, Cpu, CpuOptions};
use planish_engine::probes::{self, Effort};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;

#[test]
fn every_probe_runs_on_the_host_executor() {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("probes");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    let host = match Host::new(HostOptions { cache, mode: Mode::Checked }) {
        Ok(host) => host,
        Err(e) => return println!("tier: host executor, probes: skipped: {e}"),
    };
    let machine = Machine { backend: &host, isa: Isa::Portable };
    let found = probes::all(&machine, &Effort::on(host.limits())).expect("every probe holds");
    assert_eq!(found.launch.iter().map(|l| l.groups).collect::<Vec<_>>(), [1, 4, 1024]);
    assert!(found.launch.iter().all(|l| l.stream_ns > 0.0 && l.graph_ns > 0.0 && l.stream_submit_ns > 0.0));
    assert!(found.barrier.len() >= 6 && found.barrier.iter().all(|b| b.round_ns > 0.0), "{:?}", found.barrier);
    assert!([&found.read, &found.copy].iter().all(|r| r.best_gb_s >= r.median_gb_s && r.median_gb_s > 0.0));
    assert_eq!(found.matrix.iter().map(|m| m.input).collect::<Vec<_>>(), ["f16", "bf16"]);
    assert!(found.matrix.iter().all(|m| m.median_tflop_s > 0.0));
}

#[test]
fn a_processor_runs_no_kernel_text_and_says_so() {
    let cpu = Cpu::new(CpuOptions { threads: Some(1) }).expect("a CPU");
    let machine = Machine { backend: &cpu, isa: Isa::Portable };
    let error = probes::all(&machine, &Effort::on(cpu.limits())).expect_err("no kernel text on a processor");
    assert!(error.to_string().contains("native programs only"), "{error}");
}
