use super::super::flights::tests::pending;
use super::super::hand::{Hand, reads, settings};
use super::super::lanes::SMALL_BYTES;
use super::*;
use crate::action::{BUNDLE_BYTES, BUNDLE_LOADS, BUNDLED_BYTES, Event, Load};
use crate::flow::ConcurrencySettings;
use crate::policy::Policy;
use crate::settings::{Settings, TierSettings};

const ME: u64 = 10;

/// A node of two, that knows its home from the others'.
fn hand(samples: usize, kept: u64) -> Hand {
    let mut hand = asked(samples, kept);
    hand.start(0, 0, 0, 0);
    hand
}

/// The same, where nothing is read ahead: nobody has started.
fn asked(samples: usize, kept: u64) -> Hand {
    let settings = Settings {
        concurrency: ConcurrencySettings::fixed(100),
        ..settings(Policy::Foreload, 256 << 10)
    };
    let mut hand = Hand::bare(settings, &reads(&vec![1000; samples], 1));
    hand.step(peers(kept, 1));
    hand
}

fn peers(kept: u64, number: u16) -> Event {
    let member = |id| Member { id, bytes: kept };
    Event::Peers {
        me: ME,
        members: vec![(0, member(ME)), (number, member(20))],
    }
}

fn homes(hand: &Hand, samples: u64) -> Vec<Home> {
    (0..samples)
        .map(|block| hand.plan.home_of(Content::block(block)))
        .collect()
}

#[test]
fn what_another_node_keeps_is_asked_of_that_and_what_nobody_keeps_of_the_bucket() {
    let hand = hand(40, 15_000);
    let homes = homes(&hand, 40);
    for home in [Home::Here, Home::Peer(1), Home::Nowhere] {
        assert!(homes.iter().filter(|&&it| it == home).count() >= 10, "{homes:?}");
    }
    for load in hand.loads() {
        let (sample, source) = (load.object, load.source);
        let expected = match homes[sample as usize] {
            Home::Here | Home::Nowhere => Source::Bucket,
            Home::Peer(peer) => Source::Peer(peer),
        };
        assert_eq!(source, expected, "sample {sample}");
    }
}

/// Samples of a kind of home, in the order of reading.
fn of(hand: &Hand, samples: u64, home: Home) -> Vec<u64> {
    (0..samples)
        .filter(|&block| hand.plan.home_of(Content::block(block)) == home)
        .collect()
}

fn source_of(hand: &Hand, sample: u64) -> Option<Source> {
    hand.loads().find(|load| load.object == sample).map(|load| load.source)
}

#[test]
fn a_peer_that_has_not_got_something_is_well_and_one_that_fails_is_left_alone_for_a_while() {
    let mut hand = asked(64, 1 << 20);
    let theirs = of(&hand, 64, Home::Peer(1));
    for (request, some) in theirs[..20].chunks(10).enumerate() {
        hand.want_samples(request as u64, some);
    }
    hand.fail(theirs[0], Failure::Final);
    assert_eq!(source_of(&hand, theirs[0]), Some(Source::Bucket));
    assert!(hand.plan.loads.lanes.of(Source::Peer(1)).is_open(hand.now_ns));
    let mut fail = |sample| {
        assert_eq!(source_of(&hand, sample), Some(Source::Peer(1)));
        hand.fail(sample, Failure::Unavailable);
        assert_eq!(
            source_of(&hand, sample),
            Some(Source::Bucket),
            "and not a second time of the peer"
        );
        hand.plan.loads.lanes.of(Source::Peer(1)).is_open(hand.now_ns)
    };
    assert!(theirs[1..10].iter().all(|&sample| fail(sample)), "one request broke");
    assert_eq!([10, 11].map(|at| fail(theirs[at])), [true, false], "and another one");
    hand.land_all();
    assert!(theirs[..20].iter().all(|&sample| hand.is_there(sample)));
}

