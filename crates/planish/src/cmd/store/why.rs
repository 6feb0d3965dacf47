//! `planish store why`: what a lookup of one kernel answers on this machine, on what evidence, and what stands in the way.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::Args;
use planish_engine::identity::{self, Identities};
use planish_kernels::op::{Machine, Shape};
use planish_tune::store::{
    self, Change, Evidence, Explained, Mode, Origin, Question, Shown, Silicon, Store, Tier, Why, now_ms,
};
use planish_tune::{Config, Outcome as Tuned, Policy, Verdict, counted};
use serde_json::{Value, json};

use crate::cmd::Threads;
use crate::hint::WithHint;
use crate::session::{self, IsaArgs};
use crate::ui::Ui;
use crate::{Outcome, report};

/// What is asked, and of which machine.
#[derive(Args)]
pub struct WhyArgs {
    /// Name of the op
    op: String,
    /// Its shape as `store list` and `tune --list` print it: name=value,name=value
    #[arg(default_value = "")]
    shape: String,
    /// Answer as on the machine of a record, named by the 16 digits of its silicon that `store show` prints
    #[arg(long, value_name = "SILICON")]
    as_device: Option<String>,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    isa: IsaArgs,
}

/// The answer of one lookup with everything a reader needs to judge it.
struct Answer {
    name: String,
    /// What runs.
    runs: Config,
    told: Explained,
    /// The shape of the same bucket whose record runs, where this one has none.
    nearby: Option<String>,
    /// Fields in which the nearest record differs from this machine.
    changes: Vec<Change>,
    /// The machine in whose place the answer is given, if not this one.
    pretended: Option<Arc<Silicon>>,
}

/// Looks the kernel up as a model's plan does, and prints the answer; exit 1 where no record decides.
pub fn run(store: &Store, args: &WhyArgs, ui: Ui) -> Result<Outcome> {
    let answer = ask(store, args)?;
    let exact = answer.told.tier == Tier::Exact || answer.nearby.is_some();
    if ui.json {
        report::print_json(&answer.json())?;
    } else {
        report::print(&answer.text())?;
    }
    if !exact {
        ui.note("`planish tune MODEL` measures it on this machine; `planish store list` shows what there is");
    }
    Ok(if exact { Outcome::Done } else { Outcome::No })
}

fn ask(store: &Store, args: &WhyArgs) -> Result<Answer> {
    let op = session::find_op(&args.op).map_err(|e| anyhow!(e)).hint("`planish store list` prints ops and shapes")?;
    let shape = args.shape.parse().and_then(|shape: Shape| (op.check)(&shape).map(|()| shape));
    let shape = shape
        .map_err(|e| anyhow!("{}: {e}", op.name))
        .hint("`planish store list` and `planish tune MODEL --list` print shapes as they are written here")?;
    let cpu = args.threads.cpu()?;
    let machine = Machine { backend: &cpu, isa: args.isa.named() };
    let space = (op.space)(&shape, &machine);
    let identities = Identities::new(&machine, &Policy::default());
    let pretended = args.as_device.as_deref().map(|digits| silicon(store, digits)).transpose()?;
    let identities = match &pretended {
        Some(silicon) => identities.as_device(silicon.clone()),
        None => identities,
    };
    let here = identities.of(&space);
    let key = identity::key(op, &shape)?;
    let told = store::why(store, &key, &here, &|c| space.violated(c).map_or(Ok(()), Err));
    let changes = told.nearest.as_ref().map_or_else(Vec::new, |n| changes(n.entry.choice.identity.changes(&here)));
    // A prior was right and fast somewhere else: as in a model's plan, the default runs until it is confirmed here.
    let legal = |c: &Config| space.violated(c).map_or(Ok(()), Err);
    let snapshot = store.snapshot();
    let question = Question { key: &key, identity: &here, default: &space.default };
    let (config, origin) = Mode::Stored.decide(&snapshot, &question, &legal)?;
    let (runs, nearby) = match origin {
        Origin::Stored(Tier::Exact) => (config, None),
        Origin::Nearby(other) => (config, Some(other.shape().to_owned())),
        _ => (space.default.clone(), None),
    };
    Ok(Answer { name: key.to_string(), runs, told, nearby, changes, pretended })
}

/// The silicon of a record in the store, by its digits.
fn silicon(store: &Store, digits: &str) -> Result<Arc<Silicon>> {
    let all: Vec<Arc<Silicon>> = store::list(store).into_iter().map(|l| l.entry.choice.identity.silicon).collect();
    let found = all.iter().find(|s| s.hash16() == digits).cloned();
    let known: BTreeSet<String> = all.iter().map(|s| format!("{} ({})", s.hash16(), s.label)).collect();
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    found
        .ok_or_else(|| anyhow!("--as-device {digits}: no record of the store is of that silicon"))
        .hint(if known.is_empty() { "the store is empty".to_owned() } else { format!("the store has {known}") })
}

/// The same changes, a policy that is a list of numbers taken apart into those that differ.
fn changes(all: Vec<Change>) -> Vec<Change> {
    let numbers = |text: &Option<String>| -> Option<(String, serde_json::Map<String, Value>)> {
        let (protocol, json) = text.as_deref()?.split_once(" {")?;
        Some((protocol.to_owned(), serde_json::from_str(&format!("{{{json}")).ok()?))
    };
    let apart = |c: Change| match (c.field.as_str(), numbers(&c.stored), numbers(&c.here)) {
        ("policy", Some((before, stored)), Some((now, here))) => {
            let names: BTreeSet<_> = stored.keys().chain(here.keys()).collect();
            let value = |v: Option<&Value>| v.map(ToString::to_string);
            let one = |n: &&String| Change {
                field: format!("policy.{n}"),
                stored: value(stored.get(*n)),
                here: value(here.get(*n)),
            };
            let protocol = Change { field: "policy.protocol".into(), stored: Some(before), here: Some(now) };
            std::iter::once(protocol).chain(names.iter().map(one)).filter(|c| c.stored != c.here).collect()
        }
        _ => vec![c],
    };
    all.into_iter().flat_map(apart).collect()
}

