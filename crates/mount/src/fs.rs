//! What the kernel asks, and how it is answered.
//!
//! A question that can be answered from what is here is answered on the kernel's own thread. One about names goes to a thread with a runtime, and a read that has to wait to one of
//! the [workers](crate::workers), so no thread of the kernel's waits for a bucket.

use crate::changes::How;
use crate::copies::Copies;
use crate::file::{OpenFile, Shared};
use crate::inner::{BLOCK, CONTROL_INO, DOTS, Inner, LOCKED_PATIENCE, ORDER_INO, PATIENCE, STATS_INO};
use crate::locked;
use crate::names::Names;
use crate::resident::Resident;
use crate::settings::Settings;
use crate::tree::{Ino, Look, MOST_NAME, ROOT};
use crate::unwanted::Unwanted;
use crate::workers::Workers;
use crate::writing::{Read, Writing};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;

/// Requests of the kernel that may be on their way, and bytes of each.
const MOST_BACKGROUND: u16 = 256;
const MOST_REQUEST: u32 = 1 << 20;

/// To list so many names takes more for a while than to keep them.
const MANY: usize = 10_000;
/// Whoever tells an order waits so long to hear what is wrong with it.
const HEARD: Duration = Duration::from_secs(5);
/// Blocks that are free where there is no end: a petabyte.
const FREE: u64 = (1 << 50) / BLOCK as u64;

/// An order's text at most: ten million files by names of a hundred bytes.
const MOST_ORDER: usize = 1 << 30;

/// What not every mount has.
#[derive(Default)]
pub struct Beside {
    /// Who writes.
    pub writing: Option<Arc<Writing>>,
    /// What the kernel reads by itself.
    pub copies: Option<Arc<Copies>>,
    /// Where it is seen.
    pub resident: Option<Resident>,
}

/// The file system.
pub struct View {
    inner: Arc<Inner>,
    runtime: Handle,
    workers: Workers,
}

impl View {
    /// Shows these names, and reads by way of what all files share.
    #[must_use]
    pub fn new(
        settings: &Settings,
        names: Arc<Names>,
        shared: Arc<Shared>,
        beside: Beside,
        runtime: Handle,
        unwanted: Unwanted,
    ) -> Self {
        let owner = (
            settings.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            settings.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        );
        let inner = Inner {
            names,
            writing: beside.writing,
            resident: beside.resident.map(Arc::new),
            copies: beside.copies,
            asides: Mutex::default(),
            shared,
            files: Mutex::default(),
            directories: Mutex::default(),
            said: Mutex::default(),
            told: Mutex::default(),
            unwanted,
            next: AtomicU64::new(1),
            owner,
            modes: (settings.file_mode, settings.dir_mode),
            begun: SystemTime::now(),
        };
        View {
            inner: Arc::new(inner),
            runtime,
            workers: Workers::new(usize::from(MOST_BACKGROUND)),
        }
    }

    fn open_stats(&self, reply: ReplyOpen) {
        let (inner, handle) = (&self.inner, self.inner.number());
        let said = format!(
            "{}\n",
            inner
                .shared
                .report(&inner.names, inner.writing.as_deref(), inner.copies.as_deref())
        );
        locked(&inner.said).insert(handle, Arc::new(said));
        // Its size isn't known before it is read.
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
    }

