//! What nodes ask each other for: a lane to each home, and what a home does for who asks.
//!
//! As the engine has it ([`foreload_plan::scheduler`]): a lane has so many questions in flight, learns how long its peer takes, and is left for the source when the
//! peer is slow by far. All are there, and answer in the end: nobody loses patience as the engine does, which waits for what holds its loop up for 2 s at most. A home gives what is in memory at once; what is on its disk, or not there yet, it reads first, for whoever asks, if memory
//! that nobody has planned with has room for it.

use super::placement::Where;
use super::requests::Keep;
use super::staging::Room;
use super::{Due, Run, Want};
use foreload_plan::model::{Estimate, Pinned};
use foreload_plan::settings::{SLOW_S, Settings};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

const MB: f64 = 1_048_576.0;
/// Of the engine's lanes to peers: what is in the air at most, what they are expected to bring before they are known, and how long one rests that is tried again.
const PEER_MB: f64 = 8.0;
const PRIOR: Pinned = Pinned {
    latency_s: 1e-3,
    bytes_per_s: 1e9,
};
const REST_S: f64 = 1.0;
/// A peer that answers sooner holds nobody up, and one is slow that takes so many times as long as others do.
const LATE_S: f64 = 0.05;
const SLOWER: f64 = 4.0;
/// A home refuses what it has had no memory for for so long, if that is all for what its own peers are to bring.
const STUCK_S: f64 = 0.05;

/// A node's way to one home.
#[derive(Debug)]
struct Lane {
    waits: VecDeque<Want>,
    in_flight: u32,
    flying_mb: f64,
    estimate: Estimate,
    ended_at: f64,
}

impl Lane {
    fn new() -> Self {
        Self {
            waits: VecDeque::new(),
            in_flight: 0,
            flying_mb: 0.0,
            estimate: Estimate::new(PRIOR, false).by_time(),
            ended_at: 0.0,
        }
    }

    fn next(&mut self, depth: u32) -> Option<Want> {
        let mb = self.waits.front()?.mb;
        let has_room = self.in_flight == 0 || self.flying_mb + mb <= PEER_MB;
        if self.in_flight < depth && has_room {
            return self.waits.pop_front();
        }
        None
    }

    fn ended(&mut self, mb: f64, at: f64) {
        self.in_flight -= 1;
        self.flying_mb -= mb;
        self.ended_at = at;
    }
}

/// A sample that a home was asked for.
#[derive(Clone, Copy, Debug)]
struct Question {
    want: Want,
    home: u32,
    asked_at: f64,
    /// Its stay in the home's staging memory.
    stay: Option<u64>,
    /// The home had to fetch it: what that took says nothing of the home.
    is_apart: bool,
}

/// All lanes and questions.
#[derive(Debug)]
pub struct Peers {
    depth: u32,
    lanes: FxHashMap<(u32, u32), Lane>,
    questions: Vec<Question>,
    spare: Vec<u32>,
}

