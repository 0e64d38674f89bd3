//! Which parts of one mapping were touched, by looks at the page table, and what its detector makes of that.
//!
//! Touches are known by granules of 64 KiB, for a fault maps what is in memory around it. A granule with a page in the page table is touched; it was touched anew if it had none before. It is looked where streams are expected
//! each time ([`Watch::hot`]), and elsewhere for as long as may be ([`Watch::search`]): first at what was never touched, which costs next to nothing where nothing around it was, and then at some of what was, for the kernel may have taken it back. Where it has
//! ([`Watch::taken_back`]), at all of that, for what isn't known to be gone isn't seen when it is touched again. Another pass is looked for where the one before began, and what comes next near what was found last.
//!
//! The bits are kept in memory that the caller brings, for nothing is allocated here.

use super::pace::Pace;
use super::pagemap::{Kernel, Pages};
use super::{Detector, STREAMS, Span, Tally};
use core::time::Duration;

/// What a fault maps around it (`fault_around_bytes`).
pub const GRANULE: usize = 64 << 10;
/// Granules in a word, and words that are looked at in one go.
const BITS: usize = u64::BITS as usize;
const WORDS: usize = 16;
/// What one search looks at, at most: granules, and runs of those that were never touched.
const SEARCH: usize = 16_384;
const SEARCH_RUNS: usize = 64;
/// Granules that one question is about.
const PIECE: usize = WORDS * BITS;
/// Where a pass began, so many are looked at for another one.
const BEGIN: usize = 16;
/// Of those that were touched, for each of them has pages to be looked at.
const SEARCH_TOUCHED: usize = 128;

const _: () = assert!(GRANULE.is_power_of_two());

/// A mapping under observation, with a bit in `W` for each granule that was touched.
#[derive(Debug)]
pub struct Watch<W> {
    /// Its first byte, and how many it has.
    at: usize,
    len: usize,
    detector: Detector,
    /// The granule's address that has the first byte, and how many there are.
    base: usize,
    granules: usize,
    touched: W,
    /// Where the searches go on.
    next: usize,
    next_touched: usize,
    /// Granules that are to be looked at before it is known again what is there.
    unsure: usize,
    /// Where the first pass began, and where a search found something last.
    begin: Option<usize>,
    near: Option<usize>,
    /// Whether what is there now was touched by somebody else.
    is_populated: bool,
}

/// Granules behind each other.
#[derive(Clone, Copy)]
struct Run {
    from: usize,
    to: usize,
}

/// Words that the bits of a mapping take.
#[must_use]
pub const fn words(at: usize, len: usize) -> usize {
    granules(at, len).div_ceil(BITS)
}

const fn granules(at: usize, len: usize) -> usize {
    (at % GRANULE + len).div_ceil(GRANULE)
}

impl<W: AsRef<[u64]> + AsMut<[u64]>> Watch<W> {
    /// Observes nothing.
    pub const fn none(touched: W) -> Self {
        Watch {
            at: 0,
            len: 0,
            detector: Detector::new(0, GRANULE as u64, 0),
            base: 0,
            granules: 0,
            touched,
            next: 0,
            next_touched: 0,
            unsure: 0,
            begin: None,
            near: None,
            is_populated: false,
        }
    }

    /// Begins to observe `len` bytes of whole pages.
    ///
    /// `is_populated`: pages that are there at the first search are nobody's touch. `window_bytes` is the [detector](Detector::new)'s, and `touched` are so many [`words`], all of them 0.
    pub fn begin(at: usize, len: usize, is_populated: bool, window_bytes: u64, touched: W) -> Self {
        Watch {
            at,
            len,
            detector: Detector::new(len as u64, GRANULE as u64, window_bytes),
            base: at & !(GRANULE - 1),
            granules: granules(at, len),
            is_populated,
            ..Watch::none(touched)
        }
    }

    /// Whether something is on its way that wasn't touched.
    pub fn is_ahead(&self) -> bool {
        self.detector.outstanding_bytes() > 0
    }

    /// What has come of it.
    pub const fn tally(&self) -> Tally {
        self.detector.tally()
    }

    /// A look is over.
    pub fn looked(&mut self, elapsed: Duration) {
        self.detector.looked(elapsed);
    }

    /// What to fetch next.
    pub fn next(&mut self, most_bytes: u64) -> Option<Span> {
        self.detector.next(most_bytes)
    }

    fn word(&self, at: usize) -> u64 {
        self.touched.as_ref().get(at).copied().unwrap_or(u64::MAX)
    }

