//! Checkpoints of mappings, and what happens where one is touched: paper 003's way to find out how far a program is.
//!
//! One page at each *distance* is closed when a file is mapped. Who touches it gets a `SIGSEGV`, whose [handler](crate::signals) asks [`passed`]: the page is opened, the checkpoint that was hit before is closed again, so that the next pass is
//! seen, too, and the [optimizer](crate::optimizer) is told. The instruction is tried again, and finds the page.
//!
//! One checkpoint more is where the optimizer [`put`]s it, to see sooner where a pass begins.
//!
//! A page is closed by `mprotect`, or by a guard marker in its page-table entry, which splits no mapping. Only mappings that are read and neither written nor executed have checkpoints, and never the mapping whole.
//!
//! No lock is taken, for a handler must wait for nobody. What makes that safe:
//!
//! - A page is opened before it is noted as open, and what is no longer noted is closed by who took the note away. So a page may be closed that the program is about to touch, which costs another trap, but none stays closed for who tries again.
//! - Who alternates between two checkpoints, as an instruction with two operands may, has both of them open.
//! - Who ends a mapping first says so in the [table](crate::table), and then waits until no handler is at it ([`Arm::busy`]). From then on nobody changes the protection of those addresses: they may be another mapping's. Handlers run with all signals blocked, and so does who waits, so that neither interrupts the other on one thread.
//! - A fault may be on its way while all of a mapping is opened: it is tried again until that is done, and where the address can be read by then.
//! - A checkpoint that is hit although it is open, and again and again, is no trap of ours: the program gets its signal.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use libc::{c_int, c_long};

use crate::env::Detector;
use crate::follow::{self, NEWS};
use crate::stats::{self, Off};
use crate::table::{Mapping, PLACES, Place, TABLE};
use crate::{env, memory, pages, signals};

const GUARD_INSTALL: c_int = 102;
const GUARD_REMOVE: c_int = 103;
/// Each closed page makes two parts more of a mapping, and other mappings of the process need some: one part in so many of what it may have.
const PARTS_SHARE: u64 = 4;
/// How often in a row it is tried again at one address where we don't see why it wouldn't work.
const MOST_REPEATS: u32 = 64;
/// Hits that the optimizer may be behind; of more, the last ones.
const HITS: usize = 256;

/// What is known of one mapping's checkpoints; its number is that of its place in the table.
struct Arm {
    /// Handlers that are at it.
    busy: AtomicU32,
    /// Which of its checkpoints are open: see [`Open`].
    open: AtomicU64,
    /// Checkpoints that are closed, or were.
    count: AtomicU64,
    repeats: AtomicU32,
    /// Where one more is, that is moved: its first byte (0: nowhere). And whether it is open.
    moved: AtomicU64,
    is_moved_open: AtomicBool,
}

static ARMS: [Arm; PLACES] = [const {
    Arm {
        busy: AtomicU32::new(0),
        open: AtomicU64::new(0),
        count: AtomicU64::new(0),
        repeats: AtomicU32::new(0),
        moved: AtomicU64::new(0),
        is_moved_open: AtomicBool::new(false),
    }
}; PLACES];

/// Pages that may be closed yet; less than 0: it wasn't asked how many.
static LEFT: AtomicI64 = AtomicI64::new(-1);
/// Where something was tried again though no mapping of ours was there, and how often in a row.
static LATE_AT: AtomicUsize = AtomicUsize::new(0);
static LATE: AtomicU32 = AtomicU32::new(0);

static QUEUE: Queue = Queue::new();

/// The two checkpoints that were hit last, by their numbers, counted from 1; and whether the one before the last is open as well. The last one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    last: u32,
    before: u32,
    is_before_open: bool,
}

impl Open {
    const fn of(packed: u64) -> Self {
        Open {
            last: packed as u32 & (u32::MAX >> 1),
            before: (packed >> 31) as u32 & (u32::MAX >> 1),
            is_before_open: packed >> 62 != 0,
        }
    }

    const fn packed(self) -> u64 {
        self.last as u64 | (self.before as u64) << 31 | (self.is_before_open as u64) << 62
    }

    const fn has(self, checkpoint: u32) -> bool {
        checkpoint == self.last || (self.is_before_open && checkpoint == self.before)
    }

