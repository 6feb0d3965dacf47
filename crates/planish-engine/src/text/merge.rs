//! Greedy pair merging: the best-ranked pair of neighbours is joined until no pair has a rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A piece of a word: bytes `start..end` of its text, and the token that it is, if any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) id: Option<u32>,
    prev: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Symbol {
    pub(super) fn new(start: usize, end: usize, id: Option<u32>) -> Symbol {
        Symbol { start: start as u32, end: end as u32, id, prev: NONE, next: NONE }
    }

    fn dead(&self) -> bool {
        self.start == self.end
    }
}

/// A merge that may be made: lower rank first, then the leftmost; stale once either side has changed.
type Candidate = Reverse<(u32, u32, u32, u32, u32)>;

/// Joins neighbours of `symbols` in order of `rank(left, right)`, which gives a rank and the joined token; the lowest
/// rank goes first, the leftmost of equals. What is left stays in `symbols`, in order.
pub(super) fn merge(symbols: &mut Vec<Symbol>, rank: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
    let count = symbols.len();
    for (i, symbol) in symbols.iter_mut().enumerate() {
        symbol.prev = if i == 0 { NONE } else { i as u32 - 1 };
        symbol.next = if i + 1 == count { NONE } else { i as u32 + 1 };
    }
    let candidate = |symbols: &[Symbol], left: u32, right: u32| -> Option<Candidate> {
        let (a, b) = (symbols.get(left as usize)?, symbols.get(right as usize)?);
        rank(a, b).map(|(rank, id)| Reverse((rank, left, right, b.end - a.start, id)))
    };
    let mut heap: BinaryHeap<Candidate> =
        (1..count as u32).filter_map(|right| candidate(symbols, right - 1, right)).collect();
    while let Some(Reverse((_, left, right, len, id))) = heap.pop() {
        let (a, b) = (symbols[left as usize], symbols[right as usize]);
        if a.dead() || b.dead() || a.next != right || b.end - a.start != len {
            continue;
        }
        symbols[left as usize] = Symbol { end: b.end, id: Some(id), next: b.next, ..a };
        symbols[right as usize].end = b.start;
        if b.next != NONE {
            symbols[b.next as usize].prev = left;
        }
        heap.extend(candidate(symbols, a.prev, left));
        heap.extend(candidate(symbols, left, b.next));
    }
    symbols.retain(|s| !s.dead());
}
