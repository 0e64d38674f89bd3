//! The mappings that are followed: written by interposed calls, read by the thread.
//!
//! Each has a place in a fixed table and passes through four states. Interposed calls only ever change a state, so they take no lock and wait for nobody; a mapping that has ended stays in its place until the thread
//! has let go of it.
//!
//! | state | who leaves it | to |
//! | --- | --- | --- |
//! | free | who maps | filling |
//! | filling | the same, having described the mapping | live |
//! | live | who ends the mapping, before it ends | dead |
//! | dead | the thread | free |

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Mappings that are followed at once; of more, the first ones.
pub const PLACES: usize = 128;

const FREE: u32 = 0;
const FILLING: u32 = 1;
const LIVE: u32 = 2;
const DEAD: u32 = 3;

/// What is known of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Its first byte, and how many it has: those that are in the file.
    pub at: usize,
    pub len: usize,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file's device.
    pub major: u32,
    pub minor: u32,
    /// Whether pages are there already that nobody has touched: a child got them of its parent, or all were asked for.
    pub is_populated: bool,
}

impl Mapping {
    /// Whether this address is one of its bytes.
    pub const fn holds(&self, address: usize) -> bool {
        address >= self.at && address - self.at < self.len
    }
}

/// A place in the table.
pub struct Place {
    state: AtomicU32,
    /// Which mapping it is, of those that this place had.
    turn: AtomicU64,
    at: AtomicUsize,
    len: AtomicUsize,
    offset: AtomicU64,
    device: AtomicU64,
    is_populated: AtomicU32,
}

impl Place {
    const fn empty() -> Self {
        Place {
            state: AtomicU32::new(FREE),
            turn: AtomicU64::new(0),
            at: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            offset: AtomicU64::new(0),
            device: AtomicU64::new(0),
            is_populated: AtomicU32::new(0),
        }
    }

