//! What the kernel asks, and how it is answered.
//!
//! A question that can be answered from what is here is answered on the kernel's own thread. One about names goes to a thread with a runtime, and a read that has to wait to one of
//! the [workers](crate::workers), so no thread of the kernel's waits for a bucket.

use crate::changes::{Aside, How};
use crate::file::{OpenFile, Shared};
use crate::names::Names;
use crate::settings::Settings;
use crate::tree::{Ino, Kind, Listed, Look, MOST_NAME, ROOT};
use crate::workers::Workers;
use crate::writing::{NewFile, Read, Writing};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustc_hash::FxHashMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;

/// Requests of the kernel that may be on their way, and bytes of each.
const MOST_BACKGROUND: u16 = 256;
const MOST_REQUEST: u32 = 1 << 20;
/// What a directory begins with: itself, and the one above.
const DOTS: u64 = 2;
/// What isn't of the bucket is what it is.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);
/// How often it is looked for what lies unread, and for how long it may.
const TIDY: Duration = Duration::from_secs(2);
const UNREAD: Duration = Duration::from_secs(10);
/// Where memory is short, who was read so long ago isn't at it.
const AT_IT: Duration = Duration::from_millis(5);
/// What `stat` says is good to read at a time.
const BLOCK: u32 = 128 << 10;

/// Blocks that are free where there is no end: a petabyte.
const FREE: u64 = (1 << 50) / BLOCK as u64;

/// What isn't of the bucket: a directory that no listing has, with what the mount says of itself, and where it is told what will be read. Their numbers are the last that there are.
pub(crate) const CONTROL: &str = ".foreload";
const CONTROL_INO: Ino = u64::MAX - 1;
const STATS: &str = "stats";
const STATS_INO: Ino = u64::MAX - 2;
const ORDER: &str = "order";
const ORDER_INO: Ino = u64::MAX - 3;
/// An order's text at most: ten million files by names of a hundred bytes.
const MOST_ORDER: usize = 1 << 30;

/// A name that the kernel is to let go of.
pub type Unwanted = (Ino, Arc<str>);

/// The file system.
pub struct View {
    inner: Arc<Inner>,
    runtime: Handle,
    workers: Workers,
    /// Where names go that the kernel is to let go of: never told from here, for the kernel may be waiting for an answer with the same directory locked.
    unwanted: Mutex<Sender<Unwanted>>,
}

