//! The arena's bytes: which stretch of which object lies where.

use foreload_plan::action::{Load, Source};
use foreload_plan::arena::Slot;
use foreload_plan::blocks::Content;
use foreload_plan::catalog::Place;
use foreload_plan::library::Library;
use std::collections::BTreeMap;

/// Bytes of a grain: what slots are rounded to.
const GRAIN: u64 = 64;

/// A stretch of the arena: where it ends, and the object (of which data set) and offset of its first byte; `None`: a load that is under way, or failed, left anything there.
type Stretch = (u64, Option<((u64, u64), u64)>);

/// The arena as a carrier sees it.
#[derive(Default)]
pub struct Memory {
    /// By first byte.
    stretches: BTreeMap<u64, Stretch>,
    leases: Vec<u32>,
}

fn grains(offset: u64, len: u64) -> std::ops::Range<usize> {
    (offset / GRAIN) as usize..(offset + len).div_ceil(GRAIN) as usize
}

impl Memory {
    fn set(&mut self, offset: u64, len: u64, what: Option<((u64, u64), u64)>) {
        let end = offset + len;
        let over = self.stretches.range(..end).rev();
        let over: Vec<(u64, Stretch)> = over
            .take_while(|&(_, &(last, _))| last > offset)
            .map(|(&first, &stretch)| (first, stretch))
            .collect();
        for (first, (last, old)) in over {
            self.stretches.remove(&first);
            if first < offset {
                self.stretches.insert(first, (offset, old));
            }
            if last > end {
                let rest = old.map(|(object, from)| (object, from + (end - first)));
                self.stretches.insert(end, (last, rest));
            }
        }
        if len > 0 {
            self.stretches.insert(offset, (end, what));
        }
        let held = self.leases.get(grains(offset, len).start..).unwrap_or_default();
        let held = held.iter().take(grains(offset, len).len());
        assert_eq!(held.sum::<u32>(), 0, "a load writes over what a client holds");
    }

    /// A load begins to write here: from now on nothing there can be relied on.
    pub fn scribble(&mut self, offset: u64, len: u64) {
        self.set(offset, len, None);
    }

    /// A load has written `len` bytes of an object, from its byte `from` on.
    pub fn write(&mut self, offset: u64, len: u64, object: (u64, u64), from: u64) {
        self.set(offset, len, Some((object, from)));
    }

    /// A load has brought its pieces: from the bucket what lies there, from a disk what the blocks' records have there.
    pub fn bring(&mut self, load: &Load, library: &Library) {
        for piece in &load.pieces {
            // Of a data set that nobody reads any more comes what lost its race.
            let Some(shelf) = library.shelf_with(piece.content) else {
                continue;
            };
            let (set, from) = (shelf.name, load.offset + piece.at);
            if load.source == Source::Bucket {
                self.write(piece.slot_offset, piece.len, (set, load.object), from);
                continue;
            }
            let block = Content::block(library.block_of(piece.content));
            let (mut done, first) = (0, from - library.place_of(block).offset);
            while done < piece.len {
                let place = library.locate(block, first + done).expect("inside the block");
                let len = place.len.min(piece.len - done);
                self.write(piece.slot_offset + done, len, (set, place.object), place.offset);
                done += len;
            }
        }
    }

    /// Whether a slot holds the bytes of these places, one after the other, all of them and no more.
    pub fn holds(&self, slot: Slot, set: u64, places: &[Place]) -> bool {
        let mut at = slot.offset;
        let all = places.iter().all(|place| {
            at += place.len;
            self.has(at - place.len, set, place)
        });
        all && at == slot.offset + slot.len
    }

    fn has(&self, offset: u64, set: u64, place: &Place) -> bool {
        let (mut at, end) = (offset, offset + place.len);
        while at < end {
            let Some((&first, &(last, Some((object, from))))) = self.stretches.range(..=at).next_back() else {
                return false;
            };
            if last <= at || object != (set, place.object) || from + (at - first) != place.offset + (at - offset) {
                return false;
            }
            at = last;
        }
        true
    }

    pub fn lease(&mut self, slot: Slot) {
        let range = grains(slot.offset, slot.len);
        if self.leases.len() < range.end {
            self.leases.resize(range.end, 0);
        }
        self.leases[range].iter_mut().for_each(|leases| *leases += 1);
    }

    pub fn unlease(&mut self, slot: Slot) {
        self.leases[grains(slot.offset, slot.len)]
            .iter_mut()
            .for_each(|leases| *leases -= 1);
    }
}
