//! Names, as the bucket says them: looks them up and lists directories, and keeps what it hears in the [tree](crate::tree).
//!
//! Who asks for a name that isn't known asks for the object by that key, and where there is none whether anything lies below it. A directory is listed as a whole. A program that
//! lists a directory and then looks at each file in it has asked once.

use crate::failure;
use crate::locked;
use crate::tree::{Ino, Kind, Listed, Look, Object, Tree, is_name};
use foreload_store::source::{Entries, ObjectMeta};
use foreload_store::{ErrorKind, Source};
use fuser::Errno;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What is asked of the bucket about names.
pub struct Names {
    source: Source,
    tree: Mutex<Tree>,
    timeout: Duration,
    /// Directories that are being listed: who asks meanwhile waits for the answer.
    listing: Mutex<FxHashMap<Ino, Arc<tokio::sync::Mutex<()>>>>,
    /// Questions that were asked: of single names, and of directories.
    asked: AtomicU64,
    listed: AtomicU64,
    /// Keys that can't be names here.
    unnamed: AtomicU64,
    /// How many names of a directory were asked for one by one.
    asked_in: Mutex<FxHashMap<Ino, u32>>,
}

/// So many names of one directory are several, and of so many directories they are counted.
pub(crate) const SEVERAL: u32 = 4;
const MOST_ASKED_IN: usize = 10_000;
/// Names that a page of a listing has.
const PAGE: usize = 1000;

/// What was asked of the bucket so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    /// About single names.
    pub names: u64,
    /// Directories that were listed.
    pub directories: u64,
    /// Keys that can't be names here.
    pub unnamed: u64,
}

/// A file's object, as the store says it.
#[must_use]
pub fn object_of(meta: &ObjectMeta) -> Object {
    Object {
        size: meta.size,
        etag: meta.etag.as_deref().map(Into::into),
        version: meta.version.as_deref().map(Into::into),
        modified: meta.modified,
    }
}

fn kind_of(meta: &ObjectMeta) -> Kind {
    Kind::File(object_of(meta))
}

impl Names {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(source: Source, tree: Tree, timeout: Duration) -> Self {
        Names {
            source,
            tree: Mutex::new(tree),
            timeout,
            listing: Mutex::default(),
            asked: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            unnamed: AtomicU64::new(0),
            asked_in: Mutex::default(),
        }
    }

