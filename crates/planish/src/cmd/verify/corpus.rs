//! `planish verify --corpus`: every model of the corpus in every arithmetic, on every path, in covering configurations.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use indicatif::ProgressBar;
use planish_engine::corpus::cover::Seen;
use planish_engine::corpus::run::{self, Class, Effort, OnGpu, Ran};
use planish_engine::corpus::{CASES, Case, SOURCE_TYPE, Source, derive};
use planish_engine::gguf::Gguf;
use planish_engine::gpu;
use planish_engine::model::Model;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_tune::counted;
use serde_json::json;
use tempfile::TempDir;

use crate::device::{self, Device};
use crate::fetch;
use crate::hint::WithHint;
use crate::home::Home;
use crate::session::{self, SessionArgs};
use crate::ui::Ui;
use crate::{Outcome, interrupt, presets, report};

/// Longest prompt that is also fed one token at a time.
const STEPPED: usize = 128;
/// Longest prompt of a large model where little time is to be spent.
const QUICK_LONGEST: usize = 32;

/// What of the corpus is run.
#[derive(Args)]
pub struct CorpusArgs {
    /// Run all models with expected logits that planish carries, in every arithmetic, on every path and in configurations
    /// that have every value of every parameter; a MODEL is the Q4_1 file that nine of them are derived from, which take
    /// about seven minutes of a processor together, and the others two seconds
    #[arg(long, conflicts_with_all = ["expected", "dump", "not_worse_than_llama", "every_width", "ops"])]
    pub corpus: bool,
    /// With --corpus: of the models that need a file only the first, at its default configuration
    #[arg(long, requires = "corpus")]
    quick: bool,
    /// With --corpus: only cases whose name has this in it; may be repeated
    #[arg(long, value_name = "TEXT", requires = "corpus")]
    only: Vec<String>,
    /// With --corpus: stop after this time and say what was not reached
    #[arg(long, value_name = "SECONDS", requires = "corpus", value_parser = super::super::seconds)]
    within: Option<f64>,
}

/// How a case ended.
struct Row<'c> {
    case: &'c Case,
    /// Why it was not run, or what came of it.
    ran: Result<Ran, String>,
}

/// Runs the corpus and prints a line for every case.
pub fn run(args: &CorpusArgs, model: Option<&str>, session: &SessionArgs, ui: Ui) -> Result<Outcome> {
    let wanted = |c: &&Case| args.only.is_empty() || args.only.iter().any(|o| c.name.contains(o.as_str()));
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        let names = CASES.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
        return Err(anyhow!("no case has {} in its name", args.only.join(" or "))).hint(format!("cases are {names}"));
    }
    let needs_file = cases.iter().any(|c| large(c));
    let source = if needs_file { source(model, ui)? } else { None };
    let folder = TempDir::new().context("cannot make a folder for models")?;
    let mut bench = Bench::open(session)?;
    let deadline = args.within.map(|s| Instant::now() + Duration::from_secs_f64(s));
    let runs = |c: &&&Case| args.left_out(c, source.as_deref()).is_none();
    let mut clock = Clock { start: Instant::now(), done: 0.0, all: cases.iter().filter(runs).map(|c| share(c)).sum() };
    let mut rows = Vec::new();
    for case in cases {
        interrupt::check()?;
        let late = deadline.is_some_and(|end| Instant::now() >= end).then_some("out of time");
        let ran = match args.left_out(case, source.as_deref()).or(late) {
            Some(why) => Err(why.to_owned()),
            None => {
                let what = format!("{} ({}){}", case.name, case.oracle, clock.left(0.0));
                let bar = ui.spinner(&what);
                let told = |part: f64| clock.tell(&bar, case, part);
                let ran = bench.case(case, source.as_deref(), folder.path(), &args.effort(case, deadline, &told));
                bar.finish_and_clear();
                clock.done += share(case);
                Ok(ran.with_context(|| case.name)?)
            }
        };
        let row = Row { case, ran };
        if !ui.json {
            report::print(&line(&row))?;
        }
        rows.push(row);
    }
    interrupt::check()?;
    conclude(&bench, args, &rows, ui)
}

/// Whether the model of a case needs a file.
fn large(case: &Case) -> bool {
    matches!(case.source, Source::Derived(_))
}

/// The time of a case, in that of one that needs a file.
fn share(case: &Case) -> f64 {
    if large(case) { 1.0 } else { 0.005 }
}

