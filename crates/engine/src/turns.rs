//! Whose turn it is to be sent again: repetitions keep to the limit on requests, too.
//!
//! A scheduler keeps requests in flight within its source's limit, and one that waits to be repeated is in flight for it. When the limit falls because a
//! source can't serve that many, those that heard nothing would nevertheless be sent again at once, all of them, and hear nothing again. So each request
//! has a [`Turn`]: it is on the wire from when it is sent until it fails or ends, and is sent again when fewer are on the wire than the limit allows. Those that were issued first
//! come first. The first time needs no turn: the scheduler gives that.
//!
//! Carriers' threads share the [`Turns`] of a source; what they hear of silence is taken by the thread that owns the limit, before it hears how requests ended.

use foreload_store::{Error, ErrorKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The turns of the requests to one source.
pub struct Turns {
    line: Mutex<Line>,
    /// Somebody heard nothing.
    pub silence: Notify,
}

struct Line {
    limit: u32,
    on_wire: u32,
    issued: u64,
    /// Those that wait to be sent again, in the order in which they were issued.
    waiting: BTreeMap<u64, Waker>,
    /// How long ago requests were sent that heard nothing, and nobody knows of yet.
    silences: Vec<Duration>,
}

impl Line {
    fn free(&self) -> usize {
        self.limit.saturating_sub(self.on_wire) as usize
    }

    /// Wakes those whose turn it is.
    fn wake(&self) {
        self.waiting.values().take(self.free()).for_each(Waker::wake_by_ref);
    }
}

impl Turns {
    /// Of a source that may have so many requests on the wire.
    #[must_use]
    pub fn new(limit: u32) -> Arc<Self> {
        let line = Line {
            limit,
            on_wire: 0,
            issued: 0,
            waiting: BTreeMap::new(),
            silences: Vec::new(),
        };
        Arc::new(Turns {
            line: Mutex::new(line),
            silence: Notify::new(),
        })
    }

    /// How long ago requests were sent that heard nothing, since this was asked last.
    #[must_use]
    pub fn silences(&self) -> Vec<Duration> {
        std::mem::take(&mut self.line().silences)
    }

    /// So many may be on the wire from now on.
    pub fn limit(&self, requests: u32) {
        let mut line = self.line();
        line.limit = requests;
        line.wake();
    }

    /// The turn of a request that is issued now.
    #[must_use]
    pub fn issue(self: &Arc<Self>) -> Turn {
        let mut line = self.line();
        line.issued += 1;
        Turn {
            turns: Arc::clone(self),
            number: line.issued,
            sent: None,
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Nothing panics while it is held, and what it holds would still be numbers.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of one request.
pub struct Turn {
    turns: Arc<Turns>,
    number: u64,
    /// When it was sent; `None`: it is not on the wire.
    sent: Option<Instant>,
}

impl Turn {
    /// The request goes out.
    pub fn sent(&mut self) {
        if self.sent.replace(Instant::now()).is_none() {
            self.turns.line().on_wire += 1;
        }
    }

    /// It failed.
    pub fn broke(&mut self, error: &Error) {
        let Some(sent) = self.sent.take() else { return };
        let mut line = self.turns.line();
        if error.kind() == ErrorKind::Timeout {
            line.silences.push(sent.elapsed());
            self.turns.silence.notify_one();
        }
        line.on_wire -= 1;
        line.wake();
    }

    /// Whether it may be sent again; then it is on the wire.
    pub fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut line = self.turns.line();
        line.waiting.insert(self.number, cx.waker().clone());
        if !line
            .waiting
            .keys()
            .take(line.free())
            .any(|&number| number == self.number)
        {
            return Poll::Pending;
        }
        line.waiting.remove(&self.number);
        line.on_wire += 1;
        self.sent = Some(Instant::now());
        Poll::Ready(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = self.turns.line();
        line.waiting.remove(&self.number);
        line.on_wire -= u32::from(self.sent.is_some());
        line.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_go(turn: &mut Turn) -> bool {
        turn.poll_again(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn those_that_heard_nothing_are_sent_again_within_the_limit_and_in_the_order_in_which_they_were_issued() {
        let turns = Turns::new(4);
        let mut sent: Vec<Turn> = (0..4).map(|_| turns.issue()).collect();
        sent.iter_mut().for_each(Turn::sent);
        turns.limit(2);
        let silence = Error::new(ErrorKind::Timeout, "nothing came");
        sent.iter_mut().for_each(|turn| turn.broke(&silence));
        assert_eq!((turns.silences().len(), turns.silences().len()), (4, 0));
        // All have asked before any is let go.
        turns.limit(0);
        assert!(!sent.iter_mut().rev().any(may_go));
        turns.limit(2);
        let may: Vec<bool> = sent.iter_mut().rev().map(may_go).collect();
        assert_eq!(may, [false, false, true, true]);
        drop(sent.remove(0));
        assert!(
            !may_go(&mut sent[2]) && may_go(&mut sent[1]),
            "the one before it comes first"
        );
        // Those that go without having been sent hold up nobody.
        turns.limit(1);
        drop(sent);
        let mut next = turns.issue();
        assert!(may_go(&mut next));
        next.broke(&Error::new(ErrorKind::Unavailable, "refused"));
        assert!(turns.silences().is_empty(), "it was answered");
        assert!(may_go(&mut next));
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let turns = Turns::new(1);
        let mut first = turns.issue();
        first.sent();
        let mut second = turns.issue();
        let waiting = tokio::spawn(async move {
            std::future::poll_fn(|cx| second.poll_again(cx)).await;
            second
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        drop(waiting.await.expect("no panic"));
        assert_eq!(turns.line().on_wire, 0);
    }
}
