//! A scheduler in a test's hand: a small job, and loads that end when and how the test says.

use super::*;
use crate::DigestBuilder;
use crate::action::{Command, Completion, Handle, Item, Load};
use crate::catalog::Objects;
use crate::flow::ConcurrencySettings;
use crate::policy::Policy;
use crate::spec::{OrderKind, OrderSpec, Tail};
use std::sync::Arc;

/// Samples that were handed over, and whether they are to be copied; or the sample that failed, and why.
pub(super) type Answer = Result<(Vec<Item>, bool), (Option<u64>, Failure)>;

pub(super) struct Hand {
    pub plan: Scheduler,
    pub now_ns: u64,
    pub next: Next,
    /// Loads and writes.
    under_way: Vec<Action>,
    /// To each request, first to last.
    pub answers: Vec<(u64, Answer)>,
    /// Ids of loads that are to stop.
    pub cancelled: Vec<u64>,
    /// Blocks that a tier is to forget.
    pub forgotten: Vec<u64>,
}

/// A policy with little memory, eight requests at once, no twins and a short window.
pub(super) fn settings(policy: Policy, ram_bytes: u64) -> Settings {
    Settings {
        policy,
        ram_bytes,
        concurrency: ConcurrencySettings::fixed(8),
        hedge_per_cent: 0,
        window_entries: 64,
        ..Settings::default()
    }
}

/// Samples of these lengths, an object each, read in their order in global batches of four by `world` ranks that are all here.
pub(super) fn reads(lengths: &[u64], world: u32) -> Reads {
    let order = OrderSpec {
        dataset: DigestBuilder::new("test").finish(),
        samples: lengths.len() as u64,
        kind: OrderKind::Sequential,
        seed: 7,
        global_batch: 4,
        tail: Tail::Uneven,
    };
    Reads {
        sets: vec![Set::new(0, Arc::new(Objects(lengths.to_vec())))],
        order: Order::new(&order).expect("an order"),
        world,
        uneven: true,
        deal: None,
        ranking: None,
        ranks: (0..world).collect(),
        ram_bytes: None,
        largest: None,
        epochs: None,
    }
}

/// The same in the order that is drawn anew for each epoch, so that a rank reads in one what others read in another.
pub(super) fn drawn(lengths: &[u64], world: u32) -> Reads {
    let mut reads = reads(lengths, world);
    let order = OrderSpec {
        kind: OrderKind::Keyed,
        ..reads.order.spec().clone()
    };
    reads.order = Order::new(&order).expect("an order");
    reads
}

impl Hand {
    /// All ranks have started at the beginning.
    pub fn new(settings: Settings, reads: &Reads) -> Self {
        let mut hand = Self::bare(settings, reads);
        for &rank in &reads.ranks {
            hand.start(0, rank, 0, 0);
        }
        hand
    }

    /// No rank has started.
    pub fn bare(settings: Settings, reads: &Reads) -> Self {
        Hand {
            plan: Scheduler::for_one(settings, reads).expect("a scheduler"),
            now_ns: 1,
            next: Next::Wait,
            under_way: Vec::new(),
            answers: Vec::new(),
            cancelled: Vec::new(),
            forgotten: Vec::new(),
        }
    }

    pub fn step(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.next = self.plan.step(self.now_ns, event, &mut actions);
        for action in actions {
            match action.command() {
                Command::Load(_) | Command::Keep { .. } => self.under_way.push(action),
                Command::Deliver { request, items, copy } => self.answers.push((*request, Ok((items.clone(), *copy)))),
                Command::Refuse {
                    request,
                    sample,
                    failure,
                } => self.answers.push((*request, Err((*sample, *failure)))),
                Command::Cancel { load } => self.cancelled.push(*load),
                Command::Forget { block, .. } => self.forgotten.push(*block),
            }
        }
    }

    pub fn start(&mut self, job: u32, rank: u32, epoch: u32, batch: u64) {
        self.step(Event::Start {
            job,
            rank,
            epoch,
            batch,
        });
    }

    /// The first rank asks for a batch, and waits for it, as who asks below.
    pub fn want(&mut self, request: u64, epoch: u32, batch: u64) {
        self.want_of((0, 0), request, epoch, batch);
    }

    pub fn want_of(&mut self, (job, rank): (u32, u32), request: u64, epoch: u32, batch: u64) {
        self.step(Event::WantBatch {
            request,
            job,
            rank,
            epoch,
            batch,
        });
        self.step(Event::Awaited { request });
    }

    pub fn want_reads(&mut self, request: u64, reads: &[(u32, u64)]) {
        self.step(Event::WantReads {
            request,
            job: 0,
            rank: 0,
            reads: reads.to_vec(),
        });
        self.step(Event::Awaited { request });
    }

