//! Listings: S3's and Google's ListObjectsV2 read from the XML, Azure's and WebDAV's through object_store.

use super::{Bucket, Cloud, QUERY, Request, answer, identity, is_loopback};
use crate::source::foreign;
use crate::source::http::adapter::Adapter;
use crate::source::{Entries, ObjectMeta};
use crate::{Error, ErrorKind, Result};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::azure::MicrosoftAzureBuilder;
use percent_encoding::{percent_decode_str, utf8_percent_encode};
use quick_xml::events::Event;
use std::time::SystemTime;
use tokio::time::Instant;

// A page of 1000 keys has about 300 KB.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// One page of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub objects: Vec<ObjectMeta>,
    pub prefixes: Vec<String>,
    pub next: Option<String>,
    /// Whether it had a mark of a directory, which is none of the objects.
    pub has_mark: bool,
}

impl Bucket {
    /// Whether pages are asked for one by one here (otherwise object_store does it).
    pub fn lists_pages(&self) -> bool {
        matches!(self.cloud, Cloud::S3 | Cloud::Gs)
    }

    /// One page below `prefix` (relative to the root), keys relative to the root.
    pub async fn page(&self, prefix: &str, by_directory: bool, token: Option<&str>, deadline: Instant) -> Result<Page> {
        let full = format!("{}{prefix}", self.prefix);
        let mut query = String::new();
        let mut parameter = |name: &str, value: &str| {
            let separator = if query.is_empty() { "" } else { "&" };
            query.push_str(&format!("{separator}{name}={}", utf8_percent_encode(value, QUERY)));
        };
        // In order of name, as the signature needs it.
        if let Some(token) = token {
            parameter("continuation-token", token);
        }
        if by_directory {
            parameter("delimiter", "/");
        }
        if self.cloud == Cloud::S3 {
            parameter("encoding-type", "url");
        }
        parameter("list-type", "2");
        if !full.is_empty() {
            parameter("prefix", &full);
        }
        let mut site = self.site();
        for _ in 0..2 {
            let path = if site.path.is_empty() { "/" } else { &site.path };
            let authorization = self.authorization().await?;
            let bytes = self.encode("GET", &site, path, &query, None, None, &authorization)?;
            let request = Request {
                origin: &site.origin,
                bytes: &bytes,
                body: &[],
                is_head: false,
                expects: 0,
                may_reuse: true,
            };
            let mut response = self.client.send(request, deadline).await?;
            if response.head.status == 200 {
                let body = response.collect(MAX_PAGE_BYTES).await?;
                return self.relative_page(parse(&body)?);
            }
            match self.corrected(&response, &site) {
                Some(corrected) => site = corrected,
                None => return Err(answer::error_of(&mut response, answer::Asked::Listing).await),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the bucket's region changes from answer to answer",
        ))
    }

    /// Makes keys relative to the root; a key elsewhere means that the server ignored the prefix.
    fn relative_page(&self, page: Page) -> Result<Page> {
        let relative = |key: &str| {
            let inside = self.relative(key).map(str::to_owned);
            inside.ok_or_else(|| Error::corrupt(format!("the listing names {key:?}, outside what was asked for")))
        };
        let mut objects = Vec::with_capacity(page.objects.len());
        let mut has_mark = false;
        for object in page.objects {
            let key = relative(&object.key)?;
            // "dir/" is how consoles mark an empty directory.
            if key.is_empty() || key.ends_with('/') {
                has_mark = true;
            } else {
                objects.push(ObjectMeta { key, ..object });
            }
        }
        let prefixes = page.prefixes.iter().map(|p| relative(p)).collect::<Result<_>>()?;
        Ok(Page {
            objects,
            prefixes,
            next: page.next,
            has_mark,
        })
    }

    /// Everything below `prefix` (or one level of it), through object_store.
    pub async fn entries(&self, prefix: &str, by_directory: bool) -> Result<Entries> {
        let store = self.listing_store()?;
        let full = format!("{}{prefix}", self.prefix);
        let path = object_store::path::Path::parse(full.trim_end_matches('/'))
            .map_err(|e| Error::invalid(format!("the prefix {full:?} cannot be listed: {e}")))?;
        let failed = |error: object_store::Error| {
            if let Some(name) = unusable_name(&error) {
                return Error::invalid(format!("the listing has a name that can't be read: {name}"))
                    .with_remedy("rename that object, or name the others in a manifest");
            }
            let kind = foreign::kind(&error);
            // A web server's page of excuses is no message.
            let why = match foreign::refused_with(&error) {
                Some(status) if self.cloud == Cloud::Http => format!("the server answers {status}"),
                _ => error.to_string(),
            };
            let error = Error::new(kind, format!("listing failed: {why}")).with_source(error);
            match self.cloud {
                Cloud::Http => error.with_remedy("a plain web server has no listing: name the objects in a manifest"),
                _ => error,
            }
        };
        let mut entries = Entries::default();
        let found: Vec<object_store::ObjectMeta> = if by_directory {
            let result = store.list_with_delimiter(Some(&path)).await.map_err(failed)?;
            for prefix in result.common_prefixes {
                entries
                    .prefixes
                    .extend(self.relative(&format!("{prefix}/")).map(str::to_owned));
            }
            result.objects
        } else {
            store.list(Some(&path)).try_collect().await.map_err(failed)?
        };
        for meta in found {
            if let Some(key) = self.relative(meta.location.as_ref()) {
                entries.objects.push(ObjectMeta {
                    key: key.to_owned(),
                    size: meta.size,
                    etag: Some(
                        meta.e_tag
                            .unwrap_or_else(|| answer::etag_of_time(SystemTime::from(meta.last_modified))),
                    ),
                    version: meta.version,
                    modified: Some(SystemTime::from(meta.last_modified)),
                });
            }
        }
        Ok(entries)
    }

