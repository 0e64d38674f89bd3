//! The limit on requests in flight to one source: it finds the knee, where more of them stop bringing more bytes.
//!
//! While as many requests are in flight as may be, Little's law gives the rate from what each of them took: `limit * bytes / took`. Unlike bytes
//! counted over a stretch of time, that holds however unevenly they end, and a round of requests is enough to see what a change of the limit did: only
//! those count that were sent after it.
//!
//! | phase | tries | as long as that | then |
//! | --- | --- | --- | --- |
//! | doubling | twice as many | brings nearly twice as much | raising, from the point that the last doubling hints at; halving where it brought nothing |
//! | halving | half as many | costs nothing | staying with the last that cost nothing |
//! | raising | a fourth more | brings something; doubling where it brings a fourth | staying with the last that did |
//! | lowering | a fourth less | costs nothing | staying, as after halving |
//! | staying | nothing, for two windows, and for twice as many after each probe, up to sixteen | | raising and lowering by turns, as the source may have changed; raising at once where the rate rose or fell |
//!
//! The rate alone is no guide where several clients fill one source: each of them brings more with more requests, at the others' cost, until requests
//! take so long that they are cut off, and all the work is for nothing. Two things hold against that. Where first bytes are waited for longer
//! than [`PATIENT_NS`], or all bytes longer than [`PATIENT_FOR_ALL_NS`], there are fewer at once, and nobody tries more who would come there. And where requests hear nothing for so long that they are
//! repeated, as many are sent as were answered meanwhile in the time that one should take ([`Concurrency::silent`]).
//!
//! The bounds are no part of the search. [`ConcurrencySettings::MOST`] is what nobody needs more of; what memory, descriptors and threads allow is the
//! carrier's to say ([`ConcurrencySettings::at_most`]), and what the source allows shows in what it refuses.

use crate::action::{Failure, Outcome, Told};
use serde::{Deserialize, Serialize};

/// Limits on requests in flight to one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConcurrencySettings {
    /// Requests in flight at first. 64: a round of them is 7 MB of 110 KB objects, 7 ms of a link of 1 GB/s, and a search for more ends a doubling sooner.
    pub start: u32,
    /// Never fewer. 4 keeps a throttled bucket probed.
    pub least: u32,
    /// Never more: [`ConcurrencySettings::MOST`] unless something else is asked for.
    pub most: u32,
}

impl Default for ConcurrencySettings {
    fn default() -> Self {
        ConcurrencySettings {
            start: 64,
            least: 4,
            most: Self::MOST,
        }
    }
}

impl ConcurrencySettings {
    /// More connections than one process has any use for: 1.6 GB/s of 32 KB objects at 80 ms latency.
    pub const MOST: u32 = 4096;

    /// Exactly `n` requests, never adapted.
    #[must_use]
    pub fn fixed(n: u32) -> Self {
        let n = n.max(1);
        ConcurrencySettings {
            start: n,
            least: n,
            most: n,
        }
    }

    /// The same where a process can have no more than `n` requests in flight, whatever is asked for.
    #[must_use]
    pub fn at_most(self, n: u32) -> Self {
        let most = self.most.min(n);
        ConcurrencySettings {
            start: self.start.min(most),
            least: self.least.min(most),
            most,
        }
        .in_order()
    }

    /// With bounds that don't contradict each other.
    pub(super) fn in_order(self) -> Self {
        let least = self.least.max(1);
        let most = self.most.max(least);
        ConcurrencySettings {
            start: self.start.clamp(least, most),
            least,
            most,
        }
    }
}

