use super::super::hand::{Hand, reads, settings};
use super::*;
use crate::action::{Event, Failure};
use crate::catalog::Shards;
use crate::job::Set;
use crate::model::Pinned;
use crate::policy::Policy;
use crate::scheduler::Cause;
use crate::settings::{Settings, TierSettings};
use crate::spec::OrderKind;
use std::sync::Arc;

/// A hundred samples, and 16 KiB: eight samples stay, and seven pass through at once.
fn hand(policy: Policy) -> Hand {
    Hand::new(settings(policy, 16 << 10), &reads(&[1000; 100], 1))
}

fn tier(capacity_bytes: u64, latency_s: f64) -> TierSettings {
    TierSettings {
        capacity_bytes,
        pinned: Some(Pinned {
            latency_s,
            bytes_per_s: 1e9,
        }),
    }
}

fn with_tiers(tiers: Vec<TierSettings>, bucket_latency_s: f64) -> Settings {
    Settings {
        tiers,
        bucket: Some(Pinned {
            latency_s: bucket_latency_s,
            bytes_per_s: 1e9,
        }),
        ..settings(Policy::Foreload, 16 << 10)
    }
}

fn there(hand: &Hand, samples: std::ops::Range<u64>) -> Vec<u64> {
    samples.filter(|&sample| hand.is_there(sample)).collect()
}

/// Puts a sample into the RAM tier, as if it had been read.
fn keep(hand: &mut Hand, sample: u64) -> u32 {
    let slot = hand.plan.arena.take(1000, Stay::Long).expect("room");
    let residents = &mut hand.plan.residents;
    let id = residents.insert(Content::block(sample), (1, 0), slot, Via::Bucket);
    residents.get_mut(id).state = State::Ready;
    residents.keep(id);
    id
}

