//! One client's connection, from the agent's side: what it leases, and what is still to be sent to it.
//!
//! Leases belong to connections, so that the end of a process, however it ends, gives everything back: the socket closes, and the agent releases what the
//! connection held. A hand-over between processes (a loader's worker to its parent) moves leases from one connection to another in one message.

use crate::protocol::Say;
use foreload_plan::action::Handle;
use rustc_hash::FxHashMap;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// A connected client.
pub struct Connection {
    /// Its number; hand-overs name it.
    pub id: u64,
    stream: UnixStream,
    unsent: RefCell<Vec<u8>>,
    more: Notify,
    closed: Cell<bool>,
    ended: Notify,
    leases: RefCell<FxHashMap<(u32, Handle), u32>>,
    /// Jobs it is attached to, and how many times.
    pub jobs: RefCell<FxHashMap<u32, u32>>,
}

impl Connection {
    /// Takes a connected stream.
    #[must_use]
    pub fn new(id: u64, stream: UnixStream) -> Self {
        Connection {
            id,
            stream,
            unsent: RefCell::default(),
            more: Notify::new(),
            closed: Cell::new(false),
            ended: Notify::new(),
            leases: RefCell::default(),
            jobs: RefCell::default(),
        }
    }

    /// The stream, to read from.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        &self.stream
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
    /// What the socket says.
    pub async fn say_with(&self, message: &Say, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        while !self.unsent.borrow().is_empty() {
            if self.closed.get() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            tokio::task::yield_now().await;
            self.stream.writable().await?;
        }
        let frame = message.encode();
        let mut sent = 0;
        while sent < frame.len() {
            sent += self
                .stream
                .async_io(Interest::WRITABLE, || {
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
                    let mut ancillary = SendAncillaryBuffer::new(&mut space);
                    if sent == 0 {
                        ancillary.push(SendAncillaryMessage::ScmRights(fds));
                    }
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    Ok(rustix::net::sendmsg(
                        self.stream.as_fd(),
                        &[IoSlice::new(&frame[sent..])],
                        &mut ancillary,
                        flags,
                    )?)
                })
                .await?;
        }
        Ok(())
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
