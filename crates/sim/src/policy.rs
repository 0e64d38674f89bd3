//! The policies that can be simulated, and what each one promises.

use crate::Error;
use foreload_plan::policy::Policy as Planned;
use serde::{Deserialize, Serialize};

/// A way to get samples to their consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Policy {
    /// No stall ever: compute time alone. Not realistic; paper 001's lower bound.
    Perfect,
    /// Read, preprocess, compute, one after the other; no prefetching, no cache.
    Naive,
    /// Prefetch from the source into the staging buffer, drop after use (double buffering, `tf.data`).
    Staging,
    /// DeepIO, keeping the order: a RAM partition per node, the rest from the source.
    DeepioOrdered,
    /// DeepIO, taking cached samples in place of uncached ones once RAM is full.
    DeepioOptimistic,
    /// Each node copies its shard to local tiers first and reads only that.
    ParallelStaging,
    /// The LBANN data store, filled during the first epoch; RAM only.
    LbannDynamic,
    /// The LBANN data store, filled before the first epoch; RAM only.
    LbannPreload,
    /// Yang & Cong: each sample of a global batch goes to a node that caches it, balanced.
    LocalityAware,
    /// Paper 001's own: each node keeps the samples that it reads most often, prefetched in order of first access.
    Frequency,
    /// Paper 000's: a prefetch service per node with fetch size, threshold and FIFO cache.
    Deli,
    /// Ours: one copy of each sample in the cluster while capacity lasts, kept by the node that reads it first; then copies of
    /// what a node reads most often; read-ahead by bytes across epoch borders.
    Foreload,
}

impl Policy {
    /// All, in the order of the papers.
    pub const ALL: [Self; 12] = [
        Self::Perfect,
        Self::Naive,
        Self::Staging,
        Self::DeepioOrdered,
        Self::DeepioOptimistic,
        Self::ParallelStaging,
        Self::LbannDynamic,
        Self::LbannPreload,
        Self::LocalityAware,
        Self::Frequency,
        Self::Deli,
        Self::Foreload,
    ];

    /// The name in scenario files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Perfect => "perfect",
            Self::Naive => "naive",
            Self::Staging => "staging",
            Self::DeepioOrdered => "deepio-ordered",
            Self::DeepioOptimistic => "deepio-optimistic",
            Self::ParallelStaging => "parallel-staging",
            Self::LbannDynamic => "lbann-dynamic",
            Self::LbannPreload => "lbann-preload",
            Self::LocalityAware => "locality-aware",
            Self::Frequency => "frequency",
            Self::Deli => "deli",
            Self::Foreload => "foreload",
        }
    }

    /// The policy of that name.
    ///
    /// # Errors
    /// When there is none; the message names the closest.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| Error::UnknownPolicy { name: name.to_owned() })
    }

    /// The same policy in `plan`, which says what each one promises.
    fn planned(self) -> Planned {
        match self {
            Self::Perfect => Planned::Perfect,
            Self::Naive => Planned::Naive,
            Self::Staging => Planned::Staging,
            Self::DeepioOrdered => Planned::DeepioOrdered,
            Self::DeepioOptimistic => Planned::DeepioOptimistic,
            Self::ParallelStaging => Planned::ParallelStaging,
            Self::LbannDynamic => Planned::LbannDynamic,
            Self::LbannPreload => Planned::LbannPreload,
            Self::LocalityAware => Planned::LocalityAware,
            Self::Frequency => Planned::Frequency,
            Self::Deli => Planned::Deli {
                fetch: 1,
                threshold: 0,
                cache: 1,
            },
            Self::Foreload => Planned::Foreload,
        }
    }

    /// Whether every sample is read in every epoch.
    #[must_use]
    pub fn reads_whole_dataset(self) -> bool {
        self.planned().reads_whole_dataset()
    }

    /// Whether every rank reads the samples that the order gives it, in that order.
    #[must_use]
    pub fn keeps_order(self) -> bool {
        self.planned().keeps_order()
    }

    /// Whether the engine can run it on real hardware.
    #[must_use]
    pub fn runs_in_engine(self) -> bool {
        self.planned().runs_in_engine()
    }

    /// Whether the lower bound of a scenario holds for it: it reads everything, in order. (`perfect` reads nothing.)
    #[must_use]
    pub fn obeys_bound(self) -> bool {
        self.reads_whole_dataset() && self.keeps_order()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways_and_misspellings_get_a_suggestion() {
        for policy in Policy::ALL {
            assert_eq!(Policy::from_name(policy.name()).expect("known"), policy);
        }
        let message = Policy::from_name("frequencies").expect_err("unknown").to_string();
        assert!(
            message.starts_with(r#"policy: "frequencies" is not one of perfect, naive, "#)
                && message.ends_with(r#"did you mean "frequency"?"#),
            "{message}"
        );
    }
}
