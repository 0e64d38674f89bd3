//! AWS Signature Version 4: the canonical request, the key and the signature.
//!
//! The server verifies with these functions and the bare client signs with them. S3 encodes a
//! path once (not twice, as other services do), and a `+` in a query means a space.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::{digest, hmac};

/// The name of the algorithm in headers and strings to sign.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The payload hash that says that the body is not covered.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
/// SHA-256 of nothing.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Everything but the letters that AWS leaves as they are.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// Encodes a key for a URL path; slashes stay.
#[must_use]
pub fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Encodes a name or a value for a query.
#[must_use]
pub fn encode_query(text: &str) -> String {
    utf8_percent_encode(text, QUERY).to_string()
}

/// Decodes a path; bytes that are not UTF-8 give `None`.
#[must_use]
pub fn decode_path(path: &str) -> Option<String> {
    percent_decode_str(path).decode_utf8().ok().map(Into::into)
}

/// Splits a raw query into decoded pairs, in the order received.
#[must_use]
pub fn query_pairs(raw: &str) -> Vec<(String, String)> {
    let decode = |part: &str| {
        percent_decode_str(&part.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned()
    };
    raw.split('&')
        .filter(|part| !part.is_empty())
        .map(|part| match part.split_once('=') {
            Some((name, value)) => (decode(name), decode(value)),
            None => (decode(part), String::new()),
        })
        .collect()
}

/// The canonical form of a query: encoded pairs, sorted, without the signature itself.
#[must_use]
pub fn canonical_query(pairs: &[(String, String)]) -> String {
    let mut encoded: Vec<(String, String)> = pairs
        .iter()
        .filter(|(name, _)| name != "X-Amz-Signature")
        .map(|(name, value)| (encode_query(name), encode_query(value)))
        .collect();
    encoded.sort_unstable();
    let mut text = String::new();
    for (name, value) in encoded {
        if !text.is_empty() {
            text.push('&');
        }
        let _ = write!(text, "{name}={value}");
    }
    text
}

/// Lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// SHA-256 in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// A signing key for one day, region and service, derived once and used for each request.
#[derive(Clone)]
pub struct Key {
    key: hmac::Key,
    scope: String,
}

impl Key {
    /// Derives the key. `date` is `YYYYMMDD`.
    #[must_use]
    pub fn derive(secret: &str, date: &str, region: &str, service: &str) -> Self {
        let step = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
        let day = step(format!("AWS4{secret}").as_bytes(), date);
        let region_key = step(day.as_ref(), region);
        let service_key = step(region_key.as_ref(), service);
        let key = step(service_key.as_ref(), "aws4_request");
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()),
            scope: format!("{date}/{region}/{service}/aws4_request"),
        }
    }

    /// `date/region/service/aws4_request`.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Signs a canonical request made at `stamp` (`x-amz-date`).
    #[must_use]
    pub fn sign(&self, stamp: &str, canonical_request: &str) -> String {
        let hash = sha256(canonical_request.as_bytes());
        self.sign_text(&format!("{ALGORITHM}\n{stamp}\n{}\n{hash}", self.scope))
    }

    /// Signs a chunk of a streamed body, chained to the signature before it.
    #[must_use]
    pub fn sign_chunk(&self, stamp: &str, previous: &str, chunk: &[u8]) -> String {
        self.sign_text(&format!(
            "{ALGORITHM}-PAYLOAD\n{stamp}\n{}\n{previous}\n{EMPTY_SHA256}\n{}",
            self.scope,
            sha256(chunk)
        ))
    }

    /// Signs the trailing headers of a streamed body.
    #[must_use]
    pub fn sign_trailer(&self, stamp: &str, previous: &str, trailer: &[u8]) -> String {
        self.sign_text(&format!(
            "{ALGORITHM}-TRAILER\n{stamp}\n{}\n{previous}\n{}",
            self.scope,
            sha256(trailer)
        ))
    }

    fn sign_text(&self, text: &str) -> String {
        hex(hmac::sign(&self.key, text.as_bytes()).as_ref())
    }
}

/// Puts a canonical request together. `headers` are (lower-case name, trimmed value), sorted;
/// `path` is canonical already.
#[must_use]
pub fn canonical_request(
    method: &str,
    path: &str,
    query: &str,
    headers: &[(&str, &str)],
    payload_hash: &str,
) -> String {
    let mut text = String::with_capacity(256 + path.len() + query.len());
    let _ = write!(text, "{method}\n{path}\n{query}\n");
    for (name, value) in headers {
        let _ = writeln!(text, "{name}:{value}");
    }
    text.push('\n');
    for (position, (name, _)) in headers.iter().enumerate() {
        if position > 0 {
            text.push(';');
        }
        text.push_str(name);
    }
    text.push('\n');
    text.push_str(payload_hash);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranged GET of the S3 API reference ("Signature Calculations ... Examples").
    #[test]
    fn the_published_example_is_reproduced() {
        let key = Key::derive(
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "20130524",
            "us-east-1",
            "s3",
        );
        let headers = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", "20130524T000000Z"),
        ];
        let request = canonical_request("GET", "/test.txt", "", &headers, EMPTY_SHA256);
        assert_eq!(
            key.sign("20130524T000000Z", &request),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn queries_are_sorted_and_encoded_once() {
        let pairs = query_pairs("prefix=a+b%2Bc&list-type=2&X-Amz-Signature=no&marker");
        assert_eq!(canonical_query(&pairs), "list-type=2&marker=&prefix=a%20b%2Bc");
    }

    #[test]
    fn odd_keys_survive_encoding() {
        let key = "dir/a b+c%ü&?=#.bin";
        assert_eq!(decode_path(&encode_path(key)).as_deref(), Some(key));
        assert_eq!(encode_path("a b+c"), "a%20b%2Bc");
    }
}
