//! A job: one plan, carried out.
//!
//! The job owns the scheduler and everything its actions touch. [`Job::step`] gives the scheduler an event and carries out what it orders: loads become
//! tasks on this thread's runtime (fetches) or on its blocking pool (disk), each ending with a completion that is the next event; deliveries and
//! refusals go to the connection that asked. Nothing here decides what to fetch or keep.
//!
//! All of it runs on one thread: there is no lock, and a step is never interrupted.

use crate::batches::Batches;
use crate::calls::{Attach, Stats};
use crate::connection::Connection;
use crate::dataset::{Dataset, IndexCatalog, trouble};
use crate::disk::{DiskTier, Entry, Refusal};
use crate::protocol::{Say, Sent, Trouble};
use crate::scatter::{Scatter, crc32c};
use crate::slots::Shared;
use foreload_plan::action::{Action, Command, Event, Failure, Handle, Load, Source, Via};
use foreload_plan::order::Order;
use foreload_plan::replay::Recorded;
use foreload_plan::scheduler::{Cause, Next};
use foreload_plan::settings::{Settings, TierSettings};
use foreload_plan::split::Split;
use foreload_plan::{Digest, DigestBuilder, Scheduler};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Steps kept for a report when something goes wrong.
const LOG_STEPS: usize = 512;
/// Late loads and stalls are looked for this often while anything is in flight.
const TICK: Duration = Duration::from_millis(10);
/// How far ahead of the RAM tier memory is taken from the system.
const POPULATE_BYTES: u64 = 32 << 20;
/// Samples looked up in the disk tiers in one go: about a tenth of a second.
const LOOK_AT_ONCE: u64 = 200_000;
/// Memory and credentials are looked after this often while the job is active.
const CARE: Duration = Duration::from_secs(5);
/// Below this much memory left on the machine, the RAM tier shrinks.
const SCARCE_BYTES: u64 = 256 << 20;
/// Loads remembered as the slowest.
const SLOWEST: usize = 10;

/// A disk tier that several jobs may share.
pub type SharedTier = Rc<RefCell<DiskTier>>;

struct State {
    plan: Recorded,
    wants: FxHashMap<u64, (Weak<Connection>, u64)>,
    next_want: u64,
    cancels: FxHashMap<u64, Rc<Notify>>,
    /// Bytes of large samples that have come, by stay.
    partial: FxHashMap<Handle, u64>,
    /// Checksums of what was fetched, by place in the scheduler's table.
    checksums: Vec<(u32, u32)>,
    troubles: FxHashMap<u64, Trouble>,
    stats: Stats,
    soon: bool,
    waiting_since: Option<Instant>,
    reported: FxHashMap<u64, Instant>,
    populated: u64,
    disk_trouble: Option<Instant>,
}

/// A running plan.
pub struct Job {
    /// Its number in the agent.
    pub id: u32,
    /// What it was attached with.
    pub attach: Attach,
    /// The data set.
    pub dataset: Rc<Dataset>,
    /// The cache arena.
    pub cache: Arc<Shared>,
    /// The batch arena.
    pub batches: RefCell<Batches>,
    /// Connections attached.
    pub clients: Cell<u64>,
    /// Since when nobody is attached.
    pub idle_since: Cell<Option<Instant>>,
    /// Samples found in the disk tiers at the start.
    pub found: Cell<u64>,
    tiers: Vec<SharedTier>,
    usable: Vec<u64>,
    state: RefCell<State>,
    begun: Instant,
    active: Notify,
    closed: Cell<bool>,
}

/// The plan's settings for an attachment.
fn settings(attach: &Attach, usable: &[u64]) -> Settings {
    Settings {
        policy: attach.policy,
        ram_bytes: attach.ram_bytes - attach.batch_bytes.min(attach.ram_bytes),
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
        epochs: attach.epochs,
        bucket: attach.bucket,
        ..Settings::default()
    }
}

