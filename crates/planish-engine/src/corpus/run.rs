//! A case in every arithmetic, on every path and in every covering configuration; what fails is traced to op and layer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;
use planish_tune::Config;
use serde::Serialize;

use super::Case;
use super::cover::{News, Seen, Way, cover, ways};
use super::layers::{Left, Scene, first_left_on_gpu};
use crate::arch::Hyper;
use crate::decoder::{Decoder, KvType, Options, Planned};
use crate::error::{Error, Result};
use crate::generate::Flow;
use crate::gpu::{self, GpuDecoder, Route};
use crate::model::Model;
use crate::plan::{Chosen, Entry};
use crate::verify::{self, Dump, ExpectedFile, Feed, Path, Prompt, Verdict};

/// Caches of GPUs are multiples of this, so that models of one shape share compiled kernels.
const CONTEXT_STEP: usize = 256;
/// Tokens of a prompt that go through the model together in the time of one that goes alone, about.
const ALONE: usize = 4;

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
    /// Told how much of the case is done, from 0 to 1, by the tokens to be fed.
    pub told: &'a dyn Fn(f64),
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
    /// Configurations that were run, over all arithmetics, the defaults among them.
    pub ways: usize,
    /// Programs, by op, shape and configuration, that were run for the first time.
    pub programs: usize,
    /// Prompts, other than those of the defaults, whose logits have the bits of the default's.
    pub same: usize,
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

/// A configuration of a case in one arithmetic, and what is fed to it.
struct Turn<'c> {
    class: &'c Class,
    number: usize,
    news: News,
    /// Prompts by number, and how each is fed.
    fed: Vec<(usize, Path)>,
}

impl<'c> Turn<'c> {
    /// Feeds what shows a fault in what is new: prompts as prefill to a prefill step, token by token to a step of decode.
    ///
    /// The cache behind a prompt that is too long for that is what the steps read that continue it.
    fn new(class: &'c Class, (number, news): (usize, News), prompts: &[Prompt], effort: &Effort<'_>) -> Turn<'c> {
        let fed = prompts.iter().enumerate().flat_map(|(i, p)| {
            let (short, continued) = (p.ids.len() <= effort.stepped, !p.greedy_ids.is_empty());
            let prefill = news.prefill || (news.keys && !short && continued);
            let ways = [(Path::Prefill, prefill), (Path::Steps, news.decode && short)];
            ways.into_iter().filter(|(_, fed)| *fed).map(move |(path, _)| (i, path))
        });
        Turn { class, number, news, fed: fed.collect() }
    }

    /// Whether a prompt that gave `same` bits as in the default is continued.
    ///
    /// The default continues each. Steps that gave its bits would go on to give them, but for those that read a cache of
    /// another length; and a prompt that is fed in both ways is continued behind the first.
    fn continues(&self, i: usize, path: Path, same: bool) -> bool {
        let first = path == Path::Prefill || !self.fed.contains(&(i, Path::Prefill));
        self.number == 0 || (first && (!same || self.news.keys))
    }

    /// Tokens to be fed, weighed by their time.
    fn weight(&self, prompts: &[Prompt]) -> usize {
        let one = |(i, path): &(usize, Path)| {
            let (fed, continued) = (prompts[*i].ids.len(), prompts[*i].greedy_ids.len());
            let fed = if *path == Path::Prefill { fed } else { ALONE * fed };
            fed + if self.continues(*i, *path, true) { ALONE * continued } else { 0 }
        };
        self.fed.iter().map(one).sum()
    }
}

/// What a failed prompt is traced with.
type Failed<'f> = dyn Fn(&Prompt, Path, Verdict) -> Result<Failure> + 'f;

/// The turns of a case as they are taken.
struct Walk<'w> {
    prompts: &'w [Prompt],
    effort: &'w Effort<'w>,
    ran: Ran,
    /// What the default of the arithmetic gave.
    default: Vec<(usize, Path, Dump)>,
    /// Weight of what is done, and of all turns.
    done: usize,
    all: usize,
}

