//! Compares this engine's logits with expected ones computed elsewhere in f64, within what rounding explains.
//!
//! The expected file says, for every prompt, by how much the reference itself moves in each arithmetic; an engine may
//! move by a small multiple of that. The error's mean, the shift, is taken out first, since the softmax ignores it.

use planish_kernels::cpu::isa::Isa;
use serde::{Deserialize, Serialize};

use crate::decoder::Decoder;
use crate::error::{Error, Result};
use crate::generate::greedy_token;
use crate::gpu::GpuDecoder;

/// Multiples of the reference's own deviation that an engine may show.
const FACTORS: Measures = Measures { rms: 2.0, max: 2.5, kl: 6.0, shift: 4.0 };
/// A few f32 roundings of a logit, allowed on top.
const FLOORS: Measures = Measures { rms: 1e-5, max: 5e-5, kl: 1e-9, shift: 1e-5 };
/// How much further than llama.cpp from the reference is still "not worse", in the geometric mean over prompts.
const NOT_WORSE: f64 = 1.25;

/// Size of a difference between two vectors of logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Root mean square of the error less its mean.
    pub rms: f64,
    /// Largest such error.
    pub max: f64,
    /// KL(expected || engine) in nats.
    pub kl: f64,
    /// Absolute mean error.
    pub shift: f64,
}

/// An expected file.
#[derive(Clone, Debug, Deserialize)]
pub struct ExpectedFile {
    /// Name of the model.
    pub model: String,
    /// SHA-256 of the model file.
    #[serde(default)]
    pub sha256: String,
    /// Prompts with their logits.
    pub prompts: Vec<Prompt>,
}

/// One prompt and what must come out.
#[derive(Clone, Debug, Deserialize)]
pub struct Prompt {
    /// Name for reports.
    pub name: String,
    /// Token ids, complete.
    pub ids: Vec<u32>,
    /// All logits after the last id (small vocabularies).
    pub logits_last: Option<Vec<f64>>,
    /// Size of the vocabulary (large ones).
    pub vocab: Option<usize>,
    /// Ids at which logits are given: after every id, or after the last.
    #[serde(default)]
    pub probe_ids: Vec<usize>,
    /// `[position][probe]`.
    pub probe_logits_all: Option<Vec<Vec<f64>>>,
    /// After the last id, at `probe_ids`.
    pub probe_logits: Option<Vec<f64>>,
    /// The best ids after the last.
    pub top_ids: Option<Vec<usize>>,
    /// Their logits.
    pub top_logits: Option<Vec<f64>>,
    /// Log of the sum of exponentials of all logits.
    pub logsumexp: Option<f64>,
    /// Lead of the best logit over the second.
    pub top_gap: f64,
    /// Greedy continuation.
    #[serde(default)]
    pub greedy_ids: Vec<u32>,
    /// Lead of each of its logits over the second best.
    #[serde(default)]
    pub greedy_gaps: Vec<f64>,
    /// Hidden states of the last position: the embedding, after each layer, and after the output norm.
    #[serde(default)]
    pub layers: Vec<Checkpoint>,
    /// The reference's own deviation by arithmetic.
    pub deviation: std::collections::BTreeMap<String, serde_json::Value>,
}

/// A few numbers of a hidden state.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Checkpoint {
    /// Euclidean norm.
    pub norm: f64,
    /// Its first values.
    pub first: [f64; 4],
    /// Its last values.
    pub last: [f64; 4],
}

/// What the engine computed for a prompt; serialises to the dump format.
#[derive(Clone, Debug, Serialize)]
pub struct Dump {
    /// Ids fed.
    pub ids: Vec<u32>,
    /// Logits after the last.
    pub logits: Vec<f32>,
    /// Logits after every id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions: Option<Vec<Vec<f32>>>,
    /// Greedy continuation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub greedy: Vec<u32>,
}

/// How a prompt fared.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Name of the prompt.
    pub prompt: String,
    /// `prefill` or `steps`.
    pub path: &'static str,
    /// Deviation from the expected logits.
    pub measures: Measures,
    /// What was allowed.
    pub limits: Measures,
    /// Whether the best id is the expected one.
    pub same_best: bool,
    /// RMS over that of llama.cpp on the same prompt, when the file has it.
    pub over_llama: Option<f64>,
    /// Why it fails; empty when it passes.
    pub reasons: Vec<String>,
}

