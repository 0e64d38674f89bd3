//! Lists that are as long as a data set is: millions of samples, each a byte of one file.

use super::lists::supply;
use super::*;
use foreload_store::format::Format;
use foreload_store::index::{IndexBuilder, NewObject, NewSample};

/// As JSON, their numbers would not fit a message.
const SAMPLES: u64 = 9_000_000;

/// What sample `number` holds.
fn byte_of(number: u64) -> u8 {
    (number % 251) as u8
}

/// An agent that doesn't keep the lists for a replay.
fn node(samples: u64) -> Node {
    let directory = Arc::new(tempfile::tempdir().expect("directory"));
    let settings = Settings {
        synthetic: vec!["img:300x40KB,classes=3,ext=jpg".parse().expect("a rule")],
        ..Settings::default()
    };
    let bucket = Arc::new(Bucket::start(settings).expect("bucket"));
    let bytes: Vec<u8> = (0..samples).map(byte_of).collect();
    std::fs::write(directory.path().join("all.bin"), bytes).expect("written");
    let mut builder = IndexBuilder::new(directory.path().to_str().expect("text"), Format::Manifest);
    let object = NewObject {
        key: "all.bin",
        size: samples,
        ..NewObject::default()
    };
    let object = builder.object(object).expect("added");
    for offset in 0..samples {
        let sample = NewSample {
            object,
            offset,
            length: 1,
            ..NewSample::default()
        };
        builder.sample(sample).expect("added");
    }
    let index = builder.finish().expect("built");
    std::fs::write(directory.path().join("all.flx"), index.as_bytes()).expect("written");
    Node::start(bucket, directory, Duration::from_millis(300))
}

fn open(node: &Node) -> (u32, Index) {
    let path = |name: &str| node.directory.path().join(name).to_str().expect("text").to_owned();
    let call = Call::Open(Open {
        index: Some(path("all.flx")),
        ..Open {
            url: node.directory.path().to_str().expect("text").to_owned(),
            ..Open::default()
        }
    });
    opened(node.client().call(&call, &mut calm()).expect("opened"))
}

/// Compares a batch of sixteen with a list of samples, by their bytes.
fn compare(job: &Attached, epoch: u32, batch: u64, list: impl Fn(u64) -> u64, bytes_of: impl Fn(u64) -> Vec<u8>) {
    let want = job.want_batch(0, epoch, batch).expect("sent");
    let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
    let expected: Vec<u64> = (16 * batch..16 * batch + 16).map(list).collect();
    assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), expected);
    for item in &items {
        assert_eq!(job.bytes(item).expect("inside"), bytes_of(item.sample));
    }
    release(job, &items);
}

#[test]
fn lists_of_millions_of_samples_are_chosen_supplied_and_attached_with() {
    let node = node(SAMPLES);
    let (dataset, index) = open(&node);
    assert_eq!(index.len(), SAMPLES);

    // Chosen: the data set the other way round.
    let back = |number: u64| SAMPLES - 1 - number;
    let samples: Vec<u64> = (0..SAMPLES).map(back).collect();
    let call = Call::Subset {
        dataset,
        samples: super::list(&samples),
    };
    assert!(serde_json::to_string(&samples).expect("JSON").len() > foreload_engine::protocol::MAX_FRAME);
    let (turned, chosen) = opened(node.client().call(&call, &mut calm()).expect("chosen"));
    assert_eq!(chosen.len(), SAMPLES);
    for number in [0, 1, 4_711, SAMPLES - 1] {
        assert_eq!(chosen.sample(number).expect("there").offset, back(number));
    }
    let sequential = |a: &mut Attach| a.order.kind = OrderKind::Sequential;
    let job = node.attach(&node.client(), turned, &chosen, sequential);
    compare(&job, 0, 3, |at| at, |sample| vec![byte_of(back(sample))]);
    drop(job);

    // Supplied: the list of an epoch.
    let list = |at: u64| (at * 7 + 3) % SAMPLES;
    let samples: Vec<u64> = (0..SAMPLES).map(list).collect();
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.order.kind = OrderKind::Supplied { length: SAMPLES };
    });
    supply(&job, 4, &samples).expect("taken");
    let last = SAMPLES / 16 - 1;
    job.client
        .send(&Ask::Start {
            job: job.job,
            rank: 0,
            epoch: 4,
            batch: last,
        })
        .expect("sent");
    compare(&job, 4, last, list, |number| vec![byte_of(number)]);
    drop(job);

    // Attached with: one list for all epochs.
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.order.kind = OrderKind::Explicit { list: samples.into() };
    });
    for batch in 0..3 {
        compare(&job, 0, batch, list, |number| vec![byte_of(number)]);
    }
    drop(job);
    node.retire();
}

