//! Kernels with one planted fault each are refused by the check meant for it, and never timed, however fast they are.

#[path = "broken/kernels.rs"]
mod kernels;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use kernels::Fault;
use planish_device::cpu::{Cpu, CpuOptions};
use planish_device::{Backend, Sequence, Slice};
use planish_kernels::gate::{self, Case, Fenced};
use planish_kernels::op::{Op, Shape};
use planish_kernels::ops;
use planish_tune::{
    Admitted, Budget, Config, Outcome, Param, Point, Policy, Rejection, Resume, Sample, Silent, Space, Subject, Task,
    Value, WallClock, tune,
};

const MATVEC: (&str, &str) = ("matvec", "type=f32,rows=64,cols=100,act=f32,batch=1");
/// An odd number of tiles of 32 columns.
const THIRTEEN_TILES: (&str, &str) = ("matvec", "type=f32,rows=64,cols=416,act=f32,batch=1");
const GEMM: (&str, &str) = ("gemm", "type=f32,rows=64,cols=100,act=f32,batch=5");
const GLU: (&str, &str) = ("glu", "gate=silu,cols=151,batch=3,forms=f32");
const ATTENTION: (&str, &str) = ("attention", "heads=4,kv_heads=2,head_dim=50,kv=f32,context=256,batch=16,forms=f32");
const DECODE: (&str, &str) =
    ("attention_decode", "heads=4,kv_heads=2,head_dim=50,kv=f32,context=256,batch=1,forms=f32");

/// Every fault, where it is planted, and the check that must find it.
const FAULTS: [((&str, &str), Fault, &str); 27] = [
    (MATVEC, Fault::NoOp, "coverage"),
    (MATVEC, Fault::HalfTheRows, "coverage"),
    (GEMM, Fault::HalfTheRows, "coverage"),
    (MATVEC, Fault::MissedRowTail, "coverage"),
    (MATVEC, Fault::MissedColumnTail, "tolerance"),
    (MATVEC, Fault::Stale, "coverage"),
    (MATVEC, Fault::Replay, "tolerance"),
    (MATVEC, Fault::NanOnOddRows, "non-finite"),
    (GEMM, Fault::NanOnOddRows, "non-finite"),
    (MATVEC, Fault::PastTheEnd, "canary"),
    (GEMM, Fault::PastTheEnd, "canary"),
    (MATVEC, Fault::BeforeTheStart, "canary"),
    (MATVEC, Fault::ReadsPastTheEnd, "non-finite"),
    (THIRTEEN_TILES, Fault::RoundsUpStages, "non-finite"),
    (MATVEC, Fault::OverflowsAtScale, "non-finite"),
    (GEMM, Fault::OverflowsAtScale, "non-finite"),
    (MATVEC, Fault::FlushesAtScale, "tolerance"),
    (MATVEC, Fault::IgnoresAdd, "tolerance"),
    (MATVEC, Fault::AlwaysAdds, "nondeterministic"),
    (MATVEC, Fault::HalfPrecisionSum, "tolerance"),
    (MATVEC, Fault::ChangesInputLater, "input modified"),
    (MATVEC, Fault::Unsteady, "nondeterministic"),
    (GEMM, Fault::PaddingRow, "canary"),
    (GLU, Fault::OverflowsOnHuge, "non-finite"),
    (ATTENTION, Fault::WindowOffByOne, "tolerance"),
    (DECODE, Fault::WindowOffByOne, "tolerance"),
    (ATTENTION, Fault::SeesTheFuture, "tolerance"),
];

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(1) }).expect("a CPU backend")
}

fn shape(fields: &str) -> Shape {
    fields.parse().expect("a shape")
}

fn runs() -> &'static AtomicU32 {
    Box::leak(Box::new(AtomicU32::new(0)))
}

/// All cases of an op, as the tuner gates them.
struct Gate {
    op: &'static Op,
    cases: Vec<Case>,
}

impl Gate {
    fn of((op, fields): (&str, &str)) -> Gate {
        let op = ops::find(op).expect("an op of the table");
        Gate { op, cases: gate::cases(op, &shape(fields), 7) }
    }

    fn pass(&self, fault: Fault, backend: &dyn Backend) -> Result<f64, Rejection> {
        let runs = runs();
        let mut worst = 0f64;
        for case in &self.cases {
            let steps = |args: &[Slice]| kernels::launch(fault, runs, (self.op, case), backend, args);
            worst = worst.max(gate::check(backend, &case.problem, &steps)?);
        }
        Ok(worst)
    }
}

#[test]
fn the_unbroken_twins_are_accepted() {
    let cpu = cpu();
    for op in [MATVEC, GEMM, GLU, ATTENTION, DECODE] {
        let worst = Gate::of(op).pass(Fault::Nothing, &cpu).unwrap_or_else(|r| panic!("{op:?}: {r}"));
        assert!(worst <= 1.0, "{op:?}: {worst}");
    }
}

#[test]
fn every_fault_is_refused_by_its_check() {
    let cpu = cpu();
    for (op, fault, check) in FAULTS {
        match Gate::of(op).pass(fault, &cpu) {
            Err(Rejection::Wrong(wrong)) => assert_eq!(wrong.check, check, "{op:?} {fault:?}: {}", wrong.detail),
            other => panic!("{op:?} {fault:?}: {other:?}"),
        }
    }
}

/// A slow right default against broken candidates.
struct Rigged<'a> {
    cpu: &'a Cpu,
    gate: Gate,
    space: Space,
    memory: Fenced,
    sequences: HashMap<String, Sequence>,
    timed: BTreeSet<String>,
    /// Believes that every candidate is right.
    gullible: bool,
    floor: Option<Duration>,
}

