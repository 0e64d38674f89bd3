//! The segments of a tier: how full, how alive and used by whom; and the chores that follow.

use super::Refusal;
use super::index::{Index, Place};
use super::layout::{ENTRY, Layout, MOST_RECORDS, Record, SegmentHeader, TRAILER};
use super::scan::Contents;
use super::segment::{Chore, Reservation, SegmentFile, Shared, Work};
use crate::sync::atomic::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct Segment {
    pub file: Arc<SegmentFile>,
    /// Where the next record goes.
    pub end: u64,
    /// Bytes of the file once it is sealed.
    bytes: u64,
    live: u32,
    in_flight: u32,
    /// Running jobs that use it.
    jobs: Vec<u64>,
    /// Committed records, for the footer; `None` once it is sealed.
    unsealed: Option<Vec<Record>>,
}

impl Segment {
    fn protect(&mut self, job: u64) {
        if !self.jobs.contains(&job) {
            self.jobs.push(job);
        }
    }

    fn evictable(&self) -> bool {
        self.jobs.is_empty() && self.in_flight == 0
    }
}

pub(super) struct Segments {
    shared: Arc<Shared>,
    /// By number, so the oldest first.
    all: BTreeMap<u32, Segment>,
    /// Those that are being written to, one for each layout.
    active: [Option<u32>; 2],
    next: u32,
    bytes: u64,
    chores: VecDeque<Chore>,
    marks: RandomState,
}

impl Segments {
    pub(super) fn new(dir: &Path, open_files: usize) -> Self {
        Segments {
            shared: Shared::new(dir, open_files),
            all: BTreeMap::new(),
            active: [None; 2],
            next: 1,
            bytes: 0,
            chores: VecDeque::new(),
            marks: RandomState::new(),
        }
    }

    pub(super) fn get(&self, sequence: u32) -> Option<&Segment> {
        self.all.get(&sequence)
    }

