//! How an object is cut into chunks, each of which is one request.
//!
//! Paper 004 reads with chunks of one size for all objects, 52 MB, which leaves a 200 MB object four connections. Here the chunk follows from the object: small ones are one
//! chunk, as they are one sample for the loader, and larger ones have so many that a bucket's connections are all of use.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Objects up to this are one chunk, and larger ones have chunks of it: at 35 MB/s and 30 ms the body is 80 % of the request.
const LEAST: u64 = 4 << 20;
/// The chunk of an object from this on: half as many requests, and its first byte comes from the first chunk all the same.
const LARGE: u64 = 1 << 30;
/// The largest chunk that can be asked for.
pub const MOST_CHUNK: u64 = 1 << 30;

/// How objects are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chunking {
    /// By their size.
    #[default]
    Adaptive,
    /// All into chunks of so many bytes (paper 004: 52 MB).
    Fixed(u64),
}

impl Chunking {
    /// The chunks of an object.
    #[must_use]
    pub fn layout(self, bytes: u64) -> Layout {
        let chunk = match self {
            Chunking::Fixed(chunk) => chunk.clamp(1, MOST_CHUNK),
            Chunking::Adaptive if bytes < LARGE => LEAST,
            Chunking::Adaptive => 2 * LEAST,
        };
        Layout { bytes, chunk }
    }

    /// The longest chunk that there is.
    #[must_use]
    pub fn most_bytes(self) -> u64 {
        match self {
            Chunking::Fixed(chunk) => chunk.clamp(1, MOST_CHUNK),
            Chunking::Adaptive => 2 * LEAST,
        }
    }
}

/// An object's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The object's bytes.
    pub bytes: u64,
    /// A chunk's, but for the last one's.
    pub chunk: u64,
}

impl Layout {
    /// How many there are; none of an empty object.
    #[must_use]
    pub fn count(self) -> u64 {
        self.bytes.div_ceil(self.chunk)
    }

    /// The bytes of chunk `nth`.
    #[must_use]
    pub fn span(self, nth: u64) -> Range<u64> {
        let from = nth.saturating_mul(self.chunk).min(self.bytes);
        from..from.saturating_add(self.chunk).min(self.bytes)
    }

    /// The chunks that have some of these bytes.
    #[must_use]
    pub fn of(self, span: Range<u64>) -> Range<u64> {
        let to = span.end.min(self.bytes);
        if span.start >= to {
            return 0..0;
        }
        span.start / self.chunk..to.div_ceil(self.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_objects_are_one_chunk_and_empty_ones_none() {
        assert_eq!(Chunking::Adaptive.layout(0).count(), 0);
        assert_eq!(Chunking::Adaptive.layout(110_000).count(), 1);
        assert_eq!(Chunking::Adaptive.layout(4 << 20).count(), 1);
        assert_eq!(Chunking::Adaptive.layout(200_000_000).count(), 48);
        assert_eq!(Chunking::Fixed(52_000_000).layout(200_000_000).count(), 4);
    }

    proptest! {
        #[test]
        fn chunks_are_all_of_the_object_and_each_byte_is_in_one(bytes in 0_u64..1 << 40, fixed in proptest::option::of(1_u64..1 << 31), at in 0_u64..1 << 40, len in 0_u64..1 << 30) {
            let layout = fixed.map_or(Chunking::Adaptive, Chunking::Fixed).layout(bytes);
            let count = layout.count();
            prop_assert_eq!(layout.span(count).len_u64(), 0);
            if let Some(last) = count.checked_sub(1) {
                prop_assert_eq!(layout.span(last).end, bytes);
                prop_assert!(layout.span(last).len_u64() > 0);
                prop_assert!(layout.span(last).len_u64() <= fixed.map_or(Chunking::Adaptive, Chunking::Fixed).most_bytes());
            }
            let chunks = layout.of(at..at + len);
            for nth in [chunks.start, chunks.end.saturating_sub(1)] {
                let span = layout.span(nth);
                let holds = span.start < (at + len).min(bytes) && at < span.end;
                prop_assert_eq!(holds, !chunks.is_empty());
            }
            if !chunks.is_empty() {
                prop_assert!(layout.span(chunks.start).start <= at);
                prop_assert!(layout.span(chunks.end - 1).end >= (at + len).min(bytes));
            }
        }
    }

    trait Len {
        fn len_u64(&self) -> u64;
    }

    impl Len for Range<u64> {
        fn len_u64(&self) -> u64 {
            self.end - self.start
        }
    }
}
