//! The agent with real clients, a real S3 server and real disks: what is delivered, what it costs, and what comes back.
//!
//! Every test ends with the agent comparing its decisions with a replay ([`Node::end`]).

#[path = "agent/actors.rs"]
mod actors;
#[path = "agent/choices.rs"]
mod choices;
#[path = "agent/faults.rs"]
mod faults;
#[path = "agent/lists.rs"]
mod lists;
#[path = "agent/long.rs"]
mod long;
#[path = "agent/peers.rs"]
mod peers;
#[path = "agent/pools.rs"]
mod pools;
#[path = "agent/spools.rs"]
mod spools;

use foreload_engine::agent::{AgentSettings, Post, run};
use foreload_engine::calls::{Attach, Call, DiskShare, JobStatus, Open, Reply, Stats};
use foreload_engine::client::{Attached, Client, ClientError, Opened, Place};
use foreload_engine::list::List;
use foreload_engine::protocol::{Ask, Sent};
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
use std::os::fd::OwnedFd;
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
        let cache_dir = directory.path().join("cache");
        let settings = AgentSettings {
            socket: socket.clone(),
            cache_dir: cache_dir.clone(),
            linger,
            record: true,
        };
        let (post, listener) = Post::take(&settings).expect("usable").expect("free");
        let agent = std::thread::spawn(move || run(settings, post, listener));
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

    /// From now on the source has these faults, too.
    fn fail(&self, faults: &[&str]) {
        for fault in faults {
            self.bucket.add_fault(Fault::parse(fault).expect("a fault"));
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
        self.client().call(&Call::Open(open), &mut calm()).map(opened)
    }

    /// Some samples of a data set, as one of its own.
    fn chosen(&self, dataset: u32, samples: &[u64]) -> (u32, Index) {
        let call = Call::Subset {
            dataset,
            samples: list(samples),
        };
        opened(self.client().call(&call, &mut calm()).expect("chosen"))
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
            deal: None,
            nodes: None,
            policy: Policy::Foreload,
            ram_bytes: 64 << 20,
            batch_bytes: 1 << 20,
            skip_large: false,
            staging_bytes: None,
            disks: vec![],
            concurrency: ConcurrencySettings::default(),
            io_threads: None,
            hedge_per_cent: 5,
            request_bytes: None,
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

/// An opened data set: its number, and its index mapped.
fn opened(answer: (Reply, Vec<OwnedFd>)) -> (u32, Index) {
    let opened = Opened::of(answer).expect("opened");
    (opened.dataset, opened.index)
}

fn list(samples: &[u64]) -> List {
    List::new(samples).expect("laid down")
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
    eventually("attached twice, left once", || jobs()[0].clients == 1);
    let want = two.want_batch(0, 0, 1).expect("sent");
    let (items, _) = two.delivered(want, None, &mut calm()).expect("delivered");
    release(&two, &items);
    assert_eq!(jobs()[0].clients, 1, "who is left stays attached");
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
        samples: list(&[3, 1]),
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
        samples: list(&[5]),
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
