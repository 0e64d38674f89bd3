use super::super::hand::{Hand, reads, settings};
use super::*;
use crate::action::Event;
use crate::arena::{Arena, Stay};
use crate::blocks::Held;
use crate::catalog::Shards;
use crate::flow::ConcurrencySettings;
use crate::job::Set;
use crate::policy::Policy;
use crate::scheduler::Cause;
use crate::settings::TierSettings;
use std::sync::Arc;

fn place(object: u64, offset: u64, len: u64) -> Place {
    Place { object, offset, len }
}

/// One request at a time.
fn one_at_a_time(policy: Policy) -> Hand {
    let settings = Settings {
        concurrency: ConcurrencySettings::fixed(1),
        ..settings(policy, 64 << 10)
    };
    Hand::new(settings, &reads(&[1000; 12], 1))
}

/// Twelve samples with a disk tier, whose reads come one at a time, and which holds the first four.
fn on_disk(policy: Policy) -> Hand {
    let settings = Settings {
        tiers: vec![TierSettings {
            capacity_bytes: 1 << 20,
            pinned: None,
        }],
        disk_depth: 1,
        ..settings(policy, 16 << 10)
    };
    let mut hand = Hand::bare(settings, &reads(&[1000; 12], 1));
    hand.plan.found(0, &[0, 1, 2, 3]);
    hand.start(0, 0, 0, 0);
    hand
}

fn sources(hand: &Hand) -> Vec<(u64, Source)> {
    hand.loads().map(|load| (load.object, load.source)).collect()
}

/// Residents that are loaded, and loads with parts of 1000 bytes.
struct Queue {
    loads: Loads,
    residents: Residents,
    arena: Arena,
}

impl Queue {
    fn new() -> Self {
        let settings = Settings {
            part_bytes: 1000,
            gap_bytes: 200,
            concurrency: ConcurrencySettings::fixed(u32::MAX),
            ..Settings::default()
        };
        Queue {
            loads: Loads::new(&settings),
            residents: Residents::new(true),
            arena: Arena::new(1 << 20),
        }
    }

    fn resident(&mut self, block: u64) -> u32 {
        let slot = self.arena.take(64, Stay::Short).expect("room");
        self.residents.insert(Content::block(block), (1, 0), slot, Via::Bucket)
    }

    fn parts(&mut self, stretches: &[Place], first: bool) -> u32 {
        let id = self.resident(stretches[0].object);
        let asker = Asker::default();
        self.loads.queue_parts(stretches, id, &mut self.residents, asker, first);
        id
    }

    fn taken(&mut self) -> Vec<Pending> {
        std::iter::from_fn(|| self.loads.lanes.bucket.next(0)).collect()
    }
}

fn shapes(loads: &[Pending]) -> Vec<(u64, u64, u64)> {
    loads.iter().map(|load| (load.object, load.offset, load.len)).collect()
}

#[test]
fn an_action_that_ends_with_its_issue_has_no_id_of_a_load() {
    let mut queue = Queue::new();
    let mut id = || queue.loads.action(Command::Forget { tier: 0, block: 0 }).id();
    let (first, second) = (id(), id());
    assert_ne!(first, second);
    // Those of loads count from 0, with places in their lower half.
    assert!(first >= 1 << 63 && second >= 1 << 63);
}

#[test]
fn a_large_sample_comes_in_equal_parts_that_together_are_all_of_it() {
    let mut queue = Queue::new();
    let id = queue.parts(&[place(7, 100, 3502)], false);
    let loads = queue.taken();
    assert_eq!(
        shapes(&loads),
        [(7, 100, 875), (7, 975, 876), (7, 1851, 875), (7, 2726, 876)]
    );
    assert_eq!(queue.residents.get(id).parts, 4);
    let mut offset = 0;
    for part in loads.iter().flat_map(|load| load.parts.iter()) {
        assert_eq!((part.content_offset, part.content_len), (offset, 3502));
        assert!(!part.is_whole() && part.handle == queue.residents.handle(id));
        offset += part.len;
    }
    assert_eq!(offset, 3502);
    let id = queue.parts(&[place(7, 100, 1500)], false);
    assert_eq!(
        shapes(&queue.taken()),
        [(7, 100, 1500)],
        "a little more than a part is one load"
    );
    assert_eq!(queue.residents.get(id).parts, 1);
}

