//! `planish tune`: finds the fastest right configuration of every kernel of a model on this machine, and shows the gain.

mod bought;
mod kernels;
mod spaces;
pub mod step;
mod variants;
mod watch;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use clap::builder::PossibleValuesParser;
use planish_device::Cpu;
use planish_engine::accept::{self, Effort, Lasts};
use planish_engine::decoder::{Decoder, Options};
use planish_engine::identity::{Identities, StoreChoices};
use planish_engine::plan::{Choices, Chosen, Defaults, Entry, Replanned};
use planish_engine::probes;
use planish_engine::shapes;
use planish_engine::text::{Special, Tokenizer};
use planish_engine::tuning::{self, Ceilings, Done, Fate, Setting, Work, worklist};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::peak::Peak;
use planish_kernels::op::Machine;
use planish_tune::store::{Mode, Store};
use planish_tune::{Policy, WallClock};

pub use self::bought::short;
use self::bought::{Bought, EndToEnd};
use self::spaces::{Recording, SpaceArgs};
use self::watch::{Coming, Progress};
use crate::device::Device;
use crate::gpu::Named;
use crate::page::{self, Files};
use crate::session::{self, Session, SessionArgs};
use crate::ui::Ui;
use crate::workbench::{self, worker};
use crate::{Outcome, interrupt, presets};

/// Fed to both decoders of the end-to-end check, as often as it takes.
const TEXT: &str = "A plane takes thin shavings off a board until it is flat. Set the iron too deep and the grain \
    tears; set it too fine and nothing comes off. The right depth depends on the wood, so you try, look, and turn the \
    screw a little. In 1873 a workshop of 12 people made 340 planes a month: how many is that in a year? ";

/// Most time of a budget that goes to the end-to-end check.
const ACCEPT_MOST: Duration = Duration::from_secs(12);
/// 1e9 operations a second and thread where nothing is measured; only weighs items against each other.
const GOP_S_PER_THREAD_NOMINAL: f64 = 60.0;
/// Read bandwidth where nothing is measured, GB/s; only weighs items against each other.
const READ_GB_S_NOMINAL: f64 = 15.0;

/// Find the fastest right configuration of every kernel of a model on this machine
#[derive(Args)]
pub struct TuneArgs {
    /// A preset, a cached model, OWNER/REPO[:FILE], or the path of a GGUF file
    #[arg(default_value = presets::DEFAULT)]
    model: String,
    /// Tune for the shapes of a well-known model instead, which needs no file
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = shape_names())]
    shapes: Option<String>,
    /// Tune one kernel alone, on any --device, as in `matvec:type=q4_1,act=int8,batch=1,rows=576,cols=576`; may be repeated
    #[arg(long = "kernel", value_name = "OP:SHAPE", value_parser = kernels::parse)]
    #[arg(conflicts_with_all = ["model", "shapes", "list"])]
    kernels: Vec<kernels::Named>,
    /// Seconds that it may take, the end-to-end check included
    #[arg(long, value_name = "SECONDS", default_value = "60s", value_parser = super::seconds)]
    budget: f64,
    /// Measure again what the store already knows
    #[arg(long)]
    force: bool,
    /// Print the kernels with their shares of the time and where their configurations come from; measure nothing
    #[arg(long)]
    list: bool,
    /// Write what was measured as a page, with the same data as .json and .tsv beside it
    #[arg(long, value_name = "FILE.html", conflicts_with = "list")]
    report: Option<PathBuf>,
    #[command(flatten)]
    spaces: SpaceArgs,
    #[command(flatten)]
    session: SessionArgs,
}

pub(super) fn shape_names() -> PossibleValuesParser {
    PossibleValuesParser::new(shapes::PRESETS.iter().map(|p| p.name))
}

/// How much is said along the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Talk {
    /// A line for every kernel.
    Lines,
    /// One line at the start.
    Little,
}

