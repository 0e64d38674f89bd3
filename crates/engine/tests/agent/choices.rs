//! Some samples of a data set: one index for all choices of it, one list for all who choose alike, and the bytes of the whole.

use super::*;
use foreload_engine::streams::digest_of;
use std::collections::BTreeSet;
use std::os::fd::AsFd;

fn call(dataset: u32, samples: &[u64]) -> Call {
    Call::Subset {
        dataset,
        samples: list(samples),
    }
}

/// Which memory a descriptor is of.
fn memory(fd: impl AsFd) -> u64 {
    let file = std::fs::File::from(rustix::io::dup(fd).expect("another"));
    std::os::unix::fs::MetadataExt::ino(&file.metadata().expect("known"))
}

fn refused(client: &Client, call: &Call) -> String {
    match client.call(call, &mut calm()) {
        Err(ClientError::Trouble(trouble)) => format!("{}: {}", trouble.kind, trouble.message),
        other => panic!("{:?}", other.map(|(reply, _)| reply)),
    }
}

#[test]
fn choices_share_the_index_and_equal_ones_the_list_of_the_first() {
    let node = Node::new("img:90x1KB-9KB,classes=3,ext=jpg");
    let (whole, index) = node.open("s3://bench/img", false).expect("opened");
    let again = Call::Open(node.opening("s3://bench/img", false));
    let shared = memory(&node.client().call(&again, &mut calm()).expect("opened").1[0]);
    let (first, second) = (node.another(), node.another());
    let samples = [70, 3, 3, 15, 88, 0];
    let ours = call(whole, &samples);
    let Call::Subset { samples: laid, .. } = &ours else {
        unreachable!()
    };
    let answer = |client: &Client, call: &Call| {
        let (reply, fds) = client.call(call, &mut calm()).expect("chosen");
        let memories: Vec<u64> = fds.iter().map(memory).collect();
        (memories, opened((reply, fds)))
    };
    let (memories, (number, chosen)) = answer(&first, &ours);
    assert_eq!(
        memories,
        [shared, memory(laid.fd().expect("laid down"))],
        "nothing is copied"
    );
    // Who has the same list in other memory is given the first one.
    let (again, (same, other)) = answer(&second, &call(whole, &samples));
    assert_eq!((again, same, other.digest()), (memories, number, chosen.digest()));
    assert_eq!((chosen.len(), chosen.objects()), (6, 5));
    assert_eq!(chosen.digest(), chosen.alone().expect("made").digest());
    // Its maker goes; the other reads it.
    drop((first, ours, chosen));
    let job = node.attach(&second, same, &other, |_| ());
    for epoch in 0..2 {
        read_epoch(&node, &job, &other, "img", &spec(&other), epoch);
    }
    // A choice of a choice is one of the whole.
    let (memories, (_, part)) = answer(&second, &call(same, &[5, 1, 4]));
    assert_eq!(memories[0], shared);
    assert_eq!(part.numbers().expect("a choice").iter().collect::<Vec<_>>(), [0, 3, 88]);
    let direct = index.choose([0, 3, 88].into_iter().collect()).expect("chosen");
    assert_eq!(part.digest(), direct.digest());
    drop((job, second));
    node.retire();
}

#[test]
fn a_choice_of_nothing_opens_and_a_number_that_is_no_sample_is_named() {
    let node = Node::new("img:20x1KB,classes=2,ext=jpg");
    let (whole, _) = node.open("s3://bench/img", false).expect("opened");
    let client = node.another();
    let (_, none) = opened(client.call(&call(whole, &[]), &mut calm()).expect("chosen"));
    assert!(none.is_empty() && none.objects() == 0);
    let (few, _) = opened(client.call(&call(whole, &[4, 9]), &mut calm()).expect("chosen"));
    let said = refused(&client, &call(whole, &[3, 20, 99]));
    assert!(
        said.contains("invalid: ") && said.contains("there is no sample 20: the data set has 20"),
        "{said}"
    );
    let said = refused(&client, &call(whole, &[3, u64::MAX]));
    assert!(said.contains("no sample 18446744073709551615"), "{said}");
    let said = refused(&client, &call(few, &[2]));
    assert!(said.contains("there is no sample 2: the data set has 2"), "{said}");
    drop(client);
    node.retire();
}

#[test]
fn a_job_over_several_choices_counts_their_index_once() {
    let node = Node::new("img:60x1KB-9KB,classes=3,ext=jpg");
    let (whole, index) = node.open("s3://bench/img", false).expect("opened");
    let [odd, even]: [Vec<u64>; 2] = [1, 0].map(|first| (first..60).step_by(2).collect());
    let parts = [
        (whole, index.clone()),
        node.chosen(whole, &odd),
        node.chosen(whole, &even),
    ];
    let digests = [0, 1, 2, 1].map(|at: usize| Digest::from_bytes(parts[at].1.digest()));
    let job = node.attach(&node.another(), whole, &index, |a| {
        a.more = [1, 2, 1].map(|at: usize| parts[at].0).to_vec();
        (a.order.dataset, a.order.samples) = (digest_of(&digests), 150);
    });
    let file = index.as_bytes().len() as u64;
    assert_eq!(node.stats(job.job).index_bytes, 2 * file + 4 * 60);
    let all: Vec<u64> = (0..150).collect();
    let want = job.want_samples(0, all).expect("sent");
    let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
    let numbers = (0..60).chain(odd.clone()).chain(even).chain(odd);
    let mut seen = BTreeSet::new();
    for (item, number) in items.iter().zip(numbers) {
        assert!(
            job.bytes(item).expect("inside") == node.truth(&index, "img", number),
            "sample {}",
            item.sample
        );
        assert_eq!(Some(item.label), index.label(number));
        seen.insert(item.sample);
    }
    assert_eq!(seen.len(), 150);
    release(&job, &items);
    drop(job);
    node.retire();
}
