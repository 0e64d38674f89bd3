//! Makes connections: name lookup, TCP, an optional proxy, TLS.

use super::head::Head;
use super::{broken, failed, tls_failed};
use crate::source::private;
use crate::{Error, ErrorKind, Result};
use base64::Engine;
use std::fmt;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, pki_types};

/// Connections that are new at a time: as many as wait in the queue of a server that asks for no longer one (the backlog of `listen`).
const AT_ONCE: usize = 128;

/// Scheme, host and port: what a connection can be reused for.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    inner: Arc<OriginParts>,
    turns: Arc<Semaphore>,
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for Origin {}

#[derive(Debug, PartialEq, Eq)]
struct OriginParts {
    host: String,
    port: u16,
    tls: bool,
    authority: String,
}

impl Origin {
    /// The origin of an `http` or `https` URL.
    pub fn of(url: &url::Url) -> Result<Self> {
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(Error::invalid(format!("{other}: is not HTTP"))),
        };
        let host = url.host_str().filter(|h| !h.is_empty());
        let host = host.ok_or_else(|| Error::invalid(format!("{url} names no host")))?;
        let port = url.port_or_known_default().unwrap_or(443);
        let authority = url
            .port()
            .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self {
            inner: Arc::new(OriginParts {
                host,
                port,
                tls,
                authority,
            }),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    /// For whoever makes a connection.
    pub fn turns(&self) -> &Semaphore {
        &self.turns
    }

    /// What the Host field says: the port only when it is not the scheme's own.
    pub fn authority(&self) -> &str {
        &self.inner.authority
    }

    pub fn host(&self) -> &str {
        &self.inner.host
    }

    pub fn is_tls(&self) -> bool {
        self.inner.tls
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}",
            if self.inner.tls { "https" } else { "http" },
            self.inner.authority
        )
    }
}

/// An HTTP proxy.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    host: String,
    port: u16,
    /// Value of Proxy-Authorization.
    pub authorization: Option<String>,
}

impl Proxy {
    pub fn parse(text: &str) -> Result<Self> {
        let full = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let wrong = || Error::invalid(format!("{text:?} is no proxy URL")).with_remedy("write http://host:port");
        let url = url::Url::parse(&full).map_err(|_| wrong())?;
        if url.scheme() != "http" {
            return Err(
                Error::invalid(format!("proxies of kind {}: are not supported", url.scheme()))
                    .with_remedy("use an http:// proxy; TLS to the store passes through it unread"),
            );
        }
        let decode = |part: &str| {
            percent_encoding::percent_decode_str(part)
                .decode_utf8_lossy()
                .into_owned()
        };
        let authorization = (!url.username().is_empty()).then(|| {
            let user = format!("{}:{}", decode(url.username()), decode(url.password().unwrap_or("")));
            format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(user))
        });
        let host = url.host_str().ok_or_else(wrong)?.to_owned();
        Ok(Self {
            host,
            port: url.port().unwrap_or(80),
            authorization,
        })
    }
}

/// Which hosts go through which proxy.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProxyRules {
    pub http: Option<Proxy>,
    pub https: Option<Proxy>,
    /// Hosts reached directly: names, which cover their subdomains, or `*`.
    pub direct: Vec<String>,
}

impl ProxyRules {
    fn for_origin(&self, origin: &Origin) -> Option<&Proxy> {
        let proxy = if origin.inner.tls {
            self.https.as_ref()
        } else {
            self.http.as_ref()
        }?;
        let host = &origin.inner.host;
        let is_direct = |rule: &String| {
            let name = rule.trim_start_matches("*.").trim_start_matches('.');
            rule == "*" || host == name || (!name.is_empty() && host.ends_with(&format!(".{name}")))
        };
        (!self.direct.iter().any(is_direct)).then_some(proxy)
    }
}

/// Makes connections.
pub(crate) struct Connector {
    tls: Option<TlsConnector>,
    proxies: ProxyRules,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("proxies", &self.proxies)
            .finish_non_exhaustive()
    }
}

impl Connector {
    /// `with_tls` loads the machine's certificates (some milliseconds) and those in `ca_file`.
    pub fn new(with_tls: bool, ca_file: Option<&Path>, proxies: ProxyRules) -> Result<Self> {
        let tls = if with_tls { Some(tls_connector(ca_file)?) } else { None };
        Ok(Self { tls, proxies })
    }

    /// For those alone who know a secret, which needs no certificates.
    pub fn private(secret: &str, proxies: ProxyRules) -> Result<Self> {
        let tls = Some(TlsConnector::from(Arc::new(private::asking(secret)?)));
        Ok(Self { tls, proxies })
    }

