//! The agent with real clients, a real S3 server and real disks: what is delivered, what it costs, and what comes back.
//!
//! Every test ends with the agent comparing its decisions with a replay ([`Node::end`]).

#[path = "agent/actors.rs"]
mod actors;
#[path = "agent/long.rs"]
mod long;
#[path = "agent/pools.rs"]
mod pools;

use foreload_engine::agent::{AgentSettings, run};
use foreload_engine::calls::{Attach, Call, DiskShare, JobStatus, Open, Reply, Stats};
use foreload_engine::client::{Attached, Client, ClientError, Place};
use foreload_engine::protocol::{Ask, Sent};
use foreload_engine::slots::Mapping;
use foreload_engine::streams;
use foreload_plan::Digest;
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::order::Order;
use foreload_plan::policy::Policy;
use foreload_plan::spec::{OrderKind, OrderSpec, Share, Tail};
use foreload_plan::split::Split;
use foreload_store::Index;
use foreload_testkit::bucket::{Bucket, Class, Fault, Profile, Settings};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A bucket, an agent in a thread of this process, and a client of it.
struct Node {
    bucket: Arc<Bucket>,
    directory: Arc<tempfile::TempDir>,
    agent: Option<JoinHandle<io::Result<()>>>,
    place: Place,
    client: Option<Arc<Client>>,
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn calm() -> impl FnMut() -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    move || {
        assert!(Instant::now() < end, "nothing came for a minute");
        true
    }
}

impl Node {
    fn new(rule: &str) -> Self {
        Node::with([rule])
    }

    /// Over a bucket with several sets of objects.
    fn with<const N: usize>(rules: [&str; N]) -> Self {
        Node::lingering(rules, Duration::from_millis(300))
    }

    /// One whose jobs wait so long for somebody else; [`Node::retire`] ends that.
    fn with_linger(rule: &str, linger: Duration) -> Self {
        Node::lingering([rule], linger)
    }

    fn lingering<const N: usize>(rules: [&str; N], linger: Duration) -> Self {
        let settings = Settings {
            synthetic: rules.map(|rule| rule.parse().expect("a rule")).into(),
            ..Settings::default()
        };
        Node::start(
            Arc::new(Bucket::start(settings).expect("bucket")),
            Arc::new(tempfile::tempdir().expect("directory")),
            linger,
        )
    }

    /// An agent of its own over a bucket and disks that may have served another.
    fn over(bucket: Arc<Bucket>, directory: Arc<tempfile::TempDir>) -> Self {
        Node::start(bucket, directory, Duration::from_millis(300))
    }

