//! Reads every sample once and adds its CRC-32C to the index.
//!
//! Each object is read from its first sample to its last in one stream, however many samples it holds.

use super::{Progress, Step};
use crate::index::IndexBuilder;
use crate::source::{Sink, Source};
use crate::{Error, ErrorKind, Index, Result};
use crc_fast::{CrcAlgorithm, Digest};
use futures::{StreamExt, TryStreamExt, stream};
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
    let mut progress = Progress::new(report);
    progress.stage("computing checksums", index.objects());
    let mut samples: Vec<Vec<u64>> = vec![Vec::new(); usize::try_from(index.objects()).unwrap_or(0)];
    for i in 0..index.len() {
        let list = samples.get_mut(index.object_of(i) as usize);
        list.ok_or_else(|| Error::corrupt(format!("sample {i} names no object")))?
            .push(i);
    }
    let mut sums = vec![None; usize::try_from(index.len()).unwrap_or(0)];
    let reads = stream::iter((0..index.objects()).zip(samples)).map(|(o, samples)| read(index, source, o, samples));
    let mut reads = reads.buffer_unordered(concurrency.max(1));
    while let Some((found, bytes)) = reads.try_next().await? {
        progress.advance(found.len() as u64, bytes);
        for (i, crc) in found {
            sums[i as usize] = Some(crc);
        }
    }
    with_checksums(index, &sums)
}

/// Checksums of the samples of one object.
async fn read(index: &Index, source: &Source, o: u64, mut samples: Vec<u64>) -> Result<(Vec<(u64, u32)>, u64)> {
    let object = index.object(o)?;
    let mut parts = Vec::with_capacity(samples.len());
    samples.sort_by_key(|&i| index.sample(i).map_or(0, |s| s.offset));
    for i in samples {
        parts.push(Part {
            id: i,
            range: index.sample(i)?.range(),
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        });
    }
    let start = parts.iter().map(|p| p.range.start).min().unwrap_or(0);
    let end = parts.iter().map(|p| p.range.end).max().unwrap_or(start);
    let mut sink = Parts { start, first: 0, parts };
    source
        .fetch_indexed(&object, start..end, Instant::now() + TIMEOUT, &mut sink)
        .await?;
    Ok((
        sink.parts.iter().map(|p| (p.id, p.digest.finalize() as u32)).collect(),
        end - start,
    ))
}

struct Part {
    id: u64,
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

fn with_checksums(index: &Index, sums: &[Option<u32>]) -> Result<Index> {
    let mut builder = IndexBuilder::new(index.root(), index.format());
    builder.options(index.options()).classes(index.classes());
    for o in 0..index.objects() {
        let object = index.object(o)?;
        builder.object((&object).into())?;
    }
    for (i, crc32c) in (0..index.len()).zip(sums) {
        let sample = index.sample(i)?;
        builder.copy(&sample, sample.object, *crc32c)?;
    }
    let new = builder.finish()?;
    if new.digest() != index.digest() {
        return Err(Error::new(ErrorKind::Bug, "checksums changed the data set's digest"));
    }
    Ok(new)
}
