//! Models: files, tokenizer, chat template, one decoder, plan, generation, verification.

pub mod arch;
pub mod error;
pub mod gguf;
pub mod text;

pub use error::{Error, Result};
