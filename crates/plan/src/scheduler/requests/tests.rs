use super::super::hand::{Hand, reads, settings};
use super::*;
use crate::action::{Event, Via};
use crate::catalog::Shards;
use crate::job::{Largest, Set};
use crate::policy::Policy;
use std::sync::Arc;

/// Twelve samples that are read when they are asked for, and kept no longer.
fn hand() -> Hand {
    of_ranks(1)
}

fn of_ranks(world: u32) -> Hand {
    Hand::new(settings(Policy::Naive, 64 << 10), &reads(&[1000; 12], world))
}

/// The same, planned ahead and kept in memory.
fn ahead() -> Hand {
    Hand::new(settings(Policy::Foreload, 64 << 10), &reads(&[1000; 12], 1))
}

const NO_SUCH: Option<(Option<u64>, Failure)> = Some((None, Failure::Final));

#[test]
fn a_batch_is_handed_over_at_once_when_its_last_sample_is_there() {
    let mut hand = hand();
    hand.want(1, 0, 0);
    assert_eq!(hand.objects(), [0, 1, 2, 3]);
    [2, 0, 3].into_iter().for_each(|object| hand.land(object));
    assert!(hand.answers.is_empty());
    hand.land(1);
    assert_eq!((hand.delivered(1), hand.answers.len()), (vec![0, 1, 2, 3], 1));
    assert_eq!(hand.used_bytes(), 4 * 1024, "a consumer has them");
    hand.give_back(1);
    assert_eq!((hand.used_bytes(), hand.plan.residents.count()), (0, 0));
}

#[test]
fn samples_come_in_the_order_of_asking_however_often_one_is_named() {
    let mut hand = hand();
    hand.want_samples(1, &[5, 3, 3, 0]);
    assert_eq!(hand.objects(), [5, 3, 0], "it is loaded once");
    hand.land_all();
    assert_eq!(hand.delivered(1), [5, 3, 3, 0]);
    assert_eq!(hand.plan.residents.leases, 4);
    hand.give_back(1);
    assert_eq!((hand.used_bytes(), hand.plan.residents.leases), (0, 0));
}

#[test]
fn a_request_for_nothing_is_served_at_once() {
    let mut hand = hand();
    hand.want_samples(1, &[]);
    assert_eq!(hand.delivered(1), [0; 0]);
}

#[test]
fn a_sample_that_fails_refuses_who_waits_for_it_and_nobody_else() {
    let mut hand = of_ranks(2);
    hand.want_of((0, 0), 1, 0, 0);
    hand.want_of((0, 1), 2, 0, 0);
    assert_eq!(hand.objects(), [0, 2, 1, 3]);
    hand.fail(2, Failure::Final);
    assert_eq!(hand.refused(1), Some((Some(2), Failure::Final)));
    hand.land_all();
    assert_eq!((hand.delivered(2), hand.answers.len()), (vec![1, 3], 2));
    hand.give_back(2);
    assert_eq!(hand.used_bytes(), 0, "nothing is left of the one that was refused");
}

#[test]
fn what_is_over_or_too_far_away_or_not_there_is_refused() {
    let mut hand = hand();
    hand.read(1, 0, 0);
    hand.want(2, 0, 0);
    hand.want(3, 0, 3);
    hand.want(4, 2000, 0);
    hand.want_samples(5, &[11, 12]);
    hand.want_reads(6, &[(0, 4), (0, 12)]);
    hand.want_of((0, 1), 7, 0, 1);
    hand.want_of((1, 0), 8, 0, 1);
    assert_eq!([2, 3, 4, 5, 6, 7, 8].map(|request| hand.refused(request)), [NO_SUCH; 7]);
    assert!(hand.objects().is_empty(), "nothing was loaded for them");
    assert_eq!(hand.read(9, 1000, 2), [8, 9, 10, 11], "three thousand steps away");
}

#[test]
fn a_number_that_is_open_is_refused_and_what_it_names_goes_on() {
    let mut hand = hand();
    hand.want(1, 0, 0);
    hand.want(1, 0, 1);
    assert_eq!(hand.refused(1), NO_SUCH);
    hand.land_all();
    assert_eq!(hand.delivered(1), [0, 1, 2, 3]);
    assert_eq!(hand.read(1, 0, 1), [4, 5, 6, 7], "now the number is free");
}

#[test]
fn a_batch_that_somebody_waits_for_is_not_given_twice() {
    let mut hand = hand();
    hand.want(1, 0, 0);
    hand.want(2, 0, 0);
    assert_eq!(hand.refused(2), NO_SUCH);
    hand.land_all();
    assert_eq!((hand.delivered(1), hand.answers.len()), (vec![0, 1, 2, 3], 2));
}

