//! The thread that looks which pages were touched, and asks for those that come next.
//!
//! It is started by the first mapping whose path matches, sleeps without a wake-up while there is none, and looks as often as [`foreload_plan::window::pace`] says. Everything that it knows is its own: interposed calls reach it by the [table](crate::table) alone.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use core::time::Duration;
use foreload_plan::window::pace::Pace;
use foreload_plan::window::{Tally, glob};
use libc::c_int;

use crate::pages::{self, Pages};
use crate::stats::{self, Off};
use crate::table::{Mapping, PLACES, Place, TABLE};
use crate::text::Text;
use crate::watch::Watch;
use crate::{advice, calls, env, memory};

/// Mappings below this aren't worth it.
const LEAST_BYTES: u64 = 1 << 20;
/// How often the line of statistics is written while there is news, for each time costs as much as two looks, and once there is none; how often the memory is looked at.
const WRITE_NS: u64 = 100_000_000;
const WRITE_LAST_NS: u64 = 50_000_000;
const MEMORY_NS: u64 = 5_000_000_000;
/// The host's thread-local storage counts, too.
const STACK: usize = 512 << 10;

static IS_STARTED: AtomicBool = AtomicBool::new(false);
/// Changes with each mapping: what the thread sleeps on.
static NEWS: AtomicU32 = AtomicU32::new(0);

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

/// A child is told, for it has no thread.
pub fn on_load() {
    // SAFETY: the function stays where it is, for the library isn't unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

unsafe extern "C" fn in_child() {
    calls::quietly(|| {
        let mappings = TABLE.inherit();
        stats::inherit(mappings);
        IS_STARTED.store(false, Ordering::Release);
        // The parent's thread may have been in the middle of it: it is left where it is, and nothing of it is unmapped, for the child may have something else there.
        WATCHES.store(core::ptr::null_mut(), Ordering::Release);
        if mappings > 0 {
            start();
        }
    });
}

/// A file was mapped: it is followed if it is one of those that are meant.
pub fn mapped(at: usize, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: u64) {
    let is_data = protection & libc::PROT_READ != 0 && protection & libc::PROT_EXEC == 0;
    // What others may write through it is not only read.
    let is_written = flags & libc::MAP_TYPE != libc::MAP_PRIVATE && protection & libc::PROT_WRITE != 0;
    if !env::is_on() || (len as u64) < LEAST_BYTES || !is_data || is_written || !is_meant(fd) {
        return;
    }
    let Some((size, major, minor)) = file(fd) else { return };
    // A file may be mapped beyond its end.
    let bytes = size.saturating_sub(offset).min(len as u64);
    let mapping = Mapping {
        at,
        len: bytes as usize,
        offset,
        major,
        minor,
        is_populated: flags & libc::MAP_POPULATE != 0,
    };
    follow(&mapping);
}

/// A mapping that was followed is elsewhere now, or has another length.
pub fn moved(known: &Mapping, at: usize, len: usize) {
    let mapping = Mapping {
        at,
        len: known.len.min(len),
        is_populated: true,
        ..*known
    };
    follow(&mapping);
}

fn follow(mapping: &Mapping) {
    if (mapping.len as u64) < LEAST_BYTES {
        return;
    }
    let is_followed = TABLE.add(mapping);
    stats::mapped(is_followed);
    NEWS.fetch_add(1, Ordering::Release);
    if !start() {
        // SAFETY: the number outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                NEWS.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            )
        };
    }
}

fn is_meant(fd: c_int) -> bool {
    use core::fmt::Write;

    let mut name = Text::<32>::new();
    let _ = write!(name, "/proc/self/fd/{fd}");
    let Some(name) = name.c() else { return false };
    let mut path = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the place has so many bytes.
    let len = unsafe { libc::readlink(name, path.as_mut_ptr().cast(), path.len()) };
    let len = usize::try_from(len).unwrap_or(0);
    path.get(..len).is_some_and(|path| glob::any(env::patterns(), path))
}

/// A file's size and device, as they are known here: a store isn't asked, for that may take long.
fn file(fd: c_int) -> Option<(u64, u32, u32)> {
    let mut found = core::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let wanted = libc::STATX_SIZE | libc::STATX_TYPE;
    // SAFETY: the place is as large as the call fills it, and a path that ends with a zero.
    let failed = unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, wanted, found.as_mut_ptr()) };
    if failed != 0 {
        return None;
    }
    // SAFETY: numbers, all of which may be zero.
    let found = unsafe { found.assume_init() };
    let is_file = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    is_file.then_some((found.stx_size, found.stx_dev_major, found.stx_dev_minor))
}

/// Starts the thread; false: it was.
fn start() -> bool {
    if IS_STARTED.swap(true, Ordering::AcqRel) {
        return false;
    }
    let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut signals = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut thread = core::mem::MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: each place is filled by the call that is given it first. A thread has the mask of who starts it: ours gets no signal but those of its own faults.
    let failed = unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(signals.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), before.as_mut_ptr());
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let failed = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, core::ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
        failed
    };
    if failed != 0 {
        stats::off(Off::Thread);
        stats::begin();
    }
    true
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is as large as the call fills it.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: names this thread.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"foreload-mmap".as_ptr()) };
    if !pages::apart() {
        stats::off(Off::Descriptors);
    }
    let pages = if stats::is_off() { None } else { pages::find() };
    match pages.zip(watches()) {
        Some((pages, watches)) => {
            stats::way(pages.way());
            stats::begin();
            let mut poll = Poll::new(pages, watches);
            while poll.turn() {}
        }
        None if !stats::is_off() => stats::off(Off::Pages),
        None => {}
    }
    if stats::is_off() {
        stats::begin();
        stats::write();
    }
    core::ptr::null_mut()
}

/// The thread's state.
struct Poll<'a> {
    pages: Pages,
    watches: &'a mut [Watch],
    /// Which mapping is watched in each place; 0: none is.
    watched: [u64; PLACES],
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
        let (mut all, mut live) = (Tally::default(), 0);
        let begun = clock(libc::CLOCK_MONOTONIC);
        self.elapsed = Duration::from_nanos(begun.saturating_sub(self.looked_at));
        self.is_ahead = false;
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
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: wait.subsec_nanos() as libc::c_long,
        };
        let time = if live == 0 { core::ptr::null() } else { &raw const time };
        // SAFETY: the number and the time outlive the call. A mapping that came meanwhile has changed the number.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                NEWS.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                news,
                time,
            )
        };
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
        if self.pace.may_search() {
            let before = clock(libc::CLOCK_THREAD_CPUTIME_ID);
            if !watch.search(&self.pages) || !watch.search_touched(&self.pages) {
                return None;
            }
            let spent = clock(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(before);
            self.pace.searched(Duration::from_nanos(spent));
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
