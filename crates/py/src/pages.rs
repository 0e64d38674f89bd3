//! Pages of mapped files, fetched ahead.

use crate::errors::invalid;
use foreload_engine::pages::{self, Progress, Stretch, Window};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// How far it is: bytes that are there, whether it is over, and why it failed.
type Said = (u64, bool, Option<String>);

fn said(progress: Progress) -> Said {
    (progress.there_bytes, progress.is_over, progress.error)
}

/// A thread that has pages of files fetched in the order of some ranges.
#[pyclass(frozen, module = "foreload._core")]
pub struct ReadAhead(pages::ReadAhead);

#[pymethods]
impl ReadAhead {
    #[new]
    #[pyo3(signature = (files, ranges, window_bytes, allowed=None))]
    fn new(
        py: Python<'_>,
        files: Vec<PathBuf>,
        ranges: Vec<(usize, u64, u64)>,
        window_bytes: u64,
        allowed: Option<usize>,
    ) -> PyResult<Self> {
        let window = Window {
            bytes: window_bytes,
            stretches: allowed.unwrap_or(usize::MAX),
        };
        let stretch = |(file, offset, len)| Stretch { file, offset, len };
        let stretches = ranges.into_iter().map(stretch).collect();
        Ok(ReadAhead(
            py.detach(|| pages::ReadAhead::begin(&files, stretches, window))?,
        ))
    }

    fn allow(&self, ranges: usize) {
        self.0.allow(ranges);
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn progress(&self) -> Said {
        said(self.0.progress())
    }

    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<Said> {
        let limit = Duration::try_from_secs_f64(seconds).map_err(invalid)?;
        Ok(said(py.detach(|| self.0.wait(limit))))
    }
}