/// What twice as many must bring for another doubling: with less, the source began to fill up.
const DOUBLES: f64 = 1.7;
/// Less than this is nothing, for a doubling.
const NOTHING: f64 = 1.1;
/// What a fourth more must bring for it to be worth it.
const WORTH: f64 = 1.05;
/// A rise of the rate that a fourth more brings where nothing is full yet, and that while the limit stays says that the source has changed.
const RISES: f64 = 1.2;
/// A fall that says the same. Its answer is more requests first, too: fewer in flight bring nothing, and what was only a moment's noise has cost nothing.
const FALLS: f64 = 0.8;
/// A fourth more.
const STEP_UP: f64 = 1.25;
/// Fewer requests cost nothing while so much of the rate is left.
const KEEPS: f64 = 0.97;
/// Windows of staying before a probe, at most; a change that paid makes it [`PROBE_SOON`] again, and each probe that didn't doubles it.
const PROBE_EVERY: u32 = 16;
/// Windows of staying before the first probe.
const PROBE_SOON: u32 = 2;
/// Requests that a window has at least where the step is small: of fewer, the mean is noise.
const LEAST_WINDOW: u32 = 32;
/// The share of requests that a source may refuse before it gets fewer at once: single errors say nothing about load.
const REFUSED: f64 = 0.1;
/// A share counts as more than another one if it is so many standard deviations above what chance makes of that.
const DOUBTS: f64 = 3.0;
/// The share that always is too much. Where load is the reason, a smaller one is gone after a decrease.
const FLOOD: f64 = 0.3;
/// What is left of a share after a decrease, where load was the reason. Where more is left, fewer requests are refused as often as more of them.
const HELPS: f64 = 0.5;
/// What a source may refuse that was found to refuse a share whatever it is sent.
const TOLERATED: f64 = 1.5;
/// The share is that of so many requests at least: of a few, one refusal would be much.
const LOOKED_AT: u32 = 100;
/// For so long a decrease is watched: what was refused ends later than what wasn't, so that a round of requests would show too few refusals.
const WATCHED_NS: u64 = 500_000_000;
/// What a decrease leaves of the limit.
const DECREASE: f64 = 0.7;
/// The least pause between two decreases.
const QUIET_NS: u64 = 1_000_000_000;

/// So long a first byte may be waited for on average. Where it takes longer, requests wait for one another, and after 10 s they are cut off.
const PATIENT_NS: f64 = 2.5e9;
/// And so long all of what was asked for, which comes in time where requests share the source byte by byte, but late.
const PATIENT_FOR_ALL_NS: f64 = 10e9;
/// What each client keeps where all must have fewer: who has many loses more by it than who has few, and in the end they have the same (as in D. Wei et
/// al., *FAST TCP*, 2006, where it is what each keeps in the queue).
const KEPT: u32 = 2;
/// Of the time after which requests are cut off, the part that one should take: so many are in flight then as were answered in that part.
const SHOULD_TAKE: u32 = 10;

/// What the limit is doing; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Doubling,
    Halving,
    Raising,
    Lowering,
    Staying { windows: u32 },
}

/// Requests that were sent under one limit, and have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window {
    ended: u32,
    /// Of them, those after which as many were in flight again as may be.
    full: u32,
    bytes: u64,
    took_ns: u64,
    /// What they waited for their first bytes.
    first_ns: u64,
}

impl Window {
    /// How many times as many requests there may be before they wait too long for one another; less than 1: they do already.
    fn room(&self) -> f64 {
        let ended = f64::from(self.ended);
        let (first, all) = (self.first_ns.max(1) as f64, self.took_ns.max(1) as f64);
        (PATIENT_NS * ended / first).min(PATIENT_FOR_ALL_NS * ended / all)
    }
}

/// Seconds that [`Recent`] remembers: more than a request is given to say something.
const SECONDS: u64 = 16;

/// How many there were of something in each of the last seconds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Recent {
    second: u64,
    counts: [u32; SECONDS as usize],
}

impl Recent {
    /// Forgets what is too long ago.
    fn go_on(&mut self, now_ns: u64) {
        let now = now_ns / 1_000_000_000;
        for second in (self.second + 1..=now).rev().take(SECONDS as usize) {
            self.counts[(second % SECONDS) as usize] = 0;
        }
        self.second = self.second.max(now);
    }

    fn note(&mut self, now_ns: u64) {
        self.go_on(now_ns);
        self.counts[(self.second % SECONDS) as usize] += 1;
    }

    /// How many there were in the last `span_ns`, within a second.
    fn within(&mut self, now_ns: u64, span_ns: u64) -> u32 {
        self.go_on(now_ns);
        let seconds = span_ns.div_ceil(1_000_000_000).clamp(1, SECONDS);
        let recent = (self.second + SECONDS + 1 - seconds)..=self.second + SECONDS;
        recent.map(|second| self.counts[(second % SECONDS) as usize]).sum()
    }
}

