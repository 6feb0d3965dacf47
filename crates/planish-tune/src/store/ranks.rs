//! Processes that must launch alike: one digest to compare, names for what differs, and one set for all of them.
//!
//! Nobody waits for anybody here. Either the first to publish decides for all (`Frozen::settle`), or each computes the same
//! common set from the sets of all (`agree`); a collective inside tuning would only move a deadlock.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::error::{Error, io_error};
use super::lock::{Frozen, Locked};
use super::record::Key;
use super::shard;

/// One key on which two frozen sets differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlike {
    /// What is launched.
    pub key: Key,
    /// What the left set has.
    pub left: Option<Locked>,
    /// What the right set has.
    pub right: Option<Locked>,
}

/// `matvec rows=4: ROWS=1 and ROWS=2`, or what else differs.
impl fmt::Display for Unlike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.key)?;
        match (&self.left, &self.right) {
            (Some(l), Some(r)) if l.config != r.config => write!(f, "{} and {}", l.config, r.config),
            (Some(l), Some(r)) if l.silicon != r.silicon => write!(f, "silicon {} and {}", l.silicon, r.silicon),
            (Some(l), Some(r)) => write!(f, "kernel {} and {}", l.kernel, r.kernel),
            (Some(l), None) => write!(f, "{} and nothing", l.config),
            (None, Some(r)) => write!(f, "nothing and {}", r.config),
            (None, None) => f.write_str("nothing"),
        }
    }
}

/// The common set of several, and where they differed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// What all run.
    pub set: Frozen,
    /// Keys that fell to the default because not all had the same for them.
    pub unlike: Vec<Key>,
}

/// The set that every process computes alike from the sets of all: what all have in common, and the default elsewhere.
///
/// The order of `sets` does not matter. A key that is not in `defaults` and not the same everywhere is left out.
pub fn agree(sets: &[Frozen], defaults: &Frozen) -> Agreement {
    let keys: BTreeSet<&Key> = sets.iter().flat_map(Frozen::iter).map(|l| &l.key).collect();
    let (mut common, mut unlike) = (Vec::new(), Vec::new());
    for key in keys {
        let first = sets[0].get(key);
        if sets.iter().all(|s| s.get(key) == first) {
            common.extend(first.cloned());
        } else {
            unlike.push(key.clone());
            common.extend(defaults.get(key).cloned());
        }
    }
    Agreement { set: Frozen::new(common), unlike }
}

impl Frozen {
    /// The keys on which this set and `other` differ; none exactly when the digests are equal.
    pub fn unlike(&self, other: &Frozen) -> Vec<Unlike> {
        let keys: BTreeSet<&Key> = self.iter().chain(other.iter()).map(|l| &l.key).collect();
        let one = |key: &Key| Unlike { key: key.clone(), left: self.get(key).cloned(), right: other.get(key).cloned() };
        keys.into_iter().map(one).filter(|u| u.left != u.right).collect()
    }

    /// Publishes this set at `path` unless there is a lock already, and returns the one that is there: of several
    /// processes the first decides for all, and none waits.
    ///
    /// # Errors
    /// When the file cannot be written, or is not a lock.
    pub fn settle(&self, path: &Path) -> Result<Frozen, Error> {
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temp = dir.join(format!(".tmp-{}", shard::unique_stem()));
        // What cannot be written is the lock that was asked for, whose folder the other name shares.
        shard::replace(&temp, self.to_text().as_bytes()).map_err(|e| io_error("writing", path, &e))?;
        let linked = fs::hard_link(&temp, path);
        // It is ours alone, and after the link a second name of the lock.
        let _ = fs::remove_file(&temp);
        match linked {
            Ok(()) => Ok(self.clone()),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Frozen::read(path),
            Err(e) => Err(io_error("writing", path, &e).hint("write the lock once and give it to all with --replay")),
        }
    }
}
