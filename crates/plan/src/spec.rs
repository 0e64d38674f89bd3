//! What fixes an order: the data set, the kind, the seed, the global batch and the rule for the tail.
//!
//! An [`OrderSpec`] is a value. Two runs with equal specs read the same samples in the same global batches, whatever the
//! number of ranks, nodes or workers, which is why none of those is in it. Its [`digest`](OrderSpec::digest) names it in
//! checkpoints and in the ranks' handshake; the digest also covers the version of the algorithm, so an order never changes silently.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, DigestBuilder};
use crate::error::Error;

/// How an epoch's positions are assigned to samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OrderKind {
    /// A keyed bijection, computed per position and never stored: the default. Version `keyed/1`.
    Keyed,
    /// What torch's `DistributedSampler(shuffle=True, seed)` does: `randperm` of a CPU generator seeded with seed + epoch. The
    /// padding is said by the [`Tail`] (see [`Tail::torch`]). 4 bytes per sample.
    TorchDistributed,
    /// What torch's `RandomSampler` does with one generator that is seeded once and drawn from in every epoch. 4 bytes per
    /// sample; the draws before an epoch are jumped over, so that any epoch is reached at once.
    TorchRandom {
        /// What else draws from the same generator.
        draws: TorchDraws,
    },
    /// Sample p at position p, in every epoch. Ranks that split it read the *skipping* pattern of memory-mapped training: each reads one sample
    /// and skips those of the others.
    Sequential,
    /// Each of `parts` ranks reads its own contiguous range: with that many ranks, rank r gets samples `r*F/parts` onwards, one after the other.
    Contiguous {
        /// Ranges, normally the number of data ranks.
        parts: u32,
    },
    /// Samples 0, s, 2s, ..., then 1, s+1, ...: one reader that skips s-1 samples after each.
    Strided {
        /// Distance between consecutive reads, in samples.
        stride: u64,
    },
    /// This list, in every epoch. Samples may be missing or repeated.
    Explicit {
        /// Samples by position.
        #[serde(with = "shared_list")]
        list: Arc<[u64]>,
    },
    /// A list per epoch, supplied as it becomes known with [`Order::supply`](crate::order::Order::supply). Samples may be missing or repeated.
    Supplied {
        /// Entries in every list.
        length: u64,
    },
    /// Several streams, one after the other in the samples' numbers, read in proportion to their weights. Of the first p positions of the run each
    /// stream has its share of p, rounded down or up; each goes through its own samples, pass after pass, across the epochs' borders.
    Mixture {
        /// The streams.
        streams: Vec<Share>,
        /// Whether each pass over a stream has an order of its own, or all that of its samples' numbers.
        shuffle: bool,
        /// Entries of an epoch.
        length: u64,
    },
}

impl OrderKind {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Keyed => "keyed",
            Self::TorchDistributed => "torch-distributed",
            Self::TorchRandom { .. } => "torch-random",
            Self::Sequential => "sequential",
            Self::Contiguous { .. } => "contiguous",
            Self::Strided { .. } => "strided",
            Self::Explicit { .. } => "explicit",
            Self::Supplied { .. } => "supplied",
            Self::Mixture { .. } => "mixture",
        }
    }
}

/// A stream of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its samples.
    pub samples: u64,
    /// Its reads in as many positions as the weights of all streams add up to.
    pub weight: u64,
}

/// What draws from the generator of a [`OrderKind::TorchRandom`] order besides the permutations.
///
/// In an epoch that runs to its end, `RandomSampler` draws two permutations: the one it yields, and one more of which it yields
/// nothing. The loader itself draws one 64-bit number each time it makes an iterator, before the sampler's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TorchDraws {
    /// `DataLoader(shuffle=True, generator=g)`: loader and sampler share `g`, a base seed is drawn in every epoch.
    LoaderEachEpoch,
    /// The same with `persistent_workers=True`: one iterator for the run, so one base seed.
    LoaderOnce,
    /// `DataLoader(sampler=RandomSampler(ds, generator=g))`: only the sampler draws.
    SamplerOnly,
}

