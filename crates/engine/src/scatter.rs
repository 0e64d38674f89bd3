//! Where a fetch's bytes go: straight from the connection's buffer into the slots of its samples, checksummed on the way.

use crate::slots::Shared;
use crate::turns::Turn;
use crc_fast::{CrcAlgorithm, Digest};
use foreload_plan::action::{Load, Piece};
use foreload_store::{Error, ErrorKind, Sink};
use std::sync::Arc;
use std::task::{Context, Poll};

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

/// A stretch of a load that has a checksum of its own in the index: a sample, or a part of a large one.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The sample.
    pub sample: u64,
    /// The piece that it comes with, by its number in the load.
    pub piece: usize,
    /// Where it begins in the load's range.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
}

/// The checksums of some stretches of a load, which come one after the other.
pub struct Sums {
    checks: Vec<Check>,
    crc: Digest,
    crcs: Vec<u32>,
    /// What lies before has been summed up: pieces may overlap.
    reached: u64,
}

impl Sums {
    /// Of these stretches.
    #[must_use]
    pub fn new(checks: &[Check]) -> Self {
        Sums {
            checks: checks.to_vec(),
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
            crcs: Vec::with_capacity(checks.len()),
            reached: 0,
        }
    }

    /// Bytes of the load, from one of its places on.
    pub fn add(&mut self, at: u64, frame: &[u8]) {
        let end = at + frame.len() as u64;
        while let Some(check) = self.checks.get(self.crcs.len()).filter(|check| check.at <= end) {
            let to = (check.at + check.len).min(end);
            let from = check.at.max(at).max(self.reached).min(to);
            self.crc.update(&frame[(from - at) as usize..(to - at) as usize]);
            if to < check.at + check.len {
                break;
            }
            self.crcs.push(self.crc.finalize() as u32);
            self.crc.reset();
        }
        self.reached = self.reached.max(end);
    }

    /// Those of all of them, once all bytes have come.
    #[must_use]
    pub fn whole(&self) -> Option<&[u32]> {
        (self.crcs.len() == self.checks.len()).then_some(&self.crcs)
    }

    fn restart(&mut self) {
        self.crc.reset();
        self.crcs.clear();
        self.reached = 0;
    }
}

/// So much must lie together to be read right to where it belongs: less is read with what comes behind it, and copied.
const LEAST_ROOM: u64 = if cfg!(test) { 1 } else { 32 << 10 };

/// Scatters one range into slots. Bytes that no piece has are dropped.
pub struct Scatter {
    arena: Arc<Shared>,
    pieces: Vec<Piece>,
    /// The first piece that isn't there yet.
    piece: usize,
    sums: Sums,
    asked: u32,
    /// Of requests to a bucket.
    turn: Option<Turn>,
}

impl Scatter {
    /// For the pieces of a load, with the checksums of these stretches, which come one after the other.
    #[must_use]
    pub fn new(arena: Arc<Shared>, load: &Load, checks: &[Check]) -> Self {
        Scatter {
            arena,
            pieces: load.pieces.clone(),
            piece: 0,
            sums: Sums::new(checks),
            asked: 0,
            turn: None,
        }
    }

    /// Whose requests are sent again when it is their turn.
    #[must_use]
    pub fn in_turn(self, turn: Turn) -> Self {
        Scatter {
            turn: Some(turn),
            ..self
        }
    }

    /// Requests that went out for it.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.asked
    }

    /// The checksum of each stretch, once all bytes have come.
    #[must_use]
    pub fn checksums(&self) -> Option<&[u32]> {
        self.sums.whole().filter(|_| self.piece == self.pieces.len())
    }
}

impl Scatter {
    /// What lies before `end` has come.
    fn came(&mut self, end: u64) {
        let is_there = |piece: &&Piece| piece.at + piece.len <= end;
        self.piece += self.pieces[self.piece..].iter().take_while(is_there).count();
    }
}

impl Sink for Scatter {
    fn asked(&mut self) {
        self.asked += 1;
        if let Some(turn) = &mut self.turn {
            turn.sent();
        }
    }

