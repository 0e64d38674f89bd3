//! Reads every sample once and adds its CRC-32C to the index.
//!
//! Each object is read from its first sample to its last in one stream, however many samples it holds. The checksum of a
//! sample of several ranges is put together from theirs.

use super::{Progress, Step};
use crate::index::{IndexBuilder, MAX_RANGES, MAX_SAMPLES, ObjectRange};
use crate::source::{Sink, Source};
use crate::{Error, ErrorKind, Index, Result};
use crc_fast::{CrcAlgorithm, Digest};
use futures::{StreamExt, TryStreamExt, stream};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

// For the whole object: at 1 MB/s an object of 5 GB is read. A silent connection ends earlier.
const TIMEOUT: Duration = Duration::from_secs(5000);

/// The same index with a checksum for every sample. `concurrency` objects are read at a time.
///
/// # Errors
/// `Changed` when an object is no longer the indexed one; the source's errors.
pub async fn checksum(
    index: &Index,
    source: &Source,
    concurrency: usize,
    report: &mut (dyn FnMut(&Step) + Send),
) -> Result<Index> {
    // All objects are gone through by their numbers.
    let index = &index.alone()?;
    let mut progress = Progress::new(report);
    progress.stage("computing checksums", index.objects());
    let mut wanted: Vec<Vec<Unit>> = vec![Vec::new(); usize::try_from(index.objects()).unwrap_or(0)];
    for i in 0..index.len() {
        for (nth, range) in (0..).zip(index.sample(i)?.ranges()) {
            let list = wanted.get_mut(range.object as usize);
            list.ok_or_else(|| Error::corrupt(format!("sample {i} names no object")))?
                .push(Unit::new(i, nth));
        }
    }
    let mut sums = vec![None; usize::try_from(index.len()).unwrap_or(0)];
    let mut several = BTreeMap::new();
    let reads = stream::iter((0..index.objects()).zip(wanted)).map(|(o, units)| read(index, source, o, units));
    let mut reads = reads.buffer_unordered(concurrency.max(1));
    while let Some((found, bytes)) = reads.try_next().await? {
        progress.advance(found.len() as u64, bytes);
        for (unit, crc, length) in found {
            match index.is_several(unit.sample()) {
                true => drop(several.insert(unit, (crc, length))),
                false => sums[unit.sample() as usize] = Some(crc),
            }
        }
    }
    // In the order of samples and ranges.
    for (unit, (crc, length)) in several {
        let sum = &mut sums[unit.sample() as usize];
        *sum = Some(sum.map_or(crc, |before| joined(before, crc, length)));
    }
    with_checksums(index, &sums)
}

/// A range of a sample: the sample's number, and in the low bits the range's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Unit(u64);

const _: () = assert!(MAX_SAMPLES.checked_mul(MAX_RANGES).is_some());

impl Unit {
    fn new(sample: u64, nth: u64) -> Self {
        Unit(sample * MAX_RANGES + nth)
    }

    fn sample(self) -> u64 {
        self.0 / MAX_RANGES
    }

    fn range(self, index: &Index) -> Result<Range<u64>> {
        let range = index
            .sample(self.sample())?
            .ranges()
            .nth((self.0 % MAX_RANGES) as usize);
        Ok(range.unwrap_or_default().bytes())
    }
}

/// The CRC-32C of bytes with this one, followed by `length` bytes with that one.
fn joined(crc: u32, next: u32, length: u64) -> u32 {
    crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, crc.into(), next.into(), length) as u32
}

/// Checksums of what samples have of one object, with the bytes of each; and the bytes read.
async fn read(index: &Index, source: &Source, o: u64, units: Vec<Unit>) -> Result<(Vec<(Unit, u32, u64)>, u64)> {
    let object = index.object(o)?;
    let mut parts = Vec::with_capacity(units.len());
    for unit in units {
        parts.push(Part {
            unit,
            range: unit.range(index)?,
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        });
    }
    parts.sort_by_key(|part| part.range.start);
    let start = parts.iter().map(|p| p.range.start).min().unwrap_or(0);
    let end = parts.iter().map(|p| p.range.end).max().unwrap_or(start);
    let mut sink = Parts { start, first: 0, parts };
    source
        .fetch_indexed(&object, start..end, Instant::now() + TIMEOUT, &mut sink)
        .await?;
    let sum = |p: &Part| (p.unit, p.digest.finalize() as u32, p.range.end - p.range.start);
    Ok((sink.parts.iter().map(sum).collect(), end - start))
}

