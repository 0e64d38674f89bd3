//! The body of an answer, pulled piece by piece.

use super::{Client, Connection, Head, Request, Watch, broken, connect::Origin, failed};
use crate::{Error, ErrorKind, Result};
use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};
use tokio::net::TcpStream;

// Big enough that a read takes what the socket holds, small enough to stay in the second-level cache between the
// read and the copy to where the bytes belong.
const SCRATCH_BYTES: usize = 128 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Bytes still to come.
    Length(u64),
    Chunked(Chunks),
    UntilClose,
    Done,
    /// Done, and bytes that nobody asked for came behind it: the connection is of no more use.
    Overrun,
}

/// An answer whose head has been read.
#[derive(Debug)]
pub(crate) struct Response {
    pub head: Head,
    framing: Framing,
    connection: Option<Connection>,
    origin: Origin,
    keep: bool,
    watch: Watch,
    client: Client,
    /// What the request waited for a connection.
    pub connecting: Duration,
    /// Whether that had answered others before.
    pub reused: bool,
}

impl Response {
    pub(super) fn new(
        connection: Connection,
        connecting: Duration,
        head: Head,
        request: &Request<'_>,
        watch: Watch,
        client: Client,
    ) -> Result<Self> {
        let framing = framing_of(&head, request.is_head)?;
        let closes = head.has_token("connection", "close")
            || (head.is_http10 && !head.has_token("connection", "keep-alive"))
            || framing == Framing::UntilClose;
        let (origin, reused) = (request.origin.clone(), connection.reused);
        let mut response = Self {
            head,
            framing,
            connection: Some(connection),
            origin,
            keep: !closes,
            watch,
            client,
            connecting,
            reused,
        };
        if response.framing == Framing::Done {
            response.finish();
        }
        Ok(response)
    }

    /// Length of the body when the head says it.
    pub fn length(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(length) => Some(length),
            Framing::Done => Some(0),
            _ => None,
        }
    }

    /// Hands the next pieces of the body to `take` until one wait is over; `false` at the end of the body.
    ///
    /// `take` runs while the bytes lie in a buffer that is used again, which is why it is not async.
    pub async fn next(&mut self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        let mut came = 0;
        let counted = |piece: &[u8]| {
            came += piece.len();
            take(piece)
        };
        let more = self.take_next(counted).await?;
        self.watch.came(came);
        Ok(more)
    }

    async fn take_next(&mut self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        let Some(connection) = self.connection.as_mut() else {
            return Ok(false);
        };
        if !connection.rest().is_empty() {
            self.framing = accept(self.framing, connection.rest(), &mut take)?;
            connection.forget();
        } else {
            let Connection { stream, .. } = connection;
            let framing = self.framing;
            self.framing = self
                .watch
                .run(|cx| poll_piece(stream, framing, &mut take, cx))
                .await??;
        }
        Ok(self.goes_on())
    }

    /// Whether what comes next can be read right to where it belongs ([`Response::read_to`]): its length is known, it isn't encrypted, and none of it has
    /// come with the head.
    pub fn is_plain(&self) -> bool {
        let is_plain = |connection: &Connection| {
            matches!(connection.stream, super::Stream::Plain(_)) && connection.rest().is_empty()
        };
        matches!(self.framing, Framing::Length(_)) && self.connection.as_ref().is_some_and(is_plain)
    }

    /// Reads some of the next bytes of a body that [is plain](Response::is_plain) to `room`: how many, and whether that was the end.
    pub async fn read_to(&mut self, room: &mut [u8]) -> Result<(usize, bool)> {
        let (
            Some(Connection {
                stream: super::Stream::Plain(stream),
                ..
            }),
            Framing::Length(left),
        ) = (self.connection.as_mut(), self.framing)
        else {
            return Err(Error::new(
                ErrorKind::Bug,
                "only a plain body is read to where it belongs",
            ));
        };
        let watch = &mut self.watch;
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
        // A read that leaves nothing says so where there is room for one byte more than there should be.
        let beyond = usize::from(left == most as u64);
        let straight = |cx: &mut Context<'_>| poll_straight(stream, &mut room[..most], beyond, cx);
        let read = watch.run(straight).await?;
        let read = read.map_err(|error| failed("reading the answer", error))?;
        if read == 0 {
            return Err(closed());
        }
        let inside = read.min(most);
        watch.came(inside);
        self.framing = after(left, inside, read);
        Ok((inside, !self.goes_on()))
    }

    /// Reads the rest of a small body.
    pub async fn collect(&mut self, limit: usize) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut take = |piece: &[u8]| {
            if all.len() + piece.len() > limit {
                return Err(Error::corrupt(format!("the answer has more than {limit} bytes")));
            }
            all.extend_from_slice(piece);
            Ok(())
        };
        while self.next(&mut take).await? {}
        Ok(all)
    }

    /// Whether more is to come; if not, the connection is for others, or of no more use.
    fn goes_on(&mut self) -> bool {
        match self.framing {
            Framing::Done => self.finish(),
            Framing::Overrun => self.connection = None,
            _ => return true,
        }
        false
    }

    fn finish(&mut self) {
        if let Some(mut connection) = self.connection.take().filter(|_| self.keep)
            && connection.rest().is_empty()
        {
            connection.forget();
            self.client.give_back(&self.origin, connection);
        }
    }
}

