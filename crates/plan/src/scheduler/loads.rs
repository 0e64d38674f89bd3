//! Loads: requests to sources, from the queue to their end.
//!
//! A load brings one or more pieces. It waits in its source's queue until flow control lets it fly, and then ends exactly once, whatever happened to those
//! who wanted it. Slots belong to residents; only the twin of a late load (a *hedge*) brings slots of its own, and whichever of the two ends
//! first gives the resident its bytes. Failed loads are tried once more before their readers are told.

use super::Scheduler;
use super::residents::{Residents, State};
use crate::action::{Action, Command, Completion, Failure, Handle, Load, Outcome, Piece, Source, Via};
use crate::arena::{Slot, Stay, reserved_bytes};
use crate::catalog::Place;
use crate::flow::{Concurrency, HedgeBudget};
use crate::model::{Estimate, Pinned};
use crate::settings::Settings;
use std::collections::VecDeque;

/// No twin before this: what a nearby store would have answered by then, our own scheduling may have delayed.
const HEDGE_AFTER_S: f64 = 0.05;
/// Extra tries after a failure that another try may mend.
const RETRIES: u8 = 1;

struct Part {
    handle: Handle,
    sample: u64,
    at: u64,
    len: u64,
    sample_offset: u64,
    sample_len: u64,
    /// The hedge's own slot.
    own: Option<Slot>,
}

/// The parts of a load: nearly always one, so that one needs no allocation.
struct Parts {
    first: Part,
    more: Vec<Part>,
}

