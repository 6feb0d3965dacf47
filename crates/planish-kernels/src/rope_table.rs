//! Frequencies of rotary embeddings, in f64 on the host, for every way of scaling them to longer contexts.

use crate::Error;
use crate::reference::rope::Pairs;
use std::f64::consts::PI;
use std::fmt;

/// How frequencies are changed for contexts longer than the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling<'a> {
    /// Not at all.
    None,
    /// Positions divided by a factor.
    Linear {
        /// Context extension.
        factor: f64,
    },
    /// Long wavelengths divided by a factor, short ones kept, a linear blend between.
    Llama3 {
        /// Context extension.
        factor: f64,
        /// Wavelengths over `original / low` are divided.
        low: f64,
        /// Wavelengths under `original / high` are kept.
        high: f64,
        /// Trained context.
        original: f64,
    },
    /// A larger base once the context is longer than the trained one ("dynamic NTK").
    Dynamic {
        /// Context extension.
        factor: f64,
        /// Trained context.
        original: f64,
        /// Current context.
        context: f64,
    },
    /// A ramp over dimensions between kept and divided frequencies, with a magnitude.
    Yarn(Yarn),
    /// Every frequency divided by its own factor, with a magnitude.
    LongRope(LongRope<'a>),
    /// Only the first `share` of the pairs turn, at frequencies of the whole head, all divided by a factor.
    Proportional {
        /// Fraction of the pairs that turn.
        share: f64,
        /// Context extension.
        factor: f64,
    },
}

/// In words, with the numbers that a file gives.
impl fmt::Display for Scaling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scaling::None => f.write_str("no scaling"),
            Scaling::Linear { factor } => write!(f, "linear scaling by {factor}"),
            Scaling::Llama3 { factor, low, high, original } => {
                write!(f, "llama3 scaling by {factor} ({low} to {high} of {original} positions)")
            }
            Scaling::Dynamic { factor, original, context } => {
                write!(f, "dynamic scaling by {factor} from {original} to {context} positions")
            }
            Scaling::Yarn(y) => write!(
                f,
                "yarn scaling by {} from {} positions ({} to {} turns)",
                y.factor, y.original, y.beta_slow, y.beta_fast
            ),
            Scaling::LongRope(l) => {
                write!(f, "longrope scaling by {} from {} to {} positions", l.factor, l.original, l.context)
            }
            Scaling::Proportional { share, factor } => write!(f, "scaling by {factor} of {share} of the pairs"),
        }
    }
}

/// Parameters of YaRN (arXiv 2309.00071).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Context extension.
    pub factor: f64,
    /// Trained context.
    pub original: f64,
    /// Rotations over the trained context above which a dimension is kept; usually 32.
    pub beta_fast: f64,
    /// Rotations under which a dimension is divided; usually 1.
    pub beta_slow: f64,
    /// Magnitude of cos and sin; `None` is 0.1 m ln(factor) + 1 with m = 1, or a ratio of two such where `mscale` is
    /// given.
    pub attention_factor: Option<f64>,
    /// The m of numerator and denominator of the magnitude (`mscale`, `mscale_all_dim`).
    pub mscale: Option<(f64, f64)>,
    /// Whether the ramp's ends are rounded outwards to whole dimensions, as is usual.
    pub truncate: bool,
}

impl Yarn {
    /// The usual parameters for a context `factor` times the trained one of `original` positions.
    pub fn new(factor: f64, original: f64) -> Yarn {
        let (beta_fast, beta_slow) = (32.0, 1.0);
        Yarn { factor, original, beta_fast, beta_slow, attention_factor: None, mscale: None, truncate: true }
    }

