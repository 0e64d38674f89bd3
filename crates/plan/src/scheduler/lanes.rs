//! Lanes: one for each source, with what waits for it, what is in flight, and what it has shown of itself.
//!
//! A load waits in its source's lane until the lane has room, departs, and ends there, well or not. Jobs take turns: next is the one for which the fewest
//! bytes are in the air. Of a job comes first what is needed first, here or on another node. A lane knows how many requests its source takes
//! at once, how long they take, whether it is ill, and how many twins late ones may have. The bucket has a lane and so has each disk tier and each other
//! node; nothing here tells them apart but the numbers they are made with.
//!
//! What is small and waits for a peer leaves in *bundles*: one request that brings several loads, because a request costs as much as 100 KB do. Where there is room for one more load, what is below 16 KiB of
//! what waits at that moment goes along, in the order of the queues; what is below 64 KiB up to 96 KiB, and only where the peer is fast. So nothing waits for a bundle, and no more than one bundle is
//! under way beyond the limit: what a peer has to fetch first would wait for long there, and look late here. A bundle counts as three failures at most. In all else each load is by itself.
//!
//! | | bucket | disk tier | peer |
//! | --- | --- | --- | --- |
//! | limit | found by the lane, or set by the carrier ([`Event::Limit`](crate::action::Event::Limit)) | set: `disk_depth` | set: `peer_depth`, and 8 MiB |
//! | twins | `hedge_per_cent` | none: what a slow disk holds is not read twice from it | `hedge_per_cent`, sent to the bucket |
//! | breaker | counts; nobody asks, for there is no other source | open: the bucket is asked instead | the same, and while it is [shunned](Shunned) |
//! | no failure | - | a damaged record: it is gone | that it hasn't got something |
//! | bundles | - | - | of what is below 64 KiB each, up to 32 and 256 KiB |

use super::flights::{Asker, Pending};
use super::patience::PATIENCE_NS;
use super::waits::Waits;
use crate::action::{BUNDLE_BYTES, BUNDLE_LOADS, BUNDLED_BYTES, Failure, Outcome, Source, Told};
use crate::flow::{Breaker, Concurrency, Demand, Twins};
use crate::model::{Estimate, Pinned};
use crate::settings::{Settings, TierSettings};
use std::collections::BTreeMap;

/// How many requests may be in flight.
enum Limit {
    /// The lane finds it out.
    Found(Box<Concurrency>),
    /// Somebody else says it.
    Set(u32),
}

/// What waits for a job, and what is in the air for it.
struct Queue {
    job: u32,
    waits: Waits,
    flying_bytes: u64,
    flying: u32,
    /// When one of its loads ended, or took off alone.
    moved_ns: u64,
}

/// Loads that one request brings.
struct Bundle {
    number: u64,
    loads: usize,
    bytes: u64,
    /// Of them in the air.
    flying: usize,
    failures: u32,
}

/// The lines that what waits was queued for, by the resident that it brings: another rank, or node, may need that sooner.
#[derive(Default)]
struct Lines(BTreeMap<u32, u64>);

impl Lines {
    fn of(&self, resident: u32) -> Option<u64> {
        self.0.get(&resident).copied()
    }

    fn note(&mut self, pending: &Pending) {
        for part in pending.parts.iter() {
            self.0.insert(part.handle.index, pending.line);
        }
    }

    fn forget(&mut self, pending: &Pending) {
        for part in pending.parts.iter() {
            self.0.remove(&part.handle.index);
        }
    }
}

/// A job for which nothing has landed for so long, and for twice as long as all that flies for it should take, stands still.
const STALLED_NS: u64 = 1_000_000_000;

/// So many a job may have in the air whatever hangs for others: it's seen whether these hang, too.
const A_FEW: u32 = 8;

/// Whether something flies for a job, and nothing lands.
fn stalls(now_ns: u64, estimate: Estimate) -> impl Fn(&Queue) -> bool {
    move |queue| {
        let due_ns = STALLED_NS + (2e9 * estimate.expected_s(queue.flying_bytes)) as u64;
        queue.flying > 0 && now_ns.saturating_sub(queue.moved_ns) > due_ns
    }
}

/// How long a source is left alone for which ranks stand still, one time after the other. It may answer much, and soon, and still have them stand still for the rest: so no
/// answer ends this. Once is no reason: nodes drift apart, and one may wait for memory for a while.
#[derive(Default)]
struct Shunned {
    /// When a rank stood still for it last.
    last_ns: Option<u64>,
    until_ns: u64,
    pause_ns: u64,
}