/// What is asked of a tuning run.
struct Request {
    budget: Duration,
    force: bool,
    talk: Talk,
    /// Where the report goes, if anywhere.
    report: Option<PathBuf>,
    ui: Ui,
    /// Instead of tuning, every configuration is timed and written down.
    recording: Option<Recording>,
}

impl Request {
    /// How the end-to-end check of the set `digest` ended, where the store knows and may be asked.
    fn known_end(&self, digest: &str, identities: &Identities, store: &Store) -> Result<Option<EndToEnd>> {
        let report = if self.force { None } else { accept::known(digest, identities, store)? };
        Ok(report.map(|report| EndToEnd { report, known: true, put_back: 0, by_others: None }))
    }

    /// The end of a check that left the set `digest`, kept in the store unless other work makes it one for now.
    fn remembered(&self, end: EndToEnd, digest: &str, identities: &Identities, store: &mut Store) -> Result<EndToEnd> {
        if end.lasts() == Lasts::ForGood {
            accept::remember(&end.report, digest, identities, store)?;
        }
        for warning in store.take_warnings() {
            self.ui.note(&format!("warning: {warning}"));
        }
        Ok(end)
    }

    /// The report on `bought`, where one is wanted, from what the store holds now.
    fn report(&self, bought: &Bought, known: &Known<'_>) -> Result<Option<Files>> {
        let wanted = self.report.as_ref().map(|_| page::files(&bought.evidence(self.budget, known)));
        wanted.transpose()
    }

    /// Prints what was bought, then writes the report.
    fn conclude(&self, bought: &Bought, report: Option<Files>) -> Result<Outcome> {
        let stopped = interrupt::requested();
        if stopped {
            self.ui.note(&bought.interrupted());
        } else {
            bought.print(self.ui)?;
        }
        if let (Some(path), Some(files)) = (&self.report, report) {
            let written = files.write(path)?.map(|p| p.display().to_string());
            self.ui.note(&format!("report: {}", written.join(", ")));
        }
        if stopped { interrupt::check().map(|()| Outcome::Done) } else { Ok(bought.answer()) }
    }
}

/// What is known when a run is over, and about which machine.
struct Known<'a> {
    machine: Machine<'a>,
    identities: &'a Identities,
    store: &'a Store,
    /// Digest of the set of choices that the model runs with; empty where there is no model.
    digest: String,
}

/// What is tuned, and on what.
struct Ground<'a> {
    cpu: &'a Cpu,
    isa: Isa,
    identities: &'a Identities,
    decode: Vec<Entry>,
    prefill: Vec<Entry>,
    model_bytes: u64,
    deterministic: bool,
}

impl Ground<'_> {
    fn machine(&self) -> Machine<'_> {
        Machine { backend: self.cpu, isa: self.isa }
    }

    fn works(&self, ceilings: Ceilings) -> Vec<Work> {
        let mut works = worklist(&[&self.decode, &self.prefill], ceilings);
        works.iter_mut().for_each(|w| w.deterministic = self.deterministic);
        works
    }
}

/// Ceilings of an ordinary machine, where nothing is to be measured.
fn nominal(cpu: &Cpu) -> Ceilings {
    let gop_s = GOP_S_PER_THREAD_NOMINAL * f64::from(cpu.threads());
    let peak = Peak { f32_gflop_s: gop_s, int8_gop_s: gop_s, threads: cpu.threads() };
    Ceilings { read_gb_s: READ_GB_S_NOMINAL, peak }
}

