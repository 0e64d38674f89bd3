//! The scheduler: from events to actions, without I/O.
//!
//! It walks the order ahead of the consumers ([`window`]), gives every planned read its memory ([`residents`], over the
//! [`Arena`]), and queues the loads that bring the bytes ([`loads`]). Consumers ask for batches or samples ([`requests`]); a
//! request is served when all of it is in memory. How far ahead to walk and what to keep is the [`Policy`]'s; how many loads may be in
//! flight is [`flow`](crate::flow)'s. Each event is handled in three moves: note what happened, plan on, issue what may fly.
//!
//! Memory is reserved before bytes are asked for and never above the budget. A read that a consumer waits for comes first: for it, kept samples are
//! evicted and planned ones far ahead are put back, so a consumer that gives its leases back is always served.

mod loads;
mod requests;
mod residents;
mod tiers;
mod window;

use crate::action::{Action, Command, Event, Failure, Source, Via};
use crate::arena::{Arena, Slot, Stay, reserved_bytes};
use crate::catalog::Catalog;
use crate::error::Error;
use crate::order::Order;
use crate::policy::{Lookahead, Policy, Retention};
use crate::settings::Settings;
use crate::split::Split;
use loads::Loads;
use requests::Requests;
use residents::{NONE, Residents, State};
use std::collections::BTreeSet;
use std::sync::Arc;
pub use tiers::RECORD_BYTES;
use tiers::Tier;
use window::{Read, Window};

/// Entries planned in one step at most: keeps a step below a millisecond; the next [`Event::Tick`] goes on.
const STEP_ENTRIES: u32 = 1024;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[must_use]
pub enum Next {
    /// There is more to plan: step again with [`Event::Tick`] as soon as the actions are under way.
    Soon,
    /// Nothing to do until something happens. While loads are in flight, a tick every 10 ms or so lets late ones be noticed.
    Wait,
}

/// Where the memory and the requests stand, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Gauges {
    /// Bytes reserved in the arena.
    pub used_bytes: u64,
    /// Of them, bytes of the RAM tier.
    pub kept_bytes: u64,
    /// Samples in the RAM tier.
    pub kept_samples: u64,
    /// Bytes delivered and not given back, the RAM tier's left out.
    pub leased_bytes: u64,
    /// Leases not given back.
    pub leases: u64,
    /// Reads planned ahead.
    pub reads_ahead: u64,
    /// Loads in flight to the bucket.
    pub in_flight: u64,
    /// The limit on them.
    pub in_flight_limit: u64,
    /// Requests not served yet.
    pub requests: u64,
    /// Bytes reserved in the disk tiers, all together.
    pub disk_bytes: u64,
    /// Samples whose memory is reserved or filled.
    pub residents: u64,
    /// Mean time to first byte of the bucket, in seconds.
    pub bucket_latency_s: f64,
    /// Bytes per second of one request to the bucket.
    pub bucket_bytes_per_s: f64,
}

/// A read that a consumer waits for, for the watchdog.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Waiting {
    /// The request.
    pub request: u64,
    /// Since when.
    pub since_ns: u64,
    /// The first sample that is missing.
    pub sample: Option<u64>,
    /// What it waits for.
    pub cause: Cause,
}

/// What a missing sample waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A load that is in flight.
    Loading(Source),
    /// A load that waits for its turn.
    Queued,
    /// Memory: leases have to be given back first.
    Memory,
    /// The order of the next epoch.
    Order,
}

/// The policy's state machine.
pub struct Scheduler {
    settings: Settings,
    catalog: Arc<dyn Catalog>,
    window: Window,
    arena: Arena,
    residents: Residents,
    tiers: Vec<Tier>,
    loads: Loads,
    requests: Requests,
    ram_bytes: u64,
    staging_bytes: u64,
    /// Whether several samples lie in one object.
    shards: bool,
    /// Bytes of neighbours that come along with a sample on their way to disk; 0 where samples are whole objects or no disk takes them.
    group_bytes: u64,
    /// Where the look-ahead stands: line and entry.
    frontier: (u64, usize),
    /// Reads that somebody waits for and that have no memory yet: the first in the order comes first, whoever asked first.
    wanted: BTreeSet<(u64, usize)>,
    chunk_left: u32,
    newest_line: u64,
    now_ns: u64,
    line_interval_ns: f64,
    last_delivery_ns: u64,
}