    fn start(bucket: Arc<Bucket>, directory: Arc<tempfile::TempDir>, linger: Duration) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let socket = directory.path().join(format!(
            "{}.sock",
            COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        ));
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("socket");
        let cache_dir = directory.path().join("cache");
        let settings = AgentSettings {
            socket: socket.clone(),
            cache_dir: cache_dir.clone(),
            linger,
            record: true,
        };
        let agent = std::thread::spawn(move || run(settings, listener));
        let place = Place {
            socket,
            cache_dir,
            program: PathBuf::from("/nowhere"),
            linger: Duration::ZERO,
        };
        let client = Client::connect(&place, &mut calm()).expect("client");
        Node {
            bucket,
            directory,
            agent: Some(agent),
            place,
            client: Some(client),
        }
    }

    fn client(&self) -> Arc<Client> {
        Arc::clone(self.client.as_ref().expect("connected"))
    }

    fn another(&self) -> Arc<Client> {
        Client::connect(&self.place, &mut calm()).expect("client")
    }

    fn opening(&self, url: &str, checksum: bool) -> Open {
        let keys = self.bucket.keys();
        let storage_options = [
            ("endpoint_url", self.bucket.endpoint()),
            ("access_key_id", keys.access_key),
            ("secret_access_key", keys.secret_key),
            ("region", "us-east-1".to_owned()),
        ];
        let storage_options = storage_options.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        Open {
            url: url.into(),
            storage_options,
            checksum,
            ..Open::default()
        }
    }

    fn open(&self, url: &str, checksum: bool) -> Result<(u32, Index), ClientError> {
        let open = self.opening(url, checksum);
        let (reply, fds) = self.client().call(&Call::Open(open), &mut calm())?;
        let Reply::Opened {
            dataset, index_bytes, ..
        } = reply
        else {
            panic!("{reply:?}")
        };
        let map = Mapping::new(fds[0].as_fd(), index_bytes, false).expect("mapped");
        Ok((
            dataset,
            Index::from_bytes(bytes::Bytes::from_owner(map)).expect("index"),
        ))
    }

    /// Some samples of a data set, as one of its own.
    fn chosen(&self, dataset: u32, samples: &[u64]) -> (u32, Index) {
        let call = Call::Subset {
            dataset,
            samples: samples.to_vec(),
        };
        match self.client().call(&call, &mut calm()).expect("chosen") {
            (
                Reply::Opened {
                    dataset, index_bytes, ..
                },
                fds,
            ) => {
                let map = Mapping::new(fds[0].as_fd(), index_bytes, false).expect("mapped");
                let index = Index::from_bytes(bytes::Bytes::from_owner(map)).expect("index");
                (dataset, index)
            }
            other => panic!("{:?}", other.0),
        }
    }

    fn attachment(&self, dataset: u32, index: &Index, change: impl FnOnce(&mut Attach)) -> Attach {
        let mut attach = Attach {
            dataset,
            more: vec![],
            session: "test".into(),
            order: OrderSpec {
                dataset: Digest::from_bytes(index.digest()),
                samples: index.len(),
                kind: OrderKind::Keyed,
                seed: 3,
                global_batch: 16,
                tail: Tail::Uneven,
            },
            world: 1,
            ranks: vec![0],
            uneven: true,
            policy: Policy::Foreload,
            ram_bytes: 64 << 20,
            batch_bytes: 1 << 20,
            skip_large: false,
            staging_bytes: None,
            disks: vec![],
            concurrency: ConcurrencySettings::default(),
            hedge_per_cent: 5,
            timeout_s: 20.0,
            stall_s: 10.0,
            epochs: None,
            bucket: None,
            metrics_log: None,
        };
        change(&mut attach);
        attach
    }

    fn attach(&self, client: &Arc<Client>, dataset: u32, index: &Index, change: impl FnOnce(&mut Attach)) -> Attached {
        Attached::new(client, self.attachment(dataset, index, change), &mut calm()).expect("attached")
    }

    fn stats(&self, job: u32) -> Stats {
        match self.client().call(&Call::Stats { job }, &mut calm()).expect("stats") {
            (Reply::Stats(stats), _) => *stats,
            other => panic!("{:?}", other.0),
        }
    }

    fn gauge(&self, job: u32, name: &str) -> u64 {
        self.stats(job)
            .gauges
            .and_then(|gauges| gauges.get(name)?.as_u64())
            .expect("a gauge")
    }

    /// What an object holds, straight from the server's own storage.
    fn truth(&self, index: &Index, prefix: &str, sample: u64) -> Vec<u8> {
        let found = index.sample(sample).expect("sample");
        let object = index.object(found.object).expect("object");
        let whole = self
            .bucket
            .read("bench", &format!("{prefix}/{}", object.key))
            .expect("read")
            .expect("exists");
        whole[found.range().start as usize..found.range().end as usize].to_vec()
    }

    /// As [`Node::end`], without lingering.
    fn retire(self) {
        self.client().call(&Call::Retire, &mut calm()).expect("heard");
        self.end();
    }

    /// Ends the agent; it fails when its decisions don't replay.
    fn end(mut self) -> (Arc<Bucket>, Arc<tempfile::TempDir>) {
        self.client = None;
        self.agent
            .take()
            .expect("runs")
            .join()
            .expect("no panic")
            .expect("replays to equality");
        (Arc::clone(&self.bucket), Arc::clone(&self.directory))
    }
}

/// Reads an epoch of rank 0 and compares order and bytes.
fn read_epoch(node: &Node, job: &Attached, index: &Index, prefix: &str, spec: &OrderSpec, epoch: u32) {
    read_epoch_from(node, job, index, prefix, spec, epoch, 0);
}

