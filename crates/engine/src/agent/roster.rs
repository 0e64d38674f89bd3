//! The agent's jobs: who attaches joins one or starts one, and the last who leaves lets it linger.

use super::{Agent, Fds};
use crate::calls::{Attach, DiskShare, Reply};
use crate::connection::Connection;
use crate::disk::{DiskSettings, DiskTier};
use crate::job::{Job, Survey};
use crate::pool::{Pool, SharedTier, Terms};
use crate::protocol::{MAX_ITEMS, Trouble};
use crate::streams::Streams;
use foreload_plan::action::Event;
use foreload_plan::spec::OrderKind;
use std::cell::RefCell;
use std::rc::Rc;

impl Agent {
    pub(super) fn job(&self, id: u32) -> Result<Rc<Job>, Trouble> {
        self.jobs
            .borrow()
            .get(&id)
            .cloned()
            .ok_or_else(|| Trouble::new("closed", format!("job {id} has ended; attach again")))
    }

    pub(super) async fn attach(
        &self,
        connection: &Rc<Connection>,
        id: u64,
        attach: Attach,
    ) -> Result<(Reply, Fds), Trouble> {
        // Ranks attach at the same time: the first makes the job, the others join it.
        let _one_at_a_time = self.attaching.lock().await;
        let numbers = || std::iter::once(attach.dataset).chain(attach.more.iter().copied());
        let streams = Streams::new(numbers().map(|number| self.dataset(number)).collect::<Result<_, _>>()?);
        numbers().for_each(|number| self.hold(connection, number));
        if attach.order.dataset != streams.digest() || attach.order.samples != streams.len() {
            return Err(Trouble::new(
                "invalid",
                "the order was made for another data set (its digest or number of samples differs)",
            ));
        }
        if attach.deal.is_some() && (streams.is_packed() || !attach.more.is_empty()) {
            return Err(Trouble::new(
                "invalid",
                "assign=\"local\" deals whole objects: it isn't there for samples in shards or rows, nor for mixtures, of which nodes keep stretches",
            ));
        }
        let batch = u64::from(attach.order.global_batch.div_ceil(attach.world.max(1)));
        if batch > MAX_ITEMS as u64 {
            let message =
                format!("a rank's batches of {batch} samples are too large: a message has room for {MAX_ITEMS}");
            return Err(Trouble::new("invalid", message));
        }
        // Ranks of one job join it by its word, even if they measured the machine's memory at different moments: the first one's budget
        // holds. A job that nobody is attached to is taken over by the next one with the same plan, whatever its word. Workers that were started before
        // the ranks had agreed on their nodes don't know these, and their rank has attached by the time they read.
        let ours = |job: &&Rc<Job>| {
            let (a, b) = (&job.attach, &attach);
            *job.word.borrow() == b.session
                && (b.nodes.is_none() || a.nodes == b.nodes)
                && (a.dataset, &a.more, &a.order, a.world, &a.ranks, a.uneven, &a.deal)
                    == (b.dataset, &b.more, &b.order, b.world, &b.ranks, b.uneven, &b.deal)
        };
        let lingering = |job: &&Rc<Job>| {
            let same_word = Attach {
                session: attach.session.clone(),
                ..job.attach.clone()
            };
            // Who else supplies lists of its own has other samples under the same plan.
            let own_lists = matches!(attach.order.kind, OrderKind::Supplied { .. });
            job.clients() == 0 && !own_lists && same_word == attach
        };
        let running = {
            let jobs = self.jobs.borrow();
            let found = jobs.values().find(ours);
            found.or_else(|| jobs.values().find(lingering)).cloned()
        };
        if let Some(job) = &running {
            job.belong_to(&attach.session);
        }
        let mut warnings = Vec::new();
        let (job, joined) = match running {
            Some(job) => (job, true),
            None => (self.begin(connection, id, attach, streams, &mut warnings).await?, false),
        };
        // Who left meanwhile has been seen off already, and nobody would count it out again.
        if connection.is_closed() {
            if job.clients() == 0 && !joined {
                self.drop_job(&job);
            }
            return Err(Trouble::new("cancelled", "the client left while the job was made"));
        }
        let mut jobs = connection.jobs.borrow_mut();
        let times = jobs.entry(job.id).or_insert(0);
        *times += 1;
        if *times == 1 {
            job.join();
        }
        drop(jobs);
        job.pool.listen(connection);
        let reply = Reply::Attached {
            job: job.id,
            cache_bytes: job.pool.cache.map().len(),
            batch_bytes: job.attach.batch_bytes,
            joined,
            found: job.pool.found(&job),
            plan: job.plan_digest(),
            warnings,
        };
        Ok((reply, Fds::Arenas(job)))
    }

