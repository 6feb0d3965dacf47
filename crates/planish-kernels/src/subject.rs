//! One op at one shape on one machine, as the tuner sees it: candidates are gated, then timed cold.
//!
//! A sample runs the op many times in one recorded sequence, as a token does, over copies of its large arguments that
//! together exceed the last-level cache, as the weights of a model do.
//! On a GPU the sequence is a graph: one by one, small launches would all cost what submitting them costs.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use planish_device::{Buffer, Error, ErrorKind, Init, Sequence, Slice};
use planish_tune::contain::{Stage, Tell};
use planish_tune::{Admitted, Config, Point, Rejection, Sample, Space, Subject, Wrong};

use crate::cpu::peak::Peak;
use crate::gate::{self, Case, Passed};
use crate::gpu::wgmma;
use crate::op::{Arg, Cost, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::quant::WeightType;
use crate::whole::Whole;

/// What a subject is made from; sent to a worker process as JSON.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// What it runs on: the backend as its limits name it, and after a colon which of several machines.
    pub device: String,
    /// Name of the op in the table of that backend.
    pub op: String,
    /// Its shape.
    pub shape: Shape,
    /// Bytes that rotated copies must exceed, so that a timing starts cold; 0 leaves caches warm.
    pub rotate_bytes: u64,
    /// Measured read bandwidth in GB/s for the roofline, when known.
    pub read_gb_s: Option<f64>,
    /// Measured arithmetic ceilings for the roofline, when known.
    pub peak: Option<Peak>,
    /// Seed of all inputs.
    pub seed: u64,
    /// Candidates must give the bits of the default, at the gate's cases and at the shape itself.
    #[serde(default)]
    pub deterministic: bool,
}

/// How much one timed sequence does, so that its start does not count.
struct Pace {
    /// Bytes read, unless the arithmetic is reached first.
    bytes: u64,
    /// Arithmetic.
    flops: u64,
    /// Executions of the op, whatever they read.
    launches: RangeInclusive<u64>,
}

impl Pace {
    /// About a millisecond, on a large GPU a third of it; the host executor proves and does not measure.
    fn on(device: &str) -> Pace {
        match device {
            "cpu" | "fake" => Pace { bytes: 24 << 20, flops: 200_000_000, launches: 4..=512 },
            "host" => Pace { bytes: 1, flops: 1, launches: 1..=1 },
            _ => Pace { bytes: 1 << 30, flops: 100_000_000_000, launches: 4..=512 },
        }
    }
}

/// The op called `name` among those that run on `device`.
pub fn find(device: &str, name: &str) -> Option<&'static Op> {
    match device {
        "cpu" | "fake" => crate::ops::find(name),
        _ => crate::gpu::find(name).map(|op| &op.op),
    }
}

/// How many traits `config` has by which a wrong kernel can take a device down and not just itself: a grid that waits
/// for itself, and instructions of whole groups of warps with a copy engine beside them.
pub fn risk(config: &Config) -> u32 {
    let waits = matches!(config.name("PATH"), Some("token" | "layer"));
    u32::from(waits) + u32::from(wgmma::native(config))
}

/// Processors that a configuration of a kernel of the CPU uses; on a GPU the same name is of the threads of a group.
pub fn processors(config: &Config) -> Option<i64> {
    config.int("THREADS")
}

/// Copies of rotated arguments, at most.
const COPIES: u64 = 1024;
/// Sets the inputs of the second opinion apart from those of the gate.
const OTHER_SEED: u64 = 0x00c0_ffee;

/// Bytes of the copies of an argument of `bytes`, of which those together should exceed `rotate_bytes`.
pub fn rotated_bytes(bytes: u64, rotate_bytes: u64) -> u64 {
    bytes * copies(bytes, rotate_bytes)
}

/// Whether copies of an argument of `bytes`, of which there is a most, exceed `rotate_bytes`: a timing starts cold.
pub fn cold(bytes: u64, rotate_bytes: u64) -> bool {
    rotate_bytes > 0 && rotated_bytes(bytes, rotate_bytes) >= rotate_bytes
}

