//! Which sample each position of each epoch holds.
//!
//! An [`Order`] is made from an [`OrderSpec`] and answers, per epoch, in both directions: the sample at a position, and the position of a
//! sample. That second direction is what lets the scheduler see, without a table, when a sample is read next and which
//! node reads it first. How the epochs relate to each other is each kind's own matter:
//!
//! - `keyed` computes both directions from (seed, epoch) and stores nothing;
//! - `sequential`, `contiguous` and `strided` are arithmetic;
//! - `mixture` looks up whose turn it is among several streams, each of which has an order of its own, and goes on from epoch to epoch;
//! - the torch kinds and explicit lists are tables of 4 bytes per sample, with an inverse that is built when first asked for (then 8 bytes in all).
//!
//! The tail rule is applied here, once, for every kind: [`EpochOrder`] has [`positions`](EpochOrder::positions) positions, of which those past the
//! kind's own entries repeat the epoch from its start. Who reads a position is [`split`](crate::split)'s business.

mod keyed;
mod layout;
mod listed;
pub(crate) mod mix;
mod mixture;
mod mt19937;
mod table;
mod torch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::digest::Digest;
use crate::error::Error;
use crate::spec::{OrderKind, OrderSpec};

use keyed::Keyed;
use layout::Transpose;
use listed::Draws;
pub use listed::{Expected, Listed, Lister};
use mixture::Mixture;
use table::Table;
use torch::Replay;

/// The order of a run: the samples by position, for any epoch.
#[derive(Debug)]
pub struct Order {
    spec: OrderSpec,
    digest: Digest,
    source: Source,
    /// Lists of epochs that were made elsewhere.
    lists: BTreeMap<u32, Listed>,
    /// Whether those of torch's kinds are.
    deferred: bool,
    /// The epoch whose list was asked for last and isn't there, plus one.
    missing: AtomicU64,
}

/// What an epoch's order is made from.
#[derive(Clone, Debug)]
enum Source {
    Computed,
    Random(Replay),
    Mixture(Arc<Mixture>),
    Same(Arc<Table>),
    Supplied,
}

impl Clone for Order {
    /// Lists are shared; what was asked for of one is not asked for of the other.
    fn clone(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            digest: self.digest,
            source: self.source.clone(),
            lists: self.lists.clone(),
            deferred: self.deferred,
            missing: AtomicU64::new(0),
        }
    }
}

/// Orders are equal that read the same samples; what is known of their lists is not compared.
impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Order {}

impl serde::Serialize for Order {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.spec.serialize(serializer)
    }
}

impl Order {
    /// Prepares the order that `spec` describes.
    ///
    /// # Errors
    /// When the spec doesn't hold together ([`OrderSpec::check`]), or an explicit list names a sample that doesn't exist.
    pub fn new(spec: &OrderSpec) -> Result<Self, Error> {
        spec.check()?;
        let source = match &spec.kind {
            OrderKind::TorchRandom { draws } => Source::Random(Replay::new(spec.samples, spec.seed, *draws)),
            OrderKind::Mixture {
                streams,
                shuffle,
                length,
            } => Source::Mixture(Arc::new(Mixture::new(streams, spec.seed, *shuffle, *length))),
            OrderKind::Explicit { list } => Source::Same(Arc::new(Table::from_list(list, spec.samples)?)),
            OrderKind::Supplied { .. } => Source::Supplied,
            _ => Source::Computed,
        };
        Ok(Self {
            spec: spec.clone(),
            digest: spec.digest(),
            source,
            lists: BTreeMap::new(),
            deferred: false,
            missing: AtomicU64::new(0),
        })
    }

    /// The same order, whose long lists are made elsewhere: of torch's kinds it knows an epoch once [`take`](Self::take) has been given its list.
    #[must_use]
    pub fn deferred(mut self) -> Self {
        self.deferred = self.lister().is_some();
        self
    }

    /// Whether its long lists are made elsewhere.
    pub fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// What makes the lists of torch's kinds; `None`: the order is of another kind.
    pub fn lister(&self) -> Option<Lister> {
        let (samples, seed) = (self.spec.samples, self.spec.seed);
        match (&self.source, &self.spec.kind) {
            (Source::Random(replay), _) => Some(Lister(Draws::Random(replay.clone()))),
            (_, OrderKind::TorchDistributed) => Some(Lister(Draws::Distributed { samples, seed })),
            _ => None,
        }
    }

