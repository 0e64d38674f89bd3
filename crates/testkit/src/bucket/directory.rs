//! Buckets as the directories of a directory, objects as the files below them.
//!
//! Files that somebody else puts there are objects too. An ETag is a function of a file's size
//! and modification time, so it survives a restart of the server; what a file can't carry
//! (content type, user metadata, checksums) is remembered only while the server runs. Keys that
//! are no path (`a//b`, `../x`, a leading slash) are refused.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::content::Content;
use super::storage::{Checksum, Entry, Object};
use crate::draw;

/// Where writes are prepared before they are renamed into place; not a bucket.
const SCRATCH: &str = ".testkit-scratch";

struct Extra {
    etag: String,
    content_type: Option<String>,
    metadata: Vec<(String, String)>,
    checksum: Option<Checksum>,
}

/// A directory of buckets.
pub struct Directory {
    root: PathBuf,
    extras: Mutex<HashMap<PathBuf, Extra>>,
    writes: AtomicU64,
}

impl Directory {
    /// Uses (and makes) the directory.
    ///
    /// # Errors
    ///
    /// When it can't be made.
    pub fn new(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        Ok(Self {
            root: root.to_owned(),
            extras: Mutex::default(),
            writes: AtomicU64::new(0),
        })
    }

    /// All buckets.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn buckets(&self) -> io::Result<Vec<String>> {
        let names = children(&self.root)?.into_iter();
        Ok(names.filter(|(_, is_dir)| *is_dir).map(|(name, _)| name).collect())
    }

    /// Whether the bucket exists.
    #[must_use]
    pub fn has_bucket(&self, bucket: &str) -> bool {
        sound(bucket) && self.root.join(bucket).is_dir()
    }

    /// Makes a bucket.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn create_bucket(&self, bucket: &str) -> io::Result<()> {
        fs::create_dir_all(self.path(bucket, None)?)
    }

    /// Removes a bucket that holds no file.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn delete_bucket(&self, bucket: &str) -> io::Result<()> {
        fs::remove_dir_all(self.path(bucket, None)?)
    }

    /// The object, if there is one.
    ///
    /// # Errors
    ///
    /// When the file can't be read.
    pub fn get(&self, bucket: &str, key: &str) -> io::Result<Option<Object>> {
        let Ok(path) = self.path(bucket, Some(key)) else {
            return Ok(None);
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let etag = etag(&metadata);
        let mut object = Object {
            content: Content::File(Arc::new(file), metadata.len()),
            modified: modified(&metadata),
            content_type: None,
            metadata: Vec::new(),
            checksum: None,
            etag,
        };
        let extras = self.extras.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(extra) = extras.get(&path).filter(|extra| extra.etag == object.etag) {
            object.content_type.clone_from(&extra.content_type);
            object.metadata.clone_from(&extra.metadata);
            object.checksum.clone_from(&extra.checksum);
        }
        Ok(Some(object))
    }

    /// Writes an object and returns its ETag.
    ///
    /// # Errors
    ///
    /// When the file can't be written or the key is no path.
    pub fn put(&self, bucket: &str, key: &str, object: Object) -> io::Result<String> {
        let path = self.path(bucket, Some(key))?;
        let scratch = self.root.join(SCRATCH);
        fs::create_dir_all(&scratch)?;
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let draft = scratch.join(format!("{}-{number}", std::process::id()));
        fs::write(&draft, object.content.to_bytes()?)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(&draft, &path)?;
        let etag = etag(&fs::metadata(&path)?);
        let Object {
            content_type,
            metadata,
            checksum,
            ..
        } = object;
        let extra = Extra {
            etag: etag.clone(),
            content_type,
            metadata,
            checksum,
        };
        self.extras
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(path, extra);
        Ok(etag)
    }

    /// Removes an object; its directories stay.
    ///
    /// # Errors
    ///
    /// When the file can't be removed.
    pub fn delete(&self, bucket: &str, key: &str) -> io::Result<()> {
        let Ok(path) = self.path(bucket, Some(key)) else {
            return Ok(());
        };
        match fs::remove_file(path) {
            Err(error) if !absent(&error) && error.kind() != io::ErrorKind::IsADirectory => Err(error),
            _ => Ok(()),
        }
    }

    /// Up to `limit` entries in key order after `after`, with the prefix.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn page(&self, bucket: &str, prefix: &str, after: &str, limit: usize) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        if self.has_bucket(bucket) {
            let walk = Walk { prefix, after, limit };
            walk.visit(&self.root.join(bucket), "", &mut entries)?;
        }
        Ok(entries)
    }

    fn path(&self, bucket: &str, key: Option<&str>) -> io::Result<PathBuf> {
        let parts = std::iter::once(bucket).chain(key.into_iter().flat_map(|key| key.split('/')));
        let mut path = self.root.clone();
        for part in parts {
            if !sound(part) {
                let message = format!("{bucket}/{} is not a path", key.unwrap_or_default());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            path.push(part);
        }
        Ok(path)
    }
}

struct Walk<'a> {
    prefix: &'a str,
    after: &'a str,
    limit: usize,
}

impl Walk<'_> {
    /// Visits a directory in key order. A directory sorts as its name with a slash, because
    /// `a.txt` comes before `a/b`.
    fn visit(&self, path: &Path, base: &str, entries: &mut Vec<Entry>) -> io::Result<()> {
        for (name, is_dir) in children(path)? {
            if entries.len() == self.limit {
                return Ok(());
            }
            let key = format!("{base}{name}{}", if is_dir { "/" } else { "" });
            if is_dir {
                let within = key.starts_with(self.prefix) || self.prefix.starts_with(&key);
                let behind = key.as_str() < self.after && !self.after.starts_with(&key);
                if within && !behind {
                    self.visit(&path.join(&name), &key, entries)?;
                }
            } else if key.starts_with(self.prefix) && key.as_str() > self.after {
                let metadata = fs::metadata(path.join(&name))?;
                entries.push(Entry {
                    size: metadata.len(),
                    etag: etag(&metadata),
                    modified: modified(&metadata),
                    key,
                });
            }
        }
        Ok(())
    }
}

/// The children with UTF-8 names, in key order, without the scratch directory.
fn children(path: &Path) -> io::Result<Vec<(String, bool)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let is_dir = entry.path().is_dir();
        if let Ok(name) = entry.file_name().into_string()
            && name != SCRATCH
        {
            names.push((name, is_dir));
        }
    }
    names.sort_by_cached_key(|(name, is_dir)| format!("{name}{}", if *is_dir { "/" } else { "" }));
    Ok(names)
}

fn sound(part: &str) -> bool {
    !part.is_empty() && part != "." && part != ".." && part != SCRATCH && !part.contains(['/', '\0'])
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn modified(metadata: &fs::Metadata) -> SystemTime {
    metadata.modified().unwrap_or(UNIX_EPOCH)
}

fn etag(metadata: &fs::Metadata) -> String {
    let time = modified(metadata).duration_since(UNIX_EPOCH).unwrap_or_default();
    let hash = draw::mix(metadata.len() ^ draw::mix(time.as_nanos() as u64));
    format!("{hash:016x}{:016x}", draw::mix(hash))
}
