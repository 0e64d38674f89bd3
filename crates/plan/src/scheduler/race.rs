//! How a load's end is told: what becomes of each sample that it was to bring, and who wins when two loads race for one.
//!
//! A load that is late and needed soon gets a *twin* that asks for the same bytes again; that of a peer's asks the bucket. The twin brings slots of its own; whichever of the two ends
//! first gives the resident its bytes, and the other is called off. Only loads of whole samples race, so a resident in a race waits for exactly the
//! two of them. A large sample, and one of several ranges, comes in parts that don't race.
//!
//! What becomes of a resident when one of its loads ends ([`fate`]; the first row that fits):
//!
//! | resident | the load | still under way for it | fate |
//! | --- | --- | --- | --- |
//! | ready | - | - | arrived (again: nothing changes) |
//! | loading | well | none, or it raced | arrived |
//! | loading | well | other parts | pending |
//! | loading | failed | its rival | pending: the race goes on |
//! | loading | unavailable, tries left | - | this part again |
//! | loading | corrupt, tries left, all of the sample | - | this part again |
//! | loading or failed | otherwise | others | failing, with the first failure |
//! | loading or failed | corrupt at first, tries left, a part of the sample | none | all of it again: a checksum covers the whole sample |
//! | loading or failed | otherwise | none | failed, with the first failure |
//!
//! *Tries left*: somebody wants it, and it has had fewer than [`RETRIES`] extra tries. Parts of it in one load are tried again together, or not.

use super::Scheduler;
use super::flights::{Flight, Part, Parts, Pending};
use super::residents::{Residents, State};
use crate::action::{Action, Failure, Handle, Source};
use crate::arena::{Slot, Stay, reserved_bytes};

/// No twin before this: what a nearby store would have answered by then, our own scheduling may have delayed.
const HEDGE_AFTER_S: f64 = 0.05;
/// Extra tries after a failure that another try may mend.
pub(super) const RETRIES: u8 = 1;

/// One part of a load that ended, and where its resident stands.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    /// The resident, as it was.
    pub state: State,
    pub result: Result<(), Failure>,
    /// Two loads were sent for it.
    pub raced: bool,
    /// Loads that are still to end for the resident.
    pub rest: u16,
    /// The part is all of the sample.
    pub whole: bool,
    /// Somebody wants it, and it has tries left.
    pub again: bool,
}

/// What becomes of the resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its bytes are there.
    Arrived,
    /// It waits for the loads that are still under way.
    Pending,
    /// This part is loaded once more.
    PartAgain,
    /// All of it is loaded once more.
    AllAgain,
    /// It won't be there, but others still write into its memory.
    Failing(Failure),
    /// It won't be there.
    Failed(Failure),
}

/// The table of the module's documentation.
pub(super) fn fate(ended: Ended) -> Fate {
    let Ended {
        state,
        result,
        raced,
        rest,
        whole,
        again,
    } = ended;
    let failure = match (state, result) {
        (State::Ready | State::Vacant, _) => return Fate::Arrived,
        (State::Loading, Ok(())) if raced || rest == 0 => return Fate::Arrived,
        (State::Loading, Ok(())) => return Fate::Pending,
        (State::Loading, Err(_)) if raced && rest > 0 => return Fate::Pending,
        (State::Loading, Err(Failure::Unavailable)) if again => return Fate::PartAgain,
        (State::Loading, Err(Failure::Corrupt)) if again && whole => return Fate::PartAgain,
        (State::Loading, Err(failure)) | (State::Failed(failure), _) => failure,
    };
    match failure {
        failure if rest > 0 => Fate::Failing(failure),
        Failure::Corrupt if again && !whole => Fate::AllAgain,
        failure => Fate::Failed(failure),
    }
}

impl Scheduler {
    /// A slot that a twin brought: the resident takes it if the twin won, and gives its own away.
    pub(super) fn settle_race(&mut self, part: &Part, own: Slot, won: bool, rival: Option<u64>) {
        if won {
            let lost = std::mem::replace(&mut self.residents.get_mut(part.handle.index).slot, own);
            self.surrender(lost, part.handle, rival);
        } else {
            self.free_twin(own);
        }
    }

    /// The slot that the resident had. When the load that writes into it still runs, it goes to that load and comes back with it.
    fn surrender(&mut self, slot: Slot, handle: Handle, writer: Option<u64>) {
        if let Some(flight) = writer.and_then(|writer| self.loads.flights.load_mut(writer))
            && let Some(part) = flight.pending.parts.iter_mut().find(|part| part.handle == handle)
        {
            part.own = Some(slot);
            return;
        }
        self.free_twin(slot);
    }

    pub(super) fn free_twin(&mut self, slot: Slot) {
        self.loads.twin_bytes -= reserved_bytes(slot.len);
        self.arena.give(slot);
    }

