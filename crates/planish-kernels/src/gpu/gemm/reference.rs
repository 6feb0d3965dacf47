//! C = α A Bᵀ + β C, with A or B stored by columns.

use crate::reference::Real;

/// A `[m][k]`, B `[n][k]`, C `[m][n]`, or A `[k][m]`, B `[k][n]`; C is not looked at where β is zero.
pub struct Gemm<'a, T> {
    /// Rows of A, of B, and columns of both.
    pub sizes: [usize; 3],
    /// Whether A, and whether B, is stored by columns.
    pub turned: [bool; 2],
    /// Times the product.
    pub alpha: T,
    /// Times what C holds.
    pub beta: T,
    /// The left operand.
    pub a: &'a [T],
    /// The right operand.
    pub b: &'a [T],
    /// The initial output.
    pub c: &'a [T],
}

/// The product.
pub fn gemm<T: Real>(g: &Gemm<'_, T>) -> Vec<T> {
    let [m, n, k] = g.sizes;
    let mut out = Vec::with_capacity(m * n);
    for row in 0..m {
        for column in 0..n {
            let mut sum = T::of(0.0);
            for i in 0..k {
                let a = if g.turned[0] { g.a[i * m + row] } else { g.a[row * k + i] };
                let b = if g.turned[1] { g.b[i * n + column] } else { g.b[column * k + i] };
                sum += a * b;
            }
            sum = g.alpha * sum;
            if g.beta != T::of(0.0) {
                sum += g.beta * g.c[row * n + column];
            }
            out.push(sum);
        }
    }
    out
}
