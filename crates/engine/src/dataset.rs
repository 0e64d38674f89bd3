//! An opened data set: its index and the source of its bytes.

use crate::calls::{Open, Progress};
use crate::disk::{self, DiskSettings};
use crate::env;
use crate::list::List;
use crate::memory;
use crate::protocol::Trouble;
use crate::slots::Shared;
use crate::sync::Mutex;
use foreload_plan::Digest;
use foreload_plan::catalog::{Catalog, MOST_RANGES, Place};
use foreload_store::format::{self, BuildOptions, Changes, Format, Step};
use foreload_store::index::{MAX_RANGES, ObjectRange, ObjectRef, bare_etag, content_key};
use foreload_store::spool::Room;
use foreload_store::{Credentials, ErrorKind, Index, Source, SourceOptions, Spool, source};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// A data set, opened.
pub struct Dataset {
    /// What it was opened with.
    pub open: Open,
    /// Samples, objects, ranges, labels.
    pub index: Index,
    /// Where the bytes are.
    pub source: Source,
    /// The index for clients to map; of a choice, the one that it is of, and its list.
    pub shared: Arc<Shared>,
    /// Which samples of the index it is, for clients to map; `None`: all.
    pub list: Option<List>,
    /// Where the index came from.
    pub origin: &'static str,
    /// What an update found.
    pub changes: Option<Changes>,
    /// ETag of the saved index that was read.
    pub index_etag: Option<String>,
    /// The file in the cache directory that keeps its index.
    pub kept: RefCell<Option<Kept>>,
    /// What was read of its shards to make the index.
    pub spool: Option<Arc<Spool>>,
    /// When its objects were last seen to be those of the index.
    pub seen: Cell<Option<Instant>>,
    /// ETags that objects had when the first part of one was read, of which the index has none.
    pub pins: Arc<Mutex<FxHashMap<u64, String>>>,
}

/// A file that keeps an index, as it was when it was read or written: its file system, number, bytes and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    path: PathBuf,
    is: (u64, u64, u64, i64, i64),
}

impl Kept {
    /// That of a data set, unless its index is a saved one.
    async fn of(open: &Open, path: &Path) -> Option<Self> {
        if open.index.is_some() {
            return None;
        }
        Kept::at(path).await
    }

    /// As it is now.
    async fn at(path: &Path) -> Option<Self> {
        let found = tokio::fs::metadata(path).await.ok()?;
        let is = (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec());
        Some(Kept {
            path: path.to_owned(),
            is,
        })
    }
}

/// What opening a data set comes to.
struct Found {
    index: Index,
    origin: &'static str,
    changes: Option<Changes>,
    index_etag: Option<String>,
    kept: Option<Kept>,
    spool: Option<Spool>,
}

/// Objects that are looked at where a data set is opened by an index that was made before: in a bucket, a request each, all at the same time.
const LOOKS: u64 = 16;
/// For that long it isn't done again, as where all ranks of a node open it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// Files are looked at for so long: some hundred thousand of a local disk.
const LOOK_FILES: Duration = Duration::from_millis(250);
const LOOK_SWEEPS: u64 = 64;

/// Told how far a long call is; only the latest step counts.
pub type Reporter = tokio::sync::watch::Sender<Progress>;

/// The plan's view of an index.
pub struct IndexCatalog {
    /// The index.
    pub index: Index,
    /// Longer samples, which no memory can hold, are empty to the plan: nothing is fetched or evicted for them.
    pub most_bytes: u64,
}

/// The object of samples that the index places wrongly.
pub const NOWHERE: u64 = u64::MAX;

const _: () = assert!(
    MAX_RANGES <= MOST_RANGES as u64,
    "the plan takes all ranges that an index may have"
);

impl Catalog for IndexCatalog {
    fn samples(&self) -> u64 {
        self.index.len()
    }

    fn place(&self, sample: u64) -> Place {
        if self.index.is_several(sample) && self.index.length(sample) > 0 {
            // Their places are looked up when they are loaded: there may be hundreds.
            let len = self.index.length(sample);
            return Place {
                object: self.index.object_of(sample),
                offset: 0,
                len: if len > self.most_bytes { 0 } else { len },
            };
        }
        match self.index.sample(sample) {
            Ok(found) if found.length > self.most_bytes => Place {
                object: found.object,
                offset: found.offset,
                len: 0,
            },
            Ok(found) => Place {
                object: found.object,
                offset: found.offset,
                len: found.length,
            },
            // A byte of an object that doesn't exist: nothing of length 0 is ever fetched, and this is to fail.
            Err(_) => Place {
                object: NOWHERE,
                offset: 0,
                len: 1,
            },
        }
    }

