//! `verify --corpus` as a user meets it: without a model file, with a wrong one, and on the kernels of GPUs.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::Output;

use support::{command, host_executor, model, report, text};
use tempfile::TempDir;

fn verify(args: &[&str]) -> Output {
    let home = TempDir::new().unwrap();
    command(home.path(), &[&["verify", "--corpus", "--threads", "2"], args].concat()).output().unwrap()
}

#[test]
fn without_a_model_file_the_small_models_run_and_the_others_are_skipped_aloud() {
    let output = verify(&["--quick", "--only", "gemma3-f16", "--only", "smollm2-q5", "--json"]);
    let found = report(&output);
    assert_eq!((found["passed"].as_u64(), found["skipped"].as_u64()), (Some(1), Some(2)), "{found}");
    let ran = found["cases"].as_array().unwrap().iter().find(|c| c["case"] == "gemma3-f16").unwrap();
    assert!(ran["ran"]["ways"].as_u64().unwrap() >= 3, "{ran}");
    // Not asked to be quick, a corpus that is not whole is no success.
    let output = verify(&["--only", "smollm2-q5_0"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("planish pull"), "{}", text(&output.stderr));
}

#[test]
fn what_is_no_corpus_is_refused() {
    let tiny = model("llama-q4_1");
    for (args, hint) in [
        (&["--only", "nothing"][..], "cases are smollm2-q4_1"),
        (&[&tiny, "--only", "smollm2-q4_0"], "planish pull"),
        (&["--pin", "matvec.ROWS=8", "--only", "qwen2-f16"], "leave --pin out"),
    ] {
        let output = verify(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains("hint: ") && stderr.contains(hint), "{args:?}: {stderr}");
    }
}

/// The step of GPUs on the host executor, which needs a C++ compiler: the four paths, then out of time at the latest.
#[test]
fn the_host_executor_runs_the_corpus_too() {
    if !host_executor() {
        return;
    }
    let output = verify(&["--quick", "--only", "qwen3-bf16", "--device", "host", "--within", "20s", "--json"]);
    let found = report(&output);
    let ran = &found["cases"][0]["ran"];
    assert!(ran["judged"].as_u64().unwrap() >= 1 && ran["failures"].as_array().unwrap().is_empty(), "{found}");
}
