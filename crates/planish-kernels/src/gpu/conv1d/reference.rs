//! y_t = silu(sum over m of w[c][m] x_(t - taps + 1 + m)).

use crate::reference::Real;

/// The operands, last index fastest.
pub struct Conv1d<'a, T> {
    /// `[batch][steps][channels]`.
    pub x: &'a [T],
    /// `[channels][taps]`.
    pub w: &'a [T],
    /// `[batch][steps]`, zero for inputs that count as zero, or empty.
    pub mask: &'a [u32],
    /// The inputs before the first, `[batch][taps - 1][channels]`, or empty for zeros.
    pub before: &'a [T],
    /// Batch, steps, channels and taps.
    pub dims: [usize; 4],
}

impl<T: Real> Conv1d<'_, T> {
    /// Input `t` of channel `c`, counted from the first one kept before.
    fn input(&self, b: usize, t: usize, c: usize) -> T {
        let [_, steps, channels, taps] = self.dims;
        let zero = T::of(0.0);
        match t.checked_sub(taps - 1) {
            None => self.before.get((b * (taps - 1) + t) * channels + c).copied().unwrap_or(zero),
            Some(t) if self.mask.get(b * steps + t) == Some(&0) => zero,
            Some(t) => self.x[(b * steps + t) * channels + c],
        }
    }

    /// The outputs like x.
    pub fn y(&self) -> Vec<T> {
        let [_, steps, channels, taps] = self.dims;
        let one = |i: usize| {
            let (b, t, c) = (i / channels / steps, i / channels % steps, i % channels);
            let mut sum = T::of(0.0);
            for m in 0..taps {
                sum += self.input(b, t + m, c) * self.w[c * taps + m];
            }
            sum / (T::of(1.0) + (-sum).exp())
        };
        (0..self.x.len()).map(one).collect()
    }

    /// The inputs kept for the next call.
    pub fn after(&self) -> Vec<T> {
        let [batch, steps, channels, taps] = self.dims;
        let kept = (0..batch).flat_map(|b| (0..taps - 1).flat_map(move |i| (0..channels).map(move |c| (b, i, c))));
        kept.map(|(b, i, c)| self.input(b, steps + i, c)).collect()
    }
}
