//! The plan: which calls a step makes, and which configuration each gets.
//!
//! It is built once at load from model, device and choices, and is the only reader of the choices.
//! What it chose is then frozen, and only a frozen set is recorded: nothing is chosen while a sequence is captured.
//! The same list of (op, shape, uses) is the worklist of `planish tune`: what is tuned is what is launched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use planish_device::Launch;
use planish_kernels::op::{Machine, OpCall, Shape};
use planish_kernels::{Cost, Op};
use planish_tune::store::{Frozen, Pins};
use planish_tune::{Config, Policy, Space};

use crate::error::{Error, Result};
use crate::identity::{self, Identities};

/// Gives the configuration of an op at a shape, when one has been chosen.
pub trait Choices {
    /// The chosen configuration and where it comes from, or `None` to take the default; only asked where there is a choice.
    fn choose(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>>;

    /// The same for a step that only verification runs: no worklist and no lock has what is only there.
    fn choose_beyond(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        self.choose(op, shape, space)
    }
}

/// Choices for a step that only verification runs.
pub struct Beyond<'c>(pub &'c dyn Choices);

impl Choices for Beyond<'_> {
    fn choose(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        self.0.choose_beyond(op, shape, space)
    }
}

/// A configuration and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The configuration.
    pub config: Config,
    /// `tuned`, `nearby`, `prior`, `locked`, `pinned` or `default`.
    pub tier: &'static str,
}

/// A function of its own says what is chosen.
impl<F: Fn(&'static Op, &Shape, &Space) -> Result<Option<Chosen>>> Choices for F {
    fn choose(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        self(op, shape, space)
    }
}

impl Chosen {
    /// What `choices` say of an op at a shape, else its default.
    pub fn of(choices: &dyn Choices, op: &'static Op, shape: &Shape, space: &Space) -> Result<Chosen> {
        let chosen = choices.choose(op, shape, space)?;
        Ok(chosen.unwrap_or_else(|| Chosen { config: space.default.clone(), tier: "default" }))
    }
}

/// Every op at its default.
pub struct Defaults;

impl Choices for Defaults {
    fn choose(&self, _op: &'static Op, _shape: &Shape, _space: &Space) -> Result<Option<Chosen>> {
        Ok(None)
    }
}

/// What is pinned over the defaults; whether it is legal is asked when it is launched.
impl Choices for Pins {
    fn choose(&self, op: &'static Op, _shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        Ok(self.config(op.name, &space.default).map(|config| Chosen { config, tier: "pinned" }))
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

/// What a launch of a step is part of.
#[derive(Clone, Debug)]
pub struct Label {
    /// What its call is for, such as `gate`.
    pub role: &'static str,
    /// The op.
    pub op: &'static Op,
    /// Its shape.
    pub shape: Shape,
    /// Keys that it sees of the cache, its own included; 0 for all.
    pub window: usize,
    /// Which launch of its call, and of how many.
    pub nth: (usize, usize),
}

/// Calls in the order of a step: first planned, then frozen, then recorded.
#[derive(Default)]
pub struct Calls(Vec<Call>);

/// A call, what it is for, and whether it is independent of the one before it.
struct Call {
    role: &'static str,
    call: OpCall,
    overlap: bool,
}

impl Calls {
    /// Adds a call for `role` that sees all writes before it.
    pub fn push(&mut self, role: &'static str, call: OpCall) {
        self.0.push(Call { role, call, overlap: false });
    }

    /// Adds a call for `role` that is independent of the one before it.
    pub fn beside(&mut self, role: &'static str, call: OpCall) {
        self.0.push(Call { role, call, overlap: true });
    }

    /// The worklist of the step on `machine`, each op at each shape with what is chosen for it.
    pub fn plan(&self, machine: &Machine<'_>, choices: &dyn Choices) -> Result<Vec<Entry>> {
        let mut entries: BTreeMap<(&'static str, &Shape), Entry> = BTreeMap::new();
        for Call { call, .. } in &self.0 {
            match entries.entry((call.op.name, &call.shape)) {
                Slot::Occupied(held) => held.into_mut().uses += 1,
                Slot::Vacant(free) => _ = free.insert(entry(call, machine, choices)?),
            }
        }
        Ok(entries.into_values().collect())
    }

    /// The launches of the step with the configurations of `frozen`, which is asked for every op that has a choice.
    pub fn launches(&self, machine: &Machine<'_>, frozen: &Frozen) -> Result<Vec<Launch>> {
        Ok(self.labelled(machine, frozen)?.0)
    }

    /// The same, each with what it is part of.
    pub fn labelled(&self, machine: &Machine<'_>, frozen: &Frozen) -> Result<(Vec<Launch>, Vec<Label>)> {
        let mut configs: BTreeMap<(&'static str, &Shape), Config> = BTreeMap::new();
        let (mut launches, mut labels) = (Vec::new(), Vec::new());
        for Call { role, call, overlap } in &self.0 {
            let config = match configs.entry((call.op.name, &call.shape)) {
                Slot::Occupied(held) => held.into_mut(),
                Slot::Vacant(free) => free.insert(frozen_config(call, machine, frozen)?),
            };
            let mut steps = call.steps(config, machine).map_err(|r| {
                Error::request(format!("{} {} with {config}: {r}", call.op.name, call.shape)).with_hint(
                    "`planish store why` shows where this configuration comes from; `--off` runs the defaults",
                )
            })?;
            if let Some(first) = steps.first_mut() {
                first.overlap = *overlap;
            }
            let (op, window, all) = (call.op, call.attrs.get("window") as usize, steps.len());
            labels.extend((0..all).map(|i| Label { role, op, shape: call.shape.clone(), window, nth: (i, all) }));
            launches.append(&mut steps);
        }
        Ok((launches, labels))
    }
}

fn entry(call: &OpCall, machine: &Machine<'_>, choices: &dyn Choices) -> Result<Entry> {
    let (op, shape) = (call.op, call.shape.clone());
    let space = (op.space)(&shape, machine);
    let tuned = !space.params.is_empty();
    let asked = if tuned { choices.choose(op, &shape, &space)? } else { None };
    let chosen = asked.unwrap_or_else(|| Chosen { config: space.default.clone(), tier: "default" });
    Ok(Entry { op, cost: (op.cost)(&shape), shape, uses: 1, tuned, chosen })
}

fn frozen_config(call: &OpCall, machine: &Machine<'_>, frozen: &Frozen) -> Result<Config> {
    let space = (call.op.space)(&call.shape, machine);
    if space.params.is_empty() {
        return Ok(space.default);
    }
    let key = identity::key(call.op, &call.shape)?;
    let locked = frozen.get(&key).ok_or_else(|| {
        Error::request(format!("{key} is not in the frozen set {}", frozen.digest()))
            .with_hint("freeze the plan of this very model, context and chunk")
    })?;
    match space.violated(&locked.config) {
        None => Ok(locked.config.clone()),
        Some(why) => Err(Error::request(format!("{key}: the frozen config {} is not legal: {why}", locked.config))),
    }
}

/// The choices of worklists as one set that cannot change any more: what may be recorded.
pub fn freeze<'e>(entries: impl IntoIterator<Item = &'e Entry>, machine: &Machine<'_>) -> Result<Frozen> {
    let identities = Identities::new(machine, &Policy::default());
    let locked = entries
        .into_iter()
        .filter(|e| e.tuned)
        .map(|e| Ok(identities.locked(identity::key(e.op, &e.shape)?, &e.chosen.config)));
    Ok(Frozen::new(locked.collect::<Result<Vec<_>>>()?))
}
