//! Memory of the arenas, seen from Python through the buffer protocol.
//!
//! A [`Sample`] is read-only memory of the cache arena, a [`Slot`] writable memory of the batch arena. Each holds a lease, given back when the object
//! dies, and the object lives as long as any view of it: a memoryview, an array, a tensor. There is no `release()`: it would pull the memory away
//! under views that the interpreter doesn't count. Giving a lease back needs neither GIL nor interpreter. In a forked child the
//! lease is the parent's, and dropping the object there changes nothing.

use foreload_engine::client::Attached;
use foreload_engine::protocol::Sent;
use foreload_engine::slots::prefer_huge_pages;
use foreload_plan::action::{Handle, Via};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::raw::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A lease on delivered bytes; gives itself back.
pub struct Lease {
    pub attached: Arc<Attached>,
    pub item: Sent,
    passed_on: AtomicBool,
}

impl Lease {
    pub fn new(attached: Arc<Attached>, item: Sent) -> Self {
        Lease {
            attached,
            item,
            passed_on: AtomicBool::new(false),
        }
    }

    /// The lease goes to another process: this one no longer gives it back.
    pub fn pass_on(&self) -> Handle {
        self.passed_on.store(true, Ordering::Relaxed);
        self.item.handle
    }

    pub fn bytes(&self) -> &[u8] {
        self.attached.bytes(&self.item).unwrap_or_default()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.passed_on.load(Ordering::Relaxed) {
            self.attached
                .client
                .release(self.attached.job, Some(self.item.handle), None, self.item.len);
        }
    }
}

/// The memory of a `bytes` object that nobody has seen yet.
pub struct Blank {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is the only way to that memory until it is consumed, whatever thread that happens in.
#[allow(unsafe_code)]
unsafe impl Send for Blank {}

impl Blank {
    /// An object without contents, and the right to give it some; the object must outlive it, and be shown to nobody before.
    #[allow(unsafe_code)]
    pub fn new(py: Python<'_>, len: usize) -> PyResult<(Py<PyBytes>, Self)> {
        let size = ffi::Py_ssize_t::try_from(len).map_err(|_| PyValueError::new_err("a sample too large"))?;
        // SAFETY: without a source it makes an object of that size, or raises; ours is the only reference.
        let object = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), size))?
                .cast_into_unchecked::<PyBytes>()
        };
        let start = object.as_bytes().as_ptr().cast_mut();
        // SAFETY: the object's own memory, which nobody else knows yet; it has no contents.
        prefer_huge_pages(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) });
        Ok((object.unbind(), Blank { start, len }))
    }

    /// Copies the contents; what is longer than the object is left out.
    #[allow(unsafe_code)]
    pub fn fill(self, bytes: &[u8]) {
        // SAFETY: `len` bytes of an object that lives and that only we know (see `new`); an empty one is shared, and nothing is written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, bytes.len().min(self.len)) };
    }
}

/// One sample's bytes.
#[pyclass(frozen, module = "foreload._core")]
pub struct Sample {
    lease: Lease,
}

impl Sample {
    pub fn new(lease: Lease) -> Self {
        Sample { lease }
    }
}

fn via(via: Via) -> &'static str {
    match via {
        Via::Ram => "ram",
        Via::Disk => "disk",
        Via::Bucket => "bucket",
        Via::Peer => "peer",
    }
}

/// Fills a Python buffer view of `len` bytes at `start`.
///
/// # Safety
/// `view` is what the interpreter passed to `__getbuffer__`, and the memory lives as long as `owner`.
#[allow(unsafe_code)]
unsafe fn expose(
    owner: *mut ffi::PyObject,
    view: *mut ffi::Py_buffer,
    start: *mut u8,
    len: usize,
    readonly: bool,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    // SAFETY: the interpreter's own filler; it takes a reference on `owner` and checks the flags.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner,
            start.cast::<c_void>(),
            len as ffi::Py_ssize_t,
            c_int::from(readonly),
            flags,
        )
    };
    if filled == 0 {
        Ok(())
    } else {
        Err(Python::attach(PyErr::fetch))
    }
}

#[pymethods]
impl Sample {
    /// Its number.
    #[getter]
    fn sample(&self) -> u64 {
        self.lease.item.sample
    }

    /// Its label.
    #[getter]
    fn label(&self) -> Option<i64> {
        Some(self.lease.item.label).filter(|&label| label != i64::MIN)
    }

    /// Where it was found: `ram`, `disk` or `bucket`.
    #[getter]
    fn via(&self) -> &'static str {
        via(self.lease.item.via)
    }

    fn __len__(&self) -> usize {
        self.lease.item.len as usize
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.lease.bytes())
    }

    fn __repr__(&self) -> String {
        format!(
            "<foreload sample {}, {} bytes, from {}>",
            self.lease.item.sample,
            self.lease.item.len,
            via(self.lease.item.via)
        )
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().lease.bytes();
        // SAFETY: called by the interpreter; the arena is mapped as long as the lease in `slf` lives, and nobody writes leased bytes.
        unsafe { expose(slf.as_ptr(), view, bytes.as_ptr().cast_mut(), bytes.len(), true, flags) }
    }
}

/// Memory to collate a batch into.
#[pyclass(frozen, module = "foreload._core")]
pub struct Slot {
    attached: Arc<Attached>,
    slot: u64,
    offset: u64,
    len: u64,
    passed_on: AtomicBool,
}

impl Slot {
    pub fn new(attached: Arc<Attached>, slot: u64, offset: u64, len: u64) -> Self {
        Slot {
            attached,
            slot,
            offset,
            len,
            passed_on: AtomicBool::new(false),
        }
    }

    /// Copies bytes to `at`; false: they don't fit.
    pub fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let end = at.checked_add(bytes.len() as u64);
        end.is_some_and(|end| end <= self.len) && self.attached.batches.write(self.offset + at, bytes)
    }

    /// The lease goes to another process.
    pub fn pass_on(&self) -> (u64, u64, u64) {
        self.passed_on.store(true, Ordering::Relaxed);
        (self.slot, self.offset, self.len)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.passed_on.load(Ordering::Relaxed) {
            self.attached
                .client
                .release(self.attached.job, None, Some(self.slot), self.len);
        }
    }
}

#[pymethods]
impl Slot {
    fn __len__(&self) -> usize {
        self.len as usize
    }

    /// Passes the slot to whoever adopts it: (agent, connection, this process, slot, offset, bytes). This object must not be written to any more.
    fn hand_over(&self) -> PyResult<(u32, u64, u32, u64, u64, u64)> {
        if self.passed_on.load(Ordering::Relaxed) {
            return Err(PyValueError::new_err("this slot was handed over already"));
        }
        let (slot, offset, len) = self.pass_on();
        let client = &self.attached.client;
        Ok((
            client.agent_pid(),
            client.connection(),
            std::process::id(),
            slot,
            offset,
            len,
        ))
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let start = this
            .attached
            .batches
            .address(this.offset, this.len)
            .ok_or_else(|| PyBufferError::new_err("a slot outside the arena"))?;
        // SAFETY: called by the interpreter; the arena is mapped as long as `slf` lives, which holds its only lease.
        unsafe { expose(slf.as_ptr(), view, start, this.len as usize, false, flags) }
    }
}
