//! `planish ab`: two configurations of one model, both checked, then run in turns in one process.

use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use planish_device::system;
use planish_engine::accept::{self, Contender, Effect, Effort, Gain};
use planish_engine::decoder;
use planish_engine::gpu::{self, GpuDecoder};
use planish_engine::identity::Identities;
use planish_engine::plan::{Choices, Defaults, Entry};
use planish_engine::tuning::{self, Setting, Work};
use planish_tune::store::{Mode, Pin};
use planish_tune::{Config, Policy, Rejection, WallClock, counted};
use serde::{Deserialize, Serialize};

use super::tune::{ids, step};
use crate::device::Device;
use crate::gpu::GpuSession;
use crate::hint::WithHint;
use crate::session::{self, Session, SessionArgs};
use crate::ui::Ui;
use crate::workbench::{self, worker};
use crate::{Outcome, interrupt, presets, report};

/// Run a model in two configurations in turns, both checked first, and say which is faster and by how much
#[derive(Args)]
pub struct AbArgs {
    /// A preset, a cached model, OWNER/REPO[:FILE], or the path of a GGUF file
    #[arg(default_value = presets::DEFAULT)]
    model: String,
    /// The other side's parameters, as --pin has them; an op that only one side pins runs at its default on the other
    #[arg(long, value_name = "OP.NAME=VALUE", value_parser = session::pin)]
    against: Vec<Pin>,
    /// Tokens before those that are decoded
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..))]
    depth: u32,
    /// Tokens decoded in a run
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Most pairs of runs; the two sides go first in turns
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pairs: u32,
    /// Seconds for the runs; at least six pairs are taken
    #[arg(long, value_name = "SECONDS", default_value = "60s", value_parser = super::seconds)]
    budget: f64,
    #[command(flatten)]
    session: SessionArgs,
}

/// A configuration of an op at a shape, and what the gate said.
#[derive(Serialize, Deserialize)]
pub struct Gated {
    op: String,
    shape: String,
    config: Config,
    /// Worst error over its bound.
    error_over_bound: Option<f64>,
    /// Why it is refused.
    rejection: Option<Rejection>,
}

/// Everything that was found.
#[derive(Serialize, Deserialize)]
pub struct Report {
    model: String,
    device: String,
    label: String,
    /// `--pin`, then `--against`, as configurations by op.
    pins: [Vec<String>; 2],
    /// Sets of choices, frozen.
    digests: [String; 2],
    gate: Vec<Gated>,
    depth: u32,
    tokens: u32,
    /// Gain of `--pin` over `--against`; absent where the gate refused a side.
    decode: Option<Gain>,
    prefill: Option<Gain>,
    logit_delta_max: f64,
    same_best: usize,
    compared: usize,
    load: [Option<f64>; 2],
    verdict: String,
    version: String,
}

/// Gates, runs and prints; exit 1 where the gate refuses a side.
pub fn run(args: &AbArgs, ui: Ui) -> Result<Outcome> {
    let device = args.session.place().device();
    let sides = sides(args, device)?;
    let found = match device {
        Device::Cpu => on_cpu(args, &sides, ui)?,
        Device::Host | Device::Cuda(_) => on_gpu(args, &sides, ui)?,
    };
    interrupt::check()?;
    if ui.json {
        report::print_json(&found)?;
    } else {
        report::print(&text(&found))?;
    }
    Ok(if found.decode.is_some() { Outcome::Done } else { Outcome::No })
}

/// The two modes: every op that either side pins is pinned on both, at its default where a side says nothing.
fn sides(args: &AbArgs, device: Device) -> Result<[Mode; 2]> {
    let pins = args.session.pins();
    if matches!(args.session.mode(device)?, Mode::Off | Mode::Replay(_)) {
        return Err(anyhow!("--off and --replay choose configurations, and ab compares two"))
            .hint("give --pin and --against instead");
    }
    if pins.is_empty() && args.against.is_empty() {
        return Err(anyhow!("ab compares two configurations, and none was given"))
            .hint("give --pin OP.NAME=VALUE, and --against OP.NAME=VALUE for the other side");
    }
    let both = |own: &[Pin], other: &[Pin]| {
        let bare = other.iter().map(|p| Pin { op: p.op.clone(), values: Config::new() });
        let missing = bare.filter(|p| own.iter().all(|o| o.op != p.op)).collect::<Vec<_>>();
        let mut all = own.to_vec();
        missing.into_iter().for_each(|p| {
            if all.iter().all(|a| a.op != p.op) {
                all.push(p)
            }
        });
        session::pinned(&all, device)
    };
    Ok([both(pins, &args.against)?, both(&args.against, pins)?])
}

