//! What to fetch when a reader passes a checkpoint: paper 003's policy.
//!
//! A checkpoint is a page that can't be touched unseen; one lies at each *distance*, from the mapping's first byte on. The first one that is hit, and each that lies outside what was fetched, is the beginning of a new *area*:
//! *size* bytes are fetched from it on. Hits within the area do nothing until the reader has passed three quarters of the block that was fetched last: then the next block is fetched, from where the area ends, so nothing is fetched twice.
//!
//! | a hit | what is fetched |
//! | --- | --- |
//! | the first one; outside of the area; behind the hit before it (another pass) | a block, from the checkpoint on |
//! | within the area, before the threshold | nothing |
//! | within the area, at the threshold or behind it | a block, from the area's end on |
//!
//! A reader of a range of its own begins between two checkpoints, and what lies before the first one that it hits is fetched for no one: the paper's *non-cached distance*. So one checkpoint more is moved, as the paper proposes:
//! [`Front::start`] halves with each pass the distance in which the reader's first byte lies, until it is [`NEAR`], and stays there. A pass in which it was put too far in front is as without it.
//!
//! The preload library decides with this for `--detector mprotect` and `guard`; it is pure and allocates nothing.

use super::Span;

/// Between two checkpoints, and what is fetched at a time: what the paper found best.
pub const DISTANCE: u64 = 8 << 20;
/// See [`DISTANCE`].
pub const SIZE: u64 = 50 << 20;
/// How near the moved checkpoint comes to a reader's first byte: a touch brings as much as this by itself.
pub const NEAR: u64 = 128 << 10;
/// The last part of a block, in which the next one is fetched: one in so many, as the paper's threshold is at 75 %.
const TAIL: u64 = 4;

/// Where checkpoints lie, and how much is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    distance: u64,
    size: u64,
}

impl Checkpoints {
    /// One at each `distance_bytes`, and `size_bytes` fetched at a time; 0: nothing is fetched, and hits are seen all the same.
    ///
    /// None where no checkpoint may lie in the last quarter of a block, for the next one would be fetched too late: `distance_bytes` is 0, or more than a quarter of `size_bytes`.
    #[must_use]
    pub const fn new(distance_bytes: u64, size_bytes: u64) -> Option<Self> {
        if distance_bytes == 0 || (size_bytes > 0 && distance_bytes > size_bytes / TAIL) {
            return None;
        }
        Some(Checkpoints {
            distance: distance_bytes,
            size: size_bytes,
        })
    }

    /// Bytes between two of them.
    #[must_use]
    pub const fn distance(&self) -> u64 {
        self.distance
    }

    /// How many there are in so many bytes.
    #[must_use]
    pub const fn count(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.distance)
    }

    /// The checkpoint whose page of `page_bytes` holds this byte, if one does.
    #[must_use]
    pub const fn at(&self, byte: u64, page_bytes: u64) -> Option<u64> {
        if byte % self.distance < page_bytes {
            Some(byte / self.distance)
        } else {
            None
        }
    }
}

/// Where a reader's passes begin, as far as that is known: behind `low`, and at `high` at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    low: u64,
    high: u64,
    /// The checkpoint behind it that isn't moved.
    fixed: u64,
}

impl Start {
    /// Where the moved checkpoint is to lie: in the middle, or at the latest place if that is near.
    fn place(&self) -> u64 {
        let between = self.high - self.low;
        if between > NEAR {
            self.low + (between / 2 / NEAR).max(1) * NEAR
        } else {
            self.high
        }
    }

    /// A pass began with a hit here; none where that is another reader's, or this one's that begins elsewhere now.
    fn narrowed(self, at: u64) -> Option<Self> {
        let place = self.place();
        let found = if at == place {
            Start { high: place, ..self }
        } else if at == self.fixed {
            Start { low: place, ..self }
        } else {
            return None;
        };
        (found.low < found.high).then_some(found)
    }
}

/// How far a reader of one mapping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    checkpoints: Checkpoints,
    bytes: u64,
    /// What was fetched, no more than two blocks of it; empty before the first hit.
    area: Span,
    /// The hit before, and whether a pass began there.
    last: u64,
    is_beginning: bool,
    start: Option<Start>,
}

impl Front {
    /// Begins with a mapping of so many bytes, of which nothing was fetched.
    #[must_use]
    pub const fn new(checkpoints: Checkpoints, bytes: u64) -> Self {
        Front {
            checkpoints,
            bytes,
            area: Span { from: 0, to: 0 },
            last: 0,
            is_beginning: false,
            start: None,
        }
    }

