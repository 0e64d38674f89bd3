//! A job and its deliveries.

use crate::agent::told;
use crate::buffer::{Blank, Lease, Sample, Slot};
use crate::errors::{from_client, invalid, waiting};
use foreload_engine::client::{Attached, ClientError};
use foreload_engine::protocol::{Ask, Sent};
use foreload_plan::action::{Handle, Via};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A job of the agent, with its memory mapped.
#[pyclass(frozen, module = "foreload._core")]
pub struct Job {
    attached: Arc<Attached>,
}

impl Job {
    pub fn new(attached: Attached) -> Self {
        Job {
            attached: Arc::new(attached),
        }
    }
}

fn seconds(timeout_s: Option<f64>) -> PyResult<Option<Duration>> {
    timeout_s
        .map(|s| Duration::try_from_secs_f64(s).map_err(invalid))
        .transpose()
}

#[pymethods]
impl Job {
    /// The job's number.
    #[getter]
    fn job(&self) -> u32 {
        self.attached.job
    }

    /// The connection's number.
    #[getter]
    fn connection(&self) -> u64 {
        self.attached.client.connection()
    }

    /// The agent's process: names the memory that hand-overs are about.
    #[getter]
    fn agent(&self) -> u32 {
        self.attached.client.agent_pid()
    }

    /// What the agent said at the start, as JSON.
    #[getter]
    fn reply(&self) -> PyResult<String> {
        serde_json::to_string(&self.attached.reply).map_err(invalid)
    }

    fn is_usable(&self) -> bool {
        self.attached.client.is_ours() && !self.attached.client.is_closed()
    }

    /// What the agent wants somebody to read, as (kind, message, sample).
    fn notices(&self) -> Vec<(String, String, Option<u64>)> {
        told(&self.attached.client)
    }

    /// A rank starts at a batch.
    fn start(&self, py: Python<'_>, rank: u32, epoch: u32, batch: u64) -> PyResult<()> {
        let ask = Ask::Start {
            job: self.attached.job,
            rank,
            epoch,
            batch,
        };
        py.detach(|| self.attached.client.send(&ask))
            .map_err(|e| from_client(py, e, None))
    }

    /// Asks for a rank's batch; answers with a number to [`take`](Job::take).
    fn want_batch(&self, py: Python<'_>, rank: u32, epoch: u32, batch: u64) -> PyResult<u64> {
        py.detach(|| self.attached.want_batch(rank, epoch, batch))
            .map_err(|e| from_client(py, e, None))
    }

    /// A rank reads no more, until it starts again.
    fn leave(&self, py: Python<'_>, rank: u32) -> PyResult<()> {
        let ask = Ask::Leave {
            job: self.attached.job,
            rank,
        };
        py.detach(|| self.attached.client.send(&ask))
            .map_err(|e| from_client(py, e, None))
    }

    /// Asks for reads of the plan, as pairs of epoch and position; answers with a number to [`take`](Job::take).
    fn want_reads(&self, py: Python<'_>, rank: u32, reads: Vec<(u32, u64)>) -> PyResult<u64> {
        py.detach(|| self.attached.want_reads(rank, reads))
            .map_err(|e| from_client(py, e, None))
    }

    /// Asks for samples; answers with a number to [`take`](Job::take).
    fn want_samples(&self, py: Python<'_>, rank: u32, samples: Vec<u64>) -> PyResult<u64> {
        py.detach(|| self.attached.want_samples(rank, samples))
            .map_err(|e| from_client(py, e, None))
    }

    /// Nobody waits for this any more.
    fn withdraw(&self, py: Python<'_>, want: u64) -> PyResult<()> {
        py.detach(|| self.attached.client.withdraw(self.attached.job, want))
            .map_err(|e| from_client(py, e, None))
    }

    /// Waits for a want.
    #[pyo3(signature = (want, timeout_s=None))]
    fn take(&self, py: Python<'_>, want: u64, timeout_s: Option<f64>) -> PyResult<Delivery> {
        let timeout = seconds(timeout_s)?;
        let (items, copy) = waiting(py, |pulse| self.attached.delivered(want, timeout, pulse))?;
        Ok(Delivery::new(&self.attached, items, copy))
    }

