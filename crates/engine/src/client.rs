//! The agent's client: what runs inside the user's processes.
//!
//! It has no thread and no runtime, so that fork, signals and interpreter exit are harmless. Several threads of a process may use one client: whoever
//! waits first reads from the socket and puts what belongs to others into the inbox. Waiting wakes up every [`PULSE`] to let the caller look for
//! signals, and to pass on what there is to report of an agent that says nothing ([`reports`]). A forked child must not use its parent's client ([`ClientError::Forked`]); it connects anew.
//!
//! A client that finds no agent starts one: it executes the agent's program, which detaches itself, and connects until it answers.

mod attached;
#[cfg(all(test, feature = "shuttle"))]
mod interleave;
mod mailbox;
mod opened;
mod peer;
mod silence;
mod start;
#[cfg(test)]
mod tests;

pub use attached::Attached;
pub use opened::Opened;
pub use silence::reports;
pub use start::{Place, own_directory};

use crate::calls::{Call, Progress, Reply};
use crate::protocol::{Ask, MAX_FRAME, Say, Sent, Trouble, VERSION};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{self, Condvar, Mutex, MutexGuard};
use foreload_plan::action::Handle;
use mailbox::{Forgotten, Inbox, Incoming, Outbox};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use silence::Due;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time between two looks for signals.
pub const PULSE: Duration = Duration::from_millis(50);
/// Releases are sent with the next message, before a wait, or when so many have gathered.
const RELEASE_AT: usize = 32;
/// Or so many bytes: a process that has nothing to ask must not keep memory that others wait for.
const RELEASE_AT_BYTES: u64 = 1 << 20;

/// A wait looks again and again for so long before it sleeps: waking a processor takes longer.
const SPIN: Duration = Duration::from_micros(50);
/// After n spins in vain the next 2^n waits sleep at once, at most 2^this: who has no processor to spare only holds up what it waits for.
const MOST_DOUBLINGS: u32 = 6;

/// A notice may lie unread so long: looking for it costs a system call, and who has batches from other processes reads nothing otherwise.
const UNREAD: Duration = Duration::from_millis(500);

/// Why a client can't do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The agent says why.
    #[error("{}", .0.message)]
    Trouble(Trouble),
    /// The agent is gone.
    #[error(
        "the foreload agent ended ({0}); its log is agent.log in the cache directory. Start the loader again: a new agent starts by itself and finds the disk cache warm"
    )]
    Closed(String),
    /// It can't be started or reached.
    #[error("no foreload agent: {0}")]
    NoAgent(String),
    /// The caller's pulse asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The caller's time is over.
    #[error("no answer within {0:.1} s")]
    TimedOut(f64),
    /// A message that the agent would not take; nothing of it was sent.
    #[error("{what} has {bytes} bytes, and a message to the agent may have {MAX_FRAME}: ask for less at once")]
    TooLarge {
        /// What the message is.
        what: String,
        /// Its bytes.
        bytes: usize,
    },
    /// This client belongs to the parent process.
    #[error("this connection belongs to the parent process; a forked process connects anew")]
    Forked,
}

/// Asked now and then while waiting; false: stop.
pub type Pulse<'a> = &'a mut dyn FnMut() -> bool;

