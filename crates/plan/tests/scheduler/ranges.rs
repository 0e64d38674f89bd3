//! Samples of several ranges: what is asked for, and what becomes of it when some of that fails. That every byte comes in its place, `actors` and `properties` show.

use crate::carrier::{Carrier, assert_order, read_epochs, spec};
use foreload_plan::action::{Command, Event, Failure, Load, Source, Via};
use foreload_plan::catalog::{Lists, Place};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::policy::Policy;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::OrderKind;
use std::sync::Arc;

const fn place(object: u64, offset: u64, len: u64) -> Place {
    Place { object, offset, len }
}

/// A range of object 0, then six of three objects, then another of object 0.
fn three() -> Vec<Vec<Place>> {
    let several = vec![
        place(1, 0, 100),
        place(1, 100, 50),
        place(1, 200, 30),
        place(2, 500, 2500),
        place(3, 0, 0),
        place(1, 100, 50),
    ];
    vec![vec![place(0, 0, 100)], several, vec![place(0, 100, 100)]]
}

fn carrier(samples: Vec<Vec<Place>>, disk_bytes: u64) -> Carrier {
    let tier = TierSettings {
        capacity_bytes: disk_bytes,
        pinned: None,
    };
    let settings = Settings {
        ram_bytes: 20_000,
        staging_bytes: Some(if disk_bytes > 0 { 20_000 } else { 10_000 }),
        tiers: (disk_bytes > 0).then_some(tier).into_iter().collect(),
        part_bytes: 1000,
        gap_bytes: 64,
        coalesce_bytes: 4096,
        concurrency: ConcurrencySettings::fixed(8),
        ..Settings::default()
    };
    let order = spec(samples.len() as u64, 1, OrderKind::Keyed);
    Carrier::bare(settings, Arc::new(Lists(samples)), order, 1, vec![0], 3)
}

fn want(carrier: &mut Carrier, request: u64) {
    carrier.step(Event::WantSamples {
        job: 0,
        request,
        rank: 0,
        samples: vec![1],
    });
}

fn loads(carrier: &Carrier) -> Vec<Load> {
    let loads = carrier.under_way.iter().filter_map(|action| match action.command() {
        Command::Load(load) => Some(load.clone()),
        _ => None,
    });
    loads.collect()
}

/// Object, offset and length of each load, and where its pieces lie in it and in their sample, with their length.
type Shape = ((u64, u64, u64), Vec<(u64, u64, u64)>);

fn shapes(carrier: &Carrier) -> Vec<Shape> {
    let shape = |load: &Load| {
        let pieces = load.pieces.iter();
        let pieces = pieces.map(|piece| (piece.at, piece.content_offset, piece.len));
        ((load.object, load.offset, load.len), pieces.collect())
    };
    loads(carrier).iter().map(shape).collect()
}

/// What sample 1 of [`three`] takes.
fn all() -> Vec<Shape> {
    vec![
        ((1, 0, 230), vec![(0, 0, 150), (200, 150, 30)]),
        ((2, 500, 833), vec![(0, 180, 833)]),
        ((2, 1333, 833), vec![(0, 1013, 833)]),
        ((2, 2166, 834), vec![(0, 1846, 834)]),
        ((1, 100, 50), vec![(0, 2680, 50)]),
    ]
}

/// Ends the first load at `(object, offset)` as failed.
fn fail(carrier: &mut Carrier, at: (u64, u64), failure: Failure) {
    let is_it = |load: &Load| (load.object, load.offset) == at;
    let found = carrier
        .under_way
        .iter()
        .position(|action| matches!(action.command(), Command::Load(load) if is_it(load)));
    let action = carrier.under_way.remove(found.expect("it is under way"));
    carrier.now_ns += 1_000_000;
    carrier.step(Event::Completed(action.failed(failure)));
}

#[test]
fn ranges_near_each_other_come_in_one_load_and_large_ones_in_parts() {
    let mut carrier = carrier(three(), 0);
    want(&mut carrier, 1);
    assert_eq!(shapes(&carrier), all());
    let items = carrier.wait(1).expect("served");
    assert_eq!((items[0].slot.len, items[0].via), (2730, Via::Bucket));
    carrier.release(items.iter().map(|item| item.handle).collect());
    want(&mut carrier, 2);
    assert_eq!(carrier.wait(2).expect("it was kept")[0].via, Via::Ram);
    assert_eq!(carrier.requests, 5);
    carrier.finish();
}

#[test]
fn a_sample_of_several_ranges_is_a_block_of_its_own() {
    let blocks = carrier(three(), 0).plan.scheduler().library().shelves()[0]
        .blocks
        .clone();
    assert_eq!(blocks.count(), 3);
    let mut rows: Vec<Vec<Place>> = (0..8).map(|i| vec![place(0, 100 * i, 100)]).collect();
    rows[3] = vec![place(0, 300, 60), place(0, 360, 40)];
    let blocks = carrier(rows, 0).plan.scheduler().library().shelves()[0].blocks.clone();
    let ranges: Vec<_> = (0..blocks.count()).map(|block| blocks.range(block)).collect();
    assert_eq!(ranges, [0..3, 3..4, 4..8]);
}

