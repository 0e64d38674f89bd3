//! What is known of the bucket's names: a bounded tree of files and directories, each for as long as it is believed.
//!
//! A bucket has keys and no directories; what lies before a slash is one. An entry is there because a listing named it, or somebody asked for it, and says of what is *missing*
//! that it is, too, so that a program that looks for a file in many places asks once. When an entry's time is over it is asked for again; what the kernel still refers to keeps
//! its number for as long.
//!
//! What is made here and the bucket doesn't have yet is *ours*: a file that is being written, a directory without anything in it. It stays until it is the bucket's, or gone.
//!
//! There are no more than so many entries. Beyond that those leave that were made first and that the kernel doesn't refer to; of the others it is told to let go
//! ([`Tree::unwanted`]).
//!
//! Pure: time comes from outside, and nothing is asked of the bucket here.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// An entry's number, as the kernel has it.
pub type Ino = u64;
/// The root's.
pub const ROOT: Ino = 1;
/// The longest name that a file system can have, in bytes.
pub const MOST_NAME: usize = 255;
/// Times that are no further apart may be one.
const PRECISION: Duration = Duration::from_secs(1);
/// Entries that are looked at for each one that is added while there are too many.
const LOOKS: usize = 8;

/// A file's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Bytes.
    pub size: u64,
    /// Its version, as the store sent it.
    pub etag: Option<Box<str>>,
    /// Version id or generation.
    pub version: Option<Box<str>>,
    /// When it was written.
    pub modified: Option<SystemTime>,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File(Object),
    /// Nothing: it is known that there is none.
    Missing,
}

/// What a directory has, as it was when it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// By what name.
    pub name: Arc<str>,
    /// What it is.
    pub kind: Kind,
}

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There is this entry.
    Found(Ino),
    /// There is none.
    Missing,
    /// It has to be asked for.
    Unknown,
}

/// Where a file's bytes are asked for: its data set among those of [`Shelves`](crate::shelves::Shelves), and its first chunk there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The data set.
    pub shelf: u64,
    /// The first chunk's number.
    pub first: u64,
}

struct Directory {
    children: FxHashMap<Arc<str>, Ino>,
    /// All that is in it is known until then.
    listed_until: Option<Instant>,
}

enum Is {
    Directory(Box<Directory>),
    File(Box<File>),
    Missing,
}

struct File {
    object: Object,
    spot: Option<Spot>,
    /// The kernel has pages of this object, and of no other one, for this entry.
    is_kept: bool,
}

struct Node {
    parent: Ino,
    name: Arc<str>,
    is: Is,
    lookups: u64,
    until: Instant,
    /// Whether its parent has it by its name still.
    is_linked: bool,
    /// Whether it was made here, and the bucket doesn't have it.
    is_ours: bool,
    /// When it was made, changed or removed from here: what was asked before knows nothing of that.
    changed: Option<Instant>,
}

/// All that is known.
pub struct Tree {
    nodes: FxHashMap<Ino, Node>,
    next: Ino,
    /// Entries whose places others took, by those: the kernel may still refer to them by that name.
    before: FxHashMap<Ino, Ino>,
    /// Entries in the order that they came in.
    queue: VecDeque<Ino>,
    most: usize,
    ttl: Duration,
    /// What the kernel is to let go of.
    unwanted: Vec<(Ino, Arc<str>)>,
}

impl Tree {
    /// Knows the root alone.
    #[must_use]
    pub fn new(most: usize, ttl: Duration, now: Instant) -> Self {
        let root = Node {
            parent: ROOT,
            name: "".into(),
            is: Is::directory(),
            lookups: 1,
            until: now,
            is_linked: true,
            is_ours: false,
            changed: None,
        };
        Tree {
            nodes: FxHashMap::from_iter([(ROOT, root)]),
            next: ROOT + 1,
            before: FxHashMap::default(),
            queue: VecDeque::new(),
            most: most.max(1),
            ttl,
            unwanted: Vec::new(),
        }
    }

    /// Entries that are known, the root aside.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is known of a name in a directory.
    #[must_use]
    pub fn look(&self, parent: Ino, name: &str, now: Instant) -> Look {
        let Some(directory) = self.directory(parent) else {
            return Look::Missing;
        };
        let is_listed = directory.listed_until.is_some_and(|until| now < until);
        match directory.children.get(name).map(|ino| (*ino, self.nodes.get(ino))) {
            Some((ino, Some(node))) if is_listed || node.is_ours || now < node.until => match node.is {
                Is::Missing => Look::Missing,
                _ => Look::Found(ino),
            },
            None if is_listed => Look::Missing,
            _ => Look::Unknown,
        }
    }

