//! What the four cross entropy ops share: fields, attributes, targets and the bounds of a loss.
//!
//! Fields: `softcap` and `smooth` are 0 or 1, for what costs work a logit; `reduction` is none, sum or mean.
//! Attributes: `scale`, `cap` (with `softcap`), `smooth` and `z`, and `ignore_index`, the target that does not count.

use planish_tune::Constraint;

use super::reference::{Loss, Reduction};
use crate::data::{self, Rng};
use crate::gpu::Tier;
use crate::gpu::text::{KernelLaunch, Text, check_io};
use crate::op::{Arg, Attrs, Dtype, Expected, Fill, Shape};

/// Threads of the launch that adds losses.
const REDUCE_THREADS: usize = 256;

/// Checks a shape with `sizes` beside the fields that every loss has.
pub fn check(s: &Shape, sizes: &[&str]) -> Result<(), String> {
    let flags: Vec<&str> = sizes.iter().copied().filter(|n| matches!(*n, "bias" | "frozen")).collect();
    s.check(&[sizes, &["softcap", "smooth"]].concat(), &["reduction", "type"])?;
    for flag in flags.into_iter().chain(["softcap", "smooth"]) {
        if s.size(flag) > 1 {
            return Err(format!("{s}: {flag} is 0 or 1"));
        }
    }
    Reduction::of(s.name("reduction")).ok_or_else(|| format!("{s}: reduction is none, sum or mean"))?;
    check_io(s)
}

/// The loss of a call.
pub fn loss_of(s: &Shape, attrs: &Attrs) -> Loss {
    let of = |name, on: usize| if on == 1 { f64::from(attrs.get(name) as f32) } else { 0.0 };
    Loss {
        vocab: s.size("vocab"),
        ignore: attrs.get("ignore_index") as i64 as u32,
        scale: of("scale", 1),
        cap: of("cap", s.size("softcap")),
        smooth: of("smooth", s.size("smooth")),
        z: of("z", 1),
        reduction: Reduction::of(s.name("reduction")).expect("shape was checked"),
    }
}

/// Scale, cap, smoothing and z as a kernel takes them.
pub fn words(o: &Loss) -> [u32; 4] {
    [o.scale, o.cap, o.smooth, o.z].map(|v| (v as f32).to_bits())
}

/// The constraint that a group fits the device.
pub fn threads_within(limit: i64) -> Constraint {
    Constraint::new(format!("THREADS <= {limit}"), move |c| c.int("THREADS").is_some_and(|t| t <= limit))
}

/// Threads a token to begin with, by the size of the vocabulary.
pub fn seed_threads(s: &Shape, tier: Tier) -> i64 {
    let large = match s.size("vocab") {
        0..32_768 => 0,
        32_768..131_072 => 1,
        _ => 2,
    };
    if tier == Tier::Base { [128, 256, 512][large] } else { [256, 512, 1024][large] }
}

