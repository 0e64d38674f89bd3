//! The index of a data set: which *range* of which *object* each *sample* is.
//!
//! An [`Index`] is one flat block of bytes ([`Index::as_bytes`]) that is the file, the memory format and the
//! shared-memory format at once: opening it parses a header of some hundred bytes, compares a checksum, and every
//! accessor afterwards reads packed columns in place. Nothing is allocated per sample. Keys are front-coded, MD5 ETags
//! are stored as 16 bytes, constants take no room; 1.28 million ImageNet objects need about 46 MB.
//!
//! `format` builds indexes (through [`IndexBuilder`]), the engine and the plan read them. Bytes of unknown origin are
//! safe to open: any accessor answers an error or a neutral value, never a panic, whatever they hold.
//!
//! A *sample* is a contiguous range of one object. In a folder it is the whole object, with one field named `""`; in a
//! tar shard it covers all members of the sample, and each *field* (`"jpg"`, `"cls"`, ...) is a range relative to it. A
//! manifest may make a sample of several ranges, of one object or of different ones: its bytes are theirs, one after the
//! other. They lie in sections that no other index has.

mod builder;
mod choice;
mod column;
mod digest;
mod etags;
mod keys;
mod layout;
mod numbers;

pub use etags::bare_etag;

pub use builder::{IndexBuilder, NewField, NewObject, NewSample};
pub use numbers::Numbers;

use crate::format::{Format, Note};
use crate::{Error, Result};
use bytes::Bytes;
use choice::Choice;
use layout::{Layout, Section, damaged};
use std::sync::Arc;

/// Most samples an index may claim to have, so that hostile headers cannot ask for absurd amounts of work.
pub const MAX_SAMPLES: u64 = 1 << 40;

/// Most ranges of a sample: each is a request of its own.
pub const MAX_RANGES: u64 = 1 << 14;

/// An immutable index, or a choice of samples of one; clones share the bytes.
#[derive(Debug, Clone)]
pub struct Index {
    inner: Arc<Inner>,
    choice: Option<Arc<Choice>>,
}

#[derive(Debug)]
struct Inner {
    file: Bytes,
    layout: Layout,
    root: String,
    format: Format,
    /// Fields per sample when all samples have the same number of stored fields.
    uniform_fields: u64,
}

/// Some bytes of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectRange {
    /// The object's number.
    pub object: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl ObjectRange {
    /// First byte, and the one behind the last.
    #[must_use]
    pub fn bytes(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

/// Where a sample is and what is known about it.
#[derive(Debug, Clone)]
pub struct SampleRef<'a> {
    /// Number of the object that holds it; of several ranges, the first one.
    pub object: u64,
    /// First byte inside the object.
    pub offset: u64,
    /// Bytes, of all its ranges together.
    pub length: u64,
    /// Class or other integer label.
    pub label: Option<i64>,
    /// CRC-32C (Castagnoli) of its bytes.
    pub crc32c: Option<u32>,
    index: &'a Index,
    id: u64,
    /// Numbers of its ranges in the index; empty: there is one.
    several: std::ops::Range<u64>,
}

impl<'a> SampleRef<'a> {
    /// The bytes of the object that are this sample; of several ranges, the first one.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<u64> {
        self.ranges().next().unwrap_or_default().bytes()
    }

    /// Its ranges, in the order of its bytes: nearly always one.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = ObjectRange> + use<'a> {
        let (index, several) = (self.index, self.several.clone());
        let only = ObjectRange {
            object: self.object,
            offset: self.offset,
            length: self.length,
        };
        // Checked when the sample was read, so there are few enough, and all of them can be read.
        let count = (several.end - several.start).max(1) as usize;
        (0..count).map(move |n| match several.is_empty() {
            true => only,
            false => index.range_at(several.start + n as u64).unwrap_or_default(),
        })
    }

    /// What it is called inside its object, such as WebDataset's `__key__`; `None` when the object's key is name enough.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.index.name_at(self.id)
    }

    /// Its fields: name, first byte relative to the sample, bytes. One field `""` covers a sample without parts.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        self.index.fields_at(self.id, self.length)
    }
}

/// The fields of one sample; fields that a damaged index places outside the sample are left out.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    index: &'a Index,
    length: u64,
    whole: bool,
    names: std::ops::Range<u64>,
    next: u64,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a str, u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.whole) {
            return Some(("", 0, self.length));
        }
        loop {
            let name = self.names.next()?;
            let field = self.next;
            self.next += 1;
            let (offset, length) = (
                self.index.at(Section::FieldOffset, field)?,
                self.index.at(Section::FieldLength, field)?,
            );
            if offset.checked_add(length).is_some_and(|end| end <= self.length) {
                let name = self.index.text(Section::FieldStarts, Section::FieldText, name)?;
                return Some((name, offset, length));
            }
        }
    }
}

