//! The store among real processes and failing system calls: nothing that happens to its files can fail a launch, lose what
//! was acknowledged, or show a reader half a record.
//!
//! Child processes are this very test program, told by an environment variable what to do.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stdout, reason = "children tell the test what they did")]

mod faults;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_tune::scripted::{Script, Scripted};
use planish_tune::store::{
    Choice, Earlier, Frozen, Identity, Key, Layers, Locked, Ratio, Saved, Silicon, Source, State, Store, Tier, agree,
    compact, list, merge, verify,
};
use planish_tune::{Budget, Config, Event, Observer, Outcome, Policy, Resume, Task, VirtualClock, tune};

const ROLE: &str = "PLANISH_TEST_ROLE";
const ROOT: &str = "PLANISH_TEST_ROOT";
const NUMBER: &str = "PLANISH_TEST_NUMBER";

fn identity() -> Identity {
    let silicon = Silicon::new("Test CPU", [("arch", "x86_64-v3"), ("cores", "2")]).into();
    Identity { silicon, kernel: "k1".into(), toolchain: "rustc 1".into(), ..Identity::default() }
}

fn key(n: u64) -> Key {
    Key::new("matvec", [("rows", (n as i64).into())])
}

/// A tuned choice for `key(n)` made by process `by`.
fn choice(n: u64, by: u64) -> Choice {
    Choice {
        key: key(n),
        identity: identity(),
        config: Config::new().with("BY", by as i64).with("ROWS", n as i64),
        source: Source::Tuned,
        state: State::Tuned,
        ratio: Ratio { lo: 1.1, mid: 1.2, hi: 1.3 },
        ns_median: 100.0,
        written_ms: 1,
        evidence: None,
    }
}

fn open(root: &Path) -> Store {
    Store::open(Layers { user: Some(root.to_owned()), ..Layers::default() })
}

fn warnings(store: &mut Store) -> Vec<String> {
    store.take_warnings().iter().map(ToString::to_string).collect()
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// A child of this program in a role.
fn child(role: &str, root: &Path, number: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(ROOT, root).env(NUMBER, number.to_string()).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Not a test by itself: what a child does.
#[test]
fn role() {
    let (root, number) = (PathBuf::from(env(ROOT)), env(NUMBER).parse().unwrap_or(0));
    match env(ROLE).as_str() {
        "append" => append(&root, number),
        "publish" => publish(&root, number),
        "look up" => look_up(&root, false),
        "look up, then open" => look_up(&root, true),
        "tune" => tune_and_die(&root, number),
        "rank" => rank(&root, number),
        _ => {}
    }
}

/// The lines of a child that begin with `mark`, without it.
fn said(output: &Output, mark: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|l| l.strip_prefix(mark).map(|rest| rest.trim().to_owned())).collect()
}

#[track_caller]
fn must_pass(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{:?}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
}

/// Looks up what is there, appends five choices and looks those up; says where they went and what was warned of.
fn append(root: &Path, by: u64) {
    println!();
    let mut store = open(root);
    println!("held {}", list(&store).len());
    for n in 100..105 {
        println!("saved {:?}", store.append(choice(n, by)).unwrap());
        assert_eq!(store.lookup(&key(n), &identity()).tier, Tier::Exact, "a launch gets it in any case");
    }
    warnings(&mut store).iter().for_each(|w| println!("warning {w}"));
}

fn seeded() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let mut store = open(&root);
    (0..3).for_each(|n| assert_eq!(store.append(choice(n, 0)).unwrap(), Saved::Disk));
    drop(store);
    (dir, root)
}

