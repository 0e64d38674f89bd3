//! Properties of mixtures: for all weights, sizes, lengths of an epoch and numbers of ranks.

use std::collections::{BTreeMap, BTreeSet};

use foreload_plan::order::{EpochOrder, Order};
use foreload_plan::spec::{OrderKind, OrderSpec, Share, Tail};
use foreload_plan::split::{Cursor, Split};
use foreload_plan::{Digest, Error};
use proptest::prelude::*;

fn spec(streams: Vec<Share>, seed: u64, shuffle: bool, length: u64, global_batch: u32, tail: Tail) -> OrderSpec {
    OrderSpec {
        dataset: Digest::default(),
        samples: streams.iter().map(|share| share.samples).fold(0, u64::saturating_add),
        kind: OrderKind::Mixture {
            streams,
            shuffle,
            length,
        },
        seed,
        global_batch,
        tail,
    }
}

fn shares() -> impl Strategy<Value = Vec<Share>> {
    let weight = prop_oneof![1u64..12, 1u64..1000];
    proptest::collection::vec(
        (1u64..40, weight).prop_map(|(samples, weight)| Share { samples, weight }),
        1..8,
    )
}

/// A valid order, without a rule for the end that changes anything.
fn mixtures() -> impl Strategy<Value = Order> {
    (shares(), any::<u64>(), any::<bool>(), 1u64..300).prop_map(|(streams, seed, shuffle, length)| {
        Order::new(&spec(streams, seed, shuffle, length, 1, Tail::Uneven)).expect("valid")
    })
}

fn streams_of(order: &Order) -> Vec<Share> {
    let OrderKind::Mixture { streams, .. } = &order.spec().kind else {
        panic!("a mixture")
    };
    streams.clone()
}

/// The stream of a sample, and the sample's number there.
fn parted(streams: &[Share], mut sample: u64) -> (usize, u64) {
    for (number, share) in streams.iter().enumerate() {
        if sample < share.samples {
            return (number, sample);
        }
        sample -= share.samples;
    }
    panic!("a sample of no stream")
}

fn samples_of(epoch: &EpochOrder) -> Vec<u64> {
    (0..epoch.positions())
        .map(|position| epoch.sample_at(position))
        .collect()
}

/// The run's first epochs, one after the other.
fn run_of(order: &Order, epochs: u32) -> Vec<u64> {
    let epoch = |number| samples_of(&order.epoch(number).expect("computed"));
    (0..epochs).flat_map(epoch).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_stream_has_its_share_of_every_beginning_of_the_run_rounded_down_or_up(order in mixtures()) {
        let streams = streams_of(&order);
        let total: u64 = streams.iter().map(|share| share.weight).sum();
        let mut counts = vec![0u64; streams.len()];
        for (position, sample) in run_of(&order, 5).into_iter().enumerate() {
            counts[parted(&streams, sample).0] += 1;
            for (share, &count) in streams.iter().zip(&counts) {
                let exact = (position as u64 + 1) * share.weight;
                prop_assert!(count >= exact / total && count <= exact.div_ceil(total), "{} of {}/{}", count, exact, total);
            }
        }
    }

    #[test]
    fn each_pass_over_a_stream_has_every_sample_once_across_epochs(order in mixtures()) {
        let streams = streams_of(&order);
        let OrderKind::Mixture { shuffle, .. } = order.spec().kind else { unreachable!() };
        let mut read = vec![Vec::new(); streams.len()];
        for sample in run_of(&order, 5) {
            let (stream, sample) = parted(&streams, sample);
            read[stream].push(sample);
        }
        for (share, read) in streams.iter().zip(&read) {
            for pass in read.chunks_exact(share.samples as usize) {
                prop_assert_eq!(pass.iter().collect::<BTreeSet<_>>().len() as u64, share.samples);
                prop_assert!(shuffle || pass.is_sorted());
            }
        }
    }

    #[test]
    fn the_first_position_of_each_sample_is_found(order in mixtures(), number in prop_oneof![0u32..6, any::<u32>()]) {
        let epoch = order.epoch(number).expect("computed");
        let mut first = BTreeMap::new();
        let mut repeats = false;
        for (position, sample) in samples_of(&epoch).into_iter().enumerate() {
            repeats |= first.contains_key(&sample);
            first.entry(sample).or_insert(position as u64);
        }
        for sample in 0..order.spec().samples + 3 {
            prop_assert_eq!(epoch.position_of(sample), first.get(&sample).copied(), "sample {}", sample);
        }
        prop_assert!(epoch.repeats() || !repeats);
    }

    #[test]
    fn any_number_of_ranks_shares_the_same_batches_and_goes_on_at_each_of_them(
        streams in shares(), seed: u64, length in 24u64..200, old in 1u32..6, new in 1u32..6,
    ) {
        let order = Order::new(&spec(streams, seed, true, length, 12, Tail::Drop)).expect("valid");
        let epoch = order.epoch(1).expect("computed");
        let read = |ranks: u32, batch: u64| {
            let split = Split::weighted(&order, ranks).expect("few ranks");
            let positions = (0..ranks).flat_map(|rank| split.batch_positions(batch, rank).collect::<Vec<_>>());
            let mut samples: Vec<_> = positions.map(|position| epoch.sample_at(position)).collect();
            samples.sort_unstable();
            samples
        };
        for batch in 0..order.batches() {
            prop_assert_eq!(read(old, batch), read(new, batch));
            let cursor = Cursor { order: order.digest(), epoch: 1, position: 12 * batch };
            prop_assert_eq!(cursor.resume(&order), Ok((1, batch)));
        }
    }

    #[test]
    fn what_the_tail_drops_or_repeats_moves_nothing(streams in shares(), seed: u64, length in 13u64..100, epoch in 0u32..4) {
        let read = |tail| samples_of(&Order::new(&spec(streams.clone(), seed, true, length, 12, tail)).expect("valid").epoch(epoch).expect("computed"));
        let (whole, dropped, padded) = (read(Tail::Uneven), read(Tail::Drop), read(Tail::Pad { multiple: 12 }));
        prop_assert_eq!(&whole[..dropped.len()], &dropped[..]);
        prop_assert_eq!(&padded[..whole.len()], &whole[..]);
        prop_assert_eq!(&padded[whole.len()..], &whole[..padded.len() - whole.len()]);
    }
}

