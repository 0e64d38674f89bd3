//! Flights: loads and disk writes that are under way, by the id of their action.
//!
//! A load waits in a [`Lane`](super::lanes::Lane) as [`Pending`], flies as a [`Flight`], and ends once, with the completion of its action. What it
//! brings lies in [`Part`]s: whole blocks or samples, or pieces of a sample that is large or is several ranges. Nothing here decides; the table only says who is in the air.

use crate::action::{Handle, Source};
use crate::arena::Slot;
use crate::blocks::Content;
use crate::catalog::Place;

/// What a load brings of one stay in memory.
pub(super) struct Part {
    pub handle: Handle,
    pub content: Content,
    /// Where it begins in the load's range.
    pub at: u64,
    pub len: u64,
    pub content_offset: u64,
    pub content_len: u64,
    /// The twin's own slot.
    pub own: Option<Slot>,
}

impl Part {
    /// Whether it is all of its content.
    pub fn is_whole(&self) -> bool {
        self.len == self.content_len
    }

    /// The same part, for another load; the slot of a twin goes with the twin.
    pub fn again(&self) -> Self {
        Part { own: None, ..*self }
    }
}

/// The parts of a load: nearly always one, so that one needs no allocation.
pub(super) struct Parts {
    pub first: Part,
    pub more: Vec<Part>,
}

impl Parts {
    pub fn one(first: Part) -> Self {
        Parts {
            first,
            more: Vec::new(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.more)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    pub fn all(self) -> impl Iterator<Item = Part> {
        std::iter::once(self.first).chain(self.more)
    }
}

/// For whom a load is: a job, and the line of it that needs it first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asker {
    pub job: u32,
    pub line: u64,
}

/// A load that has not been issued.
pub(super) struct Pending {
    pub source: Source,
    pub object: u64,
    pub offset: u64,
    pub len: u64,
    pub parts: Parts,
    /// The job that it is for.
    pub job: u32,
    /// The line that first needs it.
    pub line: u64,
    pub attempt: u8,
    pub twin_of: Option<u64>,
    /// What it flies in.
    pub bundle: Option<u64>,
}

impl Pending {
    /// A load of one part alone, whose bytes begin at `place`.
    pub fn of(source: Source, place: Place, part: Part, asker: Asker, attempt: u8) -> Self {
        Pending {
            source,
            object: place.object,
            offset: place.offset,
            len: part.len,
            parts: Parts::one(part),
            job: asker.job,
            line: asker.line,
            attempt,
            twin_of: None,
            bundle: None,
        }
    }

    /// Whether a place lies in its object, behind it and `gap_bytes` away at most, and it would have `most_bytes` at most with it.
    pub fn takes(&self, place: Place, gap_bytes: u64, most_bytes: u64) -> bool {
        let end = self.offset + self.len;
        place.object == self.object
            && (end..=end + gap_bytes).contains(&place.offset)
            && place.offset + place.len - self.offset <= most_bytes
    }

