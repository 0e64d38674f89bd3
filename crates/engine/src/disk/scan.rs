//! Reads what a segment holds when the tier is opened.
//!
//! A sealed segment is known from its footer, one read. In one without a footer (its writer was killed) every record is
//! looked for and its bytes are compared with their checksum, because a killed write may have left a good header
//! before half a payload. Several writes were under way at once, so an unwritten hole may come before a complete
//! record: the search goes on behind it, for the segment's mark, which nothing but record headers contains.
//!
//! Files come from anywhere. Reads are bounded by the length of the file, which is bounded by 4 GiB; memory by the
//! number of records that fit; and payloads that pretend to overlap by a budget for what is read in all.

use super::layout::{
    Checks, MAX_SEGMENT, MOST_RECORDS, RECORD_HEADER, Record, SEGMENT_HEADER, SegmentHeader, TRAILER, Trailer,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Read at once.
const CHUNK: usize = 64 << 10;

/// What is in a segment.
pub(super) struct Contents {
    pub header: SegmentHeader,
    pub records: Vec<Record>,
    /// Where the last record ends.
    pub end: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// It had a footer.
    pub sealed: bool,
}

/// Why a segment can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It can't be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It does not start as a segment of this version and name.
    #[error("it is no segment of this version")]
    Foreign,
    /// It is no regular file, or a larger one than we write.
    #[error("it is no file that a segment can be")]
    Kind,
    /// Nothing in it is whole: a kill can leave that, so it is not reported.
    #[error("it holds no complete record")]
    Empty {
        /// What it does hold.
        bytes: u64,
    },
}

/// Reads the segment that the file with this number should be.
pub(super) fn read(file: &File, sequence: u32) -> Result<Contents, Damage> {
    let (header, bytes) = header(file, sequence)?;
    let (records, end, sealed) = match sealed(file, &header, bytes)? {
        Some((records, end)) => (records, end, true),
        None => {
            let records = unsealed(file, &header, bytes)?;
            let end = records
                .last()
                .map_or(header.layout.first(), |last| header.layout.end(last));
            (records, end, false)
        }
    };
    if records.is_empty() {
        return Err(Damage::Empty { bytes });
    }
    Ok(Contents {
        header,
        records,
        end,
        bytes,
        sealed,
    })
}

/// How many records a sealed segment says it has: a hint.
pub(super) fn count(file: &File, sequence: u32) -> Option<u64> {
    let (header, bytes) = header(file, sequence).ok()?;
    trailer(file, &header, bytes).ok()?.map(|trailer| trailer.count())
}

/// The header, and the bytes of the file.
fn header(file: &File, sequence: u32) -> Result<(SegmentHeader, u64), Damage> {
    let meta = file.metadata()?;
    let bytes = meta.len();
    if !meta.is_file() || bytes > MAX_SEGMENT {
        return Err(Damage::Kind);
    }
    if bytes < SEGMENT_HEADER {
        return Err(Damage::Empty { bytes });
    }
    let mut header = [0; SEGMENT_HEADER as usize];
    file.read_exact_at(&mut header, 0)?;
    let header = SegmentHeader::decode(&header).filter(|header| header.sequence == sequence);
    header.map(|header| (header, bytes)).ok_or(Damage::Foreign)
}

fn trailer(file: &File, header: &SegmentHeader, bytes: u64) -> io::Result<Option<Trailer>> {
    let Some(at) = bytes.checked_sub(TRAILER).filter(|at| *at >= SEGMENT_HEADER) else {
        return Ok(None);
    };
    let mut trailer = [0; TRAILER as usize];
    file.read_exact_at(&mut trailer, at)?;
    Ok(Trailer::decode(&trailer, header.mark, bytes))
}

/// The records and their end, when there is an intact footer.
fn sealed(file: &File, header: &SegmentHeader, bytes: u64) -> io::Result<Option<(Vec<Record>, u64)>> {
    let Some(trailer) = trailer(file, header, bytes)? else {
        return Ok(None);
    };
    let mut entries = vec![0; trailer.bytes as usize];
    file.read_exact_at(&mut entries, trailer.at)?;
    Ok(trailer.entries(&entries).map(|records| (records, trailer.at)))
}

/// Looks for records, in order of their place.
fn unsealed(file: &File, header: &SegmentHeader, bytes: u64) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut buffer = vec![0; CHUNK];
    // Bytes are read once, or twice behind a hole or the header of a failed write. More is a made-up file.
    let mut budget = (64 << 20) + bytes * 4;
    let mut at = header.layout.first();
    while at + RECORD_HEADER <= bytes && records.len() < MOST_RECORDS {
        if let Some(record) = record_at(file, header.mark, at, bytes)? {
            let Some(left) = budget.checked_sub(u64::from(record.len)) else {
                break;
            };
            budget = left;
            if is_intact(file, &record, &mut buffer)? {
                at = header.layout.end(&record);
                records.push(record);
                continue;
            }
        }
        let Some(next) = find_mark(file, header.mark, at + 1, bytes, &mut buffer)? else {
            break;
        };
        let Some(left) = budget.checked_sub(next - at + CHUNK as u64) else {
            break;
        };
        (at, budget) = (next, left);
    }
    Ok(records)
}

fn record_at(file: &File, mark: u64, at: u64, bytes: u64) -> io::Result<Option<Record>> {
    let mut header = [0; RECORD_HEADER as usize];
    file.read_exact_at(&mut header, at)?;
    Ok(Record::from_header(&header, mark, at as u32).filter(|record| record.end() <= bytes))
}

/// Whether payload and checksums are as they were written.
fn is_intact(file: &File, record: &Record, buffer: &mut [u8]) -> io::Result<bool> {
    let mut checks = Checks::new();
    let mut at = u64::from(record.offset) + RECORD_HEADER;
    while at < record.checks_at() {
        let n = (record.checks_at() - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        checks.update(&buffer[..n]);
        at += n as u64;
    }
    let checks = checks.finish();
    if Checks::summary(&checks) != record.checksum {
        return Ok(false);
    }
    let mut written = vec![0; (record.end() - record.checks_at()) as usize];
    file.read_exact_at(&mut written, record.checks_at())?;
    Ok(written.is_empty() || written == checks)
}

/// The first place from `at` on that holds `mark`.
fn find_mark(file: &File, mark: u64, mut at: u64, bytes: u64, buffer: &mut [u8]) -> io::Result<Option<u64>> {
    let mark = mark.to_le_bytes();
    while at + RECORD_HEADER <= bytes {
        let n = (bytes - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        let mut from = 0;
        while let Some(found) = buffer[from..n].iter().position(|byte| *byte == mark[0]) {
            if buffer[from + found..n].starts_with(&mark) {
                return Ok(Some(at + (from + found) as u64));
            }
            from += found + 1;
        }
        // The last bytes may be the first of a mark.
        at += (n - (mark.len() - 1)) as u64;
    }
    Ok(None)
}
