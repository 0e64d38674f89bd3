//! What a disk tier is told.

use super::DiskError;
use super::layout::{LEAST_PAGED, Layout, MAX_SEGMENT};
use foreload_plan::scheduler::PAGED_BYTES;

const MIB: u64 = 1 << 20;

/// Settings of a [`DiskTier`](super::DiskTier).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Bytes that the files may take, all included.
    pub capacity_bytes: u64,
    /// Bytes of a segment file, at most 4 GiB and an eighth of the capacity, or a sixteenth from 16 MiB on; a larger record gets a segment of its own.
    /// Default: a 64th of the capacity between 4 and 256 MiB, or a 1024th where that is more. Large ones are few
    /// handles and footers; small ones lose less when one is evicted, and are sooner read after a kill.
    pub segment_bytes: Option<u64>,
    /// Bytes of the file system that stay free for others.
    pub keep_free_bytes: u64,
    /// Segments with an open handle, 512 by default: half of the descriptors that a process commonly has.
    pub open_files: usize,
}

impl DiskSettings {
    /// Bytes that stay free by default.
    pub const KEEP_FREE_BYTES: u64 = 1 << 30;

    /// The defaults for this capacity.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        DiskSettings {
            capacity_bytes,
            segment_bytes: None,
            keep_free_bytes: Self::KEEP_FREE_BYTES,
            open_files: 512,
        }
    }

    pub(super) fn checked(self) -> Result<Self, DiskError> {
        // Eight segments of 4 KiB: below, headers would be most of it.
        const LEAST: u64 = 32 << 10;
        if self.capacity_bytes < LEAST {
            let found = self.capacity_bytes;
            return Err(DiskError::Invalid(format!(
                "a disk tier of {found} bytes is too small: it takes {LEAST}"
            )));
        }
        Ok(self)
    }

    pub(super) fn segment_bytes(&self) -> u64 {
        let share = self.capacity_bytes / 64;
        let chosen = self
            .segment_bytes
            .unwrap_or(share.clamp(4 * MIB, 256 * MIB).max(self.capacity_bytes / 1024));
        chosen
            .clamp(4096, MAX_SEGMENT)
            .min(self.capacity_bytes / if self.capacity_bytes < 16 * LEAST_PAGED { 8 } else { 16 })
    }

    pub(super) fn usable_bytes(&self) -> u64 {
        let layout = Layout::of(PAGED_BYTES, self.segment_bytes());
        // Where there are two layouts, two segments are open.
        let open = if layout == Layout::Paged { 2 } else { 1 };
        // A segment is at least half full when no record is above half a segment.
        let segments = 2 * self.capacity_bytes / self.segment_bytes() + 2 * open;
        self.capacity_bytes
            .saturating_sub(open * self.segment_bytes() + segments * layout.overhead())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_an_eighth_of_the_capacity_at_most_and_few() {
        for capacity in [32 << 10, 1 << 20, 1 << 30, 16 << 30, 500 << 30, 10 << 40] {
            let settings = DiskSettings::new(capacity).checked().unwrap();
            let segment = settings.segment_bytes();
            assert!(segment <= capacity / 8 && segment <= MAX_SEGMENT);
            assert!(capacity / segment <= 1024 || segment == MAX_SEGMENT);
            assert!(
                settings.usable_bytes() > capacity / 4 * 3,
                "{capacity} {}",
                settings.usable_bytes()
            );
        }
        assert!(DiskSettings::new(1000).checked().is_err());
    }
}
