//! What `explain` found, as it is kept and shown: where, with what, and how much.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow};
use planish_device::{Backend, Identity, system};
use planish_engine::decoder::Decoder;
use planish_engine::explain::fit::{self, Fit};
use planish_engine::explain::verdict::verdict;
use planish_engine::explain::{Measured, Verdict};
use planish_engine::gpu::GpuDecoder;
use planish_engine::probes::Roof;
use planish_tune::{Policy, counted};
use serde::{Deserialize, Serialize};

use crate::gpu::GpuSession;
use crate::session::{self, Session};

/// One token taken apart, or a fit over models.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Evidence {
    /// A token.
    Token(Box<Explained>),
    /// A fit.
    Fit(Box<Fitted>),
}

impl Evidence {
    /// Refuses evidence of which one part contradicts another.
    pub fn check(&self) -> Result<()> {
        let (points, on_line, what) = match self {
            Evidence::Token(e) => {
                let context = &e.measured.context;
                let points = context.points.len();
                (points, context.line.as_ref().map_or(points, |l| l.points.len()), "position")
            }
            Evidence::Fit(f) => {
                fit::check(&f.fit.samples)?;
                (f.fit.samples.len(), f.fit.line.points.len(), "model")
            }
        };
        if points == on_line {
            return Ok(());
        }
        Err(anyhow!("{}, and a line through {on_line}", counted(points, what)))
    }
}

/// What was measured, on what, with what.
#[derive(Clone, Serialize, Deserialize)]
pub struct Facts {
    /// The model as it was asked for.
    pub model: String,
    /// Its file.
    pub file: String,
    /// Bytes of it.
    pub file_bytes: u64,
    /// Bytes of weights that a token reads, in the file's own formats.
    pub weight_bytes: u64,
    /// `cpu`, `cuda` or `host`.
    pub device: String,
    /// Silicon and toolchain.
    pub identity: Identity,
    /// Threads of the pool; none on a GPU.
    pub threads: Option<u32>,
    /// Instruction set of the kernels; none on a GPU.
    pub isa: Option<String>,
    /// Numerics class.
    pub activations: String,
    /// Type of the cache.
    pub kv: String,
    /// Positions of the cache.
    pub cache_positions: usize,
    /// How many choices come from where.
    pub tiers: BTreeMap<String, usize>,
    /// Of the choices in use.
    pub digest: String,
    /// Over 1, 5 and 15 minutes, when measuring began.
    pub load_average: Option<[f64; 3]>,
    /// Share of this machine's processors that other work took meanwhile.
    #[serde(default)]
    pub by_others: Option<f64>,
    /// Of planish.
    pub version: String,
}

impl Facts {
    /// Of a session on the CPU.
    pub fn of_cpu(model: &str, session: &Session, decoder: &Decoder<'_>) -> Result<Facts> {
        let path = &session.model.file.path;
        Ok(Facts {
            model: model.to_owned(),
            file: name_of(path),
            file_bytes: std::fs::metadata(path)?.len(),
            weight_bytes: session.model.weights.bytes_per_token,
            device: "cpu".to_owned(),
            identity: session.cpu.identity().clone(),
            threads: Some(session.cpu.threads()),
            isa: Some(session.isa.name().to_owned()),
            activations: session.options.activations.name().to_owned(),
            kv: session.options.kv.name().to_owned(),
            cache_positions: session.options.context,
            tiers: session::tiers(decoder).into_iter().map(|(tier, n)| (tier.to_owned(), n)).collect(),
            digest: decoder.frozen().digest().to_owned(),
            load_average: system::load_average(),
            by_others: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

impl Facts {
    /// Of a session on a GPU.
    pub fn of_gpu(model: &str, session: &GpuSession, decoder: &GpuDecoder<'_>) -> Result<Facts> {
        let path = &session.file.path;
        Ok(Facts {
            model: model.to_owned(),
            file: name_of(path),
            file_bytes: std::fs::metadata(path)?.len(),
            weight_bytes: session.weights.bytes_per_token,
            device: session.device.to_string(),
            identity: session.backend.identity().clone(),
            threads: None,
            isa: None,
            activations: session.options.activations.name().to_owned(),
            kv: "f16".to_owned(),
            cache_positions: session.options.context,
            tiers: BTreeMap::from([(decoder.chosen().tier.to_owned(), 1)]),
            digest: decoder.frozen().digest().to_owned(),
            load_average: system::load_average(),
            by_others: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

/// The last part of a path.
fn name_of(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A token taken apart.
#[derive(Serialize, Deserialize)]
pub struct Explained {
    /// Where and with what.
    #[serde(flatten)]
    pub facts: Facts,
    /// All parts over the whole token.
    pub attributed_fraction: f64,
    /// In a sentence.
    pub verdict: Verdict,
    /// Ceilings of this machine.
    pub roof: Roof,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Explained {
    /// Holds what was measured against the ceilings.
    pub fn new(facts: Facts, mut measured: Measured, roof: Roof) -> Explained {
        measured.against(&roof);
        let mut verdict = verdict(&measured, &roof);
        // What others take from a processor stands in its times as waiting; a card has its times to itself.
        let busy = facts.by_others.filter(|share| facts.threads.is_some() && *share > Policy::default().others);
        if let Some(share) = busy {
            verdict.sentence += &format!("; other work took {:.0}% meanwhile: measure again without it", 100.0 * share);
        }
        Explained { facts, attributed_fraction: measured.attributed.median, verdict, roof, measured }
    }
}

/// A fit over models.
#[derive(Serialize, Deserialize)]
pub struct Fitted {
    /// Of the first model; numbers of models are in the samples.
    #[serde(flatten)]
    pub facts: Facts,
    /// The fit.
    pub fit: Fit,
    /// Ceilings of this machine, for the largest model.
    pub roof: Roof,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a processor, as it was committed.
    fn token() -> Explained {
        let text = include_str!("../../../../../docs/lab/0006/smollm2-q4_1.json");
        let mut value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        serde_json::from_value(value["data"].take()).expect("evidence of a token")
    }

    #[test]
    fn a_verdict_beside_other_work_says_so() {
        let sentence = |by_others, threads| {
            let Explained { facts, measured, roof, .. } = token();
            Explained::new(Facts { by_others, threads, ..facts }, measured, roof).verdict.sentence
        };
        assert!(sentence(Some(0.48), Some(2)).ends_with("; other work took 48% meanwhile: measure again without it"));
        for quiet in [sentence(Some(0.01), Some(2)), sentence(None, Some(2)), sentence(Some(0.48), None)] {
            assert!(!quiet.contains("other work"), "{quiet}");
        }
    }
}
