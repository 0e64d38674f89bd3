//! Two and three nodes that share their caches: agents of their own, one bucket, and real connections between them.

use super::*;
use foreload_engine::calls::PeerAt;
use foreload_plan::deal::Deal;
use foreload_store::Gate;
use foreload_store::source::parts::{Verdict, write_table};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

const SECRET: &str = "known to these nodes only";
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Nodes of one job, a rank each.
struct Cluster {
    nodes: Vec<Node>,
    /// The job, and one over another data set that began before it: samples of both have the same numbers there.
    jobs: Vec<Option<(Attached, Attached)>>,
    members: Vec<PeerAt>,
    index: Index,
    prefix: &'static str,
    spec: OrderSpec,
    deal: Option<Deal>,
    group: u32,
    tls: bool,
}

fn listen(node: &Node, job: u32, host: IpAddr, secret: &str) -> Result<(SocketAddr, u64), ClientError> {
    listen_with(node, job, host, secret, false)
}

fn listen_with(node: &Node, job: u32, host: IpAddr, secret: &str, tls: bool) -> Result<(SocketAddr, u64), ClientError> {
    let secret = secret.to_owned();
    match node
        .client()
        .call(&Call::Listen { job, host, secret, tls }, &mut calm())?
    {
        (Reply::Listening { address, keeps_bytes }, _) => Ok((address, keeps_bytes)),
        other => panic!("{:?}", other.0),
    }
}

impl Cluster {
    /// They know nothing of each other yet.
    fn apart(rule: &str, prefix: &'static str, count: u32, change: impl Fn(&mut Attach, u32)) -> Self {
        let first = Node::lingering([rule, "val:37x20KB,classes=2,ext=jpg"], LONG);
        let mut nodes = vec![first];
        for _ in 1..count {
            let directory = Arc::new(tempfile::tempdir().expect("directory"));
            nodes.push(Node::start(Arc::clone(&nodes[0].bucket), directory, LONG));
        }
        let opened: Vec<(u32, Index)> = nodes
            .iter()
            .map(|node| node.open(&format!("s3://bench/{prefix}"), false).expect("opened"))
            .collect();
        let before = |node: &Node| {
            let (dataset, index) = node.open("s3://bench/val", false).expect("opened");
            node.attach(&node.client(), dataset, &index, |a| {
                (a.ram_bytes, a.hedge_per_cent) = (3 << 20, 0)
            })
        };
        let mut before: Vec<Option<Attached>> = nodes.iter().map(|node| Some(before(node))).collect();
        nodes[0].bucket.reset_counts();
        let mut attach = |(at, node): (usize, &Node)| {
            let (dataset, index) = &opened[at];
            let job = node.attach(&node.client(), *dataset, index, |a| {
                (a.world, a.ranks, a.hedge_per_cent) = (count, vec![at as u32], 0);
                change(a, at as u32);
            });
            Some((job, before[at].take()?))
        };
        let jobs = nodes.iter().enumerate().map(&mut attach).collect();
        Cluster {
            spec: spec(&opened[0].1),
            index: opened[0].1.clone(),
            nodes,
            jobs,
            members: Vec::new(),
            prefix,
            deal: None,
            group: 0,
            tls: false,
        }
    }

    fn new(rule: &str, prefix: &'static str, count: u32, change: impl Fn(&mut Attach, u32)) -> Self {
        let mut cluster = Cluster::apart(rule, prefix, count, change);
        cluster.meet(|_| SECRET);
        cluster
    }

    fn job(&self, node: usize) -> &Attached {
        &self.jobs[node].as_ref().expect("attached").0
    }

    /// Each listens, and hears where the others do.
    fn meet(&mut self, secret: impl Fn(usize) -> &'static str) {
        let member = |at: usize| {
            let (address, keeps_bytes) = self.listen(at, secret(at));
            PeerAt {
                id: 100 + at as u64,
                address,
                keeps_bytes,
            }
        };
        self.members = (0..self.nodes.len()).map(member).collect();
        for at in 0..self.nodes.len() {
            self.tell(at, SECRET).expect("heard");
        }
    }

