//! The corpus on its small models: all of it holds in every covering configuration, and a planted fault is named by layer.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

mod common;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use planish_device::Host;
use planish_device::cpu::{Cpu, CpuOptions};
use planish_device::host::{HostOptions, Mode};
use planish_engine::corpus::cover::{Seen, Way};
use planish_engine::corpus::layers::Scene;
use planish_engine::corpus::run::{self, Class, Effort, OnGpu, Ran};
use planish_engine::corpus::{CASES, Case, SOURCE_TYPE, Source, derive};
use planish_engine::gguf::Gguf;
use planish_engine::gpu;
use planish_engine::model::Model;
use planish_engine::verify::Path as Feed;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_kernels::quant::WeightType;
use sha2::{Digest, Sha256};

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|c| c.name == name).expect("a case")
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU")
}

/// Opens the model of a small case after `change` has had its way with the file.
fn open(case: &Case, cpu: &Cpu, change: impl FnOnce(&mut Vec<u8>)) -> Model {
    let Source::Tiny(bytes) = case.source else { panic!("{} is no small model", case.name) };
    let (mut bytes, folder) = (bytes.to_vec(), tempfile::tempdir().expect("a folder"));
    change(&mut bytes);
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("room");
    Model::open(&path, cpu, 2).expect("a model")
}

fn effort<'e>(classes: &'e [Class], every_way: bool, cancel: &'e AtomicBool) -> Effort<'e> {
    Effort { classes, every_way, stepped: 128, longest: usize::MAX, deadline: None, cancel, told: &|_| () }
}

fn run(case: &Case, cpu: &Cpu, model: &Model, every_way: bool, seen: &mut Seen) -> Ran {
    let machine = Machine { backend: cpu, isa: Isa::detect() };
    let cancel = AtomicBool::new(false);
    run::on_cpu(case, machine, model, &effort(&Class::ALL, every_way, &cancel), seen).expect("a run")
}

#[test]
fn the_small_models_hold_in_every_covering_configuration() {
    let cpu = cpu();
    for case in CASES.iter().filter(|c| matches!(c.source, Source::Tiny(_))) {
        let (model, mut seen) = (open(case, &cpu, |_| {}), Seen::default());
        let ran = run(case, &cpu, &model, true, &mut seen);
        assert!(ran.failures.is_empty(), "{}: {:#?}", case.name, ran.failures);
        assert_eq!((ran.programs, ran.partial), (seen.count(), false), "{}", case.name);
        // The defaults of three arithmetics, two prompts each in two ways, and covering configurations; no op of the
        // processor sums in another order under any of them.
        assert!(ran.ways >= 5 && ran.same == ran.ways - 3, "{}: {ran:?}", case.name);
        assert_eq!(ran.judged, 3 * 2 * 2, "{}", case.name);
        hidden_states_stay_within_a_fourth(case, &cpu, &model);
        // The same programs again: the defaults alone, whose prompts are fed in two ways.
        let again = run(case, &cpu, &model, true, &mut seen);
        assert_eq!((again.ways, again.judged, again.programs), (3, 3 * 2 * 2, 0), "{}", case.name);
    }
}

/// The bounds of layers are not met by chance: what is right stays well inside them.
fn hidden_states_stay_within_a_fourth(case: &Case, cpu: &Cpu, model: &Model) {
    let machine = Machine { backend: cpu, isa: Isa::detect() };
    let file = run::expected(case).expect("an expected file");
    for (class, prompt) in Class::ALL.iter().flat_map(|c| file.prompts.iter().map(move |p| (c, p))) {
        let scene = Scene { machine, model, prompt, feed: Feed::Prefill, chunk: 40 };
        let (errors, bound) = scene.margins(class, Way { number: 0, only: None }).expect("hidden states");
        let worst = errors.iter().copied().fold(0.0, f64::max);
        assert!(worst <= bound / 2.0, "{} {} {}: {worst:e} of {bound:e}", case.name, class.mode, prompt.name);
    }
}

/// Every row of a tensor becomes the one after it.
fn turn_rows(file: &mut [u8], planted: &str) {
    let gguf = Gguf::from_bytes(file).expect("a model");
    let tensor = gguf.tensor(planted).expect("a tensor");
    file[tensor.bytes.clone()].rotate_left(tensor.row_bytes());
}

