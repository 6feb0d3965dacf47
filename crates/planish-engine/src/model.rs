//! A model file opened for use: numbers, weights on the device, tokenizer and chat template.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use planish_device::Backend;

use crate::arch::Hyper;
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::text::Tokenizer;
use crate::text::chat::ChatTemplate;
use crate::weights::Weights;

/// A model ready for a decoder.
pub struct Model {
    /// Where it came from.
    pub path: PathBuf,
    /// The file.
    pub gguf: Arc<Gguf>,
    /// Its numbers.
    pub hyper: Hyper,
    /// Its tensors on the device.
    pub weights: Weights,
    /// Its vocabulary.
    pub tokenizer: Tokenizer,
}

impl Model {
    /// Opens `path` and puts its tensors on `backend`; the tokenizer is read while `threads` threads repack weights.
    pub fn open(path: &Path, backend: &dyn Backend, threads: usize) -> Result<Model> {
        let context = |e: Error| e.context(path.display());
        let gguf = Arc::new(Gguf::open(path)?);
        let hyper = Hyper::read(&gguf).map_err(context)?;
        let (weights, tokenizer) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| Tokenizer::read(&gguf));
            let weights = Weights::load(&gguf, &hyper, backend, threads);
            let tokenizer = tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (weights, tokenizer)
        });
        let (weights, tokenizer) = (weights.map_err(context)?, tokenizer.map_err(context)?);
        if tokenizer.vocab_size() > hyper.vocab {
            return Err(Error::model(format!(
                "{}: the tokenizer has {} tokens, the embedding {} rows",
                path.display(),
                tokenizer.vocab_size(),
                hyper.vocab
            )));
        }
        Ok(Model { path: path.to_owned(), gguf, hyper, weights, tokenizer })
    }

    /// The chat template of the file, or the one its vocabulary implies.
    pub fn chat(&self) -> Result<ChatTemplate> {
        ChatTemplate::read(&self.gguf, &self.tokenizer)
    }
}
