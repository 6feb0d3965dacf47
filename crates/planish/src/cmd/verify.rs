//! `planish verify`: logits of every prompt of an expected file against float64, one dump a prompt for other judges.

mod corpus;
mod gpu;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use planish_engine::decoder::{KvType, Options};
use planish_engine::verify::{self, ExpectedFile, Path as Feed, Prompt, Verdict};
use planish_kernels::weight::Activations;
use serde_json::json;

use crate::device::Device;
use crate::hint::WithHint;
use crate::session::{Session, SessionArgs};
use crate::ui::Ui;
use crate::{Outcome, interrupt, report};

const EXPECTED_HINT: &str = "--expected takes a JSON file made as crates/planish-engine/tests/goldens/README.md says";
const DUMP_HINT: &str = "--dump takes a folder that can be written; without it nothing is dumped";

/// Compare a model's logits with expected ones, or (--device alone) GPU kernels with references; exit 1 beyond tolerance
#[derive(Args)]
pub struct VerifyArgs {
    /// A preset, a cached model, OWNER/REPO[:FILE], or the path of a GGUF file
    #[arg(required_unless_present_any = ["device", "corpus"])]
    model: Option<String>,
    /// File of prompts, the logits they must give, and how far each arithmetic may deviate
    #[arg(long, value_name = "FILE", required_unless_present_any = ["device", "corpus"])]
    expected: Option<PathBuf>,
    #[command(flatten)]
    kernels: super::verify_kernels::KernelArgs,
    #[command(flatten)]
    corpus: corpus::CorpusArgs,
    /// Folder that gets one dump a prompt, PROMPT.json by prefill; those fed step by step go into its folder steps
    #[arg(long, value_name = "FOLDER")]
    dump: Option<PathBuf>,
    /// Also fail where the error is more than 1.25 times that of llama.cpp in the geometric mean
    #[arg(long)]
    not_worse_than_llama: bool,
    /// On a GPU, also with every other value of THREADS and of each ROWS parameter, one at a time
    #[arg(long)]
    every_width: bool,
    #[command(flatten)]
    session: SessionArgs,
}

/// Name of the arithmetic in an expected file.
fn mode(options: &Options) -> &'static str {
    match (options.activations, options.kv) {
        (Activations::F32, KvType::F32) => "f32",
        (Activations::F32, KvType::F16) => "f32_kv16",
        (Activations::Int8, KvType::F32) => "int8",
        (Activations::Int8, KvType::F16) => "int8_kv16",
    }
}

/// Feeds every prompt both ways, prints a line for each and judges.
pub fn run(args: &VerifyArgs, ui: Ui) -> Result<Outcome> {
    if args.corpus.corpus {
        return corpus::run(&args.corpus, args.model.as_deref(), &args.session, ui);
    }
    let device = args.session.place().device();
    let (model, path) = match (&args.model, &args.expected) {
        (None, None) if device != Device::Cpu => return super::verify_kernels::run(device, &args.kernels, ui),
        (Some(model), Some(path)) => (model, path),
        _ => return Err(anyhow!("verify needs a model and --expected")).hint(EXPECTED_HINT),
    };
    let expected = read(path)?;
    if let Some(folder) = &args.dump {
        let steps = folder.join("steps");
        fs::create_dir_all(&steps).with_context(|| format!("cannot create {}", steps.display())).hint(DUMP_HINT)?;
    }
    if device != Device::Cpu {
        return gpu::run(args, model, &expected, ui);
    }
    if args.every_width {
        return Err(anyhow!("--every-width is of GPUs")).hint("give --device host or cuda");
    }
    let session = Session::open(model, &args.session, ui)?;
    let all_logits = expected.prompts.iter().any(|p| p.probe_logits_all.is_some());
    let mut decoder = session.decoder_with(Options { all_logits, ..session.options })?;
    let mode = mode(&session.options);
    let mut verdicts = Vec::new();
    for prompt in &expected.prompts {
        for (feed, part) in [(Feed::Prefill, ""), (Feed::Steps, "steps")] {
            interrupt::check()?;
            let context = || format!("prompt {}", prompt.name);
            let dump = verify::run(&mut decoder, prompt, feed).with_context(context)?;
            if let Some(folder) = &args.dump {
                write(&folder.join(part), &prompt.name, &dump)?;
            }
            let verdict = verify::judge(prompt, &dump, mode, feed).with_context(context)?;
            if !ui.json {
                report::print(&line(&expected.model, &verdict))?;
            }
            verdicts.push(verdict);
        }
    }
    if args.not_worse_than_llama && verify::not_worse_than_llama(&verdicts).is_none() {
        return Err(anyhow!("{} has no deviation of llama.cpp to compare with", path.display()))
            .hint("run without --not-worse-than-llama");
    }
    conclude(args, mode, &expected, &verdicts, ui)
}

