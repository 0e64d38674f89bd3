//! What can be wrong with a plan, and what the caller can do about it.
//!
//! The policy does no I/O, so nearly every error here is a call to fix ([`ErrorKind::Invalid`]); each message names the numbers
//! that don't fit and a remedy.

use crate::Digest;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Fix the call.
    Invalid,
    /// Ask for something that exists, or supply it first.
    NotFound,
    /// Try again.
    Unavailable,
    /// Fix the data.
    Corrupt,
    /// Nothing: it was shut down.
    Closed,
    /// Report it.
    Bug,
}

/// A plan that can't be made or followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More ranks on one node than it can name.
    #[error("a node can serve {most} ranks at once, of all jobs together")]
    TooManyRanks {
        /// The most.
        most: usize,
    },
    /// A job of this number reads already.
    #[error("a job {job} reads already")]
    JobExists {
        /// Its number.
        job: u32,
    },
    /// An order over nothing.
    #[error("the data set has no samples: an order needs at least one")]
    NoSamples,
    /// More samples than this kind of order can hold.
    #[error("{samples} samples are more than a {kind} order can hold ({limit}); the keyed order has no such limit")]
    TooManySamples {
        /// Samples in the data set.
        samples: u64,
        /// Largest number this kind takes.
        limit: u64,
        /// The kind's name.
        kind: &'static str,
    },
    /// A number that must not be zero is.
    #[error("{what} must be at least 1")]
    Zero {
        /// The setting's name.
        what: &'static str,
    },
    /// The tail rule's multiple doesn't divide the global batch.
    #[error(
        "the tail is rounded to a multiple of {multiple}, which doesn't divide the global batch of {global_batch} samples; use a divisor of it"
    )]
    TailMultiple {
        /// What the number of positions is rounded to.
        multiple: u32,
        /// Samples in a global batch.
        global_batch: u32,
    },
    /// An epoch without a single batch.
    #[error(
        "{samples} samples don't fill a global batch of {unit}, and what doesn't is dropped: use a smaller batch, or don't drop the last one"
    )]
    EmptyEpoch {
        /// Samples, or entries of the list, in an epoch.
        samples: u64,
        /// The unit that has to be filled.
        unit: u64,
    },
    /// A listed sample that the data set doesn't have.
    #[error("position {position} of the list names sample {sample}, but the data set has {samples} samples")]
    NoSuchSample {
        /// Where in the list.
        position: u64,
        /// What it says.
        sample: u64,
        /// Samples in the data set.
        samples: u64,
    },
    /// A list of another length than the spec says.
    #[error("the list for epoch {epoch} has {found} entries, the order was declared with {expected}")]
    ListLength {
        /// The epoch.
        epoch: u32,
        /// Entries in the list.
        found: u64,
        /// Entries in the spec.
        expected: u64,
    },
    /// The list of this epoch hasn't been supplied.
    #[error("the list for epoch {epoch} has not been supplied yet")]
    EpochNotSupplied {
        /// The epoch.
        epoch: u32,
    },
    /// An epoch was supplied twice with different lists, or supplied to an order that makes its own.
    #[error("epoch {epoch} already has its order")]
    EpochAlreadyKnown {
        /// The epoch.
        epoch: u32,
    },
    /// A mixture's streams are not the data set's samples.
    #[error("the streams of the mixture have {found} samples together, the data set has {samples}")]
    StreamsDiffer {
        /// Samples of all streams.
        found: u64,
        /// Samples in the data set.
        samples: u64,
    },
    /// A mixture's weights are finer than what is kept of them.
    #[error("the weights of the mixture add up to {total} in whole numbers, and may add up to {limit}; round them")]
    Weights {
        /// Their sum.
        total: u64,
        /// The largest sum.
        limit: u64,
    },
    /// The ranks can't share a global batch equally.
    #[error(
        "{ranks} data ranks can't share global batches of {samples} samples equally; use a global batch that {ranks} divides, or uneven=\"weights\""
    )]
    UnevenBatch {
        /// Data ranks.
        ranks: u32,
        /// Samples in a global batch.
        samples: u32,
    },
    /// The ranks can't share the epoch's last, short batch equally.
    #[error(
        "{ranks} data ranks can't share the epoch's last batch of {samples} samples equally; drop it, pad it to the global batch, or use uneven=\"weights\""
    )]
    UnevenLastBatch {
        /// Data ranks.
        ranks: u32,
        /// Samples in the last batch.
        samples: u32,
    },
    /// More ranks than samples in a global batch.
    #[error(
        "{ranks} data ranks share global batches of {global_batch} samples: some would have nothing; use a global batch of at least {ranks}"
    )]
    MoreRanksThanSamples {
        /// Data ranks.
        ranks: u32,
        /// Samples in a global batch.
        global_batch: u32,
    },
    /// A deal that was made for another number of ranks.
    #[error("{found} ranks are said to be on nodes, and {ranks} data ranks read")]
    OtherDeal {
        /// Ranks whose nodes are known.
        found: u64,
        /// Data ranks.
        ranks: u32,
    },
    /// More reads to count than memory is there for.
    #[error(
        "policy \"frequency\" counts how often each node reads each sample: {pairs} samples x nodes are too many (2^28 at most); the policy \"foreload\" counts nothing"
    )]
    TooManyRanked {
        /// Samples times nodes.
        pairs: u64,
    },
    /// A rank that doesn't exist, or is named twice.
    #[error("rank {rank} is not one of {ranks} data ranks, or is named twice")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Data ranks.
        ranks: u32,
    },
    /// A checkpoint of another order.
    #[error(
        "the checkpoint belongs to order {found}, this run's is {expected}: data set, order kind, seed, global batch and tail rule must be those of the run that saved it"
    )]
    OtherOrder {
        /// This run's.
        expected: Digest,
        /// The checkpoint's.
        found: Digest,
    },
    /// A checkpoint inside a batch or past the epoch's end.
    #[error(
        "position {position} is not the border of a global batch of {global_batch} samples in an epoch of {positions} positions"
    )]
    NotAtABatch {
        /// The checkpoint's position.
        position: u64,
        /// Samples in a global batch.
        global_batch: u32,
        /// Positions in an epoch.
        positions: u64,
    },
    /// A policy that the engine doesn't carry out.
    #[error(
        "policy {policy} runs in the simulator only; the engine runs naive, staging, deli, lru, frequency and foreload"
    )]
    SimulatorOnly {
        /// The policy.
        policy: String,
    },
    /// Text that is not a digest.
    #[error("{text:?} is not a digest (32 hexadecimal digits)")]
    MalformedDigest {
        /// What was found.
        text: String,
    },
}

impl Error {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::EpochNotSupplied { .. } => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        }
    }
}
