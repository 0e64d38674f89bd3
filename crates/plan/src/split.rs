//! How the data ranks share a global batch, and what one node's ranks read of it.
//!
//! Global batch b is positions `[b*G, (b+1)*G)` of the epoch, whatever the number of ranks. [`Split`] deals it out like cards: rank r of R
//! gets positions bG + r, bG + r + R, ... Strung together, those are the indices that torch's `DistributedSampler` gives to
//! rank r, so a run moved from torch sees the same batches. Because R appears nowhere else, a run resumes on another
//! number of ranks with the same global batches ([`Cursor`]).
//!
//! Every rank has the same number of batches, always: one more on one rank and an all-reduce waits for ever. Where the ranks can't
//! share a batch equally, that is an error, or, when the caller says so, ranks differ by one sample and [`Split::weight`]
//! tells what to multiply each rank's mean loss with; a rank for which nothing is left gets a *filler*, a
//! sample that another rank has too, at weight zero.
//!
//! Which samples of a batch a rank has may be told otherwise, by where they are kept ([`crate::deal`]); how many it has never is.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::Error;
use crate::order::Order;
use crate::spec::Tail;

/// The sharing of an order's global batches among data ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    positions: u64,
    global_batch: u32,
    ranks: u32,
}

impl Split {
    /// Shares equally; with [`Tail::Uneven`] as [`weighted`](Self::weighted) does.
    ///
    /// # Errors
    /// When `ranks` doesn't divide the global batch or the last, short one.
    pub fn new(order: &Order, ranks: u32) -> Result<Self, Error> {
        let split = Self::weighted(order, ranks)?;
        if order.spec().tail == Tail::Uneven {
            return Ok(split);
        }
        let (full, last) = (split.global_batch, split.size(split.batches() - 1));
        if !full.is_multiple_of(ranks) {
            return Err(Error::UnevenBatch { ranks, samples: full });
        }
        if !last.is_multiple_of(ranks) {
            return Err(Error::UnevenLastBatch { ranks, samples: last });
        }
        Ok(split)
    }

    /// Shares among any number of ranks; where it isn't equal, the loss is to be weighted.
    ///
    /// # Errors
    /// When there are no ranks, or more than samples in a global batch.
    pub fn weighted(order: &Order, ranks: u32) -> Result<Self, Error> {
        let global_batch = order.spec().global_batch;
        if ranks == 0 {
            return Err(Error::Zero {
                what: "the number of data ranks",
            });
        }
        if ranks > global_batch {
            return Err(Error::MoreRanksThanSamples { ranks, global_batch });
        }
        Ok(Self {
            positions: order.positions(),
            global_batch,
            ranks,
        })
    }

    /// Data ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Samples in a full global batch.
    pub fn global_batch(&self) -> u32 {
        self.global_batch
    }

    /// Positions of an epoch.
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// Global batches of an epoch, and of every rank.
    pub fn batches(&self) -> u64 {
        self.positions.div_ceil(u64::from(self.global_batch))
    }

    /// The positions of a global batch.
    ///
    /// # Panics
    /// When there is no such batch.
    pub fn batch_range(&self, batch: u64) -> Range<u64> {
        assert!(batch < self.batches(), "batch {batch} of {}", self.batches());
        let start = batch * u64::from(self.global_batch);
        start..self.positions.min(start + u64::from(self.global_batch))
    }

    /// Samples in a global batch: fewer than [`global_batch`](Self::global_batch) only in the last.
    ///
    /// # Panics
    /// When there is no such batch.
    pub fn size(&self, batch: u64) -> u32 {
        let range = self.batch_range(batch);
        (range.end - range.start) as u32
    }

    /// The batch that holds a position.
    pub fn batch_of(&self, position: u64) -> u64 {
        position / u64::from(self.global_batch)
    }

    /// The rank that reads a position.
    pub fn rank_of(&self, position: u64) -> u32 {
        (position % u64::from(self.global_batch) % u64::from(self.ranks)) as u32
    }

    /// Samples a rank gets of a batch, a filler included: at least 1.
    ///
    /// # Panics
    /// When there is no such batch or rank.
    pub fn batch_len(&self, batch: u64, rank: u32) -> u32 {
        self.share(batch, rank).max(1)
    }

    /// The positions a rank gets of a batch, in order.
    ///
    /// # Panics
    /// When there is no such batch or rank.
    pub fn batch_positions(&self, batch: u64, rank: u32) -> impl ExactSizeIterator<Item = u64> + Clone + use<> {
        let start = self.batch_range(batch).start;
        let (first, step) = match self.share(batch, rank) {
            0 => (start + u64::from(rank % self.size(batch)), 0),
            _ => (start + u64::from(rank), u64::from(self.ranks)),
        };
        (0..self.batch_len(batch, rank)).map(move |row| first + u64::from(row) * step)
    }

    /// Whether what the rank gets of this batch is a filler.
    ///
    /// # Panics
    /// When there is no such batch or rank.
    pub fn is_filler(&self, batch: u64, rank: u32) -> bool {
        self.share(batch, rank) == 0
    }

    /// What to multiply a rank's mean loss with so that the mean over the ranks is the mean over the batch's samples: 1 when they
    /// share equally.
    ///
    /// # Panics
    /// When there is no such batch or rank.
    pub fn weight(&self, batch: u64, rank: u32) -> f64 {
        f64::from(self.share(batch, rank)) * f64::from(self.ranks) / f64::from(self.size(batch))
    }

    /// Whether these can be the ranks of one node.
    ///
    /// # Errors
    /// When a rank doesn't exist or is named twice, or none is named.
    pub fn check_ranks(&self, ranks: &[u32]) -> Result<(), Error> {
        if ranks.is_empty() {
            return Err(Error::Zero {
                what: "the number of ranks on this node",
            });
        }
        for (at, &rank) in ranks.iter().enumerate() {
            if rank >= self.ranks || ranks[..at].contains(&rank) {
                return Err(Error::NoSuchRank {
                    rank,
                    ranks: self.ranks,
                });
            }
        }
        Ok(())
    }

    /// Samples of a batch that are this rank's own.
    pub(crate) fn share(&self, batch: u64, rank: u32) -> u32 {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let size = self.size(batch);
        size / self.ranks + u32::from(rank < size % self.ranks)
    }
}

/// Where a run stands: all that a checkpoint has to carry. It holds no number of ranks, so it restores on any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The order's digest.
    pub order: Digest,
    /// The epoch.
    pub epoch: u32,
    /// The next position that nobody has consumed yet.
    pub position: u64,
}

impl Cursor {
    /// The epoch and batch to go on with in this order; after the last batch of an epoch that is the next epoch's first.
    ///
    /// # Errors
    /// When the cursor is another order's, or isn't at the border of a batch.
    pub fn resume(&self, order: &Order) -> Result<(u32, u64), Error> {
        if self.order != order.digest() {
            return Err(Error::OtherOrder {
                expected: order.digest(),
                found: self.order,
            });
        }
        let (positions, global_batch) = (order.positions(), order.spec().global_batch);
        if self.position == positions && self.epoch < u32::MAX {
            return Ok((self.epoch + 1, 0));
        }
        if self.position >= positions || !self.position.is_multiple_of(u64::from(global_batch)) {
            return Err(Error::NotAtABatch {
                position: self.position,
                global_batch,
                positions,
            });
        }
        Ok((self.epoch, self.position / u64::from(global_batch)))
    }
}
