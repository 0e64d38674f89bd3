//! One segment file, and the values that travel to blocking threads: [`Entry`], [`Reservation`], [`Written`], [`Chore`].
//!
//! The file is made by the first write and opened at need; a pool closes the handle that was opened longest ago when
//! there are too many, so that the number of segments is not limited by that of file descriptors. A handle in use stays
//! open until its call ends, whatever happens to the pool or to the file's name.

use super::direct::{Buffer, Handle, refuses};
use super::layout::{Checks, Layout, RECORD_HEADER, Record, SegmentHeader, footer};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use foreload_plan::scheduler::{CHECKED_BYTES, check_bytes};
use rustix::fs::{Advice, OFlags};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};

/// What the segments of a tier share.
pub(super) struct Shared {
    /// Where they are.
    pub(super) dir: PathBuf,
    /// Segments with an open handle, the one opened longest ago first.
    open: Mutex<VecDeque<Weak<SegmentFile>>>,
    most_open: usize,
    /// Bytes of segments that are given up but not unlinked yet.
    pub(super) to_unlink: AtomicU64,
    /// What the file system had left when it was last asked: after each write and each unlinking, and by a chore.
    pub(super) free: AtomicU64,
    /// How often it was asked.
    pub(super) answers: AtomicU64,
    /// Whether the file system has refused to go around the page cache.
    refuses_direct: AtomicBool,
    /// It makes files, and then refuses to.
    #[cfg(test)]
    pub(super) is_like_old_tmpfs: AtomicBool,
}

impl Shared {
    pub(super) fn new(dir: &Path, most_open: usize) -> Arc<Self> {
        Arc::new(Shared {
            dir: dir.to_owned(),
            open: Mutex::default(),
            most_open: most_open.max(1),
            to_unlink: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX),
            answers: AtomicU64::new(0),
            refuses_direct: AtomicBool::new(false),
            #[cfg(test)]
            is_like_old_tmpfs: AtomicBool::new(false),
        })
    }

    /// Asks the file system how much is free; one that doesn't say is taken to have room. Blocks.
    pub(super) fn measure(&self) {
        let free = free_bytes(&self.dir).unwrap_or(u64::MAX);
        self.free.store(free, Ordering::Relaxed);
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that `segment` was opened; closes another one for it where there are too many.
    fn opened(&self, segment: &Arc<SegmentFile>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_back(Arc::downgrade(segment));
        let closing = if open.len() > self.most_open {
            open.pop_front()
        } else {
            None
        };
        drop(open);
        if let Some(segment) = closing.and_then(|weak| weak.upgrade()) {
            segment.lock().handle = None;
        }
    }
}

/// What the file system of a directory has left; `None`: it doesn't say. Blocks.
#[must_use]
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// A segment file.
pub struct SegmentFile {
    path: PathBuf,
    header: SegmentHeader,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    handle: Option<Handle>,
    exists: bool,
}

