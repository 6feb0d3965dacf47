//! Hands the compiler's version and the target to the crate, for the toolchain identity.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("-V").output().ok().and_then(|o| String::from_utf8(o.stdout).ok());
    let version = version.map_or_else(|| "unknown".into(), |v| v.trim().to_string());
    println!("cargo::rustc-env=PLANISH_RUSTC={version}");
    println!("cargo::rustc-env=PLANISH_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    println!("cargo::rustc-env=PLANISH_FEATURES={}", std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
}
