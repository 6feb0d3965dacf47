//! A whole step of a model on a GPU as the tuner sees it: candidates give the logits of the default, then tokens are timed.
//!
//! Logits are held against those of the processor with activations as they are: a candidate may be at most twice as far
//! from them as the default, and must give the same bits twice.
//! A sample is tokens drawn in a row at a depth, through the very path that generation takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use planish_device::{Cpu, CpuOptions};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::{Machine, Shape};
use planish_kernels::weight::Activations;
use planish_tune::contain::{Stage, Tell};
use planish_tune::{Admitted, Config, Point, Rejection, Sample, Space, Subject, Wrong};
use serde::{Deserialize, Serialize};

use crate::arch::Hyper;
use crate::decoder::{Decoder, KvType};
use crate::error::Result;
use crate::generate::Flow;
use crate::gguf::Gguf;
use crate::gpu::decoder::space;
use crate::gpu::{AHEAD, By, GpuDecoder, Options, Weights};
use crate::model::{Made, ModelFile, Origin};
use crate::plan::{Chosen, Defaults};
use crate::verify::relative;
use crate::{decoder, weights};

/// Tokens whose logits a candidate must give.
const GATE_TOKENS: usize = 12;
/// How far the default may be from the processor, as the error of all logits after a token over their spread: many layers
/// of 8-bit activations, or the rounding of a cache in halves.
const FAR: [(Activations, f64); 2] = [(Activations::Int8, 0.25), (Activations::F32, 0.02)];
/// A candidate's error over the default's.
const TWICE: f64 = 2.0;
/// Added to what is allowed, for a default that has no error at all.
const ROUNDING: f64 = 1e-6;
/// Bytes of caches of the decoders that are kept, each having one of its own, and how many that may be.
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

/// A step of a model on a machine.
pub struct StepSubject<'a> {
    machine: Machine<'a>,
    model: &'a StepModel,
    spec: StepSpec,
    shape: Shape,
    space: Space,
    ids: Vec<u32>,
    /// Logits after each of the gate's tokens, from the processor.
    oracle: Vec<Vec<f32>>,
    /// Error of the default and its logits, once it has run.
    default: Option<(f64, Vec<Vec<f32>>)>,
    tell: Option<Tell>,
    decoders: Vec<(Config, GpuDecoder<'a>)>,
}

/// The least time that a token takes on a machine that reads at `read_gb_s`.
pub fn floor(bytes_per_token: u64, read_gb_s: Option<f64>) -> Option<Duration> {
    read_gb_s.map(|gb_s| Duration::from_secs_f64(bytes_per_token as f64 / gb_s * 1e-9))
}

/// As the model is used: kernels are compiled for the size of their cache.
fn options(spec: &StepSpec) -> Options {
    Options {
        context: spec.context,
        activations: spec.activations,
        route: None,
        sampled: false,
        ahead: AHEAD,
        chunk: 0,
    }
}

impl<'a> StepSubject<'a> {
    /// The subject that `spec` describes, of an opened model.
    pub fn new(spec: StepSpec, machine: Machine<'a>, model: &'a StepModel) -> Result<Self> {
        let (shape, space) = space(machine, &model.file.hyper, &model.weights, &options(&spec));
        let vocab = model.file.hyper.vocab;
        // Any text will do; neighbours differ, and no token is special.
        let token = |i: usize| ((i * 7919 + i * i * 31) % vocab) as u32;
        let ids = (0..spec.depth.max(GATE_TOKENS) + 1).map(token).collect();
        Ok(StepSubject {
            machine,
            model,
            spec,
            shape,
            space,
            ids,
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
        &self.shape
    }

    /// The decoder of a configuration; the one used longest ago goes when there are too many.
    fn decoder(&mut self, config: &Config) -> Result<&mut GpuDecoder<'a>, Rejection> {
        if let Some(at) = self.decoders.iter().position(|(c, _)| c == config) {
            let found = self.decoders.remove(at);
            self.decoders.push(found);
        } else {
            let chosen = Chosen { config: config.clone(), tier: "candidate" };
            let choose = |_: &Shape, _: &Space| Ok(Some(chosen.clone()));
            let (hyper, weights) = (&self.model.file.hyper, &self.model.weights);
            let made = GpuDecoder::new(self.machine, hyper, weights, options(&self.spec), &choose);
            let made = made.map_err(|e| Rejection::Launch(e.to_string()))?;
            let most = (KEPT_BYTES / made.kv_bytes().max(1)).clamp(*KEPT.start(), *KEPT.end());
            if self.decoders.len() >= most {
                self.decoders.remove(0);
            }
            self.decoders.push((config.clone(), made));
        }
        Ok(&mut self.decoders.last_mut().expect("pushed above").1)
    }

    /// Logits after each of the gate's tokens, which must be the same bits twice.
    fn logits(&mut self, config: &Config) -> Result<Vec<Vec<f32>>, Rejection> {
        let ids = self.ids[..GATE_TOKENS.min(self.spec.context)].to_vec();
        let decoder = self.decoder(config)?;
        let mut run = || {
            decoder.truncate(0);
            decoder.feed_all(&ids).map_err(|e| Rejection::Launch(e.to_string()))
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
            let n = GATE_TOKENS.min(self.spec.context);
            let (activations, kv) = (Activations::F32, KvType::F32);
            let options = decoder::Options { context: n, chunk: n, activations, kv, all_logits: true };
            let mut decoder = Decoder::new(machine, &file.hyper, &weights, options, &Defaults)?;
            self.oracle = decoder.feed_all(&self.ids[..n])?;
            self.tell(&Stage::Run);
        }
        Ok(&self.oracle)
    }

    /// The largest error of `logits` after any token, over the spread of the right ones.
    fn error_of(&mut self, logits: &[Vec<f32>]) -> Result<f64, Rejection> {
        let oracle = self.oracle().map_err(|e| Rejection::Launch(format!("the processor's logits: {e}")))?;
        let mut worst = 0f64;
        for (at, (got, want)) in logits.iter().zip(oracle).enumerate() {
            if let Some(i) = got.iter().position(|v| !v.is_finite()) {
                return Err(wrong("non-finite", f64::NAN, format!("logit {i} after token {at} is {}", got[i])));
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
        &self.space
    }

    fn points(&self) -> Vec<Point> {
        vec![Point(0)]
    }

    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        if let Some(name) = self.space.violated(config) {
            return Err(Rejection::Constraint(name));
        }
        if self.default.is_none() {
            let default = self.space.default.clone();
            let logits = self.logits(&default)?;
            self.default = Some((self.error_of(&logits)?, logits));
        }
        let default = self.default.as_ref().expect("found above").0;
        let (bound, error) = if *config == self.space.default {
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
        let failed = |e: crate::Error| Rejection::Launch(e.to_string());
        let decoder = self.decoder(admitted.config())?;
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

    /// The default on one token: enough to see that the device still works.
    fn sentinel(&mut self) -> Result<(), Rejection> {
        let default = self.space.default.clone();
        let first = self.ids[0];
        let decoder = self.decoder(&default)?;
        decoder.truncate(0);
        let logits = decoder.feed(&[first]).map_err(|e| Rejection::Launch(e.to_string()))?;
        if logits.iter().all(|v| v.is_finite()) {
            return Ok(());
        }
        Err(wrong("non-finite", f64::NAN, "the default's logits are not finite".to_owned()))
    }

    fn floor(&self, _point: Point) -> Option<Duration> {
        floor(self.model.weights.bytes_per_token, self.spec.read_gb_s)
    }
}
