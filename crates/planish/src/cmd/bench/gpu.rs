//! The same measurement on a GPU: tokens are drawn there, each the likeliest, and read by the host behind it.

use std::time::Duration;

use anyhow::Result;
use planish_device::system;
use planish_engine::explain::token;
use planish_engine::generate::Flow;
use planish_engine::gpu::{By, Options, Route};
use planish_engine::probes::{self, Effort};
use planish_tune::counted;
use serde::Serialize;
use serde_json::Value;

use super::{BenchArgs, Part, Speeds, at_depth, fed, json, needed, samples};
use crate::device::Device;
use crate::gpu::GpuSession;
use crate::ui::Ui;
use crate::{report, runner};

/// What was measured of one model, and under which conditions.
#[derive(Serialize)]
struct Bench {
    #[serde(flatten)]
    speeds: Speeds,
    file: String,
    /// From the start of the process to the logits of a prompt of one token, after all that was measured before.
    first_token_ms: f64,
    read_gb_s: Option<f64>,
    percent_of_bandwidth: Option<f64>,
    arena_bytes: usize,
    kv_bytes: usize,
    context: usize,
    activations: &'static str,
    load_average: Option<[f64; 3]>,
    /// Steps on the device before the token of the first is known.
    ahead: usize,
    /// Time of the host's thread for a token, handing steps over.
    submit_us: Option<f64>,
    /// Time of it for a token, waiting.
    wait_us: Option<f64>,
    /// Device, path, configuration and digest.
    #[serde(flatten)]
    facts: Value,
    #[serde(skip)]
    rows: Vec<(&'static str, String)>,
}

/// Measures one model on the device that the flags name, on one path or on every one, and hands each report to `take`.
pub fn measure(model: &str, args: &BenchArgs, ui: Ui, take: &mut dyn FnMut(String, Value) -> Result<()>) -> Result<()> {
    let session = GpuSession::open(model, &args.session, ui)?;
    if !args.every_path {
        let bench = on_path(model, &session, session.options, args, ui)?;
        return take(text(&bench), json(&bench)?);
    }
    for route in Route::ALL {
        // A path that the configuration does not allow is said and left out; any other error ends the command.
        if let Some(why) = session.not_legal(route)? {
            ui.note(&format!("path {} is not legal: {why}", route.name()));
            continue;
        }
        let bench = on_path(model, &session, Options { route: Some(route), ..session.options }, args, ui)?;
        take(text(&bench), json(&bench)?)?;
    }
    Ok(())
}

fn on_path(model: &str, session: &GpuSession, options: Options, args: &BenchArgs, ui: Ui) -> Result<Bench> {
    let needed = needed(args, options.context, session.file.hyper.context)?;
    let mut decoder = session.decoder(options)?;
    let vocab = session.file.hyper.vocab;
    // A token more than the cache must hold: the one that decoding begins with at the full depth.
    let ids: Vec<u32> = (0..=needed).map(|i| token(i, vocab)).collect();
    decoder.feed(&ids[..1])?;
    let first_token_ms = crate::since_start().as_secs_f64() * 1e3;
    let spinner = ui.spinner(&format!("measuring {model}"));
    let (depth, path) = (args.depth as usize, &session.file.path);
    let samples = samples(args, &mut |part| match part {
        Part::Prefill => fed(&mut decoder, &ids[..args.prefill as usize]),
        Part::Depth => at_depth(&mut decoder, &ids, depth),
        Part::Decode(tokens) => {
            decoder.draw(ids[depth], &By::Likeliest, tokens, &mut |_| Ok(Flow::Continue))?;
            Ok(())
        }
    })?;
    spinner.finish_and_clear();
    let speeds = Speeds::new(model, path, session.weights.bytes_per_token, args, samples)?;
    // The host executor has no ceilings.
    let machine = session.machine();
    let ceiling = || probes::read(&machine, &Effort::on(session.backend.limits())).map(|r| r.median_gb_s);
    let read_gb_s = (session.device != Device::Host).then(ceiling).transpose()?;
    let spent = decoder.spent();
    let of = |time: Duration| (spent.steps > 0).then(|| time.as_secs_f64() * 1e6 / f64::from(spent.steps));
    let (submit_us, wait_us) = (of(spent.submitting), of(spent.waiting));
    let (rows, facts) = runner::gpu_facts(session, &decoder)?;
    Ok(Bench {
        file: path.display().to_string(),
        first_token_ms,
        read_gb_s,
        percent_of_bandwidth: speeds.decode_gb_s.zip(read_gb_s).map(|(g, r)| 100.0 * g / r),
        speeds,
        arena_bytes: session.weights.arena.len(),
        kv_bytes: decoder.kv_bytes(),
        context: options.context,
        activations: options.activations.name(),
        load_average: system::load_average(),
        ahead: options.ahead,
        submit_us,
        wait_us,
        facts,
        rows,
    })
}

/// The report for people.
fn text(b: &Bench) -> String {
    let mut rows = vec![("model", b.file.clone())];
    rows.extend(b.speeds.rows());
    if let Some(gb_s) = b.speeds.decode_gb_s {
        let bytes = report::bytes(b.speeds.bytes_per_token);
        let share = b.percent_of_bandwidth.zip(b.read_gb_s);
        let share =
            share.map_or(String::new(), |(percent, read)| format!(": {percent:.0}% of {read:.0} GB/s measured"));
        rows.push(("weights", format!("{bytes} a token, {gb_s:.1} GB/s{share}")));
    }
    rows.push(("first token", format!("{:.0} ms after the start, prompt of one token", b.first_token_ms)));
    let [weights, cache, file] = [b.arena_bytes as u64, b.kv_bytes as u64, b.speeds.file_bytes].map(report::bytes);
    rows.push((
        "memory",
        format!("weights {weights} of a file of {file}, cache {cache} for {}", counted(b.context, "token")),
    ));
    if let (Some(submit), Some(wait)) = (b.submit_us, b.wait_us) {
        let ahead = b.ahead;
        rows.push(("host", format!("{submit:.1} us a token to submit, {wait:.1} us waiting, {ahead} steps ahead")));
    }
    rows.push(("numerics", format!("{} activations, f16 cache", b.activations)));
    rows.extend(b.rows.iter().cloned());
    report::pairs(&rows)
}
