//! `planish bench`: prefill and decode speed with their spread, and how near decode comes to what memory can give.

mod gpu;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use planish_device::cpu::bandwidth::Bandwidth;
use planish_device::system;
use planish_engine::explain::token;
use planish_engine::probes;
use planish_engine::tuning;
use planish_engine::verify::Feed;
use planish_tune::counted;
use serde::Serialize;
use serde_json::Value;

use crate::device::Device;
use crate::hint::WithHint;
use crate::session::{self, Session, SessionArgs, Unknown};
use crate::ui::Ui;
use crate::{Outcome, interrupt, presets, report};

/// Time for the measurement of read bandwidth.
const BANDWIDTH_BUDGET: Duration = Duration::from_secs(1);

/// Measure prefill and decode, and compare decode with the measured read bandwidth
#[derive(Args)]
pub struct BenchArgs {
    /// Presets, cached models, OWNER/REPO[:FILE], or paths of GGUF files
    #[arg(default_value = presets::DEFAULT)]
    models: Vec<String>,
    /// Tokens of the prefill; 0 leaves it out
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    prefill: u32,
    /// Tokens to decode; 0 leaves it out
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    decode: u32,
    /// Tokens that are in the cache when decoding begins
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Runs of each, interleaved
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// On a GPU: on every path that the configuration allows, one after the other, with the model loaded once
    #[arg(long, conflicts_with = "path")]
    every_path: bool,
    #[command(flatten)]
    session: SessionArgs,
}

/// Median, extremes and spread of the runs, tokens a second.
#[derive(Clone, Debug, Serialize)]
struct Speed {
    median: f64,
    min: f64,
    max: f64,
    /// (max - min) / median.
    spread: f64,
    samples: Vec<f64>,
}

/// What was measured of one model, wherever it runs.
#[derive(Serialize)]
struct Speeds {
    model: String,
    prefill_tok_s: Option<f64>,
    decode_tok_s: Option<f64>,
    prefill: Option<Speed>,
    decode: Option<Speed>,
    prefill_tokens: u32,
    decode_tokens: u32,
    depth: u32,
    bytes_per_token: u64,
    decode_gb_s: Option<f64>,
    file_bytes: u64,
    version: &'static str,
}

impl Speeds {
    /// Of the model called `model` in the file at `path`, whose tokens read `bytes_per_token` bytes of weights.
    fn new(model: &str, path: &Path, bytes_per_token: u64, args: &BenchArgs, samples: Samples) -> Result<Speeds> {
        let [prefill, decode] = samples.map(speed);
        let [prefill_tok_s, decode_tok_s] = [&prefill, &decode].map(|s| s.as_ref().map(|s| s.median));
        Ok(Speeds {
            model: model.to_owned(),
            prefill_tok_s,
            decode_tok_s,
            prefill,
            decode,
            prefill_tokens: args.prefill,
            decode_tokens: args.decode,
            depth: args.depth,
            bytes_per_token,
            decode_gb_s: decode_tok_s.map(|tok_s| tok_s * bytes_per_token as f64 / 1e9),
            file_bytes: std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len(),
            version: env!("CARGO_PKG_VERSION"),
        })
    }

