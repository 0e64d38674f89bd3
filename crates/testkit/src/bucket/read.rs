//! GET and HEAD of objects: conditions, ranges, and the faults that harm a body.

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tokio::time::Instant;

use super::body::{Break, Harm, InFlight, Part, Reply, Shaped};
use super::fault::{Fault, Kind};
use super::refusal::Refusal;
use super::server::{Connection, State};
use super::storage::Object;
use crate::stamp;

/// A GET or HEAD on its way.
pub struct Read<'a> {
    /// The server.
    pub state: &'a Arc<State>,
    /// The connection it came by.
    pub connection: &'a Arc<Connection>,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// The bucket.
    pub bucket: &'a str,
    /// The key.
    pub key: &'a str,
    /// Whether only the head is asked for.
    pub head: bool,
    /// When its first byte is due.
    pub start: Instant,
    /// The faults that hit it.
    pub faults: &'a [Fault],
}

impl Read<'_> {
    /// Answers.
    ///
    /// # Errors
    ///
    /// As S3 does: 404, 304, 412, 416.
    pub fn answer(self, in_flight: InFlight) -> Result<Response<Reply>, Refusal> {
        let storage = &self.state.storage;
        let changed = self.faults.iter().any(|fault| fault.kind == Kind::Changed);
        let found = storage.get(self.bucket, self.key)?;
        let mut object = match found {
            Some(object) => object,
            None if storage.has_bucket(self.bucket) => return Err(Refusal::no_key(self.key)),
            None => return Err(Refusal::no_bucket(self.bucket)),
        };
        if changed {
            object = replaced(storage.next_version(self.bucket, self.key), object);
        }
        check_conditions(self.headers, &object)?;
        let size = object.content.size();
        let whole = self.faults.iter().any(|fault| fault.kind == Kind::Whole);
        let asked = if whole { None } else { range(self.headers, &object)? };
        let status = if asked.is_some() {
            StatusCode::PARTIAL_CONTENT
        } else {
            StatusCode::OK
        };
        let mut part = asked.clone().unwrap_or(0..size);
        let harm = self.harm(&mut part);
        let mut response = Response::new(Reply::Sized(part.end - part.start));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        self.describe(headers, &object)?;
        headers.insert(header::CONTENT_LENGTH, (part.end - part.start).into());
        if asked.is_some() {
            let last = part.end.saturating_sub(1);
            set(headers, "content-range", &format!("bytes {}-{last}/{size}", part.start))?;
        }
        if !self.head {
            let name = format!("{}/{}", self.bucket, self.key);
            let part = Part {
                content: object.content,
                range: part,
                start: self.start,
                harm,
                name,
            };
            let body = Shaped::new(part, self.state, self.connection, in_flight);
            *response.body_mut() = Reply::Shaped(Box::new(body));
        }
        Ok(response)
    }

    /// What the faults do to the body; `Short` shortens the part itself.
    fn harm(&self, part: &mut Range<u64>) -> Harm {
        let mut harm = Harm::default();
        for fault in self.faults {
            let size = part.end - part.start;
            let offset = (size as f64 * fault.at.unwrap_or(0.5)) as u64;
            let at = part.start + offset.min(size.saturating_sub(1));
            match fault.kind {
                Kind::Truncate => harm.breaks = Some((at, Break::Close)),
                Kind::Stall => harm.breaks = Some((at, Break::Stall)),
                Kind::Reset => harm.breaks = Some((at, Break::Reset)),
                Kind::Flip => harm.flips = Some(at),
                Kind::Short => part.end = at.max(part.start + size.min(1)),
                _ => {}
            }
        }
        harm
    }

    fn describe(&self, headers: &mut HeaderMap, object: &Object) -> Result<(), Refusal> {
        set(headers, "etag", &format!("\"{}\"", object.etag))?;
        set(headers, "last-modified", &httpdate::fmt_http_date(object.modified))?;
        set(headers, "accept-ranges", "bytes")?;
        let content_type = object.content_type.as_deref().unwrap_or("binary/octet-stream");
        set(headers, "content-type", content_type)?;
        for (name, value) in &object.metadata {
            set(headers, name, value)?;
        }
        let mode = self.headers.get("x-amz-checksum-mode");
        let wanted = mode.is_some_and(|mode| mode.as_bytes().eq_ignore_ascii_case(b"enabled"));
        // S3 tells the checksum of the whole object only with the whole object.
        if let Some(checksum) = &object.checksum
            && wanted
            && !self.headers.contains_key(header::RANGE)
        {
            set(
                headers,
                &format!("x-amz-checksum-{}", checksum.algorithm),
                &checksum.value,
            )?;
            let composite = checksum.value.contains('-');
            let kind = if composite { "COMPOSITE" } else { "FULL_OBJECT" };
            set(headers, "x-amz-checksum-type", kind)?;
        }
        Ok(())
    }
}

