//! Rotary position embedding, with frequencies and angles made in f64 on the host. Bound by reading and writing x.
//!
//! x1' = x1 cos - x2 sin, x2' = x1 sin + x2 cos, over pairs of rotary elements; the rest of a head passes.
//! Angles are not tabled for the whole context: a step fills one row a token and all layers use it.

use crate::Error;
use crate::cpu::simd::{self, LANES, Shared, Simd, isa_kernel};
pub use crate::reference::rope::Pairs;
use std::f64::consts::PI;
use std::ops::Range;

/// How frequencies are changed for contexts longer than the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
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
    /// A ramp over dimensions between kept and divided frequencies, with a magnitude.
    Yarn(Yarn),
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
    /// Magnitude of cos and sin; `None` is 0.1 ln(factor) + 1.
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
    scaling: Scaling,
    pairs: Pairs,
) -> Result<RopeTable, Error> {
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        return Err(Error::new(format!("rope: {rotary_dim} rotary elements are not a positive even number")));
    }
    if let Some(f) = factors
        && f.len() != rotary_dim / 2
    {
        return Err(Error::new(format!("rope: {} frequency factors for {} pairs", f.len(), rotary_dim / 2)));
    }
    let mut frequencies: Vec<f64> =
        (0..rotary_dim / 2).map(|i| base.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
    for (f, &d) in frequencies.iter_mut().zip(factors.unwrap_or(&[])) {
        *f /= d as f64;
    }
    let magnitude = rescale(&mut frequencies, base, scaling);
    let sound = |v: &f64| v.is_finite() && *v > 0.0;
    if base <= 1.0 || !sound(&magnitude) || !frequencies.iter().all(sound) {
        return Err(Error::new(format!(
            "rope: base {base} with {scaling:?} gives frequencies that are not positive and finite"
        )));
    }
    Ok(RopeTable { frequencies, magnitude, pairs })
}

/// Applies `scaling` to the frequencies and returns the magnitude of cos and sin.
fn rescale(frequencies: &mut [f64], base: f64, scaling: Scaling) -> f64 {
    let rotary_dim = 2.0 * frequencies.len() as f64;
    match scaling {
        Scaling::None => 1.0,
        Scaling::Linear { factor } => {
            frequencies.iter_mut().for_each(|w| *w /= factor);
            1.0
        }
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
            1.0
        }
        Scaling::Yarn(y) => {
            let turns = |r: f64| rotary_dim * (y.original / (2.0 * PI * r)).ln() / (2.0 * base.ln());
            let low = turns(y.beta_fast).floor().max(0.0);
            let mut high = turns(y.beta_slow).ceil().min(rotary_dim - 1.0);
            if high == low {
                high += 0.001;
            }
            for (i, w) in frequencies.iter_mut().enumerate() {
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                *w = *w / y.factor * ramp + *w * (1.0 - ramp);
            }
            y.attention_factor.unwrap_or(if y.factor > 1.0 { 0.1 * y.factor.ln() + 1.0 } else { 1.0 })
        }
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

/// Rotates `heads` heads of each token in place.
///
/// Head h of token t starts at element `t * stride + h * head_dim` of `x`.
pub struct Rope<'a> {
    /// Queries or keys.
    pub x: Shared<'a, f32>,
    /// Rows of [`RopeTable::fill`], one a token.
    pub cos: &'a [f32],
    /// As `cos`.
    pub sin: &'a [f32],
    /// How elements pair up; the same as in the table that filled the rows.
    pub pairs: Pairs,
    /// Elements that rotate; at most `head_dim`.
    pub rotary_dim: usize,
    /// Heads a token.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements from one token to the next.
    pub stride: usize,
}

isa_kernel! {
    /// Rotates heads `range` (token-major, `heads` a token).
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint ranges, and nothing else touches those heads.
    pub fn rope(args: &Rope, range: Range<usize>) = body
}

#[inline(always)]
unsafe fn body<S: Simd>(_: S, args: &Rope, range: Range<usize>) {
    let n = args.rotary_dim;
    assert!(n <= args.head_dim, "{n} rotary elements of {}", args.head_dim);
    let row = if args.pairs == Pairs::Halves { n / 2 } else { n };
    for i in range {
        let (token, head) = (i / args.heads, i % args.heads);
        let x = args.x.at(token * args.stride + head * args.head_dim, args.head_dim);
        let cos = &args.cos[token * row..(token + 1) * row];
        let sin = &args.sin[token * row..(token + 1) * row];
        // SAFETY: x holds head_dim >= n elements, cos and sin one row; the caller keeps heads apart.
        unsafe {
            match args.pairs {
                Pairs::Halves => halves::<S>(x, cos, sin),
                Pairs::Neighbours => neighbours::<S>(x, cos, sin),
            }
        }
    }
}

#[inline(always)]
unsafe fn halves<S: Simd>(x: *mut f32, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for i in (0..half).step_by(LANES) {
        let n = (half - i).min(LANES);
        // SAFETY: x holds 2 * half elements, cos and sin half; n stays inside both halves.
        unsafe {
            let (low, high) = (x.add(i), x.add(half + i));
            let (a, b) = (simd::load_part::<S>(low, n, 0.0), simd::load_part::<S>(high, n, 0.0));
            let c = simd::load_part::<S>(cos.as_ptr().add(i), n, 0.0);
            let s = simd::load_part::<S>(sin.as_ptr().add(i), n, 0.0);
            simd::store_part::<S>(low, S::sub(S::mul(a, c), S::mul(b, s)), n);
            simd::store_part::<S>(high, S::fma(a, s, S::mul(b, c)), n);
        }
    }
}

#[inline(always)]
unsafe fn neighbours<S: Simd>(x: *mut f32, cos: &[f32], sin: &[f32]) {
    for i in (0..cos.len()).step_by(LANES) {
        let n = (cos.len() - i).min(LANES);
        // SAFETY: x, cos and sin hold cos.len() elements.
        unsafe {
            let v = simd::load_part::<S>(x.add(i), n, 0.0);
            let c = simd::load_part::<S>(cos.as_ptr().add(i), n, 0.0);
            let s = simd::load_part::<S>(sin.as_ptr().add(i), n, 0.0);
            simd::store_part::<S>(x.add(i), S::fma(S::swap_pairs(v), s, S::mul(v, c)), n);
        }
    }
}

#[cfg(test)]
#[path = "rope_tests.rs"]
mod tests;