/// A decrease of which isn't known yet whether it helped.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decrease {
    /// What was refused.
    share: f64,
    /// The limit before.
    limit: u32,
    at_ns: u64,
}

/// The adaptive limit on requests in flight.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    settings: ConcurrencySettings,
    limit: u32,
    phase: Phase,
    /// The limit before the last change, and when that was.
    before: u32,
    since_ns: u64,
    /// Windows of staying before the next probe.
    probe_after: u32,
    window: Window,
    /// More was wanted since a request ended last.
    is_full: bool,
    /// The rate that a window is held against, bytes per second; 0: none yet.
    best_per_s: f64,
    /// Whether the last probe went down.
    probes_down: bool,
    /// Requests that ended since refusals were counted last, and those of them that the source refused.
    looked_at: u32,
    refused: u32,
    /// The share that may be refused: [`REFUSED`], or more where a decrease changed nothing.
    tolerated: f64,
    decrease: Option<Decrease>,
    quiet_until_ns: u64,
    /// Requests that were answered, and those that heard nothing.
    answered: Recent,
    silent: Recent,
    /// When the limit was last set to what was answered.
    cut_ns: u64,
}

impl Concurrency {
    /// Starts at `settings.start`, doubling.
    #[must_use]
    pub fn new(settings: ConcurrencySettings) -> Self {
        let settings = settings.in_order();
        Concurrency {
            settings,
            limit: settings.start,
            phase: Phase::Doubling,
            before: settings.start,
            since_ns: 0,
            probe_after: PROBE_SOON,
            window: Window::default(),
            is_full: false,
            best_per_s: 0.0,
            probes_down: true,
            looked_at: 0,
            refused: 0,
            tolerated: REFUSED,
            decrease: None,
            quiet_until_ns: 0,
            answered: Recent::default(),
            silent: Recent::default(),
            cut_ns: 0,
        }
    }

    /// Starts where an earlier search stood, if that is more than `settings.start`, and looks on from there.
    #[must_use]
    pub fn known(settings: ConcurrencySettings, knee: u32) -> Self {
        let mut concurrency = Self::new(settings);
        if knee > concurrency.limit {
            concurrency.search(Phase::Raising, knee, 0);
        }
        concurrency
    }

    /// The limit at which the source gave all it had when that was tried last; `None`: nothing shows yet that it was full.
    #[must_use]
    pub fn knee(&self) -> Option<u32> {
        let is_fixed = self.settings.least == self.settings.most;
        (!is_fixed && self.phase != Phase::Doubling).then_some(self.before)
    }

    /// Requests that may be in flight now.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// What the limit never exceeds.
    pub fn most(&self) -> u32 {
        self.settings.most
    }

    /// The limit was reached: more requests were wanted. Only then does a rate say something about the limit.
    pub fn wanted_more(&mut self) {
        self.is_full = true;
    }

    /// One request for `bytes` ended at `now_ns`, `took_ns` after it was issued, or had a connection: what that says about the source.
    pub(crate) fn ended(&mut self, now_ns: u64, took_ns: u64, bytes: u64, outcome: Outcome) {
        match outcome {
            Outcome::Done(Told::Nothing) => {}
            Outcome::Done(told @ (Told::Speed { latency_ns, .. } | Told::Throttled { latency_ns, .. })) => {
                self.done(now_ns, took_ns, latency_ns, bytes);
                self.look_at(now_ns, took_ns, matches!(told, Told::Throttled { .. }));
            }
            Outcome::Failed(Failure::Unavailable) => self.look_at(now_ns, took_ns, true),
            Outcome::Failed(_) => {}
        }
    }

    /// Others send requests from now on, within other bounds: the limit stays where it is as far as they allow, and what was found to be enough is
    /// found out again, from there.
    pub(super) fn rebound(&mut self, settings: ConcurrencySettings) {
        self.settings = settings.in_order();
        let limit = self.limit.clamp(self.settings.least, self.settings.most);
        let is_doubling = self.phase == Phase::Doubling;
        self.search(
            if is_doubling { Phase::Doubling } else { Phase::Raising },
            limit,
            self.since_ns,
        );
    }