    fn magnitude(&self) -> f64 {
        let scale = |m: f64| if self.factor > 1.0 { 0.1 * m * self.factor.ln() + 1.0 } else { 1.0 };
        self.attention_factor.unwrap_or_else(|| match self.mscale {
            Some((m, all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
            _ => scale(1.0),
        })
    }
}

/// Parameters of LongRoPE (arXiv 2402.13753).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongRope<'a> {
    /// Divisors of the frequencies up to the trained context, one a pair.
    pub short: &'a [f64],
    /// Divisors beyond it.
    pub long: &'a [f64],
    /// Trained context.
    pub original: f64,
    /// Current context, which chooses between them.
    pub context: f64,
    /// Longest context over the trained one.
    pub factor: f64,
    /// Magnitude of cos and sin; `None` is sqrt(1 + ln(factor) / ln(original)).
    pub attention_factor: Option<f64>,
}

/// Frequencies of one kind of layer.
#[derive(Clone, Debug)]
pub struct RopeTable {
    frequencies: Vec<f64>,
    magnitude: f64,
    pairs: Pairs,
}

/// Frequencies for the first `rotary_dim` elements (even, at most a head) with base `base`.
///
/// `factors` divide the frequencies one by one (GGUF's `rope_freqs.weight`), before any scaling.
///
/// # Errors
/// An odd or empty `rotary_dim`, a wrong number of factors, or a value that is not positive and finite.
pub fn rope_table(
    rotary_dim: usize,
    base: f64,
    factors: Option<&[f32]>,
    scaling: Scaling<'_>,
    pairs: Pairs,
) -> Result<RopeTable, Error> {
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        return Err(Error::new(format!("rope: {rotary_dim} rotary elements are not a positive even number")));
    }
    let count = rotary_dim / 2;
    let per_pair = |what: &str, n: usize| match n == count {
        true => Ok(()),
        false => Err(Error::new(format!("rope: {n} {what} for {count} pairs"))),
    };
    factors.map_or(Ok(()), |f| per_pair("frequency factors", f.len()))?;
    if let Scaling::LongRope(l) = scaling {
        per_pair("short factors", l.short.len())?;
        per_pair("long factors", l.long.len())?;
    }
    let power = effective_base(base, rotary_dim as f64, scaling);
    let mut frequencies: Vec<f64> = (0..count).map(|i| power.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
    for (f, &d) in frequencies.iter_mut().zip(factors.unwrap_or(&[])) {
        *f /= d as f64;
    }
    let magnitude = rescale(&mut frequencies, base, scaling);
    let sound = |v: &f64| v.is_finite() && *v > 0.0;
    let still = |v: &f64| matches!(scaling, Scaling::Proportional { .. }) && *v == 0.0;
    if base <= 1.0 || !sound(&magnitude) || !frequencies.iter().all(|v| sound(v) || still(v)) {
        return Err(Error::new(format!(
            "rope: base {base} with {scaling} gives frequencies that are not positive and finite"
        )));
    }
    Ok(RopeTable { frequencies, magnitude, pairs })
}

/// The base after a scaling that changes it.
fn effective_base(base: f64, rotary_dim: f64, scaling: Scaling<'_>) -> f64 {
    match scaling {
        Scaling::Dynamic { factor, original, context } if context > original => {
            base * (factor * context / original - (factor - 1.0)).powf(rotary_dim / (rotary_dim - 2.0))
        }
        _ => base,
    }
}

/// Applies `scaling` to the frequencies and returns the magnitude of cos and sin.
fn rescale(frequencies: &mut [f64], base: f64, scaling: Scaling<'_>) -> f64 {
    match scaling {
        Scaling::None | Scaling::Dynamic { .. } => {}
        Scaling::Linear { factor } => frequencies.iter_mut().for_each(|w| *w /= factor),
        Scaling::Llama3 { factor, low, high, original } => {
            for w in frequencies {
                let wavelength = 2.0 * PI / *w;
                if wavelength > original / low {
                    *w /= factor;
                } else if wavelength >= original / high {
                    let keep = (original / wavelength - low) / (high - low);
                    *w = (1.0 - keep) * *w / factor + keep * *w;
                }
            }
        }
        Scaling::Yarn(y) => {
            ramp(frequencies, base, &y);
            return y.magnitude();
        }
        Scaling::LongRope(l) => {
            let divisors = if l.context > l.original { l.long } else { l.short };
            frequencies.iter_mut().zip(divisors).for_each(|(w, d)| *w /= d);
            let usual = if l.factor > 1.0 { (1.0 + l.factor.ln() / l.original.ln()).sqrt() } else { 1.0 };
            return l.attention_factor.unwrap_or(usual);
        }
        Scaling::Proportional { share, factor } => {
            let turning = (share * frequencies.len() as f64).floor() as usize;
            for (i, w) in frequencies.iter_mut().enumerate() {
                *w = if i < turning { *w / factor } else { 0.0 };
            }
        }
    }
    1.0
}

/// Divides the frequencies of slow dimensions, keeps those of fast ones, and blends between.
fn ramp(frequencies: &mut [f64], base: f64, y: &Yarn) {
    let rotary_dim = 2.0 * frequencies.len() as f64;
    let turns = |r: f64| rotary_dim * (y.original / (2.0 * PI * r)).ln() / (2.0 * base.ln());
    let (mut low, mut high) = (turns(y.beta_fast), turns(y.beta_slow));
    if y.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(rotary_dim - 1.0));
    if high == low {
        high += 0.001;
    }
    for (i, w) in frequencies.iter_mut().enumerate() {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        *w = *w / y.factor * ramp + *w * (1.0 - ramp);
    }
}

impl RopeTable {
    /// Rotary elements of a head.
    pub fn rotary_dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// How elements pair up.
    pub fn pairs(&self) -> Pairs {
        self.pairs
    }

    /// Radians a position, one a pair.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// The same as kernels take them.
    pub fn frequencies_f32(&self) -> Vec<f32> {
        self.frequencies.iter().map(|w| *w as f32).collect()
    }

