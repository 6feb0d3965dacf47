//! `planish tune --record DIR` writes down the times of every configuration of a kernel, and `planish tune --simulate PATH`
//! replays the search on such files, or on the evidence of a store, without the machine that they were measured on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use planish_engine::tuning::{self, Setting, Work};
use planish_tune::recorded::About;
use planish_tune::store::{self, Layers, Store};
use planish_tune::{Outcome as Evidence, Policy, Recorded, Simulated, Total, counted, simulate as replay};
use serde_json::json;

use super::bought::short;
use super::watch::Progress;
use crate::hint::WithHint;
use crate::ui::Ui;
use crate::{Outcome, report};

/// Ends the name of a recorded space.
const EXTENSION: &str = "space";

/// Recording and replaying.
#[derive(Args)]
pub struct SpaceArgs {
    /// Instead of tuning, time every configuration of each kernel and write one file for each into this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["list", "shapes", "simulate"])]
    record: Option<PathBuf>,
    /// Timings of each configuration that --record takes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
    /// Replay the search on recorded spaces, or on the evidence of a store, and say how it does; measures nothing
    #[arg(long, value_name = "PATH", conflicts_with_all = ["model", "shapes", "kernels", "list"])]
    simulate: Option<PathBuf>,
    /// Replays of each space, each with noise of its own
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
}

impl SpaceArgs {
    /// What is to be replayed.
    pub fn simulated(&self) -> Option<&Path> {
        self.simulate.as_deref()
    }

    /// Where spaces are to be recorded; the folder is made now, so that a bad name costs no measurement.
    pub fn recording(&self) -> Result<Option<Recording>> {
        let Some(folder) = &self.record else { return Ok(None) };
        let make = std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()));
        make.hint("--record takes a folder that can be written")?;
        Ok(Some(Recording { folder: folder.clone(), rounds: self.rounds as usize }))
    }
}

/// Where spaces are recorded, and how often each configuration is timed.
pub struct Recording {
    folder: PathBuf,
    rounds: usize,
}

impl Recording {
    /// Records every item that has something to choose; `setting.budget` is for all of them.
    pub fn run(&self, works: &[Work], setting: &Setting<'_>, progress: &mut Progress, ui: Ui) -> Result<Outcome> {
        let (start, mut written) = (setting.clock.now(), Vec::new());
        for work in works {
            let name = short(work.op.name, &work.shape);
            let spent = setting.clock.now().saturating_sub(start);
            let setting = Setting { budget: setting.budget.saturating_sub(spent), ..setting.clone() };
            let recorded = tuning::record(work, &setting, self.rounds, progress)?;
            let file = format!("{}-{}.{EXTENSION}", work.op.name, work.shape.to_string().replace([',', '='], "-"));
            let path = self.folder.join(file);
            std::fs::write(&path, recorded.to_text()).with_context(|| format!("cannot write {}", path.display()))?;
            let timed = recorded.timed().count();
            ui.note(&format!(
                "{name}: {timed} of {} legal configurations timed {} times",
                recorded.legal(),
                self.rounds
            ));
            written.push((path, timed, recorded.legal()));
        }
        progress.finish();
        if ui.json {
            let row = |(path, timed, legal): &(PathBuf, usize, usize)| json!({ "file": path, "timed": timed, "legal": legal });
            report::print_json(&written.iter().map(row).collect::<Vec<_>>())?;
            return Ok(Outcome::Done);
        }
        let lines: String = written.iter().map(|(path, ..)| format!("{}\n", path.display())).collect();
        report::print(&lines)?;
        Ok(Outcome::Done)
    }
}

