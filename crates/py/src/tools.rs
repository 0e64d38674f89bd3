//! Simulation, cost, and other pure functions.

use crate::errors::invalid;
use foreload_sim::{Limits, Policy, Progress, Watch};
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks for signals while a simulation runs, and between two reports of how far it is.
const PULSE: Duration = Duration::from_millis(50);

/// Simulates a scenario (TOML) under policies, with overrides; answers with the report as JSON.
///
/// `progress` is called with a policy's name (none while sizes and order are prepared), accesses done, and of how many: at the start and the end
/// of each, and a few times a second. What it raises, and what a signal's handler raises, ends the simulation.
#[pyfunction]
#[pyo3(signature = (scenario, policies=Vec::new(), overrides=Vec::new(), *, memory_bytes=None, progress=None))]
pub fn simulate(
    py: Python<'_>,
    scenario: &str,
    policies: Vec<String>,
    overrides: Vec<String>,
    memory_bytes: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let limits = Limits { memory_bytes };
    let (answer, raised) = py.detach(|| {
        let (last, part, raised) = (Cell::new(Instant::now()), Cell::new(None), RefCell::new(None));
        let tell = |at: Progress| {
            let turns = part.replace(Some(at.policy)) != Some(at.policy) || at.done == at.total;
            if !turns && last.get().elapsed() < PULSE {
                return true;
            }
            last.set(Instant::now());
            let told = Python::attach(|py| {
                py.check_signals()?;
                if let Some(progress) = &progress {
                    progress.call1(py, (at.policy.map(Policy::name), at.done, at.total))?;
                }
                Ok(())
            });
            told.map_err(|error| raised.replace(Some(error))).is_ok()
        };
        let answer = foreload_sim::run_json(scenario, &policies, &overrides, limits, &Watch::new(&tell));
        (answer, raised.into_inner())
    });
    raised.map_or_else(|| answer.map_err(invalid), Err)
}

/// The tables of a scenario (TOML) with its overrides applied, as JSON; nothing of them is checked.
#[pyfunction]
pub fn scenario(text: &str, overrides: Vec<String>) -> PyResult<String> {
    let table = foreload_sim::Scenario::table(text, &overrides).map_err(invalid)?;
    serde_json::to_string(&table).map_err(invalid)
}

/// A data set's URL as its root, and what below it is named: a file, or shards by a pattern; nothing: everything.
#[pyfunction]
pub fn split_url(url: &str) -> (String, String) {
    foreload_store::format::split(url)
}

/// The URL of a key below the root of a data set.
#[pyfunction]
pub fn url_of(root: &str, key: &str) -> String {
    foreload_store::source::joined(root, key)
}

/// A URL's scheme in the one spelling that we use: `s3`, `gs`, `az`, `http`, `https`, `file` (a path, too); `None`: it is none that we read.
#[pyfunction]
pub fn scheme(url: &str) -> Option<&'static str> {
    foreload_store::source::scheme(url)
}

/// Storage options for a URL with what an environment adds to them, under one name each.
#[pyfunction]
pub fn storage_options(
    url: &str,
    given: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
) -> PyResult<BTreeMap<String, String>> {
    foreload_store::source::storage_options(url, &given, &environment).map_err(invalid)
}

/// Whether a key is one of those that names with braces and stars stand for.
#[pyfunction]
pub fn stands_for(names: &str, key: &str) -> PyResult<bool> {
    foreload_store::format::stands_for(names, key).map_err(invalid)
}

/// Answers a request about costs (JSON) with JSON; `foreload.cost` knows the requests.
#[pyfunction]
pub fn cost(py: Python<'_>, request: &str) -> PyResult<String> {
    py.detach(|| foreload_sim::cost_json(request)).map_err(invalid)
}

/// The digest of data sets that are read together, from theirs.
#[pyfunction]
pub fn digest_of(digests: Vec<String>) -> PyResult<String> {
    let digests = digests
        .iter()
        .map(|digest| digest.parse())
        .collect::<Result<Vec<_>, _>>();
    Ok(foreload_engine::streams::digest_of(&digests.map_err(invalid)?).to_string())
}
