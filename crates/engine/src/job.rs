//! A job: one plan, carried out.
//!
//! The job owns the scheduler and everything its actions touch. [`Job::step`] gives the scheduler an event and carries out what it orders: loads become
//! tasks on this thread's runtime (fetches) or on its blocking pool (disk), each ending with a completion that is the next event; deliveries and
//! refusals go to the connection that asked. Nothing here decides what to fetch or keep.
//!
//! All of it runs on one thread: there is no lock, and a step is never interrupted.

mod bytes;
mod lists;
mod parts;
mod survey;
mod watch;

use crate::batches::Batches;
use crate::calls::{Attach, Stats};
use crate::connection::Connection;
use crate::disk::DiskTier;
use crate::origin::{Origin, Seat};
use crate::protocol::{Say, Sent, Trouble};
use crate::slots::Shared;
use crate::streams::Streams;
use foreload_plan::action::{Action, Command, Event, Failure, Handle, Source, Via};
use foreload_plan::blocks::{Blocks, Content};
use foreload_plan::budget::Budget;
use foreload_plan::flow::Demand;
use foreload_plan::job::{Reads, Set};
use foreload_plan::order::{Expected, Listed, Order};
use foreload_plan::policy::Retention;
use foreload_plan::replay::Recorded;
use foreload_plan::scheduler::Next;
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::{Digest, DigestBuilder, Scheduler};
use lists::Lists;
use parts::Parts;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use survey::too_large;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Steps kept for a report when something goes wrong.
const LOG_STEPS: usize = 512;
/// Late loads and stalls are looked for this often while anything is in flight.
const TICK: Duration = Duration::from_millis(10);
/// Blocks looked up in the disk tiers in one go: the look-ups take a millisecond or two.
const LOOK_AT_ONCE: u64 = 1 << 14;
/// And before the job answers: about a tenth of a second.
const LOOK_FIRST: u64 = 200_000;
/// Credentials are looked after this often while the job is active.
const CARE: Duration = Duration::from_secs(5);
/// And memory: in a second, another process may well take what the reserve holds.
const MIND: Duration = Duration::from_secs(1);
/// So much memory of the machine is left to others: below it, the RAM tier shrinks.
const RESERVE_BYTES: u64 = 256 << 20;
/// Loads remembered as the slowest.
const SLOWEST: usize = 10;

/// A job's number in its scheduler, which it has to itself.
pub const SOLE: u32 = 0;

pub use survey::Survey;

/// A disk tier that several jobs may share.
pub type SharedTier = Rc<RefCell<DiskTier>>;

struct State {
    plan: Recorded,
    wants: FxHashMap<u64, (Weak<Connection>, u64)>,
    next_want: u64,
    cancels: FxHashMap<u64, Rc<Notify>>,
    partial: Parts,
    /// Why a content could not be loaded, until those who waited for it have heard.
    troubles: FxHashMap<Content, Trouble>,
    stats: Stats,
    soon: bool,
    waiting_since: Option<Instant>,
    reported: FxHashMap<u64, Instant>,
    disk_trouble: Option<Instant>,
    lists: Lists,
}

impl State {
    /// The order that it reads in.
    fn order(&self) -> Option<&Order> {
        self.plan.scheduler().order(SOLE)
    }
}

/// How far a job's life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Somebody is attached, or about to be.
    Running,
    /// Nobody has been since then: nothing new is loaded, and what is in memory waits for the next one.
    Lingering(Instant),
    /// It is over, whatever still comes.
    Closed,
}

/// A running plan.
pub struct Job {
    /// Its number in the agent.
    pub id: u32,
    /// What it was attached with.
    pub attach: Attach,
    /// The word by which others join it: that of the loader it belongs to now.
    pub word: RefCell<String>,
    /// What it reads.
    pub streams: Rc<Streams>,
    /// The same, as memory and disk tiers hold it.
    pub blocks: Arc<Blocks>,
    /// The cache arena.
    pub cache: Arc<Shared>,
    /// The batch arena.
    pub batches: RefCell<Batches>,
    /// Connections attached.
    clients: Cell<u64>,
    life: Cell<Life>,
    /// Samples found in the disk tiers at the start.
    pub found: Cell<u64>,
    tiers: Vec<SharedTier>,
    usable: Vec<u64>,
    /// Its place among the jobs that read from the same endpoint.
    seat: Seat,
    /// Bytes of the cache arena that the plan may use now, and their bounds.
    budget: Cell<u64>,
    bounds: Budget,
    state: RefCell<State>,
    begun: Instant,
    active: Notify,
    plan_digest: Digest,
}