#[test]
fn memory_fills_first_then_the_disk_and_then_nothing_stays() {
    let three = 3 * super::super::record_bytes(1000);
    let mut hand = Hand::new(with_tiers(vec![tier(three, 1e-4)], 0.03), &reads(&[1000; 100], 1));
    let mut written = Vec::new();
    for batch in 0..25 {
        hand.want(batch, 0, batch);
        while let Some(object) = hand.objects().first().copied() {
            hand.land(object);
        }
        written.extend(hand.written());
        hand.land_all();
        assert_eq!(hand.delivered(batch), [0, 1, 2, 3].map(|row| 4 * batch + row));
        hand.give_back(batch);
    }
    assert_eq!(there(&hand, 0..8), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(hand.plan.residents.kept_bytes, 8 * 1024);
    assert_eq!((written, hand.plan.tiers[0].used_bytes()), (vec![8, 9, 10], three));
}

#[test]
fn room_on_a_disk_is_not_taken_for_what_gets_no_memory() {
    let mut hand = Hand::new(with_tiers(vec![tier(1 << 20, 1e-4)], 0.03), &reads(&[1000; 100], 1));
    for _ in 0..3 {
        hand.step(Event::Tick);
    }
    assert_eq!(hand.plan.windows.ahead, 15);
    assert_eq!(hand.plan.tiers[0].used_bytes(), 7 * super::super::record_bytes(1000));
}

#[test]
fn the_ram_tier_takes_what_staging_and_the_claims_of_others_leave() {
    let mut hand = hand(Policy::Foreload);
    let admits = |hand: &Hand, len| hand.plan.ram_admits(Content::block(50), len);
    hand.plan.residents.kept_bytes = 7 * 1024;
    assert!(admits(&hand, 1024) && !admits(&hand, 1025));
    // This data set, and one of which others leave 512 bytes.
    hand.plan
        .residents
        .claims([(0, 0, 1 << 20), (100, 100, 512)].into_iter());
    assert!(admits(&hand, 512) && !admits(&hand, 513));
    hand.plan.residents.kept_bytes = 8 * 1024;
    assert!(!admits(&hand, 1));
    assert!(!admits(&self::hand(Policy::Naive), 1), "this policy keeps nothing");
}

#[test]
fn what_leaves_for_what_is_waited_for_is_not_replaced_for_a_while() {
    let mut hand = hand(Policy::Foreload);
    hand.land_all();
    let kept = |hand: &Hand| hand.plan.residents.kept_samples;
    assert_eq!(kept(&hand), 8);
    // Ten at once, of which staging has room for seven and what is kept for none.
    let many: Vec<u64> = (50..60).collect();
    hand.want_samples(1, &many);
    hand.land_all();
    assert_eq!(hand.delivered(1), many);
    hand.give_back(1);
    let left = kept(&hand);
    assert!((4..8).contains(&left), "{left}");
    let mut read = |now_ns, samples: std::ops::Range<u64>| {
        hand.now_ns = now_ns;
        for sample in samples {
            hand.want_samples(sample, &[sample]);
            hand.land_all();
            hand.give_back(sample);
        }
        kept(&hand)
    };
    assert_eq!(read(YIELDED_NS / 2, 70..80), left, "the next one would leave, too");
    assert_eq!(read(2 * YIELDED_NS, 80..90), 8);
}

#[test]
fn look_ahead_takes_nothing_that_is_kept_or_planned() {
    let mut hand = hand(Policy::Foreload);
    hand.land_all();
    assert_eq!(there(&hand, 0..100), (0..15).collect::<Vec<_>>());
    hand.read(1, 0, 0);
    hand.read(2, 0, 1);
    assert_eq!(there(&hand, 0..100), (0..15).collect::<Vec<_>>());
    hand.read(3, 0, 2);
    assert_eq!(there(&hand, 0..8), (0..8).collect::<Vec<_>>());
    assert_eq!(
        there(&hand, 8..100),
        (12..19).collect::<Vec<_>>(),
        "what has passed through left for it"
    );
}

#[test]
fn look_ahead_takes_nothing_that_is_kept_either_where_a_smaller_budget_tears_staging() {
    let mut hand = hand(Policy::Foreload);
    hand.land_all();
    hand.step(Event::Budget { ram_bytes: 12 << 10 });
    assert_eq!(there(&hand, 0..100), (0..12).collect::<Vec<_>>());
    hand.read(1, 0, 0);
    hand.read(2, 0, 1);
    assert_eq!(there(&hand, 0..100), (0..12).collect::<Vec<_>>());
}

#[test]
fn a_read_that_is_waited_for_takes_the_memory_of_what_is_furthest_ahead() {
    let mut hand = Hand::bare(settings(Policy::Foreload, 16 << 10), &reads(&[1000; 100], 2));
    // Nothing is planned before both ranks have started.
    hand.step(Event::Budget { ram_bytes: 0 });
    [0, 1].into_iter().for_each(|rank| hand.start(0, rank, 0, 0));
    hand.step(Event::Budget { ram_bytes: 16 << 10 });
    hand.land_all();
    for rank in [0, 1] {
        hand.want_of((0, rank), rank.into(), 0, 0);
        hand.give_back(rank.into());
    }
    // 12 and 14 are the first rank's, 13 is the second one's; 16 KiB has room for one sample more.
    hand.want_samples(5, &[50]);
    assert_eq!(there(&hand, 8..15), [8, 9, 10, 11, 12, 13, 14]);
    hand.want_samples(6, &[51]);
    assert_eq!(there(&hand, 8..15), [8, 9, 10, 11, 12, 14]);
    assert_eq!(hand.plan.windows.of(1).frontier, (3, 0));
    hand.want_samples(7, &[52]);
    assert_eq!(there(&hand, 8..15), [8, 9, 10, 11, 12]);
    assert_eq!(hand.plan.windows.of(0).frontier, (3, 1));
    hand.land_all();
    assert_eq!([5, 6, 7].map(|request| hand.delivered(request)), [[50], [51], [52]]);
    assert_eq!(hand.plan.residents.kept_samples, 8, "what is kept leaves after that");
}

#[test]
fn kept_samples_leave_for_a_read_that_is_waited_for_when_nothing_further_ahead_is_left() {
    let mut hand = hand(Policy::Foreload);
    hand.land_all();
    hand.read(1, 0, 0);
    hand.read(2, 0, 1);
    hand.want_samples(3, &[60, 61, 62, 63]);
    assert_eq!(
        there(&hand, 0..15),
        (0..12).collect::<Vec<_>>(),
        "its own next batch stays"
    );
    hand.want_samples(4, &[64]);
    assert_eq!(there(&hand, 0..15), (1..12).collect::<Vec<_>>());
    hand.land_all();
    assert_eq!((hand.delivered(3), hand.delivered(4)), (vec![60, 61, 62, 63], vec![64]));
}

#[test]
fn what_a_consumer_holds_never_gives_way() {
    let mut hand = Hand::new(settings(Policy::Naive, 8 << 10), &reads(&[1000; 100], 1));
    hand.want_samples(1, &[90, 91, 92, 93, 94, 95, 96, 97]);
    hand.land_all();
    let handles = hand.handles(1);
    hand.want(2, 0, 0);
    hand.step(Event::Budget { ram_bytes: 0 });
    hand.step(Event::Budget { ram_bytes: 8 << 10 });
    assert!(hand.objects().is_empty() && hand.answer(2).is_none());
    assert!(handles.iter().all(|&handle| hand.plan.residents.of(handle).is_some()));
    assert_eq!(hand.plan.waiting().first().map(|it| it.cause), Some(Cause::Memory));
    hand.give_back(1);
    hand.land_all();
    assert_eq!(hand.delivered(2), [0, 1, 2, 3]);
}

#[test]
fn a_smaller_budget_takes_kept_samples_then_plans_and_never_what_is_held() {
    let mut hand = hand(Policy::Foreload);
    hand.land_all();
    hand.read(1, 0, 0);
    hand.want(2, 0, 1);
    hand.want(3, 0, 2);
    hand.land_all();
    // Of those kept, 0 to 3 are free and 4 to 7 held; of those that pass through, 8 to 11 are held, and the next three planned.
    let budget = |hand: &mut Hand, samples: u64| {
        hand.step(Event::Budget {
            ram_bytes: samples * 1024,
        });
        there(hand, 0..15)
    };
    assert_eq!(budget(&mut hand, 13), (2..15).collect::<Vec<_>>());
    assert_eq!(budget(&mut hand, 10), (4..14).collect::<Vec<_>>());
    assert_eq!(
        hand.objects(),
        [12, 13],
        "a line is put back, and what fits of it planned again"
    );
    hand.land_all();
    assert_eq!(budget(&mut hand, 0), (4..12).collect::<Vec<_>>());
    assert_eq!((hand.used_bytes(), hand.plan.windows.ahead), (8 * 1024, 0));
    hand.give_back(2);
    hand.give_back(3);
    assert_eq!(hand.used_bytes(), 0);
    assert_eq!(budget(&mut hand, 16).len(), 3, "planning goes on where it was put back");
}

#[test]
fn a_request_that_would_wait_for_ever_takes_what_later_ones_have() {
    let mut hand = Hand::new(settings(Policy::Naive, 8 << 10), &reads(&[1000; 100], 2));
    hand.want_samples(1, &[90, 91, 92, 93]);
    hand.land_all();
    // The other rank has one of two, the rest of the memory is another read of its own that waits for a second.
    hand.want_of((0, 1), 2, 0, 1);
    hand.step(Event::WantSamples {
        request: 3,
        job: 0,
        rank: 1,
        samples: vec![80, 81, 82],
    });
    hand.step(Event::Awaited { request: 3 });
    hand.land_all();
    assert_eq!(hand.delivered(2), [5, 7]);
    hand.want_of((0, 0), 4, 0, 0);
    hand.land_all();
    assert_eq!(
        hand.delivered(4),
        [0, 2],
        "the one that is first in the epoch is served"
    );
    assert!(hand.answer(3).is_none());
    for request in [1, 2, 4] {
        hand.give_back(request);
    }
    hand.land_all();
    assert_eq!(
        hand.delivered(3),
        [80, 81, 82],
        "and the one that gave way is served when memory comes back"
    );
}

#[test]
fn reads_of_its_own_come_before_what_the_rank_reads_later() {
    let mut hand = Hand::new(settings(Policy::Naive, 7 << 10), &reads(&[1000; 100], 1));
    hand.want(1, 0, 0);
    hand.want(2, 0, 1);
    hand.land_all();
    assert!(
        hand.answer(2).is_none(),
        "the first batch is held, and there is room for three samples more"
    );
    hand.want_samples(3, &[80, 81]);
    hand.land_all();
    assert_eq!(hand.delivered(3), [80, 81]);
    hand.give_back(1);
    hand.land_all();
    assert_eq!(hand.delivered(2), [4, 5, 6, 7]);
}

#[test]
fn what_a_consumer_has_passed_makes_room_last() {
    let mut hand = Hand::new(settings(Policy::Foreload, 16 << 10), &reads(&[1000; 100], 1));
    hand.start(0, 0, 0, 0);
    hand.land_all();
    // One read of each batch is never asked for, and a batch is held until the next one is there.
    for batch in 0..20 {
        let positions: Vec<(u32, u64)> = (1..4).map(|at| (0, 4 * batch + at)).collect();
        hand.want_reads(batch + 1, &positions);
        hand.land_all();
        assert_eq!(
            hand.delivered(batch + 1),
            positions.iter().map(|&(_, at)| at).collect::<Vec<_>>()
        );
        if batch > 0 {
            hand.give_back(batch);
        }
    }
}

#[test]
fn a_block_is_read_from_the_fastest_disk_that_has_it() {
    let tiers = vec![tier(1 << 20, 1e-2), tier(1 << 20, 1e-4)];
    let mut hand = Hand::bare(with_tiers(tiers, 0.03), &reads(&[1000; 12], 1));
    for (tier, block) in [(0, 1), (0, 2), (1, 2)] {
        hand.plan.found(tier, &[block]);
    }
    assert_eq!(
        [0, 1, 2].map(|block| hand.plan.best_tier(block, 1000)),
        [None, Some(0), Some(1)]
    );
    // The second one becomes ill.
    let ill = Source::Disk(1);
    for _ in 0..crate::flow::Breaker::FAILURES {
        let load = super::super::flights::tests::pending(ill, 0, 100);
        let lane = hand.plan.loads.lanes.of_mut(ill);
        lane.depart(&load);
        lane.ended(1, 0, &load, crate::action::Outcome::Failed(Failure::Unavailable));
    }
    assert_eq!(hand.plan.best_tier(2, 1000), Some(0));
}

#[test]
fn a_disk_is_left_for_the_bucket_only_when_that_is_faster_by_far() {
    let best = |disk_s: f64, bucket_s: f64| {
        let mut settings = with_tiers(vec![tier(1 << 20, disk_s)], bucket_s);
        // As many at once from each.
        settings.disk_depth = settings.concurrency.start;
        let mut hand = Hand::bare(settings, &reads(&[1000; 12], 1));
        hand.plan.found(0, &[1]);
        let alone = hand.plan.best_tier(1, 1000);
        for _ in 0..10_000 {
            let lane = hand.plan.loads.lanes.of_mut(Source::Disk(0));
            lane.push(super::super::flights::tests::pending(Source::Disk(0), 0, 1000));
        }
        (alone, hand.plan.best_tier(1, 1000))
    };
    // Eight times as slow is too slow, but no disk that answers within a quarter of a second.
    assert_eq!([best(0.24, 0.001).0, best(0.26, 0.001).0], [Some(0), None]);
    assert_eq!([best(0.7, 0.1).0, best(0.9, 0.1).0], [Some(0), None]);
    // A long queue is, too, but none of a disk that brings half as much.
    assert_eq!(
        [best(0.019, 0.01), best(0.021, 0.01)],
        [(Some(0), Some(0)), (Some(0), None)]
    );
}

#[test]
fn what_is_found_on_a_disk_counts_once_and_only_where_it_is_known_and_fits() {
    let tiers = vec![tier(2 * super::super::record_bytes(1000), 1e-4)];
    let mut hand = Hand::bare(with_tiers(tiers, 0.03), &reads(&[1000; 12], 1));
    hand.plan.found(7, &[1]);
    hand.plan.found(0, &[1, 1, 12, 2, 3]);
    let tier = &hand.plan.tiers[0];
    assert_eq!([1, 2, 3, 12].map(|block| tier.has(block)), [true, true, false, false]);
    assert_eq!(
        (tier.count(), tier.used_bytes()),
        (2, 2 * super::super::record_bytes(1000))
    );
}

#[test]
fn of_a_full_disk_the_oldest_leaves_and_the_carrier_is_told() {
    let deli = Policy::Deli {
        fetch: 4,
        threshold: 0,
        cache: 2,
    };
    let settings = Settings {
        tiers: vec![tier(3 * super::super::record_bytes(1000), 1e-4)],
        ..settings(deli, 16 << 10)
    };
    let mut hand = Hand::bare(settings, &reads(&[1000; 12], 1));
    let mut evict = |items, found: &[u64]| {
        let mut actions = Vec::new();
        hand.plan.found(0, found);
        hand.plan.evict_from_tier(1000, items, &mut actions);
        let block = |action: &Action| match action.command() {
            Command::Forget { tier: 0, block } => *block,
            other => panic!("{other:?}"),
        };
        actions.iter().map(block).collect::<Vec<_>>()
    };
    assert_eq!(evict(2, &[5]), [0; 0]);
    assert_eq!(evict(2, &[3]), [5], "one more has room beside one");
    assert_eq!(evict(0, &[9, 1]), [3], "without a number its bytes count");
    assert_eq!(evict(0, &[]), [0; 0]);
}

#[test]
fn the_oldest_leave_the_ram_tier_until_there_is_room_by_number_and_by_bytes() {
    let mut hand = Hand::bare(settings(Policy::Lru, 16 << 10), &reads(&[1000; 100], 1));
    let ids: Vec<u32> = (0..5).map(|sample| keep(&mut hand, sample)).collect();
    hand.plan.residents.refresh(ids[0]);
    hand.plan.evict_for(Content::block(50), 1000, 4);
    assert_eq!(there(&hand, 0..5), [0, 3, 4]);
    hand.plan.evict_for(Content::block(50), 1000, 4);
    assert_eq!(there(&hand, 0..5), [0, 3, 4]);
    hand.plan.evict_for(Content::block(50), 7 * 1024, u64::MAX);
    assert_eq!(there(&hand, 0..5), [0]);
    hand.plan.evict_for(Content::block(50), 1 << 20, u64::MAX);
    assert_eq!(hand.used_bytes(), 0, "what doesn't fit at all ends");
}

/// Forty samples in one object, two in a block, read with a stride of four: neighbours are ten reads apart.
fn strided() -> Hand {
    let mut reads = reads(&[1024; 40], 1);
    reads.sets = vec![Set::new(0, Arc::new(Shards::pack(&[1024; 40], 0, 1 << 20)))];
    let order = crate::spec::OrderSpec {
        kind: OrderKind::Strided { stride: 4 },
        ..reads.order.spec().clone()
    };
    reads.order = crate::order::Order::new(&order).expect("an order");
    Hand::bare(settings(Policy::Foreload, 16 << 10), &reads)
}

#[test]
fn a_neighbour_comes_along_when_it_is_read_before_staging_turns_over() {
    let mut hand = strided();
    assert_eq!(hand.plan.library.siblings(16), 16..18);
    hand.plan.windows.begin(0, 0);
    // 17 is read in the fourth batch, and staging holds two.
    let soon = |hand: &mut Hand, sample, step| {
        let line = hand.plan.windows.line_at(0, step);
        hand.plan.read_soon(sample, line)
    };
    assert_eq!(
        [0, 1, 2, 3, 4].map(|step| soon(&mut hand, 17, step)),
        [false, false, true, true, false]
    );
    assert!(
        !soon(&mut hand, 17, 11) && soon(&mut hand, 17, 12),
        "in the next epoch, too"
    );
    let line = hand.plan.windows.line_at(0, 2);
    let place = hand.plan.library.place(17);
    let invite = |hand: &mut Hand, sample, place| hand.plan.invite(sample, place, line, Urgency::Ahead);
    let id = invite(&mut hand, 17, place).expect("there is memory").expect("invited");
    assert_eq!(hand.plan.residents.expected_bytes, 1024);
    assert!(hand.plan.residents.get(id).is_wanted());
    // Two are a quarter of staging.
    let place = hand.plan.library.place(13);
    assert!(matches!(invite(&mut hand, 13, place), Ok(Some(_))));
    let place = hand.plan.library.place(21);
    assert_eq!(invite(&mut hand, 21, place), Ok(None), "too many would be waited for");
}

#[test]
fn a_neighbour_that_has_room_but_no_hole_is_waited_for_and_nothing_of_the_group_is_left_behind() {
    let mut hand = strided();
    hand.plan.windows.begin(0, 0);
    let line = hand.plan.windows.line_at(0, 2);
    // Samples have 1 KiB each. Half of all memory is free, and only one hole in it is as long.
    let slots: Vec<Slot> = std::iter::from_fn(|| hand.plan.arena.take(512, Stay::Short)).collect();
    for (at, slot) in slots.iter().enumerate() {
        if at < 2 || at % 2 == 0 {
            hand.plan.arena.give(*slot);
        }
    }
    let (used, known) = (hand.used_bytes(), hand.plan.residents.count());
    hand.plan.residents.kept_bytes = used;
    hand.plan.windows.ahead = 1;
    let resident = |hand: &mut Hand, urgency| hand.plan.resident_for(16, line, urgency, &mut Vec::new());
    assert_eq!(resident(&mut hand, Urgency::Ahead), Err(Blocked::Memory));
    assert_eq!((hand.used_bytes(), hand.plan.residents.count()), (used, known));
    assert_eq!(hand.plan.residents.expected_bytes, 0);
    // Another node asks, and nothing comes back by itself: it gets its sample alone.
    assert!(resident(&mut hand, Urgency::Guest).is_ok());
    assert_eq!(hand.used_bytes(), used + 1024);
}

#[test]
fn a_block_that_stays_comes_whole_and_of_another_one_what_is_read() {
    let mut hand = strided();
    hand.start(0, 0, 0, 0);
    let mut loads = Vec::new();
    for batch in 0..2 {
        hand.want(batch, 0, batch);
        loads.extend(hand.loads().map(|load| (load.offset, load.len)));
        hand.land_all();
        hand.give_back(batch);
    }
    // Blocks of 0, 4, 8 and 12 fill the RAM tier; 16, 20, 24 and 28 come by themselves.
    let first = |samples: [u64; 4], count: u64| samples.map(|sample| (1024 * sample, 1024 * count));
    assert_eq!(loads[..4], first([0, 4, 8, 12], 2));
    assert_eq!(loads[4..8], first([16, 20, 24, 28], 1));
    assert_eq!(hand.plan.residents.kept_samples, 8);
}
