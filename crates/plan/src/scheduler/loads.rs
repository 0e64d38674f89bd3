//! Loads: requests to sources, from the queue to their end.
//!
//! A load brings one or more pieces. It waits in its source's lane ([`super::lanes`]) until that lets it fly, is under way ([`super::flights`]), and then
//! ends exactly once, whatever happened to those who wanted it; [`super::race`] says what becomes of its samples. Slots belong to residents; only the
//! twin of a late load brings slots of its own. Failed loads are tried once more before their readers are told.

use super::Scheduler;
use super::flights::{Asker, Flight, Flights, Part, Pending, Running, Write};
use super::lanes::Lanes;
use super::patience::MOST_PATIENCE_NS;
use super::peers::Home;
use super::race::{Ended, Fate, RETRIES, fate};
use super::residents::{Residents, State};
use crate::action::{Action, Command, Completion, Failure, Load, Outcome, Piece, Source, Via};
use crate::blocks::Content;
use crate::catalog::{MOST_RANGES, Place};
use crate::settings::Settings;
use std::collections::BTreeMap;

/// Parts of a sample at most: a resident counts them in 16 bits. Twice as many as ranges, so that large ones have several.
const MOST_PARTS: u64 = 2 * MOST_RANGES as u64;

pub(super) struct Loads {
    next_id: u64,
    part_bytes: u64,
    gap_bytes: u64,
    pub lanes: Lanes,
    pub flights: Flights,
    /// Bundles so far.
    bundles: u64,
    /// Memory that somebody has begun to wait for since loads were last issued, and for whom, where several jobs read.
    pub waited: BTreeMap<u32, Asker>,
    /// Writes to disk tiers under way.
    pub writing: u32,
    /// When the last of them ended, or the first began.
    pub written_ns: u64,
    /// Memory of twins, until one of the two has won: no part of what is planned, which must not depend on who was late.
    pub twin_bytes: u64,
}

impl Loads {
    pub fn new(settings: &Settings) -> Self {
        Loads {
            next_id: 0,
            part_bytes: settings.part_bytes.max(1),
            gap_bytes: settings.gap_bytes,
            lanes: Lanes::new(settings),
            flights: Flights::default(),
            bundles: 0,
            waited: BTreeMap::new(),
            writing: 0,
            written_ns: 0,
            twin_bytes: 0,
        }
    }