    /// Whether [`epoch`](Self::epoch) would answer without making anything long.
    pub fn knows(&self, epoch: u32) -> bool {
        let is_listed = self.deferred || matches!(self.source, Source::Supplied);
        !is_listed || self.lists.contains_key(&epoch)
    }

    /// The epoch that was asked for last, and since this was called before, while its list wasn't there.
    pub fn missing(&self) -> Option<u32> {
        let missing = self.missing.swap(0, Ordering::Relaxed);
        Some(missing.checked_sub(1)? as u32)
    }

    /// The spec it was made from.
    pub fn spec(&self) -> &OrderSpec {
        &self.spec
    }

    /// The spec's digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Positions of every epoch, after the tail rule.
    pub fn positions(&self) -> u64 {
        self.spec.positions()
    }

    /// Global batches of every epoch.
    pub fn batches(&self) -> u64 {
        self.positions().div_ceil(u64::from(self.spec.global_batch))
    }

    /// The order of an epoch.
    ///
    /// O(1) for computed kinds, O(samples) for the torch kinds, whichever the epoch.
    ///
    /// # Errors
    /// [`Error::EpochNotSupplied`] when the kind is [`OrderKind::Supplied`] and the epoch's list isn't there.
    pub fn epoch(&self, epoch: u32) -> Result<EpochOrder, Error> {
        let samples = self.spec.samples;
        if !self.knows(epoch) {
            self.missing.store(u64::from(epoch) + 1, Ordering::Relaxed);
            return Err(Error::EpochNotSupplied { epoch });
        }
        let entry = match (&self.source, &self.spec.kind) {
            _ if let Some(list) = self.lists.get(&epoch) => Entry::Table(Arc::clone(&list.0)),
            (Source::Supplied, _) => return Err(Error::EpochNotSupplied { epoch }),
            (Source::Random(replay), _) => Entry::Table(Arc::new(replay.epoch(epoch))),
            (Source::Mixture(mixture), _) => Entry::Mixture(mixture.epoch(epoch)),
            (Source::Same(table), _) => Entry::Table(Arc::clone(table)),
            (Source::Computed, OrderKind::Keyed) => match Keyed::new(self.spec.seed, epoch.into(), samples) {
                Keyed::Small(table) => Entry::Table(Arc::new(table)),
                Keyed::Feistel(feistel) => Entry::Feistel(feistel),
            },
            (Source::Computed, OrderKind::TorchDistributed) => {
                Entry::Table(Arc::new(torch::distributed(samples, self.spec.seed, epoch)))
            }
            (Source::Computed, OrderKind::Contiguous { parts }) => {
                Entry::Contiguous(Transpose::new(samples, u64::from(*parts)))
            }
            (Source::Computed, OrderKind::Strided { stride }) => Entry::Strided(Transpose::new(samples, *stride)),
            (Source::Computed, _) => Entry::Sequential,
        };
        Ok(EpochOrder {
            epoch,
            samples,
            entries: self.spec.entries(),
            positions: self.positions(),
            entry,
        })
    }

    /// Gives an [`OrderKind::Supplied`] order the list of an epoch. The same list again is accepted.
    ///
    /// # Errors
    /// As [`expects`](Self::expects) and [`Expected::list`].
    pub fn supply(&mut self, epoch: u32, list: &[u64]) -> Result<(), Error> {
        let listed = self.expects(epoch)?.list(list)?;
        self.take(epoch, listed)
    }

    /// What the list of an epoch has to be like.
    ///
    /// # Errors
    /// When the order isn't of a kind whose lists are supplied.
    pub fn expects(&self, epoch: u32) -> Result<Expected, Error> {
        match self.source {
            Source::Supplied => Ok(Expected {
                epoch,
                entries: self.spec.entries(),
                samples: self.spec.samples,
                known: self.lists.get(&epoch).cloned(),
            }),
            _ => Err(Error::EpochAlreadyKnown { epoch }),
        }
    }

