//! Buckets: how a key becomes a request, who signs it, and what comes back.
//!
//! One path serves S3, Google, Azure and plain HTTP servers, because a ranged GET is the same for all: they differ in
//! where a bucket lives ([`Site`]), in how a request is authorised (`identity`, `sign`) and in how objects are listed
//! (`listing`).

mod answer;
pub(crate) mod identity;
pub(crate) mod listing;
mod site;
mod writing;

pub use writing::AnyOrder;

use super::address::Address;
use super::http::adapter::{Adapter, RequestWriter};
use super::http::{Client, Connector, Limits, Origin, Request, Response};
use super::parts::PartsAnswer;
use super::profile::Profile;
use super::seal::{self, Sealed};
use super::settings::{Cloud, Settings};
use super::sign::{Signer, ToSign};
use super::{Credentials, ObjectMeta, Sink};
use crate::{Error, ErrorKind, Result};
use answer::Accepted;
use identity::{Authorization, Identity};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use site::{Site, amazon_site, is_loopback, proxies, site_of};
use std::ops::Range;
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

// What AWS calls UriEncode: everything but unreserved characters, with the slashes of a path kept.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

const MAX_REDIRECTS: usize = 5;

/// A bucket (or web server) below a prefix.
#[derive(Debug)]
pub(crate) struct Bucket {
    cloud: Cloud,
    name: String,
    /// Keys start with it: empty, or ending in a slash.
    prefix: String,
    site: RwLock<Arc<Site>>,
    client: Client,
    identity: Identity,
    signer: Signer,
    settings: Settings,
    /// The region can be followed: no endpoint was given.
    follows_region: bool,
}

/// One body received so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub bytes: u64,
    pub object_size: Option<u64>,
    pub etag: Option<String>,
    pub first_byte: Duration,
    pub transfer: Duration,
    pub connecting: Duration,
    /// The answer over a connection that was used before was amiss. It may be what a broken server sent behind its last one: a new connection is asked.
    pub is_doubted: bool,
}

impl Bucket {
    /// Opens the place that `address` names; sends nothing.
    pub fn open(address: &Address, settings: Settings) -> Result<Self> {
        let (cloud, name) = (settings.cloud, address.name.clone());
        let prefix = if address.prefix.is_empty() {
            String::new()
        } else {
            format!("{}/", address.prefix)
        };
        let profile = if cloud == Cloud::S3 && !(settings.explicit_credentials && settings.options.profile.is_none()) {
            Profile::load(settings.options.profile.as_deref())?
        } else {
            None
        };
        let site = site_of(address, &settings, profile.as_ref())?;
        let options = &settings.options;
        if !site.origin.is_tls() && options.allow_http == Some(false) {
            return Err(
                Error::invalid(format!("{} is not encrypted", site.origin)).with_remedy("use https, or set allow_http")
            );
        }
        let limits = Limits {
            connect_timeout: options.connect_timeout,
            read_timeout: options.read_timeout,
            idle_timeout: options.idle_timeout,
            idle_connections: options.idle_connections,
        };
        // Credential services may need TLS even where the bucket does not; but a bucket on loopback needs neither.
        let needs_tls = site.origin.is_tls() || !(is_loopback(&site.origin) && options.credentials.is_some());
        let proxies = proxies(options.proxy.as_deref())?;
        let connector = match &options.credentials {
            Some(Credentials::Secret(secret)) if site.origin.is_tls() => Connector::private(secret, proxies)?,
            _ => Connector::new(needs_tls, options.ca_file.as_deref(), proxies)?,
        };
        let client = Client::new(connector, limits);
        // Keys from the environment count like those of a file: a profile asked for by name goes first.
        let identity = Identity::new(&settings, profile, &client)?;
        let follows_region = cloud == Cloud::S3 && options.endpoint.is_none();
        let (site, signer) = (RwLock::new(Arc::new(site)), Signer::default());
        Ok(Self {
            cloud,
            name,
            prefix,
            site,
            client,
            identity,
            signer,
            settings,
            follows_region,
        })
    }

    /// Where its requests go: scheme, host and port.
    pub fn endpoint(&self) -> String {
        self.site().origin.to_string()
    }