#[test]
fn a_peer_that_was_ill_is_tried_with_one_request() {
    let mut hand = asked(64, 1 << 20);
    let theirs = of(&hand, 64, Home::Peer(1));
    hand.want_samples(1, &theirs[..3]);
    hand.want_samples(10, &theirs[3..5]);
    theirs[..5]
        .iter()
        .for_each(|&sample| hand.fail(sample, Failure::Unavailable));
    hand.land_all();
    hand.now_ns += 100_000_000;
    hand.want_samples(2, &theirs[6..12]);
    let asked = hand.loads().filter(|load| load.source == Source::Peer(1)).count();
    assert_eq!((asked, hand.loads().count()), (1, 6));
    let trial = hand
        .loads()
        .find(|load| load.source == Source::Peer(1))
        .expect("one")
        .object;
    hand.land(trial);
    hand.land_all();
    hand.want_samples(3, &theirs[12..16]);
    assert!(hand.loads().all(|load| load.source == Source::Peer(1)), "it is well");
}

#[test]
fn a_failure_of_a_peer_costs_no_try_of_the_bucket() {
    let mut hand = hand(16, 1 << 20);
    let sample = of(&hand, 16, Home::Peer(1))[0];
    hand.fail(sample, Failure::Corrupt);
    hand.fail(sample, Failure::Unavailable);
    assert_eq!(source_of(&hand, sample), Some(Source::Bucket), "once more");
    hand.land(sample);
    assert!(hand.is_there(sample));
}

#[test]
fn what_comes_from_a_peer_passes_through_and_says_so() {
    let mut hand = hand(16, 1 << 20);
    hand.want(1, 0, 0);
    hand.land_all();
    let Some(Ok((items, _))) = hand.answer(1).cloned() else {
        panic!("delivered")
    };
    for item in &items {
        let is_ours = hand.plan.home_of(Content::block(item.sample)) == Home::Here;
        let id = hand.plan.resident_with(item.sample).expect("there");
        assert_eq!(hand.plan.residents.get(id).is_kept(), is_ours);
        assert_eq!(item.via == Via::Peer, !is_ours, "sample {}", item.sample);
    }
}

#[test]
fn a_node_whose_disk_has_room_for_all_keeps_all_that_it_reads_and_another_only_its_own() {
    for (room, is_copied) in [(16, true), (15, false)] {
        let tier = TierSettings {
            capacity_bytes: room * record_bytes(1000),
            pinned: None,
        };
        let settings = Settings {
            tiers: vec![tier],
            staging_bytes: Some(64 << 10),
            concurrency: ConcurrencySettings::fixed(100),
            ..settings(Policy::Foreload, 64 << 10)
        };
        let mut hand = Hand::bare(settings, &reads(&[1000; 16], 1));
        hand.step(peers(1 << 20, 1));
        hand.start(0, 0, 0, 0);
        for batch in 0..4 {
            hand.read(batch, 0, batch);
        }
        hand.land_all();
        let theirs = of(&hand, 16, Home::Peer(1));
        assert!((1..16).contains(&theirs.len()));
        for block in 0..16 {
            let is_theirs = theirs.contains(&block);
            assert_eq!(
                hand.plan.tiers[0].has(block),
                !is_theirs || is_copied,
                "block {block} of {room}"
            );
        }
    }
}

