//! Homes: which node of a group keeps each block, so that the others can ask it.
//!
//! *One home for each block, and the same one for whoever asks.* It follows from the blocks and from the nodes alone, so that nobody has to be asked where
//! something is: not from the order of a job, for two jobs over one data set would keep it twice, and not from who has read it, for a node that comes back
//! or goes on elsewhere would find its blocks in the wrong place. A block goes to the node whose hash with it is highest (rendezvous hashing; Thaler and
//! Ravishankar, IEEE/ACM ToN 1998) of those that still have room. So what small nodes can't hold goes to the others, a node that leaves takes only
//! its own blocks with it, and a new one takes its share from each. Of a million blocks each goes where its hash says; of more, those with the same number modulo
//! 2^20 go together, so that a hash with each node is made for a million *parts* at most: for ten million blocks and a thousand nodes a tenth of the work. Of a thousand nodes none has a tenth more than its share.
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

/// Blocks go to the homes of so many parts.
const PARTS: u64 = 1 << 20;

fn part(block: u64) -> u64 {
    block % PARTS
}

/// Which of the nodes with these ids is a block's home where all of them have room. O(nodes).
#[must_use]
pub fn favourite(block: u64, ids: &[u64]) -> Option<usize> {
    (0..ids.len()).max_by_key(|&at| (key(&[part(block), ids[at]]), ids[at]))
}

/// The home of each block of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Homes(Vec<u16>);

impl Homes {
    /// Homes of blocks with `lengths`, of which each node may keep so many bytes. O(blocks + parts x members), and two bytes for each block.
    #[must_use]
    pub fn new(lengths: impl Iterator<Item = u64> + Clone, members: &[Member]) -> Self {
        let mut making = Making::new(members, lengths.clone().min().unwrap_or(0));
        let homes = lengths.zip(0..).map(|(len, block)| {
            let home = making.find(block, len);
            home.and_then(|home| u16::try_from(home).ok())
        });
        Homes(homes.map(|home| home.unwrap_or(NOWHERE)).collect())
    }

    /// None of so many blocks has a home.
    #[must_use]
    pub fn nowhere(blocks: u64) -> Self {
        Homes(vec![NOWHERE; usize::try_from(blocks).unwrap_or(0)])
    }

    /// A member keeps a block, maybe as others do: its home is the one whose hash with it is highest.
    ///
    /// # Panics
    /// When there is no such block or member.
    pub fn add(&mut self, block: u64, member: usize, members: &[Member]) {
        let weight = |at: usize| (key(&[part(block), members[at].id]), members[at].id);
        if self.of(block).is_none_or(|known| weight(member) > weight(known)) {
            self.0[block as usize] = u16::try_from(member).unwrap_or(NOWHERE);
        }
    }

    /// The home of a block, as the place of its member in the list; `None`: it has none.
    #[must_use]
    pub fn of(&self, block: u64) -> Option<usize> {
        let home = *self.0.get(usize::try_from(block).ok()?)?;
        (home != NOWHERE).then_some(usize::from(home))
    }
}

/// Homes while they are made.
struct Making {
    /// What each member can still keep.
    room: Vec<u64>,
    /// Members that have room for the shortest block: their places, their ids, and the half of a hash with them that is the same for all blocks.
    open: Vec<(usize, u64, u64)>,
    /// The favourite of each part, of those that were open when it was looked for.
    found: Vec<Option<u16>>,
    shortest: u64,
}

impl Making {
    fn new(members: &[Member], shortest: u64) -> Self {
        let open = |(at, member): (usize, &Member)| (at, member.id, spread(member.id));
        let mut making = Making {
            room: members.iter().map(|member| member.bytes).collect(),
            open: members.iter().enumerate().map(open).collect(),
            found: Vec::new(),
            shortest,
        };
        making.close();
        making
    }

    /// Who is full isn't looked at any more.
    fn close(&mut self) {
        self.open.retain(|(at, ..)| self.room[*at] >= self.shortest);
    }

