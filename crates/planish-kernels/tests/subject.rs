//! An op as the tuner sees it, on ops made for the purpose: the tuned shape itself, the order of sums, a wrong default, a
//! wrong reference, and memory of the user's that tuning leaves alone.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_device::cpu::{Cpu, CpuOptions};
use planish_device::{Backend, Call, Init, Launch, Params, Plain, Slice, Source};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use planish_kernels::ops;
use planish_kernels::subject::{OpSubject, Spec};
use planish_tune::{
    Budget, Config, Error, Outcome, Param, Policy, Rejection, Resume, Silent, Space, Subject, Task, Timings, Value,
    Verdict, VirtualClock, tune,
};

/// y of n floats, each the sum of four of x; K tells candidates apart, ORDER turns the sums around.
const fn sums(reduces: &'static [&'static str], problem: fn(&Shape, u64, Fill) -> Problem) -> Op {
    Op {
        name: "sums",
        about: "y = sums of four",
        check: |_| Ok(()),
        space,
        cost: |_| Cost { flops: 1, int8_ops: 0, read_bytes: 4, write_bytes: 4 },
        cases: |s| vec![s.clone().with("n", 100)],
        problem,
        steps,
        rotated: &[0],
        reduces,
    }
}

static SUMS: Op = sums(&["ORDER"], right);
/// The same op, which does not say that ORDER changes bits.
static MISDECLARED: Op = sums(&[], right);
/// The same op with a reference that forgets the last of the four, as does candidate 9.
static FORGETFUL: Op = sums(&["ORDER"], forgetful);

fn space(shape: &Shape, _: &Machine<'_>) -> Space {
    let ints = |n: i64| (0..n).map(Value::Int).collect();
    let param = |name, values| Param { name, trades: "nothing", values };
    let default = Config::new().with("K", shape.size("default") as i64).with("ORDER", 0);
    Space { params: vec![param("K", ints(10)), param("ORDER", ints(2))], constraints: Vec::new(), default }
}

fn x_of(n: usize, seed: u64) -> Vec<f32> {
    // Four neighbours whose sum depends on their order.
    let at = |i: usize| [1.0, 3e-8, 3e-8, 3e-8][i % 4] * (1.0 + ((i as u64 + seed) % 97) as f32 / 128.0);
    (0..4 * n).map(at).collect()
}

fn right(shape: &Shape, seed: u64, _: Fill) -> Problem {
    sums_of(shape, seed, 4)
}

fn forgetful(shape: &Shape, seed: u64, _: Fill) -> Problem {
    let mut problem = sums_of(shape, seed, 3);
    let x: Vec<f32> = x_of(shape.size("n"), seed).into_iter().map(|v| v.max(0.5)).collect();
    let wanted = x.chunks(4).map(|c| c[..3].iter().map(|v| f64::from(*v)).sum()).collect();
    problem.args = args(&x, wanted);
    problem
}

fn sums_of(shape: &Shape, seed: u64, terms: usize) -> Problem {
    let x = x_of(shape.size("n"), seed);
    let wanted = x.chunks(4).map(|c| c[..terms].iter().map(|v| f64::from(*v)).sum()).collect();
    Problem { shape: shape.clone(), attrs: Attrs::new(), args: args(&x, wanted), label: format!("seed={seed}") }
}

fn args(x: &[f32], wanted: Vec<f64>) -> Vec<Arg> {
    let bounds = wanted.iter().map(|w: &f64| 1e-6 * w.abs()).collect();
    let expected = Expected { dtype: Dtype::F32, values: wanted, bounds, untouched: 0 };
    vec![Arg::In(x.iter().flat_map(|v| v.to_le_bytes()).collect()), Arg::Out(expected)]
}

#[derive(Clone, Copy)]
struct P {
    k: i64,
    order: i64,
    n: usize,
}
// SAFETY: plain numbers.
unsafe impl Plain for P {}

