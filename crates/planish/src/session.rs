//! A model opened for work on the CPU: processor, weights, numerics, and where configurations come from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Command, Id};
use planish_device::Cpu;
use planish_engine::decoder::{Decoder, KvType, Options, Planned};
use planish_engine::gpu;
use planish_engine::identity::{Identities, StoreChoices};
use planish_engine::model::Model;
use planish_engine::plan::Entry;
use planish_kernels::cpu::{isa::Isa, matmul};
use planish_kernels::op::{Machine, Op};
use planish_kernels::ops;
use planish_kernels::weight::Activations;
use planish_tune::store::{Frozen, Layers, Mode, Pin, Pins, Store};
use planish_tune::{Error, Policy};
use serde::Serialize;

use crate::cmd::Threads;
use crate::device::{Device, Place};
use crate::fetch;
use crate::hint::WithHint;
use crate::home::Home;
use crate::ui::Ui;

/// Positions of the cache where neither `--context` nor the model asks for fewer.
const CONTEXT_DEFAULT: usize = 4096;
/// Tokens of a prefill step where `--chunk` does not say.
const CHUNK_DEFAULT: u32 = 256;

/// Ids of `others` and of all flags of a session, for what can do without both.
pub fn flags_and(others: &[&'static str]) -> Vec<Id> {
    let session = SessionArgs::augment_args(Command::new("session"));
    let flags = session.get_arguments().map(|arg| arg.get_id().clone());
    others.iter().map(|id| Id::from(*id)).chain(flags).collect()
}

/// How a model runs: threads, kernels, arithmetic, cache and configurations.
#[derive(Args)]
pub struct SessionArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    isa: IsaArgs,
    #[command(flatten)]
    numerics: Numerics,
    #[command(flatten)]
    source: SourceArgs,
}

/// Which instruction set the kernels use.
#[derive(Args)]
pub struct IsaArgs {
    /// Instruction set of the kernels; by default the best that this processor has
    #[arg(long, value_name = "ISA", value_parser = PossibleValuesParser::new(Isa::ALL.map(Isa::name)))]
    isa: Option<String>,
}

impl IsaArgs {
    /// The instruction set, for questions about kernels that are not run.
    pub fn named(&self) -> Isa {
        self.isa.as_deref().and_then(Isa::from_name).unwrap_or_else(Isa::detect)
    }

    /// The instruction set, after its kernels have agreed with the portable ones on this machine.
    pub fn checked(&self) -> Result<Isa> {
        let isa = self.named();
        matmul::self_check(isa).map_err(|e| anyhow!("{e}")).hint("run with --isa portable")?;
        Ok(isa)
    }
}

/// Arithmetic and memory of a model.
#[derive(Args)]
struct Numerics {
    /// How activations meet quantised weights: as they are, or rounded to 8 bits in blocks of 32
    #[arg(long, value_name = "CLASS", default_value = "int8", value_parser = activations())]
    activations: Activations,
    /// Type of the key/value cache
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv())]
    kv: KvType,
    /// Tokens that the key/value cache holds; by default the model's own limit, at most 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Most tokens of one prefill step
    #[arg(long, value_name = "N", default_value_t = CHUNK_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    chunk: u32,
    /// Only configurations that sum in the order of the defaults: the same bits on this device, whatever was tuned
    #[arg(long)]
    deterministic: bool,
}

fn activations() -> impl TypedValueParser<Value = Activations> {
    PossibleValuesParser::new(["f32", "int8"]).map(|s| if s == "f32" { Activations::F32 } else { Activations::Int8 })
}

fn kv() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(["f16", "f32"]).map(|s| if s == "f32" { KvType::F32 } else { KvType::F16 })
}

/// What `--lock` takes.
pub const LOCK_HINT: &str = "--lock takes the path of a lock file, or of one that is to be written";

/// Where configurations come from, instead of what tuning stored.
#[derive(Args)]
#[group(multiple = false)]
struct SourceArgs {
    /// Run every op at its default configuration
    #[arg(long)]
    off: bool,
    /// Take configurations from a lock file alone, as `store lock` writes it; one that it lacks is an error
    #[arg(long, value_name = "LOCK")]
    replay: Option<PathBuf>,
    /// The same, but write the file if it is not there: of several processes the first decides for all
    #[arg(long, value_name = "LOCK")]
    lock: Option<PathBuf>,
    /// Run an op with this parameter, or with several as OP=NAME=VALUE,NAME=VALUE, and its others at their defaults;
    /// may be repeated
    #[arg(long, value_name = "OP.NAME=VALUE", value_parser = pin)]
    pin: Vec<Pin>,
}

