//! Some samples of an index, in an order of their own: a list of numbers, and the index that they are numbers of.
//!
//! A choice shares the bytes of its index and holds nothing per sample but the list. Its accessors answer as those of an
//! index that had been made of these samples alone, but for the numbers of objects, and its digest is that index's. So
//! caches and saved positions know it, however it was made.

use super::digest::ContentDigest;
use super::keys::{BLOCK, Cursor};
use super::layout::{Section, damaged};
use super::{Index, IndexBuilder, Numbers, ObjectRange, coded_label, etags};
use crate::Result;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A choice may be ended after so many samples: some 5 ms.
const ASK_EVERY: u64 = 1 << 16;

/// From so many samples on, a second thread is worth its start.
const MANY: u64 = 1 << 18;

/// What makes an index a choice.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Those of the samples in the file.
    pub numbers: Numbers,
    pub digest: [u8; 16],
    /// How many its samples lie in.
    pub objects: u64,
}

impl Index {
    /// The samples of these numbers, in their order. Root, classes and ranges stay, so caches serve both.
    ///
    /// Of a choice it is a choice of the same index. Takes 8 bytes for each object, unless they come in their order.
    ///
    /// # Errors
    /// `Invalid` for a number that is no sample.
    pub fn choose(&self, numbers: Numbers) -> Result<Index> {
        let chosen = self.choose_while(numbers, &mut |_| true)?;
        Ok(chosen.expect("nobody ends it early"))
    }

    /// As [`Index::choose`], as long as `goes_on`, which is asked now and then with the samples done; `None`: it was ended.
    ///
    /// # Errors
    /// As [`Index::choose`].
    pub fn choose_while(&self, numbers: Numbers, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<Option<Index>> {
        let (numbers, whole) = (self.resolve(numbers)?, self.whole());
        let digest = match numbers.len() >= MANY {
            true => ContentDigest::aside(),
            false => ContentDigest::new(),
        };
        let mut survey = Survey::new(&whole, digest);
        for (id, done) in numbers.iter().zip(0..) {
            if done % ASK_EVERY == 0 && !goes_on(done) {
                return Ok(None);
            }
            survey.add(id)?;
        }
        let (digest, objects) = (survey.digest.finish(), survey.used.count);
        Ok(Some(whole.chosen(numbers, digest, objects)))
    }

    /// A choice whose digest and objects are known, for numbers in shared memory that another process has looked at.
    /// Reading stays free of panics, whatever they are.
    #[must_use]
    pub fn chosen(&self, numbers: Numbers, digest: [u8; 16], objects: u64) -> Index {
        let choice = Choice {
            numbers,
            digest,
            objects,
        };
        Index {
            inner: Arc::clone(&self.inner),
            choice: Some(Arc::new(choice)),
        }
    }

    /// The numbers of a choice's samples in the whole index; `None`: it is one.
    #[must_use]
    pub fn numbers(&self) -> Option<&Numbers> {
        self.choice.as_ref().map(|choice| &choice.numbers)
    }

    /// The index that this is a choice of, or itself.
    #[must_use]
    pub fn whole(&self) -> Index {
        Index {
            inner: Arc::clone(&self.inner),
            choice: None,
        }
    }

    /// The numbers that samples of these numbers have in the whole index.
    ///
    /// # Errors
    /// `Invalid` for a number that is no sample.
    pub fn resolve(&self, numbers: Numbers) -> Result<Numbers> {
        let Some(choice) = &self.choice else {
            return Ok(numbers);
        };
        let of = |i: u64| choice.numbers.get(i).ok_or_else(|| self.no_sample(i));
        numbers.iter().map(of).collect()
    }

    /// This choice as an index of its own, which has no other object: what a file is written of. Itself, if it is one.
    ///
    /// # Errors
    /// `Corrupt` when the index is damaged.
    pub fn alone(&self) -> Result<Index> {
        if self.choice.is_none() {
            return Ok(self.clone());
        }
        let mut builder = IndexBuilder::new(self.root(), self.format());
        builder.options(self.options()).classes(self.classes());
        let mut objects: FxHashMap<u64, u64> = FxHashMap::default();
        let mut ranges = Vec::new();
        for i in 0..self.len() {
            let sample = self.sample(i)?;
            ranges.clear();
            for range in sample.ranges() {
                let new = match objects.get(&range.object) {
                    Some(&new) => new,
                    None => builder.object((&self.object(range.object)?).into())?,
                };
                objects.insert(range.object, new);
                ranges.push(ObjectRange { object: new, ..range });
            }
            builder.copy(&sample, &ranges, sample.crc32c)?;
        }
        builder.finish()
    }
}

/// Goes through the samples of a choice, and finds what it is called and needs.
struct Survey<'a> {
    whole: &'a Index,
    used: Used,
    /// The last object that was looked up, and its number.
    last: Option<(u64, u64)>,
    /// The block of keys that was read last, and where in it.
    block: Option<u64>,
    cursor: Cursor<'a>,
    digest: ContentDigest,
}