/// What `mode` pins, in words.
fn words(mode: &Mode) -> Vec<String> {
    let Mode::Pin(pins) = mode else { return Vec::new() };
    let told = |c: &Config| if *c == Config::new() { "at its default".to_owned() } else { c.to_string() };
    let one = |op: &str| pins.config(op, &Config::new()).map(|c| format!("{op} {}", told(&c)));
    pins.ops().filter_map(one).collect()
}

fn effort(args: &AbArgs) -> Effort {
    let (pairs, tokens) = (args.pairs as usize, args.tokens as usize);
    Effort { pairs, tokens, budget: Duration::from_secs_f64(args.budget) }
}

/// Refuses more tokens than the model has positions.
fn needed(args: &AbArgs, context: usize) -> Result<usize> {
    let needed = (args.depth + args.tokens) as usize + 1;
    if needed <= context {
        return Ok(needed);
    }
    Err(anyhow!("--depth {} and --tokens {} need {needed} positions of {context}", args.depth, args.tokens))
        .hint("use fewer tokens, or a larger --context")
}

fn on_cpu(args: &AbArgs, sides: &[Mode; 2], ui: Ui) -> Result<Report> {
    let session = Session::open(&args.model, &args.session, ui)?;
    let context = needed(args, session.options.context)?;
    let options = decoder::Options { context, chunk: session.options.chunk.min(context), ..session.options };
    let [mut a, mut b] = [session.decoder_under(&sides[0], options)?, session.decoder_under(&sides[1], options)?];
    let digests = [&a, &b].map(|d| d.frozen().digest().to_owned());
    let differ = |a: &[Entry], b: &[Entry]| -> Vec<(Entry, [Config; 2])> {
        let pairs = a.iter().zip(b).filter(|(a, b)| a.chosen.config != b.chosen.config);
        pairs.map(|(a, b)| (a.clone(), [a.chosen.config.clone(), b.chosen.config.clone()])).collect()
    };
    let (decode, prefill) = (differ(&a.decode_plan, &b.decode_plan), differ(&a.prefill_plan, &b.prefill_plan));
    let paths = [!decode.is_empty(), !prefill.is_empty()];
    let flags = [session.cpu.threads().to_string(), session.isa.name().to_owned()];
    let (worker, clock) = (worker(&["--threads", &flags[0], "--isa", &flags[1]])?, WallClock::start());
    let machine = session.machine();
    let setting = workbench::setting(machine, Device::Cpu, (&session.identities, &worker, &clock));
    ui.note(&format!("checking {} in both configurations", counted(decode.len() + prefill.len(), "kernel")));
    let mut gate = Vec::new();
    for (entry, configs) in decode.iter().chain(&prefill) {
        interrupt::check()?;
        let work =
            Work { op: entry.op, shape: entry.shape.clone(), share: 1.0, uses: 1, step: None, deterministic: false };
        gate.extend(gated(&work, configs, &setting)?);
    }
    let ids = ids(&session.model.file.tokenizer, context - 1)?;
    let model = session.model.file.path.display().to_string();
    let label = format!("{}, {}, {}", session.cpu.topology().label, counted(session.cpu.threads(), "thread"), flags[1]);
    let made = Made { model, device: Device::Cpu.to_string(), label, digests, gate, paths };
    compare(args, sides, made, [&mut a, &mut b], &ids, ui)
}