    /// Nothing is queued or under way.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.lanes.are_empty()
    }

    /// An action that ends with its issue.
    pub fn action(&mut self, command: Command) -> Action {
        self.next_id += 1;
        // Above the ids of what is under way: bit 63 tells them apart.
        Action::new(1 << 63 | self.next_id, command)
    }

    /// A load of all of a content from a disk tier or a peer.
    pub fn queue_whole(&mut self, source: Source, place: Place, id: u32, residents: &mut Residents, asker: Asker) {
        let part = whole(place, id, residents);
        let pending = Pending::of(source, place, part, asker, 0);
        self.lanes.of_mut(source).push(pending);
    }

    /// A sample in parts that fly in parallel: those of a large one, or of each large one of its stretches, and stretches that are near each other in one
    /// load. `first`: before what waits already.
    pub fn queue_parts(&mut self, stretches: &[Place], id: u32, residents: &mut Residents, asker: Asker, first: bool) {
        let content_len: u64 = stretches.iter().map(|stretch| stretch.len).sum();
        let part_bytes = self
            .part_bytes
            .max(content_len.div_ceil(MOST_PARTS - stretches.len() as u64));
        let most_bytes = part_bytes + part_bytes / 2;
        let handle = residents.handle(id);
        let resident = residents.get_mut(id);
        let (content, attempt) = (resident.content, resident.attempt);
        let (mut loads, mut parts, mut content_offset) = (Vec::<Pending>::new(), 0u16, 0);
        for stretch in stretches {
            let count = match stretch.len > most_bytes {
                true => stretch.len.div_ceil(part_bytes),
                false => 1,
            };
            for part in 0..count {
                // Equal parts: a short last one would be issued at the price of a full one.
                let (from, to) = (stretch.len * part / count, stretch.len * (part + 1) / count);
                let place = Place {
                    object: stretch.object,
                    offset: stretch.offset + from,
                    len: to - from,
                };
                let part = Part {
                    handle,
                    content,
                    at: 0,
                    len: place.len,
                    content_offset: content_offset + from,
                    content_len,
                    own: None,
                };
                let near = |load: &&mut Pending| count == 1 && load.takes(place, self.gap_bytes, most_bytes);
                match loads.last_mut().filter(near) {
                    Some(load) => load.add(place, part),
                    None => loads.push(Pending::of(Source::Bucket, place, part, asker, attempt)),
                }
                parts += 1;
            }
            content_offset += stretch.len;
        }
        resident.parts = parts;
        match first {
            true => loads
                .into_iter()
                .rev()
                .for_each(|load| self.lanes.bucket.push_first(load)),
            false => loads.into_iter().for_each(|load| self.lanes.bucket.push(load)),
        }
    }

    /// One load for contents in the order of their places: neighbours, or a block and a sample of it.
    pub fn queue(&mut self, contents: &[(Place, u32)], residents: &mut Residents, asker: Asker) {
        let [(first, id), more @ ..] = contents else { return };
        let part = whole(*first, *id, residents);
        let attempt = residents.get(*id).attempt;
        let mut load = Pending::of(Source::Bucket, *first, part, asker, attempt);
        for &(place, id) in more {
            load.add(place, whole(place, id, residents));
        }
        self.lanes.bucket.push(load);
    }

    /// The source of a load in flight that brings this resident.
    pub fn in_flight_of(&self, id: u32, residents: &Residents) -> Option<Source> {
        let handle = residents.handle(id);
        let mut loads = self.flights.loads().map(|(_, flight)| &flight.pending);
        loads
            .find(|load| load.parts.iter().any(|part| part.handle == handle))
            .map(|load| load.source)
    }
}

/// All of a content as the part of a load: the only one that its resident waits for.
fn whole(place: Place, id: u32, residents: &mut Residents) -> Part {
    let handle = residents.handle(id);
    let resident = residents.get_mut(id);
    resident.parts = 1;
    Part {
        handle,
        content: resident.content,
        at: 0,
        len: place.len,
        content_offset: 0,
        content_len: place.len,
        own: None,
    }
}

impl Scheduler {
    /// Lets queued loads fly while their lanes have room.
    pub(super) fn issue(&mut self, actions: &mut Vec<Action>) {
        self.bring_forward();
        for source in self.loads.lanes.sources() {
            while let Some(pending) = self.loads.lanes.of_mut(source).next(self.now_ns) {
                let Some(first) = self.still_to_fly(pending, actions) else {
                    continue;
                };
                if !self.loads.lanes.of(source).bundles(first.len) {
                    self.take_off(first, None, actions);
                    continue;
                }
                self.loads.bundles += 1;
                let (bundle, shelf) = (Some(self.loads.bundles), self.shelf_of(&first));
                self.take_off(first, bundle, actions);
                while let Some(pending) = self.next_along(source, shelf) {
                    if let Some(next) = self.still_to_fly(pending, actions) {
                        self.take_off(next, bundle, actions);
                    }
                }
            }
        }
    }

    /// What goes along with what has just departed: one request is for one data set.
    fn next_along(&mut self, source: Source, shelf: u64) -> Option<Pending> {
        let library = &self.library;
        let is_on_shelf = |pending: &Pending| library.shelf_of(pending.parts.first.content).first_block == shelf;
        self.loads.lanes.of_mut(source).next_along(self.now_ns, is_on_shelf)
    }

    /// Tells the data set of a load from others.
    fn shelf_of(&self, pending: &Pending) -> u64 {
        self.library.shelf_of(pending.parts.first.content).first_block
    }

    fn take_off(&mut self, pending: Pending, bundle: Option<u64>, actions: &mut Vec<Action>) {
        let pending = Pending { bundle, ..pending };
        self.loads.lanes.of_mut(pending.source).depart(&pending);
        actions.push(self.launch(pending));
    }

