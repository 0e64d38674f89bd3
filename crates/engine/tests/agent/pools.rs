//! Several jobs on one agent: what they read alike they hold and fetch once, and what one of them does is no business of another.

use super::*;
use foreload_engine::streams::digest_of;

fn seeded(index: &Index, seed: u64) -> OrderSpec {
    OrderSpec { seed, ..spec(index) }
}

/// A job of a name, with a seed.
fn named(node: &Node, dataset: u32, index: &Index, name: &str, seed: u64) -> Attached {
    node.attach(&node.another(), dataset, index, |a| {
        a.session = name.into();
        a.order.seed = seed;
    })
}

#[test]
fn two_jobs_over_one_data_set_fetch_it_once_and_hold_one_copy() {
    for (rule, url, prefix) in [
        ("img:300x1KB-60KB,classes=3,ext=jpg", "s3://bench/img", "img"),
        ("shards:6x100x1KB-30KB,tar", "s3://bench/shards", "shards"),
    ] {
        let node = Node::new(rule);
        let (dataset, index) = node.open(url, false).expect("opened");
        let total: u64 = (0..index.len()).map(|sample| index.length(sample)).sum();
        let (one, two) = (
            named(&node, dataset, &index, "one", 3),
            named(&node, dataset, &index, "two", 4),
        );
        assert_eq!(jobs_of(&node).len(), 2);
        for epoch in 0..2 {
            std::thread::scope(|scope| {
                for (job, seed) in [(&one, 3), (&two, 4)] {
                    let (node, index) = (&node, &index);
                    scope.spawn(move || read_epoch(node, job, index, prefix, &seeded(index, seed), epoch));
                }
            });
        }
        let all = [&one, &two].map(|job| node.stats(job.job));
        let asked: u64 = all.iter().map(|stats| stats.requested_bytes).sum();
        let hedged: u64 = all.iter().map(|stats| stats.hedges).sum();
        assert_eq!(all[0].samples, all[1].samples);
        if prefix == "img" && hedged == 0 {
            assert_eq!(asked, total, "each byte once, for both");
        }
        let used = node.gauge(one.job, "used_bytes");
        assert!(
            used <= total + total / 4 + 64 * index.len(),
            "{used} bytes hold {total}"
        );
        assert_eq!(used, node.gauge(two.job, "used_bytes"), "it is the same memory");
        drop((one, two));
        node.end();
    }
}

#[test]
fn a_job_finds_what_another_one_has_brought_whatever_its_seed_and_its_ranks() {
    let node = Node::with_linger("img:200x1KB-60KB,classes=2,ext=jpg", LONG);
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let first = named(&node, dataset, &index, "first", 3);
    read_epoch(&node, &first, &index, "img", &seeded(&index, 3), 0);
    drop(first);
    eventually("nobody is attached", || {
        jobs_of(&node).iter().all(|job| job.clients == 0)
    });
    let then = gets(&node);
    let second = node.attach(&node.another(), dataset, &index, |a| {
        a.session = "second".into();
        a.order.seed = 9;
        (a.world, a.ranks) = (2, vec![0, 1]);
    });
    assert_eq!(jobs_of(&node).len(), 1, "the first made room");
    for rank in 0..2 {
        let want = second.want_batch(rank, 0, 0).expect("sent");
        let (items, _) = second.delivered(want, None, &mut calm()).expect("delivered");
        for item in &items {
            assert!(second.bytes(item).expect("inside") == node.truth(&index, "img", item.sample));
        }
        release(&second, &items);
    }
    assert_eq!(gets(&node), then, "nothing is fetched again");
    drop(second);
    node.retire();
}

#[test]
fn a_mixture_and_a_job_over_one_of_its_streams_share_it() {
    let node = Node::with(["one:100x20KB,classes=2,ext=jpg", "two:100x20KB,classes=2,ext=jpg"]);
    let (one, first) = node.open("s3://bench/one", false).expect("opened");
    let (two, second) = node.open("s3://bench/two", false).expect("opened");
    let digests = [&second, &first].map(|index| Digest::from_bytes(index.digest()));
    let mixture = |a: &mut Attach| {
        a.more = vec![one];
        a.session = "mixture".into();
        (a.order.dataset, a.order.samples) = (digest_of(&digests), 200);
    };
    let alone = named(&node, one, &first, "alone", 5);
    let both = node.attach(&node.another(), two, &second, mixture);
    read_epoch(&node, &alone, &first, "one", &seeded(&first, 5), 0);
    let all: Vec<u64> = (0..200).collect();
    let want = both.want_samples(0, all).expect("sent");
    let (items, _) = both.delivered(want, None, &mut calm()).expect("delivered");
    for item in &items {
        let truth = match item.sample {
            sample if sample < 100 => node.truth(&second, "two", sample),
            sample => node.truth(&first, "one", sample - 100),
        };
        assert!(both.bytes(item).expect("inside") == truth, "sample {}", item.sample);
    }
    release(&both, &items);
    assert_eq!(sent(&node, ["one", "two"]), [2_000_000; 2], "each byte once");
    drop((alone, both));
    node.end();
}

