//! Walks a shard from header to header.
//!
//! Between two headers lies a member's data, which is not needed. A window of the shard is fetched at a header; the
//! headers inside it cost nothing more, and the next one outside begins the next window. How large a window is depends
//! on what was found: with small members a long one holds many headers and saves round trips; with large members a
//! short one saves bytes. Skipping pays from about the bytes that a connection delivers during a round trip.
//!
//! Small members make a walk read everything. With a [`Spool`], the shard is then fetched in parts, some ahead of the walk, and what was read is there
//! for the first epoch. A member that is larger than a part is skipped, and the walk goes on with windows until it has met enough small ones again.

use super::group::{Grouper, Sample};
use super::header::{self, BLOCK, Entry, MAX_NAME_BYTES, MAX_PAX_BYTES};
use super::sidecar;
use crate::source::{ObjectMeta, Source};
use crate::spool::{self, Spool};
use crate::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use std::time::Duration;
use tokio::time::Instant;

// 30 ms at 35 MB/s is 1 MB: reading on is as fast as asking again.
const LONG_WINDOW: u64 = 1 << 20;
// Header, a small member such as a label, and the next header.
const SHORT_WINDOW: u64 = 4 << 10;
/// So many bytes of small members, or so many in a row, and the rest of the shard is taken to be like them.
const PACKED_BYTES: u64 = LONG_WINDOW;
const PACKED_MEMBERS: u32 = 32;
/// What gzip and zstd write first.
const PACKERS: [&[u8]; 2] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd]];
/// Most members in one shard.
const MAX_MEMBERS: u64 = 100_000_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a shard holds.
pub(crate) struct Scanned {
    pub samples: Vec<Sample>,
    /// Whether it has the mark at its end, as far as that was looked at.
    pub is_ended: bool,
}

/// Samples of a shard, from the `.idx` file beside it or from its headers; what is read for that goes to a spool, so many parts at a time.
pub(crate) async fn scan(
    source: &Source,
    shard: &ObjectMeta,
    index_key: Option<&str>,
    spool: Option<(&Spool, usize)>,
) -> Result<Scanned> {
    let context = |e: Error| e.with_object(source.url_of(&shard.key));
    if let Some(key) = index_key {
        let (text, _) = source.read(key, 1 << 30, Instant::now() + TIMEOUT).await?;
        let samples = sidecar::parse(&text, shard.size).map_err(|e| e.with_object(source.url_of(key)))?;
        // Labels are in the shard, and reading them costs as much as reading the headers.
        if !samples.iter().any(|s| s.fields.iter().any(|f| f.name == "cls")) {
            return Ok(Scanned {
                samples,
                is_ended: true,
            });
        }
    }
    let reader = Reader {
        source,
        shard,
        start: 0,
        bytes: Vec::new(),
        window: LONG_WINDOW,
        small: (PACKED_BYTES, PACKED_MEMBERS),
        parts: spool
            .filter(|(spool, _)| spool.admit(shard))
            .map(|(spool, most)| Parts::new(spool, most)),
    };
    walk(reader).await.map_err(context)
}

/// Where a walk has come to, for its errors.
#[derive(Default)]
struct Place {
    /// The header that is looked at.
    header: u64,
    /// The file that it announces, once that is known.
    member: Option<String>,
    /// The file before it.
    before: Option<String>,
}

impl Place {
    fn explain(&self, error: Error) -> Error {
        // What the source says of its own troubles has another place and another remedy.
        if error.kind() != ErrorKind::Corrupt {
            return error;
        }
        let at = self.header;
        let place = match (&self.member, &self.before) {
            (Some(member), _) => format!("member {member:?}, whose header is at byte {at}"),
            (None, Some(before)) => format!("the header at byte {at}, after member {before:?}"),
            (None, None) => format!("the header at byte {at}"),
        };
        error
            .with_place(place)
            .with_remedy("write or copy the shard again, or leave it out by a pattern")
    }
}

async fn walk(reader: Reader<'_>) -> Result<Scanned> {
    let mut place = Place::default();
    step_through(reader, &mut place).await.map_err(|e| place.explain(e))
}