    /// A name that may be changed something about.
    fn may_change(&self, name: &OsStr) -> Result<String, Errno> {
        self.inner.writing()?;
        let name = text(name).map_err(|errno| match errno.code() {
            // There is nothing by a name that no key can have, and nothing can be made by it.
            code if code == Errno::ENOENT.code() => Errno::EINVAL,
            _ => errno,
        })?;
        Ok(name.to_owned())
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
                Err(error) => {
                    inner.close_unopened(handle).await;
                    reply.error(error);
                }
            }
        });
        self.inner.tell_unwanted();
    }
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
        if self.inner.copies.is_some() {
            let is_able = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
            if !is_able || config.set_max_stack_depth(1).is_err() {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "--copies: this kernel doesn't read files of another file system by itself (Linux 6.9 does, with CONFIG_FUSE_PASSTHROUGH)",
                ));
            }
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
        self.inner.tell_unwanted();
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
        let written = handle.and_then(|handle| writing.of(handle.0));
        let by_name = writing.by_ino(ino.0).filter(|_| written.is_none());
        self.runtime.spawn(async move {
            let resized = match (written.or(by_name.clone()), size) {
                (Some(file), _) => {
                    // What was closed already nobody completes any more.
                    let is_done = by_name.is_some() && !file.is_under_way();
                    match inner.resize(&file, size).await {
                        Ok(()) if is_done => writing.complete(&file, true).await,
                        resized => resized,
                    }
                }
                (None, 0) => inner.empty(ino.0, pid).await,
                (None, _) => {
                    crate::log::line(format_args!("an object can be cut to nothing, and to no other size"));
                    Err(Errno::EOPNOTSUPP)
                }
            };
            inner.has_let_go(LOCKED_PATIENCE, false).await;
            match resized {
                Ok(()) => inner.attribute_at_hand(ino.0, reply),
                Err(error) => reply.error(error),
            }
        });
        self.inner.tell_unwanted();
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
        let (inner, thread) = (Arc::clone(&self.inner), request.pid());
        if how(flags.0, request).truncates && inner.has_bytes(ino.0) {
            if inner.writing.is_none() {
                return reply.error(Errno::EROFS);
            }
            self.runtime.spawn(async move {
                // The kernel asks for the name again, and opens what is there then.
                let emptied = inner.empty(ino.0, thread).await;
                reply.error(emptied.err().unwrap_or(Errno::ESTALE));
            });
            return self.inner.tell_unwanted();
        }
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
                        Ok(()) => inner.open_file(ino.0, thread, reply),
                        Err(error) => reply.error(error),
                    }
                });
            }
            _ => inner.open_file(ino.0, thread, reply),
        }
        self.inner.tell_unwanted();
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
                    let new = || OpenFile::new(&inner.shared, ino, key, object);
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
                    inner.shared.shrink();
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
            let inner = Arc::clone(&self.inner);
            self.runtime.spawn(async move {
                writing.release(handle.0).await;
                inner.tell_unwanted();
            });
            let file = locked(&self.inner.files).remove(&handle.0);
            reply.ok();
            return drop(file);
        }
        locked(&self.inner.said).remove(&handle.0);
        locked(&self.inner.told).remove(&handle.0);
        reply.ok();
        self.inner.close_file(handle.0);
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
        if let Some((_, file)) = self.inner.written(handle) {
            let pid = request.pid();
            let (is_opener, inner) = (file.is_opener(pid), Arc::clone(&self.inner));
            self.runtime.spawn(async move {
                // A child that has it open, too, ends without closing it for others.
                if !is_opener {
                    return reply.ok();
                }
                // A shell closes one of two descriptors before anything is written; what is empty then may become more.
                let is_last = !file.has_content() && !file.is_open_elsewhere(pid);
                answer(inner.complete(&file, is_last, PATIENCE).await, reply);
            });
            return;
        }
        let text = locked(&self.inner.told).get_mut(&handle.0).map(std::mem::take);
        match text.filter(|text| !text.is_empty()) {
            None => reply.ok(),
            Some(text) => {
                let (inner, thread) = (Arc::clone(&self.inner), request.pid());
                let told = self.runtime.spawn(async move { inner.order(thread, &text).await });
                self.runtime.spawn(async move {
                    // Who closes can't be killed meanwhile. What goes wrong later, the log says.
                    let heard = tokio::time::timeout(HEARD, told).await;
                    answer(heard.map_or(Ok(()), |told| told.unwrap_or(Err(Errno::EIO))), reply);
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
        // A bucket has files.
        reply.error(self.inner.writing().err().unwrap_or(Errno::EPERM));
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let Some((_, file)) = self.inner.written(handle) else {
            return reply.ok();
        };
        let inner = Arc::clone(&self.inner);
        self.runtime
            .spawn(async move { answer(inner.complete(&file, true, LOCKED_PATIENCE).await, reply) });
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
            let renamed = renamed.await;
            inner.tell_unwanted();
            answer(renamed, reply);
        });
        self.inner.tell_unwanted();
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
                Err(error) => {
                    inner.close_unopened(handle).await;
                    reply.error(error);
                }
            }
        });
        self.inner.tell_unwanted();
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if ino.0 == CONTROL_INO {
            let handle = self.inner.number();
            locked(&self.inner.directories).insert(handle, (Arc::default(), Instant::now()));
            return reply.opened(FileHandle(handle), FopenFlags::empty());
        }
        let inner = Arc::clone(&self.inner);
        self.runtime
            .spawn(async move { inner.open_directory(ino.0, reply).await });
        self.inner.tell_unwanted();
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
        let listing = locked(&self.inner.directories).remove(&handle.0);
        reply.ok();
        if listing.is_some_and(|(listing, _)| listing.len() >= MANY) {
            self.runtime.spawn_blocking(crate::trim);
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // A bucket has no size: programs that look for room find as much as they may need.
        let free = if self.inner.writing.is_some() { FREE } else { 0 };
        reply.statfs(free, free, free, free, free, BLOCK, MOST_NAME as u32, BLOCK);
    }
}
