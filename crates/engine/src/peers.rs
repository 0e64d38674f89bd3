//! Other nodes' agents: what they ask of this one, and where this one asks them.
//!
//! A peer is one more object store. It answers a GET for each sample, `/peer/<digest of the data set>/<number>`, over HTTP/1.1 on kept connections, and the
//! engine's own client asks it as it asks any store: deadlines, silence and broken answers are told apart there. What is sent are the sample's bytes, out of
//! the shared memory where they lie, which are lent until they are on their way.
//!
//! | the answer | says |
//! | --- | --- |
//! | 200, or 206 for a range that is all of it | here it is; the ETag is its CRC-32C, and `-fetched` behind it means that it had to be fetched first |
//! | 403 | the request isn't sealed with the job's secret, or came before |
//! | 404 | it isn't here, and isn't to be: ask the bucket |
//! | 400, 405 | no question that a peer has |
//!
//! A connection is served by one of the threads that fetch ([`Carriers::host`]): it reads and signs, sums up and sends. What to send is the plan's to say,
//! on its own thread, which is asked through a queue ([`Question`]).
//!
//! Nothing listens before a job asks for it ([`Call::Listen`](crate::calls::Call::Listen)), and then only on the address that it names. Requests and answers
//! are sealed with the job's secret ([`foreload_store::Gate`]): none counts twice, and none for another; nothing is encrypted.

use crate::calls::Report;
use crate::carriers::Carriers;
use crate::protocol::Trouble;
use crate::scatter::crc32c;
use crate::slots::Shared;
use bytes::Bytes;
use foreload_plan::Digest;
use foreload_plan::action::{Handle, Via};
use foreload_store::source::answering;
use foreload_store::{Credentials, ErrorKind, Gate, Retry, SEAL, Seal, Source, SourceOptions};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustc_hash::FxHashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

const REGION: &str = "peers";
/// What a request's path begins with.
const BUCKET: &str = "peer";
/// What a path ends with that asks for a report.
const REPORT: &str = "report";
/// Bytes of one.
const REPORT_BYTES: u64 = 16 << 10;
/// Behind the checksum in an ETag.
const FETCHED: &str = "-fetched";
/// Connections that are served at once; a peer keeps a few.
const MOST_CONNECTIONS: usize = 1024;
/// A connection that says nothing for so long is closed: longer than a client keeps one.
const SILENCE: Duration = Duration::from_secs(60);
/// A peer that sends nothing for so long is asked no more: the bucket is.
const PROGRESS: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(1);
/// Who takes nothing of an answer for so long gets no more of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes per second that a peer sends at least, or it is asked no more: the bucket is faster.
const LEAST_RATE: u64 = 1_000_000;

/// What an answer of so many bytes may take.
#[must_use]
pub fn patience(len: u64) -> Duration {
    2 * PROGRESS + Duration::from_millis(len / (LEAST_RATE / 1000))
}

/// Bytes that a peer has asked for, lent until this goes.
pub struct Lent {
    /// Where they lie.
    pub arena: Arc<Shared>,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
    /// What the sample cost.
    pub via: Via,
    /// What is given back.
    pub handle: Handle,
    /// To whom.
    pub back: UnboundedSender<Handle>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.arena.map().bytes(self.offset, self.len).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // A pool that is gone lends nothing.
        let _ = self.back.send(self.handle);
    }
}

/// What an answer says of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Their CRC-32C.
    pub crc: u32,
    /// The peer had to fetch them first.
    pub was_fetched: bool,
}

impl Said {
    /// As an ETag.
    #[must_use]
    pub fn etag(self) -> String {
        let fetched = if self.was_fetched { FETCHED } else { "" };
        format!("\"{:08x}{fetched}\"", self.crc)
    }

    /// Of an ETag. `None`: it is none of a peer's.
    #[must_use]
    pub fn of(etag: &str) -> Option<Self> {
        let text = etag.strip_prefix('"')?.strip_suffix('"')?;
        let (crc, was_fetched) = match text.strip_suffix(FETCHED) {
            Some(crc) => (crc, true),
            None => (text, false),
        };
        let is_hex = crc.len() == 8 && crc.bytes().all(|byte| byte.is_ascii_hexdigit());
        let crc = u32::from_str_radix(crc, 16).ok().filter(|_| is_hex)?;
        Some(Said { crc, was_fetched })
    }
}

/// How the nodes of a group know each other.
#[derive(Clone, PartialEq, Eq)]
pub struct Trust {
    /// What they seal with.
    pub secret: String,
    /// Whether they encrypt, too.
    pub tls: bool,
}

