//! Any winner leaves the program right: the tuner runs from end to end on times that mean nothing, drawn or turned upside
//! down, and the models then run on whatever won.
//!
//! The worker is this very test executable, told by an environment variable to serve instead of testing.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_device::host::{self, HostOptions};
use planish_device::{Backend, Cpu, CpuOptions, Host};
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options};
use planish_engine::gguf::Gguf;
use planish_engine::gpu::{self, AHEAD, GpuDecoder};
use planish_engine::gpu_step::StepSpec;
use planish_engine::identity::{Identities, StoreChoices};
use planish_engine::model::Origin;
use planish_engine::plan::{Choices, Defaults, Entry};
use planish_engine::tuning::{self, Ceilings, Done, Fate, Setting, Step, Watch, Work, serve_worker, worklist};
use planish_engine::verify::{self, ExpectedFile};
use planish_engine::weights::Weights;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::peak::Peak;
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;
use planish_tune::store::{Layers, Mode, Store};
use planish_tune::{Config, Event, Policy, Timings, Value, VirtualClock};

const SERVE: &str = "PLANISH_TEST_SERVE_ENGINE";

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU")
}

fn host() -> Option<Host> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    Host::new(HostOptions { cache, mode: host::Mode::Checked }).ok()
}

/// Not a test of its own: the worker's entry.
#[test]
fn worker_entry() {
    if std::env::var(SERVE).is_err() {
        return;
    }
    let mut open = |name: &str| -> Result<Machine<'static>, String> {
        let (backend, isa): (Box<dyn Backend>, Isa) = match name {
            "cpu" => (Box::new(cpu()), Isa::detect()),
            _ => (Box::new(host().ok_or("no C++ compiler")?), Isa::Portable),
        };
        Ok(Machine { backend: Box::leak(backend), isa })
    };
    serve_worker(&mut open).expect("the tuner listens");
}

fn worker() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["worker_entry", "--exact", "--nocapture"]).env(SERVE, "1").env("RUST_BACKTRACE", "0");
    command
}

/// Keeps what went wrong.
#[derive(Default)]
struct Quiet(Vec<String>);

impl Watch for Quiet {
    fn begins(&mut self, _: usize, _: usize, _: &Work, _: Duration) {}
    fn event(&mut self, _: &Event) {}
    fn ends(&mut self, done: &Done) {
        if let Fate::Failed(why) = &done.fate {
            self.0.push(format!("{} {}: {why}", done.work.op.name, done.work.shape));
        }
    }
    fn warning(&mut self, warning: &str) {
        self.0.push(warning.to_owned());
    }
}

/// Few candidates of each op, and no clock: how much is tried does not depend on this machine.
fn policy(timings: Timings) -> Policy {
    Policy { timings, looks: vec![8], finalists: 1, search_rounds: 2, exhaust: 0, stale: 1, ..Policy::default() }
}

/// Tunes `works` by `timings`; the store that holds what was found.
fn tune(works: &[Work], machine: Machine<'_>, identities: &Identities, timings: Timings) -> Store {
    let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
    let setting = Setting {
        machine,
        device: machine.backend.limits().backend.clone(),
        identities,
        worker: &worker,
        quarantine: None,
        budget: Duration::from_secs(3600),
        clock: &clock,
        policy: policy(timings),
        ceilings: None,
        rotate_bytes: 0,
        cold: None,
        force: false,
        cancel: &cancel,
    };
    let (mut store, mut quiet) = (Store::open(Layers::default()), Quiet::default());
    tuning::run(works, &setting, &mut store, &mut quiet).expect("a run");
    let trouble: Vec<String> = quiet.0.into_iter().filter(|w| !w.contains("memory")).collect();
    assert!(trouble.is_empty(), "{timings:?}: {}", trouble.join("\n"));
    store
}

/// A golden model on the processor.
struct Loaded {
    name: &'static str,
    cpu: Cpu,
    hyper: Hyper,
    weights: Weights,
}

fn load(name: &'static str) -> Loaded {
    let cpu = cpu();
    let gguf = Arc::new(Gguf::open(&common::golden_dir().join(format!("tiny/{name}.gguf"))).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, &cpu, 1).expect("weights");
    Loaded { name, cpu, hyper, weights }
}

const CHUNK: usize = 16;

