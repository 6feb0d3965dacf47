//! `merge`: several tensors into one by nine methods; bound by memory, and by readings for ranks where a method has them.

mod reference;

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, PHILOX, REDUCE, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use reference::{METHODS, Method, Settings};

/// Arguments: base `[rows][cols]`, models `[models][rows][cols]`, weights f32 `[models]`, y `[rows][cols]`, scratch of
/// `scratch_bytes`. Attributes `lambda`, `density`, `epsilon`, `gamma`, `t`, `seed`, `tensor`, as the method needs them.
/// `base` is read by all but linear and slerp; slerp takes two models.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "merge",
        about: "linear, slerp, task, ties, dare, della, breadcrumbs, model stock; bound by memory",
        check,
        space,
        cost,
        cases: |s| vec![s.clone().with("rows", 3).with("cols", 577)],
        problem,
        steps,
        rotated: &[0, 1, 3],
        reduces: &["THREADS", "ELEMS"],
    },
    text: Text(&[
        IO,
        REDUCE,
        PHILOX,
        ("merge.k", include_str!("merge.k")),
        ("cut.k", include_str!("cut.k")),
        ("dots.k", include_str!("dots.k")),
    ]),
    shapes: &[
        "rows=1,cols=1,models=1,method=ties,type=f32",
        "rows=5,cols=211,models=3,method=linear,type=bf16",
        "rows=2,cols=1031,models=2,method=slerp,type=f32",
        "rows=3,cols=577,models=3,method=task,type=f16",
        "rows=3,cols=577,models=3,method=ties,type=bf16",
        "rows=2,cols=1237,models=2,method=breadcrumbs,type=f32",
        "rows=7,cols=97,models=2,method=dare_linear,type=f32",
        "rows=1,cols=1500,models=4,method=dare_ties,type=f16",
        "rows=2,cols=1031,models=2,method=della,type=f32",
        "rows=3,cols=700,models=3,method=model_stock,type=f32",
    ],
};

/// Most models of one merge, and most groups that share a reduction over a tensor.
const MODELS_MAX: usize = 16;
const BLOCKS_MAX: usize = 1024;
/// Bits and thresholds of a digit, and words of a cut.
const DIGIT: u32 = 4;
const PIVOTS: usize = 15;
const CUT_WORDS: usize = 4;
/// Words before the partial sums of products.
const PARTIALS_AT: usize = 8 + MODELS_MAX * (MODELS_MAX + 1) / 2;

fn method(shape: &Shape) -> Option<(i64, Method)> {
    let at = METHODS.iter().position(|(name, _)| *name == shape.name("method"))?;
    Some((at as i64, METHODS[at].1))
}

fn check(s: &Shape) -> Result<(), String> {
    s.check(&["rows", "cols", "models"], &["method", "type"])?;
    check_io(s)?;
    let (_, method) = method(s).ok_or_else(|| format!("{s}: no such method"))?;
    let (n, models) = (s.size("rows") * s.size("cols"), s.size("models"));
    if n == 0 || models == 0 || models > MODELS_MAX || n * models >= 1 << 32 {
        return Err(format!("{s}: 1 to {MODELS_MAX} models of at least one element, under 2^32 in all"));
    }
    if method == Method::Slerp && models != 2 {
        return Err(format!("{s}: slerp takes two models"));
    }
    Ok(())
}

fn space(_: &Shape, machine: &Machine<'_>) -> Space {
    let tier = Tier::on(machine);
    Space {
        params: vec![
            ints("THREADS", "occupancy against the cost of a group", &[32, 128, 256, 512]),
            ints("ELEMS", "fewer groups against fewer threads in flight", &[1, 2, 4, 8]),
        ],
        constraints: Vec::new(),
        default: Config::new().with("THREADS", tier.pick([128, 256, 256, 256])).with("ELEMS", tier.pick([4, 4, 8, 8])),
    }
}

fn cost(s: &Shape) -> Cost {
    let (n, models) = ((s.size("rows") * s.size("cols")) as u64, s.size("models") as u64);
    let tensors = match method(s) {
        Some((_, Method::Linear | Method::Slerp)) => models,
        _ => models + 1,
    };
    Cost { flops: 2 * n * models, int8_ops: 0, read_bytes: tensors * n * io(s).bytes(), write_bytes: n * io(s).bytes() }
}

/// Cuts of each model that `method` needs.
fn cuts(method: Method) -> usize {
    match method {
        Method::Ties => 1,
        Method::Breadcrumbs => 2,
        _ => 0,
    }
}

/// Scratch that a merge of `shape` needs, whatever its configuration.
pub fn scratch_bytes(shape: &Shape) -> usize {
    let (n, models) = (shape.size("rows") * shape.size("cols"), shape.size("models"));
    let words = match method(shape).map(|(_, m)| m) {
        Some(Method::Della) => n * models,
        Some(m @ (Method::Ties | Method::Breadcrumbs)) => models * cuts(m) * (CUT_WORDS + PIVOTS * BLOCKS_MAX),
        Some(Method::Slerp | Method::ModelStock) => PARTIALS_AT + models * (models + 1) / 2 * BLOCKS_MAX,
        _ => 1,
    };
    4 * words
}

/// What all launches of one merge share.
struct Plan<'a> {
    machine: &'a Machine<'a>,
    settings: Settings,
    constants: Vec<(&'static str, i64)>,
    n: usize,
    models: usize,
    blocks: usize,
    threads: usize,
}