    fn set_word(&mut self, at: usize, word: u64) {
        if let Some(place) = self.touched.as_mut().get_mut(at) {
            *place = word;
        }
    }

    /// Looks where streams are expected; false: it can't be said.
    pub fn hot<K: Kernel>(&mut self, pages: &Pages<K>) -> bool {
        if let Some(from) = self.begin.filter(|&begin| !self.is_touched(begin)) {
            let to = from + BEGIN;
            if !self.look(pages, Run { from, to }) {
                return false;
            }
        }
        let near = self.near;
        for stream in 0..STREAMS {
            for span in self
                .detector
                .watch(stream)
                .into_iter()
                .flatten()
                .filter(|span| !span.is_empty())
            {
                let run = Run {
                    from: (self.at + span.from as usize - self.base) / GRANULE,
                    to: (self.at + span.to as usize - self.base).div_ceil(GRANULE),
                };
                if !self.look(pages, run) {
                    return false;
                }
            }
        }
        // Streams are looked at anyway.
        self.near = near;
        true
    }

    fn is_touched(&self, granule: usize) -> bool {
        self.word(granule / BITS) >> (granule % BITS) & 1 == 1
    }

    /// Looks elsewhere for as long as `pace` allows by the time that `cpu` says; false: it can't be said.
    pub fn search_within<K: Kernel>(&mut self, pages: &Pages<K>, pace: &mut Pace, cpu: impl Fn() -> Duration) -> bool {
        if !pace.may_search() {
            return true;
        }
        let mut before = cpu();
        let mut goes_on = || {
            let now = cpu();
            pace.searched(now.saturating_sub(before));
            before = now;
            pace.may_search()
        };
        let is_known = self.search(pages, &mut goes_on) && (!goes_on() || self.search_touched(pages, &mut goes_on));
        goes_on();
        is_known
    }

    /// Looks at more of what was never touched, for as long as `goes_on`; false: it can't be said.
    pub fn search<K: Kernel>(&mut self, pages: &Pages<K>, mut goes_on: impl FnMut() -> bool) -> bool {
        if core::mem::take(&mut self.is_populated) {
            // What is there already is nobody's touch.
            let before = core::mem::replace(&mut self.detector, Detector::new(0, GRANULE as u64, 0));
            let run = Run {
                from: 0,
                to: self.granules,
            };
            let is_known = self.look(pages, run);
            (self.detector, self.begin, self.near) = (before, None, None);
            return is_known;
        }
        if let Some(mut at) = self.near.take() {
            let stop = (at + PIECE).min(self.granules);
            while at < stop && goes_on() {
                let Some(next) = self.look_at_untouched(pages, at, stop) else {
                    return false;
                };
                at = next;
            }
        }
        let (mut left, mut runs) = (self.granules.min(SEARCH), SEARCH_RUNS);
        while left > 0 && runs > 0 {
            let stop = (self.next + PIECE.min(left)).min(self.granules);
            let Some(next) = self.look_at_untouched(pages, self.next, stop) else {
                return false;
            };
            (left, runs) = (left - (next - self.next), runs - 1);
            self.next = if next < self.granules { next } else { 0 };
            if !goes_on() {
                break;
            }
        }
        true
    }

    /// Looks at the first granules from `at` on that were never touched; where they end. None: it can't be said.
    fn look_at_untouched<K: Kernel>(&mut self, pages: &Pages<K>, at: usize, stop: usize) -> Option<usize> {
        let from = self.until(at, stop, false);
        let to = self.until(from, stop, true);
        (from == to || self.look(pages, Run { from, to })).then_some(to)
    }

    /// Pages of the process were taken back, of this mapping perhaps.
    pub fn taken_back(&mut self) {
        self.unsure = self.granules;
    }

    /// Looks at some of what was touched before, and where pages were [taken back](Watch::taken_back) at all of it, for as long as `goes_on`; false: it can't be said.
    pub fn search_touched<K: Kernel>(&mut self, pages: &Pages<K>, mut goes_on: impl FnMut() -> bool) -> bool {
        while self.unsure > 0 {
            let from = self.granules - self.unsure;
            let to = (from + PIECE).min(self.granules);
            self.unsure = self.granules - to;
            if !self.look(pages, Run { from, to }) {
                return false;
            }
            if !goes_on() {
                return true;
            }
        }
        let stop = self.granules;
        let from = self.until(self.next_touched, stop, true);
        let to = self.until(from, stop, false).min(from + SEARCH_TOUCHED);
        self.next_touched = if to < stop { to } else { 0 };
        from >= to || self.look(pages, Run { from, to })
    }