    /// Calls off a load whose race is over. Its samples no longer depend on when it ends.
    pub(super) fn call_off(&mut self, load: u64, winner: Source, actions: &mut Vec<Action>) {
        let Some(loser) = self.loads.flights.load_mut(load) else {
            return;
        };
        loser.cancelled = true;
        let lanes = &mut self.loads.lanes;
        match (loser.pending.twin_of, loser.pending.source) {
            (Some(_), _) => lanes.of_mut(winner).twin_lost(),
            (None, peer @ Source::Peer(_)) => lanes.of_mut(peer).was_overtaken(self.now_ns, loser.pending.bundle),
            (None, _) => {}
        }
        let samples: Vec<u32> = loser.pending.parts.iter().map(|part| part.handle.index).collect();
        self.cancel(load, actions);
        for index in samples {
            self.residents.get_mut(index).parts -= 1;
            self.residents.let_go(index, &mut self.arena);
        }
    }

    /// Sends twins after loads that are late and needed soon.
    pub(super) fn hedge(&mut self, actions: &mut Vec<Action>) {
        let late = self.loads.flights.loads().filter(|(_, flight)| self.is_late(flight));
        let late: Vec<u64> = late.map(|(id, _)| id).collect();
        for id in late {
            let Some(twin) = self.twin_of(id) else { continue };
            let action = self.launch(twin);
            if let Some(flight) = self.loads.flights.load_mut(id) {
                flight.twin = Some(action.id());
            }
            actions.push(action);
        }
    }

    /// A twin of a load, with slots for what hasn't come yet, if there is memory and its lane has one left.
    fn twin_of(&mut self, id: u64) -> Option<Pending> {
        let late = &self.loads.flights.load(id)?.pending;
        let (object, offset, len, asker) = (late.object, late.offset, late.len, late.asker());
        let (late_source, source) = (late.source, Source::Bucket);
        let absent = |part: &&Part| self.residents.get(part.handle.index).state == State::Loading;
        let needs: Vec<Part> = late.parts.iter().filter(absent).map(Part::again).collect();
        let mut slots = Vec::with_capacity(needs.len());
        for need in &needs {
            match Residents::take(&mut self.arena, need.len, Stay::Short, self.ram_bytes) {
                Some(slot) => slots.push(slot),
                None => break,
            }
        }
        let has_room = !needs.is_empty() && slots.len() == needs.len();
        if !has_room || !self.loads.lanes.of_mut(late_source).spend_twin() {
            slots.into_iter().for_each(|slot| self.arena.give(slot));
            return None;
        }
        self.loads.lanes.of_mut(source).depart_twin(asker.job, len);
        let mut parts = needs.into_iter().zip(slots).map(|(part, slot)| {
            self.residents.get_mut(part.handle.index).parts += 1;
            self.loads.twin_bytes += reserved_bytes(slot.len);
            Part {
                own: Some(slot),
                ..part
            }
        });
        Some(Pending {
            source,
            object,
            offset,
            len,
            parts: Parts {
                first: parts.next()?,
                more: parts.collect(),
            },
            job: asker.job,
            line: asker.line,
            attempt: 0,
            twin_of: Some(id),
            bundle: None,
        })
    }

