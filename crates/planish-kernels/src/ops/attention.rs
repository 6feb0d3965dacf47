//! `attention` over many new tokens and `attention_decode` over one: softmax(q k) v against a key/value cache.
//!
//! Bound by reading the cache at one token, by multiply-adds at many.
//! Both walk keys in the same blocks and segments, so a token's output has the same bits either way.

use planish_device::{Call, Launch, Plain, Slice};
use planish_tune::{Config, Param, Rejection, Space, Value};

use crate::cpu::attention::{Attention, Tiles, combine, decode, prefill};
use crate::cpu::isa::Isa;
use crate::cpu::kv::{KvCache, KvData, KvLayout, KvStore, kv_store};
use crate::cpu::simd::Shared;
use crate::data;
use crate::op::{Arg, Attrs, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::ops::{NativeLaunch, forms, thread_values};
use crate::reference;
use crate::step::{self, Step};
use crate::weight::Activation;

/// Keys that the online softmax takes at once, and keys of a segment; fixed, since they decide the order of sums.
const BLOCK_K: usize = 64;
const SEGMENT: usize = 128;

/// Arguments: q f32 `[batch][heads][head_dim]`, keys, values, step, partials, then the forms of the output.
pub static ATTENTION: Op = Op {
    name: "attention",
    about: "softmax(scale q k) v of many new tokens, causal, windowed, softcapped; bound by multiply-adds",
    check,
    space: |s, m| {
        let values = [8, 16, 32, 64].map(Value::Int).to_vec();
        let trades = "queries a task: keys converted once for more of them against balance";
        space(m, Param { name: "BLOCK_Q", trades, values }, if s.size("batch") < 32 { 8 } else { 32 })
    },
    cost,
    cases: |s| {
        let small = |batch, context| s.clone().with("batch", batch).with("context", context);
        vec![small(1.max(s.size("batch") as i64).min(33), 224), small(5, 5)]
    },
    problem,
    steps,
    rotated: &[1, 2],
    reduces: &[],
};

/// Arguments as for `attention`, with one token a step.
pub static ATTENTION_DECODE: Op = Op {
    name: "attention_decode",
    about: "softmax(scale q k) v of one token; reads the cache once, so memory bandwidth is the limit",
    check,
    space: |_, m| {
        let values = [1, 2, 4, 8, 16, 32].map(Value::Int).to_vec();
        space(m, Param { name: "SPLITS", trades: "tasks a kv head: balance against merging", values }, 8)
    },
    cost,
    cases: |s| vec![s.clone().with("context", 256), s.clone().with("context", 1)],
    problem,
    steps,
    rotated: &[1, 2],
    reduces: &[],
};

/// Sizes of an attention.
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Cache type, `f16` or `f32`.
    pub kv: &'static str,
    /// Positions of the cache.
    pub context: usize,
    /// Most tokens of a step.
    pub batch: usize,
}

/// What a query sees and how scores are shaped.
pub struct Mask {
    /// Keys a query sees, its own included; 0 for all.
    pub window: usize,
    /// c = cap tanh(s / cap), if any.
    pub softcap: Option<f32>,
    /// Factor of the scores.
    pub scale: f32,
}

/// Attention of the step's tokens.
pub fn call(h: &Heads, mask: &Mask, [q, k, v]: [&Slice; 3], out: &Activation, partial: &Slice, step: &Slice) -> OpCall {
    let mut args = vec![q.clone(), k.clone(), v.clone(), step.clone(), partial.clone()];
    args.extend(out.slices());
    OpCall {
        op: if h.batch == 1 { &ATTENTION_DECODE } else { &ATTENTION },
        shape: Shape::new()
            .with("heads", h.heads as i64)
            .with("kv_heads", h.kv_heads as i64)
            .with("head_dim", h.head_dim as i64)
            .with("kv", h.kv)
            .with("context", h.context as i64)
            .with("batch", h.batch as i64)
            .with("forms", out.forms()),
        attrs: Attrs::new()
            .with("window", mask.window as f64)
            .with("softcap", f64::from(mask.softcap.unwrap_or(0.0)))
            .with("scale", f64::from(mask.scale)),
        args,
    }
}

/// Bytes of the keys and of the values of a layer's cache.
pub fn cache_bytes(kv_heads: usize, head_dim: usize, context: usize, kv: &str) -> (usize, usize) {
    let layout = KvLayout::new(kv_heads, head_dim, context);
    let element = if kv == "f32" { 4 } else { 2 };
    (layout.k_len() * element, layout.v_len() * element)
}

