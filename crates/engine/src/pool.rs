//! A pool: one scheduler and one memory for all jobs that read alike, carried out.
//!
//! Jobs with equal settings that read from one endpoint share a pool ([`Terms`]): what one of them has brought is there for the others, the memory is what
//! they bring together, and the source is shared out among them by the plan. The pool owns the scheduler and everything its actions touch.
//! [`Pool::step`] gives the scheduler an event and carries out what it orders: loads go to the [`carriers`](crate::carriers) (fetches) or to the
//! blocking pool (disk), each ending with a completion that is the next event; deliveries and refusals go to the connection that asked. Nothing here
//! decides what to fetch or keep.
//!
//! All decisions are made on one thread: there is no lock, and a step is never interrupted.

mod bytes;
mod fetches;
mod guests;
mod parts;
mod watch;

use crate::calls::{Attach, DiskShare};
use crate::carriers::{Carriers, Landed};
use crate::connection::Connection;
use crate::dataset::{Dataset, IndexCatalog, block_key};
use crate::disk::DiskTier;
use crate::job::Job;
use crate::origin::{Origin, Seat};
use crate::protocol::{Say, Trouble};
use crate::slots::Shared;
use fetches::Fetch;
use foreload_plan::action::{Action, Command, Event, Handle, Source};
use foreload_plan::blocks::{Blocks, Content};
use foreload_plan::budget::Budget;
use foreload_plan::flow::{ConcurrencySettings, Demand};
use foreload_plan::job::{Reads, Set};
use foreload_plan::library::Shelf;
use foreload_plan::model::Pinned;
use foreload_plan::policy::Policy;
use foreload_plan::replay::Recorded;
use foreload_plan::scheduler::Next;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::{Scheduler, replay};
use guests::Group;
pub use guests::Guest;
use parts::Parts;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Steps kept for a report when something goes wrong.
const LOG_STEPS: usize = 512;
/// Late loads and stalls are looked for this often while anything is in flight.
const TICK: Duration = Duration::from_millis(10);
/// Blocks looked up in the disk tiers in one go: the look-ups take a millisecond or two.
const LOOK_AT_ONCE: u64 = 1 << 14;
/// And before a job answers: about a tenth of a second.
const LOOK_FIRST: u64 = 200_000;
/// Credentials are looked after this often while the pool is active.
const CARE: Duration = Duration::from_secs(5);
/// And memory: in a second, another process may well take what the reserve holds.
const MIND: Duration = Duration::from_secs(1);
/// So much memory of the machine is left to others: below it, the RAM tier shrinks.
pub(crate) const RESERVE_BYTES: u64 = 256 << 20;
/// Shorter stretches of free memory aren't worth giving back.
const STRETCH_BYTES: u64 = 1 << 16;

/// A disk tier that several pools may share.
pub type SharedTier = Rc<RefCell<DiskTier>>;

/// What jobs must have alike to share a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    endpoint: String,
    policy: Policy,
    staging_bytes: Option<u64>,
    disks: Vec<DiskShare>,
    concurrency: ConcurrencySettings,
    hedge_per_cent: u32,
    request_bytes: Option<u64>,
    timeout_s: f64,
    bucket: Option<Pinned>,
}

impl Terms {
    /// Those of an attachment, whose data sets lie at an endpoint that takes so many requests at most.
    #[must_use]
    pub fn of(attach: &Attach, endpoint: String, most_requests: u32) -> Self {
        Terms {
            endpoint,
            policy: attach.policy,
            staging_bytes: attach.staging_bytes,
            disks: attach.disks.clone(),
            concurrency: attach.concurrency.at_most(most_requests),
            hedge_per_cent: attach.hedge_per_cent,
            request_bytes: attach.request_bytes,
            timeout_s: attach.timeout_s,
            bucket: attach.bucket,
        }
    }

