//! Collects objects and samples in order and writes an [`Index`].

use super::column::Values;
use super::digest::ContentDigest;
use super::etags::EtagWriter;
use super::keys::{KeyWriter, MAX_KEY_BYTES};
use super::layout::{Header, Section, Writer};
use super::{Index, MAX_RANGES, MAX_SAMPLES, ObjectRange, ObjectRef, SampleRef, coded_label};
use crate::format::Format;
use crate::source::without_slash;
use crate::{Error, Result};
use bytes::Bytes;
use rustc_hash::FxHashMap;

/// An object to add.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewObject<'a> {
    /// Key relative to the root.
    pub key: &'a str,
    /// Bytes.
    pub size: u64,
    /// ETag as the store sent it.
    pub etag: Option<&'a str>,
    /// Version id or generation.
    pub version: Option<&'a str>,
}

impl<'a> From<&'a ObjectRef> for NewObject<'a> {
    fn from(object: &'a ObjectRef) -> Self {
        NewObject {
            key: &object.key,
            size: object.size,
            etag: object.etag.as_deref(),
            version: object.version.as_deref(),
        }
    }
}

/// A sample to add.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewSample<'a> {
    /// Object that holds it: a number that [`IndexBuilder::object`] returned.
    pub object: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Where it goes on, if it is several ranges; object, offset and length are those of the first.
    pub more: &'a [ObjectRange],
    /// Integer label.
    pub label: Option<i64>,
    /// CRC-32C of the bytes.
    pub crc32c: Option<u32>,
    /// Named parts; empty for a sample that is one piece.
    pub fields: &'a [NewField<'a>],
    /// What it is called inside its object, such as WebDataset's `__key__`; empty when the object's key is name enough.
    pub name: &'a str,
}

/// A named part of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewField<'a> {
    /// Name, such as `jpg`.
    pub name: &'a str,
    /// First byte relative to the sample.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Builds an [`Index`] from a stream of objects and samples; sample ids follow the order of the calls.
///
/// It holds the packed columns, about as much memory as twice the finished index.
#[derive(Debug)]
pub struct IndexBuilder {
    root: String,
    format: Format,
    options: String,
    classes: Texts,
    objects: u64,
    keys: KeyWriter,
    sizes: Values,
    etags: EtagWriter,
    versions: Texts,
    any_version: bool,
    samples: u64,
    sample_object: Values,
    offsets: Values,
    lengths: Values,
    whole: bool,
    ranges: Ranges,
    labels: Values,
    checksums: Values,
    schemas: Schemas,
    names: KeyWriter,
    any_name: bool,
    digest: ContentDigest,
}

impl IndexBuilder {
    /// Starts an empty index of objects under `root`.
    pub fn new(root: impl Into<String>, format: Format) -> Self {
        let root: String = root.into();
        Self {
            root: without_slash(&root).to_owned(),
            format,
            options: String::new(),
            classes: Texts::default(),
            objects: 0,
            keys: KeyWriter::default(),
            sizes: Values::default(),
            etags: EtagWriter::default(),
            versions: Texts::default(),
            any_version: false,
            samples: 0,
            sample_object: Values::default(),
            offsets: Values::default(),
            lengths: Values::default(),
            whole: true,
            ranges: Ranges::default(),
            labels: Values::default(),
            checksums: Values::default(),
            schemas: Schemas::default(),
            names: KeyWriter::default(),
            any_name: false,
            digest: ContentDigest::new(),
        }
    }

    /// Records the options that built it, as JSON.
    pub fn options(&mut self, json: impl Into<String>) -> &mut Self {
        self.options = json.into();
        self
    }

    /// Names the labels 0, 1, 2, ...
    pub fn classes<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> &mut Self {
        self.classes = Texts::default();
        names.into_iter().for_each(|name| self.classes.push(name));
        self
    }

    /// Objects added so far.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// Samples added so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Adds an object and returns its number.
    ///
    /// # Errors
    /// `Invalid` when the key is empty or longer than any store allows.
    pub fn object(&mut self, new: NewObject<'_>) -> Result<u64> {
        if new.key.is_empty() || new.key.len() > MAX_KEY_BYTES {
            return Err(Error::invalid(format!(
                "a key of {} bytes cannot be indexed",
                new.key.len()
            )));
        }
        self.keys.push(new.key);
        self.sizes.push(new.size);
        self.etags.push(new.etag);
        self.versions.push(new.version.unwrap_or(""));
        self.any_version |= new.version.is_some_and(|v| !v.is_empty());
        self.digest.object(new.key, new.etag, new.size);
        self.objects += 1;
        Ok(self.objects - 1)
    }

