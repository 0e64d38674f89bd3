//! Disks that are full or fail, and many threads.

use super::*;
use std::process::Command;
use std::sync::mpsc;

const FULL: &str = "FORELOAD_TEST_FULL_DISK";

#[test]
fn after_an_error_the_tier_refuses_for_a_while_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    put(&mut tier, 1, 1, 1000).unwrap();
    for (kind, refusal) in [
        (io::ErrorKind::StorageFull, Refusal::NoSpace),
        (io::ErrorKind::Other, Refusal::Failing),
    ] {
        let mut failed = tier.reserve(1, key(2), 1000).unwrap().tear(&payload(2, 1000), 500);
        failed.error = kind.into();
        tier.failed(failed);
        assert_eq!(tier.reserve(1, key(2), 1000).err(), Some(refusal));
        assert!(holds(&tier, 1, 1000) && !tier.contains(&key(2)));
        time_passes(&mut tier);
        if refusal == Refusal::NoSpace {
            // First the file system is asked.
            assert_eq!(tier.reserve(1, key(2), 1000).err(), Some(refusal));
            tier.run_chores();
            time_passes(&mut tier);
        }
    }
    put(&mut tier, 1, 2, 1000).unwrap();
    assert!(holds(&tier, 2, 1000) && tier.failures == 0);
}

#[test]
fn room_that_is_to_stay_free_stays_free() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = keeping_free(u64::MAX, dir.path());
    assert_eq!(tier.reserve(1, key(1), 1000).err(), Some(Refusal::NoSpace));
    assert!(files(dir.path()).is_empty());
}

#[test]
fn what_is_being_written_counts_against_what_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = keeping_free(10_000, dir.path());
    tier.segments.has(14_000);
    let writing: Vec<_> = (0..9).map_while(|n| tier.reserve(1, key(n), 1000).ok()).collect();
    assert_eq!(writing.len(), 3);
    // A write finds out what really is free.
    let written = writing.into_iter().map(|place| place.write(&[0; 1000]));
    for written in written.collect::<Vec<_>>() {
        tier.commit(written.ok().unwrap());
    }
    put(&mut tier, 1, 9, 1000).unwrap();
}

#[test]
fn nothing_is_evicted_for_an_error_while_others_fit() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    for n in 0..300 {
        put(&mut tier, 1, n, 1000).unwrap();
    }
    tier.unprotect(1);
    let (large, small) = (
        tier.reserve(2, key(500), 1000).unwrap(),
        tier.reserve(2, key(501), 1000).unwrap(),
    );
    let mut failed = large.tear(&payload(500, 1000), 500);
    failed.error = io::ErrorKind::StorageFull.into();
    tier.failed(failed);
    tier.commit(small.write(&payload(501, 1000)).ok().unwrap());
    assert_eq!(tier.reserve(2, key(502), 1000).err(), Some(Refusal::NoSpace));
    time_passes(&mut tier);
    // However long the answer takes.
    for _ in 0..3 {
        assert_eq!(tier.reserve(2, key(502), 1000).err(), Some(Refusal::NoSpace));
    }
    tier.run_chores();
    put(&mut tier, 2, 502, 1000).unwrap();
    assert_eq!(tier.len(), 302);
}

#[test]
fn a_disk_that_stays_full_is_not_tried_with_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = keeping_free(u64::MAX / 2, dir.path());
    for n in 0..20 {
        assert_eq!(tier.reserve(1, key(n), 1000).err(), Some(Refusal::NoSpace));
        tier.run_chores();
        time_passes(&mut tier);
    }
    // Others went.
    tier.settings.keep_free_bytes = 0;
    put(&mut tier, 1, 1, 1000)
        .or_else(|_| {
            time_passes(&mut tier);
            put(&mut tier, 1, 1, 1000)
        })
        .unwrap();
}

fn keeping_free(keep_free_bytes: u64, dir: &Path) -> DiskTier {
    let settings = DiskSettings {
        keep_free_bytes,
        ..settings(1 << 20, 1 << 16)
    };
    DiskTier::open(dir, settings).unwrap().0
}

fn time_passes(tier: &mut DiskTier) {
    if let Some((until, refusal)) = tier.paused {
        tier.paused = Some((until - 64 * PAUSE, refusal));
    }
}

#[test]
fn a_write_of_another_length_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    let failed = tier.reserve(1, key(1), 1000).unwrap().write(&[0; 999]).err().unwrap();
    assert_eq!(failed.error.kind(), io::ErrorKind::InvalidInput);
    tier.failed(failed);
    put(&mut tier, 1, 1, 1000).unwrap();
}

