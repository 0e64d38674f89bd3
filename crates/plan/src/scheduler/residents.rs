//! What is in memory: an entry for each block, or for each sample of one that is here in part, from the moment memory is reserved until it is given back.
//!
//! A resident is held by three kinds of owners, counted apart: *uses* (planned reads in the window), *leases* (delivered, not given back) and
//! *writes* (on their way to a disk tier). One that is *kept* stays without any. Another one *passes through*: when nothing holds it any more it rests
//! until its memory is needed, and then the one whose last read was planned first leaves first. What is in memory when a read is planned thus follows
//! from the order and the budget, however late a consumer gives its leases back. Where the policy keeps nothing beyond use, it leaves at once.
//! Both kinds form a list each, oldest first.

use super::index::Index;
use crate::action::{Failure, Handle, Via};
use crate::arena::{Arena, Slot, Stay, reserved_bytes};
use crate::blocks::{Content, Held};
use std::hint::black_box;

pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Vacant,
    Loading,
    Ready,
    Failed(Failure),
}

/// How a resident stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stays {
    /// As long as something holds it.
    Held,
    /// Nothing holds it: until its memory is needed.
    Rests,
    /// In the RAM tier.
    Kept,
    /// It came along with a neighbour: until its read, which is near, is planned.
    Expected,
}

/// Requests that wait for a resident: nearly always one, so that one needs no allocation.
#[derive(Default)]
struct Waiters {
    first: Option<u64>,
    more: Vec<u64>,
}

impl Waiters {
    fn push(&mut self, request: u64) {
        match self.first {
            None => self.first = Some(request),
            Some(_) => self.more.push(request),
        }
    }

    fn forget(&mut self, request: u64) {
        self.more.retain(|&other| other != request);
        self.first = self.first.filter(|&first| first != request).or_else(|| self.more.pop());
    }

    fn take(&mut self) -> impl Iterator<Item = u64> + use<> {
        self.first.take().into_iter().chain(std::mem::take(&mut self.more))
    }
}

/// A resident whose bytes are all there: what can be delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready(u32);

impl Ready {
    pub fn id(self) -> u32 {
        self.0
    }
}

/// One cache line: with millions of them, that line's way from memory is most of what a hit costs.
#[repr(align(64))]
pub(super) struct Resident {
    pub content: Content,
    pub slot: Slot,
    pub generation: u32,
    /// Loads that must still arrive.
    pub parts: u16,
    /// Of its loaded samples, those that nobody has had yet: their use is what the load was for.
    pub unread: u16,
    pub uses: u32,
    pub leases: u32,
    previous: u32,
    next: u32,
    pub writes: u8,
    pub state: State,
    stays: Stays,
    /// Goes to this disk tier once it is there.
    pub to_tier: Option<u8>,
    pub via: Via,
    pub attempt: u8,
    /// Requests wait until it is there: [`Residents::waiters`].
    pub waiting: bool,
}

impl Resident {
    /// Whether anybody wants its bytes.
    pub fn is_wanted(&self) -> bool {
        self.uses > 0 || matches!(self.stays, Stays::Kept | Stays::Expected) || self.to_tier.is_some()
    }

    pub fn is_kept(&self) -> bool {
        self.stays == Stays::Kept
    }

    /// One of its samples is used: what that use cost.
    pub fn used(&mut self) -> Via {
        if self.unread == 0 {
            return Via::Ram;
        }
        self.unread -= 1;
        self.via
    }

    fn is_held(&self) -> bool {
        let expected = self.stays == Stays::Expected && !matches!(self.state, State::Failed(_));
        self.uses > 0 || self.leases > 0 || self.writes > 0 || self.parts > 0 || expected
    }
}

/// Residents looked through for one answer at most: a tenth of a millisecond.
const MOST_LOOKED_THROUGH: usize = 16_384;

const _: () = assert!(size_of::<Resident>() == 64, "a resident fills one cache line");

/// The ends of a list.
struct Ends {
    oldest: u32,
    newest: u32,
}

impl Default for Ends {
    fn default() -> Self {
        Ends {
            oldest: NONE,
            newest: NONE,
        }
    }
}

/// What is kept of a data set.
struct KeptSet {
    first_block: u64,
    first_sample: u64,
    kept_bytes: u64,
    /// What of the RAM tier others leave to it.
    claim: u64,
}

