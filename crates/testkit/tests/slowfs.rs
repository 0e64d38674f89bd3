//! The slow file system shows its source, slowly. Needs `/dev/fuse` and the right to mount; skipped
//! aloud without, unless `FORELOAD_REQUIRE` names `fuse`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use foreload_testkit::bare::{Range, local};
use foreload_testkit::draw;
use foreload_testkit::slowfs::{Mount, Settings};

fn mount(source: &Path, target: &Path, settings: Settings) -> Option<Mount> {
    match Mount::new(source, target, settings) {
        Ok(mount) => Some(mount),
        Err(error) => {
            let required = std::env::var("FORELOAD_REQUIRE").unwrap_or_default();
            assert!(
                !required.split(',').any(|name| name.trim() == "fuse"),
                "FORELOAD_REQUIRE names fuse: {error}"
            );
            eprintln!("SKIPPED: can't mount: {error}");
            None
        }
    }
}

fn source(files: u64, size: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("sub")).unwrap();
    for index in 0..files {
        let mut content = vec![0; size];
        draw::fill(index, &mut content);
        fs::write(directory.path().join(format!("sub/{index:03}")), content).unwrap();
    }
    directory
}

#[test]
fn it_shows_its_source_and_unmounts() {
    let (source, target) = (source(30, 300_000), tempfile::tempdir().unwrap());
    let fast = Settings {
        open_delay: Duration::ZERO,
        read_delay: Duration::ZERO,
        request_bytes_per_s: 0,
        bytes_per_s: 0,
        keep_cache: false,
    };
    let Some(mount) = mount(source.path(), target.path(), fast) else {
        return;
    };
    let mut names: Vec<_> = fs::read_dir(target.path().join("sub"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names.len(), 30);
    for name in names {
        let path = Path::new("sub").join(name);
        assert_eq!(
            fs::read(target.path().join(&path)).unwrap(),
            fs::read(source.path().join(&path)).unwrap()
        );
    }
    assert_eq!(fs::metadata(target.path().join("sub/000")).unwrap().len(), 300_000);
    let missing = fs::read(target.path().join("none")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert!(fs::write(target.path().join("sub/000"), b"").is_err());
    mount.unmount().unwrap();
    assert!(!target.path().join("sub").exists());
}

#[test]
fn delays_overlap_and_the_rate_does_not() {
    let (source, target) = (source(40, 100_000), tempfile::tempdir().unwrap());
    let delay = Duration::from_millis(20);
    let slow = Settings {
        open_delay: delay,
        read_delay: delay,
        request_bytes_per_s: 0,
        bytes_per_s: 20_000_000,
        keep_cache: false,
    };
    let Some(mount) = mount(source.path(), target.path(), slow) else {
        return;
    };
    let ranges: Vec<Range> = (0..40)
        .map(|index| Range {
            key: format!("sub/{index:03}"),
            offset: 0,
            size: 100_000,
        })
        .collect();
    let one = local::files(target.path(), &ranges[..10], 1).unwrap();
    assert!(one.seconds > 10.0 * 0.040, "{}", one.seconds);
    let begin = Instant::now();
    let many = local::files(target.path(), &ranges, 40).unwrap();
    // 4 MB at 20 MB/s; one after the other the delays alone would take 1.6 s.
    assert!(many.seconds > 0.15, "{}", many.seconds);
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    assert_eq!(many.crc32c, local::files(source.path(), &ranges, 4).unwrap().crc32c);
    mount.unmount().unwrap();
}
