//! The scheduler: from events to actions, without I/O.
//!
//! It walks the order ahead of each consumer ([`window`]), gives every planned read its memory ([`residents`], over the
//! [`Arena`]), and queues the loads that bring the bytes ([`loads`]). Consumers ask for batches or samples ([`requests`]); a
//! request is served when all of it is in memory. How far ahead to walk and what to keep is the [`Policy`](crate::policy::Policy)'s; how many loads may be in
//! flight is [`flow`](crate::flow)'s. Each event is handled in three moves: note what happened, plan on, issue what may fly.
//!
//! It serves any number of jobs ([`Reads`]): each joins with data sets, an order and ranks of its own, and what one has brought is there for all.
//!
//! Memory is reserved before bytes are asked for and never above the budget. A read that a consumer waits for comes first: for it, kept samples are
//! evicted and planned ones far ahead are put back, so a consumer that gives its leases back is always served.

mod ahead;
mod flights;
mod frequency;
#[cfg(test)]
mod hand;
mod index;
mod jump;
mod lanes;
mod loads;
mod memory;
mod patience;
mod peers;
mod race;
mod requests;
mod residents;
mod tiers;
mod waits;
mod window;

use crate::action::{Action, Event, Failure, Source};
use crate::arena::Arena;
use crate::blocks::Content;
use crate::error::Error;
use crate::flow::Demand;
use crate::job::{Reads, Set};
use crate::library::{self, Library};
use crate::order::Order;
use crate::policy::Retention;
use crate::settings::Settings;
use crate::split::Split;
use loads::Loads;
use peers::Group;
use requests::Requests;
use residents::{NONE, Residents, State};
use std::collections::{BTreeSet, VecDeque};
use tiers::Tier;
pub use tiers::{CHECKED_BYTES, ENTRY_BYTES, HEADER_BYTES, PAGE_BYTES, PAGED_BYTES, check_bytes, record_bytes};
use window::{Read, Reader, Windows};

/// Entries planned in one step at most: keeps a step below a millisecond; the next [`Event::Tick`] goes on.
const STEP_ENTRIES: u32 = 1024;

/// What is left of data sets that nobody reads is looked for this often: it goes through all that is in memory.
const SWEEP_NS: u64 = 1_000_000_000;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[must_use]
pub enum Next {
    /// There is more to plan: step again with [`Event::Tick`] as soon as the actions are under way.
    Soon,
    /// Nothing to do until something happens. While loads are in flight, a tick every 10 ms or so lets late ones be noticed.
    Wait,
}

/// Where the memory and the requests stand, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Gauges {
    /// Bytes reserved in the arena.
    pub used_bytes: u64,
    /// Of them, bytes of the RAM tier.
    pub kept_bytes: u64,
    /// Samples in the RAM tier.
    pub kept_samples: u64,
    /// Bytes delivered and not given back, the RAM tier's left out.
    pub leased_bytes: u64,
    /// Leases not given back.
    pub leases: u64,
    /// Reads planned ahead.
    pub reads_ahead: u64,
    /// Loads in flight to the bucket.
    pub in_flight: u64,
    /// The limit on them.
    pub in_flight_limit: u64,
    /// Requests not served yet.
    pub requests: u64,
    /// Bytes reserved in the disk tiers, all together.
    pub disk_bytes: u64,
    /// Blocks, and samples of blocks that are here in part, whose memory is reserved or filled.
    pub residents: u64,
    /// Mean time to first byte of the bucket, in seconds.
    pub bucket_latency_s: f64,
    /// Bytes per second of one request to the bucket.
    pub bucket_bytes_per_s: f64,
}

/// How another node does, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerState {
    /// Loads under way.
    pub in_flight: u64,
    /// Whether it is left alone for now, after failures.
    pub is_avoided: bool,
    /// Mean time to first byte, in seconds.
    pub latency_s: f64,
    /// Bytes per second of one answer.
    pub bytes_per_s: f64,
}