/// A connection to the agent.
pub struct Client {
    stream: UnixStream,
    pid: u32,
    connection: u64,
    agent_pid: u32,
    peer: peer::Peer,
    next: AtomicU64,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    outbox: Mutex<Outbox>,
    /// Spins in vain, in a row.
    vain: AtomicU32,
    /// Waits that sleep at once.
    unspun: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while holding it is a bug that was reported already; the data is still whole.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Client {
    /// Connects to the agent of a place, starting it if there is none.
    ///
    /// # Errors
    /// [`ClientError::NoAgent`] with what its log says last.
    pub fn connect(place: &Place, pulse: Pulse<'_>) -> Result<Arc<Self>, ClientError> {
        start::greeted(place, pulse, Self::greet)
    }

    /// Over a connection that has not been greeted yet.
    fn over(stream: UnixStream) -> Self {
        Client {
            stream,
            pid: std::process::id(),
            connection: 0,
            agent_pid: 0,
            peer: peer::Peer::default(),
            next: AtomicU64::new(1),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            outbox: Mutex::default(),
            vain: AtomicU32::new(0),
            unspun: AtomicU32::new(0),
        }
    }

    fn greet(stream: UnixStream, pulse: Pulse<'_>) -> Result<Arc<Self>, ClientError> {
        let mut client = Client::over(stream);
        let hello = Call::Hello {
            version: VERSION,
            pid: client.pid,
        };
        match client.call(&hello, pulse)? {
            (Reply::Welcome { connection, pid, .. }, _) => (client.connection, client.agent_pid) = (connection, pid),
            (other, _) => return Err(ClientError::NoAgent(format!("unexpected answer {other:?}"))),
        }
        client.peer = peer::Peer::of(client.agent_pid);
        Ok(Arc::new(client))
    }

    /// This connection's number, which hand-overs name.
    #[must_use]
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// The agent's process.
    #[must_use]
    pub fn agent_pid(&self) -> u32 {
        self.agent_pid
    }

    /// Whether this process made the client: false after a fork.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Whether the agent is known to be gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.inbox).closed.is_some()
    }

    /// Whether the agent's process has ended. False where that can't be known.
    ///
    /// A dead agent lends no memory anew: what it had lent keeps its contents as long as it is mapped.
    #[must_use]
    pub fn agent_has_ended(&self) -> bool {
        self.is_closed() && self.peer.has_ended()
    }

    /// Calls the agent and waits for its answer.
    ///
    /// # Errors
    /// [`ClientError::Trouble`] when the agent refuses, otherwise as [`Client::wait`].
    pub fn call(&self, call: &Call, pulse: Pulse<'_>) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        self.call_with(call, pulse, &mut |_| ())
    }

