//! Ctrl-C: the first asks the running command to stop at its next safe point, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// What Ctrl-C sets, for work that looks at it itself.
pub fn flag() -> &'static AtomicBool {
    &REQUESTED
}

/// An error once Ctrl-C was pressed.
pub fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

/// Routes the next Ctrl-C to `requested`, and forgets those before.
#[cfg(unix)]
pub fn install() {
    REQUESTED.store(false, Ordering::Relaxed);
    extern "C" fn on_interrupt(_: libc::c_int) {
        REQUESTED.store(true, Ordering::Relaxed);
    }
    let handler: extern "C" fn(libc::c_int) = on_interrupt;
    // SAFETY: zeros are a valid `sigaction`, and the handler only stores to an atomic; after it ran once, the default
    // action is back.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
        libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
    }
}

/// Gives Ctrl-C back to the system, which ends the process, and forgets those before.
#[cfg(unix)]
pub fn uninstall() {
    // SAFETY: the default action is a valid handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    REQUESTED.store(false, Ordering::Relaxed);
}

/// Leaves Ctrl-C to the system.
#[cfg(not(unix))]
pub fn install() {}

/// Ctrl-C is the system's.
#[cfg(not(unix))]
pub fn uninstall() {}
