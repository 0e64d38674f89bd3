//! What one node asks the source for: what waits, what was sent, and what is on its way.
//!
//! Requests are sent as the engine sends them: as many as [`foreload_plan::flow`] finds worth it, each with a latency of its own, into memory that takes time
//! while it is fresh. Where the source is shared literally, as paper 001 reads, one after the other is read, with one latency for all.

use super::Want;
use crate::{Hardware, Setup, Share};
use foreload_plan::flow::{Concurrency, ConcurrencySettings};
use std::collections::VecDeque;

const MB: f64 = 1_048_576.0;
/// Weight of the newest request in what they are expected to take: as in the engine's estimates.
const REMEMBERS: f64 = 1.0 / 16.0;

/// A request that waits for the source or is being read from it.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What it reads.
    pub mb: f64,
    /// What it completes; nothing where a later request of the same block does.
    pub brings: Option<Brings>,
    /// The access that needs it first, by its number on its node.
    due: u64,
    /// When it was sent, and its time to the first byte.
    sent: (f64, f64),
}

/// What the last request for a block completes.
#[derive(Clone, Debug)]
pub struct Brings {
    /// The access it was made for; read for others only when that is nobody's.
    pub want: Want,
    /// Whether it stays.
    pub keep: Keep,
    /// All samples that it brings, in order.
    pub along: Vec<u32>,
}

/// Whether a sample that is read from the source stays on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// No.
    No,
    /// In this tier, which is its home.
    Home(usize),
    /// It is on a disk that is too slow, or at a node that didn't bring it.
    Ill,
}

/// What the engine finds out.
#[derive(Debug)]
struct Engine {
    limit: Concurrency,
    /// What a request takes.
    request_s: f64,
    /// Memory that nothing has been written to, MB/s at which that is, and when the thread that writes it is through.
    fresh_mb: f64,
    fill_mb_s: f64,
    filled_at: f64,
}

/// Streams of the source that a node reads at a time: what the engine has in flight, where nothing else is said.
pub fn streams(hardware: &Hardware) -> u32 {
    match is_serial(hardware) {
        true => 1,
        false => hardware.requests_in_flight.min(ConcurrencySettings::MOST),
    }
}

/// Whether requests are read one after the other: what a thread draws under `literal` is a node's, not a request's.
fn is_serial(hardware: &Hardware) -> bool {
    hardware.share == Share::Literal
}

/// The requests of a node.
#[derive(Debug)]
pub struct Requests {
    /// Waiting to be sent, in order.
    queue: VecDeque<Pending>,
    /// MB that wait or are being read.
    pub queued_mb: f64,
    /// Being read, by stream.
    reading: Vec<Option<Pending>>,
    idle: Vec<u32>,
    /// Those that were read and are on their way: when they end, when they were sent and with which latency, and their MB.
    in_flight: VecDeque<(f64, (f64, f64), f64)>,
    most: u32,
    engine: Option<Engine>,
    /// Nothing is sent before this.
    at: f64,
    wakes_at: f64,
}

impl Requests {
    /// None yet.
    pub fn new(hardware: &Hardware) -> Self {
        let (fresh_mb, fill_mb_s) = hardware.memory();
        let streams = streams(hardware);
        Self {
            queue: VecDeque::new(),
            queued_mb: 0.0,
            reading: (0..streams).map(|_| None).collect(),
            idle: (0..streams).rev().collect(),
            in_flight: VecDeque::new(),
            most: hardware.requests_in_flight,
            engine: (!is_serial(hardware)).then(|| Engine {
                limit: Concurrency::new(ConcurrencySettings::default().at_most(streams)),
                request_s: hardware.latency_s,
                fresh_mb,
                fill_mb_s,
                filled_at: 0.0,
            }),
            at: 0.0,
            wakes_at: f64::NEG_INFINITY,
        }
    }

    /// Waits for the source, behind all that is needed as soon.
    pub fn ask(&mut self, mb: f64, brings: Option<Brings>, due: u64) {
        self.queued_mb += mb;
        let sent = (0.0, 0.0);
        let pending = Pending { mb, brings, due, sent };
        let later = self.queue.iter().rev().take_while(|other| other.due > due).count();
        self.queue.insert(self.queue.len() - later, pending);
    }

    /// The same before all that waits: who has it didn't bring it.
    pub fn ask_first(&mut self, mb: f64, brings: Option<Brings>, due: u64) {
        self.queued_mb += mb;
        let sent = (0.0, 0.0);
        self.queue.push_front(Pending { mb, brings, due, sent });
    }

    /// What waits to bring something, if anything does, is needed as soon as that.
    pub fn hurry(&mut self, due: u64, is_it: impl Fn(&Brings) -> bool) {
        let found = self
            .queue
            .iter()
            .position(|pending| pending.brings.as_ref().is_some_and(&is_it));
        if let Some(at) = found.filter(|&at| self.queue[at].due > due)
            && let Some(pending) = self.queue.remove(at)
        {
            self.queued_mb -= pending.mb;
            self.ask(pending.mb, pending.brings, due);
        }
    }

