//! The detector `poll`: a loop that looks which pages were touched, and asks for those that come next.
//!
//! While nothing is mapped that is followed, the thread only looks whether the program's first one is there still; else it looks as often as [`foreload_plan::window::pace`] says.

use core::sync::atomic::{AtomicPtr, Ordering};

use core::time::Duration;
use foreload_plan::window::Tally;
use foreload_plan::window::pace::{Pace, Resident};

use crate::follow::{self, NEWS, clock};
use crate::pages::{self, Pages, Statm};
use crate::stats::{self, Off};
use crate::table::{Mapping, PLACES, Place, TABLE};
use crate::watch::Watch;
use crate::{advice, env, memory};

/// How often the line of statistics is written while there is news, for each time costs as much as two looks, and once there is none; how often the memory is looked at.
const WRITE_NS: u64 = 100_000_000;
const WRITE_LAST_NS: u64 = 50_000_000;
const MEMORY_NS: u64 = 5_000_000_000;

/// What the thread knows of each place's mapping: an array that is made when the first thread begins.
static WATCHES: AtomicPtr<Watch> = AtomicPtr::new(core::ptr::null_mut());

/// That array; the thread alone uses it, of which a process has one, and a forked child before it has started its own.
fn watches() -> Option<&'static mut [Watch]> {
    let mut first = WATCHES.load(Ordering::Acquire);
    if first.is_null() {
        let (len, flags) = (PLACES * size_of::<Watch>(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, which stays; the system is called directly, for our own calls needn't see it.
        let at = unsafe { libc::syscall(libc::SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == -1 {
            return None;
        }
        first = at as *mut Watch;
        // SAFETY: there is room for so many, at a page's beginning.
        (0..PLACES).for_each(|place| unsafe { first.add(place).write(Watch::NONE) });
        WATCHES.store(first, Ordering::Release);
    }
    // SAFETY: all of them were written, and see above for who uses them.
    Some(unsafe { core::slice::from_raw_parts_mut(first, PLACES) })
}

/// A child has no thread yet. Its parent's may have been in the middle of it: what it knew is left where it is, and nothing of it is unmapped, for the child may have something else there.
pub fn in_child() {
    WATCHES.store(core::ptr::null_mut(), Ordering::Release);
}

/// Looks until it can't any more, and says why it can't.
pub fn run() {
    let Some((pages, watches)) = pages::find().zip(watches()) else {
        stats::off(Off::Pages);
        return;
    };
    stats::way(pages.way());
    stats::begin();
    let mut poll = Poll::new(pages, watches);
    while poll.turn() {}
}

/// The thread's state.
struct Poll<'a> {
    pages: Pages,
    watches: &'a mut [Watch],
    /// Which mapping is watched in each place; 0: none is.
    watched: [u64; PLACES],
    /// How much of files this process has in memory.
    statm: Statm,
    resident: Resident,
    /// Whether anything is on its way.
    is_ahead: bool,
    /// What has come of mappings that have ended.
    ended: Tally,
    /// What streams have together, at most.
    budget: u64,
    pace: Pace,
    looked_at: u64,
    /// How long the look before was ago when this one began.
    elapsed: Duration,
    /// What the line of statistics says, and since when.
    written: Tally,
    written_at: u64,
    memory_at: u64,
}

impl<'a> Poll<'a> {
    fn new(pages: Pages, watches: &'a mut [Watch]) -> Self {
        let now = clock(libc::CLOCK_MONOTONIC);
        Poll {
            pages,
            watches,
            watched: [0; PLACES],
            statm: Statm::open(),
            resident: Resident::new(),
            is_ahead: false,
            ended: Tally::default(),
            budget: memory::budget(),
            pace: Pace::new(),
            looked_at: now,
            elapsed: Duration::ZERO,
            written: Tally::default(),
            written_at: now,
            memory_at: now,
        }
    }

    /// Looks once, and sleeps; false: it can't look any more.
    fn turn(&mut self) -> bool {
        let news = NEWS.load(Ordering::Acquire);
        if follow::has_left() {
            return false;
        }
        let (mut all, mut live) = (Tally::default(), 0);
        let begun = clock(libc::CLOCK_MONOTONIC);
        self.elapsed = Duration::from_nanos(begun.saturating_sub(self.looked_at));
        self.is_ahead = false;
        let are_taken_back = self.statm.has_lost(&mut self.resident);
        if are_taken_back {
            self.watches.iter_mut().for_each(|watch| watch.taken_back());
        }
        self.pace.taken_back(are_taken_back);
        for (at, place) in TABLE.places.iter().enumerate() {
            match self.look(at, place) {
                Some(Some(tally)) => {
                    all += tally;
                    live += 1;
                }
                Some(None) => {}
                None => {
                    stats::off(Off::Pages);
                    return false;
                }
            }
        }
        all += self.ended;
        let (now, cpu) = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_THREAD_CPUTIME_ID));
        self.pace.looked(self.elapsed, all.touched_bytes);
        self.looked_at = begun;
        stats::tally(&all, cpu);
        let patience = if self.pace.is_quiet() { WRITE_LAST_NS } else { WRITE_NS };
        let is_due = all != self.written && now.saturating_sub(self.written_at) >= patience;
        if is_due || live == 0 {
            (self.written, self.written_at) = (all, now);
            stats::write();
        }
        if now.saturating_sub(self.memory_at) >= MEMORY_NS {
            self.memory_at = now;
            self.budget = memory::budget();
        }
        self.sleep(live, news);
        true
    }

    /// Until something is mapped, where nothing is; else until the next look.
    fn sleep(&mut self, live: usize, news: u32) {
        let wait = self.pace.wait(self.is_ahead);
        follow::sleep(news, (live > 0).then_some(wait));
        if NEWS.load(Ordering::Acquire) != news {
            self.pace.renew();
        }
    }

    /// Looks at one mapping, if there is one: what has come of it so far. None: pages can't be looked at.
    fn look(&mut self, at: usize, place: &Place) -> Option<Option<Tally>> {
        let (watched, live) = (self.watched.get_mut(at)?, place.live());
        if live.is_none() && *watched == 0 {
            TABLE.release(place);
            return Some(None);
        }
        let watch = self.watches.get_mut(at)?;
        if live.is_none_or(|(turn, _)| turn != *watched) {
            self.ended += watch.tally();
            watch.end();
            *watched = 0;
        }
        let Some((turn, mapping)) = live else {
            TABLE.release(place);
            return Some(None);
        };
        if *watched == 0 {
            let page = self.pages.page();
            let whole = Mapping {
                len: mapping.len.next_multiple_of(page),
                ..mapping
            };
            let step = memory::step(mapping.major, mapping.minor).max(page as u64);
            if !watch.begin(whole, step, env::window_bytes()) {
                return Some(None);
            }
            *watched = turn;
        }
        stats::scanned();
        if !watch.hot(&self.pages) {
            return None;
        }
        let cpu = || Duration::from_nanos(clock(libc::CLOCK_THREAD_CPUTIME_ID));
        if !watch.search_within(&self.pages, &mut self.pace, cpu) {
            return None;
        }
        watch.looked(self.elapsed);
        let page = self.pages.page() as u64;
        while let Some(span) = watch.next(self.budget) {
            advice::ask(place, turn, &watch.mapping, span, watch.step, page);
        }
        self.is_ahead |= watch.is_ahead();
        Some(Some(watch.tally()))
    }
}
