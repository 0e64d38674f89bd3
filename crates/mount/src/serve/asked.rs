//! What a request asks for, and how it is refused.

use super::{Body, document};
use fuser::Errno;
use http::{HeaderMap, Response, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use quick_xml::escape::escape;
use std::collections::BTreeMap;
use std::ops::Range;

/// Words of a request that only say how it is made.
const BESIDE: [&str; 4] = ["x-id", "list-type", "fetch-owner", "encoding-type"];

/// A request, taken apart.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub bucket: String,
    pub key: String,
    query: BTreeMap<String, String>,
}

fn decoded(text: &str) -> Result<String, Refusal> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(|text| text.into_owned())
        .map_err(|_| Refusal::unknown("a name that isn't UTF-8"))
}

impl Asked {
    pub fn of(uri: &Uri) -> Result<Self, Refusal> {
        let path = uri.path().strip_prefix('/').unwrap_or("");
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let mut query = BTreeMap::new();
        for pair in uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            query.insert(decoded(name)?, decoded(&value.replace('+', " "))?);
        }
        Ok(Asked {
            bucket: decoded(bucket)?,
            key: decoded(key)?,
            query,
        })
    }

    pub fn has(&self, name: &str) -> bool {
        self.query.contains_key(name)
    }

    /// A word of the request; empty: it isn't there.
    pub fn word(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// What is asked for of an object that isn't its bytes as they are: another version, a part, its rights, and so on.
    pub fn beside_an_object(&self) -> Option<&str> {
        let is_ours = |name: &str| BESIDE.contains(&name) || name.starts_with("X-Amz-");
        let mut others = self.query.keys().filter(|name| !is_ours(name));
        others.next().map(String::as_str)
    }

    /// What is asked for that is neither objects nor a list of them: versions, uploads, and so on.
    pub fn beside(&self) -> Option<&str> {
        let of_lists = [
            "prefix",
            "delimiter",
            "max-keys",
            "continuation-token",
            "start-after",
            "marker",
        ];
        let is_ours = |name: &&String| of_lists.contains(&name.as_str()) || BESIDE.contains(&name.as_str());
        let mut others = self
            .query
            .keys()
            .filter(|name| !is_ours(name) && !name.starts_with("X-Amz-"));
        others.next().map(String::as_str)
    }
}

/// Bytes of an object that are asked for; `None`: all of it.
pub(super) fn ranged(headers: &HeaderMap, size: u64, etag: &str) -> Result<Option<Range<u64>>, Refusal> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    // Of another version all is sent.
    if text(header::IF_RANGE).is_some_and(|wanted| wanted != etag) {
        return Ok(None);
    }
    let Some((first, last)) = text(header::RANGE)
        .and_then(|range| range.trim().strip_prefix("bytes="))
        // Several ranges are answered with all of it, as S3 does.
        .filter(|range| !range.contains(','))
        .and_then(|range| range.split_once('-'))
    else {
        return Ok(None);
    };
    // More than any object has is more than this one has.
    let number = |text: &str| match text.trim() {
        digits if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            Ok(digits.parse().unwrap_or(u64::MAX))
        }
        other => Err(other.is_empty()),
    };
    let range = match (number(first), number(last)) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(true)) => first..size,
        (Err(true), Ok(0)) => return Err(Refusal::no_range(size)),
        (Err(true), Ok(count)) => size.saturating_sub(count)..size,
        _ => return Ok(None),
    };
    if range.start >= size {
        return Err(Refusal::no_range(size));
    }
    Ok(Some(range))
}

