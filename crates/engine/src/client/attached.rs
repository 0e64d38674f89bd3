//! A job that a client is attached to: its memory, and what is asked of it.

use super::mailbox::Forgotten;
use super::{Client, ClientError, Pulse, peer};
use crate::calls::{Call, Progress, Reply};
use crate::protocol::{Ask, Say, Sent};
use crate::slots::Mapping;
use foreload_plan::action::Handle;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// So long something is waited for before the agent is told that nothing else is done: mostly it is on its way.
const AWAIT_AFTER: Duration = Duration::from_millis(2);

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
    /// Whether what came last was to be copied: the agent gives such things only to whoever waits for them.
    is_short: AtomicBool,
    /// The want of which the agent was told last that somebody waits.
    awaited: AtomicU64,
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
        Self::watched(client, attach, pulse, &mut |_| ())
    }

    /// As [`Attached::new`], telling how far it is: where much is to be counted first, it takes long.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn watched(
        client: &Arc<Client>,
        attach: crate::calls::Attach,
        pulse: Pulse<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, ClientError> {
        let (reply, fds) = client.call_with(&Call::Attach(Box::new(attach)), pulse, progress)?;
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
        let arenas = [map(cache, *cache_bytes, false)?, map(batches, *batch_bytes, true)?];
        Ok(Self::of(client, *job, arenas, reply))
    }

    /// Of a job that the agent has told us of, with its arenas.
    pub(super) fn of(client: &Arc<Client>, job: u32, [cache, batches]: [Mapping; 2], reply: Reply) -> Self {
        Attached {
            client: Arc::clone(client),
            job,
            cache,
            batches,
            reply,
            is_short: AtomicBool::new(false),
            awaited: AtomicU64::new(u64::MAX),
        }
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
        let begun = Instant::now();
        if let Some(delivery) = self.delivered_already(id) {
            return Ok(delivery);
        }
        let soon = match self.is_short.load(Ordering::Relaxed) {
            true => Duration::ZERO,
            false => timeout.map_or(AWAIT_AFTER, |timeout| timeout.min(AWAIT_AFTER)),
        };
        let mut answer = Err(ClientError::TimedOut(0.0));
        if !soon.is_zero() {
            answer = self.client.wait(id, Some(soon), pulse);
        }
        if let Err(ClientError::TimedOut(_)) = answer {
            if self.awaited.swap(id, Ordering::Relaxed) != id {
                self.client.send(&Ask::Await { job: self.job, id })?;
            }
            answer = self.client.wait(
                id,
                timeout.map(|timeout| timeout.saturating_sub(begun.elapsed())),
                pulse,
            );
        }
        match answer? {
            Say::Deliver { items, copy, .. } => {
                self.is_short.store(copy, Ordering::Relaxed);
                Ok((items, copy))
            }
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