/// Name in the expected files, activations, type of the cache.
type Class = (&'static str, Activations, KvType);
const INT8: Class = ("int8_kv16", Activations::Int8, KvType::F16);
const F32: Class = ("f32", Activations::F32, KvType::F32);

impl Loaded {
    fn machine(&self) -> Machine<'_> {
        Machine { backend: &self.cpu, isa: Isa::detect() }
    }

    fn expected(&self) -> ExpectedFile {
        let path = common::golden_dir().join(format!("tiny_expected/{}.json", self.name));
        serde_json::from_str(&std::fs::read_to_string(&path).expect("readable")).expect("an expected file")
    }

    fn decoder(&self, class: Class, chunk: usize, choices: &dyn Choices) -> Decoder<'_> {
        let longest = |f: &ExpectedFile| f.prompts.iter().map(|p| p.ids.len() + p.greedy_ids.len()).max().unwrap_or(1);
        let context = longest(&self.expected());
        let options = Options { context, chunk, activations: class.1, kv: class.2, all_logits: true };
        Decoder::new(self.machine(), &self.hyper, &self.weights, options, choices).expect("a decoder")
    }

    /// What fails against f64, by prefill and step by step.
    fn judge(&self, class: Class, decoder: &mut Decoder<'_>) -> Vec<String> {
        let mut failures = Vec::new();
        for prompt in &self.expected().prompts {
            for path in [verify::Path::Prefill, verify::Path::Steps] {
                let dump = verify::run(decoder, prompt, path).expect("a run");
                let v = verify::judge(prompt, &dump, class.0, path).expect("a verdict");
                failures.extend(v.reasons.iter().map(|r| format!("{} {} {}: {r}", self.name, v.prompt, v.path)));
            }
        }
        failures
    }

    /// Bits of the logits after each of some tokens, fed in runs of `run`.
    fn bits(&self, decoder: &mut Decoder<'_>, run: usize) -> Vec<u32> {
        let vocab = self.hyper.vocab;
        let ids: Vec<u32> = (0..60).map(|i: usize| ((i * 7919 + i * i * 31) % vocab) as u32).collect();
        let n = ids.len().min(decoder.options().context);
        decoder.truncate(0);
        let all = ids[..n].chunks(run).flat_map(|part| decoder.feed_all(part).expect("a step"));
        all.flatten().map(f32::to_bits).collect()
    }
}

/// Which configurations a plan has, and how many of them are not the default.
fn configs(entries: &[Entry], machine: Machine<'_>) -> (Vec<String>, usize) {
    let tuned = || entries.iter().filter(|e| e.tuned);
    let changed = tuned().filter(|e| e.chosen.config != (e.op.space)(&e.shape, &machine).default);
    (tuned().map(|e| format!("{} {} {}", e.op.name, e.shape, e.chosen.config)).collect(), changed.count())
}

/// How much of a model is tuned, and in what.
#[derive(Clone, Copy)]
struct How {
    kernels_most: usize,
    deterministic: bool,
}

/// The heaviest of either path.
const SOME: How = How { kernels_most: 4, deterministic: false };

/// Tunes a golden model by each of `timings` and runs it on what won: within the bounds of f64, with the same bits in
/// chunks and step by step, and with those of the defaults.
#[track_caller]
fn check(name: &'static str, class: Class, timings: &[Timings], how: How) {
    let How { kernels_most, deterministic } = how;
    let loaded = load(name);
    let wanted = {
        let mut default = loaded.decoder(class, CHUNK, &Defaults);
        loaded.bits(&mut default, CHUNK)
    };
    let (mut seen, mut changes) = (BTreeSet::new(), 0);
    for timings in timings {
        let identities = Identities::new(&loaded.machine(), &policy(*timings));
        let default = loaded.decoder(class, CHUNK, &Defaults);
        let peak = Peak { f32_gflop_s: 100.0, int8_gop_s: 200.0, threads: 2 };
        let mut works = worklist(&[&default.decode_plan, &default.prefill_plan], Ceilings { read_gb_s: 15.0, peak });
        works.truncate(kernels_most);
        works.iter_mut().for_each(|w| w.deterministic = deterministic);
        let store = tune(&works, loaded.machine(), &identities, *timings);
        let (snapshot, mode) = (store.snapshot(), &Mode::Stored);
        let choices = StoreChoices { snapshot, identities: &identities, mode, deterministic };
        let mut tuned = loaded.decoder(class, CHUNK, &choices);
        let all = [&tuned.decode_plan[..], &tuned.prefill_plan].concat();
        let (configs, changed) = configs(&all, loaded.machine());
        let what = format!("{name} {timings:?} on\n{}", configs.join("\n"));
        changes += changed;
        seen.insert(configs);
        // What was chosen is what is launched.
        for work in &works {
            let chosen = tuning::known(work, loaded.machine(), &identities, &store).expect("stored").config;
            let launched = all.iter().find(|e| e.op.name == work.op.name && e.shape == work.shape);
            assert_eq!(launched.map(|e| &e.chosen.config), Some(&chosen), "{} {}", work.op.name, work.shape);
        }
        let failures = loaded.judge(class, &mut tuned);
        assert!(failures.is_empty(), "{}\n{what}", failures.join("\n"));
        assert!(loaded.bits(&mut tuned, CHUNK) == wanted, "other bits than the defaults: {what}");
        assert!(loaded.bits(&mut tuned, 1) == wanted, "steps have other bits than chunks: {what}");
    }
    assert!(changes >= timings.len(), "{changes} choices changed in {} runs", timings.len());
    assert!(timings.len() < 2 || seen.len() > 1, "all times chose alike: {seen:?}");
}

