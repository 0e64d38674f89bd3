//! Properties of orders and of how ranks share them: for every data set, order, tail and number of ranks.

use std::collections::BTreeSet;
use std::sync::Arc;

use foreload_plan::order::{EpochOrder, Order};
use foreload_plan::spec::{OrderKind, OrderSpec, Tail, TorchDraws};
use foreload_plan::split::{Cursor, Split};
use foreload_plan::{Digest, Error};
use proptest::prelude::*;

fn spec(kind: OrderKind, samples: u64, seed: u64, global_batch: u32, tail: Tail) -> OrderSpec {
    OrderSpec {
        dataset: Digest::default(),
        samples,
        kind,
        seed,
        global_batch,
        tail,
    }
}

fn kinds() -> impl Strategy<Value = OrderKind> {
    prop_oneof![
        Just(OrderKind::Keyed),
        Just(OrderKind::TorchDistributed),
        prop_oneof![
            Just(TorchDraws::LoaderEachEpoch),
            Just(TorchDraws::LoaderOnce),
            Just(TorchDraws::SamplerOnly)
        ]
        .prop_map(|draws| OrderKind::TorchRandom { draws }),
        Just(OrderKind::Sequential),
        (1u32..20).prop_map(|parts| OrderKind::Contiguous { parts }),
        (1u64..200).prop_map(|stride| OrderKind::Strided { stride }),
    ]
}

fn divisors(number: u32) -> Vec<u32> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}

fn tails(global_batch: u32) -> impl Strategy<Value = Tail> {
    let multiple = proptest::sample::select(divisors(global_batch));
    (0..5, multiple).prop_map(|(which, multiple)| match which {
        0 => Tail::Drop,
        1 => Tail::Pad { multiple },
        2 => Tail::PadThenDrop { multiple },
        3 => Tail::Trim { multiple },
        _ => Tail::Uneven,
    })
}

/// A valid order over few samples, and an epoch. Batches of 12 and 16 have many divisors.
fn orders() -> impl Strategy<Value = (Order, u32)> {
    (
        proptest::sample::select(vec![1u32, 2, 7, 12, 16]),
        kinds(),
        1u64..300,
        any::<u64>(),
        0u32..5,
    )
        .prop_flat_map(|(batch, kind, samples, seed, epoch)| {
            tails(batch).prop_map(move |tail| (spec(kind.clone(), samples, seed, batch, tail), epoch))
        })
        .prop_filter_map("nothing to read", |(spec, epoch)| {
            Some((Order::new(&spec).ok()?, epoch))
        })
}

/// A number of ranks that a global batch is enough for.
fn up_to_the_batch(order: &Order, ranks: prop::sample::Index) -> u32 {
    1 + ranks.index(order.spec().global_batch as usize) as u32
}