    /// The first granule from `at` on that was touched, or that wasn't.
    fn until(&self, mut at: usize, stop: usize, is_touched: bool) -> usize {
        while at < stop {
            let word = if is_touched {
                self.word(at / BITS)
            } else {
                !self.word(at / BITS)
            };
            let rest = word >> (at % BITS);
            if rest != 0 {
                return (at + rest.trailing_zeros() as usize).min(stop);
            }
            at = (at / BITS + 1) * BITS;
        }
        stop
    }

    /// Looks at these granules, and passes on what was touched.
    fn look<K: Kernel>(&mut self, pages: &Pages<K>, run: Run) -> bool {
        let end = run.to.min(self.granules);
        let mut from = run.from;
        let mut fresh: Option<Run> = None;
        while from < end {
            let first = from / BITS;
            let to = ((first + WORDS) * BITS).min(end);
            let mut there = [0_u64; WORDS];
            let (base, low, high) = (self.base, self.address(from), self.address(to));
            let is_known = pages.present(low, high, |low, high| {
                for granule in (low - base) / GRANULE..(high - base).div_ceil(GRANULE) {
                    if let Some(word) = there.get_mut((granule / BITS).wrapping_sub(first)) {
                        *word |= 1 << (granule % BITS);
                    }
                }
            });
            if !is_known {
                return false;
            }
            for (nth, there) in there.iter().enumerate() {
                let begin = (first + nth) * BITS;
                let looked = bits(from.max(begin), to.min(begin + BITS), begin);
                let before = self.word(first + nth);
                let mut new = there & looked & !before;
                if looked != 0 {
                    // What isn't there any more may be touched again.
                    self.set_word(first + nth, before & !looked | there & looked);
                }
                while new != 0 {
                    let granule = begin + new.trailing_zeros() as usize;
                    new &= new - 1;
                    match &mut fresh {
                        Some(run) if run.to == granule => run.to += 1,
                        _ => {
                            self.pass_on(fresh);
                            fresh = Some(Run {
                                from: granule,
                                to: granule + 1,
                            });
                        }
                    }
                }
            }
            from = to;
        }
        self.pass_on(fresh);
        true
    }

    fn pass_on(&mut self, run: Option<Run>) {
        let Some(Run { from, to }) = run else { return };
        self.begin.get_or_insert(from);
        self.near = Some(from);
        let within = |granule| (self.address(granule) - self.at) as u64;
        let span = Span {
            from: within(from),
            to: within(to),
        };
        self.detector.touched(span);
    }

    /// Where a granule begins, within the mapping.
    fn address(&self, granule: usize) -> usize {
        (self.base + granule * GRANULE).clamp(self.at, self.at + self.len)
    }
}

/// Bits from one granule to another, in the word that begins with `begin`.
const fn bits(from: usize, to: usize, begin: usize) -> u64 {
    if from >= to {
        return 0;
    }
    let (low, high) = (from - begin, to - begin);
    let below = if high >= BITS { u64::MAX } else { (1 << high) - 1 };
    below & (u64::MAX << low)
}

#[cfg(test)]
mod tests {
    use super::super::pagemap::Scan;
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    const PAGE: usize = 4096;
    const AT: usize = (7 << 30) + 5 * PAGE;
    const MEBIBYTE: usize = 1 << 20;

    /// Pages that are there, by their numbers; asked by reading.
    #[derive(Default)]
    struct Table(RefCell<BTreeSet<usize>>);

    impl Kernel for &Table {
        fn scan(&self, _: &mut Scan) -> Option<usize> {
            None
        }

        fn read(&self, offset: u64, entries: &mut [u64]) -> usize {
            for (nth, entry) in entries.iter_mut().enumerate() {
                let page = offset as usize / 8 + nth;
                *entry = u64::from(self.0.borrow().contains(&page)) << 63;
            }
            entries.len()
        }
    }

    impl Table {
        /// A program reads so many bytes: faults map what lies around them.
        fn touch(&self, from: usize, len: usize) {
            let (low, high) = (
                (AT + from) & !(GRANULE - 1),
                (AT + from + len).next_multiple_of(GRANULE),
            );
            self.0.borrow_mut().extend(low / PAGE..high / PAGE);
        }

        fn pages(&self) -> Pages<&Table> {
            Pages::find(self, PAGE, |pages| pages.present(0, PAGE, |_, _| ())).expect("by reading")
        }
    }

    fn watch(len: usize, is_populated: bool) -> Watch<Vec<u64>> {
        Watch::begin(AT, len, is_populated, 32 << 20, vec![0; words(AT, len)])
    }

