//! A directory as a slow, read-only file system: a FUSE pass-through with a delay and a rate.
//!
//! It stands for the parallel file system of a cluster on a machine that has none: each open and
//! each read takes a while, and all reads together a bounded number of bytes per second. A
//! request's delay is a timer on one thread, not a sleeping thread, so any number of requests can
//! wait at once and many small reads overlap as they would there. The bytes come from the source's
//! files through the page cache. The kernel's own cache of the mount is dropped at each open
//! (unless kept on purpose), so a second epoch is as slow as the first.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    MountOption, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request,
};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::bucket::profile::Line;

/// How long the kernel may keep names and attributes.
const FRESH: Duration = Duration::from_secs(1);

/// The settings of a slow file system.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The delay of each open (default 5 ms, about what a busy Lustre metadata server takes).
    pub open_delay: Duration,
    /// The delay of each read request of the kernel, at most 1 MiB (default 5 ms).
    pub read_delay: Duration,
    /// Bytes per second of each read request, as of a connection of its own (default 0: unlimited).
    pub request_bytes_per_s: u64,
    /// Bytes per second of all reads together (default 500 MB/s; 0: unlimited).
    pub bytes_per_s: u64,
    /// Whether the kernel keeps what was read over an open (default no).
    pub keep_cache: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            open_delay: Duration::from_millis(5),
            read_delay: Duration::from_millis(5),
            request_bytes_per_s: 0,
            bytes_per_s: 500_000_000,
            keep_cache: false,
        }
    }
}

/// A mounted file system; unmounted when this is dropped.
pub struct Mount {
    session: Option<fuser::BackgroundSession>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    timers: Option<std::thread::JoinHandle<()>>,
}

impl Mount {
    /// Mounts `source` at `target`.
    ///
    /// # Errors
    ///
    /// When the source is no directory, or the mount is not permitted (it takes root or
    /// `fusermount3`).
    pub fn new(source: &Path, target: &Path, settings: Settings) -> io::Result<Self> {
        let root = source.canonicalize()?;
        if !root.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let timers = std::thread::Builder::new()
            .name("slowfs-timers".into())
            .spawn(move || {
                let _ = runtime.block_on(stopped);
            })?;
        let files = Arc::new(Files {
            line: Line::default(),
            open: Mutex::default(),
        });
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("slowfs".into())];
        let inodes = Mutex::new(Inodes::new(root));
        let next = AtomicU64::new(1);
        let slow = SlowFs {
            inodes,
            files,
            settings,
            timers: handle,
            next,
            listings: Mutex::default(),
        };
        let session = fuser::spawn_mount(slow, target, &config)?;
        Ok(Self {
            session: Some(session),
            stop: Some(stop),
            timers: Some(timers),
        })
    }

    /// Unmounts and waits for the end.
    ///
    /// # Errors
    ///
    /// When files are still open.
    pub fn unmount(mut self) -> io::Result<()> {
        match self.session.take() {
            Some(session) => session.umount_and_join(),
            None => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(self.session.take());
        drop(self.stop.take());
        if let Some(timers) = self.timers.take()
            && timers.join().is_err()
        {
            eprintln!("slowfs: the timers' thread panicked");
        }
    }
}

/// The paths behind inode numbers. None is forgotten: a test's tree is small.
struct Inodes {
    paths: Vec<PathBuf>,
    numbers: HashMap<PathBuf, u64>,
}

impl Inodes {
    fn new(root: PathBuf) -> Self {
        Self {
            numbers: HashMap::from([(root.clone(), 1)]),
            paths: vec![root],
        }
    }

    fn path(&self, inode: INodeNo) -> Option<PathBuf> {
        self.paths.get(usize::try_from(inode.0).ok()?.checked_sub(1)?).cloned()
    }

    fn number(&mut self, path: &Path) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        self.paths.push(path.to_owned());
        let number = self.paths.len() as u64;
        self.numbers.insert(path.to_owned(), number);
        number
    }
}

/// The open files and the line that their reads share.
struct Files {
    line: Line,
    open: Mutex<HashMap<u64, Arc<File>>>,
}

/// A directory's entries as they were when it was opened.
type Listing = Arc<Vec<(u64, FileType, std::ffi::OsString)>>;

