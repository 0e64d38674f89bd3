//! Who we are to a store: where credentials come from, and how they stay fresh.
//!
//! What the caller sets (at open, or later through `update_credentials`) is used as it is. Otherwise S3 looks into the
//! environment and the AWS profile, and what remains (workload identity, container and instance metadata, service
//! accounts, managed identities) is object_store's chain, which caches and refreshes what it gets.

use crate::source::http::Client;
use crate::source::http::adapter::Adapter;
use crate::source::options::Credentials;
use crate::source::profile::{Issued, Profile};
use crate::source::seal::{Caller, Sealed};
use crate::source::settings::{Cloud, Settings};
use crate::source::sign::AccessKey;
use crate::{Error, ErrorKind, Result, env};
use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::azure::{AzureAccessKey, AzureCredential, AzureCredentialProvider, MicrosoftAzureBuilder, split_sas};
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::{BackoffConfig, RetryConfig};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, SystemTime};

/// What a request is authorised with.
#[derive(Debug, Clone)]
pub(crate) enum Authorization {
    None,
    Aws(Arc<AccessKey>),
    Secret(Arc<Caller>),
    /// One request's, of a secret.
    Sealed(Box<Sealed>),
    Bearer(Arc<str>),
    Azure(Arc<AzureCredential>),
}

impl Authorization {
    /// What one request is sent with.
    pub fn sealed(&self, method: &str, host: &str, path: &str) -> Self {
        match self {
            Self::Secret(caller) => Self::Sealed(Box::new(caller.seal(method, host, path))),
            other => other.clone(),
        }
    }

    /// Whether both are of one making.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Aws(one), Self::Aws(another)) => Arc::ptr_eq(one, another),
            (Self::Secret(one), Self::Secret(another)) => Arc::ptr_eq(one, another),
            (Self::Bearer(one), Self::Bearer(another)) => Arc::ptr_eq(one, another),
            (Self::Azure(one), Self::Azure(another)) => Arc::ptr_eq(one, another),
            _ => false,
        }
    }
}

/// Source of [`Authorization`]s for one store.
#[derive(Debug)]
pub(crate) struct Identity {
    cloud: Cloud,
    /// Set by the caller: wins over the chain.
    fixed: RwLock<Option<Authorization>>,
    chain: Chain,
    process: tokio::sync::Mutex<Option<Issued>>,
    /// The last key converted, so that a fetch allocates nothing.
    converted: Mutex<Option<(Arc<object_store::aws::AwsCredential>, Arc<AccessKey>)>>,
}

#[derive(Debug)]
enum Chain {
    Nothing(&'static str),
    Process(String),
    Profile(Profile),
    Aws(AwsCredentialProvider),
    Google(GcpCredentialProvider),
    Azure(AzureCredentialProvider),
}

// Credentials that end sooner are renewed before use, as AWS's own tools do.
const MIN_LIFE: Duration = Duration::from_secs(5 * 60);

impl Identity {
    /// Builds the chain. `profile` is the AWS profile in force, if there is one.
    pub fn new(settings: &Settings, profile: Option<Profile>, client: &Client) -> Result<Self> {
        let cloud = settings.cloud;
        let mut fixed = None;
        if let Some(credentials) = &settings.options.credentials {
            fixed = Some(convert(cloud, credentials)?);
        }
        if cloud == Cloud::Http && fixed.is_none() {
            fixed = Some(Authorization::None);
        }
        let mut chain = Chain::Nothing("set credentials, or anonymous access for a public bucket");
        if fixed.is_none() {
            if let Some(key) = profile.as_ref().and_then(Profile::access_key) {
                fixed = Some(Authorization::Aws(Arc::new(key)));
            } else if let Some(command) = profile.as_ref().and_then(|p| p.get("credential_process")) {
                chain = Chain::Process(command.to_owned());
            } else if let Some(profile) = profile.filter(|p| p.unsupported().is_some()) {
                chain = Chain::Profile(profile);
            } else {
                chain = chain_of(settings, client)?;
            }
        }
        let (process, converted) = (tokio::sync::Mutex::default(), Mutex::default());
        Ok(Self {
            cloud,
            fixed: RwLock::new(fixed),
            chain,
            process,
            converted,
        })
    }

    /// Uses these credentials from now on.
    pub fn update(&self, credentials: &Credentials) -> Result<()> {
        let authorization = convert(self.cloud, credentials)?;
        *self.fixed.write().unwrap_or_else(|e| e.into_inner()) = Some(authorization);
        Ok(())
    }

