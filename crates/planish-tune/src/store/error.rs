//! What the store lived with, and how it words the trouble it has with files.

use std::fmt;
use std::path::Path;

pub use crate::error::Error;

/// The failure of `doing` something to the file at `path`.
pub(super) fn io_error(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("{doing} {}: {error}", path.display()))
}

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
