use super::*;
use crate::action::{Event, Failure, Load};
use crate::blocks::Content;
use crate::flow::{Breaker, ConcurrencySettings};
use crate::homes::Member;
use crate::policy::Policy;
use crate::scheduler::hand::{Hand, drawn, reads, settings};
use crate::scheduler::peers::Home;
use crate::settings::Settings;

/// A node of two with room for all, and samples that the other one keeps.
fn hand() -> (Hand, Vec<u64>) {
    hand_of(1000, 16)
}

/// The same with samples of a length, and so many questions at once.
fn hand_of(len: u64, peer_depth: u32) -> (Hand, Vec<u64>) {
    let settings = Settings {
        concurrency: ConcurrencySettings::fixed(100),
        peer_depth,
        hedge_per_cent: 0,
        ..settings(Policy::Foreload, 256 * len)
    };
    let mut hand = Hand::bare(settings, &reads(&[len; 64], 1));
    let bytes = 256 * len;
    let member = |id| Member { id, bytes };
    hand.step(Event::Peers {
        me: 10,
        members: vec![(0, member(10)), (1, member(20))],
    });
    let is_theirs = |sample: &u64| hand.plan.home_of(Content::block(*sample)) == Home::Peer(1);
    let theirs = (0..64).filter(is_theirs).collect();
    (hand, theirs)
}

fn tick_at(hand: &mut Hand, now_ns: u64) -> usize {
    hand.now_ns = now_ns;
    let before = hand.cancelled.len();
    hand.step(Event::Tick);
    hand.cancelled.len() - before
}

/// Asks for samples, and does something else meanwhile.
fn ask(hand: &mut Hand, request: u64, samples: &[u64]) {
    hand.step(Event::WantSamples {
        request,
        job: 0,
        rank: 0,
        samples: samples.to_vec(),
    });
}

fn source_of(hand: &Hand, sample: u64) -> Option<Source> {
    hand.loads().find(|load| load.object == sample).map(|load| load.source)
}

#[test]
fn a_peer_has_time_until_somebody_has_waited_for_too_long() {
    let (mut hand, theirs) = hand();
    ask(&mut hand, 1, &theirs[..3]);
    ask(&mut hand, 2, &theirs[3..4]);
    let later = 20 * PATIENCE_NS;
    assert_eq!(tick_at(&mut hand, later), 0, "nobody waits");
    hand.step(Event::Awaited { request: 1 });
    assert_eq!(
        tick_at(&mut hand, later + PATIENCE_NS - 1),
        0,
        "for so long it may wait"
    );
    hand.land(theirs[0]);
    assert_eq!(
        tick_at(&mut hand, later + PATIENCE_NS),
        2,
        "what one request lacks, and only that"
    );
    assert_eq!(tick_at(&mut hand, later + PATIENCE_NS + 1), 0, "once");
    theirs[1..3]
        .iter()
        .for_each(|&sample| hand.fail(sample, Failure::Cancelled));
    assert_eq!(source_of(&hand, theirs[1]), Some(Source::Bucket));
    assert_eq!(source_of(&hand, theirs[3]), Some(Source::Peer(1)));
    assert!(hand.plan.loads.lanes.of(Source::Peer(1)).is_open(hand.now_ns));
    hand.land_all();
    assert_eq!(hand.delivered(1), theirs[..3]);
}

/// Has somebody wait in vain from some time on, and says when that ended.
fn wait_in_vain(hand: &mut Hand, sample: u64, from_ns: u64) -> u64 {
    hand.now_ns = from_ns;
    hand.want_samples(2000 + from_ns, &[sample]);
    assert_eq!(source_of(hand, sample), Some(Source::Peer(1)), "it is asked");
    assert_eq!(tick_at(hand, from_ns + PATIENCE_NS), 1);
    hand.fail(sample, Failure::Cancelled);
    hand.land_all();
    from_ns + PATIENCE_NS
}