/// Reads a pin of an op that there is; every flag that pins reads its value here.
pub fn pin(text: &str) -> Result<Pin, String> {
    let pin: Pin = text.parse().map_err(|e: Error| format!("{e}; {}", e.next_step().unwrap_or_default()))?;
    if !gpu::OPS.contains(&pin.op.as_str()) {
        find_op(&pin.op)?;
    }
    Ok(pin)
}

/// The mode in which `all` pins hold for work on `device`, which has its own ops; no pin leaves all to the store.
pub fn pinned(all: &[Pin], device: Device) -> Result<Mode> {
    let of_gpu = |p: &&Pin| gpu::OPS.contains(&p.op.as_str());
    if let Some(Pin { op, .. }) = all.iter().find(|p| of_gpu(p) == (device == Device::Cpu)) {
        let ours = || format!("it runs {}", gpu::OPS.join(" and "));
        let known = if device == Device::Cpu { "--device cuda or host has that one".to_owned() } else { ours() };
        return Err(anyhow!("--pin {op}: --device {device} does not run {op}")).hint(known);
    }
    let pins = Pins::new(all)?;
    Ok(if pins.is_empty() { Mode::Stored } else { Mode::Pin(pins) })
}

/// The op called `name`; the error lists what there is.
pub fn find_op(name: &str) -> Result<&'static Op, String> {
    let names = || ops::OPS.iter().map(|op| op.name).collect::<Vec<_>>().join(", ");
    ops::find(name).ok_or_else(|| format!("there is no op {name}; the ops are {}", names()))
}

impl SourceArgs {
    /// Where configurations come from for work on `device`, which has its own ops.
    fn mode(&self, device: Device) -> Result<Mode> {
        if self.off {
            return Ok(Mode::Off);
        }
        if let Some(lock) = &self.replay {
            let frozen = Frozen::read(lock);
            return Ok(Mode::Replay(
                frozen.or_hint("--replay takes the path of a lock file; without it the store decides")?,
            ));
        }
        if let Some(lock) = self.lock.as_ref().filter(|lock| lock.exists()) {
            return Ok(Mode::Replay(Frozen::read(lock).or_hint(LOCK_HINT)?));
        }
        pinned(&self.pin, device)
    }
}

/// Everything that stays the same while a model is in use.
pub struct Session {
    /// The processor.
    pub cpu: Cpu,
    /// Instruction set of the kernels, self-checked.
    pub isa: Isa,
    /// The model.
    pub model: Model,
    /// Numerics, cache and chunk of its decoders.
    pub options: Options,
    /// What tuning found on this and other machines.
    pub store: Store,
    /// Under which identity this machine and build look configurations up.
    pub identities: Identities,
    /// Where configurations come from.
    pub mode: Mode,
    /// What tunes the kernels of this very session.
    tune_command: String,
    /// Only those that sum in the order of the defaults.
    pub deterministic: bool,
}

impl Session {
    /// Resolves and opens the model called `name`, and everything that runs it.
    pub fn open(name: &str, args: &SessionArgs, ui: Ui) -> Result<Session> {
        args.place.must_be_cpu()?;
        let mode = args.source.mode(Device::Cpu)?;
        let path = resolve(name, ui)?;
        let cpu = args.threads.cpu()?;
        let isa = args.isa.checked()?;
        let model = Model::open(&path, &cpu, cpu.threads() as usize)?;
        let options = options(&args.numerics, model.file.hyper.context);
        let store = open_store(ui);
        let identities = Identities::new(&Machine { backend: &cpu, isa }, &Policy::default());
        let deterministic = args.deterministic();
        let tune_command = args.tune_command(name);
        let mut session = Session { cpu, isa, model, options, store, identities, mode, tune_command, deterministic };
        if let (Mode::Stored, Some(lock)) = (&session.mode, &args.source.lock) {
            let plan = session.plan()?;
            let unknown = session.unknown_in(&plan.decode_plan, &plan.prefill_plan);
            let settled = plan.frozen()?.settle(lock).or_hint(LOCK_HINT)?;
            drop(plan);
            if let Some(unknown) = unknown {
                ui.note(&format!("note: {unknown}; the lock has the defaults for them"));
            }
            session.mode = Mode::Replay(settled);
        }
        Ok(session)
    }