#[test]
fn stretches_that_are_near_each_other_share_a_load_of_a_part_and_a_half() {
    let mut queue = Queue::new();
    let stretches = [
        place(7, 0, 400),
        place(7, 600, 400),
        place(7, 1201, 300),
        place(8, 1501, 300),
        place(8, 1801, 1300),
        place(8, 3101, 5),
    ];
    let id = queue.parts(&stretches, false);
    let loads = queue.taken();
    let expected = [(7, 0, 1000), (7, 1201, 300), (8, 1501, 300), (8, 1801, 1305)];
    assert_eq!(
        shapes(&loads),
        expected,
        "too far away, another object, and too long together"
    );
    assert_eq!(queue.residents.get(id).parts, 6);
    let parts = loads.iter().flat_map(|load| load.parts.iter());
    let at: Vec<_> = parts.map(|part| (part.at, part.content_offset, part.len)).collect();
    assert_eq!(
        at,
        [
            (0, 0, 400),
            (600, 400, 400),
            (0, 800, 300),
            (0, 1100, 300),
            (0, 1400, 1300),
            (1300, 2700, 5)
        ]
    );
}

#[test]
fn a_sample_has_no_more_parts_than_can_be_counted() {
    let mut queue = Queue::new();
    let len = 1 << 40;
    let id = queue.parts(&[place(7, 0, len)], false);
    let loads = queue.taken();
    assert!(loads.len() as u64 <= MOST_PARTS && loads.len() == usize::from(queue.residents.get(id).parts));
    assert_eq!(loads.iter().map(|load| load.len).sum::<u64>(), len);
}

#[test]
fn parts_that_are_to_come_first_come_before_all_that_waits_in_their_order() {
    let mut queue = Queue::new();
    queue.parts(&[place(1, 0, 100)], false);
    queue.parts(&[place(2, 0, 2000)], true);
    let loads = queue.taken();
    assert_eq!(shapes(&loads), [(2, 0, 1000), (2, 1000, 1000), (1, 0, 100)]);
}