    /// Brings a part more, from a place that it takes or has.
    pub fn add(&mut self, place: Place, part: Part) {
        let at = place.offset - self.offset;
        self.parts.more.push(Part { at, ..part });
        self.len = self.len.max(at + place.len);
    }
}

impl Pending {
    /// For whom it is.
    pub fn asker(&self) -> Asker {
        Asker {
            job: self.job,
            line: self.line,
        }
    }
}

/// A load in the air.
pub(super) struct Flight {
    pub pending: Pending,
    pub issued_ns: u64,
    pub twin: Option<u64>,
    /// It lost its race: nothing waits for it.
    pub cancelled: bool,
    /// The carrier was told to stop it.
    pub called_off: bool,
}

impl Flight {
    /// The load that it races, late or twin.
    pub fn rival(&self) -> Option<u64> {
        self.twin.or(self.pending.twin_of)
    }
}

/// A block on its way to a disk tier.
pub(super) struct Write {
    pub tier: u8,
    pub handle: Handle,
    pub len: u64,
    pub block: u64,
}

pub(super) enum Running {
    Load(Flight),
    Keep(Write),
}

/// What is under way: a place in the table and, above it, a count that never repeats.
#[derive(Default)]
pub(super) struct Flights {
    places: Vec<Option<(u64, Running)>>,
    vacant: Vec<u32>,
    count: u64,
}

/// Bits of an action's id that name the place in the table: a million at once.
const PLACE_BITS: u32 = 20;

impl Flights {
    /// The id that the next insertion gets.
    pub fn reserve(&mut self) -> u64 {
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

    pub fn insert(&mut self, id: u64, running: Running) {
        self.places[Self::place(id)] = Some((id, running));
    }

    pub fn remove(&mut self, id: u64) -> Option<Running> {
        let place = self.places.get_mut(Self::place(id))?;
        let found = place.take_if(|(found, _)| *found == id)?;
        self.vacant.push(Self::place(id) as u32);
        Some(found.1)
    }

    /// The load of this id, if it is in the air.
    pub fn load(&self, id: u64) -> Option<&Flight> {
        match self.places.get(Self::place(id))? {
            Some((found, Running::Load(flight))) if *found == id => Some(flight),
            _ => None,
        }
    }

    /// The load of this id, if it is in the air.
    pub fn load_mut(&mut self, id: u64) -> Option<&mut Flight> {
        match self.places.get_mut(Self::place(id))? {
            Some((found, Running::Load(flight))) if *found == id => Some(flight),
            _ => None,
        }
    }

    /// All loads in the air, by their place in the table.
    pub fn loads(&self) -> impl Iterator<Item = (u64, &Flight)> {
        self.places.iter().flatten().filter_map(|(id, running)| match running {
            Running::Load(flight) => Some((*id, flight)),
            Running::Keep(_) => None,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.vacant.len() == self.places.len()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A load of all of one sample, the table's place of which is `index`.
    pub fn pending(source: Source, index: u32, len: u64) -> Pending {
        let place = Place {
            object: u64::from(index),
            offset: 0,
            len,
        };
        let part = Part {
            handle: Handle { index, generation: 0 },
            content: Content::block(u64::from(index)),
            at: 0,
            len,
            content_offset: 0,
            content_len: len,
            own: None,
        };
        Pending::of(source, place, part, Asker::default(), 0)
    }

    fn flight(index: u32) -> Running {
        Running::Load(Flight {
            pending: pending(Source::Bucket, index, 100),
            issued_ns: 0,
            twin: None,
            called_off: false,
            cancelled: false,
        })
    }

    #[test]
    fn an_id_names_one_flight_for_ever_though_its_place_is_used_again() {
        let mut flights = Flights::default();
        let first = flights.reserve();
        flights.insert(first, flight(1));
        assert!(flights.load(first).is_some() && !flights.is_empty());
        assert!(flights.remove(first).is_some() && flights.is_empty());
        let second = flights.reserve();
        flights.insert(second, flight(2));
        assert_eq!(Flights::place(first), Flights::place(second), "the place is used again");
        assert!(flights.load(first).is_none() && flights.remove(first).is_none());
        assert_eq!(flights.load(second).map(|it| it.pending.object), Some(2));
    }

    #[test]
    fn a_write_is_under_way_and_no_load() {
        let mut flights = Flights::default();
        let id = flights.reserve();
        flights.insert(
            id,
            Running::Keep(Write {
                tier: 0,
                handle: Handle {
                    index: 0,
                    generation: 0,
                },
                len: 1,
                block: 0,
            }),
        );
        assert!(!flights.is_empty() && flights.load(id).is_none());
        assert_eq!(flights.loads().count(), 0);
    }

    #[test]
    fn a_part_of_a_sample_is_asked_for_where_it_lies_in_the_object() {
        let place = Place {
            object: 7,
            offset: 1200,
            len: 100,
        };
        let part = Part {
            handle: Handle {
                index: 0,
                generation: 0,
            },
            content: Content::block(3),
            at: 0,
            len: 100,
            content_offset: 200,
            content_len: 300,
            own: None,
        };
        let load = Pending::of(Source::Bucket, place, part, Asker::default(), 1);
        assert_eq!((load.object, load.offset, load.len), (7, 1200, 100));
        assert!(!load.parts.first.is_whole());
    }
}
