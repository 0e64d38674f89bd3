//! Paper 001's own placement (sec. 3.2 and 5.1): each node keeps the samples that it reads most often, the fastest class first.
//!
//! The order of a run tells how often each node will read each sample ([`Counts`]). Sorted by that, and by the first access among those as frequent, a sample's
//! offset is what lies before it ([`Placing`]): what a class has room for begins at the end of the faster ones. Nodes place independently, so some samples are on several
//! of them and others on none: [`crate::homes`] keeps one copy of each first, and does better (`docs/design/0003-coverage-first.md`).

use crate::error::Error;
use crate::order::Order;
use crate::split::Split;

/// How often each node reads each sample, up to 255 times.
pub struct Counts {
    samples: usize,
    counts: Vec<u8>,
}

impl Counts {
    /// No reads yet, of so many nodes. Takes a byte for each sample and node.
    #[must_use]
    pub fn new(nodes: usize, samples: usize) -> Self {
        let counts = vec![0; nodes * samples];
        Counts { samples, counts }
    }

    /// A node reads a sample.
    ///
    /// # Panics
    /// When there is no such node or sample.
    pub fn add(&mut self, node: usize, sample: u32) {
        let count = &mut self.counts[node * self.samples + sample as usize];
        *count = count.saturating_add(1);
    }

    /// Places what was counted. `sizes` are those of the samples, in the unit of the offsets.
    ///
    /// # Panics
    /// When there are fewer sizes than samples.
    #[must_use]
    pub fn placing(self, sizes: impl Iterator<Item = f64> + Clone) -> Placing {
        let of_node = |counts: &[u8]| {
            let mut before = [0.0; 256];
            counts
                .iter()
                .zip(sizes.clone())
                .for_each(|(&count, size)| before[usize::from(count)] += size);
            let mut sum = 0.0;
            for of_count in before.iter_mut().skip(1).rev() {
                sum += std::mem::replace(of_count, sum);
            }
            before
        };
        Placing {
            before: self.counts.chunks(self.samples.max(1)).map(of_node).collect(),
            counts: self,
        }
    }
}

/// Samples while they get their offsets, in the order of access.
pub struct Placing {
    /// Of what isn't placed yet.
    counts: Counts,
    /// By node and count: where the next sample of that count begins.
    before: Vec<[f64; 256]>,
}

impl Placing {
    /// A node reads a sample of this size, for the first time (else `None`): where among all that it reads the sample ends.
    ///
    /// # Panics
    /// When there is no such node or sample.
    pub fn first(&mut self, node: usize, sample: u32, size: f64) -> Option<f64> {
        let count = std::mem::take(&mut self.counts.counts[node * self.counts.samples + sample as usize]);
        // What was never counted has none, and what was placed has none any more.
        if count == 0 {
            return None;
        }
        let before = &mut self.before[node][usize::from(count)];
        *before += size;
        Some(*before)
    }
}

/// What each node of a run reads, the most frequent first, and among those as frequent what it needs first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// By rank: which of the nodes it is on.
    node_of: Vec<usize>,
    /// By node: what tells it from others, and its samples.
    nodes: Vec<(u64, Vec<u32>)>,
}

/// Samples and nodes that a ranking is made of, at most: each pair takes up to five bytes.
pub const MOST_RANKED: u64 = 1 << 28;

/// Reads that are counted, at most, but for one epoch: two seconds. How often nodes read a sample in more of them differs by ever less.
const MOST_COUNTED: u64 = 1 << 24;

/// Positions between two looks at who is waiting.
const CHUNK: u64 = 1 << 18;

