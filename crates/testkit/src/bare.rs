//! The yardstick: what a client reaches that does nothing but read.
//!
//! [`http`] sends signed ranged GETs over a fixed number of kept-alive HTTP/1.1 connections, on
//! one current-thread runtime, and copies the bodies into memory that was allocated and touched
//! before the clock started, computing the CRC32C of each on the way: what any loader that
//! verifies its data must do at least. [`local`] reads files the same way with plain threads,
//! for file systems, and ranges of one file with `O_DIRECT`, for disks. Both report a
//! [`Report`]; the binary `bare` prints it as JSON. A loader's figure is the ratio of its rate
//! to this one's, measured in turn against the same server.

pub mod http;
pub mod local;

use std::path::Path;

use serde::Serialize;

use crate::bucket::Rule;
use crate::bucket::content::Blob;
use crate::bucket::synthetic::Set;
use crate::draw;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranges or settings make no sense.
    #[error("{0}")]
    Setting(String),
    /// A file or socket failed.
    #[error("{what}: {source}")]
    Io {
        /// The file, the address or the object.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An answer is not what was asked for.
    #[error("{object}: expected {expected}, got {got}")]
    Answer {
        /// The object.
        object: String,
        /// The status or size asked for.
        expected: String,
        /// The status or size received.
        got: String,
    },
    /// The certificate can't be used.
    #[error(transparent)]
    Tls(#[from] crate::tls::Error),
}

impl Error {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Bytes of an object or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The key or path.
    pub key: String,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub size: u64,
}

/// What a run reached.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Connections or threads.
    pub connections: usize,
    /// Requests or reads.
    pub requests: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// From the first request to the end of the last body.
    pub seconds: f64,
    /// Requests per second.
    pub samples_per_s: f64,
    /// Megabytes (10^6) per second.
    pub mb_per_s: f64,
    /// CPU time of this process during the run, user and kernel.
    pub cpu_s: f64,
    /// CPU seconds per gigabyte (10^9).
    pub cpu_s_per_gb: f64,
    /// The CRC32Cs of all ranges, combined by exclusive or: the same for the same ranges.
    pub crc32c: String,
}

impl Report {
    fn new(connections: usize, requests: u64, bytes: u64, clock: &Clock, crc: u32) -> Self {
        let (seconds, cpu_s) = clock.read();
        Self {
            connections,
            requests,
            bytes,
            seconds,
            samples_per_s: requests as f64 / seconds,
            mb_per_s: bytes as f64 / seconds / 1e6,
            cpu_s,
            cpu_s_per_gb: cpu_s / (bytes as f64 / 1e9),
            crc32c: format!("{crc:08x}"),
        }
    }
}

/// Wall-clock and CPU time since it was started.
struct Clock {
    wall: std::time::Instant,
    cpu: f64,
}

impl Clock {
    fn start() -> Self {
        Self {
            wall: std::time::Instant::now(),
            cpu: cpu_seconds(),
        }
    }

    fn read(&self) -> (f64, f64) {
        (self.wall.elapsed().as_secs_f64(), cpu_seconds() - self.cpu)
    }
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Memory that the kernel has backed with pages already.
fn touched(size: usize) -> Vec<u8> {
    let mut memory = vec![0; size];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    memory
}

/// The ranges of the samples of a synthetic set, as the server with this seed has them.
#[must_use]
pub fn synthetic(rule: &Rule, seed: u64) -> Vec<Range> {
    let set = Set::new(rule.clone(), Blob::new(seed), seed);
    let range = |(key, offset, size)| Range { key, offset, size };
    set.samples().map(range).collect()
}

/// Reads ranges from a file: per line a key, an offset and a size, separated by tabs.
///
/// # Errors
///
/// When the file can't be read or a line is malformed.
pub fn from_file(path: &Path) -> Result<Vec<Range>, Error> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(Error::io(&name))?;
    let mut ranges = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let range = parse_line(line)
            .ok_or_else(|| Error::Setting(format!("{name}:{}: expected KEY\\tOFFSET\\tSIZE", number + 1)))?;
        ranges.push(range);
    }
    Ok(ranges)
}

fn parse_line(line: &str) -> Option<Range> {
    let mut fields = line.split('\t');
    let range = Range {
        key: fields.next()?.to_owned(),
        offset: fields.next()?.parse().ok()?,
        size: fields.next()?.parse().ok()?,
    };
    fields.next().is_none().then_some(range)
}

/// Splits ranges into parts of at most `part` bytes.
#[must_use]
pub fn split(ranges: Vec<Range>, part: u64) -> Vec<Range> {
    let parts = |range: Range| {
        (0..range.size.div_ceil(part)).map(move |index| Range {
            key: range.key.clone(),
            offset: range.offset + index * part,
            size: part.min(range.size - index * part),
        })
    };
    ranges.into_iter().flat_map(parts).collect()
}

/// Brings ranges into a random order (Fisher-Yates).
pub fn shuffle(ranges: &mut [Range], seed: u64) {
    for index in (1..ranges.len()).rev() {
        let other = draw::attempt(draw::mix(seed), index as u64) % (index as u64 + 1);
        ranges.swap(index, other as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_and_shuffling_keep_every_byte() {
        let ranges = synthetic(&"w1:50x1-1000".parse().unwrap(), 3);
        let total: u64 = ranges.iter().map(|range| range.size).sum();
        let mut parts = split(ranges.clone(), 100);
        shuffle(&mut parts, 1);
        assert!(parts.iter().all(|part| part.size <= 100));
        assert_eq!(parts.iter().map(|part| part.size).sum::<u64>(), total);
        parts.sort_by(|a, b| (&a.key, a.offset).cmp(&(&b.key, b.offset)));
        assert_eq!(parts, split(ranges, 100));
    }

    #[test]
    fn lines_are_key_offset_size() {
        let expected = Range {
            key: "a b".into(),
            offset: 5,
            size: 7,
        };
        assert_eq!(parse_line("a b\t5\t7"), Some(expected));
        assert_eq!(parse_line("a b\t5"), None);
        assert_eq!(parse_line("a\t5\t7\t8"), None);
    }
}
