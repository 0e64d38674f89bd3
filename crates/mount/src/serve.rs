//! The same view as an S3 endpoint that can be read: for programs that speak S3, and whose files are somebody else's affair.
//!
//! Objects are read as open files are, by way of the agent, so that its memory, its disks and its limit on requests are those of mounts and loaders. The whole range that is asked for
//! is known when it begins, and is asked for ahead. Listings are the tree's, directory by directory, or the bucket's own where no delimiter is given. Who may connect is
//! who may connect to this machine's loopback: signatures aren't looked at, and nothing can be written.

mod asked;
mod listing;

use crate::file::{OpenFile, Shared};
use crate::names::Names;
use crate::settings::Settings;
use crate::tree::{Ino, Kind, Object};
use crate::{Base, MountError};
use asked::{Asked, Refusal, ranged};
use bytes::Bytes;
use fuser::Errno;
use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use listing::Listings;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// What is handed on at a time.
const PIECE: u64 = 256 << 10;
/// Chunks that are asked for ahead of a reader, within what all may have.
const AHEAD: u64 = 64;
/// Who sends no head for so long is let go.
const HEAD: Duration = Duration::from_secs(30);
/// What is being answered when it is to end has so long.
const GRACE: Duration = Duration::from_secs(2);

type Body = BoxBody<Bytes, io::Error>;

/// What is answered from.
struct Served {
    names: Arc<Names>,
    shared: Arc<Shared>,
    bucket: String,
    /// What keys begin with that are below the root: empty, or ending in a slash.
    prefix: String,
    listings: Listings,
    numbers: std::sync::atomic::AtomicU64,
}

/// Serves until a signal says that it is to end.
///
/// # Errors
/// [`MountError`]: nothing could be served.
pub fn run(settings: &Settings, address: SocketAddr, ready: impl FnOnce(SocketAddr)) -> Result<(), MountError> {
    if !address.ip().is_loopback() {
        return Err(MountError::System(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{address} isn't of the loopback: whoever reaches it may read all there is"),
        )));
    }
    let base = Base::open(settings)?;
    let (bucket, prefix) = named(&settings.url);
    let served = Arc::new(Served {
        listings: Listings::new(settings.ttl(), bucket.clone(), prefix.clone()),
        names: base.names,
        shared: Arc::clone(&base.shared),
        bucket,
        prefix,
        numbers: std::sync::atomic::AtomicU64::new(1),
    });
    base.runtime.block_on(async {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(named)?;
        ready(listener.local_addr()?);
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let _ = stream.set_nodelay(true);
                        tokio::spawn(connection(Arc::clone(&served), TokioIo::new(stream)));
                    }
                    // Without descriptors nobody can be let in, for a moment.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        io::Result::Ok(())
    })?;
    base.shared.is_closing.store(true, std::sync::atomic::Ordering::Relaxed);
    base.shared.shelves.close();
    base.runtime.shutdown_timeout(GRACE);
    Ok(())
}

/// What a URL's bucket is called here, and what keys begin with. A directory is called by its last name.
fn named(url: &str) -> (String, String) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("file", url));
    let rest = rest.trim_end_matches('/');
    if matches!(scheme, "file" | "http" | "https") {
        let name = rest.rsplit('/').next().unwrap_or("").to_owned();
        return (name, String::new());
    }
    match rest.split_once('/') {
        Some((bucket, prefix)) => (bucket.to_owned(), format!("{prefix}/")),
        None => (rest.to_owned(), String::new()),
    }
}