    /// What answers requests for the data sets.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The plan's settings, with disk tiers of which so many bytes are usable.
    fn settings(&self, ram_bytes: u64, usable: &[u64]) -> Settings {
        let tier = |(disk, &usable): (&DiskShare, &u64)| TierSettings {
            capacity_bytes: disk.capacity_bytes.min(usable),
            pinned: disk.pinned,
        };
        let defaults = match self.request_bytes {
            None => Settings::default(),
            Some(part_bytes) => Settings {
                coalesce_bytes: 0,
                part_bytes,
                ..Settings::default()
            },
        };
        Settings {
            policy: self.policy,
            ram_bytes,
            staging_bytes: self.staging_bytes,
            tiers: self.disks.iter().zip(usable).map(tier).collect(),
            concurrency: self.concurrency,
            hedge_per_cent: self.hedge_per_cent,
            load_timeout_ns: (self.timeout_s.clamp(0.1, 86_400.0) * 1e9) as u64,
            bucket: self.bucket,
            ..defaults
        }
    }
}

/// A data set of the pool's library.
struct Known {
    /// Its name there.
    name: u64,
    dataset: Rc<Dataset>,
    /// Longer samples are empty to the plan.
    most_bytes: u64,
    /// Its samples that the disk tiers held when it came.
    found: Cell<u64>,
}

/// Who waits for a request.
struct Want {
    job: Rc<Job>,
    who: Weak<Connection>,
    /// As the connection numbers it.
    id: u64,
}

struct State {
    plan: Recorded,
    wants: FxHashMap<u64, Want>,
    /// Peers that wait for a request.
    guests: FxHashMap<u64, Guest>,
    next_want: u64,
    known: Vec<Rc<Known>>,
    next_name: u64,
    /// Fetches under way, by action.
    fetches: FxHashMap<u64, Fetch>,
    /// Reads from disk, and how to call them off.
    cancels: FxHashMap<u64, Rc<Notify>>,
    partial: Parts,
    /// Why a content could not be loaded, until those who waited for it have heard.
    troubles: FxHashMap<Content, Trouble>,
    soon: bool,
    reported: FxHashMap<u64, watch::Told>,
    /// Consumers that were told that they wait, by job and connection.
    stalls: FxHashMap<(u32, *const Connection), watch::Stall>,
    disk_trouble: Option<Instant>,
    /// Disk tiers that have been said to take nothing for want of room.
    without_room: BTreeSet<u8>,
    /// Connections that have attached to a job of it.
    listeners: Vec<Weak<Connection>>,
}

/// What jobs share.
pub struct Pool {
    /// Its number in the agent.
    pub id: u32,
    /// By which jobs find it.
    pub terms: Terms,
    /// The cache arena: as large as the machine's memory, of which it has what is in use.
    pub cache: Arc<Shared>,
    /// Those who have joined.
    jobs: RefCell<BTreeMap<u32, Rc<Job>>>,
    tiers: Vec<SharedTier>,
    settings: Settings,
    /// Its place among those that read from the same endpoint.
    seat: Seat,
    carriers: Rc<Carriers>,
    /// Where fetches come back.
    back: UnboundedSender<Landed>,
    group: RefCell<Group>,
    /// Where what peers were lent comes back.
    lent: UnboundedSender<Handle>,
    /// Turns of reading what scans have read.
    spool_reads: Arc<Semaphore>,
    /// Bytes of the cache arena that the plan may use now.
    budget: Cell<u64>,
    state: RefCell<State>,
    begun: Instant,
    active: Notify,
    is_closed: Cell<bool>,
}

fn invalid(error: foreload_plan::Error) -> Trouble {
    Trouble::new("invalid", error.to_string())
}

/// The key of the block of a data set's content in the disk tiers.
fn key_of(shelf: &Shelf, dataset: &Dataset, content: Content) -> Option<[u8; 16]> {
    let samples = shelf.blocks.range(shelf.blocks.block_of(shelf.own(content)));
    block_key(
        dataset.source.store(),
        &dataset.index,
        samples.start,
        shelf.blocks.extent(samples),
    )
}

