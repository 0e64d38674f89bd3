//! The event loop of the paper's model: staging threads and tier prefetchers of all nodes, in the order of time.
//!
//! A node's staging server takes the next sample of its sequence when its threads are free and the staging buffer has room. If
//! the fastest place is local or a peer, the end of the read is known at once; if it is the source, the read joins the other
//! readers and ends when the source says so, or later: each thread has one request at a time, on one connection, which
//! has its own limit and takes its latency. A server runs on without going back to the queue until another server
//! would act before it.

use super::store::Store;
use crate::access::Epochs;
use crate::source::{Ordered, SharedSource};
use crate::{Consumer, Error, MbBySource, Outcome, Policy, Setup, TierKind};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// How a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One sample after the other, nothing overlaps.
    Serial,
    /// p_0 threads fill the staging buffer ahead of the trainer.
    Prefetch,
}

/// Bytes and requests so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Bytes by source.
    pub mb: MbBySource,
    /// Reads of the source.
    pub requests: u64,
}

impl Counts {
    /// A read from the node's own tier.
    pub fn local(&mut self, kind: TierKind, mb: f64) {
        match kind {
            TierKind::Disk => self.mb.disk += mb,
            TierKind::Ram | TierKind::Staging => self.mb.ram += mb,
        }
    }

    /// A read from the source.
    pub fn source(&mut self, mb: f64) {
        self.mb.source += mb;
        self.requests += 1;
    }

    /// Writes them, with (samples cached, copies), into an outcome.
    pub fn report(&self, outcome: &mut Outcome, (kept, copies): (u64, u64), samples: u32) {
        outcome.mb_by_source = self.mb;
        outcome.requests = self.requests;
        outcome.coverage = kept as f64 / f64::from(samples);
        outcome.copies = if kept == 0 { 0.0 } else { copies as f64 / kept as f64 };
    }
}

/// Where a read goes.
enum From {
    Done(f64),
    Source,
}

struct Node {
    consumer: Consumer,
    order: Option<Rc<[u32]>>,
    epoch: u32,
    access: u32,
    threads_free: f64,
    /// The sample that is being read from the source.
    reading: u32,
}

/// A prefetcher of one tier: samples in the order of first access.
struct Prefetcher {
    wanted: Vec<u32>,
    next: usize,
}

impl Prefetcher {
    /// The one that it reads.
    fn sample(&self) -> u32 {
        self.wanted[self.next]
    }
}

/// A run of one policy.
pub struct Pipeline<'a, S> {
    setup: &'a Setup<'a>,
    policy: Policy,
    store: S,
    mode: Mode,
    nodes: Vec<Node>,
    /// By node and tier; empty when the policy has none.
    prefetchers: Vec<Prefetcher>,
    streams_per_node: u32,
    source: SharedSource,
    /// By stream: since when it reads, and whether the source has sent what is still on its way.
    since: Vec<f64>,
    landing: Vec<bool>,
    ready: BinaryHeap<Reverse<(Ordered, u32)>>,
    counts: Counts,
    epoch_ends: Vec<f64>,
    last: (f64, f64),
}

impl<'a, S: Store> Pipeline<'a, S> {
    /// A run that starts at time zero.
    pub fn new(setup: &'a Setup<'a>, policy: Policy, store: S, mode: Mode) -> Self {
        let (nodes, tiers) = (setup.hardware.nodes, setup.hardware.tiers.len() as u32);
        let staging_threads = match mode {
            Mode::Serial => 1.0,
            Mode::Prefetch => setup.hardware.staging_threads,
        };
        let weights = std::iter::once(staging_threads).chain(setup.hardware.tiers.iter().map(|t| t.threads));
        let weights: Vec<f64> = weights.collect();
        let streams = 1 + tiers;
        let node_of = (0..nodes * streams).map(|s| s / streams).collect();
        let weight_of = weights.repeat(nodes as usize);
        let node = || Node {
            consumer: Consumer::new(setup.hardware.staging_mb, 0.0),
            order: None,
            epoch: 0,
            access: 0,
            threads_free: 0.0,
            reading: 0,
        };
        Self {
            setup,
            policy,
            store,
            mode,
            nodes: (0..nodes).map(|_| node()).collect(),
            prefetchers: Vec::new(),
            streams_per_node: streams,
            source: SharedSource::new(setup.curve.clone(), setup.hardware.share, node_of, weight_of),
            since: vec![0.0; (nodes * streams) as usize],
            landing: vec![false; (nodes * streams) as usize],
            ready: BinaryHeap::new(),
            counts: Counts::default(),
            epoch_ends: vec![0.0; setup.access.epochs() as usize],
            last: (0.0, 0.0),
        }
    }

    /// Everything before `seconds` went into reading `mb` with `requests`.
    pub fn start_at(&mut self, seconds: f64, mb: f64, requests: u64) {
        for node in &mut self.nodes {
            node.consumer = Consumer::new(self.setup.hardware.staging_mb, seconds);
            node.threads_free = seconds;
        }
        self.counts.mb.source += mb;
        self.counts.requests += requests;
    }

