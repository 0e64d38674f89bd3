//! Digests of bodies: MD5 for ETags and `Content-MD5`, and S3's `x-amz-checksum-*`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use http::{HeaderMap, StatusCode};
use md5::{Digest as _, Md5};
use ring::digest;

use super::refusal::Refusal;
use super::storage::Checksum;
use crate::sigv4;

/// S3's algorithms, as in `x-amz-checksum-...`.
pub const ALGORITHMS: [&str; 5] = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"];

/// MD5.
#[must_use]
pub fn md5(body: &[u8]) -> [u8; 16] {
    Md5::digest(body).into()
}

/// MD5 in hexadecimal, the ETag of a plain PUT.
#[must_use]
pub fn etag(body: &[u8]) -> String {
    sigv4::hex(&md5(body))
}

/// Base64 as in headers.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Undoes [`base64()`].
#[must_use]
pub fn unbase64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// The checksum of a body; `None` for an algorithm that S3 doesn't know.
#[must_use]
pub fn compute(algorithm: &str, body: &[u8]) -> Option<String> {
    let crc32 = |algorithm| (crc_fast::checksum(algorithm, body) as u32).to_be_bytes();
    Some(match algorithm {
        "crc32" => base64(&crc32(CrcAlgorithm::Crc32IsoHdlc)),
        "crc32c" => base64(&crc32(CrcAlgorithm::Crc32Iscsi)),
        "crc64nvme" => base64(&crc_fast::checksum(CrcAlgorithm::Crc64Nvme, body).to_be_bytes()),
        "sha1" => base64(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, body).as_ref()),
        "sha256" => base64(digest::digest(&digest::SHA256, body).as_ref()),
        _ => return None,
    })
}

/// Checks a body against `Content-MD5` and the checksum given in headers or trailers, which it
/// returns to be stored.
///
/// # Errors
///
/// 400 `BadDigest` or `InvalidDigest`.
pub fn verify(body: &[u8], headers: &HeaderMap, trailers: &[(String, String)]) -> Result<Option<Checksum>, Refusal> {
    let refuse = |code, message: String| Refusal::new(StatusCode::BAD_REQUEST, code, message);
    if let Some(value) = headers.get("content-md5") {
        let given = value.to_str().ok().and_then(unbase64);
        match given {
            Some(given) if given.len() == 16 && given == md5(body) => {}
            Some(given) if given.len() == 16 => {
                return Err(refuse("BadDigest", "Content-MD5 does not match the body".into()));
            }
            _ => return Err(refuse("InvalidDigest", "Content-MD5 is malformed".into())),
        }
    }
    for algorithm in ALGORITHMS {
        let name = format!("x-amz-checksum-{algorithm}");
        let header = headers.get(&name).and_then(|value| value.to_str().ok());
        let trailer = trailers
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value.as_str());
        let Some(given) = header.or(trailer) else { continue };
        let computed = compute(algorithm, body);
        if computed.as_deref() != Some(given) {
            return Err(refuse("BadDigest", format!("{name} does not match the body")));
        }
        return Ok(Some(Checksum {
            algorithm: algorithm.into(),
            value: given.into(),
        }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_check_values_are_reproduced() {
        let body = b"123456789";
        let crc = |algorithm| unbase64(&compute(algorithm, body).unwrap()).unwrap();
        assert_eq!(crc("crc32"), 0xcbf4_3926_u32.to_be_bytes());
        assert_eq!(crc("crc32c"), 0xe306_9283_u32.to_be_bytes());
        assert_eq!(crc("crc64nvme"), 0xae8b_1486_0a79_9888_u64.to_be_bytes());
        assert_eq!(etag(b""), "d41d8cd98f00b204e9800998ecf8427e");
    }
}
