//! Several jobs on one node: what one has brought the others have, each gets its share, and one that is over takes nothing with it.

use crate::carrier::{Carrier, sizes, spec};
use foreload_plan::action::{Command, Event, Source};
use foreload_plan::catalog::{Catalog, Objects, Shards};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::job::{Reads, Set};
use foreload_plan::order::Order;
use foreload_plan::settings::Settings;
use foreload_plan::spec::OrderKind;
use std::collections::BTreeMap;
use std::sync::Arc;

fn settings(ram_bytes: u64) -> Settings {
    Settings {
        ram_bytes,
        concurrency: ConcurrencySettings::fixed(8),
        ..Settings::default()
    }
}

fn reads(name: u64, catalog: &Arc<dyn Catalog>, seed: u64, global_batch: u32) -> Reads {
    let mut order = spec(catalog.samples(), global_batch, OrderKind::Keyed);
    order.seed = seed;
    Reads {
        sets: vec![Set::new(name, Arc::clone(catalog))],
        order: Order::new(&order).expect("an order"),
        world: 1,
        uneven: true,
        deal: None,
        ranking: None,
        ranks: vec![0],
        ram_bytes: None,
        largest: None,
        epochs: None,
    }
}

/// What a job reads that brings memory of its own.
fn bring(name: u64, catalog: &Arc<dyn Catalog>, seed: u64, ram_bytes: u64) -> Reads {
    Reads {
        ram_bytes: Some(ram_bytes),
        ..reads(name, catalog, seed, 10)
    }
}

/// Job `1 + round` joins, and then the one parts that has lingered until now.
fn follow(carrier: &mut Carrier, round: u32, reads: Reads) -> u32 {
    carrier.step(Event::Join {
        job: 1 + round,
        reads: Box::new(reads),
    });
    if round > 0 {
        carrier.step(Event::Part { job: round });
    }
    1 + round
}