impl Shunned {
    const FIRST_NS: u64 = 1_000_000_000;
    const MOST_NS: u64 = 32_000_000_000;
    /// Time without for which all is forgotten.
    const FORGETS_NS: u64 = 5 * PATIENCE_NS;

    /// A rank stood still for what had been asked for at `issued_ns`.
    fn stood_still(&mut self, now_ns: u64, issued_ns: u64) {
        // What was under way then already is the same time.
        if self.last_ns.is_some_and(|last_ns| issued_ns < last_ns) {
            return;
        }
        let is_again = self.has_lately(now_ns);
        self.last_ns = Some(now_ns);
        if !is_again {
            self.pause_ns = 0;
            return;
        }
        self.pause_ns = (2 * self.pause_ns).clamp(Self::FIRST_NS, Self::MOST_NS);
        self.until_ns = now_ns + self.pause_ns;
    }

    fn has_lately(&self, now_ns: u64) -> bool {
        let since_ns = |last_ns: u64| now_ns.saturating_sub(last_ns.max(self.until_ns));
        self.last_ns.is_some_and(|last_ns| since_ns(last_ns) < Self::FORGETS_NS)
    }
}

pub(super) struct Lane {
    /// Of the jobs that have anything there.
    queues: Vec<Queue>,
    in_flight: u32,
    flying_bytes: u64,
    lines: Lines,
    /// Those in the air, oldest first; `None`: the source takes none.
    bundles: Option<Vec<Bundle>>,
    limit: Limit,
    pub estimate: Estimate,
    breaker: Breaker,
    shunned: Shunned,
    twins: Twins,
    /// What may be in the air at once.
    most_bytes: u64,
    /// How it ends when the source is well and hasn't got what was asked for.
    lacks: Option<Failure>,
    ended_ns: u64,
}

/// A source that was left alone for so long, because it was slow, is asked for one thing: it may be slow no more.
const REST_NS: u64 = 1_000_000_000;

/// Loads of a bundle whose failures count: one bundle alone, on a connection that broke or lost a packet, makes no peer ill, and two that hang do, before their twins cost more than there is.
const BUNDLE_FAILURES: u32 = 3;

/// What is smaller goes along with others whatever its source is like: it takes no time but the request's own.
pub(super) const SMALL_BYTES: u64 = 16 << 10;

/// What isn't that small goes along as far as the bundle has so many bytes, and comes so soon. Where a cable falls to 20 Mbit/s, 256 KiB take a tenth of a second, during which nothing else comes, and they can't be called off one by one.
const MODEST_BYTES: u64 = 96 << 10;
const BRISK_S: f64 = 0.005;

/// Bytes in the air from one peer, unless one load alone is larger: what 25 Gbit/s bring in 2.5 ms, and what many that answer at once may pile up in a switch.
const PEER_BYTES: u64 = 8 << 20;

impl Lane {
    fn new(limit: Limit, estimate: Estimate, twins_per_cent: u32) -> Self {
        Lane {
            queues: Vec::new(),
            in_flight: 0,
            flying_bytes: 0,
            lines: Lines::default(),
            bundles: None,
            limit,
            estimate,
            breaker: Breaker::default(),
            shunned: Shunned::default(),
            twins: Twins::new(twins_per_cent),
            most_bytes: u64::MAX,
            lacks: None,
            ended_ns: 0,
        }
    }

    fn bucket(settings: &Settings) -> Self {
        // A bucket in the same region as a prior; measured within the first requests.
        let prior = settings.bucket.unwrap_or(Pinned {
            latency_s: 0.03,
            bytes_per_s: 35e6,
        });
        Lane::new(
            Limit::Found(Box::new(Concurrency::new(settings.concurrency))),
            Estimate::new(prior, settings.bucket.is_some()),
            settings.hedge_per_cent,
        )
    }

    fn disk(tier: &TierSettings, depth: u32) -> Self {
        // A SATA SSD as a prior; measured within the first reads.
        let prior = tier.pinned.unwrap_or(Pinned {
            latency_s: 2e-4,
            bytes_per_s: 5e8,
        });
        let estimate = Estimate::new(prior, tier.pinned.is_some());
        // What it holds is not what it was, which says nothing of the source: it answered.
        Lane {
            lacks: Some(Failure::Corrupt),
            ..Lane::new(Limit::Set(depth.max(1)), estimate, 0)
        }
    }

