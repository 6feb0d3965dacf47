//! The store: layers read once into a snapshot, and appends that reach the disk or, failing that, memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compact::publish_shard;
use super::error::{Error, Warning, io_error};
use super::frame::{self, Kind};
use super::record::{Choice, Evidence, Identity, Key, Source};
use super::shard::{self, ShardWriter};
use super::snapshot::{Layer, Lookup, Snapshot};
use crate::config::Config;
use crate::words::counted;

/// Warnings kept; further ones are only counted, so that a ruined store does not fill memory.
const WARNINGS_MAX: usize = 100;

/// Where the store looks, weakest first; what is absent is skipped.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// Choices shipped with the program; they become priors with the source `builtin`.
    pub builtin: Vec<Choice>,
    /// Root of the machine's shared store, read only.
    pub system: Option<PathBuf>,
    /// Root of the user's store, read and appended to; `None` keeps everything in memory.
    pub user: Option<PathBuf>,
}

/// What an append achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The record is on disk.
    Disk,
    /// The record lives as long as this store: nothing could be written, and a warning said so once.
    Memory,
    /// The store already has that very record.
    Known,
}

/// Choices of all layers in memory, and the open shards of this writer.
#[derive(Debug)]
pub struct Store {
    pub(super) system: Option<PathBuf>,
    pub(super) user: Option<PathBuf>,
    snapshot: Arc<Snapshot>,
    writers: BTreeMap<(String, Kind), ShardWriter>,
    /// Evidence that could not be written.
    pub(super) evidence: BTreeMap<u128, Evidence>,
    degraded: bool,
    warnings: Vec<Warning>,
    warnings_dropped: u64,
}

/// Lines without their newline, by silicon and record name.
type Batch = BTreeMap<String, BTreeMap<u128, Vec<u8>>>;

fn batch_line(batch: &mut Batch, silicon: String, sum: u128, mut line: Vec<u8>) {
    line.pop();
    batch.entry(silicon).or_default().insert(sum, line);
}

impl Store {
    /// Reads the layers; trouble is in `warnings`, never an error.
    pub fn open(layers: Layers) -> Store {
        let mut store = Store {
            system: layers.system,
            user: layers.user,
            snapshot: Arc::default(),
            writers: BTreeMap::new(),
            evidence: BTreeMap::new(),
            degraded: false,
            warnings: Vec::new(),
            warnings_dropped: 0,
        };
        let mut snapshot = Snapshot::default();
        for mut choice in layers.builtin {
            choice.source = Source::Builtin;
            match choice.check().and_then(|()| frame::encode(Kind::Choice, &choice)) {
                Ok((_, sum)) => _ = snapshot.insert(Layer::Builtin, sum, choice),
                Err(e) => store.warn(Warning::new(format!("builtin: {e}"))),
            }
        }
        for (layer, root) in [(Layer::System, store.system.clone()), (Layer::User, store.user.clone())] {
            let Some(root) = root else { continue };
            let own = if layer == Layer::User { shard::check_private(&root) } else { Ok(()) };
            if let Err(e) = own.and_then(|()| store.read_layer(layer, &root, &mut snapshot)) {
                let e = io_error("reading the store at", &root, &e);
                if layer == Layer::User { store.degrade(&e) } else { store.warn(Warning::new(e.to_string())) }
            }
        }
        store.snapshot = Arc::new(snapshot);
        store
    }

    fn read_layer(&mut self, layer: Layer, root: &Path, snapshot: &mut Snapshot) -> std::io::Result<()> {
        for silicon in shard::list_silicon(root)? {
            let dir = root.join(&silicon).join(Kind::Choice.folder());
            let reports = shard::read_dir(&dir, Kind::Choice, &mut |framed, _| {
                let choice: Choice = frame::parse(framed)?;
                choice.check().map_err(|e| frame::Fault::Damaged(e.to_string()))?;
                if choice.identity.silicon.hash16() != silicon {
                    return Err(frame::Fault::Damaged(format!("silicon: the record is not of {silicon}")));
                }
                snapshot.insert(layer, framed.sum, choice);
                Ok(())
            });
            match reports {
                Ok(reports) => reports.iter().filter_map(|(p, r)| r.warning(p)).for_each(|w| self.warn(w)),
                Err(e) => self.warn(Warning::new(io_error("reading", &dir, &e).to_string())),
            }
        }
        Ok(())
    }

