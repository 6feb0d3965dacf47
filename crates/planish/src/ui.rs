//! Talk on standard error: notes, progress bars and errors; silent or absent where nobody watches.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::hint;

/// How much to say, and whether the report is for a machine.
#[derive(Clone, Copy, Debug)]
pub struct Ui {
    /// Only errors are said.
    pub quiet: bool,
    /// Reports are JSON.
    pub json: bool,
}

impl Ui {
    /// Says one line unless quiet.
    pub fn note(self, line: &str) {
        if !self.quiet {
            say(line);
        }
    }

    /// A bar of `total` bytes; where standard error is no terminal, one line takes its place.
    pub fn bytes_bar(self, what: &str, total: u64) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        if !stderr().is_terminal() {
            say(&format!("{what} ({})", crate::report::bytes(total)));
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
            .expect("the template is constant and valid");
        let bar = ProgressBar::new(total).with_style(style).with_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// A spinner that says what is being done; one line where standard error is no terminal.
    pub fn spinner(self, what: &str) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        if !stderr().is_terminal() {
            say(what);
            return ProgressBar::hidden();
        }
        let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
        spinner.enable_steady_tick(Duration::from_millis(200));
        spinner
    }
}

/// Says one line.
pub fn say(line: &str) {
    write(&format!("{line}\n"));
}

/// Asks for input: no line end, so that the answer stands beside it.
pub fn prompt(text: &str) {
    write(text);
}

/// Says an error with its causes, and its hint as the last line.
pub fn say_error(error: &anyhow::Error) {
    say(&format!("error: {error:#}"));
    if let Some(hint) = hint::of(error) {
        say(&format!("hint: {hint}"));
    }
}

/// Talk that nobody can hear any more, through a closed pipe or on a full disk, is no reason to stop.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}
