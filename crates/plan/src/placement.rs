//! Where blocks live in a cluster: one home each, and copies where room is left.
//!
//! *One copy before any replica.* A node reads a different part of the data set in every epoch, so what no node holds comes from the source again, and
//! no order of eviction helps. Room therefore goes to a first copy of each block, its *home*, as long as any block is without one; what is left over goes
//! to *copies*: each node keeps what it reads most often (paper 001 sec. 3.2 and 5.1).
//!
//! *Homes are of blocks.* A block is what one request brings: a whole object, or one cell of a shard. The home of an object is the node that reads it
//! first, so the first epoch sends nothing twice. A cell has many first readers, and as many homes would mean as many requests: its home follows from its
//! number ([`hashed_home`]). A node that is full passes the block on to one of a few others; when all that are asked are full, the block has no home.
//!
//! *Exchange decides.* Where the network moves less than the source gives each node, nodes keep for themselves what they read most often, as paper 001 has it.
//!
//! A [`Placement`] is the table of one group of nodes, filled block by block as they are first read. The simulator drives it; peers of the engine will need
//! the same answers. [`groups`] says how many nodes should share one. It never learns how a block gets anywhere, and knows no time.

mod binomial;
pub mod groups;

use crate::order::mix::key;
pub use binomial::binomial;

/// Where a node finds a block.
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

/// Whether nodes of a group give each other blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Their network moves more than the source gives each of them.
    Good,
    /// It moves less: nodes keep nothing for others.
    Poor,
}

/// A group of nodes, all alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Nodes.
    pub nodes: u32,
    /// Bytes of each tier of a node, fastest first.
    pub tiers: Vec<u64>,
    /// The tier for copies; none: no copy would be faster than its home.
    pub copies: Option<usize>,
    /// By tier: whether a copy is read faster than a home in that tier of another node.
    pub copy_pays: Vec<bool>,
    /// Whether they exchange blocks.
    pub exchange: Exchange,
    /// Epochs of the run.
    pub epochs: u32,
    /// Whether each block is read in the first epoch by one of them, so that who wants it later waits for that.
    pub reads_all: bool,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number.
    pub number: u32,
    /// Its size.
    pub bytes: u64,
    /// Several samples lie in it: its home follows from its number.
    pub shared: bool,
}

const NOWHERE: u16 = u16::MAX;
const PRESENT: u8 = 0x80;
const UNREAD: u8 = 0x7f;
/// Nodes that are asked for room when the first has none: that enough of them are full says that nearly all are.
const PROBES: u32 = 8;
/// Memory for the table of copies: one bit per node and block, up to a gigabyte.
const MOST_COPY_BITS: u64 = 8 << 30;

/// The home of a block that several nodes read first: the node whose hash with it is highest (rendezvous hashing; Thaler and Ravishankar, IEEE/ACM ToN 1998).
///
/// Every node finds the same. A node that leaves takes only its own blocks with it, which spread over all others; a new one takes its share from each.
/// O(nodes).
#[must_use]
pub fn hashed_home(block: u64, nodes: impl IntoIterator<Item = u32>) -> Option<u32> {
    let weight = |node: &u32| (key(&[block, u64::from(*node)]), *node);
    nodes.into_iter().max_by_key(weight)
}

/// Homes and copies of the blocks of one group.
#[derive(Clone, Debug)]
pub struct Placement {
    group: Group,
    blocks: u32,
    bytes: u64,
    /// By node and tier.
    free: Vec<u64>,
    home: Vec<u16>,
    tier: Vec<u8>,
    homeless_bytes: u64,
    free_bytes: u64,
    homes: u64,
    copied: Option<Vec<u64>>,
    copies: u64,
    /// Reads from which on a block is worth a copy, by node; 0 until computed.
    worth: Vec<u32>,
}

impl Placement {
    /// Nothing is placed of `blocks` blocks, which have `bytes` together.
    #[must_use]
    pub fn new(group: Group, blocks: u32, bytes: u64) -> Self {
        let nodes = group.nodes as usize;
        let free = group.tiers.repeat(nodes);
        Self {
            blocks,
            bytes,
            free_bytes: free.iter().fold(0, |sum, bytes| bytes.saturating_add(sum)),
            free,
            home: vec![NOWHERE; blocks as usize],
            tier: vec![UNREAD; blocks as usize],
            homeless_bytes: bytes,
            homes: 0,
            copied: None,
            copies: 0,
            worth: vec![0; nodes],
            group,
        }
    }

    /// Where `node` finds `block` in `epoch`. Who reads it in epoch 0 reads it first; a node that is ahead waits for that.
    #[must_use]
    pub fn find(&self, node: u32, block: u32, epoch: u32) -> Where {
        let (home, tier) = (self.home[block as usize], self.tier[block as usize]);
        if home == NOWHERE {
            let comes = self.group.reads_all && tier == UNREAD && epoch > 0;
            return if comes { Where::Coming } else { Where::Nowhere };
        }
        if tier & PRESENT == 0 {
            return Where::Coming;
        }
        let tier = usize::from(tier & !PRESENT);
        if u32::from(home) == node {
            return Where::Own(tier);
        }
        match self.has_copy(node, block) {
            true => Where::Own(self.group.copies.unwrap_or(tier)),
            false => Where::Peer(u32::from(home), tier),
        }
    }