    /// What a want asked for, if it is there already.
    fn take_ready(&self, py: Python<'_>, want: u64) -> Option<Delivery> {
        py.detach(|| self.attached.delivered_already(want))
            .map(|(items, copy)| Delivery::new(&self.attached, items, copy))
    }

    /// Memory of the batch arena; `None` when it is full: use your own.
    fn slot(&self, py: Python<'_>, nbytes: u64) -> PyResult<Option<Slot>> {
        let taken = waiting(py, |pulse| self.attached.batch_slot(nbytes, pulse))?;
        Ok(taken.map(|(slot, offset)| Slot::new(Arc::clone(&self.attached), slot, offset, nbytes)))
    }

    /// Makes a slot that another connection handed over ours.
    fn adopt_slot(
        &self,
        py: Python<'_>,
        connection: u64,
        process: u32,
        slot: u64,
        offset: u64,
        nbytes: u64,
    ) -> PyResult<Slot> {
        if self.attached.batches.bytes(offset, nbytes).is_none() {
            return Err(PyValueError::new_err("a slot outside the arena"));
        }
        if !waiting(py, |pulse| {
            self.attached.adopt(connection, process, Vec::new(), vec![slot], pulse)
        })? {
            return Err(from_client(
                py,
                ClientError::Closed("the worker that made this batch is gone, and the batch with it".into()),
                None,
            ));
        }
        Ok(Slot::new(Arc::clone(&self.attached), slot, offset, nbytes))
    }

    /// Makes samples that another connection handed over ours.
    fn adopt(&self, py: Python<'_>, connection: u64, process: u32, items: &[u8]) -> PyResult<Delivery> {
        let items = decode(items)?;
        if items.iter().any(|item| self.attached.bytes(item).is_err()) {
            return Err(PyValueError::new_err("a sample outside the arena"));
        }
        let handles: Vec<Handle> = items.iter().map(|item| item.handle).collect();
        if !waiting(py, |pulse| {
            self.attached.adopt(connection, process, handles, Vec::new(), pulse)
        })? {
            return Err(from_client(
                py,
                ClientError::Closed("the worker that fetched these samples is gone, and its leases with it".into()),
                None,
            ));
        }
        Ok(Delivery::new(&self.attached, items, false))
    }
}

const ITEM_BYTES: usize = 41;

fn encode(items: &[Sent]) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.len() * ITEM_BYTES);
    for item in items {
        out.extend_from_slice(&item.sample.to_le_bytes());
        out.extend_from_slice(&item.handle.index.to_le_bytes());
        out.extend_from_slice(&item.handle.generation.to_le_bytes());
        out.extend_from_slice(&item.offset.to_le_bytes());
        out.extend_from_slice(&item.len.to_le_bytes());
        out.extend_from_slice(&item.label.to_le_bytes());
        out.push(match item.via {
            Via::Ram => 0,
            Via::Disk => 1,
            Via::Bucket => 2,
            Via::Peer => 3,
        });
    }
    out
}

fn decode(bytes: &[u8]) -> PyResult<Vec<Sent>> {
    let (items, rest) = bytes.as_chunks::<ITEM_BYTES>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err("not a hand-over of samples"));
    }
    let u64_at = |item: &[u8; ITEM_BYTES], at: usize| item[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let u32_at = |item: &[u8; ITEM_BYTES], at: usize| item[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    let read = |item: &[u8; ITEM_BYTES]| Sent {
        sample: u64_at(item, 0),
        handle: Handle {
            index: u32_at(item, 8),
            generation: u32_at(item, 12),
        },
        offset: u64_at(item, 16),
        len: u64_at(item, 24),
        label: u64_at(item, 32) as i64,
        via: match item[40] {
            1 => Via::Disk,
            2 => Via::Bucket,
            3 => Via::Peer,
            _ => Via::Ram,
        },
    };
    Ok(items.iter().map(read).collect())
}

/// Delivered samples, in the order asked for. Their leases are given back when it dies, except those that went to a [`Sample`] or another process.
#[pyclass(frozen, module = "foreload._core")]
pub struct Delivery {
    attached: Arc<Attached>,
    leases: Mutex<Vec<Option<Lease>>>,
    items: Vec<Sent>,
    /// Copy the bytes and let go: too much memory is leased already.
    copy: bool,
}

impl Delivery {
    fn new(attached: &Arc<Attached>, items: Vec<Sent>, copy: bool) -> Self {
        let leases = items
            .iter()
            .map(|&item| Some(Lease::new(Arc::clone(attached), item)))
            .collect();
        Delivery {
            attached: Arc::clone(attached),
            leases: Mutex::new(leases),
            items,
            copy,
        }
    }

    fn take_all(&self) -> PyResult<Vec<Lease>> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if leases.len() < self.items.len() || leases.iter().any(Option::is_none) {
            return Err(PyValueError::new_err("these samples were taken already"));
        }
        Ok(leases.drain(..).flatten().collect())
    }
}