/// Why there is nothing, as S3 says it.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    why: String,
    size: Option<u64>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, why: impl Into<String>) -> Self {
        let why = why.into();
        Refusal {
            status,
            code,
            why,
            size: None,
        }
    }

    pub fn read_only() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "This endpoint can only be read.",
        )
    }

    pub fn no_bucket() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NoSuchBucket", "Another bucket is served here.")
    }

    pub fn no_key() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NoSuchKey", "There is no such object.")
    }

    pub fn unknown(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            "NotImplemented",
            format!("Not served here: {what}."),
        )
    }

    pub fn invalid(why: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidArgument", why)
    }

    pub fn too_many(most: usize) -> Self {
        let why = format!("There are more than {most} keys: list them by directory, with delimiter=/.");
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", why)
    }

    pub fn changed() -> Self {
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "PreconditionFailed",
            "The object has another version.",
        )
    }

    pub fn same() -> Self {
        Self::new(StatusCode::NOT_MODIFIED, "NotModified", "")
    }

    fn no_range(size: u64) -> Self {
        let refusal = Self::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "InvalidRange",
            "The object ends before that.",
        );
        Refusal {
            size: Some(size),
            ..refusal
        }
    }

    /// What a file system would say.
    pub fn of(error: Errno) -> Self {
        match error {
            Errno::ENOENT => Self::no_key(),
            Errno::EACCES => Self::new(StatusCode::FORBIDDEN, "AccessDenied", "The bucket denies it."),
            Errno::ESTALE => Self::new(
                StatusCode::CONFLICT,
                "OperationAborted",
                "The object is being replaced.",
            ),
            _ => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "The bucket doesn't answer.",
            ),
        }
    }

    pub fn answer(&self, asked: &Asked) -> Response<Body> {
        let (code, why) = (self.code, escape(&self.why));
        let (bucket, key) = (escape(&asked.bucket), escape(&asked.key));
        let text = match self.status {
            StatusCode::NOT_MODIFIED => String::new(),
            _ => format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{why}</Message><BucketName>{bucket}</BucketName><Key>{key}</Key></Error>"
            ),
        };
        let mut answer = document(text);
        *answer.status_mut() = self.status;
        if let Some(Ok(shown)) = self.size.map(|size| format!("bytes */{size}").parse()) {
            answer.headers_mut().insert(header::CONTENT_RANGE, shown);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str, size: u64) -> Option<Option<Range<u64>>> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, text.parse().expect("a header"));
        ranged(&headers, size, "\"x\"").ok()
    }

    #[test]
    fn ranges_are_those_of_http() {
        assert_eq!(range("bytes=0-9", 100), Some(Some(0..10)));
        assert_eq!(range("bytes=90-200", 100), Some(Some(90..100)));
        assert_eq!(range("bytes=90-", 100), Some(Some(90..100)));
        assert_eq!(range("bytes=1-18446744073709551616", 100), Some(Some(1..100)));
        assert_eq!(range("bytes=-5", 100), Some(Some(95..100)));
        assert_eq!(range("bytes=-500", 100), Some(Some(0..100)));
        assert_eq!(range("bytes=100-", 100), None);
        assert_eq!(range("bytes=0-0", 0), None);
        assert_eq!(range("bytes=-0", 100), None);
        for all in ["bytes=5-4", "bytes=a-b", "bytes=-", "bytes=1-2,4-5", "lines=1-2"] {
            assert_eq!(range(all, 100), Some(None), "{all}");
        }
    }

    #[test]
    fn a_request_is_taken_apart() {
        let asked = Asked::of(&"/b/a%20b/c+d?prefix=x%2F&list-type=2".parse().expect("a URI")).expect("text");
        assert_eq!((asked.bucket.as_str(), asked.key.as_str()), ("b", "a b/c+d"));
        assert_eq!(
            (asked.word("prefix"), asked.has("list-type"), asked.beside()),
            ("x/", true, None)
        );
        let asked = Asked::of(&"/b?versions".parse().expect("a URI")).expect("text");
        assert_eq!(asked.beside(), Some("versions"));
        assert!(Asked::of(&"/b/%ff".parse().expect("a URI")).is_err());
    }

    proptest! {
        #[test]
        fn proptest_no_range_is_outside_the_object(text in "bytes=[0-9]{0,20}-[0-9]{0,20}", size in any::<u64>()) {
            if let Some(Some(range)) = range(&text, size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