/// A fresh scheduler for an attachment, over disk tiers that can hold `usable` bytes each.
///
/// # Errors
/// `invalid` when order, ranks and batch don't fit.
fn scheduler(attach: &Attach, usable: &[u64], dataset: &Dataset) -> Result<Scheduler, Trouble> {
    let invalid = |e: foreload_plan::Error| Trouble::new("invalid", e.to_string());
    let order = Order::new(&attach.order).map_err(invalid)?;
    let split = if attach.uneven {
        Split::weighted(&order, attach.world)
    } else {
        Split::new(&order, attach.world)
    }
    .map_err(invalid)?;
    Scheduler::new(
        settings(attach, usable),
        Arc::new(IndexCatalog(dataset.index.clone())),
        order,
        split,
        attach.ranks.clone(),
    )
    .map_err(invalid)
}

impl Job {
    /// Starts a job: makes its arenas, looks into its disk tiers.
    ///
    /// # Errors
    /// `invalid` when the plan doesn't fit, `no-memory` when a sample doesn't fit the budget or the system has none.
    pub fn start(
        id: u32,
        attach: Attach,
        dataset: Rc<Dataset>,
        tiers: Vec<SharedTier>,
        record: bool,
    ) -> Result<Rc<Self>, Trouble> {
        let usable: Vec<u64> = tiers.iter().map(|tier| tier.borrow().usable_bytes()).collect();
        let settings = settings(&attach, &usable);
        let capacity = if record { None } else { Some(LOG_STEPS) };
        check_memory(&attach, &dataset, settings.ram_bytes)?;
        let plan = Recorded::new(scheduler(&attach, &usable, &dataset)?, capacity);
        let memory =
            |e: std::io::Error| Trouble::new("no-memory", format!("making arenas of {} bytes: {e}", attach.ram_bytes));
        let cache = Arc::new(Shared::new("foreload-cache", settings.ram_bytes, true).map_err(memory)?);
        let batches = RefCell::new(Batches::new(attach.batch_bytes).map_err(memory)?);
        let state = State {
            plan,
            wants: FxHashMap::default(),
            next_want: 1,
            cancels: FxHashMap::default(),
            partial: FxHashMap::default(),
            checksums: Vec::new(),
            troubles: FxHashMap::default(),
            stats: Stats::default(),
            soon: false,
            waiting_since: None,
            reported: FxHashMap::default(),
            populated: 0,
            disk_trouble: None,
        };
        let job = Rc::new(Job {
            id,
            attach,
            dataset,
            cache,
            batches,
            clients: Cell::new(0),
            idle_since: Cell::new(None),
            found: Cell::new(0),
            tiers,
            usable,
            state: RefCell::new(state),
            begun: Instant::now(),
            active: Notify::new(),
            closed: Cell::new(false),
        });
        let seen = job.look_into_tiers(0);
        if seen < job.dataset.index.len() && job.tiers.iter().any(|tier| !tier.borrow().is_empty()) {
            tokio::task::spawn_local(Rc::clone(&job).look_on(seen));
        }
        job.populate_staging();
        tokio::task::spawn_local(Rc::clone(&job).watch());
        Ok(job)
    }

    /// Tells the plan what the disk tiers hold of the samples from `first` on, some hundred thousand of them; returns the next one to look at.
    fn look_into_tiers(self: &Rc<Self>, first: u64) -> u64 {
        let index = &self.dataset.index;
        let end = (first + LOOK_AT_ONCE).min(index.len());
        let mut found = vec![Vec::new(); self.tiers.len()];
        if self.tiers.iter().any(|tier| !tier.borrow().is_empty()) {
            for sample in first..end {
                let Ok(key) = index.sample_key(sample) else { continue };
                if let Some(number) = self.tiers.iter().position(|tier| tier.borrow().contains(&key)) {
                    self.tiers[number].borrow_mut().protect(u64::from(self.id), [key]);
                    found[number].push(sample);
                }
            }
        }
        for (number, samples) in found.into_iter().enumerate().filter(|(_, samples)| !samples.is_empty()) {
            self.found.set(self.found.get() + samples.len() as u64);
            self.step(Event::Found {
                tier: number as u8,
                samples,
            });
        }
        end
    }

    /// Goes on looking while the job runs already: a large data set must not delay the first batch.
    async fn look_on(self: Rc<Self>, mut next: u64) {
        while next < self.dataset.index.len() && !self.closed.get() {
            tokio::task::yield_now().await;
            next = self.look_into_tiers(next);
        }
    }

    /// The digest that ranks compare before their first batch: everything that decides who reads what.
    #[must_use]
    pub fn plan_digest(&self) -> Digest {
        DigestBuilder::new("plan/1")
            .digest(&self.attach.order.digest())
            .number(u64::from(self.attach.world))
            .finish()
    }

