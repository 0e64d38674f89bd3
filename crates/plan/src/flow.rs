//! How many requests may be in flight, whether a slow one gets a twin, and when a source is left alone.
//!
//! Small controllers, pure like the scheduler that owns them. [`Concurrency`] climbs to the bandwidth-delay product: it doubles the limit
//! while goodput follows, then feels its way in steps of a fourth, backs off when the source refuses more than a few, and probes again now and then.
//! [`Origin`] is what several jobs share: one limit, dealt out to them. [`HedgeBudget`] allows twins only as a share of requests, so that a slow
//! bucket is not asked twice for everything. [`Breaker`] counts consecutive failures and opens for a growing pause.

mod origin;

pub use origin::{Member, Origin};

use crate::action::{Failure, Outcome};
use serde::{Deserialize, Serialize};

/// What a job wants of its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests that wait for their turn.
    pub queued: u32,
    /// Requests in flight.
    pub in_flight: u32,
}

/// Limits on requests in flight to one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConcurrencySettings {
    /// Requests in flight at first. 32: a fourth of a second of 110 KB objects at 30 ms latency.
    pub start: u32,
    /// Never fewer. 4 keeps a throttled bucket probed.
    pub least: u32,
    /// Never more. 256: twice what saturates 1 GB/s at 30 ms and 110 KB (bench/results).
    pub most: u32,
}

impl Default for ConcurrencySettings {
    fn default() -> Self {
        ConcurrencySettings {
            start: 32,
            least: 4,
            most: 256,
        }
    }
}

impl ConcurrencySettings {
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

    /// With bounds that don't contradict each other.
    fn in_order(self) -> Self {
        let least = self.least.max(1);
        let most = self.most.max(least);
        ConcurrencySettings {
            start: self.start.clamp(least, most),
            least,
            most,
        }
    }
}

/// Share by which goodput must rise for a higher limit to be worth it.
const WORTH: f64 = 1.05;
/// What doubling the limit must bring for another doubling: with less, the source began to fill up.
const DOUBLES: f64 = 1.7;
/// Windows of steady state between two probes upwards.
const PROBE_EVERY: u32 = 16;
/// The share of requests that a source may refuse before it gets fewer at once: single errors say nothing about load.
const REFUSED: f64 = 0.1;
/// The share is that of so many requests at least: of a few, one refusal would be much.
const LOOKED_AT: u32 = 100;
/// The least pause between two decreases.
const QUIET_NS: u64 = 1_000_000_000;

/// The adaptive limit on requests in flight.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    settings: ConcurrencySettings,
    limit: u32,
    /// Requests to end before the next window: those of the round in which the limit rose, which open connections.
    settling: u32,
    window_start_ns: u64,
    window_bytes: u64,
    window_done: u32,
    saturated: bool,
    best_per_s: f64,
    /// Of the last raise.
    before: u32,
    doubling: bool,
    climbing: bool,
    since_probe: u32,
    /// Requests that ended since refusals were counted last, and those of them that the source refused.
    looked_at: u32,
    refused: u32,
    quiet_until_ns: u64,
}

impl Concurrency {
    /// Starts at `settings.start`, climbing.
    #[must_use]
    pub fn new(settings: ConcurrencySettings) -> Self {
        let settings = settings.in_order();
        Concurrency {
            settings,
            limit: settings.start,
            settling: settings.start,
            window_start_ns: 0,
            window_bytes: 0,
            window_done: 0,
            saturated: false,
            best_per_s: 0.0,
            before: settings.start,
            doubling: true,
            climbing: true,
            since_probe: 0,
            looked_at: 0,
            refused: 0,
            quiet_until_ns: 0,
        }
    }

    /// Requests that may be in flight now.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The limit was reached: more requests were wanted. Only then does goodput say something about the limit.
    pub fn wanted_more(&mut self) {
        self.saturated = true;
    }

