//! Ranks as independent actors against a real agent: threads with connections of their own that start, ask by batch, by name and by sample, hold what
//! they got, give it back, start again elsewhere, leave, and die with everything in their hands. Every byte is compared, when it comes and when
//! it is given back. Up to three jobs run beside each other, over whole objects, over shards or over both together, and share what they read alike; in
//! every third schedule they have a disk, in every fourth a source with faults.
//!
//! `FORELOAD_CHAOS_AGENT=N` says how many schedules are tried, `FORELOAD_CHAOS_SEED=N` tries that one alone.

use super::{Node, calm, eventually};
use foreload_engine::calls::{Attach, Call, DiskShare, Reply};
use foreload_engine::client::{Attached, ClientError};
use foreload_engine::protocol::{Ask, Sent};
use foreload_engine::streams::digest_of;
use foreload_plan::Digest;
use foreload_plan::order::Order;
use foreload_plan::policy::Policy;
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_plan::split::Split;
use std::collections::VecDeque;
use std::time::Duration;

const SAMPLES: u64 = 150;
const LARGEST: u64 = 30_000;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n.max(1)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What an actor waits for: the number of its want, and the samples that must come.
type Want = (u64, Vec<u64>);

struct Actor<'a> {
    node: &'a Node,
    truth: &'a [Vec<u8>],
    attach: Attach,
    rank: u32,
    order: Order,
    split: Split,
    dice: Dice,
    job: Attached,
    next: (u32, u64),
    open: VecDeque<Want>,
    held: VecDeque<Vec<Sent>>,
    name: String,
}

