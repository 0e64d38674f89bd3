//! The server as its users see it, read by the bare client and by plain sockets.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use foreload_testkit::bare::{self, Range, Report, http};
use foreload_testkit::bucket::{Bucket, Class, Error, Fault, Keys, Kind, Profile, Settings};

const RULE: &str = "w1:200x1-90000";

fn start(change: impl FnOnce(&mut Settings)) -> Bucket {
    let mut settings = Settings {
        synthetic: vec![RULE.parse().unwrap()],
        ..Settings::default()
    };
    change(&mut settings);
    Bucket::start(settings).unwrap()
}

fn read(bucket: &Bucket, ranges: Vec<Range>, connections: usize) -> Result<Report, bare::Error> {
    http::run(settings_for(bucket, connections), ranges)
}

fn settings_for(bucket: &Bucket, connections: usize) -> http::Settings {
    let keys = bucket.keys();
    let mut settings = http::Settings::new(&bucket.endpoint(), "bench", &keys.access_key, &keys.secret_key);
    settings.connections = connections;
    settings.memory_bytes = 1 << 20;
    settings.ca_pem = bucket.ca_pem().map(str::to_owned);
    settings
}

fn ranges() -> Vec<Range> {
    bare::synthetic(&RULE.parse().unwrap(), 0)
}

fn expected_crc(bucket: &Bucket, ranges: &[Range]) -> String {
    let crc = ranges.iter().fold(0, |crc, range| {
        let object = bucket.read("bench", &range.key).unwrap().unwrap();
        let part = &object[range.offset as usize..(range.offset + range.size) as usize];
        crc ^ crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, part) as u32
    });
    format!("{crc:08x}")
}

/// Sends a request for an object over a plain socket.
fn ask(address: SocketAddr, key: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET /bench/{key} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    stream
}

#[test]
fn the_bare_client_gets_the_bytes_and_the_server_counts_them() {
    let bucket = start(|_| {});
    let ranges = ranges();
    let bytes: u64 = ranges.iter().map(|range| range.size).sum();
    let report = read(&bucket, ranges.clone(), 16).unwrap();
    assert_eq!((report.requests, report.bytes), (200, bytes));
    assert_eq!(report.crc32c, expected_crc(&bucket, &ranges));
    let counts = bucket.counts();
    assert_eq!(
        (counts.of(Class::Get), counts.total(), counts.bytes_sent),
        (200, 200, bytes)
    );
    assert_eq!((counts.connections.total, counts.connections.peak), (16, 16));
    assert!(counts.objects.values().all(|object| object.gets == 1));
    bucket.reset_counts();
    assert_eq!(bucket.counts().total(), 0);
    // Several times its memory goes through a connection, and each body to a place of its own.
    let mut settings = settings_for(&bucket, 2);
    settings.fresh = true;
    let fresh = http::run(settings, ranges.clone()).unwrap();
    assert_eq!((fresh.requests, fresh.bytes, fresh.crc32c), (200, bytes, report.crc32c));
}

#[test]
fn tls_carries_the_same_bytes() {
    let bucket = start(|settings| settings.tls = true);
    assert!(bucket.endpoint().starts_with("https://127.0.0.1:"));
    let report = read(&bucket, ranges(), 4).unwrap();
    assert_eq!(report.crc32c, expected_crc(&bucket, &ranges()));
}

#[test]
fn parts_of_shards_are_their_members() {
    let rule = "s:2x7x100-5000,tar".parse::<foreload_testkit::bucket::Rule>().unwrap();
    let bucket = start(|settings| settings.synthetic = vec![rule.clone()]);
    let ranges = bare::synthetic(&rule, 0);
    assert_eq!(ranges.len(), 14);
    let report = read(&bucket, ranges.clone(), 3).unwrap();
    assert_eq!(report.crc32c, expected_crc(&bucket, &ranges));
}

