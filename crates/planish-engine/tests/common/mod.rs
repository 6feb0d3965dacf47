//! Where the goldens and the real models are, and choices that tests make by hand.

#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use std::path::PathBuf;

use planish_tune::Config;
use planish_tune::store::{Pin, Pins};

/// Tiny models, their expected values and tokenizer vectors, which the repository carries.
pub fn golden_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// The directory of real models: `PLANISH_MODELS`, else the cache of `planish pull`; `None` after saying why.
pub fn model_dir() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache/planish/models"));
    let dir = std::env::var_os("PLANISH_MODELS").map(PathBuf::from).or(home)?;
    if dir.is_dir() {
        return Some(dir);
    }
    println!("skipped: no directory {} (set PLANISH_MODELS)", dir.display());
    None
}

/// A real model file, or `None` after saying why the test is skipped.
pub fn model_file(name: &str) -> Option<PathBuf> {
    let path = model_dir()?.join(name);
    if path.is_file() {
        return Some(path);
    }
    println!("skipped: no {}", path.display());
    None
}

/// Every op at its default, but `op` with `values`.
pub fn pinned(op: &str, values: Config) -> Pins {
    Pins::new(&[Pin { op: op.to_owned(), values }]).expect("one pin")
}
