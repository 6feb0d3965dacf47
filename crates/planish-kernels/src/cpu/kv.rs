//! The key-value cache of one layer: its layout, and the op that stores new tokens. Bound by writing the rows.
//!
//! Keys lie `[kv_head][position / 16][element][position % 16]`, so that a vector load is one element of 16 keys and a
//! dot product needs no sum across lanes. Values lie `[kv_head][position][element]` with rows padded to 16 elements.

use crate::Error;
use crate::cpu::simd::{self, LANES, Shared, Simd, isa_kernel};
use std::ops::Range;

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Positions, a multiple of 16.
    pub capacity: usize,
}

impl KvLayout {
    /// A cache for at least `positions` positions.
    pub fn new(kv_heads: usize, head_dim: usize, positions: usize) -> KvLayout {
        KvLayout { kv_heads, head_dim, capacity: positions.next_multiple_of(LANES) }
    }

    /// Elements of a value row with its padding.
    pub fn v_row(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Elements of the keys.
    pub fn k_len(&self) -> usize {
        self.kv_heads * self.capacity * self.head_dim
    }

    /// Elements of the values.
    pub fn v_len(&self) -> usize {
        self.kv_heads * self.capacity * self.v_row()
    }

    /// Where element 0 of key `position` is; element d is `16 * d` further.
    pub fn k_at(&self, kv_head: usize, position: usize) -> usize {
        self.k_block(kv_head, position / LANES * LANES) + position % LANES
    }

    /// Where the group of 16 keys that begins at `position` is.
    pub(crate) fn k_block(&self, kv_head: usize, position: usize) -> usize {
        (kv_head * self.capacity + position) * self.head_dim
    }

    /// Where element 0 of value `position` is.
    pub fn v_at(&self, kv_head: usize, position: usize) -> usize {
        (kv_head * self.capacity + position) * self.v_row()
    }
}

/// The memory of a cache, by element type. It may hold anything at positions not stored yet.
#[derive(Clone, Copy)]
pub enum KvData<'a> {
    /// IEEE half bits.
    F16 {
        /// Keys, `k_len` elements.
        k: Shared<'a, u16>,
        /// Values, `v_len` elements.
        v: Shared<'a, u16>,
    },
    /// f32 values.
    F32 {
        /// Keys, `k_len` elements.
        k: Shared<'a, f32>,
        /// Values, `v_len` elements.
        v: Shared<'a, f32>,
    },
}

/// The cache of one layer.
#[derive(Clone, Copy)]
pub struct KvCache<'a> {
    /// Sizes.
    pub layout: KvLayout,
    /// Memory.
    pub data: KvData<'a>,
}

impl KvCache<'_> {
    /// Whether the memory holds the layout.
    ///
    /// # Errors
    /// Names the buffer that is too short, or a capacity that is not whole groups of 16.
    pub fn check(&self) -> Result<(), Error> {
        let (k, v) = match self.data {
            KvData::F16 { k, v } => (k.len(), v.len()),
            KvData::F32 { k, v } => (k.len(), v.len()),
        };
        if !self.layout.capacity.is_multiple_of(LANES) {
            return Err(Error::new(format!("kv cache: {} positions are not a multiple of 16", self.layout.capacity)));
        }
        if k < self.layout.k_len() || v < self.layout.v_len() {
            let KvLayout { kv_heads, head_dim, capacity } = self.layout;
            let layout = format!("{capacity} positions of {kv_heads} heads of {head_dim}");
            return Err(Error::new(format!("kv cache: {k} and {v} elements are too few for {layout}")));
        }
        Ok(())
    }
}

/// Stores the keys and values of consecutive tokens.
///
/// Head h of token t starts at element `t * stride + h * head_dim` of `k` and of `v`, and goes to position `first + t`.
pub struct KvStore<'a> {
    /// New keys, after rotation.
    pub k: &'a [f32],
    /// New values.
    pub v: &'a [f32],
    /// Elements from one token to the next in `k` and `v`.
    pub stride: usize,
    /// Position of token 0.
    pub first: usize,
    /// Where they go.
    pub cache: KvCache<'a>,
}

isa_kernel! {
    /// Stores heads `range` (token-major, `kv_heads` a token), halves to nearest even.
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint ranges, and nothing reads those positions meanwhile.
    pub fn kv_store(args: &KvStore, range: Range<usize>) = body
}

#[inline(always)]
unsafe fn body<S: Simd>(_: S, args: &KvStore, range: Range<usize>) {
    let layout = &args.cache.layout;
    let dim = layout.head_dim;
    for i in range {
        let (token, head) = (i / layout.kv_heads, i % layout.kv_heads);
        let position = args.first + token;
        assert!(position < layout.capacity, "position {position} of a cache of {}", layout.capacity);
        let from = token * args.stride + head * dim;
        let (k, v) = (&args.k[from..from + dim], &args.v[from..from + dim]);
        let (k_at, v_at) = (layout.k_at(head, position), layout.v_at(head, position));
        // SAFETY: `at` checks what is written; the slices hold a head; the caller keeps heads apart.
        unsafe {
            match args.cache.data {
                KvData::F16 { k: ks, v: vs } => {
                    scatter::<S, u16>(k, ks.at(k_at, LANES * (dim - 1) + 1));
                    row::<S, u16>(v, vs.at(v_at, layout.v_row()));
                }
                KvData::F32 { k: ks, v: vs } => {
                    scatter::<S, f32>(k, ks.at(k_at, LANES * (dim - 1) + 1));
                    row::<S, f32>(v, vs.at(v_at, layout.v_row()));
                }
            }
        }
    }
}

/// An element type that 16 lanes store to.
trait Cell: Copy + Default {
    /// # Safety
    /// As [`Simd`]; `p[0..16]` is writable.
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V);
}

impl Cell for u16 {
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u16, v: S::V) {
        // SAFETY: the caller vouches for p.
        unsafe { S::store_f16(p, v) }
    }
}

impl Cell for f32 {
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f32, v: S::V) {
        // SAFETY: the caller vouches for p.
        unsafe { S::store(p, v) }
    }
}

/// Element d to `to[16 d]`.
#[inline(always)]
unsafe fn scatter<S: Simd, C: Cell>(x: &[f32], to: *mut C) {
    for i in (0..x.len()).step_by(LANES) {
        let n = (x.len() - i).min(LANES);
        let mut cells = [C::default(); LANES];
        // SAFETY: x[i..i + n] is inside the slice, and to holds an element at 16 d for each d of x.
        unsafe {
            C::store::<S>(cells.as_mut_ptr(), simd::load_part::<S>(x.as_ptr().add(i), n, 0.0));
            for (d, &cell) in cells[..n].iter().enumerate() {
                *to.add(LANES * (i + d)) = cell;
            }
        }
    }
}

/// A row with its padding, which becomes zero.
#[inline(always)]
unsafe fn row<S: Simd, C: Cell>(x: &[f32], to: *mut C) {
    for i in (0..x.len()).step_by(LANES) {
        // SAFETY: x[i..] holds the lanes that are loaded; to holds the row rounded up to 16 elements.
        unsafe {
            let v = simd::load_part::<S>(x.as_ptr().add(i), (x.len() - i).min(LANES), 0.0);
            C::store::<S>(to.add(i), v);
        }
    }
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
