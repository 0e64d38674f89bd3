//! Room for what is asked for ahead: of all files, and of all orders, together.

use std::sync::atomic::{AtomicU64, Ordering};

/// So many bytes at most.
#[derive(Debug)]
pub struct Room {
    most: u64,
    taken: AtomicU64,
}

impl Room {
    /// All of it free.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Room {
            most,
            taken: AtomicU64::new(0),
        }
    }

    /// All that there is.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most
    }

    /// What is taken of it.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether there is so much left.
    #[must_use]
    pub fn has(&self, len: u64) -> bool {
        self.taken() + len <= self.most
    }

    /// Takes so much, whether there is or not: two that look at once may take a little more than there is.
    pub fn take(&self, len: u64) {
        self.taken.fetch_add(len, Ordering::Relaxed);
    }

    /// Gives so much back.
    pub fn give(&self, len: u64) {
        self.taken.fetch_sub(len, Ordering::Relaxed);
    }
}