#[derive(Default)]
pub(super) struct Residents {
    table: Vec<Resident>,
    /// Samples of each and where its first byte lies in its object, by its place: apart from the table, for where all have one sample nobody looks.
    shared: Vec<(u16, u64)>,
    are_shared: bool,
    /// Requests to tell when a resident is there, by its place.
    waiters: Vec<Waiters>,
    vacant: Vec<u32>,
    by_content: Index,
    kept: Ends,
    passing: Ends,
    /// Whether what passes through may rest.
    rests: bool,
    resting: u64,
    /// Bytes that nothing holds and that leave as soon as their memory is needed.
    pub resting_bytes: u64,
    /// Bytes that are held only because they are expected to be read soon.
    pub expected_bytes: u64,
    /// Kept bytes, rounded as the arena does.
    pub kept_bytes: u64,
    kept_count: u64,
    pub kept_samples: u64,
    /// Of each data set.
    sets: Vec<KeptSet>,
    /// Bytes of leased residents that are not kept: memory that can't be planned with.
    pub leased_bytes: u64,
    /// What consumers hold of all residents, of kept ones too.
    pub held_bytes: u64,
    pub leases: u64,
}

impl Residents {
    pub fn new(rests: bool) -> Self {
        Residents {
            rests,
            ..Residents::default()
        }
    }

    /// From now on some may hold several samples.
    pub fn share(&mut self) {
        self.are_shared = true;
        self.shared.resize(self.table.len(), (1, 0));
    }

    pub fn find(&self, content: Content) -> Option<u32> {
        self.by_content
            .find(content.number(), |id| self.get(id).content == content)
    }

    /// Brings what is known of a content close; whether it is in memory. Callers that are about to go through many do this for all of them
    /// first: such look-ups don't depend on each other, so their cache misses overlap, while one at a time each is waited for.
    pub fn warm(&self, content: Content) -> bool {
        black_box(self.find(content)).is_some()
    }

    pub fn get(&self, id: u32) -> &Resident {
        &self.table[id as usize]
    }

    pub fn get_mut(&mut self, id: u32) -> &mut Resident {
        &mut self.table[id as usize]
    }

    /// The resident of a handle, unless it has left since.
    pub fn of(&self, handle: Handle) -> Option<u32> {
        let resident = self.table.get(handle.index as usize)?;
        (resident.generation == handle.generation && resident.state != State::Vacant).then_some(handle.index)
    }

    pub fn handle(&self, id: u32) -> Handle {
        Handle {
            index: id,
            generation: self.get(id).generation,
        }
    }

