//! Directories: local disks and parallel file systems.
//!
//! System calls run on tokio's blocking pool, never on the caller's thread, and at most [`CALLS`] at a time, so that a
//! file system that hangs takes a bounded number of threads with it. Pieces of a file are read into buffers that are used
//! again, and handed to the sink on the caller's thread. A file has a pseudo-ETag made of size and modification time in
//! nanoseconds; it is compared before and after reading. Inodes don't count: many FUSE file systems number them anew at each mount.

use super::address;
use super::cloud::Progress;
use super::{Entries, ObjectMeta, Sink};
use crate::index::{ObjectRef, bare_etag};
use crate::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// System calls in progress at a time: enough to keep a parallel file system with 10 ms latency busy, well below the
/// 512 threads that tokio's pool may have.
const CALLS: usize = 128;
/// Fetches that may wait for them: while one hands its bytes over, another one's call runs.
pub(crate) const MOST_REQUESTS: u32 = 2 * CALLS as u32;

// Large enough that the hand-over between threads costs little, small enough to stay in the cache until it is copied.
const PIECE_BYTES: usize = 512 << 10;

/// A directory.
#[derive(Debug)]
pub(crate) struct Directory {
    root: PathBuf,
    calls: Arc<Semaphore>,
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Directory {
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            calls: Arc::new(Semaphore::new(CALLS)),
            buffers: Mutex::default(),
        }
    }

    fn path(&self, key: &str) -> Result<PathBuf> {
        let path = Path::new(key);
        let is_inside = path.components().all(|c| matches!(c, Component::Normal(_)));
        if !is_inside || key.contains('\0') {
            return Err(Error::invalid(format!(
                "the key {key:?} leaves the data set's directory"
            )));
        }
        Ok(self.root.join(path))
    }

    /// Who writes to it. An object is there, and on the disk, when all of it is.
    pub fn writing_store(&self) -> Result<Arc<dyn object_store::ObjectStore>> {
        let store = object_store::local::LocalFileSystem::new_with_prefix(&self.root);
        let failed = |e: object_store::Error| Error::invalid(format!("it can't be written to: {e}")).with_source(e);
        Ok(Arc::new(store.map_err(failed)?.with_fsync(true)))
    }

    /// Removes a directory that has nothing in it; one that isn't there is removed already.
    pub async fn remove_directory(&self, key: &str, deadline: Instant) -> Result<()> {
        let path = self.path(key)?;
        let removed = move || match std::fs::remove_dir(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(&path, "removing it", error)),
            _ => Ok(()),
        };
        self.call(deadline, removed).await?
    }

    pub async fn head(&self, key: &str, deadline: Instant) -> Result<ObjectMeta> {
        let (path, key) = (self.path(key)?, key.to_owned());
        let found = move || std::fs::metadata(&path).map_err(|e| io(&path, "looking it up", e));
        let metadata = self.call(deadline, found).await??;
        if !metadata.is_file() {
            return Err(Error::new(ErrorKind::NotFound, "it is not a file"));
        }
        Ok(describe(key, &metadata))
    }

    /// The first of these files that isn't what it was, or is gone; they are looked at one after the other, for at most `most`.
    pub async fn first_changed(
        &self,
        known: impl Iterator<Item = ObjectRef> + Send + 'static,
        most: Duration,
        deadline: Instant,
    ) -> Result<Option<String>> {
        let (root, end) = (self.root.clone(), Instant::now() + most);
        let is_other = move |object: &ObjectRef| match std::fs::metadata(root.join(&object.key)) {
            Ok(found) => {
                let found = describe(String::new(), &found);
                object.is_other(found.size, found.etag.as_deref())
            }
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        let mut in_time = known.take_while(move |_| Instant::now() < end);
        self.call(deadline, move || in_time.find(is_other).map(|object| object.key))
            .await
    }

    /// Reads `range`, from byte `progress.bytes` of it on.
    pub async fn get<S: Sink + ?Sized>(
        &self,
        key: &str,
        range: &Range<u64>,
        if_match: Option<&str>,
        deadline: Instant,
        sink: &mut S,
        progress: &mut Progress,
    ) -> Result<()> {
        let start = Instant::now();
        let path = self.path(key)?;
        let mut open: Option<File> = None;
        let wanted = range.end - range.start;
        while progress.bytes < wanted {
            let at = range.start + progress.bytes;
            let length = (range.end - at).min(PIECE_BYTES as u64) as usize;
            let is_last = at + length as u64 == range.end;
            let (path, range, asked) = (path.clone(), range.clone(), if_match.map(str::to_owned));
            let mut buffer = self
                .buffers
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .pop()
                .unwrap_or_default();
            let file = open.take();
            let read = self.call(deadline, move || -> Result<_> {
                let is_first = file.is_none();
                let file = match file {
                    Some(file) => file,
                    None => open_at_once(&path).map_err(|e| io(&path, "opening it", e))?,
                };
                let mut etag = None;
                if is_first {
                    etag = Some(unchanged(&file, &range, asked.as_deref())?);
                }
                buffer.resize(buffer.len().max(length), 0);
                file.read_exact_at(&mut buffer[..length], at)
                    .map_err(|e| Error::io("reading it", e))?;
                if is_last {
                    unchanged(
                        &file,
                        &range,
                        etag.as_ref().map(|(e, _)| e.as_str()).or(asked.as_deref()),
                    )?;
                }
                Ok((file, buffer, etag))
            });
            let (file, buffer, etag) = read.await??;
            if let Some((etag, size)) = etag {
                (progress.etag, progress.object_size) = (Some(etag), Some(size));
                progress.first_byte = start.elapsed();
            }
            open = Some(file);
            sink.write(progress.bytes, &buffer[..length])?;
            progress.bytes += length as u64;
            let mut buffers = self.buffers.lock().unwrap_or_else(|e| e.into_inner());
            if buffers.len() < 32 {
                buffers.push(buffer);
            }
        }
        progress.transfer = start.elapsed();
        Ok(())
    }

    /// The files and directories directly in `prefix`, which is empty or ends in a slash.
    pub async fn entries(&self, prefix: &str, deadline: Instant) -> Result<Entries> {
        let path = if prefix.is_empty() {
            self.root.clone()
        } else {
            self.path(prefix.trim_end_matches('/'))?
        };
        let prefix = prefix.to_owned();
        self.call(deadline, move || read_directory(&path, &prefix)).await?
    }

    /// Runs a blocking call on the pool. At the deadline the caller goes on; the thread ends with its call.
    async fn call<T: Send + 'static>(&self, deadline: Instant, call: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let late = |_| Error::new(ErrorKind::Timeout, "the file system did not answer before the deadline");
        let permit = tokio::time::timeout_at(deadline, self.calls.clone().acquire_owned())
            .await
            .map_err(late)?;
        let permit = permit.map_err(|_| Error::new(ErrorKind::Closed, "the source is closed"))?;
        let task = tokio::task::spawn_blocking(move || {
            let result = call();
            drop(permit);
            result
        });
        let done = tokio::time::timeout_at(deadline, task).await.map_err(late)?;
        done.map_err(|e| Error::new(ErrorKind::Bug, format!("a file system call panicked: {e}")))
    }
}

