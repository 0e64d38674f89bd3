//! A scenario: data set, training, cluster, source and tiers, as a TOML file describes them.
//!
//! Names carry their units; 1 GB is 1024 MB, as the papers' data-set sizes imply. A key that doesn't exist is an error with a
//! suggestion, so that a misspelt setting never runs silently with its default. Where paper 001 leaves a choice open, the choice is
//! a key: `training.epochs`, `dataset.negative` and `source.share`. [`Scenario::parse`] reads the text, applies overrides such
//! as `training.epochs=5` or `tier.ram.capacity_mb=10240`, and checks that the numbers fit together.

pub(crate) mod keys;
mod overrides;

use crate::{Curve, Error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything a simulated run depends on, except the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// What it is called in reports.
    #[serde(default)]
    pub name: String,
    /// The samples.
    pub dataset: Dataset,
    /// How they are read.
    pub training: Training,
    /// The machines.
    pub cluster: Cluster,
    /// Where the data set lies.
    pub source: Source,
    /// Staging, RAM and disk of each node, fastest first.
    #[serde(default)]
    pub tier: Vec<Tier>,
    /// Settings of the policy `deli`.
    #[serde(default)]
    pub deli: Deli,
    /// What decides for the policies that the engine runs.
    #[serde(default)]
    pub drive: Drive,
    /// What fails.
    #[serde(default)]
    pub fault: Fault,
}

/// What decides for the policies that the engine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drive {
    /// For our own policy the engine's scheduler, where nodes exchange nothing and it ends within a minute; else the array-based models.
    #[default]
    Auto,
    /// The array-based models: clusters, and the papers' sizes in seconds.
    Fast,
    /// The engine's own scheduler, step by step: batches and requests exactly as planned.
    Engine,
}

/// What fails while the engine's scheduler is driven; the array-based models know no failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Of a node's requests to the source, every so-manyth is not answered.
    #[serde(default)]
    pub source_every: Option<u64>,
    /// From then on no disk reads or writes.
    #[serde(default)]
    pub disk_at_s: Option<f64>,
}

/// The samples: a normal distribution of sizes, or a list of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    /// F: samples. With `sizes_file` it may be left out.
    #[serde(default)]
    pub samples: u64,
    /// Mean size.
    #[serde(default)]
    pub mean_mb: f64,
    /// Standard deviation of the sizes; 0 makes them all equal.
    #[serde(default)]
    pub std_mb: f64,
    /// Smallest size: draws below it are treated as `negative` says. Default: a hundredth of the mean.
    #[serde(default)]
    pub min_mb: Option<f64>,
    /// What becomes of draws below `min_mb`.
    #[serde(default)]
    pub negative: Negative,
    /// Seed of the sizes.
    #[serde(default)]
    pub seed: u64,
    /// A file with one size in MB per line, instead of a distribution.
    #[serde(default)]
    pub sizes_file: Option<String>,
    /// An index, instead of either; the caller reads it and names a list of its sizes here instead.
    #[serde(default)]
    pub index: Option<String>,
}

/// What becomes of drawn sizes below the minimum; paper 001 doesn't say, and its scenario 4 draws 29.5 % below zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Negative {
    /// They become the minimum, then all sizes are scaled so that the total is samples x mean.
    #[default]
    ClipRescale,
    /// They become the minimum; the total grows.
    Clip,
    /// They are drawn again (a truncated normal distribution); the total grows.
    Redraw,
}

/// How the samples are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// E: passes over the data set.
    pub epochs: u32,
    /// B: samples in a global batch; the nodes share it.
    pub global_batch: u32,
    /// `keyed` (the default), or `sequential`.
    #[serde(default = "keyed")]
    pub order: String,
    /// Seed of the order.
    #[serde(default)]
    pub seed: u64,
    /// Which node reads which sample of a global batch.
    #[serde(default)]
    pub assign: Assign,
    /// Seconds that a node computes on its share of one global batch, besides `cluster.compute_mb_s`.
    #[serde(default)]
    pub step_s: f64,
}

/// Which node reads which sample of a global batch. The papers' policies deal it out like cards, whatever is said here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assign {
    /// They deal it out like cards.
    #[default]
    Cards,
    /// Each has what it keeps, as far as all have equally many ([`foreload_plan::deal`]).
    Local,
}

