//! How many requests may be in flight, whether a slow one gets a twin, and when a source is left alone.
//!
//! Small controllers, pure like the scheduler that owns them. [`Concurrency`] finds how many requests the source is worth, and backs off when it refuses
//! more than a few. [`Origin`] is what several jobs share: one limit, dealt out to them. [`Twins`] says which request is late, and how many may
//! be asked for twice. [`Breaker`] counts consecutive failures and opens for a growing pause.

mod concurrency;
mod origin;
mod twins;

pub use concurrency::{Concurrency, ConcurrencySettings};
pub use origin::{Member, Origin};
pub use twins::Twins;

/// What a job wants of its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests that wait for their turn.
    pub queued: u32,
    /// Requests in flight.
    pub in_flight: u32,
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

    /// Whether it was open, and nothing has ended well since.
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        self.pauses > 0
    }

    /// A request ended well.
    pub fn succeeded(&mut self) {
        *self = Breaker::default();
    }

    /// A request failed. Many at once, of what was under way when it opened, count one after the other: where a link has become slow one request alone, a trial, is answered
    /// soon, and as many as before are not.
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