    /// One request for `bytes` ended at `now_ns`: what that says about the source.
    pub(crate) fn ended(&mut self, now_ns: u64, bytes: u64, outcome: Outcome) {
        match outcome {
            Outcome::Done { throttled, .. } => {
                self.done(now_ns, bytes);
                self.look_at(now_ns, throttled);
            }
            Outcome::Failed(Failure::Unavailable) => self.look_at(now_ns, true),
            Outcome::Failed(_) => {}
        }
    }

    /// Others send requests from now on, within other bounds: the limit stays where it is as far as they allow, and what was found to be enough is
    /// found out again, from there.
    fn rebound(&mut self, settings: ConcurrencySettings) {
        let settings = settings.in_order();
        self.limit = self.limit.clamp(settings.least, settings.most);
        (self.settings, self.before) = (settings, self.limit);
        self.climbing = true;
        self.best_per_s = 0.0;
        self.settling = self.limit;
        (self.window_done, self.window_bytes, self.saturated) = (0, 0, false);
    }

    /// One request ended well at `now_ns`. A window closes after three rounds of the limit, fewer are noise; two tell whether twice as many bring twice as much.
    pub fn done(&mut self, now_ns: u64, bytes: u64) {
        if self.settings.least == self.settings.most {
            return;
        }
        if self.settling > 0 || now_ns < self.quiet_until_ns {
            self.settling = self.settling.saturating_sub(1);
            return;
        }
        if self.window_done == 0 && self.window_bytes == 0 {
            self.window_start_ns = now_ns;
            self.window_bytes = 1;
            return;
        }
        self.window_bytes += bytes;
        self.window_done += 1;
        if self.window_done < self.limit * if self.doubling { 2 } else { 3 } {
            return;
        }
        let seconds = (now_ns.saturating_sub(self.window_start_ns)) as f64 / 1e9;
        let per_s = self.window_bytes as f64 / seconds.max(1e-6);
        if self.saturated {
            self.close_window(per_s, now_ns);
        }
        self.window_done = 0;
        self.window_bytes = 0;
        self.saturated = false;
    }

    fn close_window(&mut self, per_s: f64, now_ns: u64) {
        if !self.climbing {
            self.best_per_s = 0.9 * self.best_per_s + 0.1 * per_s;
            self.since_probe += 1;
            if self.since_probe >= PROBE_EVERY {
                self.climbing = true;
                self.raise(now_ns);
            }
            return;
        }
        let gain = per_s / self.best_per_s;
        if self.doubling && gain < DOUBLES {
            // Twice as many requests that bring g times as much: the source is full at g times as many, and small steps start from there.
            self.doubling = false;
            self.limit = self.limit.min((f64::from(self.before) * gain.max(1.0)) as u32);
            self.best_per_s = 0.0;
        } else if gain > WORTH {
            self.best_per_s = per_s;
            self.raise(now_ns);
        } else {
            // The last raise bought nothing: back to what did as well, and stay.
            self.climbing = false;
            self.since_probe = 0;
            self.limit = self.before;
        }
    }

    fn raise(&mut self, now_ns: u64) {
        self.before = self.limit;
        if now_ns >= self.quiet_until_ns {
            let more = if self.doubling {
                self.limit
            } else {
                (self.limit / 4).max(1)
            };
            self.limit = self.limit.saturating_add(more).min(self.settings.most);
            self.settling = self.limit;
        }
    }

    /// One request ended; `refused`: the source asked for less (429, 503), broke off or timed out on the way. When that is the share of what ended
    /// which it is for a source that has too much to do, the limit falls.
    pub fn look_at(&mut self, now_ns: u64, refused: bool) {
        self.looked_at += 1;
        self.refused += u32::from(refused);
        let all = LOOKED_AT.max(self.limit);
        if f64::from(self.refused) > REFUSED * f64::from(all) {
            self.back_off(now_ns);
        } else if self.looked_at < all {
            return;
        }
        (self.looked_at, self.refused) = (0, 0);
    }