    /// Whether a load takes so long that a twin would probably come first, and somebody needs it.
    fn is_late(&self, flight: &Flight) -> bool {
        let pending = &flight.pending;
        let is_several = |part: &Part| self.library.is_several(part.content);
        let races = match pending.source {
            Source::Bucket => pending.parts.iter().all(Part::is_whole),
            // The bucket has no one place for what is several ranges.
            Source::Peer(_) => !pending.parts.iter().any(is_several),
            Source::Disk(_) => false,
        };
        if !races || flight.rival().is_some() || flight.cancelled || flight.called_off {
            return false;
        }
        let lane = self.loads.lanes.of(pending.source);
        let age_s = (self.now_ns - flight.issued_ns) as f64 / 1e9;
        if age_s < lane.late_s(pending.len).max(HEDGE_AFTER_S) {
            return false;
        }
        let is_waited_for = |part: &Part| self.residents.get(part.handle.index).waiting;
        let needed_in_s = self.windows.needed_in_ns(pending.line) / 1e9;
        pending.parts.iter().any(is_waited_for) || needed_in_s < 2.0 * lane.estimate.expected_s(pending.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load of all of a sample that failed, or not, alone, with tries left.
    fn ended(result: Result<(), Failure>) -> Ended {
        Ended {
            state: State::Loading,
            result,
            raced: false,
            rest: 0,
            whole: true,
            again: true,
        }
    }

    const OK: Result<(), Failure> = Ok(());
    const UNAVAILABLE: Result<(), Failure> = Err(Failure::Unavailable);
    const CORRUPT: Result<(), Failure> = Err(Failure::Corrupt);

    #[test]
    fn a_sample_has_arrived_with_its_last_part_or_with_the_first_of_two_that_race() {
        assert_eq!(fate(ended(OK)), Fate::Arrived);
        let part = Ended {
            whole: false,
            ..ended(OK)
        };
        assert_eq!(fate(Ended { rest: 2, ..part }), Fate::Pending);
        assert_eq!(fate(part), Fate::Arrived);
        let racer = Ended {
            raced: true,
            rest: 1,
            ..ended(OK)
        };
        assert_eq!(fate(racer), Fate::Arrived);
    }

    #[test]
    fn who_fails_in_a_race_leaves_it_to_the_other_and_the_last_of_them_is_tried_again() {
        for result in [UNAVAILABLE, CORRUPT, Err(Failure::Final), Err(Failure::Cancelled)] {
            let racer = Ended {
                raced: true,
                rest: 1,
                ..ended(result)
            };
            assert_eq!(fate(racer), Fate::Pending, "{result:?}");
        }
        let last = Ended {
            raced: true,
            ..ended(UNAVAILABLE)
        };
        assert_eq!(fate(last), Fate::PartAgain);
        assert_eq!(fate(Ended { again: false, ..last }), Fate::Failed(Failure::Unavailable));
    }

    #[test]
    fn only_what_another_try_may_mend_is_tried_again() {
        assert_eq!(fate(ended(UNAVAILABLE)), Fate::PartAgain);
        assert_eq!(fate(ended(CORRUPT)), Fate::PartAgain);
        for failure in [Failure::Final, Failure::Cancelled, Failure::NoMemory] {
            assert_eq!(fate(ended(Err(failure))), Fate::Failed(failure));
        }
        for result in [UNAVAILABLE, CORRUPT] {
            let over = Ended {
                again: false,
                ..ended(result)
            };
            assert!(matches!(fate(over), Fate::Failed(_)));
        }
    }

    #[test]
    fn a_corrupt_part_has_all_parts_loaded_again_once_none_is_under_way() {
        let part = Ended {
            whole: false,
            rest: 1,
            ..ended(CORRUPT)
        };
        assert_eq!(fate(part), Fate::Failing(Failure::Corrupt));
        let last = |result| Ended {
            state: State::Failed(Failure::Corrupt),
            whole: false,
            ..ended(result)
        };
        for result in [OK, UNAVAILABLE, CORRUPT] {
            assert_eq!(fate(last(result)), Fate::AllAgain, "{result:?}");
            let over = Ended {
                again: false,
                ..last(result)
            };
            assert_eq!(fate(over), Fate::Failed(Failure::Corrupt), "{result:?}");
        }
        assert_eq!(fate(Ended { rest: 0, ..part }), Fate::AllAgain);
    }

    #[test]
    fn the_first_failure_of_several_parts_is_the_one_that_is_told() {
        let part = Ended {
            state: State::Failed(Failure::Final),
            whole: false,
            rest: 1,
            ..ended(UNAVAILABLE)
        };
        assert_eq!(fate(part), Fate::Failing(Failure::Final));
        assert_eq!(fate(Ended { rest: 0, ..part }), Fate::Failed(Failure::Final));
        assert_eq!(
            fate(Ended {
                rest: 0,
                result: OK,
                ..part
            }),
            Fate::Failed(Failure::Final)
        );
    }

    /// Every combination ends in exactly one way that the resident's other loads allow.
    #[test]
    fn nothing_is_told_to_those_who_wait_while_a_load_may_still_bring_it() {
        let failures = [
            Failure::Unavailable,
            Failure::Corrupt,
            Failure::Final,
            Failure::Cancelled,
        ];
        let results = || std::iter::once(OK).chain(failures.map(Err));
        let states = || std::iter::once(State::Loading).chain(failures.map(State::Failed));
        let flags = [false, true];
        for (state, result) in states().flat_map(|state| results().map(move |result| (state, result))) {
            for (raced, rest) in flags.iter().flat_map(|&raced| [0, 1, 2].map(|rest| (raced, rest))) {
                for (whole, again) in flags.iter().flat_map(|&whole| flags.map(|again| (whole, again))) {
                    let ended = Ended {
                        state,
                        result,
                        raced,
                        rest,
                        whole,
                        again,
                    };
                    let settled = matches!(fate(ended), Fate::Failed(_) | Fate::AllAgain);
                    assert!(!settled || rest == 0, "{state:?} {result:?} {raced} {rest}");
                    let pends = matches!(fate(ended), Fate::Pending | Fate::Failing(_));
                    assert!(!pends || rest > 0, "{state:?} {result:?} {raced} {rest}");
                }
            }
        }
    }
}