fn on_gpu(args: &AbArgs, sides: &[Mode; 2], ui: Ui) -> Result<Report> {
    let session = GpuSession::open(&args.model, &args.session, ui)?;
    let context = needed(args, session.options.context)?;
    let machine = session.machine();
    let decoder = |mode: &Mode| -> Result<GpuDecoder<'_>> {
        let choices: &dyn Choices = if let Mode::Pin(pins) = mode { pins } else { &Defaults };
        session.decoder_of(session.options, choices)
    };
    let [mut a, mut b] = [decoder(&sides[0])?, decoder(&sides[1])?];
    let digests = [&a, &b].map(|d| d.frozen().digest().to_owned());
    let (identities, clock) = (Identities::new(&machine, &Policy::default()), WallClock::start());
    let worker = worker(&[])?;
    let setting = workbench::setting(machine, session.device, (&identities, &worker, &clock));
    ui.note("checking both configurations");
    let (mut gate, mut paths) = (Vec::new(), [false; 2]);
    let configs = a.parts().zip(b.parts()).map(|((_, a), (_, b))| [a.config.clone(), b.config.clone()]);
    for ((work, configs), differs) in step::works(&session, &args.session)?.iter().zip(configs).zip(&mut paths) {
        *differs = configs[0] != configs[1];
        if *differs || work.op.name == gpu::DECODE {
            gate.extend(gated(work, &configs, &setting)?);
        }
    }
    let ids = ids(&session.file.tokenizer, context - 1)?;
    let (model, label) = (session.file.path.display().to_string(), session.label().to_owned());
    let made = Made { model, device: session.device.to_string(), label, digests, gate, paths };
    compare(args, sides, made, [&mut a, &mut b], &ids, ui)
}

fn gated(work: &Work, configs: &[Config; 2], setting: &Setting<'_>) -> Result<Vec<Gated>> {
    let results = tuning::gate(work, configs, setting)?;
    let one = |(config, result): (&Config, Result<f64, Rejection>)| Gated {
        op: work.op.name.to_owned(),
        shape: work.shape.to_string(),
        config: config.clone(),
        error_over_bound: result.as_ref().ok().copied(),
        rejection: result.err(),
    };
    Ok(configs.iter().zip(results).map(one).collect())
}

/// What is known before the runs.
struct Made {
    model: String,
    device: String,
    label: String,
    digests: [String; 2],
    gate: Vec<Gated>,
    paths: [bool; 2],
}

