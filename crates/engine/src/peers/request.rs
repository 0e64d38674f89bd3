//! What a peer says: the head of a GET, parsed in place.
//!
//! Nothing else is understood: a request with a body, another method or a head without end is refused, and its connection ends, since nobody knows where the
//! next request would begin. Called with all that was read and not answered yet, so a request may come in any number of pieces, and several in one.

use super::send::Status;

/// The longest head; a peer's takes about 400 bytes.
pub(super) const MOST_BYTES: usize = 16 << 10;
const MOST_FIELDS: usize = 64;

/// A request, as it lies in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// Its path.
    pub path: &'a str,
    /// The field `authorization`; empty: it has none.
    pub authorization: &'a str,
    /// What of the sample it is for.
    pub part: Part,
    /// Nothing comes behind it.
    pub closes: bool,
}

/// What of a sample is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    All,
    /// All from its first byte up to this one, which is its last or nobody gets it.
    To(u64),
    /// Something that isn't had from a peer.
    Other,
}

impl Part {
    fn of(range: &str) -> Self {
        let Some(last) = range.strip_prefix("bytes=0-") else {
            return if range.is_empty() { Part::All } else { Part::Other };
        };
        let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        let last = last.parse().ok().filter(|_| is_number);
        last.map_or(Part::Other, Part::To)
    }
}

/// The request at the front of `bytes`, and its length. `None`: it isn't all there.
///
/// # Errors
/// The answer to what is no request of a peer's; nothing behind it is understood.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Request<'_>, usize)>, Status> {
    let mut storage = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut storage);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MOST_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => return Err(Status::Malformed),
    };
    let (Some(method), Some(path), Some(version)) = (request.method, request.path, request.version) else {
        return Err(Status::Malformed);
    };
    if method != "GET" || path.contains('?') {
        return Err(Status::OtherMethod);
    }
    let fields = || {
        let text = |value| std::str::from_utf8(value).unwrap_or("");
        request.headers.iter().map(move |field| (field.name, text(field.value)))
    };
    let all = |name: &'static str| fields().filter(move |(found, _)| found.eq_ignore_ascii_case(name));
    let first = |name| all(name).next().map_or("", |(_, value)| value);
    let has_body = all("transfer-encoding").next().is_some() || all("content-length").any(|(_, length)| length != "0");
    if has_body || !path.starts_with('/') {
        return Err(Status::Malformed);
    }
    let is_close = |(_, value): (&str, &str)| value.split(',').any(|part| part.trim().eq_ignore_ascii_case("close"));
    let request = Request {
        path,
        authorization: first("authorization"),
        part: Part::of(first("range")),
        closes: version == 0 || all("connection").any(is_close),
    };
    Ok(Some((request, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: &str =
        "GET /peer/ab/12 HTTP/1.1\r\nhost: a\r\nAuthorization: Foreload x.1.y\r\nrange: bytes=0-41\r\n\r\n";

    #[test]
    fn a_request_says_what_it_is_for_and_where_it_ends() {
        let two = [WHOLE, "GET /"].concat();
        let request = Request {
            path: "/peer/ab/12",
            authorization: "Foreload x.1.y",
            part: Part::To(41),
            closes: false,
        };
        assert_eq!(parse(two.as_bytes()), Ok(Some((request, WHOLE.len()))));
        for end in 0..WHOLE.len() {
            assert_eq!(parse(&WHOLE.as_bytes()[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn what_is_no_get_or_has_a_body_is_refused() {
        let refused = |request: &str| parse(request.as_bytes()).expect_err(request);
        for other in [
            "PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\n",
            "HEAD /peer/ab/12 HTTP/1.1\r\n\r\n",
            "get / HTTP/1.1\r\n\r\n",
            "GET /?list HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(refused(other), Status::OtherMethod, "{other}");
        }
        for other in [
            "GET / HTTP/1.1\r\ncontent-length: 5\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 0\r\ncontent-length: 7\r\n\r\n",
            "GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
            "GET a HTTP/1.1\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "\u{16}\u{3}\u{1}\u{2}",
            "GET / HTTP/1.1\r\na b: c\r\n\r\n",
        ] {
            assert_eq!(refused(other), Status::Malformed, "{other}");
        }
        assert_eq!(refused(&format!("GET /{}", "a".repeat(MOST_BYTES))), Status::Malformed);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MOST_FIELDS + 1));
        assert_eq!(refused(&many), Status::Malformed);
    }

    #[test]
    fn a_peer_that_says_so_or_speaks_an_older_version_asks_nothing_more() {
        for (fields, closes) in [
            ("HTTP/1.1\r\n", false),
            ("HTTP/1.1\r\nconnection: keep-alive\r\ncontent-length: 0\r\n", false),
            ("HTTP/1.1\r\nConnection: a, Close\r\n", true),
            ("HTTP/1.0\r\n", true),
        ] {
            let request = format!("GET / {fields}\r\n");
            let parsed = parse(request.as_bytes()).expect("one").expect("whole");
            assert_eq!(parsed.0.closes, closes, "{fields}");
        }
    }

    #[test]
    fn only_a_range_from_the_first_byte_on_may_be_all_of_a_sample() {
        for (range, part) in [
            ("", Part::All),
            ("bytes=0-0", Part::To(0)),
            ("bytes=0-18446744073709551615", Part::To(u64::MAX)),
            ("bytes=0-18446744073709551616", Part::Other),
            ("bytes=0-", Part::Other),
            ("bytes=0-+5", Part::Other),
            ("bytes=1-5", Part::Other),
            ("bytes=-5", Part::Other),
            ("bytes=0-5,7-9", Part::Other),
            ("rows=0-5", Part::Other),
        ] {
            assert_eq!(Part::of(range), part, "{range}");
        }
    }

    proptest! {
        #[test]
        fn proptest_any_bytes_are_a_request_or_wait_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let after = [b"GET /peer/ab/12 HTTP/1.1\r\n".to_vec(), bytes].concat();
            if let Ok(Some((request, length))) = parse(&after) {
                prop_assert!(request.path == "/peer/ab/12" && length <= after.len());
            }
        }

        #[test]
        fn proptest_a_request_that_is_cut_or_goes_on_is_the_same(end in 0..WHOLE.len(), more in prop::collection::vec(any::<u8>(), 0..99)) {
            prop_assert_eq!(parse(&WHOLE.as_bytes()[..end]), Ok(None));
            let longer = [WHOLE.as_bytes(), &more].concat();
            let (request, length) = parse(&longer).expect("one").expect("whole");
            prop_assert_eq!((request.path, length), ("/peer/ab/12", WHOLE.len()));
        }
    }
}
