//! The identity of the kernels: a hash of their sources for the CPU and one for GPUs, and the compiler that built them.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// What GPU kernels are made from: text, what makes launches of it, and the dialect's forms.
const GPU: [&str; 3] = ["src/gpu", "src/quant", "../planish-device/src/dialect"];

fn main() {
    println!("cargo::rustc-env=PLANISH_KERNEL_HASH={}", hash(&["src/cpu", "src/ops", "src/quant"]));
    println!("cargo::rustc-env=PLANISH_GPU_HASH={}", hash(&GPU));
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version =
        Command::new(rustc).arg("--version").output().map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    let opt = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!(
        "cargo::rustc-env=PLANISH_KERNEL_TOOLCHAIN={} opt-level={opt}",
        version.unwrap_or_else(|_| "rustc".to_owned())
    );
}

/// A hash of the sources in `folders`, each known by its path.
fn hash(folders: &[&str]) -> String {
    let mut files = Vec::new();
    for folder in folders {
        println!("cargo::rerun-if-changed={folder}");
        collect(Path::new(folder), &mut files);
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.to_string_lossy().as_bytes());
        hash.update(std::fs::read(&file).expect("a source file can be read"));
    }
    hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("a source folder can be read");
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "k" || e == "h")
            && !path.to_string_lossy().ends_with("_tests.rs")
        {
            into.push(path);
        }
    }
}