    /// What is in a directory, in the order of names, if all of it is known.
    #[must_use]
    pub fn listing(&self, directory: Ino, now: Instant) -> Option<Vec<Listed>> {
        let known = self.directory(directory)?;
        known.listed_until.filter(|&until| now < until)?;
        Some(self.children(directory))
    }

    /// When a directory was listed last, if it was; what is known of it is as old as that.
    #[must_use]
    pub fn listed_at(&self, directory: Ino) -> Option<Instant> {
        self.directory(directory)?.listed_until?.checked_sub(self.ttl)
    }

    /// How many names a directory has of which all were known once; they may have aged since.
    #[must_use]
    pub fn was_listed(&self, directory: Ino) -> Option<usize> {
        let known = self.directory(directory)?;
        known.listed_until.map(|_| known.children.len())
    }

    fn children(&self, directory: Ino) -> Vec<Listed> {
        let Some(directory) = self.directory(directory) else {
            return Vec::new();
        };
        let listed = |(name, ino): (&Arc<str>, &Ino)| {
            let kind = match &self.nodes.get(ino)?.is {
                Is::Directory(_) => Kind::Directory,
                Is::File(file) => Kind::File(file.object.clone()),
                Is::Missing => return None,
            };
            Some(Listed {
                name: Arc::clone(name),
                kind,
            })
        };
        let mut children: Vec<Listed> = directory.children.iter().filter_map(listed).collect();
        children.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        children
    }

    fn directory(&self, ino: Ino) -> Option<&Directory> {
        match &self.nodes.get(&ino)?.is {
            Is::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    fn directory_mut(&mut self, ino: Ino) -> Option<&mut Directory> {
        match &mut self.nodes.get_mut(&ino)?.is {
            Is::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// A directory has these, and nothing else; all of them in the order of names. It was asked for then. One that has left meanwhile, for others, has them all the same.
    pub fn list(&mut self, directory: Ino, found: Vec<(String, Kind)>, asked: Instant, now: Instant) -> Vec<Listed> {
        let Some(known) = self.directory_mut(directory) else {
            let named = |(name, kind): (String, Kind)| Listed {
                name: name.into(),
                kind,
            };
            let mut listed: Vec<Listed> = found.into_iter().map(named).collect();
            listed.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            return listed;
        };
        let mut before: FxHashMap<Arc<str>, Ino> = known.children.clone();
        // A directory is known as a whole, however large it is: others leave for it.
        self.make_room(found.len(), |ino, node| ino == directory || node.parent == directory);
        for (name, kind) in found {
            before.remove(name.as_str());
            self.add(directory, &name, kind, asked, now);
        }
        for (_, ino) in before {
            if !self.has_ours(ino) && !self.is_newer(ino, asked) {
                self.unlink(ino);
            }
        }
        let until = now + self.ttl;
        if let Some(known) = self.directory_mut(directory) {
            known.listed_until = Some(until);
        }
        self.children(directory)
    }

    /// A directory has this entry, or it is known that it has none by that name; its number, unless there is no such directory.
    pub fn put(&mut self, parent: Ino, name: &str, kind: Kind, now: Instant) -> Option<Ino> {
        self.put_asked(parent, name, kind, now, now)
    }

    /// The same of what was asked for then: what was changed from here since stays.
    pub fn put_asked(&mut self, parent: Ino, name: &str, kind: Kind, asked: Instant, now: Instant) -> Option<Ino> {
        let ino = self.add(parent, name, kind, asked, now)?;
        self.make_room(0, |other, _| other == ino);
        Some(ino)
    }

    fn is_newer(&self, ino: Ino, asked: Instant) -> bool {
        let changed = self.nodes.get(&ino).and_then(|node| node.changed);
        changed.is_some_and(|changed| changed > asked)
    }

    fn change(&mut self, ino: Ino, now: Instant) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.changed = Some(now);
        }
    }

    fn add(&mut self, parent: Ino, name: &str, kind: Kind, asked: Instant, now: Instant) -> Option<Ino> {
        let until = now + self.ttl;
        let known = self.directory(parent)?.children.get(name).copied();
        if let Some(ino) = known
            && let Some(node) = self.nodes.get_mut(&ino)
        {
            // A file that is written here takes the place of whatever the bucket has by its name meanwhile.
            if node.is_ours && matches!(node.is, Is::File(_)) || node.changed.is_some_and(|changed| changed > asked) {
                return Some(ino);
            }
            if node.is.become_(&kind) {
                node.until = until;
                node.is_ours = false;
                return Some(ino);
            }
            // What is here alone isn't gone with what the bucket had around it.
            if kind == Kind::Missing && matches!(node.is, Is::Directory(_)) && self.has_ours(ino) {
                self.set_ours(ino);
                return Some(ino);
            }
        }
        self.enter(parent, name.into(), kind, until)
    }

    /// A directory has an entry anew; another one by that name is unlinked, for another thing is another entry.
    fn enter(&mut self, parent: Ino, name: Arc<str>, kind: Kind, until: Instant) -> Option<Ino> {
        let known = self.directory(parent)?.children.get(&name).copied();
        let before = known.and_then(|ino| self.referred_to(ino));
        known.into_iter().for_each(|ino| self.unlink(ino));
        let ino = self.next;
        self.before.extend(before.map(|before| (ino, before)));
        self.next += 1;
        self.directory_mut(parent)?.children.insert(Arc::clone(&name), ino);
        let node = Node {
            parent,
            name,
            is: kind.into(),
            lookups: 0,
            until,
            is_linked: true,
            is_ours: false,
            changed: None,
        };
        self.nodes.insert(ino, node);
        self.queue.push_back(ino);
        Some(ino)
    }

    /// An entry that the kernel refers to, or else the last one before it, by the same name, that it does.
    fn referred_to(&self, ino: Ino) -> Option<Ino> {
        let node = self.nodes.get(&ino)?;
        if node.lookups > 0 {
            Some(ino)
        } else {
            self.before.get(&ino).copied()
        }
    }

    /// Whether an entry was made here, and the bucket doesn't have it.
    #[must_use]
    pub fn is_ours(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.is_ours)
    }

    /// The same, or whether there is such an entry somewhere in it.
    fn has_ours(&self, ino: Ino) -> bool {
        let within = self
            .directory(ino)
            .into_iter()
            .flat_map(|directory| directory.children.values());
        self.is_ours(ino) || within.copied().any(|child| self.has_ours(child))
    }

    /// An entry is made here; its number, unless there is no such directory.
    pub fn make(&mut self, parent: Ino, name: &str, kind: Kind, now: Instant) -> Option<Ino> {
        let ino = self.put(parent, name, kind, now)?;
        self.set_ours(ino);
        self.change(ino, now);
        Some(ino)
    }

    /// An entry is of whoever writes it, from now on.
    pub fn set_ours(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino).filter(|_| ino != ROOT) {
            node.is_ours = true;
        }
    }

