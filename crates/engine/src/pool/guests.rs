//! The pool and other nodes: who they are, what they are given, and what they give.
//!
//! What a peer asks for is a request of the plan like any other, but that its answer goes to the peer's connection ([`crate::peers`]): the bytes are lent out of the
//! arena until the peer has read them. What this node asks a peer for is fetched as from a bucket, is compared with the checksum that came along and with the index'
//! own, and when it doesn't come well the plan asks the bucket.

use super::Pool;
use super::bytes::Proof;
use super::fetches::Fetch;
use crate::calls::{NodeReport, NodeStats, PeerAt};
use crate::carriers::{Bundle, Landed, Order, Outbox, Part};
use crate::peers::{self, Lent, Said, Told, Trust};
use crate::protocol::Trouble;
use crate::scatter::{Check, Scatter};
use foreload_plan::Digest;
use foreload_plan::action::{Action, Command, Completion, Event, Failure, Handle, Item, Load, Source as LoadSource};
use foreload_plan::homes::Member;
use foreload_plan::placement::groups::together;
use foreload_store::index::ObjectRef;
use foreload_store::{ErrorKind, Source};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

/// What peers have given back that is heard of at once.
const AT_ONCE: usize = 64;

/// A node that this one shares with, and what it has given.
struct Known {
    id: u64,
    /// `None`: there is nothing to ask of it.
    at: Option<(SocketAddr, Source)>,
    requests: u64,
    samples: u64,
    bytes: u64,
    misses: u64,
    failures: u64,
}

/// The nodes of a pool's group.
#[derive(Default)]
pub(super) struct Group {
    /// By the numbers that the plan knows them by, which never change.
    known: Vec<Known>,
    /// Nodes of the job that aren't of the group, and how they are asked.
    strangers: Vec<SocketAddr>,
    trust: Option<Trust>,
    is_open: bool,
    /// What the nodes of the group can keep together, and how many they are.
    shared: (u64, u64),
    /// What this one has given to the others: samples and bytes.
    served: (u64, u64),
}

impl Group {
    fn number(&mut self, id: u64) -> usize {
        let known = self.known.iter().position(|known| known.id == id);
        known.unwrap_or_else(|| {
            self.known.push(Known {
                id,
                at: None,
                requests: 0,
                samples: 0,
                bytes: 0,
                misses: 0,
                failures: 0,
            });
            self.known.len() - 1
        })
    }

    /// Who can be asked: names, addresses, and how.
    fn others(&self) -> Vec<(u64, SocketAddr, Source)> {
        let other = |known: &Known| {
            let (address, source) = known.at.as_ref()?;
            Some((known.id, *address, source.clone()))
        };
        self.known.iter().filter_map(other).collect()
    }

    /// All nodes of the job, and where they are asked.
    fn all_others(&self) -> Vec<(SocketAddr, Result<Source, Trouble>)> {
        let mates = self
            .others()
            .into_iter()
            .map(|(_, address, source)| (address, Ok(source)));
        let strangers = self.strangers.iter().zip(self.trust.iter().cycle());
        mates
            .chain(strangers.map(|(&address, trust)| (address, peers::source(address, trust))))
            .collect()
    }

    fn source(&self, peer: u16) -> Option<Source> {
        let (_, source) = self.known.get(usize::from(peer))?.at.as_ref()?;
        Some(source.clone())
    }
}

/// Who waits for one of the samples that a peer has asked for. Whoever lets it go says that there is none to be had.
pub struct Guest {
    /// Names the question.
    pub name: u64,
    /// The sample's place in it.
    at: usize,
    /// Batches that the other node reads before it needs that.
    steps: u64,
    answer: UnboundedSender<Told>,
    /// What goes there together.
    answers: Outbox<Told>,
    is_answered: bool,
}

impl Guest {
    /// For a sample of a question, by its place there, that is needed after so many batches.
    #[must_use]
    pub(crate) fn new(
        name: u64,
        (at, steps): (usize, u64),
        answer: UnboundedSender<Told>,
        answers: Outbox<Told>,
    ) -> Self {
        Guest {
            name,
            at,
            steps,
            answer,
            answers,
            is_answered: false,
        }
    }

    fn tell(mut self, lent: Option<Lent>) {
        self.is_answered = true;
        // Who has gone away gives it back at once.
        self.answers.put(&self.answer, (self.at, lent));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !self.is_answered {
            let _ = self.answer.send((self.at, None));
        }
    }
}

/// What a peer is asked for.
struct ToAsk {
    source: Source,
    sample: u64,
    steps: u64,
    len: u64,
    deadline: Instant,
    sink: Scatter,
    proof: Proof,
}