    /// A load whose turn it is, if its source still has what it brings, and anybody still wants that.
    fn still_to_fly(&mut self, pending: Pending, actions: &mut Vec<Action>) -> Option<Pending> {
        if self.is_held(&pending) {
            return self.still_wanted(pending, actions);
        }
        // Evicted, or ill, since it was planned.
        let (asker, attempt) = (pending.asker(), pending.attempt);
        let parts = pending.parts.all();
        parts.for_each(|part| self.queue_first(part, asker, attempt));
        None
    }

    /// What waits to bring a resident, if anything does, is needed as soon as that.
    pub(super) fn hurry(&mut self, resident: u32, asker: Asker) {
        let it = self.residents.get(resident);
        if it.state != State::Loading {
            return;
        }
        let peer = match self.home_of(it.content) {
            Home::Peer(peer) => Some(peer),
            Home::Here | Home::Nowhere => None,
        };
        self.loads.lanes.hurry(resident, asker, peer);
    }

    /// For whom a resident is to come, by now: somebody may have begun to wait for it who needs it sooner.
    fn soonest(&self, resident: u32, asker: Asker) -> Asker {
        let lines = self.residents.waiters(resident).filter_map(|id| {
            let (place, guest) = self.requests.asker_of(id)?;
            let is_of_job = self.windows.job_at(place) == asker.job;
            is_of_job.then(|| guest.unwrap_or_else(|| self.windows.head_line(place)))
        });
        let line = lines.chain([asker.line]).min().unwrap_or(asker.line);
        Asker { line, ..asker }
    }

    /// What a job has begun to wait for comes in its own turn, where another job queued it first.
    fn bring_forward(&mut self) {
        let waited = std::mem::take(&mut self.loads.waited);
        if waited.is_empty() {
            return;
        }
        let waits = |load: &Pending| -> Option<Asker> {
            let mut askers = load.parts.iter().filter_map(|part| waited.get(&part.handle.index));
            askers.find(|asker| asker.job != load.job).copied()
        };
        for source in self.loads.lanes.sources() {
            let lane = self.loads.lanes.of_mut(source);
            for mut load in lane.take_if(|load| waits(load).is_some()).into_iter().rev() {
                if let Some(asker) = waits(&load) {
                    (load.job, load.line) = (asker.job, asker.line);
                }
                lane.push_first(load);
            }
        }
    }

    /// Whether its source has what a load is to bring, as far as is known.
    fn is_held(&self, pending: &Pending) -> bool {
        match pending.source {
            Source::Bucket => true,
            Source::Disk(tier) => {
                let tier = &self.tiers[usize::from(tier)];
                pending
                    .parts
                    .iter()
                    .all(|part| tier.has(self.library.block_of(part.content)))
            }
            Source::Peer(_) => self.loads.lanes.of(pending.source).may_be_asked(self.now_ns),
        }
    }

    /// A queued load that nobody wants any more (its readers were skipped) never flies.
    fn still_wanted(&mut self, pending: Pending, actions: &mut Vec<Action>) -> Option<Pending> {
        let is_wanted = |part: &Part| self.residents.get(part.handle.index).is_wanted();
        if pending.parts.iter().any(is_wanted) {
            return Some(pending);
        }
        for part in pending.parts.all() {
            self.part_ended(part, self.now_ns, None, Err(Failure::Cancelled), false, actions);
        }
        None
    }

    /// Of what waits for its turn, some never flies, but for what others read too.
    pub(super) fn forget_queued(&mut self, is_over: impl Fn(&Pending) -> bool, actions: &mut Vec<Action>) {
        for source in self.loads.lanes.sources() {
            let residents = &self.residents;
            let is_read = |part: &Part| residents.get(part.handle.index).uses > 0;
            let is_over = |pending: &Pending| is_over(pending) && !pending.parts.iter().any(is_read);
            for pending in self.loads.lanes.of_mut(source).take_if(is_over) {
                for part in pending.parts.all() {
                    self.part_ended(part, self.now_ns, None, Err(Failure::Cancelled), false, actions);
                }
            }
        }
    }

