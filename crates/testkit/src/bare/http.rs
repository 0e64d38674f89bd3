//! Signed ranged GETs over kept-alive connections.
//!
//! HTTP/1.1 by hand: a request is written in one piece, the head of the answer is parsed where it lies, and the body is read to where it stays. There
//! is no client below that could be made cheaper than this.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use crc_fast::{CrcAlgorithm, Digest};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::{Clock, Error, Range, Report, touched};
use crate::{sigv4, stamp, tls};

/// Bytes of an answer that are read before its head is known; a body's first ones among them are copied.
const HEAD: usize = 2 << 10;
/// How long it waits where the server asks to slow down.
const PAUSE: Duration = Duration::from_millis(50);
/// How often in a row it does so.
const REFUSALS: u32 = 100;
/// Headers of an answer at most.
const HEADERS: usize = 48;

/// Where to read from and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// The access key.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
    /// The region (default `us-east-1`).
    pub region: String,
    /// The certificate to trust, as PEM, for https.
    pub ca_pem: Option<String>,
    /// How many connections, each with one request at a time (default 64).
    pub connections: usize,
    /// How many bytes of memory the bodies go to in turn (default 256 MiB: more than the caches
    /// of the CPU hold, as a loader's memory is).
    pub memory_bytes: usize,
    /// Each body goes to memory that nobody has written yet, of which there is no end.
    pub fresh: bool,
}

impl Settings {
    /// Settings for an endpoint and its keys.
    #[must_use]
    pub fn new(endpoint: &str, bucket: &str, access_key: &str, secret_key: &str) -> Self {
        Self {
            endpoint: endpoint.into(),
            bucket: bucket.into(),
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            region: "us-east-1".into(),
            ca_pem: None,
            connections: 64,
            memory_bytes: 256 << 20,
            fresh: false,
        }
    }
}

/// What all connections share.
struct Shared {
    settings: Settings,
    host: String,
    connector: Option<tokio_rustls::TlsConnector>,
    waiting: RefCell<VecDeque<Range>>,
    signer: RefCell<(String, sigv4::Key)>,
    bytes: Cell<u64>,
    requests: Cell<u64>,
    crc: Cell<u32>,
}

/// Reads all ranges and reports the rate. The clock runs from when all connections are open.
///
/// # Errors
///
/// The first failure ends the run: a yardstick that skips errors measures nothing.
pub fn run(settings: Settings, ranges: Vec<Range>) -> Result<Report, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("the runtime"))?;
    LocalSet::new().block_on(&runtime, drive(settings, ranges))
}

async fn drive(settings: Settings, ranges: Vec<Range>) -> Result<Report, Error> {
    let (scheme, host) = settings
        .endpoint
        .split_once("://")
        .map(|(scheme, host)| (scheme.to_owned(), host.trim_end_matches('/').to_owned()))
        .ok_or_else(|| Error::Setting(format!("{:?} is not a URL", settings.endpoint)))?;
    let largest = ranges.iter().map(|range| range.size).max().unwrap_or(0) as usize;
    let connections = settings.connections.max(1);
    let per_connection = (settings.memory_bytes / connections).max(largest);
    let connector = match (scheme.as_str(), &settings.ca_pem) {
        ("http", _) => None,
        ("https", Some(pem)) => Some(tls::connector(pem)?),
        _ => return Err(Error::Setting("https needs the certificate to trust".into())),
    };
    let date = stamp::amz(SystemTime::now())[..8].to_owned();
    let key = sigv4::Key::derive(&settings.secret_key, &date, &settings.region, "s3");
    let shared = Rc::new(Shared {
        settings,
        host,
        connector,
        waiting: RefCell::new(ranges.into()),
        signer: RefCell::new((date, key)),
        bytes: Cell::new(0),
        requests: Cell::new(0),
        crc: Cell::new(0),
    });
    let opening = (0..connections).map(|_| open(&shared.host, shared.connector.as_ref()));
    let streams = futures::future::try_join_all(opening).await?;
    let new = |_| {
        if shared.settings.fresh {
            vec![0; per_connection]
        } else {
            touched(per_connection)
        }
    };
    let memory: Vec<Vec<u8>> = streams.iter().map(new).collect();
    let clock = Clock::start();
    let tasks: Vec<_> = streams
        .into_iter()
        .zip(memory)
        .map(|(stream, memory)| tokio::task::spawn_local(read(Rc::clone(&shared), stream, memory)))
        .collect();
    for task in tasks {
        task.await
            .map_err(|error| Error::Setting(format!("a task failed: {error}")))??;
    }
    let (requests, bytes, crc) = (shared.requests.get(), shared.bytes.get(), shared.crc.get());
    Ok(Report::new(connections, requests, bytes, &clock, crc))
}

