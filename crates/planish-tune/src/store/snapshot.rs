//! The choices in memory: a ranked list per key, looked up without a system call.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::index::Index;
use super::record::{Choice, Identity, Key, Silicon, Source, State};
use crate::config::Config;

/// Where a record was found; a later layer wins over an earlier one of equal standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Shipped with the program.
    Builtin,
    /// The machine's shared store; never written.
    System,
    /// The user's store.
    User,
    /// Only this process, because nothing could be written.
    Memory,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Builtin => "builtin",
            Layer::System => "system",
            Layer::User => "user",
            Layer::Memory => "memory",
        })
    }
}

/// A choice, where it was found, and its checksum (the record's name).
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where it was found.
    pub layer: Layer,
    /// The record's name: the checksum of its text.
    pub sum: u128,
    /// The record.
    pub choice: Choice,
}

/// How far a found record can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Tuned on this silicon under this very identity.
    Exact,
    /// A starting point to spot-check: these fields differ (`source` when it was not tuned here).
    Prior {
        /// Field names, as `Identity::diff` gives them.
        differs: Vec<String>,
    },
    /// Nothing to use.
    Miss {
        /// The reason.
        why: Why,
    },
}

/// Why a lookup found nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// No record of the op at this shape.
    NoRecord,
    /// Tuned only on other silicon; these fields of the nearest record differ.
    OtherSilicon(Vec<String>),
    /// There are records, but none is legal any more; the best one's config and the verdict on it.
    Illegal {
        /// The best record's configuration.
        config: Config,
        /// What the check said.
        verdict: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoRecord => f.write_str("no record"),
            Why::OtherSilicon(fields) => write!(f, "tuned only on other silicon ({} differ)", fields.join(", ")),
            Why::Illegal { config, verdict } => write!(f, "{config} is no longer legal: {verdict}"),
        }
    }
}

/// The answer to a lookup.
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    /// How far to trust it.
    pub tier: Tier,
    /// The record; `None` exactly on a miss.
    pub record: Option<&'a Choice>,
}

/// All choices of all layers, immutable once handed out.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The records of each key, in the order in which keys came.
    groups: Vec<Group>,
    /// The texts of all keys, one behind the other: near each other, where those of the records lie all over memory.
    texts: String,
    /// The group of each key.
    index: Index,
    /// The builds on machines that records are of, each once; there are few, so one is found by comparing.
    bases: Vec<Base>,
    /// The candidate sets that records are of, each once.
    candidates: Vec<String>,
    /// Where each of them lies.
    by_candidates: HashMap<String, u32>,
    /// The keys of each bucket.
    by_bucket: HashMap<Key, Vec<Key>>,
    sums: HashSet<(Layer, u128)>,
    silicon: HashSet<Shared>,
}

/// The records of a key: what a lookup needs to decide is in one cache line, the text of the key aside.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Group {
    /// Where the key's text begins and ends.
    text: (u32, u32),
    first: Held,
    more: Vec<Held>,
}

impl Group {
    fn text<'t>(&self, texts: &'t str) -> &'t str {
        &texts[self.text.0 as usize..self.text.1 as usize]
    }

    fn held(&self) -> impl Iterator<Item = &Held> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.held().map(|held| &*held.entry)
    }
}

/// A record, and by their numbers what it was tuned under: a lookup need not read a cold identity to compare it.
#[derive(Clone, Debug)]
struct Held {
    /// The build on a machine on which it was tuned; `BROUGHT` for a record from elsewhere.
    base: u32,
    /// The candidate set.
    candidates: u32,
    entry: Arc<Entry>,
}

/// The base of records that were not tuned under the identity that they name.
const BROUGHT: u32 = u32::MAX;

/// Numbers of bases and candidate sets, and places in all texts, are short.
fn short(n: usize) -> u32 {
    u32::try_from(n).ok().filter(|n| *n != BROUGHT).expect("fewer than four billion")
}

/// An identity without its candidates, which differ from kernel to kernel.
#[derive(Clone, Debug)]
struct Base(Identity);

impl Base {
    fn is_of(&self, identity: &Identity) -> bool {
        let Identity { silicon, driver, toolchain, kernel, candidates: _, policy } = identity;
        let b = &self.0;
        b.kernel == *kernel
            && b.policy == *policy
            && b.toolchain == *toolchain
            && b.driver == *driver
            && b.silicon == *silicon
    }
}

