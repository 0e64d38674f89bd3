//! Who reads what, when: the order of `plan`, cut into one access sequence per node.
//!
//! Position p of an epoch belongs to node `p mod N`. Where N divides the global batch that is exactly `plan::split`; where it doesn't, the
//! surplus rotates, so that nodes differ by one sample per epoch and not by one per batch. Access f of node i is therefore
//! position `f*N + i`: nothing is stored per node.
//!
//! An epoch's samples are laid out once, as four bytes each, while any node is in it ([`Epochs`]); a simulation streams
//! over them.

use crate::scenario::Assign;
use crate::{Error, Scenario, Setup, Watch};
use foreload_plan::{
    DigestBuilder,
    homes::favourite,
    order::{EpochOrder, Order},
    spec::{OrderKind, OrderSpec, Tail},
};
use std::rc::Rc;

/// Positions that are laid out between two looks at the watch: a millisecond.
const CHUNK: u64 = 1 << 14;

/// The access sequences of a scenario.
#[derive(Debug)]
pub struct Access<'a> {
    watch: &'a Watch<'a>,
    orders: Vec<EpochOrder>,
    samples: u32,
    nodes: u32,
    epochs: u32,
    batch: u32,
}

impl<'a> Access<'a> {
    /// The sequences for `samples` samples under `scenario`; `watch` is told of all that go through them.
    ///
    /// # Errors
    /// When the order can't be made.
    pub fn new(scenario: &Scenario, samples: u32, watch: &'a Watch<'a>) -> Result<Self, Error> {
        let order = Order::new(&spec(scenario, samples))?;
        let orders = (0..scenario.training.epochs)
            .map(|e| order.epoch(e))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            watch,
            orders,
            samples,
            nodes: scenario.cluster.nodes,
            epochs: scenario.training.epochs,
            batch: scenario.training.global_batch,
        })
    }

    /// Who is told.
    #[must_use]
    pub fn watch(&self) -> &'a Watch<'a> {
        self.watch
    }

    /// F.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// N.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// E.
    #[must_use]
    pub fn epochs(&self) -> u32 {
        self.epochs
    }

    /// Samples in a global batch.
    #[must_use]
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// Accesses of one node in every epoch.
    #[must_use]
    pub fn per_epoch(&self, node: u32) -> u32 {
        (self.samples + self.nodes - 1 - node) / self.nodes
    }

    /// All samples of an epoch, by position.
    ///
    /// # Errors
    /// When the order can't tell (it always can for the simulated kinds), or the run was ended.
    pub fn lay_out(&self, epoch: u32) -> Result<Vec<u32>, Error> {
        let order = &self.orders[epoch as usize];
        let mut laid_out = Vec::with_capacity(self.samples as usize);
        let samples = u64::from(self.samples);
        for first in (0..samples).step_by(CHUNK as usize) {
            laid_out.extend((first..samples.min(first + CHUNK)).map(|p| order.sample_at(p) as u32));
            self.watch.ask()?;
        }
        Ok(laid_out)
    }

    /// Where an epoch has `sample`.
    pub fn position_of(&self, epoch: u32, sample: u32) -> Option<u64> {
        self.orders[epoch as usize].position_of(u64::from(sample))
    }

    /// How often `node` reads `sample` in epochs after `epoch`.
    pub fn reads_after(&self, node: u32, sample: u32, epoch: u32) -> u32 {
        let reads = |order: &&EpochOrder| {
            order
                .position_of(u64::from(sample))
                .is_some_and(|p| p % u64::from(self.nodes) == u64::from(node))
        };
        let later = &self.orders[epoch as usize + 1..];
        // Ten positions are found in the time of an access.
        self.watch.tire(later.len() as u32 / 10);
        later.iter().filter(reads).count() as u32
    }
}

/// The spec of a scenario's order.
pub(crate) fn spec(scenario: &Scenario, samples: u32) -> OrderSpec {
    let training = &scenario.training;
    let kind = match training.order.as_str() {
        "sequential" => OrderKind::Sequential,
        _ => OrderKind::Keyed,
    };
    OrderSpec {
        dataset: DigestBuilder::new("simulated").number(u64::from(samples)).finish(),
        samples: u64::from(samples),
        kind,
        seed: training.seed,
        global_batch: training.global_batch,
        tail: Tail::Uneven,
    }
}

/// What changes an epoch's layout before it is read.
pub type Rearrange<'a> = Box<dyn Fn(u32, Vec<u32>) -> Vec<u32> + 'a>;

/// Deals each batch of an epoch out anew: a sample goes to its home, as long as every node gets as many as before, and the rest to whoever has room.
pub fn deal(home: &[u16], nodes: usize, batch: usize, mut samples: Vec<u32>) -> Vec<u32> {
    let mut rest = Vec::with_capacity(batch);
    let mut slot = vec![0usize; nodes];
    let mut filled = vec![false; batch];
    let mut dealt = vec![0u32; batch];
    for (b, chunk) in samples.chunks_mut(batch).enumerate() {
        let start = b * batch;
        // The first slot of this batch that belongs to each node.
        for (node, s) in slot.iter_mut().enumerate() {
            *s = (node + nodes - start % nodes) % nodes;
        }
        filled[..chunk.len()].fill(false);
        rest.clear();
        for sample in chunk.iter() {
            let s = slot
                .get_mut(usize::from(home[*sample as usize]))
                .filter(|s| **s < chunk.len());
            match s {
                Some(s) => {
                    (dealt[*s], filled[*s]) = (*sample, true);
                    *s += nodes;
                }
                None => rest.push(*sample),
            }
        }
        let mut rest = rest.iter();
        for (i, sample) in chunk.iter_mut().enumerate() {
            *sample = if filled[i] {
                dealt[i]
            } else {
                *rest.next().expect("as many samples as slots")
            };
        }
    }
    samples
}

