//! What changes the bucket: files are made, written anew, deleted and renamed, directories made and removed.
//!
//! A bucket has no directories, so that one is made here alone, until a file is in it.

use crate::failure;
use crate::inner::Inner;
use crate::locked;
use crate::tree::{Ino, Kind, Object, ROOT, is_name};
use crate::writing::{Hold, New, NewFile, Target, Writing};
use fuser::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The kernel asks again at once.
const AGAIN: Duration = Duration::from_secs(2);

/// An entry that is set aside for whoever opens a file to write it.
pub(crate) struct Aside {
    parent: Ino,
    name: Arc<str>,
    ino: Ino,
    /// The handle by which a file that is being written is kept until then.
    hold: Option<u64>,
}

/// What is asked of a change, beside the names.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// What is there already is no good.
    pub is_exclusive: bool,
    /// What is there already is cut to nothing.
    pub truncates: bool,
    /// The thread that asks.
    pub pid: u32,
}

/// A file that somebody writes, if there is one: it stays as it is for as long as this is kept.
async fn held_of(file: &Option<Arc<NewFile>>) -> Option<Hold<'_>> {
    match file {
        Some(file) => Some(file.hold().await),
        None => None,
    }
}

fn nothing() -> Kind {
    Kind::File(Object {
        size: 0,
        etag: None,
        version: None,
        modified: Some(std::time::SystemTime::now()),
    })
}

impl Inner {
    /// Who writes, where that is allowed.
    pub(crate) fn writing(&self) -> Result<&Arc<Writing>, Errno> {
        self.writing.as_ref().ok_or(Errno::EROFS)
    }

    fn key_of(&self, parent: Ino, name: &str) -> Result<String, Errno> {
        let directory = self.names.tree().key(parent).ok_or(Errno::ENOENT)?;
        Ok(crate::names::joined(&directory, name))
    }

    /// A key that something is to be made by.
    fn new_key(&self, parent: Ino, name: &str) -> Result<String, Errno> {
        let key = self.key_of(parent, name)?;
        match self.writing()?.writer().takes(&key) {
            true => Ok(key),
            false => Err(Errno::EINVAL),
        }
    }

    /// What is there by a name, if anything is; asked for unless it is known.
    async fn there(&self, parent: Ino, name: &str) -> Result<Option<(Ino, Kind)>, Errno> {
        if !is_name(name) || (parent == ROOT && name == crate::inner::CONTROL) {
            return Err(Errno::EPERM);
        }
        let found = match self.names.look_up(parent, name).await {
            Ok(ino) => ino,
            Err(error) if error.code() == Errno::ENOENT.code() => return Ok(None),
            Err(error) => return Err(error),
        };
        let kind = self.names.tree().kind(found, Instant::now());
        Ok(kind.map(|(kind, _)| (found, kind)))
    }

    /// Makes a file, which is written under this handle.
    pub(crate) async fn create(self: &Arc<Self>, parent: Ino, name: &str, handle: u64, how: How) -> Result<Ino, Errno> {
        let writing = self.writing()?;
        if how.is_exclusive || !how.truncates {
            // Somebody may have put it since it was missing.
            self.names.tree().doubt_missing(parent, name);
        }
        match self.there(parent, name).await? {
            Some((_, Kind::Directory)) => return Err(Errno::EISDIR),
            Some(_) if how.is_exclusive => return Err(Errno::EEXIST),
            Some((ino, _)) => return self.open_to_write(ino, handle, how).await.map(|()| ino),
            None => {}
        }
        let key = self.new_key(parent, name)?;
        let made = self.names.tree().make(parent, name, nothing(), Instant::now());
        let ino = made.ok_or(Errno::ENOENT)?;
        let new = New {
            ino,
            target: Target {
                parent,
                name: name.into(),
                key,
            },
            was: None,
        };
        drop(writing.open(handle, new, how.pid));
        Ok(ino)
    }

