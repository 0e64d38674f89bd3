//! Where the bytes are: buckets (`s3 gs az http https`) and directories (`file`), behind one [`Source`].
//!
//! A source lists objects and fetches byte ranges. [`Source::fetch`] is the hot path: it sends one ranged GET, checks
//! status, range, length and ETag of the answer, and hands each body frame to the caller's [`Sink`] as it arrives, so
//! that bytes are copied once, from the connection's buffer to where they will be used. Whatever does not match
//! exactly what was asked for is an error; nothing wrong is ever reported as done.
//!
//! The engine fetches through it, `format` lists and reads headers through it. A source keeps connections but no data,
//! decides no order, and retries a request only inside the deadline it was given.

mod address;
mod cloud;
mod file;
mod foreign;
mod http;
mod listing;
mod options;
mod outage;
pub mod parts;
mod private;
mod profile;
mod retry;
mod seal;
mod settings;
mod sign;
mod writer;

pub(crate) use address::without_slash;
pub use address::{joined, scheme};
pub(crate) use listing::Wanted;
pub use options::{Credentials, Retry, SourceOptions};
pub use private::answering;
pub use seal::{FIELD as SEAL, Gate, Seal};
pub use settings::storage_options;
pub(crate) use sign::hex;
pub use writer::{MOST_PARTS, Upload, Writer};

use crate::{Error, ErrorKind, ObjectRef, Result};
use address::{Address, Place};
use bytes::Bytes;
use cloud::{Bucket, Progress};
use file::Directory;
use futures::stream::BoxStream;
use outage::Outage;
use retry::{Attempts, retrying};
use settings::{Cloud, Settings};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Receives the bytes of a fetch, in order, as they arrive.
pub trait Sink {
    /// A request goes out for what comes next: the first one, or a repetition.
    fn asked(&mut self) {}

    /// The request failed so; unless that is final, another one follows.
    fn broke(&mut self, _error: &Error) {}

    /// Whether the repetition may be sent: asked after its pause, until it may or the deadline is there. A caller that has a limit on requests holds
    /// repetitions to it here.
    fn poll_again(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Memory for the bytes from `at` on, if they may be read right to where they belong: [`Sink::filled`] follows then. Else they come by way of
    /// [`Sink::write`], as they do where they are encrypted or in chunks.
    fn room(&mut self, _at: u64) -> Option<&mut [u8]> {
        None
    }

    /// The first `len` bytes of the [`Sink::room`] for `at` have been read.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn filled(&mut self, _at: u64, _len: usize) -> Result<()> {
        Ok(())
    }

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
    /// ETag exactly as received, quotes included; files get a pseudo-ETag of size and time.
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
    /// What the last request waited for a connection before it was sent; no part of the other two.
    pub connecting: Duration,
}

/// What lies directly in a prefix.
#[derive(Debug, Clone, Default)]
pub struct Entries {
    /// Objects.
    pub objects: Vec<ObjectMeta>,
    /// Prefixes one level deeper, relative to the root, each with a trailing slash.
    pub prefixes: Vec<String>,
}

/// A bucket or directory, opened at a root URL; clones share connections and credentials.
#[derive(Debug, Clone)]
pub struct Source {
    root: Arc<str>,
    /// What tells its store from others that may have the same root.
    told: Arc<str>,
    store: Store,
    retry: Retry,
    outage: Arc<Outage>,
    list_concurrency: usize,
}

#[derive(Debug, Clone)]
enum Store {
    Bucket(Arc<Bucket>),
    Directory(Arc<Directory>),
}

/// Pages of a listing.
pub type Listing = BoxStream<'static, Result<Vec<ObjectMeta>>>;

impl Source {
    /// Opens `url` (`s3://bucket/prefix`, `gs://`, `az://container/prefix`, `http(s)://host/path`, `file:///dir` or a
    /// plain path). No request is sent; credentials are looked up at the first one. It reads small files (AWS profile,
    /// certificates), so call it where some milliseconds do not matter.
    ///
    /// # Errors
    /// `Invalid` for a URL or an option that cannot work, with a suggestion.
    pub fn open(url: &str, options: &SourceOptions) -> Result<Self> {
        let address = Address::parse(url)?;
        let store = match &address.place {
            Place::Directory(path) => {
                Settings::resolve(Cloud::Http, options)?; // storage options are checked for every source
                Store::Directory(Arc::new(Directory::new(path.clone())))
            }
            Place::Cloud(cloud) => {
                let mut settings = Settings::resolve(*cloud, options)?;
                settings.account = address.account.clone().or(settings.account);
                Store::Bucket(Arc::new(
                    Bucket::open(&address, settings).map_err(|e| e.with_object(url))?,
                ))
            }
        };
        let (retry, list_concurrency) = (options.retry, options.list_concurrency);
        let told = match &store {
            Store::Bucket(bucket) => bucket.store(),
            Store::Directory(_) => String::new(),
        };
        Ok(Self {
            root: address.root().into(),
            told: told.into(),
            store,
            retry,
            outage: Arc::default(),
            list_concurrency,
        })
    }

