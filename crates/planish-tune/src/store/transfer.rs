//! Records between stores: one checksummed file out and in, a lossless merge, and the difference of two stores.
//!
//! An export is a header line, `{"planish_export":1,"records":N,"digest":"<64 hex>"}`, and N record lines as shards have
//! them; the digest is the SHA-256 of everything after the header.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{Error, io_error};
use super::frame::{self, Kind};
use super::inspect::superseded;
use super::open::{Saved, Store};
use super::record::{Choice, Evidence, Key, Source, clip};
use super::shard;
use super::snapshot::Layer;

/// Largest export that is read, in bytes.
pub const EXPORT_BYTES_MAX: u64 = 256 << 20;

/// Most records in an export.
pub const EXPORT_RECORDS_MAX: u64 = 1_000_000;

#[derive(Serialize, Deserialize)]
struct Header {
    planish_export: u32,
    records: u64,
    digest: String,
}

/// What an export carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// What launches need.
    Choices,
    /// That and the evidence.
    ChoicesAndEvidence,
}

/// Sixty-four hexadecimal digits of the SHA-256 of `bytes`.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads a file of at most `bytes_max`, whatever its metadata claims; refuses what is not a regular file.
pub(super) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let meta = fs::metadata(path).map_err(|e| io_error("reading", path, &e))?;
    if !meta.is_file() || meta.len() > bytes_max {
        return Err(Error::new(format!("{}: not a file of at most {bytes_max} bytes", path.display())));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|e| io_error("reading", path, &e))?;
    file.take(bytes_max).read_to_end(&mut bytes).map_err(|e| io_error("reading", path, &e))?;
    Ok(bytes)
}

/// Writes `bytes` to `path` at once, unless that would replace a file that holds something by one that holds nothing.
pub(super) fn publish_unless_emptying(path: &Path, bytes: &[u8], records: usize) -> Result<(), Error> {
    if records == 0 && fs::metadata(path).is_ok_and(|m| m.len() > 0) {
        let what = format!("{}: there is nothing to write and the file is not empty", path.display());
        return Err(Error::new(what).hint("remove the file first, or name another"));
    }
    shard::publish(path, bytes)
}

/// Writes every choice of the system, user and memory layers to one file at `path`; returns the number of records.
pub fn export(store: &Store, path: &Path, contents: Contents) -> Result<u64, Error> {
    let mut lines: BTreeMap<(Kind, u128), Vec<u8>> = BTreeMap::new();
    for e in store.snapshot().entries().filter(|e| e.layer != Layer::Builtin) {
        lines.insert((Kind::Choice, e.sum), frame::encode(Kind::Choice, &e.choice)?.0);
    }
    if contents == Contents::ChoicesAndEvidence {
        for (sum, evidence) in &store.evidence {
            lines.insert((Kind::Evidence, *sum), frame::encode(Kind::Evidence, evidence)?.0);
        }
        for root in [&store.system, &store.user].into_iter().flatten() {
            for (sum, mut line) in read_raw(root, Kind::Evidence)?.into_values().flatten() {
                line.push(b'\n');
                lines.insert((Kind::Evidence, sum), line);
            }
        }
    }
    let body = lines.values().flatten().copied().collect::<Vec<u8>>();
    let records = lines.len() as u64;
    let header = Header { planish_export: 1, records, digest: sha256_hex(&body) };
    let mut text = serde_json::to_vec(&header).map_err(|e| Error::new(format!("header cannot be written: {e}")))?;
    text.push(b'\n');
    text.extend(body);
    if records > EXPORT_RECORDS_MAX || text.len() as u64 > EXPORT_BYTES_MAX {
        let hint = "export the choices alone, or prune first";
        return Err(Error::new(format!("{records} records in {} bytes are too many to import", text.len())).hint(hint));
    }
    publish_unless_emptying(path, &text, lines.len())?;
    Ok(records)
}

/// The records of an export, all checks passed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Export {
    /// The choices, as they were exported.
    pub choices: Vec<Choice>,
    /// The evidence.
    pub evidence: Vec<Evidence>,
}

/// Reads the text of an export; any deviation is an error that names the field and the line.
pub fn parse_export(text: &[u8]) -> Result<Export, Error> {
    if text.len() as u64 > EXPORT_BYTES_MAX {
        return Err(Error::new(format!("export: {} bytes, at most {EXPORT_BYTES_MAX} are read", text.len())));
    }
    let end = text.iter().take(1024).position(|b| *b == b'\n');
    let end = end.ok_or_else(|| Error::new("export header: no line of at most 1024 bytes"))?;
    let first = std::str::from_utf8(&text[..end]).map_err(|_| Error::new("export header: not UTF-8"))?;
    let header: Header = frame::from_json(first).map_err(|e| Error::new(format!("export header: {e}")))?;
    if header.planish_export != 1 {
        return Err(Error::new(format!("planish_export: layout version {}, 1 is read", header.planish_export)));
    }
    if header.records > EXPORT_RECORDS_MAX {
        return Err(Error::new(format!("records: {}, at most {EXPORT_RECORDS_MAX} are read", header.records)));
    }
    let body = &text[end + 1..];
    let digest = sha256_hex(body);
    if digest != header.digest {
        return Err(Error::new(format!(
            "digest: the records have {digest}, the header says {:?}",
            clip(&header.digest)
        ))
        .hint("the file was damaged on its way; export or copy it again"));
    }
    let mut out = Export::default();
    for (i, line) in body.split_inclusive(|b| *b == b'\n').enumerate() {
        let bad = |what: &dyn std::fmt::Display| Error::new(format!("export line {}: {what}", i + 2));
        let framed = frame::decode(line.strip_suffix(b"\n").unwrap_or(line)).map_err(|e| bad(&e))?;
        if line.len() > framed.kind.line_bytes_max() + 1 {
            return Err(bad(&format!("longer than {} bytes", framed.kind.line_bytes_max())));
        }
        match framed.kind {
            Kind::Choice => {
                let choice: Choice = frame::parse(&framed).map_err(|e| bad(&e))?;
                choice.check().map_err(|e| bad(&e))?;
                out.choices.push(choice);
            }
            Kind::Evidence => out.evidence.push(frame::parse(&framed).map_err(|e| bad(&e))?),
        }
    }
    let found = (out.choices.len() + out.evidence.len()) as u64;
    if found != header.records {
        return Err(Error::new(format!("records: {found} found, the header says {}", header.records)));
    }
    Ok(out)
}

