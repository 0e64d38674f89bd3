//! Drives the engine's own policy, [`Scheduler`], on modelled hardware: the same decisions for the same events.
//!
//! The engine carries a scheduler's actions out with sockets and files; here they go to queues under a virtual clock. One rank per
//! node asks as a loader does: for two batches beyond the one it waits for, within an epoch, so two are prepared while one is computed on. Each load from the
//! bucket is a stream of the shared source, begun after the request's latency; disk reads and writes are first-come queues. Memory is written at
//! the RAM tier's `write_mb_s` while it is fresh, because the kernel has to hand it out.
//! Steps are recorded, so a run can be replayed and compared with the policy, as the engine's tests do.
//!
//! A scheduler plans for one node. Several nodes share the source; where they have a network, each knows the others, and what a peer is asked for goes through
//! that one's scheduler and then through the network, in the order of asking.

use crate::consumer::AHEAD;
use crate::foreload::Devices;
use crate::random::Random;
use crate::source::{Ordered, SharedSource};
use crate::{Compute, Error, MbBySource, Outcome, Policy, Setup, TierKind, access};
use foreload_plan::action::{Action, Command, Event, Failure, Handle, Item, Source, Via};
use foreload_plan::catalog::{Catalog, Objects, Place, Shards};
use foreload_plan::deal::Deal;
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::homes::Member;
use foreload_plan::job::{Reads, Set};
use foreload_plan::order::Order;
use foreload_plan::placement::frequency::Ranking;
use foreload_plan::replay::Recorded;
use foreload_plan::scheduler::{Next, Scheduler};
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::split::Split;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

const MB: f64 = 1_048_576.0;
/// Loads in flight per node at most: what the scheduler's own limit can reach, hedges included.
const STREAMS: u32 = 2 * ConcurrencySettings::MOST;
/// Between ticks: late loads are noticed that soon.
const TICK_S: f64 = 0.01;
/// Seconds that an access and a tick take to simulate: upper bounds of what was seen on one slow core.
const ACCESS_S: f64 = 2e-6;
const TICKED_S: f64 = 5e-7;
/// Requests of peers have this bit, and those of a node's own rank haven't.
const GUEST: u64 = 1 << 62;
/// A hundred days: 10^9 ticks. The policy's clock counts nanoseconds.
const MOST_S: f64 = 8.64e6;

/// About how long it takes to drive the scheduler through a scenario whose run takes at least `bound_s`: a run that waits for data takes longer than its bound.
#[must_use]
pub fn takes_s(setup: &Setup<'_>, bound_s: f64) -> f64 {
    let accesses = f64::from(setup.sizes.samples()) * f64::from(setup.access.epochs());
    let ticks = 2.0 * bound_s / TICK_S * f64::from(setup.hardware.nodes);
    accesses * ACCESS_S + ticks * TICKED_S
}

/// A finished run: what it took, and what was decided.
pub struct Run {
    /// As the other models report it.
    pub outcome: Outcome,
    /// By node, for [`foreload_plan::replay::replay`]; complete when the run was told to record.
    pub logs: Vec<Recorded>,
}

/// A scheduler for `node`, as a run of `policy` makes it; a replay needs a fresh one.
///
/// # Errors
/// When the policy is not the engine's, or the order can't be shared.
pub fn scheduler(
    setup: &Setup<'_>,
    policy: Policy,
    node: u32,
    ranking: Option<&Arc<Ranking>>,
) -> Result<Scheduler, Error> {
    let bytes = |mb: f64| (mb * MB) as u64;
    let lengths = setup.sizes.mb.iter().map(|mb| bytes(f64::from(*mb)).max(1));
    let catalog: Arc<dyn Catalog> = match &setup.sizes.places {
        None => Arc::new(Objects(lengths.collect())),
        Some(places) => {
            let place = |(len, &(object, offset))| Place { object, offset, len };
            Arc::new(Shards(lengths.zip(places).map(place).collect()))
        }
    };
    let of = |kind: TierKind| setup.hardware.tiers.iter().filter(move |t| t.kind == kind);
    let staging = bytes(setup.hardware.staging_mb);
    let disk = |mb: f64| TierSettings {
        capacity_bytes: bytes(mb),
        pinned: None,
    };
    let settings = Settings {
        policy: planned(setup, policy),
        ram_bytes: staging + of(TierKind::Ram).map(|t| bytes(t.capacity_mb)).sum::<u64>(),
        staging_bytes: Some(staging),
        tiers: of(TierKind::Disk).map(|t| disk(t.capacity_mb)).collect(),
        concurrency: ConcurrencySettings::default().at_most(setup.hardware.requests_in_flight),
        hedge_per_cent: 0,
        load_timeout_ns: u64::MAX / 4,
        ..Settings::default()
    };
    let reads = Reads {
        sets: vec![Set::new(0, catalog)],
        order: Order::new(&access::spec(setup.scenario, setup.sizes.samples()))?,
        world: setup.hardware.nodes,
        uneven: true,
        deal: deal(setup)?,
        ranking: ranking.cloned(),
        ranks: vec![node],
        ram_bytes: None,
        largest: None,
        epochs: Some(setup.access.epochs()),
    };
    Ok(Scheduler::for_one(settings, &reads)?)
}

