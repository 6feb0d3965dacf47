//! y = x w^T (+ bias) + scale (x a^T) b^T.

use crate::reference::Real;

/// The operands of a linear map with adapters, matrices row after row.
pub struct Lora<'a, T> {
    /// `[rows][cols]`.
    pub x: &'a [T],
    /// `[outs][cols]`.
    pub w: &'a [T],
    /// `[outs]`, or empty.
    pub bias: &'a [T],
    /// `[adapters][rank][cols]`.
    pub a: &'a [T],
    /// `[adapters][outs][rank]`.
    pub b: &'a [T],
    /// Adapter of each row, beyond the last for none; empty where all rows use the only one.
    pub adapter: &'a [u32],
    /// Columns of `x`, rows of `w`, and rank.
    pub dims: [usize; 3],
    /// Factor of the branch.
    pub scale: f64,
}

fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut sum = T::of(0.0);
    for (a, b) in a.iter().zip(b) {
        sum += *a * *b;
    }
    sum
}

impl<T: Real> Lora<'_, T> {
    /// The adapter of `row`, or none.
    fn adapter(&self, row: usize) -> Option<usize> {
        let [cols, _, rank] = self.dims;
        let which = self.adapter.get(row).map_or(0, |w| *w as usize);
        (rank > 0 && (which + 1) * rank * cols <= self.a.len()).then_some(which)
    }

    /// `x a^T`, zero for rows without an adapter.
    pub fn hr(&self) -> Vec<T> {
        let [cols, _, rank] = self.dims;
        let mut hr = Vec::new();
        for (row, x) in self.x.chunks(cols).enumerate() {
            hr.extend((0..rank).map(|r| match self.adapter(row) {
                Some(which) => dot(x, &self.a[(which * rank + r) * cols..][..cols]),
                None => T::of(0.0),
            }));
        }
        hr
    }

    /// The result, in rows of `outs`.
    pub fn y(&self) -> Vec<T> {
        let [cols, outs, rank] = self.dims;
        let hr = self.hr();
        let mut y = Vec::new();
        for (row, x) in self.x.chunks(cols).enumerate() {
            for n in 0..outs {
                let mut v = dot(x, &self.w[n * cols..][..cols]);
                if let Some(bias) = self.bias.get(n) {
                    v += *bias;
                }
                if let Some(which) = self.adapter(row) {
                    v += T::of(self.scale)
                        * dot(&hr[row * rank..][..rank], &self.b[(which * outs + n) * rank..][..rank]);
                }
                y.push(v);
            }
        }
        y
    }
}
