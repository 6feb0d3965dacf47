//! `matvec` and `gemm`: y = W x for one token or many; bound by reading W at one token, by byte products at many.

use planish_device::{Call, Launch, Plain, Slice};
use planish_tune::{Config, Constraint, Param, Rejection, Space, Value};

use crate::cpu::isa::Isa;
use crate::cpu::matmul::{self, BlockMeta, Class, GROUP, Kind, Knobs, Layout, MatmulArgs, MatmulFn, Store, Variant, X};
use crate::data;
use crate::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::ops::{NativeLaunch, thread_values};
use crate::quant::{WeightType, dequantize};
use crate::step::{self, Step};
use crate::weight::{Activation, Activations, Weight};

/// y = W x for one token; arguments: W, step, y f32, x (f32, or codes and metadata), then a bias where there is one.
///
/// With the attribute `add` the result is added to y.
pub static MATVEC: Op = Op {
    name: "matvec",
    about: "y = W x for one token; reads every weight once, so memory bandwidth is the only limit",
    check,
    space,
    cost,
    cases,
    problem,
    steps,
    rotated: &[0],
    reduces: &[],
};

/// y = W x for the tokens of a prefill step; arguments as for `matvec`.
pub static GEMM: Op = Op {
    name: "gemm",
    about: "y = W x for many tokens; bound by byte products, so weights are taken apart once for several tokens",
    check,
    space,
    cost,
    cases,
    problem,
    steps,
    rotated: &[0],
    reduces: &[],
};

/// `out = weight * x`.
pub fn call(w: &Weight, class: Activations, batch: usize, x: &Activation, out: &Slice, step: &Slice) -> OpCall {
    assert_eq!(w.cols, x.cols, "matrix of {} columns meets activations of {}", w.cols, x.cols);
    let class = class.meeting(w.ty);
    let mut args = vec![w.data.clone(), step.clone(), out.clone()];
    args.extend(x.meeting(class));
    OpCall {
        op: if batch == 1 { &MATVEC } else { &GEMM },
        shape: Shape::new()
            .with("type", w.ty.name())
            .with("rows", w.rows as i64)
            .with("cols", w.cols as i64)
            .with("act", class.name())
            .with("batch", batch as i64),
        attrs: Attrs::new(),
        args,
    }
}

impl OpCall {
    /// The same product with `bias` added, where there is one.
    pub fn with_bias(mut self, bias: Option<&Slice>) -> Self {
        if let Some(bias) = bias {
            self.args.push(bias.clone());
            self.attrs = self.attrs.with("bias", 1.0);
        }
        self
    }

    /// The same product, added to what the output holds.
    pub fn adding(mut self) -> Self {
        self.attrs = self.attrs.with("add", 1.0);
        self
    }
}

/// The typed view of a shape.
struct Sizes {
    layout: Layout,
    class: Class,
    batch: usize,
}

fn sizes(shape: &Shape) -> Result<Sizes, String> {
    let ty = WeightType::from_name(shape.name("type")).ok_or_else(|| format!("{shape}: unknown type"))?;
    let layout = Layout::of(ty, shape.size("rows"), shape.size("cols")).map_err(|e| e.to_string())?;
    let class = match shape.name("act") {
        "f32" => Class::F32,
        "int8" if !ty.is_float() => Class::Int8,
        other => return Err(format!("{shape}: {ty} weights have no activation class {other}")),
    };
    Ok(Sizes { layout, class, batch: shape.size("batch") })
}

fn check(shape: &Shape) -> Result<(), String> {
    shape.check(&["rows", "cols", "batch"], &["type", "act"])?;
    let sizes = sizes(shape)?;
    if sizes.batch == 0 || sizes.layout.rows() == 0 || sizes.layout.cols() == 0 {
        return Err(format!("{shape}: no size may be zero"));
    }
    Ok(())
}

fn kind(shape: &Shape) -> Kind {
    if shape.size("batch") == 1 { Kind::Matvec } else { Kind::Matmul }
}

/// The kernels that fit, the default first.
fn variants(shape: &Shape, isa: Isa) -> Vec<&'static Variant> {
    let Ok(s) = sizes(shape) else { return Vec::new() };
    let wanted = (isa, s.class, s.layout.weight(), kind(shape));
    matmul::variants().iter().filter(|v| (v.isa, v.class, v.weight, v.kind) == wanted).collect()
}

