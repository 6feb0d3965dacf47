//! `planish store`: lists, shows, explains, moves and cleans what tuning found.

mod evidence;
mod lock;
mod why;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use planish_tune::counted;
use planish_tune::store::{self, Added, Apply, Choice, Contents, Key, Layers, Listed, Prune, Saved, Shown, Store};
use serde_json::{Value, json};

use crate::hint::WithHint;
use crate::home::Home;
use crate::ui::Ui;
use crate::{Outcome, report};

/// List, show, explain, move and clean what tuning found
#[derive(Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the choices that stand
    List {
        /// Also those that a better one replaces
        #[arg(long)]
        all: bool,
    },
    /// Show every choice for an op, with its evidence
    Show {
        /// Name of the op
        op: String,
        /// Only at this shape, as `list` prints it: name=value,name=value
        shape: Option<String>,
    },
    /// Explain what runs an op at a shape on this machine, and what stands in the way; exit 1 if no record decides
    Why(why::WhyArgs),
    /// Show the evidence behind the choices as a page, also of a store that another machine left
    Report(evidence::ReportArgs),
    /// Write all choices to one file
    Export {
        /// The file to write
        file: PathBuf,
        /// Also the evidence
        #[arg(long)]
        evidence: bool,
    },
    /// Bring in an exported file; its choices are starting points until confirmed here
    Import {
        /// The file to read
        file: PathBuf,
    },
    /// Add every record of another store folder
    Merge {
        /// The folder
        folder: PathBuf,
    },
    /// Show where the choices of two store folders, or of two lock files, differ; exit 1 if they do
    Diff {
        /// A folder or a lock file
        left: PathBuf,
        /// Another one; by default this machine's store, which is then the left one
        right: Option<PathBuf>,
    },
    /// Write the choices that a model runs with to a lock file, for --replay, and print their digest
    Lock(lock::LockArgs),
    /// Remove choices that a better one replaces, and old ones
    Prune {
        /// Also choices older than this many days
        #[arg(long, value_name = "DAYS")]
        older_than: Option<u32>,
        /// Only say what would go
        #[arg(long)]
        dry_run: bool,
    },
    /// Read every line and count what holds up; exit 1 on damage
    Verify,
}

/// Runs one verb on the user's store.
pub fn run(args: &StoreArgs, ui: Ui) -> Result<Outcome> {
    match &args.verb {
        Verb::Lock(args) => return lock::run(args, ui),
        Verb::Diff { left, right: Some(right) } if left.is_file() && right.is_file() => {
            return lock::diff(left, right, ui);
        }
        _ => {}
    }
    let root = Home::from_env()?.store();
    let mut store = open(&root);
    warn(&mut store, ui);
    let outcome = match &args.verb {
        Verb::List { all } => list(&store, *all, ui),
        Verb::Show { op, shape } => show(&store, op, shape.as_deref(), ui),
        Verb::Why(args) => why::run(&store, args, ui),
        Verb::Report(args) => evidence::run(&store, args, ui),
        Verb::Export { file, evidence } => export(&store, file, *evidence, ui),
        Verb::Import { file } => {
            let imported = store::import(&mut store, file).or_hint("give a file that `planish store export` wrote");
            added(imported?, ui)
        }
        Verb::Merge { folder } => {
            must_be_store(folder)?;
            added(store::merge(&mut store, folder)?, ui)
        }
        Verb::Diff { left, right: Some(right) } => {
            let mut sides = [left, right].map(|folder| must_be_store(folder).map(|()| open(folder)));
            for side in sides.iter_mut().flatten() {
                warn(side, ui);
            }
            let [left, right] = sides;
            diff(&left?, &right?, ui)
        }
        Verb::Diff { left: folder, right: None } => {
            must_be_store(folder)?;
            let mut other = open(folder);
            warn(&mut other, ui);
            diff(&store, &other, ui)
        }
        Verb::Lock(_) => unreachable!("done above"),
        Verb::Prune { older_than, dry_run } => {
            let apply = if *dry_run { Apply::DryRun } else { Apply::Now };
            prune(&root, *older_than, apply, ui)
        }
        Verb::Verify => verify(&store, ui),
    };
    warn(&mut store, ui);
    outcome
}

