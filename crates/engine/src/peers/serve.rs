//! One connection of a peer: its requests, one after the other, and for how long memory is lent to its answers.
//!
//! **How long an answer's memory stays lent.** What is [copied](Way::Copied) is the system's when it is handed over, and its memory is given back. What is sent
//! [in place](Way::InPlace) is not: the socket refers to the sample's pages. They are read when they are sent, when they are sent again, and between two
//! processes of one machine (loopback, veth) by the receiver itself, out of the receiving socket, whenever it gets round to it. A slot that is
//! used again before that would put the next sample's bytes into the answer of this one. So that memory stays lent until one of these:
//!
//! | what happens | why that is enough |
//! | --- | --- |
//! | the peer sends more, after all of the answer was handed over | it asks for nothing before it has read what it asked for |
//! | it closes the connection, after that | it reads nothing any more |
//! | the connection breaks, or is broken off here | an answer that isn't whole counts for nothing |
//! | [`PROGRESS`](super::PROGRESS) after the last byte was handed over | who reads nothing for so long has given up; and one that went on reading finds the checksum wrong |
//!
//! What a peer had sent before the last byte was handed over shows nothing: requests may come behind each other, though the engine's own client sends one at a
//! time. So the socket is looked into at that moment. One that is on its way just then looks like a later one: who sends ahead harms only himself, and his checksum
//! tells. While the memory of an earlier answer is lent, further ones are copied: a connection
//! holds the memory of one answer that was sent, and all together hold a [bounded](super::send::Finished) part. An idle connection holds nothing.
//!
//! A request that is all there is given to the thread that plans, and withdrawn if the peer goes away meanwhile. Who says nothing for
//! [`Limits::silence`](super::door::Limits) is shown out, and who takes too little of an answer is cut off ([`hand_over`]).

use super::Lent;
use super::PROGRESS;
use super::door::{Asked, House, Wanted};
use super::line::Line;
use super::request::{MOST_BYTES, parse};
use super::send::{Answer, Body, Finished, Share, Status, Way, hand_copies, hand_over};
use bytes::BufMut;
use foreload_plan::action::BUNDLED_BYTES;
use rustix::net::RecvFlags;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// What a request takes, with room to spare.
const FIRST_BYTES: usize = 1024;
/// What is read of a peer that was refused, so that it hears that: who closes a socket in which something lies unread takes back what was sent.
const MOST_DRAINED: usize = 256 << 10;
/// An interim answer (RFC 9110, section 15.2, and RFC 2518, section 10.1): who asks waits on. It is not sealed, and says nothing that somebody else couldn't.
const NOT_YET: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";
/// The plan has answered by then.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// Answers on a connection until it ends.
pub(super) async fn serve(stream: std::net::TcpStream, house: &House) {
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    // Small answers are not held back for more. The system gives up on a peer that is gone, `hand_over` on one that is there and takes nothing.
    let _ = stream.set_nodelay(true);
    let patience_ms = u32::try_from(house.limits.patience.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, patience_ms);
    let line = match &house.tls {
        None => Line::Plain(stream),
        // Who doesn't speak it, or takes its time, isn't answered.
        Some(tls) => match timeout(PROGRESS, tls.accept(stream)).await {
            Ok(Ok(stream)) => Line::Private(Box::new(stream)),
            Ok(Err(_)) | Err(_) => return,
        },
    };
    let mut connection = Connection {
        line,
        house,
        said: Vec::new(),
        head: String::new(),
        unread: None,
        is_quiet: true,
    };
    loop {
        match connection.turn().await {
            Ok(true) => {}
            Ok(false) => return connection.leave().await,
            Err(_) => {
                // What wasn't sent is not sent any more.
                let _ = rustix::net::sockopt::set_socket_linger(connection.line.socket(), Some(Duration::ZERO));
                return;
            }
        }
    }
}

/// An answer that was sent in place, and that the peer may still have to read.
struct Unread {
    _lent: Lent,
    _share: Share,
    /// When it is taken for read.
    until: Instant,
}

