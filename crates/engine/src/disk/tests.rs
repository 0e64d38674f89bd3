//! What the tier promises, one test each; the larger ones are in the submodules.

mod bench;
mod conformance;
mod crash;
mod faults;
#[cfg(feature = "shuttle")]
mod interleave;
mod model;

use super::*;
use std::collections::HashSet;

/// A key that looks like a hash.
fn key(n: u64) -> [u8; 16] {
    let mixed = (u128::from(n) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (mixed ^ mixed >> 61).to_le_bytes()
}

/// The bytes that belong to key `n`, which differ from those of any other.
fn payload(n: u64, len: usize) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

fn settings(capacity_bytes: u64, segment_bytes: u64) -> DiskSettings {
    DiskSettings {
        segment_bytes: Some(segment_bytes),
        keep_free_bytes: 0,
        ..DiskSettings::new(capacity_bytes)
    }
}

fn put(tier: &mut DiskTier, job: u64, n: u64, len: usize) -> Result<(), Refusal> {
    let reservation = tier.reserve(job, key(n), len as u64)?;
    match reservation.write(&payload(n, len)) {
        Ok(written) => tier.commit(written),
        Err(failed) => panic!("{}", failed.error),
    }
    Ok(())
}

fn read(entry: &Entry) -> Result<Vec<u8>, ReadError> {
    let mut out = vec![0xaa; entry.len() as usize];
    // In parts that no length is a multiple of.
    let mut put = |at: u64, bytes: &[u8]| {
        out[at as usize..][..bytes.len()].copy_from_slice(bytes);
        true
    };
    assert!(entry.read(0..entry.len(), &mut Buffer::new(0), &mut put)?);
    let (from, to) = (entry.len() / 3, entry.len() - entry.len() / 5);
    let mut part = vec![0xaa; (to - from) as usize];
    let mut put = |at: u64, bytes: &[u8]| {
        part[at as usize..][..bytes.len()].copy_from_slice(bytes);
        true
    };
    assert!(entry.read(from..to, &mut Buffer::new(0), &mut put)?);
    assert!(part == out[from as usize..to as usize], "a part is part of the whole");
    Ok(out)
}

fn holds(tier: &DiskTier, n: u64, len: usize) -> bool {
    tier.find(&key(n))
        .is_some_and(|entry| read(&entry).unwrap() == payload(n, len))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    segments::list(dir).unwrap().into_iter().map(|(_, path)| path).collect()
}

/// What a kill at this moment would leave.
fn snapshot(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for path in files(dir) {
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

#[test]
fn a_record_is_found_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, report) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    assert_eq!(report.records, 0);
    for n in 0..100 {
        put(&mut tier, 1, n, n as usize * 37).unwrap();
    }
    let (used, count) = (tier.used_bytes(), tier.len());
    drop(tier);
    let (tier, report) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    assert_eq!((report.unsealed, report.records, report.damaged.len()), (0, 100, 0));
    assert_eq!((tier.used_bytes(), tier.len()), (used, count));
    let on_disk: u64 = files(dir.path()).iter().map(|f| f.metadata().unwrap().len()).sum();
    assert_eq!(used, on_disk);
    assert!((0..100).all(|n| holds(&tier, n, n as usize * 37)));
    let found: HashSet<_> = tier.records().collect();
    assert_eq!(found, (0..100).map(|n| (key(n), n * 37)).collect());
}

/// Lengths of records of which some are packed and some lie on pages of their own.
fn mixed(n: u64) -> usize {
    [100, 262_137, 262_144, 300_001, 9000, 500_000][n as usize % 6] + n as usize / 6
}

#[test]
fn large_records_lie_on_pages_of_their_own_and_are_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(64 << 20, 2 << 20)).unwrap();
    for n in 0..60 {
        put(&mut tier, 1, n, mixed(n)).unwrap();
        assert!(holds(&tier, n, mixed(n)));
        let record = tier.find(&key(n)).unwrap().record;
        assert!(mixed(n) < 262_144 || u64::from(record.offset) % 4096 == 0);
    }
    // Those of a killed process have no footers.
    let killed = snapshot(dir.path());
    let (survivor, report) = DiskTier::open(killed.path(), settings(64 << 20, 2 << 20)).unwrap();
    assert_eq!((report.unsealed > 0, report.records, report.lost_bytes), (true, 60, 0));
    assert!((0..60).all(|n| holds(&survivor, n, mixed(n))));
    let used = tier.used_bytes();
    drop(tier);
    let on_disk: u64 = files(dir.path()).iter().map(|f| f.metadata().unwrap().len()).sum();
    assert_eq!(used, on_disk);
    let (tier, report) = DiskTier::open(dir.path(), settings(64 << 20, 2 << 20)).unwrap();
    assert_eq!((report.unsealed, report.records, tier.used_bytes()), (0, 60, used));
    assert!((0..60).all(|n| holds(&tier, n, mixed(n))));
}

