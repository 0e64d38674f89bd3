//! The positions that one node's ranks read, numbered in the order of consumption.
//!
//! Ranks step through batches together, so a node consumes by batch, and inside a batch row by row: the first sample of each of its
//! ranks, then the second. That is ascending position. [`LocalStream`] maps between index and position in O(1) and stores only
//! a column per rank. Fillers (see [`Split`]) come after everything else, in rank order: the last batch is the only
//! one that can have them.

use std::ops::Range;

use super::Split;
use crate::error::Error;

/// What the ranks of one node read in an epoch: indices `0..len()` in order of consumption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStream {
    split: Split,
    /// This node's ranks, ascending.
    ranks: Box<[u32]>,
    /// Rank -> its place in `ranks`, or [`NOT_LOCAL`].
    columns: Box<[u32]>,
    /// Samples of a full batch that this node reads.
    per_batch: u64,
    /// Indices that are not fillers.
    own: u64,
    /// This node's ranks that get a filler: the last ones of `ranks`, from here on.
    filled_from: usize,
}

const NOT_LOCAL: u32 = u32::MAX;

impl LocalStream {
    pub(super) fn new(split: Split, ranks: &[u32]) -> Result<Self, Error> {
        let total = split.ranks();
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        let mut columns = vec![NOT_LOCAL; total as usize];
        for (column, &rank) in ranks.iter().enumerate() {
            match columns.get_mut(rank as usize) {
                Some(free) if *free == NOT_LOCAL => *free = column as u32,
                _ => return Err(Error::NoSuchRank { rank, ranks: total }),
            }
        }
        if ranks.is_empty() {
            return Err(Error::Zero {
                what: "the number of ranks on this node",
            });
        }
        let last = split.batches() - 1;
        let shares = |batch| {
            ranks
                .iter()
                .map(|&rank| u64::from(split.share(batch, rank)))
                .sum::<u64>()
        };
        // All batches but the last are full; the last may be full too.
        let (per_batch, in_last) = (shares(0), shares(last));
        let own = last * per_batch + in_last;
        let filled_from = ranks.partition_point(|&rank| !split.is_filler(last, rank));
        Ok(Self {
            ranks: ranks.into(),
            columns: columns.into(),
            per_batch,
            own,
            filled_from,
            split,
        })
    }

    /// This node's ranks, ascending.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The split it is a part of.
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// Reads of this node in an epoch, fillers included.
    pub fn len(&self) -> u64 {
        self.own + (self.ranks.len() - self.filled_from) as u64
    }

    /// Whether the node reads nothing; it never does, each rank has at least a filler in each batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position read at an index.
    ///
    /// # Panics
    /// When there is no such index.
    pub fn position(&self, index: u64) -> u64 {
        let (row_start, column) = self.place(index);
        match row_start {
            Some(start) => start + u64::from(self.ranks[column]),
            None => {
                let last = self.split.batch_range(self.split.batches() - 1);
                last.start + u64::from(self.ranks[column]) % (last.end - last.start)
            }
        }
    }

    /// The rank that reads at an index.
    ///
    /// # Panics
    /// When there is no such index.
    pub fn rank(&self, index: u64) -> u32 {
        self.ranks[self.place(index).1]
    }

    /// The batch an index belongs to.
    ///
    /// # Panics
    /// When there is no such index.
    pub fn batch(&self, index: u64) -> u64 {
        assert!(index < self.len(), "index {index} of {}", self.len());
        if index >= self.own {
            self.split.batches() - 1
        } else {
            index / self.per_batch
        }
    }

    /// Whether the read at an index is a filler.
    pub fn is_filler(&self, index: u64) -> bool {
        index >= self.own
    }

    /// The indices of a batch, fillers included.
    ///
    /// # Panics
    /// When there is no such batch.
    pub fn batch_indices(&self, batch: u64) -> Range<u64> {
        assert!(
            batch < self.split.batches(),
            "batch {batch} of {}",
            self.split.batches()
        );
        let end = if batch + 1 == self.split.batches() {
            self.len()
        } else {
            (batch + 1) * self.per_batch
        };
        batch * self.per_batch..end
    }

    /// The index at which this node reads a position, other than as a filler; `None` when another node's rank reads it.
    pub fn index_of(&self, position: u64) -> Option<u64> {
        if position >= self.split.positions {
            return None;
        }
        let column = self.columns[self.split.rank_of(position) as usize];
        let (batch, offset) = (
            self.split.batch_of(position),
            position % u64::from(self.split.global_batch),
        );
        let row = offset / u64::from(self.split.ranks);
        (column != NOT_LOCAL).then(|| batch * self.per_batch + row * self.ranks.len() as u64 + u64::from(column))
    }

    /// Where the row of an index starts (`None` for a filler), and its column.
    fn place(&self, index: u64) -> (Option<u64>, usize) {
        assert!(index < self.len(), "index {index} of {}", self.len());
        if index >= self.own {
            return (None, self.filled_from + (index - self.own) as usize);
        }
        // Only the last row of a batch can be incomplete, and then the ranks it lacks are the last ones: the columns stay right.
        let (batch, offset) = (index / self.per_batch, index % self.per_batch);
        let (row, column) = (offset / self.ranks.len() as u64, offset % self.ranks.len() as u64);
        let start = batch * u64::from(self.split.global_batch) + row * u64::from(self.split.ranks);
        (Some(start), column as usize)
    }
}
