//! The decision log, and the proof that a run obeyed the policy.
//!
//! [`Recorded`] is a scheduler that writes down each event and what was ordered: all of it in tests, the last few thousand steps otherwise (for a report
//! after something went wrong). [`replay`] feeds the events to a fresh scheduler and compares the orders: the scheduler is pure, so any difference
//! is a clock, a die or a hash map that got in, or a carrier that reported something else than what it did.

use crate::action::{Action, Command, Event};
use crate::scheduler::{Next, Scheduler};
use std::collections::VecDeque;

/// One step: what happened, and what was ordered.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Record {
    /// When.
    pub now_ns: u64,
    /// What happened.
    pub event: Event,
    /// What was ordered, with its ids.
    pub ordered: Vec<(u64, Command)>,
    /// How the step ended.
    pub next: Next,
}

/// The steps of a run.
#[derive(Debug, Default, serde::Serialize)]
pub struct DecisionLog {
    records: VecDeque<Record>,
    capacity: Option<usize>,
    /// Steps taken, those that left the ring included.
    pub steps: u64,
}

impl DecisionLog {
    /// The steps that are still in the log, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }
}

/// A scheduler with its log.
pub struct Recorded {
    scheduler: Scheduler,
    log: DecisionLog,
}

impl Recorded {
    /// Keeps the last `capacity` steps; `None`: all, for [`replay`].
    #[must_use]
    pub fn new(scheduler: Scheduler, capacity: Option<usize>) -> Self {
        Recorded {
            scheduler,
            log: DecisionLog {
                capacity,
                ..DecisionLog::default()
            },
        }
    }

    /// As [`Scheduler::step`].
    pub fn step(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) -> Next {
        self.log.steps += 1;
        if self.log.capacity == Some(0) {
            return self.scheduler.step(now_ns, event, actions);
        }
        let (copy, before) = (event.duplicate(), actions.len());
        let next = self.scheduler.step(now_ns, event, actions);
        let ordered = actions[before..]
            .iter()
            .map(|action| (action.id(), action.command().clone()))
            .collect();
        if self
            .log
            .capacity
            .is_some_and(|capacity| self.log.records.len() >= capacity)
        {
            self.log.records.pop_front();
        }
        self.log.records.push_back(Record {
            now_ns,
            event: copy,
            ordered,
            next,
        });
        next
    }

    /// The scheduler.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> &DecisionLog {
        &self.log
    }
}

/// The first step at which a replay differs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Other orders for the same events.
    #[error("step {step} ordered {ordered} in the run and {replayed} in the replay")]
    Differs {
        /// The step's number.
        step: usize,
        /// What the run ordered.
        ordered: String,
        /// What the replay orders.
        replayed: String,
    },
    /// The ring dropped the run's first steps.
    #[error("the log holds the last {kept} of {steps} steps; only a whole log can be replayed")]
    Incomplete {
        /// Steps in the log.
        kept: usize,
        /// Steps of the run.
        steps: u64,
    },
}

/// Feeds a whole log to `fresh`, a scheduler made as the run's was.
///
/// # Errors
/// [`Mismatch`] at the first difference.
pub fn replay(mut fresh: Scheduler, log: &DecisionLog) -> Result<(), Mismatch> {
    if log.records.len() as u64 != log.steps {
        return Err(Mismatch::Incomplete {
            kept: log.records.len(),
            steps: log.steps,
        });
    }
    let mut actions = Vec::new();
    for (step, record) in log.records.iter().enumerate() {
        actions.clear();
        let next = fresh.step(record.now_ns, record.event.duplicate(), &mut actions);
        let same = actions.len() == record.ordered.len()
            && next == record.next
            && actions
                .iter()
                .zip(&record.ordered)
                .all(|(action, (id, command))| action.id() == *id && action.command() == command);
        if !same {
            let replayed: Vec<_> = actions.iter().map(|action| (action.id(), action.command())).collect();
            return Err(Mismatch::Differs {
                step,
                ordered: format!("{:?}", record.ordered),
                replayed: format!("{replayed:?}"),
            });
        }
    }
    Ok(())
}
