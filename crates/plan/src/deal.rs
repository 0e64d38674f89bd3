//! Deals: which rank reads what of a global batch, where a sample goes to the node that keeps it.
//!
//! The usual way deals a global batch out like cards ([`Split`]), so of N nodes that share their caches each has (N-1)/N of its samples from another one. But which rank
//! reads a sample changes nothing of the step: the gradient is that of the global batch. So a [`Deal`] gives each sample of a global batch to a rank of its
//! *home* ([`crate::homes`]), as far as the shares of that node's ranks reach, and what is left over fills up the others'. Each rank has as many
//! samples as it has otherwise, the global batches and their order are the same, and a checkpoint holds nothing of it. What still crosses the network is
//! what chance puts more of on one node than its ranks may have: with n samples a node and step about 0.4 / sqrt(n) of them.
//!
//! Where the nodes are divided into cache groups ([`crate::placement::groups`]) each group has a home for every sample, and it goes to the one of these that has most of its share to come.
//!
//! That this never reads a sample twice, or not at all, must not hang on who is alive: ranks that deal differently would. So a deal is a value that all ranks have agreed on, which is part of what a job is,
//! and homes are told by it from the nodes' names alone. Where a home has moved since, or has no room, its samples come from elsewhere, and that is all.
//!
//! Dealing by place is the locality-aware loading of C.-C. Yang and G. Cong, "Accelerating Data Loading in Deep Neural Network Training" (HiPC 2019), without its exchange of samples between steps.

use crate::digest::{Digest, DigestBuilder};
use crate::error::Error;
use crate::homes::favourite;
use crate::order::EpochOrder;
use crate::placement::groups::together;
use crate::split::Split;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

/// Which node each rank is on, by what tells the node from others ([`crate::homes::Member::id`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deal {
    /// By rank.
    #[serde(with = "crate::spec::shared_list")]
    nodes: Arc<[u64]>,
    /// Nodes of a cache group, at most; 0: all are one.
    group: u32,
}

/// A global batch, dealt out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dealt(Vec<Vec<u64>>);

impl Dealt {
    /// The positions that a rank has of it, in order.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn of(&self, rank: u32) -> &[u64] {
        &self.0[rank as usize]
    }
}

impl Deal {
    /// Among ranks on these nodes, which share in groups of at most `group` nodes; 0: all with all.
    #[must_use]
    pub fn new(nodes: Vec<u64>, group: u32) -> Self {
        let nodes = nodes.into();
        Deal { nodes, group }
    }

    /// Whether it is one among the ranks of a split.
    ///
    /// # Errors
    /// It is among more or fewer.
    pub fn check(&self, split: &Split) -> Result<(), Error> {
        let (found, ranks) = (self.nodes.len() as u64, split.ranks());
        match found == u64::from(ranks) {
            true => Ok(()),
            false => Err(Error::OtherDeal { found, ranks }),
        }
    }

    /// Names it: ranks whose digests differ would read samples twice.
    #[must_use]
    pub fn digest(&self) -> Digest {
        DigestBuilder::new("deal/1")
            .numbers(&self.nodes)
            .number(self.group.into())
            .finish()
    }

