//! The S3 source against the test bucket: what it reads, what it refuses, what it repeats.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use foreload_store::{Credentials, ErrorKind, Result, Retry, Sink, Source, SourceOptions};
use foreload_testkit::bucket::{Class, Fault, Keys, Kind, Settings};
use foreload_testkit::{Bucket, Profile};
use futures::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

fn options(bucket: &Bucket) -> SourceOptions {
    let keys = bucket.keys();
    let credentials = Credentials::AccessKey {
        id: keys.access_key,
        secret: keys.secret_key,
        token: keys.session_token,
    };
    SourceOptions {
        endpoint: Some(bucket.endpoint()),
        credentials: Some(credentials),
        retry: Retry {
            pause: Duration::from_millis(2),
            ..Retry::default()
        },
        ..SourceOptions::default()
    }
}

fn open(bucket: &Bucket) -> Source {
    Source::open("s3://bench/data", &options(bucket)).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// An ETag as it stands in a header.
fn quoted(etag: String) -> String {
    format!("\"{etag}\"")
}

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 % 251) as u8).collect()
}

async fn keys(source: &Source, prefix: &str) -> Result<Vec<String>> {
    let mut pages = source.list(prefix);
    let mut keys = Vec::new();
    while let Some(page) = pages.next().await {
        keys.extend(page?.into_iter().map(|o| o.key));
    }
    keys.sort();
    Ok(keys)
}

/// Counts what a fetch does to its sink.
#[derive(Default)]
struct Watched {
    bytes: Vec<u8>,
    frames: usize,
    restarts: usize,
}

impl Sink for Watched {
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<()> {
        self.frames += 1;
        Sink::write(&mut self.bytes, at, frame)
    }

    fn restart(&mut self) {
        self.restarts += 1;
        self.bytes.restart();
    }
}

/// Has room for what comes, so that it is read there.
struct Memory {
    bytes: Vec<u8>,
    /// Of them, those that were read to their places.
    straight: usize,
    restarts: usize,
}

impl Memory {
    fn new(length: usize) -> Self {
        Self {
            bytes: vec![0; length],
            straight: 0,
            restarts: 0,
        }
    }
}

impl Sink for Memory {
    fn room(&mut self, at: u64) -> Option<&mut [u8]> {
        // In stretches, as samples lie apart.
        let end = (at as usize / 100_000 + 1) * 100_000;
        let end = end.min(self.bytes.len());
        self.bytes.get_mut(at as usize..end)
    }

    fn filled(&mut self, _at: u64, len: usize) -> Result<()> {
        self.straight += len;
        Ok(())
    }

    fn write(&mut self, at: u64, frame: &[u8]) -> Result<()> {
        self.bytes[at as usize..][..frame.len()].copy_from_slice(frame);
        Ok(())
    }

    fn restart(&mut self) {
        self.restarts += 1;
        self.bytes.fill(0);
    }
}

