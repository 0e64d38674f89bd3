//! Some samples of an index, as an index of their own.

use super::{Index, IndexBuilder};
use crate::Result;
use rustc_hash::FxHashMap;

impl Index {
    /// The samples `chosen`, in that order; objects that none of them needs are left out. Root, classes and ranges stay, so caches serve both.
    ///
    /// # Errors
    /// `Invalid` for a number that is no sample.
    pub fn select(&self, chosen: &[u64]) -> Result<Index> {
        let mut builder = IndexBuilder::new(self.root(), self.format());
        builder.options(self.options()).classes(self.classes());
        let mut objects: FxHashMap<u64, u64> = FxHashMap::default();
        for &id in chosen {
            let sample = self.sample(id)?;
            let object = match objects.get(&sample.object) {
                Some(&object) => object,
                None => {
                    let found = self.object(sample.object)?;
                    let object = builder.object((&found).into())?;
                    objects.insert(sample.object, object);
                    object
                }
            };
            builder.copy(&sample, object, sample.crc32c)?;
        }
        builder.finish()
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
    }
}