#[test]
fn a_file_system_that_cannot_go_around_the_page_cache_is_used_through_it() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        // Those of the first time are found, and read so, too.
        let (mut tier, report) = DiskTier::open(dir.path(), settings(64 << 20, 2 << 20)).unwrap();
        tier.segments.is_like_old_tmpfs();
        assert!(report.damaged.is_empty());
        for n in report.records..report.records + 30 {
            put(&mut tier, 1, n, mixed(n)).unwrap();
        }
        assert!((0..tier.len()).all(|n| holds(&tier, n, mixed(n))));
    }
    // What was written through it is read around it.
    let (tier, report) = DiskTier::open(dir.path(), settings(64 << 20, 2 << 20)).unwrap();
    assert_eq!((report.records, report.unsealed), (60, 0));
    assert!((0..60).all(|n| holds(&tier, n, mixed(n))));
}

#[test]
fn a_mixture_of_records_costs_no_more_than_the_policy_reckons() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(32 << 20, 1 << 20)).unwrap();
    let usable = tier.usable_bytes();
    let mut held = std::collections::VecDeque::new();
    let mut reckoned = 0;
    for n in 0..1500 {
        let len = mixed(n);
        while reckoned + record_bytes(len as u64) > usable {
            let (old, bytes): (u64, u64) = held.pop_front().unwrap();
            tier.forget(&key(old));
            reckoned -= bytes;
        }
        put(&mut tier, 1, n, len).expect("there is room as long as the policy thinks so");
        held.push_back((n, record_bytes(len as u64)));
        reckoned += record_bytes(len as u64);
        assert!(tier.used_bytes() <= tier.capacity_bytes());
        tier.run_chores();
    }
}

#[test]
fn each_record_costs_what_the_policy_reckons() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(1 << 20, 1 << 17);
    let (mut tier, _) = DiskTier::open(dir.path(), settings).unwrap();
    let usable = tier.usable_bytes();
    let (mut reckoned, mut n) = (0, 0);
    loop {
        let len = 1000 + n as usize * 7919 % 5000;
        reckoned += len as u64 + foreload_plan::scheduler::HEADER_BYTES + foreload_plan::scheduler::ENTRY_BYTES;
        if reckoned > usable {
            break;
        }
        put(&mut tier, 1, n, len).expect("there is room as long as the policy thinks so");
        n += 1;
    }
    assert!(tier.used_bytes() <= tier.capacity_bytes());
}

#[test]
fn a_policy_that_evicts_what_is_oldest_is_never_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    let usable = tier.usable_bytes();
    let mut held = std::collections::VecDeque::new();
    let mut reckoned = 0;
    for n in 0..2000 {
        let len = 500 + n as usize * 7919 % 5000;
        while reckoned + len as u64 + 64 > usable {
            let (old, len): (u64, u64) = held.pop_front().unwrap();
            tier.forget(&key(old));
            reckoned -= len + 64;
        }
        put(&mut tier, 1, n, len).unwrap();
        held.push_back((n, len as u64));
        reckoned += len as u64 + 64;
        tier.run_chores();
    }
    assert_eq!(tier.len(), held.len() as u64);
    assert!(held.iter().all(|(n, len)| holds(&tier, *n, *len as usize)));
}

#[test]
fn a_directory_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    match DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)) {
        Err(DiskError::Locked { owner, .. }) => assert_eq!(owner, std::process::id().to_string()),
        _ => panic!("two owners"),
    }
    drop(tier);
    assert!(DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).is_ok());
}