    fn shares_objects(&self) -> bool {
        self.index.shares_objects()
    }

    fn is_several(&self, sample: u64) -> bool {
        self.index.is_several(sample)
    }

    fn ranges(&self, sample: u64) -> Vec<Place> {
        let place = |ObjectRange { object, offset, length }| Place {
            object,
            offset,
            len: length,
        };
        match self.index.sample(sample) {
            Ok(found) => found.ranges().map(place).collect(),
            Err(_) => vec![Place {
                object: NOWHERE,
                offset: 0,
                len: self.place(sample).len,
            }],
        }
    }
}

/// The key of a block in the disk tiers, the first sample of which is this one, in a store ([`Source::store`]).
#[must_use]
pub fn block_key(store: &str, index: &Index, first: u64, block: Place) -> Option<[u8; 16]> {
    if index.is_several(first) {
        return index.sample_key(store, first).ok();
    }
    let range = block.offset..block.offset + block.len;
    Some(content_key(
        store,
        index.root(),
        &index.object(block.object).ok()?,
        range,
    ))
}

impl Dataset {
    /// An object.
    ///
    /// # Errors
    /// What the index says of an object that it doesn't have, or why it places `sample` nowhere.
    pub fn object(&self, object: u64, sample: Option<u64>) -> Result<ObjectRef, Trouble> {
        if let Some(sample) = sample.filter(|_| object == NOWHERE) {
            self.index.sample(sample).map_err(|error| trouble(&error))?;
        }
        self.index.object(object).map_err(|error| trouble(&error))
    }

    /// Opens it: from a saved index if there is one, otherwise by listing; saves a new index in `cache_dir`.
    ///
    /// # Errors
    /// [`Trouble`] with what the store said.
    pub async fn open(open: Open, cache_dir: &Path, room: Arc<Room>, report: Reporter) -> Result<Self, Trouble> {
        assert!(
            crate::env::panic_at().is_none_or(|url| url != open.url),
            "FORELOAD_UNSTABLE_PANIC"
        );
        let options = source_options(&open);
        let Found {
            index,
            origin,
            changes,
            index_etag,
            kept,
            spool,
        } = find_index(&open, &options, cache_dir, room, report).await?;
        // The root is what the index says: the URL may name shards by a pattern, or a manifest.
        let source = Source::open(index.root(), &options).map_err(|e| trouble(&e))?;
        let shared = Arc::new(shared(&index)?);
        Ok(Dataset {
            open,
            index,
            source,
            shared,
            list: None,
            origin,
            changes,
            index_etag,
            kept: RefCell::new(kept),
            spool: spool.map(Arc::new),
            seen: Cell::new((origin == "listed").then(Instant::now)),
            pins: Arc::default(),
        })
    }

    /// Looks at its objects, for somebody who opens it by an index that was made before: what lies in memory and on disks would be taken for what was
    /// written since, without a request that could notice. At as many files as there is time for, and at some objects of a bucket: who writes a data
    /// set anew mostly writes all of it.
    ///
    /// # Errors
    /// `changed`, with the object and what helps. What the source has to say of itself is left to the first fetch.
    pub async fn look(&self) -> Result<(), Trouble> {
        let is_seen = self.seen.get().is_some_and(|at| at.elapsed() < LOOK_EVERY);
        let changed = match self.source.is_local() {
            true => futures::future::join(self.look_at_manifest(), self.look_at_files()).await,
            false if is_seen => (None, None),
            false => futures::future::join(self.look_at_manifest(), self.look_at_some()).await,
        };
        let Some(url) = changed.0.or_else(|| Some(self.source.url_of(&changed.1?))) else {
            self.seen.set(Some(Instant::now()));
            return Ok(());
        };
        // An index is of one format. Who named one is told elsewhere how to write another.
        let remedy = match (&self.open.index, self.open.format.as_str()) {
            (Some(_), _) => String::new(),
            (None, "" | "auto") => ": open or wrap it with refresh=True, or run `foreload index --update`".into(),
            (None, format) => {
                format!(": open or wrap it with refresh=True, or run `foreload index --update --format {format}`")
            }
        };
        Err(Trouble::new(
            "changed",
            format!("{url} is another object than when the data set was listed, or is gone{remedy}"),
        ))
    }