    /// Nothing waits for the source or is being read from it.
    pub fn are_idle(&self) -> bool {
        self.queue.is_empty() && self.reading.iter().all(Option::is_none)
    }

    /// The time of what happens next, which is never before what happened last.
    pub fn now(&mut self, at: f64) -> f64 {
        self.at = self.at.max(at);
        self.at
    }

    /// Sends the next request that waits, if it may be in flight at `at`: the stream that reads it, and from when on.
    pub fn send(&mut self, at: f64, latency_s: impl FnOnce() -> f64) -> Option<(u32, f64)> {
        if self.queue.is_empty() || self.is_full(at) {
            return None;
        }
        let (stream, mut pending) = (self.idle.pop()?, self.queue.pop_front()?);
        let latency_s = latency_s();
        pending.sent = (at, latency_s);
        self.reading[stream as usize] = Some(pending);
        Some((stream, if self.engine.is_some() { at + latency_s } else { at }))
    }

    /// Whether as many are in flight as may be.
    fn is_full(&mut self, at: f64) -> bool {
        while let Some(&(end, (sent, latency_s), mb)) = self.in_flight.front().filter(|(end, ..)| *end <= at) {
            self.in_flight.pop_front();
            if let Some(engine) = &mut self.engine {
                let ns = |s: f64| (s * 1e9) as u64;
                engine
                    .limit
                    .done(ns(end), ns(end - sent), ns(latency_s), (mb * MB) as u64);
            }
        }
        let reading = self.reading.len() - self.idle.len();
        match &mut self.engine {
            // One after the other is read, and only then on its way.
            None => reading > 0 || self.in_flight.len() >= self.most as usize,
            Some(engine) => {
                let is_full = reading + self.in_flight.len() >= engine.limit.limit() as usize;
                if is_full {
                    engine.limit.wanted_more();
                }
                is_full
            }
        }
    }

    /// When this node has to be looked at again because a request that was read ends and another one waits, unless it is anyway.
    pub fn wakes(&mut self, at: f64) -> Option<f64> {
        let next = self.in_flight.front().filter(|_| !self.queue.is_empty())?.0;
        let is_due = self.wakes_at <= at || next < self.wakes_at;
        if is_due {
            self.wakes_at = next;
        }
        is_due.then_some(next)
    }

    /// The MB that a stream reads.
    pub fn mb(&self, stream: u32) -> f64 {
        self.reading[stream as usize].as_ref().map_or(0.0, |reading| reading.mb)
    }

    /// Seconds that a request is expected to take, its turn in the queue included.
    pub fn wait_s(&self) -> f64 {
        self.engine.as_ref().map_or(f64::INFINITY, |engine| {
            engine.request_s * (1.0 + self.queue.len() as f64 / f64::from(engine.limit.limit()))
        })
    }

    /// Requests like these that the source answers each second.
    pub fn answered_per_s(&self) -> f64 {
        self.engine.as_ref().map_or(0.0, |engine| {
            f64::from(engine.limit.limit()) / engine.request_s.max(1e-9)
        })
    }

    /// Whether nothing has been written yet to some of the memory.
    pub fn is_fresh(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.fresh_mb > 0.0)
    }

    /// When `mb` that another node sent until `at` are in memory.
    pub fn filled(&mut self, mb: f64, at: f64) -> f64 {
        self.engine.as_mut().map_or(at, |engine| engine.fill(mb, at, at))
    }

    /// A stream of the source ended at `at`: what it read, and when that is in memory.
    pub fn received(&mut self, setup: &Setup<'_>, stream: u32, at: f64) -> (Pending, f64) {
        let pending = self.reading[stream as usize].take();
        let pending = pending.expect("the source ends only what was started");
        self.idle.push(stream);
        self.queued_mb = (self.queued_mb - pending.mb).max(0.0);
        let connection_s = pending.mb / setup.hardware.connection_mb_s;
        let (sent, latency_s) = pending.sent;
        let arrived = match &mut self.engine {
            None => at.max(sent + connection_s) + latency_s,
            Some(engine) => engine.filled(pending.mb, at, sent, at.max(sent + latency_s + connection_s)),
        };
        let place = self.in_flight.partition_point(|(other, ..)| *other <= arrived);
        self.in_flight.insert(place, (arrived, pending.sent, pending.mb));
        (pending, arrived)
    }
}

impl Engine {
    /// When what was sent for at `sent`, and given by the source at `at`, is in memory, if its connection is through at `arrived`.
    fn filled(&mut self, mb: f64, at: f64, sent: f64, arrived: f64) -> f64 {
        let arrived = self.fill(mb, at, arrived);
        self.request_s += (arrived - sent - self.request_s) * REMEMBERS;
        arrived
    }

    /// Writes `mb` from `at` on; `arrived` where memory isn't fresh.
    fn fill(&mut self, mb: f64, at: f64, arrived: f64) -> f64 {
        let fresh = self.fresh_mb.min(mb);
        if fresh <= 0.0 {
            return arrived;
        }
        self.fresh_mb -= fresh;
        self.filled_at = self.filled_at.max(at) + fresh / self.fill_mb_s;
        arrived.max(self.filled_at)
    }
}