/// Replays the search on everything at `path` and prints how it does.
pub fn simulate(path: &Path, args: &SpaceArgs, budget: Duration, ui: Ui) -> Result<Outcome> {
    let spaces = load(path, ui)?;
    let policy = Policy::default();
    let mut done = Vec::new();
    for space in &spaces {
        done.push(
            replay(space, &policy, u64::from(args.seeds), budget).map_err(|e| anyhow!("{}: {e}", space.about().key))?,
        );
    }
    let total = Total::of(&done);
    if ui.json {
        report::print_json(
            &json!({ "spaces": done, "total": total, "policy": policy, "sentence": sentence(&done, &total, &policy) }),
        )?;
        return Ok(Outcome::Done);
    }
    let rows: Vec<[String; 8]> = done.iter().map(row).collect();
    let names = ["space", "tried", "timings", "gain", "regret", "worst", "alike", "verdicts"];
    let mut text = report::table(names, &rows);
    for s in done.iter().filter(|s| s.missing > 0) {
        let (name, missing) = (name_of(&s.about), s.missing);
        text += &format!("{name}: {missing} combinations were never recorded; regret is among those that were\n");
    }
    report::print(&format!("{text}\n{}\n", sentence(&done, &total, &policy)))?;
    Ok(Outcome::Done)
}

fn name_of(about: &About) -> String {
    match about.key.shape().parse() {
        Ok(shape) => short(about.key.op(), &shape),
        Err(_) => about.key.to_string(),
    }
}

fn percent(v: f64) -> String {
    format!("{:.1}%", 100.0 * v)
}

fn row(s: &Simulated) -> [String; 8] {
    let verdicts: Vec<String> = s.verdicts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
    [
        name_of(&s.about),
        format!("{:.1} of {}", s.spent.configs, s.legal),
        format!("{:.0} of {:.0}", s.spent.timings, s.exhaustive.timings),
        format!("{:.2} of {:.2}", s.gain.search, s.gain.exhaustive),
        percent(s.regret),
        percent(s.regret_max),
        percent(s.stability),
        verdicts.join(", "),
    ]
}

/// What a person can repeat.
fn sentence(done: &[Simulated], total: &Total, policy: &Policy) -> String {
    let wrong: u64 = done.iter().map(|s| s.false_promotions).sum();
    let replays: u64 = done.iter().map(|s| s.seeds).sum();
    format!(
        "{}, {replays} replays: {} of the configurations of exhaustive searches tried, {} of their timings taken; \
         by share of a token {} slower than those find, {} beyond the margin of {}; {wrong} promoted that are no faster",
        counted(done.len(), "space"),
        percent(total.configs_share),
        percent(total.timings_share),
        percent(total.regret),
        percent(total.regret_beyond_margin),
        percent(policy.margin),
    )
}

/// The recorded spaces at `path`: a file, a folder of them, or the folder of a store.
fn load(path: &Path, ui: Ui) -> Result<Vec<Recorded>> {
    let hint = "record some with planish tune --kernel OP:SHAPE --record DIR";
    if !path.is_dir() {
        return Ok(vec![Recorded::read(path).map_err(|e| anyhow!("{e}")).hint(hint)?]);
    }
    let listed = std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut files: Vec<PathBuf> = listed.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == EXTENSION));
    files.sort();
    let read = |p: &PathBuf| Recorded::read(p).map_err(|e| anyhow!("{e}")).hint(hint);
    let mut spaces = files.iter().map(read).collect::<Result<Vec<_>>>()?;
    if spaces.is_empty() {
        spaces = of_store(path, ui);
    }
    if spaces.is_empty() {
        return Err(anyhow!("{}: neither recorded spaces nor evidence of a store", path.display())).hint(hint);
    }
    Ok(spaces)
}

/// What the evidence in the store at `root` holds, as spaces.
fn of_store(root: &Path, ui: Ui) -> Vec<Recorded> {
    let store = Store::open(Layers { system: Some(root.to_owned()), ..Layers::default() });
    let mut keys: Vec<_> = store::list(&store).into_iter().map(|l| l.entry.choice.key.clone()).collect();
    keys.dedup();
    let mut spaces = Vec::new();
    for shown in keys.iter().flat_map(|key| store::show(&store, key)) {
        let choice = &shown.entry.choice;
        let about = About { key: choice.key.clone(), device: choice.identity.silicon.label.clone(), share: 1.0 };
        let outcome: Option<Evidence> = shown.evidence.and_then(|e| serde_json::from_value(e.data).ok());
        match outcome.and_then(|o| Recorded::of_evidence(about, &o)) {
            Some(space) => spaces.push(space),
            None => ui.note(&format!("{}: its evidence holds no times of candidates", choice.key)),
        }
    }
    spaces
}
