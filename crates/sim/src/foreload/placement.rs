//! Where samples live: one home each, then copies.

use crate::paper::store::Shelves;
use crate::{Setup, TierKind};

/// Where a node finds a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In its own tier.
    Own(usize),
    /// In a tier of another node.
    Peer(u32, usize),
    /// Another node reads it first, and hasn't got it yet.
    Coming,
    /// Only in the source.
    Nowhere,
}

const NOWHERE: u16 = u16::MAX;
const PRESENT: u8 = 0x80;
const UNREAD: u8 = 0x7f;
/// Other nodes that are asked for room when the first reader has none.
const PROBES: u32 = 8;
/// Memory for the table of copies: one bit per node and sample, up to a gigabyte.
const MOST_COPY_BITS: u64 = 8 << 30;

/// Homes and copies.
pub struct Placement<'a> {
    setup: &'a Setup<'a>,
    shelves: Shelves,
    home: Vec<u16>,
    tier: Vec<u8>,
    homeless_mb: f64,
    free_mb: f64,
    homes: u64,
    copied: Option<Vec<u64>>,
    copies: u64,
    /// Reads from which on a sample is worth a copy, by node; 0 until computed.
    worth: Vec<u32>,
    /// The network moves less than the source gives each node when all read: nodes don't keep samples for others.
    is_alone: bool,
}

impl<'a> Placement<'a> {
    /// Nothing placed.
    pub fn new(setup: &'a Setup<'a>) -> Self {
        let (samples, nodes) = (setup.sizes.samples() as usize, setup.hardware.nodes);
        Self {
            setup,
            shelves: Shelves::all(setup),
            home: vec![NOWHERE; samples],
            tier: vec![UNREAD; samples],
            homeless_mb: setup.sizes.total_mb,
            free_mb: f64::from(nodes) * setup.scenario.node_capacity_mb(),
            homes: 0,
            copied: None,
            copies: 0,
            worth: vec![0; nodes as usize],
            is_alone: nodes > 1 && setup.hardware.network_mb_s < setup.curve.share(nodes),
        }
    }

    /// Where `node` finds `sample` in `epoch`. Who reads it in epoch 0 reads it first; a node that is ahead waits for that.
    pub fn find(&self, node: u32, sample: u32, epoch: u32) -> Where {
        let (home, tier) = (self.home[sample as usize], self.tier[sample as usize]);
        if home == NOWHERE {
            return if tier == UNREAD && epoch > 0 {
                Where::Coming
            } else {
                Where::Nowhere
            };
        }
        if tier & PRESENT == 0 {
            return Where::Coming;
        }
        let tier = usize::from(tier & !PRESENT);
        if u32::from(home) == node {
            return Where::Own(tier);
        }
        match self.has_copy(node, sample) {
            true => Where::Own(self.copy_tier().unwrap_or(tier)),
            false => Where::Peer(u32::from(home), tier),
        }
    }

    /// Gives a sample that is about to be read from the source a home: the reader while it has room, else another node; `None` when all are full or busy writing.
    ///
    /// Where the network is too slow to be of use, a node keeps what it reads most often itself.
    pub fn choose_home(
        &mut self,
        reader: u32,
        sample: u32,
        epoch: u32,
        can_write: impl Fn(u32, usize) -> bool,
    ) -> Option<(u32, usize)> {
        let mb = self.setup.sizes.of(sample);
        let nodes = self.setup.hardware.nodes;
        self.tier[sample as usize] = 0;
        // When what is left is crumbs, asking around is not worth it.
        if self.is_alone && !self.is_worth_keeping(reader, sample, epoch) {
            return None;
        }
        let probes = if self.free_mb > self.homeless_mb && !self.is_alone {
            PROBES.min(nodes)
        } else {
            1
        };
        let hashed = sample.wrapping_mul(0x9E37_79B1) % nodes;
        let asked = std::iter::once(reader).chain((0..probes - 1).map(|i| (hashed + i) % nodes));
        for node in asked {
            let Some(tier) = self.shelves.place_where(node, mb, |tier| can_write(node, tier)) else {
                continue;
            };
            self.home[sample as usize] = node as u16;
            self.tier[sample as usize] = tier as u8;
            self.homeless_mb -= mb;
            self.free_mb -= mb;
            self.homes += 1;
            return Some((node, tier));
        }
        None
    }

