//! Search, measure, gate and store launch configurations; knows no device, op or model.
//!
//! The flow is `Space` (what may be tried) → `Subject::admit` (is it right?) → `Subject::time` (how fast?) →
//! promotion (is it better than the default beyond noise?) → store (the choice and its evidence).

pub mod budget;
pub mod config;
pub mod contain;
mod distort;
pub mod error;
pub mod event;
mod finals;
mod guard;
pub mod measure;
pub mod outcome;
pub mod policy;
pub mod recheck;
pub mod scripted;
pub mod search;
pub mod space;
pub mod stats;
pub mod store;
pub mod subject;
pub mod sweep;

pub use budget::{Budget, Clock, VirtualClock, WallClock, allot};
pub use config::{Config, Value};
pub use error::Error;
pub use event::{Event, Observer, Resume, Silent};
pub use measure::{Task, batched};
pub use outcome::{Anchor, Counts, Final, Interval, Outcome, Ranked, Times, Verdict};
pub use policy::{Policy, Timings};
pub use recheck::{Claim, Trial, recheck};
pub use search::tune;
pub use space::{Constraint, Param, Space};
pub use subject::{Admitted, Point, Rejection, Sample, Subject, Wrong};
pub use sweep::{Sweep, Swept, sweep};
