//! What happens to a request, from its head to its answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, sleep_until};

use super::body::{InFlight, Reply};
use super::counters::Class;
use super::fault::{Fault, Kind, Target};
use super::list::{self, Listing};
use super::read::Read;
use super::refusal::Refusal;
use super::server::{Connection, State};
use super::write::{self, Received};
use super::{control, storage::Storage};
use crate::{draw, sigv4};

/// What a request is about.
struct Asked {
    bucket: String,
    key: String,
    pairs: Vec<(String, String)>,
    class: Class,
}

impl Asked {
    fn new(parts: &Parts) -> Result<Self, Refusal> {
        let path = sigv4::decode_path(parts.uri.path()).ok_or_else(|| Refusal::argument("the path is not UTF-8"))?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        // `bucket.localhost` addresses a bucket by its host name, as virtual-hosted S3 does.
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.and_then(|host| host.split(':').next()?.strip_suffix(".localhost"));
        let (bucket, key) = match host {
            Some(bucket) => (bucket, path),
            None => path.split_once('/').unwrap_or((path, "")),
        };
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let pairs = sigv4::query_pairs(parts.uri.query().unwrap_or(""));
        let mut asked = Self {
            bucket,
            key,
            pairs,
            class: Class::Bucket,
        };
        asked.class = asked.classify(parts);
        Ok(asked)
    }

