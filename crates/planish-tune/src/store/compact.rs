//! Fewer files without fewer records, and the removal of records on request.
//!
//! Only shards whose writer is done are touched. What they hold is published as one new shard and read back before any of
//! them is removed; a shard with damage is set aside in `damaged/`, one of another layout version is left where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{Error, io_error};
use super::frame::{self, Kind};
use super::inspect::superseded;
use super::record::Choice;
use super::shard::{self, Tail, Writer};
use super::snapshot::{Entry, Layer};

/// Bytes of records rewritten at once; the shards beyond wait for the next pass.
const BATCH_BYTES_MAX: usize = 256 << 20;

/// An unpublished temporary of this age belongs to a writer that died.
const TEMP_AGE_MIN: Duration = Duration::from_secs(24 * 3600);

/// Where damaged shards go, next to the good ones.
pub(super) const DAMAGED: &str = "damaged";

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Shards merged into new ones.
    pub shards_merged: u64,
    /// Shards written.
    pub shards_written: u64,
    /// Shards left alone because their writer is alive or their layout is another version's.
    pub shards_skipped: u64,
    /// Shards with damage, where they are now; their readable records were kept.
    pub set_aside: Vec<PathBuf>,
}

/// Whether to change files or only say what would change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// Change nothing.
    DryRun,
    /// Do it.
    Now,
}

/// What one directory's rewrite did.
#[derive(Default)]
struct Rewritten {
    merged: u64,
    written: u64,
    skipped: u64,
    set_aside: Vec<PathBuf>,
    dropped: BTreeSet<u128>,
}

/// A shard whose writer is done: its path, whether it has damage, and the lock that keeps others off.
struct Done {
    path: PathBuf,
    clean: bool,
    _lock: Writer,
}

type Lines = BTreeMap<u128, Vec<u8>>;

fn gather(dir: &Path, kind: Kind, out: &mut Rewritten) -> Result<(Vec<Done>, Lines), Error> {
    let (mut sources, mut lines, mut bytes) = (Vec::new(), Lines::new(), 0);
    for path in shard::list_shards(dir).map_err(|e| io_error("listing", dir, &e))? {
        let lock = shard::writer_of(&path);
        if matches!(lock, Writer::Busy) || bytes > BATCH_BYTES_MAX {
            out.skipped += 1;
            continue;
        }
        let mut own = Lines::new();
        let report = shard::read_shard(&path, kind, Tail::Final, &mut |framed, line| {
            own.insert(framed.sum, line.to_vec());
            Ok(())
        });
        match report {
            Ok(r) if r.foreign == 0 && !r.unread => {
                bytes += own.values().map(Vec::len).sum::<usize>();
                lines.append(&mut own);
                sources.push(Done { path, clean: r.is_clean(), _lock: lock });
            }
            _ => out.skipped += 1,
        }
    }
    Ok((sources, lines))
}

/// Publishes `lines` as one sealed shard in `dir` and reads it back.
pub(super) fn publish_shard(dir: &Path, kind: Kind, lines: &Lines) -> Result<(), Error> {
    shard::create_private_dir(dir).map_err(|e| io_error("creating", dir, &e))?;
    let path = dir.join(format!("{}.jsonl", shard::unique_stem()));
    let mut text = Vec::new();
    for line in lines.values() {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    shard::publish(&path, &text)?;
    let mut back = BTreeSet::new();
    let report = shard::read_shard(&path, kind, Tail::Final, &mut |framed, _| {
        back.insert(framed.sum);
        Ok(())
    });
    let report = report.map_err(|e| io_error("reading back", &path, &e))?;
    if !report.is_clean() || !back.iter().eq(lines.keys()) {
        let (found, wanted) = (back.len(), lines.len());
        return Err(Error::new(format!("{}: {found} of {wanted} records read back", path.display())));
    }
    Ok(())
}

fn rewrite(dir: &Path, kind: Kind, doomed: &BTreeSet<u128>, apply: Apply) -> Result<Rewritten, Error> {
    let mut out = Rewritten::default();
    let (sources, mut lines) = gather(dir, kind, &mut out)?;
    out.dropped = lines.keys().filter(|sum| doomed.contains(sum)).copied().collect();
    let tidy = sources.len() < 2 && sources.iter().all(|s| s.clean) && out.dropped.is_empty();
    if tidy || apply == Apply::DryRun {
        return Ok(out);
    }
    lines.retain(|sum, _| !doomed.contains(sum));
    if !lines.is_empty() {
        publish_shard(dir, kind, &lines)?;
        out.written = 1;
    }
    for source in &sources {
        let name = source.path.file_name().expect("a listed shard has a name");
        if source.clean {
            remove(&source.path)?;
        } else {
            let aside = dir.join(DAMAGED);
            shard::create_private_dir(&aside).map_err(|e| io_error("creating", &aside, &e))?;
            let to = aside.join(name).with_extension("damaged");
            fs::rename(&source.path, &to).map_err(|e| io_error("setting aside", &source.path, &e))?;
            out.set_aside.push(to);
        }
        out.merged += 1;
    }
    Ok(out)
}

/// Removes a file; one that is gone already was merged by another process.
fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io_error("removing", path, &e)),
        _ => Ok(()),
    }
}