fn tile(v: &Variant) -> String {
    format!("t{}g{}", v.tokens, v.row_groups)
}

/// Rows that one task computes, when nothing is known better: about 64 KiB of weights, and eight tasks a thread at least.
fn default_rows(layout: &Layout, threads: usize, values: &[i64]) -> i64 {
    let by_bytes = 65536 * GROUP / layout.group_bytes().max(1);
    let by_threads = layout.rows() / (8 * threads);
    let wanted = by_bytes.min(by_threads).max(GROUP) as i64;
    values.iter().copied().rev().find(|v| *v <= wanted).unwrap_or(values[0])
}

fn space(shape: &Shape, machine: &Machine<'_>) -> Space {
    let variants = variants(shape, machine.isa);
    let sizes = sizes(shape).expect("shape was checked");
    let threads = machine.backend.limits().max_threads;
    let mut rows: Vec<i64> =
        if sizes.batch == 1 { vec![8, 16, 32, 64, 128, 256, 512] } else { vec![16, 32, 64, 128, 256] };
    // One task a thread: no claims and one unbroken run of weights each, at the price of waiting for the slowest.
    let even = sizes.layout.rows().div_ceil(threads as usize).next_multiple_of(16) as i64;
    let default = default_rows(&sizes.layout, threads as usize, &rows);
    if !rows.contains(&even) {
        rows.push(even);
    }
    let knob: Vec<Value> = match kind(shape) {
        Kind::Matvec => matmul::PREFETCH_CHOICES.iter().map(|p| Value::Int(*p as i64)).collect(),
        Kind::Matmul => matmul::ROW_BLOCK_CHOICES.iter().map(|r| Value::Int(*r as i64)).collect(),
    };
    let knob_name = if kind(shape) == Kind::Matvec { "PREFETCH" } else { "ROW_BLOCK" };
    let knobs = Knobs::default();
    let knob_default = if kind(shape) == Kind::Matvec { knobs.prefetch } else { knobs.row_block };
    let total = sizes.layout.rows() as i64;
    Space {
        params: vec![
            Param {
                name: "TILE",
                trades: "registers against weight unpacking: t tokens by g groups of eight rows",
                values: variants.iter().map(|v| Value::Name(tile(v))).collect(),
            },
            Param {
                name: "ROWS",
                trades: "rows a task: balance between threads against the cost of claiming a task",
                values: rows.iter().map(|r| Value::Int(*r)).collect(),
            },
            Param { name: knob_name, trades: "latency hidden against cache displaced", values: knob },
            Param {
                name: "THREADS",
                trades: "bandwidth of more cores against waiting for them",
                values: thread_values(machine),
            },
        ],
        constraints: vec![Constraint::new(format!("ROWS <= {total} rows, rounded up to 16"), move |c| {
            c.int("ROWS").is_some_and(|r| r <= (total as u64).next_multiple_of(16) as i64)
        })],
        default: Config::new()
            .with("TILE", variants.first().map_or(String::new(), |v| tile(v)).as_str())
            .with("ROWS", default)
            .with(knob_name, knob_default as i64)
            .with("THREADS", i64::from(threads)),
    }
}

fn cost(shape: &Shape) -> Cost {
    let (rows, cols, batch) = (shape.size("rows") as u64, shape.size("cols") as u64, shape.size("batch") as u64);
    let bytes = sizes(shape).map_or(0, |s| s.layout.packed_bytes()) as u64;
    let ops = 2 * rows * cols * batch;
    let (flops, int8_ops) = if shape.name("act") == "int8" { (0, ops) } else { (ops, 0) };
    Cost { flops, int8_ops, read_bytes: bytes, write_bytes: 4 * rows * batch }
}

/// Elements of the largest matrix that the gate checks in f64.
const GATED_ELEMENTS: i64 = 4 << 20;

/// Rows of the gated case: all of them, or for a large matrix fewer that leave the same rest at every value of `ROWS`.
fn gated_rows(rows: i64, cols: i64) -> i64 {
    let most = (GATED_ELEMENTS / cols).max(1024);
    if rows <= most { rows } else { most / 512 * 512 - 512 + rows % 512 }
}