#[test]
fn a_peer_that_is_waited_for_in_vain_again_and_again_is_left_alone_for_longer_each_time_and_then_tried() {
    let (mut hand, theirs) = hand();
    let mut left = theirs.iter().copied();
    let mut next = || left.next().expect("there are enough");
    let is_open = |hand: &Hand, at_ns| hand.plan.loads.lanes.of(Source::Peer(1)).is_open(at_ns);
    let mut ended = wait_in_vain(&mut hand, next(), 10 * PATIENCE_NS);
    assert!(is_open(&hand, ended), "once is no reason");
    for pause_ns in [0, 1, 2, 4, 8, 16, 32].map(|s| s * 1_000_000_000) {
        ended = wait_in_vain(&mut hand, next(), ended + pause_ns);
        let pause_ns = (2 * pause_ns).clamp(1_000_000_000, 32_000_000_000);
        // What it answers says nothing for what it doesn't.
        for (late_ns, source) in [(pause_ns - 1, Source::Bucket), (pause_ns, Source::Peer(1))] {
            hand.now_ns = ended + late_ns;
            let other = next();
            hand.want_samples(ended + late_ns, &[other]);
            assert_eq!(
                source_of(&hand, other),
                Some(source),
                "after {late_ns} ns of {pause_ns}"
            );
            hand.land_all();
        }
    }
    // It was well for long enough.
    ended = wait_in_vain(&mut hand, next(), ended + 100 * PATIENCE_NS);
    assert!(is_open(&hand, ended));
    ended = wait_in_vain(&mut hand, next(), ended);
    assert!(!is_open(&hand, ended + 999_999_999) && is_open(&hand, ended + 1_000_000_000));
}

#[test]
fn a_peer_that_has_ranks_stand_still_just_within_their_patience_is_left_alone_too() {
    for (waits_ns, bucket_takes_ns, is_left) in [
        (STILL_NS, 20_000_000, true),
        (PATIENCE_NS - 1, 20_000_000, true),
        (STILL_NS - 1, 20_000_000, false),
        // The bucket isn't faster by far.
        (STILL_NS, STILL_NS / 5, false),
        (PATIENCE_NS - 1, PATIENCE_NS / 10, false),
    ] {
        let (mut hand, theirs) = hand();
        let ours: Vec<u64> = (0..64).filter(|sample| !theirs.contains(sample)).collect();
        ask(&mut hand, 1, &ours[..8]);
        hand.now_ns = 10 * PATIENCE_NS;
        (0..8).for_each(|at| hand.land_late(ours[at], bucket_takes_ns));
        for (at, &sample) in theirs[..3].iter().enumerate() {
            let is_asked = source_of(&hand, sample);
            hand.want_samples(2 + at as u64, &[sample]);
            assert_eq!(is_asked, None);
            let from_peer = source_of(&hand, sample) == Some(Source::Peer(1));
            assert_eq!(from_peer, at < 2 || !is_left, "{waits_ns} {bucket_takes_ns} {at}");
            hand.now_ns += waits_ns;
            hand.land(sample);
            hand.now_ns += PATIENCE_NS / 2 - waits_ns.min(PATIENCE_NS / 2);
        }
    }
}

#[test]
fn who_has_had_a_rank_stand_still_is_not_waited_for_as_long_again_for_what_it_was_asked_for_then() {
    let (mut hand, theirs) = hand();
    let begun = 10 * PATIENCE_NS;
    hand.now_ns = begun;
    ask(&mut hand, 1, &theirs[..1]);
    ask(&mut hand, 2, &theirs[1..2]);
    hand.step(Event::Awaited { request: 1 });
    assert_eq!(tick_at(&mut hand, begun + PATIENCE_NS), 1);
    hand.fail(theirs[0], Failure::Cancelled);
    hand.land(theirs[0]);
    hand.step(Event::Awaited { request: 2 });
    assert_eq!(tick_at(&mut hand, begun + PATIENCE_NS + OLD_NS - 1), 0);
    assert_eq!(tick_at(&mut hand, begun + PATIENCE_NS + OLD_NS), 1);
    hand.fail(theirs[1], Failure::Cancelled);
    hand.land_all();
    // It was one time. What it is asked for now has its time.
    assert!(hand.plan.loads.lanes.of(Source::Peer(1)).is_open(hand.now_ns));
    let now_ns = hand.now_ns;
    let ended = wait_in_vain(&mut hand, theirs[2], now_ns);
    assert!(!hand.plan.loads.lanes.of(Source::Peer(1)).is_open(ended));
}

