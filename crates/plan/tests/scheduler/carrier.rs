//! A carrier under the test's control: it ends loads in any order, late, or not at all, and checks what it is told to do.

use crate::memory::Memory;
use foreload_plan::action::{Action, Command, Event, Failure, Handle, Item, Piece, Source, Via};
use foreload_plan::arena::Slot;
use foreload_plan::blocks::Content;
use foreload_plan::catalog::{Catalog, Place};
use foreload_plan::job::{Reads, Set};
use foreload_plan::order::Order;
use foreload_plan::replay::{Recorded, replay};
use foreload_plan::scheduler::Next;
use foreload_plan::settings::Settings;
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_plan::{Digest, DigestBuilder, Scheduler};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

fn dataset() -> Digest {
    DigestBuilder::new("test").finish()
}

pub fn spec(samples: u64, global_batch: u32, kind: OrderKind) -> OrderSpec {
    OrderSpec {
        dataset: dataset(),
        samples,
        kind,
        seed: 7,
        global_batch,
        tail: Tail::Uneven,
    }
}

/// What a request got: samples, or which one failed and why.
pub type Answer = Result<Vec<Item>, (Option<u64>, Failure)>;

/// A carrier under the test's control: a clock, loads under way, and the bytes a real one would hold (by slot: who wrote them).
pub struct Carrier {
    pub plan: Recorded,
    pub now_ns: u64,
    pub dice: u64,
    pub under_way: Vec<Action>,
    pub cancelled: HashSet<u64>,
    pub memory: Memory,
    /// Where what was delivered lies, until it is given back: samples of one block have one handle.
    pub held: HashMap<Handle, Vec<Slot>>,
    /// What each job reads, and which of them asked.
    pub sets: HashMap<u32, Set>,
    pub asked: HashMap<u64, u32>,
    /// Blocks on disk.
    pub disk: HashSet<u64>,
    pub delivered: HashMap<u64, Answer>,
    pub fetched_bytes: u64,
    /// Of it, what went into memory.
    pub placed_bytes: u64,
    /// Read from disk.
    pub disk_bytes: u64,
    pub disk_reads: u64,
    /// Hedges not counted.
    pub requests: u64,
    pub hedges: u64,
    pub fail_one_in: u64,
    /// Of the loads, one in so many takes 300 ms.
    pub late_one_in: u64,
    /// Loads that bring this sample's bytes from the bucket end as corrupt.
    pub corrupt: Option<u64>,
    /// After so many ends of actions, another limit on requests is set.
    pub limit_every: u64,
    pub settings: Settings,
    pub reads: Reads,
}

/// What one job reads of one data set.
pub fn reads(catalog: Arc<dyn Catalog>, order: OrderSpec, world: u32, ranks: Vec<u32>) -> Reads {
    Reads {
        sets: vec![Set::new(0, catalog)],
        order: Order::new(&order).expect("an order"),
        world,
        uneven: true,
        deal: None,
        ranking: None,
        ranks,
        ram_bytes: None,
        largest: None,
        epochs: None,
    }
}

impl Carrier {
    pub fn new(
        settings: Settings,
        catalog: Arc<dyn Catalog>,
        order: OrderSpec,
        world: u32,
        ranks: Vec<u32>,
        seed: u64,
    ) -> Self {
        Self::of(settings, reads(catalog, order, world, ranks), seed).started()
    }

    /// All ranks start at the beginning.
    pub fn started(mut self) -> Self {
        for rank in self.reads.ranks.clone() {
            self.step(Event::Start {
                job: 0,
                rank,
                epoch: 0,
                batch: 0,
            });
        }
        self
    }

    pub fn bare(
        settings: Settings,
        catalog: Arc<dyn Catalog>,
        order: OrderSpec,
        world: u32,
        ranks: Vec<u32>,
        seed: u64,
    ) -> Self {
        Self::of(settings, reads(catalog, order, world, ranks), seed)
    }

    pub fn of(settings: Settings, reads: Reads, seed: u64) -> Self {
        let first = reads.sets[0].clone();
        Carrier {
            plan: Recorded::new(Scheduler::for_one(settings.clone(), &reads).expect("scheduler"), None),
            now_ns: 0,
            dice: seed | 1,
            under_way: Vec::new(),
            cancelled: HashSet::new(),
            memory: Memory::default(),
            held: HashMap::new(),
            sets: HashMap::from([(0, first)]),
            asked: HashMap::new(),
            disk: HashSet::new(),
            delivered: HashMap::new(),
            fetched_bytes: 0,
            disk_bytes: 0,
            disk_reads: 0,
            placed_bytes: 0,
            requests: 0,
            hedges: 0,
            fail_one_in: 0,
            late_one_in: 0,
            corrupt: None,
            limit_every: 0,
            settings,
            reads,
        }
    }

