//! `planish tune MODEL --device cuda`, or `--shapes NAME`: the whole step of a model on a GPU, its path and its grid, and the
//! chunk of a prompt, both as tokens a second.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use planish_engine::accept::{self, Effort};
use planish_engine::gpu::{self as engine, Options, Part, Route, chunk};
use planish_engine::gpu_step::StepSpec;
use planish_engine::model::Origin;
use planish_engine::plan::{Chosen, Defaults};
use planish_engine::tuning::{self, Done, Fate, Setting, Step, Work};
use planish_kernels::subject;
use planish_tune::store::Store;
use planish_tune::{Config, Space, WallClock};

use super::bought::{self, Bought, EndToEnd};
use super::watch::{Coming, Progress};
use super::{ACCEPT_MOST, Known, Request, Talk, ids};
use crate::device::Device;
use crate::gpu::{self, GpuSession, Load, Named};
use crate::hint::WithHint;
use crate::session::SessionArgs;
use crate::ui::Ui;
use crate::workbench::{self, worker};
use crate::{Outcome, interrupt};

/// The parameter that says how a step is handed over, for which there is a flag of its own.
const PATH: &str = "PATH";
/// Tokens in the cache when a sample of a step begins, and tokens of a sample.
const DEPTH: (usize, usize) = (512, 64);
/// The same on the host executor, which proves and does not measure.
const DEPTH_HOST: (usize, usize) = (3, 2);
/// Chunks of a sample of prompts, and on the host executor: the later ones look back on the earlier ones.
const CHUNKS: usize = 2;
const CHUNKS_HOST: usize = 1;

/// Prints the parts of a model as items of a worklist, and what they run with now.
pub(super) fn list(named: Named<'_>, args: &SessionArgs, ui: Ui) -> Result<Outcome> {
    let session = GpuSession::open_as(named, Load::Zeros, args, ui)?;
    let works = works(&session, args)?;
    let chosen = |w: &Work| Chosen::of(&session.choices(), w.op, &w.shape, &w.space(&session.machine()));
    let chosen = works.iter().map(chosen).collect::<Result<Vec<_>, _>>()?;
    bought::list(&works.iter().zip(&chosen).collect::<Vec<_>>(), ui)
}

/// Tunes step and chunk, then asks the model as a whole, keeps what is found, and prints what it bought.
pub(super) fn run(named: Named<'_>, args: &SessionArgs, request: &Request) -> Result<Outcome> {
    let start = Instant::now();
    if let Some(path) = args.place().path {
        let error = anyhow!("--path {}: tuning chooses the path", path.name());
        return Err(error).hint("leave --path out; run, chat, bench and verify take it");
    }
    let mut session = GpuSession::open_as(named, Load::Weights, args, request.ui)?;
    let name = match named {
        Named::Model(_) => session.label().to_owned(),
        Named::Shapes(_) => format!("{} on {}", session.origin, session.label()),
    };
    let works = works(&session, args)?;
    let for_accept = request.budget.mul_f64(0.25).min(ACCEPT_MOST);
    let budget = request.budget.saturating_sub(start.elapsed() + for_accept);
    if let Some(recording) = &request.recording {
        let budget = request.budget.saturating_sub(start.elapsed());
        return with_setting(&mut session, request, budget, &works, |setting, _, progress| {
            recording.run(&works, setting, progress, request.ui)
        });
    }
    let mut bought = match known(&session, request, &works) {
        Some(bought) => bought,
        None => {
            let done = with_setting(&mut session, request, budget, &works, |setting, store, progress| {
                let done = tuning::run(&works, setting, store, progress)?;
                progress.finish();
                Ok(done)
            })?;
            Bought::new(done, session.machine(), &session.identities, &session.store)
        }
    }
    .named(&name);
    if !interrupt::requested() {
        let left = request.budget.saturating_sub(start.elapsed()).mul_f64(0.85).min(ACCEPT_MOST);
        bought.end_to_end = end_to_end(&mut session, request, &works, (left, start))?;
        bought.refresh(gpu::machine(session.backend.as_ref()), &session.identities, &session.store);
    }
    bought.seconds = start.elapsed().as_secs_f64();
    let digest = session.frozen()?.digest().to_owned();
    let (machine, identities, store) = (session.machine(), &session.identities, &session.store);
    request.conclude(&bought, request.report(&bought, &Known { machine, identities, store, digest })?)
}

/// What was bought where the store knows every item, which is said.
fn known(session: &GpuSession, request: &Request, works: &[Work]) -> Option<Bought> {
    if request.force {
        return None;
    }
    let (machine, identities, store) = (session.machine(), &session.identities, &session.store);
    let known = |w: &Work| {
        let choice = tuning::settled(w, machine, identities, store)?;
        Some(Done { work: w.clone(), fate: Fate::Known(Box::new(choice)) })
    };
    let bought = Bought::new(works.iter().map(known).collect::<Option<_>>()?, machine, identities, store);
    request.ui.note(&bought.nothing_to_measure());
    Some(bought)
}