/// How the prompt is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// All ids through prefill steps.
    Prefill,
    /// One id a step.
    Steps,
}

/// A decoder as the comparison drives it.
pub trait Feed {
    /// Tokens in the cache.
    fn position(&self) -> usize;
    /// Forgets all tokens after the first `position`.
    fn truncate(&mut self, position: usize);
    /// Feeds `ids` and returns the logits after the last.
    fn feed(&mut self, ids: &[u32]) -> Result<&[f32]>;
    /// Feeds `ids` and returns the logits after every one.
    fn feed_all(&mut self, ids: &[u32]) -> Result<Vec<Vec<f32>>>;
}

impl Feed for Decoder<'_> {
    fn position(&self) -> usize {
        Decoder::position(self)
    }

    fn truncate(&mut self, position: usize) {
        Decoder::truncate(self, position);
    }

    fn feed(&mut self, ids: &[u32]) -> Result<&[f32]> {
        Decoder::feed(self, ids)
    }

    fn feed_all(&mut self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        Decoder::feed_all(self, ids)
    }
}

impl Feed for GpuDecoder<'_> {
    fn position(&self) -> usize {
        GpuDecoder::position(self)
    }

    fn truncate(&mut self, position: usize) {
        GpuDecoder::truncate(self, position);
    }

    fn feed(&mut self, ids: &[u32]) -> Result<&[f32]> {
        GpuDecoder::feed(self, ids)
    }

    fn feed_all(&mut self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        GpuDecoder::feed_all(self, ids)
    }
}

impl Dump {
    /// In how many logits another dump of the prompt has other bits, and of how many.
    pub fn apart(&self, other: &Dump) -> (usize, usize) {
        let all = |d: &Dump| -> Vec<u32> {
            d.positions.iter().flatten().flatten().chain(&d.logits).map(|logit| logit.to_bits()).collect()
        };
        let (a, b) = (all(self), all(other));
        (a.iter().zip(&b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len()), a.len())
    }
}

/// Feeds a prompt from an empty cache and, where the file has one, follows its greedy continuation.
pub fn run(decoder: &mut dyn Feed, prompt: &Prompt, path: Path) -> Result<Dump> {
    let mut dump = feed(decoder, prompt, path)?;
    go_on(decoder, prompt, &mut dump)?;
    Ok(dump)
}

/// Feeds a prompt from an empty cache.
pub fn feed(decoder: &mut dyn Feed, prompt: &Prompt, path: Path) -> Result<Dump> {
    decoder.truncate(0);
    let wants_all = prompt.probe_logits_all.is_some();
    let mut positions = Vec::new();
    let mut logits = Vec::new();
    match path {
        Path::Steps => {
            for id in &prompt.ids {
                logits = decoder.feed(std::slice::from_ref(id))?.to_vec();
                if wants_all {
                    positions.push(logits.clone());
                }
            }
        }
        Path::Prefill if wants_all => {
            positions = decoder.feed_all(&prompt.ids)?;
            decoder.truncate(0);
            logits = decoder.feed(&prompt.ids)?.to_vec();
        }
        Path::Prefill => logits = decoder.feed(&prompt.ids)?.to_vec(),
    }
    Ok(Dump { ids: prompt.ids.clone(), logits, positions: wants_all.then_some(positions), greedy: Vec::new() })
}

/// Follows the greedy continuation of a prompt that was fed last and gave `dump`, up to where another token comes; the
/// logits behind the last token that was fed.
pub fn go_on(decoder: &mut dyn Feed, prompt: &Prompt, dump: &mut Dump) -> Result<Vec<f32>> {
    let mut logits = dump.logits.clone();
    for want in &prompt.greedy_ids {
        // Without one the logits are broken, which the verdict says.
        let Some(id) = greedy_token(Isa::Portable, &logits) else { break };
        dump.greedy.push(id);
        if id != *want || dump.greedy.len() == prompt.greedy_ids.len() {
            break;
        }
        logits.copy_from_slice(decoder.feed(&[id])?);
    }
    Ok(logits)
}

