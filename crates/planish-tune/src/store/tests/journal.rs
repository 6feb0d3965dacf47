//! The journal of an unfinished tuning run: what an interruption, damage and a second process cost.

use std::fs;

use super::*;
use crate::event::{Event, Resume};
use crate::store::progress::{Earlier, Progress};
use crate::subject::Point;

fn measured(v: i64, ns: f64) -> Event {
    Event::Measured { config: Config::new().with("V", v), point: Point(0), ns, reps: 3, ratio: ns / 1e5 }
}

fn begin(root: &Path) -> (Progress, Resume) {
    open(root).progress(&key(1), &identity(), Earlier::Use).expect("nobody else has it open")
}

fn file(root: &Path) -> PathBuf {
    let dir = root.join(identity().silicon.hash16()).join("progress");
    fs::read_dir(dir).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn what_was_noted_is_resumed_and_goes_when_it_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, resume) = begin(dir.path());
    assert_eq!(resume, Resume::default());
    let paired = Event::Paired { config: Config::new().with("V", 1), speedups: vec![1.1], ends_round: true };
    let events = [measured(1, 9e4), measured(2, 1.2e5), paired, Event::Progress { spent_s: 1.0, left_s: 2.0 }];
    events.iter().for_each(|e| journal.note(e));
    let mut wanted = Resume::default();
    events.iter().for_each(|e| wanted.absorb(e));
    // While one process has the journal, another is told to leave the key alone.
    assert!(open(dir.path()).progress(&key(1), &identity(), Earlier::Use).is_none());
    assert!(open(dir.path()).progress(&key(2), &identity(), Earlier::Use).is_some());
    drop(journal);
    let (journal, resume) = begin(dir.path());
    assert_eq!(resume, wanted);
    journal.done();
    assert_eq!(begin(dir.path()).1, Resume::default());
}

#[test]
fn a_journal_is_of_one_key_under_one_identity() {
    let dir = tempfile::tempdir().unwrap();
    begin(dir.path()).0.note(&measured(1, 9e4));
    let store = open(dir.path());
    let newer = Identity { kernel: "k2".into(), ..identity() };
    for (key, identity) in [(key(2), identity()), (key(1), newer)] {
        assert_eq!(store.progress(&key, &identity, Earlier::Use).unwrap().1, Resume::default());
    }
    assert_eq!(store.progress(&key(1), &identity(), Earlier::Forget).unwrap().1, Resume::default());
    assert_eq!(begin(dir.path()).1, Resume::default(), "what was to be forgotten is gone");
}

#[test]
fn a_cut_at_any_byte_costs_one_measurement_and_the_next_one_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = begin(dir.path());
    (0..4).for_each(|v| journal.note(&measured(v, 1e5)));
    drop(journal);
    let path = file(dir.path());
    let text = fs::read(&path).unwrap();
    for cut in 0..text.len() {
        fs::write(&path, &text[..cut]).unwrap();
        let whole = text[..cut].iter().filter(|b| **b == b'\n').count();
        let (mut journal, resume) = begin(dir.path());
        assert_eq!(resume.measured.len(), whole, "cut at {cut}");
        journal.note(&measured(9, 2e5));
        drop(journal);
        assert_eq!(begin(dir.path()).1.measured.len(), whole + 1, "cut at {cut}, then one more");
    }
    let mut flipped = text.clone();
    flipped[text.len() / 2] ^= 4;
    fs::write(&path, flipped).unwrap();
    assert!(begin(dir.path()).1.measured.len() < 4);
}

#[test]
fn without_a_place_to_write_there_is_no_journal_and_no_trouble() {
    let mut store = Store::open(Layers::default());
    let (mut journal, resume) = store.progress(&key(1), &identity(), Earlier::Use).unwrap();
    journal.note(&measured(1, 1e5));
    journal.done();
    assert_eq!(resume, Resume::default());
    assert_eq!(warnings(&mut store), Vec::<String>::new());
}
