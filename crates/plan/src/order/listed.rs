//! Lists of epochs that are made elsewhere: they take time in proportion to the data set, and whoever steps a scheduler may have none.
//!
//! A [`Listed`] is made on any thread, from what a consumer supplies ([`Expected`]) or from torch's generator ([`Lister`]), and is then given to the
//! [`Order`](super::Order), which costs nothing.

use std::sync::Arc;

use serde::ser::{Serialize, Serializer};

use super::table::Table;
use super::torch::{Replay, distributed};
use crate::error::Error;

/// The samples of an epoch by position; clones share them.
#[derive(Clone, Debug)]
pub struct Listed(pub(super) Arc<Table>);

impl Listed {
    /// Builds what positions are looked up in by sample, which is otherwise built when the first one is asked for.
    #[must_use]
    pub fn looked_up(self) -> Self {
        self.0.look_up();
        self
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.same_list(&other.0)
    }
}

impl Eq for Listed {}

impl Serialize for Listed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((0..self.0.len()).map(|at| self.0.sample_at(at)))
    }
}

/// What an order expects of the list of an epoch.
#[derive(Clone, Debug)]
pub struct Expected {
    pub(super) epoch: u32,
    pub(super) entries: u64,
    pub(super) samples: u64,
    /// The list that is known.
    pub(super) known: Option<Listed>,
}

impl Expected {
    /// Makes a list.
    ///
    /// # Errors
    /// When it has another length than declared, names a sample that doesn't exist, or differs from one supplied before.
    pub fn list(&self, list: &[u64]) -> Result<Listed, Error> {
        let (epoch, expected, found) = (self.epoch, self.entries, list.len() as u64);
        if found != expected {
            return Err(Error::ListLength { epoch, found, expected });
        }
        let listed = Listed(Arc::new(Table::from_list(list, self.samples)?));
        self.admits(&listed).map(|()| listed)
    }

    /// Whether a list doesn't differ from one supplied before.
    ///
    /// # Errors
    /// When it does.
    pub fn admits(&self, list: &Listed) -> Result<(), Error> {
        match self.known.as_ref().is_none_or(|known| known == list) {
            true => Ok(()),
            false => Err(Error::EpochAlreadyKnown { epoch: self.epoch }),
        }
    }
}

/// Draws what torch would.
#[derive(Clone, Debug)]
pub struct Lister(pub(super) Draws);

#[derive(Clone, Debug)]
pub(super) enum Draws {
    Random(Replay),
    Distributed { samples: u64, seed: u64 },
}

impl Lister {
    /// The list of an epoch.
    #[must_use]
    pub fn list(&self, epoch: u32) -> Listed {
        Listed(Arc::new(match &self.0 {
            Draws::Random(replay) => replay.epoch(epoch),
            Draws::Distributed { samples, seed } => distributed(*samples, *seed, epoch),
        }))
    }
}