    /// Where one checkpoint more is to lie, that is not at a multiple of the distance: as near before a reader's first byte as is known. None: there needn't be one.
    ///
    /// It is to be put there when the reader has left where it began ([`is_on_its_way`](Front::is_on_its_way)), and its hits are told as others are.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        let start = self.start?;
        let place = start.place();
        (place != start.fixed).then_some(place)
    }

    /// Whether the last hit was not one that a pass began with.
    #[must_use]
    pub const fn is_on_its_way(&self) -> bool {
        !self.is_beginning
    }

    /// The checkpoint at this byte was hit: what to fetch, if anything.
    pub fn hit(&mut self, at: u64) -> Option<Span> {
        let size = self.checkpoints.size;
        let is_back = at < self.last;
        self.last = at;
        if size == 0 || at >= self.bytes {
            self.is_beginning = false;
            return None;
        }
        let is_within = self.area.from <= at && at < self.area.to && !is_back;
        self.is_beginning = !is_within;
        if self.is_beginning {
            self.begin(at);
        }
        if is_within && at.saturating_add(size / TAIL) < self.area.to {
            return None;
        }
        let from = if is_within { self.area.to } else { at };
        let to = from.saturating_add(size).min(self.bytes);
        self.area = Span {
            from: if is_within {
                self.area.from.max(to.saturating_sub(2 * size))
            } else {
                at
            },
            to,
        };
        (from < to).then_some(Span { from, to })
    }

    /// A pass begins, with a hit here.
    fn begin(&mut self, at: u64) {
        let narrowed = self.start.and_then(|start| start.narrowed(at));
        let is_fixed = at.is_multiple_of(self.checkpoints.distance);
        let whole = (is_fixed && at > 0).then(|| Start {
            low: at.saturating_sub(self.checkpoints.distance),
            high: at,
            fixed: at,
        });
        self.start = narrowed.or(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn front(distance: u64, size: u64, bytes: u64) -> Front {
        Front::new(Checkpoints::new(distance, size).expect("they fit"), bytes)
    }

    fn pass(front: &mut Front, distance: u64, bytes: u64) -> Vec<(u64, Span)> {
        (0..bytes.div_ceil(distance))
            .filter_map(|nth| Some((nth * distance, front.hit(nth * distance)?)))
            .collect()
    }

    #[test]
    fn a_pass_fetches_blocks_that_meet_and_don_t_overlap() {
        let mut front = front(8 * MIB, 32 * MIB, 153 * MIB);
        for _ in 0..2 {
            let found = pass(&mut front, 8 * MIB, 153 * MIB);
            let triggers: Vec<u64> = found.iter().map(|(at, _)| at / MIB).collect();
            assert_eq!(triggers, [0, 24, 56, 88, 120], "three quarters of each block");
            let blocks: Vec<(u64, u64)> = found.iter().map(|(_, span)| (span.from / MIB, span.to / MIB)).collect();
            assert_eq!(blocks, [(0, 32), (32, 64), (64, 96), (96, 128), (128, 153)]);
        }
    }

    #[test]
    fn the_paper_s_figures_are_allowed_and_a_gap_is_not() {
        for distance in [8, 10] {
            assert!(Checkpoints::new(distance * MIB, SIZE).is_some());
        }
        assert_eq!(Checkpoints::new(SIZE / 4 + 1, SIZE), None);
        assert_eq!(Checkpoints::new(0, SIZE), None);
        assert!(Checkpoints::new(SIZE, 0).is_some(), "only looks");
    }

    #[test]
    fn a_hit_outside_the_area_begins_a_new_one_at_the_checkpoint() {
        let mut front = front(8 * MIB, 50 * MIB, 1000 * MIB);
        let span = |from, to| {
            Some(Span {
                from: from * MIB,
                to: to * MIB,
            })
        };
        // A reader of its own range: what lies before the first checkpoint is the non-cached distance.
        assert_eq!(front.hit(50 * 8 * MIB), span(400, 450));
        assert_eq!(front.hit(51 * 8 * MIB), None);
        assert_eq!(front.hit(100 * 8 * MIB), span(800, 850));
        assert_eq!(front.hit(50 * 8 * MIB), span(400, 450));
        assert_eq!(front.hit(124 * 8 * MIB), span(992, 1000));
        assert_eq!(front.hit(124 * 8 * MIB), None, "there is no more");
    }

    #[test]
    fn detection_alone_fetches_nothing() {
        let mut front = front(8 * MIB, 0, 1000 * MIB);
        assert_eq!(pass(&mut front, 8 * MIB, 1000 * MIB), []);
    }

    #[test]
    fn a_checkpoint_is_one_page() {
        let checkpoints = Checkpoints::new(8 * MIB, SIZE).expect("they fit");
        assert_eq!(checkpoints.at(0, 4096), Some(0));
        assert_eq!(checkpoints.at(8 * MIB + 4095, 4096), Some(1));
        assert_eq!(checkpoints.at(8 * MIB + 4096, 4096), None);
        assert_eq!((checkpoints.count(8 * MIB), checkpoints.count(8 * MIB + 1)), (1, 2));
    }

    /// One pass of a reader whose first byte is `begin`: what is fetched first.
    fn ranged(front: &mut Front, distance: u64, begin: u64, end: u64) -> Option<Span> {
        let moved = front.start().filter(|&at| at >= begin);
        let fixed = (begin.div_ceil(distance)..end.div_ceil(distance)).map(|nth| nth * distance);
        let mut hits: Vec<u64> = moved.into_iter().chain(fixed).collect();
        hits.sort_unstable();
        hits.into_iter()
            .filter_map(|at| front.hit(at))
            .collect::<Vec<_>>()
            .first()
            .copied()
    }

    #[test]
    fn the_checkpoint_before_a_reader_comes_nearer_with_each_pass() {
        let mut front = front(8 * MIB, 50 * MIB, 1000 * MIB);
        let begin = 403 * MIB + 77_777;
        let mut gaps = Vec::new();
        for _ in 0..10 {
            let first = ranged(&mut front, 8 * MIB, begin, 700 * MIB).expect("fetched");
            gaps.push(first.from - begin);
        }
        assert_eq!(gaps[0], 408 * MIB - begin, "the non-cached distance");
        assert!(gaps.iter().all(|&gap| gap <= gaps[0]), "{gaps:?}");
        assert!(gaps[7] < NEAR, "{gaps:?}");
        assert_eq!(gaps[7..], [gaps[9]; 3], "and stays");
    }

    #[test]
    fn a_reader_that_begins_elsewhere_is_looked_for_there() {
        let mut front = front(8 * MIB, 50 * MIB, 1000 * MIB);
        for begin in [403 * MIB, 407 * MIB, 900 * MIB + 1, 8 * MIB, 0] {
            let mut gap = 0;
            for _ in 0..20 {
                gap = ranged(&mut front, 8 * MIB, begin, begin + 90 * MIB)
                    .expect("fetched")
                    .from
                    - begin;
            }
            assert!(gap < NEAR, "{begin}: {gap}");
        }
        assert_eq!(front.start(), None, "nothing lies before the first byte");
    }

    proptest! {
        /// Wherever a reader begins, the gap before what is fetched is never larger than without the moved checkpoint, and is small and stays so after as many passes as halve a distance.
        #[test]
        fn the_gap_is_small_in_the_end(pages in 1_u64..3000, begin in 0_u64..2000, more in 0_u64..NEAR) {
            let (distance, begin) = (pages * 4096, begin * NEAR + more);
            let mut front = front(distance, 4 * distance, 1 << 40);
            let fixed = begin.next_multiple_of(distance) - begin;
            for pass in 0..20 {
                let gap = ranged(&mut front, distance, begin, begin + 20 * distance).expect("fetched").from - begin;
                prop_assert!(gap <= fixed);
                prop_assert!(gap <= NEAR || pass < 9, "{gap} in pass {pass}");
            }
        }

        /// Whatever the settings, one who reads on finds all that lies behind the first checkpoint fetched before it, once, and no more than one block ahead.
        #[test]
        fn a_reader_finds_everything_there(distance in 1_u64..20, quarters in 4_u64..40, bytes in 1_u64..2000, begin in 0_u64..100) {
            let size = distance * quarters;
            let mut front = front(distance, size, bytes);
            let mut there = None;
            for nth in begin..bytes.div_ceil(distance) {
                let at = nth * distance;
                if let Some(span) = front.hit(at) {
                    prop_assert_eq!(span.from, there.unwrap_or(at));
                    prop_assert!(span.len() <= size);
                    there = Some(span.to);
                }
                let there = there.unwrap_or(0);
                prop_assert!(there >= (at + distance).min(bytes));
                prop_assert!(there <= at + size + size / 4 + 1);
            }
        }
    }
}
