//! Homes: which node of a group keeps each block, so that the others can ask it.
//!
//! *One home for each block, and the same one for whoever asks.* It follows from the blocks and from the nodes alone, so that nobody has to be asked where
//! something is: not from the order of a job, for two jobs over one data set would keep it twice, and not from who has read it, for a node that comes back
//! or goes on elsewhere would find its blocks in the wrong place. A block goes to the node whose hash with it is highest (rendezvous hashing; Thaler and
//! Ravishankar, IEEE/ACM ToN 1998) of those that still have room. So what small nodes can't hold goes to the others, a node that leaves takes only
//! its own blocks with it, and a new one takes its share from each.
//!
//! *One copy before any replica* (paper 001 sec. 3.2 and 5.1): where all nodes together can't hold the data set, what is left over has no home and comes
//! from the bucket each time. Nothing else would be read less often: a node reads another part of the data set in every epoch.
//!
//! Paper 001 makes the node that reads a sample first its home, which saves sending it once, in the first epoch. What that costs is said in
//! `docs/design/0022-peers.md`.

use crate::order::mix::{absorb, key, spread};
use serde::{Deserialize, Serialize};

/// A node of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What tells it from others, on all nodes, now and after a restart.
    pub id: u64,
    /// Bytes that it can keep, in memory and on disks.
    pub bytes: u64,
}

/// No node keeps it.
const NOWHERE: u16 = u16::MAX;
/// Members that a group may have.
pub const MOST_MEMBERS: usize = NOWHERE as usize;

/// The higher it is, the rather a block goes to a node.
fn weight(block: u64, id: u64) -> (u64, u64) {
    (key(&[block, id]), id)
}

/// Which of the nodes with these ids is a block's home where all of them have room. O(nodes).
#[must_use]
pub fn favourite(block: u64, ids: &[u64]) -> Option<usize> {
    (0..ids.len()).max_by_key(|&at| weight(block, ids[at]))
}

/// The home of each block of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Homes(Vec<u16>);

impl Homes {
    /// Homes of blocks with `lengths`, of which each node may keep so many bytes. O(blocks x members), two bytes for each block.
    #[must_use]
    pub fn new(lengths: impl Iterator<Item = u64>, members: &[Member]) -> Self {
        let mut room: Vec<u64> = members.iter().map(|member| member.bytes).collect();
        // Half of the work is the same for all blocks.
        let ids: Vec<u64> = members.iter().map(|member| spread(member.id)).collect();
        let home = |(block, len): (usize, u64)| {
            let block = key(&[block as u64]);
            let weight = |at: usize| (absorb(block, ids[at]), members[at].id);
            let with_room = (0..members.len()).filter(|&at| room[at] >= len);
            let home = with_room.max_by_key(|&at| weight(at))?;
            room[home] -= len;
            u16::try_from(home).ok()
        };
        Homes(
            lengths
                .enumerate()
                .map(home)
                .map(|home| home.unwrap_or(NOWHERE))
                .collect(),
        )
    }