impl Answer {
    /// `exact`, `nearby`, `prior` or `miss`, and the reason in words.
    fn verdict(&self) -> (&'static str, String) {
        if let Some(shape) = &self.nearby {
            return ("nearby", format!("nothing was measured for this shape, but for {shape} of the same bucket"));
        }
        match &self.told.tier {
            Tier::Exact => ("exact", "measured on this machine by this build".into()),
            Tier::Prior { .. } => {
                ("prior", "the nearest record is a starting point for tuning, so the default runs".into())
            }
            Tier::Miss { why: Why::OtherSilicon(_) } => {
                ("miss", "tuned only on other silicon, so the default runs".into())
            }
            Tier::Miss { why } => ("miss", format!("{why}, so the default runs")),
        }
    }

    fn text(&self) -> String {
        let (tier, reason) = self.verdict();
        let mut rows = vec![
            ("kernel", self.name.clone()),
            ("answer", format!("{tier}: {reason}")),
            ("runs", self.runs.to_string()),
        ];
        let device = |s: &Arc<Silicon>| ("as device", format!("{} ({}), by override", s.hash16(), s.label));
        rows.extend(self.pretended.as_ref().map(device));
        if let Some(nearest) = &self.told.nearest {
            rows.extend(record_rows(nearest));
            rows.extend(evidence_rows(nearest));
        }
        let value = |v: &Option<String>| match v.as_deref() {
            None => "absent".to_owned(),
            Some("") => "empty".to_owned(),
            Some(v) => v.to_owned(),
        };
        for (i, c) in self.changes.iter().enumerate() {
            let line = format!("{}: {} in the record, {} here", c.field, value(&c.stored), value(&c.here));
            rows.push((if i == 0 { "differs" } else { "" }, line));
        }
        if let n @ 2.. = self.told.considered.len() {
            rows.push(("others", format!("{} of this kernel, as `store show` prints", counted(n - 1, "more record"))));
        }
        report::pairs(&rows)
    }

    fn json(&self) -> Value {
        let (tier, reason) = self.verdict();
        let record = |n: &Shown| json!({ "choice": n.entry.choice, "layer": n.entry.layer, "evidence": n.evidence });
        json!({
            "kernel": self.name,
            "tier": tier,
            "reason": reason,
            "runs": self.runs,
            "nearby": self.nearby,
            "as_device": self.pretended.as_ref().map(|s| s.hash16()),
            "nearest": self.told.nearest.as_ref().map(record),
            "differs": self.changes,
            "considered": self.told.considered.len(),
        })
    }
}

fn record_rows(nearest: &Shown) -> Vec<(&'static str, String)> {
    let c = &nearest.entry.choice;
    let days = now_ms().saturating_sub(c.written_ms) as f64 / 86_400_000.0;
    let gain = format!(
        "{:.3}x the default (95%: {:.3} to {:.3}), {}",
        c.ratio.mid,
        c.ratio.lo,
        c.ratio.hi,
        report::time(c.ns_median)
    );
    vec![
        ("record", format!("{}; {}, {} layer, {days:.1} days old", c.config, c.state, nearest.entry.layer)),
        ("source", c.source.to_string()),
        ("gain", gain),
    ]
}

fn evidence_rows(nearest: &Shown) -> Vec<(&'static str, String)> {
    let named = nearest.entry.choice.evidence.as_deref();
    match (named, &nearest.evidence) {
        (None, _) => vec![("evidence", "none was kept".into())],
        (Some(name), None) => vec![("evidence", format!("{name} is not in the store"))],
        (Some(_), Some(evidence)) => measured(evidence),
    }
}

/// A tuning outcome in two lines; other evidence by its name alone.
fn measured(evidence: &Evidence) -> Vec<(&'static str, String)> {
    let Ok(t) = serde_json::from_value::<Tuned>(evidence.data.clone()) else {
        return vec![("evidence", "of another kind; `store show` prints it".into())];
    };
    let pairs = t.finals.iter().find(|f| f.config == t.choice).or(t.finals.first()).map_or(0, |f| f.pairs);
    let refused: usize = t.counts.rejected.values().sum();
    let samples = format!(
        "{} timings, {pairs} pairs against the default, noise {:.1}%; {} of {} configs timed, {refused} refused",
        t.samples,
        100.0 * t.noise,
        t.counts.timed,
        t.counts.candidates
    );
    let p = &t.policy;
    let policy = format!(
        "margin {:.1}%, false promotions at most {:.0}%, {} finalists, looks after {:?} pairs",
        100.0 * p.margin,
        100.0 * p.alpha,
        p.finalists,
        p.looks
    );
    let mut rows = vec![("evidence", samples), ("policy", policy)];
    if let Verdict::Undecided(why) = &t.verdict {
        rows.push(("undecided", why.clone()));
    }
    if let Some(confirms) = evidence.data.get("confirms") {
        let fields = confirms["differs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let fields = fields.collect::<Vec<_>>().join(", ");
        rows.push((
            "confirms",
            format!("a {} record that differed in {fields}", confirms["source"].as_str().unwrap_or("?")),
        ));
    }
    rows
}
