//! Google, Azure, web servers and proxies: how requests to them look, and that ETags come back as they were received.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use foreload_store::{Credentials, Error, ErrorKind, Fetched, Source, SourceOptions};
use foreload_testkit::Bucket;
use foreload_testkit::bucket::{Fault, Keys, Settings};
use futures::StreamExt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn public() -> Bucket {
    let keys = Keys {
        anonymous: true,
        ..Keys::default()
    };
    let bucket = Bucket::start(Settings {
        keys,
        ..Settings::default()
    })
    .unwrap();
    bucket.put("bench", "data/a b.bin", vec![7; 1000]).unwrap();
    bucket
}

/// The head of the next request, in lower case; `None`: the connection has ended.
async fn asked_for(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap().to_lowercase())
}

/// A server that gives one prepared answer per connection and keeps what it was asked.
async fn scripted(answers: Vec<&'static str>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    scripts(answers.into_iter().map(|answer| vec![answer.to_owned()]).collect()).await
}

/// The same with several answers over each connection, which it then closes.
async fn scripts(scripts: Vec<Vec<String>>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut asked = Vec::new();
        for script in scripts {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in script {
                asked.push(asked_for(&mut stream).await.unwrap());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            stream.shutdown().await.unwrap();
        }
        asked
    });
    (format!("http://{address}"), server)
}

const PART: &str = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-4/9\r\nContent-Length: 3\r\nETag: \"0x8D\"\r\nConnection: close\r\n\r\nabc";

#[tokio::test]
async fn google_is_listed_and_read_through_its_xml_interface() {
    let bucket = public();
    let options = SourceOptions {
        endpoint: Some(bucket.endpoint()),
        credentials: Some(Credentials::Anonymous),
        ..SourceOptions::default()
    };
    let source = Source::open("gs://bench/data", &options).unwrap();
    let object = source.list("").next().await.unwrap().unwrap().remove(0);
    assert_eq!(object.key, "a b.bin");
    let mut bytes = Vec::new();
    source
        .fetch(&object.key, 0..1000, object.etag.as_deref(), soon(), &mut bytes)
        .await
        .unwrap();
    assert_eq!(bytes, [7; 1000]);
}

#[tokio::test]
async fn google_gets_a_bearer_token_and_is_kept_from_unpacking() {
    let (endpoint, server) = scripted(vec![PART]).await;
    let options = SourceOptions {
        endpoint: Some(endpoint),
        credentials: Some(Credentials::Bearer("secret".into())),
        ..SourceOptions::default()
    };
    let source = Source::open("gs://bench/x", &options).unwrap();
    source
        .fetch("k", 2..5, Some("\"0x8D\""), soon(), &mut Vec::new())
        .await
        .unwrap();
    let asked = server.await.unwrap().remove(0);
    assert!(asked.starts_with("get /bench/x/k http/1.1\r\n"), "{asked}");
    for part in [
        "authorization: bearer secret",
        "accept-encoding: gzip",
        "range: bytes=2-4",
        "if-match: \"0x8d\"",
    ] {
        assert!(asked.contains(part), "{part} in {asked}");
    }
}

#[tokio::test]
async fn an_answer_without_the_etag_that_was_asked_for_is_not_taken() {
    const PAGE: &str = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-4/9\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
    for (etag, is_taken) in [(Some("\"0x8D\""), false), (None, true)] {
        let (endpoint, server) = scripted(vec![PAGE; 50]).await;
        let source = Source::open(&format!("{endpoint}/x"), &SourceOptions::default()).unwrap();
        let mut bytes = Vec::new();
        let fetched = source.fetch("k", 2..5, etag, soon(), &mut bytes).await;
        assert_eq!((fetched.is_ok(), bytes.len()), (is_taken, if is_taken { 3 } else { 0 }));
        if let Err(error) = fetched {
            assert!(error.to_string().contains("no ETag"), "{error}");
        }
        server.abort();
    }
}

