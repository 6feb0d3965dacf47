//! The error of this crate: what failed, with its numbers, and what to do about it.

use std::fmt;
use std::sync::OnceLock;

/// What a caller may branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The machine or its driver is not there.
    Unavailable,
    /// Memory could not be had.
    OutOfMemory,
    /// A launch broke the contract: wrong arity, sizes, or a buffer of another device.
    BadLaunch,
    /// A launch asks for more registers, shared memory or resident groups than the machine has.
    TooLarge,
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

/// The error that broke a device, kept: whoever asks the device for anything from then on gets it again.
#[derive(Debug, Default)]
pub(crate) struct Poison(OnceLock<Error>);

impl Poison {
    /// The error that broke the device, if one did.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.0.get().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// `error` as it is, unless it says that the device is broken: then the first such error, told as final.
    pub(crate) fn note(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Poisoned {
            return error;
        }
        let keep = || {
            let message = format!("{error}; the context is lost, and this process must be restarted");
            Error::new(ErrorKind::Poisoned, message).with_hint("start the command again")
        };
        self.0.get_or_init(keep).clone()
    }

    /// Does `work` unless the device is broken, and remembers it if that breaks the device.
    pub(crate) fn guard<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.check()?;
        work().map_err(|e| self.note(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_that_breaks_a_device_is_the_answer_from_then_on() {
        let poison = Poison::default();
        let late = poison.guard::<()>(|| Err(Error::new(ErrorKind::Timeout, "late"))).expect_err("late");
        assert_eq!((late.kind(), late.to_string().as_str()), (ErrorKind::Timeout, "late"));
        assert_eq!(poison.guard(|| Ok(3)).expect("nothing is broken"), 3);
        let break_it =
            |why: &str| poison.guard::<()>(|| Err(Error::new(ErrorKind::Poisoned, why))).expect_err("broken");
        let first = break_it("launch 7");
        assert!(first.to_string().starts_with("launch 7; the context is lost"), "{first}");
        assert_eq!(break_it("later").to_string(), first.to_string());
        assert_eq!(poison.guard(|| Ok(3)).expect_err("no more").kind(), ErrorKind::Poisoned);
    }
}