/// The launch that adds losses; its arguments are loss, targets and total.
pub fn reduce<'a>(text: &'a Text, mut constants: Vec<(&'a str, i64)>, tokens: usize, o: &Loss) -> KernelLaunch<'a> {
    constants.iter_mut().filter(|(name, _)| *name == "THREADS").for_each(|(_, v)| *v = REDUCE_THREADS as i64);
    KernelLaunch {
        text,
        entry: "reduce_loss",
        constants,
        params: vec![tokens as u32, o.vocab as u32, o.ignore, o.reduction as u32],
        groups: 1,
        threads: REDUCE_THREADS,
        shared_bytes: 0,
    }
}

/// The attributes of a problem: plain without softcap and smoothing, else with every option in use.
pub fn attrs(s: &Shape, fill: Fill) -> Attrs {
    let full = s.size("softcap") + s.size("smooth") > 0;
    Attrs::new()
        .with("scale", if full { 0.5 } else { 1.0 })
        .with("cap", 8.0)
        .with("smooth", f64::from(0.1f32))
        .with("z", if full { f64::from(1e-3f32) } else { 0.0 })
        .with("ignore_index", if fill == Fill::Extreme { 1.0 } else { -100.0 })
}

/// Targets, and their bytes.
pub struct Targets {
    /// One a token.
    pub values: Vec<u32>,
    /// Little-endian.
    pub bytes: Vec<u8>,
}

/// Random targets, the first and the last entry among them, some ignored and some outside the vocabulary;
/// two tokens with extreme inputs are both ignored.
pub fn targets(rng: &mut Rng, tokens: usize, o: &Loss, fill: Fill) -> Targets {
    let one = |t: usize, random: u32| match t % 6 {
        _ if fill == Fill::Extreme && tokens == 2 => o.ignore,
        2 => o.ignore,
        4 => o.vocab as u32 + 3,
        0 => o.vocab as u32 - 1,
        3 => 0,
        _ => random,
    };
    let values: Vec<u32> = (0..tokens).map(|t| one(t, rng.below(o.vocab as u64) as u32)).collect();
    Targets { bytes: data::bytes_u32(&values), values }
}

/// Logits as rounded, and their bytes. Extreme ones are large, and by token -inf in the first half except at the
/// target, -inf everywhere, or -inf at the target.
pub fn logits(rng: &mut Rng, targets: &[u32], o: &Loss, (io, fill): (Dtype, Fill)) -> (Vec<f32>, Vec<u8>) {
    let mut x = data::floats(rng, targets.len() * o.vocab, fill);
    x.iter_mut().for_each(|v| *v *= 3.0);
    if fill == Fill::Extreme {
        for (t, (row, target)) in x.chunks_mut(o.vocab).zip(targets).enumerate() {
            let target = (*target as usize).min(o.vocab - 1);
            let kept = row[target];
            match t % 6 {
                0 => {
                    row[..o.vocab / 2].fill(f32::NEG_INFINITY);
                    row[target] = kept;
                }
                1 => row[target] = f32::NEG_INFINITY,
                3 if t > 3 => row.fill(f32::NEG_INFINITY),
                _ => {}
            }
        }
    }
    let bytes = data::rounded(&mut x, io);
    (x, bytes)
}

/// Outputs loss, lse and total. An error is measured against max(1, |lse|): at most twice that of plain f32 arithmetic
/// plus four roundings (an exponential, a logarithm and two sums), and never above `ceiling`.
pub fn outputs(
    fill: Fill,
    tokens: usize,
    (ceiling, reduction): (f64, Reduction),
    reference: impl FnOnce() -> ([Vec<f64>; 3], [Vec<f32>; 3]),
) -> Vec<Arg> {
    if fill == Fill::Unjudged {
        return [tokens, tokens, 2].map(|n| Arg::Out(Expected::exact(Dtype::F32, vec![0.0; n]))).into();
    }
    let (exact, plain) = reference();
    let size: Vec<f64> = exact[1].iter().map(|l| if l.is_finite() { l.abs().max(1.0) } else { 1.0 }).collect();
    let gap = |k: usize| (0..tokens).map(move |t| (k, t));
    let error = |(k, t): (usize, usize)| (f64::from(plain[k][t]) - exact[k][t]).abs() / size[t];
    let worst = gap(0).chain(gap(1)).map(error).filter(|e| e.is_finite()).fold(0.0, f64::max);
    let unit = (2.0 * worst + 4.0 * f64::exp2(-24.0)).min(ceiling);
    let bounds: Vec<f64> = size.iter().map(|s| unit * s).collect();
    // Errors of the tokens may all add up.
    let terms = if reduction == Reduction::Mean { exact[2][1].max(1.0) } else { 1.0 };
    let total = unit * size.iter().sum::<f64>() / terms;
    let [loss, lse, sums] = exact;
    let out = |values, bounds| Arg::Out(Expected { dtype: Dtype::F32, values, bounds, untouched: 0 });
    vec![out(loss, bounds.clone()), out(lse, bounds), out(sums, vec![total, 0.0])]
}
