//! PUT, copy, delete, and multipart uploads.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::auth::Payload;
use super::body::Reply;
use super::checksum;
use super::chunked;
use super::content::Content;
use super::list::xml;
use super::read::tag_matches;
use super::refusal::Refusal;
use super::storage::{Checksum, Object, Storage};
use super::xml::{self as documents, Completion, Deletes, document, element};
use crate::{sigv4, stamp};

/// A body after its transfer coding, with its trailing headers.
pub struct Received {
    /// The bytes of the object.
    pub body: Bytes,
    /// Trailing headers, lower case.
    pub trailers: Vec<(String, String)>,
}

/// Checks a body against what its signature says and undoes `aws-chunked`.
///
/// # Errors
///
/// 400 or 403 as S3 answers.
pub fn receive(body: Bytes, headers: &HeaderMap, payload: &Payload) -> Result<Received, Refusal> {
    match payload {
        Payload::Unsigned => {}
        Payload::Hash(hash) => {
            if sigv4::sha256(&body) != *hash {
                return Err(Refusal::new(
                    StatusCode::BAD_REQUEST,
                    "XAmzContentSHA256Mismatch",
                    "The provided 'x-amz-content-sha256' header does not match the body.",
                ));
            }
        }
        Payload::Chunks(chain) => {
            let (body, trailers) = chunked::decode(&body, chain.as_deref())?;
            let named = headers.get("x-amz-decoded-content-length");
            let named = named.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
            if named.is_some_and(|size| size != body.len()) {
                let message = "x-amz-decoded-content-length does not match the body";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "IncompleteBody", message));
            }
            return Ok(Received { body, trailers });
        }
    }
    Ok(Received {
        body,
        trailers: Vec::new(),
    })
}

/// The headers that a PUT stores.
fn stored_headers(headers: &HeaderMap) -> (Option<String>, Vec<(String, String)>) {
    let mut metadata = Vec::new();
    let mut content_type = None;
    for (name, value) in headers {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        match name.as_str() {
            "content-type" => content_type = Some(text),
            "cache-control" | "content-disposition" | "content-language" | "expires" => {
                metadata.push((name.as_str().to_owned(), text));
            }
            "content-encoding" => {
                // `aws-chunked` is how the body came, not what it is.
                let kept: Vec<&str> = text.split(',').map(str::trim).filter(|c| *c != "aws-chunked").collect();
                if !kept.is_empty() && !kept[0].is_empty() {
                    metadata.push(("content-encoding".into(), kept.join(",")));
                }
            }
            other if other.starts_with("x-amz-meta-") => metadata.push((other.to_owned(), text)),
            _ => {}
        }
    }
    (content_type, metadata)
}

fn object(body: Bytes, etag: String, headers: &HeaderMap, sum: Option<Checksum>) -> Object {
    let (content_type, metadata) = stored_headers(headers);
    Object {
        content: Content::Memory(body),
        etag,
        modified: SystemTime::now(),
        content_type,
        metadata,
        checksum: sum,
    }
}

fn empty(status: StatusCode) -> Response<Reply> {
    let mut response = Response::new(Reply::Full(None));
    *response.status_mut() = status;
    response
}

fn tagged(etag: &str, sum: Option<&Checksum>) -> Response<Reply> {
    let mut response = empty(StatusCode::OK);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::try_from(format!("\"{etag}\"")) {
        headers.insert(header::ETAG, value);
    }
    if let Some(sum) = sum
        && let Ok(name) = HeaderName::try_from(format!("x-amz-checksum-{}", sum.algorithm))
        && let Ok(value) = HeaderValue::try_from(&sum.value)
    {
        headers.insert(name, value);
    }
    response
}

/// PUT of an object, with `If-None-Match: *` and `If-Match`.
///
/// # Errors
///
/// 404 without the bucket, 412 when a condition fails, 400 when a checksum is wrong.
pub fn put(
    storage: &Storage,
    bucket: &str,
    key: &str,
    headers: &HeaderMap,
    received: Received,
) -> Result<Response<Reply>, Refusal> {
    check_write(storage, bucket, key, headers)?;
    let sum = checksum::verify(&received.body, headers, &received.trailers)?;
    let etag = checksum::etag(&received.body);
    let object = object(received.body, etag, headers, sum.clone());
    let etag = storage.put(bucket, key, object)?;
    Ok(tagged(&etag, sum.as_ref()))
}

