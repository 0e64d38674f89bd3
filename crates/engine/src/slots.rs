//! The memory that agent and clients share: sealed memfds, mapped.
//!
//! A pool has a *cache arena*, and each job a *batch arena*. The cache arena holds fetched samples: the agent writes, clients get a descriptor that can only be mapped for reading. The
//! batch arena is read-write for both and leased exclusively; tensors may point only there, because a write through a
//! read-only mapping is a SIGSEGV. Sizes are fixed and sealed, so no mapping can be cut short (SIGBUS). Memory is
//! taken from the system when a page is first touched.
//!
//! The agent puts samples into fresh pages of the cache arena with `pwrite`, not through its mapping: that takes half the CPU time of populating them
//! (0.36 against 0.75 s per GB measured), since nothing is zeroed or mapped first. Pages that are used again it writes through the mapping, which
//! spares the kernel's search for each; or the kernel does, where they are read from an unencrypted connection. A seal against further writers would forbid the call, so it is the descriptor that keeps clients from
//! writing.
//!
//! This module only maps, copies and sends. Who may read or write which bytes when is the plan's: a slot is written by the one load that owns it, and read
//! only between its delivery and its release. All `unsafe` of the crate is here.

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes from which memory is asked for in huge pages, as `NumPy` does for its arrays.
const HUGE_FROM: usize = 4 << 20;

/// Asks the system for huge pages behind memory that is about to be filled for the first time; it may not have any.
///
/// A gigabyte in pages of 4 KB takes a quarter of a million page faults, which cost more than filling it. Small memory stays as it is.
#[allow(unsafe_code)]
pub fn prefer_huge_pages(memory: &mut [MaybeUninit<u8>]) {
    if memory.len() < HUGE_FROM {
        return;
    }
    let page = rustix::param::page_size();
    let skipped = memory.as_ptr().align_offset(page);
    let whole = (memory.len() - skipped) / page * page;
    // SAFETY: whole pages within memory that is ours alone; the advice changes none of its bytes.
    let _ = unsafe {
        rustix::mm::madvise(
            memory.as_mut_ptr().add(skipped).cast(),
            whole,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

/// A mapped memfd.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: a mapping is memory without an owner thread; the contract on slots (module doc) orders access to its bytes.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Mapping {}

#[allow(unsafe_code)]
impl Mapping {
    /// Maps `len` bytes of `fd`.
    ///
    /// # Errors
    /// What the system says, for instance when the fd is sealed against writing.
    pub fn new(fd: BorrowedFd<'_>, len: u64, writable: bool) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len.max(1), protection, MapFlags::SHARED, fd, 0)? };
        // A process that crashes would write gigabytes of samples into its core file, and who waits for its end waits for that.
        // SAFETY: the mapping just made; the advice changes none of its bytes.
        let _ = unsafe { rustix::mm::madvise(start, len.max(1), rustix::mm::Advice::LinuxDontDump) };
        Ok(Mapping {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            len,
            writable,
        })
    }

    /// Bytes mapped.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether it maps nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn range(&self, offset: u64, len: u64) -> Option<(usize, usize)> {
        let end = offset.checked_add(len)?;
        (end <= self.len as u64).then_some((offset as usize, len as usize))
    }

    /// The bytes of a slot. `None`: outside the arena.
    #[must_use]
    pub fn bytes(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let (offset, len) = self.range(offset, len)?;
        // SAFETY: inside the mapping, which lives as long as `self`; nobody writes a delivered slot (module doc).
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) })
    }

    /// Copies `bytes` into a slot. False: outside the arena, or mapped read-only.
    #[must_use]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some((offset, len)) = self.range(offset, bytes.len() as u64) else {
            return false;
        };
        if !self.writable {
            return false;
        }
        // SAFETY: inside a writable mapping; the source is a private buffer, so they don't overlap; this slot's only writer calls.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), len) };
        true
    }

    /// The address of a slot, for those who hand memory on (DLPack, the buffer protocol).
    #[must_use]
    pub fn address(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let (offset, _) = self.range(offset, len)?;
        // SAFETY: inside the mapping.
        Some(unsafe { self.start.as_ptr().add(offset) })
    }
}