    fn warn(&mut self, warning: Warning) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        } else {
            self.warnings_dropped += 1;
        }
    }

    /// From now on nothing is written; said once.
    fn degrade(&mut self, error: &Error) {
        if !self.degraded {
            self.degraded = true;
            let next =
                "results are kept in memory only; set PLANISH_STORE to a directory of your own that can be written";
            self.warn(Warning::new(format!("{error}; {next}")));
        }
        self.writers.clear();
    }

    /// Takes in what other processes have stored since; what is in memory stays.
    pub fn refresh(&mut self) {
        let Some(root) = self.writable_root().map(Path::to_path_buf) else { return };
        let mut snapshot = Snapshot::clone(&self.snapshot);
        // Damage that was told of when the store was opened is not told of again.
        let told = (std::mem::take(&mut self.warnings), self.warnings_dropped);
        let read = self.read_layer(Layer::User, &root, &mut snapshot);
        (self.warnings, self.warnings_dropped) = told;
        if read.is_ok() {
            self.snapshot = Arc::new(snapshot);
        }
    }

    /// The root that appends go to, unless they go to memory.
    pub(super) fn writable_root(&self) -> Option<&Path> {
        self.user.as_deref().filter(|_| !self.degraded)
    }

    /// Whether what is added outlives this process.
    pub fn is_kept(&self) -> bool {
        self.writable_root().is_some()
    }

    /// What went wrong so far; each is told once.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        let mut out = std::mem::take(&mut self.warnings);
        let dropped = std::mem::take(&mut self.warnings_dropped);
        if dropped > 0 {
            out.push(Warning::new(counted(dropped, "more warning")));
        }
        out
    }

    /// The choices as they are now; later appends do not change it.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.clone()
    }

    /// The best record for `key` under `identity`; see `Snapshot::lookup`.
    pub fn lookup(&self, key: &Key, identity: &Identity) -> Lookup<'_> {
        self.snapshot.lookup(key, identity)
    }

    /// The best record whose config is legal; see `Snapshot::lookup_legal`.
    pub fn lookup_legal(
        &self,
        key: &Key,
        identity: &Identity,
        legal: &dyn Fn(&Config) -> Result<(), String>,
    ) -> Lookup<'_> {
        self.snapshot.lookup_legal(key, identity, legal)
    }

    /// Adds a choice; when this returns `Saved::Disk` it survives a crash.
    ///
    /// The time written is moved past that of any record it must supersede, so a clock set back cannot hide it.
    ///
    /// # Errors
    /// When the record itself is unfit: numbers out of range, or too long.
    pub fn append(&mut self, mut choice: Choice) -> Result<Saved, Error> {
        let older = |e: &&super::Entry| e.choice.identity == choice.identity && e.choice.source == choice.source;
        let latest = self.snapshot.of_key(&choice.key).filter(older).map(|e| e.choice.written_ms).max();
        choice.written_ms = choice.written_ms.max(latest.map_or(0, |ms| ms.saturating_add(1)));
        self.append_as_is(choice)
    }

    /// Adds a choice without touching it.
    fn append_as_is(&mut self, choice: Choice) -> Result<Saved, Error> {
        choice.check()?;
        let (line, sum) = frame::encode(Kind::Choice, &choice)?;
        if self.snapshot.has(Layer::User, sum) || self.snapshot.has(Layer::Memory, sum) {
            return Ok(Saved::Known);
        }
        let saved = self.append_line(&choice.identity.silicon.hash16(), Kind::Choice, &line);
        let layer = if saved == Saved::Disk { Layer::User } else { Layer::Memory };
        Arc::make_mut(&mut self.snapshot).insert(layer, sum, choice);
        Ok(saved)
    }

    /// Adds an evidence record and returns its name, for `Choice::evidence`.
    ///
    /// # Errors
    /// When the record is too long.
    pub fn append_evidence(&mut self, evidence: Evidence) -> Result<(String, Saved), Error> {
        let (line, sum) = frame::encode(Kind::Evidence, &evidence)?;
        let saved = self.append_line(&evidence.identity.silicon.hash16(), Kind::Evidence, &line);
        if saved == Saved::Memory {
            self.evidence.insert(sum, evidence);
        }
        Ok((format!("{sum:032x}"), saved))
    }

    /// Adds choices untouched, one sealed shard a silicon; returns how many were new, and where they went.
    pub(super) fn append_batch(&mut self, choices: Vec<Choice>) -> Result<(u64, Option<Saved>), Error> {
        let (mut shards, mut new) = (BTreeMap::new(), BTreeMap::new());
        for choice in choices {
            choice.check()?;
            let (line, sum) = frame::encode(Kind::Choice, &choice)?;
            if !self.snapshot.has(Layer::User, sum) && !self.snapshot.has(Layer::Memory, sum) {
                batch_line(&mut shards, choice.identity.silicon.hash16(), sum, line);
                new.insert(sum, choice);
            }
        }
        let saved = self.publish_batch(Kind::Choice, &shards);
        let layer = if saved == Some(Saved::Disk) { Layer::User } else { Layer::Memory };
        let (count, snapshot) = (new.len() as u64, Arc::make_mut(&mut self.snapshot));
        for (sum, choice) in new {
            snapshot.insert(layer, sum, choice);
        }
        Ok((count, saved))
    }

    /// Adds evidence records, one sealed shard a silicon.
    pub(super) fn append_evidence_batch(&mut self, all: Vec<Evidence>) -> Result<Option<Saved>, Error> {
        let (mut shards, mut new) = (BTreeMap::new(), BTreeMap::new());
        for evidence in all {
            let (line, sum) = frame::encode(Kind::Evidence, &evidence)?;
            batch_line(&mut shards, evidence.identity.silicon.hash16(), sum, line);
            new.insert(sum, evidence);
        }
        let saved = self.publish_batch(Kind::Evidence, &shards);
        if saved == Some(Saved::Memory) {
            self.evidence.extend(new);
        }
        Ok(saved)
    }

    fn publish_batch(&mut self, kind: Kind, shards: &Batch) -> Option<Saved> {
        if shards.is_empty() {
            return None;
        }
        let Some(root) = self.writable_root().map(Path::to_path_buf) else { return Some(Saved::Memory) };
        for (silicon, lines) in shards {
            if let Err(e) = publish_shard(&root.join(silicon).join(kind.folder()), kind, lines) {
                self.degrade(&e);
                return Some(Saved::Memory);
            }
        }
        Some(Saved::Disk)
    }

    /// Appends to this writer's shard, or reports that memory has to do.
    fn append_line(&mut self, silicon: &str, kind: Kind, line: &[u8]) -> Saved {
        let Some(root) = self.writable_root().map(Path::to_path_buf) else { return Saved::Memory };
        let dir = root.join(silicon).join(kind.folder());
        let slot = (silicon.to_owned(), kind);
        if !self.writers.contains_key(&slot) {
            match ShardWriter::create(&dir, kind) {
                Ok(writer) => _ = self.writers.insert(slot.clone(), writer),
                Err(e) => {
                    self.degrade(&io_error("writing to", &dir, &e));
                    return Saved::Memory;
                }
            }
        }
        let writer = self.writers.get_mut(&slot).expect("inserted above");
        match writer.append(line) {
            Ok(()) => Saved::Disk,
            Err(e) => {
                self.degrade(&io_error("writing to", &dir, &e));
                Saved::Memory
            }
        }
    }

    /// Seals this writer's shards; the next append opens new ones.
    pub fn seal(&mut self) {
        self.writers.clear();
    }
}
