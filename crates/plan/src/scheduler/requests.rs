//! Requests: what consumers wait for, and its delivery.
//!
//! A request is served all at once, when everything it names is in memory; until then it holds nothing that another could need first. It asks for a
//! batch, for reads by their names (epoch and position), or for samples by number. A name of a read that the rank has before it is an
//! entry of its window; what was read already, what lies far away and what is asked for by number is a read of its own (*loose*). Other nodes
//! ask, too: they are *guests*, whose reads are loose and whose turn comes when everybody here has memory.

use super::memory::Turn;
use super::residents::{Ready, State};
use super::window::{Entry, Read};
use super::{Scheduler, Urgency};
use crate::action::{Action, Command, Failure, Handle, Item};
use crate::arena::Slot;
use crate::job::Largest;
use crate::policy::Retention;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many steps beyond its window a rank may ask for.
const NEAR_STEPS: u64 = 4096;

/// Who asks: job and rank.
type Who = (u32, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A read of the window: line and entry.
    Entry(u64, usize),
    /// A read of its own.
    Loose(u32),
    /// A read of its own that has no memory yet.
    Unplaced(u64),
}

/// Leases have so long to come back before what is there of a request is laid out anew beside them.
const LEASE_PATIENCE_NS: u64 = 1_000_000_000;

struct Request {
    /// Of the rank that asks.
    place: usize,
    since_ns: u64,
    targets: Vec<Target>,
    /// The targets' samples.
    samples: Vec<u64>,
    missing: u32,
    /// Since when its asker does nothing but wait for it.
    awaited_ns: Option<u64>,
    /// Another node asks, and whatever is asked here comes first: the line here that is as far away as what it is for there.
    guest: Option<u64>,
}

impl Request {
    fn reads(&self) -> impl Iterator<Item = (Target, u64)> {
        self.targets.iter().copied().zip(self.samples.iter().copied())
    }

    /// The first target without memory: its place in the request, and its sample.
    fn next_unplaced(&self) -> Option<(usize, u64)> {
        self.targets.iter().enumerate().find_map(|(at, target)| match *target {
            Target::Unplaced(sample) => Some((at, sample)),
            Target::Entry(..) | Target::Loose(_) => None,
        })
    }
}

#[derive(Default)]
pub(super) struct Requests {
    /// By id: askers count up, so this is also their order.
    open: BTreeMap<u64, Request>,
    /// Requests with unplaced reads, oldest first.
    pub unplaced: VecDeque<u64>,
    /// The same of other nodes.
    pub guests: VecDeque<u64>,
}

impl Requests {
    /// Requests that lack something; one that is to be copied may be there, until somebody waits for it.
    pub fn len(&self) -> usize {
        self.open.values().filter(|request| request.missing > 0).count()
    }

    /// Whether the asker does nothing but wait for a request.
    pub fn is_awaited(&self, id: u64) -> bool {
        self.open.get(&id).is_some_and(|request| request.awaited_ns.is_some())
    }

    /// How long ago a request was made.
    pub fn age_ns(&self, id: u64, now_ns: u64) -> u64 {
        self.open
            .get(&id)
            .map_or(0, |request| now_ns.saturating_sub(request.since_ns))
    }

    /// Since when an asker of this node does nothing but wait for a request.
    pub fn awaited_since_ns(&self, id: u64) -> Option<u64> {
        let request = self.open.get(&id).filter(|request| request.guest.is_none());
        request.and_then(|request| request.awaited_ns)
    }

    /// The place of the rank that asks, and the line that another node's is as urgent as.
    pub fn asker_of(&self, id: u64) -> Option<(usize, Option<u64>)> {
        self.open.get(&id).map(|request| (request.place, request.guest))
    }

    /// Whether somebody does nothing but wait for what isn't there.
    pub fn are_awaited(&self) -> bool {
        self.open
            .values()
            .any(|request| request.awaited_ns.is_some() && request.missing > 0 && request.guest.is_none())
    }