#[test]
fn whatever_wins_by_scrambled_times_leaves_models_right() {
    check("llama-q4_1", INT8, &[Timings::Random(1), Timings::Inverted], SOME);
    check("llama-f16", F32, &[Timings::Random(2), Timings::Inverted], SOME);
    check("gemma3-q4_k_m", INT8, &[Timings::Random(3)], SOME);
}

/// Twenty runs, each tuned by other times and in other configurations: one and the same logits, to the bit.
#[test]
fn deterministic_tuning_gives_the_same_bits_over_twenty_runs() {
    let timings: Vec<Timings> = (0..20).map(|seed| Timings::Random(100 + seed)).collect();
    check("llama-q4_0", INT8, &timings, How { kernels_most: 2, deterministic: true });
}

/// The whole step on the host executor, from a few configurations that a restricted space leaves.
#[test]
fn whatever_wins_by_scrambled_times_leaves_the_step_of_a_gpu_right() {
    check_part(None, &[("PATH", &["launches", "token"]), ("SPLITS", &["1", "4"])]);
}

/// The same for chunks of a prompt.
#[test]
fn whatever_wins_by_scrambled_times_leaves_the_prompts_of_a_gpu_right() {
    check_part(Some(16), &[("ATTEND", &["tiles", "plain"]), ("THREADS", &["128", "256"])]);
}

/// Tunes a part of a tiny model, the values of its space cut down to `kept` and else to the default.
#[track_caller]
fn check_part(chunk: Option<usize>, kept: &[(&str, &[&str])]) {
    let Some(host) = host() else { return };
    let machine = Machine { backend: &host, isa: Isa::Portable };
    let path = common::golden_dir().join("tiny/llama-q4_0.gguf");
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = gpu::Weights::load(&gguf, &hyper, &host, 1).expect("weights");
    let (context, activations) = (32, Activations::Int8);
    let chunks = chunk.unwrap_or(0);
    let options = gpu::Options { context, activations, route: None, sampled: false, ahead: AHEAD, chunk: chunks };
    let gpu::Part { op, shape, mut space } = gpu::parts(machine, &hyper, &weights, &options).pop().expect("a part");
    for p in &mut space.params {
        let keep = kept.iter().find(|(name, _)| *name == p.name).map(|(_, values)| *values);
        let is_default = |v: &Value| space.default.get(p.name) == Some(v);
        p.values.retain(|v| keep.map_or(is_default(v), |keep| keep.contains(&v.to_string().as_str())));
    }
    let (depth, tokens) = chunk.map_or((2, 2), |chunk| (0, chunk));
    let spec = StepSpec {
        device: "host".to_owned(),
        model: Origin::File(path),
        context,
        activations,
        chunk,
        depth,
        tokens,
        read_gb_s: None,
        threads: 1,
        arch: None,
        deterministic: false,
    };
    let logits = |config: &Config| {
        let choices = common::pinned(op.name, config.clone());
        let mut decoder = GpuDecoder::new(machine, &hyper, &weights, options, &choices).expect("a decoder");
        let prompt = decoder.feed(&[5, 17, 42, 99, 3, 8, 21]).expect("logits").to_vec();
        [prompt, decoder.feed_all(&[5, 17, 42]).expect("logits").concat()].concat()
    };
    let wanted = logits(&space.default);
    let spread = wanted.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
    let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let mut choices = BTreeSet::new();
    for (timings, deterministic) in
        [(Timings::Random(1), false), (Timings::Random(2), true), (Timings::Random(3), true)]
    {
        let spec = StepSpec { deterministic, ..spec.clone() };
        let step = Arc::new(Step { space: space.clone(), floor: None, spec, ahead: None });
        let works = [Work { op, shape: shape.clone(), share: 1.0, uses: 1, step: Some(step), deterministic }];
        let identities = Identities::new(&machine, &policy(timings));
        let store = tune(&works, machine, &identities, timings);
        let found = tuning::known(&works[0], machine, &identities, &store).expect("stored");
        let got = logits(&found.config);
        let error = got.iter().zip(&wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        assert!(error <= 0.05 * spread, "{timings:?} {}: {error} of {spread}", found.config);
        if deterministic {
            assert_eq!(op.class(&found.config), op.class(&space.default));
            assert!(bits(&got) == bits(&wanted), "{timings:?} {}: other bits", found.config);
        }
        choices.insert(found.config);
    }
    assert!(choices.iter().any(|c| *c != space.default), "{choices:?}");
}
