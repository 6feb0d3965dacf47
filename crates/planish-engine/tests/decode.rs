//! Logits of every golden model against f64, in every class and cache type, by prefill and step by step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use planish_device::cpu::{Cpu, CpuOptions};
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options};
use planish_engine::gguf::Gguf;
use planish_engine::plan::Defaults;
use planish_engine::verify::{self, ExpectedFile};
use planish_engine::weights::Weights;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

fn expected(path: &Path) -> ExpectedFile {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

const MODES: [(&str, Activations, KvType); 4] = [
    ("f32", Activations::F32, KvType::F32),
    ("f32_kv16", Activations::F32, KvType::F16),
    ("int8", Activations::Int8, KvType::F32),
    ("int8_kv16", Activations::Int8, KvType::F16),
];

/// Every prompt in every mode through both paths; returns the failures.
fn judge(model: &Path, expected: &ExpectedFile, isa: Isa, chunk: usize) -> Vec<String> {
    let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU");
    let machine = Machine { backend: &cpu, isa };
    let gguf = Arc::new(Gguf::open(model).expect("a model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, &cpu, 2).expect("weights");
    let mut failures = Vec::new();
    for (mode, activations, kv) in MODES {
        let longest = expected.prompts.iter().map(|p| p.ids.len() + p.greedy_ids.len()).max().unwrap_or(1);
        let options = Options { context: longest, chunk, activations, kv, all_logits: true };
        let mut decoder = Decoder::new(machine, &hyper, &weights, options, &Defaults).expect("a decoder");
        for prompt in &expected.prompts {
            for path in [verify::Path::Prefill, verify::Path::Steps] {
                let dump = verify::run(&mut decoder, prompt, path).expect("a run");
                let v = verify::judge(prompt, &dump, mode, path).expect("a verdict");
                if !v.reasons.is_empty() {
                    failures.push(format!(
                        "{} {mode} {} {}: {}",
                        expected.model,
                        v.prompt,
                        v.path,
                        v.reasons.join("; ")
                    ));
                }
            }
        }
    }
    failures
}

#[test]
fn tiny_models_match_f64_in_every_mode() {
    let mut models: Vec<PathBuf> = std::fs::read_dir(goldens().join("tiny"))
        .expect("golden models")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    models.sort();
    assert!(models.len() >= 27, "only {} golden models", models.len());
    let mut failures = Vec::new();
    for (i, model) in models.iter().enumerate() {
        let name = model.file_stem().and_then(|s| s.to_str()).expect("a name");
        let expected = expected(&goldens().join("tiny_expected").join(format!("{name}.json")));
        // Chunks that divide no prompt, and one that holds any.
        failures.extend(judge(model, &expected, Isa::detect(), [7, 32, 128][i % 3]));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
