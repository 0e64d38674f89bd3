//! Policies that change who reads what: DeepIO's optimistic mode, parallel staging, and locality-aware loading.

use super::pipeline::Counts;
use super::store::{Found, Homes, Shelves, Store};
use crate::{
    Consumer, Error, Outcome, Policy, Random, Setup, TierKind,
    access::{Rearrange, deal},
};

/// Locality-aware loading (Yang & Cong): within each global batch, samples go to the node that keeps them, as long as every
/// node gets as many as before; the rest is dealt out to whoever has room.
pub fn local_first<'a>(homes: &Homes, nodes: u32, batch: u32) -> Rearrange<'a> {
    let table = homes.table();
    // A batch may be larger than the data set.
    let batch = (batch as usize).min(table.len());
    Box::new(move |epoch, samples| {
        if epoch == 0 {
            samples
        } else {
            deal(&table, nodes as usize, batch, samples)
        }
    })
}

/// DeepIO's optimistic mode: in order until RAM is full; from then on, what isn't cached is replaced by a sample that the node has.
pub struct Pool {
    homes: Vec<u16>,
    shelves: Shelves,
    sizes_mb: Vec<f32>,
    tier: Vec<u8>,
    own: Vec<Vec<u32>>,
    full: Vec<bool>,
    random: Random,
    kept: u64,
}

impl Pool {
    /// Empty pools.
    pub fn new(setup: &Setup<'_>) -> Self {
        let nodes = setup.access.nodes() as usize;
        Self {
            homes: vec![u16::MAX; setup.sizes.samples() as usize],
            shelves: Shelves::ram(setup),
            sizes_mb: setup.sizes.mb.clone(),
            tier: vec![0; setup.sizes.samples() as usize],
            own: vec![Vec::new(); nodes],
            full: vec![false; nodes],
            random: Random::new(setup.scenario.training.seed),
            kept: 0,
        }
    }
}

impl Store for Pool {
    fn choose(&mut self, node: u32, sample: u32) -> u32 {
        let own = &self.own[node as usize];
        if self.homes[sample as usize] != u16::MAX || !self.full[node as usize] || own.is_empty() {
            return sample;
        }
        own[self.random.below(own.len() as u64) as usize]
    }

    fn find(&self, node: u32, sample: u32) -> Found {
        let tier = Some(self.tier[sample as usize]);
        match self.homes[sample as usize] {
            u16::MAX => Found::default(),
            home if u32::from(home) == node => Found { own: tier, peer: None },
            _ => Found { own: None, peer: tier },
        }
    }

    fn arrived(&mut self, node: u32, sample: u32) {
        if self.homes[sample as usize] != u16::MAX || self.full[node as usize] {
            return;
        }
        match self.shelves.place(node, f64::from(self.sizes_mb[sample as usize])) {
            None => self.full[node as usize] = true,
            Some(tier) => {
                self.homes[sample as usize] = node as u16;
                self.tier[sample as usize] = tier;
                self.own[node as usize].push(sample);
                self.kept += 1;
            }
        }
    }

    fn coverage(&self) -> (u64, u64) {
        (self.kept, self.kept)
    }
}

/// Seconds to read each node's homes from the source and write them to their tiers, all nodes that have some at once, before training.
pub fn preload_s(setup: &Setup<'_>, homes: &Homes) -> f64 {
    let mut own = vec![Copied::default(); setup.access.nodes() as usize];
    for sample in 0..setup.sizes.samples() {
        if let Some(home) = homes.home(sample) {
            own[home as usize].add(setup.sizes.of(sample));
        }
    }
    let readers = own.iter().filter(|copied| copied.samples > 0.0).count() as u32;
    let ram = setup.hardware.tiers.iter().find(|t| t.kind == TierKind::Ram);
    let (threads, write_mb_s) = ram.map_or((1.0, f64::INFINITY), |t| (t.threads, t.write_mb_s));
    let seconds = |copied: &Copied| copied.seconds(setup, readers, threads, copied.mb / write_mb_s);
    own.iter().map(seconds).fold(0.0, f64::max)
}

/// What one node copies before training.
#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    mb: f64,
    samples: f64,
}

impl Copied {
    fn add(&mut self, mb: f64) {
        self.mb += mb;
        self.samples += 1.0;
    }

    /// Seconds until `threads` threads have read it from the source, `readers` nodes at once, and it is written in `write_s`.
    fn seconds(&self, setup: &Setup<'_>, readers: u32, threads: f64, write_s: f64) -> f64 {
        let hardware = setup.hardware;
        let share = setup.curve.share(readers);
        let node_mb_s = match hardware.share {
            crate::Share::Shared => share,
            crate::Share::Literal => threads * share,
        };
        let read_s = self.mb / node_mb_s.min(threads * hardware.connection_mb_s);
        (read_s + self.samples * hardware.latency_s / threads).max(write_s)
    }
}

