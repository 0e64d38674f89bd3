//! The agent's client: what runs inside the user's processes.
//!
//! It has no thread and no runtime, so that fork, signals and interpreter exit are harmless. Several threads of a process may use one client: whoever
//! waits first reads from the socket and puts what belongs to others into the inbox. Waiting wakes up every [`PULSE`] to let the caller look for
//! signals. A forked child must not use its parent's client ([`ClientError::Forked`]); it connects anew.
//!
//! A client that finds no agent starts one: it executes the agent's program, which detaches itself, and connects until it answers.

#[cfg(all(test, feature = "shuttle"))]
mod interleave;
mod peer;
mod start;
#[cfg(test)]
mod tests;

pub use start::{Place, own_directory};

use crate::calls::{Call, Progress, Reply};
use crate::protocol::{Ask, Frames, MAX_FRAME, Malformed, Say, Sent, Trouble, VERSION};
use crate::slots::Mapping;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{self, Condvar, Mutex, MutexGuard};
use foreload_plan::action::Handle;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
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
    /// This client belongs to the parent process.
    #[error("this connection belongs to the parent process; a forked process connects anew")]
    Forked,
}

/// Asked now and then while waiting; false: stop.
pub type Pulse<'a> = &'a mut dyn FnMut() -> bool;

enum Incoming {
    Say(Say),
    Fds(Reply, Vec<OwnedFd>),
}

#[derive(Default)]
struct Inbox {
    reading: bool,
    read_at: Option<Instant>,
    frames: Frames,
    fds: VecDeque<OwnedFd>,
    mail: FxHashMap<u64, Incoming>,
    progress: FxHashMap<u64, VecDeque<Progress>>,
    notices: VecDeque<Trouble>,
    /// What nobody waits for any more, with the first number given out after it was forgotten.
    forgotten: FxHashMap<u64, (Forgotten, u64)>,
    /// Gives back what came for them all the same.
    unwanted: Vec<Ask>,
    closed: Option<String>,
}

/// Something that was asked for, and nobody waits for any more.
enum Forgotten {
    /// Samples of a job.
    Want(u32),
    /// A slot of a job.
    Slot(u32),
    /// Leases of a job that another connection had.
    Adoption(u32, Vec<Handle>, Vec<u64>),
    /// A call.
    Call,
}

impl Forgotten {
    /// What gives back that which an answer brings.
    fn answered(self, say: Say) -> Option<Ask> {
        let release = |job, handles, slots| Some(Ask::Release { job, handles, slots });
        match (self, say) {
            (Forgotten::Want(job), Say::Deliver { items, .. }) => {
                release(job, items.iter().map(|item| item.handle).collect(), Vec::new())
            }
            (Forgotten::Slot(job), Say::Slot { slot, len, .. }) if len > 0 => release(job, Vec::new(), vec![slot]),
            (Forgotten::Adoption(job, handles, slots), Say::Adopted { whole: true, .. }) => {
                release(job, handles, slots)
            }
            _ => None,
        }
    }
}

/// Leases of a job to give back: samples and batch slots.
type Releases = (Vec<Handle>, Vec<u64>, u64);

/// What is sent with the next message, or before a wait: releases by job.
#[derive(Default)]
struct Outbox(FxHashMap<u32, Releases>);

impl Outbox {
    fn empty(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut jobs: Vec<u32> = self.0.keys().copied().collect();
        jobs.sort_unstable();
        for job in jobs {
            if let Some((handles, slots, _)) = self.0.remove(&job)
                && !(handles.is_empty() && slots.is_empty())
            {
                bytes.extend(Ask::Release { job, handles, slots }.encode());
            }
        }
        bytes
    }
}

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
        let body = serde_json::to_string(call).map_err(|e| ClientError::NoAgent(e.to_string()))?;
        self.send(&Ask::Call { id, body })?;
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
    /// [`ClientError::Closed`], [`ClientError::Forked`].
    pub fn send(&self, ask: &Ask) -> Result<(), ClientError> {
        if !self.is_ours() {
            return Err(ClientError::Forked);
        }
        let mut outbox = lock(&self.outbox);
        let mut bytes = outbox.empty();
        bytes.extend(ask.encode());
        // Still under the lock of the outbox: it also keeps two threads' messages apart.
        self.write(&bytes)
    }

    fn write(&self, mut bytes: &[u8]) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => bytes = &bytes[n..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // Known from now on: who asks whether the agent is there connects to the next one.
                    lock(&self.inbox).closed.get_or_insert_with(|| error.to_string());
                    return Err(ClientError::Closed(error.to_string()));
                }
            }
        }
        Ok(())
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
                drop(inbox);
                if !pulse() {
                    return Err(ClientError::Interrupted);
                }
                inbox = lock(&self.inbox);
            }
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
        inbox.read_at = Some(Instant::now());
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