    /// Takes the reads of their own that are there from requests, by number and the rank's place: they wait for memory again. Answers with their
    /// residents, to be unused.
    pub fn displace(&mut self, may: impl Fn(u64, usize, bool) -> bool, is_ready: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut displaced = Vec::new();
        for (&id, request) in &mut self.open {
            if request.guest.is_none() && !may(id, request.place, request.awaited_ns.is_some()) {
                continue;
            }
            let before = displaced.len();
            for (target, &sample) in request.targets.iter_mut().zip(&request.samples) {
                if let Target::Loose(resident) = *target
                    && is_ready(resident)
                {
                    *target = Target::Unplaced(sample);
                    request.missing += 1;
                    displaced.push(resident);
                }
            }
            if displaced.len() > before {
                wait_again(queue(request.guest.is_some(), &mut self.unplaced, &mut self.guests), id);
            }
        }
        displaced
    }

    pub fn of_place(&self, place: usize) -> Vec<u64> {
        self.open
            .iter()
            .filter(|(_, request)| request.place == place && request.guest.is_none())
            .map(|(&id, _)| id)
            .collect()
    }

    /// The requests of other nodes for samples of a job, by one of its places.
    pub fn of_guests(&self, is_of_job: impl Fn(usize) -> bool) -> Vec<u64> {
        let guests = self
            .open
            .iter()
            .filter(|(_, request)| request.guest.is_some() && is_of_job(request.place));
        guests.map(|(&id, _)| id).collect()
    }

    /// Whether other nodes wait for anything.
    pub fn have_guests(&self) -> bool {
        self.open.values().any(|request| request.guest.is_some())
    }

    /// The first read of a request that has no memory: the place that it is for, its number in the request, and its sample.
    pub fn next_unplaced(&self, id: u64) -> Option<(usize, usize, u64)> {
        let request = self.open.get(&id)?;
        let (at, sample) = request.next_unplaced()?;
        Some((request.place, at, sample))
    }

    /// Whether a request is open that was made after `then_ns`.
    pub fn began_after(&self, id: u64, then_ns: u64) -> bool {
        self.open.get(&id).is_some_and(|request| request.since_ns > then_ns)
    }

    /// Something that a request had was put back.
    pub fn one_more(&mut self, id: u64) {
        if let Some(request) = self.open.get_mut(&id) {
            request.missing += 1;
        }
    }

    /// The requests that lack something: since when, and what each reads of which sample.
    pub fn lacking(&self) -> impl Iterator<Item = (u64, u64, impl Iterator<Item = (Target, u64)>)> {
        let lacking = self.open.iter().filter(|(_, request)| request.missing > 0);
        lacking.map(|(&id, request)| (id, request.since_ns, request.reads()))
    }

    /// Takes the reads of their own that were to come from a resident from all requests: they wait for memory again. Answers with how many they are.
    pub fn displace_all(&mut self, resident: u32) -> u32 {
        let mut displaced = 0;
        for (&id, request) in &mut self.open {
            let is_guest = request.guest.is_some();
            for (target, &sample) in request.targets.iter_mut().zip(&request.samples) {
                if *target == Target::Loose(resident) {
                    *target = Target::Unplaced(sample);
                    displaced += 1;
                    wait_again(queue(is_guest, &mut self.unplaced, &mut self.guests), id);
                }
            }
        }
        displaced
    }
}

/// Where a request waits for memory.
fn queue<'a>(is_guest: bool, own: &'a mut VecDeque<u64>, guests: &'a mut VecDeque<u64>) -> &'a mut VecDeque<u64> {
    if is_guest { guests } else { own }
}

/// Takes its turn again among those that wait for memory.
fn wait_again(queue: &mut VecDeque<u64>, id: u64) {
    if !queue.contains(&id) {
        let at = queue.partition_point(|&other| other < id);
        queue.insert(at, id);
    }
}

impl Scheduler {
    pub(super) fn want_batch(&mut self, request: u64, who: Who, epoch: u32, batch: u64, actions: &mut Vec<Action>) {
        let place = self.windows.place_of(who.0, who.1);
        let line = place.and_then(|place| {
            let step = self.windows.reader_at(place)?.step_of(epoch, batch)?;
            self.reach(place, step)
        });
        let count = line
            .and_then(|line| self.windows.peek(line))
            .map_or(0, |line| line.entries.len());
        match (place, line) {
            (Some(place), Some(line)) if count > 0 => {
                let targets = (0..count).map(|entry| Target::Entry(line, entry)).collect();
                self.open_request(request, place, targets, None, actions);
            }
            // A batch that is over, or too far away.
            _ => self.tell(request, None, Failure::Final, actions),
        }
    }

