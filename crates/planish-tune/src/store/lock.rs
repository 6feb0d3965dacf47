//! `tune.lock`: a frozen set of choices with a digest, and the modes that decide without measuring.
//!
//! A header line, `{"planish_lock":1,"choices":N,"digest":"<64 hex>"}`, then one choice a line in key order. The digest is
//! the SHA-256 of the lines after the header, so two processes that print the same digest launch the same configurations.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::Error;
use super::frame;
use super::pins::Pins;
use super::record::{Identity, Key, State, clip};
use super::snapshot::{Lookup, Snapshot, Tier};
use super::transfer::{publish_unless_emptying, read_bounded, sha256_hex};
use crate::config::Config;

/// Largest lock file that is read, in bytes.
pub const LOCK_BYTES_MAX: u64 = 16 << 20;

/// Longest line of a lock file, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The config of one key, and what it was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// What is launched.
    pub key: Key,
    /// The configuration to use.
    pub config: Config,
    /// Hash of the kernel's final text, constants and flags.
    pub kernel: String,
    /// Hash of the silicon.
    pub silicon: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    planish_lock: u32,
    choices: u64,
    digest: String,
}

/// A set of choices that cannot change any more; what a recorded sequence is built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    choices: BTreeMap<Key, Locked>,
    digest: String,
}

fn canonical(choices: &BTreeMap<Key, Locked>) -> String {
    let line = |l: &Locked| serde_json::to_string(l).expect("a lock line is strings and numbers") + "\n";
    choices.values().map(line).collect()
}

impl Frozen {
    /// Freezes one config per key; of two for one key the later stands.
    pub fn new(choices: impl IntoIterator<Item = Locked>) -> Self {
        let choices: BTreeMap<Key, Locked> = choices.into_iter().map(|l| (l.key.clone(), l)).collect();
        let digest = sha256_hex(canonical(&choices).as_bytes());
        Frozen { choices, digest }
    }

    /// This set with `more`, which stand where both have a key.
    pub fn with(&self, more: impl IntoIterator<Item = Locked>) -> Self {
        Frozen::new(self.choices.values().cloned().chain(more))
    }

    /// Sixty-four hexadecimal digits that stand for the whole set.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The frozen choice of `key`.
    pub fn get(&self, key: &Key) -> Option<&Locked> {
        self.choices.get(key)
    }

    /// All choices in key order.
    pub fn iter(&self) -> impl Iterator<Item = &Locked> {
        self.choices.values()
    }

    /// The text of the lock file.
    pub fn to_text(&self) -> String {
        let (choices, digest) = (self.choices.len() as u64, self.digest.clone());
        let header = Header { planish_lock: 1, choices, digest };
        let header = serde_json::to_string(&header).expect("a header is strings and numbers");
        format!("{header}\n{}", canonical(&self.choices))
    }

    /// Reads the text of a lock file; any deviation is an error that names the field and the line.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        if text.len() as u64 > LOCK_BYTES_MAX {
            return Err(Error::new(format!("lock: {} bytes, at most {LOCK_BYTES_MAX} are read", text.len())));
        }
        let text = std::str::from_utf8(text)
            .map_err(|e| Error::new(format!("lock: not UTF-8 at byte {}", e.valid_up_to())))?;
        let (first, body) = text.split_once('\n').ok_or_else(|| Error::new("lock header: the line is cut off"))?;
        let json = |line: usize, what: String| Error::new(format!("lock line {line}: {what}"));
        let header: Header = frame::from_json(first).map_err(|e| json(1, e))?;
        if header.planish_lock != 1 {
            return Err(Error::new(format!("planish_lock: layout version {}, 1 is read", header.planish_lock)));
        }
        let digest = sha256_hex(body.as_bytes());
        if digest != header.digest {
            let said = clip(&header.digest);
            return Err(Error::new(format!("digest: the choices have {digest}, the header says {said:?}"))
                .hint("a lock is not edited by hand; write it again"));
        }
        let mut choices = BTreeMap::new();
        for (i, line) in body.lines().enumerate() {
            if line.len() > LINE_BYTES_MAX {
                return Err(Error::new(format!("lock line {}: longer than {LINE_BYTES_MAX} bytes", i + 2)));
            }
            let locked: Locked = frame::from_json(line).map_err(|e| json(i + 2, e))?;
            choices.insert(locked.key.clone(), locked);
        }
        if choices.len() as u64 != header.choices {
            let found = choices.len();
            return Err(Error::new(format!("choices: {found} keys found, the header says {}", header.choices)));
        }
        if canonical(&choices) != body {
            return Err(Error::new("choices: not in key order, or not in canonical text"));
        }
        Ok(Frozen { choices, digest })
    }

    /// Reads and checks the lock file at `path`.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = read_bounded(path, LOCK_BYTES_MAX)?;
        Frozen::parse(&text).map_err(|e| e.within(path))
    }

    /// Writes the lock file at `path` at once; an empty set does not replace a file that holds something.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        publish_unless_emptying(path, self.to_text().as_bytes(), self.choices.len())
    }
}

