//! Copies of files on a disk of this machine, which the kernel reads by itself (FUSE passthrough, Linux 6.9).
//!
//! A file that the kernel has all of when it is closed is copied to a file of its own, by a thread in the background; whoever opens it next is given that one, and reads it as any local
//! file: nothing is asked of this program any more. The bytes are those of the page cache, so that nothing is fetched for a copy.
//!
//! A copy is of one version of an object, by which it is named. All of them take no more than so many bytes. What is here stays while it is read: where files are read in turn, one that
//! would take the place of another is no likelier to be read next. What nobody has opened while several times as much as there is room for was turned away leaves.
//!
//! For all who have a file open at once, the kernel reads it either by way of the copy or through its page cache; [`Copies::open`] says how.

use crate::locked;
use crate::names::Names;
use crate::resident::Resident;
use crate::tree::{Ino, Kind, Object};
use foreload_engine::calls::DiskShare;
use foreload_engine::disk::DiskSettings;
use foreload_plan::{Digest, DigestBuilder};
use fuser::BackingId;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Smaller files aren't worth it: one request has all of them, and the agent's disks keep them for loaders, too.
const LEAST: u64 = 4 << 20;
/// Files that may wait to be copied.
const WAITING: usize = 256;
/// Bytes that are copied at a time.
const PIECE: usize = 16 << 20;
/// A copy leaves when nobody has opened it while so many times as much as there is room for was turned away.
const PATIENCE: u64 = 8;
/// What the name of a copy that isn't whole ends with.
const UNFINISHED: &str = ".new";
const LOCK: &str = "lock";
/// What file systems of containers are.
const OVERLAY: rustix::fs::FsWord = 0x794c_7630;

/// Which version of an object it is, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    digest: Digest,
    bytes: u64,
}

/// A copy that is here.
struct Copy {
    version: Version,
    /// What had been turned away when it was opened last.
    opened_at: u64,
}

/// What the kernel reads by way of a copy.
struct Passing {
    key: Digest,
    version: Version,
    backing: Arc<BackingId>,
    handles: usize,
}

#[derive(Default)]
struct Known {
    copies: FxHashMap<Digest, Copy>,
    bytes: u64,
    turned_away: u64,
    passing: FxHashMap<Ino, Passing>,
    handles: FxHashMap<u64, Ino>,
    /// What is open to be copied.
    own: FxHashSet<u64>,
}

/// How a file is to be opened.
pub enum Way {
    /// The kernel reads a copy.
    Copy(Arc<BackingId>),
    /// The kernel asks for what its page cache lacks.
    Cache,
    /// It asks for all: others read a copy of what the file was before.
    Direct,
}

/// A file that is closed, and may be copied.
pub struct Closed {
    /// Its entry.
    pub ino: Ino,
    /// Its key.
    pub key: String,
    /// What was open.
    pub object: Object,
}

/// All of them.
pub struct Copies {
    place: PathBuf,
    most: u64,
    /// What all digests begin with.
    root: String,
    known: Mutex<Known>,
    wanted: SyncSender<Closed>,
    /// The thread that copies, by its number: what it has open nobody wants.
    copier: AtomicU32,
    /// It was said that the kernel doesn't take them.
    is_refused: AtomicBool,
    opened: AtomicU64,
    /// Held as long as this is: nobody else keeps copies there.
    _lock: File,
}

/// Files that are to be copied.
pub struct Work(Receiver<Closed>);