    /// The proxy that requests to `origin` are addressed to in absolute form (no TLS, so no tunnel).
    pub fn plain_proxy(&self, origin: &Origin) -> Option<&Proxy> {
        if origin.inner.tls {
            None
        } else {
            self.proxies.for_origin(origin)
        }
    }

    pub async fn connect(&self, origin: &Origin) -> Result<Stream> {
        let target = &*origin.inner;
        let proxy = self.proxies.for_origin(origin);
        let (host, port) = proxy.map_or((&target.host, target.port), |p| (&p.host, p.port));
        let mut tcp = TcpStream::connect((host.as_str(), port)).await.map_err(|error| {
            let kind = if error.kind() == io::ErrorKind::PermissionDenied {
                ErrorKind::Denied
            } else {
                ErrorKind::Unavailable
            };
            Error::new(kind, format!("no connection to {host}:{port}: {error}"))
                .with_source(error)
                .with_remedy("check endpoint, network and proxy settings")
        })?;
        tcp.set_nodelay(true)
            .map_err(|e| failed("setting up the connection", e))?;
        if !target.tls {
            return Ok(Stream::Plain(tcp));
        }
        if let Some(proxy) = proxy {
            tunnel(&mut tcp, target, proxy).await?;
        }
        let tls = self
            .tls
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Bug, "this client was made without TLS"))?;
        let name = pki_types::ServerName::try_from(target.host.clone())
            .map_err(|_| Error::invalid(format!("{:?} is not a valid host name", target.host)))?;
        let stream = tls.connect(name, tcp).await.map_err(|e| tls_failed(&target.host, e))?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

async fn tunnel(tcp: &mut TcpStream, target: &OriginParts, proxy: &Proxy) -> Result<()> {
    let authority = format!("{}:{}", target.host, target.port);
    let authorization = proxy
        .authorization
        .as_ref()
        .map(|a| format!("Proxy-Authorization: {a}\r\n"));
    let request = format!(
        "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{}\r\n",
        authorization.as_deref().unwrap_or_default()
    );
    let step = "asking the proxy for a tunnel";
    tcp.write_all(request.as_bytes()).await.map_err(|e| failed(step, e))?;
    let mut pending = Vec::new();
    loop {
        if let Some((head, _)) = Head::parse(&pending)? {
            return match head.status {
                200..300 => Ok(()),
                407 => Err(Error::new(ErrorKind::Denied, "the proxy asks for a password")
                    .with_remedy("write it into the proxy's URL: http://user:password@host:port")),
                status => Err(broken(&format!(
                    "the proxy refused a tunnel to {authority} with status {status}"
                ))),
            };
        }
        // One byte at a time, so that nothing of the TLS handshake behind the head is taken.
        pending.push(tcp.read_u8().await.map_err(|e| failed(step, e))?);
    }
}

fn tls_connector(ca_file: Option<&Path>) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        // A container without ca-certificates: Mozilla's list, as browsers ship it.
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    if let Some(path) = ca_file {
        let text = std::fs::read(path).map_err(|e| Error::io(format!("reading ca_file {}", path.display()), e))?;
        let mut found = 0;
        for certificate in <pki_types::CertificateDer<'_> as pki_types::pem::PemObject>::pem_slice_iter(&text) {
            let added = certificate.ok().and_then(|c| roots.add(c).ok());
            found += usize::from(added.is_some());
        }
        if found == 0 {
            return Err(Error::invalid(format!(
                "ca_file {} holds no certificate in PEM form",
                path.display()
            )));
        }
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::new(ErrorKind::Bug, "TLS cannot be set up").with_source(e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A connection with or without encryption.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::of(&url::Url::parse(url).unwrap()).unwrap()
    }

    #[test]
    fn hosts_named_in_no_proxy_are_reached_directly() {
        let proxy = Proxy::parse("http://me:p%40ss@proxy:3128").unwrap();
        assert_eq!(proxy.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        let direct = vec!["localhost".to_owned(), ".corp.example".to_owned()];
        let rules = ProxyRules {
            http: None,
            https: Some(proxy),
            direct,
        };
        assert!(rules.for_origin(&origin("https://s3.amazonaws.com/")).is_some());
        assert!(rules.for_origin(&origin("https://minio.corp.example/")).is_none());
        assert!(rules.for_origin(&origin("https://corp.example:9000/")).is_none());
        assert!(rules.for_origin(&origin("https://notcorp.example/")).is_some());
        assert!(rules.for_origin(&origin("http://s3.amazonaws.com/")).is_none());
    }

    #[test]
    fn the_authority_names_unusual_ports_only() {
        assert_eq!(origin("https://h:443/x").authority(), "h");
        assert_eq!(origin("http://[::1]:9000/x").authority(), "[::1]:9000");
        assert_eq!(origin("http://[::1]:9000/x").host(), "::1");
    }
}
