//! What a job reads: plain data, so that a log tells it.

use crate::arena::reserved_bytes;
use crate::blocks::Blocks;
use crate::catalog::Catalog;
use crate::deal::Deal;
use crate::error::Error;
use crate::order::Order;
use crate::placement::frequency::Ranking;
use crate::split::Split;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// A data set of a job. Equal names are the same data set: jobs that give one name share what is in memory of it.
#[derive(Clone, Serialize)]
pub struct Set {
    /// Its name on the node.
    pub name: u64,
    /// Its samples.
    #[serde(skip)]
    pub catalog: Arc<dyn Catalog>,
    /// The same, cut into blocks, by whoever had the time: that takes as long as the data set is large. `None`: the scheduler cuts it when the job joins,
    /// unless it knows the data set.
    #[serde(skip)]
    pub blocks: Option<Arc<Blocks>>,
}

impl Set {
    /// A data set that the scheduler cuts.
    #[must_use]
    pub fn new(name: u64, catalog: Arc<dyn Catalog>) -> Self {
        Set {
            name,
            catalog,
            blocks: None,
        }
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Set({})", self.name)
    }
}

impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Set {}

/// What a job reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reads {
    /// Its data sets, whose samples it numbers one data set after the other; at least one.
    pub sets: Vec<Set>,
    /// In which order.
    pub order: Order,
    /// Ranks of the job, on all nodes.
    pub world: u32,
    /// Whether a number of samples that its ranks can't share equally is read with weights ([`Split::weighted`]) or refused.
    pub uneven: bool,
    /// Which samples of a batch each rank has, if that follows from where they are kept. `None`: [`Split`] says so.
    pub deal: Option<Deal>,
    /// What each node reads most often, for [`Policy::Frequency`](crate::policy::Policy::Frequency). `None`: that isn't known, and all is taken to be read equally often.
    #[serde(skip)]
    pub ranking: Option<Arc<Ranking>>,
    /// The ranks that are on this node.
    pub ranks: Vec<u32>,
    /// Memory that it brings: the memory of a node is that of all its jobs together. `None`: all that the settings give.
    pub ram_bytes: Option<u64>,
    /// The largest that its ranks may ask for. `None`: unknown.
    pub largest: Option<Largest>,
    /// Epochs in the run; look-ahead stops there. `None`: unknown, look-ahead never stops.
    pub epochs: Option<u32>,
}

/// What must find room in memory at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Largest {
    /// Bytes of the largest sample.
    pub sample_bytes: u64,
    /// Bytes of the largest batch of one rank.
    pub batch_bytes: u64,
}

impl Largest {
    /// Of samples of which these are the largest, as many as a rank's batch has; each takes memory in grains.
    #[must_use]
    pub fn of(lengths: impl Iterator<Item = u64>) -> Self {
        lengths.map(reserved_bytes).fold(
            Largest {
                sample_bytes: 0,
                batch_bytes: 0,
            },
            |sum, bytes| Largest {
                sample_bytes: sum.sample_bytes.max(bytes),
                batch_bytes: sum.batch_bytes.saturating_add(bytes),
            },
        )
    }

    /// The larger of each.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Largest {
            sample_bytes: self.sample_bytes.max(other.sample_bytes),
            batch_bytes: self.batch_bytes.max(other.batch_bytes),
        }
    }
}

impl Reads {
    /// How its batches are shared.
    ///
    /// # Errors
    /// [`Error`] when order, ranks and batches don't fit.
    pub fn check(&self) -> Result<Split, Error> {
        let split = match self.uneven {
            true => Split::weighted(&self.order, self.world)?,
            false => Split::new(&self.order, self.world)?,
        };
        split.check_ranks(&self.ranks)?;
        if let Some(deal) = &self.deal {
            deal.check(&split)?;
        }
        let found = self.sets.iter().map(|set| set.catalog.samples()).sum();
        if found != self.order.spec().samples {
            return Err(Error::StreamsDiffer {
                found,
                samples: self.order.spec().samples,
            });
        }
        Ok(split)
    }
}