async fn step_through(mut reader: Reader<'_>, place: &mut Place) -> Result<Scanned> {
    let (mut grouper, mut is_ended) = (Grouper::default(), false);
    let (mut at, mut path, mut size_override) = (0, None::<String>, None::<u64>);
    for members in 0.. {
        if members > MAX_MEMBERS {
            return Err(Error::invalid(format!(
                "the tar archive has over {MAX_MEMBERS} members"
            )));
        }
        place.header = at;
        // Some writers leave out the two blocks at the end.
        if reader.shard.size == at {
            break;
        }
        if reader.shard.size < at.saturating_add(BLOCK) {
            return Err(Error::corrupt("the tar archive is cut off: it ends within a block"));
        }
        let block = reader.block(at).await?;
        if at == 0 && PACKERS.iter().any(|mark| block.starts_with(mark)) {
            return Err(
                Error::invalid("it is compressed, whatever its name says, and cannot be read in random order")
                    .with_remedy("store it uncompressed: images hardly shrink anyway"),
            );
        }
        let entry = header::parse(&block)?;
        let data = at + BLOCK;
        let size = match &entry {
            Entry::End => {
                is_ended = true;
                break;
            }
            // What came before is for this one, whatever it is.
            Entry::File { name, size } => {
                let name = path.take().or_else(|| name.clone());
                let named = name.ok_or_else(|| Error::corrupt("the tar archive is damaged: a name is not UTF-8"))?;
                place.member = Some(named);
                size_override.take().unwrap_or(*size)
            }
            Entry::Other { size } => {
                path = None;
                size_override.take().filter(|_| *size > 0).unwrap_or(*size)
            }
            Entry::LongName { size } | Entry::Pax { size } | Entry::Aside { size } => *size,
        };
        let end = data.checked_add(size).filter(|&end| end <= reader.shard.size);
        let end = end.ok_or_else(|| Error::corrupt("the tar archive is damaged: a member ends behind the archive"))?;
        match entry {
            // Old archives mark directories by a trailing slash only.
            Entry::File { .. } if place.member.as_ref().is_some_and(|name| name.ends_with('/')) => {}
            Entry::File { .. } => {
                let name = place.member.as_deref().unwrap_or_default();
                grouper.member(name, data, size)?;
                if name.ends_with(".cls") && size <= 20 {
                    let text = reader.range(data, size).await?;
                    if let Some(label) = std::str::from_utf8(text).ok().and_then(|t| t.trim().parse().ok()) {
                        grouper.label(label);
                    }
                }
                reader.learn(size);
            }
            Entry::LongName { .. } => {
                let text = reader.limited(data, size, MAX_NAME_BYTES).await?;
                path = header::text(text).map(str::to_owned);
            }
            Entry::Pax { .. } => {
                let (name, size) = header::pax(reader.limited(data, size, MAX_PAX_BYTES).await?)?;
                path = name.or(path);
                size_override = size.or(size_override);
            }
            Entry::Other { .. } | Entry::Aside { .. } | Entry::End => {}
        }
        place.before = place.member.take().or(place.before.take());
        at = end
            .checked_next_multiple_of(BLOCK)
            .ok_or_else(|| Error::corrupt("the tar archive is too large"))?;
    }
    Ok(Scanned {
        samples: grouper.finish(),
        is_ended,
    })
}

/// A window of the shard.
struct Reader<'a> {
    source: &'a Source,
    shard: &'a ObjectMeta,
    start: u64,
    bytes: Vec<u8>,
    window: u64,
    /// Bytes and number of the small members since the last large one.
    small: (u64, u32),
    /// Where it is fetched in parts.
    parts: Option<Parts<'a>>,
}

/// A shard that goes to a spool in parts.
struct Parts<'a> {
    spool: &'a Spool,
    /// Those under way, in order.
    underway: FuturesOrdered<BoxFuture<'a, Result<()>>>,
    /// The part after the last that was asked for, and the one after the last that is there. Those before are there too, but for what was skipped.
    asked: u64,
    there: u64,
    /// How many are under way at a time, and at most. The first one is alone: it tells how large the members are.
    ahead: usize,
    most_ahead: usize,
}

impl<'a> Parts<'a> {
    fn new(spool: &'a Spool, most_ahead: usize) -> Self {
        Parts {
            spool,
            underway: FuturesOrdered::new(),
            asked: 0,
            there: 0,
            ahead: 1,
            most_ahead,
        }
    }

    /// Calls off what is under way: it lies in a member that is skipped.
    fn pause(&mut self) {
        self.underway = FuturesOrdered::new();
        (self.asked, self.ahead) = (self.there, 1);
    }