/// Tunes, checks the whole model, and prints what it bought.
pub fn run(args: &TuneArgs, ui: Ui) -> Result<Outcome> {
    let budget = Duration::from_secs_f64(args.budget);
    if let Some(path) = args.spaces.simulated() {
        return spaces::simulate(path, &args.spaces, budget, ui);
    }
    args.session.must_use_store()?;
    if let Some(path) = &args.report {
        page::must_be_html(path)?;
    }
    let recording = args.spaces.recording()?;
    let report = args.report.clone();
    let request = Request { budget, force: args.force, talk: Talk::Lines, report, ui, recording };
    if !args.kernels.is_empty() {
        return kernels::run(&args.kernels, &args.session, &request);
    }
    if args.session.place().device() != Device::Cpu {
        let named = args.shapes.as_deref().map_or(Named::Model(&args.model), Named::Shapes);
        return if args.list {
            step::list(named, &args.session, ui)
        } else {
            step::run(named, &args.session, &request)
        };
    }
    args.session.place().must_be_cpu()?;
    match &args.shapes {
        Some(name) => on_shapes(name, args, &request),
        None => on_model(args, &request),
    }
}

/// The kernels of a well-known model, without one.
fn on_shapes(name: &str, args: &TuneArgs, request: &Request) -> Result<Outcome> {
    let shape = shapes::preset(name)?;
    let (cpu, isa) = args.session.hardware()?;
    let machine = Machine { backend: &cpu, isa };
    let mut store = session::open_store(request.ui);
    let identities = &Identities::new(&machine, &Policy::default());
    let (snapshot, mode, deterministic) = (store.snapshot(), &Mode::Stored, args.session.deterministic());
    let choices = StoreChoices { snapshot, identities, mode, deterministic };
    let plans = shape.plans(machine, args.session.options(shape.context()), &choices)?;
    let (decode, prefill, model_bytes) = (plans.decode, plans.prefill, plans.model_bytes);
    let ground = Ground { cpu: &cpu, isa, identities, decode, prefill, model_bytes, deterministic };
    if args.list {
        let plans: [&[Entry]; 2] = [&ground.decode, &ground.prefill];
        return bought::list(&chosen(&worklist(&plans, nominal(&cpu)), plans), request.ui);
    }
    let bought = tune_kernels(&ground, request, request.budget, &mut store)?.named(&format!("{name} shapes"));
    let known = Known { machine, identities, store: &store, digest: String::new() };
    request.conclude(&bought, request.report(&bought, &known)?)
}

/// The kernels of a model, and then the model as a whole.
fn on_model(args: &TuneArgs, request: &Request) -> Result<Outcome> {
    let ui = request.ui;
    let mut session = Session::open(&args.model, &args.session, ui)?;
    if let Some(recording) = &request.recording {
        let (decode, prefill) = plans(&session)?;
        let (cpu, isa, identities) = (&session.cpu, session.isa, &session.identities);
        let model_bytes = session.model.file.gguf.bytes().len() as u64;
        let deterministic = session.deterministic;
        let ground = Ground { cpu, isa, identities, decode, prefill, model_bytes, deterministic };
        let kernels = ground.works(nominal(ground.cpu)).len();
        let mut progress = Progress::new(ui, true, Coming { kernels, budget: request.budget, saved: false });
        return with_setting(&ground, request, request.budget, &mut progress, |works, setting, progress| {
            recording.run(works, setting, progress, ui)
        });
    }
    if args.list {
        let (decode, prefill) = plans(&session)?;
        let plans: [&[Entry]; 2] = [&decode, &prefill];
        return bought::list(&chosen(&worklist(&plans, nominal(&session.cpu)), plans), ui);
    }
    let bought = tune_model(&mut session, request)?;
    let digest = session.decoder()?.frozen().digest().to_owned();
    let (machine, identities, store) = (session.machine(), &session.identities, &session.store);
    let report = request.report(&bought, &Known { machine, identities, store, digest })?;
    request.conclude(&bought, report)
}

/// The items of a worklist with what the plans, which it was made from, run them with.
fn chosen<'p>(works: &'p [Work], plans: [&'p [Entry]; 2]) -> Vec<(&'p Work, &'p Chosen)> {
    let same = |w: &Work, e: &Entry| e.op.name == w.op.name && e.shape == w.shape;
    let entry = |w: &'p Work| Some((w, &plans.into_iter().flatten().find(|e| same(w, e))?.chosen));
    works.iter().filter_map(entry).collect()
}

