//! The windows: for each rank of this node, its batches between what it has consumed and how far the plan looks ahead for it.
//!
//! A *step* is a global batch, counted across epochs; a *line* is one rank's share of a step, named by a number with the step above and the rank's place
//! among this node's below, so that lines are ordered as they are consumed; each entry of a line is one read of one sample. Every rank has a [`Window`] of its own over its lines: it starts, jumps back or leaves without touching
//! another's, and its lines leave at the front once all their entries are delivered or skipped. What the windows share is the order, the epochs that
//! are known of it, and the count of reads ahead.
//!
//! | a rank | its window |
//! | --- | --- |
//! | hasn't started, or has left | closed: no lines, nothing is planned for it |
//! | started | `head..end` are laid out; `frontier` is where planning goes on; `newest` is the last step that was asked for |

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

/// One rank's window. Steps in it count across epochs.
#[derive(Default)]
pub(super) struct Window {
    lines: VecDeque<Line>,
    head: u64,
    is_open: bool,
    /// Where planning goes on: step and entry.
    pub frontier: (u64, usize),
    /// The last step that was asked for, or with which the rank started.
    pub newest: u64,
    /// Reads in it that are not over.
    pub open: u64,
    delivered_ns: u64,
    interval_ns: f64,
}

impl Window {
    /// First step in the window.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The step after the last that is laid out.
    pub fn end(&self) -> u64 {
        self.head + self.lines.len() as u64
    }

    /// How many steps planning is ahead of consumption.
    pub fn lead(&self) -> u64 {
        self.frontier.0.saturating_sub(self.head)
    }

    /// Learns how fast the rank consumes: the deadlines of hedging.
    pub fn pace(&mut self, now_ns: u64) {
        if self.delivered_ns > 0 {
            let interval_ns = (now_ns - self.delivered_ns) as f64;
            self.interval_ns += (interval_ns - self.interval_ns) / 16.0;
        }
        self.delivered_ns = now_ns;
    }

    /// Whether some line from `step` on was consumed already: to read it again, it must be laid out anew.
    pub fn is_over_from(&self, step: u64) -> bool {
        let from = step.saturating_sub(self.head) as usize;
        self.lines
            .iter()
            .skip(from)
            .any(|line| line.open == 0 || line.entries.iter().any(|it| it.read == Read::Over))
    }

    fn at(&self, step: u64) -> Option<&Line> {
        self.lines.get(step.checked_sub(self.head)? as usize)
    }

    fn at_mut(&mut self, step: u64) -> Option<&mut Line> {
        self.lines.get_mut(step.checked_sub(self.head)? as usize)
    }
}

/// The windows of a node's ranks, over one order.
pub(super) struct Windows {
    order: Order,
    split: Split,
    ranks: Vec<u32>,
    /// Bits of a line's name that tell the rank: a division for each look at a line would cost more than the look.
    place_bits: u32,
    epochs: Option<u32>,
    known: Vec<EpochOrder>,
    windows: Vec<Window>,
    /// Reads planned and not over, of all ranks.
    pub ahead: u64,
    spare: Vec<Vec<Entry>>,
}

impl Windows {
    /// Closed windows for `ranks`.
    ///
    /// # Errors
    /// When a rank doesn't exist or is named twice, or none is named.
    pub fn new(order: Order, split: Split, ranks: Vec<u32>, epochs: Option<u32>) -> Result<Self, Error> {
        split.check_ranks(&ranks)?;
        Ok(Windows {
            order,
            split,
            place_bits: ranks.len().next_power_of_two().trailing_zeros(),
            windows: ranks.iter().map(|_| Window::default()).collect(),
            ranks,
            epochs,
            known: Vec::new(),
            ahead: 0,
            spare: Vec::new(),
        })
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
        self.order.supply(epoch, samples)?;
        // The pass before this one may still be read; what is older is supplied anew when somebody goes back.
        let first = epoch.saturating_sub(1);
        self.order.forget_before(first);
        self.known.retain(|known| known.epoch() >= first);
        Ok(())
    }

    /// A rank's place among this node's; `None` when it is not of this node.
    pub fn place_of(&self, rank: u32) -> Option<usize> {
        self.ranks.iter().position(|&r| r == rank)
    }

    /// A rank's window, by its place.
    pub fn of(&self, place: usize) -> &Window {
        &self.windows[place]
    }

    pub fn of_mut(&mut self, place: usize) -> &mut Window {
        &mut self.windows[place]
    }

    /// How many steps lie between the ranks that have started.
    pub fn spread(&self) -> u64 {
        let heads = || {
            self.windows
                .iter()
                .filter(|window| window.is_open)
                .map(|window| window.head)
        };
        heads().max().unwrap_or(0) - heads().min().unwrap_or(0)
    }

    /// By place: the step after the last that is laid out.
    pub fn ends(&self) -> Vec<u64> {
        self.windows.iter().map(Window::end).collect()
    }

    pub fn has_started(&self, place: usize) -> bool {
        self.windows[place].is_open
    }

    /// The step of a batch; `None`: there is no such batch.
    pub fn step_of(&self, epoch: u32, batch: u64) -> Option<u64> {
        (batch < self.split.batches()).then(|| u64::from(epoch) * self.split.batches() + batch)
    }

