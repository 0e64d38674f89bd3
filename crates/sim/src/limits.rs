//! What a simulation would take, before it is begun: a scenario that needs more memory than there is, or days, is refused with what helps.
//!
//! The figures are upper bounds of what the models were seen to take (`foreload-sim` under `time`, 10^7 samples, 10^6 epochs, 65,000 nodes); they needn't be
//! exact, because a simulation that is told to stop, stops ([`Watch`](crate::Watch)).

use crate::{Drive, Error, Policy, Scenario};

/// The engine's scheduler is driven unasked where that takes no longer.
pub(crate) const PATIENCE_S: f64 = 60.0;
/// Seven hours of each policy.
const MOST_ACCESSES: f64 = 1e11;
const ACCESSES_PER_S: f64 = 4e6;

/// Sizes, an epoch in the making, homes and what is under way: 36 bytes with our own policy, the largest.
const SAMPLE_BYTES: f64 = 40.0;
/// The engine's catalogue and order, and what each node's scheduler knows of a sample.
const ENGINE_SAMPLE_BYTES: (f64, f64) = (160.0, 100.0);
/// A node's streams and queues under the engine's scheduler.
const ENGINE_NODE_BYTES: f64 = 1e5;
/// What a node of the fast model has admitted and not used: of a sample, and at most.
const SLOT_BYTES: f64 = 64.0;
const WINDOW_BYTES: f64 = 262_144.0 * SLOT_BYTES;
/// The same where nodes ask each other, and what a node knows of another one.
const PASSING_BYTES: f64 = 600.0;
const LANE_BYTES: f64 = 500.0;
/// An epoch's order and times; each checkpoint of the bound, and a node's time in it.
const EPOCH_BYTES: f64 = 256.0;
const CHECKPOINT_BYTES: (f64, f64) = (64.0, 8.0);

const FEWER_SAMPLES: &str = "simulate fewer samples (dataset.samples), with tiers that hold the same share of them";

/// What a simulation may take besides the limits that always hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory that is left for it; none: it is not looked at.
    pub memory_bytes: Option<u64>,
}

impl Limits {
    /// Whether `scenario` with `samples` samples can be simulated.
    ///
    /// # Errors
    /// When it would take more memory than there is or more accesses than anyone waits for.
    pub(crate) fn check(self, scenario: &Scenario, samples: u64) -> Result<(), Error> {
        let (samples, epochs) = (samples as f64, f64::from(scenario.training.epochs));
        if samples * epochs > MOST_ACCESSES {
            let hours = samples * epochs / ACCESSES_PER_S / 3600.0;
            return Err(Error::TooLarge(format!(
                "{} samples in {} epochs are {:.1e} accesses, about {} hours for each policy; up to {MOST_ACCESSES:.0e} are simulated: \
                 simulate fewer epochs (training.epochs), because later ones are like the second",
                grouped(samples),
                grouped(epochs),
                samples * epochs,
                grouped(hours),
            )));
        }
        let (by_sample, by_epoch) = (samples * SAMPLE_BYTES, epochs * epoch_bytes(scenario, samples));
        let Some(left) = self.exceeded(by_sample + by_epoch) else {
            return Ok(());
        };
        let remedy = match by_sample >= by_epoch {
            true => FEWER_SAMPLES,
            false => "simulate fewer epochs (training.epochs), because later ones are like the second",
        };
        Err(Error::TooLarge(format!(
            "{} samples, {} epochs and {} nodes take about {} of memory to simulate, and {} are left: {remedy}",
            grouped(samples),
            grouped(epochs),
            grouped(f64::from(scenario.cluster.nodes)),
            gigabytes(by_sample + by_epoch),
            gigabytes(left),
        )))
    }

    /// Why `policy` can't be simulated where others can, if it can't.
    pub(crate) fn refusal(self, scenario: &Scenario, samples: u64, policy: Policy, drive: Drive) -> Option<String> {
        let samples = samples as f64;
        let epochs = f64::from(scenario.training.epochs);
        let needed = samples * SAMPLE_BYTES
            + epochs * epoch_bytes(scenario, samples)
            + own_bytes(scenario, samples, policy, drive);
        let left = self.exceeded(needed)?;
        Some(format!(
            "simulating it takes about {} of memory, and {} are left: {FEWER_SAMPLES}",
            gigabytes(needed),
            gigabytes(left)
        ))
    }

    /// What is left, where that is too little.
    fn exceeded(self, needed: f64) -> Option<f64> {
        self.memory_bytes.map(|left| left as f64).filter(|left| needed > *left)
    }
}