/// Bytes of `partials` for any position of the cache.
pub fn scratch_bytes(heads: usize, kv_heads: usize, head_dim: usize, context: usize) -> usize {
    let p = P {
        isa: Isa::Portable,
        heads,
        layout: KvLayout::new(kv_heads, head_dim, context),
        f32: true,
        scale: 1.0,
        softcap: 0.0,
        window: 0,
        tiles: TILES,
        forms: forms::Forms { f32: true, int8: false },
    };
    4 * p
        .args(&[], Shared::new(&mut []), KvData::F32 { k: Shared::new(&mut []), v: Shared::new(&mut []) }, 1, context)
        .partials_len()
}

const TILES: Tiles = Tiles { block_q: 32, block_k: BLOCK_K, segment: SEGMENT, splits: 8 };

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["heads", "kv_heads", "head_dim", "context", "batch"], &["kv", "forms"])?;
    let (heads, kv_heads) = (shape.size("heads"), shape.size("kv_heads"));
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || shape.size("head_dim") == 0 {
        return Err(format!("{shape}: {heads} heads do not share {kv_heads} kv heads"));
    }
    if !matches!(shape.name("kv"), "f16" | "f32") {
        return Err(format!("{shape}: kv is neither f16 nor f32"));
    }
    if shape.size("batch") > shape.size("context") {
        return Err(format!("{shape}: more tokens than positions"));
    }
    forms::check(&shape.clone().with("cols", (heads * shape.size("head_dim")) as i64))
}

fn space(machine: &Machine<'_>, param: Param, default: i64) -> Space {
    let threads = i64::from(machine.backend.limits().max_threads);
    let default = Config::new().with(param.name, default).with("THREADS", threads);
    let trades = "more cores against waiting for them";
    let threads = Param { name: "THREADS", trades, values: thread_values(machine) };
    Space { params: vec![param, threads], constraints: Vec::new(), default }
}

/// Positions at which the op is timed: a filled cache up to the length of a conversation's turn.
fn keys(shape: &Shape) -> usize {
    shape.size("context").min(512.max(shape.size("batch")))
}

fn cost(shape: &Shape) -> Cost {
    let (heads, kv_heads, dim) = (shape.size("heads"), shape.size("kv_heads"), shape.size("head_dim"));
    let (n, keys) = (shape.size("batch"), keys(shape));
    let element = if shape.name("kv") == "f32" { 4 } else { 2 };
    let pairs = n * keys - n * (n - 1) / 2;
    Cost {
        flops: (4 * dim * heads * pairs) as u64,
        int8_ops: 0,
        read_bytes: (2 * kv_heads * dim * keys * element + 4 * n * heads * dim) as u64,
        write_bytes: (4 * n * heads * dim) as u64,
    }
}

#[derive(Clone, Copy)]
struct P {
    isa: Isa,
    heads: usize,
    layout: KvLayout,
    f32: bool,
    scale: f32,
    softcap: f32,
    window: usize,
    tiles: Tiles,
    forms: forms::Forms,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

impl P {
    fn args<'a>(
        &self,
        q: &'a [f32],
        out: Shared<'a, f32>,
        data: KvData<'a>,
        queries: usize,
        keys: usize,
    ) -> Attention<'a> {
        Attention {
            q,
            q_stride: self.cols(),
            out,
            cache: KvCache { layout: self.layout, data },
            heads: self.heads,
            queries,
            keys,
            scale: self.scale,
            softcap: (self.softcap > 0.0).then_some(self.softcap),
            window: (self.window > 0).then_some(self.window),
            tiles: self.tiles,
        }
    }

    fn cols(&self) -> usize {
        self.heads * self.layout.head_dim
    }

    /// The attention of the step in the call's arguments.
    ///
    /// # Safety
    /// Arguments as documented at `ATTENTION`.
    unsafe fn of<'a>(&self, call: &Call<'a>) -> Attention<'a> {
        let cols = self.cols();
        // SAFETY: the contract of the op: arguments 1 and 2 hold the cache, the rest rows of `cols` values.
        unsafe {
            let step = Step::of(call, 3);
            let data = cache(call, 1, self.f32);
            let out = call.args[if self.forms.f32 { 5 } else { 4 }];
            // Without an f32 form the rows are written where the partials end, and rounded from there.
            let skip = if self.forms.f32 { 0 } else { out.len / 4 - step.n * cols };
            let out = Shared::from_raw(out.ptr.cast::<f32>().wrapping_add(skip), step.n * cols);
            let q = &call.args[0].read::<f32>()[..step.n * cols];
            self.args(q, out, data, step.n, step.pos + step.n)
        }
    }
}

