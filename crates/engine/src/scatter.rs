//! Where a fetch's bytes go: straight from the connection's buffer into the slots of its samples, checksummed on the way.

use crate::slots::Shared;
use crc_fast::{CrcAlgorithm, Digest};
use foreload_plan::action::{Load, Piece};
use foreload_store::{Error, ErrorKind, Sink};
use std::sync::Arc;

/// CRC-32C as disk records, indexes and stores have it.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC-32C of bytes with this one, followed by `len` bytes with that one.
#[must_use]
pub fn crc32c_joined(crc: u32, next: u32, len: u64) -> u32 {
    crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, crc.into(), next.into(), len) as u32
}

/// Scatters one range into slots. Gaps between pieces are dropped.
pub struct Scatter {
    arena: Arc<Shared>,
    pieces: Vec<Piece>,
    current: usize,
    crc: Digest,
    crcs: Vec<u32>,
}

impl Scatter {
    /// For the pieces of a load.
    #[must_use]
    pub fn new(arena: Arc<Shared>, load: &Load) -> Self {
        Scatter {
            arena,
            pieces: load.pieces.clone(),
            current: 0,
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
            crcs: Vec::with_capacity(load.pieces.len()),
        }
    }

    /// The checksum of each piece, once all bytes have come.
    #[must_use]
    pub fn checksums(&self) -> Option<&[u32]> {
        (self.crcs.len() == self.pieces.len()).then_some(&self.crcs)
    }
}

impl Sink for Scatter {
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<(), Error> {
        let end = at + frame.len() as u64;
        while let Some(piece) = self.pieces.get(self.current).filter(|piece| piece.at < end) {
            let (from, to) = (piece.at.max(at), (piece.at + piece.len).min(end));
            let part = &frame[(from - at) as usize..(to - at) as usize];
            self.arena
                .write(piece.slot_offset + (from - piece.at), part)
                .map_err(|error| {
                    Error::new(
                        ErrorKind::Bug,
                        format!("writing {} bytes into the cache arena: {error}", part.len()),
                    )
                })?;
            self.crc.update(part);
            if to < piece.at + piece.len {
                break;
            }
            self.crcs.push(self.crc.finalize() as u32);
            self.crc.reset();
            self.current += 1;
        }
        Ok(())
    }

    fn restart(&mut self) {
        self.current = 0;
        self.crc.reset();
        self.crcs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreload_plan::action::{Handle, Source};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_arrive_whole_whatever_the_frames(lens in proptest::collection::vec((1u64..500, 0u64..40), 1..12), cuts in proptest::collection::vec(1usize..300, 1..9)) {
            let arena = Arc::new(Shared::new("t", 1 << 16, true).expect("memfd"));
            let (mut at, mut slot, mut pieces) = (0, 0, Vec::new());
            for (i, (len, gap)) in lens.iter().enumerate() {
                at += gap;
                let handle = Handle { index: i as u32, generation: 0 };
                pieces.push(Piece { sample: i as u64, handle, at, slot_offset: slot, len: *len, sample_offset: 0, sample_len: *len });
                at += len;
                slot += len.next_multiple_of(64);
            }
            let body: Vec<u8> = (0..at).map(|i| (i * 31 % 251) as u8).collect();
            let load = Load { source: Source::Bucket, object: 0, offset: 0, len: at, pieces: pieces.clone(), deadline_ns: 0, attempt: 0, hedge: false };
            let mut sink = Scatter::new(Arc::clone(&arena), &load);
            // A failed attempt first.
            sink.write(0, &body[..body.len() / 2]).expect("inside");
            sink.restart();
            let (mut from, mut cut) = (0, cuts.iter().cycle());
            while from < body.len() {
                let to = (from + cut.next().expect("cycle")).min(body.len());
                sink.write(from as u64, &body[from..to]).expect("inside");
                from = to;
            }
            for (piece, crc) in pieces.iter().zip(sink.checksums().expect("all")) {
                let wanted = &body[piece.at as usize..(piece.at + piece.len) as usize];
                prop_assert_eq!(arena.map().bytes(piece.slot_offset, piece.len).expect("inside"), wanted);
                prop_assert_eq!(crc32c(wanted), *crc);
            }
        }
    }
}
