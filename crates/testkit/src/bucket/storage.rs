//! What the server holds: a writable layer (memory or a directory) over read-only synthetic sets.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::content::Content;
use super::directory::Directory;
use super::synthetic::Set;

/// A checksum as stored with an object: the header's algorithm suffix and its base64 value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// `crc32`, `crc32c`, `crc64nvme`, `sha1` or `sha256`.
    pub algorithm: String,
    /// The value as in the header (`base64`, or `base64-N` for a multipart composite).
    pub value: String,
}

/// An object with all that a GET tells about it.
#[derive(Clone, Debug)]
pub struct Object {
    /// The bytes.
    pub content: Content,
    /// The ETag without its quotes.
    pub etag: String,
    /// When it was written.
    pub modified: SystemTime,
    /// `Content-Type` as given by PUT.
    pub content_type: Option<String>,
    /// `x-amz-meta-*` and other headers that a PUT stores, lower case.
    pub metadata: Vec<(String, String)>,
    /// The checksum given with the PUT.
    pub checksum: Option<Checksum>,
}

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The size in bytes.
    pub size: u64,
    /// The ETag without its quotes.
    pub etag: String,
    /// When it was written.
    pub modified: SystemTime,
}

type Memory = BTreeMap<String, BTreeMap<String, Object>>;

enum Writable {
    Memory(Mutex<Memory>),
    Directory(Directory),
}

/// All buckets of a server.
pub struct Storage {
    writable: Writable,
    sets: Vec<Set>,
    /// Versions of synthetic objects that were touched, by bucket and key.
    versions: Mutex<HashMap<(String, String), u64>>,
}

/// A poisoned lock means that a test panicked elsewhere; the data is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Storage {
    /// Storage in the directory, or in memory without one, over the sets.
    #[must_use]
    pub fn new(directory: Option<Directory>, sets: Vec<Set>) -> Self {
        let writable = match directory {
            Some(directory) => Writable::Directory(directory),
            None => Writable::Memory(Mutex::default()),
        };
        Self {
            writable,
            sets,
            versions: Mutex::default(),
        }
    }

    fn version(&self, bucket: &str, key: &str) -> u64 {
        let versions = lock(&self.versions);
        if versions.is_empty() {
            return 0;
        }
        versions.get(&(bucket.to_owned(), key.to_owned())).copied().unwrap_or(0)
    }

    /// All buckets, sorted.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn buckets(&self) -> io::Result<Vec<String>> {
        let mut names = match &self.writable {
            Writable::Memory(memory) => lock(memory).keys().cloned().collect(),
            Writable::Directory(directory) => directory.buckets()?,
        };
        names.extend(self.sets.iter().map(|set| set.bucket().to_owned()));
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Whether the bucket exists.
    #[must_use]
    pub fn has_bucket(&self, bucket: &str) -> bool {
        self.sets.iter().any(|set| set.bucket() == bucket)
            || match &self.writable {
                Writable::Memory(memory) => lock(memory).contains_key(bucket),
                Writable::Directory(directory) => directory.has_bucket(bucket),
            }
    }

    /// Makes a bucket; false when it was there.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn create_bucket(&self, bucket: &str) -> io::Result<bool> {
        let new = !self.has_bucket(bucket);
        match &self.writable {
            Writable::Memory(memory) => {
                lock(memory).entry(bucket.to_owned()).or_default();
            }
            Writable::Directory(directory) => directory.create_bucket(bucket)?,
        }
        Ok(new)
    }

    /// Removes an empty bucket.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn delete_bucket(&self, bucket: &str) -> io::Result<()> {
        match &self.writable {
            Writable::Memory(memory) => {
                lock(memory).remove(bucket);
                Ok(())
            }
            Writable::Directory(directory) => directory.delete_bucket(bucket),
        }
    }

    /// The object, if there is one.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn get(&self, bucket: &str, key: &str) -> io::Result<Option<Object>> {
        let written = match &self.writable {
            Writable::Memory(memory) => lock(memory).get(bucket).and_then(|objects| objects.get(key)).cloned(),
            Writable::Directory(directory) => directory.get(bucket, key)?,
        };
        Ok(written.or_else(|| self.synthetic(bucket, key, self.version(bucket, key))))
    }

    /// The next version of a synthetic object, which nobody has seen yet; for the fault `changed`.
    #[must_use]
    pub fn next_version(&self, bucket: &str, key: &str) -> Option<Object> {
        self.synthetic(bucket, key, self.version(bucket, key) + 1)
    }

    fn synthetic(&self, bucket: &str, key: &str, version: u64) -> Option<Object> {
        let mut sets = self.sets.iter().filter(|set| set.bucket() == bucket);
        sets.find_map(|set| set.object(key, version))
    }

    /// Writes an object and returns its ETag.
    ///
    /// # Errors
    ///
    /// When the directory can't be written, or can't hold this key.
    pub fn put(&self, bucket: &str, key: &str, object: Object) -> io::Result<String> {
        match &self.writable {
            Writable::Memory(memory) => {
                let etag = object.etag.clone();
                let mut memory = lock(memory);
                memory
                    .entry(bucket.to_owned())
                    .or_default()
                    .insert(key.to_owned(), object);
                Ok(etag)
            }
            Writable::Directory(directory) => directory.put(bucket, key, object),
        }
    }

    /// Removes an object; nothing happens when there is none, as in S3.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn delete(&self, bucket: &str, key: &str) -> io::Result<()> {
        match &self.writable {
            Writable::Memory(memory) => {
                if let Some(objects) = lock(memory).get_mut(bucket) {
                    objects.remove(key);
                }
                Ok(())
            }
            Writable::Directory(directory) => directory.delete(bucket, key),
        }
    }

    /// Gives a synthetic object its next version; false when there is no such object.
    #[must_use]
    pub fn touch(&self, bucket: &str, key: &str) -> bool {
        let known = self.synthetic(bucket, key, 0).is_some();
        if known {
            *lock(&self.versions)
                .entry((bucket.to_owned(), key.to_owned()))
                .or_default() += 1;
        }
        known
    }

    /// Up to `limit` entries in key order after `after`, with the prefix.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn page(&self, bucket: &str, prefix: &str, after: &str, limit: usize) -> io::Result<Vec<Entry>> {
        let mut entries = match &self.writable {
            Writable::Memory(memory) => memory_page(&lock(memory), bucket, prefix, after, limit),
            Writable::Directory(directory) => directory.page(bucket, prefix, after, limit)?,
        };
        for set in self.sets.iter().filter(|set| set.bucket() == bucket) {
            let version = |key: &str| self.version(bucket, key);
            entries.extend(set.page(prefix, after, limit, version));
        }
        // The sort is stable, so a written object hides the synthetic one of its key.
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        entries.dedup_by(|b, a| a.key == b.key);
        entries.truncate(limit);
        Ok(entries)
    }
}

fn memory_page(memory: &Memory, bucket: &str, prefix: &str, after: &str, limit: usize) -> Vec<Entry> {
    let Some(objects) = memory.get(bucket) else {
        return Vec::new();
    };
    let from = if prefix > after {
        Bound::Included(prefix)
    } else {
        Bound::Excluded(after)
    };
    objects
        .range::<str, _>((from, Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(prefix))
        .take(limit)
        .map(|(key, object)| Entry {
            key: key.clone(),
            size: object.content.size(),
            etag: object.etag.clone(),
            modified: object.modified,
        })
        .collect()
}