fn keyed() -> String {
    "keyed".to_owned()
}

/// The machines; all alike, one worker each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// N: nodes.
    pub nodes: u32,
    /// c: what one node trains on. Infinite when left out and `training.step_s` is given.
    #[serde(default)]
    pub compute_mb_s: Option<f64>,
    /// beta: what one thread preprocesses. Left out: preprocessing takes no time.
    #[serde(default)]
    pub preprocess_mb_s: Option<f64>,
    /// b_c: between two nodes. Left out: nodes don't exchange samples faster than the source gives them.
    #[serde(default)]
    pub network_mb_s: Option<f64>,
}

/// Where the data set lies: a bucket or a parallel filesystem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// t(gamma): total throughput by number of reading nodes.
    pub throughput_mb_s: BTreeMap<String, f64>,
    /// How readers share it.
    #[serde(default)]
    pub share: Share,
    /// Mean time to the first byte of a request.
    #[serde(default)]
    pub latency_s: f64,
    /// How much that differs: sigma of a lognormal distribution whose mean is `latency_s`. Only the engine's scheduler meets single requests.
    #[serde(default)]
    pub latency_sigma: f64,
    /// Requests that one node keeps in flight at most.
    #[serde(default = "requests_in_flight")]
    pub requests_in_flight: u32,
    /// What one connection delivers at most.
    #[serde(default)]
    pub connection_mb_s: Option<f64>,
    /// What a thread does that wants a sample which is being read from the source.
    #[serde(default)]
    pub overlap: Overlap,
}

/// Sixty-four: what one process keeps in flight before a bucket's own limits show.
fn requests_in_flight() -> u32 {
    64
}

/// What a thread of the papers' policies does that wants a sample while another one reads it from the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// It reads it, too: nobody has it yet (paper 001 sec. 5).
    #[default]
    Again,
    /// It waits, and then takes it from whoever keeps it.
    Join,
}

/// How readers share the source's throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// All readers together get t(gamma): physical.
    #[default]
    Shared,
    /// Each prefetch thread gets t(gamma)/gamma, as sec. 4 of paper 001 reads; p threads per node then get p times t(gamma) in total.
    Literal,
}

/// What a tier is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierKind {
    /// The buffer shared with the framework: storage class 0.
    Staging,
    /// Memory.
    Ram,
    /// A local disk.
    Disk,
}

/// A storage class of every node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// What it is made of.
    pub kind: TierKind,
    /// d_j.
    pub capacity_mb: f64,
    /// p_j: threads that prefetch into it.
    #[serde(default = "one")]
    pub threads: u32,
    /// r_j(p_j): aggregate read throughput with these threads.
    pub read_mb_s: f64,
    /// w_j(p_j): aggregate write throughput; the read throughput when left out.
    #[serde(default)]
    pub write_mb_s: Option<f64>,
    /// Bytes that may wait in memory to be written to a disk; beyond, samples are not kept.
    #[serde(default = "write_behind_mb")]
    pub write_behind_mb: f64,
}

fn one() -> u32 {
    1
}

/// One gigabyte: ten seconds of a slow disk.
fn write_behind_mb() -> f64 {
    1024.0
}

/// Settings of paper 000's prefetch service, in samples as the paper gives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deli {
    /// C: samples in a node's cache; what its tiers hold when left out, 0 for unlimited.
    #[serde(default)]
    pub cache_samples: Option<u64>,
    /// F: samples per fetch; half the cache when left out, 0 for no prefetching (samples are then cached when missed).
    #[serde(default)]
    pub fetch_samples: Option<u64>,
    /// T: the next fetch is asked for when the queue holds no more than this; half the cache when left out.
    #[serde(default)]
    pub threshold_samples: Option<u64>,
    /// Requests that one fetch keeps in flight; 16 when left out.
    #[serde(default)]
    pub parallel: Option<f64>,
    /// Seconds per fetch before its first request (the prototype lists the bucket).
    #[serde(default)]
    pub fetch_fixed_s: f64,
    /// Seconds to read one sample from the cache.
    #[serde(default)]
    pub hit_s: f64,
}

/// Folded from zero, because the sum of nothing is -0.0, which people would read.
fn add(a: f64, b: f64) -> f64 {
    a + b
}

