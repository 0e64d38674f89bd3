//! What is said to a peer, whatever it says and in whatever pieces.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// All that is said until the connection ends.
fn rest(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    // It may be reset, where something was sent that nobody wants.
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// What is said to some bytes, and nothing after them.
fn said(place: &Place, request: &[u8]) -> String {
    let mut stream = place.connect();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    rest(&mut stream)
}

fn first_line(said: &str) -> &str {
    said.lines().next().unwrap_or("")
}

#[test]
fn a_request_that_comes_in_two_parts_is_understood_wherever_it_is_cut() {
    let place = Place::new(limits(), &[100, 5000]);
    let mut peer = place.connect();
    for cut in 1..place.request(0).len() {
        let request = place.request(cut as u64 % 2);
        peer.write_all(&request[..cut]).expect("sent");
        place.settle();
        peer.write_all(&request[cut..]).expect("sent");
        place.compare(&mut peer, cut as u64 % 2);
    }
}

#[test]
fn samples_of_all_lengths_are_whole_by_both_ways_over_one_connection() {
    let lens = [
        0, 1, 2, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1_000_000, 1_048_576, 5_000_001,
    ];
    for sendfile_from in [0, 4097, 65_536, u64::MAX] {
        let place = Place::new(
            Limits {
                sendfile_from,
                ..limits()
            },
            &lens,
        );
        let mut peer = place.connect();
        for turn in 0..3 * lens.len() {
            place.read(&mut peer, (turn * 5 % lens.len()) as u64);
        }
    }
}

#[test]
fn the_clients_own_requests_are_answered_and_its_checks_pass() {
    let lens = [1000, 300_000, 9_000_000];
    let place = Place::new(limits(), &lens);
    let trust = Trust {
        secret: SECRET.to_owned(),
        tls: false,
    };
    let source = source(place.address, &trust).expect("a source");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        reach(&source).await.expect("it answers");
        let digest = our_dataset();
        for (sample, len) in (0..).zip(lens) {
            let (deadline, mut got) = (Instant::now() + Duration::from_secs(30), Vec::new());
            let fetched = source
                .fetch(&key(digest, 3, [sample]), 0..len, None, deadline, &mut got)
                .await;
            let said = fetched.expect("fetched").etag.as_deref().and_then(Said::of);
            let crc = crate::scatter::crc32c(&got);
            assert_eq!(
                said,
                Some(Said {
                    crc,
                    was_fetched: false
                })
            );
            assert!(got == bytes(sample, len));
            // No part of a sample is had.
            let part = source
                .fetch(&key(digest, 3, [sample]), 0..len - 1, None, deadline, &mut got)
                .await;
            assert!(part.is_err());
        }
    });
}