    /// What is in the air for a job that is over is called off, but for what others read, too.
    pub(super) fn call_off_unread(&mut self, job: u32, actions: &mut Vec<Action>) {
        let residents = &self.residents;
        let is_read = |part: &Part| residents.get(part.handle.index).uses > 0;
        let is_unread = |flight: &Flight| {
            flight.pending.job == job
                && !flight.cancelled
                && !flight.called_off
                && !flight.pending.parts.iter().any(is_read)
        };
        let unread = self.loads.flights.loads().filter(|(_, flight)| is_unread(flight));
        for load in unread.map(|(id, _)| id).collect::<Vec<_>>() {
            self.cancel(load, actions);
        }
    }

    /// Has a load in the air stopped, once. Whatever it still brings is taken as it comes.
    pub(super) fn cancel(&mut self, load: u64, actions: &mut Vec<Action>) {
        if let Some(flight) = self.loads.flights.load_mut(load)
            && !std::mem::replace(&mut flight.called_off, true)
        {
            actions.push(self.loads.action(Command::Cancel { load }));
        }
    }

    /// A load takes off.
    pub(super) fn launch(&mut self, pending: Pending) -> Action {
        let pieces = pending.parts.iter().map(|part| {
            let slot = part.own.unwrap_or_else(|| self.residents.get(part.handle.index).slot);
            Piece {
                content: part.content,
                handle: part.handle,
                at: part.at,
                slot_offset: slot.offset + part.content_offset,
                len: part.len,
                content_offset: part.content_offset,
                content_len: part.content_len,
            }
        });
        // How long a peer is waited for isn't for a clock to say.
        let time_ns = match pending.source {
            Source::Peer(_) => self.settings.load_timeout_ns.max(MOST_PATIENCE_NS),
            Source::Bucket | Source::Disk(_) => self.settings.load_timeout_ns,
        };
        let load = Load {
            job: pending.job,
            source: pending.source,
            object: pending.object,
            offset: pending.offset,
            len: pending.len,
            pieces: pieces.collect(),
            steps: self.windows.steps_left(pending.line),
            deadline_ns: self.now_ns + time_ns,
            attempt: pending.attempt,
            hedge: pending.twin_of.is_some(),
            bundle: pending.bundle,
        };
        let flight = Flight {
            pending,
            issued_ns: self.now_ns,
            twin: None,
            called_off: false,
            cancelled: false,
        };
        let id = self.loads.flights.reserve();
        self.loads.flights.insert(id, Running::Load(flight));
        Action::new(id, Command::Load(load))
    }

    pub(super) fn completed(&mut self, completion: Completion, actions: &mut Vec<Action>) {
        match self.loads.flights.remove(completion.id) {
            Some(Running::Keep(write)) => self.written(write, completion.outcome),
            Some(Running::Load(flight)) => self.landed(flight, completion.outcome, actions),
            None => {}
        }
    }

    fn written(&mut self, write: Write, outcome: Outcome) {
        self.loads.writing -= 1;
        self.loads.written_ns = self.now_ns;
        let held = &mut self.tiers[usize::from(write.tier)];
        match outcome {
            Outcome::Done(_) => held.insert(write.block, write.len),
            Outcome::Failed(_) => held.abandon(write.len),
        }
        self.residents.get_mut(write.handle.index).writes -= 1;
        self.residents.let_go(write.handle.index, &mut self.arena);
    }