    /// Factor of cos and sin.
    pub fn magnitude(&self) -> f64 {
        self.magnitude
    }

    /// Elements of a row of cos, and of sin: one a pair for halves, two for neighbours.
    pub fn row_len(&self) -> usize {
        match self.pairs {
            Pairs::Halves => self.frequencies.len(),
            Pairs::Neighbours => 2 * self.frequencies.len(),
        }
    }

    /// Fills rows of cos and sin for positions `first..first + n`, n = `cos.len() / row_len()`.
    ///
    /// For neighbours each cos stands twice and sin stands as (-sin, sin), ready for a product with exchanged pairs.
    pub fn fill(&self, first: usize, cos: &mut [f32], sin: &mut [f32]) {
        let row = self.row_len();
        assert!(cos.len() == sin.len() && cos.len().is_multiple_of(row), "{} {} of {row}", cos.len(), sin.len());
        for (t, (cos, sin)) in cos.chunks_exact_mut(row).zip(sin.chunks_exact_mut(row)).enumerate() {
            for (i, w) in self.frequencies.iter().enumerate() {
                let (s, c) = ((first + t) as f64 * w).sin_cos();
                let (c, s) = ((self.magnitude * c) as f32, (self.magnitude * s) as f32);
                match self.pairs {
                    Pairs::Halves => (cos[i], sin[i]) = (c, s),
                    Pairs::Neighbours => {
                        (cos[2 * i], cos[2 * i + 1]) = (c, c);
                        (sin[2 * i], sin[2 * i + 1]) = (-s, s);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_of_each_scaling() {
        let make = |factors: Option<&[f32]>, scaling| rope_table(8, 10_000.0, factors, scaling, Pairs::Halves).unwrap();
        let close = |t: &RopeTable, want: [f64; 4]| {
            for (a, b) in t.frequencies().iter().zip(want) {
                assert!((a / b - 1.0).abs() < 1e-12, "{:?} instead of {want:?}", t.frequencies());
            }
        };
        close(&make(None, Scaling::None), [1.0, 0.1, 0.01, 0.001]);
        close(&make(Some(&[1.0, 2.0, 4.0, 8.0]), Scaling::None), [1.0, 0.05, 0.0025, 0.000125]);
        close(&make(None, Scaling::Linear { factor: 4.0 }), [0.25, 0.025, 0.0025, 0.00025]);
        // Wavelengths 6.28, 62.8, 628, 6283 over a context of 1256.64: kept, kept, blended at (2 - 1) / 3, divided.
        let original = 400.0 * PI;
        let llama3 = make(None, Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original });
        close(&llama3, [1.0, 0.1, 0.01 * (2.0 / 3.0 / 8.0 + 1.0 / 3.0), 0.001 / 8.0]);
    }

    #[test]
    fn yarn_ramps_between_its_two_dimensions() {
        // n = 64, base 10000, context 4096: dimensions d(32) = 32 ln(4096 / 64 pi) / ln 10000 = 10.47 and d(1) = 22.51.
        let yarn = Yarn::new(16.0, 4096.0);
        let table = rope_table(64, 10_000.0, None, Scaling::Yarn(yarn), Pairs::Halves).unwrap();
        let plain = rope_table(64, 10_000.0, None, Scaling::None, Pairs::Halves).unwrap();
        for (i, (y, w)) in table.frequencies().iter().zip(plain.frequencies()).enumerate() {
            let ramp = ((i as f64 - 10.0) / 13.0).clamp(0.0, 1.0);
            assert!((y / w - (1.0 - ramp * 15.0 / 16.0)).abs() < 1e-12, "dimension {i}");
        }
        assert!((table.magnitude() - (0.1 * 16f64.ln() + 1.0)).abs() < 1e-12);
        let (mut cos, mut sin) = ([0.0; 32], [0.0; 32]);
        table.fill(0, &mut cos, &mut sin);
        assert_eq!((cos[31], sin[31]), (table.magnitude() as f32, 0.0));
    }

    #[test]
    fn refuses_what_has_no_frequencies() {
        for (dim, base, factors) in [
            (0, 1e4, None),
            (7, 1e4, None),
            (8, 1e4, Some(&[1.0f32; 3][..])),
            (8, 1e4, Some(&[0.0; 4][..])),
            (8, f64::NAN, None),
        ] {
            assert!(rope_table(dim, base, factors, Scaling::None, Pairs::Halves).is_err(), "{dim} {base}");
        }
        let told =
            |scaling| rope_table(8, 1e4, Some(&[0.0; 4]), scaling, Pairs::Halves).map(drop).unwrap_err().to_string();
        assert!(told(Scaling::None).contains("base 10000 with no scaling gives"), "{}", told(Scaling::None));
        assert!(told(Scaling::Yarn(Yarn::new(4.0, 2048.0))).contains("with yarn scaling by 4 from 2048 positions"));
    }
}
