//! The bytes of a segment file: header, record headers, footer (docs/reference/disk-format.md).
//!
//! Encoding and decoding only; whoever calls does the reading and writing. Decoders take bytes of any origin and answer
//! `None` for what this version did not write. All numbers are little-endian, all checksums CRC-32C.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use foreload_plan::scheduler::{CHECKED_BYTES, ENTRY_BYTES, HEADER_BYTES, PAGE_BYTES, PAGED_BYTES, check_bytes};

/// Bytes of the header of a segment.
pub(super) const SEGMENT_HEADER: u64 = 32;
/// Bytes of the header of a record.
pub(super) const RECORD_HEADER: u64 = HEADER_BYTES;
/// Bytes of a record's entry in the footer.
pub(super) const ENTRY: u64 = ENTRY_BYTES;
/// Bytes of the end of a sealed segment.
pub(super) const TRAILER: u64 = 40;
/// Places in a segment are 32 bits wide.
pub(super) const MAX_SEGMENT: u64 = u32::MAX as u64;
/// Smaller segments are never paged: the header alone takes a page.
pub(super) const LEAST_PAGED: u64 = 1 << 20;
/// Records in a segment: their list is in memory while it is written, sealed or read, 28 bytes each.
pub(super) const MOST_RECORDS: usize = 1 << 18;

const MAGIC: u64 = u64::from_le_bytes(*b"FLSEGMNT");
const SEAL: u64 = u64::from_le_bytes(*b"FLSEALED");
const VERSION: u32 = 3;

/// CRC-32C of `bytes`.
#[must_use]
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// CRC-32C of bytes that come in pieces.
pub(super) struct Crc(Digest);

impl Crc {
    pub(super) fn new() -> Self {
        Crc(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// The checksums of a payload that comes in pieces: one for each stretch of [`CHECKED_BYTES`].
pub(super) struct Checks {
    stretch: Crc,
    left: u64,
    done: Vec<u8>,
}

impl Checks {
    pub(super) fn new() -> Self {
        Checks {
            stretch: Crc::new(),
            left: CHECKED_BYTES,
            done: Vec::new(),
        }
    }

    /// Those of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Vec<u8> {
        let mut checks = Checks::new();
        checks.update(bytes);
        checks.finish()
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(self.left as usize));
            self.stretch.update(now);
            self.left -= now.len() as u64;
            if self.left == 0 {
                self.end_stretch();
            }
            bytes = rest;
        }
    }

    fn end_stretch(&mut self) {
        let stretch = std::mem::replace(&mut self.stretch, Crc::new());
        self.done.extend_from_slice(&stretch.value().to_le_bytes());
        self.left = CHECKED_BYTES;
    }

    /// All of them, four bytes each; an empty payload has one.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.left < CHECKED_BYTES || self.done.is_empty() {
            self.end_stretch();
        }
        self.done
    }

    /// What a record's header and its entry say of its payload: the checksum, or that of the checksums where there are several.
    pub(super) fn summary(checks: &[u8]) -> u32 {
        match checks.try_into() {
            Ok(one) => u32::from_le_bytes(one),
            Err(_) => crc32c(checks),
        }
    }
}

/// Appends fields to a fixed buffer.
struct Put<'a>(&'a mut [u8], usize);

impl Put<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// The checksum of what was put, then of `more`.
    fn crc(&mut self, more: &[u8]) {
        let mut crc = Crc::new();
        crc.update(&self.0[..self.1]);
        crc.update(more);
        self.u32(crc.value());
    }
}

/// Takes fields from a buffer.
struct Take<'a>(&'a [u8]);

impl Take<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Whether the last four bytes of `bytes` are the checksum of the others and `more`.
fn intact(bytes: &[u8], more: &[u8]) -> Option<()> {
    let (body, stored) = bytes.split_last_chunk::<4>()?;
    let mut crc = Crc::new();
    crc.update(body);
    crc.update(more);
    (crc.value() == u32::from_le_bytes(*stored)).then_some(())
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The number in the file's name: a file that was copied to another name is refused.
    pub sequence: u32,
    /// Random, repeated in every record header: payload that looks like a record can't know it.
    pub mark: u64,
    /// Where its records begin and end.
    pub layout: Layout,
}

/// Where the records of a segment begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One right behind the other. They are read and written through the page cache.
    Packed,
    /// On pages of their own, which are read and written around it where the file system can do that.
    Paged,
}

impl Layout {
    /// For records of so many bytes, in segments that are large enough for pages not to matter.
    pub(super) fn of(len: u64, segment_bytes: u64) -> Self {
        if len >= PAGED_BYTES && segment_bytes >= LEAST_PAGED {
            Layout::Paged
        } else {
            Layout::Packed
        }
    }