#[tokio::test]
async fn azure_requests_carry_a_signature_a_token_or_a_sas() {
    let key = Credentials::AccountKey("a2V5a2V5a2V5".into());
    let sas = Credentials::Sas("?sv=2023-11-03&sig=a%2Bb".into());
    for (credentials, proof) in [
        (key, "authorization: sharedkey acc:"),
        (Credentials::Bearer("tok".into()), "authorization: bearer tok"),
        (sas, "sig=a%2bb"),
        (Credentials::Anonymous, "x-ms-version: "),
    ] {
        let (endpoint, server) = scripted(vec![PART]).await;
        let storage_options = [("account_name".to_owned(), "acc".to_owned())].into();
        let options = SourceOptions {
            endpoint: Some(endpoint),
            credentials: Some(credentials),
            storage_options,
            ..SourceOptions::default()
        };
        let source = Source::open("az://container/x", &options).unwrap();
        // Azure's listings have ETags without quotes; they are sent back like that.
        source
            .fetch("k", 2..5, Some("0x8D"), soon(), &mut Vec::new())
            .await
            .unwrap();
        let asked = server.await.unwrap().remove(0);
        assert!(asked.starts_with("get /container/x/k"), "{asked}");
        for part in [proof, "range: bytes=2-4", "if-match: 0x8d\r\n"] {
            assert!(asked.contains(part), "{part} in {asked}");
        }
    }
}

#[tokio::test]
async fn a_web_server_is_read_and_its_redirects_followed_without_credentials() {
    let bucket = public();
    let url = format!("{}/bench/data", bucket.endpoint());
    let source = Source::open(&url, &SourceOptions::default()).unwrap();
    let meta = source.head("a b.bin", soon()).await.unwrap();
    let mut bytes = Vec::new();
    source
        .fetch("a b.bin", 100..200, meta.etag.as_deref(), soon(), &mut bytes)
        .await
        .unwrap();
    assert_eq!(bytes, [7; 100]);
    bucket.add_fault(Fault::parse("kind=whole").unwrap());
    let error = source
        .fetch("a b.bin", 100..200, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ignores ranges"), "{error}");

    let (target, final_server) = scripted(vec![PART]).await;
    let answer = format!(
        "HTTP/1.1 302 Found\r\nLocation: {target}/other?sig=1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let (url, first_server) = scripted(vec![answer.leak()]).await;
    let options = SourceOptions {
        credentials: Some(Credentials::Bearer("tok".into())),
        ..SourceOptions::default()
    };
    let source = Source::open(&url, &options).unwrap();
    let mut bytes = Vec::new();
    source.fetch("k", 2..5, None, soon(), &mut bytes).await.unwrap();
    assert_eq!(bytes, b"abc");
    assert!(first_server.await.unwrap()[0].contains("authorization: bearer tok"));
    let asked = final_server.await.unwrap().remove(0);
    assert!(
        asked.starts_with("get /other?sig=1 ") && !asked.contains("authorization"),
        "{asked}"
    );
}

#[tokio::test]
async fn a_proxy_is_addressed_and_tells_when_it_wants_a_password() {
    let bucket = public();
    let proxied = SourceOptions {
        endpoint: Some("http://s3.example.invalid".into()),
        proxy: Some(bucket.endpoint()),
        credentials: Some(Credentials::AccessKey {
            id: bucket.keys().access_key,
            secret: bucket.keys().secret_key,
            token: None,
        }),
        ..SourceOptions::default()
    };
    let source = Source::open("s3://bench/data", &proxied).unwrap();
    source
        .fetch("a b.bin", 0..1000, None, soon(), &mut Vec::new())
        .await
        .unwrap();

    let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
    let (proxy, server) = scripted(vec![refusal]).await;
    let tunnelled = SourceOptions {
        endpoint: Some("https://s3.example.invalid".into()),
        proxy: Some(proxy.replace("http://", "http://me:secret@")),
        ..proxied
    };
    let source = Source::open("s3://bench/data", &tunnelled).unwrap();
    let error = source
        .fetch("k", 0..1, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let asked = server.await.unwrap().remove(0);
    assert!(
        asked.starts_with("connect s3.example.invalid:443 http/1.1\r\n"),
        "{asked}"
    );
    assert!(asked.contains("proxy-authorization: basic bwu6c2vjcmv0"), "{asked}");
}

/// A server with room for 128 connections that it hasn't accepted. It answers each request after `takes`, but for those on its first `silent` connections.
async fn slow(silent: usize, takes: Duration) -> String {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(128).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while asked_for(&mut stream).await.is_some() {
                    if number < silent {
                        return std::future::pending().await;
                    }
                    tokio::time::sleep(takes).await;
                    let part = PART.replace("Connection: close\r\n", "");
                    stream.write_all(part.as_bytes()).await.unwrap();
                }
            });
        }
    });
    format!("http://{address}")
}

