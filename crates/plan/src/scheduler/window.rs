//! The windows: for each rank of this node, its batches between what it has consumed and how far the plan looks ahead for it.
//!
//! A *step* is a global batch of a job, counted across epochs; a *line* is one rank's share of a step, named by a number with the step above and the rank's
//! *place* below, so that lines are ordered as they are consumed; each entry of a line is one read of one sample. Every rank of every job has a place on
//! this node, and a [`Window`] of its own over its lines: it starts, jumps back or leaves without touching another's, and its lines leave at the front
//! once all their entries are delivered or skipped. What the windows of a job share is the order, and the epochs that are known of it ([`Reader`]).
//!
//! | a rank | its window |
//! | --- | --- |
//! | hasn't started, or has left | closed: no lines, nothing is planned for it |
//! | started | `head..end` are laid out; `frontier` is where planning goes on; `newest` is the last step that was asked for |

use super::residents::NONE;
use crate::deal::{Deal, Dealt};
use crate::error::Error;
use crate::job::Largest;
use crate::order::{EpochOrder, Listed, Order};
use crate::placement::frequency::Ranking;
use crate::split::Split;
use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Bits of a line's name that tell the place.
const PLACE_BITS: u32 = 12;
const MOST_PLACES: usize = 1 << PLACE_BITS;

/// The place of a line.
pub(super) fn place_of(line: u64) -> usize {
    (line & ((1 << PLACE_BITS) - 1)) as usize
}

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

impl Entry {
    /// Whether a request may name it: it isn't over, and none does.
    pub fn is_free(&self) -> bool {
        self.read != Read::Over && self.waiter == 0
    }
}

pub(super) struct Line {
    pub entries: Vec<Entry>,
    pub open: u32,
    /// The positions of its entries, where a deal says which they are; otherwise empty.
    positions: Vec<u64>,
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
    /// The shortest that the mean interval was of late, and of how many intervals that is.
    brisk_ns: f64,
    intervals: u64,
}

/// Intervals before a rank's pace is known, and by how much its best is forgotten with each: it has doubled after 350.
const KNOWN_PACE: u64 = 32;
const FORGOTTEN: f64 = 1.002;

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
            self.intervals += 1;
            let is_known = self.intervals > KNOWN_PACE;
            self.brisk_ns = if is_known {
                self.interval_ns.min(self.brisk_ns * FORGOTTEN)
            } else {
                f64::MAX
            };
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

/// What a job reads, and which of it by this node.
pub(super) struct Reader {
    /// The job's number.
    pub job: u32,
    pub order: Order,
    pub split: Split,
    /// Which samples of a batch its ranks have, if the split doesn't say so.
    pub deal: Option<Deal>,
    /// The batches that were dealt last, by their steps: all ranks come by there.
    pub dealt: VecDeque<(u64, Dealt)>,
    /// What each node reads most often, where that counts.
    pub ranking: Option<Arc<Ranking>>,
    pub ranks: Vec<u32>,
    /// Of each rank, on this node.
    pub places: Vec<usize>,
    pub epochs: Option<u32>,
    pub known: Vec<EpochOrder>,
    /// Where its samples are among the node's: for each data set its own first number, and the node's.
    pub sets: Vec<(u64, u64)>,
    /// Number of its samples.
    pub samples: u64,
    /// Memory that it brings.
    pub ram_bytes: u64,
    /// Mean bytes of a sample.
    pub mean_bytes: u64,
    /// Bytes of a global batch, as far as this node reads it.
    pub batch_bytes: u64,
    /// The largest that one of its ranks may ask for, where that is known.
    pub largest: Option<Largest>,
    /// The epoch whose list came last: somebody who isn't in it yet may be about to begin there, and look-ahead elsewhere must not drive it out.
    pub supplied: Option<u32>,
    /// Reads planned and not over.
    pub ahead: u64,
    /// Of a chunk that is being planned, the reads left.
    pub chunk_left: u32,
    /// Nobody reads: see [`Event::Left`](crate::action::Event::Left).
    pub left: bool,
}

