//! Where bytes move: fetches from the bucket, reads from and writes to the disk tiers.
//!
//! Each ends with the completion of its action. Bytes are checked before they are reported: length and ETag by the source, checksums here and by the disk
//! tier.

use super::fetches::Fetch;
use super::guests::is_of_peer;
use super::{Pool, key_of};
use crate::carriers::{Landed, Order};
use crate::dataset::{Dataset, trouble};
use crate::disk::{Buffer, Entry, ReadError, Refusal};
use crate::protocol::Trouble;
use crate::scatter::{Check, Scatter, Sums};
use crate::sync::Mutex;
use foreload_plan::action::{Action, Command, Completion, Event, Failure, Load, Piece};
use foreload_plan::blocks::Content;
use foreload_plan::library::Shelf;
use foreload_store::index::ObjectRef;
use foreload_store::{Error, ErrorKind, Sink, Spool};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

/// What is read from a disk at a time, outside the arena: the most that a lock is held for.
const READ_BYTES: u64 = 1 << 20;
/// What is read of a record on both sides of what is wanted: stretches that are compared as a whole, and pages.
const BESIDE_BYTES: u64 = 40 << 10;
/// Fetches that are taken back before clients are heard again.
const AT_ONCE: usize = 32;

/// Reads of what scans have read at a time: the kernel lets one of them at a time into the arena, and many that wait for that cost more than they bring
/// (40 on two cores: up to 4.8 s for 2 GB, instead of 1.5).
pub(super) const SPOOL_READS: usize = 4;
/// How long a read of what a scan has read may take: then the bucket is asked, as long as the load has time for that.
const SPOOL_PATIENCE: Duration = Duration::from_secs(5);

/// Whether nobody waits any more for what a thread reads. Its slots may be another load's by then, so nothing is written after that.
#[derive(Clone, Default)]
struct GivenUp(Arc<Mutex<bool>>);

impl GivenUp {
    fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Writes, unless it is given up; whether it was written.
    fn unless(&self, write: impl FnOnce() -> bool) -> bool {
        let given_up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !*given_up && write()
    }
}

/// A sink that takes nothing more once it is given up.
struct Guarded {
    sink: Scatter,
    given_up: GivenUp,
}

impl Sink for Guarded {
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<(), Error> {
        let mut written = Ok(());
        let sink = &mut self.sink;
        let is_written = self.given_up.unless(|| {
            written = sink.write(at, frame);
            written.is_ok()
        });
        match written {
            Ok(()) if !is_written => Err(Error::new(ErrorKind::Closed, "nobody waits for it")),
            written => written,
        }
    }

    fn restart(&mut self) {
        self.sink.restart();
    }
}

/// What a load is checked by: where its contents are from, and their checksums.
pub(super) struct Proof {
    shelf: Shelf,
    pub dataset: Rc<Dataset>,
    pub checks: Vec<Check>,
    /// Whether what is asked for comes with several loads, which must be of one version of their object.
    is_in_parts: bool,
}

impl Proof {
    /// The first sample of a content, as its data set numbers it.
    pub fn sample_of(&self, content: Content) -> u64 {
        self.shelf.blocks.samples_of(self.shelf.own(content)).start
    }
}

/// Takes what the carriers bring, for as long as the pool is there.
pub(super) async fn receive(pool: Weak<Pool>, mut landed: UnboundedReceiver<Landed>) {
    let mut gathered = Vec::with_capacity(AT_ONCE);
    while landed.recv_many(&mut gathered, AT_ONCE).await > 0 {
        let Some(pool) = pool.upgrade() else { return };
        gathered.drain(..).for_each(|landed| pool.landed(landed));
    }
}

impl Pool {
    /// Has a load fetched from the bucket, unless a scan has read it.
    pub(super) fn fetch(self: &Rc<Self>, action: Action) {
        let Command::Load(load) = action.command() else { return };
        self.state.borrow_mut().partial.expect(load);
        let range = load.offset..load.offset + load.len;
        match self.object(load) {
            Err(trouble) => {
                let completion = self.failed(action, &trouble);
                self.end_later(completion);
            }
            Ok((proof, object)) => match &proof.dataset.spool {
                Some(spool) if spool.has(&object, &range) => {
                    let spool = Arc::clone(spool);
                    self.take_from_spool(spool, action, proof, object);
                }
                _ => self.send(action, proof, object),
            },
        }
    }