/// A silicon as a set member, so that equal ones are held once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shared(Arc<Silicon>);

impl std::hash::Hash for Shared {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.fields.hash(state);
    }
}

/// Whether the record was measured on this silicon by this program, the label aside.
fn tuned_here(entry: &Entry, identity: &Identity) -> bool {
    entry.choice.source == Source::Tuned && entry.choice.identity.silicon == identity.silicon
}

/// The order of two records of one key under `identity`, higher is better; equal only for one record in one layer.
pub(super) fn rank(entry: &Entry, identity: &Identity) -> impl Ord + use<> {
    let c = &entry.choice;
    let versions = Reverse(c.identity.version_differences(identity));
    (tuned_here(entry, identity), c.identity.silicon == identity.silicon, versions, standing(entry))
}

/// The order of two records of one key and identity.
fn standing(entry: &Entry) -> impl Ord + use<> {
    let c = &entry.choice;
    (entry.layer, c.state != State::Undecided, c.evidence.is_some(), c.written_ms, entry.sum)
}

/// Whether the record may be used at all: tuned elsewhere and not brought in on purpose is another machine's business.
pub(super) fn usable(entry: &Entry, identity: &Identity) -> bool {
    entry.choice.source != Source::Tuned || tuned_here(entry, identity)
}

pub(super) fn tier(entry: &Entry, identity: &Identity) -> Tier {
    let c = &entry.choice;
    if c.source == Source::Tuned && c.identity == *identity {
        return Tier::Exact;
    }
    let mut differs = c.identity.diff(identity);
    if c.source != Source::Tuned {
        differs.push("source".to_owned());
    }
    Tier::Prior { differs }
}

impl Snapshot {
    /// Adds a choice found in `layer`; false when the layer already has that very record.
    pub(super) fn insert(&mut self, layer: Layer, sum: u128, mut choice: Choice) -> bool {
        if !self.sums.insert((layer, sum)) {
            return false;
        }
        let shared = Shared(choice.identity.silicon.clone());
        match self.silicon.get(&shared) {
            // The label is provenance, so records of one silicon under two labels keep their own.
            Some(known) if known.0.label == choice.identity.silicon.label => {
                choice.identity.silicon = known.0.clone();
            }
            Some(_) => {}
            None => {
                self.silicon.insert(shared);
            }
        }
        let base = match choice.source {
            Source::Tuned => self.base_of(&choice.identity).unwrap_or_else(|| {
                self.bases.push(Base(choice.identity.clone()));
                short(self.bases.len() - 1)
            }),
            Source::Imported | Source::Builtin => BROUGHT,
        };
        let candidates = match self.by_candidates.get(&choice.identity.candidates) {
            Some(known) => *known,
            None => {
                self.candidates.push(choice.identity.candidates.clone());
                let number = short(self.candidates.len() - 1);
                self.by_candidates.insert(choice.identity.candidates.clone(), number);
                number
            }
        };
        self.hold(Held { base, candidates, entry: Arc::new(Entry { layer, sum, choice }) });
        true
    }

    fn hold(&mut self, held: Held) {
        let key = &held.entry.choice.key;
        if let Some(group) = self.find(key) {
            self.groups[group].more.push(held);
            return;
        }
        if let Some(bucket) = key.bucket() {
            self.by_bucket.entry(bucket).or_default().push(key.clone());
        }
        let start = self.texts.len();
        self.texts.push_str(key.text());
        let (groups, texts, hash) = (&self.groups, &self.texts, self.index.hash(key.text()));
        self.index.insert(hash, groups.len(), |index, g| index.hash(groups[g].text(texts)));
        let text = (short(start), short(self.texts.len()));
        self.groups.push(Group { text, first: held, more: Vec::new() });
    }

    /// The number of the key's group.
    fn find(&self, key: &Key) -> Option<usize> {
        let is_it = |g: usize| self.groups[g].text(&self.texts) == key.text();
        self.index.find(self.index.hash(key.text()), is_it)
    }

    fn group(&self, key: &Key) -> Option<&Group> {
        self.find(key).map(|g| &self.groups[g])
    }