/// Opens a file; of a pipe that nobody writes to, too, without waiting for one.
fn open_at_once(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

/// ETag and size of an open file, when it is the one asked for and holds the range.
fn unchanged(file: &File, range: &Range<u64>, asked: Option<&str>) -> Result<(String, u64)> {
    // Not the time of access: reading changes it, so a FUSE file system would have to be asked for it after each read.
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::MTIME;
    let found =
        rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted).map_err(|e| Error::io("looking it up", e.into()))?;
    let (size, time) = (found.stx_size, found.stx_mtime);
    let etag = etag(size, time.tv_sec, i64::from(time.tv_nsec));
    let changed = |how: String| {
        Error::new(ErrorKind::Changed, how)
            .with_remedy("opening it with refresh=True, or `foreload index --update`, renews the index")
    };
    if let Some(asked) = asked.filter(|asked| bare_etag(asked) != bare_etag(&etag)) {
        return Err(changed(format!(
            "the file was changed: it is {etag}, indexed was {asked}"
        )));
    }
    if !FileType::from_raw_mode(found.stx_mode.into()).is_file() {
        return Err(Error::invalid("it is not a file"));
    }
    if range.end > size {
        return Err(changed(format!("the file has {size} bytes, fewer than indexed")));
    }
    Ok((etag, size))
}

fn etag(size: u64, mtime_s: i64, mtime_ns: i64) -> String {
    let time = i128::from(mtime_s) * 1_000_000_000 + i128::from(mtime_ns);
    format!("\"f-{size:x}-{time:x}\"")
}

fn describe(key: String, metadata: &Metadata) -> ObjectMeta {
    ObjectMeta {
        key,
        size: metadata.len(),
        etag: Some(etag(metadata.len(), metadata.mtime(), metadata.mtime_nsec())),
        version: None,
        modified: metadata.modified().ok(),
    }
}