const BIG: (&str, &str) = ("matvec", "type=f32,rows=128,cols=1000,act=f32,batch=1");
/// Broken kernels of `matvec` that take no more time than a right one.
const FAST: [Fault; 8] = [
    Fault::NoOp,
    Fault::HalfTheRows,
    Fault::MissedRowTail,
    Fault::MissedColumnTail,
    Fault::Stale,
    Fault::NanOnOddRows,
    Fault::IgnoresAdd,
    Fault::Unsteady,
];

fn config(fault: Fault) -> Config {
    Config::new().with("KERNEL", format!("{fault:?}").as_str())
}

impl<'a> Rigged<'a> {
    fn new(cpu: &'a Cpu, faults: &[Fault]) -> Self {
        let gate = Gate::of(BIG);
        let values = faults.iter().map(|f| Value::Name(format!("{f:?}"))).collect();
        let params = vec![Param { name: "KERNEL", trades: "right against wrong", values }];
        let memory = Fenced::new(cpu, &gate.cases[0].problem).expect("memory");
        memory.fill(cpu, &gate.cases[0].problem, 0).expect("inputs");
        Rigged {
            cpu,
            gate,
            space: Space { params, constraints: Vec::new(), default: config(Fault::Slow) },
            memory,
            sequences: HashMap::new(),
            timed: BTreeSet::new(),
            gullible: false,
            floor: None,
        }
    }

    fn fault(config: &Config) -> Fault {
        let all = [&[Fault::Slow, Fault::Nothing][..], &FAST].concat();
        all.into_iter().find(|f| config.name("KERNEL") == Some(&format!("{f:?}"))).expect("a kernel")
    }

    fn ns(&mut self, fault: Fault) -> f64 {
        let case = (self.gate.op, &self.gate.cases[0]);
        let (cpu, memory) = (self.cpu, &self.memory);
        let sequence = self.sequences.entry(format!("{fault:?}")).or_insert_with(|| {
            let launches = kernels::launch(fault, runs(), case, cpu, &memory.slices).expect("a launch");
            cpu.record(&launches).expect("a sequence")
        });
        cpu.time(std::slice::from_ref(sequence), 1).expect("a timing").ns
    }
}

impl Subject for Rigged<'_> {
    fn space(&self) -> &Space {
        &self.space
    }

    fn points(&self) -> Vec<Point> {
        vec![Point(0)]
    }

    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        let worst = if self.gullible { 0.0 } else { self.gate.pass(Self::fault(config), self.cpu)? };
        Admitted::new(config.clone(), worst)
    }

    fn time(&mut self, admitted: &Admitted, _: Point) -> Result<Sample, Rejection> {
        let fault = Self::fault(admitted.config());
        self.timed.insert(format!("{fault:?}"));
        Ok(Sample { ns: self.ns(fault), reps: 1 })
    }

    fn floor(&self, _: Point) -> Option<Duration> {
        self.floor
    }
}

fn run(subject: &mut Rigged<'_>) -> Outcome {
    let (clock, cancel) = (WallClock::start(), AtomicBool::new(false));
    let task = Task {
        // The search ends long before; a busy machine must not end it earlier.
        budget: Budget::new(&clock, Duration::from_secs(120)),
        cancel: &cancel,
        observer: &mut Silent,
        resume: Resume::default(),
        policy: Policy::default(),
    };
    tune(subject, task).expect("the default works")
}

#[test]
fn fast_and_broken_is_never_timed_nor_chosen() {
    let cpu = cpu();
    let mut subject = Rigged::new(&cpu, &[&[Fault::Slow, Fault::Nothing][..], &FAST].concat());
    let mut best = |fault| (0..20).map(|_| subject.ns(fault)).fold(f64::INFINITY, f64::min);
    let default = best(Fault::Slow);
    for fault in FAST {
        let ns = best(fault);
        assert!(ns < default, "{fault:?} takes {ns} ns, the default {default} ns");
    }
    let outcome = run(&mut subject);
    let right = [config(Fault::Slow), config(Fault::Nothing)];
    assert!(right.contains(&outcome.choice), "{} was chosen", outcome.choice);
    for fault in FAST {
        assert!(!subject.timed.contains(&format!("{fault:?}")), "{fault:?} was timed");
        let refused = outcome.rejected.iter().find(|(c, _)| *c == config(fault)).map(|(_, r)| r);
        assert!(matches!(refused, Some(Rejection::Wrong(_))), "{fault:?}: {refused:?}");
    }
    assert!(subject.timed.contains("Slow"), "the default was not timed");
}

/// Where a gate has a hole, the roofline still refuses what cannot have done the work.
#[test]
fn nothing_done_is_too_fast() {
    let cpu = cpu();
    let mut subject = Rigged::new(&cpu, &[Fault::Slow, Fault::NoOp]);
    subject.gullible = true;
    let mut best = |fault| (0..20).map(|_| subject.ns(fault)).fold(f64::INFINITY, f64::min);
    let (idle, work) = (best(Fault::NoOp), best(Fault::Slow));
    assert!(idle < work, "the idle kernel takes {idle} ns, the default {work} ns");
    subject.floor = Some(Duration::from_nanos((idle.max(1.0) * work).sqrt() as u64));
    let outcome = run(&mut subject);
    assert_eq!(outcome.choice, config(Fault::Slow));
    let refused = outcome.rejected.iter().find(|(c, _)| *c == config(Fault::NoOp)).map(|(_, r)| r);
    assert!(matches!(refused, Some(Rejection::TooFast(_))), "{refused:?}");
}
