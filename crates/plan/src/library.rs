//! The data sets that a node's jobs read, numbered through.
//!
//! Jobs that read the same data set share it: its samples and blocks have one number on the node, so what one of them has brought is there for the
//! others. A data set that no job names any more is let go when nothing of it is in memory; numbers are never used again.

use crate::blocks::{Blocks, Content, Held};
use crate::catalog::{Catalog, Place};
use crate::job::Set;
use std::ops::Range;
use std::sync::Arc;

/// A data set of a node.
#[derive(Clone)]
pub struct Shelf {
    /// Its name, chosen by the carrier: equal names are the same data set.
    pub name: u64,
    /// Its samples, in blocks.
    pub blocks: Arc<Blocks>,
    /// The node's number of its first sample.
    pub first_sample: u64,
    /// The node's number of its first block.
    pub first_block: u64,
    /// Bytes of all its samples, by 64 of them.
    pub bytes: u64,
}

impl Shelf {
    /// Its blocks, in the node's numbers.
    #[must_use]
    pub fn blocks_on_node(&self) -> Range<u64> {
        self.first_block..self.first_block + self.blocks.count()
    }

    /// Bytes of a block, by the node's number.
    #[must_use]
    pub fn len_of(&self, block: u64) -> u64 {
        self.blocks.place_of(Content::block(block - self.first_block)).len
    }

    /// A content of it, as the data set numbers it.
    #[must_use]
    pub fn own(&self, content: Content) -> Content {
        match content.held() {
            Held::Block(block) => Content::block(block - self.first_block),
            Held::Sample(sample) => Content::sample(sample - self.first_sample),
        }
    }

    /// Whether a content is of this data set.
    #[must_use]
    pub fn has(&self, content: Content) -> bool {
        match content.held() {
            Held::Block(block) => self.blocks_on_node().contains(&block),
            Held::Sample(sample) => self.on_node(0..self.blocks.samples()).contains(&sample),
        }
    }

    /// Samples of the data set, in the node's numbers.
    fn on_node(&self, samples: Range<u64>) -> Range<u64> {
        self.first_sample + samples.start..self.first_sample + samples.end
    }
}

/// Mean bytes of a sample, by 64 of them.
pub(crate) fn mean_bytes(catalog: &dyn Catalog) -> u64 {
    let samples = catalog.samples().max(1);
    let some = (0..64).map(|i| catalog.place(i * samples / 64 % samples).len);
    some.sum::<u64>() / 64
}

/// All data sets of a node.
#[derive(Default)]
pub struct Library {
    shelves: Vec<Shelf>,
    samples: u64,
    blocks: u64,
    are_shared: bool,
}

impl Library {
    /// The shelf of a data set, made if it isn't known: in the blocks that it comes with, or cut as [`Blocks::new`] does.
    pub fn take_in(&mut self, set: &Set, cell_bytes: u64, gap_bytes: u64) -> &Shelf {
        let at = self.shelves.iter().position(|shelf| shelf.name == set.name);
        let at = at.unwrap_or_else(|| {
            let cut = || Arc::new(Blocks::new(Arc::clone(&set.catalog), cell_bytes, gap_bytes));
            let blocks = set.blocks.clone().unwrap_or_else(cut);
            let (first_sample, first_block) = (self.samples, self.blocks);
            self.samples += blocks.samples();
            self.blocks += blocks.count();
            self.are_shared |= blocks.are_shared();
            let bytes = mean_bytes(&*set.catalog).saturating_mul(blocks.samples());
            self.shelves.push(Shelf {
                name: set.name,
                blocks,
                first_sample,
                first_block,
                bytes,
            });
            self.shelves.len() - 1
        });
        &self.shelves[at]
    }

    /// Lets a data set go. Its numbers are used no more.
    pub fn forget(&mut self, name: u64) {
        self.shelves.retain(|shelf| shelf.name != name);
    }

    /// The data set with a name.
    #[must_use]
    pub fn named(&self, name: u64) -> Option<&Shelf> {
        self.shelves.iter().find(|shelf| shelf.name == name)
    }

    /// The data sets.
    #[must_use]
    pub fn shelves(&self) -> &[Shelf] {
        &self.shelves
    }