    /// As [`Client::call`], telling how far a long call is.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_with(
        &self,
        call: &Call,
        pulse: Pulse<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let body = call.body().map_err(|e| ClientError::NoAgent(e.to_string()))?;
        let list = call.list().map_err(|e| {
            let message = format!("laying down a list of samples for the agent: {e}");
            ClientError::Trouble(Trouble::new("no-memory", message))
        })?;
        match list.as_ref().and_then(|list| Some((list.numbers().len(), list.fd()?))) {
            None => self.send(&Ask::Call { id, body })?,
            Some((count, fd)) => self.send_with(&Ask::CallWith { id, count, body }, &[fd])?,
        }
        let mut told = || {
            let waiting = lock(&self.inbox).progress.remove(&id).unwrap_or_default();
            waiting.into_iter().for_each(&mut *progress);
        };
        let answer = self.receive(id, None, &mut || {
            told();
            pulse()
        });
        // The last ones came with the answer.
        told();
        if let Err(ClientError::Interrupted) = &answer {
            self.forget(id, Forgotten::Call);
        }
        match answer? {
            Incoming::Fds(Reply::Failed(trouble), _) => Err(ClientError::Trouble(trouble)),
            Incoming::Fds(reply, fds) => Ok((reply, fds)),
            Incoming::Say(other) => Err(ClientError::Closed(format!("unexpected answer {other:?}"))),
        }
    }

    /// A number for a want.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a message, and before it the releases that have gathered.
    ///
    /// # Errors
    /// [`ClientError::Closed`], [`ClientError::Forked`], [`ClientError::TooLarge`].
    pub fn send(&self, ask: &Ask) -> Result<(), ClientError> {
        self.send_with(ask, &[])
    }

    /// As [`Client::send`], with descriptors.
    fn send_with(&self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        if !self.is_ours() {
            return Err(ClientError::Forked);
        }
        let frame = ask.encode();
        let bytes = frame.len() - 4;
        if bytes > MAX_FRAME {
            let what = ask.what();
            return Err(ClientError::TooLarge { what, bytes });
        }
        let mut outbox = lock(&self.outbox);
        let mut bytes = outbox.empty();
        // Still under the lock of the outbox: it also keeps two threads' messages apart.
        if fds.is_empty() {
            bytes.extend(frame);
            return self.write(&bytes);
        }
        self.write(&bytes)?;
        // Descriptors come with the first byte that they are sent with.
        let sent = self.attempt(|| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
            rustix::net::sendmsg(
                &self.stream,
                &[IoSlice::new(&frame)],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )
        })?;
        self.write(&frame[sent..])
    }

    fn write(&self, mut bytes: &[u8]) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            let sent = self.attempt(|| rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL))?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    fn attempt(&self, mut send: impl FnMut() -> rustix::io::Result<usize>) -> Result<usize, ClientError> {
        loop {
            match send() {
                Ok(sent) => return Ok(sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // Known from now on: who asks whether the agent is there connects to the next one.
                    lock(&self.inbox).closed.get_or_insert_with(|| error.to_string());
                    return Err(ClientError::Closed(error.to_string()));
                }
            }
        }
    }

    /// Gives leases back: with the next message, before the next wait, or now that many or large ones have gathered.
    pub fn release(&self, job: u32, handle: Option<Handle>, slot: Option<u64>, bytes: u64) {
        if !self.is_ours() {
            return;
        }
        let mut outbox = lock(&self.outbox);
        let (handles, slots, held) = outbox.0.entry(job).or_default();
        handles.extend(handle);
        slots.extend(slot);
        *held += bytes;
        if handles.len() + slots.len() >= RELEASE_AT || *held >= RELEASE_AT_BYTES {
            // An agent that is gone holds no leases.
            let _ = self.write(&outbox.empty());
        }
    }

    /// Sends the releases that have gathered.
    pub fn flush(&self) {
        if self.is_ours() {
            let mut outbox = lock(&self.outbox);
            let bytes = outbox.empty();
            // Who waits for an answer hears of an agent that is gone.
            let _ = self.write(&bytes);
        }
    }

    /// As [`Client::wait`]; when that is interrupted, what comes later is given back.
    fn wait_or_forget(&self, id: u64, pulse: Pulse<'_>, what: impl FnOnce() -> Forgotten) -> Result<Say, ClientError> {
        let answer = self.wait(id, None, pulse);
        if let Err(ClientError::Interrupted) = &answer {
            self.forget(id, what());
        }
        answer
    }

    /// Waits for the answer to a want.
    ///
    /// # Errors
    /// [`ClientError::Trouble`] when the agent refuses, [`ClientError::Interrupted`], [`ClientError::TimedOut`], [`ClientError::Closed`].
    pub fn wait(&self, id: u64, timeout: Option<Duration>, pulse: Pulse<'_>) -> Result<Say, ClientError> {
        match self.receive(id, timeout, pulse)? {
            Incoming::Say(Say::Refuse { body, .. }) => {
                Err(ClientError::Trouble(serde_json::from_str(&body).unwrap_or_else(|_| {
                    Trouble::new("bug", format!("unreadable refusal {body:?}"))
                })))
            }
            Incoming::Say(say) => Ok(say),
            Incoming::Fds(reply, _) => Err(ClientError::Closed(format!("unexpected answer {reply:?}"))),
        }
    }

    /// Nobody waits for a want any more. What has come for it, or is on its way, is given back.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn withdraw(&self, job: u32, id: u64) -> Result<(), ClientError> {
        self.send(&Ask::Withdraw { job, id })?;
        self.forget(id, Forgotten::Want(job));
        Ok(())
    }

    /// Nobody waits for an answer any more: what it brings is given back.
    fn forget(&self, id: u64, what: Forgotten) {
        let mut inbox = lock(&self.inbox);
        inbox.forgotten.insert(id, (what, self.next_id()));
        inbox.progress.remove(&id);
        if let Some(incoming) = inbox.mail.remove(&id) {
            inbox.refile(id, incoming);
        }
        drop(self.give_unwanted_back(inbox));
        self.glance();
    }

    fn give_unwanted_back<'a>(&'a self, mut inbox: MutexGuard<'a, Inbox>) -> MutexGuard<'a, Inbox> {
        let unwanted = std::mem::take(&mut inbox.unwanted);
        if unwanted.is_empty() {
            return inbox;
        }
        // Releasing may write, and writing may note an end in the inbox.
        drop(inbox);
        for ask in unwanted {
            // An agent that is gone holds no leases.
            let _ = self.send(&ask);
        }
        lock(&self.inbox)
    }

    /// What the agent wants somebody to read: stalls, for instance. Looks for more where nobody has read for a while.
    #[must_use]
    pub fn notices(&self) -> Vec<Trouble> {
        if lock(&self.inbox).read_at.is_none_or(|at| at.elapsed() > UNREAD) {
            self.glance();
        }
        std::mem::take(&mut lock(&self.inbox).notices).into()
    }

    fn receive(&self, id: u64, timeout: Option<Duration>, pulse: Pulse<'_>) -> Result<Incoming, ClientError> {
        if !self.is_ours() {
            // A thread of the parent may have held the lock when it forked.
            return Err(ClientError::Forked);
        }
        let end = timeout.map(|timeout| Instant::now() + timeout);
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some(incoming) = inbox.mail.remove(&id) {
                return Ok(incoming);
            }
            if !self.is_ours() {
                return Err(ClientError::Forked);
            }
            if let Some(why) = &inbox.closed {
                return Err(ClientError::Closed(why.clone()));
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(ClientError::TimedOut(timeout.unwrap_or_default().as_secs_f64()));
            }
            let nap = end.map_or(PULSE, |end| end.saturating_duration_since(Instant::now()).min(PULSE));
            if inbox.reading {
                inbox = self
                    .arrived
                    .wait_timeout(inbox, nap)
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .0;
            } else {
                inbox.reading = true;
                drop(inbox);
                // What we wait for may need the memory that we let go.
                self.flush();
                inbox = self.read_into_inbox(nap);
            }
            if !inbox.mail.contains_key(&id) {
                let due = inbox.silence.due();
                drop(inbox);
                if let Some(due) = due {
                    self.mind_silence(due);
                }
                if !pulse() {
                    return Err(ClientError::Interrupted);
                }
                inbox = lock(&self.inbox);
            }
        }
    }

    /// Asks an agent that says nothing for a sign of life, or reports it.
    fn mind_silence(&self, due: Due) {
        match due {
            Due::Ask if self.ping() => {}
            Due::Ask => lock(&self.inbox).silence.not_asked(),
            Due::Tell(lasted) => silence::report(silence::trouble(self.peer_pid(), lasted)),
        }
    }

    /// Sends a call whose answer nobody waits for; false where that would have to wait itself.
    fn ping(&self) -> bool {
        let id = self.next_id();
        let Ok(body) = Call::Ping.body() else { return false };
        lock(&self.inbox)
            .forgotten
            .insert(id, (Forgotten::Call, self.next_id()));
        let frame = Ask::Call { id, body }.encode();
        // Another thread may hold it for as long as a socket that nobody empties is full.
        let sent = self.outbox.try_lock().is_ok_and(|_ours| {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            rustix::net::send(&self.stream, &frame, flags).is_ok_and(|sent| self.write(&frame[sent..]).is_ok())
        });
        if !sent {
            lock(&self.inbox).forgotten.remove(&id);
        }
        sent
    }

    /// The agent's process; also before it has answered the greeting.
    fn peer_pid(&self) -> u32 {
        let asked = || rustix::net::sockopt::socket_peercred(&self.stream).ok();
        match self.agent_pid {
            0 => asked().map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs()),
            pid => pid,
        }
    }

    /// Files what has arrived, without waiting for anything.
    pub fn glance(&self) {
        if !self.is_ours() {
            return;
        }
        let mut inbox = lock(&self.inbox);
        if !inbox.reading && inbox.closed.is_none() {
            inbox.reading = true;
            drop(inbox);
            drop(self.read_into_inbox(Duration::ZERO));
        }
    }

    /// Reads once and files what came; the caller has set `reading`.
    fn read_into_inbox(&self, nap: Duration) -> MutexGuard<'_, Inbox> {
        let came = self.read(nap);
        let mut inbox = lock(&self.inbox);
        inbox.reading = false;
        let now = Instant::now();
        inbox.read_at = Some(now);
        match &came {
            Ok((bytes, _)) if bytes.is_empty() && !nap.is_zero() => inbox.silence.goes_on(now),
            Ok((bytes, _)) if bytes.is_empty() => {}
            _ => inbox.silence.ended(),
        }
        if let Err(error) = came.and_then(|(bytes, fds)| inbox.sort(&bytes, fds)) {
            inbox.closed = Some(error.to_string());
        }
        self.arrived.notify_all();
        self.give_unwanted_back(inbox)
    }

    /// Takes the answer to a want if it is there already and not a refusal, without waiting.
    fn delivery_at_hand(&self, id: u64) -> Option<(Vec<Sent>, bool)> {
        if !lock(&self.inbox).mail.contains_key(&id) {
            self.glance();
        }
        let mut inbox = lock(&self.inbox);
        if !matches!(inbox.mail.get(&id), Some(Incoming::Say(Say::Deliver { .. }))) {
            return None;
        }
        match inbox.mail.remove(&id) {
            Some(Incoming::Say(Say::Deliver { items, copy, .. })) => Some((items, copy)),
            _ => None,
        }
    }

    fn wait_for_bytes(&self, nap: Duration) -> io::Result<bool> {
        // One thread reads at a time (`Inbox::reading`).
        let unspun = self.unspun.load(Ordering::Relaxed);
        if unspun > 0 {
            self.unspun.store(unspun - 1, Ordering::Relaxed);
            return self.poll(nap);
        }
        let begun = Instant::now();
        while begun.elapsed() < SPIN.min(nap) {
            if self.poll(Duration::ZERO)? {
                self.vain.store(0, Ordering::Relaxed);
                return Ok(true);
            }
        }
        let vain = (self.vain.load(Ordering::Relaxed) + 1).min(MOST_DOUBLINGS);
        self.vain.store(vain, Ordering::Relaxed);
        self.unspun.store(1 << vain, Ordering::Relaxed);
        self.poll(nap)
    }

    fn poll(&self, nap: Duration) -> io::Result<bool> {
        let mut poll_fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let nap = Timespec {
            tv_sec: nap.as_secs() as i64,
            tv_nsec: i64::from(nap.subsec_nanos()),
        };
        match poll(&mut poll_fds, Some(&nap)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what there is; nothing after `nap`.
    fn read(&self, nap: Duration) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let nap = sync::nap(nap);
        if !nap.is_zero() && !self.wait_for_bytes(nap)? {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut buffer = vec![0u8; 32 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(
            self.stream.as_fd(),
            &mut [IoSliceMut::new(&mut buffer)],
            &mut ancillary,
            flags,
        ) {
            Ok(message) if message.bytes == 0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its socket closed")),
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => Err(io::Error::other(
                "this process has no descriptor left for what it sent; raise `ulimit -n`",
            )),
            Ok(message) => {
                buffer.truncate(message.bytes);
                let mut fds = Vec::new();
                for part in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = part {
                        fds.extend(rights);
                    }
                }
                Ok((buffer, fds))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok((Vec::new(), Vec::new())),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.flush();
    }
}

const _: () = assert!(MAX_FRAME < u32::MAX as usize);