/// A read that a consumer waits for, for the watchdog.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Waiting {
    /// The request.
    pub request: u64,
    /// Since when.
    pub since_ns: u64,
    /// The first sample that is missing.
    pub sample: Option<u64>,
    /// What it waits for.
    pub cause: Cause,
}

/// What a missing sample waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A load that is in flight.
    Loading(Source),
    /// A load that waits for its turn.
    Queued,
    /// Memory: leases have to be given back first.
    Memory,
    /// The order of the next epoch.
    Order,
}

/// The policy's state machine.
pub struct Scheduler {
    settings: Settings,
    library: Library,
    windows: Windows,
    arena: Arena,
    residents: Residents,
    tiers: Vec<Tier>,
    loads: Loads,
    requests: Requests,
    ram_bytes: u64,
    /// What the carrier allows of what the jobs bring: [`Event::Budget`].
    most_bytes: u64,
    /// Memory of jobs that nobody reads for, until others take it over: what it holds may be read again.
    spare_bytes: u64,
    staging_bytes: u64,
    /// Of the memory of what is kept, what was needed for what was waited for, and when it was needed last.
    yielded: (u64, u64),
    /// Blocks that can't be had as a whole, for something is wrong with one of their samples.
    apart: BTreeSet<u64>,
    /// Bytes of neighbours that come along with a sample and pass through; 0 where samples are whole objects.
    group_bytes: u64,
    /// Reads that somebody waits for and that have no memory yet: the first in the order comes first, whoever asked first.
    wanted: BTreeSet<(u64, usize)>,
    /// Since when something is in memory of a data set that no job reads.
    unread_ns: Option<u64>,
    group: Group,
    now_ns: u64,
}

/// Mean bytes of a job's samples, by 64 of each data set, and bytes of its global batch, as far as this node reads it.
fn measure(reads: &Reads, split: &Split) -> (u64, u64) {
    let of = |set: &Set| (set.catalog.samples().max(1), library::mean_bytes(&*set.catalog));
    let all = reads.sets.iter().map(of);
    let (samples, bytes) = all.fold((0, 0), |(n, bytes), (samples, mean)| {
        (n + samples, bytes + u128::from(samples) * u128::from(mean))
    });
    let mean_bytes = (bytes / u128::from(samples.max(1))) as u64;
    let read = u64::from(split.global_batch()) * reads.ranks.len() as u64 / u64::from(split.ranks());
    (mean_bytes, mean_bytes.saturating_mul(read))
}

/// Why a read could not be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// No memory; something has to end first.
    Memory,
}

/// Who wants memory, and what may leave for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// Look-ahead: only what rests.
    Ahead,
    /// Another node waits: the same, and what this one lacks it has of nobody else but the bucket.
    Guest,
    /// This request waits for a read of its own: also kept samples, reads planned ahead, and what others wait for that comes later, if nothing else
    /// would ever end.
    Loose(u64),
    /// This request waits for a read of the plan: the same.
    Waited(u64),
    /// A request has the memory to itself: no neighbours come along, and nothing is held back for any.
    Alone,
}

impl Urgency {
    fn is_urgent(self) -> bool {
        !matches!(self, Urgency::Ahead | Urgency::Guest)
    }
}

