//! GPU kernels with one planted fault each are refused by the check meant for it.
//!
//! A fault is an edit of the op's own text or launches on their way to the executor, so the rest stays as shipped.

mod support;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use planish_device::host::{Host, Mode};
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
    /// The first text becomes the second wherever it stands; it must stand in some text of the op.
    Text(&'static str, &'static str),
    /// Two such edits.
    Texts([(&'static str, &'static str); 2]),
    /// Only every `n`th group is launched.
    Groups(u32),
}

/// The host executor behind an edit.
struct Planted<'a> {
    host: &'a Host,
    edit: Edit,
    /// Which of the texts to replace were found.
    found: [AtomicBool; 2],
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
        let edits: &[(&str, &str)] = match &self.edit {
            Edit::Text(from, to) => &[(from, to)],
            Edit::Texts(both) => both,
            _ => &[],
        };
        let Source::Text { name, text, constants, threads } = source else { return self.host.load(source) };
        let edit = |text: String, ((from, to), found): (&(&str, &str), &AtomicBool)| {
            found.fetch_or(text.contains(from), Ordering::Relaxed);
            text.replace(from, to)
        };
        let text = edits.iter().zip(&self.found).fold(text.clone(), edit);
        let (name, constants) = (name.clone(), constants.clone());
        self.host.load(&Source::Text { name, text, constants, threads: *threads })
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
const FAULTS: [(&str, &str, Edit, &str); 34] = [
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Text("if (i < p.n)", "if (i < 0u)"), "coverage"),
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Groups(2), "coverage"),
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Text("if (i < p.n)", "if (i + 8u < p.n)"), "coverage"),
    ("swiglu", "n=1031,gate=silu,type=f32", Edit::Text("if (i < p.n)", "if (i <= p.n)"), "out of bounds"),
    ("rms_norm", "rows=3,cols=577,type=f32", LOST_BARRIER, "scratch["),
    ("rms_norm", "rows=3,cols=577,type=f32", EARLY_RETURN, "barrier divergence"),
    ("rms_norm", "rows=3,cols=577,type=f32", HALF_SUM, "tolerance"),
    ("rms_norm", "rows=3,cols=577,type=f32", Edit::Text("SPEC_U32(THREADS, 0)", "#define THREADS 64u"), "reach"),
    ("rms_norm", "rows=3,cols=577,type=f32", STALE, "uninitialised"),
    ("barrier", "groups=2,rounds=9", Edit::Text("GRID_BARRIER(sync);", ""), "nondeterministic"),
    ("matvec", "type=f32,act=f32,rows=7,cols=516", HALF_DOT, "tolerance"),
    ("gemm", GEMM, Edit::Text("if (height == 8u && width == 8u)", "if (height > 0u)"), "coverage"),
    ("gemm", GEMM, Edit::Text("(row < p.m && column < p.n)", "(row < p.m)"), "out of bounds"),
    ("gemm", "m=9,n=7,k=416,layout=nn,out=f32,type=f32", STAGES_IN_PAIRS, "out of bounds"),
    ("attention", WINDOW, Edit::Text("- int(m.window) + 1", "- int(m.window)"), "tolerance"),
    ("attention", WINDOW, Edit::Text("clip(last + 1, m.keys)", "clip(last + 2, m.keys)"), "tolerance"),
    ("attention", NO_KEYS, Edit::Text("high == -INF ? 0.0f : high", "high"), "non-finite"),
    (
        "attention",
        WINDOW,
        Edit::Text("TG_BARRIER();                                 // the keys are read", "//"),
        "race",
    ),
    ("cross_entropy", "tokens=2,vocab=33,softcap=0,smooth=1,reduction=mean,type=f16", IDLE, "non-finite"),
    ("cross_entropy", "tokens=2,vocab=33,softcap=0,smooth=1,reduction=mean,type=f16", RAGGED, "tolerance"),
    ("sample", "rows=9,vocab=13,history=27", SAMPLER_TAIL, "uninitialised"),
    ("matvec_mlx", MLX, APART, "tolerance"),
    ("matvec_mlx", MLX, HALF_WEIGHT, "tolerance"),
    ("matvec_mlx", "bits=8,group=32,type=bf16,rows=4,cols=160", HALF_WEIGHT, "tolerance"),
    (
        "rms_norm_backward",
        "rows=67,cols=1,type=f32",
        Edit::Text("/ float(p.cols) + p.eps)", "/ float(p.cols))"),
        "tolerance",
    ),
    ("rms_norm_backward", "rows=5,cols=1031,type=f32", Edit::Text("along * s /", "0.9999f * along * s /"), "tolerance"),
    ("rms_norm_backward", "rows=5,cols=1031,type=f32", HALF_PULL, "tolerance"),
    ("attention_backward", CAPPED, FLAT_SLOPE, "tolerance"),
    ("cross_entropy_backward", "tokens=5,vocab=257,softcap=1,smooth=1,reduction=sum,type=f32", BENT_SLOPE, "tolerance"),
    ("linear_cross_entropy_dh", DH, Edit::Text("* exp(c - lse) -", "* float(half(exp(c - lse))) -"), "tolerance"),
    (
        "gdn_recurrent",
        GDN,
        Edit::Text("const float x = alpha * state", "const float x = float(half(alpha)) * state"),
        "tolerance",
    ),
    ("swiglu_linear", "cols=524,outs=5,rank=0,rows=1,type=f32", HALF_GATE, "tolerance"),
    ("decode", TOKEN, OFF_NORM, "tolerance"),
    ("decode", CAPPED_TOKEN, OFF_NORM, "tolerance"),
];

