//! Orders and splits, computed in this process: for samplers, `explain`, and resuming.

use crate::errors::{invalid, numbers};
use foreload_plan::Digest;
use foreload_plan::deal::Deal;
use foreload_plan::order::{EpochOrder, Order};
use foreload_plan::spec::OrderSpec;
use foreload_plan::split::{Cursor, Split};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Which sample each rank reads, and when.
#[pyclass(frozen, module = "foreload._core")]
pub struct Plan {
    order: Mutex<(Order, Option<EpochOrder>)>,
    split: Split,
    deal: OnceLock<Deal>,
    digest: Digest,
}

impl Plan {
    /// The positions that a rank has of a batch.
    fn positions_of(&self, epoch: u32, batch: u64, rank: u32) -> PyResult<Vec<u64>> {
        match self.deal.get() {
            None => Ok(self.split.batch_positions(batch, rank).collect()),
            Some(deal) => self.with_epoch(epoch, |order| deal.batch(&self.split, order, batch).of(rank).to_vec()),
        }
    }

    fn check(&self, batch: u64, rank: u32) -> PyResult<()> {
        if batch >= self.split.batches() {
            return Err(PyIndexError::new_err(format!(
                "batch {batch} of {}",
                self.split.batches()
            )));
        }
        if rank >= self.split.ranks() {
            return Err(PyIndexError::new_err(format!("rank {rank} of {}", self.split.ranks())));
        }
        Ok(())
    }

    fn with_epoch<T>(&self, epoch: u32, use_it: impl FnOnce(&EpochOrder) -> T) -> PyResult<T> {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if order.1.as_ref().is_none_or(|known| known.epoch() != epoch) {
            order.1 = Some(order.0.epoch(epoch).map_err(invalid)?);
        }
        order.1.as_ref().map(use_it).ok_or_else(|| invalid("no such epoch"))
    }
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (order, world=1, uneven=false))]
    fn new(py: Python<'_>, order: &str, world: u32, uneven: bool) -> PyResult<Self> {
        let spec: OrderSpec = serde_json::from_str(order).map_err(invalid)?;
        py.detach(|| {
            let order = Order::new(&spec).map_err(invalid)?;
            let split = if uneven {
                Split::weighted(&order, world)
            } else {
                Split::new(&order, world)
            }
            .map_err(invalid)?;
            Ok(Plan {
                digest: spec.digest(),
                order: Mutex::new((order, None)),
                split,
                deal: OnceLock::new(),
            })
        })
    }

    /// From now on samples go to the ranks of the nodes that keep them: by rank, what tells its node from others, which share in groups of at most
    /// so many; 0: all with all. The digest of that.
    fn assign(&self, nodes: Vec<u64>, group: u32) -> PyResult<String> {
        let deal = Deal::new(nodes, group);
        deal.check(&self.split).map_err(invalid)?;
        let told = self.deal.get_or_init(|| deal.clone());
        if *told != deal {
            return Err(invalid("the ranks of this plan are on other nodes already"));
        }
        Ok(deal.digest().to_string())
    }

    /// The order's digest: names it in checkpoints.
    #[getter]
    fn digest(&self) -> String {
        self.digest.to_string()
    }

    /// Positions of an epoch.
    #[getter]
    fn positions(&self) -> u64 {
        self.split.positions()
    }

    /// Global batches of an epoch; every rank has as many.
    #[getter]
    fn batches(&self) -> u64 {
        self.split.batches()
    }

    #[getter]
    fn world(&self) -> u32 {
        self.split.ranks()
    }

    /// Samples a rank gets of a batch.
    fn batch_len(&self, batch: u64, rank: u32) -> PyResult<u32> {
        self.check(batch, rank)?;
        Ok(self.split.batch_len(batch, rank))
    }

    /// The samples a rank gets of a batch.
    fn batch(&self, py: Python<'_>, epoch: u32, batch: u64, rank: u32) -> PyResult<Vec<u64>> {
        self.check(batch, rank)?;
        py.detach(|| {
            let positions = self.positions_of(epoch, batch, rank)?;
            self.with_epoch(epoch, |order| {
                positions.iter().map(|&position| order.sample_at(position)).collect()
            })
        })
    }

    /// The positions a rank gets of a batch.
    fn batch_positions(&self, py: Python<'_>, epoch: u32, batch: u64, rank: u32) -> PyResult<Vec<u64>> {
        self.check(batch, rank)?;
        py.detach(|| self.positions_of(epoch, batch, rank))
    }

    /// What to multiply a rank's mean loss with.
    fn weight(&self, batch: u64, rank: u32) -> PyResult<f64> {
        self.check(batch, rank)?;
        Ok(self.split.weight(batch, rank))
    }

    /// The sample at a position.
    fn sample_at(&self, py: Python<'_>, epoch: u32, position: u64) -> PyResult<u64> {
        if position >= self.split.positions() {
            return Err(PyIndexError::new_err(format!(
                "position {position} of {}",
                self.split.positions()
            )));
        }
        py.detach(|| self.with_epoch(epoch, |order| order.sample_at(position)))
    }

    /// The first position of a sample; `None` when the epoch drops it.
    fn position_of(&self, py: Python<'_>, epoch: u32, sample: u64) -> PyResult<Option<u64>> {
        py.detach(|| self.with_epoch(epoch, |order| order.position_of(sample)))
    }

    /// Declares the list of an epoch of a supplied order.
    fn supply(&self, py: Python<'_>, epoch: u32, samples: &Bound<'_, PyAny>) -> PyResult<()> {
        let samples = numbers(samples)?;
        py.detach(|| {
            self.order
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .0
                .supply(epoch, &samples)
                .map_err(invalid)
        })
    }

    /// Where a checkpoint goes on: (epoch, batch).
    fn resume(&self, digest: &str, epoch: u32, position: u64) -> PyResult<(u32, u64)> {
        let cursor = Cursor {
            order: digest.parse().map_err(invalid)?,
            epoch,
            position,
        };
        cursor
            .resume(&self.order.lock().unwrap_or_else(PoisonError::into_inner).0)
            .map_err(invalid)
    }
}
