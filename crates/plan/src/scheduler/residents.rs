//! The samples in memory: one entry each, from the moment memory is reserved until it is given back.
//!
//! A resident is held by three kinds of owners, counted apart: *uses* (planned reads in the window), *leases* (delivered, not given back) and
//! *writes* (on their way to a disk tier). One that is *kept* stays without any. When nothing holds it and it isn't kept, its slot returns to the
//! arena at once. Kept residents form a list, oldest first, for the policies that evict and for making room in an emergency.

use super::index::Index;
use crate::action::{Failure, Handle, Via};
use crate::arena::{Arena, Slot, Stay, reserved_bytes};
use std::hint::black_box;

pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Vacant,
    Loading,
    Ready,
    Failed(Failure),
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

    fn take(&mut self) -> impl Iterator<Item = u64> + use<> {
        self.first.take().into_iter().chain(std::mem::take(&mut self.more))
    }
}

/// One cache line: with millions of them, that line's way from memory is most of what a hit costs.
#[repr(align(64))]
pub(super) struct Resident {
    pub sample: u64,
    pub slot: Slot,
    pub generation: u32,
    /// Loads that must still arrive.
    pub parts: u32,
    pub uses: u32,
    pub leases: u32,
    previous: u32,
    next: u32,
    pub writes: u8,
    pub state: State,
    pub kept: bool,
    /// Goes to this disk tier once it is there.
    pub to_tier: Option<u8>,
    pub via: Via,
    pub attempt: u8,
    /// Requests wait until it is there: [`Residents::waiters`].
    pub waiting: bool,
}

const _: () = assert!(size_of::<Resident>() == 64, "a resident fills one cache line");

#[derive(Default)]
pub(super) struct Residents {
    table: Vec<Resident>,
    /// Requests to tell when a resident is there, by its place.
    waiters: Vec<Waiters>,
    vacant: Vec<u32>,
    by_sample: Index,
    oldest: u32,
    newest: u32,
    /// Kept bytes, rounded as the arena does.
    pub kept_bytes: u64,
    pub kept_count: u64,
    /// Leased bytes of residents that are not kept: memory that can't be planned with.
    pub leased_bytes: u64,
    pub leases: u64,
}

impl Residents {
    pub fn new() -> Self {
        Residents {
            oldest: NONE,
            newest: NONE,
            ..Residents::default()
        }
    }

    pub fn find(&self, sample: u64) -> Option<u32> {
        self.by_sample.find(sample, |id| self.get(id).sample == sample)
    }

