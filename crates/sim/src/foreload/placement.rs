//! A scenario's cluster as [`foreload_plan::placement`] sees it.

use crate::{Setup, TierKind};
use foreload_plan::placement::{Block, Exchange, Group, Placement, groups::Cluster};

const MB: f64 = 1_048_576.0;

fn bytes(mb: f64) -> u64 {
    (mb * MB).round() as u64
}

/// The table of a cluster that exchanges samples; nothing is placed.
pub fn placement(setup: &Setup<'_>) -> Placement {
    let hardware = setup.hardware;
    let nodes = hardware.nodes;
    // The fastest tier: copies elsewhere wouldn't be faster than the network.
    let copies = hardware.tiers.iter().position(|t| t.kind == TierKind::Ram);
    let faster = |from: f64| copies.is_some_and(|to| hardware.tiers[to].read_mb_s > hardware.network_mb_s.min(from));
    let group = Group {
        nodes,
        tiers: hardware.tiers.iter().map(|t| bytes(t.capacity_mb)).collect(),
        copies,
        copy_pays: hardware.tiers.iter().map(|t| faster(t.read_mb_s)).collect(),
        exchange: match nodes > 1 && hardware.network_mb_s < setup.curve.share(nodes) {
            true => Exchange::Poor,
            false => Exchange::Good,
        },
        epochs: setup.access.epochs(),
        reads_all: true,
    };
    Placement::new(group, setup.sizes.samples(), bytes(setup.sizes.total_mb))
}

/// A sample that is an object.
pub fn block(setup: &Setup<'_>, sample: u32) -> Block {
    Block {
        number: sample,
        bytes: bytes(setup.sizes.of(sample)),
        shared: false,
    }
}

/// What decides how large cache groups should be, for a run whose epochs ended at `epoch_ends`, with the whole cluster as one group.
pub fn cluster(setup: &Setup<'_>, epoch_ends: &[f64]) -> Cluster {
    let nodes = setup.hardware.nodes;
    let lengths = epoch_ends.windows(2).map(|ends| ends[1] - ends[0]);
    Cluster {
        nodes,
        node: setup.scenario.node_capacity_mb(),
        total: setup.sizes.total_mb,
        source_per_s: setup.curve.total(nodes).min(f64::from(nodes) * requests_mb_s(setup)),
        first_s: epoch_ends.first().copied().unwrap_or(0.0),
        later_s: lengths.fold(f64::INFINITY, f64::min),
        later_epochs: setup.access.epochs().saturating_sub(1),
    }
}

/// What the requests of one node bring in: each takes its latency, and then its connection's time.
fn requests_mb_s(setup: &Setup<'_>) -> f64 {
    let (hardware, mb) = (setup.hardware, setup.sizes.mean_mb());
    f64::from(hardware.requests_in_flight) * mb / (hardware.latency_s + mb / hardware.connection_mb_s)
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
