//! Which pages of this process are in its page table: those that it has touched, and what the kernel mapped around them.
//!
//! `PAGEMAP_SCAN` says it for a range in one call (Linux 6.7 and later); before, `/proc/self/pagemap` is read, eight bytes a page. Neither needs a privilege, or changes anything.
//! The thread has a table of descriptors of its own ([`apart`]): a program may close all that are open, and gets each number that it expects.

use core::mem::size_of;

use libc::c_int;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xC060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// In an entry of pagemap.
const PRESENT: u64 = 1 << 63;
/// Runs that one call returns.
const RUNS: usize = 64;
/// Entries that are read at once.
const ENTRIES: usize = 512;
/// Descriptors that are closed one by one where that can't be done at once (before Linux 5.9).
const MOST_FDS: u64 = 1 << 20;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Scan {
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

/// How pages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Scan,
    Read,
}

/// A page table that can be looked at.
pub struct Pages {
    way: Way,
    page: usize,
    fd: c_int,
}

/// Gives this thread descriptors of its own, of which none is open; false: the system doesn't.
///
/// What the program closes is closed then, and no lock of its is lost where the thread closes a file of its own.
pub fn apart() -> bool {
    // SAFETY: descriptors of this thread alone.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) } == 0 {
        return true;
    }
    // SAFETY: as above.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return false;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the place is as large as the call fills it.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    for fd in 0..limit.rlim_cur.clamp(1024, MOST_FDS) {
        // SAFETY: as above.
        unsafe { libc::close(fd as c_int) };
    }
    true
}

impl Pages {
    /// Finds out how pages can be looked at; none: in no way.
    pub fn new() -> Option<Self> {
        // SAFETY: a question.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
            .ok()
            .filter(|&page| page > 0)?;
        // Our own stack is there.
        let here = (&raw const page as usize) & !(page - 1);
        // SAFETY: a path that ends with a zero.
        let fd = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        [Way::Scan, Way::Read]
            .into_iter()
            .map(|way| Pages { way, page, fd })
            .find(|pages| {
                let mut found = false;
                pages.present(here, here + page, |_, _| found = true) && found
            })
    }

    /// Bytes of a page.
    pub const fn page(&self) -> usize {
        self.page
    }

    pub const fn way(&self) -> Way {
        self.way
    }

    /// Calls `found` with the first address of each run of pages in the range that are there, and the one behind its last; false: it can't be said.
    pub fn present(&self, from: usize, to: usize, found: impl FnMut(usize, usize)) -> bool {
        match self.way {
            Way::Scan => scan(self.fd, from, to, found),
            Way::Read => self.read(from, to, found),
        }
    }

    fn read(&self, from: usize, to: usize, mut found: impl FnMut(usize, usize)) -> bool {
        let mut entries = [0_u64; ENTRIES];
        let mut at = from;
        while at < to {
            let count = ((to - at) / self.page).min(ENTRIES);
            let offset = (at / self.page * size_of::<u64>()) as libc::off_t;
            // SAFETY: the place has room for so many.
            let read = unsafe { libc::pread(self.fd, entries.as_mut_ptr().cast(), count * size_of::<u64>(), offset) };
            let read = usize::try_from(read).unwrap_or(0) / size_of::<u64>();
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

fn scan(fd: c_int, from: usize, to: usize, mut found: impl FnMut(usize, usize)) -> bool {
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
        // SAFETY: both places are as large as they say, and outlive the call.
        let count = unsafe { libc::ioctl(fd, PAGEMAP_SCAN as _, &raw mut asked) };
        let Ok(count) = usize::try_from(count) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_pages_that_were_touched() {
        let Pages { page, fd, .. } = Pages::new().expect("a page table");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = 300 * page;
        // SAFETY: new memory, given back below.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        // SAFETY: it is ours. Else one touch brings 2 MiB.
        unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
        let touched: Vec<usize> = (0..300).filter(|nth| nth % 3 == 0 || *nth > 200).collect();
        for nth in &touched {
            // SAFETY: it is ours.
            unsafe { at.cast::<u8>().add(nth * page).write_volatile(1) };
        }
        for way in [Way::Scan, Way::Read] {
            let pages = Pages { way, page, fd };
            let mut found = Vec::new();
            let is_known = pages.present(at as usize, at as usize + len, |from, to| {
                found.extend((from..to).step_by(page))
            });
            if way == Way::Scan && !is_known {
                continue; // an older kernel
            }
            let found: Vec<usize> = found
                .into_iter()
                .map(|address| (address - at as usize) / page)
                .collect();
            assert_eq!(found, touched, "{way:?}");
        }
        // SAFETY: it is ours.
        unsafe { libc::munmap(at, len) };
    }

    #[test]
    fn a_thread_apart_has_no_descriptor_of_the_others_and_closes_none_of_theirs() {
        let file = std::fs::File::open("/proc/self/status").expect("open");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let apart = std::thread::spawn(move || {
            assert!(apart());
            // SAFETY: a question.
            unsafe { libc::fcntl(fd, libc::F_GETFD) }
        });
        assert_eq!(apart.join().expect("joined"), -1);
        // SAFETY: a question.
        assert_ne!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1);
    }
}