    /// The manifest that lists its samples, if it is another one now. Whoever names an index of it may not have it.
    async fn look_at_manifest(&self) -> Option<String> {
        let url = self.index.manifest().filter(|_| self.open.index.is_none())?;
        let known = self.index.manifest_etag()?;
        let (source, name) = source_of(&url, &source_options(&self.open)).ok()?;
        let is_other = match source.head(&name, Instant::now() + LOOK_TIMEOUT).await {
            Ok(found) => found.etag.as_deref().map(bare_etag) != Some(bare_etag(&known)),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        is_other.then_some(url)
    }

    async fn look_at_files(&self) -> Option<String> {
        let (index, objects) = (self.index.clone(), self.index.objects());
        // In sweeps over all of them, beginning with another one each time: where there isn't time for all, it is at some from everywhere.
        let first = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.subsec_micros());
        let sweeps = (0..LOOK_SWEEPS).map(move |sweep| (u64::from(first) + sweep) % LOOK_SWEEPS);
        let numbers = sweeps.flat_map(move |sweep| (sweep..objects).step_by(LOOK_SWEEPS as usize));
        let known = numbers.filter_map(move |number| index.object(number).ok());
        let found = self
            .source
            .first_changed(known, LOOK_FILES, Instant::now() + LOOK_TIMEOUT);
        found.await.ok().flatten()
    }

    async fn look_at_some(&self) -> Option<String> {
        let objects = self.index.objects();
        let (some, deadline) = (objects.min(LOOKS), Instant::now() + LOOK_TIMEOUT);
        // From the first to the last.
        let looks = (0..some).map(|look| async move {
            let object = self.index.object(look * (objects - 1) / (some - 1).max(1)).ok()?;
            let is_gone = match self.source.head(&object.key, deadline).await {
                Ok(found) => object.is_other(found.size, found.etag.as_deref()),
                Err(error) => error.kind() == ErrorKind::NotFound,
            };
            is_gone.then_some(object.key)
        });
        futures::future::join_all(looks).await.into_iter().flatten().next()
    }

    /// Whether the saved index that it was opened with is still the one that was read.
    ///
    /// # Errors
    /// [`Trouble`] with what the store said.
    pub async fn is_current(&self) -> Result<bool, Trouble> {
        let Some(named) = &self.open.index else {
            // Another process may have brought it up to date.
            let Some(kept) = self.kept.borrow().clone() else {
                return Ok(true);
            };
            return Ok(Kept::at(&kept.path).await.is_none_or(|now| now == kept));
        };
        let (source, name) = source_of(named, &source_options(&self.open))?;
        let meta = source.head(&name, deadline()).await.map_err(|e| trouble(&e))?;
        Ok(meta.etag == self.index_etag)
    }

    /// Some of its samples, as a data set of its own. Ranges and objects stay what they are, so the disk tier serves both, and the index is the same memory.
    #[must_use]
    pub fn part(&self, index: Index, list: List) -> Self {
        Dataset {
            open: self.open.clone(),
            index,
            source: self.source.clone(),
            shared: Arc::clone(&self.shared),
            list: Some(list),
            origin: "subset",
            changes: None,
            index_etag: None,
            kept: RefCell::default(),
            spool: self.spool.clone(),
            seen: self.seen.clone(),
            pins: Arc::clone(&self.pins),
        }
    }

    /// Of an object that the index has no ETag of, some bytes came with this one: what comes in several loads must be of one version.
    ///
    /// # Errors
    /// `changed` when another part of it came with another one.
    pub fn pinned(&self, object: u64, known: &ObjectRef, etag: Option<&str>, is_in_parts: bool) -> Result<(), Trouble> {
        let Some(etag) = etag.filter(|_| is_in_parts && known.etag.is_none()) else {
            return Ok(());
        };
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let first = pins.entry(object).or_insert_with(|| etag.to_owned());
        if bare_etag(first) == bare_etag(etag) {
            return Ok(());
        }
        Err(Trouble::new(
            "changed",
            format!(
                "{} was replaced while it was read: its ETag is {etag} and was {first}; open it with refresh=True, and give its manifest a column `etag`",
                self.source.url_of(&known.key)
            ),
        ))
    }

