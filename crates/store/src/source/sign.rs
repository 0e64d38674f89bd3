//! Signatures for S3 (AWS Signature Version 4), made for one kind of request: a GET or HEAD without body.
//!
//! The signing key depends on day, region and secret only, so it is derived once a day; a signature then costs two
//! hashes of some hundred bytes, about a microsecond. The reference is AWS's documentation of the canonical request;
//! the test vector below is theirs.

use ring::{digest, hmac};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// An S3 access key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AccessKey {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AccessKey({})", self.id)
    }
}

/// Signs requests and remembers the key of the day.
#[derive(Debug, Default)]
pub(crate) struct Signer {
    derived: Mutex<Option<Arc<Derived>>>,
}

struct Derived {
    access: AccessKey,
    region: String,
    /// yyyymmdd
    day: String,
    key: hmac::Key,
}

impl std::fmt::Debug for Derived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Derived({}, {})", self.region, self.day)
    }
}

/// What is signed.
pub(crate) struct ToSign<'a> {
    pub method: &'a str,
    pub host: &'a str,
    /// Percent-encoded path.
    pub path: &'a str,
    /// Percent-encoded query, sorted by name; empty for none.
    pub query: &'a str,
    pub request_payer: bool,
}

impl Signer {
    /// Hands the fields to add to the request to `field`.
    pub fn sign(
        &self,
        request: &ToSign<'_>,
        access: &AccessKey,
        region: &str,
        now: SystemTime,
        mut field: impl FnMut(&str, &str),
    ) {
        let time = timestamp(now);
        let day = &time[..8];
        let derived = self.derive(access, region, day);
        let (mut canonical, mut signed) = (
            String::with_capacity(512),
            String::from("host;x-amz-content-sha256;x-amz-date"),
        );
        let _ = write!(
            canonical,
            "{}\n{}\n{}\nhost:{}\nx-amz-content-sha256:{EMPTY_SHA256}\nx-amz-date:{time}\n",
            request.method, request.path, request.query, request.host
        );
        field("x-amz-content-sha256", EMPTY_SHA256);
        field("x-amz-date", &time);
        if request.request_payer {
            canonical.push_str("x-amz-request-payer:requester\n");
            signed.push_str(";x-amz-request-payer");
            field("x-amz-request-payer", "requester");
        }
        if let Some(token) = &access.token {
            let _ = writeln!(canonical, "x-amz-security-token:{token}");
            signed.push_str(";x-amz-security-token");
            field("x-amz-security-token", token);
        }
        let _ = write!(canonical, "\n{signed}\n{EMPTY_SHA256}");
        let scope = format!("{day}/{region}/s3/aws4_request");
        let mut text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n");
        hex(
            digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref(),
            &mut text,
        );
        let mut authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature=",
            access.id
        );
        hex(hmac::sign(&derived.key, text.as_bytes()).as_ref(), &mut authorization);
        field("authorization", &authorization);
    }

    fn derive(&self, access: &AccessKey, region: &str, day: &str) -> Arc<Derived> {
        let mut kept = self.derived.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(derived) = &*kept
            && derived.day == day
            && derived.region == region
            && derived.access == *access
        {
            return derived.clone();
        }
        let step = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
        let mut tag = step(format!("AWS4{}", access.secret).as_bytes(), day);
        for part in [region, "s3", "aws4_request"] {
            tag = step(tag.as_ref(), part);
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref());
        let derived = Arc::new(Derived {
            access: access.clone(),
            region: region.to_owned(),
            day: day.to_owned(),
            key,
        });
        *kept = Some(derived.clone());
        derived
    }
}

/// Writes bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)] as char);
        out.push(DIGITS[usize::from(byte & 15)] as char);
    }
}

/// `yyyymmddThhmmssZ`.
fn timestamp(now: SystemTime) -> String {
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let rest = seconds % 86_400;
    format!(
        "{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// Year, month and day of a number of days since 1970 (Howard Hinnant's algorithm, for dates from 1970 on).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAY_24: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        MAY_24 + Duration::from_secs(seconds)
    }

    #[test]
    fn dates_come_out_right() {
        assert_eq!(timestamp(at(0)), "19700101T000000Z");
        assert_eq!(timestamp(at(951_782_399)), "20000228T235959Z");
        assert_eq!(timestamp(at(951_782_400)), "20000229T000000Z");
        assert_eq!(timestamp(at(1_369_353_600)), "20130524T000000Z");
        assert_eq!(timestamp(at(4_102_444_799)), "20991231T235959Z");
    }

    /// "GET Bucket (List Objects)" of AWS's "Signature Calculations: Transferring Payload in a Single Chunk".
    #[test]
    fn a_signature_equals_the_one_in_aws_documentation() {
        let access = AccessKey {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
        };
        let request = ToSign {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query: "max-keys=2&prefix=J",
            request_payer: false,
        };
        let mut authorization = String::new();
        Signer::default().sign(&request, &access, "us-east-1", at(1_369_353_600), |name, value| {
            if name == "authorization" {
                authorization = value.to_owned();
            }
        });
        assert!(
            authorization.ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{authorization}"
        );
    }
}
