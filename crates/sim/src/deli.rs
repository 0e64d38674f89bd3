//! Paper 000's prefetch service (DELI), in the terms of its own experiments.
//!
//! Each node's loader pulls a batch of indices from the sampler, then reads its samples one after the other: from the cache, or, on a miss,
//! from the bucket. When the sampler's queue holds no more than the *prefetch threshold*, the next *fetch size* of indices is queued and the
//! service is asked to fetch them; it answers at once, spends a fixed time per fetch (the prototype lists the bucket), gets the
//! samples in parallel, and caches all of them when the last is there. The cache is bounded in samples, first in, first out. What was
//! missed is cached only when nothing is prefetched. As in the prototype, loading doesn't overlap computing, and a fetch ends with
//! its epoch's indices.
//!
//! Metrics are the paper's: miss rate and data-loading time, per epoch, mean over nodes.

use crate::paper::pipeline::Counts;
use crate::{Error, Outcome, Setup, Sizes, TierKind};
use std::collections::VecDeque;

/// Settings with their defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settings {
    /// Samples; `usize::MAX` for no limit.
    cache: usize,
    /// What the node's tiers hold, when the limit isn't given in samples.
    cache_mb: f64,
    fetch: usize,
    threshold: usize,
    fixed_s: f64,
    hit_s: f64,
    hit_s_per_mb: f64,
    /// Per sample of a parallel fetch.
    fetch_s: f64,
    latency_s: f64,
    /// At the node's part of the source's throughput; of a fetch and of a miss, whose connections may be slower.
    link_s_per_mb: f64,
    fetch_s_per_mb: f64,
    miss_s_per_mb: f64,
}

/// Sixteen: the threads of paper 000's Table I.
const PARALLEL: f64 = 16.0;

impl Settings {
    fn new(setup: &Setup<'_>) -> Self {
        let (deli, hardware) = (&setup.scenario.deli, setup.hardware);
        let held = (setup.scenario.node_capacity_mb() / setup.sizes.mean_mb()) as u64;
        let cache = deli.cache_samples.unwrap_or(held);
        let cache = if deli.cache_samples == Some(0) {
            usize::MAX
        } else {
            cache as usize
        };
        // The 50/50 rule: fetch size and threshold are half the cache.
        let half = (cache / 2).min(setup.access.per_epoch(0) as usize);
        let disk = hardware
            .tiers
            .iter()
            .find(|t| t.kind == TierKind::Disk)
            .or(hardware.tiers.first());
        let parallel = deli.parallel.unwrap_or(PARALLEL);
        // With fewer samples than nodes, the others read nothing.
        let readers = hardware.nodes.min(setup.access.samples());
        let link_s_per_mb = setup.curve.share(readers).recip();
        let cache_mb = if deli.cache_samples.is_some() {
            f64::INFINITY
        } else {
            setup.scenario.node_capacity_mb()
        };
        Self {
            cache,
            cache_mb,
            fetch: deli.fetch_samples.map_or(half, |f| f as usize),
            threshold: deli.threshold_samples.map_or(half, |t| t as usize),
            fixed_s: deli.fetch_fixed_s,
            hit_s: deli.hit_s,
            hit_s_per_mb: disk.map_or(0.0, |t| t.per_thread_mb_s().recip()),
            fetch_s: hardware.latency_s / parallel,
            latency_s: hardware.latency_s,
            link_s_per_mb,
            fetch_s_per_mb: link_s_per_mb.max((parallel * hardware.connection_mb_s).recip()),
            miss_s_per_mb: link_s_per_mb.max(hardware.connection_mb_s.recip()),
        }
    }
}

/// A first-in-first-out cache of sample ids, bounded in samples and in MB.
struct Cache {
    limit: usize,
    limit_mb: f64,
    mb: f64,
    order: VecDeque<u32>,
    held: Vec<u64>,
}

impl Cache {
    fn new(settings: &Settings, samples: u32) -> Self {
        let held = vec![0; samples as usize / 64 + 1];
        Self {
            limit: settings.cache,
            limit_mb: settings.cache_mb,
            mb: 0.0,
            order: VecDeque::new(),
            held,
        }
    }

    fn has(&self, sample: u32) -> bool {
        self.held[sample as usize / 64] >> (sample % 64) & 1 == 1
    }

    fn insert(&mut self, sample: u32, sizes: &Sizes) {
        let mb = sizes.of(sample);
        if self.has(sample) || self.limit == 0 || mb > self.limit_mb {
            return;
        }
        while self.order.len() >= self.limit || self.mb + mb > self.limit_mb {
            let Some(first) = self.order.pop_front() else { break };
            self.mb -= sizes.of(first);
            self.held[first as usize / 64] &= !(1 << (first % 64));
        }
        self.mb += mb;
        self.order.push_back(sample);
        self.held[sample as usize / 64] |= 1 << (sample % 64);
    }
}