    /// The machine that kernels are launched on.
    pub fn machine(&self) -> Machine<'_> {
        Machine { backend: &self.cpu, isa: self.isa }
    }

    /// A decoder with an empty cache, configured as the store stands now.
    pub fn decoder(&self) -> Result<Decoder<'_>> {
        self.decoder_with(self.options)
    }

    /// The same with other options.
    pub fn decoder_with(&self, options: Options) -> Result<Decoder<'_>> {
        self.decoder_under(&self.mode, options)
    }

    /// What a decoder would run with, before anything is recorded.
    pub fn plan(&self) -> Result<Planned<'_>> {
        self.plan_under(&self.mode, self.options)
    }

    fn plan_under(&self, mode: &Mode, options: Options) -> Result<Planned<'_>> {
        let (snapshot, deterministic) = (self.store.snapshot(), self.deterministic);
        let choices = StoreChoices { snapshot, identities: &self.identities, mode, deterministic };
        Ok(Planned::new(self.machine(), &self.model.file.hyper, &self.model.weights, options, &choices)?)
    }

    /// A decoder whose configurations come from where `mode` says; a pin of an op that has nothing to choose here is
    /// refused.
    pub fn decoder_under(&self, mode: &Mode, options: Options) -> Result<Decoder<'_>> {
        let planned = self.plan_under(mode, options)?;
        let frozen = planned.frozen()?;
        let decoder = planned.record(&frozen)?;
        if let Mode::Pin(pins) = mode
            && let Some(op) = pins.ops().find(|op| tuned_entries(&decoder).all(|e| e.op.name != *op))
        {
            let names: BTreeSet<_> = tuned_entries(&decoder).map(|e| e.op.name).collect();
            let known = names.into_iter().collect::<Vec<_>>().join(", ");
            return Err(anyhow!("--pin {op}: {op} has nothing to choose in this model"))
                .hint(format!("these can be pinned: {known}"));
        }
        Ok(decoder)
    }

    /// What `decoder` runs without a choice of the store for it, where the store was asked; none if that is nothing.
    pub fn unknown(&self, decoder: &Decoder<'_>) -> Option<Unknown> {
        self.unknown_in(&decoder.decode_plan, &decoder.prefill_plan)
    }

    fn unknown_in(&self, decode: &[Entry], prefill: &[Entry]) -> Option<Unknown> {
        let is_unknown = |e: &&Entry| matches!(e.chosen.tier, "default" | "prior");
        let tuned = || decode.iter().chain(prefill).filter(|e| e.tuned);
        let (kernels, of) = (tuned().filter(is_unknown).count(), tuned().count());
        let asked = matches!(self.mode, Mode::Stored | Mode::Pin(_));
        (asked && kernels > 0).then(|| Unknown { kernels, of, tune_with: self.tune_command.clone() })
    }

    /// The command that tunes the kernels of this very session.
    pub fn tune_command(&self) -> &str {
        &self.tune_command
    }

    /// Whether nothing that a decoder runs has been tuned on this machine, and the store is what decides.
    pub fn untuned(&self) -> Result<bool> {
        if self.mode != Mode::Stored {
            return Ok(false);
        }
        let plan = self.plan()?;
        let mut tuned = plan.decode_plan.iter().chain(&plan.prefill_plan).filter(|e| e.tuned);
        Ok(tuned.all(|e| matches!(e.chosen.tier, "default" | "prior")))
    }
}

/// Kernels for which the store has no choice: their defaults run at once, and nothing is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// How many.
    pub kernels: usize,
    /// Of so many that have something to choose.
    pub of: usize,
    /// The command that tunes them.
    pub tune_with: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unknown { kernels, of, tune_with } = self;
        let of = planish_tune::counted(*of, "kernel");
        write!(f, "not tuned for this: {kernels} of {of}, at their defaults; `{tune_with}` tunes them")
    }
}

/// What `decoder` launches and tuning may choose for, in decode and in prefill.
pub fn tuned_entries<'d>(decoder: &'d Decoder<'_>) -> impl Iterator<Item = &'d Entry> {
    decoder.decode_plan.iter().chain(&decoder.prefill_plan).filter(|e| e.tuned)
}

/// How many of the choices come from where: `12 tuned, 3 default`.
pub fn tiers(decoder: &Decoder<'_>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for entry in tuned_entries(decoder) {
        *counts.entry(entry.chosen.tier).or_default() += 1;
    }
    counts
}

/// The counts of `tiers` in words.
pub fn tiers_text(counts: &BTreeMap<&'static str, usize>) -> String {
    let words: Vec<_> = counts.iter().map(|(tier, n)| format!("{n} {tier}")).collect();
    if words.is_empty() { "nothing to choose".into() } else { words.join(", ") }
}

