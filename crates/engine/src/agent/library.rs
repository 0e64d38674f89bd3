//! The agent's data sets: opened once for all who name the same, held by connections, and let go the lingering time after the last has left.

use super::aside::Work;
use super::{Agent, Fds};
use crate::calls::{Chosen, Open, Reply};
use crate::connection::Connection;
use crate::dataset::{Dataset, trouble};
use crate::list::List;
use crate::protocol::Trouble;
use foreload_store::Index;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// What choosing samples of a data set comes to.
enum Part {
    /// The data set of this number.
    Known(u32),
    /// A new one: its index, and its list for clients to map.
    New(Index, List),
}

/// Some samples of an index, of which these choices are known.
fn chosen(index: &Index, list: List, known: &[(u32, List)], work: &Work) -> Result<Part, Trouble> {
    // What a choice is chosen of has other numbers in the whole.
    let list = match index.numbers() {
        None => list,
        Some(_) => composed(index, &list)?,
    };
    // Ranks and workers choose alike. Comparing lists takes a hundredth of the time of choosing.
    let same = |(_, other): &&(u32, List)| other.numbers() == list.numbers();
    if let Some((number, _)) = known.iter().find(same) {
        return Ok(Part::Known(*number));
    }
    let (mut said, total) = (Ok(()), list.numbers().len());
    let mut goes_on = |done: u64| {
        said = work.at("choosing samples", done, total);
        said.is_ok()
    };
    let numbers = list.numbers().clone();
    let index = index.whole().choose_while(numbers, &mut goes_on);
    let index = index.map_err(|e| trouble(&e))?;
    said?;
    let index = index.ok_or_else(|| Trouble::new("bug", "the choice ended early"))?;
    Ok(Part::New(index, list))
}