    /// One is hit that isn't open: what is open then, and what is to be closed (0: nothing).
    const fn hit(self, checkpoint: u32) -> (Self, [u32; 2]) {
        let next = Open {
            last: checkpoint,
            before: self.last,
            is_before_open: checkpoint == self.before,
        };
        let closed = if next.is_before_open {
            [0; 2]
        } else {
            [self.last, if self.is_before_open { self.before } else { 0 }]
        };
        (next, closed)
    }
}

/// A checkpoint that was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The place of its mapping, and which of the mappings that were there.
    pub place: usize,
    pub turn: u32,
    /// Which page of the mapping it is.
    pub page: u64,
}

const TURN_BITS: u32 = 24;

impl Hit {
    const fn packed(self) -> u64 {
        let turn = self.turn as u64 & ((1 << TURN_BITS) - 1);
        1 << 63 | (self.place as u64) << 56 | turn << 32 | self.page & (u32::MAX as u64)
    }

    const fn of(packed: u64) -> Self {
        Hit {
            place: (packed >> 56) as usize & (PLACES - 1),
            turn: (packed >> 32) as u32 & ((1 << TURN_BITS) - 1),
            page: packed & (u32::MAX as u64),
        }
    }

    /// Whether it is this mapping's.
    pub const fn is_of(self, turn: u64) -> bool {
        turn as u32 & ((1 << TURN_BITS) - 1) == self.turn
    }
}

/// Signals of ours get through from now on.
pub fn on_load() {
    signals::unblock();
}

fn call(number: c_long, at: usize, len: usize, how: c_int) -> bool {
    // SAFETY: the callers say which addresses; the system is called directly, for our own calls needn't see it.
    unsafe { libc::syscall(number, at, len, how) == 0 }
}

fn close(at: usize) -> bool {
    let page = pages::size();
    match env::detector() {
        Detector::Guard => call(libc::SYS_madvise, at, page, GUARD_INSTALL),
        _ => call(libc::SYS_mprotect, at, page, libc::PROT_NONE),
    }
}

fn open(at: usize, len: usize) -> bool {
    match env::detector() {
        Detector::Guard => call(libc::SYS_madvise, at, len, GUARD_REMOVE),
        _ => call(libc::SYS_mprotect, at, len, libc::PROT_READ),
    }
}

/// Takes so many pages, or those that are left.
fn take(count: u64) -> u64 {
    if env::detector() == Detector::Guard {
        return count;
    }
    if LEFT.load(Ordering::Relaxed) < 0 {
        let most = memory::most_parts() / PARTS_SHARE;
        let _ = LEFT.compare_exchange(-1, most as i64, Ordering::AcqRel, Ordering::Relaxed);
    }
    let left = LEFT.load(Ordering::Relaxed).max(0);
    let taken = left.min(count as i64);
    // Two at once may take a few more than there are: half of the parts are the program's own in any case.
    LEFT.store(left - taken, Ordering::Relaxed);
    taken as u64
}

/// Follows a mapping, and closes its checkpoints; false: it isn't followed.
pub fn arm(mapping: &Mapping) -> bool {
    let Some(checkpoints) = env::checkpoints() else {
        return false;
    };
    if !signals::install() {
        stats::off(Off::Handler);
        lift_others();
        return false;
    }
    let most = (u64::from(u32::MAX) * pages::size() as u64).min(mapping.len as u64);
    let wanted = checkpoints.count(most).min(u64::from(u32::MAX >> 1) - 1);
    let count = take(wanted);
    let Some(nth) = TABLE.add_prepared(mapping, |nth| {
        if let Some(arm) = ARMS.get(nth) {
            arm.open.store(0, Ordering::Relaxed);
            arm.repeats.store(0, Ordering::Relaxed);
            arm.moved.store(0, Ordering::Relaxed);
            arm.count.store(count, Ordering::Relaxed);
        }
    }) else {
        give_back(count);
        return false;
    };
    let Some(arm) = ARMS.get(nth) else { return false };
    arm.busy.fetch_add(1, Ordering::SeqCst);
    let place = |checkpoint: u64| mapping.at + (checkpoint * checkpoints.distance()) as usize;
    let closed = (0..count).take_while(|&nth| close(place(nth))).count();
    arm.busy.fetch_sub(1, Ordering::SeqCst);
    stats::armed(closed as u64);
    if closed == 0 && count > 0 {
        stats::off(if env::detector() == Detector::Guard {
            Off::Guard
        } else {
            Off::Protect
        });
        follow::ended(mapping.at, mapping.len);
        return false;
    }
    true
}