    pub fn want_samples(&mut self, request: u64, samples: &[u64]) {
        self.step(Event::WantSamples {
            request,
            job: 0,
            rank: 0,
            samples: samples.to_vec(),
        });
        self.step(Event::Awaited { request });
    }

    /// Loads under way, in the order of their issue.
    pub fn loads(&self) -> impl Iterator<Item = &Load> {
        self.under_way.iter().filter_map(|action| match action.command() {
            Command::Load(load) => Some(load),
            _ => None,
        })
    }

    /// The objects that they read.
    pub fn objects(&self) -> Vec<u64> {
        self.loads().map(|load| load.object).collect()
    }

    /// Blocks that are being written to a disk tier.
    pub fn written(&self) -> Vec<u64> {
        let block = |action: &Action| match action.command() {
            Command::Keep { block, .. } => Some(*block),
            _ => None,
        };
        self.under_way.iter().filter_map(block).collect()
    }

    fn end(&mut self, is_it: impl Fn(&Command) -> bool, end: impl FnOnce(Action) -> Completion) {
        let at = self.under_way.iter().position(|action| is_it(action.command()));
        let action = self.under_way.remove(at.expect("it is under way"));
        self.step(Event::Completed(end(action)));
    }

    /// The first load of an object ends well.
    pub fn land(&mut self, object: u64) {
        let is_it = |command: &Command| matches!(command, Command::Load(load) if load.object == object);
        self.end(is_it, |action| action.done(1_000_000, 2_000_000));
    }

    /// The same after so long.
    pub fn land_late(&mut self, object: u64, total_ns: u64) {
        let is_it = |command: &Command| matches!(command, Command::Load(load) if load.object == object);
        self.end(is_it, |action| action.done(total_ns / 2, total_ns));
    }

    /// The twin of a load of an object ends well.
    pub fn land_twin(&mut self, object: u64) {
        let is_it = |command: &Command| matches!(command, Command::Load(load) if load.object == object && load.hedge);
        self.end(is_it, |action| action.done(1_000_000, 2_000_000));
    }

    pub fn fail(&mut self, object: u64, failure: Failure) {
        let is_it = |command: &Command| matches!(command, Command::Load(load) if load.object == object);
        self.end(is_it, |action| action.failed(failure));
    }

    /// A write ends, well or not.
    pub fn write(&mut self, of: u64, failure: Option<Failure>) {
        let is_it = |command: &Command| matches!(command, Command::Keep { block, .. } if *block == of);
        self.end(is_it, |action| match failure {
            None => action.done(0, 0),
            Some(failure) => action.failed(failure),
        });
    }

    /// Everything ends well that is under way, and what follows from that.
    pub fn land_all(&mut self) {
        while !self.under_way.is_empty() {
            self.end(|_| true, |action| action.done(1_000_000, 2_000_000));
        }
    }

    /// The last answer to a request.
    pub fn answer(&self, request: u64) -> Option<&Answer> {
        let mut answers = self.answers.iter().rev();
        answers.find(|(id, _)| *id == request).map(|(_, answer)| answer)
    }

    fn items(&self, request: u64) -> Vec<Item> {
        match self.answer(request) {
            Some(Ok((items, _))) => items.clone(),
            other => panic!("request {request} was served: {other:?}"),
        }
    }

    /// The samples that a request got; it was served.
    pub fn delivered(&self, request: u64) -> Vec<u64> {
        self.items(request).iter().map(|item| item.sample).collect()
    }

    pub fn handles(&self, request: u64) -> Vec<Handle> {
        self.items(request).iter().map(|item| item.handle).collect()
    }

    /// Why a request wasn't served.
    pub fn refused(&self, request: u64) -> Option<(Option<u64>, Failure)> {
        self.answer(request)?.as_ref().err().copied()
    }

    /// A consumer gives back all that a request got.
    pub fn give_back(&mut self, request: u64) {
        let handles = self.handles(request);
        self.step(Event::Release { handles });
    }

    /// Reads a batch of the first rank, and gives it back.
    pub fn read(&mut self, request: u64, epoch: u32, batch: u64) -> Vec<u64> {
        self.want(request, epoch, batch);
        self.land_all();
        self.give_back(request);
        self.delivered(request)
    }

    pub fn used_bytes(&self) -> u64 {
        self.plan.arena.used_bytes()
    }

    /// Whether anything is in memory, or on its way, of a sample that is a block of its own.
    pub fn is_there(&self, sample: u64) -> bool {
        self.plan.residents.find(Content::block(sample)).is_some()
    }
}
