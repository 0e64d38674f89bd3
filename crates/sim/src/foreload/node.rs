//! One node: its place in the sequence, and its consumer.

use super::Want;
use super::requests::Requests;
use super::staging::{Room, Staging};
use crate::access::Epochs;
use crate::consumer::AHEAD;
use crate::{Error, Setup};
use foreload_plan::settings::Settings;
use std::collections::VecDeque;
use std::rc::Rc;

/// A sample that was admitted, until it is known when it is consumed.
#[derive(Clone, Copy, Debug)]
struct Slot {
    sample: u32,
    mb: f64,
    /// Its stay in staging memory; none of what stays in the RAM tier.
    stay: Option<u64>,
    /// MB admitted before it, in the whole run.
    before_mb: f64,
    /// NaN until known.
    fetched: f64,
    /// The batch that it is consumed with.
    batch: u64,
}

/// The engine's loader: it takes batches, and asks ahead.
#[derive(Debug)]
struct Loader {
    /// When the last batches were given back, the newest last.
    released: VecDeque<f64>,
    /// Of this epoch, batches that were given back.
    batches: usize,
}

/// What the batch that is next consists of so far.
#[derive(Debug, Default)]
struct Assembled {
    slots: usize,
    mb: f64,
    fetched: f64,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Epoch of the next sample to admit.
    pub epoch: u32,
    /// When the trainer is through with everything that is known to have been fetched.
    pub free_at: f64,
    /// Seconds spent computing.
    pub computed_s: f64,
    /// Nothing more is admitted until a sample is consumed whose time isn't known yet.
    pub blocked: bool,
    /// What it asks the source for.
    pub requests: Requests,
    /// What samples pass through.
    pub staging: Staging,
    /// What others ask for that has no memory yet, and when it is going to be looked at again.
    pub guests: VecDeque<Want>,
    pub guests_due_at: f64,
    loader: Loader,
    admitted_mb: f64,
    slots: VecDeque<Slot>,
    /// Sequence number of the first slot.
    first: u64,
    next: Assembled,
    order: Option<Rc<[u32]>>,
    access: u32,
    preprocessed_at: f64,
    consumed_epoch: u32,
    consumed: u32,
}

impl Node {
    /// A node at the start of the run.
    pub fn new(setup: &Setup<'_>) -> Self {
        Self {
            epoch: 0,
            free_at: 0.0,
            computed_s: 0.0,
            blocked: false,
            requests: Requests::new(setup.hardware),
            staging: Staging::new(setup),
            guests: VecDeque::new(),
            guests_due_at: f64::INFINITY,
            loader: Loader {
                released: VecDeque::from([0.0; AHEAD + 1]),
                batches: 0,
            },
            admitted_mb: 0.0,
            slots: VecDeque::new(),
            first: 0,
            next: Assembled::default(),
            order: None,
            access: 0,
            preprocessed_at: 0.0,
            consumed_epoch: 0,
            consumed: 0,
        }
    }

    /// The next sample to admit; `None` at the end of the run.
    pub fn next_sample(&mut self, setup: &Setup<'_>, id: u32, epochs: &mut Epochs<'_>) -> Result<Option<u32>, Error> {
        if self.epoch == setup.access.epochs() || setup.access.per_epoch(id) == 0 {
            return Ok(None);
        }
        let order = match &self.order {
            Some(order) => order,
            None => self.order.insert(epochs.get(self.epoch)?),
        };
        Ok(Some(
            order[self.access as usize * setup.hardware.nodes as usize + id as usize],
        ))
    }

    /// Moves on by one access; true when that was the epoch's last.
    pub fn advance(&mut self, setup: &Setup<'_>, id: u32) -> bool {
        self.access += 1;
        if self.access < setup.access.per_epoch(id) {
            return false;
        }
        (self.order, self.access, self.epoch) = (None, 0, self.epoch + 1);
        true
    }

    /// The batch of an access of an epoch.
    fn batch(setup: &Setup<'_>, id: u32, epoch: u32, access: u32) -> u64 {
        let position = u64::from(access) * u64::from(setup.hardware.nodes) + u64::from(id);
        (u64::from(epoch) << 32) + position / u64::from(setup.access.batch())
    }

    /// For whom the next sample is: for the batch that is used next, one of those that are asked for ahead, or none of them.
    fn whose(&self, setup: &Setup<'_>, id: u32) -> Room {
        let batch = Self::batch(setup, id, self.epoch, self.access);
        match self.slots.front().map_or(0, |slot| batch - slot.batch) {
            0 => Room::Needed,
            ahead if ahead <= AHEAD as u64 => Room::Asked,
            _ => Room::Ahead,
        }
    }

    /// Whether this node looks no further ahead until something of what it admitted was fetched.
    pub fn has_admitted_enough(&mut self, setup: &Setup<'_>, id: u32) -> bool {
        let most = Settings::default().window_entries as usize;
        self.blocked = self.slots.len() >= most && self.whose(setup, id) != Room::Needed;
        self.blocked
    }

