//! One node: its place in the sequence, its staging memory, and its requests to the source.

use super::Want;
use crate::access::Epochs;
use crate::consumer::AHEAD;
use crate::{Error, Setup};
use foreload_plan::flow::{Concurrency, ConcurrencySettings};
use foreload_plan::settings::Settings;
use rustc_hash::FxHashMap;
use std::collections::{VecDeque, hash_map::Entry};
use std::rc::Rc;

const MB: f64 = 1_048_576.0;

/// A request that waits for the source or is being read from it.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What it reads.
    pub mb: f64,
    /// What it completes; nothing where a later request of the same block does.
    pub brings: Option<Brings>,
    /// When it was sent, and its time to the first byte.
    sent: (f64, f64),
}

/// What the last request for a block completes.
#[derive(Clone, Debug)]
pub struct Brings {
    /// The access it was made for; read for others only when that is nobody's.
    pub want: Want,
    /// Whether it stays.
    pub keep: Keep,
    /// All samples that it brings, in order.
    pub along: Vec<u32>,
}

/// Whether a sample that is read from the source stays on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// No.
    No,
    /// In this tier, which is its home.
    Home(usize),
    /// It is on a disk of the node that is too slow.
    Ill,
    /// Its home is elsewhere, but too slow to reach: the node keeps a copy if that is worth it.
    Copy,
}

/// A sample that was admitted, until it is known when it is consumed.
#[derive(Clone, Copy, Debug)]
struct Slot {
    sample: u32,
    stay: u64,
    mb: f64,
    /// Of it, what passes through staging memory: none of what stays in the RAM tier.
    staged_mb: f64,
    /// MB admitted before it, in the whole run.
    before_mb: f64,
    /// NaN until known.
    fetched: f64,
    /// The batch that it is consumed with.
    batch: u64,
}

/// A sample that was consumed at a time that is known, and whose memory nobody needed since.
#[derive(Clone, Copy, Debug)]
struct Rest {
    sample: u32,
    stay: u64,
    staged_mb: f64,
    from: f64,
}

/// Weight of the newest request in what they are expected to take: as in the engine's estimates.
const REMEMBERS: f64 = 1.0 / 16.0;

/// A sample in staging memory.
#[derive(Clone, Copy, Debug)]
struct Held {
    stay: u64,
    /// NaN until known.
    fetched: f64,
    /// It came along with a neighbour, and no access of it is admitted yet: MB of it that were expected.
    along: Option<f64>,
}

/// How the engine goes about it, where nodes exchange nothing: by batches, with what it finds out about the source, and with memory that rests.
#[derive(Debug)]
struct Engine {
    /// Requests in flight.
    limit: Concurrency,
    /// What is in staging memory.
    held: FxHashMap<u32, Held>,
    /// What a request takes.
    request_s: f64,
    /// MB of it that came along with a neighbour and are read soon.
    expected_mb: f64,
    /// Memory that nothing has been written to, MB/s at which that is, and when the thread that writes it is through.
    fresh_mb: f64,
    fill_mb_s: f64,
    filled_at: f64,
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
    /// Waiting for the source, in order; the first is being read when `reading_since` is set.
    pub queue: VecDeque<Pending>,
    /// MB in `queue`.
    pub queued_mb: f64,
    /// Since when the first of `queue` has been read.
    pub reading_since: Option<f64>,
    /// No request starts before this.
    pub request_at: f64,
    /// Ends of requests in flight, and their MB.
    in_flight: VecDeque<(f64, f64)>,
    /// Of `queue`, those that were sent.
    sent: usize,
    wakes_at: f64,
    engine: Option<Engine>,
    most_in_flight: u32,
    capacity_mb: f64,
    /// Memory of the RAM tier that nothing reads again: from when, and MB.
    freed: VecDeque<(f64, f64)>,
    staged_mb: f64,
    /// Samples that `staged_mb` is the sum of.
    staged: u32,
    admitted_mb: f64,
    slots: VecDeque<Slot>,
    rest: VecDeque<Rest>,
    stays: u64,
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
        let hardware = setup.hardware;
        let most = hardware.requests_in_flight;
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
            sent: 0,
            wakes_at: f64::NEG_INFINITY,
            engine: (!hardware.exchanges()).then(|| Engine {
                limit: Concurrency::new(concurrency(most)),
                held: FxHashMap::default(),
                request_s: hardware.latency_s,
                expected_mb: 0.0,
                fresh_mb: hardware.memory().0,
                fill_mb_s: hardware.memory().1,
                filled_at: 0.0,
                released: VecDeque::from([0.0; AHEAD + 1]),
                batches: 0,
            }),
            most_in_flight: most,
            capacity_mb: memory(setup).0,
            freed: VecDeque::new(),
            staged_mb: 0.0,
            staged: 0,
            admitted_mb: 0.0,
            slots: VecDeque::new(),
            rest: VecDeque::new(),
            stays: 0,
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

