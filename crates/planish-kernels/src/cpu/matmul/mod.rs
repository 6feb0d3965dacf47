//! y = W x on the CPU: packed weights, activations in f32 or int8, one or many tokens.
//!
//! A weight matrix is laid out once ([`Layout`]); a kernel ([`Variant`]) then computes a range of its rows for all tokens,
//! so a launch is a list of row ranges handed to threads.
//! Variants of one weight type and class differ in speed only: their outputs have the same bits.

mod activation;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod body;
mod check;
mod dense;
mod drive;
mod formats;
mod lanes;
mod layout;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod panel;
pub(crate) mod rate;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use activation::{BLOCK, BlockMeta, quantize};
pub use check::self_check;
pub use layout::{GROUP, Layout};
pub use table::{Class, Kind, PREFETCH_CHOICES, ROW_BLOCK_CHOICES, Variant, default_variant, variants};

use crate::Error;

/// The activations of all tokens, token-major.
#[derive(Clone, Copy, Debug)]
pub enum X<'a> {
    /// `tokens × cols` values.
    F32(&'a [f32]),
    /// Quantised by [`quantize`]: `tokens × cols` bytes and one entry of `meta` for each 32 of them.
    Int8 {
        /// The bytes.
        q: &'a [i8],
        /// Scales and sums.
        meta: &'a [BlockMeta],
    },
}

/// What happens to the outputs that are already there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Store {
    /// `out = y`.
    Set,
    /// `out = y + out`: the residual connection.
    Add,
}

/// Tuned at run time, without effect on the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// Matvec: how many bytes ahead of its use a weight is asked for; trades latency hidden against cache displaced.
    pub prefetch: usize,
    /// Matmul: rows whose weights stay in cache while all tokens pass by.
    pub row_block: usize,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs { prefetch: 1024, row_block: 128 }
    }
}

/// One matmul: `out[t][r] = Σ_c w[r][c] · x[t][c] (+ bias[r]) (+ out[t][r])`.
#[derive(Clone, Copy, Debug)]
pub struct MatmulArgs<'a> {
    /// How `weights` is laid out.
    pub layout: Layout,
    /// `layout.packed_bytes()` bytes: packed, or the file's own for float types.
    pub weights: &'a [u8],
    /// The activations.
    pub x: X<'a>,
    /// Tokens in `x` and `out`.
    pub tokens: usize,
    /// The outputs, `tokens` rows of `out_stride` values of which the first `layout.rows()` are written.
    pub out: *mut f32,
    /// Values from one token's outputs to the next; at least `layout.rows()`.
    pub out_stride: usize,
    /// Added to every token's outputs, `layout.rows()` values.
    pub bias: Option<&'a [f32]>,
    /// Whether the outputs are replaced or added to.
    pub store: Store,
    /// Run-time tuning.
    pub knobs: Knobs,
}

// SAFETY: threads that share the arguments write disjoint row ranges of `out`, which the contract of `MatmulFn` demands.
unsafe impl Sync for MatmulArgs<'_> {}
// SAFETY: as above; the pointer itself belongs to no thread.
unsafe impl Send for MatmulArgs<'_> {}

/// Computes the outputs of a range of rows for all tokens, and writes no others.
///
/// Ranges that start and end on multiples of [`GROUP`] are fastest.
///
/// # Safety
/// [`MatmulArgs::check`] has accepted the arguments for the variant that the function came from;
/// `out` is valid for `tokens` rows of `out_stride` values and no other thread touches the range's outputs;
/// `rows` lies inside the matrix.
///
/// Panics when `scratch` is shorter than [`Variant::scratch_bytes`] or not at a multiple of 64; what it holds is lost.
pub type MatmulFn = unsafe fn(args: &MatmulArgs, rows: std::ops::Range<usize>, scratch: &mut [u8]);

/// A thread's own memory for kernels that are called outside of a launch.
#[derive(Clone, Debug)]
pub struct Scratch(Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Scratch {
    /// `bytes` bytes, at a multiple of 64.
    pub fn new(bytes: usize) -> Scratch {
        Scratch(vec![Line([0; 64]); bytes.div_ceil(size_of::<Line>())])
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: lines are 64 bytes each without padding, one after another, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), size_of_val(&self.0[..])) }
    }
}

impl MatmulArgs<'_> {
    /// Whether `variant` may run these arguments, apart from what only the caller knows about `out`.
    pub fn check(&self, variant: &Variant) -> Result<(), Error> {
        let (rows, cols) = (self.layout.rows(), self.layout.cols());
        let name = || format!("matmul {} {rows} × {cols}", self.layout.weight());
        let expect = |what: &str, have: usize, need: usize| {
            if have == need {
                return Ok(());
            }
            Err(Error::new(format!("{}: {what} has {have} elements, not {need}", name())))
        };
        if variant.weight != self.layout.weight() {
            return Err(Error::new(format!("{}: the kernel is for {}", name(), variant.weight)));
        }
        if !variant.isa.is_supported() {
            return Err(Error::new(format!("{}: this processor has no {}", name(), variant.isa)));
        }
        expect("weights", self.weights.len(), self.layout.packed_bytes())?;
        let values = self.tokens.saturating_mul(cols);
        match (self.x, variant.class) {
            (X::F32(x), Class::F32) => expect("x", x.len(), values)?,
            (X::Int8 { q, meta }, Class::Int8) => {
                expect("x", q.len(), values)?;
                expect("x's block list", meta.len(), values / BLOCK)?;
            }
            _ => return Err(Error::new(format!("{}: x does not have the kernel's activation type", name()))),
        }
        if let Some(bias) = self.bias {
            expect("bias", bias.len(), rows)?;
        }
        if self.out_stride < rows {
            return Err(Error::new(format!("{}: output stride {} is under the row count", name(), self.out_stride)));
        }
        Ok(())
    }
}
