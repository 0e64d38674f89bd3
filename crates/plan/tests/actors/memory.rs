//! The arena's bytes, in grains.

use foreload_plan::arena::Slot;

/// Bytes of a grain: what slots are rounded to.
pub const GRAIN: u64 = 64;

/// What a grain holds: sample and place in it, or what a load that is under way has left there.
pub type Bytes = (u64, u64);

const TORN: Bytes = (u64::MAX, u64::MAX);

/// The arena as a carrier sees it.
#[derive(Default)]
pub struct Memory {
    grains: Vec<Bytes>,
    leases: Vec<u32>,
}

fn grains(offset: u64, len: u64) -> std::ops::Range<usize> {
    (offset / GRAIN) as usize..(offset + len).div_ceil(GRAIN) as usize
}

impl Memory {
    fn grow(&mut self, end: usize) {
        if self.grains.len() < end {
            self.grains.resize(end, TORN);
            self.leases.resize(end, 0);
        }
    }

    /// A load begins to write here: from now on nothing there can be relied on.
    pub fn scribble(&mut self, offset: u64, len: u64) {
        let range = grains(offset, len);
        self.grow(range.end);
        for at in range {
            assert_eq!(self.leases[at], 0, "a load writes over what a client holds");
            self.grains[at] = TORN;
        }
    }

    /// A load has written `len` bytes of a sample, from its byte `from` on.
    pub fn write(&mut self, offset: u64, len: u64, sample: u64, from: u64) {
        let range = grains(offset, len);
        self.grow(range.end);
        for (place, at) in range.enumerate() {
            assert_eq!(self.leases[at], 0, "a load writes over what a client holds");
            self.grains[at] = (sample, from / GRAIN + place as u64);
        }
    }

    /// Whether a slot holds a sample, whole.
    pub fn holds(&self, slot: Slot, sample: u64) -> bool {
        grains(slot.offset, slot.len)
            .enumerate()
            .all(|(place, at)| self.grains.get(at) == Some(&(sample, place as u64)))
    }

    pub fn lease(&mut self, slot: Slot) {
        for at in grains(slot.offset, slot.len) {
            self.leases[at] += 1;
        }
    }

    pub fn unlease(&mut self, slot: Slot) {
        for at in grains(slot.offset, slot.len) {
            self.leases[at] -= 1;
        }
    }
}