fn check_write(storage: &Storage, bucket: &str, key: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    if !storage.has_bucket(bucket) {
        return Err(Refusal::no_bucket(bucket));
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (matching, unless) = (text(header::IF_MATCH), text(header::IF_NONE_MATCH));
    if matching.is_none() && unless.is_none() {
        return Ok(());
    }
    let present = storage.get(bucket, key)?.map(|object| object.etag);
    let matches = |tags: &str| present.as_ref().is_some_and(|etag| tag_matches(tags, etag));
    if matching.is_some_and(|tags| !matches(tags)) || unless.is_some_and(matches) {
        let message = "At least one of the pre-conditions you specified did not hold";
        return Err(Refusal::new(
            StatusCode::PRECONDITION_FAILED,
            "PreconditionFailed",
            message,
        ));
    }
    Ok(())
}

/// The bucket and key that `x-amz-copy-source` names.
fn copy_source(headers: &HeaderMap) -> Result<(String, String), Refusal> {
    headers
        .get("x-amz-copy-source")
        .and_then(|value| sigv4::decode_path(value.to_str().ok()?))
        .and_then(|path| {
            let (bucket, key) = path.trim_start_matches('/').split_once('/')?;
            Some((bucket.to_owned(), key.to_owned()))
        })
        .ok_or_else(|| Refusal::argument("x-amz-copy-source is malformed"))
}

/// Copies an object inside the server.
///
/// # Errors
///
/// 404 when the source or the bucket is missing.
pub fn copy(storage: &Storage, bucket: &str, key: &str, headers: &HeaderMap) -> Result<Response<Reply>, Refusal> {
    let (from_bucket, from_key) = copy_source(headers)?;
    check_write(storage, bucket, key, headers)?;
    let source = storage
        .get(&from_bucket, &from_key)?
        .ok_or_else(|| Refusal::no_key(&from_key))?;
    let body = source.content.to_bytes()?;
    let mut copied = Object {
        etag: checksum::etag(&body),
        content: Content::Memory(body),
        modified: SystemTime::now(),
        ..source
    };
    if headers
        .get("x-amz-metadata-directive")
        .is_some_and(|value| value == "REPLACE")
    {
        (copied.content_type, copied.metadata) = stored_headers(headers);
    }
    let modified = stamp::iso8601(copied.modified);
    let etag = storage.put(bucket, key, copied)?;
    let inside = element("LastModified", &modified) + &element("ETag", &format!("\"{etag}\""));
    Ok(xml(document("CopyObjectResult", &inside)))
}

/// DELETE of one object.
///
/// # Errors
///
/// 404 without the bucket.
pub fn delete(storage: &Storage, bucket: &str, key: &str) -> Result<Response<Reply>, Refusal> {
    if !storage.has_bucket(bucket) {
        return Err(Refusal::no_bucket(bucket));
    }
    storage.delete(bucket, key)?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// `DeleteObjects`.
///
/// # Errors
///
/// 404 without the bucket, 400 when the body is malformed.
pub fn delete_many(
    storage: &Storage,
    bucket: &str,
    headers: &HeaderMap,
    received: &Received,
) -> Result<Response<Reply>, Refusal> {
    if !storage.has_bucket(bucket) {
        return Err(Refusal::no_bucket(bucket));
    }
    checksum::verify(&received.body, headers, &received.trailers)?;
    let deletes: Deletes = documents::read(&received.body)?;
    let mut inside = String::new();
    for object in &deletes.objects {
        storage.delete(bucket, &object.key)?;
        if !deletes.quiet {
            inside += &format!("<Deleted>{}</Deleted>", element("Key", &object.key));
        }
    }
    Ok(xml(document("DeleteResult", &inside)))
}

struct Upload {
    bucket: String,
    key: String,
    headers: HeaderMap,
    parts: BTreeMap<u32, (Bytes, String, Option<Checksum>)>,
}

/// The multipart uploads under way.
#[derive(Default)]
pub struct Uploads(Mutex<(u64, HashMap<String, Upload>)>);

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<String, Upload>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `CreateMultipartUpload`.
    ///
    /// # Errors
    ///
    /// 404 without the bucket.
    pub fn create(
        &self,
        storage: &Storage,
        bucket: &str,
        key: &str,
        headers: &HeaderMap,
    ) -> Result<Response<Reply>, Refusal> {
        if !storage.has_bucket(bucket) {
            return Err(Refusal::no_bucket(bucket));
        }
        let mut uploads = self.lock();
        uploads.0 += 1;
        let id = format!("upload-{:08}", uploads.0);
        let upload = Upload {
            bucket: bucket.into(),
            key: key.into(),
            headers: headers.clone(),
            parts: BTreeMap::new(),
        };
        uploads.1.insert(id.clone(), upload);
        let inside = element("Bucket", bucket) + &element("Key", key) + &element("UploadId", &id);
        Ok(xml(document("InitiateMultipartUploadResult", &inside)))
    }

    /// `UploadPart`, or `UploadPartCopy` without a range when the header names a source.
    ///
    /// # Errors
    ///
    /// 404 without the upload, 400 when the number or a checksum is wrong.
    pub fn part(
        &self,
        storage: &Storage,
        id: &str,
        number: &str,
        headers: &HeaderMap,
        received: Received,
    ) -> Result<Response<Reply>, Refusal> {
        let number = number
            .parse::<u32>()
            .ok()
            .filter(|number| (1..=10_000).contains(number))
            .ok_or_else(|| Refusal::argument("partNumber must be between 1 and 10000"))?;
        let copied = headers.contains_key("x-amz-copy-source");
        let body = if copied {
            let (bucket, key) = copy_source(headers)?;
            let source = storage.get(&bucket, &key)?.ok_or_else(|| Refusal::no_key(&key))?;
            source.content.to_bytes()?
        } else {
            received.body
        };
        let sum = checksum::verify(&body, headers, &received.trailers)?;
        let etag = checksum::etag(&body);
        let mut uploads = self.lock();
        let upload = uploads.1.get_mut(id).ok_or_else(|| no_upload(id))?;
        upload.parts.insert(number, (body, etag.clone(), sum.clone()));
        if copied {
            return Ok(xml(document(
                "CopyPartResult",
                &element("ETag", &format!("\"{etag}\"")),
            )));
        }
        Ok(tagged(&etag, sum.as_ref()))
    }

    /// `ListParts`.
    ///
    /// # Errors
    ///
    /// 404 without the upload.
    pub fn list(&self, id: &str) -> Result<Response<Reply>, Refusal> {
        let uploads = self.lock();
        let upload = uploads.1.get(id).ok_or_else(|| no_upload(id))?;
        let mut inside = element("Bucket", &upload.bucket)
            + &element("Key", &upload.key)
            + &element("UploadId", id)
            + &element("IsTruncated", "false");
        for (number, (body, etag, _)) in &upload.parts {
            inside += "<Part>";
            inside += &element("PartNumber", &number.to_string());
            inside += &element("ETag", &format!("\"{etag}\""));
            inside += &element("Size", &body.len().to_string());
            inside += "</Part>";
        }
        Ok(xml(document("ListPartsResult", &inside)))
    }

    /// `CompleteMultipartUpload`: the ETag is the MD5 of the parts' MD5s and their number.
    ///
    /// # Errors
    ///
    /// 404 without the upload, 400 when the parts don't agree.
    pub fn complete(&self, storage: &Storage, id: &str, received: &Received) -> Result<Response<Reply>, Refusal> {
        let completion: Completion = documents::read(&received.body)?;
        let mut uploads = self.lock();
        let upload = uploads.1.get(id).ok_or_else(|| no_upload(id))?;
        let refuse = |code, message| Refusal::new(StatusCode::BAD_REQUEST, code, message);
        if completion.parts.is_empty() {
            return Err(refuse("MalformedXML", "an upload has at least one part"));
        }
        if !completion.parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(refuse("InvalidPartOrder", "the parts are not in ascending order"));
        }
        let mut whole = Vec::new();
        let mut digests = Vec::new();
        for part in &completion.parts {
            let (body, etag, _) = upload
                .parts
                .get(&part.number)
                .filter(|(_, etag, _)| part.etag.trim_matches('"') == etag)
                .ok_or_else(|| refuse("InvalidPart", "a part was not uploaded or differs"))?;
            debug_assert_eq!(checksum::etag(body), *etag);
            whole.extend_from_slice(body);
            digests.extend_from_slice(&checksum::md5(body));
        }
        let etag = format!("{}-{}", checksum::etag(&digests), completion.parts.len());
        let (bucket, key) = (upload.bucket.clone(), upload.key.clone());
        let object = object(whole.into(), etag, &upload.headers, None);
        let etag = storage.put(&bucket, &key, object)?;
        uploads.1.remove(id);
        let inside = element("Location", &format!("/{bucket}/{key}"))
            + &element("Bucket", &bucket)
            + &element("Key", &key)
            + &element("ETag", &format!("\"{etag}\""));
        Ok(xml(document("CompleteMultipartUploadResult", &inside)))
    }

    /// `AbortMultipartUpload`.
    ///
    /// # Errors
    ///
    /// 404 without the upload.
    pub fn abort(&self, id: &str) -> Result<Response<Reply>, Refusal> {
        self.lock().1.remove(id).ok_or_else(|| no_upload(id))?;
        Ok(empty(StatusCode::NO_CONTENT))
    }
}

fn no_upload(id: &str) -> Refusal {
    let message = format!("The specified multipart upload does not exist: {id}");
    Refusal::new(StatusCode::NOT_FOUND, "NoSuchUpload", message)
}