    /// Sends what may be in flight at `at`; when the next one may be, if more waits.
    pub fn send(&mut self, at: f64, mut latency_s: impl FnMut() -> f64) -> Option<f64> {
        while let Some(&(end, mb)) = self.in_flight.front().filter(|(end, _)| *end <= at) {
            self.in_flight.pop_front();
            if let Some(engine) = &mut self.engine {
                engine.limit.done((end * 1e9) as u64, (mb * MB) as u64);
            }
        }
        while self.sent < self.queue.len() {
            let most = match &self.engine {
                // One after the other is read, and only then on its way.
                None if self.sent > 0 => return None,
                None => self.most_in_flight,
                Some(engine) => engine.limit.limit(),
            };
            if self.in_flight.len() + self.sent >= most as usize {
                if let Some(engine) = &mut self.engine {
                    engine.limit.wanted_more();
                }
                return self.in_flight.front().map(|(end, _)| *end);
            }
            self.queue[self.sent].sent = (at, latency_s());
            self.sent += 1;
        }
        None
    }

    /// What the source has to read for this node next, if it isn't reading and something was sent.
    pub fn begins(&self) -> Option<f64> {
        let next = self.queue.front()?;
        (self.sent > 0 && self.reading_since.is_none()).then_some(next.mb)
    }

    /// Whether this node has to be looked at again at `next`, and isn't anyway.
    pub fn wakes(&mut self, at: f64, next: f64) -> bool {
        let is_due = self.wakes_at <= at || next < self.wakes_at;
        if is_due {
            self.wakes_at = next;
        }
        is_due
    }

    /// Seconds that a request is expected to take, its turn in the queue included.
    pub fn wait_s(&self) -> f64 {
        self.engine.as_ref().map_or(f64::INFINITY, |engine| {
            let waits = (self.queue.len() - self.sent) as f64;
            engine.request_s * (1.0 + waits / f64::from(engine.limit.limit()))
        })
    }

    /// The source ended a read at `at`: what it was, and when that is in memory.
    pub fn received(&mut self, setup: &Setup<'_>, at: f64) -> (Pending, f64) {
        let since = self
            .reading_since
            .take()
            .expect("the source ends only what was started");
        let pending = self.queue.pop_front().expect("what is read is queued");
        self.sent -= 1;
        self.queued_mb = (self.queued_mb - pending.mb).max(0.0);
        let connection_s = pending.mb / setup.hardware.connection_mb_s;
        let (sent, latency_s) = pending.sent;
        let arrived = match self.engine {
            None => at.max(since + connection_s) + latency_s,
            Some(_) => at.max(sent + latency_s + connection_s),
        };
        let arrived = self.filled(pending.mb, at, arrived);
        if let Some(engine) = &mut self.engine {
            engine.request_s += (arrived - sent - engine.request_s) * REMEMBERS;
        }
        let place = self.in_flight.partition_point(|(other, _)| *other <= arrived);
        self.in_flight.insert(place, (arrived, pending.mb));
        (pending, arrived)
    }

