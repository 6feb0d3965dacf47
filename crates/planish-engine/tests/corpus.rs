//! The corpus on its small models: all of it holds in every covering configuration, and a planted fault is named by layer.

mod common;

use std::sync::atomic::AtomicBool;

use planish_device::cpu::{Cpu, CpuOptions};
use planish_engine::corpus::layers::Scene;
use planish_engine::corpus::run::{self, Class, Effort, Ran};
use planish_engine::corpus::{CASES, Case, SOURCE_TYPE, Source, cover::Way, derive};
use planish_engine::gguf::Gguf;
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

fn run(case: &Case, cpu: &Cpu, model: &Model, classes: &[Class], every_way: bool) -> Ran {
    let machine = Machine { backend: cpu, isa: Isa::detect() };
    let cancel = AtomicBool::new(false);
    let effort = Effort { classes, every_way, stepped: 128, longest: usize::MAX, deadline: None, cancel: &cancel };
    run::on_cpu(case, machine, model, &effort).expect("a run")
}

#[test]
fn the_small_models_hold_in_every_covering_configuration() {
    let cpu = cpu();
    for case in CASES.iter().filter(|c| matches!(c.source, Source::Tiny(_))) {
        let model = open(case, &cpu, |_| {});
        let ran = run(case, &cpu, &model, &Class::ALL, true);
        assert!(ran.failures.is_empty(), "{}: {:#?}", case.name, ran.failures);
        assert!(ran.ways >= 3 && !ran.partial, "{}: {} configurations", case.name, ran.ways);
        // Two prompts, fed in two ways, in each configuration and arithmetic.
        assert!(ran.judged >= 2 * 2 * ran.ways, "{}: {} judged", case.name, ran.judged);
        hidden_states_stay_within_a_fourth(case, &cpu, &model);
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

#[track_caller]
fn names(case_name: &str, planted: &str, layer: usize) {
    let (case, cpu) = (case(case_name), cpu());
    // Every row becomes the one after it.
    let model = open(case, &cpu, |file| {
        let gguf = Gguf::from_bytes(file).expect("a model");
        let tensor = gguf.tensor(planted).expect("a tensor");
        file[tensor.bytes.clone()].rotate_left(tensor.row_bytes());
    });
    let ran = run(case, &cpu, &model, &Class::ALL, false);
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
