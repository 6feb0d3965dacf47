//! What an unfinished tuning run has measured: a journal beside the store, so that an interruption loses at most one
//! measurement.
//!
//! `<root>/<silicon>/progress/<key and identity>.jsonl`, one event a line behind the sum of its text. A line that does not
//! hold ends the journal: what comes after it is measured again. It goes when the choice that it led to is settled: one
//! that is left says that a run was killed, interrupted or cut off by its budget, and that the next one is to go on.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufReader, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::frame::{self, Kind};
use super::open::Store;
use super::record::{Identity, Key, sum128};
use super::shard;
use crate::event::{Event, Resume};

/// A journal that is longer is not read: no search takes that many samples.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// The journal of one unfinished tuning run; without a file where none can be written.
#[derive(Debug, Default)]
pub struct Progress {
    file: Option<File>,
    path: PathBuf,
    /// An earlier run left it.
    left: bool,
    /// What that measured is gone on with.
    goes_on: bool,
}

/// Whether to go on from what an earlier run measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Take it in.
    Use,
    /// Measure everything again.
    Forget,
}

impl Store {
    /// Opens the journal of `key` under `identity`; also what an interrupted run left there.
    ///
    /// `None` while another process has it open, which is then measuring the same. Where the store keeps results in memory
    /// the journal writes nothing.
    pub fn progress(&self, key: &Key, identity: &Identity, earlier: Earlier) -> Option<(Progress, Resume)> {
        let opened = self.journal(key, identity).and_then(|path| {
            shard::create_private_dir(path.parent()?).ok()?;
            open(&path).map(|(file, left)| (file, path, left))
        });
        let Some((file, path, left)) = opened else { return Some(Default::default()) };
        // A file system without locks has no other process to tell of; lines of two would still be whole.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return None;
        }
        if file.metadata().is_ok_and(|m| m.nlink() == 0) {
            // Whoever had it was done and removed it between the two calls above.
            return self.progress(key, identity, earlier);
        }
        let (resume, held) = read(&file);
        let resume = if earlier == Earlier::Use { resume } else { Resume::default() };
        let keep = if earlier == Earlier::Use { held } else { 0 };
        // Cut behind the last whole line, so that the next one begins a line of its own.
        let file = file.set_len(keep).is_ok().then_some(file);
        let goes_on = resume != Resume::default();
        Some((Progress { file, path, left, goes_on }, resume))
    }

    /// The next run measures `key` again, from the start; nothing where another process is at it now.
    pub fn measure_again(&self, key: &Key, identity: &Identity) {
        if let Some((journal, _)) = self.progress(key, identity, Earlier::Forget) {
            journal.start_over();
        }
    }

    /// Whether an earlier run left the journal of `key`, and no other process is at it now.
    pub(super) fn is_left(&self, key: &Key, identity: &Identity) -> bool {
        let Some(file) = self.journal(key, identity).and_then(|path| File::open(path).ok()) else { return false };
        let locked = file.try_lock_shared();
        // Not left to closing it: a child that is being started holds what was open, until it is another program.
        let _ = file.unlock();
        !matches!(locked, Err(TryLockError::WouldBlock))
    }

    /// Where the journal of `key` is, if one can be written.
    fn journal(&self, key: &Key, identity: &Identity) -> Option<PathBuf> {
        let name = sum128(&[key.to_string().as_bytes(), &identity.sum().to_le_bytes()]);
        let dir = self.writable_root()?.join(identity.silicon.hash16()).join("progress");
        Some(dir.join(format!("{name:032x}.jsonl")))
    }
}

/// The journal at `path`, made where there is none; whether there was one.
fn open(path: &Path) -> Option<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o600);
    match options.clone().create_new(true).open(path) {
        Ok(file) => Some((file, false)),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Some((options.create(true).open(path).ok()?, true)),
        Err(_) => None,
    }
}

/// What the journal holds, and how many of its bytes are whole lines.
fn read(file: &File) -> (Resume, u64) {
    let (mut resume, mut held, mut whole) = (Resume::default(), 0, true);
    if file.metadata().map_or(true, |m| m.len() > JOURNAL_BYTES_MAX) {
        return (resume, held);
    }
    // Unreadable is the same as not there: it is measured again.
    let _ = frame::for_each_line(&mut BufReader::new(file), Kind::Choice.line_bytes_max(), |line| {
        let event = line.bytes.filter(|_| whole && line.ended).and_then(|bytes| Some((decode(bytes)?, bytes.len())));
        match event {
            Some((event, bytes)) => {
                resume.absorb(&event);
                held += bytes as u64 + 1;
            }
            None => whole = false,
        }
    });
    (resume, held)
}

fn decode(line: &[u8]) -> Option<Event> {
    let (sum, text) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    (sum == format!("{:032x}", sum128(&[text.as_bytes()]))).then(|| serde_json::from_str(text).ok())?
}

impl Progress {
    /// Whether an earlier run left it unfinished.
    pub fn was_left(&self) -> bool {
        self.left
    }

    /// Writes down `event` if a later run could use it, with one write.
    ///
    /// Not forced to the disk: it outlives this process, not the machine. After a failure nothing more is written.
    pub fn note(&mut self, event: &Event) {
        let useful = !matches!(
            event,
            Event::Listed { .. } | Event::Admitted { .. } | Event::Progress { .. } | Event::Decided { .. }
        );
        let Some(file) = self.file.as_mut().filter(|_| useful) else { return };
        let Ok(text) = serde_json::to_string(event) else { return };
        let line = format!("{:032x} {text}\n", sum128(&[text.as_bytes()]));
        if !file.write(line.as_bytes()).is_ok_and(|n| n == line.len()) {
            self.file = None;
        }
    }

    /// Whether this run goes on from what an earlier one measured.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Empties the journal and leaves it: the next run measures everything again.
    pub(super) fn start_over(self) {
        if let Some(file) = &self.file {
            // One that stays as it is says the same: what was measured beside other work is not gone on with.
            let _ = file.set_len(0);
        }
    }

    /// Removes the journal: its result is stored, or cannot be had.
    pub fn done(self) {
        if self.file.is_some() {
            // One that stays is overwritten or resumed later; it costs nothing but its bytes.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Lets go at once: a child that is being started holds what was open, and its lock, until it is another program.
impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = file.unlock();
        }
    }
}
