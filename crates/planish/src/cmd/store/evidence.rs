//! `planish store report`: the evidence behind choices as a page, from a store or from what an earlier report wrote.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use planish_tune::store::Store;

use crate::hint::WithHint;
use crate::page::{self, Files};
use crate::tuned::Tuned;
use crate::ui::Ui;
use crate::{Outcome, report};

/// Of what, from where, and where to.
#[derive(Args)]
pub struct ReportArgs {
    /// Only this op
    op: Option<String>,
    /// Only this shape of it, as `store list` prints it
    shape: Option<String>,
    /// Another store folder, or the .json file of an earlier report
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Write the page here, and the same data as .json and .tsv beside it; without it the tables go to standard output
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
}

/// Makes the report; exit 1 where there is nothing to report on.
pub fn run(store: &Store, args: &ReportArgs, ui: Ui) -> Result<Outcome> {
    let files = match &args.from {
        Some(path) if path.is_file() => again(path, args)?,
        Some(path) => {
            super::must_be_store(path)?;
            let mut theirs = super::open(path);
            super::warn(&mut theirs, ui);
            of(&theirs, &name(path), args, ui)?
        }
        None => of(store, "this user's store", args, ui)?,
    };
    let Some(files) = files else { return Ok(Outcome::No) };
    match &args.html {
        Some(path) => {
            let written = files.write(path)?.map(|p| p.display().to_string());
            ui.note(&format!("report: {}", written.join(", ")));
        }
        None => report::print(if ui.json { &files.json } else { &files.tsv })?,
    }
    Ok(Outcome::Done)
}

/// The last name of a folder: the rest of its path is nobody's business on a page that is passed on.
fn name(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    format!("store {}", whole.file_name().unwrap_or_default().to_string_lossy())
}

fn again(path: &Path, args: &ReportArgs) -> Result<Option<Files>> {
    if let Some(op) = &args.op {
        let error = anyhow!("{op}: a report that is made again from its .json file is the whole report");
        return Err(error).hint("leave the op out, or give a store folder");
    }
    page::read::<Tuned>(path).map(Some)
}

fn of(store: &Store, name: &str, args: &ReportArgs, ui: Ui) -> Result<Option<Files>> {
    let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
    let tuned = Tuned::of_store(store, name, |op, shape| is(&args.op, op) && is(&args.shape, shape));
    if tuned.kernels.is_empty() && tuned.whole.is_empty() {
        ui.note("there is no such choice in this store; `planish store list` shows what there is");
        return Ok(None);
    }
    page::files(&tuned).map(Some)
}
