//! Several nodes that share their caches: a scheduler and a memory for each, ranks that read through, and a network between them that loses, delays and
//! refuses. Whatever it does, each batch is there in the end, with the right bytes.

use crate::lists::lists;
use crate::memory::Memory;
use crate::world::Dice;
use foreload_plan::action::{
    Action, BUNDLE_BYTES, BUNDLE_LOADS, BUNDLED_BYTES, Command, Event, Failure, Item, Load, Source, Via,
};
use foreload_plan::arena::reserved_bytes;
use foreload_plan::blocks::Content;
use foreload_plan::catalog::{Catalog, Objects, Shards};
use foreload_plan::deal::Deal;
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::homes::Member;
use foreload_plan::job::{Largest, Reads, Set};
use foreload_plan::order::Order;
use foreload_plan::placement::frequency::Ranking;
use foreload_plan::policy::Policy;
use foreload_plan::replay::{Recorded, replay};
use foreload_plan::scheduler::Next;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_plan::split::Split;
use foreload_plan::{DigestBuilder, Error, Scheduler};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

/// The job that is read; another one, over a few samples, joined each node before it, so that a node numbers the samples otherwise than the job.
const JOB: u32 = 1;

/// What a network does to what passes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Nothing.
    Good,
    /// Answers are lost, late or refused, and nodes are cut off for a while.
    Bad,
}

/// What a node waits for of its own rank: the samples.
struct Want {
    samples: Vec<u64>,
}

/// A peer's question: who asks, and the load that waits for the answer.
struct Asked {
    by: usize,
    load: Action,
}

struct Node {
    plan: Recorded,
    /// What the job reads that joined first.
    before: Reads,
    reads: Reads,
    settings: Settings,
    memory: Memory,
    /// Loads from bucket and disk, and writes.
    under_way: Vec<Action>,
    cancelled: HashSet<u64>,
    disk: BTreeSet<(u8, u64)>,
    open: BTreeMap<u64, Want>,
    guests: BTreeMap<u64, Asked>,
    /// What its ranks hold.
    held: Vec<Vec<Item>>,
    /// Batches that each of its ranks has had, over all epochs.
    had: Vec<u64>,
    is_cut_off: bool,
    last_bundle: u64,
}

/// What a run cost, and what it read.
pub struct Outcome {
    /// Requests to the bucket.
    pub gets: u64,
    /// Samples that were read, over all epochs and nodes.
    pub reads: u64,
    /// Loads that peers served.
    pub served: u64,
    /// Loads that peers left waiting until it took too long.
    pub given_up: u64,
    /// Of several loads.
    pub bundles: u64,
}

pub struct Cluster {
    network: Network,
    dice: Dice,
    nodes: Vec<Node>,
    catalog: Arc<dyn Catalog>,
    order: Order,
    split: Split,
    epochs: u32,
    now_ns: u64,
    request: u64,
    answers: u64,
    steps: u64,
    outcome: Outcome,
    members: Vec<(u16, Member)>,
    /// Events that nodes are to hear, in this order.
    to_hear: VecDeque<(usize, Event)>,
    is_hearing: bool,
    /// Questions to peers that nobody will answer: who waits, and what for.
    lost: Vec<(usize, Action)>,
}

/// How large a cluster is, and how much of the data set it holds.
pub struct Shape {
    pub nodes: usize,
    /// Per cent of the data set that all nodes together may keep.
    pub kept_per_cent: u64,
    pub epochs: u32,
    /// Whole objects of one length.
    pub is_plain: bool,
    /// Whether samples go to the ranks of the nodes that keep them.
    pub is_local: bool,
    /// Whether each node keeps what it reads most often.
    pub is_counted: bool,
    pub has_disks: bool,
}

/// What a job reads of a data set of so many small objects.
fn besides_of(samples: u64) -> Reads {
    let catalog: Arc<dyn Catalog> = Arc::new(Objects(vec![16; samples as usize]));
    let spec = OrderSpec {
        dataset: DigestBuilder::new("besides").finish(),
        samples,
        kind: OrderKind::Sequential,
        seed: 0,
        global_batch: 1,
        tail: Tail::Pad { multiple: 1 },
    };
    Reads {
        largest: None,
        sets: vec![Set::new(2, catalog)],
        order: Order::new(&spec).expect("an order"),
        world: 1,
        uneven: true,
        deal: None,
        ranking: None,
        ranks: vec![0],
        ram_bytes: Some(0),
        epochs: Some(1),
    }
}

