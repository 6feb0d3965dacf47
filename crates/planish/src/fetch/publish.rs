//! Checks a staged file and gives it its name in the cache, in one step.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::presets::Preset;

/// Moves the complete file `staged` to `path`, replacing what is there; both are on one file system.
pub fn publish(staged: &Path, path: &Path) -> Result<()> {
    let moved = File::open(staged).and_then(|f| f.sync_all()).and_then(|()| fs::rename(staged, path));
    moved.with_context(|| format!("cannot move {} to {}", staged.display(), path.display()))
}

/// Copies `from` to the new file `to` and returns the bytes copied and their SHA-256; `limit` bytes at most.
pub fn copy_hashed(from: impl Read, to: &Path, limit: u64, mut seen: impl FnMut(u64)) -> Result<(u64, String)> {
    let mut out = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    hash(from.take(limit), |chunk, total| {
        seen(total);
        out.write_all(chunk)
    })
    .with_context(|| format!("cannot write {}", to.display()))
}

/// Size and SHA-256 of a file.
pub fn hash_file(path: &Path) -> Result<(u64, String)> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    hash(file, |_, _| Ok(())).with_context(|| format!("cannot read {}", path.display()))
}

fn hash(mut from: impl Read, mut sink: impl FnMut(&[u8], u64) -> io::Result<()>) -> io::Result<(u64, String)> {
    let mut sha = Sha256::new();
    let mut chunk = vec![0u8; 1 << 20];
    let mut total = 0;
    loop {
        let n = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        total += n as u64;
        sha.update(&chunk[..n]);
        sink(&chunk[..n], total)?;
    }
    Ok((total, format!("{:x}", sha.finalize())))
}

/// Refuses content that is not the preset's.
pub fn check_sum(preset: &Preset, sha256: &str) -> Result<()> {
    if sha256 != preset.sha256 {
        bail!("{} has sha256 {sha256}, it must be {}", preset.file, preset.sha256);
    }
    Ok(())
}
