//! A case in every arithmetic, on every path and in every covering configuration; what fails is traced to op and layer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;
use planish_tune::Config;
use serde::Serialize;

use super::Case;
use super::cover::{Way, cover, ways};
use super::layers::{Left, Scene, first_left_on_gpu};
use crate::arch::Hyper;
use crate::decoder::{Decoder, KvType, Options};
use crate::error::{Error, Result};
use crate::gpu::{self, GpuDecoder, Route};
use crate::model::Model;
use crate::plan::Chosen;
use crate::verify::{self, ExpectedFile, Path, Prompt, Verdict};

/// Caches of GPUs are multiples of this, so that models of one shape share compiled kernels.
const CONTEXT_STEP: usize = 256;

/// An arithmetic: how activations meet weights, and what the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name in expected files.
    pub mode: &'static str,
    /// Activations.
    pub activations: Activations,
    /// Cache.
    pub kv: KvType,
}

impl Class {
    /// Every class, the most exact first.
    pub const ALL: [Class; 3] = [
        Class { mode: "f32", activations: Activations::F32, kv: KvType::F32 },
        Class { mode: "f32_kv16", activations: Activations::F32, kv: KvType::F16 },
        Class { mode: "int8_kv16", activations: Activations::Int8, kv: KvType::F16 },
    ];

    /// Whether the expected file says how far this class may be off.
    fn known(&self, prompts: &[Prompt]) -> bool {
        prompts.iter().all(|p| p.deviation.contains_key(self.mode))
    }

    /// Options of a decoder of this class.
    pub fn options(&self, context: usize, chunk: usize, all_logits: bool) -> Options {
        Options { context, chunk, activations: self.activations, kv: self.kv, all_logits }
    }
}

/// How much of a case is run.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// The arithmetics.
    pub classes: &'a [Class],
    /// Whether configurations other than the default are run.
    pub every_way: bool,
    /// Longest prompt that is also fed one token at a time.
    pub stepped: usize,
    /// Longest prompt of all.
    pub longest: usize,
    /// When to stop.
    pub deadline: Option<Instant>,
    /// Set to stop after at most one prompt more.
    pub cancel: &'a AtomicBool,
}

impl Effort<'_> {
    /// Whether the user wants to stop, or time is up and there is something to show.
    fn over(&self, ran: &Ran) -> bool {
        let late = self.deadline.is_some_and(|end| Instant::now() >= end);
        self.cancel.load(Ordering::Relaxed) || (late && ran.judged > 0)
    }
}

/// A run that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The case.
    pub case: String,
    /// The arithmetic.
    pub mode: &'static str,
    /// The configuration: 0 is the default.
    pub way: usize,
    /// What was found.
    pub verdict: Verdict,
    /// Ops that fail by themselves in that configuration, with it.
    pub ops: Vec<String>,
    /// The first layer that is off, where the expected file has checkpoints.
    pub left: Option<Left>,
}

/// What a case came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ran {
    /// Prompts judged, over all arithmetics, paths and configurations.
    pub judged: usize,
    /// Configurations, the default among them.
    pub ways: usize,
    /// Largest error over its limit.
    pub worst: f64,
    /// What failed.
    pub failures: Vec<Failure>,
    /// Whether it ended early.
    pub partial: bool,
}

/// The expected file of `case`, parsed.
pub fn expected(case: &Case) -> Result<ExpectedFile> {
    serde_json::from_str(case.expected).map_err(|e| Error::file(format!("expected values of {}: {e}", case.name)))
}

/// Tokens of a prefill step: no prompt is a multiple of it, so that the last step is short.
fn chunk(prompts: &[Prompt]) -> usize {
    let whole = |c: &usize| prompts.iter().all(|p| p.ids.len() % c != 0 && p.ids.len() != *c);
    [96, 40, 24, 17].into_iter().find(whole).unwrap_or(13)
}

/// Prompts of `file` within the effort, and the context that they need.
pub fn prompts(file: &ExpectedFile, effort: &Effort<'_>) -> (Vec<Prompt>, usize) {
    let prompts: Vec<Prompt> = file.prompts.iter().filter(|p| p.ids.len() <= effort.longest).cloned().collect();
    let context = prompts.iter().map(|p| p.ids.len() + p.greedy_ids.len()).max().unwrap_or(1);
    (prompts, context)
}

/// How a prompt is fed within the effort.
pub fn feeds(prompt: &Prompt, effort: &Effort<'_>) -> Vec<Path> {
    if prompt.ids.len() <= effort.stepped { vec![Path::Prefill, Path::Steps] } else { vec![Path::Prefill] }
}

