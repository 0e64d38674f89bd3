//! Which chunks of an open file will be read next, from what was read of it.
//!
//! Most files are read whole, so one that is read from its first byte on has its next chunks asked for at once, many more when a mebibyte of it was read, and twice as many whenever
//! half of those are read and the reader has to wait all the same: paper 004 reads whole objects ahead, and a reader that looks at the head of a file costs a few chunks. What is read in another way, from the middle on, at equal distances, or in several
//! places in turn, is left to the [detector](foreload_plan::window::Detector) that also follows mapped files.
//!
//! Pure: time comes from outside, and nothing is fetched here.

use crate::layout::Layout;
use foreload_plan::window::{Detector, Span};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Chunks that are asked for behind the first one.
const FIRST: u64 = 3;
/// Who has read so much doesn't look at the head alone, and has so many.
const MORE_THAN_A_HEAD: u64 = 1 << 20;
const THEN: u64 = 16;
/// The kernel reads ahead with several requests, which may come in another order: so far from where reading is, they are still of the same reader.
const APART: u64 = 4 << 20;
/// How exactly reads are told apart: what the kernel asks for at a time at least.
const GRANULE: u64 = 128 << 10;
/// The detector's looks.
const LOOK: Duration = Duration::from_millis(20);

/// What is known of how a file is read.
#[derive(Debug)]
pub struct Ahead {
    layout: Layout,
    most_bytes: u64,
    /// Whether all was read from the first byte on.
    is_whole: bool,
    /// Up to where it was read, and asked for: chunks.
    front: u64,
    asked: u64,
    /// Chunks to have ahead, and twice as many from this one on.
    window: u64,
    doubles_at: u64,
    detector: Detector,
    since_look: Duration,
    /// What is to be asked for.
    wanted: VecDeque<u64>,
}

impl Ahead {
    /// Of a file that nothing was read of. No more than `most_bytes` are asked for ahead; 0: nothing is.
    #[must_use]
    pub fn new(layout: Layout, most_bytes: u64) -> Self {
        Ahead {
            layout,
            most_bytes,
            is_whole: true,
            front: 0,
            asked: 0,
            window: FIRST,
            doubles_at: 1 + FIRST / 2,
            detector: Detector::new(layout.bytes, GRANULE, most_bytes),
            since_look: Duration::ZERO,
            wanted: VecDeque::new(),
        }
    }

    /// These bytes are read, so long after the read before, by a reader who has to wait for them or not.
    pub fn read(&mut self, span: Range<u64>, elapsed: Duration, waits: bool) {
        let end = span.end.min(self.layout.bytes);
        if span.start >= end {
            return;
        }
        if self.is_whole && span.start.abs_diff(self.front) <= APART {
            self.front = self.front.max(end);
            return self.go_on(waits);
        }
        if std::mem::replace(&mut self.is_whole, false) {
            // What was read before is known to the detector, too.
            let before = Span {
                from: 0,
                to: self.front,
            };
            self.detector.touched(before);
        }
        self.detector.touched(Span {
            from: span.start,
            to: end,
        });
        self.since_look += elapsed;
        if self.since_look >= LOOK {
            self.detector.looked(self.since_look);
            self.since_look = Duration::ZERO;
        }
        while self.most_bytes > 0
            && let Some(span) = self.detector.next(self.most_bytes)
        {
            self.wanted.extend(self.layout.of(span.from..span.to));
        }
    }

    fn go_on(&mut self, waits: bool) {
        if self.most_bytes == 0 {
            return;
        }
        let chunk = self.layout.chunk;
        let most = (self.most_bytes / chunk).max(1);
        let at = self.front.div_ceil(chunk);
        if self.front >= MORE_THAN_A_HEAD && self.window < THEN {
            self.window = THEN.min(most);
            self.doubles_at = at + self.window / 2;
        }
        if at > self.doubles_at && waits {
            self.window = (2 * self.window).min(most);
            self.doubles_at = at + self.window / 2;
        }
        let to = (at + self.window.min(most)).min(self.layout.count());
        self.wanted.extend(self.asked.max(at)..to);
        self.asked = self.asked.max(to);
    }

    /// Whether nothing is asked for: somebody else does that.
    pub fn is_left_alone(&mut self, is_it: bool) {
        if is_it {
            self.most_bytes = 0;
            self.wanted.clear();
        }
    }

    /// The next chunk to ask for, if there is one and there is room for it; without room it stays the next one, unless it is read meanwhile.
    pub fn take(&mut self, has_room: impl FnOnce(u64) -> bool) -> Option<u64> {
        let read = if self.is_whole {
            self.front / self.layout.chunk
        } else {
            0
        };
        while self.wanted.front().is_some_and(|&nth| nth < read) {
            self.wanted.pop_front();
        }
        let nth = *self.wanted.front()?;
        if has_room(nth) { self.wanted.pop_front() } else { None }
    }

