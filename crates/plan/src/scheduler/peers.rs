//! Peers: the other nodes of a group, as far as the plan goes.
//!
//! Each block has a home ([`Homes`]), the same one on all nodes. A node keeps the blocks whose home it is, in memory and on its disks, and asks their homes for
//! the others; what it gets from a peer, and what has no home, passes through. Only a node whose disks have room for all there is keeps copies there, of all that it reads. A peer is one more source with a lane of its own: one that is ill, or hasn't
//! got something, is a reason to ask the bucket, and nothing else. So whatever peers do, every read ends as it would without them.
//!
//! The other way round a peer is a consumer without a window ([`Event::Serve`](crate::action::Event::Serve)): what it asks for comes from memory, from a disk or, at its
//! home, from the bucket, where it stays then for whoever asks next.
//!
//! | what a peer asks for | answer |
//! | --- | --- |
//! | is in memory, or on its way from the bucket or a disk | delivered when it is there |
//! | is on its way from another peer | refused: two nodes that take each other for the home would wait for each other |
//! | is on a disk | read, if there is memory that nobody has planned with |
//! | has its home here | fetched from the bucket and kept, on the same condition |
//! | has its home elsewhere | refused |
//! | there is no memory for now | waits, or is refused where [only peers would give some back](super::patience). What is in memory doesn't wait for that |

use super::frequency::Frequent;
use super::requests::Target;
use super::residents::State;
use super::tiers::{Bits, Tier, record_bytes};
use super::{Scheduler, Urgency};
use crate::action::{Action, Failure, Source, Via};
use crate::arena::reserved_bytes;
use crate::blocks::Content;
use crate::homes::{Homes, MOST_MEMBERS, Member};
use crate::library::Library;
use crate::policy::Retention;
use crate::settings::SLOW_S;
use std::collections::BTreeMap;

/// A peer that answers sooner holds nobody up: what a busy machine takes at times.
const LATE_S: f64 = 0.05;

/// What others ask for further ahead counts as so far away.
const MOST_STEPS: u64 = 1 << 20;

/// A peer is slow that takes so many times as long as others do.
const SLOWER: f64 = 4.0;

/// The group that a node is in; empty: it is alone.
#[derive(Default)]
pub(super) struct Group {
    /// By place in the list of members: the numbers of their lanes; `None`: this node.
    peers: Vec<Option<u16>>,
    members: Vec<Member>,
    /// Of each data set, by its first block. A node that is alone keeps what it likes of those that aren't here.
    homes: BTreeMap<u64, Homes>,
    /// Blocks that this node keeps, though another one may be their home.
    kept: Bits,
    /// Blocks that this node keeps and that aren't for its memory.
    slow: Bits,
    /// Bytes for its memory of each data set of which it is known what this node keeps, by its first block.
    pub memory: BTreeMap<u64, u64>,
    /// Whether this node's disks have room for all of it: then they keep what others keep, too, and nothing has to leave for something else when homes move.
    pub copies: bool,
    /// What tells this node from the others.
    me: u64,
}

/// Who keeps a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// This node.
    Here,
    /// Another one.
    Peer(u16),
    /// Nobody.
    Nowhere,
}

impl Group {
    pub fn is_alone(&self) -> bool {
        self.members.len() < 2
    }

    /// Whether there is one other node.
    pub fn is_a_pair(&self) -> bool {
        self.members.len() == 2
    }

    fn home(&self, library: &Library, block: u64) -> Home {
        let first = library.shelf_of_block(block).first_block;
        match self.homes.get(&first).map(|homes| homes.of(block - first)) {
            None if self.is_alone() => Home::Here,
            None | Some(None) => Home::Nowhere,
            Some(Some(at)) => self.peers.get(at).copied().flatten().map_or(Home::Here, Home::Peer),
        }
    }

    /// Whether a block is this node's to keep.
    fn keeps(&self, library: &Library, block: u64) -> bool {
        self.kept.has(block) || self.home(library, block) == Home::Here
    }
}

