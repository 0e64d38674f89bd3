//! What is known of entries, and how the kernel hears of it: attributes, directories, and what isn't of the bucket.

use crate::changes::Aside;
use crate::copies::{Copies, Way};
use crate::file::{OpenFile, Shared};
use crate::names::Names;
use crate::orders::Teller;
use crate::resident::Resident;
use crate::tree::{Ino, Kind, Listed, Look, Object, ROOT};
use crate::unwanted::Unwanted;
use crate::writing::{NewFile, Writing};
use crate::{locked, process_of};
use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyEntry, ReplyOpen};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// What a directory begins with: itself, and the one above.
pub(crate) const DOTS: u64 = 2;
/// What isn't of the bucket is what it is.
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 86_400);
/// What `stat` says is good to read at a time.
pub(crate) const BLOCK: u32 = 128 << 10;

/// What isn't of the bucket: a directory that no listing has, with what the mount says of itself, and where it is told what will be read. Their numbers are the last that there are.
pub(crate) const CONTROL: &str = ".foreload";
pub(crate) const CONTROL_INO: Ino = u64::MAX - 1;
pub(crate) const STATS: &str = "stats";
pub(crate) const STATS_INO: Ino = u64::MAX - 2;
pub(crate) const ORDER: &str = "order";
pub(crate) const ORDER_INO: Ino = u64::MAX - 3;

/// Whoever waits until the kernel has let go waits so long: it may have the directory locked for somebody who waits for the bucket, or, while it has a file locked, for somebody who
/// waits for that.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
pub(crate) const LOCKED_PATIENCE: Duration = Duration::from_millis(20);

/// What an open directory has, and when that was known.
type Known = (Arc<Vec<Listed>>, Instant);

/// What answers.
pub(crate) struct Inner {
    pub(crate) names: Arc<Names>,
    /// Who writes, where that is allowed.
    pub(crate) writing: Option<Arc<Writing>>,
    /// What the kernel has; none where the mount is seen by others alone.
    pub(crate) resident: Option<Arc<Resident>>,
    /// What the kernel reads by itself.
    pub(crate) copies: Option<Arc<Copies>>,
    /// Entries for those that open files to write them.
    pub(crate) asides: Mutex<Vec<Aside>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) files: Mutex<FxHashMap<u64, Arc<OpenFile>>>,
    pub(crate) directories: Mutex<FxHashMap<u64, Known>>,
    /// What was said of the mount to whoever has that open, and orders that are being written.
    pub(crate) said: Mutex<FxHashMap<u64, Arc<String>>>,
    pub(crate) told: Mutex<FxHashMap<u64, Vec<u8>>>,
    /// Who tells the kernel what to let go of.
    pub(crate) unwanted: Unwanted,
    pub(crate) next: AtomicU64,
    pub(crate) owner: (u32, u32),
    pub(crate) modes: (u16, u16),
    pub(crate) begun: SystemTime,
}

