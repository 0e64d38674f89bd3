use super::super::hand::{Hand, reads, settings};
use super::super::peers::Home;
use crate::action::{Event, Source};
use crate::arena::reserved_bytes;
use crate::blocks::Content;
use crate::catalog::Objects;
use crate::error::Error;
use crate::homes::Member;
use crate::job::{Reads, Set};
use crate::order::Order;
use crate::placement::frequency::Ranking;
use crate::policy::Policy;
use crate::settings::TierSettings;
use crate::spec::{OrderKind, OrderSpec};
use std::sync::Arc;

const SAMPLES: u64 = 64;
const LEN: u64 = 1000;
const IDS: [u64; 2] = [10, 20];

/// Two nodes with a rank each that read in another order in each of five epochs; this one has rank `rank`.
fn counted(rank: u32) -> Reads {
    let reads = reads(&[LEN; SAMPLES as usize], 2);
    let spec = OrderSpec {
        kind: OrderKind::Keyed,
        ..reads.order.spec().clone()
    };
    let order = Order::new(&spec).expect("an order");
    let reads = Reads {
        order,
        ranks: vec![rank],
        epochs: Some(5),
        ..reads
    };
    let split = reads.check().expect("a split");
    let ranking = Ranking::new(&reads.order, &split, &IDS, 5, |_, _| Ok::<_, Error>(())).expect("a ranking");
    Reads {
        ranking: Some(Arc::new(ranking)),
        ..reads
    }
}

fn hand(rank: u32, disk: u64) -> Hand {
    let tier = TierSettings {
        capacity_bytes: disk,
        pinned: None,
    };
    let settings = crate::settings::Settings {
        tiers: if disk > 0 { vec![tier] } else { Vec::new() },
        staging_bytes: Some(16 << 10),
        ..settings(Policy::Frequency, 32 << 10)
    };
    Hand::bare(settings, &counted(rank))
}

fn grouped(rank: u32, kept: [u64; 2]) -> Hand {
    let mut hand = hand(rank, 0);
    let member = |at: usize| {
        (
            at as u16,
            Member {
                id: IDS[at],
                bytes: kept[at] * reserved_bytes(LEN),
            },
        )
    };
    hand.step(Event::Peers {
        me: IDS[rank as usize],
        members: vec![member(0), member(1)],
    });
    hand
}

fn homes(hand: &Hand) -> Vec<Home> {
    (0..SAMPLES)
        .map(|block| hand.plan.home_of(Content::block(block)))
        .collect()
}

#[test]
fn each_node_keeps_what_it_reads_most_often_and_knows_what_the_other_one_keeps() {
    let kept = [40, 30];
    let reads = counted(0);
    let ranking = reads.ranking.as_ref().expect("a ranking");
    let top = |node: usize| {
        ranking.of(IDS[node])[..kept[node] as usize]
            .iter()
            .map(|&sample| u64::from(sample))
    };
    let told = [0, 1].map(|me| grouped(me, kept));
    for block in 0..SAMPLES {
        let found = [0, 1].map(|me| top(me).any(|it| it == block));
        let homes = [0, 1].map(|me| told[me].plan.home_of(Content::block(block)));
        for me in [0, 1] {
            assert_eq!(
                told[me].plan.is_ours(Content::block(block)),
                found[me],
                "block {block} on node {me}"
            );
        }
        match found {
            [true, false] => assert_eq!(homes, [Home::Here, Home::Peer(0)]),
            [false, true] => assert_eq!(homes, [Home::Peer(1), Home::Here]),
            [false, false] => assert_eq!(homes, [Home::Nowhere; 2]),
            // Of two that keep it one asks the other.
            [true, true] => assert!(
                homes == [Home::Here, Home::Peer(0)] || homes == [Home::Peer(1), Home::Here],
                "{homes:?}"
            ),
        }
    }
    let both = top(0).filter(|&it| top(1).any(|other| other == it)).count();
    assert!(
        both > 0,
        "some samples are on both nodes: that is what coverage first avoids"
    );
}

#[test]
fn a_node_asks_the_other_one_for_what_that_keeps_and_the_bucket_for_the_rest_and_keeps_its_own() {
    let mut hand = grouped(0, [16, 64]);
    let homes = homes(&hand);
    hand.start(0, 0, 0, 0);
    for load in hand.loads() {
        let expected = match homes[load.object as usize] {
            Home::Peer(peer) => Source::Peer(peer),
            Home::Here | Home::Nowhere => Source::Bucket,
        };
        assert_eq!(load.source, expected, "sample {}", load.object);
    }
    let mut request = 0;
    for epoch in 0..2 {
        for batch in 0..SAMPLES / 4 {
            request += 1;
            hand.read(request, epoch, batch);
        }
    }
    let kept = |block: u64| {
        let id = hand.plan.residents.find(Content::block(block));
        id.is_some_and(|id| hand.plan.residents.get(id).is_kept())
    };
    for (block, home) in (0..).zip(homes) {
        let is_ours = hand.plan.is_ours(Content::block(block));
        assert!(is_ours || !kept(block), "sample {block}");
        assert!(is_ours || home != Home::Here, "sample {block}");
    }
    let (of_bucket, of_peer): (Vec<u64>, Vec<u64>) = (0..SAMPLES)
        .filter(|&block| kept(block))
        .partition(|&block| hand.plan.home_of(Content::block(block)) == Home::Here);
    assert!(
        !of_bucket.is_empty() && !of_peer.is_empty(),
        "{of_bucket:?} {of_peer:?}"
    );
}

