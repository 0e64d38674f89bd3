//! What is kept where: the part of a policy that answers "who has this sample".

use crate::{Error, Setup, TierKind};

/// Tiers that hold a sample, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The asking node's fastest tier with it.
    pub own: Option<u8>,
    /// The fastest tier with it on any other node.
    pub peer: Option<u8>,
}

/// A policy's memory.
pub trait Store {
    /// The sample that is read in place of `sample`: itself, unless the policy changes the order.
    fn choose(&mut self, _node: u32, sample: u32) -> u32 {
        sample
    }
    /// Who has `sample`.
    fn find(&self, node: u32, sample: u32) -> Found;
    /// `sample` reached `node` from the source or another node.
    fn arrived(&mut self, node: u32, sample: u32);
    /// Samples cached anywhere, and copies of them.
    fn coverage(&self) -> (u64, u64);
}

/// Keeps nothing.
pub struct Nothing;

impl Store for Nothing {
    fn find(&self, _node: u32, _sample: u32) -> Found {
        Found::default()
    }
    fn arrived(&mut self, _node: u32, _sample: u32) {}
    fn coverage(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Free space by node and tier.
#[derive(Clone, Debug)]
pub struct Shelves {
    tiers: usize,
    free_mb: Vec<f64>,
}

impl Shelves {
    /// All keeping tiers.
    pub fn all(setup: &Setup<'_>) -> Self {
        Self::of(setup, |_| true)
    }

    /// RAM tiers only.
    pub fn ram(setup: &Setup<'_>) -> Self {
        Self::of(setup, |kind| kind == TierKind::Ram)
    }

    fn of(setup: &Setup<'_>, keep: impl Fn(TierKind) -> bool) -> Self {
        let tiers = &setup.hardware.tiers;
        let node: Vec<f64> = tiers
            .iter()
            .map(|t| if keep(t.kind) { t.capacity_mb } else { 0.0 })
            .collect();
        Self {
            tiers: tiers.len(),
            free_mb: node.repeat(setup.hardware.nodes as usize),
        }
    }

    /// Takes room for `mb` on `node`, in its fastest tier that has it.
    pub fn place(&mut self, node: u32, mb: f64) -> Option<u8> {
        let free = &mut self.free_mb[node as usize * self.tiers..][..self.tiers];
        let tier = free.iter().position(|free| *free >= mb)?;
        free[tier] -= mb;
        Some(tier as u8)
    }
}

const NOWHERE: u16 = u16::MAX;
const PRESENT: u8 = 0x80;

/// One home per sample, in one tier; filled when the sample is first read.
#[derive(Clone, Debug)]
pub struct Homes {
    home: Vec<u16>,
    tier: Vec<u8>,
}

impl Homes {
    /// Sample k belongs to node k mod N, while that has room.
    pub fn partition(setup: &Setup<'_>, shelves: &mut Shelves) -> Self {
        let nodes = setup.access.nodes();
        let samples = 0..setup.sizes.samples();
        Self::assign(setup, shelves, samples.map(|k| (k, k % nodes)))
    }

    /// A sample belongs to the node that reads it first, while that has room.
    pub fn first_reader(setup: &Setup<'_>, shelves: &mut Shelves) -> Result<Self, Error> {
        let nodes = setup.access.nodes();
        let order = setup.access.lay_out(0)?;
        Ok(Self::assign(
            setup,
            shelves,
            order.iter().enumerate().map(|(p, k)| (*k, p as u32 % nodes)),
        ))
    }

    fn assign(setup: &Setup<'_>, shelves: &mut Shelves, wanted: impl Iterator<Item = (u32, u32)>) -> Self {
        let samples = setup.sizes.samples() as usize;
        let mut homes = Self {
            home: vec![NOWHERE; samples],
            tier: vec![0; samples],
        };
        let mut overflow = Vec::new();
        for (sample, node) in wanted {
            match shelves.place(node, setup.sizes.of(sample)) {
                Some(tier) => homes.set(sample, node, tier),
                None => overflow.push(sample),
            }
        }
        // What its node can't hold goes to the next one that can.
        let nodes = setup.access.nodes();
        let mut node = 0;
        for sample in overflow {
            let mb = setup.sizes.of(sample);
            let mut tries = 0..nodes;
            let found = tries.find_map(|_| {
                let tier = shelves.place(node, mb);
                if tier.is_none() {
                    node = (node + 1) % nodes;
                }
                tier
            });
            match found {
                Some(tier) => homes.set(sample, node, tier),
                None => break,
            }
        }
        homes
    }

    fn set(&mut self, sample: u32, node: u32, tier: u8) {
        self.home[sample as usize] = node as u16;
        self.tier[sample as usize] = tier;
    }

    /// Whether every sample has a home.
    pub fn complete(&self) -> bool {
        self.home.iter().all(|h| *h != NOWHERE)
    }

    /// The same with everything present from the start.
    pub fn filled(mut self) -> Self {
        self.tier.iter_mut().for_each(|t| *t |= PRESENT);
        self
    }

    /// The node that keeps `sample`, present or not.
    pub fn home(&self, sample: u32) -> Option<u32> {
        Some(self.home[sample as usize])
            .filter(|h| *h != NOWHERE)
            .map(u32::from)
    }

    /// All homes, by sample.
    pub fn table(&self) -> Vec<u16> {
        self.home.clone()
    }
}

impl Store for Homes {
    fn find(&self, node: u32, sample: u32) -> Found {
        let (home, tier) = (self.home[sample as usize], self.tier[sample as usize]);
        if home == NOWHERE || tier & PRESENT == 0 {
            return Found::default();
        }
        let tier = Some(tier & !PRESENT);
        match u32::from(home) == node {
            true => Found { own: tier, peer: None },
            false => Found { own: None, peer: tier },
        }
    }

    fn arrived(&mut self, _node: u32, sample: u32) {
        self.tier[sample as usize] |= PRESENT;
    }

    fn coverage(&self) -> (u64, u64) {
        let kept = self
            .home
            .iter()
            .zip(&self.tier)
            .filter(|(h, t)| **h != NOWHERE && **t & PRESENT != 0)
            .count() as u64;
        (kept, kept)
    }
}
