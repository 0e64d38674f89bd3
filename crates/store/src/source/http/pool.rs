//! Unused connections, newest first.

use super::Connection;
use super::connect::Origin;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// Connections kept for reuse, per runtime and origin: a socket belongs to the runtime that made it, and using it from
/// another one would wake two threads per read.
#[derive(Debug)]
pub(crate) struct Pool {
    shelves: Mutex<Vec<Shelf>>,
    most: usize,
    age: Duration,
}

#[derive(Debug)]
struct Shelf {
    runtime: Id,
    origin: Origin,
    idle: Vec<(Instant, Connection)>,
}

impl Pool {
    pub fn new(most: usize, age: Duration) -> Self {
        Self {
            shelves: Mutex::new(Vec::new()),
            most,
            age,
        }
    }

    /// The most recently used connection that is still open.
    pub fn take(&self, origin: &Origin) -> Option<Connection> {
        let runtime = Handle::current().id();
        let mut shelves = self.shelves.lock().unwrap_or_else(|e| e.into_inner());
        let shelf = shelves
            .iter_mut()
            .find(|s| s.runtime == runtime && s.origin == *origin)?;
        let now = Instant::now();
        while let Some((since, mut connection)) = shelf.idle.pop() {
            if now.duration_since(since) < self.age && is_open(&mut connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose last answer was read to its end.
    pub fn put(&self, origin: &Origin, connection: Connection) {
        let Ok(runtime) = Handle::try_current() else { return };
        let runtime = runtime.id();
        let mut shelves = self.shelves.lock().unwrap_or_else(|e| e.into_inner());
        let found = shelves.iter().position(|s| s.runtime == runtime && s.origin == *origin);
        let at = found.unwrap_or_else(|| {
            shelves.push(Shelf {
                runtime,
                origin: origin.clone(),
                idle: Vec::new(),
            });
            shelves.len() - 1
        });
        let idle = &mut shelves[at].idle;
        let now = Instant::now();
        if idle
            .first()
            .is_some_and(|(since, _)| now.duration_since(*since) >= self.age)
        {
            idle.retain(|(since, _)| now.duration_since(*since) < self.age);
        }
        if idle.len() < self.most {
            idle.push((now, connection));
        }
    }
}

/// Whether the server has neither closed the connection nor sent something nobody asked for.
fn is_open(connection: &mut Connection) -> bool {
    let mut byte = [0_u8; 1];
    let mut context = Context::from_waker(Waker::noop());
    let mut peek = poll_fn(|cx| Pin::new(&mut connection.stream).poll_read(cx, &mut ReadBuf::new(&mut byte)));
    matches!(
        std::future::Future::poll(Pin::new(&mut peek), &mut context),
        Poll::Pending
    )
}
