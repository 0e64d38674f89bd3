//! Copies of delivered samples, made by a thread while the user's code computes.
//!
//! The objects are allocated at once, which needs the interpreter's lock and takes no time; filling them needs memory bandwidth and no lock.
//! Each set of copies has a thread of its own, which also sends what was asked for and files what came, lets go of a sample as soon as it is
//! copied, and ends with the last. Whoever
//! drops the copies waits for it, so that it never outlives what it writes to. A forked child has the copies without the
//! thread: it neither waits nor gets them.

use crate::buffer::{Blank, Lease};
use crate::errors::{from_client, of};
use foreload_engine::client::{Attached, ClientError};
use foreload_engine::protocol::Trouble;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// `bytes` objects that are being filled.
pub struct Copies {
    objects: Vec<Py<PyBytes>>,
    thread: Option<JoinHandle<()>>,
    attached: Arc<Attached>,
}

impl Copies {
    /// Begins to copy samples.
    pub fn begin(py: Python<'_>, attached: &Arc<Attached>, leases: Vec<Lease>) -> PyResult<Self> {
        let mut objects = Vec::with_capacity(leases.len());
        let mut work = Vec::with_capacity(leases.len());
        for lease in leases {
            let (object, blank) = Blank::new(py, lease.bytes().len())?;
            objects.push(object);
            work.push((blank, lease));
        }
        let work = Arc::new(Mutex::new(work));
        let (theirs, whose) = (Arc::clone(&work), Arc::clone(attached));
        let thread = Builder::new()
            .name("foreload-copy".into())
            .spawn(move || copy(&theirs, &whose));
        if thread.is_err() {
            // No thread to be had: then here and now.
            py.detach(|| copy(&work, attached));
        }
        Ok(Copies {
            objects,
            thread: thread.ok(),
            attached: Arc::clone(attached),
        })
    }

    /// The copies, as soon as they are whole.
    pub fn finish<'py>(mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        if !self.attached.client.is_ours() {
            return Err(from_client(py, ClientError::Forked, None));
        }
        let thread = self.thread.take();
        py.detach(|| thread.map_or(Ok(()), JoinHandle::join))
            .map_err(|_| of(py, &Trouble::new("bug", "copying a batch panicked")))?;
        PyList::new(py, std::mem::take(&mut self.objects))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            if self.attached.client.is_ours() {
                let _ = thread.join();
            } else {
                // The parent's thread: here is nothing to wait for or to clean up.
                std::mem::forget(thread);
            }
        }
    }
}

fn copy(work: &Mutex<Vec<(Blank, Lease)>>, attached: &Attached) {
    let work = std::mem::take(&mut *work.lock().unwrap_or_else(PoisonError::into_inner));
    // What was asked for meanwhile goes out first, so that it is there when the next batch is to be copied.
    attached.client.flush();
    for (blank, lease) in work {
        blank.fill(lease.bytes());
    }
    // The agent may wait for this memory, and this process has nothing to ask until the next batch.
    attached.client.flush();
    attached.client.glance();
}
