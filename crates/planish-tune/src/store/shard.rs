//! Append-only files of records, one per writer: naming, writing, sealing, and reading beside live writers.
//!
//! A shard is `<time>-<pid>-<random>.live.jsonl` while its writer holds an exclusive lock on it, and loses `.live` when
//! it is sealed. A `.live` shard that nobody locks had a writer that died. Where the file system has no locks the mark is
//! `.free`, and only sealing tells that the writer is done. Readers take every mark; names with a dot in front are not
//! published.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::{Error, Warning, io_error};
use super::frame::{self, Fault, Framed, Kind};
use crate::words::counted;

/// A larger shard is damage, not data: a choices line is under a kilobyte and a shard is one process's work.
pub(super) const SHARD_BYTES_MAX: u64 = 1 << 30;

/// How often a directory is listed again because a shard was renamed or compacted away between listing and opening.
const RESCANS_MAX: usize = 16;

const LIVE: &str = ".live.jsonl";
const FREE: &str = ".free.jsonl";
const SEALED: &str = ".jsonl";

/// A file stem no other writer uses: time, process and random bits, so that two hosts on one share differ too.
pub(super) fn unique_stem() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_usize(&raw const COUNT as usize);
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{ns:016x}-{:x}-{:016x}", std::process::id(), hasher.finish())
}

/// Creates `dir` and its missing parents, readable by this user only.
pub fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Refuses a directory in which others may write: what runs here is not for them to choose.
pub(super) fn check_private(dir: &Path) -> io::Result<()> {
    match fs::metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(meta) if meta.is_dir() && meta.permissions().mode() & 0o022 != 0 => {
            let mode = meta.permissions().mode() & 0o7777;
            Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("others may write there (mode {mode:04o})")))
        }
        other => other.map(drop),
    }
}

/// Makes the entries of `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Writes `bytes` to `path` so that a reader sees the old file or the whole new one, never a part.
pub(super) fn publish(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, bytes).map_err(|e| io_error("writing", path, &e))
}

/// The same for a caller that has a better name for the file than its path.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let temp = dir.join(format!(".tmp-{}", unique_stem()));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, path)?;
        sync_dir(&dir)
    };
    write().inspect_err(|_| {
        // The temporary is ours alone; if it cannot be removed either, the first error is the one to tell.
        let _ = fs::remove_file(&temp);
    })
}

/// One writer's open shard; sealed when dropped.
#[derive(Debug)]
pub(super) struct ShardWriter {
    file: File,
    path: PathBuf,
    sync: bool,
}

impl ShardWriter {
    /// Creates an empty shard of `kind` in `dir`, locked by this process where the file system allows.
    pub fn create(dir: &Path, kind: Kind) -> io::Result<Self> {
        create_private_dir(dir)?;
        let stem = unique_stem();
        let temp = dir.join(format!(".tmp-{stem}"));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&temp)?;
        let mark = if file.try_lock().is_ok() { LIVE } else { FREE };
        let path = dir.join(format!("{stem}{mark}"));
        // Locked before it is published: nobody ever sees a `.live` shard that its living writer does not hold.
        fs::rename(&temp, &path)?;
        sync_dir(dir)?;
        Ok(ShardWriter { file, path, sync: kind == Kind::Choice })
    }

    /// Appends one line with a single write; on success a choice has reached the disk.
    ///
    /// After an error the shard may end in a torn line: seal it and start another.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.file.write(line)?;
        if written < line.len() {
            return Err(io::Error::new(io::ErrorKind::WriteZero, format!("{written} of {} bytes written", line.len())));
        }
        if self.sync { self.file.sync_data() } else { Ok(()) }
    }

    #[cfg(test)]
    pub fn over(file: File, path: PathBuf) -> Self {
        ShardWriter { file, path, sync: true }
    }
}

impl Drop for ShardWriter {
    fn drop(&mut self) {
        let name = self.path.to_string_lossy();
        let stem = name.strip_suffix(LIVE).or_else(|| name.strip_suffix(FREE));
        if let Some(stem) = stem {
            // Not sealed is not lost: the shard is read either way, and taken for a dead writer's later.
            let _ = self.file.sync_data();
            let _ = fs::rename(&self.path, format!("{stem}{SEALED}"));
        }
    }
}

/// Whether the file name is a published shard.
fn is_shard(name: &str) -> bool {
    !name.starts_with('.') && name.ends_with(SEALED)
}