/// Runs `case`, whose model is open, on the CPU.
pub fn on_cpu(case: &Case, machine: Machine<'_>, model: &Model, effort: &Effort<'_>) -> Result<Ran> {
    let file = expected(case)?;
    let (prompts, context) = prompts(&file, effort);
    let mut ran = Ran::default();
    let chunk = chunk(&prompts).min(context);
    let all_logits = prompts.iter().any(|p| p.probe_logits_all.is_some());
    for class in effort.classes.iter().filter(|c| c.known(&prompts)) {
        let options = class.options(context, chunk, all_logits);
        let decoder = |way: Way<'_>| Decoder::new(machine, &model.file.hyper, &model.weights, options, &way);
        let default = decoder(Way { number: 0, only: None })?;
        let plans = [&default.decode_plan[..], &default.prefill_plan[..]];
        let count = if effort.every_way { ways(plans, |e| (e.op.space)(&e.shape, &machine)) } else { 1 };
        ran.ways = ran.ways.max(count);
        for number in 0..count {
            let way = Way { number, only: None };
            let mut decoder = decoder(way)?;
            for (prompt, feed) in prompts.iter().flat_map(|p| feeds(p, effort).into_iter().map(move |f| (p, f))) {
                if effort.over(&ran) {
                    ran.partial = true;
                    return Ok(ran);
                }
                let dump = verify::run(&mut decoder, prompt, feed)?;
                let verdict = verify::judge(prompt, &dump, class.mode, feed)?;
                ran.take(&verdict);
                if !verdict.reasons.is_empty() {
                    let scene = Scene { machine, model, prompt, feed, chunk };
                    let trace = Trace { case, class, way, options, verdict };
                    ran.failures.push(trace.failure(&scene)?);
                }
            }
        }
    }
    Ok(ran)
}

/// A model on a GPU, and on the processor beside it, which shows whether a fault is one of weights.
pub struct OnGpu<'a> {
    /// The GPU.
    pub machine: Machine<'a>,
    /// The model there.
    pub weights: &'a gpu::Weights,
    /// The processor.
    pub cpu: Machine<'a>,
    /// The model there.
    pub model: &'a Model,
    /// Tokens of a prompt that go through the model together.
    pub chunk: usize,
}

