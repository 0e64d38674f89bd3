//! What a simulation reports, as it appears in JSON.

use crate::{Drive, Error, Policy};
use serde::{Serialize, Serializer};

/// Results of all policies for one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// No policy that reads the whole data set in order is faster ([`crate::bound`]).
    pub lower_bound_hours: f64,
    /// S.
    pub dataset_mb: f64,
    /// F.
    pub samples: u32,
    /// E.
    pub epochs: u32,
    /// N.
    pub nodes: u32,
    /// t(N): what the source delivers while all nodes read.
    pub source_mb_s: f64,
    /// One per policy, in the order asked for.
    pub results: Vec<Outcome>,
}

/// What a policy that can't run has no value for.
const MEASURED: [&str; 7] = [
    "hours",
    "stall_hours",
    "epoch_hours",
    "mb_by_source",
    "requests",
    "coverage",
    "copies",
];

impl Report {
    /// As JSON; a policy that can't run the scenario has null where others have numbers.
    #[must_use]
    pub fn json(&self) -> String {
        let mut value = serde_json::to_value(self).expect("a report is plain numbers and strings");
        let results = value["results"].as_array_mut().into_iter().flatten();
        for result in results.filter(|result| result["supported"] == false) {
            MEASURED.iter().for_each(|key| result[*key] = serde_json::Value::Null);
        }
        value.to_string()
    }

    /// # Errors
    /// When a number is none: sizes, speeds or times that are far from any real one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let failed = |policy: &str| Error::NotFinite {
            policy: policy.to_owned(),
        };
        if !(self.lower_bound_hours.is_finite() && self.dataset_mb.is_finite()) {
            return Err(failed("the lower bound"));
        }
        match self.results.iter().find(|outcome| !outcome.is_finite()) {
            Some(outcome) => Err(failed(outcome.policy.name())),
            None => Ok(()),
        }
    }
}

/// Bytes by where they came from, in MB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MbBySource {
    /// The node's own RAM tiers.
    pub ram: f64,
    /// The node's own disks.
    pub disk: f64,
    /// Another node.
    pub peer: f64,
    /// The bucket or filesystem.
    pub source: f64,
}

impl MbBySource {
    /// All four.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.ram + self.disk + self.peer + self.source
    }
}

/// Traffic between nodes, for clusters that are too large to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fabric {
    /// MB over the network between nodes.
    pub peer_mb: f64,
    /// What the busiest node sent: a hot spot when far above the mean.
    pub most_sent_mb: f64,
    /// What the busiest node received.
    pub most_received_mb: f64,
    /// Longest time that a request found a tier, or the sending end of a node's network, busy with earlier ones: a hot spot.
    pub most_queued_s: f64,
    /// Longest time that a request found the receiving end of its own node's network busy with earlier ones: incast.
    pub most_received_queue_s: f64,
    /// Connections a node needs when every node may ask every other.
    pub connections_per_node: u32,
    /// Nodes per cache group that the tool proposes: the fewest for which the source delivers what all groups read in an epoch, each the
    /// data set once and then what it doesn't hold, in no more time than that epoch took here, with the whole cluster as one group;
    /// else the whole cluster. At t(N), or what the nodes' requests in flight bring in, if that is less.
    pub cache_group_nodes: u32,
    /// MB that the source gives in the whole run with groups of that size.
    pub cache_group_source_mb: f64,
}

fn name<S: Serializer>(policy: &Policy, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(policy.name())
}

/// One policy's run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Which; in JSON its name.
    #[serde(serialize_with = "name")]
    pub policy: Policy,
    /// What decided.
    pub drive: Drive,
    /// Whether it can run this scenario.
    pub supported: bool,
    /// Why not; the numbers that follow are then none (in JSON: null).
    pub reason: Option<String>,
    /// Until the last node is through.
    pub hours: f64,
    /// Of these, time that the last node waited for data.
    pub stall_hours: f64,
    /// By epoch: from the previous epoch's end (of the last node) to this one's.
    pub epoch_hours: Vec<f64>,
    /// Where the bytes came from.
    pub mb_by_source: MbBySource,
    /// Reads of the source.
    pub requests: u64,
    /// Share of the samples that are cached anywhere at the end.
    pub coverage: f64,
    /// Copies per cached sample at the end.
    pub copies: f64,
    /// Reads every sample in every epoch.
    pub reads_whole_dataset: bool,
    /// Every rank reads what the order gives it.
    pub keeps_order: bool,
    /// The engine can run it.
    pub runs_in_engine: bool,
    /// `deli`: share of accesses that the cache didn't have, by epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_rate: Option<Vec<f64>>,
    /// `deli`: seconds a node waited for data, by epoch, mean over nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_s: Option<Vec<f64>>,
    /// Traffic between nodes, where the policy exchanges samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
}

impl Outcome {
    /// A run that hasn't measured anything yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            drive: Drive::Fast,
            supported: true,
            reason: None,
            hours: 0.0,
            stall_hours: 0.0,
            epoch_hours: Vec::new(),
            mb_by_source: MbBySource::default(),
            requests: 0,
            coverage: 0.0,
            copies: 0.0,
            reads_whole_dataset: policy.reads_whole_dataset(),
            keeps_order: policy.keeps_order(),
            runs_in_engine: policy.runs_in_engine(),
            miss_rate: None,
            load_s: None,
            fabric: None,
        }
    }

    /// A run that can't be.
    #[must_use]
    pub fn unsupported(policy: Policy, reason: String) -> Self {
        Self {
            supported: false,
            reason: Some(reason),
            ..Self::new(policy)
        }
    }

    fn is_finite(&self) -> bool {
        let fabric = self.fabric.unwrap_or_default();
        let lists = [Some(&self.epoch_hours), self.miss_rate.as_ref(), self.load_s.as_ref()];
        let single = [
            self.hours,
            self.stall_hours,
            self.mb_by_source.total(),
            self.coverage,
            self.copies,
            fabric.peer_mb + fabric.most_sent_mb + fabric.most_received_mb,
            fabric.most_queued_s + fabric.most_received_queue_s + fabric.cache_group_source_mb,
        ];
        let mut all = lists.into_iter().flatten().flatten().chain(&single);
        all.all(|number| number.is_finite())
    }

    /// Fills the times from each epoch's end, in seconds, and the last node's compute time.
    pub(crate) fn set_times(&mut self, epoch_ends_s: &[f64], last_compute_s: f64) {
        let last = epoch_ends_s.last().copied().unwrap_or(0.0);
        self.hours = last / 3600.0;
        self.stall_hours = (last - last_compute_s).max(0.0) / 3600.0;
        let starts = std::iter::once(0.0).chain(epoch_ends_s.iter().copied());
        self.epoch_hours = epoch_ends_s
            .iter()
            .zip(starts)
            .map(|(end, start)| (end - start) / 3600.0)
            .collect();
    }
}