#[track_caller]
fn check_degrades(rules: &[faults::Rule], held: usize, why: &str) {
    let (_dir, root) = seeded();
    let output = faults::under(&mut child("append", &root, 1), rules).output().unwrap();
    must_pass(&output);
    assert_eq!(said(&output, "held"), [held.to_string()]);
    assert_eq!(said(&output, "saved"), ["Memory"; 5]);
    let warned = said(&output, "warning");
    assert_eq!(warned.len(), 1, "one warning for five appends: {warned:?}");
    assert!(warned[0].contains(why) && warned[0].contains("PLANISH_STORE"), "{}", warned[0]);
    let mut after = open(&root);
    assert_eq!((list(&after).len(), warnings(&mut after)), (3, Vec::new()), "what was there is whole");
}

#[test]
fn a_full_disk_leaves_the_store_in_memory_with_one_warning() {
    if faults::supported() {
        check_degrades(&faults::full(), 3, "No space left");
    }
}

#[test]
fn a_read_only_disk_is_read_and_leaves_the_rest_in_memory() {
    if faults::supported() {
        check_degrades(&faults::cannot_change(libc::EROFS), 3, "Read-only file system");
    }
}

#[test]
fn a_store_of_somebody_else_is_read_and_leaves_the_rest_in_memory() {
    if faults::supported() {
        check_degrades(&faults::cannot_change(libc::EACCES), 3, "Permission denied");
    }
}

#[test]
fn a_store_that_cannot_be_listed_is_empty() {
    if faults::supported() {
        check_degrades(&faults::failing(libc::SYS_getdents64, libc::EACCES), 0, "Permission denied");
    }
}

/// The disk fills up in the middle of a record: the torn line costs itself, and the records before it are whole.
#[test]
fn a_record_torn_by_a_disk_that_fills_up_costs_itself() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let line = 1 + serde_json::to_vec(&choice(100, 1)).unwrap().len() as u64;
    let output = faults::filling(&mut child("append", &root, 1), 2 * line + line / 2).output().unwrap();
    must_pass(&output);
    let saved = said(&output, "saved");
    let on_disk = saved.iter().filter(|s| *s == "Disk").count();
    assert!((1..5).contains(&on_disk) && saved[on_disk..].iter().all(|s| s == "Memory"), "{saved:?}");
    assert_eq!(said(&output, "warning").len(), 1);
    let mut after = open(&root);
    assert_eq!(list(&after).len(), on_disk);
    let told = warnings(&mut after);
    assert!(told.len() == 1 && told[0].contains("1 line skipped"), "{told:?}");
    let mut store = open(&root);
    assert_eq!(store.append(choice(103, 1)).unwrap(), Saved::Disk, "tuned again, it is stored");
    assert_eq!(list(&open(&root)).len(), on_disk + 1);
}

/// What was not forced to the disk is not called stored, and is read by the next process if it is whole.
#[test]
fn a_disk_that_cannot_sync_is_not_trusted() {
    if !faults::supported() {
        return;
    }
    let (_dir, root) = seeded();
    let rules = faults::failing(libc::SYS_fdatasync, libc::EIO);
    let output = faults::under(&mut child("append", &root, 1), &rules).output().unwrap();
    must_pass(&output);
    assert_eq!(said(&output, "saved"), ["Memory"; 5]);
    assert_eq!(said(&output, "warning").len(), 1);
    assert_eq!(warnings(&mut open(&root)), Vec::<String>::new());
}

#[test]
fn locks_that_fail_cost_nothing_and_the_shards_are_merged_later() {
    if !faults::supported() {
        return;
    }
    let (dir, root) = seeded();
    let rules = faults::failing(libc::SYS_flock, libc::ENOLCK);
    let start = |by| faults::under(&mut child("append", &root, by), &rules).spawn().unwrap();
    for output in [start(1), start(2), start(3)].map(|c| c.wait_with_output().unwrap()) {
        must_pass(&output);
        assert_eq!(said(&output, "saved"), ["Disk"; 5]);
        assert_eq!(said(&output, "warning"), Vec::<String>::new());
    }
    assert_eq!(list(&open(&root)).len(), 3 + 15);
    assert_eq!(compact(&root).unwrap().shards_merged, 4);
    // A writer that died without a lock left a shard that nobody can know to be finished: it is read, and not touched.
    let mut dying = faults::under(&mut child("publish", &root, 9), &rules).spawn().unwrap();
    let acked = first_acks(&mut dying, 4);
    dying.kill().unwrap();
    dying.wait().unwrap();
    let held = list(&open(&root)).len();
    assert!(held >= 18 + acked, "{held} records, {acked} were acknowledged");
    assert_eq!(compact(&root).unwrap().shards_skipped, 1);
    let mut other = open(&dir.path().join("other"));
    assert!(merge(&mut other, &root).unwrap().choices as usize >= 18 + acked);
}

