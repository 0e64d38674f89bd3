//! Lists of samples on their way between agent and clients: memfds, 4 bytes a number where all fit, else 8.
//!
//! Whoever makes a list lays it down in fresh memory and seals it: from then on nobody can change it or cut it short. So all processes of a node may
//! map the one copy that there is, and what was found of its numbers once holds for ever. A list that isn't sealed, of another client than ours, is
//! copied before anything is read.

use crate::slots::Mapping;
use bytes::Bytes;
use foreload_store::index::Numbers;
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Numbers that are read or written at once: 512 KB at most.
const PART: usize = 1 << 16;

/// A list that nobody can change any more, mapped; clones share it.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// `None`: it is empty, and nobody laid it down.
    fd: Option<Arc<OwnedFd>>,
    numbers: Numbers,
}

impl List {
    /// Lays a list down.
    ///
    /// # Errors
    /// What the system says when it has no memory or descriptors left.
    pub fn new(numbers: &[u64]) -> io::Result<Self> {
        let mut list = NewList::new()?;
        if numbers.iter().any(|&number| number > u64::from(u32::MAX)) {
            list.extend(numbers, |number| number.to_le_bytes())?;
        } else {
            list.extend(numbers, |number| (*number as u32).to_le_bytes())?;
        }
        list.finish(numbers.len() as u64)
    }

    /// A list of `count` numbers that another process laid down.
    ///
    /// # Errors
    /// `UnexpectedEof`: there are not so many, of either width. `OutOfMemory`: more than this machine has room for. Else what the system says.
    pub fn of(fd: OwnedFd, count: u64) -> io::Result<Self> {
        if is_final(&fd)? {
            return Self::mapped(fd, count);
        }
        Self::new(&take_up(&fd, count)?)
    }

    fn mapped(fd: OwnedFd, count: u64) -> io::Result<Self> {
        let map = Mapping::new(fd.as_fd(), bytes_of(&fd)?, false)?;
        let numbers = Numbers::from_bytes(Bytes::from_owner(map), count).ok_or(io::ErrorKind::UnexpectedEof)?;
        let fd = Some(Arc::new(fd));
        Ok(Self { fd, numbers })
    }

    /// The numbers.
    #[must_use]
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// What others map.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }
}

/// A list while it is laid down.
pub struct NewList(OwnedFd);

impl NewList {
    /// An empty one.
    ///
    /// # Errors
    /// What the system says when it has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        Ok(Self(rustix::fs::memfd_create("foreload-list", flags)?))
    }

    /// Adds numbers, as the bytes that `packed` makes of each: of 4 in the whole list, or of 8.
    ///
    /// # Errors
    /// What the system says when it has no memory left.
    pub fn extend<T, const WIDTH: usize>(
        &mut self,
        numbers: &[T],
        packed: impl Fn(&T) -> [u8; WIDTH],
    ) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(WIDTH * PART.min(numbers.len()));
        for part in numbers.chunks(PART) {
            bytes.clear();
            bytes.extend(part.iter().flat_map(&packed));
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match rustix::io::write(&self.0, rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Seals it, with so many numbers.
    ///
    /// # Errors
    /// `UnexpectedEof`: it has not so many. Else what the system says.
    pub fn finish(self, count: u64) -> io::Result<List> {
        rustix::fs::fcntl_add_seals(&self.0, FINAL | SealFlags::GROW | SealFlags::SEAL)?;
        List::mapped(self.0, count)
    }
}

/// The seals of memory that can be neither changed nor cut short.
const FINAL: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK);

/// Whether it can be neither changed nor cut short, and all of it has memory: reading it then needs none.
fn is_final(fd: &OwnedFd) -> io::Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    let stat = rustix::fs::fstat(fd)?;
    // Blocks are of 512 bytes, whatever the file system's.
    let there = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    Ok(seals.contains(FINAL) && there >= bytes_of(fd)?)
}

fn bytes_of(fd: &OwnedFd) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0))
}

