//! Bad candidates on every kind of machine, through a real worker: each costs itself and nobody else.
//!
//! The worker is this very test executable, told by an environment variable to serve instead of testing.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use planish_device::fake::{Fake, Fault, Script};
use planish_device::host::{HostOptions, Mode};
use planish_device::{Backend, Call, Cpu, CpuOptions, Host, Launch, Params, Plain, Source};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use planish_kernels::subject::{OpSubject, Spec};
use planish_kernels::telling::Telling;
use planish_tune::contain::{Deadlines, Quarantine, Remote, Setup, Stage, Tell, serve_stdio};
use planish_tune::{
    Admitted, Budget, Config, Outcome, Param, Point, Policy, Rejection, Resume, Sample, Silent, Space, Subject, Task,
    Timings, Value, VirtualClock, tune,
};

const SERVE: &str = "PLANISH_TEST_SERVE_KERNELS";
/// The bad one among ten.
const BAD: i64 = 3;
const N: usize = 1000;
/// The deadline of what never ends, where one like it does: a machine that stops for a while keeps it all the same.
const SHORT: Duration = Duration::from_secs(4);
/// The deadline of what ends.
const LONG: Duration = Duration::from_secs(900);

/// y = 2 x; parameter `K` tells the candidates apart, and each is as right as the next but for one.
static DOUBLE: Op = Op {
    name: "double",
    about: "y = 2 x",
    check: |_| Ok(()),
    space: |_, _| Space {
        params: vec![Param { name: "K", trades: "nothing", values: (0..10).map(Value::Int).collect() }],
        constraints: Vec::new(),
        default: Config::new().with("K", 0),
    },
    cost: |_| Cost { flops: 1, int8_ops: 0, read_bytes: 4, write_bytes: 4 },
    cases: |s| vec![s.clone()],
    problem,
    steps,
    rotated: &[0],
    reduces: &[],
};

fn problem(shape: &Shape, _: u64, _: Fill) -> Problem {
    let x: Vec<f32> = (0..N).map(|i| i as f32).collect();
    let doubled = x.iter().map(|v| 2.0 * f64::from(*v)).collect();
    let bytes = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let args = vec![Arg::In(bytes), Arg::Out(Expected::exact(Dtype::F32, doubled))];
    Problem { shape: shape.clone(), attrs: Attrs::new(), args, label: String::new() }
}

/// How the bad candidate of a shape goes wrong.
fn fault(shape: &Shape) -> String {
    shape.name("fault").to_owned()
}

#[derive(Clone, Copy)]
struct Bad(u32);
// SAFETY: a plain number.
unsafe impl Plain for Bad {}

/// # Safety
/// Arguments: n floats in, n floats out.
unsafe fn double(call: &Call<'_>) {
    match call.params.get::<Bad>().0 {
        // SAFETY: none; page zero is never mapped, and the fault is what the test is about.
        1 => unsafe { std::ptr::with_exposed_provenance_mut::<u8>(64).write_volatile(1) },
        2 => std::process::abort(),
        3 => loop {
            std::hint::spin_loop();
        },
        _ => {}
    }
    // SAFETY: one task has everything.
    unsafe {
        let x = call.args[0].read::<f32>();
        for (y, x) in call.args[1].write::<f32>(0, N).iter_mut().zip(x) {
            *y = 2.0 * x;
        }
    }
}

/// The same in the dialect; what `BAD` plants comes before it.
const TEXT: &str = "struct P { uint n; };\n\
    KERNEL(double_all, IN(float, x, 0), OUT(float, y, 1), PARAMS(P, p, 2))\n{\n    BAD;\n\
    for (uint i = TID; i < p.n; i += 32u) y[i] = 2.0f * x[i];\n}\n";

fn text_of(bad: &str) -> (String, BTreeMap<String, i64>) {
    let plant = match bad {
        "segfault" => "*(volatile unsigned*)64 = 1u",
        "abort" => "__builtin_abort()",
        "spin" => "for (volatile uint spin = 1u; spin == 1u;) {}",
        "error" => "this does not compile",
        _ => "",
    };
    let constants = if bad == "compiler" { [("SHAPE_HANG".to_owned(), 1)].into() } else { BTreeMap::new() };
    let text = if bad == "compiler" { format!("// SHAPE_HANG\n{TEXT}") } else { TEXT.to_owned() };
    (text.replace("BAD", plant), constants)
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let bad = if config.int("K") == Some(BAD) { fault(&call.shape) } else { String::new() };
    let native = machine.backend.limits().backend != "host";
    let (source, params) = if native {
        let code = ["", "segfault", "abort", "spin"].iter().position(|f| *f == bad).unwrap_or(0);
        let name = if bad.is_empty() { "double" } else { "bad" };
        (Source::Native { name, run: double }, Params::new(Bad(code as u32)))
    } else {
        let (text, constants) = text_of(&bad);
        (Source::Text { name: "double_all".into(), text, constants, threads: 32 }, Params::words(&[N as u32]))
    };
    let program = machine.backend.load(&source).map_err(|e| Rejection::Compile(e.to_string()))?;
    let (args, threads) = (call.args.clone(), if native { 1 } else { 32 });
    Ok(vec![Launch { program, args, params, tasks: 1, threads, scratch_bytes: 0, overlap: false, views: Vec::new() }])
}