#[test]
fn of_a_failed_load_all_ranges_are_tried_again_and_no_others() {
    let mut carrier = carrier(three(), 0);
    want(&mut carrier, 1);
    fail(&mut carrier, (1, 0), Failure::Unavailable);
    let again = [((1, 0, 150), vec![(0, 0, 150)]), ((1, 200, 30), vec![(0, 150, 30)])];
    let mut expected: Vec<Shape> = all()[1..].iter().cloned().chain(again).collect();
    let mut found = shapes(&carrier);
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    assert!(carrier.wait(1).is_ok());
    carrier.finish();
}

#[test]
fn a_corrupt_range_has_all_of_them_loaded_again_and_a_lasting_failure_refuses_the_sample() {
    let mut carrier = carrier(three(), 0);
    want(&mut carrier, 1);
    fail(&mut carrier, (2, 1333), Failure::Corrupt);
    while loads(&carrier).len() != 5 || carrier.requests < 10 {
        assert!(carrier.end_one());
    }
    assert_eq!(shapes(&carrier), all());
    assert!(carrier.wait(1).is_ok());
    carrier.finish();

    let mut carrier = self::carrier(three(), 0);
    want(&mut carrier, 1);
    fail(&mut carrier, (2, 500), Failure::Final);
    assert_eq!(carrier.wait(1).map(drop), Err((Some(1), Failure::Final)));
    while carrier.end_one() {}
    // Who asks later gets new loads.
    want(&mut carrier, 2);
    assert!(carrier.wait(2).is_ok());
    carrier.finish();
}

#[test]
fn on_disk_it_is_one_record_and_without_that_its_ranges_are_fetched_anew() {
    for failure in [None, Some(Failure::Corrupt), Some(Failure::Unavailable)] {
        let mut carrier = carrier(three(), 1 << 20);
        carrier.disk.extend(0..3);
        carrier.step(Event::Found {
            tier: 0,
            blocks: vec![0, 1, 2],
        });
        want(&mut carrier, 1);
        let read = loads(&carrier);
        assert_eq!((read.len(), read[0].source, read[0].len), (1, Source::Disk(0), 2730));
        if let Some(failure) = failure {
            fail(&mut carrier, (read[0].object, read[0].offset), failure);
            assert_eq!(shapes(&carrier), all());
        }
        assert_eq!(carrier.wait(1).expect("served").len(), 1);
        carrier.finish();
    }
}

#[test]
fn what_left_the_disk_before_its_turn_comes_in_its_ranges() {
    let mut samples = three();
    samples.extend((0..2).map(|i| vec![place(9, 1000 * i, 100)]));
    let mut carrier = carrier(samples, 1 << 20);
    // One read of the disk at a time, and a disk that keeps one block from the next fetch on.
    carrier.settings.disk_depth = 1;
    carrier.settings.policy = Policy::Deli {
        fetch: 8,
        threshold: 4,
        cache: 1,
    };
    let mut carrier = Carrier::of(carrier.settings, carrier.reads, 3);
    carrier.disk.extend(0..3);
    carrier.step(Event::Found {
        tier: 0,
        blocks: vec![0, 1, 2],
    });
    for (request, sample) in [0, 1, 3, 4].into_iter().enumerate() {
        carrier.step(Event::WantSamples {
            job: 0,
            request: request as u64,
            rank: 0,
            samples: vec![sample],
        });
    }
    assert!(
        !carrier.disk.contains(&1) && shapes(&carrier).len() == 3,
        "{:?}",
        shapes(&carrier)
    );
    fail(&mut carrier, (0, 0), Failure::Cancelled);
    assert!(
        all().iter().all(|load| shapes(&carrier).contains(load)),
        "{:?}",
        shapes(&carrier)
    );
    assert!(carrier.wait(1).is_ok());
    carrier.finish();
}

#[test]
fn epochs_of_them_pass_through_a_small_memory_and_a_disk() {
    let several = |i: u64| (0..5).map(|n| place(i % 7, 400 * i + 997 * n, 100 + n)).collect();
    let mut carrier = carrier((0..200).map(several).collect(), 1 << 20);
    carrier.step(Event::Start {
        job: 0,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    let epochs = read_epochs(&mut carrier, 3);
    assert_order(&carrier, &epochs);
    assert!(epochs[1].iter().any(|(_, via)| *via == Via::Disk));
    assert!(carrier.disk_reads > 0 && carrier.disk_bytes == carrier.disk_reads * 510);
    carrier.finish();
}