    fn listen(&self, at: usize, secret: &str) -> (SocketAddr, u64) {
        listen_with(&self.nodes[at], self.job(at).job, HERE, secret, self.tls).expect("listens")
    }

    fn tell(&self, at: usize, secret: &str) -> Result<(), ClientError> {
        let call = Call::Peers {
            job: self.job(at).job,
            me: 100 + at as u64,
            members: self.members.clone(),
            group: self.group,
            secret: secret.to_owned(),
            tls: self.tls,
        };
        self.nodes[at].client().call(&call, &mut calm()).map(drop)
    }

    /// Some nodes read a batch of an epoch at the same time, and compare ids and bytes.
    fn read_batch(&self, who: &[usize], epoch: u32, batch: u64) {
        let order = Order::new(&self.spec).expect("order");
        let split = Split::weighted(&order, self.nodes.len() as u32).expect("split");
        let order = order.epoch(epoch).expect("epoch");
        let wants: Vec<_> = who
            .iter()
            .map(|&at| self.job(at).want_batch(at as u32, epoch, batch).expect("sent"))
            .collect();
        for (&at, want) in who.iter().zip(wants) {
            let (items, _) = self.job(at).delivered(want, None, &mut calm()).expect("delivered");
            let positions: Vec<u64> = match &self.deal {
                Some(deal) => deal.batch(&split, &order, batch).of(at as u32).to_vec(),
                None => split.batch_positions(batch, at as u32).collect(),
            };
            let expected: Vec<u64> = positions.iter().map(|&position| order.sample_at(position)).collect();
            assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), expected);
            for item in &items {
                let truth = self.nodes[0].truth(&self.index, self.prefix, item.sample);
                let bytes = self.job(at).bytes(item).expect("inside");
                assert!(bytes == truth, "node {at}: sample {} has other bytes", item.sample);
            }
            release(self.job(at), &items);
        }
    }

    fn batches(&self) -> u64 {
        let order = Order::new(&self.spec).expect("order");
        Split::weighted(&order, self.nodes.len() as u32)
            .expect("split")
            .batches()
    }

    fn read(&self, who: &[usize], epochs: std::ops::Range<u32>) {
        for epoch in epochs {
            (0..self.batches()).for_each(|batch| self.read_batch(who, epoch, batch));
        }
    }

    fn stats(&self) -> Vec<Stats> {
        let of = |(at, jobs): (usize, &Option<(Attached, Attached)>)| Some(self.nodes[at].stats(jobs.as_ref()?.0.job));
        self.jobs.iter().enumerate().filter_map(of).collect()
    }

    fn end(mut self) {
        self.jobs.clear();
        self.nodes.into_iter().for_each(Node::retire);
    }
}

#[test]
fn who_has_met_the_others_counts_for_as_long_as_it_is_connected() {
    let cluster = Cluster::apart("img:12x20KB,classes=2,ext=jpg", "img", 2, |_, _| {});
    let (node, job) = (&cluster.nodes[0], cluster.job(0).job);
    let met = |client: &Client, has: bool| match client.call(&Call::Met { job, has }, &mut calm()) {
        Ok((Reply::Met { has }, _)) => has,
        other => panic!("{:?}", other.map(|(reply, _)| reply)),
    };
    let (first, second) = (node.another(), node.another());
    assert!(!met(&second, false));
    assert!(met(&first, true) && met(&second, false));
    // A rank of before is gone: those of its start say nothing of this one.
    drop(first);
    let begun = Instant::now();
    while met(&second, false) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is gone");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(met(&second, true));
    drop(second);
    cluster.end();
}

#[test]
fn nodes_that_hold_the_data_set_together_fetch_each_sample_once() {
    together(1);
}