impl<'a> Actor<'a> {
    fn new(node: &'a Node, truth: &'a [Vec<u8>], attach: Attach, rank: u32, seed: u64) -> Self {
        let order = Order::new(&attach.order).expect("an order");
        let split = Split::weighted(&order, attach.world).expect("a split");
        let job = Attached::new(&node.another(), attach.clone(), &mut calm()).expect("attached");
        Actor {
            name: format!("seed {seed}, job {}, rank {rank}", attach.session),
            node,
            truth,
            attach,
            rank,
            order,
            split,
            dice: Dice(seed * 1000 + u64::from(rank)),
            job,
            next: (0, 0),
            open: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    fn play(mut self) {
        self.start((0, 0));
        for _ in 0..40 {
            match self.dice.below(20) {
                0 => {
                    let to = (self.dice.below(3) as u32, self.dice.below(self.split.batches()));
                    self.start(to);
                }
                1 => self.start((self.next.0, self.next.1.saturating_sub(3))),
                2 => self.leave(),
                3 => self.die(),
                4 => self.withdraw(),
                5 => std::thread::sleep(Duration::from_millis(self.dice.below(4))),
                6..=11 => self.ask(),
                12..=15 => self.take(),
                _ => self.give_back(),
            }
        }
        while !self.open.is_empty() {
            self.take();
        }
        while !self.held.is_empty() {
            self.give_back();
        }
    }

    fn start(&mut self, (epoch, batch): (u32, u64)) {
        self.next = (epoch, batch);
        let (job, rank) = (self.job.job, self.rank);
        let start = Ask::Start {
            job,
            rank,
            epoch,
            batch,
        };
        self.job.client.send(&start).expect("sent");
        self.drain();
    }

    fn leave(&mut self) {
        let (job, rank) = (self.job.job, self.rank);
        self.job.client.send(&Ask::Leave { job, rank }).expect("sent");
        self.drain();
        let next = self.next;
        self.start(next);
    }

    /// What was asked for before a start comes, or is called off.
    fn drain(&mut self) {
        while let Some((want, samples)) = self.open.pop_front() {
            match self.job.delivered(want, None, &mut calm()) {
                Ok((items, _)) => {
                    self.compare(&items, &samples);
                    self.release(&items);
                }
                Err(ClientError::Trouble(trouble)) => {
                    assert!(
                        self.may_fail(&trouble.kind) || trouble.kind == "cancelled",
                        "{}: {trouble:?}",
                        self.name
                    );
                }
                Err(other) => panic!("{}: {other}", self.name),
            }
        }
    }

    /// The process is gone, with all that it held; another one comes and goes on.
    fn die(&mut self) {
        self.open.clear();
        self.held.clear();
        let next = Attached::new(&self.node.another(), self.attach.clone(), &mut calm()).expect("attached");
        drop(std::mem::replace(&mut self.job, next));
        let next = self.next;
        self.start(next);
    }

    fn withdraw(&mut self) {
        if let Some((want, _)) = self.open.pop_back() {
            self.job.client.withdraw(self.job.job, want).expect("sent");
        }
    }

    fn ask(&mut self) {
        if self.open.len() + self.held.len() >= 3 {
            return;
        }
        let (epoch, batch) = self.next;
        let positions: Vec<u64> = self.split.batch_positions(batch, self.rank).collect();
        let order = self.order.epoch(epoch).expect("an epoch");
        let mut samples: Vec<u64> = positions.iter().map(|&position| order.sample_at(position)).collect();
        let want = match self.dice.below(6) {
            0 => {
                let all = self.truth.len() as u64;
                samples.iter_mut().for_each(|sample| *sample = self.dice.below(all));
                self.job.want_samples(self.rank, samples.clone())
            }
            1 | 2 => {
                let reads = positions.iter().map(|&position| (epoch, position)).collect();
                self.next = self.after();
                self.job.want_reads(self.rank, reads)
            }
            _ => {
                self.next = self.after();
                self.job.want_batch(self.rank, epoch, batch)
            }
        };
        self.open.push_back((want.expect("sent"), samples));
    }

    fn after(&self) -> (u32, u64) {
        let (epoch, batch) = self.next;
        if batch + 1 < self.split.batches() {
            (epoch, batch + 1)
        } else {
            (epoch + 1, 0)
        }
    }

    fn may_fail(&self, kind: &str) -> bool {
        kind == "unavailable" || kind == "corrupt"
    }

    fn take(&mut self) {
        let Some((want, samples)) = self.open.pop_front() else {
            return;
        };
        match self.job.delivered(want, None, &mut calm()) {
            Ok((items, copy)) => {
                self.compare(&items, &samples);
                if copy {
                    self.release(&items);
                } else {
                    self.held.push_back(items);
                }
            }
            Err(ClientError::Trouble(trouble)) if self.may_fail(&trouble.kind) => {}
            Err(other) => panic!("{}: {other}", self.name),
        }
    }

    fn give_back(&mut self) {
        if let Some(items) = self.held.pop_front() {
            let samples: Vec<u64> = items.iter().map(|item| item.sample).collect();
            self.compare(&items, &samples);
            self.release(&items);
        }
    }

    fn compare(&self, items: &[Sent], samples: &[u64]) {
        let found: Vec<u64> = items.iter().map(|item| item.sample).collect();
        assert_eq!(found, samples, "{}: other samples", self.name);
        for item in items {
            let bytes = self.job.bytes(item).expect("inside the arena");
            assert!(
                bytes == self.truth[item.sample as usize],
                "{}: sample {} has other bytes",
                self.name,
                item.sample
            );
        }
    }

    fn release(&self, items: &[Sent]) {
        super::release(&self.job, items);
    }
}

/// Leases of all jobs together, of those that lend anything.
fn leases_of(node: &Node) -> u64 {
    let status = node.client().call(&Call::Status, &mut calm()).expect("status").0;
    let Reply::Status { jobs, .. } = status else {
        panic!("{status:?}")
    };
    let of_one = |job: u32| match node.client().call(&Call::Stats { job }, &mut calm()) {
        Ok((Reply::Stats(stats), _)) => stats.gauges.and_then(|gauges| gauges.get("leases")?.as_u64()),
        // It has ended in the meantime.
        _ => None,
    };
    jobs.iter().filter_map(|job| of_one(job.job)).sum()
}

/// What a job may read: one data set or several, and the bytes of all samples.
struct Set {
    datasets: Vec<u32>,
    digest: Digest,
    truth: Vec<Vec<u8>>,
}

fn attach_of(dice: &mut Dice, node: &Node, seed: u64, which: u64, set: &Set) -> Attach {
    let world = 1 + dice.below(4) as u32;
    let own = 1 + dice.below(4) as u32;
    let order = OrderSpec {
        dataset: set.digest,
        samples: set.truth.len() as u64,
        kind: OrderKind::Keyed,
        seed,
        global_batch: world * own,
        tail: [Tail::Uneven, Tail::Pad { multiple: world }, Tail::Drop][dice.below(3) as usize],
    };
    let disks = match seed % 3 {
        0 => vec![DiskShare {
            directory: node.directory.path().join("disk"),
            capacity_bytes: 64 << 20,
            pinned: None,
        }],
        _ => vec![],
    };
    // Two batches of every rank in hand, one that is waited for, and as much again for the holes between them.
    let least = 6 * u64::from(own) * (LARGEST + 64) * u64::from(world);
    Attach {
        dataset: set.datasets[0],
        more: set.datasets[1..].to_vec(),
        session: format!("{seed}-{which}"),
        order,
        world,
        ranks: (0..world).collect(),
        uneven: true,
        deal: None,
        nodes: None,
        policy: Policy::Foreload,
        ram_bytes: least + dice.below(3) * SAMPLES * LARGEST / 4,
        batch_bytes: 1 << 16,
        staging_bytes: None,
        disks,
        concurrency: foreload_plan::flow::ConcurrencySettings::default(),
        // First the agent's own thread, then others beside it, some of whose orders the first still has.
        io_threads: Some(if seed % 24 < 12 { 1 } else { 3 }),
        hedge_per_cent: 5,
        request_bytes: None,
        timeout_s: 20.0,
        stall_s: 10.0,
        epochs: None,
        bucket: None,
        metrics_log: None,
        skip_large: false,
    }
}

#[test]
fn ranks_that_start_leave_and_die_get_their_own_bytes_from_a_real_agent() {
    let only = number("FORELOAD_CHAOS_SEED");
    let seeds = only.map_or(0..number("FORELOAD_CHAOS_AGENT").unwrap_or(24), |seed| seed..seed + 1);
    let node = Node::with([
        &*format!("img:{SAMPLES}x1KB-{}KB,classes=3,ext=jpg", LARGEST / 1000),
        &*format!("shards:3x{}x1KB-{}KB,tar", SAMPLES / 3, LARGEST / 1000),
    ]);
    let opened = [("s3://bench/img", "img"), ("s3://bench/shards", "shards")].map(|(url, prefix)| {
        let (dataset, index) = node.open(url, false).expect("opened");
        assert_eq!(index.len(), SAMPLES);
        let truth = (0..SAMPLES).map(|sample| node.truth(&index, prefix, sample));
        let truth: Vec<Vec<u8>> = truth.collect();
        (dataset, Digest::from_bytes(index.digest()), truth)
    });
    // Whole objects, shards, and both together.
    let set = |parts: &[usize]| {
        let digests: Vec<Digest> = parts.iter().map(|&part| opened[part].1).collect();
        Set {
            datasets: parts.iter().map(|&part| opened[part].0).collect(),
            digest: digest_of(&digests),
            truth: parts.iter().flat_map(|&part| opened[part].2.clone()).collect(),
        }
    };
    let sets = [set(&[0]), set(&[1]), set(&[0, 1]), set(&[1, 0, 1])];
    for seed in seeds {
        if seed % 4 == 3 {
            let fault = "kind=status,status=503,share=0.02,attempts=1";
            node.fail(&[fault]);
        } else {
            node.bucket.clear_faults();
        }
        let mut dice = Dice(seed);
        let jobs = (0..1 + dice.below(3)).map(|which| {
            let set = match which {
                0 => &sets[(seed % 2) as usize],
                _ => &sets[dice.below(4) as usize],
            };
            (attach_of(&mut dice, &node, seed, which, set), set)
        });
        let jobs: Vec<(Attach, &Set)> = jobs.collect();
        std::thread::scope(|scope| {
            for (attach, set) in &jobs {
                for &rank in &attach.ranks {
                    let node = &node;
                    scope.spawn(move || Actor::new(node, &set.truth, attach.clone(), rank, seed).play());
                }
            }
        });
        eventually("what the dead held comes back", || leases_of(&node) == 0);
    }
    node.end();
}
