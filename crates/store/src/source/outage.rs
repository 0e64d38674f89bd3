//! Whether a store is away: one call at a time looks, and when something is answered all go on.
//!
//! A call that fails waits by itself, ever longer ([`super::retry`]). After an outage of 20 s the last of many calls would come back five seconds too
//! late, and a batch waits for its last sample. So the calls to one store share an [`Outage`]:
//!
//! | state | when | a call that failed |
//! | --- | --- | --- |
//! | here | something was answered since the last failure, or less than [`AWAY_AFTER`] before now | waits its own pause |
//! | away | all that was asked for that long failed | waits its own pause, or until something is answered; one of them looks within [`LOOK`] |
//!
//! Errors and refusals among answers change nothing: the store is here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// For so long nothing may be answered before the store counts as away.
const AWAY_AFTER: Duration = Duration::from_millis(500);
/// The longest pause of the call that looks.
const LOOK: Duration = Duration::from_millis(500);
/// Over this time calls are spread that go on together.
const SPREAD: Duration = Duration::from_millis(50);

/// What the calls to a store know of it together.
#[derive(Debug)]
pub(crate) struct Outage {
    made: Instant,
    /// The first failure since the last answer: milliseconds since `made`, and one more; 0: none.
    failing_since: AtomicU64,
    /// How often the store came back.
    returns: AtomicU64,
    is_looked_after: AtomicBool,
    back: Notify,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            made: Instant::now(),
            failing_since: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            is_looked_after: AtomicBool::new(false),
            back: Notify::new(),
        }
    }
}

impl Outage {
    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    fn is_away(&self, since: u64) -> bool {
        since != 0 && u128::from(self.now().saturating_sub(since)) >= AWAY_AFTER.as_millis()
    }

    /// A call was answered.
    pub fn answered(&self) {
        // All but always there is nothing to do, and then nothing is written.
        if self.failing_since.load(Ordering::Relaxed) == 0 {
            return;
        }
        let since = self.failing_since.swap(0, Ordering::Relaxed);
        if self.is_away(since) {
            self.returns.fetch_add(1, Ordering::Relaxed);
            self.back.notify_waiters();
        }
    }

    /// A call failed, and may succeed later.
    pub fn failed(&self) {
        let now = self.now();
        let _ = self
            .failing_since
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How often the store has come back so far.
    pub fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }

    /// Waits for `pause`; for less where the store is away, and this call looks whether it is back, or another one was answered.
    ///
    /// `share` is random, from 0 to 1: it spreads those that go on together.
    pub async fn wait(&self, pause: Duration, share: f64) {
        let back = self.back.notified();
        let away = self.is_away(self.failing_since.load(Ordering::Relaxed));
        let look = if away { Looking::of(self) } else { None };
        let pause = if look.is_some() { pause.min(LOOK) } else { pause };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = back => tokio::time::sleep(SPREAD.mul_f64(share)).await,
        }
    }
}

/// The one call that looks.
struct Looking<'a>(&'a Outage);

impl<'a> Looking<'a> {
    fn of(outage: &'a Outage) -> Option<Self> {
        let taken = outage.is_looked_after.swap(true, Ordering::Relaxed);
        (!taken).then(|| Self(outage))
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.is_looked_after.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// How long a call waits that wants to wait for five seconds.
    async fn waited(outage: Arc<Outage>) -> Duration {
        let begun = Instant::now();
        outage.wait(Duration::from_secs(5), 1.0).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_is_answered_one_looks_and_all_go_on_when_it_is() {
        let outage = Arc::new(Outage::default());
        outage.failed();
        tokio::time::advance(AWAY_AFTER).await;
        let calls: Vec<_> = (0..4).map(|_| tokio::spawn(waited(Arc::clone(&outage)))).collect();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(outage.returns(), 0);
        outage.answered();
        let mut times = Vec::new();
        for call in calls {
            times.push(call.await.expect("no panic"));
        }
        times.sort();
        assert_eq!(times[0], LOOK, "one looks");
        assert!(
            times[1..].iter().all(|time| *time == Duration::from_secs(2) + SPREAD),
            "{times:?}"
        );
        assert_eq!(outage.returns(), 1);
        assert_eq!(waited(outage).await, Duration::from_secs(5), "it is here");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_among_answers_are_no_outage() {
        let outage = Arc::new(Outage::default());
        let calls: Vec<_> = (0..4).map(|_| tokio::spawn(waited(Arc::clone(&outage)))).collect();
        for _ in 0..40 {
            outage.failed();
            tokio::time::sleep(Duration::from_millis(100)).await;
            outage.answered();
        }
        for call in calls {
            assert_eq!(call.await.expect("no panic"), Duration::from_secs(5));
        }
        assert_eq!(outage.returns(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn another_looks_where_the_first_was_cancelled() {
        let outage = Arc::new(Outage::default());
        outage.failed();
        tokio::time::advance(AWAY_AFTER).await;
        let first = tokio::spawn(waited(Arc::clone(&outage)));
        tokio::task::yield_now().await;
        first.abort();
        let _ = first.await;
        assert_eq!(waited(outage).await, LOOK);
    }
}