    /// One request for `bytes` ended well at `now_ns`, `took_ns` after it was issued, and its first byte came after `first_ns`. What it waited for a new
    /// connection doesn't count: with more requests in flight more of them wait for that, once.
    pub fn done(&mut self, now_ns: u64, took_ns: u64, first_ns: u64, bytes: u64) {
        self.answered.note(now_ns);
        let is_full = std::mem::take(&mut self.is_full);
        let was_sent_before = now_ns.saturating_sub(took_ns) < self.since_ns;
        if self.settings.least == self.settings.most || was_sent_before || now_ns < self.quiet_until_ns {
            return;
        }
        let window = &mut self.window;
        window.ended += 1;
        window.full += u32::from(is_full);
        window.bytes += bytes;
        window.took_ns += took_ns;
        window.first_ns += first_ns;
        let enough = match self.phase {
            Phase::Doubling => self.limit,
            _ => LEAST_WINDOW.max(self.limit.saturating_mul(2)),
        };
        if window.ended < enough {
            return;
        }
        let window = std::mem::take(window);
        // A window in which demand was lacking says nothing.
        if window.full * 2 > window.ended {
            self.close_window(&window, now_ns);
        }
    }

    fn close_window(&mut self, window: &Window, now_ns: u64) {
        let per_s = f64::from(self.limit) * window.bytes as f64 / (window.took_ns.max(1) as f64 / 1e9);
        let room = window.room();
        let gain = per_s / self.best_per_s;
        let (double, more, fewer) = (
            self.limit.saturating_mul(2),
            self.limit + self.step(),
            self.limit - self.step(),
        );
        let most = per_s.max(self.best_per_s);
        match self.phase {
            Phase::Doubling if gain < NOTHING => {
                self.limit = self.before;
                self.go_on(Phase::Halving, self.limit / 2, most, now_ns);
            }
            Phase::Halving if gain > KEEPS => self.go_on(Phase::Halving, self.limit / 2, most, now_ns),
            Phase::Lowering if gain > KEEPS => self.go_on(Phase::Lowering, fewer, most, now_ns),
            _ if room < 1.0 => {
                let fewer = (f64::from(self.limit) * room) as u32 + KEPT;
                self.search(Phase::Raising, fewer.min(self.limit), now_ns);
            }
            Phase::Doubling | Phase::Raising if gain > WORTH && room < STEP_UP => self.stay(self.limit, now_ns),
            Phase::Doubling if gain >= DOUBLES => self.go_on(Phase::Doubling, double, per_s, now_ns),
            // Twice as many bring g times as much: the source is full at about g times as many.
            Phase::Doubling => self.search(Phase::Raising, (f64::from(self.before) * gain) as u32, now_ns),
            Phase::Raising if gain > RISES && self.best_per_s > 0.0 => {
                self.go_on(Phase::Doubling, double, per_s, now_ns)
            }
            Phase::Raising if gain > WORTH => self.go_on(Phase::Raising, more, per_s, now_ns),
            Phase::Raising | Phase::Halving | Phase::Lowering => self.stay(self.before, now_ns),
            Phase::Staying { .. } if !(FALLS..=RISES).contains(&gain) => {
                self.probe_after = PROBE_SOON;
                self.search(Phase::Raising, self.limit, now_ns);
            }
            Phase::Staying { windows } if windows < self.probe_after => {
                self.best_per_s += 0.1 * (per_s - self.best_per_s);
                self.phase = Phase::Staying { windows: windows + 1 };
            }
            Phase::Staying { .. } => {
                self.probe_after = (2 * self.probe_after).min(PROBE_EVERY);
                // Up and down by turns.
                self.probes_down = room < STEP_UP || !self.probes_down;
                match self.probes_down {
                    true => self.go_on(Phase::Lowering, fewer, self.best_per_s, now_ns),
                    false => self.go_on(Phase::Raising, more, self.best_per_s, now_ns),
                }
            }
        }
    }

    /// A fourth of the limit.
    fn step(&self) -> u32 {
        (self.limit / 4).max(1)
    }

    /// The next step, to be held against `per_s`; none where the bounds leave none.
    fn go_on(&mut self, phase: Phase, limit: u32, per_s: f64, now_ns: u64) {
        self.best_per_s = per_s;
        let limit = limit.clamp(self.settings.least, self.settings.most);
        if limit == self.limit {
            return self.stay(limit, now_ns);
        }
        self.phase = phase;
        (self.before, self.limit, self.since_ns) = (self.limit, limit, now_ns);
    }