/// Tunes the kernels of an open model with little talk; the table of what that bought.
pub fn quick(session: &mut Session, budget: Duration, ui: Ui) -> Result<String> {
    let talk = Talk::Little;
    let request = Request { budget, force: false, talk, report: None, ui, recording: None };
    let mut bought = tune_model(session, &request)?;
    interrupt::check()?;
    // The command that is running never measures again.
    bought.again = format!("`{}`", session.tune_command());
    Ok(bought.text())
}

/// What decoders of the session launch.
fn plans(session: &Session) -> Result<(Vec<Entry>, Vec<Entry>)> {
    let decoder = session.decoder()?;
    Ok((decoder.decode_plan, decoder.prefill_plan))
}

fn tune_model(session: &mut Session, request: &Request) -> Result<Bought> {
    let start = Instant::now();
    let name = session.model.file.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let for_accept = request.budget.mul_f64(0.25).min(ACCEPT_MOST);
    let for_kernels = request.budget.saturating_sub(for_accept);
    let (decode, prefill) = plans(session)?;
    let model_bytes = session.model.file.gguf.bytes().len() as u64;
    let (cpu, isa, identities) = (&session.cpu, session.isa, &session.identities);
    let deterministic = session.deterministic;
    let ground = Ground { cpu, isa, identities, decode, prefill, model_bytes, deterministic };
    let mut bought = tune_kernels(&ground, request, for_kernels, &mut session.store)?.named(&name);
    if !interrupt::requested() {
        // The last pair may run past the end of its time.
        let left = request.budget.saturating_sub(start.elapsed()).mul_f64(0.85);
        bought.end_to_end = end_to_end(session, request, left.min(ACCEPT_MOST), start)?;
        let machine = Machine { backend: &session.cpu, isa: session.isa };
        bought.refresh(machine, &session.identities, &session.store);
    }
    bought.seconds = start.elapsed().as_secs_f64();
    Ok(bought)
}

fn tune_kernels(ground: &Ground<'_>, request: &Request, budget: Duration, store: &mut Store) -> Result<Bought> {
    let start = Instant::now();
    let machine = ground.machine();
    let nominal = ground.works(nominal(ground.cpu));
    let known = |store: &Store| -> Option<Vec<Done>> {
        let one = |w: &Work| {
            let choice = tuning::settled(w, machine, ground.identities, store)?;
            Some(Done { work: w.clone(), fate: Fate::Known(Box::new(choice)) })
        };
        nominal.iter().map(one).collect()
    };
    if !request.force
        && let Some(done) = known(store)
    {
        let bought = Bought::new(done, machine, ground.identities, store);
        request.ui.note(&bought.nothing_to_measure());
        return Ok(bought);
    }
    let coming = Coming { kernels: nominal.len(), budget, saved: store.is_kept() };
    let mut progress = Progress::new(request.ui, request.talk == Talk::Lines, coming);
    let before = tuning::usage(None);
    let done = with_setting(ground, request, budget, &mut progress, |works, setting, progress| {
        Ok(tuning::run(works, setting, store, progress)?)
    })?;
    progress.finish();
    let mut bought = Bought::new(done, machine, ground.identities, store);
    bought.seconds = start.elapsed().as_secs_f64();
    bought.by_others = tuning::by_others(before);
    Ok(bought)
}