#[test]
fn the_rate_of_a_connection_and_of_all_is_kept() {
    let object = || {
        vec![Range {
            key: "big/00000000.bin".into(),
            offset: 0,
            size: 2_000_000,
        }]
    };
    let big = "big:1x2MB".parse().unwrap();
    let bucket = start(|settings| {
        settings.synthetic = vec![big];
        settings.profile = Profile {
            connection_bytes_per_s: 20_000_000,
            ..Profile::default()
        };
    });
    // 2 MB at 20 MB/s take 0.1 s; a slow machine takes longer, no machine is faster.
    let report = read(&bucket, object(), 1).unwrap();
    assert!(report.seconds > 0.095, "{}", report.seconds);
    bucket.set_profile(Profile {
        total_bytes_per_s: 20_000_000,
        ..Profile::default()
    });
    let four: Vec<Range> = (0..4).flat_map(|_| object()).collect();
    let report = read(&bucket, four, 4).unwrap();
    assert!(report.seconds > 0.3, "{}", report.seconds);
}

#[test]
fn every_fault_that_harms_a_read_is_noticed_by_who_checks() {
    let bucket = start(|_| {});
    let ranges = ranges();
    let right = expected_crc(&bucket, &ranges);
    for kind in ["status", "truncate", "reset", "short", "whole", "rate_limit,per_s=1"] {
        bucket.add_fault(Fault::parse(&format!("kind={kind}")).unwrap());
        assert!(read(&bucket, ranges.clone(), 8).is_err(), "{kind}");
        bucket.clear_faults();
    }
    for kind in [Kind::Flip, Kind::Changed] {
        bucket.add_fault(Fault {
            nth: Some(100),
            ..Fault::new(kind)
        });
        let report = read(&bucket, ranges.clone(), 8).unwrap();
        assert_ne!(report.crc32c, right, "{kind:?}");
        bucket.clear_faults();
    }
    assert_eq!(read(&bucket, ranges, 8).unwrap().crc32c, right);
}

#[test]
fn a_reset_in_a_body_follows_its_first_bytes() {
    let bucket = start(|settings| {
        settings.keys = Keys {
            anonymous: true,
            ..Keys::default()
        }
    });
    bucket.put("bench", "object", vec![7; 100_000]).unwrap();
    for (kind, at) in [(Kind::Reset, 0.5), (Kind::Truncate, 0.5)] {
        bucket.add_fault(Fault {
            at: Some(at),
            times: Some(1),
            ..Fault::new(kind)
        });
        let mut stream = ask(bucket.address(), "object");
        let mut received = 0;
        let mut buffer = vec![0; 1 << 20];
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break None,
                Ok(count) => received += count,
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(end, (kind == Kind::Reset).then_some(ErrorKind::ConnectionReset));
        assert!((50_000..51_000).contains(&received), "{kind:?}: {received}");
        assert_eq!(bucket.counts().in_flight.now, 0);
    }
}

#[test]
fn a_slow_head_is_slow_and_a_draw_repeats() {
    let slow = |bucket: &Bucket| {
        bucket.reset_counts();
        let begin = Instant::now();
        let mut byte = [0];
        ask(bucket.address(), "w1/00000000.bin").read_exact(&mut byte).unwrap();
        begin.elapsed()
    };
    let bucket = start(|settings| {
        settings.keys = Keys {
            anonymous: true,
            ..Keys::default()
        };
        settings.faults = vec![Fault {
            delay_ms: Some(80.0),
            ..Fault::new(Kind::Slow)
        }];
    });
    assert!(slow(&bucket) >= Duration::from_millis(80));
    // Half of the objects are hit, and the same half each time the counts begin anew.
    bucket.clear_faults();
    bucket.add_fault(Fault {
        share: Some(0.5),
        ..Fault::new(Kind::Status)
    });
    let hit = || -> Vec<bool> {
        bucket.reset_counts();
        let ask = |index| {
            let mut head = [0; 12];
            ask(bucket.address(), &format!("w1/{index:08}.bin"))
                .read_exact(&mut head)
                .unwrap();
            &head == b"HTTP/1.1 500"
        };
        (0..40).map(ask).collect()
    };
    let first = hit();
    assert!(first.contains(&true) && first.contains(&false));
    assert_eq!(first, hit());
}

#[test]
fn only_loopback_is_bound() {
    let settings = Settings {
        listen: "0.0.0.0:0".parse().unwrap(),
        ..Settings::default()
    };
    assert!(matches!(Bucket::start(settings), Err(Error::NotForTests(_))));
}

#[test]
fn a_server_ends_when_it_is_dropped() {
    let bucket = start(|_| {});
    let address = bucket.address();
    let idle = TcpStream::connect(address).unwrap();
    drop(bucket);
    assert!(TcpStream::connect(address).is_err());
    drop(idle);
}
