//! Which pages of a process are in its page table, in the kernel's words: those that it has touched, and what was mapped around them.
//!
//! `PAGEMAP_SCAN` says it for a range in one call (Linux 6.7 and later); before, `/proc/PID/pagemap` is read, eight bytes a page. Neither changes anything. The structures of both are here, and how their answers are read; whoever has the
//! file makes the calls ([`Kernel`]), for nothing in this crate calls the system.

use core::mem::size_of;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
pub const PAGEMAP_SCAN: u32 = 0xC060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// In an entry of pagemap.
const PRESENT: u64 = 1 << 63;
/// Runs that one call returns.
const RUNS: usize = 64;
/// Entries that are read at once.
const ENTRIES: usize = 512;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

/// An open `/proc/PID/pagemap`.
pub trait Kernel {
    /// Calls `ioctl` with [`PAGEMAP_SCAN`] and this: what it returns; none: an error. The places that it names outlive the call.
    fn scan(&self, scan: &mut Scan) -> Option<usize>;

    /// Reads entries from this byte of the file on: how many; 0: an error.
    fn read(&self, offset: u64, entries: &mut [u64]) -> usize;
}

/// How pages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By `PAGEMAP_SCAN`.
    Scan,
    /// By reading.
    Read,
}

/// A page table that can be looked at.
#[derive(Debug)]
pub struct Pages<K> {
    kernel: K,
    way: Way,
    page: usize,
}

impl<K: Kernel> Pages<K> {
    /// Finds out how pages of `page` bytes can be looked at: in the first way that is good; none: in no way.
    pub fn find(kernel: K, page: usize, is_good: impl Fn(&Self) -> bool) -> Option<Self> {
        let way = Way::Scan;
        let mut pages = Pages { kernel, way, page };
        if is_good(&pages) {
            return Some(pages);
        }
        pages.way = Way::Read;
        is_good(&pages).then_some(pages)
    }

    /// Bytes of a page.
    pub const fn page(&self) -> usize {
        self.page
    }

    /// How they are looked at.
    pub const fn way(&self) -> Way {
        self.way
    }

    /// Calls `found` with the first address of each run of pages in the range that are there, and the one behind its last; false: it can't be said.
    pub fn present(&self, from: usize, to: usize, found: impl FnMut(usize, usize)) -> bool {
        match self.way {
            Way::Scan => self.scan(from, to, found),
            Way::Read => self.read(from, to, found),
        }
    }

    fn scan(&self, from: usize, to: usize, mut found: impl FnMut(usize, usize)) -> bool {
        const NONE: Run = Run {
            start: 0,
            end: 0,
            categories: 0,
        };
        let mut runs = [NONE; RUNS];
        let mut at = from as u64;
        while at < to as u64 {
            let mut asked = Scan {
                size: size_of::<Scan>() as u64,
                start: at,
                end: to as u64,
                vec: runs.as_mut_ptr() as u64,
                vec_len: RUNS as u64,
                category_mask: PAGE_IS_PRESENT,
                return_mask: PAGE_IS_PRESENT,
                ..Scan::default()
            };
            let Some(count) = self.kernel.scan(&mut asked) else {
                return false;
            };
            for run in runs.iter().take(count) {
                found(run.start as usize, run.end as usize);
            }
            if asked.walk_end <= at {
                return false;
            }
            at = asked.walk_end;
        }
        true
    }

    fn read(&self, from: usize, to: usize, mut found: impl FnMut(usize, usize)) -> bool {
        let mut entries = [0_u64; ENTRIES];
        let mut at = from;
        while at < to {
            let count = ((to - at) / self.page).min(ENTRIES);
            let offset = (at / self.page * size_of::<u64>()) as u64;
            let Some(room) = entries.get_mut(..count) else {
                return false;
            };
            let read = self.kernel.read(offset, room);
            if read == 0 {
                return false;
            }
            for entry in entries.iter().take(read) {
                if entry & PRESENT != 0 {
                    found(at, at + self.page);
                }
                at += self.page;
            }
        }
        true
    }
}