    /// When what the source gave at `at` is in memory, if its connection is through at `arrived`.
    fn filled(&mut self, mb: f64, at: f64, arrived: f64) -> f64 {
        let Some(engine) = self.engine.as_mut().filter(|engine| engine.fresh_mb > 0.0) else {
            return arrived;
        };
        let fresh = engine.fresh_mb.min(mb);
        engine.fresh_mb -= fresh;
        engine.filled_at = engine.filled_at.max(at) + fresh / engine.fill_mb_s;
        arrived.max(engine.filled_at)
    }

    /// The batch of an access of an epoch.
    fn batch(&self, setup: &Setup<'_>, id: u32, epoch: u32, access: u32) -> u64 {
        let (epoch, access) = (u64::from(epoch), u64::from(access));
        match self.engine {
            None => epoch * u64::from(setup.access.per_epoch(id)) + access,
            Some(_) => {
                let position = access * u64::from(setup.hardware.nodes) + u64::from(id);
                (epoch << 32) + position / u64::from(setup.access.batch())
            }
        }
    }

    /// Whether this node looks no further ahead until something of what it admitted was fetched.
    pub fn has_admitted_enough(&mut self) -> bool {
        let most = Settings::default().window_entries as usize;
        self.blocked |= self.engine.is_some() && self.slots.len() >= most;
        self.blocked
    }

    /// When a sample was fetched that is in staging memory: NaN while it is on its way.
    pub fn holds(&self, sample: u32) -> Option<f64> {
        let held = self.engine.as_ref().and_then(|engine| engine.held.get(&sample));
        held.map(|held| held.fetched)
    }

    /// The earliest time at which the next sample, of `mb`, fits, and `along_mb` of neighbours with it; `None` (and blocked) when that isn't known yet.
    pub fn room_at(&mut self, setup: &Setup<'_>, id: u32, mb: f64, along_mb: f64, mut at: f64) -> Option<f64> {
        let along_mb = along_mb.min(self.capacity_mb / 2.0);
        while self.staged > 0 && self.staged_mb + mb + along_mb > self.capacity_mb {
            if let Some((_, mb)) = self.freed.front().filter(|(from, _)| *from <= at) {
                self.capacity_mb += mb;
                self.freed.pop_front();
                continue;
            }
            match self.leave() {
                Some(from) => at = at.max(from),
                // The batch that comes next has to fit.
                None if self
                    .slots
                    .front()
                    .is_none_or(|slot| slot.batch == self.batch(setup, id, self.epoch, self.access)) =>
                {
                    break;
                }
                None => {
                    self.blocked = true;
                    return None;
                }
            }
        }
        Some(at)
    }

    /// What rests longest leaves: from when it rested.
    fn leave(&mut self) -> Option<f64> {
        loop {
            let rest = self.rest.pop_front()?;
            if let Some(engine) = &mut self.engine {
                if engine.held.get(&rest.sample).is_none_or(|held| held.stay != rest.stay) {
                    continue;
                }
                engine.held.remove(&rest.sample);
            }
            self.unstage(rest.staged_mb);
            return Some(rest.from);
        }
    }

    /// Whether this node reads `sample` before its staging memory turns over, after `want`.
    pub fn reads_soon(&self, setup: &Setup<'_>, want: Want, sample: u32) -> bool {
        if self.holds(sample).is_some() {
            return false;
        }
        let seq = want.seq.checked_sub(self.first);
        let Some(slot) = seq.and_then(|seq| self.slots.get(seq as usize)) else {
            return false;
        };
        let (epoch, batch) = (slot.batch >> 32, slot.batch & u64::from(u32::MAX));
        let global = f64::from(setup.access.batch());
        let staging_mb = self.capacity_mb * 8.0 / 7.0;
        let batches = (staging_mb / setup.sizes.of(sample) / global).max(1.0) as u64;
        let Some(position) = setup.access.position_of(epoch as u32, sample) else {
            return false;
        };
        let (nodes, at) = (
            u64::from(setup.hardware.nodes),
            position / u64::from(setup.access.batch()),
        );
        at >= batch && at < batch + batches && position % nodes == u64::from(want.node)
    }