    /// What places are multiples of.
    pub(super) fn step(self) -> u64 {
        match self {
            Layout::Packed => 1,
            Layout::Paged => PAGE_BYTES,
        }
    }

    /// Where the first record begins.
    pub(super) fn first(self) -> u64 {
        SEGMENT_HEADER.next_multiple_of(self.step())
    }

    /// Where the place of a record ends, and the next one begins.
    pub(super) fn end(self, record: &Record) -> u64 {
        record.end().next_multiple_of(self.step())
    }

    /// What a segment costs besides its records.
    pub(super) fn overhead(self) -> u64 {
        self.first() + TRAILER
    }
}

impl SegmentHeader {
    pub(super) fn encode(self) -> [u8; SEGMENT_HEADER as usize] {
        let mut out = [0; SEGMENT_HEADER as usize];
        Put(&mut out, 0)
            .u64(MAGIC)
            .u32(VERSION)
            .u32(self.sequence)
            .u64(self.mark)
            .u32(self.layout.step() as u32)
            .crc(&[]);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEADER as usize)?;
        intact(bytes, &[])?;
        let mut from = Take(bytes);
        if from.u64()? != MAGIC || from.u32()? != VERSION {
            return None;
        }
        let (sequence, mark, step) = (from.u32()?, from.u64()?, from.u32()?);
        let layout = [Layout::Packed, Layout::Paged]
            .into_iter()
            .find(|layout| layout.step() == u64::from(step))?;
        Some(SegmentHeader { sequence, mark, layout })
    }
}

/// A record: its header, and its entry in the footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub key: [u8; 16],
    /// Where its header starts in the segment.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// The payload's checksum ([`Checks::summary`]).
    pub checksum: u32,
}

impl Record {
    /// Where its checksums are, if it has any of its own.
    pub(super) fn checks_at(&self) -> u64 {
        u64::from(self.offset) + RECORD_HEADER + u64::from(self.len)
    }

    /// Where it ends.
    pub(super) fn end(&self) -> u64 {
        self.checks_at() + check_bytes(u64::from(self.len))
    }

    /// The header. Its checksum covers its place, too: a header that was copied elsewhere is none.
    pub(super) fn header(&self, mark: u64) -> [u8; RECORD_HEADER as usize] {
        let mut out = [0; RECORD_HEADER as usize];
        Put(&mut out, 0)
            .u64(mark)
            .bytes(&self.key)
            .u32(self.len)
            .u32(self.checksum)
            .crc(&self.offset.to_le_bytes());
        out
    }

    pub(super) fn from_header(bytes: &[u8], mark: u64, offset: u32) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER as usize)?;
        let mut from = Take(bytes);
        if from.u64()? != mark {
            return None;
        }
        intact(bytes, &offset.to_le_bytes())?;
        Some(Record {
            key: from.array()?,
            offset,
            len: from.u32()?,
            checksum: from.u32()?,
        })
    }

    fn entry(&self) -> [u8; ENTRY as usize] {
        let mut out = [0; ENTRY as usize];
        Put(&mut out, 0)
            .bytes(&self.key)
            .u32(self.offset)
            .u32(self.len)
            .u32(self.checksum);
        out
    }

    fn from_entry(bytes: &[u8]) -> Option<Self> {
        let mut from = Take(bytes);
        Some(Record {
            key: from.array()?,
            offset: from.u32()?,
            len: from.u32()?,
            checksum: from.u32()?,
        })
    }
}

/// The footer that seals a segment: entries and trailer, to be written where the records end.
pub(super) fn footer(records: &[Record], mark: u64, at: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(records.len() * ENTRY as usize + TRAILER as usize);
    for record in records {
        out.extend_from_slice(&record.entry());
    }
    let entries = crc32c(&out);
    let mut trailer = [0; TRAILER as usize];
    let mut put = Put(&mut trailer, 0);
    put.u64(SEAL)
        .u64(mark)
        .u64(at)
        .u32(records.len() as u32)
        .u32(0)
        .u32(entries)
        .crc(&[]);
    out.extend_from_slice(&trailer);
    out
}

/// What the last bytes of a sealed segment say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    /// Where the entries start.
    pub at: u64,
    /// Bytes of the entries.
    pub bytes: u64,
    crc32c: u32,
}

impl Trailer {
    /// Reads the last [`TRAILER`] bytes of a segment of `len` bytes.
    pub(super) fn decode(bytes: &[u8], mark: u64, len: u64) -> Option<Self> {
        intact(bytes, &[])?;
        let mut from = Take(bytes);
        if from.u64()? != SEAL || from.u64()? != mark {
            return None;
        }
        let (at, count, _, crc32c) = (from.u64()?, from.u32()?, from.u32()?, from.u32()?);
        let bytes = u64::from(count) * ENTRY;
        let end = at.checked_add(bytes)?.checked_add(TRAILER)?;
        (at >= SEGMENT_HEADER && end == len && count as usize <= MOST_RECORDS).then_some(Trailer { at, bytes, crc32c })
    }