impl Parts {
    fn one(first: Part) -> Self {
        Parts {
            first,
            more: Vec::new(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    fn all(self) -> impl Iterator<Item = Part> {
        std::iter::once(self.first).chain(self.more)
    }
}

struct Pending {
    source: Source,
    object: u64,
    offset: u64,
    len: u64,
    parts: Parts,
    line: u64,
    attempt: u8,
    twin_of: Option<u64>,
}

struct Flight {
    pending: Pending,
    issued_ns: u64,
    twin: Option<u64>,
    cancelled: bool,
}

enum Running {
    Load(Flight),
    Keep {
        tier: u8,
        handle: Handle,
        len: u64,
        sample: u64,
    },
}

/// What is under way, by the id of its action: a place in the table and, above it, a count that never repeats.
#[derive(Default)]
struct Table {
    places: Vec<Option<(u64, Running)>>,
    vacant: Vec<u32>,
    count: u64,
}

/// Bits of an action's id that name the place in the table: a million at once.
const PLACE_BITS: u32 = 20;

impl Table {
    /// The id that the next insertion gets.
    fn reserve(&mut self) -> u64 {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        self.count += 1;
        self.count << PLACE_BITS | u64::from(place)
    }

    fn place(id: u64) -> usize {
        (id & ((1 << PLACE_BITS) - 1)) as usize
    }

    fn insert(&mut self, id: u64, running: Running) {
        self.places[Self::place(id)] = Some((id, running));
    }

    fn remove(&mut self, id: u64) -> Option<Running> {
        let place = self.places.get_mut(Self::place(id))?;
        let found = place.take_if(|(found, _)| *found == id)?;
        self.vacant.push(Self::place(id) as u32);
        Some(found.1)
    }

    fn get(&self, id: u64) -> Option<&Running> {
        self.places
            .get(Self::place(id))?
            .as_ref()
            .filter(|(found, _)| *found == id)
            .map(|(_, running)| running)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Running> {
        self.places
            .get_mut(Self::place(id))?
            .as_mut()
            .filter(|(found, _)| *found == id)
            .map(|(_, running)| running)
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &Running)> {
        self.places.iter().flatten().map(|(id, running)| (*id, running))
    }

    fn is_empty(&self) -> bool {
        self.vacant.len() == self.places.len()
    }
}

pub(super) struct Loads {
    next_id: u64,
    bucket: VecDeque<Pending>,
    disks: Vec<VecDeque<Pending>>,
    running: Table,
    in_flight: u32,
    /// Writes to disk tiers under way.
    pub writing: u32,
    /// When the last of them ended, or the first began.
    pub written_ns: u64,
    disk_depth: u32,
    /// Memory of twins, until one of the two has won: no part of what is planned, which must not depend on who was late.
    pub twin_bytes: u64,
    pub concurrency: Concurrency,
    pub estimate: Estimate,
    hedges: HedgeBudget,
}

impl Loads {
    pub fn new(settings: &Settings) -> Self {
        // A bucket in the same region as a prior; measured within the first requests.
        let prior = settings.bucket.unwrap_or(Pinned {
            latency_s: 0.03,
            bytes_per_s: 35e6,
        });
        Loads {
            next_id: 0,
            bucket: VecDeque::new(),
            disks: settings.tiers.iter().map(|_| VecDeque::new()).collect(),
            running: Table::default(),
            in_flight: 0,
            writing: 0,
            written_ns: 0,
            disk_depth: settings.disk_depth.max(1),
            twin_bytes: 0,
            concurrency: Concurrency::new(settings.concurrency),
            estimate: Estimate::new(prior, settings.bucket.is_some()),
            hedges: HedgeBudget::new(settings.hedge_per_cent),
        }
    }

    /// Nothing is queued or under way.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.bucket.is_empty() && self.disks.iter().all(VecDeque::is_empty)
    }

    pub fn bucket_in_flight(&self) -> u64 {
        u64::from(self.in_flight)
    }

    /// An action that ends with its issue.
    pub fn action(&mut self, command: Command) -> Action {
        self.next_id += 1;
        // Above the ids of what is under way: bit 63 tells them apart.
        Action::new(1 << 63 | self.next_id, command)
    }

    /// Loads that wait for a disk tier.
    pub fn disk_queue(&self, tier: usize) -> usize {
        self.disks[tier].len()
    }

    /// Loads that wait for the bucket.
    pub fn bucket_queue(&self) -> usize {
        self.bucket.len()
    }

    pub fn queue_disk(&mut self, tier: u8, place: Place, id: u32, residents: &mut Residents, line: u64) {
        let part = whole(place, id, residents);
        let pending = Pending {
            source: Source::Disk(tier),
            object: place.object,
            offset: place.offset,
            len: place.len,
            parts: Parts::one(part),
            line,
            attempt: 0,
            twin_of: None,
        };
        self.disks[usize::from(tier)].push_back(pending);
    }

    /// A large sample, in parts that fly in parallel.
    pub fn queue_parts(&mut self, place: Place, id: u32, part_bytes: u64, residents: &mut Residents, line: u64) {
        let handle = residents.handle(id);
        let count = place.len.div_ceil(part_bytes.max(1));
        let resident = residents.get_mut(id);
        resident.parts = count as u32;
        let (sample, attempt) = (resident.sample, resident.attempt);
        for part in 0..count {
            // Equal parts: a short last one would be issued at the price of a full one.
            let (from, to) = (place.len * part / count, place.len * (part + 1) / count);
            let part = Part {
                handle,
                sample,
                at: 0,
                len: to - from,
                sample_offset: from,
                sample_len: place.len,
                own: None,
            };
            let pending = Pending {
                source: Source::Bucket,
                object: place.object,
                offset: place.offset + from,
                len: to - from,
                parts: Parts::one(part),
                line,
                attempt,
                twin_of: None,
            };
            self.bucket.push_back(pending);
        }
    }

    /// Samples of one object, in as few requests as gaps of `gap_bytes` allow.
    pub fn queue_group(&mut self, group: &mut [(Place, u32)], gap_bytes: u64, residents: &mut Residents, line: u64) {
        group.sort_unstable_by_key(|(place, _)| place.offset);
        let queued = self.bucket.len();
        for &(place, id) in group.iter() {
            let part = whole(place, id, residents);
            let run = if self.bucket.len() > queued {
                self.bucket.back_mut()
            } else {
                None
            };
            let near = |run: &&mut Pending| {
                place.offset >= run.offset + run.len && place.offset <= run.offset + run.len + gap_bytes
            };
            if let Some(run) = run.filter(near) {
                let at = place.offset - run.offset;
                run.parts.more.push(Part { at, ..part });
                run.len = at + place.len;
            } else {
                self.bucket.push_back(Pending {
                    source: Source::Bucket,
                    object: place.object,
                    offset: place.offset,
                    len: place.len,
                    parts: Parts::one(part),
                    line,
                    attempt: residents.get(id).attempt,
                    twin_of: None,
                });
            }
        }
    }

    /// The source of a load in flight that brings this resident.
    pub fn in_flight_of(&self, id: u32, residents: &Residents) -> Option<Source> {
        let handle = residents.handle(id);
        self.running.iter().find_map(|(_, running)| match running {
            Running::Load(flight) if flight.pending.parts.iter().any(|part| part.handle == handle) => {
                Some(flight.pending.source)
            }
            _ => None,
        })
    }

    fn launch(&mut self, pending: Pending, now_ns: u64, deadline_ns: u64, residents: &Residents) -> Action {
        let pieces = pending.parts.iter().map(|part| {
            let slot = part.own.unwrap_or_else(|| residents.get(part.handle.index).slot);
            Piece {
                sample: part.sample,
                handle: part.handle,
                at: part.at,
                slot_offset: slot.offset + part.sample_offset,
                len: part.len,
                sample_offset: part.sample_offset,
                sample_len: part.sample_len,
            }
        });
        let load = Load {
            source: pending.source,
            object: pending.object,
            offset: pending.offset,
            len: pending.len,
            pieces: pieces.collect(),
            deadline_ns,
            attempt: pending.attempt,
            hedge: pending.twin_of.is_some(),
        };
        let id = self.running.reserve();
        self.running.insert(
            id,
            Running::Load(Flight {
                pending,
                issued_ns: now_ns,
                twin: None,
                cancelled: false,
            }),
        );
        Action::new(id, Command::Load(load))
    }
}

fn whole(place: Place, id: u32, residents: &mut Residents) -> Part {
    let handle = residents.handle(id);
    let resident = residents.get_mut(id);
    resident.parts = 1;
    Part {
        handle,
        sample: resident.sample,
        at: 0,
        len: place.len,
        sample_offset: 0,
        sample_len: place.len,
        own: None,
    }
}

impl Scheduler {
    /// Lets queued loads fly while flow control allows.
    pub(super) fn issue(&mut self, actions: &mut Vec<Action>) {
        let deadline_ns = self.now_ns + self.settings.load_timeout_ns;
        for tier in 0..self.tiers.len() {
            while self.tiers[tier].in_flight < self.loads.disk_depth {
                let Some(mut pending) = self.loads.disks[tier].pop_front() else {
                    break;
                };
                if !pending.parts.iter().all(|part| self.tiers[tier].has(part.sample)) {
                    // Evicted since it was planned.
                    pending.source = Source::Bucket;
                    self.loads.bucket.push_front(pending);
                    continue;
                }
                let Some(pending) = self.still_wanted(pending, actions) else {
                    continue;
                };
                self.tiers[tier].in_flight += 1;
                actions.push(self.loads.launch(pending, self.now_ns, deadline_ns, &self.residents));
            }
        }
        loop {
            if self.loads.in_flight >= self.loads.concurrency.limit() {
                if !self.loads.bucket.is_empty() {
                    self.loads.concurrency.wanted_more();
                }
                break;
            }
            let Some(pending) = self.loads.bucket.pop_front() else {
                break;
            };
            let Some(pending) = self.still_wanted(pending, actions) else {
                continue;
            };
            self.loads.in_flight += 1;
            self.loads.hedges.earn();
            actions.push(self.loads.launch(pending, self.now_ns, deadline_ns, &self.residents));
        }
    }

    /// A queued load that nobody wants any more (its readers were skipped) never flies.
    fn still_wanted(&mut self, pending: Pending, actions: &mut Vec<Action>) -> Option<Pending> {
        let wanted = pending
            .parts
            .iter()
            .any(|part| self.residents.get(part.handle.index).is_wanted());
        if wanted {
            return Some(pending);
        }
        for part in pending.parts.all() {
            self.part_ended(part, self.now_ns, false, None, Err(Failure::Cancelled), actions);
        }
        None
    }

    pub(super) fn completed(&mut self, completion: Completion, actions: &mut Vec<Action>) {
        match self.loads.running.remove(completion.id) {
            Some(Running::Keep {
                tier,
                handle,
                len,
                sample,
            }) => self.written(tier, handle, sample, len, completion.outcome),
            Some(Running::Load(flight)) => self.landed(completion.id, flight, completion.outcome, actions),
            None => {}
        }
    }

    fn written(&mut self, tier: u8, handle: Handle, sample: u64, len: u64, outcome: Outcome) {
        self.loads.writing -= 1;
        self.loads.written_ns = self.now_ns;
        let held = &mut self.tiers[usize::from(tier)];
        match outcome {
            Outcome::Done { .. } => held.insert(sample, len),
            Outcome::Failed(_) => held.abandon(len),
        }
        self.residents.get_mut(handle.index).writes -= 1;
        self.residents.let_go(handle.index, &mut self.arena);
    }

    fn landed(&mut self, id: u64, flight: Flight, outcome: Outcome, actions: &mut Vec<Action>) {
        self.learn(&flight, outcome);
        if flight.cancelled {
            // It lost its race, and nothing waits for it but memory of its own.
            let own = flight.pending.parts.iter().filter_map(|part| part.own);
            own.for_each(|slot| self.free_twin(slot));
            return;
        }
        let result = match outcome {
            Outcome::Done { .. } => Ok(()),
            Outcome::Failed(failure) => Err(failure),
        };
        let racing = flight.twin.is_some() || flight.pending.twin_of.is_some();
        let other = flight.twin.or(flight.pending.twin_of);
        debug_assert!(self.loads.running.get(id).is_none());
        let (line, attempt) = (flight.pending.line, flight.pending.attempt);
        for part in flight.pending.parts.all() {
            let Some(part) = self.part_ended(part, flight.issued_ns, racing, other, result, actions) else {
                continue;
            };
            let place = self.catalog.place(part.sample);
            // A failed load is retried before new work.
            self.loads.bucket.push_front(Pending {
                source: Source::Bucket,
                object: place.object,
                offset: place.offset + part.sample_offset,
                len: part.len,
                parts: Parts::one(part),
                line,
                attempt: attempt + 1,
                twin_of: None,
            });
        }
        if let (Some(other), Ok(())) = (other, result) {
            self.lose(other, actions);
        }
    }

    /// Calls off a load whose race is over. Its samples no longer depend on when it ends.
    fn lose(&mut self, load: u64, actions: &mut Vec<Action>) {
        let Some(Running::Load(loser)) = self.loads.running.get_mut(load) else {
            return;
        };
        loser.cancelled = true;
        let samples: Vec<u32> = loser.pending.parts.iter().map(|part| part.handle.index).collect();
        actions.push(self.loads.action(Command::Cancel { load }));
        for index in samples {
            self.residents.get_mut(index).parts -= 1;
            self.residents.let_go(index, &mut self.arena);
        }
    }

    /// One part of an ended load: its resident is there, waits for more, or failed. Returns the part if it is worth another try.
    fn part_ended(
        &mut self,
        part: Part,
        issued_ns: u64,
        racing: bool,
        other: Option<u64>,
        result: Result<(), Failure>,
        actions: &mut Vec<Action>,
    ) -> Option<Part> {
        let index = part.handle.index;
        let resident = self.residents.get_mut(index);
        resident.parts -= 1;
        let (loading, rest) = (resident.state == State::Loading, resident.parts);
        if let Some(own) = part.own {
            let lost = if loading && result.is_ok() {
                std::mem::replace(&mut resident.slot, own)
            } else {
                own
            };
            self.surrender(lost, part.handle, if lost == own { None } else { other });
        }
        let resident = self.residents.get_mut(index);
        match result {
            Ok(()) if loading && (racing || rest == 0) => {
                resident.state = State::Ready;
                if part.sample_len > 0 && resident.attempt > 0 {
                    resident.attempt = 0;
                }
            }
            Err(failure) if loading && !(racing && rest > 0) => {
                let wanted = resident.is_wanted();
                // A checksum covers the whole sample: which of its parts is wrong can't be told, so all are fetched again once none is under way.
                let whole = part.len < part.sample_len && failure == Failure::Corrupt;
                if wanted
                    && !whole
                    && resident.attempt < RETRIES
                    && matches!(failure, Failure::Unavailable | Failure::Corrupt)
                {
                    resident.parts += 1;
                    resident.attempt += 1;
                    return Some(Part {
                        at: 0,
                        own: None,
                        ..part
                    });
                }
                resident.state = State::Failed(failure);
            }
            _ => {}
        }
        let resident = self.residents.get_mut(index);
        if resident.parts == 0
            && resident.state == State::Failed(Failure::Corrupt)
            && part.len < part.sample_len
            && resident.attempt < RETRIES
            && resident.is_wanted()
        {
            resident.attempt += 1;
            self.reload(index, 0);
            return None;
        }
        if resident.state == State::Ready || resident.parts == 0 {
            self.settled(index, issued_ns, actions);
        }
        None
    }

    /// A slot that lost its race. When the load that writes into it still runs, it goes to that load and comes back with it.
    fn surrender(&mut self, slot: Slot, handle: Handle, writer: Option<u64>) {
        if let Some(Running::Load(flight)) = writer.and_then(|writer| self.loads.running.get_mut(writer))
            && let Some(part) = flight.pending.parts.iter_mut().find(|part| part.handle == handle)
        {
            part.own = Some(slot);
            return;
        }
        self.free_twin(slot);
    }

    fn free_twin(&mut self, slot: Slot) {
        self.loads.twin_bytes -= reserved_bytes(slot.len);
        self.arena.give(slot);
    }

    /// A resident is there, or won't be: on to its disk tier, and tell who waits. A failure is of the time in which its load was tried: who asked later
    /// gets a load that was begun since.
    fn settled(&mut self, index: u32, issued_ns: u64, actions: &mut Vec<Action>) {
        let resident = self.residents.get_mut(index);
        let (state, to_tier, sample, slot) = (resident.state, resident.to_tier.take(), resident.sample, resident.slot);
        let waiters = self.residents.told(index);
        match (state, to_tier) {
            (State::Ready, Some(tier)) => {
                self.residents.get_mut(index).writes += 1;
                let handle = self.residents.handle(index);
                if self.loads.writing == 0 {
                    self.loads.written_ns = self.now_ns;
                }
                self.loads.writing += 1;
                let id = self.loads.running.reserve();
                self.loads.running.insert(
                    id,
                    Running::Keep {
                        tier,
                        handle,
                        len: slot.len,
                        sample,
                    },
                );
                actions.push(Action::new(id, Command::Keep { tier, sample, slot }));
            }
            (_, Some(tier)) => self.tiers[usize::from(tier)].abandon(slot.len),
            _ => {}
        }
        let mut again = Vec::new();
        for request in waiters {
            match state {
                // Called off while nobody wanted it, and since then somebody does.
                State::Failed(Failure::Cancelled) => again.push(request),
                State::Failed(Failure::Unavailable) if self.requests.began_after(request, issued_ns) => {
                    again.push(request)
                }
                State::Failed(failure) => self.refuse(request, sample, failure, actions),
                _ => self.one_less(request, actions),
            }
        }
        if !again.is_empty() {
            self.residents.get_mut(index).attempt = 0;
            again
                .into_iter()
                .for_each(|request| self.residents.wait(index, request));
            self.reload(index, 0);
            return;
        }
        self.residents.let_go(index, &mut self.arena);
    }

    fn learn(&mut self, flight: &Flight, outcome: Outcome) {
        let bytes = flight.pending.len;
        match flight.pending.source {
            Source::Bucket => {
                self.loads.in_flight -= 1;
                match outcome {
                    Outcome::Done {
                        latency_ns,
                        total_ns,
                        throttled,
                    } => {
                        self.loads
                            .estimate
                            .observe(bytes, latency_ns as f64 / 1e9, total_ns as f64 / 1e9);
                        self.loads.concurrency.done(self.now_ns, bytes);
                        if throttled {
                            self.loads.concurrency.throttled(self.now_ns);
                        }
                    }
                    Outcome::Failed(Failure::Unavailable) => self.loads.concurrency.throttled(self.now_ns),
                    Outcome::Failed(_) => {}
                }
            }
            Source::Disk(tier) => {
                let tier = &mut self.tiers[usize::from(tier)];
                tier.in_flight -= 1;
                match outcome {
                    Outcome::Done {
                        latency_ns, total_ns, ..
                    } => {
                        tier.estimate
                            .observe(bytes, latency_ns as f64 / 1e9, total_ns as f64 / 1e9);
                        tier.breaker.succeeded();
                    }
                    Outcome::Failed(Failure::Cancelled) => {}
                    Outcome::Failed(_) => {
                        // The entry is quarantined by the engine; here it is no longer there.
                        tier.breaker.failed(self.now_ns);
                        for part in flight.pending.parts.iter() {
                            tier.remove(part.sample, part.sample_len);
                        }
                    }
                }
            }
        }
    }

    /// Loads a resident again whose load failed: somebody asks for it once more.
    pub(super) fn reload(&mut self, index: u32, line: u64) {
        let resident = self.residents.get_mut(index);
        resident.state = State::Loading;
        resident.via = Via::Bucket;
        let place = self.catalog.place(resident.sample);
        if place.len > self.settings.part_bytes + self.settings.part_bytes / 2 {
            self.loads
                .queue_parts(place, index, self.settings.part_bytes, &mut self.residents, line);
        } else {
            self.loads
                .queue_group(&mut [(place, index)], 0, &mut self.residents, line);
        }
    }

    /// Sends twins after loads that are late and needed soon. A twin doesn't queue: it would be late itself.
    pub(super) fn hedge(&mut self, actions: &mut Vec<Action>) {
        let late: Vec<u64> = self
            .loads
            .running
            .iter()
            .filter_map(|(id, running)| match running {
                Running::Load(flight) if self.is_late(flight) => Some(id),
                _ => None,
            })
            .collect();
        for id in late {
            let Some(Running::Load(flight)) = self.loads.running.get(id) else {
                continue;
            };
            let needs: Vec<(Handle, u64, u64, u64, u64)> = flight
                .pending
                .parts
                .iter()
                .filter(|part| self.residents.get(part.handle.index).state == State::Loading)
                .map(|part| (part.handle, part.sample, part.at, part.len, part.sample_len))
                .collect();
            let (object, offset, len, line) = (
                flight.pending.object,
                flight.pending.offset,
                flight.pending.len,
                flight.pending.line,
            );
            let mut slots = Vec::with_capacity(needs.len());
            for need in &needs {
                match Residents::take(&mut self.arena, need.3, Stay::Short, self.ram_bytes) {
                    Some(slot) => slots.push(slot),
                    None => break,
                }
            }
            if needs.is_empty() || slots.len() < needs.len() || !self.loads.hedges.spend() {
                slots.into_iter().for_each(|slot| self.arena.give(slot));
                continue;
            }
            let mut parts = needs
                .into_iter()
                .zip(slots)
                .map(|((handle, sample, at, len, sample_len), slot)| {
                    self.residents.get_mut(handle.index).parts += 1;
                    self.loads.twin_bytes += reserved_bytes(slot.len);
                    Part {
                        handle,
                        sample,
                        at,
                        len,
                        sample_offset: 0,
                        sample_len,
                        own: Some(slot),
                    }
                });
            let Some(first) = parts.next() else { continue };
            let pending = Pending {
                source: Source::Bucket,
                object,
                offset,
                len,
                parts: Parts {
                    first,
                    more: parts.collect(),
                },
                line,
                attempt: 0,
                twin_of: Some(id),
            };
            let deadline_ns = self.now_ns + self.settings.load_timeout_ns;
            self.loads.in_flight += 1;
            let action = self.loads.launch(pending, self.now_ns, deadline_ns, &self.residents);
            if let Some(Running::Load(flight)) = self.loads.running.get_mut(id) {
                flight.twin = Some(action.id());
            }
            actions.push(action);
        }
    }

    fn is_late(&self, flight: &Flight) -> bool {
        let pending = &flight.pending;
        let whole_samples = pending.parts.iter().all(|part| part.len == part.sample_len);
        if pending.source != Source::Bucket
            || flight.twin.is_some()
            || pending.twin_of.is_some()
            || flight.cancelled
            || !whole_samples
        {
            return false;
        }
        let age_s = (self.now_ns - flight.issued_ns) as f64 / 1e9;
        if self.loads.estimate.observations() < 32 || age_s < self.loads.estimate.tail_s(pending.len).max(HEDGE_AFTER_S)
        {
            return false;
        }
        let waited_for = pending
            .parts
            .iter()
            .any(|part| self.residents.get(part.handle.index).waiting);
        let needed_in_s = self.windows.needed_in_ns(pending.line) / 1e9;
        waited_for || needed_in_s < 2.0 * self.loads.estimate.expected_s(pending.len)
    }
}
