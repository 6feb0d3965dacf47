//! A case in every arithmetic, on every path and in every covering configuration; what fails is traced to op and layer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use planish_kernels::op::{Machine, Op, Shape};
use planish_kernels::weight::Activations;
use planish_tune::{Config, Space};
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
    /// Set to stop after a prompt or two.
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
    /// Of the configurations, those that gave a sample the bits of the default, and were judged by those.
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

/// A prompt, or its head, and how it is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fed {
    prompt: usize,
    tokens: usize,
    path: Path,
    /// Whether the greedy continuation is followed.
    on: bool,
}

impl Fed {
    /// Whether the same is fed in the same way, continued or not.
    fn is(&self, other: &Fed) -> bool {
        (self.prompt, self.tokens, self.path) == (other.prompt, other.tokens, other.path)
    }

    /// Tokens, weighed by their time.
    fn weight(&self, prompts: &[Prompt]) -> usize {
        let alone = if self.path == Path::Steps { self.tokens } else { 0 };
        let continued = if self.on { prompts[self.prompt].greedy_ids.len() } else { 0 };
        self.tokens + (ALONE - 1) * alone + ALONE * continued
    }
}

/// What was fed gave: logits, and those behind the continuation.
struct Given {
    fed: Fed,
    dump: Dump,
    end: Vec<f32>,
}

impl Given {
    /// Whether both have the same bits.
    fn same(&self, other: &Given) -> bool {
        let bits = |g: &Given| g.end.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let on = !self.fed.on || (self.dump.greedy == other.dump.greedy && bits(self) == bits(other));
        on && self.dump.apart(&other.dump).0 == 0
    }
}

/// A configuration of a case in one arithmetic, and what is fed to it.
struct Turn<'c> {
    class: &'c Class,
    number: usize,
    /// What shows the bits of programs that are new: the first steps of a long prompt to those of prefill, all of it and
    /// its continuation where they read a cache, and a prompt token by token to those of decode.
    sample: Vec<Fed>,
    /// What is judged where these are not the bits of the default.
    all: Vec<Fed>,
}

impl<'c> Turn<'c> {
    fn new(class: &'c Class, (number, news): (usize, News), feeding: &Feeding<'_>) -> Turn<'c> {
        let Feeding { prompts, stepped, head } = *feeding;
        let fed = |i: usize, path| Fed { prompt: i, tokens: prompts[i].ids.len(), path, on: true };
        let short = |i: &usize| prompts[*i].ids.len() <= stepped;
        let (every, long) = (0..prompts.len(), |i: &usize| prompts[*i].ids.len());
        let prefill = every.clone().filter(|i| news.prefill || (news.keys && !short(i))).map(|i| fed(i, Path::Prefill));
        let steps = every.clone().filter(|i| news.decode && short(i)).map(|i| fed(i, Path::Steps));
        let mut sample = Vec::new();
        if let Some(whole) = every.clone().max_by_key(long).map(|i| fed(i, Path::Prefill)) {
            let continued = !prompts[whole.prompt].greedy_ids.is_empty();
            if news.keys && (news.prefill || continued) {
                sample.push(whole);
            } else if news.prefill {
                sample.push(Fed { tokens: whole.tokens.min(head), on: false, ..whole });
            }
        }
        let longest = every.filter(short).max_by_key(long).filter(|_| news.decode);
        sample.extend(longest.map(|i| Fed { on: false, ..fed(i, Path::Steps) }));
        Turn { class, number, sample, all: prefill.chain(steps).collect() }
    }

    /// What is fed as far as is known before.
    fn weight(&self, prompts: &[Prompt]) -> usize {
        let all = self.all.iter().filter(|_| self.number == 0);
        all.chain(&self.sample).map(|f| f.weight(prompts)).sum()
    }
}

/// What turns choose from.
#[derive(Clone, Copy)]
struct Feeding<'p> {
    prompts: &'p [Prompt],
    /// Longest prompt that is also fed one token at a time.
    stepped: usize,
    /// Tokens that go through a whole step of prefill and through a part of one.
    head: usize,
}

