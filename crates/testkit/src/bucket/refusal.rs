//! Errors as S3 answers them: a status, a code, a sentence, in XML.

use http::{HeaderValue, Response, StatusCode, header};

use super::body::Reply;
use super::xml::escape;

/// A request that is refused.
#[derive(Debug)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// S3's code, such as `NoSuchKey`.
    pub code: &'static str,
    /// The sentence.
    pub message: String,
    /// `Retry-After`, in seconds.
    pub retry_after_s: Option<u64>,
    /// The object's size, which 416 must tell.
    pub size: Option<u64>,
    /// The ETag, which 304 must tell.
    pub etag: Option<String>,
}

impl Refusal {
    /// A refusal with this status, code and sentence.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            status,
            code,
            message,
            retry_after_s: None,
            size: None,
            etag: None,
        }
    }

    /// 400 `InvalidArgument`.
    #[must_use]
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidArgument", message)
    }

    /// 404 `NoSuchKey`.
    #[must_use]
    pub fn no_key(key: &str) -> Self {
        let message = format!("The specified key does not exist: {key}");
        Self::new(StatusCode::NOT_FOUND, "NoSuchKey", message)
    }

    /// 404 `NoSuchBucket`.
    #[must_use]
    pub fn no_bucket(bucket: &str) -> Self {
        let message = format!("The specified bucket does not exist: {bucket}");
        Self::new(StatusCode::NOT_FOUND, "NoSuchBucket", message)
    }

    /// 503 `SlowDown`.
    #[must_use]
    pub fn slow_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "SlowDown",
            "Please reduce your request rate.",
        )
    }

    /// The refusal for an injected status.
    #[must_use]
    pub fn injected(status: u16) -> Self {
        let known = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = match status {
            400 => "BadRequest",
            401 | 403 => "AccessDenied",
            404 => "NoSuchKey",
            408 => "RequestTimeout",
            412 => "PreconditionFailed",
            429 => "TooManyRequests",
            503 => return Self::slow_down(),
            _ => "InternalError",
        };
        Self::new(known, code, "Injected by a fault of the test bucket.")
    }

    /// The response; `head` leaves the XML out, as HTTP asks for.
    #[must_use]
    pub fn response(&self, resource: &str, id: u64, head: bool) -> Response<Reply> {
        let bare = head || self.status == StatusCode::NOT_MODIFIED;
        let text = if bare {
            String::new()
        } else {
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code>\
                 <Message>{}</Message><Resource>{}</Resource><RequestId>{id:016X}</RequestId></Error>",
                self.code,
                escape(&self.message),
                escape(resource),
            )
        };
        let mut response = Response::new(Reply::from(text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if !bare {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        let range = self.size.map(|size| format!("bytes */{size}"));
        let etag = self.etag.as_ref().map(|etag| format!("\"{etag}\""));
        for (name, value) in [(header::CONTENT_RANGE, range), (header::ETAG, etag)] {
            if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
                headers.insert(name, value);
            }
        }
        response
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::InvalidInput {
            return Self::argument(error.to_string());
        }
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", error.to_string())
    }
}
