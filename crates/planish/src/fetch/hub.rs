//! Files out of Hugging Face repositories.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use indicatif::ProgressBar;

use super::{Fetched, Source, check_gguf, publish};
use crate::hint::WithHint;
use crate::home::{Home, Staging};
use crate::interrupt;
use crate::presets::Preset;
use crate::ui::Ui;

/// A connection that brings no byte for this long is given up.
const STALL: Duration = Duration::from_secs(15);

/// `OWNER/REPO[:FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    repo: String,
    file: Option<String>,
}

impl Spec {
    /// The parts of `text`, if it has that form.
    pub fn parse(text: &str) -> Option<Self> {
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        let legal = |s: &str| {
            !s.is_empty() && !s.starts_with('.') && s.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let (owner, name) = repo.split_once('/')?;
        let file_legal = file.is_none_or(|f| f.split('/').all(legal));
        (legal(owner) && legal(name) && file_legal)
            .then(|| Spec { repo: repo.to_owned(), file: file.map(str::to_owned) })
    }

    /// Name in the cache: the file's own name behind its repository's, so that repositories do not collide.
    fn cache_name(&self, file: &str) -> String {
        format!("{}--{}", self.repo.replace('/', "--"), file.replace('/', "--"))
    }
}

/// Brings the file that `spec` names into the cache.
pub fn pull(spec: &Spec, home: &Home, ui: Ui) -> Result<Fetched> {
    if let Some(file) = &spec.file {
        let path = home.models().join(spec.cache_name(file));
        if path.exists() {
            return Ok(Fetched { path, source: Source::Cache });
        }
    }
    let staging = Staging::new(&home.models())?;
    let repo = || open(Repo::new(spec.repo.clone(), RepoType::Model), staging.path());
    let file = match &spec.file {
        Some(file) => file.clone(),
        None => only_gguf(spec, repo()?)?,
    };
    let staged = download(repo()?, &file, ui)
        .with_context(|| format!("cannot fetch {file} of {}", spec.repo))
        .hint("check the name and the connection; `planish pull PATH` takes a file that you have")?;
    check_gguf(&staged)?;
    let path = home.models().join(spec.cache_name(&file));
    publish::publish(&staged, &path)?;
    Ok(Fetched { path, source: Source::Hub })
}

/// Downloads the preset's file into `staging` and returns it there, checked.
pub fn fetch(preset: &Preset, staging: &Staging, ui: Ui) -> Result<PathBuf> {
    let repo = Repo::with_revision(preset.repo.to_owned(), RepoType::Model, preset.revision.to_owned());
    let staged = download(open(repo, staging.path())?, preset.file, ui)?;
    let (_, sha256) = publish::hash_file(&staged)?;
    publish::check_sum(preset, &sha256)?;
    Ok(staged)
}

fn open(repo: Repo, staging: &Path) -> Result<ApiRepo> {
    let api = ApiBuilder::from_env().with_cache_dir(staging.join("hub")).with_progress(false).build()?;
    Ok(api.repo(repo))
}

/// The GGUF file of a repository that has just one.
fn only_gguf(spec: &Spec, repo: ApiRepo) -> Result<String> {
    let info = watched(&Arc::default(), move || repo.info().map_err(brief))
        .with_context(|| format!("cannot list {}", spec.repo))
        .hint("check the name and the connection; `planish pull PATH` takes a file that you have")?;
    let mut files: Vec<_> = info.siblings.into_iter().map(|s| s.rfilename).filter(|f| f.ends_with(".gguf")).collect();
    match files.len() {
        0 => Err(anyhow!("{} has no GGUF file", spec.repo)).hint("look for a repository whose name ends in GGUF"),
        1 => Ok(files.remove(0)),
        n => Err(anyhow!("{} has {n} GGUF files:\n  {}", spec.repo, files.join("\n  ")))
            .hint(format!("name one: planish pull {}:{}", spec.repo, files[0])),
    }
}

/// Moves a bar and tells the watcher that bytes still come.
struct Beat {
    bytes: Arc<AtomicU64>,
    bar: Option<ProgressBar>,
    ui: Ui,
}

impl Progress for Beat {
    fn init(&mut self, size: usize, filename: &str) {
        self.bar = Some(self.ui.bytes_bar(&format!("downloading {filename}"), size as u64));
    }

    fn update(&mut self, size: usize) {
        let total = self.bytes.fetch_add(size as u64, Ordering::Relaxed) + size as u64;
        if let Some(bar) = &self.bar {
            bar.set_position(total);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn download(repo: ApiRepo, file: &str, ui: Ui) -> Result<PathBuf> {
    let bytes = Arc::new(AtomicU64::new(0));
    let beat = Beat { bytes: bytes.clone(), bar: None, ui };
    let file = file.to_owned();
    let path = watched(&bytes, move || repo.download_with_progress(&file, beat).map_err(brief))?;
    Ok(fs::canonicalize(path)?)
}

/// The innermost cause: the errors around it repeat it and the address.
fn brief(error: ApiError) -> anyhow::Error {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    anyhow!("{cause}")
}

/// Runs `work` on a thread of its own and gives up on Ctrl-C or when `bytes` stands still for too long.
fn watched<T: Send + 'static>(bytes: &Arc<AtomicU64>, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (send, receive) = channel();
    thread::spawn(move || send.send(work()));
    let mut last = (0, Instant::now());
    loop {
        match receive.recv_timeout(Duration::from_millis(100)) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => bail!("the download broke off"),
            Err(RecvTimeoutError::Timeout) => interrupt::check()?,
        }
        let now = bytes.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
        if last.1.elapsed() > STALL {
            bail!("nothing came for {} s", STALL.as_secs());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_takes_repositories_and_nothing_that_leaves_the_cache() {
        let spec = Spec::parse("owner/repo-1.5:sub/file.Q4_0.gguf").unwrap();
        assert_eq!(spec.cache_name("sub/file.Q4_0.gguf"), "owner--repo-1.5--sub--file.Q4_0.gguf");
        assert_eq!(Spec::parse("owner/repo").unwrap().file, None);
        for bad in ["", "repo", "a/b/c", "/b", "a/", "../b", "a/b:", "a/b:../c", "a/b:/etc/x", "a b/c"] {
            assert_eq!(Spec::parse(bad), None, "{bad}");
        }
    }
}