    /// Takes staging memory at `at` for a sample that comes along with a neighbour, if a fourth of it isn't taken so already.
    pub fn expect(&mut self, setup: &Setup<'_>, sample: u32, at: f64) -> bool {
        let mb = setup.sizes.of(sample);
        let expected_mb = self.engine.as_ref().map_or(f64::INFINITY, |engine| engine.expected_mb);
        if expected_mb + mb > self.capacity_mb * 2.0 / 7.0 {
            return false;
        }
        while self.staged_mb + mb > self.capacity_mb {
            if self.rest.front().is_none_or(|rest| rest.from > at) {
                return false;
            }
            self.leave();
        }
        if let Some(engine) = &mut self.engine {
            engine.expected_mb += mb;
        }
        self.hold(sample, mb, mb);
        true
    }

    /// Takes staging memory for a sample on its way to a disk, if it isn't there.
    pub fn pass(&mut self, setup: &Setup<'_>, sample: u32) {
        if self.engine.is_some() && self.holds(sample).is_none() {
            self.hold(sample, setup.sizes.of(sample), 0.0);
        }
    }

    fn hold(&mut self, sample: u32, mb: f64, expected_mb: f64) {
        self.stays += 1;
        let held = Held {
            stay: self.stays,
            fetched: f64::NAN,
            along: Some(expected_mb),
        };
        if let Some(engine) = &mut self.engine {
            engine.held.insert(sample, held);
        }
        self.staged += 1;
        self.staged_mb += mb;
    }

    /// Samples came along with a neighbour at `at`; those that go to a disk may leave when they are `written`.
    pub fn came_along(&mut self, setup: &Setup<'_>, samples: &[u32], at: f64, written: Option<f64>) {
        let Some(engine) = &mut self.engine else { return };
        for &sample in samples {
            let held = engine.held.get_mut(&sample).filter(|held| held.fetched.is_nan());
            let Some(held) = held else { continue };
            held.fetched = at;
            if let (Some(from), true) = (written, held.along.is_some()) {
                self.rest.push_back(Rest {
                    sample,
                    stay: held.stay,
                    staged_mb: setup.sizes.of(sample),
                    from,
                });
            }
        }
    }

    /// Waits for the source.
    pub fn asks(&mut self, mb: f64, brings: Option<Brings>) {
        self.queued_mb += mb;
        let sent = (0.0, 0.0);
        self.queue.push_back(Pending { mb, brings, sent });
    }

    fn unstage(&mut self, mb: f64) {
        self.staged -= 1;
        self.staged_mb = if self.staged == 0 { 0.0 } else { self.staged_mb - mb };
    }

    /// `mb` of the RAM tier were read for the last time in the run, until `from`: they are read-ahead's.
    pub fn free(&mut self, mb: f64, from: f64) {
        if self.engine.is_none() {
            self.freed.push_back((from, mb));
        }
    }

