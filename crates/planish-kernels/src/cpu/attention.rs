//! Attention of n new tokens over a key-value cache: grouped heads, causal, window, softcap, f32 or f16 cache.
//!
//! Bound by reading the cache at one token (all query heads of a kv head go together, so it is read once), and by
//! multiply-adds at many.
//!
//! **One arithmetic.** Keys are taken in blocks of `BLOCK_K` and blocks in segments of `SEGMENT`, both aligned to absolute
//! positions. A row (one query of one head) walks the blocks of a segment with the online softmax, and segments are merged
//! in order. Decode splits tasks only between segments and merges their partials in the same order, and no step of a row
//! depends on the rows beside it. So a query's output has the same bits from a prefill of any chunking and from one token
//! at a time, for any BLOCK_Q, SPLITS and number of threads; only BLOCK_K and SEGMENT change bits.
//! A dot product runs over the head's elements in one chain a key (lanes are keys), a weighted sum over keys in order.

use crate::Error;
use crate::cpu::attention_rows::{Block, Rows, finish, merge, process, weights_len};
use crate::cpu::embed::{Element, Half};
use crate::cpu::kv::{KvCache, KvData};
use crate::cpu::simd::{LANES, Shared, Simd, isa_kernel};
use std::ops::Range;

/// Sizes of the reduction and of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Queries of a prefill task: a converted key block serves BLOCK_Q queries of every head in the group.
    pub block_q: usize,
    /// Keys of a block, a multiple of 16: softmax state is rescaled once a block. Changes bits.
    pub block_k: usize,
    /// Keys of a segment, a multiple of `block_k`: decode splits between segments. Changes bits.
    pub segment: usize,
    /// Most decode tasks a kv head.
    pub splits: usize,
}

impl Default for Tiles {
    fn default() -> Self {
        Tiles { block_q: 32, block_k: 64, segment: 512, splits: 16 }
    }
}

/// Attention of `queries` tokens, the last `queries` of the first `keys` positions of the cache.
pub struct Attention<'a> {
    /// Head h of query i starts at element `i * q_stride + h * head_dim`.
    pub q: &'a [f32],
    /// Elements from one token to the next in `q`.
    pub q_stride: usize,
    /// `[queries][heads][head_dim]` without gaps.
    pub out: Shared<'a, f32>,
    /// The cache, with the keys and values of the new tokens already stored.
    pub cache: KvCache<'a>,
    /// Query heads; a multiple of the cache's heads.
    pub heads: usize,
    /// New tokens.
    pub queries: usize,
    /// Positions of the cache that count: query i is at position `i + keys - queries` (which sees nothing if negative).
    pub keys: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// c = cap tanh(s / cap), if any.
    pub softcap: Option<f32>,
    /// Keys that a query sees, its own included, if limited.
    pub window: Option<usize>,
    /// Tile sizes.
    pub tiles: Tiles,
}

isa_kernel! {
    /// Prefill tasks `tasks` of `0..prefill_tasks`: (kv head, block of queries), with scratch of `prefill_scratch` elements.
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint tasks and their own scratch; nothing else writes the cache
    /// or `out`.
    pub fn prefill(args: &Attention, tasks: Range<usize>, scratch: &mut [f32]) = prefill_body
}

isa_kernel! {
    /// Decode tasks `tasks` of `0..decode_tasks` (kv head, run of segments), for `queries == 1`: fills `partials`.
    ///
    /// # Safety
    /// Of the returned function: concurrent calls have disjoint tasks and their own scratch; nothing else writes the cache
    /// or `partials`.
    pub fn decode(args: &Attention, tasks: Range<usize>, partials: &Shared<f32>, scratch: &mut [f32]) = decode_body
}

isa_kernel! {
    /// Merges the partials of decode into `out`, heads `heads`.
    ///
    /// # Safety
    /// Of the returned function: all decode tasks have finished; concurrent calls have disjoint heads.
    pub fn combine(args: &Attention, heads: Range<usize>, partials: &Shared<f32>) = combine_body
}