fn open(root: &Path) -> Store {
    Store::open(Layers { user: Some(root.to_owned()), ..Layers::default() })
}

fn warn(store: &mut Store, ui: Ui) {
    for warning in store.take_warnings() {
        ui.note(&format!("warning: {warning}"));
    }
}

fn must_be_store(folder: &Path) -> Result<()> {
    let what = match (folder.is_dir(), store::is_store(folder)) {
        (true, true) => return Ok(()),
        (true, false) => "holds other things than a store",
        (false, _) => "is no folder",
    };
    let missing: Result<()> = Err(anyhow!("{} {what}", folder.display()));
    missing.hint("give the folder that holds another store, such as a copied planish/store")
}

fn list(store: &Store, all: bool, ui: Ui) -> Result<Outcome> {
    let listed: Vec<Listed> = store::list(store).into_iter().filter(|l| all || !l.superseded).collect();
    if ui.json {
        let entry =
            |l: &Listed| json!({ "choice": l.entry.choice, "layer": l.entry.layer, "superseded": l.superseded });
        report::print_json(&listed.iter().map(entry).collect::<Vec<_>>())?;
        return Ok(Outcome::Done);
    }
    if listed.is_empty() {
        ui.note("the store is empty; `planish tune` fills it");
        return Ok(Outcome::Done);
    }
    let row = |l: &Listed| {
        let c = &l.entry.choice;
        let state = if l.superseded { "superseded".into() } else { c.state.to_string() };
        [c.key.op().into(), c.key.shape().into(), gain(c), state, c.source.to_string()]
    };
    let rows: Vec<_> = listed.iter().map(row).collect();
    report::print(&report::table(["op", "shape", "gain", "state", "source"], &rows))?;
    Ok(Outcome::Done)
}

fn gain(c: &Choice) -> String {
    format!("{:.2}x", c.ratio.mid)
}

fn show(store: &Store, op: &str, shape: Option<&str>, ui: Ui) -> Result<Outcome> {
    let keys = match shape {
        Some(shape) => {
            BTreeSet::from([Key::parse(op, shape).hint("`planish store list` prints shapes as they are written here")?])
        }
        None => store::list(store).into_iter().map(|l| l.entry.choice.key).filter(|k| k.op() == op).collect(),
    };
    let shown: Vec<Shown> = keys.iter().flat_map(|key| store::show(store, key)).collect();
    if ui.json {
        let entry =
            |s: &Shown| json!({ "choice": s.entry.choice, "layer": s.entry.layer, "evidence": s.evidence.as_ref() });
        report::print_json(&shown.iter().map(entry).collect::<Vec<_>>())?;
    } else {
        report::print(&shown.iter().map(shown_text).collect::<Vec<_>>().join("\n"))?;
    }
    if shown.is_empty() {
        let at = shape.map_or(String::new(), |shape| format!(" {shape}"));
        ui.note(&format!("no choice for {op}{at}; `planish store list` shows what there is"));
        return Ok(Outcome::No);
    }
    Ok(Outcome::Done)
}

fn shown_text(shown: &Shown) -> String {
    let c = &shown.entry.choice;
    let gain = format!("{:.3}x ({:.3} to {:.3}), {}", c.ratio.mid, c.ratio.lo, c.ratio.hi, report::time(c.ns_median));
    let evidence = match (&c.evidence, &shown.evidence) {
        (None, _) => "none".into(),
        (Some(name), None) => format!("{name}, not found"),
        (Some(_), Some(e)) => serde_json::to_string(&e.data).unwrap_or_else(|e| e.to_string()),
    };
    report::pairs(&[
        ("op", c.key.to_string()),
        ("config", c.config.to_string()),
        ("gain", gain),
        ("state", format!("{}, {} in the {} layer", c.state, c.source, shown.entry.layer)),
        ("silicon", format!("{} {}", c.identity.silicon.hash16(), c.identity.silicon.label)),
        ("kernel", c.identity.kernel.clone()),
        ("policy", c.identity.policy.clone()),
        ("evidence", evidence),
    ])
}