/// Why a read could not be planned.
enum Blocked {
    /// No memory; something has to end first.
    Memory,
}

impl Scheduler {
    /// A scheduler for the `ranks` of this node.
    ///
    /// # Errors
    /// [`Error`] when a rank doesn't exist, or when a policy is for the simulator only.
    pub fn new(
        settings: Settings,
        catalog: Arc<dyn Catalog>,
        order: Order,
        split: Split,
        ranks: Vec<u32>,
    ) -> Result<Self, Error> {
        if !settings.policy.runs_in_engine() {
            return Err(Error::SimulatorOnly {
                policy: format!("{:?}", settings.policy),
            });
        }
        split.local(&ranks)?;
        let samples = catalog.samples().max(1);
        let mean = (0..64)
            .map(|i| catalog.place(i * samples / 64 % samples).len)
            .sum::<u64>()
            / 64;
        let batch_bytes =
            mean.saturating_mul(u64::from(split.global_batch()) * ranks.len() as u64 / u64::from(split.ranks()));
        let arena = Arena::new(settings.ram_bytes);
        // The batch in use, the one waited for and the one after it: with less, kept samples would have to leave for them.
        let staging_bytes = settings
            .staging_bytes(batch_bytes)
            .max((3 * batch_bytes).min(settings.ram_bytes / 2));
        // 64 places spread over the data set tell shards from whole objects; a data set that mixes them is treated as shards.
        let pairs = (0..64).map(|i| i * samples / 64).filter(|&i| i + 1 < samples);
        let shards = pairs
            .map(|i| (catalog.place(i).object, catalog.place(i + 1).object))
            .any(|(one, next)| one == next);
        let passes = shards && !settings.tiers.is_empty() && settings.policy.retention() == Retention::Pinned;
        Ok(Scheduler {
            staging_bytes,
            shards,
            group_bytes: if passes {
                settings.coalesce_bytes.min(staging_bytes / 2)
            } else {
                0
            },
            ram_bytes: arena.capacity_bytes(),
            tiers: settings.tiers.iter().map(Tier::new).collect(),
            loads: Loads::new(&settings),
            window: Window::new(order, split, ranks, settings.epochs),
            arena,
            residents: Residents::new(),
            requests: Requests::default(),
            frontier: (0, 0),
            wanted: BTreeSet::new(),
            chunk_left: 0,
            newest_line: 0,
            now_ns: 0,
            line_interval_ns: 0.0,
            last_delivery_ns: 0,
            settings,
            catalog,
        })
    }

    /// The settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The order it walks.
    #[must_use]
    pub fn order(&self) -> &Order {
        self.window.order()
    }

    /// How batches are shared.
    #[must_use]
    pub fn split(&self) -> &Split {
        self.window.split()
    }

