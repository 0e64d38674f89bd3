//! One rank as a client: what it asks for, what it has, and what it does next.

use foreload_plan::action::{Event, Item};
use std::collections::{BTreeMap, VecDeque};

/// What a request asked for.
pub struct Want {
    /// The samples that must come, in this order.
    pub samples: Vec<u64>,
    /// It is the rest of a batch of which a sample was refused: its loop needs it before all that was asked for after the batch.
    pub is_rest: bool,
}

/// A rank. It asks for batches in order, as many ahead as its kind of loader would, and gives them back in order.
pub struct Client {
    /// Its job, by its place in the world.
    pub job: usize,
    pub rank: u32,
    /// Where it goes on asking: epoch and batch; `None`: it isn't there.
    pub next: Option<(u32, u64)>,
    /// Open requests.
    pub open: BTreeMap<u64, Want>,
    /// What it holds: request and items, oldest first.
    pub held: VecDeque<(u64, Vec<Item>)>,
    /// Batches that it has had since it started.
    pub had: u64,
}

impl Client {
    pub fn new(job: usize, rank: u32) -> Self {
        Client {
            job,
            rank,
            next: None,
            open: BTreeMap::new(),
            held: VecDeque::new(),
            had: 0,
        }
    }

    /// The request that its loop needs next.
    pub fn needs(&self) -> Option<u64> {
        let next = self.open.iter().min_by_key(|(id, want)| (!want.is_rest, **id));
        next.map(|(&id, _)| id)
    }

    /// It starts at a batch. What it held it holds on to: a restarted rank's old process may still be dying.
    pub fn start(&mut self, epoch: u32, batch: u64) -> Event {
        self.next = Some((epoch, batch));
        self.had = 0;
        Event::Start {
            job: self.job as u32,
            rank: self.rank,
            epoch,
            batch,
        }
    }
}
