//! Products of matrices that a machine's vendor makes in a library of its own, as data.

use std::fmt;

/// Type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// The upper half of 32 bits.
    Bf16,
}

impl Float {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        if self == Float::F32 { 4 } else { 2 }
    }

    fn name(self) -> &'static str {
        match self {
            Float::F32 => "f32",
            Float::F16 => "f16",
            Float::Bf16 => "bf16",
        }
    }
}

/// C = α A Bᵀ + β C with A `[m][k]`, B `[n][k]` and C `[m][n]` by rows, and sums of f32; C is not read where β is zero.
///
/// A launch of it takes A, B and C, each from a multiple of 16 bytes, and α and β as two words; it is one task of one
/// thread without views, and does not overlap the launch before it, since calls share the memory that they work in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VendorProduct {
    /// m, n and k, none of them zero.
    pub sizes: [usize; 3],
    /// Whether A is stored as `[k][m]`, and B as `[k][n]`.
    pub turned: [bool; 2],
    /// Type of A and B.
    pub io: Float,
    /// Type of C: the same, or f32.
    pub out: Float,
}

/// A matrix of a product as libraries take it that store by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByColumns {
    pub rows: usize,
    pub columns: usize,
    /// Elements from one column to the next.
    pub stride: usize,
    /// The product takes the transpose.
    pub turned: bool,
}

impl VendorProduct {
    /// Bytes of A, B and C.
    pub fn bytes(&self) -> [usize; 3] {
        let ([m, n, k], io) = (self.sizes, self.io.bytes());
        [m * k * io, n * k * io, m * n * self.out.bytes()]
    }

    /// Cᵀ = B Aᵀ by columns: B, A and C as the first factor, the second and the result.
    ///
    /// What lies by rows is by columns the transpose.
    pub(crate) fn by_columns(&self) -> [ByColumns; 3] {
        let ([m, n, k], [turned_a, turned_b]) = (self.sizes, self.turned);
        let stored =
            |height: usize, width: usize, turned| ByColumns { rows: width, columns: height, stride: width, turned };
        let b = if turned_b { stored(k, n, false) } else { stored(n, k, true) };
        let a = if turned_a { stored(k, m, true) } else { stored(m, k, false) };
        [b, a, stored(m, n, false)]
    }
}

impl fmt::Display for VendorProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([m, n, k], [turned_a, turned_b]) = (self.sizes, self.turned);
        let turned = |turned: bool| if turned { " by columns" } else { "" };
        let (a, b) = (turned(turned_a), turned(turned_b));
        write!(f, "{m} x {n} x {k}, A{a} and B{b} of {}, C of {}", self.io.name(), self.out.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element `row`, `column` of what a library by columns takes from `stored`.
    fn element(of: &ByColumns, stored: &[i64], row: usize, column: usize) -> i64 {
        let (row, column) = if of.turned { (column, row) } else { (row, column) };
        assert!(row < of.rows && column < of.columns && of.stride >= of.rows, "{of:?} has no {row}, {column}");
        stored[column * of.stride + row]
    }

    #[test]
    fn a_product_by_columns_is_the_product_by_rows() {
        let [m, n, k] = [3, 5, 4];
        let values = |len: usize, by: i64| (0..len as i64).map(|i| i * by % 11 - 4).collect::<Vec<i64>>();
        let (a, b) = (values(m * k, 7), values(n * k, 5));
        for turned in [[false, false], [false, true], [true, true], [true, false]] {
            let product = VendorProduct { sizes: [m, n, k], turned, io: Float::F16, out: Float::F32 };
            let [first, second, result] = product.by_columns();
            let mut c = vec![0; m * n];
            for row in 0..result.rows {
                for column in 0..result.columns {
                    let term = |i| element(&first, &b, row, i) * element(&second, &a, i, column);
                    c[column * result.stride + row] = (0..k).map(term).sum();
                }
            }
            let at_a = |row: usize, i: usize| if turned[0] { a[i * m + row] } else { a[row * k + i] };
            let at_b = |column: usize, i: usize| if turned[1] { b[i * n + column] } else { b[column * k + i] };
            let sum = |at: usize| (0..k).map(|i| at_a(at / n, i) * at_b(at % n, i)).sum::<i64>();
            assert_eq!(c, (0..m * n).map(sum).collect::<Vec<i64>>(), "{product}");
        }
    }

    #[test]
    fn a_product_tells_its_bytes_and_its_name() {
        let product = VendorProduct { sizes: [2, 3, 8], turned: [false, true], io: Float::Bf16, out: Float::F32 };
        assert_eq!(product.bytes(), [32, 48, 24]);
        assert_eq!(product.to_string(), "2 x 3 x 8, A and B by columns of bf16, C of f32");
    }
}
