//! The default policy on modelled hardware: coverage first, read-ahead by bytes, every device a queue.
//!
//! Where nodes exchange nothing, this is the engine's scheduler in short, and held to it (`scheduled::tests::agreement`): consumers take batches and ask two ahead,
//! requests in flight are found by [`foreload_plan::flow`], a request brings a block, what passes through staging memory rests there until its room is
//! needed, and what stays in memory takes none of it. What follows is for clusters that exchange samples, which the engine doesn't yet.
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

mod blocks;
mod devices;
mod node;
mod placement;
mod requests;
mod staging;

use crate::access::Epochs;
use crate::paper::pipeline::Counts;
use crate::random::Random;
use crate::source::{Ordered, SharedSource};
use crate::{Error, Fabric, Outcome, Policy, Setup, TierKind};
pub(crate) use devices::Devices;
use foreload_plan::placement::Where;
use foreload_plan::settings::{SLOW_S, Settings};
use node::Node;
use placement::{Homes, cluster};
use requests::{Brings, Keep, streams};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Runs the policy.
///
/// # Errors
/// When the order can't tell.
pub fn run(setup: &Setup<'_>) -> Result<Outcome, Error> {
    Run::new(setup).run()
}

/// An access: what a node reads at a place of its sequence.
#[derive(Clone, Copy, Debug)]
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
    homes: Homes<'a>,
    devices: Devices,
    source: SharedSource,
    /// Of it, by node.
    streams: u32,
    /// Nodes that can admit (id) or send another request (nodes + id), and streams that begin (2 nodes + stream), by time.
    ready: BinaryHeap<Reverse<(Ordered, u32)>>,
    /// Who else waits for what a node is reading, by group and block.
    waiting: HashMap<(u32, u32), Vec<Want>>,
    /// What a node reads from the source although others have it: which of its accesses wait for that, by node and sample.
    again: HashMap<(u32, u32), Vec<u64>>,
    latencies: Random,
    counts: Counts,
    epoch_ends: Vec<f64>,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup<'a>) -> Self {
        let nodes = setup.hardware.nodes;
        let streams = streams(setup.hardware);
        let node_of: Vec<u32> = (0..nodes * streams).map(|stream| stream / streams).collect();
        let weights = vec![
            if streams == 1 {
                setup.hardware.source_threads
            } else {
                1.0
            };
            node_of.len()
        ];
        Self {
            setup,
            nodes: (0..nodes).map(|_| Node::new(setup)).collect(),
            homes: Homes::new(setup),
            devices: Devices::new(setup.hardware),
            streams,
            source: SharedSource::new(setup.curve.clone(), setup.hardware.share, node_of, weights),
            ready: (0..nodes).map(|n| Reverse((Ordered(0.0), n))).collect(),
            waiting: HashMap::new(),
            again: HashMap::new(),
            latencies: Random::new(setup.scenario.training.seed),
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
                        Some(node) if node < self.setup.hardware.nodes => self.request(node, at),
                        Some(stream) => self.begin(stream - self.setup.hardware.nodes, at),
                    }
                }
                _ => {
                    let Some((stream, at)) = self.source.end_next() else {
                        break;
                    };
                    self.received(stream, at, &mut epochs)?;
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
            if n.has_admitted_enough(self.setup, node) {
                return Ok(());
            }
            let (epoch, mb) = (n.epoch, self.setup.sizes.of(sample));
            let held = n.staging.holds(sample);
            let staged = held.is_some() || !self.homes.keeps_in_ram(node, sample, epoch);
            if staged && held.is_none() {
                let along_mb = self.homes.blocks.cell_mb();
                match n.room_at(self.setup, node, mb, along_mb, at) {
                    None => return Ok(()),
                    Some(room) => at = room,
                }
            }
            if at > horizon {
                self.ready.push(Reverse((Ordered(at), node)));
                return Ok(());
            }
            self.setup.access.watch().did(1)?;
            let seq = n.admit(self.setup, node, sample, staged);
            if n.advance(self.setup, node) {
                epochs.leave(epoch);
            }
            let want = Want { node, seq, sample, mb };
            let found = match held {
                Some(fetched) => self.use_held(want, fetched),
                None => self.locate(want, epoch, at),
            };
            match found {
                Some(fetched) => self.fetched(node, seq, fetched),
                // The source gained a reader, which may end before what was due next.
                None => {
                    self.ready.push(Reverse((Ordered(at), node)));
                    return Ok(());
                }
            }
        }
    }

    /// Uses what is in staging memory, or on its way there.
    fn use_held(&mut self, want: Want, fetched: f64) -> Option<f64> {
        if fetched.is_nan() {
            self.wait(want);
            return None;
        }
        self.counts.local(TierKind::Ram, want.mb);
        Some(fetched)
    }

    /// Waits for a sample that its home is reading.
    fn wait(&mut self, want: Want) {
        let key = (self.homes.group(want.node), self.homes.blocks.number(want.sample));
        self.waiting.entry(key).or_default().push(want);
    }

    /// Asks for a sample; `Some` when it is known when it will be there, `None` when the source has to say.
    fn locate(&mut self, want: Want, epoch: u32, at: f64) -> Option<f64> {
        let Want { node, sample, mb, .. } = want;
        match self.homes.find(node, sample, epoch) {
            // The engine gives out what is in memory as it is.
            Where::Own(tier) if !self.setup.hardware.exchanges() && self.is_ram(tier) => {
                self.counts.local(TierKind::Ram, mb);
                Some(at)
            }
            Where::Own(tier) => {
                let done = self.devices.tier_done(node, tier, mb, at);
                let tier_mb_s = self.setup.hardware.tiers[tier].read_mb_s;
                if self.leaves(want, at, (tier_mb_s, done)) {
                    self.ask_source(want, Keep::Ill, at);
                    return None;
                }
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
                self.homes.consider_copy(node, sample, epoch);
                self.read_from(home, tier, epoch, mb, done);
                Some(done)
            }
            Where::Coming => {
                self.wait(want);
                None
            }
            Where::Nowhere => {
                let home = self.homes.choose(node, sample, epoch, &self.devices, at);
                match home {
                    Some((home, tier)) if home != node => {
                        self.wait(want);
                        let (node, seq) = (home, u64::MAX);
                        self.ask_source(Want { node, seq, ..want }, Keep::Home(tier), at);
                    }
                    kept => {
                        let keep = kept.map_or(Keep::No, |(_, tier)| Keep::Home(tier));
                        if kept.is_some_and(|(_, tier)| !self.is_ram(tier)) {
                            // All of it passes through staging memory on its way to the disk.
                            let block = self.homes.blocks.samples(self.homes.blocks.number(sample));
                            let n = &mut self.nodes[node as usize];
                            block.for_each(|sample| n.staging.pass(sample, self.setup.sizes.of(sample)));
                        }
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
        if epoch + 1 == self.setup.access.epochs() && self.is_ram(tier) {
            self.nodes[home as usize].staging.free(mb, done);
        }
    }

    fn is_ram(&self, tier: usize) -> bool {
        self.setup.hardware.tiers[tier].kind == TierKind::Ram
    }

    /// Whether the engine leaves a disk for the source.
    fn leaves(&self, want: Want, at: f64, (mb_s, done): Other) -> bool {
        let wait_s = self.nodes[want.node as usize].requests.wait_s();
        Settings::default().leaves_cache(done - at, wait_s, mb_s, self.source_mb_s(), SLOW_S)
    }

    /// Whether the other way is slower than the source, and its queue so long that the sample would be late, and later than from the source.
    fn source_is_better(&self, want: Want, at: f64, (mb_s, done): Other) -> bool {
        let n = &self.nodes[want.node as usize];
        self.setup.hardware.exchanges()
            && mb_s < self.source_mb_s()
            && done > n.needed_at(self.setup, want.seq, at)
            && at + self.setup.hardware.latency_s + (n.requests.queued_mb + want.mb) / self.source_mb_s() < done
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
        let blocks = &self.homes.blocks;
        let along = match keep {
            Keep::Home(_) => blocks.samples(blocks.number(want.sample)).collect(),
            Keep::Copy => vec![want.sample],
            // Neighbours are on the disk that is too slow, too.
            Keep::Ill => vec![want.sample],
            Keep::No => self.read_soon(want, at),
        };
        let mut requests = self.homes.blocks.requests(along.iter().copied());
        let last = requests.pop().unwrap_or(want.mb);
        let n = &mut self.nodes[want.node as usize];
        for mb in requests {
            self.counts.source(mb);
            n.requests.ask(mb, None);
        }
        self.counts.source(last);
        let brings = Some(Brings { want, keep, along });
        n.requests.ask(last, brings);
        self.request(want.node, at);
    }

    /// A sample that won't stay, and its neighbours in the shard that the node reads before its staging memory turns over, as far as that has room for them
    /// and one request brings them all.
    fn read_soon(&mut self, want: Want, at: f64) -> Vec<u32> {
        let blocks = &self.homes.blocks;
        let samples = blocks.samples(blocks.number(want.sample));
        let mut along = vec![want.sample];
        if self.setup.hardware.exchanges() || samples.len() == 1 {
            return along;
        }
        let n = &mut self.nodes[want.node as usize];
        let mut comes = |sample| {
            n.reads_soon(self.setup, want, sample) && n.staging.expect(sample, self.setup.sizes.of(sample), at)
        };
        let mut last = want.sample;
        for sample in want.sample + 1..samples.end {
            if !blocks.are_near(last, sample) {
                break;
            }
            if comes(sample) {
                along.push(sample);
                last = sample;
            }
        }
        let mut first = want.sample;
        for sample in (samples.start..want.sample).rev() {
            if !blocks.are_near(sample, first) {
                break;
            }
            if comes(sample) {
                along.push(sample);
                first = sample;
            }
        }
        along.sort_unstable();
        along
    }

    /// Sends what `node` may have in flight, and has the source read the next of it.
    fn request(&mut self, node: u32, at: f64) {
        let hardware = self.setup.hardware;
        let requests = &mut self.nodes[node as usize].requests;
        let at = requests.now(at);
        let mut latency_s = || match hardware.exchanges() {
            true => hardware.latency_s,
            false => hardware.draw_latency_s(&mut self.latencies),
        };
        while let Some((stream, begin)) = requests.send(at, &mut latency_s) {
            let (mb, stream) = (requests.mb(stream), node * self.streams + stream);
            match begin > at {
                true => self.ready.push(Reverse((Ordered(begin), 2 * hardware.nodes + stream))),
                false => self.source.start(stream, mb, at),
            }
        }
        if let Some(next) = requests.wakes(at) {
            self.ready.push(Reverse((Ordered(next), hardware.nodes + node)));
        }
    }

    /// A request's latency is over: the source reads for it.
    fn begin(&mut self, stream: u32, at: f64) {
        let requests = &self.nodes[(stream / self.streams) as usize].requests;
        self.source.start(stream, requests.mb(stream % self.streams), at);
    }

    /// The source delivered what a stream was reading.
    fn received(&mut self, stream: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let (node, stream) = (stream / self.streams, stream % self.streams);
        let (pending, arrived) = self.nodes[node as usize].requests.received(self.setup, stream, at);
        self.request(node, at);
        let Some(Brings { want, keep, along }) = pending.brings else {
            return Ok(());
        };
        let Want { seq, sample, mb, .. } = want;
        match keep {
            Keep::No | Keep::Ill => {}
            Keep::Copy => self.homes.consider_copy(node, sample, self.epoch_of(node, seq)),
            Keep::Home(tier) => {
                let written = self.devices.write_tier(node, tier, pending.mb, arrived);
                self.homes.present(node, sample);
                if !self.is_ram(tier) {
                    self.nodes[node as usize]
                        .staging
                        .came_along(self.setup, &along, arrived, Some(written));
                }
            }
        }
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
        if keep == Keep::No {
            self.nodes[node as usize]
                .staging
                .came_along(self.setup, &along, arrived, None);
        }
        let key = (self.homes.group(node), self.homes.blocks.number(sample));
        let waiting = self.waiting.remove(&key).unwrap_or_default();
        // Of a block that stays nowhere, others may come with another request.
        let (served, others): (Vec<Want>, Vec<Want>) = waiting
            .into_iter()
            .partition(|want| matches!(keep, Keep::Home(_)) || along.contains(&want.sample));
        if !others.is_empty() {
            self.waiting.insert(key, others);
        }
        for want in served {
            self.served(node, want, arrived);
            self.unblock(want.node, at, epochs)?;
        }
        Ok(())
    }

    /// What `home` has had in memory since `arrived`, somebody waited for.
    fn served(&mut self, home: u32, want: Want, arrived: f64) {
        let Want { node, seq, sample, mb } = want;
        // What the node holds already, for an access before, it doesn't fetch again: it is in memory.
        let done = if node == home {
            self.counts.local(TierKind::Ram, mb);
            arrived
        } else if self.homes.has_copy(node, sample) {
            self.counts.local(TierKind::Ram, mb);
            self.devices.send_done(home, node, 0.0, arrived)
        } else {
            let done = self.devices.send_done(home, node, mb, arrived);
            if self.asks_again(want, arrived, (self.network_mb_s(), done)) {
                return;
            }
            self.counts.mb.peer += mb;
            self.homes.consider_copy(node, sample, self.epoch_of(node, seq));
            self.devices.send(home, node, mb, arrived)
        };
        self.fetched(node, seq, done);
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
            .report(&mut outcome, self.homes.coverage(), self.homes.blocks.count());
        outcome.fabric = self.setup.hardware.exchanges().then(|| self.fabric());
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
