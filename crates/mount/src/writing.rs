//! Files that are written: each becomes one object, when it is closed.
//!
//! A file is written from its beginning on. What was written last, up to a part, is here and may be written over; when it is full it goes to the bucket beside other parts, and is the
//! bucket's from then on. The first part goes last, for many formats come back to their beginning: it may be written over until then, unless memory is short or the store takes parts in
//! their order only. The object is there when all of it is: at `fsync`, or when the process that opened the file closes it, which hears what went wrong. Until then others
//! see what was there before. A file that was small enough to stay here can be written on after that, and is put again.
//!
//! The mount's own process sends it, and not the agent: a plan has nothing to say about it.

use crate::failure;
use crate::names::{Names, object_of};
use crate::tree::{Ino, Object};
use crate::{locked, process_of};
use bytes::Bytes;
use foreload_store::source::{Upload, Writer};
use fuser::Errno;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Parts of one file that are as large as was asked for; of the next so many each is twice as large. Ten thousand parts hold 37 times as much as they would otherwise.
const EVEN_PARTS: u64 = 2500;
/// Zeros that a program leaves out are sent, up to so many parts at a time.
const MOST_GAP_PARTS: u64 = 64;
/// What stores take as a part that isn't the last one, at least.
const LEAST_PART: u64 = 5 << 20;
/// What parts that are under way count in.
const UNIT: u64 = 1 << 20;

/// What all files share that are written.
pub struct Writing {
    writer: Writer,
    names: Arc<Names>,
    part_bytes: u64,
    /// Parts that may be under way, of all files together.
    room: Arc<Semaphore>,
    room_units: u32,
    /// What lies here of all files, and what may before parts are sent that aren't full.
    held: Arc<AtomicU64>,
    most_held: u64,
    open: Mutex<FxHashMap<u64, Arc<NewFile>>>,
    /// Those that aren't done: open, or being completed.
    left: Arc<()>,
    /// Objects that were written, their bytes, and files of which nothing became.
    pub objects: AtomicU64,
    /// See [`Writing::objects`].
    pub bytes: AtomicU64,
    /// See [`Writing::objects`].
    pub failures: AtomicU64,
}

/// What is to be written.
pub struct New {
    /// Its entry: of its own until it is done, if there is another object by its name.
    pub ino: Ino,
    /// What becomes of it.
    pub target: Target,
    /// The object that is there, which stays if nothing is changed.
    pub was: Option<Object>,
}

/// What is read of a file that is written.
pub enum Read {
    /// What is here.
    Here(Vec<u8>),
    /// What is in the bucket, by this key.
    Of(String, Object),
}

/// A file that somebody writes.
pub struct NewFile {
    /// Its entry.
    pub ino: Ino,
    target: Mutex<Target>,
    /// The processes that opened it.
    openers: Mutex<Vec<u32>>,
    /// Somebody has deleted it meanwhile.
    is_gone: AtomicBool,
    /// It is an object, and nothing was written since.
    has_landed: AtomicBool,
    /// The number that programs see.
    shown: AtomicU64,
    is_renamed: AtomicBool,
    is_pending: AtomicBool,
    size: AtomicU64,
    held: Held,
    state: tokio::sync::Mutex<State>,
    _left: Arc<()>,
}

/// What lies here of one file, counted among all.
struct Held {
    all: Arc<AtomicU64>,
    own: AtomicU64,
}

impl Held {
    fn is(&self, state: &State) {
        self.are(state.head.len() as u64 + state.tail.len() as u64);
    }

    fn are(&self, bytes: u64) {
        let before = self.own.swap(bytes, Ordering::Relaxed);
        // What becomes less wraps around, and is less in the sum.
        self.all.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.are(0);
    }
}

/// A file that stays as it is.
pub struct Hold<'a>(tokio::sync::MutexGuard<'a, State>);

impl Hold<'_> {
    /// Whether the bucket has an object of it, or one that it takes the place of.
    #[must_use]
    pub fn has_object(&self) -> bool {
        self.0.object.is_some()
    }

    /// What is there by its name now is this: it takes the place of that, or is that.
    pub fn takes_the_place_of(&mut self, object: Object) {
        if self.0.object.is_some() {
            self.0.object = Some(object);
        }
    }

    /// Whether it is no object yet, nor begun as one, by the name that it has.
    #[must_use]
    pub fn is_free(&self) -> bool {
        let state = &self.0;
        let is_pending = (state.is_new || state.is_due) && !state.is_complete;
        state.upload.is_none() && state.object.is_none() && is_pending
    }
}