/// As [`read_epoch`], from a batch on.
fn read_epoch_from(node: &Node, job: &Attached, index: &Index, prefix: &str, spec: &OrderSpec, epoch: u32, first: u64) {
    let order = Order::new(spec).expect("order");
    let split = Split::weighted(&order, 1).expect("split");
    let order = order.epoch(epoch).expect("epoch");
    for batch in first..split.batches() {
        let want = job.want_batch(0, epoch, batch).expect("sent");
        let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
        let expected: Vec<u64> = split.batch_positions(batch, 0).map(|p| order.sample_at(p)).collect();
        assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), expected);
        for item in &items {
            assert!(
                job.bytes(item).expect("inside") == node.truth(index, prefix, item.sample),
                "sample {} has other bytes",
                item.sample
            );
            assert_eq!(Some(item.label).filter(|&l| l != i64::MIN), index.label(item.sample));
        }
        release(job, &items);
    }
}

fn release(job: &Attached, items: &[Sent]) {
    items
        .iter()
        .for_each(|item| job.client.release(job.job, Some(item.handle), None, item.len));
    job.client.flush();
}

fn spec(index: &Index) -> OrderSpec {
    OrderSpec {
        dataset: Digest::from_bytes(index.digest()),
        samples: index.len(),
        kind: OrderKind::Keyed,
        seed: 3,
        global_batch: 16,
        tail: Tail::Uneven,
    }
}

fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(10), what, holds);
}

fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_fits_memory_is_fetched_once_and_comes_in_order_with_its_labels() {
    let node = Node::new("img:200x1KB-60KB,classes=5,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    assert_eq!((index.len(), index.classes().len()), (200, 5));
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    for epoch in 0..3 {
        read_epoch(&node, &job, &index, "img", &spec(&index), epoch);
    }
    let stats = node.stats(job.job);
    assert_eq!((stats.samples, stats.bucket_reads, stats.ram_hits), (600, 200, 400));
    assert_eq!(stats.requests - stats.hedges, 200);
    drop(job);
    node.end();
}

#[test]
fn what_fits_disk_is_fetched_once_and_a_restarted_agent_finds_it() {
    let node = Node::new("img:300x40KB-60KB,classes=3,ext=jpg");
    let tier = |directory: &tempfile::TempDir| DiskShare {
        directory: directory.path().join("tier"),
        capacity_bytes: 64 << 20,
        pinned: None,
    };
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let small = |attach: &mut Attach, disk| {
        attach.ram_bytes = 9 << 20;
        attach.disks = vec![disk];
    };
    let disk = tier(&node.directory);
    let job = node.attach(&node.client(), dataset, &index, |a| small(a, disk.clone()));
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    read_epoch(&node, &job, &index, "img", &spec(&index), 1);
    let stats = node.stats(job.job);
    assert_eq!(stats.requests - stats.hedges, 300, "each sample once: {stats:?}");
    assert!(stats.disk_hits > 100, "{stats:?}");
    drop(job);
    let (bucket, directory) = node.end();
    bucket.reset_counts();
    let node = Node::over(bucket, directory);
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let job = node.attach(&node.client(), dataset, &index, |a| small(a, disk));
    let Reply::Attached { found, .. } = &job.reply else {
        panic!()
    };
    assert!(*found > 150, "{found} found");
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    let stats = node.stats(job.job);
    assert!(
        stats.requests - stats.hedges <= 300 - found,
        "{} requests, {found} found",
        stats.requests
    );
    drop(job);
    node.end();
}

#[test]
fn shards_are_read_in_large_requests() {
    let node = Node::new("shards:4x250x20000,tar");
    let (dataset, index) = node
        .open("s3://bench/shards/{00000000..00000003}.tar", false)
        .or_else(|_| node.open("s3://bench/shards", false))
        .expect("opened");
    assert_eq!(index.len(), 1000);
    let disk = DiskShare {
        directory: node.directory.path().join("tier"),
        capacity_bytes: 64 << 20,
        pinned: None,
    };
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.ram_bytes = 24 << 20;
        a.disks = vec![disk];
    });
    node.bucket.reset_counts();
    read_epoch(&node, &job, &index, "shards", &spec(&index), 0);
    let stats = node.stats(job.job);
    assert!(stats.requests <= 50, "{} requests for 1000 samples", stats.requests);
    drop(job);
    node.end();
}

