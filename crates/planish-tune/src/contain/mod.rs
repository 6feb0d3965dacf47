//! Containment: candidates run in a worker process, so that one that crashes, hangs or poisons hurts nobody else.
//!
//! The worker calls `serve_stdio`; the tuner uses `Remote`, a `Subject` that speaks to it in JSON lines.

mod protocol;
mod quarantine;
mod remote;
mod worker;

pub use protocol::{Reply, Request, Stage};
pub use quarantine::{Quarantine, Quarantined};
pub use remote::{Ahead, Deadlines, FloorAgain, Heard, Processors, Remote, Setup};
pub use worker::{Factory, Tell, serve, serve_stdio};