    /// Takes new credentials, from the client's provider.
    ///
    /// # Errors
    /// `invalid` when the options name none.
    pub fn renew(&self, options: &std::collections::BTreeMap<String, String>) -> Result<(), Trouble> {
        let find = |names: &[&str]| names.iter().find_map(|name| options.get(*name).cloned());
        let credentials = match (
            find(&["access_key_id", "aws_access_key_id", "key"]),
            find(&["secret_access_key", "aws_secret_access_key", "secret"]),
        ) {
            (Some(id), Some(secret)) => Credentials::AccessKey {
                id,
                secret,
                token: find(&["session_token", "aws_session_token", "token"]),
            },
            _ => match find(&["bearer_token", "token", "access_token"]) {
                Some(token) => Credentials::Bearer(token),
                None => {
                    return Err(Trouble::new(
                        "invalid",
                        "the credential provider gave neither access_key_id and secret_access_key nor a token",
                    ));
                }
            },
        };
        self.source.update_credentials(&credentials).map_err(|e| trouble(&e))
    }

    /// The index' digest, as the plan names data sets.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::from_bytes(self.index.digest())
    }
}

/// An index for clients to map.
///
/// # Errors
/// `no-memory`.
pub fn shared(index: &Index) -> Result<Shared, Trouble> {
    Shared::of("foreload-index", index.as_bytes())
        .map_err(|e| Trouble::new("no-memory", format!("sharing the index: {e}")))
}

/// The file that caches the index of a data set.
#[must_use]
pub fn index_path(cache_dir: &Path, open: &Open) -> PathBuf {
    let mut digest = foreload_plan::DigestBuilder::new("index file");
    if !open.database.is_empty() {
        digest = digest.text(&open.database);
    }
    let name = digest
        .text(&open.url)
        .text(&open.format)
        .text(&open.extensions.join(","))
        .text(
            open.storage_options
                .iter()
                .find(|(key, _)| key.contains("endpoint"))
                .map_or("", |(_, value)| value),
        )
        .finish();
    cache_dir.join("indexes").join(format!("{name}.flx"))
}

async fn find_index(
    open: &Open,
    options: &SourceOptions,
    cache_dir: &Path,
    room: Arc<Room>,
    report: Reporter,
) -> Result<Found, Trouble> {
    let path = index_path(cache_dir, open);
    let (mut index_etag, mut spool) = (None, None);
    // Before it is read: one that is written meanwhile is another.
    let mut kept = Kept::of(open, &path).await;
    let known = match &open.index {
        Some(named) => {
            let (index, etag) = read_index(named, options).await?;
            index_etag = etag;
            Some((index, "saved"))
        }
        None if open.refresh => None,
        None => kept_index(&path).await.map(|index| (index, "cache")),
    };
    let mut tell = move |step: &Step| {
        let bytes = if step.bytes > 0 { Some(step.bytes) } else { None };
        drop(report.send_replace(Progress {
            step: step.stage.into(),
            done: step.done,
            total: step.total,
            samples: step.samples,
            bytes,
        }));
    };
    let (mut index, mut origin, mut changes) = match known {
        Some((old, _)) if open.update => {
            let (index, changes) = format::update(&old, &open.url, options, &mut tell)
                .await
                .map_err(|e| trouble(&e))?;
            (index, "updated", Some(changes))
        }
        Some((index, origin)) => (index, origin, None),
        None => {
            let build = build_options(open, &path)?;
            spool = new_spool(open, cache_dir, room)?;
            let built = format::build(&open.url, options, &build, spool.as_ref(), &mut tell).await;
            let mut index = built.map_err(|e| trouble(&e))?;
            if open.refresh
                && let Some(before) = kept_index(&path).await
            {
                // What isn't changed keeps its checksums.
                index = format::with_checksums_of(&index, &before).map_err(|e| trouble(&e))?;
            }
            (index, "listed", None)
        }
    };
    // A checksum may have been made of bytes that were damaged on their way: with `update` all are made again.
    if open.checksum && (open.update || (0..index.len()).any(|sample| index.crc32c(sample).is_none())) {
        let source = Source::open(index.root(), options).map_err(|e| trouble(&e))?;
        index = format::checksum(&index, &source, 32, &mut tell)
            .await
            .map_err(|e| trouble(&e))?;
        origin = if origin == "listed" { origin } else { "updated" };
        changes = changes.or(Some(Changes::default()));
    }
    // Saving it is a convenience: a full or read-only disk doesn't keep anybody from training.
    if origin == "listed" || origin == "updated" {
        if let Err(error) = save(&path, index.as_bytes()) {
            crate::log::say!("can't save the index at {}: {error}", path.display());
        }
        kept = Kept::of(open, &path).await;
    }
    Ok(Found {
        index,
        origin,
        changes,
        index_etag,
        kept,
        spool: spool.filter(|spool| spool.bytes() > 0),
    })
}

