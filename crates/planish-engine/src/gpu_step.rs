//! A whole step of a model on a GPU, or a chunk of a prompt, as the tuner sees it: candidates give the logits of the
//! default, then tokens are timed.
//!
//! Logits are held against those of the processor with activations as they are: a candidate may be at most twice as far
//! from them as the default, and must give the same bits twice.
//! A sample is tokens drawn in a row at a depth, or a prompt, through the very path that generation takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use planish_device::{Cpu, CpuOptions};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::{Machine, Op, Shape};
use planish_kernels::weight::Activations;
use planish_tune::contain::{Stage, Tell};
use planish_tune::{Admitted, Config, Point, Rejection, Sample, Space, Subject, Wrong};
use serde::{Deserialize, Serialize};

use crate::arch::Hyper;
use crate::decoder::{Decoder, KvType};
use crate::error::{Error, Result};
use crate::generate::Flow;
use crate::gguf::Gguf;
use crate::gpu::{AHEAD, By, GpuDecoder, Options, Part, Weights, chunk, parts};
use crate::model::{Made, ModelFile, Origin};
use crate::plan::{Chosen, Defaults};
use crate::verify::relative;
use crate::{decoder, weights};

/// Tokens whose logits a step must give.
const GATE_TOKENS: usize = 12;
/// Tokens of two chunks whose last logits a candidate must give: keys of several tiles from the first position on, then a
/// part of a tile at a later one. A step behind them reads what they left in the cache.
const GATE_CHUNKS: [usize; 2] = [80, 21];
/// How far the default may be from the processor, as the error of all logits after a token over their spread: many layers
/// of 8-bit activations, or the rounding of a cache in halves.
const FAR: [(Activations, f64); 2] = [(Activations::Int8, 0.25), (Activations::F32, 0.02)];
/// A candidate's error over the default's.
const TWICE: f64 = 2.0;
/// Added to what is allowed, for a default that has no error at all.
const ROUNDING: f64 = 1e-6;
/// Bytes of caches and chunks of the decoders that are kept, each having its own, and how many that may be.
const KEPT_BYTES: usize = 8 << 30;
const KEPT: std::ops::RangeInclusive<usize> = 4..=32;

/// What a subject is made from; sent to a worker process as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepSpec {
    /// What it runs on: the backend as its limits name it, and after a colon which of several machines.
    pub device: String,
    /// The model.
    pub model: Origin,
    /// Positions of the cache for which the configuration must be legal.
    pub context: usize,
    /// Numerics class.
    pub activations: Activations,
    /// Tokens of a chunk where chunks of prompts are the subject; none where steps are.
    #[serde(default)]
    pub chunk: Option<usize>,
    /// Tokens in the cache when a sample begins.
    pub depth: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Read bandwidth in GB/s for the roofline, when known.
    pub read_gb_s: Option<f64>,
    /// Threads of the host that repack weights.
    pub threads: usize,
    /// The architecture that kernels are compiled for, where there is a choice.
    pub arch: Option<String>,
    /// Candidates must give the bits of the default.
    #[serde(default)]
    pub deterministic: bool,
}

/// A model on a device.
pub struct StepModel {
    file: ModelFile,
    weights: Weights,
}

impl StepModel {
    /// Opens the model of `spec` on `machine`.
    pub fn open(spec: &StepSpec, machine: &Machine<'_>) -> Result<StepModel> {
        let load = |gguf: &Arc<Gguf>, hyper: &Hyper| Weights::load(gguf, hyper, machine.backend, spec.threads);
        let (file, weights) = spec.model.open_with(Made::Random(spec.threads), load)?;
        Ok(StepModel { file, weights })
    }
}

/// A step of a model, or a chunk of a prompt, on a machine.
pub struct StepSubject<'a> {
    machine: Machine<'a>,
    model: &'a StepModel,
    spec: StepSpec,
    part: Part,
    ids: Vec<u32>,
    /// Tokens that the gate feeds at a time.
    feeds: Vec<usize>,
    /// Logits after each feed of the gate, from the processor.
    oracle: Vec<Vec<f32>>,
    /// Error of the default and its logits, once it has run.
    default: Option<(f64, Vec<Vec<f32>>)>,
    tell: Option<Tell>,
    decoders: Vec<(Config, GpuDecoder<'a>)>,
}

impl StepSpec {
    /// The least time that a token takes where a step reads `bytes_per_token`: a chunk reads them once.
    pub fn floor(&self, bytes_per_token: u64) -> Option<Duration> {
        let bytes = bytes_per_token as f64 / self.chunk.unwrap_or(1).min(self.context) as f64;
        self.read_gb_s.map(|gb_s| Duration::from_secs_f64(bytes / gb_s * 1e-9))
    }
}

/// As the model is used: kernels are compiled for the size of their cache.
fn options(spec: &StepSpec) -> Options {
    Options {
        context: spec.context,
        activations: spec.activations,
        route: None,
        sampled: false,
        ahead: AHEAD,
        chunk: spec.chunk.unwrap_or(0),
    }
}