    /// The line of a rank's step, laid out, if the rank has it before it and near. A rank that hasn't started begins there.
    fn reach(&mut self, place: usize, step: u64) -> Option<u64> {
        if !self.windows.has_started(place) {
            self.windows.begin(place, step);
        }
        let window = self.windows.of(place);
        let near = step >= window.head() && step < window.end() + NEAR_STEPS;
        (near && self.windows.reach(place, step)).then(|| self.windows.line_at(place, step))
    }

    pub(super) fn want_reads(&mut self, request: u64, who: Who, reads: &[(u32, u64)], actions: &mut Vec<Action>) {
        let Some(place) = self.windows.place_of(who.0, who.1) else {
            return self.tell(request, None, Failure::Final, actions);
        };
        let (mut targets, mut claimed) = (Vec::with_capacity(reads.len()), BTreeSet::new());
        for &(epoch, position) in reads {
            let entry = self.entry_of(place, epoch, position);
            let target = match entry.filter(|&entry| claimed.insert(entry)) {
                Some((line, entry)) => Target::Entry(line, entry),
                None => match self.sample_at(place, epoch, position) {
                    Some(sample) => Target::Unplaced(sample),
                    None => return self.tell(request, None, Failure::Final, actions),
                },
            };
            targets.push(target);
        }
        self.open_request(request, place, targets, None, actions);
    }

    fn sample_at(&mut self, place: usize, epoch: u32, position: u64) -> Option<u64> {
        let order = self.windows.epoch(place, epoch)?;
        (position < order.positions()).then(|| order.sample_at(position))
    }

    /// The read of a rank's window that has this name, if nobody has claimed it yet.
    fn entry_of(&mut self, place: usize, epoch: u32, position: u64) -> Option<(u64, usize)> {
        let (step, entry) = self.windows.find(place, epoch, position)?;
        let line = self.reach(place, step)?;
        let it = self.windows.peek(line)?.entries.get(entry)?;
        it.is_free().then_some((line, entry))
    }

    pub(super) fn want_samples(&mut self, request: u64, who: Who, samples: &[u64], actions: &mut Vec<Action>) {
        let Some(place) = self.windows.place_of(who.0, who.1) else {
            return self.tell(request, None, Failure::Final, actions);
        };
        let targets = samples.iter().map(|&sample| Target::Unplaced(sample)).collect();
        self.open_request(request, place, targets, None, actions);
    }

    /// Who asks for more at once than its batches have may do so again.
    fn note_large(&mut self, place: usize, samples: &[u64]) {
        let Some(reader) = self.windows.reader_at(place) else {
            return;
        };
        let batch = reader.split.global_batch().div_ceil(reader.split.ranks());
        if samples.len() <= batch as usize {
            return;
        }
        let on_node = samples.iter().map(|&sample| reader.on_node(sample));
        let asked = Largest::of(on_node.map(|sample| self.library.place(sample).len));
        if let Some(reader) = self.windows.reader_at_mut(place) {
            reader.largest = reader.largest.map(|largest| largest.or(asked));
        }
    }

    pub(super) fn open_request(
        &mut self,
        id: u64,
        place: usize,
        targets: Vec<Target>,
        guest: Option<u64>,
        actions: &mut Vec<Action>,
    ) {
        let all = self.windows.reader_at(place).map_or(0, |reader| reader.samples);
        let mut samples = Vec::with_capacity(targets.len());
        for target in &targets {
            let sample = match *target {
                Target::Entry(line, entry) => self
                    .windows
                    .peek(line)
                    .map(|line| line.entries[entry])
                    .filter(Entry::is_free)
                    .map(|it| it.sample),
                Target::Unplaced(sample) => Some(sample).filter(|&sample| sample < all),
                Target::Loose(_) => None,
            };
            samples.extend(sample);
        }
        if samples.len() < targets.len() || self.requests.open.contains_key(&id) {
            return self.tell(id, None, Failure::Final, actions);
        }
        if guest.is_none() {
            self.note_large(place, &samples);
        }
        let missing = targets.len() as u32;
        let loose = targets.iter().any(|target| matches!(target, Target::Unplaced(_)));
        let request = Request {
            place,
            since_ns: self.now_ns,
            targets: targets.clone(),
            samples,
            missing,
            awaited_ns: guest.map(|_| self.now_ns),
            guest,
        };
        self.requests.open.insert(id, request);
        if loose {
            queue(guest.is_some(), &mut self.requests.unplaced, &mut self.requests.guests).push_back(id);
        }
        for target in targets {
            let Target::Entry(line, entry) = target else { continue };
            let (step, place) = self.windows.parts(line);
            let window = self.windows.of_mut(place);
            window.newest = window.newest.max(step);
            let Some(it) = self.windows.line(line) else { continue };
            let it = &mut it.entries[entry];
            it.waiter = id + 1;
            match it.read {
                Read::Unplanned => drop(self.wanted.insert((line, entry))),
                _ => {
                    let resident = it.resident;
                    self.note_waiter(resident, id, line, actions);
                }
            }
        }
        if missing == 0 {
            self.deliver(id, actions);
        }
    }