    fn listing_store(&self) -> Result<Box<dyn ObjectStore>> {
        let failed = |e: object_store::Error| Error::invalid(format!("listing cannot be set up: {e}")).with_source(e);
        match self.cloud {
            Cloud::Azure => Ok(Box::new(self.azure_builder()?.build().map_err(failed)?)),
            _ => {
                let site = self.site();
                let store = object_store::http::HttpBuilder::new()
                    .with_url(format!("{}{}", site.origin, site.path))
                    .with_client_options(object_store::ClientOptions::new().with_allow_http(is_loopback(&site.origin)))
                    .with_http_connector(Adapter(self.client.clone()));
                Ok(Box::new(store.build().map_err(failed)?))
            }
        }
    }

    /// Azure's builder for this container, with our credentials.
    pub(super) fn azure_builder(&self) -> Result<MicrosoftAzureBuilder> {
        let builder = identity::azure_builder(&self.settings, &self.client)?.with_container_name(&self.name);
        Ok(match self.identity.fixed_azure() {
            Some(Some(credential)) => builder.with_credentials(std::sync::Arc::new(Fixed(credential))),
            Some(None) => builder.with_skip_signature(true),
            None => builder,
        })
    }
}

/// Credentials set by the caller, as object_store asks for them.
#[derive(Debug)]
struct Fixed(std::sync::Arc<object_store::azure::AzureCredential>);

#[async_trait::async_trait]
impl object_store::CredentialProvider for Fixed {
    type Credential = object_store::azure::AzureCredential;

    async fn get_credential(&self) -> object_store::Result<std::sync::Arc<Self::Credential>> {
        Ok(self.0.clone())
    }
}

/// Reads a ListBucketResult.
fn parse(body: &[u8]) -> Result<Page> {
    let bad = |how: String| Error::corrupt(format!("the listing is not as expected: {how}"));
    let text = std::str::from_utf8(body).map_err(|_| bad("it is not UTF-8".into()))?;
    let mut reader = quick_xml::Reader::from_str(text);
    let mut page = Page::default();
    let (mut path, mut value) = (Vec::<String>::new(), String::new());
    let (mut object, mut url_encoded, mut truncated) = (None::<ObjectMeta>, false, false);
    loop {
        match reader.read_event().map_err(|e| bad(e.to_string()))? {
            Event::Start(start) => {
                path.push(String::from_utf8_lossy(start.local_name().as_ref()).into_owned());
                value.clear();
                if path.len() > 16 {
                    return Err(bad("it is nested too deep".into()));
                }
                if path.len() == 2 && path[1] == "Contents" {
                    object = Some(ObjectMeta {
                        key: String::new(),
                        size: 0,
                        etag: None,
                        version: None,
                        modified: None,
                    });
                }
            }
            Event::Text(part) => value.push_str(
                &part
                    .xml_content(quick_xml::XmlVersion::Implicit1_0)
                    .map_err(|e| bad(e.to_string()))?,
            ),
            Event::CData(part) => value.push_str(&String::from_utf8_lossy(&part)),
            Event::GeneralRef(entity) => {
                value.push(resolve(&entity).ok_or_else(|| bad("it has an unknown entity".into()))?)
            }
            Event::End(_) => {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                match (names.get(1..).unwrap_or(&[]), &mut object) {
                    (["Contents", "Key"], Some(object)) => object.key = std::mem::take(&mut value),
                    (["Contents", "Size"], Some(object)) => {
                        object.size = value.trim().parse().map_err(|_| bad(format!("size {value:?}")))?;
                    }
                    (["Contents", "ETag"], Some(object)) => {
                        object.etag = Some(std::mem::take(&mut value)).filter(|e| !e.is_empty())
                    }
                    (["Contents", "Generation"], Some(object)) => object.version = Some(std::mem::take(&mut value)),
                    (["Contents", "LastModified"], Some(object)) => {
                        object.modified = crate::source::profile::parse_time(&value)
                    }
                    (["Contents"], found) => {
                        let named = found.take().filter(|o| !o.key.is_empty());
                        page.objects.extend(named.map(|object| ObjectMeta {
                            etag: object.etag.or_else(|| object.modified.map(answer::etag_of_time)),
                            ..object
                        }));
                    }
                    (["CommonPrefixes", "Prefix"], _) => page.prefixes.push(std::mem::take(&mut value)),
                    (["NextContinuationToken"], _) => page.next = Some(std::mem::take(&mut value)),
                    (["IsTruncated"], _) => truncated = value.trim() == "true",
                    (["EncodingType"], _) => url_encoded = value.trim() == "url",
                    _ => {}
                }
                path.pop();
                value.clear();
            }
            Event::Eof if path.is_empty() => break,
            Event::Eof => return Err(bad("it ends in the middle".into())),
            _ => {}
        }
    }
    if !text.contains("ListBucketResult") {
        return Err(bad("it is another document".into()).with_remedy("is the endpoint an S3 service?"));
    }
    if truncated && page.next.as_ref().is_none_or(String::is_empty) {
        return Err(bad("there is more, but no token to ask for it".into()));
    }
    page.next = page.next.filter(|_| truncated);
    if url_encoded {
        let decode = |text: &mut String| -> Result<()> {
            let spaced = text.replace('+', " ");
            let decoded = percent_decode_str(&spaced)
                .decode_utf8()
                .map_err(|_| bad(format!("key {text:?}")))?;
            *text = decoded.into_owned();
            Ok(())
        };
        page.objects
            .iter_mut()
            .map(|o| &mut o.key)
            .chain(&mut page.prefixes)
            .try_for_each(decode)?;
    }
    Ok(page)
}

