//! The default policy on modelled hardware: coverage first, read-ahead by bytes, every device a queue.
//!
//! This is the engine's scheduler in short, and held to it (`scheduled::tests::agreement`, and `exchange` for nodes that exchange samples): consumers take
//! batches and ask two ahead, requests in flight are found by [`foreload_plan::flow`], a request brings a block, what passes through staging memory rests there
//! until its room is needed, and what stays in memory takes none of it.
//!
//! Each node admits the samples of its sequence as long as its staging memory has room for their bytes, across epoch borders. An admitted
//! sample is asked for at once, wherever it is: the node's own tier, another node's, or the source, so a slow source read never
//! holds up a disk read behind it. Devices are first-come queues at their aggregate throughput: each tier of each node, each node's network in
//! and out; the source is shared fluidly ([`crate::source`]), bounded per node by requests in flight and by what one connection
//! delivers. Samples are preprocessed and consumed in order.
//!
//! Where nodes exchange samples, each block has one home ([`foreload_plan::homes`]), and others ask that ([`peers`]): so the source is read once per block and
//! job as long as the nodes hold the data set together.

mod blocks;
mod devices;
mod node;
mod peers;
mod placement;
mod requests;
mod staging;

use crate::access::{self, Epochs};
use crate::paper::pipeline::Counts;
use crate::random::Random;
use crate::source::{Ordered, SharedSource};
use crate::{Error, Fabric, Outcome, Policy, Setup, TierKind};
pub(crate) use devices::Devices;
use foreload_plan::settings::{SLOW_S, Settings};
use node::Node;
use peers::Peers;
use placement::{Homes, Where, cluster};
use requests::{Brings, Keep, streams};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Runs the policy.
///
/// # Errors
/// When the order can't tell.
pub fn run(setup: &Setup<'_>) -> Result<Outcome, Error> {
    Run::new(setup)?.run()
}

/// An access: what a node reads at a place of its sequence.
#[derive(Clone, Copy, Debug)]
struct Want {
    node: u32,
    /// `u64::MAX`: nobody's, read for another node.
    seq: u64,
    sample: u32,
    mb: f64,
    /// Its node asked another one for it, by this number; `OWN`: it didn't.
    question: u32,
}

const OWN: u32 = u32::MAX;

