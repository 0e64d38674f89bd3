//! Where in the arena a sample's bytes go: a two-level segregated-fit allocator over offsets.
//!
//! The plan owns the address space of the cache arena, so that an ordered fetch always has its memory and the budget is exact.
//! Nothing is touched here: offsets are handed out, the engine maps them. Free stretches sit in bins by size (a power of two split
//! into [`SECOND`] steps), found with two bitmaps, so that taking and returning a slot is O(1) (M. Masmano et al., "TLSF: a new
//! dynamic memory allocator for real-time systems", ECRTS 2004). What stays long is cut from the low end of a stretch and
//! what passes through from the high end, so that the two kinds rarely fragment each other. A returned stretch is reused first:
//! its pages are warm.

/// Slots start and end at multiples of this many bytes: a cache line, which also satisfies every tensor type's alignment.
pub const GRAIN_BYTES: u64 = 64;

/// Bins per power of two; the share lost to rounding a search up is at most 1/SECOND.
const SECOND_LOG2: u32 = 5;
const SECOND: usize = 1 << SECOND_LOG2;
const FIRST: usize = 48;
const NONE: u32 = u32::MAX;

/// A piece of the arena: `len` bytes from `offset`. An empty sample has the empty slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Slot {
    /// First byte, in the arena.
    pub offset: u64,
    /// Bytes asked for; the arena reserves them rounded up to [`GRAIN_BYTES`].
    pub len: u64,
    stretch: u32,
}

impl Slot {
    /// The slot of an empty sample.
    pub const EMPTY: Slot = Slot {
        offset: 0,
        len: 0,
        stretch: NONE,
    };

    /// A view of some of its bytes; only the whole slot can be given back.
    #[must_use]
    pub const fn part(self, at: u64, len: u64) -> Slot {
        Slot {
            offset: self.offset + at,
            len,
            stretch: NONE,
        }
    }
}

/// Which end of a free stretch to cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Kept in the RAM tier: low addresses.
    Long,
    /// Staged, delivered, dropped: high addresses.
    Short,
    /// As short, and small among large ones: from the largest free stretch, so that those which a large one has just left stay whole.
    Small,
}

#[derive(Clone, Copy)]
struct Stretch {
    offset: u64,
    len: u64,
    before: u32,
    after: u32,
    previous_free: u32,
    next_free: u32,
    free: bool,
}

/// The allocator. Not thread-safe; the scheduler is its only user.
pub struct Arena {
    stretches: Vec<Stretch>,
    spare: Vec<u32>,
    first: u64,
    second: [u32; FIRST],
    heads: Vec<u32>,
    /// The stretch that ends where the arena does.
    last: u32,
    capacity: u64,
    used: u64,
}

/// The bytes that a slot of `len` bytes takes from the budget.
#[must_use]
pub fn reserved_bytes(len: u64) -> u64 {
    len.next_multiple_of(GRAIN_BYTES)
}

fn bin(len: u64) -> (usize, usize) {
    let units = len / GRAIN_BYTES;
    if units < SECOND as u64 {
        return (0, units as usize);
    }
    let log2 = 63 - units.leading_zeros();
    let second = ((units >> (log2 - SECOND_LOG2)) as usize) & (SECOND - 1);
    ((log2 - SECOND_LOG2 + 1) as usize, second)
}

/// The smallest length whose bin holds only stretches of at least `len` bytes.
fn search_len(len: u64) -> u64 {
    let units = len / GRAIN_BYTES;
    if units < SECOND as u64 {
        return len;
    }
    let log2 = 63 - units.leading_zeros();
    let step = 1u64 << (log2 - SECOND_LOG2);
    units.next_multiple_of(step) * GRAIN_BYTES
}

