//! `planish run`: one prompt in, text out as it comes, after a first run has tuned the kernels for this machine.

use std::io::{IsTerminal, Read, stdin};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use planish_engine::generate::{Ended, Generated};
use planish_engine::model::ModelFile;
use planish_engine::text::Special;
use planish_engine::text::chat::{Message, Then};
use planish_tune::counted;
use serde_json::{Value, json};

use super::input::{self, MOST_BYTES};
use super::sampling::Sampling;
use crate::hint::WithHint;
use crate::runner::{Opened, Runner};
use crate::session::{Session, SessionArgs};
use crate::ui::Ui;
use crate::{Outcome, interrupt, presets, report};

/// Asked when no prompt is given.
const PROMPT_DEFAULT: &str = "Why is the sky blue?";

/// Write text with a model; the first run on a machine tunes its kernels
#[derive(Args)]
pub struct RunArgs {
    /// A preset, a cached model, OWNER/REPO[:FILE], or the path of a GGUF file
    #[arg(default_value = presets::DEFAULT)]
    model: String,
    /// What to answer or go on from; `-` reads it from standard input
    #[arg(default_value = PROMPT_DEFAULT)]
    prompt: String,
    /// Go on from the prompt as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Say speed, latency and the digest of the configurations on standard error
    #[arg(long)]
    stats: bool,
    /// Whether to tune first where nothing has been tuned on this machine; a later run never measures
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    tune: Tune,
    /// Seconds that such a first tuning may take
    #[arg(long, value_name = "SECONDS", default_value = "45s", value_parser = super::seconds)]
    budget: f64,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    session: SessionArgs,
}

/// When to tune before answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tune {
    /// Where nothing has been tuned on this machine.
    Auto,
    /// Never.
    Never,
}

/// Answers the prompt on standard output, as text or as one JSON object.
pub fn run(args: &RunArgs, ui: Ui) -> Result<Outcome> {
    let prompt = prompt_text(&args.prompt)?;
    let settings = args.sampling.settings();
    let mut opened = Opened::open(&args.model, &args.session, ui)?;
    let ids = encode(opened.file(), &prompt, args.raw)?;
    fits(ids.len(), opened.context())?;
    let gain = match &mut opened {
        Opened::Cpu(session) if args.tune == Tune::Auto => first_tuning(session, args.budget, ui)?,
        _ => None,
    };
    let mut runner = opened.runner(&settings, ui)?;
    let loaded = crate::since_start();
    let (done, text) = runner.stream(&ids, &settings, ui)?;
    let stats = Stats { done: &done, loaded, runner: &runner };
    if ui.json {
        report::print_json(&stats.json(&text)?)?;
    } else {
        report::print("\n")?;
    }
    finish(args, &stats, gain, ui)
}

/// Everything that is said after the text.
fn finish(args: &RunArgs, stats: &Stats<'_, '_>, gain: Option<String>, ui: Ui) -> Result<Outcome> {
    interrupt::check()?;
    if stats.done.ended == Ended::Context {
        let context = stats.runner.context();
        ui.note(&format!("note: the context of {} is full; --context makes it larger", counted(context, "token")));
    }
    if args.stats {
        ui.note(&stats.text()?);
    }
    if let Some(table) = gain {
        ui.note(&table);
    }
    Ok(Outcome::Done)
}

fn prompt_text(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    if stdin().is_terminal() {
        crate::ui::say("reading the prompt from standard input; Ctrl-D ends it");
    }
    let mut bytes = Vec::new();
    let most = MOST_BYTES as u64 + 1;
    stdin().take(most).read_to_end(&mut bytes).context("cannot read the prompt from standard input")?;
    let n = bytes.len();
    let text = input::text(bytes, n).map_err(|why| anyhow!("the prompt on standard input {why}"));
    text.hint("`-` takes text in UTF-8")
}

/// The ids of the prompt, inside the model's chat template where it has one.
fn encode(model: &ModelFile, prompt: &str, raw: bool) -> Result<Vec<u32>> {
    let ids = match model.chat() {
        Ok(chat) if !raw => model.tokenizer.encode_chat(&chat.render(&[Message::new("user", prompt)], Then::Reply)?)?,
        Err(error) if !raw && has_template(model) => return Err(error.into()),
        _ => model.tokenizer.encode_prompt(prompt, Special::Plain)?,
    };
    if ids.is_empty() {
        return Err(anyhow!("the prompt is empty")).hint("give a prompt, or leave it out");
    }
    Ok(ids)
}

/// Whether the file has a chat template, broken or not: a broken one is an error, a missing one is a base model.
fn has_template(model: &ModelFile) -> bool {
    !matches!(model.gguf.str("tokenizer.chat_template"), Ok(None))
}

/// Refuses a prompt that leaves no room for an answer, before anything is measured.
fn fits(tokens: usize, context: usize) -> Result<()> {
    if tokens < context {
        return Ok(());
    }
    Err(anyhow!("the prompt has {}, and a context of {context} must also hold the answer", counted(tokens, "token")))
        .hint("use a larger --context or a shorter prompt")
}

/// Tunes where nothing has been tuned on this machine; the table of what that bought.
fn first_tuning(session: &mut Session, budget: f64, ui: Ui) -> Result<Option<String>> {
    if !session.untuned()? {
        return Ok(None);
    }
    interrupt::check()?;
    super::tune::quick(session, Duration::from_secs_f64(budget), ui).map(Some)
}

/// What a generation took.
struct Stats<'r, 's> {
    done: &'r Generated,
    loaded: Duration,
    runner: &'r Runner<'s>,
}

impl Stats<'_, '_> {
    fn prefill_tok_s(&self) -> f64 {
        self.done.prompt_tokens as f64 / self.done.first_token.as_secs_f64()
    }

    fn first_token_ms(&self) -> f64 {
        (self.loaded + self.done.first_token).as_secs_f64() * 1e3
    }

    fn text(&self) -> Result<String> {
        let done = self.done;
        let decode = done.decode_tok_s().map_or("too few tokens to say".into(), |s| format!("{s:.1} tokens/s"));
        let mut rows = vec![
            ("decode", format!("{decode}, {}", counted(done.ids.len(), "token"))),
            ("prefill", format!("{:.0} tokens/s, {}", self.prefill_tok_s(), counted(done.prompt_tokens, "token"))),
            ("first token", format!("{:.0} ms after the start", self.first_token_ms())),
        ];
        rows.extend(self.runner.facts()?.rows);
        Ok(report::pairs(&rows).trim_end().to_owned())
    }

    fn json(&self, text: &str) -> Result<Value> {
        let done = self.done;
        let mut report = json!({
            "text": text,
            "ids": done.ids,
            "ended": done.ended,
            "prompt_tokens": done.prompt_tokens,
            "generated_tokens": done.ids.len(),
            "decode_tok_s": done.decode_tok_s(),
            "prefill_tok_s": self.prefill_tok_s(),
            "first_token_ms": self.first_token_ms(),
        });
        report.as_object_mut().expect("made as an object above").extend(self.runner.facts()?.fields);
        Ok(report)
    }
}
