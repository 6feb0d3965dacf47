//! What tuning found as evidence: gathered from a store, with or without the run that filled it, and shown as a page.

mod kernel;
mod page;
#[cfg(test)]
mod tests;

use planish_engine::accept;
use planish_engine::roof::Roof;
use planish_tune::store::{self, Choice, Layer, Shown, Store};
use planish_tune::{Config, Outcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::page::{Page, Report};

/// The key of checks of whole models.
const END_TO_END: &str = "end_to_end";

/// Everything that is known about a set of tuned kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// What was tuned: a model, shapes, a device or a store.
    pub name: String,
    /// The run that was asked for a report; `None` for a store alone.
    pub run: Option<Run>,
    /// Heaviest first in a run, by name in a store.
    pub kernels: Vec<Kernel>,
    /// Checks of whole models.
    pub whole: Vec<Whole>,
    /// The program that wrote this.
    pub program: String,
}

/// A tuning run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seconds that it was given.
    pub budget_s: f64,
    /// Seconds that it took.
    pub spent_s: f64,
    /// Kernels measured in it; the others were known before or not reached.
    pub measured: usize,
}

/// One op at one shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// The op.
    pub op: String,
    /// Its shape.
    pub shape: String,
    /// Share of the time of a decoded token or of a chunk of the prompt, the larger, by the roofline; known in a run alone.
    pub share: Option<f64>,
    /// Why there is no choice, where there is none.
    #[serde(default)]
    pub missing: String,
    /// What was decided.
    pub choice: Option<Choice>,
    /// Where the choice lies.
    pub layer: String,
    /// What was measured.
    pub outcome: Option<Outcome>,
    /// What it is held against.
    pub roof: Option<Roof>,
    /// When it was measured, in milliseconds since 1970.
    pub measured_ms: Option<u64>,
    /// The shape of its bucket that was measured in its place; empty where it was itself.
    #[serde(default)]
    pub nearby: String,
    /// Which prior the measurements confirm, where they were a test of one and not a search.
    #[serde(default)]
    pub confirms: String,
    /// Combinations that the space itself forbids, with the constraint; a store keeps only their number.
    #[serde(default)]
    pub forbidden: Vec<(Config, String)>,
}

/// A check of a whole model: the set of choices against the defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Whole {
    /// First digits of the digest of the set.
    pub set: String,
    /// When it was measured, in milliseconds since 1970.
    pub measured_ms: u64,
    /// The measurements.
    pub report: accept::Report,
}

impl Tuned {
    /// Evidence without kernels.
    pub fn new(name: &str, run: Option<Run>) -> Self {
        let program = format!("planish {}", env!("CARGO_PKG_VERSION"));
        Tuned { name: name.to_owned(), run, kernels: Vec::new(), whole: Vec::new(), program }
    }

    /// All choices of `store` that stand and that `wanted` takes, by op and shape.
    pub fn of_store(store: &Store, name: &str, wanted: impl Fn(&str, &str) -> bool) -> Self {
        let mut tuned = Tuned::new(name, None);
        for listed in store::list(store).into_iter().filter(|l| !l.superseded) {
            let key = &listed.entry.choice.key;
            if !wanted(key.op(), key.shape()) {
                continue;
            }
            let Some(shown) = store::show(store, key).into_iter().find(|s| s.entry == listed.entry) else { continue };
            if key.op() == END_TO_END {
                tuned.whole.extend(whole(&shown));
            } else {
                tuned.kernels.push(Kernel::of(&shown.entry.choice, shown.entry.layer, &shown));
            }
        }
        tuned
    }
}

impl Whole {
    /// The check of the set of choices with this digest, if `store` has it.
    pub fn of_set(digest: &str, store: &Store) -> Vec<Whole> {
        let is_set = |shape: &str| shape.strip_prefix("set=").is_some_and(|set| digest.starts_with(set));
        Tuned::of_store(store, "", |op, shape| op == END_TO_END && is_set(shape)).whole
    }
}

/// The check of a model that a record of the store holds.
fn whole(shown: &Shown) -> Option<Whole> {
    let evidence = shown.evidence.as_ref()?;
    let report = serde_json::from_value(evidence.data.clone()).ok()?;
    let set = shown.entry.choice.key.shape().trim_start_matches("set=").to_owned();
    Some(Whole { set, measured_ms: evidence.written_ms, report })
}

/// What evidence says of the prior that it confirms: where that came from, and in what it differed.
fn confirmed(note: &Value) -> String {
    let fields: Vec<&str> = note["differs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let source = note["source"].as_str().unwrap_or("unknown");
    format!("a record ({source}) that differed in {}", fields.join(", "))
}

impl Kernel {
    /// A kernel about which nothing was decided, and why.
    pub fn missing(op: &str, shape: &str, why: &str) -> Self {
        Kernel { op: op.to_owned(), shape: shape.to_owned(), missing: why.to_owned(), ..Kernel::default() }
    }

    fn of(choice: &Choice, layer: Layer, shown: &Shown) -> Self {
        let data = shown.evidence.as_ref().map(|e| &e.data);
        let outcome: Option<Outcome> = data.and_then(|d| serde_json::from_value(d.clone()).ok());
        let stored = data.and_then(|d| d.get("roof")).filter(|r| **r != Value::Null);
        let stored: Option<Roof> = stored.and_then(|r| serde_json::from_value(r.clone()).ok());
        let floor = outcome.as_ref().and_then(|o| o.floor_ns.first().copied().flatten());
        Kernel {
            op: choice.key.op().to_owned(),
            shape: choice.key.shape().to_owned(),
            roof: stored.or_else(|| Roof::implied(&choice.key, &choice.identity, floor)),
            choice: Some(choice.clone()),
            layer: layer.to_string(),
            outcome,
            confirms: data.and_then(|d| d.get("confirms")).map(confirmed).unwrap_or_default(),
            measured_ms: shown.evidence.as_ref().map(|e| e.written_ms),
            ..Kernel::default()
        }
    }

    /// The kernel of `shape` that runs `choice`, as `store` has it, with its evidence.
    pub fn in_store(shape: &str, choice: &Choice, store: &Store) -> Self {
        let kernel = Kernel::found(choice, store);
        if kernel.shape == shape {
            return kernel;
        }
        Kernel { nearby: kernel.shape, shape: shape.to_owned(), ..kernel }
    }

    fn found(choice: &Choice, store: &Store) -> Self {
        let found = store::show(store, &choice.key).into_iter().find(|s| s.entry.choice == *choice);
        match found {
            Some(shown) => Kernel::of(choice, shown.entry.layer, &shown),
            None => Kernel {
                choice: Some(choice.clone()),
                ..Kernel::missing(choice.key.op(), choice.key.shape(), "its record is not in the store")
            },
        }
    }

    /// What runs now: the choice, which is the default where nothing was decided.
    fn runs(&self) -> Option<&Config> {
        self.choice.as_ref().map(|c| &c.config).or(self.outcome.as_ref().map(|o| &o.default))
    }

    /// The op and its shape.
    fn name(&self) -> String {
        format!("{} {}", self.op, self.shape)
    }

    /// The same in few letters.
    fn short(&self) -> String {
        self.shape.parse().map_or_else(|_| self.name(), |shape| crate::cmd::tune::short(&self.op, &shape))
    }
}

impl Report for Tuned {
    const KIND: &'static str = "tuning";
    const VERSION: u32 = 1;

    fn page(&self) -> Page {
        page::page(self)
    }
}
