//! The scheduler's own properties, on a carrier that finishes loads in any order, late, or not at all.
//!
//! Agreement between engine and simulator isn't correctness: these say what any carrier may rely on. Every run ends with a replay of its log.

#![allow(
    clippy::disallowed_types,
    reason = "a test may hash; it never iterates what it hashed"
)]

mod blocks;
mod carrier;
mod jobs;
mod left;
mod limits;
#[path = "../actors/lists.rs"]
mod lists;
#[path = "../actors/memory.rs"]
mod memory;
mod properties;
mod ranges;
mod requests;

use carrier::{Carrier, assert_order, read_epochs, sizes, spec};
use foreload_plan::action::{Action, Command, Event, Failure, Via};
use foreload_plan::arena::reserved_bytes;
use foreload_plan::catalog::{Catalog, Objects, Shards};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::model::Pinned;
use foreload_plan::policy::Policy;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::OrderKind;
use std::sync::Arc;

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
            job: 0,
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
    let (sample, id) = (load.pieces[0].content, slow.id());
    let order = carrier.reads.order.clone().epoch(0).expect("epoch");
    let its_batch = order.position_of(sample.number()).expect("read") / 8;
    for batch in 20..=its_batch {
        carrier.step(Event::WantBatch {
            job: 0,
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
        .filter(|a| matches!(a.command(), Command::Load(l) if l.hedge && l.pieces[0].content == sample))
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
        job: 0,
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
    let sample = load.pieces[0].content;
    carrier.step(Event::Completed(first.failed(Failure::Corrupt)));
    let Command::Load(again) = carrier.under_way[0].command() else {
        panic!("a load")
    };
    assert_eq!((again.pieces[0].content, again.attempt), (sample, 1));
    carrier.finish();
}

#[test]
fn a_failure_is_told_to_those_who_waited_while_the_load_was_tried_and_not_to_later_ones() {
    let settings = Settings {
        ram_bytes: 1 << 20,
        concurrency: ConcurrencySettings::fixed(1),
        ..Settings::default()
    };
    let ask = || Event::WantBatch {
        job: 0,
        request: 1,
        rank: 0,
        epoch: 0,
        batch: 0,
    };
    for early in [true, false] {
        let order = spec(1, 1, OrderKind::Sequential);
        let mut carrier = Carrier::new(settings.clone(), Arc::new(Objects(vec![1000])), order, 1, vec![0], 1);
        if early {
            carrier.step(ask());
        }
        loop {
            let tried = carrier.under_way.pop().expect("a load");
            let Command::Load(load) = tried.command() else {
                panic!("a load")
            };
            let attempt = load.attempt;
            carrier.now_ns += 1_000_000;
            let last = attempt == 1;
            if last && !early {
                carrier.step(ask());
            }
            carrier.step(Event::Completed(tried.failed(Failure::Unavailable)));
            if last {
                break;
            }
        }
        match early {
            true => assert_eq!(carrier.wait(1), Err((Some(0), Failure::Unavailable))),
            // A new load, which succeeds.
            false => assert_eq!(carrier.wait(1).map(|items| items.len()), Ok(1)),
        }
        carrier.finish();
    }
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
            job: 0,
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
        blocks: (0..100).collect(),
    });
    fresh.step(Event::Start {
        job: 0,
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
            blocks: (0..100).collect(),
        });
        fresh.step(Event::Start {
            job: 0,
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
