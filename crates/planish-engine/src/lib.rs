//! Models: files, tokenizer, chat template, one decoder, plan, generation, verification.

pub mod arch;
pub mod decoder;
pub mod error;
pub mod gguf;
pub mod plan;
pub mod text;
pub mod verify;
pub mod weights;

pub use error::{Error, Result};
