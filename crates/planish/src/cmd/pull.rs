//! `planish pull`: brings a model file into the cache and prints where it lies.

use clap::Args;
use serde_json::json;

use crate::fetch::{self, Fetched};
use crate::home::Home;
use crate::ui::Ui;
use crate::{Outcome, report};

/// Bring a model into the cache and print its path
#[derive(Args)]
pub struct PullArgs {
    /// A preset (smollm2), OWNER/REPO[:FILE] on Hugging Face, or the path of a GGUF file
    #[arg(default_value = crate::presets::DEFAULT)]
    model: String,
}

/// Fetches unless the cache has it; standard output gets the path, or the report as JSON.
pub fn run(args: &PullArgs, ui: Ui) -> anyhow::Result<Outcome> {
    let home = Home::from_env()?;
    let fetched = fetch::pull(&args.model, &home, ui)?;
    let bytes = std::fs::metadata(&fetched.path)?.len();
    let Fetched { path, source } = fetched;
    ui.note(&format!("{}: {} from {}", path.display(), report::bytes(bytes), source.name()));
    if ui.json {
        report::print_json(&json!({ "model": args.model, "path": path, "bytes": bytes, "source": source.name() }))?;
    } else {
        report::print(&format!("{}\n", path.display()))?;
    }
    Ok(Outcome::Done)
}
