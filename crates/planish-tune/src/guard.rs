//! One tuning run at a time in a thread: one inside another would be timed as part of the other's candidate.

use std::cell::Cell;

use crate::error::Error;

thread_local! {
    static TUNING: Cell<bool> = const { Cell::new(false) };
}

/// Held while this thread tunes.
pub(crate) struct Tuning(());

impl Tuning {
    /// Refused where this thread is tuning already; other threads do not matter, since they share no state.
    pub(crate) fn begin() -> Result<Tuning, Error> {
        if TUNING.replace(true) {
            let message = "tuning was asked for from inside a candidate that is being tuned";
            return Err(Error::new(message).hint("tune the inner subject first; what a candidate calls runs as it is"));
        }
        Ok(Tuning(()))
    }
}

impl Drop for Tuning {
    fn drop(&mut self) {
        TUNING.set(false);
    }
}