/// A connection of a peer.
struct Connection<'a> {
    // Closed before memory is given back.
    line: Line,
    house: &'a House,
    /// What was read and not answered yet.
    said: Vec<u8>,
    /// Of the last answer.
    head: String,
    unread: Option<Unread>,
    /// What comes now was sent after all of the last answer had been handed over.
    is_quiet: bool,
}

impl Connection<'_> {
    /// Answers the next request. False: there is no other.
    async fn turn(&mut self) -> io::Result<bool> {
        let Some((heard, closes)) = self.hear().await? else {
            return Ok(false);
        };
        let house = self.house;
        let (answer, body) = match heard {
            Err(status) => (Answer::of(status), None),
            Ok(wanted) => {
                if let Some(asked) = house.ask_all(&wanted) {
                    return Ok(self.give_parts(&wanted, asked, closes).await? && !closes);
                }
                let Some(found) = self.wait_for(house.find(&wanted)).await? else {
                    return Ok(false);
                };
                house.answer(&wanted, found)
            }
        };
        answer.write(closes, &mut self.head);
        self.give(body).await?;
        Ok(!closes)
    }

    /// Waits for an answer, and says at times that it is still to come. `None`: the peer is gone.
    async fn wait_for<T>(&mut self, found: impl Future<Output = T>) -> io::Result<Option<T>> {
        let mut found = pin!(found);
        let sign = self.house.limits.sign;
        loop {
            tokio::select! {
                biased;
                found = &mut found => return Ok(Some(found)),
                gone = timeout(sign, self.gone()) => match gone {
                    Ok(()) => return Ok(None),
                    Err(_) => self.hand_copies(&[NOT_YET]).await?,
                },
            }
        }
    }

    /// What the next request is for, or how it is refused, and whether it is the last one. `None`: none came.
    async fn hear(&mut self) -> io::Result<Option<(Result<Wanted, Status>, bool)>> {
        let end = Instant::now() + self.house.limits.silence;
        loop {
            match parse(&self.said) {
                Ok(None) => {}
                Ok(Some((request, len))) => {
                    let heard = (self.house.admit(&request), request.closes);
                    self.said.drain(..len);
                    return Ok(Some(heard));
                }
                Err(status) => return Ok(Some((Err(status), true))),
            }
            if !self.more(end).await? {
                return Ok(None);
            }
        }
    }

    /// Reads more of what the peer says, until a moment. False: it has said nothing more. Can be dropped at any time.
    async fn more(&mut self, end: Instant) -> io::Result<bool> {
        loop {
            let wake = self.unread.as_ref().map_or(end, |unread| unread.until.min(end));
            let room = MOST_BYTES.saturating_sub(self.said.len());
            self.said.reserve(room.min(FIRST_BYTES));
            let mut into = (&mut self.said).limit(room);
            match timeout_at(wake, self.line.read_buf(&mut into)).await {
                Ok(count) => {
                    let has_more = count? > 0;
                    self.unread.take_if(|_| has_more && self.is_quiet);
                    return Ok(has_more);
                }
                Err(_) => {
                    let now = Instant::now();
                    self.unread.take_if(|unread| unread.until <= now);
                    if end <= now {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Ends when the peer is gone. What it says meanwhile waits for its turn.
    async fn gone(&mut self) {
        let end = Instant::now() + FAR;
        while self.said.len() < MOST_BYTES {
            if !matches!(self.more(end).await, Ok(true)) {
                return;
            }
        }
        if let Some(until) = self.unread.as_ref().map(|unread| unread.until) {
            sleep_until(until).await;
            self.unread = None;
        }
        std::future::pending().await
    }

    /// Sends what was asked for of several samples, each when it is there. False: the peer is gone.
    async fn give_parts(&mut self, wanted: &Wanted, mut asked: Asked<'_>, closes: bool) -> io::Result<bool> {
        let house = self.house;
        house.answer_parts(wanted).write(closes, &mut self.head);
        let mut begun = 0;
        while asked.is_open() {
            let mut told = tokio::select! {
                biased;
                told = asked.told() => told,
                gone = timeout(house.limits.sign, self.gone()) => match gone {
                    Ok(()) => return Ok(false),
                    // It is told of none.
                    Err(_) => Vec::new(),
                },
            };
            // What is large isn't asked for together with others.
            told.iter_mut()
                .for_each(|(_, lent)| drop(lent.take_if(|lent| lent.len >= BUNDLED_BYTES)));
            let mut table = Vec::with_capacity(FIRST_BYTES);
            house.table(wanted, &told, &mut table);
            let bodies = || told.iter().filter_map(|(_, lent)| lent.as_ref()).map(Lent::as_ref);
            let len = table.len() + bodies().map(<[u8]>::len).sum::<usize>();
            let size = format!("{len:x}\r\n");
            let end = if asked.is_open() { "\r\n" } else { "\r\n0\r\n\r\n" };
            let head = std::mem::take(&mut self.head);
            let front = [&head.as_bytes()[begun..], size.as_bytes(), &table];
            let pieces: Vec<&[u8]> = front.into_iter().chain(bodies()).chain([end.as_bytes()]).collect();
            self.hand_copies(&pieces).await?;
            (begun, self.head) = (head.len(), head);
        }
        self.note_quiet();
        Ok(true)
    }

    /// Hands over pieces of memory, and gives back what an earlier answer holds when its time has come.
    async fn hand_copies(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let limits = &self.house.limits;
        let until = self.unread.as_ref().map(|unread| unread.until);
        let handing = hand_copies(&mut self.line, pieces, limits);
        handing_on(handing, until, &mut self.unread).await
    }

    /// Whether what comes from now on was sent after all of the answer had been handed over.
    fn note_quiet(&mut self) {
        self.is_quiet = self.unread.is_none() || self.said.is_empty() && is_silent(self.line.socket());
    }

    /// Sends the answer whose head is written.
    async fn give(&mut self, body: Option<Body>) -> io::Result<()> {
        let (house, limits) = (self.house, &self.house.limits);
        let may_stay = self.unread.is_none() && !self.line.is_private();
        let share = match &body {
            Some(Body::Lent(lent)) if may_stay && lent.len >= limits.sendfile_from => {
                house.finished.take(lent.len, Finished::most(lent.pool_bytes))
            }
            _ => None,
        };
        let way = if share.is_some() { Way::InPlace } else { Way::Copied };
        let handing = hand_over(&mut self.line, self.head.as_bytes(), body.as_ref(), way, limits);
        let until = self.unread.as_ref().map(|unread| unread.until);
        let done = handing_on(handing, until, &mut self.unread).await;
        // Where it broke off, too: the connection goes before the memory.
        if let (Some(Body::Lent(lent)), Some(share)) = (body, share) {
            self.unread = Some(Unread {
                _lent: lent,
                _share: share,
                until: Instant::now() + limits.progress,
            });
        }
        done?;
        self.note_quiet();
        Ok(())
    }

    /// Says that nothing more is answered, and waits a moment for the peer to hear that.
    async fn leave(mut self) {
        let end = Instant::now() + self.house.limits.progress;
        let _ = timeout_at(end, self.line.end()).await;
        let mut drained = 0;
        loop {
            self.said.clear();
            match self.more(end).await {
                Ok(true) if drained < MOST_DRAINED => drained += self.said.len(),
                Ok(_) => break,
                Err(_) => return,
            }
        }
        // An end that was there before the answer shows nothing.
        if let Some(unread) = self.unread.take_if(|_| !self.is_quiet) {
            sleep_until(unread.until).await;
        }
    }
}

/// Hands something over; what an earlier answer holds is given back meanwhile, when its time has come.
async fn handing_on(
    handing: impl Future<Output = io::Result<()>>,
    until: Option<Instant>,
    unread: &mut Option<Unread>,
) -> io::Result<()> {
    let Some(until) = until else {
        return handing.await;
    };
    tokio::pin!(handing);
    tokio::select! {
        biased;
        done = &mut handing => done,
        () = sleep_until(until) => {
            *unread = None;
            handing.await
        }
    }
}

/// Whether the peer has sent nothing that wasn't read, not even its end.
fn is_silent(stream: &TcpStream) -> bool {
    let looked = rustix::net::recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(looked, Err(rustix::io::Errno::AGAIN))
}