/// Tells a connection that it doesn't get what it asked for.
fn refuse(who: &Connection, id: u64, trouble: &Trouble) {
    let body = serde_json::to_string(trouble).unwrap_or_default();
    who.say(&Say::Refuse { id, body });
}

impl Pool {
    /// A pool without jobs. `record`: all its steps, to be replayed.
    ///
    /// # Errors
    /// `invalid` for a policy of the simulator, `no-memory` when the system has no room for an arena.
    pub fn new(
        id: u32,
        terms: Terms,
        tiers: Vec<SharedTier>,
        origin: &Rc<Origin>,
        carriers: &Rc<Carriers>,
        record: bool,
    ) -> Result<Rc<Self>, Trouble> {
        let usable: Vec<u64> = tiers.iter().map(|tier| tier.borrow().usable_bytes()).collect();
        let settings = terms.settings(crate::memory::machine_bytes(), &usable);
        let plan = Scheduler::new(settings.clone()).map_err(invalid)?;
        let cache = Shared::new("foreload-cache", settings.ram_bytes, true).map_err(|error| {
            let remedy = crate::memory::remedy(&error)
                .unwrap_or("It takes addresses for all of the machine's memory: raise the limit of `ulimit -v`");
            let bytes = settings.ram_bytes;
            Trouble::new(
                "no-memory",
                format!("making an arena of {bytes} bytes: {error}. {remedy}"),
            )
        })?;
        let state = State {
            plan: Recorded::new(plan, if record { None } else { Some(LOG_STEPS) }),
            wants: FxHashMap::default(),
            guests: FxHashMap::default(),
            next_want: 1,
            known: Vec::new(),
            next_name: 0,
            fetches: FxHashMap::default(),
            cancels: FxHashMap::default(),
            partial: Parts::default(),
            troubles: FxHashMap::default(),
            soon: false,
            reported: FxHashMap::default(),
            stalls: FxHashMap::default(),
            disk_trouble: None,
            without_room: BTreeSet::new(),
            listeners: Vec::new(),
        };
        let (back, landed) = unbounded_channel();
        let (lent, given_back) = unbounded_channel();
        let pool = Rc::new_cyclic(|pool| Pool {
            id,
            seat: origin.join(Weak::clone(pool), terms.concurrency),
            carriers: Rc::clone(carriers),
            back,
            group: RefCell::default(),
            lent,
            terms,
            cache: Arc::new(cache),
            jobs: RefCell::default(),
            tiers,
            spool_reads: Arc::new(Semaphore::new(bytes::SPOOL_READS)),
            budget: Cell::new(settings.ram_bytes),
            settings,
            state: RefCell::new(state),
            begun: Instant::now(),
            active: Notify::new(),
            is_closed: Cell::new(false),
        });
        pool.seat.report(Demand::default());
        tokio::task::spawn_local(Rc::clone(&pool).watch());
        tokio::task::spawn_local(bytes::receive(Rc::downgrade(&pool), landed));
        tokio::task::spawn_local(guests::take_back(Rc::downgrade(&pool), given_back));
        Ok(pool)
    }

    /// A connection has attached to one of its jobs, and hears of what concerns them all.
    pub fn listen(&self, connection: &Rc<Connection>) {
        let mut state = self.state.borrow_mut();
        let others = |known: &Weak<Connection>| known.strong_count() > 0 && !known.ptr_eq(&Rc::downgrade(connection));
        state.listeners.retain(others);
        state.listeners.push(Rc::downgrade(connection));
    }

    /// Tells everybody who is attached to one of its jobs.
    fn tell_all(&self, trouble: &Trouble) {
        let body = serde_json::to_string(trouble).unwrap_or_default();
        let (state, jobs) = (self.state.borrow(), self.jobs.borrow());
        for who in state.listeners.iter().filter_map(Weak::upgrade) {
            if who.jobs.borrow().keys().any(|job| jobs.contains_key(job)) {
                who.say(&Say::Notice { body: body.clone() });
            }
        }
    }