/// Tokens that the gate feeds at a time: one after the other, or two chunks and one token behind them.
fn feeds(spec: &StepSpec) -> Vec<usize> {
    match spec.chunk {
        None => vec![1; GATE_TOKENS.min(spec.context)],
        Some(chunk) => {
            let first = GATE_CHUNKS[0].min(chunk).min(spec.context / 2);
            let second = GATE_CHUNKS[1].min(chunk).min(spec.context - first - 1);
            vec![first, second, 1]
        }
    }
}

impl<'a> StepSubject<'a> {
    /// The subject that `spec` describes, of an opened model.
    pub fn new(spec: StepSpec, machine: Machine<'a>, model: &'a StepModel) -> Result<Self> {
        let shortest = spec.chunk.map_or(1, |_| 2 * chunk::LEAST + 1);
        if spec.context < shortest {
            return Err(Error::request(format!("a cache of {} tokens, {shortest} are needed", spec.context)));
        }
        let part =
            parts(machine, &model.file.hyper, &model.weights, &options(&spec)).pop().expect("a step is always there");
        let (vocab, feeds) = (model.file.hyper.vocab, feeds(&spec));
        // Any text will do; neighbours differ, and no token is special.
        let token = |i: usize| ((i * 7919 + i * i * 31) % vocab) as u32;
        let ids = (0..feeds.iter().sum::<usize>().max(spec.depth + spec.tokens) + 1).map(token).collect();
        Ok(StepSubject {
            machine,
            model,
            spec,
            part,
            ids,
            feeds,
            oracle: Vec::new(),
            default: None,
            tell: None,
            decoders: Vec::new(),
        })
    }

    /// The same with `tell` told when the processor's logits are made, which is not the candidate's time.
    pub fn telling(mut self, tell: &Tell) -> Self {
        self.tell = Some(tell.clone());
        self
    }

    fn tell(&self, stage: &Stage) {
        self.tell.iter().for_each(|tell| tell(stage.clone()));
    }

    /// The shape under which its choice is stored.
    pub fn shape(&self) -> &Shape {
        &self.part.shape
    }

    /// The decoder of a configuration; the one used longest ago goes when there are too many.
    fn decoder(&mut self, config: &Config) -> Result<&mut GpuDecoder<'a>, Rejection> {
        if let Some(at) = self.decoders.iter().position(|(c, _)| c == config) {
            let found = self.decoders.remove(at);
            self.decoders.push(found);
        } else {
            let (name, chosen) = (self.part.op.name, Chosen { config: config.clone(), tier: "candidate" });
            let choose = |op: &'static Op, _: &Shape, _: &Space| Ok((op.name == name).then(|| chosen.clone()));
            let (hyper, weights) = (&self.model.file.hyper, &self.model.weights);
            let made = GpuDecoder::new(self.machine, hyper, weights, options(&self.spec), &choose);
            let made = made.map_err(|e| Rejection::Launch(e.to_string()))?;
            let most = (KEPT_BYTES / (made.kv_bytes() + made.chunk_bytes()).max(1)).clamp(*KEPT.start(), *KEPT.end());
            if self.decoders.len() >= most {
                self.decoders.remove(0);
            }
            self.decoders.push((config.clone(), made));
        }
        Ok(&mut self.decoders.last_mut().expect("pushed above").1)
    }

    /// Logits after each feed of the gate, which must be the same bits twice.
    fn logits(&mut self, config: &Config) -> Result<Vec<Vec<f32>>, Rejection> {
        let (ids, feeds) = (self.ids.clone(), self.feeds.clone());
        let decoder = self.decoder(config)?;
        let mut run = || {
            decoder.truncate(0);
            let feed = |n: &usize| Ok(decoder.feed(&ids[decoder.position()..][..*n])?.to_vec());
            feeds.iter().map(feed).collect::<Result<Vec<_>>>().map_err(|e| Rejection::Launch(e.to_string()))
        };
        let (first, second) = (run()?, run()?);
        if bits(&first) != bits(&second) {
            return Err(wrong("nondeterministic", f64::INFINITY, "two runs differ".to_owned()));
        }
        Ok(first)
    }

    /// The processor's logits, made when first asked for.
    fn oracle(&mut self) -> Result<&[Vec<f32>]> {
        if self.oracle.is_empty() {
            self.tell(&Stage::Prepare);
            let file = &self.model.file;
            let cpu = Cpu::new(CpuOptions::default())?;
            let machine = Machine { backend: &cpu, isa: Isa::detect() };
            let weights = weights::Weights::load(&file.gguf, &file.hyper, &cpu, self.spec.threads)?;
            let n = self.feeds.iter().sum();
            let (activations, kv) = (Activations::F32, KvType::F32);
            let options = decoder::Options { context: n, chunk: n, activations, kv, all_logits: true };
            let mut decoder = Decoder::new(machine, &file.hyper, &weights, options, &Defaults)?;
            let all = decoder.feed_all(&self.ids[..n])?;
            let end = |at: &mut usize, n: &usize| {
                *at += n;
                Some(*at)
            };
            self.oracle = self.feeds.iter().scan(0, end).map(|end| all[end - 1].clone()).collect();
            self.tell(&Stage::Run);
        }
        Ok(&self.oracle)
    }

    /// The largest error of `logits` after any feed, over the spread of the right ones.
    fn error_of(&mut self, logits: &[Vec<f32>]) -> Result<f64, Rejection> {
        let oracle = self.oracle().map_err(|e| Rejection::Launch(format!("the processor's logits: {e}")))?;
        let mut worst = 0f64;
        for (at, (got, want)) in logits.iter().zip(oracle).enumerate() {
            if let Some(i) = got.iter().position(|v| !v.is_finite()) {
                return Err(wrong("non-finite", f64::NAN, format!("logit {i} after feed {at} is {}", got[i])));
            }
            worst = worst.max(relative(got, want));
        }
        Ok(worst)
    }
}

