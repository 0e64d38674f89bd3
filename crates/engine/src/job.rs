//! A job: who reads what, in which order, and what was counted of it.
//!
//! A job has its attachment, its clients, memory for batches and the lists of its order; what it reads comes from the [`Pool`] that it has joined. Clients
//! attach to it and leave it, and it is in one of three states:
//!
//! | state | meaning | ends with |
//! | --- | --- | --- |
//! | running | somebody is attached, or about to be | the last client's leave |
//! | lingering | nobody is: nothing new is loaded, and what is in memory waits for the next one | a client that attaches, or its end |
//! | closed | it has parted from its pool | |

mod lists;
mod metrics;
mod survey;

use crate::batches::Batches;
use crate::calls::{Attach, Report, Stats};
use crate::connection::Connection;
use crate::pool::Pool;
use crate::protocol::{Sent, Trouble};
use crate::streams::Streams;
use foreload_plan::action::{Event, Failure, Item, Via};
use foreload_plan::job::Reads;
use foreload_plan::order::{Expected, Listed, Order};
use foreload_plan::policy::Retention;
use foreload_plan::{Digest, DigestBuilder};
use lists::Lists;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use survey::too_large;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use survey::Survey;

/// How far a job's life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Lingering(Instant),
    Closed,
}

/// A running plan.
pub struct Job {
    /// Its number in the agent, and in its pool.
    pub id: u32,
    /// What it was attached with.
    pub attach: Attach,
    /// The word by which others join it: that of the loader it belongs to now.
    pub word: RefCell<String>,
    /// What it reads.
    pub streams: Streams,
    /// Where it comes from.
    pub pool: Rc<Pool>,
    /// The batch arena.
    pub batches: RefCell<Batches>,
    /// What it needs of the memory to go on at all.
    pub least_bytes: u64,
    /// The connection of the rank that has met the other nodes.
    pub met: Cell<Option<u64>>,
    /// Connections attached.
    clients: Cell<u64>,
    life: Cell<Life>,
    stats: RefCell<Stats>,
    /// Requests that somebody waits for, and since when there are any.
    waiting: Cell<u64>,
    waiting_since: Cell<Option<Instant>>,
    /// Requests so far.
    asked: Cell<u64>,
    /// The last epoch that its consumers came to.
    last_epoch: Cell<Option<u32>>,
    lists: RefCell<Lists>,
    active: Notify,
    ended: Notify,
    plan_digest: Digest,
}

/// Why the list of an epoch isn't taken.
pub fn list_trouble(epoch: u32, error: &foreload_plan::Error) -> Trouble {
    Trouble::new("invalid", format!("the list of epoch {epoch}: {error}"))
}

impl Job {
    /// Starts a job: makes its batch arena, and joins the pool. `survey` is of all its samples.
    ///
    /// # Errors
    /// `invalid` when the plan doesn't fit, `no-memory` when a sample doesn't fit the budget or the system has none.
    pub async fn start(
        id: u32,
        survey: Survey,
        streams: Streams,
        pool: Rc<Pool>,
        warnings: &mut Vec<String>,
    ) -> Result<Rc<Self>, Trouble> {
        let least_bytes = survey.least_bytes(&streams)?;
        warnings.extend(survey.warning_of_batches());
        let (most_bytes, largest) = (survey.most_bytes(), survey.largest_together());
        let Survey {
            attach, order, ranking, ..
        } = survey;
        let looks_up = streams.is_packed() && attach.policy.retention() == Retention::Pinned;
        warnings.extend(warning_of_order(&attach, order.expected_bytes(looks_up)));
        let batches = Batches::new(attach.batch_bytes).map_err(|error| {
            let remedy = crate::memory::remedy(&error).unwrap_or("Cache(batches=) makes it smaller");
            let bytes = attach.batch_bytes;
            Trouble::new(
                "no-memory",
                format!("making an arena of {bytes} bytes for batches: {error}. {remedy}"),
            )
        })?;
        let plan_digest = plan_digest(&attach, order.digest());
        let lists = RefCell::new(Lists::of(&order, looks_up));
        let reads = Reads {
            sets: Vec::new(),
            order: order.deferred(),
            world: attach.world,
            uneven: attach.uneven,
            deal: attach.deal.clone(),
            ranking,
            ranks: attach.ranks.clone(),
            ram_bytes: Some(sample_bytes(&attach)),
            largest: Some(largest),
            epochs: attach.epochs,
        };
        let job = Rc::new(Job {
            id,
            word: RefCell::new(attach.session.clone()),
            plan_digest,
            lists,
            attach,
            streams,
            pool,
            batches: RefCell::new(batches),
            least_bytes,
            met: Cell::new(None),
            clients: Cell::new(0),
            life: Cell::new(Life::Running),
            stats: RefCell::default(),
            waiting: Cell::new(0),
            waiting_since: Cell::new(None),
            asked: Cell::new(0),
            last_epoch: Cell::new(None),
            active: Notify::new(),
            ended: Notify::new(),
        });
        job.pool.admit(&job, reads, most_bytes).await?;
        job.log_metrics();
        Ok(job)
    }

