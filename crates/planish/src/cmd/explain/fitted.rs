//! A token's time against its bytes over several models: all of them open at once and measured in turns.

use std::time::Instant;

use anyhow::{Result, anyhow};
use planish_engine::decoder::Decoder;
use planish_engine::explain::fit::{MODELS_MIN, Sample, check, fit};
use planish_engine::explain::{Bounds, Step, gpu, token};
use planish_engine::generate::Flow;
use planish_engine::gpu::GpuDecoder;
use planish_engine::gpu::{By, Route};
use planish_engine::probes::{self, Effort, Handed, Roof};
use planish_engine::tuning;
use planish_tune::counted;

use super::evidence::{Facts, Fitted};
use super::{ExplainArgs, PROBE_TIME};
use crate::device::Device;
use crate::gpu::GpuSession;
use crate::hint::WithHint;
use crate::interrupt;
use crate::session::{Session, tuned_entries};
use crate::ui::Ui;

/// Tokens in the cache where `--position` does not say: few, so that weights are what tokens read.
const POSITION: usize = 16;
/// Tokens of a model in one round.
const TOKENS: usize = 5;

/// Measures some tokens at a position, nanoseconds of one.
type Timed<'t> = Box<dyn FnMut(usize) -> Result<f64> + 't>;

/// Refuses what can be refused before anything is loaded, then measures and fits.
pub fn measure(args: &ExplainArgs, ui: Ui) -> Result<Fitted> {
    if args.models.len() < MODELS_MIN {
        return Err(anyhow!("a fit through {} models: at least {MODELS_MIN} are needed", args.models.len()))
            .hint("`planish dev write-model --shapes ladder-384` and its siblings make files of graded sizes");
    }
    match args.session.place().device() {
        Device::Cpu => on_cpu(args, ui),
        Device::Host | Device::Cuda(_) => on_gpu(args, ui),
    }
}