    /// Whether the caller has set other credentials than these since they were current.
    pub fn was_renewed(&self, used: &Authorization) -> bool {
        let fixed = self.fixed.read().unwrap_or_else(|e| e.into_inner());
        fixed.as_ref().is_some_and(|fixed| !fixed.is(used))
    }

    /// Credentials that are valid now; asks the chain when the cached ones end soon.
    pub async fn current(&self) -> Result<Authorization> {
        let fixed = self.fixed.read().unwrap_or_else(|e| e.into_inner()).clone();
        if let Some(fixed) = fixed {
            return Ok(fixed);
        }
        match &self.chain {
            Chain::Nothing(remedy) => {
                Err(Error::new(ErrorKind::Denied, "there are no credentials").with_remedy(*remedy))
            }
            Chain::Profile(profile) => {
                let unsupported = profile.unsupported();
                Err(unsupported.unwrap_or_else(|| Error::new(ErrorKind::Bug, "a usable profile was refused")))
            }
            Chain::Process(command) => self.run_process(command).await,
            Chain::Aws(provider) => {
                let got = provider.get_credential().await.map_err(|e| missing(e, AWS_REMEDY))?;
                Ok(Authorization::Aws(self.convert_key(got)))
            }
            Chain::Google(provider) => {
                let got = provider.get_credential().await.map_err(|e| missing(e, GOOGLE_REMEDY))?;
                Ok(Authorization::Bearer(Arc::from(got.bearer.as_str())))
            }
            Chain::Azure(provider) => Ok(Authorization::Azure(
                provider.get_credential().await.map_err(|e| missing(e, AZURE_REMEDY))?,
            )),
        }
    }

    /// Whether requests aren't signed.
    pub fn is_anonymous(&self) -> bool {
        let fixed = self.fixed.read().unwrap_or_else(|e| e.into_inner());
        matches!(&*fixed, Some(Authorization::None))
    }

    /// What the caller set for Azure: `Some(None)` for anonymous access.
    pub fn fixed_azure(&self) -> Option<Option<Arc<AzureCredential>>> {
        match &*self.fixed.read().unwrap_or_else(|e| e.into_inner()) {
            Some(Authorization::Azure(credential)) => Some(Some(credential.clone())),
            Some(_) => Some(None),
            None => None,
        }
    }

    async fn run_process(&self, command: &str) -> Result<Authorization> {
        let mut kept = self.process.lock().await;
        let fresh = |issued: &Issued| issued.expires.is_none_or(|end| end > SystemTime::now() + MIN_LIFE);
        if !kept.as_ref().is_some_and(fresh) {
            *kept = Some(Profile::run_process(command).await?);
        }
        let key = kept.as_ref().map(|issued| issued.key.clone());
        key.map(|key| Authorization::Aws(Arc::new(key)))
            .ok_or_else(|| Error::new(ErrorKind::Bug, "no key was kept"))
    }

    fn convert_key(&self, got: Arc<object_store::aws::AwsCredential>) -> Arc<AccessKey> {
        let mut kept = self.converted.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((from, key)) = &*kept
            && Arc::ptr_eq(from, &got)
        {
            return key.clone();
        }
        let key = AccessKey {
            id: got.key_id.clone(),
            secret: got.secret_key.clone(),
            token: got.token.clone(),
        };
        let key = Arc::new(key);
        *kept = Some((got, key.clone()));
        key
    }
}

const AWS_REMEDY: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or credential_provider=; \
    for a public bucket use anonymous access";
const GOOGLE_REMEDY: &str = "set GOOGLE_APPLICATION_CREDENTIALS or run `gcloud auth application-default login`; \
    for a public bucket use anonymous access";
const AZURE_REMEDY: &str = "set AZURE_STORAGE_ACCOUNT_KEY, a SAS token or a managed identity; \
    for a public container use anonymous access";

fn missing(error: object_store::Error, remedy: &'static str) -> Error {
    // What was asked last, often a service that only machines in a cloud have, comes after what to do.
    Error::new(ErrorKind::Denied, "there are no credentials")
        .with_remedy(format!("{remedy}. What was asked last said: {error}"))
        .with_source(error)
}

fn convert(cloud: Cloud, credentials: &Credentials) -> Result<Authorization> {
    let azure = |credential| Ok(Authorization::Azure(Arc::new(credential)));
    match (cloud, credentials) {
        (_, Credentials::Anonymous) => Ok(Authorization::None),
        (Cloud::S3, Credentials::AccessKey { id, secret, token }) => {
            let key = AccessKey {
                id: id.clone(),
                secret: secret.clone(),
                token: token.clone(),
            };
            Ok(Authorization::Aws(Arc::new(key)))
        }
        (Cloud::S3, Credentials::Secret(secret)) => {
            let caller = Caller::new(secret);
            let caller =
                caller.map_err(|_| Error::new(ErrorKind::Unavailable, "the system draws no random numbers"))?;
            Ok(Authorization::Secret(Arc::new(caller)))
        }
        (Cloud::Azure, Credentials::Bearer(token)) => azure(AzureCredential::BearerToken(token.clone())),
        (Cloud::Gs | Cloud::Http, Credentials::Bearer(token)) => Ok(Authorization::Bearer(Arc::from(token.as_str()))),
        (Cloud::Azure, Credentials::AccountKey(key)) => azure(AzureCredential::AccessKey(
            AzureAccessKey::try_new(key).map_err(|e| wrong("account key", &e))?,
        )),
        (Cloud::Azure, Credentials::Sas(text)) => {
            let text = text.trim_start_matches('?');
            azure(AzureCredential::SASToken(
                split_sas(text).map_err(|e| wrong("SAS token", &e))?,
            ))
        }
        (cloud, other) => {
            let message = format!("credentials of kind {other:?} are not for {cloud:?}");
            Err(Error::invalid(message).with_remedy("use the kind that the store's own tools use"))
        }
    }
}

fn wrong(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("the {what} is malformed: {error}"))
}

