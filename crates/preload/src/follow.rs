//! Which mappings are followed, and the thread that follows them.
//!
//! Interposed calls tell of what is mapped, moved and ended; a mapping whose path matches gets a place in the [table](crate::table). The first one starts the thread, which is [`poll`]'s, or for the detectors of paper
//! 003 the [`optimizer`]'s. It sleeps on [`NEWS`], a number that each interposed call of interest changes. Everything that the thread knows is its own: interposed calls reach it by the table alone.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;

use foreload_plan::window::glob;
use libc::c_int;

use crate::stats::{self, Off};
use crate::table::{Mapping, TABLE};
use crate::text::Text;
use crate::{calls, env, optimizer, pages, poll, signals, trap};

/// Mappings below this aren't worth it.
const LEAST_BYTES: u64 = 1 << 20;
/// The host's thread-local storage counts, too.
const STACK: usize = 512 << 10;

static IS_STARTED: AtomicBool = AtomicBool::new(false);
/// The program's first thread has ended by itself: the last of the others ends the program, and that must not be ours.
static HAS_LEFT: AtomicBool = AtomicBool::new(false);
/// Changes with each mapping, and each checkpoint that is hit: what the thread sleeps on.
pub static NEWS: AtomicU32 = AtomicU32::new(0);

/// A child is told, for it has no thread.
pub fn on_load() {
    // SAFETY: the function stays where it is, for the library isn't unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if env::detector().is_trap() {
        trap::on_load();
    }
}

unsafe extern "C" fn in_child() {
    calls::quietly(|| {
        let mappings = if env::detector().is_trap() {
            trap::lift_all();
            0
        } else {
            TABLE.inherit()
        };
        stats::inherit(mappings);
        IS_STARTED.store(false, Ordering::Release);
        // The thread that forks is the first one there.
        HAS_LEFT.store(false, Ordering::Release);
        poll::in_child();
        if mappings > 0 {
            start();
        }
    });
}

/// A file was mapped: it is followed if it is one of those that are meant.
pub fn mapped(at: usize, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: u64) {
    let is_data = protection & libc::PROT_READ != 0 && protection & libc::PROT_EXEC == 0;
    // What others may write through it is not only read; and what the program writes must never be trapped.
    let is_written = protection & libc::PROT_WRITE != 0
        && (env::detector().is_trap() || flags & libc::MAP_TYPE != libc::MAP_PRIVATE);
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

/// These bytes end, or are something else from now on: what is followed there isn't any more. The last mapping of those.
///
/// When it returns, nothing of ours is in the page protections of such a mapping, and nobody is about to change them.
pub fn ended(at: usize, len: usize) -> Option<Mapping> {
    if env::detector().is_trap() {
        // A handler that interrupts us may touch what we are about to open, and would try until we have.
        let is_followed = TABLE.has(at, len);
        is_followed
            .then(|| signals::undisturbed(|| TABLE.forget_each(at, len, trap::disarm)))
            .flatten()
    } else {
        TABLE.forget(at, len)
    }
}

fn follow(mapping: &Mapping) {
    if (mapping.len as u64) < LEAST_BYTES {
        return;
    }
    let is_followed = if env::detector().is_trap() && !stats::is_off() {
        trap::arm(mapping)
    } else {
        TABLE.add(mapping)
    };
    stats::mapped(is_followed);
    NEWS.fetch_add(1, Ordering::Release);
    if !start() {
        wake();
    }
}

/// The program's first thread ends by itself, and so does ours.
pub fn first_has_left() {
    HAS_LEFT.store(true, Ordering::Release);
    if !stats::is_off() {
        stats::off(Off::First);
    }
    NEWS.fetch_add(1, Ordering::Release);
    wake();
}

/// Whether the thread is to end.
pub fn has_left() -> bool {
    HAS_LEFT.load(Ordering::Acquire)
}

/// Wakes the thread, which looks why.
pub fn wake() {
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

/// Sleeps until [`NEWS`] isn't this number any more, or for so long.
pub fn sleep(news: u32, most: Option<Duration>) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: most.map_or(0, |most| most.subsec_nanos() as libc::c_long),
    };
    let time = if most.is_none() {
        core::ptr::null()
    } else {
        &raw const time
    };
    // SAFETY: the number and the time outlive the call. What came meanwhile has changed the number.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            NEWS.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            news,
            time,
        )
    };
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
    if has_left() || IS_STARTED.swap(true, Ordering::AcqRel) {
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
        end_traps();
    }
    true
}

/// Nanoseconds of a clock.
pub fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is as large as the call fills it.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// There is nobody whom checkpoints are of use to.
fn end_traps() {
    if env::detector().is_trap() {
        ended(0, usize::MAX);
    }
}

extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: names this thread.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"foreload-mmap".as_ptr()) };
    if !pages::apart() {
        stats::off(Off::Descriptors);
    }
    if !stats::is_off() {
        if env::detector().is_trap() {
            optimizer::run();
        } else {
            poll::run();
        }
    }
    end_traps();
    stats::begin();
    stats::write();
    core::ptr::null_mut()
}
