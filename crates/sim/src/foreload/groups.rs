//! How many nodes should share a cache: the size of the groups that the tool proposes.
//!
//! A group reads each sample from the source once, and what its nodes can't hold together again in every later epoch. Small groups need few
//! connections and keep traffic near; but each group reads the data set for itself, so the source gives it as often as there are groups.
//! Proposed is the smallest group with which the source keeps up: in every epoch it delivers what all groups read in no more time
//! than the epoch took in this run, where the whole cluster was one group. So the run is held up by what held it up before, never by
//! the groups. Where no smaller group will do, it is the whole cluster.

use crate::Setup;

/// A size for cache groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    /// In each, at most; the nodes are dealt out evenly.
    pub nodes: u32,
    /// What the source gives all of them in the whole run.
    pub source_mb: f64,
}

/// What decides.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    nodes: u32,
    node_mb: f64,
    total_mb: f64,
    source_mb_s: f64,
    /// Seconds of the first epoch, and of the shortest one after it.
    first_s: f64,
    later_s: f64,
    later_epochs: u32,
}

/// Proposes a size for a run whose epochs ended at `epoch_ends`, with the whole cluster as one group.
pub fn propose(setup: &Setup<'_>, epoch_ends: &[f64]) -> Groups {
    let nodes = setup.hardware.nodes;
    let lengths = epoch_ends.windows(2).map(|ends| ends[1] - ends[0]);
    let cluster = Cluster {
        nodes,
        node_mb: setup.scenario.node_capacity_mb(),
        total_mb: setup.sizes.total_mb,
        source_mb_s: setup.curve.total(nodes).min(f64::from(nodes) * requests_mb_s(setup)),
        first_s: epoch_ends.first().copied().unwrap_or(0.0),
        later_s: lengths.fold(f64::INFINITY, f64::min),
        later_epochs: setup.access.epochs().saturating_sub(1),
    };
    let size = (1..nodes).find(|size| cluster.keeps_up(*size)).unwrap_or(nodes);
    Groups {
        nodes: size,
        source_mb: cluster.first_mb(size) + f64::from(cluster.later_epochs) * cluster.later_mb(size),
    }
}

/// What the requests of one node bring in: each takes its latency, and then its connection's time.
fn requests_mb_s(setup: &Setup<'_>) -> f64 {
    let (hardware, mb) = (setup.hardware, setup.sizes.mean_mb());
    f64::from(hardware.requests_in_flight) * mb / (hardware.latency_s + mb / hardware.connection_mb_s)
}

impl Cluster {
    fn keeps_up(&self, size: u32) -> bool {
        self.first_mb(size) <= self.source_mb_s * self.first_s
            && (self.later_epochs == 0 || self.later_mb(size) <= self.source_mb_s * self.later_s)
    }

    /// What all groups read in the first epoch: each all of it.
    fn first_mb(&self, size: u32) -> f64 {
        f64::from(self.nodes.div_ceil(size)) * self.total_mb
    }

    /// What they read in each later epoch: each what it doesn't hold.
    fn later_mb(&self, size: u32) -> f64 {
        let groups = self.nodes.div_ceil(size);
        let (least, larger) = (self.nodes / groups, self.nodes % groups);
        let lacks = |nodes: u32| (self.total_mb - f64::from(nodes) * self.node_mb).max(0.0);
        f64::from(larger) * lacks(least + 1) + f64::from(groups - larger) * lacks(least)
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::tests::SMALL;
    use crate::{Fabric, Policy, Scenario, run};

    /// 1,000 samples of 1 MB on eight nodes, which hold 500 MB each; 25 s of computing in each of three epochs.
    fn fabric(set: &[&str]) -> Fabric {
        let always = [
            "dataset.mean_mb=1",
            "dataset.std_mb=0",
            "cluster.nodes=8",
            "cluster.compute_mb_s=5",
            "tier.ram.capacity_mb=500",
            "tier.disk.capacity_mb=0",
        ];
        let scenario = Scenario::parse(SMALL, &[&always[..], set].concat()).expect("valid");
        let outcome = run(&scenario, &[Policy::Foreload]).expect("runs").results.remove(0);
        outcome.fabric.expect("several nodes")
    }

    fn proposed(set: &[&str]) -> (u32, f64) {
        let fabric = fabric(set);
        (fabric.cache_group_nodes, fabric.cache_group_source_mb.round())
    }

    #[test]
    fn a_group_is_as_small_as_the_source_can_feed() {
        // 1,000 MB in every 25 s are what one group needs in the first epoch; groups of two hold everything.
        for (mb_s, size, source_mb) in [
            ("30", 8, 1000.0),
            ("85", 4, 2000.0),
            ("165", 2, 4000.0),
            // Each node for itself reads half of it again in two epochs.
            ("1000", 1, 16_000.0),
        ] {
            let throughput = format!("source.throughput_mb_s={mb_s}");
            assert_eq!(proposed(&[&throughput]), (size, source_mb), "{mb_s} MB/s");
        }
    }

    #[test]
    fn what_a_group_lacks_it_reads_in_every_epoch() {
        let tight = ["tier.ram.capacity_mb=100", "source.throughput_mb_s=85"];
        // Two groups of four lack 600 MB each: 1,200 MB in 25 s.
        assert_eq!(proposed(&tight), (4, 2000.0 + 2.0 * 1200.0));
        // And one of eight 200 MB.
        assert_eq!(
            proposed(&[tight[0], "source.throughput_mb_s=41"]),
            (8, 1000.0 + 2.0 * 200.0)
        );
    }

    #[test]
    fn a_source_that_its_requests_hold_back_feeds_fewer_groups() {
        let set = [
            "source.throughput_mb_s=1000",
            "source.requests_in_flight=1",
            "source.latency_s=0.09",
            "source.connection_mb_s=100",
        ];
        // 8 x 10 MB/s.
        assert_eq!(proposed(&set).0, 4);
    }

    #[test]
    fn where_the_source_is_what_limits_the_whole_cluster_shares_one_copy() {
        assert_eq!(proposed(&["source.throughput_mb_s=10"]), (8, 1000.0));
    }

    #[test]
    fn what_waits_for_a_nodes_network_is_seen_at_both_ends() {
        let slow = fabric(&[
            "cluster.network_mb_s=40",
            "source.throughput_mb_s=30",
            "tier.staging.capacity_mb=200",
        ]);
        let fast = fabric(&["source.throughput_mb_s=30", "tier.staging.capacity_mb=200"]);
        assert!(slow.peer_mb > 0.0, "{slow:?}");
        // A request of 1 MB at least finds another one before it.
        assert!(slow.most_received_queue_s >= 1.0 / 40.0, "{slow:?}");
        assert!(slow.most_queued_s >= 1.0 / 40.0, "{slow:?}");
        assert!(
            fast.most_received_queue_s < 0.1 * slow.most_received_queue_s,
            "{fast:?} {slow:?}"
        );
    }
}