/// The object as it would look had somebody replaced it.
fn replaced(next: Option<Object>, object: Object) -> Object {
    next.unwrap_or_else(|| Object {
        etag: crate::sigv4::hex(&super::checksum::md5(object.etag.as_bytes())),
        modified: SystemTime::now(),
        ..object
    })
}

fn set(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), Refusal> {
    let refuse = || Refusal::argument(format!("the stored header {name} is not a header"));
    let name = http::HeaderName::try_from(name).map_err(|_| refuse())?;
    headers.insert(name, HeaderValue::try_from(value).map_err(|_| refuse())?);
    Ok(())
}

/// Checks `If-Match` and its kin in the order of RFC 9110, section 13.2.2.
fn check_conditions(headers: &HeaderMap, object: &Object) -> Result<(), Refusal> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let date = |name| {
        text(name)
            .and_then(|value| httpdate::parse_http_date(value).ok())
            .map(stamp::seconds)
    };
    let modified = stamp::seconds(object.modified.max(UNIX_EPOCH));
    let failed = || {
        let message = "At least one of the preconditions you specified did not hold.";
        Refusal::new(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
    };
    let unchanged = || Refusal {
        etag: Some(object.etag.clone()),
        ..Refusal::new(StatusCode::NOT_MODIFIED, "NotModified", "")
    };
    if let Some(tags) = text(header::IF_MATCH) {
        if !tag_matches(tags, &object.etag) {
            return Err(failed());
        }
    } else if date(header::IF_UNMODIFIED_SINCE).is_some_and(|since| modified > since) {
        return Err(failed());
    }
    if let Some(tags) = text(header::IF_NONE_MATCH) {
        if tag_matches(tags, &object.etag) {
            return Err(unchanged());
        }
    } else if date(header::IF_MODIFIED_SINCE).is_some_and(|since| modified <= since) {
        return Err(unchanged());
    }
    Ok(())
}

/// Whether a list of tags holds this one; S3 accepts tags without quotes.
pub(super) fn tag_matches(tags: &str, etag: &str) -> bool {
    tags.split(',')
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == etag)
}

/// The range asked for, if it is one range in bytes; others are ignored, as in S3.
fn range(headers: &HeaderMap, object: &Object) -> Result<Option<Range<u64>>, Refusal> {
    let size = object.content.size();
    let Some(text) = headers.get(header::RANGE).and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    if let Some(tag) = headers.get(header::IF_RANGE).and_then(|value| value.to_str().ok())
        && !tag_matches(tag, &object.etag)
    {
        return Ok(None);
    }
    match parse_range(text, size) {
        Asked::Everything => Ok(None),
        Asked::Part(part) => Ok(Some(part)),
        Asked::Nothing => Err(Refusal {
            size: Some(size),
            ..Refusal::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "InvalidRange",
                "The requested range is not satisfiable",
            )
        }),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Everything,
    Part(Range<u64>),
    Nothing,
}

fn parse_range(text: &str, size: u64) -> Asked {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|text| text.split_once('-')) else {
        return Asked::Everything;
    };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first > last => Asked::Everything,
        (Ok(first), _) if first >= size => Asked::Nothing,
        (Ok(first), Ok(last)) => Asked::Part(first..last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.trim().is_empty() => Asked::Part(first..size),
        (Err(_), Ok(0)) if first.is_empty() => Asked::Nothing,
        (Err(_), Ok(_)) if first.is_empty() && size == 0 => Asked::Nothing,
        (Err(_), Ok(last)) if first.is_empty() => Asked::Part(size - last.min(size)..size),
        _ => Asked::Everything,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        for (text, expected) in [
            ("bytes=0-0", Asked::Part(0..1)),
            ("bytes=2-99", Asked::Part(2..10)),
            ("bytes=9-", Asked::Part(9..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-30", Asked::Part(0..10)),
            ("bytes=-0", Asked::Nothing),
            ("bytes=10-", Asked::Nothing),
            ("bytes=10-12", Asked::Nothing),
            ("bytes=5-2", Asked::Everything),
            ("bytes=0-1,3-4", Asked::Everything),
            ("lines=0-1", Asked::Everything),
        ] {
            assert_eq!(parse_range(text, 10), expected, "{text}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Asked::Nothing);
        assert_eq!(parse_range("bytes=-5", 0), Asked::Nothing);
    }

    #[test]
    fn tags_match_with_and_without_quotes() {
        assert!(tag_matches("\"a\", \"b\"", "b"));
        assert!(tag_matches("b", "b"));
        assert!(tag_matches("*", "b"));
        assert!(!tag_matches("\"a\"", "b"));
    }
}
