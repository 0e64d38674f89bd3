//! A small HTTP/1.1 client made for ranged GETs.
//!
//! It exists because of its cost: one task per fetch drives its own connection, without connection tasks, channels or
//! a buffer per connection, and body bytes go from a per-thread scratch buffer straight to the caller; those of a small
//! body come with the head, which spares a system call and costs a copy. A GET takes about two thirds of the CPU it
//! takes through hyper, which matters at a gigabyte per second. Everything else that talks HTTP (object_store's
//! credential chains and listings) runs over the same connections through `adapter`.
//!
//! [`Client::send`] takes a connection from the pool or makes one (`connect`), writes the request, reads the head
//! (`head`) and returns a [`Response`], whose body is pulled piece by piece (`body`). The connection goes back to the
//! pool when the body has been read to its end, and is closed in every other case: an error, a timeout, a dropped
//! future. There is no background task.

pub(crate) mod adapter;
mod body;
mod connect;
mod head;
mod pool;
mod watch;

pub(crate) use body::Response;
pub(crate) use connect::{Connector, Origin, Proxy, ProxyRules};
pub(crate) use head::Head;
pub(crate) use watch::Watch;

use crate::{Error, ErrorKind, Result};
use connect::Stream;
use pool::Pool;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

/// Times and sizes of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub connect_timeout: Duration,
    pub read_timeout: Duration,
    pub idle_timeout: Duration,
    pub idle_connections: usize,
}

/// Sends requests over kept connections; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connector: Connector,
    pool: Pool,
    limits: Limits,
}

/// One connection and the bytes read from it that belong to the current response.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// Bytes read together with the head.
    pending: Vec<u8>,
    /// Of them, those that were the head.
    taken: usize,
    reused: bool,
}

impl Connection {
    fn new(stream: Stream) -> Self {
        Connection {
            stream,
            pending: Vec::new(),
            taken: 0,
            reused: false,
        }
    }

    /// What has been read and not been taken yet.
    fn rest(&self) -> &[u8] {
        &self.pending[self.taken..]
    }

    /// All that was read has been taken. An idle connection has no buffer of its own.
    fn forget(&mut self) {
        (self.pending, self.taken) = (Vec::new(), 0);
    }
}

/// Longest turn of a new connection, of those of which a few are made at a time: a server that hangs keeps nobody from trying for long.
const TURN: Duration = Duration::from_secs(1);
/// Its turn ends with its first answer, or so long after it was made: by then a server has taken it from its queue.
const QUEUED: Duration = Duration::from_millis(10);

/// A request as it goes over the wire: the head, already encoded, and the body.
pub(crate) struct Request<'a> {
    pub origin: &'a Origin,
    pub bytes: &'a [u8],
    pub body: &'a [u8],
    /// The answer to HEAD has no body, whatever its headers say.
    pub is_head: bool,
    /// Bytes that the body of the answer should have; 0: nobody knows.
    pub expects: u64,
    /// Whether it may go over a connection that was used before.
    pub may_reuse: bool,
}

/// A body of so many bytes is read together with its head: to copy it once more costs less than another read.
const WITH_HEAD: u64 = 32 << 10;
/// What is read for a head, at most; what comes behind it has to be copied once more.
const HEAD_BYTES: usize = 4096;

impl Client {
    pub fn new(connector: Connector, limits: Limits) -> Self {
        let pool = Pool::new(limits.idle_connections, limits.idle_timeout);
        Self {
            inner: Arc::new(Inner {
                connector,
                pool,
                limits,
            }),
        }
    }

    /// Whether requests to `origin` go in absolute form, through a proxy.
    pub fn proxied_plainly(&self, origin: &Origin) -> Option<&Proxy> {
        self.inner.connector.plain_proxy(origin)
    }

    /// Sends the request and waits for the head of its answer, at most until `deadline`.
    ///
    /// A kept connection that the server closed meanwhile is replaced by a new one without counting as a failure.
    pub async fn send(&self, request: Request<'_>, deadline: Instant) -> Result<Response> {
        let mut watch = Watch::new(request.origin, self.inner.limits.read_timeout, deadline);
        let mut may_reuse = request.may_reuse;
        loop {
            let begun = Instant::now();
            let limit = deadline.min(begun + self.inner.limits.connect_timeout);
            let late = |_| {
                Error::new(
                    ErrorKind::Timeout,
                    format!("connecting to {} took too long", request.origin),
                )
            };
            let start = tokio::time::timeout_at(limit, self.start(request.origin, may_reuse));
            let (kept, mut turn) = start.await.map_err(late)?;
            let is_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => {
                    // Few requests need it, and none should be as large as it is.
                    let connect = Box::pin(self.inner.connector.connect(request.origin));
                    let mut connect = pin!(tokio::time::timeout_at(limit, connect));
                    let connected = match tokio::time::timeout(TURN, &mut connect).await {
                        Ok(connected) => connected,
                        Err(_) => {
                            turn = None;
                            connect.await
                        }
                    };
                    Connection::new(connected.map_err(late)??)
                }
            };
            watch.progress();
            let connecting = begun.elapsed();
            let ended = {
                let mut exchange = pin!(exchange(&mut connection, &request, &mut watch));
                match turn {
                    None => exchange.await,
                    Some(turn) => match tokio::time::timeout(QUEUED, &mut exchange).await {
                        Ok(ended) => ended,
                        Err(_) => {
                            drop(turn);
                            exchange.await
                        }
                    },
                }
            };
            match ended {
                Ok(head) => {
                    return Response::new(connection, connecting, head, &request, watch, self.clone());
                }
                Err(Failure::Stale) if is_kept => may_reuse = false,
                Err(Failure::Stale) => return Err(broken("the server closed the connection without an answer")),
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// A kept connection, or else a turn to make one: what doesn't fit a server's queue it drops, and says so to nobody.
    async fn start<'a>(
        &self,
        origin: &'a Origin,
        may_reuse: bool,
    ) -> (Option<Connection>, Option<SemaphorePermit<'a>>) {
        let kept = || may_reuse.then(|| self.inner.pool.take(origin)).flatten();
        if let Some(connection) = kept() {
            return (Some(connection), None);
        }
        if let Ok(turn) = origin.turns().try_acquire() {
            return (None, Some(turn));
        }
        // It is never closed.
        let turn = origin.turns().acquire().await.ok();
        // One that was let go meanwhile is as good.
        match kept() {
            Some(connection) => (Some(connection), None),
            None => (None, turn),
        }
    }

    fn give_back(&self, origin: &Origin, mut connection: Connection) {
        connection.reused = true;
        self.inner.pool.put(origin, connection);
    }
}

/// Why no head came back.
enum Failure {
    /// The kept connection was dead before it delivered a byte: the request can be sent again.
    Stale,
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Other(error)
    }
}