    /// Takes the list of an epoch. The same list again is accepted.
    ///
    /// # Errors
    /// When another one is known, or the order makes its own.
    pub fn take(&mut self, epoch: u32, list: Listed) -> Result<(), Error> {
        let is_listed = self.deferred || matches!(self.source, Source::Supplied);
        let known = self.lists.get(&epoch);
        if !is_listed || known.is_some_and(|known| *known != list) {
            return Err(Error::EpochAlreadyKnown { epoch });
        }
        let (found, expected) = (list.0.len(), self.spec.entries());
        if found != expected {
            return Err(Error::ListLength { epoch, found, expected });
        }
        self.lists.entry(epoch).or_insert(list);
        Ok(())
    }

    /// Forgets the lists of all epochs but those that are needed.
    pub fn keep(&mut self, is_needed: impl Fn(u32) -> bool) {
        self.lists.retain(|&epoch, _| is_needed(epoch));
    }

    /// Bytes of lists that it holds now.
    pub fn held_bytes(&self) -> u64 {
        let same = match &self.source {
            Source::Same(table) => table.heap_bytes() + 8 * table.len(),
            _ => 0,
        };
        same + self.lists.values().map(|list| list.0.heap_bytes()).sum::<u64>()
    }

    /// Bytes that it comes to hold: the lists of the epoch that is read and the next. `looks_up`: positions are asked for by sample.
    pub fn expected_bytes(&self, looks_up: bool) -> u64 {
        let (entries, samples) = (self.spec.entries(), self.spec.samples);
        let width = if samples <= u64::from(u32::MAX) { 4 } else { 8 };
        let list = width * (entries + if looks_up { samples } else { 0 });
        match (&self.source, &self.spec.kind) {
            (Source::Same(_), _) => list + 8 * entries,
            (Source::Supplied | Source::Random(_), _) | (_, OrderKind::TorchDistributed) => 2 * list,
            _ => 0,
        }
    }
}

/// The order of one epoch: samples by position and back. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    epoch: u32,
    samples: u64,
    /// Entries before the tail rule.
    entries: u64,
    positions: u64,
    entry: Entry,
}

#[derive(Clone, Debug)]
enum Entry {
    Sequential,
    Contiguous(Transpose),
    Strided(Transpose),
    Feistel(keyed::Feistel),
    Mixture(mixture::Stretch),
    Table(Arc<Table>),
}

impl EpochOrder {
    /// The epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Positions, after the tail rule.
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// The sample at a position.
    ///
    /// # Panics
    /// When there is no such position.
    pub fn sample_at(&self, position: u64) -> u64 {
        assert!(position < self.positions, "position {position} of {}", self.positions);
        let at = if position < self.entries {
            position
        } else {
            position % self.entries
        };
        match &self.entry {
            Entry::Sequential => at,
            Entry::Contiguous(transpose) => transpose.forward(at),
            Entry::Strided(transpose) => transpose.backward(at),
            Entry::Feistel(feistel) => feistel.forward(at),
            Entry::Mixture(stretch) => stretch.sample_at(at),
            Entry::Table(table) => table.sample_at(at),
        }
    }

    /// The first position of a sample; `None` when this epoch doesn't read it or there is no such sample.
    pub fn position_of(&self, sample: u64) -> Option<u64> {
        if sample >= self.samples {
            return None;
        }
        let at = match &self.entry {
            Entry::Sequential => Some(sample),
            Entry::Contiguous(transpose) => Some(transpose.backward(sample)),
            Entry::Strided(transpose) => Some(transpose.forward(sample)),
            Entry::Feistel(feistel) => Some(feistel.backward(sample)),
            Entry::Mixture(stretch) => stretch.position_of(sample),
            Entry::Table(table) => table.position_of(sample),
        };
        at.filter(|&position| position < self.positions)
    }

    /// Whether a sample may be read more than once in this epoch: padded, an explicit list that repeats, or a stream of a mixture that comes round.
    pub fn repeats(&self) -> bool {
        self.positions > self.entries
            || match &self.entry {
                Entry::Table(table) => table.repeats(),
                Entry::Mixture(stretch) => stretch.repeats(),
                _ => false,
            }
    }

    /// Bytes this order occupies beyond its own few words.
    pub fn heap_bytes(&self) -> u64 {
        match &self.entry {
            Entry::Table(table) => table.heap_bytes(),
            Entry::Mixture(stretch) => stretch.heap_bytes(),
            _ => 0,
        }
    }
}
