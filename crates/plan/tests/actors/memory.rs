//! The arena's bytes: which stretch of which object lies where.

use foreload_plan::arena::Slot;
use foreload_plan::catalog::Place;
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

    /// Whether a slot holds these bytes of a data set, all of them.
    pub fn holds(&self, slot: Slot, set: u64, place: Place) -> bool {
        let (mut at, end) = (slot.offset, slot.offset + slot.len);
        while at < end {
            let Some((&first, &(last, Some((object, from))))) = self.stretches.range(..=at).next_back() else {
                return false;
            };
            if last <= at || object != (set, place.object) || from + (at - first) != place.offset + (at - slot.offset) {
                return false;
            }
            at = last;
        }
        slot.len == place.len
    }

    #[allow(dead_code)]
    pub fn lease(&mut self, slot: Slot) {
        let range = grains(slot.offset, slot.len);
        if self.leases.len() < range.end {
            self.leases.resize(range.end, 0);
        }
        self.leases[range].iter_mut().for_each(|leases| *leases += 1);
    }

    #[allow(dead_code)]
    pub fn unlease(&mut self, slot: Slot) {
        self.leases[grains(slot.offset, slot.len)]
            .iter_mut()
            .for_each(|leases| *leases -= 1);
    }
}
