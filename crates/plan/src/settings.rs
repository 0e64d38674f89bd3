//! The scheduler's settings: plain values, with the reason for each default.

use crate::flow::ConcurrencySettings;
use crate::model::Pinned;
use crate::policy::{Policy, Retention};
use serde::{Deserialize, Serialize};

/// A disk tier's share for one job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierSettings {
    /// Bytes it may hold.
    pub capacity_bytes: u64,
    /// Speeds to assume instead of measuring.
    #[serde(default)]
    pub pinned: Option<Pinned>,
}

/// Everything that shapes decisions besides the order and the catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Which policy; the default is [`Policy::Foreload`].
    pub policy: Policy,
    /// Memory for the RAM tier and staging together that the arena may ever have, in bytes; what it has is what its jobs bring
    /// ([`Reads::ram_bytes`](crate::job::Reads::ram_bytes)).
    pub ram_bytes: u64,
    /// Of it, what passes through instead of staying. Default: see [`Settings::staging_bytes()`].
    pub staging_bytes: Option<u64>,
    /// Disk tiers, fastest first.
    pub tiers: Vec<TierSettings>,
    /// Neighbours in a shard within a grid of this many bytes share a request. 4 MiB: at 35 MB/s and 30 ms the body is 80 % of the request.
    pub coalesce_bytes: u64,
    /// Bytes between two wanted samples that are cheaper to drop than to skip with another request. 16 KiB: several tar headers.
    pub gap_bytes: u64,
    /// Larger samples are fetched in parts of this size, in parallel. 8 MiB: as above; above it one slow part stalls the batch.
    pub part_bytes: u64,
    /// Requests in flight to the bucket.
    pub concurrency: ConcurrencySettings,
    /// Reads in flight per disk tier. 32: NVMe drives reach their rate at this depth.
    pub disk_depth: u32,
    /// Loads in flight per peer; the last one that departs may take small ones along. 16: samples of 100 KB are 1.6 MB then, more than a fast network has on its way.
    pub peer_depth: u32,
    /// A sample on disk, or at a peer, is fetched again only when the bucket is expected to be so many times faster. 8: a disk that slow is ill, and
    /// requests cost money. 1 is the paper's rule, the fastest source.
    pub cached_worth: f64,
    /// Twins per hundred requests; 0 switches hedging off. 5 costs little and covers the slowest few per cent.
    pub hedge_per_cent: u32,
    /// Time that a load may take, retries included. 60 s outlives a bucket's usual hiccup.
    pub load_timeout_ns: u64,
    /// Entries planned ahead at most, whatever the bytes: bounds the scheduler's own memory (about 40 bytes each).
    pub window_entries: u64,
    /// Speeds of the bucket to assume instead of measuring.
    pub bucket: Option<Pinned>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policy: Policy::default(),
            ram_bytes: 1 << 30,
            staging_bytes: None,
            tiers: Vec::new(),
            coalesce_bytes: 4 << 20,
            gap_bytes: 16 << 10,
            part_bytes: 8 << 20,
            concurrency: ConcurrencySettings::default(),
            disk_depth: 32,
            peer_depth: 16,
            cached_worth: 8.0,
            hedge_per_cent: 5,
            load_timeout_ns: 60_000_000_000,
            window_entries: 1 << 18,
            bucket: None,
        }
    }
}

/// A disk or a peer that answers within this many seconds is never left for the bucket: look-ahead hides as much, and requests cost money.
pub const SLOW_S: f64 = 0.25;
/// Nor is one of which the bucket doesn't bring a multiple.
const BRINGS: f64 = 2.0;

/// Of a job's memory, what is for collated batches where nothing else is asked for: an eighth, 1 GiB at most.
#[must_use]
pub fn batch_bytes(ram_bytes: u64) -> u64 {
    (ram_bytes / 8).min(1 << 30)
}