impl Peers {
    /// Nobody has asked.
    pub fn new() -> Self {
        Self {
            depth: Settings::default().peer_depth,
            lanes: FxHashMap::default(),
            questions: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn lane(&mut self, node: u32, home: u32) -> &mut Lane {
        self.lanes.entry((node, home)).or_insert_with(Lane::new)
    }

    fn of(&mut self, question: u32) -> &mut Question {
        &mut self.questions[question as usize]
    }

    fn begin(&mut self, question: Question) -> u32 {
        let number = self.spare.pop().unwrap_or(self.questions.len() as u32);
        match self.questions.get_mut(number as usize) {
            Some(place) => *place = question,
            None => self.questions.push(question),
        }
        number
    }

    /// Seconds that others than `home` take for `mb`, as far as `node` knows: half of them no longer.
    fn others_take_s(&self, node: u32, nodes: u32, home: u32, mb: f64) -> Option<f64> {
        let lanes = (0..nodes)
            .filter(|other| *other != home)
            .filter_map(|other| self.lanes.get(&(node, other)));
        let known = lanes.filter(|lane| lane.estimate.observations() > 0);
        let mut takes_s: Vec<f64> = known.map(|lane| lane.estimate.expected_s(bytes(mb))).collect();
        takes_s.sort_unstable_by(f64::total_cmp);
        takes_s.get(takes_s.len() / 2).copied()
    }
}

fn bytes(mb: f64) -> u64 {
    (mb * MB) as u64
}

impl Run<'_> {
    /// The access of a home that is as far away as the one of another node that needs what a question is for.
    pub(super) fn due(&self, question: u32) -> u64 {
        let Question { want, home, .. } = self.peers.questions[question as usize];
        let (home, asker) = (&self.nodes[home as usize], &self.nodes[want.node as usize]);
        home.first() + want.seq.saturating_sub(asker.first())
    }

    /// Asks the home of a sample, or the source where that holds the node up.
    pub(super) fn ask_home(&mut self, want: Want, home: u32, at: f64) {
        if self.holds_up(want, home, at) {
            return self.ask_source(want, Keep::No, at);
        }
        self.peers.lane(want.node, home).waits.push_back(want);
        self.depart(want.node, home, at);
    }

    /// Whether a home is so slow that the sample comes too late, and the source is faster by far.
    fn holds_up(&mut self, want: Want, home: u32, at: f64) -> bool {
        let (Want { node, seq, mb, .. }, depth) = (want, self.peers.depth);
        let lane = self.peers.lane(node, home);
        let (takes_s, waiting) = (lane.estimate.expected_s(bytes(mb)), lane.waits.len());
        let rests = lane.in_flight == 0 && waiting == 0 && at - lane.ended_at >= REST_S;
        let wait_s = takes_s * (1.0 + waiting as f64 / f64::from(depth));
        let requests = &self.nodes[node as usize].requests;
        let (source_s, source_brings) = (requests.wait_s(), requests.answered_per_s());
        let brings = f64::from(depth) / takes_s;
        let leaves = |patience_s| {
            self.settings
                .leaves_cache(wait_s, source_s, brings, source_brings, patience_s)
        };
        if !leaves(LATE_S) || rests {
            return false;
        }
        match self.peers.others_take_s(node, self.setup.hardware.nodes, home, mb) {
            Some(others_s) => {
                let soonest_s = self.nodes[node as usize].needed_at(self.setup, seq, at) - at;
                takes_s > SLOWER * others_s && leaves(soonest_s.clamp(LATE_S, SLOW_S))
            }
            None => leaves(SLOW_S),
        }
    }

    /// Puts the questions of a node to a home that may be in flight.
    fn depart(&mut self, node: u32, home: u32, at: f64) {
        let depth = self.peers.depth;
        while let Some(want) = self.peers.lane(node, home).next(depth) {
            let lane = self.peers.lane(node, home);
            lane.in_flight += 1;
            lane.flying_mb += want.mb;
            let question = self.peers.begin(Question {
                want,
                home,
                asked_at: at,
                stay: None,
                is_apart: false,
            });
            self.serve(home, Want { question, ..want }, at);
        }
    }

    /// A home is asked: what is in memory, or on its way there, needs none, whoever waits for some.
    fn serve(&mut self, home: u32, want: Want, at: f64) {
        let n = &self.nodes[home as usize];
        let is_there = n.guests.is_empty()
            || n.staging.holds(want.sample).is_some()
            || match self.homes.find(home, want.sample) {
                Where::Own(tier) => self.is_ram(tier),
                found => found == Where::Coming,
            };
        if !is_there || !self.place(home, want, at) {
            self.nodes[home as usize].guests.push_back(want);
            self.guests_are_due(home, at + STUCK_S);
        }
    }

    /// Gives those who wait for a home's memory what there is, in the order of asking.
    pub(super) fn place_guests(&mut self, home: u32, at: f64) {
        self.nodes[home as usize].guests_due_at = f64::INFINITY;
        while let Some(&want) = self.nodes[home as usize].guests.front() {
            if !self.place(home, want, at) {
                let turns_away_at = self.peers.of(want.question).asked_at + STUCK_S;
                if at < turns_away_at {
                    return self.guests_are_due(home, turns_away_at);
                }
                if !self.nodes[home as usize].requests.are_idle() {
                    return;
                }
                self.turn_away(want.question, at);
            }
            self.nodes[home as usize].guests.pop_front();
        }
    }

    /// A home has no memory for what it was asked for, and nothing under way there gives any back.
    fn turn_away(&mut self, question: u32, at: f64) {
        let Question { want, home, .. } = *self.peers.of(question);
        self.peers.spare.push(question);
        self.peers.lane(want.node, home).ended(want.mb, at);
        self.ask_source(want, Keep::Ill, at);
        self.depart(want.node, home, at);
    }

    /// Has a home answer, or read what it is asked for. False: it has no memory for that yet.
    fn place(&mut self, home: u32, want: Want, at: f64) -> bool {
        let Want {
            question, sample, mb, ..
        } = want;
        if let Some(fetched) = self.nodes[home as usize].staging.holds(sample) {
            match fetched.is_nan() {
                true => self.wait_for_coming(home, want),
                false => self.answer_staged(home, want, at, fetched),
            }
            return true;
        }
        let keep = match self.homes.find(home, sample) {
            Where::Own(tier) if self.is_ram(tier) => {
                self.answer(question, at, at);
                return true;
            }
            Where::Own(tier) => {
                let done = self.devices.tier_done(home, tier, mb, at);
                let is_ill = self.leaves(home, at, (self.setup.hardware.tiers[tier].read_mb_s, done));
                if !self.has_room(home, mb, at) {
                    return false;
                }
                if !is_ill {
                    let stay = self.nodes[home as usize].staging.admit(sample, mb);
                    let done = self.devices.read_tier(home, tier, mb, at);
                    self.nodes[home as usize].staging.fetched(sample, stay, done);
                    self.answer_staged(home, want, at, done);
                    return true;
                }
                Keep::Ill
            }
            Where::Coming => {
                self.wait_for_coming(home, want);
                return true;
            }
            _ => match self.homes.choose(home, sample, &self.devices, at) {
                Some(tier) => Keep::Home(tier),
                None => Keep::No,
            },
        };
        match keep {
            Keep::Home(tier) => {
                if !self.is_ram(tier) {
                    let block_mb = self.homes.blocks.len(self.homes.blocks.number(sample)) as f64 / MB;
                    if !self.has_room(home, block_mb, at) {
                        return false;
                    }
                }
                self.keep(home, sample, tier);
            }
            Keep::No | Keep::Ill => {
                if !self.has_room(home, mb, at) {
                    return false;
                }
                self.nodes[home as usize].staging.admit(sample, mb);
            }
        }
        self.wait(home, want);
        let for_others = Want {
            node: home,
            seq: u64::MAX,
            ..want
        };
        self.ask_source(for_others, keep, at);
        true
    }

    /// Waits for what a home reads anyway, and may have to read sooner than it would have.
    fn wait_for_coming(&mut self, home: u32, want: Want) {
        let (due, blocks) = (self.due(want.question), &self.homes.blocks);
        let block = blocks.number(want.sample);
        let requests = &mut self.nodes[home as usize].requests;
        requests.hurry(due, |brings| blocks.number(brings.want.sample) == block);
        self.wait(home, want);
    }

    /// Whether a home has memory for what another node asks for; it is looked at again when it will have some.
    fn has_room(&mut self, home: u32, mb: f64, at: f64) -> bool {
        match self.nodes[home as usize].staging.room_at(mb, 0.0, at, Room::Asked) {
            Some(from) if from <= at => true,
            Some(from) => {
                self.guests_are_due(home, from);
                false
            }
            None => false,
        }
    }

    fn guests_are_due(&mut self, home: u32, at: f64) {
        let n = &mut self.nodes[home as usize];
        if at < n.guests_due_at {
            n.guests_due_at = at;
            self.at(at, Due::Guests(home));
        }
    }

    /// Somebody may go on who waited for memory of a node.
    pub(super) fn wake(&mut self, node: u32, at: f64) {
        let n = &mut self.nodes[node as usize];
        let (blocked, has_guests) = (std::mem::take(&mut n.blocked), !n.guests.is_empty());
        if has_guests {
            self.guests_are_due(node, at);
        }
        if blocked {
            self.at(at, Due::Admit(node));
        }
    }

    /// A home has fetched what another node waits for.
    pub(super) fn fetched_for(&mut self, home: u32, want: Want, at: f64, arrived: f64) {
        let Want { question, sample, .. } = want;
        self.peers.of(question).is_apart = true;
        match self.nodes[home as usize].staging.holds(sample) {
            Some(_) => self.answer_staged(home, want, at, arrived),
            None => self.answer(question, at, arrived),
        }
    }

    /// Answers with what is in staging memory from `ready` on: there it stays until it is sent.
    fn answer_staged(&mut self, home: u32, want: Want, at: f64, ready: f64) {
        let stay = self.nodes[home as usize].staging.admit(want.sample, want.mb);
        self.nodes[home as usize].staging.fetched(want.sample, stay, ready);
        self.peers.of(want.question).stay = Some(stay);
        self.answer(want.question, at, ready);
    }

    fn answer(&mut self, question: u32, at: f64, ready: f64) {
        match ready > at {
            true => self.at(ready, Due::Answer(question)),
            false => self.send(question, at),
        }
    }

    /// What a home was asked for is in its memory, and goes through the network.
    pub(super) fn send(&mut self, question: u32, at: f64) {
        let Question { want, home, stay, .. } = *self.peers.of(question);
        let Want { node, sample, mb, .. } = want;
        let sent = self.devices.send(home, node, mb, at);
        if let Some(stay) = stay {
            self.nodes[home as usize].staging.rests(sample, stay, mb, sent);
            self.wake(home, at);
        }
        self.counts.mb.peer += mb;
        match self.nodes[node as usize].requests.is_fresh() {
            true => self.at(sent, Due::Arrived(question)),
            false => self.brought(question, at, sent),
        }
    }

    /// What a node asked for is there, and is written to memory that is fresh.
    pub(super) fn arrived(&mut self, question: u32, at: f64) {
        let Want { node, mb, .. } = self.peers.of(question).want;
        let done = self.nodes[node as usize].requests.filled(mb, at);
        self.brought(question, at, done);
    }

    /// It is known when a node will have what it asked for.
    fn brought(&mut self, question: u32, at: f64, done: f64) {
        let want = self.peers.of(question).want;
        self.at(done, Due::Answered(question));
        self.fetched(want.node, want.seq, done);
        self.share(want.node, want, at, done, &[want.sample], false);
        self.wake(want.node, at);
    }

    /// A node has what it asked for.
    pub(super) fn answered(&mut self, question: u32, at: f64) {
        let Question {
            want,
            home,
            asked_at,
            is_apart,
            ..
        } = *self.peers.of(question);
        self.peers.spare.push(question);
        let lane = self.peers.lane(want.node, home);
        lane.ended(want.mb, at);
        if !is_apart {
            lane.estimate.observe(bytes(want.mb), 0.0, at - asked_at);
        }
        self.depart(want.node, home, at);
    }
}
