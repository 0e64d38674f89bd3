//! The window: the batches of this node's ranks between what is consumed and how far the plan looks ahead.
//!
//! A *line* is one rank's share of one global batch; lines are numbered across epochs (global batch x local ranks + rank's place), so the window is
//! one queue. Each entry of a line is one read of one sample. Lines leave at the front once all their entries are delivered or skipped.

use super::residents::NONE;
use crate::error::Error;
use crate::order::{EpochOrder, Order};
use crate::split::Split;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Unplanned,
    Planned,
    Over,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub sample: u64,
    pub resident: u32,
    pub read: Read,
    /// The request that waits for it, plus one; 0: none.
    pub waiter: u64,
}

pub(super) struct Line {
    pub entries: Vec<Entry>,
    pub open: u32,
}

pub(super) struct Window {
    order: Order,
    split: Split,
    ranks: Vec<u32>,
    epochs: Option<u32>,
    known: Vec<EpochOrder>,
    lines: VecDeque<Line>,
    head: u64,
    /// By rank's place: its lines before this one are over even if the window is laid out anew from further back.
    cursors: Vec<u64>,
    /// Reads in the window that are not over.
    pub open: u64,
    /// Reads planned and not over.
    pub ahead: u64,
    spare: Vec<Vec<Entry>>,
}

impl Window {
    pub fn new(order: Order, split: Split, ranks: Vec<u32>, epochs: Option<u32>) -> Self {
        let cursors = vec![0; ranks.len()];
        Window {
            order,
            split,
            ranks,
            epochs,
            known: Vec::new(),
            lines: VecDeque::new(),
            head: 0,
            cursors,
            open: 0,
            ahead: 0,
            spare: Vec::new(),
        }
    }

    pub fn order(&self) -> &Order {
        &self.order
    }

    pub fn split(&self) -> &Split {
        &self.split
    }

    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    pub fn supply(&mut self, epoch: u32, samples: &[u64]) -> Result<(), Error> {
        self.order.supply(epoch, samples)
    }

    pub fn rank_place(&self, rank: u32) -> Option<u64> {
        self.ranks.iter().position(|&r| r == rank).map(|p| p as u64)
    }

    /// The line of a rank's batch; `None` when the rank is not of this node or the batch doesn't exist.
    pub fn line_of(&self, rank: u32, epoch: u32, batch: u64) -> Option<u64> {
        let place = self.rank_place(rank)?;
        (batch < self.split.batches())
            .then(|| (u64::from(epoch) * self.split.batches() + batch) * self.ranks.len() as u64 + place)
    }

    /// Epoch, batch and rank of a line.
    pub fn address(&self, line: u64) -> (u32, u64, u32) {
        let (global, place) = (line / self.ranks.len() as u64, line % self.ranks.len() as u64);
        (
            (global / self.split.batches()) as u32,
            global % self.split.batches(),
            self.ranks[place as usize],
        )
    }

    /// First line in the window.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The line after the last in the window.
    pub fn end(&self) -> u64 {
        self.head + self.lines.len() as u64
    }

    pub fn line(&mut self, line: u64) -> Option<&mut Line> {
        self.lines.get_mut(line.checked_sub(self.head)? as usize)
    }

    pub fn peek(&self, line: u64) -> Option<&Line> {
        self.lines.get(line.checked_sub(self.head)? as usize)
    }

    /// The order of an epoch, if it is known and in the run.
    pub fn epoch(&mut self, epoch: u32) -> Option<&EpochOrder> {
        if self.epochs.is_some_and(|epochs| epoch >= epochs) {
            return None;
        }
        if let Some(at) = self.known.iter().position(|order| order.epoch() == epoch) {
            return Some(&self.known[at]);
        }
        let order = self.order.epoch(epoch).ok()?;
        // Consumption and look-ahead touch neighbouring epochs; a third one is a jump.
        if self.known.len() >= 3 {
            self.known.remove(0);
        }
        self.known.push(order);
        self.known.last()
    }

    /// Lays out lines up to and including `line`; false when their epoch isn't known or over.
    pub fn reach(&mut self, line: u64) -> bool {
        while self.end() <= line {
            let next = self.end();
            let (epoch, batch, rank) = self.address(next);
            let mut entries = self.spare.pop().unwrap_or_default();
            if next < self.cursors[(next % self.ranks.len() as u64) as usize] {
                self.lines.push_back(Line { entries, open: 0 });
                continue;
            }
            let positions = self.split.batch_positions(batch, rank);
            let Some(order) = self.epoch(epoch) else { return false };
            entries.extend(positions.map(|position| Entry {
                sample: order.sample_at(position),
                resident: NONE,
                read: Read::Unplanned,
                waiter: 0,
            }));
            let open = entries.len() as u32;
            self.open += u64::from(open);
            self.lines.push_back(Line { entries, open });
        }
        true
    }

    /// Whether some line of this one's rank, from it on, was consumed already: to read it again the window must be laid out anew.
    pub fn is_over_from(&self, line: u64) -> bool {
        (line..self.end()).step_by(self.ranks.len()).any(|line| {
            self.peek(line)
                .is_some_and(|l| l.open == 0 || l.entries.iter().any(|e| e.read == Read::Over))
        })
    }

    /// A rank starts at `target`; the others go on with their first line that is not over.
    pub fn set_cursors(&mut self, rank: u32, target: u64) {
        let ranks = self.ranks.len() as u64;
        for place in 0..ranks {
            let open = (self.head..self.end())
                .find(|line| line % ranks == place && self.peek(*line).is_some_and(|l| l.open > 0));
            if let Some(line) = open {
                self.cursors[place as usize] = line;
            } else if !self.lines.is_empty() {
                let end = self.end();
                self.cursors[place as usize] = end + (place + ranks - end % ranks) % ranks;
            }
        }
        if let Some(place) = self.rank_place(rank) {
            self.cursors[place as usize] = target;
        }
    }

    /// Where this node reads a sample in an epoch: line and entry.
    pub fn locate(&mut self, epoch: u32, sample: u64, rank: u32) -> Option<(u64, usize)> {
        let position = self.epoch(epoch)?.position_of(sample)?;
        let (batch, ranks) = (self.split.batch_of(position), u64::from(self.split.ranks()));
        if self.split.rank_of(position) != rank {
            return None;
        }
        let entry = (position - self.split.batch_range(batch).start) / ranks;
        Some((self.line_of(rank, epoch, batch)?, entry as usize))
    }

    /// One read of a line is over: delivered or skipped.
    pub fn close(&mut self, line: u64, entry: usize) {
        let Some(it) = self.line(line) else { return };
        let was = it.entries[entry].read;
        if was == Read::Over {
            return;
        }
        it.entries[entry].read = Read::Over;
        it.entries[entry].resident = NONE;
        it.entries[entry].waiter = 0;
        it.open -= 1;
        self.open -= 1;
        if was == Read::Planned {
            self.ahead -= 1;
        }
    }

    /// Lets finished lines leave at the front.
    pub fn advance(&mut self) {
        while self.lines.front().is_some_and(|line| line.open == 0) {
            self.head += 1;
            if let Some(mut line) = self.lines.pop_front()
                && self.spare.len() < 64
            {
                line.entries.clear();
                self.spare.push(line.entries);
            }
        }
    }

    /// Starts over at `line`, empty. Every read must be over.
    pub fn restart(&mut self, line: u64) {
        debug_assert_eq!(self.open, 0);
        self.lines.clear();
        self.head = line;
    }
}