/// Hands everything that measuring items needs to `then`.
fn with_setting<T>(
    session: &mut GpuSession,
    request: &Request,
    budget: Duration,
    works: &[Work],
    then: impl FnOnce(&Setting<'_>, &mut Store, &mut Progress) -> Result<T>,
) -> Result<T> {
    let saved = session.store.is_kept() && request.recording.is_none();
    let coming = Coming { kernels: works.len(), budget, saved };
    let mut progress = Progress::new(request.ui, request.talk == Talk::Lines, coming);
    let (worker, clock) = (worker(&[])?, WallClock::start());
    let (machine, identities) = (gpu::machine(session.backend.as_ref()), &session.identities);
    let setting = workbench::setting(machine, session.device, (identities, &worker, &clock));
    let setting = Setting { budget, force: request.force, ..setting };
    then(&setting, &mut session.store, &mut progress)
}

/// Tuned against default, unless the store knows how that ends; a part that brings nothing goes back to its default.
///
/// Tuning began at `start`.
fn end_to_end(
    session: &mut GpuSession,
    request: &Request,
    works: &[Work],
    (budget, start): (Duration, Instant),
) -> Result<Option<EndToEnd>> {
    let digest = session.frozen()?.digest().to_owned();
    if let Some(known) = request.known_end(&digest, &session.identities, &session.store)? {
        return Ok(Some(known));
    }
    let parts = session.parts();
    let chosen = parts.iter().map(|p| Ok(p.chosen(&session.choices())?)).collect::<Result<Vec<_>>>()?;
    let differs = [0, 1].map(|i| parts.get(i).is_some_and(|p| chosen[i].config != p.space.default));
    if differs == [false; 2] {
        return Ok(None);
    }
    request.ui.note(&format!("end to end: tuned against default, about {:.0} s", budget.as_secs_f64()));
    let Options { context, chunk, .. } = session.options;
    let tokens = if session.device == Device::Host { DEPTH_HOST.1 } else { DEPTH.1 }.min(context / 4);
    let ids = ids(&session.file.tokenizer, tokens + chunk.max(2).min(context - tokens))?;
    let report = {
        let mut default = session.decoder_of(session.options, &Defaults)?;
        let mut tuned = session.decoder(session.options)?;
        let effort = Effort { tokens, budget, ..Effort::default() };
        accept::compare_on(differs, [&mut default, &mut tuned], &ids, &effort, interrupt::flag())?
    };
    let Some(report) = report else { return Ok(None) };
    let report = report.after(start.elapsed());
    let items = accept::refuted_parts(&report, [0, 1].map(|i| parts.get(i).zip(chosen.get(i))));
    let machine = gpu::machine(session.backend.as_ref());
    let space_of = |(op, shape): &accept::Item| {
        let work = works.iter().find(|w| w.op.name == op.name && w.shape == *shape);
        work.map_or_else(|| Space::fixed(Config::new()), |w| w.space(&machine))
    };
    let mut end = EndToEnd { report, known: false, put_back: 0, by_others: None };
    end.put_back = accept::put_back(&items, &space_of, &session.identities, &mut session.store, end.lasts())?;
    let digest = session.frozen()?.digest().to_owned();
    request.remembered(end, &digest, &session.identities, &mut session.store).map(Some)
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
        command.args(["--activations", spec.activations.name(), "--threads", "1", "--unstamped", "--quiet"]);
        let op = if spec.chunk.is_some() { engine::PREFILL } else { engine::DECODE };
        command.args(["--pin", &format!("{op}={}", values.join(","))]);
        // Chunks go with steps of the default, whose programs the first of them compiles.
        command.args(["--path", config.name(PATH).unwrap_or(Route::Token.name())]);
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

/// The step and the chunk as items of a worklist, of which each weighs as much as the other.
pub fn works(session: &GpuSession, args: &SessionArgs) -> Result<Vec<Work>> {
    let options = session.options;
    // Prompts of a cache that has no room for two chunks and a token go token by token.
    let room = |part: &Part| part.op.name != engine::PREFILL || options.context > 2 * chunk::LEAST;
    session.parts().into_iter().filter(room).map(|part| work(session, args, part)).collect()
}

fn work(session: &GpuSession, args: &SessionArgs, part: Part) -> Result<Work> {
    let (options, limits, host) = (session.options, session.backend.limits(), session.device == Device::Host);
    let op = subject::find(&limits.backend, part.op.name)
        .ok_or_else(|| anyhow!("no op of {} is called {}", limits.backend, part.op.name))?;
    let chunk = (part.op.name == engine::PREFILL).then_some(options.chunk);
    let (depth, tokens) = match chunk {
        Some(chunk) => (0, (chunk * if host { CHUNKS_HOST } else { CHUNKS }).min(options.context)),
        None if host => DEPTH_HOST,
        None => DEPTH,
    };
    let spec = StepSpec {
        device: session.device.to_string(),
        model: session.origin.clone(),
        context: options.context,
        activations: options.activations,
        chunk,
        // A short cache leaves room for the sample.
        depth: depth.min(options.context.saturating_sub(tokens + 1)),
        tokens,
        read_gb_s: limits.read_gb_s,
        threads: args.host_threads()?,
        arch: session.backend.identity().silicon.get("arch").cloned(),
        deterministic: args.deterministic(),
    };
    let ahead = matches!(session.device, Device::Cuda(_)).then_some(compile as fn(&StepSpec, &[Config]));
    let floor = spec.floor(session.weights.bytes_per_token);
    let (step, deterministic) = (Step { space: part.space, floor, spec, ahead }, args.deterministic());
    Ok(Work { op, shape: part.shape, share: 1.0, uses: 1, step: Some(Arc::new(step)), deterministic })
}