    /// Hands a load to a carrier.
    fn send(&self, action: Action, proof: Proof, object: ObjectRef) {
        let Command::Load(load) = action.command() else { return };
        self.count(load.job, |stats| stats.note_load(load, true));
        let carrier = self.carriers.carry(Order {
            name: (self.id, action.id()),
            source: proof.dataset.source.clone(),
            object,
            range: load.offset..load.offset + load.len,
            deadline: self.begun + Duration::from_nanos(load.deadline_ns),
            sink: Scatter::new(Arc::clone(&self.cache), load, &proof.checks).in_turn(self.seat.issue()),
            back: self.back.clone(),
        });
        self.note_fetch(action, proof, carrier, None);
    }

    /// Takes a load from what a scan has read. Where that isn't as it was fetched, or its disk is slow, the bucket is asked after all.
    fn take_from_spool(self: &Rc<Self>, spool: Arc<Spool>, action: Action, proof: Proof, object: ObjectRef) {
        let Command::Load(load) = action.command() else { return };
        let (job, bytes, range) = (load.job, load.len, load.offset..load.offset + load.len);
        let given_up = GivenUp::default();
        let mut sink = Guarded {
            sink: Scatter::new(Arc::clone(&self.cache), load, &proof.checks),
            given_up: given_up.clone(),
        };
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let turn = Arc::clone(&pool.spool_reads).acquire_owned();
            let Ok(turn) = tokio::time::timeout(SPOOL_PATIENCE, turn).await else {
                // Those before it have not come back.
                if !pool.is_closed() {
                    pool.send(action, proof, object);
                }
                return;
            };
            let begun = Instant::now();
            let reading = {
                let (spool, object) = (Arc::clone(&spool), object.clone());
                tokio::task::spawn_blocking(move || {
                    let read = spool.read(&object, range, &mut sink);
                    drop(turn);
                    read.is_ok_and(|is_there| is_there).then_some(sink.sink)
                })
            };
            let read = tokio::time::timeout(SPOOL_PATIENCE, reading).await;
            let Ok(Ok(Some(sink))) = read else {
                if read.is_err() {
                    given_up.set();
                    spool.release();
                }
                if !pool.is_closed() {
                    pool.send(action, proof, object);
                }
                return;
            };
            let Command::Load(load) = action.command() else { return };
            let completion = match pool.check(load, &proof, sink.checksums()) {
                Ok(()) => {
                    pool.count(job, |stats| stats.spooled_bytes += bytes);
                    action.done_apart()
                }
                Err(trouble) => pool.failed(action, &trouble),
            };
            pool.seat.ended(&completion, begun.elapsed(), bytes);
            pool.step(Event::Completed(completion));
        });
    }

    /// A fetch came back.
    fn landed(self: &Rc<Self>, landed: Landed) {
        let Some(fetch) = self.state.borrow_mut().fetches.remove(&landed.action) else {
            return;
        };
        self.carriers.landed(fetch.carrier);
        if let Command::Load(load) = fetch.action.command()
            && is_of_peer(load)
        {
            let completion = self.landed_from_peer(fetch, &landed);
            return self.step(Event::Completed(completion));
        }
        let Landed {
            object,
            sink,
            fetched,
            took,
            ..
        } = landed;
        let Fetch { action, proof, .. } = fetch;
        let Command::Load(load) = action.command() else { return };
        self.count(load.job, |stats| stats.note_requests(load, sink.requests()));
        let outcome = match fetched {
            None => Err(Trouble::new("cancelled", "")),
            Some(Err(error)) => Err(trouble(&error)),
            Some(Ok(fetched)) => {
                self.count(load.job, |stats| {
                    stats.note_speed(took, || proof.dataset.source.url_of(&object.key));
                });
                proof
                    .dataset
                    .pinned(load.object, &object, fetched.etag.as_deref(), proof.is_in_parts)
                    .and_then(|()| self.check(load, &proof, sink.checksums()))
                    .map(|()| fetched)
            }
        };
        let bytes = load.len;
        let completion = match outcome {
            Ok(fetched) => {
                self.count(load.job, |stats| stats.hedges_won += u64::from(load.hedge));
                let (first, all) = (fetched.first_byte.as_nanos() as u64, fetched.transfer.as_nanos() as u64);
                if fetched.attempts > 1 {
                    action.done_throttled(first, all)
                } else {
                    action.done(first, all)
                }
            }
            Err(trouble) => self.failed(action, &trouble),
        };
        self.seat.ended(&completion, took, bytes);
        self.step(Event::Completed(completion));
    }

    /// The completion of a load that failed so; who waits for its samples will hear why.
    fn failed(&self, action: Action, trouble: &Trouble) -> Completion {
        let failure = match trouble.kind.as_str() {
            "cancelled" => Failure::Cancelled,
            "unavailable" | "timeout" => Failure::Unavailable,
            "corrupt" => Failure::Corrupt,
            _ => Failure::Final,
        };
        if let (Command::Load(load), true) = (action.command(), failure != Failure::Cancelled) {
            self.count(load.job, |stats| stats.failures += 1);
            let mut state = self.state.borrow_mut();
            for piece in &load.pieces {
                state.troubles.insert(piece.content, trouble.clone());
            }
        }
        action.failed(failure)
    }

    /// The object of a load, and what its bytes are checked by.
    fn object(&self, load: &Load) -> Result<(Proof, ObjectRef), Trouble> {
        let proof = self
            .proof(load)
            .ok_or_else(|| Trouble::new("cancelled", "nobody reads its data set any more"))?;
        let first = load.pieces.first().map(|piece| proof.shelf.own(piece.content));
        let first = first.map(|content| proof.shelf.blocks.samples_of(content).start);
        let object = proof.dataset.object(load.object, first)?;
        Ok((proof, object))
    }

    /// What the bytes of a load are checked by. `None`: nobody reads its data set any more.
    pub(super) fn proof(&self, load: &Load) -> Option<Proof> {
        let (shelf, dataset) = self.home(load.pieces.first()?.content)?;
        let checks = checks(&shelf, &dataset, load);
        let is_several = |piece: &Piece| {
            dataset
                .index
                .is_several(shelf.blocks.samples_of(shelf.own(piece.content)).start)
        };
        let is_in_parts = load
            .pieces
            .iter()
            .any(|piece| piece.len < piece.content_len || is_several(piece));
        Some(Proof {
            shelf,
            dataset,
            checks,
            is_in_parts,
        })
    }

    /// Compares what came with the index' checksums.
    ///
    /// # Errors
    /// `corrupt`, with the sample that is another.
    pub(super) fn check(&self, load: &Load, proof: &Proof, crcs: Option<&[u32]>) -> Result<(), Trouble> {
        let crcs = crcs.ok_or_else(|| Trouble::new("bug", "a load ended before all its pieces came"))?;
        for (check, &crc) in proof.checks.iter().zip(crcs) {
            let piece = &load.pieces[check.piece];
            let mut crc = crc;
            if piece.len < piece.content_len {
                match self.state.borrow_mut().partial.arrived(piece, crc) {
                    Some(whole) => crc = whole,
                    None => continue,
                }
            }
            if let Some(known) = proof.dataset.index.crc32c(check.sample)
                && known != crc
            {
                self.state.borrow_mut().partial.forget(piece.handle);
                let name = self.name(load.job, proof, check.sample);
                return Err(Trouble::new(
                    "corrupt",
                    format!(
                        "{name}: its checksum is {crc:08x}, the index says {known:08x} (the object is damaged, or was replaced: run `foreload index --update --checksum`)"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// A sample of a data set, as messages of a job name it.
    fn name(&self, job: u32, proof: &Proof, sample: u64) -> String {
        let own = self.look(|scheduler| scheduler.own(job, proof.shelf.first_sample + sample));
        let jobs = self.jobs.borrow();
        match (jobs.get(&job), own) {
            (Some(job), Some(own)) => job.streams.name(own),
            _ => format!("sample {sample}"),
        }
    }

    /// Reads from a disk tier until the deadline. What a disk that hangs still brings after that goes nowhere: its slots are another load's by then.
    pub(super) fn read_from_disk(self: &Rc<Self>, tier: u8, action: Action, cancel: Rc<Notify>) {
        let Command::Load(load) = action.command() else { return };
        let deadline = self.begun + Duration::from_nanos(load.deadline_ns);
        self.state.borrow_mut().partial.expect(load);
        // A record is as it was fetched, by whatever index: this one may have checksums, and that one none.
        let proof = self.proof(load);
        let entries: Vec<Option<(Entry, Range<u64>)>> = load
            .pieces
            .iter()
            .map(|piece| {
                let (shelf, dataset) = self.home(piece.content)?;
                let key = key_of(&shelf, &dataset, piece.content)?;
                let block = shelf.blocks.block_of(shelf.own(piece.content));
                let block = shelf.blocks.place_of(Content::block(block));
                let entry = self.tiers.get(usize::from(tier))?.borrow().find(&key)?;
                let from = load.offset + piece.at - block.offset;
                (entry.len() == block.len).then_some((entry, from..from + piece.len))
            })
            .collect();
        let given_up = GivenUp::default();
        let (cache, pieces, pool, begun) = (
            Arc::clone(&self.cache),
            load.pieces.clone(),
            Rc::clone(self),
            Instant::now(),
        );
        let mut sums = Sums::new(proof.as_ref().map_or(&[], |proof| &proof.checks));
        let reading = {
            let given_up = given_up.clone();
            tokio::task::spawn_blocking(move || {
                let longest = pieces.iter().map(|piece| piece.len).max().unwrap_or(0);
                let mut buffer = Buffer::new(READ_BYTES.min(longest + BESIDE_BYTES));
                // A disk that fails is another matter than a record that isn't what it was.
                let mut failure = Failure::Corrupt;
                let is_there = pieces.iter().zip(entries).all(|(piece, entry)| {
                    let write = |at, bytes: &[u8]| {
                        sums.add(piece.at + at, bytes);
                        given_up.unless(|| cache.write(piece.slot_offset + at, bytes).is_ok())
                    };
                    entry.is_some_and(|(entry, range)| match entry.read(range, &mut buffer, write) {
                        Err(ReadError::Io { .. }) => {
                            failure = Failure::Unavailable;
                            false
                        }
                        read => matches!(read, Ok(true)),
                    })
                });
                if is_there { Ok(sums) } else { Err(failure) }
            })
        };
        tokio::task::spawn_local(async move {
            let read = tokio::select! {
                biased;
                read = reading => Ok(read.unwrap_or(Err(Failure::Corrupt))),
                () = cancel.notified() => Err(Failure::Cancelled),
                () = tokio::time::sleep_until(deadline) => Err(Failure::Unavailable),
            };
            let took = begun.elapsed().as_nanos() as u64;
            pool.state.borrow_mut().cancels.remove(&action.id());
            let Command::Load(load) = action.command() else { return };
            let is_right = |sums: &Sums| match &proof {
                Some(proof) => pool.check(load, proof, sums.whole()).is_ok(),
                None => true,
            };
            let completion = match read {
                Ok(Ok(sums)) if is_right(&sums) => action.done(took / 8, took),
                Ok(read) => {
                    pool.quarantine(tier, load);
                    action.failed(read.err().unwrap_or(Failure::Corrupt))
                }
                Err(failure) => {
                    given_up.set();
                    if failure == Failure::Unavailable {
                        pool.note_disk_trouble(tier, "reading from", &"it doesn't answer");
                    }
                    action.failed(failure)
                }
            };
            pool.step(Event::Completed(completion));
        });
    }

    pub(super) fn quarantine(&self, tier: u8, load: &Load) {
        for piece in &load.pieces {
            if let (Some(key), Some(tier)) = (self.key(piece.content), self.tiers.get(usize::from(tier))) {
                let mut tier = tier.borrow_mut();
                if let Some(entry) = tier.find(&key) {
                    tier.quarantine(&entry);
                }
            }
        }
        self.count(load.job, |stats| stats.quarantined += load.pieces.len() as u64);
    }

    /// Writes blocks to a disk tier: one task for all that a step ordered.
    pub(super) fn write_to_disk(self: &Rc<Self>, actions: Vec<Action>) {
        let mut work = Vec::with_capacity(actions.len());
        for action in actions {
            let Command::Keep { tier, block, slot, .. } = action.command() else {
                continue;
            };
            let (number, block, slot) = (*tier, *block, *slot);
            let place = self.home(Content::block(block)).and_then(|(shelf, dataset)| {
                let tier = self.tiers.get(usize::from(number))?;
                let key = key_of(&shelf, &dataset, Content::block(block))?;
                Some(tier.borrow_mut().reserve(self.user(shelf.name), key, slot.len))
            });
            match place {
                Some(Ok(place)) => work.push((action, number, slot, place, block)),
                refused => {
                    // A tier that is full or failing for a moment refuses for a moment; the plan offers it the next block all the same.
                    let stays = matches!(refused, Some(Err(Refusal::Exists)));
                    if let Some(Err(refusal)) = &refused
                        && !stays
                    {
                        if *refusal == Refusal::NoSpace {
                            self.note_want_of_room(number, refusal);
                        } else {
                            self.note_disk_trouble(number, "writing to", refusal);
                        }
                    }
                    self.end_later(if stays {
                        action.done(0, 0)
                    } else {
                        action.failed(Failure::Final)
                    });
                }
            }
        }
        let (pool, cache) = (Rc::clone(self), Arc::clone(&self.cache));
        tokio::task::spawn_local(async move {
            let written = tokio::task::spawn_blocking(move || {
                let write = |(action, tier, slot, place, block): (
                    Action,
                    u8,
                    foreload_plan::arena::Slot,
                    crate::disk::Reservation,
                    u64,
                )| {
                    let bytes = cache.map().bytes(slot.offset, slot.len).unwrap_or_default();
                    (action, tier, block, place.write(bytes))
                };
                work.into_iter().map(write).collect::<Vec<_>>()
            });
            let Ok(written) = written.await else { return };
            for (action, number, block, result) in written {
                let Some(tier) = pool.tiers.get(usize::from(number)) else {
                    continue;
                };
                let completion = match result {
                    Ok(written) => {
                        tier.borrow_mut().commit(written);
                        pool.count_kept(block);
                        action.done(0, 0)
                    }
                    Err(failed) => {
                        pool.note_disk_trouble(number, "writing to", &failed.error);
                        tier.borrow_mut().failed(failed);
                        action.failed(Failure::Final)
                    }
                };
                pool.step(Event::Completed(completion));
            }
            pool.do_chores();
        });
    }

    /// A block is on a disk tier: for all jobs that read it.
    fn count_kept(&self, block: u64) {
        let Some((shelf, _)) = self.home(Content::block(block)) else {
            return;
        };
        let samples = shelf.blocks.range(block - shelf.first_block);
        let first = shelf.first_sample + samples.start;
        for (&id, job) in &*self.jobs.borrow() {
            if self.look(|scheduler| scheduler.own(id, first)).is_some() {
                job.count(|stats| stats.written_samples += samples.end - samples.start);
            }
        }
    }

    /// Lets the disk tiers seal and unlink segments, off this thread.
    pub(super) fn do_chores(&self) {
        for tier in &self.tiers {
            let chores = tier.borrow_mut().chores();
            if !chores.is_empty() {
                tokio::task::spawn_blocking(move || chores.into_iter().for_each(crate::disk::Chore::run));
            }
        }
    }

    /// Says once that a disk tier takes nothing for want of room: that lasts, and is worth knowing however short the run is.
    fn note_want_of_room(&self, tier: u8, refusal: &Refusal) {
        if self.state.borrow_mut().without_room.insert(tier) {
            self.tell_of_disk(tier, "writing to", refusal);
        }
    }

    /// Says once a minute that a disk tier doesn't do what it should; training goes on without.
    pub(super) fn note_disk_trouble(&self, tier: u8, doing: &str, error: &dyn std::fmt::Display) {
        let mut state = self.state.borrow_mut();
        if state
            .disk_trouble
            .is_some_and(|at| at.elapsed() < Duration::from_secs(60))
        {
            return;
        }
        state.disk_trouble = Some(Instant::now());
        drop(state);
        self.tell_of_disk(tier, doing, error);
    }

    fn tell_of_disk(&self, tier: u8, doing: &str, error: &dyn std::fmt::Display) {
        let directory = self
            .terms
            .disks
            .get(usize::from(tier))
            .map_or_else(String::new, |disk| disk.directory.display().to_string());
        let message = format!(
            "{doing} the disk cache at {directory}: {error}; what it doesn't hold is fetched again, training goes on"
        );
        crate::log::say!("{message}");
        self.tell_all(&Trouble::new("unavailable", message));
    }

    pub(super) fn end_later(self: &Rc<Self>, completion: foreload_plan::action::Completion) {
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move { pool.step(Event::Completed(completion)) });
    }
}

/// What of a load has a checksum in the index: the samples in each piece, or the part of a large one, or of one of several ranges, that it is. What
/// comes with a piece before it is compared there.
fn checks(shelf: &Shelf, dataset: &Dataset, load: &Load) -> Vec<Check> {
    let (mut checks, mut end) = (Vec::new(), 0);
    for (number, piece) in load.pieces.iter().enumerate() {
        if piece.at + piece.len <= end {
            continue;
        }
        end = piece.at + piece.len;
        let samples = shelf.blocks.samples_of(shelf.own(piece.content));
        let first = shelf.blocks.place(samples.start).offset;
        let is_known = |sample: &u64| dataset.index.crc32c(*sample).is_some();
        checks.extend(samples.filter(is_known).map(|sample| {
            let place = shelf.blocks.place(sample);
            Check {
                sample,
                piece: number,
                at: piece.at + (place.offset - first),
                len: place.len.min(piece.len),
            }
        }));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::node::{LONG, Node, bytes, leases, run, until};
    use crate::calls::{Attach, DiskShare};
    use crate::protocol::Say;
    use foreload_plan::action::{Handle, Source};

    fn samples(request: u64, job: u32, samples: &[u64]) -> Event {
        Event::WantSamples {
            request,
            job,
            rank: 0,
            samples: samples.to_vec(),
        }
    }

    fn file(node: &Node, sample: u64) -> std::path::PathBuf {
        node.directory.path().join(format!("a/{sample:03}"))
    }

    fn load(pieces: Vec<Piece>) -> Load {
        Load {
            job: 0,
            source: Source::Bucket,
            object: 0,
            offset: 0,
            len: pieces.iter().map(|piece| piece.at + piece.len).max().unwrap_or(0),
            pieces,
            steps: 0,
            deadline_ns: 0,
            attempt: 0,
            hedge: false,
            bundle: None,
        }
    }

    fn piece(block: u64, at: u64, len: u64, content_len: u64) -> Piece {
        Piece {
            content: Content::block(block),
            handle: Handle {
                index: 0,
                generation: 0,
            },
            at,
            slot_offset: 0,
            len,
            content_offset: 0,
            content_len,
        }
    }

    #[test]
    fn each_sample_is_checked_once_where_the_index_has_its_checksum() {
        run(LONG, |node| async move {
            let number = node.dataset("a", &[100, 200, 300]);
            let (job, _) = node
                .attach(&node.client(), node.attachment(number))
                .await
                .expect("attached");
            let shelf = job.pool.look(|plan| plan.library().shelves()[0].clone());
            let dataset = node.opened(number);
            let checks = |pieces| {
                let checks = checks(&shelf, &dataset, &load(pieces)).into_iter();
                checks
                    .map(|it| (it.sample, it.piece, it.at, it.len))
                    .collect::<Vec<_>>()
            };
            let two = vec![piece(1, 0, 200, 200), piece(2, 250, 300, 300)];
            assert_eq!(checks(two), [(1, 0, 0, 200), (2, 1, 250, 300)]);
            // What comes with the one before it, and a part of a large one.
            let within = vec![piece(1, 0, 200, 200), piece(1, 0, 200, 200), piece(2, 200, 50, 300)];
            assert_eq!(checks(within), [(1, 0, 0, 200), (2, 2, 200, 50)]);
        });
    }

    #[test]
    fn damaged_or_missing_bytes_reach_nobody_and_the_next_try_begins_anew() {
        run(LONG, |node| async move {
            let attach = node.attachment(node.dataset("a", &[100, 200, 300, 400]));
            let mut client = node.client();
            let (job, _) = node.attach(&client, attach).await.expect("attached");
            std::fs::write(file(&node, 1), vec![7; 200]).expect("written");
            std::fs::remove_file(file(&node, 2)).expect("removed");
            for (id, sample, kind) in [(1, 1, "corrupt"), (2, 2, "not-found")] {
                job.want(&client.connection, id, |request| samples(request, job.id, &[0, sample]));
                let (told, trouble) = client.trouble().await;
                assert_eq!((told, trouble.sample, trouble.kind.as_str()), (id, Some(sample), kind));
            }
            assert!(job.pool.state.borrow().troubles.is_empty(), "all have heard of it");
            assert_eq!(leases(&job), 0);
            std::fs::write(file(&node, 1), bytes(1, 200)).expect("written");
            job.want(&client.connection, 3, |request| samples(request, job.id, &[1]));
            let Say::Deliver { items, .. } = client.hear().await else {
                panic!("a delivery")
            };
            let there = job.pool.cache.map().bytes(items[0].offset, items[0].len);
            assert_eq!(there, Some(&bytes(1, 200)[..]));
            assert!(job.pool.state.borrow().cancels.is_empty());
        });
    }

    /// With little memory and a disk.
    fn on_disk(node: &Node, attach: Attach) -> Attach {
        let share = DiskShare {
            directory: node.directory.path().join("disk"),
            capacity_bytes: 512 << 20,
            pinned: None,
        };
        Attach {
            disks: vec![share],
            ram_bytes: (1 << 16) + (32 << 10),
            ..attach
        }
    }

    #[test]
    fn what_one_job_left_on_disk_the_next_one_reads_from_there() {
        run(LONG, |node| async move {
            let number = node.dataset("a", &[4000; 20]);
            let attach = on_disk(&node, node.attachment(number));
            let mut client = node.client();
            let (job, _) = node.attach(&client, attach.clone()).await.expect("attached");
            let batch = |request, job, batch| Event::WantBatch {
                request,
                job,
                rank: 0,
                epoch: 0,
                batch,
            };
            for at in 0..5 {
                job.want(&client.connection, at, |request| batch(request, job.id, at));
                job.pool.await_want(&client.connection, job.id, at);
                let Say::Deliver { items, .. } = client.hear().await else {
                    panic!("a delivery")
                };
                let handles = items.iter().map(|item| item.handle).collect();
                let handles = client.connection.unlease(job.id, handles);
                job.pool.step(Event::Release { handles });
            }
            until(|| job.pool.look(|plan| plan.demand().in_flight == 0)).await;
            until(|| job.stats().written_samples > 0 && job.pool.state.borrow().cancels.is_empty()).await;
            let kept = job.stats().written_samples;
            node.leave(&client);
            node.end(&job);
            let mut client = node.client();
            let attach = Attach {
                session: "second".into(),
                ..attach
            };
            let (job, joined) = node.attach(&client, attach).await.expect("attached");
            let found = job.pool.found(&job);
            assert!(!joined && found >= kept && found < 20, "{found} of {kept}");
            let all: Vec<u64> = (0..20).collect();
            for some in all.chunks(4) {
                job.want(&client.connection, some[0], |request| samples(request, job.id, some));
                job.pool.await_want(&client.connection, job.id, some[0]);
                let Say::Deliver { items, .. } = client.hear().await else {
                    panic!("a delivery")
                };
                for item in &items {
                    let there = job.pool.cache.map().bytes(item.offset, item.len);
                    assert_eq!(there, Some(&bytes(item.sample, 4000)[..]));
                }
                let handles = items.iter().map(|item| item.handle).collect();
                let handles = client.connection.unlease(job.id, handles);
                job.pool.step(Event::Release { handles });
            }
            assert!(job.stats().disk_hits > 0);
            assert_eq!(
                job.stats().disk_hits + job.stats().bucket_reads + job.stats().ram_hits,
                20
            );
        });
    }
}