/// Bytes of memory for an output over those that are written: values, bounds and magnitudes in f64 and plain values in
/// f32 for each float, what is in its place before, and what a launch writes.
const REFERENCE: u64 = 9;
/// Bytes of memory for an activation: the float, its form before rounding, its code and a part of a block's metadata.
const ACTIVATION: u64 = 10;

/// Bytes of this machine's memory that preparing `op` at `shape` takes: the gate's cases with their references, for the
/// gate and for the second opinion, and the shape itself in rotated copies.
pub fn prepared_bytes(op: &Op, shape: &Shape, device: &str, rotate_bytes: u64) -> u64 {
    let cases = gate::plans(op, shape, 0)
        .into_iter()
        .map(|plan| input_bytes(op, &plan.shape).saturating_add(output_bytes(op, &plan.shape)));
    let (inputs, outputs) = (input_bytes(op, shape), output_bytes(op, shape));
    // Weights are packed from a form of the same size, which goes before the copies come; a card has memory of its own.
    let copies = if matches!(device, "cpu" | "fake" | "host") { rotated_bytes(inputs, rotate_bytes) } else { 0 };
    let parts = [inputs, inputs.max(copies), outputs];
    cases.flat_map(|bytes| [bytes; 2]).chain(parts).fold(0, u64::saturating_add)
}

/// Bytes of the inputs, at least those that one execution reads: the whole table where it looks rows up, activations
/// in every form, and the cache whatever of it is filled.
fn input_bytes(op: &Op, shape: &Shape) -> u64 {
    let product = |names: &[&str], bytes: u64| match names.iter().all(|name| shape.has(name)) {
        true => names.iter().fold(bytes, |all, name| all.saturating_mul(shape.size(name) as u64)),
        false => 0,
    };
    let weight = if shape.has("type") { WeightType::from_name(shape.name("type")) } else { None };
    // A row's bytes are whole blocks, of one type or another no more than four an element.
    let weights = weight.map_or(0, |w| {
        let record = w.record();
        product(&["rows", "cols"], record.block_bytes as u64) / record.block_elements as u64
    });
    let activations = product(&["batch", "cols"], ACTIVATION);
    // Keys and values, which are an output of rope: those have a reference and bounds in f64 beside them.
    let element = if op.name == "rope" { 2 * (4 + 16) } else { 2 * 4 };
    let cache = product(&["context", "kv_heads", "head_dim"], element)
        .max(product(&["sequences", "capacity", "kv_heads", "head_dim"], element));
    // Logits are changed in place, with a reference beside them.
    let logits = product(&["rows", "vocab"], 4 + 16);
    let told = (op.cost)(shape).read_bytes;
    [weights.max(told), activations, cache, logits].into_iter().fold(0, u64::saturating_add)
}

fn output_bytes(op: &Op, shape: &Shape) -> u64 {
    (op.cost)(shape).write_bytes.saturating_mul(REFERENCE)
}

fn copies(bytes: u64, rotate_bytes: u64) -> u64 {
    if bytes == 0 { 1 } else { rotate_bytes.div_ceil(bytes).clamp(1, COPIES) }
}

/// An op at a shape on a machine.
pub struct OpSubject<'a> {
    op: &'static Op,
    shape: Shape,
    spec: Spec,
    machine: Machine<'a>,
    space: Space,
    cases: Vec<Case>,
    /// Bits of the default at each case, where candidates must have the same.
    bits: Vec<u64>,
    rotation: Option<Rotation>,
    /// Copies that a rotation may have, halved when memory runs out.
    copies_most: usize,
    sequences: HashMap<Config, Vec<Sequence>>,
    turn: usize,
    tell: Option<Tell>,
}

/// Copies of the arguments; the rotated ones differ from set to set, the others are shared.
struct Rotation {
    attrs: crate::op::Attrs,
    sets: Vec<Vec<Slice>>,
    /// The arguments without the bytes of inputs, which lie in the sets.
    args: Vec<Arg>,
    /// The tuned shape over the first set, where no case of the gate is of that shape.
    whole: Option<Whole>,
}

