//! A rank that begins elsewhere, or leaves: what waits in the lanes was to come for where it was.
//!
//! Of that, what nobody reads any more never flies: its memory is free at once, and where the rank comes to it, it is planned anew. What is read later, in the
//! rank's next epoch or by another rank, waits for that. Otherwise the first batch would wait for all that had been read ahead, which may be all that memory holds.

use super::Scheduler;
use super::flights::{Asker, Pending};
use super::window::{Read, place_of};
use crate::action::Action;
use std::collections::BTreeMap;

/// By resident: who reads it next.
type Next = BTreeMap<u32, Option<Asker>>;

impl Scheduler {
    /// What waits for a rank's lines before `line` gives way to what is needed now.
    pub(super) fn give_way(&mut self, place: usize, line: u64, actions: &mut Vec<Action>) {
        let is_over = |pending: &Pending| pending.line < line && place_of(pending.line) == place;
        self.forget_queued(is_over, actions);
        // The rank's own requests have ended. What another node asks for is as urgent as it was.
        let residents = &self.residents;
        let is_asked_for = |pending: &Pending| {
            let mut parts = pending.parts.iter();
            parts.any(|part| residents.waiters(part.handle.index).next().is_some())
        };
        let mut waiting = Vec::new();
        for source in self.loads.lanes.sources() {
            let lane = self.loads.lanes.of_mut(source);
            waiting.extend(lane.take_if(|pending| is_over(pending) && !is_asked_for(pending)));
        }
        if waiting.is_empty() {
            return;
        }
        let parts = waiting.iter().flat_map(|pending| pending.parts.iter());
        let next = self.next_reads(parts.map(|part| (part.handle.index, None)).collect(), place);
        for mut pending in waiting {
            let askers = pending
                .parts
                .iter()
                .filter_map(|part| next.get(&part.handle.index).copied().flatten());
            if let Some(asker) = askers.min_by_key(|asker| (asker.job != pending.job, asker.line)) {
                (pending.job, pending.line) = (asker.job, asker.line);
            }
            self.loads.lanes.of_mut(pending.source).push(pending);
        }
    }