/// One object of the data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    /// Key relative to [`Index::root`].
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// ETag exactly as the store sent it, quotes included.
    pub etag: Option<String>,
    /// Version id or generation, where the store has one.
    pub version: Option<String>,
}

impl ObjectRef {
    /// Whether one that was found under its key now is another one, by size and ETag; by its size alone where it had no ETag.
    #[must_use]
    pub fn is_other(&self, size: u64, etag: Option<&str>) -> bool {
        let other_etag = |known: &str| etag.map(bare_etag) != Some(bare_etag(known));
        size != self.size || self.etag.as_deref().is_some_and(other_etag)
    }
}

/// What an index says of how it was built; a release before a part was recorded leaves it out.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Built {
    manifest: Option<String>,
    manifest_etag: Option<String>,
    notes: Vec<Note>,
}

impl Index {
    /// Opens an index and verifies its checksum (about 5 ms per 50 MB); nothing else is read or copied.
    ///
    /// # Errors
    /// `Corrupt` when the bytes are not an intact index, `Invalid` when another layout version wrote them.
    pub fn from_bytes(file: Bytes) -> Result<Self> {
        Self::open(file, true)
    }

    /// As [`Index::from_bytes`] without comparing the checksum of the content: for shared memory that another process
    /// has verified already. Reading stays free of panics.
    pub fn from_trusted_bytes(file: Bytes) -> Result<Self> {
        Self::open(file, false)
    }

    fn open(file: Bytes, verify: bool) -> Result<Self> {
        let layout = Layout::parse(&file, verify)?;
        check_counts(&layout)?;
        let format = Format::from_code(layout.header.format).ok_or_else(|| damaged("its format is not known"))?;
        let root = blob(&file, &layout, Section::Root);
        let root = std::str::from_utf8(root)
            .map_err(|_| damaged("its root is not text"))?
            .to_owned();
        let fields = layout.column(Section::FieldOffset).map_or(0, |c| c.count);
        let uniform_fields = fields.checked_div(layout.header.samples).unwrap_or(0);
        Ok(Self {
            inner: Arc::new(Inner {
                file,
                layout,
                root,
                format,
                uniform_fields,
            }),
            choice: None,
        })
    }