#[test]
fn faults_of_the_bucket_change_nothing_that_is_delivered() {
    let node = Node::new("img:300x1KB-40KB,classes=3,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    for fault in [
        "kind=status,status=503,share=0.1,attempts=1",
        "kind=truncate,share=0.1,attempts=1",
        "kind=reset,share=0.1,at=0.3,attempts=1",
        "kind=short,share=0.05,attempts=1",
    ] {
        node.bucket.add_fault(Fault::parse(fault).expect("a fault"));
    }
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
    for fault in [
        "kind=status,status=503,share=0.1,attempts=1",
        "kind=truncate,share=0.1,attempts=1",
        "kind=status,status=404,matching=00000007",
    ] {
        node.bucket.add_fault(Fault::parse(fault).expect("a fault"));
    }
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
    node.bucket
        .add_fault(Fault::parse("kind=changed,matching=00000005").expect("a fault"));
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
    node.bucket
        .add_fault(Fault::parse("kind=flip,share=0.2,attempts=1").expect("a fault"));
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
    eventually("writes end", || node.stats(job.job).kept_samples > 90);
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
fn what_a_dead_client_held_comes_back() {
    let node = Node::new("img:200x1KB-20KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let watcher = node.attach(&node.client(), dataset, &index, |_| ());
    let worker = node.another();
    let job = node.attach(&worker, dataset, &index, |_| ());
    assert_eq!(job.job, watcher.job, "equal attachments share a job");
    let want = job.want_batch(0, 0, 0).expect("sent");
    let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
    let slot = job.batch_slot(1000, &mut calm()).expect("asked").expect("room");
    assert_eq!(node.gauge(watcher.job, "leases"), items.len() as u64);
    job.want_batch(0, 0, 5).expect("sent and never taken");
    let _ = slot;
    let begun = Instant::now();
    drop((job, worker));
    eventually("leases come back", || {
        node.gauge(watcher.job, "leases") == 0 && node.gauge(watcher.job, "requests") == 0
    });
    assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
    drop(watcher);
    node.end();
}

#[test]
fn a_job_ends_when_all_who_attached_are_done_though_they_stay_connected() {
    let node = Node::new("img:64x1KB-20KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let jobs = || match node.client().call(&Call::Status, &mut calm()).expect("status") {
        (Reply::Status { jobs, .. }, _) => jobs,
        other => panic!("{:?}", other.0),
    };
    let twice = [(), ()].map(|()| node.attach(&node.client(), dataset, &index, |_| ()));
    let [one, two] = twice;
    let want = one.want_batch(0, 0, 0).expect("sent");
    let (items, _) = one.delivered(want, None, &mut calm()).expect("delivered");
    release(&one, &items);
    drop(one);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(jobs()[0].clients, 1, "attached twice, left once");
    drop(two);
    eventually("nobody is attached", || jobs().iter().all(|job| job.clients == 0));
    eventually("the job ends after the lingering time", || jobs().is_empty());
    node.end();
}

fn jobs_of(node: &Node) -> Vec<JobStatus> {
    match node.client().call(&Call::Status, &mut calm()).expect("status") {
        (Reply::Status { jobs, .. }, _) => jobs,
        other => panic!("{:?}", other.0),
    }
}

fn gets(node: &Node) -> u64 {
    node.bucket.counts().requests.get(&Class::Get).copied().unwrap_or(0)
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
    node.bucket.add_fault(Fault::parse("kind=hang").expect("a fault"));
    node.bucket.reset_counts();
    let job = node.attach(&node.client(), dataset, &index, |_| ());
    job.want_batch(0, 0, 0).expect("sent");
    eventually("loads are in flight", || gets(&node) > 8);
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

/// An order whose lists the client supplies, of as many samples.
fn supplied(attach: &mut Attach, length: u64) {
    attach.order.kind = OrderKind::Supplied { length };
    attach.order.global_batch = 5;
}

fn supply(job: &Attached, epoch: u32, samples: &[u64]) -> Result<(), String> {
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
fn a_client_that_leaves_while_it_attaches_leaves_no_job() {
    let node = Node::new("img:20x1KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    // What a killed writer left: looking through it takes longer than leaving.
    let tier = node.directory.path().join("tier");
    std::fs::create_dir(&tier).expect("made");
    let left = |number: u32| std::fs::write(tier.join(format!("{number:08x}.seg")), b"").expect("written");
    (1..4000).for_each(left);
    let connections = || match node.client().call(&Call::Status, &mut calm()).expect("status") {
        (Reply::Status { connections, .. }, _) => connections,
        other => panic!("{:?}", other.0),
    };
    let leaving = node.another();
    let attach = node.attachment(dataset, &index, |a| {
        a.disks = vec![DiskShare {
            directory: tier.clone(),
            capacity_bytes: 64 << 20,
            pinned: None,
        }];
    });
    let body = serde_json::to_string(&Call::Attach(Box::new(attach))).expect("JSON");
    leaving.send(&Ask::Call { id: 1 << 40, body }).expect("sent");
    drop(leaving);
    eventually("it has left", || connections() == 1);
    // Attaching goes one after the other: this one waits for the first.
    drop(node.attach(&node.client(), dataset, &index, |_| ()));
    assert_eq!(jobs_of(&node).iter().map(|job| job.clients).sum::<u64>(), 0);
    eventually("no job is left", || jobs_of(&node).is_empty());
    node.end();
}

#[test]
fn all_who_wait_for_a_sample_hear_why_it_failed() {
    let node = Node::new("img:64x1KB-2KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    node.bucket
        .add_fault(Fault::parse("kind=status,status=404,matching=00000005").expect("a fault"));
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
fn a_dead_client_gets_no_lease_for_what_its_other_want_let_go() {
    let node = Node::new("img:20x1MB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let own = |a: &mut Attach| {
        a.ram_bytes = 7 << 20;
        a.order.global_batch = 1;
        // Nothing is read ahead.
        a.policy = Policy::Naive;
    };
    let holder = node.attach(&node.client(), dataset, &index, own);
    let held: Vec<u64> = (0..5).collect();
    let want = holder.want_samples(0, held).expect("sent");
    let (items, _) = holder.delivered(want, None, &mut calm()).expect("delivered");
    let worker = node.another();
    // No memory for the first; the second is there, and its turn comes when the first is withdrawn.
    for (id, samples) in [(1000, vec![10, 11, 12]), (1001, vec![0])] {
        let (job, rank) = (holder.job, 0);
        let want = Ask::WantSamples { id, job, rank, samples };
        worker.send(&want).expect("sent");
    }
    eventually("both wait", || node.gauge(holder.job, "requests") == 2);
    let leases = items.len() as u64;
    assert_eq!(node.gauge(holder.job, "leases"), leases);
    drop(worker);
    eventually("its wants are withdrawn", || node.gauge(holder.job, "requests") == 0);
    eventually("no lease is left", || node.gauge(holder.job, "leases") == leases);
    release(&holder, &items);
    drop(holder);
    node.end();
}

#[test]
fn memory_that_is_not_there_is_not_promised() {
    let node = Node::new("img:64x1KB-20KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let warned = |job: &Attached| match &job.reply {
        Reply::Attached { warnings, .. } => warnings.clone(),
        other => panic!("{other:?}"),
    };
    let modest = node.attach(&node.client(), dataset, &index, |_| ());
    assert_eq!(warned(&modest), Vec::<String>::new());
    drop(modest);
    // More than any machine has that runs this.
    let job = node.attach(&node.client(), dataset, &index, |a| {
        a.session = "greedy".into();
        a.ram_bytes = 1 << 40;
    });
    let [warning] = &warned(&job)[..] else {
        panic!("{:?}", warned(&job))
    };
    assert!(
        warning.contains("asks for 1099511 MB of memory") && warning.contains("MB left"),
        "{warning}"
    );
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    drop(job);
    node.end();
}

#[test]
fn a_data_set_that_nobody_holds_is_let_go_and_one_that_is_listed_again_unchanged_is_held_once() {
    let node = Node::new("img:64x1KB,classes=2,ext=jpg");
    // Names no credentials, and holds nothing.
    let is_open = |dataset| {
        let call = Call::Credentials {
            dataset,
            storage_options: std::collections::BTreeMap::new(),
        };
        match node.client().call(&call, &mut calm()) {
            Err(ClientError::Trouble(trouble)) => trouble.kind == "invalid",
            other => panic!("{:?}", other.map(|(reply, _)| reply)),
        }
    };
    let (first, index) = node.open("s3://bench/img", false).expect("opened");
    let again = Call::Open(Open {
        refresh: true,
        ..node.opening("s3://bench/img", false)
    });
    for _ in 0..3 {
        match node.client().call(&again, &mut calm()).expect("opened") {
            (Reply::Opened { dataset, origin, .. }, _) => assert_eq!((dataset, origin.as_str()), (first, "listed")),
            other => panic!("{:?}", other.0),
        }
    }
    let reader = node.another();
    let part = Call::Subset {
        dataset: first,
        samples: vec![3, 1],
    };
    let subset = |client: &Client| match client.call(&part, &mut calm()).expect("chosen") {
        (Reply::Opened { dataset, .. }, _) => dataset,
        other => panic!("{:?}", other.0),
    };
    let chosen = subset(&reader);
    assert_eq!(subset(&node.client()), chosen);
    let other = node.another();
    let whole = Call::Subset {
        dataset: first,
        samples: vec![5],
    };
    let alone = match other.call(&whole, &mut calm()).expect("chosen") {
        (Reply::Opened { dataset, .. }, _) => dataset,
        other => panic!("{:?}", other.0),
    };
    let child = node.another();
    child.call(&Call::Hold { dataset: chosen }, &mut calm()).expect("open");
    assert!(is_open(alone));
    drop((other, reader));
    eventually("it is let go after the lingering time", || !is_open(alone));
    assert!(is_open(chosen) && is_open(first), "held by who is still there");
    let refused = child.call(&Call::Hold { dataset: alone }, &mut calm());
    assert!(matches!(refused, Err(ClientError::Trouble(trouble)) if trouble.kind == "closed"));
    let job = node.attach(&node.client(), first, &index, |_| ());
    read_epoch(&node, &job, &index, "img", &spec(&index), 0);
    drop((job, child));
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
fn leases_move_between_connections_and_stale_ones_are_refused() {
    let node = Node::new("img:64x1KB-20KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let parent = node.attach(&node.client(), dataset, &index, |_| ());
    let worker = node.another();
    let job = node.attach(&worker, dataset, &index, |_| ());
    let want = job.want_batch(0, 0, 0).expect("sent");
    let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
    let (slot, offset) = job.batch_slot(4, &mut calm()).expect("asked").expect("room");
    assert!(job.batches.write(offset, b"made"));
    let handles: Vec<_> = items.iter().map(|item| item.handle).collect();
    assert!(
        parent
            .adopt(
                worker.connection(),
                std::process::id(),
                handles.clone(),
                vec![slot],
                &mut calm()
            )
            .expect("asked")
    );
    let from = worker.connection();
    drop((job, worker));
    assert_eq!(parent.batches.bytes(offset, 4), Some(&b"made"[..]));
    for item in &items {
        assert!(
            parent.bytes(item).expect("inside") == node.truth(&index, "img", item.sample),
            "still there after the worker's end"
        );
    }
    assert!(
        !parent
            .adopt(from, std::process::id(), handles.clone(), vec![], &mut calm())
            .expect("asked"),
        "gone with the worker"
    );
    release(&parent, &items);
    eventually("leases come back", || node.gauge(parent.job, "leases") == 0);
    drop(parent);
    node.end();
}

#[test]
fn a_get_that_hangs_is_overtaken_by_its_twin() {
    let node = Node::new("img:600x10KB,classes=2,ext=jpg");
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    // The 200th GET never answers; without a twin the batch would wait for the idle time-out of 10 s.
    node.bucket
        .add_fault(Fault::parse("kind=hang,nth=200").expect("a fault"));
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

#[test]
fn an_outage_of_the_store_is_waited_out() {
    for fault in ["kind=status,status=503", "kind=status,status=500", "kind=reset"] {
        let node = Node::new("img:200x10KB,classes=2,ext=jpg");
        let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
        let job = node.attach(&node.client(), dataset, &index, |_| ());
        let want = job.want_batch(0, 0, 0).expect("sent");
        let (items, _) = job.delivered(want, None, &mut calm()).expect("delivered");
        release(&job, &items);
        node.bucket.add_fault(Fault::parse(fault).expect("a fault"));
        std::thread::scope(|scope| {
            scope.spawn(|| read_epoch_from(&node, &job, &index, "img", &spec(&index), 0, 1));
            std::thread::sleep(Duration::from_secs(2));
            node.bucket.clear_faults();
        });
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