/// Fetches so many times at once; how many had bytes within the time.
async fn at_once(endpoint: String, fetches: usize, within: Duration) -> usize {
    let options = SourceOptions {
        endpoint: Some(endpoint),
        credentials: Some(Credentials::Anonymous),
        ..SourceOptions::default()
    };
    let source = Source::open("gs://bench/data", &options).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..fetches {
        let source = source.clone();
        tasks.spawn(async move {
            let mut bytes = Vec::new();
            let fetch = source.fetch("x", 2..5, None, soon(), &mut bytes);
            let is_done = tokio::time::timeout(within, fetch)
                .await
                .is_ok_and(|fetched| fetched.is_ok());
            usize::from(is_done && bytes == b"abc")
        });
    }
    tasks.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn a_thousand_connections_at_once_overflow_no_queue_and_wait_for_no_answer() {
    let endpoint = slow(0, Duration::from_millis(300)).await;
    // Those that overflow it begin again after a second; and in turns of 128 until their answers have come, they would take 2.4 s.
    assert_eq!(at_once(endpoint, 1000, Duration::from_millis(950)).await, 1000);
}

#[tokio::test]
async fn connections_that_hang_keep_nobody_from_trying_for_long() {
    let endpoint = slow(128, Duration::from_millis(20)).await;
    // Less than the time after which a silent one is given up.
    let done = at_once(endpoint, 200, Duration::from_secs(4)).await;
    assert_eq!(done, 72);
}

#[tokio::test]
async fn a_server_without_etags_says_by_the_time_whether_it_is_the_same_object() {
    let head = |day: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: 9\r\nLast-Modified: {day}\r\nConnection: close\r\n\r\n")
    };
    let part = |day: &str| {
        format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-4/9\r\nContent-Length: 3\r\n{day}Connection: close\r\n\r\nabc"
        )
    };
    let (monday, tuesday) = ("Mon, 01 Jan 2024 00:00:00 GMT", "Tue, 02 Jan 2024 00:00:00 GMT");
    let answers = vec![
        head(monday),
        part(&format!("Last-Modified: {monday}\r\n")),
        part(&format!("ETag: \"new\"\r\nLast-Modified: {monday}\r\n")),
        part(""),
        part(&format!("Last-Modified: {tuesday}\r\n")),
    ];
    let (url, server) = scripted(answers.into_iter().map(|answer| &*answer.leak()).collect()).await;
    let source = Source::open(&url, &SourceOptions::default()).unwrap();
    let etag = source.head("x", soon()).await.unwrap().etag.unwrap();
    assert!(etag.starts_with("W/") && etag.contains(monday), "{etag}");
    for _ in 0..3 {
        let mut bytes = Vec::new();
        source.fetch("x", 2..5, Some(&etag), soon(), &mut bytes).await.unwrap();
        assert_eq!(bytes, b"abc");
    }
    let error = source
        .fetch("x", 2..5, Some(&etag), soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    // It is compared, and never sent: no server knows it.
    assert!(server.await.unwrap().iter().all(|asked| !asked.contains("if-match")));
}

#[test]
fn stores_that_may_have_the_same_buckets_are_told_apart() {
    let store = |url: &str, endpoint: Option<&str>| {
        let options = SourceOptions {
            endpoint: endpoint.map(str::to_owned),
            credentials: Some(foreload_store::Credentials::Anonymous),
            ..SourceOptions::default()
        };
        Source::open(url, &options).unwrap().store().to_owned()
    };
    let [one, two] = [1, 2].map(|port| store("s3://b/x", Some(&format!("http://127.0.0.1:{port}"))));
    assert!(one != two && !one.is_empty() && !two.is_empty());
    assert_eq!(one, store("s3://b/x", Some("http://127.0.0.1:1")));
    assert_eq!(store("s3://b/x", None), "");
    assert_eq!(store("gs://b/x", None), "");
    assert_ne!(store("gs://b/x", Some("http://127.0.0.1:1")), "");
    assert_eq!(store("https://host/x", None), "");
    assert_eq!(store("/tmp", None), "");
}

