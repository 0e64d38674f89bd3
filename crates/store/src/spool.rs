//! What a scan has read of its shards, for whoever reads the same bytes after it.
//!
//! Walking a shard of small members from header to header reads nearly all of it. So the shard is fetched in parts, once, into a file without a name,
//! where the walk looks for its headers and the first epoch finds its samples ([`Spool::read`]). Each part is checked as any fetch is, and has a
//! checksum for each stretch of it, which every read compares.
//!
//! The file has no name, so nothing is left of it whatever happens to the process. It takes no more than it was allowed: a shard that doesn't fit is
//! scanned without. A disk that fails or is full ends it, and costs nothing but the requests that it would have saved. The engine makes one for each
//! data set that it opens, all in one [`Room`], and lets it go ([`Spool::release`]) once it [is read](Spool::is_read) and whoever read it is through.

use crate::source::{ObjectMeta, Sink, Source};
use crate::{Error, ErrorKind, ObjectRef, Result};
use crc_fast::{CrcAlgorithm, Digest};
use rustc_hash::FxHashMap;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What is fetched at a time. At 35 MB/s on one connection it takes a tenth of a second, three times as long as its request waits for the first byte.
pub const PART: u64 = 4 << 20;
/// What has a checksum of its own: a read compares the stretches that it touches.
const STRETCH: u64 = 16 << 10;
/// What is read at a time, a multiple of [`STRETCH`].
const BUFFER: u64 = 1 << 20;
/// For one part: as long as for any window of a scan.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Of sixteen stretches that are there, how many must have been taken for all to count as read: headers, and members that nobody asks for, never are.
const READ_OF_16: u64 = 14;

/// What all spools of a process have promised to shards, together.
#[derive(Default)]
pub struct Room(AtomicU64);