    /// Adds a prefetcher per node and tier; `wanted` is by node, then tier.
    pub fn prefetch(&mut self, wanted: Vec<Vec<u32>>) {
        self.prefetchers = wanted
            .into_iter()
            .map(|wanted| Prefetcher { wanted, next: 0 })
            .collect();
    }

    /// Runs to the end.
    pub fn run(mut self, mut epochs: Epochs<'_>) -> Result<Outcome, Error> {
        for stream in 0..self.nodes.len() as u32 * self.streams_per_node {
            let (node, tier) = (stream / self.streams_per_node, stream % self.streams_per_node);
            if tier == 0 || !self.prefetchers.is_empty() {
                let at = self.nodes[node as usize].threads_free;
                self.ready.push(Reverse((Ordered(at), stream)));
            }
        }
        loop {
            let ready = self.ready.peek().map(|Reverse((at, _))| at.0);
            match (ready, self.source.next_end()) {
                (None, None) => break,
                (Some(at), end) if end.is_none_or(|end| at <= end) => {
                    let Some(Reverse((_, stream))) = self.ready.pop() else {
                        break;
                    };
                    self.act(stream, at, &mut epochs)?;
                }
                _ => {
                    let Some((stream, at)) = self.source.end_next() else {
                        break;
                    };
                    self.sent(stream, at, &mut epochs)?;
                }
            }
        }
        let mut outcome = Outcome::new(self.policy);
        outcome.set_times(&self.epoch_ends, self.last.1);
        self.counts
            .report(&mut outcome, self.store.coverage(), self.setup.sizes.samples());
        Ok(outcome)
    }

    fn act(&mut self, stream: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        if std::mem::take(&mut self.landing[stream as usize]) {
            return self.fetched(stream, at, epochs);
        }
        let (node, tier) = (stream / self.streams_per_node, stream % self.streams_per_node);
        match tier {
            0 => self.stage(node, epochs),
            tier => {
                self.fill(node, tier as usize - 1, at);
                Ok(())
            }
        }
    }

    fn ask_source(&mut self, stream: u32, mb: f64, at: f64) {
        self.counts.source(mb);
        self.since[stream as usize] = at;
        self.source.start(stream, mb, at);
    }

    /// The source sent what `stream` reads; its threads' requests have a latency, and their connections may be slower.
    fn sent(&mut self, stream: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let (node, tier) = (stream / self.streams_per_node, stream % self.streams_per_node);
        let hardware = self.setup.hardware;
        let (threads, sample) = match tier.checked_sub(1) {
            None => (self.threads(), self.nodes[node as usize].reading),
            Some(tier) => (
                hardware.tiers[tier as usize].threads,
                self.prefetcher(node, tier).sample(),
            ),
        };
        let least_s = self.setup.sizes.of(sample) / (threads * hardware.connection_mb_s);
        let arrived = at.max(self.since[stream as usize] + least_s) + hardware.latency_s / threads;
        if arrived > at {
            self.landing[stream as usize] = true;
            self.ready.push(Reverse((Ordered(arrived), stream)));
            return Ok(());
        }
        self.fetched(stream, at, epochs)
    }

    fn prefetcher(&mut self, node: u32, tier: u32) -> &mut Prefetcher {
        &mut self.prefetchers[(node * (self.streams_per_node - 1) + tier) as usize]
    }

    fn fetched(&mut self, stream: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let (node, tier) = (stream / self.streams_per_node, stream % self.streams_per_node);
        if tier == 0 {
            let sample = self.nodes[node as usize].reading;
            self.store.arrived(node, sample);
            self.staged(node, sample, at, epochs)?;
            return self.stage(node, epochs);
        }
        let prefetcher = self.prefetcher(node, tier - 1);
        let sample = prefetcher.sample();
        prefetcher.next += 1;
        self.store.arrived(node, sample);
        let done = at + self.setup.sizes.of(sample) / self.setup.hardware.tiers[tier as usize - 1].write_mb_s;
        self.ready.push(Reverse((Ordered(done), stream)));
        Ok(())
    }

    fn threads(&self) -> f64 {
        match self.mode {
            Mode::Serial => 1.0,
            Mode::Prefetch => self.setup.hardware.staging_threads,
        }
    }

    /// When anything else happens, at the earliest.
    fn horizon(&self) -> f64 {
        let ready = self.ready.peek().map_or(f64::INFINITY, |Reverse((at, _))| at.0);
        ready.min(self.source.next_end().unwrap_or(f64::INFINITY))
    }

    /// A node's staging threads take samples until one must come from the source, or another server is due.
    fn stage(&mut self, node: u32, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let horizon = self.horizon();
        loop {
            let Some(planned) = self.next_sample(node, epochs)? else {
                return Ok(());
            };
            let n = &mut self.nodes[node as usize];
            let mb = self.setup.sizes.of(planned);
            let earliest = match self.mode {
                Mode::Serial => n.consumer.free_at().max(n.threads_free),
                Mode::Prefetch => n.threads_free,
            };
            let start = n.consumer.room_at(mb, earliest);
            n.threads_free = start;
            if start > horizon {
                self.ready.push(Reverse((Ordered(start), node * self.streams_per_node)));
                return Ok(());
            }
            let sample = self.store.choose(node, planned);
            match self.fetch(node, sample, start) {
                From::Done(at) => self.staged(node, sample, at, epochs)?,
                From::Source => {
                    self.nodes[node as usize].reading = sample;
                    self.ask_source(node * self.streams_per_node, self.setup.sizes.of(sample), start);
                    return Ok(());
                }
            }
        }
    }

