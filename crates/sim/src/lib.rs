//! Carries a plan out on modelled hardware under a virtual clock.
//!
//! A [`Scenario`] says what there is: data set, training, cluster, source, tiers. [`run`] carries each [`Policy`] out on it and reports
//! hours, stalls, requests and bytes by source, next to a [lower bound](bound) that no policy which reads everything in order can
//! beat. So a user sees what a run takes before renting anything, and the papers' experiments can be repeated and compared with our default.
//!
//! Three models share the same order, sizes and shared [`source`]: [`paper`] is the simulator of paper 001 with its performance model and
//! policies; [`deli`] is paper 000's prefetch service; [`foreload`] is our default, with every device a queue. The three stream over the
//! order with constant work per access and arrays of a few bytes per sample: 10^8 accesses take seconds ([`Limits`] refuses what takes days). For one node, [`scheduled`] drives
//! the engine's own policy step by step instead, and its tests hold the fast model to it.
//!
//! Nothing here reads a clock, and the only file is a list of sizes that a scenario names. `foreload-sim`, the Python package and the
//! scripts in `bench/papers` call [`run_json`].

mod access;
pub mod analysis;
pub mod bound;
mod consumer;
pub mod cost;
mod curve;
pub mod deli;
mod error;
pub mod foreload;
mod hardware;
mod limits;
pub mod paper;
pub mod policy;
pub mod pricing;
mod random;
mod report;
mod scenario;
pub mod scheduled;
mod sizes;
pub mod source;
mod totals;
mod watch;

pub use access::Access;
pub use consumer::Consumer;
pub use curve::Curve;
pub use error::{Error, ErrorKind};
pub use hardware::{Hardware, TierSpeed};
pub use limits::Limits;
pub use policy::{POLICIES, Policy};
pub use pricing::cost_json;
pub use random::Random;
pub use report::{Fabric, MbBySource, Outcome, Report};
pub use scenario::{
    Assign, Cluster, Dataset, Deli, Drive, Fault, Negative, Scenario, Share, Source, Tier, TierKind, Training,
};
pub use sizes::Sizes;
pub use totals::{Compute, Totals};
pub use watch::{Progress, Watch};

/// Everything a policy's run looks at, made once per scenario.
#[derive(Debug)]
pub struct Setup<'a> {
    /// As read.
    pub scenario: &'a Scenario,
    /// Of every sample.
    pub sizes: &'a Sizes,
    /// Who reads what, when.
    pub access: &'a Access<'a>,
    /// Bytes and compute times that the order fixes.
    pub totals: &'a Totals,
    /// What the machines can do.
    pub hardware: &'a Hardware,
    /// t(gamma).
    pub curve: &'a Curve,
    /// Seconds per sample.
    pub compute: Compute,
}

/// Simulates `policies` on `scenario`, whatever it takes.
///
/// # Errors
/// When the sizes can't be read or the order can't be made. A policy that can't run the scenario is no error: its
/// [`Outcome`] says why.
pub fn run(scenario: &Scenario, policies: &[Policy]) -> Result<Report, Error> {
    run_watched(scenario, policies, Limits::default(), &Watch::quiet())
}

/// The same within limits, under the eyes of `watch`, which may end it.
///
/// # Errors
/// As [`run`]; and when it would take more than `limits` allow, or `watch` ends it.
pub fn run_watched(
    scenario: &Scenario,
    policies: &[Policy],
    limits: Limits,
    watch: &Watch<'_>,
) -> Result<Report, Error> {
    // Before anything is drawn: a list has to be read before it is known how long it is.
    if scenario.dataset.sizes_file.is_none() {
        limits.check(scenario, scenario.dataset.samples)?;
    }
    let accesses = scenario.dataset.samples * (1 + u64::from(scenario.training.epochs));
    watch.begin(None, accesses)?;
    let sizes = Sizes::new(&scenario.dataset, watch)?;
    let samples = u64::from(sizes.samples());
    limits.check(scenario, samples)?;
    let access = Access::new(scenario, sizes.samples(), watch)?;
    let totals = Totals::new(scenario, &sizes, &access)?;
    let (hardware, curve) = (Hardware::new(scenario), scenario.curve()?);
    let compute = Compute::new(scenario);
    let setup = Setup {
        scenario,
        sizes: &sizes,
        access: &access,
        totals: &totals,
        hardware: &hardware,
        curve: &curve,
        compute,
    };
    let bound_s = bound::lower_bound_s(scenario, &sizes, &totals)?;
    watch.end()?;
    let mut results = Vec::with_capacity(policies.len());
    for policy in policies {
        watch.begin(Some(*policy), samples * u64::from(scenario.training.epochs))?;
        results.push(carry_out(&setup, *policy, limits, bound_s)?);
        watch.end()?;
    }
    let report = Report {
        scenario: scenario.name.clone(),
        lower_bound_hours: bound_s / 3600.0,
        dataset_mb: sizes.total_mb,
        samples: sizes.samples(),
        epochs: access.epochs(),
        nodes: access.nodes(),
        source_mb_s: curve.total(access.nodes()),
        results,
    };
    report.check()?;
    Ok(report)
}

/// Runs one policy, driven as the scenario says.
fn carry_out(setup: &Setup<'_>, policy: Policy, limits: Limits, bound_s: f64) -> Result<Outcome, Error> {
    let (scenario, samples) = (setup.scenario, u64::from(setup.sizes.samples()));
    let is_chosen = match scenario.drive {
        Drive::Fast => false,
        Drive::Engine => policy.runs_in_engine(),
        Drive::Auto => {
            policy == Policy::Foreload
                && !setup.hardware.exchanges()
                && scenario.source.share == Share::Shared
                && scheduled::takes_s(setup, bound_s) <= limits::PATIENCE_S
        }
    };
    let refusal = |drive| limits.refusal(scenario, samples, policy, drive);
    if is_chosen {
        let outcome = match refusal(Drive::Engine) {
            None => scheduled::run(setup, policy, false)?.outcome,
            Some(reason) => Outcome::unsupported(policy, reason),
        };
        // What nobody asked for, and is too much for the scheduler, the fast model may tell.
        if outcome.supported || scenario.drive == Drive::Engine || scenario.fault != Fault::default() {
            let drive = Drive::Engine;
            return Ok(Outcome { drive, ..outcome });
        }
    }
    match (policy, refusal(Drive::Fast)) {
        (_, Some(reason)) => Ok(Outcome::unsupported(policy, reason)),
        (Policy::Deli { .. }, None) => deli::run(setup),
        (Policy::Foreload, None) => foreload::run(setup),
        (paper, None) => paper::run(setup, paper),
    }
}

/// Simulates the scenario in `toml` with `overrides` (`key=value`) and returns the report as JSON. No policy names mean all.
///
/// # Errors
/// When the scenario, a policy or an override is not valid, or as [`run_watched`].
pub fn run_json(
    toml: &str,
    policies: &[String],
    overrides: &[String],
    limits: Limits,
    watch: &Watch<'_>,
) -> Result<String, Error> {
    let scenario = Scenario::parse(toml, overrides)?;
    let policies: Vec<Policy> = match policies.is_empty() {
        true => POLICIES.to_vec(),
        false => policies
            .iter()
            .map(|name| policy::from_name(name))
            .collect::<Result<_, _>>()?,
    };
    Ok(run_watched(&scenario, &policies, limits, watch)?.json())
}

#[cfg(test)]
mod tests;
