//! What the store keeps: a key, the identity under which it was measured, the choice made and its evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::error::Error;
use crate::config::{Config, Value};

/// The first 128 bits of the SHA-256 of `parts`, each preceded by its length.
pub(super) fn sum128(parts: &[&[u8]]) -> u128 {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let mut first = [0u8; 16];
    first.copy_from_slice(&digest[..16]);
    u128::from_be_bytes(first)
}

/// Milliseconds since 1970; 0 when the clock is before it.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// What is being launched: an op and the canonical text of its shape, `name=value,name=value` in name order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "RawKey")]
pub struct Key {
    /// Both with a space between them, which neither contains: one piece of memory, and the order of (op, shape).
    text: Box<str>,
    op_bytes: usize,
}

#[derive(Deserialize)]
struct RawKey {
    op: String,
    shape: String,
}

impl TryFrom<RawKey> for Key {
    type Error = Error;
    fn try_from(raw: RawKey) -> Result<Self, Error> {
        Key::parse(&raw.op, &raw.shape)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut key = to.serialize_struct("Key", 2)?;
        key.serialize_field("op", self.op())?;
        key.serialize_field("shape", self.shape())?;
        key.end()
    }
}

/// Whether `text` may name an op, a dimension or a value: 1 to 64 of `a-z A-Z 0-9 _ . - +`.
fn is_word(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.-+".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(legal)
}

impl Key {
    /// The key of `op` at the named dimensions, in any order.
    ///
    /// # Panics
    /// If a name or value is not 1 to 64 of `a-z A-Z 0-9 _ . - +`, or a name occurs twice: keys are made by code.
    pub fn new<'a>(op: &str, dims: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let mut parts: Vec<_> = dims.into_iter().map(|(name, value)| (name, value.to_string())).collect();
        parts.sort();
        let shape = parts.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
        match Key::parse(op, &shape) {
            Ok(key) => key,
            Err(e) => panic!("{e}"),
        }
    }

    /// The key written as `op` and `shape`; refuses text that is not canonical.
    pub fn parse(op: &str, shape: &str) -> Result<Self, Error> {
        if !is_word(op) {
            return Err(Error::new(format!("op: {:?} is not 1 to 64 of a-z A-Z 0-9 _ . - +", clip(op))));
        }
        let mut last = "";
        for part in shape.split(',').filter(|_| !shape.is_empty()) {
            let legal = part.split_once('=').filter(|(name, value)| is_word(name) && is_word(value));
            let Some((name, _)) = legal else {
                return Err(Error::new(format!("shape: {:?} is not name=value", clip(part))));
            };
            if name <= last {
                return Err(Error::new(format!("shape: {name} does not follow {last} in name order")));
            }
            last = name;
        }
        Ok(Key { text: format!("{op} {shape}").into(), op_bytes: op.len() })
    }

    /// The op's name.
    pub fn op(&self) -> &str {
        &self.text[..self.op_bytes]
    }

    /// The canonical shape text; empty for an op without dimensions.
    pub fn shape(&self) -> &str {
        &self.text[self.op_bytes + 1..]
    }

    /// Op and shape as one text, different for different keys.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = if self.shape().is_empty() { "-" } else { self.shape() };
        write!(f, "{} {shape}", self.op())
    }
}

/// At most the first 60 characters of outside text, for messages.
pub(super) fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The chip, by measured or queried facts that change which configuration is best.
///
/// The label is shown and never compared; an index or a bus address is not a fact of silicon and has no place here.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Silicon {
    /// The marketing name, for people.
    pub label: String,
    /// Named facts: architecture, units, caches, slice, bus width.
    pub fields: BTreeMap<String, String>,
}

impl Silicon {
    /// Field names that would tie records to a label or a slot instead of the silicon.
    const NOT_SILICON: [&str; 7] = ["label", "name", "index", "ordinal", "uuid", "serial", "pci"];

    /// The silicon with these facts.
    ///
    /// # Panics
    /// If a field is called `label`, `name`, `index`, `ordinal`, `uuid`, `serial` or `pci`.
    pub fn new<N: Into<String>, V: fmt::Display>(label: &str, fields: impl IntoIterator<Item = (N, V)>) -> Self {
        let fields: BTreeMap<String, String> = fields.into_iter().map(|(n, v)| (n.into(), v.to_string())).collect();
        for banned in Self::NOT_SILICON {
            assert!(!fields.contains_key(banned), "silicon field {banned} names a label or a slot, not the silicon");
        }
        Silicon { label: label.to_owned(), fields }
    }

    /// Sixteen hexadecimal digits that name the silicon; the label has no part in them.
    pub fn hash16(&self) -> String {
        let parts: Vec<&[u8]> = self.fields.iter().flat_map(|(n, v)| [n.as_bytes(), v.as_bytes()]).collect();
        format!("{:016x}", (sum128(&parts) >> 64) as u64)
    }
}

/// Same facts; the label does not count.
impl PartialEq for Silicon {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl Eq for Silicon {}

/// Everything that decides whether a measurement still holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The chip.
    pub silicon: Arc<Silicon>,
    /// Driver version; empty where there is none.
    pub driver: String,
    /// Compiler version and target features.
    pub toolchain: String,
    /// Hash of the kernel's final text, constants and flags.
    pub kernel: String,
    /// Hash of the candidate set: parameters, values, constraints, default.
    pub candidates: String,
    /// Measurement policy: cache state, submission path, threads.
    pub policy: String,
}