/// The cache in arguments `first` and the next.
///
/// # Safety
/// They hold keys and values of the type that `f32` says.
pub(crate) unsafe fn cache<'a>(call: &Call<'a>, first: usize, f32: bool) -> KvData<'a> {
    let (k, v) = (call.args[first], call.args[first + 1]);
    // SAFETY: forwarded.
    unsafe {
        if f32 {
            KvData::F32 { k: Shared::from_raw(k.ptr.cast(), k.len / 4), v: Shared::from_raw(v.ptr.cast(), v.len / 4) }
        } else {
            KvData::F16 { k: Shared::from_raw(k.ptr.cast(), k.len / 2), v: Shared::from_raw(v.ptr.cast(), v.len / 2) }
        }
    }
}

fn params(call: &OpCall, config: &Config, machine: &Machine<'_>) -> P {
    let s = &call.shape;
    let int = |name: &str, or: usize| config.int(name).map_or(or, |v| v.max(1) as usize);
    P {
        isa: machine.isa,
        heads: s.size("heads"),
        layout: KvLayout::new(s.size("kv_heads"), s.size("head_dim"), s.size("context")),
        f32: s.name("kv") == "f32",
        scale: call.attrs.get("scale") as f32,
        softcap: call.attrs.get("softcap") as f32,
        window: call.attrs.get("window") as usize,
        tiles: Tiles { block_q: int("BLOCK_Q", TILES.block_q), splits: int("SPLITS", TILES.splits), ..TILES },
        forms: forms::of(s),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let p = params(call, config, machine);
    let (batch, context) = (call.shape.size("batch"), call.shape.size("context"));
    let threads = config.int("THREADS").unwrap_or(1) as u32;
    let empty = || Shared::new(&mut []);
    let sizing = p.args(&[], empty(), KvData::F32 { k: empty(), v: empty() }, batch, context);
    let launch = |name, run, tasks, scratch| {
        let launch = NativeLaunch { name, run, params: p, tasks, threads, scratch_bytes: 4 * scratch };
        launch.launch(machine, call.args.clone())
    };
    if batch == 1 {
        let tasks = p.layout.kv_heads * p.tiles.splits;
        let split = launch("attention_split", run_split, tasks, sizing.decode_scratch())?;
        return Ok(vec![split, launch("attention_merge", run_merge, 1, p.cols())?]);
    }
    let mut launches = vec![launch("attention", run, sizing.prefill_tasks(), sizing.prefill_scratch())?];
    if p.forms.int8 {
        launches.push(launch("attention_round", run_round, batch, 0)?);
    }
    Ok(launches)
}

/// # Safety
/// Arguments as documented at `ATTENTION`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; tasks own their blocks of queries.
    unsafe {
        let args = p.of(call);
        let tasks = call.tasks.start as usize..(call.tasks.end as usize).min(args.prefill_tasks());
        if !tasks.is_empty() {
            prefill(p.isa)(&args, tasks, call.scratch.write(0, args.prefill_scratch()));
        }
    }
}

/// # Safety
/// Arguments as documented at `ATTENTION`.
unsafe fn run_round(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; tasks are rows.
    unsafe {
        let step = Step::of(call, 3);
        let args = p.of(call);
        for row in call.tasks.start as usize..(call.tasks.end as usize).min(step.n) {
            round(call, p, &args, row);
        }
    }
}

/// Rounds row `row` of the output to 8-bit blocks.
///
/// # Safety
/// The row is complete and this thread's alone.
unsafe fn round(call: &Call<'_>, p: &P, args: &Attention<'_>, row: usize) {
    let cols = p.cols();
    // SAFETY: forwarded.
    unsafe {
        let x = std::slice::from_raw_parts(args.out.at(row * cols, cols), cols);
        forms::round(call, if p.forms.f32 { 6 } else { 5 }, p.isa, row, x);
    }
}

/// # Safety
/// Arguments as documented at `ATTENTION`.
unsafe fn run_split(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; tasks own their partials.
    unsafe {
        let args = p.of(call);
        let tasks = call.tasks.start as usize..(call.tasks.end as usize).min(args.decode_tasks());
        if !tasks.is_empty() {
            let partials = partials(call, &args);
            decode(p.isa)(&args, tasks, &partials, call.scratch.write(0, args.decode_scratch()));
        }
    }
}