#[tokio::test]
async fn a_listing_that_goes_round_is_an_error() {
    const PAGE: &str = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>TOKEN</NextContinuationToken>\
                        <Contents><Key>data/KEY</Key><Size>1</Size></Contents></ListBucketResult>";
    for (tokens, keys) in [(["a", "a", "a"], ["1", "2", "3"]), (["a", "b", "c"], ["1", "1", "1"])] {
        let pages = (0..3).map(|page| {
            let body = PAGE.replace("TOKEN", tokens[page]).replace("KEY", keys[page]);
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            &*answer.leak()
        });
        // What finds out whether there are directories asks for the first page too.
        let first = pages.clone().next().unwrap();
        let (endpoint, _server) = scripted([first].into_iter().chain(pages).collect()).await;
        let options = SourceOptions {
            endpoint: Some(endpoint),
            credentials: Some(foreload_store::Credentials::Anonymous),
            ..SourceOptions::default()
        };
        let source = Source::open("s3://bench/data", &options).unwrap();
        let found: Vec<_> = source.list("").collect().await;
        let error = found.into_iter().find_map(Result::err).unwrap();
        assert!(error.to_string().contains("goes round"), "{error}");
    }
}

/// A server that keeps its connections and answers ranges of one object, cut into writes of `step` bytes, with `extra` bytes that nobody asked for
/// behind each; counts its connections.
async fn talkative(object: Arc<Vec<u8>>, step: usize, extra: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let object = Arc::clone(&object);
            tokio::spawn(async move {
                while let Some(head) = asked_for(&mut stream).await {
                    let range = head.split("range: bytes=").nth(1).unwrap();
                    let (from, rest) = range.split_once('-').unwrap();
                    let to = rest.split_whitespace().next().unwrap();
                    let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
                    let mut answer = format!(
                        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{to}/{}\r\nContent-Length: {}\r\nX-Long: {}\r\n\r\n",
                        object.len(), to + 1 - from, "x".repeat(3000),
                    ).into_bytes();
                    answer.extend_from_slice(&object[from..=to]);
                    answer.extend_from_slice(&vec![b'!'; extra]);
                    for piece in answer.chunks(step) {
                        if stream.write_all(piece).await.is_err() {
                            return;
                        }
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
    });
    (endpoint, connections)
}

#[tokio::test]
async fn a_body_is_whole_however_it_comes_and_a_connection_with_more_on_it_is_left() {
    let object: Arc<Vec<u8>> = Arc::new((0..200_000_u32).map(|i| (i * 31 % 251) as u8).collect());
    let lengths = [1, 900, 1100, 10_000, 32 << 10, (32 << 10) + 1, 131_072, 131_073];
    for step in [1_usize << 20, 4096, 997] {
        for extra in [0, 1, 5000] {
            let (endpoint, connections) = talkative(Arc::clone(&object), step, extra).await;
            let source = Source::open(&format!("{endpoint}/data/"), &SourceOptions::default()).unwrap();
            for (n, len) in lengths.into_iter().enumerate() {
                let (from, mut got) = (n as u64 * 17, Vec::new());
                let fetched = source.fetch("a", from..from + len, None, soon(), &mut got).await;
                fetched.unwrap();
                assert!(
                    got == object[from as usize..(from + len) as usize],
                    "{len} bytes in steps of {step}"
                );
                // Whatever follows may come a moment later.
                tokio::time::sleep(Duration::from_millis(if extra > 0 { 20 } else { 0 })).await;
            }
            let expected = if extra > 0 { lengths.len() } else { 1 };
            assert_eq!(connections.load(Ordering::SeqCst), expected, "{step} {extra}");
        }
    }
}

/// The ranges that were asked for.
fn ranges(asked: &[String]) -> Vec<&str> {
    let field = |head| str::lines(head).find_map(|line| line.strip_prefix("range: bytes="));
    asked.iter().map(|head| field(head).unwrap_or("none")).collect()
}

const TAG: &str = "\"0x8D\"";

/// A 206 of `bytes 2-6/9`, whose fields about its length are given.
fn part(length: &str, body: &str) -> String {
    format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-6/9\r\nETag: {TAG}\r\n{length}\r\n{body}")
}

/// A 200 with all nine bytes.
fn whole(length: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nETag: {TAG}\r\n{length}\r\n{body}")
}

/// Fetches once from a server: what came of it, and the bytes.
async fn fetched(url: &str, range: Range<u64>) -> (Result<Fetched, Error>, Vec<u8>) {
    let (source, mut bytes) = (Source::open(url, &SourceOptions::default()).unwrap(), Vec::new());
    let fetched = source.fetch("k", range, Some(TAG), soon(), &mut bytes).await;
    (fetched, bytes)
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[tokio::test]
async fn an_answer_that_lacks_nothing_but_its_end_is_asked_for_again() {
    let cut = part(CHUNKED, "5\r\ncdefg");
    let (url, server) = scripts(vec![vec![cut], vec![part("Content-Length: 5\r\n", "cdefg")]]).await;
    let (ended, bytes) = fetched(&url, 2..7).await;
    assert!(ended.is_ok() && bytes == b"cdefg");
    assert_eq!(ranges(&server.await.unwrap()), ["2-6", "2-6"]);
}

#[tokio::test]
async fn a_server_without_ranges_that_breaks_off_sends_its_object_again() {
    for again in [
        whole("Content-Length: 9\r\n", "abcdefghi"),
        whole(CHUNKED, "2\r\nab\r\n7\r\ncdefghi\r\n0\r\n\r\n"),
        whole("Connection: close\r\n", "abcdefghi"),
    ] {
        let (url, server) = scripts(vec![vec![whole("Content-Length: 9\r\n", "abcd")], vec![again]]).await;
        let (ended, bytes) = fetched(&url, 0..9).await;
        assert!(ended.is_ok() && bytes == b"abcdefghi");
        assert_eq!(ranges(&server.await.unwrap()), ["0-8", "4-8"]);
    }
}

#[tokio::test]
async fn a_whole_object_needs_no_length_where_all_of_it_is_wanted() {
    let chunked = whole(CHUNKED, "9\r\nabcdefghi\r\n0\r\n\r\n");
    let closed = whole("", "abcdefghi");
    for answer in [chunked, closed] {
        for (range, is_taken) in [(0..9, true), (0..8, false), (1..9, false)] {
            let (url, server) = scripts(vec![vec![answer.clone()]]).await;
            let (ended, bytes) = fetched(&url, range.clone()).await;
            match ended {
                Ok(_) => assert!(is_taken && bytes == b"abcdefghi", "{range:?}"),
                Err(error) => assert!(!is_taken && error.to_string().contains("it ignores ranges"), "{error}"),
            }
            server.abort();
        }
    }
    // One that is longer or shorter than it was is not taken for what it was.
    for (body, said) in [("abcdefghij", "another size"), ("abcd", "4 of 9 bytes")] {
        let (url, server) = scripts(vec![vec![whole("", body)], vec![whole("", body)]]).await;
        let error = fetched(&url, 0..9).await.0.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        server.abort();
    }
}

#[tokio::test]
async fn what_a_used_connection_says_amiss_is_asked_for_on_a_new_one() {
    let right = part("Content-Length: 5\r\n", "cdefg");
    for amiss in [
        right.replace("0x8D", "other"),
        right.replace("2-6/9", "1-5/9"),
        whole("Content-Length: 3\r\n", "abc"),
    ] {
        let (url, server) = scripts(vec![vec![right.clone(), amiss.clone()], vec![right.clone()]]).await;
        let source = Source::open(&url, &SourceOptions::default()).unwrap();
        for requests in [1, 2] {
            let mut bytes = Vec::new();
            let fetched = source.fetch("k", 2..7, Some(TAG), soon(), &mut bytes).await.unwrap();
            assert_eq!((bytes.as_slice(), fetched.attempts), (&b"cdefg"[..], requests));
        }
        assert_eq!(server.await.unwrap().len(), 3);
        // A new connection is believed.
        let (url, server) = scripts(vec![vec![amiss.clone()], vec![amiss]]).await;
        fetched(&url, 2..7).await.0.unwrap_err();
        server.abort();
    }
}