/// Appends choices of its own for the same twelve keys, again and again.
fn publish(root: &Path, by: u64) {
    println!();
    let mut store = open(root);
    for turn in 0..80 {
        let made = Choice { ns_median: 1.0 + turn as f64, written_ms: turn + 1, ..choice(turn % 12, by) };
        assert_eq!(store.append(made).unwrap(), Saved::Disk);
        println!("ack {turn}");
    }
    assert_eq!(warnings(&mut store), Vec::<String>::new());
}

/// Waits for `n` acknowledgements.
fn first_acks(child: &mut Child, n: usize) -> usize {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
    lines.filter(|l| l.starts_with("ack")).take(n).count()
}

/// Sixteen processes write the same keys, every second one is killed on the way, a reader looks on all the time.
#[test]
fn sixteen_writers_of_the_same_keys_of_whom_half_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let mut children: Vec<Child> = (0..16).map(|by| child("publish", &root, by).spawn().unwrap()).collect();
    let mut acked = [0usize; 16];
    for (by, victim) in children.iter_mut().enumerate().step_by(2) {
        acked[by] = first_acks(victim, 1 + by);
        let mut beside = open(&root);
        assert!(list(&beside).iter().all(|l| l.entry.choice.config.int("BY").is_some_and(|b| b < 16)));
        assert!(warnings(&mut beside).len() <= by / 2, "only a killed writer may leave half a line");
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    for (by, survivor) in children.into_iter().enumerate().filter(|(by, _)| by % 2 == 1) {
        let output = survivor.wait_with_output().unwrap();
        must_pass(&output);
        acked[by] = said(&output, "ack").len();
        assert_eq!(acked[by], 80);
    }
    let mut store = open(&root);
    assert!(warnings(&mut store).len() <= 8);
    let mut held = [0usize; 16];
    for l in list(&store) {
        held[l.entry.choice.config.int("BY").unwrap() as usize] += 1;
    }
    assert!(held.iter().zip(acked).all(|(held, acked)| *held >= acked), "held {held:?}, acknowledged {acked:?}");
    let winner = |store: &Store, n| store.lookup(&key(n), &identity()).record.cloned().unwrap();
    let before: Vec<Choice> = (0..12).map(|n| winner(&store, n)).collect();
    compact(&root).unwrap();
    let after = open(&root);
    assert_eq!((0..12).map(|n| winner(&after, n)).collect::<Vec<_>>(), before, "one winner, whoever reads");
    assert_eq!(verify(&after).unwrap()[0].shards_live, 0);
}

/// A folder whose listing lags behind, as on a remote disk: both ways round it is a miss now and a hit later.
#[test]
fn a_shard_that_appears_late_or_is_listed_and_gone_costs_nothing() {
    let (_dir, root) = seeded();
    let choices = root.join(identity().silicon.hash16()).join("choices");
    let shard = fs::read_dir(&choices).unwrap().next().unwrap().unwrap().path();
    let hidden = choices.join(".not-seen-yet");
    fs::rename(&shard, &hidden).unwrap();
    let mut early = open(&root);
    assert!(early.snapshot().is_empty());
    fs::rename(&hidden, &shard).unwrap();
    early.refresh();
    assert_eq!((early.snapshot().len(), warnings(&mut early)), (3, Vec::new()));
    std::os::unix::fs::symlink("gone", choices.join("0-listed.jsonl")).unwrap();
    // It looks again, but not for ever.
    let mut store = open(&root);
    assert_eq!((store.snapshot().len(), warnings(&mut store)), (3, Vec::new()));
}