/// Removes temporaries that were never published and whose writer is long gone.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let old = |m: fs::Metadata| m.modified().ok()?.elapsed().ok().map(|age| m.is_file() && age > TEMP_AGE_MIN);
        let is_old = entry.metadata().ok().and_then(old).unwrap_or(false);
        if is_old && entry.file_name().to_string_lossy().starts_with(".tmp-") {
            // Litter costs nothing but its bytes: the next pass tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Merges the shards of the store at `root` whose writers are done; keeps every record.
pub fn compact(root: &Path) -> Result<Compacted, Error> {
    let mut all = Compacted::default();
    for silicon in shard::list_silicon(root).map_err(|e| io_error("listing", root, &e))? {
        for kind in Kind::ALL {
            let dir = root.join(&silicon).join(kind.folder());
            let done = rewrite(&dir, kind, &BTreeSet::new(), Apply::Now)?;
            all.shards_merged += done.merged;
            all.shards_written += done.written;
            all.shards_skipped += done.skipped;
            all.set_aside.extend(done.set_aside);
            sweep(&dir);
        }
    }
    Ok(all)
}

/// Which choices to remove; a choice goes when any of the conditions holds.
#[derive(Clone, Debug, Default)]
pub struct Prune {
    /// Written before this time, in milliseconds since 1970.
    pub older_than_ms: Option<u64>,
    /// Measured on a kernel whose hash is not in this set.
    pub keep_kernels: Option<BTreeSet<String>>,
    /// Whether to remove choices that a better one of the same key and identity replaces.
    pub superseded: bool,
}

/// What a prune removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pruned {
    /// The choices.
    pub choices: Vec<Choice>,
    /// Evidence records that no remaining choice refers to.
    pub evidence: u64,
    /// Shards left alone because their writer is alive or their layout is another version's.
    pub shards_skipped: u64,
}

/// Removes choices and their evidence from the store at `root`; shards of living writers are left alone.
pub fn prune(root: &Path, which: &Prune, apply: Apply) -> Result<Pruned, Error> {
    let mut all = Pruned::default();
    for silicon in shard::list_silicon(root).map_err(|e| io_error("listing", root, &e))? {
        let dir = |kind: Kind| root.join(&silicon).join(kind.folder());
        let mut entries: BTreeMap<u128, Entry> = BTreeMap::new();
        let listing = shard::read_dir(&dir(Kind::Choice), Kind::Choice, &mut |framed, _| {
            let choice = frame::parse(framed)?;
            entries.insert(framed.sum, Entry { layer: Layer::User, sum: framed.sum, choice });
            Ok(())
        });
        listing.map_err(|e| io_error("reading", &dir(Kind::Choice), &e))?;
        let replaced = if which.superseded { superseded(entries.values()) } else { Default::default() };
        let goes = |e: &Entry| {
            which.older_than_ms.is_some_and(|ms| e.choice.written_ms < ms)
                || which.keep_kernels.as_ref().is_some_and(|k| !k.contains(&e.choice.identity.kernel))
                || replaced.contains(&(e.layer, e.sum))
        };
        let doomed = entries.values().filter(|e| goes(e)).map(|e| e.sum).collect();
        let done = rewrite(&dir(Kind::Choice), Kind::Choice, &doomed, apply)?;
        all.shards_skipped += done.skipped;
        let (gone, kept): (Vec<Entry>, Vec<Entry>) = entries.into_values().partition(|e| done.dropped.contains(&e.sum));
        let names = |list: &[Entry]| -> BTreeSet<u128> {
            let name = |e: &Entry| u128::from_str_radix(e.choice.evidence.as_deref()?, 16).ok();
            list.iter().filter_map(name).collect()
        };
        let orphans = names(&gone).difference(&names(&kept)).copied().collect();
        let done = rewrite(&dir(Kind::Evidence), Kind::Evidence, &orphans, apply)?;
        all.evidence += done.dropped.len() as u64;
        all.choices.extend(gone.into_iter().map(|e| e.choice));
    }
    Ok(all)
}
