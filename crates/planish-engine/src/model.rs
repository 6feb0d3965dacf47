//! A model file opened for use: numbers, weights on the device, tokenizer and chat template.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use planish_device::Backend;
use serde::{Deserialize, Serialize};

use crate::arch::Hyper;
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::shapes;
use crate::text::Tokenizer;
use crate::text::chat::ChatTemplate;
use crate::weights::Weights;

/// A model file: all but its tensors, which go to the device that runs it.
pub struct ModelFile {
    /// Where it came from.
    pub path: PathBuf,
    /// The file.
    pub gguf: Arc<Gguf>,
    /// Its numbers.
    pub hyper: Hyper,
    /// Its vocabulary.
    pub tokenizer: Tokenizer,
}

/// A model ready for a decoder on the CPU.
pub struct Model {
    /// Its file.
    pub file: ModelFile,
    /// Its tensors on the device.
    pub weights: Weights,
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// Random weights in memory, in the shapes of a preset.
    Shapes(String),
}

/// What is wanted of a model that is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Weights made by so many threads.
    Random(usize),
    /// Zeros that take no memory, for questions about a model that is not run.
    Zeros,
}

/// Any model of the same shape is as fast; this one is the same in every process.
const SEED: u64 = 1;

impl Origin {
    /// Opens it as `ModelFile::open_with` does.
    pub fn open_with<T>(
        &self,
        made: Made,
        load: impl FnOnce(&Arc<Gguf>, &Hyper) -> Result<T>,
    ) -> Result<(ModelFile, T)> {
        let name = match self {
            Origin::File(path) => return ModelFile::open_with(path, load),
            Origin::Shapes(name) => name,
        };
        let preset = shapes::preset(name)?;
        let gguf = match made {
            Made::Random(threads) => preset.random(SEED, threads)?,
            Made::Zeros => preset.zeros()?,
        };
        ModelFile::read(&PathBuf::from(self.to_string()), gguf, load)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => path.display().fmt(f),
            Origin::Shapes(name) => write!(f, "{name} shapes"),
        }
    }
}

impl ModelFile {
    /// Opens `path`; the vocabulary is read while `load` brings the tensors where they shall be.
    pub fn open_with<T>(path: &Path, load: impl FnOnce(&Arc<Gguf>, &Hyper) -> Result<T>) -> Result<(ModelFile, T)> {
        ModelFile::read(path, Gguf::open(path)?, load)
    }

    fn read<T>(path: &Path, gguf: Gguf, load: impl FnOnce(&Arc<Gguf>, &Hyper) -> Result<T>) -> Result<(ModelFile, T)> {
        let context = |e: Error| e.context(path.display());
        let gguf = Arc::new(gguf);
        let hyper = Hyper::read(&gguf).map_err(context)?;
        let (loaded, tokenizer) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| Tokenizer::read(&gguf));
            let loaded = load(&gguf, &hyper);
            let tokenizer = tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (loaded, tokenizer)
        });
        let (loaded, tokenizer) = (loaded.map_err(context)?, tokenizer.map_err(context)?);
        if tokenizer.vocab_size() > hyper.vocab {
            return Err(Error::model(format!(
                "{}: the tokenizer has {} tokens, the embedding {} rows",
                path.display(),
                tokenizer.vocab_size(),
                hyper.vocab
            )));
        }
        Ok((ModelFile { path: path.to_owned(), gguf, hyper, tokenizer }, loaded))
    }

    /// The chat template of the file, or the one its vocabulary implies.
    pub fn chat(&self) -> Result<ChatTemplate> {
        ChatTemplate::read(&self.gguf, &self.tokenizer)
    }
}

impl Model {
    /// Opens `path` and puts its tensors on `backend`, which is the CPU; `threads` threads repack weights.
    pub fn open(path: &Path, backend: &dyn Backend, threads: usize) -> Result<Model> {
        let load = |gguf: &Arc<Gguf>, hyper: &Hyper| Weights::load(gguf, hyper, backend, threads);
        let (file, weights) = ModelFile::open_with(path, load)?;
        Ok(Model { file, weights })
    }
}