impl Inbox {
    fn sort(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
        self.fds.extend(fds);
        self.frames.feed(bytes);
        let mut frames = std::mem::take(&mut self.frames);
        let sorted = frames.drain(|frame| {
            let say = Say::decode(frame)?;
            self.file(say);
            Ok::<_, Malformed>(())
        });
        self.frames = frames;
        sorted.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    fn file(&mut self, say: Say) {
        let id = match &say {
            Say::Reply { id, body } => {
                let reply = serde_json::from_str(body)
                    .unwrap_or_else(|e| Reply::Failed(Trouble::new("bug", format!("unreadable reply: {e}"))));
                let count = match reply {
                    Reply::Opened { .. } => 1,
                    Reply::Attached { .. } => 2,
                    _ => 0,
                };
                let fds = self.fds.drain(..count.min(self.fds.len())).collect();
                self.refile(*id, Incoming::Fds(reply, fds));
                return;
            }
            Say::Progress { id, body } => {
                if let Ok(progress) = serde_json::from_str(body)
                    && !self.forgotten.contains_key(id)
                {
                    self.progress.entry(*id).or_default().push_back(progress);
                }
                return;
            }
            Say::Notice { body } => {
                if let Ok(trouble) = serde_json::from_str(body)
                    && self.notices.len() < 256
                {
                    self.notices.push_back(trouble);
                }
                return;
            }
            Say::Deliver { id, .. } | Say::Refuse { id, .. } | Say::Slot { id, .. } | Say::Adopted { id, .. } => *id,
        };
        self.refile(id, Incoming::Say(say));
    }

    /// Puts an answer where it is waited for, or sees to it that what it brings is given back.
    fn refile(&mut self, id: u64, incoming: Incoming) {
        match (self.forgotten.remove(&id), incoming) {
            (Some((what, _)), Incoming::Say(say)) => self.unwanted.extend(what.answered(say)),
            (Some(_), Incoming::Fds(Reply::Attached { job, .. }, _)) => self.unwanted.push(Ask::Detach { job }),
            (Some(_), Incoming::Fds(..)) => {}
            (None, incoming) => {
                if let Incoming::Say(_) = &incoming {
                    // The agent hears in order: it has heard of what was withdrawn before this was asked for. Only calls are answered when it suits.
                    self.forgotten
                        .retain(|_, (what, after)| matches!(what, Forgotten::Call) || *after > id);
                }
                self.mail.insert(id, incoming);
            }
        }
    }
}

/// A job that this client is attached to: its arenas, mapped.
pub struct Attached {
    /// The connection.
    pub client: Arc<Client>,
    /// The job's number.
    pub job: u32,
    /// The cache arena, read-only.
    pub cache: Mapping,
    /// The batch arena.
    pub batches: Mapping,
    /// What the agent said.
    pub reply: Reply,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Every lease holds the attachment, so nothing of it is in use. In a forked child the attachment is the parent's, and an agent that is
        // gone needs no word.
        let _ = self.client.send(&Ask::Detach { job: self.job });
    }
}

