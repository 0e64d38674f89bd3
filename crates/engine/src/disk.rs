//! A disk tier: records in segment files, found again after a restart or a kill.
//!
//! A *record* is a block's bytes under their content key, so that it serves every job that reads the same object, and
//! survives all of them. Any range of it can be read and compared with its checksums by itself. Records are appended to one *segment* file at a time. A full segment is *sealed*: a footer
//! lists its records, and the next start reads that alone. Nothing is ever moved or overwritten; room is made by
//! unlinking whole segments, of jobs that are gone, oldest first.
//!
//! [`DiskTier`] belongs to the event loop. It knows where everything is and decides where the next record goes; none
//! of its methods but [`DiskTier::open`] and [`DiskTier::close`] touches the disk. What does is handed out as values
//! that are used on blocking threads:
//!
//! ```text
//!   event loop                          blocking threads
//!   find(key)            -> Entry       -> read(range, buffer, take)
//!   reserve(job, key, n) -> Reservation -> write(bytes) -> Written or FailedWrite
//!   commit(written) / failed(failed)    <-
//!   chore()              -> Chore       -> run()
//! ```
//!
//! Large records lie on pages of their own and go around the page cache (`direct`); small ones are packed and go through it.
//!
//! A record is found from `commit` on. Nothing is flushed: a killed process loses nothing that reached the page cache,
//! a power cut may, and then the record's checksum says so; it is compared with every read. The format is described in
//! docs/reference/disk-format.md, recovery in `scan`.
//!
//! The tier never aborts training: a damaged file is removed and reported, a full or failing disk makes
//! [`DiskTier::reserve`] refuse, and a damaged record is an error of its read.

mod direct;
mod index;
mod layout;
mod scan;
mod segment;
mod segments;
mod settings;
#[cfg(test)]
mod tests;

pub use direct::Buffer;
pub use scan::Damage;
pub use segment::{Chore, Entry, FailedWrite, ReadError, Reservation, SegmentFile, Written, free_bytes};
pub use settings::DiskSettings;

use foreload_plan::scheduler::record_bytes;
use index::{Index, Place};
use layout::{Layout, MAX_SEGMENT, Record};
use rustc_hash::FxHashMap;
use rustix::fs::{FlockOperation, flock};
use segments::Segments;
use std::collections::hash_map::Entry as Slot;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a full disk is left alone before the next try; after other errors it doubles each time, up to 32 times this.
const PAUSE: Duration = Duration::from_secs(10);

/// Why a tier could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Another process uses the directory.
    #[error("the directory {dir} of a disk tier is in use by process {owner}: stop it or choose another directory")]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Its process id, as far as known.
        owner: String,
    },
    /// The settings can't be met.
    #[error("{0}")]
    Invalid(String),
    /// The directory can't be made, listed or locked.
    #[error("the directory {dir} can't be used as a disk tier: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Why no place is given for a record. Training goes on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It doesn't fit, and all there is belongs to jobs that run.
    #[error("the disk tier is full")]
    Full,
    /// The file system has no room beyond what is to stay free.
    #[error("its file system is full, but for the {} GiB that stays free", DiskSettings::KEEP_FREE_BYTES >> 30)]
    NoSpace,
    /// It is there already, or being written.
    #[error("the disk tier has the record")]
    Exists,
    /// Writes failed a moment ago.
    #[error("the disk tier fails to write")]
    Failing,
}

/// What was found when a tier was opened.
#[derive(Debug, Default)]
pub struct OpenReport {
    /// Segments in use.
    pub segments: u64,
    /// Records found.
    pub records: u64,
    /// Bytes of the segments.
    pub bytes: u64,
    /// Segments without a footer: their writer was killed. What they hold was compared with its checksums.
    pub unsealed: u64,
    /// Bytes in them that were no complete record, and were cut off or left as holes.
    pub lost_bytes: u64,
    /// Segments that were removed because they could not be used, and why.
    pub damaged: Vec<(PathBuf, Damage)>,
    /// Segments that were removed because the capacity is smaller than it was.
    pub evicted: u64,
}