impl Attention<'_> {
    /// Query heads that share a kv head.
    pub fn group(&self) -> usize {
        self.heads / self.cache.layout.kv_heads
    }

    /// Tasks of [`prefill`].
    pub fn prefill_tasks(&self) -> usize {
        self.cache.layout.kv_heads * self.queries.div_ceil(self.tiles.block_q)
    }

    /// Elements of scratch that a thread needs for [`prefill`].
    pub fn prefill_scratch(&self) -> usize {
        let rows = self.tiles.block_q * self.group();
        // Rows keep two states, and one block of keys and of values is converted.
        2 * Rows::len(rows, self.cache.layout.v_row()) + self.block_scratch()
    }

    /// Tasks of [`decode`]; the count depends on the position, so a plan that must fix it uses `tasks` of the capacity.
    pub fn decode_tasks(&self) -> usize {
        self.cache.layout.kv_heads * self.tiles.splits.min(self.segments().len()).max(1)
    }

    /// Elements of scratch that a thread needs for [`decode`].
    pub fn decode_scratch(&self) -> usize {
        weights_len(self.tiles.block_k)
    }

    /// Elements of `partials` that [`decode`] needs at this position.
    pub fn partials_len(&self) -> usize {
        self.cache.layout.kv_heads * self.segments().len() * Rows::len(self.group(), self.cache.layout.v_row())
    }

    /// Whether sizes agree and buffers suffice; said once, before the launch.
    ///
    /// # Errors
    /// Names what does not fit, with its numbers.
    pub fn check(&self) -> Result<(), Error> {
        let layout = &self.cache.layout;
        let Tiles { block_q, block_k, segment, splits } = self.tiles;
        let fail = |message: String| Err(Error::new(format!("attention: {message}")));
        if layout.kv_heads == 0 || self.heads == 0 || !self.heads.is_multiple_of(layout.kv_heads) {
            return fail(format!("{} heads over {} kv heads", self.heads, layout.kv_heads));
        }
        let whole = |n: usize, of: usize| n > 0 && n.is_multiple_of(of);
        if block_q == 0 || splits == 0 || !whole(block_k, LANES) || !whole(segment, block_k) {
            return fail(format!(
                "blocks of {block_q} queries and {block_k} keys, segments of {segment} and {splits} splits are not whole \
                 multiples"
            ));
        }
        if self.keys > layout.capacity {
            return fail(format!("{} keys in a cache of {}", self.keys, layout.capacity));
        }
        let width = self.heads * layout.head_dim;
        let need = if self.queries == 0 { 0 } else { (self.queries - 1) * self.q_stride + width };
        if self.q.len() < need || self.out.len() < self.queries * width {
            let (q, out) = (self.q.len(), self.out.len());
            return fail(format!("q has {q} and out {out} elements for {} queries of {width}", self.queries));
        }
        self.cache.check()
    }

    fn block_scratch(&self) -> usize {
        let layout = &self.cache.layout;
        let block_k = self.tiles.block_k;
        block_k * (layout.head_dim + layout.v_row()) + weights_len(block_k)
    }

    /// Visible keys of query `i`.
    fn visible(&self, i: usize) -> Range<usize> {
        let end = (i + 1 + self.keys).saturating_sub(self.queries).min(self.keys);
        let start = self.window.map_or(0, |w| end.saturating_sub(w));
        start..end
    }

    /// Elements of one head's keys and values.
    fn head_lens(&self) -> (usize, usize) {
        let layout = &self.cache.layout;
        (layout.capacity * layout.head_dim, layout.capacity * layout.v_row())
    }

    /// The states of one kv head and segment among the partials.
    fn partial(&self, partials: &Shared<f32>, kv_head: usize, segment: usize) -> Rows {
        let (group, v_row) = (self.group(), self.cache.layout.v_row());
        let len = Rows::len(group, v_row);
        Rows::new(partials.at((kv_head * self.segments().len() + segment) * len, len), group, v_row)
    }

    /// Segments that the single query of a decode sees.
    fn segments(&self) -> Range<usize> {
        let seen = self.visible(self.queries.saturating_sub(1));
        if seen.is_empty() { 0..0 } else { seen.start / self.tiles.segment..seen.end.div_ceil(self.tiles.segment) }
    }
}

