//! Blocks: what memory and disk tiers hold.
//!
//! A *block* is a whole object, or the samples of a large one that begin in the same *cell*, a stretch of 4 MiB or so: everything from the first byte
//! of the first of them to the last byte of the last. A sample is a view of its block. So what is held costs what its blocks cost, however small its
//! samples are, and one request, one record on disk and one place in memory serve them all.
//!
//! Blocks follow from the catalog alone, so every job and every node cuts a data set alike. They are numbered in the order of their samples, and the
//! samples of a block have consecutive numbers. A sample is a block of its own where that costs less: when it is longer than half a cell, when it doesn't
//! follow its neighbour in their object or lies far behind it, and where most of a cell belongs to no sample (a subset). So is one that is several ranges.
//!
//! A block may be in memory in part: then each stay is one sample's ([`Content`]).

use crate::catalog::{Catalog, Place};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Samples of a block at most: what is counted of a block in memory has 16 bits. A power of two, so that a cell of tiny samples is cut evenly.
const MOST_SAMPLES: u64 = 1 << 15;

/// What one stay in memory holds: a block, or a sample of a block that is here in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Content(u64);

/// What a [`Content`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// All of a block.
    Block(u64),
    /// One sample of a block that has several.
    Sample(u64),
}

impl Content {
    const PART: u64 = 1 << 63;

    /// All of a block.
    #[must_use]
    pub const fn block(block: u64) -> Self {
        Content(block)
    }

    /// One sample, of a block that has several.
    #[must_use]
    pub const fn sample(sample: u64) -> Self {
        Content(sample | Self::PART)
    }

    /// What it names.
    #[must_use]
    pub const fn held(self) -> Held {
        match self.0 & Self::PART {
            0 => Held::Block(self.0),
            _ => Held::Sample(self.0 & !Self::PART),
        }
    }

    /// As a number: different ones for different contents.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The first samples of all blocks: a bit each, and how many come before each word of bits.
struct Firsts {
    bits: Vec<u64>,
    before: Vec<u64>,
    count: u64,
}

impl Firsts {
    fn new(bits: Vec<u64>) -> Self {
        let mut count = 0;
        let before = bits.iter().map(|word| {
            let before = count;
            count += u64::from(word.count_ones());
            before
        });
        let before = before.collect();
        Firsts { bits, before, count }
    }

    /// The block that has a sample: as many first ones come up to and with it, less one.
    fn block_of(&self, sample: u64) -> u64 {
        let word = (sample / 64) as usize;
        let up_to = self.bits[word] & (u64::MAX >> (63 - sample % 64));
        self.before[word] + u64::from(up_to.count_ones()) - 1
    }

    /// The first sample of a block.
    fn first_of(&self, block: u64) -> u64 {
        let word = self.before.partition_point(|&before| before <= block) - 1;
        let mut bits = self.bits[word];
        (self.before[word]..block).for_each(|_| bits &= bits - 1);
        64 * word as u64 + u64::from(bits.trailing_zeros())
    }

    /// The last first one that isn't after a sample.
    fn at_or_before(&self, sample: u64) -> u64 {
        let mut word = (sample / 64) as usize;
        let mut bits = self.bits[word] & (u64::MAX >> (63 - sample % 64));
        while bits == 0 {
            word -= 1;
            bits = self.bits[word];
        }
        64 * word as u64 + 63 - u64::from(bits.leading_zeros())
    }