impl Scheduler {
    /// The group changes. What is in the air ends as it would have; what others are to keep now rests until its memory is needed.
    pub(super) fn set_peers(&mut self, me: u64, mut members: Vec<(u16, Member)>) {
        members.truncate(MOST_MEMBERS);
        // A node that isn't among them would take nothing for its own, and caches of the papers know nothing of homes.
        if !members.iter().any(|(_, member)| member.id == me) || self.settings.policy.retention() != Retention::Pinned {
            members.clear();
        }
        for &(number, member) in &members {
            if member.id != me {
                self.loads.lanes.reach(number);
            }
        }
        self.group = Group {
            peers: members
                .iter()
                .map(|&(number, member)| (member.id != me).then_some(number))
                .collect(),
            members: members.into_iter().map(|(_, member)| member).collect(),
            homes: BTreeMap::new(),
            kept: Bits::default(),
            slow: Bits::default(),
            memory: BTreeMap::new(),
            copies: false,
            me,
        };
        self.find_homes();
        self.keep_ours();
    }

    /// What others are to keep now rests until its memory is needed.
    pub(super) fn keep_ours(&mut self) {
        let (library, group) = (&self.library, &self.group);
        let is_ours = |content| group.keeps(library, library.block_of(content));
        self.residents.keep_only(&mut self.arena, is_ours);
    }

    /// Homes of the data sets that there are now. Of several each node keeps as much as their sizes say.
    pub(super) fn find_homes(&mut self) {
        let frequent = match self.group.is_alone() {
            false => self.frequent(&self.group.members, self.group.me),
            true => self
                .by_itself()
                .map_or_else(Frequent::default, |own| self.frequent(&[own], own.id)),
        };
        (self.group.homes, self.group.memory) = (frequent.homes, frequent.memory);
        (self.group.kept, self.group.slow) = (frequent.kept, frequent.slow);
        self.claim_memory();
        self.group.copies = false;
        if self.group.is_alone() {
            return;
        }
        let shelves = self.library.shelves();
        let records = shelves
            .iter()
            .flat_map(|shelf| shelf.blocks_on_node().map(|block| record_bytes(shelf.len_of(block))));
        let room: u64 = self.tiers.iter().map(Tier::capacity_bytes).fold(0, u64::saturating_add);
        self.group.copies = self.group.homes.is_empty() && records.fold(0, u64::saturating_add) <= room;
        let all: u128 = shelves.iter().map(|shelf| u128::from(shelf.bytes.max(1))).sum();
        for shelf in shelves {
            if self.group.homes.contains_key(&shelf.first_block) {
                continue;
            }
            let part = |bytes: u64| (u128::from(bytes) * u128::from(shelf.bytes.max(1)) / all.max(1)) as u64;
            let members: Vec<Member> = self
                .group
                .members
                .iter()
                .map(|member| Member {
                    bytes: part(member.bytes),
                    ..*member
                })
                .collect();
            // As memory counts them.
            let lengths = shelf.blocks_on_node().map(|block| reserved_bytes(shelf.len_of(block)));
            self.group
                .homes
                .insert(shelf.first_block, Homes::new(lengths, &members));
        }
    }

    /// The home of what is in a block, or is one.
    pub(super) fn home_of(&self, content: Content) -> Home {
        if self.group.is_alone() && self.group.homes.is_empty() {
            return Home::Here;
        }
        self.group.home(&self.library, self.library.block_of(content))
    }

    /// Whether memory may keep it.
    pub(super) fn is_for_memory(&self, content: Content) -> bool {
        !self.group.slow.has(self.library.block_of(content))
    }

    /// Whether it is this node's to keep.
    pub(super) fn is_ours(&self, content: Content) -> bool {
        self.group.is_alone() && self.group.homes.is_empty()
            || self.group.keeps(&self.library, self.library.block_of(content))
    }