fn framing_of(head: &Head, is_head: bool) -> Result<Framing> {
    if is_head || matches!(head.status, 204 | 304) {
        return Ok(Framing::Done);
    }
    if head.get("transfer-encoding").is_some() {
        let chunked = head.has_token("transfer-encoding", "chunked");
        return if chunked {
            Ok(Framing::Chunked(Chunks::default()))
        } else {
            Ok(Framing::UntilClose)
        };
    }
    match head.get("content-length") {
        Some(text) => match length_of(text) {
            Some(0) => Ok(Framing::Done),
            Some(length) => Ok(Framing::Length(length)),
            None => Err(Error::corrupt(format!(
                "the answer has an impossible Content-Length {text:?}"
            ))),
        },
        None => Ok(Framing::UntilClose),
    }
}

/// A length, which may be said several times (RFC 9110, 8.6).
fn length_of(text: &str) -> Option<u64> {
    let mut said = text.split(',').map(|part| part.trim().parse::<u64>().ok());
    let first = said.next()??;
    said.all(|other| other == Some(first)).then_some(first)
}

/// Reads at most `most` bytes by way of the scratch buffer and hands them to `take`: how many there were.
pub(super) fn poll_read(
    stream: &mut super::Stream,
    most: usize,
    cx: &mut Context<'_>,
    take: impl FnOnce(&[u8]),
) -> Poll<io::Result<usize>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(&mut scratch[..most.min(SCRATCH_BYTES)]);
        ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
        take(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    })
}

