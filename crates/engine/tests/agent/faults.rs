//! What goes wrong at the source or on a disk: it is named or mended, and no other bytes are delivered.

use super::*;

#[test]
fn faults_of_the_bucket_change_nothing_that_is_delivered() {
    let node = Node::new("img:300x1KB-40KB,classes=3,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    node.fail(&[
        "kind=status,status=503,share=0.1,attempts=1",
        "kind=truncate,share=0.1,attempts=1",
        "kind=reset,share=0.1,at=0.3,attempts=1",
        "kind=short,share=0.05,attempts=1",
    ]);
    let job = node.attach(&node.client(), dataset, &index, |a| a.ram_bytes = 4 << 20);
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    read_epoch(&node, &job, &index, "img", &spec(&index), 1);
    assert!(node.stats(job.job).retries > 10);
    drop(job);
    node.end();
}

#[test]
fn what_the_bucket_was_asked_is_counted_also_where_it_failed() {
    let node = Node::new("img:300x1KB-40KB,classes=3,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    node.fail(&[
        "kind=status,status=503,share=0.1,attempts=1",
        "kind=truncate,share=0.1,attempts=1",
        "kind=status,status=404,matching=00000007",
    ]);
    node.bucket.reset_counts();
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.ram_bytes = 4 << 20;
        a.epochs = Some(1);
        a.hedge_per_cent = 0;
    });
    for batch in 0..19 {
        let want = job.want_batch(0, 0, batch).expect("sent");
        if let Ok((items, _)) = job.delivered(want, None, &mut calm()) {
            release(&job, &items);
        }
    }
    eventually("all that the bucket was asked is counted, and nothing else", || {
        let stats = node.stats(job.job);
        stats.failures > 0 && stats.requests + stats.retries == gets(&node)
    });
    drop(job);
    node.end();
}

#[test]
fn a_changed_object_is_reported_as_such_and_never_delivered() {
    let node = Node::new("img:64x1KB-2KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    node.fail(&["kind=changed,matching=00000005"]);
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    let mut refused = None;
    for batch in 0..4 {
        let want = job.want_batch(0, 0, batch).expect("sent");
        match job.delivered(want, None, &mut calm()) {
            Ok((items, _)) => release(&job, &items),
            Err(ClientError::Trouble(trouble)) => refused = Some(trouble),
            Err(other) => panic!("{other}"),
        }
    }
    let trouble = refused.expect("one batch holds it");
    assert_eq!(trouble.kind, "changed", "{}", trouble.message);
    assert!(trouble.message.contains("00000005"), "{}", trouble.message);
    drop(job);
    node.end();
}

#[test]
fn altered_bytes_are_caught_by_the_index_checksums_and_fetched_again() {
    let node = Node::new("img:100x1KB-20KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", true).expect("opened with checksums");
    assert!(index.crc32c(0).is_some());
    node.fail(&["kind=flip,share=0.2,attempts=1"]);
    node.bucket.reset_counts();
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    assert!(node.stats(job.job).failures > 3);
    drop(job);
    node.end();
}

#[test]
fn altered_parts_of_large_samples_are_caught_too_and_all_of_it_is_fetched_again() {
    let node = Node::new("big:5x20MB");
    let (dataset, index) = node.open("s3://bench/big", true).expect("opened with checksums");
    for nth in [2, 9, 14] {
        node.bucket
            .add_fault(Fault::parse(&format!("kind=flip,nth={nth}")).expect("a fault"));
    }
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.ram_bytes = 260 << 20;
        a.order.global_batch = 2;
    });
    let spec = OrderSpec {
        global_batch: 2,
        ..spec(&index)
    };
    read_epoch(&node, &job, &index, "big", &spec, 0);
    let stats = node.stats(job.job);
    assert!(stats.failures >= 1, "{stats:?}");
    drop(job);
    node.end();
}

#[test]
fn a_record_that_is_damaged_on_disk_is_fetched_again() {
    let node = Node::new("img:200x30KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let directory = node.directory.path().join("tier");
    let disk = DiskShare {
        directory: directory.clone(),
        capacity_bytes: 64 << 20,
        pinned: None,
    };
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.ram_bytes = 3 << 20;
        a.disks = vec![disk];
    });
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    eventually("writes end", || node.stats(job.job).written_samples > 90);
    for file in std::fs::read_dir(&directory).expect("tier").flatten() {
        use std::os::unix::fs::FileExt;
        let len = file.metadata().expect("file").len();
        if len > 100_000 {
            let opened = std::fs::OpenOptions::new()
                .write(true)
                .open(file.path())
                .expect("segment");
            (50_000..len)
                .step_by(200_000)
                .for_each(|at| opened.write_all_at(b"damage", at).expect("written"));
        }
    }
    read_epoch(&node, &job, &index, "img", &spec(&index), 1);
    assert!(node.stats(job.job).quarantined > 0);
    drop(job);
    node.end();
}

