//! The one error type of the crate: a message that names the thing that failed with its numbers, and a hint if known.

use std::fmt;

/// Result of everything in this crate that reads the outside world.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What to do about a file that says something impossible, where nothing better is known.
const FILE_HINT: &str =
    "the file is damaged, or of a version that planish does not read: compare its checksum with its publisher's";

/// What to do about a model that computes no numbers.
pub(crate) const NOT_FINITE_HINT: &str =
    "weights with NaN or infinity do this: download the model again and compare its checksum";

/// What part of the engine refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The operating system refused to open, map, read or write.
    Io,
    /// A model file is damaged or says something impossible.
    File,
    /// The model is well formed but not one this engine runs.
    Model,
    /// Text, token ids or a chat template.
    Text,
    /// A request that does not fit: context length, ids, parameters.
    Request,
    /// The machine refused or failed.
    Device,
}

/// A refusal, with the numbers that explain it and, where one is known, the next step.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

impl Error {
    fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None }
    }

    /// The operating system's refusal `cause` while doing `what`.
    pub fn io(what: impl fmt::Display, cause: &std::io::Error) -> Error {
        Error::new(Kind::Io, format!("{what}: {cause}"))
    }

    /// A damaged or impossible file.
    pub fn file(message: impl Into<String>) -> Error {
        Error::new(Kind::File, message)
    }

    /// A model that is well formed but cannot be run.
    pub fn model(message: impl Into<String>) -> Error {
        Error::new(Kind::Model, message)
    }

    /// A tokenizer, a text or a chat template that cannot be used.
    pub fn text(message: impl Into<String>) -> Error {
        Error::new(Kind::Text, message)
    }

    /// A request that does not fit the model or the session.
    pub fn request(message: impl Into<String>) -> Error {
        Error::new(Kind::Request, message)
    }

    /// The same error with one sentence on what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with `context: ` in front of its message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// What to do next, where it is known.
    pub fn hint(&self) -> Option<&str> {
        let usual = (self.kind == Kind::File).then_some(FILE_HINT);
        self.hint.as_deref().or(usual)
    }

    /// True when the caller's request was refused and the session is as it was before.
    pub fn is_request(&self) -> bool {
        self.kind == Kind::Request
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<planish_device::Error> for Error {
    fn from(e: planish_device::Error) -> Error {
        let error = Error::new(Kind::Device, e.to_string());
        match e.hint() {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}