#[track_caller]
fn names(case_name: &str, planted: &str, layer: usize) {
    let (case, cpu) = (case(case_name), cpu());
    let model = open(case, &cpu, |file| turn_rows(file, planted));
    let ran = run(case, &cpu, &model, false, &mut Seen::default());
    assert!(!ran.failures.is_empty(), "{planted} is not noticed");
    for failure in &ran.failures {
        let left = failure.left.as_ref().expect("the expected file has checkpoints");
        assert_eq!(left.layer, layer, "{planted}: {failure:?}");
    }
}

#[test]
fn a_fault_in_a_layers_weights_is_named_by_layer() {
    names("qwen3-bf16", "token_embd.weight", 0);
    names("qwen3-bf16", "blk.0.attn_v.weight", 1);
    names("llama3rope-q8_0", "blk.0.ffn_down.weight", 1);
    names("gemma3-q4_0", "blk.3.attn_output.weight", 4);
}

/// The host executor, or none after saying why there is none.
fn host() -> Option<Host> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    Host::new(HostOptions { cache, mode: Mode::Checked }).inspect_err(|e| println!("skipped: {e}")).ok()
}

/// What a kernel of GPUs gets wrong shows there alone: its copy of the weights has the fault, the processor's has not.
#[test]
fn a_fault_on_a_gpu_alone_is_named_by_cutting_the_model() {
    let Some(host) = host() else { return };
    let (case, cpu, cancel) = (case("gemma3-q4_0"), cpu(), AtomicBool::new(false));
    let model = open(case, &cpu, |_| {});
    let Source::Tiny(bytes) = case.source else { panic!("{} is no small model", case.name) };
    let layers = model.file.hyper.layers;
    let last = format!("blk.{}.ffn_down.weight", layers - 1);
    for (planted, layer, name) in [
        ("", 0, ""),
        ("token_embd.weight", 1, "or the embedding"),
        ("blk.0.attn_v.weight", 1, "layer 1"),
        ("blk.3.attn_output.weight", 4, "layer 4"),
        (&last, layers, "layer"),
    ] {
        let mut file = bytes.to_vec();
        if !planted.is_empty() {
            turn_rows(&mut file, planted);
        }
        let gguf = Gguf::from_bytes(&file).expect("a model");
        let weights = gpu::Weights::load(&gguf, &model.file.hyper, &host, 1).expect("weights");
        let [there, here] = [(&host as &dyn planish_device::Backend, Isa::Portable), (&cpu, Isa::detect())];
        let [machine, processor] = [there, here].map(|(backend, isa)| Machine { backend, isa });
        let on_gpu = OnGpu { machine, weights: &weights, cpu: processor, model: &model, chunk: 0 };
        // Time is up at once, so that one prompt is judged, on the first path.
        let one = Effort { longest: 5, deadline: Some(Instant::now()), ..effort(&Class::ALL[1..2], false, &cancel) };
        let ran = on_gpu.run(case, &one).expect("a run");
        assert_eq!((ran.judged, ran.failures.len()), (1, usize::from(layer > 0)), "{planted}: {ran:?}");
        for left in ran.failures.iter().map(|f| f.left.as_ref().expect("a layer")) {
            assert!(left.layer == layer && left.name.contains(name) && left.error > left.bound, "{planted}: {left:?}");
        }
    }
}

/// Derived files are the bytes that the script beside the goldens makes; checked where the default model is given.
#[test]
fn derived_models_have_the_expected_checksums() {
    let Some(path) =
        ["smollm2-q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"].iter().find_map(|f| common::model_file(f))
    else {
        return;
    };
    let source = Gguf::open(&path).expect("a model");
    for case in CASES {
        let Source::Derived(ty) = case.source else { continue };
        // The large ones say nothing that the small ones do not.
        if ty == SOURCE_TYPE || matches!(ty, WeightType::F32 | WeightType::F16) {
            continue;
        }
        let mut bytes = Vec::new();
        derive::derive(&source, ty, &mut bytes).expect("room");
        let sha256: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(sha256, run::expected(case).expect("an expected file").sha256, "{}", case.name);
    }
}