/// A peer to ask.
///
/// # Errors
/// `invalid` for an address that is none.
pub fn source(address: SocketAddr, trust: &Trust) -> Result<Source, Trouble> {
    let scheme = if trust.tls { "https" } else { "http" };
    let options = SourceOptions {
        endpoint: Some(format!("{scheme}://{address}")),
        region: Some(REGION.to_owned()),
        credentials: Some(Credentials::Secret(trust.secret.clone())),
        virtual_host: Some(false),
        allow_http: Some(true),
        proxy: Some(String::new()),
        connect_timeout: CONNECT,
        read_timeout: PROGRESS,
        // The scheduler knows better whom to ask next.
        retry: Retry::never(),
        ..SourceOptions::default()
    };
    Source::open(&format!("s3://{BUCKET}"), &options)
        .map_err(|error| Trouble::new("invalid", format!("the peer at {address}: {error}")))
}

/// The key of a sample of a data set at a peer.
#[must_use]
pub fn key(dataset: Digest, sample: u64) -> String {
    format!("{dataset}/{sample}")
}

/// Asks a peer for what nobody has.
///
/// # Errors
/// In words: it gave no answer that a peer gives.
pub async fn reach(peer: &Source) -> Result<(), String> {
    let nothing = key(Digest::from_bytes([0; 16]), 0);
    let (deadline, mut bytes) = (Instant::now() + CONNECT + PROGRESS, Vec::new());
    match peer.fetch(&nothing, 0..1, None, deadline, &mut bytes).await {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.detail().to_owned()),
        _ => Ok(()),
    }
}

/// Asks a peer how the job with a plan does there.
///
/// # Errors
/// In words: it has no such job, or gave no answer that a peer gives.
pub async fn ask_report(peer: &Source, plan: Digest) -> Result<Report, String> {
    let (deadline, mut bytes) = (Instant::now() + CONNECT + PROGRESS, Vec::new());
    let what = format!("{plan}/{REPORT}");
    let asked = peer.fetch(&what, 0..REPORT_BYTES, None, deadline, &mut bytes);
    match asked.await {
        Ok(_) => serde_json::from_slice(&bytes).map_err(|error| format!("it says what is no report: {error}")),
        Err(error) if error.kind() == ErrorKind::NotFound => Err("it doesn't read this now".to_owned()),
        Err(error) => Err(error.detail().to_owned()),
    }
}

/// A report as it is sent: all are equally long, so that who asks knows how long it is. `None`: it is longer.
fn written(report: &Report) -> Option<Vec<u8>> {
    let mut text = serde_json::to_vec(report).ok()?;
    let fits = text.len() as u64 <= REPORT_BYTES;
    text.resize(REPORT_BYTES as usize, b' ');
    fits.then_some(text)
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// A sample of a data set.
    Sample(Digest, u64),
    /// How the job with a plan does.
    Report(Digest),
}

/// What a path is for. `None`: nothing.
fn asked(path: &str) -> Option<Wanted> {
    let (digest, what) = path
        .strip_prefix('/')?
        .strip_prefix(BUCKET)?
        .strip_prefix('/')?
        .split_once('/')?;
    let digest = digest.parse().ok()?;
    if what == REPORT {
        return Some(Wanted::Report(digest));
    }
    let is_number = !what.is_empty() && what.bytes().all(|byte| byte.is_ascii_digit());
    let sample = what.parse().ok().filter(|_| is_number)?;
    Some(Wanted::Sample(digest, sample))
}

/// What a peer's connection asks of the thread that plans.
pub enum Question {
    /// For a sample of a data set.
    Ask {
        /// Names the question.
        name: u64,
        /// The data set.
        dataset: Digest,
        /// Its sample.
        sample: u64,
        /// Who waits for it.
        answer: oneshot::Sender<Option<Lent>>,
    },
    /// How the job with a plan does.
    Report {
        /// The plan.
        plan: Digest,
        /// Who waits for it; `None`: there is no such job.
        answer: oneshot::Sender<Option<Report>>,
    },
    /// Nobody waits for it any more.
    Withdraw(u64),
}

/// What connections share.
struct House {
    gate: Gate,
    tls: Option<TlsAcceptor>,
    questions: UnboundedSender<Question>,
    sums: Mutex<Sums>,
}

/// CRC-32Cs of samples that were asked for, which stay what they are for as long as the data set is the same. So a byte that turns over in memory afterwards
/// is noticed by who gets it, too.
#[derive(Default)]
struct Sums(FxHashMap<(Digest, u64), u32>);

impl Sums {
    /// As many are remembered: 8 MB.
    const MOST: usize = 1 << 18;

