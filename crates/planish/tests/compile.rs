//! `planish compile`, where NVIDIA's compiler is found.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use support::{command, model, report, text};
use tempfile::TempDir;

/// The kernels that it compiles for path token of a golden model with `more` flags; none where there is no compiler.
fn kernels(home: &Path, more: &[&str]) -> Option<BTreeSet<String>> {
    let model = model("llama-q4_0");
    let args = [&["compile", &model, "--path", "token", "--context", "64", "--json"], more].concat();
    let output = command(home, &args).output().unwrap();
    let told = text(&output.stderr);
    if told.contains("no NVRTC in the loader's folders") {
        let _ = writeln!(std::io::stderr(), "tier: NVRTC: skipped: {}", told.lines().next().unwrap_or_default());
        return None;
    }
    let told = report(&output);
    let names = told["kernels"].as_array().unwrap().iter().map(|k| k["kernel"]["entry"].as_str().unwrap().to_owned());
    Some(names.collect())
}

#[test]
fn grids_that_leave_times_can_be_left_out() {
    let home = TempDir::new().unwrap();
    let Some(mut all) = kernels(home.path(), &[]) else { return };
    assert!(all.contains("decode_fused") && all.remove("decode_stamped"), "{all:?}");
    assert_eq!(kernels(home.path(), &["--unstamped"]), Some(all));
}