impl<'w> Walk<'w> {
    fn new(prompts: &'w [Prompt], effort: &'w Effort<'w>, turns: &[Turn<'_>]) -> Self {
        let all = turns.iter().map(|t| t.weight(prompts)).sum();
        Walk { prompts, effort, ran: Ran::default(), default: Vec::new(), done: 0, all }
    }

    /// Feeds and judges what `turn` says; stops where the effort is over.
    fn take(&mut self, turn: &Turn<'_>, decoder: &mut dyn Feed, failed: &Failed<'_>) -> Result<Flow> {
        self.ran.ways += 1;
        if turn.number == 0 {
            self.default.clear();
        }
        for (i, path) in &turn.fed {
            if self.effort.over(&self.ran) {
                self.ran.partial = true;
                return Ok(Flow::Stop);
            }
            let prompt = &self.prompts[*i];
            let mut dump = verify::feed(decoder, prompt, *path)?;
            let beside = self.default.iter().find(|(n, p, _)| (n, p) == (i, path));
            let same = beside.is_some_and(|(.., default)| default.apart(&dump).0 == 0);
            if turn.continues(*i, *path, same) {
                verify::go_on(decoder, prompt, &mut dump)?;
            }
            let verdict = verify::judge(prompt, &dump, turn.class.mode, *path)?;
            self.ran.take(&verdict, same);
            if !verdict.reasons.is_empty() {
                self.ran.failures.push(failed(prompt, *path, verdict)?);
            }
            if turn.number == 0 {
                self.default.push((*i, *path, dump));
            }
        }
        self.done += turn.weight(self.prompts);
        (self.effort.told)(self.done as f64 / self.all.max(1) as f64);
        Ok(Flow::Continue)
    }
}

/// Runs `case`, whose model is open, on the CPU; a program that is among `seen` is not run again.
pub fn on_cpu(
    case: &Case,
    machine: Machine<'_>,
    model: &Model,
    effort: &Effort<'_>,
    seen: &mut Seen,
) -> Result<Ran> {
    let file = expected(case)?;
    let (prompts, context) = prompts(&file, effort);
    let chunk = chunk(&prompts).min(context);
    let all_logits = prompts.iter().any(|p| p.probe_logits_all.is_some());
    let (hyper, weights, before) = (&model.file.hyper, &model.weights, seen.count());
    let options = |class: &Class| class.options(context, chunk, all_logits);
    let mut turns = Vec::new();
    for class in effort.classes.iter().filter(|c| c.known(&prompts)) {
        let plan = Planned::new(machine, hyper, weights, options(class), &Way { number: 0, only: None })?;
        let plans = [&plan.decode_plan[..], &plan.prefill_plan[..]];
        let found = if effort.every_way {
            ways(plans, &|e: &Entry| (e.op.space)(&e.shape, &machine), seen)
        } else {
            vec![(0, News::ALL)]
        };
        turns.extend(found.into_iter().map(|way| Turn::new(class, way, &prompts, effort)));
    }
    let mut walk = Walk::new(&prompts, effort, &turns);
    walk.ran.programs = seen.count() - before;
    for turn in &turns {
        let (class, way, options) = (turn.class, Way { number: turn.number, only: None }, options(turn.class));
        let failed = |prompt: &Prompt, feed: Path, verdict: Verdict| {
            let scene = Scene { machine, model, prompt, feed, chunk };
            Trace { case, class, way, options, verdict }.failure(&scene)
        };
        let mut decoder = Decoder::new(machine, hyper, weights, options, &way)?;
        if walk.take(turn, &mut decoder, &failed)? == Flow::Stop {
            break;
        }
    }
    Ok(walk.ran)
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
        let (mut turns, mut ways) = (Vec::new(), Vec::new());
        // The cache of a GPU is f16.
        for class in effort.classes.iter().filter(|c| c.kv == KvType::F16 && c.known(&prompts)) {
            for (number, way) in self.ways(&self.options(class, context, None), effort.every_way).into_iter().enumerate()
            {
                // A prompt goes through kernels of its own, which are the same in every way.
                let news = News { prefill: number == 0, ..News::ALL };
                turns.push(Turn::new(class, (number, news), &prompts, effort));
                ways.push(way);
            }
        }
        let mut walk = Walk::new(&prompts, effort, &turns);
        for (turn, (route, config)) in turns.iter().zip(&ways) {
            let (class, options) = (turn.class, self.options(turn.class, context, *route));
            let failed = |prompt: &Prompt, feed: Path, verdict: Verdict| {
                let scene = Scene { machine: self.cpu, model: self.model, prompt, feed, chunk: prompt.ids.len() };
                let cut = |layers| self.cut(layers, (prompt, feed), options, config);
                let left = Some(first_left_on_gpu(&scene, class, &cut)?);
                let (case, mode, ops) = (case.name.to_owned(), class.mode, vec![format!("{}: {config}", gpu::OP)]);
                Ok(Failure { case, mode, way: turn.number, verdict, ops, left })
            };
            let mut decoder = self.decoder((hyper, self.weights), options, config)?;
            walk.ran.programs += 1;
            if walk.take(turn, &mut decoder, &failed)? == Flow::Stop {
                break;
            }
        }
        Ok(walk.ran)
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
    /// Counts a verdict, and whether its logits have the default's bits.
    fn take(&mut self, verdict: &Verdict, same: bool) {
        self.judged += 1;
        self.same += usize::from(same);
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