fn give_back(count: u64) {
    if env::detector() != Detector::Guard && LEFT.load(Ordering::Relaxed) >= 0 {
        LEFT.fetch_add(count as i64, Ordering::AcqRel);
    }
}

/// A mapping isn't followed any more: all of it is as the program has made it, and stays so.
pub fn disarm(nth: usize, place: &Place, mapping: &Mapping) {
    let Some(arm) = ARMS.get(nth) else { return };
    fence(Ordering::SeqCst);
    while arm.busy.load(Ordering::SeqCst) != 0 {
        // SAFETY: gives the core to others.
        unsafe { libc::sched_yield() };
    }
    let count = arm.count.swap(0, Ordering::AcqRel);
    if count > 0 {
        open(mapping.at, mapping.len.next_multiple_of(pages::size()));
        give_back(count);
    }
    TABLE.release(place);
}

/// Nothing is followed any more.
pub fn lift_others() {
    follow::ended(0, usize::MAX);
}

/// What a forked child does: its pages are as the program has made them, and none of its mappings is followed.
pub fn lift_all() {
    TABLE.clear(|mapping| {
        open(mapping.at, mapping.len.next_multiple_of(pages::size()));
    });
    for arm in &ARMS {
        give_back(arm.count.swap(0, Ordering::AcqRel));
        arm.busy.store(0, Ordering::SeqCst);
    }
    QUEUE.clear();
}

/// Something was read that couldn't be, with this code of the signal: whether that was our doing, and it may be touched now.
///
/// It is called by a signal's handler, changes `errno`, and does nothing else that a handler mustn't.
pub fn passed(address: usize, code: c_int) -> bool {
    let expected = match env::detector() {
        Detector::Poll => return false,
        Detector::Mprotect => signals::SEGV_ACCERR,
        Detector::Guard => signals::SEGV_MAPERR,
    };
    if code != expected {
        return false;
    }
    for (nth, (place, arm)) in TABLE.places.iter().zip(&ARMS).enumerate() {
        let is_there = |place: &Place| place.live().filter(|(_, mapping)| mapping.holds(address));
        if is_there(place).is_none() {
            continue;
        }
        arm.busy.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // It may have ended before it was known that we are at it.
        let hit = is_there(place).and_then(|(turn, mapping)| pass(arm, &mapping, address).map(|hit| (turn, hit)));
        arm.busy.fetch_sub(1, Ordering::SeqCst);
        if let Some((turn, hit)) = hit {
            if let Passed::First(byte) = hit {
                stats::trapped();
                tell(Hit {
                    place: nth,
                    turn: turn as u32,
                    page: byte / pages::size() as u64,
                });
            }
            return hit != Passed::Not;
        }
    }
    is_late(address)
}

/// Whether a fault was on its way while all of its mapping was opened, so that it needs only be tried again.
fn is_late(address: usize) -> bool {
    if TABLE.places.iter().any(|place| place.is_ending(address)) {
        // Who ends it is at it.
        // SAFETY: gives the core to others.
        unsafe { libc::sched_yield() };
        return true;
    }
    if !is_readable(address) {
        return false;
    }
    if LATE_AT.swap(address, Ordering::AcqRel) != address {
        LATE.store(0, Ordering::Relaxed);
    }
    LATE.fetch_add(1, Ordering::Relaxed) < MOST_REPEATS
}

/// Whether the system can read there: it looks at a mask before it finds that it isn't told what to do with it.
fn is_readable(address: usize) -> bool {
    let (nothing, mask) = (-1, address & !7);
    // SAFETY: nothing is changed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, nothing, mask, 0, size_of::<u64>()) };
    // SAFETY: the C library's own place for it, of this thread.
    unsafe { *libc::__errno_location() == libc::EINVAL }
}

/// What has come of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    /// The checkpoint at this byte was closed, and is open.
    First(u64),
    /// It was open already, or another thread has closed it again: it is open.
    Again,
    /// That isn't why.
    Not,
}