    /// The name of a rank's share of a step.
    pub fn line_at(&self, place: usize, step: u64) -> u64 {
        step << self.place_bits | place as u64
    }

    /// Step and place of a line.
    pub fn parts(&self, line: u64) -> (u64, usize) {
        (line >> self.place_bits, (line & ((1 << self.place_bits) - 1)) as usize)
    }

    /// Epoch and batch of a step.
    pub fn batch_of(&self, step: u64) -> (u32, u64) {
        let batches = self.split.batches();
        ((step / batches) as u32, step % batches)
    }

    /// How many steps its rank has before it comes to a line.
    pub fn steps_left(&self, line: u64) -> u64 {
        let (step, place) = self.parts(line);
        step.saturating_sub(self.windows[place].head)
    }

    /// In how many nanoseconds its rank comes to a line, as far as is known.
    pub fn needed_in_ns(&self, line: u64) -> f64 {
        self.steps_left(line) as f64 * self.windows[self.parts(line).1].interval_ns
    }

    pub fn line(&mut self, line: u64) -> Option<&mut Line> {
        let (step, place) = self.parts(line);
        self.windows[place].at_mut(step)
    }

    pub fn peek(&self, line: u64) -> Option<&Line> {
        let (step, place) = self.parts(line);
        self.windows[place].at(step)
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

    /// Lays out a started rank's lines up to and including `step`; false when their epoch isn't known or over.
    pub fn reach(&mut self, place: usize, step: u64) -> bool {
        let rank = self.ranks[place];
        while self.windows[place].end() <= step {
            let (epoch, batch) = self.batch_of(self.windows[place].end());
            let positions = self.split.batch_positions(batch, rank);
            let mut entries = self.spare.pop().unwrap_or_default();
            let Some(order) = self.epoch(epoch) else {
                self.spare.push(entries);
                return false;
            };
            entries.extend(positions.map(|position| Entry {
                sample: order.sample_at(position),
                resident: NONE,
                read: Read::Unplanned,
                waiter: 0,
            }));
            let open = entries.len() as u32;
            let window = &mut self.windows[place];
            window.open += u64::from(open);
            window.lines.push_back(Line { entries, open });
        }
        true
    }

    /// Where a rank reads a position of an epoch: step and entry; `None` when it doesn't.
    pub fn find(&self, place: usize, epoch: u32, position: u64) -> Option<(u64, usize)> {
        if position >= self.split.positions() {
            return None;
        }
        let (batch, rank) = (self.split.batch_of(position), self.ranks[place]);
        let mut own = self.split.batch_positions(batch, rank);
        let entry = if self.split.rank_of(position) == rank {
            (position - self.split.batch_range(batch).start) / u64::from(self.split.ranks())
        } else if own.next() == Some(position) {
            0 // A filler.
        } else {
            return None;
        };
        Some((self.step_of(epoch, batch)?, entry as usize))
    }

    /// A rank that has no lines starts at `step`.
    pub fn begin(&mut self, place: usize, step: u64) {
        let window = &mut self.windows[place];
        debug_assert!(window.lines.is_empty() && window.open == 0);
        *window = Window {
            head: step,
            frontier: (step, 0),
            newest: step,
            is_open: true,
            delivered_ns: 0,
            interval_ns: window.interval_ns,
            ..Window::default()
        };
    }

    /// Takes a rank's last line back, if nothing in it is planned or waited for. False: something is.
    pub fn retract(&mut self, place: usize) -> bool {
        let window = &mut self.windows[place];
        let blank = |it: &Entry| it.read == Read::Unplanned && it.waiter == 0;
        let Some(mut line) = window.lines.pop_back() else {
            return false;
        };
        if !line.entries.iter().all(blank) {
            window.lines.push_back(line);
            return false;
        }
        window.open -= u64::from(line.open);
        window.frontier = window.frontier.min((window.end(), 0));
        line.entries.clear();
        self.spare.push(line.entries);
        true
    }

    /// Empties a rank's window, and closes it. Every read of it must be over.
    pub fn end(&mut self, place: usize) {
        debug_assert_eq!(self.windows[place].open, 0);
        self.advance(place);
        self.windows[place].is_open = false;
    }

    /// One read of a line is over: delivered or skipped.
    pub fn close(&mut self, line: u64, entry: usize) {
        let (step, place) = self.parts(line);
        let Some(it) = self.windows[place].at_mut(step) else {
            return;
        };
        let was = it.entries[entry].read;
        if was == Read::Over {
            return;
        }
        it.entries[entry].read = Read::Over;
        it.entries[entry].resident = NONE;
        it.entries[entry].waiter = 0;
        it.open -= 1;
        self.windows[place].open -= 1;
        if was == Read::Planned {
            self.ahead -= 1;
        }
    }

    /// Lets a rank's finished lines leave at the front.
    pub fn advance(&mut self, place: usize) {
        let window = &mut self.windows[place];
        while window.lines.front().is_some_and(|line| line.open == 0) {
            window.head += 1;
            if let Some(mut line) = window.lines.pop_front()
                && self.spare.len() < 64
            {
                line.entries.clear();
                self.spare.push(line.entries);
            }
        }
        if window.frontier.0 < window.head {
            window.frontier = (window.head, 0);
        }
    }
}
