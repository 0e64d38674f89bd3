//! Errors, as the exceptions of `foreload.errors`.

use foreload_engine::client::{self, ClientError};
use foreload_engine::protocol::Trouble;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The exception for a trouble: `foreload.errors.of(kind, message, sample)` chooses the class.
pub fn of(py: Python<'_>, trouble: &Trouble) -> PyErr {
    let made = py.import("foreload.errors").and_then(|errors| {
        errors
            .getattr("of")?
            .call1((trouble.kind.as_str(), trouble.message.as_str(), trouble.sample))
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The exception for a client's error. An interruption is what the signal handler raised.
pub fn from_client(py: Python<'_>, error: ClientError, raised: Option<PyErr>) -> PyErr {
    let kind = match &error {
        ClientError::Trouble(trouble) => return of(py, trouble),
        ClientError::Interrupted => match raised {
            Some(raised) => return raised,
            None => "cancelled",
        },
        // Not the agent's "timeout", after which nothing more will come.
        ClientError::TimedOut(_) => "waiting",
        ClientError::Forked => "forked",
        ClientError::TooLarge { .. } => "invalid",
        _ => "closed",
    };
    of(py, &Trouble::new(kind, error.to_string()))
}

/// A call that can't work as it was made.
pub fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Numbers of samples, from an array of unsigned 64-bit numbers (in NumPy `uint64`) in one piece.
pub fn numbers(array: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    PyBuffer::<u64>::get(array)?.to_vec(array.py())
}

/// Passes on what this process' clients have to report of their agents, to `foreload.errors.report`.
fn report(py: Python<'_>) -> PyResult<()> {
    for trouble in client::reports() {
        let errors = py.import("foreload.errors")?;
        errors
            .getattr("report")?
            .call1((trouble.kind.as_str(), trouble.message.as_str()))?;
    }
    Ok(())
}

thread_local! {
    /// When this thread's calls of the agent have taken too long.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Ends this thread's calls of the agent with a `TimedOutError` once they take longer; None: they take as long as they take.
///
/// # Errors
/// `ValueError` for a time that is none.
#[pyfunction]
#[pyo3(signature = (seconds))]
pub fn give_up_after(seconds: Option<f64>) -> PyResult<()> {
    let limit = seconds.map(Duration::try_from_secs_f64).transpose().map_err(invalid)?;
    DEADLINE.set(limit.and_then(|limit| Instant::now().checked_add(limit)));
    Ok(())
}

fn in_time(py: Python<'_>, deadline: Option<Instant>) -> PyResult<()> {
    match deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        true => Err(of(py, &Trouble::new("timeout", "the agent gave no answer in time"))),
        false => Ok(()),
    }
}

/// Runs `work` without the GIL, with a pulse that looks for signals and for what is to be reported. Where a report is an exception, because warnings are
/// errors, the wait ends with it.
pub fn waiting<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, ClientError> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let deadline = DEADLINE.get();
    let result = py.detach(|| {
        let look = |py: Python<'_>| {
            py.check_signals()
                .and_then(|()| report(py))
                .and_then(|()| in_time(py, deadline))
        };
        let mut pulse = || match Python::attach(look) {
            Ok(()) => true,
            Err(error) => {
                raised = Some(error);
                false
            }
        };
        work(&mut pulse)
    });
    result.map_err(|error| from_client(py, error, raised))
}
