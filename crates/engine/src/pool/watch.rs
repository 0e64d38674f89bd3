//! What a pool does beside moving bytes: it ticks the plan, reports stalls, keeps credentials fresh and memory within bounds. All of it sleeps while
//! nothing is in flight and nobody waits.

use super::{CARE, MIND, Pool, TICK};
use crate::connection::Connection;
use crate::job::Job;
use crate::protocol::{Say, Trouble};
use foreload_plan::action::{Event, Source};
use foreload_plan::scheduler::{Cause, Waiting};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Who waits and is told of it at most this seldom, however long it takes.
const SELDOM: Duration = Duration::from_secs(60);

/// What was said of a request that waits.
pub(super) struct Told {
    at: Instant,
    was_starved: bool,
}

/// When a consumer was told last that it waits, and when it will be again.
pub(super) struct Stall {
    at: Instant,
    pause: Duration,
}

impl Pool {
    /// Ticks while anything is in flight, and reports what takes too long.
    pub(super) async fn watch(self: Rc<Self>) {
        let (mut cared, mut minded) = (Instant::now(), Instant::now());
        while !self.is_closed() {
            if minded.elapsed() > MIND {
                minded = Instant::now();
                self.mind_memory();
                self.forget_unknown();
            }
            if cared.elapsed() > CARE {
                cared = Instant::now();
                self.care_for_credentials();
            }
            let gauges = self.look(foreload_plan::Scheduler::gauges);
            if gauges.in_flight == 0 && gauges.requests == 0 {
                self.active.notified().await;
                // Let a burst of steps go by: each of them would wake us.
                tokio::time::sleep(TICK).await;
                continue;
            }
            tokio::time::sleep(if gauges.in_flight > 0 { TICK } else { TICK * 10 }).await;
            self.step(Event::Tick);
            self.report_stalls();
        }
    }

    /// Looks after the credentials of each data set; what goes wrong is told by the fetch that needs them. Aside: a credential service that doesn't
    /// answer must not keep stalls from being reported.
    fn care_for_credentials(&self) {
        for known in &self.state.borrow().known {
            let dataset = Rc::clone(&known.dataset);
            let fresh = async move { drop(dataset.source.warm_credentials().await) };
            drop(tokio::task::spawn_local(fresh));
        }
    }

    /// Lets memory go when the machine runs short of it, and takes it again when there is plenty.
    fn mind_memory(self: &Rc<Self>) {
        let Some(left) = crate::memory::available_bytes() else {
            return;
        };
        let (now, used, bounds) = (self.budget.get(), self.cache.used_bytes(), self.bounds());
        let next = bounds.next(now, used, left);
        if next != now {
            let whole = bounds.asked;
            crate::log::say!("{left} bytes of memory are left; the budget is {next} of {whole} bytes");
            self.set_budget(next);
        } else if used > now + now / 64 {
            // After a shrinkage other parts of the arena are used, and those that were have their memory still.
            self.give_back();
        }
    }

    /// Tells consumers what they have been waiting for longer than their job's limit: of several requests the oldest, and again ever more seldom. What lacks
    /// memory is told of each request and each time, for whoever waits acts on that.
    fn report_stalls(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let now_ns = self.now_ns();
        let late = |waiting: Waiting| {
            let job = &state.wants.get(&waiting.request)?.job;
            let waited = Duration::from_nanos(now_ns.saturating_sub(waiting.since_ns));
            (waited > job.stall_limit()).then(|| (waiting, Rc::clone(job)))
        };
        let waiting = state.plan.scheduler().waiting().into_iter();
        let mut late: Vec<_> = waiting.filter_map(late).collect();
        late.sort_by_key(|(waiting, _)| waiting.since_ns);
        state
            .reported
            .retain(|request, _| late.iter().any(|(waiting, _)| waiting.request == *request));
        let who = |waiting: &Waiting| state.wants.get(&waiting.request).map(|want| want.who.as_ptr());
        let waits = |stalled: &(u32, *const Connection)| {
            let is_it = |(waiting, job): &(Waiting, Rc<Job>)| (job.id, who(waiting)) == (stalled.0, Some(stalled.1));
            late.iter().any(is_it)
        };
        state.stalls.retain(|stalled, _| waits(stalled));
        for (waiting, job) in &late {
            let told = state.reported.get(&waiting.request);
            if told.is_some_and(|told| told.at.elapsed() <= job.stall_limit()) {
                continue;
            }
            let is_starved = waiting.cause == Cause::Memory && state.plan.scheduler().is_at_rest();
            let was_starved = told.is_some_and(|told| told.was_starved);
            if let Some(who) = who(waiting).filter(|_| !is_starved && !was_starved) {
                let stall = state.stalls.get(&(job.id, who));
                if stall.is_some_and(|stall| stall.at.elapsed() <= stall.pause) {
                    continue;
                }
                let pause = stall.map_or(2 * job.stall_limit(), |stall| (2 * stall.pause).min(SELDOM));
                let at = Instant::now();
                state.stalls.insert((job.id, who), Stall { at, pause });
            }
            let told = Told {
                at: Instant::now(),
                was_starved: is_starved,
            };
            state.reported.insert(waiting.request, told);
            let seconds = now_ns.saturating_sub(waiting.since_ns) as f64 / 1e9;
            let what = waiting
                .sample
                .map_or_else(|| "its samples".to_owned(), |sample| job.streams.name(sample));
            let is_local = waiting.sample.is_some_and(|sample| job.streams.is_local(sample));
            let cause = match waiting.cause {
                Cause::Loading(Source::Bucket) if is_local => "a read from the file system is under way".to_owned(),
                Cause::Loading(Source::Bucket) => "a GET to the bucket is under way".to_owned(),
                Cause::Loading(Source::Disk(tier)) => format!("a read from disk tier {tier} is under way"),
                Cause::Loading(Source::Peer(peer)) => format!("an answer of peer {peer} is under way"),
                Cause::Queued if is_local => "its read waits for its turn".to_owned(),
                Cause::Queued => "its GET waits for its turn".to_owned(),
                Cause::Memory => {
                    let gauges = state.plan.scheduler().gauges();
                    match gauges.leased_bytes {
                        0 => format!("no memory: all of {} bytes is in use", gauges.used_bytes),
                        leased => format!("no memory: {leased} bytes are leased to the consumer and not given back"),
                    }
                }
                Cause::Order => "the order of the next epoch is not known".to_owned(),
            };
            let kind = if is_starved { "starved" } else { "stalled" };
            let message = format!("waiting for {seconds:.1} s for {what}: {cause}");
            crate::log::say!("job {}: {message}", job.id);
            if let Some(who) = state.wants.get(&waiting.request).and_then(|want| want.who.upgrade()) {
                let body = serde_json::to_string(&Trouble {
                    sample: waiting.sample,
                    ..Trouble::new(kind, message)
                })
                .unwrap_or_default();
                who.say(&Say::Notice { body });
            }
        }
    }
}
