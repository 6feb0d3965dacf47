//! Where planish keeps its files: `models/` and `store/` under one folder.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;

use crate::hint::WithHint;

/// The folder that holds planish's files.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// `PLANISH_HOME`, else `XDG_CACHE_HOME/planish`, else `~/.cache/planish`; nothing is created.
    pub fn from_env() -> Result<Self> {
        let var = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        var("PLANISH_HOME")
            .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("planish")))
            .or_else(|| var("HOME").map(|d| d.join(".cache/planish")))
            .map(Home)
            .ok_or_else(|| anyhow!("none of PLANISH_HOME, XDG_CACHE_HOME and HOME is set"))
            .hint("set PLANISH_HOME to a folder for models and tuning results")
    }

    /// A home at `root`.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Home(root.to_owned())
    }

    /// Folder of tuning results: `PLANISH_STORE`, else `store` here.
    pub fn store(&self) -> PathBuf {
        env::var_os("PLANISH_STORE").filter(|v| !v.is_empty()).map_or_else(|| self.0.join("store"), PathBuf::from)
    }

    /// Folder of kernels compiled for the host executor.
    pub fn host(&self) -> PathBuf {
        self.0.join("host")
    }

    /// Folder of kernels compiled for NVIDIA cards.
    pub fn cuda(&self) -> PathBuf {
        self.0.join("cuda")
    }

    /// Folder of model files.
    pub fn models(&self) -> PathBuf {
        self.0.join("models")
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// A private folder for a download, on the same file system as the models; gone when dropped.
///
/// Whatever killed processes left behind is removed by the next process that finds nobody else downloading.
pub struct Staging {
    folder: TempDir,
    _users: File,
}

impl Staging {
    /// A fresh folder under `models`.
    pub fn new(models: &Path) -> Result<Self> {
        let root = models.join(".staging");
        fs::create_dir_all(&root)
            .with_context(|| format!("cannot create {}", root.display()))
            .hint("set PLANISH_HOME to a folder that can be written")?;
        let users = File::create(root.join("lock")).with_context(|| format!("cannot write in {}", root.display()))?;
        if users.try_lock().is_ok() {
            sweep(&root)?;
            users.unlock()?;
        }
        users.lock_shared().with_context(|| format!("cannot lock {}", root.display()))?;
        let folder = tempfile::tempdir_in(&root).with_context(|| format!("cannot write in {}", root.display()))?;
        Ok(Staging { folder, _users: users })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn sweep(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path()).with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_sweeps_leftovers_only_when_alone() {
        let home = tempfile::tempdir().unwrap();
        let leftover = home.path().join(".staging/killed");
        fs::create_dir_all(&leftover).unwrap();
        let first = Staging::new(home.path()).unwrap();
        assert!(!leftover.exists());
        fs::write(first.path().join("half"), b"x").unwrap();
        let second = Staging::new(home.path()).unwrap();
        assert!(first.path().join("half").exists(), "a second user must not sweep the first");
        drop(second);
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }
}