    /// The next first one after a sample; `None`: it is in the last block.
    fn after(&self, sample: u64) -> Option<u64> {
        let next = sample + 1;
        let word = (next / 64) as usize;
        let rest = *self.bits.get(word)? & (u64::MAX << (next % 64));
        let found =
            |(word, bits): (usize, u64)| (bits != 0).then(|| 64 * word as u64 + u64::from(bits.trailing_zeros()));
        let further = self.bits.iter().copied().enumerate().skip(word + 1);
        std::iter::once((word, rest)).chain(further).find_map(found)
    }
}

/// A catalog, cut into blocks.
pub struct Blocks {
    catalog: Arc<dyn Catalog>,
    /// `None`: each sample is a block of its own.
    firsts: Option<Firsts>,
}

impl Blocks {
    /// Cuts a catalog into blocks by cells of `cell_bytes`, and where a sample lies more than `gap_bytes` behind the one before it; with cells of 0 bytes,
    /// each sample is a block of its own. Goes through all places where several samples
    /// share objects: some 20 ns each. Holds a quarter of a byte per sample then, else nothing.
    #[must_use]
    pub fn new(catalog: Arc<dyn Catalog>, cell_bytes: u64, gap_bytes: u64) -> Self {
        let firsts = (cell_bytes > 0 && catalog.shares_objects())
            .then(|| Firsts::new(cut(&*catalog, cell_bytes, gap_bytes)))
            .filter(|firsts| firsts.count < catalog.samples());
        Blocks { catalog, firsts }
    }

    /// Samples of the catalog.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.catalog.samples()
    }

    /// Where a sample lies.
    #[must_use]
    pub fn place(&self, sample: u64) -> Place {
        self.catalog.place(sample)
    }

    /// Whether a block is a sample of several ranges: then its place says nothing but how long it is.
    #[must_use]
    pub fn is_several(&self, content: Content) -> bool {
        self.catalog.is_several(self.samples_of(content).start)
    }

    /// Whether a sample is several ranges.
    #[must_use]
    pub fn has_several(&self, sample: u64) -> bool {
        self.catalog.is_several(sample)
    }

    /// Where the bytes of a content lie, one stretch after the other: its place, or the ranges of a sample of several, without empty ones, and those that
    /// follow each other in their object as one.
    #[must_use]
    pub fn stretches(&self, content: Content) -> Vec<Place> {
        if !self.is_several(content) {
            return vec![self.place_of(content)];
        }
        let mut stretches: Vec<Place> = Vec::new();
        for range in self.catalog.ranges(self.samples_of(content).start) {
            match stretches.last_mut() {
                _ if range.len == 0 => {}
                Some(last)
                    if last.object == range.object && last.offset.checked_add(last.len) == Some(range.offset) =>
                {
                    last.len += range.len;
                }
                _ => stretches.push(range),
            }
        }
        stretches
    }

    /// Where the byte at `content_offset` of a content lies, and what of its stretch begins there.
    #[must_use]
    pub fn locate(&self, content: Content, content_offset: u64) -> Option<Place> {
        let mut before = 0;
        self.stretches(content).into_iter().find_map(|stretch| {
            let within = content_offset - before;
            before += stretch.len;
            (content_offset < before).then(|| Place {
                offset: stretch.offset + within,
                len: stretch.len - within,
                ..stretch
            })
        })
    }

    /// Whether any block has several samples.
    #[must_use]
    pub fn are_shared(&self) -> bool {
        self.firsts.is_some()
    }

    /// Number of blocks.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.firsts.as_ref().map_or(self.samples(), |firsts| firsts.count)
    }

    /// The block that a sample is a view of. The sample must exist.
    #[must_use]
    pub fn of(&self, sample: u64) -> u64 {
        self.firsts.as_ref().map_or(sample, |firsts| firsts.block_of(sample))
    }

    /// The samples of a block. The block must exist.
    #[must_use]
    pub fn range(&self, block: u64) -> Range<u64> {
        match &self.firsts {
            None => block..block + 1,
            Some(firsts) => {
                let first = firsts.first_of(block);
                first..firsts.after(first).unwrap_or(self.samples())
            }
        }
    }

    /// The samples of the block that has this one. The sample must exist.
    #[must_use]
    pub fn siblings(&self, sample: u64) -> Range<u64> {
        match &self.firsts {
            None => sample..sample + 1,
            Some(firsts) => firsts.at_or_before(sample)..firsts.after(sample).unwrap_or(self.samples()),
        }
    }

    /// From the first byte of the first of a block's samples to the last byte of the last.
    #[must_use]
    pub fn extent(&self, samples: Range<u64>) -> Place {
        let first = self.place(samples.start);
        match samples.end - samples.start {
            1 => first,
            _ => {
                let last = self.place(samples.end - 1);
                let len = last.offset + last.len - first.offset;
                Place { len, ..first }
            }
        }
    }

    /// The samples of a content.
    #[must_use]
    pub fn samples_of(&self, content: Content) -> Range<u64> {
        match content.held() {
            Held::Block(block) => self.range(block),
            Held::Sample(sample) => sample..sample + 1,
        }
    }

    /// The block of a content.
    #[must_use]
    pub fn block_of(&self, content: Content) -> u64 {
        match content.held() {
            Held::Block(block) => block,
            Held::Sample(sample) => self.of(sample),
        }
    }

    /// Where a content lies.
    #[must_use]
    pub fn place_of(&self, content: Content) -> Place {
        self.extent(self.samples_of(content))
    }
}