#[allow(unsafe_code)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no slice of it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len.max(1)) };
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes(0, self.len()).unwrap_or_default()
    }
}

/// What a page is; larger ones are multiples of it.
const PAGE_BYTES: u64 = 4096;

/// Below this many bytes a copy through the mapping costs less than a system call.
const LEAST_WRITE: usize = 4096;

/// An arena that this process made.
pub struct Shared {
    fd: OwnedFd,
    /// What others get: for the arena of a sole writer a descriptor that reads only.
    given: Option<OwnedFd>,
    map: Mapping,
    /// One bit per page that has memory.
    there: Vec<AtomicU64>,
}

impl Shared {
    /// Makes `len` bytes of shared memory. `sole_writer`: nobody who gets it can write it or map it writable.
    ///
    /// # Errors
    /// What the system says when it has no memory or file descriptors left.
    pub fn new(name: &str, len: u64, sole_writer: bool) -> io::Result<Self> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len.max(1))?;
        let map = Mapping::new(fd.as_fd(), len, true)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let given = if sole_writer { reading(&fd) } else { None };
        if sole_writer && given.is_none() {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        let words = usize::try_from(len.div_ceil(64 * PAGE_BYTES)).unwrap_or(0);
        let there = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        Ok(Shared { fd, given, map, there })
    }

    /// Shared memory with these contents, that nobody can change.
    ///
    /// # Errors
    /// As [`Shared::new`].
    pub fn of(name: &str, contents: &[u8]) -> io::Result<Self> {
        let shared = Shared::new(name, contents.len() as u64, true)?;
        shared.write(0, contents)?;
        Ok(shared)
    }

    /// Copies `bytes` into a slot, whose only writer calls.
    ///
    /// # Errors
    /// `InvalidInput`: outside the arena. Else what the system says when it has no memory left.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.map.range(offset, bytes.len() as u64).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let pages = offset / PAGE_BYTES..(offset + bytes.len() as u64).div_ceil(PAGE_BYTES);
        if self.given.is_none() || bytes.len() < LEAST_WRITE || self.are_there(pages.clone()) {
            let written = self.map.write(offset, bytes);
            return written.then_some(()).ok_or_else(|| io::ErrorKind::InvalidInput.into());
        }
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.fd, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        masks(pages).for_each(|(word, mask)| {
            self.there[word].fetch_or(mask, Ordering::Relaxed);
        });
        Ok(())
    }

    /// A slot's memory, to be read to by its only writer. `None`: outside the arena, or in pages that have no memory yet, which [`Shared::write`] fills for less.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub fn room(&self, offset: u64, len: u64) -> Option<&mut [u8]> {
        let (start, count) = self.map.range(offset, len)?;
        if !self.map.writable || !self.are_there(offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES)) {
            return None;
        }
        // SAFETY: inside a writable mapping, whose bytes are always initialised. The slot's only writer has it, and nobody reads it before it is delivered
        // (module doc), so that no other reference to these bytes is in use.
        Some(unsafe { std::slice::from_raw_parts_mut(self.map.start.as_ptr().add(start), count) })
    }

    /// Sends bytes of a slot to a socket without copying them: how many it took. The socket refers to the slot's pages until the other side has read them, and
    /// whoever writes there before that changes what is sent.
    ///
    /// # Errors
    /// `InvalidInput`: outside the arena. Else what the system says, `WouldBlock` for a socket that takes nothing now.
    pub fn send(&self, to: impl AsFd, offset: u64, len: u64) -> io::Result<usize> {
        let (_, len) = self.map.range(offset, len).ok_or(io::ErrorKind::InvalidInput)?;
        let mut from = offset;
        Ok(rustix::fs::sendfile(to, &self.fd, Some(&mut from), len)?)
    }

    fn are_there(&self, pages: Range<u64>) -> bool {
        masks(pages).all(|(word, mask)| self.there[word].load(Ordering::Relaxed) & mask == mask)
    }

    /// Bytes that have memory now; 0 where the system doesn't say.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        // Blocks are of 512 bytes, whatever the file system's.
        rustix::fs::fstat(&self.fd).map_or(0, |stat| 512 * u64::try_from(stat.st_blocks).unwrap_or(0))
    }

    /// Gives the whole pages of a range, which nobody uses, back to the system.
    pub fn give_back(&self, offset: u64, len: u64) {
        let (from, to) = (
            offset.next_multiple_of(PAGE_BYTES),
            (offset + len) / PAGE_BYTES * PAGE_BYTES,
        );
        if from < to {
            masks(from / PAGE_BYTES..to / PAGE_BYTES).for_each(|(word, mask)| {
                self.there[word].fetch_and(!mask, Ordering::Relaxed);
            });
            // A kernel that can't punch holes keeps the memory; nothing else changes.
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.fd, flags, from, to - from);
        }
    }

    /// Its mapping in this process.
    #[must_use]
    pub fn map(&self) -> &Mapping {
        &self.map
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.given.as_ref().unwrap_or(&self.fd).as_fd()
    }
}