#[test]
fn what_is_too_large_for_a_message_is_named_and_nobody_is_cut_off() {
    let node = Node::new("img:100x1KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    match job.want_samples(0, vec![1; 9_000_000]) {
        Err(ClientError::TooLarge { what, bytes }) => {
            assert_eq!(what, "a request for 9000000 samples");
            assert!(bytes > 72_000_000);
        }
        other => panic!("{other:?}"),
    }
    // The answer would be too large.
    let want = job.want_samples(0, vec![1; 2_000_000]).expect("sent");
    match job.delivered(want, None, &mut calm()) {
        Err(ClientError::Trouble(trouble)) => assert!(trouble.message.contains("2000000 samples"), "{trouble:?}"),
        other => panic!("{other:?}"),
    }
    let attach = node.attachment(dataset, &index, |a| a.order.global_batch = 2_000_000);
    match Attached::new(&node.client(), attach, &mut calm()) {
        Err(ClientError::Trouble(trouble)) => assert!(trouble.message.contains("2000000 samples"), "{trouble:?}"),
        other => panic!("{:?}", other.map(|attached| attached.reply.clone())),
    }
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    drop(job);
    node.end();
}

/// Reads batches of a small job over and over until told to stop; answers with the longest time between two of them, and how many came.
fn read_on(job: &Attached, stop: &std::sync::atomic::AtomicBool) -> (Duration, u32) {
    let (mut longest, mut count, mut last) = (Duration::ZERO, 0, Instant::now());
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let want = job.want_samples(0, vec![u64::from(count) % 100]).expect("sent");
        let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
        release(job, &items);
        (longest, count) = (longest.max(last.elapsed()), count + 1);
        // A step of a fast trainer.
        std::thread::sleep(Duration::from_millis(1));
        last = Instant::now();
    }
    (longest, count)
}

/// Does something long for one client while another one reads: no batch of that one waits for all of it.
fn beside<T>(job: &Attached, what: &str, long: impl FnOnce() -> T) -> T {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_on(job, &stop));
        let begun = Instant::now();
        let done = long();
        let took = begun.elapsed();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let (longest, count) = reading.join().expect("read");
        eprintln!("{what}: {took:?}, beside it {count} batches, the slowest after {longest:?}");
        assert!(
            longest < took / 2 && count >= 10,
            "{what}: {longest:?} of {took:?}, {count} batches"
        );
        done
    })
}

