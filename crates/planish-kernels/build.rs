//! The identity of the CPU kernels: a hash of their sources, and the compiler that built them.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

fn main() {
    let mut files = Vec::new();
    for folder in ["src/cpu", "src/ops", "src/quant"] {
        println!("cargo::rerun-if-changed={folder}");
        collect(Path::new(folder), &mut files);
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.to_string_lossy().as_bytes());
        hash.update(std::fs::read(&file).expect("a source file can be read"));
    }
    let hex: String = hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
    println!("cargo::rustc-env=PLANISH_KERNEL_HASH={hex}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version =
        Command::new(rustc).arg("--version").output().map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    let opt = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!(
        "cargo::rustc-env=PLANISH_KERNEL_TOOLCHAIN={} opt-level={opt}",
        version.unwrap_or_else(|_| "rustc".to_owned())
    );
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("a source folder can be read");
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.to_string_lossy().ends_with("_tests.rs") {
            into.push(path);
        }
    }
}