impl Reader {
    /// Bytes planned ahead for it, by the mean of its samples.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead.saturating_mul(self.mean_bytes)
    }

    /// The node's number of one of the job's samples.
    pub fn on_node(&self, sample: u64) -> u64 {
        let &(first, node) = match self.sets.as_slice() {
            [one] => one,
            several => &several[several.partition_point(|&(first, _)| first <= sample) - 1],
        };
        node + (sample - first)
    }

    /// The job's number of a sample of the node, where it reads that; of a data set that it reads twice, the first.
    pub fn own(&self, sample: u64) -> Option<u64> {
        let ends = self.sets.iter().skip(1).map(|&(first, _)| first).chain([self.samples]);
        let mut sets = self.sets.iter().zip(ends);
        let own = |&(&(first, node), end): &(&(u64, u64), u64)| sample >= node && sample - node < end - first;
        sets.find(own).map(|(&(first, node), _)| first + (sample - node))
    }

    /// Epoch and batch of a step.
    pub fn batch_of(&self, step: u64) -> (u32, u64) {
        let batches = self.split.batches();
        ((step / batches) as u32, step % batches)
    }

    /// The step of a batch; `None`: there is no such batch.
    pub fn step_of(&self, epoch: u32, batch: u64) -> Option<u64> {
        (batch < self.split.batches()).then(|| u64::from(epoch) * self.split.batches() + batch)
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
}

/// Batches that a deal is remembered of.
const MOST_DEALT: usize = 4;

impl Reader {
    /// What a deal says a rank reads at a step; `None`: there is no deal, or the epoch isn't known.
    fn dealt(&mut self, step: u64, rank: u32) -> Option<&[u64]> {
        let deal = self.deal.clone()?;
        if let Some(at) = self.dealt.iter().position(|(known, _)| *known == step) {
            return Some(self.dealt[at].1.of(rank));
        }
        let (epoch, batch) = self.batch_of(step);
        self.epoch(epoch)?;
        let order = self.known.iter().find(|order| order.epoch() == epoch)?;
        let dealt = deal.batch(&self.split, order, batch);
        if self.dealt.len() >= MOST_DEALT {
            self.dealt.pop_front();
        }
        self.dealt.push_back((step, dealt));
        self.dealt.back().map(|(_, dealt)| dealt.of(rank))
    }
}

/// Who has a place.
#[derive(Clone, Copy)]
struct Owner {
    job: u32,
    rank: u32,
    /// Which of the readers it is.
    reader: usize,
}

/// The windows of a node's ranks.
#[derive(Default)]
pub(super) struct Windows {
    /// The jobs that read, in the order of joining.
    readers: Vec<Reader>,
    windows: Vec<Window>,
    /// By place; `None`: it is free.
    owners: Vec<Option<Owner>>,
    /// Reads planned and not over, of all ranks.
    pub ahead: u64,
    spare: Vec<Vec<Entry>>,
}

impl Windows {
    /// Whether the node can name so many ranks more.
    ///
    /// # Errors
    /// When it can't.
    pub fn check_room(&self, ranks: usize) -> Result<(), Error> {
        if self.owners.iter().flatten().count() + ranks > MOST_PLACES {
            return Err(Error::TooManyRanks { most: MOST_PLACES });
        }
        Ok(())
    }

    /// A job joins, with closed windows; there is room for its ranks.
    pub fn join(&mut self, mut reader: Reader) {
        for &rank in &reader.ranks {
            let free = self.owners.iter().position(Option::is_none).unwrap_or_else(|| {
                self.owners.push(None);
                self.windows.push(Window::default());
                self.owners.len() - 1
            });
            self.owners[free] = Some(Owner {
                job: reader.job,
                rank,
                reader: self.readers.len(),
            });
            self.windows[free] = Window::default();
            reader.places.push(free);
        }
        self.readers.push(reader);
    }

    /// A job is gone: its places are free. All its windows must be closed.
    pub fn part(&mut self, job: u32) {
        self.readers.retain(|reader| reader.job != job);
        for slot in &mut self.owners {
            let owner = slot.filter(|owner| owner.job != job);
            let at = |owner: Owner| self.readers.iter().position(|reader| reader.job == owner.job);
            *slot = owner.and_then(|owner| {
                Some(Owner {
                    reader: at(owner)?,
                    ..owner
                })
            });
        }
    }

    /// Bytes of all jobs' global batches, as far as this node reads them.
    pub fn batch_bytes(&self) -> u64 {
        self.readers.iter().map(|reader| reader.batch_bytes).sum()
    }

    /// The largest that a rank of any job may ask for, where that is known of all.
    pub fn largest(&self) -> Option<Largest> {
        let mut of_each = self.readers.iter().map(|reader| reader.largest);
        let first = of_each.next()??;
        of_each.try_fold(first, |sum, next| Some(sum.or(next?)))
    }

    /// Memory that all jobs bring that somebody reads for.
    pub fn ram_bytes(&self) -> u64 {
        let read = self.readers.iter().filter(|reader| !reader.left);
        read.map(|reader| reader.ram_bytes).fold(0, u64::saturating_add)
    }