/// The published shards in `dir`, sorted; none when the directory is missing.
pub(super) fn list_shards(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.file_name().and_then(|n| n.to_str()).is_some_and(is_shard) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The silicon directories under `root`, by their sixteen hexadecimal digits; none when the root is missing.
pub(super) fn list_silicon(root: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let hex = |n: &&str| n.len() == 16 && n.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        names.extend(name.to_str().filter(hex).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Whether a store may lie at `root`: it has records of a silicon, or nothing but what an empty one has.
pub fn is_store(root: &Path) -> bool {
    let own = |name: &std::ffi::OsStr| name == "quarantine" || name.to_str().is_some_and(|n| n.starts_with('.'));
    let empty = || fs::read_dir(root).is_ok_and(|mut all| all.all(|e| e.is_ok_and(|e| own(&e.file_name()))));
    list_silicon(root).is_ok_and(|names| !names.is_empty()) || empty()
}

/// What became of the writer of a shard.
#[derive(Debug)]
pub(super) enum Writer {
    /// Sealed, or dead: nobody will append. The lock on a dead writer's shard is held as long as this value lives.
    Done(#[expect(dead_code, reason = "held for its lock, not read")] Option<File>),
    /// Alive, or unknowable.
    Busy,
}

/// Whether the shard's writer is done with it.
pub(super) fn writer_of(path: &Path) -> Writer {
    let name = path.to_string_lossy();
    if name.ends_with(FREE) {
        return Writer::Busy;
    }
    if !name.ends_with(LIVE) {
        return Writer::Done(None);
    }
    match File::open(path) {
        Ok(file) if file.try_lock().is_ok() => Writer::Done(Some(file)),
        _ => Writer::Busy,
    }
}

/// Whether a living writer may be in the middle of a line at the end of this shard.
fn may_be_mid_line(path: &Path, file: &File) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(FREE) || (name.ends_with(LIVE) && matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// What was met in one shard besides good records.
#[derive(Debug, Default)]
pub(super) struct ShardReport {
    /// Lines that hold a record of the wanted kind.
    pub records: u64,
    /// Lines that are damaged, and the first of them.
    pub damaged: u64,
    /// Lines written by another version of the layout.
    pub foreign: u64,
    /// Whether part of the shard could not be read at all.
    pub unread: bool,
    /// Where and why the first bad line is bad.
    pub first: Option<String>,
}

impl ShardReport {
    pub(super) fn note(&mut self, number: u64, fault: &Fault) {
        match fault {
            Fault::Schema(_) => self.foreign += 1,
            Fault::Damaged(_) => self.damaged += 1,
        }
        self.first.get_or_insert_with(|| format!("line {number}: {fault}"));
    }

    /// Whether every byte of the shard was understood.
    pub(super) fn is_clean(&self) -> bool {
        self.damaged + self.foreign == 0
    }

    /// One warning for the whole shard, if it needs one.
    pub(super) fn warning(&self, path: &Path) -> Option<Warning> {
        let first = self.first.as_ref()?;
        let bad = self.damaged + self.foreign;
        let lines = counted(bad, "line");
        Some(Warning::new(format!("{}: {lines} skipped, {} read; {first}", path.display(), self.records)))
    }
}

/// What an unfinished last line of a shard means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// A living writer may be in the middle of it.
    MayGrow,
    /// The caller knows that the writer is done, perhaps because it holds the lock itself: the line is torn.
    Final,
}

/// Takes a framed line and its text, or returns the fault for which the line is skipped.
pub(super) type Visit<'a> = dyn FnMut(&Framed<'_>, &[u8]) -> Result<(), Fault> + 'a;

/// Reads the shard at `path`; `visit` gets each framed line of `kind` with its text, and returns a fault to reject it.
///
/// # Errors
/// `NotFound` when the shard was renamed or compacted away, and other failures to open it.
pub(super) fn read_shard(path: &Path, kind: Kind, tail: Tail, visit: &mut Visit<'_>) -> io::Result<ShardReport> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() || meta.len() > SHARD_BYTES_MAX {
        let mut report = ShardReport { unread: true, ..ShardReport::default() };
        report.note(1, &Fault::Damaged(format!("not a file of at most {SHARD_BYTES_MAX} bytes")));
        return Ok(report);
    }
    let file = File::open(path)?;
    let mut reader = BufReader::with_capacity(1 << 16, io::Read::take(&file, SHARD_BYTES_MAX));
    let mid_line = || tail == Tail::MayGrow && may_be_mid_line(path, &file);
    Ok(read_lines(&mut reader, kind, &mid_line, visit))
}

/// Reads the lines of one shard; an unfinished last line is passed over when `mid_line` says that it is being written.
pub(super) fn read_lines(
    reader: &mut dyn BufRead,
    kind: Kind,
    mid_line: &dyn Fn() -> bool,
    visit: &mut Visit<'_>,
) -> ShardReport {
    let mut report = ShardReport::default();
    let outcome = frame::for_each_line(reader, kind.line_bytes_max(), |line| {
        let Some(bytes) = line.bytes else {
            return report.note(line.number, &Fault::Damaged(format!("longer than {} bytes", kind.line_bytes_max())));
        };
        if !line.ended && mid_line() {
            return;
        }
        let result = frame::decode(bytes).and_then(|framed| {
            if framed.kind != kind {
                return Err(Fault::Damaged(format!("kind: {} among {}", framed.kind.name(), kind.folder())));
            }
            visit(&framed, bytes)
        });
        match result {
            Ok(()) => report.records += 1,
            Err(fault) => report.note(line.number, &fault),
        }
    });
    if let Err(e) = outcome {
        report.unread = true;
        report.note(0, &Fault::Damaged(format!("reading stopped: {e}")));
    }
    report
}

/// Reads every published shard in `dir` once, listing again while shards are renamed or compacted under it.
///
/// Returns the report of each shard read. A record may be visited twice when its shard was compacted meanwhile.
pub(super) fn read_dir(dir: &Path, kind: Kind, visit: &mut Visit<'_>) -> io::Result<Vec<(PathBuf, ShardReport)>> {
    let (mut seen, mut reports) = (BTreeSet::new(), Vec::new());
    for _ in 0..RESCANS_MAX {
        let mut vanished = false;
        for path in list_shards(dir)? {
            if seen.contains(&path) {
                continue;
            }
            match read_shard(&path, kind, Tail::MayGrow, visit) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => vanished = true,
                Err(e) => {
                    let mut report = ShardReport::default();
                    report.note(0, &Fault::Damaged(e.to_string()));
                    reports.push((path.clone(), report));
                    seen.insert(path);
                }
                Ok(report) => {
                    reports.push((path.clone(), report));
                    seen.insert(path);
                }
            }
        }
        if !vanished {
            break;
        }
    }
    Ok(reports)
}
