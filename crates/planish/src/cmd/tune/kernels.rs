//! `planish tune --kernel`: kernels named one by one, on any device, without a model.

use std::time::Instant;

use anyhow::{Result, anyhow};
use planish_engine::identity::Identities;
use planish_engine::tuning::{self, Setting, Work};
use planish_kernels::op::{Machine, Shape};
use planish_kernels::subject;
use planish_tune::{Policy, WallClock};

use super::bought::Bought;
use super::watch::{Coming, Progress};
use super::{Known, Request, Talk};
use crate::Outcome;
use crate::hint::WithHint;
use crate::session::{self, SessionArgs};
use crate::workbench::Workbench;

/// An op at a shape, by name.
#[derive(Clone, Debug)]
pub struct Named {
    op: String,
    shape: Shape,
}

/// Reads `OP:NAME=VALUE,...`.
pub fn parse(text: &str) -> Result<Named, String> {
    let (op, shape) = text.split_once(':').ok_or_else(|| format!("`{text}` is not OP:NAME=VALUE,..."))?;
    Ok(Named { op: op.to_owned(), shape: shape.parse()? })
}

/// Tunes the kernels in order, each with the same share of the time.
pub fn run(kernels: &[Named], args: &SessionArgs, request: &Request) -> Result<Outcome> {
    let (start, before) = (Instant::now(), tuning::usage(None));
    let bench = Workbench::open(args)?;
    let machine = bench.machine();
    let work = |named| Ok(Work { deterministic: args.deterministic(), ..work(named, &machine, kernels.len())? });
    let works = kernels.iter().map(work).collect::<Result<Vec<Work>>>()?;
    let identities = Identities::new(&machine, &Policy::default());
    let mut store = session::open_store(request.ui);
    let saved = store.is_kept() && request.recording.is_none();
    let coming = Coming { kernels: works.len(), budget: request.budget, saved };
    let mut progress = Progress::new(request.ui, request.talk == Talk::Lines, coming);
    progress.roof(&bench.ceilings, bench.cold().as_ref());
    let (worker, clock) = (bench.worker()?, WallClock::start());
    let budget = request.budget.saturating_sub(start.elapsed());
    let setting = Setting { force: request.force, ..bench.setting(&identities, &worker, &clock, budget) };
    works.iter().try_for_each(|w| tuning::fits(w, &setting))?;
    if let Some(recording) = &request.recording {
        return recording.run(&works, &setting, &mut progress, request.ui);
    }
    let done = tuning::run(&works, &setting, &mut store, &mut progress)?;
    progress.finish();
    let mut bought = Bought::new(done, machine, &identities, &store).named(&bench.backend().identity().label);
    bought.seconds = start.elapsed().as_secs_f64();
    bought.by_others = tuning::by_others(before);
    let known = Known { machine, identities: &identities, store: &store, digest: String::new() };
    request.conclude(&bought, request.report(&bought, &known)?)
}

fn work(named: &Named, machine: &Machine<'_>, of: usize) -> Result<Work> {
    let device = &machine.backend.limits().backend;
    let op = subject::find(device, &named.op)
        .ok_or_else(|| anyhow!("no op of {device} is called {}", named.op))
        .hint("docs/ops.md lists the ops of GPUs, `planish tune --list` those of a model on a processor")?;
    (op.check)(&named.shape).map_err(|why| anyhow!("{}: {why}", op.name)).hint("docs/ops.md has shapes of every op")?;
    Ok(Work { op, shape: named.shape.clone(), share: 1.0 / of as f64, uses: 1, step: None, deterministic: false })
}
