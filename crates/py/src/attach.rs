//! A program that runs already, with what it maps fetched ahead of it.

use crate::errors::invalid;
use foreload_engine::attach::{self, Line, WINDOW_BYTES};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks for signals.
const PULSE: Duration = Duration::from_millis(50);

/// A program that is looked at from outside.
#[pyclass(frozen, module = "foreload._core")]
pub struct Attached(Mutex<attach::Attached>);

/// One process, under the names that the preload library uses.
fn value(line: &Line) -> Value {
    let counts = &line.counts;
    let tally = counts.tally;
    json!({
        "pid": line.pid,
        "program": line.name,
        "detector": if line.is_read { "poll, by reading pagemap" } else { "poll" },
        "mappings": counts.mappings,
        "not_followed": counts.not_followed,
        "streams": tally.streams,
        "touched_bytes": tally.touched_bytes,
        "asked_bytes": counts.asked_bytes,
        "used_bytes": tally.used_bytes,
        "vain_bytes": tally.vain_bytes,
        "scans": counts.scans,
        "calls": counts.calls,
        "cpu_s": counts.cpu.as_secs_f64(),
    })
}

impl Attached {
    fn state(&self) -> MutexGuard<'_, attach::Attached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Attached {
    #[new]
    #[pyo3(signature = (pid, patterns, window_bytes=None))]
    fn new(py: Python<'_>, pid: u32, patterns: OsString, window_bytes: Option<u64>) -> PyResult<Self> {
        let window = window_bytes.unwrap_or(WINDOW_BYTES);
        let attached = py.detach(|| attach::Attached::new(pid, patterns.into_vec(), window))?;
        Ok(Attached(Mutex::new(attached)))
    }

    fn go(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let until = Instant::now() + Duration::try_from_secs_f64(seconds).map_err(invalid)?;
        loop {
            let pulse = (Instant::now() + PULSE).min(until);
            let goes_on = py.detach(|| {
                let mut state = self.state();
                loop {
                    match state.turn() {
                        Ok(true) if Instant::now() < pulse => {}
                        result => return result,
                    }
                }
            })?;
            py.check_signals()?;
            if !goes_on || Instant::now() >= until {
                return Ok(goes_on);
            }
        }
    }

    fn report(&self, py: Python<'_>) -> String {
        let lines = py.detach(|| self.state().lines());
        Value::from(lines.iter().map(value).collect::<Vec<_>>()).to_string()
    }

    fn notes(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.state().take_notes())
    }
}
