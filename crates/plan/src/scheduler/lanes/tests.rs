use super::super::flights::tests::pending;
use super::*;
use crate::flow::ConcurrencySettings;

const DONE: Outcome = Outcome::Done(Told::Speed {
    latency_ns: 1_000_000,
    total_ns: 2_000_000,
});

fn lanes(tiers: usize) -> Lanes {
    let tier = TierSettings {
        capacity_bytes: 1 << 20,
        pinned: None,
    };
    Lanes::new(&Settings {
        tiers: vec![tier; tiers],
        disk_depth: 2,
        concurrency: ConcurrencySettings::fixed(3),
        ..Settings::default()
    })
}

fn fly(lane: &mut Lane) -> Option<u64> {
    let next = lane.next(0)?;
    lane.depart(&next);
    Some(next.object)
}

#[test]
fn a_lane_lets_as_many_fly_as_its_limit_says_in_the_order_of_the_queue() {
    let mut lanes = lanes(1);
    let lane = &mut lanes.bucket;
    (0..5).for_each(|i| lane.push(pending(Source::Bucket, i, 100)));
    assert_eq!([(); 5].map(|()| fly(lane)), [Some(0), Some(1), Some(2), None, None]);
    lane.push_first(pending(Source::Bucket, 9, 100));
    lane.ended(1, 0, &pending(Source::Bucket, 0, 100), DONE);
    assert_eq!((fly(lane), fly(lane)), (Some(9), None));
    let Demand { queued, in_flight } = lane.demand();
    assert_eq!((queued, in_flight), (2, 3));
}

/// Loads of one sample each, by number and line.
fn push_at(lane: &mut Lane, loads: impl IntoIterator<Item = (u32, u64)>) {
    for (index, line) in loads {
        let pending = pending(Source::Bucket, index, 100);
        lane.push(Pending { line, ..pending });
    }
}

fn order_of(lane: &mut Lane) -> Vec<u64> {
    lane.set_limit(1000);
    std::iter::from_fn(|| fly(lane)).collect()
}

#[test]
fn what_is_needed_first_is_loaded_first_and_what_was_asked_for_first_of_what_is_needed_as_soon() {
    let mut lanes = lanes(0);
    let lane = &mut lanes.bucket;
    push_at(lane, (0..6).map(|at| (at, 10 * u64::from(at))));
    push_at(lane, [(6, 25), (7, 0), (8, 25), (9, 90), (10, 50)]);
    lane.push_first(pending(Source::Bucket, 11, 100));
    assert_eq!(order_of(lane), [11, 0, 7, 1, 2, 6, 8, 3, 4, 5, 10, 9]);
}

#[test]
fn what_others_need_sooner_than_it_was_planned_for_is_brought_forward_and_never_put_back() {
    let mut lanes = lanes(1);
    let hurry = |lane: &mut Lane, index, line| lane.hurry(index, Asker { job: 0, line });
    let lane = &mut lanes.bucket;
    push_at(lane, (0..8).map(|at| (at, 10 + u64::from(at / 2))));
    hurry(lane, 7, 11);
    hurry(lane, 6, 2);
    hurry(lane, 0, 90);
    hurry(lane, 99, 0);
    lane.hurry(5, Asker { job: 3, line: 0 });
    assert_eq!(order_of(lane), [6, 0, 1, 2, 3, 7, 4, 5]);
    hurry(lane, 7, 0);
    assert_eq!(order_of(lane), Vec::<u64>::new());
    // All that a large sample comes in.
    push_at(lane, [(0, 1), (1, 5), (2, 9), (2, 9), (3, 9)]);
    hurry(lane, 2, 3);
    assert_eq!(order_of(lane), [0, 2, 2, 1, 3]);
    // What came back for want of something waits first, whatever it is for, and of that, too, comes first what is needed first.
    push_at(lane, [(1, 10), (2, 20), (3, 30)]);
    for (index, line) in [(4, 25), (5, 25), (6, 24)] {
        let first = pending(Source::Bucket, index, 100);
        lane.push_first(Pending { line, ..first });
    }
    hurry(lane, 3, 5);
    hurry(lane, 4, 1);
    assert_eq!(order_of(lane), [4, 6, 5, 3, 1, 2]);
    assert!(lane.lines.0.is_empty(), "nothing waits");
}

