//! Some samples of an index, as an index of their own.

use super::{Index, IndexBuilder, ObjectRange};
use crate::Result;
use rustc_hash::FxHashMap;

/// A choice may be ended after so many samples: some 50 ms.
const ASK_EVERY: u64 = 1 << 16;

impl Index {
    /// The samples `chosen`, in that order; objects that none of them needs are left out. Root, classes and ranges stay, so caches serve both.
    ///
    /// # Errors
    /// `Invalid` for a number that is no sample.
    pub fn select(&self, chosen: &[u64]) -> Result<Index> {
        Ok(self.select_while(chosen, &mut |_| true)?.expect("nobody ends it early"))
    }

    /// As [`Index::select`], as long as `goes_on`, which is asked now and then with the samples done; `None`: it was ended.
    ///
    /// # Errors
    /// As [`Index::select`].
    pub fn select_while(&self, chosen: &[u64], goes_on: &mut dyn FnMut(u64) -> bool) -> Result<Option<Index>> {
        let mut builder = IndexBuilder::new(self.root(), self.format());
        builder.options(self.options()).classes(self.classes());
        let mut objects: FxHashMap<u64, u64> = FxHashMap::default();
        let mut ranges = Vec::new();
        // Neighbours mostly lie in one object.
        let mut last = (u64::MAX, 0);
        for (&id, done) in chosen.iter().zip(0..) {
            if done % ASK_EVERY == 0 && !goes_on(done) {
                return Ok(None);
            }
            let sample = self.sample(id)?;
            ranges.clear();
            for range in sample.ranges() {
                if range.object != last.0 {
                    let new = match objects.get(&range.object) {
                        Some(&new) => new,
                        None => builder.object((&self.object(range.object)?).into())?,
                    };
                    objects.insert(range.object, new);
                    last = (range.object, new);
                }
                ranges.push(ObjectRange {
                    object: last.1,
                    ..range
                });
            }
            builder.copy(&sample, &ranges, sample.crc32c)?;
        }
        builder.finish().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::index::NewObject;

    #[test]
    fn a_selection_keeps_ranges_labels_and_content_keys() {
        let mut builder = IndexBuilder::new("s3://b/d", Format::Folder);
        builder.classes(["a", "b"]);
        for i in 0..10u64 {
            let key = format!("a/{i}.jpg");
            builder
                .whole_object(
                    NewObject {
                        key: &key,
                        size: 100 + i,
                        etag: Some("\"e\""),
                        version: None,
                    },
                    Some((i % 2) as i64),
                    Some(i as u32),
                )
                .expect("added");
        }
        let whole = builder.finish().expect("built");
        let some = whole.select(&[7, 2, 2]).expect("selected");
        assert_eq!((some.len(), some.objects(), some.classes()), (3, 2, vec!["a", "b"]));
        for (new, old) in [(0, 7), (1, 2), (2, 2)] {
            assert_eq!(some.sample_key(new).expect("key"), whole.sample_key(old).expect("key"));
            assert_eq!(
                (some.length(new), some.label(new), some.crc32c(new)),
                (whole.length(old), whole.label(old), whole.crc32c(old))
            );
        }
        assert_ne!(some.digest(), whole.digest());
        assert!(whole.select(&[10]).is_err());
        let mut asked = Vec::new();
        let mut once = |done| {
            asked.push(done);
            asked.len() < 2
        };
        let many = vec![0; 3 << 16];
        assert!(whole.select_while(&many, &mut once).expect("no error").is_none());
        assert_eq!(asked, [0, 1 << 16]);
    }
}