    /// What is known.
    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        locked(&self.tree)
    }

    /// Where the names are from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What was asked so far.
    pub fn questions(&self) -> Questions {
        Questions {
            names: self.asked.load(Ordering::Relaxed),
            directories: self.listed.load(Ordering::Relaxed),
            unnamed: self.unnamed.load(Ordering::Relaxed),
        }
    }

    /// The entry by a name, which is asked for.
    ///
    /// # Errors
    /// `ENOENT`: there is none. Else what the bucket says.
    pub async fn look_up(&self, parent: Ino, name: &str) -> Result<Ino, Errno> {
        let known = self.tree().look(parent, name, Instant::now());
        match known {
            Look::Found(ino) => Ok(ino),
            Look::Missing => Err(Errno::ENOENT),
            Look::Unknown => self.look_again(parent, name).await,
        }
    }

    /// The same, whatever is known.
    ///
    /// # Errors
    /// As [`Names::look_up`].
    pub async fn look_again(&self, parent: Ino, name: &str) -> Result<Ino, Errno> {
        let now = Instant::now();
        let directory = self.tree().key(parent).ok_or(Errno::ENOENT)?;
        let key = joined(&directory, name);
        let kind = self.ask(&key).await?;
        let mut tree = self.tree();
        let found = tree.put_asked(parent, name, kind, now, Instant::now());
        // It may have been made, or deleted, from here meanwhile.
        let is_there = |ino: &Ino| !matches!(tree.kind(*ino, now), Some((Kind::Missing, _)) | None);
        found.filter(is_there).ok_or(Errno::ENOENT)
    }

    /// The entry by a key. Nothing is asked about what it lies in: where there is an object there are directories, and a listing of one may be long.
    ///
    /// # Errors
    /// `ENOENT`: there is none. Else what the bucket says.
    pub async fn find(self: &Arc<Self>, key: &str) -> Result<Ino, Errno> {
        let (directory, rest) = key.rsplit_once('/').unwrap_or(("", key));
        let at = self.directory(directory)?;
        match rest {
            "" if key.is_empty() => Ok(at),
            rest if is_name(rest) => {
                if self.tree().look(at, rest, Instant::now()) == Look::Unknown {
                    self.asked_in(at, SEVERAL);
                }
                self.look_up(at, rest).await
            }
            _ => Err(Errno::ENOENT),
        }
    }

    /// The directory by a key. Nothing is asked: where there is an object there are directories.
    ///
    /// # Errors
    /// `ENOENT`: there is none, as far as that is known.
    pub fn directory(&self, key: &str) -> Result<Ino, Errno> {
        let (mut tree, now) = (self.tree(), Instant::now());
        let mut at = crate::tree::ROOT;
        for part in key.split('/').filter(|_| !key.is_empty()) {
            at = match tree.look(at, part, now) {
                _ if !is_name(part) => return Err(Errno::ENOENT),
                Look::Found(ino) => ino,
                Look::Missing => return Err(Errno::ENOENT),
                Look::Unknown => tree.put(at, part, Kind::Directory, now).ok_or(Errno::ENOENT)?,
            };
        }
        Ok(at)
    }

    /// A name of a directory is about to be asked for. One that was listed before is listed again when as many were asked for as that takes requests: what was known of them has aged together.
    pub fn asks_in(self: &Arc<Self>, directory: Ino) {
        if let Some(count) = self.tree().was_listed(directory) {
            self.asked_in(directory, SEVERAL.max((count / PAGE) as u32));
        }
    }

    /// Who has asked for several names of a directory asks for more of them: it is listed meanwhile.
    fn asked_in(self: &Arc<Self>, directory: Ino, several: u32) {
        let mut asked = locked(&self.asked_in);
        if asked.len() > MOST_ASKED_IN {
            asked.clear();
        }
        let count = asked.entry(directory).or_default();
        *count += 1;
        if *count >= several {
            *count = 0;
            let names = Arc::clone(self);
            // Whoever asks for one of them hears himself what is wrong.
            tokio::spawn(async move { drop(names.list(directory).await) });
        }
    }

    /// What is there by a key.
    async fn ask(&self, key: &str) -> Result<Kind, Errno> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + self.timeout;
        match self.source.head(key, deadline).await {
            Ok(meta) => return Ok(kind_of(&meta)),
            // Of a directory on a disk it is said so, and a bucket that denies questions says the same of what it doesn't have.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {}
            Err(error) => return Err(failure::of_store(&error)),
        }
        let prefix = format!("{key}/");
        let is_any = tokio::time::timeout(self.timeout, self.source.is_any(&prefix)).await;
        match is_any.map_err(|_| self.timed_out(key))? {
            Ok(true) => Ok(Kind::Directory),
            Ok(false) => Ok(Kind::Missing),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Kind::Missing),
            Err(error) => Err(failure::of_store(&error)),
        }
    }

    fn timed_out(&self, key: &str) -> Errno {
        let (url, time) = (self.source.url_of(key), self.timeout);
        crate::log::line(format_args!("{url}: no answer within {time:?}"));
        Errno::EIO
    }

    /// What is in a directory, in the order of names.
    ///
    /// # Errors
    /// What the bucket says.
    pub async fn list(&self, directory: Ino) -> Result<Vec<Listed>, Errno> {
        let turn = Arc::clone(locked(&self.listing).entry(directory).or_default());
        let guard = turn.lock().await;
        let listed = self.list_in_turn(directory).await;
        drop(guard);
        let mut listing = locked(&self.listing);
        // Whoever else waits has it, too.
        if Arc::strong_count(&turn) <= 2 {
            listing.remove(&directory);
        }
        listed
    }

    async fn list_in_turn(&self, directory: Ino) -> Result<Vec<Listed>, Errno> {
        let (key, is_ours) = {
            let tree = self.tree();
            if let Some(listing) = tree.listing(directory, Instant::now()) {
                return Ok(listing);
            }
            (tree.key(directory).ok_or(Errno::ENOENT)?, tree.is_ours(directory))
        };
        self.listed.fetch_add(1, Ordering::Relaxed);
        let asked = Instant::now();
        let prefix = if key.is_empty() {
            String::new()
        } else {
            format!("{key}/")
        };
        let deadline = tokio::time::Instant::now() + self.timeout;
        let entries = tokio::time::timeout_at(deadline, self.source.list_level(&prefix)).await;
        let entries = match entries.map_err(|_| self.timed_out(&prefix))? {
            // A directory that was made here is there without the bucket knowing of it.
            Err(error) if is_ours && error.kind() == ErrorKind::NotFound => Ok(Entries::default()),
            answer => answer,
        };
        let entries = entries.map_err(|error| {
            let number = failure::of_store(&error);
            if number.code() == Errno::ENOENT.code() {
                crate::log::line(format_args!("{error}"));
            }
            number
        })?;
        let name = |key: &str| {
            let part = key.strip_prefix(prefix.as_str())?.trim_end_matches('/');
            let is_ours = directory == crate::tree::ROOT && part == crate::inner::CONTROL;
            if is_name(part) && !is_ours {
                return Some(part.to_owned());
            }
            // What stands for the directory itself is no entry of it.
            if !part.is_empty() {
                self.unnamed.fetch_add(1, Ordering::Relaxed);
            }
            None
        };
        let mut found: FxHashMap<String, Kind> = FxHashMap::default();
        for meta in &entries.objects {
            if let Some(name) = name(&meta.key) {
                // An object that ends in a slash stands for a directory.
                let kind = if meta.key.ends_with('/') {
                    Kind::Directory
                } else {
                    kind_of(meta)
                };
                found.insert(name, kind);
            }
        }
        // Where there are both, the directory is seen: what lies in it could not be reached otherwise.
        found.extend(
            entries
                .prefixes
                .iter()
                .filter_map(|prefix| Some((name(prefix)?, Kind::Directory))),
        );
        let now = Instant::now();
        Ok(self.tree().list(directory, found.into_iter().collect(), asked, now))
    }
}

pub(crate) fn joined(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        _ => format!("{directory}/{name}"),
    }
}