/// The runs, unless the gate refused a side.
fn compare(
    args: &AbArgs,
    sides: &[Mode; 2],
    made: Made,
    [a, b]: [&mut dyn Contender; 2],
    ids: &[u32],
    ui: Ui,
) -> Result<Report> {
    let load = || system::load_average().map(|l| l[0]);
    let before = load();
    let refused = made.gate.iter().any(|g| g.rejection.is_some());
    let spinner = ui.spinner(&format!("running both in turns, about {:.0} s", args.budget));
    // The gain is that of the second over the first.
    let found = match refused {
        true => None,
        false => accept::compare_on(made.paths, [b, a], ids, &effort(args), interrupt::flag())?,
    };
    spinner.finish_and_clear();
    let verdict = match &found {
        None if refused => "refused: a configuration is wrong, and nothing was timed".to_owned(),
        None => "interrupted".to_owned(),
        Some(found) => format!("decode: {}; prefill: {}", sentence(&found.decode), sentence(&found.prefill)),
    };
    Ok(Report {
        model: made.model,
        device: made.device,
        label: made.label,
        pins: [words(&sides[0]), words(&sides[1])],
        digests: made.digests,
        gate: made.gate,
        depth: args.depth,
        tokens: args.tokens,
        decode: found.map(|f| f.decode),
        prefill: found.map(|f| f.prefill),
        logit_delta_max: found.map_or(0.0, |f| f.logit_delta_max),
        same_best: found.map_or(0, |f| f.same_best),
        compared: found.map_or(0, |f| f.compared),
        load: [before, load()],
        verdict,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// The verdict on one path.
fn sentence(gain: &Gain) -> String {
    let Gain { ratio, lo, hi, pairs, effect, .. } = gain;
    let what = match effect {
        Effect::Faster => "win",
        Effect::Slower => "loss",
        Effect::NoEffect => "no effect beyond noise",
        Effect::Same => return "the same configuration on both sides".to_owned(),
    };
    format!("{what}, {ratio:.3} ({lo:.3} to {hi:.3}, 95%) times as fast in {pairs} pairs")
}

/// Whether a reader who divides the two speeds finds another ratio than is told, by more than 2%.
fn unlike_quotient(g: &Gain) -> bool {
    g.effect != Effect::Same && (g.tuned_tok_s / g.default_tok_s / g.ratio - 1.0).abs() > 0.02
}

fn text(r: &Report) -> String {
    let speed = |gain: &Option<Gain>| {
        gain.map_or("not run".to_owned(), |g| format!("{:.1} against {:.1} tokens/s", g.tuned_tok_s, g.default_tok_s))
    };
    let side = |i: usize| format!("{}, digest {:.16}", r.pins[i].join("; "), r.digests[i]);
    let worst = r.gate.iter().filter_map(|g| g.error_over_bound).fold(0.0, f64::max);
    let mut rows = vec![
        ("model", r.model.clone()),
        ("machine", format!("{}, {}", r.device, r.label)),
        ("pin", side(0)),
        ("against", side(1)),
        ("gate", format!("{}, worst error {worst:.2} of its bound", counted(r.gate.len(), "configuration"))),
    ];
    let refused = r.gate.iter().filter_map(|g| Some((g, g.rejection.as_ref()?)));
    rows.extend(refused.map(|(g, why)| ("refused", format!("{} {} with {}: {why}", g.op, g.shape, g.config))));
    if r.decode.is_some() {
        let (same, of) = (r.same_best, r.compared);
        rows.extend([
            ("decode", format!("{}, {} at {}", speed(&r.decode), counted(r.tokens, "token"), r.depth)),
            ("prefill", format!("{}, {}", speed(&r.prefill), counted(r.depth, "token"))),
            ("logits", format!("apart by at most {:.3e}; the same best token at {same} of {of}", r.logit_delta_max)),
        ]);
    }
    if [&r.decode, &r.prefill].into_iter().flatten().any(unlike_quotient) {
        let why = "the verdict's are medians over pairs, and no quotients of the speeds above, each of its own side";
        rows.push(("ratios", why.to_owned()));
    }
    rows.push(("load", format!("{} before, {} after", report::load(r.load[0]), report::load(r.load[1]))));
    rows.push(("verdict", r.verdict.clone()));
    report::pairs(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A comparison of a committed note: 74.2 against 65.0 tokens/s, and 0.919 times as fast pair by pair.
    fn report() -> Report {
        let text = include_str!("../../../../docs/lab/0007/ab-rows.json");
        serde_json::from_str(text).expect("a report")
    }

    #[test]
    fn ratios_that_are_no_quotients_are_explained() {
        let mut r = report();
        assert!(text(&r).contains("\nratios   the verdict's are medians over pairs, and no quotients"), "{}", text(&r));
        for gain in [&mut r.decode, &mut r.prefill].into_iter().flatten() {
            gain.tuned_tok_s = gain.ratio * gain.default_tok_s;
        }
        assert!(!text(&r).contains("ratios"), "{}", text(&r));
    }

    #[test]
    fn what_differs_by_less_than_noise_is_not_called_equal() {
        let r = report();
        let said = sentence(&r.decode.expect("a gain"));
        assert_eq!(said, "no effect beyond noise, 0.919 (0.825 to 1.222, 95%) times as fast in 24 pairs");
    }

    #[test]
    fn a_side_that_is_given_nothing_is_at_its_default() {
        let pin = |text: &str| text.parse::<Pin>().expect("a pin");
        let bare = Pin { op: "matvec".to_owned(), values: Config::new() };
        let words = |all: &[Pin]| words(&session::pinned(all, Device::Cpu).expect("an op of the CPU"));
        assert_eq!(words(&[bare]), ["matvec at its default"]);
        assert_eq!(words(&[pin("matvec.ROWS=8")]), ["matvec ROWS=8"]);
    }
}