#[test]
fn a_peer_is_given_what_is_here_and_what_is_to_be_here() {
    let mut hand = asked(64, 1 << 20);
    let (ours, theirs) = (of(&hand, 64, Home::Here), of(&hand, 64, Home::Peer(1)));
    let serve = |hand: &mut Hand, request, sample| {
        hand.step(Event::Serve {
            request,
            job: 0,
            samples: vec![sample],
            steps: 0,
        });
    };
    serve(&mut hand, 1, ours[0]);
    assert_eq!(source_of(&hand, ours[0]), Some(Source::Bucket));
    hand.land_all();
    assert_eq!(hand.delivered(1), [ours[0]]);
    hand.give_back(1);
    let id = hand.plan.resident_with(ours[0]).expect("kept");
    assert!(hand.plan.residents.get(id).is_kept(), "for whoever asks next");
    serve(&mut hand, 2, theirs[0]);
    assert_eq!(
        hand.refused(2),
        Some((Some(theirs[0]), Failure::Final)),
        "its home is elsewhere"
    );
    // On its way from there: it may be on its way from here, for all that is known.
    hand.want_samples(3, &[theirs[1]]);
    serve(&mut hand, 4, theirs[1]);
    assert_eq!(hand.refused(4), Some((Some(theirs[1]), Failure::Final)));
    hand.land_all();
    serve(&mut hand, 5, theirs[1]);
    assert_eq!(hand.delivered(5), [theirs[1]], "it is here, whoever keeps it");
    serve(&mut hand, 6, 64);
    assert_eq!(hand.refused(6), Some((None, Failure::Final)), "there is no such sample");
}

#[test]
fn a_peer_waits_for_memory_that_nobody_here_needs() {
    // Twelve of 1 KB at once, of which the first hundred are asked for.
    let mut hand = Hand::bare(settings(Policy::Foreload, 12 << 10), &reads(&[1000; 400], 1));
    hand.step(peers(1 << 20, 1));
    hand.start(0, 0, 0, 0);
    hand.want(1, 0, 0);
    let ahead = hand.plan.windows.ahead;
    let unplanned = of(&hand, 400, Home::Here)
        .into_iter()
        .find(|&sample| !hand.is_there(sample))
        .expect("far away");
    hand.step(Event::Serve {
        request: 9,
        job: 0,
        samples: vec![unplanned],
        steps: 0,
    });
    assert!(hand.answer(9).is_none());
    assert_eq!(hand.plan.windows.ahead, ahead, "nothing is put back for it");
    hand.step(Event::Withdraw { request: 9 });
    assert!(hand.plan.requests.guests.is_empty() || hand.plan.requests.next_unplaced(9).is_none());
}

#[test]
fn who_is_overtaken_by_the_bucket_has_failed() {
    let settings = Settings {
        hedge_per_cent: 100,
        ..settings(Policy::Foreload, 1 << 20)
    };
    let mut hand = Hand::bare(settings, &reads(&[1000; 256], 1));
    hand.step(peers(1 << 20, 1));
    let theirs = of(&hand, 256, Home::Peer(1));
    // It learns how long they take.
    for (request, &sample) in theirs[..64].iter().enumerate() {
        hand.want_samples(request as u64 + 1, &[sample]);
        hand.now_ns += 1_000_000;
        hand.land(sample);
        hand.give_back(request as u64 + 1);
    }
    for (request, &sample) in theirs[64..69].iter().enumerate() {
        let request = request as u64 + 100;
        hand.want_samples(request, &[sample]);
        assert_eq!(source_of(&hand, sample), Some(Source::Peer(1)));
        hand.now_ns += 1_000_000_000;
        hand.step(Event::Tick);
        let twin = hand
            .loads()
            .find(|load| load.object == sample && load.hedge)
            .expect("a twin");
        assert_eq!(twin.source, Source::Bucket);
        hand.land_twin(sample);
        assert_eq!(hand.delivered(request), [sample]);
        let Some(Ok((items, _))) = hand.answer(request) else {
            panic!("delivered")
        };
        assert_eq!(items[0].via, Via::Bucket);
        hand.give_back(request);
        hand.fail(sample, Failure::Cancelled);
    }
    assert!(!hand.plan.loads.lanes.of(Source::Peer(1)).is_open(hand.now_ns));
}