    fn base_of(&self, identity: &Identity) -> Option<u32> {
        self.bases.iter().position(|b| b.is_of(identity)).map(short)
    }

    /// Whether `layer` has the record of that name.
    pub(super) fn has(&self, layer: Layer, sum: u128) -> bool {
        self.sums.contains(&(layer, sum))
    }

    /// Number of records, duplicates across layers counted.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The best record for `key` under `identity`, every stored config taken as legal.
    pub fn lookup(&self, key: &Key, identity: &Identity) -> Lookup<'_> {
        self.lookup_legal(key, identity, &|_| Ok(()))
    }

    /// The best record whose config `legal` accepts; an illegal one yields to the next best.
    ///
    /// Makes no system call, and allocates only to name differences.
    pub fn lookup_legal(
        &self,
        key: &Key,
        identity: &Identity,
        legal: &dyn Fn(&Config) -> Result<(), String>,
    ) -> Lookup<'_> {
        let miss = |why| Lookup { tier: Tier::Miss { why }, record: None };
        let Some(group) = self.group(key) else { return miss(Why::NoRecord) };
        if let Some(best) = self.exact(group, identity)
            && legal(&best.choice.config).is_ok()
        {
            return Lookup { tier: Tier::Exact, record: Some(&best.choice) };
        }
        let Some(best) = group.entries().filter(|e| usable(e, identity)).max_by_key(|e| rank(e, identity)) else {
            let nearest = group.entries().max_by_key(|e| rank(e, identity)).expect("a group has a first record");
            return miss(Why::OtherSilicon(nearest.choice.identity.diff(identity)));
        };
        let Err(verdict) = legal(&best.choice.config) else {
            return Lookup { tier: tier(best, identity), record: Some(&best.choice) };
        };
        let next =
            self.ranked(key, identity).into_iter().find(|e| usable(e, identity) && legal(&e.choice.config).is_ok());
        match next {
            Some(e) => Lookup { tier: tier(e, identity), record: Some(&e.choice) },
            None => miss(Why::Illegal { config: best.choice.config.clone(), verdict }),
        }
    }

    /// The best of the records that were tuned here under this very identity: none of another identity ranks above it.
    fn exact<'s>(&'s self, group: &'s Group, identity: &Identity) -> Option<&'s Entry> {
        let here = self.base_of(identity)?;
        let is_exact =
            |held: &&Held| held.base == here && self.candidates[held.candidates as usize] == identity.candidates;
        let exact = || group.held().filter(is_exact).map(|held| &*held.entry);
        match exact().nth(1) {
            // One alone need not be read to be compared.
            None => exact().next(),
            Some(_) => exact().max_by_key(|e| standing(e)),
        }
    }

    /// The record of the nearest shape in the bucket of `key` that was measured here, under an identity that differs in
    /// nothing but the candidates of its own shape; its config is legal for `key`, by `legal`.
    ///
    /// `None` outside the edges of all buckets, and where nothing of the bucket was tuned.
    pub fn nearby(
        &self,
        key: &Key,
        identity: &Identity,
        legal: &dyn Fn(&Config) -> Result<(), String>,
    ) -> Option<&Choice> {
        let mut others: Vec<&Key> = self.by_bucket.get(&key.bucket()?)?.iter().filter(|k| *k != key).collect();
        others.sort_by(|a, b| key.distance(a).cmp(&key.distance(b)));
        others.into_iter().find_map(|other| {
            let found = self.lookup_legal(other, identity, legal);
            let measured_here = match &found.tier {
                Tier::Exact => true,
                Tier::Prior { differs } => matches!(&differs[..], [only] if only == "candidates"),
                Tier::Miss { .. } => false,
            };
            found.record.filter(|_| measured_here)
        })
    }

    /// Every record of `key`, best first under `identity`.
    pub fn ranked(&self, key: &Key, identity: &Identity) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.of_key(key).collect();
        entries.sort_by_cached_key(|e| Reverse(rank(e, identity)));
        entries
    }

    /// Every record of `key`, in the order read.
    pub(super) fn of_key(&self, key: &Key) -> impl Iterator<Item = &Entry> {
        self.group(key).into_iter().flat_map(Group::entries)
    }

    /// Every record of every layer, by key in the order in which keys came.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.groups.iter().flat_map(Group::entries)
    }
}