/// The machine that a spec names; `cuda` is a script in which the bad program breaks the context for good.
fn machine(device: &str, fault: &str) -> Result<Box<dyn Backend>, String> {
    match device {
        "cpu" => Ok(Box::new(Cpu::new(CpuOptions { threads: Some(2) }).map_err(|e| e.to_string())?)),
        "host" => {
            let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host");
            let host = match std::env::var("PLANISH_TEST_CXX") {
                Ok(compiler) => {
                    let cache = Path::new(&compiler).with_extension("cache");
                    std::fs::create_dir_all(&cache).map_err(|e| e.to_string())?;
                    Host::with_compiler(HostOptions { cache, mode: Mode::Checked }, &compiler)
                }
                Err(_) => Host::new(HostOptions { cache, mode: Mode::Checked }),
            };
            let host = host.map_err(|e| e.to_string())?;
            Ok(Box::new(if fault == "spin" { host.with_deadline(SHORT) } else { host }))
        }
        _ => {
            let mut script = Script::default();
            script.limits.backend = "cuda".into();
            script.faults = match fault {
                "poison" => vec![Fault::Poison("bad".into(), 1)],
                "hang" => vec![Fault::Hang("bad".into(), 1)],
                "launch" => vec![Fault::Launch("bad".into(), 1)],
                _ => vec![Fault::Build("bad".into())],
            };
            Ok(Box::new(Fake::new(script)))
        }
    }
}

/// Not a test of its own: the worker's entry.
#[test]
fn worker_entry() {
    if std::env::var(SERVE).is_err() {
        return;
    }
    let mut factory = |spec: &serde_json::Value, tell: &Tell| -> Result<Box<dyn Subject>, String> {
        let spec: Spec = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
        let backend: &'static dyn Backend = Box::leak(machine(&spec.device, &fault(&spec.shape))?);
        let backend = Box::leak(Box::new(Telling::new(backend, tell)));
        let machine = Machine { backend, isa: Isa::Portable };
        Ok(Box::new(OpSubject::of(&DOUBLE, spec, machine)?.telling(tell)))
    };
    serve_stdio(&mut factory).expect("the tuner listens");
}

fn spec(device: &str, fault: &str) -> Spec {
    Spec {
        device: device.to_owned(),
        op: DOUBLE.name.to_owned(),
        shape: Shape::new().with("fault", fault),
        rotate_bytes: 0,
        read_gb_s: None,
        peak: None,
        seed: 1,
        deterministic: false,
    }
}

fn setup(spec: &Spec) -> Setup {
    let nowhere = Fake::new(Script::default());
    let hangs = |how: &str| fault(&spec.shape) == how;
    Setup {
        subject: format!("double {}", spec.device),
        space: (DOUBLE.space)(&spec.shape, &Machine { backend: &nowhere, isa: Isa::Portable }),
        points: vec![Point(0)],
        floor: vec![None],
        spec: serde_json::to_value(spec).expect("plain"),
        deadlines: Deadlines {
            build: LONG,
            prepare: LONG,
            compile: if hangs("compiler") { SHORT } else { LONG },
            admit: if hangs("spin") && spec.device == "cpu" { SHORT } else { LONG },
            time: LONG,
            sentinel: LONG,
        },
        risk: |_| 0,
    }
}

fn command(cxx: Option<PathBuf>) -> impl FnMut() -> Command {
    move || {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["worker_entry", "--exact", "--nocapture"]).env(SERVE, "1").env("RUST_BACKTRACE", "0");
        command.envs(cxx.iter().map(|cxx| ("PLANISH_TEST_CXX", cxx)));
        command
    }
}

/// Times are drawn and no time passes, since nothing here depends on it: all that are right are timed whatever else this
/// machine does.
fn tune_all(subject: &mut dyn Subject) -> Outcome {
    let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
    let task = Task {
        budget: Budget::new(&clock, Duration::from_secs(120)),
        cancel: &cancel,
        observer: &mut Silent,
        resume: Resume::default(),
        policy: Policy { timings: Timings::Random(1), looks: vec![8], search_rounds: 2, ..Policy::default() },
    };
    tune(subject, task).expect("the default works")
}