fn on_cpu(args: &ExplainArgs, ui: Ui) -> Result<Fitted> {
    let sessions = args.models.iter().map(|m| Session::open(m, &args.session, ui)).collect::<Result<Vec<_>>>()?;
    let decoders = sessions.iter().map(Session::decoder).collect::<Result<Vec<_>>>()?;
    let position = args.position.unwrap_or(POSITION);
    let mut facts = Facts::of_cpu(&args.models[0], &sessions[0], &decoders[0])?;
    let (mut samples, mut timed) = (Vec::new(), Vec::<Timed<'_>>::new());
    for ((name, session), mut decoder) in args.models.iter().zip(&sessions).zip(decoders) {
        samples.push(sample_of_cpu(name, session, &decoder, position)?);
        room(name, position, decoder.options().context)?;
        decoder.feed(&text(position, decoder.hyper().vocab))?;
        timed.push(Box::new(move |round| tokens_of_cpu(&mut decoder, position, round)));
    }
    let before = tuning::usage(None);
    turns(args, ui, &mut samples, timed)?;
    facts.by_others = tuning::by_others(before);
    let largest = samples.iter().map(|s| s.bytes).fold(0.0, f64::max);
    let roof = probes::cpu::roof(&sessions[0].machine(), &sessions[0].cpu, largest as u64, PROBE_TIME)?;
    Ok(Fitted { facts, fit: fit(samples)?, roof })
}

fn on_gpu(args: &ExplainArgs, ui: Ui) -> Result<Fitted> {
    let sessions = args.models.iter().map(|m| GpuSession::open(m, &args.session, ui)).collect::<Result<Vec<_>>>()?;
    let decoders = sessions.iter().map(|s| s.decoder(s.options)).collect::<Result<Vec<_>>>()?;
    let position = args.position.unwrap_or(POSITION);
    let mut facts = Facts::of_gpu(&args.models[0], &sessions[0], &decoders[0])?;
    let (groups, threads) = gpu::grid(&decoders[0]);
    let handed = Handed { graph: decoders[0].route() == Route::Graph, groups, threads };
    let (mut samples, mut timed) = (Vec::new(), Vec::<Timed<'_>>::new());
    for ((name, session), mut decoder) in args.models.iter().zip(&sessions).zip(decoders) {
        samples.push(sample_of_gpu(name, session, &decoder, position));
        room(name, position + TOKENS, decoder.options().context)?;
        decoder.feed(&text(position, decoder.hyper().vocab))?;
        timed.push(Box::new(move |round| tokens_of_gpu(&mut decoder, position, round)));
    }
    let before = tuning::usage(None);
    turns(args, ui, &mut samples, timed)?;
    facts.by_others = tuning::by_others(before);
    let largest = samples.iter().map(|s| s.bytes).fold(0.0, f64::max);
    let roof: Roof = {
        let machine = sessions[0].machine();
        probes::roof(&machine, &Effort::on(machine.backend.limits()), largest as u64, handed)?
    };
    Ok(Fitted { facts, fit: fit(samples)?, roof })
}

/// Measures the models in turns, after a round that warms up; mixed models are refused before that.
fn turns(args: &ExplainArgs, ui: Ui, samples: &mut [Sample], mut timed: Vec<Timed<'_>>) -> Result<()> {
    check(samples)?;
    let spinner = ui.spinner(&format!("measuring {} in turns", counted(samples.len(), "model")));
    let mut times = vec![Vec::new(); samples.len()];
    for round in 0..=args.rounds as usize {
        for (one, times) in timed.iter_mut().zip(&mut times) {
            interrupt::check()?;
            let ns = one(round)?;
            if round > 0 {
                times.push(ns);
            }
        }
    }
    for (sample, times) in samples.iter_mut().zip(&times) {
        sample.token_ns = Bounds::of(times);
    }
    spinner.finish_and_clear();
    Ok(())
}

fn room(name: &str, position: usize, context: usize) -> Result<()> {
    if position < context {
        return Ok(());
    }
    Err(anyhow!("{name}: position {position} of a cache of {context}")).hint("give a smaller --position")
}

fn text(position: usize, vocab: usize) -> Vec<u32> {
    (0..position.max(1)).map(|i| token(i, vocab)).collect()
}

/// Median of some tokens.
fn tokens_of_cpu(decoder: &mut Decoder<'_>, position: usize, round: usize) -> Result<f64> {
    let mut all = Vec::with_capacity(TOKENS);
    for i in 0..TOKENS {
        decoder.truncate(position);
        let id = token(round * TOKENS + i, decoder.hyper().vocab);
        let start = Instant::now();
        decoder.feed(&[id])?;
        all.push(start.elapsed().as_nanos() as f64);
    }
    Ok(Bounds::of(&all).median)
}

/// Some tokens in a row, as they are drawn.
fn tokens_of_gpu(decoder: &mut GpuDecoder<'_>, position: usize, round: usize) -> Result<f64> {
    decoder.truncate(position);
    let id = token(round, decoder.hyper().vocab);
    let start = Instant::now();
    let n = decoder.draw(id, &By::Likeliest, TOKENS, &mut |_| Ok(Flow::Continue))?;
    Ok(start.elapsed().as_nanos() as f64 / n as f64)
}

fn sample_of_cpu(name: &str, session: &Session, decoder: &Decoder<'_>, position: usize) -> Result<Sample> {
    let step = Step::from(decoder.decode_step(&session.model.weights)?);
    let bytes = step.pieces.iter().map(|p| p.demand(position).read_bytes).sum();
    let listed = |field: &str| {
        let mut all: Vec<&str> =
            tuned_entries(decoder).filter(|e| e.shape.has(field)).map(|e| e.shape.name(field)).collect();
        all.sort_unstable();
        all.dedup();
        all.join("+")
    };
    Ok(Sample {
        model: name.to_owned(),
        bytes,
        token_ns: Bounds::default(),
        path: "pool".to_owned(),
        class: listed("act"),
        types: listed("type"),
        layers: session.model.file.hyper.layers,
        position,
    })
}

fn sample_of_gpu(name: &str, session: &GpuSession, decoder: &GpuDecoder<'_>, position: usize) -> Sample {
    Sample {
        model: name.to_owned(),
        bytes: gpu::read_bytes(decoder, &session.weights, position),
        token_ns: Bounds::default(),
        path: decoder.route().name().to_owned(),
        class: decoder.shape().name("class").to_owned(),
        types: format!("{}, head {}", decoder.shape().name("types"), decoder.shape().name("head")),
        layers: session.file.hyper.layers,
        position,
    }
}