/// # Safety
/// Arguments: 4 n floats in, n floats out.
unsafe fn kernel(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: one task has everything.
    let (x, y) = unsafe { (call.args[0].read::<f32>(), call.args[1].write::<f32>(0, p.n)) };
    for (i, (y, x)) in y.iter_mut().zip(x.chunks(4)).enumerate() {
        *y = match (p.k, p.order) {
            // Right up to a size that no stand-in has.
            (7, _) if i >= 4096 => continue,
            (8, _) => 0.0,
            (9, _) => x[0] + x[1] + x[2],
            (_, 0) => ((x[0] + x[1]) + x[2]) + x[3],
            _ => ((x[3] + x[2]) + x[1]) + x[0],
        };
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let int = |name: &str| config.int(name).expect("a parameter");
    let params = Params::new(P { k: int("K"), order: int("ORDER"), n: call.shape.size("n") });
    let program = machine.backend.load(&Source::Native { name: "sums", run: kernel });
    let (program, args) = (program.map_err(|e| Rejection::Compile(e.to_string()))?, call.args.clone());
    Ok(vec![Launch {
        program,
        args,
        params,
        tasks: 1,
        threads: 1,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    }])
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(1) }).expect("a CPU backend")
}

fn spec(n: usize, default: i64, deterministic: bool) -> Spec {
    Spec {
        device: "cpu".to_owned(),
        op: "sums".to_owned(),
        shape: Shape::new().with("n", n as i64).with("default", default),
        rotate_bytes: 0,
        read_gb_s: None,
        peak: None,
        seed: 1,
        deterministic,
    }
}

fn subject<'a>(op: &'static Op, spec: Spec, cpu: &'a Cpu) -> OpSubject<'a> {
    OpSubject::of(op, spec, Machine { backend: cpu, isa: Isa::Portable }).expect("a subject")
}

fn tune_by(subject: &mut dyn Subject, timings: Timings) -> Result<Outcome, Error> {
    let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
    let task = Task {
        budget: Budget::new(&clock, Duration::from_secs(60)),
        cancel: &cancel,
        observer: &mut Silent,
        resume: Resume::default(),
        policy: Policy { timings, looks: vec![8], finalists: 1, search_rounds: 2, ..Policy::default() },
    };
    tune(subject, task)
}

fn config(k: i64, order: i64) -> Config {
    Config::new().with("K", k).with("ORDER", order)
}

/// The gate checks a hundred sums in f64; the shape itself is held against the default before anything is timed.
#[test]
fn what_is_wrong_only_above_some_size_is_refused_at_that_size() {
    let cpu = cpu();
    let admit = |n: usize| subject(&SUMS, spec(n, 0, false), &cpu).admit(&config(7, 0));
    admit(4096).expect("right up to there");
    let Err(Rejection::Wrong(wrong)) = admit(5000) else { panic!("wrong behind element 4096") };
    assert!(wrong.case.contains("n=5000 itself") && wrong.detail.contains("element 4096"), "{wrong:?}");
    subject(&SUMS, spec(5000, 0, false), &cpu).admit(&config(1, 1)).expect("another order is within tolerance");
}

/// A candidate that is right at the gate's inputs is looked at with others before it is promoted.
#[test]
fn the_second_opinion_has_inputs_of_its_own() {
    let cpu = cpu();
    let mut subject = subject(&SUMS, spec(5000, 0, false), &cpu);
    let admitted = subject.admit(&config(1, 0)).expect("right");
    subject.confirm(&admitted).expect("still right");
    let seeds: Vec<u64> = [1, 1 ^ 0x00c0_ffee].to_vec();
    assert_ne!(x_of(100, seeds[0]), x_of(100, seeds[1]));
}

#[test]
fn a_deterministic_subject_stays_in_one_reduction_class_and_is_still_tuned() {
    let cpu = cpu();
    let mut free = subject(&SUMS, spec(500, 0, false), &cpu);
    let wanted = SUMS.class(&config(0, 0));
    let mut left = 0;
    for seed in 0..5 {
        let chosen = tune_by(&mut free, Timings::Random(seed)).expect("right").choice;
        left += usize::from(SUMS.class(&chosen) != wanted);
    }
    assert!(left > 0, "of five runs without the flag some leave the class");
    let mut bound = subject(&SUMS, spec(500, 0, true), &cpu);
    let mut choices = std::collections::BTreeSet::new();
    for seed in 0..5 {
        let outcome = tune_by(&mut bound, Timings::Random(seed)).expect("right");
        assert_eq!(SUMS.class(&outcome.choice), wanted);
        choices.insert(outcome.choice);
    }
    assert!(choices.len() > 2, "{choices:?}");
    assert_ne!(bound.space().digest(), free.space().digest(), "records of one are none of the other");
}