impl<'a> OpSubject<'a> {
    /// The subject that `spec` describes; an error names what is wrong with it.
    pub fn new(spec: Spec, machine: Machine<'a>) -> Result<Self, String> {
        let device = &machine.backend.limits().backend;
        if spec.device.split(':').next() != Some(device) {
            return Err(format!("{} is to run on {}, and this machine is {device}", spec.op, spec.device));
        }
        let op = find(device, &spec.op).ok_or_else(|| format!("no op of {device} is called {}", spec.op))?;
        Self::of(op, spec, machine)
    }

    /// The same of an op that need not be in a table.
    pub fn of(op: &'static Op, spec: Spec, machine: Machine<'a>) -> Result<Self, String> {
        (op.check)(&spec.shape)?;
        let shape = spec.shape.clone();
        let space = (op.space)(&shape, &machine);
        let space = if spec.deterministic { op.in_order(space) } else { space };
        Ok(OpSubject {
            op,
            shape,
            spec,
            machine,
            space,
            cases: Vec::new(),
            bits: Vec::new(),
            rotation: None,
            copies_most: COPIES as usize,
            sequences: HashMap::new(),
            turn: 0,
            tell: None,
        })
    }

    /// The same with `tell` told when inputs and references are made, which is not the candidate's time.
    pub fn telling(mut self, tell: &Tell) -> Self {
        self.tell = Some(tell.clone());
        self
    }

    /// Copies of its rotated arguments; none before the first admission.
    pub fn copies(&self) -> Option<usize> {
        self.rotation.as_ref().map(|r| r.sets.len())
    }

    /// What one execution costs at least.
    pub fn cost(&self) -> Cost {
        (self.op.cost)(&self.shape)
    }

    /// Does `work` that is not the candidate's.
    fn preparing<T>(&self, work: impl FnOnce() -> T) -> T {
        let tell = |stage: Stage| self.tell.iter().for_each(|tell| tell(stage.clone()));
        tell(Stage::Prepare);
        let done = work();
        tell(Stage::Run);
        done
    }

    fn make_cases(&mut self) {
        if self.cases.is_empty() {
            self.cases = self.preparing(|| gate::cases(self.op, &self.shape, self.spec.seed));
        }
    }

    /// The gate on one case.
    fn pass(&self, case: &Case, config: &Config) -> Result<Passed, Rejection> {
        let steps = |args: &[Slice]| self.call(&case.launched, &case.problem.attrs, args).steps(config, &self.machine);
        gate::pass(self.machine.backend, &case.problem, &steps)
    }

    /// The gate on all cases; returns the worst error over its bound.
    fn pass_all(&mut self, config: &Config) -> Result<f64, Rejection> {
        self.make_cases();
        if self.spec.deterministic && self.bits.is_empty() {
            let bits = |case| self.pass(case, &self.space.default).map(|passed| passed.bits);
            self.bits = self.cases.iter().map(bits).collect::<Result<_, _>>()?;
        }
        let mut worst = 0f64;
        for (i, case) in self.cases.iter().enumerate() {
            let passed = self.pass(case, config)?;
            worst = worst.max(passed.worst);
            if self.bits.get(i).is_some_and(|bits| *bits != passed.bits) {
                return Err(Rejection::Wrong(Wrong {
                    check: "reduction order".to_owned(),
                    case: format!("{} {}", case.problem.shape, case.problem.label),
                    error_over_bound: f64::INFINITY,
                    detail: "other bits than the default's".to_owned(),
                }));
            }
        }
        Ok(worst)
    }

    /// What `config` computes at the tuned shape, held against the default; nothing where a case of the gate is that.
    fn agree_at_shape(&mut self, config: &Config) -> Result<(), Rejection> {
        let is_whole = |c: &Case| c.problem.shape == self.shape && c.launched == self.shape;
        if self.cases.iter().any(is_whole) {
            return Ok(());
        }
        let refused = |e: Error| gate::refused(&e, Duration::ZERO);
        self.rotation().map_err(refused)?;
        let mut rotation = self.rotation.take().expect("made above");
        let result = self.agree_over(&mut rotation, config);
        self.rotation = Some(rotation);
        result
    }