    /// An entry for whoever writes a file anew: what is there keeps its name and its own entry, for those who read it. It stays until it is forgotten once more than the kernel
    /// does. `None`: there is no such file.
    pub fn aside(&mut self, ino: Ino, now: Instant) -> Option<Ino> {
        let (parent, name) = self.name(ino)?;
        let kind = self.kind(ino, now).map(|(kind, _)| kind)?;
        let (aside, Kind::File(_)) = (self.next, &kind) else {
            return None;
        };
        self.next += 1;
        let node = Node {
            parent,
            name,
            is: kind.into(),
            lookups: 1,
            until: now,
            is_linked: false,
            is_ours: false,
            changed: None,
        };
        self.nodes.insert(aside, node);
        Some(aside)
    }

    /// What is there by an entry's name has another entry from now on: this one is of whoever writes it, and of nobody else.
    pub fn is_written_on(&mut self, ino: Ino, now: Instant) {
        let Some(node) = self.nodes.get(&ino).filter(|node| node.is_linked && !node.is_ours) else {
            return;
        };
        let Is::File(file) = &node.is else { return };
        let kind = Kind::File(file.object.clone());
        let (parent, name, until) = (node.parent, Arc::clone(&node.name), node.until);
        if let Some(other) = self.enter(parent, Arc::clone(&name), kind, until) {
            self.change(other, now);
        }
        self.unwanted.push((parent, name));
    }

    /// What was written by an entry is this object now, by that name.
    pub fn landed(&mut self, parent: Ino, name: &Arc<str>, ino: Ino, object: Object, now: Instant) {
        let until = now + self.ttl;
        if let Some(node) = self.nodes.get_mut(&ino)
            && node.is_ours
            && node.is_linked
        {
            (node.is, node.is_ours, node.until) = (Kind::File(object).into(), false, until);
            node.changed = Some(now);
        } else {
            // The kernel has pages, and names, of what was there before.
            if let Some(other) = self.put(parent, name, Kind::File(object), now) {
                self.change(other, now);
            }
            self.unwanted.push((parent, Arc::clone(name)));
        }
        self.is_the_bucket_s(parent, now);
    }

