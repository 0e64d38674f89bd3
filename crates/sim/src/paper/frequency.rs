//! Paper 001's own policy: each node keeps the samples that it reads most often.
//!
//! From the access sequence each node counts how often it will read each sample, puts the most frequent into its fastest tier and
//! so on until its tiers are full, and prefetches each tier's samples in the order of first access. Nodes place
//! independently; ties in frequency go to the sample that is needed first. A sample that the staging threads fetched before the
//! tier's prefetcher came to it is kept.

use super::pipeline::{Mode, Pipeline};
use super::store::{Found, Store};
use crate::{Error, Outcome, Policy, Setup, access::Epochs};
use foreload_plan::placement::frequency::Counts;

const PRESENT: u8 = 0x80;
const ELSEWHERE: u8 = 0;

/// By node and sample: 0 unseen, 1.. tier plus one, the top bit once it is there.
struct Frequent {
    samples: usize,
    place: Vec<u8>,
    /// Copies present, by sample, and the fastest tier among them.
    fastest: Vec<u8>,
    copies: u64,
}

impl Store for Frequent {
    fn find(&self, node: u32, sample: u32) -> Found {
        let place = self.place[node as usize * self.samples + sample as usize];
        let own = (place & PRESENT != 0).then_some((place & !PRESENT).wrapping_sub(1));
        let fastest = self.fastest[sample as usize];
        Found {
            own,
            peer: (fastest != u8::MAX).then_some(fastest),
        }
    }

    fn arrived(&mut self, node: u32, sample: u32) {
        let place = &mut self.place[node as usize * self.samples + sample as usize];
        if *place == ELSEWHERE || *place & PRESENT != 0 {
            return;
        }
        let fastest = &mut self.fastest[sample as usize];
        *fastest = (*fastest).min(*place - 1);
        *place |= PRESENT;
        self.copies += 1;
    }

    fn coverage(&self) -> (u64, u64) {
        (
            self.fastest.iter().filter(|t| **t != u8::MAX).count() as u64,
            self.copies,
        )
    }
}

/// Each node counts and places every sample by itself, which is what the policy is: a byte for each, twice. 2^31 of them take 4 GB.
const MOST_PLACES: u64 = 2 << 30;

/// Runs the policy.
///
/// # Errors
/// When the order can't tell.
pub fn run(setup: &Setup<'_>) -> Result<Outcome, Error> {
    let places = u64::from(setup.access.nodes()) * u64::from(setup.sizes.samples());
    if places > MOST_PLACES {
        let reason = format!(
            "every node counts and places every sample by itself: {places} nodes x samples take {} GB, and {MOST_PLACES} are allowed; simulate \
                 fewer samples, with tiers that hold the same share of them",
            (2 * places) >> 30
        );
        return Ok(Outcome::unsupported(Policy::Frequency, reason));
    }
    let counts = count(setup)?;
    let (place, wanted) = assign(setup, counts)?;
    let samples = setup.sizes.samples() as usize;
    let store = Frequent {
        samples,
        place,
        fastest: vec![u8::MAX; samples],
        copies: 0,
    };
    let mut pipeline = Pipeline::new(setup, Policy::Frequency, store, Mode::Prefetch);
    pipeline.prefetch(wanted);
    pipeline.run(Epochs::new(setup.access, None))
}

/// r_k: how often each node reads each sample.
fn count(setup: &Setup<'_>) -> Result<Counts, Error> {
    let nodes = setup.access.nodes() as usize;
    let mut counts = Counts::new(nodes, setup.sizes.samples() as usize);
    for epoch in 0..setup.access.epochs() {
        let mut node = 0;
        for sample in setup.access.lay_out(epoch)? {
            setup.access.watch().look()?;
            counts.add(node, sample);
            node = if node + 1 == nodes { 0 } else { node + 1 };
        }
    }
    Ok(counts)
}

/// Places by node and sample, and each tier's samples in the order of first access.
fn assign(setup: &Setup<'_>, counts: Counts) -> Result<(Vec<u8>, Vec<Vec<u32>>), Error> {
    let (nodes, samples) = (setup.access.nodes() as usize, setup.sizes.samples() as usize);
    let tiers = &setup.hardware.tiers;
    let mut ends = Vec::with_capacity(tiers.len());
    for tier in tiers {
        ends.push(ends.last().copied().unwrap_or(0.0) + tier.capacity_mb);
    }
    let mut place = vec![ELSEWHERE; nodes * samples];
    let mut wanted = vec![Vec::new(); nodes * tiers.len()];
    let mut placing = counts.placing(setup.sizes.mb.iter().map(|mb| f64::from(*mb)));
    for epoch in 0..setup.access.epochs() {
        let mut node = 0;
        for sample in setup.access.lay_out(epoch)? {
            setup.access.watch().look()?;
            let offset = placing.first(node, sample, setup.sizes.of(sample));
            if let Some(tier) = offset.and_then(|offset| ends.iter().position(|end| offset <= *end)) {
                place[node * samples + sample as usize] = tier as u8 + 1;
                wanted[node * tiers.len() + tier].push(sample);
            }
            node = if node + 1 == nodes { 0 } else { node + 1 };
        }
    }
    Ok((place, wanted))
}
