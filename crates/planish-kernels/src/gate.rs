//! The numerics gate: a configuration that has not passed it cannot be timed.
//!
//! Every problem runs twice on memory fenced by canaries, with outputs poisoned differently each time.
//! Refused are writes outside the outputs, changed inputs, elements left unwritten, results that differ between the
//! two runs, NaN or infinity where the reference has none, and errors beyond the bound.
//! Reads outside the inputs show as errors, since the fences hold huge values (NaN as f16).

use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use planish_device::{Backend, Buffer, ErrorKind, Init, Launch, Slice};
use planish_tune::{Rejection, Wrong};

use crate::op::{Arg, Expected, Fill, Op, Problem, Shape};

pub(crate) const FENCE: usize = 256;
/// As a float of four such bytes -1.7e38, as f16 NaN.
pub(crate) const FENCE_BYTE: u8 = 0xfe;
/// Two poisons: a float of 0xff bytes is NaN, one of 0xcb bytes is a huge negative number.
pub(crate) const POISONS: [u8; 2] = [0xff, 0xcb];
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// Tokens by which a short step falls short of its launches.
const SHORT: i64 = 3;
/// Ops whose results scale with their inputs, or not at all: of any magnitude in, a finite one comes out.
const SCALED: [&str; 9] =
    ["matvec", "matvec_mlx", "gemm", "rms_norm", "rms_norm_add", "glu", "swiglu", "softcap", "rope"];
/// How the refusal for want of memory begins.
const OUT_OF_MEMORY: &str = "out of memory";

/// Makes the launches of a call from its argument slices.
pub type Steps<'a> = &'a dyn Fn(&[Slice]) -> Result<Vec<Launch>, Rejection>;

/// A problem, and the shape of the launches that must solve it.
pub struct Case {
    /// Inputs and expected outputs.
    pub problem: Problem,
    /// The problem's shape, or one for more tokens than the step has: a step's last chunk is short.
    pub launched: Shape,
}

/// What a case will be, before its inputs and expected outputs are made.
pub struct Plan {
    /// Shape of the problem.
    pub shape: Shape,
    /// Seed of its inputs.
    pub seed: u64,
    /// Their kind.
    pub fill: Fill,
    /// Shape of the launches.
    pub launched: Shape,
}

/// The cases of `op` at `shape`: each of its shapes with ordinary inputs, and with extreme ones in a short step.
pub fn cases(op: &Op, shape: &Shape, seed: u64) -> Vec<Case> {
    let made = |p: Plan| Case { problem: (op.problem)(&p.shape, p.seed, p.fill), launched: p.launched };
    plans(op, shape, seed).into_iter().map(made).collect()
}

/// The same before they are made.
pub fn plans(op: &Op, shape: &Shape, seed: u64) -> Vec<Plan> {
    let mut plans = Vec::new();
    for (i, shape) in (op.cases)(shape).into_iter().enumerate() {
        let seed = seed.wrapping_add(i as u64);
        plans.push(Plan { shape: shape.clone(), seed, fill: Fill::Random, launched: shape.clone() });
        // Steps of one token are never short, and have kernels of their own; so have ops whose shape has no steps.
        let launched = match stepped(op, &shape) {
            Some(batch) if batch > 1 => shape.clone().with("batch", batch + SHORT),
            _ => shape.clone(),
        };
        plans.push(Plan { shape, seed: seed ^ 0x5eed, fill: Fill::Extreme, launched });
    }
    let smallest = plans.last().map(|plan| plan.shape.clone());
    if let Some(shape) = smallest.filter(|shape| is_scaled(op, shape)) {
        for fill in [Fill::Huge, Fill::Tiny] {
            plans.push(Plan { shape: shape.clone(), seed, fill, launched: shape.clone() });
        }
    }
    plans
}

/// Tokens of a step of `op`; none where launches do not read from the step how many there are: ops of GPUs may have a
/// `batch` too, which counts sequences.
fn stepped(op: &Op, shape: &Shape) -> Option<i64> {
    (crate::ops::find(op.name).is_some() && shape.has("batch")).then(|| shape.size("batch") as i64)
}

/// Whether `op` is to be tried with inputs of other magnitudes, which tensors of halves cannot hold.
fn is_scaled(op: &Op, shape: &Shape) -> bool {
    let halves = shape.has("type") && shape.name("type") == "f16" && !shape.has("act");
    SCALED.contains(&op.name) && !halves
}

/// What the gate saw of a configuration that passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passed {
    /// The worst error over its bound, at most 1.
    pub worst: f64,
    /// Stands for the bits of all outputs.
    pub bits: u64,
}