#[tokio::test]
async fn what_is_read_right_to_its_place_is_what_was_asked_for() {
    let bucket = Bucket::start_default().unwrap();
    let data = body(700_000);
    let etag = quoted(bucket.put("bench", "data/a", data.clone()).unwrap());
    let source = open(&bucket);
    for range in [0..700_000, 0..1, 5..300_000, 99_999..100_001, 650_000..700_000] {
        let mut memory = Memory::new((range.end - range.start) as usize);
        source
            .fetch("a", range.clone(), Some(&etag), soon(), &mut memory)
            .await
            .unwrap();
        let all = &data[range.start as usize..range.end as usize];
        assert!(memory.bytes == all, "{range:?}");
        // What comes with the head is copied.
        let apart = all.len().min(4096);
        assert!(
            memory.straight >= all.len() - apart || all.len() <= 32 << 10,
            "{range:?}"
        );
    }
    assert_eq!(
        bucket.counts().connections.total,
        1,
        "nothing is left on the connection"
    );
    for fault in ["kind=reset,at=0.5", "kind=truncate", "kind=short"] {
        for if_match in [None, Some(etag.as_str())] {
            bucket.clear_faults();
            bucket.add_fault(Fault {
                times: Some(1),
                ..Fault::parse(fault).unwrap()
            });
            let mut memory = Memory::new(700_000);
            let fetched = source.fetch("a", 0..700_000, if_match, soon(), &mut memory).await;
            assert_eq!(fetched.unwrap().attempts, 2, "{fault}");
            assert!(memory.bytes == data, "{fault}");
        }
    }
    bucket.clear_faults();
    bucket.add_fault(Fault::parse("kind=whole").unwrap());
    let mut memory = Memory::new(100_000);
    let whole = source
        .fetch("a", 50_000..150_000, Some(&etag), soon(), &mut memory)
        .await;
    assert_eq!(whole.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_connection_that_brings_more_than_it_said_is_used_no_more() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/data", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let (mut request, mut read) = (vec![0; 1 << 16], 0);
                loop {
                    read += match stream.read(&mut request[read..]).await {
                        Ok(0) | Err(_) => return,
                        Ok(count) => count,
                    };
                    if !request[..read].ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    read = 0;
                    let head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 100000\r\nContent-Range: bytes 0-99999/100000\r\n\r\n";
                    let answer = [head.as_bytes(), &[1; 100_000], b"HTTP/1.1 206 Partial Content\r\n"].concat();
                    if stream.write_all(&answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let source = Source::open(&url, &SourceOptions::default()).unwrap();
    for _ in 0..3 {
        let mut memory = Memory::new(100_000);
        source.fetch("a", 0..100_000, None, soon(), &mut memory).await.unwrap();
        assert!(memory.bytes == [1; 100_000] && memory.straight > 90_000);
    }
    assert_eq!(connections.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_range_arrives_byte_for_byte() {
    let bucket = Bucket::start_default().unwrap();
    let data = body(3_000_000);
    let put = quoted(bucket.put("bench", "data/a b/ü+#?%.bin", data.clone()).unwrap());
    let source = open(&bucket);
    let key = "a b/ü+#?%.bin";
    let meta = source.head(key, soon()).await.unwrap();
    assert_eq!((meta.size, meta.etag.as_deref()), (3_000_000, Some(put.as_str())));
    for range in [0..1, 0..3_000_000, 5..5, 1_234_567..2_999_999, 2_999_999..3_000_000] {
        let mut bytes = Vec::new();
        let fetched = source
            .fetch(key, range.clone(), Some(&put), soon(), &mut bytes)
            .await
            .unwrap();
        assert_eq!(bytes, data[range.start as usize..range.end as usize]);
        assert_eq!(fetched.bytes, range.end - range.start);
        if !range.is_empty() {
            assert_eq!(
                (fetched.etag, fetched.object_size),
                (Some(put.clone()), Some(3_000_000))
            );
        }
    }
    let counts = bucket.counts();
    assert_eq!(counts.connections.total, 1, "the connection is used again");
    assert_eq!(counts.of(Class::Get), 4, "an empty range needs no request");
}

#[tokio::test]
async fn a_listing_finds_every_object_once() {
    let synthetic = vec![
        "data/flat:2500x10".parse().unwrap(),
        "data/deep:3000x10,classes=7".parse().unwrap(),
    ];
    let bucket = Bucket::start(Settings {
        synthetic,
        ..Settings::default()
    })
    .unwrap();
    for key in ["data/x & <y>.txt", "data/empty/", "data/a//b", "other/z"] {
        bucket.put("bench", key, body(3)).unwrap();
    }
    let source = open(&bucket);
    let all = keys(&source, "").await.unwrap();
    assert_eq!(all.len(), 5502);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    for key in ["x & <y>.txt", "a//b", "flat/00002499.bin", "deep/c0006/00002995.bin"] {
        assert!(all.iter().any(|k| k == key), "{key} in {:?}", &all[..9]);
    }
    assert_eq!(keys(&source, "deep/c0003/").await.unwrap().len(), 429);
    let level = source.list_level("deep/").await.unwrap();
    assert_eq!((level.prefixes.len(), level.objects.len()), (7, 0));
    assert_eq!(keys(&source, "nothing/").await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_listed_etag_is_sent_back_as_it_came() {
    let bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/a", body(10)).unwrap();
    let source = open(&bucket);
    let listed = source.list("").next().await.unwrap().unwrap().remove(0);
    source
        .fetch("a", 0..10, listed.etag.as_deref(), soon(), &mut Vec::new())
        .await
        .unwrap();
    bucket.put("bench", "data/a", body(11)).unwrap();
    let error = source
        .fetch("a", 0..10, listed.etag.as_deref(), soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    let text = error.to_string();
    assert!(
        text.contains("s3://bench/data/a [bytes 0..10]") && text.contains("--update"),
        "{text}"
    );
}

#[tokio::test]
async fn what_is_wrong_for_good_is_said_at_once() {
    let bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/a", body(10)).unwrap();
    let kind = async |source: &Source, key: &str, range| {
        source
            .fetch(key, range, None, soon(), &mut Vec::new())
            .await
            .unwrap_err()
            .kind()
    };
    let source = open(&bucket);
    assert_eq!(kind(&source, "none", 0..1).await, ErrorKind::NotFound);
    assert_eq!(kind(&source, "a", 5..11).await, ErrorKind::Changed);
    assert_eq!(kind(&source, "a", 10..11).await, ErrorKind::Changed);
    let wrong = Credentials::AccessKey {
        id: "testkit".into(),
        secret: "no".into(),
        token: None,
    };
    let source = Source::open(
        "s3://bench/data",
        &SourceOptions {
            credentials: Some(wrong),
            ..options(&bucket)
        },
    )
    .unwrap();
    assert_eq!(kind(&source, "a", 0..1).await, ErrorKind::Denied);
    source
        .update_credentials(&options(&bucket).credentials.unwrap())
        .unwrap();
    source.fetch("a", 0..1, None, soon(), &mut Vec::new()).await.unwrap();
    let before = bucket.counts().total();
    assert_eq!(kind(&source, "none", 0..1).await, ErrorKind::NotFound);
    assert_eq!(
        bucket.counts().total() - before,
        1,
        "an error that stays is not repeated"
    );
    let anonymous = SourceOptions {
        credentials: Some(Credentials::Anonymous),
        ..options(&bucket)
    };
    let source = Source::open("s3://bench/data", &anonymous).unwrap();
    assert_eq!(kind(&source, "a", 0..1).await, ErrorKind::Denied);
    bucket.set_keys(Keys {
        anonymous: true,
        ..Keys::default()
    });
    source.fetch("a", 0..1, None, soon(), &mut Vec::new()).await.unwrap();
}

#[tokio::test]
async fn what_was_signed_before_the_credentials_were_renewed_is_signed_again() {
    let token = |token: &str| Keys {
        session_token: Some(token.into()),
        ..Keys::default()
    };
    let bucket = Bucket::start(Settings {
        keys: token("old"),
        ..Settings::default()
    })
    .unwrap();
    bucket.put("bench", "data/a", body(10)).unwrap();
    let source = open(&bucket);
    bucket.set_keys(token("new"));
    bucket.add_fault(Fault::new(Kind::Slow));
    let mut fetch = std::pin::pin!(async {
        let mut bytes = Vec::new();
        source.fetch("a", 0..10, None, soon(), &mut bytes).await.map(|_| bytes)
    });
    let before = bucket.counts().total();
    let is_there = async {
        while bucket.counts().total() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        early = &mut fetch => panic!("it was not held up: {early:?}"),
        () = is_there => {}
    }
    source
        .update_credentials(&options(&bucket).credentials.unwrap())
        .unwrap();
    assert_eq!(fetch.await.unwrap(), body(10));
}

#[tokio::test]
async fn an_endpoint_that_can_not_be_is_told_from_others() {
    let bucket = Bucket::start_default().unwrap();
    let with = |endpoint: String, virtual_host| SourceOptions {
        endpoint: Some(endpoint),
        virtual_host,
        ..options(&bucket)
    };
    let host = bucket.endpoint().replace("http://", "");
    let source = Source::open("s3://bench/data", &with(format!("https://{host}"), None)).unwrap();
    let error = source
        .fetch("a", 0..1, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("doesn't speak TLS"), "{error}");
    let error = Source::open("s3://bench/data", &with("http://127.0.0.1:1".into(), Some(true))).unwrap_err();
    assert!(error.to_string().contains("leave virtual_host out"), "{error}");
}

#[tokio::test]
async fn a_session_token_is_signed() {
    let keys = Keys {
        session_token: Some("token/+=".into()),
        ..Keys::default()
    };
    let bucket = Bucket::start(Settings {
        keys,
        ..Settings::default()
    })
    .unwrap();
    bucket.put("bench", "data/a", body(10)).unwrap();
    open(&bucket)
        .fetch("a", 0..10, None, soon(), &mut Vec::new())
        .await
        .unwrap();
    let payer = SourceOptions {
        request_payer: true,
        ..options(&bucket)
    };
    let source = Source::open("s3://bench/data", &payer).unwrap();
    source.fetch("a", 0..10, None, soon(), &mut Vec::new()).await.unwrap();
}

#[tokio::test]
async fn passing_faults_are_bridged_and_the_bytes_are_right() {
    let bucket = Bucket::start_default().unwrap();
    let data = body(700_000);
    let etag = quoted(bucket.put("bench", "data/a", data.clone()).unwrap());
    let source = open(&bucket);
    source.fetch("a", 0..1, None, soon(), &mut Vec::new()).await.unwrap();
    let faults = [
        "kind=status",
        "kind=status,status=503",
        "kind=reset",
        "kind=reset,at=0.5",
        "kind=truncate",
        "kind=short",
    ];
    for fault in faults {
        for if_match in [None, Some(etag.as_str())] {
            bucket.clear_faults();
            bucket.add_fault(Fault {
                times: Some(1),
                ..Fault::parse(fault).unwrap()
            });
            let mut sink = Watched::default();
            let fetched = source.fetch("a", 0..700_000, if_match, soon(), &mut sink).await;
            let fetched = fetched.unwrap_or_else(|e| panic!("{fault}: {e}"));
            assert!(sink.bytes == data, "{fault}");
            // A kept connection that is reset before the head may have been dead all along: it is replaced, not counted.
            assert_eq!(fetched.attempts, if fault == "kind=reset" { 1 } else { 2 }, "{fault}");
            let broke_midway = ["kind=reset,at=0.5", "kind=truncate"].contains(&fault);
            if broke_midway {
                assert_eq!(
                    sink.restarts,
                    usize::from(if_match.is_none()),
                    "{fault}: goes on where it broke"
                );
            }
        }
    }
}

#[tokio::test]
async fn wrong_answers_are_never_delivered_as_done() {
    let bucket = Bucket::start_default().unwrap();
    let etag = quoted(bucket.put("bench", "data/a", body(100_000)).unwrap());
    let source = open(&bucket);
    let cases = [
        ("kind=short", ErrorKind::Corrupt),
        ("kind=whole", ErrorKind::Invalid),
        ("kind=changed", ErrorKind::Changed),
    ];
    for (fault, kind) in cases {
        bucket.clear_faults();
        bucket.add_fault(Fault::parse(fault).unwrap());
        let error = source
            .fetch("a", 10..50_000, Some(&etag), soon(), &mut Vec::new())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{fault}: {error}");
    }
    bucket.clear_faults();
    bucket.add_fault(Fault::new(Kind::Whole));
    let mut bytes = Vec::new();
    source
        .fetch("a", 0..100_000, Some(&etag), soon(), &mut bytes)
        .await
        .unwrap();
    assert_eq!(
        bytes,
        body(100_000),
        "a server without ranges can still deliver whole objects"
    );
}

#[tokio::test]
async fn silence_ends_at_the_read_timeout_and_everything_at_the_deadline() {
    let bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/a", body(100_000)).unwrap();
    let quick = SourceOptions {
        read_timeout: Duration::from_millis(100),
        ..options(&bucket)
    };
    let source = Source::open("s3://bench/data", &quick).unwrap();
    for fault in ["kind=hang", "kind=stall"] {
        bucket.clear_faults();
        bucket.add_fault(Fault {
            times: Some(1),
            ..Fault::parse(fault).unwrap()
        });
        let fetched = source
            .fetch("a", 0..100_000, None, soon(), &mut Vec::new())
            .await
            .unwrap();
        assert_eq!(fetched.attempts, 2, "{fault}");
        bucket.clear_faults();
        bucket.add_fault(Fault::parse(fault).unwrap());
        let (start, limit) = (Instant::now(), Duration::from_millis(250));
        let error = source
            .fetch("a", 0..100_000, None, start + limit, &mut Vec::new())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let endpoint = bucket.endpoint();
        assert!(
            error.to_string().contains(endpoint.trim_end_matches('/')),
            "{error}: names no endpoint"
        );
        assert!(
            start.elapsed() < limit + Duration::from_millis(200),
            "{:?}",
            start.elapsed()
        );
    }
}

#[tokio::test]
async fn what_keeps_coming_is_not_cut_off_at_the_deadline_and_a_trickle_is() {
    let bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/a", body(100_000)).unwrap();
    let source = open(&bucket);
    for (per_s, straight, comes) in [
        (50_000, false, true),
        (50_000, true, true),
        (2_000, false, false),
        (2_000, true, false),
    ] {
        bucket.set_profile(Profile {
            connection_bytes_per_s: per_s,
            piece_bytes: 1024,
            ..Profile::default()
        });
        let deadline = Instant::now() + Duration::from_secs(1);
        let (mut copied, mut memory) = (Vec::new(), Memory::new(100_000));
        let sink: &mut (dyn Sink + Send) = if straight { &mut memory } else { &mut copied };
        let fetched = source.fetch("a", 0..100_000, None, deadline, sink).await;
        let took = Instant::now() - deadline;
        if comes {
            fetched.unwrap();
            assert!(copied == body(100_000) || memory.bytes == body(100_000));
        } else {
            assert_eq!(fetched.unwrap_err().kind(), ErrorKind::Timeout);
            assert!(took < Duration::from_secs(3), "{took:?}");
        }
    }
}

#[tokio::test]
async fn throttling_is_told_apart_and_its_wish_passed_on() {
    let bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/a", body(10)).unwrap();
    bucket.add_fault(Fault {
        retry_after_s: Some(7),
        status: Some(503),
        ..Fault::new(Kind::Status)
    });
    let once = SourceOptions {
        retry: Retry::never(),
        ..options(&bucket)
    };
    let source = Source::open("s3://bench/data", &once).unwrap();
    let error = source
        .fetch("a", 0..10, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::Throttled, Some(Duration::from_secs(7)))
    );
}

#[tokio::test]
async fn a_dropped_fetch_frees_its_connection_and_the_next_one_works() {
    let bucket = Bucket::start(Settings {
        profile: Profile::cloud(),
        ..Settings::default()
    })
    .unwrap();
    bucket.put("bench", "data/a", body(30_000_000)).unwrap();
    let source = open(&bucket);
    let mut sink = Watched::default();
    let fetch = source.fetch("a", 0..30_000_000, None, soon(), &mut sink);
    let _ = tokio::time::timeout(Duration::from_millis(250), fetch)
        .await
        .unwrap_err();
    assert!(sink.frames > 0);
    bucket.set_profile(Profile::fast());
    source.fetch("a", 0..10, None, soon(), &mut Vec::new()).await.unwrap();
    while bucket.counts().connections.now > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_not_an_error() {
    let mut bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/a", body(10)).unwrap();
    let (address, source) = (bucket.address(), open(&bucket));
    source.fetch("a", 0..10, None, soon(), &mut Vec::new()).await.unwrap();
    bucket.stop();
    let bucket = Bucket::start(Settings {
        listen: address,
        ..Settings::default()
    })
    .unwrap();
    bucket.put("bench", "data/a", body(10)).unwrap();
    let fetched = source.fetch("a", 0..10, None, soon(), &mut Vec::new()).await.unwrap();
    assert_eq!(fetched.attempts, 1);
}

#[tokio::test]
async fn tls_trusts_the_named_authority_only() {
    let bucket = Bucket::start(Settings {
        tls: true,
        ..Settings::default()
    })
    .unwrap();
    let data = body(1_000_000);
    bucket.put("bench", "data/a", data.clone()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bucket.ca_pem().unwrap()).unwrap();
    let trusting = SourceOptions {
        ca_file: Some(file.path().to_owned()),
        ..options(&bucket)
    };
    let source = Source::open("s3://bench/data", &trusting).unwrap();
    let mut bytes = Vec::new();
    source.fetch("a", 0..1_000_000, None, soon(), &mut bytes).await.unwrap();
    assert!(bytes == data);
    source.fetch("a", 0..10, None, soon(), &mut Vec::new()).await.unwrap();
    assert_eq!(bucket.counts().connections.total, 1);
    let error = open(&bucket)
        .fetch("a", 0..10, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("ca_file"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_is_an_authority_s_own_is_named_as_such() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let identity = foreload_testkit::tls::Identity::of_an_authority(&address).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), identity.ca_pem()).unwrap();
    let acceptor = identity.acceptor().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            drop(acceptor.accept(stream).await);
        }
    });
    let trusting = SourceOptions {
        ca_file: Some(file.path().to_owned()),
        ..SourceOptions::default()
    };
    let source = Source::open(&format!("https://{address}/data"), &trusting).unwrap();
    let error = source
        .fetch("a", 0..10, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("CA:FALSE"), "{error}");
    server.abort();
}

#[tokio::test]
async fn many_fetches_at_once_each_get_their_own_bytes() {
    let synthetic = vec!["data/w:200x20000-90000".parse().unwrap()];
    let bucket = Bucket::start(Settings {
        synthetic,
        ..Settings::default()
    })
    .unwrap();
    bucket.add_fault(Fault {
        share: Some(0.1),
        attempts: Some(1),
        ..Fault::new(Kind::Truncate)
    });
    let source = open(&bucket);
    let objects: Vec<_> = source.list("").map(Result::unwrap).collect::<Vec<_>>().await.concat();
    let tasks: Vec<_> = objects
        .into_iter()
        .map(|object| {
            let source = source.clone();
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                source
                    .fetch(&object.key, 0..object.size, object.etag.as_deref(), soon(), &mut bytes)
                    .await
                    .unwrap();
                (object.key, bytes)
            })
        })
        .collect();
    for task in tasks {
        let (key, bytes) = task.await.unwrap();
        assert!(
            bucket.read("bench", &format!("data/{key}")).unwrap().unwrap() == bytes,
            "{key}"
        );
    }
}

#[tokio::test]
async fn a_small_object_is_read_whole_and_a_big_one_refused() {
    let bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/m.csv", body(1000)).unwrap();
    let source = open(&bucket);
    assert_eq!(source.read("m.csv", 1000, soon()).await.unwrap().0, body(1000));
    assert_eq!(
        source.read("m.csv", 999, soon()).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
}