fn resolve(entity: &quick_xml::events::BytesRef<'_>) -> Option<char> {
    if let Some(character) = entity.resolve_char_ref().ok()? {
        return Some(character);
    }
    match &**entity {
        b"amp" => Some('&'),
        b"lt" => Some('<'),
        b"gt" => Some('>'),
        b"quot" => Some('"'),
        b"apos" => Some('\''),
        _ => None,
    }
}

/// Why a listing stopped at a name that object_store has no path for, such as one with an empty part.
fn unusable_name(error: &object_store::Error) -> Option<String> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(path) = error.downcast_ref::<object_store::path::Error>() {
            return Some(path.to_string());
        }
        source = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><EncodingType>url</EncodingType>
<IsTruncated>true</IsTruncated><NextContinuationToken>1&amp;2</NextContinuationToken>
<Contents><Key>a+b%2Fc%26</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag><Size>12</Size></Contents>
<Contents><Key>d</Key><ETag>&#34;y&#34;</ETag><Size>0</Size></Contents>
<CommonPrefixes><Prefix>p%2F</Prefix></CommonPrefixes></ListBucketResult>"#;

    #[test]
    fn a_name_that_has_no_path_is_said() {
        let path = object_store::path::Path::parse("a//b").unwrap_err();
        let error = object_store::Error::Generic {
            store: "test",
            source: Box::new(object_store::Error::from(path)),
        };
        assert!(unusable_name(&error).unwrap().contains("a//b"));
        assert_eq!(
            unusable_name(&object_store::Error::NotImplemented {
                operation: "x".into(),
                implementer: "y".into()
            }),
            None
        );
    }

    #[test]
    fn a_page_is_read() {
        let page = parse(PAGE.as_bytes()).unwrap();
        assert_eq!(page.next.as_deref(), Some("1&2"));
        assert_eq!(page.prefixes, ["p/"]);
        let read: Vec<_> = page
            .objects
            .iter()
            .map(|o| (o.key.as_str(), o.size, o.etag.as_deref()))
            .collect();
        assert_eq!(read, [("a b/c&", 12, Some("\"x\"")), ("d", 0, Some("\"y\""))]);
        assert!(page.objects[0].modified.is_some());
        // Without an ETag the time tells versions apart, as the answer to a GET has it.
        let page = parse(PAGE.replace("<ETag>&quot;x&quot;</ETag>", "").as_bytes()).unwrap();
        let etag = page.objects[0].etag.as_deref();
        assert_eq!(etag, Some("W/\"modified Fri, 24 May 2013 00:00:00 GMT\""));
    }

    #[test]
    fn a_truncated_page_without_token_is_an_error() {
        assert!(
            parse(
                PAGE.replace("<NextContinuationToken>1&amp;2</NextContinuationToken>", "")
                    .as_bytes()
            )
            .is_err()
        );
        assert!(parse(b"<html></html>").is_err());
        assert!(parse(&PAGE.as_bytes()[..400]).is_err());
    }

    proptest! {
        #[test]
        fn proptest_a_damaged_page_never_panics(at in 0..PAGE.len(), byte in any::<u8>(), end in 0..PAGE.len()) {
            let mut bytes = PAGE.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = parse(&bytes);
            let _ = parse(&bytes[..end]);
        }
    }
}