impl<'a> Survey<'a> {
    fn new(whole: &'a Index, digest: ContentDigest) -> Self {
        Self {
            whole,
            used: Used::default(),
            last: None,
            block: None,
            cursor: Cursor::default(),
            digest,
        }
    }

    #[inline]
    fn add(&mut self, id: u64) -> Result<()> {
        let sample = self.whole.sample(id)?;
        let mut ranges = sample.ranges();
        let first = self.renumbered(ranges.next().unwrap_or_default())?;
        self.digest.sample(&first, coded_label(sample.label));
        for range in ranges {
            let range = self.renumbered(range)?;
            self.digest.range(&range);
        }
        for (name, offset, length) in sample.fields().filter(|(name, ..)| !name.is_empty()) {
            self.digest.field(name, offset, length);
        }
        Ok(())
    }

    /// A range, with the number that its object has among those of the choice.
    #[inline]
    fn renumbered(&mut self, range: ObjectRange) -> Result<ObjectRange> {
        // Neighbours mostly lie in one object.
        let object = match self.last {
            Some((object, number)) if object == range.object => number,
            _ => self.look_up(range.object)?,
        };
        Ok(ObjectRange { object, ..range })
    }

    fn look_up(&mut self, object: u64) -> Result<u64> {
        let objects = self.whole.objects();
        let (number, is_new) = self.used.number(object, objects);
        if is_new {
            self.note(object)
                .ok_or_else(|| damaged(&format!("object {object} cannot be read")))?;
        }
        self.last = Some((object, number));
        Ok(number)
    }

    /// Adds an object to the digest. They mostly come in the order of their keys.
    fn note(&mut self, object: u64) -> Option<()> {
        let (block, nth) = (object / BLOCK, object % BLOCK);
        if self.block != Some(block) || self.cursor.nth() > nth {
            self.cursor.begin(self.whole.key_block(block)?)?;
            self.block = Some(block);
        }
        self.cursor.go(nth)?;
        let size = self.whole.at(Section::Sizes, object)?;
        let etag = etags::read(self.whole, object);
        self.digest.object(self.cursor.key()?, etag.as_deref(), size);
        Some(())
    }
}

/// Objects by the order of their first use.
#[derive(Default)]
struct Used {
    /// How many there are.
    count: u64,
    /// As long as they come in their order: which ones, a bit each. So long an object's number is how many come before it.
    bits: Vec<u64>,
    /// From then on: the number of each, plus 1; 0 for those that are not in use. Pages that nothing is written to take no memory.
    numbers: Option<Vec<u64>>,
}

impl Used {
    /// The number of an object of so many, and whether it had none before. The object must exist.
    fn number(&mut self, object: u64, objects: u64) -> (u64, bool) {
        let (word, bit) = ((object / 64) as usize, 1 << (object % 64));
        if self.numbers.is_none() {
            let is_next = word + 1 > self.bits.len() || (word + 1 == self.bits.len() && self.bits[word] < bit);
            if is_next {
                self.bits.resize(word + 1, 0);
                self.bits[word] |= bit;
                self.count += 1;
                return (self.count - 1, true);
            }
        }
        let bits = &mut self.bits;
        let numbers = self.numbers.get_or_insert_with(|| {
            let mut numbers = vec![0; usize::try_from(objects).unwrap_or(0)];
            let is_used = |object: &usize| bits[object / 64] & (1 << (object % 64)) != 0;
            let used = (0..64 * bits.len()).filter(is_used);
            used.zip(1..).for_each(|(object, number)| numbers[object] = number);
            *bits = Vec::new();
            numbers
        });
        let number = &mut numbers[object as usize];
        let is_new = *number == 0;
        if is_new {
            self.count += 1;
            *number = self.count;
        }
        (*number - 1, is_new)
    }
}

#[cfg(test)]
mod tests;
