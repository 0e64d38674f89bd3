//! What the thread knows of one mapping: the mapping, what one call fetches of its file, and which parts were touched.
//!
//! [`foreload_plan::window::watch`] does the looking; the memory for its bits is got here, from the system directly, for our own calls needn't see it.

use core::ops::{Deref, DerefMut};
use foreload_plan::window::watch;

use crate::table::Mapping;

/// Words of memory of our own.
pub struct Words {
    at: *mut u64,
    count: usize,
}

impl Words {
    const NONE: Words = Words {
        at: core::ptr::null_mut(),
        count: 0,
    };

    /// So many, all of them 0; none: there is no memory.
    fn new(count: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (len, protection) = (count * size_of::<u64>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: new memory.
        let at = unsafe { libc::syscall(libc::SYS_mmap, 0, len, protection, flags, -1, 0) };
        (at != -1).then_some(Words {
            at: at as *mut u64,
            count,
        })
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if !self.at.is_null() {
            // SAFETY: `new` has mapped it, and nobody else has the address.
            unsafe { libc::syscall(libc::SYS_munmap, self.at, self.count * size_of::<u64>()) };
        }
    }
}

impl AsRef<[u64]> for Words {
    fn as_ref(&self) -> &[u64] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: `new` has mapped so many, and they are borrowed as we are.
        unsafe { core::slice::from_raw_parts(self.at, self.count) }
    }
}

impl AsMut<[u64]> for Words {
    fn as_mut(&mut self) -> &mut [u64] {
        if self.at.is_null() {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.count) }
    }
}

/// A mapping under observation.
pub struct Watch {
    pub mapping: Mapping,
    /// What one call fetches.
    pub step: u64,
    touched: watch::Watch<Words>,
}

impl Watch {
    pub const NONE: Watch = Watch {
        mapping: Mapping {
            at: 0,
            len: 0,
            offset: 0,
            major: 0,
            minor: 0,
            is_populated: false,
        },
        step: 0,
        touched: watch::Watch::none(Words::NONE),
    };

    /// Begins to observe a mapping; false: there is no memory for that.
    pub fn begin(&mut self, mapping: Mapping, step: u64, window: u64) -> bool {
        self.end();
        let Mapping {
            at, len, is_populated, ..
        } = mapping;
        let Some(words) = Words::new(watch::words(at, len)) else {
            return false;
        };
        let touched = watch::Watch::begin(at, len, is_populated, window, words);
        *self = Watch { mapping, step, touched };
        true
    }

    /// Lets go of it.
    pub fn end(&mut self) {
        *self = Watch::NONE;
    }
}

impl Deref for Watch {
    type Target = watch::Watch<Words>;

    fn deref(&self) -> &Self::Target {
        &self.touched
    }
}

impl DerefMut for Watch {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.touched
    }
}