#[test]
fn a_read_that_is_named_twice_is_also_a_read_of_its_own() {
    let mut hand = hand();
    hand.want_reads(1, &[(0, 1), (0, 2), (0, 1)]);
    hand.want_reads(2, &[(0, 2)]);
    assert_eq!(hand.objects(), [1, 2]);
    hand.land_all();
    assert_eq!((hand.delivered(1), hand.delivered(2)), (vec![1, 2, 1], vec![2]));
    [1, 2].into_iter().for_each(|request| hand.give_back(request));
    assert_eq!(hand.used_bytes(), 0);
    // The batch isn't there as a whole any more, but what is left of it is still of the plan.
    hand.want(4, 0, 0);
    assert_eq!(hand.refused(4), NO_SUCH);
    hand.want_reads(3, &[(0, 1), (0, 0), (0, 3)]);
    hand.land_all();
    assert_eq!(hand.delivered(3), [1, 0, 3]);
    assert_eq!(hand.plan.windows.of(0).head(), 1, "the batch is over");
}

#[test]
fn who_withdraws_gets_nothing_holds_nothing_and_has_its_number_back() {
    let mut hand = hand();
    hand.want(1, 0, 0);
    hand.want_samples(2, &[9]);
    for request in [1, 2, 7] {
        hand.step(Event::Withdraw { request });
    }
    hand.land_all();
    assert!(hand.answers.is_empty());
    assert_eq!(
        (hand.used_bytes(), hand.plan.windows.ahead, hand.plan.requests.len()),
        (0, 0, 0)
    );
    assert_eq!(hand.read(1, 0, 1), [4, 5, 6, 7]);
}

#[test]
fn a_request_whose_number_is_used_again_is_not_told_what_the_first_waited_for() {
    let mut hand = ahead();
    hand.want_samples(1, &[0]);
    hand.step(Event::Withdraw { request: 1 });
    hand.want_samples(1, &[5]);
    hand.land(0);
    assert!(hand.answers.is_empty());
    hand.land(5);
    assert_eq!(hand.delivered(1), [5]);
}

#[test]
fn the_reads_of_a_request_that_ended_without_are_over_and_who_asks_again_reads_on_his_own() {
    let withdraw = |hand: &mut Hand| hand.step(Event::Withdraw { request: 1 });
    let fail = |hand: &mut Hand| {
        hand.fail(2, Failure::Final);
        assert_eq!(hand.refused(1), Some((Some(2), Failure::Final)));
    };
    for end in [&withdraw as &dyn Fn(&mut Hand), &fail] {
        let mut hand = ahead();
        hand.want(1, 0, 0);
        end(&mut hand);
        assert_eq!(hand.plan.windows.of(0).head(), 1);
        hand.land_all();
        hand.want(2, 0, 0);
        assert_eq!(hand.refused(2), NO_SUCH);
        hand.want_reads(3, &[(0, 0), (0, 1), (0, 2), (0, 3)]);
        hand.land_all();
        assert_eq!(hand.delivered(3), [0, 1, 2, 3]);
        hand.give_back(3);
        assert_eq!(hand.read(4, 0, 1), [4, 5, 6, 7]);
    }
}

#[test]
fn who_goes_on_after_refusals_has_the_memory_of_what_was_refused() {
    // Memory for twelve of 24 samples; a batch of four is held until the next one comes, and the first sample of each is gone.
    let mut hand = Hand::new(settings(Policy::Foreload, 12 << 10), &reads(&[1024; 24], 1));
    let end_all = |hand: &mut Hand| {
        while let Some(&object) = hand.objects().first() {
            match object % 4 {
                0 => hand.fail(object, Failure::Final),
                _ => hand.land(object),
            }
        }
    };
    hand.start(0, 0, 0, 0);
    let mut held = None;
    for step in 0..30 {
        let (request, first) = (2 * step + 1, step % 6 * 4);
        hand.want(request, step as u32 / 6, step % 6);
        end_all(&mut hand);
        assert_eq!(
            hand.refused(request),
            Some((Some(first), Failure::Final)),
            "step {step}"
        );
        let rest: Vec<u64> = (first + 1..first + 4).collect();
        hand.want_samples(request + 1, &rest);
        end_all(&mut hand);
        assert_eq!(hand.delivered(request + 1), rest, "step {step}");
        if let Some(before) = held.replace(request + 1) {
            hand.give_back(before);
        }
    }
}

#[test]
fn a_start_calls_off_what_its_rank_asked_for_and_nobody_elses() {
    let mut hand = of_ranks(2);
    hand.want_of((0, 0), 1, 0, 0);
    hand.want_of((0, 1), 2, 0, 0);
    hand.start(0, 0, 0, 1);
    assert_eq!(hand.answers.len(), 1);
    assert_eq!(hand.refused(1), Some((None, Failure::Cancelled)));
    hand.want_of((0, 0), 3, 0, 1);
    hand.land_all();
    assert_eq!((hand.delivered(2), hand.delivered(3)), (vec![1, 3], vec![4, 6]));
}

