//! Where the goldens and the real models are.

#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use std::path::PathBuf;

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

/// A seeded generator (splitmix64), so that a failing mutation can be named by its number.
pub struct Seeded(pub u64);

impl Seeded {
    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}
