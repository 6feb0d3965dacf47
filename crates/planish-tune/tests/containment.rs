//! Real worker processes that abort, crash, hang, panic and poison: each costs one candidate and nobody else.
//!
//! The worker is this very test executable, told by an environment variable to serve instead of testing.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use planish_tune::contain::{Deadlines, Quarantine, Remote, Setup, serve_stdio};
use planish_tune::scripted::{Fault, Script, Scripted};
use planish_tune::{
    Admitted, Budget, Config, Error, Outcome, Point, Policy, Rejection, Resume, Sample, Silent, Space, Subject, Task,
    Verdict, VirtualClock, WallClock, tune,
};

const SERVE: &str = "PLANISH_TEST_SERVE";

/// A script in which candidate 3 writes through a wild pointer.
struct Wild(Scripted);

impl Subject for Wild {
    fn space(&self) -> &Space {
        self.0.space()
    }
    fn points(&self) -> Vec<Point> {
        self.0.points()
    }
    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        if config.int("V") == Some(3) {
            // SAFETY: none; page zero is never mapped, and the fault is what the test is about.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(64).write_volatile(1) };
        }
        self.0.admit(config)
    }
    fn time(&mut self, admitted: &Admitted, point: Point) -> Result<Sample, Rejection> {
        self.0.time(admitted, point)
    }
    fn floor(&self, point: Point) -> Option<Duration> {
        self.0.floor(point)
    }
}

/// Not a test of its own: the worker's entry.
#[test]
fn worker_entry() {
    let Ok(mode) = std::env::var(SERVE) else { return };
    let mut factory = |spec: &serde_json::Value| -> Result<Box<dyn Subject>, String> {
        let script: Script = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
        let scripted = Scripted::new(script, VirtualClock::new());
        Ok(if mode == "wild" { Box::new(Wild(scripted)) } else { Box::new(scripted) })
    };
    serve_stdio(&mut factory).expect("the tuner listens");
}

fn remote(script: &Script, mode: &'static str, quarantine: &Arc<Mutex<Quarantine>>) -> Remote {
    let s = Duration::from_secs;
    let setup = Setup {
        subject: "scripted".to_owned(),
        space: script.space(),
        points: script.points(),
        floor: vec![None; script.points().len()],
        spec: serde_json::to_value(script).expect("plain"),
        deadlines: Deadlines { build: s(20), admit: s(2), time: s(5), sentinel: s(5) },
        risk: |_| 0,
    };
    let command = move || {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["worker_entry", "--exact", "--nocapture"]).env(SERVE, mode);
        // Symbolising a backtrace takes longer than the deadline on a busy machine.
        command.env("RUST_BACKTRACE", "0");
        command
    };
    Remote::new(setup, command, Arc::clone(quarantine))
}

fn tune_remote(remote: &mut Remote) -> Result<Outcome, Error> {
    let clock = WallClock::start();
    let cancel = AtomicBool::new(false);
    let task = Task {
        budget: Budget::new(&clock, Duration::from_secs(60)),
        cancel: &cancel,
        observer: &mut Silent,
        resume: Resume::default(),
        policy: Policy::default(),
    };
    tune(remote, task)
}

fn v(i: i64) -> Config {
    Config::new().with("V", i)
}

fn open(dir: &Path) -> Arc<Mutex<Quarantine>> {
    Arc::new(Mutex::new(Quarantine::open(dir)))
}

/// Ten candidates of which number 3 has `fault`: nine are measured, one is quarantined, and the next start skips it.
#[track_caller]
fn check(fault: Fault, mode: &'static str, want: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut ns = [1e5; 10];
    ns[3] = 1e3;
    ns[7] = 0.8e5;
    let script = Script::of_times(1, &ns).fault(3, fault);
    let quarantine = open(dir.path());
    let mut first = remote(&script, mode, &quarantine);
    let outcome = tune_remote(&mut first).expect("the default works");
    let (measured, kept) = (outcome.counts.timed, quarantine.lock().expect("unpoisoned").list().to_vec());
    assert_eq!((measured, kept.len()), (9, 1), "{fault:?}: {:?}", outcome.rejected);
    assert_eq!(kept[0].config, v(3));
    assert!(kept[0].rejection.to_string().contains(want), "{}", kept[0].rejection);
    assert_eq!((outcome.choice, first.starts()), (v(7), 2));
    drop((first, quarantine));

    let mut next = remote(&script, mode, &open(dir.path()));
    let outcome = tune_remote(&mut next).expect("the default works");
    assert_eq!((outcome.counts.timed, next.starts()), (9, 1), "the next start does not run it again");
    assert!(matches!(outcome.verdict, Verdict::Promoted { .. }));
    assert!(outcome.rejected.iter().any(|(c, r)| *c == v(3) && *r == kept[0].rejection));
}

#[test]
fn an_abort_costs_one_candidate() {
    check(Fault::Abort, "plain", "signal 6");
}

#[test]
fn a_wild_write_costs_one_candidate() {
    check(Fault::None, "wild", "signal 11 (segmentation fault)");
}

