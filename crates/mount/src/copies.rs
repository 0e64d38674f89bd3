//! Copies of files on a disk of this machine, which the kernel reads by itself (FUSE passthrough, Linux 6.9).
//!
//! A file that the kernel has all of when it is closed is copied to a file of its own, by a thread in the background; whoever opens it next is given that one, and reads it as any local
//! file: nothing is asked of this program any more. The bytes are those of the page cache, so that nothing is fetched for a copy.
//!
//! A copy is of one version of an object, by which it is named. All of them take no more than so many bytes. What is here stays while it is read: where files are read in turn, one that
//! would take the place of another is no likelier to be read next. A file takes it that was read three times, with others in between, while the copy was read not once: in epochs, whatever
//! their order, that never is so, for between the first time and the third lies a whole one.
//!
//! For all who have an entry open at once, the kernel reads it either by way of one copy or through its page cache, and takes nothing else; [`Copies::open`] says how.

use crate::file::Of;
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
/// Files that had no room, and are remembered.
const REFUSED: usize = 100_000;
/// What the name of a copy that isn't whole ends with.
const UNFINISHED: &str = ".new";
const LOCK: &str = "lock";
/// Nobody is waited for who would open the other end of what is no file.
const UNWAITING: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);
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
    /// When it was opened last, in bytes.
    opened_at: u64,
}

/// When a file had no room: the last time, and the one before, with as many bytes between them as copies may take.
struct Refused {
    before: Option<u64>,
    last: u64,
}

/// What the kernel reads by way of a copy.
struct Passing {
    key: Digest,
    version: Version,
    backing: Arc<BackingId>,
    handles: usize,
    /// It is removed, and takes its room until nobody has it open.
    is_removed: bool,
}

#[derive(Default)]
struct Known {
    copies: FxHashMap<Digest, Copy>,
    bytes: u64,
    /// Bytes of all files that were opened or had no room: the time.
    now: u64,
    refused: FxHashMap<Digest, Refused>,
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
}

/// All of them.
pub struct Copies {
    place: PathBuf,
    most: u64,
    /// What all digests begin with.
    root: String,
    known: Mutex<Known>,
    wanted: SyncSender<(Ino, Of)>,
    /// The thread that copies, by its number: what it has open nobody wants.
    copier: AtomicU32,
    /// It was said that the kernel doesn't take them.
    is_refused: AtomicBool,
    opened: AtomicU64,
    /// Held as long as this is: nobody else keeps copies there.
    _lock: File,
}