#[test]
fn a_record_is_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    let reservation = tier.reserve(1, key(1), 10).unwrap();
    assert!(tier.find(&key(1)).is_none());
    assert_eq!(tier.reserve(1, key(1), 10).err(), Some(Refusal::Exists));
    let written = reservation.write(&payload(1, 10)).ok().unwrap();
    tier.commit(written);
    assert_eq!(tier.reserve(2, key(1), 10).err(), Some(Refusal::Exists));
    tier.forget(&key(1));
    assert!(tier.find(&key(1)).is_none() && tier.is_empty());
    put(&mut tier, 1, 1, 10).unwrap();
    assert!(holds(&tier, 1, 10));
}

#[test]
fn a_record_forgotten_while_it_is_written_does_not_appear() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    let reservation = tier.reserve(1, key(1), 10).unwrap();
    tier.forget(&key(1));
    let written = reservation.write(&payload(1, 10)).ok().unwrap();
    tier.commit(written);
    assert!(tier.find(&key(1)).is_none() && tier.is_empty());
}

#[test]
fn a_record_forgotten_before_its_segment_is_sealed_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    for n in 0..3 {
        put(&mut tier, 1, n, 100).unwrap();
    }
    tier.forget(&key(1));
    drop(tier);
    let (tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    assert!(tier.len() == 2 && holds(&tier, 0, 100) && holds(&tier, 2, 100));
}

#[test]
fn a_segment_is_not_evicted_under_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(80_000, 10_000)).unwrap();
    let reservation = tier.reserve(1, key(1), 5000).unwrap();
    tier.unprotect(1);
    for n in 2..40 {
        put(&mut tier, n, n, 5000).unwrap();
        tier.unprotect(n);
    }
    let written = reservation.write(&payload(1, 5000)).ok().unwrap();
    tier.commit(written);
    assert!(holds(&tier, 1, 5000));
}

#[test]
fn segments_of_ended_jobs_make_room_oldest_first_and_those_of_running_jobs_never() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(80_000, 10_000)).unwrap();
    // Four records fill a segment.
    for n in 0..20 {
        put(&mut tier, n / 8, n, 2400).unwrap();
    }
    tier.unprotect(0);
    tier.protect(7, [key(1)]);
    for n in 20..36 {
        put(&mut tier, 9, n, 2400).unwrap();
    }
    // The segment of 0..4 is in use by job 7; that of 4..8 went.
    assert!((0..4).chain(8..36).all(|n| holds(&tier, n, 2400)));
    assert!((4..8).all(|n| !tier.contains(&key(n))));
    assert_eq!(tier.len(), 32);
    assert_eq!(tier.reserve(9, key(99), 2400).err(), Some(Refusal::Full));
    assert!(tier.used_bytes() <= 80_000);
    tier.unprotect(7);
    put(&mut tier, 9, 99, 2400).unwrap();
    assert!(!tier.contains(&key(0)) && holds(&tier, 99, 2400));
    tier.run_chores();
    assert_eq!(files(dir.path()).len() as u64, tier.segments.len());
}

#[test]
fn a_record_larger_than_a_segment_gets_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 14)).unwrap();
    put(&mut tier, 1, 1, 100).unwrap();
    put(&mut tier, 1, 2, 500_000).unwrap();
    put(&mut tier, 1, 3, 100).unwrap();
    assert!(holds(&tier, 2, 500_000) && holds(&tier, 3, 100));
    assert_eq!(tier.reserve(1, key(4), 1 << 20).err(), Some(Refusal::Full));
    assert_eq!(tier.reserve(1, key(4), u64::MAX).err(), Some(Refusal::Full));
    assert_eq!(files(dir.path()).len(), 3);
}

#[test]
fn a_read_goes_on_when_its_segment_is_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 14)).unwrap();
    put(&mut tier, 1, 1, 9000).unwrap();
    put(&mut tier, 1, 2, 9000).unwrap();
    put(&mut tier, 1, 3, 9000).unwrap();
    let (open, closed) = (tier.find(&key(1)).unwrap(), tier.find(&key(2)).unwrap());
    tier.run_chores();
    closed.segment.shut();
    tier.forget(&key(1));
    tier.forget(&key(2));
    tier.run_chores();
    assert_eq!(files(dir.path()).len(), 1);
    assert_eq!(read(&open).unwrap(), payload(1, 9000));
    assert!(matches!(read(&closed), Err(ReadError::Gone { .. })));
}