/// Where configurations come from in this run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// From the store, else the default.
    #[default]
    Stored,
    /// From a lock file; a key it lacks is an error.
    Replay(Frozen),
    /// The default, always.
    Off,
    /// Pinned ops at their defaults with the pinned parameters; other ops from the store, else the default.
    Pin(Pins),
}

/// Why a configuration is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store's answer, exact or prior.
    Stored(Tier),
    /// The store's answer for this key, the nearest in the same bucket.
    Nearby(Key),
    /// The lock file; the fields of the running identity that it was not measured on.
    Replayed(Vec<&'static str>),
    /// Tuning is off, or the store has nothing to use (its reason).
    Default(Option<super::Why>),
    /// Pinned by the user.
    Pinned,
}

/// What is to be decided: a key, the identity it runs under, and the default to fall back on.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What is launched.
    pub key: &'a Key,
    /// Under which identity.
    pub identity: &'a Identity,
    /// The configuration when nothing better is known.
    pub default: &'a Config,
}

impl Mode {
    /// The configuration to launch, and why.
    ///
    /// # Errors
    /// When a lock file lacks the key, or a locked or pinned configuration is illegal: neither falls back silently.
    pub fn decide(
        &self,
        snapshot: &Snapshot,
        ask: &Question<'_>,
        legal: &dyn Fn(&Config) -> Result<(), String>,
    ) -> Result<(Config, Origin), Error> {
        let Question { key, identity, default } = *ask;
        let demand = |config: &Config, from: &str| {
            legal(config)
                .map_err(|verdict| Error::new(format!("{key}: {from} config {config} is not legal: {verdict}")))
        };
        if let Mode::Pin(pins) = self
            && let Some(config) = pins.config(key.op(), default)
        {
            demand(&config, "the pinned")?;
            return Ok((config, Origin::Pinned));
        }
        match self {
            Mode::Off => Ok((default.clone(), Origin::Default(None))),
            Mode::Replay(frozen) => {
                let hint = "tune again and write a new lock, or run without --replay";
                let missing = || Error::new(format!("{key}: not in the lock {}", frozen.digest)).hint(hint);
                let locked = frozen.get(key).ok_or_else(missing)?;
                demand(&locked.config, "the locked")?;
                let mut differs = Vec::new();
                differs.extend((locked.silicon != identity.silicon.hash16()).then_some("silicon"));
                differs.extend((locked.kernel != identity.kernel).then_some("kernel"));
                Ok((locked.config.clone(), Origin::Replayed(differs)))
            }
            Mode::Stored | Mode::Pin(_) => {
                let found = snapshot.lookup_legal(key, identity, legal);
                if found.tier != Tier::Exact
                    && let Some(near) = snapshot.nearby(key, identity, legal)
                {
                    // Where the neighbour kept its default, this key keeps its own.
                    let config = if near.state == State::Tuned { &near.config } else { default };
                    return Ok((config.clone(), Origin::Nearby(near.key.clone())));
                }
                Ok(match found {
                    Lookup { tier: Tier::Miss { why }, .. } => (default.clone(), Origin::Default(Some(why))),
                    Lookup { tier, record: Some(choice) } => (choice.config.clone(), Origin::Stored(tier)),
                    Lookup { record: None, .. } => unreachable!("a lookup that is no miss has a record"),
                })
            }
        }
    }
}
