//! What the thread has done, counted, and written as a line of JSON for each process.
//!
//! All processes of a program write to one file. Each appends a line of fixed length when it begins to look, and writes over it from time to time and when it exits, so that one that is killed has its line, too.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use foreload_plan::window::Tally;
use foreload_plan::window::pagemap::Way;

use crate::env;
use crate::follow::clock;
use crate::text::Text;

/// How long the end of a process waits for its line to be taken.
const MOST_WAIT_NS: u64 = 100_000_000;
/// Bytes of a line, blanks and its end included.
const LINE: usize = 512;

/// Why nothing is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Off {
    /// It is.
    Not,
    /// There is no such detector here.
    Detector,
    /// The window is no number.
    Window,
    /// The page table can't be looked at.
    Pages,
    /// The system gave no thread.
    Thread,
    /// Or no descriptors of the thread's own.
    Descriptors,
    /// Checkpoints are further apart than the policy allows, or a number is none.
    Checkpoints,
    /// Another handler of `SIGSEGV` than the one that we know is in place.
    Handler,
    /// The system has no guard pages in mappings of files.
    Guard,
    /// Or it doesn't protect pages.
    Protect,
    /// The program's first thread has ended by itself.
    First,
}

/// All reasons.
const ALL: [Off; 10] = [
    Off::Detector,
    Off::Window,
    Off::Pages,
    Off::Thread,
    Off::Descriptors,
    Off::Checkpoints,
    Off::Handler,
    Off::Guard,
    Off::Protect,
    Off::First,
];

impl Off {
    const fn why(self) -> Option<&'static str> {
        match self {
            Off::Not => None,
            Off::Detector => Some("FORELOAD_MMAP_DETECTOR is none of poll, mprotect, guard and off"),
            Off::Window => Some("FORELOAD_MMAP_WINDOW is no number of bytes"),
            Off::Pages => Some("/proc/self/pagemap can't be read"),
            Off::Thread => Some("no thread could be started"),
            Off::Descriptors => Some("a thread can have no descriptors of its own here"),
            Off::Checkpoints => Some("FORELOAD_MMAP_DISTANCE is over a quarter of FORELOAD_MMAP_SIZE"),
            Off::Handler => Some("the program has set its SIGSEGV handler past sigaction"),
            Off::Guard => Some("no guard pages in mapped files before Linux 6.15"),
            Off::Protect => Some("pages can't be protected"),
            Off::First => Some("the program's first thread has ended before the others"),
        }
    }

    fn of(number: u32) -> Self {
        ALL.into_iter().find(|off| *off as u32 == number).unwrap_or(Off::Not)
    }
}

static OFF: AtomicU32 = AtomicU32::new(0);
static IS_READ: AtomicBool = AtomicBool::new(false);
static FILES: AtomicU64 = AtomicU64::new(0);
static UNFOLLOWED: AtomicU64 = AtomicU64::new(0);
static SCANS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);
static CPU_NS: AtomicU64 = AtomicU64::new(0);
static STREAMS: AtomicU64 = AtomicU64::new(0);
static TOUCHED: AtomicU64 = AtomicU64::new(0);
static USED: AtomicU64 = AtomicU64::new(0);
static VAIN: AtomicU64 = AtomicU64::new(0);
/// Of the detectors that trap.
static CHECKPOINTS: AtomicU64 = AtomicU64::new(0);
static TRAPS: AtomicU64 = AtomicU64::new(0);
static TRIGGERS: AtomicU64 = AtomicU64::new(0);
/// Whether this process is about to take its line, and has.
static IS_BEGUN: AtomicBool = AtomicBool::new(false);
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// Where this process' line is; less than 0: nowhere.
static AT: AtomicI64 = AtomicI64::new(-1);

/// Nothing is looked at, for this reason.
pub fn off(why: Off) {
    OFF.store(why as u32, Ordering::Relaxed);
}

pub fn is_off() -> bool {
    OFF.load(Ordering::Relaxed) != 0
}