    pub(super) fn len(&self) -> u64 {
        self.all.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that the file system had left when it was last asked; segments that are being unlinked count as left.
    pub(super) fn free_bytes(&self) -> u64 {
        let free = self.shared.free.load(Ordering::Relaxed);
        free.saturating_add(self.shared.to_unlink.load(Ordering::Relaxed))
    }

    /// How often the file system has been asked.
    pub(super) fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::Relaxed)
    }

    /// Whatever the file system said, it has `bytes` left.
    #[cfg(test)]
    pub(super) fn has(&self, bytes: u64) {
        self.shared.free.store(bytes, Ordering::Relaxed);
    }

    /// The file system can't go around the page cache.
    #[cfg(test)]
    pub(super) fn is_like_old_tmpfs(&self) {
        self.shared.is_like_old_tmpfs.store(true, Ordering::Relaxed);
    }

    /// Has the file system asked what it has left.
    pub(super) fn measure(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.chores.push_back(Chore(Work::Measure(shared)));
    }

    pub(super) fn chore(&mut self) -> Option<Chore> {
        self.chores.pop_front()
    }

    /// Takes a segment in that was found when the tier was opened; its records are to be counted with
    /// [`Segments::born`].
    pub(super) fn adopt(&mut self, sequence: u32, path: PathBuf, contents: Contents) -> Vec<Record> {
        self.skip(sequence);
        let Contents {
            header,
            records,
            end,
            bytes,
            sealed,
        } = contents;
        let file = SegmentFile::new(path, header, true, &self.shared);
        let bytes = if sealed {
            bytes
        } else {
            end + records.len() as u64 * ENTRY + TRAILER
        };
        let unsealed = (!sealed).then(Vec::new);
        self.bytes += bytes;
        self.all.insert(
            sequence,
            Segment {
                file,
                end,
                bytes,
                live: 0,
                in_flight: 0,
                jobs: Vec::new(),
                unsealed,
            },
        );
        records
    }

    /// Has a footer written for a segment that was found without.
    pub(super) fn seal_found(&mut self, sequence: u32, records: Vec<Record>) {
        let Some(segment) = self.all.get_mut(&sequence) else {
            return;
        };
        if segment.unsealed.take().is_some() {
            let work = Work::Seal {
                segment: segment.file.clone(),
                records,
                end: segment.end,
            };
            self.chores.push_back(Chore(work));
        }
    }

    /// Never uses this number again.
    pub(super) fn skip(&mut self, sequence: u32) {
        self.next = self.next.max(sequence.saturating_add(1));
    }

    fn is_active(&self, sequence: u32) -> bool {
        self.active.contains(&Some(sequence))
    }

    /// Whether `need` more bytes go into the active segment of a layout.
    pub(super) fn has_room(&self, layout: Layout, need: u64, segment_bytes: u64) -> bool {
        let active = self.active[layout as usize].and_then(|sequence| self.all.get(&sequence));
        active.is_some_and(|segment| {
            let records = segment.unsealed.as_ref().map_or(0, Vec::len) + segment.in_flight as usize;
            segment.bytes.saturating_add(need) <= segment_bytes && records < MOST_RECORDS
        })
    }

    /// Gives the next place in the active segment away; `None` when there is none.
    pub(super) fn append(&mut self, layout: Layout, job: u64, key: [u8; 16], len: u32) -> Option<Reservation> {
        let sequence = self.active[layout as usize]?;
        let segment = self.all.get_mut(&sequence)?;
        let record = Record {
            key,
            offset: u32::try_from(segment.end).ok()?,
            len,
            checksum: 0,
        };
        let end = layout.end(&record);
        let bytes = end - segment.end + ENTRY;
        segment.end = end;
        segment.bytes += bytes;
        segment.in_flight += 1;
        segment.protect(job);
        self.bytes += bytes;
        Some(Reservation {
            segment: segment.file.clone(),
            record,
            sequence,
        })
    }

    /// Begins a new segment. Its file is made by the first write.
    pub(super) fn roll(&mut self, layout: Layout, index: &Index) -> Result<(), Refusal> {
        let sequence = self.next;
        self.next = sequence.checked_add(1).ok_or(Refusal::Full)?;
        let full = self.active[layout as usize].replace(sequence);
        // Unpredictable, so that payload can't be made to look like a record of ours.
        let mark = self
            .marks
            .hash_one((sequence, std::process::id(), std::time::SystemTime::now()));
        let path = self.shared.dir.join(name(sequence));
        let file = SegmentFile::new(path, SegmentHeader { sequence, mark, layout }, false, &self.shared);
        let segment = Segment {
            file,
            end: layout.first(),
            bytes: layout.overhead(),
            live: 0,
            in_flight: 0,
            jobs: Vec::new(),
            unsealed: Some(Vec::new()),
        };
        self.bytes += layout.overhead();
        self.all.insert(sequence, segment);
        if let Some(full) = full {
            self.settle(full, index);
        }
        Ok(())
    }

    /// A record of this segment went into the index.
    pub(super) fn born(&mut self, sequence: u32) {
        if let Some(segment) = self.all.get_mut(&sequence) {
            segment.live += 1;
        }
    }

    /// A record is in its place.
    pub(super) fn landed(&mut self, sequence: u32, record: &Record, alive: bool, index: &Index) {
        let Some(segment) = self.all.get_mut(&sequence) else {
            return;
        };
        segment.in_flight -= 1;
        if alive && let Some(records) = &mut segment.unsealed {
            records.push(*record);
        }
        self.settle(sequence, index);
    }

    /// A record won't come. Its place is used again when it is the last.
    pub(super) fn abandoned(&mut self, sequence: u32, record: &Record, index: &Index) {
        let active = self.is_active(sequence);
        let Some(segment) = self.all.get_mut(&sequence) else {
            return;
        };
        segment.in_flight -= 1;
        if active && segment.end == segment.file.layout().end(record) {
            let bytes = segment.end - u64::from(record.offset) + ENTRY;
            segment.end = u64::from(record.offset);
            segment.bytes -= bytes;
            self.bytes -= bytes;
        }
        self.settle(sequence, index);
    }

    /// A record was forgotten; false when its segment was gone already.
    pub(super) fn died(&mut self, sequence: u32) -> bool {
        let active = self.is_active(sequence);
        let Some(segment) = self.all.get_mut(&sequence) else {
            return false;
        };
        segment.live -= 1;
        if segment.live == 0 && segment.in_flight == 0 && !active && segment.unsealed.is_none() {
            self.unlink(sequence);
        }
        true
    }

    /// Seals or drops a segment that is full and has no write under way.
    fn settle(&mut self, sequence: u32, index: &Index) {
        let active = self.is_active(sequence);
        let Some(segment) = self.all.get_mut(&sequence) else {
            return;
        };
        if active || segment.in_flight > 0 {
            return;
        }
        if segment.live == 0 {
            self.unlink(sequence);
        } else if let Some(mut records) = segment.unsealed.take() {
            if records.len() as u64 > u64::from(segment.live) {
                records.retain(|record| index.get(&record.key) == Some(Place::new(sequence, record)));
            }
            let work = Work::Seal {
                segment: segment.file.clone(),
                records,
                end: segment.end,
            };
            self.chores.push_back(Chore(work));
        }
    }

    /// Seals what can be sealed, whatever is still being written.
    pub(super) fn seal_all(&mut self, index: &Index) {
        self.active = [None; 2];
        let open: Vec<u32> = self
            .all
            .iter()
            .filter(|(_, s)| s.unsealed.is_some())
            .map(|(n, _)| *n)
            .collect();
        for sequence in open {
            self.settle(sequence, index);
        }
    }

    pub(super) fn protect(&mut self, sequence: u32, job: u64) {
        if let Some(segment) = self.all.get_mut(&sequence) {
            segment.protect(job);
        }
    }

    pub(super) fn unprotect(&mut self, job: u64) {
        for segment in self.all.values_mut() {
            segment.jobs.retain(|other| *other != job);
        }
    }

    /// Gives the oldest segment up that no running job uses; says how many records lived in it.
    pub(super) fn evict(&mut self) -> Option<u64> {
        let (sequence, live) = self
            .all
            .iter()
            .find(|(_, s)| s.evictable())
            .map(|(n, s)| (*n, s.live))?;
        self.unlink(sequence);
        Some(u64::from(live))
    }

    fn unlink(&mut self, sequence: u32) {
        let Some(segment) = self.all.remove(&sequence) else {
            return;
        };
        for active in &mut self.active {
            *active = active.filter(|active| *active != sequence);
        }
        self.bytes -= segment.bytes;
        self.shared.to_unlink.fetch_add(segment.bytes, Ordering::Relaxed);
        self.chores.push_back(Chore(Work::Unlink {
            segment: segment.file,
            bytes: segment.bytes,
        }));
    }
}

fn name(sequence: u32) -> String {
    format!("{sequence:08x}.seg")
}

/// The segment files in `dir`, oldest first. A directory is none, whatever its name, nor is what has no number after its own.
pub(super) fn list(dir: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        let file_name = file.file_name();
        let sequence = file_name
            .to_str()
            .and_then(|n| n.strip_suffix(".seg"))
            .and_then(|n| u32::from_str_radix(n, 16).ok());
        let is_one = |sequence: &u32| *sequence < u32::MAX && file_name.to_str() == Some(&name(*sequence));
        if let Some(sequence) = sequence.filter(is_one)
            && !file.file_type().is_ok_and(|kind| kind.is_dir())
        {
            found.push((sequence, file.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}
