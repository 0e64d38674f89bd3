//! An S3-compatible server on this machine, for tests and benchmarks.
//!
//! A request goes through [`service`]: its signature is checked ([`auth`]), it is counted
//! ([`counters`]), the faults that hit it are chosen ([`fault`]), the profile's time to the first
//! byte passes ([`profile`]), then it is answered from [`storage`] by [`read`], [`list`] or
//! [`mod@write`]. The body of a GET is paced while it is sent ([`body`]). `/_testkit/...`
//! ([`control`]) sets faults and reads counters while the server runs.
//!
//! [`Bucket::start`] runs a server on a thread of its own with a current-thread runtime, so tests
//! with and without a runtime can use it, and a benchmark can pin it to one CPU. The server binds
//! loopback addresses and those for tests of networks (198.18.0.0/15), and never anything else.

pub mod auth;
pub mod body;
pub mod checksum;
pub mod chunked;
pub mod content;
pub mod control;
pub mod counters;
pub mod directory;
pub mod fault;
pub mod list;
pub mod profile;
pub mod read;
pub mod refusal;
pub mod server;
pub mod service;
pub mod storage;
pub mod synthetic;
pub mod write;
pub mod xml;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::oneshot;

pub use auth::Keys;
pub use counters::{Class, Counts, Level, PerObject};
pub use fault::{Fault, Kind};
pub use profile::Profile;
pub use synthetic::Rule;

use content::Content;
use server::State;
use storage::Object;

/// What can go wrong when a server starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is neither a loopback address nor one for tests of networks.
    #[error("the test bucket listens on loopback or on 198.18.0.0/15, which is for tests of networks, not on {0}")]
    NotForTests(SocketAddr),
    /// The address can't be bound, or the directory can't be used.
    #[error("the test bucket can't use {what}: {source}")]
    Io {
        /// The address or the directory.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A setting makes no sense.
    #[error("a setting of the test bucket makes no sense: {0}")]
    Setting(String),
    /// The certificate can't be made.
    #[error("the test bucket's certificate can't be made: {0}")]
    Tls(#[from] crate::tls::Error),
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen (default 127.0.0.1 on a free port); loopback, or 198.18.0.0/15.
    pub listen: SocketAddr,
    /// The timing (default [`Profile::fast`]).
    pub profile: Profile,
    /// Who may use it.
    pub keys: Keys,
    /// What all draws depend on: delays, faults, synthetic content (default 0).
    pub seed: u64,
    /// Where objects are kept (default none: in memory).
    pub directory: Option<PathBuf>,
    /// Sets of synthetic objects (default none).
    pub synthetic: Vec<Rule>,
    /// Buckets that exist from the start (default `bench`).
    pub buckets: Vec<String>,
    /// Faults from the start (default none).
    pub faults: Vec<Fault>,
    /// Whether to speak TLS, with a certificate made at start (default no).
    pub tls: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            profile: Profile::fast(),
            keys: Keys::default(),
            seed: 0,
            directory: None,
            synthetic: Vec::new(),
            buckets: vec!["bench".into()],
            faults: Vec::new(),
            tls: false,
        }
    }
}

/// A running server; it ends when this is dropped.
pub struct Bucket {
    state: Arc<State>,
    address: SocketAddr,
    ca_pem: Option<String>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bucket {
    /// Starts a server; it accepts connections when this returns.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn start(settings: Settings) -> Result<Self, Error> {
        let server = server::Server::bind(settings)?;
        let (state, address) = (Arc::clone(&server.state), server.address);
        let ca_pem = server.ca_pem.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("testbucket".into())
            .spawn(move || {
                let ran = server.run(1, async {
                    let _ = stopped.await;
                });
                if let Err(error) = ran {
                    eprintln!("testbucket: {error}");
                }
            })
            .map_err(|source| Error::Io {
                what: "a thread".into(),
                source,
            })?;
        Ok(Self {
            state,
            address,
            ca_pem,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Starts a server with default settings.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn start_default() -> Result<Self, Error> {
        Self::start(Settings::default())
    }

    /// The URL for `endpoint_url`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let scheme = if self.ca_pem.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate to trust, with TLS.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// The keys it accepts.
    #[must_use]
    pub fn keys(&self) -> Keys {
        self.state.keys()
    }

    /// Changes the keys, as a rotation of credentials does.
    pub fn set_keys(&self, keys: Keys) {
        self.state.set_keys(keys);
    }

    /// Changes the timing.
    pub fn set_profile(&self, profile: Profile) {
        self.state.set_profile(profile);
    }

    /// Makes a bucket; nothing happens when it exists.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn create_bucket(&self, bucket: &str) -> Result<(), Error> {
        let made = self.state.storage.create_bucket(bucket);
        made.map(drop).map_err(|source| Error::Io {
            what: bucket.into(),
            source,
        })
    }

    /// Puts an object there without a request, making its bucket; returns its ETag.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn put(&self, bucket: &str, key: &str, body: impl Into<Bytes>) -> Result<String, Error> {
        self.create_bucket(bucket)?;
        let body = body.into();
        let object = Object {
            etag: checksum::etag(&body),
            content: Content::Memory(body),
            modified: SystemTime::now(),
            content_type: None,
            metadata: Vec::new(),
            checksum: None,
        };
        let what = format!("{bucket}/{key}");
        self.state
            .storage
            .put(bucket, key, object)
            .map_err(|source| Error::Io { what, source })
    }

    /// Removes an object without a request.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn delete(&self, bucket: &str, key: &str) -> Result<(), Error> {
        let what = format!("{bucket}/{key}");
        self.state
            .storage
            .delete(bucket, key)
            .map_err(|source| Error::Io { what, source })
    }

    /// An object's bytes, read without a request; `None` when there is no such object.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn read(&self, bucket: &str, key: &str) -> Result<Option<Bytes>, Error> {
        let read = || -> io::Result<Option<Bytes>> {
            let object = self.state.storage.get(bucket, key)?;
            object.map(|object| object.content.to_bytes()).transpose()
        };
        read().map_err(|source| Error::Io {
            what: format!("{bucket}/{key}"),
            source,
        })
    }

    /// All keys of a bucket with their sizes and ETags, listed without a request.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn entries(&self, bucket: &str, prefix: &str) -> Result<Vec<storage::Entry>, Error> {
        let page = self.state.storage.page(bucket, prefix, "", usize::MAX);
        page.map_err(|source| Error::Io {
            what: format!("{bucket}/{prefix}"),
            source,
        })
    }

    /// Gives a synthetic object its next version: other bytes, other ETag.
    #[must_use]
    pub fn touch(&self, bucket: &str, key: &str) -> bool {
        self.state.storage.touch(bucket, key)
    }

    /// The counts since the last reset.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.counters.snapshot(true)
    }

    /// Sets the counts to zero.
    pub fn reset_counts(&self) {
        self.state.counters.reset();
    }

    /// Adds a fault.
    pub fn add_fault(&self, fault: Fault) {
        self.state.faults().add(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.state.faults().clear();
    }

    /// Ends the server and waits for its thread.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("testbucket: the server's thread panicked");
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.stop();
    }
}