pub fn way(way: Way) {
    IS_READ.store(way == Way::Read, Ordering::Relaxed);
}

/// A mapping is followed, or not, for want of a place.
pub fn mapped(is_followed: bool) {
    let counter = if is_followed { &FILES } else { &UNFOLLOWED };
    counter.fetch_add(1, Ordering::Relaxed);
}

pub fn scanned() {
    SCANS.fetch_add(1, Ordering::Relaxed);
}

pub fn asked(calls: u64, bytes: u64) {
    CALLS.fetch_add(calls, Ordering::Relaxed);
    ASKED.fetch_add(bytes, Ordering::Relaxed);
}

/// What has come of all mappings, those that have ended included.
pub fn tally(all: &Tally, cpu_ns: u64) {
    STREAMS.store(all.streams, Ordering::Relaxed);
    TOUCHED.store(all.touched_bytes, Ordering::Relaxed);
    USED.store(all.used_bytes, Ordering::Relaxed);
    VAIN.store(all.vain_bytes, Ordering::Relaxed);
    CPU_NS.store(cpu_ns, Ordering::Relaxed);
}

/// So many checkpoints more have been protected since the beginning.
pub fn armed(checkpoints: u64) {
    CHECKPOINTS.fetch_add(checkpoints, Ordering::Relaxed);
}

/// One was hit.
pub fn trapped() {
    TRAPS.fetch_add(1, Ordering::Relaxed);
}

/// And something was fetched for it.
pub fn triggered() {
    TRIGGERS.fetch_add(1, Ordering::Relaxed);
}

/// What the thread has taken.
pub fn took(cpu_ns: u64) {
    CPU_NS.store(cpu_ns, Ordering::Relaxed);
}

/// A forked child begins with nothing but the mappings that it has.
pub fn inherit(mappings: usize) {
    let counters = [
        &UNFOLLOWED,
        &SCANS,
        &CALLS,
        &ASKED,
        &CPU_NS,
        &STREAMS,
        &TOUCHED,
        &USED,
        &VAIN,
        &CHECKPOINTS,
        &TRAPS,
        &TRIGGERS,
    ];
    counters
        .into_iter()
        .for_each(|counter| counter.store(0, Ordering::Relaxed));
    FILES.store(mappings as u64, Ordering::Relaxed);
    IS_BEGUN.store(false, Ordering::Relaxed);
    HAS_BEGUN.store(false, Ordering::Relaxed);
    AT.store(-1, Ordering::Relaxed);
}

