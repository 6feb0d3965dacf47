//! The arithmetic of attention: rows of queries against one block of keys, and the merging of row states.
//!
//! Every function works on rows one by one as far as bits go; tiles of rows only share loads.

use crate::cpu::act;
use crate::cpu::attention::Task;
use crate::cpu::embed::Element;
use crate::cpu::simd::{self, Job, LANES, Registers, Simd};
use std::ops::Range;

/// Most rows of a register tile.
const TILE_ROWS: usize = 6;

/// Scratch elements for the scores of a tile.
pub(crate) const fn weights_len(block_k: usize) -> usize {
    TILE_ROWS * block_k
}

/// One block of keys and values.
pub(crate) struct Block<E> {
    /// Groups of 16 keys, `[group][element][key]`.
    pub k: *const E,
    /// Values, `[key][v_row]`.
    pub v: *const E,
    /// Absolute position of the first key.
    pub start: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Elements of a padded value row.
    pub v_row: usize,
}

/// Online-softmax states of rows: largest score m, sum of weights l, weighted sum o.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    m: *mut f32,
    l: *mut f32,
    o: *mut f32,
    rows: usize,
    v_row: usize,
}

impl Rows {
    /// Elements of memory for `rows` states.
    pub fn len(rows: usize, v_row: usize) -> usize {
        rows * (v_row + 2)
    }

    /// States in `memory`, which holds `len(rows, v_row)` elements for as long as the value is used.
    pub fn new(memory: *mut f32, rows: usize, v_row: usize) -> Rows {
        let o = memory.wrapping_add(2 * rows);
        Rows { m: memory, l: memory.wrapping_add(rows), o, rows, v_row }
    }

    /// Makes every state empty.
    ///
    /// # Safety
    /// The memory is writable by this call alone.
    #[inline(always)]
    pub unsafe fn clear(&self) {
        for r in 0..self.rows {
            // SAFETY: m, l and o hold `rows` states.
            unsafe {
                *self.m.add(r) = f32::NEG_INFINITY;
                *self.l.add(r) = 0.0;
                self.o.add(r * self.v_row).write_bytes(0, self.v_row);
            }
        }
    }
}

/// Adds `block` to every row of `state`.
///
/// # Safety
/// As [`Simd`]. The block is readable for all keys that rows see; state and weights are this call's alone.
#[inline(always)]
pub(crate) unsafe fn process<S: Simd, E: Element>(
    task: &Task,
    block: &Block<E>,
    keys: Range<usize>,
    state: &Rows,
    weights: *mut f32,
) {
    let mut first = 0;
    while first < state.rows {
        let n = if S::REGISTERS == Registers::One { 1 } else { tile_rows(state.rows - first) };
        macro_rules! tile {
            ($r:literal, $n:literal) => {
                S::call(Tile::<E, $r, $n> { task, block, keys: &keys, state, first, weights })
            };
        }
        // SAFETY: rows first..first + n are inside the state.
        unsafe {
            match (S::REGISTERS, n) {
                (Registers::One, _) => tile!(1, 1),
                (Registers::Six, 6) => tile!(6, 1),
                (Registers::Six, 4) => tile!(4, 1),
                (Registers::Six, 3) => tile!(3, 2),
                (Registers::Six, 2) => tile!(2, 2),
                (Registers::Many, 6) => tile!(6, 4),
                (Registers::Many, 4) => tile!(4, 4),
                (Registers::Many, 3) => tile!(3, 4),
                (Registers::Many, 2) => tile!(2, 4),
                _ => tile!(1, 4),
            }
        }
        first += n;
    }
}

/// Rows of the next tile when `left` remain: 6, 4, 3, 2 or 1, without leaving a lone row behind.
fn tile_rows(left: usize) -> usize {
    match left {
        7 | 8 => 4,
        5 => 3,
        1..=4 => left,
        _ => TILE_ROWS,
    }
}

/// `R` rows from `first`, `N` vectors at a time: scores, softmax, weighted sum.
struct Tile<'a, E, const R: usize, const N: usize> {
    task: &'a Task<'a>,
    block: &'a Block<E>,
    keys: &'a Range<usize>,
    state: &'a Rows,
    first: usize,
    weights: *mut f32,
}

