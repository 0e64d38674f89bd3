//! A bundle under way: where each of its parts stands.
//!
//! A part lands when its last byte has come, when it is said to be missing or isn't what was asked for, and at the latest when the answer ends or is called off. So each lands once.

use super::{Hands, Landed, Part};
use crate::peers::Said;
use foreload_store::index::ObjectRef;
use foreload_store::source::parts::{Parts, Verdict};
use foreload_store::{Error, ErrorKind, Fetched, Result, Sink, Source};
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
    parts: Vec<Option<Open>>,
    since: Instant,
    /// What the request waited for a connection, and when it was sent.
    connecting: Duration,
    asked: Instant,
}

impl<'a> Coming<'a> {
    pub fn new(hands: Hands, back: UnboundedSender<Landed>, key: &'a str, parts: Vec<Part>, since: Instant) -> Self {
        let open = |part| Some(Open { part, said: None });
        Coming {
            hands,
            back,
            key,
            parts: parts.into_iter().map(open).collect(),
            since,
            connecting: Duration::ZERO,
            asked: since,
        }
    }

    /// Asks for them, and takes what comes.
    pub async fn fetch(&mut self, source: &Source, key: &str, deadline: Instant) -> Result<()> {
        let expects = self.parts.iter().flatten().map(|open| open.part.len).sum();
        let begun = Instant::now();
        let mut answer = source.ask_parts(key, self.parts.len(), expects, deadline).await?;
        self.connecting = answer.connecting();
        self.asked = begun + self.connecting;
        while answer.next(self).await? {}
        Ok(())
    }

    /// What has not landed ends as the answer did; `None`: it was called off.
    pub fn end(mut self, ended: Option<Result<()>>) {
        let why = ended.map(|ended| match ended {
            Ok(()) => (ErrorKind::Bug, "nothing was said of it".to_owned()),
            Err(error) => (error.kind(), error.detail().to_owned()),
        });
        for at in 0..self.parts.len() {
            let failed = why
                .as_ref()
                .map(|(kind, detail)| Err(Error::new(*kind, detail.clone())));
            self.land(at, failed);
        }
    }

    fn land(&mut self, at: usize, fetched: Option<Result<Fetched>>) {
        let Some(Open { part, .. }) = self.parts[at].take() else {
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
            took: self.since.elapsed().saturating_sub(self.connecting),
        };
        self.hands.land(&self.back, landed);
    }
}

impl Parts for Coming<'_> {
    fn told(&mut self, at: usize, verdict: Verdict) -> bool {
        let first_byte = self.asked.elapsed();
        let Some(open) = &mut self.parts[at] else { return false };
        let failed = match verdict {
            Verdict::Here { len, crc, was_fetched } if u64::from(len) == open.part.len => {
                open.said = Some((Said { crc, was_fetched }, first_byte));
                return true;
            }
            Verdict::Here { len, .. } => {
                let message = format!("the peer has {len} bytes of {}", open.part.len);
                Error::corrupt(message)
            }
            Verdict::Missing => Error::new(ErrorKind::NotFound, "the peer hasn't got it"),
        };
        self.land(at, Some(Err(failed)));
        false
    }

    fn write(&mut self, at: usize, from: u64, frame: &[u8]) -> Result<()> {
        match &mut self.parts[at] {
            Some(open) => open.part.sink.write(from, frame),
            None => Ok(()),
        }
    }

    fn ended(&mut self, at: usize) {
        let Some((said, first_byte)) = self.parts[at].as_ref().and_then(|open| open.said) else {
            return;
        };
        let fetched = Fetched {
            bytes: self.parts[at].as_ref().map_or(0, |open| open.part.len),
            object_size: None,
            etag: Some(said.etag()),
            attempts: 1,
            first_byte,
            transfer: self.asked.elapsed(),
            connecting: self.connecting,
        };
        self.land(at, Some(Ok(fetched)));
    }
}
