//! The crate's error: a message that names the thing and its numbers, and sometimes a hint.

/// Why an operation of this crate could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    message: String,
    hint: Option<String>,
}

impl Error {
    /// An error whose message names the thing that failed and its numbers.
    pub fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), hint: None }
    }

    /// The same error with a next step for the user.
    pub fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// The next step, where one is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
