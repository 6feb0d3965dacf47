//! Runs a script in virtual time; shared by the tests of the tuner.

// Every test file uses its own part of this.
#![allow(dead_code)]

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_tune::scripted::{Script, Scripted};
use planish_tune::{Budget, Config, Event, Outcome, Policy, Rejection, Resume, Task, VirtualClock, tune};

/// `V=i`.
pub fn v(i: i64) -> Config {
    Config::new().with("V", i)
}

/// More virtual time than any search takes.
pub fn long() -> Duration {
    Duration::from_secs(6000)
}

/// One run and what it left.
pub struct Run {
    /// What it found.
    pub outcome: Outcome,
    /// What it told.
    pub events: Vec<Event>,
    /// What it ran on.
    pub subject: Scripted,
}

/// Tunes `script` by `policy` within `limit`, going on from `resume`.
pub fn run_with(script: Script, limit: Duration, policy: Policy, resume: Resume) -> Run {
    let clock = VirtualClock::new();
    let mut subject = Scripted::new(script, clock.clone());
    let mut events = Vec::new();
    let task = Task {
        budget: Budget::new(&clock, limit),
        cancel: &AtomicBool::new(false),
        observer: &mut events,
        resume,
        policy,
    };
    let outcome = tune(&mut subject, task).expect("the default works");
    Run { outcome, events, subject }
}

/// Tunes `script` by the default policy.
pub fn run(script: Script) -> Run {
    run_with(script, long(), Policy::default(), Resume::default())
}

/// Why `config` was refused, if it was.
pub fn refusal<'a>(outcome: &'a Outcome, config: &Config) -> Option<&'a Rejection> {
    outcome.rejected.iter().find(|(c, _)| c == config).map(|(_, r)| r)
}
