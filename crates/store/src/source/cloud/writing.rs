//! Who writes to a bucket: object_store's clients, over our connections and with our credentials.

use super::identity::Authorization;
use super::{Adapter, Bucket, Cloud};
use crate::{Error, ErrorKind, Result};
use object_store::aws::{AmazonS3Builder, AwsCredential};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use object_store::{
    BackoffConfig, ClientOptions, CredentialProvider, ObjectStore, RetryConfig, StaticCredentialProvider,
};
use std::sync::Arc;
use std::time::Duration;

/// A store that takes objects whole, and in parts that come in any order.
pub trait AnyOrder: ObjectStore + MultipartStore {}

impl<S: ObjectStore + MultipartStore> AnyOrder for S {}

/// A bucket's credentials, as object_store asks for them.
#[derive(Debug)]
struct Current(Arc<Bucket>);

impl Current {
    async fn authorization(&self) -> object_store::Result<Authorization> {
        let current = self.0.authorization().await;
        current.map_err(|error| match error.kind() {
            ErrorKind::Denied => object_store::Error::Unauthenticated {
                path: self.0.name.clone(),
                source: Box::new(error),
            },
            _ => generic(error),
        })
    }
}

fn generic(error: Error) -> object_store::Error {
    object_store::Error::Generic {
        store: "credentials",
        source: Box::new(error),
    }
}

/// The same for Amazon's.
#[derive(Debug)]
struct Amazon(Current);

#[async_trait::async_trait]
impl CredentialProvider for Amazon {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        match self.0.authorization().await? {
            Authorization::Aws(key) => Ok(Arc::new(AwsCredential {
                key_id: key.id.clone(),
                secret_key: key.secret.clone(),
                token: key.token.clone(),
            })),
            _ => Err(generic(Error::invalid("the credentials are of another kind than S3's"))),
        }
    }
}

/// And for Google's.
#[derive(Debug)]
struct Google(Current);

#[async_trait::async_trait]
impl CredentialProvider for Google {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        match self.0.authorization().await? {
            Authorization::Bearer(token) => Ok(Arc::new(GcpCredential {
                bearer: token.to_string(),
            })),
            _ => Err(generic(Error::invalid(
                "the credentials are of another kind than Google's",
            ))),
        }
    }
}

impl Bucket {
    /// Who writes to it, and what keys begin with there. `timeout`: how long a request may be repeated.
    ///
    /// # Errors
    /// `Invalid`: it can't be written to.
    pub fn writing_store(self: Arc<Self>, timeout: Duration) -> Result<(Arc<dyn AnyOrder>, String)> {
        let failed = |e: object_store::Error| Error::invalid(format!("writing cannot be set up: {e}")).with_source(e);
        let retry = RetryConfig {
            max_retries: usize::MAX,
            retry_timeout: timeout,
            backoff: BackoffConfig {
                init_backoff: self.settings.options.retry.pause,
                max_backoff: self.settings.options.retry.pause_limit,
                ..BackoffConfig::default()
            },
        };
        let (site, adapter) = (self.site(), Adapter(self.client.clone()));
        // Whether it may be plain HTTP was decided when the bucket was opened.
        let client = ClientOptions::new().with_allow_http(true);
        let whole = format!("{}{}", site.origin, site.path);
        let by_path = whole.strip_suffix(&format!("/{}", self.name));
        let anonymous = self.identity.is_anonymous();
        let store: Arc<dyn AnyOrder> =
            match self.cloud {
                Cloud::S3 => {
                    let mut builder = AmazonS3Builder::new()
                        .with_bucket_name(&self.name)
                        .with_region(&site.region)
                        .with_endpoint(by_path.unwrap_or(&whole))
                        .with_virtual_hosted_style_request(by_path.is_none())
                        .with_request_payer(self.settings.options.request_payer)
                        .with_client_options(client)
                        .with_http_connector(adapter)
                        .with_retry(retry);
                    builder = match anonymous {
                        true => builder.with_skip_signature(true),
                        false => builder.with_credentials(Arc::new(Amazon(Current(Arc::clone(&self))))),
                    };
                    Arc::new(builder.build().map_err(failed)?)
                }
                Cloud::Gs => {
                    let mut builder = GoogleCloudStorageBuilder::new()
                        .with_bucket_name(&self.name)
                        .with_config(GoogleConfigKey::BaseUrl, by_path.unwrap_or(&whole))
                        .with_client_options(client)
                        .with_http_connector(adapter)
                        .with_retry(retry);
                    builder =
                        match anonymous {
                            // It asks for credentials all the same where it writes: these are nobody's.
                            true => builder.with_skip_signature(true).with_credentials(Arc::new(
                                StaticCredentialProvider::new(GcpCredential { bearer: String::new() }),
                            )),
                            false => builder.with_credentials(Arc::new(Google(Current(Arc::clone(&self))))),
                        };
                    Arc::new(builder.build().map_err(failed)?)
                }
                Cloud::Azure => Arc::new(self.azure_builder()?.with_retry(retry).build().map_err(failed)?),
                Cloud::Http => {
                    return Err(Error::invalid("a web server can't be written to")
                        .with_remedy("name the bucket itself: s3://, gs:// or az://"));
                }
            };
        Ok((store, self.prefix.clone()))
    }
}
