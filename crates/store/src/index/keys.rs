//! Front-coded keys: blocks of 16, each key storing only what differs from the one before it.
//!
//! A listing is sorted, so neighbours share most of their bytes: the 36-character keys of ImageNet shrink to about 14
//! bytes each. Reading key `i` decodes at most 16 entries of its block.

use super::column::Values;

/// Keys per block: longer blocks save little (the restart costs one whole key) and make reads slower.
pub(crate) const BLOCK: u64 = 16;

// S3 allows 1024 bytes, Azure 1024 characters, file systems 4096 bytes.
pub(crate) const MAX_KEY_BYTES: usize = 8192;

/// Keys while they are collected.
#[derive(Debug, Default)]
pub(crate) struct KeyWriter {
    pub blob: Vec<u8>,
    pub blocks: Values,
    last: Vec<u8>,
    count: u64,
}

impl KeyWriter {
    pub fn push(&mut self, key: &str) {
        let key = key.as_bytes();
        if self.count.is_multiple_of(BLOCK) {
            self.blocks.push(self.blob.len() as u64);
            put_varint(&mut self.blob, key.len());
            self.blob.extend_from_slice(key);
        } else {
            let shared = self.last.iter().zip(key).take_while(|(a, b)| a == b).count();
            put_varint(&mut self.blob, shared);
            put_varint(&mut self.blob, key.len() - shared);
            self.blob.extend_from_slice(&key[shared..]);
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.count += 1;
    }
}

/// Key number `nth` of the block that starts at the beginning of `block`; `None` if the bytes are damaged.
pub(crate) fn read(block: &[u8], nth: u64) -> Option<String> {
    let mut cursor = Cursor::default();
    cursor.begin(block)?;
    cursor.go(nth)?;
    String::from_utf8(cursor.key).ok()
}

/// A place in a block of keys. Going on from there costs the entries in between.
#[derive(Debug, Default)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    key: Vec<u8>,
    nth: u64,
}

impl<'a> Cursor<'a> {
    /// Goes to the first key of a block; `None` if the bytes are damaged.
    pub fn begin(&mut self, mut block: &'a [u8]) -> Option<()> {
        let first = take_varint(&mut block)?;
        self.key.clear();
        self.key.extend_from_slice(take(&mut block, first)?);
        (self.rest, self.nth) = (block, 0);
        Some(())
    }

    /// Goes on to key number `nth` of the block; `None` if the bytes are damaged.
    pub fn go(&mut self, nth: u64) -> Option<()> {
        while self.nth < nth {
            let shared = take_varint(&mut self.rest)?;
            let rest = take_varint(&mut self.rest)?;
            if shared > self.key.len() || shared + rest > MAX_KEY_BYTES {
                return None;
            }
            self.key.truncate(shared);
            self.key.extend_from_slice(take(&mut self.rest, rest)?);
            self.nth += 1;
        }
        Some(())
    }

    /// Which key of its block this is.
    pub fn nth(&self) -> u64 {
        self.nth
    }

    /// The key here.
    pub fn key(&self) -> Option<&str> {
        std::str::from_utf8(&self.key).ok()
    }
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = from.split_at_checked(len)?;
    *from = tail;
    Some(head)
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Lengths fit in three groups of seven bits, and nothing longer than a key is accepted.
fn take_varint(from: &mut &[u8]) -> Option<usize> {
    let mut value = 0_usize;
    for shift in [0, 7, 14] {
        let byte = take(from, 1)?[0];
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return (value <= MAX_KEY_BYTES).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn proptest_keys_come_back(keys in prop::collection::vec("[a-cé/]{0,40}", 1..70)) {
            let mut writer = KeyWriter::default();
            keys.iter().for_each(|key| writer.push(key));
            for (i, key) in keys.iter().enumerate() {
                let at = writer.blocks.get(i as u64 / BLOCK).unwrap() as usize;
                let read = read(&writer.blob[at..], i as u64 % BLOCK);
                prop_assert_eq!(read.as_ref(), Some(key));
            }
        }

        #[test]
        fn proptest_damaged_blocks_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), nth in 0_u64..16) {
            let _ = read(&bytes, nth);
        }
    }
}