    fn keep(&mut self, of: (Digest, u64), crc: u32) {
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(of, crc);
    }
}

/// A question that was asked. Whoever lets it go withdraws it.
struct Asked<'a> {
    house: &'a House,
    name: u64,
    answer: oneshot::Receiver<Option<Lent>>,
}

impl House {
    fn sum_of(&self, sample: (Digest, u64), lent: &Lent) -> u32 {
        let sums = || self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sums().0.get(&sample).copied();
        known.unwrap_or_else(|| {
            let crc = crc32c(lent.as_ref());
            sums().keep(sample, crc);
            crc
        })
    }

    async fn report(&self, plan: Digest) -> Option<Report> {
        let (answer, told) = oneshot::channel();
        let _ = self.questions.send(Question::Report { plan, answer });
        told.await.ok().flatten()
    }

    fn ask(&self, dataset: Digest, sample: u64) -> Asked<'_> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        // An agent that ends answers nobody.
        let _ = self.questions.send(Question::Ask {
            name,
            dataset,
            sample,
            answer: sender,
        });
        Asked {
            house: self,
            name,
            answer,
        }
    }
}

impl Asked<'_> {
    async fn answered(mut self) -> Option<Lent> {
        (&mut self.answer).await.ok().flatten()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answer.is_terminated() {
            let _ = self.house.questions.send(Question::Withdraw(self.name));
        }
    }
}

/// Where peers are answered.
pub struct Door {
    trust: Trust,
    /// The address that peers reach it at.
    pub address: SocketAddr,
    receiving: JoinHandle<()>,
}

impl Door {
    /// Listens on an address of this machine, on any port, and answers whoever signs with the secret, until it is dropped. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// `invalid` for an address that isn't this machine's, or a secret that is too short to be one.
    pub async fn open(
        host: IpAddr,
        trust: Trust,
        carriers: Rc<Carriers>,
        questions: UnboundedSender<Question>,
    ) -> Result<Self, Trouble> {
        if trust.secret.len() < 16 {
            let message = "the secret of a group of nodes has fewer than 16 characters: anyone could guess it";
            return Err(Trouble::new("invalid", message));
        }
        if host.is_unspecified() {
            let message = format!(
                "peers aren't answered on {host}, which is every network of this machine: name an address with FORELOAD_HOST or Peers(host=...)"
            );
            return Err(Trouble::new("invalid", message));
        }
        let listening = async {
            let listener = TcpListener::bind((host, 0)).await?;
            let address = listener.local_addr()?;
            Ok::<_, io::Error>((listener, address))
        };
        let (listener, address) = listening.await.map_err(|error| {
            let remedy = "name an address of this machine, with FORELOAD_HOST or Peers(host=...)";
            Trouble::new("invalid", format!("can't answer peers on {host}: {error}; {remedy}"))
        })?;
        let tls = match trust.tls {
            true => Some(answering(&trust.secret).map_err(|error| Trouble::new("bug", error.to_string()))?),
            false => None,
        };
        let house = Arc::new(House {
            gate: Gate::new(&trust.secret, &address.to_string()),
            tls: tls.map(TlsAcceptor::from),
            questions,
            sums: Mutex::default(),
        });
        Ok(Door {
            trust,
            address,
            receiving: tokio::task::spawn_local(receive(listener, house, carriers)),
        })
    }