    /// A planned read has somebody waiting: at once if the bytes are there.
    pub(super) fn note_waiter(&mut self, resident: u32, request: u64, line: u64, actions: &mut Vec<Action>) {
        let it = self.residents.get_mut(resident);
        match it.state {
            State::Ready => self.one_less(request, actions),
            State::Failed(_) if it.parts == 0 => {
                it.attempt = 0;
                self.residents.wait(resident, request);
                self.reload(resident, line);
            }
            _ => {
                self.residents.wait(resident, request);
                let asker = self.asker(line);
                match self.requests.awaited_since_ns(request) {
                    Some(_) if self.group.is_alone() => self.loads.lanes.come_first(resident, asker.job),
                    _ => self.hurry(resident, asker),
                }
                if self.windows.readers().len() > 1 {
                    self.loads.waited.entry(resident).or_insert(asker);
                }
            }
        }
    }

    /// Its asker does nothing else any more.
    pub(super) fn await_request(&mut self, id: u64, actions: &mut Vec<Action>) {
        let Some(open) = self.requests.open.get_mut(&id) else {
            return;
        };
        open.awaited_ns.get_or_insert(self.now_ns);
        if open.missing == 0 {
            return self.deliver(id, actions);
        }
        // Ranks that are far apart: what one of them was to read soon waits before what another stands still for. Where nodes share, what another one stands still
        // for counts as much, and only its line tells that.
        if !self.group.is_alone() {
            return;
        }
        let (job, targets) = (self.windows.job_at(open.place), open.targets.clone());
        for target in targets.into_iter().rev() {
            if let Some(resident) = self.resident_of(target) {
                self.loads.lanes.come_first(resident, job);
            }
        }
    }

    pub(super) fn one_less(&mut self, request: u64, actions: &mut Vec<Action>) {
        let Some(open) = self.requests.open.get_mut(&request) else {
            return;
        };
        open.missing -= 1;
        if open.missing == 0 {
            self.deliver(request, actions);
        }
    }

    /// Whose turn it is of the requests with loose reads that have no memory.
    fn first_loose(&self) -> Option<(Turn, u64)> {
        let turn = |&id: &u64| {
            let open = self.requests.open.get(&id)?;
            let turn = Turn::of_loose(self.windows.head_line(open.place), id, open.awaited_ns.is_some());
            Some((turn, id))
        };
        self.requests.unplaced.iter().filter_map(turn).min()
    }

    pub(super) fn loose_turn(&self) -> Option<Turn> {
        Some(self.first_loose()?.0)
    }

    /// Gives the loose reads of waiting requests their memory, each in its turn: what comes first may take memory from the others, never from what comes
    /// before it. False: there is none yet.
    pub(super) fn place_loose(&mut self, actions: &mut Vec<Action>) -> bool {
        while let Some((_, id)) = self.first_loose() {
            let next = self.requests.open.get(&id).and_then(Request::next_unplaced);
            let Some((at, sample)) = next else {
                self.requests.unplaced.retain(|&other| other != id);
                continue;
            };
            if !self.place_one(id, at, sample, Urgency::Loose(id), actions) && !self.repack(id, actions) {
                return false;
            }
        }
        self.requests.unplaced.clear();
        true
    }

