//! The agent: one process per user and cache directory that runs the jobs of all its clients.
//!
//! Clients connect to a Unix socket that only their user can open. The agent reads their messages, hands wants and releases to the [`Job`] they belong
//! to, and answers calls. It holds no state that must survive it: a client that finds no agent starts one, a killed agent leaves nothing but its
//! disk tier, and what a dead client held comes back when its socket closes. It ends when nobody has been attached for `linger`.

pub(crate) mod aside;
mod library;
#[cfg(test)]
pub(crate) mod node;
mod post;
mod roster;

use crate::calls::{Call, JobStatus, NodeReport, Open, Reply};
use crate::carriers::{Carriers, Outbox};
use crate::connection::Connection;
use crate::dataset::Dataset;
use crate::job::{Job, list_trouble};
use crate::list::List;
use crate::origin::Origins;
use crate::peers::{Door, Question, Told, Trust};
use crate::pool::{Guest, Pool, SharedTier};
use crate::protocol::{Ask, Frames, MAX_ITEMS, Malformed, Say, Trouble, VERSION};
use aside::Work;
use foreload_plan::Scheduler;
use foreload_plan::action::Event;
use foreload_store::spool::Room;
pub use post::Post;
use post::Watch;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
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
    pools: RefCell<Vec<Rc<Pool>>>,
    tiers: RefCell<FxHashMap<PathBuf, SharedTier>>,
    origins: Origins,
    carriers: Rc<Carriers>,
    /// What is promised to shards that are scanned, of all data sets together.
    spools: Arc<Room>,
    next: Cell<u64>,
    last_seen: Cell<Instant>,
    retire: Cell<bool>,
    changed: Notify,
    /// Calls whose work is done on other threads.
    asides: Cell<u64>,
    attaching: tokio::sync::Mutex<()>,
    /// Data sets that are being opened.
    opening: RefCell<Vec<Open>>,
    opening_ended: Notify,
    /// Where peers are answered.
    doors: RefCell<Vec<Door>>,
    /// What peers are to hear at the end of a turn.
    answers: Outbox<Told>,
}

/// A list that comes beside a call: its descriptor, and how many numbers are there.
type Beside = (OwnedFd, u64);

/// Peers' questions that are answered at once.
const AT_ONCE: usize = 64;

/// Hears what peers ask, for as long as the agent is there.
async fn hear(agent: Weak<Agent>, mut heard: UnboundedReceiver<Question>) {
    let mut questions = Vec::with_capacity(AT_ONCE);
    while heard.recv_many(&mut questions, AT_ONCE).await > 0 {
        let Some(agent) = agent.upgrade() else { return };
        questions.drain(..).for_each(|question| agent.hear(question));
    }
}

