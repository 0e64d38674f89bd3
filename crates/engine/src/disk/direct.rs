//! Reading and writing around the page cache.
//!
//! What a tier writes is read once or twice much later, and its policy knows when: the page cache would hold it for nothing, takes twice the CPU time to
//! copy it, and makes writers wait once it has too much to write back. So records on pages of their own are moved between the device and a [`Buffer`].
//! A file system that can't do that is written to and read from as any other, at the same places.

use foreload_plan::scheduler::PAGE_BYTES;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

/// What is written at a time.
const PIECE_BYTES: u64 = 512 << 10;
/// Buffers that are kept for the next writes, whichever threads do them.
const KEPT: usize = 8;
static BUFFERS: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// Memory that begins at a page, as the device wants it.
pub struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    /// At least so many bytes, and at least two pages.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let len = bytes.max(2 * PAGE_BYTES).next_multiple_of(PAGE_BYTES) as usize;
        let bytes = vec![0; len + PAGE_BYTES as usize];
        let from = bytes.as_ptr().align_offset(PAGE_BYTES as usize);
        Buffer { bytes, from, len }
    }

    fn pages(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

/// An open segment.
#[derive(Clone)]
pub(super) struct Handle {
    pub file: Arc<File>,
    /// Whether it is read and written in whole pages, around the page cache.
    pub is_direct: bool,
}

impl Handle {
    /// Shows a range of the file piece by piece. False: `show` wanted no more.
    pub(super) fn read(
        &self,
        range: Range<u64>,
        buffer: &mut Buffer,
        mut show: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<bool> {
        let step = if self.is_direct { PAGE_BYTES } else { 1 };
        let (pages, mut at) = (buffer.pages(), range.start);
        while at < range.end {
            let from = at / step * step;
            let to = range.end.next_multiple_of(step).min(from + pages.len() as u64);
            let bytes = &mut pages[..(to - from) as usize];
            self.file.read_exact_at(bytes, from)?;
            let end = range.end.min(to);
            if !show(&bytes[(at - from) as usize..(end - from) as usize]) {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    /// Writes parts one behind the other, in whole pages from `at` on: zeros follow the last one.
    pub(super) fn write_pages(&self, parts: &[&[u8]], mut at: u64) -> io::Result<()> {
        let kept = || BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = kept().pop().unwrap_or_else(|| Buffer::new(PIECE_BYTES));
        let written = self.write_through(&mut buffer, parts, &mut at);
        let mut kept = kept();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
        written
    }

    fn write_through(&self, buffer: &mut Buffer, parts: &[&[u8]], at: &mut u64) -> io::Result<()> {
        let (pages, mut filled) = (buffer.pages(), 0);
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(pages.len() - filled));
                pages[filled..filled + now.len()].copy_from_slice(now);
                (filled, rest) = (filled + now.len(), later);
                if filled == pages.len() {
                    self.file.write_all_at(pages, *at)?;
                    (*at, filled) = (*at + filled as u64, 0);
                }
            }
        }
        let end = filled.next_multiple_of(PAGE_BYTES as usize);
        pages[filled..end].fill(0);
        self.file.write_all_at(&pages[..end], *at)
    }
}

/// Whether a file system refuses to go around the page cache.
pub(super) fn refuses(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [rustix::io::Errno::INVAL, rustix::io::Errno::OPNOTSUPP]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_pages_is_read_in_any_range() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 777).map(|i| (i * 7 % 251) as u8).collect();
        for flags in [0, rustix::fs::OFlags::DIRECT.bits().cast_signed()] {
            use std::os::unix::fs::OpenOptionsExt;
            let opened = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(flags)
                .open(&path);
            let Ok(file) = opened else {
                continue;
            };
            let handle = Handle {
                file: Arc::new(file),
                is_direct: flags != 0,
            };
            let (head, tail) = bytes.split_at(36);
            handle.write_pages(&[head, tail, &[]], PAGE_BYTES).unwrap();
            let end = PAGE_BYTES + (bytes.len() as u64).next_multiple_of(PAGE_BYTES);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), end);
            let mut buffer = Buffer::new(10_000);
            for (from, to) in [
                (0, bytes.len()),
                (5, 6),
                (4095, 4097),
                (4096, 90_000),
                (bytes.len() - 1, bytes.len()),
            ] {
                let mut found = Vec::new();
                let range = PAGE_BYTES + from as u64..PAGE_BYTES + to as u64;
                let whole = handle.read(range, &mut buffer, |piece| {
                    found.extend_from_slice(piece);
                    true
                });
                assert!(whole.unwrap());
                assert!(found == bytes[from..to], "{flags} {from}..{to}");
            }
            assert!(handle.read(end..end + 1, &mut buffer, |_| true).is_err());
            std::fs::remove_file(&path).unwrap();
        }
    }
}