struct Part {
    unit: Unit,
    range: Range<u64>,
    digest: Digest,
}

/// Feeds each sample's digest with its bytes; samples are sorted by their start and may overlap.
struct Parts {
    start: u64,
    /// Parts before this one end before the present frame, as far as all before them do.
    first: usize,
    parts: Vec<Part>,
}

impl Sink for Parts {
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<()> {
        let from = self.start + at;
        let to = from + frame.len() as u64;
        while self.parts.get(self.first).is_some_and(|p| p.range.end <= from) {
            self.first += 1;
        }
        for part in self.parts[self.first..].iter_mut().take_while(|p| p.range.start < to) {
            let (a, b) = (part.range.start.max(from), part.range.end.min(to));
            if a < b {
                part.digest.update(&frame[(a - from) as usize..(b - from) as usize]);
            }
        }
        Ok(())
    }

    fn restart(&mut self) {
        self.first = 0;
        self.parts.iter_mut().for_each(|p| p.digest.reset());
    }
}

/// The same index with the checksums of another one, of the same samples of objects that haven't changed since.
///
/// # Errors
/// `Corrupt` when one of the two is damaged.
pub fn with_checksums_of(index: &Index, before: &Index) -> Result<Index> {
    if (0..before.len()).all(|i| before.crc32c(i).is_none()) {
        return Ok(index.clone());
    }
    let (index, before) = (&index.alone()?, &before.alone()?);
    if index.digest() == before.digest() {
        let sums: Vec<_> = (0..index.len()).map(|i| index.crc32c(i).or(before.crc32c(i))).collect();
        return with_checksums(index, &sums);
    }
    let mut objects = FxHashMap::default();
    for o in 0..before.objects() {
        let object = before.object(o)?;
        objects.insert((object.key, object.size, object.etag), o);
    }
    // The objects' numbers before.
    let numbers = (0..index.objects()).map(|o| {
        let object = index.object(o)?;
        Ok(objects.get(&(object.key, object.size, object.etag)).copied())
    });
    let numbers: Vec<Option<u64>> = numbers.collect::<Result<_>>()?;
    // By the first range, and the others, of which most samples have none.
    let mut known: FxHashMap<Ranges, u32> = FxHashMap::default();
    for i in 0..before.len() {
        if let Some(crc) = before.crc32c(i) {
            let ranges = before
                .sample(i)?
                .ranges()
                .map(|it| Some((it.object, it.offset, it.length)));
            known.extend(split(ranges).map(|ranges| (ranges, crc)));
        }
    }
    let sums = (0..index.len()).map(|i| {
        let before = |it: ObjectRange| Some((numbers.get(it.object as usize).copied()??, it.offset, it.length));
        let ranges = split(index.sample(i)?.ranges().map(before));
        Ok(index.crc32c(i).or_else(|| known.get(&ranges?).copied()))
    });
    with_checksums(index, &sums.collect::<Result<Vec<_>>>()?)
}

/// Object, offset and length of a sample's first range, and of the others.
type Ranges = ((u64, u64, u64), Box<[(u64, u64, u64)]>);

fn split(mut ranges: impl Iterator<Item = Option<(u64, u64, u64)>>) -> Option<Ranges> {
    Some((ranges.next()??, ranges.collect::<Option<_>>()?))
}

fn with_checksums(index: &Index, sums: &[Option<u32>]) -> Result<Index> {
    let mut builder = IndexBuilder::new(index.root(), index.format());
    builder.options(index.options()).classes(index.classes());
    for o in 0..index.objects() {
        let object = index.object(o)?;
        builder.object((&object).into())?;
    }
    for (i, crc32c) in (0..index.len()).zip(sums) {
        let sample = index.sample(i)?;
        let ranges: Vec<ObjectRange> = sample.ranges().collect();
        builder.copy(&sample, &ranges, *crc32c)?;
    }
    let new = builder.finish()?;
    if new.digest() != index.digest() {
        return Err(Error::new(ErrorKind::Bug, "checksums changed the data set's digest"));
    }
    Ok(new)
}