#[test]
fn what_waits_for_a_peer_is_brought_forward_too() {
    let mut lanes = lanes(1);
    lanes.reach(2);
    let asker = Asker { job: 0, line: 1 };
    for peer in [1, 2] {
        let lane = lanes.of_mut(Source::Peer(peer));
        push_at(lane, [(0, 10), (1, 20), (2, 30)]);
    }
    lanes.hurry(2, asker, Some(1));
    lanes.hurry(2, asker, Some(9));
    lanes.hurry(2, asker, None);
    assert_eq!(order_of(lanes.of_mut(Source::Peer(1))), [2, 0, 1]);
    assert_eq!(order_of(lanes.of_mut(Source::Peer(2))), [0, 1, 2]);
}

fn of(job: u32, object: u32) -> Pending {
    Pending {
        job,
        ..pending(Source::Bucket, object, 100)
    }
}

fn flying_at(lane: &mut Lane, now_ns: u64) -> Option<(u32, u64)> {
    let next = lane.next(now_ns)?;
    lane.depart(&next);
    Some((next.job, next.object))
}

#[test]
fn what_hangs_for_one_job_keeps_no_other_from_flying() {
    let mut lanes = lanes(0);
    let lane = &mut lanes.bucket;
    lane.set_limit(3);
    (0..9).for_each(|object| lane.push(of(1, object)));
    assert_eq!(
        [0; 4].map(|at| flying_at(lane, at)),
        [Some((1, 0)), Some((1, 1)), Some((1, 2)), None]
    );
    (0..9).for_each(|object| lane.push(of(2, object)));
    assert_eq!(flying_at(lane, STALLED_NS), None, "it may be on its way");
    let late = 2 * STALLED_NS;
    let others: Vec<_> = std::iter::from_fn(|| flying_at(lane, late)).collect();
    assert_eq!(others, [(2, 0), (2, 1), (2, 2)], "as many as without the others");
    lane.ended(late + 1, late, &of(2, 0), DONE);
    assert_eq!(
        (flying_at(lane, late + 1), flying_at(lane, late + 1)),
        (Some((2, 3)), None)
    );
    // Something lands: what was stalled counts again, and has its turn.
    lane.ended(late + 2, 0, &of(1, 0), DONE);
    assert_eq!(flying_at(lane, late + 2), None);
    let ends = |lane: &mut Lane, job, object| lane.ended(late + 3, late, &of(job, object), DONE);
    for (job, object) in [(2, 1), (2, 2), (2, 3)] {
        ends(lane, job, object);
    }
    assert_eq!([(); 2].map(|()| flying_at(lane, late + 3)), [Some((2, 4)), None]);
    ends(lane, 1, 1);
    assert_eq!([(); 2].map(|()| flying_at(lane, late + 3)), [Some((1, 3)), None]);
}

#[test]
fn where_much_hangs_twice_as_many_fly_as_should_and_a_few_for_each_other_job() {
    let mut lanes = lanes(0);
    let lane = &mut lanes.bucket;
    lane.set_limit(10);
    for (job, flies) in [(1, 10), (2, 10), (3, A_FEW), (4, A_FEW)] {
        (0..20).for_each(|object| lane.push(of(job, object)));
        let flying = all_at(lane, 10 * u64::from(job) * STALLED_NS);
        assert_eq!(
            flying,
            (0..flies.into()).map(|object| (job, object)).collect::<Vec<_>>()
        );
    }
    let now_ns = 40 * STALLED_NS;
    lane.ended(now_ns, now_ns, &of(4, 0), DONE);
    assert_eq!(all_at(lane, now_ns), [(4, A_FEW.into())]);
}