fn k(i: i64) -> Config {
    Config::new().with("K", i)
}

/// The bad candidate, ten in all, on `device`: nine are measured and the reason says `want`; where the candidate can
/// hurt, it is in quarantine and the next start does not run it again. Returns the workers of the first run.
#[track_caller]
fn check(device: &str, fault: &str, hurts: bool, want: &str) -> u32 {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(device, fault);
    let mut starts = Vec::new();
    for run in 0..2 {
        let quarantine = Arc::new(Mutex::new(Quarantine::open(dir.path())));
        let mut remote = Remote::new(setup(&spec), command(None), Arc::clone(&quarantine));
        let outcome = tune_all(&mut remote);
        let reason =
            outcome.rejected.iter().find(|(c, _)| *c == k(BAD)).map(|(_, r)| r.to_string()).unwrap_or_default();
        assert_eq!(outcome.counts.timed, 9, "{device} {fault}: {:?}", outcome.rejected);
        assert!(reason.contains(want), "{device} {fault}: {reason}");
        let kept = quarantine.lock().expect("unpoisoned").list().to_vec();
        let blamed: Vec<Config> = kept.iter().map(|e| e.config.clone()).collect();
        assert_eq!(blamed, if hurts { vec![k(BAD)] } else { vec![] }, "{device} {fault}");
        starts.push(remote.starts());
        assert!(run == 0 || remote.starts() == 1, "{device} {fault}: run again by the next start");
    }
    starts[0]
}

#[test]
fn on_the_processor_a_crash_an_abort_and_a_loop_cost_one_candidate_each() {
    assert_eq!(check("cpu", "segfault", true, "signal 11 (segmentation fault)"), 2);
    assert_eq!(check("cpu", "abort", true, "signal 6 (aborted)"), 2);
    assert_eq!(check("cpu", "spin", true, "timeout: no answer in"), 2);
}

/// What a CUDA context does after an illegal access: every later call fails, until the process is another.
#[test]
fn sticky_errors_of_a_card_cost_one_candidate() {
    assert_eq!(check("cuda", "poison", true, "left the device unusable"), 2);
    assert_eq!(check("cuda", "hang", true, "left the device unusable"), 2);
    assert_eq!(check("cuda", "launch", false, "launch 1 was refused"), 1);
    assert_eq!(check("cuda", "build", false, "does not build"), 1);
}

/// On the host executor a kernel has a process of its own, so not even the worker is lost.
#[test]
fn on_the_host_executor_a_crash_an_abort_and_a_loop_cost_one_candidate_each() {
    if support::host(Mode::Checked).is_err() {
        return support::tell("tier: host executor, containment: skipped: no C++ compiler");
    }
    assert_eq!(check("host", "segfault", true, "signal: 11"), 1);
    assert_eq!(check("host", "abort", true, "signal: 6"), 1);
    assert_eq!(check("host", "spin", true, "timeout"), 1);
    assert_eq!(check("host", "error", false, "does not compile"), 1);
}

/// A compiler that counts its work, and never ends when it is given SHAPE_HANG.
fn counting_compiler(dir: &Path) -> PathBuf {
    let (script, count) = (dir.join("cxx"), dir.join("count"));
    let real = std::env::var("CXX").ok().filter(|c| !c.is_empty()).unwrap_or_else(|| "c++".to_owned());
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in\n*--version*) exec {real} --version;;\n*-DSHAPE_HANG*) echo hang >> {count}; sleep 600;;\n\
         esac\necho compile >> {count}\nexec {real} \"$@\"\n",
        count = count.display()
    );
    std::fs::write(&script, text).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("made executable");
    script
}