#[test]
fn while_something_long_is_done_for_one_client_another_is_served() {
    let node = node(SAMPLES / 3);
    std::fs::create_dir(node.directory.path().join("few")).expect("made");
    for number in 0..100 {
        std::fs::write(
            node.directory.path().join(format!("few/{number:03}.bin")),
            [number; 100],
        )
        .expect("written");
    }
    let reader = node.another();
    let few = Call::Open(Open {
        url: node.directory.path().join("few").to_str().expect("text").to_owned(),
        ..Open::default()
    });
    let (few, few_index) = opened(reader.call(&few, &mut calm()).expect("opened"));
    let small = node.attach(&reader, few, &few_index, |_| ());

    let rows: String = (0..400_000).map(|at| format!("all.bin,{at},1\n")).collect();
    let manifest = node.directory.path().join("rows.csv");
    std::fs::write(&manifest, format!("object,offset,length\n{rows}")).expect("written");
    let call = Call::Open(Open {
        url: manifest.to_str().expect("text").to_owned(),
        ..Open::default()
    });
    let (_, listed) = opened(beside(&small, "building an index", || {
        node.client().call(&call, &mut calm()).expect("built")
    }));
    assert_eq!(listed.len(), 400_000);
    let (dataset, index) = open(&node);
    // The few over and over again: each sample is in another object than those beside it.
    let samples: Vec<u64> = (0..SAMPLES / 3).map(|number| number % 100).collect();
    let call = Call::Subset {
        dataset: few,
        samples: super::list(&samples),
    };
    let (many, many_index) = opened(beside(&small, "choosing samples", || {
        node.client().call(&call, &mut calm()).expect("chosen")
    }));
    let disk = |a: &mut Attach| {
        a.disks = vec![DiskShare {
            directory: node.directory.path().join("disk"),
            capacity_bytes: 1 << 30,
            pinned: None,
        }];
        a.ram_bytes = 9 << 20;
    };
    let (third, third_index) = node.open("s3://bench/img", false).expect("opened");
    let filled = node.attach(&node.client(), third, &third_index, disk);
    read_epoch(&node, &filled, &third_index, "img", &spec(&third_index), 0);
    eventually("something is on disk", || node.stats(filled.job).written_samples > 0);
    let job = beside(&small, "attaching, with a disk to look into", || {
        node.attach(&node.client(), dataset, &index, |a| {
            disk(a);
            a.order.kind = OrderKind::Sequential;
        })
    });
    compare(&job, 0, 0, |at| at, |number| vec![byte_of(number)]);
    drop((job, filled));
    torchs_order(&node, &small, many, &many_index);
    drop((small, reader));
    node.retire();
}

/// Torch's order is a list for each epoch, made when it is come to; those of the epoch that is read and of the next are held.
fn torchs_order(node: &Node, small: &Attached, dataset: u32, index: &Index) {
    let kind = OrderKind::TorchRandom {
        draws: foreload_plan::spec::TorchDraws::SamplerOnly,
    };
    let job = node.attach(&node.client(), dataset, index, |a| {
        a.order.kind = kind.clone();
        (a.ram_bytes, a.batch_bytes) = (1 << 20, 1 << 16);
    });
    let bytes_of = |sample: u64| vec![(sample % 100) as u8; 100];
    assert_eq!(node.stats(job.job).order_bytes, 0);
    let Reply::Attached { warnings, .. } = &job.reply else {
        panic!("{:?}", job.reply)
    };
    let warns = |warning: &String| warning.contains("lists of the epoch that is read and of the next, 48 MB beside");
    assert!(warnings.iter().any(warns), "{warnings:?}");
    let order = Order::new(&OrderSpec { kind, ..spec(index) }).expect("order");
    let start = |epoch, batch| {
        let (job, rank) = (job.job, 0);
        let ask = Ask::Start {
            job,
            rank,
            epoch,
            batch,
        };
        node.client().send(&ask).expect("sent");
    };
    let (far, last) = (1_000_000, index.len() / 16 - 1);
    let expected = order.epoch(far).expect("epoch");
    beside(small, "reading from an epoch of torch's order", || {
        start(far, last - 1);
        compare(&job, far, last - 1, |at| expected.sample_at(at), bytes_of);
    });
    // A number for each position, and a position for each sample.
    let list_bytes = 8 * index.len();
    for (epoch, batch) in [(far, last), (far + 1, 0), (far + 1, last), (far + 2, 0)] {
        if (epoch, batch) == (far + 1, last) {
            start(epoch, batch);
        }
        let expected = order.epoch(epoch).expect("epoch");
        compare(&job, epoch, batch, |at| expected.sample_at(at), bytes_of);
        let held = node.stats(job.job).order_bytes;
        assert!(held <= 2 * list_bytes, "epoch {epoch}, batch {batch}: {held}");
        // An epoch that has just ended is held no more.
        assert!(
            batch == last || held >= list_bytes,
            "epoch {epoch}, batch {batch}: {held}"
        );
    }
    start(3, 7);
    let expected = order.epoch(3).expect("epoch");
    compare(&job, 3, 7, |at| expected.sample_at(at), bytes_of);
    assert_eq!(node.stats(job.job).order_bytes, list_bytes);
}
