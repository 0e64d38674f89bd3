//! Signed ranged GETs over kept-alive connections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::{Buf as _, Bytes};
use crc_fast::{CrcAlgorithm, Digest};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::{Clock, Error, Range, Report, touched};
use crate::{sigv4, stamp, tls};

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
        waiting: RefCell::new(ranges.into()),
        signer: RefCell::new((date, key)),
        bytes: Cell::new(0),
        requests: Cell::new(0),
        crc: Cell::new(0),
    });
    let opening = (0..connections).map(|_| open(&shared.host, connector.as_ref()));
    let senders = futures::future::try_join_all(opening).await?;
    let new = |_| {
        if shared.settings.fresh {
            vec![0; per_connection]
        } else {
            touched(per_connection)
        }
    };
    let memory: Vec<Vec<u8>> = senders.iter().map(new).collect();
    let clock = Clock::start();
    let tasks: Vec<_> = senders
        .into_iter()
        .zip(memory)
        .map(|(sender, memory)| tokio::task::spawn_local(read(Rc::clone(&shared), sender, memory)))
        .collect();
    for task in tasks {
        task.await
            .map_err(|error| Error::Setting(format!("a task failed: {error}")))??;
    }
    let (requests, bytes, crc) = (shared.requests.get(), shared.bytes.get(), shared.crc.get());
    Ok(Report::new(connections, requests, bytes, &clock, crc))
}

async fn open(host: &str, connector: Option<&tokio_rustls::TlsConnector>) -> Result<SendRequest<Empty<Bytes>>, Error> {
    let stream = TcpStream::connect(host).await.map_err(Error::io(host))?;
    stream.set_nodelay(true).map_err(Error::io(host))?;
    let Some(connector) = connector else {
        return handshake(host, stream).await;
    };
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, _)| name)
        .trim_matches(['[', ']']);
    let name = rustls::pki_types::ServerName::try_from(name.to_owned())
        .map_err(|error| Error::Setting(format!("{host}: {error}")))?;
    let stream = connector.connect(name, stream).await.map_err(Error::io(host))?;
    handshake(host, stream).await
}

async fn handshake<S>(host: &str, stream: S) -> Result<SendRequest<Empty<Bytes>>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let failed = |source| Error::Http {
        what: host.into(),
        source,
    };
    let (sender, connection) = http1::Builder::new()
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    tokio::task::spawn_local(async move {
        // What goes wrong here is reported by the request that it happens to.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Reads range after range on one connection, into its memory from begin to end and around; or on into new memory, and the old one stays.
async fn read(shared: Rc<Shared>, mut sender: SendRequest<Empty<Bytes>>, mut memory: Vec<u8>) -> Result<(), Error> {
    let (mut at, mut filled) = (0, Vec::new());
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
        let crc = fetch(&shared, &mut sender, &range, &mut memory[at..at + size]).await?;
        at += size;
        shared.crc.set(shared.crc.get() ^ crc);
        shared.bytes.set(shared.bytes.get() + range.size);
        shared.requests.set(shared.requests.get() + 1);
    }
}

async fn fetch(
    shared: &Shared,
    sender: &mut SendRequest<Empty<Bytes>>,
    range: &Range,
    slot: &mut [u8],
) -> Result<u32, Error> {
    let failed = |source| Error::Http {
        what: range.key.clone(),
        source,
    };
    let wrong = |expected: String, got: String| Error::Answer {
        object: range.key.clone(),
        expected,
        got,
    };
    sender.ready().await.map_err(failed)?;
    let request = shared.request(range)?;
    let response = sender.send_request(request).await.map_err(failed)?;
    if range.size > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
        return Err(wrong("status 206".into(), response.status().to_string()));
    }
    let mut body = response.into_body();
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let mut filled = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(failed)?.into_data() else {
            continue;
        };
        let room = slot.get_mut(filled..filled + data.remaining()).ok_or_else(|| {
            wrong(
                format!("{} bytes", range.size),
                format!("{} or more", filled + data.len()),
            )
        })?;
        room.copy_from_slice(&data);
        digest.update(room);
        filled += data.len();
    }
    if filled != slot.len() {
        return Err(wrong(format!("{} bytes", range.size), format!("{filled} bytes")));
    }
    Ok(digest.finalize() as u32)
}

impl Shared {
    /// A signed request. The signing key is derived once a day.
    fn request(&self, range: &Range) -> Result<Request<Empty<Bytes>>, Error> {
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
        let authorization = format!(
            "{} Credential={}/{},SignedHeaders={},Signature={}",
            sigv4::ALGORITHM,
            self.settings.access_key,
            signer.1.scope(),
            names.join(";"),
            signer.1.sign(&now, &canonical),
        );
        let mut request = Request::get(&path).header("authorization", authorization);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let malformed = |error| Error::Setting(format!("{}: {error}", range.key));
        request.body(Empty::new()).map_err(malformed)
    }
}
