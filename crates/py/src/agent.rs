//! The connection to the agent.

use crate::errors::{from_client, invalid, numbers, of, waiting};
use crate::index::Index;
use crate::job::Job;
use foreload_engine::calls::{Attach, Call, Open, Progress};
use foreload_engine::client::{Attached, Client, Opened, Place};
use foreload_engine::env;
use foreload_engine::list::{List, NewList};
use foreload_engine::protocol::Trouble;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PySlice;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Numbers of an array that are copied at once.
const PART: usize = 1 << 20;

/// A connection to this node's agent, which it starts if there is none.
#[pyclass(frozen, module = "foreload._core")]
pub struct Agent {
    client: Arc<Client>,
    place: Place,
}

/// Calls `tell(step, done, total)` for each progress report.
fn teller(tell: Option<Py<PyAny>>) -> impl FnMut(Progress) + Send {
    move |progress| {
        if let Some(tell) = &tell {
            // A progress bar that fails must not end the work it shows.
            Python::attach(|py| drop(tell.call1(py, (progress.step, progress.done, progress.total))));
        }
    }
}

/// A client's notices, as (kind, message, sample).
pub fn told(client: &Client) -> Vec<(String, String, Option<u64>)> {
    let notices = client.notices().into_iter();
    notices
        .map(|trouble| (trouble.kind, trouble.message, trouble.sample))
        .collect()
}

/// Lays down numbers from an array of unsigned 32-bit or 64-bit ones, part by part: no other copy is made.
fn list(array: &Bound<'_, PyAny>) -> PyResult<List> {
    match PyBuffer::<u32>::get(array) {
        Ok(_) => laid_down(array, u32::to_le_bytes),
        Err(_) => laid_down(array, u64::to_le_bytes),
    }
}

fn laid_down<T: Element + Copy + Sync, const WIDTH: usize>(
    array: &Bound<'_, PyAny>,
    packed: fn(T) -> [u8; WIDTH],
) -> PyResult<List> {
    let (mut list, count) = (NewList::new()?, array.len()?);
    for from in (0..count).step_by(PART) {
        let to = count.min(from + PART);
        let part = array.get_item(PySlice::new(array.py(), from as isize, to as isize, 1))?;
        let part = PyBuffer::<T>::get(&part)?.to_vec(array.py())?;
        array.py().detach(|| list.extend(&part, |number| packed(*number)))?;
    }
    Ok(list.finish(count as u64)?)
}

#[pymethods]
impl Agent {
    #[new]
    #[pyo3(signature = (program, cache_dir=None, linger_s=None))]
    fn new(py: Python<'_>, program: PathBuf, cache_dir: Option<PathBuf>, linger_s: Option<f64>) -> PyResult<Self> {
        let linger = match linger_s {
            Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(invalid)?,
            None => env::linger().map_err(|message| of(py, &Trouble::new("invalid", message)))?,
        };
        let place = Place::of(cache_dir.unwrap_or_else(env::cache_dir), program, linger);
        let client = waiting(py, |pulse| Client::connect(&place, pulse))?;
        Ok(Agent { client, place })
    }

    /// The agent's process.
    #[getter]
    fn pid(&self) -> u32 {
        self.client.agent_pid()
    }

    /// This connection's number.
    #[getter]
    fn connection(&self) -> u64 {
        self.client.connection()
    }

    #[getter]
    fn cache_dir(&self) -> PathBuf {
        self.place.cache_dir.clone()
    }

    #[getter]
    fn log(&self) -> PathBuf {
        self.place.log()
    }

    /// Whether this process made the connection and the agent still answers.
    fn is_usable(&self) -> bool {
        self.client.is_ours() && !self.client.is_closed()
    }

    /// Calls the agent with JSON; answers with JSON.
    fn call(&self, py: Python<'_>, body: &str) -> PyResult<String> {
        let call: Call = serde_json::from_str(body).map_err(invalid)?;
        let (reply, _) = waiting(py, |pulse| self.client.call(&call, pulse))?;
        serde_json::to_string(&reply).map_err(invalid)
    }

    /// Opens a data set.
    #[pyo3(signature = (body, progress=None))]
    fn open(&self, py: Python<'_>, body: &str, progress: Option<Py<PyAny>>) -> PyResult<(u32, Index, String)> {
        let open: Open = serde_json::from_str(body).map_err(invalid)?;
        self.opened(py, &Call::Open(open), progress)
    }

    /// Some samples of a data set, as a data set of its own.
    #[pyo3(signature = (dataset, samples, progress=None))]
    fn subset(
        &self,
        py: Python<'_>,
        dataset: u32,
        samples: &Bound<'_, PyAny>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(u32, Index, String)> {
        let samples = list(samples)?;
        self.opened(py, &Call::Subset { dataset, samples }, progress)
    }

    /// The samples of an epoch of a job whose order is supplied.
    fn supply(&self, py: Python<'_>, job: u32, epoch: u32, samples: &Bound<'_, PyAny>) -> PyResult<()> {
        let samples = numbers(samples)?;
        let call = Call::Supply { job, epoch, samples };
        waiting(py, |pulse| self.client.call(&call, pulse)).map(drop)
    }

    /// Joins or starts a job.
    #[pyo3(signature = (body, progress=None))]
    fn attach(&self, py: Python<'_>, body: &str, progress: Option<Py<PyAny>>) -> PyResult<Job> {
        let attach: Attach = serde_json::from_str(body).map_err(invalid)?;
        let mut tell = teller(progress);
        let attached = waiting(py, |pulse| Attached::watched(&self.client, attach, pulse, &mut tell))?;
        Ok(Job::new(attached))
    }

    /// What the agent wants somebody to read, as (kind, message, sample).
    fn notices(&self) -> Vec<(String, String, Option<u64>)> {
        told(&self.client)
    }

    /// Sends releases that have gathered.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.client.flush());
        if self.client.is_ours() {
            Ok(())
        } else {
            Err(from_client(py, foreload_engine::client::ClientError::Forked, None))
        }
    }
}

impl Agent {
    fn opened(&self, py: Python<'_>, call: &Call, progress: Option<Py<PyAny>>) -> PyResult<(u32, Index, String)> {
        let mut tell = teller(progress);
        let opened = waiting(py, |pulse| Opened::new(&self.client, call, pulse, &mut tell))?;
        Ok((opened.dataset, Index::new(opened.index), opened.origin))
    }
}
