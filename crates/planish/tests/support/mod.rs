//! The command under test, what it printed, and the models and stores that it is given.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::io::{Write, stderr};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use planish_device::host::{Host, HostOptions, Mode};
use planish_tune::Config;
use planish_tune::store::{Choice, Identity, Key, Layers, Ratio, Source, State, Store};
use serde_json::Value;
use tempfile::TempDir;

/// The command with `home` for its own and nothing on standard input.
pub fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planish"));
    command.args(args).env("PLANISH_HOME", home).env_remove("PLANISH_STORE").stdin(Stdio::null());
    command
}

#[track_caller]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("what it prints is text")
}

/// What a command printed on its two streams before it ended with `code`.
#[track_caller]
pub fn checked(output: &Output, args: &[&str], code: i32) -> (String, String) {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

#[track_caller]
pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

/// The JSON of a command that succeeded.
#[track_caller]
pub fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{:?}: {}", output.status, text(&output.stderr));
    json(output)
}

/// The path of a golden model.
pub fn model(name: &str) -> String {
    golden(&format!("tiny/{name}.gguf"))
}

/// The path of what a golden model gives.
pub fn expected(name: &str) -> String {
    golden(&format!("tiny_expected/{name}.json"))
}

fn golden(file: &str) -> String {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../planish-engine/tests/goldens");
    goldens.join(file).to_str().expect("a path that is text").to_owned()
}

/// Whether there is a compiler for the host executor; says so where there is none.
pub fn host_executor() -> bool {
    let cache = TempDir::new().expect("a folder for its programs");
    let host = Host::new(HostOptions { cache: cache.path().to_owned(), mode: Mode::Checked });
    host.inspect_err(|e| _ = writeln!(stderr(), "tier: host executor, command: skipped: {e}")).is_ok()
}

/// A choice of `config` as tuning would have stored it.
pub fn tuned(key: Key, identity: Identity, config: Config) -> Choice {
    let (source, state, ratio) = (Source::Tuned, State::Tuned, Ratio { lo: 1.2, mid: 1.25, hi: 1.3 });
    Choice { key, identity, config, source, state, ratio, ns_median: 1500.0, written_ms: 1, evidence: None }
}

/// Puts `choices` into the store at `root`.
pub fn fill(root: &Path, choices: impl IntoIterator<Item = Choice>) {
    let mut store = Store::open(Layers { user: Some(root.to_owned()), ..Layers::default() });
    choices.into_iter().for_each(|choice| _ = store.append(choice).expect("a store that takes it"));
}