    /// Chunks that won't be read again: they end before this one.
    #[must_use]
    pub fn behind(&self) -> u64 {
        if self.is_whole {
            (self.front.saturating_sub(APART)) / self.layout.chunk
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Chunking;

    const MIB: u64 = 1 << 20;
    const READ: u64 = 128 << 10;

    fn asked(ahead: &mut Ahead) -> Vec<u64> {
        std::iter::from_fn(|| ahead.take(|_| true)).collect()
    }

    fn ahead(bytes: u64, most: u64) -> Ahead {
        Ahead::new(Chunking::Adaptive.layout(bytes), most)
    }

    #[test]
    fn a_file_that_is_read_from_its_beginning_has_each_chunk_asked_for_once_and_more_and_more_of_them() {
        let (bytes, most) = (400 * MIB, 128 * MIB);
        let mut ahead = ahead(bytes, most);
        let (mut all, mut most_ahead) = (Vec::new(), 0);
        for at in (0..bytes).step_by(READ as usize) {
            ahead.read(at..at + READ, Duration::from_micros(300), true);
            all.extend(asked(&mut ahead));
            if let Some(last) = all.last() {
                most_ahead = most_ahead.max((last + 1) * 4 * MIB - (at + READ));
            }
            if at == 0 {
                assert_eq!(all, [1, 2, 3]);
            }
        }
        assert_eq!(all, (1..100).collect::<Vec<_>>());
        assert!(most_ahead <= most + 4 * MIB, "{most_ahead}");
        assert!(most_ahead >= most / 2, "{most_ahead}");
    }

    #[test]
    fn who_looks_at_the_head_alone_costs_a_few_chunks() {
        let mut ahead = ahead(1000 * MIB, 512 * MIB);
        ahead.read(0..READ, Duration::ZERO, true);
        assert!(asked(&mut ahead).len() <= 3);
        ahead.read(999 * MIB..1000 * MIB, Duration::ZERO, true);
        assert_eq!(asked(&mut ahead), [0_u64; 0]);
    }

    #[test]
    fn reads_at_random_have_nothing_asked_for() {
        let mut ahead = ahead(4000 * MIB, 512 * MIB);
        let mut place = 12_345_u64;
        for _ in 0..500 {
            place = place
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = place % (3999 * MIB);
            ahead.read(at..at + 110_000, Duration::from_millis(5), true);
            assert_eq!(asked(&mut ahead), [0_u64; 0]);
        }
    }

    #[test]
    fn reads_at_equal_distances_have_the_next_ones_asked_for() {
        let mut ahead = ahead(4000 * MIB, 64 * MIB);
        let mut found = Vec::new();
        for nth in 0..30 {
            let at = 100 * MIB + nth * 50 * MIB;
            ahead.read(at..at + 2 * READ, Duration::from_millis(30), true);
            found.extend(asked(&mut ahead));
        }
        assert!(found.len() >= 15, "{found:?}");
        let expected: Vec<u64> = (0..80).map(|nth| (100 + nth * 50) / 8).collect();
        assert!(
            found
                .iter()
                .all(|chunk| expected.iter().any(|at| at.abs_diff(*chunk) <= 1)),
            "{found:?}"
        );
    }

    #[test]
    fn what_is_read_on_from_the_middle_is_read_ahead() {
        let mut ahead = ahead(4000 * MIB, 64 * MIB);
        ahead.read(0..READ, Duration::ZERO, true);
        asked(&mut ahead);
        let mut found = Vec::new();
        for at in (1000 * MIB..1100 * MIB).step_by(READ as usize) {
            ahead.read(at..at + READ, Duration::from_micros(300), true);
            found.extend(asked(&mut ahead));
        }
        found.dedup();
        assert!(found.contains(&128) && found.contains(&135), "{found:?}");
        assert!(found.iter().all(|&chunk| (125..150).contains(&chunk)), "{found:?}");
    }

    #[test]
    fn who_never_waits_has_no_more_asked_for_than_that_takes() {
        let mut ahead = ahead(400 * MIB, 256 * MIB);
        let mut most_ahead = 0;
        for at in (0..300 * MIB).step_by(READ as usize) {
            ahead.read(at..at + READ, Duration::from_micros(300), false);
            for chunk in asked(&mut ahead) {
                most_ahead = most_ahead.max((chunk + 1) * 4 * MIB - at);
            }
        }
        assert!(most_ahead <= (THEN + 2) * 4 * MIB, "{most_ahead}");
    }

    #[test]
    fn what_there_is_no_room_for_is_asked_for_later_unless_it_was_read() {
        let mut ahead = ahead(400 * MIB, 64 * MIB);
        ahead.read(0..READ, Duration::ZERO, true);
        assert_eq!(ahead.take(|nth| nth != 1), None);
        assert_eq!(asked(&mut ahead), [1, 2, 3]);
        let mut all = Vec::new();
        for at in (READ..200 * MIB).step_by(READ as usize) {
            ahead.read(at..at + READ, Duration::ZERO, true);
            // For one at a time, and every other time for none.
            all.extend(ahead.take(|_| at % (8 * MIB) == 0));
        }
        assert!(all.is_sorted() && all.len() > 20, "{all:?}");
        assert!(asked(&mut ahead).iter().all(|&nth| nth >= 200 / 4 - 1));
    }

    #[test]
    fn nothing_is_asked_for_where_nothing_may_be() {
        let mut ahead = ahead(400 * MIB, 0);
        ahead.read(0..READ, Duration::ZERO, true);
        assert_eq!(asked(&mut ahead), [0_u64; 0]);
    }

    #[test]
    fn reads_that_come_in_another_order_are_still_one_reader() {
        let mut ahead = ahead(400 * MIB, 64 * MIB);
        let mut all = Vec::new();
        for pair in 0..1600 {
            let at = pair * 2 * READ;
            for at in [at + READ, at] {
                ahead.read(at..at + READ, Duration::ZERO, true);
                all.extend(asked(&mut ahead));
            }
        }
        assert_eq!(all, (1..100).collect::<Vec<_>>());
    }
}