async fn connection(served: Arc<Served>, stream: TokioIo<tokio::net::TcpStream>) {
    let service = service_fn(move |request| {
        let served = Arc::clone(&served);
        async move { Ok::<_, Infallible>(served.answer(request).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    let http = http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // A client that goes away is no matter.
    let _ = http.serve_connection(stream, service).await;
}

impl Served {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let number = self.numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let answer = match Asked::of(request.uri()) {
            Ok(asked) => match self.answer_to(request.method(), &asked, request.headers()).await {
                Ok(answer) => answer,
                Err(refusal) => refusal.answer(&asked),
            },
            Err(refusal) => refusal.answer(&Asked::default()),
        };
        let (mut parts, body) = answer.into_parts();
        if let Ok(number) = number.to_string().parse() {
            parts.headers.insert("x-amz-request-id", number);
        }
        Response::from_parts(parts, if is_head { empty() } else { body })
    }

    async fn answer_to(&self, method: &Method, asked: &Asked, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
        if method != Method::GET && method != Method::HEAD {
            return Err(Refusal::read_only());
        }
        if asked.bucket.is_empty() {
            return Ok(document(listing::buckets(&self.bucket)));
        }
        if asked.bucket != self.bucket {
            return Err(Refusal::no_bucket());
        }
        if !asked.key.is_empty() {
            if let Some(what) = asked.beside_an_object() {
                return Err(Refusal::unknown(what));
            }
            return self.object(method, &asked.key, headers).await;
        }
        if method == Method::HEAD {
            return Ok(Response::new(empty()));
        }
        if asked.has("location") {
            return Ok(document(listing::location()));
        }
        if let Some(what) = asked.beside() {
            return Err(Refusal::unknown(what));
        }
        Ok(document(self.listings.page(&self.names, asked).await?))
    }

    async fn object(&self, method: &Method, key: &str, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
        let mut tries = 0;
        loop {
            let (ino, below, object) = self.find(key).await?;
            check(headers, &object)?;
            let range = ranged(headers, object.size, &etag(&object))?;
            let (is_part, range) = (range.is_some(), range.unwrap_or(0..object.size));
            let mut answer = Response::builder()
                .status(if is_part {
                    StatusCode::PARTIAL_CONTENT
                } else {
                    StatusCode::OK
                })
                .header(header::CONTENT_LENGTH, range.end - range.start)
                .header(header::CONTENT_TYPE, "binary/octet-stream")
                .header(header::ACCEPT_RANGES, "bytes")
                .header(header::ETAG, etag(&object));
            if let Some(modified) = object.modified {
                answer = answer.header(header::LAST_MODIFIED, httpdate::fmt_http_date(modified));
            }
            if is_part {
                let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, object.size);
                answer = answer.header(header::CONTENT_RANGE, shown);
            }
            let body = match method == Method::HEAD || range.is_empty() {
                true => Ok(empty()),
                false => self.read(ino, below, object, range).await,
            };
            match body {
                Ok(body) => return answer.body(body).map_err(|_| Refusal::of(Errno::EIO)),
                // It was replaced since it was looked up.
                Err(Errno::ESTALE) if tries == 0 => {
                    tries += 1;
                    self.names.tree().doubt(ino, Instant::now());
                }
                Err(error) => return Err(Refusal::of(error)),
            }
        }
    }

    /// The object by a key, and its key below the root.
    async fn find(&self, key: &str) -> Result<(Ino, String, Object), Refusal> {
        let below = key.strip_prefix(self.prefix.as_str()).filter(|key| !key.is_empty());
        let below = below.ok_or_else(Refusal::no_key)?;
        let ino = self.names.find(below).await.map_err(Refusal::of)?;
        match self.names.tree().kind(ino, Instant::now()) {
            Some((Kind::File(object), _)) => Ok((ino, below.to_owned(), object)),
            _ => Err(Refusal::no_key()),
        }
    }

    /// A range's bytes, the first of which are here when this answers. The others are taken when the client takes them: whoever takes none keeps no thread.
    async fn read(&self, ino: Ino, key: String, object: Object, range: Range<u64>) -> Result<Body, Errno> {
        let file = OpenFile::new(&self.shared, ino, key, object);
        file.is_read_in_order();
        let shared = Arc::clone(&self.shared);
        let first = piece(&shared, &file, range.clone()).await?;
        let at = range.start + first.len() as u64;
        let rest = stream::try_unfold(at, move |at| {
            let (shared, file, end) = (Arc::clone(&shared), Arc::clone(&file), range.end);
            async move {
                if at >= end {
                    return Ok(None);
                }
                let piece = piece(&shared, &file, at..end).await;
                let piece = piece.map_err(|error| io::Error::from_raw_os_error(error.code()))?;
                let next = at + piece.len() as u64;
                Ok(Some((piece, next)))
            }
        });
        let pieces = stream::once(async move { Ok(first) }).chain(rest).map_ok(Frame::data);
        Ok(BodyExt::boxed(StreamBody::new(Box::pin(pieces) as Pieces)))
    }
}

/// What a range of a file begins with; what comes behind it is asked for.
async fn piece(shared: &Shared, file: &Arc<OpenFile>, range: Range<u64>) -> Result<Bytes, Errno> {
    let (at, len) = (range.start, PIECE.min(range.end - range.start));
    shared.shrink();
    file.ask_for(range, AHEAD);
    if let Some(piece) = file.read_at_hand(at, len, Bytes::copy_from_slice) {
        return piece;
    }
    let file = Arc::clone(file);
    let read = tokio::task::spawn_blocking(move || file.read(at, len, Bytes::copy_from_slice));
    read.await.unwrap_or(Err(Errno::EIO))
}

type Pieces = std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Frame<Bytes>>> + Send + Sync>>;

/// An object's version, in quotes.
fn etag(object: &Object) -> String {
    match object.etag.as_deref() {
        Some(etag) if etag.ends_with('"') => etag.to_owned(),
        Some(etag) => format!("\"{}\"", etag.replace('"', "")),
        None => format!("\"{}\"", object.size),
    }
}

/// What is asked for only of some version of the object.
fn check(headers: &HeaderMap, object: &Object) -> Result<(), Refusal> {
    let own = etag(object);
    let names_it = |name: header::HeaderName| {
        let text = headers.get(name)?.to_str().ok()?;
        Some(
            text.split(',')
                .any(|each| each.trim() == "*" || each.trim().trim_matches('"') == own.trim_matches('"')),
        )
    };
    if names_it(header::IF_MATCH) == Some(false) {
        return Err(Refusal::changed());
    }
    match names_it(header::IF_NONE_MATCH) {
        Some(true) => return Err(Refusal::same()),
        Some(false) => return Ok(()),
        None => {}
    }
    // Versions are more exact than times, and count first (RFC 9110, 13.2.2). Headers have whole seconds.
    let seconds = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |age| age.as_secs())
    };
    let is_newer_than = |name: header::HeaderName| {
        let wanted = httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()?;
        Some(seconds(object.modified?) > seconds(wanted))
    };
    if !headers.contains_key(header::IF_MATCH) && is_newer_than(header::IF_UNMODIFIED_SINCE) == Some(true) {
        return Err(Refusal::changed());
    }
    match is_newer_than(header::IF_MODIFIED_SINCE) {
        Some(false) => Err(Refusal::same()),
        _ => Ok(()),
    }
}