    pub fn roll(&mut self, n: u64) -> u64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n.max(1)
    }

    pub fn step(&mut self, event: Event) {
        match &event {
            Event::Join { job, reads } => drop(self.sets.insert(*job, reads.sets[0].clone())),
            &(Event::WantBatch { request, job, .. }
            | Event::WantReads { request, job, .. }
            | Event::WantSamples { request, job, .. }) => {
                self.asked.insert(request, job);
                self.take_event(event);
                return self.take_event(Event::Awaited { request });
            }
            _ => {}
        }
        self.take_event(event);
    }

    fn take_event(&mut self, event: Event) {
        let mut event = Some(event);
        loop {
            let mut actions = Vec::new();
            let next = self
                .plan
                .step(self.now_ns, event.take().unwrap_or(Event::Tick), &mut actions);
            for action in actions {
                self.take(action);
            }
            let gauges = self.plan.scheduler().gauges();
            assert!(gauges.used_bytes <= self.settings.ram_bytes, "over the memory budget");
            assert!(
                gauges.disk_bytes <= self.settings.tiers.iter().map(|t| t.capacity_bytes).sum(),
                "over the disk budget"
            );
            if next == Next::Wait {
                break;
            }
        }
    }

    fn take(&mut self, action: Action) {
        match action.command() {
            Command::Load(load) => {
                let (mut begin, mut filled) = (0, 0);
                for piece in &load.pieces {
                    let place = self.plan.scheduler().library().place_of(piece.content);
                    assert!(
                        piece.at >= begin && piece.at + piece.len <= load.len,
                        "pieces in order, inside the range"
                    );
                    let lies = match load.source {
                        Source::Disk(_) | Source::Peer(_) => Place {
                            offset: place.offset + piece.content_offset,
                            ..place
                        },
                        Source::Bucket => {
                            let library = self.plan.scheduler().library();
                            library.locate(piece.content, piece.content_offset).expect("inside it")
                        }
                    };
                    assert_eq!((lies.object, lies.offset), (load.object, load.offset + piece.at));
                    assert!(piece.len <= lies.len && piece.content_len == place.len);
                    assert!(
                        piece.at <= filled + self.settings.gap_bytes,
                        "{} bytes that nobody wants are read over",
                        piece.at - filled
                    );
                    assert!(
                        piece.slot_offset + piece.len <= self.settings.ram_bytes,
                        "writes past the arena's end"
                    );
                    self.memory.scribble(piece.slot_offset, piece.len);
                    begin = piece.at;
                    filled = filled.max(piece.at + piece.len);
                }
                if load.source == Source::Bucket {
                    self.requests += u64::from(!load.hedge);
                    self.hedges += u64::from(load.hedge);
                    self.fetched_bytes += load.len;
                    self.placed_bytes += load.pieces.iter().map(|piece| piece.len).sum::<u64>();
                } else {
                    self.disk_bytes += load.len;
                    self.disk_reads += 1;
                    let blocks = self.plan.scheduler().library();
                    assert!(
                        load.pieces
                            .iter()
                            .all(|piece| self.disk.contains(&blocks.block_of(piece.content))),
                        "reads only what is on disk"
                    );
                }
                self.under_way.push(action);
            }
            Command::Keep { block, slot, .. } => {
                assert!(self.has(*slot, *block), "writes what is in memory");
                self.under_way.push(action);
            }
            Command::Forget { block, .. } => assert!(self.disk.remove(block)),
            Command::Deliver { request, items, .. } => {
                for item in items {
                    let set = &self.sets[&self.asked[request]];
                    let ranges = set.catalog.ranges(item.sample);
                    assert!(
                        self.memory.holds(item.slot, set.name, &ranges),
                        "delivers what was loaded"
                    );
                    // From now on nobody may write there.
                    self.memory.lease(item.slot);
                    self.held.entry(item.handle).or_default().push(item.slot);
                }
                assert!(self.delivered.insert(*request, Ok(items.clone())).is_none());
            }
            Command::Refuse {
                request,
                sample,
                failure,
            } => {
                assert!(self.delivered.insert(*request, Err((*sample, *failure))).is_none());
            }
            Command::Cancel { load } => assert!(self.cancelled.insert(*load)),
            other => panic!("{other:?}"),
        }
    }

    /// Whether a slot holds a block, whole.
    fn has(&self, slot: Slot, block: u64) -> bool {
        let (library, content) = (self.plan.scheduler().library(), Content::block(block));
        self.memory
            .holds(slot, library.shelf_of(content).name, &library.stretches(content))
    }

    fn brings_corrupt(&self, action: &Action) -> bool {
        let (Some(bad), Command::Load(load)) = (self.corrupt, action.command()) else {
            return false;
        };
        let blocks = self.plan.scheduler().library();
        let brings = |piece: &Piece| blocks.samples_of(piece.content).contains(&bad);
        load.source == Source::Bucket && load.pieces.iter().any(brings)
    }

    /// Whether an action is one of those that take long, and not over yet.
    fn is_late(&self, action: &Action) -> bool {
        let Command::Load(load) = action.command() else {
            return false;
        };
        let issued_ns = load.deadline_ns - self.settings.load_timeout_ns;
        let chosen = self.late_one_in > 0 && (load.offset / 64 + load.object) % self.late_one_in == 0;
        chosen && !load.hedge && !self.cancelled.contains(&action.id()) && self.now_ns < issued_ns + 300_000_000
    }

    /// Ends one action that is under way, any of them. False: there is none.
    pub fn end_one(&mut self) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        let mut pick = self.roll(self.under_way.len() as u64) as usize;
        if self.is_late(&self.under_way[pick]) {
            let Some(other) = self.under_way.iter().position(|action| !self.is_late(action)) else {
                self.now_ns += 10_000_000;
                self.step(Event::Tick);
                return true;
            };
            pick = other;
        }
        if self.limit_every > 0 && self.roll(self.limit_every) == 0 {
            let requests = self.roll(20) as u32;
            self.step(Event::Limit { requests });
        }
        let action = self.under_way.swap_remove(pick);
        self.now_ns += 1_000_000;
        let fails = self.fail_one_in > 0 && self.roll(self.fail_one_in) == 0;
        let failure = if self.cancelled.contains(&action.id()) {
            Some(Failure::Cancelled)
        } else if self.brings_corrupt(&action) {
            Some(Failure::Corrupt)
        } else if fails {
            Some(Failure::Unavailable)
        } else {
            None
        };
        match action.command() {
            Command::Load(load) if failure.is_none() => {
                self.memory.bring(load, self.plan.scheduler().library());
            }
            Command::Keep { block, slot, .. } if failure.is_none() => {
                assert!(self.has(*slot, *block), "the slot stays until it is written");
                self.disk.insert(*block);
            }
            _ => {}
        }
        let completion = match failure {
            Some(failure) => action.failed(failure),
            None => action.done(500_000, 1_000_000),
        };
        self.step(Event::Completed(completion));
        true
    }

    /// Waits for a request; what was asked for in the meantime stays.
    pub fn wait(&mut self, request: u64) -> Answer {
        loop {
            if let Some(result) = self.delivered.remove(&request) {
                return result;
            }
            if !self.end_one() {
                panic!(
                    "request {request} hangs: {:?} {:?}",
                    self.plan.scheduler().waiting(),
                    self.plan.scheduler().gauges()
                );
            }
        }
    }

    pub fn release(&mut self, handles: Vec<Handle>) {
        for handle in &handles {
            let slot = self.held.get_mut(handle).and_then(Vec::pop);
            self.memory.unlease(slot.expect("held"));
        }
        self.step(Event::Release { handles });
    }

    pub fn finish(self) {
        let fresh = Scheduler::for_one(self.settings.clone(), &self.reads).expect("scheduler");
        replay(fresh, self.plan.log()).expect("the log replays");
    }
}