    /// Opens a file to be written.
    ///
    /// What is there is read by others under its own entry, so whoever writes gets another one: the open fails with `ESTALE`, for which the kernel asks for the name again, and
    /// hears of that one ([`Inner::aside_of`]). Who comes to read in between waits ([`Inner::stands_aside`]).
    pub(crate) async fn open_to_write(self: &Arc<Self>, ino: Ino, handle: u64, how: How) -> Result<(), Errno> {
        let writing = self.writing()?;
        let (is_linked, came) = (self.names.tree().is_linked(ino), self.takes_aside(ino));
        let is_meant = came.is_some() || !is_linked;
        if let Some(file) = writing.by_ino(ino)
            && (is_meant || self.is_written(&file, ino, how).await)
        {
            writing.share(handle, &file, how.pid);
            if let Some(hold) = came {
                self.lets_go(ino, hold).await;
            }
            return self.cut(&file, how).await;
        }
        let (named, key) = {
            let tree = self.names.tree();
            (tree.name(ino), tree.key(ino))
        };
        let (Some((parent, name)), Some(key)) = (named, key) else {
            return Err(Errno::ESTALE);
        };
        let Some((Kind::File(object), _)) = self.names.tree().kind(ino, Instant::now()) else {
            return Err(Errno::ESTALE);
        };
        let is_written = match writing.by_name(parent, &name) {
            Some(file) => self.is_written(&file, ino, how).await,
            None => false,
        };
        let is_empty = came.is_none() && is_linked && object.size == 0 && !is_written && !self.is_read(ino);
        // Who adds to it would lose what somebody else has put there meanwhile.
        if is_empty && (how.truncates || self.names.look_again(parent, &name).await == Ok(ino)) {
            // Nobody can read anything of it, so that it can be what is written.
            self.names.tree().set_ours(ino);
        } else if came.is_none() {
            // What the kernel knows may have been replaced: it asks for the name once more, and no more.
            if let Some((now, Kind::File(_))) = self.there(parent, &name).await? {
                self.set_aside(now, parent, name, how).await?;
            }
            return Err(Errno::ESTALE);
        }
        let new = New {
            ino,
            target: Target { parent, name, key },
            was: Some(object),
        };
        let file = writing.open(handle, new, how.pid);
        if let Some(hold) = came {
            self.lets_go(ino, hold).await;
        }
        self.cut(&file, how).await
    }

    /// Whether whoever writes an entry writes this file.
    async fn is_written(&self, file: &NewFile, ino: Ino, how: How) -> bool {
        let kind = self.names.tree().kind(ino, Instant::now());
        file.is_under_way()
            || matches!(kind, Some((Kind::File(object), _)) if file.is_still(&object, how.truncates).await)
    }

    async fn cut(&self, file: &Arc<NewFile>, how: How) -> Result<(), Errno> {
        match how.truncates {
            true => self.resize(file, 0).await,
            false => Ok(()),
        }
    }

    /// Makes a file that is being written as long as this.
    pub(crate) async fn resize(&self, file: &Arc<NewFile>, bytes: u64) -> Result<(), Errno> {
        self.resize_held(file, &mut file.hold().await, bytes).await
    }

    async fn resize_held(&self, file: &Arc<NewFile>, held: &mut Hold<'_>, bytes: u64) -> Result<(), Errno> {
        self.writing()?.goes_on(file);
        file.resize_held(held, bytes).await?;
        // What was read of the object that it was is of no use.
        let handles = self.writing()?.handles(file);
        let mut files = locked(&self.files);
        let before: Vec<_> = handles.iter().filter_map(|handle| files.remove(handle)).collect();
        drop(files);
        drop(before);
        Ok(())
    }

