//! Models: files, tokenizer, chat template, one decoder, plan, generation, verification.

pub mod accept;
pub mod arch;
pub mod corpus;
pub mod decoder;
pub mod error;
pub mod explain;
pub mod generate;
pub mod gguf;
pub mod gpu;
pub mod gpu_step;
pub mod identity;
pub mod model;
pub mod plan;
pub mod probes;
pub mod roof;
pub mod shapes;
pub mod sweep;
pub mod text;
pub mod tuning;
pub mod verify;
pub mod weights;

pub use error::{Error, Result};