impl Room {
    /// Takes bytes where no more than `most_bytes` are taken then.
    fn take(&self, bytes: u64, most_bytes: u64) -> bool {
        let taken = |now: u64| now.checked_add(bytes).filter(|&then| then <= most_bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that are promised now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A file of what was read of shards.
pub struct Spool {
    most_bytes: u64,
    room: Arc<Room>,
    state: Mutex<State>,
}

struct State {
    /// `None`: it has been let go, or its disk has failed.
    file: Option<Arc<File>>,
    shards: FxHashMap<Box<str>, Shard>,
    /// Where the next shard begins, which is what they take of the room.
    promised: u64,
}

/// A shard that has room in the file.
struct Shard {
    size: u64,
    etag: Option<String>,
    at: u64,
    parts: Vec<Option<Part>>,
}

/// A part that is there.
struct Part {
    /// The checksum of each stretch.
    sums: Box<[u32]>,
    /// Which stretches somebody has taken something of.
    taken: [u64; (PART / STRETCH / 64) as usize],
}

impl Part {
    fn taken(&self) -> u64 {
        self.taken.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }
}

impl Spool {
    /// A file in a directory, for shards as long as all spools of the room have no more than `most_bytes`.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(directory: &Path, most_bytes: u64, room: Arc<Room>) -> io::Result<Self> {
        let file = unnamed(directory)?;
        Ok(Spool {
            most_bytes,
            room,
            state: Mutex::new(State {
                file: Some(Arc::new(file)),
                shards: FxHashMap::default(),
                promised: 0,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises a shard room; whether there is any.
    pub(crate) fn admit(&self, shard: &ObjectMeta) -> bool {
        let mut state = self.state();
        let at = state.promised;
        // On pages of their own.
        let bytes = shard.size.checked_next_multiple_of(4096);
        // Without an ETag nobody could say later that the object is still this one.
        let (Some(bytes), Some(_), Some(_)) = (bytes, &state.file, &shard.etag) else {
            return false;
        };
        if !self.room.take(bytes, self.most_bytes) {
            return false;
        }
        state.promised += bytes;
        let parts = shard.size.div_ceil(PART) as usize;
        let shelved = Shard {
            size: shard.size,
            etag: shard.etag.clone(),
            at,
            parts: std::iter::repeat_with(|| None).take(parts).collect(),
        };
        state.shards.insert(shard.key.as_str().into(), shelved);
        true
    }

    /// Fetches a part of a shard that was admitted.
    ///
    /// # Errors
    /// The source's; `Closed` when the file can't be written to, and is let go.
    pub(crate) async fn fill(&self, source: &Source, shard: &ObjectMeta, part: u64) -> Result<()> {
        let (from, end) = (part * PART, ((part + 1) * PART).min(shard.size));
        let place = {
            let state = self.state();
            let at = state.shards.get(shard.key.as_str()).map(|shelved| shelved.at);
            state.file.clone().zip(at)
        };
        let (file, at) = place.ok_or_else(closed)?;
        let mut filler = Filler {
            file,
            at: at + from,
            sums: Sums::default(),
        };
        let deadline = Instant::now() + TIMEOUT;
        let filled = source.fetch(&shard.key, from..end, shard.etag.as_deref(), deadline, &mut filler);
        if let Err(error) = filled.await {
            if error.kind() == ErrorKind::Closed {
                self.release();
            }
            return Err(error);
        }
        let sums = filler.sums.finish();
        if let Some(shelved) = self.state().shards.get_mut(shard.key.as_str()) {
            let taken = Default::default();
            shelved.parts[part as usize] = Some(Part { sums, taken });
        }
        Ok(())
    }

    /// Bytes of a shard for the walk that had them filled, which looks at headers with checksums of their own.
    ///
    /// # Errors
    /// `Closed` when it has been let go, or its disk fails.
    pub(crate) fn look(&self, shard: &ObjectMeta, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<()> {
        let state = self.state();
        let at = state.shards.get(shard.key.as_str()).map(|shelved| shelved.at);
        let (file, at) = state.file.clone().zip(at).ok_or_else(closed)?;
        drop(state);
        bytes.resize((range.end - range.start) as usize, 0);
        file.read_exact_at(bytes, at + range.start).map_err(|error| {
            self.release();
            closed().with_source(error)
        })
    }

    /// Whether all of a range is there, of the object that the index means. Costs two look-ups.
    #[must_use]
    pub fn has(&self, object: &ObjectRef, range: &Range<u64>) -> bool {
        let state = self.state();
        state.file.is_some()
            && state
                .shards
                .get(object.key.as_str())
                .is_some_and(|shard| shard.has(object, range))
    }

    /// Hands a range to a sink, as a fetch does. Blocks.
    ///
    /// False: it isn't there, or not as it was fetched. What was handed out may be anything then, and [`Sink::restart`] has been called.
    ///
    /// # Errors
    /// The sink's.
    pub fn read(&self, object: &ObjectRef, range: Range<u64>, sink: &mut dyn Sink) -> Result<bool> {
        let (mut at, mut buffer) = (range.start / STRETCH * STRETCH, Vec::new());
        while at < range.end {
            let end = (at + BUFFER).min(range.end.next_multiple_of(STRETCH)).min(object.size);
            if !self.read_checked(object, at..end, &mut buffer) {
                sink.restart();
                return Ok(false);
            }
            let (from, to) = (range.start.max(at), range.end.min(end));
            sink.write(from - range.start, &buffer[(from - at) as usize..(to - at) as usize])?;
            at = end;
        }
        if let Some(shard) = self.state().shards.get_mut(object.key.as_str()) {
            shard.take(&range);
        }
        Ok(true)
    }

    /// Reads whole stretches and compares them.
    fn read_checked(&self, object: &ObjectRef, range: Range<u64>, buffer: &mut Vec<u8>) -> bool {
        let state = self.state();
        let Some((file, shard)) = state.file.clone().zip(state.shards.get(object.key.as_str())) else {
            return false;
        };
        if !shard.has(object, &range) {
            return false;
        }
        let sums: Vec<u32> = (range.start / STRETCH..range.end.div_ceil(STRETCH))
            .filter_map(|stretch| shard.sum(stretch))
            .collect();
        let at = shard.at + range.start;
        drop(state);
        buffer.resize((range.end - range.start) as usize, 0);
        let read = file.read_exact_at(buffer, at);
        let is_right = read.is_ok() && buffer.chunks(STRETCH as usize).map(crc32c).eq(sums.iter().copied());
        if !is_right {
            // Of a shard of which something is wrong, nothing is taken.
            self.state().shards.remove(object.key.as_str());
        }
        is_right
    }

    /// Bytes of shards that it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let state = self.state();
        let shards = state.shards.values().filter(|_| state.file.is_some());
        shards.map(Shard::bytes).sum()
    }

    /// Whether nearly all of it has been taken at least once.
    #[must_use]
    pub fn is_read(&self) -> bool {
        let state = self.state();
        let parts = || state.shards.values().flat_map(|shard| shard.parts.iter().flatten());
        let all: u64 = parts().map(|part| part.sums.len() as u64).sum();
        16 * parts().map(Part::taken).sum::<u64>() >= READ_OF_16 * all
    }

    /// Gives its room back, here and to the file system.
    pub fn release(&self) {
        let mut state = self.state();
        (state.file, state.shards) = (None, FxHashMap::default());
        self.room.give(std::mem::take(&mut state.promised));
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.release();
    }
}

impl Shard {
    fn has(&self, object: &ObjectRef, range: &Range<u64>) -> bool {
        let is_same = self.size == object.size && self.etag == object.etag;
        let parts = (range.start / PART) as usize..range.end.div_ceil(PART) as usize;
        is_same
            && range.end <= self.size
            && self
                .parts
                .get(parts)
                .is_some_and(|parts| parts.iter().all(Option::is_some))
    }

    fn sum(&self, stretch: u64) -> Option<u32> {
        let part = self.parts.get((stretch * STRETCH / PART) as usize)?.as_ref()?;
        part.sums.get((stretch % (PART / STRETCH)) as usize).copied()
    }

    /// Notes that a range was taken.
    fn take(&mut self, range: &Range<u64>) {
        for stretch in range.start / STRETCH..range.end.div_ceil(STRETCH) {
            if let Some(Some(part)) = self.parts.get_mut((stretch * STRETCH / PART) as usize) {
                let bit = stretch % (PART / STRETCH);
                part.taken[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        }
    }

    fn bytes(&self) -> u64 {
        let there = (0..).zip(&self.parts).filter(|(_, part)| part.is_some());
        there.map(|(part, _)| PART.min(self.size - part * PART)).sum()
    }
}

/// Writes a part to the file.
struct Filler {
    file: Arc<File>,
    at: u64,
    sums: Sums,
}

impl Sink for Filler {
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<()> {
        self.file
            .write_all_at(frame, self.at + at)
            .map_err(|error| closed().with_source(error))?;
        self.sums.update(frame);
        Ok(())
    }

    fn restart(&mut self) {
        self.sums = Sums::default();
    }
}

/// Checksums of stretches, of bytes that come in frames of any length.
struct Sums {
    crc: Digest,
    had: u64,
    sums: Vec<u32>,
}

impl Default for Sums {
    fn default() -> Self {
        Sums {
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
            had: 0,
            sums: Vec::new(),
        }
    }
}

impl Sums {
    fn update(&mut self, mut frame: &[u8]) {
        while !frame.is_empty() {
            let (now, rest) = frame.split_at(frame.len().min((STRETCH - self.had) as usize));
            self.crc.update(now);
            self.had += now.len() as u64;
            if self.had == STRETCH {
                self.end();
            }
            frame = rest;
        }
    }

    fn end(&mut self) {
        self.sums.push(self.crc.finalize() as u32);
        self.crc.reset();
        self.had = 0;
    }

    fn finish(mut self) -> Box<[u32]> {
        if self.had > 0 {
            self.end();
        }
        self.sums.into()
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the file for what a scan reads can't be used")
}

/// A file that nobody else can name, and that ends with the process.
fn unnamed(directory: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok(file.into()),
        // Not every file system has such files.
        Err(_) => {
            static MADE: AtomicU32 = AtomicU32::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".spool-{}-{number}", std::process::id()));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::open(&path, flags, mode)?;
            std::fs::remove_file(&path)?;
            Ok(file.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SourceOptions;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SIZE: u64 = 2 * PART + 100_001;

    /// A directory with a shard, and a spool with these parts of it.
    struct Place {
        _directory: tempfile::TempDir,
        bytes: Vec<u8>,
        shard: ObjectMeta,
        spool: Spool,
    }

    impl Place {
        fn new(parts: &[u64]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let bytes: Vec<u8> = (0..SIZE).map(|at| (at * 7 % 251) as u8 ^ (at >> 14) as u8).collect();
            std::fs::write(directory.path().join("s.tar"), &bytes).unwrap();
            let source = Source::open(directory.path().to_str().unwrap(), &SourceOptions::default()).unwrap();
            let spool = Spool::new(directory.path(), 2 * SIZE, Arc::default()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let shard = runtime.unwrap().block_on(async {
                let shard = source.head("s.tar", Instant::now() + TIMEOUT).await.unwrap();
                assert!(spool.admit(&shard));
                for &part in parts {
                    spool.fill(&source, &shard, part).await.unwrap();
                }
                shard
            });
            Place {
                _directory: directory,
                bytes,
                shard,
                spool,
            }
        }

        fn object(&self) -> ObjectRef {
            ObjectRef {
                key: self.shard.key.clone(),
                size: self.shard.size,
                etag: self.shard.etag.clone(),
                version: None,
            }
        }

        fn read(&self, range: Range<u64>) -> Option<Vec<u8>> {
            let mut bytes = Vec::new();
            let is_there = self.spool.read(&self.object(), range, &mut bytes).unwrap();
            assert!(is_there || bytes.is_empty());
            is_there.then_some(bytes)
        }
    }

    #[test]
    fn any_range_is_as_it_was_fetched() {
        let place = Place::new(&[0, 1, 2]);
        assert_eq!(place.spool.bytes(), SIZE);
        proptest!(|(from in 0..SIZE, len in 0..3_000_000u64)| {
            let range = from..(from + len).min(SIZE);
            prop_assert!(place.spool.has(&place.object(), &range));
            let expected = &place.bytes[range.start as usize..range.end as usize];
            prop_assert!(place.read(range.clone()).as_deref() == Some(expected));
        });
    }

    #[test]
    fn what_was_not_fetched_is_not_there() {
        let place = Place::new(&[0, 2]);
        let (object, has) = (place.object(), |range| place.spool.has(&place.object(), &range));
        assert_eq!(place.spool.bytes(), SIZE - PART);
        assert!(has(0..PART) && has(PART - 1..PART) && has(2 * PART..SIZE));
        assert!(!has(0..PART + 1) && !has(PART..PART + 1) && !has(0..SIZE) && !has(SIZE - 1..SIZE + 1));
        assert_eq!(place.read(PART - 10..PART + 10), None);
        let other = ObjectRef {
            etag: Some("other".to_owned()),
            ..object.clone()
        };
        assert!(!place.spool.has(&other, &(0..1)));
        let longer = ObjectRef {
            size: SIZE + 1,
            ..object.clone()
        };
        assert!(!place.spool.has(&longer, &(0..1)));
        let elsewhere = ObjectRef {
            key: "t.tar".to_owned(),
            ..object
        };
        assert!(!place.spool.has(&elsewhere, &(0..1)));
    }

    #[test]
    fn it_is_read_when_nearly_all_stretches_were_taken_and_not_when_some_were_taken_often() {
        let place = Place::new(&[0, 1]);
        assert!(!place.spool.is_read());
        for _ in 0..20 {
            assert!(place.read(0..PART + STRETCH).is_some());
        }
        assert!(!place.spool.is_read(), "half of it");
        assert!(place.read(PART + STRETCH..PART + 191 * STRETCH).is_some());
        assert!(!place.spool.is_read(), "447 of 512");
        assert!(place.read(PART + 191 * STRETCH..PART + 191 * STRETCH + 1).is_some());
        assert!(place.spool.is_read(), "448 of 512");
        assert!(Place::new(&[]).spool.is_read(), "there is nothing");
    }

    #[test]
    fn a_byte_that_has_changed_on_disk_is_never_handed_out_as_right() {
        for changed in [0, STRETCH, PART + 5, SIZE - 1] {
            let place = Place::new(&[0, 1, 2]);
            let file = place.spool.state().file.clone().unwrap();
            file.write_all_at(&[place.bytes[changed as usize] ^ 1], changed)
                .unwrap();
            // Its neighbours in another stretch are as they were.
            let stretch = changed / STRETCH * STRETCH;
            let before = stretch.saturating_sub(1)..stretch;
            assert!(place.read(before).is_some());
            assert_eq!(place.read(0..SIZE), None);
            assert!(!place.spool.has(&place.object(), &(0..1)), "nothing of that shard");
        }
    }

    #[test]
    fn a_shard_gets_room_or_is_left_out_and_all_of_it_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::default());
        let spool = Spool::new(directory.path(), 2 * PART + 4096, Arc::clone(&room)).unwrap();
        let shard = |key: &str, size, etag: Option<&str>| ObjectMeta {
            key: key.to_owned(),
            size,
            etag: etag.map(str::to_owned),
            version: None,
            modified: None,
        };
        assert!(spool.admit(&shard("a", PART + 1, Some("e"))));
        assert!(!spool.admit(&shard("b", PART + 1, Some("e"))), "too large");
        assert!(!spool.admit(&shard("c", PART, None)), "nobody could say what it is");
        assert!(spool.admit(&shard("d", PART, Some("e"))));
        let at: BTreeSet<u64> = spool.state().shards.values().map(|shard| shard.at).collect();
        assert_eq!(at, BTreeSet::from([0, PART + 4096]), "no two share a byte");
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            0,
            "it has no name"
        );
        let next = Spool::new(directory.path(), 2 * PART + 8192, Arc::clone(&room)).unwrap();
        assert!(
            next.admit(&shard("g", 4096, Some("e"))) && !next.admit(&shard("h", 1, Some("e"))),
            "one room"
        );
        spool.release();
        assert!(!spool.admit(&shard("f", 1, Some("e"))));
        assert_eq!(room.bytes(), 4096);
        assert!(next.admit(&shard("h", PART, Some("e"))));
        drop((spool, next));
        assert_eq!(room.bytes(), 0);
        let place = Place::new(&[0]);
        place.spool.release();
        assert_eq!((place.spool.bytes(), place.read(0..1)), (0, None));
    }
}
