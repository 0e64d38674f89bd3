//! Where a sample's bytes come from, where they stay, and who leaves for them.
//!
//! A read of a sample that is in memory costs nothing. Otherwise its block gets a slot where it will stay: in the RAM tier while that has room, or in
//! staging on its way to a disk tier. What another node keeps ([`super::peers`]) passes through. A block that nothing keeps comes in part: the sample that is wanted, and those of its neighbours that are read soon.
//! What passed through leaves when its memory is needed, in the order of planning. For a read that somebody waits for, what was planned further ahead is
//! put back, then kept blocks leave, then what its consumer has passed without asking for it is put back, and at last what others wait for whose turn
//! ([`Turn`]) comes later.

use super::flights::Asker;
use super::residents::{Residents, State};
use super::window::Entry;
use super::{Blocked, Keep, Scheduler, Urgency};
use crate::action::{Action, Command, Source, Via};
use crate::arena::{Slot, Stay, reserved_bytes};
use crate::blocks::{Content, Held};
use crate::catalog::Place;
use crate::policy::Retention;
use crate::settings::SLOW_S;

/// A wanted read waits for memory that is being written to disk while a write has ended within this time.
const DISK_PATIENCE_NS: u64 = 50_000_000;
/// What is kept stays smaller for so long when it had to yield memory: a few evictions a minute cost next to nothing.
const YIELDED_NS: u64 = 60_000_000_000;
/// Neighbours looked at on either side of a sample whose block comes in part.
const MOST_NEIGHBOURS: u64 = 1024;

/// Who comes first where memory is short: whose asker does nothing but wait, before those that are asked for ahead; then by the line that a rank reads, or
/// comes to next; there reads of their own before those of the plan, and of those the request that is older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    is_ahead: bool,
    line: u64,
    is_of_plan: bool,
    request: u64,
}

impl Turn {
    /// Of a read of the plan.
    pub fn of_entry(line: u64, is_awaited: bool) -> Self {
        Turn {
            is_ahead: !is_awaited,
            line,
            is_of_plan: true,
            request: 0,
        }
    }

    /// Of a request's read of its own.
    pub fn of_loose(head: u64, request: u64, is_awaited: bool) -> Self {
        Turn {
            is_ahead: !is_awaited,
            line: head,
            is_of_plan: false,
            request,
        }
    }
}

/// What a load may bring: a block, or one sample of it.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    content: Content,
    samples: u64,
    place: Place,
    /// It is a sample of several ranges.
    is_several: bool,
}

impl Unit {
    /// Its samples, and where the first byte of them lies.
    fn laid(&self) -> (u64, u64) {
        (self.samples, self.place.offset)
    }
}

