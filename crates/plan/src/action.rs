//! What the scheduler orders, and what comes back.
//!
//! An [`Action`] can only be made in this crate and can't be copied: whoever holds one was ordered to carry it out, once. The [`Completion`] is made
//! from the action that it completes, so a carrier can't report what nobody ordered. Both sides stay plain data for the decision log.

use crate::arena::Slot;
use crate::blocks::Content;
use crate::homes::Member;
use crate::job::Reads;
use crate::order::Listed;
use serde::{Deserialize, Serialize};

/// Names one stay in memory: its place in the scheduler's table and how often that place was reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Handle {
    /// Place in the table.
    pub index: u32,
    /// Reuse count: a handle of an earlier stay is refused.
    pub generation: u32,
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The bucket or file system that holds the data set.
    Bucket,
    /// A disk tier, by its number, fastest first.
    Disk(u8),
    /// Another node, by the number that the carrier gave it in [`Event::Peers`].
    Peer(u16),
}

/// Part of a load: bytes of one stay in memory, and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// What is to be there.
    pub content: Content,
    /// Its stay in memory.
    pub handle: Handle,
    /// Where the piece starts in the load's range.
    pub at: u64,
    /// Where it goes: offset in the arena.
    pub slot_offset: u64,
    /// Its bytes.
    pub len: u64,
    /// Where it starts in the content: above 0 only for parts of a large sample.
    pub content_offset: u64,
    /// The content's whole length.
    pub content_len: u64,
}

/// Loads of one bundle at most. Of 10 KB, 32 take a sixth of the processor time that they take one by one, 16 a fifth, and 64 hardly less than 32
/// (bench/results/2026-11-28-peer-bundles.md).
pub const BUNDLE_LOADS: usize = 32;
/// Bytes of all of them at most: twice as much would save a fifth, but more would wait for one packet that is lost.
pub const BUNDLE_BYTES: u64 = 256 << 10;
/// A load in a bundle has fewer bytes than this: with larger ones, too, more is under way to a node that hangs than twins make up for (bench/results/2026-11-28-nodes-b970092.md).
pub const BUNDLED_BYTES: u64 = 64 << 10;

/// One request to a source: a range of an object, scattered into slots. Bytes between pieces are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The job for which it was ordered; others may read it, too.
    pub job: u32,
    /// Where from.
    pub source: Source,
    /// The object, by its number in the index. For a disk tier the object that its content belongs to.
    pub object: u64,
    /// First byte in the object.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Pieces in order of `at`. One may lie within another: then its bytes go to both.
    pub pieces: Vec<Piece>,
    /// Batches that the rank which needs it reads before that.
    pub steps: u64,
    /// Give up at this time.
    pub deadline_ns: u64,
    /// 0 for the first try; a corrupt or failed load is ordered once more.
    pub attempt: u8,
    /// It races an earlier load of the same bytes that is late.
    pub hedge: bool,
    /// Small loads of one data set that were ordered of one peer in one step have the same number here: one request may ask for all of them. Each ends by
    /// itself all the same, as early as it can. `None`: it goes alone.
    pub bundle: Option<u64>,
}

/// One delivered sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The sample.
    pub sample: u64,
    /// What to give back after use; samples of one block have the same.
    pub handle: Handle,
    /// Its bytes: a view of its block's.
    pub slot: Slot,
    /// What this use of the sample cost: the first use of loaded bytes names their source, later ones the RAM tier.
    pub via: Via,
}

/// Where a delivered sample was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// It was in memory already.
    Ram,
    /// Read from a disk tier for this use.
    Disk,
    /// Fetched for this use.
    Bucket,
    /// Had from another node for this use.
    Peer,
}

/// Why a load failed, as far as the policy cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// Unavailable until the deadline: network, 5xx, timeouts.
    Unavailable,
    /// Bytes that don't match their checksum or length.
    Corrupt,
    /// Gone, changed, denied: trying again won't help.
    Final,
    /// Called off by [`Command::Cancel`].
    Cancelled,
    /// The sample doesn't fit the memory budget, even alone.
    NoMemory,
}

