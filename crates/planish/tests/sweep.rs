//! `sweep` and `ab` as a user meets them, on tiny shapes and a tiny model.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::Output;

use serde_json::Value;
use support::{command, host_executor, json, model, text};
use tempfile::TempDir;

fn planish(args: &[&str]) -> Output {
    let home = TempDir::new().unwrap();
    command(home.path(), args).output().unwrap()
}

/// The report of a command that could run; a busy machine may drift too much for an answer, which is exit code 1.
#[track_caller]
fn report(args: &[&str]) -> Value {
    let output = planish(args);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{:?}: {}", output.status, text(&output.stderr));
    json(&output)
}

const TINY: &str = "type=q8_0,rows=40,cols=96";

#[test]
fn every_value_is_gated_and_timed_or_has_its_reason() {
    let args = ["sweep", "matvec", "--param", "ROWS", "--shapes", TINY, "--rounds", "8", "--budget", "600s"];
    let found = report(&[&args[..], &["--json", "--threads", "2"]].concat());
    let shape = &found["shapes"][0];
    let swept = shape["sweep"]["swept"].as_array().unwrap();
    assert_eq!(swept.len(), 7, "every value of ROWS: {swept:?}");
    for row in swept {
        let gated = row["error_over_bound"].as_f64();
        let refused = &row["rejection"];
        // What passed the gate can only be refused by the clock.
        let untimed = refused["too_fast"].is_number() || refused["timeout"].is_number();
        assert!(gated.map_or(refused.is_object(), |e| e <= 1.0 && (refused.is_null() || untimed)), "{row}");
        let timed = row["times"][0]["samples_ns"].as_array().is_some_and(|s| !s.is_empty());
        assert!(gated.is_some() || !timed, "timed and not gated: {row}");
    }
    assert_eq!(shape["shape"]["act"], "int8");
    if shape["sweep"]["partial"] == false {
        let rounds = shape["sweep"]["rounds"].as_u64().unwrap();
        assert!(rounds >= 8 && swept.iter().filter(|r| r["ratios"][0]["lo"].is_number()).count() >= 3, "{swept:?}");
        assert_eq!(found["verdict"]["best"].as_array().unwrap().len(), 1);
        assert!(!found["verdict"]["everywhere"].as_array().unwrap().is_empty(), "one shape has a best value");
    }
}

#[test]
fn rows_for_programs_have_as_many_columns_as_names() {
    // A value that is given twice is swept once.
    let args = ["sweep", "--param", "PREFETCH", "--values", "0,512,0,512", "--shapes", TINY, "--rounds", "6", "--tsv"];
    let output = planish(&[&args[..], &["--budget", "600s"]].concat());
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    let values: Vec<&str> = lines.iter().skip(1).filter_map(|l| l.split('\t').nth(2)).collect();
    let once = ["0", "512"].iter().all(|v| values.iter().filter(|w| *w == v).count() == 1);
    assert!(once && values.len() <= 3, "{lines:?}: {}", text(&output.stderr));
    for line in &lines {
        assert_eq!(line.split('\t').count(), lines[0].split('\t').count(), "{line}");
    }
}

#[test]
fn what_cannot_be_swept_is_refused_with_what_can() {
    let model = model("llama-q4_1");
    for (args, hint) in [
        (&["sweep", "--param", "NOTHING", "--shapes", TINY][..], "ROWS"),
        (&["sweep", "--param", "ROWS", "--values", "7", "--shapes", TINY], "values are 8"),
        (&["sweep", "nothing", "--param", "ROWS"], "docs/ops.md"),
        (&["sweep", "gemm", "--param", "ROWS"], "sizes"),
        (&["ab", &model], "--pin"),
        (&["ab", &model, "--pin", "decode.THREADS=128"], "--device"),
        (&["ab", &model, "--pin", "matvec.THREADS=99"], "THREADS"),
    ] {
        let output = planish(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains("hint: ") && stderr.contains(hint), "{args:?}: {stderr}");
    }
}