/// What answers.
pub(crate) struct Inner {
    pub(crate) names: Arc<Names>,
    /// Who writes, where that is allowed.
    pub(crate) writing: Option<Arc<Writing>>,
    /// Entries for those that open files to write them.
    pub(crate) asides: Mutex<Vec<Aside>>,
    shared: Arc<Shared>,
    pub(crate) files: Mutex<FxHashMap<u64, Arc<OpenFile>>>,
    directories: Mutex<FxHashMap<u64, Arc<Vec<Listed>>>>,
    /// What was said of the mount to whoever has that open, and orders that are being written.
    said: Mutex<FxHashMap<u64, Arc<String>>>,
    told: Mutex<FxHashMap<u64, Vec<u8>>>,
    next: AtomicU64,
    owner: (u32, u32),
    modes: (u16, u16),
    begun: SystemTime,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl View {
    /// Shows these names, and reads by way of what all files share.
    #[must_use]
    pub fn new(
        settings: &Settings,
        names: Arc<Names>,
        shared: Arc<Shared>,
        writing: Option<Arc<Writing>>,
        runtime: Handle,
        unwanted: Sender<Unwanted>,
    ) -> Self {
        let owner = (
            settings.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            settings.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        );
        let inner = Inner {
            names,
            writing,
            asides: Mutex::default(),
            shared,
            files: Mutex::default(),
            directories: Mutex::default(),
            said: Mutex::default(),
            told: Mutex::default(),
            next: AtomicU64::new(1),
            owner,
            modes: (settings.file_mode, settings.dir_mode),
            begun: SystemTime::now(),
        };
        let view = View {
            inner: Arc::new(inner),
            runtime,
            workers: Workers::new(usize::from(MOST_BACKGROUND)),
            unwanted: Mutex::new(unwanted),
        };
        view.tidy();
        view
    }

    fn open_stats(&self, reply: ReplyOpen) {
        let (inner, handle) = (&self.inner, self.inner.number());
        let said = format!("{}\n", inner.shared.report(&inner.names, inner.writing.as_deref()));
        locked(&inner.said).insert(handle, Arc::new(said));
        // Its size isn't known before it is read.
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
    }

    /// What lies unread in files that nobody reads goes back, again and again until the mount ends.
    fn tidy(&self) {
        let inner = Arc::downgrade(&self.inner);
        self.runtime.spawn(async move {
            let mut pause = tokio::time::interval(TIDY);
            loop {
                pause.tick().await;
                let Some(inner) = inner.upgrade() else { return };
                let files: Vec<Arc<OpenFile>> = locked(&inner.files).values().cloned().collect();
                files.iter().for_each(|file| file.rest(UNREAD));
            }
        });
    }

    /// Files that nobody reads give back what lies in them, those first that nobody has read for longest, until no more lies here than may.
    fn shrink(inner: &Inner) {
        let shared = &inner.shared;
        if shared.held_bytes.load(Ordering::Relaxed) <= shared.most_held {
            return;
        }
        let mut files: Vec<Arc<OpenFile>> = locked(&inner.files).values().cloned().collect();
        files.sort_by_cached_key(|file| file.read_at());
        for file in files {
            if shared.held_bytes.load(Ordering::Relaxed) <= shared.most_held {
                return;
            }
            file.rest(AT_IT);
        }
    }

    /// A name that may be changed something about.
    fn may_change(&self, name: &OsStr) -> Result<String, Errno> {
        self.inner.writing()?;
        text(name).map(str::to_owned)
    }

    fn open_to_write(&self, ino: Ino, how: How, reply: ReplyOpen) {
        if self.inner.writing.is_none() {
            return reply.error(Errno::EROFS);
        }
        let inner = Arc::clone(&self.inner);
        self.runtime.spawn(async move {
            let handle = inner.number();
            match inner.open_to_write(ino, handle, how).await {
                Ok(()) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
                Err(error) => reply.error(error),
            }
        });
        self.tell_unwanted();
    }

    fn tell_unwanted(&self) {
        let unwanted = self.inner.names.tree().unwanted();
        if unwanted.is_empty() {
            return;
        }
        let sender = locked(&self.unwanted);
        for each in unwanted {
            // Whoever is gone hears nothing any more.
            let _ = sender.send(each);
        }
    }
}

impl Inner {
    fn attributes(&self, ino: Ino, kind: &Kind) -> FileAttr {
        let (is_directory, size, modified) = match kind {
            Kind::File(object) => (false, object.size, object.modified.unwrap_or(self.begun)),
            _ => (true, 0, self.begun),
        };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind: if is_directory {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if is_directory { self.modes.1 } else { self.modes.0 },
            nlink: if is_directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }

    /// What isn't of the bucket, by its number.
    fn control(&self, ino: Ino) -> Option<FileAttr> {
        let mut attributes = self.attributes(ino, &Kind::Directory);
        if ino == CONTROL_INO {
            return Some(attributes);
        }
        attributes.kind = FileType::RegularFile;
        attributes.nlink = 1;
        attributes.perm = match ino {
            STATS_INO => 0o444,
            ORDER_INO => 0o222,
            _ => return None,
        };
        Some(attributes)
    }

    /// The number of what isn't of the bucket.
    fn control_by_name(parent: Ino, name: &str) -> Option<Ino> {
        match (parent, name) {
            (ROOT, CONTROL) => Some(CONTROL_INO),
            (CONTROL_INO, STATS) => Some(STATS_INO),
            (CONTROL_INO, ORDER) => Some(ORDER_INO),
            _ => None,
        }
    }

    /// What an entry is, and how long the kernel may believe that.
    fn known(&self, ino: Ino) -> Option<(FileAttr, Duration)> {
        if let Some(attributes) = self.control(ino).filter(|_| ino >= ORDER_INO) {
            return Some((attributes, FOREVER));
        }
        let (kind, fresh) = self.names.tree().kind(ino, Instant::now())?;
        if kind == Kind::Missing {
            return None;
        }
        let mut attributes = self.attributes(ino, &kind);
        if let Some(file) = self.writing.as_ref().and_then(|writing| writing.by_ino(ino)) {
            attributes.size = file.size();
            attributes.blocks = attributes.size.div_ceil(512);
            return Some((attributes, Duration::ZERO));
        }
        Some((attributes, fresh))
    }

    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A file that is being written, and who writes it.
    fn written(&self, handle: FileHandle) -> Option<(Arc<Writing>, Arc<NewFile>)> {
        let writing = self.writing.as_ref()?;
        Some((Arc::clone(writing), writing.of(handle.0)?))
    }

    /// What is said of what no bucket has.
    fn no_such_thing(&self) -> Errno {
        match self.writing {
            Some(_) => Errno::EPERM,
            None => Errno::EROFS,
        }
    }

    async fn look_up(&self, parent: Ino, name: &str, reply: ReplyEntry) {
        match self.names.look_up(parent, name).await {
            Ok(ino) => self.entry(ino, reply),
            Err(error) => reply.error(error),
        }
    }

    fn entry(&self, ino: Ino, reply: ReplyEntry) {
        match self.known(ino) {
            Some((attributes, fresh)) => {
                self.names.tree().refer(ino);
                reply.entry(&fresh, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Asks for an entry again, by its name: what is there now may be another one.
    async fn renew(&self, ino: Ino) -> Result<(), Errno> {
        let name = self.names.tree().name(ino).filter(|_| ino != ROOT);
        let Some((parent, name)) = name else { return Ok(()) };
        match self.names.look_up(parent, &name).await {
            Ok(found) if found == ino => Ok(()),
            Ok(_) | Err(Errno::ENOENT) => Err(Errno::ESTALE),
            Err(error) => Err(error),
        }
    }

    async fn attribute(&self, ino: Ino, reply: ReplyAttr) {
        match self.renew(ino).await {
            Ok(()) | Err(Errno::ESTALE) => self.attribute_at_hand(ino, reply),
            Err(error) => reply.error(error),
        }
    }

    fn open_file(&self, ino: Ino, reply: ReplyOpen) {
        let (kind, key, is_kept, is_ours) = {
            let mut tree = self.names.tree();
            // The kernel asks for the name again then.
            if !tree.is_linked(ino) {
                return reply.error(Errno::ESTALE);
            }
            let (kind, key, is_ours) = (tree.kind(ino, Instant::now()), tree.key(ino), tree.is_ours(ino));
            (kind, key, tree.keep(ino), is_ours)
        };
        if is_ours {
            let key = key.unwrap_or_default();
            crate::log::line(format_args!(
                "{key}: it is being written, and can be read when it is closed"
            ));
            return reply.error(Errno::EBUSY);
        }
        let (Some((Kind::File(object), _)), Some(key)) = (kind, key) else {
            return reply.error(Errno::ESTALE);
        };
        // Pages of another object are no use; those of this one stay.
        let mut flags = FopenFlags::empty();
        if is_kept {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        // Who only reads has nothing to be said of when it is closed.
        flags |= FopenFlags::FOPEN_NOFLUSH;
        let file = OpenFile::new(Arc::clone(&self.shared), ino, key, object);
        let handle = self.number();
        locked(&self.files).insert(handle, Arc::new(file));
        reply.opened(FileHandle(handle), flags);
    }

    fn attribute_at_hand(&self, ino: Ino, reply: ReplyAttr) {
        match self.known(ino) {
            Some((attributes, fresh)) => reply.attr(&fresh, &attributes),
            None => reply.error(Errno::ESTALE),
        }
    }

    async fn open_directory(&self, ino: Ino, reply: ReplyOpen) {
        match self.names.list(ino).await {
            Ok(listing) => {
                let handle = self.number();
                locked(&self.directories).insert(handle, Arc::new(listing));
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    /// What comes in a directory from `offset` on: number, name, what it is, and how long that is believed.
    fn entries(&self, ino: Ino, handle: FileHandle, offset: u64) -> Option<impl Iterator<Item = Entry> + '_> {
        let listing = Arc::clone(locked(&self.directories).get(&handle.0)?);
        let above = self.names.tree().name(ino).map_or(ROOT, |(parent, _)| parent);
        let entry = move |nth: u64| match nth {
            0 => self.dot(ino, "."),
            1 => self.dot(above, ".."),
            _ => {
                let Listed { name, kind } = listing.get((nth - DOTS) as usize)?;
                let now = Instant::now();
                let mut tree = self.names.tree();
                // What has left for others meanwhile is there all the same.
                let ino = match tree.look(ino, name, now) {
                    Look::Found(found) => found,
                    Look::Missing => return None,
                    Look::Unknown => tree.put(ino, name, kind.clone(), now)?,
                };
                drop(tree);
                let (attributes, fresh) = self.known(ino)?;
                let name = Arc::clone(name);
                Some(Entry {
                    nth,
                    ino,
                    name,
                    attributes,
                    fresh,
                })
            }
        };
        let count = DOTS + locked(&self.directories).get(&handle.0)?.len() as u64;
        Some((offset..count).filter_map(entry))
    }

    /// These files are read next, in this order: paths, a line each, which begin where the mount does.
    async fn order(&self, text: &[u8]) -> Result<(), Errno> {
        let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let mut files = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let ino = self.names.resolve(line.trim_start_matches('/')).await?;
            let kind = self.names.tree().kind(ino, Instant::now());
            let Some((Kind::File(object), _)) = kind else {
                return Err(Errno::EISDIR);
            };
            files.push((ino, line.trim_start_matches('/').to_owned(), object));
        }
        let shared = Arc::clone(&self.shared);
        let ordered = tokio::task::spawn_blocking(move || shared.shelves.order(files));
        let ordered = ordered.await.map_err(|_| Errno::EIO)?;
        ordered.map_err(|error| crate::failure::of_client(&error, "in the order that was told"))
    }

    fn dot(&self, ino: Ino, name: &str) -> Option<Entry> {
        Some(Entry {
            nth: name.len() as u64 - 1,
            ino,
            name: name.into(),
            attributes: self.attributes(ino, &Kind::Directory),
            fresh: Duration::ZERO,
        })
    }
}

/// One of a directory.
struct Entry {
    nth: u64,
    ino: Ino,
    name: Arc<str>,
    attributes: FileAttr,
    fresh: Duration,
}

fn text(name: &OsStr) -> Result<&str, Errno> {
    if name.len() > MOST_NAME {
        return Err(Errno::ENAMETOOLONG);
    }
    // Keys are text.
    name.to_str().ok_or(Errno::ENOENT)
}

/// How a file is opened to be written.
fn how(flags: i32, request: &Request) -> How {
    let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
    How {
        is_exclusive: flags.contains(rustix::fs::OFlags::EXCL),
        truncates: flags.contains(rustix::fs::OFlags::TRUNC),
        pid: request.pid(),
    }
}

fn answer(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for View {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_background(MOST_BACKGROUND);
        let _ = config.set_max_write(MOST_REQUEST);
        if let Err(most) = config.set_max_readahead(MOST_REQUEST) {
            let _ = config.set_max_readahead(most);
        }
        for wanted in [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Whoever opens a file to write it anew says so at once.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
        ] {
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = match text(name) {
            Ok(name) => name.to_owned(),
            Err(error) => return reply.error(error),
        };
        let inner = Arc::clone(&self.inner);
        if let Some(ino) = Inner::control_by_name(parent.0, &name) {
            return inner.entry(ino, reply);
        }
        if parent.0 == CONTROL_INO {
            return reply.error(Errno::ENOENT);
        }
        if let Some(ino) = inner.aside_of(parent.0, &name) {
            return inner.entry(ino, reply);
        }
        let known = inner.names.tree().look(parent.0, &name, Instant::now());
        match known {
            Look::Found(ino) => inner.entry(ino, reply),
            Look::Missing => reply.error(Errno::ENOENT),
            Look::Unknown => {
                self.runtime
                    .spawn(async move { inner.look_up(parent.0, &name, reply).await });
            }
        }
        self.tell_unwanted();
    }

    fn forget(&self, _request: &Request, ino: INodeNo, times: u64) {
        self.inner.names.tree().forget(ino.0, times);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let inner = Arc::clone(&self.inner);
        match inner.known(ino.0) {
            // What isn't there by its name any more is what it was for whoever has it open.
            Some((_, fresh)) if fresh.is_zero() && ino.0 != ROOT && inner.names.tree().is_linked(ino.0) => {
                self.runtime.spawn(async move { inner.attribute(ino.0, reply).await });
            }
            Some(_) => inner.attribute_at_hand(ino.0, reply),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Whoever opens it to write anew.
        if ino.0 == ORDER_INO {
            return self.inner.attribute_at_hand(ino.0, reply);
        }
        let Some(writing) = self.inner.writing.clone().filter(|_| ino.0 < ORDER_INO) else {
            return reply.error(Errno::EROFS);
        };
        // A bucket keeps no owner, no bits and no times of a program's.
        let Some(size) = size else {
            return self.inner.attribute_at_hand(ino.0, reply);
        };
        let (inner, pid) = (Arc::clone(&self.inner), request.pid());
        let file = handle
            .and_then(|handle| writing.of(handle.0))
            .or_else(|| writing.by_ino(ino.0));
        self.runtime.spawn(async move {
            let resized = match (file, size) {
                (Some(file), _) => inner.resize(&file, size).await,
                (None, 0) => inner.empty(ino.0, pid).await,
                (None, _) => {
                    crate::log::line(format_args!("an object can be cut to nothing, and to no other size"));
                    Err(Errno::EOPNOTSUPP)
                }
            };
            match resized {
                Ok(()) => inner.attribute_at_hand(ino.0, reply),
                Err(error) => reply.error(error),
            }
        });
        self.tell_unwanted();
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match ino.0 {
            STATS_INO => return self.open_stats(reply),
            ORDER_INO => {
                let handle = self.inner.number();
                locked(&self.inner.told).insert(handle, Vec::new());
                return reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
            }
            _ => {}
        }
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return self.open_to_write(ino.0, how(flags.0, request), reply);
        }
        let inner = Arc::clone(&self.inner);
        if inner.writing.is_some() && !inner.names.tree().is_linked(ino.0) {
            self.runtime.spawn(async move {
                inner.stands_aside(ino.0).await;
                reply.error(Errno::ESTALE);
            });
            return;
        }
        let fresh = inner.names.tree().kind(ino.0, Instant::now()).map(|(_, fresh)| fresh);
        match fresh {
            Some(fresh) if fresh.is_zero() => {
                self.runtime.spawn(async move {
                    match inner.renew(ino.0).await {
                        Ok(()) => inner.open_file(ino.0, reply),
                        Err(error) => reply.error(error),
                    }
                });
            }
            _ => inner.open_file(ino.0, reply),
        }
        self.tell_unwanted();
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = locked(&self.inner.files).get(&handle.0).cloned() else {
            if let Some(file) = self.inner.writing.as_ref().and_then(|writing| writing.of(handle.0)) {
                let (inner, ino) = (Arc::clone(&self.inner), file.ino);
                self.runtime.spawn(async move {
                    let (key, object) = match file.read(offset, size as usize).await {
                        Ok(Read::Here(bytes)) => return reply.data(&bytes),
                        Ok(Read::Of(key, object)) => (key, object),
                        Err(error) => return reply.error(error),
                    };
                    let new = || Arc::new(OpenFile::new(Arc::clone(&inner.shared), ino, key, object));
                    let file = Arc::clone(locked(&inner.files).entry(handle.0).or_insert_with(new));
                    let read = tokio::task::spawn_blocking(move || file.read(offset, u64::from(size), <[u8]>::to_vec));
                    match read.await.unwrap_or(Err(Errno::EIO)) {
                        Ok(bytes) => reply.data(&bytes),
                        Err(error) => reply.error(error),
                    }
                });
                return;
            }
            let said = locked(&self.inner.said).get(&handle.0).cloned();
            return match said {
                Some(said) => {
                    let from = said.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
                    reply.data(&said.as_bytes()[from..said.len().min(from + size as usize)]);
                }
                None => reply.error(Errno::EBADF),
            };
        };
        let mut reply = Some(reply);
        let mut answer = |bytes: &[u8]| {
            if let Some(reply) = reply.take() {
                reply.data(bytes);
            }
        };
        let at_hand = file.read_at_hand(offset, u64::from(size), &mut answer);
        let Some(reply) = reply.take() else { return };
        match at_hand {
            Some(Err(error)) => reply.error(error),
            _ => {
                let inner = Arc::clone(&self.inner);
                self.workers.run(move || {
                    Self::shrink(&inner);
                    let mut reply = Some(reply);
                    let answered = file.read(offset, u64::from(size), |bytes| {
                        if let Some(reply) = reply.take() {
                            reply.data(bytes);
                        }
                    });
                    if let (Err(error), Some(reply)) = (answered, reply) {
                        reply.error(error);
                    }
                });
            }
        }
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(writing) = self
            .inner
            .writing
            .clone()
            .filter(|writing| writing.of(handle.0).is_some())
        {
            self.runtime.spawn(async move { writing.release(handle.0).await });
            let file = locked(&self.inner.files).remove(&handle.0);
            reply.ok();
            return drop(file);
        }
        let file = locked(&self.inner.files).remove(&handle.0);
        locked(&self.inner.said).remove(&handle.0);
        locked(&self.inner.told).remove(&handle.0);
        reply.ok();
        drop(file);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some((writing, file)) = self.inner.written(handle) {
            match writing.write_at_hand(&file, offset, data) {
                Some(Ok(())) => return reply.written(data.len() as u32),
                Some(Err(error)) => return reply.error(error),
                None => {}
            }
            let data = data.to_vec();
            self.runtime.spawn(async move {
                match writing.write(&file, offset, &data).await {
                    Ok(()) => reply.written(data.len() as u32),
                    Err(error) => reply.error(error),
                }
            });
            return;
        }
        let mut told = locked(&self.inner.told);
        let Some(text) = told.get_mut(&handle.0) else {
            return reply.error(Errno::EROFS);
        };
        if offset != text.len() as u64 {
            return reply.error(Errno::EINVAL);
        }
        if text.len() + data.len() > MOST_ORDER {
            return reply.error(Errno::EFBIG);
        }
        text.extend_from_slice(data);
        reply.written(data.len() as u32);
    }

    /// An order that was written is read when it is closed, and whoever closes it hears what is wrong with it.
    fn flush(&self, request: &Request, _ino: INodeNo, handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        if let Some((writing, file)) = self.inner.written(handle) {
            let pid = request.pid();
            let is_opener = file.is_opener(pid);
            self.runtime.spawn(async move {
                // A child that has it open, too, ends without closing it for others.
                if !is_opener {
                    return reply.ok();
                }
                // A shell closes one of two descriptors before anything is written; what is empty then may become more.
                let is_last = !file.has_content() && !file.is_open_elsewhere(pid);
                answer(writing.complete(&file, is_last).await, reply);
            });
            return;
        }
        let text = locked(&self.inner.told).get_mut(&handle.0).map(std::mem::take);
        match text.filter(|text| !text.is_empty()) {
            None => reply.ok(),
            Some(text) => {
                let inner = Arc::clone(&self.inner);
                self.runtime.spawn(async move {
                    match inner.order(&text).await {
                        Ok(()) => reply.ok(),
                        Err(error) => reply.error(error),
                    }
                });
            }
        }
    }

    fn mknod(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EROFS);
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let Some((writing, file)) = self.inner.written(handle) else {
            return reply.ok();
        };
        self.runtime
            .spawn(async move { answer(writing.complete(&file, true).await, reply) });
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        let name = match self.may_change(name) {
            Ok(name) => name,
            Err(error) => return reply.error(error),
        };
        let inner = Arc::clone(&self.inner);
        self.runtime.spawn(async move {
            match inner.make_directory(parent.0, &name).await {
                Ok(ino) => inner.entry(ino, reply),
                Err(error) => reply.error(error),
            }
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = match self.may_change(name) {
            Ok(name) => name,
            Err(error) => return reply.error(error),
        };
        let inner = Arc::clone(&self.inner);
        self.runtime
            .spawn(async move { answer(inner.delete(parent.0, &name).await, reply) });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = match self.may_change(name) {
            Ok(name) => name,
            Err(error) => return reply.error(error),
        };
        let inner = Arc::clone(&self.inner);
        self.runtime
            .spawn(async move { answer(inner.remove_directory(parent.0, &name).await, reply) });
    }

    fn symlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(self.inner.no_such_thing());
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let names = self
            .may_change(name)
            .and_then(|name| Ok((name, self.may_change(new_name)?)));
        let (name, new_name) = match names {
            Ok(names) => names,
            Err(error) => return reply.error(error),
        };
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let inner = Arc::clone(&self.inner);
        self.runtime.spawn(async move {
            let is_exclusive = flags.contains(RenameFlags::RENAME_NOREPLACE);
            let renamed = inner.rename((parent.0, &name), (new_parent.0, &new_name), is_exclusive);
            answer(renamed.await, reply);
        });
        self.tell_unwanted();
    }

    fn link(&self, _request: &Request, _ino: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(self.inner.no_such_thing());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = match self.may_change(name) {
            Ok(name) => name,
            Err(error) => return reply.error(error),
        };
        let (inner, how) = (Arc::clone(&self.inner), how(flags, request));
        self.runtime.spawn(async move {
            let handle = inner.number();
            let made = inner.create(parent.0, &name, handle, how).await;
            match made.and_then(|ino| Ok((ino, inner.known(ino).ok_or(Errno::ESTALE)?))) {
                Ok((ino, (attributes, fresh))) => {
                    inner.names.tree().refer(ino);
                    let (handle, flags) = (FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
                    reply.created(&fresh, &attributes, Generation(0), handle, flags);
                }
                Err(error) => reply.error(error),
            }
        });
        self.tell_unwanted();
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if ino.0 == CONTROL_INO {
            let handle = self.inner.number();
            locked(&self.inner.directories).insert(handle, Arc::default());
            return reply.opened(FileHandle(handle), FopenFlags::empty());
        }
        let inner = Arc::clone(&self.inner);
        self.runtime
            .spawn(async move { inner.open_directory(ino.0, reply).await });
        self.tell_unwanted();
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(entries) = self.inner.entries(ino.0, handle, offset) else {
            return reply.error(Errno::EBADF);
        };
        for entry in entries {
            if reply.add(INodeNo(entry.ino), entry.nth + 1, entry.attributes.kind, &*entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let Some(entries) = self.inner.entries(ino.0, handle, offset) else {
            return reply.error(Errno::EBADF);
        };
        for entry in entries {
            let number = INodeNo(entry.ino);
            let is_full = reply.add(
                number,
                entry.nth + 1,
                &*entry.name,
                &entry.fresh,
                &entry.attributes,
                Generation(0),
            );
            if is_full {
                break;
            }
            if entry.nth >= DOTS {
                self.inner.names.tree().refer(entry.ino);
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        locked(&self.inner.directories).remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // A bucket has no size: programs that look for room find as much as they may need.
        let free = if self.inner.writing.is_some() { FREE } else { 0 };
        reply.statfs(free, free, free, free, free, BLOCK, MOST_NAME as u32, BLOCK);
    }
}
