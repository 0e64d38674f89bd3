//! The mailbox: what has come for those who wait, what is to be given back, and what was asked for and is no longer waited for.
//!
//! The agent answers under the number of the question. An answer that somebody waits for lies in the inbox until then; what comes for somebody who has
//! given up is given back at once. Leases that are given back gather in the outbox until the next message.

use super::silence::Silence;
use crate::calls::{Progress, Reply};
use crate::protocol::{Ask, Frames, Malformed, Say, Trouble};
use foreload_plan::action::Handle;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

pub(super) enum Incoming {
    Say(Say),
    Fds(Reply, Vec<OwnedFd>),
}

#[derive(Default)]
pub(super) struct Inbox {
    pub(super) reading: bool,
    pub(super) read_at: Option<Instant>,
    pub(super) frames: Frames,
    pub(super) fds: VecDeque<OwnedFd>,
    pub(super) mail: FxHashMap<u64, Incoming>,
    pub(super) progress: FxHashMap<u64, VecDeque<Progress>>,
    pub(super) notices: VecDeque<Trouble>,
    /// What nobody waits for any more, with the first number given out after it was forgotten.
    pub(super) forgotten: FxHashMap<u64, (Forgotten, u64)>,
    /// Gives back what came for them all the same.
    pub(super) unwanted: Vec<Ask>,
    pub(super) closed: Option<String>,
    pub(super) silence: Silence,
}

/// Something that was asked for, and nobody waits for any more.
pub(super) enum Forgotten {
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

impl Inbox {
    pub(super) fn sort(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
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

    pub(super) fn file(&mut self, say: Say) {
        let id = match &say {
            Say::Reply { id, body } => {
                let reply = serde_json::from_str(body)
                    .unwrap_or_else(|e| Reply::Failed(Trouble::new("bug", format!("unreadable reply: {e}"))));
                let count = match reply {
                    Reply::Opened { chosen: None, .. } => 1,
                    Reply::Opened { chosen: Some(_), .. } => 2,
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
    pub(super) fn refile(&mut self, id: u64, incoming: Incoming) {
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

/// Leases of a job to give back: samples and batch slots.
pub(super) type Releases = (Vec<Handle>, Vec<u64>, u64);

/// What is sent with the next message, or before a wait: releases by job.
#[derive(Default)]
pub(super) struct Outbox(pub(super) FxHashMap<u32, Releases>);

impl Outbox {
    pub(super) fn empty(&mut self) -> Vec<u8> {
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
