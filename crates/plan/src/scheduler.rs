//! The scheduler: from events to actions, without I/O.
//!
//! It walks the order ahead of each consumer ([`window`]), gives every planned read its memory ([`residents`], over the
//! [`Arena`]), and queues the loads that bring the bytes ([`loads`]). Consumers ask for batches or samples ([`requests`]); a
//! request is served when all of it is in memory. How far ahead to walk and what to keep is the [`Policy`](crate::policy::Policy)'s; how many loads may be in
//! flight is [`flow`](crate::flow)'s. Each event is handled in three moves: note what happened, plan on, issue what may fly.
//!
//! Memory is reserved before bytes are asked for and never above the budget. A read that a consumer waits for comes first: for it, kept samples are
//! evicted and planned ones far ahead are put back, so a consumer that gives its leases back is always served.

mod ahead;
mod flights;
mod index;
mod lanes;
mod loads;
mod memory;
mod race;
mod requests;
mod residents;
mod tiers;
mod window;

use crate::action::{Action, Event, Failure, Source};
use crate::arena::Arena;
use crate::blocks::{Blocks, Content};
use crate::catalog::Catalog;
use crate::error::Error;
use crate::flow::Demand;
use crate::order::Order;
use crate::policy::Retention;
use crate::settings::Settings;
use crate::split::Split;
use loads::Loads;
use requests::Requests;
use residents::{NONE, Residents, State};
use std::collections::BTreeSet;
use std::sync::Arc;
use tiers::Tier;
pub use tiers::{CHECKED_BYTES, RECORD_BYTES, check_bytes, record_bytes};
use window::{Read, Windows};

/// Entries planned in one step at most: keeps a step below a millisecond; the next [`Event::Tick`] goes on.
const STEP_ENTRIES: u32 = 1024;

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
    blocks: Arc<Blocks>,
    windows: Windows,
    arena: Arena,
    residents: Residents,
    tiers: Vec<Tier>,
    loads: Loads,
    requests: Requests,
    ram_bytes: u64,
    staging_bytes: u64,
    /// Blocks that can't be had as a whole, for something is wrong with one of their samples.
    apart: BTreeSet<u64>,
    /// Bytes of neighbours that come along with a sample and pass through; 0 where samples are whole objects.
    group_bytes: u64,
    /// Reads that somebody waits for and that have no memory yet: the first in the order comes first, whoever asked first.
    wanted: BTreeSet<(u64, usize)>,
    chunk_left: u32,
    now_ns: u64,
    /// Nobody reads: see [`Event::Left`].
    left: bool,
}

/// Why a read could not be planned.
enum Blocked {
    /// No memory; something has to end first.
    Memory,
}

/// Who wants memory, and what may leave for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// Look-ahead: only what rests.
    Ahead,
    /// Somebody waits for a read of its own: also kept samples, and reads planned ahead.
    Loose,
    /// This request waits for a read of the plan: also what others wait for that comes later, if nothing else would ever end.
    Waited(u64),
    /// A request has the memory to itself: no neighbours come along, and nothing is held back for any.
    Alone,
}

impl Urgency {
    fn is_urgent(self) -> bool {
        self != Urgency::Ahead
    }
}

impl Scheduler {
    /// A scheduler for the `ranks` of this node, none of which has started.
    ///
    /// # Errors
    /// [`Error`] when a rank doesn't exist, or when a policy is for the simulator only.
    pub fn new(
        settings: Settings,
        catalog: Arc<dyn Catalog>,
        order: Order,
        split: Split,
        ranks: Vec<u32>,
    ) -> Result<Self, Error> {
        if !settings.policy.runs_in_engine() {
            return Err(Error::SimulatorOnly {
                policy: format!("{:?}", settings.policy),
            });
        }
        let samples = catalog.samples().max(1);
        let mean = (0..64)
            .map(|i| catalog.place(i * samples / 64 % samples).len)
            .sum::<u64>()
            / 64;
        let batch_bytes =
            mean.saturating_mul(u64::from(split.global_batch()) * ranks.len() as u64 / u64::from(split.ranks()));
        let arena = Arena::new(settings.ram_bytes);
        // The batch in use, the one waited for and the one after it: with less, kept samples would have to leave for them.
        let staging_bytes = settings
            .staging_bytes(batch_bytes)
            .max((3 * batch_bytes).min(settings.ram_bytes / 2));
        // What the papers' caches hold is samples.
        let pins = settings.policy.retention() == Retention::Pinned;
        let cell_bytes = if pins { cell_bytes(&settings, staging_bytes) } else { 0 };
        let blocks = Arc::new(Blocks::new(catalog, cell_bytes, settings.gap_bytes));
        Ok(Scheduler {
            staging_bytes,
            group_bytes: if blocks.are_shared() { cell_bytes } else { 0 },
            apart: BTreeSet::new(),
            ram_bytes: arena.capacity_bytes(),
            tiers: settings.tiers.iter().map(Tier::new).collect(),
            loads: Loads::new(&settings),
            windows: Windows::new(order, split, ranks, settings.epochs)?,
            arena,
            residents: Residents::new(pins, blocks.are_shared()),
            requests: Requests::default(),
            wanted: BTreeSet::new(),
            chunk_left: 0,
            now_ns: 0,
            left: false,
            settings,
            blocks,
        })
    }