    /// What lies in a directory is the bucket's, and so is that. Who asked before may not have seen it.
    fn is_the_bucket_s(&mut self, directory: Ino, now: Instant) {
        let mut at = directory;
        while let Some(node) = self.nodes.get_mut(&at).filter(|_| at != ROOT) {
            (node.is_ours, node.changed) = (false, Some(now));
            at = node.parent;
        }
    }

    /// Nobody writes an entry any more: it is what the bucket has, or gone.
    pub fn settle(&mut self, ino: Ino, now: Instant) {
        let Some(node) = self.nodes.get_mut(&ino).filter(|node| node.is_ours) else {
            return;
        };
        node.is_ours = false;
        // Nothing has become of what was made here: an object has a version.
        if matches!(&node.is, Is::File(file) if file.object.etag.is_none()) {
            // What the bucket has by its name isn't known.
            self.doubt(ino, now);
            self.unlink(ino);
        }
    }

    /// An entry was deleted; the directory that it lay in stays, until it is removed or the mount ends.
    pub fn deleted(&mut self, ino: Ino, now: Instant) {
        let Some((parent, name)) = self.name(ino) else { return };
        self.unlink(ino);
        self.set_ours(parent);
        self.is_gone(parent, &name, now);
    }

    /// It is known from here that there is nothing by a name.
    fn is_gone(&mut self, parent: Ino, name: &str, now: Instant) {
        if let Some(ino) = self.put(parent, name, Kind::Missing, now) {
            self.change(ino, now);
        }
    }

    /// An entry has another name; `object` is what it is by that, of a file.
    pub fn renamed(&mut self, ino: Ino, parent: Ino, name: &str, object: Option<Object>, now: Instant) {
        let Some((old_parent, old_name)) = self.name(ino) else {
            return;
        };
        let until = now + self.ttl;
        let before = self
            .directory(parent)
            .and_then(|directory| directory.children.get(name).copied());
        before.into_iter().for_each(|before| self.unlink(before));
        if let Some(directory) = self.directory_mut(old_parent) {
            directory.children.remove(&old_name);
        }
        self.set_ours(old_parent);
        self.is_gone(old_parent, &old_name, now);
        let name: Arc<str> = name.into();
        if let Some(directory) = self.directory_mut(parent) {
            directory.children.insert(Arc::clone(&name), ino);
        }
        // What the kernel has by the old name it has by the new one then, also where that is an entry of which another one took the place.
        let mut at = ino;
        while let Some(&before) = self.before.get(&at)
            && let Some(node) = self.nodes.get_mut(&before)
            && !node.is_linked
            && (node.parent, &node.name) == (old_parent, &old_name)
        {
            (node.parent, node.name) = (parent, Arc::clone(&name));
            at = before;
        }
        // And may know of another size.
        self.unwanted.push((parent, Arc::clone(&name)));
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        (node.parent, node.name, node.until, node.changed) = (parent, name, until, Some(now));
        if let (Is::File(file), Some(object)) = (&mut node.is, object) {
            // It has the same bytes, by another key.
            (file.object, file.spot) = (object, None);
            self.is_the_bucket_s(parent, now);
        }
    }

    /// It isn't there any more by its name; who has it open keeps it.
    pub fn unlink(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if ino == ROOT || !std::mem::replace(&mut node.is_linked, false) {
            return;
        }
        let (parent, name, lookups) = (node.parent, Arc::clone(&node.name), node.lookups);
        if let Some(directory) = self.directory_mut(parent)
            && directory.children.get(&name) == Some(&ino)
        {
            directory.children.remove(&name);
        }
        let children: Vec<Ino> = self
            .directory(ino)
            .map(|directory| directory.children.values().copied().collect())
            .unwrap_or_default();
        children.into_iter().for_each(|child| self.unlink(child));
        if lookups == 0 {
            self.leave(ino);
        }
    }

    fn leave(&mut self, ino: Ino) {
        self.nodes.remove(&ino);
        self.before.remove(&ino);
    }