/// When all cases are expected to be done.
struct Clock {
    start: Instant,
    /// Shares of the cases that are done, and of all.
    done: f64,
    all: f64,
}

impl Clock {
    /// The rest of the time where `part` of a case is done, as it stands behind what is being done.
    fn left(&self, part: f64) -> String {
        let done = self.done + part;
        if done == 0.0 {
            return String::new();
        }
        let left = self.start.elapsed().as_secs_f64() * (self.all / done - 1.0).max(0.0);
        format!(", about {left:.0} s left for all")
    }

    fn tell(&self, bar: &ProgressBar, case: &Case, part: f64) {
        bar.set_message(format!("{}: {:.0}%{}", case.name, 100.0 * part, self.left(part * share(case))));
    }
}

impl CorpusArgs {
    /// Why a case is not run, if it is not.
    fn left_out(&self, case: &Case, source: Option<&Path>) -> Option<&'static str> {
        if self.quick && large(case) && !matches!(case.source, Source::Derived(SOURCE_TYPE)) {
            return Some("left out by --quick");
        }
        (large(case) && source.is_none()).then_some("the model file is not here")
    }

    /// How much of a case is run.
    fn effort<'e>(&self, case: &Case, deadline: Option<Instant>, told: &'e dyn Fn(f64)) -> Effort<'e> {
        let short = self.quick && large(case);
        Effort {
            classes: if short { &Class::ALL[2..] } else { &Class::ALL },
            every_way: !short,
            stepped: STEPPED,
            longest: if short { QUICK_LONGEST } else { usize::MAX },
            deadline,
            cancel: interrupt::flag(),
            told,
        }
    }
}

/// The file that cases are derived from, where it is: the one named, else the default model's in the cache.
fn source(model: Option<&str>, ui: Ui) -> Result<Option<PathBuf>> {
    let path = match model {
        Some(model) => session::resolve(model, ui)?,
        None => match Home::from_env().ok().and_then(|home| fetch::cached_default(&home)) {
            Some(path) => path,
            None => {
                let default = presets::DEFAULT;
                ui.note(&format!(
                    "{default} is not in the cache: `planish pull {default}` brings it, or name its file"
                ));
                return Ok(None);
            }
        },
    };
    let wanted = CASES.iter().find(|c| matches!(c.source, Source::Derived(SOURCE_TYPE))).context("a source")?;
    let (_, sha256) = fetch::publish::hash_file(&path)?;
    let sum = run::expected(wanted)?.sha256;
    if sha256 == sum {
        return Ok(Some(path));
    }
    Err(anyhow!("{} has sha256 {sha256}, the corpus is made from {sum}", path.display()))
        .hint(format!("`planish pull {}` brings the right file", presets::DEFAULT))
}

/// Where cases run.
struct Bench {
    device: Device,
    cpu: planish_device::Cpu,
    isa: Isa,
    gpu: Option<Box<dyn planish_device::Backend>>,
    /// Programs of the processor that were run.
    seen: Seen,
}

impl Bench {
    fn open(session: &SessionArgs) -> Result<Bench> {
        let device = session.place().device();
        if !session.pins().is_empty() {
            return Err(anyhow!("--pin: the corpus runs every configuration")).hint("leave --pin out");
        }
        let (cpu, isa) = session.hardware()?;
        let gpu = if device == Device::Cpu { None } else { Some(device::open(device)?) };
        Ok(Bench { device, cpu, isa, gpu, seen: Seen::default() })
    }