fn empty() -> Body {
    BodyExt::boxed(Full::new(Bytes::new()).map_err(|never| match never {}))
}

fn document(text: String) -> Response<Body> {
    let mut answer = Response::new(BodyExt::boxed(
        Full::new(Bytes::from(text)).map_err(|never| match never {}),
    ));
    let kind = header::HeaderValue::from_static("application/xml");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests {
    #[test]
    fn conditions_are_those_of_http() {
        use super::{HeaderMap, Object, check, header};
        use std::time::{Duration, SystemTime};

        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let object = Object {
            size: 1,
            etag: Some("\"a\"".into()),
            version: None,
            modified: Some(at(1000) + Duration::from_millis(700)),
        };
        let answers = |conditions: &[(header::HeaderName, String)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in conditions {
                headers.insert(name.clone(), value.parse().expect("a header"));
            }
            check(&headers, &object).is_ok()
        };
        let date = |seconds| httpdate::fmt_http_date(at(seconds));
        assert!(answers(&[]));
        for (name, value, expected) in [
            (header::IF_MATCH, "\"a\"".to_owned(), true),
            (header::IF_MATCH, "\"b\"".to_owned(), false),
            (header::IF_NONE_MATCH, "\"a\"".to_owned(), false),
            (header::IF_NONE_MATCH, "\"b\"".to_owned(), true),
            (header::IF_MODIFIED_SINCE, date(999), true),
            (header::IF_MODIFIED_SINCE, date(1000), false),
            (header::IF_MODIFIED_SINCE, "nonsense".to_owned(), true),
            (header::IF_UNMODIFIED_SINCE, date(999), false),
            (header::IF_UNMODIFIED_SINCE, date(1000), true),
        ] {
            assert_eq!(answers(&[(name.clone(), value.clone())]), expected, "{name}: {value}");
        }
        let both = |first, second| answers(&[first, second]);
        assert!(both(
            (header::IF_MATCH, "\"a\"".into()),
            (header::IF_UNMODIFIED_SINCE, date(1))
        ));
        assert!(both(
            (header::IF_NONE_MATCH, "\"b\"".into()),
            (header::IF_MODIFIED_SINCE, date(5000))
        ));
    }

    #[test]
    fn a_bucket_is_called_by_its_name_and_a_directory_by_its_last() {
        let named = |url| {
            let (bucket, prefix) = super::named(url);
            format!("{bucket} {prefix}")
        };
        assert_eq!(named("s3://bucket"), "bucket ");
        assert_eq!(named("s3://bucket/a/b/"), "bucket a/b/");
        assert_eq!(named("file:///data/train/"), "train ");
        assert_eq!(named("https://host/a"), "a ");
    }
}
