//! Where samples live: what each node keeps, and what it asks others for.
//!
//! A node keeps what it reads as long as its tiers have room, fastest first. Where nodes exchange samples it keeps the blocks whose home it is, and homes are the
//! engine's ([`foreload_plan::homes`]): what is another node's is asked for there, and what has no home passes through.

use super::Devices;
use super::blocks::Blocks;
use crate::{Error, Setup, TierKind, TierSpeed};
use foreload_plan::arena::reserved_bytes;
use foreload_plan::homes::{self, Member};
use foreload_plan::placement::groups::Cluster;
use foreload_plan::scheduler::record_bytes;
use std::cell::RefCell;

const MB: f64 = 1_048_576.0;
/// Nothing is known of a block, or no tier had room for it.
const ABSENT: u8 = 0x7f;
/// It is there, and not on its way.
const PRESENT: u8 = 0x80;

/// Where a node finds a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In its own tier.
    Own(usize),
    /// On its way to there.
    Coming,
    /// In the source; it is the node's to keep, if a tier has room.
    Absent,
    /// At its home, which is another node.
    Peer(u32),
    /// In the source; nobody keeps it.
    Nowhere,
}

/// What all nodes keep: one table where each block has one home, else one for each node.
pub struct Homes<'a> {
    setup: &'a Setup<'a>,
    /// What is kept.
    pub blocks: Blocks<'a>,
    homes: Option<homes::Homes>,
    tables: Vec<Vec<u8>>,
    /// Bytes by node and tier.
    free: Vec<u64>,
}

impl<'a> Homes<'a> {
    /// Nothing is kept yet.
    ///
    /// # Errors
    /// When the run was ended.
    pub fn new(setup: &'a Setup<'a>) -> Result<Self, Error> {
        let nodes = setup.hardware.nodes as usize;
        let blocks = Blocks::new(setup);
        let homes = setup
            .hardware
            .exchanges()
            .then(|| homes_of(setup, &blocks))
            .transpose()?;
        let tables = if homes.is_some() { 1 } else { nodes };
        // Staging takes from memory what it needs for its batches.
        let of_ram = super::staging::memory(setup).1 / setup.scenario.node_ram_mb();
        let room = |tier: &TierSpeed| match tier.kind {
            TierKind::Ram => bytes(tier.capacity_mb * of_ram),
            _ => bytes(tier.capacity_mb),
        };
        let free: Vec<u64> = setup.hardware.tiers.iter().map(room).collect();
        Ok(Self {
            setup,
            tables: vec![vec![ABSENT; blocks.count() as usize]; tables],
            free: free.repeat(nodes),
            blocks,
            homes,
        })
    }

    fn state(&self, node: u32, block: u32) -> u8 {
        self.tables[if self.homes.is_some() { 0 } else { node as usize }][block as usize]
    }

    fn state_mut(&mut self, node: u32, block: u32) -> &mut u8 {
        &mut self.tables[if self.homes.is_some() { 0 } else { node as usize }][block as usize]
    }

    /// Where `node` finds a sample.
    pub fn find(&self, node: u32, sample: u32) -> Where {
        let block = self.blocks.number(sample);
        if let Some(homes) = &self.homes {
            match homes.of(u64::from(block)) {
                None => return Where::Nowhere,
                Some(home) if home != node as usize => return Where::Peer(home as u32),
                Some(_) => {}
            }
        }
        match self.state(node, block) {
            ABSENT => Where::Absent,
            tier if tier & PRESENT == 0 => Where::Coming,
            tier => Where::Own(usize::from(tier & !PRESENT)),
        }
    }

    /// Whether `node` finds a sample in memory that it keeps, or will when it asks for it: it needs no staging memory.
    pub fn keeps_in_ram(&self, node: u32, sample: u32) -> bool {
        let is_ram = |tier: usize| self.setup.hardware.tiers[tier].kind == TierKind::Ram;
        match self.find(node, sample) {
            Where::Own(tier) => is_ram(tier),
            Where::Coming => true,
            Where::Absent => self
                .fitting(node, self.blocks.number(sample))
                .next()
                .is_some_and(is_ram),
            Where::Peer(_) | Where::Nowhere => false,
        }
    }

    /// The tiers of `node` that have room for a block.
    fn fitting(&self, node: u32, block: u32) -> impl Iterator<Item = usize> {
        let len = self.blocks.len(block);
        let tiers = self.setup.hardware.tiers.len();
        let free = &self.free[node as usize * tiers..][..tiers];
        (0..tiers).filter(move |tier| free[*tier] >= self.room(*tier, len))
    }

    /// The bytes that a block of `len` takes in a tier.
    fn room(&self, tier: usize, len: u64) -> u64 {
        match self.setup.hardware.tiers[tier].kind {
            TierKind::Disk => record_bytes(len),
            _ => reserved_bytes(len),
        }
    }

    /// The tier of `node` that is going to keep a sample that is its to keep; none: it passes through.
    pub fn choose(&self, node: u32, sample: u32, devices: &Devices, at: f64) -> Option<usize> {
        let mut tiers = self.fitting(node, self.blocks.number(sample));
        tiers.find(|tier| devices.can_write(node, *tier, at))
    }

    /// Gives a sample its room in a tier of `node`, which is about to read it.
    pub fn keep(&mut self, node: u32, sample: u32, tier: usize) {
        let block = self.blocks.number(sample);
        let room = self.room(tier, self.blocks.len(block));
        self.free[node as usize * self.setup.hardware.tiers.len() + tier] -= room;
        *self.state_mut(node, block) = tier as u8;
    }

    /// `node` has what it was about to read.
    pub fn present(&mut self, node: u32, sample: u32) {
        *self.state_mut(node, self.blocks.number(sample)) |= PRESENT;
    }

    /// Blocks that any node keeps, and all their copies.
    pub fn coverage(&self) -> (u64, u64) {
        let kept = |state: &&u8| **state != ABSENT;
        let all = self
            .tables
            .iter()
            .map(|table| table.iter().filter(kept).count() as u64)
            .sum();
        let any = |block: &usize| self.tables.iter().any(|table| table[*block] != ABSENT);
        ((0..self.blocks.count() as usize).filter(any).count() as u64, all)
    }
}

fn bytes(mb: f64) -> u64 {
    (mb * MB) as u64
}

/// The engine's homes, for nodes that keep what their tiers hold.
fn homes_of(setup: &Setup<'_>, blocks: &Blocks<'_>) -> Result<homes::Homes, Error> {
    let tiers = setup.hardware.tiers.iter().map(|tier| bytes(tier.capacity_mb));
    let keeps = tiers.fold(0, u64::saturating_add);
    let member = |id: u32| Member {
        id: u64::from(id),
        bytes: keeps,
    };
    let members: Vec<Member> = (0..setup.hardware.nodes).map(member).collect();
    let (watch, ended) = (setup.access.watch(), RefCell::new(Ok(())));
    let lengths = (0..blocks.count()).map_while(|block| {
        watch.tire(setup.hardware.nodes / 8);
        let looked = watch.look();
        let goes_on = looked.is_ok();
        if !goes_on {
            *ended.borrow_mut() = looked;
        }
        goes_on.then(|| reserved_bytes(blocks.len(block)))
    });
    let homes = homes::Homes::new(lengths, &members);
    ended.into_inner().map(|()| homes)
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