    /// Brings what is known of a sample close; whether it is in memory. Callers that are about to go through many samples do this for all of them
    /// first: such look-ups don't depend on each other, so their cache misses overlap, while one at a time each is waited for.
    pub fn warm(&self, sample: u64) -> bool {
        black_box(self.find(sample)).is_some()
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

    pub fn insert(&mut self, sample: u64, slot: Slot, via: Via) -> u32 {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.table.push(Resident {
                sample,
                slot,
                generation: 0,
                state: State::Vacant,
                parts: 0,
                uses: 0,
                leases: 0,
                writes: 0,
                kept: false,
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
        resident.sample = sample;
        resident.slot = slot;
        resident.via = via;
        resident.state = State::Loading;
        self.by_sample.insert(sample, id);
        id
    }

    /// A request waits for a resident.
    pub fn wait(&mut self, id: u32, request: u64) {
        self.get_mut(id).waiting = true;
        self.waiters[id as usize].push(request);
    }

    /// The requests that waited for a resident; none from now on.
    pub fn told(&mut self, id: u32) -> impl Iterator<Item = u64> + use<> {
        let waited = std::mem::take(&mut self.get_mut(id).waiting);
        waited.then(|| self.waiters[id as usize].take()).into_iter().flatten()
    }

    /// Marks it kept, as the newest.
    pub fn keep(&mut self, id: u32) {
        debug_assert!(!self.get(id).kept);
        let newest = self.newest;
        let resident = self.get_mut(id);
        resident.kept = true;
        resident.previous = newest;
        resident.next = NONE;
        let (bytes, leased) = (reserved_bytes(resident.slot.len), resident.leases > 0);
        if leased {
            self.leased_bytes -= bytes;
        }
        if newest == NONE {
            self.oldest = id
        } else {
            self.get_mut(newest).next = id
        }
        self.newest = id;
        self.kept_bytes += bytes;
        self.kept_count += 1;
    }

    /// Makes it pass through again.
    pub fn unkeep(&mut self, id: u32) {
        let resident = self.get_mut(id);
        debug_assert!(resident.kept);
        resident.kept = false;
        let (previous, next, bytes, leased) = (
            resident.previous,
            resident.next,
            reserved_bytes(resident.slot.len),
            resident.leases > 0,
        );
        if leased {
            self.leased_bytes += bytes;
        }
        if previous == NONE {
            self.oldest = next
        } else {
            self.get_mut(previous).next = next
        }
        if next == NONE {
            self.newest = previous
        } else {
            self.get_mut(next).previous = previous
        }
        self.kept_bytes -= bytes;
        self.kept_count -= 1;
    }

    /// Moves a kept one to the newest end.
    pub fn refresh(&mut self, id: u32) {
        if self.get(id).kept && self.newest != id {
            self.unkeep(id);
            self.keep(id);
        }
    }

    pub fn lease(&mut self, id: u32) -> Handle {
        let resident = self.get_mut(id);
        resident.leases += 1;
        let grows = resident.leases == 1 && !resident.kept;
        let bytes = reserved_bytes(resident.slot.len);
        self.leases += 1;
        if grows {
            self.leased_bytes += bytes;
        }
        self.handle(id)
    }

    /// Takes a lease back; false when there was none.
    pub fn unlease(&mut self, id: u32) -> bool {
        let resident = self.get_mut(id);
        if resident.leases == 0 {
            return false;
        }
        resident.leases -= 1;
        let shrinks = resident.leases == 0 && !resident.kept;
        let bytes = reserved_bytes(resident.slot.len);
        self.leases -= 1;
        if shrinks {
            self.leased_bytes -= bytes;
        }
        true
    }

    fn held(&self, id: u32) -> bool {
        let r = self.get(id);
        r.uses > 0 || r.leases > 0 || r.writes > 0 || r.parts > 0
    }

    /// Returns the slot to the arena when nothing holds the resident any more.
    pub fn drop_if_idle(&mut self, id: u32, arena: &mut Arena) {
        let r = self.get(id);
        if r.state == State::Vacant || self.held(id) || (r.kept && r.state == State::Ready) {
            return;
        }
        if r.kept {
            self.unkeep(id);
        }
        let resident = self.get_mut(id);
        resident.state = State::Vacant;
        resident.generation = resident.generation.wrapping_add(1);
        resident.to_tier = None;
        resident.attempt = 0;
        let (sample, slot) = (resident.sample, resident.slot);
        drop(self.told(id));
        self.by_sample.remove(sample, id);
        arena.give(slot);
        self.vacant.push(id);
    }

    /// Evicts the oldest kept resident that nothing holds. Held ones met on the way become newest. `None`: there is none.
    pub fn evict_one(&mut self, arena: &mut Arena) -> Option<u64> {
        for _ in 0..self.kept_count {
            let id = self.oldest;
            if self.held(id) || self.get(id).state != State::Ready {
                self.refresh(id);
                continue;
            }
            let sample = self.get(id).sample;
            self.unkeep(id);
            self.drop_if_idle(id, arena);
            return Some(sample);
        }
        None
    }

    /// Takes a slot, counting against `limit_bytes` for the whole arena.
    pub fn take(arena: &mut Arena, len: u64, stay: Stay, limit_bytes: u64) -> Option<Slot> {
        if arena.used_bytes() + reserved_bytes(len) > limit_bytes {
            return None;
        }
        arena.take(len, stay)
    }

    /// Samples in memory, whatever their state.
    pub fn count(&self) -> usize {
        self.by_sample.len()
    }
}
