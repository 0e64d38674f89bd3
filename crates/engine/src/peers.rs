//! Other nodes' agents: what they ask of this one, and where this one asks them.
//!
//! A peer is one more object store. It answers a GET for a sample, `/peer/<digest of the data set>/<steps>/<number>`, for several small ones,
//! `/peer/<digest of the data set>/<steps>/<number>-<number>-...`, and for how a job does there,
//! `/peer/<digest of the plan>/report`, over HTTP/1.1 on kept connections. The steps are the batches that who asks reads before it needs that: what is needed first is fetched first, for whomever. The
//! engine's own client asks it as it asks any store: deadlines, silence and broken answers are told apart there. What is sent are the sample's bytes, out of
//! the shared memory where they lie, which are lent until they have been read.
//!
//! Several samples come in one answer of chunks, each of which is a sealed [table](foreload_store::source::parts) of what is here and what isn't, and the bytes of that: what is there goes at once, and what has to be
//! fetched first follows. So each is as soon there as it would be alone, and no failure of one is the others'.
//!
//! What has to be fetched first may take as long as the bucket does, behind what is needed sooner. Meanwhile a peer shows every half of [`PROGRESS`] that it is there, by an interim answer or by a table of none. Who
//! asks waits for as long as that, or until the plan has [no more patience](foreload_plan::scheduler): so silence means that a peer hangs, and never that it is busy.
//!
//! | the answer | says |
//! | --- | --- |
//! | 102, until then | it has to be fetched first: the answer follows |
//! | 200, of several samples | what is here of them, each with its CRC-32C, and what isn't |
//! | 200, or 206 for a range that is all of it | here it is; the ETag is its CRC-32C, and `-fetched` behind it means that it had to be fetched first |
//! | 403 | the request isn't sealed with the job's secret, or came before |
//! | 404 | it isn't here, and isn't to be: ask the bucket |
//! | 400, 405 | no question that a peer has; where the request itself isn't understood, the connection ends |
//!
//! The server is one of our own: `door` lets connections in and knows what is asked, `line` is a connection, encrypted or not, `request` reads what is said, `serve` answers on one
//! connection and says how long memory stays lent, `send` hands answers over, the larger ones without copying them. A connection is served by one of the
//! threads that fetch ([`Carriers::host`](crate::carriers::Carriers::host)). What to send is the plan's to say, on its own thread, which is asked through a
//! queue ([`Question`]).
//!
//! Nothing listens before a job asks for it ([`Call::Listen`](crate::calls::Call::Listen)), and then only on the address that it names. Requests and answers
//! are sealed with the job's secret ([`foreload_store::Gate`]): none counts twice, and none for another. Where the nodes are told so ([`Trust`]), all is encrypted besides.

mod door;
mod line;
mod request;
mod send;
mod serve;

pub use door::Door;

use crate::calls::Report;
use crate::protocol::Trouble;
use crate::slots::Shared;
use foreload_plan::Digest;
use foreload_plan::action::{BUNDLE_LOADS, BUNDLED_BYTES, Handle, Via};
use foreload_store::source::parts::{MOST_PART_BYTES, MOST_PARTS};
use foreload_store::{Credentials, ErrorKind, Retry, Source, SourceOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::Instant;

const REGION: &str = "peers";
/// What a request's path begins with.
const BUCKET: &str = "peer";
/// What a path ends with that asks for a report.
const REPORT: &str = "report";
/// Bytes of one.
const REPORT_BYTES: u64 = 16 << 10;
/// Behind the checksum in an ETag.
const FETCHED: &str = "-fetched";
/// A peer that sends nothing for so long hangs: the bucket is asked.
const PROGRESS: Duration = Duration::from_secs(2);
/// One that has nothing to send yet says so this often.
const SIGN: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(1);
/// Bytes per second that whoever asks takes at least, or it is sent no more.
const LEAST_RATE: u64 = 1_000_000;
const _: () = assert!(BUNDLE_LOADS <= MOST_PARTS && BUNDLED_BYTES <= MOST_PART_BYTES);

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
    /// The memory that its pool plans with.
    pub pool_bytes: u64,
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

/// The key of samples of a data set at a peer: one at least, the first of which is needed after so many batches.
#[must_use]
pub fn key(dataset: Digest, steps: u64, samples: impl IntoIterator<Item = u64>) -> String {
    use std::fmt::Write;
    let mut key = format!("{dataset}/{steps}/");
    for (at, sample) in samples.into_iter().enumerate() {
        let between = if at > 0 { "-" } else { "" };
        // A string takes all that is written to it.
        let _ = write!(key, "{between}{sample}");
    }
    key
}

/// Asks a peer for what nobody has.
///
/// # Errors
/// In words: it gave no answer that a peer gives.
pub async fn reach(peer: &Source) -> Result<(), String> {
    let nothing = key(Digest::from_bytes([0; 16]), 0, [0]);
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
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// A sample.
    Sample(Wish<u64>),
    /// Several small ones.
    Samples(Wish<Vec<u64>>),
    /// How the job with a plan does.
    Report(Digest),
}

/// What somebody wants of a data set, after so many batches.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish<S> {
    dataset: Digest,
    steps: u64,
    samples: S,
}

/// What a path is for. `None`: nothing.
fn asked(path: &str) -> Option<What> {
    let (digest, what) = path
        .strip_prefix('/')?
        .strip_prefix(BUCKET)?
        .strip_prefix('/')?
        .split_once('/')?;
    let digest = digest.parse().ok()?;
    if what == REPORT {
        return Some(What::Report(digest));
    }
    let number = |text: &str| -> Option<u64> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number)
    };
    let (steps, what) = what.split_once('/')?;
    let (dataset, steps) = (digest, number(steps)?);
    match what.split('-').take(BUNDLE_LOADS + 1).count() {
        1 => Some(What::Sample(Wish {
            dataset,
            steps,
            samples: number(what)?,
        })),
        2..=BUNDLE_LOADS => Some(What::Samples(Wish {
            dataset,
            steps,
            samples: what.split('-').map(number).collect::<Option<_>>()?,
        })),
        _ => None,
    }
}

/// What becomes of one of the samples that a question is for, by its place there; `None`: it isn't here, and isn't to be.
pub type Told = (usize, Option<Lent>);

/// What a peer's connection asks of the thread that plans.
pub enum Question {
    /// For samples of a data set.
    Ask {
        /// Names the question.
        name: u64,
        /// The data set.
        dataset: Digest,
        /// Its samples.
        samples: Vec<u64>,
        /// Batches that who asks reads before it needs them.
        steps: u64,
        /// Who waits for them, and hears of each once.
        answer: UnboundedSender<Told>,
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

#[cfg(test)]
mod tests;