async fn exchange(connection: &mut Connection, request: &Request<'_>, watch: &mut Watch) -> Result<Head, Failure> {
    let (mut sent, all) = (0, request.bytes.len() + request.body.len());
    while sent < all {
        let stream = &mut connection.stream;
        let rest = match request.bytes.get(sent..) {
            Some(rest @ [_, ..]) => rest,
            _ => &request.body[sent - request.bytes.len()..],
        };
        let written = watch
            .run(|cx| std::pin::Pin::new(&mut *stream).poll_write(cx, rest))
            .await;
        match written.map_err(Failure::Other)? {
            Ok(0) => return Err(Failure::Stale),
            Ok(n) => sent += n,
            Err(_) if connection.reused => return Err(Failure::Stale),
            Err(error) => return Err(Failure::Other(failed("sending the request", error))),
        }
    }
    let stream = &mut connection.stream;
    let flushed = watch
        .run(|cx| std::pin::Pin::new(&mut *stream).poll_flush(cx))
        .await
        .map_err(Failure::Other)?;
    if let Err(error) = flushed {
        return Err(if connection.reused {
            Failure::Stale
        } else {
            Failure::Other(failed("sending the request", error))
        });
    }
    read_head(connection, request.expects, watch).await
}

async fn read_head(connection: &mut Connection, expects: u64, watch: &mut Watch) -> Result<Head, Failure> {
    let room = HEAD_BYTES + if expects <= WITH_HEAD { expects as usize } else { 0 };
    loop {
        if let Some((head, length)) = Head::parse(connection.rest()).map_err(Failure::Other)? {
            if head.status >= 200 {
                connection.taken += length;
                return Ok(head);
            }
            // The real answer follows, and before it as many of these as the server likes.
            let end = connection.taken + length;
            connection.pending.drain(connection.taken..end);
            continue;
        }
        let Connection { stream, pending, .. } = connection;
        let read = watch.run(|cx| body::poll_read(stream, room, cx, |piece| pending.extend_from_slice(piece)));
        match read.await.map_err(Failure::Other)? {
            Ok(0) if connection.pending.is_empty() => return Err(Failure::Stale),
            Ok(0) => {
                return Err(Failure::Other(broken(
                    "the server closed the connection inside its answer",
                )));
            }
            Ok(_) => {}
            Err(_) if connection.reused && connection.pending.is_empty() => return Err(Failure::Stale),
            Err(error) => return Err(Failure::Other(failed("waiting for the answer", error))),
        }
    }
}

pub(crate) fn broken(how: &str) -> Error {
    Error::new(ErrorKind::Unavailable, how)
}

pub(crate) fn failed(step: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{step} failed: {error}")).with_source(error)
}

/// A certificate or protocol error of TLS does not go away by itself.
pub(crate) fn tls_failed(host: &str, error: std::io::Error) -> Error {
    use tokio_rustls::rustls::Error as Tls;
    let (kind, remedy) = match error.get_ref().and_then(|e| e.downcast_ref::<Tls>()) {
        Some(Tls::InvalidMessage(_)) => (
            ErrorKind::Invalid,
            Some("this port doesn't speak TLS: write http:// for it, or name another"),
        ),
        // webpki has no name for it that others can see.
        Some(Tls::InvalidCertificate(why)) if format!("{why:?}").contains("CaUsedAsEndEntity") => (
            ErrorKind::Invalid,
            Some(
                "its certificate is an authority's own, as `openssl req -x509` makes them: make it with -addext basicConstraints=critical,CA:FALSE, and name \
                 that one as ca_file",
            ),
        ),
        Some(_) => (
            ErrorKind::Invalid,
            Some("is the certificate signed by a private authority? Name its PEM file as ca_file"),
        ),
        None => (ErrorKind::Unavailable, None),
    };
    let error = Error::new(kind, format!("no TLS connection to {host}: {error}")).with_source(error);
    match remedy {
        Some(remedy) => error.with_remedy(remedy),
        None => error,
    }
}
