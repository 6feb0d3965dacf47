//! Every op of the dialect passes its gate on an NVIDIA card, where there is one; memory of the host is refused there.

#![allow(clippy::print_stdout)]

mod processes;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use planish_device::cuda::nvrtc::Nvrtc;
use planish_device::{Backend, Cpu, CpuOptions, Cuda, CudaOptions, Init, Launch, Params, Slice, Source};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::{self, GpuOp, record, tier};
use planish_kernels::op::Machine;
use support::tell;

/// Folder of compiled programs.
fn cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda")
}

/// The first card, or none where there is none.
fn card() -> Result<Cuda, planish_device::Error> {
    Cuda::new(CudaOptions { ordinal: 0, cache: cache() })
}

/// Compiles a share of the programs of `ops` into the cache: what the test will load, if the card is as large as one.
fn compile(ops: &[&'static GpuOp], arch: &str, share: usize, of: usize) {
    let Ok(nvrtc) = Nvrtc::find(cache()) else { return };
    let card = record::card(arch);
    let mut programs = BTreeSet::new();
    for op in ops {
        for shape in op.shapes() {
            let space = (op.op.space)(&shape, &Machine { backend: &card, isa: Isa::Portable });
            for config in tier::corners(&op.text, &space, tier::Depth::Corners) {
                for launch in record::launches(op, &shape, &config, &card).unwrap_or_default() {
                    programs.insert((launch.text, launch.constants, launch.threads));
                }
            }
        }
    }
    for (text, constants, threads) in programs.into_iter().skip(share).step_by(of) {
        let source = Source::Text { name: String::new(), text, constants, threads };
        // What fails here fails again in the test itself.
        drop(nvrtc.compile(arch, &source));
    }
}

#[test]
fn every_op_at_the_corners_of_its_space() {
    let cuda = match card() {
        Ok(cuda) => cuda,
        Err(e) => return tell(&format!("tier: CUDA device: skipped: {e}")),
    };
    let wanted = std::env::var("PLANISH_OP").unwrap_or_default();
    let ops: Vec<_> = gpu::OPS.iter().copied().filter(|o| wanted.is_empty() || o.op.name == wanted).collect();
    assert!(!ops.is_empty(), "no op is called {wanted}");
    if let Some((share, of)) = processes::share() {
        return compile(&ops, cuda.arch(), share, of);
    }
    processes::run("every_op_at_the_corners_of_its_space");
    let (limits, label) = (cuda.limits(), &cuda.identity().label);
    println!("{label}, {}, copies at {:.0} GB/s", cuda.arch(), limits.read_gb_s.unwrap_or_default());
    let (mut failures, mut passed) = (Vec::new(), 0);
    for op in &ops {
        let proof = tier::prove(op, &Machine { backend: &cuda, isa: Isa::Portable }, tier::Depth::Corners);
        let (name, time) = (op.op.name, proof.time.as_secs_f64());
        println!("{name:28} {:4} runs {:3} configs worst {:.2} {time:6.2} s", proof.passed, proof.configs, proof.worst);
        passed += proof.passed;
        failures.extend(proof.refused.iter().map(|r| format!("{name} {r}")));
    }
    assert!(failures.is_empty(), "{} refused:\n{}", failures.len(), failures.join("\n"));
    tell(&format!("tier: CUDA device: ran: {} ops, {passed} runs on {label}", ops.len()));
}

#[test]
fn a_card_refuses_memory_of_the_host_and_wrong_launches() {
    let Ok(cuda) = card() else { return };
    let cpu = Cpu::new(CpuOptions { threads: Some(1) }).expect("a processor is always there");
    let text = "struct P { uint n; };\n\
        KERNEL(twice, IN(float, x, 0), OUT(float, y, 1), PARAMS(P, p, 2)) { if (TID < p.n) y[TID] = 2.0f * x[TID]; }";
    let (name, constants) = ("twice".to_owned(), BTreeMap::new());
    let source = Source::Text { name, text: text.into(), constants, threads: 32 };
    let program = cuda.load(&source).expect("compiles");
    let memory = |b: &dyn Backend| b.alloc(64, Init::Fill(0)).expect("64 bytes").all();
    let launch = |args: Vec<Slice>, threads: u32| Launch {
        program: program.clone(),
        args,
        params: Params::words(&[16]),
        tasks: 1,
        threads,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    };
    let (x, y) = (memory(&cuda), memory(&cuda));
    let refused = |launch: Launch| cuda.record(&[launch]).err().expect("refused").to_string();
    assert!(refused(launch(vec![x.clone(), memory(&cpu)], 32)).contains("argument 1: its buffer was made by another"));
    assert!(refused(launch(vec![x.clone()], 32)).contains("1 arguments and a parameter block"));
    assert!(refused(launch(vec![x.clone(), y.clone()], 64)).contains("1 groups of 64 threads"));
    let sequence = cuda.record(&[launch(vec![x.clone(), y.clone()], 32)]).expect("a right launch");
    cuda.write(&x, &[1.5f32; 16].map(f32::to_le_bytes).concat()).expect("written");
    let token = cuda.submit(&sequence).expect("submitted");
    cuda.wait(token, std::time::Duration::from_secs(10)).expect("ends");
    let mut bytes = [0; 64];
    cuda.read(&y, &mut bytes).expect("read");
    assert_eq!(bytes.to_vec(), [3.0f32; 16].map(f32::to_le_bytes).concat());
    assert!(cuda.time(&[sequence], 10).expect("timed").ns > 0.0);
}