impl SegmentFile {
    pub(super) fn new(path: PathBuf, header: SegmentHeader, exists: bool, shared: &Arc<Shared>) -> Arc<Self> {
        let state = Mutex::new(State { handle: None, exists });
        Arc::new(SegmentFile {
            path,
            header,
            shared: Arc::clone(shared),
            state,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn layout(&self) -> Layout {
        self.header.layout
    }

    /// The handle; `make`: the file is created where it does not exist yet.
    fn handle(self: &Arc<Self>, make: bool) -> io::Result<Handle> {
        let mut state = self.lock();
        if let Some(handle) = &state.handle {
            return Ok(handle.clone());
        }
        let new = make && !state.exists;
        let handle = match self.begun(new) {
            Err(error) => {
                if new {
                    drop(std::fs::remove_file(&self.path));
                }
                return Err(error);
            }
            Ok(handle) => handle,
        };
        state.exists |= new;
        // Records are read one at a time, in no order: what the system would read ahead is never used.
        let _ = rustix::fs::fadvise(&*handle.file, 0, None, Advice::Random);
        state.handle = Some(handle.clone());
        drop(state);
        self.shared.opened(self);
        Ok(handle)
    }

    /// An open file with a header. One that a file system can't open, write or read around the page cache goes through it.
    fn begun(&self, new: bool) -> io::Result<Handle> {
        if self.header.layout == Layout::Paged && !self.shared.refuses_direct.load(Ordering::Relaxed) {
            let direct = self.begun_as(new, true);
            if !direct.as_ref().is_err_and(refuses) {
                return direct;
            }
            self.shared.refuses_direct.store(true, Ordering::Relaxed);
            if new {
                // Some make the file before they refuse.
                drop(std::fs::remove_file(&self.path));
            }
        }
        self.begun_as(new, false)
    }

    fn begun_as(&self, new: bool, is_direct: bool) -> io::Result<Handle> {
        let file = Arc::new(open_as(&self.path, new, is_direct)?);
        #[cfg(test)]
        if is_direct && self.shared.is_like_old_tmpfs.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let handle = Handle { file, is_direct };
        match (new, is_direct) {
            (true, true) => handle.write_pages(&[&self.header.encode()], 0)?,
            (true, false) => handle.file.write_all_at(&self.header.encode(), 0)?,
            (false, true) => match handle.read(0..1, &mut Buffer::new(0), |_| true) {
                Err(error) if refuses(&error) => return Err(error),
                // What else is wrong, its reader finds out.
                _ => {}
            },
            (false, false) => {}
        }
        Ok(handle)
    }

    /// Writes the footer where the records end, so that the next start need not read them.
    ///
    /// What lies behind `end` is left over from failed writes and goes.
    pub(super) fn seal(self: &Arc<Self>, records: &[Record], end: u64) -> io::Result<()> {
        // A footer fills no page.
        let file = open(&self.path, false)?;
        file.set_len(end)?;
        file.write_all_at(&footer(records, self.header.mark, end), end)
    }
}

pub(super) fn open(path: &Path, new: bool) -> io::Result<File> {
    open_as(path, new, false)
}

fn open_as(path: &Path, new: bool, is_direct: bool) -> io::Result<File> {
    let direct = if is_direct { OFlags::DIRECT } else { OFlags::empty() };
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(new)
        .mode(0o600)
        // A link in the directory could name any file of the user's.
        .custom_flags((OFlags::NOFOLLOW | direct).bits().cast_signed())
        .open(path)
}

/// A record that can be read, from any thread and for as long as the value lives.
#[derive(Clone)]
pub struct Entry {
    pub(super) segment: Arc<SegmentFile>,
    pub(super) record: Record,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The disk failed: the record is lost for now, perhaps others too.
    #[error("cannot read {path} at {offset}: {source}")]
    Io {
        /// The segment.
        path: PathBuf,
        /// Where the record starts.
        offset: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The bytes are not those that were written. Nothing of them may be used.
    #[error("the record in {path} at {offset} is damaged")]
    Corrupt {
        /// The segment.
        path: PathBuf,
        /// Where the record starts.
        offset: u64,
    },
    /// The segment was evicted since the entry was looked up.
    #[error("{path} was evicted")]
    Gone {
        /// The segment.
        path: PathBuf,
    },
}

impl Entry {
    /// Bytes of the record.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::from(self.record.len)
    }

    /// Whether it holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.record.len == 0
    }

    /// The file that holds it.
    #[must_use]
    pub fn segment(&self) -> &SegmentFile {
        &self.segment
    }

    /// Reads a range of the record through `buffer`, shows each part of it to `take` with its place in the range, and compares the checksums at the
    /// end. Blocks.
    ///
    /// False: `take` wanted no more.
    ///
    /// # Errors
    /// What was shown may be anything then: the caller must not use it.
    pub fn read(
        &self,
        range: Range<u64>,
        buffer: &mut Buffer,
        mut take: impl FnMut(u64, &[u8]) -> bool,
    ) -> Result<bool, ReadError> {
        if range.end > self.len() {
            // It isn't what the reader takes it for.
            return Err(self.corrupt());
        }
        if range.is_empty() && !self.is_empty() {
            // It touches no stretch that could be compared.
            return Ok(true);
        }
        let handle = match self.segment.handle(false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = self.segment.path.clone();
                return Err(ReadError::Gone { path });
            }
            handle => handle.map_err(|error| self.failed(error))?,
        };
        let payload = u64::from(self.record.offset) + RECORD_HEADER;
        let is_part = range.end - range.start < self.len();
        // A range is as good as the stretches that it touches.
        let (first, end) = match check_bytes(self.len()) {
            0 => (0, self.len()),
            _ => (
                range.start / CHECKED_BYTES * CHECKED_BYTES,
                range.end.next_multiple_of(CHECKED_BYTES).min(self.len()),
            ),
        };
        let stretches = (first / CHECKED_BYTES) as usize..end.div_ceil(CHECKED_BYTES) as usize;
        let (mut checks, mut at) = (Checks::new(), first);
        let whole = handle.read(payload + first..payload + end, buffer, |bytes| {
            checks.update(bytes);
            let to = at + bytes.len() as u64;
            let (from, until) = (range.start.max(at), range.end.min(to));
            let goes_on =
                from >= until || take(from - range.start, &bytes[(from - at) as usize..(until - at) as usize]);
            at = to;
            goes_on
        });
        if !whole.map_err(|error| self.failed(error))? {
            return Ok(false);
        }
        let checks = checks.finish();
        let right = if is_part && check_bytes(self.len()) > 0 {
            let mut written = Vec::with_capacity(check_bytes(self.len()) as usize);
            let read = handle.read(self.record.checks_at()..self.record.end(), buffer, |bytes| {
                written.extend_from_slice(bytes);
                true
            });
            read.map_err(|error| self.failed(error))?;
            Checks::summary(&written) == self.record.checksum
                && written.get(4 * stretches.start..4 * stretches.end) == Some(&checks)
        } else {
            Checks::summary(&checks) == self.record.checksum
        };
        if right { Ok(true) } else { Err(self.corrupt()) }
    }

    fn corrupt(&self) -> ReadError {
        ReadError::Corrupt {
            path: self.segment.path.clone(),
            offset: u64::from(self.record.offset),
        }
    }

    /// What an error of the system's says of the record: one that ends too early isn't what was written.
    fn failed(&self, source: io::Error) -> ReadError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => self.corrupt(),
            _ => ReadError::Io {
                path: self.segment.path.clone(),
                offset: u64::from(self.record.offset),
                source,
            },
        }
    }
}