    fn look(watch: &mut Watch<Vec<u64>>, table: &Table) {
        let pages = table.pages();
        assert!(watch.hot(&pages) && watch.search(&pages, || true) && watch.search_touched(&pages, || true));
        watch.looked(Duration::from_millis(10));
    }

    #[test]
    fn what_is_read_on_is_read_ahead() {
        let (table, len) = (Table::default(), 64 * MEBIBYTE);
        let mut watch = watch(len, false);
        let mut first = None;
        for mebibyte in 0..8 {
            table.touch(mebibyte * MEBIBYTE, MEBIBYTE);
            look(&mut watch, &table);
            while let Some(span) = watch.next(u64::MAX) {
                first.get_or_insert(span);
            }
        }
        let first = first.expect("something is asked for");
        assert!(
            first.from >= MEBIBYTE as u64 && first.from <= 3 * MEBIBYTE as u64,
            "{first:?}"
        );
        let read = 8 * MEBIBYTE as u64;
        assert!(watch.tally().touched_bytes.abs_diff(read) <= GRANULE as u64);
        assert!(watch.tally().used_bytes > read / 2 && watch.is_ahead());
    }

    #[test]
    fn a_granule_is_touched_once_and_again_when_it_had_gone() {
        let (table, len) = (Table::default(), 4 * MEBIBYTE);
        let mut watch = watch(len, false);
        for touched in [1, 1, 1] {
            table.touch(2 * MEBIBYTE, 1);
            look(&mut watch, &table);
            assert_eq!(watch.tally().touched_bytes, touched * GRANULE as u64);
        }
        table.0.borrow_mut().clear();
        look(&mut watch, &table);
        table.touch(2 * MEBIBYTE, 1);
        look(&mut watch, &table);
        assert_eq!(watch.tally().touched_bytes, 2 * GRANULE as u64);
    }

    #[test]
    fn what_was_taken_back_is_seen_when_it_is_touched_again_wherever_that_is() {
        let (table, len) = (Table::default(), 256 * MEBIBYTE);
        for is_told in [false, true] {
            let mut watch = watch(len, false);
            table.touch(0, len);
            look(&mut watch, &table);
            assert_eq!(watch.tally().touched_bytes, len as u64);
            table.0.borrow_mut().clear();
            if is_told {
                watch.taken_back();
            }
            look(&mut watch, &table);
            table.touch(200 * MEBIBYTE, MEBIBYTE);
            look(&mut watch, &table);
            assert_eq!(watch.tally().touched_bytes > len as u64, is_told);
            table.0.borrow_mut().clear();
        }
    }

    #[test]
    fn what_was_taken_back_is_looked_for_as_long_as_there_is_time() {
        let (table, len) = (Table::default(), 256 * MEBIBYTE);
        let mut watch = watch(len, false);
        table.touch(0, len);
        look(&mut watch, &table);
        watch.taken_back();
        let (pages, mut rounds) = (table.pages(), 0);
        while watch.unsure > 0 {
            let mut left = 3;
            assert!(watch.search_touched(&pages, || {
                left -= 1;
                left > 0
            }));
            rounds += 1;
        }
        assert_eq!(rounds, watch.granules.div_ceil(3 * PIECE));
    }

    #[test]
    fn what_was_there_at_the_beginning_is_nobody_s_touch() {
        let (table, len) = (Table::default(), 4 * MEBIBYTE);
        table.touch(0, MEBIBYTE);
        for is_populated in [false, true] {
            let mut watch = watch(len, is_populated);
            look(&mut watch, &table);
            assert_eq!(watch.tally().touched_bytes > 0, !is_populated);
            table.touch(3 * MEBIBYTE, 1);
            look(&mut watch, &table);
            assert!(watch.tally().touched_bytes > 0);
            table.0.borrow_mut().retain(|&page| page * PAGE < AT + 2 * MEBIBYTE);
        }
    }

    #[test]
    fn a_mapping_s_ends_are_its_own() {
        let (table, len) = (Table::default(), 3 * PAGE);
        table.touch(0, 10 * MEBIBYTE);
        let mut watch = watch(len, false);
        look(&mut watch, &table);
        assert_eq!(watch.tally().touched_bytes, len as u64);
    }

    #[test]
    fn what_is_not_observed_is_not_looked_at() {
        let table = Table::default();
        let mut watch = Watch::none(Vec::new());
        look(&mut watch, &table);
        assert_eq!((watch.tally(), watch.next(u64::MAX)), (Tally::default(), None));
    }
}