    /// URL that keys are relative to, without a trailing slash.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The full URL of `key`, as messages name it.
    #[must_use]
    pub fn url_of(&self, key: &str) -> String {
        joined(&self.root, key)
    }

    /// What answers its requests, and is shared by all who ask it: the scheme, host and port of a store, or the directory.
    #[must_use]
    pub fn endpoint(&self) -> String {
        match &self.store {
            Store::Bucket(bucket) => bucket.endpoint(),
            Store::Directory(_) => self.root.to_string(),
        }
    }

    /// What tells the store from others in which the same root may have other objects; empty: the root says it.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.told
    }

    /// Fetches that are of any use at a time: a store says itself when it has too many.
    #[must_use]
    pub fn most_requests(&self) -> u32 {
        match &self.store {
            Store::Bucket(_) => u32::MAX,
            Store::Directory(_) => file::MOST_REQUESTS,
        }
    }

    /// Whether fetching runs into the page cache of this machine (`file`) rather than over the network.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.store, Store::Directory(_))
    }

    /// Replaces the credentials for all requests from now on; running ones finish with the old ones.
    ///
    /// # Errors
    /// `Invalid` when the credentials are not of a kind this store takes.
    pub fn update_credentials(&self, credentials: &Credentials) -> Result<()> {
        match &self.store {
            Store::Bucket(bucket) => bucket.identity().update(credentials),
            Store::Directory(_) => Ok(()),
        }
    }

    /// Makes sure that credentials are valid for some minutes, so that no fetch has to wait for a refresh.
    ///
    /// Call it before the first fetch and about once a minute.
    ///
    /// # Errors
    /// `Denied` when there are none.
    pub async fn warm_credentials(&self) -> Result<()> {
        match &self.store {
            Store::Bucket(bucket) => bucket.authorization().await.map(|_| ()),
            Store::Directory(_) => Ok(()),
        }
    }

    /// Lists the objects below `prefix` (relative to the root; empty for all, otherwise best with a trailing slash) in
    /// pages.
    ///
    /// Prefixes are listed in parallel where the store has directories, so pages of different prefixes interleave.
    pub fn list(&self, prefix: &str) -> Listing {
        self.list_wanted(listing::Wanted::all(prefix.to_owned()))
    }

    /// Lists what is wanted, and maybe more.
    pub(crate) fn list_wanted(&self, wanted: listing::Wanted) -> Listing {
        use futures::TryStreamExt;
        let root = self.root.clone();
        let pages = listing::all(&self.store, wanted, self.retry, self.list_concurrency);
        Box::pin(pages.map_err(move |e| e.with_object(root.to_string())))
    }

    /// Lists what lies directly in `prefix`, which is empty or ends in a slash.
    ///
    /// # Errors
    /// As [`Source::head`].
    pub async fn list_level(&self, prefix: &str) -> Result<Entries> {
        listing::level(&self.store, prefix, self.retry)
            .await
            .map_err(|e| e.with_object(self.url_of(prefix)))
    }

    /// Whether there is anything below `prefix`, which ends in a slash: an object, a mark that stands for the directory, or an empty directory of a disk.
    ///
    /// # Errors
    /// As [`Source::head`].
    pub async fn is_any(&self, prefix: &str) -> Result<bool> {
        listing::is_any(&self.store, prefix, self.retry)
            .await
            .map_err(|e| e.with_object(self.url_of(prefix)))
    }

    /// Asks for an object's metadata.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Unavailable`, `Timeout`.
    pub async fn head(&self, key: &str, deadline: Instant) -> Result<ObjectMeta> {
        let head = retrying(self.retry, deadline, || async {
            match &self.store {
                Store::Bucket(bucket) => bucket.head(key, deadline).await,
                Store::Directory(directory) => directory.head(key, deadline).await,
            }
        });
        head.await.map_err(|e| e.with_object(self.url_of(key)))
    }

    /// The key of the first of these objects that isn't what it was, or is gone, where a look is no request: of files, one after the other for at most
    /// `most`.
    ///
    /// # Errors
    /// `Timeout` at the deadline.
    pub async fn first_changed(
        &self,
        known: impl Iterator<Item = ObjectRef> + Send + 'static,
        most: Duration,
        deadline: Instant,
    ) -> Result<Option<String>> {
        match &self.store {
            Store::Bucket(_) => Ok(None),
            Store::Directory(directory) => directory.first_changed(known, most, deadline).await,
        }
    }

    /// Fetches `range` of `key` into `sink` and checks that the answer is exactly that.
    ///
    /// With `if_match`, the object must still have that ETag. An empty range answers at once without a request. Failed
    /// attempts are repeated within `deadline` as [`SourceOptions::retry`] says: with `if_match` a broken transfer goes on
    /// where it broke, otherwise it begins anew, announced by [`Sink::restart`]. Dropping the future cancels the request
    /// and closes its connection; the sink keeps what it got. The future is `Send` when the sink is.
    ///
    /// # Errors
    /// `Changed` when the object has another ETag or size, `Corrupt` when the answer is not what was asked for,
    /// `Timeout` at the deadline, the sink's own error, and the kinds of [`ErrorKind`] by the answer's status.
    pub async fn fetch<S: Sink + ?Sized>(
        &self,
        key: &str,
        range: Range<u64>,
        if_match: Option<&str>,
        deadline: Instant,
        sink: &mut S,
    ) -> Result<Fetched> {
        let context = |e: Error| e.with_object(self.url_of(key)).with_range(range.clone());
        if range.start > range.end {
            return Err(context(Error::invalid("the range ends before it begins")));
        }
        let mut progress = Progress::default();
        let mut attempts = Attempts::new(self.retry, deadline, &self.outage);
        if range.is_empty() {
            return Ok(Fetched::default());
        }
        loop {
            attempts.made += 1;
            sink.asked();
            let result = match &self.store {
                Store::Bucket(bucket) => bucket.get(key, &range, if_match, deadline, sink, &mut progress).await,
                Store::Directory(directory) => {
                    directory
                        .get(key, &range, if_match, deadline, sink, &mut progress)
                        .await
                }
            };
            let Err(error) = result else {
                self.outage.answered();
                let Progress {
                    bytes,
                    object_size,
                    etag,
                    first_byte,
                    transfer,
                    connecting,
                    ..
                } = progress;
                return Ok(Fetched {
                    bytes,
                    object_size,
                    etag,
                    attempts: attempts.made,
                    first_byte,
                    transfer,
                    connecting,
                });
            };
            if progress.is_doubted {
                continue;
            }
            let is_corrupt = error.kind() == ErrorKind::Corrupt;
            sink.broke(&error);
            attempts.after(error).await.map_err(context)?;
            let turn = poll_fn(|cx| sink.poll_again(cx));
            attempts.in_time(turn).await.map_err(context)?;
            // Only an object known to be the same may be continued, and nothing of which all came but the end.
            let is_over = progress.bytes >= range.end - range.start;
            if is_corrupt || is_over || if_match.is_none_or(|etag| etag.starts_with("W/")) {
                if progress.bytes > 0 {
                    sink.restart();
                }
                progress = Progress::default();
            }
        }
    }

    /// Fetches `range` of an object that is still what the index says: its ETag, and its size wherever the store tells it.
    ///
    /// # Errors
    /// As [`Source::fetch`]; `Changed` when the object has another size. By then the sink has the bytes.
    pub async fn fetch_indexed<S: Sink + ?Sized>(
        &self,
        object: &ObjectRef,
        range: Range<u64>,
        deadline: Instant,
        sink: &mut S,
    ) -> Result<Fetched> {
        let etag = object.etag.as_deref();
        let fetched = self.fetch(&object.key, range.clone(), etag, deadline, sink).await?;
        match fetched.object_size.filter(|size| *size != object.size) {
            None => Ok(fetched),
            Some(size) => {
                let what = format!("the object has {size} bytes, indexed were {}", object.size);
                let error = Error::new(ErrorKind::Changed, what).with_object(self.url_of(&object.key));
                Err(error.with_range(range).with_remedy(
                    "opening it with refresh=True, or `foreload index --update`, renews the index; a manifest's column of sizes must be right",
                ))
            }
        }
    }

    /// Asks a peer for several objects in one request, which `key` names together. It is asked once.
    ///
    /// # Errors
    /// `Invalid` where no secret is known; otherwise as [`Source::fetch`].
    pub async fn ask_parts(
        &self,
        key: &str,
        count: usize,
        expects: u64,
        deadline: Instant,
    ) -> Result<parts::PartsAnswer> {
        let asked = match &self.store {
            Store::Bucket(bucket) => bucket.ask_parts(key, count, expects, deadline).await,
            Store::Directory(_) => Err(Error::invalid("files are read one by one")),
        };
        asked.map_err(|error| error.with_object(self.url_of(key)))
    }

    /// Reads a whole small object, such as a manifest or a saved index.
    ///
    /// # Errors
    /// `Invalid` when it has more than `limit_bytes`; otherwise as [`Source::fetch`].
    pub async fn read(&self, key: &str, limit_bytes: u64, deadline: Instant) -> Result<(Bytes, ObjectMeta)> {
        let meta = self.head(key, deadline).await?;
        if meta.size > limit_bytes {
            let error = Error::invalid(format!(
                "it has {} bytes, more than the {limit_bytes} expected",
                meta.size
            ));
            return Err(error.with_object(self.url_of(key)));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.size).unwrap_or(0));
        self.fetch(key, 0..meta.size, meta.etag.as_deref(), deadline, &mut bytes)
            .await?;
        Ok((bytes.into(), meta))
    }
}