    /// Takes memory for what the job reads, of so many bytes that the machine has (`None`: it doesn't say), and says so where that is less than was
    /// asked for.
    pub fn take_memory(&self, available: Option<u64>, warnings: &mut Vec<String>) {
        let order_bytes = self.order(|order| order.map_or(0, |order| order.expected_bytes(self.looks_up())));
        let beside = self.attach.batch_bytes + order_bytes;
        let left = available.map_or(u64::MAX, |left| left.saturating_sub(beside));
        if let Some((budget, asked)) = self.pool.share_memory(left) {
            let mb = |bytes: u64| bytes / 1_000_000;
            let together = match mb(asked) > mb(self.sample_bytes()) {
                true => format!(", all loaders that share it for {} MB", mb(asked)),
                false => String::new(),
            };
            warnings.push(format!(
                "the loader asks for {} MB of memory{together}, and this machine or its control group has {} MB left: it keeps {} MB for samples now, and more when there is more; give cache=Cache(ram=...) less",
                mb(self.attach.ram_bytes),
                mb(left.saturating_add(beside)),
                mb(budget.min(self.sample_bytes())),
            ));
        }
    }

    /// The digest that ranks compare before their first batch: everything that decides who reads what.
    #[must_use]
    pub fn plan_digest(&self) -> Digest {
        self.plan_digest
    }

    /// Memory for samples: what batches leave of the budget.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        sample_bytes(&self.attach)
    }

    /// How long a consumer waits until that is reported.
    #[must_use]
    pub fn stall_limit(&self) -> Duration {
        Duration::from_secs_f64(self.attach.stall_s.max(0.1))
    }

    /// Looks at the order that it reads in.
    fn order<T>(&self, at: impl FnOnce(Option<&Order>) -> T) -> T {
        self.pool.look(|scheduler| at(scheduler.order(self.id)))
    }

    /// What the list of an epoch must be like, of an order that the client supplies.
    ///
    /// # Errors
    /// `invalid` when it doesn't.
    pub fn expects(&self, epoch: u32) -> Result<Expected, Trouble> {
        let expected = self.order(|order| order.map(|order| order.expects(epoch)));
        let expected = expected.unwrap_or(Err(foreload_plan::Error::EpochNotSupplied { epoch }));
        expected.map_err(|e| list_trouble(epoch, &e))
    }

    /// Takes such a list.
    ///
    /// # Errors
    /// `invalid` when another one came meanwhile.
    pub fn supply(&self, epoch: u32, samples: Listed) -> Result<(), Trouble> {
        let admitted = self.expects(epoch)?.admits(&samples);
        admitted.map_err(|e| list_trouble(epoch, &e))?;
        self.pool.step(Event::Epoch {
            job: self.id,
            epoch,
            samples,
        });
        Ok(())
    }

    /// Takes a want of a connection: a batch or samples.
    pub fn want(self: &Rc<Self>, connection: &Rc<Connection>, id: u64, event: impl FnOnce(u64) -> Event) {
        let request = self.pool.want(self, connection, id);
        self.asked.set(self.asked.get() + 1);
        self.active.notify_one();
        self.hear(event(request));
    }

    /// A connection no longer waits for what it asked under `id`; `None`: for anything.
    pub fn withdraw(&self, connection: &Rc<Connection>, id: Option<u64>) {
        self.pool.withdraw(connection, Some(self.id), id);
    }

    /// One request more that somebody waits for, or one less.
    pub fn count_waiting(&self, more: bool) {
        let before = self.waiting.get();
        self.waiting.set(if more { before + 1 } else { before - 1 });
        match (before, more) {
            (0, true) => self.waiting_since.set(Some(Instant::now())),
            (1, false) => {
                let waited = self
                    .waiting_since
                    .take()
                    .map_or(0.0, |since| since.elapsed().as_secs_f64());
                self.stats.borrow_mut().waited_s += waited;
            }
            _ => {}
        }
    }

    /// Whether somebody waits for a request.
    fn waits(&self) -> bool {
        self.waiting.get() > 0
    }

    /// A delivery, as a client gets it.
    ///
    /// # Errors
    /// `no-memory` for a sample that is larger than the memory, which the plan has as an empty one.
    pub fn sent(&self, items: &[Item]) -> Result<Vec<Sent>, Trouble> {
        let most_bytes = self.sample_bytes();
        if let Some(large) = items.iter().find(|item| self.streams.length(item.sample) > most_bytes) {
            return Err(too_large(&self.attach, &self.streams, large.sample));
        }
        let mut stats = self.stats.borrow_mut();
        let sent = items.iter().map(|item| {
            count(&mut stats, item.via, item.slot.len);
            Sent {
                sample: item.sample,
                handle: item.handle,
                offset: item.slot.offset,
                len: item.slot.len,
                label: self.streams.label(item.sample).unwrap_or(i64::MIN),
                via: item.via,
            }
        });
        Ok(sent.collect())
    }

    /// Why a request isn't served.
    pub fn explain_refusal(&self, sample: Option<u64>, failure: Failure) -> Trouble {
        let name = sample.map_or_else(|| "the request".to_owned(), |sample| self.streams.name(sample));
        match failure {
            Failure::NoMemory => Trouble::new(
                "no-memory",
                format!(
                    "{name} doesn't fit the memory budget of {} bytes together with its batch; give cache=Cache(ram=...) more, or use smaller batches",
                    self.attach.ram_bytes
                ),
            ),
            Failure::Cancelled => Trouble::new("cancelled", "called off: the loader was started anew"),
            _ if sample.is_none() => Trouble::new(
                "invalid",
                "this batch was consumed already or doesn't exist; start the loader at it first",
            ),
            _ => Trouble::new("unavailable", format!("{name} could not be loaded")),
        }
    }

    /// Counts something.
    pub fn count(&self, what: impl FnOnce(&mut Stats)) {
        what(&mut self.stats.borrow_mut());
    }

    /// Counters so far. Memory, and requests in flight, are those of all jobs that share the pool.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut gauges = self.pool.look(foreload_plan::Scheduler::gauges);
        gauges.reads_ahead = self.pool.look(|scheduler| scheduler.reads_ahead(self.id));
        gauges.requests = self.waiting.get();
        let mut stats = self.stats.borrow().clone().with(&gauges);
        stats.order_bytes = self.order(|order| order.map_or(0, Order::held_bytes));
        stats.memory_bytes = self.pool.cache.used_bytes() + self.batches.borrow().shared().used_bytes();
        stats.index_bytes = self.streams.index_bytes();
        (stats.served, stats.served_bytes) = self.pool.served();
        stats.nodes = self.pool.nodes();
        let since = self.waiting_since.get();
        stats.waited_s += since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        stats
    }

    /// What other nodes hear of it.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            ranks: self.attach.ranks.clone(),
            waiting_s: self.waiting_since.get().map(|since| since.elapsed().as_secs_f64()),
            stats: Box::new(Stats {
                nodes: Vec::new(),
                ..self.stats()
            }),
        }
    }

    /// Connections attached.
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.clients.get()
    }

    /// Belongs to the loader with this word from now on; another one's counters begin at zero.
    pub fn belong_to(&self, word: &str) {
        if self.word.replace(word.to_owned()) != word {
            self.stats.take();
            if self.waits() {
                self.waiting_since.set(Some(Instant::now()));
            }
        }
    }

    /// One more connection is attached.
    pub fn join(&self) {
        self.clients.set(self.clients.get() + 1);
        self.life.set(Life::Running);
    }

    /// One less. False: that was the last one.
    pub fn leave(&self) -> bool {
        self.clients.set(self.clients.get() - 1);
        if self.clients.get() > 0 {
            return true;
        }
        self.life.set(Life::Lingering(Instant::now()));
        self.lists.borrow_mut().forget();
        self.pool.step(Event::Left { job: self.id });
        false
    }

    /// How long nobody has been attached; `None`: somebody is, or it is closed.
    #[must_use]
    pub fn lingers_for(&self) -> Option<Duration> {
        match self.life.get() {
            Life::Lingering(since) => Some(since.elapsed()),
            Life::Running | Life::Closed => None,
        }
    }

    fn is_closed(&self) -> bool {
        self.life.get() == Life::Closed
    }

    /// Ends it.
    pub fn close(&self) {
        if self.is_closed() {
            return;
        }
        self.life.set(Life::Closed);
        if !self.streams.is_choice() {
            self.let_spools_go();
        }
        self.pool.part(self);
        self.active.notify_one();
        self.ended.notify_one();
    }
}

