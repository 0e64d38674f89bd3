//! The head of an answer: status and header fields, parsed in place.

use crate::{Error, Result};
use std::ops::Range;

/// Largest head accepted; S3's take about 500 bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_FIELDS: usize = 100;

/// Status and fields of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub status: u16,
    /// HTTP/1.0 closes by default.
    pub is_http10: bool,
    text: Vec<u8>,
    fields: Vec<(Range<u32>, Range<u32>)>,
}

impl Head {
    /// A complete head at the front of `bytes`, and its length. `None` while it is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut storage = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut storage);
        let mut config = httparse::ParserConfig::default();
        // Lines that go on in the next one, which old servers send: RFC 9112, 5.2.
        config.allow_obsolete_multiline_headers_in_responses(true);
        let length = match config.parse_response(&mut response, bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() > MAX_HEAD_BYTES => {
                return Err(Error::corrupt(format!(
                    "the answer's head has over {MAX_HEAD_BYTES} bytes"
                )));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Error::corrupt(format!(
                    "the answer's head has over {MAX_FIELDS} fields"
                )));
            }
            Err(error) => return Err(Error::corrupt(format!("the answer is not HTTP: {error}"))),
        };
        let base = bytes.as_ptr() as usize;
        let place = |part: &[u8]| {
            let start = (part.as_ptr() as usize - base) as u32;
            start..start + part.len() as u32
        };
        let fields = response
            .headers
            .iter()
            .map(|h| (place(h.name.as_bytes()), place(h.value)))
            .collect();
        let (status, is_http10) = (response.code.unwrap_or(0), response.version == Some(0));
        let head = Self {
            status,
            is_http10,
            text: bytes[..length].to_vec(),
            fields,
        };
        Ok(Some((head, length)))
    }

    /// The first field called `name`, as text.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self
            .fields()
            .find(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes()))?;
        std::str::from_utf8(value).ok()
    }

    /// All fields in order.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields
            .iter()
            .map(|(name, value)| (self.slice(name), self.slice(value)))
    }

    /// Whether a comma-separated field contains `token`.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        let same = |(found, value): (&[u8], &[u8])| {
            found.eq_ignore_ascii_case(name.as_bytes())
                && value
                    .split(|&b| b == b',')
                    .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        };
        self.fields().any(same)
    }

    fn slice(&self, range: &Range<u32>) -> &[u8] {
        &self.text[range.start as usize..range.end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_head_ends_where_the_body_begins() {
        let answer = b"HTTP/1.1 206 Partial Content\r\nETag: \"x\"\r\nconnection: a, Close\r\n\r\nbody";
        let (head, length) = Head::parse(answer).unwrap().unwrap();
        assert_eq!(
            (head.status, head.get("etag"), head.get("none")),
            (206, Some("\"x\""), None)
        );
        assert!(head.has_token("Connection", "close"));
        assert_eq!(&answer[length..], b"body");
    }

    #[test]
    fn a_field_may_go_on_in_the_next_line_and_a_head_beyond_all_measure_is_named() {
        let folded = b"HTTP/1.1 206 OK\r\nX-Note: one\r\n  two\r\nContent-Range: bytes\r\n 0-1/2\r\n\r\n";
        let (head, length) = Head::parse(folded).unwrap().unwrap();
        assert_eq!((length, head.fields().count()), (folded.len(), 2));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        let said = Head::parse(many.as_bytes()).unwrap_err().to_string();
        assert!(said.contains("over 100 fields"), "{said}");
        let long = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(MAX_HEAD_BYTES));
        let said = Head::parse(long.as_bytes()).unwrap_err().to_string();
        assert!(said.contains("over 65536 bytes"), "{said}");
    }

    proptest! {
        #[test]
        fn proptest_any_bytes_are_a_head_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Head::parse(&bytes);
            let after = [b"HTTP/1.1 200 OK\r\n".to_vec(), bytes].concat();
            if let Ok(Some((head, _))) = Head::parse(&after) {
                let _ = (head.fields().count(), head.get("content-length"));
            }
        }
    }
}
