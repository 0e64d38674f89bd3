//! The library's settings, all of them from the environment, read once when it is loaded.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `FORELOAD_MMAP` | patterns of paths, parted by colons; without it nothing is done |
//! | `FORELOAD_MMAP_DETECTOR` | `poll` (the default), or `off` |
//! | `FORELOAD_MMAP_WINDOW` | bytes that a stream is read ahead at most; 0: only looked at |
//! | `FORELOAD_MMAP_STATS` | a file that each process writes a line of JSON to |

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::CStr;

use crate::stats::{self, Off};
use crate::text::{Text, number};

/// What a stream is read ahead at most. More brought no more from a store that answers in 5 ms and brings 400 MB/s, and is fetched in vain where a stream ends.
const WINDOW: u64 = 32 << 20;

/// Text that is written before there is another thread, and read afterwards.
struct Once(UnsafeCell<Text<4096>>);

// SAFETY: `read` fills it while the library is loaded, when nobody else knows of it.
unsafe impl Sync for Once {}

static PATTERNS: Once = Once(UnsafeCell::new(Text::new()));
static STATS: Once = Once(UnsafeCell::new(Text::new()));
static WINDOW_BYTES: AtomicU64 = AtomicU64::new(WINDOW);
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
        Some(_) => {
            stats::off(Off::Detector);
            true
        }
    };
    if let Some(window) = variable(c"FORELOAD_MMAP_WINDOW") {
        match number(window).filter(|_| window.iter().all(u8::is_ascii_digit)) {
            Some(bytes) => WINDOW_BYTES.store(bytes, Ordering::Relaxed),
            None => stats::off(Off::Window),
        }
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