/// A carrier for job 0, and a second job.
fn two(ram_bytes: u64, first: &Arc<dyn Catalog>, second: Reads) -> Carrier {
    let order = spec(first.samples(), 10, OrderKind::Keyed);
    let mut carrier = Carrier::new(settings(ram_bytes), Arc::clone(first), order, 1, vec![0], 1);
    carrier.step(Event::Join {
        job: 1,
        reads: Box::new(second),
    });
    carrier.step(Event::Start {
        job: 1,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    carrier
}

fn want(carrier: &mut Carrier, job: u32, epoch: u32, batch: u64) -> Vec<u64> {
    let request = u64::from(job) << 32 | u64::from(epoch) << 24 | batch;
    carrier.step(Event::WantBatch {
        job,
        request,
        rank: 0,
        epoch,
        batch,
    });
    let items = carrier.wait(request).expect("served");
    carrier.release(items.iter().map(|item| item.handle).collect());
    items.iter().map(|item| item.sample).collect()
}

#[test]
fn two_jobs_over_one_data_set_hold_one_copy_and_fetch_it_once() {
    let lengths = sizes(500, 2000, 5);
    let total: u64 = lengths.iter().sum();
    for catalog in [
        Arc::new(Objects(lengths.clone())) as Arc<dyn Catalog>,
        Arc::new(Shards::pack(&lengths, 0, 100_000)),
    ] {
        let mut carrier = two(2 * total, &catalog, reads(0, &catalog, 99, 10));
        let mut seen = BTreeMap::new();
        for epoch in 0..2 {
            for batch in 0..50 {
                for job in 0..2 {
                    let samples = want(&mut carrier, job, epoch, batch);
                    seen.entry((job, epoch)).or_insert_with(Vec::new).extend(samples);
                }
            }
        }
        for read in seen.values() {
            let mut read = read.clone();
            read.sort_unstable();
            assert!(read.into_iter().eq(0..500), "each reads all, once an epoch");
        }
        assert_ne!(seen[&(0, 0)], seen[&(1, 0)], "each in an order of its own");
        let gauges = carrier.plan.scheduler().gauges();
        assert_eq!(carrier.fetched_bytes, total, "each byte once, for both");
        assert!(gauges.kept_samples <= 500 && gauges.kept_bytes <= total + 64 * 500);
        carrier.finish();
    }
}

#[test]
fn what_a_job_waits_for_comes_in_its_own_turn_although_another_one_queued_it_first() {
    for catalog in [
        Arc::new(Objects(vec![1000; 3000])) as Arc<dyn Catalog>,
        Arc::new(Shards::pack(&vec![30_000; 3000], 0, 60_000)),
    ] {
        // All fits, so the first job has queued all of its epoch before the second one comes.
        let mut carrier = two(200 << 20, &catalog, reads(0, &catalog, 99, 10));
        for batch in 0..3 {
            let before = carrier.requests;
            want(&mut carrier, 1, 0, batch);
            let sent = carrier.requests - before;
            assert!(sent <= 40, "{sent} requests went out before ten samples were there");
        }
        // And the first one goes on.
        let before = carrier.requests;
        want(&mut carrier, 0, 0, 0);
        assert!(carrier.requests - before <= 40);
        carrier.finish();
    }
}

#[test]
fn two_jobs_that_both_want_all_get_half_each_whatever_the_size_of_what_they_read() {
    for (first, second) in [(1000u64, 1000u64), (1000, 8000)] {
        let all = |len: u64| -> Arc<dyn Catalog> { Arc::new(Objects(vec![len; 8000])) };
        let (a, b) = (all(first), all(second));
        let mut carrier = two(4 << 20, &a, reads(7, &b, 3, 10));
        let mut bytes = [0u64; 2];
        let (mut batch, mut open) = ([0u64; 2], [false; 2]);
        for turn in 0..6000 {
            for job in 0..2u32 {
                let at = job as usize;
                let request = u64::from(job) << 32 | batch[at];
                if open[at]
                    && let Some(answer) = carrier.delivered.remove(&request)
                {
                    let items = answer.expect("served");
                    carrier.release(items.iter().map(|item| item.handle).collect());
                    open[at] = false;
                    batch[at] += 1;
                }
                if !open[at] && batch[at] < 800 {
                    open[at] = true;
                    let request = u64::from(job) << 32 | batch[at];
                    carrier.step(Event::WantBatch {
                        job,
                        request,
                        rank: 0,
                        epoch: 0,
                        batch: batch[at],
                    });
                }
            }
            // What was planned before there was a second job comes first.
            for action in carrier.under_way.iter().filter(|_| turn > 3000) {
                if let Command::Load(load) = action.command()
                    && load.source == Source::Bucket
                {
                    let library = carrier.plan.scheduler().library();
                    let second = library.shelf_of(load.pieces[0].content).name == 7;
                    bytes[usize::from(second)] += load.len;
                }
            }
            carrier.end_one();
        }
        let share = bytes[0] as f64 / (bytes[0] + bytes[1]) as f64;
        assert!((0.4..0.6).contains(&share), "{first} and {second} bytes: {share}");
    }
}

#[test]
fn a_job_that_is_over_fetches_nothing_more_and_leaves_what_it_kept_to_others() {
    let catalog: Arc<dyn Catalog> = Arc::new(Objects(vec![1000; 300]));
    let mut carrier = two(4 << 20, &catalog, reads(0, &catalog, 4, 10));
    // The first job has left, and the second reads all.
    carrier.step(Event::Part { job: 0 });
    for batch in 0..30 {
        want(&mut carrier, 1, 0, batch);
    }
    while carrier.end_one() {}
    assert_eq!(carrier.fetched_bytes, 300_000);
    let asked = carrier.requests;
    carrier.step(Event::Join {
        job: 2,
        reads: Box::new(reads(0, &catalog, 8, 30)),
    });
    carrier.step(Event::Part { job: 1 });
    assert!(carrier.plan.scheduler().split(1).is_none());
    carrier.step(Event::Start {
        job: 2,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    for batch in 0..10 {
        want(&mut carrier, 2, 0, batch);
    }
    assert_eq!(carrier.requests, asked, "all of it is there");
    carrier.step(Event::Part { job: 2 });
    assert_eq!(
        carrier.plan.scheduler().gauges().residents,
        0,
        "nobody reads it any more"
    );
    assert!(carrier.plan.scheduler().library().shelves().is_empty());
    carrier.finish();
}

#[test]
fn a_data_set_that_nobody_reads_leaves_when_what_is_held_of_it_is_given_back() {
    let all = || -> Arc<dyn Catalog> { Arc::new(Objects(vec![1000; 300])) };
    let (a, b) = (all(), all());
    let mut carrier = two(4 << 20, &a, reads(7, &b, 4, 10));
    carrier.step(Event::WantBatch {
        job: 1,
        request: 5,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    let held = carrier.wait(5).expect("served");
    carrier.step(Event::Part { job: 1 });
    let knows = |carrier: &Carrier| carrier.plan.scheduler().library().named(7).is_some();
    while carrier.end_one() {}
    carrier.now_ns += 2_000_000_000;
    carrier.step(Event::Tick);
    assert!(knows(&carrier), "some of it is in use");
    for item in &held {
        let bytes = carrier.plan.scheduler().library().place(300 + item.sample).len;
        assert_eq!(bytes, 1000);
    }
    carrier.release(held.iter().map(|item| item.handle).collect());
    carrier.now_ns += 2_000_000_000;
    carrier.step(Event::Tick);
    assert!(!knows(&carrier));
    // Its numbers are not another's: the same data set is fetched anew.
    let asked = carrier.requests;
    carrier.step(Event::Join {
        job: 2,
        reads: Box::new(reads(7, &b, 8, 30)),
    });
    want(&mut carrier, 2, 0, 0);
    assert!(carrier.requests >= asked + 30);
    carrier.finish();
}

#[test]
fn a_job_that_follows_another_takes_its_memory_over_and_nobody_else_pays() {
    let all = |count: usize| -> Arc<dyn Catalog> { Arc::new(Objects(vec![10_000; count])) };
    let (a, b) = (all(300), all(60));
    // What the first keeps doesn't all fit.
    let mut carrier = Carrier::of(settings(64 << 20), bring(0, &a, 1, 1_500_000), 1).started();
    let mut fetched = Vec::new();
    for round in 0..6u32 {
        let job = follow(&mut carrier, round, bring(7, &b, 1 + u64::from(round), 1_000_000));
        (0..3).for_each(|batch| drop(want(&mut carrier, job, 0, batch)));
        carrier.step(Event::Left { job });
        let before = carrier.fetched_bytes;
        (0..30).for_each(|batch| drop(want(&mut carrier, 0, round, batch)));
        fetched.push(carrier.fetched_bytes - before);
    }
    let later: u64 = fetched[1..].iter().sum();
    assert!(later < 5 * 1_400_000, "{fetched:?}");
    carrier.finish();
}

#[test]
fn a_data_set_that_fits_what_its_job_brings_stays_beside_one_that_takes_all_it_gets() {
    let all = |count: usize| -> Arc<dyn Catalog> { Arc::new(Objects(vec![10_000; count])) };
    let (large, small) = (all(1000), all(80));
    let mut carrier = Carrier::of(settings(64 << 20), bring(0, &large, 1, 5_000_000), 1).started();
    let mut fetched = Vec::new();
    for round in 0..4u32 {
        let job = follow(&mut carrier, round, bring(7, &small, 1 + u64::from(round), 2_000_000));
        // The large one reads on, and takes what it gets.
        (0..50).for_each(|batch| drop(want(&mut carrier, 0, 0, 50 * (round as u64 % 2) + batch)));
        let of_small = |carrier: &Carrier| {
            let library = carrier.plan.scheduler().library();
            library.named(7).map_or(0, |shelf| shelf.first_sample)
        };
        assert_eq!(of_small(&carrier), 1000);
        let before = carrier.fetched_bytes;
        (0..8).for_each(|batch| drop(want(&mut carrier, job, 0, batch)));
        fetched.push(carrier.fetched_bytes - before);
        carrier.step(Event::Left { job });
        if round % 2 == 1 {
            carrier.step(Event::Start {
                job: 0,
                rank: 0,
                epoch: 0,
                batch: 0,
            });
        }
    }
    let small_bytes = carrier
        .plan
        .scheduler()
        .library()
        .named(7)
        .map_or(0, |shelf| shelf.bytes);
    assert_eq!(small_bytes, 800_000);
    assert!(fetched[1..].iter().all(|&bytes| bytes < 900_000), "{fetched:?}");
    carrier.finish();
}

#[test]
fn memory_is_what_the_jobs_bring_and_comes_and_goes_with_them() {
    let all = || -> Arc<dyn Catalog> { Arc::new(Objects(vec![10_000; 300])) };
    let (a, b) = (all(), all());
    let mut carrier = Carrier::of(settings(64 << 20), bring(0, &a, 4, 1_000_000), 1).started();
    let read = |carrier: &mut Carrier, job| {
        (0..30).for_each(|batch| drop(want(carrier, job, 0, batch)));
        carrier.plan.scheduler().gauges().used_bytes
    };
    let alone = read(&mut carrier, 0);
    assert!(alone <= 1_000_000);
    carrier.step(Event::Join {
        job: 1,
        reads: Box::new(bring(7, &b, 4, 3_000_000)),
    });
    assert!((2_500_000..4_000_000).contains(&read(&mut carrier, 1)));
    carrier.step(Event::Budget { ram_bytes: 2_000_000 });
    while carrier.end_one() {}
    carrier.step(Event::Tick);
    assert!(carrier.plan.scheduler().gauges().used_bytes <= 2_000_000);
    carrier.step(Event::Budget { ram_bytes: 9_000_000 });
    carrier.step(Event::Part { job: 1 });
    while carrier.end_one() {}
    carrier.step(Event::Tick);
    assert!(carrier.plan.scheduler().gauges().used_bytes <= 1_000_000);
    carrier.finish();
}

#[test]
fn what_one_job_brings_is_no_reason_to_load_after_it_is_over() {
    let (a, b): (Arc<dyn Catalog>, Arc<dyn Catalog>) =
        (Arc::new(Objects(vec![1000; 3000])), Arc::new(Objects(vec![1000; 3000])));
    let mut carrier = two(8 << 20, &a, reads(7, &b, 4, 10));
    carrier.step(Event::Part { job: 1 });
    let left: Vec<u64> = carrier.under_way.iter().map(|action| action.id()).collect();
    for batch in 0..300 {
        want(&mut carrier, 0, 0, batch);
        for action in &carrier.under_way {
            if let Command::Load(load) = action.command() {
                let library = carrier.plan.scheduler().library();
                let second = library.shelf_of(load.pieces[0].content).name == 7;
                assert!(!second || left.contains(&action.id()), "a load for a job that is over");
            }
        }
    }
    carrier.finish();
}

#[test]
fn a_job_that_cannot_be_served_joins_nothing() {
    let catalog: Arc<dyn Catalog> = Arc::new(Objects(vec![1000; 30]));
    let mut wrong = reads(0, &catalog, 4, 10);
    wrong.ranks = vec![3];
    assert!(wrong.check().is_err());
    let mut fewer = reads(0, &catalog, 4, 10);
    fewer.order = Order::new(&spec(31, 10, OrderKind::Keyed)).expect("an order");
    assert!(fewer.check().is_err());
    let mut carrier = two(4 << 20, &catalog, wrong);
    assert!(carrier.plan.scheduler().split(1).is_none());
    want(&mut carrier, 0, 0, 0);
    carrier.finish();
}
