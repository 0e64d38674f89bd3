//! Long work of a call, on a thread of its own.
//!
//! One thread serves all clients, and whatever it does for one of them the batches of the others wait for. So everything that takes time in
//! proportion to a data set (opening, choosing samples, looking at all lengths, computing keys) is done aside. The client hears how far it is, and
//! the work ends early when the client leaves.

use super::Agent;
use crate::calls::Progress;
use crate::connection::Connection;
use crate::dataset::Reporter;
use crate::protocol::{Say, Trouble};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;

/// A bar needs no more than twenty pictures a second.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// What work aside knows of the client that it is for.
pub(crate) struct Work {
    /// Told how far it is.
    pub report: Reporter,
    /// Its sender goes with the client.
    client: watch::Receiver<()>,
}

impl Work {
    /// Work that nobody watches.
    #[cfg(test)]
    pub(crate) fn unwatched() -> (watch::Sender<()>, Self) {
        let ((sender, client), (report, _)) = (watch::channel(()), watch::channel(Progress::default()));
        (sender, Work { report, client })
    }

    /// Whether the client is still there.
    pub fn is_wanted(&self) -> bool {
        self.client.has_changed().is_ok()
    }

    /// Says how far it is.
    ///
    /// # Errors
    /// `cancelled` when the client has left.
    pub fn at(&self, step: &str, done: u64, total: u64) -> Result<(), Trouble> {
        let progress = Progress {
            step: step.to_owned(),
            done,
            total: Some(total),
            ..Progress::default()
        };
        drop(self.report.send_replace(progress));
        if self.is_wanted() { Ok(()) } else { Err(left()) }
    }

    /// Drives a future on this thread until it is done or the client has left.
    ///
    /// # Errors
    /// The future's, or `cancelled`.
    pub fn drive<T>(&self, future: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        let mut client = self.client.clone();
        tokio::runtime::Handle::current().block_on(async {
            tokio::select! {
                biased;
                _ = client.changed() => Err(left()),
                done = future => done,
            }
        })
    }
}

fn left() -> Trouble {
    Trouble::new("cancelled", "the client left meanwhile")
}

impl Agent {
    /// Does the work of a call aside.
    ///
    /// # Errors
    /// The work's, or `cancelled` when the client leaves.
    pub(super) async fn aside<T: Send + 'static>(
        &self,
        connection: &Rc<Connection>,
        id: u64,
        work: impl FnOnce(&Work) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let (report, mut steps) = watch::channel(Progress::default());
        let (wanted, client) = watch::channel(());
        let teller = Rc::clone(connection);
        // Ends with the work, whose reporter it listens to.
        tokio::task::spawn_local(async move {
            while steps.changed().await.is_ok() {
                let step = steps.borrow_and_update().clone();
                teller.say(&Say::Progress {
                    id,
                    body: serde_json::to_string(&step).unwrap_or_default(),
                });
                tokio::time::sleep(TELL_EVERY).await;
            }
        });
        self.asides.set(self.asides.get() + 1);
        let mut running = tokio::task::spawn_blocking(move || work(&Work { report, client }));
        let done = tokio::select! {
            done = &mut running => done,
            () = connection.ended() => {
                drop(wanted);
                running.await
            }
        };
        self.asides.set(self.asides.get() - 1);
        self.changed.notify_one();
        done.map_err(|error| Trouble::new("bug", error.to_string()))?
    }
}