    fn peer(depth: u32, twins_per_cent: u32) -> Self {
        // A 10 Gbit/s network as a prior; measured within the first requests.
        let prior = Pinned {
            latency_s: 1e-3,
            bytes_per_s: 1e9,
        };
        Lane {
            bundles: Some(Vec::new()),
            most_bytes: PEER_BYTES,
            lacks: Some(Failure::Final),
            ..Lane::new(
                Limit::Set(depth.max(1)),
                Estimate::new(prior, false).by_time(),
                twins_per_cent,
            )
        }
    }

    /// Requests that may be in flight now; never none, so that no lane can stand still for good.
    pub fn limit(&self) -> u32 {
        match &self.limit {
            Limit::Found(concurrency) => concurrency.limit(),
            Limit::Set(requests) => *requests,
        }
    }

    /// From now on the limit is what it is told.
    pub fn set_limit(&mut self, requests: u32) {
        self.limit = Limit::Set(requests.max(1));
    }

    /// What waits for the source, and what is in flight.
    pub fn demand(&self) -> Demand {
        Demand {
            queued: self.queued() as u32,
            in_flight: self.in_flight,
        }
    }

    fn queued(&self) -> usize {
        self.queues.iter().map(|queue| queue.waits.len()).sum()
    }

    fn queue(&mut self, job: u32) -> &mut Queue {
        let at = self.queues.iter().position(|queue| queue.job == job);
        let at = at.unwrap_or_else(|| {
            self.queues.push(Queue {
                job,
                waits: Waits::default(),
                flying_bytes: 0,
                flying: 0,
                moved_ns: 0,
            });
            self.queues.len() - 1
        });
        &mut self.queues[at]
    }

    /// Waits for its turn, behind all of its job that is needed as soon. What is read ahead comes in its order and is the last.
    pub fn push(&mut self, pending: Pending) {
        self.lines.note(&pending);
        self.queue(pending.job).waits.push(pending);
    }

    /// What waits to bring a resident, if anything does, is needed as soon as that.
    pub fn hurry(&mut self, resident: u32, asker: Asker) {
        let Some(line) = self.lines.of(resident).filter(|&line| line > asker.line) else {
            return;
        };
        let queue = self.queues.iter_mut().find(|queue| queue.job == asker.job);
        let Some(waits) = queue.map(|queue| &mut queue.waits) else {
            return;
        };
        let brings = |pending: &Pending| pending.parts.iter().any(|part| part.handle.index == resident);
        // A large sample comes in several.
        while let Some(mut pending) = waits.take(line, brings) {
            pending.line = asker.line;
            self.lines.note(&pending);
            waits.push(pending);
        }
        let first: Vec<Pending> = std::iter::from_fn(|| waits.take_first(line, brings)).collect();
        for mut pending in first.into_iter().rev() {
            pending.line = asker.line;
            self.lines.note(&pending);
            waits.push_first(pending);
        }
    }

    /// What waits to bring a resident, if anything does, comes before all of its job that nobody stands still for.
    pub fn come_first(&mut self, resident: u32, job: u32) {
        let Some(line) = self.lines.of(resident) else { return };
        let queue = self.queues.iter_mut().find(|queue| queue.job == job);
        let Some(waits) = queue.map(|queue| &mut queue.waits) else {
            return;
        };
        let brings = |pending: &Pending| pending.parts.iter().any(|part| part.handle.index == resident);
        let found: Vec<Pending> = std::iter::from_fn(|| waits.take(line, brings)).collect();
        found.into_iter().rev().for_each(|pending| waits.push_first(pending));
    }

    /// Waits as the first of its job: what failed, or was sent on from another lane, comes before what is new.
    pub fn push_first(&mut self, pending: Pending) {
        self.lines.note(&pending);
        self.queue(pending.job).waits.push_first(pending);
    }

    /// Takes some of what waits.
    pub fn take_if(&mut self, is_taken: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut taken = Vec::new();
        for queue in &mut self.queues {
            let gone = queue.waits.take_if(&is_taken);
            gone.iter().for_each(|pending| self.lines.forget(pending));
            taken.extend(gone);
        }
        taken
    }

