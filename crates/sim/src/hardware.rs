//! What the modelled machines can do, in the units of the performance model: seconds per MB.

use crate::{Random, Scenario, Share, Tier, TierKind};

/// One keeping tier of every node.
#[derive(Clone, Debug, PartialEq)]
pub struct TierSpeed {
    /// What it is made of.
    pub kind: TierKind,
    /// d_j.
    pub capacity_mb: f64,
    /// p_j.
    pub threads: f64,
    /// r_j(p_j): all threads together.
    pub read_mb_s: f64,
    /// w_j(p_j): all threads together.
    pub write_mb_s: f64,
    /// MB that may wait in memory to be written.
    pub write_behind_mb: f64,
}

impl TierSpeed {
    /// r_j(p_j)/p_j: what one thread reads.
    #[must_use]
    pub fn per_thread_mb_s(&self) -> f64 {
        self.read_mb_s / self.threads
    }
}

/// The machines of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// N.
    pub nodes: u32,
    /// d_0; 0 holds a single sample.
    pub staging_mb: f64,
    /// p_0.
    pub staging_threads: f64,
    /// Threads of a node that may read the source: those of staging and of all tiers.
    pub source_threads: f64,
    /// Seconds that one thread takes to preprocess and store one MB: max(1/beta, p_0/w_0).
    pub write_s_per_mb: f64,
    /// Seconds that one thread takes to preprocess one MB: 1/beta.
    pub preprocess_s_per_mb: f64,
    /// b_c; what the source gives one node when there is no network.
    pub network_mb_s: f64,
    /// Whether nodes can exchange samples.
    pub has_network: bool,
    /// The keeping tiers, fastest first.
    pub tiers: Vec<TierSpeed>,
    /// Mean time to the first byte of a request.
    pub latency_s: f64,
    /// Sigma of its lognormal distribution.
    pub latency_sigma: f64,
    /// Requests in flight per node.
    pub requests_in_flight: u32,
    /// What one connection delivers at most; infinite without a limit.
    pub connection_mb_s: f64,
    /// How readers share the source.
    pub share: Share,
}

impl Hardware {
    /// The scenario's machines.
    #[must_use]
    pub fn new(scenario: &Scenario) -> Self {
        let staging = scenario.staging();
        let threads = staging.map_or(1.0, |t| f64::from(t.threads));
        let preprocess_s_per_mb = scenario.cluster.preprocess_mb_s.map_or(0.0, f64::recip);
        let store_s_per_mb = staging.map_or(0.0, |t| threads / write_mb_s(t));
        Self {
            nodes: scenario.cluster.nodes,
            staging_mb: staging.map_or(0.0, |t| t.capacity_mb),
            staging_threads: threads,
            source_threads: threads + scenario.keeping().map(|t| f64::from(t.threads)).sum::<f64>(),
            write_s_per_mb: preprocess_s_per_mb.max(store_s_per_mb),
            preprocess_s_per_mb,
            network_mb_s: scenario.cluster.network_mb_s.unwrap_or(0.0),
            has_network: scenario.cluster.network_mb_s.is_some(),
            tiers: scenario.keeping().map(speed).collect(),
            latency_s: scenario.source.latency_s,
            latency_sigma: scenario.source.latency_sigma,
            requests_in_flight: scenario.source.requests_in_flight,
            connection_mb_s: scenario.source.connection_mb_s.unwrap_or(f64::INFINITY),
            share: scenario.source.share,
        }
    }

    /// MB of memory that samples go through or stay in, and how fast the kernel hands it out while it is fresh.
    #[must_use]
    pub fn memory(&self) -> (f64, f64) {
        let ram = self.tiers.iter().filter(|tier| tier.kind == TierKind::Ram);
        ram.fold((self.staging_mb, f64::INFINITY), |(mb, slowest), tier| {
            (mb + tier.capacity_mb, slowest.min(tier.write_mb_s))
        })
    }

    /// The time to the first byte of a request. If all took the same, those that were sent together would share the source at the same time, again and
    /// again, and leave it idle in between.
    pub(crate) fn draw_latency_s(&self, random: &mut Random) -> f64 {
        let (mean_s, sigma) = (self.latency_s, self.latency_sigma);
        if mean_s == 0.0 || sigma == 0.0 {
            return mean_s;
        }
        mean_s * (sigma * random.normal() - sigma * sigma / 2.0).exp()
    }

    /// Whether nodes give each other what they hold; otherwise each keeps what it reads itself.
    #[must_use]
    pub fn exchanges(&self) -> bool {
        self.nodes > 1 && self.has_network
    }

    /// min(b_c, r_j(p_j)/p_j): what one thread gets from another node's tier.
    #[must_use]
    pub fn peer_mb_s(&self, tier: usize) -> f64 {
        self.network_mb_s.min(self.tiers[tier].per_thread_mb_s())
    }
}

fn write_mb_s(tier: &Tier) -> f64 {
    tier.write_mb_s.unwrap_or(tier.read_mb_s)
}

fn speed(tier: &Tier) -> TierSpeed {
    TierSpeed {
        kind: tier.kind,
        capacity_mb: tier.capacity_mb,
        threads: f64::from(tier.threads),
        read_mb_s: tier.read_mb_s,
        write_mb_s: write_mb_s(tier),
        write_behind_mb: tier.write_behind_mb,
    }
}