/// A connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

async fn open(host: &str, connector: Option<&tokio_rustls::TlsConnector>) -> Result<Stream, Error> {
    let stream = TcpStream::connect(host).await.map_err(Error::io(host))?;
    stream.set_nodelay(true).map_err(Error::io(host))?;
    let Some(connector) = connector else {
        return Ok(Stream::Plain(stream));
    };
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, _)| name)
        .trim_matches(['[', ']']);
    let name = rustls::pki_types::ServerName::try_from(name.to_owned())
        .map_err(|error| Error::Setting(format!("{host}: {error}")))?;
    let stream = connector.connect(name, stream).await.map_err(Error::io(host))?;
    Ok(Stream::Tls(Box::new(stream)))
}

/// Reads range after range on one connection, into its memory from begin to end and around; or on into new memory, and the old one stays.
async fn read(shared: Rc<Shared>, mut stream: Stream, mut memory: Vec<u8>) -> Result<(), Error> {
    let (mut at, mut filled, mut request) = (0, Vec::new(), String::new());
    loop {
        let Some(range) = shared.waiting.borrow_mut().pop_front() else {
            return Ok(());
        };
        let size = range.size as usize;
        if at + size > memory.len() {
            at = 0;
            if shared.settings.fresh {
                let new = vec![0; memory.len()];
                filled.push(std::mem::replace(&mut memory, new));
            }
        }
        let slot = &mut memory[at..at + size];
        let mut refusals = 0;
        let crc = loop {
            shared.write_request(&range, &mut request);
            let answer = match &mut stream {
                Stream::Plain(stream) => fetch(stream, &request, &range, slot).await?,
                Stream::Tls(stream) => fetch(stream.as_mut(), &request, &range, slot).await?,
            };
            if answer.closes {
                stream = open(&shared.host, shared.connector.as_ref()).await?;
            }
            refusals += 1;
            match answer.crc {
                Some(crc) => break crc,
                None if refusals == REFUSALS => {
                    return Err(Error::Answer {
                        object: range.key.clone(),
                        expected: "status 206".into(),
                        got: format!("503, {refusals} times in a row"),
                    });
                }
                None => tokio::time::sleep(PAUSE).await,
            }
        };
        at += size;
        shared.crc.set(shared.crc.get() ^ crc);
        shared.bytes.set(shared.bytes.get() + range.size);
        shared.requests.set(shared.requests.get() + 1);
    }
}

/// What became of a request.
struct Answer {
    /// The checksum of the body; none: the server asks to slow down (503).
    crc: Option<u32>,
    /// Whether this was the connection's last one.
    closes: bool,
}

/// Asks for a range and reads the answer.
async fn fetch<S>(stream: &mut S, request: &str, range: &Range, slot: &mut [u8]) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let wrong = |expected: String, got: String| Error::Answer {
        object: range.key.clone(),
        expected,
        got,
    };
    let failed = || Error::io(&range.key);
    stream.write_all(request.as_bytes()).await.map_err(failed())?;
    stream.flush().await.map_err(failed())?;
    let (mut bytes, mut read) = ([0; HEAD], 0);
    let head = loop {
        match stream.read(&mut bytes[read..]).await.map_err(failed())? {
            0 => return Err(wrong("an answer".into(), "the end of the connection".into())),
            more => read += more,
        }
        if let Some(head) = Head::of(&bytes[..read]).map_err(|got| wrong("an answer in HTTP/1.1".into(), got))? {
            break head;
        }
    };
    let early = &bytes[head.end..read];
    let mut refusal = Vec::new();
    let is_refused = head.status == 503;
    let body = match is_refused {
        true => {
            refusal.resize(head.length as usize, 0);
            refusal.as_mut_slice()
        }
        false => slot,
    };
    if !is_refused && range.size > 0 && head.status != 206 {
        return Err(wrong("status 206".into(), head.status.to_string()));
    }
    if head.length != body.len() as u64 || early.len() > body.len() {
        return Err(wrong(format!("{} bytes", range.size), format!("{} bytes", head.length)));
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    body[..early.len()].copy_from_slice(early);
    digest.update(early);
    let mut filled = early.len();
    while filled < body.len() {
        let more = stream.read(&mut body[filled..]).await.map_err(failed())?;
        if more == 0 {
            return Err(wrong(format!("{} bytes", range.size), format!("{filled} bytes")));
        }
        digest.update(&body[filled..filled + more]);
        filled += more;
    }
    Ok(Answer {
        crc: (!is_refused).then(|| digest.finalize() as u32),
        closes: head.closes,
    })
}

