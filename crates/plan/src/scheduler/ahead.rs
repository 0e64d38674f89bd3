//! How far ahead to plan, and in which order reads get their memory.
//!
//! What somebody waits for comes first, in the order of the epoch whoever asked first. Then the ranks' frontiers walk on as far as the policy's
//! [`Lookahead`] and the memory allow, line by line: for ranks in step that is the order of the epoch, and one that is elsewhere starves nobody.
//! When nothing can give memory back any more and a wanted read still doesn't fit, everything planned is put back and its request is laid out
//! anew, largest samples first ([`Scheduler::repack`]).

use super::memory::Turn;
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
            if let Some(request) = self.place_wanted(line, entry, actions) {
                // Nobody may wait for the first yet.
                let (placed, first) = self.place_awaited(actions);
                let (line, request) = first.unwrap_or((line, request));
                let turn = Turn::of_entry(line, self.requests.is_awaited(request));
                let is_loose_first = self.loose_turn().is_some_and(|loose| loose < turn);
                if placed
                    || is_loose_first && self.place_loose(actions)
                    || !is_loose_first && self.repack(request, actions)
                {
                    continue;
                }
                return Next::Wait;
            }
            budget = budget.saturating_sub(1);
        }
        if !self.place_loose(actions) {
            return Next::Wait;
        }
        self.place_guests(actions);
        if self.settings.policy.lookahead() == Lookahead::Demand {
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

    /// Gives a wanted read its memory. Otherwise: the request that has to wait for it.
    fn place_wanted(&mut self, line: u64, entry: usize, actions: &mut Vec<Action>) -> Option<u64> {
        let it = self.windows.peek(line).map(|l| l.entries[entry]);
        if let Some(it) = it.filter(|it| it.read == Read::Unplanned && it.waiter != 0) {
            let request = it.waiter - 1;
            let planned = self.plan_read(line, entry, Urgency::Waited(request), actions);
            if planned.is_err() {
                return Some(request);
            }
        }
        self.wanted.remove(&(line, entry));
        None
    }

    /// Gives wanted reads their memory whose askers do nothing but wait, in their order. Answers with whether any got it, and with line and request of the
    /// first that didn't.
    fn place_awaited(&mut self, actions: &mut Vec<Action>) -> (bool, Option<(u64, u64)>) {
        if !self.requests.are_awaited() {
            return (false, None);
        }
        let waiter = |line: u64, entry: usize| self.windows.peek(line).map_or(0, |line| line.entries[entry].waiter);
        let awaited = |&&(line, entry): &&(u64, usize)| match waiter(line, entry) {
            0 => false,
            waiter => self.requests.is_awaited(waiter - 1),
        };
        let found: Vec<(u64, usize)> = self.wanted.iter().filter(awaited).copied().collect();
        for (at, &(line, entry)) in found.iter().enumerate() {
            if let Some(request) = self.place_wanted(line, entry, actions) {
                return (at > 0, Some((line, request)));
            }
        }
        (!found.is_empty(), None)
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

    /// Empties the memory of all that nobody holds: every planned read is put back, and nothing is kept. Only when nothing is under way.
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
        for resident in self
            .requests
            .displace(|_, _, _| true, |id| residents.ready(id).is_some())
        {
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
        if step >= window.newest {
            // What the consumer has passed is planned again when it asks for it after all.
            window.frontier = window.frontier.min((step, entry));
        }
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
        // It may wait for a rank that needs it later.
        self.hurry(id, self.asker(line));
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

#[cfg(test)]
mod tests {
    use super::super::hand::{Hand, reads, settings};
    use super::*;
    use crate::action::{Event, Failure};
    use crate::policy::Policy;
    use crate::settings::Settings;

    fn hand(policy: Policy, samples: usize) -> Hand {
        Hand::new(settings(policy, 64 << 10), &reads(&vec![1000; samples], 1))
    }

    fn up_to(samples: u64) -> Vec<u64> {
        (0..samples).collect()
    }

    #[test]
    fn on_demand_nothing_is_planned_before_it_is_asked_for() {
        let mut hand = hand(Policy::Naive, 12);
        assert_eq!((hand.objects(), hand.next), (vec![], Next::Wait));
        hand.want(1, 0, 0);
        assert_eq!(hand.objects(), up_to(4));
    }

    #[test]
    fn a_buffer_of_one_batch_goes_one_beyond_the_newest_that_was_asked_for() {
        let mut hand = hand(Policy::Staging, 100);
        assert_eq!(hand.objects(), up_to(8));
        hand.want(1, 0, 0);
        hand.land_all();
        assert_eq!(
            hand.plan.windows.ahead, 4,
            "the first is asked for, and its next is there"
        );
        hand.want(2, 0, 1);
        assert_eq!(hand.objects(), [8, 9, 10, 11]);
    }

    #[test]
    fn a_chunk_is_ordered_when_so_few_reads_are_left() {
        let deli = Policy::Deli {
            fetch: 6,
            threshold: 2,
            cache: 100,
        };
        let mut hand = hand(deli, 100);
        assert_eq!(hand.objects(), up_to(6), "a chunk ends within a batch");
        hand.land_all();
        hand.want_reads(1, &[(0, 0), (0, 1), (0, 2)]);
        assert!(hand.objects().is_empty(), "three are left");
        hand.want_reads(2, &[(0, 3)]);
        assert_eq!(hand.objects(), [6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn by_bytes_it_goes_as_far_as_memory_reaches_and_on_as_that_comes_back() {
        let settings = settings(Policy::Foreload, 32 << 10);
        let mut hand = Hand::new(settings, &reads(&[1000; 100], 1));
        // Three batches pass through, less an eighth: ten samples. The rest of 32 KiB stays: twenty.
        assert_eq!(hand.plan.staging_bytes, 12_000);
        assert_eq!(hand.plan.windows.ahead, 30);
        for batch in 0..25 {
            assert_eq!(hand.read(batch, 0, batch), [0, 1, 2, 3].map(|row| 4 * batch + row));
            assert!(hand.used_bytes() <= 30 * 1024);
        }
        assert_eq!(hand.plan.residents.kept_samples, 20);
    }

    #[test]
    fn it_ends_with_the_run_and_with_so_many_entries_shared_by_all_ranks() {
        let mut once = reads(&[1000; 12], 1);
        once.epochs = Some(1);
        let hand = Hand::new(settings(Policy::Foreload, 64 << 10), &once);
        assert_eq!(hand.plan.windows.ahead, 12);
        let few = Settings {
            window_entries: 8,
            ..settings(Policy::Foreload, 64 << 10)
        };
        for world in [1, 2] {
            let hand = Hand::new(few.clone(), &reads(&[1000; 100], world));
            assert_eq!(hand.plan.windows.ahead, 8, "{world} ranks");
        }
    }

    #[test]
    fn nothing_is_planned_for_a_rank_that_has_not_started_or_has_left() {
        let settings = settings(Policy::Staging, 64 << 10);
        let mut hand = Hand::bare(settings, &reads(&[1000; 100], 2));
        hand.start(0, 1, 0, 0);
        assert_eq!(hand.objects(), [1, 3, 5, 7]);
        hand.start(0, 0, 0, 1);
        assert_eq!(hand.objects()[4..], [4, 6, 8, 10]);
        hand.step(Event::Leave { job: 0, rank: 1 });
        hand.land_all();
        assert_eq!(hand.plan.windows.ahead, 4);
        assert!([4, 6, 8, 10].iter().all(|&sample| hand.is_there(sample)));
    }

    #[test]
    fn a_step_plans_so_many_entries_and_asks_for_another_one() {
        let long = Settings {
            window_entries: 3000,
            ..settings(Policy::Foreload, 8 << 20)
        };
        let mut hand = Hand::new(long, &reads(&[1000; 4000], 1));
        let mut planned = vec![hand.plan.windows.ahead];
        while hand.next == Next::Soon {
            hand.step(Event::Tick);
            planned.push(hand.plan.windows.ahead);
        }
        assert_eq!(planned, [1024, 2048, 3000]);
    }

    /// Two ranks that are `heads` and `frontiers` far; which of the two is planned for.
    fn planned_for(heads: [u64; 2], frontiers: [u64; 2]) -> Option<usize> {
        let settings = settings(Policy::Foreload, 64 << 10);
        let mut hand = Hand::bare(settings, &reads(&[1000; 100], 2));
        for place in [0, 1] {
            hand.plan.windows.begin(place, heads[place]);
            hand.plan.windows.of_mut(place).frontier = (frontiers[place], 0);
        }
        hand.plan.frontier_of(0)
    }

    #[test]
    fn ranks_in_step_are_planned_in_the_order_of_the_epoch_and_others_by_their_lead() {
        assert_eq!(
            planned_for([0, 4], [3, 5]),
            Some(0),
            "though the second has less ahead of it"
        );
        assert_eq!(planned_for([4, 0], [5, 3]), Some(1));
        assert_eq!(planned_for([0, IN_STEP], [9, IN_STEP]), Some(0));
        assert_eq!(
            planned_for([0, IN_STEP + 1], [9, IN_STEP + 1]),
            Some(1),
            "one that is elsewhere starves nobody"
        );
    }

    #[test]
    fn the_job_with_the_fewest_bytes_ahead_comes_next() {
        let settings = settings(Policy::Foreload, 64 << 10);
        let mut hand = Hand::bare(settings, &reads(&[1000; 100], 1));
        hand.step(Event::Join {
            job: 7,
            reads: Box::new(reads(&[1000; 100], 1)),
        });
        [0, 1].into_iter().for_each(|place| hand.plan.windows.begin(place, 0));
        let mut next = |ahead: [u64; 2], mean_bytes: u64| {
            for (job, ahead) in [0, 7].into_iter().zip(ahead) {
                hand.plan.windows.reader_mut(job).expect("joined").ahead = ahead;
            }
            hand.plan.windows.reader_mut(7).expect("joined").mean_bytes = mean_bytes;
            hand.plan.next_frontier()
        };
        assert_eq!([next([5, 4], 1000), next([4, 5], 1000)], [Some(1), Some(0)]);
        assert_eq!([next([5, 4], 2000), next([5, 5], 1000)], [Some(0), Some(0)]);
        let reader = hand.plan.windows.reader_mut(7).expect("joined");
        (reader.left, reader.ahead) = (true, 0);
        assert_eq!(hand.plan.next_frontier(), Some(0), "nobody reads for the other");
    }

    #[test]
    fn a_read_that_is_put_back_is_planned_again_from_there() {
        let mut hand = hand(Policy::Foreload, 12);
        hand.land_all();
        let (line, ahead) = (hand.plan.windows.line_at(0, 2), hand.plan.windows.ahead);
        assert!(hand.plan.put_back(line, 1, false));
        assert!(!hand.plan.put_back(line, 1, false), "it is");
        assert_eq!(hand.plan.windows.ahead, ahead - 1);
        assert_eq!(hand.plan.windows.of(0).frontier, (2, 1));
        assert!(hand.plan.wanted.is_empty());
        hand.step(Event::Tick);
        assert_eq!(hand.plan.windows.ahead, ahead);
    }

    #[test]
    fn a_read_that_is_waited_for_is_put_back_only_where_its_bytes_are_there_and_is_wanted_then() {
        let mut hand = hand(Policy::Foreload, 12);
        hand.want(1, 0, 0);
        [0, 1, 2].into_iter().for_each(|object| hand.land(object));
        let line = hand.plan.windows.line_at(0, 0);
        assert!(!hand.plan.put_back(line, 0, false));
        assert!(!hand.plan.put_back(line, 3, true), "it is on its way");
        assert!(hand.plan.put_back(line, 0, true));
        assert!(hand.plan.wanted.contains(&(line, 0)));
        hand.land(3);
        assert_eq!((hand.delivered(1), hand.answers.len()), (up_to(4), 1));
        assert!(hand.plan.wanted.is_empty());
    }

    #[test]
    fn all_reads_of_a_block_are_planned_anew_and_who_waits_goes_on_waiting() {
        let mut hand = hand(Policy::Foreload, 12);
        hand.want(1, 0, 0);
        hand.want_samples(2, &[2]);
        let id = hand.plan.resident_with(2).expect("on its way");
        let (ahead, uses) = (hand.plan.windows.ahead, hand.plan.residents.get(id).uses);
        drop(hand.plan.residents.told(id));
        hand.plan.unplan_all(id);
        assert_eq!(hand.plan.residents.get(id).uses, 0);
        assert_eq!(
            hand.plan.windows.ahead,
            ahead - u64::from(uses - 1),
            "one of them was none of the plan"
        );
        assert_eq!(hand.plan.windows.of(0).frontier, (0, 2));
        let line = hand.plan.windows.line_at(0, 0);
        assert_eq!(hand.plan.wanted.iter().collect::<Vec<_>>(), [&(line, 2)]);
        hand.land_all();
        assert_eq!((hand.delivered(1), hand.delivered(2)), (up_to(4), vec![2]));
    }

    #[test]
    fn memory_that_comes_back_goes_to_the_first_in_the_epoch_whoever_asked_first() {
        let settings = settings(Policy::Naive, 8 << 10);
        let mut hand = Hand::new(settings, &reads(&[1000; 100], 2));
        hand.want_samples(1, &[90, 91, 92, 93, 94, 95, 96, 97]);
        hand.land_all();
        hand.want_of((0, 1), 2, 0, 1);
        hand.want_of((0, 0), 3, 0, 0);
        assert!(hand.objects().is_empty(), "all is held");
        for (handle, objects) in hand
            .handles(1)
            .into_iter()
            .zip([&[0][..], &[0, 2], &[0, 2, 5], &[0, 2, 5, 7]])
        {
            hand.step(Event::Release { handles: vec![handle] });
            assert_eq!(hand.objects(), objects);
        }
    }

    #[test]
    fn a_batch_that_never_fits_is_refused_and_names_a_sample_and_less_is_served() {
        let settings = settings(Policy::Foreload, 8 << 10);
        let mut hand = Hand::new(settings, &reads(&[3000; 8], 1));
        hand.want(1, 0, 0);
        hand.land_all();
        assert_eq!(hand.refused(1), Some((Some(2), Failure::NoMemory)));
        hand.want_reads(2, &[(0, 2), (0, 3)]);
        hand.land_all();
        assert_eq!(hand.delivered(2), [2, 3]);
    }

    #[test]
    fn nothing_is_planned_ahead_while_there_is_less_memory_than_is_used() {
        let mut hand = hand(Policy::Staging, 100);
        hand.want(1, 0, 0);
        hand.land_all();
        hand.step(Event::Budget { ram_bytes: 2048 });
        assert_eq!(
            (hand.used_bytes(), hand.plan.windows.ahead),
            (4096, 0),
            "what is held stays"
        );
        hand.step(Event::Tick);
        assert!(hand.objects().is_empty());
        hand.step(Event::Budget { ram_bytes: 64 << 10 });
        assert_eq!(hand.objects(), [4, 5, 6, 7]);
    }

    #[test]
    fn while_memory_is_short_not_even_what_is_there_is_planned_again() {
        let mut hand = hand(Policy::Foreload, 4);
        hand.want(1, 0, 0);
        hand.land_all();
        assert!(hand.plan.windows.ahead > 0);
        hand.step(Event::Budget { ram_bytes: 2048 });
        assert_eq!((hand.used_bytes(), hand.plan.windows.ahead), (4096, 0));
        hand.give_back(1);
        assert!(hand.used_bytes() <= 2048, "so it leaves when it is given back");
    }
}