    /// The home has it now.
    pub fn present(&mut self, sample: u32) {
        self.tier[sample as usize] |= PRESENT;
    }

    /// `node` got `sample`, whose home is elsewhere: it keeps a copy if it will read it often enough and no uncovered sample needs the room.
    pub fn consider_copy(&mut self, node: u32, sample: u32, epoch: u32) {
        let (epochs, mb) = (self.setup.access.epochs(), self.setup.sizes.of(sample));
        let Some(to) = self.copy_tier() else { return };
        let (hardware, tier) = (self.setup.hardware, usize::from(self.tier[sample as usize] & !PRESENT));
        let faster = hardware.tiers[to].read_mb_s > hardware.network_mb_s.min(hardware.tiers[tier].read_mb_s);
        if epoch + 1 >= epochs || !faster || self.free_mb - mb < self.homeless_mb {
            return;
        }
        if self.shelves.free_mb(node, to) < mb {
            return;
        }
        if !self.is_worth_keeping(node, sample, epoch) || !self.set_copy(node, sample) {
            return;
        }
        self.shelves.take(node, to, mb);
        self.free_mb -= mb;
        self.copies += 1;
    }

    /// Whether `node` reads `sample` often enough after `epoch` for what it has room for.
    fn is_worth_keeping(&mut self, node: u32, sample: u32, epoch: u32) -> bool {
        if self.worth[node as usize] == 0 {
            self.worth[node as usize] = self.worth_keeping(node, epoch);
        }
        let reads = 1 + self.setup.access.reads_after(node, sample, epoch);
        reads >= self.worth[node as usize].max(2)
    }

    /// The reads from which on all samples, by expectation, fit into a node's free memory; one less is let in too, to fill it.
    fn worth_keeping(&self, node: u32, epoch: u32) -> u32 {
        let (trials, p) = (
            self.setup.access.epochs() - epoch,
            1.0 / f64::from(self.setup.hardware.nodes),
        );
        let tiers = 0..self.setup.hardware.tiers.len();
        let free: f64 = match self.is_alone {
            true => tiers.map(|tier| self.shelves.free_mb(node, tier)).sum(),
            false => self.copy_tier().map_or(0.0, |tier| self.shelves.free_mb(node, tier)),
        };
        let mut mb = 0.0;
        let mut level = trials;
        while level > 2 {
            mb += self.setup.sizes.total_mb * crate::analysis::binomial(trials, level, p);
            if mb > free {
                break;
            }
            level -= 1;
        }
        level
    }

    /// The fastest tier: copies elsewhere wouldn't be faster than the network.
    fn copy_tier(&self) -> Option<usize> {
        self.setup.hardware.tiers.iter().position(|t| t.kind == TierKind::Ram)
    }

    fn bit(&self, node: u32, sample: u32) -> (usize, u64) {
        let bit = u64::from(node) * u64::from(self.setup.sizes.samples()) + u64::from(sample);
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// Whether `node` keeps a copy besides the home's.
    pub fn has_copy(&self, node: u32, sample: u32) -> bool {
        let (word, mask) = self.bit(node, sample);
        self.copied.as_ref().is_some_and(|bits| bits[word] & mask != 0)
    }

    /// False when the table would be too large.
    fn set_copy(&mut self, node: u32, sample: u32) -> bool {
        let bits = u64::from(self.setup.hardware.nodes) * u64::from(self.setup.sizes.samples());
        if bits > MOST_COPY_BITS {
            return false;
        }
        let (word, mask) = self.bit(node, sample);
        self.copied.get_or_insert_with(|| vec![0; bits.div_ceil(64) as usize])[word] |= mask;
        true
    }

    /// Samples with a home, and all copies.
    pub fn coverage(&self) -> (u64, u64) {
        (self.homes, self.homes + self.copies)
    }
}