#[test]
fn two_streams_over_the_same_samples_have_orders_of_their_own() {
    let share = Share { samples: 50, weight: 1 };
    let order = Order::new(&spec(vec![share; 2], 7, true, 100, 1, Tail::Uneven)).expect("valid");
    let read = samples_of(&order.epoch(0).expect("computed"));
    let of = |first: u64| -> Vec<u64> {
        read.iter()
            .filter(|&&sample| sample / 50 == first)
            .map(|sample| sample % 50)
            .collect()
    };
    assert_eq!((of(0).len(), of(1).len()), (50, 50));
    assert_ne!(of(0), of(1));
}

#[test]
fn large_streams_and_late_epochs_are_computed() {
    let streams = vec![
        Share {
            samples: 1 << 40,
            weight: 65_535,
        },
        Share { samples: 3, weight: 1 },
    ];
    let order = Order::new(&spec(streams, 1, true, 1 << 47, 1, Tail::Uneven)).expect("valid");
    let epoch = order.epoch(u32::MAX).expect("computed");
    for position in [0, 1, 65_536, (1 << 46) + 12_345] {
        let sample = epoch.sample_at(position);
        let first = epoch.position_of(sample).expect("read");
        assert!(first <= position && epoch.sample_at(first) == sample);
    }
}

#[test]
fn what_makes_no_mixture_is_refused() {
    let refused = |streams: Vec<Share>| Order::new(&spec(streams, 0, true, 10, 1, Tail::Uneven)).expect_err("refused");
    let share = |samples, weight| Share { samples, weight };
    assert_eq!(refused(vec![]), Error::NoSamples);
    assert_eq!(refused(vec![share(3, 1), share(0, 1)]), Error::NoSamples);
    assert_eq!(refused(vec![share(3, 0)]), Error::Zero { what: "weight" });
    assert_eq!(
        refused(vec![share(3, 65_536), share(3, 1)]),
        Error::Weights {
            total: 65_537,
            limit: 65_536
        }
    );
    assert!(matches!(refused(vec![share(3, u64::MAX); 2]), Error::Weights { .. }));
    let mut other = spec(vec![share(3, 1)], 0, true, 10, 1, Tail::Uneven);
    other.samples = 4;
    assert_eq!(
        Order::new(&other).expect_err("3 of 4"),
        Error::StreamsDiffer { found: 3, samples: 4 }
    );
}
