//! What an answer says: whether it is what was asked for, and if not, whose turn it is.

use crate::index::bare_etag;
use crate::source::http::{Head, Response};
use crate::{Error, ErrorKind};
use std::ops::Range;
use std::time::Duration;
use std::time::SystemTime;

// Error documents of the stores have a few hundred bytes.
const MAX_ERROR_BYTES: usize = 16 << 10;
const NO_BUCKET: &str = "check the bucket's name, the keys and the endpoint, which doesn't name the bucket";

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Object,
    Listing,
}

/// Turns an answer without the wanted status into an error; reads its body for the store's own words.
pub(crate) async fn error_of(response: &mut Response, asked: Asked) -> Error {
    let body = response.collect(MAX_ERROR_BYTES).await.unwrap_or_default();
    classify(&response.head, &String::from_utf8_lossy(&body), asked)
}

fn classify(head: &Head, body: &str, asked: Asked) -> Error {
    let code = tag(body, "Code").or_else(|| head.get("x-ms-error-code")).unwrap_or("");
    let words = tag(body, "Message")
        .map(|m| {
            quick_xml::escape::unescape(m)
                .unwrap_or(m.into())
                .lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(300)
                .collect::<String>()
        })
        .unwrap_or_default();
    let (kind, remedy) = match kind_of(head.status, code) {
        (ErrorKind::NotFound, _) if asked == Asked::Listing => (ErrorKind::NotFound, NO_BUCKET),
        told => told,
    };
    let mut detail = format!("the store answered {}", head.status);
    for part in [code, &words] {
        if !part.is_empty() {
            detail.push_str(if detail.contains(": ") { ", " } else { ": " });
            detail.push_str(part);
        }
    }
    let error = Error::new(kind, detail).with_retry_after(retry_after(head));
    if remedy.is_empty() {
        error
    } else {
        error.with_remedy(remedy)
    }
}

fn kind_of(status: u16, code: &str) -> (ErrorKind, &'static str) {
    use ErrorKind as K;
    match (status, code) {
        (_, "ExpiredToken" | "TokenRefreshRequired" | "RequestExpired") => (
            K::Denied,
            "the session has ended: sign in again, or pass a credential_provider that renews itself",
        ),
        (_, "RequestTimeTooSkewed") => (K::Denied, "this machine's clock is wrong: set it, best by NTP"),
        (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken" | "InvalidTokenId") => (
            K::Denied,
            "access key, secret or session token are wrong for this endpoint",
        ),
        (_, "AuthorizationHeaderMalformed") => (K::Invalid, "the bucket is in another region: set `region`"),
        (_, "SlowDown" | "RequestLimitExceeded" | "ServerBusy" | "Throttling") | (429, _) => (K::Throttled, ""),
        (_, "RequestTimeout") => (K::Unavailable, ""),
        (_, "NoSuchBucket" | "ContainerNotFound") => (K::NotFound, NO_BUCKET),
        (404 | 410, _) => (
            K::NotFound,
            "there is no such object: check its name; where the data set was listed before, opening it with refresh=True, or `foreload index --update`, renews the index",
        ),
        (401 | 403, _) => (
            K::Denied,
            "the credentials lack the right to read this; S3 also says so of a missing object without list right",
        ),
        (412, _) => (
            K::Changed,
            "the object was replaced: opening it with refresh=True, or `foreload index --update`, renews the index",
        ),
        (416, _) => (
            K::Changed,
            "the object is shorter than indexed: opening it with refresh=True, or `foreload index --update`, renews the index",
        ),
        (408 | 500 | 502 | 504, _) => (K::Unavailable, ""),
        (503, _) => (K::Throttled, ""),
        (301 | 307, _) => (K::Invalid, "the bucket is in another region: set `region`"),
        (405 | 501, _) => (
            K::Invalid,
            "the store does not implement this: objects are looked up by HEAD, and read by GET with a range",
        ),
        (500..600, _) => (K::Unavailable, ""),
        _ => (K::Invalid, ""),
    }
}

fn retry_after(head: &Head) -> Option<Duration> {
    let seconds = head.get("retry-after")?.trim().parse::<u32>().ok()?;
    Some(Duration::from_secs(u64::from(seconds.min(600))))
}

/// The text of the first XML element called `name`.
fn tag<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let after = body.split_once(&format!("<{name}>"))?.1;
    after.split_once("</").map(|(text, _)| text.trim())
}

