//! Requests: what consumers wait for, and its delivery.
//!
//! A request is served all at once, when everything it names is in memory; until then it holds nothing that another could need first. What it names are
//! entries of the window (the planned reads), or, for a sample that this rank's order doesn't hold soon, a read of its own (*loose*).

use super::residents::State;
use super::window::Read;
use super::{Scheduler, Via};
use crate::action::{Action, Command, Failure, Item};
use crate::policy::{Lookahead, Retention};
use std::collections::BTreeMap;

/// How many lines beyond the window a named sample may lie and still be read in order.
const NEAR_LINES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A read of the window: line and entry.
    Entry(u64, usize),
    /// A read of its own.
    Loose(u32),
    /// A read of its own that has no memory yet.
    Unplaced(u64),
}

struct Request {
    rank: u32,
    since_ns: u64,
    targets: Vec<Target>,
    missing: u32,
}

#[derive(Default)]
pub(super) struct Requests {
    /// By id: askers count up, so this is also their order.
    open: BTreeMap<u64, Request>,
    /// Requests with unplaced reads, oldest first.
    pub unplaced: std::collections::VecDeque<u64>,
}

impl Requests {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn of_rank(&self, rank: u32) -> Vec<u64> {
        self.open
            .iter()
            .filter(|(_, request)| request.rank == rank)
            .map(|(&id, _)| id)
            .collect()
    }

    /// Whether a request is open that was made after `then_ns`.
    pub fn began_after(&self, id: u64, then_ns: u64) -> bool {
        self.open.get(&id).is_some_and(|request| request.since_ns > then_ns)
    }

    /// Something that a request had was put back.
    pub fn one_more(&mut self, id: u64) {
        if let Some(request) = self.open.get_mut(&id) {
            request.missing += 1;
        }
    }

    pub fn open(&self) -> impl Iterator<Item = (u64, u64, &[Target])> {
        self.open
            .iter()
            .map(|(&id, request)| (id, request.since_ns, request.targets.as_slice()))
    }
}

impl Scheduler {
    pub(super) fn want_batch(&mut self, request: u64, rank: u32, epoch: u32, batch: u64, actions: &mut Vec<Action>) {
        let line = self
            .window
            .line_of(rank, epoch, batch)
            .filter(|&line| line >= self.window.head());
        let Some(line) = line.filter(|&line| line < self.window.end() + NEAR_LINES && self.window.reach(line)) else {
            actions.push(self.loads.action(Command::Refuse {
                request,
                sample: None,
                failure: Failure::Final,
            }));
            return;
        };
        // A line before the rank's start has no entries: refused like one that is over.
        let count = self.window.peek(line).map_or(0, |l| l.entries.len());
        let targets: Vec<Target> = (0..count).map(|entry| Target::Entry(line, entry)).collect();
        if targets.is_empty() {
            actions.push(self.loads.action(Command::Refuse {
                request,
                sample: None,
                failure: Failure::Final,
            }));
            return;
        }
        self.open_request(request, rank, targets, actions);
    }

    pub(super) fn want_samples(&mut self, request: u64, rank: u32, samples: &[u64], actions: &mut Vec<Action>) {
        let mut targets: Vec<Target> = Vec::with_capacity(samples.len());
        for &sample in samples {
            let target = self
                .find_read(rank, sample, &targets)
                .map_or(Target::Unplaced(sample), |(line, entry)| Target::Entry(line, entry));
            targets.push(target);
        }
        self.open_request(request, rank, targets, actions);
    }

    /// The next read of a sample by a rank that nobody has claimed: in the epoch at the head of the window, or the one after it.
    fn find_read(&mut self, rank: u32, sample: u64, claimed: &[Target]) -> Option<(u64, usize)> {
        if sample >= self.catalog.samples() {
            return None;
        }
        let (epoch, ..) = self.window.address(self.window.head());
        for epoch in [epoch, epoch + 1] {
            let Some((line, entry)) = self.window.locate(epoch, sample, rank) else {
                continue;
            };
            if line < self.window.head() || line >= self.window.end() + NEAR_LINES || !self.window.reach(line) {
                continue;
            }
            let free = self.window.peek(line).is_some_and(|l| {
                l.entries
                    .get(entry)
                    .is_some_and(|e| e.sample == sample && e.read != Read::Over && e.waiter == 0)
            });
            if free && !claimed.contains(&Target::Entry(line, entry)) {
                return Some((line, entry));
            }
        }
        None
    }

    fn open_request(&mut self, id: u64, rank: u32, targets: Vec<Target>, actions: &mut Vec<Action>) {
        let (mut lost, mut taken) = (false, false);
        for target in &targets {
            match *target {
                Target::Entry(line, entry) => {
                    let claimed = self
                        .window
                        .peek(line)
                        .is_some_and(|l| l.entries[entry].waiter != 0 || l.entries[entry].read == Read::Over);
                    taken |= claimed;
                    self.newest_line = self.newest_line.max(line);
                }
                Target::Unplaced(sample) => lost |= sample >= self.catalog.samples(),
                Target::Loose(_) => {}
            }
        }
        if lost || taken || self.requests.open.contains_key(&id) {
            actions.push(self.loads.action(Command::Refuse {
                request: id,
                sample: None,
                failure: Failure::Final,
            }));
            return;
        }
        let missing = targets.len() as u32;
        let loose = targets.iter().any(|target| matches!(target, Target::Unplaced(_)));
        self.requests.open.insert(
            id,
            Request {
                rank,
                since_ns: self.now_ns,
                targets: targets.clone(),
                missing,
            },
        );
        if loose {
            self.requests.unplaced.push_back(id);
        }
        for target in targets {
            let Target::Entry(line, entry) = target else { continue };
            let Some(it) = self.window.line(line) else { continue };
            let it = &mut it.entries[entry];
            it.waiter = id + 1;
            match it.read {
                Read::Unplanned => drop(self.wanted.insert((line, entry))),
                _ => {
                    let resident = it.resident;
                    self.note_waiter(resident, id, line, actions);
                }
            }
        }
        if missing == 0 {
            self.deliver(id, actions);
        }
    }