#[test]
fn nodes_answer_each_other_on_the_threads_that_fetch() {
    together(3);
}

fn together(io_threads: u32) {
    let cluster = Cluster::new("img:300x20KB,classes=2,ext=jpg", "img", 3, |a, _| {
        (a.ram_bytes, a.io_threads) = (5 << 20, Some(io_threads));
    });
    cluster.read(&[0, 1, 2], 0..3);
    let stats = cluster.stats();
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
    // On a busy machine an answer may take longer than a node waits for it.
    let late = sum(|s| s.peer_failures + s.peer_misses);
    assert!(
        (300..=300 + late).contains(&sum(|s| s.requests)) && late < 30,
        "{stats:?}"
    );
    // Two of three samples are somebody else's; some were in memory already.
    assert!(sum(|s| s.peer_hits) > 400, "{stats:?}");
    assert_eq!(sum(|s| s.samples), 900);
    assert_eq!(sum(|s| s.ram_hits + s.bucket_reads + s.peer_hits), 900, "{stats:?}");
    cluster.end();
}

#[test]
fn nodes_that_read_what_they_keep_have_most_of_it_themselves() {
    let deal = Deal::new((100..103).collect(), 0);
    let mut cluster = Cluster::apart("img:300x20KB,classes=2,ext=jpg", "img", 3, |a, _| {
        (a.ram_bytes, a.deal) = (5 << 20, Some(deal.clone()));
    });
    cluster.deal = Some(deal);
    cluster.meet(|_| SECRET);
    cluster.read(&[0, 1, 2], 0..3);
    let stats = cluster.stats();
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
    assert_eq!(sum(|s| s.samples), 900);
    // Dealt out like cards, two of three samples would come from another node.
    assert!((1..300).contains(&sum(|s| s.peer_hits)), "{stats:?}");
    let late = sum(|s| s.peer_failures + s.peer_misses);
    // On a busy machine a node that seems slow isn't asked for a second, which is longer than this takes, and the bucket is.
    assert!((300..=375 + late).contains(&sum(|s| s.requests)), "{stats:?}");
    cluster.end();
}

#[test]
fn nodes_share_within_their_groups_and_report_to_all() {
    for is_local in [false, true] {
        let deal = is_local.then(|| Deal::new((100..104).collect(), 3));
        let mut cluster = Cluster::apart("img:300x20KB,classes=2,ext=jpg", "img", 4, |a, _| {
            (a.ram_bytes, a.deal) = (6 << 20, deal.clone());
        });
        (cluster.deal, cluster.group) = (deal.clone(), 3);
        cluster.meet(|_| SECRET);
        cluster.read(&[0, 1, 2, 3], 0..3);
        let stats = cluster.stats();
        let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
        assert_eq!(sum(|s| s.samples), 900);
        // Four nodes in groups of three at most are two groups of two, and each has from the bucket what it reads: in three epochs seven of eight samples.
        let late = sum(|s| s.peer_failures + s.peer_misses);
        // As above.
        assert!((480..=675 + late).contains(&sum(|s| s.requests)), "{stats:?}");
        let from_peers = sum(|s| s.peer_hits);
        match is_local {
            // Dealt out like cards half of what was read before is somebody else's.
            false => assert!(from_peers > 150, "{stats:?}"),
            true => assert!(from_peers < 150, "{stats:?}"),
        }
        for (node, stats) in stats.iter().enumerate() {
            let client = cluster.nodes[node].client();
            let job = cluster.job(node).job;
            let (reply, _) = client.call(&Call::Reach { job }, &mut calm()).expect("asked");
            assert!(
                matches!(&reply, Reply::Reached { nodes: 2, silent, .. } if silent.is_empty()),
                "{reply:?}"
            );
            let (reply, _) = client.call(&Call::Group { job }, &mut calm()).expect("asked");
            let Reply::Group { nodes } = reply else {
                panic!("{reply:?}")
            };
            assert_eq!(
                nodes.iter().filter(|node| node.report.is_some()).count(),
                4,
                "{nodes:?}"
            );
            let neighbour = cluster.members[node ^ 1].address;
            let others: Vec<_> = stats.nodes.iter().map(|other| other.address).collect();
            assert_eq!(others, [neighbour]);
        }
        cluster.end();
    }
}