    /// The home of a block, as the place of its member in the list; `None`: it has none.
    #[must_use]
    pub fn of(&self, block: u64) -> Option<usize> {
        let home = *self.0.get(usize::try_from(block).ok()?)?;
        (home != NOWHERE).then_some(usize::from(home))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(bytes: &[u64]) -> Vec<Member> {
        let member = |(at, &bytes): (usize, &u64)| Member {
            id: 1000 + 7 * at as u64,
            bytes,
        };
        bytes.iter().enumerate().map(member).collect()
    }

    /// Blocks of each member, and those without a home.
    fn counts(homes: &Homes, blocks: u64, members: usize) -> (Vec<u64>, u64) {
        let mut counts = vec![0; members];
        let mut nowhere = 0;
        for block in 0..blocks {
            match homes.of(block) {
                Some(home) => counts[home] += 1,
                None => nowhere += 1,
            }
        }
        (counts, nowhere)
    }

    #[test]
    fn each_node_has_its_share() {
        let nodes = members(&[u64::MAX; 4]);
        let homes = Homes::new([100; 10_000].into_iter(), &nodes);
        let (counts, nowhere) = counts(&homes, 10_000, 4);
        assert_eq!(nowhere, 0);
        assert!(counts.iter().all(|&n| (2300..2700).contains(&n)), "{counts:?}");
    }

    #[test]
    fn a_home_that_has_room_is_the_favourite() {
        let nodes = members(&[u64::MAX; 7]);
        let ids: Vec<u64> = nodes.iter().map(|node| node.id).collect();
        let homes = Homes::new([1; 2000].into_iter(), &nodes);
        assert!((0..2000).all(|block| homes.of(block) == favourite(block, &ids)));
    }

    #[test]
    fn what_a_small_node_cannot_hold_goes_to_the_others_and_the_rest_nowhere() {
        let homes = Homes::new([100; 1000].into_iter(), &members(&[5_000, 40_000, 60_000]));
        assert_eq!(counts(&homes, 1000, 3), (vec![50, 400, 550], 0));
        let homes = Homes::new([100; 1000].into_iter(), &members(&[5_000, 20_000, 25_000]));
        assert_eq!(counts(&homes, 1000, 3), (vec![50, 200, 250], 500));
    }

    #[test]
    fn a_block_that_is_not_there_has_no_home_and_neither_has_any_without_members() {
        let homes = Homes::new([1, 2].into_iter(), &members(&[10]));
        assert_eq!(
            [0, 1, 2, u64::MAX].map(|block| homes.of(block)),
            [Some(0), Some(0), None, None]
        );
        assert_eq!(Homes::new([1, 2].into_iter(), &[]).of(0), None);
    }

    /// By the id of its home: places in the list change when members do.
    fn ids(homes: &Homes, members: &[Member], blocks: u64) -> Vec<Option<u64>> {
        (0..blocks)
            .map(|block| homes.of(block).map(|at| members[at].id))
            .collect()
    }

    #[test]
    fn who_leaves_takes_only_its_own_blocks_and_who_comes_takes_its_share_from_each() {
        let four = members(&[u64::MAX; 4]);
        let before = ids(&Homes::new([1; 8000].into_iter(), &four), &four, 8000);
        let three = &four[..3];
        let after = ids(&Homes::new([1; 8000].into_iter(), three), three, 8000);
        let gone = Some(four[3].id);
        for (before, after) in before.iter().zip(&after) {
            assert!(before == after || *before == gone);
        }
        let five = members(&[u64::MAX; 5]);
        let after = ids(&Homes::new([1; 8000].into_iter(), &five), &five, 8000);
        let moved: Vec<_> = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| before != after)
            .collect();
        assert!(moved.iter().all(|(_, after)| **after == Some(five[4].id)));
        assert!((1400..1800).contains(&moved.len()), "a fifth: {}", moved.len());
    }

    proptest! {
        #[test]
        fn no_node_is_home_of_more_than_it_holds_and_the_order_of_the_list_says_nothing(
            lengths in prop::collection::vec(0u64..500, 0..200), bytes in prop::collection::vec(0u64..20_000, 1..6), turn in 0usize..6,
        ) {
            let nodes = members(&bytes);
            let homes = Homes::new(lengths.iter().copied(), &nodes);
            let mut held = vec![0; nodes.len()];
            let mut homeless = Vec::new();
            for (block, &len) in lengths.iter().enumerate() {
                match homes.of(block as u64) {
                    Some(home) => held[home] += len,
                    None => homeless.push((block, len)),
                }
            }
            for (held, node) in held.iter().zip(&nodes) {
                prop_assert!(*held <= node.bytes);
            }
            // When a block found no room, no node had any; and room never grows.
            for (_, len) in homeless {
                prop_assert!(held.iter().zip(&nodes).all(|(held, node)| node.bytes - held < len));
            }
            let mut turned = nodes.clone();
            turned.rotate_left(turn % nodes.len());
            let again = Homes::new(lengths.iter().copied(), &turned);
            prop_assert_eq!(ids(&homes, &nodes, lengths.len() as u64), ids(&again, &turned, lengths.len() as u64));
        }
    }
}