    /// What is known of an entry is believed no longer.
    pub fn doubt(&mut self, ino: Ino, now: Instant) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.until = now;
        let (parent, name) = (node.parent, Arc::clone(&node.name));
        // Nor by the kernel.
        self.unwanted.push((parent, name));
        for ino in [ino, parent] {
            if let Some(directory) = self.directory_mut(ino) {
                directory.listed_until = None;
            }
        }
    }

    /// The same of a name, whatever is known of it.
    pub fn doubt_name(&mut self, parent: Ino, name: &str, now: Instant) {
        match self
            .directory(parent)
            .and_then(|directory| directory.children.get(name).copied())
        {
            Some(ino) => self.doubt(ino, now),
            None => self.doubt_missing(parent, name),
        }
    }

    /// That there is nothing by a name is believed no longer.
    pub fn doubt_missing(&mut self, parent: Ino, name: &str) {
        let Some(directory) = self.directory_mut(parent) else {
            return;
        };
        match directory.children.get(name).copied() {
            Some(ino) if matches!(self.nodes.get(&ino), Some(Node { is: Is::Missing, .. })) => self.unlink(ino),
            Some(_) => return,
            None => {}
        }
        if let Some(directory) = self.directory_mut(parent) {
            directory.listed_until = None;
        }
    }

    /// An entry's key, relative to the root; of a directory without its slash. None: there is no such entry.
    #[must_use]
    pub fn key(&self, ino: Ino) -> Option<String> {
        let (mut parts, mut at) = (Vec::new(), ino);
        while at != ROOT {
            let node = self.nodes.get(&at)?;
            parts.push(&*node.name);
            at = node.parent;
        }
        self.nodes.get(&ino)?;
        parts.reverse();
        Some(parts.join("/"))
    }

    /// Whether an entry is there by its name still.
    #[must_use]
    pub fn is_linked(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.is_linked)
    }

    /// An entry's name and its parent.
    #[must_use]
    pub fn name(&self, ino: Ino) -> Option<(Ino, Arc<str>)> {
        let node = self.nodes.get(&ino)?;
        Some((node.parent, Arc::clone(&node.name)))
    }

    /// What an entry is, and how long that is believed.
    #[must_use]
    pub fn kind(&self, ino: Ino, now: Instant) -> Option<(Kind, Duration)> {
        let node = self.nodes.get(&ino)?;
        let kind = match &node.is {
            Is::Directory(_) => Kind::Directory,
            Is::File(file) => Kind::File(file.object.clone()),
            Is::Missing => Kind::Missing,
        };
        let parent = self.directory(node.parent).filter(|_| node.is_linked);
        let listed = parent.and_then(|directory| directory.listed_until);
        let until = listed.map_or(node.until, |listed| listed.max(node.until));
        Some((kind, until.saturating_duration_since(now)))
    }

    /// Where an object's bytes are asked for, if that is known: of a file that is written, an entry may have another one by now.
    #[must_use]
    pub fn spot(&self, ino: Ino, object: &Object) -> Option<Spot> {
        match &self.nodes.get(&ino)?.is {
            Is::File(file) if is_same(&file.object, object) => file.spot,
            _ => None,
        }
    }

    /// A file's bytes are asked for there, as long as it has this object. That was begun then: what has got another name since, from here, isn't there.
    pub fn set_spot(&mut self, ino: Ino, object: &Object, spot: Spot, begun: Instant) {
        if let Some(Node {
            is: Is::File(file),
            changed,
            ..
        }) = self.nodes.get_mut(&ino)
            && file.object == *object
            && changed.is_none_or(|changed| changed < begun)
        {
            file.spot = Some(spot);
        }
    }

    /// Up to `most` files of which it isn't known where their bytes are asked for, with their keys, those that came last first; `is_good` says where that still is so.
    pub fn unplaced(&self, most: usize, is_good: impl Fn(Spot) -> bool) -> Vec<(Ino, String, Object)> {
        let mut prefixes: FxHashMap<Ino, String> = FxHashMap::default();
        let mut found = Vec::new();
        for &ino in self.queue.iter().rev() {
            let Some(Node {
                is: Is::File(file),
                parent,
                name,
                is_linked: true,
                ..
            }) = self.nodes.get(&ino)
            else {
                continue;
            };
            if file.spot.is_some_and(&is_good) {
                continue;
            }
            if !prefixes.contains_key(parent) {
                let Some(mut prefix) = self.key(*parent) else { continue };
                if !prefix.is_empty() {
                    prefix.push('/');
                }
                prefixes.insert(*parent, prefix);
            }
            found.push((ino, format!("{}{name}", prefixes[parent]), file.object.clone()));
            if found.len() >= most {
                break;
            }
        }
        found
    }

    /// The kernel keeps what it has of a file, if that is of the object that the file is now; from now on it is.
    pub fn keep(&mut self, ino: Ino) -> bool {
        match self.nodes.get_mut(&ino) {
            Some(Node { is: Is::File(file), .. }) => std::mem::replace(&mut file.is_kept, true),
            _ => false,
        }
    }

    /// It is referred to once more; false: there is no such entry.
    pub fn refer(&mut self, ino: Ino) -> bool {
        let node = self.nodes.get_mut(&ino);
        node.map(|node| node.lookups += 1).is_some()
    }

    /// Whether the kernel refers to what is there by a key: of nothing else it has any bytes.
    #[must_use]
    pub fn is_referred_to(&self, key: &str, now: Instant) -> bool {
        let mut at = ROOT;
        for part in key.split('/') {
            at = match self.look(at, part, now) {
                Look::Found(ino) => ino,
                Look::Missing | Look::Unknown => return false,
            };
        }
        self.nodes.get(&at).is_some_and(|node| node.lookups > 0)
    }

    /// The kernel refers to it so many times less.
    pub fn forget(&mut self, ino: Ino, times: u64) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.lookups = node.lookups.saturating_sub(times);
        if node.lookups == 0 && !node.is_linked && ino != ROOT {
            self.leave(ino);
        }
    }

    /// What the kernel is to let go of, as there are more entries than may be, or as it isn't so any more: directories, and names in them.
    pub fn unwanted(&mut self) -> Vec<(Ino, Arc<str>)> {
        std::mem::take(&mut self.unwanted)
    }

    /// Entries leave until there is room for so many more, but for those that stay.
    fn make_room(&mut self, more: usize, stays: impl Fn(Ino, &Node) -> bool) {
        let most = self.most.saturating_sub(more);
        let looks = (LOOKS * (more + 1)).min(self.queue.len());
        for _ in 0..looks {
            if self.len() <= most {
                return;
            }
            let Some(ino) = self.queue.pop_front() else { return };
            let Some(node) = self.nodes.get(&ino) else { continue };
            let has_children = self
                .directory(ino)
                .is_some_and(|directory| !directory.children.is_empty());
            if has_children || node.is_ours || stays(ino, node) {
                self.queue.push_back(ino);
                continue;
            }
            if node.lookups > 0 {
                self.unwanted.push((node.parent, Arc::clone(&node.name)));
                self.queue.push_back(ino);
                continue;
            }
            let parent = node.parent;
            self.unlink(ino);
            // What isn't known any more isn't missing.
            if let Some(directory) = self.directory_mut(parent) {
                directory.listed_until = None;
            }
        }
    }
}

