//! `planish tune MODEL --device cuda`, or `--shapes NAME`: the whole step of a model on a GPU, its path and its grid, as
//! tokens a second.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use planish_engine::gpu::{self, decoder};
use planish_engine::gpu_step::{StepSpec, floor};
use planish_engine::identity::Identities;
use planish_engine::model::Origin;
use planish_engine::tuning::{self, Done, Fate, Setting, Step, Work};
use planish_kernels::subject;
use planish_tune::{Config, Policy, WallClock};

use super::bought::{self, Bought};
use super::watch::Progress;
use super::{Known, Request, Talk};
use crate::device::Device;
use crate::gpu::{GpuSession, Load, Named};
use crate::hint::WithHint;
use crate::session::{self, SessionArgs};
use crate::ui::Ui;
use crate::workbench::{self, worker};
use crate::{Outcome, interrupt};

/// The parameter that says how a step is handed over, for which there is a flag of its own.
const PATH: &str = "PATH";
/// Tokens in the cache when a sample begins, and tokens of a sample.
const DEPTH: (usize, usize) = (512, 64);
/// The same on the host executor, which proves and does not measure.
const DEPTH_HOST: (usize, usize) = (3, 2);

/// Prints the step as an item of a worklist, and what it runs with now.
pub(super) fn list(named: Named<'_>, args: &SessionArgs, ui: Ui) -> Result<Outcome> {
    let session = GpuSession::open_as(named, Load::Zeros, args, ui)?;
    let works = [work(&session, args)?];
    let chosen = works.iter().map(|w| session.chosen(w)).collect::<Result<Vec<_>>>()?;
    bought::list(&works.iter().zip(&chosen).collect::<Vec<_>>(), ui)
}

/// Tunes the step, keeps what is found, and prints what it bought.
pub(super) fn run(named: Named<'_>, args: &SessionArgs, request: &Request) -> Result<Outcome> {
    let start = Instant::now();
    if let Some(path) = args.place().path {
        let error = anyhow!("--path {}: tuning chooses the path", path.name());
        return Err(error).hint("leave --path out; run, chat, bench and verify take it");
    }
    let session = GpuSession::open_as(named, Load::Weights, args, request.ui)?;
    let name = match named {
        Named::Model(_) => session.label().to_owned(),
        Named::Shapes(_) => format!("{} on {}", session.origin, session.label()),
    };
    let machine = session.machine();
    let identities = Identities::new(&machine, &Policy::default());
    let mut store = session::open_store(request.ui);
    let works = [work(&session, args)?];
    if !request.force
        && request.recording.is_none()
        && let Some(choice) = tuning::settled(&works[0], machine, &identities, &store)
    {
        let done = vec![Done { work: works[0].clone(), fate: Fate::Known(Box::new(choice)) }];
        let bought = Bought::new(done, machine, &identities, &store).named(&name);
        request.ui.note(&bought.nothing_to_measure());
        let known = Known { machine, identities: &identities, store: &store, digest: String::new() };
        return request.conclude(&bought, request.report(&bought, &known)?);
    }
    let mut progress = Progress::new(request.ui, request.talk == Talk::Lines, works.len(), request.budget);
    let (worker, clock) = (worker(&[])?, WallClock::start());
    let setting = Setting {
        budget: request.budget.saturating_sub(start.elapsed()),
        force: request.force,
        ..workbench::setting(machine, session.device, (&identities, &worker, &clock))
    };
    if let Some(recording) = &request.recording {
        return recording.run(&works, &setting, &mut progress, request.ui);
    }
    let done = tuning::run(&works, &setting, &mut store, &mut progress)?;
    progress.finish();
    let mut bought = Bought::new(done, machine, &identities, &store).named(&name);
    bought.seconds = start.elapsed().as_secs_f64();
    let known = Known { machine, identities: &identities, store: &store, digest: String::new() };
    request.conclude(&bought, request.report(&bought, &known)?)
}

/// Time for the compilations of a wave; what is not done by then, the worker does.
const COMPILE_TIME: Duration = Duration::from_secs(90);

/// Compiles the kernels of all `configs` into the cache, one process each and as many at once as there are processors:
/// the compiler takes one program at a time in a process. What fails here fails again in the worker, which says why.
fn compile(spec: &StepSpec, configs: &[Config]) {
    let Ok(program) = std::env::current_exe() else { return };
    let start = |config: &Config| {
        let values: Vec<String> = config.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut command = Command::new(&program);
        command.arg("compile");
        match &spec.model {
            Origin::File(path) => command.arg(path),
            Origin::Shapes(name) => command.args(["--shapes", name]),
        };
        command.args(["--context", &spec.context.to_string()]);
        command.args(["--activations", spec.activations.name(), "--threads", "1", "--quiet"]);
        command.args(["--pin", &format!("{}={}", gpu::OP, values.join(","))]);
        command.args(config.name(PATH).iter().flat_map(|path| ["--path", *path]));
        command.args(spec.arch.iter().flat_map(|arch| ["--arch", arch.as_str()]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    let (most, end) = (std::thread::available_parallelism().map_or(1, usize::from), Instant::now() + COMPILE_TIME);
    let (mut waiting, mut running) = (configs.iter(), Vec::<Child>::new());
    loop {
        while running.len() < most && Instant::now() < end && !interrupt::requested() {
            let Some(config) = waiting.next() else { break };
            running.extend(start(config));
        }
        running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if running.is_empty() || Instant::now() >= end || interrupt::requested() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for mut child in running {
        // It is of no use any more; whether it has just ended by itself does not matter.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The step as an item of a worklist.
pub fn work(session: &GpuSession, args: &SessionArgs) -> Result<Work> {
    let (machine, options) = (session.machine(), session.options);
    let (shape, space) = decoder::space(machine, &session.file.hyper, &session.weights, &options);
    let limits = session.backend.limits();
    let op = subject::find(&limits.backend, gpu::OP)
        .ok_or_else(|| anyhow!("no op of {} is called {}", limits.backend, gpu::OP))?;
    let (depth, tokens) = if session.device == Device::Host { DEPTH_HOST } else { DEPTH };
    // A short cache leaves room for the sample.
    let depth = depth.min(options.context.saturating_sub(tokens + 1));
    let spec = StepSpec {
        device: session.device.to_string(),
        model: session.origin.clone(),
        context: options.context,
        activations: options.activations,
        depth,
        tokens,
        read_gb_s: limits.read_gb_s,
        threads: args.host_threads()?,
        arch: session.backend.identity().silicon.get("arch").cloned(),
        deterministic: args.deterministic(),
    };
    let ahead = matches!(session.device, Device::Cuda(_)).then_some(compile as fn(&StepSpec, &[Config]));
    let floor = floor(session.weights.bytes_per_token, limits.read_gb_s);
    let (step, deterministic) = (Some(Arc::new(Step { space, floor, spec, ahead })), args.deterministic());
    Ok(Work { op, shape, share: 1.0, uses: 1, step, deterministic })
}
