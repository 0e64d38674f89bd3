//! Where each record is: 33 bytes of hash table per place, in 1024 tables.
//!
//! A hash table doubles by copying all it holds. Ten million records in one table would take the event loop half a
//! second then, and old and new together half as much memory again; one of 1024 takes 0.5 ms. The tables are taken
//! by two bytes of the key, a cryptographic hash.
//!
//! Entries of an evicted segment are not looked for. They stay, name a segment that is no more, which readers take as
//! "not here", and are swept away table by table with the calls that follow.

use super::layout::Record;
use rustc_hash::FxHashMap;

const TABLES: usize = 1024;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub segment: u32,
    offset: u32,
    len: u32,
    checksum: u32,
}

const _: () = assert!(size_of::<([u8; 16], Place)>() == 32);

impl Place {
    pub(super) fn new(segment: u32, record: &Record) -> Self {
        Place {
            segment,
            offset: record.offset,
            len: record.len,
            checksum: record.checksum,
        }
    }

    pub(super) fn record(self, key: [u8; 16]) -> Record {
        Record {
            key,
            offset: self.offset,
            len: self.len,
            checksum: self.checksum,
        }
    }
}

pub(super) struct Index {
    tables: Vec<FxHashMap<[u8; 16], Place>>,
    unswept: usize,
}

fn table(key: &[u8; 16]) -> usize {
    usize::from(u16::from_le_bytes([key[0], key[1]])) % TABLES
}

impl Index {
    pub(super) fn new() -> Self {
        Index {
            tables: (0..TABLES).map(|_| FxHashMap::default()).collect(),
            unswept: 0,
        }
    }

    /// Makes room for this many more at once, which leaves no smaller tables behind in the allocator.
    pub(super) fn reserve(&mut self, records: u64) {
        let each = usize::try_from(records).unwrap_or(0) / TABLES;
        self.tables.iter_mut().for_each(|table| table.reserve(each));
    }

    pub(super) fn get(&self, key: &[u8; 16]) -> Option<Place> {
        self.tables[table(key)].get(key).copied()
    }

    pub(super) fn insert(&mut self, key: [u8; 16], place: Place) -> Option<Place> {
        self.tables[table(&key)].insert(key, place)
    }

    pub(super) fn remove(&mut self, key: &[u8; 16]) -> Option<Place> {
        self.tables[table(key)].remove(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ([u8; 16], Place)> + '_ {
        self.tables.iter().flatten().map(|(key, place)| (*key, *place))
    }

    /// Segments are gone: looks through all tables during the next 1024 calls of [`Index::sweep`].
    pub(super) fn sweep_later(&mut self) {
        self.unswept = TABLES;
    }

    /// Drops what names a segment that is no more from one table.
    pub(super) fn sweep(&mut self, exists: impl Fn(u32) -> bool) {
        let Some(next) = self.unswept.checked_sub(1) else {
            return;
        };
        self.unswept = next;
        let table = &mut self.tables[next];
        table.retain(|_, place| exists(place.segment));
        // A table that is mostly empty gives its memory back.
        if table.capacity() > 64 && table.len() < table.capacity() / 4 {
            table.shrink_to(table.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_segment_that_is_gone_are_swept_away() {
        let mut index = Index::new();
        for n in 0..5000u32 {
            let mut key = [0; 16];
            key[..4].copy_from_slice(&n.to_le_bytes());
            index.insert(
                key,
                Place {
                    segment: n % 3,
                    offset: 32,
                    len: n,
                    checksum: 0,
                },
            );
        }
        index.sweep_later();
        for _ in 0..TABLES {
            index.sweep(|segment| segment != 1);
        }
        assert_eq!(index.iter().count(), 3333);
        assert!(index.iter().all(|(_, place)| place.segment != 1));
    }
}