impl Is {
    fn directory() -> Self {
        Is::Directory(Box::new(Directory {
            children: FxHashMap::default(),
            listed_until: None,
        }))
    }

    /// Takes over what is known now, if it is of the same kind.
    fn become_(&mut self, kind: &Kind) -> bool {
        match (self, kind) {
            (Is::Directory(_), Kind::Directory) | (Is::Missing, Kind::Missing) => true,
            // Of the same object what is known stays: a question may bring less than a listing. Another one is another entry: the kernel keeps pages by entries, and would give
            // those of the one to whoever has the other open.
            (Is::File(file), Kind::File(object)) if is_same(&file.object, object) => {
                // Written once more with the same bytes. A listing and a question say the time with different precision.
                if let (Some(before), Some(now)) = (file.object.modified, object.modified)
                    && now.duration_since(before).is_ok_and(|later| later > PRECISION)
                {
                    file.object.modified = Some(now);
                }
                true
            }
            _ => false,
        }
    }
}

/// Whether what was read of one object is true of the other. A listing may lack what a question brings.
fn is_same(before: &Object, now: &Object) -> bool {
    match (&before.etag, &now.etag) {
        (Some(before_), Some(now_)) => before_ == now_ && before.size == now.size,
        _ => before.size == now.size && before.modified == now.modified,
    }
}

impl From<Kind> for Is {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Directory => Is::directory(),
            Kind::Missing => Is::Missing,
            Kind::File(object) => Is::File(Box::new(File {
                object,
                spot: None,
                is_kept: false,
            })),
        }
    }
}

/// Whether a key's part can be a name here.
#[must_use]
pub fn is_name(part: &str) -> bool {
    !part.is_empty() && part != "." && part != ".." && part.len() <= MOST_NAME && !part.contains(['/', '\0'])
}

#[cfg(test)]
mod tests;