const GEMM: &str = "m=300,n=37,k=12,layout=nn,out=f32,type=f32";
/// Thirteen tiles of 32 columns taken two at a time: the last pair reads a tile that is not there.
const STAGES_IN_PAIRS: Edit = Edit::Texts([
    ("k0 < p.k; k0 += SHAPE_TILE_K", "k0 < (p.k + 63u) / 64u * 64u; k0 += SHAPE_TILE_K"),
    ("a, m0, p.m, k0, p.k, TID)", "a, m0, p.m, k0, p.k + 32u, TID)"),
]);
const WINDOW: &str =
    "causal=1,head_dim=64,heads=2,keys=33,kv_heads=2,queries=33,sequences=1,softcap=0,type=f32,window=5";
/// Twenty-six queries come before the first key.
const NO_KEYS: &str =
    "causal=1,head_dim=64,heads=4,keys=19,kv_heads=1,queries=45,sequences=1,softcap=0,type=f32,window=0";
const HALF_DOT: Edit = Edit::Text(
    "acc[r] += dot(weight_quad(w + rows[r], TYPE, k), a);",
    "acc[r] = float(half(acc[r] + dot(weight_quad(w + rows[r], TYPE, k), a)));",
);
/// Threads past a short vocabulary take part, as a SIMD group of -inf without the guard against -inf - -inf.
const IDLE: Edit = Edit::Texts([
    ("for (uint i = TID; i < n; i += THREADS * ELEMS)", "for (uint i = TID; i < n + THREADS; i += THREADS * ELEMS)"),
    ("return top == -INF ? 0.0f : top;", "return top;"),
]);
/// The mean of logits for label smoothing misses those of the last, short round.
const RAGGED: Edit = Edit::Text("if (v < n) all += c[e];", "if (v + 1u < n) all += c[e];");
const SAMPLER_TAIL: Edit =
    Edit::Text("simd_max(LANE < simds ? as_float(scratch[LANE]) : -INF)", "simd_max(as_float(scratch[LANE]))");

/// The dot of a group as scale sum(q x) + offset sum(x), which cancel where a large x meets a small weight.
const MLX: &str = "bits=8,group=32,type=bf16,rows=900,cols=160";
const APART: Edit = Edit::Texts([
    (
        "const float scale = float(scales[group]), offset = float(offsets[group]);",
        "const float scale = float(scales[group]);",
    ),
    (
        "dot(mlx_quad(unit, 0, scale, offset), a) + dot(mlx_quad(unit, 4, scale, offset), b);",
        "dot(mlx_quad(unit, 0, scale, 0.0f), a) + dot(mlx_quad(unit, 4, scale, 0.0f), b) + \
         float(offsets[group]) * (a.x + a.y + a.z + a.w + (b.x + b.y + b.z + b.w));",
    ),
]);
const HALF_WEIGHT: Edit = Edit::Text(
    "return fma(code, scale * as_float((127u - up) << 23), offset);",
    "return float(half(fma(code, scale * as_float((127u - up) << 23), offset)));",
);
const HALF_PULL: Edit =
    Edit::Text("along += v * float(dy[at + c]) * w[c];", "along = float(half(along + v * float(dy[at + c]) * w[c]));");
