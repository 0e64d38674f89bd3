//! Whether a request was signed by somebody who knows the secret.
//!
//! Signature Version 4 in headers and in the query (presigned URLs), checked for real: the
//! signature, the scope, the clock and that all `x-amz-*` headers are covered. What the payload
//! hash says about the body is handed on as [`Payload`], because the body comes later.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, request::Parts};
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use crate::sigv4::{self, Key};
use crate::stamp;

/// AWS accepts a clock that is off by 15 minutes.
const SKEW: Duration = Duration::from_secs(15 * 60);

/// Who may use the bucket.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Keys {
    /// The access key (default `testkit`).
    pub access_key: String,
    /// The secret key (default `testkit-secret`).
    pub secret_key: String,
    /// The session token that must come along, if any (default none).
    pub session_token: Option<String>,
    /// Whether unsigned requests are accepted too (default no).
    pub anonymous: bool,
    /// Access keys that are answered with `ExpiredToken` (default none).
    pub expired: Vec<String>,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            access_key: "testkit".into(),
            secret_key: "testkit-secret".into(),
            session_token: None,
            anonymous: false,
            expired: Vec::new(),
        }
    }
}

/// What is needed to check a streamed body's chunks.
pub struct Chain {
    /// The signing key.
    pub key: Key,
    /// The request's `x-amz-date`.
    pub stamp: String,
    /// The request's signature, with which the chain begins.
    pub seed: String,
}

/// What the signature says about the body.
pub enum Payload {
    /// Nothing.
    Unsigned,
    /// Its SHA-256 in hexadecimal.
    Hash(String),
    /// It is in chunks; signed when there is a chain.
    Chunks(Option<Box<Chain>>),
}

/// Checks requests.
#[derive(Default)]
pub struct Verifier {
    derived: Mutex<HashMap<String, Key>>,
}

struct Claim {
    access_key: String,
    scope: String,
    signed: Vec<String>,
    signature: String,
    stamp: String,
    token: Option<String>,
    lifetime: Option<Duration>,
    payload: String,
}

impl Verifier {
    /// Checks a request and says what is to hold for its body.
    ///
    /// # Errors
    ///
    /// The refusal that S3 would give: `AccessDenied`, `InvalidAccessKeyId`,
    /// `SignatureDoesNotMatch`, `RequestTimeTooSkewed`, `ExpiredToken`, ...
    pub fn verify(&self, parts: &Parts, keys: &Keys, now: SystemTime) -> Result<Payload, Refusal> {
        let pairs = sigv4::query_pairs(parts.uri.query().unwrap_or(""));
        let Some(claim) = claim(&parts.headers, &pairs)? else {
            if keys.anonymous {
                return Ok(unsigned_payload(&parts.headers));
            }
            return Err(denied("AccessDenied", "Access Denied: the request is not signed"));
        };
        check_claim(&claim, keys, now)?;
        let key = self.key(keys, &claim.scope)?;
        let path = sigv4::decode_path(parts.uri.path()).ok_or_else(|| Refusal::argument("the path is not UTF-8"))?;
        let values: Vec<(&str, String)> = claim
            .signed
            .iter()
            .map(|name| Ok((name.as_str(), header_value(parts, name)?)))
            .collect::<Result<_, Refusal>>()?;
        let headers: Vec<(&str, &str)> = values.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let canonical = sigv4::canonical_request(
            parts.method.as_str(),
            &sigv4::encode_path(&path),
            &sigv4::canonical_query(&pairs),
            &headers,
            &claim.payload,
        );
        if key.sign(&claim.stamp, &canonical) != claim.signature {
            return Err(denied(
                "SignatureDoesNotMatch",
                format!("The signature does not match the canonical request:\n{canonical}"),
            ));
        }
        Ok(match claim.payload.as_str() {
            sigv4::UNSIGNED_PAYLOAD => Payload::Unsigned,
            text if text.starts_with("STREAMING-UNSIGNED") => Payload::Chunks(None),
            text if text.starts_with("STREAMING-AWS4-HMAC") => {
                let seed = claim.signature.clone();
                Payload::Chunks(Some(Box::new(Chain {
                    key,
                    stamp: claim.stamp,
                    seed,
                })))
            }
            _ => Payload::Hash(claim.payload),
        })
    }

    /// The signing key for a scope; derived once.
    fn key(&self, keys: &Keys, scope: &str) -> Result<Key, Refusal> {
        let name = format!("{}/{}/{scope}", keys.access_key, keys.secret_key);
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = derived.get(&name) {
            return Ok(key.clone());
        }
        let parts: Vec<&str> = scope.split('/').collect();
        let [date, region, "s3", "aws4_request"] = parts[..] else {
            let message = format!("the credential's scope {scope:?} is malformed");
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "AuthorizationHeaderMalformed",
                message,
            ));
        };
        let key = Key::derive(&keys.secret_key, date, region, "s3");
        derived.insert(name, key.clone());
        Ok(key)
    }
}

fn denied(code: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, code, message)
}

