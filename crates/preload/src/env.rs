//! The library's settings, all of them from the environment, read once when it is loaded.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `FORELOAD_MMAP` | patterns of paths, parted by colons; without it nothing is done |
//! | `FORELOAD_MMAP_DETECTOR` | `poll` (the default), `mprotect`, `guard`, or `off` |
//! | `FORELOAD_MMAP_WINDOW` | `poll`: bytes that a stream is read ahead at most; 0: only looked at |
//! | `FORELOAD_MMAP_DISTANCE`, `FORELOAD_MMAP_SIZE` | `mprotect` and `guard`: bytes between checkpoints, and fetched at a time; a size of 0: only looked at |
//! | `FORELOAD_MMAP_STATS` | a file that each process writes a line of JSON to |

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::ffi::CStr;

use foreload_plan::window::checkpoint::{self, Checkpoints};

use crate::pages;
use crate::stats::{self, Off};
use crate::text::{Text, number};

/// What a stream is read ahead at most. More brought no more from a store that answers in 5 ms and brings 400 MB/s, and is fetched in vain where a stream ends.
const WINDOW: u64 = 32 << 20;

/// How it is found out what the program touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detector {
    /// By its page table.
    Poll,
    /// By pages that are protected, as in paper 003.
    Mprotect,
    /// The same with guard pages.
    Guard,
}

impl Detector {
    const ALL: [Detector; 3] = [Detector::Poll, Detector::Mprotect, Detector::Guard];

    /// Whether the program is stopped where it touches a page.
    pub const fn is_trap(self) -> bool {
        !matches!(self, Detector::Poll)
    }

    /// As it is named in settings and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Detector::Poll => "poll",
            Detector::Mprotect => "mprotect",
            Detector::Guard => "guard",
        }
    }
}

/// Text that is written before there is another thread, and read afterwards.
struct Once(UnsafeCell<Text<4096>>);

// SAFETY: `read` fills it while the library is loaded, when nobody else knows of it.
unsafe impl Sync for Once {}

static PATTERNS: Once = Once(UnsafeCell::new(Text::new()));
static STATS: Once = Once(UnsafeCell::new(Text::new()));
static WINDOW_BYTES: AtomicU64 = AtomicU64::new(WINDOW);
static DETECTOR: AtomicUsize = AtomicUsize::new(0);
static DISTANCE: AtomicU64 = AtomicU64::new(checkpoint::DISTANCE);
static SIZE: AtomicU64 = AtomicU64::new(checkpoint::SIZE);
static IS_ON: AtomicBool = AtomicBool::new(false);

fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: libc is up, for its constructor ran before ours, and no other thread runs yet that could change the environment.
    let found = unsafe { libc::getenv(name.as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: what getenv returns ends with a zero; it is copied before anything can change it.
    let text = unsafe { CStr::from_ptr(found) }.to_bytes();
    (!text.is_empty()).then_some(text)
}

fn keep(once: &Once, text: &[u8]) -> bool {
    // SAFETY: see `Once`.
    let kept = unsafe { &mut *once.0.get() };
    kept.push(text);
    kept.is_whole()
}

/// Reads them; whether there is something to do.
pub fn read() -> bool {
    let Some(patterns) = variable(c"FORELOAD_MMAP") else {
        return false;
    };
    let wanted = match variable(c"FORELOAD_MMAP_DETECTOR") {
        None | Some(b"poll") => true,
        Some(b"off") => return false,
        Some(name) => {
            let named = |detector: &Detector| detector.name().as_bytes() == name;
            match Detector::ALL.iter().position(named) {
                Some(nth) => DETECTOR.store(nth, Ordering::Relaxed),
                None => stats::off(Off::Detector),
            }
            true
        }
    };
    for (name, place, why) in [
        (c"FORELOAD_MMAP_WINDOW", &WINDOW_BYTES, Off::Window),
        (c"FORELOAD_MMAP_DISTANCE", &DISTANCE, Off::Checkpoints),
        (c"FORELOAD_MMAP_SIZE", &SIZE, Off::Checkpoints),
    ] {
        let Some(text) = variable(name) else { continue };
        match number(text).filter(|_| text.iter().all(u8::is_ascii_digit)) {
            Some(bytes) => place.store(bytes, Ordering::Relaxed),
            None => stats::off(why),
        }
    }
    if detector().is_trap() && checkpoints().is_none() {
        stats::off(Off::Checkpoints);
    }
    if let Some(path) = variable(c"FORELOAD_MMAP_STATS") {
        keep(&STATS, path);
    }
    IS_ON.store(wanted && keep(&PATTERNS, patterns), Ordering::Release);
    is_on()
}

/// Whether mappings are noticed.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

pub fn patterns() -> &'static [u8] {
    // SAFETY: see `Once`.
    unsafe { &*PATTERNS.0.get() }.bytes()
}

/// Where statistics go; nothing: nowhere.
pub fn stats_path() -> Text<4096> {
    // SAFETY: see `Once`.
    unsafe { *STATS.0.get() }
}

pub fn window_bytes() -> u64 {
    WINDOW_BYTES.load(Ordering::Relaxed)
}

pub fn detector() -> Detector {
    let found = Detector::ALL.get(DETECTOR.load(Ordering::Relaxed));
    found.copied().unwrap_or(Detector::Poll)
}

/// Where checkpoints lie and what is fetched; none: the settings don't allow that.
pub fn checkpoints() -> Option<Checkpoints> {
    let (distance, size) = (DISTANCE.load(Ordering::Relaxed), SIZE.load(Ordering::Relaxed));
    let whole = pages::size() as u64;
    (distance % whole == 0)
        .then(|| Checkpoints::new(distance, size))
        .flatten()
}