    /// The favourite of a part, of those that are open and `may` be.
    fn favourite(&self, part: u64, may: impl Fn(usize) -> bool) -> Option<usize> {
        let part = key(&[part]);
        let mut best = None;
        for &(at, id, spread) in &self.open {
            let weight = (absorb(part, spread), id);
            if best.is_none_or(|(most, _)| weight > most) && may(at) {
                best = Some((weight, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// The home of the next block.
    fn find(&mut self, block: u64, len: u64) -> Option<usize> {
        let part = part(block);
        let at = part as usize;
        if self.found.len() <= at {
            self.found.resize(at + 1, None);
        }
        let known = self.found[at].map(usize::from);
        let favourite = match known.filter(|&home| self.room[home] >= self.shortest) {
            Some(favourite) => favourite,
            None => self.favourite(part, |_| true)?,
        };
        self.found[at] = u16::try_from(favourite).ok();
        let home = match self.room[favourite] >= len {
            true => favourite,
            false => self.favourite(part, |at| self.room[at] >= len)?,
        };
        self.room[home] -= len;
        if self.room[home] < self.shortest {
            self.close();
        }
        Some(home)
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

    /// As one looks at each node for each block.
    fn plainly(lengths: &[u64], members: &[Member]) -> Homes {
        let mut room: Vec<u64> = members.iter().map(|member| member.bytes).collect();
        let home = |(block, &len): (u64, &u64)| {
            let weight = |at: &usize| (key(&[block % PARTS, members[*at].id]), members[*at].id);
            let home = (0..members.len()).filter(|&at| room[at] >= len).max_by_key(weight)?;
            room[home] -= len;
            Some(home as u16)
        };
        let homes = (0..).zip(lengths).map(home);
        Homes(homes.map(|home| home.unwrap_or(NOWHERE)).collect())
    }

    #[test]
    fn of_more_blocks_than_parts_each_node_has_its_share_still_and_who_is_full_gets_no_more() {
        let blocks = 3 * PARTS as usize / 2;
        let nodes = members(&[u64::MAX, u64::MAX, 300_000, u64::MAX]);
        let homes = Homes::new(std::iter::repeat_n(1, blocks), &nodes);
        assert_eq!(homes, plainly(&vec![1; blocks], &nodes));
        let ids: Vec<u64> = nodes.iter().map(|node| node.id).collect();
        let is_favourite = |block: u64| homes.of(block) == favourite(block, &ids);
        assert!((0..1000).chain(PARTS..PARTS + 1000).all(is_favourite));
        let (counts, nowhere) = counts(&homes, blocks as u64, 4);
        assert_eq!((counts[2], nowhere), (300_000, 0));
        let share = (blocks as u64 - 300_000) / 3;
        let is_share = |count: &&u64| count.abs_diff(share) < share / 50;
        assert_eq!(counts.iter().filter(is_share).count(), 3, "{counts:?}");
    }

    /// `cargo test --release -p foreload-plan --lib time_of_homes -- --ignored --nocapture`
    #[test]
    #[ignore = "takes seconds, and says what they were"]
    #[expect(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "it says how long something takes"
    )]
    fn time_of_homes() {
        for (blocks, nodes, bytes) in [
            (10_000_000, 1000, 20_000),
            (10_000_000, 1000, 5_000),
            (10_000_000, 16, 1_000_000),
        ] {
            let nodes = members(&vec![bytes; nodes]);
            let begun = std::time::Instant::now();
            let homes = Homes::new(std::iter::repeat_n(1, blocks), &nodes);
            let took = begun.elapsed();
            let (counts, nowhere) = counts(&homes, blocks as u64, nodes.len());
            println!(
                "{blocks} blocks, {} nodes of {bytes}: {took:?}; {:?} at most, {nowhere} nowhere",
                nodes.len(),
                counts.iter().max()
            );
        }
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
            prop_assert_eq!(&homes, &plainly(&lengths, &nodes));
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