struct SlowFs {
    inodes: Mutex<Inodes>,
    files: Arc<Files>,
    settings: Settings,
    timers: Handle,
    next: AtomicU64,
    listings: Mutex<HashMap<u64, Listing>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
}

impl SlowFs {
    fn path(&self, inode: INodeNo) -> Result<PathBuf, Errno> {
        lock(&self.inodes).path(inode).ok_or(Errno::ENOENT)
    }

    fn attributes(&self, path: &Path) -> Result<FileAttr, Errno> {
        let metadata = fs::symlink_metadata(path).map_err(|error| errno(&error))?;
        let number = lock(&self.inodes).number(path);
        Ok(attributes(number, &metadata))
    }

    fn listing(&self, inode: INodeNo) -> Result<Listing, Errno> {
        let path = self.path(inode)?;
        let mut entries = vec![
            (inode.0, FileType::Directory, ".".into()),
            (inode.0, FileType::Directory, "..".into()),
        ];
        for entry in fs::read_dir(&path).map_err(|error| errno(&error))? {
            let entry = entry.map_err(|error| errno(&error))?;
            let kind = entry.file_type().map_err(|error| errno(&error))?;
            let number = lock(&self.inodes).number(&entry.path());
            let kind = FileType::from_std(kind).unwrap_or(FileType::RegularFile);
            entries.push((number, kind, entry.file_name()));
        }
        Ok(Arc::new(entries))
    }

    fn handle(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

fn attributes(number: u64, metadata: &Metadata) -> FileAttr {
    let time = |seconds: i64, nanoseconds: i64| {
        UNIX_EPOCH
            + Duration::new(
                u64::try_from(seconds).unwrap_or(0),
                u32::try_from(nanoseconds).unwrap_or(0),
            )
    };
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(number),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: modified,
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: metadata.rdev() as u32,
        blksize: 4096,
        flags: 0,
    }
}

/// Reads up to `size` bytes; fewer only at the end of the file.
fn read(file: &File, offset: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

impl Filesystem for SlowFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The default of 12 requests in the background would hide what concurrency brings.
        // A kernel that allows less says how much; its answer is taken.
        if let Err(most) = config.set_max_background(1024) {
            let _ = config.set_max_background(most);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.path(parent).and_then(|path| self.attributes(&path.join(name))) {
            Ok(found) => reply.entry(&FRESH, &found, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(inode).and_then(|path| self.attributes(&path)) {
            Ok(found) => reply.attr(&FRESH, &found),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let target = self
            .path(inode)
            .and_then(|path| fs::read_link(path).map_err(|error| errno(&error)));
        match target {
            Ok(target) => reply.data(target.as_os_str().as_encoded_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let due = Instant::now() + self.settings.open_delay;
        let opened = self
            .path(inode)
            .and_then(|path| File::open(path).map_err(|error| errno(&error)));
        let handle = self.handle();
        let cache = if self.settings.keep_cache {
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        };
        let files = Arc::clone(&self.files);
        self.timers.spawn(async move {
            sleep_until(due).await;
            match opened {
                Ok(file) => {
                    lock(&files.open).insert(handle, Arc::new(file));
                    reply.opened(FileHandle(handle), cache);
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(open) = lock(&self.files.open).get(&file.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let now = Instant::now();
        let own = match self.settings.request_bytes_per_s {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(f64::from(size) / rate as f64),
        };
        let start = now + self.settings.read_delay + own;
        let files = Arc::clone(&self.files);
        let rate = self.settings.bytes_per_s;
        self.timers.spawn(async move {
            sleep_until(start).await;
            let bytes = match read(&open, offset, size as usize) {
                Ok(bytes) => bytes,
                Err(error) => return reply.error(errno(&error)),
            };
            // The line is booked when the delay is over: a wait is no use of bandwidth.
            let due = files.line.book(Instant::now(), start, bytes.len() as u64, rate);
            if rate > 0 && due > Instant::now() {
                sleep_until(due).await;
            }
            reply.data(&bytes);
        });
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.files.open).remove(&file.0);
        reply.ok();
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.listing(inode) {
            Ok(listing) => {
                let handle = self.handle();
                lock(&self.listings).insert(handle, listing);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        directory: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(listing) = lock(&self.listings).get(&directory.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        for (index, (number, kind, name)) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*number), index as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        directory: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        lock(&self.listings).remove(&directory.0);
        reply.ok();
    }
}
