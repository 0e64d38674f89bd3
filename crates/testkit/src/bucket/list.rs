//! `ListObjectsV2`, its older version, and the list of buckets.

use http::{HeaderValue, Response, header};

use super::body::Reply;
use super::refusal::Refusal;
use super::storage::{Entry, Storage};
use super::xml::{document, element};
use crate::{sigv4, stamp};

/// S3's page.
const PAGE: usize = 1000;

/// What a listing asks for.
#[derive(Debug)]
pub struct Listing<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// The decoded query.
    pub pairs: &'a [(String, String)],
}

/// One page.
struct Page {
    entries: Vec<Entry>,
    prefixes: Vec<String>,
    /// The last key or prefix of the page when there is more.
    more: Option<String>,
}

impl Listing<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    /// Answers with a page.
    ///
    /// # Errors
    ///
    /// 404 when there is no such bucket, 400 when a parameter is malformed.
    pub fn answer(&self, storage: &Storage) -> Result<Response<Reply>, Refusal> {
        if !storage.has_bucket(self.bucket) {
            return Err(Refusal::no_bucket(self.bucket));
        }
        let second = self.field("list-type") == Some("2");
        let limit = match self.field("max-keys") {
            None => PAGE,
            Some(text) => text
                .parse::<usize>()
                .map_err(|_| Refusal::argument(format!("max-keys {text:?} is not a number")))?
                .min(PAGE),
        };
        let prefix = self.field("prefix").unwrap_or("");
        let delimiter = self.field("delimiter").unwrap_or("");
        let token = self.field("continuation-token").map(read_token).transpose()?;
        let after_name = if second { "start-after" } else { "marker" };
        let after = token.clone().or_else(|| self.field(after_name).map(str::to_owned));
        let page = page(
            storage,
            self.bucket,
            prefix,
            delimiter,
            after.unwrap_or_default(),
            limit,
        )?;
        Ok(xml(document("ListBucketResult", &self.render(&page, second, limit))))
    }

    fn render(&self, page: &Page, second: bool, limit: usize) -> String {
        let encodes = self.field("encoding-type") == Some("url");
        let encode = |text: &str| {
            if encodes {
                sigv4::encode_path(text)
            } else {
                text.to_owned()
            }
        };
        let mut text = element("Name", self.bucket);
        text += &element("Prefix", &encode(self.field("prefix").unwrap_or("")));
        text += &element("MaxKeys", &limit.to_string());
        if let Some(delimiter) = self.field("delimiter") {
            text += &element("Delimiter", &encode(delimiter));
        }
        if encodes {
            text += &element("EncodingType", "url");
        }
        text += &element("IsTruncated", if page.more.is_some() { "true" } else { "false" });
        if second {
            let count = page.entries.len() + page.prefixes.len();
            text += &element("KeyCount", &count.to_string());
            if let Some(token) = self.field("continuation-token") {
                text += &element("ContinuationToken", token);
            }
            if let Some(after) = self.field("start-after") {
                text += &element("StartAfter", &encode(after));
            }
            if let Some(more) = &page.more {
                text += &element("NextContinuationToken", &write_token(more));
            }
        } else {
            text += &element("Marker", &encode(self.field("marker").unwrap_or("")));
            if let Some(more) = &page.more {
                text += &element("NextMarker", &encode(more));
            }
        }
        for entry in &page.entries {
            text += "<Contents>";
            text += &element("Key", &encode(&entry.key));
            text += &element("LastModified", &stamp::iso8601(entry.modified));
            text += &element("ETag", &format!("\"{}\"", entry.etag));
            text += &element("Size", &entry.size.to_string());
            text += "<StorageClass>STANDARD</StorageClass></Contents>";
        }
        for prefix in &page.prefixes {
            text += "<CommonPrefixes>";
            text += &element("Prefix", &encode(prefix));
            text += "</CommonPrefixes>";
        }
        text
    }
}

/// Collects a page. A common prefix counts as one, and what is below it is skipped.
fn page(
    storage: &Storage,
    bucket: &str,
    prefix: &str,
    delimiter: &str,
    after: String,
    limit: usize,
) -> Result<Page, Refusal> {
    let mut page = Page {
        entries: Vec::new(),
        prefixes: Vec::new(),
        more: None,
    };
    let mut cursor = after;
    if limit == 0 {
        return Ok(page);
    }
    // A page that ended with a common prefix goes on behind all that is below it.
    let below = cursor.strip_prefix(prefix).unwrap_or("");
    if !delimiter.is_empty() && !below.is_empty() && below.ends_with(delimiter) {
        cursor.push(char::MAX);
    }
    loop {
        let count = page.entries.len() + page.prefixes.len();
        let batch = storage.page(bucket, prefix, &cursor, limit + 1 - count)?;
        let Some(last) = batch.last().map(|entry| entry.key.clone()) else {
            return Ok(page);
        };
        cursor = last;
        for entry in batch {
            let below = entry.key[prefix.len()..]
                .find(delimiter)
                .filter(|_| !delimiter.is_empty());
            let common = below.map(|at| entry.key[..prefix.len() + at + delimiter.len()].to_owned());
            if page.entries.len() + page.prefixes.len() == limit {
                let last_key = page.entries.last().map(|entry| entry.key.clone());
                page.more = last_key.max(page.prefixes.last().cloned());
                return Ok(page);
            }
            match common {
                None => page.entries.push(entry),
                Some(common) => {
                    cursor = format!("{common}{}", char::MAX);
                    page.prefixes.push(common);
                    break;
                }
            }
        }
    }
}

/// Tokens are opaque to clients: the last key in hexadecimal.
fn write_token(key: &str) -> String {
    format!("t{}", sigv4::hex(key.as_bytes()))
}

fn read_token(token: &str) -> Result<String, Refusal> {
    let decode = || {
        let digits = token.strip_prefix('t')?;
        let bytes: Option<Vec<u8>> = (0..digits.len() / 2)
            .map(|i| u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok())
            .collect();
        String::from_utf8(bytes?).ok()
    };
    decode().ok_or_else(|| Refusal::argument("The continuation token provided is incorrect"))
}

/// Answers with the list of buckets.
///
/// # Errors
///
/// When the directory can't be read.
pub fn buckets(storage: &Storage) -> Result<Response<Reply>, Refusal> {
    let mut text = "<Owner><ID>testkit</ID></Owner><Buckets>".to_owned();
    for name in storage.buckets()? {
        text += "<Bucket>";
        text += &element("Name", &name);
        text += "<CreationDate>2024-01-01T00:00:00.000Z</CreationDate></Bucket>";
    }
    text += "</Buckets>";
    Ok(xml(document("ListAllMyBucketsResult", &text)))
}

/// A response with a document.
#[must_use]
pub fn xml(text: String) -> Response<Reply> {
    let mut response = Response::new(Reply::from(text));
    let value = HeaderValue::from_static("application/xml");
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}