    /// Whether a job reads the data set whose first sample has this number on the node.
    pub fn is_read(&self, first: u64) -> bool {
        let mut sets = self.readers.iter().flat_map(|reader| &reader.sets);
        sets.any(|&(_, node)| node == first)
    }

    /// Every place that there is, free ones too.
    pub fn places(&self) -> Range<usize> {
        0..self.windows.len()
    }

    pub fn readers(&self) -> &[Reader] {
        &self.readers
    }

    pub fn reader(&self, job: u32) -> Option<&Reader> {
        self.readers.iter().find(|reader| reader.job == job)
    }

    pub fn reader_mut(&mut self, job: u32) -> Option<&mut Reader> {
        self.readers.iter_mut().find(|reader| reader.job == job)
    }

    /// The job that has a place.
    pub fn job_at(&self, place: usize) -> u32 {
        self.owners[place].map_or(u32::MAX, |owner| owner.job)
    }

    /// Who reads at a place that is taken.
    pub fn reader_at(&self, place: usize) -> Option<&Reader> {
        self.owners[place].map(|owner| &self.readers[owner.reader])
    }

    pub fn reader_at_mut(&mut self, place: usize) -> Option<&mut Reader> {
        self.owners[place].map(|owner| &mut self.readers[owner.reader])
    }

    /// The node's number of a sample that is read at a place.
    pub fn on_node(&self, place: usize, sample: u64) -> u64 {
        self.reader_at(place).map_or(sample, |reader| reader.on_node(sample))
    }

    /// A rank's place; `None` when it is not of this node.
    pub fn place_of(&self, job: u32, rank: u32) -> Option<usize> {
        let is_it = |owner: &Option<Owner>| owner.is_some_and(|owner| (owner.job, owner.rank) == (job, rank));
        self.owners.iter().position(is_it)
    }

    /// Gives a job the list of an epoch.
    pub fn supply(&mut self, job: u32, epoch: u32, list: Listed) -> Result<(), Error> {
        let Some(reader) = self.reader_mut(job) else {
            return Ok(());
        };
        reader.order.take(epoch, list)?;
        reader.dealt.clear();
        reader.supplied = Some(epoch);
        // Of a consumer's own lists the pass before this one may still be read, and what comes later is not supplied again.
        let epochs = match reader.order.is_deferred() {
            true => epoch..=epoch,
            false => epoch.saturating_sub(1)..=u32::MAX,
        };
        self.keep(job, epochs);
        Ok(())
    }

    /// Forgets the orders of all of a job's epochs but these, and those that its ranks read from now on.
    fn keep(&mut self, job: u32, epochs: RangeInclusive<u32>) {
        let Some(reader) = self.readers.iter_mut().find(|reader| reader.job == job) else {
            return;
        };
        let windows = reader.places.iter().map(|&place| &self.windows[place]);
        let read: Vec<RangeInclusive<u32>> = windows
            .filter(|window| window.is_open)
            .map(|window| reader.batch_of(window.head).0..=reader.batch_of(window.end()).0)
            .chain(reader.supplied.map(|epoch| epoch..=epoch))
            .chain([epochs])
            .collect();
        let is_read = |epoch: u32| read.iter().any(|epochs| epochs.contains(&epoch));
        reader.order.keep(is_read);
        reader.known.retain(|known| is_read(known.epoch()));
    }

    /// The order of an epoch of the job that has a place, if it is known and in the run. Before another list is made, those that nobody is in go.
    pub fn epoch(&mut self, place: usize, epoch: u32) -> Option<&EpochOrder> {
        let job = self.job_at(place);
        let order = &self.reader(job)?.order;
        if order.is_deferred() && !order.knows(epoch) {
            self.keep(job, epoch..=epoch);
        }
        self.reader_mut(job)?.epoch(epoch)
    }

    /// A rank's window, by its place.
    pub fn of(&self, place: usize) -> &Window {
        &self.windows[place]
    }

    pub fn of_mut(&mut self, place: usize) -> &mut Window {
        &mut self.windows[place]
    }

    /// How many steps lie between the ranks of a job that have started.
    pub fn spread(&self, reader: &Reader) -> u64 {
        let open = || {
            reader
                .places
                .iter()
                .map(|&place| &self.windows[place])
                .filter(|it| it.is_open)
        };
        let heads = || open().map(|window| window.head);
        heads().max().unwrap_or(0) - heads().min().unwrap_or(0)
    }

    /// By place: the step after the last that is laid out.
    pub fn ends(&self) -> Vec<u64> {
        self.windows.iter().map(Window::end).collect()
    }

