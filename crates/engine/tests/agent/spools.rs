//! What a scan of shards read serves the first epoch: each byte leaves the bucket once, whoever reads it, and nothing else is delivered.

use super::*;

const RULE: &str = "t:3x120x20000-60000,tar";

/// Bytes of all shards, in parts of 4 MiB.
fn parts(index: &Index) -> u64 {
    let sizes = (0..index.objects()).map(|object| index.object(object).expect("an object").size);
    sizes.map(|size| size.div_ceil(4 << 20)).sum()
}

#[test]
fn the_first_epoch_over_new_shards_asks_the_bucket_for_nothing_more() {
    // With memory for everything, for a few samples, and with threads that fetch.
    for (ram, threads) in [(64, None), (3, None), (3, Some(3))] {
        let node = Node::new(RULE);
        node.bucket.reset_counts();
        let (dataset, index) = node.open("s3://bench/t", false).expect("opened");
        let scanned = gets(&node);
        assert_eq!(scanned, parts(&index));
        let job = node.attach(&node.client(), dataset, &index, |a| {
            a.ram_bytes = ram << 20;
            a.io_threads = threads;
            a.epochs = Some(1);
        });
        read_epoch(&node, &job, &index, "t", &spec(&index), 0);
        let stats = node.stats(job.job);
        assert_eq!((gets(&node), stats.requests, stats.requested_bytes), (scanned, 0, 0));
        assert!(stats.spooled_bytes >= (0..index.len()).map(|at| index.length(at)).sum::<u64>());
        drop(job);
        node.end();
    }
}

#[test]
fn later_epochs_have_what_the_budgets_keep_and_ask_the_bucket_for_the_rest() {
    let node = Node::new(RULE);
    let (dataset, index) = node.open("s3://bench/t", false).expect("opened");
    let job = node.attach(&node.client(), dataset, &index, |a| a.ram_bytes = 4 << 20);
    let scanned = gets(&node);
    for epoch in 0..3 {
        read_epoch(&node, &job, &index, "t", &spec(&index), epoch);
    }
    assert!(gets(&node) > scanned, "4 MB of memory don't hold 14 MB");
    drop(job);
    node.end();
}

#[test]
fn all_jobs_over_new_shards_take_from_what_was_read_once() {
    let node = Node::new(RULE);
    let (dataset, index) = node.open("s3://bench/t", false).expect("opened");
    let scanned = gets(&node);
    let choice: Vec<u64> = (0..index.len()).step_by(3).collect();
    let (part, of_part) = node.chosen(dataset, &choice);
    let attach = |dataset, index: &Index, session: &str| {
        let session = session.to_owned();
        node.attach(&node.another(), dataset, index, |a| {
            a.session = session;
            a.epochs = Some(1);
            a.ram_bytes = 4 << 20;
        })
    };
    let (one, two) = (attach(dataset, &index, "one"), attach(part, &of_part, "two"));
    read_epoch(&node, &one, &index, "t", &spec(&index), 0);
    read_epoch(&node, &two, &of_part, "t", &spec(&of_part), 0);
    assert_eq!(gets(&node), scanned);
    drop((one, two));
    node.end();
}

#[test]
fn a_saved_index_needs_no_scan_and_reads_from_the_bucket() {
    let node = Node::new(RULE);
    let (_, index) = node.open("s3://bench/t", false).expect("opened");
    let (bucket, directory) = node.end();
    let node = Node::over(bucket, directory);
    node.bucket.reset_counts();
    let (dataset, again) = node.open("s3://bench/t", false).expect("opened");
    assert_eq!((gets(&node), again.digest()), (0, index.digest()));
    let job = node.attach(&node.client(), dataset, &again, |a| a.epochs = Some(1));
    read_epoch(&node, &job, &again, "t", &spec(&again), 0);
    assert!(gets(&node) > 0 && node.stats(job.job).spooled_bytes == 0);
    drop(job);
    node.end();
}

#[test]
fn a_scan_through_faults_hands_on_what_is_right() {
    let node = Node::new(RULE);
    node.fail(&[
        "kind=status,status=503,share=0.3,attempts=1",
        "kind=truncate,share=0.3,attempts=1",
        "kind=reset,share=0.3,at=0.6,attempts=1",
    ]);
    let (dataset, index) = node.open("s3://bench/t", false).expect("opened");
    let job = node.attach(&node.client(), dataset, &index, |a| a.epochs = Some(1));
    read_epoch(&node, &job, &index, "t", &spec(&index), 0);
    assert_eq!(node.stats(job.job).requests, 0);
    drop(job);
    node.end();
}

#[test]
fn whoever_looks_or_reads_a_part_leaves_the_rest_to_those_after_him() {
    let node = Node::new(RULE);
    let (dataset, index) = node.open("s3://bench/t", false).expect("opened");
    let scanned = gets(&node);
    let (part, of_part) = node.chosen(dataset, &(0..36).collect::<Vec<_>>());
    let attach = |dataset, index: &Index, session: &str| {
        let session = session.to_owned();
        node.attach(&node.another(), dataset, index, |a| {
            a.session = session;
            a.ram_bytes = 4 << 20;
            a.staging_bytes = Some(1 << 20);
        })
    };
    // A tenth of the samples, twice: the second epoch may need the bucket for what its memory doesn't hold.
    let few = attach(part, &of_part, "few");
    for epoch in 0..2 {
        read_epoch(&node, &few, &of_part, "t", &spec(&of_part), epoch);
    }
    drop(few);
    let job = attach(dataset, &index, "all");
    for epoch in 0..3 {
        let want = job.want_batch(0, epoch, 0).expect("sent");
        let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
        release(&job, &items);
    }
    let before = gets(&node);
    read_epoch(&node, &job, &index, "t", &spec(&index), 3);
    assert_eq!(gets(&node), before, "of {scanned} requests of the scan");
    drop(job);
    node.end();
}