impl<E: Element, const R: usize, const N: usize> Job for Tile<'_, E, R, N> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { task, block, keys, state, first, weights } = self;
        let mut q = [std::ptr::null(); R];
        let (mut low, mut high) = ([0; R], [0; R]); // what each row sees, relative to the block
        for r in 0..R {
            let (query, seen) = task.row(first + r);
            q[r] = query;
            let (start, end) = (seen.start.max(keys.start), seen.end.min(keys.end));
            (low[r], high[r]) = if start < end { (start - block.start, end - block.start) } else { (0, 0) };
        }
        let end = high.iter().fold(0, |a, &b| a.max(b));
        if end == 0 {
            return;
        }
        // The first key that any row sees; rows that see none do not count.
        let start = (0..R).filter(|&r| high[r] > 0).fold(end, |a, r| a.min(low[r]));
        let groups = start / LANES..end.div_ceil(LANES);
        let stride = task.block_k;
        // SAFETY: groups are inside the block, weights hold R rows of block_k, the rows are inside the state.
        unsafe {
            let mut g = groups.start;
            while g + N <= groups.end {
                dots::<S, E, R, N>(&q, block, g, weights.add(g * LANES), stride);
                g += N;
            }
            while N > 1 && g < groups.end {
                dots::<S, E, R, 1>(&q, block, g, weights.add(g * LANES), stride);
                g += 1;
            }
            S::call(Softmax { task, groups, low: &low, high: &high, state, first, weights });
            weighted::<S, E, R, N>(block, (&low, &high), state, first, weights, stride);
        }
    }
}

/// Dot products of `R` queries with `N` groups of 16 keys, one chain of multiply-adds a key.
#[inline(always)]
unsafe fn dots<S: Simd, E: Element, const R: usize, const N: usize>(
    q: &[*const f32; R],
    block: &Block<E>,
    group: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: queries hold dim elements; the block holds groups group..group + N; out holds R rows of `stride`.
    unsafe {
        let k = block.k.add(group * LANES * block.dim);
        let mut sums = [[S::splat(0.0); N]; R];
        for d in 0..block.dim {
            let mut keys = [S::splat(0.0); N];
            for (n, key) in keys.iter_mut().enumerate() {
                *key = E::load::<S>(k.add((n * block.dim + d) * LANES));
            }
            for r in 0..R {
                let query = S::splat(*q[r].add(d));
                for n in 0..N {
                    sums[r][n] = S::fma(query, keys[n], sums[r][n]);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (n, &sum) in row.iter().enumerate() {
                S::store(out.add(r * stride + n * LANES), sum);
            }
        }
    }
}

/// Scores to weights exp(c - m) for a tile of rows, with m and l brought up to date and o rescaled.
struct Softmax<'a> {
    task: &'a Task<'a>,
    groups: Range<usize>,
    low: &'a [usize],
    high: &'a [usize],
    state: &'a Rows,
    first: usize,
    weights: *mut f32,
}

impl Job for Softmax<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Softmax { task, groups, low, high, state, first, weights } = self;
        let seeing = || (0..high.len()).filter(|&r| high[r] > 0);
        // SAFETY: weights hold a row of block_k for each row and cover the groups; the state holds rows from `first`.
        unsafe {
            let (m, l) = (state.m.add(first), state.l.add(first));
            let mut change = [0.0; LANES];
            for r in seeing() {
                let row = weights.add(r * task.block_k);
                let block_max = scores::<S>(task, &groups, low[r], high[r], row);
                let new = if *m.add(r) > block_max { *m.add(r) } else { block_max };
                change[r] = *m.add(r) - finite(new);
                *m.add(r) = new;
            }
            // One exponential rescales all rows: exp(0) is 1 and exp(-inf) is 0, exactly.
            let mut factor = [0.0; LANES];
            S::store(factor.as_mut_ptr(), simd::exp::<S>(S::load(change.as_ptr())));
            for r in seeing() {
                let row = weights.add(r * task.block_k);
                let (m, mut total) = (S::splat(finite(*m.add(r))), S::splat(0.0));
                for g in groups.clone() {
                    let p = simd::exp::<S>(S::sub(S::load(row.add(g * LANES)), m));
                    S::store(row.add(g * LANES), p);
                    total = S::add(total, p);
                }
                *l.add(r) = *l.add(r) * factor[r] + simd::sum::<S>(total);
                if factor[r] != 1.0 {
                    rescale::<S>(state, first + r, factor[r]);
                }
            }
        }
    }
}