    pub fn has_started(&self, place: usize) -> bool {
        self.windows[place].is_open
    }

    /// A read is planned at a place, or no longer is.
    pub fn count_ahead(&mut self, place: usize, planned: bool) {
        let change = |count: &mut u64| if planned { *count += 1 } else { *count -= 1 };
        change(&mut self.ahead);
        if let Some(reader) = self.reader_at_mut(place) {
            change(&mut reader.ahead);
        }
    }

    /// The name of a rank's share of a step.
    pub fn line_at(&self, place: usize, step: u64) -> u64 {
        step << PLACE_BITS | place as u64
    }

    /// The line that a rank comes to next.
    pub fn head_line(&self, place: usize) -> u64 {
        self.line_at(place, self.windows[place].head)
    }

    /// Step and place of a line.
    pub fn parts(&self, line: u64) -> (u64, usize) {
        (line >> PLACE_BITS, place_of(line))
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

    /// The same at the best pace that it had of late: who is held up by a source comes to it later, which doesn't make that source fast enough.
    pub fn needed_soonest_in_ns(&self, line: u64) -> f64 {
        let window = &self.windows[self.parts(line).1];
        match window.intervals > KNOWN_PACE {
            true => self.steps_left(line) as f64 * window.brisk_ns,
            false => f64::MAX,
        }
    }

    pub fn line(&mut self, line: u64) -> Option<&mut Line> {
        let (step, place) = self.parts(line);
        self.windows[place].at_mut(step)
    }

    pub fn peek(&self, line: u64) -> Option<&Line> {
        let (step, place) = self.parts(line);
        self.windows[place].at(step)
    }

    /// Lays out a started rank's lines up to and including `step`; false when their epoch isn't known or over.
    pub fn reach(&mut self, place: usize, step: u64) -> bool {
        let Some(Owner { rank, .. }) = self.owners[place] else {
            return false;
        };
        while self.windows[place].end() <= step {
            let step = self.windows[place].end();
            let Some(reader) = self.reader_at(place) else {
                return false;
            };
            let (epoch, batch) = reader.batch_of(step);
            let cards = reader.split.batch_positions(batch, rank);
            let mut entries = self.spare.pop().unwrap_or_default();
            if self.epoch(place, epoch).is_none() {
                self.spare.push(entries);
                return false;
            }
            let dealt = self.reader_at_mut(place).and_then(|reader| reader.dealt(step, rank));
            let positions = dealt.map(<[u64]>::to_vec).unwrap_or_default();
            let Some(order) = self.epoch(place, epoch) else {
                return false;
            };
            let entry = |position: u64| Entry {
                sample: order.sample_at(position),
                resident: NONE,
                read: Read::Unplanned,
                waiter: 0,
            };
            match positions.is_empty() {
                true => entries.extend(cards.map(entry)),
                false => entries.extend(positions.iter().copied().map(entry)),
            }
            let open = entries.len() as u32;
            let window = &mut self.windows[place];
            window.open += u64::from(open);
            window.lines.push_back(Line {
                entries,
                open,
                positions,
            });
        }
        true
    }

    /// Where a rank reads a position of an epoch: step and entry; `None` when it doesn't.
    pub fn find(&mut self, place: usize, epoch: u32, position: u64) -> Option<(u64, usize)> {
        let Owner { rank, reader, .. } = self.owners[place]?;
        let reader = &mut self.readers[reader];
        let split = &reader.split;
        if position >= split.positions() {
            return None;
        }
        let batch = split.batch_of(position);
        if reader.deal.is_some() {
            let step = reader.step_of(epoch, batch)?;
            let positions = match self.windows[place].at(step) {
                Some(line) => &line.positions,
                None => reader.dealt(step, rank)?,
            };
            return Some((step, positions.binary_search(&position).ok()?));
        }
        let mut own = split.batch_positions(batch, rank);
        let entry = if split.rank_of(position) == rank {
            (position - split.batch_range(batch).start) / u64::from(split.ranks())
        } else if own.next() == Some(position) {
            0 // A filler.
        } else {
            return None;
        };
        Some((reader.step_of(epoch, batch)?, entry as usize))
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
            brisk_ns: window.brisk_ns,
            intervals: window.intervals,
            ..Window::default()
        };
        if let Some(reader) = self.reader_at(place).filter(|reader| reader.order.is_deferred()) {
            let (job, epoch) = (reader.job, reader.batch_of(step).0);
            self.keep(job, epoch..=epoch);
        }
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
            self.count_ahead(place, false);
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

#[cfg(test)]
mod tests;
