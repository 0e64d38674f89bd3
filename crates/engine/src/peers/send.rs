//! How an answer leaves: its head, and its body by one of two [ways](Way).
//!
//! A small body, or several, are copied into the socket together with their head, in one call. A larger one is sent by `sendfile` out of the memfd that holds it, and its head before it
//! with `MSG_MORE`: nothing is copied, the socket refers to the pages themselves. So what was sent in place must stay as it is for longer than the
//! call takes ([`serve`](super::serve) says how long), and how much stays lent like that is [bounded](Finished). It knows nothing of requests.

use super::Lent;
use super::door::Limits;
use super::line::Line;
use rustix::net::SendFlags;
use std::fmt::Write;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Bytes from which sending in place costs less than copying, however busy the machine is: at 110 KB it takes 0.7 to 1.05 of the processor time, at 250 KB 0.5 to 0.8, at 8 MB 0.3 to
/// 0.65 (bench/results/2026-11-28-peer-server.md).
pub(super) const SENDFILE_FROM: u64 = 256 << 10;
/// What is handed over before another connection of the same thread has its turn.
const MOST_AT_ONCE: u64 = 1 << 20;

/// What an answer's first line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// All of a sample.
    All,
    /// All of it, as it was asked for by its range.
    Range,
    /// Several samples, in chunks.
    Parts,
    /// No request that a peer has.
    Malformed,
    /// Nobody who knows the secret has asked that, or for the second time.
    Forbidden,
    /// It isn't here.
    Missing,
    /// Nothing but GET is understood.
    OtherMethod,
}

impl Status {
    pub fn code(self) -> u16 {
        self.said().0
    }

    fn said(self) -> (u16, &'static str) {
        match self {
            Status::All | Status::Parts => (200, "OK"),
            Status::Range => (206, "Partial Content"),
            Status::Malformed => (400, "Bad Request"),
            Status::Forbidden => (403, "Forbidden"),
            Status::Missing => (404, "Not Found"),
            Status::OtherMethod => (405, "Method Not Allowed"),
        }
    }
}

/// What an answer says of its body.
pub(super) struct Answer {
    pub status: Status,
    /// Bytes of it.
    pub len: u64,
    /// Empty: it has none.
    pub etag: String,
    /// Empty: it has none.
    pub seal: String,
}

impl Answer {
    /// One without a body, or with one whose length isn't known yet.
    pub fn of(status: Status) -> Self {
        Answer {
            status,
            len: if status == Status::Parts { u64::MAX } else { 0 },
            etag: String::new(),
            seal: String::new(),
        }
    }

    /// Its head, in the place of what was in `head`. `closes`: the connection ends with it.
    pub fn write(&self, closes: bool, head: &mut String) {
        let (len, (code, reason)) = (self.len, self.status.said());
        head.clear();
        // A string takes all that is written to it.
        let _ = write!(head, "HTTP/1.1 {code} {reason}\r\n");
        let _ = match self.status {
            Status::Parts => write!(head, "transfer-encoding: chunked\r\n"),
            _ => write!(head, "content-length: {len}\r\n"),
        };
        if self.status == Status::Range {
            let _ = write!(head, "content-range: bytes 0-{}/{len}\r\n", len.saturating_sub(1));
        }
        for (name, value) in [("etag", &self.etag), (foreload_store::SEAL, &self.seal)] {
            if !value.is_empty() {
                let _ = write!(head, "{name}: {value}\r\n");
            }
        }
        head.push_str(if closes { "connection: close\r\n\r\n" } else { "\r\n" });
    }
}

/// Bytes that are lent to answers which are sent in place, of all connections of a door.
///
/// They come back a while after the answer was sent, and until then nothing else can be planned there. So they have a share of the memory; an
/// answer for which none is left is copied.
#[derive(Default)]
pub(super) struct Finished(AtomicU64);

/// A part of it, given back when this goes.
pub(super) struct Share {
    of: Arc<Finished>,
    bytes: u64,
}

impl Finished {
    /// What a pool with so much memory can spare: look-ahead leaves a quarter of what may pass through to peers' questions, and this is a quarter of that where a pool
    /// lets as little pass through as it does by default ([`Settings::staging_bytes`](foreload_plan::settings::Settings::staging_bytes)).
    pub fn most(pool_bytes: u64) -> u64 {
        (pool_bytes / 16).clamp(256 << 20, 4 << 30).min(pool_bytes / 4) / 16
    }

    /// So many bytes, if no more than `most` are taken then.
    pub fn take(self: &Arc<Self>, bytes: u64, most: u64) -> Option<Share> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|&all| all <= most);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Share {
            of: Arc::clone(self),
            bytes,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What an answer has behind its head.
pub(super) enum Body {
    /// A sample, where it lies.
    Lent(Lent),
    /// Something that was written for this answer.
    Text(Vec<u8>),
}

impl Body {
    pub fn len(&self) -> u64 {
        self.as_ref().len() as u64
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        match self {
            Body::Lent(lent) => lent.as_ref(),
            Body::Text(text) => text,
        }
    }
}

/// How a body leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into the socket: its memory is free when it is handed over.
    Copied,
    /// Where it lies: its memory is read until the peer has it.
    InPlace,
}