    /// The queue whose turn it is, of those whose first load may go.
    fn turn(&mut self, now_ns: u64, may_go: impl Fn(&Pending) -> bool) -> Option<&mut Queue> {
        let (stalls, waiting) = (stalls(now_ns, self.estimate), self.queues.iter_mut());
        let waiting = waiting.filter(|queue| queue.waits.front().is_some_and(&may_go));
        waiting.min_by_key(|queue| (stalls(queue), queue.flying_bytes))
    }

    /// Loads in the air that keep others from flying. Those of a job for which nothing lands any more keep none of another job's, up to twice the limit in all, and what may be in flight at most: what that job reads may hang, and this not.
    fn in_the_way(&self, now_ns: u64) -> u32 {
        let stalls = stalls(now_ns, self.estimate);
        let moves = self.queues.iter().filter(|queue| !stalls(queue));
        moves.map(|queue| queue.flying).sum()
    }

    /// What goes along in the bundle that departed last, if anything does: what is next of what is small, too, and of which `fits` says so.
    pub fn next_along(&mut self, now_ns: u64, fits: impl Fn(&Pending) -> bool) -> Option<Pending> {
        let bundle = self.bundles.as_ref()?.last()?;
        let room = (BUNDLE_BYTES - bundle.bytes).min(self.most_bytes.saturating_sub(self.flying_bytes));
        if bundle.loads == BUNDLE_LOADS {
            return None;
        }
        let (brought, estimate) = (bundle.bytes, self.estimate);
        let is_modest = |bytes: u64| bytes <= MODEST_BYTES && estimate.expected_s(bytes) < BRISK_S;
        let goes = |len: u64| len < SMALL_BYTES || len < BUNDLED_BYTES && is_modest(brought + len);
        let next = self.turn(now_ns, |next| next.len <= room && goes(next.len) && fits(next))?;
        let next = next.waits.pop_front()?;
        self.lines.forget(&next);
        Some(next)
    }

    /// Whether a load of so many bytes may fly in a bundle.
    pub fn bundles(&self, bytes: u64) -> bool {
        self.bundles.is_some() && bytes < BUNDLED_BYTES
    }

    /// The next load, if there is room for one more.
    pub fn next(&mut self, now_ns: u64) -> Option<Pending> {
        let (limit, in_flight, in_the_way) = (self.limit(), self.in_flight, self.in_the_way(now_ns));
        let room = self.most_bytes.saturating_sub(self.flying_bytes);
        let is_stalled = stalls(now_ns, self.estimate);
        // With what hangs.
        let beside = match &self.limit {
            Limit::Found(concurrency) => concurrency.most().min(limit.saturating_mul(2)),
            Limit::Set(_) => limit.saturating_mul(2),
        };
        let next = self.turn(now_ns, |_| true)?;
        let bytes = next.waits.front().map_or(0, |pending| pending.len);
        let before = match is_stalled(next) {
            true => in_flight,
            false if next.flying < A_FEW || in_flight < beside => in_the_way,
            false => in_flight,
        };
        if before < limit && (in_flight == 0 || bytes <= room) {
            if next.flying == 0 {
                next.moved_ns = now_ns;
            }
            let next = next.waits.pop_front()?;
            self.lines.forget(&next);
            return Some(next);
        }
        if let Limit::Found(concurrency) = &mut self.limit {
            concurrency.wanted_more();
        }
        None
    }

    /// A load is issued.
    pub fn depart(&mut self, pending: &Pending) {
        self.fly(pending.job, pending.len, pending.bundle);
        self.twins.earn();
    }

    fn fly(&mut self, job: u32, bytes: u64, bundle: Option<u64>) {
        if let Some((bundles, number)) = self.bundles.as_mut().zip(bundle) {
            match bundles.last_mut() {
                Some(last) if last.number == number => {
                    (last.loads, last.flying, last.bytes) = (last.loads + 1, last.flying + 1, last.bytes + bytes);
                }
                _ => bundles.push(Bundle {
                    number,
                    loads: 1,
                    bytes,
                    flying: 1,
                    failures: 0,
                }),
            }
        }
        self.in_flight += 1;
        self.flying_bytes += bytes;
        let queue = self.queue(job);
        queue.flying += 1;
        queue.flying_bytes += bytes;
    }

    /// Whether the budget has a twin for one of its loads; it is spent then.
    pub fn spend_twin(&mut self) -> bool {
        self.twins.spend()
    }

    /// A twin is issued: it doesn't queue, for it would be late itself.
    pub fn depart_twin(&mut self, job: u32, bytes: u64) {
        self.fly(job, bytes, None);
    }