    /// A job joins, with what it reads but for the data sets, which are those of its streams.
    ///
    /// # Errors
    /// `invalid` when order, ranks and batches don't fit.
    pub async fn admit(self: &Rc<Self>, job: &Rc<Job>, reads: Reads, most_bytes: u64) -> Result<(), Trouble> {
        // From here on the pool isn't empty, whoever parts meanwhile.
        self.jobs.borrow_mut().insert(job.id, Rc::clone(job));
        let reads = match self.cut(job, reads, most_bytes).await {
            Ok(reads) => reads,
            Err(trouble) => {
                self.jobs.borrow_mut().remove(&job.id);
                return Err(trouble);
            }
        };
        let new = self.learn(job, &reads.sets, most_bytes);
        self.step(Event::Join {
            job: job.id,
            reads: Box::new(reads),
        });
        for known in new {
            self.look_into_tiers(&known).await;
        }
        Ok(())
    }

    /// What a job reads, with the data sets that are new to the pool cut into blocks: that goes through all their samples, on another thread.
    async fn cut(&self, job: &Job, mut reads: Reads, most_bytes: u64) -> Result<Reads, Trouble> {
        loop {
            // A job may have parted meanwhile, and a data set that was known with it.
            reads.sets = self.sets(job, &reads.sets, most_bytes);
            let cell_bytes = self.look(|scheduler| scheduler.cell_bytes(job.id, &reads));
            let cell_bytes = cell_bytes.map_err(invalid)?;
            let is_missing = |set: &&mut Set| set.blocks.is_none() && self.shelf(set.name).is_none();
            let Some(set) = reads.sets.iter_mut().find(is_missing) else {
                return Ok(reads);
            };
            let (catalog, gap_bytes) = (Arc::clone(&set.catalog), self.settings.gap_bytes);
            let cut = tokio::task::spawn_blocking(move || Blocks::new(catalog, cell_bytes, gap_bytes)).await;
            let blocks = cut.map_err(|error| Trouble::new("bug", error.to_string()))?;
            set.blocks = Some(Arc::new(blocks));
        }
    }

    /// The data sets of a job as the plan takes them, with the blocks of those that were cut.
    fn sets(&self, job: &Job, cut: &[Set], most_bytes: u64) -> Vec<Set> {
        let state = self.state.borrow();
        let parts = job.streams.parts().iter().enumerate();
        let set = |(at, dataset): (usize, &Rc<Dataset>)| {
            let is_it = |known: &&Rc<Known>| Rc::ptr_eq(&known.dataset, dataset) && known.most_bytes == most_bytes;
            // A data set that comes twice has one name.
            let first = job.streams.parts().iter().position(|part| Rc::ptr_eq(part, dataset));
            let new = state.next_name + first.unwrap_or(at) as u64;
            let catalog = IndexCatalog {
                index: dataset.index.clone(),
                most_bytes,
            };
            let name = state.known.iter().find(is_it).map_or(new, |known| known.name);
            let blocks = cut.iter().filter(|set| set.name == name);
            Set {
                name,
                catalog: Arc::new(catalog),
                blocks: blocks.filter_map(|set| set.blocks.clone()).next(),
            }
        };
        parts.map(set).collect()
    }

    /// Notes the data sets of a job that nobody has named before, and answers with them.
    fn learn(&self, job: &Job, sets: &[Set], most_bytes: u64) -> Vec<Rc<Known>> {
        let mut state = self.state.borrow_mut();
        let mut new = Vec::new();
        for (set, dataset) in sets.iter().zip(job.streams.parts()) {
            if state.known.iter().any(|known| known.name == set.name) {
                continue;
            }
            let known = Rc::new(Known {
                name: set.name,
                dataset: Rc::clone(dataset),
                most_bytes,
                found: Cell::new(0),
            });
            state.known.push(Rc::clone(&known));
            new.push(known);
        }
        state.next_name += sets.len() as u64;
        new
    }