#[test]
fn a_job_that_all_have_left_loads_nothing_more_beside_one_that_goes_on() {
    let node = Node::lingering(
        ["one:2000x20KB,classes=2,ext=jpg", "two:2000x20KB,classes=2,ext=jpg"],
        LONG,
    );
    let (one, first) = node.open("s3://bench/one", false).expect("opened");
    let (two, second) = node.open("s3://bench/two", false).expect("opened");
    node.bucket.set_profile(Profile {
        total_bytes_per_s: 8_000_000,
        ..Profile::cloud()
    });
    let leaves = named(&node, one, &first, "leaves", 3);
    leaves.want_batch(0, 0, 0).expect("sent");
    let stays = named(&node, two, &second, "stays", 3);
    stays.want_batch(0, 0, 0).expect("sent");
    let of = || sent(&node, ["one", "two"]);
    within(Duration::from_secs(60), "both are read", || {
        of().iter().all(|&bytes| bytes > 1_000_000)
    });
    drop(leaves);
    eventually("nobody is attached to it", || {
        jobs_of(&node).iter().any(|job| job.clients == 0)
    });
    // What was in flight ends; at this rate that takes a moment.
    std::thread::sleep(Duration::from_millis(1500));
    let then = of();
    within(Duration::from_secs(60), "the other goes on", || {
        of()[1] > then[1] + 4_000_000
    });
    assert_eq!(of()[0], then[0], "nothing is loaded for nobody");
    drop(stays);
    node.retire();
}

#[test]
fn memory_is_what_jobs_bring_and_goes_with_what_they_alone_read() {
    let node = Node::with_linger("one:400x20KB,classes=2,ext=jpg", Duration::from_millis(200));
    let (one, first) = node.open("s3://bench/one", false).expect("opened");
    let samples: Vec<u64> = (0..200).collect();
    let (two, second) = node.chosen(one, &samples);
    let stays = named(&node, one, &first, "stays", 3);
    read_epoch(&node, &stays, &first, "one", &seeded(&first, 3), 0);
    let alone = node.stats(stays.job).memory_bytes;
    let ends = named(&node, two, &second, "ends", 3);
    let want = ends.want_samples(0, samples.clone()).expect("sent");
    let (items, _) = ends.delivered(want, None, &mut calm()).expect("delivered");
    assert_eq!(items.len(), 200);
    assert!(node.stats(stays.job).memory_bytes > alone + 3_000_000);
    release(&ends, &items);
    drop((items, ends));
    eventually("the other's memory is free again", || {
        node.stats(stays.job).memory_bytes <= alone + 500_000
    });
    read_epoch(&node, &stays, &first, "one", &seeded(&first, 3), 1);
    drop(stays);
    node.end();
}

#[test]
fn jobs_that_share_a_disk_write_and_read_each_block_once() {
    let node = Node::new("img:300x40KB-60KB,classes=3,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let disk = DiskShare {
        directory: node.directory.path().join("tier"),
        capacity_bytes: 64 << 20,
        pinned: None,
    };
    let job = |name: &str, seed| {
        node.attach(&node.another(), dataset, &index, |a| {
            a.session = name.into();
            a.order.seed = seed;
            a.ram_bytes = 5 << 20;
            a.disks = vec![disk.clone()];
        })
    };
    let (one, two) = (job("one", 3), job("two", 4));
    for epoch in 0..2 {
        read_epoch(&node, &one, &index, "img", &seeded(&index, 3), epoch);
        read_epoch(&node, &two, &index, "img", &seeded(&index, 4), epoch);
    }
    let all = [&one, &two].map(|job| node.stats(job.job));
    let requests: u64 = all.iter().map(|stats| stats.requests - stats.hedges).sum();
    assert_eq!(requests, 300, "each sample once, for both: {all:?}");
    assert!(all[1].disk_hits > 100, "{:?}", all[1]);
    drop((one, two));
    node.end();
}

