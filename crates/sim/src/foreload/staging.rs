//! The memory of one node that samples pass through.
//!
//! A sample takes its bytes when it is admitted, and gives them back when they are needed after its use, the one that was used first before all others. What
//! rests so is found by who reads it again, here or on another node; and neighbours that come along in a request wait here for their use, or for the disk that
//! they go to. Where nodes exchange samples, look-ahead leaves a part to what others ask for, as in the engine.

use crate::Setup;
use rustc_hash::FxHashMap;
use std::collections::{VecDeque, hash_map::Entry};

/// A sample that was consumed at a time that is known, and whose memory nobody needed since.
#[derive(Clone, Copy, Debug)]
struct Rest {
    sample: u32,
    stay: u64,
    mb: f64,
    from: f64,
}

/// A sample that can be found.
#[derive(Clone, Copy, Debug)]
struct Held {
    stay: u64,
    /// NaN until known.
    fetched: f64,
    /// When the disk that it goes to has it.
    written: f64,
    /// It came along with a neighbour, and no access of it is admitted yet: MB of it that were expected.
    along: Option<f64>,
}

/// For whom there is to be room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// What nobody asked for yet.
    Ahead,
    /// What another node asks for, or a batch that was asked for.
    Asked,
    /// The batch that is used next.
    Needed,
}

/// Staging memory.
#[derive(Debug)]
pub struct Staging {
    capacity_mb: f64,
    /// Of it, what look-ahead may take.
    ahead_mb: f64,
    staged_mb: f64,
    /// Samples that `staged_mb` is the sum of.
    staged: u32,
    rest: VecDeque<Rest>,
    stays: u64,
    held: FxHashMap<u32, Held>,
    /// MB that came along with a neighbour and are read soon.
    expected_mb: f64,
}

impl Staging {
    /// Empty.
    pub fn new(setup: &Setup<'_>) -> Self {
        let capacity_mb = memory(setup).0;
        let guests = if setup.hardware.exchanges() { GUESTS } else { 0.0 };
        Self {
            capacity_mb,
            ahead_mb: capacity_mb * (1.0 - guests / USED),
            staged_mb: 0.0,
            staged: 0,
            rest: VecDeque::new(),
            stays: 0,
            held: FxHashMap::default(),
            expected_mb: 0.0,
        }
    }

    /// All of it, slack included.
    pub fn whole_mb(&self) -> f64 {
        self.capacity_mb / USED
    }

    /// When a sample that is here was fetched: NaN while it is on its way.
    pub fn holds(&self, sample: u32) -> Option<f64> {
        self.held.get(&sample).map(|held| held.fetched)
    }

    /// The earliest time at which `mb` fit for `whom`, and `along_mb` of neighbours with them; `None`: that isn't known yet. What is needed fits at once, if
    /// nothing rests.
    pub fn room_at(&mut self, mb: f64, along_mb: f64, mut at: f64, whom: Room) -> Option<f64> {
        let most_mb = if whom == Room::Ahead {
            self.ahead_mb
        } else {
            self.capacity_mb
        };
        let along_mb = along_mb.min(most_mb / 2.0);
        while self.staged > 0 && self.staged_mb + mb + along_mb > most_mb {
            match self.leave() {
                Some(from) => at = at.max(from),
                None if whom == Room::Needed => break,
                None => return None,
            }
        }
        Some(at)
    }