/// The plan's settings for an attachment.
fn settings(attach: &Attach, usable: &[u64]) -> Settings {
    Settings {
        policy: attach.policy,
        ram_bytes: sample_bytes(attach),
        staging_bytes: attach.staging_bytes,
        tiers: attach
            .disks
            .iter()
            .zip(usable)
            .map(|(disk, &usable)| TierSettings {
                capacity_bytes: disk.capacity_bytes.min(usable),
                pinned: disk.pinned,
            })
            .collect(),
        concurrency: attach.concurrency,
        hedge_per_cent: attach.hedge_per_cent,
        load_timeout_ns: (attach.timeout_s.clamp(0.1, 86_400.0) * 1e9) as u64,
        bucket: attach.bucket,
        ..Settings::default()
    }
}

/// Why the list of an epoch isn't taken.
pub fn list_trouble(epoch: u32, error: &foreload_plan::Error) -> Trouble {
    Trouble::new("invalid", format!("the list of epoch {epoch}: {error}"))
}

fn invalid(error: foreload_plan::Error) -> Trouble {
    Trouble::new("invalid", error.to_string())
}

/// What an attachment reads.
fn reads(attach: &Attach, settings: &Settings, streams: &Streams, order: Order) -> Reads {
    let set = Set {
        name: 0,
        catalog: Arc::new(streams.catalog(settings.ram_bytes)),
    };
    Reads {
        sets: vec![set],
        order: order.deferred(),
        world: attach.world,
        uneven: attach.uneven,
        ranks: attach.ranks.clone(),
        epochs: attach.epochs,
    }
}