    /// At most one decrease per second, however many requests were hit. What the source takes now is found from there, in small steps.
    fn back_off(&mut self, now_ns: u64) {
        if now_ns < self.quiet_until_ns {
            return;
        }
        self.limit = (self.limit * 7 / 10).max(self.settings.least);
        (self.before, self.climbing, self.doubling) = (self.limit, true, false);
        self.best_per_s = 0.0;
        self.settling = self.limit;
        self.quiet_until_ns = now_ns + QUIET_NS;
        (self.window_done, self.window_bytes, self.saturated) = (0, 0, false);
    }
}

/// Twins allowed: a share of all requests, in hundredths, with a small start so that the first slow request can have one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgeBudget {
    per_cent: u32,
    credit: u32,
}

impl HedgeBudget {
    /// `per_cent` twins for each hundred requests; 0 switches hedging off.
    #[must_use]
    pub fn new(per_cent: u32) -> Self {
        HedgeBudget {
            per_cent,
            credit: if per_cent == 0 { 0 } else { 200 },
        }
    }

    /// A request was issued.
    pub fn earn(&mut self) {
        self.credit = (self.credit + self.per_cent).min(2000);
    }

    /// Takes one twin from the budget, if it is there.
    pub fn spend(&mut self) -> bool {
        let can = self.credit >= 100;
        if can {
            self.credit -= 100;
        }
        can
    }
}

/// Opens after [`Breaker::FAILURES`] in a row; closes after a pause that doubles from 100 ms to 5 s; one trial decides.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Breaker {
    failures: u32,
    open_until_ns: u64,
    pauses: u32,
}

impl Breaker {
    /// Consecutive failures that open it.
    pub const FAILURES: u32 = 5;

    /// May a request be sent at `now_ns`?
    #[must_use]
    pub fn allows(&self, now_ns: u64) -> bool {
        now_ns >= self.open_until_ns
    }

    /// A request ended well.
    pub fn succeeded(&mut self) {
        *self = Breaker::default();
    }

