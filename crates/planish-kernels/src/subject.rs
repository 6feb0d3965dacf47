//! One op at one shape on one machine, as the tuner sees it: candidates are gated, then timed cold.
//!
//! A sample runs the op many times in one recorded sequence, as a token does, over copies of its large arguments that
//! together exceed the last-level cache, as the weights of a model do.
//! On a GPU the sequence is a graph: one by one, small launches would all cost what submitting them costs.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use planish_device::{Buffer, Error, Init, Sequence, Slice};
use planish_tune::{Admitted, Config, Point, Rejection, Sample, Space, Subject};

use crate::cpu::peak::Peak;
use crate::gate::{self, Case};
use crate::op::{Arg, Cost, Fill, Machine, Op, OpCall, Problem, Shape};

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

/// Copies of rotated arguments, at most.
const COPIES: u64 = 1024;

/// Bytes of the copies of an argument of `bytes`, of which those together should exceed `rotate_bytes`.
pub fn rotated_bytes(bytes: u64, rotate_bytes: u64) -> u64 {
    bytes * copies(bytes, rotate_bytes)
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
    rotation: Option<Rotation>,
    sequences: HashMap<Config, Vec<Sequence>>,
    turn: usize,
}

/// Copies of the arguments; the rotated ones differ from set to set, the others are shared.
struct Rotation {
    attrs: crate::op::Attrs,
    sets: Vec<Vec<Slice>>,
}

impl<'a> OpSubject<'a> {
    /// The subject that `spec` describes; an error names what is wrong with it.
    pub fn new(spec: Spec, machine: Machine<'a>) -> Result<Self, String> {
        let device = &machine.backend.limits().backend;
        if spec.device.split(':').next() != Some(device) {
            return Err(format!("{} is to run on {}, and this machine is {device}", spec.op, spec.device));
        }
        let op = find(device, &spec.op).ok_or_else(|| format!("no op of {device} is called {}", spec.op))?;
        (op.check)(&spec.shape)?;
        let shape = spec.shape.clone();
        let space = (op.space)(&shape, &machine);
        Ok(OpSubject {
            op,
            shape,
            spec,
            machine,
            space,
            cases: Vec::new(),
            rotation: None,
            sequences: HashMap::new(),
            turn: 0,
        })
    }

    /// What one execution costs at least.
    pub fn cost(&self) -> Cost {
        (self.op.cost)(&self.shape)
    }

    fn make_cases(&mut self) {
        if self.cases.is_empty() {
            self.cases = gate::cases(self.op, &self.shape, self.spec.seed);
        }
    }

    /// The gate on one case; returns the worst error over its bound.
    fn pass(&self, case: &Case, config: &Config) -> Result<f64, Rejection> {
        let steps = |args: &[Slice]| self.call(&case.launched, &case.problem.attrs, args).steps(config, &self.machine);
        gate::check(self.machine.backend, &case.problem, &steps)
    }

    fn call(&self, shape: &Shape, attrs: &crate::op::Attrs, args: &[Slice]) -> OpCall {
        OpCall { op: self.op, shape: shape.clone(), attrs: attrs.clone(), args: args.to_vec() }
    }

    fn rotation(&mut self) -> Result<&Rotation, Error> {
        if self.rotation.is_none() {
            let problem = (self.op.problem)(&self.shape, self.spec.seed, Fill::Unjudged);
            self.rotation = Some(Rotation::new(self.op, &problem, self.spec.rotate_bytes, &self.machine)?);
        }
        Ok(self.rotation.as_ref().expect("made above"))
    }

    /// Timed sequences of `config`: together they visit every copy, each is long enough to hide its own start.
    fn sequences(&mut self, config: &Config) -> Result<&[Sequence], Rejection> {
        if !self.sequences.contains_key(config) {
            let launch = |e: Error| Rejection::Launch(e.to_string());
            self.rotation().map_err(launch)?;
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
    fn new(op: &'static Op, problem: &Problem, rotate_bytes: u64, machine: &Machine<'_>) -> Result<Self, Error> {
        let rotated: usize = op.rotated.iter().map(|i| gate::arg_len(&problem.args[*i]).next_multiple_of(256)).sum();
        let copies = copies(rotated as u64, rotate_bytes) as usize;
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
        let sets = (0..copies).map(set).collect::<Result<Vec<_>, _>>()?;
        Ok(Rotation { attrs: problem.attrs.clone(), sets })
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
        self.make_cases();
        let mut worst = 0f64;
        for case in &self.cases {
            worst = worst.max(self.pass(case, config)?);
        }
        Admitted::new(config.clone(), worst)
    }

    fn time(&mut self, admitted: &Admitted, _point: Point) -> Result<Sample, Rejection> {
        let executions = self.executions();
        let turn = self.turn;
        self.turn += 1;
        let backend = self.machine.backend;
        let sequences = self.sequences(admitted.config())?;
        let sequence = &sequences[turn % sequences.len()];
        let timing = backend.time(std::slice::from_ref(sequence), 1).map_err(|e| Rejection::Launch(e.to_string()))?;
        Ok(Sample { ns: timing.ns / executions as f64, reps: timing.reps * executions as u32 })
    }

    /// The default on the smallest case: enough to see that memory and threads still work.
    fn sentinel(&mut self) -> Result<(), Rejection> {
        let default = self.space.default.clone();
        self.make_cases();
        self.pass(self.cases.last().expect("an op has cases"), &default).map(drop)
    }

    fn floor(&self, _point: Point) -> Option<Duration> {
        let (spec, cost) = (&self.spec, self.cost());
        // Without rotation weights come from a cache, faster than memory gives them.
        let read = spec.read_gb_s.filter(|_| spec.rotate_bytes > 0).map(|gb_s| cost.read_bytes as f64 / gb_s);
        let arithmetic = spec.peak.map(|p| cost.arithmetic_ns(p.f32_gflop_s, p.int8_gop_s));
        let ns = read.into_iter().chain(arithmetic).reduce(f64::max)?;
        Some(Duration::from_secs_f64(ns * 1e-9))
    }
}