/// Who reads what, where that follows from what nodes keep.
fn deal(setup: &Setup<'_>) -> Result<Option<Deal>, Error> {
    let nodes = || (0..setup.hardware.nodes).map(u64::from).collect();
    Ok(access::is_local(setup)?.then(|| Deal::new(nodes(), 0)))
}

/// What each node reads most often, where the policy goes by that.
///
/// # Errors
/// When the order can't be shared, or there is too much to count.
pub fn ranking(setup: &Setup<'_>, policy: Policy) -> Result<Option<Arc<Ranking>>, Error> {
    if policy != Policy::Frequency {
        return Ok(None);
    }
    let order = Order::new(&access::spec(setup.scenario, setup.sizes.samples()))?;
    let split = Split::weighted(&order, setup.hardware.nodes)?;
    let nodes: Vec<u64> = (0..setup.hardware.nodes).map(u64::from).collect();
    let watch = setup.access.watch();
    let ranking = Ranking::new(&order, &split, &nodes, setup.access.epochs(), |_, _| watch.ask())?;
    Ok(Some(Arc::new(ranking)))
}

/// All nodes of a cluster whose nodes exchange samples, as one of them hears of it: each keeps what its tiers hold.
#[must_use]
pub fn members(setup: &Setup<'_>, node: u32) -> Event {
    let tiers = setup.hardware.tiers.iter().map(|tier| (tier.capacity_mb * MB) as u64);
    let bytes = tiers.fold(0, u64::saturating_add);
    let member = |node: u32| {
        (
            node as u16,
            Member {
                id: u64::from(node),
                bytes,
            },
        )
    };
    Event::Peers {
        me: u64::from(node),
        members: (0..setup.hardware.nodes).map(member).collect(),
    }
}

/// With the scenario's numbers.
fn planned(setup: &Setup<'_>, policy: Policy) -> Policy {
    let Policy::Deli { .. } = policy else { return policy };
    let deli = &setup.scenario.deli;
    let held = (setup.scenario.node_capacity_mb() / setup.sizes.mean_mb()) as u64;
    let cache = deli.cache_samples.unwrap_or(held);
    let narrow = |samples: u64| u32::try_from(samples).unwrap_or(u32::MAX);
    Policy::Deli {
        fetch: narrow(deli.fetch_samples.unwrap_or(cache / 2)),
        threshold: narrow(deli.threshold_samples.unwrap_or(cache / 2)),
        cache,
    }
}

/// What happens at a time.
enum Due {
    /// A load's latency is over: it starts to receive.
    Begin { slot: u32 },
    /// A load's bytes have come.
    Fill { slot: u32 },
    /// A load or a write ends.
    End { slot: u32 },
    /// A load or a write fails.
    Fail { slot: u32 },
    /// A load asks a peer.
    Ask { slot: u32 },
    /// A peer hasn't got what a load asked it for.
    Lack { slot: u32 },
    /// Who asked for it isn't to wait any longer.
    Withdraw { request: u64 },
    /// What a peer was lent has been sent.
    Sent { handles: Vec<Handle> },
    /// The trainer takes the batch that was prepared, and asks for the next.
    Take,
    /// The trainer is through with its batch.
    Release,
    /// The scheduler asked for another step.
    Tick,
}