    fn agree_over(&self, rotation: &mut Rotation, config: &Config) -> Result<(), Rejection> {
        let backend = self.machine.backend;
        if rotation.whole.is_none() {
            let made = Whole::new(backend, &rotation.args, &rotation.sets[0]);
            rotation.whole = Some(made.map_err(|e| gate::refused(&e, Duration::ZERO))?);
        }
        let (attrs, whole) = (&rotation.attrs, rotation.whole.as_mut().expect("made above"));
        let run = |whole: &Whole, config: &Config| {
            let steps = |args: &[Slice]| self.call(&self.shape, attrs, args).steps(config, &self.machine);
            whole.run(backend, &steps)
        };
        if whole.want.is_none() {
            whole.want = Some(run(whole, &self.space.default)?);
        }
        let got = run(whole, config)?;
        whole.agree(&self.shape, &got, self.spec.deterministic)
    }

    /// Does `work`; when memory runs out, again with half the copies of rotated arguments, down to one, which in the end
    /// also makes way for the gate.
    fn within_memory<T>(&mut self, work: impl Fn(&mut Self) -> Result<T, Rejection>) -> Result<T, Rejection> {
        loop {
            let result = work(self);
            let (held, copies) = (self.rotation.is_some(), self.copies().unwrap_or(self.copies_most));
            match &result {
                Err(rejection) if gate::is_out_of_memory(rejection) && (held || copies > 1) => {
                    self.copies_most = (copies / 2).max(1);
                    self.sequences.clear();
                    self.rotation = None;
                }
                _ => return result,
            }
        }
    }

    fn call(&self, shape: &Shape, attrs: &crate::op::Attrs, args: &[Slice]) -> OpCall {
        OpCall { op: self.op, shape: shape.clone(), attrs: attrs.clone(), args: args.to_vec() }
    }

    fn rotation(&mut self) -> Result<&Rotation, Error> {
        if self.rotation.is_none() {
            let most = (self.spec.rotate_bytes, self.copies_most);
            let made = self.preparing(|| {
                let problem = (self.op.problem)(&self.shape, self.spec.seed, Fill::Unjudged);
                Rotation::new(self.op, problem, most, &self.machine)
            });
            self.rotation = Some(made?);
        }
        Ok(self.rotation.as_ref().expect("made above"))
    }

    /// Timed sequences of `config`: together they visit every copy, each is long enough to hide its own start.
    fn sequences(&mut self, config: &Config) -> Result<&[Sequence], Rejection> {
        if !self.sequences.contains_key(config) {
            self.rotation().map_err(|e| gate::refused(&e, Duration::ZERO))?;
            let rotation = self.rotation.as_ref().expect("made above");
            let per_sequence = self.executions();
            let sets = &rotation.sets;
            let count = sets.len().div_ceil(per_sequence);
            let mut recorded = Vec::new();
            for s in 0..count {
                let mut launches = Vec::new();
                for l in 0..per_sequence {
                    let set = &sets[(s * per_sequence + l) % sets.len()];
                    launches.extend(self.call(&self.shape, &rotation.attrs, set).steps(config, &self.machine)?);
                }
                recorded.push(self.machine.backend.record_graph(&launches).map_err(gate::unfit)?);
            }
            self.sequences.insert(config.clone(), recorded);
        }
        Ok(&self.sequences[config])
    }

    /// Launches of the op in one timed sequence.
    fn executions(&self) -> usize {
        let cost = self.cost();
        let Pace { bytes, flops, launches } = Pace::on(&self.machine.backend.limits().backend);
        let wanted = (bytes / cost.read_bytes.max(1)).min(flops / (cost.flops + cost.int8_ops).max(1));
        wanted.clamp(*launches.start(), *launches.end()) as usize
    }
}

