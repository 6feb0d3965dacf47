//! `planish store lock`: what a model runs with, frozen into a file; and where two such files differ.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use planish_tune::counted;
use planish_tune::store::{Frozen, Unlike};
use serde_json::json;

use crate::device::Device;
use crate::gpu::GpuSession;
use crate::hint::WithHint;
use crate::session::{Session, SessionArgs, Unknown};
use crate::ui::Ui;
use crate::{Outcome, report};

/// What is frozen, and where it goes.
#[derive(Args)]
pub struct LockArgs {
    /// A preset, a cached model, OWNER/REPO[:FILE], or the path of a GGUF file
    model: String,
    /// The lock file to write
    file: PathBuf,
    #[command(flatten)]
    session: SessionArgs,
}

/// Plans the model as `run` does with the same flags, and writes down what it would run with.
pub fn run(args: &LockArgs, ui: Ui) -> Result<Outcome> {
    let (frozen, unknown) = frozen(args, ui)?;
    frozen.write(&args.file).or_hint("name a file in a folder that can be written")?;
    let (choices, digest) = (frozen.iter().count(), frozen.digest());
    if let Some(unknown) = &unknown {
        ui.note(&format!("note: {unknown}; the lock has the defaults for them"));
    }
    if ui.json {
        report::print_json(&json!({ "file": args.file, "choices": choices, "digest": digest, "unknown": unknown }))?;
    } else {
        report::print(&format!("{} in {}, digest {digest}\n", counted(choices, "choice"), args.file.display()))?;
    }
    Ok(Outcome::Done)
}

fn frozen(args: &LockArgs, ui: Ui) -> Result<(Frozen, Option<Unknown>)> {
    if args.session.place().device() == Device::Cpu {
        let session = Session::open(&args.model, &args.session, ui)?;
        let decoder = session.decoder()?;
        return Ok((decoder.frozen().clone(), session.unknown(&decoder)));
    }
    let session = GpuSession::open(&args.model, &args.session, ui)?;
    let decoder = session.decoder(session.options)?;
    Ok((decoder.frozen().clone(), session.unknown(&decoder)))
}

/// Prints both digests and the keys that differ; exit 1 where there are any.
pub fn diff(left: &Path, right: &Path, ui: Ui) -> Result<Outcome> {
    let read = |path: &Path| Frozen::read(path).or_hint("give two lock files, or two store folders");
    let (left, right) = (read(left)?, read(right)?);
    let unlike = left.unlike(&right);
    if ui.json {
        let entry = |u: &Unlike| json!({ "key": u.key, "left": u.left, "right": u.right });
        let keys = unlike.iter().map(entry).collect::<Vec<_>>();
        report::print_json(&json!({ "left": left.digest(), "right": right.digest(), "differing": keys }))?;
    } else {
        let rows = [("left", left.digest().to_owned()), ("right", right.digest().to_owned())];
        report::print(&report::pairs(&rows))?;
        report::print(&unlike.iter().map(|u| format!("{u}\n")).collect::<String>())?;
    }
    Ok(if unlike.is_empty() { Outcome::Done } else { Outcome::No })
}