#[test]
fn alone_it_keeps_its_most_frequent_the_first_of_them_in_memory() {
    // Memory has room for sixteen beside what passes through, and the disk for eight.
    let disk = 8 * super::super::tiers::record_bytes(LEN);
    let mut hand = hand(0, disk);
    hand.start(0, 0, 0, 0);
    let reads = counted(0);
    let ranking = reads.ranking.as_ref().expect("a ranking").of(IDS[0]).to_vec();
    let in_memory = ((16 << 10) / reserved_bytes(LEN)) as usize;
    let mut written = Vec::new();
    for batch in 0..SAMPLES / 4 {
        hand.read(batch, 0, batch);
        written.extend(hand.written());
    }
    for (place, &sample) in ranking.iter().enumerate() {
        let block = u64::from(sample);
        let is_for_memory = hand.plan.is_for_memory(Content::block(block));
        let is_ours = hand.plan.is_ours(Content::block(block));
        match place {
            _ if place < in_memory => assert!(is_ours && is_for_memory, "{place}"),
            _ if is_ours => assert!(!is_for_memory, "{place}"),
            _ => assert!(place >= in_memory + 7, "{place}"),
        }
    }
    assert!(written.iter().all(|&block| hand.plan.is_ours(Content::block(block))));
}

#[test]
fn where_nothing_was_counted_all_is_as_frequent() {
    let settings = settings(Policy::Frequency, 64 << 10);
    let mut hand = Hand::bare(
        settings,
        &Reads {
            ranking: None,
            ..counted(0)
        },
    );
    assert!(homes(&hand).iter().all(|&home| home == Home::Here));
    let member = |at: usize| {
        (
            at as u16,
            Member {
                id: IDS[at],
                bytes: 1 << 20,
            },
        )
    };
    hand.step(Event::Peers {
        me: IDS[0],
        members: vec![member(0), member(1)],
    });
    let homes = homes(&hand);
    assert!(homes.contains(&Home::Here) && homes.contains(&Home::Peer(1)) && !homes.contains(&Home::Nowhere));
}

/// Two data sets, of which each node reads one: `rank` the first or the second.
fn of_two_sets(rank: u32) -> Hand {
    let half = SAMPLES / 2;
    let reads = counted(rank);
    let spec = OrderSpec {
        kind: OrderKind::Strided { stride: half },
        ..reads.order.spec().clone()
    };
    let order = Order::new(&spec).expect("an order");
    let set = |name| Set::new(name, Arc::new(Objects(vec![LEN; half as usize])));
    let reads = Reads {
        order,
        sets: vec![set(0), set(1)],
        ..reads
    };
    let split = reads.check().expect("a split");
    let ranking = Ranking::new(&reads.order, &split, &IDS, 5, |_, _| Ok::<_, Error>(())).expect("a ranking");
    let settings = crate::settings::Settings {
        staging_bytes: Some(16 << 10),
        ..settings(Policy::Frequency, 32 << 10)
    };
    Hand::bare(
        settings,
        &Reads {
            ranking: Some(Arc::new(ranking)),
            ..reads
        },
    )
}

#[test]
fn memory_is_for_what_a_node_reads_whichever_data_set_that_is_of() {
    let room = (16 << 10) / reserved_bytes(LEN);
    let member = |at: usize| {
        let bytes = 16 << 10;
        (at as u16, Member { id: IDS[at], bytes })
    };
    for rank in [0, 1] {
        let mut hand = of_two_sets(rank);
        hand.step(Event::Peers {
            me: IDS[rank as usize],
            members: vec![member(0), member(1)],
        });
        hand.start(0, rank, 0, 0);
        for batch in 0..SAMPLES / 4 {
            let request = batch + 1;
            hand.want_of((0, rank), request, 0, batch);
            hand.land_all();
            hand.give_back(request);
        }
        assert_eq!(hand.plan.residents.kept_samples, room, "rank {rank}");
        // What it keeps is claimed and nothing besides, whatever the budget was meanwhile.
        hand.step(Event::Budget { ram_bytes: 24 << 10 });
        hand.step(Event::Budget { ram_bytes: 32 << 10 });
        let own = Content::block(u64::from(rank) * SAMPLES / 2);
        assert_eq!(hand.plan.residents.claimed_by_others(own), 0);
        let other = Content::block(u64::from(1 - rank) * SAMPLES / 2);
        let missing = 16 * reserved_bytes(LEN) - hand.plan.residents.kept_bytes;
        assert_eq!(hand.plan.residents.claimed_by_others(other), missing);
    }
}