pub fn sizes(n: u64, mean: u64, seed: u64) -> Vec<u64> {
    (0..n)
        .map(|i| (i.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % (2 * mean))
        .collect()
}

/// Reads whole epochs batch by batch with one rank; returns the samples and what they cost.
pub fn read_epochs(carrier: &mut Carrier, epochs: u32) -> Vec<Vec<(u64, Via)>> {
    let batches = carrier.plan.scheduler().split(0).expect("joined").batches();
    let mut request = 0;
    let mut all = Vec::new();
    for epoch in 0..epochs {
        let mut seen = Vec::new();
        for batch in 0..batches {
            request += 1;
            carrier.step(Event::WantBatch {
                job: 0,
                request,
                rank: 0,
                epoch,
                batch,
            });
            let items = carrier.wait(request).expect("served");
            seen.extend(items.iter().map(|item| (item.sample, item.via)));
            carrier.release(items.iter().map(|item| item.handle).collect());
        }
        all.push(seen);
    }
    all
}

pub fn assert_order(carrier: &Carrier, epochs: &[Vec<(u64, Via)>]) {
    let order = carrier.reads.order.clone();
    for (epoch, seen) in epochs.iter().enumerate() {
        let order = order.epoch(epoch as u32).expect("epoch");
        for (position, (sample, _)) in seen.iter().enumerate() {
            assert_eq!(*sample, order.sample_at(position as u64));
        }
        assert_eq!(seen.len() as u64, carrier.reads.order.spec().samples);
    }
}