    /// Whether it is the one for an address and a secret.
    #[must_use]
    pub fn is_for(&self, host: IpAddr, trust: &Trust) -> bool {
        self.address.ip() == host && self.trust == *trust
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

async fn receive(listener: TcpListener, house: Arc<House>, carriers: Rc<Carriers>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => {
                let house = Arc::clone(&house);
                carriers.host(Box::new(move || {
                    tokio::task::spawn_local(async move {
                        serve(stream, house).await;
                        drop(place);
                    });
                }));
            }
            // Descriptors come back.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve(stream: std::net::TcpStream, house: Arc<House>) {
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    // Small answers are not held back for more; and who takes nothing for so long is given up, with the memory that is lent for it.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, PATIENCE.as_millis() as u32);
    match house.tls.clone() {
        None => answer_on(stream, house).await,
        Some(tls) => {
            // Who doesn't speak it, or takes its time, isn't answered.
            if let Ok(Ok(stream)) = tokio::time::timeout(PROGRESS, tls.accept(stream)).await {
                answer_on(stream, house).await;
            }
        }
    }
}

async fn answer_on(stream: impl AsyncRead + AsyncWrite + Unpin, house: Arc<House>) {
    let service = service_fn(move |request| answer(Arc::clone(&house), request));
    let mut connection = http1::Builder::new();
    connection
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(16 << 10);
    // An error here is a peer that went away.
    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
}

type Answer = Response<Full<Bytes>>;

fn empty(status: StatusCode) -> Answer {
    let mut answer = Answer::default();
    *answer.status_mut() = status;
    answer
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

async fn answer(house: Arc<House>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let (path, headers) = (request.uri().path(), request.headers());
    if request.method() != Method::GET || request.uri().query().is_some() {
        return Ok(empty(StatusCode::METHOD_NOT_ALLOWED));
    }
    let Some(seal) = house.gate.admit("GET", path, text(headers, "authorization")) else {
        return Ok(empty(StatusCode::FORBIDDEN));
    };
    let Some(wanted) = asked(path) else {
        return Ok(empty(StatusCode::BAD_REQUEST));
    };
    let range = text(headers, "range").to_owned();
    let answer = match wanted {
        Wanted::Sample(dataset, sample) => house.ask(dataset, sample).answered().await.map(|lent| {
            let said = Said {
                crc: house.sum_of((dataset, sample), &lent),
                was_fetched: lent.via == Via::Bucket,
            };
            (lent.len, full(Bytes::from_owner(lent), said, &range))
        }),
        Wanted::Report(plan) => house.report(plan).await.as_ref().and_then(written).map(|text| {
            let said = Said {
                crc: crc32c(&text),
                was_fetched: false,
            };
            (text.len() as u64, full(text.into(), said, &range))
        }),
    };
    let (len, answer) = answer.unwrap_or_else(|| (0, empty(StatusCode::NOT_FOUND)));
    Ok(sealed(answer, len, &house.gate, &seal))
}

/// An answer, of a body of so many bytes, that nobody else could have given.
fn sealed(mut answer: Answer, len: u64, gate: &Gate, request: &Seal) -> Answer {
    let etag = text(answer.headers(), "etag");
    let seal = gate.answer(request, answer.status().as_u16(), etag, len);
    if let Ok(seal) = HeaderValue::from_str(&seal) {
        answer.headers_mut().insert(SEAL, seal);
    }
    answer
}

/// An answer with bytes.
fn full(bytes: Bytes, said: Said, range: &str) -> Answer {
    let len = bytes.len() as u64;
    let all = format!("bytes=0-{}", len.saturating_sub(1));
    let mut answer = match range {
        "" => empty(StatusCode::OK),
        range if range == all => empty(StatusCode::PARTIAL_CONTENT),
        // No part of a sample is asked for.
        _ => return empty(StatusCode::BAD_REQUEST),
    };
    let mut field = |name: header::HeaderName, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            answer.headers_mut().insert(name, value);
        }
    };
    field(header::ETAG, said.etag());
    if !range.is_empty() {
        field(
            header::CONTENT_RANGE,
            format!("bytes 0-{}/{len}", len.saturating_sub(1)),
        );
    }
    *answer.body_mut() = Full::new(bytes);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_says_is_read_as_it_was_written_and_nothing_else_is() {
        for (crc, was_fetched) in [(0, false), (0xdead_beef, true), (u32::MAX, false)] {
            let said = Said { crc, was_fetched };
            assert_eq!(Said::of(&said.etag()), Some(said));
        }
        for other in [
            "",
            "\"\"",
            "\"0\"",
            "deadbeef",
            "\"deadbeef",
            "\"+eadbeef\"",
            "\"deadbeef-1\"",
            "\"deadbeef0\"",
            "W/\"deadbeef\"",
        ] {
            assert_eq!(Said::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_path_names_a_data_set_and_a_sample_or_nothing() {
        let digest = Digest::from_bytes([7; 16]);
        let path = format!("/peer/{}", key(digest, 12));
        assert_eq!(asked(&path), Some(Wanted::Sample(digest, 12)));
        assert_eq!(asked(&format!("/peer/{digest}/report")), Some(Wanted::Report(digest)));
        let hex = digest.to_string();
        let others = [
            String::new(),
            "/".to_owned(),
            "/peer".to_owned(),
            "/peer//12".to_owned(),
            format!("/peer/{hex}"),
            format!("/peer/{hex}/"),
            format!("/peer/{hex}/-1"),
            format!("/peer/{hex}/+1"),
            format!("/peer/{hex}/1/2"),
            format!("/peer/{hex}/18446744073709551616"),
            format!("/peer/{}/1", &hex[1..]),
            format!("/peers/{hex}/1"),
            format!("/peer/../{hex}/1"),
        ];
        for other in others {
            assert_eq!(asked(&other), None, "{other}");
        }
    }
}