    /// Samples of a job that the disk tiers held when its data sets came.
    #[must_use]
    pub fn found(&self, job: &Job) -> u64 {
        let state = self.state.borrow();
        let of = |dataset: &Rc<Dataset>| {
            let known = state.known.iter().find(|known| Rc::ptr_eq(&known.dataset, dataset));
            known.map_or(0, |known| known.found.get())
        };
        job.streams.parts().iter().map(of).sum()
    }

    /// A job is over. What it alone read leaves the memory.
    pub fn part(self: &Rc<Self>, job: &Job) {
        self.step(Event::Part { job: job.id });
        self.jobs.borrow_mut().remove(&job.id);
        self.forget_unknown();
        let asked = self.bounds().asked;
        if self.budget.get() > asked {
            self.set_budget(asked);
        } else {
            self.give_back();
        }
    }

    /// Ends it: its loads are called off, and nothing that still comes changes anything. Its memory goes with the last task that notices.
    pub fn close(&self) {
        if self.is_closed.replace(true) {
            return;
        }
        self.seat.leave();
        let mut state = self.state.borrow_mut();
        state.wants.clear();
        state.guests.clear();
        state.cancels.values().for_each(|cancel| cancel.notify_one());
        for (&action, fetch) in &state.fetches {
            self.carriers.call_off((self.id, fetch.order), action, fetch.carrier);
        }
        for known in state.known.drain(..) {
            self.unprotect(&known);
        }
        self.active.notify_one();
    }

    /// Whether no job is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.borrow().is_empty()
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Data sets that the plan has let go are let go.
    fn forget_unknown(&self) {
        let mut state = self.state.borrow_mut();
        let State { plan, known, .. } = &mut *state;
        let library = plan.scheduler().library();
        known.retain(|known| {
            let stays = library.named(known.name).is_some();
            if !stays {
                self.unprotect(known);
            }
            stays
        });
    }

    /// By this number the disk tiers know who uses a data set's records.
    fn user(&self, name: u64) -> u64 {
        u64::from(self.id) << 32 | name
    }

    fn unprotect(&self, known: &Known) {
        for tier in &self.tiers {
            tier.borrow_mut().unprotect(self.user(known.name));
        }
    }

    /// Tells the plan what the disk tiers hold of a data set.
    async fn look_into_tiers(self: &Rc<Self>, known: &Rc<Known>) {
        let shelf = self.shelf(known.name);
        let Some(shelf) = shelf.filter(|_| self.tiers.iter().any(|tier| !tier.borrow().is_empty())) else {
            return;
        };
        let (first, count) = (LOOK_FIRST.min(shelf.blocks.count()), shelf.blocks.count());
        self.look_up(known, &shelf, 0..first).await;
        // A large data set must not delay the first batch.
        if first < count {
            let (pool, known) = (Rc::clone(self), Rc::clone(known));
            tokio::task::spawn_local(async move { pool.look_up(&known, &shelf, first..count).await });
        }
    }

    /// The same of some of its blocks. Their keys are hashes, which are computed on another thread.
    async fn look_up(self: &Rc<Self>, known: &Known, shelf: &Shelf, blocks: std::ops::Range<u64>) {
        let mut next = blocks.start;
        while next < blocks.end && !self.is_closed() && self.shelf(known.name).is_some() {
            let (first, end) = (next, (next + LOOK_AT_ONCE).min(blocks.end));
            next = end;
            let (index, all) = (known.dataset.index.clone(), Arc::clone(&shelf.blocks));
            let store = known.dataset.source.store().to_owned();
            let key = move |block| {
                let samples = all.range(block);
                block_key(&store, &index, samples.start, all.extent(samples))
            };
            let keys = move || (first..end).map(key).collect::<Vec<_>>();
            let Ok(keys) = tokio::task::spawn_blocking(keys).await else {
                return;
            };
            let mut found = vec![Vec::new(); self.tiers.len()];
            for (key, block) in keys.into_iter().zip(first..) {
                let Some(key) = key else { continue };
                if let Some(number) = self.tiers.iter().position(|tier| tier.borrow().contains(&key)) {
                    self.tiers[number].borrow_mut().protect(self.user(known.name), [key]);
                    found[number].push(shelf.first_block + block);
                    let samples = shelf.blocks.range(block);
                    known.found.set(known.found.get() + samples.end - samples.start);
                }
            }
            for (number, blocks) in found.into_iter().enumerate().filter(|(_, blocks)| !blocks.is_empty()) {
                self.step(Event::Found {
                    tier: number as u8,
                    blocks,
                });
            }
        }
    }

