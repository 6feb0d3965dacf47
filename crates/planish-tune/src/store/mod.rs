//! Where choices and their evidence are kept: files that survive crashes, other writers, upgrades and damage.
//!
//! `<root>/<silicon>/choices/*.jsonl` holds what a launch needs and `evidence/*.jsonl` why it was chosen.
//! Each writer appends to a shard of its own, so nothing is locked against another; a merge is a set union and the winner
//! among records of one key is a total order. Nothing here can fail a launch: damage costs the damaged record and a
//! warning, and a directory that cannot be written leaves the store working from memory.

mod error;
mod frame;
mod open;
mod record;
mod shard;
mod snapshot;

pub use error::{Error, Warning};
pub use frame::Kind;
pub use open::{Layers, Saved, Store};
pub use record::{Choice, Evidence, Identity, Key, Ratio, Silicon, Source, State, now_ms};
pub use snapshot::{Entry, Layer, Lookup, Snapshot, Tier, Why};

#[cfg(test)]
mod tests;