#[test]
fn ranks_that_deal_otherwise_have_jobs_and_digests_of_their_own() {
    let node = Node::with(["img:60x10KB,classes=2,ext=jpg", "wds:2x20x5KB,tar"]);
    let (dataset, index) = node.open("s3://bench/img", false).expect("opened");
    let client = node.client();
    let with = |nodes: Option<Vec<u64>>| {
        node.attach(&client, dataset, &index, |a| {
            (a.world, a.deal) = (2, nodes.map(|nodes| Deal::new(nodes, 0)));
        })
    };
    let jobs = [None, Some(vec![1, 2]), Some(vec![2, 1])].map(with);
    assert!(
        jobs[0].job != jobs[1].job && jobs[1].job != jobs[2].job,
        "others read other samples"
    );
    let refused = |dataset, index: &Index, nodes: Vec<u64>| {
        let attach = node.attachment(dataset, index, |a| {
            (a.world, a.deal) = (2, Some(Deal::new(nodes, 0)));
        });
        let refused = Attached::new(&client, attach, &mut calm()).map(drop);
        refused.expect_err("refused").to_string()
    };
    let told = refused(dataset, &index, vec![1, 2, 3]);
    assert!(
        told.contains("3 ranks are said to be on nodes, and 2 data ranks read"),
        "{told}"
    );
    let (shards, packed) = node.open("s3://bench/wds", false).expect("opened");
    let told = refused(shards, &packed, vec![1, 2]);
    assert!(told.contains("it isn't there for samples in shards"), "{told}");
    drop((jobs, client));
    node.retire();
}

#[test]
fn nodes_that_encrypt_get_the_same_bytes_and_nobody_else_gets_any() {
    let mut cluster = Cluster::apart("img:120x20KB,classes=2,ext=jpg", "img", 2, |a, _| a.ram_bytes = 8 << 20);
    cluster.tls = true;
    cluster.meet(|_| SECRET);
    cluster.read(&[0, 1], 0..3);
    let stats = cluster.stats();
    assert!(stats.iter().all(|s| s.peer_hits > 30 && s.failures == 0), "{stats:?}");
    // Who doesn't speak TLS hears nothing that HTTP says.
    let mut stream = TcpStream::connect(cluster.members[1].address).expect("connects");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert!(!heard.windows(4).any(|four| four == b"HTTP"), "{heard:?}");
    cluster.end();
}

#[test]
fn of_nodes_of_which_one_encrypts_each_reads_from_the_bucket() {
    let mut cluster = Cluster::apart("img:60x10KB,classes=2,ext=jpg", "img", 2, |_, _| ());
    cluster.tls = true;
    cluster.meet(|_| SECRET);
    cluster.tls = false;
    // The first takes the second for one that doesn't.
    cluster.tell(0, SECRET).expect("heard");
    cluster.read(&[0], 0..2);
    let stats = cluster.nodes[0].stats(cluster.job(0).job);
    assert_eq!((stats.peer_hits, stats.failures), (0, 0), "{stats:?}");
    assert!(stats.peer_failures > 0, "{stats:?}");
    cluster.end();
}