    /// A data set as the plan knows it.
    fn shelf(&self, name: u64) -> Option<Shelf> {
        let state = self.state.borrow();
        state.plan.scheduler().library().named(name).cloned()
    }

    /// Where a content is from. `None`: nobody reads its data set any more, as of a load that lost its race.
    fn home(&self, content: Content) -> Option<(Shelf, Rc<Dataset>)> {
        let state = self.state.borrow();
        let shelf = state.plan.scheduler().library().shelf_with(content)?.clone();
        let known = state.known.iter().find(|known| known.name == shelf.name)?;
        Some((shelf, Rc::clone(&known.dataset)))
    }

    /// Nanoseconds since the pool began: the plan's clock.
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Gives the plan an event and carries out what it orders; nothing once the pool is closed.
    pub fn step(self: &Rc<Self>, event: Event) {
        if self.is_closed() {
            return;
        }
        let mut actions = Vec::new();
        let next = self.state.borrow_mut().plan.step(self.now_ns(), event, &mut actions);
        let (mut keeps, mut bundled) = (Vec::new(), Vec::new());
        let mut refused = Vec::new();
        for action in actions {
            match action.command() {
                Command::Keep { .. } => keeps.push(action),
                Command::Load(load) if load.bundle.is_some() => bundled.push(action),
                Command::Refuse { request, sample, .. } => {
                    refused.extend(self.contents_of(*request, *sample));
                    self.carry_out(action);
                }
                _ => self.carry_out(action),
            }
        }
        // All who waited for a sample have heard by now why it failed.
        if !refused.is_empty() {
            let mut state = self.state.borrow_mut();
            refused.iter().for_each(|content| drop(state.troubles.remove(content)));
        }
        self.fetch_bundles(bundled);
        if !keeps.is_empty() {
            self.write_to_disk(keeps);
        }
        if next == Next::Soon && !std::mem::replace(&mut self.state.borrow_mut().soon, true) {
            let pool = Rc::clone(self);
            tokio::task::spawn_local(async move {
                tokio::task::yield_now().await;
                pool.state.borrow_mut().soon = false;
                pool.step(Event::Tick);
            });
        }
        self.active.notify_one();
        self.seat.report(self.demand());
        self.make_lists();
    }

    /// What it wants of the bucket. Where nobody is attached it stands back for those that somebody waits for.
    fn demand(&self) -> Demand {
        let attached = self.jobs.borrow().values().any(|job| job.clients() > 0);
        match attached {
            false => Demand::default(),
            true => self.state.borrow().plan.scheduler().demand(),
        }
    }

    /// Has lists made that jobs want next.
    fn make_lists(&self) {
        let jobs = self.jobs.borrow();
        let listing = jobs.values().filter(|job| job.makes_lists()).cloned();
        let listing: Vec<Rc<Job>> = listing.collect();
        drop(jobs);
        listing.iter().for_each(Job::make_lists);
    }

    /// Looks at the scheduler.
    pub fn look<T>(&self, at: impl FnOnce(&Scheduler) -> T) -> T {
        at(self.state.borrow().plan.scheduler())
    }

