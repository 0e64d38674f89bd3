//! A schedule: data set, budgets, ranks and faults drawn from a seed, and what happens until all is quiet.

use crate::client::{Client, Want};
use crate::lists::lists;
use crate::memory::Memory;
use foreload_plan::action::{Action, Command, Event, Failure, Item, Source};
use foreload_plan::arena::{Slot, reserved_bytes};
use foreload_plan::blocks::Content;
use foreload_plan::catalog::{Catalog, Objects, Place, Shards};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::job::{Largest, Reads, Set};
use foreload_plan::order::Order;
use foreload_plan::policy::Policy;
use foreload_plan::replay::{Recorded, replay};
use foreload_plan::scheduler::Next;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_plan::split::Split;
use foreload_plan::{DigestBuilder, Scheduler};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Ranks start anywhere, again and again, leave and die, each when it likes.
    Restarts,
    /// Several workers of a rank ask by name and by sample, out of order, over orders that repeat samples.
    Workers,
    /// No rank gives a batch back before all have theirs.
    Lockstep,
    /// Loads fail, are late, and disks lose what they held.
    Faults,
    /// Samples are gone for good. Who is told so reads the rest of the batch, or goes on with the next one, and holds a batch until it has the next.
    Gone,
    /// Several jobs over one data set and over several, which join and part.
    Jobs,
}

/// A job: what it reads.
struct Job {
    reads: Reads,
    order: Order,
    split: Split,
    joined: bool,
}

impl Job {
    fn new(reads: Reads) -> Self {
        Job {
            split: reads.check().expect("it fits"),
            order: reads.order.clone(),
            reads,
            joined: false,
        }
    }

    fn samples(&self) -> u64 {
        self.reads.sets.iter().map(|set| set.catalog.samples()).sum()
    }

    /// The data set of a sample, and its number there.
    fn find(&self, sample: u64) -> (&Set, u64) {
        let mut own = sample;
        let is_it = |set: &&Set| {
            let found = own < set.catalog.samples();
            own -= if found { 0 } else { set.catalog.samples() };
            found
        };
        let set = self.reads.sets.iter().find(is_it).expect("a sample of the job");
        (set, own)
    }
}

/// A generator that needs no crate and never changes.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

pub struct World {
    theme: Theme,
    dice: Dice,
    plan: Recorded,
    settings: Settings,
    jobs: Vec<Job>,
    clients: Vec<Client>,
    memory: Memory,
    under_way: Vec<Action>,
    cancelled: HashSet<u64>,
    disk: BTreeSet<(u8, u64)>,
    /// Actions that have ended.
    ends: u64,
    request: u64,
    ended: Vec<u64>,
    now_ns: u64,
    budget: u64,
    least_budget: u64,
    fail_one_in: u64,
    late_one_in: u64,
    /// One object in so many is gone; 0: none is.
    gone_one_in: u64,
    /// Loops use a batch until they have the next one.
    holds: bool,
    /// One thread reads all loaders.
    waits_alone: bool,
    /// Requests served or refused.
    answers: u64,
    /// What is left of refused batches, for clients to ask for: place, and samples.
    left: Vec<(usize, Vec<u64>)>,
}

/// What must find room at once of a rank that reads so many samples of these data sets.
fn largest_of(sets: &[Set], count: usize) -> Largest {
    let of_set = |set: &Set| {
        let catalog = Arc::clone(&set.catalog);
        (0..catalog.samples()).map(move |sample| catalog.place(sample).len)
    };
    let mut lengths: Vec<u64> = sets.iter().flat_map(of_set).collect();
    lengths.sort_unstable_by_key(|&len| Reverse(len));
    Largest::of(lengths.into_iter().take(count))
}