#[test]
fn what_a_dead_client_of_two_jobs_held_and_waited_for_comes_back() {
    let node = Node::new("img:200x20KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let little = |name: &str, seed| {
        node.attachment(dataset, &index, |a| {
            a.session = name.into();
            a.order.seed = seed;
            (a.ram_bytes, a.batch_bytes) = (800_000, 1 << 16);
        })
    };
    let attached =
        |client: &Arc<Client>, name, seed| Attached::new(client, little(name, seed), &mut calm()).expect("attached");
    let watcher = node.another();
    let stays = [("one", 3), ("two", 4)].map(|(name, seed)| attached(&watcher, name, seed));
    for _ in 0..5 {
        let client = node.another();
        let (one, two) = (attached(&client, "one", 3), attached(&client, "two", 4));
        // Attached once more, so that letting go of these says nothing: the end of the connection does.
        for again in [little("one", 3), little("two", 4)] {
            client
                .call(&Call::Attach(Box::new(again)), &mut calm())
                .expect("attached");
        }
        let held: Vec<Vec<u64>> = (0..5).map(|at| (at * 12..at * 12 + 12).collect()).collect();
        for samples in held {
            let want = one.want_samples(0, samples).expect("sent");
            one.delivered(want, None, &mut calm()).expect("delivered");
        }
        // There is no memory for this before some of that comes back, and what is asked for next, of either job, waits behind it, though it is there.
        // All of them have somebody who does nothing but wait: what is to be copied, as it is where so much is held, is delivered to nobody else.
        for (job, samples) in [(&one, 100..130), (&one, 0..5), (&two, 5..10)] {
            let id = job.want_samples(0, samples.collect()).expect("sent");
            client.send(&Ask::Await { job: job.job, id }).expect("sent");
        }
        eventually("all wait", || {
            let waiting = [&one, &two].map(|job| node.gauge(job.job, "requests"));
            (node.gauge(one.job, "leases"), waiting) == (60, [2, 1])
        });
        drop((one, two, client));
        eventually("all of it comes back", || {
            node.gauge(stays[0].job, "leases") == 0 && node.gauge(stays[1].job, "requests") == 0
        });
    }
    drop((stays, watcher));
    node.end();
}

#[test]
fn a_job_that_all_have_left_loads_nothing_new_and_goes_on_with_the_next_one() {
    let count = 3000;
    let node = Node::with_linger(&format!("img:{count}x10KB,classes=2,ext=jpg"), LONG);
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let attach = || {
        let few = |a: &mut Attach| a.concurrency = ConcurrencySettings::fixed(8);
        node.attach(&node.client(), dataset, &index, few)
    };
    let job = attach();
    let number = job.job;
    node.bucket.reset_counts();
    let want = job.want_batch(0, 0, 0).expect("sent");
    let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
    release(&job, &items);
    drop(job);
    eventually("nobody is attached", || {
        jobs_of(&node).iter().all(|job| job.clients == 0)
    });
    eventually("what is in flight ends", || node.gauge(number, "in_flight") == 0);
    let then = gets(&node);
    assert!(then < count, "all was loaded for nobody");
    let job = attach();
    assert_eq!(
        (job.job, gets(&node)),
        (number, then),
        "the same job, and nothing was loaded meanwhile"
    );
    read_epoch_from(&node, &job, &index, "img", &spec(&index), 0, 1);
    let stats = node.stats(number);
    assert_eq!(stats.requests - stats.hedges, count, "it goes on where it was");
    drop(job);
    node.retire();
}

#[test]
fn a_job_that_makes_room_ends_with_its_loads_and_its_memory() {
    let node = Node::with_linger("img:500x10KB,classes=2,ext=jpg", LONG);
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    node.fail(&["kind=hang"]);
    node.bucket.reset_counts();
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    job.want_batch(0, 0, 0).expect("sent");
    eventually("loads are in flight", || gets(&node) > 8);
    assert!(node.gauge(job.job, "used_bytes") > 0);
    drop(job);
    eventually("nobody is attached", || {
        jobs_of(&node).iter().all(|job| job.clients == 0)
    });
    let other = node.attach(&node.client(), dataset, &index, |a| a.order.seed = 4);
    assert_eq!(jobs_of(&node).len(), 1);
    let then = gets(&node);
    eventually("its memory is free, though no load was answered", || {
        node.gauge(other.job, "used_bytes") == 0 && node.gauge(other.job, "in_flight") == 0
    });
    assert_eq!(gets(&node), then, "nothing is loaded for it any more");
    node.bucket.clear_faults();
    let spec = OrderSpec {
        seed: 4,
        ..spec(&index)
    };
    read_epoch(&node, &other, &index, "img", &spec, 0);
    drop(other);
    node.retire();
}