    /// Takes one event at `now_ns` (never earlier than the last) and appends what is to be carried out.
    pub fn step(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) -> Next {
        self.now_ns = self.now_ns.max(now_ns);
        match event {
            Event::Start { rank, epoch, batch } => self.start(rank, epoch, batch, actions),
            Event::WantBatch {
                request,
                rank,
                epoch,
                batch,
            } => self.want_batch(request, rank, epoch, batch, actions),
            Event::WantSamples { request, rank, samples } => self.want_samples(request, rank, &samples, actions),
            Event::Withdraw { request } => self.withdraw(request),
            Event::Release { handles } => {
                for handle in handles {
                    if let Some(id) = self.residents.of(handle)
                        && self.residents.unlease(id)
                    {
                        self.residents.drop_if_idle(id, &mut self.arena);
                    }
                }
            }
            Event::Completed(completion) => self.completed(completion, actions),
            Event::Found { tier, samples } => self.found(tier, &samples),
            Event::TierClosed { tier } => {
                if let Some(tier) = self.tiers.get_mut(usize::from(tier)) {
                    tier.close();
                }
            }
            Event::Budget { ram_bytes } => self.ram_bytes = ram_bytes.min(self.arena.capacity_bytes()),
            // A list that doesn't fit the order leaves the epoch unknown: the window waits there and says so.
            Event::Epoch { epoch, samples } => drop(self.window.supply(epoch, &samples)),
            Event::Tick => self.hedge(actions),
        }
        while self.arena.used_bytes() > self.ram_bytes && self.residents.evict_one(&mut self.arena).is_some() {}
        let next = self.plan(actions);
        self.issue(actions);
        next
    }