    fn broke(&mut self, error: &Error) {
        if let Some(turn) = &mut self.turn {
            turn.broke(error);
        }
    }

    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.turn.as_mut().map_or(Poll::Ready(()), |turn| turn.poll_again(cx))
    }

    fn room(&mut self, at: u64) -> Option<&mut [u8]> {
        let piece = self.pieces.get(self.piece).filter(|piece| piece.at <= at)?;
        // What belongs to several pieces is copied.
        let next = self.pieces.get(self.piece + 1).map_or(u64::MAX, |next| next.at);
        let end = next.min(piece.at + piece.len);
        if end < at + LEAST_ROOM {
            return None;
        }
        self.arena.room(piece.slot_offset + (at - piece.at), end - at)
    }

    fn filled(&mut self, at: u64, len: usize) -> Result<(), Error> {
        let piece = &self.pieces[self.piece];
        let slot = piece.slot_offset + (at - piece.at);
        let bytes = self.arena.map().bytes(slot, len as u64);
        self.sums.add(at, bytes.unwrap_or_default());
        self.came(at + len as u64);
        Ok(())
    }

    fn write(&mut self, at: u64, frame: &[u8]) -> Result<(), Error> {
        let end = at + frame.len() as u64;
        for piece in self.pieces[self.piece..].iter().take_while(|piece| piece.at < end) {
            let (from, to) = (piece.at.max(at), (piece.at + piece.len).min(end));
            if from >= to {
                continue;
            }
            let part = &frame[(from - at) as usize..(to - at) as usize];
            self.arena
                .write(piece.slot_offset + (from - piece.at), part)
                .map_err(|error| {
                    Error::new(
                        ErrorKind::Bug,
                        format!("writing {} bytes into the cache arena: {error}", part.len()),
                    )
                })?;
        }
        self.came(end);
        self.sums.add(at, frame);
        Ok(())
    }

    fn restart(&mut self) {
        self.piece = 0;
        self.sums.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreload_plan::action::{Handle, Source};
    use foreload_plan::blocks::Content;
    use proptest::prelude::*;

    #[test]
    fn what_comes_twice_is_summed_up_once() {
        let bytes: Vec<u8> = (0..40).collect();
        let check = |at, len| Check {
            sample: 0,
            piece: 0,
            at,
            len,
        };
        let mut sums = Sums::new(&[check(0, 20)]);
        sums.add(0, &bytes[..20]);
        sums.add(0, &bytes[..20]);
        assert_eq!(sums.whole(), Some(&[crc32c(&bytes[..20])][..]));
        let mut sums = Sums::new(&[check(0, 20), check(20, 20)]);
        for at in [0, 10, 20] {
            sums.add(at as u64, &bytes[at..at + 20]);
        }
        assert_eq!(sums.whole(), Some(&[crc32c(&bytes[..20]), crc32c(&bytes[20..])][..]));
    }

    proptest! {
        #[test]
        fn pieces_arrive_whole_whatever_the_frames(lens in proptest::collection::vec((1u64..500, 0u64..40), 1..12), within: bool, straight: bool, cuts in proptest::collection::vec(1usize..300, 1..9)) {
            let arena = Arc::new(Shared::new("t", 1 << 16, true).expect("memfd"));
            let (mut at, mut slot, mut pieces) = (0, 0, Vec::new());
            for (i, (len, gap)) in lens.iter().enumerate() {
                at += gap;
                let handle = Handle { index: i as u32, generation: 0 };
                pieces.push(Piece { content: Content::block(i as u64), handle, at, slot_offset: slot, len: *len, content_offset: 0, content_len: *len });
                at += len;
                slot += len.next_multiple_of(64);
            }
            let checks: Vec<Check> = pieces.iter().enumerate().map(|(piece, it)| Check { sample: 0, piece, at: it.at, len: it.len }).collect();
            if within {
                // All of the range goes somewhere as a whole, too.
                pieces.insert(0, Piece { content: Content::block(99), at: 0, slot_offset: slot, len: at, content_len: at, ..pieces[0] });
            }
            let body: Vec<u8> = (0..at).map(|i| (i * 31 % 251) as u8).collect();
            let load = Load { job: 0, source: Source::Bucket, object: 0, offset: 0, len: at, pieces: pieces.clone(), steps: 0, deadline_ns: 0, attempt: 0, hedge: false, bundle: None };
            if straight {
                arena.write(0, &[7; 1 << 16]).expect("inside");
            }
            let mut sink = Scatter::new(Arc::clone(&arena), &load, &checks);
            // A failed attempt first.
            sink.write(0, &body[..body.len() / 2]).expect("inside");
            sink.restart();
            let (mut from, mut went_straight, mut cut) = (0, 0, cuts.iter().cycle());
            while from < body.len() {
                let mut to = (from + cut.next().expect("cycle")).min(body.len());
                let room = sink.room(from as u64);
                prop_assert!(straight || room.is_none(), "no page has memory yet");
                if let Some(room) = room {
                    to = to.min(from + room.len());
                    room[..to - from].copy_from_slice(&body[from..to]);
                    sink.filled(from as u64, to - from).expect("inside");
                    went_straight += to - from;
                } else {
                    sink.write(from as u64, &body[from..to]).expect("inside");
                }
                from = to;
            }
            // Where nothing belongs to several pieces, all of it can.
            if straight && !within && lens.iter().all(|(_, gap)| *gap == 0) {
                prop_assert_eq!(went_straight as u64, at);
            }
            let bytes = |at: u64, len: u64| &body[at as usize..(at + len) as usize];
            for piece in &pieces {
                prop_assert_eq!(arena.map().bytes(piece.slot_offset, piece.len).expect("inside"), bytes(piece.at, piece.len));
            }
            for (check, crc) in checks.iter().zip(sink.checksums().expect("all")) {
                prop_assert_eq!(crc32c(bytes(check.at, check.len)), *crc);
            }
        }
    }
}