    /// Nanoseconds since the job began: the plan's clock.
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Gives the plan an event and carries out what it orders.
    pub fn step(self: &Rc<Self>, event: Event) {
        let mut actions = Vec::new();
        let next = self.state.borrow_mut().plan.step(self.now_ns(), event, &mut actions);
        let mut keeps = Vec::new();
        for action in actions {
            match action.command() {
                Command::Keep { .. } => keeps.push(action),
                _ => self.carry_out(action),
            }
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
        self.step(event(request));
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
        for request in requests {
            self.state.borrow_mut().wants.remove(&request);
            self.step(Event::Withdraw { request });
        }
    }

    fn carry_out(self: &Rc<Self>, action: Action) {
        match action.command() {
            Command::Load(load) => match load.source {
                Source::Bucket => {
                    let cancel = Rc::new(Notify::new());
                    let mut state = self.state.borrow_mut();
                    state.stats.requests += 1;
                    state.stats.requested_bytes += load.len;
                    state.stats.hedges += u64::from(load.hedge);
                    state.cancels.insert(action.id(), Rc::clone(&cancel));
                    drop(state);
                    tokio::task::spawn_local(Rc::clone(self).fetch(action, cancel));
                }
                Source::Disk(tier) => self.read_from_disk(tier, action),
            },
            Command::Forget { tier, sample } => {
                if let (Ok(key), Some(tier)) = (
                    self.dataset.index.sample_key(*sample),
                    self.tiers.get(usize::from(*tier)),
                ) {
                    tier.borrow_mut().forget(&key);
                }
            }
            Command::Deliver { request, items, copy } => {
                let index = &self.dataset.index;
                let mut state = self.state.borrow_mut();
                let sent: Vec<Sent> = items
                    .iter()
                    .map(|item| {
                        let label = index.label(item.sample).unwrap_or(i64::MIN);
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
                let trouble = sample.and_then(|sample| state.troubles.remove(&sample));
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

    /// Releases from inside a step: the next event.
    fn release_later(self: &Rc<Self>, handles: Vec<Handle>) {
        let job = Rc::clone(self);
        tokio::task::spawn_local(async move { job.step(Event::Release { handles }) });
    }

    fn explain_refusal(&self, sample: Option<u64>, failure: Failure) -> Trouble {
        let name = sample.map_or_else(|| "the request".to_owned(), |sample| self.name(sample));
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

    /// A sample, as messages name it.
    fn name(&self, sample: u64) -> String {
        let object = self
            .dataset
            .index
            .sample(sample)
            .and_then(|found| Ok((self.dataset.index.object(found.object)?, found.range())));
        match object {
            Ok((object, range)) => format!(
                "sample {sample} ({} [bytes {}..{}])",
                self.dataset.source.url_of(&object.key),
                range.start,
                range.end
            ),
            Err(_) => format!("sample {sample}"),
        }
    }

    async fn fetch(self: Rc<Self>, action: Action, cancel: Rc<Notify>) {
        let id = action.id();
        let Command::Load(load) = action.command() else { return };
        let deadline = self.begun + Duration::from_nanos(load.deadline_ns);
        let begun = Instant::now();
        let outcome = match self.dataset.index.object(load.object) {
            Err(error) => Err(trouble(&error)),
            Ok(object) => {
                let mut sink = Scatter::new(Arc::clone(&self.cache), load);
                let range = load.offset..load.offset + load.len;
                let fetched = tokio::select! {
                    biased;
                    fetched = self.dataset.source.fetch(&object.key, range, object.etag.as_deref(), deadline, &mut sink) => Some(fetched),
                    () = cancel.notified() => None,
                };
                match fetched {
                    None => Err(Trouble::new("cancelled", "")),
                    Some(Err(error)) => Err(trouble(&error)),
                    Some(Ok(fetched)) => {
                        self.note_speed(&object.key, begun.elapsed());
                        self.check(load, &sink).map(|()| fetched)
                    }
                }
            }
        };
        let completion = match outcome {
            Ok(fetched) => {
                let mut state = self.state.borrow_mut();
                state.stats.retries += u64::from(fetched.attempts.saturating_sub(1));
                state.stats.hedges_won += u64::from(load.hedge);
                let (first, all) = (fetched.first_byte.as_nanos() as u64, fetched.transfer.as_nanos() as u64);
                if fetched.attempts > 1 {
                    action.done_throttled(first, all)
                } else {
                    action.done(first, all)
                }
            }
            Err(trouble) => {
                let failure = match trouble.kind.as_str() {
                    "cancelled" => Failure::Cancelled,
                    "unavailable" | "timeout" => Failure::Unavailable,
                    "corrupt" => Failure::Corrupt,
                    _ => Failure::Final,
                };
                if failure != Failure::Cancelled {
                    let mut state = self.state.borrow_mut();
                    state.stats.failures += 1;
                    for piece in &load.pieces {
                        state.troubles.insert(piece.sample, trouble.clone());
                    }
                }
                action.failed(failure)
            }
        };
        self.state.borrow_mut().cancels.remove(&id);
        self.step(Event::Completed(completion));
    }

    /// Compares what came with the index' checksums, and remembers them for the disk tier.
    fn check(&self, load: &Load, sink: &Scatter) -> Result<(), Trouble> {
        let crcs = sink
            .checksums()
            .ok_or_else(|| Trouble::new("bug", "a fetch ended before all its pieces came"))?;
        for (piece, &crc) in load.pieces.iter().zip(crcs) {
            let mut crc = crc;
            if piece.len < piece.sample_len {
                let mut state = self.state.borrow_mut();
                let come = state.partial.entry(piece.handle).or_insert(0);
                *come += piece.len;
                if *come < piece.sample_len {
                    continue;
                }
                state.partial.remove(&piece.handle);
                let whole = self
                    .cache
                    .map()
                    .bytes(piece.slot_offset - piece.sample_offset, piece.sample_len);
                crc = whole.map_or(0, crc32c);
            }
            if let Some(known) = self.dataset.index.crc32c(piece.sample)
                && known != crc
            {
                let name = self.name(piece.sample);
                return Err(Trouble::new(
                    "corrupt",
                    format!(
                        "{name}: its checksum is {crc:08x}, the index says {known:08x} (the object is damaged, or was replaced: run `foreload index --update --checksum`)"
                    ),
                ));
            }
            let mut state = self.state.borrow_mut();
            let at = piece.handle.index as usize;
            if state.checksums.len() <= at {
                state.checksums.resize(at + 1, (u32::MAX, 0));
            }
            state.checksums[at] = (piece.handle.generation, crc);
        }
        Ok(())
    }

    fn note_speed(&self, key: &str, took: Duration) {
        let seconds = took.as_secs_f64();
        let slowest = &mut self.state.borrow_mut().stats.slowest;
        if slowest.len() < SLOWEST || slowest.last().is_some_and(|(_, least)| seconds > *least) {
            let at = slowest.partition_point(|(_, other)| *other >= seconds);
            slowest.insert(at, (self.dataset.source.url_of(key), seconds));
            slowest.truncate(SLOWEST);
        }
    }

    fn read_from_disk(self: &Rc<Self>, tier: u8, action: Action) {
        let Command::Load(load) = action.command() else { return };
        let entries: Vec<Option<Entry>> = load
            .pieces
            .iter()
            .map(|piece| {
                let key = self.dataset.index.sample_key(piece.sample).ok()?;
                self.tiers
                    .get(usize::from(tier))?
                    .borrow()
                    .find(&key)
                    .filter(|entry| entry.len() == piece.sample_len)
            })
            .collect();
        let (cache, pieces, job, begun) = (
            Arc::clone(&self.cache),
            load.pieces.clone(),
            Rc::clone(self),
            Instant::now(),
        );
        tokio::task::spawn_local(async move {
            let read = tokio::task::spawn_blocking(move || {
                pieces.iter().zip(entries).all(|(piece, entry)| {
                    match (entry, cache.map().fill(piece.slot_offset, piece.len)) {
                        (Some(entry), Some(slot)) => entry.read_into(slot).is_ok(),
                        _ => false,
                    }
                })
            });
            let ok = read.await.unwrap_or(false);
            let took = begun.elapsed().as_nanos() as u64;
            let completion = if ok {
                action.done(took / 8, took)
            } else {
                if let Command::Load(load) = action.command() {
                    job.quarantine(tier, load);
                }
                action.failed(Failure::Corrupt)
            };
            job.step(Event::Completed(completion));
        });
    }

    fn quarantine(&self, tier: u8, load: &Load) {
        let mut state = self.state.borrow_mut();
        for piece in &load.pieces {
            if let (Ok(key), Some(tier)) = (
                self.dataset.index.sample_key(piece.sample),
                self.tiers.get(usize::from(tier)),
            ) {
                let mut tier = tier.borrow_mut();
                if let Some(entry) = tier.find(&key) {
                    tier.quarantine(&entry);
                }
            }
            state.stats.quarantined += 1;
        }
    }

    /// Writes samples to a disk tier: one task for all that a step ordered.
    fn write_to_disk(self: &Rc<Self>, actions: Vec<Action>) {
        let mut work = Vec::with_capacity(actions.len());
        for action in actions {
            let Command::Keep { tier, sample, slot } = action.command() else {
                continue;
            };
            let (number, sample, slot) = (*tier, *sample, *slot);
            let place = self.dataset.index.sample_key(sample).ok().and_then(|key| {
                let tier = self.tiers.get(usize::from(number))?;
                Some(tier.borrow_mut().reserve(u64::from(self.id), key, slot.len))
            });
            match place {
                Some(Ok(place)) => {
                    let crc = self.checksum_of(sample, slot.offset);
                    work.push((action, number, slot, place, crc));
                }
                refused => {
                    // A tier that is full or failing for a moment refuses for a moment; the plan offers it the next sample all the same.
                    let stays = matches!(refused, Some(Err(Refusal::Exists)));
                    self.end_later(if stays {
                        action.done(0, 0)
                    } else {
                        action.failed(Failure::Final)
                    });
                }
            }
        }
        let (job, cache) = (Rc::clone(self), Arc::clone(&self.cache));
        tokio::task::spawn_local(async move {
            let written = tokio::task::spawn_blocking(move || {
                let write = |(action, tier, slot, place, crc): (
                    Action,
                    u8,
                    foreload_plan::arena::Slot,
                    crate::disk::Reservation,
                    Option<u32>,
                )| {
                    let bytes = cache.map().bytes(slot.offset, slot.len).unwrap_or_default();
                    (action, tier, place.write(bytes, crc))
                };
                work.into_iter().map(write).collect::<Vec<_>>()
            });
            let Ok(written) = written.await else { return };
            for (action, number, result) in written {
                let Some(tier) = job.tiers.get(usize::from(number)) else {
                    continue;
                };
                let completion = match result {
                    Ok(written) => {
                        tier.borrow_mut().commit(written);
                        job.state.borrow_mut().stats.kept_samples += 1;
                        action.done(0, 0)
                    }
                    Err(failed) => {
                        job.note_disk_trouble(number, &failed.error);
                        tier.borrow_mut().failed(failed);
                        action.failed(Failure::Final)
                    }
                };
                job.step(Event::Completed(completion));
            }
            job.do_chores();
        });
    }

    /// Lets the disk tiers seal and unlink segments, off this thread.
    fn do_chores(&self) {
        for tier in &self.tiers {
            let mut chores = Vec::new();
            while let Some(chore) = tier.borrow_mut().chore() {
                chores.push(chore);
            }
            if !chores.is_empty() {
                tokio::task::spawn_blocking(move || chores.into_iter().for_each(crate::disk::Chore::run));
            }
        }
    }

    /// Says once a minute that a disk tier doesn't take what it should; training goes on without.
    fn note_disk_trouble(&self, tier: u8, error: &std::io::Error) {
        let mut state = self.state.borrow_mut();
        if state
            .disk_trouble
            .is_some_and(|at| at.elapsed() < Duration::from_secs(60))
        {
            return;
        }
        state.disk_trouble = Some(Instant::now());
        let directory = self
            .attach
            .disks
            .get(usize::from(tier))
            .map_or_else(String::new, |disk| disk.directory.display().to_string());
        let message = format!(
            "writing to the disk cache at {directory}: {error}; samples that don't fit are fetched again, training goes on"
        );
        eprintln!("foreload-agent: job {}: {message}", self.id);
        let body = serde_json::to_string(&Trouble::new("unavailable", message)).unwrap_or_default();
        for (who, _) in state.wants.values() {
            if let Some(who) = who.upgrade() {
                who.say(&Say::Notice { body: body.clone() });
            }
        }
    }

    fn end_later(self: &Rc<Self>, completion: foreload_plan::action::Completion) {
        let job = Rc::clone(self);
        tokio::task::spawn_local(async move { job.step(Event::Completed(completion)) });
    }

    /// The checksum recorded when the sample was fetched into this stay, if it was fetched whole.
    fn checksum_of(&self, sample: u64, _offset: u64) -> Option<u32> {
        let state = self.state.borrow();
        let handle = state.plan.scheduler().handle_of(sample)?;
        state
            .checksums
            .get(handle.index as usize)
            .filter(|(generation, _)| *generation == handle.generation)
            .map(|(_, crc)| *crc)
    }

    /// Ticks while anything is in flight, and reports what takes too long.
    async fn watch(self: Rc<Self>) {
        let limit = Duration::from_secs_f64(self.attach.stall_s.max(0.1));
        let mut cared = Instant::now();
        let mut log = MetricsLog::open(self.attach.metrics_log.as_deref());
        while !self.closed.get() {
            if cared.elapsed() > CARE {
                cared = Instant::now();
                self.look_after().await;
            }
            if let Some(log) = &mut log {
                log.write(self.id, || self.stats());
            }
            let gauges = self.state.borrow().plan.scheduler().gauges();
            if gauges.in_flight == 0 && gauges.requests == 0 {
                self.active.notified().await;
                // Let a burst of steps go by: each of them would wake us.
                tokio::time::sleep(TICK).await;
                continue;
            }
            tokio::time::sleep(if gauges.in_flight > 0 { TICK } else { TICK * 10 }).await;
            self.step(Event::Tick);
            self.report_stalls(limit);
        }
    }

    /// Keeps credentials fresh, and lets memory go when the machine runs short of it.
    async fn look_after(self: &Rc<Self>) {
        // What goes wrong here is told by the fetch that needs them.
        let _ = self.dataset.source.warm_credentials().await;
        let Some(left) = crate::memory::available_bytes().filter(|&left| left < SCARCE_BYTES) else {
            return;
        };
        let gauges = self.state.borrow().plan.scheduler().gauges();
        let less = gauges
            .used_bytes
            .saturating_sub(SCARCE_BYTES - left)
            .max(gauges.used_bytes / 2);
        eprintln!(
            "foreload-agent: job {}: {left} bytes of memory are left; the RAM tier shrinks to {less} bytes",
            self.id
        );
        self.step(Event::Budget { ram_bytes: less });
        let state = self.state.borrow();
        state
            .plan
            .scheduler()
            .free_blocks(1 << 16)
            .for_each(|(offset, len)| self.cache.give_back(offset, len));
    }

    fn report_stalls(&self, limit: Duration) {
        let mut state = self.state.borrow_mut();
        let now_ns = self.now_ns();
        let late: Vec<_> = state
            .plan
            .scheduler()
            .waiting()
            .into_iter()
            .filter(|w| now_ns.saturating_sub(w.since_ns) > limit.as_nanos() as u64)
            .collect();
        state
            .reported
            .retain(|request, _| late.iter().any(|w| w.request == *request));
        for waiting in late {
            let again = state
                .reported
                .get(&waiting.request)
                .is_none_or(|at| at.elapsed() > limit);
            if !again {
                continue;
            }
            state.reported.insert(waiting.request, Instant::now());
            let seconds = now_ns.saturating_sub(waiting.since_ns) as f64 / 1e9;
            let what = waiting
                .sample
                .map_or_else(|| "its samples".to_owned(), |sample| self.name(sample));
            let cause = match waiting.cause {
                Cause::Loading(Source::Bucket) => "a GET to the bucket is under way".to_owned(),
                Cause::Loading(Source::Disk(tier)) => format!("a read from disk tier {tier} is under way"),
                Cause::Queued => "its GET waits for its turn".to_owned(),
                Cause::Memory => {
                    let gauges = state.plan.scheduler().gauges();
                    format!(
                        "no memory: {} bytes are leased to the consumer and not given back",
                        gauges.leased_bytes
                    )
                }
                Cause::Order => "the order of the next epoch is not known".to_owned(),
            };
            let message = format!("waiting for {seconds:.1} s for {what}: {cause}");
            eprintln!("foreload-agent: job {}: {message}", self.id);
            if let Some(who) = state.wants.get(&waiting.request).and_then(|(who, _)| who.upgrade()) {
                let body = serde_json::to_string(&Trouble {
                    sample: waiting.sample,
                    ..Trouble::new("stalled", message)
                })
                .unwrap_or_default();
                who.say(&Say::Notice { body });
            }
        }
    }

    fn note_waiting(&self) {
        let mut state = self.state.borrow_mut();
        let waits = !state.wants.is_empty();
        match (waits, state.waiting_since) {
            (true, None) => state.waiting_since = Some(Instant::now()),
            (false, Some(since)) => {
                state.stats.waited_s += since.elapsed().as_secs_f64();
                state.waiting_since = None;
            }
            _ => {}
        }
        let kept = state.plan.scheduler().gauges().kept_bytes;
        if kept + POPULATE_BYTES > state.populated && state.populated < self.cache.map().len() {
            let (from, cache) = (state.populated, Arc::clone(&self.cache));
            let len = (2 * POPULATE_BYTES).min(cache.map().len() - from);
            state.populated += len;
            // A kernel that can't do it leaves the pages to their first touch.
            tokio::task::spawn_blocking(move || drop(cache.map().populate(from, len)));
        }
    }

    /// Takes the memory of staging from the system in the background: fresh pages cost more than the copies into them.
    fn populate_staging(&self) {
        let (cache, len) = (Arc::clone(&self.cache), self.cache.map().len());
        let staging = settings(&self.attach, &self.usable).staging_bytes(0).min(len);
        tokio::task::spawn_blocking(move || {
            let mut end = len;
            while end > len - staging {
                let from = end.saturating_sub(4 << 20).max(len - staging) / 4096 * 4096;
                if cache.map().populate(from, end - from).is_err() || from == 0 {
                    return;
                }
                end = from;
            }
        });
    }

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.state.borrow();
        let mut stats = state.stats.clone().with(&state.plan.scheduler().gauges());
        stats.waited_s += state.waiting_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        stats
    }

    /// Proves that the job obeyed its plan so far; only with everything recorded.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn replay(&self) -> Result<(), String> {
        let fresh = scheduler(&self.attach, &self.usable, &self.dataset).map_err(|e| e.message)?;
        foreload_plan::replay::replay(fresh, self.state.borrow().plan.log()).map_err(|e| e.to_string())
    }

    /// Ends the job's own task; its loads end with it.
    pub fn close(&self) {
        for tier in &self.tiers {
            tier.borrow_mut().unprotect(u64::from(self.id));
        }
        self.closed.set(true);
        self.active.notify_one();
    }
}

/// One line of JSON per second of activity.
struct MetricsLog {
    file: std::fs::File,
    last: Instant,
}

impl MetricsLog {
    fn open(path: Option<&std::path::Path>) -> Option<Self> {
        let path = path?;
        match std::fs::OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Some(MetricsLog {
                file,
                last: Instant::now(),
            }),
            Err(error) => {
                eprintln!("foreload-agent: no metrics log at {}: {error}", path.display());
                None
            }
        }
    }

    fn write(&mut self, job: u32, stats: impl FnOnce() -> Stats) {
        if self.last.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.last = Instant::now();
        let unix_s = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0.0, |t| t.as_secs_f64());
        let line = serde_json::json!({ "unix_s": unix_s, "job": job, "stats": stats() });
        // A full disk costs a line of the log, never training.
        let _ = std::io::Write::write_all(&mut self.file, format!("{line}\n").as_bytes());
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

/// A sample that can't fit is an error at the start, not in the middle of an epoch.
fn check_memory(attach: &Attach, dataset: &Dataset, cache_bytes: u64) -> Result<(), Trouble> {
    let index = &dataset.index;
    let largest = (0..index.len()).max_by_key(|&sample| index.length(sample)).unwrap_or(0);
    let len = index.length(largest);
    if len > cache_bytes {
        let message = format!(
            "sample {largest} has {len} bytes and doesn't fit the memory budget of {} bytes ({cache_bytes} without the batch arena); give cache=Cache(ram=...) more",
            attach.ram_bytes
        );
        return Err(Trouble {
            sample: Some(largest),
            ..Trouble::new("no-memory", message)
        });
    }
    Ok(())
}