/// What a policy's model keeps by itself.
fn own_bytes(scenario: &Scenario, samples: f64, policy: Policy, drive: Drive) -> f64 {
    let (nodes, epochs) = (f64::from(scenario.cluster.nodes), f64::from(scenario.training.epochs));
    if drive == Drive::Engine && policy.runs_in_engine() {
        return samples * (ENGINE_SAMPLE_BYTES.0 + ENGINE_SAMPLE_BYTES.1 * nodes) + ENGINE_NODE_BYTES * nodes;
    }
    match policy {
        // A bit says whether a node's cache has a sample; its queue holds what it has, four bytes each.
        Policy::Deli { .. } => {
            let held = match scenario.deli.cache_samples {
                Some(0) => samples,
                Some(limit) => limit as f64,
                None => scenario.node_capacity_mb() / scenario.dataset.mean_mb,
            };
            // Without a mean (a list of sizes) that is no number, which `min` passes over.
            nodes * (samples / 8.0 + 4.0 * held.min(samples).min(samples * epochs / nodes))
        }
        // Each node has a table of its own, and looks so far ahead at most.
        Policy::Foreload if scenario.cluster.network_mb_s.is_none() => {
            nodes * (3.0 * samples + WINDOW_BYTES.min(SLOT_BYTES * samples * epochs / nodes))
        }
        // What passes through, with its questions, and a lane for each two nodes that ask each other.
        Policy::Foreload => {
            let staging_mb = scenario.staging().map_or(0.0, |tier| tier.capacity_mb);
            let reads = samples * epochs / nodes;
            let passing = nodes * (staging_mb / scenario.dataset.mean_mb).min(reads);
            passing * PASSING_BYTES + (nodes * nodes).min(samples * epochs) * LANE_BYTES
        }
        // Above the policy's own limit it says so by itself.
        Policy::Frequency => (2.0 * samples * nodes).min(4.3e9),
        _ => 0.0,
    }
}

fn epoch_bytes(scenario: &Scenario, samples: f64) -> f64 {
    let checkpoint = CHECKPOINT_BYTES.0 + CHECKPOINT_BYTES.1 * f64::from(scenario.cluster.nodes);
    EPOCH_BYTES + samples.min(crate::totals::CHECKPOINTS as f64) * checkpoint
}

fn gigabytes(bytes: f64) -> String {
    format!(
        "{} GB",
        if bytes < 1e10 {
            format!("{:.1}", bytes / 1e9)
        } else {
            grouped(bytes / 1e9)
        }
    )
}

/// A whole number with its thousands apart.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::tests::SMALL;

    fn refused(set: &[&str], memory_bytes: u64) -> String {
        let scenario = Scenario::parse(SMALL, set).expect("valid");
        let limits = Limits {
            memory_bytes: Some(memory_bytes),
        };
        let checked = limits.check(&scenario, scenario.dataset.samples);
        checked.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn what_takes_more_memory_than_there_is_says_how_much_and_what_helps() {
        let message = refused(&["dataset.samples=4e9", "training.epochs=1"], 22_000_000_000);
        assert!(
            message.contains("4,000,000,000 samples") && message.contains("and 22 GB are left"),
            "{message}"
        );
        assert!(message.contains("dataset.samples"), "{message}");
        let message = refused(&["dataset.samples=20", "training.epochs=4e9"], 22_000_000_000);
        assert!(message.contains("training.epochs"), "{message}");
        assert_eq!(refused(&["dataset.samples=2e8"], 22_000_000_000), "");
    }

    #[test]
    fn what_takes_days_says_how_long() {
        let message = refused(&["training.epochs=4e9"], u64::MAX);
        assert!(message.contains("4.0e12 accesses, about 278 hours"), "{message}");
    }

    #[test]
    fn a_policy_that_needs_more_than_the_others_is_left_out_alone() {
        let limits = Limits {
            memory_bytes: Some(20_000_000_000),
        };
        let refused = |set: &[&str], policy| {
            let scenario = Scenario::parse(SMALL, set).expect("valid");
            limits.check(&scenario, scenario.dataset.samples).expect("fits");
            limits.refusal(&scenario, scenario.dataset.samples, policy, scenario.drive)
        };
        let set = [
            "dataset.samples=1e8",
            "cluster.nodes=160",
            "deli.cache_samples=0",
            "training.epochs=100",
        ];
        assert_eq!(refused(&set, Policy::Foreload), None);
        assert!(refused(&set, crate::policy::DELI).is_some_and(|why| why.contains("20 GB are left")));
        assert_eq!(refused(&[set[0], set[1]], crate::policy::DELI), None);
        assert!(refused(&[set[0], "cluster.nodes=16", "drive=engine"], Policy::Foreload).is_some());
    }
}