#[test]
fn what_is_no_request_of_a_peers_is_refused_and_ends_the_connection() {
    let place = Place::new(limits(), &[100]);
    let mut peer = place.connect();
    // Who asks stays, and so does the connection where it is known where the next request begins.
    peer.write_all(b"GET /peer/ab/1 HTTP/1.1\r\n\r\n").expect("sent");
    assert_eq!(hear(&mut peer).expect("an answer").status, 403);
    place.read(&mut peer, 0);
    for (request, status) in [
        (&b"PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello"[..], 405),
        (b"GET /?list HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (&[b'a'; 17 << 10], 400),
        (&[0; 200_000], 400),
    ] {
        let mut peer = place.connect();
        let _ = peer.write_all(request);
        let said = rest(&mut peer);
        assert!(first_line(&said).starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        assert!(said.ends_with("connection: close\r\n\r\n"), "{said}");
    }
    let close = String::from_utf8(place.request(0)).expect("text");
    let close = close.replace("host:", "connection: close\r\nhost:");
    let said = said(&place, close.as_bytes());
    // One that ends what it says at once may be taken for gone.
    assert!(
        said.is_empty() || first_line(&said) == "HTTP/1.1 206 Partial Content",
        "{said}"
    );
    let mut peer = place.connect();
    peer.write_all(&place.request(0)).expect("sent");
    place.compare(&mut peer, 0);
}

#[test]
fn who_says_nothing_or_never_ends_its_request_is_shown_out() {
    let silence = Duration::from_millis(200);
    let place = Place::new(
        Limits {
            silence,
            progress: Duration::ZERO,
            ..limits()
        },
        &[100],
    );
    for begin in [&b""[..], b"GET /peer"] {
        let mut peer = place.connect();
        peer.write_all(begin).expect("sent");
        assert_eq!(rest(&mut peer), "");
    }
    // Nor does it help to say a little now and then.
    let mut peer = place.connect();
    peer.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
    wait_for("it ends", || {
        let _ = peer.write_all(b"G");
        !matches!(peer.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    });
}

/// What may happen to a request under way.
#[derive(Clone, Debug)]
enum Change {
    Flip(usize, u8),
    Cut(usize, usize),
    Insert(usize, Vec<u8>),
    Repeat(usize, usize),
}

impl Change {
    fn any() -> impl Strategy<Value = Change> {
        prop_oneof![
            (any::<usize>(), 1..=255_u8).prop_map(|(at, bits)| Change::Flip(at, bits)),
            (any::<usize>(), 1..200_usize).prop_map(|(at, len)| Change::Cut(at, len)),
            (any::<usize>(), prop::collection::vec(any::<u8>(), 1..50)).prop_map(|(at, new)| Change::Insert(at, new)),
            (any::<usize>(), 1..200_usize).prop_map(|(at, len)| Change::Repeat(at, len)),
        ]
    }

    fn make(&self, bytes: &mut Vec<u8>) {
        let place = |at: usize, len: usize| {
            let at = at % (bytes.len() + 1);
            at..(at + len).min(bytes.len())
        };
        match self {
            Change::Flip(_, _) if bytes.is_empty() => {}
            Change::Flip(at, bits) => {
                let at = at % bytes.len();
                bytes[at] ^= bits;
            }
            Change::Cut(at, len) => drop(bytes.drain(place(*at, *len))),
            Change::Insert(at, new) => drop(bytes.splice(place(*at, 0), new.iter().copied())),
            Change::Repeat(at, len) => {
                let part = bytes[place(*at, *len)].to_vec();
                let at = place(*at, 0);
                drop(bytes.splice(at, part));
            }
        }
    }
}

fn cases(most: u32) -> TestRunner {
    let config = Config::default();
    TestRunner::new(Config {
        cases: config.cases.min(most).max(config.cases / 8),
        failure_persistence: None,
        ..config
    })
}

#[test]
fn proptest_no_bytes_get_a_sample_or_hold_the_connection() {
    // Sealed with another secret, so there is nothing that they may get.
    let place = Place::new(limits(), &[100]);
    let stranger = Place {
        key: hmac::Key::new(hmac::HMAC_SHA256, b"guessed by somebody else"),
        slots: place.slots.clone(),
        lendable: Arc::clone(&place.lendable),
        arena: Arc::clone(&place.arena),
        withdrawn: Arc::default(),
        busy_ns: Arc::default(),
        opens: Arc::default(),
        back: unbounded_channel().1,
        stop: None,
        thread: None,
        next: Cell::new(1),
        address: place.address,
    };
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(Change::any(), 0..6).prop_map(move |changes| {
            let mut bytes = [stranger.request(0), stranger.request(0)].concat();
            changes.iter().for_each(|change| change.make(&mut bytes));
            bytes
        }),
    ];
    let said_to = |bytes: Vec<u8>| {
        let said = said(&place, &bytes);
        prop_assert!(!said.contains("HTTP/1.1 2"), "{said}");
        Ok(())
    };
    cases(256).run(&bytes, said_to).expect("no answer");
    let mut peer = place.connect();
    place.read(&mut peer, 0);
}

#[test]
fn proptest_a_sealed_request_of_which_anything_that_counts_is_changed_gets_nothing() {
    let place = Place::new(limits(), &[100]);
    let changes = (any::<prop::sample::Index>(), 1..=255_u8);
    let said_to = |(at, bits): (prop::sample::Index, u8)| {
        let mut request = place.request(0);
        let text = String::from_utf8(request.clone()).expect("text");
        // The first line but for its end, and what it is sealed with.
        let line = 0..text.find(" HTTP/1.1").expect("there");
        let seal = text.find("Foreload").expect("there")..text.len() - 4;
        let counts: Vec<usize> = line.chain(seal).collect();
        let at = *at.get(&counts);
        let changed = request[at] ^ bits;
        // Digits of a seal are the same in upper case.
        prop_assume!(!changed.eq_ignore_ascii_case(&request[at]));
        request[at] = changed;
        let said = said(&place, &request);
        prop_assert!(!said.contains("HTTP/1.1 2"), "{at}: {said}");
        Ok(())
    };
    cases(256).run(&changes, said_to).expect("no answer");
}