#[test]
fn a_node_says_how_the_job_does_on_all_of_them() {
    let mut cluster = Cluster::new("img:60x10KB,classes=2,ext=jpg", "img", 3, |_, _| ());
    cluster.read(&[0, 1, 2], 0..1);
    let ask = |cluster: &Cluster| {
        let call = Call::Group {
            job: cluster.job(0).job,
        };
        match cluster.nodes[0].client().call(&call, &mut calm()).expect("told") {
            (Reply::Group { nodes }, _) => nodes,
            other => panic!("{:?}", other.0),
        }
    };
    let told = ask(&cluster);
    assert_eq!(told.len(), 3);
    assert_eq!(told[0].address, None, "this one comes first");
    for (at, (node, stats)) in told.iter().zip(cluster.stats()).enumerate() {
        let report = node.report.as_ref().expect("it says something");
        assert_eq!((report.ranks.clone(), report.waiting_s), (vec![at as u32], None));
        assert_eq!(
            (report.stats.samples, report.stats.requests),
            (stats.samples, stats.requests)
        );
        assert!(report.stats.nodes.is_empty() && node.silence.is_none());
    }
    // One whose job has ended doesn't read this, and one that is gone says nothing at all.
    cluster.jobs[2] = None;
    cluster.nodes.remove(2).retire();
    cluster.jobs[1] = None;
    let told = ask(&cluster);
    assert!(told[0].report.is_some());
    for node in &told[1..] {
        assert!(node.report.is_none() && node.silence.is_some(), "{node:?}");
    }
    cluster.end();
}

#[test]
fn large_samples_are_sent_out_of_the_memory_where_they_lie_while_it_is_used_again_and_again() {
    // Both nodes together hold a part of it, so slots are used again all the time.
    let cluster = Cluster::new("img:500x300KB,classes=2,ext=jpg", "img", 2, |a, _| {
        a.ram_bytes = 64 << 20
    });
    cluster.read(&[0, 1], 0..3);
    let stats = cluster.stats();
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
    assert!(sum(|s| s.peer_hits) > 50 && sum(|s| s.peer_failures) < 30, "{stats:?}");
    assert_eq!((sum(|s| s.samples), sum(|s| s.failures)), (3 * 500, 0), "{stats:?}");
    cluster.end();
}

#[test]
fn nodes_with_disks_give_each_other_samples_of_shards() {
    let disks: Vec<tempfile::TempDir> = (0..2).map(|_| tempfile::tempdir().expect("made")).collect();
    let cluster = Cluster::new("wds:8x60x15KB,tar", "wds", 2, |a, at| {
        a.ram_bytes = 2 << 20;
        a.disks = vec![DiskShare {
            directory: disks[at as usize].path().to_owned(),
            capacity_bytes: 64 << 20,
            pinned: None,
        }];
    });
    cluster.read(&[0, 1], 0..3);
    let stats = cluster.stats();
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
    assert!(sum(|s| s.peer_hits) > 100, "{stats:?}");
    assert!(sum(|s| s.peer_failures) < 30, "{stats:?}");
    assert!(sum(|s| s.requested_bytes) < 2 * 8 * 60 * 15_000, "{stats:?}");
    cluster.end();
}

#[test]
fn a_peer_that_dies_costs_time_and_nothing_else() {
    let mut cluster = Cluster::new("img:200x20KB,classes=2,ext=jpg", "img", 2, |a, _| a.ram_bytes = 8 << 20);
    cluster.read(&[0, 1], 0..1);
    let before = cluster.nodes[0].stats(cluster.job(0).job).requests;
    cluster.jobs[1] = None;
    let gone = cluster.nodes.remove(1);
    gone.retire();
    // The second rank's share is nobody's now; the first reads on.
    let second = Arc::new(tempfile::tempdir().expect("directory"));
    let stand_in = Node::start(Arc::clone(&cluster.nodes[0].bucket), second, LONG);
    cluster.nodes.push(stand_in);
    cluster.read(&[0], 1..3);
    let stats = cluster.nodes[0].stats(cluster.job(0).job);
    assert!(stats.requests > before, "{stats:?}");
    assert!(stats.peer_failures > 0, "{stats:?}");
    assert_eq!(stats.failures, 0, "{stats:?}");
    cluster.end();
}

