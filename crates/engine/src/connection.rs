//! One client's connection, from the agent's side: what it leases, and what is still to be sent to it.
//!
//! Leases belong to connections, so that the end of a process, however it ends, gives everything back: the socket closes, and the agent releases what the
//! connection held. A hand-over between processes (a loader's worker to its parent) moves leases from one connection to another in one message.

use crate::protocol::Say;
use foreload_plan::action::Handle;
use rustc_hash::FxHashMap;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Descriptors whose messages have not come: each message has one at most, and brings it with its first byte.
const MOST_FDS: usize = 4;

/// A connected client.
pub struct Connection {
    /// Its number; hand-overs name it.
    pub id: u64,
    /// Its process, where the kernel says.
    pub process: Option<u32>,
    stream: UnixStream,
    unsent: RefCell<Vec<u8>>,
    more: Notify,
    closed: Cell<bool>,
    ended: Notify,
    leases: RefCell<FxHashMap<(u32, Handle), u32>>,
    /// Jobs it is attached to, and how many times.
    pub jobs: RefCell<FxHashMap<u32, u32>>,
    /// Data sets that it has opened.
    pub datasets: RefCell<BTreeSet<u32>>,
}

impl Connection {
    /// Takes a connected stream.
    #[must_use]
    pub fn new(id: u64, stream: UnixStream) -> Self {
        let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
        Connection {
            id,
            process: process.and_then(|process| u32::try_from(process).ok()),
            stream,
            unsent: RefCell::default(),
            more: Notify::new(),
            closed: Cell::new(false),
            ended: Notify::new(),
            leases: RefCell::default(),
            jobs: RefCell::default(),
            datasets: RefCell::default(),
        }
    }

