//! What tuner and worker say to each other: one JSON value a line, one reply to each request.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::subject::{Point, Rejection, Sample};

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
    /// `Subject::sentinel`.
    Sentinel,
}

/// Worker to tuner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
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
