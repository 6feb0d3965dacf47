//! Candidates that hurt, kept across runs, and the journal that finds those that took the whole machine down.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::Error;
use crate::subject::Rejection;

/// One candidate that is never run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quarantined {
    /// The subject it belongs to, as the caller names it: op, shape, silicon and kernel hash.
    pub subject: String,
    /// The candidate.
    pub config: Config,
    /// What it did.
    pub rejection: Rejection,
    /// Seconds since 1970.
    pub unix_s: u64,
}

/// A line of the journal: a candidate about to run, or the end of it; numbered, since several may run at a time.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Intent {
    About { id: u64, subject: String, config: Config },
    Done { id: u64 },
}

/// A candidate that has begun; given back when it has come back.
#[must_use]
#[derive(Debug)]
pub struct Begun(u64);

/// The quarantine of a directory: `quarantine.jsonl`, and one intent journal per running process.
pub struct Quarantine {
    dir: Option<PathBuf>,
    entries: Vec<Quarantined>,
    journal: Option<(PathBuf, File)>,
    begun: u64,
    warning: Option<String>,
}

impl Quarantine {
    /// Reads the quarantine in `dir` and takes in what dead processes were running; made when missing.
    ///
    /// When the directory cannot be used, it works from memory and `warning` says why.
    pub fn open(dir: &Path) -> Self {
        let mut q = Self::in_memory();
        match q.attach(dir) {
            Ok(()) => {}
            Err(e) => q.warning = Some(format!("quarantine in {}: {e}; kept in memory only", dir.display())),
        }
        q
    }

    /// A quarantine that ends with the process.
    pub fn in_memory() -> Self {
        Quarantine { dir: None, entries: Vec::new(), journal: None, begun: 0, warning: None }
    }

    /// Why nothing is kept on disk, if so.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Everything in quarantine, oldest first.
    pub fn list(&self) -> &[Quarantined] {
        &self.entries
    }

    /// What `config` of `subject` did, if it is in quarantine.
    pub fn find(&self, subject: &str, config: &Config) -> Option<&Rejection> {
        let hit = self.entries.iter().find(|e| e.subject == subject && e.config == *config);
        hit.map(|e| &e.rejection)
    }

    /// What any candidate of `subject` did, if one is in quarantine.
    pub fn find_any(&self, subject: &str) -> Option<&Rejection> {
        self.entries.iter().find(|e| e.subject == subject).map(|e| &e.rejection)
    }

    /// Releases the candidates of `subject`, or all; returns how many.
    pub fn clear(&mut self, subject: Option<&str>) -> Result<usize, Error> {
        let before = self.entries.len();
        self.entries.retain(|e| subject.is_some_and(|s| s != e.subject));
        if let Some(dir) = &self.dir {
            let path = dir.join("quarantine.jsonl");
            let text: String = self.entries.iter().map(line_of).collect();
            rewrite(&path, &text).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        }
        Ok(before - self.entries.len())
    }

    /// Puts a candidate in quarantine.
    pub fn add(&mut self, subject: &str, config: &Config, rejection: Rejection) {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let entry = Quarantined { subject: subject.to_owned(), config: config.clone(), rejection, unix_s };
        if let Some(dir) = &self.dir {
            let written = append(&dir.join("quarantine.jsonl"), &line_of(&entry));
            self.note(written);
        }
        self.entries.push(entry);
    }

    /// Records, on disk before it returns, that `config` is about to run for the first time.
    pub fn begin(&mut self, subject: &str, config: &Config) -> Begun {
        self.begun += 1;
        let id = self.begun;
        self.write(&Intent::About { id, subject: subject.to_owned(), config: config.clone() }, true);
        Begun(id)
    }

    /// Records that a candidate has come back.
    pub fn end(&mut self, Begun(id): Begun) {
        self.write(&Intent::Done { id }, false);
    }

    fn write(&mut self, intent: &Intent, durable: bool) {
        let Some((_, file)) = &mut self.journal else { return };
        let written = file.write_all(line_of(intent).as_bytes());
        let written = if durable { written.and_then(|()| file.sync_data()) } else { written };
        self.note(written);
    }

    fn note(&mut self, written: std::io::Result<()>) {
        if let Err(e) = written {
            self.warning = Some(format!("quarantine: {e}; kept in memory only"));
        }
    }