/// Hands an answer over to the system, to the last byte.
///
/// # Errors
/// The connection is broken, or the peer takes too little: nothing of [`Limits::patience`] long, or not all in [`Limits::handing_over`].
pub(super) async fn hand_over(
    line: &mut Line,
    head: &[u8],
    body: Option<&Body>,
    way: Way,
    limits: &Limits,
) -> io::Result<()> {
    match (line, body) {
        (Line::Plain(stream), Some(Body::Lent(lent))) if way == Way::InPlace => {
            let len = head.len() as u64 + lent.len;
            hand_plainly(stream, len, limits, |done| hand_in_place(stream, head, lent, done)).await
        }
        (line, body) => hand_copies(line, &[head, body.map_or(&[][..], |body| body.as_ref())], limits).await,
    }
}

/// Hands over pieces of memory, one after the other, which are free when this ends.
///
/// # Errors
/// As [`hand_over`].
pub(super) async fn hand_copies(line: &mut Line, pieces: &[&[u8]], limits: &Limits) -> io::Result<()> {
    let len = pieces.iter().map(|piece| piece.len() as u64).sum();
    match line {
        Line::Plain(stream) => hand_plainly(stream, len, limits, |done| hand_copied(stream, pieces, done)).await,
        Line::Private(stream) => {
            let end = Instant::now() + limits.handing_over(len);
            for mut left in pieces.iter().copied() {
                while !left.is_empty() {
                    let until = end.min(Instant::now() + limits.patience);
                    let count =
                        timeout_at(until, stream.write(&left[..left.len().min(MOST_AT_ONCE as usize)])).await??;
                    left = &left[count..];
                }
            }
            timeout_at(end.min(Instant::now() + limits.patience), stream.flush()).await?
        }
    }
}

/// Has `hand` hand on what comes after so many bytes, until all of them are.
async fn hand_plainly(
    stream: &TcpStream,
    all: u64,
    limits: &Limits,
    hand: impl Fn(u64) -> io::Result<usize>,
) -> io::Result<()> {
    let end = Instant::now() + limits.handing_over(all);
    let (mut done, mut stalls_until) = (0, None);
    while done < all {
        match stream.try_io(Interest::WRITABLE, || hand(done)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                (done, stalls_until) = (done + count as u64, None);
                if count as u64 >= MOST_AT_ONCE {
                    tokio::task::yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let until = *stalls_until.get_or_insert_with(|| Instant::now() + limits.patience);
                timeout_at(until.min(end), stream.writable()).await??;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Hands on what comes after the first `done` bytes of a head and what is lent, in one call of the system: how much it took.
fn hand_in_place(stream: &TcpStream, head: &[u8], lent: &Lent, done: u64) -> io::Result<usize> {
    let head_left = head.get(done as usize..).unwrap_or_default();
    if !head_left.is_empty() {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        return Ok(rustix::net::send(stream, head_left, flags)?);
    }
    let body_done = done - head.len() as u64;
    // It can't be told to spare a program the signal of a broken connection; the agent, as any program in Rust, ignores that.
    lent.arena.send(
        stream,
        lent.offset + body_done,
        (lent.len - body_done).min(MOST_AT_ONCE),
    )
}

/// The same of pieces that are copied.
fn hand_copied(stream: &TcpStream, pieces: &[&[u8]], done: u64) -> io::Result<usize> {
    let (mut before, mut room) = (done as usize, MOST_AT_ONCE as usize);
    let mut slices = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let left = &piece[before.min(piece.len())..];
        before -= piece.len() - left.len();
        let left = &left[..left.len().min(room)];
        room -= left.len();
        slices.push(IoSlice::new(left));
    }
    Ok(rustix::io::writev(stream, &slices)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_what_the_answer_has() {
        let mut head = "what was here before".to_owned();
        Answer::of(Status::Forbidden).write(false, &mut head);
        assert_eq!(head, "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
        Answer::of(Status::OtherMethod).write(true, &mut head);
        let said = "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        assert_eq!(head, said);
        let answer = Answer {
            status: Status::Range,
            len: 12,
            etag: "\"00000001\"".to_owned(),
            seal: "ab".to_owned(),
        };
        answer.write(false, &mut head);
        assert_eq!(
            head,
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 12\r\ncontent-range: bytes 0-11/12\r\netag: \"00000001\"\r\nforeload-seal: ab\r\n\r\n"
        );
    }

    #[test]
    fn answers_that_are_sent_in_place_hold_a_small_part_of_the_memory() {
        let mib = 1 << 20;
        let most = [1, 64, 1024, 4096, 16 << 10, 64 << 10, 1 << 20].map(|mibs| Finished::most(mibs * mib) / mib);
        assert_eq!(most, [0, 1, 16, 16, 64, 256, 256]);
        let all = Arc::new(Finished::default());
        let first = all.take(60, 100).expect("room");
        assert!(all.take(41, 100).is_none() && all.take(u64::MAX, u64::MAX).is_none());
        let second = all.take(40, 100).expect("room");
        drop(first);
        assert!(all.take(61, 100).is_none());
        drop((second, all.take(60, 100)));
        assert!(all.take(100, 100).is_some());
    }
}
