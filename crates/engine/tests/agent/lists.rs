//! Orders that are lists: supplied by a client, or made by the agent.

use super::*;

/// An order whose lists the client supplies, of as many samples.
fn supplied(attach: &mut Attach, length: u64) {
    attach.order.kind = OrderKind::Supplied { length };
    attach.order.global_batch = 5;
}

pub(super) fn supply(job: &Attached, epoch: u32, samples: &[u64]) -> Result<(), String> {
    let call = Call::Supply {
        job: job.job,
        epoch,
        samples: samples.to_vec(),
    };
    match job.client.call(&call, &mut calm()) {
        Ok((Reply::Done, _)) => Ok(()),
        Ok((other, _)) => panic!("{other:?}"),
        Err(ClientError::Trouble(trouble)) => Err(format!("{}: {}", trouble.kind, trouble.message)),
        Err(other) => panic!("{other}"),
    }
}

fn samples_of(job: &Attached, epoch: u32, batch: u64) -> Vec<u64> {
    let want = job.want_batch(0, epoch, batch).expect("sent");
    let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
    release(job, &items);
    items.iter().map(|item| item.sample).collect()
}

#[test]
fn lists_of_one_loader_are_never_those_of_another_with_an_equal_plan() {
    let node = Node::with_linger("img:100x1KB,classes=2,ext=jpg", LONG);
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let (one, other): (Vec<u64>, Vec<u64>) = ((0..10).collect(), (50..60).collect());
    let attach = |word: &str| {
        node.attach(&node.client(), dataset, &index, |a| {
            supplied(a, 10);
            a.session = word.into();
        })
    };
    let first = attach("first");
    supply(&first, 0, &one).expect("taken");
    assert_eq!(samples_of(&first, 0, 0), one[..5]);
    drop(first);
    eventually("nobody is attached", || {
        jobs_of(&node).iter().all(|job| job.clients == 0)
    });
    let second = attach("second");
    assert!(matches!(second.reply, Reply::Attached { joined: false, .. }));
    supply(&second, 0, &other).expect("taken");
    assert_eq!([samples_of(&second, 0, 0), samples_of(&second, 0, 1)].concat(), other);
    drop(second);
    // The same loader goes on with its own job.
    let again = attach("second");
    assert!(matches!(again.reply, Reply::Attached { joined: true, .. }));
    supply(&again, 0, &other).expect("the same list once more");
    drop(again);
    node.retire();
}

#[test]
fn a_list_that_does_not_fit_is_refused_aloud() {
    let node = Node::new("img:100x1KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let job = node.attach(&node.client(), dataset, &index, |a| supplied(a, 10));
    let list: Vec<u64> = (0..10).collect();
    for (wrong, why) in [(vec![1; 9], "9"), (vec![100; 10], "100")] {
        let refused = supply(&job, 0, &wrong).expect_err("refused");
        assert!(refused.starts_with("invalid") && refused.contains(why), "{refused}");
    }
    supply(&job, 0, &list).expect("taken");
    supply(&job, 0, &list).expect("the same list once more");
    let refused = supply(&job, 0, &[7; 10]).expect_err("another list");
    assert!(refused.contains("epoch 0 already has its order"), "{refused}");
    assert_eq!(samples_of(&job, 0, 0), list[..5]);
    drop(job);
    node.end();
}

#[test]
fn lists_of_past_epochs_are_forgotten_and_may_be_supplied_anew() {
    let node = Node::new("img:100x1KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let job = node.attach(&node.client(), dataset, &index, |a| supplied(a, 10));
    let list = |epoch: u64| -> Vec<u64> { (0..10).map(|i| epoch * 10 + i).collect() };
    for epoch in 0..4 {
        supply(&job, epoch, &list(epoch.into())).expect("taken");
        let read = [samples_of(&job, epoch, 0), samples_of(&job, epoch, 1)].concat();
        assert_eq!(read, list(epoch.into()));
    }
    assert!(supply(&job, 2, &list(9)).is_err(), "the pass before may still be read");
    supply(&job, 0, &list(9)).expect("forgotten");
    job.client
        .send(&Ask::Start {
            job: job.job,
            rank: 0,
            epoch: 0,
            batch: 0,
        })
        .expect("sent");
    assert_eq!([samples_of(&job, 0, 0), samples_of(&job, 0, 1)].concat(), list(9));
    drop(job);
    node.end();
}

#[test]
fn any_epoch_may_be_begun_again_also_where_its_list_is_made() {
    let node = Node::new("img:64x1KB-20KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let torch = |a: &mut Attach| a.order.kind = OrderKind::TorchDistributed;
    let spec = OrderSpec {
        kind: OrderKind::TorchDistributed,
        ..spec(&index)
    };
    let jobs = [1, 2].map(|world| {
        node.attach(&node.another(), dataset, &index, |a| {
            torch(a);
            a.session = format!("{world} ranks");
            (a.world, a.ranks) = (world, (0..world).collect());
        })
    });
    let start = |job: &Attached, rank, epoch, batch| {
        let start = Ask::Start {
            job: job.job,
            rank,
            epoch,
            batch,
        };
        job.client.send(&start).expect("sent");
    };
    for (epoch, from) in [(0, 0), (1, 0), (1, 0), (0, 0), (0, 2), (7, 1), (6, 3), (6, 0), (0, 0)] {
        start(&jobs[0], 0, epoch, from);
        read_epoch_from(&node, &jobs[0], &index, "img", &spec, epoch, from);
    }
    // One rank of two jumps back while the other stays, and both get what they ask for.
    let order = Order::new(&spec).expect("order");
    let split = Split::weighted(&order, 2).expect("split");
    for (rank, epoch, batch) in [
        (0, 5, 3),
        (1, 5, 3),
        (0, 2, 0),
        (1, 5, 2),
        (0, 4, 3),
        (1, 0, 0),
        (0, 2, 1),
    ] {
        start(&jobs[1], rank, epoch, batch);
        let want = jobs[1].want_batch(rank, epoch, batch).expect("sent");
        let (items, _) = jobs[1].delivered(want, None, &mut calm()).expect("delivered");
        let read = order.epoch(epoch).expect("epoch");
        let expected: Vec<u64> = split
            .batch_positions(batch, rank)
            .map(|at| read.sample_at(at))
            .collect();
        assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), expected);
        release(&jobs[1], &items);
    }
    drop(jobs);
    node.end();
}