/// A million lookups with every system call forbidden: the store was opened once, and nothing of it grows.
fn look_up(root: &Path, then_open: bool) {
    let store = open(root);
    let (keys, here) = ((0..3).map(key).collect::<Vec<_>>(), identity());
    let missing = key(77);
    faults::no_call_but_exit().unwrap();
    let mut found = 0u64;
    for i in 0..1_000_000 {
        let answer = store.lookup(&keys[i % 3], &here);
        found += u64::from(answer.tier == Tier::Exact && answer.record.is_some());
        found += u64::from(store.lookup(&missing, &here).record.is_some());
    }
    if then_open {
        let _ = fs::metadata(root);
    }
    let code = if found == 1_000_000 { 42 } else { 1 };
    // SAFETY: ends the process; nothing after it runs.
    unsafe { libc::_exit(code) }
}

#[test]
fn a_million_lookups_make_no_system_call() {
    if !faults::supported() {
        return;
    }
    let (_dir, root) = seeded();
    let run = |role| child(role, &root, 0).output().unwrap().status;
    assert_eq!(run("look up").code(), Some(42), "{:?}", run("look up"));
    assert_eq!(run("look up, then open").signal(), Some(libc::SIGSYS), "the filter does catch a call");
}

/// Looks at each event, and kills the process before the one with this number is written down.
struct Dying<'j> {
    journal: &'j mut planish_tune::store::Progress,
    left: u64,
}

impl Observer for Dying<'_> {
    fn event(&mut self, event: &Event) {
        if matches!(event, Event::Measured { .. } | Event::Paired { .. }) {
            if self.left == 0 {
                // SAFETY: ends this process at once, as a user or the machine might.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            self.left -= 1;
        }
        self.journal.note(event);
    }
}

fn script() -> Script {
    Script::of_times(4, &[1e5, 0.9e5, 1.2e5, 1.05e5, 1e5, 0.97e5])
}

/// Tunes the script with what the journal has; the outcome and the candidates that were timed for it.
fn tune_with(root: &Path, left: u64) -> (Outcome, Vec<Config>, usize) {
    let store = open(root);
    let (mut journal, resume) = store.progress(&key(1), &identity(), Earlier::Use).unwrap();
    let resumed = resume.measured.len() + resume.paired.len();
    let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
    let mut subject = Scripted::new(script(), clock.clone());
    let mut observer = Dying { journal: &mut journal, left };
    let task = Task {
        budget: Budget::new(&clock, Duration::from_secs(600)),
        cancel: &cancel,
        observer: &mut observer,
        resume,
        policy: Policy::default(),
    };
    let outcome = tune(&mut subject, task).unwrap();
    let timed = subject.timed.into_iter().filter(|c| *c != script().candidates[0].config).collect();
    (outcome, timed, resumed)
}

fn tune_and_die(root: &Path, after: u64) {
    tune_with(root, after);
}

#[test]
fn a_killed_search_goes_on_and_repeats_at_most_the_measurement_it_was_at() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, timed_whole, _) = tune_with(&dir.path().join("whole"), u64::MAX);
    for after in [2, 5, 23, timed_whole.len() as u64 - 4] {
        let root = dir.path().join(after.to_string());
        let died = child("tune", &root, after).output().unwrap();
        assert_eq!(died.status.signal(), Some(libc::SIGKILL), "{:?}", String::from_utf8_lossy(&died.stderr));
        let (outcome, timed, resumed) = tune_with(&root, u64::MAX);
        // Rounds of the finals count when they are whole: three finalists take part.
        assert!((after - 2..=after).contains(&(resumed as u64)), "{resumed} of {after}: all but what it died at");
        assert_eq!(outcome.choice, whole.choice);
        let spent = timed.len() as u64 + after;
        // A round of the finals that was cut short is one measurement of all finalists.
        assert!(
            spent <= timed_whole.len() as u64 + 3,
            "{spent} timings in all, {} without the kill",
            timed_whole.len()
        );
    }
}