    /// Takes a want of a connection, and numbers it.
    pub fn want(&self, job: &Rc<Job>, connection: &Rc<Connection>, id: u64) -> u64 {
        let mut state = self.state.borrow_mut();
        let request = state.next_want;
        state.next_want += 1;
        let want = Want {
            job: Rc::clone(job),
            who: Rc::downgrade(connection),
            id,
        };
        state.wants.insert(request, want);
        job.count_waiting(true);
        request
    }

    /// Whether somebody waits for a request.
    pub fn is_wanted(&self, request: u64) -> bool {
        self.state.borrow().wants.contains_key(&request)
    }

    fn take_want(&self, request: u64) -> Option<Want> {
        let want = self.state.borrow_mut().wants.remove(&request)?;
        want.job.count_waiting(false);
        Some(want)
    }

    /// A connection does nothing but wait for what it asked of a job under a number.
    pub fn await_want(self: &Rc<Self>, connection: &Rc<Connection>, job: u32, id: u64) {
        let found = self.wants_of(connection, Some(job), Some(id)).first().copied();
        if let Some(request) = found {
            self.step(Event::Awaited { request });
        }
    }

    /// What a connection asked for and hasn't got yet, oldest first.
    fn wants_of(&self, connection: &Rc<Connection>, job: Option<u32>, id: Option<u64>) -> Vec<u64> {
        let state = self.state.borrow();
        let mine = |(_, want): &(&u64, &Want)| {
            std::ptr::eq(want.who.as_ptr(), Rc::as_ptr(connection))
                && job.is_none_or(|job| want.job.id == job)
                && id.is_none_or(|id| want.id == id)
        };
        let mut requests: Vec<u64> = state.wants.iter().filter(mine).map(|(&request, _)| request).collect();
        requests.sort_unstable();
        requests
    }

    /// A connection no longer waits for what it asked of a job under a number; without a number, for anything of the job; without a job, for anything.
    pub fn withdraw(self: &Rc<Self>, connection: &Rc<Connection>, job: Option<u32>, id: Option<u64>) {
        let requests = self.wants_of(connection, job, id);
        // All before the first step: what one of them held may be what another waits for.
        for &request in &requests {
            drop(self.take_want(request));
        }
        for request in requests {
            self.step(Event::Withdraw { request });
        }
    }

    fn carry_out(self: &Rc<Self>, action: Action) {
        match action.command() {
            Command::Load(load) => match load.source {
                Source::Bucket => self.fetch(action),
                Source::Disk(tier) => {
                    let cancel = Rc::new(Notify::new());
                    self.state.borrow_mut().cancels.insert(action.id(), Rc::clone(&cancel));
                    self.read_from_disk(tier, action, cancel);
                }
                Source::Peer(_) => self.fetch_from_peer(action),
            },
            Command::Forget { tier, block } => {
                let key = self.key(Content::block(*block));
                if let (Some(key), Some(tier)) = (key, self.tiers.get(usize::from(*tier))) {
                    tier.borrow_mut().forget(&key);
                }
            }
            Command::Deliver { request, items, .. } if self.lend(*request, items) => {}
            Command::Deliver { request, items, copy } => {
                let want = self.take_want(*request);
                let asked = want.and_then(|want| Some((want.who.upgrade()?, want)));
                let Some((who, Want { job, id, .. })) = asked else {
                    return self.release_later(items.iter().map(|item| item.handle).collect());
                };
                match job.sent(items) {
                    Ok(sent) => {
                        who.lease(job.id, sent.iter().map(|item| item.handle));
                        who.say(&Say::Deliver {
                            id,
                            copy: *copy,
                            items: sent,
                        });
                    }
                    Err(trouble) => {
                        self.release_later(items.iter().map(|item| item.handle).collect());
                        refuse(&who, id, &trouble);
                    }
                }
            }
            Command::Refuse { request, .. } if self.deny(*request) => {}
            Command::Refuse {
                request,
                sample,
                failure,
            } => {
                let known = {
                    let contents = self.contents_of(*request, *sample);
                    let state = self.state.borrow();
                    contents.iter().find_map(|it| state.troubles.get(it).cloned())
                };
                let want = self.take_want(*request);
                if let Some((who, want)) = want.and_then(|want| Some((want.who.upgrade()?, want))) {
                    let trouble = known.unwrap_or_else(|| want.job.explain_refusal(*sample, *failure));
                    let trouble = Trouble {
                        sample: *sample,
                        ..trouble
                    };
                    refuse(&who, want.id, &trouble);
                }
            }
            Command::Cancel { load } => {
                if !self.call_off(*load)
                    && let Some(cancel) = self.state.borrow().cancels.get(load)
                {
                    cancel.notify_one();
                }
            }
            _ => {}
        }
    }

