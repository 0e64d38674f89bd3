//! Locks and atomics of what several threads use. With the feature `shuttle` they come from a scheduler that explores interleavings; only tests named
//! `interleave` may run then.

#[cfg(not(all(test, feature = "shuttle")))]
pub use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(all(test, feature = "shuttle"))]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};

/// How long to wait for something from outside: not at all while interleavings are explored, since the other side runs on the same thread.
#[must_use]
pub fn nap(wanted: std::time::Duration) -> std::time::Duration {
    if cfg!(all(test, feature = "shuttle")) {
        std::time::Duration::ZERO
    } else {
        wanted
    }
}