const CAPPED: &str =
    "causal=1,head_dim=64,heads=2,keys=131,kv_heads=2,queries=67,sequences=1,softcap=1,type=f32,window=0";
/// The slope of a cap as 1 - tanh^2, of which nothing is left where tanh is nearly 1.
const FLAT_SLOPE: Edit =
    Edit::Text("return 4.0f * e / ((1.0f + e) * (1.0f + e));", "return 1.0f - tanh(x) * tanh(x) + 0.0f * e;");
const BENT_SLOPE: Edit = Edit::Text("return 4.0f * e /", "return 4.0004f * e /");
const DH: &str = "tokens=3,hidden=9,vocab=1063,bias=0,softcap=0,smooth=0,reduction=mean,type=f32";
const GDN: &str = "batch=1,heads=2,init=1,key_dim=24,key_heads=1,mask=1,steps=65,type=f32,value_dim=7";
const HALF_GATE: Edit = Edit::Text("float a = simd_sum(gate[t])", "float a = float(half(simd_sum(gate[t])))");

const TOKEN: &str = "hidden=32,layers=1,heads=1,kv_heads=1,head_dim=8,rotary=8,ffn=32,vocab=9,capacity=1,keys=1,window=0,\
     softcap=0,norm=none,bias=none,post=none,pairs=halves,gate=silu,act=f32,body=f32,v=f32,down=f16,head=bf16";
const CAPPED_TOKEN: &str = "hidden=64,layers=2,heads=4,kv_heads=1,\
     head_dim=24,rotary=24,ffn=64,vocab=33,capacity=70,keys=64,window=0,softcap=5,norm=head,bias=none,\
     post=post,pairs=halves,gate=gelu,act=f32,body=q4_0,v=iq4_nl,down=q4_0,head=f16";
/// A twenty thousandth, far under what a rounding to f16 is off by.
const OFF_NORM: Edit = Edit::Text("return rsqrt(group_total(", "return 1.00005f * rsqrt(group_total(");

const LOST_BARRIER: Edit = Edit::Text("TG_BARRIER();                      // every partial is written", "//");
const EARLY_RETURN: Edit = Edit::Text("float sum = 0.0f;", "float sum = 0.0f; if (TID >= p.cols / 8) return;");
const HALF_SUM: Edit = Edit::Text("sum += v * v;", "sum = float(half(sum + v * v));");
/// Every lane reads a partial, though only as many as there are SIMD groups were written.
const STALE: Edit = Edit::Text("lane < simds ? float(scratch[lane]) : 0.0f", "float(scratch[lane])");

fn host() -> Option<Host> {
    support::host(Mode::Checked).ok()
}

/// The default configuration on ordinary, then on extreme inputs.
fn gate(host: &Host, op: &str, shape: &str, edit: Edit) -> Result<f64, Rejection> {
    let op = gpu::find(op).unwrap_or_else(|| panic!("no op {op}"));
    let shape: Shape = shape.parse().expect("a shape");
    (op.op.check)(&shape).expect("a shape of the op");
    let backend = Planted { host, edit, found: Default::default() };
    let machine = Machine { backend: &backend, isa: Isa::Portable };
    let config = (op.op.space)(&shape, &machine).default;
    let pass = |fill| tier::pass(op, &machine, &(op.op.problem)(&shape, 11, fill), &config).map(|passed| passed.worst);
    let worst = pass(Fill::Random).and_then(|worst| Ok(worst.max(pass(Fill::Extreme)?)));
    let texts = match edit {
        Edit::Text(..) => 1,
        Edit::Texts(both) => both.len(),
        Edit::Nothing | Edit::Groups(_) => 0,
    };
    let found = backend.found.iter().filter(|found| found.load(Ordering::Relaxed)).count();
    assert_eq!(found, texts, "{} has the texts of {edit:?}", op.op.name);
    worst
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