    /// Gives a block that is about to be read from the source a home: its reader, or where it is shared its hashed home, while that has room, else another
    /// node. `None`: all that were asked are full, or busy as `can_write` says. `reads` is asked how often the reader reads it after this.
    pub fn choose_home(
        &mut self,
        reader: u32,
        block: Block,
        epoch: u32,
        reads: impl FnOnce() -> u32,
        can_write: impl Fn(u32, usize) -> bool,
    ) -> Option<(u32, usize)> {
        let (nodes, number) = (self.group.nodes, block.number);
        self.tier[number as usize] = 0;
        let alone = self.group.exchange == Exchange::Poor;
        if alone && nodes > 1 && !self.is_worth_keeping(reader, epoch, reads) {
            return None;
        }
        // When what is left is crumbs, asking around is not worth it.
        let probes = match self.free_bytes > self.homeless_bytes && !alone {
            true => PROBES.min(nodes),
            false => 1,
        };
        let first = match block.shared && !alone {
            true => hashed_home(u64::from(number), 0..nodes).unwrap_or(reader),
            false => reader,
        };
        let hashed = number.wrapping_mul(0x9E37_79B1) % nodes;
        let mut asked = std::iter::once(first).chain((0..probes - 1).map(|i| (hashed + i) % nodes));
        let (node, tier) = asked.find_map(|node| {
            let room = self.room(node).iter();
            let mut fits = room.enumerate().filter(|(_, free)| **free >= block.bytes);
            fits.find(|(tier, _)| can_write(node, *tier))
                .map(|(tier, _)| (node, tier))
        })?;
        self.take(node, tier, block.bytes);
        self.home[number as usize] = node as u16;
        self.tier[number as usize] = tier as u8;
        self.homeless_bytes = self.homeless_bytes.saturating_sub(block.bytes);
        self.homes += 1;
        Some((node, tier))
    }

    /// The home has it now.
    pub fn present(&mut self, block: u32) {
        self.tier[block as usize] |= PRESENT;
    }

    /// `node` got a block whose home is elsewhere: it keeps a copy if it will read it often enough and no block without a home needs the room.
    /// `reads` is asked how often it reads it after `epoch`.
    pub fn consider_copy(&mut self, node: u32, block: Block, epoch: u32, reads: impl FnOnce() -> u32) {
        let Some(to) = self.group.copies else { return };
        let tier = usize::from(self.tier[block.number as usize] & !PRESENT);
        let spare = self.free_bytes.saturating_sub(block.bytes) >= self.homeless_bytes;
        if epoch + 1 >= self.group.epochs || !self.group.copy_pays[tier] || !spare {
            return;
        }
        if self.room(node)[to] < block.bytes
            || !self.is_worth_keeping(node, epoch, reads)
            || !self.set_copy(node, block.number)
        {
            return;
        }
        self.take(node, to, block.bytes);
        self.copies += 1;
    }

    /// Whether `node` keeps a copy besides the home's.
    #[must_use]
    pub fn has_copy(&self, node: u32, block: u32) -> bool {
        let (word, mask) = self.bit(node, block);
        self.copied.as_ref().is_some_and(|bits| bits[word] & mask != 0)
    }

    /// Blocks with a home, and all their copies.
    #[must_use]
    pub fn coverage(&self) -> (u64, u64) {
        (self.homes, self.homes + self.copies)
    }

    /// Whether a node that reads a block so often after `epoch` has room for all such.
    fn is_worth_keeping(&mut self, node: u32, epoch: u32, reads: impl FnOnce() -> u32) -> bool {
        if self.worth[node as usize] == 0 {
            self.worth[node as usize] = self.worth_keeping(node, epoch);
        }
        1 + reads() >= self.worth[node as usize].max(2)
    }

    /// The reads from which on all blocks, by expectation, fit into a node's free memory; one less is let in too, to fill it (paper 001 sec. 3.2: reads are
    /// Binomial(E, 1/N)).
    fn worth_keeping(&self, node: u32, epoch: u32) -> u32 {
        let (trials, p) = (self.group.epochs - epoch, 1.0 / f64::from(self.group.nodes));
        let free = match self.group.exchange {
            Exchange::Poor => self.room(node).iter().map(|free| *free as f64).sum(),
            Exchange::Good => self.group.copies.map_or(0.0, |tier| self.room(node)[tier] as f64),
        };
        let mut bytes = 0.0;
        let mut level = trials;
        while level > 2 {
            bytes += self.bytes as f64 * binomial(trials, level, p);
            if bytes > free {
                break;
            }
            level -= 1;
        }
        level
    }

    /// Bytes free in each tier of a node.
    #[must_use]
    pub fn room(&self, node: u32) -> &[u64] {
        let tiers = self.group.tiers.len();
        &self.free[node as usize * tiers..][..tiers]
    }

    fn take(&mut self, node: u32, tier: usize, bytes: u64) {
        self.free[node as usize * self.group.tiers.len() + tier] -= bytes;
        self.free_bytes = self.free_bytes.saturating_sub(bytes);
    }

    fn bit(&self, node: u32, block: u32) -> (usize, u64) {
        let bit = u64::from(node) * u64::from(self.blocks) + u64::from(block);
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// False when the table would be too large.
    fn set_copy(&mut self, node: u32, block: u32) -> bool {
        let bits = u64::from(self.group.nodes) * u64::from(self.blocks);
        if bits > MOST_COPY_BITS {
            return false;
        }
        let (word, mask) = self.bit(node, block);
        self.copied.get_or_insert_with(|| vec![0; bits.div_ceil(64) as usize])[word] |= mask;
        true
    }
}

#[cfg(test)]
mod tests;