    fn bundle(&mut self, number: Option<u64>) -> Option<&mut Bundle> {
        let bundles = self.bundles.as_mut().zip(number);
        bundles.and_then(|(bundles, number)| bundles.iter_mut().find(|bundle| bundle.number == number))
    }

    /// A load failed, or as good as that.
    fn failed(&mut self, now_ns: u64, bundle: Option<u64>) {
        if let Some(bundle) = self.bundle(bundle) {
            bundle.failures += 1;
            if bundle.failures > BUNDLE_FAILURES {
                return;
            }
        }
        self.breaker.failed(now_ns);
    }

    /// A load of a bundle leaves the air.
    fn leave(&mut self, number: Option<u64>) {
        if let Some(bundle) = self.bundle(number) {
            bundle.flying -= 1;
            if let Some(bundles) = self.bundles.as_mut() {
                bundles.retain(|bundle| bundle.flying > 0);
            }
        }
    }

    /// A request that was issued at `issued_ns` ended: what that says about the source.
    pub fn ended(&mut self, now_ns: u64, issued_ns: u64, ended: &Pending, outcome: Outcome) {
        self.in_flight -= 1;
        self.flying_bytes -= ended.len;
        self.ended_ns = now_ns;
        let queue = self.queue(ended.job);
        queue.flying -= 1;
        queue.flying_bytes -= ended.len;
        queue.moved_ns = now_ns;
        if queue.flying == 0 && queue.waits.is_empty() && self.queues.len() > 1 {
            self.queues.retain(|queue| queue.job != ended.job);
        }
        let (bytes, took_ns) = (ended.len, now_ns.saturating_sub(issued_ns));
        if let Limit::Found(concurrency) = &mut self.limit {
            concurrency.ended(now_ns, took_ns, bytes, outcome);
        }
        let ratio = took_ns as f64 / 1e9 / self.estimate.expected_s(bytes).max(1e-9);
        match outcome {
            // It answered.
            Outcome::Done(Told::Nothing) => self.breaker.succeeded(),
            Outcome::Done(Told::Speed { latency_ns, total_ns } | Told::Throttled { latency_ns, total_ns }) => {
                self.estimate
                    .observe(bytes, latency_ns as f64 / 1e9, total_ns as f64 / 1e9);
                self.twins.ended(ratio);
                self.breaker.succeeded();
            }
            Outcome::Failed(Failure::Cancelled) => self.twins.left(ratio),
            Outcome::Failed(failure) if Some(failure) == self.lacks => {}
            Outcome::Failed(_) => self.failed(now_ns, ended.bundle),
        }
        self.leave(ended.bundle);
    }

    /// Seconds after which a request of `bytes` is late: a twin would probably come first.
    pub fn late_s(&self, bytes: u64) -> f64 {
        self.estimate.expected_s(bytes) * self.twins.late_from()
    }

    /// A twin of one of its loads came second.
    pub fn twin_lost(&mut self) {
        self.twins.lost();
    }

    /// It was overtaken by another source, which was asked later: as a failure is, but that it says nothing of how long it would have taken.
    pub fn was_overtaken(&mut self, now_ns: u64, bundle: Option<u64>) {
        self.failed(now_ns, bundle);
    }

    /// Seconds that a request of `bytes` is expected to take, its turn in the queue included.
    pub fn wait_s(&self, bytes: u64) -> f64 {
        let turns = 1.0 + self.queued() as f64 / f64::from(self.limit());
        self.estimate.expected_s(bytes) * turns
    }

    /// Whether nothing was asked of it for a while: what is known of it is old.
    pub fn rests(&self, now_ns: u64) -> bool {
        self.in_flight == 0 && self.queued() == 0 && now_ns.saturating_sub(self.ended_ns) >= REST_NS
    }

    /// Loads of `bytes` that end each second where as many are in flight as may be.
    pub fn loads_per_s(&self, bytes: u64) -> f64 {
        f64::from(self.limit()) / self.estimate.expected_s(bytes).max(1e-9)
    }

    /// Whether the source is well enough to be asked.
    pub fn is_open(&self, now_ns: u64) -> bool {
        self.breaker.allows(now_ns) && now_ns >= self.shunned.until_ns
    }

    /// A rank has stood still for what it was asked for at `issued_ns`, and would not have for another source.
    pub fn held_a_rank_up(&mut self, now_ns: u64, issued_ns: u64) {
        self.shunned.stood_still(now_ns, issued_ns);
    }

