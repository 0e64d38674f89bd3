//! A process that is killed while it writes, and the next one.

use super::*;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

const DIR: &str = "FORELOAD_TEST_DISK_DIR";

fn len(n: u64) -> usize {
    // A quarter of them lie on pages of their own.
    1000 + (n as usize * 7919) % 60_000 + if n.is_multiple_of(4) { 262_144 } else { 0 }
}

fn small() -> DiskSettings {
    settings(64 << 20, 4 << 20)
}

/// Not a test by itself: runs in the child process, until it is killed.
#[test]
#[ignore = "runs as the child of a_killed_writer_loses_nothing_that_was_committed"]
fn child_writes_until_killed() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let (tier, _) = DiskTier::open(Path::new(&dir), small()).unwrap();
    let first = tier.len() * 10;
    let tier = Arc::new(Mutex::new(tier));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let tier = Arc::clone(&tier);
            std::thread::spawn(move || {
                for n in (first + writer..).step_by(4) {
                    let reserved = tier.lock().unwrap().reserve(1, key(n), len(n) as u64);
                    if let Ok(reservation) = reserved {
                        let written = reservation.write(&payload(n, len(n))).ok().unwrap();
                        tier.lock().unwrap().commit(written);
                        println!("\nhas {n}");
                        if let Some(chore) = { tier.lock().unwrap().chore() } {
                            chore.run();
                        }
                    }
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
fn a_killed_writer_loses_nothing_that_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut had, mut unsealed) = (HashSet::new(), 0);
    for round in 1..=4u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "disk::tests::crash::child_writes_until_killed",
                "--ignored",
                "--nocapture",
            ])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let note = |line: String, had: &mut HashSet<u64>| {
            // The last line may be cut short; a whole one is followed by an empty one.
            if let Some(n) = line.strip_prefix("has ") {
                had.insert(n.parse().unwrap());
            }
        };
        while had.len() < round as usize * 150 {
            note(
                lines.next().expect("the child writes until it is killed").unwrap(),
                &mut had,
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        rest.into_iter().rev().skip(1).for_each(|line| note(line, &mut had));

        let (tier, report) = DiskTier::open(dir.path(), small()).unwrap();
        assert!(report.damaged.is_empty(), "{:?}", report.damaged);
        unsealed += report.unsealed;
        let lost: Vec<_> = had.iter().filter(|n| !holds(&tier, **n, len(**n))).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} are lost");
        // Written but not committed when killed: at most one for each writer.
        assert!(tier.len() >= had.len() as u64 && tier.len() <= had.len() as u64 + 4 * round + round);
    }
    // A kill may hit the moment between two segments, but not each time.
    assert!(unsealed > 0, "no segment was left without a footer");
}
