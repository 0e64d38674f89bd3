//! How many nodes should share a cache: the size of the groups to divide a cluster into.
//!
//! A group reads each block from the source once, and what its nodes can't hold together again in every later epoch. Small groups need few
//! connections and keep traffic near; but each group reads the data set for itself, so the source gives it as often as there are groups.
//! Proposed is the smallest group with which the source keeps up: in every epoch it delivers what all groups read in no more time
//! than the epoch takes where the whole cluster is one group. So the run is held up by what held it up before, never by
//! the groups. Where no smaller group will do, it is the whole cluster.

/// Which group each of `nodes` nodes in a row is in, where a group has `most` nodes at most: neighbours are together, and groups differ by one node at most.
///
/// # Panics
/// When `most` is 0.
pub fn together(nodes: usize, most: usize) -> impl Iterator<Item = usize> + Clone {
    let groups = nodes.div_ceil(most);
    (0..nodes).map(move |at| at * groups / nodes)
}

/// What decides. Sizes are in one unit of the caller's, and speeds in that unit per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Nodes.
    pub nodes: u32,
    /// What one node holds.
    pub node: f64,
    /// The data set.
    pub total: f64,
    /// What the source gives all nodes per second.
    pub source_per_s: f64,
    /// Seconds of the first epoch, with the whole cluster as one group.
    pub first_s: f64,
    /// Seconds of the shortest later one.
    pub later_s: f64,
    /// Epochs after the first.
    pub later_epochs: u32,
}

impl Cluster {
    /// Nodes in each group, at most; they are dealt out evenly.
    #[must_use]
    pub fn group_nodes(&self) -> u32 {
        let mut smaller = 1..self.nodes;
        smaller.find(|nodes| self.keeps_up(*nodes)).unwrap_or(self.nodes)
    }

    /// What the source gives all groups of up to so many nodes in the whole run.
    #[must_use]
    pub fn source(&self, nodes: u32) -> f64 {
        self.first(nodes) + f64::from(self.later_epochs) * self.later(nodes)
    }

    fn keeps_up(&self, nodes: u32) -> bool {
        self.first(nodes) <= self.source_per_s * self.first_s
            && (self.later_epochs == 0 || self.later(nodes) <= self.source_per_s * self.later_s)
    }

    /// What all groups read in the first epoch: each all of it.
    fn first(&self, nodes: u32) -> f64 {
        f64::from(self.nodes.div_ceil(nodes)) * self.total
    }

    /// What they read in each later epoch: each what it doesn't hold.
    fn later(&self, nodes: u32) -> f64 {
        let groups = self.nodes.div_ceil(nodes);
        let (least, larger) = (self.nodes / groups, self.nodes % groups);
        let lacks = |nodes: u32| (self.total - f64::from(nodes) * self.node).max(0.0);
        f64::from(larger) * lacks(least + 1) + f64::from(groups - larger) * lacks(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nodes_are_dealt_out_evenly_to_neighbours() {
        let sizes = |nodes, most| {
            let groups: Vec<usize> = together(nodes, most).collect();
            assert!(groups.is_sorted());
            let of = |group| groups.iter().filter(|&&other| other == group).count();
            (0..groups.last().map_or(0, |last| last + 1))
                .map(of)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(8, 4), [4, 4]);
        assert_eq!(sizes(9, 4), [3, 3, 3]);
        assert_eq!(sizes(10, 4), [4, 3, 3]);
        assert_eq!(sizes(3, 4), [3]);
        assert_eq!(sizes(3, 1), [1, 1, 1]);
        assert_eq!(sizes(0, 4), [0; 0]);
    }

    proptest! {
        #[test]
        fn a_node_more_changes_few_nodes_of_each_group(nodes in 1usize..200, most in 2usize..20, new in 0usize..200) {
            let groups = |nodes| together(nodes, most).collect::<Vec<_>>();
            let (before, mut after) = (groups(nodes), groups(nodes + 1));
            after.remove(new % (nodes + 1));
            prop_assume!(before.last() == after.last());
            let kept = before.iter().zip(&after).filter(|(before, after)| before == after).count();
            // Each border moves by one node at most.
            prop_assert!(nodes - kept <= nodes.div_ceil(most));
            prop_assert!((0..nodes.div_ceil(most)).all(|group| before.iter().filter(|&&other| other == group).count() <= most));
        }

        #[test]
        fn no_smaller_group_keeps_up_and_the_proposed_one_does_or_is_all(
            nodes in 1u32..40, node in 0f64..500.0, total in 1f64..2000.0, source_per_s in 1f64..500.0, first_s in 0.1f64..60.0,
            later_s in 0.1f64..60.0, later_epochs in 0u32..5,
        ) {
            let cluster = Cluster { nodes, node, total, source_per_s, first_s, later_s, later_epochs };
            let size = cluster.group_nodes();
            prop_assert!(size == nodes || cluster.keeps_up(size));
            prop_assert!((1..size).all(|smaller| !cluster.keeps_up(smaller)));
            // One group reads what one node less would have to be read again, and never less than the data set once.
            prop_assert!(cluster.source(size) >= total && cluster.source(size) >= cluster.source(nodes));
        }
    }
}
