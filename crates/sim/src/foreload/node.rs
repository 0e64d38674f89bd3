//! One node: its place in the sequence, its staging memory, and its requests to the source.

use crate::access::Epochs;
use crate::{Error, Hardware, Setup};
use std::collections::VecDeque;
use std::rc::Rc;

/// A sample that is waiting for the source or being read from it.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Its place in the reading node's staging memory; `u64::MAX` when it is read for others only.
    pub seq: u64,
    /// Which.
    pub sample: u32,
    /// Its size.
    pub mb: f64,
    /// Whether it stays.
    pub keep: Keep,
}

/// Whether a sample that is read from the source stays on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// No.
    No,
    /// In this tier, which is its home.
    Home(usize),
    /// Its home is elsewhere, but too slow to reach: the node keeps a copy if that is worth it.
    Copy,
}

/// A sample in staging memory; times are NaN until known.
#[derive(Clone, Copy, Debug)]
struct Slot {
    mb: f64,
    /// MB admitted before it, in the whole run.
    before_mb: f64,
    fetched: f64,
    consumed: f64,
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
    /// Waiting for the source, in order; the first is being read when `reading_since` is set.
    pub queue: VecDeque<Pending>,
    /// MB in `queue`.
    pub queued_mb: f64,
    /// Since when the first of `queue` has been read.
    pub reading_since: Option<f64>,
    /// No request starts before this.
    pub request_at: f64,
    /// Ends of requests in flight, where requests have a latency.
    pub in_flight: VecDeque<f64>,
    capacity_mb: f64,
    /// Memory of the RAM tier that nothing reads again: from when, and MB.
    freed: VecDeque<(f64, f64)>,
    staged_mb: f64,
    admitted_mb: f64,
    slots: VecDeque<Slot>,
    /// Sequence number of the first slot, and of the next sample to be consumed.
    first: u64,
    next: u64,
    order: Option<Rc<[u32]>>,
    access: u32,
    preprocessed_at: f64,
    consumed_epoch: u32,
    consumed: u32,
}

impl Node {
    /// A node at the start of the run.
    pub fn new(hardware: &Hardware) -> Self {
        Self {
            epoch: 0,
            free_at: 0.0,
            computed_s: 0.0,
            blocked: false,
            queue: VecDeque::new(),
            queued_mb: 0.0,
            reading_since: None,
            request_at: 0.0,
            in_flight: VecDeque::new(),
            capacity_mb: hardware.staging_mb,
            freed: VecDeque::new(),
            staged_mb: 0.0,
            admitted_mb: 0.0,
            slots: VecDeque::new(),
            first: 0,
            next: 0,
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

    /// The earliest time at which `mb` more fit; `None` (and blocked) when that isn't known yet.
    pub fn room_at(&mut self, mb: f64, mut at: f64) -> Option<f64> {
        while self.staged_mb + mb > self.capacity_mb {
            if let Some((_, mb)) = self.freed.front().filter(|(from, _)| *from <= at) {
                self.capacity_mb += mb;
                self.freed.pop_front();
                continue;
            }
            let Some(slot) = self.slots.front() else { break };
            if slot.consumed.is_nan() {
                self.blocked = true;
                return None;
            }
            at = at.max(slot.consumed);
            self.staged_mb -= slot.mb;
            self.slots.pop_front();
            self.first += 1;
        }
        if self.slots.is_empty() {
            self.staged_mb = 0.0;
        }
        Some(at)
    }

    /// `mb` of the RAM tier were read for the last time in the run, until `from`: they are read-ahead's.
    pub fn free(&mut self, mb: f64, from: f64) {
        self.freed.push_back((from, mb));
    }

    /// Takes memory for a sample; returns its sequence number.
    pub fn admit(&mut self, mb: f64) -> u64 {
        self.staged_mb += mb;
        self.slots.push_back(Slot {
            mb,
            before_mb: self.admitted_mb,
            fetched: f64::NAN,
            consumed: f64::NAN,
        });
        self.admitted_mb += mb;
        self.first + self.slots.len() as u64 - 1
    }

    /// When a sample that isn't consumed yet will be wanted, if everything before it arrives in time.
    pub fn needed_at(&self, setup: &Setup<'_>, seq: u64, at: f64) -> f64 {
        let (slot, next) = (
            &self.slots[(seq - self.first) as usize],
            &self.slots[(self.next - self.first) as usize],
        );
        let ahead = setup
            .compute
            .seconds_ahead(slot.before_mb - next.before_mb, (seq - self.next) as usize);
        self.free_at.max(at) + ahead
    }

    /// A sample will be fetched at `at`; everything that is complete in order is preprocessed and consumed.
    pub fn fetched(&mut self, setup: &Setup<'_>, id: u32, seq: u64, at: f64, epoch_ends: &mut [f64]) {
        self.slots[(seq - self.first) as usize].fetched = at;
        let preprocess = setup.hardware.write_s_per_mb / setup.hardware.staging_threads;
        while let Some(slot) = self.slots.get_mut((self.next - self.first) as usize) {
            if slot.fetched.is_nan() {
                break;
            }
            self.preprocessed_at = self.preprocessed_at.max(slot.fetched) + slot.mb * preprocess;
            slot.consumed = self.preprocessed_at.max(self.free_at);
            let compute_s = setup.compute.seconds(slot.mb);
            self.free_at = slot.consumed + compute_s;
            self.computed_s += compute_s;
            self.next += 1;
            self.consumed += 1;
            if self.consumed == setup.access.per_epoch(id) {
                let end = &mut epoch_ends[self.consumed_epoch as usize];
                *end = end.max(self.free_at);
                (self.consumed, self.consumed_epoch) = (0, self.consumed_epoch + 1);
            }
        }
    }
}
