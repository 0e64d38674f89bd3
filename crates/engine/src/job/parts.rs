//! Which parts of the large samples have come.
//!
//! A checksum covers a whole sample, so it can be compared only when all parts are there, whatever order they came in and however often one was fetched
//! again. A part counts from the end of its fetch until the next fetch of it begins; so whenever all parts count, nobody writes to the sample,
//! and the part that comes last is always followed by a comparison.

use foreload_plan::action::{Handle, Load, Piece};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// By place in the scheduler's table: the stay's generation, and the parts there (first byte, bytes).
#[derive(Default)]
pub(super) struct Parts(FxHashMap<u32, (u32, BTreeMap<u64, u64>)>);

impl Parts {
    /// A load begins: what it is going to write doesn't count any more.
    pub fn expect(&mut self, load: &Load) {
        for piece in load.pieces.iter().filter(|piece| piece.len < piece.sample_len) {
            if let Some((_, parts)) = self.0.get_mut(&piece.handle.index) {
                parts.remove(&piece.sample_offset);
            }
        }
    }

    /// A part has come; whether the sample is whole now.
    pub fn arrived(&mut self, piece: &Piece) -> bool {
        let (generation, parts) = self.0.entry(piece.handle.index).or_default();
        if *generation != piece.handle.generation {
            *generation = piece.handle.generation;
            parts.clear();
        }
        parts.insert(piece.sample_offset, piece.len);
        parts.values().sum::<u64>() >= piece.sample_len
    }

    /// The sample turned out wrong: all of it is to come again.
    pub fn forget(&mut self, handle: Handle) {
        self.0.remove(&handle.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreload_plan::action::Source;

    fn piece(generation: u32, sample_offset: u64) -> Piece {
        let handle = Handle { index: 3, generation };
        Piece {
            sample: 1,
            handle,
            at: 0,
            slot_offset: sample_offset,
            len: 10,
            sample_offset,
            sample_len: 30,
        }
    }

    #[test]
    fn a_sample_is_whole_when_all_its_parts_have_come_and_none_is_being_fetched() {
        let mut parts = Parts::default();
        assert!(!parts.arrived(&piece(0, 20)) && !parts.arrived(&piece(0, 0)) && parts.arrived(&piece(0, 10)));
        let again = Load {
            source: Source::Bucket,
            object: 0,
            offset: 0,
            len: 10,
            pieces: vec![piece(0, 0)],
            deadline_ns: 0,
            attempt: 1,
            hedge: false,
        };
        parts.expect(&again);
        assert!(!parts.arrived(&piece(0, 10)), "one is being fetched again");
        assert!(parts.arrived(&piece(0, 0)));
        assert!(!parts.arrived(&piece(1, 0)), "another stay begins anew");
        parts.arrived(&piece(1, 10));
        parts.forget(piece(1, 0).handle);
        assert!(!parts.arrived(&piece(1, 20)));
    }
}