    fn case(&mut self, case: &Case, source: Option<&Path>, folder: &Path, effort: &Effort<'_>) -> Result<Ran> {
        let (path, ours) = placed(case, source, folder)?;
        let threads = self.cpu.threads() as usize;
        let machine = Machine { backend: &self.cpu, isa: self.isa };
        let model = Model::open(&path, &self.cpu, threads)?;
        let ran = match &self.gpu {
            None => run::on_cpu(case, machine, &model, effort, &mut self.seen)?,
            Some(backend) => {
                let weights = gpu::Weights::load(&model.file.gguf, &model.file.hyper, backend.as_ref(), threads)?;
                let there = Machine { backend: backend.as_ref(), isa: Isa::Portable };
                let chunk = if self.device == Device::Host { 16 } else { gpu::chunk::TOKENS };
                OnGpu { machine: there, weights: &weights, cpu: machine, model: &model, chunk }.run(case, effort)?
            }
        };
        if ours {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(ran)
    }
}

/// The file of a case, and whether it was written here; its checksum must be the expected one.
fn placed(case: &Case, source: Option<&Path>, folder: &Path) -> Result<(PathBuf, bool)> {
    let path = folder.join(format!("{}.gguf", case.name));
    match (case.source, source) {
        (Source::Tiny(bytes), _) => {
            fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?
        }
        (Source::Derived(SOURCE_TYPE), Some(source)) => return Ok((source.to_owned(), false)),
        (Source::Derived(ty), Some(source)) => {
            let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            let hint = "TMPDIR names the folder, which must have room for a model of 460 MB";
            derive::derive(&Gguf::open(source)?, ty, &mut BufWriter::new(file)).hint(hint)?;
        }
        (Source::Derived(_), None) => return Err(anyhow!("the model file is not here")),
    }
    let (sum, (_, sha256)) = (run::expected(case)?.sha256, fetch::publish::hash_file(&path)?);
    if sha256 != sum {
        return Err(anyhow!("the derived file has sha256 {sha256}, the expected values are of {sum}"));
    }
    Ok((path, true))
}

fn line(row: &Row<'_>) -> String {
    let (name, oracle) = (row.case.name, row.case.oracle);
    let ran = match &row.ran {
        Err(why) => return format!("skip {name}: {why}\n"),
        Ok(ran) => ran,
    };
    let state = if ran.failures.is_empty() { "ok  " } else { "FAIL" };
    let partial = if ran.partial { ", cut short" } else { "" };
    let Ran { judged, ways, same, programs, worst, .. } = ran;
    let bits = format!("{same} of them with the bits of the default");
    let [judged, programs] = [counted(*judged, "prompt"), counted(*programs, "new program")];
    let done = format!("{judged} judged; {programs} in {}, {bits}{partial}", counted(*ways, "configuration"));
    let mut out = format!("{state} {name}: {done}, error at most {worst:.2} of its limit; {oracle}\n");
    for f in &ran.failures {
        let why = f.verdict.reasons.join("; ");
        let left = f.left.as_ref().map_or(String::new(), |l| {
            format!("; first off: {} ({:.2e}, allowed {:.2e}, in {})", l.name, l.error, l.bound, l.mode)
        });
        let way = if f.way == 0 { "the default".to_owned() } else { format!("configuration {}", f.way) };
        out += &format!("     {} {} {} in {way}: {why}{left}\n", f.mode, f.verdict.prompt, f.verdict.path);
        out += &f.ops.iter().map(|op| format!("       {op}\n")).collect::<String>();
    }
    out
}

fn conclude(bench: &Bench, args: &CorpusArgs, rows: &[Row<'_>], ui: Ui) -> Result<Outcome> {
    let ran = || rows.iter().filter_map(|r| r.ran.as_ref().ok());
    let (passed, failed) =
        (ran().filter(|r| r.failures.is_empty()).count(), ran().filter(|r| !r.failures.is_empty()).count());
    let skipped = rows.len() - passed - failed;
    let partial = ran().filter(|r| r.partial).count();
    let judged: usize = ran().map(|r| r.judged).sum();
    let device = bench.device.to_string();
    if ui.json {
        let of = |r: &Row<'_>| match &r.ran {
            Ok(ran) => json!({ "case": r.case.name, "oracle": r.case.oracle, "ran": ran }),
            Err(why) => json!({ "case": r.case.name, "oracle": r.case.oracle, "skipped": why }),
        };
        report::print_json(&json!({
            "device": device, "passed": passed, "failed": failed, "skipped": skipped, "partial": partial,
            "judged": judged, "cases": rows.iter().map(of).collect::<Vec<_>>(),
        }))?;
    } else {
        let partial = if partial > 0 { format!(", {partial} cut short") } else { String::new() };
        report::print(&format!(
            "corpus on {device}: {passed} passed, {failed} failed, {skipped} skipped{partial}; {judged} prompts judged\n"
        ))?;
    }
    // What was left out on request is no failure; what could not be run is.
    let whole = args.quick || (skipped == 0 && partial == 0);
    Ok(if failed == 0 && passed > 0 && whole { Outcome::Done } else { Outcome::No })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_configuration_is_no_plural() {
        let ran = |ways| Ran { judged: 8, ways, programs: 1, ..Ran::default() };
        let said = |ways| line(&Row { case: &CASES[0], ran: Ok(ran(ways)) });
        assert!(said(1).contains("8 prompts judged; 1 new program in 1 configuration, 0"), "{}", said(1));
        assert!(said(2).contains("in 2 configurations, 0"), "{}", said(2));
    }
}
