//! Bodies as AWS clients stream them (`aws-chunked`): sized chunks, optionally signed, then
//! trailing headers such as a checksum.

use bytes::Bytes;
use http::StatusCode;

use super::auth::Chain;
use super::refusal::Refusal;

/// A decoded body and its trailing headers, lower case.
pub type Decoded = (Bytes, Vec<(String, String)>);

/// Takes a streamed body apart and checks the signatures when there is a chain.
///
/// # Errors
///
/// 400 when it is malformed or short, 403 when a signature is wrong.
pub fn decode(body: &[u8], chain: Option<&Chain>) -> Result<Decoded, Refusal> {
    let mut decoded = Vec::with_capacity(body.len());
    let mut rest = body;
    let mut previous = chain.map(|chain| chain.seed.clone()).unwrap_or_default();
    loop {
        let (line, after) = line(rest)?;
        let (size, extension) = line.split_once(';').unwrap_or((line, ""));
        let size =
            usize::from_str_radix(size.trim(), 16).map_err(|_| malformed(format!("{size:?} is not a chunk size")))?;
        let chunk = after.get(..size).ok_or_else(|| malformed("a chunk is short"))?;
        if let Some(chain) = chain {
            let expected = chain.key.sign_chunk(&chain.stamp, &previous, chunk);
            if extension.trim().strip_prefix("chunk-signature=") != Some(expected.as_str()) {
                return Err(mismatch("a chunk's signature does not match"));
            }
            previous = expected;
        }
        rest = &after[size..];
        if size == 0 {
            break;
        }
        decoded.extend_from_slice(chunk);
        rest = rest
            .strip_prefix(b"\r\n")
            .ok_or_else(|| malformed("a chunk has no end"))?;
    }
    let trailers = trailers(rest, chain, &previous)?;
    Ok((decoded.into(), trailers))
}

fn trailers(mut rest: &[u8], chain: Option<&Chain>, previous: &str) -> Result<Vec<(String, String)>, Refusal> {
    let mut trailers = Vec::new();
    let mut signed = Vec::new();
    let mut signature = None;
    while !rest.is_empty() {
        let (line, after) = line(rest)?;
        rest = after;
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        if name == "x-amz-trailer-signature" {
            signature = Some(value);
        } else {
            signed.extend_from_slice(format!("{name}:{value}\n").as_bytes());
            trailers.push((name, value));
        }
    }
    if let Some(chain) = chain
        && !trailers.is_empty()
        && signature != Some(chain.key.sign_trailer(&chain.stamp, previous, &signed))
    {
        return Err(mismatch("the trailer's signature does not match"));
    }
    Ok(trailers)
}

fn line(rest: &[u8]) -> Result<(&str, &[u8]), Refusal> {
    let end = rest
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .ok_or_else(|| malformed("a line has no end"))?;
    let line = std::str::from_utf8(&rest[..end]).map_err(|_| malformed("a line is not UTF-8"))?;
    Ok((line, &rest[end + 2..]))
}

fn malformed(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "IncompleteBody", message)
}

fn mismatch(message: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "SignatureDoesNotMatch", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sigv4::Key;

    /// The streamed upload of the S3 API reference: 66,560 bytes of `a` in chunks of 64 KiB.
    #[test]
    fn the_published_example_is_verified() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let mut chain = Chain {
            key: Key::derive(secret, "20130524", "us-east-1", "s3"),
            stamp: "20130524T000000Z".into(),
            seed: "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9".into(),
        };
        let signatures = [
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        ];
        let mut body = Vec::new();
        for (size, signature) in [65_536, 1024, 0].into_iter().zip(signatures) {
            body.extend(format!("{size:x};chunk-signature={signature}\r\n").bytes());
            body.extend(std::iter::repeat_n(b'a', size));
            body.extend(b"\r\n");
        }
        let (decoded, trailers) = decode(&body, Some(&chain)).unwrap();
        assert_eq!(decoded, vec![b'a'; 66_560]);
        assert!(trailers.is_empty());
        chain.seed.replace_range(..1, "5");
        assert!(decode(&body, Some(&chain)).is_err());
    }

    #[test]
    fn trailers_are_read_and_short_bodies_refused() {
        let body = b"3\r\nabc\r\n0\r\nx-amz-checksum-crc32c:QUJD\r\n\r\n";
        let (decoded, trailers) = decode(body, None).unwrap();
        assert_eq!(decoded, "abc");
        assert_eq!(trailers, [("x-amz-checksum-crc32c".to_owned(), "QUJD".to_owned())]);
        for short in ["", "5\r\nabc", "3\r\nabc", "x\r\n", "3\r\nabc\r\n"] {
            assert!(decode(short.as_bytes(), None).is_err(), "{short}");
        }
    }
}