impl OnGpu<'_> {
    fn options(&self, class: &Class, context: usize, route: Option<Route>) -> gpu::Options {
        let (activations, chunk) = (class.activations, self.chunk);
        gpu::Options { context, activations, route, sampled: false, ahead: gpu::AHEAD, chunk }
    }

    /// The paths at the default configuration, then configurations that have every value of every parameter.
    fn ways(&self, options: &gpu::Options, every: bool) -> Vec<(Option<Route>, Config)> {
        let (_, space) = gpu::decoder::space(self.machine, &self.model.file.hyper, self.weights, options);
        let path = |r: &Route| space.default.clone().with("PATH", r.name());
        let routes = Route::ALL.into_iter().filter(|r| space.violated(&path(r)).is_none());
        let routes = routes.map(|r| (Some(r), path(&r))).collect::<Vec<_>>();
        let more = if every { cover(&space) } else { Vec::new() };
        routes.into_iter().chain(more.into_iter().map(|c| (None, c))).collect()
    }

    fn decoder<'d>(
        &self,
        (hyper, weights): (&'d Hyper, &gpu::Weights),
        options: gpu::Options,
        config: &Config,
    ) -> Result<GpuDecoder<'d>>
    where
        Self: 'd,
    {
        let chosen = Chosen { config: config.clone(), tier: "pinned" };
        GpuDecoder::new(self.machine, hyper, weights, options, &|_, _| Ok(Some(chosen.clone())))
    }

    /// Runs `case` on the GPU.
    pub fn run(&self, case: &Case, effort: &Effort<'_>) -> Result<Ran> {
        let file = expected(case)?;
        let (prompts, context) = prompts(&file, effort);
        let hyper = &self.model.file.hyper;
        let context = context.next_multiple_of(CONTEXT_STEP).min(hyper.context);
        let mut ran = Ran::default();
        // The cache of a GPU is f16.
        for class in effort.classes.iter().filter(|c| c.kv == KvType::F16 && c.known(&prompts)) {
            let ways = self.ways(&self.options(class, context, None), effort.every_way);
            ran.ways = ran.ways.max(ways.len());
            for (number, (route, config)) in ways.iter().enumerate() {
                let options = self.options(class, context, *route);
                let mut decoder = self.decoder((hyper, self.weights), options, config)?;
                let fed = prompts.iter().flat_map(|p| feeds(p, effort).into_iter().map(move |f| (p, f)));
                // A prompt goes through kernels of its own, which are the same in every way.
                for (prompt, feed) in fed.filter(|(_, feed)| number == 0 || *feed == Path::Steps) {
                    if effort.over(&ran) {
                        ran.partial = true;
                        return Ok(ran);
                    }
                    let dump = verify::run(&mut decoder, prompt, feed)?;
                    let verdict = verify::judge(prompt, &dump, class.mode, feed)?;
                    ran.take(&verdict);
                    if verdict.reasons.is_empty() {
                        continue;
                    }
                    let chunk = prompt.ids.len();
                    let scene = Scene { machine: self.cpu, model: self.model, prompt, feed, chunk };
                    let cut = |layers| self.cut(layers, (prompt, feed), options, config);
                    let left = Some(first_left_on_gpu(&scene, class, &cut)?);
                    let (case, mode, ops) = (case.name.to_owned(), class.mode, vec![format!("{}: {config}", gpu::OP)]);
                    ran.failures.push(Failure { case, mode, way: number, verdict, ops, left });
                }
            }
        }
        Ok(ran)
    }

    /// Logits after a prompt of the model cut after `layers` layers.
    fn cut(
        &self,
        layers: usize,
        (prompt, feed): (&Prompt, Path),
        options: gpu::Options,
        config: &Config,
    ) -> Result<Vec<f32>> {
        let mut hyper = self.model.file.hyper.clone();
        hyper.layers = layers;
        let weights = self.weights.first(layers);
        let mut decoder = self.decoder((&hyper, &weights), options, config)?;
        let ids = &prompt.ids;
        match feed {
            Path::Prefill => Ok(decoder.feed(ids)?.to_vec()),
            Path::Steps => {
                let (last, before) = ids.split_last().ok_or_else(|| Error::request("a prompt without tokens"))?;
                before.iter().try_for_each(|id| decoder.feed(&[*id]).map(drop))?;
                Ok(decoder.feed(&[*last])?.to_vec())
            }
        }
    }
}

impl Ran {
    /// Counts a verdict.
    pub fn take(&mut self, verdict: &Verdict) {
        self.judged += 1;
        self.worst = self.worst.max(verdict.measures.rms / verdict.limits.rms);
    }
}

/// A failure before it is understood.
struct Trace<'a> {
    case: &'a Case,
    class: &'a Class,
    way: Way<'a>,
    options: Options,
    verdict: Verdict,
}

impl Trace<'_> {
    fn failure(self, scene: &Scene<'_>) -> Result<Failure> {
        let left = if scene.prompt.layers.is_empty() { None } else { Some(scene.first_left(self.class, self.way)?) };
        let ops = if self.way.number == 0 { Vec::new() } else { self.ops(scene)? };
        let (case, mode, way) = (self.case.name.to_owned(), self.class.mode, self.way.number);
        Ok(Failure { case, mode, way, verdict: self.verdict, ops, left })
    }

    /// The ops that fail where they alone leave their defaults.
    fn ops(&self, scene: &Scene<'_>) -> Result<Vec<String>> {
        let (hyper, weights) = (&scene.model.file.hyper, &scene.model.weights);
        let decoder = |way: Way<'_>| Decoder::new(scene.machine, hyper, weights, self.options, &way);
        let whole = decoder(self.way)?;
        let entries: Vec<_> = whole.decode_plan.iter().chain(&whole.prefill_plan).filter(|e| e.tuned).collect();
        let mut names: Vec<&str> = entries.iter().map(|e| e.op.name).collect();
        names.sort_unstable();
        names.dedup();
        let mut found = Vec::new();
        for name in names {
            let mut alone = decoder(Way { only: Some(name), ..self.way })?;
            let dump = verify::run(&mut alone, scene.prompt, scene.feed)?;
            if !verify::judge(scene.prompt, &dump, self.class.mode, scene.feed)?.reasons.is_empty() {
                let mine = entries.iter().filter(|e| e.op.name == name);
                let configs: Vec<String> = mine.map(|e| format!("{} with {}", e.shape, e.chosen.config)).collect();
                found.push(format!("{name}: {}", configs.join("; ")));
            }
        }
        Ok(found)
    }
}
