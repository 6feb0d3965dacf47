//! Where choices and their evidence are kept: files that survive crashes, other writers, upgrades and damage.
//!
//! `<root>/<silicon>/choices/*.jsonl` holds what a launch needs and `evidence/*.jsonl` why it was chosen.
//! Each writer appends to a shard of its own, so nothing is locked against another; a merge is a set union and the winner
//! among records of one key is a total order. Nothing here can fail a launch: damage costs the damaged record and a
//! warning, and a directory that cannot be written leaves the store working from memory.

mod bucket;
mod compact;
mod error;
mod frame;
mod index;
mod inspect;
mod item;
mod lock;
mod open;
mod pins;
mod progress;
mod ranks;
mod record;
mod shard;
mod snapshot;
mod transfer;

pub use bucket::BUCKET_DIMS;
pub use compact::{Apply, Compacted, Prune, Pruned, compact, prune};
pub use error::{Error, Warning};
pub use frame::Kind;
pub use inspect::{Considered, Explained, Listed, Shown, Verified, list, show, verify, why};
pub use item::{Begun, Ended, Item};
pub use lock::{Frozen, LOCK_BYTES_MAX, Locked, Mode, Origin, Question};
pub use open::{Layers, Saved, Store};
pub use pins::{Pin, Pins};
pub use progress::{Earlier, Progress};
pub use ranks::{Agreement, Unlike, agree};
pub use record::{Change, Choice, Evidence, Identity, Key, Ratio, Silicon, Source, State, now_ms};
pub use shard::{create_private_dir, is_store};
pub use snapshot::{Entry, Layer, Lookup, Snapshot, Tier, Why};
pub use transfer::{
    Added, Contents, Difference, EXPORT_BYTES_MAX, EXPORT_RECORDS_MAX, Export, diff, export, import, merge,
    parse_export,
};

#[cfg(test)]
mod tests;
