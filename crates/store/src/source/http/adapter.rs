//! Lets object_store's credential chains, signers, listings and writes use our connections.

use super::{Client, Origin, Request};
use crate::{Error, ErrorKind};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use std::time::Duration;
use tokio::time::Instant;

// Tokens and pages of 1000 (Azure: 5000) keys; the bodies of objects never come this way, they only go.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Longest time for an answer, and the least bytes a second of what is sent.
const ANSWER: Duration = Duration::from_secs(60);
const LEAST_RATE: u64 = 256 << 10;

/// Answers object_store's request for a client with ours.
#[derive(Debug)]
pub(crate) struct Adapter(pub Client);

impl HttpConnector for Adapter {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(self.0.clone())))
    }
}

#[derive(Debug)]
struct Service(Client);

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let url = url::Url::parse(&parts.uri.to_string()).map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        let origin = Origin::of(&url).map_err(failed)?;
        let mut writer = RequestWriter::new(
            &self.0,
            parts.method.as_str(),
            &origin,
            &url[url::Position::BeforePath..],
        );
        for (name, value) in &parts.headers {
            if name != http::header::HOST && name != http::header::CONTENT_LENGTH {
                writer.field(name.as_str(), value.as_bytes());
            }
        }
        let bytes = writer.finish(&parts.method, body.len());
        let is_head = parts.method == http::Method::HEAD;
        // What stands still ends sooner.
        let deadline = Instant::now() + ANSWER + Duration::from_secs(body.len() as u64 / LEAST_RATE);
        let request = Request {
            origin: &origin,
            bytes: &bytes,
            body: &body,
            is_head,
            expects: 0,
            may_reuse: true,
        };
        let mut answer = self.0.send(request, deadline).await.map_err(failed)?;
        let body = answer.collect(MAX_ANSWER_BYTES).await.map_err(failed)?;
        let mut response = http::Response::builder().status(answer.head.status);
        for (name, value) in answer.head.fields() {
            response = response.header(name, value);
        }
        let body = Full::new(Bytes::from(body)).map_err(|never: std::convert::Infallible| match never {});
        response
            .body(HttpResponseBody::new(body))
            .map_err(|e| HttpError::new(HttpErrorKind::Decode, e))
    }
}

fn failed(error: Error) -> HttpError {
    let kind = match error.kind() {
        ErrorKind::Timeout => HttpErrorKind::Timeout,
        ErrorKind::Unavailable => HttpErrorKind::Interrupted,
        ErrorKind::Corrupt => HttpErrorKind::Decode,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}

/// Encodes the head of a request.
pub(crate) struct RequestWriter {
    bytes: Vec<u8>,
}

impl RequestWriter {
    /// Starts with the request line (in absolute form where a proxy wants it) and the Host field.
    pub fn new(client: &Client, method: &str, origin: &Origin, target: &str) -> Self {
        let mut writer = Self {
            bytes: Vec::with_capacity(1024),
        };
        let proxy = client.proxied_plainly(origin);
        let absolute = if proxy.is_some() {
            origin.to_string()
        } else {
            String::new()
        };
        for part in [
            method,
            " ",
            &absolute,
            target,
            " HTTP/1.1\r\nhost: ",
            origin.authority(),
            "\r\n",
        ] {
            writer.bytes.extend_from_slice(part.as_bytes());
        }
        if let Some(authorization) = proxy.and_then(|p| p.authorization.as_deref()) {
            writer.field("proxy-authorization", authorization.as_bytes());
        }
        writer
    }

    /// Adds a field; line ends inside a value would forge another one and are dropped.
    pub fn field(&mut self, name: &str, value: &[u8]) {
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        let ends_a_line = |byte: &u8| matches!(byte, b'\r' | b'\n');
        if value.iter().any(ends_a_line) {
            self.bytes.extend(value.iter().filter(|byte| !ends_a_line(byte)));
        } else {
            self.bytes.extend_from_slice(value);
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Ends the head, of a request with so many bytes behind it.
    pub fn finish(mut self, method: &http::Method, body: usize) -> Vec<u8> {
        if body > 0 || matches!(*method, http::Method::POST | http::Method::PUT) {
            self.field("content-length", body.to_string().as_bytes());
        }
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes
    }
}
