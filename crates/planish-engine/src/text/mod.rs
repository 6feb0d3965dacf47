//! Text in and out of a model: tokenizer, chat template and a stream that never splits a character.

pub mod chat;
mod merge;
mod pre;
mod stream;
mod tokenizer;
mod vocab;

pub use stream::Utf8Stream;
pub(crate) use tokenizer::stand_in;
pub use tokenizer::{Special, Tokenizer};
