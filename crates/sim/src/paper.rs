//! The policies of paper 001 sec. 6, under its performance model (sec. 4).
//!
//! A node's p_0 staging threads are load-balanced, so together they serve the access sequence one read after the other, each taking
//! (fetch + write)/p_0. Fetch is the fastest of: the source, at this thread's share of t(gamma), where gamma is the number of nodes
//! reading *now* ([`crate::source`]), at most what its one connection delivers, after its request's latency; another node's tier, min(b_c, r_j/p_j); the node's own tier, r_j/p_j. There is no contention on
//! disks or network, as in the paper. What differs between policies is what is kept where (`store`, `frequency`) and what the
//! sequence is (`reorder`).

pub(crate) mod frequency;
pub(crate) mod pipeline;
pub(crate) mod reorder;
pub(crate) mod store;

use crate::{Error, Outcome, Policy, Setup, access::Epochs};
use pipeline::{Mode, Pipeline};
use store::{Homes, Nothing, Shelves};

/// Runs one of the paper's policies.
///
/// # Errors
/// When the order can't tell.
pub fn run(setup: &Setup<'_>, policy: Policy) -> Result<Outcome, Error> {
    let straight = || Epochs::new(setup.access, None);
    match policy {
        Policy::Perfect => Ok(perfect(setup)),
        Policy::Naive => Pipeline::new(setup, policy, Nothing, Mode::Serial).run(straight()),
        Policy::Staging => Pipeline::new(setup, policy, Nothing, Mode::Prefetch).run(straight()),
        Policy::DeepioOrdered => {
            let homes = Homes::partition(setup, &mut Shelves::ram(setup));
            Pipeline::new(setup, policy, homes, Mode::Prefetch).run(straight())
        }
        Policy::DeepioOptimistic => {
            let pool = reorder::Pool::new(setup);
            Pipeline::new(setup, policy, pool, Mode::Prefetch).run(straight())
        }
        Policy::ParallelStaging => reorder::parallel_staging(setup),
        Policy::LbannDynamic | Policy::LbannPreload => lbann(setup, policy),
        Policy::LocalityAware => {
            let homes = Homes::first_reader(setup, &mut Shelves::all(setup))?;
            let nodes = setup.access.nodes();
            let epochs = reorder::local_first(&homes, nodes, setup.access.batch());
            Pipeline::new(setup, policy, homes, Mode::Prefetch).run(Epochs::new(setup.access, Some(epochs)))
        }
        Policy::Frequency => frequency::run(setup),
        _ => Ok(Outcome::unsupported(policy, "it is no policy of paper 001".to_owned())),
    }
}

fn perfect(setup: &Setup<'_>) -> Outcome {
    let mut outcome = Outcome::new(Policy::Perfect);
    let longest = setup.totals.longest_compute_s();
    let mut ends: Vec<f64> = Vec::new();
    for epoch_s in &setup.totals.epoch_compute_s {
        ends.push(ends.last().copied().unwrap_or(0.0) + epoch_s);
    }
    if let Some(last) = ends.last_mut() {
        *last = longest;
    }
    outcome.set_times(&ends, longest);
    outcome
}

fn lbann(setup: &Setup<'_>, policy: Policy) -> Result<Outcome, Error> {
    let ram_mb = f64::from(setup.access.nodes()) * setup.scenario.node_ram_mb();
    let mut shelves = Shelves::ram(setup);
    let homes = match policy {
        Policy::LbannPreload => Homes::partition(setup, &mut shelves),
        _ => Homes::first_reader(setup, &mut shelves)?,
    };
    if setup.sizes.total_mb > ram_mb || !homes.complete() {
        let reason = format!(
            "LBANN's data store keeps the data set in RAM: {:.0} MB are more than the nodes' {ram_mb:.0} MB together",
            setup.sizes.total_mb
        );
        return Ok(Outcome::unsupported(policy, reason));
    }
    let straight = Epochs::new(setup.access, None);
    if policy == Policy::LbannDynamic {
        return Pipeline::new(setup, policy, homes, Mode::Prefetch).run(straight);
    }
    let loaded_s = reorder::preload_s(setup, &homes);
    let mut pipeline = Pipeline::new(setup, policy, homes.filled(), Mode::Prefetch);
    pipeline.start_at(loaded_s, setup.sizes.total_mb, u64::from(setup.sizes.samples()));
    pipeline.run(straight)
}
