//! The index file: a header, a table of sections, the sections.
//!
//! ```text
//! 0   magic "FOREINDX"     8   format version u32     12  sections u32
//! 16  samples u64          24  objects u64            32  dataset digest [u8; 16]
//! 48  format u32           52  reserved (0) u32       56  file length u64
//! 64  CRC-32C of the section bytes u32                68  CRC-32C of header and table u32 (taken with this field 0)
//! 72  table: per section   id u32, width u32, base u64, start u64, length u64, count u64
//! ```
//!
//! All numbers are little-endian. A section is a column (`count` entries of `width` bytes) or a blob (`width` 1). An
//! unknown section id is an error, because a reader that skipped it could misread the data set.

use super::column::Column;
use crate::{Error, Result};

pub(crate) const MAGIC: &[u8; 8] = b"FOREINDX";
/// Version of the layout; a reader accepts it and the ones before.
pub(crate) const VERSION: u32 = 3;
/// An index that has none of what a later version brought is written as what it is: a file that older releases read as well.
const VERSION_WITHOUT_RANGES: u32 = 2;
const VERSION_WITHOUT_NAMES: u32 = 1;
const HEADER: usize = 72;
const ENTRY: usize = 40;

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident = $id:literal),* $(,)?) => {
        /// What a section holds. The numbers are part of the file format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Section { $($(#[$doc])* $name = $id),* }
        impl Section {
            pub const COUNT: usize = [$($id),*].len();
            fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }
        }
    };
}

sections! {
    /// URL that keys are relative to.
    Root = 0,
    /// JSON of the options the index was built with.
    Options = 1,
    /// Start of each class name in `ClassText`, and its end.
    ClassStarts = 2,
    ClassText = 3,
    /// Start of each block of 16 keys in `KeyText`.
    KeyBlocks = 4,
    KeyText = 5,
    /// Bytes per object.
    Sizes = 6,
    /// 16 bytes per object: the MD5 in the ETag, zero when it has another form.
    EtagMd5 = 7,
    /// N of an ETag `"md5-N"`; 0 for plain `"md5"`.
    EtagParts = 8,
    /// Objects (ascending) whose ETag is in `EtagText`, because it has another form.
    EtagOther = 9,
    EtagStarts = 10,
    EtagText = 11,
    /// Start of each object's version in `VersionText`, and its end.
    VersionStarts = 12,
    VersionText = 13,
    /// Per sample, absent when sample i is object i, whole.
    SampleObject = 14,
    SampleOffset = 15,
    SampleLength = 16,
    /// Zigzag label + 1; 0 without label.
    Labels = 17,
    /// CRC-32C + 1; 0 when unknown.
    Checksums = 18,
    /// Start of each schema's names in `SchemaNames` (as counts), and its end.
    SchemaStarts = 19,
    /// Start of each field name in `FieldText`, and its end.
    FieldStarts = 20,
    FieldText = 21,
    /// Schema per sample.
    SampleSchema = 22,
    /// First field per sample, absent when all samples have the same number of fields.
    SampleFields = 23,
    /// Per field of each sample.
    FieldOffset = 24,
    FieldLength = 25,
    /// Start of each block of 16 samples' names in `SampleNameText`; empty where a sample has none. Since version 2.
    SampleNameBlocks = 26,
    SampleNameText = 27,
    /// Start of each sample's ranges, and their end; none where a sample is one range, as the columns above have it. Of
    /// several, these have the first range's object and offset, and the length of all. Absent when no sample has several.
    /// Since version 3, like the ranges.
    RangeStarts = 28,
    /// Per range of each sample.
    RangeObject = 29,
    RangeOffset = 30,
    RangeLength = 31,
}

/// What the fixed header says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Header {
    pub samples: u64,
    pub objects: u64,
    pub digest: [u8; 16],
    pub format: u32,
}

/// Header and section positions of a checked file.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub header: Header,
    columns: [Option<Column>; Section::COUNT],
}

impl Layout {
    #[inline]
    pub fn column(&self, section: Section) -> Option<&Column> {
        self.columns[section as usize].as_ref()
    }

    /// Reads and bounds-checks header and table; `verify` also compares the section bytes with their checksum.
    pub fn parse(file: &[u8], verify: bool) -> Result<Self> {
        if file.len() < HEADER || &file[..8] != MAGIC {
            return Err(Error::corrupt("this is not a Foreload index"));
        }
        let version = u32_at(file, 8)?;
        if !(VERSION_WITHOUT_NAMES..=VERSION).contains(&version) {
            return Err(Error::invalid(format!(
                "the index has layout version {version}, this release reads versions up to {VERSION}"
            ))
            .with_remedy("build it again with `foreload index`"));
        }
        let count = u32_at(file, 12)? as usize;
        let table_end = HEADER + count.min(Section::COUNT + 1) * ENTRY;
        if count > Section::COUNT || file.len() < table_end || u64_at(file, 56)? != file.len() as u64 {
            return Err(damaged("its length does not match its header"));
        }
        let mut head = file[..table_end].to_vec();
        head[68..72].fill(0);
        if crc32c(&head) != u32_at(file, 68)? {
            return Err(damaged("the checksum of its header does not match"));
        }
        if verify && crc32c(&file[table_end..]) != u32_at(file, 64)? {
            return Err(damaged("the checksum of its content does not match"));
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&file[32..48]);
        let header = Header {
            samples: u64_at(file, 16)?,
            objects: u64_at(file, 24)?,
            digest,
            format: u32_at(file, 48)?,
        };
        let mut columns = [None; Section::COUNT];
        for i in 0..count {
            let (section, column) = read_entry(file, HEADER + i * ENTRY, table_end)?;
            if columns[section as usize].replace(column).is_some() {
                return Err(damaged("a section appears twice"));
            }
        }
        Ok(Self { header, columns })
    }
}