    fn take(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The mapping that is followed here, if one is, and which one it is.
    pub fn live(&self) -> Option<(u64, Mapping)> {
        let turn = self.turn.load(Ordering::Acquire);
        if self.state.load(Ordering::Acquire) != LIVE {
            return None;
        }
        let mapping = self.mapping();
        self.is_live(turn).then_some((turn, mapping))
    }

    fn mapping(&self) -> Mapping {
        let device = self.device.load(Ordering::Relaxed);
        Mapping {
            at: self.at.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            major: (device >> 32) as u32,
            minor: device as u32,
            is_populated: self.is_populated.load(Ordering::Relaxed) != 0,
        }
    }

    /// Whether this mapping is still followed.
    pub fn is_live(&self, turn: u64) -> bool {
        self.state.load(Ordering::Acquire) == LIVE && self.turn.load(Ordering::Acquire) == turn
    }

    /// Whether this is an address of a mapping that has ended and that nobody has let go of.
    pub fn is_ending(&self, address: usize) -> bool {
        self.state.load(Ordering::Acquire) == DEAD && self.mapping().holds(address)
    }

    /// The thread has let go of a mapping that has ended: the place may be taken again.
    pub fn release(&self) -> bool {
        self.take(DEAD, FREE)
    }

    fn overlaps(&self, at: usize, len: usize) -> bool {
        let (ours, its) = (self.at.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        self.state.load(Ordering::Acquire) == LIVE && at < ours.saturating_add(its) && ours < at.saturating_add(len)
    }
}

/// All places.
pub struct Table {
    pub places: [Place; PLACES],
    /// Places that aren't free: nothing has to be looked up while there are none.
    taken: AtomicUsize,
}

/// Those of this process.
pub static TABLE: Table = Table::new();

impl Table {
    pub const fn new() -> Self {
        Table {
            places: [const { Place::empty() }; PLACES],
            taken: AtomicUsize::new(0),
        }
    }

    /// Follows a mapping; false: all places are taken.
    pub fn add(&self, mapping: &Mapping) -> bool {
        self.add_prepared(mapping, |_| ()).is_some()
    }

    /// The same, with something to do before anybody sees it there; the place's number.
    pub fn add_prepared(&self, mapping: &Mapping, prepare: impl FnOnce(usize)) -> Option<usize> {
        let mut places = self.places.iter().enumerate();
        let (nth, place) = places.find(|(_, place)| place.take(FREE, FILLING))?;
        self.taken.fetch_add(1, Ordering::AcqRel);
        place.turn.fetch_add(1, Ordering::AcqRel);
        place.at.store(mapping.at, Ordering::Relaxed);
        place.len.store(mapping.len, Ordering::Relaxed);
        place.offset.store(mapping.offset, Ordering::Relaxed);
        place.device.store(
            u64::from(mapping.major) << 32 | u64::from(mapping.minor),
            Ordering::Relaxed,
        );
        place
            .is_populated
            .store(u32::from(mapping.is_populated), Ordering::Relaxed);
        prepare(nth);
        place.state.store(LIVE, Ordering::Release);
        Some(nth)
    }

    /// Whether any that is followed overlaps with these bytes.
    pub fn has(&self, at: usize, len: usize) -> bool {
        self.taken.load(Ordering::Acquire) > 0 && self.places.iter().any(|place| place.overlaps(at, len))
    }

    /// Ends all that overlap with these bytes; the last of them.
    pub fn forget(&self, at: usize, len: usize) -> Option<Mapping> {
        self.forget_each(at, len, |_, _, _| ())
    }

    /// The same, and something done for each of them, by its number.
    pub fn forget_each(&self, at: usize, len: usize, each: impl Fn(usize, &Place, &Mapping)) -> Option<Mapping> {
        if self.taken.load(Ordering::Acquire) == 0 {
            return None;
        }
        let over = self
            .places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.overlaps(at, len));
        over.filter_map(|(nth, place)| {
            let (turn, mapping) = place.live()?;
            let is_ours = place.is_live(turn) && place.take(LIVE, DEAD);
            is_ours.then(|| {
                each(nth, place, &mapping);
                mapping
            })
        })
        .last()
    }

    /// The thread has let go of what ended in a place.
    pub fn release(&self, place: &Place) {
        if place.release() {
            self.taken.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// What a child makes of its parent's where it follows none of them: each that a thread of the parent hadn't let go of is passed on, and all places are free.
    pub fn clear(&self, each: impl Fn(&Mapping)) {
        for place in &self.places {
            if matches!(place.state.load(Ordering::Acquire), LIVE | DEAD) {
                each(&place.mapping());
            }
            place.state.store(FREE, Ordering::Release);
        }
        self.taken.store(0, Ordering::Release);
    }

    /// What a child makes of its parent's: mappings stay, and what is in them was touched by the parent. How many there are.
    pub fn inherit(&self) -> usize {
        let mut live = 0;
        for place in &self.places {
            match place.state.load(Ordering::Acquire) {
                LIVE => {
                    place.turn.fetch_add(1, Ordering::AcqRel);
                    place.is_populated.store(1, Ordering::Relaxed);
                    live += 1;
                }
                // A thread that the child doesn't have was at it.
                _ => place.state.store(FREE, Ordering::Release),
            }
        }
        self.taken.store(live, Ordering::Release);
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(at: usize, len: usize) -> Mapping {
        Mapping {
            at,
            len,
            offset: 7,
            major: 3,
            minor: 9,
            is_populated: false,
        }
    }

    fn live(table: &Table) -> Vec<usize> {
        let found = table.places.iter().filter_map(Place::live);
        found.map(|(_, mapping)| mapping.at).collect()
    }

    #[test]
    fn a_mapping_is_followed_until_a_part_of_it_ends() {
        let table = Table::new();
        for at in [1000, 2000, 3000] {
            assert!(table.add(&mapping(at, 1000)));
        }
        assert_eq!(table.forget(500, 500), None);
        assert_eq!(table.forget(2999, 1), Some(mapping(2000, 1000)));
        assert_eq!(live(&table), [1000, 3000]);
        assert!(
            table.add(&mapping(9000, 1)),
            "its place is the thread's until that has let go"
        );
        assert_eq!(live(&table), [1000, 3000, 9000]);
        table.release(&table.places[1]);
        assert!(table.add(&mapping(8000, 1)));
        assert_eq!(live(&table), [1000, 8000, 3000, 9000]);
    }

    #[test]
    fn whoever_knew_a_mapping_sees_that_another_has_its_place() {
        let table = Table::new();
        table.add(&mapping(1000, 10));
        let (turn, _) = table.places[0].live().expect("live");
        table.forget(1000, 10);
        assert!(!table.places[0].is_live(turn));
        table.release(&table.places[0]);
        table.add(&mapping(1000, 10));
        assert!(!table.places[0].is_live(turn));
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let table = Table::new();
        assert!((0..PLACES).all(|nth| table.add(&mapping(nth * 10, 5))));
        assert!(!table.add(&mapping(1, 1)));
    }

    #[test]
    fn a_child_has_what_was_live_and_places_for_more() {
        let table = Table::new();
        (0..PLACES).for_each(|nth| {
            table.add(&mapping(nth * 10, 5));
        });
        (10..PLACES).for_each(|nth| {
            table.forget(nth * 10, 5);
        });
        table.places[PLACES - 1].state.store(FILLING, Ordering::Relaxed);
        let (before, _) = table.places[0].live().expect("live");
        assert_eq!(table.inherit(), 10);
        assert!(!table.places[0].is_live(before));
        assert!(table.places[0].live().is_some_and(|(_, mapping)| mapping.is_populated));
        assert!((10..PLACES).all(|nth| table.add(&mapping(nth * 10, 5))));
    }
}
