//! The body of a response: sent at the profile's rates, and harmed where a fault says so.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::content::Content;
use super::profile::Line;
use super::server::{Connection, State};

/// How long the bytes before a break may take to be sent.
const SETTLE: Duration = Duration::from_millis(5);

/// Counts a request as in flight for as long as it exists.
pub struct InFlight(Arc<State>);

impl InFlight {
    /// Counts the request.
    #[must_use]
    pub fn new(state: &Arc<State>) -> Self {
        state.counters.began();
        Self(Arc::clone(state))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.counters.ended();
    }
}

/// How a body ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing more comes, and the connection stays.
    Stall,
}

/// What faults do to a body; offsets are into the object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Harm {
    /// Where and how the body breaks.
    pub breaks: Option<(u64, Break)>,
    /// The byte that is altered.
    pub flips: Option<u64>,
}

/// A part of an object.
pub struct Part {
    /// The object's bytes.
    pub content: Content,
    /// Which of them.
    pub range: std::ops::Range<u64>,
    /// When the first may leave.
    pub start: Instant,
    /// What faults do to it.
    pub harm: Harm,
    /// `BUCKET/KEY`, for the counts.
    pub name: String,
}

/// A part of an object on its way.
pub struct Shaped {
    content: Content,
    at: u64,
    end: u64,
    start: Instant,
    harm: Harm,
    name: String,
    state: Arc<State>,
    connection: Arc<Connection>,
    piece: u64,
    rates: (u64, u64),
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    broken: bool,
    _in_flight: InFlight,
}

impl Shaped {
    /// The part, on its way over this connection.
    #[must_use]
    pub fn new(part: Part, state: &Arc<State>, connection: &Arc<Connection>, in_flight: InFlight) -> Self {
        let profile = state.profile();
        let bytes = part.range.end - part.range.start;
        let late = match profile.slow_start {
            true => profile.connect() * connection.slow_start.rounds(Instant::now(), bytes),
            false => Duration::ZERO,
        };
        Self {
            content: part.content,
            at: part.range.start,
            end: part.range.end,
            start: part.start + late,
            harm: part.harm,
            name: part.name,
            state: Arc::clone(state),
            connection: Arc::clone(connection),
            piece: profile.piece_bytes,
            rates: (profile.connection_bytes_per_s, profile.total_bytes_per_s),
            timer: None,
            waiting: false,
            broken: false,
            _in_flight: in_flight,
        }
    }

    /// Where the next piece ends: no piece crosses a break.
    fn next_end(&self) -> u64 {
        let end = (self.at + self.piece).min(self.end);
        match self.harm.breaks {
            Some((at, _)) if at > self.at => end.min(at),
            _ => end,
        }
    }

    /// When the next piece has left, or `None` when nothing limits it.
    fn due(&self) -> Option<Instant> {
        let (own, total) = self.rates;
        if own == 0 && total == 0 {
            return None;
        }
        let now = Instant::now();
        let bytes = self.next_end() - self.at;
        let line: &Line = &self.connection.line;
        let mut due = line.book(now, self.start, bytes, own);
        if total > 0 {
            due = due.max(self.state.line.book(now, self.start, bytes, total));
            line.busy_until(due);
        }
        (due > now).then_some(due)
    }

    /// Waits a moment before a break, so that what came before it is sent: hyper flushes when a
    /// body has to wait, and drops what it holds when a body fails.
    fn settle(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.broken {
            self.broken = true;
            self.timer = Some(Box::pin(sleep_until(Instant::now() + SETTLE)));
        }
        self.timer
            .as_mut()
            .map_or(Poll::Ready(()), |timer| timer.as_mut().poll(context))
    }

    fn piece(&mut self) -> io::Result<Bytes> {
        let most = self.next_end() - self.at;
        let mut piece = self.content.read(self.at, most)?;
        if let Some(flip) = self.harm.flips
            && (self.at..self.at + piece.len() as u64).contains(&flip)
        {
            let mut altered = piece.to_vec();
            altered[(flip - self.at) as usize] ^= 0x40;
            piece = altered.into();
        }
        self.at += piece.len() as u64;
        self.state.counters.sent(&self.name, piece.len() as u64);
        Ok(piece)
    }
}

/// The body of any response.
pub enum Reply {
    /// Bytes at once, such as XML.
    Full(Option<Bytes>),
    /// Part of an object.
    Shaped(Box<Shaped>),
    /// No bytes, although the head may name a length (HEAD).
    Sized(u64),
}

impl From<String> for Reply {
    fn from(text: String) -> Self {
        Self::Full(Some(text.into()))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let body = match &mut *self {
            Self::Sized(_) => return Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                return Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))));
            }
            Self::Shaped(body) => body,
        };
        if let Some((at, how)) = body.harm.breaks
            && body.at >= at
        {
            std::task::ready!(body.settle(context));
            let kind = match how {
                Break::Stall => return Poll::Pending,
                Break::Close => io::ErrorKind::UnexpectedEof,
                Break::Reset => {
                    body.connection.reset();
                    io::ErrorKind::ConnectionReset
                }
            };
            return Poll::Ready(Some(Err(kind.into())));
        }
        if body.at >= body.end {
            return Poll::Ready(None);
        }
        if !body.waiting
            && let Some(due) = body.due()
        {
            match &mut body.timer {
                Some(timer) => timer.as_mut().reset(due),
                timer => *timer = Some(Box::pin(sleep_until(due))),
            }
            body.waiting = true;
        }
        if body.waiting {
            if let Some(timer) = &mut body.timer {
                std::task::ready!(timer.as_mut().poll(context));
            }
            body.waiting = false;
        }
        Poll::Ready(Some(body.piece().map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Sized(_) => true,
            Self::Shaped(body) => body.at >= body.end,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Sized(size) => SizeHint::with_exact(*size),
            Self::Shaped(body) => SizeHint::with_exact(body.end - body.at),
        }
    }
}
