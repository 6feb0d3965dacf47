//! Search, measure, gate and store launch configurations; knows no device, op or model.
//!
//! The flow is `Space` (what may be tried) → `Subject::admit` (is it right?) → `Subject::time` (how fast?) →
//! promotion (is it better than the default beyond noise?) → store (the choice and its evidence).

pub mod budget;
pub mod config;
pub mod error;
pub mod space;
pub mod store;
pub mod subject;

pub use budget::{Budget, Clock, VirtualClock, WallClock, allot};
pub use config::{Config, Value};
pub use error::Error;
pub use space::{Constraint, Param, Space};
pub use subject::{Admitted, Point, Rejection, Sample, Subject, Wrong};