#[test]
fn a_trial_of_a_peer_takes_no_longer_than_twice_what_the_bucket_takes() {
    for (bucket_takes_ns, trial_ns) in [(20_000_000, OLD_NS), (300_000_000, 600_000_000)] {
        let (mut hand, theirs) = hand_of(100_000, 16);
        let ours: Vec<u64> = (0..64).filter(|sample| !theirs.contains(sample)).collect();
        ask(&mut hand, 1, &ours[..8]);
        hand.now_ns = 10 * PATIENCE_NS;
        (0..8).for_each(|at| hand.land_late(ours[at], bucket_takes_ns));
        ask(&mut hand, 2, &theirs[..5]);
        theirs[..5]
            .iter()
            .for_each(|&sample| hand.fail(sample, Failure::Unavailable));
        theirs[..5]
            .iter()
            .for_each(|&sample| hand.land_late(sample, bucket_takes_ns));
        let is_open = |hand: &Hand| hand.plan.loads.lanes.of(Source::Peer(1)).is_open(hand.now_ns);
        assert!(!is_open(&hand));
        hand.now_ns += 100_000_000;
        assert!(is_open(&hand));
        hand.want_samples(3, &theirs[16..17]);
        assert_eq!(source_of(&hand, theirs[16]), Some(Source::Peer(1)));
        let begun = hand.now_ns;
        assert_eq!(tick_at(&mut hand, begun + trial_ns * 9 / 10), 0, "{bucket_takes_ns}");
        assert_eq!(tick_at(&mut hand, begun + trial_ns * 11 / 10), 1, "{bucket_takes_ns}");
        assert!(!hand.plan.loads.lanes.of(Source::Peer(1)).holds_ranks_up(hand.now_ns));
        hand.fail(theirs[16], Failure::Cancelled);
        assert_eq!(source_of(&hand, theirs[16]), Some(Source::Bucket));
        assert!(!is_open(&hand));
    }
}

#[test]
fn what_several_wait_for_at_one_time_is_waited_for_in_vain_once() {
    let (mut hand, theirs) = hand();
    let begun = 10 * PATIENCE_NS;
    for at in 0..4 {
        hand.now_ns = begun + at * 1000;
        hand.want_samples(1 + at, &theirs[at as usize..=at as usize]);
    }
    for at in 0..4 {
        assert_eq!(tick_at(&mut hand, begun + at * 1000 + PATIENCE_NS), 1);
    }
    assert!(hand.plan.loads.lanes.of(Source::Peer(1)).is_open(hand.now_ns));
}

#[test]
fn a_peer_that_is_waited_for_in_vain_where_the_bucket_is_slow_is_asked_again_at_once() {
    let (mut hand, theirs) = hand();
    let ours: Vec<u64> = (0..64).filter(|sample| !theirs.contains(sample)).collect();
    ask(&mut hand, 1, &ours[..8]);
    hand.now_ns = PATIENCE_NS;
    (0..8).for_each(|at| hand.land_late(ours[at], PATIENCE_NS));
    for at in 0..3 {
        let begun = hand.now_ns;
        hand.want_samples(2 + at, &theirs[at as usize..=at as usize]);
        assert_eq!(source_of(&hand, theirs[at as usize]), Some(Source::Peer(1)));
        assert_eq!(tick_at(&mut hand, begun + 3 * PATIENCE_NS), 1);
        hand.fail(theirs[at as usize], Failure::Cancelled);
        hand.land_late(theirs[at as usize], PATIENCE_NS);
        let lane = hand.plan.loads.lanes.of(Source::Peer(1));
        assert!(lane.is_open(hand.now_ns), "after {at}");
    }
}

#[test]
fn what_was_waited_for_before_its_turn_came_has_its_time_too() {
    let (mut hand, theirs) = hand_of(100_000, 1);
    hand.want_samples(1, &theirs[..2]);
    let asked_at = PATIENCE_NS;
    hand.now_ns = asked_at;
    hand.land(theirs[0]);
    assert_eq!(source_of(&hand, theirs[1]), Some(Source::Peer(1)));
    assert_eq!(tick_at(&mut hand, asked_at + PATIENCE_NS - 1), 0);
    assert_eq!(tick_at(&mut hand, asked_at + PATIENCE_NS), 1);
}