/// Measures the ceilings, and hands the worklist and everything that measuring it needs to `then`.
fn with_setting<T>(
    ground: &Ground<'_>,
    request: &Request,
    budget: Duration,
    progress: &mut Progress,
    then: impl FnOnce(&[Work], &Setting<'_>, &mut Progress) -> Result<T>,
) -> Result<T> {
    let (start, machine) = (Instant::now(), ground.machine());
    let cold = probes::cpu::cold(ground.cpu)?;
    let ceilings = workbench::ceilings(ground.cpu, ground.isa, &cold)?;
    progress.roof(&ceilings, Some(&cold));
    let works = ground.works(ceilings);
    let worker = worker(&["--threads", &ground.cpu.threads().to_string(), "--isa", ground.isa.name()])?;
    let clock = WallClock::start();
    let setting = Setting {
        budget: budget.saturating_sub(start.elapsed()),
        ceilings: Some(workbench::ceiling_probe(ceilings, ground.cpu, ground.isa, cold)),
        rotate_bytes: ground.model_bytes.min(cold.bytes),
        cold: Some(cold),
        force: request.force,
        ..workbench::setting(machine, Device::Cpu, (ground.identities, &worker, &clock))
    };
    then(&works, &setting, progress)
}

/// Tuned against default, unless the store knows how that ends; choices that bring nothing go back to the defaults.
///
/// Tuning began at `start`.
fn end_to_end(session: &mut Session, request: &Request, budget: Duration, start: Instant) -> Result<Option<EndToEnd>> {
    let (decode, prefill, digest) = {
        let tuned = session.decoder()?;
        let digest = tuned.frozen().digest().to_owned();
        (tuned.decode_plan, tuned.prefill_plan, digest)
    };
    if let Some(known) = request.known_end(&digest, &session.identities, &session.store)? {
        return Ok(Some(known));
    }
    let is_default = |e: &Entry| e.chosen.config == (e.op.space)(&e.shape, &session.machine()).default;
    if decode.iter().chain(&prefill).all(is_default) {
        return Ok(None);
    }
    request.ui.note(&format!("end to end: tuned against default, about {:.0} s", budget.as_secs_f64()));
    let before = tuning::usage(None);
    let report = {
        let Options { context, chunk, .. } = session.options;
        let tokens = Effort::default().tokens.min(context / 4);
        let ids = ids(&session.model.file.tokenizer, tokens + chunk.min(128).min(context - tokens))?;
        // Two caches of the whole context could be most of the memory, and the check fills a few hundred positions.
        let options = Options { context: ids.len().max(chunk).min(context), ..session.options };
        let decoder = |choices: &dyn Choices| {
            Decoder::new(session.machine(), &session.model.file.hyper, &session.model.weights, options, choices)
        };
        let (mut default, mut tuned) = (decoder(&Defaults)?, decoder(&Replanned([&decode, &prefill]))?);
        let effort = Effort { tokens, budget, ..Effort::default() };
        accept::compare(&mut default, &mut tuned, &ids, &effort, interrupt::flag())?
    };
    let Some(report) = report else { return Ok(None) };
    let report = report.after(start.elapsed());
    let mut end = EndToEnd { report, known: false, put_back: 0, by_others: tuning::by_others(before) };
    let items = accept::refuted(&report, &decode, &prefill);
    let machine = Machine { backend: &session.cpu, isa: session.isa };
    let space_of = |(op, shape): &accept::Item| {
        let space = (op.space)(shape, &machine);
        if session.deterministic { op.in_order(space) } else { space }
    };
    end.put_back = accept::put_back(&items, &space_of, &session.identities, &mut session.store, end.lasts())?;
    let digest = session.decoder()?.frozen().digest().to_owned();
    request.remembered(end, &digest, &session.identities, &mut session.store).map(Some)
}

/// `n` token ids of ordinary text.
pub fn ids(tokenizer: &Tokenizer, n: usize) -> Result<Vec<u32>> {
    let ids = tokenizer.encode_prompt(TEXT, Special::Plain)?;
    if ids.is_empty() {
        return Err(anyhow!("the model's tokenizer makes no token of plain text"));
    }
    Ok(ids.into_iter().cycle().take(n).collect())
}