/// An action under way.
struct Flying {
    action: Action,
    mb: f64,
    since: f64,
    latency_s: f64,
    /// A peer fetched it for us: how long that took says nothing of the peer.
    is_apart: bool,
}

impl Flying {
    fn new(action: Action, mb: f64, since: f64, latency_s: f64) -> Self {
        Flying {
            action,
            mb,
            since,
            latency_s,
            is_apart: false,
        }
    }
}

/// A delivered batch.
struct Prepared {
    items: Vec<Item>,
    ready_at: f64,
    compute_s: f64,
}

struct Node {
    recorded: Recorded,
    /// The first `STREAMS` are loads from the bucket, because a slot is also a stream of the source; disk reads and writes come behind.
    flying: Vec<Option<Flying>>,
    free: Vec<u32>,
    free_elsewhere: Vec<u32>,
    under_way: u32,
    /// Made of the source.
    requests: u64,
    /// Of the next batch to ask for; batches asked for and taken so far.
    batch: (u32, u64),
    asked: u64,
    taken: u64,
    prepared_at: f64,
    free_at: f64,
    computed_s: f64,
    /// Memory that nothing has been written to; when the thread that writes it is through.
    fresh_mb: f64,
    filled_at: f64,
    /// Delivered and being prepared, by request; being computed on.
    prepared: BTreeMap<u64, Prepared>,
    training: Option<Vec<Item>>,
    ticking: bool,
}

struct Driver<'a> {
    setup: &'a Setup<'a>,
    nodes: Vec<Node>,
    devices: Devices,
    source: SharedSource,
    due: BinaryHeap<Reverse<(Ordered, u64, u32)>>,
    events: Vec<Option<Due>>,
    spare: Vec<u64>,
    compute: Compute,
    mb: MbBySource,
    requests: u64,
    ends: Vec<f64>,
    batches: u64,
    disks: Vec<usize>,
    sequence: u64,
    refused: Option<String>,
    samples_taken: u64,
    latencies: Random,
    fill_mb_s: f64,
    /// Questions to peers so far, and those that are open: who asks, and with which load.
    asked: u64,
    guests: BTreeMap<u64, (u32, u32)>,
}

/// Runs the engine's policy on every node; `record` keeps all steps for a replay.
///
/// # Errors
/// When the policy is not the engine's, or the order can't be shared.
pub fn run(setup: &Setup<'_>, policy: Policy, record: bool) -> Result<Run, Error> {
    let nodes = setup.hardware.nodes;
    let (memory_mb, fill_mb_s) = setup.hardware.memory();
    let ranking = ranking(setup, policy)?;
    let mut all = Vec::new();
    for node in 0..nodes {
        let recorded = Recorded::new(
            scheduler(setup, policy, node, ranking.as_ref())?,
            if record { None } else { Some(0) },
        );
        all.push(Node::new(recorded, memory_mb));
    }
    let batches = all.first().map_or(0, |n| n.batches());
    let streams = nodes * STREAMS;
    let node_of = (0..streams).map(|s| s / STREAMS).collect();
    let disks = setup
        .hardware
        .tiers
        .iter()
        .enumerate()
        .filter(|(_, t)| t.kind == TierKind::Disk)
        .map(|(i, _)| i);
    let mut driver = Driver {
        setup,
        nodes: all,
        devices: Devices::new(setup.hardware),
        source: SharedSource::new(
            setup.curve.clone(),
            crate::Share::Shared,
            node_of,
            vec![1.0; streams as usize],
        ),
        due: BinaryHeap::new(),
        events: Vec::new(),
        spare: Vec::new(),
        compute: setup.compute,
        mb: MbBySource::default(),
        requests: 0,
        ends: vec![0.0; setup.access.epochs() as usize],
        batches,
        disks: disks.collect(),
        sequence: 0,
        refused: None,
        samples_taken: 0,
        latencies: Random::new(setup.scenario.training.seed),
        fill_mb_s,
        asked: 0,
        guests: BTreeMap::new(),
    };
    driver.run()?;
    if let Some(reason) = driver.stopped() {
        return Ok(Run {
            outcome: Outcome::unsupported(policy, reason),
            logs: driver.nodes.into_iter().map(|n| n.recorded).collect(),
        });
    }
    let mut outcome = Outcome::new(policy);
    let last = driver.nodes.iter().max_by(|a, b| a.free_at.total_cmp(&b.free_at));
    outcome.set_times(&driver.ends, last.map_or(0.0, |n| n.computed_s));
    (outcome.mb_by_source, outcome.requests) = (driver.mb, driver.requests);
    let gauges = driver.nodes.iter().map(|n| n.recorded.scheduler().gauges());
    let kept_mb = gauges.map(|g| (g.kept_bytes + g.disk_bytes) as f64 / MB).sum::<f64>();
    // By bytes: a scheduler counts what its tiers hold, not which samples. Nodes that exchange what they hold don't hold it twice.
    let holders = if setup.hardware.exchanges() { 1 } else { nodes };
    outcome.coverage = (kept_mb / f64::from(holders) / setup.sizes.total_mb).min(1.0);
    outcome.copies = if kept_mb > 0.0 { 1.0 } else { 0.0 };
    Ok(Run {
        outcome,
        logs: driver.nodes.into_iter().map(|n| n.recorded).collect(),
    })
}

