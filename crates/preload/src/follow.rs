//! Which mappings are followed, and the thread that follows them.
//!
//! Interposed calls tell of what is mapped, moved and ended; a mapping whose path matches gets a place in the [table](crate::table). The first one starts the thread, which is [`poll`]'s, or for the detectors of paper
//! 003 the [`optimizer`]'s. It sleeps on [`NEWS`], a number that each interposed call of interest changes. Everything that the thread knows is its own: interposed calls reach it by the table alone.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
/// The thread, for whoever waits for its end; 0: there is none.
static THREAD: AtomicUsize = AtomicUsize::new(0);
/// How long that takes at most, in seconds.
const MOST_WAIT_S: libc::time_t = 1;

unsafe extern "C" {
    /// Of the GNU C library: waits for a thread's end until a time of the real-time clock.
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        value: *mut *mut libc::c_void,
        until: *const libc::timespec,
    ) -> c_int;
}

/// How often it is looked for the program's first thread, and when that was last.
const LOOK: Duration = Duration::from_millis(250);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Changes with each mapping, and each checkpoint that is hit: what the thread sleeps on.
pub static NEWS: AtomicU32 = AtomicU32::new(0);

/// The program's first thread, which loads the library, as the C library names it.
static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread, as the C library names it, is the program's first one.
pub fn is_first(thread: *mut libc::c_void) -> bool {
    thread as usize != 0 && thread as usize == FIRST.load(Ordering::Acquire)
}

/// A child is told, for it has no thread.
pub fn on_load() {
    // SAFETY: it names this thread.
    FIRST.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
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
        THREAD.store(0, Ordering::Release);
        // SAFETY: it names this thread.
        FIRST.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
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

/// Whether the thread is to end.
pub fn has_left() -> bool {
    HAS_LEFT.load(Ordering::Acquire)
}

/// The program's first thread is about to end itself: ours ends before, unless it takes too long.
pub fn first_leaves() {
    leave();
    let thread = THREAD.swap(0, Ordering::AcqRel);
    if thread == 0 {
        return;
    }
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is as large as the call fills it, and the thread is one that nobody else waits for.
    unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
        until.tv_sec += MOST_WAIT_S;
        pthread_timedjoin_np(thread as libc::pthread_t, core::ptr::null_mut(), &raw const until);
    }
}

fn leave() {
    HAS_LEFT.store(true, Ordering::Release);
    if !stats::is_off() {
        stats::off(Off::First);
    }
    NEWS.fetch_add(1, Ordering::Release);
    wake();
}

/// Looks whether the program's first thread is there still: one that is cancelled, say, tells nobody.
fn look_for_first() {
    let mut said = [0_u8; 256];
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero, the place has so many bytes, and the descriptor is ours.
    let len = unsafe {
        let file = libc::open(c"/proc/self/stat".as_ptr(), flags);
        if file < 0 {
            return;
        }
        let len = libc::read(file, said.as_mut_ptr().cast(), said.len());
        libc::close(file);
        usize::try_from(len).unwrap_or(0)
    };
    if is_dead(&said[..len]) {
        leave();
    }
}

/// Whether a process' line says that its first thread has ended. Its name, in brackets, may be anything.
fn is_dead(line: &[u8]) -> bool {
    let end = line.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| line.get(end + 2))
        .is_some_and(|state| matches!(state, b'Z' | b'X'))
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

/// Sleeps until [`NEWS`] isn't this number any more, or for so long, or until the thread is to end.
pub fn sleep(news: u32, most: Option<Duration>) {
    let mut left = most;
    loop {
        let step = left.map_or(LOOK, |left| left.min(LOOK));
        wait(news, step);
        let now = clock(libc::CLOCK_MONOTONIC);
        if now.saturating_sub(LOOKED_AT.load(Ordering::Relaxed)) >= LOOK.as_nanos() as u64 {
            LOOKED_AT.store(now, Ordering::Relaxed);
            look_for_first();
        }
        left = left.map(|left| left.saturating_sub(step));
        if has_left() || left == Some(Duration::ZERO) || NEWS.load(Ordering::Acquire) != news {
            return;
        }
    }
}

fn wait(news: u32, most: Duration) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: most.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the number and the time outlive the call. What came meanwhile has changed the number.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            NEWS.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            news,
            &raw const time,
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
        let failed = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, core::ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
        failed
    };
    if failed != 0 {
        stats::off(Off::Thread);
        stats::begin();
        end_traps();
        return true;
    }
    // SAFETY: the call has filled it.
    THREAD.store(unsafe { thread.assume_init() } as usize, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thread_s_state_is_read_whatever_its_name_is() {
        assert!(is_dead(b"12 (a) Z 1 2"));
        assert!(is_dead(b"12 (a) R (b)) Z 1 2") && is_dead(b"12 ((Z) X 1"));
        for other in [&b"12 (Z) S 1 2"[..], b"12 (a) Z) R 1", b"", b")", b"12 (a)", b"Z"] {
            assert!(!is_dead(other));
        }
        look_for_first();
        assert!(!has_left());
    }
}