    /// What tells it from stores that have buckets of the same name; empty: its root does. Amazon's and Google's own have each name once, and a web
    /// server's root names the host.
    pub fn store(&self) -> String {
        let site = self.site();
        let host = site.origin.host();
        let is_told = match self.cloud {
            Cloud::Http => true,
            // China and the government have names of their own.
            Cloud::S3 => host.ends_with(".amazonaws.com") && !host.contains("-gov-"),
            Cloud::Gs => host == "storage.googleapis.com",
            Cloud::Azure => false,
        };
        if is_told {
            String::new()
        } else {
            format!("{}{}", site.origin, site.path)
        }
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The key's part below the root; `None` when it lies elsewhere.
    fn relative<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)
    }

    fn site(&self) -> Arc<Site> {
        self.site.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Asks for an object's metadata.
    pub async fn head(&self, key: &str, deadline: Instant) -> Result<ObjectMeta> {
        let response = self.send("HEAD", key, None, None, true, deadline).await?;
        let head = &response.head;
        let size = head.get("content-length").and_then(|l| l.trim().parse().ok());
        let size = size.ok_or_else(|| {
            Error::invalid("the server did not say the object's size")
                .with_remedy("its answer to HEAD needs a Content-Length")
        })?;
        let version = head.get("x-amz-version-id").or_else(|| head.get("x-goog-generation"));
        let modified = head.get("last-modified");
        let modified = modified.and_then(|text| httpdate::parse_http_date(text.trim()).ok());
        Ok(ObjectMeta {
            key: key.to_owned(),
            size,
            etag: answer::etag_of(head),
            version: version.map(str::to_owned),
            modified,
        })
    }

    /// Deletes an object, where that is one request of its own: object_store sends a list of keys, which not every store takes, and has no path for a key that ends in a slash.
    pub async fn delete(&self, key: &str, deadline: Instant) -> Result<()> {
        self.send("DELETE", key, None, None, true, deadline).await.map(drop)
    }

    /// One attempt to get `range`, from byte `progress.bytes` of it on.
    pub async fn get<S: Sink + ?Sized>(
        &self,
        key: &str,
        range: &Range<u64>,
        if_match: Option<&str>,
        deadline: Instant,
        sink: &mut S,
        progress: &mut Progress,
    ) -> Result<()> {
        let begun = Instant::now();
        let rest = range.start + progress.bytes..range.end;
        let may_reuse = !std::mem::take(&mut progress.is_doubted);
        let sent = self.send("GET", key, Some(&rest), if_match, may_reuse, deadline);
        let mut response = sent.await?;
        progress.connecting = response.connecting;
        let start = begun + response.connecting;
        if self.cloud == Cloud::Http {
            answer::check_coding(&response.head, key)?;
        }
        let checked = answer::check(&response.head, response.length(), range, progress.bytes, if_match);
        let Accepted {
            object_size,
            etag,
            mut skips,
        } = checked.inspect_err(|_| progress.is_doubted = response.reused)?;
        (progress.object_size, progress.etag) = (object_size, etag);
        let is_whole = response.head.status == 200;
        let mut first = None;
        loop {
            let left = usize::try_from(range.end - range.start - progress.bytes).unwrap_or(usize::MAX);
            if skips == 0
                && response.is_plain()
                && let Some(room) = sink.room(progress.bytes)
                && let most @ 1.. = room.len().min(left)
            {
                let (read, is_over) = response.read_to(&mut room[..most]).await?;
                first.get_or_insert_with(|| start.elapsed());
                sink.filled(progress.bytes, read)?;
                progress.bytes += read as u64;
                if is_over {
                    break;
                }
                continue;
            }
            let more = response.next(|frame| {
                first.get_or_insert_with(|| start.elapsed());
                let known = usize::try_from(skips).unwrap_or(usize::MAX).min(frame.len());
                skips -= known as u64;
                let frame = &frame[known..];
                let end = progress.bytes + frame.len() as u64;
                if end > range.end - range.start {
                    return Err(match is_whole {
                        true => answer::ignores_ranges(None),
                        false => Error::corrupt("the store sent more bytes than the range has"),
                    });
                }
                if !frame.is_empty() {
                    sink.write(progress.bytes, frame)?;
                }
                progress.bytes = end;
                Ok(())
            });
            if !more.await? {
                break;
            }
        }
        (progress.first_byte, progress.transfer) = (first.unwrap_or_default(), start.elapsed());
        let wanted = range.end - range.start;
        if progress.bytes != wanted {
            return Err(Error::corrupt(format!(
                "the store sent {} of {wanted} bytes",
                progress.bytes
            )));
        }
        Ok(())
    }

    /// Sends a GET, HEAD or DELETE for an object; follows redirects and a corrected region.
    async fn send(
        &self,
        method: &str,
        key: &str,
        range: Option<&Range<u64>>,
        if_match: Option<&str>,
        may_reuse: bool,
        deadline: Instant,
    ) -> Result<Response> {
        let mut site = self.site();
        let mut path = self.path_of(&site, key);
        let mut redirected = false;
        for _ in 0..=MAX_REDIRECTS {
            let authorization = if redirected {
                Authorization::None
            } else {
                self.authorization().await?
            };
            let sent = authorization.sealed(method, site.origin.authority(), &path);
            let bytes = self.encode(method, &site, &path, "", range, if_match, &sent)?;
            let request = Request {
                origin: &site.origin,
                bytes: &bytes,
                body: &[],
                is_head: method == "HEAD",
                expects: range.map_or(0, |range| range.end - range.start),
                may_reuse,
            };
            let mut response = self.client.send(request, deadline).await?;
            if let Authorization::Sealed(sealed) = &sent {
                check_seal(sealed, &response)?;
            }
            if matches!((response.head.status, method), (200 | 206, _) | (204, "DELETE")) {
                return Ok(response);
            }
            if let Some(corrected) = self.corrected(&response, &site) {
                path = format!("{}{}", corrected.path, &path[site.path.len()..]);
                site = corrected;
            } else if let Some((origin, target)) = self.redirect(&response, &site, &path)? {
                redirected |= origin != site.origin;
                site = Arc::new(Site {
                    origin,
                    ..(*site).clone()
                });
                path = target;
            } else {
                let error = Box::pin(answer::error_of(&mut response, answer::Asked::Object)).await;
                // Others may have come since this one was signed: whoever brought them asks for no more.
                if error.kind() != ErrorKind::Denied || redirected || !self.identity.was_renewed(&authorization) {
                    return Err(error);
                }
            }
        }
        Err(Error::new(ErrorKind::Invalid, "the server redirects in a circle"))
    }

    /// Asks for several objects in one request, whose key names them all: only of who is asked with a secret, and once. `expects`: bytes of them all.
    pub async fn ask_parts(&self, key: &str, count: usize, expects: u64, deadline: Instant) -> Result<PartsAnswer> {
        let site = self.site();
        let path = self.path_of(&site, key);
        let sent = self
            .authorization()
            .await?
            .sealed("GET", site.origin.authority(), &path);
        let bytes = self.encode("GET", &site, &path, "", None, None, &sent)?;
        let Authorization::Sealed(sealed) = sent else {
            return Err(Error::invalid("a store has no several objects in one answer"));
        };
        let request = Request {
            origin: &site.origin,
            bytes: &bytes,
            body: &[],
            is_head: false,
            expects,
            may_reuse: true,
        };
        let mut response = self.client.send(request, deadline).await?;
        check_seal(&sealed, &response)?;
        if response.head.status != 200 {
            return Err(Box::pin(answer::error_of(&mut response, answer::Asked::Object)).await);
        }
        Ok(PartsAnswer::new(response, *sealed, count))
    }

    fn path_of(&self, site: &Site, key: &str) -> String {
        format!(
            "{}/{}{}",
            site.path,
            utf8_percent_encode(&self.prefix, PATH),
            utf8_percent_encode(key, PATH)
        )
    }

    pub async fn authorization(&self) -> Result<Authorization> {
        self.identity.current().await
    }

    /// Encodes a request without body.
    #[allow(clippy::too_many_arguments)]
    fn encode(
        &self,
        method: &str,
        site: &Site,
        path: &str,
        query: &str,
        range: Option<&Range<u64>>,
        if_match: Option<&str>,
        authorization: &Authorization,
    ) -> Result<Vec<u8>> {
        let separator = if query.is_empty() { "" } else { "?" };
        let mut target = format!("{path}{separator}{query}");
        let mut azure = http::HeaderMap::new();
        let range = range.map(|r| format!("bytes={}-{}", r.start, r.end.saturating_sub(1)));
        // A weak ETag never matches If-Match (RFC 9110, 13.1.1); it is compared when the answer comes.
        let if_match = if_match.filter(|e| !e.starts_with("W/"));
        if let Authorization::Azure(credential) = authorization {
            (target, azure) = sign_azure(
                method,
                site,
                &target,
                &range,
                if_match,
                credential,
                self.settings.account.as_deref(),
            )?;
        }
        let mut writer = RequestWriter::new(&self.client, method, &site.origin, &target);
        writer.field("user-agent", concat!("foreload/", env!("CARGO_PKG_VERSION")).as_bytes());
        match self.cloud {
            // Without this, Google unpacks objects stored with gzip coding, and length and ranges no longer fit.
            Cloud::Gs => writer.field("accept-encoding", b"gzip"),
            Cloud::Http => writer.field("accept-encoding", b"identity"),
            Cloud::Azure => {
                let version: (&str, &[u8]) = ("x-ms-version", b"2023-11-03");
                if azure.is_empty() {
                    writer.field(version.0, version.1);
                }
            }
            Cloud::S3 => {}
        }
        if azure.is_empty() {
            if let Some(range) = &range {
                writer.field("range", range.as_bytes());
            }
            if let Some(etag) = if_match {
                writer.field("if-match", etag.as_bytes());
            }
        }
        for (name, value) in &azure {
            writer.field(name.as_str(), value.as_bytes());
        }
        match authorization {
            Authorization::Aws(key) => {
                let request_payer = self.settings.options.request_payer;
                let host = site.origin.authority();
                let to_sign = ToSign {
                    method,
                    host,
                    path,
                    query,
                    request_payer,
                };
                let now = SystemTime::now();
                self.signer.sign(&to_sign, key, &site.region, now, |name, value| {
                    writer.field(name, value.as_bytes())
                });
            }
            Authorization::Bearer(token) => writer.field("authorization", format!("Bearer {token}").as_bytes()),
            Authorization::Sealed(sealed) => writer.field("authorization", sealed.field.as_bytes()),
            Authorization::None | Authorization::Azure(_) | Authorization::Secret(_) => {}
        }
        Ok(writer.finish(&http::Method::GET, 0))
    }

    /// The site in the region that the store says the bucket is in.
    fn corrected(&self, response: &Response, site: &Site) -> Option<Arc<Site>> {
        let region = response
            .head
            .get("x-amz-bucket-region")
            .filter(|r| self.follows_region && *r != site.region)?;
        if !matches!(response.head.status, 301 | 307 | 400 | 403) {
            return None;
        }
        let corrected = Arc::new(amazon_site(&self.name, region, self.settings.options.virtual_host).ok()?);
        *self.site.write().unwrap_or_else(|e| e.into_inner()) = corrected.clone();
        Some(corrected)
    }

    fn redirect(&self, response: &Response, site: &Site, path: &str) -> Result<Option<(Origin, String)>> {
        if self.cloud != Cloud::Http || !matches!(response.head.status, 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let Some(location) = response.head.get("location") else {
            return Ok(None);
        };
        let bad = || Error::corrupt(format!("the server redirects to {location:?}"));
        let base = url::Url::parse(&format!("{}{path}", site.origin)).map_err(|_| bad())?;
        let url = base.join(location).map_err(|_| bad())?;
        if site.origin.is_tls() && url.scheme() != "https" {
            return Err(bad().with_remedy("a redirect from https to http is not followed"));
        }
        Ok(Some((
            Origin::of(&url)?,
            url[url::Position::BeforePath..url::Position::AfterQuery].to_owned(),
        )))
    }
}

/// Whether an answer is its server's to this request. What asks for another request, and what says that this one is nobody's, has no seal.
fn check_seal(sealed: &Sealed, response: &Response) -> Result<()> {
    let head = &response.head;
    let field = |name| head.get(name).unwrap_or("");
    let len = response.length().unwrap_or(u64::MAX);
    let is_sealed = sealed.is_answered_by(head.status, field("etag"), len, field(seal::FIELD));
    match head.status {
        200..=299 | 404 if !is_sealed => Err(Error::corrupt(
            "the answer isn't sealed with the secret that both sides know",
        )),
        _ => Ok(()),
    }
}

/// Lets object_store sign for Azure: its shared-key form covers all headers.
fn sign_azure(
    method: &str,
    site: &Site,
    target: &str,
    range: &Option<String>,
    if_match: Option<&str>,
    credential: &object_store::azure::AzureCredential,
    account: Option<&str>,
) -> Result<(String, http::HeaderMap)> {
    let bug = |e: &dyn std::fmt::Display| Error::new(ErrorKind::Bug, format!("a request cannot be signed: {e}"));
    let mut request = http::Request::builder()
        .method(method)
        .uri(format!("{}{target}", site.origin));
    if let Some(range) = range {
        request = request.header("range", range);
    }
    if let Some(etag) = if_match {
        request = request.header("if-match", etag);
    }
    let body = object_store::client::HttpRequestBody::empty();
    let mut request = request.body(body).map_err(|e| bug(&e))?;
    let account = account.unwrap_or_default();
    let authorizer = object_store::azure::AzureAuthorizer::new(credential, account);
    authorizer.try_authorize(&mut request).map_err(|e| bug(&e))?;
    let target = request.uri().path_and_query().map_or(target, |t| t.as_str()).to_owned();
    Ok((target, std::mem::take(request.headers_mut())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_as_signatures_want() {
        let encoded = utf8_percent_encode("a b/ä+~(1).jpg", PATH).to_string();
        assert_eq!(encoded, "a%20b/%C3%A4%2B~%281%29.jpg");
    }
}
