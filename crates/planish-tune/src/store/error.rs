//! The error of the store: what failed, with its numbers, and what to do about it.

use std::fmt;
use std::path::Path;

/// A request to the store that could not be met; damage met while reading is a `Warning`, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    message: String,
    hint: Option<String>,
}

impl Error {
    /// An error whose `message` names the thing that failed and its numbers.
    pub fn new(message: impl Into<String>) -> Self {
        Error { message: message.into(), hint: None }
    }

    /// The failure of `doing` something to the file at `path`.
    pub(super) fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Error::new(format!("{doing} {}: {error}", path.display()))
    }

    /// The same error with the next step a user can take.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The next step a user can take, if one is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Something the store lived with: damage that cost a record, or a directory that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    message: String,
}

impl Warning {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Warning { message: message.into() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
