//! The digest of a data set: keys, sizes, ETags, ranges, fields and labels, in order.
//!
//! Two streams of SHA-256, so that it does not matter how objects and samples interleave. Objects are named by their
//! numbers in the order in which they were added.

use super::{ObjectRange, bare_etag, first_half};
use ring::digest::{Context, SHA256, digest};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// A digest while what it names comes in.
pub(crate) struct ContentDigest {
    objects: Stream,
    samples: Stream,
}

impl ContentDigest {
    pub fn new() -> Self {
        Self {
            objects: Stream::new(b"foreload objects 1"),
            samples: Stream::new(b"foreload samples 1"),
        }
    }

    /// One whose samples are hashed on a thread of their own, while the next ones are read: of many samples, that takes half the time.
    pub fn aside() -> Self {
        let mut digest = Self::new();
        digest.samples.hash = Hash::aside();
        digest
    }

    /// The next object.
    pub fn object(&mut self, key: &str, etag: Option<&str>, size: u64) {
        self.objects.text(b'o', key);
        self.objects.tail(bare_etag(etag.unwrap_or("")));
        self.objects.numbers([size]);
    }

    /// The next sample: its first range, and its label as the index has it.
    #[inline]
    pub fn sample(&mut self, first: &ObjectRange, label: u64) {
        let ObjectRange { object, offset, length } = *first;
        self.samples.numbers([u64::from(b's'), object, offset, length, label]);
    }

    /// A further range of this sample.
    pub fn range(&mut self, range: &ObjectRange) {
        let ObjectRange { object, offset, length } = *range;
        self.samples.numbers([u64::from(b'r'), object, offset, length]);
    }

    /// A field of this sample, after its ranges.
    pub fn field(&mut self, name: &str, offset: u64, length: u64) {
        self.samples.text(b'f', name);
        self.samples.numbers([offset, length]);
    }

    pub fn finish(self) -> [u8; 16] {
        let both = [self.objects.finish(), self.samples.finish()].concat();
        first_half(digest(&SHA256, &both).as_ref())
    }
}

impl std::fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ContentDigest")
    }
}

/// Fed in order; buffered, because many small updates cost more than the hash.
struct Stream {
    buffer: Vec<u8>,
    hash: Hash,
}

/// Hashed at once. Handing a buffer to another thread costs some microseconds, hashing it forty.
const BUFFER: usize = 1 << 16;

/// Buffers on their way to the thread that hashes, and back.
const BUFFERS: usize = 8;

enum Hash {
    Here(Context),
    Aside {
        full: SyncSender<Vec<u8>>,
        empty: Receiver<Vec<u8>>,
        thread: JoinHandle<Context>,
    },
}

impl Hash {
    fn here() -> Self {
        Hash::Here(Context::new(&SHA256))
    }

    /// On a thread of its own, if there is one to be had. It ends with the last buffer.
    fn aside() -> Self {
        let ((full, hashed), (back, empty)) = (sync_channel::<Vec<u8>>(BUFFERS), sync_channel(BUFFERS));
        let hash = move || {
            let mut context = Context::new(&SHA256);
            for mut buffer in hashed {
                context.update(&buffer);
                buffer.clear();
                // Where there is one too many, it goes.
                let _ = back.try_send(buffer);
            }
            context
        };
        let thread = Builder::new().name("foreload-digest".into()).spawn(hash);
        thread.map_or_else(|_| Self::here(), |thread| Hash::Aside { full, empty, thread })
    }

    /// Hashes what is in the buffer, which is empty afterwards.
    fn update(&mut self, buffer: &mut Vec<u8>) {
        match self {
            Hash::Here(context) => {
                context.update(buffer);
                buffer.clear();
            }
            Hash::Aside { full, empty, .. } => {
                let next = empty.try_recv().unwrap_or_default();
                full.send(std::mem::replace(buffer, next)).expect(LIVES);
            }
        }
    }

    fn finish(self) -> Vec<u8> {
        let context = match self {
            Hash::Here(context) => context,
            Hash::Aside { full, thread, .. } => {
                drop(full);
                thread.join().expect(LIVES)
            }
        };
        context.finish().as_ref().to_vec()
    }
}

/// Why the thread is there: it does nothing that panics, and ends when its sender goes.
const LIVES: &str = "hashing does not panic";

impl Stream {
    fn new(what: &[u8]) -> Self {
        Self {
            buffer: what.to_vec(),
            hash: Hash::here(),
        }
    }

    fn text(&mut self, tag: u8, text: &str) {
        self.buffer.push(tag);
        self.tail(text);
    }

    fn tail(&mut self, text: &str) {
        self.buffer.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.buffer.extend_from_slice(text.as_bytes());
        self.spill();
    }

    #[inline]
    fn numbers<const COUNT: usize>(&mut self, numbers: [u64; COUNT]) {
        let words = numbers.map(u64::to_le_bytes);
        self.buffer.extend_from_slice(words.as_flattened());
        self.spill();
    }

    #[inline]
    fn spill(&mut self) {
        if self.buffer.len() > BUFFER {
            self.hash.update(&mut self.buffer);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.hash.update(&mut self.buffer);
        self.hash.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_wherever_it_is_made() {
        for samples in [0, 1, 500, 30_000] {
            let [here, aside] = [ContentDigest::new(), ContentDigest::aside()].map(|mut digest| {
                digest.object("a", Some("\"e\""), 7);
                for at in 0..samples {
                    let range = ObjectRange {
                        object: at,
                        offset: at << 20,
                        length: at % 13,
                    };
                    digest.sample(&range, at);
                    digest.range(&range);
                    digest.field("jpg", at, 1);
                }
                digest.finish()
            });
            assert_eq!(here, aside);
        }
    }

    #[test]
    fn a_thread_that_hashes_ends_with_its_digest() {
        let mut digest = ContentDigest::aside();
        (0..100_000).for_each(|at| digest.sample(&ObjectRange::default(), at));
        let Hash::Aside { full, thread, .. } = digest.samples.hash else {
            panic!("there was no thread to be had");
        };
        drop(full);
        thread.join().unwrap();
    }
}