/// A place for one record, to be written on a blocking thread and then given back to the tier: by
/// [`DiskTier::commit`](super::DiskTier::commit) when written, by [`DiskTier::failed`](super::DiskTier::failed) or
/// [`DiskTier::abandon`](super::DiskTier::abandon) otherwise.
#[must_use = "its place is lost when it is not given back"]
pub struct Reservation {
    pub(super) segment: Arc<SegmentFile>,
    /// The checksum is not known yet.
    pub(super) record: Record,
    pub(super) sequence: u32,
}

impl Reservation {
    /// The record's key.
    #[must_use]
    pub fn key(&self) -> [u8; 16] {
        self.record.key
    }

    /// Bytes to write.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::from(self.record.len)
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.record.len == 0
    }

    /// Writes the record to its place. Blocks.
    ///
    /// No flush follows: the bytes are a copy of what the bucket holds, they outlive the process in the page cache or on the device, and after a power
    /// cut the checksum tells what is missing.
    ///
    /// # Errors
    /// What the system says, or `InvalidInput` when `bytes` are not as many as reserved.
    pub fn write(mut self, bytes: &[u8]) -> Result<Written, FailedWrite> {
        let checks = Checks::of(bytes);
        self.record.checksum = Checks::summary(&checks);
        match self.try_write(bytes, &checks) {
            Ok(()) => Ok(Written { reservation: self }),
            Err(error) => Err(FailedWrite {
                reservation: self,
                error,
            }),
        }
    }

    fn try_write(&self, bytes: &[u8], checks: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 != self.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not as many bytes as reserved",
            ));
        }
        let handle = self.segment.handle(true)?;
        let header = self.record.header(self.segment.header.mark);
        let mut at = u64::from(self.record.offset);
        // One checksum alone is in the header.
        let checks = &checks[..check_bytes(self.len()) as usize];
        if handle.is_direct {
            handle.write_pages(&[&header, bytes, checks], at)?;
            self.segment.shared.measure();
            return Ok(());
        }
        let mut parts = [IoSlice::new(&header), IoSlice::new(bytes), IoSlice::new(checks)];
        let mut rest = &mut parts[..];
        let mut left = header.len() + bytes.len() + checks.len();
        while left > 0 {
            match rustix::io::pwritev(&*handle.file, rest, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    IoSlice::advance_slices(&mut rest, n);
                    at += n as u64;
                    left -= n;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.segment.shared.measure();
        Ok(())
    }
}

