//! Real models against f64 and against llama.cpp, where a directory of them is given; else the test says why it skips.

#![allow(clippy::print_stdout, reason = "every verdict is worth reading, and a skipped test says why")]

mod common;

use std::sync::Arc;

use planish_device::cpu::{Cpu, CpuOptions};
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options};
use planish_engine::gguf::Gguf;
use planish_engine::plan::Defaults;
use planish_engine::verify::{self, ExpectedFile, Path, Verdict};
use planish_engine::weights::Weights;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;

const MODES: [(&str, Activations, KvType); 3] = [
    ("f32", Activations::F32, KvType::F32),
    ("f32_kv16", Activations::F32, KvType::F16),
    ("int8_kv16", Activations::Int8, KvType::F16),
];

/// Prompts up to this length are also fed one token at a time.
const STEPPED: usize = 32;

/// Every prompt of `golden` in every mode, on the first of `files` that is there.
#[track_caller]
fn check(golden: &str, files: &[&str]) {
    let Some(path) = files.iter().find_map(|f| common::model_file(f)) else { return };
    let text = std::fs::read_to_string(common::golden_dir().join("real").join(golden)).expect("a golden file");
    let expected: ExpectedFile = serde_json::from_str(&text).expect("an expected file");
    let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU");
    let machine = Machine { backend: &cpu, isa: Isa::detect() };
    let gguf = Arc::new(Gguf::open(&path).expect("a model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, &cpu, 2).expect("weights");
    let context = expected.prompts.iter().map(|p| p.ids.len() + p.greedy_ids.len()).max().expect("a prompt");
    let mut failures = Vec::new();
    for (mode, activations, kv) in MODES {
        // No prompt is a multiple of the chunk.
        let options = Options { context, chunk: 96, activations, kv, all_logits: false };
        let mut decoder = Decoder::new(machine, &hyper, &weights, options, &Defaults).expect("a decoder");
        let verdicts = verdicts(&mut decoder, &expected, mode);
        for v in &verdicts {
            println!("{golden} {mode} {}", line(v));
            failures.extend(v.reasons.iter().map(|r| format!("{mode} {} {}: {r}", v.prompt, v.path)));
        }
        if mode == "int8_kv16" {
            let prefill: Vec<Verdict> = verdicts.into_iter().filter(|v| v.path == "prefill").collect();
            let (ratio, fine) = verify::not_worse_than_llama(&prefill).expect("the golden holds llama.cpp's deviation");
            println!("{golden} {mode}: {ratio:.3} x llama.cpp's deviation, geometric mean over prompts");
            if !fine {
                failures.push(format!("{mode}: {ratio:.3} x llama.cpp's deviation"));
            }
        }
    }
    assert!(failures.is_empty(), "{golden}: {} failures:\n{}", failures.len(), failures.join("\n"));
}

fn verdicts(decoder: &mut Decoder<'_>, expected: &ExpectedFile, mode: &str) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for prompt in &expected.prompts {
        for path in [Path::Prefill, Path::Steps] {
            if path == Path::Steps && prompt.ids.len() > STEPPED {
                continue;
            }
            let dump = verify::run(decoder, prompt, path).expect("a run");
            verdicts.push(verify::judge(prompt, &dump, mode, path).expect("a verdict"));
        }
    }
    verdicts
}

fn line(v: &Verdict) -> String {
    let llama = v.over_llama.map_or(String::new(), |r| format!(", {r:.2} x llama.cpp"));
    let verdict = if v.reasons.is_empty() { "ok".to_owned() } else { v.reasons.join("; ") };
    format!("{} {}: rms {:.2e} of {:.2e}{llama}: {verdict}", v.prompt, v.path, v.measures.rms, v.limits.rms)
}

#[test]
fn smollm2_q4_1_is_right() {
    check("smollm2-q4_1.json", &["smollm2-q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"]);
}

#[test]
fn smollm2_q4_0_is_right() {
    check("smollm2-q4_0.json", &["smollm2-q4_0.gguf"]);
}

#[test]
fn smollm2_q8_0_is_right() {
    check("smollm2-q8_0.json", &["smollm2-q8_0.gguf"]);
}

#[test]
fn gemma3_270m_is_right() {
    check("gemma-3-270m-q4_k_m.json", &["gemma-3-270m-q4_k_m.gguf"]);
}
