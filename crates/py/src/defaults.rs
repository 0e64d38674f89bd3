//! What the package must know of the engine's defaults, so that each stands in one place.

use foreload_engine::{calls, disk::DiskSettings, env};
use foreload_plan::policy::Policy;
use foreload_plan::settings::{self, Settings, TierSettings};
use foreload_sim::POLICIES;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Adds the constants.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let settings = Settings::default();
    module.add("PART_BYTES", settings.part_bytes)?;
    module.add("MOST_IN_FLIGHT", settings.concurrency.most)?;
    module.add("KEEP_FREE_BYTES", DiskSettings::KEEP_FREE_BYTES)?;
    module.add("STALL_S", calls::STALL_S)?;
    module.add("RUN_POLICIES", Policy::RUN.map(Policy::name).to_vec())?;
    module.add("SIMULATED_POLICIES", POLICIES.map(Policy::name).to_vec())
}

/// Of a job's memory, the bytes for collated batches where nothing else is asked for.
#[pyfunction]
pub fn batch_bytes(ram_bytes: u64) -> u64 {
    settings::batch_bytes(ram_bytes)
}

/// Of the memory for samples, the bytes for those that pass through, where a node reads `batch_bytes` per global batch, out of `data_bytes`, and has so
/// much room on disk.
#[pyfunction]
pub fn staging_bytes(ram_bytes: u64, batch_bytes: u64, data_bytes: u64, disk_bytes: u64) -> u64 {
    let settings = Settings {
        tiers: vec![TierSettings {
            capacity_bytes: disk_bytes,
            pinned: None,
        }],
        ..Settings::default()
    };
    settings.staging_bytes(ram_bytes, batch_bytes, data_bytes)
}

/// Where indexes, logs and disk tiers go unless the user says otherwise.
#[pyfunction]
pub fn cache_dir() -> PathBuf {
    env::cache_dir()
}

/// Where sockets go.
#[pyfunction]
pub fn runtime_dir() -> PathBuf {
    env::runtime_dir()
}