#[test]
fn who_takes_a_job_over_counts_from_zero_and_status_tells_jobs_apart() {
    let node = Node::with_linger("img:100x1KB,classes=2,ext=jpg", LONG);
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    let first = node.stats(job.job);
    assert_eq!((first.samples, first.bucket_reads), (100, 100));
    let of = job.job;
    drop(job);
    let client = node.client();
    client.flush();
    let word = |a: &mut Attach| a.session = "another loader".into();
    let job = node.attach(&client, dataset, &index, word);
    assert_eq!(job.job, of, "taken over");
    assert_eq!((node.stats(of).samples, node.stats(of).requests), (0, 0));
    read_epoch(&node, &job, &index, "img", &spec(&index), 1);
    let second = node.stats(of);
    assert_eq!((second.samples, second.ram_hits, second.requests), (100, 100, 0));
    assert!(
        (100_000..=second.gauges.expect("gauges")["used_bytes"].as_u64().expect("bytes"))
            .contains(&second.memory_bytes)
    );
    let other = node.attach(&client, dataset, &index, |a| {
        a.session = "a third".into();
        (a.order.seed, a.world, a.ranks) = (7, 4, vec![1, 2]);
    });
    let Ok((Reply::Status { jobs, .. }, _)) = client.call(&Call::Status, &mut calm()) else {
        panic!("no status")
    };
    let told: Vec<_> = jobs
        .iter()
        .map(|job| (job.order.as_str(), job.seed, &job.ranks[..], job.world))
        .collect();
    assert_eq!(told, [("keyed", 3, &[0][..], 1), ("keyed", 7, &[1, 2][..], 4)]);
    assert!(jobs.iter().all(|job| job.processes == [std::process::id()]));
    drop((job, other, client));
    node.retire();
}

/// Bytes that the bucket sent for the objects below each prefix, at one moment.
fn sent(node: &Node, prefixes: [&str; 2]) -> [u64; 2] {
    let objects = node.bucket.counts().objects;
    prefixes.map(|prefix| {
        let below = format!("bench/{prefix}/");
        let of = objects.iter().filter(|(name, _)| name.starts_with(&below));
        of.map(|(_, counts)| counts.bytes).sum()
    })
}

#[test]
fn two_equal_jobs_share_their_bucket_equally_though_one_came_later() {
    let node = Node::with(["one:6000x20KB,classes=2,ext=jpg", "two:6000x20KB,classes=2,ext=jpg"]);
    let opened = ["one", "two"].map(|name| {
        let (dataset, index) = node.open(&format!("s3://bench/{name}"), false).expect("opened");
        (name, dataset, index)
    });
    node.bucket.set_profile(Profile {
        total_bytes_per_s: 12_000_000,
        ..Profile::cloud()
    });
    // All fits memory, so that each reads ahead whatever becomes of its consumer.
    let start = |(name, dataset, index): &(&str, u32, Index)| {
        let job = node.attach(&node.client(), *dataset, index, |a| {
            a.session = (*name).into();
            a.ram_bytes = 160 << 20;
        });
        job.want_batch(0, 0, 0).expect("sent");
        job
    };
    let names = ["one", "two"];
    let one = start(&opened[0]);
    // So many bytes take seconds, and longer on a busy machine.
    let minute = Duration::from_secs(60);
    within(minute, "the first has the bucket for itself", || {
        sent(&node, names)[0] > 8_000_000
    });
    let two = start(&opened[1]);
    eventually("the second has begun", || sent(&node, names)[1] > 0);
    let before = sent(&node, names);
    let since = || {
        let now = sent(&node, names);
        [now[0] - before[0], now[1] - before[1]]
    };
    within(minute, "both go on", || since().iter().sum::<u64>() > 20_000_000);
    let [ours, theirs] = since();
    let share = ours as f64 / (ours + theirs) as f64;
    assert!((0.45..0.55).contains(&share), "the first gets {share} of the bytes");
    drop((one, two));
    node.end();
}