/// What the head of an answer says.
struct Head {
    status: u16,
    /// Bytes of the body.
    length: u64,
    /// Bytes of the head.
    end: usize,
    /// Whether the server closes the connection behind the body.
    closes: bool,
}

impl Head {
    /// Parses one; none: it isn't here yet.
    ///
    /// # Errors
    ///
    /// It isn't one, is too long, or doesn't say how long the body is.
    fn of(bytes: &[u8]) -> Result<Option<Self>, String> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(bytes).map_err(|error| error.to_string())?;
        let httparse::Status::Complete(end) = parsed else {
            return match bytes.len() < HEAD {
                true => Ok(None),
                false => Err(format!("a head of more than {HEAD} bytes")),
            };
        };
        let value = |name: &str| {
            let found = response
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        let length = value("content-length").and_then(|length| length.parse().ok());
        let closes = value("connection").is_some_and(|said| said.eq_ignore_ascii_case("close"));
        match (response.code, length) {
            (Some(status), Some(length)) => Ok(Some(Self {
                status,
                length,
                end,
                closes,
            })),
            _ => Err("a head without Content-Length".into()),
        }
    }
}

impl Shared {
    /// A signed request. The signing key is derived once a day.
    fn write_request(&self, range: &Range, to: &mut String) {
        let path = sigv4::encode_path(&format!("/{}/{}", self.settings.bucket, range.key));
        let bytes = match range.size {
            0 => None,
            size => Some(format!("bytes={}-{}", range.offset, range.offset + size - 1)),
        };
        let now = stamp::amz(SystemTime::now());
        let mut headers = vec![("host", self.host.as_str())];
        headers.extend(bytes.as_ref().map(|bytes| ("range", bytes.as_str())));
        headers.push(("x-amz-content-sha256", sigv4::UNSIGNED_PAYLOAD));
        headers.push(("x-amz-date", now.as_str()));
        let canonical = sigv4::canonical_request("GET", &path, "", &headers, sigv4::UNSIGNED_PAYLOAD);
        let mut signer = self.signer.borrow_mut();
        if signer.0 != now[..8] {
            let Settings { secret_key, region, .. } = &self.settings;
            *signer = (
                now[..8].to_owned(),
                sigv4::Key::derive(secret_key, &now[..8], region, "s3"),
            );
        }
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        to.clear();
        let _ = write!(
            to,
            "GET {path} HTTP/1.1\r\nauthorization: {} Credential={}/{},SignedHeaders={},Signature={}\r\n",
            sigv4::ALGORITHM,
            self.settings.access_key,
            signer.1.scope(),
            names.join(";"),
            signer.1.sign(&now, &canonical),
        );
        for (name, value) in headers {
            let _ = write!(to, "{name}: {value}\r\n");
        }
        to.push_str("\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_known_once_it_is_whole_and_says_how_long_the_body_is() {
        let whole = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\ncontent-LENGTH: 12\r\n\r\nbo";
        for cut in 0..whole.len() - 2 {
            assert!(Head::of(&whole[..cut]).expect("a beginning").is_none());
        }
        let head = Head::of(whole).expect("a head").expect("whole");
        assert_eq!((head.status, head.length, head.end), (206, 12, whole.len() - 2));
        assert!(!head.closes);
        let last = b"HTTP/1.1 503 x\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n";
        assert!(Head::of(last).expect("a head").expect("whole").closes);
    }

    #[test]
    fn what_is_no_head_is_told() {
        assert!(Head::of(b"SSH-2.0\r\n").is_err());
        assert!(Head::of(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(HEAD));
        assert!(Head::of(&long.as_bytes()[..HEAD]).is_err());
    }
}