#[test]
fn who_asks_again_after_a_failure_gets_a_load_of_its_own() {
    let mut hand = ahead();
    hand.want(1, 0, 0);
    hand.fail(2, Failure::Final);
    assert_eq!(hand.refused(1), Some((Some(2), Failure::Final)));
    hand.land_all();
    hand.want_samples(2, &[0, 1, 2, 3]);
    assert_eq!(hand.objects(), [2]);
    hand.land(2);
    assert_eq!(hand.delivered(2), [0, 1, 2, 3]);
}

#[test]
fn a_use_is_told_as_what_it_cost() {
    let mut hand = ahead();
    let via = |hand: &Hand, request| match hand.answer(request) {
        Some(Ok((items, _))) => items.iter().map(|item| item.via).collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    hand.read(1, 0, 0);
    hand.want_samples(2, &[0, 4]);
    hand.start(0, 0, 1, 0);
    hand.read(3, 1, 0);
    assert_eq!(via(&hand, 1), [Via::Bucket; 4]);
    assert_eq!(via(&hand, 2), [Via::Ram, Via::Bucket]);
    assert_eq!(via(&hand, 3), [Via::Ram; 4]);
}

#[test]
fn a_sample_of_a_block_is_a_view_of_it_and_its_lease_the_blocks() {
    let mut reads = reads(&[1024; 8], 1);
    reads.sets = vec![Set::new(0, Arc::new(Shards::pack(&[1024; 8], 0, 1 << 20)))];
    let mut hand = Hand::new(settings(Policy::Foreload, 16 << 10), &reads);
    hand.want(1, 0, 0);
    hand.land_all();
    let Some(Ok((items, _))) = hand.answer(1) else {
        panic!("it was served");
    };
    let first = items[0].slot.offset;
    assert_eq!((items[1].slot.offset, items[1].handle), (first + 1024, items[0].handle));
    assert_ne!(items[2].handle, items[0].handle);
    assert!(items.iter().all(|item| item.slot.len == 1024));
}

#[test]
fn who_holds_half_of_what_passes_through_is_to_copy() {
    let mut hand = hand();
    assert_eq!(hand.plan.staging_bytes, 16 << 10);
    for (request, batch) in [(1, 0), (2, 1), (3, 2)] {
        hand.want(request, 0, batch);
        hand.land_all();
    }
    let copy = |hand: &Hand, request| matches!(hand.answer(request), Some(Ok((_, true))));
    assert_eq!([1, 2, 3].map(|request| copy(&hand, request)), [false, false, true]);
    [1, 2, 3].into_iter().for_each(|request| hand.give_back(request));
    hand.want(4, 1, 0);
    hand.land_all();
    assert!(!copy(&hand, 4));
}

#[test]
fn who_holds_a_quarter_of_the_memory_is_to_copy_though_it_is_kept() {
    let mut hand = Hand::new(settings(Policy::Foreload, 32 << 10), &reads(&[1000; 12], 1));
    for (request, batch) in [(1, 0), (2, 1), (3, 2)] {
        hand.want(request, 0, batch);
        hand.land_all();
    }
    assert_eq!(hand.plan.residents.leased_bytes, 0);
    let copy = |request| matches!(hand.answer(request), Some(Ok((_, true))));
    assert_eq!([1, 2, 3].map(copy), [false, false, true]);
}

/// Who is to copy of two batches of 12,032 bytes, of a memory of 32 KiB.
fn copies(largest: Option<Largest>) -> [bool; 2] {
    let mut reads = reads(&[3000; 12], 1);
    reads.largest = largest;
    let mut hand = Hand::new(settings(Policy::Foreload, 32 << 10), &reads);
    for (request, batch) in [(1, 0), (2, 1)] {
        hand.want(request, 0, batch);
        hand.land_all();
    }
    [1, 2].map(|request| matches!(hand.answer(request), Some(Ok((_, true)))))
}

#[test]
fn who_holds_more_need_not_copy_where_half_of_the_memory_is_left_in_one_piece_and_takes_the_largest_batch() {
    let known = |batch_bytes| {
        copies(Some(Largest {
            sample_bytes: 3008,
            batch_bytes,
        }))
    };
    // Beside one there is room for another, beside two there isn't.
    assert_eq!(known(12_032), [false, true]);
    assert_eq!(known(20_736), [false, true]);
    assert_eq!(known(20_800), [true, true], "the largest batch finds no room");
    assert_eq!(copies(None), [true, true], "nobody knows how large a batch may be");
}

#[test]
fn who_asks_for_more_than_a_batch_is_left_room_for_as_much_again() {
    let mut reads = reads(&[1000; 24], 1);
    reads.largest = Some(Largest::of([1000; 4].into_iter()));
    let mut hand = Hand::new(settings(Policy::Foreload, 24 << 10), &reads);
    let copy = |hand: &Hand, request| matches!(hand.answer(request), Some(Ok((_, true))));
    hand.want(1, 0, 0);
    hand.land_all();
    assert!(!copy(&hand, 1));
    hand.want_samples(2, &(4..22).collect::<Vec<u64>>());
    hand.land_all();
    hand.give_back(1);
    hand.give_back(2);
    for (request, batch) in [(3, 1), (4, 2)] {
        hand.want(request, 0, batch);
        hand.land_all();
    }
    assert_eq!(
        [3, 4].map(|request| copy(&hand, request)),
        [false, true],
        "beside eight there is no room for 18"
    );
}

#[test]
fn who_holds_little_is_to_copy_where_it_tears_the_memory_for_the_largest_batch() {
    // One of 28 samples is large; of the others each batch holds four, less than a twentieth of the memory.
    let mut lengths = [300; 28];
    lengths[20] = 16_000;
    let mut reads = reads(&lengths, 1);
    reads.largest = Some(Largest::of([16_000, 300, 300, 300].into_iter()));
    let mut hand = Hand::new(settings(Policy::Foreload, 24 << 10), &reads);
    for batch in 0..7 {
        hand.want(batch + 1, 0, batch);
        hand.land_all();
        assert!(matches!(hand.answer(batch + 1), Some(Ok(_))), "batch {batch}");
        // Who copies gives back at once; otherwise a loop holds all.
        if matches!(hand.answer(batch + 1), Some(Ok((_, true)))) {
            hand.give_back(batch + 1);
        }
    }
}

/// Requests by number, with what each reads and what of it is missing.
fn requests(open: &[(u64, u32, &[Target])]) -> Requests {
    let mut requests = Requests::default();
    for &(id, missing, targets) in open {
        let request = Request {
            place: (id % 2) as usize,
            since_ns: id * 10,
            targets: targets.to_vec(),
            samples: (0..targets.len() as u64).map(|at| 100 * id + at).collect(),
            missing,
            awaited_ns: None,
            guest: None,
        };
        requests.open.insert(id, request);
    }
    requests
}

#[test]
fn reads_of_their_own_that_are_there_give_way_and_wait_in_the_order_of_asking() {
    let (loose, entry) = (Target::Loose, Target::Entry(0, 0));
    let mut requests = requests(&[
        (1, 1, &[loose(10), loose(11)]),
        (2, 1, &[entry, loose(12)]),
        (3, 0, &[loose(13)]),
        (4, 1, &[loose(19)]),
    ]);
    requests.unplaced.push_back(4);
    // 19 is not there yet, and the third is the one that memory is for.
    let displaced = requests.displace(|id, _, _| id != 3, |resident| resident < 19);
    assert_eq!(displaced, [10, 11, 12]);
    assert_eq!(requests.unplaced, [1, 2, 4]);
    let targets = |id: u64| requests.open[&id].targets.clone();
    assert_eq!(targets(1), [Target::Unplaced(100), Target::Unplaced(101)]);
    assert_eq!(targets(2), [entry, Target::Unplaced(201)]);
    assert_eq!((targets(3), targets(4)), (vec![loose(13)], vec![loose(19)]));
    assert_eq!([1, 2, 3, 4].map(|id| requests.open[&id].missing), [3, 2, 0, 1]);
    assert_eq!(requests.open[&2].next_unplaced(), Some((1, 201)));
}

#[test]
fn all_reads_of_a_block_that_is_taken_apart_wait_again() {
    let mut requests = requests(&[
        (1, 2, &[Target::Loose(10), Target::Loose(10)]),
        (2, 1, &[Target::Loose(11)]),
        (3, 1, &[Target::Loose(10)]),
    ]);
    assert_eq!(requests.displace_all(10), 3);
    assert_eq!(requests.unplaced, [1, 3]);
    assert_eq!(
        [1, 2, 3].map(|id| requests.open[&id].missing),
        [2, 1, 1],
        "they were missing anyway"
    );
    assert_eq!(requests.displace_all(10), 0);
}

#[test]
fn requests_are_told_apart_by_rank_and_time() {
    let requests = requests(&[(1, 1, &[]), (2, 1, &[]), (3, 1, &[])]);
    assert_eq!((requests.of_place(1), requests.of_place(0)), (vec![1, 3], vec![2]));
    assert_eq!(
        [9, 10, 11].map(|then_ns| requests.began_after(1, then_ns)),
        [true, false, false]
    );
    assert!(!requests.began_after(7, 0));
}