    fn landed(&mut self, flight: Flight, outcome: Outcome, actions: &mut Vec<Action>) {
        self.learn(&flight.pending, flight.issued_ns, outcome);
        if matches!(outcome, Outcome::Done(_)) {
            self.note_standing_still(&flight);
        }
        if flight.cancelled {
            // It lost its race, and nothing waits for it but memory of its own.
            let own = flight.pending.parts.iter().filter_map(|part| part.own);
            own.for_each(|slot| self.free_twin(slot));
            return;
        }
        let source = flight.pending.source;
        let is_peer = matches!(source, Source::Peer(_));
        let result = match outcome {
            Outcome::Done(_) => Ok(()),
            Outcome::Failed(Failure::Cancelled) => Err(Failure::Cancelled),
            // Whatever a peer says, the bucket knows better.
            Outcome::Failed(_) if is_peer => Err(Failure::Unavailable),
            Outcome::Failed(failure) => Err(failure),
        };
        let (rival, attempt) = (flight.rival(), flight.pending.attempt);
        let asker = flight.pending.asker();
        let mut tried = None;
        for part in flight.pending.parts.all() {
            if !is_peer && result.is_ok() {
                self.residents.had_from_bucket(part.handle.index);
            }
            let is_wanted = self.residents.get(part.handle.index).is_wanted();
            // A peer costs no try, and one that was called off while somebody wants it comes from elsewhere.
            let once_more = is_peer && is_wanted || tried == Some(part.handle);
            let result = match result {
                Err(Failure::Cancelled) if is_peer && is_wanted => Err(Failure::Unavailable),
                result => result,
            };
            let Some(part) = self.part_ended(part, flight.issued_ns, rival, result, once_more, actions) else {
                continue;
            };
            tried = Some(part.handle);
            // A failed load is retried before new work.
            self.queue_first(part, asker, if is_peer { 0 } else { attempt + 1 });
        }
        if let (Some(rival), Ok(())) = (rival, result) {
            self.call_off(rival, source, actions);
        }
    }

    /// What the end of a load says about its source.
    fn learn(&mut self, ended: &Pending, issued_ns: u64, outcome: Outcome) {
        let lane = self.loads.lanes.of_mut(ended.source);
        lane.ended(self.now_ns, issued_ns, ended, outcome);
        if let (Source::Disk(tier), Outcome::Failed(failure)) = (ended.source, outcome)
            && failure != Failure::Cancelled
        {
            // The entry is quarantined by the engine; here it is no longer there.
            for part in ended.parts.iter() {
                let block = self.library.block_of(part.content);
                let len = self.library.place_of(Content::block(block)).len;
                self.tiers[usize::from(tier)].remove(block, len);
            }
        }
    }

    /// A part that its source failed to bring, or has no more, is to come from the bucket before all that waits.
    fn queue_first(&mut self, part: Part, asker: Asker, attempt: u8) {
        let (content, asker) = (part.content, self.soonest(part.handle.index, asker));
        self.residents.had_from_bucket(part.handle.index);
        let is_large = part.len > self.settings.part_bytes + self.settings.part_bytes / 2;
        if part.is_whole() && (is_large || self.library.is_several(content)) {
            // It was one record on a disk, or of a peer.
            let (index, stretches) = (part.handle.index, self.library.stretches(content));
            self.loads
                .queue_parts(&stretches, index, &mut self.residents, asker, true);
            return;
        }
        if let Some(place) = self.library.locate(content, part.content_offset) {
            let part = Part { at: 0, ..part };
            let load = Pending::of(Source::Bucket, place, part, asker, attempt);
            self.loads.lanes.bucket.push_first(load);
        }
    }

