//! GPU kernels with one planted fault each are refused by the check meant for it.
//!
//! A fault is an edit of the op's own text or launches on their way to the executor, so the rest stays as shipped.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use planish_device::host::{Host, HostOptions, Mode};
use planish_device::{
    Backend, Buffer, Error, HostBytes, Identity, Init, Launch, Limits, Program, Sequence, Slice, Source, Timing, Token,
};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::{self, tier};
use planish_kernels::op::{Fill, Machine, Shape};
use planish_tune::Rejection;

/// What is done to a right kernel.
#[derive(Clone, Copy, Debug)]
enum Edit {
    /// Nothing: the twin that must pass.
    Nothing,
    /// The first text becomes the second wherever it stands; it must stand somewhere.
    Text(&'static str, &'static str),
    /// Only every `n`th group is launched.
    Groups(u32),
}

/// The host executor behind an edit.
struct Planted<'a> {
    host: &'a Host,
    edit: Edit,
}

impl Backend for Planted<'_> {
    fn limits(&self) -> &Limits {
        self.host.limits()
    }
    fn identity(&self) -> &Identity {
        self.host.identity()
    }
    fn alloc(&self, bytes: usize, init: Init) -> Result<Buffer, Error> {
        self.host.alloc(bytes, init)
    }
    fn adopt(&self, bytes: HostBytes, range: Range<usize>) -> Result<Buffer, Error> {
        self.host.adopt(bytes, range)
    }
    fn write(&self, to: &Slice, bytes: &[u8]) -> Result<(), Error> {
        self.host.write(to, bytes)
    }
    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        self.host.read(from, bytes)
    }
    fn load(&self, source: &Source) -> Result<Program, Error> {
        match (source, self.edit) {
            (Source::Text { name, text, constants, threads }, Edit::Text(from, to)) => {
                assert!(text.contains(from), "{name} has no {from:?}");
                let (name, text) = (name.clone(), text.replace(from, to));
                self.host.load(&Source::Text { name, text, constants: constants.clone(), threads: *threads })
            }
            _ => self.host.load(source),
        }
    }
    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        let mut launches = launches.to_vec();
        if let Edit::Groups(n) = self.edit {
            launches.iter_mut().for_each(|l| l.tasks = l.tasks.div_ceil(n));
        }
        self.host.record(&launches)
    }
    fn submit(&self, sequence: &Sequence) -> Result<Token, Error> {
        self.host.submit(sequence)
    }
    fn wait(&self, token: Token, deadline: Duration) -> Result<(), Error> {
        self.host.wait(token, deadline)
    }
    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error> {
        self.host.time(sequences, reps)
    }
}

/// Op, shape, edit, and what the refusal must say.
const FAULTS: [(&str, &str, Edit, &str); 9] = [
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Text("if (i < p.n)", "if (i < 0u)"), "coverage"),
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Groups(2), "coverage"),
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Text("if (i < p.n)", "if (i + 8u < p.n)"), "coverage"),
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Text("if (i < p.n)", "if (i <= p.n)"), "out of bounds"),
    ("rms_norm", "rows=3,cols=577,type=f32", LOST_BARRIER, "scratch["),
    ("rms_norm", "rows=3,cols=577,type=f32", EARLY_RETURN, "barrier divergence"),
    ("rms_norm", "rows=3,cols=577,type=f32", HALF_SUM, "tolerance"),
    ("rms_norm", "rows=3,cols=577,type=f32", Edit::Text("SPEC_U32(THREADS, 0)", "#define THREADS 64u"), "reach"),
    ("rms_norm", "rows=3,cols=577,type=f32", STALE, "uninitialised"),
];

const LOST_BARRIER: Edit = Edit::Text("TG_BARRIER();                      // every partial is written", "//");
const EARLY_RETURN: Edit = Edit::Text("float sum = 0.0f;", "float sum = 0.0f; if (TID >= p.cols / 8) return;");
const HALF_SUM: Edit = Edit::Text("sum += v * v;", "sum = float(half(sum + v * v));");
/// Every lane reads a partial, though only as many as there are SIMD groups were written.
const STALE: Edit = Edit::Text("lane < simds ? float(scratch[lane]) : 0.0f", "float(scratch[lane])");

fn host() -> Option<Host> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    Host::new(HostOptions { cache, mode: Mode::Checked }).ok()
}

/// The default configuration on ordinary, then on extreme inputs.
fn gate(host: &Host, op: &str, shape: &str, edit: Edit) -> Result<f64, Rejection> {
    let op = gpu::find(op).unwrap_or_else(|| panic!("no op {op}"));
    let shape: Shape = shape.parse().expect("a shape");
    (op.op.check)(&shape).expect("a shape of the op");
    let backend = Planted { host, edit };
    let machine = Machine { backend: &backend, isa: Isa::Portable };
    let config = (op.op.space)(&shape, &machine).default;
    let mut worst = 0f64;
    for fill in [Fill::Random, Fill::Extreme] {
        worst = worst.max(tier::pass(op, &machine, &(op.op.problem)(&shape, 11, fill), &config)?);
    }
    Ok(worst)
}

#[test]
fn the_unbroken_twins_are_accepted() {
    let Some(host) = host() else { return };
    for (op, shape, ..) in FAULTS {
        gate(&host, op, shape, Edit::Nothing).unwrap_or_else(|r| panic!("{op} {shape}: {r}"));
    }
}

#[test]
fn every_fault_is_refused_by_its_check() {
    let Some(host) = host() else { return };
    for (op, shape, edit, says) in FAULTS {
        let why = match gate(&host, op, shape, edit) {
            Err(Rejection::Wrong(wrong)) => format!("{}: {}", wrong.check, wrong.detail),
            Err(other) => other.to_string(),
            Ok(worst) => panic!("{op} {edit:?} passed with {worst}"),
        };
        assert!(why.contains(says), "{op} {edit:?}: wanted {says:?}, got {why}");
    }
}