impl World {
    pub fn new(theme: Theme, seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ theme as u64);
        let sets: Vec<(Arc<dyn Catalog>, Vec<u64>)> = (0..1 + u64::from(theme == Theme::Jobs) * dice.below(3))
            .map(|_| Self::set(&mut dice))
            .collect();
        let count = if theme == Theme::Jobs { 2 + dice.below(2) } else { 1 };
        let mut jobs: Vec<Job> = (0..count).map(|_| Self::job(&mut dice, theme, &sets)).collect();
        let all = sets.iter().flat_map(|(_, lengths)| lengths);
        let total: u64 = all.map(|&len| reserved_bytes(len)).sum();
        let of_rank = |job: &Job| job.reads.largest.expect("known").batch_bytes;
        let batch_bytes = jobs.iter().map(of_rank).max().unwrap_or(0);
        // Room for the largest batch of one rank, and as much again for the holes between slots; in lockstep also for what the others hold meanwhile.
        let holds = theme == Theme::Gone || theme != Theme::Lockstep && dice.one_in(2);
        let batches = match theme {
            Theme::Lockstep => 3,
            // One that each rank holds, and one that comes.
            _ if holds && !dice.one_in(2) => 2 + jobs.iter().map(|job| job.reads.ranks.len() as u64).sum::<u64>(),
            _ => 2,
        };
        let least = batches * batch_bytes + 4096;
        let mut ram_bytes = least + [0, total / 3, 2 * total / 3, 2 * total][dice.below(4) as usize];
        if theme == Theme::Jobs && dice.one_in(2) {
            // Each brings memory of its own.
            for job in &mut jobs {
                job.reads.ram_bytes = Some(ram_bytes);
            }
            ram_bytes *= jobs.len() as u64;
        }
        let tiers = match dice.below(3) {
            0 => vec![TierSettings {
                capacity_bytes: 1 + dice.below(2 * total),
                pinned: None,
            }],
            _ => Vec::new(),
        };
        let policy = match dice.below(8) {
            0 => Policy::Naive,
            1 => Policy::Staging,
            2 => Policy::Lru,
            3 => Policy::Deli {
                fetch: 8,
                threshold: 4,
                cache: 16,
            },
            _ => Policy::Foreload,
        };
        let settings = Settings {
            policy,
            ram_bytes,
            tiers,
            part_bytes: if dice.one_in(3) { 1024 } else { 1 << 20 },
            coalesce_bytes: 8192,
            gap_bytes: 512,
            concurrency: ConcurrencySettings::fixed(1 + dice.below(12) as u32),
            hedge_per_cent: 20,
            window_entries: 16 + dice.below(4000),
            ..Settings::default()
        };
        let plan = Recorded::new(Self::scheduler(&settings, &jobs[0]), None);
        let faults = theme == Theme::Faults;
        World {
            theme,
            plan,
            clients: Self::clients(&jobs),
            jobs,
            memory: Memory::default(),
            under_way: Vec::new(),
            cancelled: HashSet::new(),
            disk: BTreeSet::new(),
            ends: 0,
            request: 0,
            ended: Vec::new(),
            now_ns: 0,
            budget: ram_bytes,
            least_budget: least,
            fail_one_in: if faults { 3 + dice.below(30) } else { 0 },
            late_one_in: if faults { 2 + dice.below(20) } else { 0 },
            gone_one_in: if theme == Theme::Gone { 2 + dice.below(20) } else { 0 },
            holds,
            waits_alone: theme != Theme::Lockstep && dice.one_in(2),
            answers: 0,
            left: Vec::new(),
            settings,
            dice,
        }
    }

    /// A data set: whole objects or shards, of odd lengths or of one.
    fn set(dice: &mut Dice) -> (Arc<dyn Catalog>, Vec<u64>) {
        let (samples, mean) = (48 + dice.below(150), 64 + dice.below(3000));
        let mut lengths: Vec<u64> = (0..samples).map(|_| dice.below(2 * mean)).collect();
        match dice.below(8) {
            0 | 1 => lengths.fill(mean),
            // A few are much larger than the others.
            2 | 3 => lengths
                .iter_mut()
                .step_by(1 + dice.below(48) as usize)
                .for_each(|len| *len += 16 * mean),
            _ => {}
        }
        match dice.below(3) {
            0 => (Arc::new(Shards::pack(&lengths, 64, 20_000)), lengths),
            1 => (Arc::new(lists(&lengths, |n| dice.below(n))), lengths),
            _ => (Arc::new(Objects(lengths.clone())), lengths),
        }
    }

    fn job(dice: &mut Dice, theme: Theme, sets: &[(Arc<dyn Catalog>, Vec<u64>)]) -> Job {
        let world = 1 + dice.below(if theme == Theme::Lockstep { 4 } else { 8 }) as u32;
        let local = 1 + dice.below(u64::from(world)) as u32;
        let first = dice.below(u64::from(world - local + 1)) as u32;
        let global_batch = world * (1 + dice.below(6) as u32);
        let tail = match dice.below(4) {
            0 => Tail::Uneven,
            1 => Tail::Drop,
            _ => Tail::Pad { multiple: world },
        };
        // One data set, or several one after the other, some of them twice.
        let count = if theme == Theme::Jobs { 1 + dice.below(3) } else { 1 };
        let set = |_| {
            let name = dice.below(sets.len() as u64);
            Set::new(name, Arc::clone(&sets[name as usize].0))
        };
        let sets: Vec<Set> = (0..count).map(set).collect();
        let of_rank = (global_batch / world) as usize;
        let order = OrderSpec {
            dataset: DigestBuilder::new("actors").finish(),
            samples: sets.iter().map(|set| set.catalog.samples()).sum(),
            kind: if dice.one_in(2) {
                OrderKind::Keyed
            } else {
                OrderKind::TorchDistributed
            },
            seed: dice.below(1000),
            global_batch,
            tail,
        };
        Job::new(Reads {
            largest: Some(largest_of(&sets, of_rank)),
            sets,
            order: Order::new(&order).expect("an order"),
            world,
            uneven: true,
            deal: None,
            ranking: None,
            ranks: (first..first + local).collect(),
            ram_bytes: None,
            epochs: None,
        })
    }

    fn clients(jobs: &[Job]) -> Vec<Client> {
        let of_job = |(at, job): (usize, &Job)| {
            job.reads
                .ranks
                .iter()
                .map(|&rank| Client::new(at, rank))
                .collect::<Vec<_>>()
        };
        jobs.iter().enumerate().flat_map(of_job).collect()
    }

    fn scheduler(settings: &Settings, first: &Job) -> Scheduler {
        Scheduler::for_one(settings.clone(), &first.reads).expect("a scheduler")
    }

    fn job_of(&self, place: usize) -> &Job {
        &self.jobs[self.clients[place].job]
    }

    /// Where a sample of a job lies: data set and place.
    fn places_in(&self, job: usize, sample: u64) -> (u64, Vec<Place>) {
        let (set, own) = self.jobs[job].find(sample);
        (set.name, set.catalog.ranges(own))
    }

    /// Plays the schedule, lets it end, and looks at what is left.
    pub fn play(mut self) {
        self.jobs[0].joined = true;
        for place in 0..self.clients.len() {
            let starts = !matches!(self.theme, Theme::Restarts | Theme::Jobs) || self.dice.one_in(2);
            if starts && self.job_of(place).joined {
                self.start(place, 0, 0);
            }
        }
        let steps = 60 + self.dice.below(400);
        for _ in 0..steps {
            match self.dice.below(3) {
                0 => {
                    let place = self.dice.below(self.clients.len() as u64) as usize;
                    self.act(place);
                }
                _ => drop(self.end_one()),
            }
        }
        self.settle();
        self.depart();
        self.verify_empty();
        let fresh = Self::scheduler(&self.settings, &self.jobs[0]);
        replay(fresh, self.plan.log()).expect("the log replays");
    }

    fn start(&mut self, place: usize, epoch: u32, batch: u64) {
        let event = self.clients[place].start(epoch, batch);
        self.step(event);
        let open: Vec<u64> = self.clients[place].open.keys().copied().collect();
        assert!(open.is_empty(), "requests {open:?} outlive their rank's start");
    }

    /// One thing that a client may do now.
    fn act(&mut self, place: usize) {
        let restarts = matches!(self.theme, Theme::Restarts | Theme::Jobs);
        let job = self.clients[place].job;
        if self.theme == Theme::Jobs && !self.jobs[job].joined {
            return self.join(job);
        }
        let batches = self.jobs[job].split.batches();
        let Some((epoch, batch)) = self.clients[place].next else {
            let (epoch, batch) = (self.dice.below(3) as u32, self.dice.below(batches));
            return self.start(place, epoch, batch);
        };
        if self.theme == Theme::Jobs && self.dice.one_in(60) {
            return self.part(job);
        }
        if self.ask_for_what_is_left() {
            return;
        }
        match self.dice.below(28) {
            0 if restarts => {
                let (epoch, batch) = (self.dice.below(3) as u32, self.dice.below(batches));
                self.start(place, epoch, batch);
            }
            // Back by a few batches, as after a checkpoint.
            1 if restarts => {
                let back = self.dice.below(4);
                self.start(place, epoch, batch.saturating_sub(back));
            }
            2 if restarts => self.leave(place),
            3 if restarts => self.die(place),
            4 => self.withdraw_one(place),
            5 if self.theme != Theme::Lockstep => {
                let most = self.settings.ram_bytes - self.least_budget;
                self.budget = self.least_budget + self.dice.below(most + 1);
                self.step(Event::Budget { ram_bytes: self.budget });
            }
            6 => self.step(Event::Tick),
            7 if matches!(self.theme, Theme::Workers | Theme::Jobs) => {
                let (split, all) = (&self.jobs[job].split, self.jobs[job].samples());
                let most = u64::from(split.global_batch() / split.ranks());
                let count = 1 + self.dice.below(most);
                let samples: Vec<u64> = (0..count).map(|_| self.dice.below(all)).collect();
                let asked = samples.clone();
                let _ = self.ask(place, samples, |request, rank| Event::WantSamples {
                    job: job as u32,
                    request,
                    rank,
                    samples: asked,
                });
            }
            8..=15 => self.ask_next(place, epoch, batch),
            16..=21 => self.wait(place),
            _ => self.give_back(place),
        }
    }

    fn ask_next(&mut self, place: usize, epoch: u32, batch: u64) {
        if self.clients[place].open.len() + self.clients[place].held.len() >= 3 {
            return;
        }
        let (job, rank) = (self.clients[place].job, self.clients[place].rank);
        let order = self.jobs[job].order.epoch(epoch).expect("an epoch");
        let split = &self.jobs[job].split;
        let (mut positions, batches): (Vec<u64>, u64) = (split.batch_positions(batch, rank).collect(), split.batches());
        let by_name = self.theme == Theme::Workers || (self.theme == Theme::Jobs && self.dice.one_in(2));
        if by_name && self.dice.one_in(3) {
            // A worker that reads some of it twice.
            let again = positions[self.dice.below(positions.len() as u64) as usize];
            positions.pop();
            positions.push(again);
        }
        let samples = positions.iter().map(|&position| order.sample_at(position)).collect();
        let _ = self.ask(place, samples, |request, rank| match by_name {
            true => Event::WantReads {
                job: job as u32,
                request,
                rank,
                reads: positions.iter().map(|&position| (epoch, position)).collect(),
            },
            false => Event::WantBatch {
                job: job as u32,
                request,
                rank,
                epoch,
                batch,
            },
        });
        let client = &mut self.clients[place];
        client.next = Some(if batch + 1 < batches {
            (epoch, batch + 1)
        } else {
            (epoch + 1, 0)
        });
    }

    fn ask(&mut self, place: usize, samples: Vec<u64>, event: impl FnOnce(u64, u32) -> Event) -> u64 {
        let rank = self.clients[place].rank;
        // A number may be used again once its request has ended.
        let request = match self.ended.pop() {
            Some(ended) if self.dice.one_in(2) => ended,
            _ => {
                self.request += 1;
                self.request
            }
        };
        let is_rest = false;
        self.clients[place].open.insert(request, Want { samples, is_rest });
        self.step(event(request, rank));
        request
    }

    /// A loop does nothing but wait for what it needs next.
    fn wait(&mut self, place: usize) {
        if let Some(request) = self.clients[place].needs() {
            self.step(Event::Awaited { request });
        }
    }

    fn give_back(&mut self, place: usize) {
        // In lockstep a batch is in use until every rank has had as many.
        let least = self.clients.iter().filter(|c| c.next.is_some()).map(|c| c.had).min();
        let client = &mut self.clients[place];
        let used = client.had.saturating_sub(client.held.len() as u64);
        if self.theme == Theme::Lockstep && least.is_some_and(|least| used >= least) {
            return;
        }
        // A loop uses a batch until it has the next one.
        if self.holds && client.held.len() < 2 {
            return;
        }
        if let Some((_, items)) = client.held.pop_front() {
            self.release(self.clients[place].job, items);
        }
    }

    fn release(&mut self, job: usize, items: Vec<Item>) {
        for item in &items {
            let (set, places) = self.places_in(job, item.sample);
            assert!(
                self.memory.holds(item.slot, set, &places),
                "bytes changed while they were held"
            );
            self.memory.unlease(item.slot);
        }
        let handles = items.iter().map(|item| item.handle).collect();
        self.step(Event::Release { handles });
    }

    fn withdraw_one(&mut self, place: usize) {
        let open: Vec<u64> = self.clients[place].open.keys().copied().collect();
        if open.is_empty() || self.theme == Theme::Lockstep {
            return;
        }
        let request = open[self.dice.below(open.len() as u64) as usize];
        self.clients[place].open.remove(&request);
        self.step(Event::Withdraw { request });
        self.ended.push(request);
    }

    fn join(&mut self, job: usize) {
        self.jobs[job].joined = true;
        let reads = Box::new(self.jobs[job].reads.clone());
        self.step(Event::Join { job: job as u32, reads });
    }

    /// A job is over while others go on. What its clients hold they give back when they like.
    fn part(&mut self, job: usize) {
        self.jobs[job].joined = false;
        self.step(Event::Part { job: job as u32 });
        for client in self.clients.iter_mut().filter(|client| client.job == job) {
            client.next = None;
            assert!(client.open.is_empty(), "requests outlive their job");
        }
    }

    fn leave(&mut self, place: usize) {
        self.clients[place].next = None;
        let rank = self.clients[place].rank;
        let job = self.clients[place].job as u32;
        self.step(Event::Leave { job, rank });
        assert!(
            self.clients[place].open.is_empty(),
            "requests outlive their rank's leave"
        );
    }

    /// The process is gone: its requests are withdrawn and its leases given back, in this order; another may come.
    fn die(&mut self, place: usize) {
        // A withdrawal may free what another request of the dead waits for: that one is delivered, and given back below.
        while let Some((request, _)) = self.clients[place].open.pop_first() {
            self.step(Event::Withdraw { request });
        }
        while let Some((_, items)) = self.clients[place].held.pop_front() {
            self.release(self.clients[place].job, items);
        }
        self.clients[place].next = None;
        if self.dice.one_in(2) {
            let rank = self.clients[place].rank;
            let job = self.clients[place].job as u32;
            self.step(Event::Leave { job, rank });
        }
    }

    fn step(&mut self, event: Event) {
        let mut event = Some(event);
        loop {
            let mut actions = Vec::new();
            let next = self
                .plan
                .step(self.now_ns, event.take().unwrap_or(Event::Tick), &mut actions);
            let mut copies = Vec::new();
            for action in actions {
                self.take(action, &mut copies);
            }
            let gauges = self.plan.scheduler().gauges();
            assert!(gauges.used_bytes <= self.settings.ram_bytes, "over the memory budget");
            for (job, items) in copies {
                self.release(job, items);
            }
            if next == Next::Wait {
                break;
            }
        }
    }

    fn take(&mut self, action: Action, copies: &mut Vec<(usize, Vec<Item>)>) {
        match action.command() {
            Command::Load(load) => {
                for piece in &load.pieces {
                    self.memory.scribble(piece.slot_offset, piece.len);
                }
                if let Source::Disk(tier) = load.source {
                    let blocks = self.plan.scheduler().library();
                    let there = |content| self.disk.contains(&(tier, blocks.block_of(content)));
                    assert!(
                        load.pieces.iter().all(|piece| there(piece.content)),
                        "reads what no disk holds"
                    );
                }
                self.under_way.push(action);
            }
            Command::Keep { block, slot, .. } => {
                assert!(self.has(*slot, *block), "writes to disk what isn't there");
                self.under_way.push(action);
            }
            Command::Forget { tier, block } => assert!(self.disk.remove(&(*tier, *block))),
            Command::Deliver { request, items, copy } => self.arrived(*request, items.clone(), *copy, copies),
            Command::Refuse {
                request,
                sample,
                failure,
            } => self.refused(*request, *sample, *failure),
            Command::Cancel { load } => assert!(self.cancelled.insert(*load)),
            other => panic!("{other:?}"),
        }
    }

    /// Whether a slot holds a block, whole.
    fn has(&self, slot: Slot, block: u64) -> bool {
        let (library, content) = (self.plan.scheduler().library(), Content::block(block));
        self.memory
            .holds(slot, library.shelf_of(content).name, &library.stretches(content))
    }

    fn arrived(&mut self, request: u64, items: Vec<Item>, copy: bool, copies: &mut Vec<(usize, Vec<Item>)>) {
        let place = self.place_of(request);
        let want = self.clients[place].open.remove(&request).expect("open");
        self.answers += 1;
        let samples: Vec<u64> = items.iter().map(|item| item.sample).collect();
        assert_eq!(samples, want.samples, "request {request} gets other samples");
        for item in &items {
            let (set, places) = self.places_in(self.clients[place].job, item.sample);
            let len: u64 = places.iter().map(|place| place.len).sum();
            assert_eq!(item.slot.len, len, "a length that isn't the sample's");
            assert!(
                self.memory.holds(item.slot, set, &places),
                "request {request} gets foreign bytes for sample {}",
                item.sample
            );
            self.memory.lease(item.slot);
        }
        self.clients[place].had += 1;
        if copy {
            self.clients[place].held.push_back((request, Vec::new()));
            copies.push((self.clients[place].job, items));
        } else {
            self.clients[place].held.push_back((request, items));
        }
    }

    fn refused(&mut self, request: u64, sample: Option<u64>, failure: Failure) {
        let place = self.place_of(request);
        let want = self.clients[place].open.remove(&request).expect("open");
        self.answers += 1;
        match failure {
            Failure::Cancelled => assert_eq!(sample, None, "only a start or a leave calls a request off"),
            Failure::Unavailable | Failure::Corrupt => {
                assert!(self.fail_one_in > 0, "nothing fails here");
                assert!(
                    want.samples.contains(&sample.expect("named")),
                    "it blames another's sample"
                );
            }
            Failure::Final => {
                let gone = sample.filter(|&sample| self.is_gone(self.clients[place].job, sample));
                let gone = gone.unwrap_or_else(|| panic!("request {request} for {:?} is refused", want.samples));
                assert!(want.samples.contains(&gone), "it blames another's sample");
                let rest: Vec<u64> = want.samples.into_iter().filter(|&sample| sample != gone).collect();
                if self.gone_one_in.is_multiple_of(2) && !rest.is_empty() {
                    self.left.push((place, rest));
                    return;
                }
            }
            Failure::NoMemory => {
                let bytes: u64 = want
                    .samples
                    .iter()
                    .map(|&sample| {
                        let (set, own) = self.job_of(place).find(sample);
                        reserved_bytes(set.catalog.place(own).len)
                    })
                    .sum();
                panic!(
                    "{bytes} bytes don't fit {}: {:?}",
                    self.budget,
                    self.plan.scheduler().gauges()
                );
            }
        }
        // The loop goes on with the next batch.
        self.clients[place].had += 1;
        self.clients[place].held.push_back((request, Vec::new()));
    }

    /// Who left a sample out that is gone asks for the rest of its batch. False: nobody has to.
    fn ask_for_what_is_left(&mut self) -> bool {
        let Some((place, samples)) = self.left.pop() else {
            return false;
        };
        let (job, asked) = (self.clients[place].job as u32, samples.clone());
        let request = self.ask(place, samples, |request, rank| Event::WantSamples {
            job,
            request,
            rank,
            samples: asked,
        });
        // It may have been served at once.
        if let Some(want) = self.clients[place].open.get_mut(&request) {
            want.is_rest = true;
        }
        true
    }

    /// Whether something of a sample is in an object that is gone.
    fn is_gone(&self, job: usize, sample: u64) -> bool {
        let (_, places) = self.places_in(job, sample);
        places.iter().any(|place| place.len > 0 && self.has_lost(place.object))
    }

    fn has_lost(&self, object: u64) -> bool {
        self.gone_one_in > 0 && (object + 1).is_multiple_of(self.gone_one_in)
    }

    /// Whether a load wants something of the bucket that is gone.
    fn wants_what_is_gone(&self, command: &Command) -> bool {
        matches!(command, Command::Load(load) if load.source == Source::Bucket && self.has_lost(load.object))
    }

    fn place_of(&self, request: u64) -> usize {
        let asked = |client: &Client| client.open.contains_key(&request);
        let place = self.clients.iter().position(asked);
        place.unwrap_or_else(|| panic!("request {request} is answered, and nobody asks"))
    }

    /// Ends one action that is under way, any of them. False: there is none.
    fn end_one(&mut self) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        self.ends += 1;
        assert!(
            self.ends < 100_000,
            "it goes round: {:?}",
            self.plan.scheduler().gauges()
        );
        let pick = self.dice.below(self.under_way.len() as u64) as usize;
        if self.late_one_in > 0 && self.dice.one_in(self.late_one_in) {
            self.now_ns += 200_000_000;
            self.step(Event::Tick);
        }
        let action = self.under_way.swap_remove(pick);
        self.now_ns += 1_000_000;
        let called_off = self.cancelled.contains(&action.id()) && self.dice.one_in(2);
        let failure = if called_off {
            Some(Failure::Cancelled)
        } else if self.wants_what_is_gone(action.command()) {
            Some(Failure::Final)
        } else if self.dice.one_in(self.fail_one_in) {
            Some([Failure::Unavailable, Failure::Corrupt][self.dice.below(2) as usize])
        } else {
            None
        };
        match action.command() {
            Command::Load(load) => {
                let pieces = load.pieces.iter();
                match failure {
                    None => self.memory.bring(load, self.plan.scheduler().library()),
                    Some(_) => pieces.for_each(|piece| self.memory.scribble(piece.slot_offset, piece.len)),
                }
            }
            Command::Keep { block, slot, tier, .. } => {
                assert!(self.has(*slot, *block), "a slot changed while it was written to disk");
                if failure.is_none() {
                    self.disk.insert((*tier, *block));
                }
            }
            _ => {}
        }
        let completion = match failure {
            Some(failure) => action.failed(failure),
            None => action.done(500_000, 1_000_000),
        };
        self.step(Event::Completed(completion));
        true
    }

    /// Everything that was asked for comes, or is refused.
    fn settle(&mut self) {
        self.fail_one_in *= 100;
        let mut before = 0;
        for round in 0.. {
            while self.end_one() {}
            let open: usize = self.clients.iter().map(|client| client.open.len()).sum();
            if open == 0 && self.left.is_empty() {
                return;
            }
            let mut moved = self.answers > before;
            before = self.answers;
            while self.ask_for_what_is_left() {
                moved = true;
            }
            // In lockstep those who are behind ask on, and who may gives back.
            for place in 0..self.clients.len() {
                let (held, had) = (self.clients[place].held.len(), self.clients[place].had);
                let behind = self.clients.iter().any(|client| client.had > had);
                if let Some((epoch, batch)) = self.clients[place].next
                    && self.theme == Theme::Lockstep
                    && behind
                    && self.clients[place].open.is_empty()
                {
                    self.ask_next(place, epoch, batch);
                    moved = true;
                }
                self.give_back(place);
                moved |= self.clients[place].held.len() < held;
            }
            // Ranks in lockstep all wait. Otherwise one thread may read all loaders: only what it waits for must come, whatever the others have asked for.
            let waits: Vec<usize> = (0..self.clients.len())
                .filter(|&place| !self.clients[place].open.is_empty())
                .take(if self.waits_alone { 1 } else { usize::MAX })
                .collect();
            for place in waits {
                self.wait(place);
            }
            self.now_ns += 1_000_000_000;
            self.step(Event::Tick);
            assert!(
                moved || !self.under_way.is_empty() || round < 3,
                "{open} requests hang: {:?} {:?}",
                self.plan.scheduler().waiting(),
                self.plan.scheduler().gauges()
            );
        }
    }

    /// All go.
    fn depart(&mut self) {
        for place in 0..self.clients.len() {
            while let Some((_, items)) = self.clients[place].held.pop_front() {
                self.release(self.clients[place].job, items);
            }
            self.leave(place);
        }
        while self.end_one() {}
    }

    fn verify_empty(&mut self) {
        self.step(Event::Budget { ram_bytes: 0 });
        let gauges = self.plan.scheduler().gauges();
        assert_eq!(
            (
                gauges.used_bytes,
                gauges.leases,
                gauges.requests,
                gauges.in_flight,
                gauges.reads_ahead,
                gauges.residents
            ),
            (0, 0, 0, 0, 0, 0),
            "something is left behind: {gauges:?}"
        );
    }
}