    /// Adds an object that is one sample: what folders are made of. Returns the sample's id.
    ///
    /// # Errors
    /// As [`IndexBuilder::object`] and [`IndexBuilder::sample`].
    pub fn whole_object(&mut self, new: NewObject<'_>, label: Option<i64>, crc32c: Option<u32>) -> Result<u64> {
        let object = self.object(new)?;
        self.sample(NewSample {
            object,
            length: new.size,
            label,
            crc32c,
            ..NewSample::default()
        })
    }

    /// Adds a sample of another index as it is there, at these ranges of this one's objects and with this checksum; returns its id.
    ///
    /// # Errors
    /// As [`IndexBuilder::sample`].
    pub fn copy(&mut self, sample: &SampleRef<'_>, ranges: &[ObjectRange], crc32c: Option<u32>) -> Result<u64> {
        let Some((first, more)) = ranges.split_first() else {
            return Err(Error::invalid(format!("sample {} has no range", self.samples)));
        };
        let named = sample.fields().filter(|(name, ..)| !name.is_empty());
        let fields: Vec<NewField<'_>> = named
            .map(|(name, offset, length)| NewField { name, offset, length })
            .collect();
        self.sample(NewSample {
            object: first.object,
            offset: first.offset,
            length: first.length,
            more,
            label: sample.label,
            crc32c,
            fields: &fields,
            name: sample.name().as_deref().unwrap_or_default(),
        })
    }

    /// Adds a sample and returns its id.
    ///
    /// # Errors
    /// `Invalid` when it lies outside its object, or a range outside its own; when a field lies outside the sample, the
    /// label is `i64::MIN`, or there are more than [`MAX_RANGES`] ranges.
    pub fn sample(&mut self, new: NewSample<'_>) -> Result<u64> {
        let i = self.samples;
        let first = ObjectRange {
            object: new.object,
            offset: new.offset,
            length: new.length,
        };
        let size = self.size_around(i, &first)?;
        let mut length = first.length;
        for range in new.more {
            self.size_around(i, range)?;
            length = length.saturating_add(range.length);
        }
        if new.more.len() as u64 >= MAX_RANGES {
            return Err(
                Error::invalid(format!("sample {i} is {} ranges", new.more.len() + 1)).with_remedy(format!(
                    "a sample may be {MAX_RANGES}, and each costs a request: store its bytes together"
                )),
            );
        }
        let inside = |f: &NewField<'_>| f.offset.checked_add(f.length).is_some_and(|end| end <= length);
        if !new.fields.iter().all(inside) {
            return Err(Error::invalid(format!("a field of sample {i} lies outside it")));
        }
        if new.label == Some(i64::MIN) || i >= MAX_SAMPLES {
            return Err(Error::invalid(format!(
                "sample {i}: its label or number is out of range"
            )));
        }
        self.sample_object.push(new.object);
        self.offsets.push(new.offset);
        self.lengths.push(length);
        self.whole &= new.object == i && new.offset == 0 && new.length == size && new.more.is_empty();
        self.ranges.push(first, new.more);
        let label = coded_label(new.label);
        self.labels.push(label);
        self.checksums.push(new.crc32c.map_or(0, |c| u64::from(c) + 1));
        self.schemas.push(new.fields);
        // A name that long is a stranger's joke, and none is needed.
        let name = if new.name.len() > MAX_KEY_BYTES { "" } else { new.name };
        if !name.is_empty() && !self.any_name {
            (0..i).for_each(|_| self.names.push(""));
            self.any_name = true;
        }
        if self.any_name {
            self.names.push(name);
        }
        self.digest.sample(&first, label);
        new.more.iter().for_each(|range| self.digest.range(range));
        for field in new.fields {
            self.digest.field(field.name, field.offset, field.length);
        }
        self.samples += 1;
        Ok(i)
    }

    /// The size of the object that sample `i` has this range of.
    fn size_around(&self, i: u64, range: &ObjectRange) -> Result<u64> {
        let size = self.sizes.get(range.object);
        let size =
            size.ok_or_else(|| Error::invalid(format!("sample {i} names object {}, not added", range.object)))?;
        if range.offset.checked_add(range.length).is_none_or(|end| end > size) {
            let range = format!("{}+{}", range.offset, range.length);
            return Err(Error::invalid(format!(
                "sample {i} ({range}) lies outside its object of {size} bytes"
            )));
        }
        Ok(size)
    }

