//! The default policy on modelled hardware: coverage first, read-ahead by bytes, every device a queue.
//!
//! Each node admits the samples of its sequence as long as its staging memory has room for their bytes, across epoch borders. An admitted
//! sample is asked for at once, wherever it is: the node's own tier, another node's, or the source, so a slow source read never
//! holds up a disk read behind it. Devices are first-come queues at their aggregate throughput: each tier of each node, each node's network in
//! and out; the source is shared fluidly ([`crate::source`]), bounded per node by requests in flight and by what one connection
//! delivers. Samples are preprocessed and consumed in order.
//!
//! Placement ([`foreload_plan::placement`]): a sample's home is the node that reads it first, while that has room, else another node with room; so the
//! source is read once per sample and job as long as the nodes hold the data set together. Room that coverage doesn't need goes
//! to copies of what a node reads most often. A node that is ahead and wants a sample before its first
//! reader has it waits for that. In the last epoch, what was read from a RAM tier isn't read again: its memory becomes staging, so read-ahead grows while
//! the tiers empty.

mod devices;
mod node;
mod placement;

use crate::access::Epochs;
use crate::paper::pipeline::Counts;
use crate::source::{Ordered, SharedSource};
use crate::{Error, Fabric, Outcome, Policy, Setup, TierKind};
pub(crate) use devices::Devices;
use foreload_plan::placement::{Placement, Where};
use node::{Keep, Node, Pending};
use placement::{block, cluster, placement};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Runs the policy.
///
/// # Errors
/// When the order can't tell.
pub fn run(setup: &Setup<'_>) -> Result<Outcome, Error> {
    if setup.hardware.nodes > 1 && !setup.hardware.has_network {
        let reason = "nodes share their caches: cluster.network_mb_s is needed".to_owned();
        return Ok(Outcome::unsupported(Policy::Foreload, reason));
    }
    Run::new(setup).run()
}

/// An access: what a node reads at a place of its sequence.
#[derive(Clone, Copy)]
struct Want {
    node: u32,
    /// `u64::MAX`: nobody's, read for another node.
    seq: u64,
    sample: u32,
    mb: f64,
}

/// A way to a sample besides the source: MB/s, and when the sample would be there.
type Other = (f64, f64);