    /// Both speeds in words.
    fn rows(&self) -> [(&'static str, String); 2] {
        let depth = if self.depth > 0 { format!(" at depth {}", self.depth) } else { String::new() };
        let decode = speed_text(&self.decode, self.decode_tokens) + &depth;
        [("prefill", speed_text(&self.prefill, self.prefill_tokens)), ("decode", decode)]
    }
}

/// What was measured of one model, and under which conditions.
#[derive(Serialize)]
struct Bench {
    #[serde(flatten)]
    speeds: Speeds,
    path: String,
    /// From the start of the process to the logits of a prompt of one token; of the first model only.
    first_token_ms: Option<f64>,
    read_gb_s: f64,
    read: Bandwidth,
    percent_of_bandwidth: Option<f64>,
    /// Of the process, so of the first model only.
    peak_rss_bytes: Option<u64>,
    kv_bytes: usize,
    threads: u32,
    isa: &'static str,
    activations: &'static str,
    kv: &'static str,
    processor: String,
    governor: system::Governor,
    load_average: Option<[f64; 3]>,
    load_average_after: Option<[f64; 3]>,
    /// Share of this machine's processors that other work took meanwhile.
    by_others: Option<f64>,
    tiers: std::collections::BTreeMap<&'static str, usize>,
    digest: String,
    /// Kernels that the store does not know.
    unknown: Option<Unknown>,
}

/// Measures each model and prints its report; JSON is one object for one model, else a list.
pub fn run(args: &BenchArgs, ui: Ui) -> Result<Outcome> {
    if args.prefill == 0 && args.decode == 0 {
        return Err(anyhow!("there is nothing to measure")).hint("give --prefill or --decode more than 0 tokens");
    }
    let on_cpu = args.session.place().device() == Device::Cpu;
    if on_cpu && args.every_path {
        return Err(anyhow!("--every-path is of GPUs")).hint("give --device cuda or host");
    }
    let mut benches = Vec::new();
    for (i, model) in args.models.iter().enumerate() {
        let mut take = |text: String, bench: Value| {
            let gap = if benches.is_empty() { "" } else { "\n" };
            benches.push(bench);
            if ui.json { Ok(()) } else { report::print(&format!("{gap}{text}")) }
        };
        if !on_cpu {
            gpu::measure(model, args, ui, &mut take)?;
            continue;
        }
        let mut bench = measure(model, args, ui)?;
        if i > 0 {
            (bench.first_token_ms, bench.peak_rss_bytes) = (None, None);
        }
        take(text(&bench), json(&bench)?)?;
    }
    match (ui.json, &benches[..]) {
        (true, [one]) => report::print_json(one)?,
        (true, all) => report::print_json(&all)?,
        (false, _) => {}
    }
    Ok(Outcome::Done)
}

fn json(report: &impl Serialize) -> Result<Value> {
    serde_json::to_value(report).context("the report cannot be written as JSON")
}

fn measure(model: &str, args: &BenchArgs, ui: Ui) -> Result<Bench> {
    let (load_average, before) = (system::load_average(), tuning::usage(None));
    let session = Session::open(model, &args.session, ui)?;
    let needed = needed(args, session.options.context, session.model.file.hyper.context)?;
    let mut decoder = session.decoder()?;
    let ids: Vec<u32> = (0..needed.max(1)).map(|i| token(i, session.model.file.hyper.vocab)).collect();
    decoder.feed(&ids[..1])?;
    let first_token_ms = Some(crate::since_start().as_secs_f64() * 1e3);
    let spinner = ui.spinner(&format!("measuring {model}"));
    let (depth, path) = (args.depth as usize, &session.model.file.path);
    let samples = samples(args, &mut |part| match part {
        Part::Prefill => fed(&mut decoder, &ids[..args.prefill as usize]),
        Part::Depth => at_depth(&mut decoder, &ids, depth),
        Part::Decode(tokens) => {
            for id in &ids[depth..][..tokens] {
                decoder.feed(&[*id])?;
            }
            Ok(())
        }
    })?;
    // The probe's buffer is larger than many a model, so the peak is read before it.
    let peak_rss_bytes = system::peak_rss_bytes();
    let (load_average_after, by_others) = (system::load_average(), tuning::by_others(before));
    let read = probes::cpu::read(&session.cpu, session.cpu.threads(), BANDWIDTH_BUDGET)?;
    spinner.finish_and_clear();
    let speeds = Speeds::new(model, path, session.model.weights.bytes_per_token, args, samples)?;
    Ok(Bench {
        path: path.display().to_string(),
        first_token_ms,
        read_gb_s: read.median,
        percent_of_bandwidth: speeds.decode_gb_s.map(|g| 100.0 * g / read.median),
        speeds,
        read,
        peak_rss_bytes,
        kv_bytes: decoder.kv_bytes(),
        threads: session.cpu.threads(),
        isa: session.isa.name(),
        activations: session.options.activations.name(),
        kv: session.options.kv.name(),
        processor: session.cpu.topology().label.clone(),
        governor: system::governor(),
        load_average,
        load_average_after,
        by_others,
        tiers: session::tiers(&decoder),
        digest: decoder.frozen().digest().to_owned(),
        unknown: session.unknown(&decoder),
    })
}

/// Positions that the runs take; refused with flags that fit where the cache has fewer.
fn needed(args: &BenchArgs, context: usize, model: usize) -> Result<usize> {
    let [prefill, decode, depth] = [args.prefill, args.decode, args.depth].map(|n| n as usize);
    let needed = prefill.max(depth + decode);
    if needed <= context {
        return Ok(needed);
    }
    let what = if prefill == needed {
        format!("a prefill of {} does", counted(prefill, "token"))
    } else {
        format!("{decode} tokens decoded after {depth} do")
    };
    let refused = Err(anyhow!("{what} not fit a context of {context}; the model was made for {model}"));
    if needed <= model {
        return refused.hint(format!("use --context {needed}, or fewer tokens"));
    }
    let mut fits = Vec::new();
    if prefill > model {
        fits.push(format!("--prefill {model}"));
    }
    if depth + decode > model {
        fits.push(match (model.checked_sub(decode), model.checked_sub(depth)) {
            (Some(depth_max), _) if depth > 0 => format!("--depth {depth_max}"),
            (_, Some(decode_max @ 1..)) => format!("--decode {decode_max}"),
            _ => format!("--depth 0 and --decode {model}"),
        });
    }
    let larger = if context < model { format!(" with --context {model}") } else { String::new() };
    refused.hint(format!("use {} or less{larger}", fits.join(" and ")))
}

/// A part of a run.
enum Part {
    /// The prompt, from an empty cache.
    Prefill,
    /// Leaves exactly the depth in the cache, unmeasured.
    Depth,
    /// So many tokens from there on.
    Decode(usize),
}

/// Tokens a second of every run of prefill and of decode; the first of each warms up.
type Samples = [Vec<f64>; 2];

/// Prefill and decode in turns after one unmeasured turn of each, so that drift of the machine meets both alike.
fn samples(args: &BenchArgs, run: &mut dyn FnMut(Part) -> Result<()>) -> Result<Samples> {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for turn in 0..=args.runs {
        if args.prefill > 0 {
            let start = Instant::now();
            run(Part::Prefill)?;
            prefill.push(f64::from(args.prefill) / start.elapsed().as_secs_f64());
        }
        interrupt::check()?;
        if args.decode > 0 {
            run(Part::Depth)?;
            // A shorter warm-up is enough to touch every page of the weights.
            let tokens = if turn == 0 { args.decode.min(8) } else { args.decode };
            let start = Instant::now();
            run(Part::Decode(tokens as usize))?;
            decode.push(f64::from(tokens) / start.elapsed().as_secs_f64());
        }
        interrupt::check()?;
    }
    Ok([prefill, decode])
}

/// Feeds `ids` from an empty cache.
fn fed(decoder: &mut dyn Feed, ids: &[u32]) -> Result<()> {
    decoder.truncate(0);
    decoder.feed(ids)?;
    Ok(())
}

/// Leaves exactly the first `depth` of `ids` in the cache.
fn at_depth(decoder: &mut dyn Feed, ids: &[u32], depth: usize) -> Result<()> {
    decoder.truncate(depth);
    let held = decoder.position();
    if held < depth {
        decoder.feed(&ids[held..depth])?;
    }
    Ok(())
}

/// The statistics of the samples after the first, which warmed up.
fn speed(mut samples: Vec<f64>) -> Option<Speed> {
    if samples.len() < 2 {
        return None;
    }
    samples.remove(0);
    let mut sorted = samples.clone();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
    let median = (sorted[sorted.len() / 2] + sorted[(sorted.len() - 1) / 2]) / 2.0;
    Some(Speed { median, min, max, spread: (max - min) / median, samples })
}

/// The statistics in words.
fn speed_text(speed: &Option<Speed>, tokens: u32) -> String {
    let Some(Speed { median, min, max, spread, samples }) = speed else { return "not measured".into() };
    let (runs, spread) = (samples.len(), 100.0 * spread);
    format!(
        "{median:.1} tokens/s median of {runs}, {min:.1} to {max:.1}, spread {spread:.0}%; {}",
        counted(tokens, "token")
    )
}

fn text(b: &Bench) -> String {
    let first_token = b.first_token_ms.map(|ms| format!("{ms:.0} ms after the start, prompt of one token"));
    let load = |l: &Option<[f64; 3]>| report::load(l.map(|l| l[0]));
    let others = report::others(b.by_others);
    let memory = b.peak_rss_bytes.map(|n| {
        format!(
            "{} peak; file {}, cache {}",
            report::bytes(n),
            report::bytes(b.speeds.file_bytes),
            report::bytes(b.kv_bytes as u64)
        )
    });
    let mut rows = vec![("model", b.path.clone())];
    rows.extend(b.speeds.rows());
    if let (Some(gb_s), Some(percent)) = (b.speeds.decode_gb_s, b.percent_of_bandwidth) {
        let bytes = report::bytes(b.speeds.bytes_per_token);
        let read = b.read_gb_s;
        rows.push(("weights", format!("{bytes} a token, {gb_s:.1} GB/s: {percent:.0}% of {read:.1} GB/s measured")));
    }
    rows.extend(first_token.map(|text| ("first token", text)));
    rows.extend(memory.map(|text| ("memory", text)));
    rows.extend([
        ("machine", format!("{}, {}, {}", b.processor, counted(b.threads, "thread"), b.isa)),
        ("numerics", format!("{} activations, {} cache", b.activations, b.kv)),
        ("load", format!("{} before, {} after{}", load(&b.load_average), load(&b.load_average_after), others)),
        ("choices", session::tiers_text(&b.tiers)),
        ("digest", b.digest.clone()),
    ]);
    rows.extend(b.unknown.as_ref().map(|u| ("unknown", u.to_string())));
    report::pairs(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_warms_up_and_the_median_is_in_the_middle() {
        assert!(speed(vec![]).is_none() && speed(vec![1.0]).is_none());
        let s = speed(vec![1.0, 30.0, 10.0, 20.0, 40.0]).expect("four samples");
        assert_eq!((s.median, s.min, s.max, s.spread), (25.0, 10.0, 40.0, 1.2));
        assert_eq!(s.samples, [30.0, 10.0, 20.0, 40.0]);
    }
}