    /// Blocks of all that there ever were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.blocks
    }

    /// The data set of a content, if that is known.
    #[must_use]
    pub fn shelf_with(&self, content: Content) -> Option<&Shelf> {
        self.shelves.iter().find(|shelf| shelf.has(content))
    }

    /// Those of which no job reads anything: `is_read` tells by the number of a first sample.
    pub fn unread(&self, is_read: impl Fn(u64) -> bool) -> Vec<Shelf> {
        let unread = self.shelves.iter().filter(|shelf| !is_read(shelf.first_sample));
        unread.cloned().collect()
    }

    /// Whether a block is of a data set that is known.
    #[must_use]
    pub fn has_block(&self, block: u64) -> bool {
        let before = self.shelves.partition_point(|shelf| shelf.first_block <= block);
        before > 0 && self.shelves[before - 1].blocks_on_node().contains(&block)
    }

    /// Whether any block has several samples.
    #[must_use]
    pub fn are_shared(&self) -> bool {
        self.are_shared
    }

    /// The data set of a sample, which must exist.
    #[must_use]
    pub fn shelf(&self, sample: u64) -> &Shelf {
        match self.shelves.as_slice() {
            [one] => one,
            several => &several[several.partition_point(|shelf| shelf.first_sample <= sample) - 1],
        }
    }

    /// The data set of a block, which must exist.
    #[must_use]
    pub fn shelf_of_block(&self, block: u64) -> &Shelf {
        match self.shelves.as_slice() {
            [one] => one,
            several => &several[several.partition_point(|shelf| shelf.first_block <= block) - 1],
        }
    }

    /// The data set of a content, which must exist.
    #[must_use]
    pub fn shelf_of(&self, content: Content) -> &Shelf {
        match content.held() {
            Held::Block(block) => self.shelf_of_block(block),
            Held::Sample(sample) => self.shelf(sample),
        }
    }

    /// Where a sample lies in its data set.
    #[must_use]
    pub fn place(&self, sample: u64) -> Place {
        let shelf = self.shelf(sample);
        shelf.blocks.place(sample - shelf.first_sample)
    }

    /// As [`Blocks::of`].
    #[must_use]
    pub fn of(&self, sample: u64) -> u64 {
        let shelf = self.shelf(sample);
        shelf.first_block + shelf.blocks.of(sample - shelf.first_sample)
    }

    /// As [`Blocks::siblings`].
    #[must_use]
    pub fn siblings(&self, sample: u64) -> Range<u64> {
        let shelf = self.shelf(sample);
        shelf.on_node(shelf.blocks.siblings(sample - shelf.first_sample))
    }

    /// As [`Blocks::extent`].
    #[must_use]
    pub fn extent(&self, samples: Range<u64>) -> Place {
        let shelf = self.shelf(samples.start);
        let first = shelf.first_sample;
        shelf.blocks.extent(samples.start - first..samples.end - first)
    }

    /// A content as its data set numbers it.
    fn own(&self, content: Content) -> (&Shelf, Content) {
        let shelf = self.shelf_of(content);
        (shelf, shelf.own(content))
    }

    /// As [`Blocks::samples_of`].
    #[must_use]
    pub fn samples_of(&self, content: Content) -> Range<u64> {
        let (shelf, own) = self.own(content);
        shelf.on_node(shelf.blocks.samples_of(own))
    }

    /// As [`Blocks::block_of`].
    #[must_use]
    pub fn block_of(&self, content: Content) -> u64 {
        let (shelf, own) = self.own(content);
        shelf.first_block + shelf.blocks.block_of(own)
    }

    /// As [`Blocks::is_several`].
    #[must_use]
    pub fn is_several(&self, content: Content) -> bool {
        let (shelf, own) = self.own(content);
        shelf.blocks.is_several(own)
    }

    /// As [`Blocks::has_several`].
    #[must_use]
    pub fn has_several(&self, sample: u64) -> bool {
        let shelf = self.shelf(sample);
        shelf.blocks.has_several(sample - shelf.first_sample)
    }

    /// As [`Blocks::stretches`].
    #[must_use]
    pub fn stretches(&self, content: Content) -> Vec<Place> {
        let (shelf, own) = self.own(content);
        shelf.blocks.stretches(own)
    }

    /// As [`Blocks::locate`].
    #[must_use]
    pub fn locate(&self, content: Content, content_offset: u64) -> Option<Place> {
        let (shelf, own) = self.own(content);
        shelf.blocks.locate(own, content_offset)
    }

    /// As [`Blocks::place_of`], in its data set.
    #[must_use]
    pub fn place_of(&self, content: Content) -> Place {
        let (shelf, own) = self.own(content);
        shelf.blocks.place_of(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Objects, Shards};

    #[test]
    fn data_sets_are_numbered_through_and_known_by_their_names() {
        let whole: Arc<dyn Catalog> = Arc::new(Objects(vec![5, 6, 7]));
        let packed: Arc<dyn Catalog> = Arc::new(Shards::pack(&[10; 6], 0, 30));
        let mut library = Library::default();
        assert_eq!(
            library.take_in(&Set::new(1, Arc::clone(&whole)), 100, 0).first_sample,
            0
        );
        let shelf = library.take_in(&Set::new(2, Arc::clone(&packed)), 100, 0);
        assert_eq!((shelf.first_sample, shelf.first_block), (3, 3));
        assert_eq!(
            library.take_in(&Set::new(1, Arc::clone(&whole)), 100, 0).first_sample,
            0
        );
        assert_eq!((library.count(), library.shelves().len()), (5, 2));
        assert!(library.are_shared());
        for sample in 0..9 {
            let block = library.of(sample);
            let range = library.samples_of(Content::block(block));
            assert_eq!(range, library.siblings(sample));
            assert!(range.contains(&sample));
            assert_eq!(library.shelf(sample).name, library.shelf_of_block(block).name);
            let expected = if sample < 3 {
                whole.place(sample)
            } else {
                packed.place(sample - 3)
            };
            assert_eq!(library.place(sample), expected);
            assert_eq!(library.place_of(Content::sample(sample)), expected);
        }
        assert_eq!(library.place_of(Content::block(4)).len, 30);
    }
}