    /// Gives one loose read its memory. False: there is none.
    pub(super) fn place_one(
        &mut self,
        id: u64,
        at: usize,
        sample: u64,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some((place, guest)) = self.requests.open.get(&id).map(|open| (open.place, open.guest)) else {
            return true;
        };
        let line = guest.unwrap_or_else(|| self.windows.head_line(place));
        let Ok(resident) = self.resident_for(self.windows.on_node(place, sample), line, urgency, actions) else {
            return false;
        };
        self.residents.plan_use(resident);
        if let Some(open) = self.requests.open.get_mut(&id) {
            open.targets[at] = Target::Loose(resident);
        }
        self.note_waiter(resident, id, line, actions);
        true
    }

    /// Memory is there but torn, and no load or write that is under way gives any back: empties it and gives it to one request, its largest samples first.
    /// Where nobody holds a lease, what doesn't fit then doesn't fit at all. Otherwise leases have their time to come back, and it is done where it helps.
    /// False: it has to wait.
    pub(super) fn repack(&mut self, id: u64, actions: &mut Vec<Action>) -> bool {
        let Some(open) = self.requests.open.get(&id) else {
            return false;
        };
        // What nobody waits for can wait, too.
        let Some(awaited_ns) = open.awaited_ns.filter(|_| self.loads.is_idle()) else {
            return false;
        };
        if self.residents.leases > 0 && self.now_ns - awaited_ns < LEASE_PATIENCE_NS {
            return false;
        }
        let len = |at: usize| {
            let sample = self.windows.on_node(open.place, open.samples[at]);
            self.library.place(sample).len
        };
        let mut order: Vec<usize> = (0..open.targets.len()).collect();
        order.sort_by_key(|&at| (Reverse(len(at)), at));
        let fits = || self.fits_beside_leases(Largest::of(order.iter().map(|&at| len(at))));
        if self.residents.leases > 0 && fits() != Some(true) {
            return false;
        }
        self.put_all_back();
        for at in order {
            let Some((target, sample)) = self
                .requests
                .open
                .get(&id)
                .map(|open| (open.targets[at], open.samples[at]))
            else {
                return true;
            };
            let fits = match target {
                Target::Entry(line, entry) => {
                    let placed = !self.wanted.remove(&(line, entry));
                    placed || self.plan_read(line, entry, Urgency::Alone, actions).is_ok()
                }
                Target::Unplaced(sample) => self.place_one(id, at, sample, Urgency::Alone, actions),
                Target::Loose(_) => true,
            };
            if !fits {
                self.refuse(id, Some(sample), Failure::NoMemory, actions);
                return true;
            }
        }
        true
    }

    /// The sample that a request reads from a resident.
    pub(super) fn sample_of(&self, request: u64, resident: u32) -> Option<u64> {
        let mut reads = self.requests.open.get(&request)?.reads();
        reads
            .find(|&(target, _)| self.resident_of(target) == Some(resident))
            .map(|(_, sample)| sample)
    }

    pub(super) fn resident_of(&self, target: Target) -> Option<u32> {
        match target {
            Target::Entry(line, entry) => Some(self.windows.peek(line)?.entries.get(entry)?.resident),
            Target::Loose(resident) => Some(resident),
            Target::Unplaced(_) => None,
        }
    }

    fn deliver(&mut self, id: u64, actions: &mut Vec<Action>) {
        let Some(open) = self.requests.open.get(&id) else {
            return;
        };
        let ready: Option<Vec<Ready>> = open
            .targets
            .iter()
            .map(|&target| self.resident_of(target).and_then(|id| self.residents.ready(id)))
            .collect();
        let Some(ready) = ready else {
            // A count that is wrong must never become bytes that are wrong: the asker asks again.
            debug_assert!(false, "request {id} counts something that isn't there as there");
            return self.refuse(id, None, Failure::Cancelled, actions);
        };
        let handles: Vec<Handle> = ready.iter().map(|&ready| self.residents.lease(ready)).collect();
        // Half of staging must stay for what comes next: who holds the leases may wait for it.
        let copy = self.residents.leased_bytes > self.staging_bytes / 2 || self.is_torn();
        // What is to be copied comes when somebody is there to do it: until then its memory is lent to nobody.
        if copy && !self.requests.is_awaited(id) {
            for ready in &ready {
                self.residents.unlease(ready.id());
            }
            return;
        }
        let Some(open) = self.requests.open.remove(&id) else {
            return;
        };
        let mut items = Vec::with_capacity(ready.len());
        let touch = self.settings.policy.retention() == Retention::Lru;
        let mut newest = None;
        for ((target, sample), (ready, handle)) in open.reads().zip(ready.into_iter().zip(handles)) {
            if let Target::Entry(line, entry) = target {
                self.windows.close(line, entry);
                newest = Some(line);
            }
            let slot = self.view(ready.id(), self.windows.on_node(open.place, sample));
            let it = self.residents.get_mut(ready.id());
            it.uses -= 1;
            items.push(Item {
                sample,
                handle,
                slot,
                via: it.used(),
            });
            if touch {
                self.residents.refresh(ready.id());
            }
        }
        if newest.is_some() {
            self.windows.of_mut(open.place).pace(self.now_ns);
            self.windows.advance(open.place);
        }
        actions.push(self.loads.action(Command::Deliver {
            request: id,
            items,
            copy,
        }));
    }