fn read(path: &Path) -> Result<ExpectedFile> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())).hint(EXPECTED_HINT)?;
    let expected: ExpectedFile =
        serde_json::from_str(&text).map_err(|e| anyhow!("{}: {e}", path.display())).hint(EXPECTED_HINT)?;
    if expected.prompts.is_empty() {
        return Err(anyhow!("{} has no prompts", path.display())).hint(EXPECTED_HINT);
    }
    let file_name = |p: &Prompt| !p.name.is_empty() && !p.name.starts_with('.') && !p.name.contains(['/', '\\', '\0']);
    match expected.prompts.iter().find(|p| !file_name(p)) {
        Some(p) => Err(anyhow!("{}: prompt name {:?} cannot name a file", path.display(), p.name)).hint(EXPECTED_HINT),
        None => Ok(expected),
    }
}

fn write(folder: &Path, name: &str, dump: &verify::Dump) -> Result<()> {
    let path = folder.join(format!("{name}.json"));
    let text = serde_json::to_vec(dump).context("the dump cannot be written as JSON")?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display())).hint(DUMP_HINT)
}

fn line(model: &str, v: &Verdict) -> String {
    let state = if v.reasons.is_empty() { "ok  " } else { "FAIL" };
    let (m, l) = (&v.measures, &v.limits);
    let llama = v.over_llama.map_or(String::new(), |r| format!(" ({r:.2}x llama.cpp's)"));
    let best = if v.same_best { "same" } else { "other" };
    let why: String = v.reasons.iter().map(|r| format!("; {r}")).collect();
    format!(
        "{state} {model} {} {}: rms {:.3e} of {:.3e}{llama}, max {:.3e}, shift {:.3e}, kl {:.3e}, best id {best}{why}\n",
        v.prompt, v.path, m.rms, l.rms, m.max, m.shift, m.kl
    )
}

fn conclude(args: &VerifyArgs, mode: &str, expected: &ExpectedFile, verdicts: &[Verdict], ui: Ui) -> Result<Outcome> {
    let failed = verdicts.iter().filter(|v| !v.reasons.is_empty()).count();
    let llama = verify::not_worse_than_llama(verdicts);
    let worse = args.not_worse_than_llama && llama.is_some_and(|(_, holds)| !holds);
    if ui.json {
        report::print_json(&json!({
            "model": expected.model, "mode": mode, "passed": verdicts.len() - failed, "failed": failed,
            "over_llama": llama.map(|l| l.0), "not_worse_than_llama": llama.map(|l| l.1), "verdicts": verdicts,
        }))?;
    } else {
        let passed = verdicts.len() - failed;
        let mean = llama.map_or(String::new(), |(mean, _)| {
            format!("; rms {mean:.2}x llama.cpp's in the mean{}", if worse { ", which is worse" } else { "" })
        });
        report::print(&format!("{mode}: {passed} passed, {failed} failed{mean}\n"))?;
    }
    Ok(if failed == 0 && !worse { Outcome::Done } else { Outcome::No })
}
