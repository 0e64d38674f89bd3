//! The page table of this process, and descriptors to look at it with.
//!
//! The thread has a table of descriptors of its own ([`apart`]): a program may close all that are open, and gets each number that it expects.

use foreload_plan::window::pace::Resident;
use foreload_plan::window::pagemap::{self, Kernel, PAGEMAP_SCAN, Scan};
use libc::c_int;

/// Descriptors that are closed one by one where that can't be done at once (before Linux 5.9).
const MOST_FDS: u64 = 1 << 20;

/// A descriptor of `/proc/self/pagemap`, which stays open.
#[derive(Clone, Copy)]
pub struct Pagemap(c_int);

/// This process' page table.
pub type Pages = pagemap::Pages<Pagemap>;

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

/// Bytes of a page.
pub fn size() -> usize {
    // SAFETY: a question.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
    page.ok().filter(|&page| page > 0).unwrap_or(4096)
}

/// Finds out how pages can be looked at; none: in no way.
pub fn find() -> Option<Pages> {
    let page = size();
    // Our own stack is there.
    let here = (&raw const page as usize) & !(page - 1);
    // SAFETY: a path that ends with a zero.
    let fd = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    Pages::find(Pagemap(fd), page, |pages| {
        let mut found = false;
        pages.present(here, here + page, |_, _| found = true) && found
    })
}

/// What this process has in memory: `/proc/self/statm`, which stays open.
pub struct Statm(c_int);

impl Statm {
    pub fn open() -> Self {
        // SAFETY: a path that ends with a zero.
        Statm(unsafe { libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) })
    }

    /// Asks whether it has lost pages of files.
    pub fn has_lost(&self, resident: &mut Resident) -> bool {
        let mut text = [0_u8; 128];
        // SAFETY: the place is as large as it says.
        let got = unsafe { libc::pread(self.0, text.as_mut_ptr().cast(), text.len(), 0) };
        let said = usize::try_from(got).ok().and_then(|got| text.get(..got));
        said.is_some_and(|said| resident.has_lost(said))
    }
}

impl Kernel for Pagemap {
    fn scan(&self, scan: &mut Scan) -> Option<usize> {
        // SAFETY: both places are as large as they say, and outlive the call.
        let count = unsafe { libc::ioctl(self.0, PAGEMAP_SCAN as _, core::ptr::from_mut(scan)) };
        usize::try_from(count).ok()
    }

    fn read(&self, offset: u64, entries: &mut [u64]) -> usize {
        let bytes = size_of_val(entries);
        // SAFETY: the place has room for so many.
        let read = unsafe { libc::pread(self.0, entries.as_mut_ptr().cast(), bytes, offset as libc::off_t) };
        usize::try_from(read).unwrap_or(0) / size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreload_plan::window::pagemap::Way;

    #[test]
    fn both_ways_find_the_pages_that_were_touched() {
        // SAFETY: a question.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: a path that ends with a zero.
        let fd = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
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
            let Some(pages) = Pages::find(Pagemap(fd), page, |pages| pages.way() == way) else {
                panic!("{way:?}")
            };
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
    fn a_way_is_found_here() {
        assert!(find().is_some());
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