/// What to carry out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Command {
    /// Read bytes into slots. Ends with [`Action::done`] or [`Action::failed`].
    Load(Load),
    /// Write a block that is in memory to a disk tier. Ends like a load.
    Keep {
        /// The tier.
        tier: u8,
        /// The block.
        block: u64,
        /// Its stay in memory.
        handle: Handle,
        /// Its bytes, unchanged until the action ends.
        slot: Slot,
    },
    /// Forget a block in a disk tier. Nothing comes back.
    Forget {
        /// The tier.
        tier: u8,
        /// The block.
        block: u64,
    },
    /// Hand samples over: all that a request asked for, in its order. Nothing comes back but later releases.
    Deliver {
        /// The request.
        request: u64,
        /// The samples.
        items: Vec<Item>,
        /// Take copies and give the leases back at once: too much is leased to keep fetching.
        copy: bool,
    },
    /// Tell a request that it can't be served.
    Refuse {
        /// The request.
        request: u64,
        /// The first sample that failed; `None`: the request was called off by a later start.
        sample: Option<u64>,
        /// Why.
        failure: Failure,
    },
    /// Stop a load if it still runs; it ends all the same, with what it has or as [`Failure::Cancelled`].
    Cancel {
        /// The id of the load.
        load: u64,
    },
}

/// An order of the scheduler.
#[derive(Debug, PartialEq, Eq)]
pub struct Action {
    id: u64,
    command: Command,
}

impl Action {
    pub(crate) fn new(id: u64, command: Command) -> Self {
        Action { id, command }
    }

    /// Unique within the scheduler.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What to do.
    #[must_use]
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// It ended well: the first byte came `latency_ns` after the start, the last `total_ns`.
    #[must_use]
    pub fn done(self, latency_ns: u64, total_ns: u64) -> Completion {
        Completion {
            id: self.id,
            outcome: Outcome::Done(Told::Speed { latency_ns, total_ns }),
        }
    }

    /// It ended well, but the source asked for fewer requests meanwhile.
    #[must_use]
    pub fn done_throttled(self, latency_ns: u64, total_ns: u64) -> Completion {
        Completion {
            id: self.id,
            outcome: Outcome::Done(Told::Throttled { latency_ns, total_ns }),
        }
    }

    /// It ended well without its source: the bytes lay somewhere else by chance, or a peer had to fetch them first. Nothing follows for those that come next.
    #[must_use]
    pub fn done_apart(self) -> Completion {
        Completion {
            id: self.id,
            outcome: Outcome::Done(Told::Nothing),
        }
    }

    /// It didn't.
    #[must_use]
    pub fn failed(self, failure: Failure) -> Completion {
        Completion {
            id: self.id,
            outcome: Outcome::Failed(failure),
        }
    }
}

/// The end of an action.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Completion {
    pub(crate) id: u64,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done(Told),
    Failed(Failure),
}

/// What an action that ended well says of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// How soon the first byte came, and the last.
    Speed { latency_ns: u64, total_ns: u64 },
    /// The same, and that it wants fewer requests.
    Throttled { latency_ns: u64, total_ns: u64 },
    /// Nothing: it wasn't asked.
    Nothing,
}