#[pymethods]
impl Delivery {
    fn __len__(&self) -> usize {
        self.items.len()
    }

    /// Whether the bytes should be copied and the memory let go.
    #[getter]
    fn copy(&self) -> bool {
        self.copy
    }

    /// Numbers of the samples.
    #[getter]
    fn samples(&self) -> Vec<u64> {
        self.items.iter().map(|item| item.sample).collect()
    }

    /// Labels; `None` where there is none.
    #[getter]
    fn labels(&self) -> Vec<Option<i64>> {
        self.items
            .iter()
            .map(|item| Some(item.label).filter(|&label| label != i64::MIN))
            .collect()
    }

    /// Labels as little-endian int64; -1 where there is none.
    fn label_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        let mut bytes = Vec::with_capacity(self.items.len() * 8);
        for item in &self.items {
            let label = if item.label == i64::MIN { -1 } else { item.label };
            bytes.extend(label.to_le_bytes());
        }
        PyByteArray::new(py, &bytes)
    }

    /// Bytes of all.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.items.iter().map(|item| item.len).sum()
    }

    /// Bytes of each.
    #[getter]
    fn lengths(&self) -> Vec<u64> {
        self.items.iter().map(|item| item.len).collect()
    }

    /// Copies of all bytes; the memory is let go, each sample's as soon as it is copied.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let leases = self.take_all()?;
        let mut objects = Vec::with_capacity(leases.len());
        let mut work = Vec::with_capacity(leases.len());
        for lease in leases {
            let (object, blank) = Blank::new(py, lease.bytes().len())?;
            objects.push(object);
            work.push((blank, lease));
        }
        // Filling them takes memory bandwidth and no lock.
        py.detach(|| work.into_iter().for_each(|(blank, lease)| blank.fill(lease.bytes())));
        PyList::new(py, objects)
    }

    /// All samples as memory of the arena, without copies.
    fn views(&self) -> PyResult<Vec<Sample>> {
        Ok(self.take_all()?.into_iter().map(Sample::new).collect())
    }

    /// One sample as memory of the arena.
    fn view(&self, at: usize) -> PyResult<Sample> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = leases
            .get_mut(at)
            .ok_or_else(|| PyIndexError::new_err(format!("sample {at} of {}", self.items.len())))?;
        lease
            .take()
            .map(Sample::new)
            .ok_or_else(|| PyValueError::new_err("this sample was taken already"))
    }

    /// Copies all samples one after the other into a slot from `at` on; the memory of the samples is let go.
    #[pyo3(signature = (slot, at=0))]
    fn gather(&self, py: Python<'_>, slot: &Slot, at: usize) -> PyResult<()> {
        let leases = self.take_all()?;
        py.detach(|| {
            let mut at = at as u64;
            for lease in &leases {
                let bytes = lease.bytes();
                if !slot.write(at, bytes) {
                    return Err(invalid("the batch doesn't fit its slot"));
                }
                at += bytes.len() as u64;
            }
            drop(leases);
            Ok(())
        })
    }

    /// Passes all samples on to whoever adopts them: (agent, connection, this process, items).
    fn hand_over<'py>(&self, py: Python<'py>) -> PyResult<(u32, u64, u32, Bound<'py, PyBytes>)> {
        for lease in self.take_all()? {
            lease.pass_on();
        }
        Ok((
            self.attached.client.agent_pid(),
            self.attached.client.connection(),
            std::process::id(),
            PyBytes::new(py, &encode(&self.items)),
        ))
    }
}