    /// Stays with `limit` for a while.
    fn stay(&mut self, limit: u32, now_ns: u64) {
        self.phase = Phase::Staying { windows: 0 };
        (self.before, self.limit, self.since_ns) = (limit, limit, now_ns);
    }

    /// Looks for the knee from `limit` on, with nothing to hold it against yet.
    fn search(&mut self, phase: Phase, limit: u32, now_ns: u64) {
        self.phase = phase;
        self.limit = limit.clamp(self.settings.least, self.settings.most);
        (self.before, self.since_ns, self.best_per_s) = (self.limit, now_ns, 0.0);
        (self.window, self.is_full) = (Window::default(), false);
    }

    /// One request ended; `refused`: the source asked for less (429, 503), broke off or timed out on the way. When that is the share of what ended
    /// which it is for a source that has too much to do, the limit falls. Where as many are refused after that as before, it was for nothing: the limit
    /// is what it was, and such a share is no reason any more.
    pub fn look_at(&mut self, now_ns: u64, took_ns: u64, refused: bool) {
        let sent_ns = now_ns.saturating_sub(took_ns);
        if sent_ns < self.cut_ns {
            return;
        }
        if self.decrease.is_some_and(|decrease| sent_ns < decrease.at_ns) {
            return;
        }
        self.looked_at += 1;
        self.refused += u32::from(refused);
        let all = LOOKED_AT.max(self.limit);
        let is_flood = f64::from(self.refused) > FLOOD * f64::from(all.max(self.looked_at));
        let is_watched = self
            .decrease
            .is_some_and(|decrease| now_ns < decrease.at_ns + WATCHED_NS);
        if (is_watched || self.looked_at < all) && !is_flood {
            return;
        }
        let share = f64::from(self.refused) / f64::from(self.looked_at);
        let doubt = DOUBTS * (self.tolerated * (1.0 - self.tolerated) / f64::from(self.looked_at)).sqrt();
        (self.looked_at, self.refused) = (0, 0);
        match self.decrease.take() {
            Some(before) if !is_flood && share > HELPS * before.share => {
                self.tolerated = TOLERATED * share.max(before.share);
                self.quiet_until_ns = now_ns;
                self.search(Phase::Raising, before.limit, now_ns);
            }
            _ if share > self.tolerated + doubt => self.back_off(now_ns, share),
            _ if share < HELPS * REFUSED => self.tolerated = REFUSED,
            _ => {}
        }
    }

    /// A request that was sent `took_ns` before `now_ns` heard nothing for so long that it is sent again. Where more than a few do, the limit becomes what
    /// was answered meanwhile in the time that a request should take: by Little's law, no more than that are answered in time. Where few are, but soon,
    /// that is more than the limit, and nothing changes.
    pub fn silent(&mut self, now_ns: u64, took_ns: u64) {
        if self.settings.least == self.settings.most || now_ns.saturating_sub(took_ns) < self.cut_ns {
            return;
        }
        self.silent.note(now_ns);
        let (silent, answered) = (
            self.silent.within(now_ns, took_ns),
            self.answered.within(now_ns, took_ns),
        );
        let fits = answered / SHOULD_TAKE;
        let is_few = silent < self.settings.least || f64::from(silent) <= REFUSED * f64::from(silent + answered);
        if is_few || fits >= self.limit {
            return;
        }
        (self.cut_ns, self.silent) = (now_ns, Recent::default());
        (self.looked_at, self.refused, self.decrease) = (0, 0, None);
        // Where nothing was answered at all, how many are too many isn't known.
        let phase = if answered == 0 { Phase::Doubling } else { Phase::Raising };
        self.search(phase, fits, now_ns);
    }

    /// At most one decrease per second, however many requests were hit. What the source takes now is found from there, in small steps.
    fn back_off(&mut self, now_ns: u64, share: f64) {
        if now_ns < self.quiet_until_ns {
            return;
        }
        self.quiet_until_ns = now_ns + QUIET_NS;
        self.decrease = (share <= FLOOD).then_some(Decrease {
            share,
            limit: self.limit,
            at_ns: now_ns,
        });
        self.search(
            Phase::Raising,
            (f64::from(self.limit) * DECREASE) as u32,
            self.quiet_until_ns,
        );
    }
}

#[cfg(test)]
mod tests;
