//! Reads of local files with plain threads: whole files, or ranges of one file with `O_DIRECT`.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};

use super::{Clock, Error, Range, Report, touched};

/// What `O_DIRECT` wants offsets, sizes and memory to be multiples of.
const BLOCK: u64 = 4096;

/// Reads ranges of files below `root` with `threads` threads, each file opened for each range:
/// what any reader of a file system must do at least.
///
/// # Errors
///
/// The first failure of each thread ends it; one of them is returned.
pub fn files(root: &Path, ranges: &[Range], threads: usize) -> Result<Report, Error> {
    run(ranges, threads, |range, memory| {
        let name = || Error::io(range.key.clone());
        let file = File::open(root.join(&range.key)).map_err(name())?;
        let slot = &mut memory[..range.size as usize];
        file.read_exact_at(slot, range.offset).map_err(name())?;
        Ok(crc(slot))
    })
}

/// Reads ranges of one file, past the page cache, with `depth` reads at a time. The ranges' keys
/// are ignored.
///
/// # Errors
///
/// As for [`files`]; also when the file system doesn't know `O_DIRECT`.
pub fn direct(path: &Path, ranges: &[Range], depth: usize) -> Result<Report, Error> {
    let name = || Error::io(path.display().to_string());
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(name())?;
    run(ranges, depth, |range, memory| {
        let first = range.offset / BLOCK * BLOCK;
        let end = (range.offset + range.size).next_multiple_of(BLOCK);
        let aligned = memory.as_ptr().align_offset(BLOCK as usize);
        let slot = &mut memory[aligned..aligned + (end - first) as usize];
        let mut filled = 0;
        let within = (range.offset - first) as usize;
        let needed = within + range.size as usize;
        while filled < needed {
            // Only the last read of the file is short, and what is needed ends before it.
            let count = file
                .read_at(&mut slot[filled..], first + filled as u64)
                .map_err(name())?;
            if count == 0 {
                return Err(name()(std::io::ErrorKind::UnexpectedEof.into()));
            }
            filled += count;
        }
        Ok(crc(&slot[within..needed]))
    })
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn run(
    ranges: &[Range],
    threads: usize,
    read: impl Fn(&Range, &mut [u8]) -> Result<u32, Error> + Sync,
) -> Result<Report, Error> {
    let largest = ranges.iter().map(|range| range.size).max().unwrap_or(0);
    let memory = (largest + 3 * BLOCK) as usize;
    let next = AtomicUsize::new(0);
    let ready = Barrier::new(threads);
    let clock: OnceLock<Clock> = OnceLock::new();
    let work = || -> Result<u32, Error> {
        let mut memory = touched(memory);
        ready.wait();
        clock.get_or_init(Clock::start);
        let mut combined = 0;
        while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            combined ^= read(range, &mut memory)?;
        }
        Ok(combined)
    };
    let results: Vec<Result<u32, Error>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let panicked = || Err(Error::Setting("a reading thread panicked".into()));
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| panicked()))
            .collect()
    });
    let mut combined = 0;
    for result in results {
        combined ^= result?;
    }
    let bytes = ranges.iter().map(|range| range.size).sum();
    let clock = clock
        .get()
        .ok_or_else(|| Error::Setting("no thread was started".into()))?;
    Ok(Report::new(threads, ranges.len() as u64, bytes, clock, combined))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_reading_give_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let mut content = vec![0; 1_000_001];
        crate::draw::fill(1, &mut content);
        let path = directory.path().join("file");
        std::fs::write(&path, &content).unwrap();
        let ranges: Vec<Range> = [(0, 1), (4095, 2), (999_000, 1001), (5000, 123_456)]
            .map(|(offset, size)| Range {
                key: "file".into(),
                offset,
                size,
            })
            .into();
        let expected = ranges.iter().fold(0, |crc_so_far, range| {
            let (from, to) = (range.offset as usize, (range.offset + range.size) as usize);
            crc_so_far ^ crc(&content[from..to])
        });
        let plain = files(directory.path(), &ranges, 3).unwrap();
        assert_eq!(plain.crc32c, format!("{expected:08x}"));
        match direct(&path, &ranges, 2) {
            Ok(direct) => assert_eq!(direct.crc32c, plain.crc32c),
            // A tmpfs has no O_DIRECT.
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(22) => {
                let required = std::env::var("FORELOAD_REQUIRE").unwrap_or_default();
                assert!(
                    !required.split(',').any(|need| need.trim() == "odirect"),
                    "FORELOAD_REQUIRE names odirect, but the file system has none"
                );
                eprintln!("skipped: the file system has no O_DIRECT");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_range_past_the_end_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), b"abc").unwrap();
        let range = Range {
            key: "file".into(),
            offset: 1,
            size: 3,
        };
        assert!(files(directory.path(), &[range], 2).is_err());
    }
}