#[test]
fn a_peer_is_waited_for_as_long_as_the_bucket_would_take() {
    for (bucket_takes_ns, patience_ns) in [
        (PATIENCE_NS / 2, PATIENCE_NS),
        (2 * PATIENCE_NS, 4 * PATIENCE_NS),
        (20 * PATIENCE_NS, 40 * PATIENCE_NS),
        (100 * PATIENCE_NS, MOST_PATIENCE_NS),
    ] {
        let (mut hand, theirs) = hand();
        let ours: Vec<u64> = (0..64).filter(|sample| !theirs.contains(sample)).collect();
        ask(&mut hand, 1, &ours[..8]);
        hand.now_ns = bucket_takes_ns;
        hand.land_late(ours[0], bucket_takes_ns);
        (1..8).for_each(|at| hand.land_late(ours[at], bucket_takes_ns));
        let begun = hand.now_ns;
        hand.want_samples(2, &theirs[..1]);
        assert_eq!(tick_at(&mut hand, begun + patience_ns * 9 / 10), 0, "{bucket_takes_ns}");
        assert_eq!(
            tick_at(&mut hand, begun + patience_ns * 11 / 10),
            1,
            "{bucket_takes_ns}"
        );
    }
}

#[test]
fn what_a_peer_is_asked_for_has_as_long_as_it_may_be_waited_for_and_what_the_bucket_is_has_its_own_time() {
    let (mut hand, theirs) = hand();
    let ours = (0..64).find(|sample| !theirs.contains(sample)).expect("there are some");
    ask(&mut hand, 1, &[theirs[0], ours]);
    let time_ns = |sample| {
        hand.loads()
            .find(|load| load.object == sample)
            .map(|load| load.deadline_ns)
    };
    let begun = hand.now_ns;
    assert_eq!(time_ns(theirs[0]), Some(begun + MOST_PATIENCE_NS));
    assert_eq!(time_ns(ours), Some(begun + hand.plan.settings.load_timeout_ns));
    assert!(hand.plan.settings.load_timeout_ns < MOST_PATIENCE_NS);
}

#[test]
fn what_is_in_the_air_from_the_bucket_tells_how_long_it_takes_before_any_of_it_has_come() {
    let (mut hand, theirs) = hand();
    let ours: Vec<u64> = (0..64).filter(|sample| !theirs.contains(sample)).collect();
    ask(&mut hand, 1, &ours[..8]);
    hand.want_samples(2, &theirs[..1]);
    let (begun, most) = (hand.now_ns, MOST_PATIENCE_NS);
    assert_eq!(tick_at(&mut hand, begun + 2 * PATIENCE_NS), 0);
    assert_eq!(
        tick_at(&mut hand, begun + most - 1),
        0,
        "the bucket has brought nothing in all that time"
    );
    assert_eq!(tick_at(&mut hand, begun + most), 1);
}

#[test]
fn what_a_peer_did_not_bring_in_time_comes_when_who_waits_needs_it() {
    let (mut hand, _) = hand_of(1000, 100);
    // It was asked for ahead, and then by who needs it now.
    hand.start(0, 0, 0, 0);
    let flights = hand.plan.loads.flights.loads().map(|(_, flight)| &flight.pending);
    let ahead = flights.filter(|it| it.source == Source::Peer(1));
    let (line, last) = ahead.map(|it| (it.line, it.object)).max().expect("there are some");
    assert!(line > hand.plan.windows.head_line(0));
    hand.want_samples(1, &[last]);
    tick_at(&mut hand, MOST_PATIENCE_NS);
    hand.fail(last, Failure::Cancelled);
    let asked = hand.plan.loads.flights.loads().map(|(_, flight)| &flight.pending);
    let line = asked
        .filter(|it| it.object == last && it.source == Source::Bucket)
        .map(|it| it.line);
    assert_eq!(line.collect::<Vec<_>>(), [hand.plan.windows.head_line(0)]);
}