/// What happens at the end of an epoch whose samples don't fill its last global batch.
///
/// No rule depends on the number of ranks at run time. A `multiple` must divide the global batch; to start or resume on R ranks
/// that share equally, R must divide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Tail {
    /// Full global batches only; the rest of the samples are not read in this epoch.
    Drop,
    /// Rounded up to a multiple, repeating the epoch from its start as `DistributedSampler` does; the last batch may be
    /// short. With `multiple` = global batch every batch is full and any number of ranks that divides it can resume.
    Pad {
        /// What the number of positions is a multiple of.
        multiple: u32,
    },
    /// Rounded up to a multiple as `Pad` does, then full global batches only.
    PadThenDrop {
        /// What the number of positions is a multiple of before dropping.
        multiple: u32,
    },
    /// Rounded down to a multiple; the last batch may be short.
    Trim {
        /// What the number of positions is a multiple of.
        multiple: u32,
    },
    /// Each sample exactly once, for validation: the last batch may be short and any number of ranks shares it, with
    /// loss weights ([`Split::weight`](crate::split::Split::weight)).
    Uneven,
}

impl Tail {
    /// The rule that torch follows with `DistributedSampler(num_replicas, drop_last=sampler_drops)` (one replica: no
    /// distributed sampler) under a `DataLoader(drop_last=loader_drops)`.
    pub fn torch(replicas: u32, sampler_drops: bool, loader_drops: bool) -> Self {
        match (replicas, sampler_drops, loader_drops) {
            (1, _, true) | (_, true, true) => Self::Drop,
            (1, _, false) => Self::Pad { multiple: 1 },
            (_, true, false) => Self::Trim { multiple: replicas },
            (_, false, false) => Self::Pad { multiple: replicas },
            (_, false, true) => Self::PadThenDrop { multiple: replicas },
        }
    }

    /// Positions of an epoch that has `entries` before the rule is applied.
    pub fn positions(self, entries: u64, global_batch: u32) -> u64 {
        let down = |count: u64, unit: u32| count - count % u64::from(unit);
        let up = |count: u64, unit: u32| count.next_multiple_of(u64::from(unit));
        match self {
            Self::Drop => down(entries, global_batch),
            Self::Pad { multiple } => up(entries, multiple),
            Self::PadThenDrop { multiple } => down(up(entries, multiple), global_batch),
            Self::Trim { multiple } => down(entries, multiple),
            Self::Uneven => entries,
        }
    }

    fn multiple(self) -> Option<u32> {
        match self {
            Self::Pad { multiple } | Self::PadThenDrop { multiple } | Self::Trim { multiple } => Some(multiple),
            Self::Drop | Self::Uneven => None,
        }
    }
}

/// Everything that fixes which sample is read at which position of which epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderSpec {
    /// Names the data set: its index' digest.
    pub dataset: Digest,
    /// Samples in the data set.
    pub samples: u64,
    /// How positions are assigned to samples.
    pub kind: OrderKind,
    /// The seed. Torch's CPU generator, hence its kinds, uses the low 32 bits only.
    pub seed: u64,
    /// Samples in a global batch, over all data ranks.
    pub global_batch: u32,
    /// What happens to the samples that don't fill the last global batch.
    pub tail: Tail,
}

/// 2^48: a petabyte of four-byte samples, and far enough from 2^64 that no sum of positions overflows.
const MAX_SAMPLES: u64 = 1 << 48;

/// What a mixture's weights may add up to: shares of thousandths leave room, and what is kept for each unit of weight stays below a megabyte.
const MAX_WEIGHT: u64 = 1 << 16;

impl OrderSpec {
    /// Names everything in the spec, and the version of the algorithm.
    pub fn digest(&self) -> Digest {
        let builder = DigestBuilder::new("order/1").digest(&self.dataset).number(self.samples);
        let builder = match &self.kind {
            OrderKind::Keyed => builder.text("keyed/1"),
            OrderKind::TorchDistributed => builder.text("torch-distributed/1"),
            OrderKind::TorchRandom { draws } => builder.text(match draws {
                TorchDraws::LoaderEachEpoch => "torch-random-loader/1",
                TorchDraws::LoaderOnce => "torch-random-loader-once/1",
                TorchDraws::SamplerOnly => "torch-random-sampler/1",
            }),
            OrderKind::Sequential => builder.text("sequential/1"),
            OrderKind::Contiguous { parts } => builder.text("contiguous/1").number(u64::from(*parts)),
            OrderKind::Strided { stride } => builder.text("strided/1").number(*stride),
            OrderKind::Explicit { list } => builder.text("explicit/1").numbers(list),
            OrderKind::Supplied { length } => builder.text("supplied/1").number(*length),
            OrderKind::Mixture {
                streams,
                shuffle,
                length,
            } => {
                let all = |of: fn(&Share) -> u64| streams.iter().map(of).collect::<Vec<_>>();
                builder
                    .text("mixture/1")
                    .numbers(&all(|share| share.samples))
                    .numbers(&all(|share| share.weight))
                    .number(u64::from(*shuffle))
                    .number(*length)
            }
        };
        let (tail, multiple) = match self.tail {
            Tail::Drop => ("drop", 0),
            Tail::Pad { multiple } => ("pad", multiple),
            Tail::PadThenDrop { multiple } => ("pad-then-drop", multiple),
            Tail::Trim { multiple } => ("trim", multiple),
            Tail::Uneven => ("uneven", 0),
        };
        let builder = builder.number(self.seed).number(u64::from(self.global_batch));
        builder.text(tail).number(u64::from(multiple)).finish()
    }

