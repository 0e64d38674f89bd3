//! An open file: its chunks are asked for ahead of whoever reads it, and lent by the agent while they are read.
//!
//! A read that finds its chunks is answered at once ([`OpenFile::read_at_hand`]). Another one waits ([`OpenFile::read`]), and several may wait for one chunk. A chunk goes back to the
//! agent when it was read to its end, and with the file.

use crate::ahead::Ahead;
use crate::copies::Copies;
use crate::failure;
use crate::layout::Layout;
use crate::locked;
use crate::names::Names;
use crate::room::Room;
use crate::shelves::{AGENTS, Shelf, Shelves};
use crate::tree::{Ino, Kind, Object};
use crate::writing::Writing;
use foreload_engine::client::ClientError;
use foreload_engine::protocol::Sent;
use fuser::Errno;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Chunks that are kept of a file that is read here and there.
const KEPT: usize = 2;
/// The kernel asks once more for a page that it didn't get, and would wait as long again.
const FAILED: Duration = Duration::from_millis(500);
/// For how long what was asked for may lie unread.
const UNREAD: Duration = Duration::from_secs(10);
/// Where memory is short, who was read so long ago isn't at it.
const AT_IT: Duration = Duration::from_millis(5);

/// What all files of a mount share.
pub struct Shared {
    /// The data sets.
    pub shelves: Shelves,
    /// Names.
    pub names: Arc<Names>,
    /// For what is asked for ahead.
    pub room: Arc<Room>,
    /// What may lie here of all files together, and what does.
    pub most_held: u64,
    /// See [`Shared::most_held`].
    pub held_bytes: AtomicU64,
    /// Files that are open.
    pub open: Mutex<Vec<Weak<OpenFile>>>,
    /// How long a chunk is waited for at most.
    pub timeout: Duration,
    /// The mount ends: nobody waits any more.
    pub is_closing: Arc<AtomicBool>,
    /// What was read.
    pub tally: Tally,
}

/// What was read so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Reads, and those of them that had to wait.
    pub reads: AtomicU64,
    /// See [`Tally::reads`].
    pub waits: AtomicU64,
    /// Bytes that were read.
    pub bytes: AtomicU64,
    /// Chunks that came, and of them those that were in the agent's memory or on its disks.
    pub chunks: AtomicU64,
    /// See [`Tally::chunks`].
    pub cached_chunks: AtomicU64,
    /// Reads that failed.
    pub failures: AtomicU64,
}

impl Shared {
    fn files(&self) -> Vec<Arc<OpenFile>> {
        let mut open = locked(&self.open);
        open.retain(|file| file.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).collect()
    }

    /// What lies unread in files that nobody reads goes back: to be done now and then.
    pub fn tidy(&self) {
        self.files().iter().for_each(|file| file.rest(UNREAD));
        self.shelves.rest(UNREAD);
    }

    /// Files that nobody reads give back what lies in them, those first that nobody has read for longest, until no more lies here than may.
    pub fn shrink(&self) {
        let is_enough = || self.held_bytes.load(Ordering::Relaxed) <= self.most_held;
        if is_enough() {
            return;
        }
        let mut files = self.files();
        files.sort_by_cached_key(|file| file.read_at());
        for file in files {
            if is_enough() {
                return;
            }
            file.rest(AT_IT);
        }
    }

    /// What was done so far, as JSON.
    pub fn report(&self, names: &Names, writing: Option<&Writing>, copies: Option<&Copies>) -> String {
        let (copied, copied_bytes, opened) = copies.map_or((0, 0, 0), Copies::counts);
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (tally, questions) = (&self.tally, names.questions());
        serde_json::json!({
            "pid": std::process::id(),
            "reads": of(&tally.reads),
            "reads_that_waited": of(&tally.waits),
            "read_bytes": of(&tally.bytes),
            "reads_that_failed": of(&tally.failures),
            "chunks": of(&tally.chunks),
            "cached_chunks": of(&tally.cached_chunks),
            "held_bytes": of(&self.held_bytes),
            "ahead_bytes": self.room.taken(),
            "copies": copied,
            "copied_bytes": copied_bytes,
            "copies_opened": opened,
            "names": names.tree().len(),
            "name_questions": questions.names,
            "directory_questions": questions.directories,
            "unnamed_keys": questions.unnamed,
            "written_objects": writing.map_or(0, |writing| of(&writing.objects)),
            "written_bytes": writing.map_or(0, |writing| of(&writing.bytes)),
            "unsent_bytes": writing.map_or(0, Writing::held),
            "writes_under_way": writing.map_or(0, Writing::left),
            "writes_that_failed": writing.map_or(0, |writing| of(&writing.failures)),
        })
        .to_string()
    }
}