fn bits(all: &[Vec<f32>]) -> Vec<u32> {
    all.iter().flatten().map(|v| v.to_bits()).collect()
}

fn wrong(check: &str, error_over_bound: f64, detail: String) -> Rejection {
    Rejection::Wrong(Wrong { check: check.to_owned(), case: "logits".to_owned(), error_over_bound, detail })
}

impl Subject for StepSubject<'_> {
    fn space(&self) -> &Space {
        &self.part.space
    }

    fn points(&self) -> Vec<Point> {
        vec![Point(0)]
    }

    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        if let Some(name) = self.part.space.violated(config) {
            return Err(Rejection::Constraint(name));
        }
        if self.default.is_none() {
            let default = self.part.space.default.clone();
            let logits = self.logits(&default)?;
            self.default = Some((self.error_of(&logits)?, logits));
        }
        let default = self.default.as_ref().expect("found above").0;
        let (bound, error) = if *config == self.part.space.default {
            let far = FAR.iter().find(|(class, _)| *class == self.spec.activations).map_or(0.0, |(_, far)| *far);
            (far, default)
        } else {
            let logits = self.logits(config)?;
            let same = self.default.as_ref().is_some_and(|(_, wanted)| bits(wanted) == bits(&logits));
            if self.spec.deterministic && !same {
                return Err(wrong("reduction order", f64::INFINITY, "other bits than the default's".to_owned()));
            }
            (TWICE * default + ROUNDING, self.error_of(&logits)?)
        };
        let ratio = error / bound;
        // Not a number is not below one either.
        if ratio.is_nan() || ratio > 1.0 {
            let detail = format!("relative error {error:.2e} of the logits, allowed {bound:.2e}");
            return Err(wrong("tolerance", ratio, detail));
        }
        Admitted::new(config.clone(), ratio)
    }

    fn time(&mut self, admitted: &Admitted, _point: Point) -> Result<Sample, Rejection> {
        let (depth, tokens, ids) = (self.spec.depth, self.spec.tokens, self.ids.clone());
        let failed = |e: Error| Rejection::Launch(e.to_string());
        let chunks = self.spec.chunk.is_some();
        let decoder = self.decoder(admitted.config())?;
        if chunks {
            decoder.truncate(0);
            decoder.admit(&ids[..tokens]).map_err(failed)?;
            let start = Instant::now();
            decoder.prefill(&ids[..tokens]).map_err(failed)?;
            return Ok(Sample { ns: start.elapsed().as_nanos() as f64 / tokens as f64, reps: tokens as u32 });
        }
        decoder.truncate(depth);
        let held = decoder.position();
        decoder.admit(&ids[held..=depth]).map_err(failed)?;
        decoder.prefill(&ids[held..depth]).map_err(failed)?;
        let start = Instant::now();
        let drawn = decoder.draw(ids[depth], &By::Likeliest, tokens, &mut |_| Ok(Flow::Continue)).map_err(failed)?;
        let ns = start.elapsed().as_nanos() as f64;
        if drawn != tokens {
            return Err(Rejection::Launch(format!("{drawn} of {tokens} tokens were drawn")));
        }
        Ok(Sample { ns: ns / tokens as f64, reps: tokens as u32 })
    }

    /// The default on the gate's first feed: enough to see that the device still works.
    fn sentinel(&mut self) -> Result<(), Rejection> {
        let default = self.part.space.default.clone();
        let first = self.ids[..self.feeds[0]].to_vec();
        let decoder = self.decoder(&default)?;
        decoder.truncate(0);
        let logits = decoder.feed(&first).map_err(|e| Rejection::Launch(e.to_string()))?;
        if logits.iter().all(|v| v.is_finite()) {
            return Ok(());
        }
        Err(wrong("non-finite", f64::NAN, "the default's logits are not finite".to_owned()))
    }

    fn floor(&self, _point: Point) -> Option<Duration> {
        self.spec.floor(self.model.weights.bytes_per_token)
    }
}
