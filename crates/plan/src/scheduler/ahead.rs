//! How far ahead to plan, and in which order reads get their memory.
//!
//! What somebody waits for comes first, in the order of the epoch whoever asked first. Then the ranks' frontiers walk on as far as the policy's
//! [`Lookahead`] and the memory allow, line by line: for ranks in step that is the order of the epoch, and one that is elsewhere starves nobody.
//! When nothing can give memory back any more and a wanted read still doesn't fit, everything planned is put back and its request is laid out
//! anew, largest samples first ([`Scheduler::repack`]).

use super::residents::NONE;
use super::window::{Entry, Read};
use super::{Blocked, Next, STEP_ENTRIES, Scheduler, Urgency};
use crate::action::Action;
use crate::blocks::Content;
use crate::policy::Lookahead;
use std::hint::black_box;

/// Reads that are looked up together, before they are planned.
const WARMED: usize = 64;

/// Ranks whose consumers are within so many steps of each other are in step: loaders ask that far ahead of their loops.
const IN_STEP: u64 = 64;

impl Scheduler {
    /// Walks on: first what somebody waits for, then ahead.
    pub(super) fn plan(&mut self, actions: &mut Vec<Action>) -> Next {
        let mut budget = STEP_ENTRIES;
        while let Some(&(line, entry)) = self.wanted.first() {
            let it = self.windows.peek(line).map(|l| l.entries[entry]);
            if let Some(it) = it.filter(|it| it.read == Read::Unplanned && it.waiter != 0)
                && self
                    .plan_read(line, entry, Urgency::Waited(it.waiter - 1), actions)
                    .is_err()
            {
                if self.is_stuck() {
                    self.repack(it.waiter - 1, actions);
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
        // There is less memory than there was: what is under way or in use has to end first.
        if self.arena.used_bytes() > self.ram_bytes {
            return Next::Wait;
        }
        while budget > 0 {
            let Some(place) = self.next_frontier() else {
                return Next::Wait;
            };
            if !self.plan_line(place, &mut budget, actions) {
                return Next::Wait;
            }
        }
        Next::Soon
    }

    /// The rank to plan on for, of those that may look further ahead: of the job for which the fewest bytes are planned ahead. Its ranks that are in
    /// step are planned in the order of the epoch, whoever is a little ahead: what is planned then doesn't depend on timing. Of ranks that are
    /// elsewhere, the one that is the fewest steps ahead of its consumer.
    fn next_frontier(&mut self) -> Option<usize> {
        let readers = self.windows.readers().iter().filter(|reader| !reader.left);
        let mut jobs: Vec<(u64, u32)> = readers.map(|reader| (reader.ahead_bytes(), reader.job)).collect();
        if jobs.len() > 1 {
            jobs.sort_unstable();
        }
        jobs.into_iter().find_map(|(_, job)| self.frontier_of(job))
    }

    fn frontier_of(&mut self, job: u32) -> Option<usize> {
        let reader = self.windows.reader(job)?;
        let in_step = self.windows.spread(reader) <= IN_STEP;
        let mut best = None;
        for at in 0..reader.places.len() {
            let place = self.windows.reader(job)?.places[at];
            let window = self.windows.of(place);
            let key = if in_step { window.frontier.0 } else { window.lead() };
            if self.windows.has_started(place) && best.is_none_or(|(least, _)| key < least) && self.may_plan_on(place) {
                best = Some((key, place));
            }
        }
        best.map(|(_, place)| place)
    }

    fn may_plan_on(&mut self, place: usize) -> bool {
        let (step, _) = self.windows.of(place).frontier;
        self.may_look_ahead(place, step) && self.windows.reach(place, step)
    }

    /// Plans what is left of the line at a rank's frontier. False: memory is short.
    fn plan_line(&mut self, place: usize, budget: &mut u32, actions: &mut Vec<Action>) -> bool {
        let (step, first) = self.windows.of(place).frontier;
        let line = self.windows.line_at(place, step);
        let count = self.windows.peek(line).map_or(0, |line| line.entries.len());
        // Only a chunk may be used up in the middle of a line.
        let in_chunks = matches!(self.settings.policy.lookahead(), Lookahead::Chunk { .. });
        for entry in first..count {
            if *budget == 0 || (in_chunks && entry > first && !self.may_look_ahead(place, step)) {
                return true;
            }
            let Some(it) = self.windows.peek(line) else { return true };
            if entry.is_multiple_of(WARMED) {
                self.warm(place, &it.entries[entry..count.min(entry + WARMED)]);
            }
            if it.entries[entry].read == Read::Unplanned {
                if self.plan_read(line, entry, Urgency::Ahead, actions).is_err() {
                    return false;
                }
                if let Some(reader) = self.windows.reader_at_mut(place) {
                    reader.chunk_left = reader.chunk_left.saturating_sub(1);
                }
            }
            self.windows.of_mut(place).frontier = (step, entry + 1);
            *budget -= 1;
        }
        self.windows.of_mut(place).frontier = (step + 1, 0);
        true
    }

    /// Brings what planning these reads will look up close.
    fn warm(&self, place: usize, entries: &[Entry]) {
        for it in entries {
            if !self
                .residents
                .warm(Content::block(self.library.of(self.windows.on_node(place, it.sample))))
            {
                black_box(self.library.place(self.windows.on_node(place, it.sample)));
            }
        }
    }

    /// Empties the memory: every planned read is put back, and nothing is kept. Only when nothing is under way and nobody holds a lease.
    pub(super) fn put_all_back(&mut self) {
        for place in self.windows.places() {
            let window = self.windows.of(place);
            for step in window.head()..window.end() {
                let line = self.windows.line_at(place, step);
                let count = self.windows.peek(line).map_or(0, |l| l.entries.len());
                for entry in 0..count {
                    self.put_back(line, entry, true);
                }
            }
        }
        let residents = &self.residents;
        for resident in self.requests.displace(None, |id| residents.ready(id).is_some()) {
            self.unuse(resident);
        }
        self.residents.forget_expected(&mut self.arena);
        while self.make_any_room() {}
    }

    /// Puts one planned read back, so that its memory may serve another; one that somebody waits for only if `waited` says so and its bytes are
    /// there: then it is wanted again. False: it isn't one.
    pub(super) fn put_back(&mut self, line: u64, entry: usize, waited: bool) -> bool {
        let Some(it) = self.windows.peek(line).map(|l| l.entries[entry]) else {
            return false;
        };
        if it.read != Read::Planned || (it.waiter != 0 && !(waited && self.residents.ready(it.resident).is_some())) {
            return false;
        }
        if let Some(line) = self.windows.line(line) {
            (line.entries[entry].read, line.entries[entry].resident) = (Read::Unplanned, NONE);
        }
        self.windows.count_ahead(self.windows.parts(line).1, false);
        if it.waiter != 0 {
            self.requests.one_more(it.waiter - 1);
            self.wanted.insert((line, entry));
        }
        let (step, place) = self.windows.parts(line);
        let window = self.windows.of_mut(place);
        window.frontier = window.frontier.min((step, entry));
        self.unuse(it.resident);
        true
    }

    /// All reads that were to come from a resident are to be planned anew; who waits for them goes on waiting.
    pub(super) fn unplan_all(&mut self, resident: u32) {
        for place in self.windows.places() {
            let window = self.windows.of(place);
            for step in window.head()..window.end() {
                let line = self.windows.line_at(place, step);
                let Some(entries) = self.windows.line(line).map(|line| &mut line.entries) else {
                    continue;
                };
                let mut found = Vec::new();
                for (entry, it) in entries.iter_mut().enumerate() {
                    if it.read == Read::Planned && it.resident == resident {
                        (it.read, it.resident) = (Read::Unplanned, NONE);
                        found.push((entry, it.waiter));
                    }
                }
                for &(entry, waiter) in &found {
                    self.windows.count_ahead(place, false);
                    self.residents.get_mut(resident).uses -= 1;
                    if waiter != 0 {
                        self.wanted.insert((line, entry));
                    }
                }
                if let Some(&(entry, _)) = found.first() {
                    let window = self.windows.of_mut(place);
                    window.frontier = window.frontier.min((step, entry));
                }
            }
        }
        self.residents.get_mut(resident).uses -= self.requests.displace_all(resident);
    }

    /// Nothing will ever give memory back: no load or write is under way, and nobody holds a lease.
    pub(super) fn is_stuck(&self) -> bool {
        self.loads.is_idle() && self.residents.leases == 0
    }

    fn may_look_ahead(&mut self, place: usize, step: u64) -> bool {
        let window = self.windows.of(place);
        let most = (self.settings.window_entries / self.windows.places().len() as u64).max(1);
        if window.open >= most && step >= window.end() {
            return false;
        }
        match self.settings.policy.lookahead() {
            Lookahead::Demand => false,
            Lookahead::Batches(ahead) => step <= window.newest + ahead,
            Lookahead::Chunk { fetch, threshold } => {
                let Some(reader) = self.windows.reader_at_mut(place) else {
                    return false;
                };
                if reader.chunk_left == 0 && reader.ahead <= u64::from(threshold) {
                    reader.chunk_left = fetch;
                }
                reader.chunk_left > 0
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
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) -> Result<(), Blocked> {
        let Some(it) = self.windows.peek(line) else {
            return Ok(());
        };
        let (sample, waiter) = (it.entries[entry].sample, it.entries[entry].waiter);
        let place = self.windows.parts(line).1;
        let id = self.resident_for(self.windows.on_node(place, sample), line, urgency, actions)?;
        self.residents.plan_use(id);
        let it = &mut self
            .windows
            .line(line)
            .expect("the line was there a moment ago")
            .entries[entry];
        it.resident = id;
        it.read = Read::Planned;
        self.windows.count_ahead(place, true);
        if waiter != 0 {
            self.note_waiter(id, waiter - 1, line, actions);
        }
        Ok(())
    }
}