/// The table may be wrong about what changes bits; the gate is not.
#[test]
fn a_candidate_of_another_reduction_order_is_refused_whatever_the_table_says() {
    let cpu = cpu();
    let mut subject = subject(&MISDECLARED, spec(500, 0, true), &cpu);
    subject.admit(&config(1, 0)).expect("the same bits");
    let Err(Rejection::Wrong(wrong)) = subject.admit(&config(1, 1)) else { panic!("other bits") };
    assert_eq!(wrong.check, "reduction order");
}

#[test]
fn a_wrong_default_is_an_error_that_names_it() {
    let cpu = cpu();
    let error =
        tune_by(&mut subject(&SUMS, spec(500, 8, false), &cpu), Timings::Measured).expect_err("a wrong default");
    let text = error.to_string();
    assert!(text.contains("K=8 ORDER=0") && text.contains("tolerance") && error.next_step().is_some(), "{text}");
}

/// Default and reference forget the same term, so every right candidate is refused; that is said, and soon.
#[test]
fn a_wrong_reference_is_put_in_doubt() {
    let cpu = cpu();
    let error = tune_by(&mut subject(&FORGETFUL, spec(500, 9, false), &cpu), Timings::Measured).expect_err("a doubt");
    assert!(error.to_string().contains("the reference may be wrong"), "{error}");
}

/// Adding to what is there is the case that leaves traces where a tuner runs on the user's memory.
#[test]
fn the_first_call_after_tuning_is_as_if_nothing_had_been_tuned() {
    let cpu = cpu();
    let machine = Machine { backend: &cpu, isa: Isa::Portable };
    let shape: Shape = "type=f32,rows=16,cols=32,act=f32,batch=1".parse().expect("a shape");
    let op = ops::find("matvec").expect("an op");
    let problem = (op.problem)(&shape, 5, Fill::Extreme);
    assert!(problem.attrs.is("add"), "the case that adds");
    let memory: Vec<Slice> = problem.args.iter().map(|arg| buffer(&cpu, arg)).collect();
    let call = |config: &Config| {
        let call = OpCall { op, shape: shape.clone(), attrs: problem.attrs.clone(), args: memory.clone() };
        let sequence = cpu.record(&call.steps(config, &machine).expect("legal")).expect("recorded");
        cpu.wait(cpu.submit(&sequence).expect("submitted"), Duration::from_secs(10)).expect("finished");
    };
    let contents = || -> Vec<Vec<u8>> {
        let read = |s: &Slice| {
            let mut bytes = vec![0; s.len];
            cpu.read(s, &mut bytes).expect("readable");
            bytes
        };
        memory.iter().map(read).collect()
    };
    let (before, default) = (contents(), (op.space)(&shape, &machine).default);
    call(&default);
    let untuned = contents();
    assert_ne!(before, untuned, "it adds");
    for (slice, bytes) in memory.iter().zip(&before) {
        cpu.write(slice, bytes).expect("writable");
    }
    let (device, op_name) = ("cpu".to_owned(), "matvec".to_owned());
    let spec = Spec { op: op_name, device, shape: shape.clone(), ..spec(1, 0, false) };
    let mut subject = OpSubject::new(spec, machine).expect("a subject");
    let clock = VirtualClock::new();
    let (cancel, policy) = (AtomicBool::new(false), Policy { timings: Timings::Random(3), ..Policy::default() });
    let budget = Budget::new(&clock, Duration::from_secs(1));
    let task = Task { budget, cancel: &cancel, observer: &mut Silent, resume: Resume::default(), policy };
    let outcome = tune(&mut subject, task).expect("the default works");
    assert!(matches!(outcome.verdict, Verdict::Promoted { .. }), "{:?}", outcome.verdict);
    assert!(contents() == before, "tuning touched memory that is not its own");
    call(&outcome.choice);
    assert!(contents() == untuned, "the first call after tuning differs");
}

/// Memory that holds what `arg` begins with.
fn buffer(cpu: &Cpu, arg: &Arg) -> Slice {
    let (Arg::In(bytes) | Arg::InOut(bytes, _)) = arg else { panic!("an argument with contents") };
    let all = cpu.alloc(bytes.len(), Init::Zero).expect("memory").all();
    cpu.write(&all, bytes).expect("writable");
    all
}