/// The reference point of exponentials: 0 while nothing finite has been seen, so that -inf - m is never NaN.
#[inline(always)]
fn finite(m: f32) -> f32 {
    if m == f32::NEG_INFINITY { 0.0 } else { m }
}

/// Scale, softcap and mask of one row's dot products, in place; returns their largest.
#[inline(always)]
unsafe fn scores<S: Simd>(task: &Task, groups: &Range<usize>, low: usize, high: usize, row: *mut f32) -> f32 {
    const COUNT: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    // SAFETY: the row covers the groups.
    unsafe {
        let (scale, hidden) = (S::splat(task.scale), S::splat(f32::NEG_INFINITY));
        let mut largest = hidden;
        for g in groups.clone() {
            let at = g * LANES;
            let mut s = S::mul(S::load(row.add(at)), scale);
            if let Some(cap) = task.softcap {
                s = act::cap::<S>(s, cap);
            }
            if at < low || at + LANES > high {
                // Small integers, exact in f32: hide lanes under `low` and from `high` on.
                let key = S::add(S::load(COUNT.as_ptr()), S::splat(at as f32));
                s = S::select_lt(key, S::splat(low as f32), hidden, s);
                s = S::select_lt(key, S::splat(high as f32), s, hidden);
            }
            S::store(row.add(at), s);
            largest = S::max(largest, s);
        }
        simd::maximum::<S>(largest)
    }
}

#[inline(always)]
unsafe fn rescale<S: Simd>(state: &Rows, row: usize, factor: f32) {
    for i in (0..state.v_row).step_by(LANES) {
        // SAFETY: o holds v_row elements a row, a multiple of 16.
        unsafe {
            let o = state.o.add(row * state.v_row + i);
            S::store(o, S::mul(S::load(o), S::splat(factor)));
        }
    }
}

/// o += sum over keys of weight times value. Keys outside what a row sees are not touched, so a NaN there stays there.
#[inline(always)]
unsafe fn weighted<S: Simd, E: Element, const R: usize, const N: usize>(
    block: &Block<E>,
    (low, high): (&[usize; R], &[usize; R]),
    state: &Rows,
    first: usize,
    weights: *const f32,
    stride: usize,
) {
    // Keys that all rows see go through the tile; keys before and after them row by row.
    let common = low.iter().fold(0, |a, &b| a.max(b))..high.iter().fold(usize::MAX, |a, &b| a.min(b));
    let shared = R > 1 && !common.is_empty();
    let before = |r: usize| low[r]..if shared { common.start } else { high[r] };
    // SAFETY: weights hold R rows, the state rows first..first + R, the block every key that a row sees.
    unsafe {
        for r in (0..R).filter(|&r| !before(r).is_empty()) {
            let weights = weights.add(r * stride);
            S::call(Alone { block, keys: before(r), state, row: first + r, weights });
        }
        if !shared {
            return;
        }
        products::<S, E, R, N>(block, &common, state, first, weights, stride);
        for r in (0..R).filter(|&r| common.end < high[r]) {
            let weights = weights.add(r * stride);
            S::call(Alone { block, keys: common.end..high[r], state, row: first + r, weights });
        }
    }
}

/// `weighted` for one row.
struct Alone<'a, E> {
    block: &'a Block<E>,
    keys: Range<usize>,
    state: &'a Rows,
    row: usize,
    weights: *const f32,
}

impl<E: Element> Job for Alone<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the weights hold a row; its keys are inside the block.
        unsafe {
            match S::REGISTERS {
                Registers::One => products::<S, E, 1, 1>(self.block, &self.keys, self.state, self.row, self.weights, 0),
                _ => products::<S, E, 1, 4>(self.block, &self.keys, self.state, self.row, self.weights, 0),
            }
        }
    }
}