    /// Takes the memory of a sample that is admitted, unless it is here; returns the number of its stay.
    pub fn admit(&mut self, sample: u32, mb: f64) -> u64 {
        self.stays += 1;
        let stay = self.stays;
        match self.held.entry(sample) {
            // Its bytes are there, or on their way: they leave after this use.
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                held.stay = stay;
                self.expected_mb -= held.along.take().unwrap_or(0.0);
            }
            Entry::Vacant(place) => {
                place.insert(Held {
                    stay,
                    fetched: f64::NAN,
                    written: 0.0,
                    along: None,
                });
                self.staged += 1;
                self.staged_mb += mb;
            }
        }
        stay
    }

    /// A sample is here from `at` on.
    pub fn fetched(&mut self, sample: u32, stay: u64, at: f64) {
        let held = self.held.get_mut(&sample);
        if let Some(held) = held.filter(|held| held.stay == stay) {
            held.fetched = at;
        }
    }

    /// A sample was used: its memory may be needed for others from `from` on, or when it is written.
    pub fn rests(&mut self, sample: u32, stay: u64, mb: f64, from: f64) {
        let written = self.held.get(&sample).map_or(0.0, |held| held.written);
        let from = from.max(written);
        self.rest.push_back(Rest { sample, stay, mb, from });
    }

    /// Takes memory at `at` for a sample that comes along with a neighbour and is read soon, if a fourth of it isn't taken so already.
    pub fn expect(&mut self, sample: u32, mb: f64, at: f64) -> bool {
        if self.expected_mb + mb > self.whole_mb() / 4.0 {
            return false;
        }
        while self.staged_mb + mb > self.ahead_mb {
            if self.rest.front().is_none_or(|rest| rest.from > at) {
                return false;
            }
            self.leave();
        }
        self.expected_mb += mb;
        self.hold(sample, mb, mb);
        true
    }

    /// Takes memory for a sample on its way to a disk, if it isn't here.
    pub fn pass(&mut self, sample: u32, mb: f64) {
        if self.holds(sample).is_none() {
            self.hold(sample, mb, 0.0);
        }
    }

    /// Samples came along with a neighbour at `at`; those that go to a disk may leave when they are `written`.
    pub fn came_along(&mut self, setup: &Setup<'_>, samples: &[u32], at: f64, written: Option<f64>) {
        for &sample in samples {
            let held = self.held.get_mut(&sample).filter(|held| held.fetched.is_nan());
            let Some(held) = held else { continue };
            held.fetched = at;
            held.written = written.unwrap_or(0.0);
            if let (Some(from), true) = (written, held.along.is_some()) {
                let (stay, mb) = (held.stay, setup.sizes.of(sample));
                self.rest.push_back(Rest { sample, stay, mb, from });
            }
        }
    }

    fn hold(&mut self, sample: u32, mb: f64, expected_mb: f64) {
        self.stays += 1;
        let held = Held {
            stay: self.stays,
            fetched: f64::NAN,
            written: 0.0,
            along: Some(expected_mb),
        };
        self.held.insert(sample, held);
        self.staged += 1;
        self.staged_mb += mb;
    }

    /// What rests longest leaves: from when it rested.
    fn leave(&mut self) -> Option<f64> {
        loop {
            let rest = self.rest.pop_front()?;
            // Since then it was used again.
            if self.held.get(&rest.sample).is_none_or(|held| held.stay != rest.stay) {
                continue;
            }
            self.held.remove(&rest.sample);
            self.staged -= 1;
            self.staged_mb = if self.staged == 0 {
                0.0
            } else {
                self.staged_mb - rest.mb
            };
            return Some(rest.from);
        }
    }
}

/// Share of staging memory that the engine fills: without slack no hole would fit the next sample.
const USED: f64 = 7.0 / 8.0;
/// Share of it that look-ahead leaves to what others ask for.
const GUESTS: f64 = 1.0 / 4.0;

/// MB of a node that pass through, and MB of its RAM tiers together, as the engine shares them out: three batches have room, and
/// an eighth of staging stays free.
pub fn memory(setup: &Setup<'_>) -> (f64, f64) {
    let (hardware, ram_mb) = (setup.hardware, setup.scenario.node_ram_mb());
    let batch_mb = setup.sizes.mean_mb() * f64::from(setup.access.batch()) / f64::from(hardware.nodes);
    let all_mb = hardware.staging_mb + ram_mb;
    let staging_mb = hardware.staging_mb.max((3.0 * batch_mb).min(all_mb / 2.0));
    (staging_mb * USED, all_mb - staging_mb)
}