#[test]
fn what_an_ill_peer_was_asked_for_comes_from_the_bucket() {
    let (mut hand, theirs) = hand();
    let failing = Breaker::FAILURES as usize;
    for (request, &sample) in theirs[..failing].iter().enumerate() {
        hand.want_samples(request as u64, &[sample]);
    }
    ask(&mut hand, 100, &theirs[failing..failing + 4]);
    for &sample in &theirs[..failing] {
        hand.now_ns += 1_000_000;
        hand.fail(sample, Failure::Unavailable);
    }
    assert_eq!(tick_at(&mut hand, OLD_NS - 1), 0, "it may be on its way");
    assert_eq!(tick_at(&mut hand, OLD_NS + 10_000_000), 4);
    for &sample in &theirs[failing..failing + 4] {
        hand.fail(sample, Failure::Cancelled);
        assert_eq!(
            source_of(&hand, sample),
            Some(Source::Bucket),
            "though nobody waits for it yet"
        );
    }
    hand.land_all();
    hand.step(Event::Awaited { request: 100 });
    assert_eq!(hand.delivered(100), theirs[failing..failing + 4]);
}

#[test]
fn what_nobody_wants_any_more_is_not_fetched_when_it_is_called_off() {
    let (mut hand, theirs) = hand();
    ask(&mut hand, 1, &theirs[..1]);
    hand.step(Event::Withdraw { request: 1 });
    hand.fail(theirs[0], Failure::Cancelled);
    assert_eq!(hand.loads().count(), 0);
}

/// Ends all loads from the bucket, and what follows from that.
fn land_bucket(hand: &mut Hand) {
    loop {
        let next = hand.loads().find(|load| load.source == Source::Bucket);
        let Some(object) = next.map(|load| load.object) else {
            return;
        };
        hand.land(object);
    }
}

#[test]
fn others_are_turned_away_where_memory_is_full_of_what_they_are_to_bring() {
    for (waits, patience_ns) in [(true, OLD_NS), (false, RING_NS)] {
        let mut hand = Hand::bare(settings(Policy::Foreload, 12 << 10), &reads(&[1000; 400], 1));
        let member = |id| Member { id, bytes: 1 << 20 };
        hand.step(Event::Peers {
            me: 10,
            members: vec![(0, member(10)), (1, member(20))],
        });
        hand.start(0, 0, 0, 0);
        if waits {
            hand.want(1, 0, 0);
        }
        let ours = (300..400).filter(|&sample| hand.plan.home_of(Content::block(sample)) == Home::Here);
        for (request, sample) in (100..).zip(ours.collect::<Vec<_>>()) {
            hand.step(Event::Serve {
                request,
                job: 0,
                samples: vec![sample],
                steps: 70,
            });
        }
        // What others were given they keep.
        land_bucket(&mut hand);
        let refused = |hand: &Hand| hand.answers.iter().filter(|(_, answer)| answer.is_err()).count();
        let waiting = hand.plan.requests.guests.len();
        assert!(waiting > 10 && hand.loads().count() > 0, "{waiting}");
        let since_ns = hand.now_ns;
        tick_at(&mut hand, since_ns + patience_ns - 1);
        assert_eq!(refused(&hand), 0);
        tick_at(&mut hand, since_ns + patience_ns);
        assert_eq!(
            (refused(&hand), hand.plan.requests.guests.len()),
            (waiting, 0),
            "{waits}"
        );
    }
}

#[test]
fn what_a_rank_needs_from_a_peer_comes_before_what_another_rank_reads_ahead_from_it() {
    let reads = drawn(&[100_000; 200], 2);
    let bytes = 2000 * 100_000;
    let settings = Settings {
        concurrency: ConcurrencySettings::fixed(100),
        peer_depth: 1,
        hedge_per_cent: 0,
        window_entries: 800,
        ..settings(Policy::Foreload, bytes)
    };
    let mut hand = Hand::bare(settings, &reads);
    let member = |id| Member { id, bytes };
    hand.step(Event::Peers {
        me: 10,
        members: vec![(0, member(10)), (1, member(20))],
    });
    // All that the other rank reads in this epoch waits, too, for the next one of this rank.
    hand.start(0, 0, 0, 0);
    hand.start(0, 1, 0, 0);
    let mut landed = 0;
    for batch in 0..8 {
        hand.want_of((0, 1), batch, 0, batch);
        while hand.answer(batch).is_none() {
            let (peers, bucket): (Vec<&Load>, Vec<&Load>) =
                hand.loads().partition(|load| load.source == Source::Peer(1));
            let next = bucket.first().or(peers.first()).expect("it comes").object;
            landed += u32::from(bucket.is_empty());
            hand.land(next);
        }
    }
    // What is in the air, and eight batches of both ranks at most.
    assert!(landed <= 1 + 32, "{landed}");
}