/// The bits of some pages, by word.
fn masks(pages: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let words = pages.start / 64..pages.end.div_ceil(64);
    words.map(move |word| {
        let (from, to) = (pages.start.max(64 * word), pages.end.min(64 * word + 64));
        let low = u64::MAX << (from - 64 * word);
        (word as usize, low & (u64::MAX >> (64 * word + 64 - to)))
    })
}

/// Another descriptor of a memfd, for reading only; `None` where /proc is not mounted.
fn reading(fd: &OwnedFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_to_be_filled_may_have_any_length_and_place() {
        let mut memory = vec![MaybeUninit::new(7_u8); HUGE_FROM + 10_000];
        for (start, end) in [
            (0, 0),
            (1, 2),
            (0, HUGE_FROM),
            (1, HUGE_FROM + 1),
            (4095, HUGE_FROM + 9_999),
        ] {
            prefer_huge_pages(&mut memory[start..end]);
        }
        // SAFETY: all of it was written above.
        #[allow(unsafe_code)]
        let intact = memory.iter().all(|byte| unsafe { byte.assume_init() } == 7);
        assert!(intact);
    }

    #[test]
    fn a_client_can_read_the_cache_arena_and_never_write_it() {
        let arena = Shared::new("test", 1 << 20, true).expect("memfd");
        arena.write(4096, b"hello").expect("inside");
        arena.write(8000, &[7; 9000]).expect("inside");
        let client = Mapping::new(arena.as_fd(), 1 << 20, false).expect("read-only");
        assert_eq!(client.bytes(4096, 5), Some(&b"hello"[..]));
        assert_eq!(client.bytes(8000, 9000), Some(&[7; 9000][..]));
        assert!(!client.write(0, b"x"));
        assert!(
            Mapping::new(arena.as_fd(), 1 << 20, true).is_err(),
            "the descriptor reads only"
        );
        assert!(rustix::io::pwrite(arena.as_fd(), b"x", 0).is_err());
    }

    #[test]
    fn the_pages_that_a_write_gave_memory_are_known_and_no_others() {
        let arena = Shared::new("test", 200 * PAGE_BYTES, true).expect("memfd");
        let there = || {
            (0..200)
                .filter(|&page| arena.are_there(page..page + 1))
                .collect::<Vec<_>>()
        };
        arena.write(5 * PAGE_BYTES, &[1; 3 * 4096]).expect("inside");
        assert_eq!(there(), [5, 6, 7]);
        arena.write(100 * PAGE_BYTES + 9, &[1; 4096]).expect("inside");
        assert_eq!(there(), [5, 6, 7, 100, 101]);
        assert_eq!(arena.used_bytes(), 5 * PAGE_BYTES);
        arena.give_back(6 * PAGE_BYTES - 1, 95 * PAGE_BYTES);
        assert_eq!(there(), [5, 100, 101], "whole pages go");
        assert_eq!(arena.used_bytes(), 3 * PAGE_BYTES);
    }

    #[test]
    fn a_mapping_has_its_length_and_its_addresses_and_goes_when_it_is_dropped() {
        let is_mapped = |name: &str| {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
            maps.contains(name)
        };
        let arena = Shared::new("goes-when-dropped", 10_000, true).expect("memfd");
        assert!(is_mapped("goes-when-dropped"));
        let map = arena.map();
        assert!(map.len() == 10_000 && !map.is_empty());
        arena.write(5000, b"hello").expect("inside");
        let [first, slot] = [0, 5000].map(|offset| map.address(offset, 5).expect("inside") as usize);
        assert_eq!((first, slot - first), (map.as_ref().as_ptr() as usize, 5000));
        assert_eq!(&map.as_ref()[4999..5006], b"\0hello\0");
        assert!(map.address(9996, 5).is_none());
        assert!(Shared::of("nothing", b"").expect("memfd").map().is_empty());
        drop(arena);
        assert!(!is_mapped("goes-when-dropped"));
    }

    #[test]
    fn what_clients_get_stays_with_this_process_alone() {
        let arena = Shared::new("test", 1 << 12, true).expect("memfd");
        for fd in [arena.as_fd(), arena.fd.as_fd()] {
            let flags = rustix::io::fcntl_getfd(fd).expect("open");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let contents = Shared::of("test", b"bytes").expect("memfd");
        assert_eq!(contents.map().as_ref(), b"bytes");
    }

    #[test]
    fn nobody_can_cut_an_arena_short() {
        let arena = Shared::new("test", 8192, false).expect("memfd");
        assert!(rustix::fs::ftruncate(arena.as_fd(), 4096).is_err());
        assert!(rustix::fs::ftruncate(arena.as_fd(), 16384).is_err());
    }

    #[test]
    fn memory_that_was_given_back_is_free_and_usable_again() {
        let arena = Shared::new("test", 1 << 20, false).expect("memfd");
        let blocks = || rustix::fs::fstat(arena.as_fd()).expect("stat").st_blocks;
        arena.write(0, &vec![7; 1 << 20]).expect("inside");
        let full = blocks();
        arena.give_back(100, (1 << 20) - 100);
        assert!(blocks() < full / 4);
        assert_eq!(
            arena.map().bytes(0, 1),
            Some(&[7][..]),
            "the page that is only partly given back stays"
        );
        arena.write(8192, &[3; 5000]).expect("inside");
        assert_eq!(arena.map().bytes(13_191, 2), Some(&[3, 0][..]));
    }

    #[test]
    fn the_pages_of_a_range_are_its_bits() {
        for (from, to) in [(0, 1), (0, 64), (3, 61), (63, 65), (64, 64), (10, 200), (128, 192)] {
            let mut bits = [0u64; 4];
            masks(from..to).for_each(|(word, mask)| bits[word] |= mask);
            let found = (0..256).filter(|page| bits[page / 64] & (1 << (page % 64)) != 0);
            assert!(found.eq(from as usize..to as usize), "{from}..{to}");
        }
    }

    #[test]
    fn fresh_used_and_returned_pages_take_the_same_bytes() {
        let len = 40 * PAGE_BYTES;
        let arena = Shared::new("test", len, true).expect("memfd");
        let mut wanted = vec![0u8; len as usize];
        // Overlapping ranges, so that some of a write's pages are there and others aren't.
        for turn in 0..200u64 {
            let (offset, size) = (turn * 7919 % (len - 30_000), 4096 + (turn * 977 % 25_000) as usize);
            let bytes: Vec<u8> = (0..size).map(|i| (i as u64 + turn) as u8).collect();
            arena.write(offset, &bytes).expect("inside");
            wanted[offset as usize..][..size].copy_from_slice(&bytes);
            if turn % 9 == 0 {
                let from = turn * 4099 % (len - 20_000);
                arena.give_back(from, 20_000);
                let (from, to) = (
                    from.next_multiple_of(PAGE_BYTES),
                    (from + 20_000) / PAGE_BYTES * PAGE_BYTES,
                );
                wanted[from as usize..to as usize].fill(0);
            }
            assert!(arena.map().bytes(0, len) == Some(&wanted[..]), "turn {turn}");
        }
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let arena = Shared::new("test", 100, false).expect("memfd");
        assert!(arena.map().bytes(90, 11).is_none() && arena.map().bytes(u64::MAX, 2).is_none());
        assert!(!arena.map().write(100, b"x"));
        assert!(arena.write(100, b"x").is_err() && arena.write(0, &[0; 5000]).is_err());
        assert_eq!(arena.map().bytes(100, 0), Some(&[][..]));
    }
}