/// What becomes of a file.
#[derive(Clone)]
pub struct Target {
    /// The directory that it is in.
    pub parent: Ino,
    /// Its name there.
    pub name: Arc<str>,
    /// Its key.
    pub key: String,
}

struct State {
    /// The first part, as long as it is here.
    head: Vec<u8>,
    /// Bytes before the tail: the bucket's, but for the head.
    sent: u64,
    parts: u64,
    /// What comes behind them.
    tail: Vec<u8>,
    upload: Option<Upload>,
    /// There is more than the object has.
    is_new: bool,
    /// It is another object than before, or there was none, whatever is written.
    is_due: bool,
    /// It is the object that it was, of which nothing can be changed: it can be cut to nothing.
    is_kept: bool,
    /// It went up in parts and is complete: nothing can follow.
    is_complete: bool,
    /// What it is then, or was before.
    object: Option<Object>,
    failed: Option<Errno>,
}

impl State {
    /// The first part is the last one again, if nothing was sent.
    fn takes_back(&mut self) {
        if self.parts == 1 && !self.head.is_empty() {
            self.head.append(&mut self.tail);
            self.tail = std::mem::take(&mut self.head);
            (self.sent, self.parts) = (0, 0);
        }
    }
}

impl Writing {
    /// Writes by way of this writer, in parts of so many bytes of which so many may be under way.
    #[must_use]
    pub fn new(writer: Writer, names: Arc<Names>, part_bytes: u64, most_parts: u32) -> Self {
        let units = part_bytes.div_ceil(UNIT).saturating_mul(u64::from(most_parts));
        let room_units = u32::try_from(units)
            .unwrap_or(u32::MAX)
            .min(Semaphore::MAX_PERMITS as u32)
            .max(1);
        Writing {
            writer,
            names,
            part_bytes,
            room: Arc::new(Semaphore::new(room_units as usize)),
            room_units,
            held: Arc::default(),
            most_held: u64::from(room_units) * UNIT,
            open: Mutex::default(),
            left: Arc::new(()),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Who deletes and renames.
    #[must_use]
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Opens a file to write it from its beginning; `handle` is what the kernel has for it.
    pub fn open(&self, handle: u64, new: New, pid: u32) -> Arc<NewFile> {
        let state = State {
            head: Vec::new(),
            sent: 0,
            parts: 0,
            tail: Vec::new(),
            upload: None,
            is_new: false,
            is_due: new.was.is_none(),
            is_kept: new.was.as_ref().is_some_and(|object| object.size > 0),
            is_complete: false,
            failed: None,
            object: None,
        };
        let size = new.was.as_ref().map_or(0, |object| object.size);
        let state = State {
            object: new.was,
            ..state
        };
        let file = Arc::new(NewFile {
            ino: new.ino,
            target: Mutex::new(new.target),
            openers: Mutex::new(vec![process_of(pid)]),
            is_gone: AtomicBool::new(false),
            has_landed: AtomicBool::new(false),
            shown: AtomicU64::new(new.ino),
            is_renamed: AtomicBool::new(false),
            is_pending: AtomicBool::new(true),
            size: AtomicU64::new(size),
            held: Held {
                all: Arc::clone(&self.held),
                own: AtomicU64::new(0),
            },
            state: tokio::sync::Mutex::new(state),
            _left: Arc::clone(&self.left),
        });
        locked(&self.open).insert(handle, Arc::clone(&file));
        file
    }

    /// Opens a file that is being written once more: whoever has it open sees one file.
    pub fn share(&self, handle: u64, file: &Arc<NewFile>, pid: u32) {
        locked(&file.openers).push(process_of(pid));
        locked(&self.open).insert(handle, Arc::clone(file));
    }

    /// The file that the kernel has this for.
    #[must_use]
    pub fn of(&self, handle: u64) -> Option<Arc<NewFile>> {
        locked(&self.open).get(&handle).cloned()
    }

    /// The file that is being written by this name.
    #[must_use]
    pub fn by_name(&self, parent: Ino, name: &str) -> Option<Arc<NewFile>> {
        let open = locked(&self.open);
        let is_it = |file: &Arc<NewFile>| {
            let target = locked(&file.target);
            target.parent == parent && &*target.name == name && !file.is_gone.load(Ordering::Relaxed)
        };
        open.values().find(|file| is_it(file)).cloned()
    }

    /// The file that has this entry.
    #[must_use]
    pub fn by_ino(&self, ino: Ino) -> Option<Arc<NewFile>> {
        locked(&self.open).values().find(|file| file.ino == ino).cloned()
    }

    /// What the kernel has for a file.
    #[must_use]
    pub fn handles(&self, file: &Arc<NewFile>) -> Vec<u64> {
        let open = locked(&self.open);
        let own = open.iter().filter(|(_, other)| Arc::ptr_eq(other, file));
        own.map(|(handle, _)| *handle).collect()
    }

    /// Bytes of files that are being written, as far as they are here and not on their way.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Files that are being written, or completed.
    #[must_use]
    pub fn left(&self) -> usize {
        Arc::strong_count(&self.left) - 1
    }

    /// A file is written on that was an object already: others see that, and not what becomes of it.
    pub fn goes_on(&self, file: &NewFile) {
        if file.has_landed.swap(false, Ordering::Relaxed) {
            self.names.tree().is_written_on(file.ino, Instant::now());
        }
    }

    /// Writes at once, if nothing has to be waited for. `None`: it does.
    pub fn write_at_hand(&self, file: &NewFile, at: u64, data: &[u8]) -> Option<Result<(), Errno>> {
        self.goes_on(file);
        let mut state = file.state.try_lock().ok()?;
        if at < state.sent {
            let is_in_head = at + data.len() as u64 <= state.head.len() as u64;
            return is_in_head.then(|| file.put_into(&mut state, at, data));
        }
        let end = at + data.len() as u64 - state.sent;
        if end >= self.part_bytes_of(state.parts) || (end >= LEAST_PART && self.is_full(&state)) {
            return None;
        }
        let written = file.put_into(&mut state, at, data);
        Some(written)
    }

    /// Writes, and waits until there is room for it.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it isn't written from its beginning on. `EIO`: an earlier part failed.
    pub async fn write(&self, file: &NewFile, mut at: u64, mut data: &[u8]) -> Result<(), Errno> {
        self.goes_on(file);
        let mut state = file.state.lock().await;
        let gap = at.saturating_sub(state.sent + state.tail.len() as u64);
        if gap > 0 && gap <= MOST_GAP_PARTS * self.part_bytes {
            file.may_change(&state, at)?;
            self.fill(file, &mut state, at).await?;
        }
        // Not a part of it: whoever hears that it failed would think that nothing was written.
        let (head, end) = (state.head.len() as u64, at + data.len() as u64);
        if at < head && end > head && state.sent > head {
            return Err(file.out_of_place(head));
        }
        while !data.is_empty() {
            let (head, full) = (state.head.len() as u64, state.sent + self.part_bytes_of(state.parts));
            let end = if at < head { head } else { full };
            let now = usize::try_from(end.saturating_sub(at))
                .unwrap_or(usize::MAX)
                .min(data.len());
            if now == 0 && at == end && at == state.sent + state.tail.len() as u64 {
                // Zeros have filled it.
                self.send(file, &mut state).await?;
                continue;
            }
            if now == 0 {
                return Err(file.out_of_place(at));
            }
            file.put_into(&mut state, at, &data[..now])?;
            (at, data) = (at + now as u64, &data[now..]);
            let len = state.tail.len() as u64;
            if state.sent + len >= full || (len >= LEAST_PART && self.is_full(&state)) {
                self.send(file, &mut state).await?;
            }
        }
        Ok(())
    }

    /// Whether more lies here than is to. A file has only so many parts, so that one that has many has large ones.
    fn is_full(&self, state: &State) -> bool {
        state.parts < EVEN_PARTS && self.held.load(Ordering::Relaxed) > self.most_held
    }

    /// What is here is a part: it is sent, or stays as the first one.
    async fn send(&self, file: &NewFile, state: &mut State) -> Result<(), Errno> {
        let is_full = self.is_full(state);
        if state.parts == 0 && !is_full && self.writer.takes_any_order() {
            state.head = std::mem::take(&mut state.tail);
            state.head.shrink_to_fit();
            (state.sent, state.parts) = (state.head.len() as u64, 1);
            return Ok(());
        }
        if is_full {
            self.send_head(file, state).await?;
        }
        let part = std::mem::take(&mut state.tail);
        let nth = state.parts;
        state.sent += part.len() as u64;
        state.parts += 1;
        self.send_part(file, state, nth, part).await
    }

    /// The first part is sent, if it is here.
    async fn send_head(&self, file: &NewFile, state: &mut State) -> Result<(), Errno> {
        let head = std::mem::take(&mut state.head);
        if head.is_empty() {
            return Ok(());
        }
        self.send_part(file, state, 0, head).await
    }

    async fn send_part(&self, file: &NewFile, state: &mut State, nth: u64, part: Vec<u8>) -> Result<(), Errno> {
        file.held.is(state);
        let Err(error) = self.send_or_say(file, state, nth, part).await else {
            return Ok(());
        };
        if let Some(upload) = state.upload.take() {
            upload.abort().await;
        }
        Err(self.failed(state, &error))
    }

    /// What failed stays so: whoever writes on, and whoever closes it, hears of it.
    fn failed(&self, state: &mut State, error: &foreload_store::Error) -> Errno {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *state.failed.insert(failure::of_writing(error))
    }

    async fn send_or_say(
        &self,
        file: &NewFile,
        state: &mut State,
        nth: u64,
        part: Vec<u8>,
    ) -> foreload_store::Result<()> {
        let units = u32::try_from((part.len() as u64).div_ceil(UNIT)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room)
            .acquire_many_owned(units.min(self.room_units))
            .await;
        let upload = match &mut state.upload {
            Some(upload) => upload,
            None => state.upload.insert(self.writer.begin(&file.key()).await?),
        };
        // Those that have ended say now whether they failed.
        upload.arrived()?;
        upload.part(usize::try_from(nth).unwrap_or(usize::MAX), part.into(), room.ok());
        Ok(())
    }

    /// Zeros follow what was written, up to the file's size.
    async fn fill(&self, file: &NewFile, state: &mut State, bytes: u64) -> Result<(), Errno> {
        loop {
            let (len, most) = (bytes.saturating_sub(state.sent), self.part_bytes_of(state.parts));
            if len > state.tail.len() as u64 {
                state.tail.resize(len.min(most) as usize, 0);
                file.held.is(state);
            }
            if len <= most {
                return Ok(());
            }
            self.send(file, state).await?;
        }
    }

    fn part_bytes_of(&self, nth: u64) -> u64 {
        self.part_bytes << (nth / EVEN_PARTS).min(16)
    }

    /// Makes an object of what was written; nothing is done where that was done already.
    ///
    /// # Errors
    /// What the bucket says, or said of a part: there is what was there before.
    pub async fn complete(&self, file: &NewFile, is_last: bool) -> Result<(), Errno> {
        self.complete_held(file, &mut file.hold().await, is_last).await
    }

    /// The same of a file that is held.
    ///
    /// # Errors
    /// As [`Writing::complete`].
    pub async fn complete_held(&self, file: &NewFile, held: &mut Hold<'_>, is_last: bool) -> Result<(), Errno> {
        let state = &mut *held.0;
        if let Some(error) = state.failed {
            return Err(error);
        }
        let is_due = state.is_new || (is_last && state.is_due);
        if !is_due || file.is_gone.load(Ordering::Relaxed) {
            if is_last && let Some(upload) = state.upload.take() {
                upload.abort().await;
            }
            return Ok(());
        }
        let bytes = file.size.load(Ordering::Relaxed);
        self.fill(file, state, bytes).await?;
        if state.tail.is_empty() {
            state.takes_back();
        }
        if state.parts > 0 && !state.tail.is_empty() {
            self.send(file, state).await?;
        }
        self.send_head(file, state).await?;
        let put = match state.upload.take() {
            None => {
                let whole = Bytes::from(std::mem::take(&mut state.tail));
                let put = self.writer.put(&file.key(), whole.clone()).await;
                state.tail = whole.into();
                put
            }
            Some(upload) => {
                state.is_complete = true;
                upload.complete().await
            }
        };
        match put {
            Ok(meta) => {
                (state.is_new, state.is_due) = (false, false);
                file.note(state);
                self.objects.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                let (now, object) = (Instant::now(), object_of(&meta));
                state.object = Some(object.clone());
                if !file.is_gone.load(Ordering::Relaxed) {
                    let target = file.target();
                    self.names
                        .tree()
                        .landed(target.parent, &target.name, file.ino, object, now);
                    file.has_landed.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            Err(error) => Err(self.failed(state, &error)),
        }
    }

    /// The kernel has this no more: what wasn't completed is, when nobody else has it open.
    pub async fn release(&self, handle: u64) {
        let file = {
            let mut open = locked(&self.open);
            let Some(file) = open.get(&handle).cloned() else { return };
            if open.values().filter(|other| Arc::ptr_eq(other, &file)).count() > 1 {
                open.remove(&handle);
                return;
            }
            file
        };
        // Whoever wrote it has gone, so the log alone says what is wrong. Until it is done nobody begins another one by its name.
        let _ = self.complete(&file, true).await;
        locked(&self.open).remove(&handle);
        let is_left = locked(&self.open).values().any(|other| Arc::ptr_eq(other, &file));
        if !is_left {
            self.names.tree().settle(file.ino, Instant::now());
        }
    }

    /// Nothing becomes of files that are open, and that nobody is at work on: the kernel has gone, and says no more of them.
    pub async fn forget_unwritten(&self) {
        let forgotten: Vec<Arc<NewFile>> = {
            let mut open = locked(&self.open);
            let resting = resting(&open);
            let unwritten = open.extract_if(|_, file| resting.contains(&Arc::as_ptr(file)));
            unwritten.map(|(_, file)| file).collect()
        };
        for file in forgotten {
            let upload = file.state.lock().await.upload.take();
            if file.is_under_way() && file.has_content() && Arc::strong_count(&file) == 1 {
                let key = file.key();
                crate::log::line(format_args!("{key}: nothing became of it, for the mount has ended"));
            }
            if let Some(upload) = upload {
                upload.abort().await;
            }
        }
    }

    /// Whether nothing is to be waited for: of what is open still all is in the bucket, and nobody is at work on it.
    fn is_done(&self) -> bool {
        let open = locked(&self.open);
        let resting = resting(&open);
        let is_whole = |file: &&Arc<NewFile>| resting.contains(&Arc::as_ptr(file)) && !file.is_under_way();
        let whole: FxHashSet<_> = open.values().filter(is_whole).map(Arc::as_ptr).collect();
        self.left() <= whole.len()
    }

    /// Nothing becomes of what is being written still.
    pub async fn give_up(&self) {
        let files: Vec<Arc<NewFile>> = locked(&self.open).drain().map(|(_, file)| file).collect();
        for file in files {
            let upload = file.state.lock().await.upload.take();
            if let Some(upload) = upload {
                crate::log::line(format_args!(
                    "{}: nothing became of it, for the mount has ended",
                    file.key()
                ));
                upload.abort().await;
            }
        }
    }

    /// Waits until all that was closed is done; false: it isn't, within so long.
    pub async fn done(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        while !self.is_done() {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }
}

/// Files that are open, and that nobody is at work on.
fn resting(open: &FxHashMap<u64, Arc<NewFile>>) -> FxHashSet<*const NewFile> {
    let mut handles: FxHashMap<*const NewFile, usize> = FxHashMap::default();
    for file in open.values() {
        *handles.entry(Arc::as_ptr(file)).or_default() += 1;
    }
    let is_resting = |file: &&Arc<NewFile>| handles.get(&Arc::as_ptr(file)) == Some(&Arc::strong_count(file));
    open.values().filter(is_resting).map(Arc::as_ptr).collect()
}

impl NewFile {
    /// What becomes of it.
    #[must_use]
    pub fn target(&self) -> Target {
        locked(&self.target).clone()
    }

    fn key(&self) -> String {
        locked(&self.target).key.clone()
    }

    /// Whether this is what it became, so that whoever writes that writes it; one that failed is none, unless it begins anew.
    pub async fn is_still(&self, object: &Object, begins_anew: bool) -> bool {
        let state = self.state.lock().await;
        if state.failed.is_some() {
            return begins_anew;
        }
        let own = state.object.as_ref();
        own.is_some_and(|own| own.etag.is_some() && own.etag == object.etag)
    }

    /// Whether an object that is there by its name is what it takes the place of, or has become; it isn't when somebody else has put that, or this has lost its name.
    pub fn is_by_its_name(&self, object: &Object) -> bool {
        let is_other = |state: &State| state.object.as_ref().is_some_and(|own| own.etag != object.etag);
        // Who writes it right now is no other.
        !self.is_gone.load(Ordering::Relaxed) && !self.state.try_lock().is_ok_and(|state| is_other(&state))
    }

    /// The number that programs see.
    pub fn shown(&self) -> Ino {
        self.shown.load(Ordering::Relaxed)
    }

    /// They see this one from now on.
    pub fn is_shown_as(&self, ino: Ino) {
        self.shown.store(ino, Ordering::Relaxed);
    }

    /// Nobody writes or completes it until this is dropped.
    pub async fn hold(&self) -> Hold<'_> {
        Hold(self.state.lock().await)
    }

    /// It has another name from now on.
    pub fn has_become(&self, target: Target) {
        *locked(&self.target) = target;
        self.is_renamed.store(true, Ordering::Relaxed);
    }

    /// Whether it got another name since that was asked last.
    pub fn was_renamed(&self) -> bool {
        self.is_renamed.swap(false, Ordering::Relaxed)
    }

    /// Whether there is something to be done for it still: a change that isn't in the bucket.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.is_pending.load(Ordering::Relaxed)
    }

    fn note(&self, state: &State) {
        let is_pending = state.is_new || state.is_due || state.is_kept;
        self.is_pending
            .store(is_pending && state.failed.is_none(), Ordering::Relaxed);
    }

    /// Bytes that it has so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Whether this process is the one that opened it: another one that has it open, too, closes nothing for it.
    #[must_use]
    pub fn is_opener(&self, pid: u32) -> bool {
        let (process, openers) = (process_of(pid), locked(&self.openers));
        process == 0 || openers.iter().any(|&opener| opener == process || opener == 0)
    }

    /// Whether anything was written to it.
    #[must_use]
    pub fn has_content(&self) -> bool {
        self.size() > 0
    }

    /// Whether the process has another descriptor of it, as far as that can be seen.
    #[must_use]
    pub fn is_open_elsewhere(&self, pid: u32) -> bool {
        let end = format!("/{}", self.key());
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{}/fd", process_of(pid))) else {
            return true;
        };
        let links = descriptors.filter_map(|each| std::fs::read_link(each.ok()?.path()).ok());
        let mut named = links.filter(|link| {
            let link = link.to_string_lossy();
            link.strip_suffix(" (deleted)").unwrap_or(&link).ends_with(&end)
        });
        named.next().is_some()
    }

    /// Whether it has lost its name.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Somebody has deleted it: nothing becomes of it.
    pub fn is_deleted(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    fn put_into(&self, state: &mut State, at: u64, data: &[u8]) -> Result<(), Errno> {
        self.may_change(state, at)?;
        if at < state.sent {
            let (from, to) = (at as usize, at as usize + data.len());
            let part = state.head.get_mut(from..to).ok_or_else(|| self.out_of_place(at))?;
            part.copy_from_slice(data);
            state.is_new = true;
            self.note(state);
            return Ok(());
        }
        let Ok(from) = usize::try_from(at - state.sent) else {
            return Err(Errno::EFBIG);
        };
        let (tail, to) = (&mut state.tail, from + data.len());
        if from == tail.len() {
            tail.extend_from_slice(data);
        } else {
            tail.resize(tail.len().max(to), 0);
            tail[from..to].copy_from_slice(data);
        }
        let end = state.sent + tail.len() as u64;
        self.size.fetch_max(end, Ordering::Relaxed);
        self.held.is(state);
        state.is_new = true;
        self.note(state);
        Ok(())
    }

    fn may_change(&self, state: &State, at: u64) -> Result<(), Errno> {
        if let Some(error) = state.failed {
            return Err(error);
        }
        if state.is_kept {
            let key = self.key();
            crate::log::line(format_args!(
                "{key}: nothing can be added to an object, or written over a part of it; write all of it anew"
            ));
            return Err(Errno::EOPNOTSUPP);
        }
        if state.is_complete {
            let key = self.key();
            crate::log::line(format_args!(
                "{key}: it was completed by an earlier fsync or close, and nothing can be written to it any more"
            ));
            return Err(Errno::EIO);
        }
        if at < state.sent && at >= state.head.len() as u64 {
            return Err(self.out_of_place(at));
        }
        Ok(())
    }

    fn out_of_place(&self, at: u64) -> Errno {
        let (key, size) = (self.key(), self.size());
        crate::log::line(format_args!(
            "{key}: it is written from its beginning on, and has {size} bytes; byte {at} can't be written now"
        ));
        Errno::EOPNOTSUPP
    }

    /// Makes it as long as this: what is here still is cut, or zeros follow it.
    ///
    /// # Errors
    /// As [`Writing::write`].
    pub async fn resize(&self, bytes: u64) -> Result<(), Errno> {
        self.resize_held(&mut self.hold().await, bytes).await
    }

    /// The same, held.
    ///
    /// # Errors
    /// As [`NewFile::resize`].
    pub async fn resize_held(&self, held: &mut Hold<'_>, bytes: u64) -> Result<(), Errno> {
        let state = &mut *held.0;
        if bytes == self.size() && state.failed.is_none() {
            return Ok(());
        }
        if bytes == 0 {
            // Another object begins, whatever was sent of this one, and whatever somebody has heard of it.
            if let Some(upload) = state.upload.take() {
                upload.abort().await;
            }
            (state.is_kept, state.is_complete, state.sent, state.parts) = (false, false, 0, 0);
            state.failed = None;
            state.tail.clear();
            state.head.clear();
        }
        if bytes < state.sent {
            state.takes_back();
        }
        self.may_change(state, bytes)?;
        if bytes < state.sent {
            return Err(self.out_of_place(bytes));
        }
        let len = usize::try_from(bytes - state.sent).unwrap_or(usize::MAX);
        // Zeros that follow are sent with what is written before them.
        state.tail.truncate(len);
        self.held.is(state);
        state.is_new = bytes > 0;
        state.is_due = true;
        self.size.store(bytes, Ordering::Relaxed);
        self.note(state);
        Ok(())
    }

    /// What is there, as far as it is here or an object.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it is a part of what will be one.
    pub async fn read(&self, at: u64, len: usize) -> Result<Read, Errno> {
        let state = self.state.lock().await;
        if state.is_kept || state.is_complete {
            let object = state.object.clone().ok_or(Errno::EIO)?;
            return Ok(Read::Of(self.key(), object));
        }
        let head = state.head.get(usize::try_from(at).unwrap_or(usize::MAX)..);
        let head = head.unwrap_or_default();
        let is_next = at + head.len() as u64 == state.sent;
        if !head.is_empty() && (len <= head.len() || is_next) {
            let mut bytes = head[..len.min(head.len())].to_vec();
            let more = state.tail.len().min(len - bytes.len());
            bytes.extend_from_slice(&state.tail[..more]);
            return Ok(Read::Here(self.with_zeros(bytes, at, len)));
        }
        // A part of it would look like the end.
        if at < state.sent && len > 0 {
            let key = self.key();
            crate::log::line(format_args!(
                "{key}: byte {at} is on its way to the bucket, and can be read when the file is closed"
            ));
            return Err(Errno::EOPNOTSUPP);
        }
        let from = usize::try_from(at.saturating_sub(state.sent))
            .unwrap_or(usize::MAX)
            .min(state.tail.len());
        let end = state.tail.len().min(from.saturating_add(len));
        let bytes = state.tail[from..end].to_vec();
        Ok(Read::Here(self.with_zeros(bytes, at, len)))
    }

    /// What is read there, with the zeros that there are up to its size.
    fn with_zeros(&self, mut bytes: Vec<u8>, at: u64, len: usize) -> Vec<u8> {
        let all = usize::try_from(self.size().saturating_sub(at)).unwrap_or(usize::MAX);
        bytes.resize(bytes.len().max(len.min(all)), 0);
        bytes
    }
}