/// The index that is kept of a data set. A damaged file is no reason to fail: it is made again.
async fn kept_index(path: &Path) -> Option<Index> {
    let bytes = tokio::fs::read(path).await.ok()?;
    Index::from_bytes(bytes.into()).ok()
}

/// Where what a scan reads of shards in a bucket goes. Unless the user says how much that may be, it is an eighth of the memory that is left: so much the
/// page cache takes without waiting for the disk (it waits from a sixth or so), which may be slower than the network. And half of what the disk has for us.
/// Both are for all data sets of the agent together.
fn new_spool(open: &Open, cache_dir: &Path, room: Arc<Room>) -> Result<Option<Spool>, Trouble> {
    let is_far = source::scheme(&open.url) != Some("file");
    let usual = || {
        let free = disk::free_bytes(cache_dir)?.saturating_sub(DiskSettings::KEEP_FREE_BYTES);
        // What spools hold was free before.
        Some(((free + room.bytes()) / 2).min(memory::available_bytes()? / 8))
    };
    let named = env::spool_bytes().map_err(|why| Trouble::new("invalid", why))?;
    let most_bytes = named.or_else(usual).filter(|&bytes| bytes > 0 && is_far);
    Ok(most_bytes.and_then(|bytes| Spool::new(cache_dir, bytes, room).ok()))
}

fn build_options(open: &Open, path: &Path) -> Result<BuildOptions, Trouble> {
    let format = match open.format.as_str() {
        "" | "auto" => None,
        "folder" => Some(Format::Folder),
        "flat" => Some(Format::Flat),
        "tar" | "webdataset" => Some(Format::Tar),
        "lmdb" => Some(Format::Lmdb),
        "manifest" | "csv" | "jsonl" | "parquet" => Some(Format::Manifest),
        other => {
            return Err(Trouble::new(
                "invalid",
                format!("format {other:?} is none of auto, folder, flat, tar (webdataset), lmdb, manifest"),
            ));
        }
    };
    let directory = path.parent().unwrap_or(Path::new("."));
    let checkpoint = std::fs::create_dir_all(directory)
        .is_ok()
        .then(|| path.with_extension("listing"));
    Ok(BuildOptions {
        format,
        extensions: open.extensions.clone(),
        database: open.database.clone(),
        checkpoint,
        ..BuildOptions::default()
    })
}

fn source_options(open: &Open) -> SourceOptions {
    SourceOptions {
        storage_options: open.storage_options.clone(),
        ..SourceOptions::default()
    }
}

/// A saved index, and its file's ETag.
async fn read_index(named: &str, options: &SourceOptions) -> Result<(Index, Option<String>), Trouble> {
    let (source, name) = source_of(named, options)?;
    let (bytes, meta) = source
        .read(&name, 64 << 30, deadline())
        .await
        .map_err(|e| trouble(&e))?;
    Ok((Index::from_bytes(bytes).map_err(|e| trouble(&e))?, meta.etag))
}

/// The directory of a saved index, and its name there.
fn source_of(named: &str, options: &SourceOptions) -> Result<(Source, String), Trouble> {
    let (folder, name) = format::split_file(named);
    Ok((Source::open(&folder, options).map_err(|e| trouble(&e))?, name))
}

fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + std::time::Duration::from_secs(120)
}