impl Node {
    /// Batches of an epoch.
    fn batches(&self) -> u64 {
        self.recorded.scheduler().split(0).map_or(0, Split::batches)
    }

    fn new(recorded: Recorded, memory_mb: f64) -> Self {
        Self {
            recorded,
            flying: (0..STREAMS).map(|_| None).collect(),
            free: (0..STREAMS).rev().collect(),
            free_elsewhere: Vec::new(),
            under_way: 0,
            requests: 0,
            batch: (0, 0),
            asked: 0,
            taken: 0,
            prepared_at: 0.0,
            free_at: 0.0,
            computed_s: 0.0,
            fresh_mb: memory_mb,
            filled_at: 0.0,
            prepared: BTreeMap::new(),
            training: None,
            ticking: false,
        }
    }
}

impl Driver<'_> {
    fn run(&mut self) -> Result<(), Error> {
        for node in 0..self.nodes.len() as u32 {
            if self.setup.hardware.exchanges() {
                self.step(node, 0.0, members(self.setup, node));
            }
            self.ask(node, 0.0);
        }
        let watch = self.setup.access.watch();
        let mut taken = 0;
        while self.refused.is_none() {
            watch.did(self.samples_taken - std::mem::replace(&mut taken, self.samples_taken))?;
            let due = self.due.peek().map(|Reverse((at, ..))| at.0);
            if due.is_some_and(|at| at > MOST_S) {
                return Err(Error::invalid(
                    "drive",
                    "the engine's scheduler is stepped every 10 ms, and this run takes more than 100 days; use drive = \"fast\"",
                ));
            }
            match (due, self.source.next_end()) {
                (None, None) => break,
                (Some(at), end) if end.is_none_or(|end| at <= end) => {
                    let Some(Reverse((_, event, node))) = self.due.pop() else {
                        break;
                    };
                    let Some(due) = self.events[event as usize].take() else {
                        continue;
                    };
                    self.spare.push(event);
                    self.happen(node, at, due);
                }
                _ => {
                    let Some((stream, at)) = self.source.end_next() else {
                        break;
                    };
                    self.arrived(stream / STREAMS, stream % STREAMS, at);
                }
            }
        }
        Ok(())
    }

    /// Why the run ended before its end, if it did.
    fn stopped(&self) -> Option<String> {
        let all = self.batches * u64::from(self.setup.access.epochs());
        let short = self.nodes.iter().any(|node| node.taken < all);
        let stands = || "the engine's scheduler stands still: a node's memory is too small for its batches".to_owned();
        self.refused.clone().or_else(|| short.then(stands))
    }

    fn at(&mut self, node: u32, at: f64, due: Due) {
        let event = self.spare.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() as u64 - 1
        });
        self.events[event as usize] = Some(due);
        self.sequence += 1;
        self.due.push(Reverse((Ordered(at), event, node)));
    }

    /// Tells a scheduler what happened and carries out what it orders.
    fn step(&mut self, node: u32, at: f64, event: Event) {
        let mut actions = Vec::new();
        let next = self.nodes[node as usize]
            .recorded
            .step((at * 1e9) as u64, event, &mut actions);
        for action in actions {
            self.carry_out(node, at, action);
        }
        let n = &mut self.nodes[node as usize];
        let soon = next == Next::Soon;
        if !n.ticking && (soon || n.under_way > 0) {
            n.ticking = true;
            self.at(node, if soon { at } else { at + TICK_S }, Due::Tick);
        }
    }

    fn carry_out(&mut self, node: u32, at: f64, action: Action) {
        match action.command() {
            Command::Load(load) => {
                let mb = load.len as f64 / MB;
                match load.source {
                    Source::Bucket => {
                        self.requests += 1;
                        self.mb.source += mb;
                        let latency_s = self.setup.hardware.draw_latency_s(&mut self.latencies);
                        let slot = self.fly(node, Flying::new(action, mb, at, latency_s));
                        let fails = self.source_fails(node);
                        let due = if fails { Due::Fail { slot } } else { Due::Begin { slot } };
                        self.at(node, at + latency_s, due);
                    }
                    Source::Disk(tier) => {
                        let done = self.devices.read_tier(node, self.disks[usize::from(tier)], mb, at);
                        let slot = self.fly(node, Flying::new(action, mb, at, 0.0));
                        self.end_disk(node, slot, done);
                    }
                    Source::Peer(_) => {
                        let slot = self.fly(node, Flying::new(action, mb, at, 0.0));
                        self.at(node, at, Due::Ask { slot });
                    }
                }
            }
            Command::Keep { tier, slot, .. } => {
                let mb = slot.len as f64 / MB;
                let done = self.devices.write_tier(node, self.disks[usize::from(*tier)], mb, at);
                let slot = self.fly(node, Flying::new(action, mb, at, 0.0));
                self.end_disk(node, slot, done);
            }
            Command::Deliver { request, items, .. } => {
                let (request, items) = (*request, items.clone());
                match self.guests.remove(&request) {
                    Some(asker) => self.send(node, at, asker, &items),
                    None => self.deliver(node, at, request, items),
                }
            }
            Command::Refuse { request, .. } if self.guests.contains_key(request) => {
                if let Some((asker, slot)) = self.guests.remove(request) {
                    self.at(asker, at, Due::Lack { slot });
                }
            }
            Command::Refuse { sample, failure, .. } => {
                let what = sample.map_or_else(|| "a batch".to_owned(), |sample| format!("sample {sample}"));
                self.refused = Some(match failure {
                    Failure::NoMemory => format!("{what} doesn't fit the memory of a node"),
                    _ => format!("{what} can't be read, and was tried again"),
                });
            }
            Command::Cancel { load } => self.call_off(node, *load, at),
            // Nothing is forgotten for real.
            _ => {}
        }
    }

    fn fly(&mut self, node: u32, flying: Flying) -> u32 {
        let n = &mut self.nodes[node as usize];
        let from_bucket =
            matches!(flying.action.command(), Command::Load(load) if matches!(load.source, Source::Bucket));
        let slot = match from_bucket {
            true => n.free.pop().expect("half of the streams are the scheduler's limit"),
            false => n.free_elsewhere.pop().unwrap_or_else(|| {
                n.flying.push(None);
                n.flying.len() as u32 - 1
            }),
        };
        n.under_way += 1;
        n.flying[slot as usize] = Some(flying);
        slot
    }

    fn happen(&mut self, node: u32, at: f64, due: Due) {
        match due {
            Due::Begin { slot } => {
                let mb = self.nodes[node as usize].flying[slot as usize]
                    .as_ref()
                    .map_or(0.0, |f| f.mb);
                self.source.start(node * STREAMS + slot, mb, at);
            }
            Due::Fill { slot } => self.fill(node, slot, at),
            Due::End { slot } => self.ended(node, slot, at),
            Due::Fail { slot } => self.failed(node, slot, at, Failure::Unavailable),
            Due::Ask { slot } => self.ask_peer(node, slot, at),
            Due::Lack { slot } => self.failed(node, slot, at, Failure::Final),
            Due::Withdraw { request } => self.withdraw(node, request, at),
            Due::Sent { handles } => self.step(node, at, Event::Release { handles }),
            Due::Take => self.take(node, at),
            Due::Release => {
                if let Some(items) = self.nodes[node as usize].training.take() {
                    let handles = items.iter().map(|item| item.handle).collect();
                    self.step(node, at, Event::Release { handles });
                }
                self.ask(node, at);
                self.take(node, at);
            }
            Due::Tick => {
                self.nodes[node as usize].ticking = false;
                self.step(node, at, Event::Tick);
            }
        }
    }

    /// The source delivered a load; a connection may be slower.
    fn arrived(&mut self, node: u32, slot: u32, at: f64) {
        let n = &mut self.nodes[node as usize];
        let flying = n.flying[slot as usize].as_ref().expect("what is read is under way");
        let done = at.max(flying.since + flying.latency_s + flying.mb / self.setup.hardware.connection_mb_s);
        match done > at {
            true => self.at(node, done, Due::Fill { slot }),
            false => self.fill(node, slot, at),
        }
    }

    /// What a load brought is written to memory, which takes time while that is fresh.
    fn fill(&mut self, node: u32, slot: u32, at: f64) {
        let n = &mut self.nodes[node as usize];
        let mb = n.flying[slot as usize].as_ref().map_or(0.0, |f| f.mb);
        let fresh = n.fresh_mb.min(mb);
        if fresh <= 0.0 {
            return self.ended(node, slot, at);
        }
        n.fresh_mb -= fresh;
        n.filled_at = n.filled_at.max(at) + fresh / self.fill_mb_s;
        let done = n.filled_at;
        self.at(node, done, Due::End { slot });
    }

    /// Whether this request of a node is one that the source doesn't answer.
    fn source_fails(&mut self, node: u32) -> bool {
        let n = &mut self.nodes[node as usize];
        n.requests += 1;
        let every = self.setup.scenario.fault.source_every;
        every.is_some_and(|every| n.requests.is_multiple_of(every))
    }

    /// A read or a write of a disk is through at `done`, unless the disk fails before.
    fn end_disk(&mut self, node: u32, slot: u32, done: f64) {
        let fails = self.setup.scenario.fault.disk_at_s.is_some_and(|at| done >= at);
        let due = if fails { Due::Fail { slot } } else { Due::End { slot } };
        self.at(node, done, due);
    }

    /// A load's question reaches its peer.
    fn ask_peer(&mut self, node: u32, slot: u32, at: f64) {
        let flying = self.nodes[node as usize].flying[slot as usize].as_ref();
        let Some(Command::Load(load)) = flying.map(|flying| flying.action.command()) else {
            return;
        };
        let (Source::Peer(peer), Some(piece)) = (load.source, load.pieces.first()) else {
            return;
        };
        let steps = load.steps;
        let library = self.nodes[node as usize].recorded.scheduler().library();
        let sample = library.samples_of(piece.content).start;
        self.asked += 1;
        let request = GUEST | self.asked;
        self.guests.insert(request, (node, slot));
        let samples = vec![sample];
        self.step(
            u32::from(peer),
            at,
            Event::Serve {
                request,
                job: 0,
                samples,
                steps,
            },
        );
    }

    /// A node isn't to wait any longer for what it asked of a peer.
    fn call_off(&mut self, node: u32, load: u64, at: f64) {
        let mut flying = self.nodes[node as usize].flying.iter().zip(0..);
        let found = flying.find_map(|(flying, slot)| {
            let action = &flying.as_ref()?.action;
            match action.command() {
                Command::Load(it) if action.id() == load => Some((slot, it.source)),
                _ => None,
            }
        });
        let Some((slot, Source::Peer(peer))) = found else {
            return;
        };
        let asked = self.guests.iter().find(|(_, asker)| **asker == (node, slot));
        if let Some(request) = asked.map(|(request, _)| *request) {
            self.at(u32::from(peer), at, Due::Withdraw { request });
        }
    }

    /// Nobody waits any longer for what a peer asked for. What is on its way by then comes all the same.
    fn withdraw(&mut self, node: u32, request: u64, at: f64) {
        if let Some((asker, slot)) = self.guests.remove(&request) {
            self.step(node, at, Event::Withdraw { request });
            self.failed(asker, slot, at, Failure::Cancelled);
        }
    }

    /// What a peer asked for goes through the network; until then it is lent.
    fn send(&mut self, node: u32, at: f64, (asker, slot): (u32, u32), items: &[Item]) {
        let mb = items.iter().map(|item| self.setup.sizes.of(item.sample as u32)).sum();
        let done = self.devices.send(node, asker, mb, at);
        if let Some(flying) = &mut self.nodes[asker as usize].flying[slot as usize] {
            flying.is_apart = items.iter().any(|item| item.via == Via::Bucket);
        }
        let handles = items.iter().map(|item| item.handle).collect();
        self.at(node, done, Due::Sent { handles });
        self.at(asker, done, Due::Fill { slot });
    }

    fn failed(&mut self, node: u32, slot: u32, at: f64, failure: Failure) {
        let completion = self.land(node, slot).action.failed(failure);
        self.step(node, at, Event::Completed(completion));
    }

    fn land(&mut self, node: u32, slot: u32) -> Flying {
        let n = &mut self.nodes[node as usize];
        n.under_way -= 1;
        match slot < STREAMS {
            true => n.free.push(slot),
            false => n.free_elsewhere.push(slot),
        }
        n.flying[slot as usize].take().expect("an action ends once")
    }

    fn ended(&mut self, node: u32, slot: u32, at: f64) {
        let flying = self.land(node, slot);
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let completion = match flying.is_apart {
            true => flying.action.done_apart(),
            false => flying.action.done(ns(flying.latency_s), ns(at - flying.since)),
        };
        self.step(node, at, Event::Completed(completion));
    }

    /// Asks for the batches up to `AHEAD` beyond the next one to take; an epoch is begun when the one before is through.
    fn ask(&mut self, node: u32, at: f64) {
        loop {
            let n = &mut self.nodes[node as usize];
            let (epoch, batch) = n.batch;
            let through = n.asked == n.taken;
            if epoch == self.setup.access.epochs() || n.asked > n.taken + AHEAD as u64 || (batch == 0 && !through) {
                return;
            }
            n.asked += 1;
            n.batch = if batch + 1 == self.batches {
                (epoch + 1, 0)
            } else {
                (epoch, batch + 1)
            };
            let request = n.asked;
            let rank = node;
            if batch == 0 {
                self.step(
                    node,
                    at,
                    Event::Start {
                        job: 0,
                        rank,
                        epoch,
                        batch,
                    },
                );
            }
            self.step(
                node,
                at,
                Event::WantBatch {
                    job: 0,
                    request,
                    rank,
                    epoch,
                    batch,
                },
            );
            // Its loop takes what comes at once, however far ahead it was asked for.
            self.step(node, at, Event::Awaited { request });
        }
    }

    fn deliver(&mut self, node: u32, at: f64, request: u64, items: Vec<Item>) {
        let mut mb = 0.0;
        for item in &items {
            let size = self.setup.sizes.of(item.sample as u32);
            mb += size;
            match item.via {
                Via::Ram => self.mb.ram += size,
                Via::Disk => self.mb.disk += size,
                Via::Peer => self.mb.peer += size,
                // Counted when it was asked for.
                _ => {}
            }
        }
        let hardware = self.setup.hardware;
        let n = &mut self.nodes[node as usize];
        let compute_s = self.compute.seconds_ahead(mb, items.len());
        n.prepared_at = n.prepared_at.max(at) + mb * hardware.write_s_per_mb / hardware.staging_threads;
        let when = n.prepared_at;
        let prepared = Prepared {
            items,
            ready_at: when,
            compute_s,
        };
        n.prepared.insert(request, prepared);
        self.at(node, when, Due::Take);
    }

    /// The trainer takes the prepared batch if it is free and the batch is ready.
    fn take(&mut self, node: u32, at: f64) {
        let n = &mut self.nodes[node as usize];
        let next = n.taken + 1;
        if n.training.is_some() || n.prepared.get(&next).is_none_or(|p| p.ready_at > at) {
            return;
        }
        let Some(batch) = n.prepared.remove(&next) else {
            return;
        };
        n.taken = next;
        self.samples_taken += batch.items.len() as u64;
        n.training = Some(batch.items);
        n.computed_s += batch.compute_s;
        n.free_at = at + batch.compute_s;
        let free_at = n.free_at;
        let done = (next - 1) as usize / self.batches.max(1) as usize;
        self.ends[done] = self.ends[done].max(free_at);
        self.at(node, free_at, Due::Release);
    }
}

#[cfg(test)]
mod tests;