/// The shape itself (fewer rows and tokens when there are many), one block of columns, rows that end in every way, and
/// step sizes off the tile.
fn cases(shape: &Shape) -> Vec<Shape> {
    let block = sizes(shape).map_or(32, |s| s.layout.weight().record().block_elements.max(32)) as i64;
    let with =
        |rows: i64, cols: i64, batch: i64| shape.clone().with("rows", rows).with("cols", cols).with("batch", batch);
    let cols = shape.size("cols") as i64;
    let rows = gated_rows(shape.size("rows") as i64, cols);
    if shape.size("batch") == 1 {
        vec![with(rows, cols, 1), with(1, block, 1), with(37, 3 * block, 1)]
    } else {
        let batch = (shape.size("batch") as i64).min(21);
        vec![with(rows, cols, batch), with(9, block, 2), with(131, 2 * block, 5)]
    }
}

#[derive(Clone, Copy)]
struct P {
    run: MatmulFn,
    layout: Layout,
    class: Class,
    batch: usize,
    rows: usize,
    knobs: Knobs,
    scratch: usize,
    store: Store,
    bias: bool,
}

// SAFETY: plain values and a function pointer, made and read by this program only.
unsafe impl Plain for P {}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let sizes = sizes(&call.shape).map_err(Rejection::Constraint)?;
    let name = config.name("TILE").unwrap_or_default();
    let variant = variants(&call.shape, machine.isa).into_iter().find(|v| tile(v) == name);
    let variant = variant.ok_or_else(|| Rejection::Constraint(format!("no kernel TILE={name} on {}", machine.isa)))?;
    let int = |name: &str| {
        let value = config.int(name).and_then(|v| usize::try_from(v).ok());
        value.ok_or_else(|| Rejection::Constraint(format!("{name} is missing")))
    };
    let rows = int("ROWS")?;
    let mut knobs = Knobs::default();
    match variant.kind {
        Kind::Matvec => knobs.prefetch = int("PREFETCH")?,
        Kind::Matmul => knobs.row_block = int("ROW_BLOCK")?,
    }
    let scratch = variant.scratch_bytes(&sizes.layout, &knobs, rows);
    let (add, bias) = (call.attrs.is("add"), call.attrs.is("bias"));
    let params = P {
        run: variant.run,
        layout: sizes.layout,
        class: sizes.class,
        batch: sizes.batch,
        rows,
        knobs,
        scratch,
        store: if add { Store::Add } else { Store::Set },
        bias,
    };
    let launch = NativeLaunch {
        name: call.op.name,
        run,
        params,
        tasks: sizes.layout.rows().div_ceil(rows),
        threads: int("THREADS")? as u32,
        scratch_bytes: scratch,
    };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `MATVEC`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    let (rows, cols) = (p.layout.rows(), p.layout.cols());
    // SAFETY: the contract of the op; tasks are ranges of rows, so outputs are disjoint; sizes are checked here.
    unsafe {
        let tokens = if p.batch == 1 { 1 } else { Step::of(call, 1).n.min(p.batch) };
        let x = match p.class {
            Class::F32 => X::F32(&call.args[3].read::<f32>()[..tokens * cols]),
            Class::Int8 => X::Int8 {
                q: &call.args[3].read::<i8>()[..tokens * cols],
                meta: &call.args[4].read::<BlockMeta>()[..tokens * (cols / matmul::BLOCK)],
            },
        };
        let last = call.args.len() - 1;
        assert!(call.args[2].len >= tokens * rows * 4, "output of {} bytes", call.args[2].len);
        let args = MatmulArgs {
            layout: p.layout,
            weights: call.args[0].read(),
            x,
            tokens,
            out: call.args[2].ptr.cast(),
            out_stride: rows,
            bias: p.bias.then(|| call.args[last].read()),
            store: p.store,
            knobs: p.knobs,
        };
        let scratch = call.scratch.write(0, p.scratch);
        let first = call.tasks.start as usize * p.rows;
        let end = (call.tasks.end as usize * p.rows).min(rows);
        for start in (first..end).step_by(p.rows) {
            (p.run)(&args, start..(start + p.rows).min(end), scratch);
        }
    }
}