    /// Begins a job, in the pool of those that read alike.
    async fn begin(
        &self,
        connection: &Rc<Connection>,
        id: u64,
        attach: Attach,
        streams: Streams,
        warnings: &mut Vec<String>,
    ) -> Result<Rc<Job>, Trouble> {
        let carriers = attach.io_threads.unwrap_or_else(crate::carriers::usual);
        if let Err(error) = self.carriers.want(carriers) {
            warnings.push(format!(
                "{carriers} I/O threads are asked for, and the system has room for fewer: {error}"
            ));
        }
        let terms = Terms::of(&attach, streams.endpoint(), streams.most_requests());
        // What lingers makes room for what is wanted now; in the same pool it goes last, for the new job may read what it has brought.
        let is_idle = |job: &&Rc<Job>| job.clients() == 0;
        let idle: Vec<Rc<Job>> = self.jobs.borrow().values().filter(is_idle).cloned().collect();
        let (before, elsewhere): (Vec<_>, Vec<_>) = idle.into_iter().partition(|job| job.pool.terms == terms);
        elsewhere.iter().for_each(|job| self.drop_job(job));
        let indexes = streams.indexes();
        let survey = self
            .aside(connection, id, move |work| Survey::of(attach, &indexes, work))
            .await?;
        let pool = self.pool(terms, &survey.attach.disks, warnings).await?;
        let number = self.next.replace(self.next.get() + 1) as u32;
        let job = Job::start(number, survey, streams, Rc::clone(&pool), warnings).await;
        if let Ok(job) = &job {
            self.jobs.borrow_mut().insert(number, Rc::clone(job));
        }
        before.iter().for_each(|job| self.drop_job(job));
        self.close_empty(&pool);
        let job = job?;
        job.take_memory(crate::memory::available_bytes(), warnings);
        Ok(job)
    }

    /// The pool for jobs with these terms.
    async fn pool(&self, terms: Terms, disks: &[DiskShare], warnings: &mut Vec<String>) -> Result<Rc<Pool>, Trouble> {
        let mut tiers = Vec::with_capacity(disks.len());
        for disk in disks {
            tiers.push(self.tier(disk, warnings).await?);
        }
        let origin = self.origins.at(terms.endpoint()).await;
        let known = self.pools.borrow().iter().find(|pool| pool.terms == terms).cloned();
        if let Some(pool) = known {
            return Ok(pool);
        }
        let number = self.next.replace(self.next.get() + 1) as u32;
        let pool = Pool::new(number, terms, tiers, &origin, &self.carriers, self.settings.record)?;
        self.pools.borrow_mut().push(Rc::clone(&pool));
        Ok(pool)
    }

