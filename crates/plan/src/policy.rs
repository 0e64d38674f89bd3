//! The policies, by the names of the papers, and the two questions that tell them apart.
//!
//! A policy is a [`Lookahead`] (how far beyond the consumer to fetch) and a [`Retention`] (what stays after use). The scheduler knows only
//! these two; the names exist so that each paper's experiment can be rerun beside our default. Those that change the order or model another
//! system's loader run in the simulator only, which has no policies of its own.

use serde::{Deserialize, Serialize};

/// What to do ahead of the consumer and what to keep behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Policy {
    /// Reads each sample when it is asked for and keeps nothing (paper 001, Naive).
    Naive,
    /// Double buffering: the next batch is fetched while this one is used (paper 001, StagingBuffer).
    Staging,
    /// Paper 000 (DELI): `fetch` samples at a time whenever `threshold` or fewer are left ahead; a FIFO cache of `cache` samples.
    Deli {
        /// Samples per fetch (the paper's F).
        fetch: u32,
        /// Samples still ahead at which the next fetch is ordered (T; 0: when none is left).
        threshold: u32,
        /// Samples in the FIFO cache (C). The paper's 50/50 rule is F = T = C/2; *full fetch* is F = C, T = 0.
        cache: u64,
    },
    /// Look-ahead with an LRU cache: what most loaders do. Here for comparison; under reshuffling it wastes most of its memory.
    Lru,
    /// Paper 001 (HDMLP/NoPFS): the most frequent samples in the fastest class. With one node every sample is as frequent as any other.
    Frequency,
    /// Coverage first: one copy of every sample while capacity lasts, never evicted; read-ahead by bytes across epochs.
    #[default]
    Foreload,
    /// No I/O at all: the compute time (simulator).
    Perfect,
    /// Paper 001's model of DeepIO, order kept (simulator).
    DeepioOrdered,
    /// DeepIO serving what it has instead of what was drawn (simulator; changes the order).
    DeepioOptimistic,
    /// Each node keeps and reads only its share (simulator; changes the order).
    ParallelStaging,
    /// LBANN's data store, filled during the first epoch (simulator; the data must fit the aggregate RAM).
    LbannDynamic,
    /// LBANN's data store, filled before training (simulator; the data must fit the aggregate RAM).
    LbannPreload,
    /// Locality-aware loading: samples move to the ranks that cache them (simulator; changes the order between ranks).
    LocalityAware,
}

/// How far ahead of the consumer the scheduler fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// Only what is asked for.
    Demand,
    /// So many batches of each rank beyond the one asked for.
    Batches(u64),
    /// `fetch` samples at a time when at most `threshold` are left ahead.
    Chunk {
        /// Samples per fetch.
        fetch: u32,
        /// Samples left ahead that trigger the next.
        threshold: u32,
    },
    /// As far as the staging bytes reach, and beyond them into what is kept.
    Bytes,
}

/// What stays in the tiers after use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Nothing.
    Nothing,
    /// What came first, never evicted.
    Pinned,
    /// The newest, at most so many samples (0: as many as fit).
    Fifo(u64),
    /// The most recently used that fit.
    Lru,
}

impl Policy {
    /// Its look-ahead; simulator-only policies answer as [`Policy::Staging`] does.
    #[must_use]
    pub fn lookahead(self) -> Lookahead {
        match self {
            Policy::Naive => Lookahead::Demand,
            Policy::Deli { fetch, threshold, .. } => Lookahead::Chunk { fetch, threshold },
            // A loader's usual prefetch of a few batches: with more, the plan itself would protect what LRU evicts.
            Policy::Lru => Lookahead::Batches(2),
            Policy::Frequency | Policy::Foreload => Lookahead::Bytes,
            _ => Lookahead::Batches(1),
        }
    }

    /// What it keeps.
    #[must_use]
    pub fn retention(self) -> Retention {
        match self {
            Policy::Deli { cache, .. } => Retention::Fifo(cache),
            Policy::Lru => Retention::Lru,
            Policy::Frequency | Policy::Foreload => Retention::Pinned,
            _ => Retention::Nothing,
        }
    }

    /// Those that the engine carries out and that a name says; with [`Policy::Deli`] go numbers.
    pub const RUN: [Policy; 5] = [
        Policy::Foreload,
        Policy::Naive,
        Policy::Staging,
        Policy::Lru,
        Policy::Frequency,
    ];

    /// Whether the engine carries it out; the others are for the simulator.
    #[must_use]
    pub fn runs_in_engine(self) -> bool {
        matches!(self, Policy::Deli { .. }) || Self::RUN.contains(&self)
    }

    /// Whether each epoch reads every sample of the data set.
    #[must_use]
    pub fn reads_whole_dataset(self) -> bool {
        !matches!(
            self,
            Policy::DeepioOptimistic | Policy::ParallelStaging | Policy::Perfect
        )
    }

    /// Whether every rank reads exactly the samples that the shuffle drew for it.
    #[must_use]
    pub fn keeps_order(self) -> bool {
        !matches!(
            self,
            Policy::DeepioOptimistic | Policy::ParallelStaging | Policy::LocalityAware
        )
    }
}

impl Policy {
    /// The policy's name as it is written in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Naive => "naive",
            Policy::Staging => "staging",
            Policy::Deli { .. } => "deli",
            Policy::Lru => "lru",
            Policy::Frequency => "frequency",
            Policy::Foreload => "foreload",
            Policy::Perfect => "perfect",
            Policy::DeepioOrdered => "deepio-ordered",
            Policy::DeepioOptimistic => "deepio-optimistic",
            Policy::ParallelStaging => "parallel-staging",
            Policy::LbannDynamic => "lbann-dynamic",
            Policy::LbannPreload => "lbann-preload",
            Policy::LocalityAware => "locality-aware",
        }
    }
}