    fn attach(&mut self, dir: &Path) -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        let text = match fs::read(dir.join("quarantine.jsonl")) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        // A damaged line is one forgotten candidate, which will be caught again.
        self.entries = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        self.journal = Some(own_journal(dir)?);
        self.dir = Some(dir.to_owned());
        for (subject, config) in orphans(dir)? {
            if self.find(&subject, &config).is_none() {
                let how = "the tuner or the machine died while it ran".to_owned();
                self.add(&subject, &config, Rejection::Crashed(how));
            }
        }
        Ok(())
    }
}

/// A clean end leaves no journal behind.
impl Drop for Quarantine {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.journal {
            // A journal that stays behind with nothing open in it is removed by the next start.
            let _ = fs::remove_file(path);
        }
    }
}

fn line_of(value: &impl Serialize) -> String {
    // Starting a line as well as ending it keeps a torn predecessor from taking this one along.
    format!("\n{}\n", serde_json::to_string(value).expect("plain data"))
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.lock()?;
    file.write_all(line.as_bytes())?;
    file.sync_data()
}

fn rewrite(path: &Path, text: &str) -> std::io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    file.lock()?;
    file.set_len(0)?;
    (&file).write_all(text.as_bytes())?;
    file.sync_data()
}

/// A new journal, locked for as long as this process lives.
fn own_journal(dir: &Path) -> std::io::Result<(PathBuf, File)> {
    for n in 0u32.. {
        let path = dir.join(format!("intent-{}-{n}.jsonl", std::process::id()));
        match OpenOptions::new().create_new(true).append(true).open(&path) {
            Ok(file) => {
                file.lock()?;
                return Ok((path, file));
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    unreachable!("four thousand million journals")
}

/// The candidates that dead processes had begun and not ended; their journals are removed.
fn orphans(dir: &Path) -> std::io::Result<Vec<(String, Config)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !(name.starts_with("intent-") && name.ends_with(".jsonl")) {
            continue;
        }
        let Ok(mut file) = OpenOptions::new().read(true).append(true).open(&path) else { continue };
        if file.try_lock().is_err() {
            continue; // its process lives
        }
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut open = BTreeMap::new();
        for intent in text.lines().filter_map(|l| serde_json::from_str(l).ok()) {
            match intent {
                Intent::About { id, subject, config } => drop(open.insert(id, (subject, config))),
                Intent::Done { id } => drop(open.remove(&id)),
            }
        }
        found.extend(open.into_values());
        fs::remove_file(&path)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(i: i64) -> Config {
        Config::new().with("V", i)
    }

    #[test]
    fn what_was_added_is_found_listed_and_cleared_by_the_next_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut q = Quarantine::open(dir.path());
        q.add("a", &v(1), Rejection::Timeout(2.0));
        q.add("b", &v(2), Rejection::Crashed("signal 11".to_owned()));
        drop(q);
        let text = fs::read_to_string(dir.path().join("quarantine.jsonl")).expect("written");
        fs::write(dir.path().join("quarantine.jsonl"), format!("{{torn{text}\u{0}")).expect("writable");
        let mut q = Quarantine::open(dir.path());
        assert_eq!(q.list().len(), 2);
        assert_eq!(q.find("a", &v(1)), Some(&Rejection::Timeout(2.0)));
        assert_eq!(q.find("b", &v(1)), None);
        assert_eq!(q.clear(Some("a")).expect("writable"), 1);
        assert_eq!(Quarantine::open(dir.path()).list().len(), 1);
        assert_eq!(q.clear(None).expect("writable"), 1);
        assert!(Quarantine::open(dir.path()).list().is_empty());
    }

    #[test]
    fn a_begun_candidate_of_a_dead_process_is_quarantined_and_one_of_a_live_process_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut q = Quarantine::open(dir.path());
        let first = q.begin("s", &v(1));
        let inner = q.begin("s", &v(3));
        let _ = q.begin("s", &v(2));
        // The one that began last ends first; another is still at work.
        q.end(inner);
        q.end(first);
        assert!(Quarantine::open(dir.path()).list().is_empty(), "its process lives");
        let (path, file) = q.journal.take().expect("on disk");
        drop(file); // what the kernel does when the process dies
        assert!(path.exists());
        let next = Quarantine::open(dir.path());
        assert_eq!(next.list().iter().map(|e| &e.config).collect::<Vec<_>>(), [&v(2)]);
        assert!(!path.exists());
    }

    #[test]
    fn an_unusable_directory_is_one_warning() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("writable");
        let mut q = Quarantine::open(&file.join("below"));
        assert!(q.warning().is_some_and(|w| w.contains("file")));
        let _ = q.begin("s", &v(1));
        q.add("s", &v(1), Rejection::Timeout(1.0));
        assert!(q.find("s", &v(1)).is_some());
    }
}
