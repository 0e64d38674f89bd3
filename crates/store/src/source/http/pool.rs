//! Unused connections, newest first.

use super::Connection;
use super::connect::Origin;
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

thread_local! {
    /// Those of all pools that this thread has used.
    static SHELVES: RefCell<Vec<Shelf>> = const { RefCell::new(Vec::new()) };
}

/// Connections kept for reuse, per thread, runtime and origin: a socket belongs to the runtime that made it, and using it from
/// another one would wake two threads per read. So threads that fetch share no lock either. They go with the thread, or once the
/// pool is gone and the thread puts back another one's.
#[derive(Debug)]
pub(crate) struct Pool {
    me: Arc<()>,
    most: usize,
    age: Duration,
}

#[derive(Debug)]
struct Shelf {
    pool: Weak<()>,
    runtime: Id,
    origin: Origin,
    idle: Vec<(Instant, Connection)>,
}

impl Pool {
    pub fn new(most: usize, age: Duration) -> Self {
        Self {
            me: Arc::new(()),
            most,
            age,
        }
    }

    /// The most recently used connection that is still open.
    pub fn take(&self, origin: &Origin) -> Option<Connection> {
        let runtime = Handle::current().id();
        SHELVES.with_borrow_mut(|shelves| {
            let at = self.find(shelves, runtime, origin)?;
            let now = Instant::now();
            while let Some((since, mut connection)) = shelves[at].idle.pop() {
                if now.duration_since(since) < self.age && is_open(&mut connection) {
                    return Some(connection);
                }
            }
            None
        })
    }

    /// Keeps a connection whose last answer was read to its end.
    pub fn put(&self, origin: &Origin, connection: Connection) {
        let Ok(runtime) = Handle::try_current() else { return };
        let runtime = runtime.id();
        SHELVES.with_borrow_mut(|shelves| {
            let at = self.find(shelves, runtime, origin).unwrap_or_else(|| {
                shelves.retain(|shelf| shelf.pool.strong_count() > 0);
                shelves.push(Shelf {
                    pool: Arc::downgrade(&self.me),
                    runtime,
                    origin: origin.clone(),
                    idle: Vec::new(),
                });
                shelves.len() - 1
            });
            let (now, idle) = (Instant::now(), &mut shelves[at].idle);
            if idle
                .first()
                .is_some_and(|(since, _)| now.duration_since(*since) >= self.age)
            {
                idle.retain(|(since, _)| now.duration_since(*since) < self.age);
            }
            if idle.len() < self.most {
                idle.push((now, connection));
            }
        });
    }

    fn find(&self, shelves: &[Shelf], runtime: Id, origin: &Origin) -> Option<usize> {
        let is_mine = |shelf: &Shelf| std::ptr::eq(shelf.pool.as_ptr(), Arc::as_ptr(&self.me));
        shelves
            .iter()
            .position(|shelf| is_mine(shelf) && shelf.runtime == runtime && shelf.origin == *origin)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Not while the thread itself ends.
        let _ = SHELVES.try_with(|shelves| {
            if let Ok(mut shelves) = shelves.try_borrow_mut() {
                shelves.retain(|shelf| !std::ptr::eq(shelf.pool.as_ptr(), Arc::as_ptr(&self.me)));
            }
        });
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