fn count(stats: &mut Stats, via: Via, len: u64) {
    stats.samples += 1;
    stats.bytes += len;
    let (samples, bytes) = match via {
        Via::Ram => (&mut stats.ram_hits, &mut stats.ram_bytes),
        Via::Disk => (&mut stats.disk_hits, &mut stats.disk_bytes),
        Via::Bucket => (&mut stats.bucket_reads, &mut stats.bucket_bytes),
        Via::Peer => (&mut stats.peer_hits, &mut stats.peer_bytes),
    };
    *samples += 1;
    *bytes += len;
}

fn plan_digest(attach: &Attach, order: Digest) -> Digest {
    let builder = DigestBuilder::new("plan/1")
        .digest(&order)
        .number(u64::from(attach.world));
    match &attach.deal {
        Some(deal) => builder.digest(&deal.digest()).finish(),
        None => builder.finish(),
    }
}

/// Says when the lists of the order take much memory beside the budget.
fn warning_of_order(attach: &Attach, order_bytes: u64) -> Option<String> {
    (order_bytes > attach.ram_bytes / 4).then(|| {
        format!(
            "this order is held as lists of the epoch that is read and of the next, {} MB beside the memory budget of {} MB; order=\"keyed\" is computed and \
             holds none",
            order_bytes.div_ceil(1_000_000),
            attach.ram_bytes / 1_000_000
        )
    })
}

/// Memory for samples: what batches leave of the budget.
fn sample_bytes(attach: &Attach) -> u64 {
    attach.ram_bytes - attach.batch_bytes.min(attach.ram_bytes)
}

#[cfg(test)]
mod tests;
