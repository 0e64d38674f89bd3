//! What the order alone fixes: bytes per node and epoch, and how they accumulate. One pass, shared by the bound and all policies.

use crate::{Access, Error, Scenario, Sizes};

/// Compute times and prefix sums at checkpoints of every epoch.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Seconds that each node computes in the whole run.
    pub compute_s: Vec<f64>,
    /// Longest compute time of any node, by epoch.
    pub epoch_compute_s: Vec<f64>,
    /// Checkpoints in the order of the run; the last of an epoch is its end.
    pub(crate) checkpoints: Vec<Checkpoint>,
}

/// A prefix of the run.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub epoch: u32,
    /// MB of this epoch's positions up to here.
    pub epoch_mb: f64,
    /// Seconds that each node has computed up to here.
    pub computed_s: Vec<f64>,
}

/// Seconds to train on one sample: its bytes over c, plus its share of a step's fixed time.
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    per_mb_s: f64,
    per_sample_s: f64,
}

impl Compute {
    /// The scenario's.
    #[must_use]
    pub fn new(scenario: &Scenario) -> Self {
        let share = f64::from(scenario.training.global_batch) / f64::from(scenario.cluster.nodes);
        Self {
            per_mb_s: scenario.cluster.compute_mb_s.map_or(0.0, f64::recip),
            per_sample_s: scenario.training.step_s / share,
        }
    }

    /// For a sample of `mb`.
    #[inline]
    #[must_use]
    pub fn seconds(&self, mb: f64) -> f64 {
        mb * self.per_mb_s + self.per_sample_s
    }

    /// For `samples` samples of `mb` together.
    #[inline]
    #[must_use]
    pub fn seconds_ahead(&self, mb: f64, samples: usize) -> f64 {
        mb * self.per_mb_s + samples as f64 * self.per_sample_s
    }
}

/// Prefixes looked at per epoch: the bound rises linearly between its kinks, so more don't raise it.
pub(crate) const CHECKPOINTS: u64 = 256;

impl Totals {
    /// Walks the whole run once.
    ///
    /// # Errors
    /// When the order can't tell, or the run was ended.
    pub fn new(scenario: &Scenario, sizes: &Sizes, access: &Access<'_>) -> Result<Self, Error> {
        let compute = Compute::new(scenario);
        let nodes = access.nodes() as usize;
        // A thousand nodes times 256 prefixes per epoch are two megabytes.
        let every = u64::from(access.samples()).div_ceil(CHECKPOINTS).max(1);
        let mut compute_s = vec![0.0f64; nodes];
        let mut epoch_compute_s = Vec::new();
        let mut checkpoints = Vec::new();
        for epoch in 0..access.epochs() {
            let before = compute_s.clone();
            let mut epoch_mb = 0.0;
            let samples = access.lay_out(epoch)?;
            let mut node = 0;
            for (i, sample) in samples.iter().enumerate() {
                let mb = sizes.of(*sample);
                epoch_mb += mb;
                compute_s[node] += compute.seconds(mb);
                node = if node + 1 == nodes { 0 } else { node + 1 };
                let done = i as u64 + 1;
                access.watch().did(1)?;
                if done.is_multiple_of(every) || done == samples.len() as u64 {
                    let computed_s = compute_s.clone();
                    checkpoints.push(Checkpoint {
                        epoch,
                        epoch_mb,
                        computed_s,
                    });
                }
            }
            epoch_compute_s.push(
                compute_s
                    .iter()
                    .zip(&before)
                    .map(|(now, then)| now - then)
                    .fold(0.0, f64::max),
            );
        }
        Ok(Self {
            compute_s,
            epoch_compute_s,
            checkpoints,
        })
    }

    /// The longest compute time of any node.
    #[must_use]
    pub fn longest_compute_s(&self) -> f64 {
        self.compute_s.iter().copied().fold(0.0, f64::max)
    }

    /// Seconds that every node still has to compute after a checkpoint, at least.
    pub(crate) fn least_remaining_s(&self, at: &Checkpoint) -> f64 {
        let remaining = self
            .compute_s
            .iter()
            .zip(&at.computed_s)
            .map(|(total, done)| total - done);
        remaining.fold(f64::INFINITY, f64::min).max(0.0)
    }
}