struct Node {
    now: f64,
    computed_s: f64,
    cache: Cache,
    /// Fetches under way: when all their samples will be cached, and which.
    fetches: Vec<(f64, Vec<u32>)>,
    /// Fetches share the node's part of the source's throughput, one after the other.
    link_until: f64,
    /// They share the service's processors too: on the paper's two, overlapping fetches take as long as one after the other.
    service_until: f64,
}

/// Sums over one epoch and all nodes.
#[derive(Default)]
struct Epoch {
    misses: u64,
    accesses: u64,
    load_s: f64,
}

/// Runs the policy.
///
/// # Errors
/// When the order can't tell.
pub fn run(setup: &Setup<'_>) -> Result<Outcome, Error> {
    let settings = Settings::new(setup);
    let (nodes, samples) = (setup.access.nodes(), setup.sizes.samples());
    let node = || Node {
        now: 0.0,
        computed_s: 0.0,
        cache: Cache::new(&settings, samples),
        fetches: Vec::new(),
        link_until: 0.0,
        service_until: 0.0,
    };
    let mut all: Vec<Node> = (0..nodes).map(|_| node()).collect();
    let mut counts = Counts::default();
    let (mut ends, mut miss_rate, mut load_s) = (Vec::new(), Vec::new(), Vec::new());
    for epoch in 0..setup.access.epochs() {
        let order = setup.access.lay_out(epoch)?;
        let mut sums = Epoch::default();
        for (id, node) in all.iter_mut().enumerate() {
            let own: Vec<u32> = order.iter().skip(id).step_by(nodes as usize).copied().collect();
            node.epoch(setup, &settings, &own, &mut counts, &mut sums)?;
        }
        ends.push(all.iter().map(|n| n.now).fold(0.0, f64::max));
        miss_rate.push(sums.misses as f64 / sums.accesses.max(1) as f64);
        load_s.push(sums.load_s / f64::from(nodes));
    }
    let mut outcome = Outcome::new(crate::policy::DELI);
    let last = all.iter().max_by(|a, b| a.now.total_cmp(&b.now));
    outcome.set_times(&ends, last.map_or(0.0, |n| n.computed_s));
    let anywhere = |s: &u32| all.iter().any(|n| n.cache.has(*s));
    let kept = (0..samples).filter(anywhere).count() as u64;
    let copies = all.iter().map(|n| n.cache.order.len() as u64).sum();
    counts.report(&mut outcome, (kept, copies), samples);
    (outcome.miss_rate, outcome.load_s) = (Some(miss_rate), Some(load_s));
    Ok(outcome)
}

impl Node {
    fn epoch(
        &mut self,
        setup: &Setup<'_>,
        settings: &Settings,
        own: &[u32],
        counts: &mut Counts,
        sums: &mut Epoch,
    ) -> Result<(), Error> {
        let batch = (setup.access.batch() / setup.access.nodes()).max(1) as usize;
        let (mut asked, mut queued) = (0, 0usize);
        for chunk in own.chunks(batch) {
            for _ in chunk {
                if settings.fetch > 0 && queued <= settings.threshold && asked < own.len() {
                    let next = &own[asked..own.len().min(asked + settings.fetch)];
                    self.ask(settings, setup.sizes, next, counts);
                    (asked, queued) = (asked + next.len(), queued + next.len());
                    setup.access.watch().ask()?;
                }
                queued = queued.saturating_sub(1);
            }
            let mut mb = 0.0;
            for sample in chunk {
                setup.access.watch().look()?;
                self.load(settings, setup.sizes, *sample, counts, sums);
                mb += setup.sizes.of(*sample);
            }
            let compute_s = setup.compute.seconds_ahead(mb, chunk.len());
            self.now += compute_s;
            self.computed_s += compute_s;
            setup.access.watch().did(chunk.len() as u64)?;
        }
        Ok(())
    }

    /// Asks the service for `next`; it trims what is cached already and answers at once.
    fn ask(&mut self, settings: &Settings, sizes: &Sizes, next: &[u32], counts: &mut Counts) {
        self.settle(sizes);
        let wanted: Vec<u32> = next.iter().copied().filter(|s| !self.cache.has(*s)).collect();
        if wanted.is_empty() {
            return;
        }
        let mb: f64 = wanted.iter().map(|s| sizes.of(*s)).sum();
        counts.mb.source += mb;
        counts.requests += wanted.len() as u64;
        self.link_until = self.link_until.max(self.now) + mb * settings.fetch_s_per_mb;
        let work_s = settings.fixed_s + wanted.len() as f64 * settings.fetch_s;
        self.service_until = self.service_until.max(self.now) + work_s;
        let done = self.link_until.max(self.service_until + settings.latency_s);
        self.fetches.push((done, wanted));
    }

    /// Caches what was fetched by now, in the order of completion.
    fn settle(&mut self, sizes: &Sizes) {
        while let Some(first) = (0..self.fetches.len()).min_by(|a, b| self.fetches[*a].0.total_cmp(&self.fetches[*b].0))
        {
            if self.fetches[first].0 > self.now {
                break;
            }
            let (_, samples) = self.fetches.remove(first);
            samples.into_iter().for_each(|s| self.cache.insert(s, sizes));
        }
    }