/// The rows of one task: consecutive queries of the heads that share a kv head, heads innermost.
pub(crate) struct Task<'a> {
    args: &'a Attention<'a>,
    kv_head: usize,
    first_query: usize,
    /// Distance of two rows of scores.
    pub block_k: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Softcap of the scores.
    pub softcap: Option<f32>,
}

impl<'a> Task<'a> {
    fn new(args: &'a Attention, kv_head: usize, first_query: usize) -> Task<'a> {
        let (scale, softcap) = (args.scale, args.softcap);
        Task { args, kv_head, first_query, block_k: args.tiles.block_k, scale, softcap }
    }

    /// Query and head of row `r`.
    fn place(&self, r: usize) -> (usize, usize) {
        let group = self.args.group();
        (self.first_query + r / group, self.kv_head * group + r % group)
    }

    /// The query vector of row `r` and the keys that it sees.
    pub fn row(&self, r: usize) -> (*const f32, Range<usize>) {
        let dim = self.args.cache.layout.head_dim;
        let (query, head) = self.place(r);
        (self.args.q[query * self.args.q_stride + head * dim..][..dim].as_ptr(), self.args.visible(query))
    }
}

/// Evaluates an expression on pointers to the keys and values of one kv head, `E` being the type of their elements.
macro_rules! of_head {
    ($args:expr, $kv_head:expr, |$kv:ident: $element:ident| $work:expr) => {{
        let ((k_len, v_len), layout) = ($args.head_lens(), &$args.cache.layout);
        let (k_at, v_at) = (layout.k_block($kv_head, 0), layout.v_at($kv_head, 0));
        match $args.cache.data {
            KvData::F16 { k, v } => {
                type $element = Half;
                let $kv =
                    (k.at(k_at, k_len).cast::<Half>().cast_const(), v.at(v_at, v_len).cast::<Half>().cast_const());
                $work
            }
            KvData::F32 { k, v } => {
                type $element = f32;
                let $kv = (k.at(k_at, k_len).cast_const(), v.at(v_at, v_len).cast_const());
                $work
            }
        }
    }};
}

#[inline(always)]
unsafe fn prefill_body<S: Simd>(_: S, args: &Attention, tasks: Range<usize>, scratch: &mut [f32]) {
    assert!(scratch.len() >= args.prefill_scratch(), "{} of {}", scratch.len(), args.prefill_scratch());
    let blocks = args.queries.div_ceil(args.tiles.block_q);
    for task in tasks {
        let (kv_head, first) = (task / blocks, task % blocks * args.tiles.block_q);
        let queries = first..(first + args.tiles.block_q).min(args.queries);
        let task = Task::new(args, kv_head, first);
        // SAFETY: the caller keeps tasks apart; scratch is long enough.
        unsafe { of_head!(args, kv_head, |kv: E| prefill_task::<S, E>(&task, queries, kv, scratch)) };
    }
}

#[inline(always)]
unsafe fn prefill_task<S: Simd, E: Element>(
    task: &Task,
    queries: Range<usize>,
    (k, v): (*const E, *const E),
    scratch: &mut [f32],
) {
    let args = task.args;
    let (layout, tiles) = (&args.cache.layout, &args.tiles);
    let (dim, v_row, rows) = (layout.head_dim, layout.v_row(), queries.len() * args.group());
    let (total, rest) = scratch.split_at_mut(Rows::len(rows, v_row));
    let (part, rest) = rest.split_at_mut(Rows::len(rows, v_row));
    let (k_block, rest) = rest.split_at_mut(tiles.block_k * dim);
    let (v_block, weights) = rest.split_at_mut(tiles.block_k * v_row);
    let total = Rows::new(total.as_mut_ptr(), rows, v_row);
    let part = Rows::new(part.as_mut_ptr(), rows, v_row);
    // The union of what the rows see: both ends move up with the query.
    let keys = args.visible(queries.start).start..args.visible(queries.end - 1).end;
    // SAFETY: blocks are inside the cache, whose capacity is whole groups of 16 keys; scratch was split to size.
    unsafe {
        total.clear();
        part.clear();
        let mut at = keys.start / tiles.block_k * tiles.block_k;
        while at < keys.end {
            let n = (keys.end - at).min(tiles.block_k);
            let k = converted::<S, E>(k.add(at * dim), k_block, n.next_multiple_of(LANES) * dim);
            let v = converted::<S, E>(v.add(at * v_row), v_block, n * v_row);
            let block = Block { k, v, start: at, dim, v_row };
            process::<S, f32>(task, &block, at..at + n, &part, weights.as_mut_ptr());
            at += tiles.block_k;
            if at.is_multiple_of(tiles.segment) || at >= keys.end {
                (0..rows).for_each(|r| merge::<S>(&total, &part, r));
                part.clear();
            }
        }
        for r in 0..rows {
            let (query, head) = task.place(r);
            finish::<S>(&total, r, args.out.at((query * args.heads + head) * dim, dim), dim);
        }
    }
}

/// The first `n` elements as f32: where they are, or in `to`.
#[inline(always)]
unsafe fn converted<S: Simd, E: Element>(from: *const E, to: &mut [f32], n: usize) -> *const f32 {
    if E::IS_F32 {
        return from.cast();
    }
    assert!(n.is_multiple_of(LANES) && n <= to.len(), "{n} of {}", to.len());
    for i in (0..n).step_by(LANES) {
        // SAFETY: n is a multiple of 16, from[0..n] is readable and to holds n elements.
        unsafe { S::store(to.as_mut_ptr().add(i), E::load::<S>(from.add(i))) };
    }
    to.as_ptr()
}

#[inline(always)]
unsafe fn decode_body<S: Simd>(
    _: S,
    args: &Attention,
    tasks: Range<usize>,
    partials: &Shared<f32>,
    scratch: &mut [f32],
) {
    assert!(args.queries == 1, "decode takes one query, not {}", args.queries);
    assert!(scratch.len() >= args.decode_scratch(), "{} of {}", scratch.len(), args.decode_scratch());
    let segments = args.segments();
    let splits = args.decode_tasks() / args.cache.layout.kv_heads;
    for task in tasks {
        let (kv_head, split) = (task / splits, task % splits);
        let share = |s: usize| segments.start + segments.len() * s / splits;
        let mine = share(split)..share(split + 1);
        let task = Task::new(args, kv_head, 0);
        // SAFETY: the caller keeps tasks apart; scratch is long enough.
        unsafe {
            of_head!(args, kv_head, |kv: E| decode_segments::<S, E>(&task, mine, kv, partials, scratch.as_mut_ptr()))
        };
    }
}

#[inline(always)]
unsafe fn decode_segments<S: Simd, E: Element>(
    task: &Task,
    segments: Range<usize>,
    (k, v): (*const E, *const E),
    partials: &Shared<f32>,
    weights: *mut f32,
) {
    let args = task.args;
    let (layout, tiles) = (&args.cache.layout, &args.tiles);
    let (dim, v_row) = (layout.head_dim, layout.v_row());
    let seen = args.visible(0);
    for segment in segments {
        let state = args.partial(partials, task.kv_head, segment - args.segments().start);
        let start = (segment * tiles.segment).max(seen.start);
        let end = ((segment + 1) * tiles.segment).min(seen.end);
        let mut at = start / tiles.block_k * tiles.block_k;
        // SAFETY: blocks are inside the cache, whose capacity is whole groups of 16 keys; the state is this task's.
        unsafe {
            state.clear();
            while at < end {
                let block = Block { k: k.add(at * dim), v: v.add(at * v_row), start: at, dim, v_row };
                process::<S, E>(task, &block, at..(at + tiles.block_k).min(end), &state, weights);
                at += tiles.block_k;
            }
        }
    }
}

#[inline(always)]
unsafe fn combine_body<S: Simd>(_: S, args: &Attention, heads: Range<usize>, partials: &Shared<f32>) {
    let (dim, group) = (args.cache.layout.head_dim, args.group());
    let segments = args.segments().len();
    for head in heads {
        let out = args.out.at(head * dim, dim);
        // SAFETY: `at` and `partial` check; row `head` of the first partial becomes the total, and is this call's alone.
        unsafe {
            if segments == 0 {
                out.write_bytes(0, dim);
                continue;
            }
            let total = args.partial(partials, head / group, 0);
            for s in 1..segments {
                merge::<S>(&total, &args.partial(partials, head / group, s), head % group);
            }
            finish::<S>(&total, head % group, out, dim);
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
