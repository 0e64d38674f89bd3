//! A peer's connection, encrypted or not.
//!
//! What is encrypted is copied by that, so nothing of it is ever sent where it lies. All else is the same on both.

use rustix::net::Shutdown;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A connection.
pub(super) enum Line {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted.
    Private(Box<TlsStream<TcpStream>>),
}

impl Line {
    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Line::Plain(stream) => stream,
            Line::Private(stream) => stream.get_ref().0,
        }
    }

    pub fn is_private(&self) -> bool {
        matches!(self, Line::Private(_))
    }

    /// Says that nothing more comes.
    pub async fn end(&mut self) -> io::Result<()> {
        match self {
            Line::Plain(stream) => Ok(rustix::net::shutdown(stream, Shutdown::Write)?),
            Line::Private(stream) => stream.shutdown().await,
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Line::Private(stream) => Pin::new(stream.as_mut()).poll_read(cx, into),
        }
    }
}