    /// One part of an ended load: its resident is there, waits for more, or failed. Returns the part if it is worth another try: `once_more`, as another
    /// part of the same resident in the same load was.
    fn part_ended(
        &mut self,
        part: Part,
        issued_ns: u64,
        rival: Option<u64>,
        result: Result<(), Failure>,
        once_more: bool,
        actions: &mut Vec<Action>,
    ) -> Option<Part> {
        let index = part.handle.index;
        let resident = self.residents.get_mut(index);
        resident.parts -= 1;
        let state = resident.state;
        let fate = fate(Ended {
            state,
            result,
            raced: rival.is_some(),
            rest: resident.parts,
            whole: part.is_whole(),
            again: once_more || resident.attempt < RETRIES && resident.is_wanted(),
        });
        if let Some(own) = part.own {
            let won = state == State::Loading && fate == Fate::Arrived;
            self.settle_race(&part, own, won, rival);
        }
        let resident = self.residents.get_mut(index);
        match fate {
            Fate::Pending => {}
            Fate::Failing(failure) => resident.state = State::Failed(failure),
            Fate::PartAgain => {
                resident.parts += 1;
                resident.attempt += u8::from(!once_more);
                return Some(part.again());
            }
            Fate::AllAgain => {
                resident.attempt += 1;
                self.reload(index, 0);
            }
            Fate::Arrived => {
                (resident.state, resident.attempt) = (State::Ready, 0);
                self.settled(index, issued_ns, actions);
            }
            Fate::Failed(failure) => {
                resident.state = State::Failed(failure);
                let is_fetched = resident.via == Via::Bucket;
                match failure {
                    Failure::Corrupt | Failure::Final if is_fetched && self.residents.samples(index) > 1 => {
                        self.take_apart(index);
                    }
                    _ => self.settled(index, issued_ns, actions),
                }
            }
        }
        None
    }

    /// A resident is there, or won't be: on to its disk tier, and tell who waits. A failure is of the time in which its load was tried: who asked later
    /// gets a load that was begun since.
    fn settled(&mut self, index: u32, issued_ns: u64, actions: &mut Vec<Action>) {
        let resident = self.residents.get_mut(index);
        let (state, to_tier, slot) = (resident.state, resident.to_tier.take(), resident.slot);
        let block = self.library.block_of(resident.content);
        let waiters = self.residents.told(index);
        match (state, to_tier) {
            (State::Ready, Some(tier)) => {
                self.residents.get_mut(index).writes += 1;
                let handle = self.residents.handle(index);
                let write = Write {
                    tier,
                    handle,
                    len: slot.len,
                    block,
                };
                if self.loads.writing == 0 {
                    self.loads.written_ns = self.now_ns;
                }
                self.loads.writing += 1;
                let id = self.loads.flights.reserve();
                self.loads.flights.insert(id, Running::Keep(write));
                let keep = Command::Keep {
                    tier,
                    block,
                    handle,
                    slot,
                };
                actions.push(Action::new(id, keep));
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
                State::Failed(failure) => {
                    let sample = self.sample_of(request, index);
                    self.refuse(request, sample, failure, actions);
                }
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

    /// A block that can't be had as a whole is read sample by sample from now on: what is wrong with one of them is no reason to withhold the others.
    fn take_apart(&mut self, index: u32) {
        let resident = self.residents.get_mut(index);
        let (content, to_tier, len) = (resident.content, resident.to_tier.take(), resident.slot.len);
        self.apart.insert(self.library.block_of(content));
        if let Some(tier) = to_tier {
            self.tiers[usize::from(tier)].abandon(len);
        }
        drop(self.residents.told(index));
        self.unplan_all(index);
        self.residents.drop_if_idle(index, &mut self.arena);
    }

    /// Who a line belongs to.
    pub(super) fn asker(&self, line: u64) -> Asker {
        let job = self.windows.job_at(self.windows.parts(line).1);
        Asker { job, line }
    }

    /// Loads a resident again whose load failed: somebody asks for it once more. It comes before what waits: where everything fails, each load that was
    /// read ahead takes its whole time to do so, and who asked would wait for all of them.
    pub(super) fn reload(&mut self, index: u32, line: u64) {
        self.residents.loads_from(index, Via::Bucket);
        let asker = self.asker(line);
        let content = self.residents.get(index).content;
        match self.residents.samples(index) {
            1 => {
                let stretches = self.library.stretches(content);
                self.loads
                    .queue_parts(&stretches, index, &mut self.residents, asker, true);
            }
            _ => {
                let place = self.library.place_of(content);
                let part = whole(place, index, &mut self.residents);
                let attempt = self.residents.get(index).attempt;
                let load = Pending::of(Source::Bucket, place, part, asker, attempt);
                self.loads.lanes.bucket.push_first(load);
            }
        }
    }
}

#[cfg(test)]
mod tests;