/// `text` as a shell takes it for one word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn options(numerics: &Numerics, model_context: usize) -> Options {
    let context = numerics.context.map_or(model_context.min(CONTEXT_DEFAULT), |n| n as usize);
    Options {
        context,
        chunk: (numerics.chunk as usize).min(context),
        activations: numerics.activations,
        kv: numerics.kv,
        all_logits: false,
    }
}

/// The user's store, its warnings said; without a home, one that lives in memory.
pub fn open_store(ui: Ui) -> Store {
    let user = match Home::from_env() {
        Ok(home) => Some(home.store()),
        Err(error) => {
            ui.note(&format!("warning: {error:#}; results are kept in memory only"));
            None
        }
    };
    let mut store = Store::open(Layers { user, ..Layers::default() });
    for warning in store.take_warnings() {
        ui.note(&format!("warning: {warning}"));
    }
    store
}

/// The file that `model` names: a path, else what `pull` brings for it.
pub fn resolve(model: &str, ui: Ui) -> Result<PathBuf> {
    if let Some(path) = fetch::local(model)? {
        return Ok(path.to_owned());
    }
    let home = Home::from_env().with_context(|| format!("{model} is no file here"))?;
    Ok(fetch::pull(model, &home, ui)?.path)
}

impl SessionArgs {
    /// The processor and the checked instruction set, for work without a model.
    pub fn hardware(&self) -> Result<(Cpu, Isa)> {
        Ok((self.threads.cpu()?, self.isa.checked()?))
    }

    /// Options of a decoder for a model made for `model_context` positions.
    pub fn options(&self, model_context: usize) -> Options {
        options(&self.numerics, model_context)
    }

    /// The command that tunes what these flags run, of the model called `name`.
    pub fn tune_command(&self, name: &str) -> String {
        let n = &self.numerics;
        let flags = [
            ("--device", self.place.device.map(|d| d.to_string())),
            ("--threads", self.threads.threads.map(|n| n.to_string())),
            ("--isa", self.isa.isa.clone()),
            ("--activations", (n.activations != Activations::Int8).then(|| n.activations.name().to_owned())),
            ("--kv", (n.kv != KvType::F16).then(|| n.kv.name().to_owned())),
            ("--context", n.context.map(|n| n.to_string())),
            ("--deterministic", n.deterministic.then(String::new)),
            ("--chunk", (n.chunk != CHUNK_DEFAULT).then(|| n.chunk.to_string())),
        ];
        let given =
            flags.into_iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", value?).trim_end().to_owned()));
        format!("planish tune {}{}", quoted(name), given.collect::<String>())
    }

    /// Whether only configurations that sum in the order of the defaults are used.
    pub fn deterministic(&self) -> bool {
        self.numerics.deterministic
    }

    /// Where the model runs.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What `--pin` says.
    pub fn pins(&self) -> &[Pin] {
        &self.source.pin
    }

    /// The lock that is to be written if it is not there.
    pub fn lock(&self) -> Option<&Path> {
        self.source.lock.as_deref()
    }

    /// Where configurations come from for work on `device`.
    pub fn mode(&self, device: Device) -> Result<Mode> {
        self.source.mode(device)
    }

    /// Numerics and cache of a GPU's decoder for a model made for `model_context` positions; what it has no choice of is
    /// refused.
    pub fn gpu_options(&self, model_context: usize) -> Result<gpu::Options> {
        let options = options(&self.numerics, model_context);
        if options.kv != KvType::F16 {
            return Err(anyhow!("--kv {}: the cache of a GPU is f16", options.kv.name())).hint("leave --kv out");
        }
        if self.isa.isa.is_some() {
            return Err(anyhow!("--isa is of kernels of the CPU")).hint("leave --isa out, or run with --device cpu");
        }
        let (context, activations) = (options.context, options.activations);
        let ahead = self.place.ahead.map_or(gpu::AHEAD, |n| n as usize);
        // The host executor runs a chunk no faster than its tokens.
        let chunk = if self.place.device() == Device::Host { 16 } else { gpu::chunk::TOKENS };
        Ok(gpu::Options { context, activations, route: self.place.path, sampled: false, ahead, chunk })
    }

    /// Threads of the host that repack weights for a GPU.
    pub fn host_threads(&self) -> Result<usize> {
        Ok(self.threads.cpu()?.threads() as usize)
    }

    /// Refuses flags that choose configurations where they are to be found.
    pub fn must_use_store(&self) -> Result<()> {
        if self.source.lock.is_none() && self.source.mode(self.place.device())? == Mode::Stored {
            return Ok(());
        }
        Err(anyhow!("--off, --replay, --lock and --pin choose configurations, and tuning finds them"))
            .hint("leave them out")
    }
}