    /// The tier of a directory, opened once; it may take what the job that asks for most does.
    async fn tier(&self, disk: &crate::calls::DiskShare, warnings: &mut Vec<String>) -> Result<SharedTier, Trouble> {
        let known = self.tiers.borrow().get(&disk.directory).cloned();
        match known {
            Some(tier) => {
                let wanted = {
                    let jobs = self.jobs.borrow();
                    let shares = jobs.values().flat_map(|job| &job.attach.disks);
                    let here = shares.filter(|share| share.directory == disk.directory);
                    here.map(|share| share.capacity_bytes)
                        .fold(disk.capacity_bytes, u64::max)
                };
                let resized = tier.borrow_mut().resize(wanted);
                resized.map_err(|e| Trouble::new("invalid", e.to_string()))?;
                // A job that finds it full writes nothing, and nobody else would unlink what had to go.
                let chores = tier.borrow_mut().chores();
                let done = tokio::task::spawn_blocking(move || chores.into_iter().for_each(crate::disk::Chore::run));
                done.await.map_err(|e| Trouble::new("bug", e.to_string()))?;
                Ok(tier)
            }
            None => {
                let (directory, settings) = (disk.directory.clone(), DiskSettings::new(disk.capacity_bytes));
                // After a kill this reads what the last writer left open: seconds, for a large segment.
                let opened = tokio::task::spawn_blocking(move || DiskTier::open(&directory, settings)).await;
                let opened = opened.map_err(|e| Trouble::new("bug", e.to_string()))?;
                let (tier, report) = opened.map_err(|e| {
                    let message = format!("opening the disk tier at {}: {e}", disk.directory.display());
                    Trouble::new("invalid", message)
                })?;
                warnings.extend(report.damaged.iter().map(|(path, damage)| {
                    let path = path.display();
                    format!("the cache file {path} was damaged and is gone: {damage}; what it held is fetched again")
                }));
                let tier = Rc::new(RefCell::new(tier));
                self.tiers.borrow_mut().insert(disk.directory.clone(), Rc::clone(&tier));
                Ok(tier)
            }
        }
    }

    /// One client less.
    pub(super) fn leave(&self, job: &Rc<Job>) {
        if !job.leave() {
            self.drop_idle_later(job);
        }
    }

    /// A client is done with a job but stays connected, as a process does that makes one loader after the other.
    pub(super) fn detach(&self, connection: &Rc<Connection>, id: u32) {
        let Some(job) = self.jobs.borrow().get(&id).cloned() else {
            return;
        };
        let mut jobs = connection.jobs.borrow_mut();
        match jobs.get_mut(&id) {
            Some(times) if *times > 1 => *times -= 1,
            Some(_) => {
                jobs.remove(&id);
                drop(jobs);
                job.withdraw(connection, None);
                self.leave(&job);
            }
            None => {}
        }
    }

    /// Keeps a job that nobody is attached to for the lingering time: whoever restarts finds its memory warm.
    fn drop_idle_later(&self, job: &Rc<Job>) {
        // Not held meanwhile: a job that makes room for another frees its memory at once.
        let (job, linger) = (Rc::downgrade(job), self.settings.linger);
        let Some(agent) = self.this() else { return };
        tokio::task::spawn_local(async move {
            tokio::time::sleep(linger).await;
            let Some(job) = job.upgrade() else { return };
            if job.lingers_for().is_some_and(|time| time >= linger) {
                agent.drop_job(&job);
            }
        });
    }

    pub(super) fn drop_job(&self, job: &Rc<Job>) {
        for connection in self.connections.borrow().values() {
            let handles = connection.unlease_all(job.id);
            job.pool.step(Event::Release { handles });
        }
        job.close();
        self.jobs.borrow_mut().remove(&job.id);
        self.close_empty(&job.pool);
        self.drop_unheld_later();
    }

    /// A pool that no job is in any more is over.
    fn close_empty(&self, pool: &Rc<Pool>) {
        if !pool.is_empty() {
            return;
        }
        if self.settings.record
            && !pool.is_closed()
            && let Err(difference) = pool.replay()
        {
            crate::log::say!("REPLAY DIFFERS: {difference}");
        }
        pool.close();
        self.pools.borrow_mut().retain(|other| !Rc::ptr_eq(other, pool));
    }
}

#[cfg(test)]
mod tests;
