//! `planish compile`: the kernels of a model's GPU decoder compiled for a card that is not here, kept for when it is.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use planish_device::cuda::nvrtc::{Nvrtc, Resources};
use planish_device::{Source, recorder};
use planish_engine::gpu::{GpuDecoder, Options, Route, Weights};
use planish_engine::model::{Made, Origin};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::record;
use planish_kernels::op::Machine;
use planish_tune::store::{Mode, Pins};
use serde_json::json;

use crate::device::Device;
use crate::hint::WithHint;
use crate::home::Home;
use crate::session::{self, SessionArgs};
use crate::ui::Ui;
use crate::{Outcome, interrupt, report};

/// Compile the kernels of models for an NVIDIA card without having one
#[derive(Args)]
pub struct CompileArgs {
    /// Presets, cached models, OWNER/REPO[:FILE], or paths of GGUF files
    #[arg(required_unless_present = "shapes")]
    models: Vec<String>,
    /// Compile for the shapes of a well-known model, which needs no file; may be repeated
    #[arg(long, value_name = "NAME", value_parser = super::tune::shape_names())]
    shapes: Vec<String>,
    /// Architecture of the card
    #[arg(long, value_name = "ARCH", default_value = "sm_90a")]
    arch: String,
    /// Leave out what only `explain` runs: the grids that leave times
    #[arg(long)]
    unstamped: bool,
    #[command(flatten)]
    session: SessionArgs,
}

/// One text with its constants and threads, and the model that wants it.
struct Job {
    model: String,
    source: Source,
}

/// Compiles every program of the default configurations on every path, and prints what the assembler says of each kernel.
pub fn run(args: &CompileArgs, ui: Ui) -> Result<Outcome> {
    let cache = Home::from_env()?.cuda();
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let nvrtc = Nvrtc::find(cache)?;
    let mut jobs = BTreeMap::new();
    for name in &args.models {
        programs((name, Origin::File(session::resolve(name, ui)?)), args, &mut jobs)?;
    }
    for name in &args.shapes {
        programs((name, Origin::Shapes(name.clone())), args, &mut jobs)?;
    }
    let (total, spinner) = (jobs.len(), ui.spinner(&format!("compiling {} programs for {}", jobs.len(), args.arch)));
    let (jobs, done) = (Mutex::new(jobs.into_values()), Mutex::new(Vec::new()));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next().filter(|_| !interrupt::requested());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let cubin = nvrtc.compile(&args.arch, &job.source);
                    let kernels = cubin.map(|c| c.kernels).map_err(|e| anyhow!("{}: {e}", job.model));
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((job.model, kernels));
                }
            });
        }
    });
    spinner.finish_and_clear();
    interrupt::check()?;
    let mut rows = Vec::new();
    let mut data = Vec::new();
    for (model, kernels) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        for k in kernels? {
            data.push(json!({ "model": model, "kernel": k }));
            rows.push(row(&model, &k));
        }
    }
    rows.sort();
    let (major, minor) = nvrtc.version();
    if ui.json {
        report::print_json(&json!({ "arch": args.arch, "nvrtc": format!("{major}.{minor}"), "kernels": data }))?;
    } else {
        let names = ["model", "kernel", "registers", "shared", "spilled", "stack"];
        report::print(&report::table(names, &rows))?;
        report::print(&format!("{total} programs for {} by NVRTC {major}.{minor}\n", args.arch))?;
    }
    Ok(Outcome::Done)
}

fn row(model: &str, k: &Resources) -> [String; 6] {
    let [registers, shared, spill, stack] =
        [k.registers, k.shared_bytes, k.spill_bytes, k.stack_bytes].map(|n| n.to_string());
    [model.to_owned(), k.entry.clone(), registers, shared, spill, stack]
}

/// Adds the distinct programs of a model, on every path that its configuration can take: the default, or a pinned one.
fn programs((model, origin): (&String, Origin), args: &CompileArgs, jobs: &mut BTreeMap<String, Job>) -> Result<()> {
    if args.session.place().device.is_some() {
        return Err(anyhow!("compile needs no device")).hint("leave --device out; --arch says for which card");
    }
    let pins = match args.session.mode(Device::Cuda(0))? {
        Mode::Pin(pins) => pins,
        Mode::Replay(_) => return Err(anyhow!("--replay: compile takes defaults and pins")).hint("use --pin"),
        Mode::Stored | Mode::Off => Pins::default(),
    };
    let card = record::card(&args.arch);
    let machine = Machine { backend: &card, isa: Isa::Portable };
    let (file, weights) = origin.open_with(Made::Zeros, |gguf, hyper| Weights::empty(gguf, hyper, &card))?;
    let options = args.session.gpu_options(file.hyper.context)?;
    for route in options.route.map_or(Route::ALL.to_vec(), |r| vec![r]) {
        let options = Options { route: Some(route), sampled: true, ..options };
        let decoder = GpuDecoder::new(machine, &file.hyper, &weights, options, &pins)
            .hint("--path leaves out the paths that the default configuration cannot take")?;
        // What `explain` runs instead, to see inside of grids.
        let stamped = if args.unstamped { None } else { decoder.stamped(&weights)? };
        let stamped = stamped.map(|(stamped, _)| stamped.launches).unwrap_or_default();
        let launches = decoder.sequences().filter_map(recorder::launches).flatten().chain(&stamped);
        for source in launches.filter_map(|l| recorder::source(&l.program)) {
            let Source::Text { text, constants, threads, .. } = source else { continue };
            let key = format!("{threads} {constants:?} {text}");
            jobs.entry(key).or_insert_with(|| Job { model: model.clone(), source: source.clone() });
        }
    }
    Ok(())
}
