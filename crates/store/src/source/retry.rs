//! Repeats what may succeed the next time, inside a deadline.

use super::Retry;
use super::outage::Outage;
use crate::{Error, ErrorKind, Result};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use tokio::time::Instant;

/// Counts attempts and says whether and when the next one comes.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    retry: Retry,
    deadline: Instant,
    outage: &'a Outage,
    pub made: u32,
    corrupt: u32,
    /// Those that failed since the store came back last, and how often it had by then.
    failed: u32,
    returns: u64,
    /// Why the attempt before failed.
    before: Option<Error>,
}

impl<'a> Attempts<'a> {
    pub fn new(retry: Retry, deadline: Instant, outage: &'a Outage) -> Self {
        Self {
            retry,
            deadline,
            outage,
            made: 0,
            corrupt: 0,
            failed: 0,
            returns: outage.returns(),
            before: None,
        }
    }

    /// Waits before the next attempt, or returns `error` when there is none.
    ///
    /// Damaged data is asked for once more: it may have been the wire, but the second time it is the object.
    pub async fn after(&mut self, error: Error) -> Result<()> {
        let again = match error.kind() {
            ErrorKind::Corrupt => {
                self.corrupt += 1;
                self.corrupt < 2
            }
            kind => kind.is_transient(),
        };
        if error.kind().is_transient() {
            self.outage.failed();
        }
        let returns = self.outage.returns();
        if self.returns != returns {
            (self.returns, self.failed) = (returns, 0);
        }
        self.failed += 1;
        let own = self.pause();
        let left = self.deadline.saturating_duration_since(Instant::now());
        let pause = match error.retry_after() {
            // Longer than anybody waits here: the store may be back before.
            Some(asked) if asked >= left => own.max(left / 2),
            asked => own.max(asked.unwrap_or(Duration::ZERO)),
        };
        // An attempt that could not even connect before the deadline is not worth the request.
        if !again
            || self.retry.attempts.is_some_and(|most| self.made >= most)
            || Instant::now() + pause >= self.deadline
        {
            // The deadline cuts the last attempt short; why there had to be another one says more.
            let before = self.before.take().filter(|_| error.kind() == ErrorKind::Timeout);
            return Err(before.unwrap_or(error));
        }
        let is_wished = error.retry_after().is_some();
        self.before = Some(error);
        if is_wished {
            tokio::time::sleep(pause).await;
        } else {
            self.outage.wait(pause, random()).await;
        }
        Ok(())
    }

    /// Waits for the turn of the next attempt, or returns why the last one failed where the deadline comes first.
    pub async fn in_time(&mut self, turn: impl Future<Output = ()>) -> Result<()> {
        let waited = tokio::time::timeout_at(self.deadline, turn).await;
        waited.map_err(|_| {
            let error = self.before.take();
            error.unwrap_or_else(|| Error::new(ErrorKind::Timeout, "the deadline passed before its turn came"))
        })
    }

    /// Full jitter (a random part of the limit), so that clients that failed together do not come back together.
    fn pause(&self) -> Duration {
        let doubled = self
            .retry
            .pause
            .saturating_mul(1 << self.failed.saturating_sub(1).min(16));
        doubled.min(self.retry.pause_limit).mul_f64(random())
    }
}

/// From 0 to 1.
fn random() -> f64 {
    let random = RandomState::new().build_hasher().finish() >> 11;
    random as f64 / (1_u64 << 53) as f64
}

/// Calls `attempt` until it succeeds, fails for good, or fails beyond [`Retry::patience`]; one attempt may take until `deadline`.
pub(crate) async fn retrying<T, F>(retry: Retry, deadline: Instant, mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let outage = Outage::default();
    let mut attempts = Attempts::new(retry, deadline.min(Instant::now() + retry.patience), &outage);
    loop {
        attempts.made += 1;
        match tokio::time::timeout_at(deadline, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => attempts.after(error).await?,
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "the deadline passed while waiting for the store",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count(kind: ErrorKind, retry: Retry, limit: Duration) -> (u32, Duration) {
        let start = Instant::now();
        let mut calls = 0;
        let result: Result<()> = retrying(retry, start + limit, || {
            calls += 1;
            std::future::ready(Err(
                Error::new(kind, "no").with_retry_after(Some(Duration::from_secs(2)))
            ))
        })
        .await;
        assert_eq!(result.unwrap_err().kind(), kind);
        (calls, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_repeated_and_the_wish_of_the_store_respected() {
        let retry = Retry {
            attempts: Some(4),
            ..Retry::default()
        };
        let long = Duration::from_secs(60);
        assert_eq!(
            count(ErrorKind::Throttled, retry, long).await,
            (4, Duration::from_secs(6))
        );
        assert_eq!(count(ErrorKind::Denied, retry, long).await.0, 1);
        assert_eq!(count(ErrorKind::Corrupt, retry, long).await.0, 2);
        assert_eq!(count(ErrorKind::Unavailable, Retry::never(), long).await.0, 1);
        // Where it wishes for longer than there is, it may be back before: ever sooner, and no sooner than without the wish.
        assert_eq!(count(ErrorKind::Unavailable, retry, Duration::from_secs(3)).await.0, 4);
        let (calls, took) = count(ErrorKind::Throttled, Retry::default(), Duration::from_millis(1900)).await;
        assert!((3..12).contains(&calls), "{calls} calls");
        assert!(took > Duration::from_millis(950), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_bridged_up_to_the_deadline_by_ever_longer_pauses() {
        let (start, limit) = (Instant::now(), Duration::from_secs(30));
        let outage = Outage::default();
        let mut attempts = Attempts::new(Retry::default(), start + limit, &outage);
        while start.elapsed() < Duration::from_secs(20) {
            attempts.made += 1;
            let down = Error::new(ErrorKind::Unavailable, "down");
            attempts.after(down).await.expect("the deadline is far");
        }
        assert!(attempts.made < 60, "{} requests in 20 s", attempts.made);
        let mut calls = 0;
        let down = || {
            calls += 1;
            std::future::ready(Err::<(), _>(Error::new(ErrorKind::Unavailable, "down")))
        };
        let begun = Instant::now();
        retrying(Retry::default(), begun + 12 * limit, down)
            .await
            .expect_err("down");
        assert!((4..=10).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert!((4..60).contains(&calls), "{calls} calls");
    }
}
