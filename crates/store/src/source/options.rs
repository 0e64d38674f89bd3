//! Settings of a [`Source`](super::Source).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Who we are to the store.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// Requests are not signed.
    Anonymous,
    /// S3: an access key.
    AccessKey {
        /// Access key id.
        id: String,
        /// Secret access key.
        secret: String,
        /// Session token of temporary credentials.
        token: Option<String>,
    },
    /// S3's form, and a secret that the other side knows ([`Gate`](super::Gate)): requests are sealed with it, and answers that aren't are none. Over TLS the other side
    /// shows a key of the secret's ([`answering`](super::answering)), and no certificate.
    Secret(String),
    /// Google, Azure: an OAuth token.
    Bearer(String),
    /// Azure: the storage account's key, in base64.
    AccountKey(String),
    /// Azure: a shared access signature, the query string.
    Sas(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::AccessKey { id, .. } => write!(f, "AccessKey {{ id: {id:?}, secret: *** }}"),
            Self::Secret(_) => f.write_str("Secret(***)"),
            Self::Bearer(_) => f.write_str("Bearer(***)"),
            Self::AccountKey(_) => f.write_str("AccountKey(***)"),
            Self::Sas(_) => f.write_str("Sas(***)"),
        }
    }
}

/// How often and how fast a failed request is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Requests in total, at least 1. Default `None`: as many as the deadline allows. An outage is over when it is over, and until then a training run
    /// waits more cheaply than it ends.
    pub attempts: Option<u32>,
    /// Longest pause before the first repetition; doubles each time, the actual pause is random below it. Default 50 ms.
    pub pause: Duration,
    /// Longest pause ever. Default 5 s. A longer `Retry-After` wins.
    pub pause_limit: Duration,
    /// How long a call that somebody waits for (a listing, a question about one object) is repeated. Default 10 s: long enough for a store that restarts, and not so long that a wrong
    /// address looks like a hang.
    pub patience: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: None,
            pause: Duration::from_millis(50),
            pause_limit: Duration::from_secs(5),
            patience: Duration::from_secs(10),
        }
    }
}

impl Retry {
    /// One request, no repetition: for callers that retry themselves.
    #[must_use]
    pub fn never() -> Self {
        Self {
            attempts: Some(1),
            ..Self::default()
        }
    }
}

/// Settings of a source; the default reads the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`, `HTTPS_PROXY`) where a
/// field is not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceOptions {
    /// URL of the service instead of the cloud's own.
    pub endpoint: Option<String>,
    /// Region of the bucket. Default: `AWS_REGION`, the profile's, `us-east-1`.
    pub region: Option<String>,
    /// Who we are. Default: the store's usual chain (environment, profile, workload identity, instance metadata).
    pub credentials: Option<Credentials>,
    /// AWS profile in `~/.aws/config` and `~/.aws/credentials`. Default: `AWS_PROFILE`, `default`.
    pub profile: Option<String>,
    /// `https://bucket.host/key` rather than `https://host/bucket/key`. Default: only without `endpoint`.
    pub virtual_host: Option<bool>,
    /// Allows `http://` endpoints without encryption. Default: allowed on loopback only.
    pub allow_http: Option<bool>,
    /// HTTP proxy for all requests; empty: none. Default: `HTTPS_PROXY`/`HTTP_PROXY`, minus `NO_PROXY`.
    pub proxy: Option<String>,
    /// PEM file with more certificate authorities to trust. Default: `AWS_CA_BUNDLE`, `SSL_CERT_FILE`.
    pub ca_file: Option<PathBuf>,
    /// Agrees to pay for requests to a requester-pays bucket. Default: false.
    pub request_payer: bool,
    /// Longest wait for a connection, TLS included. Default 5 s.
    pub connect_timeout: Duration,
    /// Longest silence on a connection that should send. Default 10 s.
    pub read_timeout: Duration,
    /// How long an unused connection is kept. Default 20 s: S3 closes at about that age.
    pub idle_timeout: Duration,
    /// Most unused connections kept per host. Default 4096: as many as the engine has requests in flight at most.
    pub idle_connections: usize,
    /// Repetition of failed requests. Default [`Retry::default`].
    pub retry: Retry,
    /// Prefixes listed at the same time. Default 32.
    pub list_concurrency: usize,
    /// Further settings by the names that fsspec, obstore and the clouds' tools use; an unknown name is an error.
    pub storage_options: BTreeMap<String, String>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            credentials: None,
            profile: None,
            virtual_host: None,
            allow_http: None,
            proxy: None,
            ca_file: None,
            request_payer: false,
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(20),
            idle_connections: 4096,
            retry: Retry::default(),
            list_concurrency: 32,
            storage_options: BTreeMap::new(),
        }
    }
}
