//! The agent: one process per user and cache directory that runs the jobs of all its clients.
//!
//! Clients connect to a Unix socket that only their user can open. The agent reads their messages, hands wants and releases to the [`Job`] they belong
//! to, and answers calls. It holds no state that must survive it: a client that finds no agent starts one, a killed agent leaves nothing but its
//! disk tier, and what a dead client held comes back when its socket closes. It ends when nobody has been attached for `linger`.

use crate::calls::{Attach, Call, JobStatus, Open, Progress, Reply};
use crate::connection::Connection;
use crate::dataset::Dataset;
use crate::disk::{DiskSettings, DiskTier};
use crate::job::{Job, SharedTier, warning_of_batches};
use crate::origin::Origins;
use crate::protocol::{Ask, Frames, Malformed, Say, Trouble, VERSION};
use foreload_plan::action::Event;
use foreload_plan::spec::OrderKind;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long an agent waits for its first client at least.
const FIRST_CLIENT: Duration = Duration::from_secs(10);

/// How long a client that there is no descriptor for waits before the next try: descriptors come back when connections, files and jobs end.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// How the agent runs.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Where clients find it.
    pub socket: PathBuf,
    /// Indexes, logs and, unless a job names another, disk tiers.
    pub cache_dir: PathBuf,
    /// How long it outlives its last client. Default 60 s: a restarted job finds its memory warm.
    pub linger: Duration,
    /// Record every decision, and compare them with a replay at the end: for tests.
    pub record: bool,
}

/// Whether the system lacks something for the moment that it may have again.
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::CONNABORTED,
    ];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

/// The agent's state. One thread; everything is shared by `Rc`.
pub struct Agent {
    settings: AgentSettings,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    datasets: RefCell<BTreeMap<u32, Rc<Dataset>>>,
    /// Those that nobody holds and no job reads, and since when.
    unheld: RefCell<BTreeMap<u32, Instant>>,
    jobs: RefCell<BTreeMap<u32, Rc<Job>>>,
    tiers: RefCell<FxHashMap<PathBuf, SharedTier>>,
    origins: Origins,
    next: Cell<u64>,
    last_seen: Cell<Instant>,
    retire: Cell<bool>,
    changed: Notify,
    attaching: tokio::sync::Mutex<()>,
    /// Data sets that are being opened.
    opening: RefCell<Vec<Open>>,
    opening_ended: Notify,
}

enum Fds {
    None,
    Index(Rc<Dataset>),
    Arenas(Rc<Job>),
}

impl Agent {
    /// An agent without clients.
    #[must_use]
    pub fn new(settings: AgentSettings) -> Rc<Self> {
        Rc::new(Agent {
            settings,
            connections: RefCell::default(),
            datasets: RefCell::default(),
            unheld: RefCell::default(),
            jobs: RefCell::default(),
            tiers: RefCell::default(),
            origins: Origins::default(),
            next: Cell::new(1),
            last_seen: Cell::new(Instant::now()),
            retire: Cell::new(false),
            changed: Notify::new(),
            attaching: tokio::sync::Mutex::new(()),
            opening: RefCell::default(),
            opening_ended: Notify::new(),
        })
    }