/// The page is made from its evidence alone, and what it names lies beside it.
#[test]
fn a_sweep_leaves_a_page_with_its_evidence() {
    let folder = TempDir::new().unwrap();
    let html = folder.path().join("width.html");
    let args = ["sweep", "--param", "PREFETCH", "--shapes", TINY, "--rounds", "6", "--budget", "600s", "--quiet"];
    let output = planish(&[&args[..], &["--html", html.to_str().unwrap()]].concat());
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(&html).unwrap();
    let evidence: Value = serde_json::from_slice(&std::fs::read(html.with_extension("json")).unwrap()).unwrap();
    assert_eq!((evidence["planish"].as_str(), evidence["data"]["param"].as_str()), (Some("sweep"), Some("PREFETCH")));
    assert!(page.contains("PREFETCH") && page.contains("<svg"), "{} bytes", page.len());
    // Without the machine: the page again, byte for byte, and the same text twice.
    let (json, again) = (html.with_extension("json"), folder.path().join("again.html"));
    let from = ["sweep", "--from", json.to_str().unwrap()];
    let shown = planish(&[&from[..], &["--html", again.to_str().unwrap()]].concat());
    assert_eq!((shown.status.code(), text(&shown.stdout)), (output.status.code(), text(&output.stdout)));
    assert!(std::fs::read_to_string(&again).unwrap() == page);
    let mut edited = evidence.clone();
    edited["data"]["shapes"] = serde_json::json!([]);
    let one = serde_json::json!({ "ratio": 1.0, "lo": 1.0, "hi": 1.0 });
    let best = serde_json::json!([{ "name": "a", "value": 1, "as_good": [1], "ratio": one }]);
    edited["data"]["verdict"]["best"] = best;
    let path = folder.path().join("edited.json");
    std::fs::write(&path, edited.to_string()).unwrap();
    let refused = planish(&["sweep", "--from", path.to_str().unwrap()]);
    assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains("1 best value over 0 shapes"));
    let noted = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab/0011/rows.json");
    let printed = planish(&["sweep", "--from", noted]);
    assert!(printed.status.code() == Some(0), "as --json printed it: {}", text(&printed.stderr));
    for flag in [["--threads", "1"], ["--param", "ROWS"], ["--budget", "9s"]] {
        let refused = planish(&[&from[..], &flag].concat());
        assert_eq!(refused.status.code(), Some(2), "{flag:?}: {}", text(&refused.stderr));
    }
    let other = planish(&["explain", "--from", json.to_str().unwrap()]);
    assert!(other.status.code() == Some(2) && text(&other.stderr).contains("evidence of sweep, wanted explain"));
    let refused = planish(&[&args[..], &["--html", "width.txt"]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

/// The kernels of GPUs through the same command and the same worker; the host executor needs a C++ compiler.
#[test]
fn the_host_executor_sweeps_too() {
    if !host_executor() {
        return;
    }
    let shape = "type=q8_0,rows=5,cols=96";
    let args = ["sweep", "--param", "THREADS", "--values", "32,64", "--shapes", shape, "--device", "host"];
    let found = report(&[&args[..], &["--rounds", "6", "--budget", "600s", "--json"]].concat());
    let swept = found["shapes"][0]["sweep"]["swept"].as_array().unwrap();
    assert_eq!(swept.len(), 2);
    assert!(swept.iter().all(|r| r["rejection"].is_null() && r["error_over_bound"].is_number()), "{swept:?}");
}

#[test]
fn two_configurations_run_in_turns_after_both_were_checked() {
    let model = model("llama-q4_1");
    let pins = ["--pin", "matvec.ROWS=8", "--pin", "gemm.THREADS=1", "--against", "matvec.ROWS=16"];
    let effort = ["--depth", "8", "--tokens", "4", "--pairs", "6", "--budget", "5s", "--threads", "2", "--json"];
    let found = report(&[&["ab", &model][..], &pins, &effort].concat());
    assert_ne!(found["digests"][0], found["digests"][1]);
    let gate = found["gate"].as_array().unwrap();
    assert!(
        gate.len() >= 2 && gate.iter().all(|g| g["error_over_bound"].as_f64().is_some_and(|e| e <= 1.0)),
        "{gate:?}"
    );
    assert!(found["decode"]["pairs"].as_u64().unwrap() >= 6, "{found}");
    let (lo, ratio, hi) = (&found["decode"]["lo"], &found["decode"]["ratio"], &found["decode"]["hi"]);
    assert!(lo.as_f64() <= ratio.as_f64() && ratio.as_f64() <= hi.as_f64(), "{found}");
    assert_eq!(found["compared"], 5, "the prompt and four tokens");
    assert_eq!(found["same_best"], 5, "rows a task change no sum");
    assert_eq!(found["logit_delta_max"], 0.0);
    let same = report(&[&["ab", &model, "--pin", "matvec.ROWS=8", "--against", "matvec.ROWS=8"][..], &effort].concat());
    assert_eq!(same["decode"]["effect"], "same", "{same}");
    assert!(same["gate"].as_array().unwrap().is_empty());
}
