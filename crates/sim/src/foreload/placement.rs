//! A scenario's cluster as [`foreload_plan::placement`] sees it.

use super::Devices;
use super::blocks::Blocks;
use crate::{Setup, TierKind, TierSpeed};
use foreload_plan::placement::{Exchange, Group, Placement, Where, groups::Cluster};

const MB: f64 = 1_048_576.0;

fn bytes(mb: f64) -> u64 {
    (mb * MB).round() as u64
}

/// Homes and copies on all nodes: one table where nodes exchange samples, else one for each.
pub struct Homes<'a> {
    setup: &'a Setup<'a>,
    /// What is placed.
    pub blocks: Blocks<'a>,
    tables: Vec<Placement>,
}

impl<'a> Homes<'a> {
    /// Nothing is placed.
    pub fn new(setup: &'a Setup<'a>) -> Self {
        let nodes = setup.hardware.nodes;
        let (tables, nodes) = match setup.hardware.exchanges() || nodes == 1 {
            true => (1, nodes),
            false => (nodes, 1),
        };
        let blocks = Blocks::new(setup);
        let table = Placement::new(group(setup, nodes, tables == 1), blocks.count(), blocks.bytes());
        Self {
            setup,
            blocks,
            tables: vec![table; tables as usize],
        }
    }

    /// The table of a node, and its number there.
    fn of(&self, node: u32) -> (usize, u32) {
        match self.tables.len() {
            1 => (0, node),
            _ => (node as usize, 0),
        }
    }

    /// The nodes that `node` exchanges samples with, by one of them.
    pub fn group(&self, node: u32) -> u32 {
        self.of(node).0 as u32
    }

    /// Where `node` finds a sample.
    pub fn find(&self, node: u32, sample: u32, epoch: u32) -> Where {
        let (table, own) = self.of(node);
        self.tables[table].find(own, self.blocks.number(sample), epoch)
    }

    /// Whether `node` finds a sample in memory that it keeps, or will when it asks for it: it needs no staging memory. Where nodes exchange samples,
    /// all pass through it.
    pub fn keeps_in_ram(&self, node: u32, sample: u32, epoch: u32) -> bool {
        let tiers = &self.setup.hardware.tiers;
        let is_ram = |tier: &usize| tiers[*tier].kind == TierKind::Ram;
        !self.setup.hardware.exchanges()
            && match self.find(node, sample, epoch) {
                Where::Own(tier) => is_ram(&tier),
                Where::Coming => true,
                Where::Peer(..) => false,
                Where::Nowhere => {
                    let (table, own) = self.of(node);
                    let room = self.tables[table].room(own);
                    let fits = |tier: &usize| room[*tier] >= self.blocks.block(sample).bytes;
                    (0..tiers.len()).find(fits).is_some_and(|tier| is_ram(&tier))
                }
            }
    }

    /// The home of a sample that `node` is about to read from the source, and the tier there.
    pub fn choose(&mut self, node: u32, sample: u32, epoch: u32, devices: &Devices, at: f64) -> Option<(u32, usize)> {
        let (setup, (table, own)) = (self.setup, self.of(node));
        let reads = || setup.access.reads_after(node, sample, epoch);
        // A node that keeps for itself alone is number 0 of its table.
        let can_write = |home, tier| devices.can_write(node - own + home, tier, at);
        let block = self.blocks.block(sample);
        let found = self.tables[table].choose_home(own, block, epoch, reads, can_write);
        found.map(|(home, tier)| (node - own + home, tier))
    }

    /// `node`, its home, has a sample now.
    pub fn present(&mut self, node: u32, sample: u32) {
        let (table, _) = self.of(node);
        self.tables[table].present(self.blocks.number(sample));
    }

    /// `node` got a sample whose home is elsewhere, and may keep a copy.
    pub fn consider_copy(&mut self, node: u32, sample: u32, epoch: u32) {
        let (setup, (table, own)) = (self.setup, self.of(node));
        let (reads, block) = (
            || setup.access.reads_after(node, sample, epoch),
            self.blocks.block(sample),
        );
        // Of a shared block it got a part.
        if !block.shared {
            self.tables[table].consider_copy(own, block, epoch, reads);
        }
    }

    /// Whether `node` keeps a copy besides the home's.
    pub fn has_copy(&self, node: u32, sample: u32) -> bool {
        let (table, own) = self.of(node);
        self.tables[table].has_copy(own, self.blocks.number(sample))
    }

    /// Blocks that any node keeps, and all their copies.
    pub fn coverage(&self) -> (u64, u64) {
        let all = self.tables.iter().map(|table| table.coverage().1).sum();
        if let [table] = &self.tables[..] {
            return (table.coverage().0, all);
        }
        let kept = |block: &u32| self.tables.iter().any(|t| t.find(0, *block, 0) != Where::Nowhere);
        ((0..self.blocks.count()).filter(kept).count() as u64, all)
    }
}

fn group(setup: &Setup<'_>, nodes: u32, reads_all: bool) -> Group {
    let hardware = setup.hardware;
    // The fastest tier: copies elsewhere wouldn't be faster than the network.
    let copies = hardware.tiers.iter().position(|t| t.kind == TierKind::Ram);
    let of_ram = super::staging::memory(setup).1 / setup.scenario.node_ram_mb();
    let room = |tier: &TierSpeed| match tier.kind {
        TierKind::Ram => bytes(tier.capacity_mb * of_ram),
        _ => bytes(tier.capacity_mb),
    };
    let faster = |from: f64| copies.is_some_and(|to| hardware.tiers[to].read_mb_s > hardware.network_mb_s.min(from));
    Group {
        nodes,
        tiers: hardware.tiers.iter().map(room).collect(),
        copies,
        copy_pays: hardware.tiers.iter().map(|t| faster(t.read_mb_s)).collect(),
        exchange: match nodes > 1 && hardware.network_mb_s < setup.curve.share(nodes) {
            true => Exchange::Poor,
            false => Exchange::Good,
        },
        epochs: setup.access.epochs(),
        reads_all,
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
    fn a_cell_of_a_shard_is_read_once_for_all_nodes() {
        let path = std::env::temp_dir().join(format!("foreload-cells-{}", std::process::id()));
        // Four cells of 4 MiB, of 40 samples each.
        let lines: Vec<String> = (0..160).map(|k| format!("0.1 0 {}\n", (k << 20) / 10)).collect();
        std::fs::write(&path, lines.concat()).expect("writable");
        let index = format!("dataset.sizes_file={}", path.display());
        let set = [&index, "tier.ram.capacity_mb=30", "tier.disk.capacity_mb=0"];
        let scenario = Scenario::parse(SMALL, &set).expect("valid");
        let outcome = run(&scenario, &[Policy::Foreload]).expect("runs").results.remove(0);
        std::fs::remove_file(&path).expect("removable");
        assert_eq!((outcome.requests, outcome.coverage, outcome.copies), (4, 1.0, 1.0));
        assert!((outcome.mb_by_source.source - 16.0).abs() < 0.01, "{outcome:?}");
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
