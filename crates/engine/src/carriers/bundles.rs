//! A bundle under way: where each of its parts stands.
//!
//! A part lands when its last byte has come, when it is said to be missing or isn't what was asked for, when it is called off, and at the latest when the answer ends. So each lands once.

use super::{Hands, Landed, Part};
use crate::peers::Said;
use foreload_store::index::ObjectRef;
use foreload_store::source::parts::{Parts, Verdict};
use foreload_store::{Error, ErrorKind, Fetched, Result, Sink, Source};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

/// One that has not landed, and what was said of it.
struct Open {
    part: Part,
    said: Option<(Said, Duration)>,
}

/// What is to come.
pub(super) struct Coming<'a> {
    hands: Hands,
    back: UnboundedSender<Landed>,
    key: &'a str,
    parts: RefCell<Vec<Option<Open>>>,
    since: Instant,
    /// What the request waited for a connection, and when it was sent.
    connecting: Cell<Duration>,
    asked: Cell<Instant>,
}

impl<'a> Coming<'a> {
    pub fn new(hands: Hands, back: UnboundedSender<Landed>, key: &'a str, parts: Vec<Part>, since: Instant) -> Self {
        let open = |part| Some(Open { part, said: None });
        Coming {
            hands,
            back,
            key,
            parts: RefCell::new(parts.into_iter().map(open).collect()),
            since,
            connecting: Cell::default(),
            asked: Cell::new(since),
        }
    }

    /// Asks for them, and takes what comes.
    pub async fn fetch(&self, source: &Source, key: &str, deadline: Instant) -> Result<()> {
        let lens: Vec<u64> = self.parts.borrow().iter().flatten().map(|open| open.part.len).collect();
        let begun = Instant::now();
        let mut answer = source.ask_parts(key, lens.len(), lens.iter().sum(), deadline).await?;
        self.connecting.set(answer.connecting());
        self.asked.set(begun + answer.connecting());
        while answer.next(&mut &*self).await? {}
        Ok(())
    }

    /// Whether there is one that has not landed.
    pub fn is_awaited(&self) -> bool {
        self.parts.borrow().iter().any(Option::is_some)
    }

    /// What has not landed ends as the answer did.
    pub fn end(&self, ended: Result<()>) {
        let (kind, detail) = match ended {
            Ok(()) => (ErrorKind::Bug, "nothing was said of it".to_owned()),
            Err(error) => (error.kind(), error.detail().to_owned()),
        };
        let count = self.parts.borrow().len();
        (0..count).for_each(|at| self.land(at, Some(Err(Error::new(kind, detail.clone())))));
    }

    /// Nobody waits for some of them any more.
    pub fn call_off(&self, actions: &[u64]) {
        let count = self.parts.borrow().len();
        let is_off = |at: &usize| {
            let parts = self.parts.borrow();
            parts[*at]
                .as_ref()
                .is_some_and(|open| actions.contains(&open.part.action))
        };
        (0..count).filter(is_off).for_each(|at| self.land(at, None));
    }

    fn land(&self, at: usize, fetched: Option<Result<Fetched>>) {
        let Some(Open { part, .. }) = self.parts.borrow_mut()[at].take() else {
            return;
        };
        let object = ObjectRef {
            key: self.key.to_owned(),
            size: part.len,
            etag: None,
            version: None,
        };
        let landed = Landed {
            action: part.action,
            object,
            sink: part.sink,
            fetched,
            took: self.since.elapsed().saturating_sub(self.connecting.get()),
        };
        self.hands.land(&self.back, landed);
    }
}

impl Parts for &Coming<'_> {
    fn told(&mut self, at: usize, verdict: Verdict) -> bool {
        let first_byte = self.asked.get().elapsed();
        let failed = {
            let parts = &mut *self.parts.borrow_mut();
            let Some(open) = &mut parts[at] else { return false };
            match verdict {
                Verdict::Here { len, crc, was_fetched } if u64::from(len) == open.part.len => {
                    open.said = Some((Said { crc, was_fetched }, first_byte));
                    return true;
                }
                Verdict::Here { len, .. } => {
                    let message = format!("the peer has {len} bytes of {}", open.part.len);
                    Error::corrupt(message)
                }
                Verdict::Missing => Error::new(ErrorKind::NotFound, "the peer hasn't got it"),
            }
        };
        self.land(at, Some(Err(failed)));
        false
    }

    fn write(&mut self, at: usize, from: u64, frame: &[u8]) -> Result<()> {
        match &mut self.parts.borrow_mut()[at] {
            Some(open) => open.part.sink.write(from, frame),
            None => Ok(()),
        }
    }

    fn ended(&mut self, at: usize) {
        let known = |open: &Open| open.said.map(|said| (open.part.len, said));
        let known = self.parts.borrow()[at].as_ref().and_then(known);
        let Some((bytes, (said, first_byte))) = known else {
            return;
        };
        let fetched = Fetched {
            bytes,
            object_size: None,
            etag: Some(said.etag()),
            attempts: 1,
            first_byte,
            transfer: self.asked.get().elapsed(),
            connecting: self.connecting.get(),
        };
        self.land(at, Some(Ok(fetched)));
    }
}