impl Settings {
    /// Of `ram_bytes`, those that pass through, for a node that reads `batch_bytes` per global batch, out of `data_bytes`. Unless it is set, a quarter,
    /// or a half where disks have room for all that is read and memory saves no request, but no more than eight batches, 256 MiB, or a sixteenth up to
    /// 4 GiB, whichever is most: what is in flight is bandwidth times latency, 0.8 GB at 10 GB/s and 80 ms, and as much again is written to disk or waits
    /// for its batch. The batch in use, the one waited for and the one after it have room at least: with
    /// less, kept blocks would have to leave for them.
    #[must_use]
    pub fn staging_bytes(&self, ram_bytes: u64, batch_bytes: u64, data_bytes: u64) -> u64 {
        let fast_link = (ram_bytes / 16).clamp(256 << 20, 4 << 30);
        let disks: u64 = self.tiers.iter().map(|tier| tier.capacity_bytes).sum();
        // A record is a little more than its sample.
        let holds_all = disks > data_bytes.saturating_add(data_bytes / 16);
        let part = if holds_all { 2 } else { 4 };
        let most = (ram_bytes / part).min(fast_link.max(batch_bytes.saturating_mul(8)));
        let asked = self.staging_bytes.unwrap_or(most).min(ram_bytes);
        asked.max(batch_bytes.saturating_mul(3).min(ram_bytes / 2))
    }

    /// Whether the bucket is asked for what a disk or a peer has, by what a read is expected to wait for each (seconds), and what each brings (in the same unit).
    /// Paper 001 sec. 4 takes the fastest; a request to the bucket also costs money, so a cached copy is left only for a large gain. A long queue alone
    /// doesn't count: at the begin of an epoch all that is read ahead may wait for a disk that is as fast as the bucket. Nor does a wait that is shorter than `patience_s`.
    #[must_use]
    pub fn leaves_cache(
        &self,
        cache_wait_s: f64,
        bucket_wait_s: f64,
        cache_brings: f64,
        bucket_brings: f64,
        patience_s: f64,
    ) -> bool {
        cache_wait_s > (bucket_wait_s * self.cached_worth).max(patience_s) && bucket_brings > BRINGS * cache_brings
    }

    /// Bytes of the cells that blocks are cut by: with little memory less than is set, so that a few may pass through at once; 0 where the policy holds
    /// samples.
    #[must_use]
    pub fn cell_bytes(&self, staging_bytes: u64) -> u64 {
        // What the papers' caches hold is samples.
        if self.policy.retention() != Retention::Pinned {
            return 0;
        }
        let most = (staging_bytes / 4).max(1);
        self.coalesce_bytes.min(1 << most.ilog2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_through_grows_with_memory_and_with_batches() {
        const GIB: u64 = 1 << 30;
        let of = |ram_bytes, batch_bytes| Settings::default().staging_bytes(ram_bytes, batch_bytes, GIB);
        let small = [GIB / 4, GIB, 2 * GIB, 4 * GIB].map(|ram| of(ram, 1));
        assert_eq!(small, [GIB / 16, GIB / 4, GIB / 4, GIB / 4]);
        let large = [16 * GIB, 64 * GIB, 1024 * GIB].map(|ram| of(ram, 1));
        assert_eq!(large, [GIB, 4 * GIB, 4 * GIB]);
        // Eight batches, or three where a quarter isn't as much; never more than half.
        let batches = [(16 * GIB, GIB / 4), (GIB, GIB / 10), (GIB, GIB)].map(|(ram, batch)| of(ram, batch));
        assert_eq!(batches, [2 * GIB, GIB / 10 * 3, GIB / 2]);
        let set = Settings {
            staging_bytes: Some(GIB),
            ..Settings::default()
        };
        assert_eq!(
            [set.staging_bytes(64 * GIB, 1, GIB), set.staging_bytes(GIB / 2, 1, GIB)],
            [GIB, GIB / 2]
        );
        // Where disks hold all, memory saves no request: what passes through gets a half.
        let disk = |capacity_bytes| Settings {
            tiers: vec![TierSettings {
                capacity_bytes,
                pinned: None,
            }],
            ..Settings::default()
        };
        let parts = [2 * GIB, GIB].map(|bytes| disk(bytes).staging_bytes(GIB / 4, 1, GIB));
        assert_eq!(parts, [GIB / 8, GIB / 16]);
        assert_eq!(disk(2 * GIB).staging_bytes(2 * GIB, 1, GIB), GIB / 4);
    }
}