fn chain_of(settings: &Settings, client: &Client) -> Result<Chain> {
    // Refreshing happens inside a fetch: two more tries, and no longer than a fetch may take.
    let retry = RetryConfig {
        max_retries: 2,
        retry_timeout: Duration::from_secs(20),
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            ..BackoffConfig::default()
        },
    };
    let adapter = Adapter(client.clone());
    let failed = |e: object_store::Error| {
        Error::invalid(format!("the credential settings do not fit together: {e}")).with_source(e)
    };
    match settings.cloud {
        Cloud::Http => Ok(Chain::Nothing("")),
        Cloud::S3 => {
            let is_plain = !settings
                .chain
                .keys()
                .any(|k| k.starts_with("container_") || k.starts_with("web_"));
            if is_plain && env::get("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
                return Ok(Chain::Nothing(AWS_REMEDY));
            }
            let mut builder = AmazonS3Builder::new().with_bucket_name("credentials").with_retry(retry);
            for (name, value) in &settings.chain {
                let key = format!("aws_{name}").parse().map_err(failed)?;
                builder = builder.with_config(key, value);
            }
            if let Some(region) = &settings.options.region {
                builder = builder.with_region(region);
            }
            let store = builder.with_http_connector(adapter).build().map_err(failed)?;
            Ok(Chain::Aws(store.credentials().clone()))
        }
        Cloud::Gs => {
            let mut builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name("credentials")
                .with_retry(retry);
            for (name, value) in &settings.chain {
                builder = builder.with_config(name.parse().map_err(failed)?, value);
            }
            let store = builder.with_http_connector(adapter).build().map_err(failed)?;
            Ok(Chain::Google(store.credentials().clone()))
        }
        Cloud::Azure => {
            let store = azure_builder(settings, client)?
                .with_retry(retry)
                .build()
                .map_err(failed)?;
            Ok(Chain::Azure(store.credentials().clone()))
        }
    }
}

/// Azure's builder with everything but a container, for credentials and listings.
pub(crate) fn azure_builder(settings: &Settings, client: &Client) -> Result<MicrosoftAzureBuilder> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name("credentials")
        .with_allow_http(true)
        .with_http_connector(Adapter(client.clone()));
    for (name, value) in &settings.chain {
        let key = name.parse().map_err(|e: object_store::Error| wrong("setting", &e))?;
        builder = builder.with_config(key, value);
    }
    if let Some(account) = &settings.account {
        builder = builder.with_account(account);
    }
    if settings.emulator {
        builder = builder.with_use_emulator(true);
    }
    if let Some(endpoint) = &settings.options.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_is_said_before_who_was_asked_last() {
        let last = object_store::Error::Generic {
            store: "S3",
            source: "PUT http://169.254.169.254 failed".into(),
        };
        let error = missing(last, AWS_REMEDY).to_string();
        let at = |words: &str| error.find(words).expect("said");
        assert!(error.starts_with("there are no credentials"), "{error}");
        assert!(at("AWS_ACCESS_KEY_ID") < at("169.254.169.254"), "{error}");
    }
}