    /// Entries of an epoch before the tail rule: the samples, the list's length, or the mixture's.
    pub fn entries(&self) -> u64 {
        match &self.kind {
            OrderKind::Explicit { list } => list.len() as u64,
            OrderKind::Supplied { length } | OrderKind::Mixture { length, .. } => *length,
            _ => self.samples,
        }
    }

    /// Positions of an epoch, after the tail rule.
    pub fn positions(&self) -> u64 {
        self.tail.positions(self.entries(), self.global_batch)
    }

    /// Checks the spec.
    ///
    /// # Errors
    /// The first thing that doesn't fit, as [`Error`] names it.
    pub fn check(&self) -> Result<(), Error> {
        let nonzero = |value: u64, what| if value == 0 { Err(Error::Zero { what }) } else { Ok(()) };
        if self.samples == 0 || self.entries() == 0 {
            return Err(Error::NoSamples);
        }
        nonzero(u64::from(self.global_batch), "global_batch")?;
        let (limit, kind) = match &self.kind {
            OrderKind::TorchDistributed | OrderKind::TorchRandom { .. } => (u64::from(u32::MAX), "torch"),
            OrderKind::Contiguous { parts } => {
                nonzero(u64::from(*parts), "parts")?;
                (MAX_SAMPLES, "contiguous")
            }
            OrderKind::Strided { stride } => {
                nonzero(*stride, "stride")?;
                (MAX_SAMPLES, "strided")
            }
            OrderKind::Keyed => (MAX_SAMPLES, "keyed"),
            OrderKind::Sequential => (MAX_SAMPLES, "sequential"),
            OrderKind::Explicit { .. } | OrderKind::Supplied { .. } => (MAX_SAMPLES, "explicit"),
            OrderKind::Mixture { streams, .. } => {
                self.check_streams(streams)?;
                (MAX_SAMPLES, "mixture")
            }
        };
        if self.samples.max(self.entries()) > limit {
            return Err(Error::TooManySamples {
                samples: self.samples.max(self.entries()),
                limit,
                kind,
            });
        }
        self.check_tail()
    }

    fn check_streams(&self, streams: &[Share]) -> Result<(), Error> {
        if streams.iter().any(|share| share.samples == 0) {
            return Err(Error::NoSamples);
        }
        if streams.iter().any(|share| share.weight == 0) {
            return Err(Error::Zero { what: "weight" });
        }
        let sum = |of: fn(&Share) -> u64| streams.iter().map(of).fold(0, u64::saturating_add);
        let (samples, total) = (sum(|share| share.samples), sum(|share| share.weight));
        if samples != self.samples {
            return Err(Error::StreamsDiffer {
                found: samples,
                samples: self.samples,
            });
        }
        if total > MAX_WEIGHT {
            return Err(Error::Weights {
                total,
                limit: MAX_WEIGHT,
            });
        }
        Ok(())
    }

    fn check_tail(&self) -> Result<(), Error> {
        let global_batch = self.global_batch;
        if let Some(multiple) = self.tail.multiple() {
            if multiple == 0 {
                return Err(Error::Zero { what: "tail multiple" });
            }
            if !global_batch.is_multiple_of(multiple) {
                return Err(Error::TailMultiple { multiple, global_batch });
            }
        }
        if self.positions() == 0 {
            let unit = if let Tail::Trim { multiple } = self.tail {
                multiple
            } else {
                global_batch
            };
            return Err(Error::EmptyEpoch {
                samples: self.entries(),
                unit: u64::from(unit),
            });
        }
        Ok(())
    }
}

/// A shared list is written as a plain one.
pub(crate) mod shared_list {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(list: &Arc<[u64]>, serializer: S) -> Result<S::Ok, S::Error> {
        list.as_ref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u64]>, D::Error> {
        Vec::<u64>::deserialize(deserializer).map(Arc::from)
    }
}