/// Files that are to be copied.
pub struct Work(Receiver<(Ino, Of)>);

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
        let lock = lock.custom_flags(UNWAITING.bits().cast_signed());
        let at_lock =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", place.join(LOCK).display()));
        let lock = lock.open(place.join(LOCK)).map_err(at_lock)?;
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
        let mut known = locked(&self.known);
        let known = &mut *known;
        if self.copier.load(Ordering::Relaxed) == thread {
            known.own.insert(handle);
            return Way::Cache;
        }
        // An entry has the same bytes for as long as it is, also by another name: who has it open already decides.
        if !known.passing.contains_key(&ino) {
            let Some(passing) = self.begin(known, (key, object), is_cached, back) else {
                return Way::Cache;
            };
            known.passing.insert(ino, passing);
        }
        let Some(passing) = known.passing.get_mut(&ino) else {
            return Way::Cache;
        };
        passing.handles += 1;
        known.handles.insert(handle, ino);
        known.now += passing.version.bytes;
        if let Some(copy) = known.copies.get_mut(&passing.key) {
            copy.opened_at = known.now;
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        Way::Copy(Arc::clone(&passing.backing))
    }

    /// A copy that the kernel may read from now on, if there is one and nobody reads the file through the page cache.
    fn begin(
        &self,
        known: &mut Known,
        (key, object): (&str, &Object),
        is_cached: impl FnOnce() -> bool,
        back: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Option<Passing> {
        let (key, version) = self.names(key, object)?;
        let file = match known.copies.get(&key)? {
            copy if copy.version != version => None,
            _ if self.is_refused.load(Ordering::Relaxed) || is_cached() => return None,
            _ => opened(&self.path(key, version), version.bytes).ok(),
        };
        // Of another version, or damaged.
        let Some(file) = file else {
            self.remove(known, key);
            return None;
        };
        match back(&file) {
            Ok(backing) => Some(Passing {
                key,
                version,
                backing: Arc::new(backing),
                handles: 0,
                is_removed: false,
            }),
            // For a moment.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory || error.raw_os_error().is_some_and(is_short) => {
                None
            }
            Err(error) => {
                self.is_refused.store(true, Ordering::Relaxed);
                crate::log::line(format_args!(
                    "{}: the kernel doesn't read copies there by itself ({error}): files are read as without --copies",
                    self.place.display()
                ));
                None
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
                let bytes = if passing.is_removed { passing.version.bytes } else { 0 };
                known.passing.remove(&ino);
                known.bytes -= bytes;
            }
        }
        true
    }

    /// This was closed, and may be copied, when there is time.
    pub fn want(&self, ino: Ino, of: Of) {
        if self.is_wanted(&of) {
            // Where many wait, it is closed again some time.
            let _ = self.wanted.try_send((ino, of));
        }
    }

    fn is_wanted(&self, of: &Of) -> bool {
        let bytes = of.object.size;
        let is_worth_it = bytes > LEAST && bytes <= self.most && of.object.etag.is_some();
        is_worth_it && !self.is_refused.load(Ordering::Relaxed) && !self.has(&of.key, &of.object)
    }

    /// What a copy is named by; none of what has no version.
    fn names(&self, key: &str, object: &Object) -> Option<(Digest, Version)> {
        let etag = object.etag.as_deref()?;
        let of_key = DigestBuilder::new("mount-copy/1");
        let of_key = of_key.bytes(self.root.as_bytes()).bytes(key.as_bytes());
        let version = Version {
            digest: Digest::of("mount-copy-version/1", etag.as_bytes()),
            bytes: object.size,
        };
        Some((of_key.finish(), version))
    }

    fn path(&self, key: Digest, version: Version) -> PathBuf {
        self.place.join(format!("{key}-{}-{}", version.digest, version.bytes))
    }

    fn remove(&self, known: &mut Known, key: Digest) {
        let Some(copy) = known.copies.remove(&key) else { return };
        let _ = std::fs::remove_file(self.path(key, copy.version));
        let is_it = |passing: &&mut Passing| (passing.key, passing.version) == (key, copy.version);
        match known.passing.values_mut().find(is_it) {
            Some(passing) => passing.is_removed = true,
            None => known.bytes -= copy.version.bytes,
        }
    }

    /// Lets go of copies, for so many bytes; false: there is no room all the same.
    fn makes_room(&self, leaving: Vec<Digest>, bytes: u64) -> bool {
        let mut known = locked(&self.known);
        let free = foreload_engine::disk::free_bytes(&self.place).unwrap_or(0);
        let is_full = free < bytes.saturating_add(DiskSettings::KEEP_FREE_BYTES);
        // Somebody may have opened one meanwhile.
        if is_full || leaving.iter().any(|key| known.is_open(key)) {
            return false;
        }
        leaving.into_iter().for_each(|key| self.remove(&mut known, key));
        true
    }

    fn copy(&self, (ino, of): (Ino, &Of), names: &Names, seen: &Resident, is_closing: &AtomicBool) -> io::Result<()> {
        let Some((key, version)) = self.names(&of.key, &of.object) else {
            return Ok(());
        };
        let is_it = || match names.tree().kind(ino, Instant::now()) {
            Some((Kind::File(object), _)) => self.names(&of.key, &object) == Some((key, version)),
            _ => false,
        };
        if !self.is_wanted(of) || !is_it() {
            return Ok(());
        }
        let Some(leaving) = locked(&self.known).leaving_for(key, version.bytes, self.most) else {
            return Ok(());
        };
        // What the kernel has a part of would have to be fetched.
        let Some(source) = seen.open_whole(&of.key, of.object.size) else {
            return Ok(());
        };
        if !self.makes_room(leaving, version.bytes) {
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
        known.refused.remove(&key);
        let opened_at = known.now;
        if known.copies.insert(key, Copy { version, opened_at }).is_none() {
            known.bytes += version.bytes;
        }
        Ok(())
    }
}

impl Known {
    /// Copies that leave for a file that has none and is read, of which there may be so many bytes; none if it has to do without.
    fn leaving_for(&mut self, key: Digest, bytes: u64, most: u64) -> Option<Vec<Digest>> {
        let since = self.first_of_three(key, bytes, most);
        match (self.bytes + bytes).saturating_sub(most) {
            0 => Some(Vec::new()),
            lacking => self.unread(since?, lacking),
        }
    }