/// Runs `problem` and compares; returns the worst error over its bound, at most 1.
pub fn check(backend: &dyn Backend, problem: &Problem, steps: Steps<'_>) -> Result<f64, Rejection> {
    pass(backend, problem, steps).map(|passed| passed.worst)
}

/// The same with the bits of what came out.
pub fn pass(backend: &dyn Backend, problem: &Problem, steps: Steps<'_>) -> Result<Passed, Rejection> {
    let launch = |e: planish_device::Error| refused(&e, DEADLINE);
    let fenced = Fenced::new(backend, problem).map_err(launch)?;
    let sequence = backend.record(&steps(&fenced.slices)?).map_err(unfit)?;
    let mut runs = Vec::new();
    for poison in POISONS {
        fenced.fill(backend, problem, poison).map_err(launch)?;
        run(backend, &sequence)?;
        runs.push(fenced.read(backend).map_err(launch)?);
    }
    let refuse = |check: &str, worst: f64, detail: String| {
        Rejection::Wrong(Wrong {
            check: check.to_owned(),
            case: format!("{} {}", problem.shape, problem.label),
            error_over_bound: worst,
            detail,
        })
    };
    let (mut worst, mut bits) = (0f64, DefaultHasher::new());
    for (i, arg) in problem.args.iter().enumerate() {
        let (first, second) = (&runs[0][i], &runs[1][i]);
        judge(arg, first, second)
            .map(|w| worst = worst.max(w))
            .map_err(|v| refuse(v.check, v.worst, format!("argument {i}: {}", v.detail)))?;
        if matches!(arg, Arg::Out(_) | Arg::InOut(..)) {
            bits.write(&first[FENCE..first.len() - FENCE]);
        }
    }
    Ok(Passed { worst, bits: bits.finish() })
}

/// Runs a sequence to its end, or to the deadline of the gate.
pub(crate) fn run(backend: &dyn Backend, sequence: &planish_device::Sequence) -> Result<(), Rejection> {
    let start = Instant::now();
    let token = backend.submit(sequence).map_err(|e| refused(&e, start.elapsed()))?;
    backend.wait(token, DEADLINE).map_err(|e| refused(&e, DEADLINE))
}

/// The rejection for what a machine answered, after `waited` where it is that no answer came.
pub fn refused(e: &planish_device::Error, waited: Duration) -> Rejection {
    match e.kind() {
        ErrorKind::Build => Rejection::Compile(e.to_string()),
        ErrorKind::Poisoned => Rejection::Crashed(e.to_string()),
        ErrorKind::Timeout => Rejection::Timeout(waited.as_secs_f64()),
        ErrorKind::OutOfMemory => Rejection::Launch(format!("{OUT_OF_MEMORY}: {e}")),
        ErrorKind::Unavailable | ErrorKind::BadLaunch | ErrorKind::TooLarge => Rejection::Launch(e.to_string()),
    }
}

/// Whether it was for want of memory.
pub(crate) fn is_out_of_memory(rejection: &Rejection) -> bool {
    matches!(rejection, Rejection::Launch(why) if why.starts_with(OUT_OF_MEMORY))
}

/// The rejection for launches that a machine does not record: a constraint where they ask for more than it has.
pub fn unfit(e: planish_device::Error) -> Rejection {
    match e.kind() {
        ErrorKind::TooLarge => Rejection::Constraint(e.to_string()),
        _ => refused(&e, DEADLINE),
    }
}

/// Why one argument is refused.
struct Verdict {
    check: &'static str,
    worst: f64,
    detail: String,
}

fn judge(arg: &Arg, first: &[u8], second: &[u8]) -> Result<f64, Verdict> {
    let verdict = |check, detail| Err(Verdict { check, worst: f64::INFINITY, detail });
    let len = first.len() - 2 * FENCE;
    for run in [first, second] {
        let fence = run[..FENCE].iter().chain(&run[FENCE + len..]);
        if let Some(at) = fence.into_iter().position(|b| *b != FENCE_BYTE) {
            let side = if at < FENCE {
                format!("{} bytes before the start", FENCE - at)
            } else {
                format!("{} bytes past the end", at - FENCE)
            };
            return verdict("canary", format!("wrote {side}"));
        }
    }
    let (first, second) = (&first[FENCE..FENCE + len], &second[FENCE..FENCE + len]);
    match arg {
        Arg::Scratch(_) => Ok(0.0),
        Arg::In(bytes) => {
            let changed = |run: &[u8]| bytes.iter().zip(run).position(|(a, b)| a != b);
            match changed(first).or_else(|| changed(second)) {
                Some(at) => verdict("input modified", format!("byte {at} changed")),
                None => Ok(0.0),
            }
        }
        Arg::Out(expected) => {
            covered(expected, first, second, None)?;
            compare(expected, first)
        }
        Arg::InOut(initial, expected) => {
            covered(expected, first, second, Some(initial))?;
            compare(expected, first)
        }
    }
}