/// What every rank falls back on.
fn defaults() -> Frozen {
    Frozen::new((0..4).map(|n| locked(n, 0)))
}

fn locked(n: u64, v: i64) -> Locked {
    Locked {
        key: key(n),
        config: Config::new().with("V", v),
        kernel: "k1".into(),
        silicon: identity().silicon.hash16(),
    }
}

/// Tunes four keys with noise of its own, starting from a cache of its own, and freezes what it has.
fn rank(root: &Path, number: u64) {
    println!();
    let mut store = open(&root.join(format!("cache-{number}")));
    if number == 0 {
        // An old choice that nobody else has.
        store.append(Choice { config: Config::new().with("V", 3), ..choice(2, 0) }).unwrap();
    }
    let mut set = Vec::new();
    for n in 0..4 {
        if number == 5 {
            std::thread::sleep(Duration::from_millis(150));
        }
        let known = store.lookup(&key(n), &identity()).record.map(|c| c.config.clone());
        let config = known.unwrap_or_else(|| {
            let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
            let near_ties = Script::of_times(100 * number + n, &[1e5, 0.96e5, 0.955e5, 0.9605e5, 1.1e5]);
            let mut subject = Scripted::new(near_ties, clock.clone());
            let task = Task {
                budget: Budget::new(&clock, Duration::from_secs(600)),
                cancel: &cancel,
                observer: &mut planish_tune::Silent,
                resume: Resume::default(),
                policy: Policy::default(),
            };
            tune(&mut subject, task).unwrap().choice
        });
        set.push(locked(n, config.int("V").unwrap()));
    }
    let own = Frozen::new(set);
    own.write(&root.join(format!("rank-{number}.lock"))).unwrap();
    println!("own {}", own.digest());
    println!("runs {}", own.settle(&root.join("all.lock")).unwrap().digest());
}

#[test]
fn ranks_of_different_noise_caches_and_speed_run_one_set() {
    let dir = tempfile::tempdir().unwrap();
    let ranks: Vec<Child> = (0..6).map(|n| child("rank", dir.path(), n).spawn().unwrap()).collect();
    let (mut own, mut runs) = (Vec::new(), Vec::new());
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        must_pass(&output);
        own.extend(said(&output, "own"));
        runs.extend(said(&output, "runs"));
    }
    assert_eq!(runs.len(), 6, "all finish, the slow one too");
    assert!(own.iter().any(|d| *d != own[0]), "the ranks chose alike, so nothing was shown");
    assert!(runs.iter().all(|d| *d == runs[0]), "{runs:?}");
    // Without a file in common each computes the same set from the sets of all, and names where they differed.
    let sets: Vec<Frozen> = (0..6).map(|n| Frozen::read(&dir.path().join(format!("rank-{n}.lock"))).unwrap()).collect();
    let agreed = agree(&sets, &defaults());
    let mut turned = sets.clone();
    turned.rotate_left(2);
    assert_eq!(agree(&turned, &defaults()), agreed);
    assert!(agreed.unlike.contains(&key(2)), "{:?}", agreed.unlike);
    assert_eq!(agreed.set.get(&key(2)).unwrap().config.int("V"), Some(0), "what differs falls to the default");
    let named: BTreeMap<_, _> = sets[0].unlike(&sets[1]).into_iter().map(|u| (u.key.clone(), u.to_string())).collect();
    assert!(named[&key(2)].starts_with("matvec rows=2: V=3 and V="), "{named:?}");
}