    /// Takes it in, with so many samples, the first byte of which lies at `offset` of its object.
    pub fn insert(&mut self, content: Content, (samples, offset): (u64, u64), slot: Slot, via: Via) -> u32 {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.table.push(Resident {
                content,
                slot,
                generation: 0,
                state: State::Vacant,
                parts: 0,
                uses: 0,
                leases: 0,
                unread: 0,
                writes: 0,
                stays: Stays::Held,
                to_tier: None,
                via,
                attempt: 0,
                waiting: false,
                previous: NONE,
                next: NONE,
            });
            self.waiters.push(Waiters::default());
            (self.table.len() - 1) as u32
        });
        let resident = &mut self.table[id as usize];
        resident.content = content;
        resident.slot = slot;
        if self.are_shared {
            self.shared.resize(self.table.len(), (1, 0));
            self.shared[id as usize] = (u16::try_from(samples).unwrap_or(u16::MAX), offset);
        }
        self.loads_from(id, via);
        self.by_content.insert(content.number(), id);
        self.link(id);
        id
    }

    fn list(&mut self, id: u32) -> &mut Ends {
        if self.get(id).is_kept() {
            &mut self.kept
        } else {
            &mut self.passing
        }
    }

    /// Appends it to the list that it belongs to.
    fn link(&mut self, id: u32) {
        let list = self.list(id);
        let previous = std::mem::replace(&mut list.newest, id);
        if previous == NONE {
            list.oldest = id;
        } else {
            self.get_mut(previous).next = id;
        }
        let resident = self.get_mut(id);
        (resident.previous, resident.next) = (previous, NONE);
    }

    fn unlink(&mut self, id: u32) {
        let (previous, next) = (self.get(id).previous, self.get(id).next);
        if previous == NONE {
            self.list(id).oldest = next;
        } else {
            self.get_mut(previous).next = next;
        }
        if next == NONE {
            self.list(id).newest = previous;
        } else {
            self.get_mut(next).previous = previous;
        }
    }

    /// A read of it is planned: of what passes through, it leaves last.
    pub fn plan_use(&mut self, id: u32) {
        self.wake(id);
        self.get_mut(id).uses += 1;
        if !self.get(id).is_kept() && self.passing.newest != id {
            self.unlink(id);
            self.link(id);
        }
    }

    /// It neither rests nor is expected any more.
    fn wake(&mut self, id: u32) {
        let bytes = reserved_bytes(self.get(id).slot.len);
        match self.get(id).stays {
            Stays::Rests => {
                self.resting -= 1;
                self.resting_bytes -= bytes;
            }
            Stays::Expected => self.expected_bytes -= bytes,
            Stays::Held | Stays::Kept => return,
        }
        self.get_mut(id).stays = Stays::Held;
    }

    /// A new one that came along with a neighbour is held until its read is planned.
    pub fn expect(&mut self, id: u32) {
        self.get_mut(id).stays = Stays::Expected;
        self.expected_bytes += reserved_bytes(self.get(id).slot.len);
    }

    /// One that was to come along doesn't after all: nothing of it was loaded.
    pub fn disinvite(&mut self, id: u32, arena: &mut Arena) {
        self.wake(id);
        self.drop_if_idle(id, arena);
    }

    /// Nothing is expected any more. False: nothing was.
    pub fn forget_expected(&mut self, arena: &mut Arena) -> bool {
        let (any, mut at) = (self.expected_bytes > 0, self.passing.oldest);
        while self.expected_bytes > 0 && at != NONE {
            let (id, next) = (at, self.get(at).next);
            if self.get(id).stays == Stays::Expected {
                self.wake(id);
                self.let_go(id, arena);
            }
            at = next;
        }
        any
    }

    /// A request waits for a resident.
    pub fn wait(&mut self, id: u32, request: u64) {
        self.get_mut(id).waiting = true;
        self.waiters[id as usize].push(request);
    }

    /// A request doesn't wait any more: its number may be used again.
    pub fn unwait(&mut self, id: u32, request: u64) {
        if let Some(resident) = self.table.get_mut(id as usize)
            && resident.waiting
        {
            self.waiters[id as usize].forget(request);
            resident.waiting = self.waiters[id as usize].first.is_some();
        }
    }

    /// The requests that wait for a resident.
    pub fn waiters(&self, id: u32) -> impl Iterator<Item = u64> {
        let waiters = self.get(id).waiting.then(|| &self.waiters[id as usize]);
        waiters
            .into_iter()
            .flat_map(|waiters| waiters.first.iter().chain(&waiters.more).copied())
    }

    /// The requests that waited for a resident; none from now on.
    pub fn told(&mut self, id: u32) -> impl Iterator<Item = u64> + use<> {
        let waited = std::mem::take(&mut self.get_mut(id).waiting);
        waited.then(|| self.waiters[id as usize].take()).into_iter().flatten()
    }

    /// Marks it kept, as the newest.
    pub fn keep(&mut self, id: u32) {
        debug_assert!(!self.get(id).is_kept());
        self.wake(id);
        self.unlink(id);
        self.get_mut(id).stays = Stays::Kept;
        self.link(id);
        let bytes = reserved_bytes(self.get(id).slot.len);
        let leased = if self.get(id).leases > 0 { bytes } else { 0 };
        let samples = self.samples(id);
        self.leased_bytes -= leased;
        if let Some(at) = self.set_of(self.get(id).content) {
            self.sets[at].kept_bytes += bytes;
        }
        self.kept_bytes += bytes;
        self.kept_count += 1;
        self.kept_samples += u64::from(samples);
    }

    /// Samples in it.
    pub fn samples(&self, id: u32) -> u16 {
        if self.are_shared { self.shared[id as usize].0 } else { 1 }
    }

    /// Where its first byte lies in its object.
    pub fn offset(&self, id: u32) -> u64 {
        self.shared[id as usize].1
    }

    /// Its bytes are going to come from there, all of them.
    pub fn loads_from(&mut self, id: u32, via: Via) {
        let unread = self.samples(id);
        let it = self.get_mut(id);
        (it.state, it.via, it.unread) = (State::Loading, via, unread);
    }

    /// It was to come from a peer, and the bucket brings it.
    pub fn had_from_bucket(&mut self, id: u32) {
        let it = self.get_mut(id);
        if it.via == Via::Peer && it.state == State::Loading {
            it.via = Via::Bucket;
        }
    }

    /// Bytes that its leases hold: of a block each sample's its part, of a sample any number what one does.
    fn all_leased(&self, id: u32) -> u64 {
        let it = self.get(id);
        let bytes = reserved_bytes(it.slot.len);
        match self.samples(id) {
            1 => bytes * u64::from(it.leases.min(1)),
            samples => u64::from(it.leases.min(samples.into())) * (bytes / u64::from(samples)),
        }
    }

    /// Makes it pass through again.
    fn unkeep(&mut self, id: u32) {
        debug_assert!(self.get(id).is_kept());
        self.unlink(id);
        self.get_mut(id).stays = Stays::Held;
        self.link(id);
        let bytes = reserved_bytes(self.get(id).slot.len);
        let leased = if self.get(id).leases > 0 { bytes } else { 0 };
        let samples = self.samples(id);
        self.leased_bytes += leased;
        if let Some(at) = self.set_of(self.get(id).content) {
            self.sets[at].kept_bytes -= bytes;
        }
        self.kept_bytes -= bytes;
        self.kept_count -= 1;
        self.kept_samples -= u64::from(samples);
    }

    /// The data sets there are, in the order of their numbers: first block, first sample and claim.
    pub fn claims(&mut self, sets: impl Iterator<Item = (u64, u64, u64)>) {
        let before = std::mem::take(&mut self.sets);
        let set = |(first_block, first_sample, claim)| {
            let known = before.iter().find(|set| set.first_block == first_block);
            KeptSet {
                first_block,
                first_sample,
                kept_bytes: known.map_or(0, |set| set.kept_bytes),
                claim,
            }
        };
        self.sets = sets.map(set).collect();
    }

    /// Which data set a content is of.
    fn set_of(&self, content: Content) -> Option<usize> {
        let after = match content.held() {
            _ if self.sets.len() == 1 => 1,
            Held::Block(block) => self.sets.partition_point(|set| set.first_block <= block),
            Held::Sample(sample) => self.sets.partition_point(|set| set.first_sample <= sample),
        };
        after.checked_sub(1)
    }

    /// Bytes that other data sets than that of a content have a claim to, and don't keep yet.
    pub fn claimed_by_others(&self, content: Content) -> u64 {
        if self.sets.len() < 2 {
            return 0;
        }
        let own = self.set_of(content);
        let others = (0..).zip(&self.sets).filter(|(at, _)| Some(*at) != own);
        others.map(|(_, set)| set.claim.saturating_sub(set.kept_bytes)).sum()
    }

    /// Moves a kept one to the newest end.
    pub fn refresh(&mut self, id: u32) {
        if self.get(id).is_kept() && self.kept.newest != id {
            self.unlink(id);
            self.link(id);
        }
    }

    /// A resident as one that can be delivered; `None`: its bytes aren't all there.
    pub fn ready(&self, id: u32) -> Option<Ready> {
        let resident = self.table.get(id as usize)?;
        (resident.state == State::Ready).then_some(Ready(id))
    }

    pub fn lease(&mut self, ready: Ready) -> Handle {
        let id = ready.0;
        let before = self.all_leased(id);
        self.get_mut(id).leases += 1;
        self.held_bytes += self.all_leased(id) - before;
        self.leases += 1;
        let it = self.get(id);
        if it.leases == 1 && !it.is_kept() {
            self.leased_bytes += reserved_bytes(it.slot.len);
        }
        self.handle(id)
    }

    /// Bytes of the stretches of an arena of `capacity` that no consumer holds a part of. `None`: there are too many residents to look through.
    pub fn unheld(&self, capacity: u64) -> Option<impl Iterator<Item = u64>> {
        if self.table.len() > MOST_LOOKED_THROUGH {
            return None;
        }
        let held = self.table.iter().filter(|it| it.leases > 0);
        let mut held: Vec<(u64, u64)> = held
            .map(|it| (it.slot.offset, it.slot.offset + reserved_bytes(it.slot.len)))
            .collect();
        held.sort_unstable();
        let mut end_of_last = 0;
        Some(held.into_iter().chain([(capacity, capacity)]).map(move |(start, end)| {
            let unheld = start - end_of_last;
            end_of_last = end;
            unheld
        }))
    }

    /// Takes a lease back; false when there was none.
    pub fn unlease(&mut self, id: u32) -> bool {
        if self.get(id).leases == 0 {
            return false;
        }
        let before = self.all_leased(id);
        self.get_mut(id).leases -= 1;
        self.held_bytes -= before - self.all_leased(id);
        self.leases -= 1;
        let it = self.get(id);
        if it.leases == 0 && !it.is_kept() {
            self.leased_bytes -= reserved_bytes(it.slot.len);
        }
        true
    }

    /// Something let go of it: unless something else holds it or it is kept, it rests, or leaves.
    pub fn let_go(&mut self, id: u32, arena: &mut Arena) {
        let resident = self.get(id);
        let rests = self.rests && resident.state == State::Ready && resident.slot.len > 0;
        if !rests || resident.is_kept() || resident.is_held() {
            self.drop_if_idle(id, arena);
        } else if resident.stays == Stays::Held {
            self.resting_bytes += reserved_bytes(resident.slot.len);
            self.resting += 1;
            self.get_mut(id).stays = Stays::Rests;
        }
    }

    /// Returns the slot to the arena when nothing holds the resident any more, without rest.
    pub fn drop_if_idle(&mut self, id: u32, arena: &mut Arena) {
        let r = self.get(id);
        if r.state == State::Vacant || r.is_held() || (r.is_kept() && r.state == State::Ready) {
            return;
        }
        if r.is_kept() {
            self.unkeep(id);
        }
        self.wake(id);
        self.unlink(id);
        let resident = self.get_mut(id);
        resident.state = State::Vacant;
        resident.generation = resident.generation.wrapping_add(1);
        resident.to_tier = None;
        resident.attempt = 0;
        let (content, slot) = (resident.content, resident.slot);
        drop(self.told(id));
        self.by_content.remove(content.number(), id);
        arena.give(slot);
        self.vacant.push(id);
    }

    /// Lets the oldest leave that rests. Held ones met on the way, which a consumer holds for long, become newest; one on its way to a disk tier will rest
    /// soon, so unless it is `urgent` its turn is waited for. What a peer is to bring isn't: the peer may wait for memory here. False: there is none.
    pub fn drop_resting(&mut self, urgent: bool, arena: &mut Arena) -> bool {
        while self.resting > 0 {
            let id = self.passing.oldest;
            let oldest = self.get(id);
            if oldest.stays == Stays::Rests {
                self.drop_if_idle(id, arena);
                return true;
            }
            let rests_soon = oldest.writes > 0 || oldest.to_tier.is_some() && oldest.via != Via::Peer;
            if !urgent && rests_soon {
                return false;
            }
            self.unlink(id);
            self.link(id);
        }
        false
    }

    /// Evicts the oldest kept resident that nothing holds. Held ones met on the way become newest. False: there is none.
    pub fn evict_one(&mut self, arena: &mut Arena) -> bool {
        for _ in 0..self.kept_count {
            let id = self.kept.oldest;
            if self.get(id).is_held() || self.get(id).state != State::Ready {
                self.refresh(id);
                continue;
            }
            self.unkeep(id);
            self.drop_if_idle(id, arena);
            return true;
        }
        false
    }

    /// Of some contents everything leaves that nothing holds, and the rest is kept no more.
    pub fn forget(&mut self, arena: &mut Arena, is_gone: impl Fn(Content) -> bool) {
        for id in 0..self.table.len() as u32 {
            let it = self.get(id);
            if it.state == State::Vacant || !is_gone(it.content) {
                continue;
            }
            if it.is_kept() {
                self.unkeep(id);
            }
            self.drop_if_idle(id, arena);
        }
    }

    /// Of what is kept only some stays so; the rest passes through like all else.
    pub fn keep_only(&mut self, arena: &mut Arena, stays: impl Fn(Content) -> bool) {
        for id in 0..self.table.len() as u32 {
            let it = self.get(id);
            if it.state != State::Vacant && it.is_kept() && !stays(it.content) {
                self.unkeep(id);
                self.let_go(id, arena);
            }
        }
    }

    /// Whether anything is in memory, or on its way, of some contents.
    pub fn any(&self, is_it: impl Fn(Content) -> bool) -> bool {
        let mut there = self.table.iter().filter(|it| it.state != State::Vacant);
        there.any(|it| is_it(it.content))
    }

    /// Takes a slot, counting against `limit_bytes` for the whole arena.
    pub fn take(arena: &mut Arena, len: u64, stay: Stay, limit_bytes: u64) -> Option<Slot> {
        if arena.used_bytes() + reserved_bytes(len) > limit_bytes {
            return None;
        }
        arena.take(len, stay)
    }

    /// Contents in memory, whatever their state.
    pub fn count(&self) -> usize {
        self.by_content.len()
    }
}

#[cfg(test)]
mod tests;
