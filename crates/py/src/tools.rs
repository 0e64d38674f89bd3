//! Simulation, cost, and other pure functions.

use crate::errors::invalid;
use pyo3::prelude::*;

/// Simulates a scenario (TOML) under policies, with overrides; answers with the report as JSON.
#[pyfunction]
#[pyo3(signature = (scenario, policies=Vec::new(), overrides=Vec::new()))]
pub fn simulate(py: Python<'_>, scenario: &str, policies: Vec<String>, overrides: Vec<String>) -> PyResult<String> {
    py.detach(|| foreload_sim::run_json(scenario, &policies, &overrides))
        .map_err(invalid)
}

/// Answers a request about costs (JSON) with JSON; `foreload.cost` knows the requests.
#[pyfunction]
pub fn cost(py: Python<'_>, request: &str) -> PyResult<String> {
    py.detach(|| foreload_sim::cost_json(request)).map_err(invalid)
}