    /// Waits until all parts of a range are there. Ranges go forward; what lies between two of them, beyond what was asked for, is skipped.
    async fn reach(&mut self, source: &'a Source, shard: &'a ObjectMeta, at: u64, end: u64) -> Result<()> {
        let first = at / spool::PART;
        if first > self.asked {
            self.pause();
            (self.asked, self.there) = (first, first);
        }
        let all = shard.size.div_ceil(spool::PART);
        while self.there * spool::PART < end {
            while self.asked < all && self.underway.len() < self.ahead {
                self.underway
                    .push_back(Box::pin(self.spool.fill(source, shard, self.asked)));
                self.asked += 1;
            }
            self.underway.next().await.transpose()?;
            self.there += 1;
            self.ahead = (2 * self.ahead).min(self.most_ahead);
        }
        Ok(())
    }
}

impl Reader<'_> {
    async fn block(&mut self, at: u64) -> Result<[u8; 512]> {
        let bytes = self.range(at, BLOCK).await?;
        bytes
            .try_into()
            .map_err(|_| Error::new(ErrorKind::Bug, "a block has 512 bytes"))
    }

    async fn limited(&mut self, at: u64, length: u64, limit: u64) -> Result<&[u8]> {
        if length > limit {
            return Err(Error::corrupt(format!(
                "the tar archive is damaged: a name or record has {length} bytes"
            )));
        }
        self.range(at, length).await
    }

    /// Bytes of the shard; fetches a new window where the present one does not hold them.
    async fn range(&mut self, at: u64, length: u64) -> Result<&[u8]> {
        let inside = at >= self.start && at + length <= self.start + self.bytes.len() as u64;
        if !inside {
            self.bytes.clear();
            if !self.spooled(at, length).await? {
                let end = at.saturating_add(length.max(self.window)).min(self.shard.size);
                let deadline = Instant::now() + TIMEOUT;
                let etag = self.shard.etag.as_deref();
                self.source
                    .fetch(&self.shard.key, at..end, etag, deadline, &mut self.bytes)
                    .await?;
            }
            self.start = at;
        }
        let from = (at - self.start) as usize;
        self.bytes
            .get(from..from + length as usize)
            .ok_or_else(|| Error::corrupt("the tar archive ends inside a header"))
    }

    /// Takes bytes from the spool, if the shard goes there, and if that can still be written to.
    async fn spooled(&mut self, at: u64, length: u64) -> Result<bool> {
        let is_packed = self.small.0 >= PACKED_BYTES || self.small.1 >= PACKED_MEMBERS;
        let Some(parts) = self.parts.as_mut().filter(|_| is_packed) else {
            return Ok(false);
        };
        let end = at.saturating_add(length.max(SHORT_WINDOW)).min(self.shard.size);
        let reached = parts.reach(self.source, self.shard, at, end).await;
        match reached.and_then(|()| parts.spool.look(self.shard, at..end, &mut self.bytes)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Closed => {
                self.parts = None;
                self.bytes.clear();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// A large member makes the next window short, a small one long. Behind one that is larger than a part, parts wait for enough small ones.
    fn learn(&mut self, member_size: u64) {
        if member_size > spool::PART {
            self.small = (0, 0);
            if let Some(parts) = &mut self.parts {
                parts.pause();
            }
        } else {
            self.small = (self.small.0.saturating_add(member_size), self.small.1.saturating_add(1));
        }
        if member_size > LONG_WINDOW {
            self.window = SHORT_WINDOW;
        } else if member_size > SHORT_WINDOW * 4 {
            self.window = LONG_WINDOW;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::block;
    use super::*;
    use crate::ObjectRef;
    use crate::source::SourceOptions;
    use crate::spool::PART;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn archive(members: &[(&str, u8, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, kind, data) in members {
            out.extend_from_slice(&block(name, data.len() as u64, *kind));
            out.extend_from_slice(data);
            out.resize(out.len().next_multiple_of(512), 0);
        }
        out.resize(out.len() + 1024, 0);
        out
    }

    fn scan_bytes(bytes: &[u8]) -> Result<Vec<Sample>> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("s.tar"), bytes).unwrap();
        let source = Source::open(directory.path().to_str().unwrap(), &SourceOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let shard = source.head("s.tar", Instant::now() + TIMEOUT).await.unwrap();
            scan(&source, &shard, None, None).await.map(|found| found.samples)
        })
    }

    #[test]
    fn long_names_and_pax_headers_apply_to_the_next_member() {
        let long = format!("{}/x.jpg", "d".repeat(150));
        let members = [
            ("a.jpg", b'0', vec![1; 700]),
            ("a.cls", b'0', b"7\n".to_vec()),
            ("././@LongLink", b'L', [long.as_bytes(), b"\0"].concat()),
            ("truncated", b'0', vec![2; 10]),
            ("pax", b'x', b"13 path=p.png\n".to_vec()),
            ("q", b'0', vec![3; 5]),
            ("dir/", b'5', vec![]),
        ];
        let members: Vec<_> = members.into_iter().collect();
        let samples = scan_bytes(&archive(&members));
        assert!(samples.is_err(), "a PAX record with a wrong length is an error");
        let mut members = members;
        members[4].2 = b"14 path=p.png\n".to_vec();
        let samples = scan_bytes(&archive(&members)).unwrap();
        let bases: Vec<_> = samples.iter().map(|s| s.base.as_str()).collect();
        assert_eq!(bases, ["a", long.trim_end_matches(".jpg"), "p"]);
        assert_eq!(
            (samples[0].label, samples[0].offset, samples[0].fields[1].length),
            (Some(7), 512, 2)
        );
        assert_eq!(samples[2].length, 5);
    }

    #[test]
    fn what_is_said_before_an_entry_of_no_concern_is_not_of_the_next_file() {
        let long = |name: &str| [name.as_bytes(), b"\0"].concat();
        let skipped = format!("skipped/{}", "l".repeat(150));
        let slash_at_100 = format!("{}/dog.jpg", "d".repeat(99));
        let pax = b"14 path=p.png\n10 size=7\n".to_vec();
        for kind in [b'1', b'2', b'3', b'4', b'5', b'6'] {
            for said in [(b'L', long(&skipped)), (b'x', pax.clone()), (b'X', pax.clone())] {
                let samples = scan_bytes(&archive(&[
                    ("a.jpg", b'0', vec![1; 700]),
                    ("said", said.0, said.1),
                    ("skipped", kind, vec![]),
                    ("b.jpg", b'0', vec![2; 10]),
                ]));
                let found: Vec<_> = samples.unwrap().iter().map(|s| (s.base.clone(), s.length)).collect();
                assert_eq!(found, [("a".to_owned(), 700), ("b".to_owned(), 10)]);
            }
        }
        // Its header has the first 100 bytes, which end in a slash; what a link leads to may be said in between.
        let samples = scan_bytes(&archive(&[
            ("said", b'L', long(&slash_at_100)),
            ("said", b'K', long(&skipped)),
            (&slash_at_100[..100], b'0', vec![1; 700]),
            ("old/", b'0', vec![]),
            ("b.jpg", b'0', vec![2; 10]),
        ]));
        let found: Vec<_> = samples.unwrap().iter().map(|s| (s.base.clone(), s.length)).collect();
        assert_eq!(
            found,
            [
                (slash_at_100.trim_end_matches(".jpg").to_owned(), 700),
                ("b".to_owned(), 10)
            ]
        );
    }

    #[test]
    fn an_archive_that_ends_within_a_block_was_cut_off() {
        let whole = archive(&[("a.jpg", b'0', vec![1; 700]), ("a.cls", b'0', b"7\n".to_vec())]);
        let member = 512 + 1024;
        assert_eq!(scan_bytes(&whole[..member]).unwrap().len(), 1);
        assert_eq!(scan_bytes(&whole[..2 * member - 512]).unwrap()[0].label, Some(7));
        for end in [member - 100, member + 10, member + 512 + 2] {
            assert!(scan_bytes(&whole[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_damaged_shard_is_told_by_member_and_byte_with_a_remedy() {
        let long = format!("{}/x.jpg", "d".repeat(150));
        let whole = archive(&[
            ("a.jpg", b'0', vec![1; 700]),
            ("././@LongLink", b'L', [long.as_bytes(), b"\0"].concat()),
            ("truncated", b'0', vec![2; 700]),
        ]);
        // Header and data of the first, then those of the long name.
        let (second, third) = (512 + 1024, 512 + 1024 + 1024);
        let said = |bytes: &[u8]| scan_bytes(bytes).unwrap_err().to_string();
        let mut damaged = whole.clone();
        damaged[second + 1] ^= 1;
        let message = said(&damaged);
        assert!(
            message.contains("s.tar: the tar archive is damaged: the checksum"),
            "{message}"
        );
        assert!(message.contains(&format!("the header at byte {second}, after member \"a.jpg\"")));
        assert!(message.ends_with("(write or copy the shard again, or leave it out by a pattern)"));
        let message = said(&whole[..third + 600]);
        assert!(
            message.contains(&format!("member {long:?}, whose header is at byte {third}")),
            "{message}"
        );
        let message = said(&whole[..third + 100]);
        assert!(
            message.contains(&format!("cut off: it ends within a block: the header at byte {third}")),
            "{message}"
        );
        damaged[1] ^= 1;
        assert!(said(&damaged).contains("does not match: the header at byte 0 ("));
    }

    /// A shard of members of these lengths, scanned with a spool and without, to the same end: which members the spool has, and how many bytes.
    fn spooled(lengths: &[u64]) -> (Vec<bool>, u64) {
        let directory = tempfile::tempdir().unwrap();
        let (mut bytes, mut at) = (Vec::new(), Vec::new());
        for (number, &length) in lengths.iter().enumerate() {
            bytes.extend_from_slice(&block(&format!("{number}.bin"), length, b'0'));
            at.push(bytes.len() as u64);
            bytes.resize((bytes.len() + length as usize).next_multiple_of(512), number as u8);
        }
        std::fs::write(directory.path().join("s.tar"), &bytes).unwrap();
        let source = Source::open(directory.path().to_str().unwrap(), &SourceOptions::default()).unwrap();
        let spool = Spool::new(directory.path(), u64::MAX, Arc::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let shard = source.head("s.tar", Instant::now() + TIMEOUT).await.unwrap();
            let found = scan(&source, &shard, None, Some((&spool, 4))).await.unwrap();
            let plain = scan(&source, &shard, None, None).await.unwrap();
            assert_eq!(found.samples, plain.samples);
            let object = ObjectRef {
                key: shard.key.clone(),
                size: shard.size,
                etag: shard.etag.clone(),
                version: None,
            };
            let has = at.iter().zip(lengths).map(|(&at, &length)| {
                let (range, mut read) = (at..at + length, Vec::new());
                let is_there = spool.read(&object, range.clone(), &mut read).unwrap();
                assert!(!is_there || read == bytes[range.start as usize..range.end as usize]);
                is_there
            });
            let has = has.collect();
            (has, spool.bytes())
        })
    }

    #[test]
    fn behind_a_member_that_is_larger_than_a_part_small_ones_go_to_the_spool_again() {
        for big in [0, 60, 119] {
            let lengths: Vec<u64> = (0..120).map(|n| if n == big { 4 * PART } else { 100_000 }).collect();
            let (has, bytes) = spooled(&lengths);
            assert!(!has[big]);
            let left_out = has.iter().filter(|&&has| !has).count();
            assert!(left_out <= 1 + 11, "{left_out} for {big}");
            // What was asked for ahead may have come before the walk saw that it is passed over.
            assert!(bytes <= 120 * 100_600 + 4 * PART, "{bytes}");
        }
    }

    #[test]
    fn a_compressed_shard_is_told_so() {
        let mut gzip = vec![0x1f, 0x8b, 8, 0];
        gzip.resize(2000, 7);
        let message = scan_bytes(&gzip).unwrap_err().to_string();
        assert!(
            message.contains("it is compressed, whatever its name says"),
            "{message}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_shard_holds_the_same_with_a_spool(kinds in proptest::collection::vec((0..8u8, 0..600_000u64), 1..60)) {
            let lengths: Vec<u64> = kinds
                .iter()
                .map(|&(kind, length)| match kind {
                    0 => PART + 1 + length,
                    1 => PART - 512 * (length % 3),
                    2..5 => length % 3000,
                    _ => length,
                })
                .collect();
            spooled(&lengths);
        }
    }

    #[test]
    fn members_larger_than_a_window_are_skipped() {
        let members: Vec<_> = (0..6).map(|_| ("x", b'0', vec![0; 3_000_000])).collect();
        let names: Vec<String> = (0..6).map(|i| format!("{i}.bin")).collect();
        let members: Vec<_> = members
            .into_iter()
            .zip(&names)
            .map(|((_, k, d), n)| (n.as_str(), k, d))
            .collect();
        let samples = scan_bytes(&archive(&members)).unwrap();
        assert_eq!(samples.len(), 6);
        assert!(
            samples
                .windows(2)
                .all(|w| w[1].offset - w[0].offset == 3_000_000_u64.next_multiple_of(512) + 512)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn proptest_damaged_archives_are_errors_or_fewer_samples(
            edits in prop::collection::vec((0_usize..4096, any::<u8>()), 0..8), end in 0_usize..5000)
        {
            let members = [("a.jpg", b'0', vec![1; 700]), ("pax", b'x', b"14 path=p.png\n".to_vec()), ("b.c", b'0', vec![9; 600])];
            let mut bytes = archive(&members);
            let length = bytes.len();
            edits.iter().for_each(|(at, value)| bytes[at % length] = *value);
            bytes.truncate(end);
            if let Ok(samples) = scan_bytes(&bytes) {
                prop_assert!(samples.iter().all(|s| s.offset + s.length <= bytes.len() as u64));
            }
        }
    }
}