/// Takes back what was lent, for as long as the pool is there.
pub(super) async fn take_back(pool: Weak<Pool>, mut lent: UnboundedReceiver<Handle>) {
    let mut handles = Vec::with_capacity(AT_ONCE);
    while lent.recv_many(&mut handles, AT_ONCE).await > 0 {
        let Some(pool) = pool.upgrade() else { return };
        let handles = std::mem::take(&mut handles);
        pool.step(Event::Release { handles });
    }
}

impl Pool {
    /// The nodes of its job from now on, which share in groups of at most `most`; 0: all with all.
    ///
    /// # Errors
    /// `invalid` for an address that is none, or when this node isn't among them.
    pub fn set_peers(
        self: &Rc<Self>,
        me: u64,
        mut members: Vec<PeerAt>,
        most: u32,
        trust: &Trust,
    ) -> Result<(), Trouble> {
        // All nodes find the same groups.
        members.sort_unstable_by_key(|member| member.id);
        let own = members.iter().position(|member| member.id == me);
        let Some(own) = own.or(members.is_empty().then_some(0)) else {
            let message = format!("node {me} isn't among the {} nodes of its job", members.len());
            return Err(Trouble::new("invalid", message));
        };
        let all = members.len();
        let groups = together(all, if most == 0 { all.max(1) } else { most as usize });
        let own = groups.clone().nth(own);
        let (mates, strangers): (Vec<_>, Vec<_>) =
            members.iter().zip(groups).partition(|(_, group)| Some(*group) == own);
        let mut numbered = Vec::with_capacity(mates.len());
        let is_mate = |known: &Known| mates.iter().any(|(mate, _)| mate.id == known.id);
        // Who is none any more isn't asked.
        for gone in self.group.borrow_mut().known.iter_mut().filter(|known| !is_mate(known)) {
            gone.at = None;
        }
        for &(mate, _) in &mates {
            let at = match mate.id == me {
                true => None,
                false => Some((mate.address, peers::source(mate.address, trust)?)),
            };
            let mut group = self.group.borrow_mut();
            let number = group.number(mate.id);
            group.known[number].at = at;
            let number = u16::try_from(number).map_err(|_| Trouble::new("invalid", "a group has too many nodes"))?;
            let (id, bytes) = (mate.id, mate.keeps_bytes);
            numbered.push((number, Member { id, bytes }));
        }
        {
            let mut group = self.group.borrow_mut();
            group.is_open = mates.len() > 1;
            group.strangers = strangers.iter().map(|(stranger, _)| stranger.address).collect();
            group.trust = Some(trust.clone());
            let kept = mates.iter().map(|(mate, _)| mate.keeps_bytes);
            group.shared = (mates.len() as u64, kept.fold(0, u64::saturating_add));
        }
        self.step(Event::Peers { me, members: numbered });
        Ok(())
    }

    /// How many nodes share with each other, with this one, and the bytes that they can keep together.
    pub fn shared(&self) -> (u64, u64) {
        self.group.borrow().shared
    }