fn pass(arm: &Arm, mapping: &Mapping, address: usize) -> Option<Passed> {
    let (checkpoints, byte) = (env::checkpoints()?, (address - mapping.at) as u64);
    let Some(number) = checkpoints.at(byte, pages::size() as u64) else {
        return pass_moved(arm, mapping, byte);
    };
    if number >= arm.count.load(Ordering::Relaxed) {
        return None;
    }
    let place = |number: u64| mapping.at + (number * checkpoints.distance()) as usize;
    let checkpoint = number as u32 + 1;
    let mut now = arm.open.load(Ordering::Acquire);
    if Open::of(now).has(checkpoint) {
        return Some(again(arm, place(number)));
    }
    arm.repeats.store(0, Ordering::Relaxed);
    if !open(place(number), pages::size()) {
        return Some(Passed::Not);
    }
    loop {
        let (next, closed) = Open::of(now).hit(checkpoint);
        match arm
            .open
            .compare_exchange(now, next.packed(), Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                let closed = closed.into_iter().filter(|&checkpoint| checkpoint != 0);
                closed.for_each(|checkpoint| {
                    close(place(u64::from(checkpoint) - 1));
                });
                return Some(Passed::First(number * checkpoints.distance()));
            }
            Err(other) if Open::of(other).has(checkpoint) => return Some(Passed::Again),
            Err(other) => now = other,
        }
    }
}

/// An open checkpoint was hit.
fn again(arm: &Arm, place: usize) -> Passed {
    if arm.repeats.fetch_add(1, Ordering::Relaxed) >= MOST_REPEATS {
        arm.repeats.store(0, Ordering::Relaxed);
        return Passed::Not;
    }
    if open(place, pages::size()) {
        Passed::Again
    } else {
        Passed::Not
    }
}

/// The same for the checkpoint that is moved, if this is its page.
fn pass_moved(arm: &Arm, mapping: &Mapping, byte: u64) -> Option<Passed> {
    let (moved, page) = (arm.moved.load(Ordering::Acquire), pages::size());
    if moved == 0 || byte < moved || byte - moved >= page as u64 {
        return None;
    }
    let place = mapping.at + moved as usize;
    if arm.is_moved_open.swap(true, Ordering::AcqRel) {
        return Some(again(arm, place));
    }
    arm.repeats.store(0, Ordering::Relaxed);
    Some(if open(place, page) {
        Passed::First(moved)
    } else {
        Passed::Not
    })
}

/// Puts the checkpoint that is moved to this byte of a mapping (0: nowhere), closed, while the mapping is there. Only the optimizer does.
pub fn put(nth: usize, place: &Place, turn: u64, to: u64) {
    let Some(arm) = ARMS.get(nth) else { return };
    let from = arm.moved.load(Ordering::Relaxed);
    if from == to && (to == 0 || !arm.is_moved_open.load(Ordering::Acquire)) {
        return;
    }
    arm.busy.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if let Some((_, mapping)) = place.live().filter(|(now, _)| *now == turn) {
        let whole = mapping.len.next_multiple_of(pages::size()) as u64;
        // First open, then elsewhere: whoever is stopped at the old place meanwhile finds that it can be read.
        if from != 0 && from != to {
            open(mapping.at + from as usize, pages::size());
        }
        if to == 0 || to >= whole {
            arm.moved.store(0, Ordering::Release);
        } else {
            // Whoever is stopped at the new one finds it noted.
            arm.moved.store(to, Ordering::Release);
            arm.is_moved_open.store(false, Ordering::Release);
            close(mapping.at + to as usize);
        }
    }
    arm.busy.fetch_sub(1, Ordering::SeqCst);
}

/// Puts a hit into the queue, and wakes the optimizer.
fn tell(hit: Hit) {
    QUEUE.put(hit.packed());
    NEWS.fetch_add(1, Ordering::Release);
    follow::wake();
}

/// The next hit, if there is one; only the optimizer asks.
pub fn next_hit() -> Option<Hit> {
    QUEUE.take().map(Hit::of)
}

/// Numbers that aren't 0, from handlers to one thread, without a lock.
struct Queue {
    places: [AtomicU64; HITS],
    /// Places that were ever given to who puts, and that were taken from.
    given: AtomicU64,
    taken: AtomicU64,
    /// The place that was found empty the last time.
    missed: AtomicU64,
}

