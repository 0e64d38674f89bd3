//! Writes objects: whole, or in parts that go up side by side; copies them, and deletes them.
//!
//! object_store does it, over the connections and with the credentials that a [`Source`] has. An object is there when all of it is: before that nobody sees any of it, and what was
//! there stays. Nothing is written over a part of an object, for stores can't.

use super::cloud::AnyOrder;
use super::foreign;
use super::retry::retrying;
use super::{ObjectMeta, Source, Store};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{MultipartId, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, PutResult};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

/// What stores take as parts of one object, at most.
pub const MOST_PARTS: u64 = 10_000;
/// What stores copy in one request, at most.
const MOST_COPIED: u64 = 5 << 30;

/// Writes below a source's root; clones share its connections.
#[derive(Debug, Clone)]
pub struct Writer {
    source: Source,
    store: Arc<dyn ObjectStore>,
    /// The same, if it takes parts in any order.
    any_order: Option<Arc<dyn AnyOrder>>,
    /// What keys begin with in that store: empty, or ending in a slash.
    prefix: Arc<str>,
    timeout: Duration,
}

/// An object that goes up in parts. Dropped, nothing becomes of it, and its parts may stay in the bucket: [`Upload::abort`] removes them.
#[derive(Debug)]
pub struct Upload {
    writer: Writer,
    key: String,
    to: To,
    parts: JoinSet<object_store::Result<Option<(usize, PartId)>>>,
    /// What the store calls those that have arrived, where it says so.
    arrived: Vec<(usize, PartId)>,
    bytes: u64,
}

#[derive(Debug)]
enum To {
    InOrder(Box<dyn MultipartUpload>),
    AnyOrder(Arc<dyn AnyOrder>, Path, MultipartId),
}

impl Source {
    /// Who writes below the same root. Nothing is sent. `timeout`: how long a request may be repeated.
    ///
    /// # Errors
    /// `Invalid`: it can't be written to.
    pub fn writer(&self, timeout: Duration) -> Result<Writer> {
        let (store, any_order, prefix): (Arc<dyn ObjectStore>, _, _) = match &self.store {
            Store::Bucket(bucket) => {
                let (store, prefix) = bucket.clone().writing_store(timeout)?;
                (Arc::clone(&store) as _, Some(store), prefix)
            }
            Store::Directory(directory) => (directory.writing_store()?, None, String::new()),
        };
        Ok(Writer {
            source: self.clone(),
            store,
            any_order,
            prefix: prefix.into(),
            timeout,
        })
    }
}

impl Writer {
    fn path(&self, key: &str) -> Result<Path> {
        let full = format!("{}{key}", self.prefix);
        let path = Path::parse(&full).ok().filter(|path| path.as_ref() == full);
        path.ok_or_else(|| self.named(Error::invalid("an object can't have that name"), key))
    }

    /// Whether an object can have this key: control characters, say, are no part of one that every store takes.
    #[must_use]
    pub fn takes(&self, key: &str) -> bool {
        self.path(key).is_ok()
    }

    fn named(&self, error: Error, key: &str) -> Error {
        error.with_object(self.source.url_of(key))
    }

    fn failed(&self, step: &str, key: &str) -> impl Fn(object_store::Error) -> Error {
        move |error| self.named(foreign::error(step, error), key)
    }

    /// What an object is that was written just now.
    async fn written(&self, key: &str, bytes: u64, result: PutResult) -> Result<ObjectMeta> {
        // A file's version is made of what the file system says.
        if self.source.is_local() {
            return self.source.head(key, Instant::now() + self.timeout).await;
        }
        Ok(ObjectMeta {
            key: key.to_owned(),
            size: bytes,
            etag: result.e_tag,
            version: result.version,
            modified: Some(SystemTime::now()),
        })
    }

    /// Writes a whole object in one request.
    ///
    /// # Errors
    /// `Invalid`, `Denied`, `Unavailable`, `Timeout`: there is what was there before.
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<ObjectMeta> {
        let (path, len) = (self.path(key)?, bytes.len() as u64);
        let put = self.store.put(&path, PutPayload::from_bytes(bytes)).await;
        self.written(key, len, put.map_err(self.failed("writing", key))?).await
    }

    /// Whether parts may be sent in any order.
    #[must_use]
    pub fn takes_any_order(&self) -> bool {
        self.any_order.is_some()
    }

    /// Begins an object that goes up in parts.
    ///
    /// # Errors
    /// As [`Writer::put`].
    pub async fn begin(&self, key: &str) -> Result<Upload> {
        let (path, failed) = (self.path(key)?, self.failed("beginning to write", key));
        let to = match &self.any_order {
            Some(store) => {
                let id = store.create_multipart(&path).await.map_err(failed)?;
                To::AnyOrder(Arc::clone(store), path, id)
            }
            None => To::InOrder(self.store.put_multipart(&path).await.map_err(failed)?),
        };
        Ok(Upload {
            to,
            arrived: Vec::new(),
            writer: self.clone(),
            key: key.to_owned(),
            parts: JoinSet::new(),
            bytes: 0,
        })
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As [`Writer::put`]; `NotFound` where the store says so: many don't.
    pub async fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        match &self.source.store {
            Store::Bucket(bucket) if bucket.lists_pages() => {
                let deadline = Instant::now() + self.timeout;
                let deleted = retrying(self.source.retry, deadline, || bucket.delete(key, deadline)).await;
                deleted.map_err(|error| self.named(error, key))
            }
            _ => self.store.delete(&path).await.map_err(self.failed("deleting", key)),
        }
    }

