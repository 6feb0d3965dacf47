//! What tuner and worker say to each other: one JSON value a line, one reply to each request.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::subject::{Point, Rejection, Sample};

/// What a worker is at while it answers a request; each has a deadline of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Makes inputs and references, which is not the candidate's work.
    Prepare,
    /// Builds the program of this name, which stands for all that decides the outcome: text, constants and target.
    Compile(String),
    /// Runs the candidate.
    Run,
}

impl Stage {
    /// In one word, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Stage::Prepare => "preparing",
            Stage::Compile(_) => "compiling",
            Stage::Run => "running",
        }
    }
}

/// Tuner to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Make the subject; first of all.
    Build(serde_json::Value),
    /// `Subject::admit`.
    Admit(Config),
    /// `Subject::time` of a configuration that this worker has admitted.
    Time(Config, Point),
    /// `Subject::confirm` of a configuration that this worker has admitted.
    Confirm(Config),
    /// `Subject::sentinel`.
    Sentinel,
}

/// Worker to tuner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Not the answer yet: what the worker is at from now on.
    At(Stage),
    /// The subject is made.
    Ready,
    /// The subject cannot be made, or the request makes no sense.
    Failed(String),
    /// The gate was passed with this error over its bound.
    Admitted(f64),
    /// One timing.
    Sampled(Sample),
    /// The candidate is refused, or the sentinel failed.
    Refused(Rejection),
    /// The device works.
    Healthy,
    /// The subject panicked; the worker ends after saying so.
    Panicked(String),
}

/// For messages about a reply that was not expected.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::At(stage) => write!(f, "is {}", stage.name()),
            Reply::Ready => f.write_str("ready"),
            Reply::Failed(why) => f.write_str(why),
            Reply::Admitted(error) => write!(f, "admitted at {error:.3} of its bound"),
            Reply::Sampled(sample) => write!(f, "{:.0} ns", sample.ns),
            Reply::Refused(rejection) => write!(f, "refused, {rejection}"),
            Reply::Healthy => f.write_str("the device works"),
            Reply::Panicked(message) => write!(f, "panic: {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_in_words() {
        let refused = Reply::Refused(Rejection::Launch("7".into()));
        let told = [Reply::Failed("no op is called x".into()), refused, Reply::At(Stage::Compile("p".into()))];
        assert_eq!(told.map(|r| r.to_string()), ["no op is called x", "refused, launch: 7", "is compiling"]);
    }
}