/// `weighted` for `R` rows that see all of `keys`.
#[inline(always)]
unsafe fn products<S: Simd, E: Element, const R: usize, const N: usize>(
    block: &Block<E>,
    keys: &Range<usize>,
    state: &Rows,
    first: usize,
    weights: *const f32,
    stride: usize,
) {
    let mut at = 0;
    // SAFETY: as `weighted`; columns at..at + 16 N are inside the padded row.
    unsafe {
        while at + N * LANES <= block.v_row {
            columns::<S, E, R, N>(block, keys, state, (first, at), weights, stride);
            at += N * LANES;
        }
        while N > 1 && at < block.v_row {
            columns::<S, E, R, 1>(block, keys, state, (first, at), weights, stride);
            at += LANES;
        }
    }
}

#[allow(clippy::needless_range_loop)] // r indexes three arrays at once
#[inline(always)]
unsafe fn columns<S: Simd, E: Element, const R: usize, const N: usize>(
    block: &Block<E>,
    keys: &Range<usize>,
    state: &Rows,
    (first, column): (usize, usize),
    weights: *const f32,
    stride: usize,
) {
    // SAFETY: as `products`.
    unsafe {
        let o = state.o.add(first * state.v_row + column);
        let mut sums = [[S::splat(0.0); N]; R];
        for (r, row) in sums.iter_mut().enumerate() {
            for (n, sum) in row.iter_mut().enumerate() {
                *sum = S::load(o.add(r * state.v_row + n * LANES));
            }
        }
        for j in keys.clone() {
            let v = block.v.add(j * block.v_row + column);
            let mut values = [S::splat(0.0); N];
            for (n, value) in values.iter_mut().enumerate() {
                *value = E::load::<S>(v.add(n * LANES));
            }
            for r in 0..R {
                let p = S::splat(*weights.add(r * stride + j));
                for n in 0..N {
                    sums[r][n] = S::fma(p, values[n], sums[r][n]);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (n, &sum) in row.iter().enumerate() {
                S::store(o.add(r * state.v_row + n * LANES), sum);
            }
        }
    }
}

/// Row `r` of `total` takes in row `r` of `part`; a state that has seen nothing leaves the other's bits alone.
///
/// # Safety
/// As [`Simd`]; both hold row `r`, and that row of `total` is this call's alone.
#[inline(always)]
pub(crate) unsafe fn merge<S: Simd>(total: &Rows, part: &Rows, r: usize) {
    let width = total.v_row;
    // SAFETY: both states hold row r.
    unsafe {
        let (m, l, o) = (total.m.add(r), total.l.add(r), total.o.add(r * width));
        let (pm, pl, po) = (*part.m.add(r), *part.l.add(r), part.o.add(r * width));
        if pm == f32::NEG_INFINITY {
            return;
        }
        if *m == f32::NEG_INFINITY {
            (*m, *l) = (pm, pl);
            std::ptr::copy_nonoverlapping(po, o, width);
            return;
        }
        let new = if *m > pm { *m } else { pm };
        let mut change = [0.0; LANES];
        (change[0], change[1]) = (*m - new, pm - new);
        S::store(change.as_mut_ptr(), simd::exp::<S>(S::load(change.as_ptr())));
        (*m, *l) = (new, *l * change[0] + pl * change[1]);
        let (a, b) = (S::splat(change[0]), S::splat(change[1]));
        for i in (0..width).step_by(LANES) {
            S::store(o.add(i), S::fma(S::load(po.add(i)), b, S::mul(S::load(o.add(i)), a)));
        }
    }
}

/// Writes o / l of row `r`, or zeros if it has seen nothing.
///
/// # Safety
/// As [`Simd`]; the state holds row `r`, and `out[0..dim]` is this call's alone.
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(state: &Rows, r: usize, out: *mut f32, dim: usize) {
    // SAFETY: the state holds row r with at least dim elements; out holds dim.
    unsafe {
        let l = *state.l.add(r);
        // A sum of zero means no visible key: its o is zero, and o / 1 keeps that.
        let l = S::splat(if l == 0.0 { 1.0 } else { l });
        for i in (0..dim).step_by(LANES) {
            let o = S::div(S::load(state.o.add(r * state.v_row + i)), l);
            simd::store_part::<S>(out.add(i), o, (dim - i).min(LANES));
        }
    }
}
