//! How many requests a run makes is planned: it follows from the order, the sizes and the budget, whatever the timing.

use crate::carrier::{Carrier, reads, sizes, spec};
use foreload_plan::action::{Event, Failure, Handle};
use foreload_plan::catalog::{Catalog, Objects, Shards};
use foreload_plan::job::Reads;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::OrderKind;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// How a consumer takes its batches.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Batches asked for beyond the one that is waited for.
    ahead: u64,
    /// Batches in use before the oldest is given back.
    held: usize,
    /// Batches given back together.
    gathered: usize,
    /// Decides which of the loads under way ends next.
    seed: u64,
    /// Of the loads, one in so many takes long, and gets a twin.
    late_one_in: u64,
}

/// Of the run.
const EPOCHS: u32 = 3;

const STRICT: Pace = Pace {
    ahead: 0,
    held: 0,
    gathered: 1,
    seed: 1,
    late_one_in: 0,
};

/// Reads all epochs; the requests to the bucket, and twins besides.
fn requests(settings: &Settings, catalog: &Arc<dyn Catalog>, batch: u32, pace: Pace) -> (u64, u64) {
    let order = spec(catalog.samples(), batch, OrderKind::Keyed);
    let reads = Reads {
        epochs: Some(EPOCHS),
        ..reads(Arc::clone(catalog), order, 1, vec![0])
    };
    let mut carrier = Carrier::of(settings.clone(), reads, pace.seed).started();
    carrier.late_one_in = pace.late_one_in;
    let batches = carrier.plan.scheduler().split(0).expect("joined").batches();
    let (all, mut asked) = (u64::from(EPOCHS) * batches, 0);
    let mut used: VecDeque<Vec<Handle>> = VecDeque::new();
    for wanted in 0..all {
        while asked < all && asked <= wanted + pace.ahead {
            let (epoch, batch) = ((asked / batches) as u32, asked % batches);
            carrier.step(Event::WantBatch {
                job: 0,
                request: asked,
                rank: 0,
                epoch,
                batch,
            });
            asked += 1;
        }
        let items = carrier.wait(wanted).expect("served");
        used.push_back(items.iter().map(|item| item.handle).collect());
        if used.len() >= pace.held + pace.gathered {
            carrier.release(used.drain(..pace.gathered).flatten().collect());
        }
    }
    let counts = (carrier.requests, carrier.hedges);
    carrier.finish();
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_number_of_requests_does_not_depend_on_timing(
        samples in 300u64..900, share in 0u64..90, variable in any::<bool>(), sharded in any::<bool>(), disk in any::<bool>(),
        ahead in 0u64..3, held in 0usize..3, gathered in 1usize..4, seed in any::<u64>(),
    ) {
        // Which neighbours come along on their way to a disk depends on how fast it takes them.
        let disk = disk && !sharded;
        let lengths = if variable { sizes(samples, 1000, seed) } else { vec![1000; samples as usize] };
        let total: u64 = lengths.iter().sum();
        let catalog: Arc<dyn Catalog> = if sharded { Arc::new(Shards::pack(&lengths, 512, 50_000)) } else { Arc::new(Objects(lengths)) };
        let staging = 120_000;
        let settings = Settings {
            ram_bytes: staging + total * share / 100,
            staging_bytes: Some(staging),
            tiers: if disk { vec![TierSettings { capacity_bytes: 2 * total, pinned: None }] } else { Vec::new() },
            coalesce_bytes: 20_000,
            ..Settings::default()
        };
        let pace = Pace { ahead, held, gathered, seed, late_one_in: 0 };
        let planned = requests(&settings, &catalog, 8, STRICT);
        prop_assert_eq!(requests(&settings, &catalog, 8, pace), planned, "{:?}", pace);
    }

    #[test]
    fn twins_of_late_loads_change_nothing_but_their_own_number(
        samples in 300u64..900, share in 0u64..90, late_one_in in 10u64..60, seed in any::<u64>(),
    ) {
        let lengths = vec![1000; samples as usize];
        let total = 1000 * samples;
        let staging = 120_000;
        let settings = Settings {
            ram_bytes: staging + total * share / 100,
            staging_bytes: Some(staging),
            hedge_per_cent: 50,
            ..Settings::default()
        };
        let catalog: Arc<dyn Catalog> = Arc::new(Objects(lengths));
        let (planned, none) = requests(&settings, &catalog, 8, STRICT);
        let (made, hedges) = requests(&settings, &catalog, 8, Pace { seed, late_one_in, ..STRICT });
        prop_assert_eq!((made, none), (planned, 0));
        // Of few loads, or where few are late, none may be.
        prop_assert!(hedges > 0 || share >= 60 || late_one_in >= 30);
    }
}

#[test]
fn what_is_not_in_the_plan_is_refused_and_what_is_read_again_is_a_read_of_its_own() {
    let settings = Settings {
        ram_bytes: 1 << 20,
        ..Settings::default()
    };
    let order = spec(50, 10, OrderKind::Sequential);
    let mut carrier = Carrier::new(settings, Arc::new(Objects(vec![1000; 50])), order, 1, vec![0], 1);
    let ask = |request, rank, reads| Event::WantReads {
        job: 0,
        request,
        rank,
        reads,
    };
    // Two who ask for the same read at once both get it, though it is one of the plan's.
    carrier.step(ask(8, 0, vec![(0, 20)]));
    carrier.step(ask(9, 0, vec![(0, 20)]));
    for request in [9, 8] {
        let items = carrier.wait(request).expect("served");
        assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), [20]);
        carrier.release(items.iter().map(|item| item.handle).collect());
    }
    for (request, reads) in [(1, vec![(0, 50)]), (2, vec![(0, 3), (0, u64::MAX)])] {
        carrier.step(ask(request, 0, reads));
        assert_eq!(carrier.wait(request), Err((None, Failure::Final)));
    }
    carrier.step(Event::WantBatch {
        job: 0,
        request: 3,
        rank: 0,
        epoch: 0,
        batch: 5,
    });
    assert_eq!(
        carrier.wait(3),
        Err((None, Failure::Final)),
        "an epoch has five batches"
    );
    for request in 4..6 {
        carrier.step(ask(request, 0, vec![(0, 7), (0, 7)]));
        let items = carrier.wait(request).expect("served");
        assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), [7, 7]);
        carrier.release(items.iter().map(|item| item.handle).collect());
    }
    carrier.finish();
}