/// Block metadata as it lies in memory.
pub(crate) fn block_bytes(meta: &[BlockMeta]) -> Vec<u8> {
    let one = |m: &BlockMeta| {
        let mut bytes = Vec::with_capacity(16);
        bytes.extend([m.d, m.scaled_sum, m.sum].iter().flat_map(|v| v.to_le_bytes()));
        bytes.extend(m.halves.iter().flat_map(|v| v.to_le_bytes()));
        bytes
    };
    meta.iter().flat_map(one).collect()
}

/// The product by the plain loop, in f64 and in f32, on activations as the class rounds them.
fn reference(layout: &Layout, file: &[u8], x: &[f32]) -> (Vec<f64>, Vec<f32>, Vec<f64>) {
    let (rows, cols) = (layout.rows(), layout.cols());
    let tokens = x.len() / cols;
    let mut row = vec![0f32; cols];
    let (mut y64, mut y32) = (vec![0f64; tokens * rows], vec![0f32; tokens * rows]);
    let mut magnitude = vec![0f64; tokens * rows];
    for r in 0..rows {
        dequantize(layout.weight(), &file[r * layout.row_bytes()..][..layout.row_bytes()], &mut row);
        for t in 0..tokens {
            let x = &x[t * cols..][..cols];
            let at = t * rows + r;
            for (w, x) in row.iter().zip(x) {
                let product = f64::from(*w) * f64::from(*x);
                y64[at] += product;
                magnitude[at] += product.abs();
                y32[at] += w * x;
            }
        }
    }
    (y64, y32, magnitude)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let sizes = sizes(shape).expect("shape was checked");
    let (layout, batch) = (sizes.layout, sizes.batch);
    let (rows, cols) = (layout.rows(), layout.cols());
    let mut rng = data::Rng::new(seed);
    let file = data::weights(&mut rng, layout.weight(), rows, cols, fill);
    let mut x = data::floats(&mut rng, batch * cols, fill);
    // Half of the gated cases add to what is there and have a bias.
    let extras = fill == Fill::Extreme;
    let (residual, bias) =
        (data::floats(&mut rng, batch * rows, Fill::Random), data::floats(&mut rng, rows, Fill::Random));
    let mut forms = vec![Arg::In(data::bytes(&x))];
    if sizes.class == Class::Int8 {
        let mut codes = vec![0i8; x.len()];
        let mut meta = vec![BlockMeta::default(); x.len() / matmul::BLOCK];
        matmul::quantize(Isa::Portable, &x, &mut codes, &mut meta);
        for (i, x) in x.iter_mut().enumerate() {
            *x = meta[i / matmul::BLOCK].d * f32::from(codes[i]);
        }
        forms = vec![Arg::In(codes.iter().map(|c| *c as u8).collect()), Arg::In(block_bytes(&meta))];
    }
    let unjudged = || (vec![0.0; batch * rows], vec![0.0; batch * rows], vec![0.0; batch * rows]);
    let (mut want, plain, magnitude) = if fill == Fill::Unjudged { unjudged() } else { reference(&layout, &file, &x) };
    // A sum in any order stays within a few roundings of the sum of magnitudes (kernel-semantics 13.5: 1e-5 of it).
    let bounds: Vec<f64> = magnitude
        .iter()
        .zip(want.iter().zip(&plain))
        .map(|(m, (w, p))| {
            let rule = 2.0 * (f64::from(*p) - w).abs() + 1e-6 * m + 1e-30;
            rule.min(1e-5 * m + 1e-30) + if extras { 1e-6 } else { 0.0 }
        })
        .collect();
    if extras {
        for (i, w) in want.iter_mut().enumerate() {
            *w += f64::from(residual[i]) + f64::from(bias[i % rows]);
        }
    }
    let expected = Expected { dtype: crate::op::Dtype::F32, values: want, bounds, untouched: 0 };
    let ids = vec![0u32; batch];
    let out = if extras { Arg::InOut(data::bytes(&residual), expected) } else { Arg::Out(expected) };
    let mut args = vec![Arg::In(data::pack(&layout, &file)), Arg::In(step::encode(&ids, 0)), out];
    args.extend(forms);
    let mut attrs = Attrs::new();
    if extras {
        args.push(Arg::In(data::bytes(&bias)));
        attrs = attrs.with("bias", 1.0).with("add", 1.0);
    }
    Problem { shape: shape.clone(), attrs, args, label: format!("{fill:?} seed={seed}") }
}