    /// A planned read has somebody waiting: at once if the bytes are there.
    pub(super) fn note_waiter(&mut self, resident: u32, request: u64, line: u64, actions: &mut Vec<Action>) {
        let it = self.residents.get_mut(resident);
        match it.state {
            State::Ready => self.one_less(request, actions),
            State::Failed(_) if it.parts == 0 => {
                it.attempt = 0;
                self.residents.wait(resident, request);
                self.reload(resident, line);
            }
            _ => self.residents.wait(resident, request),
        }
    }

    pub(super) fn one_less(&mut self, request: u64, actions: &mut Vec<Action>) {
        let Some(open) = self.requests.open.get_mut(&request) else {
            return;
        };
        open.missing -= 1;
        if open.missing == 0 {
            self.deliver(request, actions);
        }
    }

    /// Gives the loose reads of waiting requests their memory, oldest first. False: there is none yet.
    pub(super) fn place_loose(&mut self, actions: &mut Vec<Action>) -> bool {
        while let Some(&id) = self.requests.unplaced.front() {
            let Some(open) = self.requests.open.get(&id) else {
                self.requests.unplaced.pop_front();
                continue;
            };
            let next = open
                .targets
                .iter()
                .position(|target| matches!(target, Target::Unplaced(_)));
            let Some((at, Target::Unplaced(sample))) = next.map(|at| (at, open.targets[at])) else {
                self.requests.unplaced.pop_front();
                continue;
            };
            let line = self.window.head();
            let Ok(resident) = self.resident_for(sample, line, true, actions) else {
                if self.is_stuck() {
                    self.refuse(id, sample, Failure::NoMemory, actions);
                    continue;
                }
                return false;
            };
            self.residents.plan_use(resident);
            if let Some(open) = self.requests.open.get_mut(&id) {
                open.targets[at] = Target::Loose(resident);
            }
            self.note_waiter(resident, id, line, actions);
        }
        true
    }

    fn deliver(&mut self, id: u64, actions: &mut Vec<Action>) {
        let Some(open) = self.requests.open.remove(&id) else {
            return;
        };
        let mut items = Vec::with_capacity(open.targets.len());
        let touch = self.settings.policy.retention() == Retention::Lru;
        let mut newest = None;
        for target in open.targets {
            let resident = match target {
                Target::Entry(line, entry) => {
                    let Some(it) = self.window.peek(line) else { continue };
                    let resident = it.entries[entry].resident;
                    self.window.close(line, entry);
                    newest = newest.max(Some(line));
                    resident
                }
                Target::Loose(resident) => resident,
                Target::Unplaced(_) => continue,
            };
            let handle = self.residents.lease(resident);
            let it = self.residents.get_mut(resident);
            it.uses -= 1;
            items.push(Item {
                sample: it.sample,
                handle,
                slot: it.slot,
                via: it.via,
            });
            it.via = Via::Ram;
            if touch {
                self.residents.refresh(resident);
            }
        }
        if let Some(line) = newest {
            self.pace(line);
        }
        self.window.advance();
        // Half of staging must stay for what comes next.
        let copy = self.residents.leased_bytes > self.staging_bytes / 2;
        actions.push(self.loads.action(Command::Deliver {
            request: id,
            items,
            copy,
        }));
    }

    /// Learns how fast lines are consumed: the deadlines of hedging.
    fn pace(&mut self, line: u64) {
        let ranks = self.window.ranks().len() as f64;
        if self.last_delivery_ns > 0 {
            let interval = (self.now_ns - self.last_delivery_ns) as f64 / ranks;
            self.line_interval_ns += (interval - self.line_interval_ns) / 16.0;
        }
        self.last_delivery_ns = self.now_ns;
        self.newest_line = self.newest_line.max(line);
    }

    /// Tells a request that one of its samples failed; the others go back to being planned reads.
    pub(super) fn refuse(&mut self, id: u64, sample: u64, failure: Failure, actions: &mut Vec<Action>) {
        if self.requests.open.contains_key(&id) {
            self.withdraw(id);
            actions.push(self.loads.action(Command::Refuse {
                request: id,
                sample: Some(sample),
                failure,
            }));
        }
    }

    pub(super) fn withdraw(&mut self, id: u64) {
        let Some(open) = self.requests.open.remove(&id) else {
            return;
        };
        let demand = self.settings.policy.lookahead() == Lookahead::Demand;
        for target in open.targets {
            match target {
                Target::Entry(line, entry) => {
                    let Some(it) = self.window.line(line) else { continue };
                    let it = &mut it.entries[entry];
                    it.waiter = 0;
                    let (read, resident) = (it.read, it.resident);
                    if demand && read == Read::Planned {
                        it.read = Read::Unplanned;
                        self.window.ahead -= 1;
                        self.unuse(resident);
                    }
                }
                Target::Loose(resident) => self.unuse(resident),
                Target::Unplaced(_) => {}
            }
        }
    }
}