impl Arena {
    /// An arena of `capacity_bytes`, rounded down to [`GRAIN_BYTES`], all of it free.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        let mut arena = Arena {
            stretches: Vec::new(),
            spare: Vec::new(),
            first: 0,
            second: [0; FIRST],
            heads: vec![NONE; FIRST * SECOND],
            last: NONE,
            capacity: 0,
            used: 0,
        };
        arena.grow(capacity_bytes);
        arena
    }

    /// Grows to `capacity_bytes`, rounded down to [`GRAIN_BYTES`]; never shrinks.
    pub fn grow(&mut self, capacity_bytes: u64) {
        let capacity = capacity_bytes / GRAIN_BYTES * GRAIN_BYTES;
        if capacity <= self.capacity {
            return;
        }
        let (offset, before) = (std::mem::replace(&mut self.capacity, capacity), self.last);
        let mut added = self.new_stretch(Stretch {
            offset,
            len: capacity - offset,
            before,
            after: NONE,
            previous_free: NONE,
            next_free: NONE,
            free: true,
        });
        self.last = added;
        if before != NONE {
            self.stretches[before as usize].after = added;
            if self.stretches[before as usize].free {
                self.unlink(before);
                self.absorb(before, added);
                added = before;
            }
        }
        self.link(added);
    }

    /// Bytes in the arena.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity
    }

    /// Bytes reserved by slots, rounding included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// The free stretches of at least `least` bytes: offset and length.
    pub fn free_stretches(&self, least: u64) -> impl Iterator<Item = (u64, u64)> {
        let spare: std::collections::BTreeSet<u32> = self.spare.iter().copied().collect();
        let stretches = (0u32..)
            .zip(&self.stretches)
            .filter(move |(id, stretch)| stretch.free && stretch.len >= least && !spare.contains(id));
        stretches.map(|(_, stretch)| (stretch.offset, stretch.len))
    }

    /// Takes a slot of `len` bytes, or `None` when no free stretch is large enough.
    pub fn take(&mut self, len: u64, stay: Stay) -> Option<Slot> {
        if len == 0 {
            return Some(Slot::EMPTY);
        }
        if len > self.capacity {
            return None;
        }
        let need = reserved_bytes(len);
        let found = match stay {
            Stay::Small => self.largest(need).or_else(|| self.find(need))?,
            Stay::Long | Stay::Short => self.find(need)?,
        };
        self.unlink(found);
        let have = self.stretches[found as usize].len;
        let taken = if have == need {
            found
        } else {
            match stay {
                Stay::Long | Stay::Small => {
                    let rest = self.split(found, need);
                    self.link(rest);
                    found
                }
                Stay::Short => {
                    let taken = self.split(found, have - need);
                    self.stretches[found as usize].free = true;
                    self.link(found);
                    taken
                }
            }
        };
        self.stretches[taken as usize].free = false;
        self.used += need;
        Some(Slot {
            offset: self.stretches[taken as usize].offset,
            len,
            stretch: taken,
        })
    }

    /// Gives a slot back. Each slot is given back once; the scheduler's residents guarantee it.
    pub fn give(&mut self, slot: Slot) {
        if slot.stretch == NONE {
            return;
        }
        let mut id = slot.stretch;
        debug_assert!(!self.stretches[id as usize].free && self.stretches[id as usize].offset == slot.offset);
        self.used -= self.stretches[id as usize].len;
        self.stretches[id as usize].free = true;
        let after = self.stretches[id as usize].after;
        if after != NONE && self.stretches[after as usize].free {
            self.unlink(after);
            self.absorb(id, after);
        }
        let before = self.stretches[id as usize].before;
        if before != NONE && self.stretches[before as usize].free {
            self.unlink(before);
            self.absorb(before, id);
            id = before;
        }
        self.link(id);
    }

    fn find(&self, need: u64) -> Option<u32> {
        let (f, s) = bin(search_len(need));
        if f < FIRST {
            let here = if f == 0 || s < SECOND {
                self.second[f] & (u32::MAX << s)
            } else {
                0
            };
            if here != 0 {
                return Some(self.heads[f * SECOND + here.trailing_zeros() as usize]);
            }
            let above = if f + 1 < 64 {
                self.first & (u64::MAX << (f + 1))
            } else {
                0
            };
            if above != 0 {
                let f = above.trailing_zeros() as usize;
                return Some(self.heads[f * SECOND + self.second[f].trailing_zeros() as usize]);
            }
        }
        // The rounded search can miss a stretch in the request's own bin: look there once, so that the last large stretch is usable.
        let (f, s) = bin(need);
        let mut id = self.heads[f * SECOND + s];
        let mut looked = 0;
        while id != NONE && looked < 16 {
            if self.stretches[id as usize].len >= need {
                return Some(id);
            }
            id = self.stretches[id as usize].next_free;
            looked += 1;
        }
        None
    }

    /// One of the largest free stretches, if it has `need` bytes.
    fn largest(&self, need: u64) -> Option<u32> {
        let f = self.first.checked_ilog2()? as usize;
        let s = self.second[f].checked_ilog2()? as usize;
        let id = self.heads[f * SECOND + s];
        (self.stretches[id as usize].len >= need).then_some(id)
    }

    fn new_stretch(&mut self, stretch: Stretch) -> u32 {
        if let Some(id) = self.spare.pop() {
            self.stretches[id as usize] = stretch;
            return id;
        }
        self.stretches.push(stretch);
        (self.stretches.len() - 1) as u32
    }

    /// Cuts `id` after `len` bytes; returns the new stretch behind it.
    fn split(&mut self, id: u32, len: u64) -> u32 {
        let stretch = self.stretches[id as usize];
        let rest = self.new_stretch(Stretch {
            offset: stretch.offset + len,
            len: stretch.len - len,
            before: id,
            after: stretch.after,
            previous_free: NONE,
            next_free: NONE,
            free: true,
        });
        match stretch.after {
            NONE => self.last = rest,
            after => self.stretches[after as usize].before = rest,
        }
        let stretch = &mut self.stretches[id as usize];
        stretch.len = len;
        stretch.after = rest;
        rest
    }

    /// Joins `gone` to `id`, its neighbour before it.
    fn absorb(&mut self, id: u32, gone: u32) {
        let Stretch { len, after, .. } = self.stretches[gone as usize];
        self.stretches[id as usize].len += len;
        self.stretches[id as usize].after = after;
        match after {
            NONE => self.last = id,
            after => self.stretches[after as usize].before = id,
        }
        self.spare.push(gone);
    }

    fn link(&mut self, id: u32) {
        let (f, s) = bin(self.stretches[id as usize].len);
        let head = self.heads[f * SECOND + s];
        let stretch = &mut self.stretches[id as usize];
        stretch.previous_free = NONE;
        stretch.next_free = head;
        if head != NONE {
            self.stretches[head as usize].previous_free = id;
        }
        self.heads[f * SECOND + s] = id;
        self.first |= 1 << f;
        self.second[f] |= 1 << s;
    }

    fn unlink(&mut self, id: u32) {
        let Stretch {
            len,
            previous_free,
            next_free,
            ..
        } = self.stretches[id as usize];
        let (f, s) = bin(len);
        if next_free != NONE {
            self.stretches[next_free as usize].previous_free = previous_free;
        }
        if previous_free != NONE {
            self.stretches[previous_free as usize].next_free = next_free;
        } else {
            self.heads[f * SECOND + s] = next_free;
            if next_free == NONE {
                self.second[f] &= !(1 << s);
                if self.second[f] == 0 {
                    self.first &= !(1 << f);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_sample_takes_no_room() {
        let mut arena = Arena::new(64);
        let slot = arena.take(0, Stay::Short).expect("empty");
        assert_eq!((slot.len, arena.used_bytes()), (0, 0));
        arena.give(slot);
    }

    #[test]
    fn the_whole_arena_can_be_one_slot() {
        for capacity in [64, 4096, 12_345 * 64, (1 << 30) + 64] {
            let mut arena = Arena::new(capacity);
            let slot = arena.take(capacity, Stay::Long).expect("whole");
            assert!(arena.take(1, Stay::Short).is_none());
            arena.give(slot);
            assert!(arena.take(capacity, Stay::Short).is_some());
        }
    }

    proptest! {
        #[test]
        fn slots_never_overlap_and_all_room_returns(
            steps in proptest::collection::vec((0u64..200_000, any::<bool>(), any::<u16>()), 1..400)
        ) {
            let mut arena = Arena::new(1 << 20);
            let mut held: Vec<Slot> = Vec::new();
            for (len, long, pick) in steps {
                if pick % 16 == 0 {
                    arena.grow((arena.capacity_bytes() + len).min(4 << 20));
                } else if len % 3 == 0 && !held.is_empty() {
                    let slot = held.swap_remove(pick as usize % held.len());
                    arena.give(slot);
                } else if let Some(slot) = arena.take(len, if long { Stay::Long } else { Stay::Short }) {
                    prop_assert!(slot.offset % GRAIN_BYTES == 0 && slot.offset + slot.len <= arena.capacity_bytes());
                    for other in &held {
                        let apart = slot.offset + slot.len <= other.offset || other.offset + other.len <= slot.offset;
                        prop_assert!(apart || slot.len == 0 || other.len == 0);
                    }
                    held.push(slot);
                }
                let sum: u64 = held.iter().map(|s| reserved_bytes(s.len)).sum();
                prop_assert_eq!(sum, arena.used_bytes());
            }
            for slot in held { arena.give(slot); }
            prop_assert_eq!(arena.used_bytes(), 0);
            prop_assert!(arena.take(arena.capacity_bytes(), Stay::Long).is_some());
        }
    }
}