/// Records on one disk, as the event loop sees them.
pub struct DiskTier {
    settings: DiskSettings,
    index: Index,
    segments: Segments,
    /// Keys that are being written, and whether they were forgotten meanwhile.
    writing: FxHashMap<[u8; 16], bool>,
    records: u64,
    /// Of what is reserved and neither written nor given up, the file system may not know yet.
    pending_bytes: u64,
    /// Errors in a row, and when to try again.
    failures: u32,
    paused: Option<(Instant, Refusal)>,
    /// Where a pause for want of room is over but for the file system's answer: how often it had been asked before.
    asked: Option<u64>,
    /// Locked while it is open.
    lock: File,
}

impl DiskTier {
    /// Opens the tier in `dir`, which is made where it doesn't exist. Blocks: it reads the footers of all segments.
    ///
    /// The directory belongs to the tier as long as the value lives. Files with other names than ours are left alone.
    ///
    /// # Errors
    /// `Locked` when another process, or another value in this one, has it open.
    pub fn open(dir: &Path, settings: DiskSettings) -> Result<(DiskTier, OpenReport), DiskError> {
        let settings = settings.checked()?;
        let io = |source| DiskError::Io {
            dir: dir.to_owned(),
            source,
        };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        let lock = lock(dir)?;
        let mut tier = DiskTier {
            segments: Segments::new(dir, settings.open_files),
            settings,
            index: Index::new(),
            writing: FxHashMap::default(),
            records: 0,
            pending_bytes: 0,
            failures: 0,
            paused: None,
            asked: None,
            lock,
        };
        let mut report = OpenReport::default();
        let found = segments::list(dir).map_err(io)?;
        let count = |(n, path): &(u32, PathBuf)| scan::count(&segment::open(path, false).ok()?, *n);
        tier.index.reserve(found.iter().filter_map(count).sum());
        for (sequence, path) in found {
            tier.load(sequence, path, &mut report);
        }
        while tier.used_bytes() > tier.settings.capacity_bytes && tier.evict() {
            report.evicted += 1;
        }
        tier.segments.measure();
        tier.run_chores();
        report.segments = tier.segments.len();
        report.records = tier.records;
        report.bytes = tier.used_bytes();
        Ok((tier, report))
    }

    /// Takes one segment in, or removes it.
    fn load(&mut self, sequence: u32, path: PathBuf, report: &mut OpenReport) {
        match segment::open(&path, false)
            .map_err(Damage::from)
            .and_then(|file| scan::read(&file, sequence))
        {
            Ok(contents) => {
                if !contents.sealed {
                    let layout = contents.header.layout;
                    let places = contents.records.iter().map(|r| layout.end(r) - u64::from(r.offset));
                    report.unsealed += 1;
                    report.lost_bytes += contents.bytes.saturating_sub(layout.first() + places.sum::<u64>());
                }
                let records = self.segments.adopt(sequence, path, contents);
                for record in &records {
                    // The same record may have been found before: it was forgotten there, and written again.
                    self.insert(sequence, record);
                }
                self.segments.seal_found(sequence, records);
            }
            Err(damage) => {
                drop(std::fs::remove_file(&path));
                self.segments.skip(sequence);
                match damage {
                    Damage::Empty { bytes } => {
                        report.unsealed += 1;
                        report.lost_bytes += bytes;
                    }
                    _ => report.damaged.push((path, damage)),
                }
            }
        }
    }

    /// Where `key` is, if it is here.
    #[must_use]
    pub fn find(&self, key: &[u8; 16]) -> Option<Entry> {
        let place = self.index.get(key)?;
        let segment = self.segments.get(place.segment)?;
        Some(Entry {
            segment: segment.file.clone(),
            record: place.record(*key),
        })
    }

    /// Whether `key` is here.
    #[must_use]
    pub fn contains(&self, key: &[u8; 16]) -> bool {
        self.place(key).is_some()
    }

    fn place(&self, key: &[u8; 16]) -> Option<Place> {
        self.index
            .get(key)
            .filter(|place| self.segments.get(place.segment).is_some())
    }

