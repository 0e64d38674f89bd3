//! What the thread knows of one mapping: which parts of it were touched, and its detector.
//!
//! Touches are known by granules of 64 KiB, for a fault maps what is in memory around it. A granule with a page in the page table is touched; it was touched anew if it had none before. The thread looks where streams are expected
//! each time (`hot`), and elsewhere for as long as it may (`search`): first at what was never touched, which costs next to nothing, and then at what was, for the kernel may have taken it back.

use core::time::Duration;
use foreload_plan::window::{Detector, STREAMS, Span, Tally};

use crate::pages::Pages;
use crate::table::Mapping;

/// What a fault maps around it (`fault_around_bytes`).
pub const GRANULE: usize = 64 << 10;
/// Granules in a word, and words that are looked at in one go.
const BITS: usize = u64::BITS as usize;
const WORDS: usize = 16;
/// What one search looks at, at most: granules, and runs of those that were never touched.
const SEARCH: usize = 16_384;
const SEARCH_RUNS: usize = 64;
/// Of those that were touched, for each of them has pages to be looked at.
const SEARCH_TOUCHED: usize = 128;

/// A mapping under observation.
pub struct Watch {
    pub mapping: Mapping,
    /// What one call fetches.
    pub step: u64,
    detector: Detector,
    /// The granule's address that has the first byte, and how many there are.
    base: usize,
    granules: usize,
    /// A bit for each granule that was touched; none while nothing is observed.
    touched: *mut u64,
    /// Where the searches go on.
    next: usize,
    next_touched: usize,
    /// Whether what is there now was touched by somebody else.
    is_populated: bool,
}

/// Granules behind each other.
#[derive(Clone, Copy)]
struct Run {
    from: usize,
    to: usize,
}

impl Watch {
    pub const NONE: Watch = Watch {
        mapping: Mapping {
            at: 0,
            len: 0,
            offset: 0,
            major: 0,
            minor: 0,
            is_populated: false,
        },
        step: 0,
        detector: Detector::new(0, GRANULE as u64, 0),
        base: 0,
        granules: 0,
        touched: core::ptr::null_mut(),
        next: 0,
        next_touched: 0,
        is_populated: false,
    };

    /// Begins to observe a mapping; false: there is no memory for that.
    pub fn begin(&mut self, mapping: Mapping, step: u64, window: u64) -> bool {
        self.end();
        let base = mapping.at & !(GRANULE - 1);
        let granules = (mapping.at + mapping.len - base).div_ceil(GRANULE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (len, protection) = (bytes_of(granules), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: new memory; the system is called directly, for our own calls needn't see it.
        let touched = unsafe { libc::syscall(libc::SYS_mmap, 0, len, protection, flags, -1, 0) };
        if touched == -1 {
            return false;
        }
        *self = Watch {
            mapping,
            step,
            detector: Detector::new(mapping.len as u64, GRANULE as u64, window),
            base,
            granules,
            touched: touched as *mut u64,
            next: 0,
            next_touched: 0,
            is_populated: mapping.is_populated,
        };
        true
    }

    /// Lets go of it.
    pub fn end(&mut self) {
        if !self.touched.is_null() {
            // SAFETY: `begin` has mapped it, and nobody else has the address.
            unsafe { libc::syscall(libc::SYS_munmap, self.touched, bytes_of(self.granules)) };
        }
        *self = Watch::NONE;
    }

    /// Whether something is on its way that wasn't touched.
    pub fn is_ahead(&self) -> bool {
        self.detector.outstanding_bytes() > 0
    }

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
        if at * BITS >= self.granules {
            return u64::MAX;
        }
        // SAFETY: `begin` has mapped a word for each `BITS` granules, and the thread alone uses them.
        unsafe { self.touched.add(at).read() }
    }

    fn set_word(&mut self, at: usize, word: u64) {
        if at * BITS < self.granules {
            // SAFETY: as above.
            unsafe { self.touched.add(at).write(word) };
        }
    }

    /// Looks where streams are expected; false: it can't be said.
    pub fn hot(&mut self, pages: &Pages) -> bool {
        for stream in 0..STREAMS {
            for span in self
                .detector
                .watch(stream)
                .into_iter()
                .flatten()
                .filter(|span| !span.is_empty())
            {
                let run = Run {
                    from: (self.mapping.at + span.from as usize - self.base) / GRANULE,
                    to: (self.mapping.at + span.to as usize - self.base).div_ceil(GRANULE),
                };
                if !self.look(pages, run) {
                    return false;
                }
            }
        }
        true
    }

    /// Looks at more of what was never touched; false: it can't be said.
    pub fn search(&mut self, pages: &Pages) -> bool {
        if core::mem::take(&mut self.is_populated) {
            // What is there already is nobody's touch.
            let before = core::mem::replace(&mut self.detector, Detector::new(0, GRANULE as u64, 0));
            let is_known = self.look(
                pages,
                Run {
                    from: 0,
                    to: self.granules,
                },
            );
            self.detector = before;
            return is_known;
        }
        let (mut at, mut runs) = (self.next, 0);
        let stop = (at + SEARCH).min(self.granules);
        while at < stop && runs < SEARCH_RUNS {
            let from = self.until(at, stop, false);
            let to = self.until(from, stop, true);
            if from < to && !self.look(pages, Run { from, to }) {
                return false;
            }
            (at, runs) = (to, runs + 1);
        }
        self.next = if at < self.granules { at } else { 0 };
        true
    }

    /// Looks at some of what was touched before; false: it can't be said.
    pub fn search_touched(&mut self, pages: &Pages) -> bool {
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
    fn look(&mut self, pages: &Pages, run: Run) -> bool {
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
        let within = |granule| (self.address(granule) - self.mapping.at) as u64;
        let span = Span {
            from: within(from),
            to: within(to),
        };
        self.detector.touched(span);
    }

    /// Where a granule begins, within the mapping.
    fn address(&self, granule: usize) -> usize {
        (self.base + granule * GRANULE).clamp(self.mapping.at, self.mapping.at + self.mapping.len)
    }
}

const fn bytes_of(granules: usize) -> usize {
    granules.div_ceil(BITS) * size_of::<u64>()
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
