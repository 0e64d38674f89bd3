//! The event loop of the paper's model: staging threads and tier prefetchers of all nodes, in the order of time.
//!
//! A thread of a node's staging takes the next sample of its sequence when it is free and the staging buffer has room; the node's p_0 threads
//! overlap, so one reads while another preprocesses, and the trainer gets the samples in order. If
//! the fastest place is local or a peer, the end of the read is known at once; if it is the source, the read joins the other
//! readers and ends when the source says so, or later: each thread has one request at a time, on one connection, which
//! has its own limit and takes its latency. A tier's p_j prefetching threads are the same with the samples that the tier wants. A thread runs on
//! without going back to the queue until another one would act before it.

use super::store::Store;
use crate::access::Epochs;
use crate::scenario::Overlap;
use crate::source::{Ordered, SharedSource};
use crate::{Consumer, Error, MbBySource, Outcome, Policy, Setup, TierKind};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

/// Threads of one pool that are told apart. Of more, each stands for several that are load-balanced.
const MOST_THREADS: f64 = 32.0;

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
    /// Nothing more has room before.
    room_since: f64,
    /// Samples on their way into the staging buffer, in order, and the number of the first.
    underway: VecDeque<Underway>,
    first: u64,
    underway_mb: f64,
    /// Threads that wait until a sample that is on its way has arrived and makes room.
    waiting: Vec<u32>,
}

/// A sample on its way into the staging buffer.
struct Underway {
    mb: f64,
    epoch: u32,
    /// Since when the trainer could have it.
    available: Option<f64>,
}

/// What a thread does that is in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It takes the next sample.
    #[default]
    Free,
    /// The source has sent what is still on its way.
    Landing,
    /// Somebody else read what it wanted: it looks for it again.
    Joined,
}

/// A thread that reads.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// Since when it reads.
    since: f64,
    state: State,
    sample: u32,
    /// Of a sample on its way into the staging buffer.
    number: u64,
}

/// A prefetcher of one tier: samples in the order of first access.
struct Prefetcher {
    wanted: Vec<u32>,
    next: usize,
}

/// What a thread works for: the staging buffer, or one of the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Staging,
    Tier(usize),
}

/// The threads that share one work.
#[derive(Clone, Copy, Debug)]
struct Team {
    works_for: For,
    /// p_j.
    threads: f64,
    /// Those that are told apart, and how many threads each of them is.
    members: usize,
    each: f64,
}