    fn next_sample(&mut self, node: u32, epochs: &mut Epochs<'_>) -> Result<Option<u32>, Error> {
        let n = &mut self.nodes[node as usize];
        if n.epoch == self.setup.access.epochs() || self.setup.access.per_epoch(node) == 0 {
            return Ok(None);
        }
        let order = match &n.order {
            Some(order) => order,
            None => n.order.insert(epochs.get(n.epoch)?),
        };
        Ok(Some(
            order[(u64::from(n.access) * u64::from(self.setup.hardware.nodes)) as usize + node as usize],
        ))
    }

    /// What one of `threads` gets if it reads `mb` from the source now, its request's latency included.
    fn source_mb_s(&self, node: u32, threads: f64, mb: f64) -> f64 {
        let hardware = self.setup.hardware;
        let mb_s = self.source.per_thread(node, threads).min(hardware.connection_mb_s);
        match hardware.latency_s > 0.0 {
            true => mb / (mb / mb_s + hardware.latency_s),
            false => mb_s,
        }
    }

    /// The fastest place, and when a local or remote read ends.
    fn fetch(&mut self, node: u32, sample: u32, start: f64) -> From {
        let found = self.store.find(node, sample);
        if found.own.is_none() && found.peer.is_none() {
            return From::Source;
        }
        let hardware = self.setup.hardware;
        let threads = self.threads();
        let own = found.own.map_or(0.0, |t| hardware.tiers[t as usize].per_thread_mb_s());
        let peer = found.peer.map_or(0.0, |t| hardware.peer_mb_s(t as usize));
        let mb = self.setup.sizes.of(sample);
        let source = self.source_mb_s(node, threads, mb);
        if source > own && source > peer {
            return From::Source;
        }
        if own >= peer {
            let kind = found.own.map_or(TierKind::Ram, |t| hardware.tiers[t as usize].kind);
            self.counts.local(kind, mb);
            From::Done(start + mb / own / threads)
        } else {
            self.counts.mb.peer += mb;
            self.store.arrived(node, sample);
            From::Done(start + mb / peer / threads)
        }
    }

    /// A sample was fetched at `at`: preprocessed, stored and handed to the trainer.
    fn staged(&mut self, node: u32, sample: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let (hardware, mb) = (self.setup.hardware, self.setup.sizes.of(sample));
        let threads = self.threads();
        let per_mb = match self.mode {
            Mode::Serial => hardware.preprocess_s_per_mb,
            Mode::Prefetch => hardware.write_s_per_mb,
        };
        let n = &mut self.nodes[node as usize];
        n.threads_free = at + mb * per_mb / threads;
        n.consumer.deliver(mb, n.threads_free, self.setup.compute.seconds(mb));
        n.access += 1;
        if n.access == self.setup.access.per_epoch(node) {
            let end = &mut self.epoch_ends[n.epoch as usize];
            *end = end.max(n.consumer.free_at());
            if n.consumer.free_at() > self.last.0 {
                self.last = (n.consumer.free_at(), n.consumer.computed_s());
            }
            epochs.leave(n.epoch);
            (n.order, n.access, n.epoch) = (None, 0, n.epoch + 1);
        }
        self.setup.access.watch().did(1)
    }

    /// A tier's prefetcher takes the next sample that it wants and the node hasn't got.
    fn fill(&mut self, node: u32, tier: usize, mut at: f64) {
        let hardware = self.setup.hardware;
        let index = node as usize * (self.streams_per_node as usize - 1) + tier;
        let stream = node * self.streams_per_node + 1 + tier as u32;
        let threads = hardware.tiers[tier].threads;
        let horizon = self.horizon();
        loop {
            let prefetcher = &mut self.prefetchers[index];
            let Some(sample) = prefetcher.wanted.get(prefetcher.next).copied() else {
                return;
            };
            let found = self.store.find(node, sample);
            if found.own.is_some() {
                prefetcher.next += 1;
                continue;
            }
            if at > horizon {
                self.ready.push(Reverse((Ordered(at), stream)));
                return;
            }
            let mb = self.setup.sizes.of(sample);
            let peer = found.peer.map_or(0.0, |t| hardware.peer_mb_s(t as usize));
            if self.source_mb_s(node, threads, mb) > peer {
                self.ask_source(stream, mb, at);
                return;
            }
            self.prefetchers[index].next += 1;
            self.counts.mb.peer += mb;
            self.store.arrived(node, sample);
            at += mb / peer / threads + mb / hardware.tiers[tier].write_mb_s;
        }
    }
}