#[test]
fn a_group_that_changes_lets_go_of_what_others_keep_now() {
    let mut hand = Hand::new(settings(Policy::Foreload, 64 << 10), &reads(&[1000; 16], 1));
    hand.land_all();
    let kept = hand.plan.residents.kept_samples;
    hand.step(peers(1 << 20, 1));
    let ours = of(&hand, 16, Home::Here).len() as u64;
    assert_eq!((kept, hand.plan.residents.kept_samples), (16, ours));
    assert!(
        (0..16).all(|sample| hand.is_there(sample)),
        "until its memory is needed"
    );
    let (me, members) = (ME, vec![(0, Member { id: ME, bytes: 1 << 20 })]);
    hand.step(Event::Peers { me, members });
    assert!(
        (0..16).all(|block| hand.plan.home_of(Content::block(block)) == Home::Here),
        "alone"
    );
}

/// Others, of which each takes so long for what it is asked, at a pace of a batch each 20 ms; whether each is asked for a sample of the next line.
fn asked_at<const OTHERS: usize>(takes_s: [f64; OTHERS], prepare: impl FnOnce(&mut Hand)) -> [bool; OTHERS] {
    let mut hand = hand(64, 16 << 10);
    let numbers = std::array::from_fn(|at| 1 + at as u16);
    let member = |id| Member { id, bytes: 16 << 10 };
    let others = numbers.map(|number| (number, member(10 + 10 * u64::from(number))));
    let members = [vec![(0, member(ME))], others.to_vec()].concat();
    hand.step(Event::Peers { me: ME, members });
    hand.land_all();
    for at in 0..64u64 {
        hand.plan.windows.of_mut(0).pace(at * 20_000_000);
        for (peer, takes_s) in (1..).zip(takes_s) {
            let lane = hand.plan.loads.lanes.of_mut(Source::Peer(peer));
            lane.estimate.observe(1000, takes_s / 2.0, takes_s);
        }
        hand.plan.loads.lanes.bucket.estimate.observe(1000, 0.002, 0.003);
    }
    prepare(&mut hand);
    let line = hand.plan.windows.line_at(0, 0);
    numbers.map(|peer| {
        let sample = of(&hand, 64, Home::Peer(peer))[0];
        hand.plan.peer_with(Content::block(sample), 1000, line) == Some(peer)
    })
}

#[test]
fn a_peer_that_is_slower_than_the_others_is_not_asked_for_what_comes_too_late() {
    let nothing = |_: &mut Hand| ();
    assert_eq!(asked_at([0.001, 0.001, 0.2], nothing), [true, true, false]);
    assert_eq!(asked_at([0.2, 0.2, 0.2], nothing), [true; 3], "it is the network");
    assert_eq!(
        asked_at([0.001, 0.001, 0.04], nothing),
        [true; 3],
        "that holds nobody up"
    );
    // What was left alone for a while may be slow no more.
    let later = |hand: &mut Hand| {
        hand.now_ns += 2_000_000_000;
        hand.step(Event::Tick);
    };
    assert_eq!(asked_at([0.001, 0.001, 0.2], later), [true; 3]);
}

#[test]
fn a_peer_of_which_much_is_wanted_at_once_is_not_slower_than_others() {
    let queue = |hand: &mut Hand| {
        let lane = hand.plan.loads.lanes.of_mut(Source::Peer(3));
        (0..400).for_each(|number| lane.push(pending(Source::Peer(3), number, 1000)));
    };
    assert_eq!(asked_at([0.01; 3], queue), [true; 3]);
    assert_eq!(
        asked_at([0.01, 0.01, 0.2], queue),
        [true, true, false],
        "and one that is slower still is"
    );
}

#[test]
fn the_only_other_one_is_slow_beside_the_bucket_and_not_for_a_long_queue() {
    let queue = |hand: &mut Hand| {
        let lane = hand.plan.loads.lanes.of_mut(Source::Peer(1));
        (0..1000).for_each(|number| lane.push(pending(Source::Peer(1), number, 1000)));
    };
    assert_eq!(asked_at([0.01], queue), [true]);
    assert_eq!(asked_at([0.04], queue), [false]);
    assert_eq!(asked_at([0.04], |_| ()), [true], "that holds nobody up");
    assert_eq!(asked_at([0.4], |_| ()), [false]);
}