#[test]
fn a_job_keeps_the_limit_it_was_given_and_one_that_ends_gives_its_share_back() {
    let node = Node::with(["one:4000x20KB,classes=2,ext=jpg", "two:4000x20KB,classes=2,ext=jpg"]);
    let (one, first) = node.open("s3://bench/one", false).expect("opened");
    let (two, second) = node.open("s3://bench/two", false).expect("opened");
    node.bucket.set_profile(Profile {
        total_bytes_per_s: 4_000_000,
        ..Profile::cloud()
    });
    let start = |dataset, index: &Index, name: &str, concurrency| {
        let job = node.attach(&node.client(), dataset, index, |a| {
            a.session = name.into();
            a.ram_bytes = 160 << 20;
            a.concurrency = concurrency;
            // Jobs that differ in this have nothing in common but the source.
            a.timeout_s = if name == "one" { 30.0 } else { 31.0 };
        });
        job.want_batch(0, 0, 0).expect("sent");
        job
    };
    let limit = |job: &Attached| node.gauge(job.job, "in_flight_limit");
    let jobs = || match node.client().call(&Call::Status, &mut calm()).expect("status") {
        (Reply::Status { jobs, .. }, _) => jobs.len(),
        other => panic!("{:?}", other.0),
    };
    let fixed = start(one, &first, "one", ConcurrencySettings::fixed(8));
    eventually("alone it has what it asked for", || limit(&fixed) == 8);
    let other = start(two, &second, "two", ConcurrencySettings::fixed(24));
    eventually("each has what it insists on", || {
        (limit(&fixed), limit(&other)) == (8, 24)
    });
    drop(fixed);
    eventually("the first ends", || jobs() == 1);
    assert_eq!(limit(&other), 24);
    drop(other);
    eventually("the second ends", || jobs() == 0);
    // This source is full with fewer than 32.
    let adaptive = ConcurrencySettings {
        most: 32,
        ..ConcurrencySettings::default()
    };
    let stays = start(one, &first, "one", adaptive);
    eventually("alone it has all", || limit(&stays) == 32);
    let leaves = start(two, &second, "two", adaptive);
    eventually("together they share", || limit(&stays) < 32 && limit(&leaves) < 32);
    drop(leaves);
    eventually("the other ends", || jobs() == 1);
    assert_eq!(limit(&stays), 32, "alone again it has all again");
    drop(stays);
    node.end();
}

#[test]
fn several_data_sets_are_one_jobs_samples_and_disk_and_labels_are_their_own() {
    let rules = ["img:30x1KB-9KB,classes=3,ext=jpg", "more:5x1KB-9KB,classes=5,ext=jpg"];
    let node = Node::lingering(rules, Duration::from_millis(300));
    let (first, one) = node.open("s3://bench/img", true).expect("opened");
    let (second, other) = node.open("s3://bench/more", true).expect("opened");
    let parts = [(&one, "img", 0), (&other, "more", 30), (&one, "img", 35)];
    let digest = streams::digest_of(&parts.map(|(index, ..)| Digest::from_bytes(index.digest())));
    let mixed = |a: &mut Attach| {
        a.more = vec![second, first];
        a.order.dataset = digest;
        a.order.samples = 65;
        let share = |samples, weight| Share { samples, weight };
        a.order.kind = OrderKind::Mixture {
            streams: vec![share(30, 2), share(5, 3), share(30, 1)],
            shuffle: true,
            length: 120,
        };
        a.disks = vec![DiskShare {
            directory: node.directory.path().join("disk"),
            capacity_bytes: 64 << 20,
            pinned: None,
        }];
    };
    let expect_refused = |change: &dyn Fn(&mut Attach)| {
        let attach = node.attachment(first, &one, |a| {
            mixed(a);
            change(a);
        });
        let refused = Attached::new(&node.client(), attach, &mut calm())
            .err()
            .expect("refused");
        assert!(refused.to_string().contains("another data set"), "{refused}");
    };
    expect_refused(&|a| a.more = vec![first, second]);
    expect_refused(&|a| a.more = vec![second]);
    let job = node.attach(&node.client(), first, &one, mixed);
    let order = Order::new(&node.attachment(first, &one, mixed).order).expect("order");
    for epoch in 0..3 {
        let epoch = order.epoch(epoch).expect("epoch");
        for batch in 0..order.batches() {
            let want = job.want_batch(0, epoch.epoch(), batch).expect("sent");
            let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
            let positions = 16 * batch..epoch.positions().min(16 * (batch + 1));
            let expected: Vec<u64> = positions.map(|position| epoch.sample_at(position)).collect();
            assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), expected);
            for item in &items {
                let (index, prefix, begins) = *parts.iter().rfind(|part| part.2 <= item.sample).expect("a stream");
                let sample = item.sample - begins;
                assert!(
                    job.bytes(item).expect("inside") == node.truth(index, prefix, sample),
                    "sample {} has other bytes",
                    item.sample
                );
                assert_eq!(Some(item.label), index.label(sample));
            }
            release(&job, &items);
        }
    }
    drop(job);
    node.retire();
}