    /// Removes what stands for an empty directory, if anything does: an object whose key ends in a slash, or the directory.
    ///
    /// # Errors
    /// As [`Writer::put`].
    pub async fn delete_marker(&self, key: &str) -> Result<()> {
        let (deadline, marker) = (Instant::now() + self.timeout, format!("{key}/"));
        let deleted = retrying(self.source.retry, deadline, || async {
            match &self.source.store {
                Store::Bucket(bucket) if bucket.lists_pages() => bucket.delete(&marker, deadline).await,
                Store::Bucket(_) => Ok(()),
                Store::Directory(directory) => directory.remove_directory(key, deadline).await,
            }
        });
        match deleted.await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.named(error, key)),
            _ => Ok(()),
        }
    }

    /// Whether an object of so many bytes can be renamed: what can't be copied in one request has to be written again.
    #[must_use]
    pub fn renames(&self, bytes: u64) -> bool {
        self.source.is_local() || bytes <= MOST_COPIED
    }

    /// Gives an object another name, and what it is by that. In a bucket it is copied there and then deleted: who looks in between sees both.
    ///
    /// # Errors
    /// As [`Writer::put`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<ObjectMeta> {
        let (old, new, step) = (self.path(from)?, self.path(to)?, format!("renaming it to {to}"));
        let head = || self.source.head(to, Instant::now() + self.timeout);
        if self.source.is_local() {
            self.store.rename(&old, &new).await.map_err(self.failed(&step, from))?;
            return head().await;
        }
        self.store.copy(&old, &new).await.map_err(self.failed(&step, from))?;
        // What can't be looked at isn't deleted where it was.
        let meta = head().await?;
        self.delete(from).await?;
        Ok(meta)
    }
}

impl Upload {
    /// Sends this part, the first one of number 0, beside those that are under way; `room` is dropped when it has arrived. All but the last have 5 MiB at least. Where the store takes
    /// no other order ([`Writer::takes_any_order`]) the next part is sent.
    pub fn part(&mut self, nth: usize, bytes: Bytes, room: impl Send + 'static) {
        self.bytes += bytes.len() as u64;
        let bytes = PutPayload::from_bytes(bytes);
        match &mut self.to {
            To::InOrder(upload) => {
                let sent = upload.put_part(bytes);
                self.parts.spawn(async move {
                    let sent = sent.await;
                    drop(room);
                    sent.map(|()| None)
                });
            }
            To::AnyOrder(store, path, id) => {
                let (store, path, id) = (Arc::clone(store), path.clone(), id.clone());
                self.parts.spawn(async move {
                    let sent = store.put_part(&path, &id, nth, bytes).await;
                    drop(room);
                    sent.map(|part| Some((nth, part)))
                });
            }
        }
    }

    /// Whether the parts that have arrived so far did.
    ///
    /// # Errors
    /// As [`Writer::put`]: one of them failed, and the object can't be completed any more.
    pub fn arrived(&mut self) -> Result<()> {
        while let Some(ended) = self.parts.try_join_next() {
            self.well(ended)?;
        }
        Ok(())
    }

    fn well(&mut self, ended: Result<object_store::Result<Option<(usize, PartId)>>, JoinError>) -> Result<()> {
        let bug = |why| Error::new(ErrorKind::Bug, format!("a part was given up: {why}"));
        let failed = self.writer.failed("writing a part", &self.key);
        let arrived = ended.map_err(bug)?.map_err(failed)?;
        self.arrived.extend(arrived);
        Ok(())
    }

    async fn all(&mut self) -> Result<()> {
        while let Some(ended) = self.parts.join_next().await {
            self.well(ended)?;
        }
        Ok(())
    }

    /// Waits for all parts, and makes them one object; what it is then.
    ///
    /// # Errors
    /// As [`Writer::put`]. The parts are removed, as far as the store answers.
    pub async fn complete(mut self) -> Result<ObjectMeta> {
        if let Err(error) = self.all().await {
            self.abort().await;
            return Err(error);
        }
        match self.made().await {
            Ok(result) => self.writer.written(&self.key, self.bytes, result).await,
            Err(error) => {
                let error = self.writer.failed("completing what was written", &self.key)(error);
                self.abort().await;
                Err(error)
            }
        }
    }

    async fn made(&mut self) -> object_store::Result<PutResult> {
        match &mut self.to {
            To::InOrder(upload) => upload.complete().await,
            To::AnyOrder(store, path, id) => {
                self.arrived.sort_unstable_by_key(|(nth, _)| *nth);
                if !self.arrived.iter().map(|(nth, _)| *nth).eq(0..self.arrived.len()) {
                    // Never without one of them.
                    return Err(object_store::Error::Generic {
                        store: "parts",
                        source: "a part is missing, or there are two of it".into(),
                    });
                }
                let parts = std::mem::take(&mut self.arrived).into_iter().map(|(_, part)| part);
                store.complete_multipart(path, id, parts.collect()).await
            }
        }
    }

    /// Nothing becomes of it: its parts are removed, as far as the store answers.
    pub async fn abort(mut self) {
        self.parts.shutdown().await;
        // A store that doesn't answer keeps them; its rules for incomplete uploads remove them.
        let _ = match &mut self.to {
            To::InOrder(upload) => upload.abort().await,
            To::AnyOrder(store, path, id) => store.abort_multipart(path, id).await,
        };
    }
}