/// # Safety
/// Argument 4 holds the partials.
unsafe fn partials<'a>(call: &Call<'a>, args: &Attention<'_>) -> Shared<'a, f32> {
    // SAFETY: forwarded.
    unsafe { Shared::from_raw(call.args[4].ptr.cast(), args.partials_len()) }
}

/// # Safety
/// Arguments as documented at `ATTENTION`, after all of `run_split`.
unsafe fn run_merge(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; there is one task.
    unsafe {
        let mut args = p.of(call);
        if !p.forms.f32 {
            args.out = Shared::from_raw(call.scratch.ptr.cast(), p.cols());
        }
        combine(p.isa)(&args, 0..p.heads, &partials(call, &args));
        if p.forms.int8 {
            round(call, p, &args, 0);
        }
    }
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (heads, kv_heads, dim) = (shape.size("heads"), shape.size("kv_heads"), shape.size("head_dim"));
    let (batch, context) = (shape.size("batch"), shape.size("context"));
    let keys = keys(shape);
    let mut rng = data::Rng::new(seed);
    let f32 = shape.name("kv") == "f32";
    let q = data::floats(&mut rng, batch * heads * dim, Fill::Random);
    let mut k = data::floats(&mut rng, keys * kv_heads * dim, Fill::Random);
    let mut v = data::floats(&mut rng, keys * kv_heads * dim, Fill::Random);
    if fill == Fill::Extreme {
        v.iter_mut().for_each(|v| *v *= 1000.0);
    }
    if !f32 {
        for x in k.iter_mut().chain(&mut v) {
            *x = half::f16::from_f32(*x).to_f32();
        }
    }
    let extreme = fill == Fill::Extreme;
    let (window, softcap) = if extreme { (keys / 3 + 1, 5.0) } else { (0, 0.0) };
    let scale = if extreme { 0.5 } else { 1.0 / (dim as f64).sqrt() };
    let reference = reference::attention::Shape {
        queries: batch,
        keys,
        heads,
        kv_heads,
        head_dim: dim,
        scale,
        softcap: (softcap > 0.0).then_some(softcap),
        window: (window > 0).then_some(window),
    };
    let lift = reference::lift::<f64>;
    let (y64, y32) = if fill == Fill::Unjudged {
        (vec![0.0; q.len()], vec![0.0; q.len()])
    } else {
        let y64 = reference::attention::attention(&reference, &lift(&q), &lift(&k), &lift(&v));
        (y64, reference::attention::attention(&reference, &q, &k, &v))
    };
    let (ks, vs) = store(KvLayout::new(kv_heads, dim, context), f32, &k, &v);
    let pos = keys - batch;
    let mut args = vec![
        Arg::In(data::bytes(&q)),
        Arg::In(ks),
        Arg::In(vs),
        Arg::In(step::encode(&vec![0; batch], pos as u32)),
        Arg::Scratch(scratch_bytes(heads, kv_heads, dim, context).max(4 * batch * heads * dim)),
    ];
    args.extend(forms::expected(forms::of(shape), &y64, (&y32, &[])));
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new().with("window", window as f64).with("softcap", softcap).with("scale", scale),
        args,
        label: format!("{fill:?} seed={seed} keys={keys}"),
    }
}

/// The bytes of a cache that holds `k` and `v` at the first positions and NaN elsewhere.
pub(crate) fn store(layout: KvLayout, f32: bool, k: &[f32], v: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let stride = layout.kv_heads * layout.head_dim;
    let tokens = k.len() / stride;
    macro_rules! store {
        ($t:ty, $kind:ident, $poison:expr) => {{
            let (mut ks, mut vs) = (vec![$poison; layout.k_len()], vec![$poison; layout.v_len()]);
            let data = KvData::$kind { k: Shared::new(&mut ks), v: Shared::new(&mut vs) };
            let args = KvStore { k, v, stride, first: 0, cache: KvCache { layout, data } };
            // SAFETY: one thread, buffers of the layout's size.
            unsafe { kv_store(Isa::Portable)(&args, 0..tokens * layout.kv_heads) };
            let bytes = |x: Vec<$t>| x.iter().flat_map(|e| e.to_le_bytes()).collect();
            (bytes(ks), bytes(vs))
        }};
    }
    if f32 { store!(f32, F32, f32::NAN) } else { store!(u16, F16, 0x7e00u16) }
}
