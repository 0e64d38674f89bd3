//! What holds for any data set, budget, policy and timing.

use crate::carrier::{Carrier, assert_order, read_epochs, sizes, spec};
use crate::lists::lists;
use foreload_plan::action::{Event, Failure};
use foreload_plan::arena::reserved_bytes;
use foreload_plan::catalog::{Catalog, Objects, Shards};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::policy::Policy;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::OrderKind;
use foreload_plan::split::Split;
use proptest::prelude::*;
use std::sync::Arc;

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
        layout in 0..3,
        room in 0u64..3,
        fail_one_in in prop_oneof![Just(0u64), Just(50)],
        seed in any::<u64>(),
    ) {
        let mut lengths = sizes(samples, mean, seed);
        let largest_batch = u64::from(batch) * (2 * mean + 64);
        let mut ram = ram + 2 * largest_batch + 4096;
        if room > 0 {
            // One sample of more than half of the memory that there is then, or of most of it.
            let at = (seed % samples) as usize;
            lengths[at] = ram * (2 * room - 1);
            // No more than the largest batch that may come: that one takes all of it.
            let mut reserved: Vec<u64> = lengths.iter().map(|&length| reserved_bytes(length)).collect();
            reserved.sort_unstable_by(|a, b| b.cmp(a));
            ram = reserved[..samples.min(u64::from(batch)) as usize].iter().sum();
            prop_assert!(lengths[at] > ram / 2);
        }
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
        let mut dice = seed;
        let roll = |n: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % n
        };
        let catalog: Arc<dyn Catalog> = match layout {
            0 => Arc::new(Shards::pack(&lengths, 512, 20_000)),
            1 => Arc::new(lists(&lengths, roll)),
            _ => Arc::new(Objects(lengths)),
        };
        let mut carrier = Carrier::new(settings, catalog, spec(samples, batch, OrderKind::Keyed), 1, vec![0], seed);
        carrier.fail_one_in = fail_one_in;
        if fail_one_in == 0 {
            let epochs = read_epochs(&mut carrier, 3);
            assert_order(&carrier, &epochs);
        } else {
            // Failures may refuse a batch; asked again by its reads, it comes.
            let batches = carrier.plan.scheduler().split(0).expect("joined").batches();
            let (mut request, mut epochs) = (0, vec![Vec::new(); 2]);
            for (epoch, batch) in (0..2).flat_map(|e| (0..batches).map(move |b| (e, b))) {
                let split = carrier.plan.scheduler().split(0).expect("joined");
                let reads: Vec<(u32, u64)> = split.batch_positions(batch, 0).map(|position| (epoch, position)).collect();
                request += 1;
                carrier.step(Event::WantBatch { job: 0, request, rank: 0, epoch, batch });
                let items = loop {
                    match carrier.wait(request) {
                        Ok(items) => break items,
                        Err((_, failure)) => prop_assert_eq!(failure, Failure::Unavailable),
                    }
                    request += 1;
                    carrier.step(Event::WantReads { job: 0, request, rank: 0, reads: reads.clone() });
                };
                epochs[epoch as usize].extend(items.iter().map(|item| (item.sample, item.via)));
                carrier.release(items.iter().map(|item| item.handle).collect());
            }
            assert_order(&carrier, &epochs);
        }
        while carrier.end_one() {}
        let gauges = carrier.plan.scheduler().gauges();
        prop_assert_eq!((gauges.leases, gauges.requests, gauges.in_flight), (0, 0, 0));
        carrier.finish();
    }

    #[test]
    fn workers_that_ask_out_of_order_by_name_or_by_sample_get_what_they_asked_for(
        samples in 10u64..300, batch in 1u32..12, workers in 1usize..5, ram in 0u64..60_000, by_name in any::<bool>(), seed in any::<u64>(),
    ) {
        let lengths = sizes(samples, 500, seed);
        let settings = Settings { ram_bytes: ram + 1100 * u64::from(batch) * (2 * workers as u64 + 4), ..Settings::default() };
        let mut carrier = Carrier::new(settings, Arc::new(Objects(lengths)), spec(samples, batch, OrderKind::Keyed), 1, vec![0], seed);
        let order = carrier.reads.order.clone();
        let mut request = 0;
        for epoch in 0..2u32 {
            carrier.step(Event::Start { job: 0, rank: 0, epoch, batch: 0 });
            let order = order.epoch(epoch).expect("epoch");
            let all: Vec<u64> = (0..order.positions()).map(|p| order.sample_at(p)).collect();
            let batches: Vec<Vec<u64>> = all.chunks(batch as usize).map(<[u64]>::to_vec).collect();
            let positions: Vec<u64> = (0..order.positions()).collect();
            let mut names = positions.chunks(batch as usize);
            // Each round the workers ask for one batch each, in any order; the consumer takes them in the loader's order.
            for round in batches.chunks(workers) {
                let first = request + 1;
                let mut asks: Vec<(u64, Vec<u64>)> = match by_name {
                    true => names.by_ref().take(round.len()).enumerate().map(|(i, b)| (first + i as u64, b.to_vec())).collect(),
                    false => round.iter().enumerate().map(|(i, b)| (first + i as u64, b.clone())).collect(),
                };
                request += round.len() as u64;
                for i in (1..asks.len()).rev() {
                    let j = carrier.roll(i as u64 + 1) as usize;
                    asks.swap(i, j);
                }
                for (request, wanted) in asks {
                    carrier.step(match by_name {
                        true => Event::WantReads { job: 0, request, rank: 0, reads: wanted.iter().map(|&position| (epoch, position)).collect() },
                        false => Event::WantSamples { job: 0, request, rank: 0, samples: wanted },
                    });
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
        let order = carrier.reads.order.clone();
        let split = Split::weighted(&order, world).expect("split");
        let mut request = 0;
        for (epoch, batch) in jumps {
            for &rank in &ranks {
                carrier.step(Event::Start { job: 0, rank, epoch, batch });
            }
            for batch in batch..(batch + 2).min(split.batches()) {
                for &rank in &ranks {
                    request += 1;
                    carrier.step(Event::WantBatch { job: 0, request, rank, epoch, batch });
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
