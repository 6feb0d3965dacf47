//! Search, measure, gate and store launch configurations; knows no device, op or model.
//!
//! The flow is `Space` (what may be tried) → `Subject::admit` (is it right?) → `Subject::time` (how fast?) →
//! promotion (is it better than the default beyond noise?) → store (the choice and its evidence).

pub mod budget;
mod company;
pub mod config;
pub mod contain;
mod distort;
mod entry;
pub mod error;
pub mod event;
mod finals;
mod guard;
mod listing;
pub mod measure;
mod model;
pub mod outcome;
pub mod policy;
pub mod recheck;
pub mod recorded;
pub mod scripted;
pub mod search;
pub mod simulate;
pub mod space;
pub mod stats;
pub mod store;
pub mod subject;
pub mod sweep;
mod waves;
mod words;

pub use budget::{Budget, Clock, VirtualClock, WallClock, allot};
pub use config::{Config, Value};
pub use error::Error;
pub use event::{Event, Observer, Resume, Silent};
pub use measure::{Task, batched};
pub use outcome::{Anchor, Counts, Final, Interval, Outcome, Ranked, Times, Verdict};
pub use policy::{Policy, Timings};
pub use recheck::{Claim, Trial, recheck};
pub use recorded::{Recorded, record};
pub use search::tune;
pub use simulate::{Simulated, Total, simulate};
pub use space::{Constraint, Param, Space};
pub use subject::{Admitted, Point, Rejection, Sample, Subject, Usage, Wrong};
pub use sweep::{Sweep, Swept, sweep};
pub use words::counted;