    fn load(&mut self, settings: &Settings, sizes: &Sizes, sample: u32, counts: &mut Counts, sums: &mut Epoch) {
        self.settle(sizes);
        let mb = sizes.of(sample);
        let seconds = if self.cache.has(sample) {
            counts.mb.disk += mb;
            settings.hit_s + mb * settings.hit_s_per_mb
        } else {
            counts.source(mb);
            sums.misses += 1;
            if settings.fetch == 0 {
                self.cache.insert(sample, sizes);
            }
            // It takes throughput from the fetches under way.
            let taken_s = mb * settings.link_s_per_mb;
            self.link_until = self.link_until.max(self.now) + taken_s;
            self.fetches.iter_mut().for_each(|f| f.0 += taken_s);
            settings.latency_s + mb * settings.miss_s_per_mb
        };
        self.now += seconds;
        sums.load_s += seconds;
        sums.accesses += 1;
    }
}

#[cfg(test)]
mod tests {
    use crate::{Scenario, policy::DELI};

    const MNIST: &str = r#"
        name = "mnist"
        [dataset]
        samples = 4200
        mean_mb = 0.0003
        [training]
        epochs = 2
        global_batch = 150
        step_s = 0.05
        [cluster]
        nodes = 3
        [source]
        throughput_mb_s = 1000
        latency_s = 0.05
    "#;

    fn outcome(set: &[&str]) -> crate::Outcome {
        let scenario = Scenario::parse(MNIST, set).expect("valid");
        crate::run(&scenario, &[DELI]).expect("runs").results.remove(0)
    }

    #[test]
    fn an_unlimited_cache_without_prefetching_misses_two_thirds_in_epoch_two() {
        let out = outcome(&["deli.cache_samples=0", "deli.fetch_samples=0"]);
        let miss = out.miss_rate.expect("deli reports it");
        assert!((miss[0], (miss[1] - 2.0 / 3.0).abs() < 0.03) == (1.0, true), "{miss:?}");
    }

    #[test]
    fn the_cache_needs_to_hold_one_fetch() {
        let miss = |cache: &str| {
            let set = [
                cache,
                "deli.fetch_samples=100",
                "deli.threshold_samples=0",
                "deli.fetch_fixed_s=0.5",
            ];
            outcome(&set).miss_rate.expect("deli reports it")[1]
        };
        let (half, one, two) = (
            miss("deli.cache_samples=50"),
            miss("deli.cache_samples=100"),
            miss("deli.cache_samples=200"),
        );
        assert!(half > one + 0.2 && (one - two).abs() < 0.03, "{half} {one} {two}");
    }

    #[test]
    fn a_fetch_has_as_many_connections_as_requests_and_a_miss_has_one() {
        let set = [
            "cluster.nodes=1",
            "dataset.mean_mb=1",
            "dataset.samples=320",
            "training.global_batch=320",
            "training.epochs=1",
            "source.latency_s=0",
            "source.connection_mb_s=10",
            "deli.cache_samples=0",
            "deli.fetch_samples=0",
        ];
        let load_s = |set: &[&str]| outcome(set).load_s.expect("deli reports it")[0];
        assert!((load_s(&set) - 32.0).abs() < 0.01, "{} s", load_s(&set));
        // 160 MB are there after a second of 160 MB/s; before, the one sample after the other is missed.
        let fetched = [
            &set[..8],
            &[
                "deli.fetch_samples=160",
                "deli.threshold_samples=0",
                "training.global_batch=160",
            ],
        ]
        .concat();
        let miss = outcome(&fetched).miss_rate.expect("deli reports it")[0];
        assert!((miss - 20.0 / 320.0).abs() < 0.02, "{miss}");
    }

    #[test]
    fn nodes_that_read_nothing_take_no_share_of_the_source() {
        let set = [
            "dataset.samples=1",
            "dataset.mean_mb=100",
            "training.epochs=1",
            "cluster.nodes=4",
            "deli.fetch_samples=0",
            "source.throughput_mb_s=100",
            "source.latency_s=0",
        ];
        let hours = outcome(&set).hours * 3600.0;
        assert!((hours - 1.0).abs() < 0.01, "{hours} s");
    }

    #[test]
    fn half_and_half_misses_less_than_a_full_fetch() {
        let base = ["deli.cache_samples=200", "deli.fetch_fixed_s=0.5", "training.step_s=1"];
        let full = outcome(&[
            base[0],
            base[1],
            base[2],
            "deli.fetch_samples=200",
            "deli.threshold_samples=0",
        ]);
        let half = outcome(&base);
        let rate = |o: &crate::Outcome| o.miss_rate.clone().expect("deli reports it")[1];
        assert!(rate(&half) < 0.5 * rate(&full), "{} {}", rate(&half), rate(&full));
    }
}