impl Ranking {
    /// Ranks what the nodes read in so many epochs, or in the first of them that have [`MOST_COUNTED`] reads together. O(positions x epochs), twice.
    ///
    /// # Arguments
    /// - `nodes`: by rank, what tells its node from others.
    /// - `at`: is told how far it is, of how much, and may end it.
    ///
    /// # Errors
    /// The order doesn't tell ([`Error::EpochNotSupplied`]), there are other ranks ([`Error::OtherDeal`]), or more than [`MOST_RANKED`] to rank; and `at`'s own.
    pub fn new<E: From<Error>>(
        order: &Order,
        split: &Split,
        nodes: &[u64],
        epochs: u32,
        mut at: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<Self, E> {
        if nodes.len() != split.ranks() as usize {
            let (found, ranks) = (nodes.len() as u64, split.ranks());
            return Err(Error::OtherDeal { found, ranks }.into());
        }
        let mut ids = nodes.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let samples = order.spec().samples;
        let pairs = samples.saturating_mul(ids.len() as u64);
        if pairs > MOST_RANKED || samples > u64::from(u32::MAX) {
            return Err(Error::TooManyRanked { pairs }.into());
        }
        let node_of: Vec<usize> = nodes.iter().map(|id| ids.partition_point(|known| known < id)).collect();
        let epochs = u64::from(epochs).min((MOST_COUNTED / split.positions().max(1)).max(1)) as u32;
        let total = 2 * u64::from(epochs) * split.positions();
        let mut read = |pass: u64, each: &mut dyn FnMut(usize, u32)| {
            for epoch in 0..epochs {
                let laid_out = order.epoch(epoch)?;
                for position in 0..split.positions() {
                    if position % CHUNK == 0 {
                        at(
                            pass * total / 2 + u64::from(epoch) * split.positions() + position,
                            total,
                        )?;
                    }
                    let node = node_of[split.rank_of(position) as usize];
                    each(node, laid_out.sample_at(position) as u32);
                }
            }
            Ok::<(), E>(())
        };
        let mut counts = Counts::new(ids.len(), samples as usize);
        read(0, &mut |node, sample| counts.add(node, sample))?;
        let mut ranked: Vec<Vec<u32>> = counts
            .counts
            .chunks(samples.max(1) as usize)
            .map(|counts| vec![0; counts.iter().filter(|&&count| count > 0).count()])
            .collect();
        let mut placing = counts.placing(std::iter::repeat_n(1.0, samples as usize));
        read(1, &mut |node, sample| {
            if let Some(end) = placing.first(node, sample, 1.0) {
                ranked[node][end as usize - 1] = sample;
            }
        })?;
        let nodes = ids.into_iter().zip(ranked).collect();
        Ok(Ranking { node_of, nodes })
    }

    /// What tells a rank's node from others; `None`: there is no such rank.
    #[must_use]
    pub fn node_of(&self, rank: u32) -> Option<u64> {
        let node = *self.node_of.get(rank as usize)?;
        Some(self.nodes[node].0)
    }

    /// What a node reads, the most frequent first; nothing if it isn't known.
    #[must_use]
    pub fn of(&self, node: u64) -> &[u32] {
        let known = self.nodes.binary_search_by_key(&node, |(id, _)| *id);
        known.map_or(&[], |at| &self.nodes[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::DigestBuilder;
    use crate::spec::{OrderKind, OrderSpec, Tail};
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    fn order(samples: u64, global_batch: u32) -> Order {
        let spec = OrderSpec {
            dataset: DigestBuilder::new("test").number(samples).finish(),
            samples,
            kind: OrderKind::Keyed,
            seed: 3,
            global_batch,
            tail: Tail::Uneven,
        };
        Order::new(&spec).unwrap()
    }

    /// Counted and sorted, as one would by hand.
    fn plainly(order: &Order, split: &Split, nodes: &[u64], epochs: u32, node: u64) -> Vec<u32> {
        let mut reads: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
        for epoch in 0..epochs {
            let laid_out = order.epoch(epoch).unwrap();
            for batch in 0..split.batches() {
                for position in split.batch_range(batch) {
                    if nodes[split.rank_of(position) as usize] == node {
                        let step = u64::from(epoch) * split.positions() + position;
                        reads.entry(laid_out.sample_at(position)).or_insert((0, step)).0 += 1;
                    }
                }
            }
        }
        let mut sorted: Vec<_> = reads.into_iter().collect();
        sorted.sort_by_key(|&(_, (count, first))| (Reverse(count), first));
        sorted.into_iter().map(|(sample, _)| sample as u32).collect()
    }

    #[test]
    fn the_most_frequent_come_first_and_among_these_what_is_needed_first() {
        for (samples, batch, nodes, epochs) in [
            (97, 8, vec![7, 7, 2, 9], 5),
            (64, 4, vec![5], 3),
            (200, 6, vec![30, 10, 20], 12),
        ] {
            let order = order(samples, batch);
            let split = Split::weighted(&order, nodes.len() as u32).unwrap();
            let ranking = Ranking::new(&order, &split, &nodes, epochs, |_, _| Ok::<_, Error>(())).unwrap();
            for (rank, &node) in (0..).zip(&nodes) {
                assert_eq!(ranking.node_of(rank), Some(node));
                assert_eq!(
                    ranking.of(node),
                    plainly(&order, &split, &nodes, epochs, node),
                    "{node}"
                );
            }
            assert!(ranking.of(77).is_empty());
        }
    }

    #[test]
    fn what_can_t_be_ranked_says_why_and_whoever_waits_can_end_it() {
        let order = order(60, 6);
        let split = Split::new(&order, 3).unwrap();
        let told = |nodes: &[u64]| Ranking::new(&order, &split, nodes, 2, |_, _| Ok::<_, Error>(()));
        assert_eq!(told(&[1, 2]), Err(Error::OtherDeal { found: 2, ranks: 3 }));
        let ended = Ranking::new(&order, &split, &[1, 2, 3], 2, |_, _| {
            Err(Error::Zero { what: "patience" })
        });
        assert_eq!(ended, Err(Error::Zero { what: "patience" }));
    }

    #[test]
    fn of_very_many_epochs_the_first_are_counted() {
        let order = order(1 << 12, 64);
        let split = Split::new(&order, 2).unwrap();
        let told = |epochs| {
            let mut most = 0;
            let at = |_, total| {
                most = total;
                Ok::<_, Error>(())
            };
            (Ranking::new(&order, &split, &[1, 2], epochs, at).unwrap(), most)
        };
        let (ranking, reads) = told(u32::MAX);
        assert_eq!(reads, 2 * MOST_COUNTED);
        assert_eq!(told((MOST_COUNTED >> 12) as u32), (ranking, reads));
        assert_eq!(told(3).1, 6 << 12);
    }

    #[test]
    fn a_sample_ends_where_those_more_frequent_and_those_before_it_end() {
        let mut counts = Counts::new(1, 4);
        for sample in [2, 0, 1, 0, 2, 0] {
            counts.add(0, sample);
        }
        let sizes = [10.0, 20.0, 40.0, 80.0];
        let mut placing = counts.placing(sizes.into_iter());
        let mut end = |sample: u32| placing.first(0, sample, sizes[sample as usize]);
        assert_eq!([end(2), end(0), end(1)], [Some(50.0), Some(10.0), Some(70.0)]);
        assert_eq!([end(0), end(3)], [None, None]);
    }
}