    /// Number of entries.
    pub(super) fn count(&self) -> u64 {
        self.bytes / ENTRY
    }

    /// The entries, when they are intact and name records that lie before them.
    pub(super) fn entries(&self, bytes: &[u8]) -> Option<Vec<Record>> {
        if bytes.len() as u64 != self.bytes || crc32c(bytes) != self.crc32c {
            return None;
        }
        let lies_before = |r: &Record| u64::from(r.offset) >= SEGMENT_HEADER && r.end() <= self.at;
        bytes
            .chunks_exact(ENTRY as usize)
            .map(|entry| Record::from_entry(entry).filter(lies_before))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_stay_what_they_were() {
        let record = Record {
            key: *b"0123456789abcdef",
            offset: 32,
            len: 5,
            checksum: crc32c(b"hello"),
        };
        let header = SegmentHeader {
            sequence: 7,
            mark: 0x0102_0304_0506_0708,
            layout: Layout::Packed,
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        // The check value that every description of CRC-32C gives.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(
            hex(&header.encode()),
            "464c5345474d4e540300000007000000080706050403020101000000".to_owned() + &hex(&header.encode()[28..])
        );
        assert_eq!(
            hex(&record.header(header.mark)[..32]),
            "08070605040302013031323334353637383961626364656605000000".to_owned()
                + &hex(&record.checksum.to_le_bytes())
        );
        assert_eq!(footer(&[record], header.mark, 73).len() as u64, ENTRY + TRAILER);
    }

    #[test]
    fn a_payload_has_a_checksum_for_each_stretch_however_it_comes() {
        let bytes: Vec<u8> = (0..2 * CHECKED_BYTES + 5).map(|i| (i * 7 % 251) as u8).collect();
        let whole = Checks::of(&bytes);
        let each: Vec<u8> = bytes
            .chunks(CHECKED_BYTES as usize)
            .flat_map(|part| crc32c(part).to_le_bytes())
            .collect();
        assert_eq!(whole, each);
        assert_eq!(whole.len() as u64, check_bytes(bytes.len() as u64));
        let mut pieces = Checks::new();
        bytes.chunks(999).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), whole);
        assert_eq!(Checks::summary(&Checks::of(b"hello")), crc32c(b"hello"));
        assert_eq!(Checks::summary(&Checks::of(b"")), crc32c(b""));
        let full = &bytes[..CHECKED_BYTES as usize];
        assert_eq!(
            (Checks::summary(&Checks::of(full)), check_bytes(CHECKED_BYTES)),
            (crc32c(full), 0)
        );
    }

    proptest! {
        #[test]
        fn proptest_what_is_encoded_is_decoded(key: [u8; 16], offset in 32u32.., len: u32, crc: u32, mark: u64, sequence: u32) {
            let record = Record { key, offset, len, checksum: crc };
            prop_assert_eq!(Record::from_header(&record.header(mark), mark, offset), Some(record));
            prop_assert_eq!(Record::from_header(&record.header(mark), mark, offset ^ 1), None);
            let layout = if sequence % 2 == 0 { Layout::Packed } else { Layout::Paged };
            let header = SegmentHeader { sequence, mark, layout };
            prop_assert_eq!(SegmentHeader::decode(&header.encode()), Some(header));
            let at = record.end();
            let bytes = footer(&[record, record], mark, at);
            let (entries, trailer) = bytes.split_at(2 * ENTRY as usize);
            let trailer = Trailer::decode(trailer, mark, at + bytes.len() as u64).unwrap();
            prop_assert_eq!(trailer.entries(entries), Some(vec![record, record]));
        }

        #[test]
        fn proptest_a_changed_bit_is_noticed(at in 0usize..36, bit in 0u8..8, sequence: u32, mark: u64) {
            let record = Record { key: [9; 16], offset: 32, len: 3, checksum: 1 };
            let mut bytes = record.header(mark);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Record::from_header(&bytes, mark, 32), None);
            let mut bytes = SegmentHeader { sequence, mark, layout: Layout::Paged }.encode();
            bytes[at % 32] ^= 1 << bit;
            prop_assert_eq!(SegmentHeader::decode(&bytes), None);
        }

        #[test]
        fn proptest_any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), len: u64) {
            let _ = SegmentHeader::decode(&bytes);
            let _ = Record::from_header(&bytes, 1, 2);
            let _ = Trailer::decode(&bytes, 1, len);
        }
    }
}