    /// A file is read that has no copy. When that was so for the last time but two, if it was.
    fn first_of_three(&mut self, key: Digest, bytes: u64, apart: u64) -> Option<u64> {
        self.now += bytes;
        let now = self.now;
        if self.refused.len() >= REFUSED {
            self.refused.clear();
        }
        let Some(refused) = self.refused.get_mut(&key) else {
            let first = Refused {
                before: None,
                last: now,
            };
            self.refused.insert(key, first);
            return None;
        };
        // Again and again at once is one time.
        if now - refused.last < apart {
            return None;
        }
        let first = refused.before.replace(refused.last);
        refused.last = now;
        first
    }

    fn is_open(&self, key: &Digest) -> bool {
        self.passing.values().any(|passing| passing.key == *key)
    }

    /// Copies of so many bytes that nobody has opened since, those first that nobody has for longest; none if there are fewer.
    fn unread(&self, since: u64, bytes: u64) -> Option<Vec<Digest>> {
        let unread = self.copies.iter().filter(|(_, copy)| copy.opened_at < since);
        let mut unread: Vec<_> = unread.filter(|(key, _)| !self.is_open(key)).collect();
        unread.sort_unstable_by_key(|(_, copy)| copy.opened_at);
        let (mut leaving, mut found) = (Vec::new(), 0);
        for (key, copy) in unread {
            if found >= bytes {
                break;
            }
            leaving.push(*key);
            found += copy.version.bytes;
        }
        (found >= bytes).then_some(leaving)
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
            for (ino, of) in self.0 {
                if is_closing.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = copies.copy((ino, &of), &names, &seen, &is_closing) {
                    crate::log::line(format_args!("{}: it can't be copied: {error}", of.key));
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

/// Whether a system call failed for want of descriptors.
fn is_short(number: i32) -> bool {
    let error = rustix::io::Errno::from_raw_os_error(number);
    error == rustix::io::Errno::MFILE || error == rustix::io::Errno::NFILE
}

/// A copy, if it is as large as it was.
fn opened(path: &Path, bytes: u64) -> io::Result<File> {
    let flags = (OFlags::NOATIME | UNWAITING).bits().cast_signed();
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
        // Somebody else's, whatever its name.
        if !entry.file_type()?.is_file() {
            continue;
        }
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
    use proptest::prelude::Strategy;

    const MOST: u64 = 100;

    /// Copies of which only the names are.
    #[derive(Default)]
    struct Epochs {
        known: Known,
        hits: u64,
        left: u64,
    }

    impl Epochs {
        /// A file of ten bytes is read.
        fn read(&mut self, file: u64) {
            let (key, bytes) = (Digest::of("test", &file.to_le_bytes()), 10);
            let version = Version { digest: key, bytes };
            if let Some(copy) = self.known.copies.get_mut(&key) {
                self.known.now += bytes;
                copy.opened_at = self.known.now;
                self.hits += 1;
                return;
            }
            let Some(leaving) = self.known.leaving_for(key, bytes, MOST) else {
                return;
            };
            self.left += leaving.len() as u64;
            for key in leaving {
                self.known.bytes -= self.known.copies.remove(&key).map_or(0, |copy| copy.version.bytes);
            }
            let opened_at = self.known.now;
            self.known.copies.insert(key, Copy { version, opened_at });
            self.known.bytes += bytes;
            assert!(self.known.bytes <= MOST);
        }
    }

    proptest::proptest! {
        #[test]
        fn proptest_in_epochs_nothing_leaves_whatever_their_order(
            orders in proptest::collection::vec(proptest::prelude::Just((0..60_u64).collect::<Vec<_>>()).prop_shuffle(), 8),
            times in 1..4,
        ) {
            let mut epochs = Epochs::default();
            for order in &orders {
                for file in order {
                    (0..times).for_each(|_| epochs.read(*file));
                }
            }
            // What was read first is here, and read again each time.
            proptest::prop_assert_eq!((epochs.left, epochs.known.copies.len()), (0, 10));
            proptest::prop_assert!(epochs.hits >= 10 * 7);
        }
    }

    #[test]
    fn another_data_set_takes_the_place_of_one_that_nobody_reads_any_more() {
        for files in [8_u64, 10, 12, 100] {
            let mut epochs = Epochs::default();
            (0..3 * 10).for_each(|nth| epochs.read(nth % 10));
            assert_eq!((epochs.known.copies.len(), epochs.left), (10, 0));
            let before = epochs.hits;
            for _ in 0..6 {
                (0..files).for_each(|nth| epochs.read(1000 + nth));
            }
            assert_eq!(epochs.left, files.min(10), "{files}");
            assert!(epochs.hits > before);
            // And stays.
            for _ in 0..6 {
                (0..files).for_each(|nth| epochs.read(1000 + nth));
            }
            assert_eq!(epochs.left, files.min(10), "{files}");
        }
    }

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