    /// Finds who reads these next: ranks of the job at `place`, if any of them does.
    fn next_reads(&self, mut next: Next, place: usize) -> Next {
        let own = self.windows.job_at(place);
        for place in self.windows.places().filter(|&place| self.windows.has_started(place)) {
            let (window, job) = (self.windows.of(place), self.windows.job_at(place));
            for step in window.head()..window.end() {
                let line = self.windows.line_at(place, step);
                let entries = self.windows.peek(line).map_or(&[][..], |line| &line.entries);
                for it in entries.iter().filter(|it| it.read == Read::Planned) {
                    let Some(found) = next.get_mut(&it.resident) else {
                        continue;
                    };
                    let turn = |asker: &Asker| (asker.job != own, asker.line);
                    let asker = Asker { job, line };
                    if found.as_ref().is_none_or(|before| turn(&asker) < turn(before)) {
                        *found = Some(asker);
                    }
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{Hand, drawn, reads, settings};
    use crate::policy::Policy;
    use crate::settings::Settings;

    /// Of 200 samples, in batches of four; eight requests at once, and so many reads are planned ahead.
    fn hand(ranks: u32, ram_bytes: u64, window_entries: u64) -> Hand {
        let settings = Settings {
            window_entries,
            ..settings(Policy::Foreload, ram_bytes)
        };
        Hand::new(settings, &reads(&[100; 200], ranks))
    }

    /// What the bucket is asked for, one after the other, and so much of it.
    fn asked(hand: &mut Hand, count: usize) -> Vec<u64> {
        let mut asked = Vec::new();
        while asked.len() < count {
            let Some(&next) = hand.objects().first() else { break };
            asked.push(next);
            hand.land(next);
        }
        asked
    }

    const ALL: u64 = 1 << 20;

    #[test]
    fn where_a_rank_begins_comes_before_what_was_read_ahead_elsewhere() {
        for (epoch, batch, first) in [(0, 40, 160), (3, 10, 40), (2, 0, 0)] {
            let mut hand = hand(1, ALL, 150);
            hand.start(0, 0, epoch, batch);
            let flying: Vec<u64> = (0..8).collect();
            let expected = flying
                .iter()
                .copied()
                .chain((first..first + 10).filter(|at| !flying.contains(at)));
            let expected: Vec<u64> = expected.take(16).collect();
            assert_eq!(
                asked(&mut hand, expected.len()),
                expected,
                "epoch {epoch}, batch {batch}"
            );
        }
    }

    #[test]
    fn a_rank_that_goes_back_is_served_first_too() {
        let mut hand = hand(1, ALL, 150);
        hand.start(0, 0, 0, 45);
        assert_eq!(asked(&mut hand, 12), [0, 1, 2, 3, 4, 5, 6, 7, 180, 181, 182, 183]);
        hand.start(0, 0, 0, 20);
        // What is in the air lands.
        let expected: Vec<u64> = (184..192).chain(80..90).collect();
        assert_eq!(asked(&mut hand, 18), expected);
    }

    #[test]
    fn what_the_rank_reads_in_its_next_epoch_waits_for_that() {
        let mut hand = hand(1, ALL, 400);
        hand.start(0, 0, 0, 40);
        let expected: Vec<u64> = (0..8).chain(160..200).chain(8..160).collect();
        assert_eq!(asked(&mut hand, 200), expected);
        assert!(hand.objects().is_empty(), "each comes once");
        let read: Vec<u64> = (0..10).flat_map(|nth| hand.read(1 + nth, 0, 40 + nth)).collect();
        assert_eq!(read, (160..200).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_rank_leaves_behind_never_flies_and_its_memory_is_free() {
        // Of 40 samples.
        let mut hand = hand(1, 40 << 12, 150);
        hand.step(crate::action::Event::Leave { job: 0, rank: 0 });
        assert_eq!(asked(&mut hand, 200), (0..8).collect::<Vec<_>>());
        hand.start(0, 0, 0, 40);
        assert_eq!(asked(&mut hand, 30), (160..190).collect::<Vec<_>>());
    }

    #[test]
    fn memory_that_was_for_where_a_rank_was_is_for_where_it_is() {
        let mut hand = hand(1, 40 << 12, 150);
        hand.start(0, 0, 0, 40);
        assert_eq!(asked(&mut hand, 30), (0..8).chain(160..182).collect::<Vec<_>>());
    }

    #[test]
    fn what_another_node_asks_for_stays_as_urgent_as_it_was() {
        let mut hand = hand(1, ALL, 400);
        hand.step(crate::action::Event::Serve {
            request: 1,
            job: 0,
            samples: vec![100],
            steps: 1,
        });
        hand.start(0, 0, 0, 40);
        let expected: Vec<u64> = (0..8).chain([100]).chain(160..170).collect();
        assert_eq!(asked(&mut hand, 19), expected);
        assert_eq!(hand.delivered(1), [100]);
    }

    #[test]
    fn another_rank_s_reads_stay_in_their_turn() {
        let mut hand = hand(2, ALL, 400);
        hand.start(0, 0, 0, 40);
        let asked = asked(&mut hand, 200);
        let turn = |sample: u64| asked.iter().position(|&it| it == sample).expect("it is asked for");
        // The other rank has the odd ones, and is where it was.
        let theirs: Vec<usize> = (17..200).step_by(2).map(turn).collect();
        assert!(theirs.is_sorted(), "{asked:?}");
        assert!(turn(198) < turn(16), "{asked:?}");
    }

    #[test]
    fn what_a_rank_stands_still_for_comes_before_what_another_is_to_read_soon() {
        for already_waits in [false, true] {
            let mut hand = hand(2, ALL, 400);
            match already_waits {
                false => {
                    hand.start(0, 0, 0, 40);
                    hand.want(1, 0, 40);
                }
                true => {
                    // It isn't planned yet when it is asked for.
                    hand.step(crate::action::Event::Leave { job: 0, rank: 0 });
                    hand.want(1, 0, 40);
                }
            }
            let asked = asked(&mut hand, 200);
            let turn = |sample: u64| asked.iter().position(|&it| it == sample).expect("it is asked for");
            assert!(turn(160) < 20 && turn(162) < 20 && turn(161) > 80, "{asked:?}");
            assert_eq!(hand.delivered(1), [160, 162]);
        }
    }

    #[test]
    fn what_two_ranks_read_comes_when_the_first_of_them_needs_it() {
        let reads = drawn(&[100; 200], 2);
        let settings = Settings {
            window_entries: 800,
            ..settings(Policy::Foreload, ALL)
        };
        let mut hand = Hand::bare(settings, &reads);
        // All that one of them reads in the second epoch waits when the other begins with the first.
        hand.start(0, 1, 1, 0);
        hand.start(0, 0, 0, 0);
        let asked = asked(&mut hand, 200);
        let sooner: Vec<u64> = (0..50).flat_map(|batch| hand.read(1 + batch, 0, batch)).collect();
        let turns = sooner
            .iter()
            .map(|sample| asked.iter().position(|it| it == sample).expect("it is asked for"));
        assert_eq!(sooner.len(), 100);
        assert!(turns.max() < Some(8 + 100), "{asked:?}");
    }
}
