//! Proof of an op on a machine: its shapes at the corners of its space, each through the gate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use planish_device::Slice;
use planish_tune::{Config, Rejection, Space, Value};

use crate::gate::{self, Passed};
use crate::gpu::GpuOp;
use crate::gpu::text::Text;
use crate::op::{Fill, Machine, OpCall, Problem};

/// How much of a space is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The default, the smallest and the largest legal configuration, and each parameter alone off its default.
    Corners,
    /// The default and the smallest, at every second shape: for sanitizers, which are slow.
    Few,
}

/// What the proof of an op found.
#[derive(Clone, Debug)]
pub struct Proof {
    /// Runs that passed.
    pub passed: usize,
    /// Distinct configurations among them.
    pub configs: usize,
    /// The worst error over its bound, at most 1.
    pub worst: f64,
    /// Wall time.
    pub time: Duration,
    /// Runs that were refused, as `shape, config: why`.
    pub refused: Vec<String>,
    /// Runs that passed with other bits than one of the same reduction class.
    pub other_bits: Vec<String>,
}

/// Sets of `SHAPE_*` constants that are compiled for one op, unless it has as many variants; each is a compilation.
const SHAPE_SETS: usize = 4;

/// Proves `op` on `machine`.
pub fn prove(op: &'static GpuOp, machine: &Machine<'_>, depth: Depth) -> Proof {
    let start = Instant::now();
    let mut proof =
        Proof { passed: 0, configs: 0, worst: 0.0, time: Duration::ZERO, refused: Vec::new(), other_bits: Vec::new() };
    let mut seen = BTreeSet::new();
    let step = if depth == Depth::Few { 2 } else { 1 };
    for (i, shape) in op.shapes().enumerate().step_by(step) {
        // Bits by input and reduction class, and who gave them first.
        let mut bits: BTreeMap<(String, Config), (u64, Config)> = BTreeMap::new();
        if let Err(e) = (op.op.check)(&shape) {
            proof.refused.push(format!("{shape}: {e}"));
            continue;
        }
        // References take longer than runs: they are made once for all configurations.
        let problems = [Fill::Random, Fill::Extreme].map(|fill| (op.op.problem)(&shape, 7 + i as u64, fill));
        for config in corners(&op.text, &(op.op.space)(&shape, machine), depth) {
            for problem in &problems {
                match pass(op, machine, problem, &config) {
                    Ok(passed) => {
                        proof.passed += 1;
                        proof.worst = proof.worst.max(passed.worst);
                        seen.insert(config.clone());
                        let class = (problem.label.clone(), op.op.class(&config));
                        let first = bits.entry(class).or_insert_with(|| (passed.bits, config.clone()));
                        if first.0 != passed.bits {
                            proof.other_bits.push(format!("{shape}, {config}: other bits than {}", first.1));
                        }
                    }
                    Err(why) => proof.refused.push(format!("{shape}, {config}: {why}")),
                }
            }
        }
    }
    proof.configs = seen.len();
    proof.time = start.elapsed();
    proof
}

/// One problem under one configuration through the gate.
pub fn pass(
    op: &'static GpuOp,
    machine: &Machine<'_>,
    problem: &Problem,
    config: &Config,
) -> Result<Passed, Rejection> {
    let (shape, attrs) = (&problem.shape, &problem.attrs);
    let steps = |args: &[Slice]| {
        let call = OpCall { op: &op.op, shape: shape.clone(), attrs: attrs.clone(), args: args.to_vec() };
        call.steps(config, machine)
    };
    gate::pass(machine.backend, problem, &steps)
}

/// The legal corners of a space, the default first, with few distinct sets of compiled constants.
pub fn corners(text: &Text, space: &Space, depth: Depth) -> Vec<Config> {
    let mut all = vec![space.default.clone()];
    let legal = |c: &Config| space.violated(c).is_none();
    // Of the legal configurations the first and the last in parameter order, which need not be the extremes of each.
    let others = || space.each().skip(1);
    all.extend(others().find(legal));
    if depth == Depth::Corners {
        all.extend(space.each().rev().find(|c| *c != space.default && legal(c)));
        for p in &space.params {
            let off = p.values.iter().map(|v| space.default.clone().with(p.name, v.clone()));
            let mut off = off.filter(|c| *c != space.default && legal(c));
            all.extend(off.next());
            all.extend(off.next_back());
        }
    }
    // Every variant is tried, next after the default.
    let variants: Vec<&Value> = space.params.iter().filter(|p| p.name == "VARIANT").flat_map(|p| &p.values).collect();
    for value in &variants {
        let of = |c: &Config| c.get("VARIANT") == Some(value);
        let found = match all.iter().position(of) {
            Some(0) => None,
            Some(at) => Some(all.remove(at)),
            None => others().filter(|c| of(c)).find(legal),
        };
        found.into_iter().for_each(|c| all.insert(1, c));
    }
    let sets = SHAPE_SETS.max(variants.len() + 1);
    let mut shapes = BTreeSet::new();
    let mut kept: Vec<Config> = Vec::new();
    for config in all {
        let compiled: Vec<_> = config
            .iter()
            .filter(|(name, _)| text.constant(name).is_some_and(|c| c.starts_with("SHAPE_")))
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        if kept.contains(&config) || (!shapes.contains(&compiled) && shapes.len() == sets) {
            continue;
        }
        shapes.insert(compiled);
        kept.push(config);
    }
    kept
}