/// An error of the system; a file that isn't there may be meant to be in a bucket.
fn io(path: &Path, step: impl std::fmt::Display, error: std::io::Error) -> Error {
    let meant = Some(path).filter(|_| error.kind() == std::io::ErrorKind::NotFound);
    let error = Error::io(step, error);
    match meant.and_then(address::meant) {
        Some(url) => error.with_remedy(format!("did you mean {url}?")),
        None => error,
    }
}

/// Names of neighbours in an error, and entries of their directory that are looked at for them.
const MOST_NEIGHBOURS: usize = 5;
const MOST_LOOKED_AT: usize = 1000;

/// Of a path that leads nowhere: how far it leads, and what is there.
fn nearest(path: &Path) -> String {
    let there = path
        .ancestors()
        .skip(1)
        .find(|it| it.is_dir())
        .unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(there).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .take(MOST_LOOKED_AT)
        .map(|it| it.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    let (shown, rest) = (
        names.len().min(MOST_NEIGHBOURS),
        names.len().saturating_sub(MOST_NEIGHBOURS),
    );
    let what = match (shown, rest) {
        (0, _) => "nothing".to_owned(),
        (_, 0) => names.join(", "),
        _ => format!("{}, and {rest} more", names[..shown].join(", ")),
    };
    format!("{} is there, and has {what}", there.display())
}

/// Whether a link has no file at its end: there is none, or it leads back to itself.
fn leads_nowhere(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Whether a directory is one of those that led here: the one being listed, or one above it, up to where the listing began.
fn leads_back(found: &std::fs::Metadata, path: &Path, prefix: &str) -> bool {
    let mut above = path.ancestors().take(prefix.matches('/').count() + 1);
    let is_it = |it: std::fs::Metadata| (it.dev(), it.ino()) == (found.dev(), found.ino());
    above.any(|path| std::fs::metadata(path).is_ok_and(is_it))
}

fn read_directory(path: &Path, prefix: &str) -> Result<Entries> {
    // No sane data set is deeper than this.
    if prefix.matches('/').count() > 64 {
        return Err(
            Error::invalid(format!("{} is nested over 64 directories deep", path.display()))
                .with_remedy("does a link lead back to one of its parents?"),
        );
    }
    let failed = |e: std::io::Error| {
        let is_elsewhere = e.kind() != std::io::ErrorKind::NotFound || address::meant(path).is_some();
        let error = io(path, format!("listing {}", path.display()), e);
        if is_elsewhere {
            error
        } else {
            error.with_remedy(nearest(path))
        }
    };
    let mut entries = Entries::default();
    let (mut lost, mut first_lost) = (0_u64, None);
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().into_string().map_err(|name| {
            Error::invalid(format!("the file name {name:?} in {} is not UTF-8", path.display()))
                .with_remedy("rename it")
        })?;
        let key = format!("{prefix}{name}");
        // Follows links, as ImageFolder does.
        match std::fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_dir() => {
                let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                // What is there is listed already, and following it would never end.
                if !is_link || !leads_back(&metadata, path, prefix) {
                    entries.prefixes.push(key + "/");
                }
            }
            Ok(metadata) if metadata.is_file() => entries.objects.push(describe(key, &metadata)),
            Ok(_) => {}
            Err(e) if leads_nowhere(&e) => {
                // A file may have gone since it was named here, and what is hidden isn't data.
                let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                if is_link && !key.split('/').any(|part| part.starts_with('.')) {
                    lost += 1;
                    first_lost.get_or_insert_with(|| entry.path());
                }
            }
            Err(e) => {
                let path = entry.path();
                return Err(io(&path, format!("looking at {}", path.display()), e));
            }
        }
    }
    if let Some(first) = first_lost {
        return Err(lost_links(path, &first, lost));
    }
    entries.objects.sort_by(|a, b| a.key.cmp(&b.key));
    entries.prefixes.sort();
    Ok(entries)
}

/// Links that lead nowhere would be samples: of a checkout that wasn't fetched whole, or on a volume that isn't mounted.
fn lost_links(directory: &Path, first: &Path, count: u64) -> Error {
    let to = std::fs::read_link(first).unwrap_or_default();
    let what = format!(
        "{} in {} whose file isn't there: {} -> {}",
        if count == 1 {
            "a link".to_owned()
        } else {
            format!("{count} links")
        },
        directory.display(),
        first.display(),
        to.display()
    );
    Error::new(ErrorKind::NotFound, what)
        .with_remedy("fetch or mount what they lead to, or remove them, so that no sample is left out unnoticed")
}

/// How long one directory may take to list: file systems answer in milliseconds, sick ones in minutes.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(300);