    /// The peer to ask for `len` bytes of a block that a line needs: its home, unless that is ill, or holds the line up.
    pub(super) fn peer_with(&self, content: Content, len: u64, line: u64) -> Option<u16> {
        let Home::Peer(peer) = self.home_of(content) else {
            return None;
        };
        let lane = self.loads.lanes.of(Source::Peer(peer));
        let is_asked = lane.is_open(self.now_ns) && !self.holds_up(peer, len, line);
        is_asked.then_some(peer)
    }

    /// Whether what a peer is asked for comes too late for a line, at the pace that its rank would have without, and the bucket is faster by far. A peer may be slow
    /// and answer all the same: then nothing fails, its breaker stays closed, and each batch waits for its part. A long queue alone doesn't make it slow: where much is
    /// read ahead at once all have one.
    fn holds_up(&self, peer: u16, len: u64, line: u64) -> bool {
        let lanes = &self.loads.lanes;
        let lane = lanes.of(Source::Peer(peer));
        let leaves = |patience_s| self.leaves(Source::Peer(peer), len, lane.wait_s(len), patience_s);
        // The cheapest question first: nearly always it doesn't.
        if !leaves(LATE_S) || lane.rests(self.now_ns) {
            return false;
        }
        let soonest_s = self.windows.needed_soonest_in_ns(line) / 1e9;
        // Where all are slow, it is the network, and what it brings needn't be paid for. Who is the only other one is held against the bucket.
        let (others_s, patience_s) = match lanes.other_peers_take_s(peer, len) {
            Some(others_s) => (others_s, soonest_s.clamp(LATE_S, SLOW_S)),
            None => (lanes.bucket.estimate.expected_s(len), SLOW_S),
        };
        lane.estimate.expected_s(len) > SLOWER * others_s && leaves(patience_s)
    }

    /// A peer asks.
    pub(super) fn serve(&mut self, request: u64, job: u32, samples: &[u64], steps: u64, actions: &mut Vec<Action>) {
        let Some(&place) = self.windows.reader(job).and_then(|reader| reader.places.first()) else {
            return self.tell(request, None, Failure::Final, actions);
        };
        let targets = samples.iter().map(|&sample| Target::Unplaced(sample)).collect();
        // Ranks of one job are at the same step, or nearly.
        let step = self.windows.of(place).head().saturating_add(steps.min(MOST_STEPS));
        let line = self.windows.line_at(place, step);
        self.open_request(request, place, targets, Some(line), actions);
        // What is in memory needs none, whoever waits for some.
        while let Some((_, at, own)) = self.requests.next_unplaced(request) {
            let sample = self.windows.on_node(place, own);
            let is_there = self.resident_with(sample).is_some() && self.is_for_guests(sample);
            if !is_there || !self.place_one(request, at, own, Urgency::Guest, actions) {
                return;
            }
        }
        self.requests.guests.retain(|&other| other != request);
    }

    /// Gives what peers ask for its memory, in the order of asking, as far as nobody else needs that.
    pub(super) fn place_guests(&mut self, actions: &mut Vec<Action>) {
        while let Some(id) = self.requests.guests.front().copied() {
            let Some((place, at, own)) = self.requests.next_unplaced(id) else {
                self.requests.guests.pop_front();
                continue;
            };
            let sample = self.windows.on_node(place, own);
            if !self.is_for_guests(sample) {
                self.refuse(id, Some(own), Failure::Final, actions);
            } else if !self.place_one(id, at, own, Urgency::Guest, actions) {
                return;
            }
        }
    }

    /// Whether this node has something for others, or is to have it.
    fn is_for_guests(&self, sample: u64) -> bool {
        if let Some(id) = self.resident_with(sample) {
            let resident = self.residents.get(id);
            return match resident.state {
                State::Loading => resident.via != Via::Peer,
                State::Ready => true,
                State::Vacant | State::Failed(_) => false,
            };
        }
        let content = Content::sample(sample);
        let block = self.library.block_of(content);
        self.best_tier(block, self.library.place(sample).len).is_some() || self.is_ours(content)
    }
}

#[cfg(test)]
mod tests;