    fn classify(&self, parts: &Parts) -> Class {
        let copies = parts.headers.contains_key("x-amz-copy-source");
        match (&parts.method, self.key.is_empty()) {
            (_, false) if self.has("uploadId") || self.has("uploads") => Class::Multipart,
            (&Method::GET, false) => Class::Get,
            (&Method::HEAD, false) => Class::Head,
            (&Method::PUT, false) if copies => Class::Copy,
            (&Method::PUT, false) => Class::Put,
            (&Method::DELETE, false) => Class::Delete,
            (&Method::POST, true) if self.has("delete") => Class::Delete,
            (&Method::GET, true) if !self.bucket.is_empty() && !self.has("location") => Class::List,
            _ => Class::Bucket,
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    fn has(&self, name: &str) -> bool {
        self.field(name).is_some()
    }
}

/// Answers a request.
///
/// # Errors
///
/// When a fault wants the connection to end before the head.
pub async fn handle(
    state: Arc<State>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> io::Result<Response<Reply>> {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    if parts.uri.path().starts_with(control::PREFIX) {
        return Ok(control::answer(&state, &parts, body).await);
    }
    let head = parts.method == Method::HEAD;
    let id = state.requests.fetch_add(1, Ordering::Relaxed);
    let mut response = match answer(&state, &connection, &parts, body, arrived).await {
        Ok(Ok(response)) => response,
        Ok(Err(refusal)) => refusal.response(parts.uri.path(), id, head),
        Err(broken) => return Err(broken),
    };
    state.counters.status(response.status().as_u16());
    if let Ok(value) = HeaderValue::try_from(format!("{id:016X}")) {
        response.headers_mut().insert("x-amz-request-id", value);
    }
    if connection.is_last(state.profile().requests_per_connection) {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn answer(
    state: &Arc<State>,
    connection: &Arc<Connection>,
    parts: &Parts,
    body: Incoming,
    arrived: Instant,
) -> io::Result<Result<Response<Reply>, Refusal>> {
    let in_flight = InFlight::new(state);
    let asked = match Asked::new(parts) {
        Ok(asked) => asked,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let (faults, first_byte) = choose(state, parts, &asked, arrived);
    let start = arrived + state.profile().first_byte(first_byte);
    let body = match parts.method {
        Method::GET | Method::HEAD => Bytes::new(),
        _ => body.collect().await.map_err(io::Error::other)?.to_bytes(),
    };
    state.counters.received(body.len() as u64);
    let start = delayed(start, &faults);
    if start > Instant::now() {
        sleep_until(start).await;
    }
    if faults.iter().any(|fault| fault.kind == Kind::Hang) {
        std::future::pending::<()>().await;
    }
    if faults
        .iter()
        .any(|fault| fault.kind == Kind::Reset && fault.at.unwrap_or(0.0) == 0.0)
    {
        connection.reset();
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    if let Some(refusal) = refused(&faults) {
        return Ok(Err(refusal));
    }
    let payload = match state.verifier.verify(parts, &state.keys(), SystemTime::now()) {
        Ok(payload) => payload,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if matches!(asked.class, Class::Get | Class::Head) {
        let read = Read {
            state,
            connection,
            headers: &parts.headers,
            bucket: &asked.bucket,
            key: &asked.key,
            head: asked.class == Class::Head,
            start,
            faults: &faults,
        };
        return Ok(read.answer(in_flight));
    }
    let received = write::receive(body, &parts.headers, &payload);
    Ok(received.and_then(|received| dispatch(state, parts, &asked, received)))
}

/// Counts the request, and draws the faults that hit it and its delay.
fn choose(state: &Arc<State>, parts: &Parts, asked: &Asked, arrived: Instant) -> (Vec<Fault>, u64) {
    let name = format!("{}/{}", asked.bucket, asked.key);
    let range = parts.headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let method = draw::name(state.seed, parts.method.as_str());
    let about = range.or(asked.field("continuation-token")).unwrap_or("");
    let hash = draw::name(draw::name(method, about), &name);
    let attempt = state.counters.request(asked.class, &name, hash);
    let now_s = arrived.duration_since(state.started).as_secs_f64();
    let target = Target {
        class: asked.class,
        name: &name,
        hash,
        attempt,
        now_s,
    };
    let faults = state.faults().hits(&target);
    for fault in &faults {
        let kind = serde_json::to_value(fault.kind).ok();
        let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("unknown");
        state.counters.fault(kind.to_owned());
    }
    (faults, draw::attempt(hash, attempt))
}

fn delayed(start: Instant, faults: &[Fault]) -> Instant {
    let slow = faults.iter().filter(|fault| fault.kind == Kind::Slow);
    let delay: f64 = slow.map(|fault| fault.delay_ms.unwrap_or(1000.0)).sum();
    start + Duration::from_secs_f64(delay / 1000.0)
}

fn refused(faults: &[Fault]) -> Option<Refusal> {
    faults.iter().find_map(|fault| {
        let mut refusal = match fault.kind {
            Kind::Status => Refusal::injected(fault.status.unwrap_or(500)),
            Kind::RateLimit => Refusal::slow_down(),
            _ => return None,
        };
        refusal.retry_after_s = fault.retry_after_s;
        Some(refusal)
    })
}

/// Everything but GET and HEAD of objects.
fn dispatch(state: &State, parts: &Parts, asked: &Asked, received: Received) -> Result<Response<Reply>, Refusal> {
    let storage = &state.storage;
    let headers = &parts.headers;
    let (bucket, key) = (asked.bucket.as_str(), asked.key.as_str());
    let upload = asked.field("uploadId").unwrap_or("");
    match (asked.class, &parts.method) {
        (Class::List, _) => Listing {
            bucket,
            pairs: &asked.pairs,
        }
        .answer(storage),
        (Class::Put, _) => write::put(storage, bucket, key, headers, received),
        (Class::Copy, _) => write::copy(storage, bucket, key, headers),
        (Class::Delete, &Method::POST) => write::delete_many(storage, bucket, headers, &received),
        (Class::Delete, _) => write::delete(storage, bucket, key),
        (Class::Multipart, &Method::POST) if asked.has("uploads") => {
            state.uploads.create(storage, bucket, key, headers)
        }
        (Class::Multipart, &Method::POST) => state.uploads.complete(storage, upload, &received),
        (Class::Multipart, &Method::PUT) => {
            let number = asked.field("partNumber").unwrap_or("");
            state.uploads.part(storage, upload, number, headers, received)
        }
        (Class::Multipart, &Method::DELETE) => state.uploads.abort(upload),
        (Class::Multipart, &Method::GET) => state.uploads.list(upload),
        (Class::Bucket, method) => about_bucket(storage, method, asked),
        _ => Err(unknown(&parts.method)),
    }
}

fn about_bucket(storage: &Storage, method: &Method, asked: &Asked) -> Result<Response<Reply>, Refusal> {
    let bucket = asked.bucket.as_str();
    let known = || {
        if storage.has_bucket(bucket) {
            Ok(())
        } else {
            Err(Refusal::no_bucket(bucket))
        }
    };
    let mut response = Response::new(Reply::Full(None));
    match *method {
        Method::GET if bucket.is_empty() => return list::buckets(storage),
        Method::GET if asked.has("location") => {
            known()?;
            return Ok(list::xml(super::xml::document("LocationConstraint", "")));
        }
        Method::HEAD => known()?,
        Method::PUT if !bucket.is_empty() => {
            storage.create_bucket(bucket)?;
            if let Ok(value) = HeaderValue::try_from(format!("/{bucket}")) {
                response.headers_mut().insert(header::LOCATION, value);
            }
        }
        Method::DELETE if !bucket.is_empty() => {
            known()?;
            if !storage.page(bucket, "", "", 1)?.is_empty() {
                let message = "The bucket you tried to delete is not empty";
                return Err(Refusal::new(StatusCode::CONFLICT, "BucketNotEmpty", message));
            }
            storage.delete_bucket(bucket)?;
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        _ => return Err(unknown(method)),
    }
    Ok(response)
}

fn unknown(method: &Method) -> Refusal {
    let message = format!("The test bucket doesn't know this {method} request.");
    Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
}