fn export(store: &Store, file: &Path, evidence: bool, ui: Ui) -> Result<Outcome> {
    let contents = if evidence { Contents::ChoicesAndEvidence } else { Contents::Choices };
    let records =
        store::export(store, file, contents).or_hint("name a file in a folder that is there and can be written")?;
    say(
        ui,
        &format!("{} in {}", counted(records, "record"), file.display()),
        json!({ "records": records, "file": file }),
    )?;
    Ok(Outcome::Done)
}

fn added(added: Added, ui: Ui) -> Result<Outcome> {
    let Added { choices, evidence, known, saved } = added;
    let place = if saved == Some(Saved::Memory) { ", not saved" } else { "" };
    say(
        ui,
        &format!(
            "{} and {} added, {known} known{place}",
            counted(choices, "choice"),
            counted(evidence, "evidence record")
        ),
        json!({ "choices": choices, "evidence": evidence, "known": known, "saved": saved != Some(Saved::Memory) }),
    )?;
    Ok(if place.is_empty() { Outcome::Done } else { Outcome::No })
}

fn diff(left: &Store, right: &Store, ui: Ui) -> Result<Outcome> {
    let differences = store::diff(left, right);
    if ui.json {
        let entry = |d: &store::Difference| json!({ "key": d.key, "left": d.left, "right": d.right });
        report::print_json(&differences.iter().map(entry).collect::<Vec<_>>())?;
    } else {
        let side = |c: &Option<Choice>| c.as_ref().map_or("none".into(), |c| format!("{} ({})", c.config, c.state));
        let row =
            |d: &store::Difference| format!("{}\n  left   {}\n  right  {}\n", d.key, side(&d.left), side(&d.right));
        report::print(&differences.iter().map(row).collect::<String>())?;
    }
    Ok(if differences.is_empty() { Outcome::Done } else { Outcome::No })
}

fn prune(root: &Path, older_than: Option<u32>, apply: Apply, ui: Ui) -> Result<Outcome> {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let older_than_ms = older_than.map(|days| store::now_ms().saturating_sub(u64::from(days) * DAY_MS));
    let pruned = store::prune(root, &Prune { older_than_ms, keep_kernels: None, superseded: true }, apply)?;
    let (choices, evidence) = (pruned.choices.len(), pruned.evidence);
    let verb = if apply == Apply::DryRun { "would be removed" } else { "removed" };
    say(
        ui,
        &format!("{} and {} {verb}", counted(choices, "choice"), counted(evidence, "evidence record")),
        json!({ "choices": pruned.choices, "evidence": evidence, "shards_skipped": pruned.shards_skipped }),
    )?;
    Ok(Outcome::Done)
}

fn verify(store: &Store, ui: Ui) -> Result<Outcome> {
    let mut damaged = 0;
    let mut layers = Vec::new();
    for v in store::verify(store)? {
        damaged += v.damaged + v.evidence_missing;
        let text = format!(
            "{}: {} and {} in {} hold up; {} damaged, {} evidence missing",
            v.root.display(),
            counted(v.choices, "choice"),
            counted(v.evidence, "evidence record"),
            counted(v.shards, "shard"),
            counted(v.damaged, "line"),
            v.evidence_missing
        );
        v.warnings.iter().for_each(|w| ui.note(&format!("warning: {w}")));
        let fields = [("choices", v.choices), ("evidence", v.evidence), ("shards", v.shards), ("damaged", v.damaged)];
        let mut layer: serde_json::Map<String, Value> =
            fields.map(|(k, n)| (k.to_owned(), n.into())).into_iter().collect();
        layer.insert("evidence_missing".into(), v.evidence_missing.into());
        layer.insert("root".into(), v.root.display().to_string().into());
        layers.push((text, Value::Object(layer)));
    }
    if ui.json {
        report::print_json(&layers.into_iter().map(|l| l.1).collect::<Vec<_>>())?;
    } else {
        report::print(&layers.into_iter().map(|l| l.0 + "\n").collect::<String>())?;
    }
    Ok(if damaged == 0 { Outcome::Done } else { Outcome::No })
}

/// One sentence, or the report as JSON.
fn say(ui: Ui, sentence: &str, json: Value) -> Result<()> {
    if ui.json { report::print_json(&json) } else { report::print(&format!("{sentence}\n")) }
}