    /// Where memory and requests stand.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            used_bytes: self.arena.used_bytes(),
            kept_bytes: self.residents.kept_bytes,
            kept_samples: self.residents.kept_count,
            leased_bytes: self.residents.leased_bytes,
            leases: self.residents.leases,
            reads_ahead: self.window.ahead,
            in_flight: self.loads.bucket_in_flight(),
            in_flight_limit: u64::from(self.loads.concurrency.limit()),
            requests: self.requests.len() as u64,
            disk_bytes: self.tiers.iter().map(Tier::used_bytes).sum(),
            residents: self.residents.count() as u64,
            bucket_latency_s: self.loads.estimate.latency_s(),
            bucket_bytes_per_s: self.loads.estimate.bytes_per_s(),
        }
    }

    /// A rank begins somewhere: its open requests end, its reads before that batch are over.
    fn start(&mut self, rank: u32, epoch: u32, batch: u64, actions: &mut Vec<Action>) {
        for request in self.requests.of_rank(rank) {
            self.withdraw(request);
            actions.push(self.loads.action(Command::Refuse {
                request,
                sample: None,
                failure: Failure::Cancelled,
            }));
        }
        let Some(target) = self.window.line_of(rank, epoch, batch) else {
            return;
        };
        self.window.set_cursors(rank, target);
        if target < self.window.head()
            || self.window.open == 0
            || self.window.is_over_from(target)
            || target > self.window.end() + self.settings.window_entries
        {
            // Backwards, or far away: lay the window out anew. Other ranks start where they asked to.
            for line in self.window.head()..self.window.end() {
                self.skip_line(line);
            }
            let first = target - target % self.window.ranks().len() as u64;
            self.window.restart(first);
            self.frontier = (first, 0);
            self.wanted.clear();
        } else {
            let (step, head) = (self.window.ranks().len() as u64, self.window.head());
            let first = head + (target % step + step - head % step) % step;
            for line in (first..target).step_by(step as usize) {
                if !self.window.reach(line) {
                    break;
                }
                self.skip_line(line);
            }
        }
        self.newest_line = target;
        self.chunk_left = 0;
        self.window.advance();
    }

    fn skip_line(&mut self, line: u64) {
        let count = self.window.peek(line).map_or(0, |line| line.entries.len());
        for entry in 0..count {
            let it = self.window.peek(line).map(|l| l.entries[entry]);
            if let Some(it) = it {
                self.window.close(line, entry);
                if it.read == Read::Planned {
                    self.unuse(it.resident);
                }
            }
        }
    }

    /// One planned read less of a resident.
    fn unuse(&mut self, id: u32) {
        self.residents.get_mut(id).uses -= 1;
        self.residents.drop_if_idle(id, &mut self.arena);
    }

    fn found(&mut self, tier: u8, samples: &[u64]) {
        let Some(held) = self.tiers.get_mut(usize::from(tier)) else {
            return;
        };
        for &sample in samples {
            if sample < self.catalog.samples() && !held.has(sample) {
                let len = self.catalog.place(sample).len;
                if held.admit(len) {
                    held.insert(sample, len);
                }
            }
        }
    }

    /// Walks on: first what somebody waits for, then ahead.
    fn plan(&mut self, actions: &mut Vec<Action>) -> Next {
        let mut budget = STEP_ENTRIES;
        while let Some(&(line, entry)) = self.wanted.first() {
            let it = self.window.peek(line).map(|l| l.entries[entry]);
            if let Some(_waited_for) = it.filter(|it| it.read == Read::Unplanned && it.waiter != 0)
                && self.plan_read(line, entry, true, actions).is_err()
            {
                if self.is_stuck() {
                    self.repack(line, actions);
                    continue;
                }
                return Next::Wait;
            }
            self.wanted.remove(&(line, entry));
            budget = budget.saturating_sub(1);
        }
        if !self.place_loose(actions) || self.settings.policy.lookahead() == Lookahead::Demand {
            return Next::Wait;
        }
        while budget > 0 {
            if self.frontier.0 < self.window.head() {
                self.frontier = (self.window.head(), 0);
            }
            let (line, entry) = self.frontier;
            if !self.may_look_ahead(line, entry) || !self.window.reach(line) {
                return Next::Wait;
            }
            let Some(it) = self.window.peek(line) else {
                return Next::Wait;
            };
            if entry >= it.entries.len() {
                self.frontier = (line + 1, 0);
                continue;
            }
            if it.entries[entry].read == Read::Unplanned {
                if self.plan_read(line, entry, false, actions).is_err() {
                    return Next::Wait;
                }
                self.chunk_left = self.chunk_left.saturating_sub(1);
            }
            self.frontier.1 += 1;
            budget -= 1;
        }
        Next::Soon
    }

    /// Memory is there but torn: puts every read back, empties the RAM tier, and plans `line` again, its largest samples first. What doesn't fit
    /// then doesn't fit at all.
    fn repack(&mut self, line: u64, actions: &mut Vec<Action>) {
        for at in self.window.head()..self.window.end() {
            let count = self.window.peek(at).map_or(0, |l| l.entries.len());
            for entry in 0..count {
                let Some(it) = self.window.line(at).map(|l| &mut l.entries[entry]) else {
                    continue;
                };
                if it.read != Read::Planned {
                    continue;
                }
                let (waiter, resident) = (it.waiter, it.resident);
                (it.read, it.resident) = (Read::Unplanned, NONE);
                self.window.ahead -= 1;
                if waiter != 0 {
                    // Nothing is under way, so whatever was planned had arrived.
                    self.requests.one_more(waiter - 1);
                    self.wanted.insert((at, entry));
                }
                self.unuse(resident);
            }
        }
        self.frontier = (self.window.head(), 0);
        while self.residents.evict_one(&mut self.arena).is_some() {}
        let mut entries: Vec<(usize, u64, u64)> = self
            .wanted
            .range((line, 0)..(line + 1, 0))
            .filter_map(|&(_, e)| self.wanted_at(line, e))
            .collect();
        entries.sort_by_key(|&(entry, len, _)| (std::cmp::Reverse(len), entry));
        for (entry, _, request) in entries {
            self.wanted.remove(&(line, entry));
            let Some(it) = self
                .window
                .peek(line)
                .map(|l| l.entries[entry])
                .filter(|it| it.waiter != 0)
            else {
                continue;
            };
            if self.plan_read(line, entry, true, actions).is_err() {
                self.refuse(request, it.sample, Failure::NoMemory, actions);
                return;
            }
        }
    }

    fn wanted_at(&self, line: u64, entry: usize) -> Option<(usize, u64, u64)> {
        let it = self.window.peek(line)?.entries.get(entry)?;
        (it.waiter != 0).then(|| (entry, self.catalog.place(it.sample).len, it.waiter - 1))
    }

    /// Nothing will ever give memory back: no load or write is under way, and nobody holds a lease.
    pub(super) fn is_stuck(&self) -> bool {
        self.loads.is_idle() && self.residents.leases == 0
    }

    fn may_look_ahead(&mut self, line: u64, entry: usize) -> bool {
        if self.window.open >= self.settings.window_entries && line >= self.window.end() {
            return false;
        }
        match self.settings.policy.lookahead() {
            Lookahead::Demand => false,
            Lookahead::Batches(ahead) => line <= self.newest_line + ahead * self.window.ranks().len() as u64,
            Lookahead::Chunk { fetch, threshold } => {
                if self.chunk_left == 0 && self.window.ahead <= u64::from(threshold) {
                    self.chunk_left = fetch;
                }
                self.chunk_left > 0
            }
            Lookahead::Bytes => {
                // Bounded by memory inside plan_read; a frontier that stands still costs one look per step.
                let _ = entry;
                true
            }
        }
    }

    /// Gives one read its memory and, if its bytes are elsewhere, a load.
    fn plan_read(&mut self, line: u64, entry: usize, urgent: bool, actions: &mut Vec<Action>) -> Result<(), Blocked> {
        let Some(it) = self.window.peek(line) else {
            return Ok(());
        };
        let (sample, waiter) = (it.entries[entry].sample, it.entries[entry].waiter);
        let id = self.resident_for(sample, line, urgent || waiter != 0, actions)?;
        self.residents.get_mut(id).uses += 1;
        let it = &mut self.window.line(line).expect("the line was there a moment ago").entries[entry];
        it.resident = id;
        it.read = Read::Planned;
        self.window.ahead += 1;
        if waiter != 0 {
            self.note_waiter(id, waiter - 1, line, actions);
        }
        Ok(())
    }

    /// The resident of a sample, with a load queued if it isn't there.
    fn resident_for(
        &mut self,
        sample: u64,
        line: u64,
        urgent: bool,
        actions: &mut Vec<Action>,
    ) -> Result<u32, Blocked> {
        if let Some(id) = self.residents.find(sample) {
            if matches!(self.settings.policy.retention(), Retention::Fifo(_)) {
                // Paper 000's prototype evicted samples between the request and their use; asking for one makes it the newest.
                self.residents.refresh(id);
            }
            let resident = self.residents.get_mut(id);
            if matches!(resident.state, State::Failed(_)) && resident.parts == 0 {
                resident.attempt = 0;
                self.reload(id, line);
            }
            return Ok(id);
        }
        let place = self.catalog.place(sample);
        if place.len == 0 {
            let id = self.residents.insert(sample, Slot::EMPTY, Via::Ram);
            self.residents.get_mut(id).state = State::Ready;
            return Ok(id);
        }
        if let Some(tier) = self.best_tier(sample, place.len) {
            let slot = self.reserve(place.len, line, urgent)?;
            let id = self.residents.insert(sample, slot, Via::Disk);
            if self.ram_admits(place.len) {
                self.residents.keep(id);
            }
            self.loads.queue_disk(tier as u8, place, id, &mut self.residents, line);
            return Ok(id);
        }
        if self.group_bytes > 0
            && !self.ram_admits(self.group_bytes)
            && !self.has_staging_room(self.group_bytes)
            && !self.loads.is_idle()
        {
            // Fetching a sample without its neighbours because memory is short for a moment would tear a hole into a request that is
            // wanted whole a moment later. What is under way gives memory back.
            return Err(Blocked::Memory);
        }
        let stay = self.where_to_keep(place.len, actions);
        let slot = match stay {
            Keep::Ram => match Residents::take(&mut self.arena, place.len, Stay::Long, self.ram_bytes) {
                Some(slot) => slot,
                None => self.reserve(place.len, line, urgent)?,
            },
            Keep::Tier(_) | Keep::No => match self.reserve(place.len, line, urgent) {
                Ok(slot) => slot,
                Err(blocked) => {
                    if let Keep::Tier(tier) = stay {
                        self.tiers[usize::from(tier)].abandon(place.len);
                    }
                    return Err(blocked);
                }
            },
        };
        let id = self.residents.insert(sample, slot, Via::Bucket);
        self.settle(id, stay);
        self.fetch(id, place, line);
        Ok(id)
    }

    /// The disk tier to read a sample from: the fastest that has it, unless the bucket is faster by far (paper 001 sec. 4 takes the fastest;
    /// a request to the bucket also costs money, so a cached copy is left only for a large gain).
    fn best_tier(&self, sample: u64, len: u64) -> Option<usize> {
        let wait_s = |tier: usize| {
            let turns = 1.0 + self.loads.disk_queue(tier) as f64 / f64::from(self.settings.disk_depth.max(1));
            self.tiers[tier].estimate.expected_s(len) * turns
        };
        let holds = |&tier: &usize| self.tiers[tier].has(sample) && self.tiers[tier].breaker.allows(self.now_ns);
        let fastest = (0..self.tiers.len())
            .filter(holds)
            .min_by(|&a, &b| wait_s(a).total_cmp(&wait_s(b)))?;
        let turns = 1.0 + self.loads.bucket_queue() as f64 / f64::from(self.loads.concurrency.limit());
        let bucket_s = self.loads.estimate.expected_s(len) * turns;
        (wait_s(fastest) <= bucket_s * self.settings.cached_worth).then_some(fastest)
    }

    /// Queues the fetch of a new resident: in parts when it is large, with its neighbours when they are wanted too.
    fn fetch(&mut self, id: u32, place: crate::catalog::Place, line: u64) {
        if place.len > self.settings.part_bytes + self.settings.part_bytes / 2 {
            self.loads
                .queue_parts(place, id, self.settings.part_bytes, &mut self.residents, line);
            return;
        }
        let mut group = vec![(place, id)];
        if self.shards && place.len < self.settings.coalesce_bytes {
            self.gather(&mut group, line);
        }
        self.loads
            .queue_group(&mut group, self.settings.gap_bytes, &mut self.residents, line);
    }

    /// Adds the neighbours in the same shard, within one cell of the coalescing grid, that are not here and will stay or be read soon.
    fn gather(&mut self, group: &mut Vec<(crate::catalog::Place, u32)>, line: u64) {
        let (first, sample) = (group[0].0, self.residents.get(group[0].1).sample);
        let cell = first.offset / self.settings.coalesce_bytes;
        let samples = self.catalog.samples();
        for up in [true, false] {
            let mut next = sample;
            loop {
                next = match if up {
                    next.checked_add(1).filter(|&n| n < samples)
                } else {
                    next.checked_sub(1)
                } {
                    Some(next) => next,
                    None => break,
                };
                let place = self.catalog.place(next);
                if place.object != first.object || place.offset / self.settings.coalesce_bytes != cell {
                    break;
                }
                if place.len == 0 || self.residents.find(next).is_some() || self.tiers.iter().any(|t| t.has(next)) {
                    continue;
                }
                let Some(id) = self.invite(next, place, line) else {
                    continue;
                };
                group.push((place, id));
            }
        }
    }

    /// A resident for a neighbour that comes along in a request, if it has a place to stay or is read within the window.
    fn invite(&mut self, sample: u64, place: crate::catalog::Place, line: u64) -> Option<u32> {
        if self.settings.policy.retention() != Retention::Pinned {
            return None;
        }
        let stay = if self.ram_admits(place.len) {
            Keep::Ram
        } else if !self.has_staging_room(place.len) {
            return None;
        } else if let Some(tier) = self.tiers.iter_mut().position(|t| t.admit(place.len)) {
            Keep::Tier(tier as u8)
        } else if self.read_soon(sample, line) {
            Keep::No
        } else {
            return None;
        };
        let end = if stay == Keep::Ram { Stay::Long } else { Stay::Short };
        let Some(slot) = Residents::take(&mut self.arena, place.len, end, self.ram_bytes) else {
            if let Keep::Tier(tier) = stay {
                self.tiers[usize::from(tier)].abandon(place.len);
            }
            return None;
        };
        let id = self.residents.insert(sample, slot, Via::Bucket);
        self.settle(id, stay);
        Some(id)
    }

    /// Whether this node reads a sample again before staging turns over.
    fn read_soon(&mut self, sample: u64, line: u64) -> bool {
        let (epoch, batch, _) = self.window.address(line);
        let global = u64::from(self.window.split().global_batch());
        let batches = (self.staging_bytes / self.catalog.place(sample).len.max(1) / global.max(1)).max(1);
        let (split, local) = (self.window.split().clone(), self.window.ranks().to_vec());
        let Some(position) = self.window.epoch(epoch).and_then(|order| order.position_of(sample)) else {
            return false;
        };
        let at = split.batch_of(position);
        at >= batch && at < batch + batches && local.contains(&split.rank_of(position))
    }

    fn settle(&mut self, id: u32, stay: Keep) {
        match stay {
            Keep::Ram => self.residents.keep(id),
            Keep::Tier(tier) => self.residents.get_mut(id).to_tier = Some(tier),
            Keep::No => {}
        }
    }

    fn ram_admits(&self, len: u64) -> bool {
        let limit = match self.settings.policy.retention() {
            Retention::Nothing => return false,
            Retention::Fifo(_) if !self.tiers.is_empty() => return false,
            Retention::Pinned | Retention::Fifo(_) | Retention::Lru => {
                self.ram_bytes.saturating_sub(self.staging_bytes)
            }
        };
        self.residents.kept_bytes + reserved_bytes(len) <= limit
    }

    /// Where a sample that comes from the bucket stays. Reserves its room in a disk tier.
    fn where_to_keep(&mut self, len: u64, actions: &mut Vec<Action>) -> Keep {
        match self.settings.policy.retention() {
            Retention::Nothing => return Keep::No,
            Retention::Pinned => {}
            Retention::Lru => self.evict_for(len, u64::MAX),
            Retention::Fifo(items) if self.tiers.is_empty() => {
                self.evict_for(len, if items == 0 { u64::MAX } else { items })
            }
            Retention::Fifo(items) => self.evict_from_tier(len, items, actions),
        }
        if self.ram_admits(len) {
            return Keep::Ram;
        }
        match self.tiers.iter_mut().position(|tier| tier.admit(len)) {
            Some(tier) => Keep::Tier(tier as u8),
            None => Keep::No,
        }
    }

    /// Evicts the oldest until one more of `len` bytes fits the RAM tier.
    fn evict_for(&mut self, len: u64, items: u64) {
        while (!self.ram_admits(len) || self.residents.kept_count >= items)
            && self.residents.evict_one(&mut self.arena).is_some()
        {}
    }

    fn evict_from_tier(&mut self, len: u64, items: u64, actions: &mut Vec<Action>) {
        let tier = &mut self.tiers[0];
        while items > 0 && tier.count() >= items || !tier.fits(len) {
            let Some((sample, old)) = tier.pop_oldest() else { break };
            tier.remove(sample, old);
            actions.push(self.loads.action(Command::Forget { tier: 0, sample }));
        }
    }

    fn staged_bytes(&self) -> u64 {
        self.arena.used_bytes() - self.residents.kept_bytes
    }

    fn has_staging_room(&self, len: u64) -> bool {
        // An eighth stays free: slots of all sizes come and go, and without slack no hole fits the next one.
        self.staged_bytes() + reserved_bytes(len) <= self.staging_bytes - self.staging_bytes / 8
    }

    /// A slot for something that passes through. For what is waited for, staging may grow into the RAM tier, kept samples leave, and
    /// reads planned further ahead are put back.
    fn reserve(&mut self, len: u64, line: u64, urgent: bool) -> Result<Slot, Blocked> {
        // What nobody waits for yet leaves room for a request's worth of neighbours to pass through.
        if !urgent && !self.has_staging_room(len + self.group_bytes) {
            return Err(Blocked::Memory);
        }
        loop {
            if let Some(slot) = Residents::take(&mut self.arena, len, Stay::Short, self.ram_bytes) {
                return Ok(slot);
            }
            if !urgent {
                return Err(Blocked::Memory);
            }
            if !self.put_back_after(line) && self.residents.evict_one(&mut self.arena).is_none() {
                return Err(Blocked::Memory);
            }
        }
    }

    /// Puts the last planned reads behind `line` back, until something was freed. False: there is nothing to free.
    fn put_back_after(&mut self, line: u64) -> bool {
        let before = self.arena.used_bytes();
        let mut at = self.window.end();
        while at > line + 1 {
            at -= 1;
            let count = self.window.peek(at).map_or(0, |l| l.entries.len());
            for entry in (0..count).rev() {
                let it = self.window.peek(at).map(|l| l.entries[entry]);
                let Some(it) = it.filter(|it| it.read == Read::Planned && it.waiter == 0) else {
                    continue;
                };
                if let Some(line) = self.window.line(at) {
                    line.entries[entry].read = Read::Unplanned;
                    line.entries[entry].resident = NONE;
                }
                self.window.ahead -= 1;
                if (at, entry) < self.frontier {
                    self.frontier = (at, entry);
                }
                self.unuse(it.resident);
                if self.arena.used_bytes() < before {
                    return true;
                }
            }
        }
        false
    }

    /// Parts of the arena of at least `least` bytes that hold nothing now: what can be given back to the system.
    pub fn free_blocks(&self, least: u64) -> impl Iterator<Item = (u64, u64)> {
        self.arena.free_blocks(least)
    }

    /// The current stay of a sample in memory, if it has one.
    #[must_use]
    pub fn handle_of(&self, sample: u64) -> Option<crate::action::Handle> {
        self.residents.find(sample).map(|id| self.residents.handle(id))
    }

    /// What a request waits for, oldest first; for the watchdog.
    #[must_use]
    pub fn waiting(&self) -> Vec<Waiting> {
        self.requests
            .open()
            .map(|(id, since_ns, targets)| self.explain(id, since_ns, targets))
            .collect()
    }

    fn explain(&self, request: u64, since_ns: u64, targets: &[requests::Target]) -> Waiting {
        for target in targets {
            let (sample, id) = match *target {
                requests::Target::Entry(line, entry) => match self.window.peek(line) {
                    Some(l) => (l.entries[entry].sample, l.entries[entry].resident),
                    None => continue,
                },
                requests::Target::Loose(id) => (self.residents.get(id).sample, id),
                requests::Target::Unplaced(sample) => (sample, NONE),
            };
            if id == NONE {
                return Waiting {
                    request,
                    since_ns,
                    sample: Some(sample),
                    cause: Cause::Memory,
                };
            }
            if self.residents.get(id).state != State::Ready {
                let cause = self
                    .loads
                    .in_flight_of(id, &self.residents)
                    .map_or(Cause::Queued, Cause::Loading);
                return Waiting {
                    request,
                    since_ns,
                    sample: Some(sample),
                    cause,
                };
            }
        }
        Waiting {
            request,
            since_ns,
            sample: None,
            cause: Cause::Order,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Ram,
    Tier(u8),
    No,
}

impl Policy {
    /// The policy's name as it is written in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Naive => "naive",
            Policy::Staging => "staging",
            Policy::Deli { .. } => "deli",
            Policy::Lru => "lru",
            Policy::Frequency => "frequency",
            Policy::Foreload => "foreload",
            Policy::Perfect => "perfect",
            Policy::DeepioOrdered => "deepio-ordered",
            Policy::DeepioOptimistic => "deepio-optimistic",
            Policy::ParallelStaging => "parallel-staging",
            Policy::LbannDynamic => "lbann-dynamic",
            Policy::LbannPreload => "lbann-preload",
            Policy::LocalityAware => "locality-aware",
        }
    }
}