fn unsigned_payload(headers: &HeaderMap) -> Payload {
    let hash = headers
        .get("x-amz-content-sha256")
        .and_then(|value| value.to_str().ok());
    match hash {
        Some(text) if text.starts_with("STREAMING-") => Payload::Chunks(None),
        _ => Payload::Unsigned,
    }
}

/// Reads the claim from the header or the query; `None` when there is none.
fn claim(headers: &HeaderMap, pairs: &[(String, String)]) -> Result<Option<Claim>, Refusal> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(text) = header("authorization") {
        return header_claim(text, &header).map(Some);
    }
    let query = |name: &str| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
    let Some(signature) = query("X-Amz-Signature") else {
        return Ok(None);
    };
    let need = |name: &str| {
        query(name).ok_or_else(|| {
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "AuthorizationQueryParametersError",
                format!("{name} is missing"),
            )
        })
    };
    let (access_key, scope) = credential(&need("X-Amz-Credential")?)?;
    let lifetime = need("X-Amz-Expires")?
        .parse()
        .map_err(|_| Refusal::argument("X-Amz-Expires is not a number"))?;
    Ok(Some(Claim {
        access_key,
        scope,
        signed: need("X-Amz-SignedHeaders")?.split(';').map(str::to_owned).collect(),
        signature,
        stamp: need("X-Amz-Date")?,
        token: query("X-Amz-Security-Token"),
        lifetime: Some(Duration::from_secs(lifetime)),
        payload: header("x-amz-content-sha256")
            .unwrap_or(sigv4::UNSIGNED_PAYLOAD)
            .to_owned(),
    }))
}

fn header_claim<'a>(text: &str, header: &impl Fn(&str) -> Option<&'a str>) -> Result<Claim, Refusal> {
    let malformed = || {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            "AuthorizationHeaderMalformed",
            "the Authorization header is malformed",
        )
    };
    let fields = text.strip_prefix(sigv4::ALGORITHM).ok_or_else(malformed)?;
    let field = |name: &str| {
        let mut found = fields.split(',').filter_map(|field| field.trim().split_once('='));
        found
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    let (access_key, scope) = credential(&field("Credential").ok_or_else(malformed)?)?;
    let signed: Vec<String> = field("SignedHeaders")
        .ok_or_else(malformed)?
        .split(';')
        .map(str::to_owned)
        .collect();
    if !signed.iter().any(|name| name == "host") {
        return Err(denied("AccessDenied", "the host header must be signed"));
    }
    Ok(Claim {
        access_key,
        scope,
        signed,
        signature: field("Signature").ok_or_else(malformed)?,
        stamp: header("x-amz-date").ok_or_else(malformed)?.to_owned(),
        token: header("x-amz-security-token").map(str::to_owned),
        lifetime: None,
        payload: header("x-amz-content-sha256")
            .ok_or_else(|| Refusal::argument("x-amz-content-sha256 is missing"))?
            .to_owned(),
    })
}

fn credential(text: &str) -> Result<(String, String), Refusal> {
    text.split_once('/')
        .map(|(access_key, scope)| (access_key.to_owned(), scope.to_owned()))
        .ok_or_else(|| Refusal::argument("the credential is malformed"))
}

/// Checks the key's name, the token and the clock.
fn check_claim(claim: &Claim, keys: &Keys, now: SystemTime) -> Result<(), Refusal> {
    if keys.expired.contains(&claim.access_key) {
        let message = "The provided token has expired.";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "ExpiredToken", message));
    }
    if claim.access_key != keys.access_key {
        let message = "The access key does not exist in our records.";
        return Err(denied("InvalidAccessKeyId", message));
    }
    if keys.session_token.is_some() && claim.token != keys.session_token {
        let message = "The provided token is malformed or otherwise invalid.";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "InvalidToken", message));
    }
    let signed_at = stamp::parse_amz(&claim.stamp)
        .ok_or_else(|| denied("AccessDenied", "the date of the signature is malformed"))?;
    if !claim.scope.starts_with(&claim.stamp[..8]) {
        return Err(denied("SignatureDoesNotMatch", "the scope's date is not the request's"));
    }
    let skewed = || {
        let message = "The difference between the request time and the current time is too large.";
        denied("RequestTimeTooSkewed", message)
    };
    if signed_at > now + SKEW {
        return Err(skewed());
    }
    match claim.lifetime {
        Some(lifetime) if now > signed_at + lifetime => Err(denied("AccessDenied", "Request has expired")),
        None if now > signed_at + SKEW => Err(skewed()),
        _ => Ok(()),
    }
}

/// A signed header's value, trimmed, spaces folded; several values are joined by commas.
fn header_value(parts: &Parts, name: &str) -> Result<String, Refusal> {
    let mut values = Vec::new();
    for value in parts.headers.get_all(name) {
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| Refusal::argument(format!("header {name} is not UTF-8")))?;
        values.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if values.is_empty() {
        return Err(denied("AccessDenied", format!("the signed header {name} is missing")));
    }
    Ok(values.join(","))
}