    /// Who asks for this name next hears of an entry for whoever writes it.
    async fn set_aside(self: &Arc<Self>, there: Ino, parent: Ino, name: Arc<str>, how: How) -> Result<(), Errno> {
        let writing = self.writing()?;
        let found = match writing.by_name(parent, &name) {
            Some(file) if self.is_written(&file, there, how).await => Some(file),
            _ => None,
        };
        if self.aside_of(parent, &name).is_some() {
            // Of two that come at once both write one file.
            return Ok(());
        }
        let (ino, hold) = match found.filter(|file| self.names.tree().refer(file.ino)) {
            Some(file) => {
                // It isn't done with before the kernel has come again.
                let hold = self.number();
                writing.share(hold, &file, how.pid);
                (file.ino, Some(hold))
            }
            None => {
                let aside = self.names.tree().aside(there, Instant::now());
                (aside.ok_or(Errno::EISDIR)?, None)
            }
        };
        locked(&self.asides).push(Aside {
            parent,
            name,
            ino,
            hold,
        });
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(AGAIN).await;
            // Whoever it was has ended meanwhile.
            if let Some(hold) = inner.takes_aside(ino) {
                inner.lets_go(ino, hold).await;
            }
        });
        Ok(())
    }

    /// What kept an entry, and a file, until the kernel came doesn't any more: it refers to it by now.
    async fn lets_go(&self, ino: Ino, hold: Option<u64>) {
        self.names.tree().forget(ino, 1);
        if let (Some(hold), Some(writing)) = (hold, &self.writing) {
            writing.release(hold).await;
        }
    }

    /// The entry that was set aside for whoever opens this name to write it, until then.
    pub(crate) fn aside_of(&self, parent: Ino, name: &str) -> Option<Ino> {
        let asides = locked(&self.asides);
        let mut found = asides.iter().filter(|aside| aside.parent == parent);
        found.find(|aside| &*aside.name == name).map(|aside| aside.ino)
    }

    /// Waits until whoever an entry was set aside for has come, or doesn't.
    pub(crate) async fn stands_aside(&self, ino: Ino) {
        while locked(&self.asides).iter().any(|aside| aside.ino == ino) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whoever it was set aside for has come: what keeps the file meanwhile. `None`: it was for nobody.
    fn takes_aside(&self, ino: Ino) -> Option<Option<u64>> {
        let mut asides = locked(&self.asides);
        let found = asides.iter().position(|aside| aside.ino == ino)?;
        Some(asides.swap_remove(found).hold)
    }

    /// Cuts a file to nothing.
    pub(crate) async fn empty(&self, ino: Ino, pid: u32) -> Result<(), Errno> {
        let (writing, handle) = (self.writing()?, self.number());
        let (named, key, aside) = {
            let mut tree = self.names.tree();
            // The kernel asks for the name again then.
            if !tree.is_linked(ino) {
                return Err(Errno::ESTALE);
            }
            (tree.name(ino), tree.key(ino), tree.aside(ino, Instant::now()))
        };
        let (Some((parent, name)), Some(key), Some(aside)) = (named, key, aside) else {
            return Err(Errno::ESTALE);
        };
        // Whoever writes it anew has the same file open.
        let writes = writing.by_name(parent, &name);
        // And completes it after this.
        let mut held = held_of(&writes).await;
        if let (Some(file), Some(held)) = (&writes, &mut held) {
            self.resize_held(file, held, 0).await?;
        }
        let Some((Kind::File(object), _)) = self.names.tree().kind(aside, Instant::now()) else {
            return Err(Errno::ESTALE);
        };
        let new = New {
            ino: aside,
            target: Target {
                parent,
                name: Arc::clone(&name),
                key,
            },
            was: Some(object),
        };
        let file = writing.open(handle, new, pid);
        let done = match self.resize(&file, 0).await {
            Ok(()) => writing.complete(&file, true).await,
            Err(error) => Err(error),
        };
        drop(file);
        if let (Ok(()), Some(held)) = (done, &mut held)
            && let Ok(Some((_, Kind::File(object)))) = self.there(parent, &name).await
        {
            held.takes_the_place_of(object);
        }
        drop(held);
        writing.release(handle).await;
        self.names.tree().forget(aside, 1);
        done
    }

    pub(crate) async fn delete(&self, parent: Ino, name: &str) -> Result<(), Errno> {
        let writing = self.writing()?;
        let Some((ino, kind)) = self.there(parent, name).await? else {
            return Err(Errno::ENOENT);
        };
        if kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        let file = writing.by_name(parent, name);
        // Nobody completes it meanwhile; and it goes on if it isn't deleted.
        let held = held_of(&file).await;
        if !self.names.tree().is_ours(ino) || held.as_ref().is_some_and(Hold::has_object) {
            let key = self.key_of(parent, name)?;
            let deleted = writing.writer().delete(&key).await;
            deleted.map_err(|error| failure::of_writing(&error))?;
        }
        if let Some(file) = &file {
            file.is_deleted();
        }
        self.names.tree().deleted(ino, Instant::now());
        Ok(())
    }

    pub(crate) async fn make_directory(&self, parent: Ino, name: &str) -> Result<Ino, Errno> {
        self.writing()?;
        if self.there(parent, name).await?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.new_key(parent, name)?;
        let made = self.names.tree().make(parent, name, Kind::Directory, Instant::now());
        made.ok_or(Errno::ENOENT)
    }

    pub(crate) async fn remove_directory(&self, parent: Ino, name: &str) -> Result<(), Errno> {
        self.writing()?;
        match self.there(parent, name).await? {
            None => Err(Errno::ENOENT),
            Some((ino, Kind::Directory)) => {
                // What others have put there since it was listed counts.
                self.names.tree().doubt(ino, Instant::now());
                if !self.names.list(ino).await?.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                let key = self.key_of(parent, name)?;
                let removed = self.writing()?.writer().delete_marker(&key).await;
                removed.map_err(|error| failure::of_writing(&error))?;
                self.names.tree().deleted(ino, Instant::now());
                Ok(())
            }
            Some(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Gives a file another name, or a directory without anything in it.
    pub(crate) async fn rename(&self, from: (Ino, &str), to: (Ino, &str), is_exclusive: bool) -> Result<(), Errno> {
        self.writing()?;
        let Some((ino, kind)) = self.there(from.0, from.1).await? else {
            return Err(Errno::ENOENT);
        };
        let target = self.there(to.0, to.1).await?;
        if from == to {
            return Ok(());
        }
        if target.is_some() && is_exclusive {
            return Err(Errno::EEXIST);
        }
        match (&kind, &target) {
            (Kind::File(_), Some((_, Kind::Directory))) => Err(Errno::EISDIR),
            (Kind::Directory, Some((_, Kind::File(_)))) => Err(Errno::ENOTDIR),
            (Kind::Directory, _) => {
                if let Some((there, _)) = target
                    && !self.names.list(there).await?.is_empty()
                {
                    return Err(Errno::ENOTEMPTY);
                }
                let is_empty = self.names.tree().is_ours(ino) && self.names.list(ino).await?.is_empty();
                if !is_empty || target.is_some() {
                    // Programs move the files one by one then.
                    return Err(Errno::EXDEV);
                }
                self.names.tree().renamed(ino, to.0, to.1, None, Instant::now());
                Ok(())
            }
            (Kind::File(_), _) => self.rename_file(ino, from, to).await,
            (Kind::Missing, _) => Err(Errno::ENOENT),
        }
    }

    async fn rename_file(&self, mut ino: Ino, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Errno> {
        let writing = self.writing()?;
        let (old, new) = (self.key_of(from.0, from.1)?, self.new_key(to.0, to.1)?);
        let target = Target {
            parent: to.0,
            name: to.1.into(),
            key: new.clone(),
        };
        let replaced = writing.by_name(to.0, to.1);
        // What is written there isn't completed meanwhile; and it goes on if it isn't replaced.
        let held = held_of(&replaced).await;
        let is_replaced = || {
            if let Some(file) = &replaced {
                file.is_deleted();
            }
        };
        // Nor is anything written to this one, before it has its new name or keeps the old one.
        let open = writing.by_name(from.0, from.1);
        let mut held_open = held_of(&open).await;
        if let (Some(file), Some(held)) = (&open, &mut held_open) {
            if self.names.tree().is_ours(ino) && held.is_free() {
                // Nothing of it is in the bucket, so that it needs no other name there.
                let before = file.target();
                file.has_become(target);
                let done = writing.complete_held(file, held, true).await;
                match done {
                    Ok(()) => {
                        is_replaced();
                        self.names.tree().renamed(ino, to.0, to.1, None, Instant::now());
                    }
                    Err(_) => file.has_become(before),
                }
                return done;
            }
            writing.complete_held(file, held, true).await?;
            ino = self.there(from.0, from.1).await?.ok_or(Errno::ENOENT)?.0;
        }
        let Some((Kind::File(object), _)) = self.names.tree().kind(ino, Instant::now()) else {
            return Err(Errno::ENOENT);
        };
        if !writing.writer().renames(object.size) {
            return Err(Errno::EXDEV);
        }
        let renamed = writing.writer().rename(&old, &new).await;
        let meta = renamed.map_err(|error| {
            // It may be there by both names now.
            let mut tree = self.names.tree();
            tree.doubt_name(to.0, to.1, Instant::now());
            tree.doubt(ino, Instant::now());
            failure::of_writing(&error)
        })?;
        is_replaced();
        let object = crate::names::object_of(&meta);
        if let (Some(file), Some(held)) = (&open, &mut held_open) {
            file.has_become(target);
            held.takes_the_place_of(object.clone());
        }
        self.names.tree().renamed(ino, to.0, to.1, Some(object), Instant::now());
        drop((held, held_open));
        Ok(())
    }
}