/// Samples of these lengths of which another node keeps all that count, and what is asked of that when all are wanted at once: by bundle, each with its bytes.
fn bundles(hand: &Hand) -> Vec<(Option<u64>, Vec<u64>)> {
    let of_peer = |load: &&Load| load.source == Source::Peer(1);
    let loads: Vec<&Load> = hand.loads().filter(of_peer).collect();
    let together = loads.chunk_by(|one, other| one.bundle.is_some() && one.bundle == other.bundle);
    together
        .map(|some| (some[0].bundle, some.iter().map(|load| load.len).collect()))
        .collect()
}

/// A node with much memory, another one that keeps about half, and nobody who reads ahead.
fn wide(lengths: &[u64]) -> Hand {
    let settings = Settings {
        concurrency: ConcurrencySettings::fixed(1000),
        ..settings(Policy::Foreload, 256 << 20)
    };
    let mut hand = Hand::bare(settings, &reads(lengths, 1));
    hand.step(peers(64 << 20, 1));
    hand
}

#[test]
fn small_samples_that_are_wanted_together_are_asked_for_together_as_many_as_go_into_a_bundle() {
    let mut hand = wide(&[1000; 200]);
    let theirs = of(&hand, 200, Home::Peer(1));
    let depth = hand.plan.settings.peer_depth as usize;
    hand.want_samples(1, &theirs[..depth - 1]);
    let loads = |hand: &Hand| -> Vec<usize> { bundles(hand).iter().map(|(_, lens)| lens.len()).collect() };
    assert_eq!(loads(&hand), [depth - 1]);
    // What comes later waits for nothing.
    hand.want_samples(2, &theirs[depth - 1..60]);
    assert_eq!(loads(&hand), [depth - 1, BUNDLE_LOADS]);
    let numbers: std::collections::BTreeSet<_> = bundles(&hand).iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers.len(), 2);
    // Each is delivered when it is there, whatever becomes of the others.
    hand.want_samples(3, &theirs[..1]);
    hand.land(theirs[0]);
    assert_eq!(hand.delivered(3), [theirs[0]]);
    hand.fail(theirs[1], Failure::Final);
    assert_eq!(source_of(&hand, theirs[1]), Some(Source::Bucket));
    assert_eq!(source_of(&hand, theirs[2]), Some(Source::Peer(1)));
    hand.land_all();
    assert_eq!(hand.delivered(1).len() + hand.delivered(2).len(), 60);
    assert_eq!(hand.plan.peer(1).expect("known").in_flight, 0);
}

#[test]
fn a_bundle_has_so_many_bytes_at_most_and_nothing_large() {
    let loads = |hand: &Hand| -> Vec<usize> { bundles(hand).iter().map(|(_, lens)| lens.len()).collect() };
    let small = SMALL_BYTES - 1;
    let mut hand = wide(&[small; 128]);
    let theirs = of(&hand, 128, Home::Peer(1));
    let most = (BUNDLE_BYTES / small) as usize;
    hand.want_samples(1, &theirs[..2 * most + 1]);
    assert_eq!(
        loads(&hand),
        [most],
        "with so many under way there is no room for one more"
    );
    let large = BUNDLED_BYTES;
    let mut hand = wide(&[large; 64]);
    let theirs = of(&hand, 64, Home::Peer(1));
    hand.want_samples(1, &theirs[..9]);
    assert_eq!(bundles(&hand), vec![(None, vec![large]); 9]);
}

