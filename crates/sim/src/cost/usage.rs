//! What a run used: counted in one way, whether a simulation or a real run counted it.

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