#[test]
fn few_handles_serve_many_segments() {
    let dir = tempfile::tempdir().unwrap();
    let settings = DiskSettings {
        open_files: 3,
        ..settings(1 << 20, 1 << 14)
    };
    let (mut tier, _) = DiskTier::open(dir.path(), settings).unwrap();
    for n in 0..40 {
        put(&mut tier, 1, n, 9000).unwrap();
    }
    assert_eq!(files(dir.path()).len(), 40);
    for n in (0..40).chain((0..40).rev()) {
        assert!(holds(&tier, n, 9000));
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let ours = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(dir.path())));
        assert!(ours.count() <= 3 + 1, "three segments and the lock");
    }
}

#[test]
fn a_smaller_capacity_evicts_what_is_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 14)).unwrap();
    for n in 0..40 {
        put(&mut tier, 1, n, 9000).unwrap();
    }
    drop(tier);
    let (tier, report) = DiskTier::open(dir.path(), settings(200_000, 1 << 14)).unwrap();
    assert!(report.evicted > 0 && tier.used_bytes() <= 200_000);
    assert!(!tier.contains(&key(0)) && holds(&tier, 39, 9000));
    assert_eq!(files(dir.path()).len() as u64, report.segments);
}

#[test]
fn a_tier_can_be_resized_while_open_and_a_running_job_keeps_what_it_uses() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(200_000, 1 << 14)).unwrap();
    (0..15).for_each(|n| put(&mut tier, 1, n, 9000).unwrap());
    tier.resize(1 << 20).unwrap();
    (15..80).for_each(|n| put(&mut tier, 1, n, 9000).unwrap());
    tier.resize(200_000).unwrap();
    assert!(holds(&tier, 0, 9000) && tier.used_bytes() > 200_000);
    assert_eq!(put(&mut tier, 2, 80, 9000), Err(Refusal::Full));
    tier.unprotect(1);
    put(&mut tier, 2, 80, 9000).unwrap();
    assert!(!tier.contains(&key(0)) && holds(&tier, 80, 9000) && tier.used_bytes() <= 200_000);
    assert!(tier.resize(1).is_err() && tier.capacity_bytes() == 200_000);
}

#[test]
fn a_failed_read_quarantines_the_record_and_no_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    put(&mut tier, 1, 1, 1000).unwrap();
    put(&mut tier, 1, 2, 1000).unwrap();
    let bad = tier.find(&key(1)).unwrap();
    let path = bad.segment().path().to_owned();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[500] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(read(&bad), Err(ReadError::Corrupt { .. })));
    tier.quarantine(&bad);
    assert!(!tier.contains(&key(1)) && holds(&tier, 2, 1000));
    put(&mut tier, 1, 1, 1000).unwrap();
    tier.quarantine(&bad);
    assert!(holds(&tier, 1, 1000));
}

#[test]
fn files_of_others_are_left_alone_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(outside.path(), b"precious").unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("00000001.seg")).unwrap();
    for name in ["notes.txt", "1.seg", "+0000002.seg", "0000000A.seg"] {
        std::fs::write(dir.path().join(name), b"mine").unwrap();
    }
    std::fs::create_dir(dir.path().join("00000003.seg")).unwrap();
    std::fs::write(dir.path().join("ffffffff.seg"), b"").unwrap();
    let (mut tier, report) = DiskTier::open(dir.path(), settings(1 << 20, 1 << 16)).unwrap();
    assert_eq!((report.damaged.len(), report.unsealed), (1, 0));
    assert_eq!(std::fs::read(outside.path()).unwrap(), b"precious");
    assert!(dir.path().join("0000000A.seg").exists() && dir.path().join("1.seg").exists());
    // A directory is no segment, nor is what has no number after its own.
    assert!(dir.path().join("00000003.seg").is_dir() && dir.path().join("ffffffff.seg").exists());
    assert_eq!(put(&mut tier, 1, 1, 10), Ok(()));
}