    /// Reads what there is, and the descriptors that come with it; 0: the client is gone.
    ///
    /// # Errors
    /// What the socket says; when this process has no descriptor left for one that came; when more come than any message needs.
    pub async fn hear(&self, buffer: &mut [u8], fds: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
        self.stream.readable().await?;
        self.stream.try_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let slices = &mut [IoSliceMut::new(buffer)];
            let message = rustix::net::recvmsg(&self.stream, slices, &mut ancillary, flags)?;
            for part in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = part {
                    fds.extend(rights);
                }
            }
            if message.flags.contains(ReturnFlags::CTRUNC) {
                return Err(io::Error::other(
                    "there is no descriptor left for a list; raise `ulimit -n`",
                ));
            }
            if fds.len() > MOST_FDS {
                return Err(io::Error::other("descriptors that belong to no message"));
            }
            Ok(message.bytes)
        })
    }

    /// Ends it: the client reads the end at once.
    pub fn shut(&self) {
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
    }

    /// Whether the client is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Waits until the client is gone.
    pub async fn ended(&self) {
        let ended = self.ended.notified();
        if !self.closed.get() {
            ended.await;
        }
    }

    /// Sends a message: at once if the socket takes it, otherwise from [`Connection::drain`].
    pub fn say(&self, message: &Say) {
        let frame = message.encode();
        let mut unsent = self.unsent.borrow_mut();
        let mut sent = 0;
        if unsent.is_empty() {
            while sent < frame.len() {
                match self.stream.try_write(&frame[sent..]) {
                    Ok(n) => sent += n,
                    Err(_) => break,
                }
            }
        }
        if sent < frame.len() {
            // Bounded by what the client asked for: every message answers one of its own.
            unsent.extend_from_slice(&frame[sent..]);
            self.more.notify_one();
        }
    }

    /// Sends what the socket didn't take at once, until the connection closes.
    pub async fn drain(&self) {
        while !self.closed.get() {
            if self.unsent.borrow().is_empty() {
                self.more.notified().await;
                continue;
            }
            if self.stream.writable().await.is_err() {
                return;
            }
            let mut unsent = self.unsent.borrow_mut();
            match self.stream.try_write(&unsent) {
                Ok(n) => drop(unsent.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Sends a message together with file descriptors, after everything said before.
    ///
    /// # Errors
    /// What the socket says; nothing of the message was sent then.
    pub async fn say_with(&self, message: &Say, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let frame = message.encode();
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let slices = [IoSlice::new(&frame)];
            Ok(rustix::net::sendmsg(
                self.stream.as_fd(),
                &slices,
                &mut ancillary,
                flags,
            )?)
        };
        loop {
            self.stream.writable().await?;
            if self.closed.get() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if !self.unsent.borrow().is_empty() {
                tokio::task::yield_now().await;
                continue;
            }
            // Nobody else says anything between this look and the end of the turn, so frames stay whole: the rest goes where they queue.
            match self.stream.try_io(Interest::WRITABLE, send) {
                Ok(sent) => {
                    self.unsent.borrow_mut().extend_from_slice(&frame[sent..]);
                    self.more.notify_one();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Notes leases of a job.
    pub fn lease(&self, job: u32, handles: impl Iterator<Item = Handle>) {
        let mut leases = self.leases.borrow_mut();
        for handle in handles {
            *leases.entry((job, handle)).or_insert(0) += 1;
        }
    }

    /// Takes leases back; only those it holds are returned.
    pub fn unlease(&self, job: u32, handles: Vec<Handle>) -> Vec<Handle> {
        let mut leases = self.leases.borrow_mut();
        let mut held = |handle: &Handle| match leases.get_mut(&(job, *handle)) {
            Some(count) if *count > 1 => {
                *count -= 1;
                true
            }
            Some(_) => leases.remove(&(job, *handle)).is_some(),
            None => false,
        };
        handles.into_iter().filter(|handle| held(handle)).collect()
    }

    /// Takes all leases of a job back.
    pub fn unlease_all(&self, job: u32) -> Vec<Handle> {
        let mut leases = self.leases.borrow_mut();
        let mut all: Vec<(Handle, u32)> = leases
            .iter()
            .filter(|((of, _), _)| *of == job)
            .map(|(&(_, it), &n)| (it, n))
            .collect();
        leases.retain(|(of, _), _| *of != job);
        all.sort_unstable();
        all.into_iter()
            .flat_map(|(handle, count)| std::iter::repeat_n(handle, count as usize))
            .collect()
    }

    /// Moves leases to another connection: all or none.
    pub fn hand_over(&self, job: u32, handles: &[Handle], to: &Connection) -> bool {
        let taken = self.unlease(job, handles.to_vec());
        if taken.len() < handles.len() {
            self.lease(job, taken.into_iter());
            return false;
        }
        to.lease(job, taken.into_iter());
        true
    }

    /// Everything it leases, job by job; nothing afterwards.
    pub fn close(&self) -> FxHashMap<u32, Vec<Handle>> {
        self.closed.set(true);
        self.ended.notify_waiters();
        self.more.notify_one();
        let mut all: Vec<((u32, Handle), u32)> = self.leases.borrow_mut().drain().collect();
        all.sort_unstable();
        let mut by_job: FxHashMap<u32, Vec<Handle>> = FxHashMap::default();
        for ((job, handle), count) in all {
            by_job
                .entry(job)
                .or_default()
                .extend(std::iter::repeat_n(handle, count as usize));
        }
        by_job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Frames, Malformed};
    use std::future::Future;
    use std::io::{Read, Write};
    use std::rc::Rc;

    /// A connection, and its client's end.
    fn pair(id: u64) -> (Rc<Connection>, std::os::unix::net::UnixStream) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("set");
        let stream = UnixStream::from_std(ours).expect("a stream");
        (Rc::new(Connection::new(id, stream)), theirs)
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        tokio::task::LocalSet::new().block_on(&runtime.expect("runtime"), test);
    }

    fn handle(index: u32) -> Handle {
        Handle { index, generation: 0 }
    }

    fn adopted(id: u64) -> Say {
        Say::Adopted { id, whole: true }
    }

    /// Sends a message with so many descriptors.
    fn send(theirs: &std::os::unix::net::UnixStream, bytes: &[u8], descriptors: usize) {
        let file = std::fs::File::open("/dev/null").expect("opened");
        let fds = vec![file.as_fd(); descriptors];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let sent = rustix::net::sendmsg(theirs, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
        assert_eq!(sent.expect("sent"), bytes.len());
    }

    #[test]
    fn a_client_that_leaves_in_the_middle_of_a_frame_has_said_nothing() {
        run(async {
            let (connection, mut theirs) = pair(1);
            let frame = adopted(1).encode();
            theirs.write_all(&frame[..frame.len() - 1]).expect("written");
            drop(theirs);
            let (mut buffer, mut fds, mut frames) = (vec![0; 64], VecDeque::new(), Frames::default());
            let mut heard = 0;
            loop {
                match connection.hear(&mut buffer, &mut fds).await.expect("heard") {
                    0 => break,
                    n => frames.feed(&buffer[..n]),
                }
                let count = |_: &[u8]| -> Result<(), Malformed> {
                    heard += 1;
                    Ok(())
                };
                frames.drain(count).expect("well-formed");
            }
            assert_eq!(
                (heard, connection.is_closed()),
                (0, false),
                "who closes it is the agent"
            );
        });
    }

    #[test]
    fn descriptors_come_with_their_message_and_more_than_any_needs_end_the_connection() {
        run(async {
            let (connection, theirs) = pair(1);
            let (mut buffer, mut fds) = (vec![0; 64], VecDeque::new());
            for held in 1..=MOST_FDS {
                send(&theirs, b"x", 1);
                assert_eq!(connection.hear(&mut buffer, &mut fds).await.expect("heard"), 1);
                assert_eq!(fds.len(), held);
            }
            send(&theirs, b"x", 1);
            let refused = connection.hear(&mut buffer, &mut fds).await.expect_err("too many");
            assert_eq!(refused.kind(), io::ErrorKind::Other);
        });
    }

    #[test]
    fn what_the_socket_does_not_take_waits_in_the_order_of_saying() {
        run(async {
            let (connection, mut theirs) = pair(1);
            let long = Say::Notice {
                body: "x".repeat(1 << 20),
            };
            connection.say(&long);
            assert!(
                !connection.unsent.borrow().is_empty(),
                "a socket has no room for a mebibyte"
            );
            let before = connection.unsent.borrow().len();
            connection.say(&adopted(2));
            assert_eq!(connection.unsent.borrow().len(), before + adopted(2).encode().len());
            let drain = Rc::clone(&connection);
            let drain = tokio::task::spawn_local(async move { drain.drain().await });
            let expected = [long.encode(), adopted(2).encode()].concat();
            let len = expected.len();
            let reading = tokio::task::spawn_blocking(move || {
                let mut heard = vec![0; len];
                theirs.read_exact(&mut heard).expect("read");
                (heard, theirs)
            });
            let (heard, theirs) = reading.await.expect("read");
            assert!(heard == expected, "whole and in order");
            // It ends with the connection, though nothing is left to send.
            connection.close();
            drain.await.expect("ran");
            drop(theirs);
        });
    }

    #[test]
    fn sending_ends_when_the_client_is_gone() {
        run(async {
            let (connection, theirs) = pair(1);
            connection.say(&Say::Notice {
                body: "x".repeat(1 << 20),
            });
            drop(theirs);
            connection.drain().await;
            connection.say(&adopted(2));
        });
    }

    #[test]
    fn who_waits_for_the_end_hears_of_it_also_when_it_has_come() {
        run(async {
            let (connection, _theirs) = pair(1);
            let waiting = Rc::clone(&connection);
            let waiting = tokio::task::spawn_local(async move { waiting.ended().await });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished() && !connection.is_closed());
            connection.close();
            waiting.await.expect("ran");
            connection.ended().await;
        });
    }

    #[test]
    fn only_what_a_connection_leases_comes_back_from_it() {
        run(async {
            let (connection, _theirs) = pair(1);
            connection.lease(7, [1, 2, 1].map(handle).into_iter());
            connection.lease(8, [1].map(handle).into_iter());
            let older = Handle {
                index: 2,
                generation: 1,
            };
            let back = connection.unlease(7, vec![handle(1), handle(3), older, handle(1), handle(1)]);
            assert_eq!(back, [handle(1), handle(1)]);
            assert!(connection.unlease(8, vec![handle(2)]).is_empty());
            assert_eq!(connection.unlease_all(7), [handle(2)]);
            assert!(connection.unlease_all(7).is_empty());
            assert_eq!(connection.unlease(8, vec![handle(1)]), [handle(1)]);
        });
    }

    #[test]
    fn leases_are_handed_over_all_or_none() {
        run(async {
            let ((from, _a), (to, _b)) = (pair(1), pair(2));
            from.lease(7, [1, 1, 2].map(handle).into_iter());
            assert!(
                !from.hand_over(7, &[1, 2, 3].map(handle), &to),
                "one of them isn't held"
            );
            assert!(!from.hand_over(8, &[1].map(handle), &to), "of another job");
            assert_eq!(to.close().len(), 0);
            assert!(from.hand_over(7, &[1, 2].map(handle), &to));
            assert_eq!(from.unlease_all(7), [handle(1)]);
            assert_eq!(to.unlease_all(7), [handle(1), handle(2)]);
        });
    }

    #[test]
    fn a_dead_connection_gives_back_all_that_it_leased_and_that_once() {
        run(async {
            let (connection, _theirs) = pair(1);
            connection.lease(7, [3, 1, 3].map(handle).into_iter());
            connection.lease(9, [2].map(handle).into_iter());
            let back = connection.close();
            assert_eq!(back.len(), 2);
            assert_eq!(
                (&back[&7], &back[&9]),
                (&[1, 3, 3].map(handle).to_vec(), &vec![handle(2)])
            );
            assert!(connection.is_closed() && connection.close().is_empty());
        });
    }

    #[test]
    fn a_large_message_with_descriptors_stays_whole_whatever_is_said_meanwhile() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("set");
        let body = "x".repeat(4 << 20);
        let large = Say::Reply { id: 1, body };
        let small: Vec<Say> = (2..50).map(|id| Say::Adopted { id, whole: true }).collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        let reader = std::thread::spawn(move || {
            let (mut frames, mut buffer, mut heard) = (Frames::default(), vec![0; 1 << 16], Vec::new());
            while heard.len() < 49 {
                let n = theirs.read(&mut buffer).expect("read");
                frames.feed(&buffer[..n]);
                let take = |frame: &[u8]| -> Result<(), Malformed> {
                    heard.push(Say::decode(frame)?);
                    Ok(())
                };
                frames.drain(take).expect("whole frames");
            }
            heard
        });
        let local = tokio::task::LocalSet::new();
        let said = small.clone();
        local.block_on(&runtime, async move {
            let connection = Rc::new(Connection::new(1, UnixStream::from_std(ours).expect("a stream")));
            let drain = Rc::clone(&connection);
            let drain = tokio::task::spawn_local(async move { drain.drain().await });
            let file = std::fs::File::open("/dev/null").expect("opened");
            let with = Rc::clone(&connection);
            let with = tokio::task::spawn_local(async move { with.say_with(&large, &[file.as_fd()]).await });
            for say in said {
                tokio::task::yield_now().await;
                connection.say(&say);
            }
            with.await.expect("ran").expect("sent");
            while !connection.unsent.borrow().is_empty() {
                tokio::task::yield_now().await;
            }
            connection.close();
            drain.await.expect("ran");
        });
        let mut heard = reader.join().expect("read all");
        let at = heard
            .iter()
            .position(|say| matches!(say, Say::Reply { .. }))
            .expect("the large one");
        heard.remove(at);
        assert_eq!(heard, small);
    }
}
