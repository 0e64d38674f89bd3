//! Where the bytes are: buckets (`s3 gs az http https`) and directories (`file`), behind one [`Source`].
//!
//! A source lists objects and fetches byte ranges. [`Source::fetch`] is the hot path: it sends one ranged GET, checks
//! status, range, length and ETag of the answer, and hands each body frame to the caller's [`Sink`] as it arrives, so
//! that bytes are copied once, from the connection's buffer to where they will be used. Whatever does not match
//! exactly what was asked for is an error; nothing wrong is ever reported as done.
//!
//! The engine fetches through it, `format` lists and reads headers through it. A source keeps connections but no data,
//! decides no order, and retries a request only inside the deadline it was given.

mod options;

pub use options::{Credentials, Retry, SourceOptions};

use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::stream::BoxStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Receives the bytes of a fetch, in order, as they arrive.
pub trait Sink {
    /// Takes `frame`, which begins `at` bytes after the start of the range.
    ///
    /// Frames arrive in order without gaps or overlap, and never exceed the range.
    ///
    /// # Errors
    /// An error ends the fetch with that error (for a cancelled or revoked destination: `Closed`).
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<()>;

    /// The attempt failed: what was written so far is void, and the next frame begins at 0 again.
    fn restart(&mut self);
}

/// Collects a small range in memory.
impl Sink for Vec<u8> {
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<()> {
        if at != self.len() as u64 {
            return Err(Error::new(ErrorKind::Bug, "frames arrived out of order"));
        }
        self.extend_from_slice(frame);
        Ok(())
    }

    fn restart(&mut self) {
        self.clear();
    }
}

/// What a store says about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Key relative to the source's root.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// ETag exactly as received, quotes included; files get a pseudo-ETag of size, time and inode.
    pub etag: Option<String>,
    /// Version id or generation, where the store has one.
    pub version: Option<String>,
    /// When it was last changed.
    pub modified: Option<SystemTime>,
}

/// What a fetch learned.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    /// Bytes handed to the sink: the length of the range.
    pub bytes: u64,
    /// Size of the whole object, when the store said so.
    pub object_size: Option<u64>,
    /// ETag of the answer, exactly as received.
    pub etag: Option<String>,
    /// Requests sent, 1 without retries.
    pub attempts: u32,
    /// From the last request to the first byte of its body.
    pub first_byte: Duration,
    /// From the last request to the end of its body.
    pub transfer: Duration,
}

/// A bucket or directory, opened at a root URL; clones share connections and credentials.
#[derive(Debug, Clone)]
pub struct Source {
    root: Arc<str>,
}

/// Pages of a listing.
pub type Listing = BoxStream<'static, Result<Vec<ObjectMeta>>>;

impl Source {
    /// Opens `url` (`s3://bucket/prefix`, `gs://`, `az://container/prefix`, `http(s)://host/path`, `file:///dir` or a
    /// plain path). No request is sent; credentials are looked up at the first one.
    ///
    /// # Errors
    /// `Invalid` for a URL or an option that cannot work, with a suggestion.
    pub fn open(url: &str, options: &SourceOptions) -> Result<Self> {
        let _ = options;
        Ok(Self { root: url.into() })
    }

    /// URL that keys are relative to, without a trailing slash.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The full URL of `key`, as messages name it.
    #[must_use]
    pub fn url_of(&self, key: &str) -> String {
        format!("{}/{key}", self.root)
    }

    /// Replaces the credentials for all requests from now on; running ones finish with the old ones.
    pub fn update_credentials(&self, credentials: Credentials) {
        let _ = credentials;
    }

    /// Makes sure that credentials are valid for some minutes, so that no fetch has to wait for a refresh.
    ///
    /// # Errors
    /// `Denied` when there are none.
    pub async fn warm_credentials(&self) -> Result<()> {
        Ok(())
    }

    /// Lists the objects below `prefix` (relative to the root; empty for all) in pages, ordered within a page.
    ///
    /// Prefixes are listed in parallel where the store has directories, so pages of different prefixes interleave.
    pub fn list(&self, prefix: &str) -> Listing {
        let _ = prefix;
        Box::pin(futures::stream::empty())
    }

    /// Asks for an object's metadata.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Unavailable`, `Timeout`.
    pub async fn head(&self, key: &str, deadline: Instant) -> Result<ObjectMeta> {
        let _ = (key, deadline);
        Err(Error::new(ErrorKind::Bug, "not there yet"))
    }

    /// Fetches `range` of `key` into `sink` and checks that the answer is exactly that.
    ///
    /// With `if_match`, the object must still have that ETag. An empty range answers at once without a request. Failed
    /// attempts are repeated within `deadline` as [`SourceOptions::retry`] says, each announced by [`Sink::restart`].
    /// Dropping the future cancels the request and closes its connection; the sink keeps what it got. The future is
    /// `Send` when the sink is.
    ///
    /// # Errors
    /// `Changed` when the object has another ETag or size, `Corrupt` when the answer is not what was asked for,
    /// `Timeout` at the deadline, and the kinds of [`ErrorKind`] by the answer's status.
    pub async fn fetch<S: Sink + ?Sized>(
        &self,
        key: &str,
        range: Range<u64>,
        if_match: Option<&str>,
        deadline: Instant,
        sink: &mut S,
    ) -> Result<Fetched> {
        let _ = (key, range, if_match, deadline, sink);
        Err(Error::new(ErrorKind::Bug, "not there yet"))
    }

    /// Reads a whole small object, such as a manifest or a saved index.
    ///
    /// # Errors
    /// `Invalid` when it has more than `limit_bytes`; otherwise as [`Source::fetch`].
    pub async fn read(&self, key: &str, limit_bytes: u64, deadline: Instant) -> Result<(Bytes, ObjectMeta)> {
        let _ = (key, limit_bytes, deadline);
        Err(Error::new(ErrorKind::Bug, "not there yet"))
    }
}