#[test]
fn what_is_not_that_small_goes_along_with_little_else_and_from_a_fast_peer() {
    let loads = |hand: &Hand| -> Vec<usize> { bundles(hand).iter().map(|(_, lens)| lens.len()).collect() };
    let len = SMALL_BYTES + 14_000;
    let mut hand = wide(&[len; 256]);
    let theirs = of(&hand, 256, Home::Peer(1));
    let depth = hand.plan.settings.peer_depth as usize;
    hand.want_samples(1, &theirs[..64]);
    assert_eq!(loads(&hand), vec![3; depth.div_ceil(3)], "96 KiB have room for three");
    // From now on it takes a tenth of a second for each.
    for &sample in &theirs[..64] {
        hand.land_late(sample, 100_000_000);
    }
    hand.want_samples(2, &theirs[64..96]);
    assert_eq!(loads(&hand), vec![1; depth]);
}

#[test]
fn a_bundle_goes_where_there_is_room_for_one_more_load() {
    let mut hand = wide(&[1000; 1200]);
    let theirs = of(&hand, 1200, Home::Peer(1));
    let depth = hand.plan.settings.peer_depth as usize;
    hand.want_samples(1, &theirs[..3]);
    hand.want_samples(2, &theirs[3..500]);
    let found = |hand: &Hand| -> Vec<usize> { bundles(hand).iter().map(|(_, lens)| lens.len()).collect() };
    assert_eq!(found(&hand), [3, BUNDLE_LOADS]);
    for &sample in &theirs[..3 + BUNDLE_LOADS - depth] {
        hand.land(sample);
    }
    assert_eq!(found(&hand), [depth], "as many as there may be");
    hand.land(theirs[3 + BUNDLE_LOADS - depth]);
    assert_eq!(found(&hand), [depth - 1, BUNDLE_LOADS], "a whole one follows");
    let in_flight = hand.plan.peer(1).expect("known").in_flight;
    assert_eq!(in_flight as usize, depth - 1 + BUNDLE_LOADS);
}

#[test]
fn one_request_is_for_one_data_set_and_for_several_jobs() {
    let mut hand = wide(&[1000; 64]);
    let mut other = reads(&[1000; 64], 1);
    other.sets = vec![crate::job::Set::new(
        1,
        std::sync::Arc::new(crate::catalog::Objects(vec![1000; 64])),
    )];
    for (job, reads) in [(1, other), (2, reads(&[1000; 64], 1))] {
        let reads = Box::new(reads);
        hand.step(Event::Join { job, reads });
    }
    // All wait until the first has ended.
    hand.plan.loads.lanes.of_mut(Source::Peer(1)).set_limit(1);
    let first = of(&hand, 64, Home::Peer(1))[0];
    hand.want_samples(1, &[first]);
    for job in [0, 1, 2] {
        let is_theirs = |&own: &u64| {
            let sample = hand.plan.on_node(job, own).expect("the job's");
            own != first && hand.plan.home_of(Content::sample(sample)) == Home::Peer(1)
        };
        let theirs = (0..64).filter(is_theirs);
        let (request, rank) = (10 + u64::from(job), 0);
        let samples = theirs.skip(4 * job as usize).take(4).collect();
        hand.step(Event::WantSamples {
            request,
            job,
            rank,
            samples,
        });
    }
    hand.land(first);
    let mut found = Vec::new();
    loop {
        let Some(bundle) = hand.loads().next().map(|load| load.bundle) else {
            break;
        };
        let loads: Vec<&Load> = hand.loads().filter(|load| load.bundle == bundle).collect();
        let shelves = loads
            .iter()
            .map(|load| hand.plan.library().shelf_of(load.pieces[0].content).name);
        let jobs: std::collections::BTreeSet<u32> = loads.iter().map(|load| load.job).collect();
        found.push((shelves.collect::<std::collections::BTreeSet<u64>>(), jobs, loads.len()));
        let objects: Vec<u64> = loads.iter().map(|load| load.object).collect();
        objects.into_iter().for_each(|object| hand.land(object));
    }
    let of = |shelf, jobs: &[u32], loads| ([shelf].into(), jobs.iter().copied().collect(), loads);
    assert_eq!(found, [of(0, &[0, 2], 8), of(1, &[1], 4)]);
}
