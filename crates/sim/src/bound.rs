//! A time that no policy which reads the whole data set in order can beat.
//!
//! Take any prefix of the run. What it reads for the first time must have left the source, at most at the highest throughput
//! that any number of readers gets. In every later epoch a sample is a hit only if some tier kept it across the epoch's border, and
//! all tiers together keep N*D; so each epoch reads at least `max(0, S - N*D)` again, and a prefix of one at least what exceeds
//! N*D. When the last byte of the prefix arrives, the node that gets it still has to compute everything after it. The bound is
//! the largest sum over all prefixes, and never below the compute time of the busiest node.
//!
//! D is everything that a node can hold: its tiers (paper 001's D) and its staging buffer, which may serve two epochs with one read when
//! read-ahead reaches across the border. Under `share = "literal"` every thread of a node
//! draws a full share, so the source's limit is multiplied by a node's threads.

use crate::{Error, Scenario, Sizes, Totals, scenario::Share};

/// The lower bound, in seconds.
///
/// # Errors
/// When the source's curve is not valid.
pub fn lower_bound_s(scenario: &Scenario, sizes: &Sizes, totals: &Totals) -> Result<f64, Error> {
    let threads: f64 = scenario.tier.iter().map(|t| f64::from(t.threads)).sum();
    let limit = match scenario.source.share {
        Share::Shared => 1.0,
        Share::Literal => threads.max(1.0),
    };
    let mb_s = scenario.curve()?.highest() * limit;
    let staging_mb = scenario.staging().map_or(0.0, |t| t.capacity_mb);
    let node_mb = scenario.node_capacity_mb().max(deli_mb(scenario, sizes)) + staging_mb;
    let kept_mb = f64::from(scenario.cluster.nodes) * node_mb;
    let again_mb = (sizes.total_mb - kept_mb).max(0.0);
    let mut bound = totals.longest_compute_s();
    for at in &totals.checkpoints {
        let source_mb = match at.epoch {
            0 => at.epoch_mb,
            e => sizes.total_mb + f64::from(e - 1) * again_mb + (at.epoch_mb - kept_mb).max(0.0),
        };
        bound = bound.max(source_mb / mb_s + totals.least_remaining_s(at));
    }
    Ok(bound)
}

/// What a cache that is given in samples may hold, for scenarios of paper 000.
fn deli_mb(scenario: &Scenario, sizes: &Sizes) -> f64 {
    let largest = f64::from(sizes.mb.iter().copied().fold(0.0, f32::max));
    match scenario.deli.cache_samples {
        None => 0.0,
        Some(0) => sizes.total_mb,
        Some(samples) => samples as f64 * largest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Watch, scenario::tests::SMALL};

    fn bound(set: &[&str]) -> f64 {
        let scenario = Scenario::parse(SMALL, set).expect("valid");
        let watch = Watch::quiet();
        let sizes = Sizes::new(&scenario.dataset, &watch).expect("valid");
        let access = Access::new(&scenario, sizes.samples(), &watch).expect("valid");
        let totals = Totals::new(&scenario, &sizes, &access).expect("valid");
        lower_bound_s(&scenario, &sizes, &totals).expect("valid")
    }

    #[test]
    fn with_room_for_all_it_is_one_read_and_the_other_epochs_computing() {
        // 300 MB: 300/146 s for the first epoch, then two epochs of 75 MB per node at 100 MB/s.
        let expected = 300.0 / 146.0 + 2.0 * 0.75;
        assert!((bound(&["tier.disk.capacity_mb=400", "dataset.std_mb=0"]) - expected).abs() < 0.01);
    }

    #[test]
    fn without_room_the_source_is_read_in_every_epoch() {
        // 4 x 25 MB stay, 200 MB come again in each of two epochs.
        let expected = 700.0 / 146.0;
        assert!(
            (bound(&[
                "tier.staging.capacity_mb=0",
                "tier.disk.capacity_mb=0",
                "dataset.std_mb=0"
            ]) / expected
                - 1.0)
                .abs()
                < 0.01
        );
    }

    #[test]
    fn a_fast_source_leaves_compute_time() {
        assert!((bound(&["source.throughput_mb_s=1e6", "dataset.std_mb=0"]) - 2.25).abs() < 0.01);
    }
}
