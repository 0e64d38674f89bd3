//! One timer per request for two limits: silence on the connection, and the caller's deadline.

use super::connect::Origin;
use crate::{Error, ErrorKind, Result};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// What comes at this pace, in bytes per second, or faster is waited for beyond the caller's deadline. Many requests that share a slow store are each as
/// slow as this; who cuts them off gets nothing at all.
const LEAST_PER_S: f64 = 4096.0;

/// Watches a connection. The timer is registered once and re-armed only when it fires, because a connection that is
/// alive makes progress thousands of times before.
#[derive(Debug)]
pub(crate) struct Watch {
    origin: Origin,
    silence: Duration,
    deadline: Instant,
    last: Instant,
    // Made when something first has to wait: an answer that is already there needs no timer.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Watch {
    pub fn new(origin: &Origin, silence: Duration, deadline: Instant) -> Self {
        Self {
            origin: origin.clone(),
            silence,
            deadline,
            last: Instant::now(),
            sleep: None,
        }
    }

    /// So many bytes came: what keeps coming has more time, and isn't thrown away shortly before its end.
    pub fn came(&mut self, bytes: usize) {
        self.deadline += Duration::from_secs_f64(bytes as f64 / LEAST_PER_S);
    }

    /// The connection did something.
    pub fn progress(&mut self) {
        self.last = Instant::now();
    }

    /// Polls `step` until it is ready, or fails at the first limit.
    pub async fn run<T>(&mut self, mut step: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T> {
        poll_fn(|cx| match step(cx) {
            Poll::Ready(value) => {
                self.progress();
                Poll::Ready(Ok(value))
            }
            Poll::Pending => self.poll_expired(cx).map(Err),
        })
        .await
    }

    /// Ready with the error when a limit has passed; wakes the task when one may have.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        loop {
            let limit = (self.last + self.silence).min(self.deadline);
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(limit)));
            if sleep.deadline() > limit {
                sleep.as_mut().reset(limit);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Poll::Ready(Error::new(
                    ErrorKind::Timeout,
                    format!("the deadline passed while waiting for {}", self.origin),
                ));
            }
            if now >= self.last + self.silence {
                let silence = self.silence;
                return Poll::Ready(Error::new(
                    ErrorKind::Timeout,
                    format!("{} sent nothing for {silence:?}", self.origin),
                ));
            }
            sleep.as_mut().reset(limit);
        }
    }
}