/// Parallel staging: each node copies its shard to its tiers, as far as they hold it, and trains on nothing else.
pub fn parallel_staging(setup: &Setup<'_>) -> Result<Outcome, Error> {
    let (nodes, hardware) = (setup.access.nodes(), setup.hardware);
    let mut shelves = Shelves::all(setup);
    let mut shard: Vec<Vec<(u32, u8)>> = vec![Vec::new(); nodes as usize];
    for sample in 0..setup.sizes.samples() {
        let node = sample % nodes;
        if let Some(tier) = shelves.place(node, setup.sizes.of(sample)) {
            shard[node as usize].push((sample, tier));
        }
    }
    if shard.iter().any(Vec::is_empty) {
        let reason = "a node's tiers hold no sample of its shard".to_owned();
        return Ok(Outcome::unsupported(Policy::ParallelStaging, reason));
    }
    let threads: f64 = hardware.tiers.iter().map(|t| t.threads).sum();
    let mut counts = Counts::default();
    let mut staged_s = 0.0f64;
    for own in &shard {
        let (mut by_tier, mut copied) = (vec![0.0; hardware.tiers.len()], Copied::default());
        for (sample, tier) in own {
            by_tier[*tier as usize] += setup.sizes.of(*sample);
            copied.add(setup.sizes.of(*sample));
        }
        let write_s = by_tier
            .iter()
            .zip(&hardware.tiers)
            .map(|(mb, t)| mb / t.write_mb_s)
            .fold(0.0, f64::max);
        staged_s = staged_s.max(copied.seconds(setup, nodes, threads, write_s));
        counts.mb.source += copied.mb;
        counts.requests += own.len() as u64;
    }
    let mut ends = vec![0.0f64; setup.access.epochs() as usize];
    let (mut last, mut last_computed) = (0.0f64, 0.0);
    for (node, own) in shard.iter().enumerate() {
        let mut consumer = Consumer::new(hardware.staging_mb, staged_s);
        let (mut threads_free, mut random) = (staged_s, Random::new(setup.scenario.training.seed ^ node as u64));
        let mut sequence: Vec<u32> = (0..own.len() as u32).collect();
        let mut at = sequence.len();
        for end in &mut ends {
            for _ in 0..setup.access.per_epoch(node as u32) {
                if at == sequence.len() {
                    shuffle(&mut sequence, &mut random);
                    at = 0;
                }
                let (sample, tier) = own[sequence[at] as usize];
                at += 1;
                let (mb, tier) = (setup.sizes.of(sample), &hardware.tiers[tier as usize]);
                let start = consumer.room_at(mb, threads_free);
                let read_s = mb / tier.per_thread_mb_s() + mb * hardware.write_s_per_mb;
                threads_free = start + read_s / hardware.staging_threads;
                consumer.deliver(mb, threads_free, setup.compute.seconds(mb));
                counts.local(tier.kind, mb);
                setup.access.watch().did(1)?;
            }
            *end = end.max(consumer.free_at());
        }
        if consumer.free_at() > last {
            (last, last_computed) = (consumer.free_at(), consumer.computed_s());
        }
    }
    let mut outcome = Outcome::new(Policy::ParallelStaging);
    outcome.set_times(&ends, last_computed);
    let kept = shard.iter().map(Vec::len).sum::<usize>() as u64;
    counts.report(&mut outcome, (kept, kept), setup.sizes.samples());
    Ok(outcome)
}

fn shuffle(list: &mut [u32], random: &mut Random) {
    for i in (1..list.len()).rev() {
        list.swap(i, random.below(i as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rearranged_batch_keeps_its_samples_and_prefers_homes() {
        // Batches of 4 over 3 nodes; samples 0..6 live on node (sample / 2), the rest nowhere.
        let home: Vec<u16> = (0..10).map(|k| if k < 6 { k / 2 } else { u16::MAX }).collect();
        let before = vec![5, 0, 8, 2, 1, 3, 9, 4, 6, 7];
        let after = deal(&home, 3, 4, before.clone());
        for (b, a) in before.chunks(4).zip(after.chunks(4)) {
            let (mut b, mut a) = (b.to_vec(), a.to_vec());
            b.sort_unstable();
            a.sort_unstable();
            assert_eq!(b, a);
        }
        let at_home = |p: usize| home[after[p] as usize] == (p % 3) as u16;
        assert_eq!((0..8).filter(|p| at_home(*p)).count(), 6, "{after:?}");
    }
}
