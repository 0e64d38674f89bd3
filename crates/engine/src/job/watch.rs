//! What a job does beside moving bytes: it ticks the plan, reports stalls, keeps credentials fresh and memory within bounds, and writes the metrics
//! log. All of it sleeps while nothing is in flight.

use super::{CARE, Job, MIND, TICK};
use crate::calls::Stats;
use crate::protocol::{Say, Trouble};
use foreload_plan::action::{Event, Source};
use foreload_plan::scheduler::Cause;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Between two lines of the metrics log.
const METRICS_EVERY: Duration = Duration::from_secs(1);

impl Job {
    /// Ticks while anything is in flight, and reports what takes too long.
    pub(super) async fn watch(self: Rc<Self>) {
        let limit = Duration::from_secs_f64(self.attach.stall_s.max(0.1));
        let (mut cared, mut minded) = (Instant::now(), Instant::now());
        let mut log = MetricsLog::open(self.attach.metrics_log.as_deref());
        while !self.is_closed() {
            if minded.elapsed() > MIND {
                minded = Instant::now();
                self.mind_memory();
            }
            if cared.elapsed() > CARE {
                cared = Instant::now();
                // Aside: a credential service that doesn't answer must not keep stalls from being reported.
                let streams = Rc::clone(&self.streams);
                let fresh = async move { streams.warm_credentials().await };
                let _aside = tokio::task::spawn_local(fresh);
            }
            if let Some(log) = &mut log
                && log.last.elapsed() >= METRICS_EVERY
            {
                log.write(self.id, &self.stats());
            }
            let gauges = self.state.borrow().plan.scheduler().gauges();
            if gauges.in_flight == 0 && gauges.requests == 0 {
                if let Some(log) = &mut log
                    && tokio::time::timeout(METRICS_EVERY, self.active.notified())
                        .await
                        .is_err()
                {
                    log.write(self.id, &self.stats());
                    self.active.notified().await;
                } else if log.is_none() {
                    self.active.notified().await;
                }
                // Let a burst of steps go by: each of them would wake us.
                tokio::time::sleep(TICK).await;
                continue;
            }
            tokio::time::sleep(if gauges.in_flight > 0 { TICK } else { TICK * 10 }).await;
            self.step(Event::Tick);
            self.report_stalls(limit);
        }
        if let Some(log) = &mut log {
            log.write(self.id, &self.stats());
        }
    }

    /// Lets memory go when the machine runs short of it, and takes it again when there is plenty.
    pub(super) fn mind_memory(self: &Rc<Self>) {
        let Some(left) = crate::memory::available_bytes() else {
            return;
        };
        let now = self.budget.get();
        let next = self.bounds.next(now, self.cache.used_bytes(), left);
        if next != now {
            let whole = self.bounds.asked;
            eprintln!(
                "foreload-agent: job {}: {left} bytes of memory are left; the budget is {next} of {whole} bytes",
                self.id
            );
            self.set_budget(next);
        }
    }

    /// What the plan may use of the cache arena from now on.
    pub(super) fn set_budget(self: &Rc<Self>, bytes: u64) {
        let before = self.budget.replace(bytes);
        if bytes == before {
            return;
        }
        self.step(Event::Budget { ram_bytes: bytes });
        if bytes < before {
            let state = self.state.borrow();
            state
                .plan
                .scheduler()
                .free_stretches(1 << 16)
                .for_each(|(offset, len)| self.cache.give_back(offset, len));
        }
    }

    pub(super) fn report_stalls(&self, limit: Duration) {
        let mut state = self.state.borrow_mut();
        let now_ns = self.now_ns();
        let late: Vec<_> = state
            .plan
            .scheduler()
            .waiting()
            .into_iter()
            .filter(|w| now_ns.saturating_sub(w.since_ns) > limit.as_nanos() as u64)
            .collect();
        state
            .reported
            .retain(|request, _| late.iter().any(|w| w.request == *request));
        for waiting in late {
            let again = state
                .reported
                .get(&waiting.request)
                .is_none_or(|at| at.elapsed() > limit);
            if !again {
                continue;
            }
            state.reported.insert(waiting.request, Instant::now());
            let seconds = now_ns.saturating_sub(waiting.since_ns) as f64 / 1e9;
            let what = waiting
                .sample
                .map_or_else(|| "its samples".to_owned(), |sample| self.streams.name(sample));
            let cause = match waiting.cause {
                Cause::Loading(Source::Bucket) => "a GET to the bucket is under way".to_owned(),
                Cause::Loading(Source::Disk(tier)) => format!("a read from disk tier {tier} is under way"),
                Cause::Queued => "its GET waits for its turn".to_owned(),
                Cause::Memory => {
                    let gauges = state.plan.scheduler().gauges();
                    format!(
                        "no memory: {} bytes are leased to the consumer and not given back",
                        gauges.leased_bytes
                    )
                }
                Cause::Order => "the order of the next epoch is not known".to_owned(),
            };
            let message = format!("waiting for {seconds:.1} s for {what}: {cause}");
            eprintln!("foreload-agent: job {}: {message}", self.id);
            if let Some(who) = state.wants.get(&waiting.request).and_then(|(who, _)| who.upgrade()) {
                let body = serde_json::to_string(&Trouble {
                    sample: waiting.sample,
                    ..Trouble::new("stalled", message)
                })
                .unwrap_or_default();
                who.say(&Say::Notice { body });
            }
        }
    }

    pub(super) fn note_waiting(&self) {
        let mut state = self.state.borrow_mut();
        let waits = !state.wants.is_empty();
        match (waits, state.waiting_since) {
            (true, None) => state.waiting_since = Some(Instant::now()),
            (false, Some(since)) => {
                state.stats.waited_s += since.elapsed().as_secs_f64();
                state.waiting_since = None;
            }
            _ => {}
        }
    }
}

/// One line of JSON per second of activity, one when it pauses, and one at the end.
struct MetricsLog {
    file: std::fs::File,
    last: Instant,
}

impl MetricsLog {
    fn open(path: Option<&std::path::Path>) -> Option<Self> {
        let path = path?;
        match std::fs::OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Some(MetricsLog {
                file,
                last: Instant::now(),
            }),
            Err(error) => {
                eprintln!("foreload-agent: no metrics log at {}: {error}", path.display());
                None
            }
        }
    }

    fn write(&mut self, job: u32, stats: &Stats) {
        self.last = Instant::now();
        let unix_s = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0.0, |t| t.as_secs_f64());
        let line = serde_json::json!({ "unix_s": unix_s, "job": job, "stats": stats });
        // A full disk costs a line of the log, never training.
        let _ = std::io::Write::write_all(&mut self.file, format!("{line}\n").as_bytes());
    }
}