    /// Serves clients until nobody has been attached for the lingering time, or SIGTERM comes. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// When the listener breaks.
    pub async fn serve(self: Rc<Self>, listener: UnixListener) -> io::Result<()> {
        let mut terminated = signal(SignalKind::terminate())?;
        let mut told_of_shortage = false;
        loop {
            // Whoever started it needs a moment to connect.
            let linger = if self.next.get() == 1 {
                self.settings.linger.max(FIRST_CLIENT)
            } else {
                self.settings.linger
            };
            let rest = linger.saturating_sub(self.last_seen.get().elapsed());
            let alone = self.connections.borrow().is_empty();
            if alone && (rest.is_zero() || self.retire.get()) {
                return Ok(());
            }
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(tokio::task::spawn_local(Rc::clone(&self).attend(stream))),
                    Err(error) if is_shortage(&error) => {
                        if !std::mem::replace(&mut told_of_shortage, true) {
                            eprintln!("foreload-agent: a client has to wait: {error}; raise `ulimit -n`");
                        }
                        tokio::time::sleep(SHORTAGE_PAUSE).await;
                    }
                    Err(error) => return Err(error),
                },
                () = self.changed.notified() => {}
                () = tokio::time::sleep(rest), if alone => {}
                _ = terminated.recv() => return Ok(()),
            }
        }
    }

    async fn attend(self: Rc<Self>, stream: UnixStream) {
        // The socket's directory admits our user only; this also refuses a descriptor that was passed on.
        let ours = stream
            .peer_cred()
            .is_ok_and(|peer| peer.uid() == rustix::process::getuid().as_raw());
        if !ours {
            return;
        }
        let id = self.next.replace(self.next.get() + 1);
        let connection = Rc::new(Connection::new(id, stream));
        self.connections.borrow_mut().insert(id, Rc::clone(&connection));
        let drain = {
            let connection = Rc::clone(&connection);
            tokio::task::spawn_local(async move { connection.drain().await })
        };
        if let Err(error) = Rc::clone(&self).listen(&connection).await {
            eprintln!("foreload-agent: connection {id}: {error}");
        }
        self.part(&connection);
        drain.abort();
    }

    async fn listen(self: Rc<Self>, connection: &Rc<Connection>) -> Result<(), Malformed> {
        let (mut frames, mut buffer) = (Frames::default(), vec![0u8; 64 << 10]);
        loop {
            if connection.stream().readable().await.is_err() {
                return Ok(());
            }
            match connection.stream().try_read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    frames.feed(&buffer[..n]);
                    frames.drain(|frame| {
                        self.take(connection, Ask::decode(frame)?);
                        Ok::<_, Malformed>(())
                    })?;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(()),
            }
        }
    }

    /// A client is gone: everything it held comes back.
    fn part(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().remove(&connection.id);
        let jobs: Vec<Rc<Job>> = self.jobs.borrow().values().cloned().collect();
        let mut leases = connection.close();
        for job in jobs {
            job.withdraw(connection, None);
            job.batches.borrow_mut().reclaim(connection.id);
            if let Some(handles) = leases.remove(&job.id) {
                job.step(Event::Release { handles });
            }
            if connection.jobs.borrow().contains_key(&job.id) {
                self.leave(&job);
            }
        }
        self.drop_unheld_later();
        self.last_seen.set(Instant::now());
        self.changed.notify_one();
    }

    /// One client less.
    fn leave(&self, job: &Rc<Job>) {
        if !job.leave() {
            self.drop_idle_later(job);
        }
    }

    /// A client is done with a job but stays connected, as a process does that makes one loader after the other.
    fn detach(&self, connection: &Rc<Connection>, id: u32) {
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

    fn drop_job(&self, job: &Rc<Job>) {
        job.close();
        if self.settings.record
            && let Err(difference) = job.replay()
        {
            eprintln!("foreload-agent: REPLAY DIFFERS: {difference}");
        }
        self.jobs.borrow_mut().remove(&job.id);
        self.drop_unheld_later();
    }

    /// Keeps data sets that nobody holds for the lingering time: whoever restarts need not open them anew.
    fn drop_unheld_later(&self) {
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

    /// A connection holds a data set until its end.
    fn hold(&self, connection: &Connection, number: u32) {
        connection.datasets.borrow_mut().insert(number);
        self.unheld.borrow_mut().remove(&number);
    }

    fn this(&self) -> Option<Rc<Self>> {
        CURRENT.with(|current| current.borrow().clone())
    }

    fn take(self: &Rc<Self>, connection: &Rc<Connection>, ask: Ask) {
        let find = |job: u32| self.jobs.borrow().get(&job).cloned();
        let gone = |id: u64| {
            let body =
                serde_json::to_string(&Trouble::new("closed", "the job has ended; attach again")).unwrap_or_default();
            connection.say(&Say::Refuse { id, body });
        };
        match ask {
            Ask::Call { id, body } => {
                let (agent, connection) = (Rc::clone(self), Rc::clone(connection));
                tokio::task::spawn_local(agent.answer(connection, id, body));
            }
            Ask::Start {
                job,
                rank,
                epoch,
                batch,
            } => {
                if let Some(job) = find(job) {
                    job.step(Event::Start { rank, epoch, batch });
                }
            }
            Ask::WantBatch {
                id,
                job,
                rank,
                epoch,
                batch,
            } => match find(job) {
                Some(job) => job.want(connection, id, |request| Event::WantBatch {
                    request,
                    rank,
                    epoch,
                    batch,
                }),
                None => gone(id),
            },
            Ask::WantSamples { id, job, rank, samples } => match find(job) {
                Some(job) => job.want(connection, id, |request| Event::WantSamples { request, rank, samples }),
                None => gone(id),
            },
            Ask::WantReads { id, job, rank, reads } => match find(job) {
                Some(job) => job.want(connection, id, |request| Event::WantReads { request, rank, reads }),
                None => gone(id),
            },
            Ask::Leave { job, rank } => {
                if let Some(job) = find(job) {
                    job.step(Event::Leave { rank });
                }
            }
            Ask::Withdraw { job, id } => {
                if let Some(job) = find(job) {
                    job.withdraw(connection, Some(id));
                }
            }
            Ask::Release { job, handles, slots } => {
                if let Some(found) = find(job) {
                    slots
                        .into_iter()
                        .for_each(|slot| found.batches.borrow_mut().give(slot, connection.id));
                    let handles = connection.unlease(job, handles);
                    if !handles.is_empty() {
                        found.step(Event::Release { handles });
                    }
                }
            }
            Ask::Detach { job } => self.detach(connection, job),
            Ask::WantSlot { id, job, len } => {
                let taken = find(job).and_then(|job| job.batches.borrow_mut().take(len, connection.id));
                let (slot, offset, len) = taken.map_or((0, 0, 0), |(id, slot)| (id, slot.offset, len));
                connection.say(&Say::Slot { id, slot, offset, len });
            }
            Ask::Adopt {
                id,
                job,
                from,
                handles,
                slots,
            } => {
                let whole = find(job).is_some_and(|found| self.adopt(&found, connection, from, &handles, &slots));
                connection.say(&Say::Adopted { id, whole });
            }
        }
    }

    fn adopt(
        &self,
        job: &Rc<Job>,
        to: &Rc<Connection>,
        from: u64,
        handles: &[foreload_plan::action::Handle],
        slots: &[u64],
    ) -> bool {
        let Some(from) = self.connections.borrow().get(&from).cloned() else {
            return false;
        };
        if !from.hand_over(job.id, handles, to) {
            return false;
        }
        let whole = job.batches.borrow_mut().adopt(slots, from.id, to.id);
        if !whole {
            to.hand_over(job.id, handles, &from);
        }
        whole
    }

    async fn answer(self: Rc<Self>, connection: Rc<Connection>, id: u64, body: String) {
        let answered = match serde_json::from_str::<Call>(&body) {
            Ok(call) => Rc::clone(&self).call(&connection, id, call).await,
            Err(error) => Err(Trouble::new("invalid", format!("malformed call: {error}"))),
        };
        let (reply, fds) = answered.unwrap_or_else(|trouble| (Reply::Failed(trouble), Fds::None));
        let say = Say::Reply {
            id,
            body: serde_json::to_string(&reply).unwrap_or_default(),
        };
        let sent = match &fds {
            Fds::None => {
                connection.say(&say);
                Ok(())
            }
            Fds::Index(dataset) => connection.say_with(&say, &[dataset.shared.as_fd()]).await,
            Fds::Arenas(job) => {
                let batches = job.batches.borrow().shared();
                connection
                    .say_with(&say, &[job.cache.as_fd(), batches.as_fd()] as &[BorrowedFd<'_>])
                    .await
            }
        };
        if let Err(error) = sent {
            eprintln!(
                "foreload-agent: connection {} ends, for it can't be answered: {error}",
                connection.id
            );
            connection.shut();
        }
    }

    async fn call(self: Rc<Self>, connection: &Rc<Connection>, id: u64, call: Call) -> Result<(Reply, Fds), Trouble> {
        match call {
            Call::Hello { version, pid } => {
                if version != VERSION {
                    let message = format!(
                        "the agent of process {} speaks protocol {VERSION}, the client of process {pid} speaks {version}: two versions of foreload share one cache directory; end the older run, or give FORELOAD_CACHE_DIR another",
                        std::process::id()
                    );
                    return Err(Trouble::new("invalid", message));
                }
                Ok((
                    Reply::Welcome {
                        version: VERSION,
                        pid: std::process::id(),
                        connection: connection.id,
                    },
                    Fds::None,
                ))
            }
            Call::Open(open) => self.open(connection, id, open).await,
            Call::Subset { dataset, samples } => {
                let whole = self.dataset(dataset)?;
                let subset = Rc::new(whole.subset(&samples)?);
                let is_same = |d: &Dataset| d.index.digest() == subset.index.digest() && d.open == subset.open;
                let number = self.known(is_same).unwrap_or_else(|| self.add(Rc::clone(&subset)));
                self.opened(connection, number, &subset)
            }
            Call::Hold { dataset } => {
                self.dataset(dataset)?;
                self.hold(connection, dataset);
                Ok((Reply::Done, Fds::None))
            }
            Call::Attach(attach) => self.attach(connection, *attach).await,
            Call::Credentials {
                dataset,
                storage_options,
            } => {
                let dataset = self.dataset(dataset)?;
                dataset.renew(&storage_options)?;
                Ok((Reply::Done, Fds::None))
            }
            Call::Supply { job, epoch, samples } => {
                self.job(job)?.supply(epoch, samples)?;
                Ok((Reply::Done, Fds::None))
            }
            Call::Stats { job } => Ok((Reply::Stats(Box::new(self.job(job)?.stats())), Fds::None)),
            Call::Status => {
                let jobs = self.jobs.borrow();
                let jobs = jobs.values().map(|job| JobStatus {
                    job: job.id,
                    url: job.dataset.open.url.clone(),
                    clients: job.clients(),
                    ram_bytes: job.attach.ram_bytes,
                });
                let jobs = jobs.collect();
                Ok((
                    Reply::Status {
                        pid: std::process::id(),
                        connections: self.connections.borrow().len() as u64,
                        jobs,
                    },
                    Fds::None,
                ))
            }
            Call::Retire => {
                self.retire.set(true);
                self.changed.notify_one();
                Ok((Reply::Done, Fds::None))
            }
        }
    }

    fn dataset(&self, id: u32) -> Result<Rc<Dataset>, Trouble> {
        self.datasets
            .borrow()
            .get(&id)
            .cloned()
            .ok_or_else(|| Trouble::new("closed", format!("no data set {id} is open; open it again")))
    }

    /// The number of the newest data set of a kind.
    fn known(&self, is_it: impl Fn(&Dataset) -> bool) -> Option<u32> {
        let datasets = self.datasets.borrow();
        datasets
            .iter()
            .rev()
            .find(|(_, dataset)| is_it(dataset))
            .map(|(number, _)| *number)
    }

    fn add(&self, dataset: Rc<Dataset>) -> u32 {
        let number = self.next.replace(self.next.get() + 1) as u32;
        self.datasets.borrow_mut().insert(number, dataset);
        number
    }

    fn job(&self, id: u32) -> Result<Rc<Job>, Trouble> {
        self.jobs
            .borrow()
            .get(&id)
            .cloned()
            .ok_or_else(|| Trouble::new("closed", format!("job {id} has ended; attach again")))
    }

    async fn open(&self, connection: &Rc<Connection>, id: u64, open: Open) -> Result<(Reply, Fds), Trouble> {
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
    fn opened(&self, connection: &Connection, number: u32, said: &Dataset) -> Result<(Reply, Fds), Trouble> {
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

    async fn attach(&self, connection: &Rc<Connection>, attach: Attach) -> Result<(Reply, Fds), Trouble> {
        // Ranks attach at the same time: the first makes the job, the others join it.
        let _one_at_a_time = self.attaching.lock().await;
        let dataset = self.dataset(attach.dataset)?;
        self.hold(connection, attach.dataset);
        if attach.order.dataset != dataset.digest() || attach.order.samples != dataset.index.len() {
            return Err(Trouble::new(
                "invalid",
                "the order was made for another data set (its digest or number of samples differs)",
            ));
        }
        // Ranks of one job join it by its word, even if they measured the machine's memory at different moments: the first one's budget
        // holds. A job that nobody is attached to is taken over by the next one with the same plan, whatever its word.
        let ours = |job: &&Rc<Job>| {
            let (a, b) = (&job.attach, &attach);
            *job.word.borrow() == b.session
                && (a.dataset, &a.order, a.world, &a.ranks, a.uneven)
                    == (b.dataset, &b.order, b.world, &b.ranks, b.uneven)
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
            job.word.replace(attach.session.clone());
        }
        let (mut warnings, mut tiers) = (Vec::new(), Vec::with_capacity(attach.disks.len()));
        if running.is_none() {
            // What lingers makes room for what is wanted now.
            let idle = |job: &&Rc<Job>| job.clients() == 0;
            let idle: Vec<Rc<Job>> = self.jobs.borrow().values().filter(idle).cloned().collect();
            idle.iter().for_each(|job| self.drop_job(job));
            for disk in &attach.disks {
                tiers.push(self.tier(disk, &mut warnings).await?);
            }
        }
        // Who left meanwhile has been seen off already, and nobody would count it out again.
        if connection.is_closed() {
            return Err(Trouble::new("cancelled", "the client left while the job was made"));
        }
        let (job, joined) = match running {
            Some(job) => (job, true),
            None => {
                warnings.extend(warning_of_batches(&attach, &dataset));
                let id = self.next.replace(self.next.get() + 1) as u32;
                let origin = self.origins.at(&dataset.source.endpoint());
                let job = Job::start(id, attach, dataset, tiers, &origin, self.settings.record, &mut warnings)?;
                self.jobs.borrow_mut().insert(id, Rc::clone(&job));
                (job, false)
            }
        };
        let mut jobs = connection.jobs.borrow_mut();
        let times = jobs.entry(job.id).or_insert(0);
        *times += 1;
        if *times == 1 {
            job.join();
        }
        drop(jobs);
        let reply = Reply::Attached {
            job: job.id,
            cache_bytes: job.cache.map().len(),
            batch_bytes: job.attach.batch_bytes,
            joined,
            found: job.found.get(),
            plan: job.plan_digest(),
            warnings,
        };
        Ok((reply, Fds::Arenas(job)))
    }

    /// The tier of a directory, opened once; it may take what the job that asks for most does.
    async fn tier(&self, disk: &crate::calls::DiskShare, warnings: &mut Vec<String>) -> Result<SharedTier, Trouble> {
        let known = self.tiers.borrow().get(&disk.directory).cloned();
        match known {
            Some(tier) => {
                let jobs = self.jobs.borrow();
                let shares = jobs.values().flat_map(|job| &job.attach.disks);
                let wanted = shares
                    .filter(|share| share.directory == disk.directory)
                    .map(|share| share.capacity_bytes)
                    .fold(disk.capacity_bytes, u64::max);
                let resized = tier.borrow_mut().resize(wanted);
                resized.map_err(|e| Trouble::new("invalid", e.to_string()))?;
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
                    format!("the cache file {path} was damaged and is gone: {damage:?}; what it held is fetched again")
                }));
                let tier = Rc::new(RefCell::new(tier));
                self.tiers.borrow_mut().insert(disk.directory.clone(), Rc::clone(&tier));
                Ok(tier)
            }
        }
    }

    /// Proves that every job obeyed its plan; for tests, with everything recorded.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn replay_all(&self) -> Result<u64, String> {
        let mut jobs = 0;
        for job in self.jobs.borrow().values() {
            job.replay()?;
            jobs += 1;
        }
        Ok(jobs)
    }
}

thread_local! {
    /// The agent of this thread, for tasks that outlive the call that made them.
    static CURRENT: RefCell<Option<Rc<Agent>>> = const { RefCell::new(None) };
}

/// Runs an agent on this thread until it retires.
///
/// # Errors
/// When the runtime can't be made or the listener breaks.
pub fn run(settings: AgentSettings, listener: std::os::unix::net::UnixListener) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Reads of a file system at the most requests in flight (256), disk tiers at depth 32, some writes, lookups of names.
        .max_blocking_threads(320)
        .build()?;
    listener.set_nonblocking(true)?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let agent = Agent::new(settings);
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&agent)));
        let served = Rc::clone(&agent).serve(UnixListener::from_std(listener)?).await;
        CURRENT.with(|current| current.borrow_mut().take());
        if agent.settings.record {
            let jobs = agent
                .replay_all()
                .map_err(|difference| io::Error::other(format!("REPLAY DIFFERS: {difference}")))?;
            eprintln!("foreload-agent: {jobs} jobs replay to equality");
        }
        served
    })
}
