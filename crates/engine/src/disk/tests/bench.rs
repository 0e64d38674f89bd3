//! Measurements, not tests: `cargo test --release -p foreload-engine disk::tests::bench -- --ignored --nocapture`.
//!
//! `FORELOAD_BENCH_DIR` names the disk (the default is the temporary directory), `FORELOAD_BENCH_BYTES` how much to
//! write (2 GiB).

use super::*;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A photograph of a common data set.
const LEN: usize = 110_000;
const DEPTH: usize = 32;

fn bench_dir() -> tempfile::TempDir {
    let parent = std::env::var_os("FORELOAD_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    tempfile::tempdir_in(parent).unwrap()
}

/// Runs `work(i)` for every `i < count` on `threads` threads; seconds.
fn on_threads(threads: usize, count: usize, work: impl Fn(usize, &mut Vec<u8>) + Sync) -> f64 {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![0; LEN + 12_288];
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        break;
                    }
                    work(i, &mut buffer);
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}

/// Writes everything back and drops it from the page cache.
fn make_cold(dir: &Path) {
    for path in files(dir) {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Reads the pages that a record lies in, past the page cache and without looking at them.
fn read_direct(file: &File, entry: &Entry, buffer: &mut [u8]) {
    let from = (u64::from(entry.record.offset) + layout::RECORD_HEADER) & !4095;
    let to = entry.record.end().next_multiple_of(4096);
    let start = buffer.as_ptr().align_offset(4096);
    let read = file
        .read_at(&mut buffer[start..start + (to - from) as usize], from)
        .unwrap();
    assert!(read as u64 + from >= entry.record.end());
}

#[test]
#[ignore = "a measurement"]
fn records_of_110_kb() {
    let bytes: u64 = std::env::var("FORELOAD_BENCH_BYTES").map_or(2 << 30, |v| v.parse().unwrap());
    let count = (bytes / LEN as u64) as usize;
    let dir = bench_dir();
    let (mut tier, _) = DiskTier::open(
        dir.path(),
        DiskSettings {
            keep_free_bytes: 0,
            ..DiskSettings::new(16 << 30)
        },
    )
    .unwrap();
    let data = payload(1, LEN);
    let total = (count * LEN) as f64 / 1e6;

    let places: Vec<_> = (0..count as u64)
        .map(|n| tier.reserve(1, key(n), LEN as u64).unwrap())
        .collect();
    let places: Vec<_> = places
        .into_iter()
        .map(|place| std::sync::Mutex::new((Some(place), None)))
        .collect();
    let seconds = on_threads(4, count, |i, _| {
        let mut place = places[i].lock().unwrap();
        let reservation = place.0.take().unwrap();
        place.1 = Some(reservation.write(&data).ok().unwrap());
    });
    places
        .into_iter()
        .for_each(|place| tier.commit(place.into_inner().unwrap().1.unwrap()));
    println!("write, 4 threads: {:.0} MB/s", total / seconds);
    tier.close();

    // Every record once, in no order.
    let stride = (count / 2..)
        .find(|s| (2..=s.isqrt()).all(|d| !s.is_multiple_of(d)) && !count.is_multiple_of(*s))
        .unwrap();
    let entries: Vec<_> = (0..count)
        .map(|i| tier.find(&key((i * stride % count) as u64)).unwrap())
        .collect();
    let direct: std::collections::HashMap<_, _> = files(dir.path())
        .into_iter()
        .map(|path| {
            let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
            (
                path.clone(),
                OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap(),
            )
        })
        .collect();
    let mut ratios = Vec::new();
    let from_disk = || figure("/proc/self/io", "read_bytes") as f64 / 1e6;
    for pair in 0..5 {
        let (mut ours, mut bare) = (0.0, 0.0);
        let mut fetched = [0.0; 2];
        // Whoever comes first finds another disk than who comes second.
        for turn in 0..2 {
            make_cold(dir.path());
            let before = from_disk();
            if (pair + turn) % 2 == 0 {
                ours = on_threads(DEPTH, count, |i, _| {
                    assert!(
                        entries[i]
                            .read(0..LEN as u64, &mut Buffer::new(LEN as u64 + 8192), |_, _| true)
                            .unwrap()
                    )
                });
                fetched[0] = from_disk() - before;
            } else {
                let file = |i: usize| &direct[entries[i].segment().path()];
                bare = on_threads(DEPTH, count, |i, buffer| read_direct(file(i), &entries[i], buffer));
                fetched[1] = from_disk() - before;
            }
        }
        let (ours, bare) = (total / ours, total / bare);
        println!(
            "cold, depth {DEPTH}: ours {ours:.0} MB/s, O_DIRECT {bare:.0} MB/s, ratio {:.2}",
            ours / bare
        );
        println!(
            "    of {total:.0} MB came from the disk: {:.0} and {:.0}",
            fetched[0], fetched[1]
        );
        ratios.push(ours / bare);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "ratio to O_DIRECT: median {:.2} of {:.2}..{:.2}",
        ratios[2], ratios[0], ratios[4]
    );
    on_threads(2, count, |i, _| {
        assert!(
            entries[i]
                .read(0..LEN as u64, &mut Buffer::new(LEN as u64 + 8192), |_, _| true)
                .unwrap()
        )
    });
    let warm = on_threads(2, count, |i, _| {
        assert!(
            entries[i]
                .read(0..LEN as u64, &mut Buffer::new(LEN as u64 + 8192), |_, _| true)
                .unwrap()
        )
    });
    println!("again, 2 threads: {:.0} MB/s", total / warm);
}

/// A figure of this process that the system keeps.
fn figure(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn many() -> DiskSettings {
    DiskSettings {
        keep_free_bytes: 0,
        ..DiskSettings::new(4 << 30)
    }
}

const COUNT: u64 = 10_000_000;
const DIR: &str = "FORELOAD_BENCH_OPEN";

#[test]
#[ignore = "a measurement"]
fn ten_million_records() {
    let dir = bench_dir();
    let (mut tier, _) = DiskTier::open(dir.path(), many()).unwrap();
    let mut busy = Duration::ZERO;
    for n in 0..COUNT {
        let start = Instant::now();
        let reservation = tier.reserve(1, key(n), 0).unwrap();
        busy += start.elapsed();
        let written = reservation.write(&[]).ok().unwrap();
        let start = Instant::now();
        tier.commit(written);
        busy += start.elapsed();
        while let Some(chore) = tier.chore() {
            chore.run();
        }
    }
    println!("reserve and commit: {:.0} ns", busy.as_secs_f64() * 1e9 / COUNT as f64);
    drop(tier);
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "disk::tests::bench::child_opens_ten_million_records",
            "--ignored",
            "--nocapture",
        ])
        .env(DIR, dir.path())
        .status();
    assert!(status.unwrap().success());
}

/// In a process of its own, for its memory.
#[test]
#[ignore = "runs as the child of ten_million_records"]
fn child_opens_ten_million_records() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let before = figure("/proc/self/status", "VmRSS");
    let start = Instant::now();
    let (mut tier, report) = DiskTier::open(Path::new(&dir), many()).unwrap();
    println!("open: {:.2?}", start.elapsed());
    assert_eq!((report.records, report.unsealed), (COUNT, 0));
    let resident = figure("/proc/self/status", "VmRSS") - before;
    println!(
        "resident: {} MB, {} MB at most",
        resident / 1000,
        figure("/proc/self/status", "VmHWM") / 1000
    );
    let start = Instant::now();
    assert!((0..COUNT).all(|n| tier.contains(&key(n))));
    println!("find: {:.0} ns", start.elapsed().as_secs_f64() * 1e9 / COUNT as f64);
    let start = Instant::now();
    tier.protect(2, (0..COUNT).map(key));
    println!("protect: {:.0} ns", start.elapsed().as_secs_f64() * 1e9 / COUNT as f64);
}
