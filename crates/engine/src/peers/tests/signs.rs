//! A peer that has to fetch something first says that it is there; who asks waits as long as it does.

use super::bundles::{Asker, run};
use super::*;
use foreload_store::ErrorKind;
use std::time::Instant;

const OFTEN: Duration = Duration::from_millis(20);

/// A place that shows that it is there.
fn showing(lens: &[u64]) -> Place {
    Place::new(
        Limits {
            sign: OFTEN,
            ..limits()
        },
        lens,
    )
}

/// Lets come what comes later.
fn open(place: &Place) {
    place.opens.store(true, Ordering::Relaxed);
    place.settle();
}

/// The next line that isn't empty.
fn line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') || line == b"\r\n" {
        if line == b"\r\n" {
            line.clear();
        }
        let mut next = [0];
        stream.read_exact(&mut next).expect("a byte");
        line.push(next[0]);
    }
    String::from_utf8(line).expect("text").trim_end().to_owned()
}

#[test]
fn an_answer_that_takes_long_is_announced_and_comes_behind_that() {
    let place = showing(&[1000]);
    let mut stream = place.connect();
    let begun = Instant::now();
    place.ask(&mut stream, LATER);
    for _ in 0..3 {
        assert_eq!(line(&mut stream), "HTTP/1.1 102 Processing");
    }
    assert!(begun.elapsed() >= 3 * OFTEN, "it says so no more often than it should");
    open(&place);
    let mut next = line(&mut stream);
    while next.contains(" 102 ") {
        next = line(&mut stream);
    }
    // What was asked for has one byte, as far as the test knows: it is told that it isn't so.
    assert_eq!(next, "HTTP/1.1 400 Bad Request");
}

#[test]
fn who_goes_away_meanwhile_is_noticed() {
    let place = showing(&[1000]);
    let mut stream = place.connect();
    place.ask(&mut stream, NEVER);
    assert_eq!(line(&mut stream), "HTTP/1.1 102 Processing");
    drop(stream);
    wait_for("it is withdrawn", || place.withdrawn.load(Ordering::Relaxed) == 1);
}

/// The client of the engine, as long as a peer may be silent and longer.
#[test]
fn the_client_waits_for_a_peer_that_is_there_and_not_for_one_that_is_silent() {
    for (sign, comes) in [(PROGRESS / 4, true), (LONG, false)] {
        let place = Place::new(Limits { sign, ..limits() }, &[1000, 2000]);
        run(async {
            let mut asker = Asker::new(&place);
            asker.ask_alone(0, LATER, 1000);
            asker.ask_as(100, &[(LATER, 1000), (1, 2000)]);
            assert_eq!(asker.next().await, (1, Some(Ok(bytes(1, 2000)))), "at once");
            let begun = Instant::now();
            tokio::time::sleep(PROGRESS + PROGRESS / 4).await;
            assert_eq!(
                comes,
                asker.landed.is_empty(),
                "nothing has ended for want of an answer"
            );
            open(&place);
            let ends = [asker.next().await.1, asker.next().await.1];
            assert!(begun.elapsed() > PROGRESS);
            let is_there = |end: &Option<Result<Vec<u8>, ErrorKind>>| *end == Some(Ok(bytes(0, 1000)));
            match comes {
                true => assert!(
                    ends.iter().all(is_there),
                    "{:?}",
                    ends.map(|end| end.map(|it| it.is_ok()))
                ),
                false => assert_eq!(ends, [Some(Err(ErrorKind::Timeout)), Some(Err(ErrorKind::Timeout))]),
            }
        });
    }
}