    /// The earliest time at which the next sample, of `mb`, fits, and `along_mb` of neighbours with it; `None` (and blocked) when that isn't known yet.
    pub fn room_at(&mut self, setup: &Setup<'_>, id: u32, mb: f64, along_mb: f64, at: f64) -> Option<f64> {
        let whose = self.whose(setup, id);
        let room = self.staging.room_at(mb, along_mb, at, whose);
        self.blocked = room.is_none();
        room
    }

    /// Whether this node reads `sample` before its staging memory turns over, after `want`, and doesn't have it.
    pub fn reads_soon(&self, setup: &Setup<'_>, want: Want, sample: u32) -> bool {
        let seq = want.seq.checked_sub(self.first);
        let slot = seq.and_then(|seq| self.slots.get(seq as usize));
        let Some(slot) = slot.filter(|_| self.staging.holds(sample).is_none()) else {
            return false;
        };
        let (epoch, batch) = (slot.batch >> 32, slot.batch & u64::from(u32::MAX));
        let (global, nodes) = (u64::from(setup.access.batch()), u64::from(setup.hardware.nodes));
        let batches = (self.staging.whole_mb() / setup.sizes.of(sample) / global as f64).max(1.0) as u64;
        let Some(position) = setup.access.position_of(epoch as u32, sample) else {
            return false;
        };
        let at = position / global;
        at >= batch && at < batch + batches && position % nodes == u64::from(want.node)
    }

    /// Admits the next sample, `staged` in staging memory or in the RAM tier; returns its sequence number.
    pub fn admit(&mut self, setup: &Setup<'_>, id: u32, sample: u32, staged: bool) -> u64 {
        let mb = setup.sizes.of(sample);
        self.slots.push_back(Slot {
            sample,
            mb,
            stay: staged.then(|| self.staging.admit(sample, mb)),
            before_mb: self.admitted_mb,
            fetched: f64::NAN,
            batch: Self::batch(setup, id, self.epoch, self.access),
        });
        self.admitted_mb += mb;
        self.first + self.slots.len() as u64 - 1
    }

    /// The access that is consumed next.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// When a sample that isn't consumed yet will be wanted, if everything before it arrives in time.
    pub fn needed_at(&self, setup: &Setup<'_>, seq: u64, at: f64) -> f64 {
        let (slot, next) = (&self.slots[(seq - self.first) as usize], &self.slots[0]);
        let ahead = setup
            .compute
            .seconds_ahead(slot.before_mb - next.before_mb, (seq - self.first) as usize);
        self.free_at.max(at) + ahead
    }

    /// A sample will be fetched at `at`; everything that is complete in order is preprocessed and consumed.
    pub fn fetched(&mut self, setup: &Setup<'_>, id: u32, seq: u64, at: f64, epoch_ends: &mut [f64]) {
        let slot = &mut self.slots[(seq - self.first) as usize];
        slot.fetched = at;
        if let Some(stay) = slot.stay {
            self.staging.fetched(slot.sample, stay, at);
        }
        while let Some(slot) = self.slots.get(self.next.slots).filter(|slot| !slot.fetched.is_nan()) {
            let batch = slot.batch;
            self.next.slots += 1;
            self.next.mb += slot.mb;
            self.next.fetched = self.next.fetched.max(slot.fetched);
            let after = self.consumed + self.next.slots as u32;
            let ends_epoch = after == setup.access.per_epoch(id);
            if ends_epoch || Self::batch(setup, id, self.consumed_epoch, after) != batch {
                self.consume(setup, epoch_ends, ends_epoch);
            }
        }
    }

    /// The batch that was assembled is prepared and trained on.
    fn consume(&mut self, setup: &Setup<'_>, epoch_ends: &mut [f64], ends_epoch: bool) {
        let Assembled { slots, mb, fetched } = std::mem::take(&mut self.next);
        // The first ones of an epoch are asked for when the last one of the epoch before was given back.
        let asked = self.loader.released[AHEAD - self.loader.batches.min(AHEAD)];
        let preprocess = setup.hardware.write_s_per_mb / setup.hardware.staging_threads;
        self.preprocessed_at = self.preprocessed_at.max(fetched).max(asked) + mb * preprocess;
        let consumed = self.preprocessed_at.max(self.free_at);
        let compute_s = setup.compute.seconds_ahead(mb, slots);
        self.free_at = consumed + compute_s;
        self.computed_s += compute_s;
        self.loader.released.pop_front();
        self.loader.released.push_back(self.free_at);
        self.loader.batches = if ends_epoch { 0 } else { self.loader.batches + 1 };
        for slot in self.slots.drain(..slots) {
            if let Some(stay) = slot.stay {
                self.staging.rests(slot.sample, stay, slot.mb, self.free_at);
            }
        }
        self.first += slots as u64;
        self.consumed += slots as u32;
        if ends_epoch {
            let end = &mut epoch_ends[self.consumed_epoch as usize];
            *end = end.max(self.free_at);
            (self.consumed, self.consumed_epoch) = (0, self.consumed_epoch + 1);
        }
    }
}