fn line() -> Text<LINE> {
    let mut name = [0_u8; 16];
    // SAFETY: a path that ends with a zero. The name is that of the process' first thread.
    let fd = unsafe { libc::open(c"/proc/self/comm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd >= 0 {
        // SAFETY: the place has so many bytes, and the descriptor was opened here.
        unsafe {
            libc::read(fd, name.as_mut_ptr().cast(), name.len());
            libc::close(fd);
        }
    }
    let mut text = Text::new();
    // SAFETY: a question.
    let pid = unsafe { libc::getpid() };
    let off = Off::of(OFF.load(Ordering::Relaxed)).why();
    let detector = match off {
        Some(_) => "off",
        None if env::detector().is_trap() => env::detector().name(),
        None if IS_READ.load(Ordering::Relaxed) => "poll, by reading pagemap",
        None => "poll",
    };
    let _ = write!(text, r#"{{"pid": {pid}, "program": ""#);
    let name = name.iter().take_while(|byte| !matches!(byte, 0 | b'\n'));
    name.for_each(|&byte| {
        text.push(
            if byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\') || byte == b' ' {
                core::slice::from_ref(&byte)
            } else {
                b"?"
            },
        )
    });
    let _ = write!(text, r#"", "detector": "{detector}", "off": "#);
    let _ = match off {
        Some(why) => write!(text, r#""{why}""#),
        None => write!(text, "null"),
    };
    let looked: &[(&str, &AtomicU64)] = &[
        ("streams", &STREAMS),
        ("touched_bytes", &TOUCHED),
        ("asked_bytes", &ASKED),
        ("used_bytes", &USED),
        ("vain_bytes", &VAIN),
        ("scans", &SCANS),
        ("calls", &CALLS),
    ];
    let trapped: &[(&str, &AtomicU64)] = &[
        ("checkpoints", &CHECKPOINTS),
        ("traps", &TRAPS),
        ("triggers", &TRIGGERS),
        ("asked_bytes", &ASKED),
        ("calls", &CALLS),
    ];
    let all = [("mappings", &FILES), ("not_followed", &UNFOLLOWED)];
    let more = if env::detector().is_trap() { trapped } else { looked };
    for (name, counter) in all.iter().chain(more) {
        let _ = write!(text, r#", "{name}": {}"#, counter.load(Ordering::Relaxed));
    }
    let cpu_us = CPU_NS.load(Ordering::Relaxed) / 1000;
    let _ = write!(text, r#", "cpu_s": {}.{:06}}}"#, cpu_us / 1_000_000, cpu_us % 1_000_000);
    while text.bytes().len() < LINE - 1 {
        text.push(b" ");
    }
    text.push(b"\n");
    text
}

/// Takes a line of the file for this process, unless it has one.
pub fn begin() {
    if IS_BEGUN.swap(true, Ordering::AcqRel) {
        return;
    }
    take_line();
    HAS_BEGUN.store(true, Ordering::Release);
}

fn take_line() {
    let mut path = env::stats_path();
    let Some(path) = (!path.bytes().is_empty()).then(|| path.c()).flatten() else {
        return;
    };
    let line = line();
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a path that ends with a zero.
    let fd = unsafe { libc::open(path, flags, 0o644) };
    if fd < 0 {
        return;
    }
    // SAFETY: the bytes are there. An append is one with the place that it was made at.
    let (written, end) = unsafe {
        (
            libc::write(fd, line.bytes().as_ptr().cast(), LINE),
            libc::lseek(fd, 0, libc::SEEK_CUR),
        )
    };
    if written == LINE as isize && end >= LINE as i64 {
        AT.store(end - LINE as i64, Ordering::Release);
    }
    // SAFETY: the descriptor was opened here.
    unsafe { libc::close(fd) };
}

/// Writes what has come of it when the process ends, which may be before the thread has begun.
pub fn end() {
    if FILES.load(Ordering::Relaxed) + UNFOLLOWED.load(Ordering::Relaxed) > 0 {
        begin();
        let until = clock(libc::CLOCK_MONOTONIC) + MOST_WAIT_NS;
        while !HAS_BEGUN.load(Ordering::Acquire) && clock(libc::CLOCK_MONOTONIC) < until {
            // SAFETY: gives the core to the thread, which is at it.
            unsafe { libc::sched_yield() };
        }
        write();
    }
}

/// Writes this process' line again, if it has one.
pub fn write() {
    let at = AT.load(Ordering::Acquire);
    let mut path = env::stats_path();
    let Some(path) = (at >= 0).then(|| path.c()).flatten() else {
        return;
    };
    let line = line();
    // SAFETY: a path that ends with a zero.
    let fd = unsafe { libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return;
    }
    // SAFETY: the bytes are there, and the descriptor was opened here.
    unsafe {
        libc::pwrite(fd, line.bytes().as_ptr().cast(), LINE, at);
        libc::close(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_length_and_says_why_nothing_is_looked_at() {
        let text = line();
        assert_eq!(text.bytes().len(), LINE);
        assert!(text.is_whole());
        for why in ALL {
            assert_eq!(Off::of(why as u32), why);
            assert!(why.why().is_some_and(|text| text.len() < 80));
        }
        assert_eq!(Off::of(99), Off::Not);
        let text = String::from_utf8(text.bytes().to_vec()).expect("text");
        assert!(
            text.starts_with(r#"{"pid": "#) && text.trim_end().ends_with('}') && text.ends_with('\n'),
            "{text}"
        );
    }
}