impl Scenario {
    /// Reads a scenario and applies `overrides`, each `key=value` with the key's path: `tier.ram.capacity_mb=10240`.
    ///
    /// # Errors
    /// When the text is not TOML, a key is unknown or a value doesn't fit.
    pub fn parse(text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, Error> {
        let mut table = Self::table(text, overrides)?;
        keys::check(&mut table)?;
        let scenario: Self = table
            .try_into()
            .map_err(|e: toml::de::Error| Error::Incomplete(e.to_string()))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The tables of a scenario with its overrides applied, as they stand before anything of them is checked.
    ///
    /// # Errors
    /// When the text is no TOML, or an override names nothing.
    pub fn table(text: &str, overrides: &[impl AsRef<str>]) -> Result<toml::Table, Error> {
        let mut table: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| Error::Syntax(e.to_string()))?;
        for set in overrides {
            overrides::apply(&mut table, set.as_ref())?;
        }
        Ok(table)
    }

    /// The staging buffer; without one, a single sample.
    #[must_use]
    pub fn staging(&self) -> Option<&Tier> {
        self.tier.iter().find(|t| t.kind == TierKind::Staging)
    }

    /// The tiers that keep samples, fastest first.
    pub fn keeping(&self) -> impl Iterator<Item = &Tier> {
        self.tier.iter().filter(|t| t.kind != TierKind::Staging)
    }

    /// D: what one node keeps, in MB.
    #[must_use]
    pub fn node_capacity_mb(&self) -> f64 {
        self.keeping().map(|t| t.capacity_mb).fold(0.0, add)
    }

    /// What one node keeps in RAM, in MB.
    #[must_use]
    pub fn node_ram_mb(&self) -> f64 {
        self.keeping()
            .filter(|t| t.kind == TierKind::Ram)
            .map(|t| t.capacity_mb)
            .fold(0.0, add)
    }

    /// t(gamma) for this cluster.
    ///
    /// # Errors
    /// When the points are not valid.
    pub fn curve(&self) -> Result<Curve, Error> {
        Curve::new(&self.source.throughput_mb_s, self.cluster.nodes)
    }

    /// What `keys` can't see in one value.
    fn check(&self) -> Result<(), Error> {
        let needed = |key: &str, value: f64| match value > 0.0 {
            true => Ok(()),
            false => Err(Error::invalid(key, format!("{value} must be positive"))),
        };
        let d = &self.dataset;
        if d.sizes_file.is_none() && d.index.is_none() {
            needed("dataset.samples", d.samples as f64)?;
            needed("dataset.mean_mb", d.mean_mb)?;
        }
        if self.cluster.compute_mb_s.is_none() && self.training.step_s <= 0.0 {
            return Err(Error::invalid(
                "cluster.compute_mb_s",
                "needed, or training.step_s: without either, training takes no time",
            ));
        }
        if self.training.assign == Assign::Local {
            let why = match (
                self.cluster.network_mb_s,
                self.training.global_batch % self.cluster.nodes.max(1),
            ) {
                (None, _) => "\"local\" is for nodes that share their caches; give cluster.network_mb_s",
                (_, 1..) => "\"local\" needs a training.global_batch that cluster.nodes divides",
                (Some(_), 0) => "",
            };
            if !why.is_empty() {
                return Err(Error::invalid("training.assign", why));
            }
        }
        if self.tier.iter().filter(|t| t.kind == TierKind::Staging).count() > 1 {
            return Err(Error::invalid("tier", "there is one staging tier at most"));
        }
        if self.keeping().count() > 100 {
            return Err(Error::invalid("tier", "at most 100 tiers"));
        }
        if self.drive == Drive::Engine && self.source.share == Share::Literal {
            return Err(Error::invalid(
                "source.share",
                "\"literal\" goes with drive = \"fast\": the engine's requests share the source; use \"shared\"",
            ));
        }
        if self.drive == Drive::Fast && self.fault != Fault::default() {
            let disk = self.fault.source_every.is_none();
            return Err(Error::invalid(
                if disk { "fault.disk_at_s" } else { "fault.source_every" },
                "nothing fails in the array-based models; use drive = \"engine\"",
            ));
        }
        self.curve().map(|_| ())
    }
}

#[cfg(test)]
pub(crate) mod tests;