/// What a call says, its list included.
async fn call_of(body: &str, list: Option<Beside>) -> Result<Call, Trouble> {
    let malformed = |why: String| Trouble::new("invalid", format!("malformed call: {why}"));
    let call = serde_json::from_str::<Call>(body).map_err(|error| malformed(error.to_string()))?;
    match (call.has_list(), list) {
        (false, None) => Ok(call),
        (true, Some((fd, count))) => {
            let taken = tokio::task::spawn_blocking(move || call.with(fd, count)).await;
            let call = taken.map_err(|error| Trouble::new("bug", error.to_string()))?;
            call.map_err(|error| match error.kind() {
                io::ErrorKind::OutOfMemory => Trouble::new(
                    "no-memory",
                    format!("this machine has no room for a list of {count} samples"),
                ),
                _ => malformed(format!("its list of {count} samples can't be read: {error}")),
            })
        }
        (true, None) => Err(malformed("its list is missing".to_owned())),
        (false, Some(_)) => Err(malformed("it has no list".to_owned())),
    }
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
            connections: RefCell::default(),
            datasets: RefCell::default(),
            unheld: RefCell::default(),
            jobs: RefCell::default(),
            pools: RefCell::default(),
            tiers: RefCell::default(),
            origins: Origins::new(&settings.cache_dir),
            carriers: Rc::default(),
            spools: Arc::default(),
            next: Cell::new(1),
            last_seen: Cell::new(Instant::now()),
            retire: Cell::new(false),
            changed: Notify::new(),
            asides: Cell::new(0),
            attaching: tokio::sync::Mutex::new(()),
            opening: RefCell::default(),
            opening_ended: Notify::new(),
            doors: RefCell::default(),
            answers: Outbox::default(),
            settings,
        })
    }

    /// Serves clients until nobody has been attached for the lingering time, or SIGTERM comes. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// When the listener breaks.
    pub async fn serve(self: Rc<Self>, post: &mut Post, mut listener: UnixListener) -> io::Result<()> {
        let mut terminated = signal(SignalKind::terminate())?;
        let mut watch = Watch::of(post);
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
                break;
            }
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(tokio::task::spawn_local(Rc::clone(&self).attend(stream))),
                    Err(error) if is_shortage(&error) => {
                        if !std::mem::replace(&mut told_of_shortage, true) {
                            crate::log::say!("a client has to wait: {error}; raise `ulimit -n`");
                        }
                        tokio::time::sleep(SHORTAGE_PAUSE).await;
                    }
                    Err(error) => return Err(error),
                },
                () = watch.heard() => if !post.is_there() {
                    // Whoever clears a directory away has done so by then.
                    tokio::time::sleep(post::SETTLES).await;
                    self.keep_post(post, &mut listener)?;
                    watch = Watch::of(post);
                },
                () = self.changed.notified() => {}
                () = tokio::time::sleep(rest), if alone => {}
                _ = terminated.recv() => break,
            }
        }
        self.origins.learn();
        Ok(())
    }

    /// The socket is gone: a new one for those who come to what runs here. An agent that nobody reads from ends; who comes starts another.
    fn keep_post(&self, post: &mut Post, listener: &mut UnixListener) -> io::Result<()> {
        if self.connections.borrow().is_empty() {
            self.retire.set(!post.is_there());
            return Ok(());
        }
        match post.look_after() {
            Ok(Some(new)) => {
                crate::log::say!("the socket was gone, and is there again");
                *listener = UnixListener::from_std(new)?;
            }
            // Its caches are what the other one waits for.
            Ok(None) => self.retire.set(self.retire.get() || post.is_lost()),
            Err(error) => crate::log::say!("the socket is gone, so new clients find nobody: {error}"),
        }
        Ok(())
    }

    async fn attend(self: Rc<Self>, stream: UnixStream) {
        // The socket's directory admits our user only; this also refuses a descriptor that was passed on.
        let Ok(peer) = stream.peer_cred() else { return };
        if peer.uid() != rustix::process::getuid().as_raw() {
            return;
        }
        if let Some(client) = peer.pid().and_then(rustix::process::Pid::from_raw) {
            crate::cpus::join(client);
        }
        let id = self.next.replace(self.next.get() + 1);
        let connection = Rc::new(Connection::new(id, stream));
        self.connections.borrow_mut().insert(id, Rc::clone(&connection));
        let drain = {
            let connection = Rc::clone(&connection);
            tokio::task::spawn_local(async move { connection.drain().await })
        };
        if let Err(error) = Rc::clone(&self).listen(&connection).await {
            crate::log::say!("connection {id}: {error}");
        }
        self.part(&connection);
        drain.abort();
    }

    async fn listen(self: Rc<Self>, connection: &Rc<Connection>) -> Result<(), Malformed> {
        let (mut frames, mut buffer, mut fds) = (Frames::default(), vec![0u8; 64 << 10], VecDeque::new());
        loop {
            match connection.hear(&mut buffer, &mut fds).await {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    frames.feed(&buffer[..n]);
                    frames.drain(|frame| {
                        let ask = Ask::decode(frame)?;
                        // It came before the frame was whole.
                        let list = match &ask {
                            Ask::CallWith { count, .. } => fds.pop_front().map(|fd| (fd, *count)),
                            _ => None,
                        };
                        self.take(connection, ask, list);
                        Ok::<_, Malformed>(())
                    })?;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    if e.kind() == io::ErrorKind::Other {
                        crate::log::say!("connection {} ends: {e}", connection.id);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// A client is gone: everything it held comes back.
    fn part(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().remove(&connection.id);
        let jobs: Vec<Rc<Job>> = self.jobs.borrow().values().cloned().collect();
        let mut leases = connection.close();
        // Before anything is given back: that may be what another want of the dead waits for, and nobody would give that back.
        let pools = self.pools.borrow().clone();
        pools.iter().for_each(|pool| pool.withdraw(connection, None, None));
        for job in jobs {
            job.batches.borrow_mut().reclaim(connection.id);
            if let Some(handles) = leases.remove(&job.id) {
                job.pool.step(Event::Release { handles });
            }
            if connection.jobs.borrow().contains_key(&job.id) {
                self.leave(&job);
            }
        }
        self.drop_unheld_later();
        self.last_seen.set(Instant::now());
        self.changed.notify_one();
    }

    fn this(&self) -> Option<Rc<Self>> {
        CURRENT.with(|current| current.borrow().clone())
    }

    fn take(self: &Rc<Self>, connection: &Rc<Connection>, ask: Ask, list: Option<Beside>) {
        let find = |job: u32| self.jobs.borrow().get(&job).cloned();
        let gone = |id: u64| {
            let body =
                serde_json::to_string(&Trouble::new("closed", "the job has ended; attach again")).unwrap_or_default();
            connection.say(&Say::Refuse { id, body });
        };
        // The answer would be one frame.
        let too_many = |id: u64, count: usize| {
            let message = format!(
                "{count} samples are asked for at once, and a message has room for {MAX_ITEMS}: ask for less at once"
            );
            let body = serde_json::to_string(&Trouble::new("invalid", message)).unwrap_or_default();
            connection.say(&Say::Refuse { id, body });
        };
        match ask {
            Ask::WantSamples { id, samples, .. } if samples.len() > MAX_ITEMS => too_many(id, samples.len()),
            Ask::WantReads { id, reads, .. } if reads.len() > MAX_ITEMS => too_many(id, reads.len()),
            Ask::Call { id, body } | Ask::CallWith { id, body, .. } => {
                let (agent, connection) = (Rc::clone(self), Rc::clone(connection));
                tokio::task::spawn_local(agent.answer(connection, id, body, list));
            }
            Ask::Start {
                job,
                rank,
                epoch,
                batch,
            } => {
                if let Some(job) = find(job) {
                    job.hear(Event::Start {
                        job: job.id,
                        rank,
                        epoch,
                        batch,
                    });
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
                    job: job.id,
                    request,
                    rank,
                    epoch,
                    batch,
                }),
                None => gone(id),
            },
            Ask::WantSamples { id, job, rank, samples } => match find(job) {
                Some(job) => job.want(connection, id, |request| Event::WantSamples {
                    job: job.id,
                    request,
                    rank,
                    samples,
                }),
                None => gone(id),
            },
            Ask::WantReads { id, job, rank, reads } => match find(job) {
                Some(job) => job.want(connection, id, |request| Event::WantReads {
                    job: job.id,
                    request,
                    rank,
                    reads,
                }),
                None => gone(id),
            },
            Ask::Leave { job, rank } => {
                if let Some(job) = find(job) {
                    job.hear(Event::Leave { job: job.id, rank });
                }
            }
            Ask::Await { job, id } => {
                if let Some(job) = find(job) {
                    job.pool.await_want(connection, job.id, id);
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
                        found.pool.step(Event::Release { handles });
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

    async fn answer(self: Rc<Self>, connection: Rc<Connection>, id: u64, body: String, list: Option<Beside>) {
        let answered = match call_of(&body, list).await {
            Ok(call) => Rc::clone(&self).call(&connection, id, call).await,
            Err(trouble) => Err(trouble),
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
            Fds::Index(dataset) => {
                let list = dataset.list.as_ref().and_then(List::fd);
                let fds: Vec<BorrowedFd<'_>> = std::iter::once(dataset.shared.as_fd()).chain(list).collect();
                connection.say_with(&say, &fds).await
            }
            Fds::Arenas(job) => {
                let batches = job.batches.borrow().shared();
                connection
                    .say_with(&say, &[job.pool.cache.as_fd(), batches.as_fd()] as &[BorrowedFd<'_>])
                    .await
            }
        };
        if let Err(error) = sent {
            crate::log::say!("connection {} ends, for it can't be answered: {error}", connection.id);
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
            Call::Ping => Ok((Reply::Done, Fds::None)),
            Call::Open(open) => self.open(connection, id, open).await,
            Call::Subset { dataset, samples } => self.subset(connection, id, dataset, samples).await,
            Call::Hold { dataset } => {
                self.dataset(dataset)?;
                self.hold(connection, dataset);
                Ok((Reply::Done, Fds::None))
            }
            Call::LetGo { dataset } => {
                connection.datasets.borrow_mut().remove(&dataset);
                self.drop_unheld_later();
                Ok((Reply::Done, Fds::None))
            }
            Call::Attach(attach) => self.attach(connection, id, *attach).await,
            Call::Credentials {
                dataset,
                storage_options,
            } => {
                let dataset = self.dataset(dataset)?;
                dataset.renew(&storage_options)?;
                Ok((Reply::Done, Fds::None))
            }
            Call::Supply { job, epoch, samples } => {
                let (job, expected) = (self.job(job)?, self.job(job)?.expects(epoch)?);
                let list = move |_: &Work| expected.list(&samples).map_err(|e| list_trouble(epoch, &e));
                let samples = self.aside(connection, id, list).await?;
                job.supply(epoch, samples)?;
                Ok((Reply::Done, Fds::None))
            }
            Call::Listen { job, host, secret, tls } => {
                let job = self.job(job)?;
                let address = self.door(host, &Trust { secret, tls }).await?;
                let keeps_bytes = job.pool.look(Scheduler::keeps_bytes);
                Ok((Reply::Listening { address, keeps_bytes }, Fds::None))
            }
            Call::Peers {
                job,
                me,
                members,
                group,
                secret,
                tls,
            } => {
                let trust = Trust { secret, tls };
                self.job(job)?.pool.set_peers(me, members, group, &trust)?;
                Ok((Reply::Done, Fds::None))
            }
            Call::Reach { job } => {
                let pool = Rc::clone(&self.job(job)?.pool);
                let silent = pool.reach().await;
                let (nodes, keeps_bytes) = pool.shared();
                Ok((
                    Reply::Reached {
                        nodes,
                        keeps_bytes,
                        silent,
                    },
                    Fds::None,
                ))
            }
            Call::Met { job, has } => {
                let job = self.job(job)?;
                if has {
                    job.met.set(Some(connection.id));
                }
                let has = job
                    .met
                    .get()
                    .is_some_and(|by| self.connections.borrow().contains_key(&by));
                Ok((Reply::Met { has }, Fds::None))
            }
            Call::Group { job } => {
                let job = self.job(job)?;
                let own = NodeReport {
                    address: None,
                    report: Some(job.report()),
                    silence: None,
                };
                let others = job.pool.reports(job.plan_digest()).await;
                let nodes = std::iter::once(own).chain(others).collect();
                Ok((Reply::Group { nodes }, Fds::None))
            }
            Call::Stats { job } => Ok((Reply::Stats(Box::new(self.job(job)?.stats())), Fds::None)),
            Call::Status => {
                let jobs = self.jobs.borrow().values().map(|job| self.status_of(job)).collect();
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

    /// Where peers with a secret are answered on an address.
    async fn door(self: &Rc<Self>, host: IpAddr, trust: &Trust) -> Result<SocketAddr, Trouble> {
        let known = |doors: &[Door]| {
            doors
                .iter()
                .find(|door| door.is_for(host, trust))
                .map(|door| door.address)
        };
        if let Some(address) = known(&self.doors.borrow()) {
            return Ok(address);
        }
        let (questions, heard) = unbounded_channel();
        let door = Door::open(host, trust.clone(), Rc::clone(&self.carriers), questions).await?;
        tokio::task::spawn_local(hear(Rc::downgrade(self), heard));
        let address = door.address;
        self.doors.borrow_mut().push(door);
        Ok(address)
    }

    /// Has a peer's question answered. Who asks for what nobody here reads is told so at once.
    fn hear(&self, question: Question) {
        let pools = self.pools.borrow().clone();
        match question {
            Question::Ask {
                name,
                dataset,
                samples,
                steps,
                answer,
            } => {
                for (at, sample) in samples.into_iter().enumerate() {
                    let guest = Guest::new(name, (at, steps), answer.clone(), self.answers.clone());
                    // Where all refuse it, it goes, and its asker hears that.
                    let _ = pools
                        .iter()
                        .try_fold(guest, |guest, pool| pool.serve(dataset, sample, guest).err());
                }
            }
            Question::Report { plan, answer } => {
                let jobs = self.jobs.borrow();
                let mut read = jobs.values().filter(|job| job.clients() > 0);
                let job = read.find(|job| job.plan_digest() == plan);
                // Who asked may be gone.
                let _ = answer.send(job.map(|job| job.report()));
            }
            Question::Withdraw(name) => {
                pools.iter().for_each(|pool| pool.see_off(name));
            }
        }
    }

    fn status_of(&self, job: &Job) -> JobStatus {
        let connections = self.connections.borrow();
        let attached = connections.values().filter(|c| c.jobs.borrow().contains_key(&job.id));
        let processes: BTreeSet<u32> = attached.filter_map(|connection| connection.process).collect();
        JobStatus {
            job: job.id,
            url: job.streams.url(),
            clients: job.clients(),
            processes: processes.into_iter().collect(),
            order: job.attach.order.kind.name().to_owned(),
            seed: job.attach.order.seed,
            ranks: job.attach.ranks.clone(),
            world: job.attach.world,
            ram_bytes: job.attach.ram_bytes,
            pool: job.pool.id,
            pool_bytes: job.pool.ram_bytes(),
        }
    }

    /// Waits for what is done on other threads, which needs this runtime until it notices that nobody wants it any more.
    async fn end_asides(&self) {
        for connection in self.connections.borrow().values() {
            connection.close();
        }
        while self.asides.get() > 0 {
            self.changed.notified().await;
        }
    }

    /// Ends all jobs.
    fn end_jobs(&self) {
        let jobs: Vec<Rc<Job>> = self.jobs.borrow().values().cloned().collect();
        jobs.iter().for_each(|job| self.drop_job(job));
    }

    /// Proves that every pool obeyed its plan; for tests, with everything recorded.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn replay_all(&self) -> Result<usize, String> {
        let pools = self.pools.borrow();
        pools.iter().try_for_each(|pool| pool.replay())?;
        Ok(pools.len())
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
pub fn run(settings: AgentSettings, mut post: Post, listener: std::os::unix::net::UnixListener) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Reads of a file system at the most requests in flight (256), disk tiers at depth 32, some writes, lookups of names.
        .max_blocking_threads(320)
        .build()?;
    let local = tokio::task::LocalSet::new();
    let ended = local.block_on(&runtime, async {
        let agent = Agent::new(settings);
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&agent)));
        let served = Rc::clone(&agent)
            .serve(&mut post, UnixListener::from_std(listener)?)
            .await;
        // A file system that hangs keeps the threads that ask it, and not the agent: its post is another one's by now.
        let _ = tokio::time::timeout(PARTING, agent.end_asides()).await;
        CURRENT.with(|current| current.borrow_mut().take());
        let replayed = agent.settings.record.then(|| agent.replay_all());
        agent.end_jobs();
        if let Some(replayed) = replayed {
            let pools = replayed.map_err(|difference| io::Error::other(format!("REPLAY DIFFERS: {difference}")))?;
            crate::log::say!("{pools} pools replay to equality");
        }
        served
    });
    drop(local);
    runtime.shutdown_timeout(PARTING);
    // Nobody takes it over before the disk tiers are free.
    drop(post);
    ended
}

/// How long an agent that ends waits for its other threads.
const PARTING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