impl Rotation {
    /// Copies that exceed `bytes`, at most `most`, and fewer where there is no memory for them.
    fn new(
        op: &'static Op,
        problem: Problem,
        (bytes, most): (u64, usize),
        machine: &Machine<'_>,
    ) -> Result<Self, Error> {
        let rotated: usize = op.rotated.iter().map(|i| gate::arg_len(&problem.args[*i]).next_multiple_of(256)).sum();
        let mut copies = (copies(rotated as u64, bytes) as usize).min(most);
        let sets = loop {
            match Self::sets(op, &problem, copies, machine) {
                Err(e) if e.kind() == ErrorKind::OutOfMemory && copies > 1 => copies /= 2,
                result => break result?,
            }
        };
        let without_inputs = |arg: Arg| if let Arg::In(_) = arg { Arg::In(Vec::new()) } else { arg };
        let args = problem.args.into_iter().map(without_inputs).collect();
        Ok(Rotation { attrs: problem.attrs, sets, args, whole: None })
    }

    fn sets(
        op: &'static Op,
        problem: &Problem,
        copies: usize,
        machine: &Machine<'_>,
    ) -> Result<Vec<Vec<Slice>>, Error> {
        let mut shared = Vec::new();
        for (i, arg) in problem.args.iter().enumerate() {
            let copies = if op.rotated.contains(&i) { copies } else { 1 };
            shared.push(Self::arg(arg, copies, machine)?);
        }
        let set = |c: usize| {
            let slice = |(i, b): (usize, &Buffer)| {
                let len = gate::arg_len(&problem.args[i]);
                b.slice(if op.rotated.contains(&i) { c * len.next_multiple_of(256) } else { 0 }, len)
            };
            shared.iter().enumerate().map(slice).collect::<Result<Vec<_>, _>>()
        };
        (0..copies).map(set).collect()
    }

    fn arg(arg: &Arg, copies: usize, machine: &Machine<'_>) -> Result<Buffer, Error> {
        let len = gate::arg_len(arg);
        let stride = len.next_multiple_of(256);
        let buffer = machine.backend.alloc(stride * copies, Init::Zero)?;
        if let Arg::In(bytes) | Arg::InOut(bytes, _) = arg {
            for c in 0..copies {
                machine.backend.write(&buffer.slice(c * stride, len)?, bytes)?;
            }
        }
        Ok(buffer)
    }
}