/// A record that is in its place, for [`DiskTier::commit`](super::DiskTier::commit).
#[must_use = "the record is not found before it is committed"]
pub struct Written {
    pub(super) reservation: Reservation,
}

impl Written {
    /// The record's key.
    #[must_use]
    pub fn key(&self) -> [u8; 16] {
        self.reservation.record.key
    }
}

/// A write that failed, for [`DiskTier::failed`](super::DiskTier::failed).
#[must_use = "its place is lost when it is not given back"]
pub struct FailedWrite {
    pub(super) reservation: Reservation,
    /// What the system said.
    pub error: io::Error,
}

impl FailedWrite {
    /// The record's key.
    #[must_use]
    pub fn key(&self) -> [u8; 16] {
        self.reservation.record.key
    }
}

/// Work that would hold the event loop up: sealing and unlinking files, asking what is free. Nothing waits for it, and nothing is wrong
/// when it is late or fails: a segment without a footer is read record by record at the next start, and one that was
/// not unlinked is found again.
#[must_use = "it is to be run on a blocking thread"]
pub struct Chore(pub(super) Work);

pub(super) enum Work {
    Seal {
        segment: Arc<SegmentFile>,
        records: Vec<Record>,
        end: u64,
    },
    Unlink {
        segment: Arc<SegmentFile>,
        bytes: u64,
    },
    Measure(Arc<Shared>),
}

impl Chore {
    /// Does it. Blocks.
    pub fn run(self) {
        match self.0 {
            Work::Seal { segment, records, end } => drop(segment.seal(&records, end)),
            Work::Unlink { segment, bytes } => {
                drop(std::fs::remove_file(&segment.path));
                segment.shared.measure();
                segment.shared.to_unlink.fetch_sub(bytes, Ordering::Relaxed);
            }
            Work::Measure(shared) => shared.measure(),
        }
    }
}

#[cfg(test)]
impl SegmentFile {
    /// Closes the handle, as the pool does.
    pub(super) fn shut(&self) {
        self.lock().handle = None;
    }
}

#[cfg(test)]
impl Reservation {
    /// Fails after `at` bytes.
    pub(super) fn tear(mut self, bytes: &[u8], at: usize) -> FailedWrite {
        let checks = Checks::of(bytes);
        self.record.checksum = Checks::summary(&checks);
        let mut all = self.record.header(self.segment.header.mark).to_vec();
        all.extend(bytes);
        all.extend(&checks[..check_bytes(self.len()) as usize]);
        all.truncate(at.min(all.len() - 1));
        drop(self.segment.handle(true).unwrap());
        let file = open(&self.segment.path, false).unwrap();
        file.write_all_at(&all, u64::from(self.record.offset)).unwrap();
        FailedWrite {
            reservation: self,
            error: io::ErrorKind::Other.into(),
        }
    }
}
