//! The agent's data sets: opened once for all who name the same, held by connections, and let go the lingering time after the last has left.

use super::{Agent, Fds};
use crate::calls::{Open, Progress, Reply};
use crate::connection::Connection;
use crate::dataset::Dataset;
use crate::protocol::{Say, Trouble};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

impl Agent {
    pub(super) fn dataset(&self, id: u32) -> Result<Rc<Dataset>, Trouble> {
        self.datasets
            .borrow()
            .get(&id)
            .cloned()
            .ok_or_else(|| Trouble::new("closed", format!("no data set {id} is open; open it again")))
    }

    /// The number of the newest data set of a kind.
    pub(super) fn known(&self, is_it: impl Fn(&Dataset) -> bool) -> Option<u32> {
        let datasets = self.datasets.borrow();
        datasets
            .iter()
            .rev()
            .find(|(_, dataset)| is_it(dataset))
            .map(|(number, _)| *number)
    }

    pub(super) fn add(&self, dataset: Rc<Dataset>) -> u32 {
        let number = self.next.replace(self.next.get() + 1) as u32;
        self.datasets.borrow_mut().insert(number, dataset);
        number
    }

    /// A connection holds a data set until its end.
    pub(super) fn hold(&self, connection: &Connection, number: u32) {
        connection.datasets.borrow_mut().insert(number);
        self.unheld.borrow_mut().remove(&number);
    }

    pub(super) async fn open(&self, connection: &Rc<Connection>, id: u64, open: Open) -> Result<(Reply, Fds), Trouble> {
        let plain = Open {
            refresh: false,
            update: false,
            checksum: false,
            digest: None,
            ..open.clone()
        };
        let fresh = !(open.refresh || open.update || open.checksum);
        let is_wanted = |dataset: &Dataset| open.digest.as_ref().is_none_or(|d| *d == dataset.digest().to_string());
        // The ranks of a job open at the same time: the first one lists, and all get the same number.
        loop {
            while self.opening.borrow().contains(&plain) {
                self.opening_ended.notified().await;
            }
            let opened =
                self.known(|dataset| dataset.open == plain && dataset.origin != "subset" && is_wanted(dataset));
            // A run that goes on with a data set has it as it was.
            if let (Some(number), true) = (opened, fresh) {
                let dataset = self.dataset(number)?;
                if open.digest.is_some() || dataset.is_current().await? {
                    return self.opened(connection, number, &dataset);
                }
            }
            // While it was looked whether the index is the one that was read, somebody else may have begun.
            if !self.opening.borrow().contains(&plain) {
                break;
            }
        }
        let (report, mut steps) = tokio::sync::watch::channel(Progress::default());
        let teller = Rc::clone(connection);
        let tell = tokio::task::spawn_local(async move {
            while steps.changed().await.is_ok() {
                let step = steps.borrow_and_update().clone();
                teller.say(&Say::Progress {
                    id,
                    body: serde_json::to_string(&step).unwrap_or_default(),
                });
                // A bar needs no more than twenty pictures a second.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        self.opening.borrow_mut().push(plain.clone());
        // Who else wants the data set opens it anew, from where a listing was left.
        let dataset = tokio::select! {
            dataset = Dataset::open(open.clone(), &self.settings.cache_dir, report) => dataset,
            () = connection.ended() => Err(Trouble::new("cancelled", "the client left while the data set was opened")),
        };
        self.opening.borrow_mut().retain(|other| *other != plain);
        self.opening_ended.notify_waiters();
        tell.abort();
        let dataset = Rc::new(Dataset {
            open: plain,
            ..dataset?
        });
        if !is_wanted(&dataset) {
            let message = "its index is another than when it was opened, for it was listed or written again: open it and begin the run anew";
            return Err(Trouble::new("changed", format!("{}: {message}", open.url)));
        }
        // One that was listed again and is as it was is held once.
        let is_same = |known: &Dataset| {
            known.open == dataset.open
                && known.origin != "subset"
                && known.index_etag == dataset.index_etag
                && known.index.as_bytes() == dataset.index.as_bytes()
        };
        let number = self.known(is_same).unwrap_or_else(|| self.add(Rc::clone(&dataset)));
        self.opened(connection, number, &dataset)
    }

    /// Answers with a data set that is known under a number; `said` knows how it was opened this time.
    pub(super) fn opened(&self, connection: &Connection, number: u32, said: &Dataset) -> Result<(Reply, Fds), Trouble> {
        let dataset = self.dataset(number)?;
        self.hold(connection, number);
        let reply = Reply::Opened {
            dataset: number,
            index_bytes: dataset.index.as_bytes().len() as u64,
            origin: said.origin.to_owned(),
            changes: said.changes.map(|c| [c.unchanged, c.added, c.changed, c.removed]),
        };
        Ok((reply, Fds::Index(dataset)))
    }

    /// Keeps data sets that nobody holds for the lingering time: whoever restarts need not open them anew.
    pub(super) fn drop_unheld_later(&self) {
        for number in self.unheld_now() {
            self.unheld.borrow_mut().entry(number).or_insert_with(Instant::now);
        }
        let Some(agent) = self.this() else { return };
        if agent.unheld.borrow().is_empty() {
            return;
        }
        tokio::task::spawn_local(async move {
            tokio::time::sleep(agent.settings.linger).await;
            let still = agent.unheld_now();
            agent.unheld.borrow_mut().retain(|number, since| {
                let over = since.elapsed() >= agent.settings.linger && still.contains(number);
                if over {
                    agent.datasets.borrow_mut().remove(number);
                }
                !over && still.contains(number)
            });
        });
    }

    /// The data sets that no connection holds and no job reads.
    fn unheld_now(&self) -> Vec<u32> {
        let (datasets, connections) = (self.datasets.borrow(), self.connections.borrow());
        let is_held = |number: &u32| connections.values().any(|c| c.datasets.borrow().contains(number));
        let unused = datasets.iter().filter(|(_, dataset)| Rc::strong_count(dataset) == 1);
        unused
            .map(|(number, _)| *number)
            .filter(|number| !is_held(number))
            .collect()
    }
}