impl Job {
    /// Starts a job: makes its arenas, looks into its disk tiers. `survey` is of all its samples.
    ///
    /// # Errors
    /// `invalid` when the plan doesn't fit, `no-memory` when a sample doesn't fit the budget or the system has none.
    pub async fn start(
        id: u32,
        survey: Survey,
        streams: Streams,
        tiers: Vec<SharedTier>,
        origin: &Rc<Origin>,
        record: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Rc<Self>, Trouble> {
        let usable: Vec<u64> = tiers.iter().map(|tier| tier.borrow().usable_bytes()).collect();
        let settings = settings(&survey.attach, &usable);
        let capacity = if record { None } else { Some(LOG_STEPS) };
        let bounds = Budget {
            asked: settings.ram_bytes,
            least: survey.least_bytes(&streams)?,
            reserve: RESERVE_BYTES,
        };
        warnings.extend(survey.warning_of_batches());
        let Survey { attach, order, .. } = survey;
        let looks_up = streams.is_packed() && attach.policy.retention() == Retention::Pinned;
        let order_bytes = order.expected_bytes(looks_up);
        let beside = attach.batch_bytes + order_bytes;
        let left = crate::memory::available_bytes().map_or(u64::MAX, |left| left.saturating_sub(beside));
        warnings.extend(warning_of_order(&attach, order_bytes));
        let budget = bounds.first(left);
        if budget < settings.ram_bytes {
            let mb = |bytes: u64| bytes / 1_000_000;
            warnings.push(format!(
                "the loader asks for {} MB of memory, and this machine or its control group has {} MB left: it keeps {} MB for samples now, and more when there is more; give cache=Cache(ram=...) less",
                mb(attach.ram_bytes),
                mb(left.saturating_add(beside)),
                mb(budget),
            ));
        }
        let plan_digest = plan_digest(&attach, order.digest());
        let lists = Lists::of(&order, looks_up);
        let reads = reads(&attach, &settings, &streams, order);
        let planned = settings.clone();
        // It goes through all samples to cut them into blocks.
        let plan = tokio::task::spawn_blocking(move || Scheduler::for_one(planned, &reads)).await;
        let plan = plan.map_err(|e| Trouble::new("bug", e.to_string()))?.map_err(invalid)?;
        let blocks = Arc::clone(&plan.library().shelves()[0].blocks);
        let plan = Recorded::new(plan, capacity);
        let memory =
            |e: std::io::Error| Trouble::new("no-memory", format!("making arenas of {} bytes: {e}", attach.ram_bytes));
        let cache = Arc::new(Shared::new("foreload-cache", settings.ram_bytes, true).map_err(memory)?);
        let batches = RefCell::new(Batches::new(attach.batch_bytes).map_err(memory)?);
        let state = State {
            plan,
            wants: FxHashMap::default(),
            next_want: 1,
            cancels: FxHashMap::default(),
            partial: Parts::default(),
            troubles: FxHashMap::default(),
            stats: Stats::default(),
            soon: false,
            waiting_since: None,
            reported: FxHashMap::default(),
            disk_trouble: None,
            lists,
        };
        let job = Rc::new_cyclic(|job| Job {
            id,
            seat: origin.join(Weak::clone(job), attach.concurrency),
            word: RefCell::new(attach.session.clone()),
            attach,
            streams: Rc::new(streams),
            blocks,
            cache,
            batches,
            clients: Cell::new(0),
            life: Cell::new(Life::Running),
            found: Cell::new(0),
            tiers,
            usable,
            budget: Cell::new(settings.ram_bytes),
            bounds,
            state: RefCell::new(state),
            begun: Instant::now(),
            active: Notify::new(),
            plan_digest,
        });
        job.seat.report(Demand::default());
        job.set_budget(budget);
        tokio::task::spawn_local(Rc::clone(&job).watch());
        if job.tiers.iter().any(|tier| !tier.borrow().is_empty()) {
            let first = LOOK_FIRST.min(job.blocks.count());
            job.look_into_tiers(0..first).await;
            // A large data set must not delay the first batch.
            if first < job.blocks.count() {
                let job = Rc::clone(&job);
                tokio::task::spawn_local(async move { job.look_into_tiers(first..job.blocks.count()).await });
            }
        }
        Ok(job)
    }

    /// Tells the plan what the disk tiers hold of some blocks. Their keys are hashes, which are computed on another thread.
    async fn look_into_tiers(self: &Rc<Self>, blocks: Range<u64>) {
        let mut next = blocks.start;
        while next < blocks.end && !self.is_closed() {
            let (first, end) = (next, (next + LOOK_AT_ONCE).min(blocks.end));
            next = end;
            let (indexes, all) = (self.streams.indexes(), Arc::clone(&self.blocks));
            let key = move |block| {
                let samples = all.range(block);
                indexes.key(samples.start, all.extent(samples))
            };
            let keys = move || (first..end).map(key).collect::<Vec<_>>();
            let Ok(keys) = tokio::task::spawn_blocking(keys).await else {
                return;
            };
            let mut found = vec![Vec::new(); self.tiers.len()];
            for (key, block) in keys.into_iter().zip(first..) {
                let Some(key) = key else { continue };
                if let Some(number) = self.tiers.iter().position(|tier| tier.borrow().contains(&key)) {
                    self.tiers[number].borrow_mut().protect(u64::from(self.id), [key]);
                    found[number].push(block);
                    let samples = self.blocks.range(block);
                    self.found.set(self.found.get() + samples.end - samples.start);
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

    /// The digest that ranks compare before their first batch: everything that decides who reads what.
    #[must_use]
    pub fn plan_digest(&self) -> Digest {
        self.plan_digest
    }

    /// Nanoseconds since the job began: the plan's clock.
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Gives the plan an event and carries out what it orders; nothing once the job is closed.
    pub fn step(self: &Rc<Self>, event: Event) {
        if self.is_closed() {
            return;
        }
        let mut actions = Vec::new();
        let next = self.state.borrow_mut().plan.step(self.now_ns(), event, &mut actions);
        let mut keeps = Vec::new();
        let mut refused = Vec::new();
        for action in actions {
            match action.command() {
                Command::Keep { .. } => keeps.push(action),
                command => {
                    if let Command::Refuse { sample, .. } = command {
                        refused.extend(*sample);
                    }
                    self.carry_out(action);
                }
            }
        }
        // All who waited for a sample have heard by now why it failed.
        for sample in refused {
            let mut state = self.state.borrow_mut();
            self.contents_of(sample).iter().for_each(|content| {
                state.troubles.remove(content);
            });
        }
        if !keeps.is_empty() {
            self.write_to_disk(keeps);
        }
        if next == Next::Soon && !std::mem::replace(&mut self.state.borrow_mut().soon, true) {
            let job = Rc::clone(self);
            tokio::task::spawn_local(async move {
                tokio::task::yield_now().await;
                job.state.borrow_mut().soon = false;
                job.step(Event::Tick);
            });
        }
        self.note_waiting();
        self.active.notify_one();
        self.seat.report(self.demand());
        self.make_lists();
    }

    /// What it wants of the bucket. A job that nobody is attached to stands back for those that somebody waits for.
    fn demand(&self) -> Demand {
        match self.clients.get() {
            0 => Demand::default(),
            _ => self.state.borrow().plan.scheduler().demand(),
        }
    }

    /// What the list of an epoch must be like, of an order that the client supplies.
    ///
    /// # Errors
    /// `invalid` when it doesn't.
    pub fn expects(&self, epoch: u32) -> Result<Expected, Trouble> {
        let state = self.state.borrow();
        let expected = state.order().map(|order| order.expects(epoch));
        let expected = expected.unwrap_or(Err(foreload_plan::Error::EpochNotSupplied { epoch }));
        expected.map_err(|e| list_trouble(epoch, &e))
    }

    /// Takes such a list.
    ///
    /// # Errors
    /// `invalid` when another one came meanwhile.
    pub fn supply(self: &Rc<Self>, epoch: u32, samples: Listed) -> Result<(), Trouble> {
        let admitted = self.expects(epoch)?.admits(&samples);
        admitted.map_err(|e| list_trouble(epoch, &e))?;
        self.step(Event::Epoch {
            job: SOLE,
            epoch,
            samples,
        });
        Ok(())
    }

    /// Takes a want of a connection: a batch or samples.
    pub fn want(self: &Rc<Self>, connection: &Rc<Connection>, id: u64, event: impl FnOnce(u64) -> Event) {
        let request = {
            let mut state = self.state.borrow_mut();
            let request = state.next_want;
            state.next_want += 1;
            state.wants.insert(request, (Rc::downgrade(connection), id));
            request
        };
        self.hear(event(request));
    }

    /// A connection no longer waits for what it asked under `id`; `None`: for anything.
    pub fn withdraw(self: &Rc<Self>, connection: &Rc<Connection>, id: Option<u64>) {
        let state = self.state.borrow();
        let mine = |(_, (who, asked)): &(&u64, &(Weak<Connection>, u64))| {
            std::ptr::eq(who.as_ptr(), Rc::as_ptr(connection)) && id.is_none_or(|id| *asked == id)
        };
        let mut requests: Vec<u64> = state.wants.iter().filter(mine).map(|(&request, _)| request).collect();
        drop(state);
        requests.sort_unstable();
        // All before the first step: what one of them held may be what another waits for.
        for request in &requests {
            self.state.borrow_mut().wants.remove(request);
        }
        for request in requests {
            self.step(Event::Withdraw { request });
        }
    }

    fn carry_out(self: &Rc<Self>, action: Action) {
        match action.command() {
            Command::Load(load) => {
                let cancel = Rc::new(Notify::new());
                let mut state = self.state.borrow_mut();
                state.cancels.insert(action.id(), Rc::clone(&cancel));
                match load.source {
                    Source::Bucket => {
                        state.stats.requests += 1;
                        state.stats.requested_bytes += load.len;
                        state.stats.hedges += u64::from(load.hedge);
                        drop(state);
                        tokio::task::spawn_local(Rc::clone(self).fetch(action, cancel));
                    }
                    Source::Disk(tier) => {
                        drop(state);
                        self.read_from_disk(tier, action, cancel);
                    }
                }
            }
            Command::Forget { tier, block } => {
                let key = self.key(Content::block(*block));
                if let (Some(key), Some(tier)) = (key, self.tiers.get(usize::from(*tier))) {
                    tier.borrow_mut().forget(&key);
                }
            }
            Command::Deliver { request, items, copy } => {
                let mut state = self.state.borrow_mut();
                let most_bytes = sample_bytes(&self.attach);
                if let Some(large) = items.iter().find(|item| self.streams.length(item.sample) > most_bytes) {
                    let asked = state.wants.remove(request);
                    drop(state);
                    self.release_later(items.iter().map(|item| item.handle).collect());
                    let trouble = too_large(&self.attach, &self.streams, large.sample);
                    if let Some((who, id)) = asked.and_then(|(who, id)| who.upgrade().map(|who| (who, id))) {
                        let body = serde_json::to_string(&trouble).unwrap_or_default();
                        who.say(&Say::Refuse { id, body });
                    }
                    return;
                }
                let sent: Vec<Sent> = items
                    .iter()
                    .map(|item| {
                        let label = self.streams.label(item.sample).unwrap_or(i64::MIN);
                        count(&mut state.stats, item.via, item.slot.len);
                        Sent {
                            sample: item.sample,
                            handle: item.handle,
                            offset: item.slot.offset,
                            len: item.slot.len,
                            label,
                            via: item.via,
                        }
                    })
                    .collect();
                let asked = state.wants.remove(request);
                drop(state);
                match asked.and_then(|(who, id)| who.upgrade().map(|who| (who, id))) {
                    Some((who, id)) => {
                        who.lease(self.id, sent.iter().map(|item| item.handle));
                        who.say(&Say::Deliver {
                            id,
                            copy: *copy,
                            items: sent,
                        });
                    }
                    None => self.release_later(sent.iter().map(|item| item.handle).collect()),
                }
            }
            Command::Refuse {
                request,
                sample,
                failure,
            } => {
                let mut state = self.state.borrow_mut();
                let asked = state.wants.remove(request);
                let known = |sample| {
                    self.contents_of(sample)
                        .iter()
                        .find_map(|it| state.troubles.get(it).cloned())
                };
                let trouble = sample.and_then(known);
                drop(state);
                let trouble = trouble.unwrap_or_else(|| self.explain_refusal(*sample, *failure));
                if let Some((who, id)) = asked.and_then(|(who, id)| who.upgrade().map(|who| (who, id))) {
                    let body = serde_json::to_string(&Trouble {
                        sample: *sample,
                        ..trouble
                    })
                    .unwrap_or_default();
                    who.say(&Say::Refuse { id, body });
                }
            }
            Command::Cancel { load } => {
                if let Some(cancel) = self.state.borrow().cancels.get(load) {
                    cancel.notify_one();
                }
            }
            _ => {}
        }
    }

    /// What a sample may have been loaded as: by itself, or with its block.
    fn contents_of(&self, sample: u64) -> [Content; 2] {
        [Content::sample(sample), Content::block(self.blocks.of(sample))]
    }

    /// The key of a content's block in the disk tiers.
    fn key(&self, content: Content) -> Option<[u8; 16]> {
        let samples = self.blocks.range(self.blocks.block_of(content));
        self.streams.key(samples.start, self.blocks.extent(samples))
    }

    /// Releases from inside a step: the next event.
    fn release_later(self: &Rc<Self>, handles: Vec<Handle>) {
        let job = Rc::clone(self);
        tokio::task::spawn_local(async move { job.step(Event::Release { handles }) });
    }

    fn explain_refusal(&self, sample: Option<u64>, failure: Failure) -> Trouble {
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

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.state.borrow();
        let mut stats = state.stats.clone().with(&state.plan.scheduler().gauges());
        stats.order_bytes = state.order().map_or(0, Order::held_bytes);
        stats.memory_bytes = self.cache.used_bytes() + self.batches.borrow().shared().used_bytes();
        stats.index_bytes = self.streams.index_bytes();
        stats.waited_s += state.waiting_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        stats
    }

    /// Proves that the job obeyed its plan so far; only with everything recorded.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn replay(&self) -> Result<(), String> {
        let order = Order::new(&self.attach.order).map_err(|e| e.to_string())?;
        let settings = settings(&self.attach, &self.usable);
        let reads = reads(&self.attach, &settings, &self.streams, order);
        let fresh = Scheduler::for_one(settings, &reads).map_err(|e| e.to_string())?;
        foreload_plan::replay::replay(fresh, self.state.borrow().plan.log()).map_err(|e| e.to_string())
    }

    /// Connections attached.
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.clients.get()
    }

    /// Belongs to the loader with this word from now on; another one's counters begin at zero.
    pub fn belong_to(&self, word: &str) {
        if self.word.replace(word.to_owned()) != word {
            let mut state = self.state.borrow_mut();
            (state.stats, state.waiting_since) = (Stats::default(), None);
        }
    }

    /// One more connection is attached.
    pub fn join(&self) {
        self.clients.set(self.clients.get() + 1);
        self.life.set(Life::Running);
    }

    /// One less. False: that was the last one.
    pub fn leave(self: &Rc<Self>) -> bool {
        self.clients.set(self.clients.get() - 1);
        if self.clients.get() > 0 {
            return true;
        }
        self.life.set(Life::Lingering(Instant::now()));
        self.state.borrow_mut().lists.forget();
        self.step(Event::Left { job: SOLE });
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

    /// Ends it: its loads are called off, and nothing that still comes changes anything. Its memory goes with the last task that notices.
    pub fn close(&self) {
        self.life.set(Life::Closed);
        for tier in &self.tiers {
            tier.borrow_mut().unprotect(u64::from(self.id));
        }
        self.seat.leave();
        self.state
            .borrow()
            .cancels
            .values()
            .for_each(|cancel| cancel.notify_one());
        self.active.notify_one();
    }
}

fn count(stats: &mut Stats, via: Via, len: u64) {
    stats.samples += 1;
    stats.bytes += len;
    let (samples, bytes) = match via {
        Via::Ram => (&mut stats.ram_hits, &mut stats.ram_bytes),
        Via::Disk => (&mut stats.disk_hits, &mut stats.disk_bytes),
        Via::Bucket => (&mut stats.bucket_reads, &mut stats.bucket_bytes),
    };
    *samples += 1;
    *bytes += len;
}

fn plan_digest(attach: &Attach, order: Digest) -> Digest {
    DigestBuilder::new("plan/1")
        .digest(&order)
        .number(u64::from(attach.world))
        .finish()
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