    /// Deals a batch of an epoch out. O(samples of the batch x nodes).
    ///
    /// # Panics
    /// When there is no such batch, or this is a deal among other ranks ([`Deal::check`]).
    #[must_use]
    pub fn batch(&self, split: &Split, order: &EpochOrder, batch: u64) -> Dealt {
        let (ids, node_of) = self.numbered();
        let mut shares: Vec<u32> = (0..split.ranks()).map(|rank| split.share(batch, rank)).collect();
        let mut left = vec![0u32; ids.len()];
        for (&node, share) in node_of.iter().zip(&shares) {
            left[node] += share;
        }
        let mut hands: Vec<Vec<u64>> = left.iter().map(|&left| Vec::with_capacity(left as usize)).collect();
        let mut others = Vec::new();
        let groups = self.groups(ids.len());
        for position in split.batch_range(batch) {
            let sample = order.sample_at(position);
            let homes = groups
                .iter()
                .filter_map(|group| Some(group.start + favourite(sample, &ids[group.clone()])?));
            match homes
                .filter(|&home| left[home] > 0)
                .max_by_key(|&home| (left[home], Reverse(home)))
            {
                Some(home) => {
                    left[home] -= 1;
                    hands[home].push(position);
                }
                None => others.push(position),
            }
        }
        let mut others = others.into_iter();
        for (hand, left) in hands.iter_mut().zip(left) {
            hand.extend(others.by_ref().take(left as usize));
            hand.sort_unstable();
        }
        // Within a node like cards again, past ranks that have their share.
        let mut hands: Vec<_> = hands.into_iter().map(Vec::into_iter).collect();
        let mut ranks: Vec<Vec<u64>> = shares.iter().map(|&share| Vec::with_capacity(share as usize)).collect();
        while shares.iter().any(|&share| share > 0) {
            for (rank, share) in shares.iter_mut().enumerate().filter(|(_, share)| **share > 0) {
                *share -= 1;
                ranks[rank].extend(hands[node_of[rank]].next());
            }
        }
        // A rank for which nothing is left has a filler, as without a deal.
        for (rank, positions) in (0..).zip(&mut ranks) {
            if positions.is_empty() {
                positions.extend(split.batch_positions(batch, rank));
            }
        }
        Dealt(ranks)
    }

    /// The cache groups of so many nodes, by the places of their nodes.
    fn groups(&self, nodes: usize) -> Vec<Range<usize>> {
        let most = match self.group {
            0 => nodes,
            group => group as usize,
        };
        let of: Vec<usize> = together(nodes, most.max(1)).collect();
        let mut end = 0;
        let group = |group: &[usize]| {
            end += group.len();
            end - group.len()..end
        };
        of.chunk_by(|a, b| a == b).map(group).collect()
    }

