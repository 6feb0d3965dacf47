//! Rotary position embedding of one head at one position.

use super::Real;

/// How rotary elements pair up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// (x_i, x_{i + n/2}): NeoX, Qwen, Gemma.
    Halves,
    /// (x_{2i}, x_{2i+1}): GPT-J, and llama as GGUF stores it.
    Neighbours,
}

/// Rotates the first `2 * angle.len()` elements of `x`, pair i by `angle[i]` radians, scaled by `magnitude`; the rest pass.
pub fn rope<T: Real>(x: &[T], angle: &[f64], magnitude: f64, pairs: Pairs) -> Vec<T> {
    let mut y = x.to_vec();
    for (i, &theta) in angle.iter().enumerate() {
        let (a, b) = match pairs {
            Pairs::Halves => (i, i + angle.len()),
            Pairs::Neighbours => (2 * i, 2 * i + 1),
        };
        let (cos, sin) = (T::of(magnitude * theta.cos()), T::of(magnitude * theta.sin()));
        y[a] = x[a] * cos - x[b] * sin;
        y[b] = x[a] * sin + x[b] * cos;
    }
    y
}
