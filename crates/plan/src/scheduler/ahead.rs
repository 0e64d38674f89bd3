//! How far ahead to plan, and in which order reads get their memory.
//!
//! What somebody waits for comes first, in the order of the epoch whoever asked first; then the frontier walks on as far as the policy's
//! [`Lookahead`] and the memory allow. When nothing can give memory back any more and a wanted read still doesn't fit, everything planned is put
//! back and the wanted line is laid out anew, largest samples first ([`Scheduler::repack`]).

use super::residents::NONE;
use super::window::{Entry, Read};
use super::{Blocked, Next, STEP_ENTRIES, Scheduler};
use crate::action::{Action, Failure};
use crate::policy::Lookahead;
use std::hint::black_box;

/// Reads that are looked up together, before they are planned.
const WARMED: usize = 64;

impl Scheduler {
    /// Walks on: first what somebody waits for, then ahead.
    pub(super) fn plan(&mut self, actions: &mut Vec<Action>) -> Next {
        let mut budget = STEP_ENTRIES;
        while let Some(&(line, entry)) = self.wanted.first() {
            let it = self.window.peek(line).map(|l| l.entries[entry]);
            if it.is_some_and(|it| it.read == Read::Unplanned && it.waiter != 0)
                && self.plan_read(line, entry, true, actions).is_err()
            {
                if self.is_stuck() {
                    self.repack(line, actions);
                    continue;
                }
                return Next::Wait;
            }
            self.wanted.remove(&(line, entry));
            budget = budget.saturating_sub(1);
        }
        if !self.place_loose(actions) || self.settings.policy.lookahead() == Lookahead::Demand {
            return Next::Wait;
        }
        while budget > 0 {
            if self.frontier.0 < self.window.head() {
                self.frontier = (self.window.head(), 0);
            }
            let (line, entry) = self.frontier;
            if !self.may_look_ahead(line) || !self.window.reach(line) {
                return Next::Wait;
            }
            let Some(it) = self.window.peek(line) else {
                return Next::Wait;
            };
            if entry >= it.entries.len() {
                self.frontier = (line + 1, 0);
                continue;
            }
            if entry.is_multiple_of(WARMED) {
                self.warm(&it.entries[entry..it.entries.len().min(entry + WARMED)]);
            }
            if it.entries[entry].read == Read::Unplanned {
                if self.plan_read(line, entry, false, actions).is_err() {
                    return Next::Wait;
                }
                self.chunk_left = self.chunk_left.saturating_sub(1);
            }
            self.frontier.1 += 1;
            budget -= 1;
        }
        Next::Soon
    }

    /// Brings what planning these reads will look up close.
    fn warm(&self, entries: &[Entry]) {
        for it in entries {
            if !self.residents.warm(it.sample) {
                black_box(self.catalog.place(it.sample));
            }
        }
    }

    /// Memory is there but torn: puts every read back, empties the RAM tier, and plans `line` again, its largest samples first. What doesn't fit
    /// then doesn't fit at all.
    pub(super) fn repack(&mut self, line: u64, actions: &mut Vec<Action>) {
        for at in self.window.head()..self.window.end() {
            let count = self.window.peek(at).map_or(0, |l| l.entries.len());
            for entry in 0..count {
                let Some(it) = self.window.line(at).map(|l| &mut l.entries[entry]) else {
                    continue;
                };
                if it.read != Read::Planned {
                    continue;
                }
                let (waiter, resident) = (it.waiter, it.resident);
                (it.read, it.resident) = (Read::Unplanned, NONE);
                self.window.ahead -= 1;
                if waiter != 0 {
                    // Nothing is under way, so whatever was planned had arrived.
                    self.requests.one_more(waiter - 1);
                    self.wanted.insert((at, entry));
                }
                self.unuse(resident);
            }
        }
        self.frontier = (self.window.head(), 0);
        self.residents.forget_expected(&mut self.arena);
        while self.make_any_room() {}
        let mut entries: Vec<(usize, u64, u64)> = self
            .wanted
            .range((line, 0)..(line + 1, 0))
            .filter_map(|&(_, e)| self.wanted_at(line, e))
            .collect();
        entries.sort_by_key(|&(entry, len, _)| (std::cmp::Reverse(len), entry));
        for (entry, _, request) in entries {
            self.wanted.remove(&(line, entry));
            let Some(it) = self
                .window
                .peek(line)
                .map(|l| l.entries[entry])
                .filter(|it| it.waiter != 0)
            else {
                continue;
            };
            if self.plan_read(line, entry, true, actions).is_err() {
                self.refuse(request, it.sample, Failure::NoMemory, actions);
                return;
            }
        }
    }

    pub(super) fn wanted_at(&self, line: u64, entry: usize) -> Option<(usize, u64, u64)> {
        let it = self.window.peek(line)?.entries.get(entry)?;
        (it.waiter != 0).then(|| (entry, self.catalog.place(it.sample).len, it.waiter - 1))
    }

    /// Nothing will ever give memory back: no load or write is under way, and nobody holds a lease.
    pub(super) fn is_stuck(&self) -> bool {
        self.loads.is_idle() && self.residents.leases == 0
    }

    pub(super) fn may_look_ahead(&mut self, line: u64) -> bool {
        if self.window.open >= self.settings.window_entries && line >= self.window.end() {
            return false;
        }
        match self.settings.policy.lookahead() {
            Lookahead::Demand => false,
            Lookahead::Batches(ahead) => line <= self.newest_line + ahead * self.window.ranks().len() as u64,
            Lookahead::Chunk { fetch, threshold } => {
                if self.chunk_left == 0 && self.window.ahead <= u64::from(threshold) {
                    self.chunk_left = fetch;
                }
                self.chunk_left > 0
            }
            // Bounded by memory inside plan_read; a frontier that stands still costs one look per step.
            Lookahead::Bytes => true,
        }
    }

    /// Gives one read its memory and, if its bytes are elsewhere, a load.
    pub(super) fn plan_read(
        &mut self,
        line: u64,
        entry: usize,
        urgent: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), Blocked> {
        let Some(it) = self.window.peek(line) else {
            return Ok(());
        };
        let (sample, waiter) = (it.entries[entry].sample, it.entries[entry].waiter);
        let id = self.resident_for(sample, line, urgent || waiter != 0, actions)?;
        self.residents.plan_use(id);
        let it = &mut self.window.line(line).expect("the line was there a moment ago").entries[entry];
        it.resident = id;
        it.read = Read::Planned;
        self.window.ahead += 1;
        if waiter != 0 {
            self.note_waiter(id, waiter - 1, line, actions);
        }
        Ok(())
    }
}