    /// What memory and disk tiers hold.
    #[must_use]
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// The settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The order it walks.
    #[must_use]
    pub fn order(&self) -> &Order {
        self.windows.order()
    }

    /// How batches are shared.
    #[must_use]
    pub fn split(&self) -> &Split {
        self.windows.split()
    }

    /// Takes one event at `now_ns` (never earlier than the last) and appends what is to be carried out.
    pub fn step(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) -> Next {
        self.now_ns = self.now_ns.max(now_ns);
        if let Event::Start { .. } | Event::WantBatch { .. } | Event::WantReads { .. } | Event::WantSamples { .. } =
            event
        {
            self.left = false;
        }
        match event {
            Event::Start { rank, epoch, batch } => self.start(rank, epoch, batch, actions),
            Event::WantBatch {
                request,
                rank,
                epoch,
                batch,
            } => self.want_batch(request, rank, epoch, batch, actions),
            Event::WantReads { request, rank, reads } => self.want_reads(request, rank, &reads, actions),
            Event::WantSamples { request, rank, samples } => self.want_samples(request, rank, &samples, actions),
            Event::Leave { rank } => self.leave(rank, actions),
            Event::Withdraw { request } => self.withdraw(request),
            Event::Left => self.left = true,
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
            Event::TierClosed { tier } => {
                if let Some(tier) = self.tiers.get_mut(usize::from(tier)) {
                    tier.close();
                }
            }
            Event::Budget { ram_bytes } => self.ram_bytes = ram_bytes.min(self.arena.capacity_bytes()),
            Event::Limit { requests } => {
                // What is queued flies, and nothing is planned: it may come before the first start, and from the steps of other jobs.
                self.loads.lanes.bucket.set_limit(requests);
                if !self.left {
                    self.issue(actions);
                }
                return Next::Wait;
            }
            // A list that doesn't fit the order leaves the epoch unknown: the window waits there and says so.
            Event::Epoch { epoch, samples } => drop(self.windows.supply(epoch, &samples)),
            Event::Tick if self.left => {}
            Event::Tick => self.hedge(actions),
        }
        while self.arena.used_bytes() > self.ram_bytes && self.make_any_room() {}
        if self.left {
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

    /// What the job wants of its bucket: loads that wait for their turn, and loads in flight.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.loads.lanes.bucket.demand()
    }

    /// A rank begins somewhere: its open requests end, its reads before that batch are over. No other rank notices.
    fn start(&mut self, rank: u32, epoch: u32, batch: u64, actions: &mut Vec<Action>) {
        self.cancel_requests(rank, actions);
        let (Some(place), Some(step)) = (self.windows.place_of(rank), self.windows.step_of(epoch, batch)) else {
            return;
        };
        let window = self.windows.of(place);
        let within = self.windows.has_started(place) && (window.head()..=window.end()).contains(&step);
        if within && !window.is_over_from(step) {
            self.skip(place, step);
            self.windows.advance(place);
            self.windows.of_mut(place).newest = step;
        } else {
            self.empty(place);
            self.windows.begin(place, step);
        }
        self.chunk_left = 0;
    }

    /// A rank reads no more: its requests end, and what was planned for it is given back.
    fn leave(&mut self, rank: u32, actions: &mut Vec<Action>) {
        self.cancel_requests(rank, actions);
        if let Some(place) = self.windows.place_of(rank) {
            self.empty(place);
        }
    }

    /// Ends the open requests of a rank.
    fn cancel_requests(&mut self, rank: u32, actions: &mut Vec<Action>) {
        for request in self.requests.of_rank(rank) {
            self.refuse(request, None, Failure::Cancelled, actions);
        }
    }

    /// Closes a rank's window.
    fn empty(&mut self, place: usize) {
        self.skip(place, u64::MAX);
        self.residents.forget_expected(&mut self.arena);
        self.windows.end(place);
    }

    /// A rank's reads before `end` are over. What is there of them rests: whoever starts again may want it.
    fn skip(&mut self, place: usize, end: u64) {
        let window = self.windows.of(place);
        for step in window.head()..window.end().min(end) {
            let line = self.windows.line_at(place, step);
            let count = self.windows.peek(line).map_or(0, |line| line.entries.len());
            for entry in 0..count {
                let Some(it) = self.windows.peek(line).map(|l| l.entries[entry]) else {
                    continue;
                };
                self.windows.close(line, entry);
                if it.read == Read::Planned {
                    self.residents.get_mut(it.resident).uses -= 1;
                    self.residents.let_go(it.resident, &mut self.arena);
                }
            }
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
            if block < self.blocks.count() && !held.has(block) {
                let len = self.blocks.place_of(Content::block(block)).len;
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
        let whole = self.residents.find(Content::block(self.blocks.of(sample)));
        match self.blocks.are_shared() {
            true => whole.or_else(|| self.residents.find(Content::sample(sample))),
            false => whole,
        }
    }

    /// What a request waits for, oldest first; for the watchdog.
    #[must_use]
    pub fn waiting(&self) -> Vec<Waiting> {
        self.requests
            .open()
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

/// Bytes of the cells that blocks are cut by: with little memory less than is set, so that a few may pass through at once.
fn cell_bytes(settings: &Settings, staging_bytes: u64) -> u64 {
    let most = (staging_bytes / 4).max(1);
    settings.coalesce_bytes.min(1 << most.ilog2())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Ram,
    Tier(u8),
    No,
}