/// What the head of a good answer to a ranged GET says.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub object_size: Option<u64>,
    pub etag: Option<String>,
    /// Bytes at the front of its body that are there already: a server that ignores ranges sends them again.
    pub skips: u64,
}

/// What stands before the time in what [`etag_of`] makes of it: as a weak ETag it is compared, and never sent.
const MODIFIED: &str = "W/\"modified ";

/// What tells versions of an object apart: its ETag, or when it was modified where the server sends none.
pub(crate) fn etag_of(head: &Head) -> Option<String> {
    head.get("etag").map(str::to_owned).or_else(|| modified(head))
}

fn modified(head: &Head) -> Option<String> {
    let text = head.get("last-modified")?.trim();
    let read = httpdate::parse_http_date(text);
    Some(read.map_or_else(|_| format!("{MODIFIED}{text}\""), etag_of_time))
}

/// The same of a listing.
pub(crate) fn etag_of_time(time: SystemTime) -> String {
    format!("{MODIFIED}{}\"", httpdate::fmt_http_date(time))
}

/// Names of files that are themselves in the coding which a web server announces for them.
const CODED: [&str; 9] = [".gz", ".tgz", ".svgz", ".z", ".br", ".bz2", ".xz", ".zst", ".zip"];

/// Refuses bytes in a coding that a web server chose: they aren't the file's.
pub(crate) fn check_coding(head: &Head, key: &str) -> Result<(), Error> {
    let key = key.to_ascii_lowercase();
    let coding = head.get("content-encoding").map_or("identity", str::trim);
    if coding.is_empty() || coding.eq_ignore_ascii_case("identity") || CODED.iter().any(|end| key.ends_with(end)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the server sent it in the coding {coding:?} (Content-Encoding), which was not asked for"
    ))
    .with_remedy("have the server send these files as they are, without compressing them"))
}

/// The server sent all of an object, of which another part was asked for, or which has another size.
pub(crate) fn ignores_ranges(length: Option<u64>) -> Error {
    let bytes = length.map_or_else(|| "unknown".to_owned(), |length| length.to_string());
    Error::invalid(format!("the server sent the whole object ({bytes} bytes) instead of a range")).with_remedy(
        "it ignores ranges: serve the data from another one; or the object has another size than when it was listed: open the data set with refresh=True",
    )
}

/// Compares the head with the question: status, length, ETag and range, of which the first `have` bytes are there and weren't asked for.
pub(crate) fn check(
    head: &Head,
    length: Option<u64>,
    range: &Range<u64>,
    have: u64,
    if_match: Option<&str>,
) -> Result<Accepted, Error> {
    let rest = range.start + have..range.end;
    let mut skips = 0;
    let object_size = match head.status {
        206 => {
            let text = head.get("content-range").unwrap_or("");
            let (got, size) = content_range(text)
                .ok_or_else(|| Error::corrupt(format!("the answer has no usable Content-Range ({text:?})")))?;
            if got != rest {
                let short = got.start == rest.start && size.is_some_and(|s| s < rest.end);
                let kind = if short { ErrorKind::Changed } else { ErrorKind::Corrupt };
                return Err(Error::new(
                    kind,
                    format!("the store sent bytes {}..{} instead", got.start, got.end),
                ));
            }
            size
        }
        // The server ignores ranges: fine when the range is the whole object. Where no length is said, it shows at the end whether it was.
        200 if range.start == 0 && length.is_none_or(|length| length == range.end) => {
            skips = have;
            length
        }
        200 => return Err(ignores_ranges(length)),
        other => {
            return Err(Error::new(
                ErrorKind::Bug,
                format!("status {other} was taken for success"),
            ));
        }
    };
    let wanted = rest.end - rest.start + skips;
    if let Some(length) = length.filter(|&length| length != wanted) {
        return Err(Error::corrupt(format!(
            "the store announced {length} bytes for a range of {wanted}"
        )));
    }
    let by_time = if_match.is_some_and(|asked| asked.starts_with(MODIFIED));
    let got = if by_time {
        modified(head)
    } else {
        head.get("etag").map(str::to_owned)
    };
    match (if_match, &got) {
        (Some(asked), Some(got)) if bare_etag(asked) != bare_etag(got) => {
            return Err(Error::new(
                ErrorKind::Changed,
                format!("the object has ETag {got}, indexed was {asked}"),
            )
            .with_remedy("opening it with refresh=True, or `foreload index --update`, renews the index"));
        }
        (Some(asked), None) if !by_time => {
            return Err(Error::corrupt(format!(
                "the answer has no ETag, indexed was {asked}: something between here and the store answered"
            )));
        }
        _ => {}
    }
    let etag = etag_of(head);
    Ok(Accepted {
        object_size,
        etag,
        skips,
    })
}