impl Plan<'_> {
    fn launch(&self, entry: &str, groups: usize, shift: u32, args: Vec<Slice>) -> Result<Launch, Rejection> {
        let (s, cuts) = (&self.settings, cuts(self.settings.method));
        let dropped = s.dropped(self.n);
        // Breadcrumbs keeps what is inside the first cut and not inside the second.
        let first = if cuts == 2 { (dropped + s.kept(self.n)).min(self.n) } else { s.kept(self.n) };
        let (lowest, rise) = s.keep_line();
        let sizes = [self.n, s.cols, self.models, self.blocks, cuts, shift as usize, first, dropped];
        let mut params: Vec<u32> = sizes.iter().map(|v| *v as u32).collect();
        params.extend([s.lambda, s.density, lowest, rise, s.t].map(f32::to_bits));
        params.extend([s.seed as u32, (s.seed >> 32) as u32, s.tensor]);
        let (constants, threads) = (self.constants.clone(), self.threads);
        let launch = KernelLaunch { text: &OP.text, entry, constants, params, groups, threads, shared_bytes: 0 };
        launch.on(self.machine, args)
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let size = |name: &str| call.shape.size(name);
    let (n, models, threads, elems) =
        (size("rows") * size("cols"), size("models"), knob(config, "THREADS")?, knob(config, "ELEMS")?);
    let settings = settings(&call.shape, &call.attrs);
    let (code, _) = method(&call.shape).expect("shape was checked");
    let constants =
        vec![("THREADS", threads as i64), ("ELEMS", elems as i64), ("METHOD", code), ("IO", io_code(io(&call.shape)))];
    let blocks = n.div_ceil(threads * elems).min(BLOCKS_MAX);
    let plan = Plan { machine, settings, constants, n, models, blocks, threads };
    let [base, stack, weights, y, work] = &call.args[..] else {
        return Err(Rejection::Constraint(format!("merge takes 5 arguments, not {}", call.args.len())));
    };
    let read = || vec![base.clone(), stack.clone(), work.clone()];
    let mut launches = Vec::new();
    let pairs = models * cuts(settings.method);
    if pairs > 0 {
        for shift in (0..u32::BITS / DIGIT).rev().map(|digit| digit * DIGIT) {
            launches.push(plan.launch("merge_count", pairs * blocks, shift, read())?);
            launches.push(plan.launch("merge_digit", pairs, shift, vec![work.clone()])?);
        }
        launches.push(plan.launch("merge_ties", pairs * blocks, 0, read())?);
        launches.push(plan.launch("merge_end", pairs, 0, read())?);
    }
    match settings.method {
        Method::Della => {
            let pieces = settings.cols.div_ceil(threads * elems);
            launches.push(plan.launch("merge_rank", models * size("rows") * pieces, 0, read())?);
        }
        Method::Slerp | Method::ModelStock => {
            let products = models * (models + 1) / 2;
            launches.push(plan.launch("merge_dots", products * blocks, 0, read())?);
            launches.push(plan.launch("merge_coefficients", 1, 0, vec![work.clone()])?);
        }
        _ => {}
    }
    let args = vec![base.clone(), stack.clone(), weights.clone(), work.clone(), y.clone()];
    launches.push(plan.launch("merge_combine", n.div_ceil(threads * elems), 0, args)?);
    Ok(launches)
}

fn settings(shape: &Shape, attrs: &Attrs) -> Settings {
    let f = |name: &str| attrs.get(name) as f32;
    Settings {
        method: method(shape).expect("shape was checked").1,
        cols: shape.size("cols"),
        lambda: f("lambda"),
        density: f("density"),
        epsilon: f("epsilon"),
        gamma: f("gamma"),
        t: f("t"),
        seed: attrs.get("seed") as u64,
        tensor: attrs.get("tensor") as u32,
    }
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (n, models, io) = (shape.size("rows") * shape.size("cols"), shape.size("models"), io(shape));
    let mut rng = Rng::new(seed);
    let mut base = data::floats(&mut rng, n, fill);
    let base_bytes = data::rounded(&mut base, io);
    let (mut stack, mut stack_bytes) = (Vec::new(), Vec::new());
    for m in 0..models {
        // Differences share a part, as fine-tunes of one base do; extreme, the last model is the base itself.
        let own = data::floats(&mut rng, n, fill);
        let scale = if fill == Fill::Extreme && m > 0 && m + 1 == models { 0.0 } else { 0.3 };
        let mut model: Vec<f32> = own.iter().zip(&base).map(|(d, b)| b + scale * (d + 0.5 * b)).collect();
        stack_bytes.extend(data::rounded(&mut model, io));
        stack.push(model);
    }
    let weights: Vec<f32> = (0..models).map(|_| 0.25 + rng.unit().abs()).collect();
    let attrs = Attrs::new()
        .with("lambda", f64::from(0.8f32))
        .with("density", if fill == Fill::Extreme { 0.25 } else { 0.6 })
        .with("epsilon", 0.125)
        .with("gamma", if fill == Fill::Extreme { 0.01 } else { 0.1 })
        .with("t", f64::from(0.3f32))
        .with("seed", (seed << 33 | 12_345) as f64)
        .with("tensor", 3.0);
    let expected = if fill == Fill::Unjudged {
        Expected::float(io, vec![0.0; n], &vec![0.0; n])
    } else {
        let settings = settings(shape, &attrs);
        let y64 = reference::merge::<f64>(&settings, &base, &stack, &weights);
        Expected::float(io, y64, &reference::merge::<f32>(&settings, &base, &stack, &weights))
    };
    Problem {
        shape: shape.clone(),
        attrs,
        args: vec![
            Arg::In(base_bytes),
            Arg::In(stack_bytes),
            Arg::In(data::bytes(&weights)),
            Arg::Out(expected),
            Arg::Scratch(scratch_bytes(shape)),
        ],
        label: format!("{fill:?} seed={seed}"),
    }
}