    /// A request failed.
    pub fn failed(&mut self, now_ns: u64) {
        self.failures += 1;
        if self.failures >= Breaker::FAILURES {
            let pause_ns = (100_000_000u64 << self.pauses.min(6)).min(5_000_000_000);
            self.open_until_ns = now_ns + pause_ns;
            self.pauses += 1;
            self.failures = Breaker::FAILURES - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source with `rate` bytes/s and a fixed latency: goodput rises to the bandwidth-delay product and stays.
    fn run(control: &mut Concurrency, rate: f64, latency_s: f64, bytes: u64, rounds: u32) -> f64 {
        let mut now = 0.0f64;
        for _ in 0..rounds {
            let n = control.limit();
            control.wanted_more();
            let round_s = latency_s.max(f64::from(n) * bytes as f64 / rate);
            for i in 0..n {
                control.done(((now + round_s * f64::from(i + 1) / f64::from(n)) * 1e9) as u64, bytes);
            }
            now += round_s;
        }
        f64::from(control.limit())
    }

    #[test]
    fn the_limit_climbs_to_the_bandwidth_delay_product_and_stays_near() {
        let mut control = Concurrency::new(ConcurrencySettings {
            start: 4,
            least: 2,
            most: 1024,
        });
        let limit = run(&mut control, 1e9, 0.033, 110_000, 600);
        let product = 1e9 * 0.033 / 110_000.0;
        assert!(limit > 0.7 * product && limit < 2.0 * product, "{limit} {product}");
    }

    #[test]
    fn what_the_source_can_take_is_found_within_sixteen_rounds() {
        for (rate, full) in [(150e6, 48.0), (400e6, 128.0), (10e9, 256.0)] {
            let mut control = Concurrency::new(ConcurrencySettings::default());
            let limit = run(&mut control, rate, 0.035, 110_000, 16);
            assert!(limit > 0.8 * full && limit < 1.7 * full, "{limit} of {full}");
        }
    }

    #[test]
    fn the_most_is_kept_where_the_source_could_take_more() {
        let mut control = Concurrency::new(ConcurrencySettings::default());
        for _ in 0..40 {
            run(&mut control, 10e9, 0.035, 110_000, 20);
            assert!(control.limit() >= 230, "{}", control.limit());
        }
    }

    #[test]
    fn throttling_lowers_the_limit_once_per_second() {
        let mut control = Concurrency::new(ConcurrencySettings {
            start: 100,
            least: 4,
            most: 256,
        });
        for i in 0..50 {
            control.look_at(i * 1_000_000, true);
        }
        assert_eq!(control.limit(), 70);
        for i in 0..50 {
            control.look_at(2_000_000_000 + i, true);
        }
        assert_eq!(control.limit(), 49);
    }

    /// Rounds of a source that refuses some requests, each of which comes on its second try; returns the mean limit of the later half.
    fn refusing(control: &mut Concurrency, rounds: u32, is_refused: impl Fn(u32, u32) -> bool) -> f64 {
        let (mut now, mut sum) = (0u64, 0.0);
        let mut number = 0;
        for round in 0..rounds {
            let n = control.limit();
            control.wanted_more();
            for i in 0..n {
                let throttled = is_refused(number, i);
                number += 1;
                let end = now + 33_000_000 * u64::from(i + 1) / u64::from(n);
                let done = Outcome::Done {
                    latency_ns: 30_000_000,
                    total_ns: 33_000_000,
                    throttled,
                };
                control.ended(end, 110_000, done);
            }
            now += 33_000_000;
            if round >= rounds / 2 {
                sum += f64::from(control.limit()) / f64::from(rounds - rounds / 2);
            }
        }
        sum
    }

    #[test]
    fn single_errors_cost_no_throughput() {
        // One in 333, in 100 and in 33, spread as dice spread them.
        for one_in in [333, 100, 33] {
            let mut control = Concurrency::new(ConcurrencySettings::default());
            let hit = |number: u32, _| number.wrapping_mul(2_654_435_761) >> 8 < (1 << 24) / one_in;
            let limit = refusing(&mut control, 600, hit);
            assert!(limit > 0.8 * 256.0, "one in {one_in}: {limit}");
        }
    }

    #[test]
    fn a_source_that_refuses_what_is_too_much_gets_about_what_it_takes() {
        let mut control = Concurrency::new(ConcurrencySettings::default());
        let limit = refusing(&mut control, 2000, |_, of_round| of_round >= 60);
        assert!((50.0..110.0).contains(&limit), "{limit} of 60");
    }

    #[test]
    fn a_moment_of_refusals_is_forgotten() {
        let mut control = Concurrency::new(ConcurrencySettings::default());
        refusing(&mut control, 60, |_, _| false);
        let before = control.limit();
        refusing(&mut control, 15, |_, _| true);
        assert!(control.limit() < before);
        let later = refusing(&mut control, 200, |_, _| false);
        assert!(later > 0.9 * f64::from(before), "{later} of {before}");
    }

    #[test]
    fn a_fixed_limit_stays() {
        let mut control = Concurrency::new(ConcurrencySettings::fixed(64));
        run(&mut control, 1e9, 0.03, 110_000, 50);
        (0..100).for_each(|now| control.look_at(now, true));
        assert_eq!(control.limit(), 64);
    }

    #[test]
    fn twins_stay_within_their_share() {
        let mut budget = HedgeBudget::new(5);
        let mut twins = 0;
        for _ in 0..1000 {
            budget.earn();
            twins += u32::from(budget.spend());
        }
        assert!((50..=53).contains(&twins), "{twins}");
        assert!(!HedgeBudget::new(0).spend());
    }

    #[test]
    fn the_breaker_opens_pauses_longer_each_time_and_closes_on_success() {
        let mut breaker = Breaker::default();
        (0..5).for_each(|_| breaker.failed(0));
        assert!(!breaker.allows(99_999_999) && breaker.allows(100_000_000));
        breaker.failed(100_000_000);
        assert!(!breaker.allows(299_999_999) && breaker.allows(300_000_000));
        breaker.succeeded();
        assert!(breaker.allows(0));
    }
}