impl Team {
    fn new(works_for: For, threads: f64) -> Self {
        let members = threads.min(MOST_THREADS);
        Team {
            works_for,
            threads,
            members: members as usize,
            each: threads / members,
        }
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
    /// The team of each thread of a node.
    teams: Vec<Team>,
    /// By node and thread, as the source's streams are.
    threads: Vec<Thread>,
    source: SharedSource,
    /// Samples that are read from the source, and the threads that wait for them, where threads do.
    joined: FxHashMap<u32, Vec<u32>>,
    ready: BinaryHeap<Reverse<(Ordered, u32)>>,
    counts: Counts,
    epoch_ends: Vec<f64>,
    last: (f64, f64),
}

impl<'a, S: Store> Pipeline<'a, S> {
    /// A run that starts at time zero.
    pub fn new(setup: &'a Setup<'a>, policy: Policy, store: S, mode: Mode) -> Self {
        let nodes = setup.hardware.nodes;
        let staging = match mode {
            Mode::Serial => 1.0,
            Mode::Prefetch => setup.hardware.staging_threads,
        };
        let tiers = setup.hardware.tiers.iter().enumerate();
        let tiers = tiers.map(|(tier, speed)| Team::new(For::Tier(tier), speed.threads));
        let teams = std::iter::once(Team::new(For::Staging, staging)).chain(tiers);
        let teams: Vec<Team> = teams.flat_map(|team| std::iter::repeat_n(team, team.members)).collect();
        let streams = nodes as usize * teams.len();
        let node_of = (0..streams).map(|s| (s / teams.len()) as u32).collect();
        let weights: Vec<f64> = teams.iter().map(|team| team.each).collect();
        let node = || Node {
            consumer: Consumer::new(setup.hardware.staging_mb, 0.0),
            order: None,
            epoch: 0,
            access: 0,
            room_since: 0.0,
            underway: VecDeque::new(),
            first: 0,
            underway_mb: 0.0,
            waiting: Vec::new(),
        };
        Self {
            setup,
            policy,
            store,
            mode,
            nodes: (0..nodes).map(|_| node()).collect(),
            prefetchers: Vec::new(),
            teams,
            threads: vec![Thread::default(); streams],
            source: SharedSource::new(
                setup.curve.clone(),
                setup.hardware.share,
                node_of,
                weights.repeat(nodes as usize),
            ),
            joined: FxHashMap::default(),
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
            node.room_since = seconds;
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
        for thread in 0..self.threads.len() as u32 {
            let (node, team) = self.who(thread);
            if team.works_for == For::Staging || !self.prefetchers.is_empty() {
                self.ready.push(Reverse((Ordered(self.nodes[node].room_since), thread)));
            }
        }
        loop {
            let ready = self.ready.peek().map(|Reverse((at, _))| at.0);
            match (ready, self.source.next_end()) {
                (None, None) => break,
                (Some(at), end) if end.is_none_or(|end| at <= end) => {
                    let Some(Reverse((_, thread))) = self.ready.pop() else {
                        break;
                    };
                    match std::mem::take(&mut self.threads[thread as usize].state) {
                        State::Free => self.act(thread, at, &mut epochs)?,
                        State::Landing => self.fetched(thread, at, &mut epochs)?,
                        State::Joined => self.look_again(thread, at, &mut epochs)?,
                    }
                }
                _ => {
                    let Some((thread, at)) = self.source.end_next() else {
                        break;
                    };
                    self.sent(thread, at, &mut epochs)?;
                }
            }
        }
        let mut outcome = Outcome::new(self.policy);
        outcome.set_times(&self.epoch_ends, self.last.1);
        self.counts
            .report(&mut outcome, self.store.coverage(), self.setup.sizes.samples());
        Ok(outcome)
    }

    /// A thread's node, and its team.
    fn who(&self, thread: u32) -> (usize, Team) {
        let (node, own) = (thread as usize / self.teams.len(), thread as usize % self.teams.len());
        (node, self.teams[own])
    }

    fn act(&mut self, thread: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let (node, team) = self.who(thread);
        match team.works_for {
            For::Staging => self.stage(thread, node, team, at, epochs),
            For::Tier(tier) => {
                self.fill(thread, node, tier, team, at);
                Ok(())
            }
        }
    }

    /// `thread` reads its sample from the source, or waits for whoever does.
    fn ask_source(&mut self, thread: u32, at: f64) {
        let reader = &mut self.threads[thread as usize];
        if self.setup.scenario.source.overlap == Overlap::Join {
            match self.joined.entry(reader.sample) {
                Entry::Occupied(mut others) => {
                    others.get_mut().push(thread);
                    return;
                }
                Entry::Vacant(first) => drop(first.insert(Vec::new())),
            }
        }
        reader.since = at;
        let mb = self.setup.sizes.of(reader.sample);
        self.counts.source(mb);
        self.source.start(thread, mb, at);
    }

    /// Somebody else has read the sample that `thread` wanted.
    fn look_again(&mut self, thread: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let ((node, team), sample) = (self.who(thread), self.threads[thread as usize].sample);
        if team.works_for != For::Staging && self.store.find(node as u32, sample).own.is_some() {
            return self.act(thread, at, epochs);
        }
        let free = match (team.works_for, self.fetch(node, team, sample, at)) {
            (_, From::Source) => {
                self.ask_source(thread, at);
                return Ok(());
            }
            (For::Staging, From::Done(at)) => self.staged(thread, node, team, at)?,
            (For::Tier(tier), From::Done(at)) => at + self.write_s(tier, team, self.setup.sizes.of(sample)),
        };
        self.act_from(thread, free, epochs)
    }

    /// The source sent what `thread` reads; its request has a latency, and its connection may be slower.
    fn sent(&mut self, thread: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let (hardware, (_, team)) = (self.setup.hardware, self.who(thread));
        let reader = &mut self.threads[thread as usize];
        let least_s = self.setup.sizes.of(reader.sample) / (team.each * hardware.connection_mb_s);
        let arrived = at.max(reader.since + least_s) + hardware.latency_s / team.each;
        if arrived > at {
            reader.state = State::Landing;
            self.ready.push(Reverse((Ordered(arrived), thread)));
            return Ok(());
        }
        self.fetched(thread, at, epochs)
    }

    /// What a thread read has arrived: it is written, and then the thread is free.
    fn fetched(&mut self, thread: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        let ((node, team), sample) = (self.who(thread), self.threads[thread as usize].sample);
        self.store.arrived(node as u32, sample);
        for waiting in self.joined.remove(&sample).unwrap_or_default() {
            self.threads[waiting as usize].state = State::Joined;
            self.ready.push(Reverse((Ordered(at), waiting)));
        }
        let free = match team.works_for {
            For::Staging => self.staged(thread, node, team, at)?,
            For::Tier(tier) => at + self.write_s(tier, team, self.setup.sizes.of(sample)),
        };
        self.act_from(thread, free, epochs)
    }

    /// Goes on at `at`: at once, if nothing else happens before.
    fn act_from(&mut self, thread: u32, at: f64, epochs: &mut Epochs<'_>) -> Result<(), Error> {
        if at > self.horizon() {
            self.ready.push(Reverse((Ordered(at), thread)));
            return Ok(());
        }
        self.act(thread, at, epochs)
    }

    /// What one of a tier's threads takes to write; `team` has them.
    fn write_s(&self, tier: usize, team: Team, mb: f64) -> f64 {
        mb * team.members as f64 / self.setup.hardware.tiers[tier].write_mb_s
    }

    /// When anything else happens, at the earliest.
    fn horizon(&self) -> f64 {
        let ready = self.ready.peek().map_or(f64::INFINITY, |Reverse((at, _))| at.0);
        ready.min(self.source.next_end().unwrap_or(f64::INFINITY))
    }

    /// A staging thread takes samples until one must come from the source, or another thread is due.
    fn stage(
        &mut self,
        thread: u32,
        node: usize,
        team: Team,
        mut at: f64,
        epochs: &mut Epochs<'_>,
    ) -> Result<(), Error> {
        loop {
            let Some(planned) = self.next_sample(node, epochs)? else {
                return Ok(());
            };
            let n = &mut self.nodes[node];
            let mb = self.setup.sizes.of(planned);
            let earliest = match self.mode {
                Mode::Serial => n.consumer.free_at().max(at),
                Mode::Prefetch => at,
            };
            n.room_since = n.consumer.room_at(n.underway_mb + mb, n.room_since);
            let start = n.room_since.max(earliest);
            if n.underway_mb > 0.0 && n.underway_mb + mb > self.setup.hardware.staging_mb {
                // What is on its way fills the buffer, and what it holds besides is consumed before.
                n.waiting.push(thread);
                return Ok(());
            }
            if start > self.horizon() {
                self.ready.push(Reverse((Ordered(start), thread)));
                return Ok(());
            }
            let sample = self.store.choose(node as u32, planned);
            self.take(thread, node, sample, epochs);
            at = match self.fetch(node, team, sample, start) {
                From::Done(at) => self.staged(thread, node, team, at)?,
                From::Source => {
                    self.ask_source(thread, start);
                    return Ok(());
                }
            };
            if at > self.horizon() {
                self.ready.push(Reverse((Ordered(at), thread)));
                return Ok(());
            }
        }
    }

    fn next_sample(&mut self, node: usize, epochs: &mut Epochs<'_>) -> Result<Option<u32>, Error> {
        let per_epoch = self.setup.access.per_epoch(node as u32);
        let n = &mut self.nodes[node];
        if n.epoch == self.setup.access.epochs() || per_epoch == 0 {
            return Ok(None);
        }
        let order = match &n.order {
            Some(order) => order,
            None => n.order.insert(epochs.get(n.epoch)?),
        };
        Ok(Some(
            order[(u64::from(n.access) * u64::from(self.setup.hardware.nodes)) as usize + node],
        ))
    }

    /// The node's next read is this thread's.
    fn take(&mut self, thread: u32, node: usize, sample: u32, epochs: &mut Epochs<'_>) {
        let (n, mb) = (&mut self.nodes[node], self.setup.sizes.of(sample));
        let reader = &mut self.threads[thread as usize];
        (reader.sample, reader.number) = (sample, n.first + n.underway.len() as u64);
        n.underway.push_back(Underway {
            mb,
            epoch: n.epoch,
            available: None,
        });
        n.underway_mb += mb;
        n.access += 1;
        if n.access == self.setup.access.per_epoch(node as u32) {
            epochs.leave(n.epoch);
            (n.order, n.access, n.epoch) = (None, 0, n.epoch + 1);
        }
    }

    /// What one of `threads` gets if it reads `mb` from the source now, its request's latency included.
    fn source_mb_s(&self, node: usize, threads: f64, mb: f64) -> f64 {
        let hardware = self.setup.hardware;
        let mb_s = self
            .source
            .per_thread(node as u32, threads)
            .min(hardware.connection_mb_s);
        match hardware.latency_s > 0.0 {
            true => mb / (mb / mb_s + hardware.latency_s),
            false => mb_s,
        }
    }

    /// The fastest place, and when a local or remote read ends.
    fn fetch(&mut self, node: usize, team: Team, sample: u32, start: f64) -> From {
        let found = self.store.find(node as u32, sample);
        if found.own.is_none() && found.peer.is_none() {
            return From::Source;
        }
        let hardware = self.setup.hardware;
        let own = found.own.map_or(0.0, |t| hardware.tiers[t as usize].per_thread_mb_s());
        let peer = found.peer.map_or(0.0, |t| hardware.peer_mb_s(t as usize));
        let mb = self.setup.sizes.of(sample);
        let source = self.source_mb_s(node, team.threads, mb);
        if source > own && source > peer {
            return From::Source;
        }
        if own >= peer {
            let kind = found.own.map_or(TierKind::Ram, |t| hardware.tiers[t as usize].kind);
            self.counts.local(kind, mb);
            From::Done(start + mb / own / team.each)
        } else {
            self.counts.mb.peer += mb;
            self.store.arrived(node as u32, sample);
            From::Done(start + mb / peer / team.each)
        }
    }

    /// What a staging thread read was fetched at `at`: preprocessed, stored, and handed to the trainer when all before it was. Returns when the
    /// thread is free.
    fn staged(&mut self, thread: u32, node: usize, team: Team, at: f64) -> Result<f64, Error> {
        let hardware = self.setup.hardware;
        let per_mb = match self.mode {
            Mode::Serial => hardware.preprocess_s_per_mb,
            Mode::Prefetch => hardware.write_s_per_mb,
        };
        let (number, n) = (self.threads[thread as usize].number, &mut self.nodes[node]);
        let own = &mut n.underway[(number - n.first) as usize];
        let free = at + own.mb * per_mb / team.each;
        own.available = Some(free);
        while let Some(available) = n.underway.front().and_then(|front| front.available) {
            let Some(Underway { mb, epoch, .. }) = n.underway.pop_front() else {
                break;
            };
            n.first += 1;
            n.underway_mb = if n.underway.is_empty() { 0.0 } else { n.underway_mb - mb };
            n.consumer.deliver(mb, available, self.setup.compute.seconds(mb));
            let (end, free) = (&mut self.epoch_ends[epoch as usize], n.consumer.free_at());
            *end = end.max(free);
            if free > self.last.0 {
                self.last = (free, n.consumer.computed_s());
            }
        }
        for waiting in n.waiting.drain(..) {
            self.ready.push(Reverse((Ordered(at), waiting)));
        }
        self.setup.access.watch().did(1)?;
        Ok(free)
    }

    /// A tier's prefetching thread takes the next samples that the tier wants and the node hasn't got.
    fn fill(&mut self, thread: u32, node: usize, tier: usize, team: Team, mut at: f64) {
        let hardware = self.setup.hardware;
        let index = node * hardware.tiers.len() + tier;
        let horizon = self.horizon();
        loop {
            let prefetcher = &mut self.prefetchers[index];
            let Some(sample) = prefetcher.wanted.get(prefetcher.next).copied() else {
                return;
            };
            let found = self.store.find(node as u32, sample);
            if found.own.is_some() {
                prefetcher.next += 1;
                continue;
            }
            if at > horizon {
                self.ready.push(Reverse((Ordered(at), thread)));
                return;
            }
            prefetcher.next += 1;
            let mb = self.setup.sizes.of(sample);
            let peer = found.peer.map_or(0.0, |t| hardware.peer_mb_s(t as usize));
            if self.source_mb_s(node, team.threads, mb) > peer {
                self.threads[thread as usize].sample = sample;
                self.ask_source(thread, at);
                return;
            }
            self.counts.mb.peer += mb;
            self.store.arrived(node as u32, sample);
            at += mb / peer / team.each + self.write_s(tier, team, mb);
        }
    }
}