/// Not a test by itself: fills a disk until writes fail.
#[test]
#[ignore = "runs as the child of the tests with full disks"]
fn child_fills_a_disk() {
    let Some(dir) = std::env::var_os(FULL) else { return };
    let dir = PathBuf::from(dir);
    let small = || settings(64 << 20, 8 << 20);
    let (mut tier, _) = DiskTier::open(&dir, small()).unwrap();
    let (mut held, mut errors) = (Vec::new(), Vec::new());
    for n in 0..200 {
        // The tier knows how much is free: others have taken it since.
        tier.segments.has(u64::MAX);
        match tier.reserve(1, key(n), 70_000) {
            Ok(reservation) => match reservation.write(&payload(n, 70_000)) {
                Ok(written) => {
                    tier.commit(written);
                    held.push(n);
                }
                Err(failed) => {
                    errors.push(failed.error.kind());
                    tier.failed(failed);
                }
            },
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::NoSpace | Refusal::Failing));
                tier.paused = None;
            }
        }
        if errors.len() == 3 {
            break;
        }
    }
    assert_eq!(errors.len(), 3, "the disk did not fill up");
    assert!(!held.is_empty() && held.iter().all(|n| holds(&tier, *n, 70_000)));
    assert_eq!(tier.len(), held.len() as u64);
    drop(tier);
    let (tier, report) = DiskTier::open(&dir, small()).unwrap();
    assert!(report.damaged.is_empty());
    assert!(held.iter().all(|n| holds(&tier, *n, 70_000)));
    assert_eq!(tier.len(), held.len() as u64, "nothing half-written is found");
    println!("full: {errors:?}");
}

fn fill(shell: &str, dir: &Path) -> std::process::Output {
    Command::new("sh")
        .args(["-c", shell, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "disk::tests::faults::child_fills_a_disk",
            "--ignored",
            "--nocapture",
        ])
        .env(FULL, dir)
        .output()
        .unwrap()
}

#[test]
fn a_write_cut_short_by_the_system_leaves_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = fill("ulimit -f 1200; trap '' XFSZ; exec \"$@\"", dir.path());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("FileTooLarge"), "{said}");
    // The next process finds the same.
    let (tier, report) = DiskTier::open(dir.path(), settings(64 << 20, 8 << 20)).unwrap();
    assert!(report.damaged.is_empty() && !tier.is_empty());
}

#[test]
fn a_full_file_system_leaves_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=2m none \"$FORELOAD_TEST_FULL_DISK\"";
    let probe = Command::new("unshare")
        .args(["-rm", "sh", "-c", mount])
        .env(FULL, dir.path())
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        let required = std::env::var("FORELOAD_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|need| need.trim() == "userns"),
            "user namespaces are required"
        );
        println!("skipped: no user namespace to mount a small file system in");
        return;
    }
    let output = fill(
        &format!("exec unshare -rm sh -c '{mount}; exec \"$@\"' sh \"$@\""),
        dir.path(),
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("StorageFull"), "{said}");
}

#[test]
fn threads_write_and_read_while_segments_come_and_go() {
    enum Done {
        Written(Result<Written, FailedWrite>),
        Read(u64, Result<Vec<u8>, ReadError>),
    }
    const LEN: usize = 5000;
    let dir = tempfile::tempdir().unwrap();
    let settings = DiskSettings {
        open_files: 2,
        ..settings(400_000, 40_000)
    };
    let (mut tier, _) = DiskTier::open(dir.path(), settings).unwrap();
    let (done, results) = mpsc::channel::<Done>();
    let (mut reads, mut writes, mut gone) = (0, 0, 0);
    std::thread::scope(|scope| {
        let mut in_flight = 0;
        for n in 0..2000u64 {
            // Each write is of a job that has ended, so that the tier turns over many times.
            let reservation = tier.reserve(n, key(n), LEN as u64).unwrap();
            tier.unprotect(n);
            let sender = done.clone();
            scope.spawn(move || sender.send(Done::Written(reservation.write(&payload(n, LEN)))).unwrap());
            in_flight += 1;
            for back in [1, 20, 60] {
                if let Some(entry) = n.checked_sub(back).and_then(|n| tier.find(&key(n))) {
                    let sender = done.clone();
                    scope.spawn(move || sender.send(Done::Read(n - back, read(&entry))).unwrap());
                    in_flight += 1;
                }
            }
            while let Some(chore) = tier.chore() {
                scope.spawn(move || chore.run());
            }
            while in_flight > if n == 1999 { 0 } else { 16 } {
                in_flight -= 1;
                match results.recv().unwrap() {
                    Done::Written(Ok(written)) => {
                        writes += 1;
                        tier.commit(written);
                    }
                    Done::Written(Err(failed)) => panic!("{}", failed.error),
                    Done::Read(n, Ok(bytes)) => {
                        reads += 1;
                        assert!(bytes == payload(n, LEN), "record {n}");
                    }
                    Done::Read(_, Err(ReadError::Gone { .. })) => gone += 1,
                    Done::Read(n, Err(error)) => panic!("record {n}: {error}"),
                }
            }
            assert!(tier.used_bytes() <= 400_000);
        }
    });
    assert_eq!(writes, 2000);
    assert!(reads > 1000, "{reads} reads, {gone} came too late");
    // What was evicted left the index, too.
    let places = tier.index.iter().count() as u64;
    assert!(places < 2000 && places >= tier.len(), "{places}");
}