    /// Whether leases may keep the next request out, for they tear the memory: the largest batch of any job needn't find room between them, or consumers
    /// hold more than a quarter, and half of it isn't left in one piece. A lease of a block counts a part of it and keeps all of it: there the quarter decides.
    fn is_torn(&self) -> bool {
        let (held, all) = (self.residents.held_bytes, self.ram_bytes);
        let is_crowded = held > all / 4;
        let Some(largest) = self.windows.largest() else {
            return is_crowded;
        };
        if self.library.are_shared() {
            return is_crowded || self.fits_beside_leases(largest) == Some(false);
        }
        // However so many leases lie.
        let most_lost = (self.residents.leases + 1).saturating_mul(largest.sample_bytes);
        let fits = held.saturating_add(most_lost).saturating_add(largest.batch_bytes) <= all
            || self.fits_beside_leases(largest).unwrap_or(!is_crowded);
        let half = Largest {
            sample_bytes: all / 2,
            batch_bytes: all / 2,
        };
        !fits || is_crowded && self.fits_beside_leases(half) != Some(true)
    }

    /// Whether samples find room between what consumers hold, when all else leaves: in one piece, or in all of them, of each of which less is lost than one
    /// sample takes. `None`: there are too many residents to look through.
    fn fits_beside_leases(&self, largest: Largest) -> Option<bool> {
        let (mut longest, mut sure) = (0, 0);
        for piece in self.residents.unheld(self.arena.capacity_bytes())? {
            longest = longest.max(piece);
            sure += piece.saturating_sub(largest.sample_bytes);
        }
        let unheld = self.ram_bytes.saturating_sub(self.residents.held_bytes);
        Some(longest.max(sure).min(unheld) >= largest.batch_bytes)
    }

    /// A sample's bytes in its resident.
    fn view(&self, id: u32, sample: u64) -> Slot {
        let whole = self.residents.get(id).slot;
        if self.residents.samples(id) == 1 {
            return whole;
        }
        let place = self.library.place(sample);
        whole.part(place.offset - self.residents.offset(id), place.len)
    }

    /// Ends an open request that can't be served, and tells it why: one of its samples failed, or it is called off. What it had of the plan are planned
    /// reads again.
    pub(super) fn refuse(&mut self, id: u64, sample: Option<u64>, failure: Failure, actions: &mut Vec<Action>) {
        if self.requests.open.contains_key(&id) {
            self.withdraw(id);
            self.tell(id, sample, failure, actions);
        }
    }

    pub(super) fn tell(&mut self, request: u64, sample: Option<u64>, failure: Failure, actions: &mut Vec<Action>) {
        let command = Command::Refuse {
            request,
            sample,
            failure,
        };
        actions.push(self.loads.action(command));
    }

    /// Nobody waits for a request any more. Its reads are over as those of a delivered one are: nobody comes back for their names, and what was planned for
    /// them would stay behind the consumer for as long as it goes on.
    pub(super) fn withdraw(&mut self, id: u64) {
        let Some(open) = self.requests.open.remove(&id) else {
            return;
        };
        for target in open.targets {
            if let Some(resident) = self.resident_of(target) {
                self.residents.unwait(resident, id);
            }
            match target {
                Target::Entry(line, entry) => self.skip_read(line, entry),
                Target::Loose(resident) => self.unuse(resident),
                Target::Unplaced(_) => {}
            }
        }
        self.windows.advance(open.place);
    }
}

#[cfg(test)]
mod tests;
