//! Paper 001's own placement: each node keeps what it reads most often, and the others may ask it for that.
//!
//! The [`Ranking`](crate::placement::frequency::Ranking) of a run says what each node reads, the most frequent first. Of that a node keeps as much as it has room for, the first of it in
//! memory and the rest on its disks, whatever others keep. So a block may be on several nodes, of which one is its home, by the hash of all homes ([`crate::homes`]): all others ask that one, and those that
//! keep the block, too, ask it once. Or it is on none, and comes from the bucket each time. A block of several samples goes where its most frequent one does, and only its home keeps it.

use super::Scheduler;
use super::tiers::{Bits, Tier};
use super::window::Reader;
use crate::arena::reserved_bytes;
use crate::homes::{Homes, Member};
use crate::library::Shelf;
use crate::policy::Policy;
use std::collections::BTreeMap;

/// Who keeps what.
#[derive(Default)]
pub(super) struct Frequent {
    /// Of each data set whose reads were counted, by its first block.
    pub homes: BTreeMap<u64, Homes>,
    /// What this node keeps, whether it is its home or not.
    pub kept: Bits,
    /// Of that, what is for its disks.
    pub slow: Bits,
    /// Bytes of each of these data sets that are for its memory, by its first block.
    pub memory: BTreeMap<u64, u64>,
}

impl Scheduler {
    /// Who keeps what in a group of these members, of which this node is one.
    pub(super) fn frequent(&self, members: &[Member], me: u64) -> Frequent {
        let mut found = Frequent::default();
        if self.settings.policy != Policy::Frequency {
            return found;
        }
        let all: u64 = self.library.shelves().iter().map(|shelf| shelf.bytes.max(1)).sum();
        for reader in self.windows.readers() {
            let shelves = reader.sets.iter().map(|&(_, first)| self.library.shelf(first));
            // What another job has said of a data set counts.
            let shelves: Vec<&Shelf> = shelves
                .filter(|it| !found.homes.contains_key(&it.first_block))
                .collect();
            if reader.ranking.is_none() || shelves.is_empty() {
                continue;
            }
            let bytes: u64 = shelves.iter().map(|shelf| shelf.bytes.max(1)).sum();
            let part = |room: u64| (u128::from(room) * u128::from(bytes) / u128::from(all.max(1))) as u64;
            let nowhere = |shelf: &&Shelf| (shelf.first_block, Homes::nowhere(shelf.blocks.count()));
            found.homes.extend(shelves.iter().map(nowhere));
            found.memory.extend(shelves.iter().map(|shelf| (shelf.first_block, 0)));
            let mut memory = part(self.ram_bytes.saturating_sub(self.staging_bytes));
            for (at, member) in members.iter().enumerate() {
                for (block, shelf) in self.most_frequent(reader, &shelves, member.id, part(member.bytes)) {
                    if let Some(homes) = found.homes.get_mut(&shelf.first_block) {
                        homes.add(block - shelf.first_block, at, members);
                    }
                    if member.id != me {
                        continue;
                    }
                    found.kept.set(block, true);
                    let len = reserved_bytes(shelf.len_of(block));
                    match memory.checked_sub(len) {
                        Some(left) => {
                            memory = left;
                            *found.memory.entry(shelf.first_block).or_default() += len;
                        }
                        None => found.slow.set(block, true),
                    }
                }
            }
        }
        found
    }

    /// The blocks of these data sets that a node keeps in so many bytes, the most frequent first.
    fn most_frequent<'a>(
        &'a self,
        reader: &Reader,
        shelves: &[&'a Shelf],
        node: u64,
        mut bytes: u64,
    ) -> Vec<(u64, &'a Shelf)> {
        let (mut seen, mut kept) = (Bits::default(), Vec::new());
        for &sample in reader.ranking.iter().flat_map(|ranking| ranking.of(node)) {
            let block = self.library.of(reader.on_node(sample.into()));
            let Some(shelf) = shelves.iter().find(|shelf| shelf.blocks_on_node().contains(&block)) else {
                continue;
            };
            if seen.has(block) {
                continue;
            }
            let Some(left) = bytes.checked_sub(reserved_bytes(shelf.len_of(block))) else {
                break;
            };
            (bytes, _) = (left, seen.set(block, true));
            kept.push((block, *shelf));
        }
        kept
    }

    /// This node as a member of a group in which nobody else is; `None`: it isn't known by what the reads were counted.
    pub(super) fn by_itself(&self) -> Option<Member> {
        let counted = |reader: &Reader| reader.ranking.as_ref()?.node_of(*reader.ranks.first()?);
        let id = self.windows.readers().iter().find_map(counted)?;
        let memory = self.ram_bytes.saturating_sub(self.staging_bytes);
        let bytes = self
            .tiers
            .iter()
            .map(Tier::capacity_bytes)
            .fold(memory, u64::saturating_add);
        Some(Member { id, bytes })
    }
}

#[cfg(test)]
mod tests;
