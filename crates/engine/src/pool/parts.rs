//! Which parts have come of samples that are large, or several ranges.
//!
//! A checksum covers a whole sample, so it can be compared only when all parts are there, whatever order they came in and however often one was fetched
//! again; it is put together from those of the parts. A part counts from the end of its fetch until the next fetch of it begins; so whenever all parts
//! count, nobody writes to the sample, and the part that comes last is always followed by a comparison.

use crate::scatter::{crc32c, crc32c_joined};
use foreload_plan::action::{Handle, Load, Piece};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A part that is there.
struct Part {
    len: u64,
    crc: u32,
}

/// By place in the scheduler's table: the stay's generation, and the parts there by first byte.
#[derive(Default)]
pub(super) struct Parts(FxHashMap<u32, (u32, BTreeMap<u64, Part>)>);

impl Parts {
    /// A load begins: what it is going to write doesn't count any more.
    pub fn expect(&mut self, load: &Load) {
        for piece in load.pieces.iter().filter(|piece| piece.len < piece.content_len) {
            if let Some((_, parts)) = self.0.get_mut(&piece.handle.index) {
                parts.remove(&piece.content_offset);
            }
        }
    }

    /// A part has come, with this CRC-32C; that of the sample when it is whole now.
    pub fn arrived(&mut self, piece: &Piece, crc: u32) -> Option<u32> {
        let (generation, parts) = self.0.entry(piece.handle.index).or_default();
        if *generation != piece.handle.generation {
            *generation = piece.handle.generation;
            parts.clear();
        }
        parts.insert(piece.content_offset, Part { len: piece.len, crc });
        let whole = parts.values().map(|part| part.len).sum::<u64>() >= piece.content_len;
        whole.then(|| {
            parts
                .values()
                .fold(crc32c(&[]), |crc, part| crc32c_joined(crc, part.crc, part.len))
        })
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
    use foreload_plan::blocks::Content;

    fn piece(generation: u32, content_offset: u64) -> Piece {
        let handle = Handle { index: 3, generation };
        Piece {
            content: Content::block(1),
            handle,
            at: 0,
            slot_offset: content_offset,
            len: 10,
            content_offset,
            content_len: 30,
        }
    }

    #[test]
    fn a_sample_is_whole_when_all_its_parts_have_come_and_none_is_being_fetched() {
        let mut parts = Parts::default();
        assert_eq!(parts.arrived(&piece(0, 20), 1), None);
        assert_eq!(parts.arrived(&piece(0, 0), 1), None);
        assert!(parts.arrived(&piece(0, 10), 1).is_some());
        let again = Load {
            job: 0,
            source: Source::Bucket,
            object: 0,
            offset: 0,
            len: 10,
            pieces: vec![piece(0, 0)],
            steps: 0,
            deadline_ns: 0,
            attempt: 1,
            hedge: false,
            bundle: None,
        };
        parts.expect(&again);
        assert_eq!(parts.arrived(&piece(0, 10), 1), None, "one is being fetched again");
        assert!(parts.arrived(&piece(0, 0), 1).is_some());
        assert_eq!(parts.arrived(&piece(1, 0), 1), None, "another stay begins anew");
        parts.arrived(&piece(1, 10), 1);
        parts.forget(piece(1, 0).handle);
        assert_eq!(parts.arrived(&piece(1, 20), 1), None);
    }

    #[test]
    fn the_checksum_of_the_parts_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..30).collect();
        let mut parts = Parts::default();
        let whole = [20, 0, 10].map(|at: usize| parts.arrived(&piece(0, at as u64), crc32c(&bytes[at..at + 10])));
        assert_eq!(whole, [None, None, Some(crc32c(&bytes))]);
    }
}
