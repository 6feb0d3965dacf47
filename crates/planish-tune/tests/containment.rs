//! Real worker processes that abort, crash, hang, panic and poison: each costs one candidate and nobody else.
//!
//! The worker is this very test executable, told by an environment variable to serve instead of testing.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use planish_tune::contain::{Deadlines, Quarantine, Remote, Setup, Stage, Tell, serve_stdio};
use planish_tune::scripted::{Fault, Script, Scripted};
use planish_tune::{
    Admitted, Budget, Config, Error, Outcome, Point, Policy, Rejection, Resume, Sample, Silent, Space, Subject, Task,
    Verdict, VirtualClock, WallClock, tune,
};

const SERVE: &str = "PLANISH_TEST_SERVE";

/// Where a compiler that never ends leaves the id of its process.
const COMPILER: &str = "PLANISH_TEST_COMPILER";

/// A script in which the admission of candidate 3 goes wrong for real.
struct Real {
    scripted: Scripted,
    how: String,
    tell: Tell,
}

impl Real {
    fn go_wrong(&self) {
        match self.how.as_str() {
            // SAFETY: none; page zero is never mapped, and the fault is what the test is about.
            "wild" => unsafe { std::ptr::with_exposed_provenance_mut::<u8>(64).write_volatile(1) },
            "greedy" => {
                let mut all = Vec::new();
                loop {
                    all.push(std::hint::black_box(Vec::<u8>::with_capacity(64 << 20)));
                }
            }
            "compiler" => {
                (self.tell)(Stage::Compile("a program".to_owned()));
                // It is killed with the worker, by whoever waits for neither.
                #[allow(clippy::zombie_processes)]
                let compiler = Command::new("sleep").arg("600").spawn().expect("a process");
                let note = PathBuf::from(std::env::var(COMPILER).expect("a file"));
                std::fs::write(&note, compiler.id().to_string()).expect("written");
                // As a compiler that is a library of this process.
                std::thread::sleep(Duration::from_secs(600));
            }
            "slow reference" => {
                (self.tell)(Stage::Prepare);
                std::thread::sleep(Duration::from_millis(3500));
                (self.tell)(Stage::Run);
            }
            "endless reference" => {
                (self.tell)(Stage::Prepare);
                std::thread::sleep(Duration::from_secs(600));
            }
            _ => {}
        }
    }
}

impl Subject for Real {
    fn space(&self) -> &Space {
        self.scripted.space()
    }
    fn points(&self) -> Vec<Point> {
        self.scripted.points()
    }
    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        if config.int("V") == Some(3) {
            self.go_wrong();
        }
        self.scripted.admit(config)
    }
    fn time(&mut self, admitted: &Admitted, point: Point) -> Result<Sample, Rejection> {
        self.scripted.time(admitted, point)
    }
    fn floor(&self, point: Point) -> Option<Duration> {
        self.scripted.floor(point)
    }
}

/// Not a test of its own: the worker's entry.
#[test]
fn worker_entry() {
    let Ok(mode) = std::env::var(SERVE) else { return };
    if mode == "stalled" {
        std::thread::sleep(Duration::from_secs(600));
    }
    let mut factory = |spec: &serde_json::Value, tell: &Tell| -> Result<Box<dyn Subject>, String> {
        let script: Script = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
        let scripted = Scripted::new(script, VirtualClock::new());
        Ok(Box::new(Real { scripted, how: mode.clone(), tell: tell.clone() }))
    };
    serve_stdio(&mut factory).expect("the tuner listens");
}

fn setup(script: &Script) -> Setup {
    let s = Duration::from_secs;
    Setup {
        subject: "scripted".to_owned(),
        space: script.space(),
        points: script.points(),
        floor: vec![None; script.points().len()],
        spec: serde_json::to_value(script).expect("plain"),
        // Those of what one of these tests never ends are short.
        deadlines: Deadlines { compile: s(3), admit: s(3), ..Deadlines::default() },
        risk: |_| 0,
    }
}

fn command(mode: &'static str) -> impl FnMut() -> Command {
    move || {
        let this = std::env::current_exe().expect("this test");
        let mut command = Command::new(&this);
        if mode == "greedy" {
            // Memory ends here long before the machine's does.
            command = Command::new("sh");
            command.args(["-c", "ulimit -v 2000000; exec \"$0\" \"$@\""]).arg(this);
        }
        command.args(["worker_entry", "--exact", "--nocapture"]).env(SERVE, mode);
        // Symbolising a backtrace takes longer than the deadline on a busy machine.
        command.env("RUST_BACKTRACE", "0");
        command
    }
}

