//! Which group of records a key has: a table of short fingerprints, so that a lookup touches one line of it and then the
//! group alone.

use std::hash::{BuildHasher, RandomState};

/// Slots of an empty table; a power of two, as always.
const SLOTS_MIN: usize = 16;

/// Any odd number whose bits are about half ones (the fraction of the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Part of a key's hash, and the number of its group plus one; zero is an empty slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    print: u32,
    group: u32,
}

/// Numbers of groups by the hashes of their keys; at most half full, so that a search ends soon.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Differs from process to process: nobody can write keys that all fall into one place.
    seed: u64,
    slots: Vec<Slot>,
    len: usize,
}

impl Default for Index {
    fn default() -> Self {
        Index { seed: RandomState::new().hash_one(MIX), slots: vec![Slot::default(); SLOTS_MIN], len: 0 }
    }
}

/// Both halves of the product, folded into one.
fn mixed(a: u64) -> u64 {
    let product = u128::from(a) * u128::from(MIX);
    (product as u64) ^ (product >> 64) as u64
}

impl Index {
    /// The hash of `text`, eight bytes at a time.
    pub fn hash(&self, text: &str) -> u64 {
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let start = mixed(self.seed ^ text.len() as u64);
        let all = words.iter().chain(std::iter::once(&last));
        all.fold(start, |h, word| mixed(h ^ u64::from_le_bytes(*word)).rotate_left(23) ^ self.seed)
    }

    /// Where the search for `hash` begins, and what to compare there.
    fn place(&self, hash: u64) -> (usize, u32) {
        (hash as usize & (self.slots.len() - 1), (hash >> 32) as u32)
    }

    /// The group with this hash that `is_it` takes for the one.
    pub fn find(&self, hash: u64, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let (mut at, print) = self.place(hash);
        loop {
            let slot = self.slots[at];
            if slot.group == 0 {
                return None;
            }
            let group = slot.group as usize - 1;
            if slot.print == print && is_it(group) {
                return Some(group);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Adds group number `group`, which is not there; `hash_of` hashes the key of any group.
    pub fn insert(&mut self, hash: u64, group: usize, hash_of: impl Fn(&Index, usize) -> u64) {
        if 2 * (self.len + 1) > self.slots.len() {
            let bigger = vec![Slot::default(); 2 * self.slots.len()];
            let old = std::mem::replace(&mut self.slots, bigger);
            for slot in old.into_iter().filter(|s| s.group > 0) {
                let group = slot.group as usize - 1;
                self.put(hash_of(self, group), group);
            }
        }
        self.put(hash, group);
        self.len += 1;
    }

    fn put(&mut self, hash: u64, group: usize) {
        let (mut at, print) = self.place(hash);
        while self.slots[at].group > 0 {
            at = (at + 1) & (self.slots.len() - 1);
        }
        let group = u32::try_from(group + 1).expect("a store has fewer than four billion keys");
        self.slots[at] = Slot { print, group };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_whatever_else_is_there() {
        let texts: Vec<String> = (0..5000).map(|i| format!("scale cols={},rows={i}", i % 7)).collect();
        let mut index = Index::default();
        for (group, text) in texts.iter().enumerate() {
            let hash = index.hash(text);
            assert_eq!(index.find(hash, |g| texts[g] == *text), None);
            index.insert(hash, group, |index, g| index.hash(&texts[g]));
        }
        for (group, text) in texts.iter().enumerate() {
            assert_eq!(index.find(index.hash(text), |g| texts[g] == *text), Some(group));
        }
        assert!(index.slots.len() >= 2 * texts.len(), "{} slots", index.slots.len());
    }

    #[test]
    fn equal_hashes_are_told_apart_by_their_keys() {
        let mut index = Index::default();
        (0..20).for_each(|group| index.insert(5, group, |_, _| 5));
        for group in 0..20 {
            assert_eq!(index.find(5, |g| g == group), Some(group));
        }
        assert_eq!(index.find(5, |_| false), None);
    }

    /// Keys that differ in one digit, or in the length of a run of zero bytes, lie far apart.
    #[test]
    fn like_keys_have_unlike_hashes() {
        let index = Index::default();
        let texts: Vec<String> = (0..20_000).map(|i| format!("scale cols=576,rows={i},type=q4_0")).collect();
        let mut low: Vec<u64> = texts.iter().map(|t| index.hash(t) & 0xffff).collect();
        low.sort_unstable();
        low.dedup();
        // Of 65536 places, 20000 throws hit 17237 on average, give or take 50.
        assert!((16_900..17_600).contains(&low.len()), "{} places", low.len());
        assert_ne!(index.hash("ab"), index.hash("ab\0"));
        assert_ne!(index.hash(""), index.hash("\0"));
    }
}