    /// The index file, as [`Index::from_bytes`] takes it: write this to a file or into shared memory. Of a choice that of
    /// the index it is of; [`Index::alone`] makes it one of its own.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.inner.file
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.choice
            .as_ref()
            .map_or(self.inner.layout.header.samples, |choice| choice.numbers.len())
    }

    /// Whether there is no sample.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of objects; of a choice those that its samples lie in, which keep the numbers that they have in the whole index.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.choice
            .as_ref()
            .map_or(self.inner.layout.header.objects, |choice| choice.objects)
    }

    /// Digest of the data set: keys, sizes, ETags, ranges, fields and labels, in order.
    ///
    /// It depends on neither the root URL nor checksums, so a moved copy and an index with checksums added keep it.
    #[must_use]
    pub fn digest(&self) -> [u8; 16] {
        self.choice
            .as_ref()
            .map_or(self.inner.layout.header.digest, |choice| choice.digest)
    }

    /// URL that the objects' keys are relative to, without a trailing slash.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.inner.root
    }

    /// How samples lie in objects.
    #[must_use]
    pub fn format(&self) -> Format {
        self.inner.format
    }

    /// JSON of the options it was built with, for `--update`; empty when none were recorded.
    #[must_use]
    pub fn options(&self) -> &str {
        std::str::from_utf8(blob(&self.inner.file, &self.inner.layout, Section::Options)).unwrap_or("")
    }

    fn built(&self) -> Built {
        serde_json::from_str(self.options()).unwrap_or_default()
    }

    /// URL of the manifest that listed its samples; `None` when none did, or a release before this was recorded built it.
    #[must_use]
    pub fn manifest(&self) -> Option<String> {
        self.built().manifest
    }

    /// ETag of that manifest when it was read; `None` when it had none, or a release before this was recorded read it.
    #[must_use]
    pub fn manifest_etag(&self) -> Option<String> {
        self.built().manifest_etag
    }

    /// What building it found worth telling: objects that were left out, shards that hold nothing.
    #[must_use]
    pub fn notes(&self) -> Vec<Note> {
        self.built().notes
    }

    /// Class names, where label `i` is `classes()[i]`; empty when the labels have no names.
    #[must_use]
    pub fn classes(&self) -> Vec<&str> {
        (0..)
            .map_while(|i| self.text(Section::ClassStarts, Section::ClassText, i))
            .collect()
    }

    /// Sample `i`.
    ///
    /// # Errors
    /// `Invalid` when there is no such sample; `Corrupt` when a damaged index places it outside its object.
    pub fn sample(&self, i: u64) -> Result<SampleRef<'_>> {
        if i >= self.len() {
            return Err(self.no_sample(i));
        }
        let id = self.number(i);
        if id >= self.inner.layout.header.samples {
            return Err(damaged(&format!("sample {i} of a choice is none of it")));
        }
        let object = self.object_at(id);
        let offset = self.column_or(Section::SampleOffset, id, 0);
        let length = self.length_at(id);
        let several = self.span(id);
        let is_inside = |range: &ObjectRange| {
            let size = self.at(Section::Sizes, range.object);
            let end = range.offset.checked_add(range.length);
            end.zip(size).is_some_and(|(end, size)| end <= size)
        };
        let is_good = if several.is_empty() {
            is_inside(&ObjectRange { object, offset, length })
        } else {
            let is_few = several.end - several.start <= MAX_RANGES;
            let mut ranges = several.clone().map(|range| self.range_at(range));
            let sum = |sum: u64, range: Option<ObjectRange>| sum.checked_add(range.filter(is_inside)?.length);
            is_few && ranges.try_fold(0, sum) == Some(length)
        };
        if !is_good {
            return Err(damaged(&format!("sample {i} lies outside its object")));
        }
        Ok(SampleRef {
            object,
            offset,
            length,
            label: self.label_at(id),
            crc32c: self.crc32c_at(id),
            index: self,
            id,
            several,
        })
    }

    fn no_sample(&self, i: u64) -> Error {
        Error::invalid(format!("there is no sample {i}: the data set has {}", self.len()))
    }

    /// Object `o`.
    ///
    /// # Errors
    /// `Invalid` when there is no such object; `Corrupt` when the index is damaged.
    pub fn object(&self, o: u64) -> Result<ObjectRef> {
        let objects = self.inner.layout.header.objects;
        if o >= objects {
            return Err(Error::invalid(format!(
                "there is no object {o}: the data set has {objects}"
            )));
        }
        let broken = || damaged(&format!("object {o} cannot be read"));
        let size = self.at(Section::Sizes, o).ok_or_else(broken)?;
        let version = self
            .text(Section::VersionStarts, Section::VersionText, o)
            .filter(|v| !v.is_empty());
        let etag = etags::read(self, o);
        Ok(ObjectRef {
            key: self.key(o).ok_or_else(broken)?,
            size,
            etag,
            version: version.map(str::to_owned),
        })
    }

    /// Bytes of sample `i`; 0 when there is no such sample.
    #[inline]
    #[must_use]
    pub fn length(&self, i: u64) -> u64 {
        self.length_at(self.number(i))
    }

    /// Label of sample `i`.
    #[inline]
    #[must_use]
    pub fn label(&self, i: u64) -> Option<i64> {
        self.label_at(self.number(i))
    }

    /// Whether sample `i` is several ranges.
    #[inline]
    #[must_use]
    pub fn is_several(&self, i: u64) -> bool {
        !self.span(self.number(i)).is_empty()
    }

    /// The number of sample `i` in the file. Where there is no such sample, it may be one that no sample of the file has.
    #[inline]
    fn number(&self, i: u64) -> u64 {
        match &self.choice {
            None => i,
            Some(choice) => choice.numbers.get(i).unwrap_or(u64::MAX),
        }
    }

    // What follows takes numbers of the file.

    #[inline]
    fn length_at(&self, id: u64) -> u64 {
        match self.inner.layout.column(Section::SampleLength) {
            Some(column) => column.get(&self.inner.file, id).unwrap_or(0),
            None => self.at(Section::Sizes, self.object_at(id)).unwrap_or(0),
        }
    }

    #[inline]
    fn label_at(&self, id: u64) -> Option<i64> {
        let coded = self.at(Section::Labels, id)?.checked_sub(1)?;
        Some((coded >> 1) as i64 ^ -((coded & 1) as i64))
    }

    #[inline]
    fn object_at(&self, id: u64) -> u64 {
        self.column_or(Section::SampleObject, id, id)
    }

    #[inline]
    fn crc32c_at(&self, id: u64) -> Option<u32> {
        u32::try_from(self.at(Section::Checksums, id)?.checked_sub(1)?).ok()
    }

    fn name_at(&self, id: u64) -> Option<String> {
        let text = blob(&self.inner.file, &self.inner.layout, Section::SampleNameText);
        let start = usize::try_from(self.at(Section::SampleNameBlocks, id / keys::BLOCK)?).ok()?;
        keys::read(text.get(start..)?, id % keys::BLOCK).filter(|name| !name.is_empty())
    }

    /// Numbers of its ranges; none: it is one range, as its own columns say. What can't be read is more than any sample may have.
    #[inline]
    fn span(&self, id: u64) -> std::ops::Range<u64> {
        match self.inner.layout.column(Section::RangeStarts) {
            Some(starts) => starts.span(&self.inner.file, id).unwrap_or(0..u64::MAX),
            None => 0..0,
        }
    }

    fn range_at(&self, range: u64) -> Option<ObjectRange> {
        Some(ObjectRange {
            object: self.at(Section::RangeObject, range)?,
            offset: self.at(Section::RangeOffset, range)?,
            length: self.at(Section::RangeLength, range)?,
        })
    }

    /// Number of the object that holds sample `i`, or the first of its ranges; may be out of range when `i` is.
    #[inline]
    #[must_use]
    pub fn object_of(&self, i: u64) -> u64 {
        self.object_at(self.number(i))
    }

    /// Whether several samples may lie in one object; false: each has an object of its own.
    #[must_use]
    pub fn shares_objects(&self) -> bool {
        let has = |section| self.inner.layout.column(section).is_some();
        match &self.choice {
            None => has(Section::SampleObject),
            Some(choice) => has(Section::RangeStarts) || choice.objects < choice.numbers.len(),
        }
    }

    /// CRC-32C of the bytes of sample `i`, when the index was built with checksums.
    #[inline]
    #[must_use]
    pub fn crc32c(&self, i: u64) -> Option<u32> {
        self.crc32c_at(self.number(i))
    }

    /// Key of sample `i` in caches that several data sets and jobs share: a hash of the store ([`Source::store`](crate::Source::store)), the object's
    /// URL, its ETag (or version) and the range; of several ranges, a hash of their keys.
    ///
    /// # Errors
    /// As [`Index::sample`].
    pub fn sample_key(&self, store: &str, i: u64) -> Result<[u8; 16]> {
        let sample = self.sample(i)?;
        let key = |range: ObjectRange| {
            let object = self.object(range.object)?;
            Ok(content_key(store, self.root(), &object, range.bytes()))
        };
        if sample.several.is_empty() {
            return key(sample.ranges().next().unwrap_or_default());
        }
        let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
        hash.update(b"foreload content keys 1");
        for range in sample.ranges() {
            hash.update(&key(range)?);
        }
        Ok(first_half(hash.finish().as_ref()))
    }

    /// What sample `i` is called inside its object; `None` when it has no name of its own.
    #[must_use]
    pub fn name(&self, i: u64) -> Option<String> {
        self.name_at(self.number(i))
    }

    /// Key of object `o`, relative to the root.
    fn key(&self, o: u64) -> Option<String> {
        keys::read(self.key_block(o / keys::BLOCK)?, o % keys::BLOCK)
    }

    /// The bytes from a block of keys on.
    fn key_block(&self, block: u64) -> Option<&[u8]> {
        let text = blob(&self.inner.file, &self.inner.layout, Section::KeyText);
        text.get(usize::try_from(self.at(Section::KeyBlocks, block)?).ok()?..)
    }

    fn fields_at(&self, id: u64, length: u64) -> Fields<'_> {
        let stored = self.inner.layout.column(Section::SampleSchema).and_then(|schema| {
            let schema = schema.get(&self.inner.file, id)?;
            let names = self
                .inner
                .layout
                .column(Section::SchemaStarts)?
                .span(&self.inner.file, schema)?;
            let uniform = id.checked_mul(self.inner.uniform_fields)?;
            Some((names, self.column_or(Section::SampleFields, id, uniform)))
        });
        let (names, next) = stored.unwrap_or((0..0, 0));
        let whole = names.is_empty();
        Fields {
            index: self,
            length,
            whole,
            names,
            next,
        }
    }

    #[inline]
    fn at(&self, section: Section, i: u64) -> Option<u64> {
        self.inner.layout.column(section)?.get(&self.inner.file, i)
    }

    /// Entry `i`, or `absent` when the index has no such column.
    #[inline]
    fn column_or(&self, section: Section, i: u64, absent: u64) -> u64 {
        match self.inner.layout.column(section) {
            Some(column) => column.get(&self.inner.file, i).unwrap_or(u64::MAX),
            None => absent,
        }
    }

    /// Text number `i` of a list of texts.
    fn text(&self, starts: Section, text: Section, i: u64) -> Option<&str> {
        let span = self.inner.layout.column(starts)?.span(&self.inner.file, i)?;
        let bytes = blob(&self.inner.file, &self.inner.layout, text);
        let bytes = bytes.get(usize::try_from(span.start).ok()?..usize::try_from(span.end).ok()?)?;
        std::str::from_utf8(bytes).ok()
    }
}