#[test]
fn all_who_wait_for_a_sample_hear_why_it_failed() {
    let node = Node::new("img:64x1KB-2KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    node.fail(&["kind=status,status=404,matching=00000005"]);
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    let bad = (0..64).find(|&sample| {
        let object = index.sample(sample).expect("sample").object;
        index.object(object).expect("object").key.contains("00000005")
    });
    let bad = bad.expect("one of them");
    let wants = [(); 3].map(|()| job.want_samples(0, vec![bad, 1]).expect("sent"));
    for want in wants {
        match job.delivered(want, None, &mut calm()) {
            Err(ClientError::Trouble(trouble)) => {
                assert_eq!(
                    (trouble.kind.as_str(), trouble.sample),
                    ("not-found", Some(bad)),
                    "{}",
                    trouble.message
                );
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
    drop(job);
    node.end();
}

#[test]
fn a_get_that_hangs_is_overtaken_by_its_twin() {
    let node = Node::new("img:600x10KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    // The 200th GET never answers; without a twin the batch would wait for the idle time-out of 10 s.
    node.fail(&["kind=hang,nth=200"]);
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.concurrency = ConcurrencySettings::fixed(16)
    });
    let begun = Instant::now();
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(node.stats(job.job).hedges_won >= 1);
    drop(job);
    node.end();
}

#[test]
fn a_store_that_is_too_slow_for_so_many_requests_gets_fewer_also_of_those_that_are_sent_again() {
    // The first 64 are there after 3 s, and cut off after 1; the store goes on with what was cut off.
    let node = Node::new("img:150x100KB,classes=2,ext=jpg");
    let mut open = node.opening("s3://bench/img", false);
    open.storage_options.insert("timeout".to_owned(), "1".to_owned());
    let (dataset, index) = opened(node.client().call(&Call::Open(open), &mut calm()).expect("opened"));
    node.bucket.set_profile(Profile {
        first_byte_ms: 20.0,
        total_bytes_per_s: 2_000_000,
        ..Profile::default()
    });
    let job = node.attach(&node.client(), dataset, &index, |a| {
        (a.ram_bytes, a.epochs) = (32 << 20, Some(1));
    });
    let begun = Instant::now();
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    let (took, sent) = (begun.elapsed(), gets(&node));
    println!("{took:?} for 7.5 s of bytes, {sent} GETs for 150 objects");
    assert!(took < Duration::from_secs(20) && sent < 300, "{took:?}, {sent} GETs");
    drop(job);
    node.end();
}

#[test]
fn an_outage_of_the_store_is_waited_out() {
    for fault in ["kind=status,status=503", "kind=status,status=500", "kind=reset"] {
        let node = Node::new("img:200x10KB,classes=2,ext=jpg");
        let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
        let job = node.attach(&node.client(), dataset, &index, |_| ());
        let want = job.want_batch(0, 0, 0).expect("sent");
        let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
        release(&job, &items);
        node.fail(&[fault]);
        let mut back = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| read_epoch_from(&node, &job, &index, "img", &spec(&index), 0, 1));
            std::thread::sleep(Duration::from_secs(3));
            node.bucket.clear_faults();
            back = Instant::now();
        });
        // Nobody sleeps through its end.
        assert!(
            back.elapsed() < Duration::from_millis(1200),
            "{fault}: {:?}",
            back.elapsed()
        );
        let again = spec(&index);
        job.client
            .send(&Ask::Start {
                job: job.job,
                rank: 0,
                epoch: 1,
                batch: 0,
            })
            .expect("sent");
        read_epoch(&node, &job, &index, "img", &again, 1);
        drop(job);
        node.end();
    }
}

#[test]
fn a_missing_bucket_and_wrong_keys_are_told_apart() {
    let node = Node::new("img:10x1KB,classes=2,ext=jpg");
    let kind = |result: Result<(u32, Index), ClientError>| match result {
        Err(ClientError::Trouble(trouble)) => trouble.kind,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    };
    assert_eq!(kind(node.open("s3://nobody/img", false)), "not-found");
    assert_eq!(kind(node.open("s3://bench/nothing-there", false)), "not-found");
    let keys = node.bucket.keys();
    node.bucket.set_keys(foreload_testkit::bucket::Keys {
        secret_key: "another".into(),
        ..keys.clone()
    });
    let open = Open {
        url: "s3://bench/img".into(),
        storage_options: [
            ("endpoint_url", node.bucket.endpoint()),
            ("access_key_id", keys.access_key),
            ("secret_access_key", "wrong".into()),
            ("region", "us-east-1".into()),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect(),
        ..Open::default()
    };
    match node.client().call(&Call::Open(open), &mut calm()) {
        Err(ClientError::Trouble(trouble)) => assert_eq!(trouble.kind, "denied", "{}", trouble.message),
        other => panic!("{:?}", other.map(|(reply, _)| reply)),
    }
    node.end();
}

#[test]
fn a_data_set_that_was_written_anew_is_noticed_when_it_is_opened_again() {
    let node = Node::new("img:64x1KB-2KB,classes=2,ext=jpg");
    let (_, index) = node.open("s3://bench/img", false).expect("opened");
    let (bucket, directory) = node.end();
    let node = Node::over(bucket, directory);
    node.open("s3://bench/img", false).expect("it is as it was");
    let (bucket, directory) = node.end();
    let key = index.object(63).expect("an object").key;
    assert!(bucket.touch("bench", &format!("img/{key}")));
    let node = Node::over(bucket, directory);
    let Err(ClientError::Trouble(trouble)) = node.open("s3://bench/img", false) else {
        panic!("it was replaced")
    };
    assert_eq!(trouble.kind, "changed");
    assert!(trouble.message.contains(&key) && trouble.message.contains("refresh=True"));
    let open = Open {
        refresh: true,
        ..node.opening("s3://bench/img", false)
    };
    let (dataset, index) = opened(
        node.client()
            .call(&Call::Open(open), &mut calm())
            .expect("listed again"),
    );
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    drop(job);
    node.end();
}