impl Copies {
    /// Keeps copies there, and finds those that are there already. `root` names the bucket.
    ///
    /// # Errors
    /// The directory can't be used, or another mount uses it.
    pub fn open_place(share: &DiskShare, root: String) -> io::Result<(Arc<Self>, Work)> {
        let place = share.directory.clone();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", share.directory.display()));
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&place).map_err(named)?;
        if rustix::fs::statfs(&place)?.f_type == OVERLAY {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{}: the kernel reads no files of an overlay by itself; give a directory of a disk",
                    place.display()
                ),
            ));
        }
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).mode(0o600);
        let lock = lock.open(place.join(LOCK)).map_err(named)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{}: another mount keeps its copies there; give each a directory of its own",
                    place.display()
                ),
            ),
            error => named(error.into()),
        })?;
        let known = found(&place, share.capacity_bytes).map_err(named)?;
        let (wanted, work) = sync_channel(WAITING);
        let copies = Copies {
            place,
            most: share.capacity_bytes,
            root,
            known: Mutex::new(known),
            wanted,
            copier: AtomicU32::new(0),
            is_refused: AtomicBool::new(false),
            opened: AtomicU64::new(0),
            _lock: lock,
        };
        Ok((Arc::new(copies), Work(work)))
    }

    /// How many are here, their bytes, and how often one was opened.
    #[must_use]
    pub fn counts(&self) -> (usize, u64, u64) {
        let known = locked(&self.known);
        (known.copies.len(), known.bytes, self.opened.load(Ordering::Relaxed))
    }

    /// Whether there is a copy of this.
    #[must_use]
    pub fn has(&self, key: &str, object: &Object) -> bool {
        let Some((key, version)) = self.names(key, object) else {
            return false;
        };
        let known = locked(&self.known);
        known.copies.get(&key).is_some_and(|copy| copy.version == version)
    }

    /// How this is opened by a thread, by what number. `is_cached` says whether somebody has it open through the page cache, and `back` makes the kernel's reference to a local file.
    pub fn open(
        &self,
        (handle, thread): (u64, u32),
        ino: Ino,
        (key, object): (&str, &Object),
        is_cached: impl FnOnce() -> bool,
        back: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Way {
        let names = self.names(key, object);
        let mut known = locked(&self.known);
        let known = &mut *known;
        if self.copier.load(Ordering::Relaxed) == thread {
            known.own.insert(handle);
            return Way::Cache;
        }
        if let Some(passing) = known.passing.get_mut(&ino) {
            if names != Some((passing.key, passing.version)) {
                return Way::Direct;
            }
            passing.handles += 1;
            known.handles.insert(handle, ino);
            self.opened.fetch_add(1, Ordering::Relaxed);
            return Way::Copy(Arc::clone(&passing.backing));
        }
        let Some((key, version)) = names else { return Way::Cache };
        let Some(copy) = known.copies.get_mut(&key) else {
            return Way::Cache;
        };
        if copy.version != version {
            self.remove(known, key);
            return Way::Cache;
        }
        if self.is_refused.load(Ordering::Relaxed) || is_cached() {
            return Way::Cache;
        }
        let Ok(file) = opened(&self.path(key, version), version.bytes) else {
            self.remove(known, key);
            return Way::Cache;
        };
        match back(&file) {
            Ok(backing) => {
                copy.opened_at = known.turned_away;
                let backing = Arc::new(backing);
                let passing = Passing {
                    key,
                    version,
                    backing: Arc::clone(&backing),
                    handles: 1,
                };
                known.passing.insert(ino, passing);
                known.handles.insert(handle, ino);
                self.opened.fetch_add(1, Ordering::Relaxed);
                Way::Copy(backing)
            }
            Err(error) => {
                self.is_refused.store(true, Ordering::Relaxed);
                crate::log::line(format_args!(
                    "{}: the kernel doesn't read copies there by itself ({error}): files are read as without --copies",
                    self.place.display()
                ));
                Way::Cache
            }
        }
    }

    /// The kernel has this no more; false: it was read through the page cache, by somebody else than who copies.
    pub fn close(&self, handle: u64) -> bool {
        let mut known = locked(&self.known);
        let Some(ino) = known.handles.remove(&handle) else {
            return known.own.remove(&handle);
        };
        if let Some(passing) = known.passing.get_mut(&ino) {
            passing.handles -= 1;
            if passing.handles == 0 {
                known.passing.remove(&ino);
            }
        }
        true
    }

    /// This may be copied, when there is time.
    pub fn want(&self, closed: Closed) {
        if self.is_wanted(&closed) {
            // Where many wait, it is closed again some time.
            let _ = self.wanted.try_send(closed);
        }
    }

    fn is_wanted(&self, closed: &Closed) -> bool {
        let bytes = closed.object.size;
        let is_worth_it = bytes > LEAST && bytes <= self.most && closed.object.etag.is_some();
        is_worth_it && !self.is_refused.load(Ordering::Relaxed) && !self.has(&closed.key, &closed.object)
    }

    /// What a copy is named by; none of what has no version.
    fn names(&self, key: &str, object: &Object) -> Option<(Digest, Version)> {
        let etag = object.etag.as_deref()?;
        let of_key = DigestBuilder::new("mount-copy/1");
        let of_key = of_key.bytes(self.root.as_bytes()).bytes(key.as_bytes());
        let of_version = DigestBuilder::new("mount-copy-version/1").bytes(etag.as_bytes());
        let of_version = of_version.bytes(object.version.as_deref().unwrap_or("").as_bytes());
        let version = Version {
            digest: of_version.finish(),
            bytes: object.size,
        };
        Some((of_key.finish(), version))
    }

    fn path(&self, key: Digest, version: Version) -> PathBuf {
        self.place.join(format!("{key}-{}-{}", version.digest, version.bytes))
    }

    fn remove(&self, known: &mut Known, key: Digest) {
        if let Some(copy) = known.copies.remove(&key) {
            known.bytes -= copy.version.bytes;
            let _ = std::fs::remove_file(self.path(key, copy.version));
        }
    }

    /// Whether there is room for so many bytes, made by letting go of what nobody reads any more.
    fn has_room(&self, bytes: u64) -> bool {
        let mut known = locked(&self.known);
        let free = foreload_engine::disk::free_bytes(&self.place).unwrap_or(0);
        if free < bytes.saturating_add(DiskSettings::KEEP_FREE_BYTES) {
            known.turned_away += bytes;
            return false;
        }
        let unread = known.turned_away.saturating_sub(PATIENCE.saturating_mul(self.most));
        let is_open = |key: &Digest| known.passing.values().any(|passing| passing.key == *key);
        let resting = known.copies.iter().filter(|(key, _)| !is_open(key));
        let mut leaving: Vec<(u64, Digest)> = resting
            .filter(|(_, copy)| copy.opened_at < unread)
            .map(|(key, copy)| (copy.opened_at, *key))
            .collect();
        leaving.sort_unstable_by_key(|(opened_at, _)| *opened_at);
        let mut leaving = leaving.into_iter();
        while known.bytes + bytes > self.most {
            let Some((_, key)) = leaving.next() else {
                known.turned_away += bytes;
                return false;
            };
            self.remove(&mut known, key);
        }
        true
    }

    fn copy(&self, closed: &Closed, names: &Names, seen: &Resident, is_closing: &AtomicBool) -> io::Result<()> {
        let Some((key, version)) = self.names(&closed.key, &closed.object) else {
            return Ok(());
        };
        let is_it = || matches!(names.tree().kind(closed.ino, Instant::now()), Some((Kind::File(object), _)) if object == closed.object);
        if !self.is_wanted(closed) || !is_it() {
            return Ok(());
        }
        // What the kernel has a part of would have to be fetched.
        let Some(source) = seen.open_whole(&closed.key, closed.object.size) else {
            return Ok(());
        };
        if !self.has_room(version.bytes) {
            return Ok(());
        }
        let unfinished = Unfinished(self.place.join(format!("{key}{UNFINISHED}")));
        let target = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished.0)?;
        match rustix::fs::fallocate(&target, FallocateFlags::empty(), 0, version.bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => {}
            allocated => allocated?,
        }
        let mut copied = 0;
        while copied < version.bytes {
            if is_closing.load(Ordering::Relaxed) {
                return Ok(());
            }
            let most = PIECE.min(usize::try_from(version.bytes - copied).unwrap_or(PIECE));
            match rustix::fs::sendfile(&target, &source, None, most)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => copied += count as u64,
            }
        }
        target.sync_all()?;
        // What was open was one object, whole: the one that was meant, if that is there still.
        if !is_it() {
            return Ok(());
        }
        std::fs::rename(&unfinished.0, self.path(key, version))?;
        File::open(&self.place)?.sync_all()?;
        // Twice in memory is once too often.
        let _ = rustix::fs::fadvise(&source, 0, None, Advice::DontNeed);
        let mut known = locked(&self.known);
        if known.copies.get(&key).is_some_and(|copy| copy.version != version) {
            self.remove(&mut known, key);
        }
        let opened_at = known.turned_away;
        if known.copies.insert(key, Copy { version, opened_at }).is_none() {
            known.bytes += version.bytes;
        }
        Ok(())
    }
}