/// A field in which a record's identity differs from this machine's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Such as `silicon.l2_kib` or `kernel`.
    pub field: String,
    /// What the record has; `None` for a fact of silicon that it lacks.
    pub stored: Option<String>,
    /// What this machine has; `None` for a fact of silicon that it lacks.
    pub here: Option<String>,
}

impl Identity {
    /// The fields after the silicon, by name, in the order in which they are reported.
    fn versions(&self) -> [(&'static str, &str); 5] {
        [
            ("driver", &self.driver),
            ("toolchain", &self.toolchain),
            ("kernel", &self.kernel),
            ("candidates", &self.candidates),
            ("policy", &self.policy),
        ]
    }

    /// The fields in which this identity, that of a record, differs from `here`: silicon by name, then the versions.
    pub fn changes(&self, here: &Identity) -> Vec<Change> {
        let (a, b) = (&self.silicon.fields, &here.silicon.fields);
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let silicon = names.into_iter().filter(|n| a.get(*n) != b.get(*n)).map(|n| Change {
            field: format!("silicon.{n}"),
            stored: a.get(n).cloned(),
            here: b.get(n).cloned(),
        });
        let versions = self.versions().into_iter().zip(here.versions()).filter(|(x, y)| x != y);
        let version = |((name, stored), (_, here)): ((&str, &str), (&str, &str))| Change {
            field: name.to_owned(),
            stored: Some(stored.to_owned()),
            here: Some(here.to_owned()),
        };
        silicon.chain(versions.map(version)).collect()
    }

    /// Names of the fields in which the two differ, such as `silicon.l2_kib` and `kernel`; empty when equal.
    pub fn diff(&self, other: &Identity) -> Vec<String> {
        self.changes(other).into_iter().map(|c| c.field).collect()
    }

    /// A name for the identity; the label has no part in it.
    pub(super) fn sum(&self) -> u128 {
        let silicon = self.silicon.hash16();
        let versions = self.versions().map(|(_, v)| v.as_bytes());
        let mut parts = vec![silicon.as_bytes()];
        parts.extend(versions);
        sum128(&parts)
    }

    /// Number of version fields (all but the silicon) in which the two differ; allocates nothing.
    pub(super) fn version_differences(&self, other: &Identity) -> usize {
        self.versions().iter().zip(other.versions()).filter(|(x, y)| **x != *y).count()
    }
}

/// Where a choice comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Admitted and timed on the machine its identity names.
    Tuned,
    /// Brought in from a file: a prior until confirmed here.
    Imported,
    /// Shipped with the program: a prior until confirmed here.
    Builtin,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Tuned => "tuned",
            Source::Imported => "imported",
            Source::Builtin => "builtin",
        })
    }
}

/// What tuning concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The config beats the default beyond noise.
    Tuned,
    /// Nothing beat the default; the config is the default.
    DefaultKept,
    /// The measurements did not settle it; the config is the default.
    Undecided,
    /// The config won alone but the model ran no faster; the config is the default.
    NoEndToEndEffect,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Tuned => "tuned",
            State::DefaultKept => "default kept",
            State::Undecided => "undecided",
            State::NoEndToEndEffect => "no end-to-end effect",
        })
    }
}

/// Time of the default over time of the config, with its confidence bounds; above 1 is faster than the default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Lower confidence bound.
    pub lo: f64,
    /// Point estimate.
    pub mid: f64,
    /// Upper confidence bound.
    pub hi: f64,
}

/// The small record: what a launch needs, and where to find why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// What is launched.
    pub key: Key,
    /// Under which identity it was measured.
    pub identity: Identity,
    /// The configuration to use.
    pub config: Config,
    /// Where the record comes from.
    pub source: Source,
    /// What tuning concluded.
    pub state: State,
    /// Speed over the default.
    pub ratio: Ratio,
    /// Median time of one execution in nanoseconds.
    pub ns_median: f64,
    /// When it was written, in milliseconds since 1970.
    pub written_ms: u64,
    /// Name of the evidence record: what `Store::append_evidence` returned.
    pub evidence: Option<String>,
}

impl Choice {
    /// Refuses numbers that are not finite, positive and ordered, naming the field.
    pub fn check(&self) -> Result<(), Error> {
        let Ratio { lo, mid, hi } = self.ratio;
        let numbers = [("ratio.lo", lo), ("ratio.mid", mid), ("ratio.hi", hi), ("ns_median", self.ns_median)];
        for (field, value) in numbers {
            if !value.is_finite() || value <= 0.0 {
                return Err(Error::new(format!("{}: {field} is {value}, not a positive number", self.key)));
            }
        }
        if !(lo <= mid && mid <= hi) {
            return Err(Error::new(format!("{}: ratio {mid} is outside its bounds {lo} and {hi}", self.key)));
        }
        Ok(())
    }
}

/// The bulky record: samples, rejections and whatever else lets a reader judge a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was measured.
    pub key: Key,
    /// Under which identity.
    pub identity: Identity,
    /// When it was written, in milliseconds since 1970.
    pub written_ms: u64,
    /// Samples, rejections, environment; the store does not look inside.
    pub data: serde_json::Value,
}