#[test]
fn what_hangs_makes_no_more_fly_than_ever_may_but_for_a_few() {
    let settings = Settings {
        concurrency: ConcurrencySettings::fixed(12),
        ..Settings::default()
    };
    let mut lane = Lane::bucket(&settings);
    (0..20).for_each(|object| lane.push(of(1, object)));
    assert_eq!(all_at(&mut lane, 0).len(), 12);
    (0..20).for_each(|object| lane.push(of(2, object)));
    assert_eq!(all_at(&mut lane, 9 * STALLED_NS).len(), A_FEW as usize);
}

fn all_at(lane: &mut Lane, now_ns: u64) -> Vec<(u32, u64)> {
    std::iter::from_fn(|| flying_at(lane, now_ns)).collect()
}

#[test]
fn what_fills_one_lane_leaves_the_others_alone() {
    let mut lanes = lanes(2);
    assert_eq!(
        lanes.sources().collect::<Vec<_>>(),
        [Source::Disk(0), Source::Disk(1), Source::Bucket]
    );
    for source in lanes.sources() {
        (0..9).for_each(|i| lanes.of_mut(source).push(pending(source, i, 100)));
    }
    let first = lanes.of_mut(Source::Disk(0));
    while fly(first).is_some() {}
    let mut fail = |failure| {
        (0..Breaker::FAILURES).for_each(|_| {
            let load = pending(Source::Disk(0), 0, 100);
            first.ended(1, 0, &load, Outcome::Failed(failure));
            first.depart(&load);
        });
        first.is_open(1)
    };
    assert!(fail(Failure::Corrupt), "damaged records are no illness");
    let is_open = fail(Failure::Unavailable);
    let first = lanes.of_mut(Source::Disk(0));
    assert!(
        !is_open && !first.is_open(1),
        "ill after {} failures",
        Breaker::FAILURES
    );
    assert!(lanes.of(Source::Disk(1)).is_open(1) && lanes.bucket.is_open(1));
    assert_eq!(lanes.of(Source::Disk(1)).demand().in_flight, 0);
    assert_eq!(
        [(); 3].map(|()| fly(lanes.of_mut(Source::Disk(1)))),
        [Some(0), Some(1), None]
    );
}

#[test]
fn a_limit_that_is_set_holds_whatever_the_lane_would_have_found() {
    let mut lane = Lane::bucket(&Settings::default());
    assert_eq!(lane.limit(), ConcurrencySettings::default().start);
    lane.set_limit(5);
    for now in 0..5_000 {
        lane.push(pending(Source::Bucket, 0, 100));
        lane.push(pending(Source::Bucket, 0, 100));
        while fly(&mut lane).is_some() {}
        lane.ended(now * 1000, now * 1000, &pending(Source::Bucket, 0, 100), DONE);
    }
    assert_eq!(lane.limit(), 5);
    lane.set_limit(0);
    assert_eq!(lane.limit(), 1, "a lane can always send one");
}

#[test]
fn a_lane_without_twins_sends_none_and_one_with_them_goes_beyond_its_limit() {
    let mut lanes = lanes(1);
    assert!(!lanes.of_mut(Source::Disk(0)).spend_twin());
    let lane = &mut lanes.bucket;
    (0..4).for_each(|i| lane.push(pending(Source::Bucket, i, 100)));
    while fly(lane).is_some() {}
    assert!(lane.spend_twin());
    lane.depart_twin(0, 1);
    assert_eq!(lane.demand().in_flight, 4);
}

#[test]
fn a_queue_of_as_many_as_the_limit_doubles_the_wait() {
    let mut lanes = lanes(1);
    let lane = lanes.of_mut(Source::Disk(0));
    let alone = lane.wait_s(1000);
    (0..2).for_each(|i| lane.push(pending(Source::Disk(0), i, 1000)));
    assert!((lane.wait_s(1000) / alone - 2.0).abs() < 1e-9);
}