    /// Gives a place for `len` bytes under `key`, which `job` wants kept as long as it runs.
    ///
    /// Where capacity or the file system's room is used up, segments that no running job uses make room.
    ///
    /// # Errors
    /// See [`Refusal`]; nothing changed then, but segments may have been evicted.
    pub fn reserve(&mut self, job: u64, key: [u8; 16], len: u64) -> Result<Reservation, Refusal> {
        self.index.sweep(|segment| self.segments.get(segment).is_some());
        if self.writing.contains_key(&key) || self.contains(&key) {
            return Err(Refusal::Exists);
        }
        self.may_write()?;
        if len > MAX_SEGMENT {
            return Err(Refusal::Full);
        }
        let layout = Layout::of(len, self.settings.segment_bytes());
        let need = record_bytes(len);
        let alone = need + layout.overhead();
        if alone > self.settings.capacity_bytes.min(MAX_SEGMENT) {
            return Err(Refusal::Full);
        }
        self.make_room(alone)?;
        if !self.segments.has_room(layout, need, self.settings.segment_bytes()) {
            self.segments.roll(layout, &self.index)?;
        }
        let reservation = self
            .segments
            .append(layout, job, key, len as u32)
            .ok_or(Refusal::Full)?;
        self.pending_bytes += need;
        self.writing.insert(key, false);
        Ok(reservation)
    }

    /// Leaves so much of the file system free from now on.
    #[cfg(test)]
    pub(crate) fn keep_free(&mut self, bytes: u64) {
        self.settings.keep_free_bytes = bytes;
    }

    fn may_write(&mut self) -> Result<(), Refusal> {
        match self.paused {
            Some((until, refusal)) if Instant::now() < until => Err(refusal),
            // What it had left is as old as the pause, and nothing is evicted for an old figure.
            Some((_, Refusal::NoSpace)) => match self.asked {
                None => {
                    self.asked = Some(self.segments.answers());
                    self.segments.measure();
                    Err(Refusal::NoSpace)
                }
                Some(before) if self.segments.answers() == before => Err(Refusal::NoSpace),
                Some(_) => {
                    (self.paused, self.asked) = (None, None);
                    Ok(())
                }
            },
            _ => Ok(()),
        }
    }

    /// Evicts until there is room for `bytes`.
    fn make_room(&mut self, bytes: u64) -> Result<(), Refusal> {
        while self.used_bytes() + bytes > self.settings.capacity_bytes {
            if !self.evict() {
                return Err(Refusal::Full);
            }
        }
        let floor = self
            .settings
            .keep_free_bytes
            .saturating_add(self.pending_bytes)
            .saturating_add(bytes);
        while self.segments.free_bytes() < floor {
            if !self.evict() {
                // What is being written brings a new figure.
                if self.pending_bytes == 0 {
                    self.pause(PAUSE, Refusal::NoSpace);
                }
                return Err(Refusal::NoSpace);
            }
        }
        Ok(())
    }

    fn evict(&mut self) -> bool {
        let Some(live) = self.segments.evict() else {
            return false;
        };
        self.records -= live;
        self.index.sweep_later();
        true
    }

    fn pause(&mut self, time: Duration, refusal: Refusal) {
        self.paused = Some((Instant::now() + time, refusal));
        self.asked = None;
    }

    /// The record is written: from now on it is found.
    pub fn commit(&mut self, written: Written) {
        let Written { reservation } = written;
        self.settled(&reservation);
        self.failures = 0;
        // Room for this one is not room for the next.
        self.paused = self.paused.filter(|(_, refusal)| *refusal == Refusal::NoSpace);
        let forgotten = self.writing.remove(&reservation.record.key).unwrap_or(true);
        if !forgotten {
            self.insert(reservation.sequence, &reservation.record);
        }
        self.segments
            .landed(reservation.sequence, &reservation.record, !forgotten, &self.index);
    }