/// Whether samples go to the nodes that keep them.
///
/// # Errors
/// When they are to, and share objects, of which nodes keep stretches.
pub fn is_local(setup: &Setup<'_>) -> Result<bool, Error> {
    match (setup.scenario.training.assign, &setup.sizes.places) {
        (Assign::Cards, _) => Ok(false),
        (Assign::Local, None) => Ok(true),
        (Assign::Local, Some(_)) => Err(Error::invalid(
            "training.assign",
            "\"local\" deals whole objects: it isn't there for samples in shards",
        )),
    }
}

/// Gives samples to the nodes that keep them, as the engine deals them; none: they are dealt out like cards.
///
/// # Errors
/// As [`is_local`], and when the run was ended.
pub fn local<'a>(setup: &Setup<'_>) -> Result<Option<Rearrange<'a>>, Error> {
    if !is_local(setup)? {
        return Ok(None);
    }
    let ids: Vec<u64> = (0..setup.access.nodes()).map(u64::from).collect();
    let home = |sample: u32| {
        setup.access.watch().tire(setup.access.nodes() / 8);
        setup.access.watch().look()?;
        Ok(favourite(sample.into(), &ids).map_or(u16::MAX, |home| home as u16))
    };
    let homes = (0..setup.access.samples())
        .map(home)
        .collect::<Result<Vec<u16>, Error>>()?;
    let batch = (setup.access.batch() as usize).min(homes.len());
    Ok(Some(Box::new(move |_, samples| {
        deal(&homes, ids.len(), batch, samples)
    })))
}

/// Laid-out epochs, kept while a node is in them.
pub struct Epochs<'a> {
    access: &'a Access<'a>,
    rearrange: Option<Rearrange<'a>>,
    laid_out: Vec<Option<Rc<[u32]>>>,
    readers_past: Vec<u32>,
}

impl<'a> Epochs<'a> {
    /// Lays epochs out as they are asked for, each changed by `rearrange` if given.
    pub fn new(access: &'a Access<'a>, rearrange: Option<Rearrange<'a>>) -> Self {
        let epochs = access.epochs() as usize;
        Self {
            access,
            rearrange,
            laid_out: vec![None; epochs],
            readers_past: vec![0; epochs],
        }
    }

    /// The samples of an epoch, by position.
    ///
    /// # Errors
    /// When the order can't tell.
    pub fn get(&mut self, epoch: u32) -> Result<Rc<[u32]>, Error> {
        let slot = &mut self.laid_out[epoch as usize];
        if let Some(samples) = slot {
            return Ok(Rc::clone(samples));
        }
        let samples = self.access.lay_out(epoch)?;
        let samples = match &self.rearrange {
            Some(f) => f(epoch, samples),
            None => samples,
        };
        Ok(Rc::clone(slot.insert(samples.into())))
    }

    /// A node is through with an epoch; the last one frees it.
    pub fn leave(&mut self, epoch: u32) {
        self.readers_past[epoch as usize] += 1;
        if self.readers_past[epoch as usize] == self.access.nodes() {
            self.laid_out[epoch as usize] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::tests::SMALL;

    #[test]
    fn every_epoch_is_dealt_to_the_nodes_completely() {
        let scenario = Scenario::parse(SMALL, &["dataset.samples=1003"]).expect("valid");
        let watch = Watch::quiet();
        let access = Access::new(&scenario, 1003, &watch).expect("valid");
        let mut seen = access.lay_out(1).expect("an epoch");
        assert_ne!(seen, access.lay_out(2).expect("an epoch"));
        seen.sort_unstable();
        assert_eq!(seen, (0..1003).collect::<Vec<_>>());
        assert_eq!((0..4).map(|n| access.per_epoch(n)).sum::<u32>(), 1003);
    }

    #[test]
    fn future_reads_are_counted_from_the_order() {
        let scenario = Scenario::parse(SMALL, &["training.epochs=8"]).expect("valid");
        let watch = Watch::quiet();
        let access = Access::new(&scenario, 1000, &watch).expect("valid");
        let by_layout = |node: u32, sample: u32| {
            (3..8)
                .filter(|e| {
                    access
                        .lay_out(*e)
                        .expect("an epoch")
                        .iter()
                        .position(|s| *s == sample)
                        .expect("read")
                        % 4
                        == node as usize
                })
                .count()
        };
        for sample in [0, 17, 999] {
            assert_eq!((0..4).map(|n| access.reads_after(n, sample, 2)).sum::<u32>(), 5);
            assert_eq!(access.reads_after(1, sample, 2) as usize, by_layout(1, sample));
        }
    }
}
