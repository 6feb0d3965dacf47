//! What the outside world did to us: one message that names the thing and its numbers, and sometimes the next step.

use std::fmt;
use std::path::Path;

/// An error of this crate: what failed, with its numbers, and the next step where one is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    message: String,
    hint: Option<String>,
}

impl Error {
    /// An error without a hint; `message` names the thing that failed.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Error { message: message.into(), hint: None }
    }

    /// This error with the next step to take.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Error { hint: Some(hint.into()), ..self }
    }

    /// This error about something inside the file at `path`.
    pub(crate) fn within(self, path: &Path) -> Self {
        Error { message: format!("{}: {}", path.display(), self.message), ..self }
    }

    /// The next step to take, if one is known.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
