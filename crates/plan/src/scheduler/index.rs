//! From a content to its place in the table of residents.
//!
//! Samples are looked up at random among up to millions, so a look-up costs as much as the cache lines it touches. Here that is one: linear probing over
//! words of eight bytes, each a place and the upper half of the sample's hash. The hash alone says where a word belongs, so that growing and removing
//! touch nothing else; whether a word is the sample's is seen in the table, which the caller is about to read anyway.

/// Words at first. Their number is a power of two.
const LEAST_LOG2: u32 = 6;
const EMPTY: u64 = u64::MAX;

pub(super) struct Index {
    words: Vec<u64>,
    count: usize,
    /// How far a tag is shifted to be a position: 32 less log2 of the words.
    shift: u32,
}

/// The upper half of a hash: multiplying by the golden ratio spreads neighbours evenly.
fn tag(sample: u64) -> u64 {
    sample.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

impl Default for Index {
    fn default() -> Self {
        Index {
            words: vec![EMPTY; 1 << LEAST_LOG2],
            count: 0,
            shift: 32 - LEAST_LOG2,
        }
    }
}

impl Index {
    /// Samples in it.
    pub fn len(&self) -> usize {
        self.count
    }

    fn home(&self, tag: u64) -> usize {
        (tag >> self.shift) as usize
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.words.len() - 1)
    }

    /// The place of a sample; `is` tells whether a place is its.
    pub fn find(&self, sample: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = tag(sample);
        let mut at = self.home(tag);
        loop {
            let word = self.words[at];
            if word == EMPTY {
                return None;
            }
            if word >> 32 == tag && is(word as u32) {
                return Some(word as u32);
            }
            at = self.after(at);
        }
    }

    /// Adds a sample that is not in it.
    pub fn insert(&mut self, sample: u64, place: u32) {
        if (self.count + 1) * 4 > self.words.len() * 3 {
            let words = vec![EMPTY; self.words.len() * 2];
            self.shift -= 1;
            for word in std::mem::replace(&mut self.words, words) {
                if word != EMPTY {
                    self.put(word);
                }
            }
        }
        self.put(tag(sample) << 32 | u64::from(place));
        self.count += 1;
    }

    fn put(&mut self, word: u64) {
        let mut at = self.home(word >> 32);
        while self.words[at] != EMPTY {
            at = self.after(at);
        }
        self.words[at] = word;
    }

    /// Takes out a sample that is in it at `place`.
    pub fn remove(&mut self, sample: u64, place: u32) {
        let gone = tag(sample) << 32 | u64::from(place);
        let mut at = self.home(gone >> 32);
        while self.words[at] != gone {
            at = self.after(at);
        }
        // Words behind the hole that belong at or before it move up, so that no search stops short of them.
        let mut hole = at;
        loop {
            at = self.after(at);
            let word = self.words[at];
            if word == EMPTY {
                break;
            }
            let mask = self.words.len() - 1;
            let (from_home, from_hole) = (at.wrapping_sub(self.home(word >> 32)), at.wrapping_sub(hole));
            if from_home & mask >= from_hole & mask {
                self.words[hole] = word;
                hole = at;
            }
        }
        self.words[hole] = EMPTY;
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_not_in_it_is_not_found_and_one_place_may_serve_several_keys_in_turn() {
        let mut index = Index::default();
        assert_eq!(index.find(1, |_| true), None);
        index.insert(1, 4);
        index.insert(2, 5);
        assert_eq!((index.find(1, |_| true), index.find(2, |_| true)), (Some(4), Some(5)));
        assert_eq!(index.find(1, |place| place != 4), None, "the table has the last word");
        index.remove(1, 4);
        index.insert(3, 4);
        assert_eq!(
            (index.find(1, |_| true), index.find(3, |_| true), index.len()),
            (None, Some(4), 2)
        );
    }

    #[test]
    fn keys_of_one_tag_are_told_apart_by_their_places_when_one_leaves() {
        // As below: these share a tag.
        let keys = [1u64, 2, 3].map(|n| (n << 20).wrapping_mul(0xf1de_83e1_9937_733d));
        assert!(keys.iter().all(|&key| tag(key) == tag(keys[0])));
        let mut index = Index::default();
        (0..3).for_each(|place| index.insert(keys[place], place as u32));
        index.remove(keys[1], 1);
        let found = [0, 1, 2].map(|place| index.find(keys[place as usize], |found| found == place));
        assert_eq!(found, [Some(0), None, Some(2)]);
    }

    #[test]
    fn it_grows_before_it_is_full_so_that_every_search_ends() {
        let mut index = Index::default();
        for key in 0..10_000 {
            index.insert(key, key as u32);
            assert!(index.count * 4 <= index.words.len() * 3);
        }
        assert!((0..10_000).all(|key| index.find(key, |place| u64::from(place) == key) == Some(key as u32)));
        assert_eq!(index.find(10_001, |_| true), None);
    }

    proptest! {
        #[test]
        fn it_finds_what_a_map_finds(steps in proptest::collection::vec((0u64..300, any::<bool>()), 1..2000), wide in any::<bool>()) {
            // Multiples of 2^32 times the inverse of the golden ratio share one tag, so all of them collide.
            let key = |n: u64| if wide { (n << 20).wrapping_mul(0xf1de_83e1_9937_733d) } else { n };
            let (mut index, mut reference) = (Index::default(), BTreeMap::new());
            for (place, (n, add)) in steps.into_iter().enumerate() {
                let found = index.find(key(n), |place| reference.get(&n) == Some(&place));
                prop_assert_eq!(found, reference.get(&n).copied());
                match (add, found) {
                    (true, None) => {
                        index.insert(key(n), place as u32);
                        reference.insert(n, place as u32);
                    }
                    (false, Some(place)) => {
                        index.remove(key(n), place);
                        reference.remove(&n);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.len(), reference.len());
            }
            for (n, place) in &reference {
                prop_assert_eq!(index.find(key(*n), |found| found == *place), Some(*place));
            }
        }
    }
}