fn samples_of(epoch: &EpochOrder) -> Vec<u64> {
    (0..epoch.positions())
        .map(|position| epoch.sample_at(position))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn an_epoch_reads_each_sample_once_but_for_what_the_tail_says((order, number) in orders()) {
        let epoch = order.epoch(number).expect("computed");
        let (samples, read) = (order.spec().samples, samples_of(&epoch));
        let once: BTreeSet<_> = read.iter().take(samples as usize).copied().collect();
        prop_assert_eq!(once.len() as u64, samples.min(order.positions()), "the first pass has no duplicate");
        prop_assert!(once.iter().all(|&sample| sample < samples));
        for (position, &sample) in read.iter().enumerate().skip(samples as usize) {
            prop_assert_eq!(sample, read[position - samples as usize], "padding repeats from the start");
        }
        prop_assert_eq!(epoch.repeats(), order.positions() > samples);
        let lost = samples - once.len() as u64;
        let batch = u64::from(order.spec().global_batch);
        match order.spec().tail {
            Tail::Uneven => prop_assert_eq!(order.positions(), samples),
            Tail::Pad { multiple } => {
                prop_assert!(lost == 0 && order.positions() < samples + u64::from(multiple));
                prop_assert!(order.positions().is_multiple_of(u64::from(multiple)));
            }
            Tail::Trim { multiple } => prop_assert!(lost < u64::from(multiple) && order.positions() + lost == samples),
            Tail::Drop | Tail::PadThenDrop { .. } => prop_assert!(lost < batch && order.positions().is_multiple_of(batch)),
            _ => prop_assert!(false, "a tail without a property"),
        }
    }

    #[test]
    fn positions_of_samples_are_the_inverse((order, number) in orders()) {
        let epoch = order.epoch(number).expect("computed");
        let read = samples_of(&epoch);
        for sample in 0..order.spec().samples + 3 {
            let first = read.iter().position(|&other| other == sample).map(|position| position as u64);
            prop_assert_eq!(epoch.position_of(sample), first, "sample {}", sample);
        }
    }

    #[test]
    fn keyed_is_a_bijection_with_its_inverse_at_any_size(samples in 1u64..1 << 48, seed: u64, epoch: u32, at: u64) {
        let order = Order::new(&spec(OrderKind::Keyed, samples, seed, 1, Tail::Drop)).expect("valid");
        prop_assume!(samples > 1 << 16 || epoch < 1 << 20);
        let epoch = order.epoch(epoch).expect("computed");
        for at in [at % samples, 0, samples - 1] {
            let sample = epoch.sample_at(at);
            prop_assert!(sample < samples);
            prop_assert_eq!(epoch.position_of(sample), Some(at));
            prop_assert_eq!(epoch.sample_at(epoch.position_of(at).expect("nothing is dropped")), at);
        }
    }

    #[test]
    fn a_global_batch_is_the_same_for_any_number_of_ranks((order, _) in orders()) {
        let batch = order.spec().global_batch;
        for ranks in 1..=batch {
            let split = Split::weighted(&order, ranks).expect("no more ranks than samples");
            prop_assert_eq!(split.batches(), order.batches());
            for number in 0..split.batches() {
                let shares = (0..ranks).filter(|&rank| !split.is_filler(number, rank));
                let mut union: Vec<_> = shares.flat_map(|rank| split.batch_positions(number, rank)).collect();
                union.sort_unstable();
                prop_assert_eq!(union, split.batch_range(number).collect::<Vec<_>>(), "batch {} on {}", number, ranks);
            }
        }
    }

    #[test]
    fn ranks_share_equally_or_are_told_why_not((order, _) in orders()) {
        let batch = order.spec().global_batch;
        let last = order.positions() - (order.batches() - 1) * u64::from(batch);
        for ranks in 1..=batch + 1 {
            let divides = batch.is_multiple_of(ranks) && last.is_multiple_of(u64::from(ranks));
            match Split::new(&order, ranks) {
                Ok(split) if order.spec().tail == Tail::Uneven => prop_assert_eq!(split.batches(), order.batches()),
                Ok(split) => {
                    prop_assert!(divides);
                    for number in 0..split.batches() {
                        let lengths: BTreeSet<_> = (0..ranks).map(|rank| split.batch_len(number, rank)).collect();
                        prop_assert_eq!(lengths.len(), 1);
                        prop_assert!((0..ranks).all(|rank| split.weight(number, rank) == 1.0 && !split.is_filler(number, rank)));
                    }
                }
                Err(Error::MoreRanksThanSamples { .. }) => prop_assert!(ranks > batch),
                Err(Error::UnevenBatch { .. } | Error::UnevenLastBatch { .. }) => prop_assert!(!divides),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn weights_make_the_mean_over_ranks_the_mean_over_samples((order, number) in orders(), ranks: prop::sample::Index) {
        let ranks = up_to_the_batch(&order, ranks);
        let split = Split::weighted(&order, ranks).expect("no more ranks than samples");
        let epoch = order.epoch(number).expect("computed");
        let loss = |position: u64| (epoch.sample_at(position) as f64).sqrt();
        for batch in 0..split.batches() {
            let range = split.batch_range(batch);
            let count = (range.end - range.start) as f64;
            let expected = range.map(loss).sum::<f64>() / count;
            let of_rank = |rank| {
                let positions = split.batch_positions(batch, rank);
                let length = positions.len();
                assert_eq!(length as u32, split.batch_len(batch, rank));
                split.weight(batch, rank) * positions.map(loss).sum::<f64>() / length as f64
            };
            let found = (0..ranks).map(of_rank).sum::<f64>() / f64::from(ranks);
            prop_assert!((found - expected).abs() < 1e-9 * (1.0 + expected), "{} is not {}", found, expected);
            let lengths: Vec<_> = (0..ranks).map(|rank| split.batch_len(batch, rank)).collect();
            prop_assert!(lengths.iter().max().expect("a rank") - lengths.iter().min().expect("a rank") <= 1);
            prop_assert!((0..ranks).all(|rank| (split.weight(batch, rank) == 0.0) == split.is_filler(batch, rank)));
        }
    }

    #[test]
    fn a_run_resumes_on_another_number_of_ranks_with_the_batches_it_would_have_had(
        (order, number) in orders(), stop in any::<prop::sample::Index>(), old: prop::sample::Index, new: prop::sample::Index,
    ) {
        let (old, new) = (up_to_the_batch(&order, old), up_to_the_batch(&order, new));
        let read = |ranks: u32, epoch: u32, batches: std::ops::Range<u64>| -> Vec<Vec<u64>> {
            let split = Split::weighted(&order, ranks).expect("few ranks");
            let epoch = order.epoch(epoch).expect("computed");
            let own = |batch| (0..ranks).filter(|&rank| !split.is_filler(batch, rank)).collect::<Vec<_>>();
            let batch = |batch| {
                let positions = own(batch).into_iter().flat_map(|rank| split.batch_positions(batch, rank));
                let mut samples: Vec<_> = positions.map(|position| epoch.sample_at(position)).collect();
                samples.sort_unstable();
                samples
            };
            batches.map(batch).collect()
        };
        let uninterrupted = read(old, number, 0..order.batches());
        let stopped = stop.index(order.batches() as usize) as u64;
        let mut seen = read(old, number, 0..stopped);
        let position = stopped * u64::from(order.spec().global_batch);
        let cursor = Cursor { order: order.digest(), epoch: number, position };
        let cursor: Cursor = serde_json::from_str(&serde_json::to_string(&cursor).expect("plain")).expect("own");
        let again = Order::new(&order.spec().clone()).expect("valid");
        let (epoch, batch) = cursor.resume(&again).expect("a batch border");
        prop_assert_eq!((epoch, batch), (number, stopped));
        seen.extend(read(new, epoch, batch..order.batches()));
        prop_assert_eq!(seen, uninterrupted);
    }
}

#[test]
fn a_cursor_of_another_run_or_inside_a_batch_is_refused() {
    let order = |seed| Order::new(&spec(OrderKind::Keyed, 100, seed, 8, Tail::Pad { multiple: 4 })).expect("valid");
    let (ours, other) = (order(1), order(2));
    let at = |position| Cursor {
        order: ours.digest(),
        epoch: 3,
        position,
    };
    assert_eq!(at(16).resume(&ours), Ok((3, 2)));
    assert_eq!(
        at(100).resume(&ours),
        Ok((4, 0)),
        "after the last batch comes the next epoch"
    );
    assert!(matches!(at(16).resume(&other), Err(Error::OtherOrder { .. })));
    assert!(matches!(at(17).resume(&ours), Err(Error::NotAtABatch { .. })));
    assert!(matches!(at(104).resume(&ours), Err(Error::NotAtABatch { .. })));
}

#[test]
fn contiguous_gives_each_rank_its_own_range_and_sequential_the_skipping_pattern() {
    let rank_reads = |kind, rank| {
        let order = Order::new(&spec(kind, 24, 0, 6, Tail::Drop)).expect("valid");
        let (split, epoch) = (
            Split::new(&order, 3).expect("divides"),
            order.epoch(0).expect("computed"),
        );
        let positions = (0..split.batches()).flat_map(|batch| split.batch_positions(batch, rank).collect::<Vec<_>>());
        positions.map(|position| epoch.sample_at(position)).collect::<Vec<_>>()
    };
    assert_eq!(
        rank_reads(OrderKind::Contiguous { parts: 3 }, 1),
        (8..16).collect::<Vec<_>>()
    );
    assert_eq!(
        rank_reads(OrderKind::Sequential, 1),
        (0..8).map(|k| 3 * k + 1).collect::<Vec<_>>()
    );
}

#[test]
fn lists_may_repeat_and_omit_and_are_checked() {
    let list: Arc<[u64]> = Arc::from([4, 4, 1, 0, 4, 2, 1]);
    let order = Order::new(&spec(OrderKind::Explicit { list }, 6, 0, 4, Tail::Pad { multiple: 4 })).expect("valid");
    let epoch = order.epoch(9).expect("the same in every epoch");
    assert_eq!(samples_of(&epoch), [4, 4, 1, 0, 4, 2, 1, 4]);
    assert_eq!(
        (epoch.position_of(4), epoch.position_of(1), epoch.position_of(3)),
        (Some(0), Some(2), None)
    );
    assert!(epoch.repeats());
    let bad = spec(
        OrderKind::Explicit {
            list: Arc::from([0, 6]),
        },
        6,
        0,
        1,
        Tail::Drop,
    );
    assert_eq!(
        Order::new(&bad).expect_err("6 of 6"),
        Error::NoSuchSample {
            position: 1,
            sample: 6,
            samples: 6
        }
    );
}

#[test]
fn supplied_lists_come_one_by_one_and_never_change() {
    let mut order = Order::new(&spec(OrderKind::Supplied { length: 3 }, 5, 0, 1, Tail::Drop)).expect("valid");
    assert_eq!(
        order.epoch(0).expect_err("nothing yet"),
        Error::EpochNotSupplied { epoch: 0 }
    );
    order.supply(0, &[3, 1, 4]).expect("three samples");
    order.supply(1, &[0, 1, 2]).expect("three samples");
    assert_eq!(samples_of(&order.epoch(0).expect("supplied")), [3, 1, 4]);
    order.supply(0, &[3, 1, 4]).expect("the same again");
    assert_eq!(order.supply(0, &[3, 1, 0]), Err(Error::EpochAlreadyKnown { epoch: 0 }));
    assert_eq!(
        order.supply(2, &[3]),
        Err(Error::ListLength {
            epoch: 2,
            found: 1,
            expected: 3
        })
    );
    order.keep(|epoch| epoch >= 1);
    assert!(order.epoch(0).is_err() && order.epoch(1).is_ok());
}

#[test]
fn what_does_not_fit_is_refused_with_the_numbers() {
    let refuse = |spec: OrderSpec| Order::new(&spec).expect_err("invalid").to_string();
    assert!(refuse(spec(OrderKind::Keyed, 0, 0, 1, Tail::Drop)).contains("no samples"));
    assert!(refuse(spec(OrderKind::Keyed, 5, 0, 0, Tail::Drop)).contains("global_batch"));
    assert!(refuse(spec(OrderKind::Keyed, 5, 0, 8, Tail::Drop)).contains("5 samples don't fill"));
    assert!(refuse(spec(OrderKind::Keyed, 50, 0, 8, Tail::Pad { multiple: 3 })).contains("multiple of 3"));
    assert!(refuse(spec(OrderKind::TorchDistributed, 1 << 32, 0, 8, Tail::Drop)).contains("keyed"));
    assert!(refuse(spec(OrderKind::Contiguous { parts: 0 }, 5, 0, 1, Tail::Drop)).contains("parts"));
    let order = Order::new(&spec(OrderKind::Keyed, 100, 0, 8, Tail::Pad { multiple: 8 })).expect("valid");
    let error = Split::new(&order, 3).expect_err("3 doesn't divide 8").to_string();
    assert!(
        error.contains("3 data ranks") && error.contains("8 samples") && error.contains("uneven"),
        "{error}"
    );
    assert!(Split::new(&order, 0).is_err() && Split::new(&order, 9).is_err());
    let split = Split::new(&order, 4).expect("divides");
    for wrong in [&[][..], &[1, 1], &[4]] {
        assert!(split.check_ranks(wrong).is_err(), "{wrong:?}");
    }
    assert!(split.check_ranks(&[3, 0]).is_ok());
}

#[test]
fn a_billion_keyed_samples_need_no_memory() {
    let order = Order::new(&spec(OrderKind::Keyed, 1_000_000_000, 3, 4096, Tail::Drop)).expect("valid");
    let epoch = order.epoch(2).expect("computed");
    assert_eq!(epoch.heap_bytes(), 0);
    assert!(size_of_val(&epoch) <= 160, "{} bytes", size_of_val(&epoch));
}

#[test]
fn a_deferred_order_knows_the_epochs_whose_lists_were_made() {
    for kind in [
        OrderKind::TorchDistributed,
        OrderKind::TorchRandom {
            draws: TorchDraws::LoaderOnce,
        },
    ] {
        let spec = spec(kind, 1000, 0, 10, Tail::Drop);
        let (whole, mut order) = (
            Order::new(&spec).expect("an order"),
            Order::new(&spec).expect("an order").deferred(),
        );
        let lister = order.lister().expect("torch's");
        assert_eq!((order.missing(), order.held_bytes()), (None, 0));
        assert_eq!(order.epoch(7).map(|_| ()), Err(Error::EpochNotSupplied { epoch: 7 }));
        assert_eq!((order.missing(), order.missing()), (Some(7), None), "told once");
        order.take(7, lister.list(7).looked_up()).expect("its own");
        order.take(7, lister.list(7)).expect("the same again");
        assert_eq!(
            order.take(7, lister.list(8)),
            Err(Error::EpochAlreadyKnown { epoch: 7 })
        );
        let (made, known) = (whole.epoch(7).expect("made"), order.epoch(7).expect("known"));
        assert!((0..1000).all(|at| made.sample_at(at) == known.sample_at(at)));
        order.take(8, lister.list(8)).expect("another");
        assert_eq!((order.held_bytes(), order.expected_bytes(false)), (12_000, 8000));
        order.keep(|epoch| epoch >= 8);
        assert!(order.knows(8) && !order.knows(7));
        assert_eq!(order.held_bytes(), 4000);
    }
    let keyed = Order::new(&spec(OrderKind::Keyed, 1000, 0, 10, Tail::Drop))
        .expect("an order")
        .deferred();
    assert!(!keyed.is_deferred() && keyed.epoch(3).is_ok());
}