impl Scheduler {
    /// The resident of a sample, with a load queued if it isn't there.
    pub(super) fn resident_for(
        &mut self,
        sample: u64,
        line: u64,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) -> Result<u32, Blocked> {
        if let Some(id) = self.resident_with(sample) {
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
        let asker = self.asker(line);
        let (alone, whole) = self.units(sample, urgency);
        if alone.place.len == 0 {
            let id = self
                .residents
                .insert(alone.content, alone.laid(), Slot::EMPTY, Via::Ram);
            self.residents.get_mut(id).state = State::Ready;
            return Ok(id);
        }
        if let Some(tier) = self.best_tier(self.library.block_of(alone.content), alone.place.len) {
            let whole = whole.filter(|whole| self.ram_admits(whole.content, whole.place.len));
            let placed = whole.map(|whole| (whole, self.reserve(whole, 0, line, urgency)));
            let (unit, slot) = match placed {
                Some((whole, Ok(slot))) => (whole, slot),
                // It has no room for a moment: what is under way makes some.
                Some((_, Err(blocked))) if !urgency.is_urgent() || !self.loads.is_idle() => return Err(blocked),
                _ => (alone, self.reserve(alone, 0, line, urgency)?),
            };
            let id = self.residents.insert(unit.content, unit.laid(), slot, Via::Disk);
            if !self.is_part(unit) && self.ram_admits(unit.content, unit.place.len) {
                self.residents.keep(id);
            }
            self.loads
                .queue_whole(Source::Disk(tier as u8), unit.place, id, &mut self.residents, asker);
            return Ok(id);
        }
        if urgency != Urgency::Guest
            && let Some(peer) = self.peer_with(alone.content, alone.place.len, line)
        {
            let stay = match self.is_part(alone) {
                true => Keep::No,
                false => self.where_to_keep(alone, actions),
            };
            let slot = match stay {
                Keep::No => self.reserve(alone, 0, line, urgency)?,
                Keep::Ram | Keep::Tier(_) => self.slot_for(alone, stay, line, urgency)?,
            };
            let id = self.residents.insert(alone.content, alone.laid(), slot, Via::Peer);
            self.settle(id, stay);
            self.loads
                .queue_whole(Source::Peer(peer), alone.place, id, &mut self.residents, asker);
            return Ok(id);
        }
        let group = self.group_bytes;
        let torn = group > 0 && !self.ram_admits(alone.content, group) && !self.has_staging_room(group, urgency);
        if torn && urgency != Urgency::Alone && !(urgency.is_urgent() && self.loads.is_idle()) {
            // Fetching a sample without its neighbours because memory is short for a moment would tear a hole into a request that is
            // wanted whole a moment later. What is under way gives memory back.
            return Err(Blocked::Memory);
        }
        while let Some(whole) = whole {
            match self.bring_block(whole, alone, line, urgency, actions) {
                Ok(Some(id)) => return Ok(id),
                Ok(None) => break,
                // Another node doesn't wait for whole room, which may never come: nothing here makes some for it, and all that ask wait behind.
                Err(_) if urgency == Urgency::Guest => break,
                // It has no room for a moment: what is under way makes some.
                Err(blocked) if !urgency.is_urgent() || !self.loads.is_idle() => return Err(blocked),
                // Reads planned further ahead are put back for it, but nothing that is kept leaves for a block of which somebody waits for a part.
                Err(_) if self.put_back_after(line) => {}
                Err(_) => break,
            }
        }
        let stay = match self.is_part(alone) {
            true => Keep::No,
            false => self.where_to_keep(alone, actions),
        };
        let slot = self.slot_for(alone, stay, line, urgency)?;
        let mut neighbours = Vec::new();
        if let Err(blocked) = self.gather(alone, line, urgency, &mut neighbours) {
            // Of a part of a block nothing else is reserved.
            self.arena.give(slot);
            neighbours
                .into_iter()
                .for_each(|(_, id)| self.residents.disinvite(id, &mut self.arena));
            return Err(blocked);
        }
        let id = self.residents.insert(alone.content, alone.laid(), slot, Via::Bucket);
        self.settle(id, stay);
        self.fetch(id, alone, neighbours, asker);
        Ok(id)
    }

    /// A sample by itself, and its block where that has others too and may come as a whole.
    fn units(&self, sample: u64, urgency: Urgency) -> (Unit, Option<Unit>) {
        let (block, siblings) = (self.library.of(sample), self.library.siblings(sample));
        let samples = siblings.end - siblings.start;
        let alone = Unit {
            content: if samples == 1 {
                Content::block(block)
            } else {
                Content::sample(sample)
            },
            samples: 1,
            place: self.library.place(sample),
            is_several: self.library.has_several(sample),
        };
        let whole = (samples > 1 && urgency != Urgency::Alone && !self.apart.contains(&block)).then(|| Unit {
            content: Content::block(block),
            samples,
            place: self.library.extent(siblings),
            is_several: false,
        });
        (alone, whole)
    }

    /// Whether it is only a part of its block.
    fn is_part(&self, unit: Unit) -> bool {
        matches!(unit.content.held(), Held::Sample(_))
    }

    /// Where in memory something that passes through goes: a sample among blocks that pass through to a disk leaves their places whole.
    fn stay_of(&self, content: Content) -> Stay {
        match content.held() {
            Held::Sample(_) if !self.tiers.is_empty() => Stay::Small,
            Held::Sample(_) | Held::Block(_) => Stay::Short,
        }
    }

    /// Brings a whole block that is going to stay somewhere, for one sample of it. `None`: it would stay nowhere.
    ///
    /// One that stays in memory serves the sample itself. One on its way to a disk tier leaves as soon as it is written, so the sample gets memory of
    /// its own from the same load: however long somebody waits for it or holds it, that takes what one sample takes.
    fn bring_block(
        &mut self,
        block: Unit,
        alone: Unit,
        line: u64,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) -> Result<Option<u32>, Blocked> {
        let stay = self.where_to_keep(block, actions);
        if stay == Keep::No {
            return Ok(None);
        }
        let asker = self.asker(line);
        // Nothing that is kept leaves for what of it nobody waits for.
        let patient = if urgency == Urgency::Guest {
            urgency
        } else {
            Urgency::Ahead
        };
        let slot = self.slot_for(block, stay, line, patient)?;
        let Keep::Tier(tier) = stay else {
            let id = self.residents.insert(block.content, block.laid(), slot, Via::Bucket);
            self.settle(id, stay);
            self.loads.queue(&[(block.place, id)], &mut self.residents, asker);
            return Ok(Some(id));
        };
        let Some(own) = self.take(alone.place.len, Stay::Small) else {
            self.arena.give(slot);
            self.tiers[usize::from(tier)].abandon(block.place.len);
            return Err(Blocked::Memory);
        };
        let passing = self.residents.insert(block.content, block.laid(), slot, Via::Bucket);
        self.settle(passing, stay);
        let id = self.residents.insert(alone.content, alone.laid(), own, Via::Bucket);
        let both = [(block.place, passing), (alone.place, id)];
        self.loads.queue(&both, &mut self.residents, asker);
        Ok(Some(id))
    }

    /// Memory for what comes from the bucket; where there is none, the room that it was to have in a disk tier is given back.
    fn slot_for(&mut self, unit: Unit, stay: Keep, line: u64, urgency: Urgency) -> Result<Slot, Blocked> {
        let len = unit.place.len;
        if stay == Keep::Ram
            && let Some(slot) = self.take(len, Stay::Long)
        {
            return Ok(slot);
        }
        // Room for the neighbours that come along, too.
        let along = if self.is_part(unit) { self.group_bytes } else { 0 };
        let slot = self.reserve(unit, along, line, urgency);
        if let (Err(_), Keep::Tier(tier)) = (&slot, stay) {
            self.tiers[usize::from(tier)].abandon(len);
        }
        slot
    }

    /// The disk tier to read a block, or `len` bytes of it, from: the fastest that has it, unless the bucket is faster by far.
    pub(super) fn best_tier(&self, block: u64, len: u64) -> Option<usize> {
        let source = |tier: usize| Source::Disk(tier as u8);
        let disk = |tier: usize| self.loads.lanes.of(source(tier));
        let holds = |&tier: &usize| self.tiers[tier].has(block) && disk(tier).is_open(self.now_ns);
        let fastest = (0..self.tiers.len())
            .filter(holds)
            .min_by(|&a, &b| disk(a).wait_s(len).total_cmp(&disk(b).wait_s(len)))?;
        (!self.leaves(source(fastest), len, disk(fastest).wait_s(len), SLOW_S)).then_some(fastest)
    }

    /// Whether the bucket is faster by far than a source that has what is wanted, and takes so long.
    pub(super) fn leaves(&self, source: Source, len: u64, takes_s: f64, patience_s: f64) -> bool {
        let (cache, bucket) = (self.loads.lanes.of(source), &self.loads.lanes.bucket);
        let brings = (cache.loads_per_s(len), bucket.loads_per_s(len));
        self.settings
            .leaves_cache(takes_s, bucket.wait_s(len), brings.0, brings.1, patience_s)
    }

    /// Queues the fetch of a new resident: in parts when it is large or several ranges, together with its neighbours otherwise.
    fn fetch(&mut self, id: u32, unit: Unit, neighbours: Vec<(Place, u32)>, asker: Asker) {
        if self.is_in_parts(unit) {
            let stretches = self.library.stretches(unit.content);
            self.loads
                .queue_parts(&stretches, id, &mut self.residents, asker, false);
            return;
        }
        let mut group = neighbours;
        group.push((unit.place, id));
        group.sort_unstable_by_key(|(place, _)| place.offset);
        self.loads.queue(&group, &mut self.residents, asker);
    }

    fn is_in_parts(&self, unit: Unit) -> bool {
        unit.is_several || unit.place.len > self.settings.part_bytes + self.settings.part_bytes / 2
    }

    /// Residents for those neighbours of a sample in its block that are not here and will be read soon, on either side until a gap is too wide for one
    /// request: into `group`.
    ///
    /// # Errors
    /// When [`Scheduler::invite`] is blocked; `group` holds those before.
    fn gather(
        &mut self,
        unit: Unit,
        line: u64,
        urgency: Urgency,
        group: &mut Vec<(Place, u32)>,
    ) -> Result<(), Blocked> {
        let Held::Sample(sample) = unit.content.held() else {
            return Ok(());
        };
        if urgency == Urgency::Alone || self.is_in_parts(unit) {
            return Ok(());
        }
        let (siblings, gap_bytes) = (self.library.siblings(sample), self.settings.gap_bytes);
        let (mut start, mut end) = (unit.place.offset, unit.place.offset + unit.place.len);
        for next in sample + 1..siblings.end.min(sample + 1 + MOST_NEIGHBOURS) {
            let place = self.library.place(next);
            if place.offset - end > gap_bytes {
                break;
            }
            if let Some(id) = self.invite(next, place, line, urgency)? {
                end = place.offset + place.len;
                group.push((place, id));
            }
        }
        for next in (siblings.start.max(sample.saturating_sub(MOST_NEIGHBOURS))..sample).rev() {
            let place = self.library.place(next);
            if start - (place.offset + place.len) > gap_bytes {
                break;
            }
            if let Some(id) = self.invite(next, place, line, urgency)? {
                start = place.offset;
                group.push((place, id));
            }
        }
        Ok(())
    }

    /// A resident for a neighbour that is not here and comes along in a request, if it is read before staging turns over and few others are waited for like that.
    ///
    /// # Errors
    /// It has room, but no free stretch of memory is long enough, and what is under way or planned is going to give some back. Without this neighbour the
    /// request would be torn, and how many requests there are would depend on who gave memory back when.
    fn invite(&mut self, sample: u64, place: Place, line: u64, urgency: Urgency) -> Result<Option<u32>, Blocked> {
        if place.len == 0 || self.residents.find(Content::sample(sample)).is_some() {
            return Ok(None);
        }
        let expected = self.residents.expected_bytes + reserved_bytes(place.len) <= self.staging_bytes / 4;
        if !expected || !self.has_staging_room(place.len, Urgency::Ahead) || !self.read_soon(sample, line) {
            return Ok(None);
        }
        if !self.make_staging_room(place.len, true, self.passing_bytes(Urgency::Ahead)) {
            return Ok(None);
        }
        let Some(slot) = self.take(place.len, self.stay_of(Content::sample(sample))) else {
            let comes_back = match urgency {
                Urgency::Ahead => self.windows.ahead > 0,
                Urgency::Waited(_) | Urgency::Loose(_) => !self.loads.is_idle(),
                Urgency::Guest | Urgency::Alone => false,
            };
            return if comes_back { Err(Blocked::Memory) } else { Ok(None) };
        };
        let id = self
            .residents
            .insert(Content::sample(sample), (1, place.offset), slot, Via::Bucket);
        self.residents.expect(id);
        Ok(Some(id))
    }

    /// Whether this node reads a sample again before staging turns over.
    pub(super) fn read_soon(&mut self, sample: u64, line: u64) -> bool {
        let (step, place) = self.windows.parts(line);
        let mean = self.library.place(sample).len.max(1);
        let staging_bytes = self.staging_bytes;
        let Some(reader) = self.windows.reader_at_mut(place) else {
            return false;
        };
        let (epoch, batch) = reader.batch_of(step);
        let global = u64::from(reader.split.global_batch());
        let batches = (staging_bytes / mean / global.max(1)).max(1);
        let Some(own) = reader.own(sample) else { return false };
        let Some(position) = reader.epoch(epoch).and_then(|order| order.position_of(own)) else {
            return false;
        };
        let (at, rank) = (reader.split.batch_of(position), reader.split.rank_of(position));
        at >= batch && at < batch + batches && reader.ranks.contains(&rank)
    }

    pub(super) fn settle(&mut self, id: u32, stay: Keep) {
        match stay {
            Keep::Ram => self.residents.keep(id),
            Keep::Tier(tier) => self.residents.get_mut(id).to_tier = Some(tier),
            Keep::No => {}
        }
    }

    /// Whether the RAM tier has room for so many bytes of a content more.
    pub(super) fn ram_admits(&self, content: Content, len: u64) -> bool {
        let limit = match self.settings.policy.retention() {
            Retention::Nothing => return false,
            Retention::Fifo(_) if !self.tiers.is_empty() => return false,
            Retention::Pinned => self.ram_bytes.saturating_sub(self.staging_bytes + self.yielded_bytes()),
            Retention::Fifo(_) | Retention::Lru => self.ram_bytes.saturating_sub(self.staging_bytes),
        };
        let all = self.residents.kept_bytes + reserved_bytes(len);
        all <= limit && all + self.residents.claimed_by_others(content) <= limit
    }

    /// Where a block that comes from the bucket stays. Reserves its room in a disk tier.
    pub(super) fn where_to_keep(&mut self, unit: Unit, actions: &mut Vec<Action>) -> Keep {
        let (content, len) = (unit.content, unit.place.len);
        if !self.is_ours(content) {
            return self.where_to_copy(len);
        }
        match self.settings.policy.retention() {
            Retention::Nothing => return Keep::No,
            Retention::Pinned => {}
            Retention::Lru => self.evict_for(content, len, u64::MAX),
            Retention::Fifo(items) if self.tiers.is_empty() => {
                self.evict_for(content, len, if items == 0 { u64::MAX } else { items })
            }
            Retention::Fifo(items) => self.evict_from_tier(len, items, actions),
        }
        if self.is_for_memory(content) && self.ram_admits(content, len) {
            return Keep::Ram;
        }
        match self.tier_admits(len) {
            Some(tier) => Keep::Tier(tier),
            None => Keep::No,
        }
    }

    /// Where a copy of what another node keeps stays, for one copy comes before any replica: on a disk, where that takes no room from anything.
    fn where_to_copy(&mut self, len: u64) -> Keep {
        match self.group.copies {
            true => self.tier_admits(len).map_or(Keep::No, Keep::Tier),
            false => Keep::No,
        }
    }

    /// Reserves room in the first disk tier that has it.
    fn tier_admits(&mut self, len: u64) -> Option<u8> {
        self.tiers
            .iter_mut()
            .position(|tier| tier.admit(len))
            .map(|tier| tier as u8)
    }

    /// Evicts the oldest until one more of `len` bytes fits the RAM tier.
    pub(super) fn evict_for(&mut self, content: Content, len: u64, items: u64) {
        while (!self.ram_admits(content, len) || self.residents.kept_samples >= items)
            && self.residents.evict_one(&mut self.arena)
        {}
    }

    pub(super) fn evict_from_tier(&mut self, len: u64, items: u64, actions: &mut Vec<Action>) {
        let tier = &mut self.tiers[0];
        while items > 0 && tier.count() >= items || !tier.fits(len) {
            let Some((block, old)) = tier.pop_oldest() else { break };
            tier.remove(block, old);
            actions.push(self.loads.action(Command::Forget { tier: 0, block }));
        }
    }

    /// Whether so much more may pass through, when all that rests leaves.
    pub(super) fn has_staging_room(&self, len: u64, urgency: Urgency) -> bool {
        let held = self.passing() - self.residents.resting_bytes;
        held + reserved_bytes(len) <= self.passing_bytes(urgency)
    }

    /// The bytes that pass through now, or rest.
    fn passing(&self) -> u64 {
        self.arena.used_bytes() - self.residents.kept_bytes - self.loads.twin_bytes
    }

    /// The bytes that may pass through at once. An eighth of staging stays free: slots of all sizes come and go, and without slack no hole fits the
    /// next one. Look-ahead leaves a quarter to what peers ask for, which never waits for a peer itself: nodes whose memory is full of what each is to have
    /// from the others would wait for each other.
    fn passing_bytes(&self, urgency: Urgency) -> u64 {
        let guests = match urgency {
            Urgency::Ahead if !self.group.is_alone() => self.staging_bytes / 4,
            _ => 0,
        };
        self.staging_bytes - self.staging_bytes / 8 - guests
    }

    /// Lets what rests leave, oldest first, until `len` bytes more may pass through, `most` of them. False: too much is held. For what is `urgent`, all leaves
    /// that can.
    fn make_staging_room(&mut self, len: u64, urgent: bool, most: u64) -> bool {
        let held = self.passing() - self.residents.resting_bytes;
        if !urgent && held + reserved_bytes(len) > most {
            return false;
        }
        while self.passing() + reserved_bytes(len) > most {
            if !self.residents.drop_resting(urgent, &mut self.arena) {
                return false;
            }
        }
        true
    }

    /// Lets something leave that nothing holds: one that rests, or else a kept one. False: there is none.
    pub(super) fn make_any_room(&mut self) -> bool {
        self.residents.drop_resting(true, &mut self.arena) || self.residents.evict_one(&mut self.arena)
    }

    /// A slot, if there is one when what rests leaves.
    fn take(&mut self, len: u64, stay: Stay) -> Option<Slot> {
        loop {
            let slot = Residents::take(&mut self.arena, len, stay, self.ram_bytes);
            if slot.is_some() || !self.residents.drop_resting(true, &mut self.arena) {
                return slot;
            }
        }
    }

    /// A slot for something that passes through. For what is waited for, staging may grow into the RAM tier, kept samples leave, and
    /// reads planned further ahead are put back.
    fn reserve(&mut self, unit: Unit, along: u64, line: u64, urgency: Urgency) -> Result<Slot, Blocked> {
        let (len, stay) = (unit.place.len, self.stay_of(unit.content));
        let urgent = urgency.is_urgent();
        if !self.make_staging_room(len + along, urgent, self.passing_bytes(urgency)) && !urgent {
            return Err(Blocked::Memory);
        }
        loop {
            if let Some(slot) = self.take(len, stay) {
                return Ok(slot);
            }
            if !urgent {
                return Err(Blocked::Memory);
            }
            // Samples on their way to a disk that keeps up leave by themselves; a kept one that left for them would be fetched again.
            if self.loads.writing > 0 && self.now_ns - self.loads.written_ns < DISK_PATIENCE_NS {
                return Err(Blocked::Memory);
            }
            if self.residents.forget_expected(&mut self.arena) {
                continue;
            }
            if self.put_back_after(line) || self.yield_kept() || self.put_back_passed(line) {
                continue;
            }
            // Only leases hold memory, and who holds them may wait for this very read.
            if !self.loads.is_idle() {
                return Err(Blocked::Memory);
            }
            let turn = match urgency {
                Urgency::Waited(request) => Some((Turn::of_entry(line, self.requests.is_awaited(request)), request)),
                Urgency::Loose(request) => Some((
                    Turn::of_loose(line, request, self.requests.is_awaited(request)),
                    request,
                )),
                Urgency::Ahead | Urgency::Guest | Urgency::Alone => None,
            };
            match turn {
                Some((turn, request)) if self.displace_after(turn, request) => {}
                // Of memory that became less they may hold all: this read has some of what there was before.
                _ => return Residents::take(&mut self.arena, len, stay, u64::MAX).ok_or(Blocked::Memory),
            }
        }
    }

    /// Has a kept sample leave for what is waited for. It isn't replaced for a while: another one would leave soon, and each costs a request.
    fn yield_kept(&mut self) -> bool {
        let before = self.residents.kept_bytes;
        let is_gone = self.residents.evict_one(&mut self.arena);
        let yielded_bytes = self.yielded_bytes() + before - self.residents.kept_bytes;
        self.yielded = (yielded_bytes, self.now_ns);
        is_gone
    }

    /// Of the memory of what is kept, what it has yielded of late.
    fn yielded_bytes(&self) -> u64 {
        let (bytes, at_ns) = self.yielded;
        if self.now_ns - at_ns < YIELDED_NS { bytes } else { 0 }
    }

    /// Puts reads back that nobody waits for, the furthest ahead of their consumer first, until something was freed. Reads before `line` in its own
    /// rank's window stay. False: there is nothing to free.
    fn put_back_after(&mut self, line: u64) -> bool {
        let before = self.arena.used_bytes();
        let (step, own) = self.windows.parts(line);
        let mut ends = self.windows.ends();
        let may = |place: usize, end: u64| place != own || end > step + 1;
        while let Some(freed) = self.put_furthest_back(&mut ends, may, before) {
            if freed {
                return true;
            }
        }
        false
    }

    /// Puts reads back that the consumer of `line` has come to or passed without asking for them, until something was freed.
    fn put_back_passed(&mut self, line: u64) -> bool {
        let before = self.arena.used_bytes();
        let (step, own) = self.windows.parts(line);
        let mut passed = self.windows.of(own).head()..=step;
        passed.any(|step| self.put_line_back(self.windows.line_at(own, step), false, before))
            || self.residents.evict_one(&mut self.arena)
    }

    /// Puts the line back that is the furthest ahead of its consumer, of those before `ends` that `may` leave: place and the step after it. Tells whether
    /// less than `before` bytes are used then; `None`: there is no such line.
    fn put_furthest_back(&mut self, ends: &mut [u64], may: impl Fn(usize, u64) -> bool, before: u64) -> Option<bool> {
        let lead = |place: usize| ends[place].saturating_sub(self.windows.of(place).head());
        let left = (0..ends.len()).filter(|&place| lead(place) > 0 && may(place, ends[place]));
        let place = left.max_by_key(|&place| (lead(place), place))?;
        ends[place] -= 1;
        let freed = self.put_line_back(self.windows.line_at(place, ends[place]), false, before);
        if !freed && self.windows.of(place).end() == ends[place] + 1 {
            // Laid out again when its turn comes.
            self.windows.retract(place);
        }
        Some(freed)
    }

    /// Lets memory go until no more is used than there is: what nothing holds, and then what is planned for reads that are far ahead.
    pub(super) fn shrink(&mut self) {
        let mut ends = Vec::new();
        while self.arena.used_bytes() > self.ram_bytes {
            if self.make_any_room() {
                continue;
            }
            if ends.is_empty() {
                ends = self.windows.ends();
            }
            if self.put_furthest_back(&mut ends, |_, _| true, 0).is_none() {
                return;
            }
        }
    }

    /// For a read of a request that would otherwise wait for ever: what others wait for that comes after its turn is put back, reads of their own first and
    /// then those of the plan, last ones first. The turns decide, so two never take memory from each other in turn. False: there is nothing to free.
    fn displace_after(&mut self, turn: Turn, request: u64) -> bool {
        let before = self.arena.used_bytes();
        let (residents, windows) = (&self.residents, &self.windows);
        let later = |id: u64, place: usize, is_awaited| {
            id != request && Turn::of_loose(windows.head_line(place), id, is_awaited) > turn
        };
        for resident in self.requests.displace(later, |id| residents.ready(id).is_some()) {
            self.unuse(resident);
        }
        if self.make_any_room() || self.arena.used_bytes() < before {
            return true;
        }
        let mut lines: Vec<(Turn, u64)> = self.windows.places().flat_map(|place| self.lines_of(place)).collect();
        lines.retain(|&(of_line, _)| of_line > turn);
        lines.sort_unstable_by(|one, other| other.cmp(one));
        lines
            .into_iter()
            .any(|(_, line)| self.put_line_back(line, true, before))
    }

    /// The lines that are laid out for a rank, each with the turn of who comes first there.
    fn lines_of(&self, place: usize) -> impl Iterator<Item = (Turn, u64)> {
        let window = self.windows.of(place);
        (window.head()..window.end()).map(move |step| {
            let line = self.windows.line_at(place, step);
            let entries = self.windows.peek(line).map_or(&[][..], |line| &line.entries);
            let is_awaited = |it: &Entry| it.waiter != 0 && self.requests.is_awaited(it.waiter - 1);
            (Turn::of_entry(line, entries.iter().any(is_awaited)), line)
        })
    }

    /// Puts a line's reads back, last ones first, until less than `before` bytes are used. False: it is all back, and it wasn't enough.
    fn put_line_back(&mut self, line: u64, waited: bool, before: u64) -> bool {
        let count = self.windows.peek(line).map_or(0, |line| line.entries.len());
        (0..count)
            .rev()
            .any(|entry| self.put_back(line, entry, waited) && self.arena.used_bytes() < before)
    }
}

#[cfg(test)]
mod tests;