/// Key of `range` of `object` under `root` of a store, as [`Index::sample_key`] makes it.
#[must_use]
pub fn content_key(store: &str, root: &str, object: &ObjectRef, range: std::ops::Range<u64>) -> [u8; 16] {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    if store.is_empty() {
        part(b"foreload content key 1");
    } else {
        part(b"foreload content key 2");
        part(store.as_bytes());
    }
    part(root.as_bytes());
    part(object.key.as_bytes());
    // The size is part of the identity too: it is all there is when a store sends neither ETag nor version.
    part(bare_etag(object.etag.as_deref().unwrap_or("")).as_bytes());
    part(object.version.as_deref().unwrap_or("").as_bytes());
    for number in [object.size, range.start, range.end] {
        part(&number.to_le_bytes());
    }
    first_half(hash.finish().as_ref())
}

/// A label as the index has it: zigzag, plus 1; 0 for none.
fn coded_label(label: Option<i64>) -> u64 {
    label.map_or(0, |label| ((label << 1 ^ label >> 63) as u64).wrapping_add(1))
}

fn first_half(digest: &[u8]) -> [u8; 16] {
    std::array::from_fn(|i| digest.get(i).copied().unwrap_or(0))
}

fn blob<'a>(file: &'a [u8], layout: &Layout, section: Section) -> &'a [u8] {
    let place = layout.column(section).filter(|c| c.width == 1);
    place
        .and_then(|c| file.get(c.start..c.start.checked_add(usize::try_from(c.count).ok()?)?))
        .unwrap_or(&[])
}