/// What does not compile, and what never ends compiling, is tried once for all shapes and starts.
#[test]
fn failing_and_endless_compilations_are_tried_once() {
    if support::host(Mode::Checked).is_err() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let compiler = counting_compiler(dir.path());
    let counts = || {
        let text = std::fs::read_to_string(dir.path().join("count")).unwrap_or_default();
        ["compile", "hang"].map(|word| text.lines().filter(|l| *l == word).count())
    };
    for (fault, want) in [("error", "does not compile"), ("compiler", "no end within 4.0 s")] {
        let (mut seen, mut waited) = (Vec::new(), [Duration::ZERO; 3]);
        for shape in 0..3 {
            // A quarantine of another subject each time: another shape, another start.
            let quarantine = Arc::new(Mutex::new(Quarantine::open(&dir.path().join("quarantine"))));
            let mut spec = spec("host", fault);
            spec.shape = spec.shape.with("shape", shape as i64);
            let mut setup = setup(&spec);
            setup.subject = format!("double {shape}");
            let longest = &mut waited[shape];
            let heard = |stage: &Stage, waited: Duration| {
                if matches!(stage, Stage::Compile(_)) {
                    *longest = waited.max(*longest);
                }
            };
            let mut remote = Remote::new(setup, command(Some(compiler.clone())), quarantine).hearing(Box::new(heard));
            let outcome = tune_all(&mut remote);
            let reason = outcome.rejected.iter().find(|(c, _)| *c == k(BAD)).map(|(_, r)| r.to_string());
            assert!(reason.as_ref().is_some_and(|r| r.contains(want)), "{fault} {shape}: {reason:?}");
            assert_eq!(outcome.counts.timed, 9);
            drop(remote);
            seen.push(counts()[0]);
        }
        assert_eq!(seen[0], seen[2], "{fault}: compiled again for another shape or start");
        // The compiler may have been started again before the worker is stopped, but it is not waited for.
        let late = SHORT - Duration::from_secs(1);
        assert!(fault != "compiler" || waited[0] >= late && waited[1..].iter().all(|w| *w < late), "{waited:?}");
    }
    // The executor, the right program, the wrong one; and what never ended.
    let [compiled, hung] = counts();
    assert!(compiled == 3 && (1..=3).contains(&hung), "{compiled} {hung}");
}

/// A subject that runs out of memory with more copies than it needs goes on with fewer, and gives all of it back.
#[test]
fn memory_shrinks_before_it_runs_out_and_is_given_back() {
    let tuned = |limit: Option<usize>| {
        let mut script = Script::default();
        script.faults.extend(limit.map(Fault::AllocAbove));
        let fake = Fake::new(script);
        let mut spec = spec("fake", "none");
        spec.rotate_bytes = 100 * 4 * N as u64;
        let machine = Machine { backend: &fake, isa: Isa::Portable };
        let mut subject = OpSubject::of(&DOUBLE, spec, machine).expect("a subject");
        let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
        let task = Task {
            budget: Budget::new(&clock, Duration::from_secs(60)),
            cancel: &cancel,
            observer: &mut Silent,
            resume: Resume::default(),
            policy: Policy { timings: Timings::Random(1), ..Policy::default() },
        };
        let result = tune(&mut subject, task).map(|o| o.counts.timed).map_err(|e| e.to_string());
        let copies = subject.copies();
        drop(subject);
        let (left, peak) = fake.memory();
        assert_eq!(left, 0, "memory that was not given back with limit {limit:?}");
        (result, copies, peak)
    };
    let (result, copies, peak) = tuned(None);
    assert_eq!((result, copies), (Ok(10), Some(98)));
    // Input and output once, with what fences them: the state that a call needs.
    let state = 2 * (4 * N + 512);
    assert!(peak > 40 * state, "{peak}");
    let (result, copies, peak) = tuned(Some(20 * state));
    assert_eq!(result, Ok(10));
    assert!(copies.is_some_and(|c| (12..40).contains(&c)) && peak <= 20 * state, "{copies:?} copies, {peak} bytes");
    let (result, copies, _) = tuned(Some(state * 12 / 10));
    assert_eq!((result, copies), (Ok(10), Some(1)), "a fifth more than a call needs is enough");
    let (result, ..) = tuned(Some(state / 2));
    let why = result.expect_err("less than a call needs");
    assert!(why.contains("K=0") && why.contains("out of memory"), "{why}");
}

/// A wrapper that tells where a subject's time goes.
struct Rude<'a>(OpSubject<'a>, &'a Fake, Vec<usize>);

impl Subject for Rude<'_> {
    fn space(&self) -> &Space {
        self.0.space()
    }
    fn points(&self) -> Vec<Point> {
        self.0.points()
    }
    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        let admitted = self.0.admit(config);
        self.2.push(self.1.memory().0);
        admitted
    }
    fn time(&mut self, admitted: &Admitted, point: Point) -> Result<Sample, Rejection> {
        self.0.time(admitted, point)
    }
    fn floor(&self, point: Point) -> Option<Duration> {
        self.0.floor(point)
    }
}

/// Candidate after candidate leaves as much memory taken as the one before: nothing piles up.
#[test]
fn memory_does_not_pile_up_from_candidate_to_candidate() {
    let fake = Fake::new(Script::default());
    let machine = Machine { backend: &fake, isa: Isa::Portable };
    let subject = OpSubject::of(&DOUBLE, spec("fake", "none"), machine).expect("a subject");
    let mut rude = Rude(subject, &fake, Vec::new());
    assert_eq!(tune_all(&mut rude).counts.timed, 10);
    let last = rude.2[rude.2.len() - 1];
    assert!(rude.2.len() >= 10 && rude.2[2..].iter().all(|bytes| *bytes == last), "{:?}", rude.2);
}