/// Writes a file so that it is either the old one or the new one, whatever happens.
pub(crate) fn save(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// A store's error for clients.
#[must_use]
pub fn trouble(error: &foreload_store::Error) -> Trouble {
    use foreload_store::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::Invalid => "invalid",
        Kind::NotFound => "not-found",
        Kind::Denied => "denied",
        Kind::Unavailable | Kind::Throttled => "unavailable",
        Kind::Corrupt => "corrupt",
        Kind::Changed => "changed",
        Kind::Timeout => "timeout",
        Kind::Closed => "closed",
        _ => "bug",
    };
    Trouble::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreload_store::index::{IndexBuilder, NewObject};

    #[test]
    fn a_database_has_an_index_file_of_its_own() {
        let of = |format: &str, database: &str| {
            let open = Open {
                format: format.into(),
                database: database.into(),
                ..Open::default()
            };
            index_path(Path::new("/cache"), &open)
        };
        let paths = [
            of("", ""),
            of("lmdb", ""),
            of("", "lmdb"),
            of("lmdb", "lmdb"),
            of("lmdb", "other"),
        ];
        let apart: std::collections::BTreeSet<_> = paths.iter().collect();
        assert_eq!(apart.len(), paths.len());
    }

    #[test]
    fn ranges_that_a_damaged_index_places_wrongly_are_nowhere_and_as_long_as_it_says() {
        use foreload_store::index::NewSample;
        let mut builder = IndexBuilder::new("s3://bucket", Format::Manifest);
        for size in [100, 50] {
            let key = &size.to_string();
            let new = NewObject {
                key,
                size,
                ..NewObject::default()
            };
            builder.object(new).expect("taken");
        }
        let range = |object, offset, length| ObjectRange { object, offset, length };
        let sample = NewSample {
            length: 100,
            more: &[range(1, 7, 40), range(0, 3, 2)],
            ..NewSample::default()
        };
        builder.sample(sample).expect("taken");
        let whole = NewSample {
            length: 100,
            ..NewSample::default()
        };
        builder.sample(whole).expect("taken");
        let index = builder.finish().expect("an index");
        let catalog = |index: &Index| IndexCatalog {
            index: index.clone(),
            most_bytes: 1000,
        };
        let ranges = |catalog: &IndexCatalog| -> Vec<_> {
            let ranges = catalog.ranges(0).into_iter();
            ranges.map(|it| (it.object, it.offset, it.len)).collect()
        };
        let good = catalog(&index);
        assert_eq!(ranges(&good), [(0, 0, 100), (1, 7, 40), (0, 3, 2)]);
        assert_eq!(
            (good.place(0).len, good.is_several(0), good.is_several(1)),
            (142, true, false)
        );
        let small = IndexCatalog {
            most_bytes: 141,
            ..catalog(&index)
        };
        assert_eq!(small.place(0).len, 0, "no memory can hold it");
        // Each byte in turn is another one; of those, what makes a range a wrong one.
        let bytes = index.as_bytes();
        let changed = (0..bytes.len()).filter_map(|at| {
            let mut bytes = bytes.to_vec();
            bytes[at] = bytes[at].wrapping_add(60);
            let index = Index::from_trusted_bytes(bytes.into()).ok()?;
            (index.is_several(0) && index.sample(0).is_err()).then_some(index)
        });
        let damaged: Vec<Index> = changed.collect();
        assert!(!damaged.is_empty());
        for index in damaged {
            let catalog = catalog(&index);
            let len = catalog.place(0).len;
            assert_eq!(ranges(&catalog), [(NOWHERE, 0, len)]);
        }
    }

    #[test]
    fn a_sample_without_a_place_is_not_an_empty_one() {
        let mut builder = IndexBuilder::new("s3://bucket", Format::Folder);
        let empty = NewObject {
            key: "a",
            ..NewObject::default()
        };
        builder.whole_object(empty, None, None).expect("taken");
        let index = builder.finish().expect("an index");
        let catalog = IndexCatalog {
            index: index.clone(),
            most_bytes: u64::MAX,
        };
        assert_eq!((catalog.place(0).object, catalog.place(0).len), (0, 0));
        // As of any sample of which a damaged index says something that can't be.
        assert!(index.sample(1).is_err());
        assert_eq!((catalog.place(1).object, catalog.place(1).len), (NOWHERE, 1));
        assert!(index.object(NOWHERE).is_err(), "so that fetching it fails");
    }
}