    /// Admits the next sample, `staged` in staging memory or in the RAM tier; returns its sequence number.
    pub fn admit(&mut self, setup: &Setup<'_>, id: u32, sample: u32, staged: bool) -> u64 {
        let mb = setup.sizes.of(sample);
        self.stays += 1;
        let mut came_mb = 0.0;
        if staged {
            let stay = self.stays;
            let held = self.engine.as_mut().map(|engine| engine.held.entry(sample));
            match held {
                // Its bytes are there, or on their way: they leave after this use.
                Some(Entry::Occupied(mut held)) => {
                    let held = held.get_mut();
                    held.stay = stay;
                    came_mb = held.along.take().unwrap_or(0.0);
                }
                held => {
                    let (fetched, along) = (f64::NAN, None);
                    held.map(|held| held.or_insert(Held { stay, fetched, along }));
                    self.staged += 1;
                    self.staged_mb += mb;
                }
            }
        }
        if let Some(engine) = &mut self.engine {
            engine.expected_mb -= came_mb;
        }
        self.slots.push_back(Slot {
            sample,
            stay: self.stays,
            mb,
            staged_mb: if staged { mb } else { 0.0 },
            before_mb: self.admitted_mb,
            fetched: f64::NAN,
            batch: self.batch(setup, id, self.epoch, self.access),
        });
        self.admitted_mb += mb;
        self.first + self.slots.len() as u64 - 1
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
        if let Some(engine) = &mut self.engine
            && let Some(held) = engine.held.get_mut(&slot.sample)
            && held.stay == slot.stay
        {
            held.fetched = at;
        }
        while let Some(slot) = self.slots.get(self.next.slots).filter(|slot| !slot.fetched.is_nan()) {
            let batch = slot.batch;
            self.next.slots += 1;
            self.next.mb += slot.mb;
            self.next.fetched = self.next.fetched.max(slot.fetched);
            let ends_epoch = self.consumed + self.next.slots as u32 == setup.access.per_epoch(id);
            let after = self.consumed + self.next.slots as u32;
            if ends_epoch || self.batch(setup, id, self.consumed_epoch, after) != batch {
                self.consume(setup, epoch_ends, ends_epoch);
            }
        }
    }

    /// The batch that was assembled is prepared and trained on.
    fn consume(&mut self, setup: &Setup<'_>, epoch_ends: &mut [f64], ends_epoch: bool) {
        let Assembled { slots, mb, fetched } = std::mem::take(&mut self.next);
        let asked = match &self.engine {
            None => 0.0,
            // The first ones of an epoch are asked for when the last one of the epoch before was given back.
            Some(engine) => engine.released[AHEAD - engine.batches.min(AHEAD)],
        };
        let preprocess = setup.hardware.write_s_per_mb / setup.hardware.staging_threads;
        self.preprocessed_at = self.preprocessed_at.max(fetched).max(asked) + mb * preprocess;
        let consumed = self.preprocessed_at.max(self.free_at);
        let compute_s = setup.compute.seconds_ahead(mb, slots);
        self.free_at = consumed + compute_s;
        self.computed_s += compute_s;
        let from = match &mut self.engine {
            None => consumed,
            Some(engine) => {
                engine.released.pop_front();
                engine.released.push_back(self.free_at);
                engine.batches = if ends_epoch { 0 } else { engine.batches + 1 };
                self.free_at
            }
        };
        for slot in self.slots.drain(..slots).filter(|slot| slot.staged_mb > 0.0) {
            let Slot {
                sample,
                stay,
                staged_mb,
                ..
            } = slot;
            self.rest.push_back(Rest {
                sample,
                stay,
                staged_mb,
                from,
            });
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

/// What the engine finds its limit between.
pub(crate) fn concurrency(most: u32) -> ConcurrencySettings {
    let ConcurrencySettings { start, least, .. } = ConcurrencySettings::default();
    ConcurrencySettings {
        most,
        start: most.min(start),
        least: most.min(least),
    }
}

/// MB of a node that pass through, and MB of its RAM tiers together, as the engine shares them out where nodes exchange nothing: three batches have room, and
/// an eighth of staging stays free.
pub fn memory(setup: &Setup<'_>) -> (f64, f64) {
    let (hardware, ram_mb) = (setup.hardware, setup.scenario.node_ram_mb());
    if hardware.exchanges() {
        return (hardware.staging_mb, ram_mb);
    }
    let batch_mb = setup.sizes.mean_mb() * f64::from(setup.access.batch()) / f64::from(hardware.nodes);
    let all_mb = hardware.staging_mb + ram_mb;
    let staging_mb = hardware.staging_mb.max((3.0 * batch_mb).min(all_mb / 2.0));
    (staging_mb * 7.0 / 8.0, all_mb - staging_mb)
}