impl Scheduler {
    /// A scheduler that no job has joined.
    ///
    /// # Errors
    /// [`Error`] when a policy is for the simulator only.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        if !settings.policy.runs_in_engine() {
            return Err(Error::SimulatorOnly {
                policy: format!("{:?}", settings.policy),
            });
        }
        Ok(Scheduler {
            staging_bytes: 0,
            group_bytes: 0,
            apart: BTreeSet::new(),
            ram_bytes: 0,
            most_bytes: u64::MAX,
            spare_bytes: 0,
            yielded: (0, 0),
            tiers: settings.tiers.iter().map(Tier::new).collect(),
            loads: Loads::new(&settings),
            windows: Windows::default(),
            arena: Arena::new(0),
            residents: Residents::new(settings.policy.retention() == Retention::Pinned),
            requests: Requests::default(),
            wanted: BTreeSet::new(),
            unread_ns: None,
            group: Group::default(),
            now_ns: 0,
            library: Library::default(),
            settings,
        })
    }

    /// A scheduler for one job, number 0.
    ///
    /// # Errors
    /// As [`Scheduler::new`] and [`Reads::check`].
    pub fn for_one(settings: Settings, reads: &Reads) -> Result<Self, Error> {
        let mut scheduler = Self::new(settings)?;
        scheduler.join(0, reads)?;
        Ok(scheduler)
    }

    /// A job joins: from now on events may name it. None of its ranks has started.
    fn join(&mut self, job: u32, reads: &Reads) -> Result<(), Error> {
        let split = self.check_join(job, reads)?;
        let (mean_bytes, batch_bytes) = measure(reads, &split);
        let cell_bytes = self.cells_with(reads, batch_bytes);
        let (mut sets, mut samples) = (Vec::new(), 0);
        for set in &reads.sets {
            let shelf = self.library.take_in(set, cell_bytes, self.settings.gap_bytes);
            sets.push((samples, shelf.first_sample));
            samples += shelf.blocks.samples();
        }
        self.windows.join(Reader {
            job,
            order: reads.order.clone(),
            split,
            deal: reads.deal.clone(),
            ranking: reads.ranking.clone(),
            dealt: VecDeque::new(),
            ranks: reads.ranks.clone(),
            places: Vec::new(),
            epochs: reads.epochs,
            known: Vec::new(),
            sets,
            samples,
            ram_bytes: reads.ram_bytes.unwrap_or(u64::MAX),
            mean_bytes,
            batch_bytes,
            largest: reads.largest,
            supplied: None,
            ahead: 0,
            chunk_left: 0,
            left: false,
        });
        self.take_over(reads.ram_bytes.unwrap_or(u64::MAX));
        if self.library.are_shared() {
            self.group_bytes = self.group_bytes.max(cell_bytes);
            self.residents.share();
        }
        self.find_homes();
        if reads.ranking.is_some() {
            self.keep_ours();
        }
        Ok(())
    }

    /// How the batches of a job are shared, if it may join.
    fn check_join(&self, job: u32, reads: &Reads) -> Result<Split, Error> {
        if self.windows.reader(job).is_some() {
            return Err(Error::JobExists { job });
        }
        self.windows.check_room(reads.ranks.len())?;
        reads.check()
    }

    /// The cells by which the data sets of a job are cut that joins now, those that are known already left out: for [`Set::blocks`].
    ///
    /// # Errors
    /// As [`Reads::check`], and when there is a job of this number, or no room for its ranks.
    pub fn cell_bytes(&self, job: u32, reads: &Reads) -> Result<u64, Error> {
        let split = self.check_join(job, reads)?;
        Ok(self.cells_with(reads, measure(reads, &split).1))
    }

    /// The same for a job that reads so many bytes per global batch.
    fn cells_with(&self, reads: &Reads, batch_bytes: u64) -> u64 {
        let bytes = reads.ram_bytes.unwrap_or(u64::MAX).max(self.spare_bytes);
        let brought = self.windows.ram_bytes().saturating_add(bytes);
        let ram_bytes = brought.min(self.settings.ram_bytes);
        let batches = self.windows.batch_bytes() + batch_bytes;
        self.settings
            .cell_bytes(self.settings.staging_bytes(ram_bytes, batches, u64::MAX))
    }

    /// A job that is read for has so much memory: first of what others have left.
    fn take_over(&mut self, bytes: u64) {
        self.spare_bytes = self.spare_bytes.saturating_sub(bytes);
        self.share_memory();
    }

    /// The memory is what all jobs bring, as far as the carrier allows it. That of a job that nobody reads for stays until another one takes it over.
    fn share_memory(&mut self) {
        let brought = self.brought_bytes();
        self.arena.grow(brought);
        self.ram_bytes = brought.min(self.most_bytes);
        let data = self.library.shelves().iter().map(|shelf| shelf.bytes).sum();
        self.staging_bytes = self.settings.staging_bytes(brought, self.windows.batch_bytes(), data);
        self.claim_memory();
    }

    /// What jobs bring, and have left.
    fn brought_bytes(&self) -> u64 {
        let brought = self.windows.ram_bytes().saturating_add(self.spare_bytes);
        brought.min(self.settings.ram_bytes)
    }

    /// Of several data sets each has a claim to as much of the RAM tier as its jobs bring, and as it has bytes: others leave room for what of it isn't there
    /// yet, so that no job is worse off than with memory of its own. Where it is known what of a data set this node keeps, its claim is to that.
    fn claim_memory(&mut self) {
        let brought = self.brought_bytes();
        let bytes = |node: u64| u128::from(self.library.shelf(node).bytes.max(1));
        let kept = u128::from(self.ram_bytes.saturating_sub(self.staging_bytes));
        // What a job brings for a data set that begins there.
        let share = |reader: &Reader, node: u64| {
            let sets = || reader.sets.iter().map(|&(_, node)| node);
            let all: u128 = sets().map(bytes).sum();
            let own: u128 = sets().filter(|&set| set == node).map(bytes).sum();
            u128::from(reader.ram_bytes.min(brought)) * own / all.max(1)
        };
        let readers = || self.windows.readers().iter().filter(|reader| !reader.left);
        let claims = self.library.shelves().iter().map(|shelf| {
            let node = shelf.first_sample;
            let shares: u128 = readers().map(|reader| share(reader, node)).sum();
            let most = shares * kept / u128::from(brought.max(1));
            let claim = || shelf.bytes.min(u64::try_from(most).unwrap_or(u64::MAX));
            let known = self.group.memory.get(&shelf.first_block).copied();
            (shelf.first_block, node, known.unwrap_or_else(claim))
        });
        self.residents.claims(claims);
    }

    /// The node's number of a job's sample.
    #[must_use]
    pub fn on_node(&self, job: u32, sample: u64) -> Option<u64> {
        let reader = self.windows.reader(job)?;
        (sample < reader.samples).then(|| reader.on_node(sample))
    }

    /// A job's number of a sample of the node, if it reads that.
    #[must_use]
    pub fn own(&self, job: u32, sample: u64) -> Option<u64> {
        self.windows.reader(job)?.own(sample)
    }

    /// Reads planned ahead for a job.
    #[must_use]
    pub fn reads_ahead(&self, job: u32) -> u64 {
        self.windows.reader(job).map_or(0, |reader| reader.ahead)
    }

    /// The data sets of all jobs, and how they are cut.
    #[must_use]
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// The order that a job reads in.
    #[must_use]
    pub fn order(&self, job: u32) -> Option<&Order> {
        self.windows.reader(job).map(|reader| &reader.order)
    }

    /// How a job's batches are shared.
    #[must_use]
    pub fn split(&self, job: u32) -> Option<&Split> {
        self.windows.reader(job).map(|reader| &reader.split)
    }

    /// Takes one event at `now_ns` (never earlier than the last) and appends what is to be carried out.
    pub fn step(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) -> Next {
        self.now_ns = self.now_ns.max(now_ns);
        if let Event::Start { job, .. }
        | Event::WantBatch { job, .. }
        | Event::WantReads { job, .. }
        | Event::WantSamples { job, .. } = event
            && let Some(reader) = self.windows.reader_mut(job)
            && std::mem::replace(&mut reader.left, false)
        {
            let bytes = reader.ram_bytes;
            self.take_over(bytes);
        }
        match event {
            Event::Start {
                job,
                rank,
                epoch,
                batch,
            } => self.start(job, rank, epoch, batch, actions),
            Event::WantBatch {
                request,
                job,
                rank,
                epoch,
                batch,
            } => self.want_batch(request, (job, rank), epoch, batch, actions),
            Event::WantReads {
                request,
                job,
                rank,
                reads,
            } => self.want_reads(request, (job, rank), &reads, actions),
            Event::WantSamples {
                request,
                job,
                rank,
                samples,
            } => self.want_samples(request, (job, rank), &samples, actions),
            Event::Leave { job, rank } => self.leave(job, rank, actions),
            Event::Serve {
                request,
                job,
                samples,
                steps,
            } => self.serve(request, job, &samples, steps, actions),
            Event::Awaited { request } => self.await_request(request, actions),
            Event::Withdraw { request } => self.withdraw(request),
            Event::Left { job } => {
                self.quit(job, actions);
                if let Some(reader) = self.windows.reader_mut(job)
                    && !std::mem::replace(&mut reader.left, true)
                {
                    self.spare_bytes = self.spare_bytes.saturating_add(reader.ram_bytes);
                    self.share_memory();
                }
            }
            // One that can't be served is told so by whoever asks: [`Reads::check`].
            Event::Join { job, reads } => drop(self.join(job, &reads)),
            Event::Part { job } => self.part(job, actions),
            Event::Release { handles } => {
                for handle in handles {
                    if let Some(id) = self.residents.of(handle)
                        && self.residents.unlease(id)
                    {
                        self.residents.let_go(id, &mut self.arena);
                    }
                }
            }
            Event::Completed(completion) => self.completed(completion, actions),
            Event::Found { tier, blocks } => self.found(tier, &blocks),
            Event::Budget { ram_bytes } => {
                self.most_bytes = ram_bytes;
                self.share_memory();
            }
            Event::Limit { requests } => {
                // What is queued flies, and nothing is planned: it may come before the first start, and from the steps of other jobs.
                self.loads.lanes.bucket.set_limit(requests);
                if !self.all_left() {
                    self.issue(actions);
                }
                return Next::Wait;
            }
            Event::Peers { me, members } => self.set_peers(me, members),
            // A list that doesn't fit the order leaves the epoch unknown: the window waits there and says so.
            Event::Epoch { job, epoch, samples } => drop(self.windows.supply(job, epoch, samples)),
            Event::Tick if self.all_left() => {}
            Event::Tick => {
                self.hedge(actions);
                self.lose_patience(actions);
                self.turn_away(actions);
            }
        }
        if self.unread_ns.is_some_and(|since| self.now_ns - since >= SWEEP_NS) {
            self.forget_unread(actions);
        }
        if self.arena.used_bytes() > self.ram_bytes {
            self.shrink();
        }
        if self.all_left() && !self.requests.have_guests() {
            return Next::Wait;
        }
        let next = self.plan(actions);
        self.issue(actions);
        next
    }

    /// Where memory and requests stand.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let bucket = &self.loads.lanes.bucket;
        Gauges {
            used_bytes: self.arena.used_bytes(),
            kept_bytes: self.residents.kept_bytes,
            kept_samples: self.residents.kept_samples,
            leased_bytes: self.residents.leased_bytes,
            leases: self.residents.leases,
            reads_ahead: self.windows.ahead,
            in_flight: u64::from(bucket.demand().in_flight),
            in_flight_limit: u64::from(bucket.limit()),
            requests: self.requests.len() as u64,
            disk_bytes: self.tiers.iter().map(Tier::used_bytes).sum(),
            residents: self.residents.count() as u64,
            bucket_latency_s: bucket.estimate.latency_s(),
            bucket_bytes_per_s: bucket.estimate.bytes_per_s(),
        }
    }

    /// How another node does, by its number; `None`: there is none with that number.
    #[must_use]
    pub fn peer(&self, number: u16) -> Option<PeerState> {
        let lane = self.loads.lanes.peer_at(number)?;
        Some(PeerState {
            in_flight: u64::from(lane.demand().in_flight),
            is_avoided: !lane.is_open(self.now_ns) || lane.is_on_trial(),
            latency_s: lane.estimate.latency_s(),
            bytes_per_s: lane.estimate.bytes_per_s(),
        })
    }

    /// Bytes that it can keep: what of memory doesn't pass through, and the disk tiers, where a record is a little more than its block.
    #[must_use]
    pub fn keeps_bytes(&self) -> u64 {
        let disks = self.settings.tiers.iter().map(|tier| tier.capacity_bytes / 16 * 15);
        let memory = self.ram_bytes.saturating_sub(self.staging_bytes);
        disks.fold(memory, u64::saturating_add)
    }

    /// What the job wants of its bucket: loads that wait for their turn, and loads in flight.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.loads.lanes.bucket.demand()
    }

    /// Nobody reads, of any job.
    fn all_left(&self) -> bool {
        self.windows.readers().iter().all(|reader| reader.left)
    }

    /// A rank begins somewhere: its open requests end, its reads before that batch are over. No other rank notices.
    fn start(&mut self, job: u32, rank: u32, epoch: u32, batch: u64, actions: &mut Vec<Action>) {
        let Some(place) = self.windows.place_of(job, rank) else {
            return;
        };
        self.cancel_requests(place, actions);
        let Some(step) = self.windows.reader_at(place).and_then(|it| it.step_of(epoch, batch)) else {
            return;
        };
        let window = self.windows.of(place);
        let within = self.windows.has_started(place) && (window.head()..=window.end()).contains(&step);
        if within && !window.is_over_from(step) {
            let skips = step > window.head();
            self.skip(place, step);
            self.windows.advance(place);
            self.windows.of_mut(place).newest = step;
            if skips {
                self.give_way(place, self.windows.head_line(place), actions);
            }
        } else {
            self.empty(place, actions);
            self.windows.begin(place, step);
        }
        if let Some(reader) = self.windows.reader_at_mut(place) {
            reader.chunk_left = 0;
        }
    }

    /// A rank reads no more: its requests end, and what was planned for it is given back.
    fn leave(&mut self, job: u32, rank: u32, actions: &mut Vec<Action>) {
        if let Some(place) = self.windows.place_of(job, rank) {
            self.cancel_requests(place, actions);
            self.empty(place, actions);
        }
    }

    /// All ranks of a job leave, and what waits for its turn for it alone never flies.
    fn quit(&mut self, job: u32, actions: &mut Vec<Action>) {
        let Some(reader) = self.windows.reader(job) else { return };
        for rank in reader.ranks.clone() {
            self.leave(job, rank, actions);
        }
    }

    /// A job is over, and its number may be used again. What it kept stays until its memory is needed, if others read it, too.
    fn part(&mut self, job: u32, actions: &mut Vec<Action>) {
        self.quit(job, actions);
        for request in self.requests.of_guests(|place| self.windows.job_at(place) == job) {
            self.refuse(request, None, Failure::Cancelled, actions);
        }
        self.call_off_unread(job, actions);
        let spare = self.windows.reader(job).filter(|reader| reader.left);
        let bytes = spare.map_or(0, |reader| reader.ram_bytes);
        self.windows.part(job);
        self.take_over(bytes);
        self.forget_unread(actions);
    }

    /// Data sets that no job reads any more leave, with all that is in memory of them: at once, or when what is under way has ended and consumers
    /// have given back what they hold.
    fn forget_unread(&mut self, actions: &mut Vec<Action>) {
        let unread = self.library.unread(|first| self.windows.is_read(first));
        self.unread_ns = None;
        if unread.is_empty() {
            return;
        }
        let is_unread = |content| unread.iter().any(|shelf| shelf.has(content));
        self.forget_queued(
            |pending| pending.parts.iter().any(|part| is_unread(part.content)),
            actions,
        );
        self.residents.forget(&mut self.arena, is_unread);
        for shelf in &unread {
            if self.residents.any(|content| shelf.has(content)) {
                self.unread_ns = Some(self.now_ns);
                continue;
            }
            let blocks = shelf.blocks_on_node();
            for tier in &mut self.tiers {
                blocks.clone().for_each(|block| tier.remove(block, shelf.len_of(block)));
            }
            self.apart.retain(|block| !blocks.contains(block));
            self.library.forget(shelf.name);
        }
    }

    /// Ends the open requests of a rank.
    fn cancel_requests(&mut self, place: usize, actions: &mut Vec<Action>) {
        for request in self.requests.of_place(place) {
            self.refuse(request, None, Failure::Cancelled, actions);
        }
    }

    /// Closes a rank's window.
    fn empty(&mut self, place: usize, actions: &mut Vec<Action>) {
        self.skip(place, u64::MAX);
        self.residents.forget_expected(&mut self.arena);
        self.windows.end(place);
        self.give_way(place, u64::MAX, actions);
    }

    /// A rank's reads before `end` are over. What is there of them rests: whoever starts again may want it.
    fn skip(&mut self, place: usize, end: u64) {
        let window = self.windows.of(place);
        for step in window.head()..window.end().min(end) {
            let line = self.windows.line_at(place, step);
            let count = self.windows.peek(line).map_or(0, |line| line.entries.len());
            (0..count).for_each(|entry| self.skip_read(line, entry));
        }
    }

    /// A read is over without having been delivered.
    fn skip_read(&mut self, line: u64, entry: usize) {
        let Some(it) = self.windows.peek(line).map(|line| line.entries[entry]) else {
            return;
        };
        self.windows.close(line, entry);
        if it.read == Read::Planned {
            self.residents.get_mut(it.resident).uses -= 1;
            self.residents.let_go(it.resident, &mut self.arena);
        }
    }

    /// One planned read less of a resident.
    fn unuse(&mut self, id: u32) {
        self.residents.get_mut(id).uses -= 1;
        self.residents.drop_if_idle(id, &mut self.arena);
    }

    fn found(&mut self, tier: u8, blocks: &[u64]) {
        let Some(held) = self.tiers.get_mut(usize::from(tier)) else {
            return;
        };
        for &block in blocks {
            if self.library.has_block(block) && !held.has(block) {
                let len = self.library.place_of(Content::block(block)).len;
                if held.admit(len) {
                    held.insert(block, len);
                }
            }
        }
    }

    /// Parts of the arena of at least `least` bytes that hold nothing now: what can be given back to the system.
    pub fn free_stretches(&self, least: u64) -> impl Iterator<Item = (u64, u64)> {
        self.arena.free_stretches(least)
    }

    /// The stay that has a sample, if it is in memory or on its way: its block's, or its own.
    fn resident_with(&self, sample: u64) -> Option<u32> {
        let whole = self.residents.find(Content::block(self.library.of(sample)));
        match self.library.are_shared() {
            true => whole.or_else(|| self.residents.find(Content::sample(sample))),
            false => whole,
        }
    }

    /// Whether nothing is loaded or written, or about to be: a read that waits for memory then waits for leases to come back, and for nothing else.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.loads.is_idle()
    }

    /// What a request waits for, oldest first; for the watchdog.
    #[must_use]
    pub fn waiting(&self) -> Vec<Waiting> {
        self.requests
            .lacking()
            .map(|(id, since_ns, reads)| self.explain(id, since_ns, reads))
            .collect()
    }

    fn explain(&self, request: u64, since_ns: u64, reads: impl Iterator<Item = (requests::Target, u64)>) -> Waiting {
        for (target, sample) in reads {
            let id = self.resident_of(target).unwrap_or(NONE);
            if id == NONE {
                return Waiting {
                    request,
                    since_ns,
                    sample: Some(sample),
                    cause: Cause::Memory,
                };
            }
            if self.residents.get(id).state != State::Ready {
                let cause = self
                    .loads
                    .in_flight_of(id, &self.residents)
                    .map_or(Cause::Queued, Cause::Loading);
                return Waiting {
                    request,
                    since_ns,
                    sample: Some(sample),
                    cause,
                };
            }
        }
        Waiting {
            request,
            since_ns,
            sample: None,
            cause: Cause::Order,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Ram,
    Tier(u8),
    No,
}