fn remote(script: &Script, mode: &'static str, quarantine: &Arc<Mutex<Quarantine>>) -> Remote<'static> {
    Remote::new(setup(script), command(mode), Arc::clone(quarantine))
}

fn tune_remote(remote: &mut Remote<'_>) -> Result<Outcome, Error> {
    let clock = WallClock::start();
    let cancel = AtomicBool::new(false);
    let task = Task {
        budget: Budget::new(&clock, Duration::from_secs(600)),
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
fn an_endless_loop_costs_one_candidate() {
    // Three seconds, or more where the default took long.
    check(Fault::Spin, "plain", "no answer in ");
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

#[test]
fn memory_that_runs_out_costs_one_candidate() {
    check(Fault::None, "greedy", "memory allocation of 67108864 bytes failed");
}

/// Whether a process is there and does anything: one that nobody waits for stays behind as a name.
fn lives(id: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = status.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).unwrap_or("X");
    !matches!(state, "Z" | "X")
}

/// A compilation has a deadline of its own, and everything that was started for it ends with it; the same program is
/// not waited for again, whatever subject wants it.
#[test]
fn a_compiler_that_never_ends_is_killed_with_its_children_and_never_waited_for_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let note = dir.path().join("compiler");
    let script = Script::of_times(1, &[1e5, 1e5, 1e5, 1e3]);
    let quarantine = Arc::new(Mutex::new(Quarantine::in_memory()));
    let stages: RefCell<Vec<(Stage, Duration)>> = RefCell::default();
    for (name, least) in [("shape A", Duration::from_secs(3)), ("shape B", Duration::ZERO)] {
        let heard = |stage: &Stage, waited: Duration| stages.borrow_mut().push((stage.clone(), waited));
        let note = note.clone();
        let command = move || {
            let mut command = Command::new(std::env::current_exe().expect("this test"));
            command.args(["worker_entry", "--exact", "--nocapture"]).env(SERVE, "compiler").env(COMPILER, &note);
            command
        };
        let mut setup = setup(&script);
        setup.subject = name.to_owned();
        let mut subject = Remote::new(setup, command, Arc::clone(&quarantine)).hearing(Box::new(heard));
        let start = Instant::now();
        let outcome = tune_remote(&mut subject).expect("the default works");
        assert!(start.elapsed() >= least, "{name}");
        assert_eq!(outcome.counts.timed, 3, "{name}");
        let refused = outcome.rejected.iter().find(|(c, _)| *c == v(3)).map(|(_, r)| r.to_string());
        assert_eq!(refused.as_deref(), Some("compile: no end within 3.0 s"), "{name}");
    }
    let waited = stages.into_inner().into_iter().filter(|(stage, _)| matches!(stage, Stage::Compile(_)));
    let waited: Vec<u64> = waited.map(|(_, waited)| waited.as_secs()).collect();
    assert_eq!(waited, [0, 1, 2, 0], "the first is heard of every second, the second is not waited for");
    let compiler = std::fs::read_to_string(&note).expect("a compiler was started");
    let patience = Instant::now() + Duration::from_secs(60);
    while lives(&compiler) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!lives(&compiler), "process {compiler} outlived its deadline");
}

/// The reference of a large shape takes longer than any kernel may: that is not the candidate's time.
#[test]
fn a_slow_reference_is_not_the_candidates_time_and_an_endless_one_not_its_fault() {
    let script = Script::of_times(1, &[1e5, 1e5, 1e5, 0.8e5]);
    let quarantine = Arc::new(Mutex::new(Quarantine::in_memory()));
    let mut subject = remote(&script, "slow reference", &quarantine);
    let outcome = tune_remote(&mut subject).expect("the default works");
    assert_eq!((outcome.choice, subject.starts()), (v(3), 1), "3.5 s of reference with 3 s for a candidate");
    let mut setup = setup(&script);
    setup.deadlines.prepare = Duration::from_millis(300);
    let mut subject = Remote::new(setup, command("endless reference"), Arc::clone(&quarantine));
    let outcome = tune_remote(&mut subject).expect("the default works");
    assert_eq!((outcome.counts.timed, subject.starts()), (3, 2));
    assert!(quarantine.lock().expect("unpoisoned").list().is_empty(), "an innocent candidate is not blamed");
}

/// A worker that does nothing at all is found out by its deadline.
#[test]
fn a_stalled_worker_is_an_error() {
    let script = Script::of_times(1, &[1e5]);
    let mut setup = setup(&script);
    setup.deadlines.build = Duration::from_millis(200);
    let mut beats = 0;
    let quarantine = Arc::new(Mutex::new(Quarantine::in_memory()));
    let heard = Box::new(|_: &Stage, _: Duration| beats += 1);
    let mut subject = Remote::new(setup, command("stalled"), quarantine).hearing(heard);
    let error = tune_remote(&mut subject).expect_err("nothing answers");
    assert!(error.to_string().contains("no answer in 0.2 s"), "{error}");
    drop(subject);
    assert_eq!(beats, 0, "shorter than a beat");
}

/// What the default risks as well is no risk: the default is run anyway.
#[test]
fn risk_is_counted_from_the_default() {
    let script = Script::of_times(1, &[1e5; 4]);
    let quarantine = Arc::new(Mutex::new(Quarantine::in_memory()));
    let mut setup = setup(&script);
    setup.risk = |c| [1, 2, 0, 1][c.int("V").expect("a number") as usize];
    let subject = Remote::new(setup, command("plain"), quarantine);
    assert_eq!([0, 1, 2, 3].map(|i| subject.risk(&v(i))), [0, 1, 0, 0]);
}

/// Not a test of its own: a tuner that is killed while a candidate spins.
#[test]
fn tuner_entry() {
    let Ok(dir) = std::env::var("PLANISH_TEST_TUNER") else { return };
    let script = Script::of_times(1, &[1e5, 0.9e5, 1e5]).fault(2, Fault::Spin);
    let mut setup = setup(&script);
    setup.deadlines.admit = Duration::from_secs(600);
    let mut subject = Remote::new(setup, command("plain"), open(Path::new(&dir)));
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
    let patience = Instant::now() + Duration::from_secs(120);
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