impl Subject for OpSubject<'_> {
    fn space(&self) -> &Space {
        &self.space
    }

    fn points(&self) -> Vec<Point> {
        vec![Point(0)]
    }

    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        if let Some(name) = self.space.violated(config) {
            return Err(Rejection::Constraint(name));
        }
        let worst = self.within_memory(|s| {
            let worst = s.pass_all(config)?;
            s.agree_at_shape(config).map(|()| worst)
        })?;
        Admitted::new(config.clone(), worst)
    }

    /// Other inputs than the gate's, at its cases and then at the shape itself.
    fn confirm(&mut self, admitted: &Admitted) -> Result<Admitted, Rejection> {
        let config = admitted.config();
        let cases = self.preparing(|| gate::cases(self.op, &self.shape, self.spec.seed ^ OTHER_SEED));
        let mut worst = admitted.error_over_bound();
        for case in &cases {
            worst = worst.max(self.pass(case, config)?.worst);
        }
        self.within_memory(|s| s.agree_at_shape(config))?;
        Admitted::new(config.clone(), worst)
    }

    fn time(&mut self, admitted: &Admitted, _point: Point) -> Result<Sample, Rejection> {
        let executions = self.executions();
        let turn = self.turn;
        self.turn += 1;
        self.within_memory(|s| s.sequences(admitted.config()).map(drop))?;
        let sequences = &self.sequences[admitted.config()];
        let sequence = &sequences[turn % sequences.len()];
        let start = Instant::now();
        let timing = self.machine.backend.time(std::slice::from_ref(sequence), 1);
        let timing = timing.map_err(|e| gate::refused(&e, start.elapsed()))?;
        Ok(Sample { ns: timing.ns / executions as f64, reps: timing.reps * executions as u32 })
    }

    /// The default on the smallest case: enough to see that memory and threads still work.
    fn sentinel(&mut self) -> Result<(), Rejection> {
        let default = self.space.default.clone();
        self.make_cases();
        self.pass(self.cases.last().expect("an op has cases"), &default).map(drop)
    }

    fn risk(&self, config: &Config) -> u32 {
        risk(config).saturating_sub(risk(&self.space.default))
    }

    fn floor(&self, _point: Point) -> Option<Duration> {
        let (spec, cost) = (&self.spec, self.cost());
        // What is not rotated past the caches comes from them, faster than memory gives it.
        let cold = cold(cost.read_bytes, spec.rotate_bytes);
        let read = spec.read_gb_s.filter(|_| cold).map(|gb_s| cost.read_bytes as f64 / gb_s);
        let arithmetic = spec.peak.map(|p| cost.arithmetic_ns(p.f32_gflop_s, p.int8_gop_s));
        let ns = read.into_iter().chain(arithmetic).reduce(f64::max)?;
        Some(Duration::from_secs_f64(ns * 1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a problem at `shape` holds while its copies are made, but for those.
    fn held(op: &Op, shape: &Shape) -> u64 {
        let problem = (op.problem)(shape, 1, Fill::Unjudged);
        let of = |arg: &Arg| match arg {
            Arg::In(bytes) => bytes.len(),
            Arg::Out(e) => 2 * 8 * e.values.len(),
            Arg::InOut(bytes, e) => bytes.len() + 2 * 8 * e.values.len(),
            Arg::Scratch(_) => 0,
        };
        problem.args.iter().map(|arg| of(arg) as u64).sum()
    }

    #[track_caller]
    fn check(op: &Op, shape: &Shape) {
        let (told, held) = (input_bytes(op, shape) + output_bytes(op, shape), held(op, shape));
        // Small shapes have a step's state and other odds and ends beside their sizes.
        assert!(told + (64 << 10) >= held, "{} {shape}: {told} told, {held} held", op.name);
        // A copy too many of what is small costs nothing.
        let copies = rotated_bytes(input_bytes(op, shape), 1 << 26);
        assert!(prepared_bytes(op, shape, "cpu", 1 << 26) >= output_bytes(op, shape) + copies, "{} {shape}", op.name);
        assert!(prepared_bytes(op, shape, "cuda", 1 << 40) < 1 << 40, "a card's copies are in its own memory");
    }

    /// Each size in turn is the large one.
    #[test]
    fn what_preparing_takes_is_told_whichever_size_is_large() {
        for (op, shapes) in [
            (
                "matvec",
                &["type=q8_0,act=int8,batch=1,rows=20000,cols=64", "type=q4_0,act=f32,batch=1,rows=8,cols=65536"][..],
            ),
            (
                "gemm",
                &["type=q8_0,act=int8,batch=9000,rows=16,cols=512", "type=f16,act=f32,batch=9000,rows=512,cols=16"],
            ),
            ("embed", &["type=q8_0,rows=40000,cols=64,batch=2", "type=f16,rows=40,cols=64,batch=9000"]),
            ("rms_norm", &["cols=57600,batch=40,forms=both"]),
            ("rms_norm_add", &["cols=576,batch=4000"]),
            ("rope", &["heads=9,kv_heads=3,head_dim=64,dims=64,pairs=neighbours,norm=0,kv=f16,context=9000,batch=4"]),
            ("attention", &["heads=9,kv_heads=3,head_dim=64,kv=f32,context=9000,batch=16,forms=int8"]),
            ("attention_decode", &["heads=9,kv_heads=9,head_dim=64,kv=f16,context=9000,batch=1,forms=both"]),
            ("glu", &["gate=silu,cols=153600,batch=13,forms=int8"]),
            ("softcap", &["cols=500000,batch=2"]),
            ("read_only", &["words=700000"]),
        ] {
            let op = find("cpu", op).expect("an op of the CPU");
            shapes.iter().for_each(|shape| check(op, &shape.parse().expect("a shape")));
        }
        // Whole steps are of a model, which is loaded before.
        for op in crate::gpu::OPS.iter().filter(|op| !matches!(op.op.name, "decode" | "prefill")) {
            op.shapes().for_each(|shape| check(&op.op, &shape));
        }
    }
}
