//! Gradients of y = x w^T + scale (x a^T) b^T, with w frozen.

use crate::reference::Real;

/// The operands, matrices row after row.
pub struct Backward<'a, T> {
    /// Gradient of y, `[rows][outs]`.
    pub dy: &'a [T],
    /// `[rows][cols]`.
    pub x: &'a [T],
    /// `[outs][cols]`.
    pub w: &'a [T],
    /// `[rank][cols]`.
    pub a: &'a [T],
    /// `[outs][rank]`.
    pub b: &'a [T],
    /// `x a^T`, `[rows][rank]`.
    pub hr: &'a [T],
    /// Columns of `x`, rows of `w`, and rank.
    pub dims: [usize; 3],
    /// Factor of the branch.
    pub scale: f64,
}

impl<T: Real> Backward<'_, T> {
    fn rows(&self) -> usize {
        self.dy.len() / self.dims[1]
    }

    fn sum(n: usize, term: impl Fn(usize) -> T) -> T {
        let mut sum = T::of(0.0);
        for i in 0..n {
            sum += term(i);
        }
        sum
    }

    /// `dy b`.
    fn e(&self, m: usize, r: usize) -> T {
        let [_, outs, rank] = self.dims;
        Self::sum(outs, |n| self.dy[m * outs + n] * self.b[n * rank + r])
    }

    /// Gradient of x.
    pub fn dx(&self) -> Vec<T> {
        let [cols, outs, rank] = self.dims;
        let mut dx = Vec::new();
        for m in 0..self.rows() {
            let e: Vec<T> = (0..rank).map(|r| self.e(m, r)).collect();
            dx.extend((0..cols).map(|c| {
                let base = Self::sum(outs, |n| self.dy[m * outs + n] * self.w[n * cols + c]);
                base + T::of(self.scale) * Self::sum(rank, |r| e[r] * self.a[r * cols + c])
            }));
        }
        dx
    }

    /// `da` plus the gradient of a.
    pub fn da(&self, da: &[T]) -> Vec<T> {
        let [cols, _, rank] = self.dims;
        let e: Vec<T> = (0..self.rows() * rank).map(|i| self.e(i / rank, i % rank)).collect();
        let term = |r: usize, c: usize| Self::sum(self.rows(), |m| e[m * rank + r] * self.x[m * cols + c]);
        da.iter().enumerate().map(|(i, v)| *v + T::of(self.scale) * term(i / cols, i % cols)).collect()
    }

    /// `db` plus the gradient of b.
    pub fn db(&self, db: &[T]) -> Vec<T> {
        let [_, outs, rank] = self.dims;
        let term = |n: usize, r: usize| Self::sum(self.rows(), |m| self.dy[m * outs + n] * self.hr[m * rank + r]);
        db.iter().enumerate().map(|(i, v)| *v + T::of(self.scale) * term(i / rank, i % rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Backward;
    use crate::data::{Rng, floats};
    use crate::gpu::lora::reference::Lora;
    use crate::op::Fill;
    use crate::reference::lift;

    #[test]
    fn gradients_are_the_differences_of_the_forward_pass() {
        let (dims, scale, rows) = ([5, 4, 3], 0.75, 6);
        let [cols, outs, rank] = dims;
        let mut rng = Rng::new(3);
        let mut draw = |n| lift::<f64>(&floats(&mut rng, n, Fill::Random));
        let sizes = [rows * cols, outs * cols, rank * cols, outs * rank];
        let [x, w, a, b] = sizes.map(&mut draw);
        let dy = draw(rows * outs);
        // The loss whose gradient in y is dy.
        let loss = |x: &[f64], a: &[f64], b: &[f64]| -> f64 {
            let y = Lora { x, w: &w, bias: &[], a, b, adapter: &[], dims, scale }.y();
            y.iter().zip(&dy).map(|(y, d)| y * d).sum()
        };
        let hr = Lora { x: &x, w: &w, bias: &[], a: &a, b: &b, adapter: &[], dims, scale }.hr();
        let back = Backward { dy: &dy, x: &x, w: &w, a: &a, b: &b, hr: &hr, dims, scale };
        let differ = |at: &[f64], f: &dyn Fn(&[f64]) -> f64, gradient: &[f64]| {
            for i in 0..at.len() {
                let moved = |step: f64| {
                    let mut at = at.to_vec();
                    at[i] += step;
                    f(&at)
                };
                let difference = (moved(1e-4) - moved(-1e-4)) / 2e-4;
                assert!((difference - gradient[i]).abs() < 1e-7, "element {i}: {difference} and {}", gradient[i]);
            }
        };
        differ(&x, &|x| loss(x, &a, &b), &back.dx());
        differ(&a, &|a| loss(&x, a, &b), &back.da(&vec![0.0; a.len()]));
        differ(&b, &|b| loss(&x, &a, b), &back.db(&vec![0.0; b.len()]));
    }
}