    /// The record could not be written. After errors, [`DiskTier::reserve`] refuses for a while.
    pub fn failed(&mut self, failed: FailedWrite) {
        let FailedWrite { reservation, error } = failed;
        match error.kind() {
            io::ErrorKind::InvalidInput => {}
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                self.pause(PAUSE, Refusal::NoSpace);
            }
            _ => {
                self.pause(PAUSE * (1 << self.failures.min(5)), Refusal::Failing);
                self.failures += 1;
            }
        }
        self.abandon(reservation);
    }

    /// The record is not going to be written after all.
    pub fn abandon(&mut self, reservation: Reservation) {
        self.settled(&reservation);
        self.writing.remove(&reservation.record.key);
        self.segments
            .abandoned(reservation.sequence, &reservation.record, &self.index);
    }

    fn settled(&mut self, reservation: &Reservation) {
        self.pending_bytes -= record_bytes(reservation.len());
    }

    fn insert(&mut self, sequence: u32, record: &Record) {
        self.records += 1;
        self.segments.born(sequence);
        if let Some(older) = self.index.insert(record.key, Place::new(sequence, record)) {
            self.lost(older);
        }
    }

    /// A record that was counted at `place` is no longer there.
    fn lost(&mut self, place: Place) {
        if self.segments.died(place.segment) {
            self.records -= 1;
        }
    }

    /// Drops a record. Its room is free when nothing else lives in its segment; entries that were handed out still read.
    pub fn forget(&mut self, key: &[u8; 16]) {
        if let Slot::Occupied(mut writing) = self.writing.entry(*key) {
            writing.insert(true);
        }
        if let Some(place) = self.index.remove(key) {
            self.lost(place);
        }
        self.index.sweep(|segment| self.segments.get(segment).is_some());
    }

    /// Drops the record that `entry` could not read. A record written under its key since stays.
    pub fn quarantine(&mut self, entry: &Entry) {
        if self
            .place(&entry.record.key)
            .is_some_and(|place| place.record(entry.record.key) == entry.record)
        {
            self.forget(&entry.record.key);
        }
    }

    /// `job` runs and uses these records: the segments they are in are not evicted before [`DiskTier::unprotect`].
    /// What a job writes is protected already.
    pub fn protect(&mut self, job: u64, keys: impl IntoIterator<Item = [u8; 16]>) {
        for key in keys {
            if let Some(place) = self.index.get(&key) {
                self.segments.protect(place.segment, job);
            }
        }
    }

    /// `job` has ended: what it used stays, but makes room for others when needed.
    pub fn unprotect(&mut self, job: u64) {
        self.segments.unprotect(job);
    }

    /// Work for a blocking thread, in the order in which it is to be done: ask until there is none.
    pub fn chore(&mut self) -> Option<Chore> {
        self.segments.chore()
    }

    /// All of it.
    pub fn chores(&mut self) -> Vec<Chore> {
        std::iter::from_fn(|| self.chore()).collect()
    }

    fn run_chores(&mut self) {
        while let Some(chore) = self.chore() {
            chore.run();
        }
    }

    /// Seals what is open, so that the next start is quick. Blocks; dropping the tier does the same.
    ///
    /// A segment that is still being written to stays unsealed, as after a kill.
    pub fn close(&mut self) {
        self.segments.seal_all(&self.index);
        self.run_chores();
    }

    /// Bytes of all segments, dead records and footers included; never above the capacity, unless [`DiskTier::resize`] lowered that under a running job.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.segments.bytes()
    }

    /// Bytes that it may hold.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.settings.capacity_bytes
    }

    /// What a policy may fill that counts each record as [`foreload_plan::scheduler::record_bytes`] does: the
    /// capacity less the segments' own headers and one segment, which a policy that evicts finds half dead.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        self.settings.usable_bytes()
    }

    /// Allows more bytes from now on, or fewer: segments that no running job uses go first, and what is used beyond goes when its job ends.
    ///
    /// # Errors
    /// `Invalid` when the capacity is too small for a tier; nothing changed then.
    pub fn resize(&mut self, capacity_bytes: u64) -> Result<(), DiskError> {
        let settings = DiskSettings {
            capacity_bytes,
            ..self.settings.clone()
        };
        self.settings = settings.checked()?;
        while self.used_bytes() > capacity_bytes && self.evict() {}
        Ok(())
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.records
    }

    /// Whether it holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Key and length of each record, in no order.
    pub fn records(&self) -> impl Iterator<Item = ([u8; 16], u64)> + '_ {
        let alive = |(key, place): ([u8; 16], Place)| {
            self.segments
                .get(place.segment)
                .map(|_| (key, u64::from(place.record(key).len)))
        };
        self.index.iter().filter_map(alive)
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.close();
        // A child that another thread has just forked shares the lock until it executes its program.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Locks the directory. The lock goes with the process, however it ends.
fn lock(dir: &Path) -> Result<File, DiskError> {
    let io = |source: io::Error| DiskError::Io {
        dir: dir.to_owned(),
        source,
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(dir.join("lock"))
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut owner = String::new();
            drop(file.take(32).read_to_string(&mut owner));
            return Err(DiskError::Locked {
                dir: dir.to_owned(),
                owner: owner.trim().to_owned(),
            });
        }
        Err(error) => return Err(io(error.into())),
    }
    // For the message above only.
    drop(file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())));
    Ok(file)
}
