//! Errors that carry the next step a user can take.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// An error with its `hint:` line; prints as the error alone.
#[derive(Debug)]
struct Hinted {
    error: anyhow::Error,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl StdError for Hinted {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// Adds a hint to a failure.
pub trait WithHint<T> {
    /// The same result, its error ending in `hint: {hint}` when printed.
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T>;
    /// The same, but for an error that has a hint of its own.
    fn or_hint(self, hint: impl Into<String>) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> WithHint<T> for Result<T, E> {
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T> {
        self.map_err(|e| anyhow::Error::new(Hinted { error: e.into(), hint: hint.into() }))
    }

    fn or_hint(self, hint: impl Into<String>) -> anyhow::Result<T> {
        let failed = self.map_err(Into::into);
        if failed.as_ref().is_err_and(|e| of(e).is_some()) { failed } else { failed.hint(hint) }
    }
}

/// The outermost hint of `error`, from this crate or from a library; else what its cause in the system suggests.
pub fn of(error: &anyhow::Error) -> Option<String> {
    let told = error.chain().find_map(|cause| {
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            return Some(hinted.hint.clone());
        }
        let hint = if let Some(e) = cause.downcast_ref::<planish_device::Error>() {
            e.hint()
        } else if let Some(e) = cause.downcast_ref::<planish_engine::Error>() {
            e.hint()
        } else {
            cause.downcast_ref::<planish_tune::Error>()?.next_step()
        };
        hint.map(str::to_owned)
    });
    told.or_else(|| {
        error.chain().find_map(|cause| of_system(cause.downcast_ref::<io::Error>()?.kind())).map(str::to_owned)
    })
}

fn of_system(kind: io::ErrorKind) -> Option<&'static str> {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match kind {
        StorageFull | QuotaExceeded => {
            Some("make room there, or set PLANISH_HOME to a folder on another disk if it is planish's own")
        }
        PermissionDenied | ReadOnlyFilesystem => {
            Some("give a place that this user may use; PLANISH_HOME moves planish's own")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn hint_survives_context_and_stays_out_of_the_message() {
        let failed: anyhow::Result<()> = Err(anyhow!("disk full")).context("cannot copy").hint("free some space");
        let error = failed.context("pull").unwrap_err();
        assert_eq!(format!("{error:#}"), "pull: cannot copy: disk full");
        assert_eq!(of(&error).as_deref(), Some("free some space"));
        assert_eq!(of(&anyhow!("plain")), None);
        let own: anyhow::Result<()> = Err(anyhow!("x")).hint("own");
        assert_eq!(of(&own.or_hint("other").unwrap_err()).as_deref(), Some("own"));
        let none: anyhow::Result<()> = Err(anyhow!("x"));
        assert_eq!(of(&none.or_hint("other").unwrap_err()).as_deref(), Some("other"));
        let full = || Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull));
        assert!(of(&full().context("cannot copy").unwrap_err()).is_some_and(|h| h.contains("make room")));
        assert_eq!(of(&full().context("cannot copy").hint("own").unwrap_err()).as_deref(), Some("own"));
    }
}