/// What happened.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A rank begins, resumes or jumps: its next batch is `batch` of `epoch`.
    Start {
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// The epoch.
        epoch: u32,
        /// The batch, in the epoch.
        batch: u64,
    },
    /// A rank asks for a batch of its own.
    WantBatch {
        /// Chosen by the asker, unique while it is open.
        request: u64,
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// The epoch.
        epoch: u32,
        /// The batch, in the epoch.
        batch: u64,
    },
    /// A rank asks for reads of the plan by their names: each is an epoch and a position in it.
    WantReads {
        /// Chosen by the asker, unique while it is open.
        request: u64,
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// Epochs and positions, in the order of delivery.
        reads: Vec<(u32, u64)>,
    },
    /// A rank asks for samples by number, outside the plan: each is a read of its own.
    WantSamples {
        /// Chosen by the asker, unique while it is open.
        request: u64,
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// The samples, in the order of delivery.
        samples: Vec<u64>,
    },
    /// Another node asks for samples of a job: for what is here, or is to be here because this node is its home. What isn't is refused, for the asker has
    /// the bucket, too.
    Serve {
        /// Chosen by the carrier, unique while it is open, as those of wants are.
        request: u64,
        /// The job.
        job: u32,
        /// The samples, in the order of delivery.
        samples: Vec<u64>,
        /// [`Load::steps`] of whoever asks.
        steps: u64,
    },
    /// The asker does nothing but wait for this request: from now on it comes before those that nobody waits for yet, and what is to be copied is
    /// delivered.
    Awaited {
        /// The request.
        request: u64,
    },
    /// A rank reads no more, until it starts again.
    Leave {
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
    },
    /// The asker is gone; nothing is delivered.
    Withdraw {
        /// The request.
        request: u64,
    },
    /// Nobody reads for a job any more. What is in flight ends, and nothing new is loaded for it until a rank starts or asks again.
    Left {
        /// The job.
        job: u32,
    },
    /// A job begins: from now on events may name it, and none of its ranks has started.
    Join {
        /// The job, a number that no job has now.
        job: u32,
        /// What it reads.
        reads: Box<Reads>,
    },
    /// A job is over: its ranks leave. What it kept stays until its memory is needed.
    Part {
        /// The job.
        job: u32,
    },
    /// Leases given back.
    Release {
        /// One for each delivered item that is no longer used.
        handles: Vec<Handle>,
    },
    /// An action ended.
    Completed(Completion),
    /// Blocks found in a disk tier (after a restart, or put there by another job).
    Found {
        /// The tier.
        tier: u8,
        /// The blocks.
        blocks: Vec<u64>,
    },
    /// The memory budget changed.
    Budget {
        /// Bytes that the RAM tier and staging may use together; never more than at the start.
        ram_bytes: u64,
    },
    /// How many requests to the bucket may be in flight from now on: this job's share of what the origin takes
    /// ([`flow::Origin`](crate::flow::Origin)). Until the first of these, the scheduler finds a limit itself.
    Limit {
        /// Requests; at least one is always allowed.
        requests: u32,
    },
    /// The nodes that share their caches from now on, this one among them. None, or this one alone: each keeps what it can, for itself.
    Peers {
        /// This node's [`Member::id`].
        me: u64,
        /// Each, and the number by which [`Source::Peer`] names it: always the same one for the same node.
        members: Vec<(u16, Member)>,
    },
    /// The order of an epoch became known (explicit orders, and lists that are made elsewhere).
    Epoch {
        /// The job.
        job: u32,
        /// The epoch.
        epoch: u32,
        /// Its samples, by position.
        samples: Listed,
    },
    /// Time passed.
    Tick,
}

impl Event {
    /// A copy for the decision log. Not `Clone`: outside this crate a completion must come from its action.
    pub(crate) fn duplicate(&self) -> Event {
        match self {
            Event::Start {
                job,
                rank,
                epoch,
                batch,
            } => Event::Start {
                job: *job,
                rank: *rank,
                epoch: *epoch,
                batch: *batch,
            },
            Event::WantBatch {
                request,
                job,
                rank,
                epoch,
                batch,
            } => Event::WantBatch {
                request: *request,
                job: *job,
                rank: *rank,
                epoch: *epoch,
                batch: *batch,
            },
            Event::WantReads {
                request,
                job,
                rank,
                reads,
            } => Event::WantReads {
                request: *request,
                job: *job,
                rank: *rank,
                reads: reads.clone(),
            },
            Event::Leave { job, rank } => Event::Leave { job: *job, rank: *rank },
            Event::WantSamples {
                request,
                job,
                rank,
                samples,
            } => Event::WantSamples {
                request: *request,
                job: *job,
                rank: *rank,
                samples: samples.clone(),
            },
            Event::Serve {
                request,
                job,
                samples,
                steps,
            } => Event::Serve {
                request: *request,
                job: *job,
                samples: samples.clone(),
                steps: *steps,
            },
            Event::Awaited { request } => Event::Awaited { request: *request },
            Event::Withdraw { request } => Event::Withdraw { request: *request },
            Event::Left { job } => Event::Left { job: *job },
            Event::Join { job, reads } => Event::Join {
                job: *job,
                reads: reads.clone(),
            },
            Event::Part { job } => Event::Part { job: *job },
            Event::Release { handles } => Event::Release {
                handles: handles.clone(),
            },
            Event::Completed(Completion { id, outcome }) => Event::Completed(Completion {
                id: *id,
                outcome: *outcome,
            }),
            Event::Found { tier, blocks } => Event::Found {
                tier: *tier,
                blocks: blocks.clone(),
            },
            Event::Budget { ram_bytes } => Event::Budget { ram_bytes: *ram_bytes },
            Event::Limit { requests } => Event::Limit { requests: *requests },
            Event::Peers { me, members } => Event::Peers {
                me: *me,
                members: members.clone(),
            },
            Event::Epoch { job, epoch, samples } => Event::Epoch {
                job: *job,
                epoch: *epoch,
                samples: samples.clone(),
            },
            Event::Tick => Event::Tick,
        }
    }
}