#[test]
fn a_peer_with_another_secret_is_told_nothing_and_the_bucket_serves_all() {
    let mut cluster = Cluster::apart("img:100x10KB,classes=2,ext=jpg", "img", 2, |_, _| ());
    cluster.meet(|at| if at == 0 { SECRET } else { "known to nobody but one" });
    cluster.read(&[0], 0..2);
    let stats = cluster.nodes[0].stats(cluster.job(0).job);
    assert_eq!((stats.peer_hits, stats.failures), (0, 0), "{stats:?}");
    assert!(stats.peer_failures > 0, "{stats:?}");
    cluster.end();
}

#[test]
fn a_peer_that_reads_something_else_has_nothing_and_the_bucket_is_asked() {
    let mut cluster = Cluster::apart("img:100x10KB,classes=2,ext=jpg", "img", 2, |_, _| ());
    cluster.meet(|_| SECRET);
    cluster.jobs[1] = None;
    cluster.read(&[0], 0..1);
    let stats = cluster.nodes[0].stats(cluster.job(0).job);
    assert_eq!(stats.failures, 0, "{stats:?}");
    cluster.end();
}

#[test]
fn what_is_no_question_of_a_peers_is_refused_and_does_no_harm() {
    let cluster = Cluster::new("img:40x10KB,classes=2,ext=jpg", "img", 2, |_, _| ());
    let address = cluster.members[1].address;
    let digest = Digest::from_bytes(cluster.index.digest());
    // Who asks stays: an answer to somebody who has gone may never be sent.
    let said_within = |patience: Duration, request: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(patience)).expect("set");
        // It may have been refused before all of it was sent.
        let _ = stream.write_all(request);
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).unwrap_or(0);
        String::from_utf8_lossy(&answer[..count])
            .lines()
            .next()
            .unwrap_or("")
            .to_owned()
    };
    let said = |request: &[u8]| said_within(Duration::from_secs(10), request);
    let get = |path: &str, more: &str| said(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{more}\r\n").as_bytes());
    for path in [format!("/peer/{digest}/1"), "/".into(), "/peer/../../etc/passwd".into()] {
        assert_eq!(get(&path, ""), "HTTP/1.1 403 Forbidden", "{path}");
    }
    let forged = format!("authorization: Foreload 0000000000000001.1.{}\r\n", "0".repeat(64));
    assert_eq!(get(&format!("/peer/{digest}/1"), &forged), "HTTP/1.1 403 Forbidden");
    assert!(said(b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello").contains("405"));
    for garbage in [&b"\x16\x03\x01\x02\x00"[..], &[0; 200_000], b"GET", b"\r\n\r\n\r\n"] {
        let _ = said_within(Duration::from_millis(200), garbage);
    }
    cluster.read(&[0, 1], 0..2);
    cluster.end();
}

#[test]
fn an_address_that_everybody_reaches_and_a_secret_that_anyone_guesses_are_refused() {
    let cluster = Cluster::apart("img:20x1KB,classes=2,ext=jpg", "img", 1, |_, _| ());
    let (node, job) = (&cluster.nodes[0], cluster.job(0).job);
    let refused = |host: &str, secret: &str| match listen(node, job, host.parse().expect("an address"), secret) {
        Err(ClientError::Trouble(trouble)) => trouble.message,
        other => panic!("{other:?}"),
    };
    assert!(refused("127.0.0.1", "short").contains("16 characters"));
    assert!(refused("0.0.0.0", SECRET).contains("name an address"));
    assert!(refused("::", SECRET).contains("name an address"));
    assert!(refused("203.0.113.7", SECRET).contains("203.0.113.7"));
    let first = listen(node, job, HERE, SECRET).expect("listens");
    assert_eq!(first, listen(node, job, HERE, SECRET).expect("listens"), "once");
    assert_ne!(
        first.0,
        listen(node, job, HERE, "another secret for others").expect("listens").0
    );
    // A node that isn't of its own group.
    let call = Call::Peers {
        job,
        me: 7,
        members: vec![PeerAt {
            id: 8,
            address: first.0,
            keeps_bytes: 1,
        }],
        group: 0,
        secret: SECRET.to_owned(),
        tls: false,
    };
    match node.client().call(&call, &mut calm()) {
        Err(ClientError::Trouble(trouble)) => assert!(trouble.message.contains("node 7"), "{trouble:?}"),
        other => panic!("{:?}", other.map(|(reply, _)| reply)),
    }
    cluster.end();
}

#[test]
fn nodes_that_can_not_be_reached_are_named_with_the_reason() {
    let mut cluster = Cluster::apart("img:60x20KB,classes=2,ext=jpg", "img", 4, |_, _| ());
    // The second has another secret, and the third says where nobody is.
    cluster.meet(|at| if at == 1 { "another secret for others" } else { SECRET });
    let nobody = std::net::TcpListener::bind((HERE, 0))
        .and_then(|l| l.local_addr())
        .expect("free");
    cluster.members[2].address = nobody;
    cluster.tell(0, SECRET).expect("heard");
    let job = cluster.job(0).job;
    let silent = match cluster.nodes[0].client().call(&Call::Reach { job }, &mut calm()) {
        Ok((Reply::Reached { silent, .. }, _)) => silent,
        other => panic!("{:?}", other.map(|(reply, _)| reply)),
    };
    let ids: Vec<u64> = silent.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [101, 102], "{silent:?}");
    assert!(silent[0].1.contains("403"), "{silent:?}");
    assert!(silent[1].1.contains("refused"), "{silent:?}");
    cluster.end();
}

/// Somebody who answers every question with other bytes and a checksum that is theirs, and hands out what it was asked.
fn forger(heard: std::sync::mpsc::Sender<String>) -> SocketAddr {
    let listener = std::net::TcpListener::bind((HERE, 0)).expect("free");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), heard) = (stream, heard.clone()) else {
                return;
            };
            std::thread::spawn(move || {
                let mut request = vec![0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut request) {
                    let text = String::from_utf8_lossy(&request[..count]).into_owned();
                    let range = text.lines().find_map(|line| line.strip_prefix("range: bytes=0-"));
                    let len = range.and_then(|last| last.trim().parse::<usize>().ok()).unwrap_or(0) + 1;
                    // Who hung up has heard enough.
                    let _ = heard.send(text);
                    let junk = vec![b'x'; len];
                    let sum = foreload_engine::scatter::crc32c(&junk);
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\ncontent-length: {len}\r\ncontent-range: bytes 0-{}/{len}\r\netag: \"{sum:08x}\"\r\nforeload-seal: {}\r\n\r\n",
                        len - 1,
                        "0".repeat(64),
                    );
                    if stream.write_all(&[head.as_bytes(), &junk].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn who_does_not_know_the_secret_gives_no_bytes_and_what_he_hears_gets_him_none() {
    // Together in a request, and one by one.
    unknown("img:100x10KB,classes=2,ext=jpg");
    unknown("img:100x80KB,classes=2,ext=jpg");
}

fn unknown(rule: &str) {
    let mut cluster = Cluster::apart(rule, "img", 2, |_, _| ());
    cluster.meet(|_| SECRET);
    let (sender, heard) = std::sync::mpsc::channel();
    let true_address = std::mem::replace(&mut cluster.members[1].address, forger(sender));
    cluster.tell(0, SECRET).expect("heard");
    cluster.read(&[0], 0..2);
    let stats = cluster.nodes[0].stats(cluster.job(0).job);
    assert_eq!((stats.peer_hits, stats.failures), (0, 0), "{stats:?}");
    assert!(stats.peer_failures > 0, "{stats:?}");
    // What he heard, word for word, to the node that it was meant for.
    let mut said = 0;
    for request in heard.try_iter().take(20) {
        let mut stream = TcpStream::connect(true_address).expect("connects");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).unwrap_or(0);
        assert!(
            answer[..count].starts_with(b"HTTP/1.1 403"),
            "{}",
            String::from_utf8_lossy(&answer[..count])
        );
        said += 1;
    }
    assert!(said > 0);
    cluster.end();
}

/// Somebody who knows the secret and has the samples of a data set, but that of four one is missing, one is damaged, and one is a byte longer than it should be.
fn cripple(truths: Vec<Vec<u8>>) -> SocketAddr {
    let listener = std::net::TcpListener::bind((HERE, 0)).expect("free");
    let address = listener.local_addr().expect("bound");
    let gate = Arc::new(Gate::new(SECRET, &address.to_string()));
    let truths = Arc::new(truths);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), gate, truths) = (stream, Arc::clone(&gate), Arc::clone(&truths)) else {
                return;
            };
            std::thread::spawn(move || {
                let mut request = vec![0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut request) {
                    let text = String::from_utf8_lossy(&request[..count]).into_owned();
                    let answer = crippled(&gate, &truths, &text).unwrap_or_default();
                    if stream.write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn crippled(gate: &Gate, truths: &[Vec<u8>], request: &str) -> Option<Vec<u8>> {
    let path = request.split(' ').nth(1)?;
    let field = request.lines().find_map(|line| line.strip_prefix("authorization: "))?;
    let seal = gate.admit("GET", path, field)?;
    let samples: Vec<u64> = path
        .rsplit('/')
        .next()?
        .split('-')
        .filter_map(|it| it.parse().ok())
        .collect();
    let is_bundle = samples.len() > 1;
    let (status, len) = if is_bundle { (200, u64::MAX) } else { (404, 0) };
    let sealed = gate.answer(&seal, status, "", len);
    if !is_bundle {
        return Some(format!("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nforeload-seal: {sealed}\r\n\r\n").into());
    }
    let (mut entries, mut bodies) = (Vec::new(), Vec::new());
    for (at, &sample) in samples.iter().enumerate() {
        let mut bytes = truths[sample as usize].clone();
        let crc = foreload_engine::scatter::crc32c(&bytes);
        match sample % 4 {
            0 => {
                entries.push((at, Verdict::Missing));
                continue;
            }
            1 => bytes[7] ^= 1,
            2 => bytes.push(0),
            _ => {}
        }
        let (len, was_fetched) = (bytes.len() as u32, false);
        entries.push((at, Verdict::Here { len, crc, was_fetched }));
        bodies.extend(bytes);
    }
    let mut table = Vec::new();
    write_table(gate, &seal, &entries, &mut table);
    let size = table.len() + bodies.len();
    let head = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nforeload-seal: {sealed}\r\n\r\n{size:x}\r\n");
    Some([head.as_bytes(), &table, &bodies, b"\r\n0\r\n\r\n"].concat())
}

#[test]
fn of_samples_that_come_together_the_right_ones_are_taken_and_the_bucket_is_asked_for_the_others() {
    let mut cluster = Cluster::apart("img:200x10KB,classes=2,ext=jpg", "img", 2, |a, _| {
        a.ram_bytes = 16 << 20
    });
    cluster.meet(|_| SECRET);
    let truth = |sample| cluster.nodes[0].truth(&cluster.index, "img", sample);
    let truths: Vec<Vec<u8>> = (0..200).map(truth).collect();
    cluster.members[1].address = cripple(truths);
    cluster.tell(0, SECRET).expect("heard");
    cluster.read(&[0], 0..2);
    let stats = cluster.nodes[0].stats(cluster.job(0).job);
    assert!(
        stats.peer_hits > 0 && stats.peer_misses > 0 && stats.peer_failures > 0,
        "{stats:?}"
    );
    assert_eq!(stats.failures, 0, "{stats:?}");
    let asked: u64 = stats.nodes.iter().map(|node| node.requests).sum();
    assert!(
        asked > 0 && asked < (stats.peer_hits + stats.peer_misses + stats.peer_failures) / 2,
        "{stats:?}"
    );
    cluster.end();
}