#[test]
fn an_endless_loop_costs_one_candidate_and_one_deadline() {
    let start = Instant::now();
    check(Fault::Spin, "plain", "no answer in 2.0 s");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_panic_costs_one_candidate() {
    check(Fault::Panic, "plain", "scripted panic at V=3");
}

#[test]
fn a_poisoned_device_costs_one_candidate() {
    check(Fault::Poison, "plain", "left the device unusable: launch: sticky error 700");
}

#[test]
fn plain_refusals_cost_no_worker() {
    let script = Script::of_times(1, &[1e5, 1e3, 1e3, 0.8e5]).fault(1, Fault::OutOfMemory).fault(2, Fault::Wrong);
    let quarantine = Arc::new(Mutex::new(Quarantine::in_memory()));
    let mut subject = remote(&script, "plain", &quarantine);
    let outcome = tune_remote(&mut subject).expect("the default works");
    assert_eq!((outcome.choice, subject.starts()), (v(3), 1));
    assert_eq!(outcome.counts.rejected.values().sum::<usize>(), 2);
    assert!(quarantine.lock().expect("unpoisoned").list().is_empty());
}

#[test]
fn a_device_that_is_dead_is_an_error_not_a_loop() {
    let script = Script::of_times(1, &[1e5, 1e5]).fault(0, Fault::Abort);
    let quarantine = Arc::new(Mutex::new(Quarantine::in_memory()));
    let mut subject = remote(&script, "plain", &quarantine);
    let error = tune_remote(&mut subject).expect_err("nothing works");
    assert!(error.to_string().contains("signal 6"), "{error}");
    // Asked again and again, it gives up with one error.
    for _ in 0..5 {
        subject.admit(&v(1)).expect_err("no worker lives");
    }
    let error = subject.broken().expect("broken");
    assert!(error.to_string().contains("3 times in a row"), "{error}");
    assert_eq!(subject.starts(), 3);
    assert!(quarantine.lock().expect("unpoisoned").list().is_empty(), "an innocent candidate is not blamed");
}

#[test]
fn a_worker_that_cannot_start_is_an_error() {
    let script = Script::of_times(1, &[1e5]);
    let setup = Setup {
        subject: "scripted".to_owned(),
        space: script.space(),
        points: script.points(),
        floor: vec![None],
        spec: serde_json::Value::Null,
        deadlines: Deadlines::default(),
        risk: |_| 0,
    };
    let quarantine = Arc::new(Mutex::new(Quarantine::in_memory()));
    let mut subject = Remote::new(setup, || Command::new("/no/such/planish"), quarantine);
    let error = tune_remote(&mut subject).expect_err("nothing to start");
    assert!(error.to_string().contains("cannot start the worker"), "{error}");
}

/// Not a test of its own: a tuner that is killed while a candidate spins.
#[test]
fn tuner_entry() {
    let Ok(dir) = std::env::var("PLANISH_TEST_TUNER") else { return };
    let script = Script::of_times(1, &[1e5, 0.9e5, 1e5]).fault(2, Fault::Spin);
    let mut subject = remote(&script, "plain", &open(Path::new(&dir)));
    for i in 0..3 {
        // The last one answers only by deadline; the parent kills this process before.
        let _ = subject.admit(&v(i));
    }
}

#[test]
fn a_killed_tuner_leaves_the_candidate_it_ran_in_quarantine() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut tuner = Command::new(std::env::current_exe().expect("this test"))
        .args(["tuner_entry", "--exact"])
        .env("PLANISH_TEST_TUNER", dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let patience = Instant::now() + Duration::from_secs(20);
    let begun = || {
        let files = std::fs::read_dir(dir.path()).expect("readable").filter_map(Result::ok);
        let text: String = files.filter_map(|f| std::fs::read_to_string(f.path()).ok()).collect();
        text.trim_end().lines().last().is_some_and(|l| l.contains("about") && l.contains("\"V\":2"))
    };
    while !begun() {
        assert!(Instant::now() < patience, "the tuner never began candidate 2");
        std::thread::sleep(Duration::from_millis(2));
    }
    tuner.kill().expect("killed");
    tuner.wait().expect("gone");
    let quarantine = open(dir.path());
    let kept = quarantine.lock().expect("unpoisoned").list().to_vec();
    assert_eq!(kept.iter().map(|e| &e.config).collect::<Vec<_>>(), [&v(2)]);
    assert!(kept[0].rejection.to_string().contains("died while it ran"));
}

#[test]
fn candidates_are_told_before_they_are_admitted_but_for_those_in_quarantine() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = Script::of_times(1, &[1e5, 1.1e5, 0.9e5, 1.2e5]).fault(2, Fault::Panic);
    let quarantine = open(dir.path());
    let told: Arc<Mutex<Vec<Config>>> = Arc::default();
    for round in 0..2 {
        told.lock().expect("unpoisoned").clear();
        let heard = Arc::clone(&told);
        let ahead = move |configs: &[Config]| heard.lock().expect("unpoisoned").extend_from_slice(configs);
        let mut subject = remote(&script, "plain", &quarantine).preparing(Some(Box::new(ahead)));
        tune_remote(&mut subject).expect("the default works");
        let mut told = told.lock().expect("unpoisoned").clone();
        told.sort();
        let want = if round == 0 { vec![v(1), v(2), v(3)] } else { vec![v(1), v(3)] };
        assert_eq!(told, want, "round {round}");
    }
}