impl Work {
    /// Has a thread copy what is closed, until the mount ends.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn begin(
        self,
        copies: Arc<Copies>,
        names: Arc<Names>,
        seen: Resident,
        is_closing: Arc<AtomicBool>,
    ) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("foreload-mount-copies".into());
        thread.spawn(move || {
            let own = rustix::thread::gettid();
            copies
                .copier
                .store(own.as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
            // Whoever trains comes first.
            let _ = rustix::process::setpriority_process(Some(own), 19);
            for closed in self.0 {
                if is_closing.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = copies.copy(&closed, &names, &seen, &is_closing) {
                    crate::log::line(format_args!("{}: it can't be copied: {error}", closed.key));
                }
            }
        })?;
        Ok(())
    }
}

/// A file that is removed unless it has another name by then.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A copy, if it is as large as it was.
fn opened(path: &Path, bytes: u64) -> io::Result<File> {
    let flags = (OFlags::NOATIME | OFlags::NOFOLLOW).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    match found.is_file() && found.len() == bytes {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Copies that are there from before, within so many bytes; what is no whole one of one version is removed.
fn found(place: &Path, most: u64) -> io::Result<Known> {
    let mut known = Known::default();
    for entry in std::fs::read_dir(place)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_unfinished = name
            .strip_suffix(UNFINISHED)
            .is_some_and(|key| key.parse::<Digest>().is_ok());
        let Some((key, version)) = parsed(name) else {
            if is_unfinished {
                std::fs::remove_file(entry.path())?;
            }
            continue;
        };
        let is_it = opened(&entry.path(), version.bytes).is_ok();
        let has_room = known.bytes.saturating_add(version.bytes) <= most;
        if !is_it || !has_room || known.copies.contains_key(&key) {
            std::fs::remove_file(entry.path())?;
            continue;
        }
        known.bytes += version.bytes;
        known.copies.insert(key, Copy { version, opened_at: 0 });
    }
    Ok(known)
}

/// What a copy's name says.
fn parsed(name: &str) -> Option<(Digest, Version)> {
    let mut words = name.split('-');
    let (key, digest, bytes) = (words.next()?, words.next()?, words.next()?);
    let version = Version {
        digest: digest.parse().ok()?,
        bytes: bytes.parse().ok()?,
    };
    let key: Digest = key.parse().ok()?;
    // It has one spelling.
    (name == format!("{key}-{}-{}", version.digest, version.bytes)).then_some((key, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_a_copy_is_of_and_has_one_spelling() {
        let (key, version) = (Digest::of("test", b"key"), Digest::of("test", b"version"));
        let name = format!("{key}-{version}-5000000");
        let meant = Version {
            digest: version,
            bytes: 5_000_000,
        };
        assert_eq!(parsed(&name), Some((key, meant)));
        for other in [
            String::new(),
            LOCK.into(),
            format!("{key}{UNFINISHED}"),
            format!("{key}-{version}"),
            format!("{key}-{version}-"),
            format!("{key}-{version}-05"),
            format!("{key}-{version}-+5"),
            format!("{key}-{version}-99999999999999999999"),
            format!("{key}-{version}-5-5"),
            name.to_uppercase(),
            format!("{name} "),
        ] {
            assert_eq!(parsed(&other), None, "{other}");
        }
    }
}
