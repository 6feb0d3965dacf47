//! The plan: which calls a step makes, and which configuration each gets.
//!
//! It is built once at load from model, device and choices, and is the only reader of the choices.
//! The same list of (op, shape, uses) is the worklist of `planish tune`: what is tuned is what is launched.

use std::collections::BTreeMap;

use planish_device::Launch;
use planish_kernels::op::{Machine, OpCall, Shape};
use planish_kernels::{Cost, Op};
use planish_tune::{Config, Space};

use crate::error::{Error, Result};

/// Gives the configuration of an op at a shape, when one has been chosen.
pub trait Choices {
    /// The chosen configuration and where it comes from, or `None` to take the default; only asked where there is a choice.
    fn choose(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>>;
}

/// A configuration and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The configuration.
    pub config: Config,
    /// `tuned`, `prior`, `pinned` or `default`.
    pub tier: &'static str,
}

/// Every op at its default.
pub struct Defaults;

impl Choices for Defaults {
    fn choose(&self, _op: &'static Op, _shape: &Shape, _space: &Space) -> Result<Option<Chosen>> {
        Ok(None)
    }
}

/// The configurations of plans that were made for another context, so that a check need not allocate all of it.
pub struct Replanned<'p>(pub [&'p [Entry]; 2]);

impl Choices for Replanned<'_> {
    fn choose(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        let at_any_context = |shape: &Shape| shape.clone().with("context", 0);
        let wanted = at_any_context(shape);
        let mut entries = self.0.iter().copied().flatten();
        let planned = entries.find(|e| e.op.name == op.name && at_any_context(&e.shape) == wanted);
        let Some(Entry { chosen, .. }) = planned else {
            return Err(Error::request(format!("{} {shape} is in no plan", op.name)));
        };
        match space.violated(&chosen.config) {
            None => Ok(Some(chosen.clone())),
            Some(why) => Err(Error::request(format!("{} {shape}: {} is not legal: {why}", op.name, chosen.config))),
        }
    }
}

/// One line of the worklist: an op at a shape, how often a step uses it, and what it runs with.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The op.
    pub op: &'static Op,
    /// Its shape.
    pub shape: Shape,
    /// Calls in one step.
    pub uses: u32,
    /// Whether there is anything to tune.
    pub tuned: bool,
    /// What one call costs at least.
    pub cost: Cost,
    /// Configuration in use.
    pub chosen: Chosen,
}

/// Calls in the order of a step, turned into launches as they come.
pub struct Emit<'a> {
    machine: Machine<'a>,
    choices: &'a dyn Choices,
    entries: BTreeMap<(&'static str, Shape), Entry>,
    launches: Vec<Launch>,
}

impl<'a> Emit<'a> {
    /// An empty step on `machine`.
    pub fn new(machine: Machine<'a>, choices: &'a dyn Choices) -> Self {
        Emit { machine, choices, entries: BTreeMap::new(), launches: Vec::new() }
    }

    /// Adds a call that sees all writes before it.
    pub fn push(&mut self, call: OpCall) -> Result<()> {
        self.add(call, false)
    }

    /// Adds a call that is independent of the one before it.
    pub fn beside(&mut self, call: OpCall) -> Result<()> {
        self.add(call, true)
    }

    fn add(&mut self, call: OpCall, overlap: bool) -> Result<()> {
        let key = (call.op.name, call.shape.clone());
        if !self.entries.contains_key(&key) {
            let entry = self.entry(&call)?;
            self.entries.insert(key.clone(), entry);
        }
        let entry = self.entries.get_mut(&key).expect("inserted above");
        entry.uses += 1;
        let mut steps = call.steps(&entry.chosen.config, &self.machine).map_err(|r| {
            Error::request(format!("{} {} with {}: {r}", call.op.name, call.shape, entry.chosen.config))
                .with_hint("`planish store why` shows where this configuration comes from; `--off` runs the defaults")
        })?;
        if let Some(first) = steps.first_mut() {
            first.overlap = overlap;
        }
        self.launches.append(&mut steps);
        Ok(())
    }

    fn entry(&self, call: &OpCall) -> Result<Entry> {
        let space = (call.op.space)(&call.shape, &self.machine);
        let asked = if space.params.is_empty() { None } else { self.choices.choose(call.op, &call.shape, &space)? };
        let chosen = asked.unwrap_or_else(|| Chosen { config: space.default.clone(), tier: "default" });
        let cost = (call.op.cost)(&call.shape);
        Ok(Entry { op: call.op, shape: call.shape.clone(), uses: 0, tuned: !space.params.is_empty(), cost, chosen })
    }

    /// The launches and the worklist.
    pub fn finish(self) -> (Vec<Launch>, Vec<Entry>) {
        (self.launches, self.entries.into_values().collect())
    }
}