/// What happens at a time; at the same time in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A node may have memory for what others ask for.
    Guests(u32),
    /// A node can admit.
    Admit(u32),
    /// A node can send another request.
    Request(u32),
    /// A stream begins.
    Begin(u32),
    /// What a node was asked for is in its memory.
    Answer(u32),
    /// It is where it was asked for, and written to memory.
    Arrived(u32),
    Answered(u32),
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
    ready: BinaryHeap<Reverse<(Ordered, Due)>>,
    /// Who else waits for what a node is reading, by node and block.
    waiting: FxHashMap<(u32, u32), Vec<Want>>,
    peers: Peers,
    settings: Settings,
    latencies: Random,
    counts: Counts,
    epoch_ends: Vec<f64>,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup<'a>) -> Result<Self, Error> {
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
        Ok(Self {
            setup,
            nodes: (0..nodes).map(|_| Node::new(setup)).collect(),
            homes: Homes::new(setup)?,
            devices: Devices::new(setup.hardware),
            streams,
            source: SharedSource::new(setup.curve.clone(), setup.hardware.share, node_of, weights),
            ready: (0..nodes).map(|n| Reverse((Ordered(0.0), Due::Admit(n)))).collect(),
            waiting: FxHashMap::default(),
            peers: Peers::new(),
            settings: Settings::default(),
            latencies: Random::new(setup.scenario.training.seed),
            counts: Counts::default(),
            epoch_ends: vec![0.0; setup.access.epochs() as usize],
        })
    }

    fn run(mut self) -> Result<Outcome, Error> {
        let mut epochs = Epochs::new(self.setup.access, access::local(self.setup)?);
        loop {
            let ready = self.ready.peek().map(|Reverse((at, _))| at.0);
            match (ready, self.source.next_end()) {
                (None, None) => break,
                (Some(at), end) if end.is_none_or(|end| at <= end) => {
                    let Some(Reverse((_, due))) = self.ready.pop() else {
                        break;
                    };
                    match due {
                        Due::Admit(node) => self.admit(node, at, &mut epochs)?,
                        Due::Request(node) => self.request(node, at),
                        Due::Begin(stream) => self.begin(stream, at),
                        Due::Guests(node) => self.place_guests(node, at),
                        Due::Answer(question) => self.send(question, at),
                        Due::Arrived(question) => self.arrived(question, at),
                        Due::Answered(question) => self.answered(question, at),
                    }
                }
                _ => {
                    let Some((stream, at)) = self.source.end_next() else {
                        break;
                    };
                    self.received(stream, at);
                }
            }
        }
        Ok(self.outcome())
    }

    fn at(&mut self, at: f64, due: Due) {
        self.ready.push(Reverse((Ordered(at), due)));
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
            let staged = held.is_some() || !self.homes.keeps_in_ram(node, sample);
            if staged && held.is_none() {
                // Neighbours come along from the source alone.
                let along_mb = match self.homes.find(node, sample) {
                    Where::Absent | Where::Nowhere => self.homes.blocks.cell_mb(),
                    _ => 0.0,
                };
                match n.room_at(self.setup, node, mb, along_mb, at) {
                    None => return Ok(()),
                    Some(room) => at = room,
                }
            }
            if at > horizon {
                self.at(at, Due::Admit(node));
                return Ok(());
            }
            self.setup.access.watch().did(1)?;
            let seq = n.admit(self.setup, node, sample, staged);
            if n.advance(self.setup, node) {
                epochs.leave(epoch);
            }
            let want = Want {
                node,
                seq,
                sample,
                mb,
                question: OWN,
            };
            let found = match held {
                Some(fetched) => self.use_held(want, fetched),
                None => self.locate(want, at),
            };
            match found {
                Some(fetched) => self.fetched(node, seq, fetched),
                // The source gained a reader, which may end before what was due next.
                None => {
                    self.at(at, Due::Admit(node));
                    return Ok(());
                }
            }
        }
    }

    /// Uses what is in staging memory, or on its way there.
    fn use_held(&mut self, want: Want, fetched: f64) -> Option<f64> {
        if fetched.is_nan() {
            self.wait(want.node, want);
            return None;
        }
        self.counts.local(TierKind::Ram, want.mb);
        Some(fetched)
    }

    /// Waits for a sample that is on its way to `node`.
    fn wait(&mut self, node: u32, want: Want) {
        let key = (node, self.homes.blocks.number(want.sample));
        self.waiting.entry(key).or_default().push(want);
    }

    /// Asks for a sample; `Some` when it is known when it will be there, `None` when another node or the source has to say.
    fn locate(&mut self, want: Want, at: f64) -> Option<f64> {
        let Want { node, sample, mb, .. } = want;
        match self.homes.find(node, sample) {
            // What is in memory is given out as it is.
            Where::Own(tier) if self.is_ram(tier) => {
                self.counts.local(TierKind::Ram, mb);
                return Some(at);
            }
            Where::Own(tier) => {
                let done = self.devices.tier_done(node, tier, mb, at);
                if !self.leaves(node, at, (self.setup.hardware.tiers[tier].read_mb_s, done)) {
                    self.devices.read_tier(node, tier, mb, at);
                    self.counts.local(self.setup.hardware.tiers[tier].kind, mb);
                    return Some(done);
                }
                self.ask_source(want, Keep::Ill, at);
            }
            Where::Peer(home) => self.ask_home(want, home, at),
            Where::Coming => self.wait(node, want),
            Where::Nowhere => self.ask_source(want, Keep::No, at),
            Where::Absent => match self.homes.choose(node, sample, &self.devices, at) {
                Some(tier) => {
                    self.keep(node, sample, tier);
                    self.ask_source(want, Keep::Home(tier), at);
                }
                None => self.ask_source(want, Keep::No, at),
            },
        }
        None
    }

    /// A node is about to read a block that it is going to keep. All of it passes through staging memory on its way to a disk.
    fn keep(&mut self, node: u32, sample: u32, tier: usize) {
        self.homes.keep(node, sample, tier);
        if !self.is_ram(tier) {
            let block = self.homes.blocks.samples(self.homes.blocks.number(sample));
            let n = &mut self.nodes[node as usize];
            block.for_each(|sample| n.staging.pass(sample, self.setup.sizes.of(sample)));
        }
    }

    fn is_ram(&self, tier: usize) -> bool {
        self.setup.hardware.tiers[tier].kind == TierKind::Ram
    }

    /// Whether the engine leaves a disk of a node for the source.
    fn leaves(&self, node: u32, at: f64, (mb_s, done): Other) -> bool {
        let wait_s = self.nodes[node as usize].requests.wait_s();
        self.settings
            .leaves_cache(done - at, wait_s, mb_s, self.source_mb_s(), SLOW_S)
    }

    /// What the source gives a node when all read. What one could get while others read from peers, it would not get if they decided alike.
    fn source_mb_s(&self) -> f64 {
        self.setup.curve.share(self.setup.hardware.nodes)
    }

    fn ask_source(&mut self, want: Want, keep: Keep, at: f64) {
        let blocks = &self.homes.blocks;
        let along = match keep {
            Keep::Home(_) => blocks.samples(blocks.number(want.sample)).collect(),
            // Neighbours are where it was to come from, too.
            Keep::Ill => vec![want.sample],
            Keep::No => self.read_soon(want, at),
        };
        let mut requests = self.homes.blocks.requests(along.iter().copied());
        let last = requests.pop().unwrap_or(want.mb);
        let due = match want.seq {
            u64::MAX => self.due(want.question),
            own => own,
        };
        let n = &mut self.nodes[want.node as usize];
        for mb in requests {
            self.counts.source(mb);
            n.requests.ask(mb, None, due);
        }
        self.counts.source(last);
        let brings = Some(Brings { want, keep, along });
        match keep == Keep::Ill && self.setup.hardware.exchanges() {
            true => n.requests.ask_first(last, brings, due),
            false => n.requests.ask(last, brings, due),
        }
        self.request(want.node, at);
    }

    /// A sample that won't stay, and its neighbours in the shard that the node reads before its staging memory turns over, as far as that has room for them
    /// and one request brings them all.
    fn read_soon(&mut self, want: Want, at: f64) -> Vec<u32> {
        let blocks = &self.homes.blocks;
        let samples = blocks.samples(blocks.number(want.sample));
        let mut along = vec![want.sample];
        if samples.len() == 1 {
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
        let mut latency_s = || hardware.draw_latency_s(&mut self.latencies);
        while let Some((stream, begin)) = requests.send(at, &mut latency_s) {
            let (mb, stream) = (requests.mb(stream), node * self.streams + stream);
            match begin > at {
                true => self.ready.push(Reverse((Ordered(begin), Due::Begin(stream)))),
                false => self.source.start(stream, mb, at),
            }
        }
        if let Some(next) = requests.wakes(at) {
            self.at(next, Due::Request(node));
        }
    }

    /// A request's latency is over: the source reads for it.
    fn begin(&mut self, stream: u32, at: f64) {
        let requests = &self.nodes[(stream / self.streams) as usize].requests;
        self.source.start(stream, requests.mb(stream % self.streams), at);
    }

    /// The source delivered what a stream was reading.
    fn received(&mut self, stream: u32, at: f64) {
        let (node, stream) = (stream / self.streams, stream % self.streams);
        let (pending, arrived) = self.nodes[node as usize].requests.received(self.setup, stream, at);
        self.request(node, at);
        let Some(Brings { want, keep, along }) = pending.brings else {
            return;
        };
        let Want { seq, sample, mb, .. } = want;
        let written = match keep {
            Keep::No | Keep::Ill => None,
            Keep::Home(tier) => {
                let written = self.devices.write_tier(node, tier, pending.mb, arrived);
                self.homes.present(node, sample);
                (!self.is_ram(tier)).then_some(written)
            }
        };
        if keep == Keep::No || written.is_some() {
            let staging = &mut self.nodes[node as usize].staging;
            staging.came_along(self.setup, &along, arrived, written);
        }
        if seq != u64::MAX {
            self.fetched(node, seq, arrived);
        } else if !matches!(keep, Keep::Home(_)) {
            // It was read for another node.
            let staging = &mut self.nodes[node as usize].staging;
            let stay = staging.admit(sample, mb);
            staging.fetched(sample, stay, arrived);
            staging.rests(sample, stay, mb, arrived);
        }
        self.share(node, want, at, arrived, &along, matches!(keep, Keep::Home(_)));
        self.wake(node, at);
    }

    /// Who else waited for what came with a want gets it: all of its block, or these samples.
    fn share(&mut self, node: u32, want: Want, at: f64, arrived: f64, along: &[u32], is_all: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let key = (node, self.homes.blocks.number(want.sample));
        let waiting = self.waiting.remove(&key).unwrap_or_default();
        // Of a block that stays nowhere, others may come with another request.
        let (served, others): (Vec<Want>, Vec<Want>) = waiting
            .into_iter()
            .partition(|want| is_all || along.contains(&want.sample));
        if !others.is_empty() {
            self.waiting.insert(key, others);
        }
        for want in served {
            match want.question {
                OWN => {
                    self.counts.local(TierKind::Ram, want.mb);
                    self.fetched(node, want.seq, arrived);
                }
                _ => self.fetched_for(node, want, at, arrived),
            }
        }
    }

    /// It is known when a sample will be in staging memory: what can be consumed in order, is.
    fn fetched(&mut self, node: u32, seq: u64, at: f64) {
        self.nodes[node as usize].fetched(self.setup, node, seq, at, &mut self.epoch_ends);
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