    /// What a request's sample may have been loaded as: by itself, or with its block.
    fn contents_of(&self, request: u64, sample: Option<u64>) -> Vec<Content> {
        let state = self.state.borrow();
        let scheduler = state.plan.scheduler();
        let want = state.wants.get(&request);
        let sample = sample.and_then(|sample| scheduler.on_node(want?.job.id, sample));
        let contents = |sample| {
            let block = scheduler.library().of(sample);
            vec![Content::sample(sample), Content::block(block)]
        };
        sample.map_or_else(Vec::new, contents)
    }

    /// The key of a content's block in the disk tiers.
    fn key(&self, content: Content) -> Option<[u8; 16]> {
        let (shelf, dataset) = self.home(content)?;
        key_of(&shelf, &dataset, content)
    }

    /// Counts what happened for a job, if it isn't over.
    fn count(&self, job: u32, what: impl FnOnce(&mut crate::calls::Stats)) {
        if let Some(job) = self.jobs.borrow().get(&job) {
            job.count(what);
        }
    }

    /// Releases from inside a step: the next event.
    fn release_later(self: &Rc<Self>, handles: Vec<Handle>) {
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move { pool.step(Event::Release { handles }) });
    }

    /// The bounds of its memory: what its jobs ask for, and what they can't do without.
    fn bounds(&self) -> Budget {
        let jobs = self.jobs.borrow();
        let sum = |of: fn(&Job) -> u64| jobs.values().fold(0, |sum: u64, job| sum.saturating_add(of(job)));
        Budget {
            asked: sum(Job::sample_bytes).min(self.settings.ram_bytes),
            least: sum(|job| job.least_bytes).min(self.settings.ram_bytes),
            reserve: RESERVE_BYTES,
        }
    }

    /// Memory that all its jobs bring, batches included.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        let jobs = self.jobs.borrow();
        jobs.values()
            .fold(0, |sum, job| sum.saturating_add(job.attach.ram_bytes))
    }

    /// Shares out memory anew, when `left` bytes are left on the machine beside what it has. Answers with the budget and with what its jobs
    /// ask for together, where that is more.
    pub fn share_memory(self: &Rc<Self>, left: u64) -> Option<(u64, u64)> {
        let bounds = self.bounds();
        let budget = bounds.first(left.saturating_add(self.cache.used_bytes()));
        self.set_budget(budget);
        (budget < bounds.asked).then_some((budget, bounds.asked))
    }

    /// What the plan may use of the cache arena from now on.
    fn set_budget(self: &Rc<Self>, bytes: u64) {
        let before = self.budget.replace(bytes);
        if bytes == before {
            return;
        }
        self.step(Event::Budget { ram_bytes: bytes });
        if bytes < before {
            self.give_back();
        }
    }

    /// Gives memory back to the system that holds nothing.
    fn give_back(&self) {
        let free = |scheduler: &Scheduler| scheduler.free_stretches(STRETCH_BYTES).collect::<Vec<_>>();
        for (offset, len) in self.look(free) {
            self.cache.give_back(offset, len);
        }
    }

    /// Proves that it obeyed its plan so far; only with everything recorded.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn replay(&self) -> Result<(), String> {
        let fresh = Scheduler::new(self.settings.clone()).map_err(|e| e.to_string())?;
        replay::replay(fresh, self.state.borrow().plan.log()).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests;
