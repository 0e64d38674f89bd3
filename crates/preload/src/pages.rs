//! Which pages of this process are in its page table: those that it has touched, and what the kernel mapped around them.
//!
//! `PAGEMAP_SCAN` says it for a range in one call (Linux 6.7 and later); before, `/proc/self/pagemap` is read, eight bytes a page. Neither needs a privilege, or changes anything. The descriptor is above those that a program counts on,
//! and is only used while it is still ours: a program may close all that are open.

use core::mem::size_of;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

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
/// Descriptors below are the program's.
const FIRST_FD: c_int = 900;

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

static FD: AtomicI32 = AtomicI32::new(-1);
/// What the descriptor was opened on.
static INODE: AtomicU64 = AtomicU64::new(0);

/// A page table that can be looked at.
pub struct Pages {
    way: Way,
    page: usize,
    fd: c_int,
}

fn inode(fd: c_int) -> Option<u64> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the place is large enough, and read only where it was filled.
    let stat = (unsafe { libc::fstat(fd, stat.as_mut_ptr()) } == 0).then(|| unsafe { stat.assume_init() })?;
    Some(stat.st_ino ^ stat.st_dev << 32)
}

fn open() -> Option<c_int> {
    // SAFETY: a path that ends with a zero.
    let fd = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor was opened here.
    let higher = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_FD) };
    let fd = if higher < 0 {
        // As few may be open as that.
        fd
    } else {
        // SAFETY: the descriptor was opened here.
        unsafe { libc::close(fd) };
        higher
    };
    INODE.store(inode(fd)?, Ordering::Relaxed);
    FD.store(fd, Ordering::Relaxed);
    Some(fd)
}

/// The descriptor, opened again if the program has closed it.
fn descriptor() -> Option<c_int> {
    let fd = FD.load(Ordering::Relaxed);
    if fd >= 0 && inode(fd) == Some(INODE.load(Ordering::Relaxed)) {
        return Some(fd);
    }
    open()
}

/// A forked child closes what it has of its parent, while it has no other thread: it shows the parent's pages.
pub fn close_inherited() {
    let fd = FD.swap(-1, Ordering::Relaxed);
    if fd >= 0 && inode(fd) == Some(INODE.load(Ordering::Relaxed)) {
        // SAFETY: it is still the one that was opened here.
        unsafe { libc::close(fd) };
    }
}

impl Pages {
    /// Finds out how pages can be looked at; none: in no way.
    pub fn new() -> Option<Self> {
        // SAFETY: a question.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|&page| page > 0)?;
        // Our own stack is there.
        let here = (&raw const page as usize) & !(page - 1);
        [Way::Scan, Way::Read].into_iter().map(|way| Pages { way, page, fd: -1 }).find_map(|mut pages| {
            let mut found = false;
            (pages.open() && pages.present(here, here + page, |_, _| found = true) && found).then_some(pages)
        })
    }

    /// To be called before some looks: the program may have closed what is looked through. False: there is nothing to look through.
    pub fn open(&mut self) -> bool {
        self.fd = descriptor().unwrap_or(-1);
        self.fd >= 0
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
        let Ok(count) = usize::try_from(count) else { return false };
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
        let page = Pages::new().expect("a page table").page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = 300 * page;
        // SAFETY: new memory, given back below.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        // SAFETY: it is ours. Else one touch brings 2 MiB.
        unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
        let touched: Vec<usize> = (0..300).filter(|nth| nth % 3 == 0 || *nth > 200).collect();
        for nth in &touched {
            // SAFETY: it is ours.
            unsafe { at.cast::<u8>().add(nth * page).write_volatile(1) };
        }
        for way in [Way::Scan, Way::Read] {
            let mut pages = Pages { way, page, fd: -1 };
            assert!(pages.open());
            let mut found = Vec::new();
            let is_known = pages.present(at as usize, at as usize + len, |from, to| found.extend((from..to).step_by(page)));
            if way == Way::Scan && !is_known {
                continue; // an older kernel
            }
            let found: Vec<usize> = found.into_iter().map(|address| (address - at as usize) / page).collect();
            assert_eq!(found, touched, "{way:?}");
        }
        // SAFETY: it is ours.
        unsafe { libc::munmap(at, len) };
    }

    #[test]
    fn a_descriptor_that_is_another_s_meanwhile_is_left_alone() {
        let mut pages = Pages::new().expect("a page table");
        let fd = pages.fd;
        let other = std::fs::File::open("/proc/self/status").expect("open");
        // SAFETY: both are open here; the number changes hands as if the program had closed all and opened its own.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), fd) };
        let here = (&raw const fd as usize) & !(pages.page - 1);
        let mut found = 0;
        assert!(pages.open());
        assert!(pages.present(here, here + pages.page, |_, _| found += 1));
        assert_eq!(found, 1);
        // SAFETY: the number is the test's own now.
        assert_eq!(unsafe { libc::close(fd) }, 0, "it wasn't closed");
    }
}