impl Cluster {
    pub fn new(network: Network, shape: &Shape, seed: u64) -> Self {
        let mut dice = Dice::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 77);
        let (samples, mean) = (96 + dice.below(200), 200 + dice.below(2000));
        let mut lengths: Vec<u64> = (0..samples).map(|_| dice.below(2 * mean)).collect();
        let catalog: Arc<dyn Catalog> = match if shape.is_plain { 3 } else { dice.below(4) } {
            0 => Arc::new(Shards::pack(&lengths, 64, 20_000)),
            1 => Arc::new(lists(&lengths, |n| dice.below(n))),
            2 => Arc::new(Objects(lengths.clone())),
            _ => {
                lengths.fill(mean);
                Arc::new(Objects(lengths.clone()))
            }
        };
        let world = shape.nodes as u32 * (1 + dice.below(2) as u32);
        let of_rank = 1 + dice.below(4) as usize;
        let spec = OrderSpec {
            dataset: DigestBuilder::new("cluster").finish(),
            samples,
            kind: OrderKind::Keyed,
            seed: dice.below(1000),
            global_batch: world * of_rank as u32,
            tail: Tail::Pad { multiple: world },
        };
        let order = Order::new(&spec).expect("an order");
        let mut longest: Vec<u64> = lengths.iter().map(|&len| reserved_bytes(len)).collect();
        longest.sort_unstable();
        let largest = Largest::of(longest.iter().rev().take(of_rank).copied());
        let total: u64 = longest.iter().sum();
        let per_node = total * shape.kept_per_cent / 100 / shape.nodes as u64;
        // What passes through, and what stays: in memory, or on a disk.
        let passes = 6 * largest.batch_bytes * u64::from(world) / shape.nodes as u64 + 64 * 1024;
        let on_disk = if shape.has_disks { per_node / 2 } else { 0 };
        let settings = Settings {
            ram_bytes: passes + per_node - on_disk,
            staging_bytes: Some(passes),
            tiers: match on_disk {
                0 => Vec::new(),
                _ => vec![TierSettings {
                    // Records are a little more than their blocks.
                    capacity_bytes: on_disk + on_disk / 4 + 64 * 1024,
                    pinned: None,
                }],
            },
            coalesce_bytes: 8192,
            gap_bytes: 512,
            concurrency: ConcurrencySettings::fixed(8),
            policy: if shape.is_counted {
                Policy::Frequency
            } else {
                Policy::Foreload
            },
            ..Settings::default()
        };
        let each = world / shape.nodes as u32;
        // A node's number is the one that it has among the members.
        let nodes_of_ranks = (0..world).map(|rank| 100 + u64::from(rank / each));
        let nodes_of_ranks: Vec<u64> = nodes_of_ranks.collect();
        let split = Split::weighted(&order, world).expect("a split");
        let ranking = shape.is_counted.then(|| {
            let count = Ranking::new(&order, &split, &nodes_of_ranks, shape.epochs, |_, _| Ok::<_, Error>(()));
            Arc::new(count.expect("a ranking"))
        });
        let deal = shape.is_local.then(|| Deal::new(nodes_of_ranks, 0));
        let first = Reads {
            largest: Some(largest),
            sets: vec![Set::new(1, Arc::clone(&catalog))],
            order: order.clone(),
            world,
            uneven: true,
            deal: deal.clone(),
            ranking,
            ranks: Vec::new(),
            ram_bytes: None,
            epochs: Some(shape.epochs),
        };
        let all_alike = 1 + dice.below(9);
        // Where nodes differ in what they read besides, they disagree a little on who keeps what.
        let besides: Vec<u64> = (0..shape.nodes)
            .map(|_| match network {
                Network::Good => all_alike,
                Network::Bad => 1 + dice.below(9),
            })
            .collect();
        let node = |at: u32| {
            let reads = Reads {
                ranks: (at * each..(at + 1) * each).collect(),
                ..first.clone()
            };
            let before = besides_of(besides[at as usize]);
            Node {
                plan: Recorded::new(
                    Scheduler::for_one(settings.clone(), &before).expect("a scheduler"),
                    None,
                ),
                before,
                reads,
                settings: settings.clone(),
                memory: Memory::default(),
                under_way: Vec::new(),
                cancelled: HashSet::new(),
                disk: BTreeSet::new(),
                open: BTreeMap::new(),
                guests: BTreeMap::new(),
                held: Vec::new(),
                had: vec![0; each as usize],
                is_cut_off: false,
                last_bundle: 0,
            }
        };
        let member = |at: usize| {
            let id = 100 + at as u64;
            (at as u16, Member { id, bytes: per_node })
        };
        Cluster {
            network,
            dice,
            nodes: (0..shape.nodes as u32).map(node).collect(),
            catalog,
            split: Split::weighted(&order, world).expect("a split"),
            order,
            epochs: shape.epochs,
            now_ns: 0,
            request: 0,
            answers: 0,
            steps: 0,
            outcome: Outcome {
                gets: 0,
                reads: 0,
                served: 0,
                given_up: 0,
                bundles: 0,
            },
            members: (0..shape.nodes).map(member).collect(),
            to_hear: VecDeque::new(),
            is_hearing: false,
            lost: Vec::new(),
        }
    }

    /// All ranks read all epochs.
    pub fn play(mut self) -> Outcome {
        for node in 0..self.nodes.len() {
            let reads = Box::new(self.nodes[node].reads.clone());
            self.step(node, Event::Join { job: JOB, reads });
            self.tell_members(node);
            for rank in self.nodes[node].reads.ranks.clone() {
                self.step(
                    node,
                    Event::Start {
                        job: JOB,
                        rank,
                        epoch: 0,
                        batch: 0,
                    },
                );
            }
        }
        let (mut quiet, mut before) = (0, 0);
        while !self.is_over() {
            self.disturb();
            let mut moved = false;
            for node in 0..self.nodes.len() {
                moved |= self.read_on(node);
            }
            for _ in 0..self.nodes.len() * 4 {
                moved |= self.end_one();
            }
            moved |= self.answers > before;
            before = self.answers;
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet > 3 {
                // Somebody's time runs out.
                self.now_ns += 2_000_000_000;
                self.give_up();
                (0..self.nodes.len()).for_each(|node| self.step(node, Event::Tick));
            }
            let state: Vec<_> = self.nodes.iter().map(|node| node.plan.scheduler().gauges()).collect();
            assert!(quiet < 40, "they wait for each other: {state:?}");
        }
        self.depart();
        self.outcome
    }

    fn tell_members(&mut self, node: usize) {
        let (me, members) = (self.members[node].1.id, self.members.clone());
        self.step(node, Event::Peers { me, members });
    }

    fn is_over(&self) -> bool {
        let all = self.split.batches() * u64::from(self.epochs);
        self.nodes.iter().flat_map(|node| &node.had).all(|&had| had == all)
    }

    /// The network has its moods.
    fn disturb(&mut self) {
        if self.network == Network::Good {
            return;
        }
        let node = self.dice.below(self.nodes.len() as u64) as usize;
        match self.dice.below(60) {
            0 => self.nodes[node].is_cut_off = true,
            1..=4 => self.nodes[node].is_cut_off = false,
            5 => {
                // One of them doesn't know of another, or all are of one mind again.
                let all = self.members.clone();
                if self.dice.one_in(2) {
                    let gone = self.dice.below(all.len() as u64) as usize;
                    let me = all[node].1.id;
                    let members = all.iter().enumerate().filter(|&(at, _)| at != gone || at == node);
                    let members = members.map(|(_, &member)| member).collect();
                    self.step(node, Event::Peers { me, members });
                } else {
                    self.tell_members(node);
                }
            }
            6 => self.step(node, Event::Tick),
            _ => {}
        }
    }

    /// Ranks give back what they have, and ask for what comes next. No rank is more than a batch ahead of another: they train together.
    fn read_on(&mut self, node: usize) -> bool {
        let all = self.split.batches() * u64::from(self.epochs);
        let least = self.nodes.iter().flat_map(|node| &node.had).min().copied().unwrap_or(0);
        while let Some(items) = self.nodes[node].held.pop() {
            self.release(node, items);
        }
        let mut moved = false;
        for at in 0..self.nodes[node].had.len() {
            let (rank, had) = (self.nodes[node].reads.ranks[at], self.nodes[node].had[at]);
            let key = u64::from(rank);
            let is_open = self.nodes[node].open.keys().any(|request| request % 1000 == key);
            if had == all || had > least || is_open {
                continue;
            }
            let (epoch, batch) = ((had / self.split.batches()) as u32, had % self.split.batches());
            let order = self.order.epoch(epoch).expect("an epoch");
            let positions: Vec<u64> = match &self.nodes[node].reads.deal {
                Some(deal) => deal.batch(&self.split, &order, batch).of(rank).to_vec(),
                None => self.split.batch_positions(batch, rank).collect(),
            };
            let samples: Vec<u64> = positions.iter().map(|&position| order.sample_at(position)).collect();
            self.outcome.reads += samples.len() as u64;
            self.request += 1;
            let request = self.request * 1000 + key;
            self.nodes[node].open.insert(request, Want { samples });
            self.step(
                node,
                Event::WantBatch {
                    job: JOB,
                    request,
                    rank,
                    epoch,
                    batch,
                },
            );
            if self.nodes[node].open.contains_key(&request) {
                self.step(node, Event::Awaited { request });
            }
            moved = true;
        }
        moved
    }

    fn release(&mut self, node: usize, items: Vec<Item>) {
        for item in &items {
            let places = self.catalog.ranges(item.sample);
            let memory = &mut self.nodes[node].memory;
            assert!(
                memory.holds(item.slot, 1, &places),
                "bytes changed while they were held"
            );
            memory.unlease(item.slot);
        }
        let handles = items.iter().map(|item| item.handle).collect();
        self.step(node, Event::Release { handles });
    }

    /// A node hears of something, and whoever of what follows from it, until all is quiet.
    fn step(&mut self, node: usize, event: Event) {
        self.to_hear.push_back((node, event));
        if std::mem::replace(&mut self.is_hearing, true) {
            return;
        }
        while let Some((node, event)) = self.to_hear.pop_front() {
            self.hear(node, event);
        }
        self.is_hearing = false;
    }

    fn hear(&mut self, node: usize, event: Event) {
        self.steps += 1;
        assert!(self.steps < 2_000_000, "it goes round");
        let mut event = Some(event);
        loop {
            let mut actions = Vec::new();
            let it = &mut self.nodes[node];
            let next = it
                .plan
                .step(self.now_ns, event.take().unwrap_or(Event::Tick), &mut actions);
            let gauges = it.plan.scheduler().gauges();
            assert!(gauges.used_bytes <= it.settings.ram_bytes, "over the memory budget");
            self.look_at_bundles(node, &actions);
            for action in actions {
                self.take(node, action);
            }
            if next == Next::Wait {
                return;
            }
        }
    }

    /// What is ordered together is ordered in one step, of one peer and of one data set, and is as small as it may be.
    fn look_at_bundles(&mut self, node: usize, actions: &[Action]) {
        let loads = actions.iter().filter_map(|action| match action.command() {
            Command::Load(load) => Some(load),
            _ => None,
        });
        let loads: Vec<_> = loads.filter(|load| load.bundle.is_some()).collect();
        let library = self.nodes[node].plan.scheduler().library();
        for some in loads.chunk_by(|one, other| one.bundle == other.bundle) {
            let shelf = |load: &Load| library.shelf_of(load.pieces[0].content).name;
            let bytes: u64 = some.iter().map(|load| load.len).sum();
            let is_alike = |load: &&Load| load.source == some[0].source && shelf(load) == shelf(some[0]);
            assert!(matches!(some[0].source, Source::Peer(_)) && some.iter().all(is_alike));
            assert!(some.len() <= BUNDLE_LOADS && bytes <= BUNDLE_BYTES);
            assert!(
                some.iter()
                    .all(|load| load.len < BUNDLED_BYTES && load.pieces.len() == 1)
            );
            self.outcome.bundles += u64::from(some.len() > 1);
        }
        let numbers: BTreeSet<u64> = loads.iter().filter_map(|load| load.bundle).collect();
        let last = &mut self.nodes[node].last_bundle;
        let is_new = numbers.first().is_none_or(|first| first > last);
        assert!(is_new, "a bundle goes on in another step");
        *last = numbers.last().copied().unwrap_or(*last);
    }

    fn take(&mut self, node: usize, action: Action) {
        match action.command() {
            Command::Load(load) => {
                for piece in &load.pieces {
                    self.nodes[node].memory.scribble(piece.slot_offset, piece.len);
                }
                match load.source {
                    Source::Bucket => self.outcome.gets += 1,
                    Source::Disk(tier) => {
                        let library = self.nodes[node].plan.scheduler().library();
                        let there = |content| self.nodes[node].disk.contains(&(tier, library.block_of(content)));
                        assert!(
                            load.pieces.iter().all(|piece| there(piece.content)),
                            "reads what no disk holds"
                        );
                    }
                    Source::Peer(peer) => assert_ne!(usize::from(peer), node, "asks itself"),
                }
                self.nodes[node].under_way.push(action);
            }
            Command::Keep { block, slot, .. } => {
                assert!(self.has(node, *slot, *block), "writes to disk what isn't there");
                self.nodes[node].under_way.push(action);
            }
            Command::Deliver { request, items, .. } => {
                self.answers += 1;
                self.delivered(node, *request, items.clone());
            }
            Command::Refuse { request, failure, .. } => {
                self.answers += 1;
                let (request, failure) = (*request, *failure);
                let asked = self.nodes[node].guests.remove(&request);
                let asked = asked.unwrap_or_else(|| panic!("a rank is refused: {failure:?}"));
                self.fail(asked, Failure::Final);
            }
            Command::Cancel { load } => assert!(self.nodes[node].cancelled.insert(*load)),
            Command::Forget { .. } => panic!("nothing is forgotten here"),
            other => panic!("{other:?}"),
        }
    }

    fn has(&self, node: usize, slot: foreload_plan::arena::Slot, block: u64) -> bool {
        let (library, content) = (self.nodes[node].plan.scheduler().library(), Content::block(block));
        let memory = &self.nodes[node].memory;
        memory.holds(slot, library.shelf_of(content).name, &library.stretches(content))
    }

    fn delivered(&mut self, node: usize, request: u64, items: Vec<Item>) {
        for item in &items {
            let places = self.catalog.ranges(item.sample);
            let memory = &mut self.nodes[node].memory;
            assert!(
                memory.holds(item.slot, 1, &places),
                "request {request} gets foreign bytes for sample {}",
                item.sample
            );
            memory.lease(item.slot);
        }
        if let Some(asked) = self.nodes[node].guests.remove(&request) {
            self.answer(node, asked, items);
            return;
        }
        let want = self.nodes[node].open.remove(&request).expect("open");
        let samples: Vec<u64> = items.iter().map(|item| item.sample).collect();
        assert_eq!(samples, want.samples, "request {request} gets other samples");
        let rank = (request % 1000) as u32;
        let at = self.nodes[node]
            .reads
            .ranks
            .iter()
            .position(|&it| it == rank)
            .expect("its own");
        self.nodes[node].had[at] += 1;
        self.nodes[node].held.push(items);
    }

    /// A peer's bytes are on their way back. It has given its memory back before they are there.
    fn answer(&mut self, node: usize, asked: Asked, items: Vec<Item>) {
        for item in &items {
            self.nodes[node].memory.unlease(item.slot);
        }
        let handles = items.iter().map(|item| item.handle).collect();
        self.step(node, Event::Release { handles });
        let Command::Load(load) = asked.load.command() else {
            unreachable!()
        };
        let asker = &mut self.nodes[asked.by];
        let places = self.catalog.ranges(items[0].sample);
        assert_eq!((items.len(), load.pieces.len()), (1, 1));
        let piece = &load.pieces[0];
        let mut at = piece.slot_offset;
        for place in places {
            asker.memory.write(at, place.len, (1, place.object), place.offset);
            at += place.len;
        }
        assert_eq!(at, piece.slot_offset + piece.len, "as long as the sample");
        self.outcome.served += 1;
        // What was fetched for us says nothing of the peer.
        let completion = match items[0].via {
            Via::Bucket => asked.load.done_apart(),
            _ => asked.load.done(500_000, 1_000_000),
        };
        self.step(asked.by, Event::Completed(completion));
    }

    fn fail(&mut self, asked: Asked, failure: Failure) {
        self.step(asked.by, Event::Completed(asked.load.failed(failure)));
    }

    /// Ends something that is under way on a node, or asks a peer for it. False: nothing is.
    fn end_one(&mut self) -> bool {
        let busy: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| !self.nodes[node].under_way.is_empty())
            .collect();
        if busy.is_empty() {
            return false;
        }
        let node = busy[self.dice.below(busy.len() as u64) as usize];
        let pick = self.dice.below(self.nodes[node].under_way.len() as u64) as usize;
        let action = self.nodes[node].under_way.swap_remove(pick);
        self.now_ns += 1_000_000;
        match action.command() {
            Command::Load(load) => match load.source {
                Source::Peer(peer) => {
                    let library = self.nodes[node].plan.scheduler().library();
                    let samples = library.samples_of(load.pieces[0].content);
                    assert_eq!(samples.end - samples.start, 1, "a peer is asked for one sample");
                    let own = self.nodes[node].plan.scheduler().own(JOB, samples.start);
                    self.ask(node, usize::from(peer), action, own.expect("the job's"));
                }
                _ => {
                    let it = &mut self.nodes[node];
                    it.memory.bring(load, it.plan.scheduler().library());
                    self.step(node, Event::Completed(action.done(500_000, 1_000_000)));
                }
            },
            Command::Keep { block, slot, tier, .. } => {
                assert!(
                    self.has(node, *slot, *block),
                    "a slot changed while it was written to disk"
                );
                self.nodes[node].disk.insert((*tier, *block));
                self.step(node, Event::Completed(action.done(500_000, 1_000_000)));
            }
            other => panic!("{other:?}"),
        }
        true
    }

    fn ask(&mut self, by: usize, peer: usize, load: Action, sample: u64) {
        let is_bad = self.network == Network::Bad;
        let is_cut_off = self.nodes[by].is_cut_off || self.nodes[peer].is_cut_off;
        match if is_bad { self.dice.below(12) } else { 12 } {
            0 => self.fail(Asked { by, load }, Failure::Unavailable),
            1 => self.fail(Asked { by, load }, Failure::Corrupt),
            2 => self.lost.push((by, load)),
            _ if is_cut_off => self.lost.push((by, load)),
            _ => {
                self.request += 1;
                let request = self.request * 1000 + 999;
                let steps = match load.command() {
                    Command::Load(load) => load.steps,
                    _ => 0,
                };
                self.nodes[peer].guests.insert(request, Asked { by, load });
                self.step(
                    peer,
                    Event::Serve {
                        request,
                        job: JOB,
                        samples: vec![sample],
                        steps,
                    },
                );
            }
        }
    }

    /// Whoever waits for a peer has waited long enough.
    fn give_up(&mut self) {
        for (by, load) in std::mem::take(&mut self.lost) {
            self.fail(Asked { by, load }, Failure::Unavailable);
        }
        for node in 0..self.nodes.len() {
            // One after the other: a withdrawal may give another one what it waits for.
            while let Some((request, asked)) = self.nodes[node].guests.pop_first() {
                self.outcome.given_up += 1;
                self.step(node, Event::Withdraw { request });
                self.fail(asked, Failure::Unavailable);
            }
        }
    }

    /// All go, and nothing is left.
    fn depart(&mut self) {
        for node in 0..self.nodes.len() {
            while let Some(items) = self.nodes[node].held.pop() {
                self.release(node, items);
            }
            for rank in self.nodes[node].reads.ranks.clone() {
                self.step(node, Event::Leave { job: JOB, rank });
            }
        }
        for _ in 0..3 {
            while self.end_one() {}
            self.give_up();
        }
        for node in 0..self.nodes.len() {
            self.step(node, Event::Budget { ram_bytes: 0 });
            let plan = &self.nodes[node].plan;
            let gauges = plan.scheduler().gauges();
            let left = (
                gauges.used_bytes,
                gauges.leases,
                gauges.requests,
                gauges.in_flight,
                gauges.residents,
            );
            assert_eq!(left, (0, 0, 0, 0, 0), "something is left behind: {gauges:?}");
            let fresh = Scheduler::for_one(self.nodes[node].settings.clone(), &self.nodes[node].before);
            replay(fresh.expect("a scheduler"), plan.log()).expect("the log replays");
        }
    }
}