#[test]
fn contents_in_the_order_of_their_places_are_one_request() {
    let mut queue = Queue::new();
    let ids = [1, 2, 3].map(|block| queue.resident(block));
    let neighbours = [
        (place(7, 0, 1000), ids[0]),
        (place(7, 1200, 100), ids[1]),
        (place(7, 1300, 50), ids[2]),
    ];
    // A block, and a sample of it by itself.
    let both = [(place(7, 500, 1000), ids[0]), (place(7, 600, 10), ids[1])];
    for (contents, shape) in [(&neighbours[..], (7, 0, 1350)), (&both[..], (7, 500, 1000))] {
        queue.loads.queue(contents, &mut queue.residents, Asker::default());
        let loads = queue.taken();
        assert_eq!(shapes(&loads), [shape]);
        let parts = loads[0].parts.iter().map(|part| (part.handle.index, part.at, part.len));
        let expected = contents
            .iter()
            .map(|(place, id)| (*id, place.offset - shape.1, place.len));
        assert_eq!(parts.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_failed_load_is_tried_once_more_before_new_work_and_then_told() {
    let mut hand = one_at_a_time(Policy::Naive);
    hand.want(1, 0, 0);
    hand.fail(0, Failure::Unavailable);
    assert_eq!(
        hand.loads().map(|load| (load.object, load.attempt)).collect::<Vec<_>>(),
        [(0, 1)]
    );
    hand.land(0);
    assert_eq!(hand.objects(), [1]);
    hand.fail(1, Failure::Corrupt);
    assert_eq!(hand.objects(), [1]);
    hand.fail(1, Failure::Corrupt);
    assert_eq!(hand.refused(1), Some((Some(1), Failure::Corrupt)));
    hand.land_all();
    assert_eq!((hand.used_bytes(), hand.plan.loads.is_idle()), (0, true));
}

#[test]
fn a_queued_load_that_nobody_wants_any_more_never_flies() {
    let mut hand = one_at_a_time(Policy::Naive);
    hand.want(1, 0, 0);
    hand.want_samples(2, &[2]);
    hand.step(Event::Withdraw { request: 1 });
    hand.land(0);
    assert_eq!(hand.objects(), [2], "somebody else waits for it");
    hand.land(2);
    assert!(hand.objects().is_empty() && hand.plan.loads.is_idle());
    hand.give_back(2);
    assert_eq!(hand.used_bytes(), 0);
}

#[test]
fn what_a_disk_had_damaged_or_has_no_more_comes_from_the_bucket() {
    let mut hand = on_disk(Policy::Naive);
    hand.want(1, 0, 0);
    assert_eq!(sources(&hand), [(0, Source::Disk(0))]);
    let before = hand.plan.tiers[0].used_bytes();
    hand.fail(0, Failure::Corrupt);
    assert_eq!(sources(&hand), [(1, Source::Disk(0)), (0, Source::Bucket)]);
    assert!(!hand.plan.tiers[0].has(0) && hand.plan.tiers[0].used_bytes() < before);
    hand.plan.tiers[0].remove(2, 1000);
    hand.land(1);
    assert_eq!(
        sources(&hand),
        [(0, Source::Bucket), (3, Source::Disk(0)), (2, Source::Bucket)]
    );
    hand.land_all();
    assert_eq!(hand.delivered(1), [0, 1, 2, 3]);
}

#[test]
fn a_read_that_was_called_off_says_nothing_against_the_disk() {
    let mut hand = on_disk(Policy::Naive);
    hand.want(1, 0, 0);
    hand.fail(0, Failure::Cancelled);
    assert!(hand.plan.tiers[0].has(0));
    assert_eq!(
        sources(&hand),
        [(1, Source::Disk(0)), (0, Source::Bucket)],
        "it is still waited for"
    );
    hand.land_all();
    assert_eq!(hand.delivered(1), [0, 1, 2, 3]);
}

#[test]
fn a_block_is_on_disk_when_it_is_written_and_its_room_comes_back_when_that_fails() {
    let mut hand = on_disk(Policy::Foreload);
    hand.land(0);
    let room = |hand: &Hand| hand.plan.tiers[0].used_bytes();
    let before = room(&hand);
    while hand.written().len() < 2 {
        let object = hand.objects()[0];
        hand.land(object);
    }
    let written = hand.written();
    let id = hand.plan.resident_with(written[0]).expect("it is there");
    assert_eq!((hand.plan.residents.get(id).writes, hand.plan.loads.writing), (1, 2));
    assert!(!hand.plan.tiers[0].has(written[0]));
    hand.now_ns = 5;
    hand.write(written[0], None);
    assert!(hand.plan.tiers[0].has(written[0]));
    assert_eq!((hand.plan.residents.get(id).writes, hand.plan.loads.writing), (0, 1));
    assert_eq!((hand.plan.loads.written_ns, room(&hand)), (5, before));
    hand.write(written[1], Some(Failure::Final));
    assert!(!hand.plan.tiers[0].has(written[1]));
    assert_eq!((hand.plan.loads.writing, room(&hand)), (0, before - 1064));
}

#[test]
fn a_block_that_fails_gives_the_room_back_that_it_was_to_have_on_disk() {
    let mut hand = on_disk(Policy::Foreload);
    let before = hand.plan.tiers[0].used_bytes();
    while hand.objects()[0] != 8 {
        let object = hand.objects()[0];
        hand.land(object);
    }
    hand.fail(8, Failure::Final);
    assert_eq!(hand.plan.tiers[0].used_bytes(), before - 1064);
    assert!(hand.written().is_empty() && !hand.plan.tiers[0].has(8));
}

#[test]
fn a_failure_is_of_the_time_in_which_its_load_was_tried() {
    let mut hand = one_at_a_time(Policy::Staging);
    hand.fail(0, Failure::Unavailable);
    hand.now_ns = 10;
    hand.want(1, 0, 0);
    hand.fail(0, Failure::Unavailable);
    assert!(hand.answers.is_empty(), "it was tried before anybody asked");
    assert_eq!(hand.plan.waiting().first().map(|it| it.sample), Some(Some(0)));
    hand.fail(0, Failure::Unavailable);
    hand.fail(0, Failure::Unavailable);
    assert_eq!(hand.refused(1), Some((Some(0), Failure::Unavailable)));
}

#[test]
fn what_failed_before_it_was_asked_for_comes_before_what_is_read_ahead() {
    let mut hand = one_at_a_time(Policy::Staging);
    // All of the first batch, and half of the second; each is tried twice.
    for object in [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5] {
        hand.fail(object, Failure::Unavailable);
    }
    assert_eq!(hand.objects(), [6]);
    hand.now_ns = 10;
    hand.want(1, 0, 0);
    // Nor does it wait for the second try of what is needed later.
    hand.fail(6, Failure::Unavailable);
    assert!(
        hand.objects()[0] < 4,
        "{:?} flies before what is waited for",
        hand.objects()
    );
    let first = hand.objects()[0];
    hand.fail(first, Failure::Unavailable);
    hand.fail(first, Failure::Unavailable);
    assert_eq!(hand.refused(1), Some((Some(first), Failure::Unavailable)));
}

/// Two jobs that read one data set, of which the first has asked for its first batch.
fn two_jobs() -> Hand {
    let mut hand = Hand::new(settings(Policy::Naive, 64 << 10), &reads(&[1000; 12], 1));
    hand.step(Event::Join {
        job: 1,
        reads: Box::new(reads(&[1000; 12], 1)),
    });
    hand.start(1, 0, 0, 0);
    hand.want(1, 0, 0);
    hand
}

#[test]
fn what_flies_for_a_job_that_is_over_is_called_off_but_for_what_others_read() {
    let mut hand = two_jobs();
    hand.step(Event::WantSamples {
        request: 2,
        job: 1,
        rank: 0,
        samples: vec![2],
    });
    hand.step(Event::Part { job: 0 });
    assert_eq!((hand.cancelled.len(), hand.objects()), (3, vec![0, 1, 2, 3]));
    assert_eq!(hand.refused(1), Some((None, Failure::Cancelled)));
    let mut actions = Vec::new();
    hand.plan.call_off_unread(0, &mut actions);
    hand.plan.cancel(hand.cancelled[0], &mut actions);
    assert!(actions.is_empty(), "a load is called off once");
    for object in [0, 1, 3] {
        hand.fail(object, Failure::Cancelled);
    }
    hand.land(2);
    assert_eq!((hand.delivered(2), hand.objects()), (vec![2], vec![]));
}

#[test]
fn what_was_called_off_and_is_wanted_again_is_loaded_again() {
    let mut hand = two_jobs();
    hand.step(Event::Part { job: 0 });
    assert_eq!(hand.cancelled.len(), 4);
    hand.want_of((1, 0), 2, 0, 0);
    hand.fail(0, Failure::Cancelled);
    assert!(hand.answer(2).is_none());
    assert_eq!(hand.objects(), [1, 2, 3, 0]);
    hand.land_all();
    assert_eq!(hand.delivered(2), [0, 1, 2, 3], "the others came in spite of it");
}

#[test]
fn a_block_that_cannot_be_had_whole_is_read_sample_by_sample() {
    let mut reads = reads(&[1024; 40], 1);
    reads.sets = vec![Set::new(0, Arc::new(Shards::pack(&[1024; 40], 0, 1 << 20)))];
    let mut hand = Hand::new(settings(Policy::Foreload, 16 << 10), &reads);
    hand.want(1, 0, 0);
    let first = |hand: &Hand| {
        let load = hand.loads().find(|load| load.offset == 0).expect("under way");
        load.pieces[0].content.held()
    };
    assert_eq!(first(&hand), Held::Block(0));
    hand.fail(0, Failure::Corrupt);
    // Tried again; the others are of the same object and came before it.
    while hand.loads().next().is_some_and(|load| load.offset != 0) {
        hand.land(0);
    }
    assert_eq!(first(&hand), Held::Block(0));
    hand.fail(0, Failure::Corrupt);
    assert!(hand.answer(1).is_none() && hand.plan.apart.contains(&0));
    assert_eq!(first(&hand), Held::Sample(0));
    hand.land_all();
    assert_eq!(hand.delivered(1), [0, 1, 2, 3]);
}

#[test]
fn who_waits_is_told_what_for() {
    let mut hand = one_at_a_time(Policy::Naive);
    hand.want_samples(1, &[5]);
    hand.want_samples(2, &[6]);
    let causes: Vec<_> = hand
        .plan
        .waiting()
        .iter()
        .map(|it| (it.request, it.sample, it.cause))
        .collect();
    let expected = [
        (1, Some(5), Cause::Loading(Source::Bucket)),
        (2, Some(6), Cause::Queued),
    ];
    assert_eq!(causes, expected);
    assert!(!hand.plan.loads.is_idle());
}

#[test]
fn a_limit_lets_queued_loads_fly_and_plans_nothing() {
    let mut hand = one_at_a_time(Policy::Staging);
    let ahead = hand.plan.windows.ahead;
    assert_eq!(hand.objects(), [0]);
    hand.step(Event::Limit { requests: 3 });
    assert_eq!((hand.objects(), hand.plan.windows.ahead), (vec![0, 1, 2], ahead));
    hand.step(Event::Limit { requests: 1 });
    hand.land(0);
    hand.land(1);
    assert_eq!(hand.objects(), [2], "what is in the air ends first");
    hand.land(2);
    assert_eq!(hand.objects(), [3]);
}
