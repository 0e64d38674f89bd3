//! What a run used, counted the same way by the engine's metrics and by the simulator.

use serde::{Deserialize, Serialize};

/// Counts of one run. Everything is a total over all nodes and the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Machines.
    pub nodes: u64,
    /// Wall-clock hours.
    pub hours: f64,
    /// Class A requests: list, put.
    pub class_a_requests: u64,
    /// Class B requests: get, head.
    pub class_b_requests: u64,
    /// Bytes read from the bucket.
    pub source_bytes: u64,
    /// Of them, bytes that left the bucket's region or provider, which are charged as egress.
    pub egress_bytes: u64,
    /// Bytes between nodes that crossed a charged border (zones); traffic inside a zone is free.
    pub cross_zone_bytes: u64,
    /// The data set's size in the bucket.
    pub bucket_bytes: u64,
    /// Disk provisioned per node for caches and system.
    pub disk_bytes_per_node: u64,
}

/// How often the bucket's listing is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListingRule {
    /// The index is built once and shared: one listing per job.
    OncePerJob,
    /// Each node lists once.
    OncePerNode,
    /// Each node lists in every epoch.
    EveryEpoch,
}

/// How samples lie in objects, which decides how many requests a run makes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectLayout {
    /// Samples in the data set.
    pub samples: u64,
    /// Samples per object that are fetched by one request (1: an object each; more: super-samples).
    pub samples_per_request: u64,
    /// Objects per page of a listing.
    pub page_size: u64,
    /// How often it is listed.
    pub listing: ListingRule,
}

impl ObjectLayout {
    /// List requests of a run on `nodes` nodes over `epochs`.
    #[must_use]
    pub fn list_requests(&self, nodes: u64, epochs: u64) -> u64 {
        let objects = self.samples.div_ceil(self.samples_per_request.max(1));
        let pages = objects.div_ceil(self.page_size.max(1));
        match self.listing {
            ListingRule::OncePerJob => pages,
            ListingRule::OncePerNode => pages * nodes,
            ListingRule::EveryEpoch => pages * nodes * epochs,
        }
    }

    /// Get requests for `sample_reads` samples read from the source.
    ///
    /// A partly used super-sample costs a whole request, so this is the count for reads that use all of one.
    #[must_use]
    pub fn get_requests(&self, sample_reads: u64) -> u64 {
        sample_reads.div_ceil(self.samples_per_request.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_once_per_job_does_not_grow_with_nodes_or_epochs() {
        let layout = ObjectLayout {
            samples: 10_500,
            samples_per_request: 1,
            page_size: 1000,
            listing: ListingRule::OncePerJob,
        };
        assert_eq!(layout.list_requests(64, 90), 11);
        assert_eq!(
            ObjectLayout {
                listing: ListingRule::OncePerNode,
                ..layout
            }
            .list_requests(64, 90),
            11 * 64
        );
        assert_eq!(
            ObjectLayout {
                listing: ListingRule::EveryEpoch,
                ..layout
            }
            .list_requests(64, 90),
            11 * 64 * 90
        );
    }

    #[test]
    fn super_samples_divide_requests() {
        let layout = ObjectLayout {
            samples: 1000,
            samples_per_request: 64,
            page_size: 1000,
            listing: ListingRule::OncePerJob,
        };
        assert_eq!((layout.get_requests(1000), layout.list_requests(1, 1)), (16, 1));
    }
}