/// Reads a list of `count` numbers that another process laid down. It is copied: whoever has the descriptor may still write there.
///
/// # Errors
/// As [`List::of`].
pub fn take_up(fd: &OwnedFd, count: u64) -> io::Result<Vec<u64>> {
    let there = bytes_of(fd)?;
    let is = |width: &u64| count.checked_mul(*width) == Some(there);
    let width = [4, 8].into_iter().find(is).ok_or(io::ErrorKind::UnexpectedEof)? as usize;
    if crate::memory::available_bytes().is_some_and(|left| left / 8 < count) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let (mut numbers, mut bytes) = (Vec::with_capacity(count as usize), vec![0; width * PART]);
    while (numbers.len() as u64) < count {
        let part = (count - numbers.len() as u64).min(PART as u64) as usize;
        let (mut done, at) = (0, (width * numbers.len()) as u64);
        while done < width * part {
            match rustix::io::pread(fd, &mut bytes[done..width * part], at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let words = bytes[..width * part].chunks_exact(width);
        numbers.extend(words.map(|word| word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that anybody may write, with these bytes.
    fn open(bytes: &[u8]) -> OwnedFd {
        let mut list = NewList::new().expect("a memfd");
        list.extend(bytes, |byte| [*byte]).expect("room");
        list.0
    }

    fn numbers(list: &List) -> Vec<u64> {
        list.numbers().iter().collect()
    }

    #[test]
    fn a_list_is_taken_up_as_it_was_laid_down() {
        for (count, high) in [0, 1, 65_535, 65_536, 200_003]
            .into_iter()
            .flat_map(|count| [(count, 0), (count, 40)])
        {
            let list: Vec<u64> = (0..count).map(|at| at << high | at).collect();
            let laid = List::new(&list).expect("a memfd");
            let width = if high > 0 && count > 1 { 8 } else { 4 };
            assert_eq!(laid.numbers().as_bytes().len() as u64, width * count);
            let fd = || rustix::io::dup(laid.fd().expect("laid down")).expect("another");
            assert!(take_up(&fd(), count).expect("all of it") == list && numbers(&laid) == list);
            assert!(numbers(&List::of(fd(), count).expect("mapped")) == list);
            for error in [take_up(&fd(), count + 1).err(), List::of(fd(), count + 1).err()] {
                assert_eq!(error.expect("more than there is").kind(), io::ErrorKind::UnexpectedEof);
            }
        }
        let fd = open(&[]);
        rustix::fs::ftruncate(&fd, 1 << 50).expect("sparse");
        let error = take_up(&fd, 1 << 47).expect_err("a petabyte");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn nobody_can_change_a_list_or_cut_it_short() {
        let list = List::new(&[1, 2, 3]).expect("laid down");
        let fd = list.fd().expect("laid down");
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 4).is_err() && rustix::fs::ftruncate(fd, 40).is_err());
        assert!(Mapping::new(fd, 12, true).is_err());
        assert_eq!(numbers(&list), [1, 2, 3]);
    }

    #[test]
    fn what_its_maker_may_still_change_is_copied() {
        let bytes: Vec<u8> = [7u32, 8].iter().flat_map(|number| number.to_le_bytes()).collect();
        let (none, half) = (SealFlags::GROW, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
        for seals in [none, half, SealFlags::SHRINK, SealFlags::WRITE] {
            let fd = open(&bytes);
            rustix::fs::fcntl_add_seals(&fd, seals).expect("sealed");
            let theirs = rustix::io::dup(&fd).expect("another");
            let list = List::of(fd, 2).expect("copied");
            let _ = rustix::io::pwrite(&theirs, &[9; 8], 0);
            let _ = rustix::fs::ftruncate(&theirs, 0);
            assert_eq!(numbers(&list), [7, 8]);
            // What is handed on is the copy.
            let given = rustix::io::dup(list.fd().expect("laid down")).expect("another");
            assert!(is_final(&given).expect("a memfd") && take_up(&given, 2).expect("there") == [7, 8]);
        }
        // What has no memory yet would take some when it is read.
        let fd = open(&[]);
        rustix::fs::ftruncate(&fd, 1 << 50).expect("sparse");
        rustix::fs::fcntl_add_seals(&fd, FINAL).expect("sealed");
        assert_eq!(
            List::of(fd, 1 << 47).err().map(|e| e.kind()),
            Some(io::ErrorKind::OutOfMemory)
        );
        let file = std::fs::File::open("/dev/null").expect("opened");
        assert_eq!(numbers(&List::of(file.into(), 0).expect("nothing")), [0; 0]);
    }
}