    /// Asks each other node of its group once. Who gave no answer that a peer gives, and why not.
    pub async fn reach(&self) -> Vec<(u64, String)> {
        let others = self.group.borrow().others();
        let asked = others
            .into_iter()
            .map(|(id, _, source)| async move { peers::reach(&source).await.err().map(|why| (id, why)) });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// How the job with a plan does on each of its other nodes, of whichever group.
    pub async fn reports(&self, plan: Digest) -> Vec<NodeReport> {
        let asked = self
            .group
            .borrow()
            .all_others()
            .into_iter()
            .map(|(address, source)| async move {
                let found = match source {
                    Ok(source) => peers::ask_report(&source, plan).await,
                    Err(trouble) => Err(trouble.message),
                };
                let (report, silence) = match found {
                    Ok(report) => (Some(report), None),
                    Err(why) => (None, Some(why)),
                };
                NodeReport {
                    address: Some(address),
                    report,
                    silence,
                }
            });
        futures::future::join_all(asked).await
    }

    /// A peer asks for a sample of a data set.
    ///
    /// # Errors
    /// The guest, when no job here reads that.
    pub fn serve(self: &Rc<Self>, dataset: Digest, sample: u64, guest: Guest) -> Result<(), Guest> {
        let Some((job, own)) = self.find(dataset, sample) else {
            return Err(guest);
        };
        let steps = guest.steps;
        let request = {
            let mut state = self.state.borrow_mut();
            let request = state.next_want;
            state.next_want += 1;
            state.guests.insert(request, guest);
            request
        };
        let samples = vec![own];
        self.step(Event::Serve {
            request,
            job,
            samples,
            steps,
        });
        Ok(())
    }

    /// A job that reads a sample of a data set, and its number there.
    fn find(&self, dataset: Digest, sample: u64) -> Option<(u32, u64)> {
        if self.is_closed() || !self.group.borrow().is_open {
            return None;
        }
        let name = {
            let state = self.state.borrow();
            let is_it = |digest: [u8; 16]| Digest::from_bytes(digest) == dataset;
            state
                .known
                .iter()
                .find(|known| is_it(known.dataset.index.digest()))?
                .name
        };
        let shelf = self.shelf(name).filter(|shelf| sample < shelf.blocks.samples())?;
        let on_node = shelf.first_sample + sample;
        let jobs = self.jobs.borrow();
        jobs.keys()
            .find_map(|&job| Some((job, self.look(|scheduler| scheduler.own(job, on_node))?)))
    }

    /// Guests with a question have gone away.
    pub fn see_off(self: &Rc<Self>, name: u64) {
        let mut requests: Vec<u64> = {
            let state = self.state.borrow();
            // Few wait, and they seldom go.
            let found = state.guests.iter().filter(|(_, guest)| guest.name == name);
            found.map(|(&request, _)| request).collect()
        };
        requests.sort_unstable();
        for &request in &requests {
            drop(self.state.borrow_mut().guests.remove(&request));
        }
        for request in requests {
            self.step(Event::Withdraw { request });
        }
    }

    /// Answers a peer. False: it was none of theirs.
    pub(super) fn lend(&self, request: u64, items: &[Item]) -> bool {
        let Some(guest) = self.state.borrow_mut().guests.remove(&request) else {
            return false;
        };
        let pool_bytes = self.ram_bytes().min(self.budget.get());
        let mut lent = items.iter().map(|item| Lent {
            arena: Arc::clone(&self.cache),
            offset: item.slot.offset,
            len: item.slot.len,
            via: item.via,
            pool_bytes,
            handle: item.handle,
            back: self.lent.clone(),
        });
        {
            let mut group = self.group.borrow_mut();
            group.served.0 += items.len() as u64;
            group.served.1 += items.iter().map(|item| item.slot.len).sum::<u64>();
        }
        guest.tell(lent.next());
        true
    }

    /// Tells a peer that it doesn't get what it asked for. False: it was none of theirs.
    pub(super) fn deny(&self, request: u64) -> bool {
        let guest = self.state.borrow_mut().guests.remove(&request);
        guest.map(|guest| guest.tell(None)).is_some()
    }

    /// Has loads fetched from peers that go in bundles, which are one after the other.
    pub(super) fn fetch_bundles(self: &Rc<Self>, actions: Vec<Action>) {
        let bundle = |action: &Action| match action.command() {
            Command::Load(load) => load.bundle,
            _ => None,
        };
        let mut actions = actions.into_iter().peekable();
        while let Some(first) = actions.next() {
            let mut bundled = vec![first];
            while let Some(next) = actions.next_if(|next| bundle(next) == bundle(&bundled[0])) {
                bundled.push(next);
            }
            self.fetch_bundle(bundled);
        }
    }

    /// Has a load fetched from a peer.
    pub(super) fn fetch_from_peer(self: &Rc<Self>, action: Action) {
        self.fetch_bundle(vec![action]);
    }

    fn fetch_bundle(self: &Rc<Self>, actions: Vec<Action>) {
        let mut known = Vec::with_capacity(actions.len());
        for action in actions {
            match self.question(&action) {
                Some(question) => known.push((action, question)),
                None => self.end_later(action.failed(Failure::Unavailable)),
            }
        }
        let Some((first, it)) = known.first() else { return };
        if let Command::Load(load) = first.command() {
            self.note(load, |node| node.requests += 1);
        }
        let dataset = Digest::from_bytes(it.proof.dataset.index.digest());
        let steps = known.iter().map(|(_, it)| it.steps).min().unwrap_or_default();
        let key = peers::key(dataset, steps, known.iter().map(|(_, it)| it.sample));
        if known.len() > 1 {
            return self.ask_for_all(key, known);
        }
        if let Some((action, it)) = known.pop() {
            self.ask_for_one(action, it, key);
        }
    }

    /// What to ask for a load. `None`: there is nobody to ask, or nobody reads its data set any more.
    fn question(&self, action: &Action) -> Option<ToAsk> {
        let Command::Load(load) = action.command() else {
            return None;
        };
        let LoadSource::Peer(peer) = load.source else {
            return None;
        };
        let source = self.group.borrow().source(peer)?;
        let (mut proof, piece) = (self.proof(load)?, load.pieces.first()?);
        let sample = proof.sample_of(piece.content);
        proof.checks = vec![Check {
            sample,
            piece: 0,
            at: 0,
            len: load.len,
        }];
        Some(ToAsk {
            source,
            sample,
            steps: load.steps,
            len: load.len,
            deadline: self.begun + Duration::from_nanos(load.deadline_ns),
            sink: Scatter::new(Arc::clone(&self.cache), load, &proof.checks),
            proof,
        })
    }

    fn ask_for_one(&self, action: Action, it: ToAsk, key: String) {
        let object = ObjectRef {
            key,
            size: it.len,
            etag: None,
            version: None,
        };
        let carrier = self.carriers.carry(Order {
            name: (self.id, action.id()),
            source: it.source,
            object,
            range: 0..it.len,
            deadline: it.deadline,
            sink: it.sink,
            back: self.back.clone(),
        });
        self.note_fetch(action, it.proof, carrier, None);
    }

    /// One request for several.
    fn ask_for_all(&self, key: String, known: Vec<(Action, ToAsk)>) {
        let order = known[0].0.id();
        let (source, deadline) = (known[0].1.source.clone(), known[0].1.deadline);
        let (mut parts, mut fetches) = (Vec::with_capacity(known.len()), Vec::with_capacity(known.len()));
        for (action, it) in known {
            parts.push(Part {
                action: action.id(),
                len: it.len,
                sink: it.sink,
            });
            fetches.push((action, it.proof));
        }
        let carriers = self.carriers.carry_all(Bundle {
            name: (self.id, order),
            source,
            key,
            parts,
            deadline,
            back: self.back.clone(),
        });
        for ((action, proof), carrier) in fetches.into_iter().zip(carriers) {
            self.note_fetch(action, proof, carrier, Some(order));
        }
    }

    /// Notes something of the node that was asked.
    fn note(&self, load: &Load, what: impl FnOnce(&mut Known)) {
        if let LoadSource::Peer(number) = load.source {
            self.group.borrow_mut().known.get_mut(usize::from(number)).map(what);
        }
    }

    /// The other nodes of the group: what each has given, and how it does.
    pub fn nodes(&self) -> Vec<NodeStats> {
        let group = self.group.borrow();
        let state = |number: usize| self.look(|scheduler| scheduler.peer(u16::try_from(number).ok()?));
        let others = group.known.iter().enumerate();
        let others = others.filter_map(|(number, known)| {
            let (address, _) = known.at.as_ref()?;
            let state = state(number)?;
            Some(NodeStats {
                address: *address,
                requests: known.requests,
                samples: known.samples,
                bytes: known.bytes,
                misses: known.misses,
                failures: known.failures,
                in_flight: state.in_flight,
                is_avoided: state.is_avoided,
                latency_s: state.latency_s,
                bytes_per_s: state.bytes_per_s,
            })
        });
        others.collect()
    }

    /// Samples and bytes that other nodes had from this one.
    pub fn served(&self) -> (u64, u64) {
        self.group.borrow().served
    }

    /// A peer's answer, or what became of it.
    pub(super) fn landed_from_peer(&self, fetch: Fetch, landed: &Landed) -> Completion {
        let Fetch { action, proof, .. } = fetch;
        let Command::Load(load) = action.command() else {
            return action.failed(Failure::Cancelled);
        };
        let failed = || {
            self.count(load.job, |stats| stats.peer_failures += 1);
            self.note(load, |known| known.failures += 1);
        };
        let fetched = match &landed.fetched {
            None => return action.failed(Failure::Cancelled),
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => {
                self.count(load.job, |stats| stats.peer_misses += 1);
                self.note(load, |known| known.misses += 1);
                return action.failed(Failure::Final);
            }
            Some(Err(_)) => {
                failed();
                return action.failed(Failure::Unavailable);
            }
            Some(Ok(fetched)) => fetched,
        };
        let said = fetched.etag.as_deref().and_then(Said::of);
        let sums = landed.sink.checksums();
        let is_right = |said: &Said| sums == Some(&[said.crc]) && self.check(load, &proof, sums).is_ok();
        let Some(said) = said.filter(is_right) else {
            failed();
            return action.failed(Failure::Corrupt);
        };
        self.note(load, |known| {
            known.samples += 1;
            known.bytes += load.len;
        });
        match said.was_fetched {
            true => action.done_apart(),
            false => action.done(fetched.first_byte.as_nanos() as u64, fetched.transfer.as_nanos() as u64),
        }
    }
}

/// Whether a load is a peer's.
pub(super) fn is_of_peer(load: &Load) -> bool {
    matches!(load.source, LoadSource::Peer(_))
}
