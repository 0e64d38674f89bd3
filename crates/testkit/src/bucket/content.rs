//! The bytes of an object, read piecewise: from memory, a file, or computed.
//!
//! [`Blob`] is one pseudo-random block that all synthetic objects are windows of, so an object
//! of any size costs no memory and its content is a function of where its window starts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;

use crate::draw;

/// The blob's period: a prime, so that no two aligned parts of a large object are equal (a
/// client that puts parts together in the wrong order must not pass), and small enough to stay
/// in the last-level cache, where serving costs least.
pub const PERIOD: u64 = 16_777_213;
/// The head is repeated behind the end, so that a window rarely has to be cut at the wrap.
const OVERLAP: u64 = 1 << 20;

/// One block of pseudo-random bytes.
#[derive(Clone, Debug)]
pub struct Blob(Bytes);

impl Blob {
    /// Makes the block for a seed (about 10 ms and 17 MB).
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let period = PERIOD as usize;
        let mut block = vec![0_u8; period + OVERLAP as usize];
        draw::fill(seed, &mut block[..period]);
        block.copy_within(..OVERLAP as usize, period);
        Self(Bytes::from(block))
    }

    /// Up to `most` bytes of the window that starts at `start`, from its offset `at`.
    fn window(&self, start: u64, at: u64, most: u64) -> Bytes {
        let from = (start % PERIOD + at % PERIOD) % PERIOD;
        let size = most.min(PERIOD + OVERLAP - from);
        self.0.slice(from as usize..(from + size) as usize)
    }
}

/// Where an object's bytes come from.
#[derive(Clone, Debug)]
pub enum Content {
    /// Bytes in memory.
    Memory(Bytes),
    /// A local file of this many bytes.
    File(Arc<File>, u64),
    /// A window of the blob: start and size.
    Window(Blob, u64, u64),
    /// Pieces one after the other, each with the offset where it begins.
    Rope(Arc<Rope>),
}

/// Contents one after the other.
#[derive(Debug, Default)]
pub struct Rope {
    pieces: Vec<(u64, Content)>,
    size: u64,
}

impl Rope {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Content) {
        let size = piece.size();
        if size > 0 {
            self.pieces.push((self.size, piece));
            self.size += size;
        }
    }
}

impl Content {
    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_, size) | Self::Window(_, _, size) => *size,
            Self::Rope(rope) => rope.size,
        }
    }

    /// At least one and at most `most` bytes from offset `at`, which lies before the end.
    ///
    /// # Errors
    ///
    /// When a file can't be read or ends early.
    pub fn read(&self, at: u64, most: u64) -> io::Result<Bytes> {
        let most = most.min(self.size().saturating_sub(at));
        match self {
            Self::Memory(bytes) => Ok(bytes.slice(at as usize..(at + most) as usize)),
            Self::File(file, _) => {
                let mut buffer = vec![0; most as usize];
                file.read_exact_at(&mut buffer, at)?;
                Ok(Bytes::from(buffer))
            }
            Self::Window(blob, start, _) => Ok(blob.window(*start, at, most)),
            Self::Rope(rope) => rope.read(at, most),
        }
    }

    /// All bytes in one piece.
    ///
    /// # Errors
    ///
    /// As for [`Content::read`].
    pub fn to_bytes(&self) -> io::Result<Bytes> {
        if let Self::Memory(bytes) = self {
            return Ok(bytes.clone());
        }
        let mut all = Vec::with_capacity(self.size() as usize);
        while (all.len() as u64) < self.size() {
            all.extend_from_slice(&self.read(all.len() as u64, u64::MAX)?);
        }
        Ok(Bytes::from(all))
    }
}

impl Rope {
    /// One piece as it is when that suffices, otherwise a copy across pieces, because small
    /// frames cost a system call each.
    fn read(&self, at: u64, most: u64) -> io::Result<Bytes> {
        let mut index = self.pieces.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        let mut gathered: Vec<u8> = Vec::new();
        let mut position = at;
        while position < at + most {
            let (start, piece) = &self.pieces[index];
            let part = piece.read(position - start, at + most - position)?;
            position += part.len() as u64;
            if position == at + most && gathered.is_empty() {
                return Ok(part);
            }
            gathered.extend_from_slice(&part);
            if position == start + piece.size() {
                index += 1;
            }
        }
        Ok(Bytes::from(gathered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_reads_the_same_in_any_pieces() {
        let content = Content::Window(Blob::new(1), 5_000_000, 40_000_000);
        let whole = content.to_bytes().unwrap();
        assert_eq!(whole.len(), 40_000_000);
        for at in [0, 1, 11_777_212, 11_777_213, 39_999_999] {
            let part = content.read(at, 100_000).unwrap();
            assert_eq!(part, whole[at as usize..at as usize + part.len()]);
        }
        assert_ne!(whole[..1000], whole[8 << 20..(8 << 20) + 1000]);
        assert_ne!(whole[..1000], whole[16 << 20..(16 << 20) + 1000]);
    }

    #[test]
    fn a_rope_reads_across_its_pieces() {
        let mut rope = Rope::default();
        for text in ["abc", "", "defgh", "i"] {
            rope.push(Content::Memory(Bytes::from_static(text.as_bytes())));
        }
        let content = Content::Rope(Arc::new(rope));
        assert_eq!(content.to_bytes().unwrap(), "abcdefghi");
        assert_eq!(content.read(2, 5).unwrap(), "cdefg");
        assert_eq!(content.read(4, 2).unwrap(), "ef");
        assert_eq!(content.read(8, 9).unwrap(), "i");
    }
}