    /// Whether one has lately.
    pub fn holds_ranks_up(&self, now_ns: u64) -> bool {
        self.shunned.has_lately(now_ns)
    }

    /// Whether it was ill, and nothing has ended well since.
    pub fn is_on_trial(&self) -> bool {
        self.breaker.is_on_trial()
    }

    /// The same for what is about to fly: one that was ill is tried with one load alone.
    pub fn may_be_asked(&self, now_ns: u64) -> bool {
        self.is_open(now_ns) && !(self.is_on_trial() && self.in_flight > 0)
    }
}

/// The lanes of all sources.
pub(super) struct Lanes {
    pub bucket: Lane,
    disks: Vec<Lane>,
    /// By number; a node that left keeps its lane, for what is still in the air.
    peers: Vec<Lane>,
    peer_depth: u32,
    peer_twins_per_cent: u32,
}

impl Lanes {
    pub fn new(settings: &Settings) -> Self {
        let disk = |tier| Lane::disk(tier, settings.disk_depth);
        Lanes {
            bucket: Lane::bucket(settings),
            disks: settings.tiers.iter().map(disk).collect(),
            peers: Vec::new(),
            peer_depth: settings.peer_depth,
            peer_twins_per_cent: settings.hedge_per_cent,
        }
    }

    /// What waits to bring a resident, if anything does, is needed as soon as that. Of peers only one may have been asked for it.
    pub fn hurry(&mut self, resident: u32, asker: Asker, peer: Option<u16>) {
        let peer = peer.and_then(|peer| self.peers.get_mut(usize::from(peer)));
        for lane in self.disks.iter_mut().chain([&mut self.bucket]).chain(peer) {
            lane.hurry(resident, asker);
        }
    }

    /// What waits to bring a resident, if anything does, comes before all of its job that nobody stands still for.
    pub fn come_first(&mut self, resident: u32, job: u32) {
        for lane in self.disks.iter_mut().chain([&mut self.bucket]) {
            lane.come_first(resident, job);
        }
    }

    /// From now on there are peers up to this number.
    pub fn reach(&mut self, peer: u16) {
        let (depth, twins_per_cent) = (self.peer_depth, self.peer_twins_per_cent);
        let count = self.peers.len().max(usize::from(peer) + 1);
        self.peers.resize_with(count, || Lane::peer(depth, twins_per_cent));
    }

    /// Seconds that other peers than one take for a load of `bytes`, as far as is known: of half of them no longer. `None`: nothing is.
    pub fn other_peers_take_s(&self, but: u16, bytes: u64) -> Option<f64> {
        let others = self.peers.iter().enumerate().filter(|(at, _)| *at != usize::from(but));
        let known = others.filter(|(_, lane)| lane.estimate.observations() > 0);
        let mut takes_s: Vec<f64> = known.map(|(_, lane)| lane.estimate.expected_s(bytes)).collect();
        takes_s.sort_unstable_by(f64::total_cmp);
        takes_s.get(takes_s.len() / 2).copied()
    }

    /// That of another node, by its number.
    pub fn peer_at(&self, peer: u16) -> Option<&Lane> {
        self.peers.get(usize::from(peer))
    }

    pub fn of(&self, source: Source) -> &Lane {
        match source {
            Source::Bucket => &self.bucket,
            Source::Disk(tier) => &self.disks[usize::from(tier)],
            Source::Peer(peer) => &self.peers[usize::from(peer)],
        }
    }

    pub fn of_mut(&mut self, source: Source) -> &mut Lane {
        match source {
            Source::Bucket => &mut self.bucket,
            Source::Disk(tier) => &mut self.disks[usize::from(tier)],
            Source::Peer(peer) => &mut self.peers[usize::from(peer)],
        }
    }

    /// The sources, those first that may send loads on to others.
    pub fn sources(&self) -> impl Iterator<Item = Source> + use<> {
        let peers = (0..self.peers.len()).map(|peer| Source::Peer(peer as u16));
        let disks = (0..self.disks.len()).map(|tier| Source::Disk(tier as u8));
        disks.chain(peers).chain(std::iter::once(Source::Bucket))
    }

    /// Nothing waits.
    pub fn are_empty(&self) -> bool {
        let others = self.disks.iter().chain(&self.peers);
        self.bucket.queued() == 0 && others.into_iter().all(|lane| lane.queued() == 0)
    }
}

#[cfg(test)]
mod tests;