struct Run<'a> {
    setup: &'a Setup<'a>,
    nodes: Vec<Node>,
    placement: Placement,
    devices: Devices,
    source: SharedSource,
    /// Nodes that can admit (id) or start another request (nodes + id), by time.
    ready: BinaryHeap<Reverse<(Ordered, u32)>>,
    /// Who else waits for a sample that its home is reading: (node, sequence number).
    waiting: HashMap<u32, Vec<(u32, u64)>>,
    /// What a node reads from the source although others have it: which of its accesses wait for that, by node and sample.
    again: HashMap<(u32, u32), Vec<u64>>,
    counts: Counts,
    epoch_ends: Vec<f64>,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup<'a>) -> Self {
        let nodes = setup.hardware.nodes;
        let weights = vec![setup.hardware.source_threads; nodes as usize];
        Self {
            setup,
            nodes: (0..nodes).map(|_| Node::new(setup.hardware)).collect(),
            placement: placement(setup),
            devices: Devices::new(setup.hardware),
            source: SharedSource::new(setup.curve.clone(), setup.hardware.share, (0..nodes).collect(), weights),
            ready: (0..nodes).map(|n| Reverse((Ordered(0.0), n))).collect(),
            waiting: HashMap::new(),
            again: HashMap::new(),
            counts: Counts::default(),
            epoch_ends: vec![0.0; setup.access.epochs() as usize],
        }
    }

    fn run(mut self) -> Result<Outcome, Error> {
        let mut epochs = Epochs::new(self.setup.access, None);
        loop {
            let ready = self.ready.peek().map(|Reverse((at, _))| at.0);
            match (ready, self.source.next_end()) {
                (None, None) => break,
                (Some(at), end) if end.is_none_or(|end| at <= end) => {
                    let Some(Reverse((_, who))) = self.ready.pop() else {
                        break;
                    };
                    match who.checked_sub(self.setup.hardware.nodes) {
                        None => self.admit(who, at, &mut epochs)?,
                        Some(node) => self.request(node, at),
                    }
                }
                _ => {
                    let Some((node, at)) = self.source.end_next() else {
                        break;
                    };
                    self.received(node, at, &mut epochs)?;
                }
            }
        }
        Ok(self.outcome())
    }

    fn horizon(&self) -> f64 {
        let ready = self.ready.peek().map_or(f64::INFINITY, |Reverse((at, _))| at.0);
        ready.min(self.source.next_end().unwrap_or(f64::INFINITY))
    }

    /// Admits samples of `node` until its staging memory is full or another event is due.
    fn admit(&mut self, node: u32, mut at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let horizon = self.horizon();
        loop {
            let n = &mut self.nodes[node as usize];
            let Some(sample) = n.next_sample(self.setup, node, epochs)? else {
                return Ok(());
            };
            let mb = self.setup.sizes.of(sample);
            match n.room_at(mb, at) {
                None => return Ok(()),
                Some(room) => at = room,
            }
            if at > horizon {
                self.ready.push(Reverse((Ordered(at), node)));
                return Ok(());
            }
            self.setup.access.watch().did(1)?;
            let epoch = n.epoch;
            let seq = n.admit(mb);
            if n.advance(self.setup, node) {
                epochs.leave(epoch);
            }
            let want = Want { node, seq, sample, mb };
            match self.locate(want, epoch, at) {
                Some(fetched) => self.fetched(node, seq, fetched),
                // The source gained a reader, which may end before what was due next.
                None => {
                    self.ready.push(Reverse((Ordered(at), node)));
                    return Ok(());
                }
            }
        }
    }

    /// Asks for a sample; `Some` when it is known when it will be there, `None` when the source has to say.
    fn locate(&mut self, want: Want, epoch: u32, at: f64) -> Option<f64> {
        let Want { node, seq, sample, mb } = want;
        match self.placement.find(node, sample, epoch) {
            Where::Own(tier) => {
                let done = self.devices.tier_done(node, tier, mb, at);
                let tier_mb_s = self.setup.hardware.tiers[tier].read_mb_s;
                if self.source_is_better(want, at, (tier_mb_s, done)) {
                    self.ask_source(want, Keep::No, at);
                    return None;
                }
                self.devices.read_tier(node, tier, mb, at);
                self.counts.local(self.setup.hardware.tiers[tier].kind, mb);
                self.read_from(node, tier, epoch, mb, done);
                Some(done)
            }
            Where::Peer(home, tier) => {
                let done = self.devices.peer_done(node, home, tier, mb, at);
                let mb_s = self.network_mb_s().min(self.setup.hardware.tiers[tier].read_mb_s);
                if self.asks_again(want, at, (mb_s, done)) {
                    return None;
                }
                self.devices.read_peer(node, home, tier, mb, at);
                self.counts.mb.peer += mb;
                self.consider_copy(node, sample, epoch);
                self.read_from(home, tier, epoch, mb, done);
                Some(done)
            }
            Where::Coming => {
                self.waiting.entry(sample).or_default().push((node, seq));
                None
            }
            Where::Nowhere => {
                let setup = self.setup;
                let reads = || setup.access.reads_after(node, sample, epoch);
                let can_write = |n, tier| self.devices.can_write(n, tier, at);
                let home = self
                    .placement
                    .choose_home(node, block(setup, sample), epoch, reads, can_write);
                match home {
                    Some((home, tier)) if home != node => {
                        self.waiting.entry(sample).or_default().push((node, seq));
                        let (node, seq) = (home, u64::MAX);
                        self.ask_source(Want { node, seq, ..want }, Keep::Home(tier), at);
                    }
                    kept => {
                        let keep = kept.map_or(Keep::No, |(_, tier)| Keep::Home(tier));
                        self.ask_source(want, keep, at);
                    }
                }
                None
            }
        }
    }

    /// Reads from the source what others have, if that would come too late and the source is sooner.
    fn asks_again(&mut self, want: Want, at: f64, other: Other) -> bool {
        let key = (want.node, want.sample);
        if !self.again.is_empty()
            && let Some(seqs) = self.again.get_mut(&key)
        {
            seqs.push(want.seq);
            return true;
        }
        let asks = self.source_is_better(want, at, other);
        if asks {
            self.again.insert(key, Vec::new());
            self.ask_source(want, Keep::Copy, at);
        }
        asks
    }

    /// In the last epoch what was read isn't read again: its memory is read-ahead's.
    fn read_from(&mut self, home: u32, tier: usize, epoch: u32, mb: f64, done: f64) {
        if epoch + 1 == self.setup.access.epochs() && self.setup.hardware.tiers[tier].kind == TierKind::Ram {
            self.nodes[home as usize].free(mb, done);
        }
    }

    /// Whether the other way is slower than the source, and its queue so long that the sample would be late, and later than from the source.
    fn source_is_better(&self, want: Want, at: f64, (mb_s, done): Other) -> bool {
        let n = &self.nodes[want.node as usize];
        mb_s < self.source_mb_s()
            && done > n.needed_at(self.setup, want.seq, at)
            && at + self.setup.hardware.latency_s + (n.queued_mb + want.mb) / self.source_mb_s() < done
    }

    /// What nodes that send to each other at random get: half, as both ends have to be free.
    fn network_mb_s(&self) -> f64 {
        self.setup.hardware.network_mb_s / 2.0
    }

    /// What the source gives a node when all read. What one could get while others read from peers, it would not get if they decided alike.
    fn source_mb_s(&self) -> f64 {
        self.setup.curve.share(self.setup.hardware.nodes)
    }

    fn ask_source(&mut self, want: Want, keep: Keep, at: f64) {
        let Want { node, seq, sample, mb } = want;
        self.counts.source(mb);
        let n = &mut self.nodes[node as usize];
        n.queued_mb += mb;
        n.queue.push_back(Pending { seq, sample, mb, keep });
        self.request(node, at);
    }

    /// Starts the next request of `node` if it may have another one in flight.
    fn request(&mut self, node: u32, at: f64) {
        let n = &mut self.nodes[node as usize];
        let at = at.max(n.request_at);
        n.request_at = at;
        if n.reading_since.is_some() {
            return;
        }
        let Some(mb) = n.queue.front().map(|p| p.mb) else {
            return;
        };
        if n.in_flight.len() >= self.setup.hardware.requests_in_flight as usize {
            let first = n.in_flight[0];
            if first > at {
                self.ready
                    .push(Reverse((Ordered(first), self.setup.hardware.nodes + node)));
                return;
            }
            n.in_flight.pop_front();
        }
        n.reading_since = Some(at);
        self.source.start(node, mb, at);
    }

    /// The source delivered what `node` was reading.
    fn received(&mut self, node: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let hardware = self.setup.hardware;
        let n = &mut self.nodes[node as usize];
        let since = n.reading_since.take().expect("the source ends only what was started");
        let pending = n.queue.pop_front().expect("what is read is queued");
        n.queued_mb = (n.queued_mb - pending.mb).max(0.0);
        let arrived = at.max(since + pending.mb / hardware.connection_mb_s) + hardware.latency_s;
        if hardware.latency_s > 0.0 || hardware.connection_mb_s.is_finite() {
            n.in_flight.push_back(arrived);
        }
        let Pending { seq, sample, mb, keep } = pending;
        match keep {
            Keep::No => {}
            Keep::Copy => self.consider_copy(node, sample, self.epoch_of(node, seq)),
            Keep::Home(tier) => {
                self.devices.write_tier(node, tier, mb, arrived);
                self.placement.present(sample);
            }
        }
        self.request(node, at);
        if seq != u64::MAX {
            self.fetched(node, seq, arrived);
            self.unblock(node, at, epochs)?;
        }
        if keep == Keep::Copy {
            for seq in self.again.remove(&(node, sample)).unwrap_or_default() {
                self.counts.local(TierKind::Ram, mb);
                self.fetched(node, seq, arrived);
            }
            return self.unblock(node, at, epochs);
        }
        for (other, seq) in self.waiting.remove(&sample).unwrap_or_default() {
            // What the node holds already, for an access before, it doesn't fetch again: it is in memory.
            let done = if other == node {
                self.counts.local(TierKind::Ram, mb);
                arrived
            } else if self.placement.has_copy(other, sample) {
                self.counts.local(TierKind::Ram, mb);
                self.devices.send_done(node, other, 0.0, arrived)
            } else {
                let done = self.devices.send_done(node, other, mb, arrived);
                let want = Want {
                    node: other,
                    seq,
                    sample,
                    mb,
                };
                if self.asks_again(want, arrived, (self.network_mb_s(), done)) {
                    continue;
                }
                self.counts.mb.peer += mb;
                self.consider_copy(other, sample, self.epoch_of(other, seq));
                self.devices.send(node, other, mb, arrived)
            };
            self.fetched(other, seq, done);
            self.unblock(other, at, epochs)?;
        }
        Ok(())
    }

    /// `node` got a sample whose home is elsewhere.
    fn consider_copy(&mut self, node: u32, sample: u32, epoch: u32) {
        let setup = self.setup;
        let reads = || setup.access.reads_after(node, sample, epoch);
        self.placement.consider_copy(node, block(setup, sample), epoch, reads);
    }

    fn epoch_of(&self, node: u32, seq: u64) -> u32 {
        (seq / u64::from(self.setup.access.per_epoch(node))) as u32
    }

    /// It is known when a sample will be in staging memory: what can be consumed in order, is.
    fn fetched(&mut self, node: u32, seq: u64, at: f64) {
        self.nodes[node as usize].fetched(self.setup, node, seq, at, &mut self.epoch_ends);
    }

    fn unblock(&mut self, node: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        match std::mem::take(&mut self.nodes[node as usize].blocked) {
            true => self.admit(node, at, epochs),
            false => Ok(()),
        }
    }

    fn outcome(self) -> Outcome {
        let mut outcome = Outcome::new(Policy::Foreload);
        let last = self.nodes.iter().max_by(|a, b| a.free_at.total_cmp(&b.free_at));
        outcome.set_times(&self.epoch_ends, last.map_or(0.0, |n| n.computed_s));
        self.counts
            .report(&mut outcome, self.placement.coverage(), self.setup.sizes.samples());
        outcome.fabric = (self.setup.hardware.nodes > 1).then(|| self.fabric());
        outcome
    }

    fn fabric(&self) -> Fabric {
        let largest = |mb: &[f64]| mb.iter().copied().fold(0.0, f64::max);
        let cluster = cluster(self.setup, &self.epoch_ends);
        let cache_group_nodes = cluster.group_nodes();
        Fabric {
            peer_mb: self.counts.mb.peer,
            most_sent_mb: largest(self.devices.sent_mb()),
            most_received_mb: largest(self.devices.received_mb()),
            most_queued_s: self.devices.longest_queue_s(),
            most_received_queue_s: self.devices.longest_incast_s(),
            connections_per_node: self.setup.hardware.nodes - 1,
            cache_group_nodes,
            cache_group_source_mb: cluster.source(cache_group_nodes),
        }
    }
}