/// What an import or a merge added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// New choices.
    pub choices: u64,
    /// New evidence records.
    pub evidence: u64,
    /// Records that were there already.
    pub known: u64,
    /// Whether the new records are on disk or only in memory; `None` when there was nothing new.
    pub saved: Option<Saved>,
}

/// Brings in the export at `path`; its choices become priors with the source `imported`.
///
/// The file is checked as a whole before anything is added.
pub fn import(store: &mut Store, path: &Path) -> Result<Added, Error> {
    let export = parse_export(&read_bounded(path, EXPORT_BYTES_MAX)?)
        .map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    let choices = export.choices.into_iter().map(|c| Choice { source: Source::Imported, ..c }).collect();
    add(store, choices, export.evidence)
}

/// Adds every record of the store at `from`, unchanged; the union of two stores of one user loses nothing.
///
/// Damaged lines of `from` are passed over, as they are when it is opened.
pub fn merge(store: &mut Store, from: &Path) -> Result<Added, Error> {
    let (mut choices, mut evidence) = (Vec::new(), Vec::new());
    for (_, line) in read_raw(from, Kind::Choice)?.into_values().flatten() {
        choices
            .extend(frame::decode(&line).and_then(|f| frame::parse::<Choice>(&f)).ok().filter(|c| c.check().is_ok()));
    }
    for (_, line) in read_raw(from, Kind::Evidence)?.into_values().flatten() {
        evidence.extend(frame::decode(&line).and_then(|f| frame::parse::<Evidence>(&f)).ok());
    }
    add(store, choices, evidence)
}

fn add(store: &mut Store, choices: Vec<Choice>, evidence: Vec<Evidence>) -> Result<Added, Error> {
    let mut out = Added::default();
    let held: BTreeSet<u128> = match &store.user {
        // A root that cannot be read holds nothing; the store has warned when it was opened.
        Some(root) => read_raw(root, Kind::Evidence).unwrap_or_default().into_values().flatten().map(|l| l.0).collect(),
        None => BTreeSet::new(),
    };
    let total = choices.len() + evidence.len();
    let fresh: Vec<Evidence> = evidence
        .into_iter()
        .filter(|e| frame::encode(Kind::Evidence, e).is_ok_and(|(_, sum)| !held.contains(&sum)))
        .collect();
    out.evidence = fresh.len() as u64;
    let saved_evidence = store.append_evidence_batch(fresh)?;
    let (added, saved) = store.append_batch(choices)?;
    out.choices = added;
    out.known = total as u64 - out.choices - out.evidence;
    out.saved = saved.or(saved_evidence);
    Ok(out)
}

type RawLines = BTreeMap<String, BTreeMap<u128, Vec<u8>>>;

/// Every good line of `kind` in the store at `root`, by silicon.
pub(super) fn read_raw(root: &Path, kind: Kind) -> Result<RawLines, Error> {
    let mut all = RawLines::new();
    for silicon in shard::list_silicon(root).map_err(|e| io_error("listing", root, &e))? {
        let dir = root.join(&silicon).join(kind.folder());
        let lines = all.entry(silicon).or_default();
        let read = shard::read_dir(&dir, kind, &mut |framed, line| {
            lines.insert(framed.sum, line.to_vec());
            Ok(())
        });
        read.map_err(|e| io_error("reading", &dir, &e))?;
    }
    Ok(all)
}

/// One key and identity on which two stores disagree.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// What is launched.
    pub key: Key,
    /// The left store's standing choice.
    pub left: Option<Choice>,
    /// The right store's standing choice.
    pub right: Option<Choice>,
}

/// Where the standing choices of two stores differ in config or state, by key.
pub fn diff(left: &Store, right: &Store) -> Vec<Difference> {
    let standing = |store: &Store| -> BTreeMap<(Key, u128), Choice> {
        let snapshot = store.snapshot();
        let replaced = superseded(snapshot.entries());
        let mut live: Vec<_> = snapshot.entries().filter(|e| !replaced.contains(&(e.layer, e.sum))).collect();
        // Later insertions win: weakest source and layer first.
        live.sort_by_key(|e| (e.choice.source == Source::Tuned, e.layer, e.choice.written_ms, e.sum));
        live.into_iter().map(|e| ((e.choice.key.clone(), e.choice.identity.sum()), e.choice.clone())).collect()
    };
    let (mut a, mut b) = (standing(left), standing(right));
    let keys: BTreeSet<_> = a.keys().chain(b.keys()).cloned().collect();
    let mut out = Vec::new();
    for slot in keys {
        let (left, right) = (a.remove(&slot), b.remove(&slot));
        let same = matches!((&left, &right), (Some(l), Some(r)) if l.config == r.config && l.state == r.state);
        if !same {
            out.push(Difference { key: slot.0, left, right });
        }
    }
    out
}
