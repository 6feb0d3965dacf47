//! The error of this crate: what failed, with its numbers, and what to do about it.

use std::fmt;

/// What a caller may branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The machine or its driver is not there.
    Unavailable,
    /// Memory could not be had.
    OutOfMemory,
    /// A launch broke the contract: wrong arity, sizes, or a buffer of another device.
    BadLaunch,
    /// The program did not build.
    Build,
    /// The device is in an error state that outlives the failed call.
    Poisoned,
    /// No answer within the deadline.
    Timeout,
}

/// A failure of a device or of a request made to it.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

impl Error {
    /// An error of `kind`; `message` names the thing that failed and its numbers.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), hint: None }
    }

    /// The same error with the next step a user can take.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What a caller may branch on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
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