    /// The nodes, each once, and which of them each rank is on.
    fn numbered(&self) -> (Vec<u64>, Vec<usize>) {
        let mut ids = self.nodes.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let of = |id: &u64| ids.partition_point(|other| other < id);
        let node_of = self.nodes.iter().map(of).collect();
        (ids, node_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::{Homes, Member};
    use crate::order::Order;
    use crate::spec::{OrderKind, OrderSpec, Tail};
    use proptest::prelude::*;

    fn order(samples: u64, global_batch: u32, tail: Tail) -> Order {
        let spec = OrderSpec {
            dataset: Digest::from_bytes([3; 16]),
            samples,
            kind: OrderKind::Keyed,
            seed: 11,
            global_batch,
            tail,
        };
        Order::new(&spec).expect("an order")
    }

    /// What all ranks have of a batch, fillers left out, and each rank's number of samples.
    fn dealt(deal: &Deal, split: &Split, order: &EpochOrder, batch: u64) -> (Vec<u64>, Vec<usize>) {
        let dealt = deal.batch(split, order, batch);
        let own = (0..split.ranks()).filter(|&rank| !split.is_filler(batch, rank));
        let mut all: Vec<u64> = own.flat_map(|rank| dealt.of(rank).to_vec()).collect();
        all.sort_unstable();
        (all, (0..split.ranks()).map(|rank| dealt.of(rank).len()).collect())
    }

    proptest! {
        #[test]
        fn a_global_batch_is_read_once_and_each_rank_has_as_many_of_it_as_without(
            samples in 1u64..600, size in 1u32..60, ids in prop::collection::vec(0u64..5, 1..9), group in 0u32..4, epoch in 0u32..3,
        ) {
            let ranks = ids.len() as u32;
            prop_assume!(ranks <= size);
            let order = order(samples, size, Tail::Uneven);
            let split = Split::weighted(&order, ranks).expect("few ranks");
            let (deal, known) = (Deal::new(ids, group), order.epoch(epoch).expect("computed"));
            deal.check(&split).expect("as many ranks");
            for batch in 0..split.batches() {
                let (all, counts) = dealt(&deal, &split, &known, batch);
                prop_assert_eq!(all, split.batch_range(batch).collect::<Vec<_>>());
                for (rank, count) in (0..).zip(counts) {
                    prop_assert_eq!(count, split.batch_len(batch, rank) as usize);
                    prop_assert!(deal.batch(&split, &known, batch).of(rank).is_sorted());
                }
            }
        }
    }

    #[test]
    fn most_samples_go_to_their_home_and_what_is_over_to_those_who_have_room() {
        let order = order(40_000, 128, Tail::Drop);
        let split = Split::new(&order, 8).expect("equal shares");
        let ids = [71u64, 5, 900, 33];
        let deal = Deal::new(ids.iter().flat_map(|&id| [id; 2]).collect(), 0);
        let known = order.epoch(1).expect("computed");
        // The homes as the scheduler finds them, where all have room.
        let members = ids.map(|id| Member { id, bytes: u64::MAX });
        let homes = Homes::new(std::iter::repeat_n(1, 40_000), &members);
        let is_local = |rank: usize, position: u64| homes.of(known.sample_at(position)) == Some(rank / 2);
        let (mut at_home, mut all) = (0, 0);
        for batch in 0..split.batches() {
            let dealt = deal.batch(&split, &known, batch);
            for rank in 0..8 {
                all += dealt.of(rank).len();
                let local = dealt
                    .of(rank)
                    .iter()
                    .filter(|&&position| is_local(rank as usize, position));
                at_home += local.count();
            }
        }
        let away = 1.0 - at_home as f64 / all as f64;
        // 32 samples a node: 0.4 / sqrt(32), a little less because homes are drawn among four.
        assert!((0.05..0.075).contains(&away), "{away}");
    }

    #[test]
    fn in_groups_a_sample_goes_to_one_of_its_homes() {
        let order = order(40_000, 128, Tail::Drop);
        let split = Split::new(&order, 4).expect("equal shares");
        let ids = [5, 33, 71, 900];
        let deal = Deal::new(ids.to_vec(), 2);
        let known = order.epoch(1).expect("computed");
        let (mut at_home, mut all) = (0, 0);
        for batch in 0..split.batches() {
            let dealt = deal.batch(&split, &known, batch);
            for rank in 0..4 {
                let group = rank / 2 * 2;
                let is_local =
                    |position: u64| favourite(known.sample_at(position), &ids[group..group + 2]) == Some(rank - group);
                all += dealt.of(rank as u32).len();
                at_home += dealt
                    .of(rank as u32)
                    .iter()
                    .filter(|&&position| is_local(position))
                    .count();
            }
        }
        // Each has two homes to go to, and far fewer find no room there than among four homes.
        let away = 1.0 - at_home as f64 / all as f64;
        assert!(away < 0.02, "{away}");
    }

    #[test]
    fn ranks_of_one_node_share_as_without_a_deal() {
        let order = order(1000, 24, Tail::Uneven);
        let split = Split::weighted(&order, 5).expect("few ranks");
        let known = order.epoch(0).expect("computed");
        let deal = Deal::new(vec![9; 5], 0);
        for batch in 0..split.batches() {
            let dealt = deal.batch(&split, &known, batch);
            for rank in 0..5 {
                let cards: Vec<u64> = split.batch_positions(batch, rank).collect();
                assert_eq!(dealt.of(rank), cards, "batch {batch}, rank {rank}");
            }
        }
    }

    #[test]
    fn a_deal_is_among_the_ranks_of_its_run_and_has_a_name_of_its_own() {
        let order = order(100, 12, Tail::Drop);
        let split = Split::new(&order, 3).expect("equal shares");
        let deal = Deal::new(vec![1, 2, 2], 0);
        assert_eq!(deal.check(&split), Ok(()));
        let other = Deal::new(vec![1, 2], 0);
        assert_eq!(other.check(&split), Err(Error::OtherDeal { found: 2, ranks: 3 }));
        assert_ne!(deal.digest(), Deal::new(vec![1, 2, 1], 0).digest());
        assert_ne!(deal.digest(), Deal::new(vec![1, 2, 2], 2).digest());
        let text = serde_json::to_string(&deal).expect("numbers");
        assert_eq!(text, r#"{"nodes":[1,2,2],"group":0}"#);
        assert_eq!(serde_json::from_str::<Deal>(&text).expect("a list"), deal);
    }
}