fn composed(index: &Index, list: &List) -> Result<List, Trouble> {
    let numbers = index.resolve(list.numbers().clone()).map_err(|e| trouble(&e))?;
    let numbers: Vec<u64> = numbers.iter().collect();
    List::new(&numbers).map_err(|e| Trouble::new("no-memory", format!("laying down a list of samples: {e}")))
}

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
            stale: false,
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
                    if open.digest.is_none() && !open.stale {
                        dataset.look().await?;
                    }
                    // Nothing was listed for whoever asks now.
                    let origin = if dataset.open.index.is_some() { "saved" } else { "cache" };
                    return self.opened_from(connection, number, &dataset, origin);
                }
            }
            // While it was looked whether the index is the one that was read, somebody else may have begun.
            if !self.opening.borrow().contains(&plain) {
                break;
            }
        }
        self.opening.borrow_mut().push(plain.clone());
        let opened = self.open_anew(connection, id, open, &plain).await;
        self.opening.borrow_mut().retain(|other| *other != plain);
        self.opening_ended.notify_waiters();
        opened
    }

    /// Who else wants the data set opens it anew when this fails, from where a listing was left.
    async fn open_anew(
        &self,
        connection: &Rc<Connection>,
        id: u64,
        open: Open,
        plain: &Open,
    ) -> Result<(Reply, Fds), Trouble> {
        let (asked, directory) = (open.clone(), self.settings.cache_dir.clone());
        let room = Arc::clone(&self.spools);
        let opened = move |work: &Work| {
            work.drive(async {
                let is_new = asked.digest.is_none() && !asked.stale;
                let dataset = Dataset::open(asked, &directory, room, work.report.clone()).await?;
                if is_new && matches!(dataset.origin, "cache" | "saved") {
                    dataset.look().await?;
                }
                Ok(dataset)
            })
        };
        let dataset = Rc::new(Dataset {
            open: plain.clone(),
            ..self.aside(connection, id, opened).await?
        });
        if open
            .digest
            .as_ref()
            .is_some_and(|digest| *digest != dataset.digest().to_string())
        {
            let message = "its index is another than when it was opened, for it was listed or written again: open it and begin the run anew";
            return Err(Trouble::new("changed", format!("{}: {message}", open.url)));
        }
        // One that was listed again and is as it was is held once.
        let is_like = |known: &Dataset| {
            known.open == dataset.open
                && known.origin != "subset"
                && known.index_etag == dataset.index_etag
                && known.index.digest() == dataset.index.digest()
        };
        let mut number = self.known(is_like);
        if let Some(like) = number {
            // Digests leave checksums out.
            let known = self.dataset(like)?;
            let both = [known.index.clone(), dataset.index.clone()];
            let is_same = move |_: &Work| Ok(both[0].as_bytes() == both[1].as_bytes());
            if self.aside(connection, id, is_same).await? {
                known.kept.swap(&dataset.kept);
            } else {
                number = None;
            }
        }
        let number = number.unwrap_or_else(|| self.add(Rc::clone(&dataset)));
        self.opened(connection, number, &dataset)
    }

    /// Some samples of a data set as one of its own.
    pub(super) async fn subset(
        &self,
        connection: &Rc<Connection>,
        id: u64,
        number: u32,
        samples: List,
    ) -> Result<(Reply, Fds), Trouble> {
        let whole = self.dataset(number)?;
        let index = whole.index.clone();
        let parts: Vec<(u32, Rc<Dataset>)> = {
            let datasets = self.datasets.borrow();
            let is_part = |dataset: &Dataset| dataset.list.is_some() && Arc::ptr_eq(&dataset.shared, &whole.shared);
            let parts = datasets.iter().filter(|(_, dataset)| is_part(dataset));
            parts.map(|(number, dataset)| (*number, Rc::clone(dataset))).collect()
        };
        let known: Vec<(u32, List)> = parts
            .iter()
            .filter_map(|(number, dataset)| Some((*number, dataset.list.clone()?)))
            .collect();
        let choice = self
            .aside(connection, id, move |work| chosen(&index, samples, &known, work))
            .await?;
        let (index, list) = match choice {
            // It is still there: whatever a call holds stays open.
            Part::Known(number) => {
                let part = parts.iter().find(|(other, _)| *other == number);
                let (_, part) = part.ok_or_else(|| Trouble::new("bug", "an unknown choice"))?;
                return self.opened(connection, number, part);
            }
            Part::New(index, list) => (index, list),
        };
        let subset = Rc::new(whole.part(index, list));
        let is_same = |d: &Dataset| d.index.digest() == subset.index.digest() && d.open == subset.open;
        let number = self.known(is_same).unwrap_or_else(|| self.add(Rc::clone(&subset)));
        self.opened(connection, number, &subset)
    }

    /// Answers with a data set that is known under a number; `said` knows how it was opened this time.
    pub(super) fn opened(&self, connection: &Connection, number: u32, said: &Dataset) -> Result<(Reply, Fds), Trouble> {
        self.opened_from(connection, number, said, said.origin)
    }

    fn opened_from(
        &self,
        connection: &Connection,
        number: u32,
        said: &Dataset,
        origin: &str,
    ) -> Result<(Reply, Fds), Trouble> {
        let dataset = self.dataset(number)?;
        self.hold(connection, number);
        let reply = Reply::Opened {
            dataset: number,
            index_bytes: dataset.index.as_bytes().len() as u64,
            chosen: dataset.list.as_ref().map(|list| Chosen {
                samples: list.numbers().len(),
                digest: dataset.digest(),
                objects: dataset.index.objects(),
            }),
            origin: origin.to_owned(),
            changes: said.changes.map(|c| [c.unchanged, c.added, c.changed, c.removed]),
        };
        Ok((reply, Fds::Index(dataset)))
    }

    /// Keeps data sets that nobody holds for the lingering time: whoever restarts need not open them anew.
    pub(super) fn drop_unheld_later(&self) {
        let Some(agent) = self.this() else { return };
        tokio::task::spawn_local(async move {
            // Whoever has just let go of a job has its data sets for a moment more; what still finishes something of it, until it is looked at again.
            tokio::task::yield_now().await;
            agent.look_at_unheld();
            loop {
                tokio::time::sleep(agent.settings.linger).await;
                if !agent.look_at_unheld() {
                    break;
                }
            }
        });
    }

    /// Lets data sets go that nobody has held for the lingering time. Whether there are others that nobody holds.
    fn look_at_unheld(&self) -> bool {
        let now = self.unheld_now();
        let mut unheld = self.unheld.borrow_mut();
        unheld.retain(|number, _| now.contains(number));
        for number in now {
            unheld.entry(number).or_insert_with(Instant::now);
        }
        unheld.retain(|number, since| {
            let over = since.elapsed() >= self.settings.linger;
            if over {
                self.datasets.borrow_mut().remove(number);
            }
            !over
        });
        !unheld.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;
    use foreload_store::format::Format;
    use foreload_store::index::{IndexBuilder, NewObject};

    #[test]
    fn a_choice_ends_when_its_client_leaves() {
        let mut builder = IndexBuilder::new("s3://bucket", Format::Folder);
        let object = NewObject {
            key: "a",
            ..NewObject::default()
        };
        builder.whole_object(object, None, None).expect("added");
        let index = builder.finish().expect("built");
        let (client, work) = Work::unwatched();
        let samples = List::new(&[0; 100_000]).expect("laid down");
        let again = |known: &[(u32, List)]| chosen(&index, samples.clone(), known, &work);
        assert!(matches!(again(&[]).expect("chosen"), Part::New(new, _) if new.len() == 100_000));
        let others = [&[0; 99_999][..], &[0; 100_000]].map(|other| List::new(other).expect("laid down"));
        let known = [(3, others[0].clone()), (4, others[1].clone())];
        assert!(matches!(again(&known).expect("chosen"), Part::Known(4)));
        assert!(matches!(again(&known[..1]).expect("chosen"), Part::New(..)));
        assert!(work.report.borrow().done > 0);
        drop(client);
        assert_eq!(again(&[]).err().map(|t| t.kind), Some("cancelled".to_owned()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let _inside = runtime.enter();
        let opened = work.drive(std::future::pending::<Result<(), Trouble>>());
        assert_eq!(opened.err().map(|t| t.kind), Some("cancelled".to_owned()));
    }
}