/// Judges a dump in arithmetic `mode`: `f32`, `f32_kv16`, `int8`, `int8_kv16`.
pub fn judge(prompt: &Prompt, dump: &Dump, mode: &str, path: Path) -> Result<Verdict> {
    let vocab = prompt.logits_last.as_ref().map(Vec::len).or(prompt.vocab).unwrap_or(0);
    if dump.logits.len() != vocab {
        return Err(Error::request(format!("{} logits for a vocabulary of {vocab}", dump.logits.len())));
    }
    let own = deviation(prompt, mode)
        .ok_or_else(|| Error::request(format!("prompt {} has no deviation for mode {mode}", prompt.name)))?;
    let limits = Measures {
        rms: FACTORS.rms * own.rms + FLOORS.rms,
        max: FACTORS.max * own.max + FLOORS.max,
        kl: FACTORS.kl * own.kl + FLOORS.kl,
        shift: FACTORS.shift * own.shift + 2.0 * own.rms + FLOORS.shift,
    };
    let mut reasons = Vec::new();
    if dump.logits.iter().any(|v| !v.is_finite()) {
        reasons.push("a logit is NaN or infinite".to_owned());
    }
    let (measures, expected_best) = compare(prompt, &dump.logits)?;
    let pairs = [
        ("rms", measures.rms, limits.rms),
        ("max", measures.max, limits.max),
        ("kl", measures.kl, limits.kl),
        ("shift", measures.shift, limits.shift),
    ];
    reasons.extend(
        pairs.iter().filter(|(_, m, l)| *m > *l || m.is_nan()).map(|(n, m, l)| format!("{n} {m:.3e} > {l:.3e}")),
    );
    let best = greedy_token(Isa::detect(), &dump.logits).map(|id| id as usize);
    let same_best = best == Some(expected_best);
    if let Some(best) = best
        && !same_best
        && prompt.top_gap > 4.0 * limits.rms
    {
        reasons.push(format!("best id {best} instead of {expected_best}"));
    }
    reasons.extend(check_positions(prompt, dump, &limits));
    reasons.extend(check_greedy(prompt, dump, &limits));
    let over_llama = deviation(prompt, "llama.cpp").map(|l| measures.rms / l.rms);
    let path = if path == Path::Prefill { "prefill" } else { "steps" };
    Ok(Verdict { prompt: prompt.name.clone(), path, measures, limits, same_best, over_llama, reasons })
}

fn deviation(prompt: &Prompt, mode: &str) -> Option<Measures> {
    let value = prompt.deviation.get(mode)?;
    let get = |k: &str| value.get(k).and_then(serde_json::Value::as_f64);
    Some(Measures { rms: get("rms")?, max: get("max")?, kl: get("kl")?, shift: get("shift")? })
}

/// Geometric mean of the ratios to llama.cpp, and whether it is within what counts as not worse.
pub fn not_worse_than_llama(verdicts: &[Verdict]) -> Option<(f64, bool)> {
    let logs: Vec<f64> = verdicts.iter().filter_map(|v| v.over_llama).map(|r| r.max(1e-9).ln()).collect();
    let mean = (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())?;
    Some((mean, mean <= NOT_WORSE))
}

fn compare(prompt: &Prompt, got: &[f32]) -> Result<(Measures, usize)> {
    let got: Vec<f64> = got.iter().map(|v| f64::from(*v)).collect();
    if let Some(want) = &prompt.logits_last {
        let (shift, rms, max) = spread(want, &got, &[], &[]);
        let (p, q) = (logsumexp(want), logsumexp(&got));
        let kl = want.iter().zip(&got).map(|(a, b)| (a - p).exp() * ((a - p) - (b - q))).sum::<f64>().max(0.0);
        let expected = (0..want.len()).max_by(|a, b| want[*a].total_cmp(&want[*b]).then(b.cmp(a))).unwrap_or(0);
        return Ok((Measures { rms, max, kl, shift }, expected));
    }
    let missing = |what: &str| Error::request(format!("prompt {} has no {what}", prompt.name));
    let top = prompt.top_ids.as_ref().ok_or_else(|| missing("top_ids"))?;
    let top_want = prompt.top_logits.as_ref().ok_or_else(|| missing("top_logits"))?;
    let probe_want = prompt.probe_logits.as_ref().ok_or_else(|| missing("probe_logits"))?;
    let lse = prompt.logsumexp.ok_or_else(|| missing("logsumexp"))?;
    if let Some(id) = top.iter().chain(&prompt.probe_ids).find(|id| **id >= got.len()) {
        return Err(Error::request(format!("prompt {}: id {id} is outside {} logits", prompt.name, got.len())));
    }
    let at = |ids: &[usize]| ids.iter().map(|id| got[*id]).collect::<Vec<f64>>();
    let (shift, rms, max) = spread(probe_want, &at(&prompt.probe_ids), top_want, &at(top));
    let q = logsumexp(&got);
    let fresh = prompt.probe_ids.iter().zip(probe_want).filter(|(id, _)| !top.contains(id));
    let (mut kl, mut rest_p, mut rest_q) = (0.0, 1.0, 1.0);
    for (id, want) in top.iter().zip(top_want).chain(fresh) {
        let (lp, lq) = (want - lse, got[*id] - q);
        kl += lp.exp() * (lp - lq);
        rest_p -= lp.exp();
        rest_q -= lq.exp();
    }
    if rest_p > 1e-12 && rest_q > 1e-12 {
        kl += rest_p * (rest_p / rest_q).ln();
    }
    Ok((Measures { rms, max, kl: kl.max(0.0), shift }, top.first().copied().unwrap_or(0)))
}

