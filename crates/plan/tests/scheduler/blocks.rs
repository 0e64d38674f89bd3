//! What blocks promise: they cost what they are, not what their samples are; one record each; and a bad sample is one bad sample.

use crate::carrier::{Carrier, assert_order, read_epochs, spec};
use foreload_plan::action::{Event, Failure, Via};
use foreload_plan::catalog::{Catalog, Shards};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::OrderKind;
use std::sync::Arc;

const CELL: u64 = 64 << 10;

fn carrier(samples: u64, len: u64, ram_bytes: u64, disk_bytes: u64) -> Carrier {
    let settings = Settings {
        ram_bytes,
        tiers: (disk_bytes > 0)
            .then_some(TierSettings {
                capacity_bytes: disk_bytes,
                pinned: None,
            })
            .into_iter()
            .collect(),
        coalesce_bytes: CELL,
        concurrency: ConcurrencySettings::fixed(8),
        ..Settings::default()
    };
    let catalog: Arc<dyn Catalog> = Arc::new(Shards::pack(&vec![len; samples as usize], 0, 1 << 20));
    Carrier::new(settings, catalog, spec(samples, 64, OrderKind::Keyed), 1, vec![0], 3)
}

#[test]
fn small_samples_cost_what_their_blocks_cost() {
    let (samples, len) = (64 << 10, 64);
    let mut carrier = carrier(samples, len, 16 << 20, 0);
    let epochs = read_epochs(&mut carrier, 2);
    assert_order(&carrier, &epochs);
    let blocks = samples * len / CELL;
    assert_eq!(carrier.plan.scheduler().library().count(), blocks);
    let gauges = carrier.plan.scheduler().gauges();
    assert_eq!(
        (gauges.residents, gauges.kept_samples, gauges.kept_bytes),
        (blocks, samples, samples * len)
    );
    assert_eq!((carrier.requests, carrier.fetched_bytes), (blocks, samples * len));
    // In the first epoch every sample is what a load was for, and in the second none is.
    assert!(epochs[0].iter().all(|(_, via)| *via == Via::Bucket));
    assert!(epochs[1].iter().all(|(_, via)| *via == Via::Ram));
    carrier.finish();
}

#[test]
fn a_disk_has_one_record_for_each_block_and_what_is_read_of_it_is_a_sample() {
    let (samples, len) = (4096, 1000);
    // Memory for four blocks beside staging, and a disk for all.
    let mut carrier = carrier(samples, len, 1 << 20, 16 << 20);
    let epochs = read_epochs(&mut carrier, 2);
    assert_order(&carrier, &epochs);
    while carrier.end_one() {}
    let blocks = carrier.plan.scheduler().library().count();
    // Each byte once, but for what didn't find room in a staging of three blocks.
    let all = samples * len;
    assert!(
        (all..=all + all / 50).contains(&carrier.fetched_bytes),
        "{} of {all}",
        carrier.fetched_bytes
    );
    let kept = carrier.plan.scheduler().gauges().kept_samples;
    let in_memory = kept / (samples / blocks);
    assert!(
        carrier.disk.len() as u64 >= blocks - in_memory - 1 && carrier.disk.len() as u64 <= blocks,
        "{} records, {in_memory} of {blocks} blocks in memory",
        carrier.disk.len()
    );
    assert!(epochs[1].iter().any(|(_, via)| *via == Via::Disk));
    assert_eq!(
        carrier.disk_bytes,
        carrier.disk_reads * len,
        "only what is wanted is read"
    );
    carrier.finish();
}

#[test]
fn a_bad_sample_is_one_bad_sample() {
    for disk_bytes in [0, 16 << 20] {
        let (samples, bad) = (1024u64, 77);
        let mut carrier = carrier(
            samples,
            1000,
            if disk_bytes == 0 { 8 << 20 } else { 1 << 20 },
            disk_bytes,
        );
        carrier.corrupt = Some(bad);
        let mut refused = Vec::new();
        for sample in 0..samples {
            carrier.step(Event::WantSamples {
                job: 0,
                request: sample,
                rank: 0,
                samples: vec![sample],
            });
            match carrier.wait(sample) {
                Ok(items) => carrier.release(items.iter().map(|item| item.handle).collect()),
                Err(failure) => refused.push((sample, failure)),
            }
        }
        assert_eq!(refused, [(bad, (Some(bad), Failure::Corrupt))], "disk {disk_bytes}");
        carrier.finish();
    }
}

/// Reads an epoch with room for batches only, on one of so many nodes.
fn read_in_passing(kind: OrderKind, world: u32) -> Carrier {
    let (samples, len) = (8192, 1000);
    let settings = Settings {
        ram_bytes: 512 << 10,
        staging_bytes: Some(512 << 10),
        coalesce_bytes: CELL,
        concurrency: ConcurrencySettings::fixed(8),
        ..Settings::default()
    };
    let catalog: Arc<dyn Catalog> = Arc::new(Shards::pack(&vec![len; samples as usize], 0, 1 << 20));
    let mut carrier = Carrier::new(settings, catalog, spec(samples, 64 * world, kind), world, vec![0], 3);
    read_epochs(&mut carrier, 1);
    carrier
}

#[test]
fn neighbours_that_are_read_soon_come_in_one_request_as_far_as_gaps_allow() {
    // A sequence of neighbours: batches of 64 samples, 65 in a cell.
    let in_turn = read_in_passing(OrderKind::Sequential, 1);
    assert!(in_turn.requests <= 8192 / 16, "{} requests", in_turn.requests);
    // Of a shuffled eighth, few are neighbours; over all of a cell they would be one request, with seven of eight bytes for nobody.
    let shuffled = read_in_passing(OrderKind::Keyed, 8);
    assert!(shuffled.requests > 1024 / 2, "{} requests", shuffled.requests);
    assert!(shuffled.requests < 1024, "no neighbours at all");
}

#[test]
fn what_would_stay_nowhere_is_not_read_for_its_neighbours() {
    let (samples, len) = (4096, 1000);
    let mut carrier = carrier(samples, len, 512 << 10, 0);
    // All of it is staging.
    carrier.settings.staging_bytes = Some(512 << 10);
    let mut carrier = Carrier::of(carrier.settings, carrier.reads, 3).started();
    let epochs = read_epochs(&mut carrier, 2);
    assert_order(&carrier, &epochs);
    assert_eq!(carrier.plan.scheduler().gauges().kept_bytes, 0);
    // Short holes are read over, and nothing is placed for them; what came too early for its place comes again.
    let all = 2 * samples * len;
    assert!(
        (all..=all + all / 50).contains(&carrier.placed_bytes),
        "{} of {all}",
        carrier.placed_bytes
    );
    carrier.finish();
}