/// The bytes of a chunk.
struct Bytes {
    are: Are,
    len: u64,
    shared: Arc<Shared>,
}

enum Are {
    /// The agent's memory, until this is dropped.
    Lent(Arc<Shelf>, Sent),
    /// A copy, where the agent has no memory to lend.
    Copied(Vec<u8>),
}

impl Bytes {
    fn new(shared: &Arc<Shared>, len: u64, are: Are) -> Self {
        shared.held_bytes.fetch_add(len, Ordering::Relaxed);
        Bytes {
            are,
            len,
            shared: Arc::clone(shared),
        }
    }

    fn all(&self) -> Result<&[u8], ClientError> {
        match &self.are {
            Are::Lent(shelf, sent) => shelf.attached().bytes(sent),
            Are::Copied(bytes) => Ok(bytes),
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.shared.held_bytes.fetch_sub(self.len, Ordering::Relaxed);
        if let Are::Lent(shelf, sent) = &self.are {
            let attached = shelf.attached();
            attached.client.release(attached.job, Some(sent.handle), None, sent.len);
        }
    }
}

enum Is {
    /// Asked for by this number.
    Wanted(u64),
    /// Somebody waits for it.
    Awaited,
    Here(Arc<Bytes>),
}

struct Chunk {
    is: Is,
    shelf: Arc<Shelf>,
    /// Counted among what was asked for ahead.
    ahead_bytes: u64,
    used: u64,
}

struct State {
    ahead: Ahead,
    place: Option<Place>,
    chunks: BTreeMap<u64, Chunk>,
    read_at: Instant,
    reads: u64,
    /// A chunk that could not be read, when that was, and what was said of it.
    failed: Option<(u64, Instant, Errno)>,
    /// It isn't read by the order that was told: that went wrong once.
    is_out_of_turn: bool,
}

/// Where a file's chunks are asked for.
#[derive(Clone)]
struct Place {
    shelf: Arc<Shelf>,
    /// The first chunk: its number, or its place in the order that was told.
    first: u64,
    is_ordered: bool,
}

/// A file that somebody has open.
pub struct OpenFile {
    shared: Arc<Shared>,
    ino: Ino,
    of: Mutex<Of>,
    layout: Layout,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a file is of.
#[derive(Clone)]
pub struct Of {
    /// Its key.
    pub key: String,
    /// What is there by that.
    pub object: Object,
}

impl OpenFile {
    /// Opens it; nothing is asked for yet.
    #[must_use]
    pub fn new(shared: &Arc<Shared>, ino: Ino, key: String, object: Object) -> Arc<Self> {
        let layout = shared.shelves.layout(object.size);
        let state = State {
            ahead: Ahead::new(layout, shared.room.most()),
            place: None,
            chunks: BTreeMap::new(),
            read_at: Instant::now(),
            reads: 0,
            failed: None,
            is_out_of_turn: false,
        };
        let file = Arc::new(OpenFile {
            shared: Arc::clone(shared),
            ino,
            of: Mutex::new(Of { key, object }),
            layout,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        locked(&shared.open).push(Arc::downgrade(&file));
        file
    }

    /// Whoever reads it says himself what he is going to read.
    pub fn is_read_in_order(&self) {
        self.state().ahead.is_left_alone(true);
    }

    /// What will be read next is asked for: of the chunks that these bytes are in the first `most`, as far as there is room.
    pub fn ask_for(&self, span: Range<u64>, most: u64) {
        let chunks = self.layout.of(span);
        let mut state = self.state();
        for nth in chunks.start..chunks.end.min(chunks.start + most) {
            // Who reads it asks again, and says so himself if it fails.
            if self.want(&mut state, nth, true).is_err() {
                return;
            }
        }
    }

    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// What it is of, by its name now.
    #[must_use]
    pub fn of(&self) -> Of {
        locked(&self.of).clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn within(&self, offset: u64, len: u64) -> Range<u64> {
        let from = offset.min(self.layout.bytes);
        from..from.saturating_add(len).min(self.layout.bytes)
    }

    /// Gives `take` the bytes of a read, if they are all here. None: they have to be waited for.
    pub fn read_at_hand<T>(&self, offset: u64, len: u64, take: impl FnOnce(&[u8]) -> T) -> Option<Result<T, Errno>> {
        let span = self.within(offset, len);
        let tally = &self.shared.tally;
        if span.is_empty() {
            tally.reads.fetch_add(1, Ordering::Relaxed);
            return Some(Ok(take(&[])));
        }
        let mut state = self.state();
        if self.turn(&mut state).is_some_and(|place| place.is_ordered) {
            for nth in self.layout.of(span.clone()) {
                // Who waits for it hears what is wrong.
                self.want(&mut state, nth, false).ok()?;
            }
        }
        let found: Option<Vec<Arc<Bytes>>> = self
            .layout
            .of(span.clone())
            .map(|nth| self.at_hand(&mut state, nth))
            .collect();
        let found = found?;
        self.note(&mut state, &span, false);
        drop(state);
        Some(self.take(&found, &span, take))
    }

    fn at_hand(&self, state: &mut State, nth: u64) -> Option<Arc<Bytes>> {
        state.reads += 1;
        let (used, chunk) = (state.reads, state.chunks.get_mut(&nth)?);
        chunk.used = used;
        if let Is::Wanted(want) = chunk.is {
            let delivery = chunk.shelf.attached().delivered_already(want)?;
            let bytes = self.received(&chunk.shelf, delivery).ok()?;
            chunk.is = Is::Here(bytes);
        }
        match &chunk.is {
            Is::Here(bytes) => Some(Arc::clone(bytes)),
            _ => None,
        }
    }

    /// Gives `take` the bytes of a read, which waits for them.
    ///
    /// # Errors
    /// What the agent says of the chunk.
    pub fn read<T>(&self, offset: u64, len: u64, take: impl FnOnce(&[u8]) -> T) -> Result<T, Errno> {
        let span = self.within(offset, len);
        let first = self.layout.of(span.clone()).start;
        if let Some((chunk, at, error)) = self.state().failed
            && chunk == first
            && at.elapsed() < FAILED
        {
            return Err(error);
        }
        self.shared.tally.waits.fetch_add(1, Ordering::Relaxed);
        let mut agents = 0;
        let found = loop {
            match self.chunks(&span) {
                Ok(found) => break found,
                Err(ClientError::Closed(why) | ClientError::NoAgent(why)) if agents < AGENTS => {
                    agents += 1;
                    crate::log::line(format_args!("the agent has ended ({why}): starting another one"));
                    let mut state = self.state();
                    state.place = None;
                    // What was lent is still there, and what was asked for isn't.
                    self.let_go(&mut state, |chunk| matches!(chunk.is, Is::Wanted(_)));
                }
                Err(ClientError::Trouble(_)) if self.leaves_its_turn() => {}
                Err(error) if is_gone(&error) && self.follows() => {}
                Err(error) => {
                    self.shared.tally.failures.fetch_add(1, Ordering::Relaxed);
                    let mut said = failure::of_client(&error, &locked(&self.of).key);
                    if is_gone(&error) {
                        let mut tree = self.shared.names.tree();
                        // What another one has taken the place of was replaced, whatever became of its name.
                        if !tree.is_linked(self.ino) {
                            said = Errno::ESTALE;
                        }
                        tree.doubt(self.ino, Instant::now());
                    }
                    let error = said;
                    self.state().failed = Some((first, Instant::now(), error));
                    return Err(error);
                }
            }
        };
        self.take(&found, &span, take)
    }

    fn chunks(&self, span: &Range<u64>) -> Result<Vec<Arc<Bytes>>, ClientError> {
        let chunks = self.layout.of(span.clone());
        {
            let mut state = self.state();
            for nth in chunks.clone() {
                self.want(&mut state, nth, false)?;
            }
            self.note(&mut state, span, true);
        }
        chunks.map(|nth| self.wait_for(nth)).collect()
    }

    /// The file was read there: more is asked for ahead, and what was read to its end goes back.
    fn note(&self, state: &mut State, span: &Range<u64>, waits: bool) {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(std::mem::replace(&mut state.read_at, now));
        state.ahead.read(span.clone(), elapsed, waits);
        let behind = state.ahead.behind();
        let needed = self.layout.of(span.clone());
        while state
            .chunks
            .first_key_value()
            .is_some_and(|(&nth, _)| nth < behind.min(needed.start))
        {
            let first = state.chunks.pop_first();
            first.into_iter().for_each(|(_, chunk)| self.give_back(chunk));
        }
        while let Some(nth) = state.ahead.take(|nth| self.has_room(nth)) {
            // Who reads it asks again, and says so himself if it fails.
            if self.want(state, nth, true).is_err() {
                break;
            }
        }
        let is_idle = |chunk: &Chunk| matches!(chunk.is, Is::Here(_)) && chunk.ahead_bytes == 0;
        let kept = state
            .chunks
            .iter()
            .filter(|(nth, chunk)| is_idle(chunk) && !needed.contains(nth));
        let mut kept: Vec<(u64, u64)> = kept.map(|(nth, chunk)| (chunk.used, *nth)).collect();
        if kept.len() > KEPT {
            kept.sort_unstable();
            for (_, nth) in &kept[..kept.len() - KEPT] {
                let chunk = state.chunks.remove(nth);
                chunk.into_iter().for_each(|chunk| self.give_back(chunk));
            }
        }
    }

    /// Whether a chunk may be asked for ahead, of all files together.
    fn has_room(&self, nth: u64) -> bool {
        let span = self.layout.span(nth);
        self.shared.room.has(span.end - span.start)
    }

    /// Asks for a chunk, unless it was already.
    fn want(&self, state: &mut State, nth: u64, is_ahead: bool) -> Result<(), ClientError> {
        if let Some(chunk) = state.chunks.get_mut(&nth) {
            if !is_ahead && chunk.ahead_bytes > 0 {
                self.shared.room.give(chunk.ahead_bytes);
                chunk.ahead_bytes = 0;
            }
            return Ok(());
        }
        let span = self.layout.span(nth);
        let len = span.end - span.start;
        let ahead_bytes = if is_ahead { len } else { 0 };
        if is_ahead && !self.has_room(nth) {
            return Ok(());
        }
        let place = match self.turn(state) {
            Some(place) => place,
            None => {
                let (shared, of) = (&self.shared, self.of());
                let (shelf, first) = shared.shelves.find(&shared.names, self.ino, &of.key, &of.object)?;
                let place = Place {
                    shelf,
                    first,
                    is_ordered: false,
                };
                state.place.insert(place).clone()
            }
        };
        let want = match place.is_ordered {
            true => self.shared.shelves.read_in_order(&place.shelf, place.first + nth)?,
            false => place.shelf.attached().want_samples(0, vec![place.first + nth])?,
        };
        let shelf = place.shelf;
        self.shared.room.take(ahead_bytes);
        state.reads += 1;
        let chunk = Chunk {
            is: Is::Wanted(want),
            shelf,
            ahead_bytes,
            used: state.reads,
        };
        state.chunks.insert(nth, chunk);
        Ok(())
    }

    /// A file that was read by the order that was told is read without it from now on; false: it was already.
    fn leaves_its_turn(&self) -> bool {
        let mut state = self.state();
        if !state
            .place
            .take_if(|place| place.is_ordered)
            .is_some_and(|place| place.is_ordered)
        {
            return false;
        }
        state.is_out_of_turn = true;
        self.let_go(&mut state, |chunk| matches!(chunk.is, Is::Wanted(_)));
        true
    }

    /// What has got another name from here meanwhile has the same bytes, and is read by that one from now on; false: it hasn't.
    fn follows(&self) -> bool {
        let (key, kind) = {
            let tree = self.shared.names.tree();
            let is_linked = tree.is_linked(self.ino);
            let kind = tree.kind(self.ino, Instant::now()).filter(|_| is_linked);
            (tree.key(self.ino), kind)
        };
        let (Some(key), Some((Kind::File(object), _))) = (key, kind) else {
            return false;
        };
        let mut state = self.state();
        let mut of = locked(&self.of);
        if key == of.key || object.size != of.object.size {
            return false;
        }
        *of = Of { key, object };
        drop(of);
        state.place = None;
        self.let_go(&mut state, |chunk| matches!(chunk.is, Is::Wanted(_)));
        true
    }

    /// When it was read last.
    pub fn read_at(&self) -> Instant {
        self.state().read_at
    }

    /// Gives back what lies here unread, where nobody has read for so long.
    pub fn rest(&self, patience: Duration) {
        let mut state = self.state();
        if state.chunks.is_empty() || state.read_at.elapsed() < patience {
            return;
        }
        // Whoever waits for one has it still.
        self.let_go(&mut state, |chunk| !matches!(chunk.is, Is::Awaited));
        // Who reads on begins anew, and doesn't wait for what has gone.
        state.ahead = Ahead::new(self.layout, self.shared.room.most());
    }

    /// Where it is asked for, if that is known: now, where it comes in an order that was told.
    fn turn(&self, state: &mut State) -> Option<Place> {
        if state.place.is_none() && !state.is_out_of_turn {
            let of = locked(&self.of);
            let (shelf, first) = self.shared.shelves.turn_of(&of.key, &of.object)?;
            drop(of);
            // What is read in an order that is known is fetched ahead by it.
            state.ahead.is_left_alone(true);
            state.place = Some(Place {
                shelf,
                first,
                is_ordered: true,
            });
        }
        state.place.clone()
    }

    /// Waits for a chunk, which was asked for; or again, if it has gone meanwhile.
    fn wait_for(&self, nth: u64) -> Result<Arc<Bytes>, ClientError> {
        let until = Instant::now() + self.shared.timeout;
        let mut state = self.state();
        loop {
            self.want(&mut state, nth, false)?;
            let Some(chunk) = state.chunks.get_mut(&nth) else {
                continue;
            };
            match &chunk.is {
                Is::Here(bytes) => return Ok(Arc::clone(bytes)),
                Is::Awaited => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(ClientError::TimedOut(self.shared.timeout.as_secs_f64()));
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Is::Wanted(want) => {
                    let (want, shelf) = (*want, Arc::clone(&chunk.shelf));
                    chunk.is = Is::Awaited;
                    drop(state);
                    let answer = self.receive(&shelf, want, until);
                    state = self.state();
                    match answer {
                        Ok(bytes) => {
                            if let Some(chunk) = state.chunks.get_mut(&nth) {
                                chunk.is = Is::Here(Arc::clone(&bytes));
                            }
                            self.changed.notify_all();
                            return Ok(bytes);
                        }
                        Err(error) => {
                            if let Some(chunk) = state.chunks.remove(&nth) {
                                self.give_back(chunk);
                            }
                            self.changed.notify_all();
                            return Err(error);
                        }
                    }
                }
            }
        }
    }

    fn receive(&self, shelf: &Arc<Shelf>, want: u64, until: Instant) -> Result<Arc<Bytes>, ClientError> {
        let attached = shelf.attached();
        let left = until.saturating_duration_since(Instant::now());
        let mut pulse = || !self.shared.is_closing.load(Ordering::Relaxed);
        match attached.delivered(want, Some(left), &mut pulse) {
            Ok(delivery) => self.received(shelf, delivery),
            Err(error) => {
                if matches!(error, ClientError::TimedOut(_) | ClientError::Interrupted) {
                    // It may still come, and nobody would give it back.
                    let _ = attached.client.withdraw(attached.job, want);
                }
                Err(error)
            }
        }
    }

    fn received(&self, shelf: &Arc<Shelf>, (sent, copy): (Vec<Sent>, bool)) -> Result<Arc<Bytes>, ClientError> {
        let [sent] = sent.as_slice() else {
            return Err(ClientError::Closed(format!("{} chunks for one", sent.len())));
        };
        let tally = &self.shared.tally;
        tally.chunks.fetch_add(1, Ordering::Relaxed);
        if is_cached(sent) {
            tally.cached_chunks.fetch_add(1, Ordering::Relaxed);
        }
        let lent = Bytes::new(&self.shared, sent.len, Are::Lent(Arc::clone(shelf), *sent));
        if copy {
            let copied = lent.all()?.to_vec();
            return Ok(Arc::new(Bytes::new(&self.shared, sent.len, Are::Copied(copied))));
        }
        Ok(Arc::new(lent))
    }

    fn take<T>(&self, found: &[Arc<Bytes>], span: &Range<u64>, take: impl FnOnce(&[u8]) -> T) -> Result<T, Errno> {
        let failed = |error| failure::of_client(&error, &locked(&self.of).key);
        let cut = |nth: u64, bytes: &Arc<Bytes>| -> Result<Range<usize>, ClientError> {
            let chunk = self.layout.span(nth);
            let cut = span.start.max(chunk.start) - chunk.start..span.end.min(chunk.end) - chunk.start;
            let cut = cut.start as usize..cut.end as usize;
            let have = bytes.all()?.len();
            if have as u64 != chunk.end - chunk.start {
                return Err(ClientError::Closed(format!("a chunk of {have} bytes")));
            }
            Ok(cut)
        };
        let chunks = self.layout.of(span.clone());
        let tally = &self.shared.tally;
        tally.reads.fetch_add(1, Ordering::Relaxed);
        tally.bytes.fetch_add(span.end - span.start, Ordering::Relaxed);
        if let [only] = found {
            let part = cut(chunks.start, only).map_err(failed)?;
            return Ok(take(&only.all().map_err(failed)?[part]));
        }
        let mut all = Vec::with_capacity((span.end - span.start) as usize);
        for (nth, bytes) in chunks.zip(found) {
            let part = cut(nth, bytes).map_err(failed)?;
            all.extend_from_slice(&bytes.all().map_err(failed)?[part]);
        }
        Ok(take(&all))
    }

    /// Some chunks go back.
    fn let_go(&self, state: &mut State, is_it: impl Fn(&Chunk) -> bool) {
        for (nth, chunk) in std::mem::take(&mut state.chunks) {
            if is_it(&chunk) {
                self.give_back(chunk);
            } else {
                state.chunks.insert(nth, chunk);
            }
        }
    }

    /// A chunk goes back to the agent, and what was asked for and hasn't come isn't wanted any more.
    fn give_back(&self, chunk: Chunk) {
        self.shared.room.give(chunk.ahead_bytes);
        if let Is::Wanted(want) = chunk.is {
            let attached = chunk.shelf.attached();
            let _ = attached.client.withdraw(attached.job, want);
        }
    }
}

/// Whether an object isn't there any more, or is another one.
fn is_gone(error: &ClientError) -> bool {
    matches!(error, ClientError::Trouble(trouble) if ["changed", "not-found"].contains(&trouble.kind.as_str()))
}

/// Whether it was here already.
fn is_cached(sent: &Sent) -> bool {
    use foreload_plan::action::Via;
    !matches!(sent.via, Via::Bucket)
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let chunks = std::mem::take(&mut self.state().chunks);
        for (_, chunk) in chunks {
            self.give_back(chunk);
        }
    }
}