/// Absolute mean, RMS about the mean, and largest error about the mean, the last also over a second pair.
fn spread(want: &[f64], got: &[f64], more_want: &[f64], more_got: &[f64]) -> (f64, f64, f64) {
    let errors: Vec<f64> = got.iter().zip(want).map(|(g, w)| g - w).collect();
    let n = errors.len().max(1) as f64;
    let mean = errors.iter().sum::<f64>() / n;
    let rms = (errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / n).sqrt();
    let more = more_got.iter().zip(more_want).map(|(g, w)| g - w);
    let max = errors.iter().copied().chain(more).map(|e| (e - mean).abs()).fold(0.0, f64::max);
    (mean.abs(), rms, max)
}

/// Root of the mean square of `got - want`, over the deviation of `want`; not a number where a logit is none.
pub(crate) fn relative(got: &[f32], want: &[f32]) -> f64 {
    let n = want.len() as f64;
    let mean = want.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let spread: f64 = want.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum();
    let error: f64 = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - f64::from(*w)).powi(2)).sum();
    (error / spread.max(f64::MIN_POSITIVE)).sqrt()
}

fn logsumexp(x: &[f64]) -> f64 {
    let m = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    m + x.iter().map(|v| (v - m).exp()).sum::<f64>().ln()
}

/// Every position at the probe ids, within twice the bound of the last position, since positions vary.
fn check_positions(prompt: &Prompt, dump: &Dump, limits: &Measures) -> Vec<String> {
    let (Some(want), Some(got)) = (&prompt.probe_logits_all, &dump.positions) else {
        return Vec::new();
    };
    if want.len() != got.len() {
        return vec![format!("{} positions instead of {}", got.len(), want.len())];
    }
    let bound = 2.0 * (limits.max + limits.shift);
    let off = |i: usize| {
        let pairs = prompt.probe_ids.iter().zip(&want[i]);
        pairs.map(|(id, w)| got[i].get(*id).map_or(f64::INFINITY, |g| (f64::from(*g) - w).abs())).fold(0.0, f64::max)
    };
    let bad: Vec<String> = (0..want.len())
        .map(|i| (i, off(i)))
        .filter(|(_, w)| *w > bound || w.is_nan())
        .map(|(i, w)| format!("position {i} off by {w:.3e} > {bound:.3e}"))
        .collect();
    bad.into_iter().take(5).collect()
}

/// The continuation may leave the expected one only where the two best logits were nearly equal.
fn check_greedy(prompt: &Prompt, dump: &Dump, limits: &Measures) -> Option<String> {
    let pairs = prompt.greedy_ids.iter().zip(&dump.greedy);
    let (i, (want, got)) = pairs.enumerate().find(|(_, (w, g))| w != g)?;
    let gap = prompt.greedy_gaps.get(i).copied().unwrap_or(0.0);
    (gap > 4.0 * limits.rms).then(|| format!("greedy id {i} is {got}, not {want} (gap {gap:.3e})"))
}

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn errors_are_told_over_the_spread() {
        let want = [1.0, -1.0, 3.0, -3.0];
        assert_eq!(relative(&want, &want), 0.0);
        assert!((relative(&[2.0, 0.0, 4.0, -2.0], &want) - 1.0 / 5f64.sqrt()).abs() < 1e-12);
        assert!(relative(&[f32::NAN, 0.0, 0.0, 0.0], &want).is_nan());
    }
}
