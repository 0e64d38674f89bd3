//! What the plan knows of a disk tier: which blocks it holds, and how much more it takes.

use crate::settings::TierSettings;
use std::collections::VecDeque;

/// Bytes that a record has on disk before its block's own (the engine's segment format).
pub const HEADER_BYTES: u64 = 36;

/// Bytes of its entry in the footer.
pub const ENTRY_BYTES: u64 = 28;

/// Records from this many bytes on lie on pages of their own, so that the page cache needn't have them. Smaller ones would be written too slowly: each
/// makes its file longer, which takes a tenth of a millisecond of one writer at a time.
pub const PAGED_BYTES: u64 = 256 << 10;

/// What these pages have.
pub const PAGE_BYTES: u64 = 4096;

/// A longer record carries a checksum of four bytes for each stretch of so many, so that part of it can be read.
pub const CHECKED_BYTES: u64 = 16 << 10;

/// Bytes that a record of `len` bytes takes on disk.
#[must_use]
pub const fn record_bytes(len: u64) -> u64 {
    let place = HEADER_BYTES + len + check_bytes(len);
    let pages = if len < PAGED_BYTES { 1 } else { PAGE_BYTES };
    place.next_multiple_of(pages) + ENTRY_BYTES
}

/// Bytes of a record's own checksums.
#[must_use]
pub const fn check_bytes(len: u64) -> u64 {
    if len > CHECKED_BYTES {
        4 * len.div_ceil(CHECKED_BYTES)
    } else {
        0
    }
}

/// A set of block numbers: one bit each, in chunks that exist only where something is set.
#[derive(Default)]
pub(super) struct Bits(Vec<Option<Box<[u64; 512]>>>);

impl Bits {
    pub fn has(&self, n: u64) -> bool {
        self.0
            .get((n >> 15) as usize)
            .and_then(Option::as_ref)
            .is_some_and(|chunk| chunk[(n >> 6) as usize & 511] >> (n & 63) & 1 == 1)
    }

    pub fn set(&mut self, n: u64, on: bool) {
        let at = (n >> 15) as usize;
        if self.0.len() <= at {
            if !on {
                return;
            }
            self.0.resize_with(at + 1, || None);
        }
        let chunk = self.0[at].get_or_insert_with(|| Box::new([0; 512]));
        let (word, bit) = (&mut chunk[(n >> 6) as usize & 511], 1u64 << (n & 63));
        if on { *word |= bit } else { *word &= !bit }
    }
}

pub(super) struct Tier {
    capacity_bytes: u64,
    used_bytes: u64,
    held: Bits,
    count: u64,
    oldest: VecDeque<(u64, u64)>,
}

impl Tier {
    pub fn new(settings: &TierSettings) -> Self {
        Tier {
            capacity_bytes: settings.capacity_bytes,
            used_bytes: 0,
            held: Bits::default(),
            count: 0,
            oldest: VecDeque::new(),
        }
    }

    pub fn has(&self, block: u64) -> bool {
        self.held.has(block)
    }

    /// Reserves room for a block of `len` bytes that is going to be written.
    pub fn admit(&mut self, len: u64) -> bool {
        let fits = self.fits(len);
        if fits {
            self.used_bytes += record_bytes(len);
        }
        fits
    }

    /// Whether a block of `len` bytes would be admitted.
    pub fn fits(&self, len: u64) -> bool {
        self.used_bytes + record_bytes(len) <= self.capacity_bytes
    }

    /// Bytes that records may take in all.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Blocks it holds.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Gives the room of [`Tier::admit`] back.
    pub fn abandon(&mut self, len: u64) {
        self.used_bytes -= record_bytes(len);
    }

    /// The admitted block is written.
    pub fn insert(&mut self, block: u64, len: u64) {
        self.held.set(block, true);
        self.count += 1;
        self.oldest.push_back((block, len));
    }

    pub fn remove(&mut self, block: u64, len: u64) {
        if self.held.has(block) {
            self.held.set(block, false);
            self.count -= 1;
            self.used_bytes -= record_bytes(len);
        }
    }

    /// The oldest block, for FIFO eviction.
    pub fn pop_oldest(&mut self) -> Option<(u64, u64)> {
        while let Some((block, len)) = self.oldest.pop_front() {
            if self.held.has(block) {
                return Some((block, len));
            }
        }
        None
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_hold_what_was_set_also_beyond_a_thousand_million() {
        let mut bits = Bits::default();
        for n in [0, 63, 64, 32_767, 32_768, 1_000_000_007] {
            assert!(!bits.has(n));
            bits.set(n, true);
            assert!(bits.has(n));
        }
        bits.set(64, false);
        assert!(!bits.has(64) && bits.has(63));
    }
    /// A tier with room for three records of a thousand bytes.
    fn tier() -> Tier {
        Tier::new(&TierSettings {
            capacity_bytes: 3 * record_bytes(1000),
            pinned: None,
        })
    }

    fn hold(tier: &mut Tier, block: u64) {
        assert!(tier.admit(1000));
        tier.insert(block, 1000);
    }

    #[test]
    fn a_record_takes_its_bytes_a_header_and_a_checksum_for_each_stretch_of_a_long_one() {
        assert_eq!([0, 1000, CHECKED_BYTES].map(check_bytes), [0; 3]);
        assert_eq!([1, 2].map(|n| check_bytes(n * CHECKED_BYTES + 1)), [8, 12]);
        assert_eq!(record_bytes(1000), 1064);
        assert_eq!(record_bytes(2 * CHECKED_BYTES), 2 * CHECKED_BYTES + 64 + 8);
        assert_eq!(record_bytes(PAGED_BYTES - 1), PAGED_BYTES - 1 + 64 + 64);
        assert_eq!(
            record_bytes(PAGED_BYTES),
            PAGED_BYTES + PAGE_BYTES + 28,
            "on whole pages"
        );
    }

    #[test]
    fn a_tier_admits_until_the_last_byte_and_again_what_was_abandoned() {
        let mut tier = tier();
        assert_eq!([(); 4].map(|()| tier.admit(1000)), [true, true, true, false]);
        assert!(!tier.fits(0), "an empty record takes room, too");
        tier.abandon(1000);
        assert!(!tier.admit(1001) && tier.admit(1000));
        assert_eq!((tier.used_bytes(), tier.count()), (3 * 1064, 0));
        assert!(!tier.has(1), "what is admitted isn't there until it is written");
    }

    #[test]
    fn a_block_that_leaves_gives_its_room_back_once() {
        let mut tier = tier();
        hold(&mut tier, 7);
        assert!(tier.has(7));
        tier.remove(8, 1000);
        assert_eq!((tier.used_bytes(), tier.count()), (1064, 1), "that wasn't there");
        tier.remove(7, 1000);
        tier.remove(7, 1000);
        assert_eq!((tier.used_bytes(), tier.count(), tier.has(7)), (0, 0, false));
    }

    #[test]
    fn the_block_that_came_first_is_the_oldest_of_those_that_are_there() {
        let mut tier = tier();
        [5, 3, 9].into_iter().for_each(|block| hold(&mut tier, block));
        tier.remove(5, 1000);
        assert_eq!(tier.pop_oldest(), Some((3, 1000)));
        tier.remove(3, 1000);
        assert_eq!(tier.pop_oldest(), Some((9, 1000)));
        tier.remove(9, 1000);
        assert_eq!(tier.pop_oldest(), None);
    }
}