/// Elements that kept their poison were never written; other differences between the runs are non-determinism.
fn covered(expected: &Expected, first: &[u8], second: &[u8], initial: Option<&[u8]>) -> Result<(), Verdict> {
    let fail = |check, detail| Err(Verdict { check, worst: f64::INFINITY, detail });
    let n = expected.values.len();
    for i in 0..n + expected.untouched {
        let span = expected.dtype.span(i);
        let (a, b) = (&first[span.clone()], &second[span.clone()]);
        let kept = match initial {
            Some(bytes) => bytes[span] == *a && a == b,
            None => poisoned(a, 0) && poisoned(b, 1),
        };
        match (i < n, kept) {
            (true, true) if initial.is_none() => {
                return fail("coverage", format!("element {i} of {n} was not written"));
            }
            (false, false) => return fail("canary", format!("element {i} is past the {n} outputs and was written")),
            // One byte may well equal a poison by chance, four do not.
            (true, false) if a != b && initial.is_none() && a.len() == 4 && poisoned(b, 1) => {
                return fail("coverage", format!("element {i} of {n} was not written in the second run"));
            }
            (true, false) if a != b => {
                return fail("nondeterministic", format!("element {i} differs between two runs: {a:?}, {b:?}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether `bytes` are those that run `run` began with.
fn poisoned(bytes: &[u8], run: usize) -> bool {
    bytes.iter().all(|b| *b == POISONS[run])
}

fn compare(expected: &Expected, bytes: &[u8]) -> Result<f64, Verdict> {
    let mut worst = (0f64, 0usize, 0f64);
    for (i, (want, bound)) in expected.values.iter().zip(&expected.bounds).enumerate() {
        let got = expected.dtype.value(&bytes[expected.dtype.span(i)]);
        if want.is_nan() != got.is_nan() || (want.is_infinite() || got.is_infinite()) && *want != got {
            let detail = format!("element {i}: got {got}, want {want}");
            return Err(Verdict { check: "non-finite", worst: f64::INFINITY, detail });
        }
        let error = (got - want).abs();
        let ratio = if want.is_nan() || error == 0.0 || got == *want { 0.0 } else { error / bound };
        let ratio = if ratio.is_nan() { f64::INFINITY } else { ratio };
        if ratio > worst.0 {
            worst = (ratio, i, got);
        }
    }
    let (ratio, i, got) = worst;
    if ratio > 1.0 {
        let detail = format!("element {i}: got {got:e}, want {:e} within {:e}", expected.values[i], expected.bounds[i]);
        return Err(Verdict { check: "tolerance", worst: ratio, detail });
    }
    Ok(ratio)
}

/// The memory of a problem, every argument between two fences.
pub struct Fenced {
    buffers: Vec<Buffer>,
    /// The arguments inside the fences.
    pub slices: Vec<Slice>,
}

impl Fenced {
    /// Allocates the arguments of `problem`.
    pub fn new(backend: &dyn Backend, problem: &Problem) -> Result<Self, planish_device::Error> {
        let mut fenced = Fenced { buffers: Vec::new(), slices: Vec::new() };
        for arg in &problem.args {
            let len = arg_len(arg);
            let buffer = backend.alloc(len + 2 * FENCE, Init::Fill(FENCE_BYTE))?;
            fenced.slices.push(buffer.slice(FENCE, len)?);
            fenced.buffers.push(buffer);
        }
        Ok(fenced)
    }

    /// Puts inputs in place and poisons the rest.
    pub fn fill(&self, backend: &dyn Backend, problem: &Problem, poison: u8) -> Result<(), planish_device::Error> {
        for (arg, slice) in problem.args.iter().zip(&self.slices) {
            match arg {
                Arg::In(bytes) | Arg::InOut(bytes, _) => backend.write(slice, bytes)?,
                Arg::Out(_) | Arg::Scratch(_) => backend.write(slice, &vec![poison; slice.len])?,
            }
        }
        Ok(())
    }

    fn read(&self, backend: &dyn Backend) -> Result<Vec<Vec<u8>>, planish_device::Error> {
        let read = |b: &Buffer| {
            let mut bytes = vec![0; b.len()];
            backend.read(&b.all(), &mut bytes).map(|()| bytes)
        };
        self.buffers.iter().map(read).collect()
    }
}

/// Bytes of an argument.
pub fn arg_len(arg: &Arg) -> usize {
    match arg {
        Arg::In(bytes) | Arg::InOut(bytes, _) => bytes.len(),
        Arg::Out(e) => match e.values.len() + e.untouched {
            0 => 0,
            n => e.dtype.span(n - 1).end,
        },
        Arg::Scratch(len) => *len,
    }
}