impl Attached {
    /// Joins or starts a job.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn new(client: &Arc<Client>, attach: crate::calls::Attach, pulse: Pulse<'_>) -> Result<Self, ClientError> {
        let (reply, fds) = client.call(&Call::Attach(Box::new(attach)), pulse)?;
        let Reply::Attached {
            job,
            cache_bytes,
            batch_bytes,
            ..
        } = &reply
        else {
            return Err(ClientError::Closed(format!("unexpected answer {reply:?}")));
        };
        let [cache, batches] = fds.as_slice() else {
            return Err(ClientError::Closed("the agent sent no memory".into()));
        };
        let map = |fd: &OwnedFd, len, writable| {
            Mapping::new(fd.as_fd(), len, writable)
                .map_err(|e| ClientError::Closed(format!("mapping the agent's memory: {e}")))
        };
        Ok(Attached {
            job: *job,
            cache: map(cache, *cache_bytes, false)?,
            batches: map(batches, *batch_bytes, true)?,
            client: Arc::clone(client),
            reply,
        })
    }

    /// Asks for a batch of a rank; wait for the number that comes back.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn want_batch(&self, rank: u32, epoch: u32, batch: u64) -> Result<u64, ClientError> {
        let id = self.client.next_id();
        self.client.send(&Ask::WantBatch {
            id,
            job: self.job,
            rank,
            epoch,
            batch,
        })?;
        Ok(id)
    }

    /// Asks for reads of the plan, by epoch and position.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn want_reads(&self, rank: u32, reads: Vec<(u32, u64)>) -> Result<u64, ClientError> {
        let id = self.client.next_id();
        self.client.send(&Ask::WantReads {
            id,
            job: self.job,
            rank,
            reads,
        })?;
        Ok(id)
    }

    /// Asks for samples by number, outside the plan.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn want_samples(&self, rank: u32, samples: Vec<u64>) -> Result<u64, ClientError> {
        let id = self.client.next_id();
        self.client.send(&Ask::WantSamples {
            id,
            job: self.job,
            rank,
            samples,
        })?;
        Ok(id)
    }

    /// Waits for samples.
    ///
    /// # Errors
    /// As [`Client::wait`].
    pub fn delivered(
        &self,
        id: u64,
        timeout: Option<Duration>,
        pulse: Pulse<'_>,
    ) -> Result<(Vec<Sent>, bool), ClientError> {
        match self.client.wait(id, timeout, pulse)? {
            Say::Deliver { items, copy, .. } => Ok((items, copy)),
            other => Err(ClientError::Closed(format!("unexpected answer {other:?}"))),
        }
    }

    /// The samples of a want if they are there already; a refusal is left to [`Attached::delivered`].
    #[must_use]
    pub fn delivered_already(&self, id: u64) -> Option<(Vec<Sent>, bool)> {
        if self.client.is_ours() {
            self.client.delivery_at_hand(id)
        } else {
            None
        }
    }

    /// The bytes of a delivered sample; empty only for an empty sample.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when the agent named memory that doesn't exist.
    pub fn bytes(&self, item: &Sent) -> Result<&[u8], ClientError> {
        self.cache
            .bytes(item.offset, item.len)
            .ok_or_else(|| ClientError::Closed("the agent delivered memory outside the arena".into()))
    }

    /// Leases `len` bytes to collate into; `None` when the arena is full.
    ///
    /// # Errors
    /// As [`Client::wait`].
    pub fn batch_slot(&self, len: u64, pulse: Pulse<'_>) -> Result<Option<(u64, u64)>, ClientError> {
        let id = self.client.next_id();
        self.client.send(&Ask::WantSlot { id, job: self.job, len })?;
        match self.client.wait_or_forget(id, pulse, || Forgotten::Slot(self.job))? {
            Say::Slot {
                slot,
                offset,
                len: given,
                ..
            } if given == len && len > 0 => Ok(Some((slot, offset))),
            Say::Slot { .. } => Ok(None),
            other => Err(ClientError::Closed(format!("unexpected answer {other:?}"))),
        }
    }

    /// Makes leases of another connection of this session, that of `process`, ours; false when that connection is gone and with it the leases.
    ///
    /// Of an agent that has ended everything stays as it is that was lent to whoever outlived it, and adopting needs nobody. A process that lives no
    /// more may have ended first, and its memory have been lent anew.
    ///
    /// # Errors
    /// As [`Client::wait`].
    pub fn adopt(
        &self,
        from: u64,
        process: u32,
        handles: Vec<Handle>,
        slots: Vec<u64>,
        pulse: Pulse<'_>,
    ) -> Result<bool, ClientError> {
        match self.ask_to_adopt(from, handles, slots, pulse) {
            Err(ClientError::Closed(_)) if self.client.agent_has_ended() => Ok(peer::Peer::of(process).lives()),
            answer => answer,
        }
    }

    fn ask_to_adopt(
        &self,
        from: u64,
        handles: Vec<Handle>,
        slots: Vec<u64>,
        pulse: Pulse<'_>,
    ) -> Result<bool, ClientError> {
        let id = self.client.next_id();
        self.client.send(&Ask::Adopt {
            id,
            job: self.job,
            from,
            handles: handles.clone(),
            slots: slots.clone(),
        })?;
        let forgotten = || Forgotten::Adoption(self.job, handles, slots);
        match self.client.wait_or_forget(id, pulse, forgotten)? {
            Say::Adopted { whole, .. } => Ok(whole),
            other => Err(ClientError::Closed(format!("unexpected answer {other:?}"))),
        }
    }
}

const _: () = assert!(MAX_FRAME < u32::MAX as usize);
