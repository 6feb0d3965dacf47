//! `planish explain`: where a token's time goes, measured part by part and held against this machine's ceilings.

mod evidence;
mod fitted;
mod pages;
mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use planish_engine::decoder::Decoder;
use planish_engine::explain::{Effort, Measured, ROUNDS_MIN, cpu, gpu};
use planish_engine::gpu::Route;
use planish_engine::probes::{self, Handed};
use planish_engine::tuning;

use crate::device::Device;
use crate::gpu::GpuSession;
use crate::hint::WithHint;
use crate::session::{self, Session, SessionArgs};
use crate::ui::Ui;
use crate::{Outcome, interrupt, page, presets, report};
use evidence::{Evidence, Explained, Facts};

/// Time of each probe of a processor.
const PROBE_TIME: Duration = Duration::from_millis(300);
/// Tokens in the cache where `--position` does not say, and further positions; what the cache has no room for is left out.
const POSITION: usize = 256;
const POSITIONS: [usize; 5] = [0, 64, 512, 1024, 2048];
/// Tokens that a GPU draws in a row for one sample.
const DRAWN: usize = 8;

/// What says how to measure beside the session.
const MEASURING: [&str; 6] = ["models", "fit", "position", "positions", "tokens", "rounds"];

/// Show where a token's time goes, part by part, against ceilings measured here
#[derive(Args)]
pub struct ExplainArgs {
    /// A preset, a cached model, OWNER/REPO[:FILE], or the path of a GGUF file; several with --fit
    models: Vec<String>,
    /// Fit a token's time to the bytes it reads over at least four models
    #[arg(long)]
    fit: bool,
    /// Tokens in the cache before the one that is taken apart [default: 256, or half of a smaller cache]
    #[arg(long, value_name = "N")]
    position: Option<usize>,
    /// Further positions for the time of attention [default: 0,64,512,1024,2048, as many as fit]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    positions: Option<Vec<usize>>,
    /// Tokens measured whole
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = rounds())]
    tokens: u32,
    /// Rounds in which each part is timed alone
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = rounds())]
    rounds: u32,
    /// Also write a page with plots, and its evidence beside it as .json and .tsv
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Show evidence that --html or --json wrote, instead of measuring; no machine is asked
    #[arg(long, value_name = "EVIDENCE", conflicts_with_all = session::flags_and(&MEASURING))]
    from: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArgs,
}

/// As many as an interval needs, or more.
fn rounds() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(ROUNDS_MIN as i64..=100_000)
}

/// Measures or reads, writes the page, and prints.
pub fn run(args: &ExplainArgs, ui: Ui) -> Result<Outcome> {
    args.html.as_deref().map_or(Ok(()), page::must_be_html)?;
    let evidence = match &args.from {
        Some(path) => page::report::<Evidence>(path)?,
        None if args.fit => Evidence::Fit(Box::new(fitted::measure(args, ui)?)),
        None => Evidence::Token(Box::new(explain(args, ui)?)),
    };
    if let Some(html) = &args.html {
        page::save(&evidence, html, ui)?;
    }
    if ui.json {
        report::print_json(&evidence)?;
    } else {
        report::print(&text::of(&evidence))?;
    }
    Ok(Outcome::Done)
}

fn explain(args: &ExplainArgs, ui: Ui) -> Result<Explained> {
    let model = match &args.models[..] {
        [] => presets::DEFAULT,
        [model] => model,
        several => {
            return Err(anyhow!("{} models without --fit", several.len())).hint("give one model, or --fit");
        }
    };
    match args.session.place().device() {
        Device::Cpu => on_cpu(model, args, ui),
        Device::Host | Device::Cuda(_) => on_gpu(model, args, ui),
    }
}

impl ExplainArgs {
    /// What is measured with a cache of `context` positions.
    fn effort(&self, context: usize) -> Effort {
        let position = self.position.unwrap_or_else(|| POSITION.min(context / 2));
        // The host executor proves and does not measure.
        let drawn = if self.session.place().device() == Device::Host { 1 } else { DRAWN };
        let positions = match &self.positions {
            Some(asked) => asked.clone(),
            None => POSITIONS.into_iter().filter(|p| p + drawn < context).collect(),
        };
        Effort { position, tokens: self.tokens as usize, rounds: self.rounds as usize, positions, drawn }
    }
}

fn on_cpu(model: &str, args: &ExplainArgs, ui: Ui) -> Result<Explained> {
    let session = Session::open(model, &args.session, ui)?;
    let mut decoder = session.decoder()?;
    let mut facts = Facts::of_cpu(model, &session, &decoder)?;
    let spinner = ui.spinner(&format!("taking tokens of {model} apart"));
    let before = tuning::usage(None);
    let measured = token_on_cpu(&mut decoder, &session, &args.effort(session.options.context))?;
    facts.by_others = tuning::by_others(before);
    spinner.set_message("measuring ceilings");
    let bytes = measured.demand().read_bytes as u64;
    let roof = probes::cpu::roof(&session.machine(), &session.cpu, bytes, PROBE_TIME)?;
    spinner.finish_and_clear();
    Ok(Explained::new(facts, measured, roof))
}

fn on_gpu(model: &str, args: &ExplainArgs, ui: Ui) -> Result<Explained> {
    let session = GpuSession::open(model, &args.session, ui)?;
    let mut decoder = session.decoder(session.options)?;
    let (machine, effort) = (session.machine(), args.effort(session.options.context));
    let spinner = ui.spinner("measuring ceilings");
    let (groups, threads) = gpu::grid(&decoder);
    let handed = Handed { graph: decoder.route() == Route::Graph, groups, threads };
    let bytes = gpu::read_bytes(&decoder, &session.weights, effort.position) as u64;
    let roof = probes::roof(&machine, &probes::Effort::on(session.backend.limits()), bytes, handed)?;
    interrupt::check()?;
    spinner.set_message(format!("taking tokens of {model} apart"));
    let mut facts = Facts::of_gpu(model, &session, &decoder)?;
    let (start, before) = (Instant::now(), tuning::usage(None));
    let clock = || start.elapsed().as_nanos() as f64;
    let stop = interrupt::requested;
    let weights = &session.weights;
    let mut subject = gpu::Subject { decoder: &mut decoder, weights, clock: &clock, stop: &stop };
    let measured = gpu::measure(&mut subject, &effort);
    interrupt::check()?;
    let measured = measured?;
    facts.by_others = tuning::by_others(before);
    spinner.finish_and_clear();
    Ok(Explained::new(facts, measured, roof))
}

/// The token of a decoder of the CPU; the clock is the host's, as the pool's stamps are.
fn token_on_cpu(decoder: &mut Decoder<'_>, session: &Session, effort: &Effort) -> Result<Measured> {
    let start = Instant::now();
    let clock = || start.elapsed().as_nanos() as f64;
    let stop = interrupt::requested;
    let weights = &session.model.weights;
    let mut subject = cpu::Subject { decoder, weights, clock: &clock, stop: &stop };
    let measured = cpu::measure(&mut subject, effort);
    interrupt::check()?;
    Ok(measured?)
}