/// What a failed prompt is traced with.
type Failed<'f> = dyn Fn(&Prompt, Path, Verdict) -> Result<Failure> + 'f;

/// The turns of a case as they are taken.
struct Walk<'w> {
    prompts: &'w [Prompt],
    effort: &'w Effort<'w>,
    ran: Ran,
    /// What the default of the arithmetic gave.
    default: Vec<Given>,
    /// Weight of what is done, and of all turns.
    done: usize,
    all: usize,
}

impl<'w> Walk<'w> {
    fn new(prompts: &'w [Prompt], effort: &'w Effort<'w>, turns: &[Turn<'_>]) -> Self {
        let all = turns.iter().map(|t| t.weight(prompts)).sum();
        Walk { prompts, effort, ran: Ran::default(), default: Vec::new(), done: 0, all }
    }

    fn given(&self, decoder: &mut dyn Feed, fed: Fed) -> Result<Given> {
        let prompt = &self.prompts[fed.prompt];
        if fed.tokens < prompt.ids.len() {
            let ids = prompt.ids[..fed.tokens].to_vec();
            let head = Prompt { ids, probe_logits_all: None, greedy_ids: Vec::new(), ..prompt.clone() };
            return Ok(Given { fed, dump: verify::feed(decoder, &head, fed.path)?, end: Vec::new() });
        }
        let mut dump = verify::feed(decoder, prompt, fed.path)?;
        let end = if fed.on { verify::go_on(decoder, prompt, &mut dump)? } else { Vec::new() };
        Ok(Given { fed, dump, end })
    }

    /// Whether the sample has the bits of the default.
    fn alike(&self, turn: &Turn<'_>, decoder: &mut dyn Feed) -> Result<bool> {
        for fed in &turn.sample {
            let given = self.given(decoder, *fed)?;
            let default = self.default.iter().find(|d| d.fed.is(fed));
            if !default.is_some_and(|default| given.same(default)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Feeds what `turn` says, and judges it where it is the default or has other bits; stops where the effort is over.
    fn take(&mut self, turn: &Turn<'_>, decoder: &mut dyn Feed, failed: &Failed<'_>) -> Result<Flow> {
        self.ran.ways += 1;
        if turn.number == 0 {
            self.default.clear();
        } else if self.alike(turn, decoder)? {
            self.ran.same += 1;
            return Ok(self.went_on(turn));
        }
        for fed in &turn.all {
            if self.effort.over(&self.ran) {
                self.ran.partial = true;
                return Ok(Flow::Stop);
            }
            let given = self.given(decoder, *fed)?;
            let prompt = &self.prompts[fed.prompt];
            let verdict = verify::judge(prompt, &given.dump, turn.class.mode, fed.path)?;
            self.ran.take(&verdict);
            if !verdict.reasons.is_empty() {
                self.ran.failures.push(failed(prompt, fed.path, verdict)?);
            }
            if turn.number == 0 {
                self.default.push(given);
            }
        }
        for fed in turn.sample.iter().filter(|_| turn.number == 0) {
            let given = self.given(decoder, *fed)?;
            self.default.push(given);
        }
        Ok(self.went_on(turn))
    }

    /// Tells how far it is, and whether to go on.
    fn went_on(&mut self, turn: &Turn<'_>) -> Flow {
        self.done += turn.weight(self.prompts);
        (self.effort.told)(self.done as f64 / self.all.max(1) as f64);
        self.ran.partial = self.done < self.all && self.effort.over(&self.ran);
        if self.ran.partial { Flow::Stop } else { Flow::Continue }
    }
}

/// The turns of one arithmetic from its `ways`; the default is also fed what others are compared with.
fn turns<'c>(class: &'c Class, ways: Vec<(usize, News)>, feeding: &Feeding<'_>) -> Vec<Turn<'c>> {
    let mut turns: Vec<Turn<'_>> = ways.into_iter().map(|way| Turn::new(class, way, feeding)).collect();
    let mut more: Vec<Fed> = Vec::new();
    for fed in turns.iter().skip(1).flat_map(|t| &t.sample) {
        if !turns[0].all.iter().chain(&more).any(|known| known.is(fed)) {
            more.push(*fed);
        }
    }
    turns[0].sample = more;
    turns
}

/// Runs `case`, whose model is open, on the CPU; a program that is among `seen` is not run again.
pub fn on_cpu(case: &Case, machine: Machine<'_>, model: &Model, effort: &Effort<'_>, seen: &mut Seen) -> Result<Ran> {
    let file = expected(case)?;
    let (prompts, context) = prompts(&file, effort);
    let chunk = chunk(&prompts).min(context);
    let all_logits = prompts.iter().any(|p| p.probe_logits_all.is_some());
    let (hyper, weights, before) = (&model.file.hyper, &model.weights, seen.count());
    let options = |class: &Class| class.options(context, chunk, all_logits);
    let mut all = Vec::new();
    for class in effort.classes.iter().filter(|c| c.known(&prompts)) {
        let plan = Planned::new(machine, hyper, weights, options(class), &Way { number: 0, only: None })?;
        let plans = [&plan.decode_plan[..], &plan.prefill_plan[..]];
        let found = if effort.every_way {
            ways(plans, &|e: &Entry| (e.op.space)(&e.shape, &machine), seen)
        } else {
            vec![(0, News::ALL)]
        };
        let feeding = Feeding { prompts: &prompts, stepped: effort.stepped, head: chunk + chunk / 4 + 1 };
        all.extend(turns(class, found, &feeding));
    }
    let mut walk = Walk::new(&prompts, effort, &all);
    walk.ran.programs = seen.count() - before;
    for turn in &all {
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

/// A configuration of one part of a model on a GPU, the other at its default, and the path that is asked for.
struct GpuWay {
    route: Option<Route>,
    op: &'static str,
    config: Config,
}

impl OnGpu<'_> {
    fn options(&self, class: &Class, context: usize, route: Option<Route>) -> gpu::Options {
        let (activations, chunk) = (class.activations, self.chunk);
        gpu::Options { context, activations, route, sampled: false, ahead: gpu::AHEAD, chunk }
    }

    /// The paths at the default configuration, then configurations that have every value of every parameter: those of the
    /// step, then those of chunks.
    fn ways(&self, options: &gpu::Options, every: bool) -> Vec<GpuWay> {
        let parts = gpu::parts(self.machine, &self.model.file.hyper, self.weights, options);
        let space = &parts[0].space;
        let path = |r: &Route| space.default.clone().with("PATH", r.name());
        let routes = Route::ALL.into_iter().filter(|r| space.violated(&path(r)).is_none());
        let routes = routes.map(|r| GpuWay { route: Some(r), op: gpu::DECODE, config: path(&r) });
        let of = |p: &gpu::Part| {
            let op = p.op.name;
            cover(&p.space).into_iter().map(move |config| GpuWay { route: None, op, config })
        };
        routes.chain(parts.iter().filter(|_| every).flat_map(of)).collect()
    }

    fn decoder<'d>(
        &self,
        (hyper, weights): (&'d Hyper, &gpu::Weights),
        options: gpu::Options,
        way: &GpuWay,
    ) -> Result<GpuDecoder<'d>>
    where
        Self: 'd,
    {
        let chosen = Chosen { config: way.config.clone(), tier: "pinned" };
        let choices = |op: &'static Op, _: &Shape, _: &Space| Ok((op.name == way.op).then(|| chosen.clone()));
        GpuDecoder::new(self.machine, hyper, weights, options, &choices)
    }

    /// Runs `case` on the GPU.
    pub fn run(&self, case: &Case, effort: &Effort<'_>) -> Result<Ran> {
        let file = expected(case)?;
        let (prompts, context) = prompts(&file, effort);
        let hyper = &self.model.file.hyper;
        let context = context.next_multiple_of(CONTEXT_STEP).min(hyper.context);
        let (mut all, mut ways) = (Vec::new(), Vec::new());
        // The cache of a GPU is f16.
        for class in effort.classes.iter().filter(|c| c.kv == KvType::F16 && c.known(&prompts)) {
            let more = self.ways(&self.options(class, context, None), effort.every_way);
            // A prompt goes through kernels of its own, which are the same in every way of the step.
            let news = |(number, way): (usize, &GpuWay)| match way.op {
                gpu::PREFILL => (number, News { prefill: true, ..News::default() }),
                _ => (number, News { prefill: number == 0, ..News::ALL }),
            };
            let head = self.chunk + self.chunk / 4 + 1;
            let feeding = Feeding { prompts: &prompts, stepped: effort.stepped, head };
            all.extend(turns(class, more.iter().enumerate().map(news).collect(), &feeding));
            ways.extend(more);
        }
        let mut walk = Walk::new(&prompts, effort, &all);
        for (turn, way) in all.iter().zip(&ways) {
            let (class, options) = (turn.class, self.options(turn.class, context, way.route));
            let failed = |prompt: &Prompt, feed: Path, verdict: Verdict| {
                let scene = Scene { machine: self.cpu, model: self.model, prompt, feed, chunk: prompt.ids.len() };
                let cut = |layers| self.cut(layers, (prompt, feed), options, way);
                let left = Some(first_left_on_gpu(&scene, class, &cut)?);
                let ops = vec![format!("{}: {}", way.op, way.config)];
                let (case, mode) = (case.name.to_owned(), class.mode);
                Ok(Failure { case, mode, way: turn.number, verdict, ops, left })
            };
            let mut decoder = self.decoder((hyper, self.weights), options, way)?;
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
        way: &GpuWay,
    ) -> Result<Vec<f32>> {
        let mut hyper = self.model.file.hyper.clone();
        hyper.layers = layers;
        let weights = self.weights.first(layers);
        let mut decoder = self.decoder((&hyper, &weights), options, way)?;
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
    fn take(&mut self, verdict: &Verdict) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CLASS: &Class = &Class::ALL[0];

    /// Logits after `ids` by a rule that is nobody's model; no two are equal.
    fn logits(ids: &[u32]) -> Vec<f32> {
        let sum: u32 = ids.iter().sum();
        (0..8).map(|i| ((sum % 10 + 1) * (i + 3) % 11) as f32).collect()
    }

    fn prompt(tokens: u32, greedy: usize) -> Prompt {
        let ids: Vec<u32> = (0..tokens).map(|i| i % 7).collect();
        let (mut all, mut greedy_ids) = (ids.clone(), Vec::new());
        for _ in 0..greedy {
            let id = crate::generate::greedy_token(planish_kernels::cpu::isa::Isa::Portable, &logits(&all));
            let id = id.expect("a largest logit");
            greedy_ids.push(id);
            all.push(id);
        }
        let zero = json!({ "rms": 0.0, "max": 0.0, "kl": 0.0, "shift": 0.0 });
        let prompt = json!({
            "name": format!("{tokens}"), "ids": ids, "logits_last": logits(&ids), "top_gap": 1.0,
            "greedy_ids": greedy_ids, "greedy_gaps": vec![1.0; greedy], "deviation": { CLASS.mode: zero },
        });
        serde_json::from_value(prompt).expect("a prompt")
    }

    /// A decoder by the rule, off by some in every logit but the first once so many tokens are in the cache.
    struct Rule {
        ids: Vec<u32>,
        off: f32,
        from: usize,
        logits: Vec<f32>,
        fed: usize,
    }

    impl Rule {
        fn new(off: f32, from: usize) -> Rule {
            Rule { ids: Vec::new(), off, from, logits: Vec::new(), fed: 0 }
        }
    }

    impl Feed for Rule {
        fn position(&self) -> usize {
            self.ids.len()
        }
        fn truncate(&mut self, position: usize) {
            self.ids.truncate(position);
        }
        fn feed(&mut self, ids: &[u32]) -> Result<&[f32]> {
            self.ids.extend(ids);
            self.fed += ids.len();
            self.logits = logits(&self.ids);
            let off = if self.ids.len() >= self.from { self.off } else { 0.0 };
            self.logits.iter_mut().skip(1).for_each(|v| *v += off);
            Ok(&self.logits)
        }
        fn feed_all(&mut self, _: &[u32]) -> Result<Vec<Vec<f32>>> {
            Err(Error::request("no prompt has logits after every token"))
        }
    }

    fn turn(number: usize, news: News, prompts: &[Prompt]) -> Turn<'static> {
        Turn::new(CLASS, (number, news), &Feeding { prompts, stepped: 128, head: 121 })
    }

    const KEYS: News = News { decode: true, prefill: false, keys: true };
    const DECODE: News = News { keys: false, ..KEYS };
    const PREFILL: News = News { decode: false, prefill: true, keys: false };

    #[test]
    fn what_is_fed_reaches_what_is_new() {
        let prompts = [prompt(5, 4), prompt(30, 4), prompt(334, 4)];
        let told = |fed: &[Fed]| -> Vec<(usize, usize, bool, bool)> {
            fed.iter().map(|f| (f.prompt, f.tokens, f.path == Path::Steps, f.on)).collect()
        };
        let [by_steps, head, whole] = [(1, 30, true, false), (2, 121, false, false), (2, 334, false, true)];
        for (news, sample) in [
            (DECODE, vec![by_steps]),
            (PREFILL, vec![head]),
            (KEYS, vec![whole, by_steps]),
            (News::ALL, vec![whole, by_steps]),
        ] {
            assert_eq!(told(&turn(1, news, &prompts).sample), sample, "{news:?}");
        }
        let (steps, long) = ([(0, 5, true, true), (1, 30, true, true)], (2, 334, false, true));
        let prefill = [(0, 5, false, true), (1, 30, false, true), long];
        assert_eq!(told(&turn(1, DECODE, &prompts).all), steps);
        assert_eq!(told(&turn(1, KEYS, &prompts).all), [&[long][..], &steps].concat());
        assert_eq!(told(&turn(1, PREFILL, &prompts).all), prefill);
        assert_eq!(told(&turn(0, News::ALL, &prompts).all), [&prefill[..], &steps].concat());
    }

    #[test]
    fn other_bits_than_the_defaults_are_judged_and_what_is_beyond_its_limit_fails() {
        let (prompts, cancel) = ([prompt(5, 4), prompt(30, 4), prompt(334, 4)], AtomicBool::new(false));
        let (classes, told) = (&Class::ALL[..1], |_: f64| ());
        let (longest, deadline) = (usize::MAX, None);
        let effort = Effort { classes, every_way: true, stepped: 128, longest, deadline, cancel: &cancel, told: &told };
        let feeding = Feeding { prompts: &prompts, stepped: 128, head: 121 };
        let all = turns(CLASS, vec![(0, News::ALL), (1, KEYS), (2, PREFILL), (3, KEYS), (4, KEYS)], &feeding);
        let mut walk = Walk::new(&prompts, &effort, &all);
        let failed = |prompt: &Prompt, _: Path, verdict: Verdict| {
            let (case, mode) = (prompt.name.clone(), CLASS.mode);
            Ok(Failure { case, mode, way: 9, verdict, ops: Vec::new(), left: None })
        };
        let take = |walk: &mut Walk<'_>, at: usize, off: f32, from: usize| {
            let mut decoder = Rule::new(off, from);
            assert_eq!(walk.take(&all[at], &mut decoder, &failed).expect("fed"), Flow::Continue);
            (walk.ran.judged, walk.ran.same, walk.ran.failures.len(), decoder.fed)
        };
        let continued = 3;
        let default = 5 + 30 + 334 + 5 + 30 + 5 * continued + 121;
        assert_eq!(take(&mut walk, 0, 0.0, 0), (5, 0, 0, default));
        assert_eq!(take(&mut walk, 1, 0.0, 0), (5, 1, 0, 334 + continued + 30), "the same bits");
        assert_eq!(take(&mut walk, 2, 0.0, 0), (5, 2, 0, 121), "the same bits");
        // Other bits within rounding, and only where the cache is long: behind the sample's first logits.
        assert_eq!(take(&mut walk, 3, 1e-6, 336).0, 5 + 3, "all that is new is judged");
        let (judged, same, failures, _) = take(&mut walk, 4, 0.5, 0);
        assert_eq!((judged, same, failures), (5 + 3 + 3, 2, 3));
        assert_eq!((walk.done, walk.ran.ways), (walk.all, 5));
    }
}
