//! Readers, an evicting writer and the pool of handles, in every order that the scheduler of tests comes upon.

use super::*;
use shuttle::thread;

fn tier(dir: &Path) -> DiskTier {
    let few = DiskSettings {
        open_files: 1,
        ..settings(64 << 10, 8 << 10)
    };
    DiskTier::open(dir, few).unwrap().0
}

#[test]
fn interleave_readers_share_one_handle_that_moves_between_segments() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = 5000;
    shuttle::check_random(
        move || {
            let dir = tempfile::tempdir_in(dir.path()).unwrap();
            let mut tier = tier(dir.path());
            (0..4).for_each(|n| put(&mut tier, 1, n, bytes).unwrap());
            let readers: Vec<_> = (0..3u64)
                .map(|reader| {
                    let entries: Vec<_> = (0..4)
                        .map(|n| ((n + reader) % 4, tier.find(&key((n + reader) % 4)).unwrap()))
                        .collect();
                    thread::spawn(move || {
                        for (n, entry) in entries {
                            assert_eq!(read(&entry).unwrap(), payload(n, bytes));
                        }
                    })
                })
                .collect();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        },
        200,
    );
}

#[test]
fn interleave_what_is_evicted_under_a_reader_is_gone_or_right_never_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = 5000;
    shuttle::check_random(
        move || {
            let dir = tempfile::tempdir_in(dir.path()).unwrap();
            let mut tier = tier(dir.path());
            (0..8).for_each(|n| put(&mut tier, 1, n, bytes).unwrap());
            let entries: Vec<_> = (0..8).map(|n| (n, tier.find(&key(n)).unwrap())).collect();
            let reader = thread::spawn(move || {
                for (n, entry) in entries {
                    match read(&entry) {
                        Ok(found) => assert_eq!(found, payload(n, bytes)),
                        Err(error) => assert!(matches!(error, ReadError::Gone { .. }), "{error}"),
                    }
                }
            });
            tier.unprotect(1);
            let mut writers = Vec::new();
            for n in 8..16 {
                let reservation = tier.reserve(2, key(n), bytes as u64).unwrap();
                while let Some(chore) = tier.chore() {
                    writers.push(thread::spawn(move || {
                        chore.run();
                        None
                    }));
                }
                writers.push(thread::spawn(move || Some(reservation.write(&payload(n, bytes)))));
            }
            for writer in writers {
                match writer.join().unwrap() {
                    Some(Ok(written)) => tier.commit(written),
                    Some(Err(failed)) => panic!("{}", failed.error),
                    None => {}
                }
            }
            reader.join().unwrap();
            assert!((8..16).all(|n| holds(&tier, n, bytes)));
            assert!(tier.used_bytes() <= tier.capacity_bytes());
        },
        200,
    );
}