    /// Writes the index.
    ///
    /// # Errors
    /// `Bug` when the bytes just written do not open.
    pub fn finish(self) -> Result<Index> {
        let mut out = Writer::default();
        out.blob(Section::Root, self.root.as_bytes(), 1);
        out.blob(Section::Options, self.options.as_bytes(), 1);
        self.classes.write(&mut out, Section::ClassStarts, Section::ClassText);
        out.column(Section::KeyBlocks, self.keys.blocks);
        out.blob(Section::KeyText, &self.keys.blob, 1);
        out.column(Section::Sizes, self.sizes);
        self.etags.write(&mut out);
        if self.any_version {
            self.versions
                .write(&mut out, Section::VersionStarts, Section::VersionText);
        }
        if !(self.whole && self.samples == self.objects) {
            // The length column marks an index with ranges, so it is written even when the objects are numbered alike.
            if !self.sample_object.is_identity() {
                out.column(Section::SampleObject, self.sample_object);
            }
            out.column(Section::SampleOffset, self.offsets);
            out.column(Section::SampleLength, self.lengths);
        }
        self.ranges.write(&mut out);
        for (section, values) in [(Section::Labels, self.labels), (Section::Checksums, self.checksums)] {
            if !matches!(values, Values::Constant { value: 0, .. }) {
                out.column(section, values);
            }
        }
        self.schemas.write(&mut out);
        if self.any_name {
            out.column(Section::SampleNameBlocks, self.names.blocks);
            out.blob(Section::SampleNameText, &self.names.blob, 1);
        }
        let header = Header {
            samples: self.samples,
            objects: self.objects,
            digest: self.digest.finish(),
            format: self.format.code(),
        };
        Index::from_bytes(Bytes::from(out.finish(&header)))
            .map_err(|e| Error::new(crate::ErrorKind::Bug, "an index just written does not open").with_source(e))
    }
}

/// The ranges of samples that are several.
#[derive(Debug, Default)]
struct Ranges {
    /// Ranges before each sample's.
    starts: Values,
    objects: Values,
    offsets: Values,
    lengths: Values,
}

impl Ranges {
    fn push(&mut self, first: ObjectRange, more: &[ObjectRange]) {
        self.starts.push(self.objects.len());
        if more.is_empty() {
            return;
        }
        for range in std::iter::once(&first).chain(more) {
            self.objects.push(range.object);
            self.offsets.push(range.offset);
            self.lengths.push(range.length);
        }
    }

    fn write(mut self, out: &mut Writer) {
        if self.objects.len() == 0 {
            return;
        }
        self.starts.push(self.objects.len());
        out.column(Section::RangeStarts, self.starts);
        out.column(Section::RangeObject, self.objects);
        out.column(Section::RangeOffset, self.offsets);
        out.column(Section::RangeLength, self.lengths);
    }
}

/// A list of texts: starts and the text itself.
#[derive(Debug, Default)]
struct Texts {
    starts: Values,
    text: Vec<u8>,
}

impl Texts {
    fn push(&mut self, text: &str) {
        self.starts.push(self.text.len() as u64);
        self.text.extend_from_slice(text.as_bytes());
    }

    fn write(mut self, out: &mut Writer, starts: Section, text: Section) {
        if self.starts.len() > 0 {
            self.starts.push(self.text.len() as u64);
            out.column(starts, self.starts);
            out.blob(text, &self.text, 1);
        }
    }
}

/// Field names shared by samples (a schema), and where each sample's fields are.
#[derive(Debug, Default)]
struct Schemas {
    known: FxHashMap<Vec<String>, u64>,
    starts: Values,
    names: Texts,
    name_count: u64,
    of_sample: Values,
    first: Values,
    offsets: Values,
    lengths: Values,
    widths: Values,
    last: Option<(Vec<String>, u64)>,
}

impl Schemas {
    fn push(&mut self, fields: &[NewField<'_>]) {
        // A sample in one piece next to samples with parts has the one field "".
        let schema = match &self.last {
            Some((names, id)) if names.iter().map(String::as_str).eq(fields.iter().map(|f| f.name)) => *id,
            _ => {
                let names: Vec<String> = fields.iter().map(|f| f.name.to_owned()).collect();
                let id = self.intern(&names);
                self.last = Some((names, id));
                id
            }
        };
        self.of_sample.push(schema);
        self.first.push(self.offsets.len());
        self.widths.push(fields.len() as u64);
        for field in fields {
            self.offsets.push(field.offset);
            self.lengths.push(field.length);
        }
    }

    fn intern(&mut self, names: &[String]) -> u64 {
        if let Some(&id) = self.known.get(names) {
            return id;
        }
        let id = self.known.len() as u64;
        self.known.insert(names.to_vec(), id);
        self.starts.push(self.name_count);
        names.iter().for_each(|name| self.names.push(name));
        self.name_count += names.len() as u64;
        id
    }

    fn write(mut self, out: &mut Writer) {
        if self.offsets.len() == 0 {
            return;
        }
        self.starts.push(self.name_count);
        out.column(Section::SchemaStarts, self.starts);
        self.names.write(out, Section::FieldStarts, Section::FieldText);
        out.column(Section::SampleSchema, self.of_sample);
        if !matches!(self.widths, Values::Constant { .. }) {
            out.column(Section::SampleFields, self.first);
        }
        out.column(Section::FieldOffset, self.offsets);
        out.column(Section::FieldLength, self.lengths);
    }
}
