//! The same measurement on a GPU: tokens are drawn there, each the likeliest, and read by the host behind it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use planish_device::system;
use planish_engine::explain::token;
use planish_engine::generate::Flow;
use planish_engine::gpu::{By, GpuDecoder, Options, Route};
use planish_engine::probes::{self, Effort};
use serde::Serialize;
use serde_json::Value;

use super::{BenchArgs, Speed, json, needed, speed, speed_text};
use crate::device::Device;
use crate::gpu::GpuSession;
use crate::ui::Ui;
use crate::{interrupt, report, runner};

/// What was measured of one model, and under which conditions.
#[derive(Serialize)]
struct Bench {
    model: String,
    file: String,
    prefill_tok_s: Option<f64>,
    decode_tok_s: Option<f64>,
    prefill: Option<Speed>,
    decode: Option<Speed>,
    prefill_tokens: u32,
    decode_tokens: u32,
    depth: u32,
    /// From the start of the process to the logits of a prompt of one token, after all that was measured before.
    first_token_ms: f64,
    bytes_per_token: u64,
    decode_gb_s: Option<f64>,
    read_gb_s: Option<f64>,
    percent_of_bandwidth: Option<f64>,
    arena_bytes: usize,
    kv_bytes: usize,
    file_bytes: u64,
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
    version: &'static str,
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
    let (prefill, decode) = samples(&mut decoder, &ids, args)?;
    spinner.finish_and_clear();
    let bytes_per_token = session.weights.bytes_per_token;
    let decode_gb_s = decode.as_ref().map(|s| s.median * bytes_per_token as f64 / 1e9);
    // The host executor has no ceilings.
    let machine = session.machine();
    let ceiling = || probes::read(&machine, &Effort::on(session.backend.limits())).map(|r| r.median_gb_s);
    let read_gb_s = (session.device != Device::Host).then(ceiling).transpose()?;
    let spent = decoder.spent();
    let of = |time: Duration| (spent.steps > 0).then(|| time.as_secs_f64() * 1e6 / f64::from(spent.steps));
    let (submit_us, wait_us) = (of(spent.submitting), of(spent.waiting));
    let (rows, facts) = runner::gpu_facts(session, &decoder)?;
    let path = &session.file.path;
    Ok(Bench {
        model: model.to_owned(),
        file: path.display().to_string(),
        prefill_tok_s: prefill.as_ref().map(|s| s.median),
        decode_tok_s: decode.as_ref().map(|s| s.median),
        prefill,
        decode,
        prefill_tokens: args.prefill,
        decode_tokens: args.decode,
        depth: args.depth,
        first_token_ms,
        bytes_per_token,
        decode_gb_s,
        read_gb_s,
        percent_of_bandwidth: decode_gb_s.zip(read_gb_s).map(|(g, r)| 100.0 * g / r),
        arena_bytes: session.weights.arena.len(),
        kv_bytes: decoder.kv_bytes(),
        file_bytes: std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len(),
        context: options.context,
        activations: options.activations.name(),
        load_average: system::load_average(),
        ahead: options.ahead,
        submit_us,
        wait_us,
        facts,
        version: env!("CARGO_PKG_VERSION"),
        rows,
    })
}

/// Prefill and decode in turns after one unmeasured turn of each.
fn samples(decoder: &mut GpuDecoder<'_>, ids: &[u32], args: &BenchArgs) -> Result<(Option<Speed>, Option<Speed>)> {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    let depth = args.depth as usize;
    for run in 0..=args.runs {
        if args.prefill > 0 {
            decoder.truncate(0);
            let start = Instant::now();
            decoder.feed(&ids[..args.prefill as usize])?;
            prefill.push(f64::from(args.prefill) / start.elapsed().as_secs_f64());
        }
        interrupt::check()?;
        if args.decode > 0 {
            decoder.truncate(depth);
            let held = decoder.position();
            if held < depth {
                decoder.feed(&ids[held..depth])?;
            }
            let tokens = if run == 0 { args.decode.min(8) } else { args.decode };
            let start = Instant::now();
            decoder.draw(ids[depth], &By::Likeliest, tokens as usize, &mut |_| Ok(Flow::Continue))?;
            decode.push(f64::from(tokens) / start.elapsed().as_secs_f64());
        }
        interrupt::check()?;
    }
    Ok((speed(prefill), speed(decode)))
}

/// The report for people.
fn text(b: &Bench) -> String {
    let depth = if b.depth > 0 { format!(" at depth {}", b.depth) } else { String::new() };
    let mut rows = vec![
        ("model", b.file.clone()),
        ("prefill", speed_text(&b.prefill, b.prefill_tokens)),
        ("decode", speed_text(&b.decode, b.decode_tokens) + &depth),
    ];
    if let Some(gb_s) = b.decode_gb_s {
        let bytes = report::bytes(b.bytes_per_token);
        let share = b.percent_of_bandwidth.zip(b.read_gb_s);
        let share =
            share.map_or(String::new(), |(percent, read)| format!(": {percent:.0}% of {read:.0} GB/s measured"));
        rows.push(("weights", format!("{bytes} a token, {gb_s:.1} GB/s{share}")));
    }
    rows.push(("first token", format!("{:.0} ms after the start, prompt of one token", b.first_token_ms)));
    let [weights, cache, file] = [b.arena_bytes as u64, b.kv_bytes as u64, b.file_bytes].map(report::bytes);
    rows.push(("memory", format!("weights {weights} of a file of {file}, cache {cache} for {} tokens", b.context)));
    if let (Some(submit), Some(wait)) = (b.submit_us, b.wait_us) {
        let ahead = b.ahead;
        rows.push(("host", format!("{submit:.1} us a token to submit, {wait:.1} us waiting, {ahead} steps ahead")));
    }
    rows.push(("numerics", format!("{} activations, f16 cache", b.activations)));
    rows.extend(b.rows.iter().cloned());
    report::pairs(&rows)
}