/// Hands on what the connection has: as it was decrypted, or by way of the scratch buffer.
fn poll_piece(
    stream: &mut super::Stream,
    framing: Framing,
    take: &mut impl FnMut(&[u8]) -> Result<()>,
    cx: &mut Context<'_>,
) -> Poll<Result<Framing>> {
    let most = match framing {
        Framing::Length(left) => usize::try_from(left).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    match stream {
        super::Stream::Plain(stream) => SCRATCH.with_borrow_mut(|scratch| {
            // With room for one byte more than there should be, a read that leaves nothing says so, and no other has to ask.
            let mut buffer = ReadBuf::new(&mut scratch[..most.saturating_add(1).min(SCRATCH_BYTES)]);
            let read = ready!(Pin::new(stream).poll_read(cx, &mut buffer));
            Poll::Ready(went_on(framing, read.map(|()| buffer.filled()), take))
        }),
        super::Stream::Tls(stream) => {
            let read = ready!(Pin::new(&mut **stream).poll_fill_buf(cx)).map(|piece| &piece[..most.min(piece.len())]);
            let len = read.as_ref().map_or(0, |piece| piece.len());
            let framing = went_on(framing, read, take);
            Pin::new(&mut **stream).consume(len);
            Poll::Ready(framing)
        }
    }
}

/// Reads to `room`, and at most a byte beyond it, which is nobody's.
fn poll_straight(
    stream: &mut TcpStream,
    room: &mut [u8],
    beyond: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut more = [0];
    loop {
        ready!(stream.poll_read_ready(cx))?;
        match stream.try_read_vectored(&mut [IoSliceMut::new(room), IoSliceMut::new(&mut more[..beyond])]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return Poll::Ready(read),
        }
    }
}

fn closed() -> Error {
    broken("the connection closed before the end of the answer")
}

/// What is to come after a read.
fn went_on(framing: Framing, read: io::Result<&[u8]>, take: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<Framing> {
    let piece = read.map_err(|error| failed("reading the answer", error))?;
    match (piece.is_empty(), framing) {
        (true, Framing::UntilClose) => Ok(Framing::Done),
        (true, _) => Err(closed()),
        (false, _) => accept(framing, piece, take),
    }
}

/// What is to come of a body after a read, of whose bytes so many were of the `left` ones.
fn after(left: u64, inside: usize, read: usize) -> Framing {
    match left - inside as u64 {
        0 if inside < read => Framing::Overrun,
        0 => Framing::Done,
        left => Framing::Length(left),
    }
}

/// Hands `piece` on as far as it belongs to the body, and returns what is to come.
fn accept(framing: Framing, piece: &[u8], take: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<Framing> {
    match framing {
        Framing::Length(left) => {
            let inside = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            take(&piece[..inside])?;
            Ok(after(left, inside, piece.len()))
        }
        Framing::Chunked(mut chunks) => {
            chunks.accept(piece, take)?;
            Ok(if chunks.state == ChunkState::End {
                Framing::Done
            } else {
                Framing::Chunked(chunks)
            })
        }
        Framing::UntilClose => take(piece).map(|()| framing),
        Framing::Done | Framing::Overrun => Err(Error::corrupt("the answer goes on after its end")),
    }
}

/// Decoder of the chunked coding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Chunks {
    state: ChunkState,
    /// Size being read, or bytes left in the chunk.
    size: u64,
    /// Whether the current trailer line has a byte.
    line: bool,
    digits: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ChunkState {
    #[default]
    Size,
    Extension,
    Data,
    AfterData,
    Trailer,
    End,
}

impl Chunks {
    fn accept(&mut self, mut piece: &[u8], take: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let bad = || Error::corrupt("the answer's chunks are malformed");
        while let Some((&byte, rest)) = piece.split_first() {
            match self.state {
                ChunkState::Data => {
                    let inside = usize::try_from(self.size).unwrap_or(usize::MAX).min(piece.len());
                    take(&piece[..inside])?;
                    piece = &piece[inside..];
                    self.size -= inside as u64;
                    if self.size == 0 {
                        self.state = ChunkState::AfterData;
                    }
                    continue;
                }
                ChunkState::Size if byte.is_ascii_hexdigit() && self.digits < 15 => {
                    let digit = (byte as char).to_digit(16).unwrap_or(0);
                    self.size = self.size << 4 | u64::from(digit);
                    self.digits += 1;
                }
                ChunkState::Size | ChunkState::Extension if byte == b'\n' && self.digits > 0 => {
                    self.digits = 0;
                    self.line = false;
                    self.state = if self.size == 0 {
                        ChunkState::Trailer
                    } else {
                        ChunkState::Data
                    };
                }
                ChunkState::Size if self.digits > 0 && matches!(byte, b';' | b'\r' | b' ' | b'\t') => {
                    self.state = ChunkState::Extension;
                }
                ChunkState::Extension => {}
                ChunkState::AfterData if byte == b'\r' => {}
                ChunkState::AfterData if byte == b'\n' => self.state = ChunkState::Size,
                ChunkState::Trailer if byte == b'\n' && !self.line => {
                    self.state = ChunkState::End;
                }
                ChunkState::Trailer => self.line = byte != b'\n' && (self.line || byte != b'\r'),
                _ => return Err(bad()),
            }
            piece = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool)> {
        let mut out = Vec::new();
        let mut framing = Framing::Chunked(Chunks::default());
        for piece in pieces {
            framing = accept(framing, piece, &mut |bytes: &[u8]| {
                out.extend_from_slice(bytes);
                Ok(())
            })?;
        }
        Ok((out, framing == Framing::Done))
    }

    proptest! {
        #[test]
        fn proptest_chunks_decode_however_they_are_cut(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..5), step in 1_usize..40)
        {
            let mut coded = Vec::new();
            for part in &parts {
                coded.extend_from_slice(format!("{:X};x=1\r\n", part.len()).as_bytes());
                coded.extend_from_slice(part);
                coded.extend_from_slice(b"\r\n");
            }
            coded.extend_from_slice(b"0\r\nTrailer: yes\r\n\r\n");
            let pieces: Vec<&[u8]> = coded.chunks(step).collect();
            prop_assert_eq!(decode(&pieces).unwrap(), (parts.concat(), true));
        }

        #[test]
        fn proptest_noise_in_chunks_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&[&bytes]);
        }
    }

    #[test]
    fn a_length_may_be_said_twice_and_not_otherwise() {
        assert_eq!(length_of(" 5"), Some(5));
        assert_eq!(length_of("5, 5 ,5"), Some(5));
        assert_eq!(["", "5,", "5,6", "-1", "5 5"].map(length_of), [None; 5]);
    }

    #[test]
    fn bytes_beyond_the_content_length_are_nobodys() {
        let mut body = Vec::new();
        let framing = accept(Framing::Length(2), b"abc", &mut |bytes: &[u8]| {
            body.extend_from_slice(bytes);
            Ok(())
        });
        assert_eq!((framing.unwrap(), body), (Framing::Overrun, b"ab".to_vec()));
        assert!(decode(&[b"zz\r\n"]).is_err());
    }
}
