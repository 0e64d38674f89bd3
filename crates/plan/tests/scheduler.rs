//! The scheduler's own properties, on a carrier that finishes loads in any order, late, or not at all.
//!
//! Agreement between engine and simulator isn't correctness: these say what any carrier may rely on. Every run ends with a replay of its log.

#![allow(
    clippy::disallowed_types,
    reason = "a test may hash; it never iterates what it hashed"
)]

use foreload_plan::action::{Action, Command, Event, Failure, Handle, Item, Source, Via};
use foreload_plan::arena::reserved_bytes;
use foreload_plan::catalog::{Catalog, Objects, Shards};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::model::Pinned;
use foreload_plan::order::Order;
use foreload_plan::policy::Policy;
use foreload_plan::replay::{Recorded, replay};
use foreload_plan::scheduler::Next;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_plan::split::Split;
use foreload_plan::{Digest, DigestBuilder, Scheduler};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

fn dataset() -> Digest {
    DigestBuilder::new("test").finish()
}

fn spec(samples: u64, global_batch: u32, kind: OrderKind) -> OrderSpec {
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
type Answer = Result<Vec<Item>, (Option<u64>, Failure)>;

/// A carrier under the test's control: a clock, loads under way, and the bytes a real one would hold (by slot: who wrote them).
struct Carrier {
    plan: Recorded,
    catalog: Arc<dyn Catalog>,
    now_ns: u64,
    dice: u64,
    under_way: Vec<Action>,
    cancelled: HashSet<u64>,
    /// Bytes in the arena: slot offset -> (sample, len), as the loads wrote them.
    written: BTreeMap<u64, (u64, u64)>,
    disk: HashSet<u64>,
    delivered: HashMap<u64, Answer>,
    fetched_bytes: u64,
    requests: u64,
    fail_one_in: u64,
    settings: Settings,
    order: OrderSpec,
    ranks: Vec<u32>,
    world: u32,
}

impl Carrier {
    fn new(
        settings: Settings,
        catalog: Arc<dyn Catalog>,
        order: OrderSpec,
        world: u32,
        ranks: Vec<u32>,
        seed: u64,
    ) -> Self {
        let mut carrier = Self::bare(settings, catalog, order, world, ranks, seed);
        for rank in carrier.ranks.clone() {
            carrier.step(Event::Start {
                rank,
                epoch: 0,
                batch: 0,
            });
        }
        carrier
    }

    fn bare(
        settings: Settings,
        catalog: Arc<dyn Catalog>,
        order: OrderSpec,
        world: u32,
        ranks: Vec<u32>,
        seed: u64,
    ) -> Self {
        Carrier {
            plan: Recorded::new(Self::scheduler(&settings, &catalog, &order, world, &ranks), None),
            catalog,
            now_ns: 0,
            dice: seed | 1,
            under_way: Vec::new(),
            cancelled: HashSet::new(),
            written: BTreeMap::new(),
            disk: HashSet::new(),
            delivered: HashMap::new(),
            fetched_bytes: 0,
            requests: 0,
            fail_one_in: 0,
            settings,
            order,
            ranks,
            world,
        }
    }

    fn scheduler(
        settings: &Settings,
        catalog: &Arc<dyn Catalog>,
        order: &OrderSpec,
        world: u32,
        ranks: &[u32],
    ) -> Scheduler {
        let order = Order::new(order).expect("order");
        let split = Split::weighted(&order, world).expect("split");
        Scheduler::new(settings.clone(), Arc::clone(catalog), order, split, ranks.to_vec()).expect("scheduler")
    }

    fn roll(&mut self, n: u64) -> u64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n.max(1)
    }

    fn step(&mut self, event: Event) {
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
                let mut end = 0;
                for piece in &load.pieces {
                    let place = self.catalog.place(piece.sample);
                    assert!(
                        piece.at >= end && piece.at + piece.len <= load.len,
                        "pieces in order, inside the range"
                    );
                    assert_eq!(
                        (place.object, place.offset + piece.sample_offset),
                        (load.object, load.offset + piece.at)
                    );
                    assert_eq!(piece.sample_len, place.len);
                    end = piece.at + piece.len;
                }
                if load.source == Source::Bucket {
                    self.requests += 1;
                    self.fetched_bytes += load.len;
                } else {
                    assert!(
                        load.pieces.iter().all(|p| self.disk.contains(&p.sample)),
                        "reads only what is on disk"
                    );
                }
                self.under_way.push(action);
            }
            Command::Keep { sample, slot, .. } => {
                assert_eq!(
                    self.written.get(&slot.offset),
                    Some(&(*sample, slot.len)),
                    "writes what is in memory"
                );
                self.under_way.push(action);
            }
            Command::Forget { sample, .. } => assert!(self.disk.remove(sample)),
            Command::Deliver { request, items, .. } => {
                for item in items {
                    assert_eq!(item.slot.len, self.catalog.place(item.sample).len);
                    if item.slot.len > 0 {
                        assert_eq!(
                            self.written.get(&item.slot.offset),
                            Some(&(item.sample, item.slot.len)),
                            "delivers what was loaded"
                        );
                    }
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

    /// Ends one action that is under way, any of them. False: there is none.
    fn end_one(&mut self) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        let pick = self.roll(self.under_way.len() as u64) as usize;
        let action = self.under_way.swap_remove(pick);
        self.now_ns += 1_000_000;
        let fails = self.fail_one_in > 0 && self.roll(self.fail_one_in) == 0;
        let failure = if self.cancelled.contains(&action.id()) {
            Some(Failure::Cancelled)
        } else if fails {
            Some(Failure::Unavailable)
        } else {
            None
        };
        match action.command() {
            Command::Load(load) if failure.is_none() => {
                for piece in load.pieces.clone() {
                    let start = piece.slot_offset - piece.sample_offset;
                    let end = start + reserved_bytes(piece.sample_len);
                    let over: Vec<u64> = self
                        .written
                        .range(..end)
                        .filter(|&(&o, &(_, l))| o + reserved_bytes(l) > start)
                        .map(|(&o, _)| o)
                        .collect();
                    over.iter().for_each(|o| assert!(self.written.remove(o).is_some()));
                    self.written.insert(start, (piece.sample, piece.sample_len));
                }
            }
            Command::Keep { sample, slot, .. } if failure.is_none() => {
                assert_eq!(
                    self.written.get(&slot.offset),
                    Some(&(*sample, slot.len)),
                    "the slot stays until it is written"
                );
                self.disk.insert(*sample);
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
    fn wait(&mut self, request: u64) -> Answer {
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

    fn release(&mut self, handles: Vec<Handle>) {
        self.step(Event::Release { handles });
    }

    fn finish(self) {
        replay(
            Self::scheduler(&self.settings, &self.catalog, &self.order, self.world, &self.ranks),
            self.plan.log(),
        )
        .expect("the log replays");
    }
}

fn sizes(n: u64, mean: u64, seed: u64) -> Vec<u64> {
    (0..n)
        .map(|i| (i.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % (2 * mean))
        .collect()
}

/// Reads whole epochs batch by batch with one rank; returns the samples and what they cost.
fn read_epochs(carrier: &mut Carrier, epochs: u32) -> Vec<Vec<(u64, Via)>> {
    let batches = carrier.plan.scheduler().split().batches();
    let mut request = 0;
    let mut all = Vec::new();
    for epoch in 0..epochs {
        let mut seen = Vec::new();
        for batch in 0..batches {
            request += 1;
            carrier.step(Event::WantBatch {
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

fn assert_order(carrier: &Carrier, epochs: &[Vec<(u64, Via)>]) {
    let order = Order::new(&carrier.order).expect("order");
    for (epoch, seen) in epochs.iter().enumerate() {
        let order = order.epoch(epoch as u32).expect("epoch");
        for (position, (sample, _)) in seen.iter().enumerate() {
            assert_eq!(*sample, order.sample_at(position as u64));
        }
        assert_eq!(seen.len() as u64, carrier.order.samples);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_sample_comes_once_per_epoch_in_order_under_any_sizes_budgets_and_policies(
        samples in 1u64..300,
        mean in 1u64..3000,
        batch in 1u32..20,
        ram in 1u64..200_000,
        disk in prop_oneof![Just(0u64), 1_000u64..400_000],
        policy in 0usize..6,
        sharded in any::<bool>(),
        big in any::<bool>(),
        fail_one_in in prop_oneof![Just(0u64), Just(50)],
        seed in any::<u64>(),
    ) {
        let mut lengths = sizes(samples, mean, seed);
        let largest_batch = u64::from(batch) * (2 * mean + 64);
        let ram = ram + 2 * largest_batch + 4096;
        if big {
            // One sample of more than half the arena.
            let at = (seed % samples) as usize;
            lengths[at] = ram / 2 + 64;
        }
        let ram = if big { ram + 2 * largest_batch } else { ram };
        let policy = [
            Policy::Naive, Policy::Staging, Policy::Lru, Policy::Frequency, Policy::Foreload,
            Policy::Deli { fetch: 8, threshold: 4, cache: 16 },
        ][policy];
        let settings = Settings {
            policy,
            ram_bytes: ram,
            tiers: if disk > 0 { vec![TierSettings { capacity_bytes: disk, pinned: None }] } else { Vec::new() },
            part_bytes: 5_000,
            coalesce_bytes: 8_000,
            concurrency: ConcurrencySettings::fixed(7),
            ..Settings::default()
        };
        let catalog: Arc<dyn Catalog> = if sharded { Arc::new(Shards::pack(&lengths, 512, 20_000)) } else { Arc::new(Objects(lengths)) };
        let mut carrier = Carrier::new(settings, catalog, spec(samples, batch, OrderKind::Keyed), 1, vec![0], seed);
        carrier.fail_one_in = fail_one_in;
        if fail_one_in == 0 {
            let epochs = read_epochs(&mut carrier, 3);
            assert_order(&carrier, &epochs);
        } else {
            // Failures may refuse a batch; asked again, it comes.
            let batches = carrier.plan.scheduler().split().batches();
            let mut request = 0;
            for (epoch, batch) in (0..2).flat_map(|e| (0..batches).map(move |b| (e, b))) {
                let items = loop {
                    request += 1;
                    carrier.step(Event::WantBatch { request, rank: 0, epoch, batch });
                    match carrier.wait(request) {
                        Ok(items) => break items,
                        Err((_, failure)) => prop_assert_eq!(failure, Failure::Unavailable),
                    }
                };
                carrier.release(items.iter().map(|item| item.handle).collect());
            }
        }
        while carrier.end_one() {}
        let gauges = carrier.plan.scheduler().gauges();
        prop_assert_eq!((gauges.leases, gauges.requests, gauges.in_flight), (0, 0, 0));
        carrier.finish();
    }

    #[test]
    fn workers_that_ask_by_sample_out_of_order_get_what_they_asked_for(
        samples in 10u64..300, batch in 1u32..12, workers in 1usize..5, ram in 0u64..60_000, seed in any::<u64>(),
    ) {
        let lengths = sizes(samples, 500, seed);
        let settings = Settings { ram_bytes: ram + 1100 * u64::from(batch) * (2 * workers as u64 + 4), ..Settings::default() };
        let mut carrier = Carrier::new(settings, Arc::new(Objects(lengths)), spec(samples, batch, OrderKind::Keyed), 1, vec![0], seed);
        let order = Order::new(&carrier.order).expect("order");
        let mut request = 0;
        for epoch in 0..2u32 {
            carrier.step(Event::Start { rank: 0, epoch, batch: 0 });
            let order = order.epoch(epoch).expect("epoch");
            let all: Vec<u64> = (0..order.positions()).map(|p| order.sample_at(p)).collect();
            let batches: Vec<Vec<u64>> = all.chunks(batch as usize).map(<[u64]>::to_vec).collect();
            // Each round the workers ask for one batch each, in any order; the consumer takes them in the loader's order.
            for round in batches.chunks(workers) {
                let first = request + 1;
                let mut asks: Vec<(u64, Vec<u64>)> = round.iter().enumerate().map(|(i, b)| (first + i as u64, b.clone())).collect();
                request += round.len() as u64;
                for i in (1..asks.len()).rev() {
                    let j = carrier.roll(i as u64 + 1) as usize;
                    asks.swap(i, j);
                }
                for (id, samples) in asks {
                    carrier.step(Event::WantSamples { request: id, rank: 0, samples });
                }
                for (i, wanted) in round.iter().enumerate() {
                    let items = carrier.wait(first + i as u64).expect("served");
                    prop_assert_eq!(&items.iter().map(|item| item.sample).collect::<Vec<_>>(), wanted);
                    carrier.release(items.iter().map(|item| item.handle).collect());
                }
            }
        }
        carrier.finish();
    }

    #[test]
    fn a_rank_that_jumps_anywhere_goes_on_from_there(jumps in proptest::collection::vec((0u32..3, 0u64..20), 1..12), world in 1u32..4, seed in any::<u64>()) {
        let lengths = sizes(240, 400, seed);
        let settings = Settings { ram_bytes: 60_000, ..Settings::default() };
        let ranks: Vec<u32> = (0..world).collect();
        let mut carrier = Carrier::new(settings, Arc::new(Objects(lengths)), spec(240, 12, OrderKind::Keyed), world, ranks.clone(), seed);
        let order = Order::new(&carrier.order).expect("order");
        let split = Split::weighted(&order, world).expect("split");
        let mut request = 0;
        for (epoch, batch) in jumps {
            for &rank in &ranks {
                carrier.step(Event::Start { rank, epoch, batch });
            }
            for batch in batch..(batch + 2).min(split.batches()) {
                for &rank in &ranks {
                    request += 1;
                    carrier.step(Event::WantBatch { request, rank, epoch, batch });
                    let items = carrier.wait(request).expect("served");
                    let order = order.epoch(epoch).expect("epoch");
                    let expected: Vec<u64> = split.batch_positions(batch, rank).map(|p| order.sample_at(p)).collect();
                    prop_assert_eq!(items.iter().map(|i| i.sample).collect::<Vec<_>>(), expected);
                    carrier.release(items.iter().map(|item| item.handle).collect());
                }
            }
        }
        carrier.finish();
    }
}

/// Shares of consumed bytes by where they were found, in the last epoch.
fn hit_share(policy: Policy, fraction: f64, variable: bool, sharded: bool) -> f64 {
    let samples = 4000u64;
    let lengths: Vec<u64> = if variable {
        sizes(samples, 10_000, 3)
    } else {
        vec![10_048; samples as usize]
    };
    let total: u64 = lengths.iter().map(|&l| reserved_bytes(l)).sum();
    // LRU leaves holes of all sizes: it needs slack for the same number of cached bytes.
    let staging = if policy == Policy::Lru { total / 4 } else { total / 100 };
    let settings = Settings {
        policy,
        ram_bytes: (total as f64 * fraction) as u64 + staging,
        staging_bytes: Some(staging),
        coalesce_bytes: 80_000,
        concurrency: ConcurrencySettings::fixed(8),
        ..Settings::default()
    };
    let catalog: Arc<dyn Catalog> = if sharded {
        Arc::new(Shards::pack(&lengths, 512, 1_000_000))
    } else {
        Arc::new(Objects(lengths.clone()))
    };
    let mut carrier = Carrier::new(settings, catalog, spec(samples, 8, OrderKind::Keyed), 1, vec![0], 5);
    let epochs = read_epochs(&mut carrier, 4);
    let hits: u64 = epochs[3]
        .iter()
        .filter(|(_, via)| *via == Via::Ram)
        .map(|(s, _)| lengths[*s as usize])
        .sum();
    hits as f64 / lengths.iter().sum::<u64>() as f64
}

#[test]
fn hits_are_the_cached_fraction_and_not_what_lru_makes_of_it() {
    for variable in [false, true] {
        for q in [0.1, 0.25, 0.5, 0.9] {
            let share = hit_share(Policy::Foreload, q, variable, false);
            // staging/data = 0.01, and what staging holds across the border may hit too.
            assert!(
                share >= q - 0.01 && share <= q + 0.02,
                "q={q} variable={variable}: {share}"
            );
            let lru = hit_share(Policy::Lru, q, variable, false);
            let theory = q + (1.0 - q) * (1.0f64 - q).ln();
            assert!(
                (lru - theory).abs() < 0.015,
                "lru q={q} variable={variable}: {lru} instead of {theory}"
            );
        }
    }
}

#[test]
fn shards_are_read_in_large_requests_and_each_byte_once_where_disk_holds_the_data() {
    let samples = 2000u64;
    let lengths = sizes(samples, 10_000, 9);
    let total: u64 = lengths.iter().sum();
    let settings = Settings {
        ram_bytes: total / 4,
        tiers: vec![TierSettings {
            capacity_bytes: 2 * total,
            pinned: None,
        }],
        coalesce_bytes: 400_000,
        concurrency: ConcurrencySettings::fixed(8),
        ..Settings::default()
    };
    let mut carrier = Carrier::new(
        settings,
        Arc::new(Shards::pack(&lengths, 512, 2_000_000)),
        spec(samples, 8, OrderKind::Keyed),
        1,
        vec![0],
        11,
    );
    let epochs = read_epochs(&mut carrier, 2);
    assert_order(&carrier, &epochs);
    assert!(
        carrier.requests <= samples / 20,
        "{} requests for {samples} samples",
        carrier.requests
    );
    // The gaps between samples here are 5 % of a sample; they are fetched along.
    assert!(
        carrier.fetched_bytes <= total + samples * 512,
        "{} bytes of {total}",
        carrier.fetched_bytes
    );
    carrier.finish();
}

#[test]
fn a_late_load_that_is_waited_for_gets_one_twin_and_the_loser_is_cancelled() {
    let settings = Settings {
        ram_bytes: 1 << 20,
        concurrency: ConcurrencySettings::fixed(4),
        window_entries: 64,
        ..Settings::default()
    };
    let mut carrier = Carrier::new(
        settings,
        Arc::new(Objects(vec![1000; 1000])),
        spec(1000, 8, OrderKind::Keyed),
        1,
        vec![0],
        1,
    );
    for batch in 0..20 {
        carrier.step(Event::WantBatch {
            request: batch,
            rank: 0,
            epoch: 0,
            batch,
        });
        let items = carrier.wait(batch).expect("served");
        carrier.release(items.iter().map(|item| item.handle).collect());
    }
    // One load never ends; its reader asks, and waits.
    let slow = carrier.under_way.pop().expect("look-ahead");
    let Command::Load(load) = slow.command() else {
        panic!("a load")
    };
    let (sample, id) = (load.pieces[0].sample, slow.id());
    let order = Order::new(&carrier.order).expect("order").epoch(0).expect("epoch");
    let its_batch = order.position_of(sample).expect("read") / 8;
    for batch in 20..=its_batch {
        carrier.step(Event::WantBatch {
            request: batch,
            rank: 0,
            epoch: 0,
            batch,
        });
        while carrier.end_one() {}
        if let Some(Ok(items)) = carrier.delivered.remove(&batch) {
            carrier.release(items.iter().map(|item| item.handle).collect());
        }
    }
    assert_eq!(carrier.plan.scheduler().waiting().len(), 1);
    carrier.now_ns += 10_000_000_000;
    carrier.step(Event::Tick);
    let twins: Vec<&Action> = carrier
        .under_way
        .iter()
        .filter(|a| matches!(a.command(), Command::Load(l) if l.hedge && l.pieces[0].sample == sample))
        .collect();
    assert_eq!(twins.len(), 1, "one twin");
    carrier.step(Event::Tick);
    assert_eq!(
        carrier
            .under_way
            .iter()
            .filter(|a| matches!(a.command(), Command::Load(l) if l.hedge))
            .count(),
        1,
        "no second twin"
    );
    while carrier.end_one() {}
    assert!(carrier.cancelled.contains(&id), "the slow one is called off");
    carrier.step(Event::Completed(slow.failed(Failure::Cancelled)));
    while carrier.end_one() {}
    carrier.finish();
}

#[test]
fn a_sample_larger_than_the_memory_is_refused_not_waited_for() {
    let settings = Settings {
        ram_bytes: 10_000,
        ..Settings::default()
    };
    let mut lengths = vec![100; 20];
    lengths[7] = 20_000;
    let mut carrier = Carrier::new(
        settings,
        Arc::new(Objects(lengths)),
        spec(20, 20, OrderKind::Sequential),
        1,
        vec![0],
        1,
    );
    carrier.step(Event::WantBatch {
        request: 1,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    assert_eq!(carrier.wait(1), Err((Some(7), Failure::NoMemory)));
    carrier.finish();
}

#[test]
fn a_failed_load_is_retried_before_new_work() {
    let settings = Settings {
        ram_bytes: 1 << 20,
        concurrency: ConcurrencySettings::fixed(1),
        ..Settings::default()
    };
    let mut carrier = Carrier::new(
        settings,
        Arc::new(Objects(vec![1000; 50])),
        spec(50, 10, OrderKind::Sequential),
        1,
        vec![0],
        1,
    );
    let first = carrier.under_way.pop().expect("a load");
    let Command::Load(load) = first.command() else {
        panic!("a load")
    };
    let sample = load.pieces[0].sample;
    carrier.step(Event::Completed(first.failed(Failure::Corrupt)));
    let Command::Load(again) = carrier.under_way[0].command() else {
        panic!("a load")
    };
    assert_eq!((again.pieces[0].sample, again.attempt), (sample, 1));
    carrier.finish();
}

#[test]
fn deli_fetches_in_chunks_when_the_threshold_is_reached_and_keeps_the_newest() {
    let policy = Policy::Deli {
        fetch: 20,
        threshold: 10,
        cache: 40,
    };
    let settings = Settings {
        policy,
        ram_bytes: 1 << 20,
        concurrency: ConcurrencySettings::fixed(64),
        ..Settings::default()
    };
    let mut carrier = Carrier::new(
        settings,
        Arc::new(Objects(vec![1000; 200])),
        spec(200, 5, OrderKind::Keyed),
        1,
        vec![0],
        1,
    );
    let mut seen = Vec::new();
    for batch in 0..10 {
        carrier.step(Event::WantBatch {
            request: batch,
            rank: 0,
            epoch: 0,
            batch,
        });
        let items = carrier.wait(batch).expect("served");
        carrier.release(items.iter().map(|item| item.handle).collect());
        seen.push(carrier.plan.scheduler().gauges().reads_ahead);
        assert!(carrier.plan.scheduler().gauges().kept_samples <= 40);
    }
    // 20 ahead at first; after two batches 10 are left and the next 20 follow.
    assert_eq!(seen, [15, 30, 25, 20, 15, 30, 25, 20, 15, 30]);
    carrier.finish();
}

#[test]
fn a_restarted_job_reads_from_disk_what_was_found_there() {
    let settings = Settings {
        ram_bytes: 50_000,
        tiers: vec![TierSettings {
            capacity_bytes: 1 << 20,
            pinned: None,
        }],
        ..Settings::default()
    };
    let mut fresh = Carrier::bare(
        settings,
        Arc::new(Objects(vec![1000; 100])),
        spec(100, 10, OrderKind::Keyed),
        1,
        vec![0],
        1,
    );
    fresh.disk = (0..100).collect();
    fresh.step(Event::Found {
        tier: 0,
        samples: (0..100).collect(),
    });
    fresh.step(Event::Start {
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    let epochs = read_epochs(&mut fresh, 1);
    assert_eq!(fresh.requests, 0);
    assert!(epochs[0].iter().all(|(_, via)| *via == Via::Disk));
}

#[test]
fn a_disk_that_is_far_slower_than_the_bucket_is_left_alone() {
    for (disk_s, from_disk) in [(0.010, true), (1.0, false)] {
        let pinned = |latency_s| {
            Some(Pinned {
                latency_s,
                bytes_per_s: 1e9,
            })
        };
        let settings = Settings {
            ram_bytes: 20_000,
            tiers: vec![TierSettings {
                capacity_bytes: 1 << 20,
                pinned: pinned(disk_s),
            }],
            bucket: pinned(0.030),
            ..Settings::default()
        };
        let mut fresh = Carrier::bare(
            settings,
            Arc::new(Objects(vec![1000; 100])),
            spec(100, 4, OrderKind::Keyed),
            1,
            vec![0],
            1,
        );
        fresh.disk = (0..100).collect();
        fresh.step(Event::Found {
            tier: 0,
            samples: (0..100).collect(),
        });
        fresh.step(Event::Start {
            rank: 0,
            epoch: 0,
            batch: 0,
        });
        read_epochs(&mut fresh, 1);
        assert_eq!(
            fresh.requests == 0,
            from_disk,
            "{disk_s} s: {} requests",
            fresh.requests
        );
        fresh.finish();
    }
}