fn read_entry(file: &[u8], at: usize, table_end: usize) -> Result<(Section, Column)> {
    let id = u32_at(file, at)?;
    let section = Section::from_id(id).ok_or_else(|| damaged("it has a section this release does not know"))?;
    let width = u8::try_from(u32_at(file, at + 4)?).ok().filter(|&w| w <= 16);
    let width = width.ok_or_else(|| damaged("a section has an impossible width"))?;
    let (start, length, count) = (u64_at(file, at + 16)?, u64_at(file, at + 24)?, u64_at(file, at + 32)?);
    let fits = count.checked_mul(u64::from(width)) == Some(length)
        && start >= table_end as u64
        && start.checked_add(length).is_some_and(|end| end <= file.len() as u64);
    let start = usize::try_from(start)
        .ok()
        .filter(|_| fits)
        .ok_or_else(|| damaged("a section lies outside it"))?;
    Ok((
        section,
        Column {
            start,
            count,
            width,
            base: u64_at(file, at + 8)?,
        },
    ))
}

/// Collects sections and writes the file.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    entries: Vec<(Section, Column)>,
    body: Vec<u8>,
}

impl Writer {
    /// Adds a column; one without entries is left out. The values go as they are written: a large index is in memory twice, not thrice.
    pub fn column(&mut self, section: Section, values: super::column::Values) {
        if values.len() > 0 {
            let start = self.body.len();
            let column = values.encode(&mut self.body);
            self.entries.push((section, Column { start, ..column }));
        }
    }

    /// Adds `bytes` as entries of `width` bytes; an empty blob is left out.
    pub fn blob(&mut self, section: Section, bytes: &[u8], width: u8) {
        if !bytes.is_empty() {
            let count = bytes.len() as u64 / u64::from(width.max(1));
            self.entries.push((
                section,
                Column {
                    start: self.body.len(),
                    count,
                    width,
                    base: 0,
                },
            ));
            self.body.extend_from_slice(bytes);
        }
    }

    pub fn finish(self, header: &Header) -> Vec<u8> {
        let Self { entries, mut body } = self;
        let table_end = HEADER + entries.len() * ENTRY;
        let mut head = Vec::with_capacity(table_end);
        head.extend_from_slice(MAGIC);
        let has = |wanted| entries.iter().any(|(section, _)| *section == wanted);
        let version = match (has(Section::RangeStarts), has(Section::SampleNameText)) {
            (true, _) => VERSION,
            (false, true) => VERSION_WITHOUT_RANGES,
            (false, false) => VERSION_WITHOUT_NAMES,
        };
        head.extend_from_slice(&version.to_le_bytes());
        head.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        head.extend_from_slice(&header.samples.to_le_bytes());
        head.extend_from_slice(&header.objects.to_le_bytes());
        head.extend_from_slice(&header.digest);
        head.extend_from_slice(&header.format.to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&((table_end + body.len()) as u64).to_le_bytes());
        head.extend_from_slice(&crc32c(&body).to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        for (section, column) in &entries {
            head.extend_from_slice(&(*section as u32).to_le_bytes());
            head.extend_from_slice(&u32::from(column.width).to_le_bytes());
            head.extend_from_slice(&column.base.to_le_bytes());
            head.extend_from_slice(&((table_end + column.start) as u64).to_le_bytes());
            head.extend_from_slice(&(column.count * u64::from(column.width)).to_le_bytes());
            head.extend_from_slice(&column.count.to_le_bytes());
        }
        let crc = crc32c(&head);
        head[68..72].copy_from_slice(&crc.to_le_bytes());
        body.splice(0..0, head);
        body
    }
}

pub(crate) fn damaged(how: &str) -> Error {
    Error::corrupt(format!("the index is damaged: {how}")).with_remedy("build it again with `foreload index`")
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn u32_at(file: &[u8], at: usize) -> Result<u32> {
    let bytes = file.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes
        .map(u32::from_le_bytes)
        .ok_or_else(|| damaged("it ends too early"))
}

fn u64_at(file: &[u8], at: usize) -> Result<u64> {
    let bytes = file.get(at..at + 8).and_then(|b| b.try_into().ok());
    bytes
        .map(u64::from_le_bytes)
        .ok_or_else(|| damaged("it ends too early"))
}