impl Queue {
    const fn new() -> Self {
        Queue {
            places: [const { AtomicU64::new(0) }; HITS],
            given: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            missed: AtomicU64::new(u64::MAX),
        }
    }

    fn place(&self, at: u64) -> Option<&AtomicU64> {
        self.places.get(at as usize % HITS)
    }

    fn put(&self, number: u64) {
        let at = self.given.fetch_add(1, Ordering::AcqRel);
        if let Some(place) = self.place(at) {
            place.store(number, Ordering::Release);
        }
    }

    fn take(&self) -> Option<u64> {
        loop {
            let given = self.given.load(Ordering::Acquire);
            // Who puts doesn't wait: what was overwritten is lost.
            let at = self
                .taken
                .load(Ordering::Relaxed)
                .max(given.saturating_sub(HITS as u64));
            if at >= given {
                return None;
            }
            let found = self.place(at)?.swap(0, Ordering::AcqRel);
            if found == 0 && self.missed.swap(at, Ordering::Relaxed) != at {
                // Who was given it hasn't put it yet, and wakes us then. If it is still empty, it was put by one who was a turn ahead.
                return None;
            }
            self.taken.store(at + 1, Ordering::Relaxed);
            if found != 0 {
                return Some(found);
            }
        }
    }

    /// As it was in the beginning.
    fn clear(&self) {
        self.places.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        self.taken.store(self.given.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_open_checkpoints_is_one_number() {
        for open in [
            Open {
                last: 0,
                before: 0,
                is_before_open: false,
            },
            Open {
                last: u32::MAX >> 1,
                before: 1,
                is_before_open: true,
            },
            Open {
                last: 7,
                before: u32::MAX >> 1,
                is_before_open: false,
            },
        ] {
            assert_eq!(Open::of(open.packed()), open);
        }
        let hit = Hit {
            place: 127,
            turn: 0xab_cdef,
            page: 0xffff_fff0,
        };
        assert_eq!(Hit::of(hit.packed()), hit);
        assert!(hit.is_of(0x12_34ab_cdef) && !hit.is_of(0xab_cdee));
    }

    #[test]
    fn the_checkpoint_before_is_closed_again() {
        let open = Open::of(0);
        let (open, closed) = open.hit(1);
        assert_eq!(closed, [0, 0]);
        let (open, closed) = open.hit(2);
        assert_eq!(closed, [1, 0]);
        assert!(open.has(2) && !open.has(1));
        let (_, closed) = open.hit(3);
        assert_eq!(closed, [2, 0]);
    }

    #[test]
    fn who_needs_two_at_once_has_both() {
        let (open, _) = Open::of(0).hit(1);
        let (open, closed) = open.hit(9);
        assert_eq!(closed, [1, 0]);
        let (open, closed) = open.hit(1);
        assert_eq!(closed, [0, 0]);
        assert!(open.has(1) && open.has(9));
        let (open, closed) = open.hit(2);
        assert_eq!(closed, [1, 9], "and both are closed when it has gone on");
        assert!(!open.has(1) && !open.has(9));
    }

    #[test]
    fn numbers_come_out_as_they_went_in_and_the_last_ones_where_there_were_too_many() {
        let queue = Queue::new();
        (1..=10).for_each(|number| queue.put(number));
        let all = || core::iter::from_fn(|| queue.take()).collect::<Vec<_>>();
        assert_eq!(all(), (1..=10).collect::<Vec<_>>());
        (1..=1000).for_each(|number| queue.put(number));
        assert_eq!(all(), (1001 - HITS as u64..=1000).collect::<Vec<_>>());
        queue.put(5);
        assert_eq!(all(), [5]);
        queue.put(6);
        queue.clear();
        queue.put(7);
        assert_eq!(all(), [7]);
    }

    #[test]
    fn a_place_that_is_never_filled_holds_nobody_up_for_long() {
        let queue = Queue::new();
        queue.given.fetch_add(1, Ordering::Relaxed);
        queue.put(8);
        assert_eq!(queue.take(), None, "it may be filled yet");
        assert_eq!(queue.take(), Some(8));
    }
}