impl Inner {
    pub(crate) fn attributes(&self, ino: Ino, kind: &Kind) -> FileAttr {
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
    pub(crate) fn control(&self, ino: Ino) -> Option<FileAttr> {
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
    pub(crate) fn control_by_name(parent: Ino, name: &str) -> Option<Ino> {
        match (parent, name) {
            (ROOT, CONTROL) => Some(CONTROL_INO),
            (CONTROL_INO, STATS) => Some(STATS_INO),
            (CONTROL_INO, ORDER) => Some(ORDER_INO),
            _ => None,
        }
    }

    /// What an entry is, and how long the kernel may believe that.
    pub(crate) fn known(&self, ino: Ino) -> Option<(FileAttr, Duration)> {
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
        Some((attributes, if self.is_replaced(ino) { Duration::ZERO } else { fresh }))
    }

    /// Whether somebody writes a file to take an entry's place, or may give it the name of another one: the kernel believes nothing of it.
    fn is_replaced(&self, ino: Ino) -> bool {
        let Some(writing) = self.writing.as_ref().filter(|writing| writing.left() > 0) else {
            return false;
        };
        let named = self.names.tree().name(ino);
        named.is_some_and(|(parent, name)| writing.by_name(parent, &name).is_some())
    }

    /// The kernel is told what to let go of.
    pub(crate) fn tell_unwanted(&self) {
        self.unwanted.tell(self.names.tree().unwanted());
    }

    /// The same, and waits until the kernel has let go, if there is anything: whoever asks for a name next hears of what is there now. Not to be asked while it has a directory locked.
    pub(crate) async fn has_let_go(&self, patience: Duration, is_told: bool) {
        let names = self.names.tree().unwanted();
        if !names.is_empty() || is_told {
            self.unwanted.tell(names);
            self.unwanted.has_let_go(patience).await;
        }
    }

    /// Makes an object of what was written, and waits until the kernel has let go of what was there; as [`Writing::complete`].
    pub(crate) async fn complete(&self, file: &NewFile, is_last: bool, patience: Duration) -> Result<(), Errno> {
        let done = self.writing()?.complete(file, is_last).await;
        // A rename has told the kernel, and can't wait for it.
        self.has_let_go(patience, file.was_renamed()).await;
        done
    }

    /// What was opened for the kernel under this handle, and which it doesn't get.
    pub(crate) async fn close_unopened(&self, handle: u64) {
        if let Some(writing) = &self.writing {
            writing.release(handle).await;
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A file that is being written, and who writes it.
    pub(crate) fn written(&self, handle: FileHandle) -> Option<(Arc<Writing>, Arc<NewFile>)> {
        let writing = self.writing.as_ref()?;
        Some((Arc::clone(writing), writing.of(handle.0)?))
    }

    /// What is said of what no bucket has.
    pub(crate) fn no_such_thing(&self) -> Errno {
        match self.writing {
            Some(_) => Errno::EPERM,
            None => Errno::EROFS,
        }
    }

    pub(crate) async fn look_up(&self, parent: Ino, name: &str, reply: ReplyEntry) {
        self.names.asks_in(parent);
        match self.names.look_up(parent, name).await {
            Ok(ino) => self.entry(ino, reply),
            Err(error) => reply.error(error),
        }
    }

    pub(crate) fn entry(&self, ino: Ino, reply: ReplyEntry) {
        match self.known(ino) {
            Some((attributes, fresh)) => {
                self.names.tree().refer(ino);
                reply.entry(&fresh, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Asks for an entry again, by its name: what is there now may be another one.
    pub(crate) async fn renew(&self, ino: Ino) -> Result<(), Errno> {
        let name = self.names.tree().name(ino).filter(|_| ino != ROOT);
        let Some((parent, name)) = name else { return Ok(()) };
        match self.names.look_up(parent, &name).await {
            Ok(found) if found == ino => Ok(()),
            Ok(_) | Err(Errno::ENOENT) => Err(Errno::ESTALE),
            Err(error) => Err(error),
        }
    }

    /// Whether somebody has an entry open to read it.
    pub(crate) fn is_read(&self, ino: Ino) -> bool {
        locked(&self.files).values().any(|file| file.ino() == ino)
    }

    /// Whether an entry is a file that isn't empty.
    pub(crate) fn has_bytes(&self, ino: Ino) -> bool {
        matches!(self.names.tree().kind(ino, Instant::now()), Some((Kind::File(object), _)) if object.size > 0)
    }

    pub(crate) async fn attribute(&self, ino: Ino, reply: ReplyAttr) {
        match self.renew(ino).await {
            Ok(()) | Err(Errno::ESTALE) => self.attribute_at_hand(ino, reply),
            Err(error) => reply.error(error),
        }
    }

    pub(crate) fn open_file(&self, ino: Ino, thread: u32, reply: ReplyOpen) {
        let (kind, key, is_ours) = {
            let tree = self.names.tree();
            // The kernel asks for the name again then.
            if !tree.is_linked(ino) {
                return reply.error(Errno::ESTALE);
            }
            (tree.kind(ino, Instant::now()), tree.key(ino), tree.is_ours(ino))
        };
        // Who writes on in an entry has it alone: the kernel has one size of it, and one set of pages.
        if !is_ours
            && self
                .writing
                .as_ref()
                .is_some_and(|writing| writing.by_ino(ino).is_some())
        {
            self.names.tree().is_written_on(ino, Instant::now());
            return reply.error(Errno::ESTALE);
        }
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
        let file = OpenFile::new(&self.shared, ino, key.clone(), object.clone());
        let handle = self.number();
        locked(&self.files).insert(handle, file);
        // Who only reads has nothing to be said of when it is closed.
        let flags = FopenFlags::FOPEN_NOFLUSH;
        let way = self.copies.as_ref().map_or(Way::Cache, |copies| {
            let is_other = |(other, file): (&u64, &Arc<OpenFile>)| *other != handle && file.ino() == ino;
            let is_cached = || locked(&self.files).iter().any(is_other);
            copies.open((handle, thread), ino, (&key, &object), is_cached, |copy| {
                reply.open_backing(copy)
            })
        });
        match way {
            Way::Copy(backing) => {
                locked(&self.files).remove(&handle);
                reply.opened_passthrough(FileHandle(handle), flags, &backing);
            }
            // Pages of another object are no use; those of this one stay.
            Way::Cache if self.names.tree().keep(ino) => {
                reply.opened(FileHandle(handle), flags | FopenFlags::FOPEN_KEEP_CACHE);
            }
            Way::Cache => reply.opened(FileHandle(handle), flags),
        }
    }

    /// Whoever has read a file is done with it.
    pub(crate) fn close_file(&self, handle: u64) {
        let file = locked(&self.files).remove(&handle);
        if let Some(copies) = &self.copies
            && !copies.close(handle)
            && let Some(file) = file
        {
            copies.want(file.ino(), file.of());
        }
    }

    pub(crate) fn attribute_at_hand(&self, ino: Ino, reply: ReplyAttr) {
        let Some((mut attributes, fresh)) = self.known(ino) else {
            return reply.error(Errno::ESTALE);
        };
        if let Some(file) = self.writing.as_ref().and_then(|writing| writing.by_ino(ino)) {
            attributes.ino = INodeNo(self.shown(&file));
            attributes.nlink = u32::from(!file.is_gone());
        }
        reply.attr(&fresh, &attributes);
    }

    /// What the number of a file that is being written is said to be: the one that it has by its name, for programs look whether they have opened what they meant. What has lost its name keeps the number.
    fn shown(&self, file: &NewFile) -> Ino {
        let target = file.target();
        let (tree, now) = (self.names.tree(), Instant::now());
        if let Look::Found(found) = tree.look(target.parent, &target.name, now)
            && let Some((Kind::File(object), _)) = tree.kind(found, now)
            && file.is_by_its_name(&object)
        {
            file.is_shown_as(found);
        }
        file.shown()
    }

    pub(crate) async fn open_directory(&self, ino: Ino, reply: ReplyOpen) {
        match self.names.list(ino).await {
            Ok(listing) => {
                let handle = self.number();
                // However long it takes to hand it on, it is no newer than that.
                let at = self.names.tree().listed_at(ino).unwrap_or_else(Instant::now);
                locked(&self.directories).insert(handle, (Arc::new(listing), at));
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    /// What comes in a directory from `offset` on: number, name, what it is, and how long that is believed.
    pub(crate) fn entries(
        &self,
        ino: Ino,
        handle: FileHandle,
        offset: u64,
    ) -> Option<impl Iterator<Item = Entry> + '_> {
        let (listing, at) = locked(&self.directories).get(&handle.0)?.clone();
        let count = DOTS + listing.len() as u64;
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
                    Look::Unknown => tree.put_asked(ino, name, kind.clone(), at, at)?,
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
        Some((offset..count).filter_map(entry))
    }

    /// These files are read next, in this order: paths, a line each, which begin where the mount does. This thread's process says so.
    pub(crate) async fn order(&self, thread: u32, text: &[u8]) -> Result<(), Errno> {
        let (which, text) = crate::told::which(text)?;
        let process = process_of(thread);
        let (teller, number) = (Teller { process, which }, self.number());
        self.shared.shelves.tells(teller, number);
        let mut files = crate::told::files(&self.names, text).await?;
        if let Some(copies) = &self.copies {
            files.retain(|(key, object)| !copies.has(key, object));
        }
        let (shared, names, resident) = (Arc::clone(&self.shared), Arc::clone(&self.names), self.resident.clone());
        let ordered = tokio::task::spawn_blocking(move || {
            let files = match resident {
                Some(resident) => {
                    let is_referred_to = |(key, _): &(String, Object)| names.tree().is_referred_to(key, Instant::now());
                    resident.lacking(files, |(key, _)| key, is_referred_to)
                }
                None => files,
            };
            shared.shelves.order((teller, number), files)
        });
        let ordered = ordered.await.map_err(|_| Errno::EIO)?;
        ordered.map_err(|error| crate::failure::of_client(&error, "in the order that was told"))
    }

    pub(crate) fn dot(&self, ino: Ino, name: &str) -> Option<Entry> {
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
pub(crate) struct Entry {
    pub(crate) nth: u64,
    pub(crate) ino: Ino,
    pub(crate) name: Arc<str>,
    pub(crate) attributes: FileAttr,
    pub(crate) fresh: Duration,
}
