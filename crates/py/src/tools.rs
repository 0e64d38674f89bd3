//! Simulation, cost, and other pure functions.

use crate::errors::invalid;
use foreload_plan::cost::{PriceSheet, Usage};
use pyo3::prelude::*;

/// Simulates a scenario (TOML) under policies, with overrides; answers with the report as JSON.
#[pyfunction]
#[pyo3(signature = (scenario, policies=Vec::new(), overrides=Vec::new()))]
pub fn simulate(py: Python<'_>, scenario: &str, policies: Vec<String>, overrides: Vec<String>) -> PyResult<String> {
    py.detach(|| foreload_sim::run_json(scenario, &policies, &overrides))
        .map_err(invalid)
}

/// Prices a usage (JSON) by a sheet (JSON); answers with the bill as JSON.
#[pyfunction]
pub fn price(sheet: &str, usage: &str) -> PyResult<String> {
    let sheet: PriceSheet = serde_json::from_str(sheet).map_err(invalid)?;
    let usage: Usage = serde_json::from_str(usage).map_err(invalid)?;
    serde_json::to_string(&sheet.price(&usage)).map_err(invalid)
}