/// Marks the first sample of each block.
fn cut(catalog: &dyn Catalog, cell_bytes: u64, gap_bytes: u64) -> Vec<u64> {
    let samples = catalog.samples();
    let mut bits = vec![0u64; samples.div_ceil(64) as usize];
    let mut mark = |sample: u64| bits[(sample / 64) as usize] |= 1 << (sample % 64);
    let is_long = |place: &Place| place.len > cell_bytes / 2;
    let end = |place: &Place| place.offset.saturating_add(place.len);
    // The block at hand: its first sample, where that lies, the last place in it, and the bytes of its samples.
    let mut block: Option<(u64, Place, Place, u64)> = None;
    let mut close = |block: Option<(u64, Place, Place, u64)>, next: u64| {
        let Some((first, place, last, bytes)) = block else {
            return;
        };
        let sparse = bytes < (end(&last) - place.offset) / 2;
        (first..if sparse { next } else { first + 1 }).for_each(&mut mark);
    };
    for sample in 0..samples {
        let place = catalog.place(sample);
        match &mut block {
            Some((start, first, last, bytes))
                if place.object == first.object
                    && place.offset >= end(last)
                    && place.offset - end(last) <= gap_bytes
                    && place.offset / cell_bytes == first.offset / cell_bytes
                    && sample - *start < MOST_SAMPLES
                    && !catalog.is_several(sample)
                    && !catalog.is_several(sample - 1)
                    && !is_long(&place)
                    && !is_long(last) =>
            {
                *last = place;
                *bytes += place.len;
            }
            _ => close(block.replace((sample, place, place, place.len)), sample),
        }
    }
    close(block, samples);
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Objects, Shards};
    use proptest::prelude::*;

    const GAP: u64 = 40;

    fn shards(places: &[(u64, u64, u64)], cell_bytes: u64) -> Blocks {
        let place = |&(object, offset, len): &(u64, u64, u64)| Place { object, offset, len };
        Blocks::new(Arc::new(Shards(places.iter().map(place).collect())), cell_bytes, GAP)
    }

    fn ranges(blocks: &Blocks) -> Vec<Range<u64>> {
        (0..blocks.count()).map(|block| blocks.range(block)).collect()
    }

    #[test]
    fn whole_objects_are_blocks_and_cost_nothing() {
        let blocks = Blocks::new(Arc::new(Objects(vec![5, 0, 7])), 1 << 20, GAP);
        assert!(!blocks.are_shared());
        assert_eq!((blocks.count(), blocks.of(2), blocks.range(2)), (3, 2, 2..3));
        assert_eq!(blocks.extent(2..3).len, 7);
    }

    #[test]
    fn a_block_ends_with_its_object_and_with_its_cell() {
        let blocks = shards(&[(0, 0, 30), (0, 40, 30), (0, 90, 30), (0, 120, 20), (1, 130, 20)], 100);
        assert_eq!(ranges(&blocks), [0..3, 3..4, 4..5]);
        assert_eq!(
            blocks.extent(0..3),
            Place {
                object: 0,
                offset: 0,
                len: 120
            }
        );
        assert_eq!(
            blocks.place_of(Content::sample(1)),
            Place {
                object: 0,
                offset: 40,
                len: 30
            }
        );
        assert_eq!(blocks.block_of(Content::sample(3)), 1);
    }

    #[test]
    fn a_long_sample_and_one_that_does_not_follow_its_neighbour_are_blocks_of_their_own() {
        assert_eq!(
            ranges(&shards(
                &[(0, 0, 10), (0, 10, 10), (0, 20, 51), (0, 71, 10), (0, 81, 10)],
                100
            )),
            [0..2, 2..3, 3..5]
        );
        assert_eq!(
            ranges(&shards(&[(0, 50, 10), (0, 60, 10), (0, 30, 10), (0, 35, 10)], 100)),
            [0..2, 2..3, 3..4]
        );
    }

    #[test]
    fn a_block_has_so_many_samples_and_no_more() {
        let places: Vec<_> = (0..MOST_SAMPLES + 3).map(|sample| (0, sample, 1)).collect();
        let blocks = shards(&places, 1 << 20);
        assert_eq!(ranges(&blocks), [0..MOST_SAMPLES, MOST_SAMPLES..MOST_SAMPLES + 3]);
    }

    #[test]
    fn a_block_that_is_half_full_is_not_sparse() {
        // 40 of 80 bytes are samples', then 38 of 78.
        assert_eq!(
            ranges(&shards(&[(0, 0, 20), (0, 60, 20), (1, 0, 5)], 100)),
            [0..2, 2..3]
        );
        assert_eq!(ranges(&shards(&[(0, 0, 20), (0, 60, 18)], 100)), [0..1, 1..2]);
    }

    #[test]
    fn a_byte_of_a_content_is_found_with_what_follows_it() {
        let blocks = shards(&[(0, 10, 30), (0, 45, 30)], 100);
        let at = |offset, len| Some(Place { object: 0, offset, len });
        assert_eq!(blocks.locate(Content::sample(1), 0), at(45, 30));
        assert_eq!(blocks.locate(Content::sample(1), 29), at(74, 1));
        assert_eq!(blocks.locate(Content::sample(1), 30), None);
    }

    #[test]
    fn samples_that_are_few_in_their_cell_are_read_alone() {
        let blocks = shards(&[(0, 0, 10), (0, 50, 10), (0, 90, 5), (0, 100, 40), (0, 145, 40)], 100);
        assert_eq!(ranges(&blocks), [0..1, 1..2, 2..3, 3..5]);
        // A hole that is cheaper to leave out.
        assert_eq!(
            ranges(&shards(&[(0, 0, 30), (0, 30, 20), (0, 91, 30)], 200)),
            [0..2, 2..3]
        );
    }

    #[test]
    fn a_content_says_what_it_is() {
        assert_eq!(Content::block(7).held(), Held::Block(7));
        assert_eq!(Content::sample(7).held(), Held::Sample(7));
        assert_ne!(Content::block(7), Content::sample(7));
    }

    proptest! {
        #[test]
        fn proptest_every_sample_is_in_one_block_whole(
            steps in proptest::collection::vec((0u8..20, 0u64..60, 0u64..80), 1..400),
            cell in 1u64..300,
        ) {
            let (mut object, mut offset, mut places) = (0u64, 0u64, Vec::new());
            for &(turn, gap, len) in &steps {
                match turn {
                    0 => (object, offset) = (object + 1, 0),
                    1 => offset = offset.saturating_sub(100),
                    _ => offset += gap,
                }
                places.push((object, offset, len));
                offset += len;
            }
            let blocks = shards(&places, cell);
            let mut next = 0;
            for block in 0..blocks.count() {
                let range = blocks.range(block);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.end > range.start);
                next = range.end;
                let extent = blocks.extent(range.clone());
                let mut bytes = 0;
                for sample in range.clone() {
                    prop_assert_eq!(blocks.of(sample), block);
                    prop_assert_eq!(blocks.siblings(sample), range.clone());
                    let place = blocks.place(sample);
                    bytes += place.len;
                    prop_assert_eq!(place.object, extent.object);
                    prop_assert!(place.offset >= extent.offset && place.offset + place.len <= extent.offset + extent.len);
                    prop_assert_eq!(place.offset / cell, extent.offset / cell);
                }
                prop_assert!(range.end - range.start == 1 || (extent.len <= cell + cell / 2 && bytes >= extent.len / 2));
            }
            prop_assert_eq!(next, steps.len() as u64);
        }
    }
}
