//! Questions about a store: what it holds, why a lookup answers as it does, and whether its files are whole.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::compact::DAMAGED;
use super::error::{Error, Warning, io_error};
use super::frame::{self, Kind};
use super::open::Store;
use super::record::{Choice, Evidence, Identity, Key, Source};
use super::shard::{self, Writer};
use super::snapshot::{Entry, Layer, Tier, rank, tier, usable};
use crate::config::Config;

/// The records that a better one of the same key, identity, source and layer replaces.
pub(super) fn superseded<'a>(entries: impl Iterator<Item = &'a Entry>) -> HashSet<(Layer, u128)> {
    let (mut best, mut out): (HashMap<_, &Entry>, _) = (HashMap::new(), HashSet::new());
    for e in entries {
        let c = &e.choice;
        let slot = (&c.key, c.identity.sum(), c.source, e.layer);
        match best.get(&slot) {
            Some(held) if rank(held, &c.identity) >= rank(e, &c.identity) => _ = out.insert((e.layer, e.sum)),
            held => {
                out.extend(held.map(|h| (h.layer, h.sum)));
                best.insert(slot, e);
            }
        }
    }
    out
}

/// One record in a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The record and where it was found.
    pub entry: Entry,
    /// Whether a better record of the same key, identity and source replaces it.
    pub superseded: bool,
}

/// Every choice of every layer, by key, layer and time.
pub fn list(store: &Store) -> Vec<Listed> {
    let snapshot = store.snapshot();
    let replaced = superseded(snapshot.entries());
    let mut all: Vec<&Entry> = snapshot.entries().collect();
    all.sort_by_key(|e| (&e.choice.key, e.layer, e.choice.written_ms, e.sum));
    let listed = |e: &Entry| Listed { entry: e.clone(), superseded: replaced.contains(&(e.layer, e.sum)) };
    all.into_iter().map(listed).collect()
}

/// One record with its evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The record and where it was found.
    pub entry: Entry,
    /// Its evidence, when it names one that can be read.
    pub evidence: Option<Evidence>,
}

/// Every choice of `key` with its evidence, newest first.
pub fn show(store: &Store, key: &Key) -> Vec<Shown> {
    let snapshot = store.snapshot();
    let mut entries: Vec<&Entry> = snapshot.of_key(key).collect();
    entries.sort_by_key(|e| std::cmp::Reverse((e.choice.written_ms, e.sum)));
    entries.into_iter().map(|e| Shown { entry: e.clone(), evidence: find_evidence(store, &e.choice) }).collect()
}

fn find_evidence(store: &Store, choice: &Choice) -> Option<Evidence> {
    let name = u128::from_str_radix(choice.evidence.as_deref()?, 16).ok()?;
    if let Some(held) = store.evidence.get(&name) {
        return Some(held.clone());
    }
    let mut found = None;
    for root in [&store.user, &store.system].into_iter().flatten() {
        let dir = root.join(choice.identity.silicon.hash16()).join(Kind::Evidence.folder());
        // Unreadable evidence is shown as absent; `verify` tells what is wrong with the files.
        let _ = shard::read_dir(&dir, Kind::Evidence, &mut |framed, _| {
            if framed.sum == name && found.is_none() {
                found = Some(frame::parse(framed)?);
            }
            Ok(())
        });
    }
    found
}

/// One record that a lookup weighed.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// The record and where it was found.
    pub entry: Entry,
    /// How far it could be trusted; for a record of other silicon, a miss.
    pub tier: Tier,
    /// Why its config may not be used, if so.
    pub illegal: Option<String>,
}

/// The whole story of one lookup.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The answer.
    pub tier: Tier,
    /// The record behind it.
    pub record: Option<Choice>,
    /// The record behind it or, on a miss, the nearest one, with its evidence.
    pub nearest: Option<Shown>,
    /// Every record of the key, best first.
    pub considered: Vec<Considered>,
}

/// Why a lookup answers as it does: the tier, the record, and on anything but an exact hit the fields that differ.
pub fn why(store: &Store, key: &Key, identity: &Identity, legal: &dyn Fn(&Config) -> Result<(), String>) -> Explained {
    let snapshot = store.snapshot();
    let answer = snapshot.lookup_legal(key, identity, legal);
    let weigh = |e: &Entry| Considered {
        tier: if usable(e, identity) {
            tier(e, identity)
        } else {
            Tier::Miss { why: super::Why::OtherSilicon(e.choice.identity.diff(identity)) }
        },
        illegal: legal(&e.choice.config).err(),
        entry: e.clone(),
    };
    let ranked = snapshot.ranked(key, identity);
    let nearest = match answer.record {
        Some(record) => ranked.iter().find(|e| usable(e, identity) && e.choice == *record),
        None => ranked.first(),
    };
    let nearest = nearest.map(|e| Shown { entry: Entry::clone(e), evidence: find_evidence(store, &e.choice) });
    let considered = ranked.into_iter().map(weigh).collect();
    Explained { tier: answer.tier, record: answer.record.cloned(), nearest, considered }
}

/// How whole one layer's files are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The layer's root.
    pub root: PathBuf,
    /// Shards read, and those among them that a living writer holds.
    pub shards: u64,
    /// Shards that a living writer holds.
    pub shards_live: u64,
    /// Choices that hold up.
    pub choices: u64,
    /// Evidence records that hold up.
    pub evidence: u64,
    /// Damaged lines.
    pub damaged: u64,
    /// Lines of another layout version.
    pub foreign: u64,
    /// Choices whose evidence is not there.
    pub evidence_missing: u64,
    /// Damaged shards that a compaction set aside.
    pub set_aside: u64,
    /// One message a shard in trouble.
    pub warnings: Vec<Warning>,
}

/// Reads every line of the system and user layers and counts what holds up.
pub fn verify(store: &Store) -> Result<Vec<Verified>, Error> {
    [&store.system, &store.user].into_iter().flatten().map(|root| verify_root(root)).collect()
}

fn verify_root(root: &Path) -> Result<Verified, Error> {
    let mut out = Verified { root: root.to_path_buf(), ..Verified::default() };
    for silicon in shard::list_silicon(root).map_err(|e| io_error("listing", root, &e))? {
        let (mut named, mut held) = (Vec::new(), HashSet::new());
        for kind in Kind::ALL {
            let dir = root.join(&silicon).join(kind.folder());
            let reports = shard::read_dir(&dir, kind, &mut |framed, _| {
                match kind {
                    Kind::Choice => {
                        let choice: Choice = frame::parse(framed)?;
                        choice.check().map_err(|e| frame::Fault::Damaged(e.to_string()))?;
                        named.extend(choice.evidence.filter(|_| choice.source == Source::Tuned));
                    }
                    Kind::Evidence => {
                        let _: Evidence = frame::parse(framed)?;
                        held.insert(format!("{:032x}", framed.sum));
                    }
                }
                Ok(())
            });
            for (path, report) in reports.map_err(|e| io_error("reading", &dir, &e))? {
                out.shards += 1;
                out.shards_live += u64::from(matches!(shard::writer_of(&path), Writer::Busy));
                out.damaged += report.damaged;
                out.foreign += report.foreign;
                out.warnings.extend(report.warning(&path));
                match kind {
                    Kind::Choice => out.choices += report.records,
                    Kind::Evidence => out.evidence += report.records,
                }
            }
            out.set_aside += std::fs::read_dir(dir.join(DAMAGED)).map_or(0, |d| d.count() as u64);
        }
        out.evidence_missing += named.iter().filter(|n| !held.contains(*n)).count() as u64;
    }
    Ok(out)
}