/// `bytes first-last/size`, where size may be `*`.
fn content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let told = text
        .trim()
        .strip_prefix("bytes")
        .filter(|rest| rest.starts_with(char::is_whitespace))?;
    let (span, size) = told.trim_start().split_once('/')?;
    let (first, last) = span.split_once('-')?;
    let range = first.trim().parse().ok()?..last.trim().parse::<u64>().ok()?.checked_add(1)?;
    let size = if size == "*" { None } else { Some(size.parse().ok()?) };
    (range.start < range.end && size.is_none_or(|s| range.end <= s)).then_some((range, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_a_coding_that_nobody_asked_for_are_refused() {
        let head = |coding: &str| {
            let text = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: 1\r\n\r\n");
            Head::parse(text.as_bytes()).unwrap().unwrap().0
        };
        assert!(
            check_coding(&head("gzip"), "a/b.txt")
                .unwrap_err()
                .to_string()
                .contains("gzip")
        );
        for (coding, key) in [("identity", "a.txt"), ("x-gzip", "a.NII.GZ"), ("", "a")] {
            check_coding(&head(coding), key).unwrap();
        }
    }

    #[test]
    fn content_ranges_are_read_strictly() {
        assert_eq!(content_range("bytes 0-9/10"), Some((0..10, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5..10, None)));
        assert_eq!(
            content_range("bytes\r\n 5-9/*"),
            Some((5..10, None)),
            "its line went on in the next"
        );
        for bad in [
            "",
            "bytes 9-0/10",
            "bytes 0-9/5",
            "items 0-1/2",
            "bytes0-1/2",
            "bytes 0-18446744073709551615/*",
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn of_a_long_message_the_first_line_is_told() {
        let (head, _) = Head::parse(b"HTTP/1.1 403 Forbidden\r\n\r\n").unwrap().unwrap();
        let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>It differs from the canonical request:\nGET\n/\n</Message></Error>";
        let told = classify(&head, body, Asked::Object).to_string();
        assert!(told.contains("canonical request: (") && !told.contains('\n'), "{told}");
    }

    #[test]
    fn errors_get_the_kind_that_says_what_to_do() {
        let kind = |status, code| kind_of(status, code).0;
        assert_eq!(kind(403, "ExpiredToken"), ErrorKind::Denied);
        assert_eq!(kind(503, "SlowDown"), ErrorKind::Throttled);
        assert_eq!(kind(500, "InternalError"), ErrorKind::Unavailable);
        assert_eq!(kind(404, "NoSuchKey"), ErrorKind::NotFound);
        assert_eq!(kind(412, ""), ErrorKind::Changed);
        assert_eq!(kind(400, "RequestTimeout"), ErrorKind::Unavailable);
        assert_eq!(kind(403, "InvalidTokenId"), ErrorKind::Denied);
        let said = |status: u16, code: &str, asked| {
            let head = format!("HTTP/1.1 {status} No\r\n\r\n");
            let body = format!("<Error><Code>{code}</Code><Message>say &#34;us&quot; &amp; go</Message></Error>");
            let (head, _) = Head::parse(head.as_bytes()).unwrap().unwrap();
            classify(&head, &body, asked).to_string()
        };
        let region = said(400, "AuthorizationHeaderMalformed", Asked::Object);
        assert!(
            region.contains("say \"us\" & go") && region.contains("set `region`"),
            "{region}"
        );
        assert!(said(404, "NoSuchKey", Asked::Object).contains("there is no such object"));
        assert!(said(404, "InvalidAccessKey", Asked::Listing).contains("check the bucket's name"));
        assert!(said(403, "InvalidTokenId", Asked::Object).contains("session token are wrong"));
        assert_eq!(
            tag("<Error><Code>A</Code><Message>b c</Message></Error>", "Message"),
            Some("b c")
        );
    }
}