/// Compares the lengths of the columns with one another; O(1).
fn check_counts(layout: &Layout) -> Result<()> {
    use Section as S;
    let (samples, objects) = (layout.header.samples, layout.header.objects);
    let count = |section| layout.column(section).map(|c| c.count);
    let optional = |section, expected| count(section).is_none_or(|found| found == expected);
    let required = |section, expected| count(section).unwrap_or(0) == expected;
    let ranged = count(S::SampleObject).is_some() || count(S::SampleLength).is_some();
    let fields = count(S::FieldOffset).unwrap_or(0);
    let ranges = count(S::RangeOffset).unwrap_or(0);
    let uniform = samples > 0 && fields.is_multiple_of(samples);
    let good = samples <= MAX_SAMPLES
        && count(S::KeyText).unwrap_or(0) >= objects
        && required(S::KeyBlocks, objects.div_ceil(keys::BLOCK))
        && required(S::Sizes, objects)
        && optional(S::SampleNameBlocks, samples.div_ceil(keys::BLOCK))
        && optional(S::EtagMd5, objects)
        && layout.column(S::EtagMd5).is_none_or(|c| c.width == 16)
        && optional(S::EtagParts, objects)
        && optional(S::VersionStarts, objects.saturating_add(1))
        && [
            S::SampleObject,
            S::SampleOffset,
            S::SampleLength,
            S::Labels,
            S::Checksums,
            S::SampleSchema,
        ]
        .into_iter()
        .all(|section| optional(section, samples))
        && (ranged || samples == objects || samples == 0)
        && optional(S::SampleFields, samples)
        && optional(S::RangeStarts, samples.saturating_add(1))
        && count(S::RangeStarts).is_some() == (ranges > 0)
        && required(S::RangeObject, ranges)
        && required(S::RangeLength, ranges)
        && required(S::FieldLength, fields)
        && (count(S::SampleSchema).is_none() || count(S::SampleFields).is_some() || uniform || fields == 0);
    if good {
        Ok(())
    } else {
        Err(damaged("its sections do not fit together"))
    }
}

#[cfg(test)]
mod tests;
